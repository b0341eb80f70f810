//! The phases and their order, and the tables and plots of their results.

use crate::args::Args;
use crate::contender::{Contender, Kind};
use crate::debezium;
use crate::drain::{self, Run};
use crate::exactly_once;
use crate::page::{Page, Table};
use crate::plot;
use crate::poll;
use crate::servers::Servers;
use crate::sinks;
use crate::table_outbox;
use crate::tls::Tls;
use crate::trials::{self, Memory};
use crate::wal::{self, Road, Workload};
use std::path::Path;

/// How often a disturbed run is attempted, unless there is only one round.
pub(crate) fn tries(args: &Args) -> usize {
    args.rounds.min(2)
}

/// How much slower than the baseline a build may be.
pub(crate) const GUARD_PERCENT: f64 = 5.0;

const DRAIN_NOTE: &str = "events/s of a process in Kafka are from the first to the last record by the broker's \
    clock, of the others from the start of the stream; the time before that is in the column `start`. Ratios are to \
    `pg_recvlogical`. CPU is in microseconds per event, of the relay, PostgreSQL's walsender and the broker; the \
    limit is the process with the highest use of a core, and that use. Before the first round the backlog is drained \
    to Kafka once, not counted, so that the Java virtual machines have compiled their code.";

pub(crate) fn all(args: &Args, servers: &Servers, page: &mut Page) {
    let mut memory = Memory::new();
    if args.does("drain") {
        for workload in Workload::main(args.rows) {
            // A quick run does not repeat Debezium, which takes seconds to start.
            let small = args.quick && workload.name != "batch";
            drains(args, servers, page, &workload, args.with_debezium && !small, &mut memory);
        }
    }
    for name in &args.workloads {
        let all = Workload::main(args.rows).into_iter().chain(Workload::others(args.rows));
        let workload = all.into_iter().find(|workload| workload.name == name);
        let workload = workload.unwrap_or_else(|| panic!("no workload {name}"));
        drains(args, servers, page, &workload, args.with_debezium, &mut memory);
    }
    if args.does("poll") {
        poll::poll(args, servers, page);
    }
    if args.does("latency") {
        trials::latency(args, servers, page, &mut memory);
    }
    if args.does("table-outbox") {
        table_outbox::table_outbox(args, servers);
    }
    if args.does("sinks") && (!args.quick || args.is_partial()) {
        sinks::sinks(args, servers, page);
    }
    if args.does("exactly-once") && (!args.quick || args.is_partial()) {
        exactly_once::exactly_once(args, servers, page);
    }
    if args.does("crash") && !args.quick {
        trials::crash(args, servers, page);
    }
    if args.does("slope") && !args.quick {
        trials::slope(args, servers, page, &mut memory);
    }
    if !memory.is_empty() {
        trials::memory(page, &memory);
    }
}

fn contenders(servers: &Servers, with_debezium: bool) -> Vec<Contender> {
    let mut kinds = vec![Kind::Recvlogical, Kind::Pgwire, Kind::Discard, Kind::Kafka];
    if with_debezium {
        assert!(debezium::is_there(servers), "Debezium is not there: run scripts/bench");
        kinds.push(Kind::Debezium);
    }
    kinds.into_iter().map(|kind| Contender::new(kind, None)).collect()
}

/// Every contender in turn, as often as there are rounds.
fn rounds(
    args: &Args,
    servers: &Servers,
    workload: &Workload,
    contenders: &[Contender],
) -> Vec<Vec<Run>> {
    println!("\n{}: creating {} rows", workload.label, workload.rows);
    let backlog = workload.make(servers);
    if let Some(first) = contenders.iter().find(|contender| contender.kind == Kind::Kafka) {
        // Not measured. A broker that has just started compiles its hot code on the shared processors, which would only
        // slow the first contender.
        let run = drain::drain(servers, &backlog, first);
        println!("  not measured: {:<18} {:>7.2} s", first.label, run.seconds);
    }
    let mut runs: Vec<Vec<Run>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 1..=args.rounds {
        for (contender, runs) in contenders.iter().zip(&mut runs) {
            let run =
                drain::undisturbed(tries(args), || drain::drain(servers, &backlog, contender));
            let note = run.disturbed.as_deref().map_or(String::new(), |why| format!(" ({why})"));
            println!("  round {round}: {:<22} {:>7.2} s{note}", contender.label, run.seconds);
            runs.push(run);
        }
    }
    drop(backlog);
    wal::remove(servers, &workload.database());
    runs
}

fn drains(
    args: &Args,
    servers: &Servers,
    page: &mut Page,
    workload: &Workload,
    with_debezium: bool,
    memory: &mut Memory,
) {
    // Debezium's event router processes only rows.
    let mut contenders = contenders(servers, with_debezium && !workload.messages);
    // Built without TLS, which is not the subject here.
    contenders.retain(|it| workload.road != Road::Tls || it.kind != Kind::Pgwire);
    let _tls = (workload.road == Road::Tls).then(|| Tls::switch_on(servers));
    let runs = rounds(args, servers, workload, &contenders);
    let rows = workload.rows as f64;
    let mut table = Table::new(
        &format!("Drain: {}, {}", thousands(rows), workload.label),
        if workload.name == "batch" { DRAIN_NOTE } else { "" },
        &[
            "",
            "events/s",
            "ratio",
            "× Debezium",
            "relay µs",
            "walsender µs",
            "broker µs",
            "limit",
            "peak RSS MiB",
            "start s",
            "disturbed",
        ],
    );
    let seconds = |runs: &[Run]| median(runs, |run| run.seconds);
    let reference = seconds(&runs[0]);
    let slowest = (contenders.last().is_some_and(|last| last.kind == Kind::Debezium))
        .then(|| runs.last().map_or(0.0, |runs| seconds(runs)));
    let mut bars = Vec::new();
    for (contender, runs) in contenders.iter().zip(&runs) {
        let peak = median(runs, |run| run.peak_mib);
        let rate = rows / seconds(runs);
        bars.push((contender.label.clone(), rate));
        memory.push((format!("drain, {}", workload.label), contender.label.clone(), peak));
        let cost = |field: fn(&Run) -> f64| format!("{:.2}", median(runs, field) / rows * 1e6);
        let is_in_kafka = contender.writes_to_kafka();
        let times = slowest.filter(|_| is_in_kafka).map(|slowest| slowest / seconds(runs));
        table.row(vec![
            contender.label.clone(),
            thousands(rate),
            format!("{:.2}", reference / seconds(runs)),
            times.map_or_else(|| "–".to_owned(), |times| format!("{times:.2}")),
            cost(|run| run.cpu.relay),
            cost(|run| run.cpu.walsender),
            if is_in_kafka { cost(|run| run.cpu.broker) } else { "–".to_owned() },
            limit(runs),
            format!("{peak:.0}"),
            format!("{:.2}", median(runs, |run| run.start)),
            disturbed(runs),
        ]);
    }
    page.table(&table);
    page.plot(
        &format!("drain-{}", workload.name),
        &plot::bars(&format!("events/s, {}", workload.label), &bars),
    );
    if workload.name == "batch" {
        let curves: Vec<(String, Vec<(f64, f64)>)> = contenders
            .iter()
            .zip(&runs)
            .map(|(contender, runs)| (contender.label.clone(), runs[0].samples.rss_curve()))
            .collect();
        let title = format!("resident MiB over seconds, draining {}", thousands(rows));
        page.plot("rss-drain", &plot::curves(&title, "s", &curves));
    }
}

/// The process that used most of a core, and how much of it.
fn limit(runs: &[Run]) -> String {
    let share = |field: fn(&Run) -> f64| median(runs, |run| field(run) / run.seconds) * 100.0;
    let shares = [
        ("relay", share(|run| run.cpu.relay)),
        ("walsender", share(|run| run.cpu.walsender)),
        ("broker", share(|run| run.cpu.broker)),
    ];
    let (name, most) = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default();
    format!("{name} {most:.0} %")
}

pub(crate) fn disturbed(runs: &[Run]) -> String {
    format!("{} of {}", runs.iter().filter(|run| run.disturbed.is_some()).count(), runs.len())
}

/// Compares this build with another, to `discard` and to Kafka. Returns whether it is not slower and uses no more CPU.
pub(crate) fn guard(args: &Args, servers: &Servers, baseline: &Path, page: &mut Page) -> bool {
    let pair = |kind| {
        let before = Contender::new(kind, Some(baseline));
        let label = format!("{}, before", before.label);
        [before.called(&label), Contender::new(kind, None)]
    };
    let contenders: Vec<Contender> =
        [Kind::Discard, Kind::Kafka].into_iter().flat_map(pair).collect();
    let mut passed = true;
    for workload in Workload::main(args.rows).into_iter().take(2) {
        let runs = rounds(args, servers, &workload, &contenders);
        let mut table = Table::new(
            &format!("Guard: {}", workload.label),
            "Medians; ratios are of this build to the one before. Above 1 is slower, or dearer.",
            &["", "before s", "now s", "ratio", "relay CPU before s", "now s", "ratio", "verdict"],
        );
        for (contenders, runs) in contenders.chunks(2).zip(runs.chunks(2)) {
            let [seconds, cpu] = [|run: &Run| run.seconds, |run: &Run| run.cpu.relay]
                .map(|field: fn(&Run) -> f64| (median(&runs[0], field), median(&runs[1], field)));
            let limit = 1.0 + GUARD_PERCENT / 100.0;
            let held = seconds.1 <= seconds.0 * limit && cpu.1 <= cpu.0 * limit;
            passed &= held;
            table.row(vec![
                contenders[1].label.clone(),
                format!("{:.2}", seconds.0),
                format!("{:.2}", seconds.1),
                format!("{:.3}", seconds.1 / seconds.0),
                format!("{:.2}", cpu.0),
                format!("{:.2}", cpu.1),
                format!("{:.3}", cpu.1 / cpu.0),
                if held { "held" } else { "SLOWER" }.to_owned(),
            ]);
        }
        page.table(&table);
    }
    passed
}

/// The undisturbed runs, or all if there are none.
pub(crate) fn median(runs: &[Run], field: impl Fn(&Run) -> f64) -> f64 {
    let quiet: Vec<f64> = runs.iter().filter(|run| run.disturbed.is_none()).map(&field).collect();
    middle(if quiet.is_empty() { runs.iter().map(&field).collect() } else { quiet })
}

pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) }
}

/// A whole number with commas.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
