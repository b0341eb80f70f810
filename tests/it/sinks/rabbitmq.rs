//! The RabbitMQ sink in the conformance test. What only RabbitMQ has is in `rabbitmq_only`.

use super::server::SinkServer;
use crate::private::PrivateRabbitMq;
use crate::topic::ReadRecord;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages that are read with one request. They are gone from the queue if the answer is lost, so it must be quick.
const READ_COUNT: usize = 500;

/// How long messages are read at once.
const READ_MAX: Duration = Duration::from_secs(20);

/// A RabbitMQ whose queues are the destinations, by the default exchange. What is read is taken out of its queue, and
/// kept here.
pub(super) struct RabbitServer {
    pub(super) rabbitmq: Arc<PrivateRabbitMq>,
    version: String,
    read: Mutex<HashMap<String, Vec<ReadRecord>>>,
}

/// A message as the management API gives it.
fn record_of(message: &Value) -> ReadRecord {
    let text = |value: &Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (!value.is_null()).then(|| text.into_bytes())
    };
    let properties = &message["properties"];
    let headers = properties["headers"].as_object().cloned().unwrap_or_default();
    let value = headers.get("null").is_none().then(|| text(&message["payload"])).flatten();
    ReadRecord {
        partition: 0,
        offset: 0,
        key: headers.get("key").and_then(text),
        value,
        timestamp: headers.get("timestamp_in_ms").and_then(Value::as_i64),
        headers: headers.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
    }
}

impl RabbitServer {
    pub(super) fn sink_at(&self, address: &str, more: &str) -> String {
        let password = self.rabbitmq.ca().with_file_name("password");
        std::fs::write(&password, "secret\n").expect("a file");
        format!(
            "[.sink]\nkind = \"rabbitmq\"\n[.sink.rabbitmq]\nurl = \"{address}\"\n\
             password_file = \"{}\"\n{more}",
            password.display()
        )
    }

    pub(super) fn sink_with(&self, port: Option<u16>, more: &str) -> String {
        let port = port.unwrap_or(self.rabbitmq.port());
        self.sink_at(&format!("amqp://relay@127.0.0.1:{port}"), more)
    }

    /// With extra lines for `rabbitmq.conf`.
    pub(super) async fn start_with(config: &str) -> Self {
        Self::of(PrivateRabbitMq::start(config).await).await
    }

    /// Of a node that runs.
    pub(super) async fn of(rabbitmq: PrivateRabbitMq) -> Self {
        let version = rabbitmq.version().await;
        Self { rabbitmq: Arc::new(rabbitmq), version, read: Mutex::default() }
    }

    /// The same server, for another pipeline.
    pub(super) fn neighbour(&self) -> Self {
        let (rabbitmq, version) = (Arc::clone(&self.rabbitmq), self.version.clone());
        Self { rabbitmq, version, read: Mutex::default() }
    }

    /// The server, which no other pipeline has.
    fn own(&mut self) -> &mut PrivateRabbitMq {
        Arc::get_mut(&mut self.rabbitmq).expect("one pipeline")
    }

    /// Takes some messages out of a queue and keeps them. Returns whether there may be more.
    async fn take(&self, queue: &str) -> Result<bool, String> {
        let body =
            json!({ "count": READ_COUNT, "ackmode": "ack_requeue_false", "encoding": "auto" });
        let path = format!("/api/queues/%2f/{queue}/get");
        let (code, answer) = self.rabbitmq.api("POST", &path, &body).await?;
        let messages = answer.as_array().ok_or_else(|| format!("{code} {answer}"))?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.entry(queue.to_owned()).or_default().extend(messages.iter().map(record_of));
        Ok(messages.len() == READ_COUNT)
    }
}

impl SinkServer for RabbitServer {
    const KIND: &'static str = "rabbitmq";

    /// What has no confirm is published again; of each aggregate that is one event.
    const REPEATS_PER_LOSS: usize = 1_000;

    const CLOUD_EVENTS: &'static str = "rabbitmq";

    async fn start() -> Self {
        Self::start_with("").await
    }

    async fn version(&self) -> String {
        format!("RabbitMQ {}", self.version)
    }

    fn port(&self) -> Option<u16> {
        Some(self.rabbitmq.port())
    }

    fn sink(&self, port: Option<u16>) -> String {
        self.sink_with(port, "")
    }

    /// The certificate is for localhost.
    fn sink_over_tls(&self, right: bool) -> String {
        let host = if right { "localhost" } else { "127.0.0.1" };
        let address = format!("amqps://relay@{host}:{}", self.rabbitmq.tls_port());
        self.sink_at(&address, &format!("ca_file = \"{}\"\n", self.rabbitmq.ca().display()))
    }

    async fn create(&self, destination: &str) {
        self.rabbitmq.create_queue(destination, "quorum", json!({})).await;
    }

    async fn delete(&self, destination: &str) {
        let path = format!("/api/queues/%2f/{destination}");
        self.rabbitmq.api_ok("DELETE", &path, &Value::Null).await;
        self.read.lock().unwrap_or_else(PoisonError::into_inner).remove(destination);
    }

    async fn limit(&mut self, _destination: &str, bytes: Option<usize>) -> String {
        let limit =
            bytes.map_or(String::new(), |bytes| format!("message_bytes_max = \"{bytes}B\"\n"));
        self.sink_with(None, &limit)
    }

    async fn read(&self, destination: &str) -> Result<Vec<ReadRecord>, String> {
        // A caller that waits gives a look up after a while, and a message that was read then would be gone.
        let start = Instant::now();
        while self.take(destination).await? && start.elapsed() < READ_MAX {}
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(read.get(destination).cloned().unwrap_or_default())
    }

    async fn kill(&mut self) {
        self.own().kill().await;
    }

    async fn restart(&mut self) {
        self.own().restart().await;
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

super::conformance!(RabbitServer);
