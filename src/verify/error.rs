//! Why nothing could be verified, and what to do about it.

use crate::outbox::{MapError, SpecError};
use crate::postgres::{SourceError, error_policy};
use crate::units::ShowSize;
use std::io;
use std::path::PathBuf;

/// Why nothing could be verified. It is never that an event is missing: that is a finding.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the words of the message above them")]
pub enum VerifyError {
    /// The sink is another broker.
    #[error(
        "pipeline \"{pipeline}\" publishes to a sink of kind \"{kind}\": verify reads only Kafka"
    )]
    NotKafka { pipeline: String, kind: &'static str },
    /// The events are no rows.
    #[error(
        "pipeline \"{pipeline}\" captures tables: its documents are in no table that they could be compared with"
    )]
    Captured { pipeline: String },
    /// There is no table.
    #[error("pipeline \"{pipeline}\" has no outbox table, only logical messages")]
    NoTable { pipeline: String },
    /// The rows have no usable time.
    #[error("{what} of --since and --until can't be determined: {why}")]
    NoTime { what: &'static str, why: String },
    /// The range is empty.
    #[error("the range is empty: {0}")]
    EmptyRange(&'static str),
    /// `--offsets` names what is not there.
    #[error("--offsets: topic \"{topic}\" has no partition {partition}")]
    NoPartition { topic: String, partition: i32 },
    /// The position of the pipeline belongs to another table.
    #[error("the position of pipeline \"{pipeline}\" belongs to another table than {table}")]
    OtherTable { pipeline: String, table: String },
    /// The database.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The configuration of the outbox is inconsistent.
    #[error("the outbox can't be read as it is configured")]
    Spec(#[source] SpecError),
    /// The table does not fit the layout.
    #[error("the outbox can't be read")]
    Unfit(#[source] MapError),
    /// The events do not fit into memory.
    #[error("{events} events and more take more memory than {}", ShowSize(*memory_max))]
    Memory { events: u64, memory_max: u64 },
    /// Events are routed to too many topics.
    #[error("the events are routed to more than {max} topics")]
    TooManyTopics { max: usize },
    /// The ledger file can't be read.
    #[error("could not read ledger {}", .path.display())]
    LedgerFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A line of the ledger is none.
    #[error("line {line} of ledger {}: {what}", .path.display())]
    LedgerLine { path: PathBuf, line: u64, what: String },
    /// librdkafka refuses the settings, or a call.
    #[error("the client of Kafka refuses: {0}")]
    Client(String),
    /// The brokers do not answer.
    #[error("no answer from the brokers at {brokers}: {reason}")]
    Brokers { brokers: String, reason: String },
    /// The login may not see a topic.
    #[error("the brokers do not allow us to read topic \"{topic}\"")]
    Denied { topic: String },
    /// A topic, or a partition, can't be read.
    #[error("topic \"{topic}\" can't be read: {reason}")]
    Topic { topic: String, reason: String },
    /// The topic is another one now.
    #[error("topic \"{topic}\" was deleted and created again while it was read")]
    Recreated { topic: String },
    /// An open transaction.
    #[error(
        "partition {partition} of topic \"{topic}\" can be read only to offset {reached} of {end}: a producer has an \
         open transaction there"
    )]
    Held { topic: String, partition: i32, reached: i64, end: i64 },
    /// Nothing arrives.
    #[error(
        "partition {partition} of topic \"{topic}\" was read to offset {reached} of {end}, and nothing more \
         arrives{why}"
    )]
    Stalled { topic: String, partition: i32, reached: i64, end: i64, why: String },
}

impl VerifyError {
    /// Whether the command line or the configuration is wrong for this command.
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::NotKafka { .. }
            | Self::Captured { .. }
            | Self::NoTable { .. }
            | Self::NoTime { .. }
            | Self::EmptyRange(_)
            | Self::NoPartition { .. }
            | Self::LedgerFile { .. }
            | Self::LedgerLine { .. } => true,
            Self::OtherTable { .. }
            | Self::Source(_)
            | Self::Spec(_)
            | Self::Unfit(_)
            | Self::Memory { .. }
            | Self::TooManyTopics { .. }
            | Self::Client(_)
            | Self::Brokers { .. }
            | Self::Denied { .. }
            | Self::Topic { .. }
            | Self::Recreated { .. }
            | Self::Held { .. }
            | Self::Stalled { .. } => false,
        }
    }

    /// What fixes it.
    pub fn hint(&self) -> Option<String> {
        let fixed = match self {
            Self::NotKafka { .. } => {
                "compare what consumers have stored with the outbox table instead: header id of each message is the id \
                 of its row"
            }
            Self::Captured { .. } => {
                "compare the captured tables with what consumers have made of the documents"
            }
            Self::NoTable { .. } => {
                "give the events that the application has emitted in a file: --ledger FILE (docs/operations/verify.md)"
            }
            Self::NoTime { .. } => {
                "name the column of times (outbox.columns.time) and its zone (source.time_zone); in a ledger, give \
                 each line at_us; or leave the range out"
            }
            Self::EmptyRange(_) => "give an end that is after the beginning",
            Self::NoPartition { .. } => {
                "write TOPIC:PARTITION:FROM..TO with a partition that the topic has"
            }
            Self::OtherTable { .. } => {
                "start postrider run of this pipeline: it compares the settings, and prints what is possible"
            }
            Self::Memory { .. } => {
                "raise --memory: each GiB has room for about 7 million events; or verify one part after the other, \
                 with --since and --until"
            }
            Self::TooManyTopics { .. } => "verify a part of the events, with --since and --until",
            Self::LedgerFile { .. } => "name a file that exists and can be read",
            Self::LedgerLine { .. } => "docs/operations/verify.md describes the lines of a ledger",
            Self::Client(_) => "run postrider check: it names the setting of sink.properties",
            Self::Brokers { .. } => "run postrider check: it says what the brokers answer",
            Self::Denied { topic } => {
                return Some(format!(
                    "kafka-acls.sh --add --allow-principal User:NAME --operation Read --operation Describe --topic \
                     {topic}"
                ));
            }
            Self::Topic { topic, .. } => {
                return Some(format!(
                    "see whether its partitions have leaders: kafka-topics.sh --describe --topic {topic}; then run the \
                     command again"
                ));
            }
            Self::Recreated { .. } => "run the command again",
            Self::Held { topic, partition, .. } => {
                return Some(format!(
                    "wait until it has ended, and run the command again; the brokers abort a transaction of a process \
                     that has ended after its time-out: kafka-transactions.sh find-hanging --topic {topic} --partition \
                     {partition}"
                ));
            }
            Self::Stalled { .. } => {
                "see whether the brokers answer: postrider check; then run the command again"
            }
            Self::Source(error) => return error_policy::hint(error),
            Self::Spec(_) | Self::Unfit(_) => {
                "run postrider check: it names the column and the key"
            }
        };
        Some(fixed.to_owned())
    }
}
