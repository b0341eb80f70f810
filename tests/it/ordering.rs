//! `flow.ordering = "strict"`: one event of an aggregate is on its way to the broker at a time.

use crate::await_that::SOON;
use crate::parking::{Scene, assert_in_order};
use crate::pipeline::Pipeline;
use crate::private::PrivateKafka;
use crate::server::Version;
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
