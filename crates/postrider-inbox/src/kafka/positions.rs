//! Where a partition continues: decided by its stored offset, the bounds of its log and the id of its topic.

use crate::store::StoredOffset;
use std::fmt;

/// Where to begin with a partition of which nothing is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StartAt {
    /// With the oldest record.
    #[default]
    Earliest,
    /// Behind the newest record.
    Latest,
}

impl StartAt {
    /// The word of the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Earliest => "earliest",
            Self::Latest => "latest",
        }
    }
}

/// What is known of a partition when it was assigned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PartitionFacts {
    /// The stored offset; `None` if nothing is stored.
    pub(super) stored: Option<StoredOffset>,
    /// The offset of the oldest record that the broker has.
    pub(super) low: i64,
    /// The offset behind the newest record.
    pub(super) high: i64,
    /// The id of the topic; `None` if the broker has no ids.
    pub(super) topic_id: Option<String>,
    /// Whether an offset of another partition of the topic is stored: the topic has got a new partition.
    pub(super) topic_is_known: bool,
}

/// Where a partition continues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// At the stored offset.
    Continue {
        /// The offset.
        at: i64,
        /// The offset of the oldest record that the broker has.
        low: i64,
        /// Whether the id of the topic is to be stored, because none is.
        is_id_new: bool,
    },
    /// At this offset, which has to be stored first: a crash before the first record must not move it.
    Begin {
        /// The offset.
        at: i64,
    },
    /// Nowhere, until a person decides.
    Blocked(Block),
}

/// Why a partition is not read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Block {
    /// Records were deleted before they were stored.
    Deleted {
        /// The stored offset.
        stored: i64,
        /// The offset of the oldest record that there is.
        low: i64,
    },
    /// The log ends before the stored offset: records that were stored are not there any more, and others may have
    /// taken their offsets.
    Shorter {
        /// The stored offset.
        stored: i64,
        /// The offset behind the newest record.
        high: i64,
    },
    /// The topic was deleted, and another one has its name.
    OtherTopic {
        /// The stored offset, which is of the former topic.
        stored: i64,
        /// The offset of the oldest record of the topic that has the name now.
        low: i64,
        /// The offset behind its newest record.
        high: i64,
    },
    /// The record before the stored offset is another one than the one that was stored: the log was truncated, and has
    /// other records since.
    Truncated {
        /// The stored offset.
        stored: i64,
    },
    /// The client can't read the record at an offset, and would go on behind it.
    Unreadable {
        /// The offset.
        at: i64,
        /// What the client says, without content of records.
        reason: String,
    },
}

impl Block {
    /// A short name, for logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Deleted { .. } => "records_deleted",
            Self::Shorter { .. } => "log_shorter",
            Self::OtherTopic { .. } => "other_topic",
            Self::Truncated { .. } => "log_truncated",
            Self::Unreadable { .. } => "record_unreadable",
        }
    }

    /// What fixes it, as a sentence with the command, and how many records it passes over or repeats. `intake` is the
    /// name of the intake in the configuration.
    pub fn hint(&self, intake: &str, topic: &str, partition: i32) -> String {
        let seek = |to: &str| {
            format!(
                "postrider inbox seek {intake} --topic {topic} --partition {partition} --to {to}"
            )
        };
        match self {
            Self::Deleted { stored, low } => format!(
                "to go on without the {} records that are gone: {}; keep records longer than the inbox can be behind \
                 (retention.ms of the topic)",
                low - stored,
                seek("earliest")
            ),
            Self::Shorter { stored, high } => format!(
                "find out what became of the {} records from offset {high} on (a replica that was behind became the \
                 leader, or the broker lost its disk). To go on with what is written from now on: {}",
                stored - high,
                seek("latest")
            ),
            Self::OtherTopic { low, high, .. } => format!(
                "to read the {} records of the new topic from its beginning: {}; records of the former topic that were \
                 not stored are gone",
                high - low,
                seek("earliest")
            ),
            Self::Truncated { stored } => format!(
                "records before offset {stored} were replaced by others, which are not stored (a replica that was \
                 behind became the leader). To read them, go back to an offset before the first of them; what is \
                 stored already is recognised by its id, if it has one: {}",
                seek("OFFSET")
            ),
            Self::Unreadable { at, .. } => format!(
                "look at the record with another client. If the cause was mended (a damaged disk: let another replica \
                 lead), start the intake again, which reads the record once more. To go on without the records from \
                 offset {at} to OFFSET - 1, which are not stored then: {}",
                seek("OFFSET")
            ),
        }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted { stored, low } => write!(
                f,
                "{} records from offset {stored} on were deleted before they were stored; the oldest one has offset \
                 {low}",
                low - stored
            ),
            Self::Shorter { stored, high } => write!(
                f,
                "the log ends at offset {high}, and everything before offset {stored} was stored"
            ),
            Self::OtherTopic { stored, .. } => write!(
                f,
                "the topic was deleted and created again, and the stored offset {stored} is of the former topic"
            ),
            Self::Truncated { stored } => {
                write!(f, "the log was truncated below the stored offset {stored}")
            }
            Self::Unreadable { at, reason } => {
                write!(f, "the record at offset {at} can't be read: {reason}")
            }
        }
    }
}

impl PartitionFacts {
    /// Where the partition continues.
    pub(super) fn decide(&self, start: StartAt) -> Decision {
        let Some(stored) = &self.stored else {
            // A partition that was added later is read from its beginning: its first records may be older than the
            // moment at which it was noticed.
            let at = match start {
                StartAt::Latest if !self.topic_is_known => self.high,
                StartAt::Latest | StartAt::Earliest => self.low,
            };
            return Decision::Begin { at };
        };
        let (at, low, high) = (stored.next, self.low, self.high);
        let is_other = match (&stored.topic_id, &self.topic_id) {
            (Some(stored), Some(now)) => stored != now,
            (None, _) | (_, None) => false,
        };
        if is_other {
            Decision::Blocked(Block::OtherTopic { stored: at, low, high })
        } else if at < low {
            Decision::Blocked(Block::Deleted { stored: at, low })
        } else if at > high {
            Decision::Blocked(Block::Shorter { stored: at, high })
        } else {
            let is_id_new = stored.topic_id.is_none() && self.topic_id.is_some();
            Decision::Continue { at, low, is_id_new }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(stored: Option<i64>, (low, high): (i64, i64)) -> PartitionFacts {
        PartitionFacts {
            stored: stored.map(|next| StoredOffset {
                next,
                leader_epoch: Some(3),
                topic_id: Some("id".to_owned()),
            }),
            low,
            high,
            topic_id: Some("id".to_owned()),
            topic_is_known: false,
        }
    }

    #[test]
    fn a_stored_offset_within_the_log_is_where_the_partition_continues() {
        for at in [10, 15, 20] {
            let decision = facts(Some(at), (10, 20)).decide(StartAt::Latest);
            assert_eq!(decision, Decision::Continue { at, low: 10, is_id_new: false });
        }
    }

    #[test]
    fn a_stored_offset_outside_of_the_log_blocks_the_partition() {
        let decide = |at| facts(Some(at), (10, 20)).decide(StartAt::Earliest);
        assert_eq!(decide(9), Decision::Blocked(Block::Deleted { stored: 9, low: 10 }));
        assert_eq!(decide(21), Decision::Blocked(Block::Shorter { stored: 21, high: 20 }));
    }

    #[test]
    fn offsets_of_a_former_topic_are_not_used() {
        let facts =
            PartitionFacts { topic_id: Some("other".to_owned()), ..facts(Some(15), (0, 20)) };
        let other = Block::OtherTopic { stored: 15, low: 0, high: 20 };
        assert_eq!(facts.decide(StartAt::Earliest), Decision::Blocked(other));
        // Where one of the two ids is not known, they are not compared; a new one is stored.
        let unknown = PartitionFacts { topic_id: None, ..facts.clone() };
        let continues = |is_id_new| Decision::Continue { at: 15, low: 0, is_id_new };
        assert_eq!(unknown.decide(StartAt::Earliest), continues(false));
        let mut first = facts;
        first.stored.as_mut().unwrap().topic_id = None;
        assert_eq!(first.decide(StartAt::Earliest), continues(true));
    }

    #[test]
    fn a_new_partition_begins_where_the_configuration_says_and_a_later_one_at_its_beginning() {
        let new = facts(None, (10, 20));
        assert_eq!(new.decide(StartAt::Earliest), Decision::Begin { at: 10 });
        assert_eq!(new.decide(StartAt::Latest), Decision::Begin { at: 20 });
        let added = PartitionFacts { topic_is_known: true, ..new };
        assert_eq!(added.decide(StartAt::Latest), Decision::Begin { at: 10 });
    }

    #[test]
    fn every_block_says_how_many_records_its_command_passes_over() {
        let all = [
            Block::Deleted { stored: 5, low: 12 },
            Block::Shorter { stored: 12, high: 5 },
            Block::OtherTopic { stored: 5, low: 0, high: 7 },
        ];
        for block in all {
            let hint = block.hint("mail", "orders", 3);
            assert!(hint.contains(" 7 records"), "{hint}");
            assert!(
                hint.contains("postrider inbox seek mail --topic orders --partition 3 --to "),
                "{hint}"
            );
        }
    }
}
