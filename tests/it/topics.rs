//! Topics that are not there: told with the command that makes them, and all goes on when they are.

use crate::answers::{Answer, answer};
use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::relay::Relay;
use crate::server::Version;
use crate::topic::{Topic, create_topic};
use std::collections::BTreeSet;

/// Waits until the relay says that this topic is missing, and what makes it.
async fn told_missing(relay: &Relay, topic: &str) -> Answer {
    let status = relay.await_state("broker_down", 2 * SOON).await;
    let pipeline = &status["pipelines"][0];
    let reason = pipeline["reason"].as_str().unwrap_or_default();
    let hint = pipeline["hint"].as_str().unwrap_or_default();
    assert!(reason.contains(topic) && reason.contains("does not exist"), "{pipeline}");
    assert!(hint.contains(&format!("--create --topic {topic}")), "{pipeline}");
    let (ready, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!(ready, 503);
    assert!(why.contains("broker_down") && why.contains(topic), "{why}");
    Answer::waits(&status)
}

#[tokio::test]
async fn missing_topic_is_told_and_events_wait_until_it_is_created() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "notopic").await;
        let name = format!("{}.late", pipeline.topic.name);
        let config = pipeline.config.replace(&pipeline.topic.name, &name);
        pipeline.insert(10).await;
        let before = pipeline.confirmed_lsn().await;
        let relay = Relay::spawn(&config);
        answer("topic missing", &pipeline, told_missing(&relay, &name).await);
        assert_eq!(pipeline.confirmed_lsn().await, before, "nothing is confirmed");
        create_topic(&pipeline.topic.brokers, &name, 4, &[]).await;
        let topic = Topic { brokers: pipeline.topic.brokers.clone(), name };
        assert_eq!(topic.await_records(10, SOON).await.len(), 10);
        relay.await_state("streaming", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// One topic of many is missing: the stream is one, so what comes behind its event waits, and nothing is passed over.
#[tokio::test]
async fn one_missing_topic_of_two_holds_the_stream_and_passes_nothing_over() {
    let pipeline = Pipeline::shared(Version::Pg18, "twotopics").await;
    let (base, brokers) = (&pipeline.topic.name, &pipeline.topic.brokers);
    let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
    create_topic(brokers, &format!("{base}.order"), 4, &[]).await;
    pipeline.insert(5).await;
    pipeline
        .sql(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('invoice', '1', 'T', '0')",
        )
        .await;
    pipeline.insert(5).await;
    let relay = Relay::spawn(&config);
    told_missing(&relay, &format!("{base}.invoice")).await;
    let topic = |kind: &str| Topic { brokers: brokers.clone(), name: format!("{base}.{kind}") };
    assert_eq!(topic("order").await_records(5, SOON).await.len(), 5);
    create_topic(brokers, &format!("{base}.invoice"), 1, &[]).await;
    assert_eq!(topic("invoice").await_records(1, SOON).await.len(), 1);
    assert_eq!(topic("order").await_records(10, SOON).await.len(), 10);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What was in the deleted topic is gone with it; what was not yet acknowledged comes.
#[tokio::test]
async fn topic_deleted_while_running_is_told_and_goes_on_when_it_is_made_again() {
    let pipeline = Pipeline::shared(Version::Pg17, "deleted").await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    let (name, brokers) = (&pipeline.topic.name, &pipeline.topic.brokers);
    pipeline.topic.delete().await;
    pipeline
        .sql(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', 'a', 'T', to_json(i) from generate_series(101, 120) i",
        )
        .await;
    answer("topic deleted while running", &pipeline, told_missing(&relay, name).await);
    create_topic(brokers, name, 8, &[]).await;
    let records = pipeline.topic.await_records(20, 2 * SOON).await;
    let values: Vec<u64> =
        records.iter().filter_map(|r| r.value_text()?.parse().ok()).filter(|n| *n > 100).collect();
    let distinct: BTreeSet<u64> = values.iter().copied().collect();
    assert_eq!(distinct, (101..=120).collect(), "none is lost");
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
