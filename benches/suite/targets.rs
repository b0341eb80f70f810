//! What phase `sinks` publishes to: each sink with its broker, its destination, and the way back.

use crate::brokers::{BrokerKind, BrokerProcess};
use crate::consumers::{BrokerConsumer, ConsumedMessage, WebhookReceiver};
use crate::contender::{Job, setup_sink};
use crate::latency::{Came, Reader};
use crate::servers::Servers;
use crate::topic::{Content, Seen, Topic, ascii, number};
use serde::Deserialize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pause between two looks for a message.
const POLL: Duration = Duration::from_millis(50);
/// After so long without a message, the destination has no more.
const SILENCE: Duration = Duration::from_secs(3);

/// A row of the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Kafka,
    Nats,
    Redis,
    Quorum,
    Classic,
    /// With so many events of a request.
    Http(usize),
}

impl Target {
    pub(crate) const ALL: [Self; 7] = [
        Self::Kafka,
        Self::Nats,
        Self::Redis,
        Self::Quorum,
        Self::Classic,
        Self::Http(1),
        Self::Http(100),
    ];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Kafka => "Kafka",
            Self::Nats => "NATS JetStream",
            Self::Redis => "Redis",
            Self::Quorum => "RabbitMQ, quorum queue",
            Self::Classic => "RabbitMQ, classic queue",
            Self::Http(1) => "HTTP",
            Self::Http(_) => "HTTP, batch = 100",
        }
    }

    /// A name for slots, topics and files.
    pub(crate) const fn short(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Quorum => "quorum",
            Self::Classic => "classic",
            Self::Http(1) => "http",
            Self::Http(_) => "http_batch",
        }
    }

    /// The value for `--sinks`.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Quorum | Self::Classic => "rabbitmq",
            Self::Http(_) => "http",
        }
    }

    /// The server that the bench starts for it.
    pub(crate) const fn broker(self) -> Option<BrokerKind> {
        match self {
            Self::Kafka | Self::Http(_) => None,
            Self::Nats => Some(BrokerKind::Nats),
            Self::Redis => Some(BrokerKind::Redis),
            Self::Quorum | Self::Classic => Some(BrokerKind::RabbitMq),
        }
    }
}

/// One destination of one run, empty at first.
pub(crate) enum Place<'b> {
    Kafka(Topic),
    Broker { broker: &'b BrokerProcess, name: String },
    Receiver { receiver: WebhookReceiver, got: Got },
}

/// What a receiver got, as (number, aggregate) in order of arrival; and who else looks at the numbers.
#[derive(Clone, Default)]
pub(crate) struct Got {
    seen: Arc<Mutex<Vec<(u32, u32)>>>,
    came: Option<Came>,
}

/// An element of a batch.
#[derive(Deserialize)]
struct Element {
    key: String,
    payload: Numbered,
}

#[derive(Deserialize)]
struct Numbered {
    n: u32,
}

impl Got {
    fn take(&self, key: &[u8], body: &[u8]) {
        if body.first() == Some(&b'[') {
            let elements: Vec<Element> = serde_json::from_slice(body).expect("a batch");
            for element in elements {
                self.note(element.payload.n, ascii(element.key.as_bytes()));
            }
        } else {
            self.note(number(body), ascii(key));
        }
    }

    fn note(&self, number: u32, aggregate: u32) {
        self.seen.lock().expect("no panic").push((number, aggregate));
        if let Some(came) = &self.came {
            came.note(number);
        }
    }
}

impl<'b> Place<'b> {
    /// Creates the destination with the name of the job's topic, and completes the job.
    pub(crate) fn make(
        servers: &Servers,
        target: Target,
        broker: Option<&'b BrokerProcess>,
        job: &mut Job<'_>,
        came: Option<Came>,
    ) -> Self {
        if let Some(broker) = broker {
            let name = job.topic.clone();
            let queue_type = if target == Target::Classic { "classic" } else { "quorum" };
            job.sink = broker.sink(&name, queue_type);
            job.broker_pid = broker.pid();
            setup_sink(job);
            return Self::Broker { broker, name };
        }
        let Target::Http(batch) = target else {
            job.sink = format!("kind = \"kafka\"\nbrokers = \"{}\"\n", servers.brokers);
            job.broker_pid = servers.broker_pid;
            return Self::Kafka(Topic::make(servers, &job.topic, 8));
        };
        let got = Got { came, ..Got::default() };
        let taker = got.clone();
        let receiver = WebhookReceiver::start(move |it| taker.take(&it.key, &it.body));
        let receiver = receiver.expect("a receiver");
        job.sink = format!(
            "kind = \"http\"\n[pipelines.SLOT.sink.http]\nurl = \"http://{}\"\nbatch = {batch}\n",
            receiver.address
        );
        // It is in the process of the bench.
        job.broker_pid = 0;
        Self::Receiver { receiver, got }
    }

    /// Everything that was published.
    pub(crate) fn read(&self, rows: usize) -> Content {
        match self {
            Self::Kafka(topic) => topic.read(),
            Self::Broker { broker, name } => {
                let mut consumer =
                    BrokerConsumer::new(broker.login.clone(), broker.place(name, false));
                let (mut seen, mut since) = (Vec::with_capacity(rows), Instant::now());
                // Also after the last one, since a repeated message would be behind it.
                while since.elapsed() < SILENCE {
                    let messages = consumer.poll(POLL).expect("messages");
                    if !messages.is_empty() {
                        since = Instant::now();
                    }
                    seen.extend(messages.iter().map(seen_in));
                }
                Content { seen }
            }
            Self::Receiver { got, .. } => {
                let got = got.seen.lock().expect("no panic");
                let seen = got.iter().map(|&(number, aggregate)| Seen {
                    number,
                    aggregate,
                    appended: 0.0,
                    came: 0.0,
                });
                Content { seen: seen.collect() }
            }
        }
    }

    /// A reader that notes when each event becomes visible. A receiver notes it by itself.
    pub(crate) fn reader(self, came: Came) -> (Reader, Option<Topic>) {
        match self {
            Self::Kafka(topic) => {
                let consumer = topic.consumer();
                let poll = move || crate::latency::read_topic(&consumer);
                (Reader::start(came, poll), Some(topic))
            }
            Self::Broker { broker, name } => {
                let mut consumer =
                    BrokerConsumer::new(broker.login.clone(), broker.place(&name, false));
                consumer.connect().expect("a consumer");
                let poll = move || {
                    let messages = consumer.poll(POLL).expect("messages");
                    messages.iter().map(|message| number(&message.value)).collect()
                };
                (Reader::start(came, poll), None)
            }
            Self::Receiver { receiver, .. } => {
                let poll = move || {
                    // The receiver lives as long as the reader.
                    let _alive = &receiver;
                    std::thread::sleep(POLL);
                    Vec::new()
                };
                (Reader::start(came, poll), None)
            }
        }
    }
}

fn seen_in(message: &ConsumedMessage) -> Seen {
    Seen {
        number: number(&message.value),
        aggregate: ascii(&message.key),
        appended: 0.0,
        came: 0.0,
    }
}
