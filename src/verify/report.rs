//! The result: what was read, and what was found.

use super::comparison::OrderBy;
use super::findings::{VerifyFinding, VerifyFindings};
use crate::offset::Offset;
use crate::timestamp::Timestamp;
use std::path::PathBuf;

/// What the topics were compared with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceSummary {
    /// The outbox table.
    Outbox {
        /// Its name, as SQL writes it.
        table: String,
        /// The time of the snapshot.
        at: Timestamp,
        /// The end of the WAL in the snapshot.
        wal_end: Offset,
        /// The position of the cursor row; `None` without a cursor row.
        watermark: Option<Offset>,
    },
    /// A ledger file.
    Ledger {
        /// Its name.
        file: PathBuf,
        /// The first and the last time in it; `None` if its lines have no times.
        times: Option<(Timestamp, Timestamp)>,
    },
}

/// A partition that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadPartition {
    /// Its number.
    pub number: i32,
    /// The oldest offset that it had.
    pub low: i64,
    /// The first offset that was read.
    pub from: i64,
    /// The offset behind the last one.
    pub to: i64,
    /// Records that were read: committed ones.
    pub records: u64,
}

/// A topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadTopic {
    /// Its name.
    pub name: String,
    /// It exists.
    pub exists: bool,
    /// It is compacted; `None` if its settings could not be read.
    pub is_compacted: Option<bool>,
    /// Its partitions.
    pub partitions: Vec<ReadPartition>,
}

/// What was verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyReport {
    /// The pipeline.
    pub pipeline: String,
    /// The source.
    pub source: SourceSummary,
    /// Its events.
    pub events: u64,
    /// The topics.
    pub topics: Vec<ReadTopic>,
    /// What the order was compared by.
    pub order: OrderBy,
    /// Records are published exactly once, so a repetition is a fault.
    pub is_exactly_once: bool,
    /// What was found.
    pub findings: VerifyFindings,
    /// What could not be known, as sentences.
    pub notes: Vec<String>,
}

impl VerifyReport {
    /// Records that were read.
    pub fn records(&self) -> u64 {
        let partitions = self.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|partition| partition.records).sum()
    }

    /// The findings that are faults. `repeats`: repetitions are; `unproven`: what could not be proven is none.
    pub fn faults(&self, repeats: bool, unproven: bool) -> Vec<VerifyFinding> {
        let of = |finding: &VerifyFinding| match finding {
            VerifyFinding::Lost
            | VerifyFinding::Different
            | VerifyFinding::Swapped
            | VerifyFinding::Unexpected => true,
            VerifyFinding::Repeated => repeats || self.is_exactly_once,
            VerifyFinding::Unproven | VerifyFinding::SharedId => !unproven,
            VerifyFinding::Published
            | VerifyFinding::Parked
            | VerifyFinding::Dead
            | VerifyFinding::Skipped
            | VerifyFinding::Before
            | VerifyFinding::NotReached
            | VerifyFinding::Expired
            | VerifyFinding::Unpublishable
            | VerifyFinding::OutcomeUnknown
            | VerifyFinding::RolledBack
            | VerifyFinding::OutsideRange
            | VerifyFinding::NotJudged
            | VerifyFinding::Replayed
            | VerifyFinding::OrderUnproven
            | VerifyFinding::WithoutOrder
            | VerifyFinding::OtherSource
            | VerifyFinding::NotInSource
            | VerifyFinding::WithoutId => false,
        };
        let all = VerifyFinding::OF_EVENTS.into_iter().chain(VerifyFinding::OF_RECORDS);
        all.filter(|finding| of(finding) && self.findings.count(*finding) > 0).collect()
    }
}
