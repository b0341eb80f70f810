//! The cost of polling without a broker: rows claimed and settled per second, by layout; and its effect on a writer.
//!
//! Run `scripts/servers up`, then `cargo bench --bench poll [-- ROWS LIMIT]`. A backlog of ROWS is drained in each
//! layout, LIMIT rows per claim, all of them published. Then one writer commits single rows for [`WRITER_SECONDS`],
//! without a poller and with one that claims every row. A latency is that of one INSERT, which commits.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::panic,
    reason = "a bench prints, reads its environment, and stops at the first thing that is not as it should be"
)]

use postrider::outbox::{Layout, OutboxSpec};
use postrider::pipeline::poll_spec;
use postrider::postgres::Conninfo;
use postrider::postgres::poll::{Opened, PollSpec, Poller, RowOutcome};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

const ROWS: usize = 200_000;
const LIMIT: usize = 2_000;
const TRANSACTION_ROWS: usize = 1_000;
/// Seconds of writing, for each of the two measurements.
const WRITER_SECONDS: u64 = 10;
/// How long the poller waits after an empty claim.
const IDLE: Duration = Duration::from_millis(2);

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let rows = arguments.first().copied().unwrap_or(ROWS);
    let limit = arguments.get(1).copied().unwrap_or(LIMIT);
    let url = server();
    block_on(async {
        println!("{rows} rows per layout, {limit} rows per claim, unix socket or loopback\n");
        println!("{:<12}{:>12}{:>12}", "layout", "rows/s", "µs/row");
        for layout in Layout::ALL {
            drain(&url, *layout, rows, limit).await;
        }
    });
    println!(
        "\n{:<16}{:>10}{:>10}{:>10}{:>10}",
        "one writer", "commits/s", "p50 ms", "p99 ms", "max ms"
    );
    writer(&url, "alone", None);
    writer(&url, "with the poller", Some(limit));
    block_on(async {
        let (admin, _task) = connect(&url).await;
        batch(&admin, "drop database if exists bench_poll with (force)").await;
    });
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// The address of PostgreSQL 15, from the file of `scripts/servers`.
fn server() -> String {
    let file = std::env::var_os("POSTRIDER_SERVERS").map_or_else(
        || concat!(env!("CARGO_MANIFEST_DIR"), "/target/servers/env").into(),
        std::path::PathBuf::from,
    );
    let text = std::fs::read_to_string(&file).expect("run scripts/servers up first");
    let line = text.lines().find_map(|line| line.strip_prefix("PG15_URL="));
    line.expect("a PG15_URL").trim_matches('\'').to_owned()
}

/// A connection, and the task that serves it.
async fn connect(url: &str) -> (Client, JoinSet<()>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    let mut task = JoinSet::new();
    // If the connection ends, the next statement fails.
    task.spawn(async move { drop(connection.await) });
    (client, task)
}

async fn batch(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Creates a database with the layout's table, and returns its address and how it is polled.
async fn prepare(url: &str, layout: Layout) -> (String, PollSpec) {
    let (admin, _task) = connect(url).await;
    batch(&admin, "drop database if exists bench_poll with (force)").await;
    batch(&admin, "create database bench_poll").await;
    let (server, _) = url.rsplit_once('/').expect("a database in the address");
    let url = format!("{server}/bench_poll");
    let (client, _task) = connect(&url).await;
    batch(&client, layout.create_sql()).await;
    let spec = poll_spec("bench", &OutboxSpec::for_layout(layout), false).expect("a table");
    (url, spec)
}

/// Rows of about 300 bytes of a thousand aggregates.
fn fill(layout: Layout, rows: usize) -> String {
    let table = layout.table();
    let (columns, values) = match layout {
        Layout::Debezium => ("aggregatetype, aggregateid, type", "'order', n % 1000, 'x'"),
        Layout::Commerce => {
            ("tenant_id, aggregate_type, aggregate_id, event_type", "1, 'order', n % 1000, 'x'")
        }
        Layout::Gcx => (
            "topic, aggregate_type, aggregate_id, event_type",
            "'orders', 'order', md5((n % 1000)::text)::uuid, 'x'",
        ),
        Layout::Adr30 => (
            "aggregate_type, aggregate_id, event_type",
            "'order', md5((n % 1000)::text)::uuid, 'x'",
        ),
        Layout::Pgtrickle => (
            "aggregate_type, aggregate_id, event_type, inserted_count, deleted_count",
            "'order', n % 1000, 'INSERT', 1, 0",
        ),
        Layout::Postrider | Layout::Sqlgarden => {
            ("aggregate_type, aggregate_id, event_type", "'order', n % 1000, 'x'")
        }
    };
    format!(
        "insert into {table} ({columns}, payload) \
         select {values}, json_build_object('note', repeat('x', 200)) from generate_series(1, {rows}) n"
    )
}

async fn open(url: &str, spec: &PollSpec) -> Box<Poller> {
    let conninfo = Conninfo::parse(url, &|_| None).expect("a connection string");
    match Poller::open(&conninfo, "postrider bench", spec).await.expect("a poller") {
        Opened::Polling(poller) => poller,
        Opened::StandBy { pid } => panic!("backend {pid:?} polls"),
    }
}

/// Claims once and settles. Returns the number of rows.
async fn turn(poller: &mut Poller, limit: usize) -> usize {
    let claim = poller.claim(limit, None).await.expect("a claim");
    let rows = claim.rows.len();
    poller.settle(claim, &vec![RowOutcome::Published; rows]).await.expect("marks");
    rows
}

async fn drain(url: &str, layout: Layout, rows: usize, limit: usize) {
    let (url, spec) = prepare(url, layout).await;
    let (client, _task) = connect(&url).await;
    for _ in 0..rows.div_ceil(TRANSACTION_ROWS) {
        batch(&client, &fill(layout, TRANSACTION_ROWS)).await;
    }
    let mut poller = open(&url, &spec).await;
    let start = Instant::now();
    let mut done = 0;
    while done < rows {
        let taken = turn(&mut poller, limit).await;
        assert!(taken > 0, "{done} of {rows} rows came");
        done += taken;
    }
    let seconds = start.elapsed().as_secs_f64();
    let count = f64::from(u32::try_from(rows).expect("a count"));
    println!("{:<12}{:>12.0}{:>12.2}", layout.name(), count / seconds, seconds / count * 1e6);
}

/// Writes for a while, with a poller on a thread of its own or without, and prints the latencies.
fn writer(url: &str, name: &str, poll: Option<usize>) {
    let (url, spec) = block_on(prepare(url, Layout::Postrider));
    let stop = AtomicBool::new(false);
    let mut latencies = std::thread::scope(|scope| {
        if let Some(limit) = poll {
            let (url, spec, stop) = (&url, &spec, &stop);
            scope.spawn(move || {
                block_on(async {
                    let mut poller = open(url, spec).await;
                    while !stop.load(Ordering::Relaxed) {
                        if turn(&mut poller, limit).await == 0 {
                            tokio::time::sleep(IDLE).await;
                        }
                    }
                });
            });
        }
        let latencies = block_on(write(&url));
        stop.store(true, Ordering::Relaxed);
        latencies
    });
    latencies.sort();
    let at = |share: usize| latencies[(latencies.len() - 1) * share / 100].as_secs_f64() * 1e3;
    let rate = latencies.len() / usize::try_from(WRITER_SECONDS).expect("a count");
    println!("{name:<16}{rate:>10}{:>10.2}{:>10.2}{:>10.2}", at(50), at(99), at(100));
}

async fn write(url: &str) -> Vec<Duration> {
    let (client, _task) = connect(url).await;
    let insert = fill(Layout::Postrider, 1);
    let insert = client.prepare(&insert).await.expect("a statement");
    let end = Instant::now() + Duration::from_secs(WRITER_SECONDS);
    let mut latencies = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        client.execute(&insert, &[]).await.expect("a row");
        latencies.push(start.elapsed());
    }
    latencies
}
