//! NATS JetStream as the source of messages.

mod config;
mod source;

pub use config::NatsSourceConfig;
pub use source::NatsSource;
