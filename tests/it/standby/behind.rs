//! A standby that commits do not wait for: what it lacks after its promotion is told, and can be published.

use super::pair::{Pair, STANDBY};
use super::promotion::pipeline;
use crate::await_that::{SOON, await_that};
use crate::private::{Signal, signal};
use crate::relay::postrider_ok;
use crate::server::{Client, Version};
use crate::sink_caller::alter;

async fn answers(client: &Client, sql: &str, wanted: &str) {
    await_that(&format!("{sql} to give {wanted}"), SOON, || async {
        let found = client.text(sql).await.unwrap_or_default();
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

/// Its sender is frozen after the event and before the row that parks it; the slot goes on without it.
#[tokio::test]
async fn parked_row_that_a_promoted_standby_never_had_is_told() {
    let mut pair = Pair::start(Version::Pg17, false).await;
    // It would leave a frozen sender for a new one.
    pair.standby.configure("wal_receiver_timeout = 0");
    pair.standby.reload();
    let pipeline = pipeline(&pair, "behind").await;
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    pair.await_synced(&pipeline.slot()).await;

    let (primary, standby) = (pair.primary.connect().await, pair.standby.connect().await);
    primary.batch("begin; lock table postrider.parked in exclusive mode").await;
    let large = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'order', '77', 'Large', to_json(string_agg(md5(random()::text), '')) from generate_series(1, 600)";
    pipeline.sql.batch(large).await;
    let waits = "select count(*)::text from pg_locks
        where relation = 'postrider.parked'::regclass and not granted";
    answers(&pipeline.sql, waits, "1").await;
    let sender =
        format!("select pid::text from pg_stat_replication where application_name = '{STANDBY}'");
    let sender = pipeline.sql.text(&sender).await.expect("a sender");
    assert!(signal(sender.parse().expect("a pid"), Signal::Stop), "process {sender}");
    primary.batch("rollback").await;
    answers(&pipeline.sql, "select count(*)::text from postrider.parked", "1").await;
    let confirmed = format!(
        "select (confirmed_flush_lsn > (select commit_lsn from postrider.parked))::text
         from pg_replication_slots where slot_name = '{}'",
        pipeline.slot()
    );
    answers(&pipeline.sql, &confirmed, "true").await;
    let slot = format!(
        "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = '{}'",
        pipeline.slot()
    );
    let at = pipeline.sql.text(&slot).await.expect("a slot");
    answers(&standby, &slot, &at).await;

    pair.fail_over().await;
    relay.await_log("was carried over at", SOON).await;
    answers(&standby, "select count(*)::text from postrider.parked", "0").await;
    alter(&pipeline.topic, "max.message.bytes", "1000000").await;
    postrider_ok(&pipeline.config, &["replay", "--since", "1h", "--source", "table"]);
    let records = pipeline.topic.await_records(21, SOON).await;
    assert!(records.iter().any(|record| record.key_text() == Some("77")), "the large one");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
