//! Phase `exactly-once`: Kafka with `delivery = "exactly-once"` beside at-least-once, over the same WAL in one run.
//!
//! Consumers read committed records only: what they see counts, and it must be there once.

use crate::args::Args;
use crate::commits::Commits;
use crate::contender::{Contender, Job, Kind, Running, setup_sink};
use crate::drain::{self, Run, measured, wait_for_published};
use crate::latency::{self, Came, Plan, Rate, Reader, quantile, read_topic};
use crate::page::{Page, Table};
use crate::phases::{disturbed, median, middle, thousands, tries};
use crate::process::{self, Watch};
use crate::servers::{Servers, wait_for};
use crate::topic::{Arrivals, Topic};
use crate::wal::{self, Backlog, Workload};
use std::time::Duration;

/// The default of `transaction.commit_interval`, in milliseconds.
const INTERVAL: u32 = 20;
/// The least rate of a drain at 8 partitions, as a part of that with at-least-once.
const DRAIN_GOAL: f64 = 0.85;
/// The time at each rate, in seconds.
const RATE_SECONDS: f64 = 20.0;

const DRAIN_NOTE: &str = "events/s are from the start of the stream until `/status` has the last event as published, \
    with the login to the broker and, with exactly once, the recovery and the last commit. Ratios are to at-least-once \
    with the same topic; the goal at 8 partitions is 0.85. Commit times are from `postrider_sink_commit_seconds`. CPU \
    is in microseconds per event. After each drain the topic was read with `isolation.level=read_committed`: complete, \
    in order of each aggregate, nothing twice.";

const LATENCY_NOTE: &str = "Milliseconds from the answer to COMMIT until a consumer that reads committed records has \
    the event; 10 rows a transaction, one writer with a fixed schedule. `expected` is `commit_interval` and the 99th \
    percentile of a commit in the same run, interpolated in the buckets of `postrider_sink_commit_seconds`. CPU is in \
    percent of a core. Slices of 2 s in which other processes used a tenth of a core are left out.";

const CRASH_NOTE: &str = "Seconds from the start of the next process: when its first record was appended, by the \
    broker's clock, when a consumer that reads committed records had it, and when that consumer had everything. With \
    exactly once no record came twice.";

/// How events are published.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Setting {
    /// `commit_interval` of exactly once, in milliseconds; `None` for at-least-once.
    interval: Option<u32>,
    partitions: i32,
}

impl Setting {
    const fn once(interval: u32, partitions: i32) -> Self {
        Self { interval: Some(interval), partitions }
    }

    const fn at_least_once(partitions: i32) -> Self {
        Self { interval: None, partitions }
    }

    fn label(self) -> String {
        let partitions = self.partitions;
        match self.interval {
            None => format!("at least once, {partitions} partitions"),
            Some(INTERVAL) => format!("exactly once, {partitions} partitions"),
            Some(interval) => format!("exactly once, {partitions} partitions, {interval} ms"),
        }
    }

    /// A name for slots, topics and files.
    fn short(self) -> String {
        let partitions = self.partitions;
        self.interval
            .map_or_else(|| format!("alo_{partitions}"), |ms| format!("eo_{ms}_{partitions}"))
    }

    /// The table of the sink. Each run has a transactional id of its own, since a run begins at the slot's start again.
    fn sink(self, servers: &Servers) -> String {
        let kafka = format!("kind = \"kafka\"\nbrokers = \"{}\"\n", servers.brokers);
        let Some(interval) = self.interval else { return kafka };
        format!(
            "{kafka}delivery = \"exactly-once\"\n[pipelines.SLOT.sink.transaction]\n\
             commit_interval = \"{interval}ms\"\nid = \"bench.SLOT.{:.0}\"\n",
            process::now() * 1e3
        )
    }
}

/// A drain and its commits.
struct Drained {
    run: Run,
    commits: Commits,
}

/// One rate.
struct Trickle {
    rate: Rate,
    commits: Commits,
}

/// One `kill -9`.
struct Restarted {
    appended: f64,
    visible: f64,
    done: f64,
    twice: f64,
}

struct ExactlyOnce<'a> {
    args: &'a Args,
    servers: &'a Servers,
}

pub(crate) fn exactly_once(args: &Args, servers: &Servers, page: &mut Page) {
    let bench = ExactlyOnce { args, servers };
    bench.drains(page);
    bench.latencies(page);
    if !args.quick {
        bench.crashes(page);
    }
}

impl ExactlyOnce<'_> {
    fn contender(&self, setting: Setting) -> Contender {
        Contender::new(Kind::Sink, self.args.binary.as_deref()).called(&setting.label())
    }

    /// A job with its own slot, topic and, with exactly once, progress.
    fn job<'b>(&'b self, backlog: &'b Backlog, setting: Setting) -> (Job<'b>, Topic) {
        let mut job = drain::job(self.servers, backlog, &self.contender(setting));
        job.slot = format!("{}_{}", backlog.name, setting.short());
        job.topic.clone_from(&job.slot);
        job.sink = setting.sink(self.servers);
        if backlog.workload.rows > 0 {
            backlog.slot(&job.slot);
        } else {
            backlog.slot_here(&job.slot);
        }
        let topic = Topic::make(self.servers, &job.topic, setting.partitions);
        if setting.interval.is_some() {
            setup_sink(&job);
        }
        (job, topic)
    }

    fn drains(&self, page: &mut Page) {
        let settings = [
            Setting::at_least_once(8),
            Setting::once(INTERVAL, 8),
            Setting::at_least_once(64),
            Setting::once(INTERVAL, 64),
        ];
        let rows = self.args.rows;
        let workloads = [
            Workload::new("once-batch", "1,000 rows a transaction", rows, 1_000),
            Workload::new("once-single", "1 row a transaction", (rows / 4).max(1_000), 1),
        ];
        for workload in workloads {
            println!("\nexactly once, {}: creating {} rows", workload.label, workload.rows);
            let backlog = workload.make(self.servers);
            // Not measured: the broker compiles its code for transactions.
            for setting in &settings[..2] {
                self.drain(&backlog, *setting);
            }
            let mut all: Vec<Vec<Drained>> = settings.iter().map(|_| Vec::new()).collect();
            for round in 1..=self.args.rounds {
                for (setting, runs) in settings.iter().zip(&mut all) {
                    let run = self.undisturbed(&backlog, *setting);
                    let note = run.run.disturbed.as_deref().unwrap_or("quiet");
                    let label = setting.label();
                    println!("  round {round}: {label:<28} {:>7.2} s ({note})", run.run.seconds);
                    runs.push(run);
                }
            }
            drop(backlog);
            wal::remove(self.servers, &workload.database());
            drain_table(page, &workload, &settings, &all);
        }
    }

    /// As [`drain::undisturbed`], with the commits of the run that counts.
    fn undisturbed(&self, backlog: &Backlog, setting: Setting) -> Drained {
        let mut commits = Commits::default();
        let run = drain::undisturbed(tries(self.args), || {
            let drained = self.drain(backlog, setting);
            commits = drained.commits;
            drained.run
        });
        Drained { run, commits }
    }

    fn drain(&self, backlog: &Backlog, setting: Setting) -> Drained {
        let (job, topic) = self.job(backlog, setting);
        let rows = backlog.workload.rows;
        let watch = Watch::start();
        let mut running = Running::start(&self.contender(setting), &job, &watch);
        let from = running.streams(&job, &backlog.database, &watch);
        wait_for_published(&mut running, rows, from);
        let until = process::now();
        let (samples, started) = (watch.end(), running.started);
        let commits = Commits::read(&running.metrics());
        running.end();
        let again = Arrivals::start(topic.consumer()).all(rows).check(rows);
        assert_eq!(again, 0, "events came twice");
        topic.remove();
        backlog.database.drop_slot(&job.slot);
        Drained { run: measured(samples, started, from, until), commits }
    }

    fn latencies(&self, page: &mut Page) {
        let settings = [
            Setting::at_least_once(8),
            Setting::once(5, 8),
            Setting::once(INTERVAL, 8),
            Setting::once(100, 8),
            Setting::at_least_once(64),
            Setting::once(INTERVAL, 64),
        ];
        let rates = if self.args.quick { vec![2_000] } else { self.args.rates.clone() };
        println!("\nexactly once, latency");
        let quiet = Workload::new("once-latency", "a trickle", 0, 1).make(self.servers);
        for rate in rates {
            let mut all: Vec<Vec<Trickle>> = settings.iter().map(|_| Vec::new()).collect();
            for round in 1..=(if self.args.quick { 1 } else { self.args.rounds }) {
                for (setting, trickles) in settings.iter().zip(&mut all) {
                    let trickle = self.latency(&quiet, *setting, rate);
                    let p99 = quantile(&trickle.rate.latencies, 0.99);
                    println!("  round {round}: {:<36} {rate}/s p99 {p99:.1} ms", setting.label());
                    trickles.push(trickle);
                }
            }
            latency_table(page, rate, &settings, &all);
        }
        drop(quiet);
        wal::remove(self.servers, &Workload::new("once-latency", "", 0, 1).database());
    }

    fn latency(&self, quiet: &Backlog, setting: Setting, rate: u32) -> Trickle {
        let plan = Plan {
            partitions: setting.partitions,
            rates: vec![rate],
            seconds: if self.args.quick { 4.0 } else { RATE_SECONDS },
            idle: Duration::from_secs(1),
            rehearsal: (rate, 3.0),
        };
        let (job, topic) = self.job(quiet, setting);
        let consumer = topic.consumer();
        let reader = Reader::start(Came::default(), move || read_topic(&consumer));
        let contender = self.contender(setting);
        let session = latency::measure(self.servers, quiet, &contender, &plan, &job, reader);
        topic.remove();
        quiet.database.drop_slot(&job.slot);
        let rate = session.rates.into_iter().next().expect("one rate");
        Trickle { rate, commits: Commits::read(&session.metrics) }
    }

    fn crashes(&self, page: &mut Page) {
        let settings = [Setting::at_least_once(8), Setting::once(INTERVAL, 8)];
        let workload =
            Workload::new("once-crash", "1,000 rows a transaction", self.args.rows, 1_000);
        println!("\nexactly once, kill -9: creating {} rows", workload.rows);
        let backlog = workload.make(self.servers);
        let mut all: Vec<Vec<Restarted>> = settings.iter().map(|_| Vec::new()).collect();
        for round in 1..=self.args.rounds {
            for (setting, restarts) in settings.iter().zip(&mut all) {
                let restarted = self.crash(&backlog, *setting);
                let Restarted { visible, twice, .. } = restarted;
                println!(
                    "  round {round}: {:<28} visible after {visible:.2} s, {twice} twice",
                    setting.label()
                );
                restarts.push(restarted);
            }
        }
        drop(backlog);
        wal::remove(self.servers, &workload.database());
        let mut table = Table::new(
            &format!(
                "Exactly once: `kill -9` in the middle of draining {}",
                thousands(workload.rows as f64)
            ),
            CRASH_NOTE,
            &["", "first record s", "first visible s", "complete s", "repeated"],
        );
        for (setting, restarts) in settings.iter().zip(&all) {
            let each = |field: fn(&Restarted) -> f64| middle(restarts.iter().map(field).collect());
            table.row(vec![
                setting.label(),
                format!("{:.2}", each(|it| it.appended)),
                format!("{:.2}", each(|it| it.visible)),
                format!("{:.2}", each(|it| it.done)),
                thousands(each(|it| it.twice)),
            ]);
        }
        page.table(&table);
    }

    fn crash(&self, backlog: &Backlog, setting: Setting) -> Restarted {
        let (job, topic) = self.job(backlog, setting);
        let rows = backlog.workload.rows;
        let contender = self.contender(setting);
        let arrivals = Arrivals::start(topic.consumer());
        let watch = Watch::start();
        let running = Running::start(&contender, &job, &watch);
        wait_for("the middle", Duration::from_millis(10), || {
            (arrivals.count() >= rows / 2).then_some(())
        });
        running.kill();
        let running = Running::start(&contender, &job, &watch);
        let started = running.started;
        let content = arrivals.all(rows);
        running.end();
        drop(watch);
        topic.remove();
        backlog.database.drop_slot(&job.slot);
        let twice = content.check(rows);
        assert!(setting.interval.is_none() || twice == 0, "{twice} events came twice");
        let of_next = || content.seen.iter().filter(|seen| seen.appended > started);
        let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        Restarted {
            appended: least(&mut of_next().map(|seen| seen.appended)) - started,
            visible: least(&mut of_next().map(|seen| seen.came)) - started,
            done: content.seen.iter().map(|seen| seen.came).fold(0.0, f64::max) - started,
            twice: twice as f64,
        }
    }
}

fn drain_table(page: &mut Page, workload: &Workload, settings: &[Setting], all: &[Vec<Drained>]) {
    let rows = workload.rows as f64;
    let mut table = Table::new(
        &format!("Exactly once: drain of {}, {}", thousands(rows), workload.label),
        if workload.per_transaction > 1 { DRAIN_NOTE } else { "" },
        &[
            "",
            "events/s",
            "ratio",
            "reached",
            "events a commit",
            "commit ms",
            "commit p99 ms",
            "relay µs",
            "broker µs",
            "peak RSS MiB",
            "disturbed",
        ],
    );
    let mut reference = 0.0;
    for (setting, drained) in settings.iter().zip(all) {
        let runs: Vec<Run> = drained.iter().map(|drained| drained.run.clone()).collect();
        let seconds = median(&runs, |run| run.seconds);
        let is_once = setting.interval.is_some();
        if !is_once {
            reference = seconds;
        }
        let cost = |field: fn(&Run) -> f64| format!("{:.2}", median(&runs, field) / rows * 1e6);
        let commits = |field: &dyn Fn(&Commits) -> f64| {
            if is_once {
                let each = drained.iter().map(|drained| field(&drained.commits));
                format!("{:.1}", middle(each.collect()))
            } else {
                "–".to_owned()
            }
        };
        let ratio = reference / seconds;
        let has_goal = is_once && setting.partitions == 8 && workload.per_transaction > 1;
        let met = if ratio >= DRAIN_GOAL { "yes" } else { "NO" };
        let verdict = if has_goal { met } else { "–" };
        table.row(vec![
            setting.label(),
            thousands(rows / seconds),
            format!("{ratio:.2}"),
            verdict.to_owned(),
            commits(&|commits| rows / commits.count.max(1.0)),
            commits(&Commits::mean),
            commits(&|commits| commits.quantile(0.99)),
            cost(|run| run.cpu.relay),
            cost(|run| run.cpu.broker),
            format!("{:.0}", median(&runs, |run| run.peak_mib)),
            disturbed(&runs),
        ]);
    }
    page.table(&table);
}

fn latency_table(page: &mut Page, rate: u32, settings: &[Setting], all: &[Vec<Trickle>]) {
    let mut table = Table::new(
        &format!("Exactly once: latency at {} events/s", thousands(rate.into())),
        LATENCY_NOTE,
        &[
            "",
            "events/s",
            "p50",
            "p99",
            "expected",
            "max",
            "commit ms",
            "commit p99",
            "relay CPU %",
            "broker CPU %",
            "disturbed",
        ],
    );
    for (setting, trickles) in settings.iter().zip(all) {
        let quiet: Vec<&Trickle> =
            trickles.iter().filter(|it| it.rate.disturbed < it.rate.slices).collect();
        let counted = if quiet.is_empty() { trickles.iter().collect() } else { quiet };
        let each =
            |field: &dyn Fn(&Trickle) -> f64| middle(counted.iter().map(|it| field(it)).collect());
        let at = |part| format!("{:.1}", each(&|it| quantile(&it.rate.latencies, part)));
        let percent =
            |field: fn(&Rate) -> f64| format!("{:.1}", each(&|it| field(&it.rate)) * 100.0);
        let commits = |more: f64, field: &dyn Fn(&Commits) -> f64| {
            let value = || format!("{:.1}", more + each(&|it| field(&it.commits)));
            setting.interval.map_or_else(|| "–".to_owned(), |_| value())
        };
        let interval = f64::from(setting.interval.unwrap_or(0));
        let noisy: usize = trickles.iter().map(|it| it.rate.disturbed).sum();
        let slices: usize = trickles.iter().map(|it| it.rate.slices).sum();
        table.row(vec![
            setting.label(),
            thousands(each(&|it| it.rate.achieved)),
            at(0.5),
            at(0.99),
            commits(interval, &|commits| commits.quantile(0.99)),
            at(1.0),
            commits(0.0, &Commits::mean),
            commits(0.0, &|commits| commits.quantile(0.99)),
            percent(|rate| rate.relay_cores),
            percent(|rate| rate.broker_cores),
            format!("{noisy} of {slices}"),
        ]);
    }
    page.table(&table);
}
