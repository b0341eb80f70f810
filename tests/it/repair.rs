//! `postrider repair` and `source.on_slot_lost`: the slot is gone, and nothing is.

mod bad;
pub(crate) mod interrupted;
mod pair;
mod parked;
mod returning;
mod reused;

use crate::await_that::{SOON, await_that};
use crate::ledger::Findings;
use crate::load::Load;
pub(crate) use crate::pipeline::drop_slot;
use crate::pipeline::{Pipeline, show};
use crate::private::PrivatePostgres;
use crate::relay::postrider;
use crate::server::{Client, Version, brokers};
use serde_json::Value;
use std::process::Output;

/// Events that are committed and not published when the slot is taken away.
const UNPUBLISHED: usize = 20_000;

/// `postrider repair --json`, and what it wrote.
fn repair(config: &str, args: &[&str]) -> (Output, Value) {
    let args: Vec<&str> = ["repair", "--json"].iter().chain(args).copied().collect();
    let output = postrider(config, &args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, serde_json::from_str(&text).unwrap_or_default())
}

fn repaired(config: &str) -> Value {
    let (output, value) = repair(config, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{value}\n{errors}");
    assert_eq!(value["state"], "done", "{value}\n{errors}");
    value
}

fn number(value: &Value, name: &str) -> usize {
    let number = value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}"));
    usize::try_from(number).expect("a small number")
}

async fn committed(load: &Load, more: usize) {
    let wanted = load.committed() + more;
    await_that(&format!("{wanted} committed"), SOON, || async {
        let now = load.committed();
        if now >= wanted { Ok(()) } else { Err(now) }
    })
    .await;
}

/// Writes WAL until the server lets the slot go.
pub(crate) async fn outgrow(pipeline: &Pipeline) {
    let sql = Client::connect(&pipeline.url).await.expect("a session");
    let state = format!(
        "select coalesce(wal_status, 'none') from pg_replication_slots where slot_name = '{}'",
        pipeline.slot()
    );
    await_that("the slot to be lost", SOON, || async {
        let filler = "select pg_logical_emit_message(false, 'filler', repeat('x', 4000000)) from generate_series(1, 5)";
        sql.batch(filler).await;
        sql.batch("checkpoint").await;
        let now = sql.text(&state).await.unwrap_or_default();
        if now == "lost" { Ok(()) } else { Err(now) }
    })
    .await;
}

/// The stream goes on, everything arrives, and the ledger is balanced.
async fn streams_on(pipeline: &Pipeline, load: Load, uncertain: usize) -> Findings {
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    committed(&load, 2_000).await;
    let ledger = load.stop().await;
    ledger.arrived(&pipeline.topic).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let findings = ledger.check(&pipeline.topic.read_all().await);
    findings.assert_balanced(uncertain);
    findings
}

fn told(what: &str, repair: &Value, findings: &Findings) {
    show(&format!(
        "{what}: {} committed, {} published by the repair, {} lost, {} swapped, {} duplicates \
         (the repair said: at most {})",
        findings.committed,
        number(repair, "published"),
        findings.lost.len(),
        findings.swapped.len(),
        findings.duplicates,
        number(repair, "uncertain"),
    ));
}

/// The first: the WAL limit takes the slot while 20,000 rows are unpublished and writers go on.
#[tokio::test]
async fn slot_that_outgrew_the_wal_limit_is_repaired_under_load() {
    for (version, commit_times) in [(Version::Pg15, "off"), (Version::Pg17, "on")] {
        let settings = format!(
            "max_slot_wal_keep_size = 32MB\nmin_wal_size = 32MB\nmax_wal_size = 64MB\n\
             track_commit_timestamp = {commit_times}"
        );
        let server = PrivatePostgres::start(version, &settings).await;
        let pipeline = Pipeline::on(&server.url(), &brokers(), "outgrown").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let load = Load::start(&pipeline.plan(), 4);
        committed(&load, 4_000).await;
        drop(relay.kill().await);
        committed(&load, UNPUBLISHED).await;
        outgrow(&pipeline).await;
        let halted = crate::relay::Relay::spawn_with(&pipeline.config, &["--fail-fast"], &[])
            .ended(SOON)
            .await;
        assert_eq!(halted.code, Some(3), "{}", halted.stderr);

        let value = repaired(&pipeline.config);
        assert!(number(&value, "published") >= UNPUBLISHED, "{value}");
        let findings = streams_on(&pipeline, load, number(&value, "uncertain")).await;
        let what = format!(
            "PostgreSQL {}, slot lost to max_slot_wal_keep_size, track_commit_timestamp {commit_times}",
            version.major()
        );
        told(&what, &value, &findings);
        show(value["method"].as_str().unwrap_or_default());
    }
}

/// The second: the slot is dropped by hand.
#[tokio::test]
async fn slot_that_was_dropped_is_repaired_under_load() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "dropped").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let load = Load::start(&pipeline.plan(), 4);
        committed(&load, 4_000).await;
        drop(relay.kill().await);
        committed(&load, UNPUBLISHED).await;
        drop_slot(&pipeline).await;
        let value = repaired(&pipeline.config);
        assert!(number(&value, "published") >= UNPUBLISHED, "{value}");
        let findings = streams_on(&pipeline, load, number(&value, "uncertain")).await;
        told(&format!("PostgreSQL {}, slot dropped", version.major()), &value, &findings);
    }
}

/// A row of a savepoint has a number of its own, which no snapshot lists as in progress: it must not be taken for one
/// of a transaction that had ended.
#[tokio::test]
async fn rows_of_a_savepoint_that_was_open_are_not_taken_for_published() {
    for commit_times in ["off", "on", "on, but not before"] {
        let later = commit_times.contains("not before");
        let settings =
            format!("track_commit_timestamp = {}", if later { "off" } else { commit_times });
        let mut server = PrivatePostgres::start(Version::Pg17, &settings).await;
        let mut pipeline = Pipeline::on(&server.url(), &brokers(), "savepoint").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let open = Client::connect(&pipeline.url).await.expect("a session");
        let row = |payload: &str| {
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', 'long', 'T', '\"{payload}\"')"
            )
        };
        let (one, two) = (row("of the transaction"), row("of its savepoint"));
        open.batch(&format!("begin; {one}; savepoint s; {two}; release s")).await;
        // The ledger goes on meanwhile, past both.
        let xid =
            "select pg_snapshot_xmax(resolved_snapshot)::text::int8 - 1 from postrider.cursor";
        let ours = "select pg_snapshot_xmin(pg_current_snapshot())::text::int8 + 1";
        let ours: i64 = pipeline.sql.query(ours, &[]).await.expect("a number")[0].get(0);
        await_that("the ledger to go past the open transaction", SOON, || async {
            pipeline.insert(1).await;
            let rows = pipeline.sql.query(xid, &[]).await.map_err(|error| error.to_string())?;
            let at: Option<i64> = rows[0].get(0);
            if at.is_some_and(|at| at > ours) { Ok(()) } else { Err(format!("{at:?} of {ours}")) }
        })
        .await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        open.batch("commit").await;
        drop(open);
        if later {
            server.stop_fast(SOON).await;
            server.configure("track_commit_timestamp = on");
            server.restart().await;
            pipeline.sql = Client::connect(&pipeline.url).await.expect("a session");
            pipeline.insert(1).await;
        }
        drop_slot(&pipeline).await;
        let value = repaired(&pipeline.config);
        let records = pipeline.topic.read_all().await;
        let long: Vec<_> =
            records.iter().filter(|record| record.key_text() == Some("long")).collect();
        let values: Vec<_> = long.iter().filter_map(|record| record.value_text()).collect();
        assert_eq!(values, ["\"of the transaction\"", "\"of its savepoint\""], "{value}");
        show(&format!(
            "a transaction with a savepoint that was open when the ledger was written, track_commit_timestamp \
             {commit_times}: both its rows published, {} of others that can't be told",
            number(&value, "published") - 2
        ));
    }
}

/// `on_slot_lost = "repair"`: the running relay does it by itself, under load, twice.
#[tokio::test]
async fn running_relay_repairs_by_itself_where_it_is_told_to() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut pipeline = Pipeline::shared(version, "byitself").await;
        let source = format!("[pipelines.{}.source]\n", pipeline.name);
        pipeline.config =
            pipeline.config.replacen(&source, &format!("{source}on_slot_lost = \"repair\"\n"), 1);
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let load = Load::start(&pipeline.plan(), 2);
        for times in 1..=2 {
            committed(&load, 2_000).await;
            drop_slot(&pipeline).await;
            await_that("repaired, and streaming again", SOON, || async {
                let log = relay.stderr();
                let (repaired, streams) = (
                    log.matches("streaming starts from the new slot").count(),
                    log.matches("INFO streaming ").count(),
                );
                if repaired == times && streams > times {
                    Ok(())
                } else {
                    Err(format!("{repaired} {streams}"))
                }
            })
            .await;
        }
        committed(&load, 2_000).await;
        let ledger = load.stop().await;
        ledger.arrived(&pipeline.topic).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let findings = ledger.check(&pipeline.topic.read_all().await);
        let uncertain: usize = uncertain(&ended.stderr).iter().sum();
        findings.assert_balanced(uncertain);
        show(&format!(
            "PostgreSQL {}, on_slot_lost = repair, slot dropped twice under load: {} committed, {} lost, {} swapped, \
             {} duplicates (it said: at most {uncertain})",
            version.major(),
            findings.committed,
            findings.lost.len(),
            findings.swapped.len(),
            findings.duplicates
        ));
    }
}

/// What the log's `repaired` lines say of rows that may come twice.
fn uncertain(log: &str) -> Vec<usize> {
    let lines = log.lines().filter(|line| line.contains("streaming starts from the new slot"));
    let number = |line: &str| {
        let (_, rest) = line.split_once("uncertain=").expect("a count");
        rest.split_whitespace().next().expect("a count").parse().expect("a number")
    };
    lines.map(number).collect()
}
