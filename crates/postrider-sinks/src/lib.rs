//! The brokers that records can be sent to.
//!
//! A sink does not know PostgreSQL, positions or the relay: this crate depends on `postrider-core` alone. A new broker
//! needs a module here, a variant of [`SinkSpec`], and an arm wherever that is matched on: in this file, and in the
//! `config`, `cli`, `replay` and `driver` of the product.

mod discard;
mod kafka;
mod spec;
mod stdout;

pub use postrider_core::sink::{Mailbox, NotTaken, Post, Sink};
pub use spec::{CreateTopics, KafkaSpec, SinkError, SinkSpec};

use postrider_core::finding::Finding;

/// Opens the sink that `spec` describes. Connects in the background: an unreachable broker is not an error here, it
/// is a [`Post::Down`].
///
/// # Errors
/// A setting that librdkafka does not know, does not take, or that would break a promise; a thread that can't be
/// started.
pub fn open(spec: &SinkSpec, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
    Ok(match spec {
        SinkSpec::Kafka(kafka) => Box::new(kafka::KafkaSink::open(kafka, mailbox)?),
        SinkSpec::Stdout => Box::new(stdout::Lines::open(std::io::stdout(), mailbox)?),
        SinkSpec::Discard => Box::new(discard::Discard::new(mailbox)),
    })
}

/// Asks the broker what `postrider check` tells of it: whether it answers and takes us, and what stands in the way of
/// records for `topics`; `keyed` says whether they have keys. Publishes nothing. Waits for the broker, so call it where
/// that may take half a minute.
pub fn preflight(spec: &SinkSpec, topics: &[String], keyed: bool) -> Vec<Finding> {
    match spec {
        SinkSpec::Kafka(kafka) => kafka::look(kafka, topics, keyed),
        SinkSpec::Stdout | SinkSpec::Discard => Vec::new(),
    }
}

/// The cluster whose brokers answer, by its identifier; `None` where there is no such thing, or none answers. Waits for
/// the broker.
pub fn cluster(spec: &SinkSpec) -> Option<String> {
    match spec {
        SinkSpec::Kafka(kafka) => kafka::cluster(kafka),
        SinkSpec::Stdout | SinkSpec::Discard => None,
    }
}

/// Makes those of `topics` that do not exist, where the settings say that topics are made; what became of each. Waits
/// for the broker.
pub fn create_topics(spec: &SinkSpec, topics: &[String]) -> Vec<Finding> {
    match spec {
        SinkSpec::Kafka(kafka) if kafka.create_topics.is_some() => kafka::create(kafka, topics),
        SinkSpec::Kafka(_) | SinkSpec::Stdout | SinkSpec::Discard => Vec::new(),
    }
}

/// What the settings of a sink say that works and yet bites, without the network. `pipeline` is whose they are.
pub fn settings(spec: &SinkSpec, pipeline: &str) -> Vec<Finding> {
    match spec {
        SinkSpec::Kafka(kafka) => kafka::settings(kafka, pipeline),
        SinkSpec::Stdout | SinkSpec::Discard => Vec::new(),
    }
}

/// Looks at the settings alone, as [`open`] would, without touching the network.
///
/// # Errors
/// As [`open`], for everything that can be seen without a broker.
pub fn check(spec: &SinkSpec) -> Result<(), Vec<SinkError>> {
    let errors = match spec {
        SinkSpec::Kafka(kafka) => kafka::check(kafka),
        SinkSpec::Stdout | SinkSpec::Discard => Vec::new(),
    };
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
