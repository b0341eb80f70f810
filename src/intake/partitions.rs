//! What an intake knows of the partitions that the group has given to it: which are read, from which offset, and which
//! wait for the decision of a person.

use crate::inbox::batch::{Batch, Partition};
use crate::inbox::kafka::{Block, Decision, Decisions};
use crate::inbox::mapping::{KafkaRecord, MessageRules, Requirements};
use crate::inbox::store::StoredOffset;
use crate::intake_status::BlockedPartition;
use std::collections::{BTreeMap, BTreeSet};

/// The assigned partitions.
#[derive(Debug, Default)]
pub(super) struct Partitions {
    /// The id of the cluster; empty if its brokers have none.
    cluster: String,
    /// The partitions that the group has given to this process.
    assigned: BTreeSet<Partition>,
    /// Those that are fetched: by topic and number, so that a record finds its place without an allocation.
    places: BTreeMap<String, TopicPlaces>,
    /// Those that wait for a decision of a person, or for an answer of the brokers, and their stored offsets.
    blocked: BTreeMap<Partition, (Block, Option<StoredOffset>)>,
    /// Partitions whose log was truncated, and the stored offset and epoch at which that was found: they are blocked as
    /// long as these are stored.
    truncated: BTreeMap<Partition, (i64, i32)>,
}

/// The partitions of a topic that are fetched.
#[derive(Debug, Default)]
struct TopicPlaces {
    /// The id of the topic; `None` if the broker has no ids.
    id: Option<String>,
    partitions: BTreeMap<i32, Place>,
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
}

impl Place {
    /// Where a partition continues; `low` is the offset of the oldest record.
    fn at(offset: &StoredOffset, low: i64) -> Self {
        let before = offset.next - 1;
        let last = offset.leader_epoch.filter(|_| before >= low).map(|epoch| (before, epoch));
        Self { stored: offset.next, next: offset.next, last, is_truncated: false }
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
        let takes = !self.is_truncated && record.offset >= self.next;
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
        self.places.clear();
    }

    /// From now on the records are of this cluster.
    pub(super) fn set_cluster(&mut self, cluster: String) {
        self.cluster = cluster;
    }

    /// Follows the decisions about what is assigned. Returns the offset from which each partition is fetched.
    ///
    /// # Errors
    /// The partition, if its offset is not stored any more.
    pub(super) fn place(
        &mut self,
        decisions: Decisions,
        stored: &BTreeMap<Partition, StoredOffset>,
    ) -> Result<BTreeMap<Partition, i64>, Partition> {
        self.places.clear();
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
        match decision {
            Decision::Blocked(block) => Err(block.clone()),
            Decision::Continue { .. } if truncated_at.is_some() && truncated_at == stored_at => {
                Err(Block::Truncated { stored: offset.next })
            }
            Decision::Continue { low, .. } | Decision::Begin { at: low } => Ok(*low),
        }
    }

    /// Number of partitions that are fetched.
    pub(super) fn fetched(&self) -> usize {
        self.places.values().map(|topic| topic.partitions.len()).sum()
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

    /// The last stored record of a partition is another one than the one that was stored: the partition is blocked from
    /// the next time that it is placed, until another offset or epoch is stored.
    pub(super) fn is_truncated(&mut self, partition: Partition) {
        let topic = self.places.get(&partition.topic);
        let place = topic.and_then(|topic| topic.partitions.get(&partition.number));
        if let Some(Place { stored, last: Some((_, epoch)), .. }) = place {
            self.truncated.insert(partition, (*stored, *epoch));
        }
    }

    /// The records of a batch are stored, and the offsets behind them.
    pub(super) fn stored(&mut self, batch: &Batch) {
        for (partition, span) in batch.spans() {
            let topic = self.places.get_mut(&partition.topic);
            let place = topic.and_then(|topic| topic.partitions.get_mut(&partition.number));
            if let Some(place) = place {
                place.stored = span.next;
            }
        }
    }

    /// The stored offset of each partition that is fetched.
    pub(super) fn offsets(&self) -> BTreeMap<Partition, i64> {
        let mut offsets = BTreeMap::new();
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
        let shown = self.blocked.iter().map(|(partition, (block, _))| BlockedPartition {
            topic: partition.topic.clone(),
            partition: partition.number,
            code: block.name(),
            reason: block.to_string(),
            hint: block.hint(intake, &partition.topic, partition.number),
            needs_decision: block.needs_decision(),
        });
        shown.collect()
    }

    /// The partitions about which the brokers had no answer.
    pub(super) fn unanswered(&self) -> BTreeSet<Partition> {
        let blocked = self.blocked.iter().filter(|(_, (block, _))| !block.needs_decision());
        blocked.map(|(partition, _)| partition.clone()).collect()
    }

    /// The partitions that wait for a decision of a person, or for an answer of the brokers.
    pub(super) fn waiting(&self) -> Vec<Partition> {
        self.blocked.keys().cloned().collect()
    }

    /// Whether a person has decided about one of them. The whole stored offset is compared: a seek to the same offset,
    /// in another topic or in a log that was truncated, is a decision.
    pub(super) fn is_decided(&self, stored: &BTreeMap<Partition, StoredOffset>) -> bool {
        let mut blocked = self.blocked.iter();
        blocked.any(|(partition, (_, before))| stored.get(partition) != before.as_ref())
    }
}
