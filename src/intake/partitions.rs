//! What an intake knows of the partitions that the group has given to it: which are read, from which offset, and which
//! wait for the decision of a person.

use crate::backoff::Backoff;
use crate::inbox::batch::{Batch, Partition};
use crate::inbox::kafka::{Block, Decision, Decisions};
use crate::inbox::mapping::{KafkaRecord, MessageRules};
use crate::inbox::message::Requirements;
use crate::inbox::store::StoredOffset;
use crate::intake_status::BlockedPartition;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Pauses before a message that the table refuses is tried again. A try makes all partitions pause for a moment.
const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(1));

/// The assigned partitions.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    /// The id of the cluster; empty if its brokers have none.
    cluster: String,
    /// The partitions that the group has given to this process.
    assigned: BTreeSet<Partition>,
    /// Those that are fetched: by topic and number, so that a record finds its place without an allocation.
    places: BTreeMap<String, TopicPlaces>,
    /// The stored offsets of those that were fetched, while none is.
    held: BTreeMap<Partition, i64>,
    /// Those that wait for a decision of a person, or for an answer of the brokers, and their stored offsets.
    blocked: BTreeMap<Partition, (Block, Option<StoredOffset>)>,
    /// Partitions whose log was truncated, and the stored offset and epoch at which that was found: they are blocked as
    /// long as these are stored.
    truncated: BTreeMap<Partition, (i64, i32)>,
    /// Offsets at which the client could not read a record, and what it said: the partition is blocked until a later
    /// offset is stored.
    unreadable: BTreeMap<Partition, (i64, String)>,
    /// Messages that the table refuses, one of each partition at most: the partition is blocked while it is at that
    /// offset, and between two tries.
    unstorable: BTreeMap<Partition, UnstorableRecord>,
    /// A partition is to be blocked: they are to be placed again when what was read is stored.
    is_due: bool,
}

/// The partitions of a topic that are fetched.
#[derive(Debug, Default)]
struct TopicPlaces {
    /// The id of the topic; `None` if the broker has no ids.
    id: Option<String>,
    partitions: BTreeMap<i32, Place>,
}

/// A record whose message the table refuses.
#[derive(Clone, Debug)]
struct UnstorableRecord {
    at: i64,
    reason: String,
    constraint: Option<String>,
    /// When it is tried again.
    retry_at: Instant,
    backoff: Backoff,
    /// It is being tried: the partition is fetched, and shown as blocked until it is stored.
    is_tried: bool,
}

impl UnstorableRecord {
    fn block(&self) -> Block {
        let (reason, constraint) = (self.reason.clone(), self.constraint.clone());
        Block::Unstorable { at: self.at, reason, constraint }
    }
}

/// How far a partition is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The stored offset.
    stored: i64,
    /// The offset behind the last record that was read.
    next: i64,
    /// Offset and epoch of the last record that was stored before the partition was placed. That record is read once
    /// more: if the record that has its offset now is of another epoch, the log was truncated, and has other records
    /// since.
    last: Option<(i64, i32)>,
    /// That was found. Nothing more is read.
    is_truncated: bool,
    /// A record could not be read. The client goes on behind it, and nothing more is taken.
    is_closed: bool,
}

impl Place {
    /// Where a partition continues; `low` is the offset of the oldest record.
    fn at(offset: &StoredOffset, low: i64) -> Self {
        let before = offset.next - 1;
        let last = offset.leader_epoch.filter(|_| before >= low).map(|epoch| (before, epoch));
        Self { stored: offset.next, next: offset.next, last, is_truncated: false, is_closed: false }
    }

    /// The offset at which fetching begins.
    fn fetched_from(&self) -> i64 {
        self.last.map_or(self.stored, |(before, _)| before)
    }

    /// Whether a record is to be stored. A record that was read before is not, nor one that is only compared.
    fn takes(&mut self, record: &KafkaRecord<'_>) -> bool {
        if let Some((offset, epoch)) = self.last {
            let is_other = record.leader_epoch.is_some_and(|now| now != epoch);
            self.is_truncated |= offset == record.offset && is_other;
        }
        let takes = !self.is_truncated && !self.is_closed && record.offset >= self.next;
        if takes {
            self.next = record.offset + 1;
        }
        takes
    }
}

impl Partitions {
    /// The group has given these partitions, and no others.
    pub(super) fn assign(&mut self, partitions: Vec<Partition>) {
        self.assigned = partitions.into_iter().collect();
        self.unstorable.retain(|partition, _| self.assigned.contains(partition));
    }

    /// The group has taken all partitions away.
    pub(super) fn revoke(&mut self) {
        self.assigned.clear();
        self.blocked.clear();
    }

    /// The partitions that the group has given.
    pub(super) const fn assigned(&self) -> &BTreeSet<Partition> {
        &self.assigned
    }

    /// Nothing is fetched any more. What was read and is not stored is read again.
    pub(super) fn hold(&mut self) {
        self.held = self.offsets();
        self.held.retain(|partition, _| self.assigned.contains(partition));
        self.places.clear();
        self.is_due = false;
    }

    /// Whether the partitions are to be placed again when what was read is stored.
    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    /// From now on the records are of this cluster.
    pub(super) fn set_cluster(&mut self, cluster: String) {
        self.cluster = cluster;
    }

    /// Whether a message that the table refused is to be tried again. The partitions are placed again for that.
    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        self.unstorable.values().any(|it| !it.is_tried && it.retry_at <= now)
    }

    /// Follows the decisions about what is assigned. Returns the offset from which each partition is fetched.
    ///
    /// # Errors
    /// The partition, if its offset is not stored any more.
    pub(super) fn place(
        &mut self,
        decisions: Decisions,
        stored: &BTreeMap<Partition, StoredOffset>,
        now: Instant,
    ) -> Result<BTreeMap<Partition, i64>, Partition> {
        if self.is_retry_due(now) {
            // All at once: each try makes all partitions pause.
            self.unstorable.values_mut().for_each(|it| it.is_tried = true);
        }
        self.places.clear();
        self.held.clear();
        self.blocked.clear();
        let mut fetched_from = BTreeMap::new();
        for (partition, (decision, topic_id)) in decisions {
            if !self.assigned.contains(&partition) {
                continue;
            }
            let offset = stored.get(&partition);
            if let Decision::Blocked(block @ Block::NoAnswer { .. }) = decision {
                self.blocked.insert(partition, (block, offset.cloned()));
                continue;
            }
            let Some(offset) = offset else { return Err(partition) };
            let low = match self.block(&partition, &decision, offset) {
                Ok(low) => low,
                Err(block) => {
                    self.blocked.insert(partition, (block, Some(offset.clone())));
                    continue;
                }
            };
            let place = Place::at(offset, low);
            let topic = self.places.entry(partition.topic.clone()).or_default();
            topic.id = topic_id;
            topic.partitions.insert(partition.number, place);
            fetched_from.insert(partition, place.fetched_from());
        }
        // A seek has passed it, another process has stored it, or the partition is blocked for another reason now. Of
        // one whose predecessors could not be stored after it was refused, it is found again.
        let Self { unstorable, places, blocked, .. } = self;
        unstorable.retain(|partition, it| {
            let block = blocked.get(partition).map(|(block, _)| block);
            let topic = places.get(&partition.topic);
            let place = topic.and_then(|topic| topic.partitions.get(&partition.number));
            matches!(block, Some(Block::Unstorable { .. }))
                || place.is_some_and(|place| place.stored == it.at)
        });
        Ok(fetched_from)
    }

    /// The offset of the oldest record of a partition that is fetched.
    ///
    /// # Errors
    /// Why the partition is not fetched.
    fn block(
        &self,
        partition: &Partition,
        decision: &Decision,
        offset: &StoredOffset,
    ) -> Result<i64, Block> {
        let stored_at = offset.leader_epoch.map(|epoch| (offset.next, epoch));
        let truncated_at = self.truncated.get(partition).copied();
        let unreadable = self.unreadable.get(partition).filter(|(at, _)| offset.next <= *at);
        let unstorable = self.unstorable.get(partition);
        let unstorable = unstorable.filter(|it| it.at == offset.next && !it.is_tried);
        match decision {
            Decision::Blocked(block) => Err(block.clone()),
            Decision::Continue { .. } if let Some((at, reason)) = unreadable => {
                Err(Block::Unreadable { at: *at, reason: reason.clone() })
            }
            Decision::Continue { .. } if let Some(unstorable) = unstorable => {
                Err(unstorable.block())
            }
            Decision::Continue { .. } if truncated_at.is_some() && truncated_at == stored_at => {
                Err(Block::Truncated { stored: offset.next })
            }
            Decision::Continue { low, .. } | Decision::Begin { at: low } => Ok(*low),
        }
    }

    /// The ids of the topics that are fetched, of those that have one.
    pub(super) fn topic_ids(&self) -> BTreeMap<&str, &str> {
        let ids =
            self.places.iter().map(|(topic, places)| Some((topic.as_str(), places.id.as_deref()?)));
        ids.flatten().collect()
    }

    /// Number of partitions that are fetched.
    pub(super) fn fetched(&self) -> usize {
        self.places.values().map(|topic| topic.partitions.len()).sum()
    }

    /// Number of partitions that are read: without those of which only a refused message is tried again.
    pub(super) fn read(&self) -> usize {
        self.fetched() - self.tried().count()
    }

    /// Whether a refused message of a partition is being tried again.
    pub(super) fn is_tried(&self, partition: &Partition) -> bool {
        self.unstorable.get(partition).is_some_and(|it| it.is_tried)
    }

    /// The partitions of which a refused message is being tried again.
    fn tried(&self) -> impl Iterator<Item = (&Partition, &UnstorableRecord)> {
        self.unstorable.iter().filter(|(partition, it)| {
            let topic = self.places.get(&partition.topic);
            it.is_tried && topic.is_some_and(|it| it.partitions.contains_key(&partition.number))
        })
    }

    /// Adds a record to the batch, unless it was read before, or its partition is not fetched any more.
    ///
    /// # Errors
    /// The partition, if its log was truncated.
    pub(super) fn take(
        &mut self,
        batch: &mut Batch,
        (rules, requirements): (&MessageRules, &Requirements),
        record: &KafkaRecord<'_>,
    ) -> Result<(), Partition> {
        let Self { cluster, places, .. } = self;
        let Some(topic) = places.get_mut(record.topic) else { return Ok(()) };
        let Some(place) = topic.partitions.get_mut(&record.partition) else { return Ok(()) };
        if !place.takes(record) {
            let of = || Partition { topic: record.topic.to_owned(), number: record.partition };
            return if place.is_truncated { Err(of()) } else { Ok(()) };
        }
        let record = KafkaRecord { cluster, topic_id: topic.id.as_deref(), ..*record };
        let message = rules.message(&record, requirements);
        let of = (record.topic, record.partition);
        batch.push_record(message, of, (place.stored, record.offset), record.leader_epoch);
        Ok(())
    }

    /// Every record of a partition before `end` was read: lets the batch take it there, if its last record is not the
    /// one before `end`.
    pub(super) fn ends(&mut self, batch: &mut Batch, partition: &Partition, end: i64) {
        let topic = self.places.get_mut(&partition.topic);
        let place = topic.and_then(|topic| topic.partitions.get_mut(&partition.number));
        if let Some(place) = place
            && !place.is_truncated
            && !place.is_closed
            && end > place.next
        {
            place.next = end;
            batch.push_end(partition, place.stored, end);
        }
    }

    /// The client can't read the record at an offset. Nothing behind it is taken.
    pub(super) fn is_unreadable(&mut self, partition: Partition, at: i64, reason: &str) {
        let topic = self.places.get_mut(&partition.topic);
        let place = topic.and_then(|topic| topic.partitions.get_mut(&partition.number));
        if let Some(place) = place
            && !place.is_closed
        {
            place.is_closed = true;
            self.is_due = true;
            self.unreadable.insert(partition, (at.max(place.next), reason.to_owned()));
        }
    }

    /// The table refuses the message of the record at an offset, of a partition that is fetched. Nothing from it on is
    /// taken. What precedes it is in the batch; without it the message would be found again.
    pub(super) fn is_unstorable(
        &mut self,
        partition: Partition,
        at: i64,
        (reason, constraint): (String, Option<String>),
        now: Instant,
    ) {
        let topic = self.places.get_mut(&partition.topic);
        let place = topic.and_then(|topic| topic.partitions.get_mut(&partition.number));
        let Some(place) = place else { return };
        place.is_closed = true;
        self.is_due = true;
        let before = self.unstorable.get(&partition).filter(|before| before.at == at);
        let mut backoff = before.map_or(RETRY, |before| before.backoff);
        let retry_at = now + backoff.next(fastrand::f64());
        let record =
            UnstorableRecord { at, reason, constraint, retry_at, backoff, is_tried: false };
        self.unstorable.insert(partition, record);
    }

    /// The last stored record of a partition is another one than the one that was stored: the partition is blocked from
    /// the next time that it is placed, until another offset or epoch is stored.
    pub(super) fn is_truncated(&mut self, partition: Partition) {
        let topic = self.places.get(&partition.topic);
        let place = topic.and_then(|topic| topic.partitions.get(&partition.number));
        if let Some(Place { stored, last: Some((_, epoch)), .. }) = place {
            self.truncated.insert(partition, (*stored, *epoch));
        }
    }

    /// The records of a batch are stored, and the offsets behind them. Returns whether a message that was refused is
    /// among them.
    pub(super) fn stored(&mut self, batch: &Batch) -> bool {
        let mut ends_block = false;
        for ((topic, number), span) in batch.spans() {
            let places = self.places.get_mut(topic);
            if let Some(place) = places.and_then(|places| places.partitions.get_mut(&number)) {
                place.stored = span.next;
            }
            if !self.unstorable.is_empty() {
                let partition = Partition { topic: topic.to_owned(), number };
                if self.unstorable.get(&partition).is_some_and(|it| it.at < span.next) {
                    self.unstorable.remove(&partition);
                    ends_block = true;
                }
            }
        }
        ends_block
    }

    /// The stored offset of each partition that is fetched, or was before all were held.
    pub(super) fn offsets(&self) -> BTreeMap<Partition, i64> {
        let mut offsets = self.held.clone();
        for (topic, places) in &self.places {
            for (number, place) in &places.partitions {
                let partition = Partition { topic: topic.clone(), number: *number };
                offsets.insert(partition, place.stored);
            }
        }
        offsets
    }

    /// The partitions that wait for a decision, as `/status` shows them for an intake of this name.
    pub(super) fn blocked(&self, intake: &str) -> Vec<BlockedPartition> {
        let blocked = self.blocked.iter().map(|(partition, (block, _))| (partition, block.clone()));
        let tried = self.tried().map(|(partition, record)| (partition, record.block()));
        let shown = blocked.chain(tried).map(|(partition, block)| BlockedPartition {
            topic: partition.topic.clone(),
            partition: partition.number,
            code: block.name(),
            reason: block.to_string(),
            hint: block.hint(intake, &partition.topic, partition.number),
            needs_decision: block.needs_decision(),
        });
        shown.collect()
    }

    /// Whether another process or a person has changed a stored offset. Of a blocked partition the whole stored offset
    /// is compared: a seek to the same offset, in another topic or in a log that was truncated, is a decision.
    pub(super) fn is_moved(&self, stored: &BTreeMap<Partition, StoredOffset>) -> bool {
        let of_fetched = |(partition, next): (&Partition, &i64)| {
            stored.get(partition).map(|offset| offset.next) != Some(*next)
        };
        let mut blocked = self.blocked.iter();
        self.offsets().iter().any(of_fetched)
            || blocked.any(|(partition, (_, before))| stored.get(partition) != before.as_ref())
    }

    /// Whether a partition has no stored offset any more.
    pub(super) fn are_lost(&self, stored: &BTreeMap<Partition, StoredOffset>) -> bool {
        let had = self.blocked.iter().filter(|(_, (_, before))| before.is_some());
        had.map(|(partition, _)| partition)
            .chain(self.offsets().keys())
            .any(|partition| !stored.contains_key(partition))
    }

    /// The partitions about which the brokers had no answer.
    pub(super) fn unanswered(&self) -> BTreeSet<Partition> {
        let blocked = self.blocked.iter().filter(|(_, (block, _))| !block.needs_decision());
        blocked.map(|(partition, _)| partition.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition() -> Partition {
        Partition { topic: "orders".to_owned(), number: 0 }
    }

    fn stored(next: i64) -> BTreeMap<Partition, StoredOffset> {
        let offset = StoredOffset { next, leader_epoch: None, topic_id: None };
        BTreeMap::from([(partition(), offset)])
    }

    /// Partition 0, read from an offset on.
    fn at(next: i64) -> Partitions {
        let mut partitions = Partitions::default();
        partitions.assign(vec![partition()]);
        place(&mut partitions, next);
        partitions
    }

    fn place(partitions: &mut Partitions, next: i64) {
        let decision = Decision::Continue { low: 0, at: next, is_id_new: false };
        let decisions = Decisions::from([(partition(), (decision, None))]);
        place_at(partitions, decisions, next, Instant::now());
    }

    fn place_at(partitions: &mut Partitions, decisions: Decisions, next: i64, now: Instant) {
        partitions.place(decisions, &stored(next), now).expect("an offset is stored");
    }

    fn read(partitions: &mut Partitions, batch: &mut Batch, offset: i64) {
        let record = KafkaRecord {
            cluster: "",
            topic: "orders",
            topic_id: None,
            partition: 0,
            offset,
            leader_epoch: None,
            timestamp_ms: None,
            key: None,
            value: None,
            headers: &[],
        };
        let rules = (&MessageRules::default(), &Requirements::default());
        partitions.take(batch, rules, &record).expect("no truncation");
    }

    fn spans(batch: &Batch) -> Vec<(i64, i64)> {
        batch.spans().map(|(_, span)| (span.from, span.next)).collect()
    }

    #[test]
    fn marks_of_transactions_behind_the_last_record_are_passed_once() {
        let (mut partitions, mut batch) = (at(5), Batch::default());
        read(&mut partitions, &mut batch, 5);
        partitions.ends(&mut batch, &partition(), 6);
        assert_eq!(spans(&batch), [(5, 6)]);
        partitions.ends(&mut batch, &partition(), 8);
        assert_eq!((spans(&batch), batch.len()), (vec![(5, 8)], 1));
        partitions.stored(&batch);
        batch.clear();
        partitions.ends(&mut batch, &partition(), 8);
        assert!(batch.is_empty());
        partitions.ends(&mut batch, &partition(), 9);
        assert_eq!((spans(&batch), batch.len()), (vec![(8, 9)], 0));
        assert_eq!(partitions.offsets()[&partition()], 8);
    }

    #[test]
    fn nothing_behind_a_record_that_can_not_be_read_is_taken() {
        let (mut partitions, mut batch) = (at(5), Batch::default());
        read(&mut partitions, &mut batch, 5);
        partitions.is_unreadable(partition(), 6, "CRC");
        read(&mut partitions, &mut batch, 7);
        partitions.ends(&mut batch, &partition(), 9);
        assert_eq!((spans(&batch), partitions.is_due()), (vec![(5, 6)], true));
        partitions.hold();
        place(&mut partitions, 6);
        assert_eq!((partitions.fetched(), partitions.is_due()), (0, false));
        let blocked = partitions.blocked("jobs");
        assert_eq!(blocked[0].code, "record_unreadable");
        assert!(blocked[0].reason.contains("offset 6") && blocked[0].reason.contains("CRC"));
        assert!(blocked[0].hint.contains("--to OFFSET"));
        // A person has let it go on behind the record.
        place(&mut partitions, 7);
        assert_eq!(partitions.fetched(), 1);
    }

    #[test]
    fn a_refused_message_blocks_its_partition_between_two_tries() {
        let (mut partitions, mut batch) = (at(5), Batch::default());
        let start = Instant::now();
        let decisions = || {
            let decision = Decision::Continue { low: 0, at: 6, is_id_new: false };
            Decisions::from([(partition(), (decision, None))])
        };
        let refuse = |partitions: &mut Partitions, now: Instant| {
            let said = ("no".to_owned(), Some("small".to_owned()));
            partitions.is_unstorable(partition(), 6, said, now);
        };
        let counts = |partitions: &Partitions| {
            (partitions.fetched(), partitions.read(), partitions.blocked("jobs").len())
        };
        read(&mut partitions, &mut batch, 5);
        refuse(&mut partitions, start);
        read(&mut partitions, &mut batch, 7);
        partitions.ends(&mut batch, &partition(), 9);
        assert_eq!((spans(&batch), partitions.is_due()), (vec![(5, 6)], true));
        assert!(!partitions.stored(&batch), "it is not the message that was refused");
        partitions.hold();
        place_at(&mut partitions, decisions(), 6, start);
        assert_eq!(counts(&partitions), (0, 0, 1));
        let blocked = partitions.blocked("jobs").remove(0);
        assert_eq!((blocked.code, blocked.needs_decision), ("message_unstorable", true));
        assert!(
            blocked.hint.contains("\"small\"") && blocked.hint.contains("--to 7"),
            "{blocked:?}"
        );
        // It is tried after five seconds at most, then after a minute at most, and shown as blocked meanwhile.
        let mut now = start;
        for pause in [5, 10, 20, 40, 60, 60] {
            now += Duration::from_secs(pause);
            assert!(partitions.is_retry_due(now), "{pause}");
            partitions.hold();
            place_at(&mut partitions, decisions(), 6, now);
            assert_eq!(counts(&partitions), (1, 0, 1));
            assert!(!partitions.is_retry_due(now));
            refuse(&mut partitions, now);
            partitions.hold();
            place_at(&mut partitions, decisions(), 6, now);
            assert_eq!(counts(&partitions), (0, 0, 1));
        }
        partitions.hold();
        place_at(&mut partitions, decisions(), 6, now + Duration::from_mins(1));
        batch.clear();
        read(&mut partitions, &mut batch, 6);
        assert!(partitions.stored(&batch));
        assert_eq!(counts(&partitions), (1, 1, 0));
    }

    #[test]
    fn a_refused_message_is_found_again_if_what_precedes_it_was_not_stored() {
        let (mut partitions, mut batch) = (at(5), Batch::default());
        read(&mut partitions, &mut batch, 5);
        partitions.is_unstorable(partition(), 6, ("no".to_owned(), None), Instant::now());
        partitions.hold();
        place(&mut partitions, 5);
        assert_eq!((partitions.fetched(), partitions.blocked("jobs").len()), (1, 0));
        // A seek passes it.
        partitions.is_unstorable(partition(), 5, ("no".to_owned(), None), Instant::now());
        partitions.hold();
        place(&mut partitions, 5);
        assert_eq!((partitions.fetched(), partitions.blocked("jobs").len()), (0, 1));
        place(&mut partitions, 6);
        assert_eq!((partitions.fetched(), partitions.blocked("jobs").len()), (1, 0));
    }
}
