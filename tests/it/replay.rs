//! `postrider replay` with the real binary on real servers.

mod alone;
mod interrupted;
mod lost;
mod refused;
mod selectors;

use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::private::{Signal, exit_of, signal};
use crate::relay::postrider;
use crate::server::Client;
use crate::topic::{ReadRecord, Topic, Topics};
use serde_json::Value;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// A second topic, for what is published again.
async fn another_topic(pipeline: &Pipeline) -> Topic {
    Topics::new(&pipeline.topic.brokers, "again").create("again", 8).await
}

/// `postrider replay … --json`: its exit code and its last word.
fn replay(pipeline: &Pipeline, args: &[&str]) -> (Option<i32>, Value) {
    let output = postrider(&pipeline.config, &[&["replay"], args, &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    let value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("replay {args:?}: {error}\n{text}"));
    (output.status.code(), value)
}

/// The ids of records, in order of partition and offset.
fn ids(records: &[ReadRecord]) -> Vec<&str> {
    records.iter().map(|record| record.header("id").expect("an id")).collect()
}

/// The same as numbers, sorted.
fn numbers(records: &[ReadRecord]) -> Vec<u64> {
    let mut numbers: Vec<u64> =
        ids(records).iter().map(|id| id.parse().expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

/// A record's place in the log, to compare.
fn position(record: &ReadRecord) -> (u64, u64) {
    let (_, lsn, ordinal) = record.place().expect("a position");
    let lsn: postrider::offset::Offset = lsn.parse().expect("an LSN");
    (lsn.get(), ordinal)
}

/// A record's position as it is typed and printed: `0/1A2B3C8:5`.
fn typed(record: &ReadRecord) -> String {
    let (_, lsn, ordinal) = record.place().expect("a position");
    format!("{lsn}:{ordinal}")
}

/// Fails unless positions rise in every partition: commit order, nothing twice.
fn assert_in_order(records: &[ReadRecord]) {
    for pair in records.windows(2).filter(|pair| pair[0].partition == pair[1].partition) {
        assert!(position(&pair[0]) < position(&pair[1]), "{:?} after {:?}", pair[1], pair[0]);
    }
}

/// Everything of a record but where it lies and header `replay`.
type Same = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>, Option<i64>);

fn same(record: &ReadRecord) -> Same {
    let headers = record.headers.iter().filter(|(name, _)| name != "replay").cloned().collect();
    (record.key.clone(), record.value.clone(), headers, record.timestamp)
}

/// `postrider replay` that goes on while the test looks. Killed when dropped.
struct Going {
    child: Child,
    dir: TempDir,
}

impl Going {
    fn start(pipeline: &Pipeline, args: &[&str]) -> Self {
        Self::start_with(&pipeline.config, args)
    }

    fn start_with(config: &str, args: &[&str]) -> Self {
        let dir = TempDir::new().expect("a directory");
        let file = dir.path().join("postrider.toml");
        std::fs::write(&file, config).expect("a configuration");
        let output = |name: &str| File::create(dir.path().join(name)).expect("an output file");
        let child = Command::new(env!("CARGO_BIN_EXE_postrider"))
            .arg("-c")
            .arg(&file)
            .arg("replay")
            .args(args)
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .expect("postrider");
        Self { child, dir }
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn signal(&self, what: Signal) {
        signal(self.child.id(), what);
    }

    /// Its exit code and what it wrote on standard output.
    async fn end(mut self, deadline: Duration) -> (Option<i32>, String) {
        let status = exit_of(&mut self.child, deadline).await;
        (status.code(), format!("{}{}", self.text("stdout"), self.text("stderr")))
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::Kill);
            drop(self.child.wait());
        }
    }
}

/// Inserts events of ten aggregates in transactions of their own, `each` in one.
async fn insert_many(sql: &Client, transactions: usize, each: usize) {
    let statement = format!(
        "do $$ begin for n in 1..{transactions} loop \
         insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 10)::text, 'Written', to_json(n * 100000 + i) from generate_series(1, {each}) i; \
         commit; end loop; end $$"
    );
    sql.batch(&statement).await;
}
