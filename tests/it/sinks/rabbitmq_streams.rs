//! The RabbitMQ sink with `protocol = "stream"` in the conformance test, and what only streams have.

use super::pipeline::{SinkPipeline, state};
use super::server::SinkServer;
use super::stream_reader::read_stream;
use crate::await_that::SOON;
use crate::load::Load;
use crate::private::PrivateRabbitMq;
use crate::proxy::Proxy;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::topic::ReadRecord;
use serde_json::{Value, json};
use std::collections::HashSet;

/// A RabbitMQ whose streams are the destinations.
struct StreamServer {
    rabbitmq: PrivateRabbitMq,
    version: String,
}

impl StreamServer {
    async fn start_with(config: &str) -> Self {
        let rabbitmq = PrivateRabbitMq::start(config).await;
        let version = rabbitmq.version().await;
        Self { rabbitmq, version }
    }

    fn sink_at(&self, address: &str, more: &str) -> String {
        let password = self.rabbitmq.ca().with_file_name("password");
        std::fs::write(&password, "secret\n").expect("a file");
        format!(
            "[.sink]\nkind = \"rabbitmq\"\n[.sink.rabbitmq]\nprotocol = \"stream\"\nurl = \"{address}\"\n\
             password_file = \"{}\"\n{more}",
            password.display()
        )
    }

    fn sink_with(&self, port: Option<u16>, more: &str) -> String {
        let port = port.unwrap_or(self.rabbitmq.stream_ports().0);
        self.sink_at(&format!("rabbitmq-stream://relay@127.0.0.1:{port}"), more)
    }
}

impl SinkServer for StreamServer {
    const KIND: &'static str = "rabbitmq stream";

    /// What is in doubt is sent again with its publishing id, and the server passes over what it has.
    const REPEATS_PER_LOSS: usize = 0;

    const CLOUD_EVENTS: &'static str = "amqp";

    async fn start() -> Self {
        Self::start_with("").await
    }

    async fn version(&self) -> String {
        format!("RabbitMQ {}", self.version)
    }

    /// The leader is the server that is connected to, so a proxy stays between.
    fn port(&self) -> Option<u16> {
        Some(self.rabbitmq.stream_ports().0)
    }

    fn sink(&self, port: Option<u16>) -> String {
        self.sink_with(port, "")
    }

    /// The certificate is for localhost.
    fn sink_over_tls(&self, right: bool) -> String {
        let host = if right { "localhost" } else { "127.0.0.1" };
        let (_, port) = self.rabbitmq.stream_ports();
        let address = format!("rabbitmq-stream+tls://relay@{host}:{port}");
        self.sink_at(&address, &format!("ca_file = \"{}\"\n", self.rabbitmq.ca().display()))
    }

    async fn create(&self, destination: &str) {
        self.rabbitmq.create_queue(destination, "stream", json!({})).await;
    }

    async fn delete(&self, destination: &str) {
        let path = format!("/api/queues/%2f/{destination}");
        self.rabbitmq.api_ok("DELETE", &path, &Value::Null).await;
    }

    async fn limit(&mut self, _destination: &str, bytes: Option<usize>) -> String {
        let limit =
            bytes.map_or(String::new(), |bytes| format!("message_bytes_max = \"{bytes}B\"\n"));
        self.sink_with(None, &limit)
    }

    async fn read(&self, destination: &str) -> Result<Vec<ReadRecord>, String> {
        read_stream(self.rabbitmq.stream_ports().0, destination).await
    }

    async fn kill(&mut self) {
        self.rabbitmq.kill().await;
    }

    async fn restart(&mut self) {
        self.rabbitmq.restart().await;
    }

    fn freeze(&self) {
        self.rabbitmq.freeze();
    }

    fn thaw(&self) {
        self.rabbitmq.thaw();
    }

    async fn allow(&mut self, allowed: bool) {
        self.rabbitmq.allow(allowed).await;
    }
}

super::conformance!(StreamServer);

/// The publishing ids of two streams are from one counter, and each stream has its own order.
#[tokio::test]
async fn streams_are_published_together_and_each_keeps_its_order() {
    let pipeline = SinkPipeline::<StreamServer>::start("several").await;
    for stream in ["a", "b"] {
        pipeline.server.create(stream).await;
    }
    let proxy = Proxy::start(pipeline.server.rabbitmq.stream_ports().0, None);
    let relay = Relay::spawn(&pipeline.with_sink(&pipeline.server.sink(Some(proxy.port))));
    let numbers: Vec<u32> = (1..=2_000).collect();
    let shown: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    for part in numbers.chunks(100) {
        for stream in ["a", "b", "orders"] {
            pipeline.insert(stream, "x", part).await;
        }
        proxy.cut();
    }
    for stream in ["a", "b", "orders"] {
        let records = pipeline.await_records(stream, numbers.len()).await;
        let values: Vec<&str> = records.iter().filter_map(ReadRecord::value_text).collect();
        assert_eq!(values, shown, "each once and in order");
    }
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

/// Each process has a name of its own at the server: under a shared one the server would confirm and drop the events
/// whose publishing id is not above the last one of the other process.
#[tokio::test]
async fn processes_that_publish_to_one_stream_lose_none_of_each_others_events() {
    let server = StreamServer::start().await;
    server.create("orders").await;
    let sink = server.sink(None);
    // Two databases, two pipelines of one name, one stream.
    let first = SinkPipeline::to(server, "pair", &sink).await;
    let other = crate::server::Database::create(crate::server::Version::ALL[0], "pair").await;
    // The databases may be on one server, where names of slots are unique.
    let url = format!("url = \"{}\"", first.url);
    let second = format!(
        "url = \"{}\"\nslot = \"{}\"",
        other.socket_url(),
        crate::server::unique("pair_slot")
    );
    let config = first.config.replace(&url, &second);
    postrider_ok(&config, &["setup", "--create-table"]);
    let sql = crate::server::Client::connect(&other.socket_url()).await.expect("a session");
    let relays = [first.run(), Relay::spawn(&config)];
    for part in 0..5_u32 {
        let numbers: Vec<u32> = (part * 100..part * 100 + 100).collect();
        first.insert("orders", "first", &numbers).await;
        sql.batch(&format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'orders', 'second', 'T', to_json(i) from generate_series({}, {}) i",
            part * 100,
            part * 100 + 99
        ))
        .await;
    }
    let records = first.await_records("orders", 1_000).await;
    for key in ["first", "second"] {
        let of = records.iter().filter(|record| record.key_text() == Some(key));
        let values: HashSet<&str> = of.filter_map(ReadRecord::value_text).collect();
        assert_eq!(values.len(), 500, "of {key}");
    }
    for relay in relays {
        relay.terminate(SOON).await;
    }
}

/// A message larger than a frame closes the connection, so it is not sent.
#[tokio::test]
async fn event_larger_than_a_frame_is_parked_alone() {
    let pipeline = SinkPipeline::<StreamServer>::start("frame").await;
    let relay = pipeline.run();
    pipeline.insert("orders", "b", &[1]).await;
    pipeline.await_values("orders", "b", &["1"]).await;
    pipeline.insert_large("orders", "large", 1_100_000).await;
    pipeline.insert_large("orders", "b", 900_000).await;
    pipeline.insert("orders", "b", &[3]).await;
    let records = pipeline.await_records("orders", 3).await;
    assert_eq!(records[2].value_text(), Some("3"));
    pipeline.await_parked("large waiting").await;
    let shown = postrider_ok(&pipeline.config, &["parked", "list"]);
    assert!(shown.contains("too_large"), "{shown}");
    assert_ne!(state(&relay.status().await.expect("a status")), "broker_down");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn check_names_what_is_no_stream_and_what_may_not_be_written() {
    let pipeline = SinkPipeline::<StreamServer>::start("checks").await;
    let rabbitmq = &pipeline.server.rabbitmq;
    rabbitmq.create_queue("queue", "classic", json!({})).await;
    rabbitmq.create_queue("aged", "stream", json!({ "x-max-age": "1D" })).await;
    let management = format!("http://127.0.0.1:{}", rabbitmq.http_port());
    let sink = pipeline.server.sink_with(None, &format!("management_url = \"{management}\"\n"));
    let config = pipeline.with_sink(&sink);
    let checked = |topic: &str| {
        let topic = format!("topic = \"{topic}\"");
        let config = config.replace("topic = \"{aggregate_type}\"", &topic);
        String::from_utf8_lossy(&postrider(&config, &["check"]).stdout).into_owned()
    };
    let tags = json!({ "password": "secret", "tags": "monitoring" });
    rabbitmq.api_ok("PUT", "/api/users/relay", &tags).await;
    let good = checked("orders");
    assert!(good.contains("stream \"orders\" exists and may be written to"), "{good}");
    assert!(good.contains("a lost connection repeats none"), "{good}");
    let queue = checked("queue");
    assert!(queue.contains("stream \"queue\" does not exist"), "{queue}");
    assert!(queue.contains("--type stream"), "{queue}");
    let aged = checked("aged");
    assert!(aged.contains("age of its messages"), "{aged}");
    let rights = json!({ "configure": "", "write": "", "read": "" });
    rabbitmq.api_ok("PUT", "/api/permissions/%2f/relay", &rights).await;
    let refused = checked("orders");
    assert!(refused.contains("may not write to stream \"orders\""), "{refused}");
    assert!(refused.contains("set_permissions"), "{refused}");
}

#[tokio::test]
async fn stream_without_the_right_to_write_is_named_and_waited_for() {
    let pipeline = SinkPipeline::<StreamServer>::start("denied").await;
    pipeline.server.create("other").await;
    let rabbitmq = &pipeline.server.rabbitmq;
    let rights = |write: &str| json!({ "configure": "", "write": write, "read": "" });
    rabbitmq.api_ok("PUT", "/api/permissions/%2f/relay", &rights("^other$")).await;
    let relay = pipeline.run();
    pipeline.insert("orders", "a", &[1, 2]).await;
    relay.await_log("may not write to stream", SOON).await;
    pipeline.insert("other", "b", &[3]).await;
    rabbitmq.api_ok("PUT", "/api/permissions/%2f/relay", &rights(".*")).await;
    pipeline.await_values("orders", "a", &["1", "2"]).await;
    pipeline.await_values("other", "b", &["3"]).await;
    pipeline.resolved().await;
    assert_eq!(pipeline.parked().await, "");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn port_of_another_protocol_is_named() {
    let pipeline = SinkPipeline::<StreamServer>::start("port").await;
    let amqp = pipeline.server.rabbitmq.port();
    let config = pipeline.with_sink(&pipeline.server.sink(Some(amqp)));
    let output = postrider(&config, &["check"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("is not RabbitMQ's stream protocol") && said.contains("5552"), "{said}");
}

/// Messages of a load that arrive while a stream is deleted and declared again.
#[tokio::test]
async fn stream_that_is_deleted_under_load_loses_nothing_that_comes_later() {
    let pipeline = SinkPipeline::<StreamServer>::start("deleted").await;
    pipeline.server.create("other").await;
    let relay = pipeline.run();
    let load = Load::start(&pipeline.plan(), 1);
    for round in 1..=3 {
        let more = |status: &Value| {
            status["pipelines"][0]["published_total"].as_u64() >= Some(300 * round)
        };
        relay.await_status("more events", SOON, more).await;
        pipeline.insert("other", "x", &[1, 2, 3]).await;
        pipeline.server.delete("other").await;
        pipeline.server.create("other").await;
    }
    let ledger = load.stop().await;
    pipeline.arrived(&ledger).await.assert_balanced(0);
    pipeline.insert("other", "last", &[7, 8]).await;
    pipeline.await_values("other", "last", &["7", "8"]).await;
    pipeline.resolved().await;
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn setup_declares_the_stream_if_asked() {
    let server = StreamServer::start().await;
    let rights = json!({ "configure": ".*", "write": ".*", "read": "" });
    server.rabbitmq.api_ok("PUT", "/api/permissions/%2f/relay", &rights).await;
    let sink = server.sink(None) + "[.sink.rabbitmq.create]\nqueue_type = \"stream\"\n";
    let pipeline = SinkPipeline::to(server, "made", &sink).await;
    let config = pipeline.config.replace("topic = \"{aggregate_type}\"", "topic = \"made\"");
    postrider_ok(&config, &["setup"]);
    let relay = Relay::spawn(&config);
    pipeline.insert("any", "a", &[1]).await;
    pipeline.await_values("made", "a", &["1"]).await;
    relay.terminate(SOON).await;
}
