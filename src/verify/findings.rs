//! What a comparison has found: a count for each kind of finding, and the first places of each.

use std::collections::BTreeMap;

/// What became of an event of the source, or what is known of a record of the topics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum VerifyFinding {
    // Events of the source: each counts once.
    /// A record of the event is in the topic.
    Published,
    /// Parked, and to be attempted again.
    Parked,
    /// Parked and dead.
    Dead,
    /// Skipped by an operator.
    Skipped,
    /// Its row is, or may be, from before the pipeline.
    Before,
    /// Not known to be published yet.
    NotReached,
    /// It has expired, and may have been skipped for that.
    Expired,
    /// No record can be made of its row.
    Unpublishable,
    /// The ledger does not know whether it was committed.
    OutcomeUnknown,
    /// The ledger says that it was rolled back, and there is no record.
    RolledBack,
    /// Its record is outside of the range of positions.
    OutsideRange,
    /// Several events have its id, and there are records with this id: which of them are there is not known.
    SharedId,
    /// There is no record in the part of the topics that was read, and the rest was not asked for.
    NotJudged,
    /// There is no record; it may have been in a part of the topic that was removed.
    Unproven,
    /// There is a record with its id, but with another topic or key.
    Different,
    /// There is no record, and nothing explains that.
    Lost,
    // Records.
    /// A further record of an event.
    Repeated,
    /// The record of a replay.
    Replayed,
    /// The first record of an event is behind that of a later event of its aggregate.
    Swapped,
    /// As [`Self::Swapped`], but it may be the repetition of a record that was removed from the topic.
    OrderUnproven,
    /// The order of the record is not known: the record has no position.
    WithoutOrder,
    /// The record of an event that was rolled back.
    Unexpected,
    /// The record of another pipeline.
    OtherSource,
    /// The source does not have its id.
    NotInSource,
    /// It has no readable id: another program has written it.
    WithoutId,
}

impl VerifyFinding {
    /// Those of events, in the order in which they are printed.
    pub const OF_EVENTS: [Self; 16] = [
        Self::Published,
        Self::Parked,
        Self::Dead,
        Self::Skipped,
        Self::Before,
        Self::NotReached,
        Self::Expired,
        Self::Unpublishable,
        Self::OutcomeUnknown,
        Self::RolledBack,
        Self::OutsideRange,
        Self::SharedId,
        Self::NotJudged,
        Self::Unproven,
        Self::Different,
        Self::Lost,
    ];

    /// Those of records.
    pub const OF_RECORDS: [Self; 9] = [
        Self::Repeated,
        Self::Replayed,
        Self::Swapped,
        Self::OrderUnproven,
        Self::WithoutOrder,
        Self::Unexpected,
        Self::OtherSource,
        Self::NotInSource,
        Self::WithoutId,
    ];

    /// The name, for JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Parked => "parked",
            Self::Dead => "dead",
            Self::Skipped => "skipped",
            Self::Before => "before_pipeline",
            Self::NotReached => "not_reached",
            Self::Expired => "expired",
            Self::Unpublishable => "unpublishable",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::RolledBack => "rolled_back",
            Self::OutsideRange => "outside_range",
            Self::SharedId => "shared_id",
            Self::NotJudged => "not_judged",
            Self::Unproven => "unproven",
            Self::Different => "different",
            Self::Lost => "lost",
            Self::Repeated => "repeated",
            Self::Replayed => "replayed",
            Self::Swapped => "swapped",
            Self::OrderUnproven => "order_unproven",
            Self::WithoutOrder => "without_order",
            Self::Unexpected => "unexpected",
            Self::OtherSource => "other_source",
            Self::NotInSource => "not_in_source",
            Self::WithoutId => "without_id",
        }
    }
}

/// Where something was found. Never a payload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyExample {
    /// The id of the event; `None` of a record without a readable one.
    pub id: Option<String>,
    /// The topic: of the record, or to which the event is routed.
    pub topic: String,
    /// Partition and offset of the record; `None` if there is no record.
    pub place: Option<(i32, i64)>,
    /// The later event that is before it: its id, and the offset of its record.
    pub behind: Option<(String, i64)>,
}

/// Counts and examples.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VerifyFindings {
    counts: BTreeMap<VerifyFinding, u64>,
    examples: BTreeMap<VerifyFinding, Vec<VerifyExample>>,
    /// Examples of each finding, at most.
    most: usize,
}

impl VerifyFindings {
    /// None yet, with so many examples of each at most.
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// How often it was found.
    pub fn count(&self, finding: VerifyFinding) -> u64 {
        self.counts.get(&finding).copied().unwrap_or_default()
    }

    /// The first of them, in the order in which they were found.
    pub fn examples(&self, finding: VerifyFinding) -> &[VerifyExample] {
        self.examples.get(&finding).map_or(&[], Vec::as_slice)
    }

    /// Counts one without an example.
    pub(super) fn add(&mut self, finding: VerifyFinding) {
        *self.counts.entry(finding).or_default() += 1;
    }

    /// Whether there is room for one more example.
    pub(super) fn wants_example(&self, finding: VerifyFinding) -> bool {
        self.examples(finding).len() < self.most
    }

    /// Counts one, and keeps it as an example if there is room.
    pub(super) fn add_example(&mut self, finding: VerifyFinding, example: VerifyExample) {
        self.add(finding);
        let examples = self.examples.entry(finding).or_default();
        if examples.len() < self.most {
            examples.push(example);
        }
    }
}
