//! Polling end to end: each layout to real Kafka, with the marks its seed writes, and the order of each aggregate.

mod letters;
mod locked;
mod parked;
mod refused;
mod roles;
mod stuck;

use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Version, brokers};
use crate::topic::ReadRecord;
use serde_json::Value;

/// A pipeline that polls. The one it is made from was set up to stream: its slot goes.
async fn polling(version: Version, test: &str, layout: &str) -> Pipeline {
    polling_to(&brokers(), version, test, layout).await
}

/// The same with other brokers.
async fn polling_to(brokers: &str, version: Version, test: &str, layout: &str) -> Pipeline {
    let mut pipeline = Pipeline::in_database(version, brokers, test, layout, "").await;
    polls(&mut pipeline).await;
    pipeline
}

/// Has a pipeline that was set up to stream poll: its slot goes.
pub(crate) async fn polls(pipeline: &mut Pipeline) {
    let slot = format!("select pg_drop_replication_slot('{}')", pipeline.slot());
    pipeline.sql.batch(&slot).await;
    pipeline.sql.batch("drop schema postrider cascade").await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines = "mode = \"poll\"\nparking = { attempts_max = 3, backoff = { step = \"200ms\", steps_max = 1 } }\n\
                 poll = { interval = \"50ms\" }\n";
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{lines}"), 1);
    postrider_ok(&pipeline.config, &["setup"]);
}

fn ids(records: &[ReadRecord], key: &str) -> Vec<String> {
    let of_key = records.iter().filter(|record| record.key_text() == Some(key));
    of_key.map(|record| record.header("id").expect("an id").to_owned()).collect()
}

async fn count(pipeline: &Pipeline, sql: &str, wanted: &str) {
    await_that(&format!("{sql} gives {wanted}"), SOON, || async {
        let found = pipeline.sql.text(sql).await.unwrap_or_default();
        if found == wanted { Ok(()) } else { Err(found) }
    })
    .await;
}

#[tokio::test]
async fn rows_are_published_in_order_and_go() {
    for version in Version::ALL {
        let pipeline = polling(version, "pollown", "postrider").await;
        pipeline.insert(500).await;
        let relay = pipeline.run();
        relay.await_state("polling", SOON).await;
        pipeline.topic.await_records(500, SOON).await;
        pipeline.insert(100).await;
        let records = pipeline.topic.await_records(600, SOON).await;
        assert_eq!(records.len(), 600, "none twice");
        for key in 0..10 {
            let ids: Vec<u64> = ids(&records, &key.to_string())
                .iter()
                .map(|id| id.parse().expect("a number"))
                .collect();
            assert_eq!(ids.len(), 60);
            assert!(ids.is_sorted(), "{ids:?}");
        }
        assert!(records.iter().all(|record| record.header("position").is_none()), "there is none");
        // The history in force takes its place, the same for all: nothing happened to the server.
        let histories = "select lpad(upper(to_hex(histories[cardinality(histories)])), 8, '0') from postrider.cursor";
        let history = pipeline.sql.text(histories).await;
        assert!(
            records.iter().all(|record| record.header("history") == history.as_deref()),
            "{history:?}"
        );
        count(&pipeline, "select count(*)::text from outbox", "0").await;
        assert_eq!(relay.get("/ready").await.expect("an answer").0, 200);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The seed's own marks, on each of its rows: published, and what is not.
async fn marks(layout: &str, insert: &str, published: &str, left: &str) {
    let pipeline = polling(Version::Pg18, "pollmarks", layout).await;
    pipeline.sql.batch(insert).await;
    let relay = pipeline.run();
    let records = pipeline.topic.await_records(20, SOON).await;
    assert_eq!(records.len(), 20);
    count(&pipeline, published, "20").await;
    count(&pipeline, left, "0").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

#[tokio::test]
async fn commerce_marks_processed_at() {
    marks(
        "commerce",
        "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at) \
         select 1, 'order', i % 3, 'T', 1, to_jsonb(i), now() from generate_series(1, 20) i",
        "select count(*)::text from outbox_messages where processed_at is not null and attempts = 0 and last_error is null",
        "select count(*)::text from outbox_messages where processed_at is null",
    )
    .await;
}

#[tokio::test]
async fn gcx_marks_status_and_published_at() {
    marks(
        "gcx",
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, topic) \
         select 'order', gen_random_uuid(), 'T', to_jsonb(i), 't' from generate_series(1, 20) i",
        "select count(*)::text from outbox where status = 'published' and published_at is not null and retry_count = 0",
        "select count(*)::text from outbox where status <> 'published'",
    )
    .await;
}

#[tokio::test]
async fn sqlgarden_marks_published_and_the_attempt() {
    marks(
        "sqlgarden",
        "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 3)::text, 'T', to_jsonb(i) from generate_series(1, 20) i",
        "select count(*)::text from outbox_events \
         where status = 'PUBLISHED' and attempt_count = 1 and last_attempt_at is not null",
        "select count(*)::text from outbox_events where status <> 'PUBLISHED'",
    )
    .await;
}

#[tokio::test]
async fn adr30_marks_published_at() {
    marks(
        "adr30",
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', gen_random_uuid(), 'T', to_jsonb(i) from generate_series(1, 20) i",
        "select count(*)::text from outbox where published_at is not null",
        "select count(*)::text from outbox where published_at is null",
    )
    .await;
}

#[tokio::test]
async fn debezium_rows_go() {
    marks(
        "debezium",
        "insert into outboxevent (aggregatetype, aggregateid, type, payload) \
         select 'order', (i % 3)::text, 'T', to_jsonb(i) from generate_series(1, 20) i",
        "select '20'",
        "select count(*)::text from outboxevent",
    )
    .await;
}

/// In mode `wal` as in mode `poll`: an event whose time has passed is skipped, and counted.
#[tokio::test]
async fn expired_event_is_skipped_by_the_stream_too() {
    let pipeline = Pipeline::in_layout(Version::Pg18, "expired", "gcx").await;
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, topic, expires_at) \
             select 'order', gen_random_uuid(), 'T', to_jsonb(i), 't', \
               case i % 2 when 0 then now() - interval '1 second' else now() + interval '1 hour' end \
             from generate_series(1, 20) i",
        )
        .await;
    let relay = pipeline.run();
    let skipped = |status: &Value| status["pipelines"][0]["skipped_total"] == 10;
    relay.await_status("ten skipped", SOON, skipped).await;
    let records = pipeline.topic.await_records(10, SOON).await;
    assert!(
        records
            .iter()
            .all(|r| r.value_text().is_some_and(|n| n.ends_with(['1', '3', '5', '7', '9'])))
    );
    assert_eq!(records.len(), 10);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Killed again and again under load: what is published is marked, and nothing else.
#[tokio::test]
async fn killed_again_and_again_nothing_is_lost_or_swapped() {
    let pipeline = polling(Version::Pg15, "pollkill", "postrider").await;
    let load = Load::start(&pipeline.plan(), 2);
    for _ in 0..4 {
        let relay = pipeline.run();
        let before = load.committed();
        relay.await_state("polling", SOON).await;
        await_that("300 more", SOON, || async {
            let now = load.committed();
            if now > before + 300 { Ok(()) } else { Err(now.to_string()) }
        })
        .await;
        drop(relay.kill().await);
    }
    let relay = pipeline.run();
    let ledger = load.stop().await;
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    let records = pipeline.topic.await_records(ledger.committed(), SOON).await;
    ledger.check(&records).assert_balanced(4 * 4_000);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A second process stands by, and takes over when the first is gone.
#[tokio::test]
async fn second_process_stands_by_and_takes_over() {
    let pipeline = polling(Version::Pg17, "pollsecond", "postrider").await;
    let first = pipeline.run();
    first.await_state("polling", SOON).await;
    let second = Relay::spawn(&pipeline.config);
    second.await_state("standing_by", SOON).await;
    drop(first.kill().await);
    second.await_state("polling", SOON).await;
    pipeline.insert(10).await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    assert_eq!(second.terminate(SOON).await.code, Some(0));
}
