//! The order in which records may be handed to a producer: the partition scheduler, and the first-record gate.
//!
//! librdkafka puts one partition into a request, and its loop takes the next partition from an arbitrary place. Behind
//! a broker at its limit a record therefore waits for an arbitrary time, between nothing and five times the mean. So
//! only some partitions have records in librdkafka at a time. The others wait here in the order in which they came, up
//! to [`WAIT_MAX`] (`docs/decisions/batching.md`). With a backlog all records are handed over: full batches count then.

#[cfg(test)]
mod first_record_tests;
#[cfg(test)]
mod tests;

use postrider_core::record::Ticket;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Partitions of a broker that may have records in librdkafka before the records of others wait. A few events for a
/// broker that has nothing else to do are sent at once.
const BUSY_AT_ONCE: usize = 12;

/// The same while records of other partitions wait. A connection has five requests in flight; the other partitions
/// cover the time until a response is reported.
const BUSY_MAX: usize = 8;

/// The longest time that a record waits: the partitions ahead of it may be another broker's, which does not answer.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Records without an answer, those that wait included, from which on there is a backlog.
const BACKLOG: u64 = 1_000;

/// The records of one partition that wait.
struct PartitionQueue<T> {
    waiting: VecDeque<T>,
    /// It is among [`PartitionScheduler::busy`].
    is_busy: bool,
    /// The number of its record that was handed over last.
    last: u64,
}

/// Decides which partition's records are handed over next. `T` is what waits.
///
/// Records are numbered as they are handed over, and as many of them as are acknowledged count as answered. That is not
/// exact, since answers come in another order; it is correct again as soon as all answers have come.
pub(super) struct PartitionScheduler<T> {
    /// The caller asks for the next partition regularly. No record waits before that.
    is_polled: bool,
    topics: BTreeMap<String, Vec<usize>>,
    lines: Vec<PartitionQueue<T>>,
    /// The partitions with waiting records, each with the time since when, in the order in which they are handed over.
    queue: VecDeque<(usize, Instant)>,
    /// Partitions with records in librdkafka that have no answer.
    busy: Vec<usize>,
    /// Connections to brokers: each has its own bound of busy partitions.
    connections: usize,
    /// Records that wait.
    waiting: u64,
    sent: u64,
    producers: usize,
    /// Until then every record waits, unless there is a backlog.
    held_until: Option<Instant>,
}

impl<T> PartitionScheduler<T> {
    /// `producers`: each has a connection to each broker.
    pub(super) const fn new(producers: usize) -> Self {
        Self {
            is_polled: false,
            topics: BTreeMap::new(),
            lines: Vec::new(),
            queue: VecDeque::new(),
            busy: Vec::new(),
            connections: producers,
            waiting: 0,
            sent: 0,
            producers,
            held_until: None,
        }
    }

    /// From here on the caller asks for the next partition regularly.
    pub(super) const fn ask(&mut self) {
        self.is_polled = true;
    }

    /// Every record waits until then, unless there is a backlog. Then all of them are handed over.
    pub(super) const fn hold(&mut self, until: Instant) {
        self.held_until = Some(until);
    }

    /// The partitions of a topic have this number of leaders.
    pub(super) fn leads(&mut self, brokers: usize) {
        self.connections = self.connections.max(self.producers * brokers);
    }

    /// The number of a partition among all of the sink.
    #[inline]
    pub(super) fn line(&mut self, topic: &str, partition: i32) -> usize {
        let index = partition.unsigned_abs() as usize;
        if let Some(&line) = self.topics.get(topic).and_then(|lines| lines.get(index)) {
            return line;
        }
        let known = self.topics.entry(topic.to_owned()).or_default();
        while known.len() <= index {
            known.push(self.lines.len());
            self.lines.push(PartitionQueue { waiting: VecDeque::new(), is_busy: false, last: 0 });
        }
        known[index]
    }

    /// Whether a record that comes now has to wait. `acked`: all records that were acknowledged so far.
    #[inline]
    pub(super) fn must_wait(&mut self, acked: u64) -> bool {
        if !self.queue.is_empty() {
            return true;
        }
        if !self.is_polled || self.is_backlog(acked) {
            return false;
        }
        if self.held_until.is_some_and(|until| Instant::now() < until) {
            return true;
        }
        self.held_until = None;
        let at_once = BUSY_AT_ONCE * self.connections;
        if self.busy.len() < at_once {
            return false;
        }
        self.settle(acked);
        self.busy.len() >= at_once
    }

    /// A record waits from here on.
    pub(super) fn wait(&mut self, line: usize, record: T, now: Instant) {
        if self.lines[line].waiting.is_empty() {
            self.queue.push_back((line, now));
        }
        self.lines[line].waiting.push_back(record);
        self.waiting += 1;
    }

    /// A record of the partition was handed over.
    #[inline]
    pub(super) fn sent(&mut self, line: usize, acked: u64) {
        self.sent = self.sent.max(acked) + 1;
        let of = &mut self.lines[line];
        of.last = self.sent;
        if !of.is_busy {
            of.is_busy = true;
            self.busy.push(line);
        }
    }

    /// Whether so many records have no answer that all are handed over at once.
    #[inline]
    pub(super) const fn is_backlog(&self, acked: u64) -> bool {
        self.waiting + self.sent.saturating_sub(acked) >= BACKLOG
    }

    /// Partitions with waiting records.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// When the record that waits longest has waited for as long as it may.
    pub(super) fn due(&self) -> Option<Instant> {
        let (_, since) = *self.queue.front()?;
        Some(self.held(since).unwrap_or(since + WAIT_MAX))
    }

    /// Until when a record is held that waits since then. One that was put back is not held again.
    fn held(&self, since: Instant) -> Option<Instant> {
        self.held_until.filter(|until| since < *until)
    }

    /// The next partition: the caller [takes](Self::take) all its waiting records, or puts the first one back.
    pub(super) fn next(&mut self, acked: u64, now: Instant) -> Option<usize> {
        let (_, since) = *self.queue.front()?;
        let is_backlog = self.is_backlog(acked);
        let is_due = match self.held(since) {
            Some(until) if now < until && !is_backlog => return None,
            // All that was held is handed over together.
            Some(_) => true,
            None => is_backlog || now >= since + WAIT_MAX,
        };
        if !is_due {
            self.settle(acked);
            if self.busy.len() >= BUSY_MAX * self.connections {
                return None;
            }
        }
        self.queue.pop_front().map(|(line, _)| line)
    }

    /// The first waiting record of a partition.
    pub(super) fn take(&mut self, line: usize) -> Option<T> {
        let taken = self.lines[line].waiting.pop_front()?;
        self.waiting -= 1;
        Some(taken)
    }

    /// The record could not be handed over: it is the first of its partition again, which is the last in the order.
    pub(super) fn put_back(&mut self, line: usize, record: T, now: Instant) {
        self.lines[line].waiting.push_front(record);
        self.waiting += 1;
        self.queue.push_back((line, now));
    }

    /// Drops all waiting records, and all numbers.
    pub(super) fn clear(&mut self) {
        for (line, _) in self.queue.drain(..) {
            self.lines[line].waiting.clear();
        }
        for line in self.busy.drain(..) {
            self.lines[line].is_busy = false;
        }
        self.waiting = 0;
        self.sent = 0;
        self.held_until = None;
    }

    /// Removes partitions whose records were answered from the busy ones.
    fn settle(&mut self, acked: u64) {
        let lines = &mut self.lines;
        self.busy.retain(|&line| {
            lines[line].is_busy = lines[line].last > acked;
            lines[line].is_busy
        });
    }
}

// The first-record gate: a partition that does not know a producer gets a single record of it, and the next one only
// when the first has its answer.
//
// A partition accepts whatever request of an unknown producer comes first. If it refuses one for a moment (its leader
// moves, a replica is missing) and accepts the next, which was in flight behind it, the later record is in the topic
// before the earlier one. Once a partition has a record of a producer, it accepts only what follows in sequence (Kafka,
// `ProducerAppendInfo.checkSequence`).
//
// The sink's thread asks; the answers come from librdkafka's threads.

/// Full hours without a record after which a partition counts as one that does not know the producer. A broker forgets
/// a producer whose last record is older than `producer.id.expiration.ms`, a day by default.
const KNOWN_HOURS: u32 = 1;

const UNKNOWN: u8 = 0;
const PENDING: u8 = 1;
const KNOWN: u8 = 2;

/// Whether a partition knows a producer.
#[derive(Debug, Default)]
pub(super) struct Gate(AtomicU8);

impl Gate {
    /// Whether a record of the producer was answered. Ordered against `Shared::full`: the caller that finds the gate
    /// shut asks for `Retry` and checks again.
    pub(super) fn is_open(&self) -> bool {
        self.0.load(Ordering::SeqCst) == KNOWN
    }
}

/// Whether a record may be handed to a producer.
#[derive(Debug)]
pub(super) enum Entry {
    /// Like any other record.
    Open,
    /// As the first record of its partition: [`Firsts::sends`] is to be called before it is sent.
    First(Arc<Gate>),
    /// Not before the first record of its partition has its answer.
    Wait(Arc<Gate>),
}

#[derive(Default)]
struct PartitionGate {
    gate: Arc<Gate>,
    /// The hour in which the partition last got a record.
    hour: u32,
}

/// Decides which records may be sent to partitions that may not know their producer: for one set of producers.
#[derive(Default)]
pub(super) struct FirstRecordGate {
    /// By topic: partition by partition, and within a partition producer by producer.
    topics: BTreeMap<String, Vec<PartitionGate>>,
}

impl FirstRecordGate {
    /// Whether a record may be sent to this partition by this one of `producers` producers now. `hour` never decreases.
    #[inline]
    pub(super) fn enter(
        &mut self,
        (topic, partition): (&str, i32),
        (producer, producers): (usize, usize),
        hour: u32,
    ) -> Entry {
        let index = partition.unsigned_abs() as usize * producers + producer;
        if let Some(partition) = self.topics.get_mut(topic).and_then(|all| all.get_mut(index)) {
            return partition.enter(hour);
        }
        let all = self.topics.entry(topic.to_owned()).or_default();
        all.resize_with(all.len().max(index + 1), PartitionGate::default);
        all[index].enter(hour)
    }
}

impl PartitionGate {
    #[inline]
    fn enter(&mut self, hour: u32) -> Entry {
        let state = self.gate.0.load(Ordering::SeqCst);
        if state == PENDING {
            return Entry::Wait(Arc::clone(&self.gate));
        }
        let is_known = state == KNOWN && hour.saturating_sub(self.hour) <= KNOWN_HOURS;
        self.hour = hour;
        if is_known {
            return Entry::Open;
        }
        self.gate.0.store(PENDING, Ordering::SeqCst);
        Entry::First(Arc::clone(&self.gate))
    }
}

/// The records of one producer that are the first of their partitions and have no answer yet.
#[derive(Default)]
pub(super) struct Firsts {
    tickets: Mutex<BTreeMap<u64, Arc<Gate>>>,
    /// Their number: most reports come when there are none, and need no lock then.
    count: AtomicUsize,
}

impl Firsts {
    /// The record with this ticket is sent next, the first of its partition.
    pub(super) fn sends(&self, ticket: Ticket, gate: Arc<Gate>) {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.insert(ticket.0, gate);
        self.count.store(tickets.len(), Ordering::Release);
    }

    /// The producer did not take the record: the next one is the first.
    pub(super) fn not_sent(&self, ticket: Ticket) {
        if let Some(gate) = self.remove(ticket) {
            gate.0.store(UNKNOWN, Ordering::SeqCst);
        }
    }

    /// A broker has acknowledged the record.
    #[inline]
    pub(super) fn answered(&self, ticket: Ticket) {
        if self.count.load(Ordering::Acquire) > 0
            && let Some(gate) = self.remove(ticket)
        {
            gate.0.store(KNOWN, Ordering::SeqCst);
        }
    }

    fn remove(&self, ticket: Ticket) -> Option<Arc<Gate>> {
        let mut tickets = self.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        let gate = tickets.remove(&ticket.0);
        self.count.store(tickets.len(), Ordering::Release);
        gate
    }
}
