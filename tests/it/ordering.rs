//! `flow.ordering = "strict"`: one event of an aggregate is on its way to the broker at a time.

use crate::await_that::{SOON, await_that};
use crate::parking::{Scene, assert_in_order};
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, topic_that_lacks_a_copy};
use crate::server::Version;
use crate::sink_caller::alter;
use crate::stream::published;
use crate::topic::{Topic, client_config, create_topic};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::Value;

/// The configuration with this ordering.
fn ordered(pipeline: &Pipeline, ordering: &str) -> String {
    let (config, name) = (&pipeline.config, &pipeline.name);
    format!("{config}\n[pipelines.{name}.flow]\nordering = \"{ordering}\"\n")
}

fn in_flight(status: &Value) -> u64 {
    status["pipelines"][0]["in_flight_events"].as_u64().unwrap_or(0)
}

/// How long nothing was published, in the status. Longer than the relay needs to hand over what it has read.
const QUIET_SECONDS: f64 = 2.0;

#[tokio::test]
async fn strict_ordering_has_one_event_of_each_aggregate_on_its_way() {
    for (ordering, on_their_way) in [("strict", 2), ("pipelined", 5)] {
        let broker = PrivateKafka::start("").await;
        let mut pipeline = Pipeline::to_broker(Version::Pg17, &broker.brokers(), "strictone").await;
        pipeline.config = ordered(&pipeline, ordering);
        let relay = pipeline.run();
        // From here on the partitions know the producer, and take more than a first record.
        let rows = |aggregates: &[&str]| {
            let row = |id: &&str| format!("('order', '{id}', 'T', '1')");
            let rows: Vec<String> = aggregates.iter().map(row).collect();
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values {}",
                rows.join(", ")
            )
        };
        pipeline.sql.batch(&rows(&["a", "b"])).await;
        pipeline.topic.await_records(2, SOON).await;
        broker.freeze();
        pipeline.sql.batch(&rows(&["a", "b", "a", "b", "a"])).await;
        let all = |status: &Value| {
            let lag = status["pipelines"][0]["lag_seconds"].as_f64().unwrap_or(0.0);
            lag > QUIET_SECONDS && in_flight(status) >= on_their_way
        };
        let status = relay.await_status("all that may be on its way", SOON, all).await;
        assert_eq!(in_flight(&status), on_their_way, "{ordering}: {status}");
        broker.thaw();
        let records = pipeline.topic.await_records(7, SOON).await;
        let of = |key: &str| -> Vec<u64> {
            let of_key = records.iter().filter(|record| record.key_text() == Some(key));
            of_key
                .map(|record| record.header("id").expect("an id").parse().expect("a number"))
                .collect()
        };
        assert_eq!((of("a"), of("b")), (vec![1, 3, 5, 7], vec![2, 4, 6]), "{ordering}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// An event that the broker refuses ends the wait of the next one of its aggregate, which is parked behind it.
#[tokio::test]
async fn strict_ordering_is_kept_and_goes_on_where_the_broker_refuses_an_event() {
    let mut scene = Scene::set(Version::Pg17, "strictref").await;
    let name = &scene.pipeline.name;
    scene.config = format!("{}\n[pipelines.{name}.flow]\nordering = \"strict\"\n", scene.config);
    let relay = scene.run();
    scene.insert(&["a", "b", "!a", "a", "b", "a", "b", "!b", "c", "b"]).await;
    scene.await_last("c", 9).await;
    scene.await_rows("a waiting, a behind, a behind, b waiting, b behind").await;
    scene.raise_the_limit().await;
    scene.await_rows("").await;
    scene.insert(&["a", "b", "a", "b"]).await;
    scene.await_last("a", 13).await;
    scene.await_last("b", 14).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let delivered = scene.delivered().await;
    assert_in_order(&delivered["a"], &[1, 3, 4, 6, 11, 13]);
    assert_in_order(&delivered["b"], &[2, 5, 7, 8, 10, 12, 14]);
    let overtaken = "select count(*)::text from postrider.parked where overtaken_lsn is not null";
    assert_eq!(scene.pipeline.sql.text(overtaken).await.as_deref(), Some("0"));
}

/// An event waits for its topic, and a later one of its aggregate is published to another topic. When everything in
/// flight is sent again, since the broker refuses a third one, the first is published without a position: a consumer
/// that passes over lower positions would pass over it.
#[tokio::test]
async fn event_that_a_later_one_has_overtaken_is_published_without_a_position() {
    let kafka = PrivateKafka::start("").await;
    let brokers = kafka.brokers();
    let mut pipeline =
        Pipeline::in_database(Version::Pg17, &brokers, "overtaken", "postrider", "").await;
    let base = pipeline.topic.name.clone();
    let (late, _second) = topic_that_lacks_a_copy(&kafka, format!("{base}.late"), 1).await;
    alter(&late, "min.insync.replicas", "1").await;
    let soon = Topic { name: format!("{base}.soon"), brokers };
    create_topic(&soon.brokers, &soon.name, 1, &[]).await;
    let (before, now) =
        (format!("topic = \"{base}\""), format!("topic = \"{base}.{{event_type}}\""));
    assert!(pipeline.config.contains(&before), "{}", pipeline.config);
    pipeline.config = pipeline.config.replace(&before, &now);
    let relay = pipeline.run();
    // The partition knows the producer: what follows does not wait for a first record.
    let insert =
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at) values";
    let first = "('order', 'old', 'late', '1', now()), ('order', 'a', 'late', '2', now())";
    pipeline.sql.batch(&format!("{insert} {first}")).await;
    relay.await_status("the first two", SOON, |status| published(status) == 2).await;
    alter(&late, "min.insync.replicas", "2").await;
    takes_nothing(&late).await;
    let rows = "('order', 'old', 'late', '3', now() - interval '1 day'), \
                ('order', 'a', 'late', '4', now()), ('order', 'a', 'soon', '5', now())";
    pipeline.sql.batch(&format!("{insert} {rows}")).await;
    let overtaking = soon.await_records(1, SOON).await;
    assert!(overtaking[0].header("position").is_some());
    relay.await_status("its answer", SOON, |status| published(status) == 3).await;
    // In place of the setting that it has: it takes records from now on, and none that is a day old.
    alter(&late, "message.timestamp.before.max.ms", "3600000").await;
    let position = await_that("the event that was overtaken", SOON, || async {
        let records = late.read_all().await;
        let record = records.iter().find(|record| record.value_text() == Some("4"));
        record.map(|record| record.header("position").map(str::to_owned)).ok_or(records.len())
    })
    .await;
    assert_eq!(position, None);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Waits until the topic takes no records.
async fn takes_nothing(topic: &Topic) {
    let config = &mut client_config(&topic.brokers);
    let config = config.set("acks", "all").set("retries", "0");
    let producer: FutureProducer = config.create().expect("a producer");
    await_that("the topic to take nothing", SOON, || async {
        let record = FutureRecord::to(&topic.name).key("another").payload("0");
        producer.send(record, SOON).await.err().map(drop).ok_or("it takes a record")
    })
    .await;
}
