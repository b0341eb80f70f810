//! `kind = "rabbitmq"`: exchanges of RabbitMQ, over AMQP 0-9-1, with publisher confirms; and its streams, over the
//! stream protocol ([`stream`]). What follows is about AMQP.
//!
//! The pipeline's thread judges a record ([`message`]) and queues it; the worker thread ([`worker`]) has the connection
//! ([`link`], [`codec`]) and the records that are not confirmed ([`window`]). `docs/sinks/rabbitmq.md` has what is
//! promised.
//!
//! [`RabbitConsumer`] reads a queue, over the same connection, for `postrider inbox run`.

mod codec;
mod commands;
mod config;
mod consumer;
mod facts;
mod link;
mod management;
mod message;
mod pauses;
mod preflight;
mod problem;
mod sink;
mod spec;
mod stream;
mod window;
mod worker;

pub use config::RabbitConfig;
pub use consumer::{
    QueueWanted, RabbitConsumer, RabbitConsumerProblem, RabbitConsumerState, RabbitDelivery,
};

use postrider_core::sink::{FirstFile, FirstFileTable, Keys, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct RabbitMq;

impl SinkKind for RabbitMq {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(RabbitConfig::read(keys))
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
        path: "rabbitmq",
        comment: "The server, and the exchange: \"\" is the default one, whose routing keys are names of queues.",
        keys: &["url", "password_file", "exchange"],
    },
    FirstFileTable {
        path: "rabbitmq.create",
        comment: "postrider setup creates exchange, queues and bindings with these settings.",
        keys: &["queue_type", "exchange_type"],
    },
];
