//! Queues of RabbitMQ.

use super::broker::{Broker, TOPIC, World};
use crate::await_that::SOON;
use crate::inbox_run::{COUNT, await_answer, await_intake, await_intake_state};
use crate::private::PrivateRabbitMq;
use crate::relay::Relay;
use crate::server::Version;
use serde_json::{Value, json};

pub(super) struct RabbitBroker(PrivateRabbitMq);

impl RabbitBroker {
    fn access(&self, url: &str) -> String {
        let password = self.0.ca().with_file_name("admin-password");
        std::fs::write(&password, "admin\n").expect("a file");
        format!("url = \"{url}\"\npassword_file = \"{}\"\nheartbeat = \"2s\"\n", password.display())
    }

    fn source_at(&self, url: &str, more: &str) -> String {
        let access = self.access(url);
        format!(
            "[.source]\nkind = \"rabbitmq\"\n[.source.rabbitmq]\n{access}queue = \"{TOPIC}\"\n{more}"
        )
    }

    fn url(&self) -> String {
        format!("amqp://admin@127.0.0.1:{}", self.0.port())
    }

    /// Publishes a message with these properties.
    async fn publish(&self, properties: Value, payload: &str) {
        let body = json!({
            "routing_key": TOPIC, "properties": properties, "payload": payload, "payload_encoding": "string",
        });
        let answer = self.0.api_ok("POST", "/api/exchanges/%2f/amq.default/publish", &body).await;
        assert_eq!(answer["routed"], true, "{answer}");
    }
}

impl Broker for RabbitBroker {
    const KIND: &'static str = "rabbitmq";

    async fn start() -> Self {
        Self(PrivateRabbitMq::start("").await)
    }

    async fn create(&self) {
        self.0.create_queue(TOPIC, "quorum", json!({})).await;
    }

    fn sink(&self) -> String {
        let access = self.access(&self.url());
        format!("[.sink]\nkind = \"rabbitmq\"\n[.sink.rabbitmq]\n{access}")
    }

    fn source(&self, more: &str) -> String {
        self.source_at(&self.url(), more)
    }

    fn source_over_tls(&self) -> String {
        let ca = format!("ca_file = \"{}\"\n", self.0.ca().display());
        self.source_at(&format!("amqps://admin@localhost:{}", self.0.tls_port()), &ca)
    }

    async fn kill(&mut self) {
        self.0.kill().await;
    }

    async fn stop(&mut self) {
        self.0.stop().await;
    }

    async fn restart(&mut self) {
        self.0.restart().await;
    }

    fn freeze(&self) {
        self.0.freeze();
    }

    fn thaw(&self) {
        self.0.thaw();
    }
}

crate::inbox_brokers::acknowledged_messages!(RabbitBroker);

#[tokio::test]
async fn messages_of_other_producers_are_known_by_their_message_id_and_are_dead_without_one() {
    let world = World::<RabbitBroker>::create(Version::Pg18, "rabbit_ids").await;
    let broker = &world.broker;
    let named =
        json!({ "message_id": "m-1", "type": "Paid", "headers": { "key": "k", "count": 7 } });
    broker.publish(named.clone(), "{\"n\": 1}").await;
    broker.publish(named, "{\"n\": 1}").await;
    broker.publish(json!({}), "{\"n\": 2}").await;
    broker.publish(json!({ "message_id": "m-3" }), "{\"n\": 3}").await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "3", &intake).await;
    let first = "select concat_ws(' ', event_id, event_type, aggregate_id, headers ->> 'count', headers ->> 'rabbitmq.queue')
                 from postrider_inbox.jobs where payload ->> 'n' = '1'";
    await_answer(&world.sql, first, "orders//m-1 Paid orders/k 7 orders", &intake).await;
    let dead = "select payload::text || ' ' || error from postrider_inbox.dlq_jobs";
    let dead = world.sql.text(dead).await.expect("a dead message");
    assert!(dead.starts_with("{\"n\": 2} the message has no id"), "{dead}");
    let status = await_intake(&intake, "a repetition", |it| it["repeated_total"] == 1).await;
    assert_eq!((&status["stored_total"], &status["dead_total"]), (&2.into(), &1.into()));
}

#[tokio::test]
async fn a_queue_of_type_stream_is_refused() {
    let world = World::with(RabbitBroker::start().await, Version::Pg17, "rabbit_stream").await;
    world.broker.0.create_queue(TOPIC, "stream", json!({})).await;
    let intake = Relay::spawn_intake(&world.config);
    await_intake_state(&intake, "storing").await;
    world.broker.publish(json!({ "message_id": "m-1" }), "{\"n\": 1}").await;
    intake.await_log("is a stream", SOON).await;
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("0"));
}

#[tokio::test]
async fn a_queue_that_is_deleted_and_declared_again_is_read_again() {
    let world = World::<RabbitBroker>::create(Version::Pg16, "rabbit_deleted").await;
    let intake = Relay::spawn_intake(&world.config);
    world.broker.publish(json!({ "message_id": "m-1" }), "{\"n\": 1}").await;
    await_answer(&world.sql, COUNT, "1", &intake).await;
    world.broker.0.api_ok("DELETE", &format!("/api/queues/%2f/{TOPIC}"), &Value::Null).await;
    let status = await_intake_state(&intake, "broker_down").await;
    assert!(status["reason"].is_string(), "{status}");
    world.broker.create().await;
    world.broker.publish(json!({ "message_id": "m-2" }), "{\"n\": 2}").await;
    await_answer(&world.sql, COUNT, "2", &intake).await;
}
