//! Whose turn it is, where more partitions have records than a broker answers for at a time.
//!
//! librdkafka puts one partition into a request, and takes the next one from where its loop happens to stand: behind a
//! broker at its limit a record waits by luck, now not at all, now for five times the mean. So only some partitions
//! have records in its hands at a time, and the others wait here, in the order in which they came
//! (`docs/decisions/batching.md`), for a while at most. A backlog knows no turns: full batches count there. What waits
//! is in flight for the caller, who bounds it.
//!
//! Decides for the sink's thread, by line: a partition of a topic. Knows no producer, and not what waits.

#[cfg(test)]
mod first_record_tests;
#[cfg(test)]
mod tests;

use postrider_core::record::Ticket;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Partitions of a broker that may have records in librdkafka's hands before others wait: what an event or ten bring to
/// a broker that has nothing else to do goes at once.
const AT_ONCE: usize = 12;

/// The same while others wait. A connection has five requests on their way; the other partitions are for the time that
/// an answer takes to be told.
const IN_HAND: usize = 8;

/// How long a record waits for a turn at most: those that have theirs may be another broker's, which does not answer.
const PATIENCE: Duration = Duration::from_millis(100);

/// So many records without an answer are a backlog, with those that wait.
const BACKLOG: u64 = 1_000;

/// A partition.
struct Line<T> {
    waiting: VecDeque<T>,
    /// It is among [`Turns::busy`].
    is_busy: bool,
    /// The number of the record of it that was handed over last.
    last: u64,
}

/// The lines of a sink, and what waits in them.
///
/// Records are numbered as they are handed over; as many as are acknowledged count as answered. That is not exact,
/// since answers come in another order; it comes right as soon as all are there.
pub(super) struct Turns<T> {
    /// Somebody asks whose turn it is. Nobody waits before that.
    asked: bool,
    topics: BTreeMap<String, Vec<usize>>,
    lines: Vec<Line<T>>,
    /// Lines in which something waits, since when, in the order of their turns.
    queue: VecDeque<(usize, Instant)>,
    /// Lines that have their turn.
    busy: Vec<usize>,
    /// Connections to brokers: each has its own share of turns.
    connections: usize,
    /// Records that wait.
    held: u64,
    handed: u64,
    shards: usize,
}

impl<T> Turns<T> {
    /// `shards`: connections to each broker.
    pub(super) const fn new(shards: usize) -> Self {
        Self {
            asked: false,
            topics: BTreeMap::new(),
            lines: Vec::new(),
            queue: VecDeque::new(),
            busy: Vec::new(),
            connections: shards,
            held: 0,
            handed: 0,
            shards,
        }
    }

    /// From here on somebody asks for turns, again and again.
    pub(super) const fn ask(&mut self) {
        self.asked = true;
    }

    /// So many brokers lead the partitions of a topic.
    pub(super) fn leads(&mut self, brokers: usize) {
        self.connections = self.connections.max(self.shards * brokers);
    }

    /// The line of a partition.
    #[inline]
    pub(super) fn line(&mut self, topic: &str, partition: i32) -> usize {
        let index = partition.unsigned_abs() as usize;
        if let Some(&line) = self.topics.get(topic).and_then(|lines| lines.get(index)) {
            return line;
        }
        let known = self.topics.entry(topic.to_owned()).or_default();
        while known.len() <= index {
            known.push(self.lines.len());
            self.lines.push(Line { waiting: VecDeque::new(), is_busy: false, last: 0 });
        }
        known[index]
    }

    /// Whether a record that comes now has to wait. `acked`: records that were ever acknowledged.
    #[inline]
    pub(super) fn must_wait(&mut self, acked: u64) -> bool {
        if !self.queue.is_empty() {
            return true;
        }
        let at_once = AT_ONCE * self.connections;
        if !self.asked || self.busy.len() < at_once || self.is_backlog(acked) {
            return false;
        }
        self.settle(acked);
        self.busy.len() >= at_once
    }

    /// A record waits in its line from here on.
    pub(super) fn wait(&mut self, line: usize, record: T, now: Instant) {
        if self.lines[line].waiting.is_empty() {
            self.queue.push_back((line, now));
        }
        self.lines[line].waiting.push_back(record);
        self.held += 1;
    }

    /// A record of the line was handed over.
    #[inline]
    pub(super) fn handed(&mut self, line: usize, acked: u64) {
        self.handed = self.handed.max(acked) + 1;
        let of = &mut self.lines[line];
        of.last = self.handed;
        if !of.is_busy {
            of.is_busy = true;
            self.busy.push(line);
        }
    }

    /// Whether so much has no answer that turns are of no use.
    #[inline]
    pub(super) const fn is_backlog(&self, acked: u64) -> bool {
        self.held + self.handed.saturating_sub(acked) >= BACKLOG
    }

    /// Lines in which something waits.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// When somebody has waited long enough.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|(_, since)| *since + PATIENCE)
    }

    /// The line whose turn it is: all that waits in it is to be [taken](Self::take), or put back.
    pub(super) fn next(&mut self, acked: u64, now: Instant) -> Option<usize> {
        let due = self.due()?;
        if now < due && !self.is_backlog(acked) {
            self.settle(acked);
            if self.busy.len() >= IN_HAND * self.connections {
                return None;
            }
        }
        self.queue.pop_front().map(|(line, _)| line)
    }

    /// The first record that waits in a line.
    pub(super) fn take(&mut self, line: usize) -> Option<T> {
        let taken = self.lines[line].waiting.pop_front()?;
        self.held -= 1;
        Some(taken)
    }

    /// It could not be handed over: it is the first of its line again, and that has another turn.
    pub(super) fn put_back(&mut self, line: usize, record: T, now: Instant) {
        self.lines[line].waiting.push_front(record);
        self.held += 1;
        self.queue.push_back((line, now));
    }

    /// Nothing waits any more, and nothing has its turn.
    pub(super) fn clear(&mut self) {
        for (line, _) in self.queue.drain(..) {
            self.lines[line].waiting.clear();
        }
        for line in self.busy.drain(..) {
            self.lines[line].is_busy = false;
        }
        self.held = 0;
        self.handed = 0;
    }

    /// Who was answered makes room.
    fn settle(&mut self, acked: u64) {
        let lines = &mut self.lines;
        self.busy.retain(|&line| {
            lines[line].is_busy = lines[line].last > acked;
            lines[line].is_busy
        });
    }
}

// Which partitions know a producer. One that does not is given a single record of it, and no other before that one has
// its answer.
//
// A partition takes whatever request of a producer comes first, if it has not heard of that one. Where it refuses
// one for a moment (its leader moves, a copy is missing) and takes the next, which was on its way behind it, the later
// record is in the topic before the earlier. Once it has a record, it takes what follows in sequence alone (Kafka,
// `ProducerAppendInfo.checkSequence`).
//
// Decides for the sink's thread, by producer and partition; hears of answers from librdkafka's. Knows no broker.

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
