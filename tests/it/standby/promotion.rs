//! Promotion under load.
//!
//! What must not be lost is what a writer was told is committed. The pair commits synchronously, so that all of it is
//! on the standby when the primary is killed; a commit without an answer may be there or not. Beside the ledger the
//! promoted server's own table is asked: what was published is in it, row for row.

use super::pair::Pair;
use crate::await_that::{SOON, await_that};
use crate::halted::{halt_of, spawn};
use crate::load::{Load, Plan};
use crate::pipeline::{Pipeline, show};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version, brokers};
use std::collections::BTreeSet;
use std::time::Instant;

/// Events a second of the one writer, and events in a transaction.
const RATE: u32 = 1_000;
/// What may come twice: what was in flight, and what was published since the last cursor row that the standby has.
const DUPLICATES_MAX: usize = 5_000;

/// A pipeline on the primary, with a connection string that finds whichever of the two takes writes.
pub(crate) async fn pipeline(pair: &Pair, test: &str) -> Pipeline {
    let mut pipeline = Pipeline::on(&pair.primary.url(), &brokers(), test).await;
    pipeline.url = pair.url();
    pipeline.config = pipeline.config.replace(&pair.primary.url(), &pair.url());
    pipeline
}

pub(super) async fn committed(load: &Load, more: usize) {
    let wanted = load.committed() + more;
    await_that(&format!("{wanted} committed"), SOON, || async {
        let now = load.committed();
        if now >= wanted { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

pub(super) async fn ids_in(client: &Client) -> BTreeSet<String> {
    let rows = client.query("select id::text from outbox", &[]).await.expect("the outbox");
    rows.iter().map(|row| row.get(0)).collect()
}

/// 1,000 events a second; the primary is killed with -9, the standby promoted, and the relay left alone.
async fn promoted_with_the_slot(version: Version) {
    let mut pair = Pair::start(version, true).await;
    let pipeline = pipeline(&pair, "promotion").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let load = Load::start(&Plan { rate: RATE, ..pipeline.plan() }, 1);
    pair.await_synced(&pipeline.slot()).await;
    committed(&load, 3_000).await;
    let killed = Instant::now();
    pair.fail_over().await;
    relay.await_log("the server went from timeline 1 to 2", SOON).await;
    let away = killed.elapsed();
    committed(&load, 3_000).await;
    let ledger = load.stop().await;

    let in_table = ids_in(&pair.standby.connect().await).await;
    let records = pipeline.topic.await_records(in_table.len(), SOON).await;
    all_published(&relay).await;
    let published = pipeline.topic.read_all().await;
    assert!(published.len() >= records.len());
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let findings = ledger.check(&published);
    let ids: BTreeSet<String> =
        published.iter().filter_map(|record| Some(record.header("id")?.to_owned())).collect();
    show(&format!(
        "PostgreSQL {}: promoted under {RATE} events/s with the synchronised slot: {} committed, {} lost, {} swapped, \
         {} published that the new primary does not have, {} in its table not published, {} duplicates; streaming \
         again {:.1} s after kill -9, no hand moved",
        version.major(),
        findings.committed,
        findings.lost.len(),
        findings.swapped.len(),
        ids.difference(&in_table).count(),
        in_table.difference(&ids).count(),
        findings.duplicates,
        away.as_secs_f64(),
    ));
    findings.assert_balanced(DUPLICATES_MAX);
    assert_eq!(ids, in_table, "published and in the table");
}

#[tokio::test]
async fn promotion_with_the_synchronised_slot_goes_on_by_itself_on_17() {
    promoted_with_the_slot(Version::Pg17).await;
}

#[tokio::test]
async fn promotion_with_the_synchronised_slot_goes_on_by_itself_on_18() {
    promoted_with_the_slot(Version::Pg18).await;
}

/// Without the slot it halts with the command, and confirms nothing; the command publishes what is missing.
async fn promoted_without_the_slot(version: Version) {
    let mut pair = Pair::start(version, true).await;
    let mut pipeline = pipeline(&pair, "noslot").await;
    pipeline.sql.batch(&format!("select pg_drop_replication_slot('{}')", pipeline.slot())).await;
    let made =
        format!("select pg_create_logical_replication_slot('{}', 'pgoutput')", pipeline.slot());
    pipeline.sql.batch(&made).await;
    let forget = format!("delete from postrider.cursor where pipeline = '{}'", pipeline.name);
    pipeline.sql.batch(&forget).await;
    pipeline.config = pipeline.with_line("source", "failover = false");
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    let load = Load::start(&Plan { rate: RATE, ..pipeline.plan() }, 1);
    committed(&load, 2_000).await;
    pair.fail_over().await;
    let halted = halt_of(relay).await;
    halted.assert_says("PR002", &[&pipeline.slot(), "does not exist"], &["postrider repair"]);
    committed(&load, 1_000).await;
    let ledger = load.stop().await;
    let findings = ledger.check(&pipeline.topic.read_all().await);
    show(&format!(
        "PostgreSQL {}: promoted under {RATE} events/s without the slot: halted {} ({}); {} of {} events wait in the \
         table; to run: {}",
        version.major(),
        halted.code,
        halted.message,
        findings.lost.len(),
        findings.committed,
        halted.hint,
    ));
    assert!(findings.invented.is_empty(), "{findings}");

    let said = postrider_ok(&pipeline.config, &["repair"]);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.topic.await_records(findings.committed, SOON).await;
    all_published(&relay).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let findings = ledger.check(&pipeline.topic.read_all().await);
    show(&format!(
        "PostgreSQL {}: then postrider repair: {} committed, {} lost, {} swapped, {} duplicates; it said: {}",
        version.major(),
        findings.committed,
        findings.lost.len(),
        findings.swapped.len(),
        findings.duplicates,
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    ));
    findings.assert_balanced(findings.committed);
}

async fn all_published(relay: &Relay) {
    relay
        .await_status("all published", SOON, |status| {
            let pipeline = &status["pipelines"][0];
            pipeline["in_flight_events"] == 0 && pipeline["lag_seconds"] == 0.0
        })
        .await;
}

#[tokio::test]
async fn promotion_without_the_slot_halts_with_the_command_on_17() {
    promoted_without_the_slot(Version::Pg17).await;
}

#[tokio::test]
async fn promotion_without_the_slot_halts_with_the_command_on_18() {
    promoted_without_the_slot(Version::Pg18).await;
}
