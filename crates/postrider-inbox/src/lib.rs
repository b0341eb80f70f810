//! The intake of an inbox: what stores messages of Kafka, or of webhooks, in an inbox of the SQL toolkit, each once.
//!
//! [`mapping`] makes a message of a record, and [`store`] writes messages with the offsets of their partitions in one
//! transaction. `kafka` and `webhook` are the sources of messages. This crate knows no pipeline.

pub mod batch;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod mapping;
pub mod message;
pub mod store;
pub mod webhook;
