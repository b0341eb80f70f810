//! What consumers must not have: events that the promoted server has not, and those of a primary that was left behind.

use super::pair::Pair;
use super::promotion::{ids_in, pipeline};
use crate::await_that::{SOON, await_or_dump, await_that};
use crate::halted::{halt_of, spawn};
use crate::pipeline::{Pipeline, show};
use crate::relay::postrider_ok;
use crate::server::{Client, Version, brokers};
use std::collections::BTreeSet;

const ROW: &str = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                   values ('order', '7', 'Written', '{}') returning id::text";

/// Commits do not wait for the standby, the stream does: what the standby never had was never published.
async fn what_the_standby_never_had(version: Version) {
    let mut pair = Pair::start(version, false).await;
    let pipeline = pipeline(&pair, "phantom").await;
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    pipeline.insert(100).await;
    pipeline.topic.await_records(100, SOON).await;
    // One more for each look, since the slot is carried over only while it moves.
    pair.await_synced(&pipeline.slot()).await;

    // Gone, and not frozen: what stands in a frozen one's socket would still reach it.
    pair.standby.kill().await;
    let primary = pair.primary.connect().await;
    let lost = primary.text(ROW).await.expect("an id");
    let status = relay
        .await_status("a stream that waits for the standby", SOON, |status| {
            let reason = status["pipelines"][0]["reason"].as_str().unwrap_or_default();
            reason.contains("waits for a standby")
        })
        .await;
    assert_eq!(status["pipelines"][0]["published_total"], 100, "{status}");
    let waits = "select coalesce(string_agg(wait_event, ', '), 'nothing') from pg_stat_activity \
                 where backend_type = 'walsender' and wait_event = 'WaitForStandbyConfirmation'";
    let look = || async {
        let event = primary.text(waits).await.unwrap_or_default();
        if event == "WaitForStandbyConfirmation" { Ok(()) } else { Err(event) }
    };
    await_or_dump("the stream to wait for the standby", SOON, look, || relay.stderr()).await;
    pair.primary.kill().await;
    pair.standby.restart().await;
    let promoted = pair.promote().await;
    relay.await_log("the server went from timeline 1 to 2", SOON).await;
    let next = promoted.text(ROW).await.expect("an id");
    let records = pipeline.topic.await_records(101, SOON).await;
    let ids: BTreeSet<String> =
        records.iter().filter_map(|record| Some(record.header("id")?.to_owned())).collect();
    let in_table = ids_in(&promoted).await;
    show(&format!(
        "PostgreSQL {}: event {lost} was committed on the primary alone and is in neither the table of the promoted \
         server nor the topic; event {next} after it is in both; {} published, {} in the table",
        version.major(),
        ids.len(),
        in_table.len()
    ));
    assert!(lost == next || !ids.contains(&lost), "{lost} was published");
    assert_eq!(ids, in_table);

    // The old primary comes back, takes writes, and stands first in the connection string.
    pair.primary.configure("synchronized_standby_slots = ''");
    pair.primary.restart().await;
    pair.primary.connect().await.text(ROW).await;
    let ours = "select pg_terminate_backend(pid)::text from pg_stat_activity where application_name like 'postrider%'";
    promoted.text(ours).await;
    let halted = halt_of(relay).await;
    halted.assert_says("PR004", &["timeline 1", "timeline 2"], &["current primary"]);
    let after = pipeline.topic.read_all().await;
    assert_eq!(after.len(), records.len(), "nothing of the old primary was published");
    show(&format!(
        "PostgreSQL {}: the old primary back and first in the connection string: {} {}",
        version.major(),
        halted.code,
        halted.message
    ));
}

#[tokio::test]
async fn what_the_standby_never_had_was_never_published_on_17() {
    what_the_standby_never_had(Version::Pg17).await;
}

#[tokio::test]
async fn what_the_standby_never_had_was_never_published_on_18() {
    what_the_standby_never_had(Version::Pg18).await;
}

/// So many that the promoted server's sequence, which the log takes 32 numbers ahead, gives some of their ids again.
const LOST: usize = 100;

/// `count` rows of layout `commerce`, whose payloads name `server`.
async fn insert_on(client: &Client, server: &str, count: usize) {
    client
        .batch(&format!(
            "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload) \
             select 1, 'order', i % 7, 'E', jsonb_build_object('row', '{server} ' || i) \
             from generate_series(1, {count}) i"
        ))
        .await;
}

/// Rows are published, and their marks owed, when the primary is gone for good. The standby never had them, and gives
/// their ids to other rows: those are published all the same. With `mode = "auto"` the slot, which was no failover
/// slot, is made again while the table is polled.
#[tokio::test]
async fn rows_of_the_promoted_server_are_not_marked_for_those_of_the_old_one_under_their_ids() {
    let mut pair = Pair::start(Version::Pg17, false).await;
    let url = pair.primary.url();
    let mut pipeline = Pipeline::with_layout(&url, &brokers(), "owed", "commerce", "").await;
    pipeline.config = pipeline.config.replace(&url, &pair.url()).replacen(
        &format!("[pipelines.{}.source]\n", pipeline.name),
        &format!("mode = \"auto\"\n[pipelines.{}.source]\nfailover = false\n", pipeline.name),
        1,
    );
    let slot = pipeline.slot();
    let drop_slot =
        format!("select pg_drop_replication_slot('{slot}'); delete from postrider.cursor");
    pipeline.sql.batch(&drop_slot).await;
    postrider_ok(&pipeline.config, &["setup"]);
    let relay = spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    insert_on(&pipeline.sql, "both", 10).await;
    pipeline.topic.await_records(10, SOON).await;

    // What marks rows waits on the primary from here on.
    pipeline
        .sql
        .batch(
            "create function hold() returns trigger language plpgsql as \
             $$ begin perform pg_advisory_xact_lock_shared(7); return new; end $$; \
             create trigger hold before update on outbox_messages for each row execute function hold(); \
             select pg_advisory_lock(7)",
        )
        .await;
    let end = pipeline.wal_end().await;
    let replayed = format!("select (pg_last_wal_replay_lsn() >= '{end}')::text");
    await_that("the trigger on the standby", SOON, || async {
        let replayed = pair.standby.connect().await.text(&replayed).await;
        if replayed.as_deref() == Some("true") { Ok(()) } else { Err(format!("{replayed:?}")) }
    })
    .await;
    pair.standby.kill().await;
    insert_on(&pipeline.sql, "old", LOST).await;
    pipeline.topic.await_records(10 + LOST, SOON).await;
    let marked = "select count(*)::text from outbox_messages where processed_at is not null and payload->>'row' like 'old%'";
    let owed = pipeline.sql.text(marked).await;
    assert_eq!(owed.as_deref(), Some("0"), "the test needs marks that are owed");
    pair.primary.kill().await;
    pair.standby.restart().await;
    let promoted = pair.promote().await;
    insert_on(&promoted, "new", LOST).await;
    let same_ids = "select count(*)::text from outbox_messages where payload->>'row' like 'new%' and id <= 110";
    let same_ids = promoted.text(same_ids).await.expect("a count");
    assert_ne!(same_ids, "0", "the test needs ids that come again");
    let look = || async {
        let records = pipeline.topic.read_all().await;
        let mut new = BTreeSet::new();
        for record in &records {
            let value = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default());
            if value.contains("new ") {
                new.insert(value.into_owned());
            }
        }
        if new.len() == LOST {
            Ok(())
        } else {
            Err(format!("{} of {LOST} are published", new.len()))
        }
    };
    await_or_dump("the rows of the promoted server", SOON, look, || relay.stderr()).await;
    show(&format!("{same_ids} of {LOST} rows have ids of rows that the promoted server never had"));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A relay that polls is led back to the primary of before, which takes writes again: nothing of it is published.
#[tokio::test]
async fn old_primary_is_not_polled_after_the_promoted_one() {
    let mut pair = Pair::start(Version::Pg17, true).await;
    let url = pair.primary.url();
    let mut pipeline = Pipeline::with_layout(&url, &brokers(), "astray", "commerce", "").await;
    pipeline.config = pipeline.config.replace(&url, &pair.url()).replacen(
        &format!("[pipelines.{}.source]\n", pipeline.name),
        &format!("mode = \"poll\"\n[pipelines.{}.source]\n", pipeline.name),
        1,
    );
    postrider_ok(&pipeline.config, &["setup"]);
    let relay = spawn(&pipeline.config);
    relay.await_state("polling", SOON).await;
    insert_on(&pipeline.sql, "both", 10).await;
    pipeline.topic.await_records(10, SOON).await;
    pair.primary.kill().await;
    let promoted = pair.promote().await;
    insert_on(&promoted, "promoted", 10).await;
    let records = pipeline.topic.await_records(20, SOON).await;

    pair.primary.configure("synchronous_standby_names = ''");
    pair.primary.restart().await;
    insert_on(&pair.primary.connect().await, "old", 10).await;
    pair.standby.kill().await;
    let halted = halt_of(relay).await;
    halted.assert_says("PR004", &["timeline 1", "timeline 2"], &["current primary"]);
    let after = pipeline.topic.read_all().await;
    assert_eq!(after.len(), records.len(), "nothing of the old primary was published");
}
