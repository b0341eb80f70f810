//! `kind = "kafka"`: Apache Kafka and what speaks its protocol, by librdkafka's idempotent producer, or by its
//! transactional one.

mod codes;
mod config;
mod health;
mod metadata;
mod native;
mod ordering;
mod preflight;
mod producer;
mod progress;
mod properties;
mod secrets;
mod shared;
mod sink;
mod spec;
mod topics;
mod transaction_sink;
mod transaction_spec;
mod transaction_thread;

pub use config::{KafkaConfig, Properties, is_address, open, read_properties};
pub use properties::{canonical_name, check_login, check_property};
pub use spec::{CreateTopics, KafkaSpec, OpenError};
pub use transaction_spec::{KafkaTransaction, TransactionKeys};

use postrider_core::sink::{FirstFile, FirstFileTable, Keys, SinkConfig, SinkKind};
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
