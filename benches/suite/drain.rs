//! The speed and cost of draining a backlog: one run of one contender over a copy of the slot.

use crate::contender::{Contender, Job, Kind, Running};
use crate::debezium;
use crate::process::{self, Samples, Watch, Who};
use crate::servers::{DEADLINE, Servers, wait_for};
use crate::topic::{Content, Topic};
use crate::wal::Backlog;
use std::time::Duration;

/// CPU seconds of each process.
#[derive(Clone, Copy)]
pub(crate) struct Cpu {
    pub(crate) relay: f64,
    pub(crate) walsender: f64,
    pub(crate) broker: f64,
}

#[derive(Clone)]
pub(crate) struct Run {
    /// For records in Kafka, from the first to the last by the broker's clock; else from the start of the stream.
    pub(crate) seconds: f64,
    /// From the start of the process to that moment.
    pub(crate) start: f64,
    pub(crate) cpu: Cpu,
    pub(crate) peak_mib: f64,
    pub(crate) samples: Samples,
    pub(crate) disturbed: Option<String>,
}

impl Run {
    /// The result as if the run had taken so much longer.
    fn times(self, factor: f64) -> Self {
        let Cpu { relay, walsender, broker } = self.cpu;
        let cpu =
            Cpu { relay: relay * factor, walsender: walsender * factor, broker: broker * factor };
        Self { seconds: self.seconds * factor, cpu, ..self }
    }
}

/// Repeats a disturbed run, up to `tries` runs in total. The last run is used, and notes that it was disturbed.
pub(crate) fn undisturbed(tries: usize, mut run: impl FnMut() -> Run) -> Run {
    let mut last = run();
    for _ in 1..tries {
        let Some(why) = &last.disturbed else { break };
        println!("    repeated: {why}");
        last = run();
    }
    last
}

pub(crate) fn job<'a>(
    servers: &'a Servers,
    backlog: &'a Backlog,
    contender: &Contender,
) -> Job<'a> {
    let name = format!("{}_{}", backlog.name, contender.short());
    Job {
        servers,
        database: &backlog.name,
        slot: name.clone(),
        topic: name,
        end: backlog.end(),
        road: backlog.workload.road,
        messages: backlog.workload.messages,
        sink: String::new(),
        broker_pid: servers.broker_pid,
        // Space for more than the events that are parked already.
        more: if backlog.workload.parked > 0 {
            "[pipelines.SLOT.parking]\nrows_max = 1000000"
        } else {
            ""
        },
    }
}

pub(crate) fn drain(servers: &Servers, backlog: &Backlog, contender: &Contender) -> Run {
    let job = job(servers, backlog, contender);
    backlog.slot(&job.slot);
    debezium::forget(&job);
    let rows = backlog.workload.rows;
    let run = if contender.writes_to_kafka() {
        to_kafka(&job, backlog, contender, rows)
    } else {
        to_nowhere(&job, backlog, contender, rows)
    };
    backlog.database.drop_slot(&job.slot);
    run
}

fn to_nowhere(job: &Job<'_>, backlog: &Backlog, contender: &Contender, rows: usize) -> Run {
    let watch = Watch::start();
    let mut running = Running::start(contender, job, &watch);
    let mut from = running.streams(job, &backlog.database, &watch);
    let mut before = 0;
    if backlog.workload.steady {
        before = wait_for("the first event", Duration::from_millis(2), || {
            Some(running.published()).filter(|published| *published > 0)
        });
        from = process::now();
        assert!(before < rows, "too few rows to see them go by");
    }
    if contender.kind == Kind::Discard {
        wait_for_published(&mut running, rows, from);
    } else {
        wait_for("the last event", Duration::from_millis(10), || running.ended().then_some(()));
    }
    let until = process::now();
    if contender.kind == Kind::Discard {
        assert_eq!(running.published(), rows, "events published");
    }
    let (samples, started) = (watch.end(), running.started);
    running.end();
    let run = measured(samples, started, from, until);
    run.times(rows as f64 / (rows - before) as f64)
}

/// Waits for the last event with as few queries as possible: a query of `/status` costs the relay time, which the other
/// contenders do not spend.
pub(crate) fn wait_for_published(running: &mut Running, rows: usize, from: f64) {
    let (soonest, latest) = (Duration::from_millis(2), Duration::from_millis(200));
    let mut pause = Duration::from_millis(50);
    loop {
        std::thread::sleep(pause);
        assert!(!running.ended());
        let (published, elapsed) = (running.published(), process::now() - from);
        if published >= rows {
            return;
        }
        assert!(elapsed < DEADLINE.as_secs_f64(), "waited too long for the last event");
        let left = elapsed * (rows - published) as f64 / published.max(1) as f64;
        pause = Duration::from_secs_f64((left / 3.0).min(1.0)).clamp(soonest, latest);
    }
}

fn to_kafka(job: &Job<'_>, backlog: &Backlog, contender: &Contender, rows: usize) -> Run {
    let topic = Topic::make(job.servers, &job.topic, backlog.workload.partitions);
    let watch = Watch::start();
    let mut running = Running::start(contender, job, &watch);
    running.streams(job, &backlog.database, &watch);
    wait_for("the last event", Duration::from_millis(100), || {
        assert!(!running.ended());
        (topic.count() >= rows).then_some(())
    });
    let samples = watch.end();
    let started = running.started;
    running.end();
    let content: Content = topic.read();
    topic.remove();
    let again = content.check(rows);
    assert_eq!(again, 0, "events came twice");
    let (from, until) = (content.first(), content.last());
    measured(samples, started, from, until)
}

pub(crate) fn measured(samples: Samples, started: f64, from: f64, until: f64) -> Run {
    let cpu = |who| samples.cpu(who, from, until);
    Run {
        seconds: until - from,
        start: from - started,
        cpu: Cpu {
            relay: cpu(Who::Relay),
            walsender: cpu(Who::Walsender),
            broker: cpu(Who::Broker),
        },
        peak_mib: samples.peak_mib(),
        disturbed: samples.disturbed(from, until, process::STOLEN_MAX),
        samples,
    }
}
