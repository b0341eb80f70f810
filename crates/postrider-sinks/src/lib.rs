//! The brokers that records can be sent to.
//!
//! A kind of broker is a folder with the same file names in each: `mod` (the kind), `config` (its keys, and what the
//! product asks of them), `sink`, `preflight` where there is a server to ask, and tests. This crate knows no relay and
//! no source (held by `tests/it/tidy/layers.rs`). Of PostgreSQL it has the client alone, for the sink that writes event
//! logs.

#[cfg(feature = "worker")]
mod destinations;
mod discard;
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
mod fence;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "worker")]
mod life;
#[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq"))]
mod moment;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "queue")]
mod queued_sink;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "queue")]
mod record_batch;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "queue")]
mod send_queue;
mod stdout;
#[cfg(feature = "tls")]
pub mod tls;
pub mod topic;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod transaction_link;
#[cfg(feature = "thread")]
pub mod worker_thread;

pub use discard::DiscardConfig;
pub use postrider_core::sink::{
    Capabilities, CloudEventsBinding, FirstFile, FirstFileTable, KeyValue, Keys, Mailbox, NameRule,
    Needs, NotTaken, Order, Post, Purpose, RecordHeaders, Retention, Shown, ShownValue, Sink,
    SinkCall, SinkConfig, SinkError, SinkKind, SinkProgress, TransactionLimits, Transactional,
};
pub use stdout::StdoutConfig;

/// The kinds of sinks that the configuration knows, in the order in which messages name them.
pub static KINDS: &[&dyn SinkKind] = &[
    #[cfg(feature = "kafka")]
    &kafka::Kafka,
    #[cfg(feature = "nats")]
    &nats::Nats,
    #[cfg(feature = "postgres")]
    &postgres::Postgres,
    #[cfg(feature = "http")]
    &http::Http,
    #[cfg(feature = "redis")]
    &redis::Redis,
    #[cfg(feature = "rabbitmq")]
    &rabbitmq::RabbitMq,
    &stdout::Stdout,
    &discard::Discard,
];

/// The kind where `sink.kind` is not given. A build without Kafka requires `sink.kind`.
pub const DEFAULT_KIND: &str = "kafka";

/// The values of `delivery` for kinds without transactions.
const PROMISES: [&str; 1] = ["at-least-once"];

/// Reads `delivery`, which is the same promise for every kind without transactions.
fn read_delivery(keys: &dyn Keys) -> &'static str {
    PROMISES[keys.word("delivery", &PROMISES, &["exactly-once"])]
}
