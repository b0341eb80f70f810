//! The Kafka sink in the conformance test. What only Kafka has is in the modules `kafka_*`.

use super::pipeline::IN_FLIGHT_EVENTS;
use super::server::SinkServer;
use crate::private::{PrivateKafka, free_port};
use crate::server::servers;
use crate::sink_caller::alter;
use crate::topic::{ReadRecord, Topic, create_topic};
use crate::wal_connection::login::make_certificates;
use std::fs;
use tempfile::TempDir;

/// A broker with a plain listener and one with TLS. `FENCED`: the sink publishes in transactions. `EXACT`: exactly
/// once, too.
pub(super) struct KafkaServer<const FENCED: bool = false, const EXACT: bool = false> {
    pub(super) kafka: PrivateKafka,
    tls_port: u16,
    certificates: TempDir,
}

impl<const FENCED: bool, const EXACT: bool> KafkaServer<FENCED, EXACT> {
    /// The keys of `[.sink]` that follow `kind`.
    fn promise() -> &'static str {
        match (FENCED, EXACT) {
            (_, true) => "delivery = \"exactly-once\"\n",
            (true, false) => "fencing = \"transactional\"\n",
            (false, false) => "",
        }
    }

    pub(super) fn topic(&self, name: &str) -> Topic {
        Topic { brokers: self.kafka.brokers(), name: name.to_owned() }
    }
}

impl<const FENCED: bool, const EXACT: bool> SinkServer for KafkaServer<FENCED, EXACT> {
    const KIND: &'static str = "kafka";

    /// Where a broker's answer leaves it open what became of a batch, the pipeline starts again from its cursor.
    const REPEATS_PER_LOSS: usize = if EXACT { 0 } else { 10_000 + IN_FLIGHT_EVENTS };

    const EXACTLY_ONCE: bool = EXACT;

    /// A producer without transactions has no fence: librdkafka's threads send what they have, before any code of the
    /// sink runs. `docs/guarantees/order.md` has the window.
    const FENCES_FROZEN_PROCESS: bool = FENCED;

    async fn start() -> Self {
        let certificates = TempDir::new().expect("a directory");
        make_certificates(certificates.path());
        let file = |name: &str| certificates.path().join(name);
        let pem = |name: &str| fs::read_to_string(file(name)).expect("a file");
        fs::write(file("server.pem"), pem("server.key") + &pem("server.crt")).expect("a file");
        let tls_port = free_port();
        let kafka = PrivateKafka::start_on(|port, controller| {
            let listeners = format!(
                "PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port},CONTROLLER://127.0.0.1:{controller}"
            );
            format!(
                "listeners={listeners}\nadvertised.listeners={listeners}\n\
                 listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT\n\
                 ssl.keystore.type=PEM\nssl.keystore.location={}\n\
                 authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
                 allow.everyone.if.no.acl.found=true\n",
                file("server.pem").display()
            )
        })
        .await;
        Self { kafka, tls_port, certificates }
    }

    async fn version(&self) -> String {
        // The directory of its jars is named by the version that was fetched.
        let jars = servers().get("KAFKA_LIB");
        let version = jars.rsplit('/').next().unwrap_or_default().replace('-', " ");
        let promise = match (FENCED, EXACT) {
            (_, true) => ", exactly once",
            (true, false) => ", with fencing",
            (false, false) => "",
        };
        version + promise
    }

    /// Clients go on to the advertised address.
    fn port(&self) -> Option<u16> {
        None
    }

    fn sink(&self, _port: Option<u16>) -> String {
        let promise = Self::promise();
        format!("[.sink]\nkind = \"kafka\"\n{promise}brokers = \"{}\"\n", self.kafka.brokers())
    }

    fn sink_over_tls(&self, right: bool) -> String {
        let host = if right { "127.0.0.1" } else { "localhost" };
        format!(
            "[.sink]\nkind = \"kafka\"\n{}brokers = \"{host}:{}\"\n[.sink.properties]\n\
             \"security.protocol\" = \"SSL\"\n\"ssl.ca.location\" = \"{}\"\n",
            Self::promise(),
            self.tls_port,
            self.certificates.path().join("root.crt").display()
        )
    }

    async fn create(&self, destination: &str) {
        create_topic(&self.kafka.brokers(), destination, 1, &[]).await;
    }

    async fn delete(&self, destination: &str) {
        self.topic(destination).delete().await;
    }

    async fn limit(&mut self, destination: &str, bytes: Option<usize>) -> String {
        let bytes = bytes.unwrap_or(1_000_000).to_string();
        alter(&self.topic(destination), "max.message.bytes", &bytes).await;
        self.sink(None)
    }

    async fn read(&self, destination: &str) -> Result<Vec<ReadRecord>, String> {
        let topic = self.topic(destination);
        // Fencing alone asks nothing of consumers.
        Ok(if EXACT { topic.read_all().await } else { topic.read_uncommitted().await })
    }

    async fn kill(&mut self) {
        self.kafka.kill().await;
    }

    async fn restart(&mut self) {
        self.kafka.restart().await;
    }

    fn freeze(&self) {
        self.kafka.freeze();
    }

    fn thaw(&self) {
        self.kafka.thaw();
    }

    async fn allow(&mut self, allowed: bool) {
        self.kafka.deny("orders", !allowed);
    }
}

super::conformance!(KafkaServer);

mod kafka_exactly_once {
    crate::sinks::conformance!(super::KafkaServer<true, true>);
}

mod kafka_with_fencing {
    crate::sinks::conformance!(super::KafkaServer<true>);
}
