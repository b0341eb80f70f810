//! Where the events of a demo go: Kafka, a server process, or a receiver in this process.

use super::broker::Broker;
use super::consumers::{BrokerConsumer, WebhookReceiver};
use super::error::DemoError;
use super::kind::DemoSink;
use super::ledger::SharedLedger;
use super::options::DemoOptions;
use super::reader::{self, TopicReader};
use super::server::BrokerServer;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The topic: a subject, a routing key, the key of a stream, or a path.
const TOPIC: &str = "order";

/// The variable in the environment of the relay that has the brokers of Kafka, so that they need no quoting.
pub(super) const BROKERS_VARIABLE: &str = "POSTRIDER_DEMO_SINK";

/// The broker of a demo, which ends when the value is dropped.
pub(super) enum Destination {
    /// librdkafka's mock, or the user's own brokers.
    Kafka(Broker),
    /// A process.
    Server(BrokerServer),
    /// A receiver that enters each request in the ledger.
    Receiver(WebhookReceiver),
}

impl Destination {
    /// Starts it: `program`, which [`broker_program`] has found, or what needs none.
    ///
    /// [`broker_program`]: super::binaries::broker_program
    pub(super) async fn open(
        options: &DemoOptions,
        name: &str,
        ledger: &SharedLedger,
        program: Option<PathBuf>,
    ) -> Result<Self, DemoError> {
        if let Some(program) = program {
            return BrokerServer::start(options.sink, program, TOPIC).await.map(Self::Server);
        }
        match options.sink {
            DemoSink::Kafka
            | DemoSink::Nats
            | DemoSink::RabbitMq
            | DemoSink::Redis
            | DemoSink::Valkey => Broker::open(options, name).await.map(Self::Kafka),
            DemoSink::Http => {
                let ledger = ledger.clone();
                let receiver = WebhookReceiver::start(move |request| {
                    reader::enter(&ledger, &request.key, &request.body, Instant::now());
                });
                receiver.map(Self::Receiver).map_err(DemoError::Port)
            }
        }
    }

    /// The broker in one line.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Kafka(broker) => broker.describe(),
            Self::Server(server) => server.describe(),
            Self::Receiver(receiver) => {
                format!("HTTP receiver in this process, at {}", receiver.address)
            }
        }
    }

    /// `route.topic`.
    pub(super) fn topic(&self) -> &str {
        match self {
            Self::Kafka(broker) => &broker.topic,
            Self::Server(_) | Self::Receiver(_) => TOPIC,
        }
    }

    /// The value of [`BROKERS_VARIABLE`].
    pub(super) fn brokers(&self) -> String {
        match self {
            Self::Kafka(broker) => broker.brokers.clone(),
            Self::Server(_) | Self::Receiver(_) => String::new(),
        }
    }

    /// The lines of the relay's configuration below `[pipelines.NAME.sink]`.
    pub(super) fn sink_config(&self, pipeline: &str) -> String {
        match self {
            Self::Kafka(_) => {
                format!("kind = \"kafka\"\nbrokers = \"${{{BROKERS_VARIABLE}}}\"\n")
            }
            Self::Server(server) => server.sink_config(pipeline),
            Self::Receiver(receiver) => format!(
                "kind = \"http\"\n\n[pipelines.{pipeline}.sink.http]\nurl = \"http://{}\"\n",
                receiver.address
            ),
        }
    }

    /// Starts a reader of everything that is published; `None` if the destination itself enters it in the ledger.
    pub(super) fn read(&self, ledger: &SharedLedger) -> Result<Option<TopicReader>, DemoError> {
        match self {
            Self::Kafka(broker) => TopicReader::of_kafka(broker, ledger).map(Some),
            Self::Server(server) => {
                let consumer = BrokerConsumer::new(server.login.clone(), server.place());
                TopicReader::of_consumer(consumer, ledger).map(Some)
            }
            Self::Receiver(_) => Ok(None),
        }
    }

    /// Answers nothing for this time, while connections stay open; zero ends that. Called repeatedly with the time that
    /// is left.
    pub(super) fn freeze(&self, left: Duration) -> Result<(), DemoError> {
        match self {
            // All answers are due at the same time, the end of the freeze.
            Self::Kafka(broker) => broker.answer_after(left),
            Self::Server(server) if left.is_zero() => return server.thaw(),
            Self::Server(server) => return server.freeze(),
            Self::Receiver(receiver) => receiver.freeze(left),
        }
        Ok(())
    }

    /// kill -9 and a start on the same data; of a receiver, the end of all its connections without an answer.
    pub(super) fn kill_and_restart(&mut self) -> Result<(), DemoError> {
        match self {
            Self::Kafka(_) => Ok(()),
            Self::Server(server) => server.kill_and_restart(),
            Self::Receiver(receiver) => {
                receiver.close_connections();
                Ok(())
            }
        }
    }

    /// An error if a server has ended unexpectedly.
    pub(super) fn check(&mut self) -> Result<(), DemoError> {
        match self {
            Self::Server(server) => {
                if server.is_running() {
                    Ok(())
                } else {
                    Err(server.ended())
                }
            }
            Self::Kafka(_) | Self::Receiver(_) => Ok(()),
        }
    }

    /// Ends it, or deletes the topic in the user's Kafka and returns a message.
    pub(super) async fn close(self) -> Result<Option<String>, DemoError> {
        match self {
            Self::Kafka(broker) => broker.close().await,
            Self::Server(_) | Self::Receiver(_) => Ok(None),
        }
    }
}
