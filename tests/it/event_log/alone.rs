//! What takes long or measures, and runs by hand: `cargo test --test it -- --ignored --nocapture event_log::alone`.

use super::crashes::{disturb, grown};
use super::*;
use crate::load::Load;
use crate::pipeline::show;
use crate::private::PrivatePostgres;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::types::{ToSql, Type};

/// Events of the long run.
const EVENTS: usize = 600_000;

/// 600,000 events while the writer is killed, deposed by a second relay, its sessions are ended, and the server of the
/// log crashes: each event once, positions in the order of the numbers, counts right.
#[tokio::test]
#[ignore = "takes minutes"]
async fn many_events_under_kills_take_overs_and_crashes_are_there_once() {
    let mut server = PrivatePostgres::start(Version::Pg17, "fsync = on\nmax_wal_size = 4GB").await;
    let source = Database::create(Version::Pg17, "log_many").await;
    let create = CREATE.replace("rows_per_child = 1000", "rows_per_child = 50000");
    let pipeline = LogPipeline::on(&source.socket_url(), &server.url(), "log_many", &create).await;
    let started = Instant::now();
    let plan = Plan { transaction_events: 50, rate: 1_000, ..pipeline.plan() };
    let load = Load::start(&plan, 4);
    let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (mut kills, mut take_overs, mut crashes) = (0, 0, 0);
    let mut relay = pipeline.run();
    grown(&pipeline, 1_000).await;
    while load.committed() < EVENTS {
        relay.kill().await;
        kills += 1;
        relay = pipeline.run();
        grown(&pipeline, 4_000).await;
        let second = pipeline.run();
        grown(&pipeline, 2_000).await;
        relay.kill().await;
        relay = second;
        take_overs += 1;
        grown(&pipeline, 4_000).await;
        let enders = disturb(
            &pipeline.log_url,
            "pg_terminate_backend",
            Arc::clone(&stop),
            Arc::clone(&ended),
        );
        let wanted = ended.load(Ordering::Relaxed) + 5;
        let enough = async {
            await_that("sessions to be ended", SOON, || async {
                let now = ended.load(Ordering::Relaxed);
                if now >= wanted { Ok(()) } else { Err(format!("{now} of {wanted}")) }
            })
            .await;
            stop.store(true, Ordering::Relaxed);
        };
        tokio::join!(enders, enough);
        stop.store(false, Ordering::Relaxed);
        server.stop_immediately().await;
        crashes += 1;
        server.restart().await;
        grown(&pipeline, 4_000).await;
    }
    let ledger = load.stop().await;
    await_that("the rest", Duration::from_mins(10), || async {
        match pipeline.count("orders").await {
            Ok(found) if found == ledger.committed() => Ok(()),
            other => Err(format!("{other:?} of {}", ledger.committed())),
        }
    })
    .await;
    pipeline.assert_exactly_once(&ledger).await;
    relay.terminate(SOON).await;
    let sessions = ended.load(Ordering::Relaxed);
    let (events, seconds) = (ledger.committed(), started.elapsed().as_secs());
    show(&format!(
        "{events} events in {seconds} s: {kills} kill -9, {take_overs} take-overs, {sessions} sessions ended, \
         {crashes} crashes of the server; each event once, position order = seq order, heads and counts right"
    ));
}

/// Events of one append, and of one multi-row INSERT.
const BATCH: u32 = 1_000;

/// Appends of each kind in a round.
const APPENDS: u32 = 60;

const ROUNDS: usize = 3;

/// The columns of a batch, as the sink sends them.
struct Columns {
    part: Vec<i16>,
    history: Vec<i64>,
    lsn: Vec<tokio_postgres::types::PgLsn>,
    ordinal: Vec<i64>,
    time: Vec<std::time::SystemTime>,
    id: Vec<String>,
    event_type: Vec<String>,
    kind: Vec<String>,
    aggregate: Vec<String>,
    payload: Vec<String>,
    headers: Vec<Option<String>>,
}

impl Columns {
    fn of(first: u32, by_value: bool) -> Self {
        let numbers: Vec<u32> = (first..first + BATCH).collect();
        let text = |of: &dyn Fn(u32) -> String| numbers.iter().map(|n| of(*n)).collect::<Vec<_>>();
        Self {
            part: numbers.iter().map(|n| i16::try_from(n % 16).unwrap()).collect(),
            history: vec![1; numbers.len()],
            lsn: numbers.iter().map(|n| u64::from(*n).into()).collect(),
            ordinal: vec![0; numbers.len()],
            time: vec![std::time::SystemTime::now(); numbers.len()],
            id: text(&|n| n.to_string()),
            event_type: text(&|_| "OrderPlaced".to_owned()),
            kind: text(&|_| "order".to_owned()),
            aggregate: text(&|n| (n % 5_000).to_string()),
            payload: if by_value { text(&payload) } else { Vec::new() },
            headers: Vec::new(),
        }
    }
}

/// 85 bytes, as in the design's figures.
fn payload(number: u32) -> String {
    format!(
        "{{\"order\": {number:>10}, \"customer\": \"c-{:>10}\", \"total\": \"{:>10}.00\", \"x\": \"abc\"}}",
        number % 997,
        number % 10_007
    )
}

/// The rate of appends by value and by reference beside that of a plain multi-row INSERT, and the WAL of an event.
#[tokio::test]
#[ignore = "measures"]
async fn rates() {
    // Of its own: the WAL of other tests would count.
    let server =
        PrivatePostgres::start(Version::Pg17, "autovacuum = off\nmax_wal_size = 4GB").await;
    let sql = server.connect().await;
    install_toolkit(&sql, "postgres").await;
    sql.batch(
        "select postrider.create_log('by_value', 16); \
         select postrider.create_log('by_reference', 16, 1000000, 'reference'); \
         select postrider.log_take_over('w'); select postrider.log_open('by_value', 'w'); \
         select postrider.log_open('by_reference', 'w'); \
         create table plain (id bigint generated always as identity primary key, aggregate_type text, \
           aggregate_id text, event_type text, payload json, headers json, created_at timestamptz default now())",
    )
    .await;
    let mut appended = 0_i64;
    let mut ends = [0_i64; 2];
    for round in 1..=ROUNDS {
        for (at, log) in ["by_value", "by_reference"].into_iter().enumerate() {
            let batches: Vec<Columns> =
                (0..APPENDS).map(|n| Columns::of(n * BATCH, log == "by_value")).collect();
            let (wal, started) = (wal_end(&sql).await, Instant::now());
            for columns in &batches {
                append(&sql, log, appended, ends[at], columns).await;
                appended += 1;
                ends[at] += i64::from(BATCH);
            }
            report(&sql, round, log, started.elapsed(), wal).await;
        }
        let statements: Vec<String> = (0..APPENDS).map(|n| multi_row(n * BATCH)).collect();
        let (wal, started) = (wal_end(&sql).await, Instant::now());
        for statement in &statements {
            sql.batch_execute(statement).await.unwrap();
        }
        report(&sql, round, "multi-row INSERT into an outbox", started.elapsed(), wal).await;
    }
}

async fn wal_end(sql: &Client) -> i64 {
    let end = "select (pg_current_wal_insert_lsn() - '0/0')::bigint::text";
    sql.text(end).await.unwrap().parse().unwrap()
}

async fn report(sql: &Client, round: usize, what: &str, took: Duration, wal: i64) {
    let events = BATCH * APPENDS;
    let bytes = (wal_end(sql).await - wal) / i64::from(events);
    let rate = f64::from(events) / took.as_secs_f64();
    show(&format!("round {round}, {what}: {rate:.0} events/s, {bytes} bytes of WAL an event"));
}

async fn append(sql: &Client, log: &str, appended: i64, end: i64, columns: &Columns) {
    let heads: Vec<i64> = (0..16).map(|part| end + i64::from(BATCH) - 15 + part).collect();
    let counts = vec![(end + i64::from(BATCH)) / 16; 16];
    let (logs, ends, sizes, partitions) =
        (vec![log], vec![end], vec![BATCH.cast_signed()], vec![16_i32]);
    let epoch = 1_i64;
    let params: [(&(dyn ToSql + Sync), Type); 21] = [
        (&"w", Type::TEXT),
        (&epoch, Type::INT8),
        (&appended, Type::INT8),
        (&"68F1A2B3 16/B374D848", Type::TEXT),
        (&logs, Type::TEXT_ARRAY),
        (&ends, Type::INT8_ARRAY),
        (&sizes, Type::INT4_ARRAY),
        (&partitions, Type::INT4_ARRAY),
        (&heads, Type::INT8_ARRAY),
        (&counts, Type::INT8_ARRAY),
        (&columns.part, Type::INT2_ARRAY),
        (&columns.history, Type::INT8_ARRAY),
        (&columns.lsn, Type::PG_LSN_ARRAY),
        (&columns.ordinal, Type::INT8_ARRAY),
        (&columns.time, Type::TIMESTAMPTZ_ARRAY),
        (&columns.id, Type::TEXT_ARRAY),
        (&columns.event_type, Type::TEXT_ARRAY),
        (&columns.kind, Type::TEXT_ARRAY),
        (&columns.aggregate, Type::TEXT_ARRAY),
        (&columns.payload, Type::TEXT_ARRAY),
        (&columns.headers, Type::TEXT_ARRAY),
    ];
    let call = "select postrider.log_append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, \
                $17, $18, $19, $20, $21)";
    sql.query_typed(call, &params).await.unwrap();
}

fn multi_row(first: u32) -> String {
    let row = |n: u32| format!("('order', '{}', 'OrderPlaced', '{}', null)", n % 5_000, payload(n));
    let rows: Vec<String> = (first..first + BATCH).map(row).collect();
    let columns = "(aggregate_type, aggregate_id, event_type, payload, headers)";
    format!("insert into plain {columns} values {}", rows.join(", "))
}
