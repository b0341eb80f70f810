//! Where partitions continue: decided by their stored offsets, the bounds of their logs and the ids of their topics.

use crate::batch::Partition;
use crate::store::{KnownTopics, StoredOffset};
use std::collections::BTreeMap;
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

/// What a broker says of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionBounds {
    /// The offset of the oldest record.
    pub low: i64,
    /// The offset behind the newest record.
    pub high: i64,
    /// The id of the topic; `None` if the broker has no ids.
    pub topic_id: Option<String>,
}

/// The answer of a broker about a partition, or why there is none.
pub(super) type Answer = Result<PartitionBounds, String>;

/// What was decided about partitions, and the ids of their topics.
pub type Decisions = BTreeMap<Partition, (Decision, Option<String>)>;

/// What the inbox and the configuration say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placing<'a> {
    /// The stored offsets.
    pub(super) stored: &'a BTreeMap<Partition, StoredOffset>,
    /// The topics of which any offset is stored.
    pub(super) known: &'a KnownTopics,
    /// Where to begin with a topic of which nothing is stored.
    pub(super) start: StartAt,
    /// The topics of the configuration. Others are found by its regular expressions.
    pub(super) named: &'a [String],
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
        /// The offset of the oldest record.
        low: i64,
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
    /// The table of the inbox refuses the message of a record even as a dead one, without type and trace. It is tried
    /// again now and then.
    Unstorable {
        /// The offset of the record.
        at: i64,
        /// What the server says, without content of the record.
        reason: String,
        /// The constraint that refuses it, if it is one.
        constraint: Option<String>,
    },
    /// The brokers do not say what the partition has: it has no leader, or there is an error of its topic. They are
    /// asked again, and nobody has to decide.
    NoAnswer {
        /// What they say instead.
        error: String,
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
            Self::Unstorable { .. } => "message_unstorable",
            Self::NoAnswer { .. } => "no_answer",
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
                "to go on without up to {} records that are gone: {}; keep records longer than the inbox can be behind \
                 (retention.ms of the topic)",
                low - stored,
                seek("earliest")
            ),
            Self::Shorter { stored, low, high } => format!(
                "find out what became of up to {} records from offset {high} on (a replica that was behind became the \
                 leader, or the broker lost its disk). Records below offset {high} that were written since are not \
                 stored: to read them, go back to the first offset whose record is another one than the stored one, \
                 {WHICH}: {}. To pass over them, which are up to {} records, and go on with what is written from now \
                 on: {}",
                stored - high,
                seek("OFFSET"),
                high - low,
                seek("latest")
            ),
            Self::OtherTopic { low, high, .. } => format!(
                "to read up to {} records of the new topic from its beginning: {}; records of the former topic that \
                 were not stored are gone",
                high - low,
                seek("earliest")
            ),
            Self::Truncated { stored } => format!(
                "records before offset {stored} were replaced by others, which are not stored (a replica that was \
                 behind became the leader). To read them, go back to the first offset whose record is another one than \
                 the stored one, {WHICH}; what is stored already is recognised by its id, if it has one: {}",
                seek("OFFSET")
            ),
            Self::Unreadable { at, .. } => format!(
                "look at the record with another client. If the cause is removed (a damaged disk: let another replica \
                 lead), start the intake again, which reads the record once more. To go on without the records from \
                 offset {at} to OFFSET - 1, which are not stored then: {}",
                seek("OFFSET")
            ),
            Self::Unstorable { at, constraint, .. } => {
                let what = constraint.as_ref().map_or_else(
                    || "the trigger or the limit of the inbox's table that refuses the message".to_owned(),
                    |constraint| format!("constraint \"{constraint}\" of the inbox's table"),
                );
                format!(
                    "change {what}, or drop it: the message is tried again at least once a minute. To go on without \
                     the record at offset {at}, which is not stored then: {}",
                    seek(&(at + 1).to_string())
                )
            }
            Self::NoAnswer { .. } => {
                "nothing to decide: the brokers are asked again every 5 s. Check that the brokers that have a replica \
                 of the partition run (kafka-topics.sh --describe --unavailable-partitions)"
                    .to_owned()
            }
        }
    }

    /// Whether a person has to decide. Otherwise the brokers are asked again.
    pub const fn needs_decision(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. })
    }
}

/// Where it is described how the offset is found.
const WHICH: &str = "which is found as the page \"Storing messages of Kafka in an inbox\" shows (\
                     docs/sql/inbox-run.md, Which offset)";

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted { stored, low } => write!(
                f,
                "up to {} records from offset {stored} on were deleted before they were stored; the oldest one has \
                 offset {low}",
                low - stored
            ),
            Self::Shorter { stored, high, .. } => write!(
                f,
                "the log ends at offset {high}, and everything before offset {stored} was stored; the records below \
                 offset {high} may be other ones than those that were stored"
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
            Self::Unstorable { at, reason, .. } => write!(
                f,
                "the table refuses the message of the record at offset {at} even as a dead one without type and trace: \
                 {reason}"
            ),
            Self::NoAnswer { error } => write!(f, "the brokers have no answer about it: {error}"),
        }
    }
}

impl Placing<'_> {
    /// Where each partition continues.
    pub(super) fn decide(&self, answers: BTreeMap<Partition, Answer>) -> Decisions {
        // A topic begins behind what is there with all of its partitions or with none: a partition that is begun later
        // is read from its beginning.
        let mut incomplete: BTreeMap<String, String> = BTreeMap::new();
        for (Partition { topic, number }, answer) in &answers {
            if let Err(error) = answer
                && self.begins(topic) == Some(StartAt::Latest)
            {
                incomplete.entry(topic.clone()).or_insert_with(|| {
                    format!(
                        "partition {number}: {error}; with start = \"latest\" all partitions of a topic begin together"
                    )
                });
            }
        }
        let decide = |partition: &Partition, answer: Answer| match answer {
            Ok(bounds) => match incomplete.get(&partition.topic) {
                Some(error) => (no_answer(error), bounds.topic_id),
                None => (self.decide_one(partition, &bounds), bounds.topic_id),
            },
            Err(error) => (no_answer(&error), None),
        };
        let answers = answers.into_iter();
        answers.map(|(of, answer)| (of.clone(), decide(&of, answer))).collect()
    }

    /// Where a topic begins; `None` if an offset of a partition is stored.
    pub(super) fn begins(&self, topic: &str) -> Option<StartAt> {
        let KnownTopics { here, elsewhere } = self.known;
        if here.contains(topic) {
            return None;
        }
        let is_named = self.named.iter().any(|named| named == topic);
        // A topic that a regular expression finds later has records that were written before it was noticed. One that
        // is known of another cluster may be the same after a move: nothing of it is passed over in silence.
        let is_later = !is_named && !here.is_empty();
        let is_earliest = is_later || elsewhere.contains(topic);
        Some(if is_earliest { StartAt::Earliest } else { self.start })
    }

    fn decide_one(&self, partition: &Partition, bounds: &PartitionBounds) -> Decision {
        let PartitionBounds { low, high, topic_id } = bounds;
        let (low, high) = (*low, *high);
        let Some(stored) = self.stored.get(partition) else {
            // A partition that was added later is read from its beginning: its first records may be older than the
            // moment at which it was noticed.
            let at = match self.begins(&partition.topic) {
                Some(StartAt::Latest) => high,
                Some(StartAt::Earliest) | None => low,
            };
            return Decision::Begin { at };
        };
        let at = stored.next;
        match (&stored.topic_id, topic_id) {
            // The topic may be another one.
            (Some(_), None) => return no_answer(NO_ID),
            (Some(stored), Some(now)) if stored != now => {
                return Decision::Blocked(Block::OtherTopic { stored: at, low, high });
            }
            (Some(_), Some(_)) | (None, _) => {}
        }
        if at < low {
            Decision::Blocked(Block::Deleted { stored: at, low })
        } else if at > high {
            Decision::Blocked(Block::Shorter { stored: at, low, high })
        } else {
            let is_id_new = stored.topic_id.is_none() && topic_id.is_some();
            Decision::Continue { at, low, is_id_new }
        }
    }
}

fn no_answer(error: &str) -> Decision {
    Decision::Blocked(Block::NoAnswer { error: error.to_owned() })
}

/// The error of a broker that has not said the id of a topic.
pub(super) const NO_ID: &str =
    "they do not say the id of the topic, and the stored offset is of a topic with an id";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(topic: &str, number: i32) -> Partition {
        Partition { topic: topic.to_owned(), number }
    }

    fn stored(next: i64, topic_id: Option<&str>) -> StoredOffset {
        StoredOffset { next, leader_epoch: Some(3), topic_id: topic_id.map(str::to_owned) }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the answer of a broker may be an error")]
    fn answer((low, high): (i64, i64), topic_id: Option<&str>) -> Answer {
        Ok(PartitionBounds { low, high, topic_id: topic_id.map(str::to_owned) })
    }

    /// One partition of a topic, whose offset is stored.
    fn continued(offset: StoredOffset, now: Answer) -> Decision {
        let (partition, named) = (of("orders", 0), ["orders".to_owned()]);
        let stored = BTreeMap::from([(partition.clone(), offset)]);
        let known = KnownTopics { here: ["orders".to_owned()].into(), ..KnownTopics::default() };
        let start = StartAt::Latest;
        let placing = Placing { stored: &stored, known: &known, start, named: &named };
        placing.decide(BTreeMap::from([(partition.clone(), now)])).remove(&partition).unwrap().0
    }

    /// The partitions of some topics, of which no offset is stored, with `start = "latest"`.
    fn begun(
        known: &KnownTopics,
        named: &[&str],
        answers: &[(Partition, Answer)],
    ) -> Vec<Decision> {
        let named: Vec<String> = named.iter().map(|&topic| topic.to_owned()).collect();
        let (stored, start) = (BTreeMap::new(), StartAt::Latest);
        let placing = Placing { stored: &stored, known, start, named: &named };
        let decided = placing.decide(answers.iter().cloned().collect());
        decided.into_values().map(|(decision, _)| decision).collect()
    }

    fn known(here: &[&str], elsewhere: &[&str]) -> KnownTopics {
        let of = |topics: &[&str]| topics.iter().map(|&topic| topic.to_owned()).collect();
        KnownTopics { here: of(here), elsewhere: of(elsewhere) }
    }

    #[test]
    fn a_stored_offset_within_the_log_is_where_the_partition_continues() {
        for at in [10, 15, 20] {
            let decision = continued(stored(at, Some("id")), answer((10, 20), Some("id")));
            assert_eq!(decision, Decision::Continue { at, low: 10, is_id_new: false });
        }
    }

    #[test]
    fn a_stored_offset_outside_of_the_log_blocks_the_partition() {
        let decide = |at| continued(stored(at, Some("id")), answer((10, 20), Some("id")));
        assert_eq!(decide(9), Decision::Blocked(Block::Deleted { stored: 9, low: 10 }));
        let shorter = Block::Shorter { stored: 21, low: 10, high: 20 };
        assert_eq!(decide(21), Decision::Blocked(shorter));
    }

    #[test]
    fn offsets_of_a_former_topic_are_not_used() {
        let other = continued(stored(15, Some("id")), answer((0, 20), Some("other")));
        assert_eq!(other, Decision::Blocked(Block::OtherTopic { stored: 15, low: 0, high: 20 }));
        // Without a stored id they are not compared, and a new one is stored.
        let continues = |is_id_new| Decision::Continue { at: 15, low: 0, is_id_new };
        assert_eq!(continued(stored(15, None), answer((0, 20), Some("id"))), continues(true));
        assert_eq!(continued(stored(15, None), answer((0, 20), None)), continues(false));
    }

    #[test]
    fn a_broker_that_does_not_say_the_id_of_a_topic_any_more_is_asked_again() {
        let decision = continued(stored(15, Some("id")), answer((0, 20), None));
        assert_eq!(decision, no_answer(NO_ID));
    }

    #[test]
    fn a_new_partition_begins_where_the_configuration_says_and_a_later_one_at_its_beginning() {
        let asked = [(of("orders", 0), answer((10, 20), None))];
        let begin = |known: KnownTopics, named: &[&str]| begun(&known, named, &asked);
        let at = |at| vec![Decision::Begin { at }];
        assert_eq!(begin(known(&[], &[]), &["orders"]), at(20));
        assert_eq!(begin(known(&["orders"], &[]), &["orders"]), at(10), "added later");
        assert_eq!(begin(known(&["payments"], &[]), &["orders"]), at(20));
        assert_eq!(begin(known(&[], &[]), &["^o"]), at(20));
        assert_eq!(begin(known(&["others"], &[]), &["^o"]), at(10), "found later");
        assert_eq!(begin(known(&[], &["orders"]), &["orders"]), at(10), "of another cluster");
    }

    #[test]
    fn a_partition_without_a_leader_is_asked_again_and_the_others_are_placed() {
        let none = || Err("it has no leader".to_owned());
        let asked = [(of("orders", 0), none()), (of("orders", 1), answer((10, 20), None))];
        let others = begun(&known(&["orders"], &[]), &["orders"], &asked);
        assert_eq!(others, [no_answer("it has no leader"), Decision::Begin { at: 10 }]);
        // A topic that begins with its newest records waits as a whole: what begins later is read from its beginning.
        let asked = [&asked[..], &[(of("payments", 0), answer((3, 4), None))]].concat();
        let together = begun(&known(&[], &[]), &["orders", "payments"], &asked);
        assert_eq!(together[0], no_answer("it has no leader"));
        let Decision::Blocked(Block::NoAnswer { error }) = &together[1] else {
            panic!("{together:?}")
        };
        assert!(error.starts_with("partition 0: it has no leader; with start"), "{error}");
        assert_eq!(together[2], Decision::Begin { at: 4 });
    }

    #[test]
    fn every_block_says_how_many_records_its_command_passes_over() {
        let all = [
            Block::Deleted { stored: 5, low: 12 },
            Block::Shorter { stored: 12, low: 0, high: 5 },
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

    /// Other records than the stored ones may have the offsets below the end of the log.
    #[test]
    fn of_a_log_that_ends_early_the_hint_says_how_many_records_latest_passes_over() {
        let block = Block::Shorter { stored: 100, low: 20, high: 90 };
        assert!(block.to_string().contains("below offset 90 may be other ones"), "{block}");
        let hint = block.hint("mail", "orders", 3);
        assert!(hint.contains("--to OFFSET") && hint.contains("up to 70 records"), "{hint}");
    }

    #[test]
    fn of_a_message_that_the_table_refuses_the_hint_names_the_constraint_and_passes_over_one_record()
     {
        let block = |constraint: Option<&str>| Block::Unstorable {
            at: 41,
            reason: "SQLSTATE 23514".to_owned(),
            constraint: constraint.map(str::to_owned),
        };
        assert!(block(None).to_string().contains("offset 41") && block(None).needs_decision());
        let hint = block(Some("positive")).hint("mail", "orders", 3);
        assert!(hint.starts_with("change constraint \"positive\" of"), "{hint}");
        assert!(hint.ends_with("--topic orders --partition 3 --to 42"), "{hint}");
        // A trigger has no name in the error.
        assert!(block(None).hint("mail", "orders", 3).starts_with("change the trigger or"));
    }

    #[test]
    fn a_partition_that_is_asked_again_needs_no_seek() {
        let block = Block::NoAnswer { error: "it has no leader".to_owned() };
        let hint = block.hint("mail", "orders", 3);
        assert!(!hint.contains("seek") && !block.needs_decision(), "{hint}");
    }
}
