//! The other phases: latency, crash, slope; and memory, which all of them measure.

use crate::args::Args;
use crate::contender::{Contender, Kind};
use crate::crash::{self, Crash};
use crate::drain::{self, Run};
use crate::latency::{self, Plan, Rate, Session, quantile};
use crate::page::{Page, Table};
use crate::phases::{disturbed, median, middle, thousands, tries};
use crate::plot;
use crate::servers::Servers;
use crate::wal::{self, Workload};
use std::time::Duration;

const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Rows of the memory table: phase, contender, MiB.
pub(crate) type Memory = Vec<(String, String, f64)>;

fn to_kafka(args: &Args) -> Vec<Contender> {
    let debezium = args.with_debezium.then_some(Kind::Debezium);
    std::iter::once(Kind::Kafka).chain(debezium).map(|kind| Contender::new(kind, None)).collect()
}

pub(crate) fn latency(args: &Args, servers: &Servers, page: &mut Page, memory: &mut Memory) {
    let (rates, seconds, idle) =
        if args.quick { (vec![2_000], 4.0, 3) } else { (args.rates.clone(), 10.0, 8) };
    let plan = |partitions| Plan {
        partitions,
        rates: rates.clone(),
        seconds,
        idle: Duration::from_secs(idle),
        rehearsal: latency::REHEARSAL,
    };
    let mut jobs: Vec<(Contender, Plan)> =
        to_kafka(args).into_iter().map(|contender| (contender, plan(8))).collect();
    if !args.quick {
        let contender = Contender::new(Kind::Kafka, None).called("Postrider, 64 partitions");
        jobs.push((contender, plan(64)));
    }
    println!("\nlatency");
    let quiet = latency::prepare(servers);
    let mut sessions: Vec<Vec<Session>> = jobs.iter().map(|_| Vec::new()).collect();
    for round in 1..=(if args.quick { 1 } else { args.rounds }) {
        for ((contender, plan), sessions) in jobs.iter().zip(&mut sessions) {
            let session = latency::run(servers, &quiet, contender, plan);
            println!("  round {round}: {:<24} {}", contender.label, brief(&session));
            sessions.push(session);
        }
    }
    drop(quiet);
    wal::remove(servers, "bench_latency");
    let names: Vec<&str> = jobs.iter().map(|(contender, _)| contender.label.as_str()).collect();
    latency_table(page, &names, &sessions, &rates);
    for (name, sessions) in names.iter().zip(&sessions) {
        let mib = middle(sessions.iter().map(|session| session.idle_mib).collect());
        memory.push(("idle".to_owned(), (*name).to_owned(), mib));
        for (index, per_second) in rates.iter().enumerate() {
            let mib = middle(sessions.iter().map(|session| session.rates[index].rss_mib).collect());
            memory.push((
                format!("{} a second", thousands((*per_second).into())),
                (*name).to_owned(),
                mib,
            ));
        }
    }
}

fn brief(session: &Session) -> String {
    let rate = |rate: &Rate| {
        let noisy = rate.disturbed;
        let note =
            if noisy == 0 { String::new() } else { format!(" ({noisy} of {} noisy)", rate.slices) };
        format!(
            "{}/s p99 {:.1} ms{note}",
            thousands(rate.per_second.into()),
            quantile(&rate.latencies, 0.99)
        )
    };
    session.rates.iter().map(rate).collect::<Vec<_>>().join(", ")
}

fn latency_table(page: &mut Page, names: &[&str], sessions: &[Vec<Session>], rates: &[u32]) {
    let mut table = Table::new(
        "Latency, from the commit's answer to a consumer's hands",
        "Milliseconds; 10 rows a transaction, one writer with a fixed schedule, one consumer of all \
         partitions. Each figure is the median of the percentiles of the rounds. CPU is in percent of a core. \
         10 seconds at 10,000/s before the first rate are not counted, so that the Java virtual machines have compiled \
         their code. Slices of 2 s in which other processes used a tenth of a core, or the hypervisor took 1 %, are \
         left out: the last column counts them.",
        &[
            "",
            "events/s",
            "p50",
            "p95",
            "p99",
            "p99.9",
            "max",
            "relay CPU %",
            "walsender %",
            "broker %",
            "disturbed",
        ],
    );
    for (index, per_second) in rates.iter().enumerate() {
        let mut curves = Vec::new();
        for (name, sessions) in names.iter().zip(sessions) {
            let all: Vec<&Rate> = sessions.iter().map(|s| &s.rates[index]).collect();
            let quiet: Vec<&Rate> =
                all.iter().copied().filter(|rate| rate.disturbed < rate.slices).collect();
            let noisy: usize = all.iter().map(|rate| rate.disturbed).sum();
            let slices: usize = all.iter().map(|rate| rate.slices).sum();
            let rounds = if quiet.is_empty() { all } else { quiet };
            let each = |field: &dyn Fn(&Rate) -> f64| {
                middle(rounds.iter().map(|rate| field(rate)).collect())
            };
            let at = |part| each(&|rate: &Rate| quantile(&rate.latencies, part));
            let values: Vec<f64> = QUANTILES.iter().map(|(_, part)| at(*part)).collect();
            let percent = |cores: f64| format!("{:.1}", cores * 100.0);
            let mut row = vec![(*name).to_owned(), thousands(each(&|rate| rate.achieved))];
            row.extend(values.iter().map(|value| format!("{value:.1}")));
            row.push(percent(each(&|rate| rate.relay_cores)));
            row.push(percent(each(&|rate| rate.walsender_cores)));
            row.push(percent(each(&|rate| rate.broker_cores)));
            row.push(format!("{noisy} of {slices}"));
            table.row(row);
            curves.push(((*name).to_owned(), values));
        }
        let places: Vec<&str> = QUANTILES.iter().map(|(name, _)| *name).collect();
        let title = format!(
            "milliseconds from commit to consumer, {} events/s",
            thousands((*per_second).into())
        );
        page.plot(&format!("latency-{per_second}"), &plot::steps(&title, &places, &curves));
    }
    page.table(&table);
    let mut table = Table::new(
        "At rest",
        "An open stream without events, and the first transaction after that.",
        &["", "relay CPU %", "resident MiB", "first event ms"],
    );
    for (name, sessions) in names.iter().zip(sessions) {
        let each = |field: fn(&Session) -> f64| middle(sessions.iter().map(field).collect());
        table.row(vec![
            (*name).to_owned(),
            format!("{:.2}", each(|s| s.idle_cores) * 100.0),
            format!("{:.1}", each(|s| s.idle_mib)),
            format!("{:.1}", each(|s| s.after_idle)),
        ]);
    }
    page.table(&table);
}

pub(crate) fn crash(args: &Args, servers: &Servers, page: &mut Page) {
    let workload = Workload { name: "crash", ..Workload::main(args.rows).swap_remove(0) };
    println!("\nkill -9: creating {} rows", workload.rows);
    let backlog = workload.make(servers);
    let contenders = to_kafka(args);
    let mut crashes: Vec<Vec<Crash>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 1..=args.rounds.min(2) {
        for (contender, crashes) in contenders.iter().zip(&mut crashes) {
            let crash = crash::run(servers, &backlog, contender);
            let (new, twice) = (crash.first_new, thousands(crash.twice));
            println!(
                "  round {round}: {:<22} new after {new:.2} s, {twice} twice",
                contender.label
            );
            crashes.push(crash);
        }
    }
    drop(backlog);
    wal::remove(servers, &workload.database());
    let mut table = Table::new(
        &format!("`kill -9` in the middle of draining {}", thousands(workload.rows as f64)),
        "Seconds from the start of the next process, by the broker's clock. Nothing was lost, and the first copies \
         are in order.",
        &["", "first record s", "first new one s", "complete s", "repeated"],
    );
    for (contender, crashes) in contenders.iter().zip(&crashes) {
        let each = |field: fn(&Crash) -> f64| middle(crashes.iter().map(field).collect());
        table.row(vec![
            contender.label.clone(),
            format!("{:.2}", each(|crash| crash.first)),
            format!("{:.2}", each(|crash| crash.first_new)),
            format!("{:.2}", each(|crash| crash.done)),
            thousands(each(|crash| crash.twice)),
        ]);
    }
    page.table(&table);
}

/// Whether the cost of an event grows with the number of other events.
pub(crate) fn slope(args: &Args, servers: &Servers, page: &mut Page, memory: &mut Memory) {
    let base = Workload { name: "slope", steady: true, ..Workload::main(args.rows).swap_remove(0) };
    let many = Workload { name: "slope-aggregates", aggregates: 1_000_000, ..base.clone() };
    let parked = Workload { name: "slope-parked", parked: 100_000, ..base.clone() };
    let named = [
        (base, "1,000 aggregates"),
        (many, "1,000,000 aggregates"),
        (parked, "100,000 parked aggregates"),
    ];
    println!("\nslope: creating 3 times {} rows", args.rows);
    let backlogs: Vec<_> = named.iter().map(|(workload, _)| workload.make(servers)).collect();
    let mut table = Table::new(
        &format!("No slope: {} events", thousands(args.rows as f64)),
        "Ratios are to the first row of the same sink.",
        &["", "events/s", "ratio", "relay µs", "ratio", "peak RSS MiB", "disturbed"],
    );
    for kind in [Kind::Discard, Kind::Kafka] {
        let contender = Contender::new(kind, None);
        let mut runs: Vec<Vec<Run>> = named.iter().map(|_| Vec::new()).collect();
        for round in 1..=args.rounds {
            for (backlog, runs) in backlogs.iter().zip(&mut runs) {
                let run =
                    drain::undisturbed(tries(args), || drain::drain(servers, backlog, &contender));
                println!(
                    "  round {round}: {:<22} {:<18} {:.2} s",
                    contender.label, backlog.name, run.seconds
                );
                runs.push(run);
            }
        }
        let pair =
            |runs: &[Run]| (median(runs, |run| run.seconds), median(runs, |run| run.cpu.relay));
        let first = pair(&runs[0]);
        for ((_, label), runs) in named.iter().zip(&runs) {
            let (seconds, cpu) = pair(runs);
            let rows = args.rows as f64;
            let mib = median(runs, |run| run.peak_mib);
            memory.push((format!("drain, {label}"), contender.label.clone(), mib));
            table.row(vec![
                format!("{}, {label}", contender.label),
                thousands(rows / seconds),
                format!("{:.2}", first.0 / seconds),
                format!("{:.2}", cpu / rows * 1e6),
                format!("{:.2}", cpu / first.1),
                format!("{mib:.0}"),
                disturbed(runs),
            ]);
        }
    }
    drop(backlogs);
    for (workload, _) in &named {
        wal::remove(servers, &workload.database());
    }
    page.table(&table);
}

pub(crate) fn memory(page: &mut Page, memory: &Memory) {
    let mut table = Table::new(
        "Memory",
        "Resident MiB: the mean at rest and at a rate, the peak of a drain; of the process that relays.",
        &["", "contender", "MiB"],
    );
    for (when, who, mib) in memory {
        table.row(vec![when.clone(), who.clone(), format!("{mib:.1}")]);
    }
    page.table(&table);
}
