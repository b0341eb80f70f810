//! Dead letters of a table that keeps its failures.

use super::{count, polling, polling_to};
use crate::await_that::SOON;
use crate::private::{PrivateKafka, topic_that_lacks_a_copy};
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::{Topic, create_topic};
use serde_json::Value;

/// A row whose layout gives it up goes to the dead-letter topic as well: once, with the error, whoever is killed.
#[tokio::test]
async fn row_that_its_layout_gives_up_goes_to_the_dead_letter_topic() {
    let mut pipeline = polling(Version::Pg18, "polldead", "sqlgarden").await;
    let dead = Topic { name: format!("{}-dead", pipeline.topic.name), ..pipeline.topic.clone() };
    create_topic(&dead.brokers, &dead.name, 1, &[]).await;
    let line = format!("parking = {{ dead_topic = \"{}\", ", dead.name);
    pipeline.config = pipeline.config.replace("parking = { ", &line);
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    pipeline
        .sql
        .batch(
            "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', i::text, 'T', to_jsonb(case when i = 2 then (select string_agg(md5(random()::text), '') \
             from generate_series(1, 600)) else 'x' end) from generate_series(1, 3) i",
        )
        .await;
    let relay = pipeline.run();
    pipeline.topic.await_records(2, SOON).await;
    let letters = dead.await_records(1, SOON).await;
    assert_eq!(letters[0].header("dead_code"), Some("too_large"));
    assert_eq!(letters[0].header("dead_topic"), Some(pipeline.topic.name.as_str()));
    assert_eq!(letters[0].header("dead_attempts"), Some("3"));
    assert_eq!(letters[0].key_text(), Some("2"));
    let given_up = "select string_agg(concat_ws(' ', aggregate_id, status, attempt_count), ', ') from outbox_events \
                    where status <> 'PUBLISHED'";
    count(&pipeline, given_up, "2 FAILED 3").await;
    let told = "select string_agg(concat_ws(' ', state, blocks, dead_sent_at is not null), ', ') from postrider.parked";
    count(&pipeline, told, "dead f t").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let relay = pipeline.run();
    relay.await_state("polling", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(dead.await_records(1, SOON).await.len(), 1, "once");
}

/// Each failing claim is a new beginning for the relay; the letter of the one before is most likely on its way then.
#[tokio::test]
async fn rows_that_fail_one_after_the_other_do_not_cost_a_producer_each() {
    let mut pipeline = polling(Version::Pg15, "pollletters", "sqlgarden").await;
    let dead = Topic { name: format!("{}-dead", pipeline.topic.name), ..pipeline.topic.clone() };
    create_topic(&dead.brokers, &dead.name, 1, &[]).await;
    let line = format!("parking = {{ dead_topic = \"{}\", ", dead.name);
    let config = pipeline.config.replace("parking = { ", &line);
    let config = config.replace("attempts_max = 3", "attempts_max = 1");
    pipeline.config = config.replace("poll = { ", "poll = { batch = 1, ");
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let rows = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
        select 'order', i::text, 'T', to_jsonb((select string_agg(md5(random()::text), '') from generate_series(1, 600)))
        from generate_series(1, 30) i";
    pipeline.sql.batch(rows).await;
    let relay = pipeline.run();
    assert_eq!(dead.await_records(30, SOON).await.len(), 30, "once each");
    let sent = "select count(*)::text from postrider.parked where dead_sent_at is not null";
    count(&pipeline, sent, "30").await;
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    let resets: Vec<&str> = metrics.lines().filter(|line| line.contains("side=\"sink\"")).collect();
    assert_eq!(resets, [""; 0], "producers thrown away\n{}", relay.stderr());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Its row in the parked table is the letter's: a try would publish what its own table calls failed.
#[tokio::test]
async fn row_that_has_failed_for_good_is_not_tried_in_the_stead_of_its_letter() {
    let kafka = PrivateKafka::start("").await;
    let mut pipeline = polling_to(&kafka.brokers(), Version::Pg17, "pollletter", "sqlgarden").await;
    let (base, brokers) = (pipeline.topic.name.as_str(), pipeline.topic.brokers.as_str());
    let [orders, dead] = ["order", "dead"]
        .map(|name| format!("{base}.{name}"))
        .map(|name| Topic { name, brokers: brokers.to_owned() });
    create_topic(brokers, &orders.name, 1, &[("max.message.bytes", "3000")]).await;
    let (_late, mut second) = topic_that_lacks_a_copy(&kafka, format!("{base}.late"), 1).await;
    create_topic(brokers, &dead.name, 1, &[]).await;
    let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
    let line = format!("parking = {{ dead_topic = \"{}\", ", dead.name);
    pipeline.config = config.replace("parking = { ", &line);
    // Its third time is the last.
    let rows = "insert into outbox_events (aggregate_type, aggregate_id, event_type, attempt_count, payload)
        select t, t, 'T', 2, to_jsonb(case when t = 'order' then (select string_agg(md5(random()::text), '') \
        from generate_series(1, 600)) else 'x' end) from (values (1, 'order'), (2, 'late')) v(i, t) order by i";
    pipeline.sql.batch(rows).await;
    let relay = pipeline.run();
    // The topic of the second lacks a copy. A try of the first would be due after 0.2 s.
    let waits = |status: &Value| {
        status["pipelines"][0]["lag_seconds"].as_f64().is_some_and(|lag| lag > 2.0)
    };
    relay.await_status("the claim is open", SOON, waits).await;
    alter(&orders, "max.message.bytes", "100000").await;
    second.restart().await;
    assert_eq!(dead.await_records(1, SOON).await.len(), 1);
    let states = "select string_agg(aggregate_id || ' ' || status, ', ' order by aggregate_id) from outbox_events";
    count(&pipeline, states, "late PUBLISHED, order FAILED").await;
    let letter = "select state || ' ' || (dead_sent_at is not null) from postrider.parked";
    count(&pipeline, letter, "dead true").await;
    assert_eq!(orders.read_all().await.len(), 0, "it has failed");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// An event is dead with its first failure, and its claim is still open, since another row of it has no answer. No
/// other session sees the parked row before the claim is committed: its letter is sent then.
#[tokio::test]
async fn letter_of_an_event_that_an_open_claim_has_parked_is_sent_when_the_claim_is_settled() {
    let kafka = PrivateKafka::start("").await;
    let mut pipeline =
        polling_to(&kafka.brokers(), Version::Pg17, "polldeadopen", "postrider").await;
    let dead = Topic { name: format!("{}-dead", pipeline.topic.name), ..pipeline.topic.clone() };
    create_topic(&dead.brokers, &dead.name, 1, &[]).await;
    let line = format!("parking = {{ dead_topic = \"{}\", ", dead.name);
    let config = pipeline.uncompressed().replace("parking = { ", &line);
    pipeline.config = config.replace("attempts_max = 3", "attempts_max = 1");
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let insert = |rows: u32, large: u32| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', i::text, 'T', to_json(case when i = {large} then (select string_agg(md5(random()::text), '') \
             from generate_series(1, 600)) else 'x' end) from generate_series(1, {rows}) i"
        )
    };
    let relay = pipeline.run();
    pipeline.sql.batch(&insert(1, 0)).await;
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    kafka.freeze();
    pipeline.sql.batch(&insert(2, 2)).await;
    let is_dead = |status: &Value| status["pipelines"][0]["parked"]["dead"] == 1;
    relay.await_status("the second is dead in its claim", SOON, is_dead).await;
    count(&pipeline, "select count(*)::text from postrider.parked", "0").await;
    kafka.thaw();
    let letters = dead.await_records(1, SOON).await;
    assert_eq!(letters[0].header("dead_code"), Some("too_large"));
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    let sent = "select count(*)::text from postrider.parked where dead_sent_at is not null";
    count(&pipeline, sent, "1").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
