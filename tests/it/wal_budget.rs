//! `source.wal_retain_max`: the database is never down for the outbox's sake.
//!
//! The broker is frozen, so that nothing is acknowledged, and the database writes WAL that is no event's.

use crate::await_that::{SOON, await_or_dump};
use crate::halted::{Halted, halt_of, spawn};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::relay::Relay;
use crate::remedies::{every_row_arrives, follow};
use crate::server::{Client, Version};
use serde_json::Value;

const BUDGET: &str = "wal_retain_max = \"64MiB\"";

/// Bytes of WAL in one piece, and what a test writes before it looks again.
const PIECE_MIB: u32 = 8;

/// A pipeline whose broker and database are its own.
struct Scene {
    server: PrivatePostgres,
    broker: PrivateKafka,
    pipeline: Pipeline,
}

impl Scene {
    async fn new(version: Version, test: &str, mode: &str) -> Self {
        let server = PrivatePostgres::start(version, "max_wal_size = 64MB").await;
        let broker = PrivateKafka::start("").await;
        let mut pipeline = Pipeline::on(&server.url(), &broker.brokers(), test).await;
        pipeline.config = pipeline.with_line("source", BUDGET);
        let head = format!("[pipelines.{}]\n", pipeline.name);
        let mode = format!("{head}mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
        pipeline.config = pipeline.config.replacen(&head, &mode, 1);
        Self { server, broker, pipeline }
    }

    /// As another application of the same database would.
    async fn write_wal(&self, mib: u32) {
        let client = self.server.connect().await;
        for _ in 0..mib / PIECE_MIB {
            let piece = PIECE_MIB << 20;
            let sql = format!(
                "select pg_logical_emit_message(true, 'noise', \
                   (select string_agg(md5(i::text), '') from generate_series(1, {piece} / 32) i))"
            );
            client.text(&sql).await;
        }
    }

    async fn held_mib(&self) -> Option<u64> {
        let sql = format!(
            "select (pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) / 1048576)::int8::text \
             from pg_replication_slots where slot_name = '{}'",
            self.pipeline.slot()
        );
        self.server.connect().await.text(&sql).await.map(|mib| mib.parse().expect("a number"))
    }
}

fn figure(status: &Value, name: &str) -> Option<u64> {
    status["pipelines"][0][name].as_u64()
}

/// The line with this event.
async fn await_event(relay: &Relay, event: &str) -> Value {
    let look = || async {
        let log = relay.stderr();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["event"] == event).ok_or("no such event")
    };
    await_or_dump(event, SOON, look, || relay.stderr()).await
}

/// `mode = "wal"`: warned at half in log, metric and status; past it a halt that leaves the slot to a person. Started
/// again with the broker back, the backlog is drained though it is past the budget.
#[tokio::test]
async fn past_the_budget_the_stream_halts_and_drains_when_started_again() {
    tokio::join!(halts_and_drains(Version::Pg15), halts_and_drains(Version::Pg18));
}

async fn halts_and_drains(version: Version) {
    let scene = Scene::new(version, "budgethalt", "wal").await;
    let pipeline = &scene.pipeline;
    let relay = spawn(&format!("shutdown_grace = \"5s\"\n{}", pipeline.config));
    relay.await_state("streaming", SOON).await;
    scene.broker.freeze();
    pipeline.insert(1_000).await;
    scene.write_wal(40).await;
    let warned = await_event(&relay, "wal_budget_half").await;
    let status = relay
        .await_status("more than half held back", SOON, |status| {
            figure(status, "slot_retained_bytes") > Some(32 << 20)
                && status["pipelines"][0]["reason"].is_string()
        })
        .await;
    assert_eq!(figure(&status, "slot_retain_max_bytes"), Some(64 << 20), "{status}");
    let (_, metrics) = relay.get("/metrics").await.expect("the metrics");
    assert!(metrics.contains("postrider_slot_retain_max_bytes{"), "{metrics}");
    scene.write_wal(40).await;
    let halted = halt_of(relay).await;
    halted.assert_says(
        "PR017",
        &[&pipeline.slot(), "source.wal_retain_max is 64 MiB"],
        &["postrider repair", "pg_drop_replication_slot"],
    );
    show(&format!(
        "PostgreSQL {}: budget 64 MiB, broker frozen: warned: {}; halted: {} {}; to decide: {}",
        version.major(),
        warned["message"],
        halted.code,
        halted.message,
        halted.hint
    ));
    let held = scene.held_mib().await;
    assert!(held > Some(64), "the slot is a person's to drop: {held:?}");

    scene.broker.thaw();
    let relay = spawn(&pipeline.config);
    assert_eq!(pipeline.topic.await_records(1_000, SOON).await.len(), 1_000);
    relay.await_log("wal_budget_half", SOON).await;
    // The slot follows from one point that the server can go back to, to the next: a checkpoint writes one.
    let look = || async {
        scene.server.connect().await.batch("checkpoint").await;
        let log = relay.stderr();
        if log.contains("wal_budget_ok") {
            Ok(())
        } else {
            Err(scene.held_mib().await.unwrap_or(0))
        }
    };
    await_or_dump("less than half held back", SOON, look, || relay.stderr()).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The last remedy of the halt: the slot is dropped, and what it held is published from the table.
#[tokio::test]
async fn slot_that_is_given_up_past_the_budget_loses_no_row() {
    let scene = Scene::new(Version::Pg17, "givenup", "wal").await;
    let pipeline = &scene.pipeline;
    let relay = spawn(&format!("shutdown_grace = \"5s\"\n{}", pipeline.config));
    relay.await_state("streaming", SOON).await;
    scene.broker.freeze();
    pipeline.insert(1_000).await;
    scene.write_wal(80).await;
    let halted = halt_of(relay).await;
    let (_, last) = halted.hint.rsplit_once("; or, ").expect("another remedy");
    assert!(last.contains("are lost with the slot"), "{halted:#?}");
    let last = Halted { hint: last.to_owned(), ..halted };
    scene.broker.thaw();
    let config = follow(pipeline, &last).await;
    every_row_arrives(pipeline, &config, "PR017 slot given up").await;
}

/// `mode = "auto"`: past the budget the slot is let go while the broker is still away, and the WAL with it; the table
/// is polled when it is back, and then streamed from a new slot. Nothing is lost or swapped.
#[tokio::test]
async fn past_the_budget_auto_lets_the_slot_go_polls_and_streams_again() {
    tokio::join!(lets_the_slot_go(Version::Pg15), lets_the_slot_go(Version::Pg18));
}

async fn lets_the_slot_go(version: Version) {
    let scene = Scene::new(version, "budgetauto", "auto").await;
    let pipeline = &scene.pipeline;
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    let load = Load::start(&pipeline.plan(), 1);
    pipeline.topic.await_records(500, SOON).await;
    scene.broker.freeze();
    scene.write_wal(40).await;
    await_event(&relay, "wal_budget_half").await;
    scene.write_wal(40).await;
    await_event(&relay, "slot_dropped").await;
    assert_eq!(scene.held_mib().await, None, "the slot is gone while the broker is away");
    scene.write_wal(80).await;
    let kept = files(&scene.server, true).await;
    assert_eq!(scene.held_mib().await, None, "no new one is made that would hold WAL back");

    scene.broker.thaw();
    let look = || async {
        let log = relay.stderr();
        let streams = log.matches("\"event\":\"streaming\"").count();
        if streams > 1 { Ok(()) } else { Err(streams) }
    };
    await_or_dump("streaming again", 2 * SOON, look, || relay.stderr()).await;
    let ledger = load.stop().await;
    pipeline.topic.await_records(ledger.committed(), SOON).await;
    relay
        .await_status("all published", SOON, |status| {
            figure(status, "in_flight_events") == Some(0)
                && status["pipelines"][0]["lag_seconds"] == 0.0
        })
        .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let findings = ledger.check(&pipeline.topic.read_all().await);
    show(&format!(
        "PostgreSQL {}: budget 64 MiB, broker frozen, auto: slot let go, {kept} MiB of WAL on disk after 160 MiB \
         were written, streaming from a new slot after the broker's return: {} committed, {} lost, {} swapped, {} \
         duplicates",
        version.major(),
        findings.committed,
        findings.lost.len(),
        findings.swapped.len(),
        findings.duplicates
    ));
    findings.assert_balanced(ledger.committed());
    assert!(kept < 160, "{kept} MiB of WAL on disk");
}

/// MiB of WAL on the server's disk, after a checkpoint if so wanted.
async fn files(server: &PrivatePostgres, checkpoint: bool) -> u64 {
    let client: Client = server.connect().await;
    if checkpoint {
        client.batch("checkpoint").await;
    }
    let sql = "select (sum(size) / 1048576)::int8::text from pg_ls_waldir()";
    client.text(sql).await.expect("a sum").parse().expect("a number")
}
