//! Bad events of a table that is polled: parked, or marked in their rows where the layout keeps failures; and what
//! waits for them, or does not.

use super::{count, ids, polling, polling_to};
use crate::await_that::SOON;
use crate::private::{PrivateKafka, topic_that_lacks_a_copy};
use crate::relay::Relay;
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::{Topic, create_topic};
use serde_json::Value;

/// An event too large for its topic: parked where the table keeps no failures, and its followers behind it.
#[tokio::test]
async fn bad_event_is_parked_and_its_row_goes() {
    let pipeline = polling(Version::Pg17, "pollbad", "postrider").await;
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let relay = pipeline.run();
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', a, 'T', to_json(case when i = 2 then (select string_agg(md5(random()::text), '') \
             from generate_series(1, 600)) else 'x' end) \
             from (values (1, 'a'), (2, 'a'), (3, 'b'), (4, 'a'), (5, 'b')) v(i, a)",
        )
        .await;
    let records = pipeline.topic.await_records(3, SOON).await;
    assert_eq!(ids(&records, "b"), ["3", "5"]);
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    let states = "select string_agg(event_id || ' ' || (state in ('waiting', 'dead'))::text, ', ' order by commit_lsn, ordinal) \
                  from postrider.parked";
    count(&pipeline, states, "2 true, 4 false").await;
    let aged = |status: &Value| {
        status["pipelines"][0]["parked"]["oldest_seconds"].as_f64().is_some_and(|age| age > 0.0)
    };
    relay.await_status("the age of the oldest", SOON, aged).await;
    alter(&pipeline.topic, "max.message.bytes", "100000").await;
    let again = "update postrider.parked set requested_action = 'retry', requested_at = now() where event_id = '2'";
    pipeline.sql.batch(again).await;
    let records = pipeline.topic.await_records(5, SOON).await;
    assert_eq!(ids(&records, "a"), ["1", "2", "4"], "in order");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    // Long ago: pruned, though no stream moves the cursor past them.
    pipeline.sql.batch("update postrider.parked set resolved_at = now() - interval '8 days'").await;
    let relay = pipeline.run();
    count(&pipeline, "select count(*)::text from postrider.parked", "0").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Its row is committed with its claim, which may wait for others long after it is due: it is not taken for deleted,
/// and nothing of its aggregate overtakes it.
#[tokio::test]
async fn parked_event_holds_up_its_aggregate_while_its_claim_is_open() {
    let kafka = PrivateKafka::start("").await;
    let pipeline = polling_to(&kafka.brokers(), Version::Pg17, "pollopen", "postrider").await;
    let (base, brokers) = (pipeline.topic.name.as_str(), pipeline.topic.brokers.as_str());
    let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
    let orders = Topic { name: format!("{base}.order"), brokers: brokers.to_owned() };
    create_topic(brokers, &orders.name, 1, &[("max.message.bytes", "3000")]).await;
    // Its events wait until it has the copies that it wants.
    let (_late, mut second) = topic_that_lacks_a_copy(&kafka, format!("{base}.late"), 1).await;
    let relay = Relay::spawn(&config);
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select t, a, 'T', to_json(case when i = 2 then (select string_agg(md5(random()::text), '') \
             from generate_series(1, 600)) else 'x' end) \
             from (values (1, 'order', 'a'), (2, 'order', 'a'), (3, 'late', 'b'), (4, 'order', 'a')) v(i, t, a)",
        )
        .await;
    // The third is not acknowledged. Tries of the second are due after 0.2 s.
    let waits = |status: &Value| {
        status["pipelines"][0]["lag_seconds"].as_f64().is_some_and(|lag| lag > 2.0)
    };
    relay.await_status("the claim is open", SOON, waits).await;
    second.restart().await;
    let states = "select string_agg(event_id || ' ' || (state in ('waiting', 'dead'))::text, ', ' order by commit_lsn, ordinal) \
                  from postrider.parked";
    count(&pipeline, states, "2 true, 4 false").await;
    alter(&orders, "max.message.bytes", "100000").await;
    let again = "update postrider.parked set requested_action = 'retry', requested_at = now() where event_id = '2'";
    pipeline.sql.batch(again).await;
    let records = orders.await_records(3, SOON).await;
    assert_eq!(ids(&records, "a"), ["1", "2", "4"], "in order");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A stop waits for no event that was parked in the claim at hand, and what is published of the claim is marked.
#[tokio::test]
async fn stop_in_the_middle_of_a_claim_marks_what_is_published() {
    let kafka = PrivateKafka::start_with_rules().await;
    let pipeline = polling_to(&kafka.brokers(), Version::Pg17, "pollstop", "postrider").await;
    let (base, brokers) = (pipeline.topic.name.as_str(), pipeline.topic.brokers.as_str());
    let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
    let orders = Topic { name: format!("{base}.order"), brokers: brokers.to_owned() };
    create_topic(brokers, &orders.name, 1, &[("max.message.bytes", "3000")]).await;
    // Its topic exists, and may not be written to: the row waits for it.
    let late = format!("{base}.late");
    create_topic(brokers, &late, 1, &[]).await;
    kafka.deny_writes(&late);
    // Longer than a claim is held.
    let relay = Relay::spawn(&format!("shutdown_grace = \"2m\"\n{config}"));
    let waits = |status: &Value, parked: u64| {
        let pipeline = &status["pipelines"][0];
        pipeline["state"] == "broker_down"
            && pipeline["in_flight_events"] == 0
            && pipeline["parked"]["waiting"] == parked
    };
    // Its row alone, until nothing of it is in flight any more; then others before it and behind it.
    let insert = "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) overriding system value";
    pipeline.sql.batch(&format!("{insert} values (1000, 'late', 'c', 'T', '1')")).await;
    relay.await_status("it waits", SOON, |status| waits(status, 0)).await;
    let rows = format!(
        "{insert} select i, t, a, 'T', to_json(case when i = 2 then (select string_agg(md5(random()::text), '') \
         from generate_series(1, 600)) else 'x' end) \
         from (values (1, 'order', 'a'), (2, 'order', 'b'), (1001, 'order', 'a')) v(i, t, a)"
    );
    pipeline.sql.batch(&rows).await;
    // Tries of the second are due after 0.2 s.
    relay.await_status("the claim is open", SOON, |status| waits(status, 1)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let left = "select string_agg(id::text, ' ' order by id) from outbox";
    count(&pipeline, left, "1000 1001").await;
    let parked = "select string_agg(event_id || ' ' || state, ' ') from postrider.parked";
    count(&pipeline, parked, "2 waiting").await;
    let records = orders.await_records(1, SOON).await;
    assert_eq!(ids(&records, "a"), ["1"]);
}

/// The same where the table has columns for it: the row says so, its aggregate waits, and the pause is the layout's.
#[tokio::test]
async fn bad_event_is_marked_in_a_table_that_keeps_failures() {
    let mut pipeline = polling(Version::Pg18, "pollfail", "commerce").await;
    pipeline.config = pipeline.config.replace("attempts_max = 3", "attempts_max = 1000");
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let relay = pipeline.run();
    pipeline
        .sql
        .batch(
            "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at) \
             select 1, 'order', a, 'T', 1, to_jsonb(case when i = 2 then (select string_agg(md5(random()::text), '') \
             from generate_series(1, 600)) else 'x' end), now() \
             from (values (1, 1), (2, 1), (3, 2), (4, 1), (5, 2)) v(i, a)",
        )
        .await;
    pipeline.topic.await_records(3, SOON).await;
    count(
        &pipeline,
        "select count(*)::text from outbox_messages where id = 2 and processed_at is null and attempts > 0 \
         and last_error is not null and available_at > occurred_at",
        "1",
    )
    .await;
    count(
        &pipeline,
        "select (processed_at is null)::text from outbox_messages where id = 4",
        "true",
    )
    .await;
    alter(&pipeline.topic, "max.message.bytes", "100000").await;
    let records = pipeline.topic.await_records(5, 2 * SOON).await;
    assert_eq!(ids(&records, "1"), ["1", "2", "4"], "in order");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A row whose topic does not exist: its failure is its own, the later rows of its aggregate wait, all others flow, and
/// it is published when its time comes and the topic exists.
#[tokio::test]
async fn row_whose_topic_is_missing_fails_alone_in_a_table_that_keeps_failures() {
    let mut pipeline = polling(Version::Pg18, "pollnotopic", "commerce").await;
    let (base, brokers) = (pipeline.topic.name.as_str(), pipeline.topic.brokers.as_str());
    let [orders, ordr] = ["order", "ordr"]
        .map(|kind| Topic { name: format!("{base}.{kind}"), brokers: brokers.to_owned() });
    create_topic(brokers, &orders.name, 1, &[]).await;
    let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
    pipeline.config = config.replace("attempts_max = 3", "attempts_max = 1000");
    let relay = pipeline.run();
    pipeline
        .sql
        .batch(
            "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at) \
             select 1, t, a, 'T', 1, '\"x\"', now() \
             from (values (1, 'order', 1), (2, 'ordr', 2), (3, 'order', 1), (4, 'ordr', 2), (5, 'order', 3)) v(i, t, a) order by i",
        )
        .await;
    let records = orders.await_records(3, SOON).await;
    assert_eq!(ids(&records, "1"), ["1", "3"], "in order, once");
    count(
        &pipeline,
        "select string_agg(concat_ws(' ', id, attempts > 0, coalesce(last_error like '%topic does not exist%', false)), \
         ', ' order by id) from outbox_messages where processed_at is null",
        "2 t t, 4 f f",
    )
    .await;
    count(&pipeline, "select count(*)::text from postrider.parked", "0").await;
    // It is nobody else's trouble.
    relay.await_state("polling", SOON).await;
    create_topic(brokers, &ordr.name, 1, &[]).await;
    let records = ordr.await_records(2, SOON).await;
    assert_eq!(ids(&records, "2"), ["2", "4"], "in order");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
