//! How fast a backlog is drained from a slot, beside `pg_recvlogical` over the same WAL.
//!
//! `cargo bench --bench wal_drain -- 'host=/tmp/s port=5432 user=postgres' [rows] [path of pg_recvlogical]`
//! makes a database `wal_drain`, its slots and a backlog of 300-byte rows, 1,000 a transaction, and drains it three
//! times with either reader. The walsender is the limit; what differs is what the reader costs it. Run it on an idle machine.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measuring program: it stops with the reason, and prints"
)]

use postrider::lsn::Lsn;
use postrider::postgres::wal::{Frame, StartReplication, WalConnection};
use postrider::postgres::{Conninfo, connect_client};
use std::process::{Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 3;

const SET_UP: [&str; 3] = [
    "create table public.t (payload jsonb)",
    "create publication p for table public.t with (publish = 'insert')",
    "select pg_create_logical_replication_slot('ours', 'pgoutput')",
];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run());
}

async fn run() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let Some(server) = arguments.first() else {
        println!("no server given: nothing measured");
        return;
    };
    let rows: u64 = arguments.get(1).map_or(1_000_000, |rows| rows.parse().unwrap());
    let other = arguments.get(2).map_or("pg_recvlogical", String::as_str);
    let conninfo = |dbname: &str| {
        Conninfo::parse(&format!("{server} dbname={dbname}"), &|name| std::env::var(name).ok())
            .unwrap()
    };
    execute(&conninfo("postgres"), "create database wal_drain").await;
    let database = conninfo("wal_drain");
    for sql in SET_UP {
        execute(&database, sql).await;
    }
    // One a round: pg_recvlogical confirms what it has written.
    for round in 0..ROUNDS {
        let sql =
            format!("select pg_create_logical_replication_slot('theirs_{round}', 'pgoutput')");
        execute(&database, &sql).await;
    }
    let writer = format!(
        "do $$ begin for i in 1..{rows} / 1000 loop
           insert into public.t select jsonb_build_object('n', i, 'text', repeat('x', 270))
           from generate_series(1, 1000); commit; end loop; end $$"
    );
    execute(&database, &writer).await;
    for round in 0..ROUNDS {
        let (seconds, cpu, end) = ours(&database, rows).await;
        println!("postrider       {:>8.0} rows/s  {cpu:.2} µs CPU/row", rate(rows, seconds));
        let seconds = theirs(other, server, round, end);
        println!("pg_recvlogical  {:>8.0} rows/s", rate(rows, seconds));
    }
    execute(&database, "select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        .await;
    execute(&conninfo("postgres"), "drop database wal_drain with (force)").await;
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(rows: u64, seconds: f64) -> f64 {
    rows as f64 / seconds
}

async fn execute(conninfo: &Conninfo, sql: &str) {
    let (client, connection) = connect_client(conninfo, "wal_drain").await.unwrap();
    tokio::select! {
        ended = connection => ended.unwrap(),
        done = client.batch_execute(sql) => done.unwrap(),
    }
}

/// Seconds, CPU of this process in microseconds a row, and where the backlog ends. Nothing is confirmed.
async fn ours(conninfo: &Conninfo, rows: u64) -> (f64, f64, Lsn) {
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let wal = WalConnection::connect(conninfo, "wal_drain").await.unwrap();
    let mut wal = wal.start(&StartReplication::new("ours", "p")).await.unwrap();
    let (mut seen, mut end) = (0, Lsn::ZERO);
    while seen < rows || end == Lsn::ZERO {
        let batch = wal.next().await.unwrap();
        for frame in batch.frames() {
            if let Frame::XLogData { data, wal_end, .. } = frame {
                match data.first() {
                    Some(b'I') => seen += 1,
                    Some(b'C') if seen >= rows => end = wal_end,
                    _ => {}
                }
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let per_row = (cpu_seconds() - cpu) * 1e6 / rows as f64;
    (started.elapsed().as_secs_f64(), per_row, end)
}

/// Seconds of `pg_recvlogical` up to the same position.
fn theirs(program: &str, server: &str, round: usize, end: Lsn) -> f64 {
    let started = Instant::now();
    let status = Command::new(program)
        .arg(format!("--dbname={server} dbname=wal_drain"))
        .arg(format!("--slot=theirs_{round}"))
        .args(["--start", "--no-loop", "--file=-", "--fsync-interval=0"])
        .args(["-o", "proto_version=1", "-o", "publication_names=p"])
        .arg(format!("--endpos={end}"))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{program} failed");
    started.elapsed().as_secs_f64()
}

/// User and system time of this process (`/proc/self/stat`, fields 14 and 15, in hundredths of a second).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let ticks = after_name.split_whitespace().skip(11).take(2);
    ticks.map(|field| field.parse::<f64>().unwrap() / 100.0).sum()
}
