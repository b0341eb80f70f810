//! `kind = "kafka"`: Apache Kafka and what speaks its protocol, by librdkafka's idempotent producer.

mod codes;
mod config;
mod health;
mod metadata;
mod native;
mod ordering;
mod preflight;
mod producer;
mod properties;
mod secrets;
mod shared;
mod sink;
mod topics;

pub use config::{
    CreateTopics, KafkaConfig, KafkaSpec, OpenError, Properties, is_address, read_properties,
};
pub use properties::{canonical_name, check_login, check_property};

use postrider_core::sink::{FirstFile, FirstFileTable, Keys, Mailbox, Sink, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct Kafka;

impl SinkKind for Kafka {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(KafkaConfig::read(keys))
    }

    fn reference(&self) -> &'static str {
        include_str!("reference.toml")
    }

    fn first_file(&self) -> FirstFile {
        FirstFile { keys: &[("brokers", "localhost:9092")], tables: FIRST_FILE_TABLES }
    }
}

const FIRST_FILE_TABLES: &[FirstFileTable] = &[
    FirstFileTable {
        path: "create_topics",
        comment: "Missing topics are created with these settings; the others have the broker's defaults.",
        keys: &["partitions", "replication_factor", "allow"],
    },
    FirstFileTable { path: "create_topics.config", comment: "", keys: &[] },
    FirstFileTable {
        path: "properties",
        comment: "Settings of librdkafka. A name that ends in _file takes the value from a file.",
        keys: &[],
    },
];

/// Opens a sink of these settings. Connects in the background: a broker that can't be reached is no error.
///
/// # Errors
/// A setting that librdkafka does not know, does not take, or that would break a promise; a thread that can't be
/// started.
pub fn open(spec: &KafkaSpec, mailbox: Mailbox) -> Result<Box<dyn Sink>, OpenError> {
    Ok(Box::new(sink::KafkaSink::open(spec, mailbox)?))
}
