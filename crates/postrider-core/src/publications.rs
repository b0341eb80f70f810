//! What a process remembers of the events that it has passed to its sink: where the broker has stored each of them.
//!
//! The pipeline writes it, under one lock for a batch, and others search it. It decides nothing. Its memory is bounded:
//! an entry has a fixed size and no text of the event, and the oldest entry is overwritten.
//!
//! Ids and aggregates are remembered as hashes of 64 bits, with a key that each process chooses. So an answer about an
//! event that was never published is wrong with a probability of the number of entries in 2^64: less than 1 in 10^12
//! with [`REMEMBERED_MAX`] entries.

use crate::event::{Aggregate, Position};
use crate::offset::Offset;
use crate::record::{Outcome, Placement, Ticket};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The most entries that a pipeline may have.
pub const REMEMBERED_MAX: u32 = 1 << 24;

/// The memory of an entry. Unit: bytes.
pub const REMEMBERED_BYTES: usize = size_of::<Entry>();

/// Entries that are allocated together, and searched under one lock.
const CHUNK: usize = 1024;

/// The most topics whose names are remembered.
const TOPICS_MAX: usize = 4096;

/// The time of an entry is counted in this unit since the process began: 32 bits last for 13 years.
const TICK_MS: u64 = 100;

/// The topic of an entry if there were too many topics.
const NO_TOPIC: u16 = u16::MAX;

/// The publications that a process remembers for a pipeline. Clones share them; the default remembers nothing.
#[derive(Clone, Default)]
pub struct Publications(Option<Arc<SharedRing>>);

struct SharedRing {
    /// The key of the hashes.
    seed: u64,
    started: Instant,
    /// Unit: milliseconds since 1970.
    started_unix_ms: u64,
    ring: Mutex<Ring>,
}

/// What was passed to the sink, by consecutive numbers. A number is that of the ticket, behind those of all tickets
/// that were issued before by other engines. A change that was no event has a ticket too, and leaves its entry empty.
struct Ring {
    /// A power of two.
    capacity: u64,
    chunks: Vec<Vec<Entry>>,
    /// The number of ticket 0.
    base: u64,
    /// The number after the newest entry. The first entry has number 1.
    next: u64,
    /// Entries below this number without an outcome were given up.
    given_up: u64,
    /// Entries from this number on may be in the open transaction of the sink.
    committed: u64,
    topics: Vec<Box<str>>,
    topic_numbers: HashMap<Box<str>, u16>,
    /// The topic of the newest entry.
    topic: u16,
}

/// What is known of the outcome.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum EntryState {
    /// No report has arrived.
    Sent,
    /// The open transaction of the sink has it.
    InTransaction,
    Published,
    Refused,
    /// The sink has reported that the outcome is not known.
    Unknown,
}

#[derive(Clone, Copy)]
struct Entry {
    /// 0: no entry.
    number: u64,
    id: u64,
    aggregate: u64,
    commit: u64,
    ordinal: u64,
    /// As the broker has reported it; negative if it has reported none.
    offset: i64,
    partition: i32,
    /// When it was passed to the sink. Unit: ticks.
    sent: u32,
    /// When its outcome was reported. Unit: ticks.
    settled: u32,
    topic: u16,
    state: EntryState,
}

const EMPTY: Entry = Entry {
    number: 0,
    id: 0,
    aggregate: 0,
    commit: 0,
    ordinal: 0,
    offset: -1,
    partition: -1,
    sent: 0,
    settled: 0,
    topic: NO_TOPIC,
    state: EntryState::Unknown,
};

/// What is searched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought<'a> {
    /// The events with this id.
    Id(&'a str),
    /// The events of this aggregate.
    Aggregate(Aggregate<'a>),
}

/// How far an event was published by this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublicationState {
    /// The sink has it, and no report has arrived.
    InFlight,
    /// The sink has it in a transaction that is not committed yet.
    InTransaction,
    /// The broker has acknowledged it and, if the sink publishes in transactions, the transaction is committed.
    Published,
    /// The broker, or the sink, has refused it: the pipeline parks it, or halts.
    Refused,
    /// It was in flight when the sink was reset. The broker may have it; the pipeline publishes it again, unless another
    /// process owns the pipeline since.
    GivenUp,
}

impl PublicationState {
    /// The name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::InTransaction => "in_transaction",
            Self::Published => "published",
            Self::Refused => "refused",
            Self::GivenUp => "given_up",
        }
    }
}

/// One event that was passed to the sink. An event that was passed to it several times is there several times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// The event's position.
    pub position: Position,
    /// How far it was published.
    pub state: PublicationState,
    /// The destination; `None` if the process has published to too many of them.
    pub topic: Option<String>,
    /// Where the broker has stored it, if it has reported that.
    pub placement: Option<Placement>,
    /// When it was passed to the sink. Unit: milliseconds since 1970.
    pub sent_unix_ms: u64,
    /// When its outcome was reported. Unit: milliseconds since 1970.
    pub settled_unix_ms: Option<u64>,
}

/// How far back the memory of a process reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublicationsReach {
    /// The number of changes that are remembered at most. Changes that are no events count too.
    pub changes_max: u64,
    /// Everything that was passed to the sink since then is remembered. Unit: milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Nothing was overwritten yet: it reaches back to the start of the process.
    pub is_whole: bool,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundPublications {
    /// The newest first.
    pub publications: Vec<Publication>,
    /// There are more.
    pub more: bool,
    /// How far back the search has reached.
    pub reach: PublicationsReach,
}

impl fmt::Debug for Publications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Publications").field(&self.0.is_some()).finish()
    }
}

impl Publications {
    /// Remembers the newest changes: `changes`, rounded up to a power of two of at least 1,024, and at most
    /// [`REMEMBERED_MAX`]; 0 for none. The memory of [`REMEMBERED_BYTES`] each is allocated as it is needed.
    pub fn new(changes: u32) -> Self {
        if changes == 0 {
            return Self::default();
        }
        let least = u32::try_from(CHUNK).unwrap_or(u32::MAX);
        let capacity = changes.clamp(least, REMEMBERED_MAX).next_power_of_two();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Some(Arc::new(SharedRing {
            seed: RandomState::new().hash_one(0_u8),
            started: Instant::now(),
            started_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            ring: Mutex::new(Ring::new(u64::from(capacity))),
        })))
    }

    /// Locks it for a batch. Whoever searches waits for that long.
    pub fn writer(&self) -> PublicationsWriter<'_> {
        PublicationsWriter {
            locked: self.0.as_deref().map(|shared| {
                let elapsed = u64::try_from(shared.started.elapsed().as_millis());
                let ticks = elapsed.unwrap_or(u64::MAX) / TICK_MS;
                let now = u32::try_from(ticks).unwrap_or(u32::MAX);
                LockedRing { ring: shared.lock(), seed: shared.seed, now }
            }),
        }
    }

    /// Searches for the newest entries, at most `most`; `None` if nothing is remembered. The pipeline waits for the
    /// search of 1,024 entries at most.
    pub fn find(&self, sought: Sought<'_>, most: usize) -> Option<FoundPublications> {
        let shared = self.0.as_deref()?;
        let wanted = match sought {
            Sought::Id(id) => Wanted::Id(hash(shared.seed, id.as_bytes())),
            Sought::Aggregate(aggregate) => Wanted::Aggregate(hash_pair(shared.seed, aggregate)),
        };
        let mut publications = Vec::new();
        let (mut upto, lowest) = {
            let ring = shared.lock();
            (ring.next, ring.lowest())
        };
        while upto > lowest && publications.len() <= most {
            let ring = shared.lock();
            let from = upto.saturating_sub(CHUNK as u64).max(lowest);
            for number in (from..upto).rev() {
                let Some(entry) = ring.entry(number).filter(|entry| wanted.is(entry)) else {
                    continue;
                };
                publications.push(shared.publication(&ring, entry));
                if publications.len() > most {
                    break;
                }
            }
            upto = from;
        }
        let more = publications.len() > most;
        publications.truncate(most);
        Some(FoundPublications { publications, more, reach: shared.reach() })
    }
}

/// The hash that is searched for.
#[derive(Clone, Copy)]
enum Wanted {
    Id(u64),
    Aggregate(u64),
}

impl Wanted {
    fn is(self, entry: &Entry) -> bool {
        match self {
            Self::Id(id) => entry.id == id,
            Self::Aggregate(aggregate) => entry.aggregate == aggregate,
        }
    }
}

impl SharedRing {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unix_ms(&self, ticks: u32) -> u64 {
        self.started_unix_ms.saturating_add(u64::from(ticks) * TICK_MS)
    }

    fn publication(&self, ring: &Ring, entry: &Entry) -> Publication {
        let state = match entry.state {
            EntryState::Sent | EntryState::InTransaction if entry.number < ring.given_up => {
                PublicationState::GivenUp
            }
            EntryState::Sent => PublicationState::InFlight,
            EntryState::InTransaction => PublicationState::InTransaction,
            EntryState::Published => PublicationState::Published,
            EntryState::Refused => PublicationState::Refused,
            EntryState::Unknown => PublicationState::GivenUp,
        };
        let placement = Placement { partition: entry.partition, offset: entry.offset };
        let is_placed = state == PublicationState::Published && entry.offset >= 0;
        Publication {
            position: Position { commit: Offset::new(entry.commit), ordinal: entry.ordinal },
            state,
            topic: ring.topics.get(usize::from(entry.topic)).map(|topic| topic.to_string()),
            placement: is_placed.then_some(placement),
            sent_unix_ms: self.unix_ms(entry.sent),
            settled_unix_ms: (entry.state != EntryState::Sent).then(|| self.unix_ms(entry.settled)),
        }
    }

    /// How far back the entries reach now.
    fn reach(&self) -> PublicationsReach {
        let mut upto = self.lock().lowest();
        let is_whole = upto == 1;
        let mut since_unix_ms = self.started_unix_ms;
        if !is_whole {
            since_unix_ms = loop {
                let ring = self.lock();
                let end = upto.saturating_add(CHUNK as u64).min(ring.next);
                if let Some(oldest) = (upto..end).find_map(|number| ring.entry(number)) {
                    break self.unix_ms(oldest.sent);
                }
                if end == ring.next {
                    let elapsed = u64::try_from(self.started.elapsed().as_millis());
                    break self.started_unix_ms.saturating_add(elapsed.unwrap_or(u64::MAX));
                }
                upto = end;
            };
        }
        PublicationsReach { changes_max: self.lock().capacity, since_unix_ms, is_whole }
    }
}

impl Ring {
    fn new(capacity: u64) -> Self {
        Self {
            capacity,
            chunks: Vec::new(),
            base: 1,
            next: 1,
            given_up: 0,
            committed: 1,
            topics: Vec::new(),
            topic_numbers: HashMap::new(),
            topic: NO_TOPIC,
        }
    }

    /// The lowest number that is not overwritten.
    fn lowest(&self) -> u64 {
        self.next.saturating_sub(self.capacity).max(1)
    }

    /// The chunk of a number, and its place in the chunk.
    #[inline]
    fn place(&self, number: u64) -> (usize, usize) {
        let index = usize::try_from(number & (self.capacity - 1)).unwrap_or(0);
        (index / CHUNK, index % CHUNK)
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        let (chunk, index) = self.place(number);
        self.chunks.get(chunk)?.get(index).filter(|entry| entry.number == number)
    }

    #[inline]
    fn entry_of(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        let number = self.base.checked_add(ticket.0)?;
        let (chunk, index) = self.place(number);
        self.chunks.get_mut(chunk)?.get_mut(index).filter(|entry| entry.number == number)
    }

    #[inline]
    fn put(&mut self, entry: Entry) {
        let (chunk, index) = self.place(entry.number);
        while self.chunks.len() <= chunk {
            self.chunks.push(vec![EMPTY; CHUNK]);
        }
        if let Some(old) = self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(index)) {
            *old = entry;
        }
        self.next = self.next.max(entry.number + 1);
    }

    /// The number of a topic. Most events have the topic of the event before.
    #[inline]
    fn topic_number(&mut self, topic: &str) -> u16 {
        let last = self.topics.get(usize::from(self.topic));
        if last.is_none_or(|last| **last != *topic) {
            self.topic = self.other_topic(topic);
        }
        self.topic
    }

    fn other_topic(&mut self, topic: &str) -> u16 {
        if let Some(number) = self.topic_numbers.get(topic) {
            return *number;
        }
        if self.topics.len() >= TOPICS_MAX {
            return NO_TOPIC;
        }
        let number = u16::try_from(self.topics.len()).unwrap_or(NO_TOPIC);
        self.topics.push(topic.into());
        self.topic_numbers.insert(topic.into(), number);
        number
    }
}

/// The publications, locked for a batch.
pub struct PublicationsWriter<'a> {
    /// `None` if nothing is remembered.
    locked: Option<LockedRing<'a>>,
}

struct LockedRing<'a> {
    ring: MutexGuard<'a, Ring>,
    seed: u64,
    /// Unit: ticks.
    now: u32,
}

impl fmt::Debug for PublicationsWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicationsWriter").finish_non_exhaustive()
    }
}

impl PublicationsWriter<'_> {
    /// The sink has taken an event.
    #[inline]
    pub fn sent(
        &mut self,
        ticket: Ticket,
        (position, id, aggregate): (Position, &str, Aggregate<'_>),
        topic: &str,
    ) {
        let Some(LockedRing { ring, seed, now }) = &mut self.locked else { return };
        let Some(number) = ring.base.checked_add(ticket.0) else { return };
        let entry = Entry {
            number,
            id: hash(*seed, id.as_bytes()),
            aggregate: hash_pair(*seed, aggregate),
            commit: position.commit.get(),
            ordinal: position.ordinal,
            sent: *now,
            topic: ring.topic_number(topic),
            state: EntryState::Sent,
            ..EMPTY
        };
        ring.put(entry);
    }

    /// The sink has reported the outcome of an event, and where the broker has stored it. `in_transaction`: it counts as
    /// published after [`Self::committed`] only.
    #[inline]
    pub fn reported(
        &mut self,
        ticket: Ticket,
        outcome: Outcome,
        placement: Option<Placement>,
        in_transaction: bool,
    ) {
        let Some(LockedRing { ring, now, .. }) = &mut self.locked else { return };
        let Some(entry) = ring.entry_of(ticket) else { return };
        entry.state = match outcome {
            Outcome::Acked if in_transaction => EntryState::InTransaction,
            Outcome::Acked => EntryState::Published,
            Outcome::Rejected { .. } => EntryState::Refused,
            Outcome::Unknown => EntryState::Unknown,
        };
        entry.settled = *now;
        if let Some(Placement { partition, offset }) = placement {
            (entry.partition, entry.offset) = (partition, offset);
        }
    }

    /// The open transaction of the sink is committed.
    pub fn committed(&mut self) {
        let Some(LockedRing { ring, now, .. }) = &mut self.locked else { return };
        for number in ring.committed.max(ring.lowest())..ring.next {
            let (chunk, index) = ring.place(number);
            let entry = ring.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(index));
            let Some(entry) = entry.filter(|entry| entry.number == number) else { continue };
            if entry.state == EntryState::InTransaction {
                (entry.state, entry.settled) = (EntryState::Published, *now);
            }
        }
        ring.committed = ring.next;
    }

    /// The sink has given up what it had, with the open transaction.
    pub fn given_up(&mut self) {
        let Some(LockedRing { ring, .. }) = &mut self.locked else { return };
        ring.given_up = ring.next;
        ring.committed = ring.next;
    }

    /// Tickets begin at 0 again.
    pub fn begins_again(&mut self) {
        self.given_up();
        let Some(LockedRing { ring, .. }) = &mut self.locked else { return };
        ring.base = ring.next;
    }
}

/// Odd, with evenly spread bits: the fraction of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies to 128 bits, and folds these to 64.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "each half is taken")]
fn mixed(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * u128::from(MULTIPLIER ^ state.rotate_left(32));
    (product as u64) ^ ((product >> 64) as u64)
}

/// A hash with a key. It is fast rather than strong: who does not know the key finds no two texts with one hash.
#[inline]
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = seed;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        state = mixed(state, u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    let mut last = [0_u8; 8];
    for (to, byte) in last.iter_mut().zip(words.remainder()) {
        *to = *byte;
    }
    state = mixed(state, u64::from_le_bytes(last));
    mixed(state, (bytes.len() as u64).wrapping_mul(MULTIPLIER))
}

#[inline]
fn hash_pair(seed: u64, aggregate: Aggregate<'_>) -> u64 {
    hash(hash(seed, aggregate.kind.as_bytes()), aggregate.id.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Refusal, Scope};
    use proptest::prelude::*;

    fn at(ordinal: u64) -> Position {
        Position { commit: Offset::new(77), ordinal }
    }

    fn send(to: &Publications, ticket: u64, id: &str) {
        let aggregate = Aggregate { kind: "order", id: "42" };
        to.writer().sent(Ticket(ticket), (at(ticket), id, aggregate), "events");
    }

    fn report(to: &Publications, ticket: u64, outcome: Outcome) {
        let placement = Placement { partition: 3, offset: 1000 };
        let placement = (outcome == Outcome::Acked).then_some(placement);
        to.writer().reported(Ticket(ticket), outcome, placement, false);
    }

    fn states(of: &Publications, id: &str) -> Vec<&'static str> {
        let found = of.find(Sought::Id(id), 10).unwrap();
        found.publications.iter().map(|found| found.state.name()).collect()
    }

    #[test]
    fn an_entry_is_one_cache_line() {
        assert_eq!(REMEMBERED_BYTES, 64);
    }

    #[test]
    fn an_event_is_in_flight_until_its_report_and_then_has_the_place_of_the_report() {
        let all = Publications::new(1024);
        send(&all, 0, "a");
        send(&all, 1, "b");
        assert_eq!(states(&all, "a"), ["in_flight"]);
        report(&all, 0, Outcome::Acked);
        let found = all.find(Sought::Id("a"), 10).unwrap();
        let [a] = &found.publications[..] else { panic!("{found:?}") };
        assert_eq!((a.state, a.position), (PublicationState::Published, at(0)));
        assert_eq!(a.placement, Some(Placement { partition: 3, offset: 1000 }));
        assert_eq!(a.topic.as_deref(), Some("events"));
        assert_eq!(states(&all, "b"), ["in_flight"]);
        assert!(states(&all, "c").is_empty());
        let order = Aggregate { kind: "order", id: "42" };
        assert_eq!(all.find(Sought::Aggregate(order), 10).unwrap().publications.len(), 2);
        let other = Aggregate { kind: "orde", id: "r42" };
        assert!(all.find(Sought::Aggregate(other), 10).unwrap().publications.is_empty());
    }

    #[test]
    fn what_was_in_flight_at_a_reset_is_given_up_and_what_was_published_stays_published() {
        let all = Publications::new(1024);
        for (ticket, id) in [(0, "a"), (1, "b"), (2, "c")] {
            send(&all, ticket, id);
        }
        report(&all, 0, Outcome::Acked);
        let refused = Outcome::Rejected { scope: Scope::Event, reason: Refusal::destination("x") };
        report(&all, 1, refused);
        all.writer().given_up();
        assert_eq!(states(&all, "a"), ["published"]);
        assert_eq!(states(&all, "b"), ["refused"]);
        assert_eq!(states(&all, "c"), ["given_up"]);
        // Published again, as another ticket.
        send(&all, 3, "c");
        assert_eq!(states(&all, "c"), ["in_flight", "given_up"]);
        report(&all, 3, Outcome::Acked);
        assert_eq!(states(&all, "c"), ["published", "given_up"]);
    }

    #[test]
    fn an_event_in_a_transaction_is_published_after_the_commit_alone() {
        let all = Publications::new(1024);
        let placed = |ticket: u64| {
            let place = Placement { partition: 0, offset: 5 };
            all.writer().reported(Ticket(ticket), Outcome::Acked, Some(place), true);
        };
        send(&all, 0, "a");
        placed(0);
        assert_eq!(states(&all, "a"), ["in_transaction"]);
        assert_eq!(all.find(Sought::Id("a"), 1).unwrap().publications[0].placement, None);
        all.writer().given_up();
        assert_eq!(states(&all, "a"), ["given_up"]);
        send(&all, 1, "a");
        placed(1);
        all.writer().committed();
        assert_eq!(states(&all, "a"), ["published", "given_up"]);
    }

    #[test]
    fn tickets_that_begin_again_do_not_replace_older_entries() {
        let all = Publications::new(1024);
        send(&all, 0, "a");
        report(&all, 0, Outcome::Acked);
        all.writer().begins_again();
        send(&all, 0, "b");
        report(&all, 0, Outcome::Acked);
        assert_eq!((states(&all, "a"), states(&all, "b")), (vec!["published"], vec!["published"]));
        // The ticket of a retry of a parked event is none of these.
        report(&all, 1 << 63, Outcome::Acked);
    }

    #[test]
    fn the_oldest_are_overwritten_and_the_reach_says_so() {
        let all = Publications::new(1000);
        let reach = |all: &Publications| all.find(Sought::Id("x"), 1).unwrap().reach;
        assert_eq!((reach(&all).changes_max, reach(&all).is_whole), (1024, true));
        for ticket in 0..5000 {
            send(&all, ticket, &ticket.to_string());
        }
        assert!(!reach(&all).is_whole);
        assert!(states(&all, "3975").is_empty());
        assert_eq!(states(&all, "3976"), ["in_flight"]);
        assert_eq!(states(&all, "4999"), ["in_flight"]);
        let order = Aggregate { kind: "order", id: "42" };
        let found = all.find(Sought::Aggregate(order), 20).unwrap();
        assert!(found.more);
        let newest: Vec<u64> = found.publications.iter().map(|one| one.position.ordinal).collect();
        assert_eq!(newest, (4980..5000).rev().collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_remembered_by_default() {
        let none = Publications::new(0);
        send(&none, 0, "a");
        report(&none, 0, Outcome::Acked);
        assert_eq!(none.find(Sought::Id("a"), 1), None);
    }

    proptest! {
        #[test]
        fn different_texts_have_different_hashes(seed: u64, a: Vec<u8>, b: Vec<u8>) {
            prop_assume!(a != b);
            prop_assert_ne!(hash(seed, &a), hash(seed, &b));
        }
    }
}
