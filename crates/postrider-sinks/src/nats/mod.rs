//! `kind = "nats"`: a stream of NATS JetStream.
//!
//! The worker ([`worker`]) sends messages without waiting for their acknowledgements, each chained to the one before
//! ([`message`]), so the server itself stores nothing behind a message that it has not stored. `docs/sinks/nats.md`
//! describes what that promises.
//!
//! [`NatsConsumer`] reads a stream, over the same connections and logins, for `postrider inbox run`.

mod api;
mod config;
mod consumer;
mod ends;
mod line;
mod link;
mod login;
mod message;
mod preflight;
mod problem;
mod rules;
mod sink;
mod spec;
mod subject;
mod worker;

pub use config::NatsConfig;
pub use consumer::{
    ConsumerState, ConsumerWanted, NatsConsumer, NatsConsumerProblem, NatsDelivery, NatsStart,
};
pub use spec::{ChainMode, CreateStream};

use postrider_core::sink::{FirstFile, FirstFileTable, Keys, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct Nats;

impl SinkKind for Nats {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(NatsConfig::read(keys))
    }

    fn reference(&self) -> &'static str {
        include_str!("reference.toml")
    }

    fn first_file(&self) -> FirstFile {
        FirstFile { keys: &[], tables: FIRST_FILE_TABLES }
    }
}

const FIRST_FILE_TABLES: &[FirstFileTable] = &[
    FirstFileTable {
        path: "nats",
        comment: "The server, and the stream that has all subjects of this pipeline.",
        keys: &["url", "stream"],
    },
    FirstFileTable {
        path: "nats.create",
        comment: "The stream is created with these settings if it does not exist.",
        keys: &["subjects", "replicas", "storage"],
    },
];
