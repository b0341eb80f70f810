//! Streams of Redis and Valkey as the source of messages.

mod config;
mod source;

pub use config::RedisSourceConfig;
pub use source::RedisSource;
