//! Queues of RabbitMQ as the source of messages.

mod config;
mod source;

pub use config::RabbitSourceConfig;
pub use source::RabbitSource;
