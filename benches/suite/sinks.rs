//! Phase `sinks`: the sinks side by side, each on a broker that the bench starts, and beside the broker's own client.

use crate::args::Args;
use crate::brokers::BrokerProcess;
use crate::contender::{Contender, Kind, Running};
use crate::drain::{self, Run, measured, wait_for_published};
use crate::latency::{self, Came, Plan, Rate, quantile};
use crate::page::{Page, Table};
use crate::phases::{disturbed, median, thousands, tries};
use crate::process::{self, Watch};
use crate::rivals::{self, Rival};
use crate::servers::Servers;
use crate::targets::{Place, Target};
use crate::wal::{self, Backlog, Workload};
use std::time::Duration;

/// The rate of the latencies, in events per second, and for how many seconds.
const RATE: u32 = 2_000;
const RATE_SECONDS: f64 = 20.0;

const DRAIN_NOTE: &str = "events/s are from the start of the stream until `/status` has the last event as published, \
    with the login to the broker. CPU is in microseconds per event, of the relay, PostgreSQL's walsender and the \
    broker; the HTTP receiver is in the process of the bench. After each drain the destination was read back: \
    complete, in order of each aggregate, nothing twice. NATS: one copy, storage `file`. Redis: `appendonly yes`, \
    `appendfsync always`, no rewrites of the file. All servers have their data beside that of PostgreSQL and Kafka. \
    There are 1,000 aggregates, of which RabbitMQ and HTTP have one event each in flight. The peak has the events that \
    wait for a broker that is slower than PostgreSQL, up to `flow.in_flight_bytes`.";

const RIVAL_NOTE: &str = "The server's own client publishes messages of 300 B to the same destination, after the \
    drain, and shares the machine with that server only; the drain shares it with PostgreSQL too. `Postrider` is the \
    drain of transactions of 1,000 rows. The goals: five times the synchronous client of \
    NATS, half of the bench of Redis with one connection, which the sink has, and half of that of RabbitMQ; the other \
    lines are for information.";

const LATENCY_NOTE: &str = "Milliseconds from the answer to COMMIT until a consumer has the message, or the receiver \
    the request; 10 rows a transaction. CPU is in percent of a core. Slices of 2 s in which other processes used a \
    tenth of a core are left out.";

/// The results of one sink.
struct Results {
    target: Target,
    /// By workload, the runs.
    drains: Vec<(String, usize, Vec<Run>)>,
    rivals: Vec<Rival>,
    latency: Rate,
}

pub(crate) fn sinks(args: &Args, servers: &Servers, page: &mut Page) {
    let workload = |name, label: &str, rows, each| Workload::new(name, label, rows, each);
    let rows = args.sink_rows;
    let batch = workload("sinks-batch", "1,000 rows a transaction", rows, 1_000);
    let single = workload("sinks-single", "1 row a transaction", rows / 4, 1);
    let small = workload("sinks-small", "1,000 rows a transaction", rows / 4, 1_000);
    let wanted: Vec<Target> =
        Target::ALL.into_iter().filter(|target| args.measures(target.kind())).collect();
    println!("\nsinks: creating {rows} rows, and twice a quarter of that");
    let backlogs = [&batch, &single, &small].map(|workload| workload.make(servers));
    let [batch, single, small] = &backlogs;
    let quiet = Workload::new("sinks-latency", "a trickle", 0, 1).make(servers);
    let contender = Contender::new(Kind::Sink, args.binary.as_deref());
    let mut all = Vec::new();
    for target in wanted {
        let broker = target.broker().map(|kind| BrokerProcess::start(servers, kind));
        let main = if matches!(target, Target::Http(_)) { small } else { batch };
        let contender = contender.clone().called(target.label());
        let bench = SinkBench { args, servers, target, broker: broker.as_ref(), contender };
        let drains = [main, single].map(|backlog| {
            let Workload { label, rows, .. } = &backlog.workload;
            (label.clone(), *rows, bench.drains(backlog))
        });
        let rivals = bench.rivals(main, rows);
        for Rival { label, rate, .. } in &rivals {
            println!("  {label}: {}/s", thousands(*rate));
        }
        let latency = bench.latency(&quiet);
        all.push(Results { target, drains: drains.into(), rivals, latency });
    }
    drop((backlogs, quiet));
    for name in ["sinks-batch", "sinks-single", "sinks-small", "sinks-latency"] {
        wal::remove(servers, &Workload::new(name, "", 0, 1).database());
    }
    drain_table(page, &all);
    rival_table(page, &all);
    latency_table(page, &all);
}

struct SinkBench<'a> {
    args: &'a Args,
    servers: &'a Servers,
    target: Target,
    broker: Option<&'a BrokerProcess>,
    contender: Contender,
}

impl SinkBench<'_> {
    fn drains(&self, backlog: &Backlog) -> Vec<Run> {
        let mut number = 0;
        let mut drain = || {
            number += 1;
            self.drain(backlog, number)
        };
        // Not measured: the broker has compiled its code, and allocated its files.
        drain();
        let runs = (1..=self.args.rounds).map(|round| {
            let run = drain::undisturbed(tries(self.args), &mut drain);
            let note = run.disturbed.as_deref().map_or(String::new(), |why| format!(" ({why})"));
            let label = self.target.label();
            let rate = thousands(backlog.workload.rows as f64 / run.seconds);
            println!("  round {round}: {label:<24} {}: {rate}/s{note}", backlog.workload.label);
            run
        });
        runs.collect()
    }

    /// One drain into a destination of its own.
    fn drain(&self, backlog: &Backlog, number: u32) -> Run {
        let mut job = drain::job(self.servers, backlog, &self.contender);
        job.slot = format!("{}_{}", backlog.name, self.target.short());
        job.topic = format!("{}_{number}", job.slot);
        backlog.slot(&job.slot);
        let place = Place::make(self.servers, self.target, self.broker, &mut job, None);
        let rows = backlog.workload.rows;
        let watch = Watch::start();
        let mut running = Running::start(&self.contender, &job, &watch);
        let from = running.streams(&job, &backlog.database, &watch);
        wait_for_published(&mut running, rows, from);
        let until = process::now();
        let (samples, started) = (watch.end(), running.started);
        running.end();
        let again = place.read(rows).check(rows);
        assert_eq!(again, 0, "events came twice");
        if let Place::Kafka(topic) = place {
            topic.remove();
        }
        backlog.database.drop_slot(&job.slot);
        measured(samples, started, from, until)
    }

    /// The server's own clients, to the destination of the first drain.
    fn rivals(&self, main: &Backlog, rows: usize) -> Vec<Rival> {
        let topic = format!("{}_{}_1", main.name, self.target.short());
        match (self.target, self.broker) {
            (Target::Nats, Some(broker)) => rivals::nats(broker, &topic, rows),
            (Target::Redis, Some(broker)) => rivals::redis(broker, rows),
            (Target::Quorum | Target::Classic, Some(broker)) => {
                rivals::rabbitmq(self.servers, broker, &topic, rows)
            }
            _ => Vec::new(),
        }
    }

    fn latency(&self, quiet: &Backlog) -> Rate {
        let seconds = if self.args.quick { 4.0 } else { RATE_SECONDS };
        let plan = Plan {
            partitions: 8,
            rates: vec![RATE],
            seconds,
            idle: Duration::from_secs(1),
            rehearsal: (RATE, 3.0),
        };
        let mut job = drain::job(self.servers, quiet, &self.contender);
        job.slot = format!("{}_{}", quiet.name, self.target.short());
        job.topic.clone_from(&job.slot);
        quiet.slot_here(&job.slot);
        // Events have the numbers from 1 of each session.
        let came = Came::default();
        let observed = Some(came.clone());
        let place = Place::make(self.servers, self.target, self.broker, &mut job, observed);
        let (reader, topic) = place.reader(came);
        let session = latency::measure(self.servers, quiet, &self.contender, &plan, &job, reader);
        if let Some(topic) = topic {
            topic.remove();
        }
        quiet.database.drop_slot(&job.slot);
        let rate = session.rates.into_iter().next().expect("one rate");
        let p99 = quantile(&rate.latencies, 0.99);
        println!("  {}: {RATE}/s p99 {p99:.1} ms", self.target.label());
        rate
    }
}

/// A sentence for figures of a machine that was never quiet.
fn noise(all: &[Results]) -> &'static str {
    let mut runs = all.iter().flat_map(|results| &results.drains).flat_map(|(_, _, runs)| runs);
    if runs.all(|run| run.disturbed.is_some()) {
        " **Other processes used the machine in every round of this run: rates are too low, and ratios are rough.**"
    } else {
        ""
    }
}

fn drain_table(page: &mut Page, all: &[Results]) {
    let mut table = Table::new(
        "Other brokers: drain",
        &format!("{DRAIN_NOTE}{}", noise(all)),
        &[
            "",
            "transactions",
            "events",
            "events/s",
            "relay µs",
            "walsender µs",
            "broker µs",
            "peak RSS MiB",
            "disturbed",
        ],
    );
    for Results { target, drains, .. } in all {
        for (label, rows, runs) in drains {
            let rows = *rows as f64;
            let cost = |field: fn(&Run) -> f64| format!("{:.1}", median(runs, field) / rows * 1e6);
            let broker = if matches!(target, Target::Http(_)) {
                "–".to_owned()
            } else {
                cost(|run| run.cpu.broker)
            };
            table.row(vec![
                target.label().to_owned(),
                label.clone(),
                thousands(rows),
                thousands(rows / median(runs, |run| run.seconds)),
                cost(|run| run.cpu.relay),
                cost(|run| run.cpu.walsender),
                broker,
                format!("{:.0}", median(runs, |run| run.peak_mib)),
                disturbed(runs),
            ]);
        }
    }
    page.table(&table);
}

fn rival_table(page: &mut Page, all: &[Results]) {
    let mut table = Table::new(
        "Other brokers: beside the server's own client",
        &format!("{RIVAL_NOTE}{}", noise(all)),
        &["", "client", "messages/s", "Postrider", "ratio", "goal", "reached"],
    );
    for Results { target, drains, rivals, .. } in all {
        let Some((_, rows, runs)) = drains.first() else { continue };
        let ours = *rows as f64 / median(runs, |run| run.seconds);
        for Rival { label, rate, goal } in rivals {
            let ratio = ours / rate;
            table.row(vec![
                target.label().to_owned(),
                label.clone(),
                thousands(*rate),
                thousands(ours),
                format!("{ratio:.2}"),
                goal.map_or_else(|| "–".to_owned(), |goal| format!("{goal:.1}")),
                match goal {
                    None => "–",
                    Some(goal) if ratio >= *goal => "yes",
                    Some(_) => "NO",
                }
                .to_owned(),
            ]);
        }
    }
    page.table(&table);
}

fn latency_table(page: &mut Page, all: &[Results]) {
    let mut table = Table::new(
        &format!("Other brokers: latency at {} events/s", thousands(RATE.into())),
        LATENCY_NOTE,
        &[
            "",
            "events/s",
            "p50",
            "p99",
            "max",
            "relay CPU %",
            "broker CPU %",
            "resident MiB",
            "disturbed",
        ],
    );
    for Results { target, latency, .. } in all {
        let at = |part| format!("{:.1}", quantile(&latency.latencies, part));
        let percent = |cores: f64| format!("{:.1}", cores * 100.0);
        let is_here = matches!(target, Target::Http(_));
        table.row(vec![
            target.label().to_owned(),
            thousands(latency.achieved),
            at(0.5),
            at(0.99),
            at(1.0),
            percent(latency.relay_cores),
            if is_here { "–".to_owned() } else { percent(latency.broker_cores) },
            format!("{:.0}", latency.rss_mib),
            format!("{} of {}", latency.disturbed, latency.slices),
        ]);
    }
    page.table(&table);
}
