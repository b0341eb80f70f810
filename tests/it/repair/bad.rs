//! What a repair refuses, and what it says.

use super::{SOON, drop_slot, number, repair, repaired};
use crate::pipeline::{Pipeline, show};
use crate::relay::postrider;
use crate::server::Version;

/// It ended with 3, and says this.
fn refused(config: &str, args: &[&str], says: &[&str]) {
    let (output, _) = repair(config, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    for text in says {
        assert!(errors.contains(text), "{text:?} is not in: {errors}");
    }
    show(&errors);
}

#[tokio::test]
async fn repair_beside_a_live_relay_is_refused() {
    let pipeline = Pipeline::shared(Version::Pg17, "beside").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    refused(
        &pipeline.config,
        &[],
        &["another relay of this pipeline is live", "stop postrider run"],
    );
    refused(&pipeline.config, &["--dry-run"], &["another relay of this pipeline is live"]);
    pipeline.insert(50).await;
    assert_eq!(pipeline.topic.await_records(50, SOON).await.len(), 50);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let (output, value) = repair(&pipeline.config, &[]);
    assert_eq!((output.status.code(), value["state"].as_str()), (Some(0), Some("sound")));
}

#[tokio::test]
async fn dry_run_counts_and_changes_nothing() {
    let pipeline = Pipeline::shared(Version::Pg18, "dry").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(200).await;
    pipeline.topic.await_records(200, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // Long after the relay had ended, as the time column has it.
    let rows = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                select 'order', (i % 10)::text, 'Written', to_json(i), now() + interval '1 hour' \
                from generate_series(1, 300) i";
    pipeline.sql.batch(rows).await;
    pipeline.sql.batch("delete from outbox where id in (250, 251)").await;
    drop_slot(&pipeline).await;
    let before = facts(&pipeline).await;
    let text = postrider(&pipeline.config, &["repair", "--dry-run"]);
    show(&String::from_utf8_lossy(&text.stdout));
    let (output, value) = repair(&pipeline.config, &["--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(facts(&pipeline).await, before, "a dry run changed something");
    let rows = number(&value, "rows");
    assert!((298..=498).contains(&rows), "{value}");
    assert_eq!(rows - number(&value, "uncertain"), 298, "{value}");
    assert_eq!(number(&value, "ids_missing"), 2, "{value}");
    assert_eq!(number(&value, "aggregates"), 10, "{value}");

    let done = repaired(&pipeline.config);
    assert_eq!((number(&done, "rows"), number(&done, "published")), (rows, rows), "{done}");
    assert_eq!(number(&done, "ids_missing"), 2, "{done}");
    let records = pipeline.topic.await_records(200 + rows, SOON).await;
    assert_eq!(records.len(), 200 + rows);
}

/// Slots, cursor and repair, as text.
async fn facts(pipeline: &Pipeline) -> String {
    let slot = pipeline.slot();
    let sql = format!(
        "select concat((select string_agg(s::text, ';') from pg_replication_slots s where slot_name = '{slot}'), \
           (select string_agg(c::text, ';') from postrider.cursor c), \
           (select string_agg(r::text, ';') from postrider.repair r))"
    );
    pipeline.sql.text(&sql).await.unwrap_or_default()
}

#[tokio::test]
async fn cursor_that_is_missing_or_of_another_system_is_told_with_what_is_possible() {
    let pipeline = Pipeline::shared(Version::Pg15, "nocursor").await;
    pipeline.insert(10).await;
    drop_slot(&pipeline).await;
    pipeline.sql.batch("update postrider.cursor set system_identifier = '1'").await;
    refused(&pipeline.config, &[], &["belongs to cluster 1", "DELETE FROM postrider.cursor"]);
    pipeline.sql.batch("delete from postrider.cursor").await;
    refused(
        &pipeline.config,
        &[],
        &[
            "has no cursor row",
            "nothing in the database tells which rows were published",
            "--backfill none",
        ],
    );
}

/// A slot that somebody made again by hand, and one that somebody moved, leave a gap: the repair closes it.
#[tokio::test]
async fn slot_made_again_by_hand_is_repaired() {
    let pipeline = Pipeline::shared(Version::Pg17, "byhand").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.insert(100).await;
    drop_slot(&pipeline).await;
    let slot = pipeline.slot();
    let made = format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')::text");
    pipeline.sql.text(&made).await;
    let halted = pipeline.run().ended(SOON).await;
    assert_eq!(halted.code, Some(3), "{}", halted.stderr);
    let value = repaired(&pipeline.config);
    assert_eq!(number(&value, "published"), 100, "{value}");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(5).await;
    assert_eq!(pipeline.topic.await_records(105, SOON).await.len(), 105);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
