//! `kill -9` during a drain: time to recovery, and number of repeated records.

use crate::contender::{Contender, Running};
use crate::debezium;
use crate::drain::job;
use crate::process::{self, Watch};
use crate::servers::{Servers, wait_for};
use crate::topic::{Content, Topic};
use crate::wal::Backlog;
use std::time::{Duration, Instant};

/// The drain is complete when no record has arrived for so long.
const SILENCE: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct Crash {
    /// Seconds from the start of the new process to its first record, to the first record that is new, and to the last.
    pub(crate) first: f64,
    pub(crate) first_new: f64,
    pub(crate) done: f64,
    pub(crate) twice: f64,
}

pub(crate) fn run(servers: &Servers, backlog: &Backlog, contender: &Contender) -> Crash {
    let job = job(servers, backlog, contender);
    let rows = backlog.workload.rows;
    backlog.slot(&job.slot);
    debezium::forget(&job);
    let topic = Topic::make(servers, &job.topic, backlog.workload.partitions);
    let watch = Watch::start();
    let running = Running::start(contender, &job, &watch);
    wait_for("the middle", Duration::from_millis(10), || (topic.count() >= rows / 2).then_some(()));
    running.kill();
    let killed = process::now();
    let mut running = Running::start(contender, &job, &watch);
    let (mut count, mut since) = (0, Instant::now());
    wait_for("the last event", Duration::from_millis(200), || {
        assert!(!running.ended());
        let now = topic.count();
        if now != count {
            (count, since) = (now, Instant::now());
        }
        (count >= rows && since.elapsed() >= SILENCE).then_some(())
    });
    let started = running.started;
    running.end();
    drop(watch);
    let content = topic.read();
    topic.remove();
    backlog.database.drop_slot(&job.slot);
    let twice = content.check(rows) as f64;
    let (first, first_new) = after(&content, rows, killed);
    Crash {
        first: first - started,
        first_new: first_new - started,
        done: content.last() - started,
        twice,
    }
}

/// When the first record after a moment, and the first one that had not been there before, were appended.
fn after(content: &Content, rows: usize, moment: f64) -> (f64, f64) {
    let mut known = vec![false; rows + 1];
    let (mut first, mut first_new) = (f64::INFINITY, f64::INFINITY);
    for seen in &content.seen {
        let is_new = !std::mem::replace(&mut known[seen.number as usize], true);
        if seen.appended > moment {
            first = first.min(seen.appended);
            first_new = if is_new { first_new.min(seen.appended) } else { first_new };
        }
    }
    (first, first_new)
}
