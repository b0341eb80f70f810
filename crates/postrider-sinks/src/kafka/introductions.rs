//! Which partitions know a producer. One that does not is given a single record of it, and no other before that one has
//! its answer.
//!
//! A partition takes whatever request of a producer comes first, if it has not heard of that one. Where it refuses
//! one for a moment (its leader moves, a copy is missing) and takes the next, which was on its way behind it, the later
//! record is in the topic before the earlier. Once it has a record, it takes what follows in sequence alone (Kafka,
//! `ProducerAppendInfo.checkSequence`).
//!
//! Decides for the sink's thread, by producer and partition; hears of answers from librdkafka's. Knows no broker.

use postrider_core::record::Ticket;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A partition that got nothing for so many full hours is a stranger again: a broker forgets a producer whose last
/// record is older than `producer.id.expiration.ms`, a day unless somebody has set it.
const KNOWN_HOURS: u32 = 1;

const STRANGER: u8 = 0;
const ASKED: u8 = 1;
const KNOWN: u8 = 2;

/// What a partition has of a producer.
#[derive(Debug, Default)]
pub(super) struct Door(AtomicU8);

impl Door {
    /// Whether a record was answered for. Ordered against `Shared::full`: who finds it shut asks for `Retry` and looks
    /// again.
    pub(super) fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst) == KNOWN
    }
}

/// Whether a record may be handed to a producer.
#[derive(Debug)]
pub(super) enum Entry {
    /// As any other.
    Open,
    /// As the first of its partition: [`Firsts::hand_in`] it before it is sent.
    First(Arc<Door>),
    /// Not before the first one of its partition has its answer.
    Wait(Arc<Door>),
}

#[derive(Default)]
struct Partition {
    door: Arc<Door>,
    /// The hour in which it last got a record.
    hour: u32,
}

/// The partitions of one set of producers, as the sink's thread sees them.
#[derive(Default)]
pub(super) struct Introductions {
    /// Partition by partition, and within one producer by producer.
    topics: BTreeMap<String, Vec<Partition>>,
}

impl Introductions {
    /// Whether a record may go to this partition through this one of `shards` producers now. `hour` never goes back.
    #[inline]
    pub(super) fn enter(
        &mut self,
        (topic, partition): (&str, i32),
        (shard, shards): (usize, usize),
        hour: u32,
    ) -> Entry {
        let index = partition.unsigned_abs() as usize * shards + shard;
        if let Some(partition) = self.topics.get_mut(topic).and_then(|all| all.get_mut(index)) {
            return partition.enter(hour);
        }
        let all = self.topics.entry(topic.to_owned()).or_default();
        all.resize_with(all.len().max(index + 1), Partition::default);
        all[index].enter(hour)
    }
}

impl Partition {
    #[inline]
    fn enter(&mut self, hour: u32) -> Entry {
        let state = self.door.0.load(Ordering::SeqCst);
        if state == ASKED {
            return Entry::Wait(Arc::clone(&self.door));
        }
        let is_known = state == KNOWN && hour.saturating_sub(self.hour) <= KNOWN_HOURS;
        self.hour = hour;
        if is_known {
            return Entry::Open;
        }
        self.door.0.store(ASKED, Ordering::SeqCst);
        Entry::First(Arc::clone(&self.door))
    }
}

/// The records of one producer that are the first of their partitions and have no answer yet.
#[derive(Default)]
pub(super) struct Firsts {
    tickets: Mutex<BTreeMap<u64, Arc<Door>>>,
    /// How many: most reports come when there are none, and look no further.
    count: AtomicUsize,
}

impl Firsts {
    /// The record with this ticket is sent next.
    pub(super) fn hand_in(&self, ticket: Ticket, door: Arc<Door>) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.insert(ticket.0, door);
        self.count.store(tickets.len(), Ordering::Release);
    }

    /// The producer did not take it: the next one is the first.
    pub(super) fn take_back(&self, ticket: Ticket) {
        if let Some(door) = self.remove(ticket) {
            door.0.store(STRANGER, Ordering::SeqCst);
        }
    }

    /// A broker said that it has the record.
    #[inline]
    pub(super) fn answered(&self, ticket: Ticket) {
        if self.count.load(Ordering::Acquire) > 0
            && let Some(door) = self.remove(ticket)
        {
            door.0.store(KNOWN, Ordering::SeqCst);
        }
    }

    fn remove(&self, ticket: Ticket) -> Option<Arc<Door>> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let door = tickets.remove(&ticket.0);
        self.count.store(tickets.len(), Ordering::Release);
        door
    }
}

#[cfg(test)]
mod tests;
