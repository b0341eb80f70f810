//! Kafka as the source of messages.

mod config;
mod native;
mod positions;
mod source;
mod topic_reader;

pub use config::KafkaSourceConfig;
pub use native::Polled;
pub use positions::{Block, Decision, Decisions, PartitionBounds, StartAt};
pub use rdkafka::error::KafkaError;
pub use rdkafka::types::RDKafkaErrorCode as KafkaErrorCode;
pub use source::{KafkaSource, bounds, leader_epoch, missing_topics};
pub use topic_reader::{FoundTopic, PartitionExtent, TopicReader};
