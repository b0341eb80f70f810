//! Streams of NATS JetStream.

use super::broker::{Broker, TOPIC, World};
use crate::await_that::await_that;
use crate::inbox_run::{COUNT, await_answer, await_intake, await_intake_state};
use crate::private::PrivateNats;
use crate::relay::Relay;
use crate::server::Version;
use serde_json::{Value, json};

const STREAM: &str = "EVENTS";

pub(super) struct NatsBroker(PrivateNats);

impl NatsBroker {
    fn access(&self, url: &str) -> String {
        let password = self.0.ca().with_file_name("admin-password");
        std::fs::write(&password, "admin\n").expect("a file");
        format!(
            "url = \"{url}\"\nstream = \"{STREAM}\"\nuser = \"admin\"\npassword_file = \"{}\"\n",
            password.display()
        )
    }

    fn source_at(&self, url: &str, more: &str) -> String {
        let access = self.access(url);
        format!("[.source]\nkind = \"nats\"\n[.source.nats]\n{access}ack_wait = \"3s\"\n{more}")
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.0.port())
    }

    /// The answer to a request, which must succeed.
    async fn ok(&self, subject: &str, body: Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.0.admin(subject, &body).await.expect("an answer");
        assert!(!answer.contains("\"error\""), "{subject} {body}: {answer}");
        serde_json::from_str(&answer).unwrap_or(Value::Null)
    }

    async fn publish(&self, numbers: std::ops::RangeInclusive<u32>) {
        for number in numbers {
            self.ok(TOPIC, json!({ "n": number })).await;
        }
    }
}

impl Broker for NatsBroker {
    const KIND: &'static str = "nats";

    async fn start() -> Self {
        Self(PrivateNats::start("").await)
    }

    async fn create(&self) {
        let body = json!({ "name": STREAM, "subjects": [TOPIC] });
        self.ok(&format!("$JS.API.STREAM.CREATE.{STREAM}"), body).await;
    }

    fn sink(&self) -> String {
        let access = self.access(&self.url());
        format!("[.sink]\nkind = \"nats\"\n[.sink.nats]\n{access}ack_timeout = \"3s\"\n")
    }

    fn source(&self, more: &str) -> String {
        self.source_at(&self.url(), more)
    }

    fn source_over_tls(&self) -> String {
        let ca = format!("ca_file = \"{}\"\n", self.0.ca().display());
        self.source_at(&format!("tls://localhost:{}", self.0.tls_port()), &ca)
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

crate::inbox_brokers::acknowledged_messages!(NatsBroker);

#[tokio::test]
async fn messages_without_an_id_are_known_by_their_place_and_those_of_a_new_stream_are_others() {
    let world = World::<NatsBroker>::create(Version::Pg18, "nats_places").await;
    world.broker.publish(1..=5).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "5", &intake).await;
    let shown =
        "select string_agg(headers ->> 'nats.sequence', ' ' order by seq) from postrider_inbox.jobs
                 where source = 'EVENTS' and headers ->> 'nats.subject' = 'orders'";
    await_answer(&world.sql, shown, "1 2 3 4 5", &intake).await;
    // Another consumer reads the same messages: they are known.
    drop(intake);
    let other = world.with_source(&world.broker.source("consumer = \"other\"\n"));
    let other = Relay::spawn_intake(&other);
    await_intake(&other, "five repetitions", |it| it["repeated_total"] == 5).await;
    // The stream is created again, with the same numbers.
    world.broker.ok(&format!("$JS.API.STREAM.DELETE.{STREAM}"), Value::Null).await;
    world.broker.create().await;
    world.broker.publish(1..=3).await;
    await_answer(&world.sql, COUNT, "8", &other).await;
}

#[tokio::test]
async fn messages_that_the_stream_has_deleted_before_they_were_delivered_are_counted_as_lost() {
    let world = World::<NatsBroker>::create(Version::Pg17, "nats_lost").await;
    world.broker.publish(1..=3).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "3", &intake).await;
    assert_eq!(intake.terminate(crate::await_that::SOON).await.code, Some(0));
    world.broker.publish(4..=10).await;
    // A limit, and no purge, which moves the consumers too.
    let limited = json!({ "name": STREAM, "subjects": [TOPIC], "max_msgs": 2 });
    world.broker.ok(&format!("$JS.API.STREAM.UPDATE.{STREAM}"), limited).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "5", &intake).await;
    let status = await_intake(&intake, "lost messages", |it| it["lost_total"] == 5).await;
    assert_eq!(status["state"], "storing");
    intake.await_log("before they were acknowledged", crate::await_that::SOON).await;
    let (_, metrics) = intake.get("/metrics").await.expect("metrics");
    let lost = "postrider_intake_messages_total{intake=\"jobs\",outcome=\"lost\"} 5";
    assert!(metrics.contains(lost), "{metrics}");
}

/// A process has messages that it can't store, and is killed; the stream deletes some before they come again.
#[tokio::test]
async fn messages_that_are_deleted_before_they_are_acknowledged_are_counted_as_lost() {
    let world = World::<NatsBroker>::create(Version::Pg18, "nats_lost_later").await;
    world.broker.publish(1..=3).await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "3", &intake).await;
    world.sql.batch("begin; lock table postrider_inbox.jobs in share mode").await;
    world.broker.publish(4..=10).await;
    let info = format!("$JS.API.CONSUMER.INFO.{STREAM}.postrider-inbox-jobs");
    await_that("a message to be delivered and not stored", crate::await_that::SOON, || async {
        let info = world.broker.ok(&info, Value::Null).await;
        if info["num_ack_pending"].as_u64() > Some(0) { Ok(()) } else { Err(info.to_string()) }
    })
    .await;
    drop(intake.kill().await);
    let limited = json!({ "name": STREAM, "subjects": [TOPIC], "max_msgs": 2 });
    world.broker.ok(&format!("$JS.API.STREAM.UPDATE.{STREAM}"), limited).await;
    world.sql.batch("rollback").await;
    let intake = Relay::spawn_intake(&world.config);
    await_answer(&world.sql, COUNT, "5", &intake).await;
    // Message 4 was in flight: the server counts a message as acknowledged that is deleted in flight.
    await_intake(&intake, "lost messages", |it| {
        (4..=5).contains(&it["lost_total"].as_u64().unwrap())
    })
    .await;
}

#[tokio::test]
async fn a_consumer_that_gives_messages_up_is_refused() {
    let world = World::<NatsBroker>::create(Version::Pg16, "nats_consumer").await;
    let config = json!({ "durable_name": "mine", "ack_policy": "explicit", "max_deliver": 3 });
    let create = format!("$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.mine");
    world.broker.ok(&create, json!({ "stream_name": STREAM, "config": config })).await;
    world.broker.publish(1..=1).await;
    let source = world.broker.source("consumer = \"mine\"\n");
    let intake = Relay::spawn_intake(&world.with_source(&source));
    let status = await_intake_state(&intake, "broker_down").await;
    assert!(status["reason"].to_string().contains("max_deliver"), "{status}");
    assert!(status["hint"].to_string().contains("nats consumer edit EVENTS mine"), "{status}");
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("0"));
    world.broker.ok(&format!("$JS.API.CONSUMER.DELETE.{STREAM}.mine"), Value::Null).await;
    await_answer(&world.sql, COUNT, "1", &intake).await;
}

#[tokio::test]
async fn only_the_subjects_that_are_configured_are_read_from_where_the_consumer_begins() {
    let world = World::with(NatsBroker::start().await, Version::Pg15, "nats_subjects").await;
    let body = json!({ "name": STREAM, "subjects": ["a.>", "b.>", "c"] });
    world.broker.ok(&format!("$JS.API.STREAM.CREATE.{STREAM}"), body).await;
    world.broker.ok("a.1", json!({ "n": 1 })).await;
    let source = world.broker.source("subjects = \"a.>, c\"\nstart = \"latest\"\n");
    let intake = Relay::spawn_intake(&world.with_source(&source));
    await_intake_state(&intake, "storing").await;
    for (subject, number) in [("b.1", 2), ("a.2", 3), ("c", 4)] {
        world.broker.ok(subject, json!({ "n": number })).await;
    }
    await_answer(&world.sql, COUNT, "2", &intake).await;
    let numbers = "select string_agg(payload ->> 'n', ' ' order by seq) from postrider_inbox.jobs";
    assert_eq!(world.sql.text(numbers).await.as_deref(), Some("3 4"));
}
