//! Rows that another session has locked, while the table is polled.

use super::{count, ids, polling};
use crate::await_that::SOON;
use crate::server::{Client, Version};
use serde_json::Value;

fn reason(status: &Value) -> &str {
    status["pipelines"][0]["reason"].as_str().unwrap_or_default()
}

/// A session holds a row: the other aggregates are published, the session is named, and the row is published before the
/// later ones of its aggregate.
#[tokio::test]
async fn locked_row_holds_up_its_aggregate_alone_and_its_holder_is_named() {
    for (version, layout, table) in [
        (Version::Pg15, "postrider", "outbox"),
        (Version::Pg17, "commerce", "outbox_messages"),
        (Version::Pg18, "sqlgarden", "outbox_events"),
    ] {
        let pipeline = polling(version, "polllocked", layout).await;
        let insert = match layout {
            "postrider" => {
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', (i % 5)::text, 'T', to_json(i) from generate_series(1, 20) i"
            }
            "commerce" => {
                "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, \
                 payload, occurred_at) \
                 select 1, 'order', i % 5, 'T', 1, to_jsonb(i), now() from generate_series(1, 20) i"
            }
            _ => {
                "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) \
                 select 'order', (i % 5)::text, 'T', to_jsonb(i) from generate_series(1, 20) i"
            }
        };
        pipeline.sql.batch(insert).await;
        let holder = Client::connect(&pipeline.url).await.expect("a session");
        holder
            .batch(&format!(
                "set application_name = 'a person'; begin; select from {table} where id = 6 for update"
            ))
            .await;
        let relay = pipeline.run();
        // Of aggregate 1 the first row is published; 6, 11 and 16 wait.
        pipeline.topic.await_records(17, SOON).await;
        let named = |status: &Value| {
            let words = ["are locked by pid ", "application \"a person\""];
            words.iter().all(|words| reason(status).contains(words))
        };
        relay.await_status("the holder is named", SOON, named).await;
        pipeline.sql.batch(insert).await;
        let records = pipeline.topic.await_records(33, SOON).await;
        assert_eq!(ids(&records, "1"), ["1"], "{layout}");
        holder.batch("rollback").await;
        let records = pipeline.topic.await_records(40, SOON).await;
        assert_eq!(records.len(), 40, "{layout}: nothing comes twice");
        let wanted = ["1", "6", "11", "16", "21", "26", "31", "36"];
        assert_eq!(ids(&records, "1"), wanted, "{layout}");
        relay.await_log("no row to be published is locked any more", SOON).await;
        relay.await_status("nothing is said of it", SOON, |status| reason(status).is_empty()).await;
        let left = match layout {
            "postrider" => "select count(*)::text from outbox",
            "commerce" => "select count(*)::text from outbox_messages where processed_at is null",
            _ => "select count(*)::text from outbox_events where status <> 'PUBLISHED'",
        };
        count(&pipeline, left, "0").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
