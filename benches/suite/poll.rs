//! `mode = "poll"`, end to end: a backlog to Kafka, and the effect of the poller on writers.

use crate::args::Args;
use crate::contender::free_port;
use crate::page::{Page, Table};
use crate::phases::{middle, thousands};
use crate::servers::{Database, Servers, wait_for};
use crate::topic::Topic;
use crate::wal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DATABASE: &str = "bench_poll_kafka";
const TOPIC: &str = "bench-poll";
const AGGREGATES: usize = 1_000;
/// Bytes of a payload.
const PAYLOAD: usize = 300;
/// Rows of a transaction of the backlog.
const TRANSACTION_ROWS: usize = 1_000;
/// Sessions that write while latencies are taken.
const WRITERS: usize = 2;
/// For how long, with the poller and without.
const WRITING: Duration = Duration::from_secs(20);
const WRITING_QUICK: Duration = Duration::from_secs(5);

const NOTE: &str = "Layout `postrider`, rows deleted once they are published; events/s are from the first to the last \
    record by the broker's clock, and what the topic holds is read back: complete, and in order of each aggregate.";

const WRITERS_NOTE: &str = "Two sessions, one inserted row a transaction, as fast as they can; with the poller every \
    row is published and deleted meanwhile.";

/// Postrider in mode poll, which is killed if the bench panics.
struct Poller(Child);

impl Poller {
    fn start(servers: &Servers) -> Self {
        let file = configure(servers);
        let log = fs::File::create(servers.scratch.join("poll.log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.arg("-c").arg(file).args(["--log", "warn", "run"]).stdin(Stdio::null());
        command.stderr(log.try_clone().expect("a log")).stdout(log);
        Self(command.spawn().expect("postrider"))
    }

    fn end(mut self) {
        let sent = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(sent.expect("kill").success());
        self.0.wait().expect("an end");
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Both tables of the page.
pub(crate) fn poll(args: &Args, servers: &Servers, page: &mut Page) {
    let head = ["", "events/s, median", "best", "worst"];
    let mut table =
        Table::new(&format!("Polling: {} events", thousands(args.rows as f64)), NOTE, &head);
    let mut rates: Vec<f64> = (0..args.rounds).map(|_| drain(servers, args.rows)).collect();
    rates.sort_by(f64::total_cmp);
    let figures = [middle(rates.clone()), rates[rates.len() - 1], rates[0]].map(thousands);
    table.row([vec!["Postrider to Kafka".to_owned()], figures.to_vec()].concat());
    page.table(&table);

    let head = ["", "commits/s", "p50 ms", "p99 ms", "max ms"];
    let mut table = Table::new("Writers beside polling", WRITERS_NOTE, &head);
    let lasts = if args.quick { WRITING_QUICK } else { WRITING };
    for (name, polls) in [("without the poller", false), ("with the poller", true)] {
        table.row([vec![name.to_owned()], writers(servers, lasts, polls)].concat());
    }
    page.table(&table);
    wal::remove(servers, DATABASE);
}

/// A database with an outbox that is set up for polling, and a topic.
fn prepare(servers: &Servers) -> (Database, Topic) {
    wal::remove(servers, DATABASE);
    Database::open(servers, "postgres").run(&format!("create database {DATABASE}"));
    let mut setup = Command::new(env!("CARGO_BIN_EXE_postrider"));
    setup.arg("-c").arg(configure(servers)).args(["--log", "warn", "setup", "--create-table"]);
    assert!(setup.stdout(Stdio::null()).status().expect("postrider setup").success());
    (Database::open(servers, DATABASE), Topic::make(servers, TOPIC, 8))
}

fn configure(servers: &Servers) -> PathBuf {
    let Servers { socket, port, brokers, scratch, .. } = servers;
    let listen = free_port();
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:{listen}\"\n[pipelines.bench_poll]\nmode = \"poll\"\n\
         [pipelines.bench_poll.source]\nurl = \"host={socket} port={port} user=postgres dbname={DATABASE}\"\n\
         [pipelines.bench_poll.outbox]\ntable = \"public.outbox\"\n\
         [pipelines.bench_poll.route]\ntopic = \"{TOPIC}\"\n\
         [pipelines.bench_poll.sink]\nbrokers = \"{brokers}\"\n"
    );
    let file: &Path = &scratch.join("poll.toml");
    fs::write(file, text).expect("a configuration");
    file.to_owned()
}

fn insert(number: &str) -> String {
    let value = wal::payload(number, PAYLOAD, "json");
    format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', ({number} % {AGGREGATES})::text, 'OrderChanged', {value}"
    )
}

/// Publishes a backlog. Returns events per second.
fn drain(servers: &Servers, rows: usize) -> f64 {
    let (database, topic) = prepare(servers);
    database.run("set synchronous_commit = off");
    database.run(&format!(
        "do $$ declare t bigint := 1; begin while t <= {rows} loop \
         {} from generate_series(t, least({rows}, t + {TRANSACTION_ROWS} - 1)) i; \
         commit; t := t + {TRANSACTION_ROWS}; end loop; end $$",
        insert("i")
    ));
    database.run("analyze outbox; checkpoint");
    let poller = Poller::start(servers);
    wait_for("all records", Duration::from_millis(200), || (topic.count() >= rows).then_some(()));
    let content = topic.read();
    poller.end();
    assert_eq!(content.check(rows), 0, "none comes twice");
    assert_eq!(database.text("select count(*) from outbox"), "0", "published rows go");
    topic.remove();
    rows as f64 / (content.last() - content.first()).max(1e-3)
}

/// Commits a second, and latencies of a commit: median, 99th percentile, the longest. Unit: milliseconds.
fn writers(servers: &Servers, lasts: Duration, polls: bool) -> Vec<String> {
    let (database, topic) = prepare(servers);
    let poller = polls.then(|| Poller::start(servers));
    if poller.is_some() {
        // Wait until Postrider polls.
        database.run(&insert("0"));
        wait_for("the first record", Duration::from_millis(50), || {
            (topic.count() > 0).then_some(())
        });
    }
    let stop = AtomicBool::new(false);
    let mut latencies: Vec<f64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(|| write(servers, &stop))).collect();
        std::thread::sleep(lasts);
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect()
    });
    if let Some(poller) = poller {
        let rows = latencies.len() + 1;
        wait_for("all records", Duration::from_millis(200), || {
            (topic.count() >= rows).then_some(())
        });
        poller.end();
    }
    topic.remove();
    latencies.sort_by(f64::total_cmp);
    let at = |share: usize| format!("{:.2}", latencies[(latencies.len() - 1) * share / 100] * 1e3);
    let rate = latencies.len() as f64 / lasts.as_secs_f64();
    vec![thousands(rate), at(50), at(99), at(100)]
}

fn write(servers: &Servers, stop: &AtomicBool) -> Vec<f64> {
    let database = Database::open(servers, DATABASE);
    let statement = database.prepare(&insert("$1::bigint"));
    let mut latencies = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        database.execute(&statement, i64::try_from(latencies.len()).expect("a number"));
        latencies.push(start.elapsed().as_secs_f64());
    }
    latencies
}
