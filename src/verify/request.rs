//! What is to be verified.

use super::comparison::OrderBy;
use crate::offset::Offset;
use crate::timestamp::Timestamp;
use std::path::PathBuf;

/// A part of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionRange {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset.
    pub from: i64,
    /// The offset behind the last one.
    pub to: i64,
}

/// What is to be verified.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyRequest {
    /// The other side; `None`: the outbox table.
    pub ledger: Option<PathBuf>,
    /// Further topics to read.
    pub topics: Vec<String>,
    /// Only events that are not older than this.
    pub since: Option<Timestamp>,
    /// Only events that are older than this.
    pub until: Option<Timestamp>,
    /// Only records that were committed at the first position or later, and before the second.
    pub positions: Option<(Offset, Offset)>,
    /// Only these parts of partitions; empty: all.
    pub parts: Vec<PartitionRange>,
    /// What the order is compared by; `None`: by positions, and with a ledger by its lines.
    pub order: Option<OrderBy>,
    /// Examples of each finding, at most.
    pub examples_max: usize,
    /// Memory for the comparison, at most. Unit: bytes.
    pub memory_max: u64,
}

/// How much was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyProgress {
    /// Events of the source.
    pub events: u64,
    /// Records.
    pub records: u64,
}
