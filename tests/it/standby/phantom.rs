//! What consumers must not have: events that the promoted server has not, and those of a primary that was left behind.

use super::pair::Pair;
use super::promotion::{ids_in, pipeline};
use crate::await_that::{SOON, await_or_dump};
use crate::halted::{halt_of, spawn};
use crate::pipeline::show;
use crate::server::Version;
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
