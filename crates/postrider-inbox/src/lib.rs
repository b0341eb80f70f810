//! The intake of an inbox: what stores messages of a broker, or of webhooks, in an inbox of the SQL toolkit, each
//! once.
//!
//! [`mapping`] makes a message of a record, and [`store`] writes messages with the offsets of their partitions in one
//! transaction. `kafka`, `nats`, `rabbitmq`, `redis` and `webhook` are the sources of messages; those whose messages
//! are acknowledged one by one have the interface [`acked`]. This crate knows no pipeline.

pub mod acked;
pub mod batch;
pub mod delivery;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod mapping;
pub mod message;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
pub mod store;
pub mod turn;
pub mod webhook;
