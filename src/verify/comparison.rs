//! The comparison of a source of events with the records of topics: which events have no record, which records come
//! twice or in the wrong order, and which have no event. No clock, no socket, no database.
//!
//! The source is added first and sorted by id; then the records stream by, partition by partition in the order of
//! their offsets. Memory: [`EVENT_BYTES`] for an event, and [`AGGREGATE_BYTES`] for each aggregate of a partition.
//!
//! The order of an aggregate is that of the *first* records of its events, because a crash repeats a suffix (1 2 3, 2 3
//! 4). Where the beginning of a partition was removed or not read, the first record that is seen of an event may be a
//! repetition: 3, 2 3 4 is in order, if 1 2 were removed. Then every later event of the aggregate that was published
//! before is repeated too. So an event behind a later one counts as swapped in such a partition only if that later one
//! does not come once more.

use super::event_ids::{EventIds, IdForm};
use super::findings::{VerifyExample, VerifyFinding, VerifyFindings};
use crate::event::{HeaderPosition, shown_id};
use crate::offset::Offset;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::mem::size_of;
use std::ops::Range;

/// What an event takes in memory, at most twice that while the list grows. Unit: bytes.
pub(super) const EVENT_BYTES: usize = size_of::<ComparedEvent>();

/// What an aggregate takes in memory for each partition, about. Unit: bytes.
pub(super) const AGGREGATE_BYTES: usize = size_of::<((u64, u32), AggregateOrder)>() + 1;

/// What is to be expected of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expectation {
    /// A record: the event was published.
    Record,
    /// Nothing: without a record it counts as this.
    Nothing(VerifyFinding),
    /// No record: the event was rolled back.
    NoRecord,
}

/// What a source knows of the key of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceKey<'a> {
    /// Nothing.
    Unknown,
    /// The key; `None` for a record without one.
    Known(Option<&'a [u8]>),
}

/// An event of the source.
#[derive(Clone, Copy)]
pub(super) struct SourceEvent<'a> {
    /// Its id, as header `id` of its record has it.
    pub(super) id: &'a str,
    /// What identifies its aggregate.
    pub(super) aggregate: (&'a str, &'a str),
    /// The topic of its record.
    pub(super) topic: &'a str,
    /// The key of its record.
    pub(super) key: SourceKey<'a>,
    /// Header `source` of its record; `None` if the source does not know it, or there is none.
    pub(super) origin: Option<&'a [u8]>,
    /// Its place in the order of the source; `None` if the source does not know it.
    pub(super) order: Option<u64>,
    /// What is expected.
    pub(super) expected: Expectation,
}

/// A record, without its value.
#[derive(Clone, Copy)]
pub(super) struct TopicRecord<'a> {
    /// The index of its partition, as [`TopicComparison::add_partition`] returned it.
    pub(super) partition: usize,
    /// Its offset.
    pub(super) offset: i64,
    /// Its key.
    pub(super) key: Option<&'a [u8]>,
    /// Header `id`.
    pub(super) id: Option<&'a [u8]>,
    /// Header `position`.
    pub(super) position: Option<&'a [u8]>,
    /// Header `source`.
    pub(super) origin: Option<&'a [u8]>,
    /// It has header `replay`.
    pub(super) is_replay: bool,
}

/// What the order of an aggregate is compared by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OrderBy {
    /// Header `position` of the records: the order of the commits.
    #[default]
    Position,
    /// The order of the source.
    Source,
}

/// How is compared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ComparisonRules {
    /// The order.
    pub(super) order: OrderBy,
    /// Only records that were committed at the first position or later, and before the second.
    pub(super) positions: Option<(Offset, Offset)>,
    /// Only parts of the topics are read, so that a record that is not there proves nothing.
    pub(super) is_partial: bool,
    /// Examples of each finding, at most.
    pub(super) examples_max: usize,
    /// Memory, at most. Unit: bytes.
    pub(super) memory_max: u64,
}

/// What is known of a topic, for the events that have no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TopicFacts {
    /// It is compacted, or its settings are not known.
    pub(super) may_compact: bool,
    /// The beginning of a partition was removed.
    pub(super) is_truncated: bool,
    /// It was named by the user: events that are routed to another topic may be in it.
    pub(super) is_extra: bool,
}

/// The events do not fit into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OutOfMemory {
    /// Events that were read until then.
    pub(super) events: u64,
}

/// An event of the source in memory.
#[derive(Clone, Copy)]
struct ComparedEvent {
    id: u128,
    /// Hash of the aggregate.
    aggregate: u64,
    /// Hash of the key; 0 if it is not known.
    key: u64,
    /// Place in the source; [`NO_ORDER`] if it is not known.
    order: u64,
    /// Index of the topic.
    topic: u16,
    /// Index of header `source`, from 1; 0 if it is not compared.
    origin: u16,
    form: IdForm,
    expected: Expectation,
    seen: u8,
}

/// Bits of [`ComparedEvent::seen`]: there is a record of any kind; one that is no replay; one with another topic or
/// key; one outside of the range; the id is that of several events.
const FOUND: u8 = 1;
const LIVE: u8 = 2;
const DIFFERENT: u8 = 4;
const OUTSIDE: u8 = 8;
const SHARED: u8 = 16;

/// An event whose place in the order of the source is not known.
const NO_ORDER: u64 = u64::MAX;

/// The newest event of an aggregate in a partition, by the order that is compared.
struct AggregateOrder {
    newest: u128,
    /// Index of the event, and the offset of its first record.
    event: u32,
    offset: i64,
    /// The lowest place in the source of an event that has a record here.
    first: u64,
}

/// An event behind a later one, in a partition whose beginning is not known.
struct Inversion {
    event: u32,
    partition: usize,
    offset: i64,
    newest_offset: i64,
}

struct ComparedPartition {
    topic: u16,
    number: i32,
    /// It was read from its first record on.
    is_whole: bool,
}

/// Texts by small numbers.
#[derive(Default)]
struct NumberedTexts {
    numbers: HashMap<Box<[u8]>, u16>,
    texts: Vec<Box<[u8]>>,
}

impl NumberedTexts {
    /// The number of a text; `None` if there are too many.
    fn number(&mut self, text: &[u8]) -> Option<u16> {
        if let Some(number) = self.numbers.get(text) {
            return Some(*number);
        }
        let number = u16::try_from(self.texts.len()).ok()?;
        self.numbers.insert(text.into(), number);
        self.texts.push(text.into());
        Some(number)
    }

    fn get(&self, number: u16) -> Option<&[u8]> {
        self.texts.get(usize::from(number)).map(|text| &**text)
    }
}

/// A comparison: [`add_event`](Self::add_event) for each event, [`sort`](Self::sort),
/// [`add_record`](Self::add_record) for each record, [`finish`](Self::finish).
pub(super) struct TopicComparison {
    rules: ComparisonRules,
    hashes: RandomState,
    ids: EventIds,
    events: Vec<ComparedEvent>,
    topics: NumberedTexts,
    topic_facts: HashMap<u16, TopicFacts>,
    origins: NumberedTexts,
    partitions: Vec<ComparedPartition>,
    aggregates: HashMap<(u64, u32), AggregateOrder>,
    inversions: HashMap<u32, Vec<Inversion>>,
    inversion_count: usize,
    findings: VerifyFindings,
}

impl TopicComparison {
    /// A comparison without events.
    pub(super) fn new(rules: ComparisonRules) -> Self {
        Self {
            findings: VerifyFindings::new(rules.examples_max),
            rules,
            hashes: RandomState::new(),
            ids: EventIds::default(),
            events: Vec::new(),
            topics: NumberedTexts::default(),
            topic_facts: HashMap::new(),
            origins: NumberedTexts::default(),
            partitions: Vec::new(),
            aggregates: HashMap::new(),
            inversions: HashMap::new(),
            inversion_count: 0,
        }
    }

    /// Events that were added.
    pub(super) fn events(&self) -> u64 {
        self.events.len() as u64
    }

    /// The topics of the events, in the order in which they came first.
    pub(super) fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.texts.iter().filter_map(|topic| std::str::from_utf8(topic).ok())
    }

    /// What everything takes. Unit: bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        let events = self.events.capacity() * EVENT_BYTES;
        let aggregates = self.aggregates.capacity() * AGGREGATE_BYTES;
        let inversions = self.inversion_count * 2 * size_of::<Inversion>();
        (events + aggregates + inversions) as u64 + self.ids.size_bytes()
    }

    /// Adds an event of the source.
    ///
    /// # Errors
    /// There is no memory for it, or it has one topic too many.
    pub(super) fn add_event(&mut self, event: &SourceEvent<'_>) -> Result<(), OutOfMemory> {
        let full = OutOfMemory { events: self.events() };
        if self.events.len() == self.events.capacity() {
            // The list doubles; while it does, the old one exists too.
            let grown = (self.events.capacity() * 3).max(1024) * EVENT_BYTES;
            if grown as u64 + self.ids.size_bytes() > self.rules.memory_max {
                return Err(full);
            }
        }
        let (id, form) = self.ids.keep(event.id);
        let topic = self.topics.number(event.topic.as_bytes()).ok_or(full)?;
        let origin = event.origin.and_then(|origin| self.origins.number(origin));
        self.events.push(ComparedEvent {
            id,
            aggregate: self.hashes.hash_one(event.aggregate),
            key: match event.key {
                SourceKey::Unknown => 0,
                SourceKey::Known(key) => self.key(key),
            },
            order: event.order.unwrap_or(NO_ORDER),
            topic,
            origin: origin.and_then(|number| number.checked_add(1)).unwrap_or(0),
            form,
            expected: event.expected,
            seen: 0,
        });
        if self.ids.size_bytes() > self.rules.memory_max {
            return Err(full);
        }
        Ok(())
    }

    /// Counts an event of the source that has no readable id, so that no record of it can be recognised.
    pub(super) fn add_unidentified(&mut self, finding: VerifyFinding) {
        self.findings.add(finding);
    }

    /// The hash of a key, which is not 0.
    fn key(&self, key: Option<&[u8]>) -> u64 {
        self.hashes.hash_one(key).max(1)
    }

    /// Ends the source: all events were added.
    pub(super) fn sort(&mut self) {
        self.events.sort_unstable_by_key(|event| (event.id, event.form));
        let mut before = None;
        for at in 0..self.events.len() {
            let id = self.events.get(at).map(|event| (event.id, event.form));
            if id == before {
                for shared in [at.wrapping_sub(1), at] {
                    if let Some(event) = self.events.get_mut(shared) {
                        event.seen |= SHARED;
                    }
                }
            }
            before = id;
        }
    }

    /// Adds what is known of a topic. What was known before stays: a fact is never taken back.
    pub(super) fn add_topic(&mut self, topic: &str, facts: TopicFacts) {
        let Some(number) = self.topics.number(topic.as_bytes()) else { return };
        let known = self.topic_facts.entry(number).or_default();
        known.may_compact |= facts.may_compact;
        known.is_truncated |= facts.is_truncated;
        known.is_extra |= facts.is_extra;
    }

    /// Adds a partition, whose records follow. `is_whole`: from its very first record on.
    pub(super) fn add_partition(&mut self, topic: &str, number: i32, is_whole: bool) -> usize {
        let topic = self.topics.number(topic.as_bytes()).unwrap_or(u16::MAX);
        self.partitions.push(ComparedPartition { topic, number, is_whole });
        self.partitions.len() - 1
    }

    /// The beginning of a partition was removed while it was read.
    pub(super) fn truncated(&mut self, partition: usize) {
        if let Some(of) = self.partitions.get_mut(partition) {
            of.is_whole = false;
            self.topic_facts.entry(of.topic).or_default().is_truncated = true;
        }
    }

    /// The index of the event of a record: of several with its id the first whose topic and key it has; of none of
    /// them, the first.
    fn index(&self, record: &TopicRecord<'_>) -> Option<usize> {
        let id = self.ids.of(std::str::from_utf8(record.id?).ok()?);
        let at = self.events.partition_point(|event| (event.id, event.form) < id);
        let first = self.events.get(at).filter(|event| (event.id, event.form) == id)?;
        if first.seen & SHARED == 0 {
            return Some(at);
        }
        let fits = self
            .shared(at)
            .find(|index| self.events.get(*index).is_some_and(|event| self.fits(event, record)));
        Some(fits.unwrap_or(at))
    }

    /// The indexes of the events that have the id of the one at `at`, from there on.
    fn shared(&self, at: usize) -> Range<usize> {
        let id = self.events.get(at).map(|event| (event.id, event.form));
        let is_same = |event: &&ComparedEvent| Some((event.id, event.form)) == id;
        let count = self.events.iter().skip(at).take_while(is_same).count();
        at..at + count
    }

    /// Adds the next record of a partition.
    ///
    /// # Errors
    /// There is no memory for its aggregate.
    pub(super) fn add_record(&mut self, record: &TopicRecord<'_>) -> Result<(), OutOfMemory> {
        if record.id.is_none_or(|id| std::str::from_utf8(id).is_err()) {
            self.add(VerifyFinding::WithoutId, record);
            return Ok(());
        }
        let found = self.index(record).and_then(|index| Some((index, *self.events.get(index)?)));
        let Some((index, of)) = found else {
            self.add(VerifyFinding::NotInSource, record);
            return Ok(());
        };
        if !self.is_of_origin(&of, record) {
            self.add(VerifyFinding::OtherSource, record);
            return Ok(());
        }
        if !self.fits(&of, record) {
            self.mark(index, DIFFERENT);
            return Ok(());
        }
        let place = record.position.and_then(place);
        if let Some((from, to)) = self.rules.positions
            && !place.is_some_and(|at| at.position.commit >= from && at.position.commit < to)
        {
            self.mark(index, OUTSIDE);
            return Ok(());
        }
        // An id may have been rolled back first, and committed then.
        if of.seen & SHARED != 0 {
            let mut is_expected = false;
            for index in self.shared(index) {
                let Some(event) = self.events.get(index) else { continue };
                if event.expected != Expectation::NoRecord && self.fits(event, record) {
                    self.mark(index, FOUND);
                    is_expected = true;
                }
            }
            if !is_expected {
                self.mark(index, FOUND);
                self.add(VerifyFinding::Unexpected, record);
            } else if record.is_replay {
                self.findings.add(VerifyFinding::Replayed);
            }
        } else if of.expected == Expectation::NoRecord {
            self.mark(index, FOUND);
            self.add(VerifyFinding::Unexpected, record);
        } else if record.is_replay {
            self.mark(index, FOUND);
            self.findings.add(VerifyFinding::Replayed);
        } else {
            self.mark(index, FOUND | LIVE);
            return self.add_live(index, &of, record, place);
        }
        Ok(())
    }

    /// Adds a record of a part that is read only for the events that have no record yet.
    pub(super) fn add_earlier_record(&mut self, record: &TopicRecord<'_>) {
        let Some(index) = self.index(record) else { return };
        let Some(of) = self.events.get(index).copied() else { return };
        if of.seen & FOUND == 0 && self.fits(&of, record) && self.rules.positions.is_none() {
            self.mark(index, FOUND);
        }
    }

    /// Whether events that have to have a record have none.
    pub(super) fn misses(&self) -> bool {
        let misses = |event: &ComparedEvent| {
            let is_expected = match event.expected {
                Expectation::Record | Expectation::Nothing(VerifyFinding::Unproven) => true,
                Expectation::Nothing(_) | Expectation::NoRecord => false,
            };
            is_expected && event.seen & (FOUND | OUTSIDE) == 0
        };
        self.events.iter().any(misses)
    }

    fn mark(&mut self, index: usize, seen: u8) {
        if let Some(event) = self.events.get_mut(index) {
            event.seen |= seen;
        }
    }

    fn is_of_origin(&self, of: &ComparedEvent, record: &TopicRecord<'_>) -> bool {
        let expected = of.origin.checked_sub(1).and_then(|number| self.origins.get(number));
        // A record of a version that sent no such header is not another one's.
        expected.is_none() || record.origin.is_none() || expected == record.origin
    }

    /// Whether topic and key are those of the event.
    fn fits(&self, of: &ComparedEvent, record: &TopicRecord<'_>) -> bool {
        let Some(partition) = self.partitions.get(record.partition) else { return false };
        let facts = self.topic_facts.get(&partition.topic).copied().unwrap_or_default();
        let topic = partition.topic == of.topic || facts.is_extra;
        topic && (of.key == 0 || of.key == self.key(record.key)) && self.is_of_origin(of, record)
    }

    /// A record of an event that is no replay.
    fn add_live(
        &mut self,
        index: usize,
        of: &ComparedEvent,
        record: &TopicRecord<'_>,
        place: Option<HeaderPosition>,
    ) -> Result<(), OutOfMemory> {
        let event = u32::try_from(index).unwrap_or(u32::MAX);
        if of.seen & LIVE != 0 {
            self.add(VerifyFinding::Repeated, record);
            // The later event comes once more: the records before it were a repetition too.
            for _ in self.inversions.remove(&event).into_iter().flatten() {
                self.inversion_count -= 1;
                self.findings.add(VerifyFinding::OrderUnproven);
            }
            return Ok(());
        }
        let key = (of.aggregate, u32::try_from(record.partition).unwrap_or(u32::MAX));
        if self.aggregates.len() == self.aggregates.capacity()
            && self.size_bytes() + (self.aggregates.len() * 2 * AGGREGATE_BYTES) as u64
                > self.rules.memory_max
        {
            return Err(OutOfMemory { events: self.events() });
        }
        let at = match self.rules.order {
            OrderBy::Position => place.map(order_of),
            OrderBy::Source => Some(of.order).filter(|at| *at != NO_ORDER).map(u128::from),
        };
        let newest = self.aggregates.entry(key).or_insert(AggregateOrder {
            newest: 0,
            event,
            offset: record.offset,
            first: NO_ORDER,
        });
        let Some(at) = at else {
            self.findings.add(VerifyFinding::WithoutOrder);
            return Ok(());
        };
        // A record without a position may have been published after later events of its aggregate.
        newest.first = newest.first.min(of.order);
        if at >= newest.newest {
            (newest.newest, newest.event, newest.offset) = (at, event, record.offset);
            return Ok(());
        }
        let (later, newest_offset) = (newest.event, newest.offset);
        let inversion =
            Inversion { event, partition: record.partition, offset: record.offset, newest_offset };
        if self.partitions.get(record.partition).is_some_and(|of| of.is_whole) {
            self.swapped(later, &inversion);
        } else {
            self.inversion_count += 1;
            self.inversions.entry(later).or_default().push(inversion);
        }
        Ok(())
    }

    fn swapped(&mut self, later: u32, inversion: &Inversion) {
        let behind = (self.id_of(later), inversion.newest_offset);
        let example = VerifyExample {
            id: Some(self.id_of(inversion.event)),
            behind: Some(behind),
            ..self.place(inversion.partition, inversion.offset)
        };
        self.findings.add_example(VerifyFinding::Swapped, example);
    }

    /// The id of the event at an index, as it is printed.
    fn id_of(&self, index: u32) -> String {
        let event = usize::try_from(index).ok().and_then(|index| self.events.get(index));
        let text = event.map_or_else(String::new, |event| self.ids.text((event.id, event.form)));
        shown_id(&text).into_owned()
    }

    fn topic(&self, number: u16) -> String {
        let name = self.topics.get(number).unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }

    fn place(&self, partition: usize, offset: i64) -> VerifyExample {
        let Some(of) = self.partitions.get(partition) else { return VerifyExample::default() };
        let place = Some((of.number, offset));
        VerifyExample { topic: self.topic(of.topic), place, ..VerifyExample::default() }
    }

    /// Counts a finding at a record.
    fn add(&mut self, finding: VerifyFinding, record: &TopicRecord<'_>) {
        if !self.findings.wants_example(finding) {
            self.findings.add(finding);
            return;
        }
        let id = record.id.and_then(|id| std::str::from_utf8(id).ok());
        let id = id.map(|id| shown_id(id).into_owned());
        let example = VerifyExample { id, ..self.place(record.partition, record.offset) };
        self.findings.add_example(finding, example);
    }

    /// Ends the comparison.
    pub(super) fn finish(mut self) -> VerifyFindings {
        for (later, inversions) in std::mem::take(&mut self.inversions) {
            for inversion in &inversions {
                self.swapped(later, inversion);
            }
        }
        let firsts = self.firsts();
        for at in 0..self.events.len() {
            let Some(event) = self.events.get(at).copied() else { continue };
            let finding = self.of_event(&event, &firsts);
            let is_shown = matches!(
                finding,
                VerifyFinding::Lost | VerifyFinding::Different | VerifyFinding::Unproven
            );
            if is_shown && self.findings.wants_example(finding) {
                let id = Some(self.id_of(u32::try_from(at).unwrap_or(u32::MAX)));
                let topic = self.topic(event.topic);
                let example = VerifyExample { id, topic, ..VerifyExample::default() };
                self.findings.add_example(finding, example);
            } else {
                self.findings.add(finding);
            }
        }
        self.findings
    }

    /// The lowest place in the source of each aggregate that has a record, with the topic of its records, if a topic
    /// was truncated. An aggregate with records in several partitions has none: of each one another part was removed.
    fn firsts(&self) -> HashMap<u64, (u64, u16)> {
        let mut firsts = HashMap::new();
        if self.topic_facts.values().any(|facts| facts.is_truncated) {
            for ((aggregate, partition), order) in &self.aggregates {
                let Some(of) = self.partitions.get(*partition as usize) else { continue };
                let first = (order.first, of.topic);
                firsts
                    .entry(*aggregate)
                    .and_modify(|(first, _)| *first = NO_ORDER)
                    .or_insert(first);
            }
        }
        firsts
    }

    fn of_event(&self, event: &ComparedEvent, firsts: &HashMap<u64, (u64, u16)>) -> VerifyFinding {
        if event.seen & FOUND != 0 {
            return match event.seen & SHARED {
                0 => VerifyFinding::Published,
                _ => VerifyFinding::SharedId,
            };
        }
        if event.seen & OUTSIDE != 0 {
            return VerifyFinding::OutsideRange;
        }
        match event.expected {
            Expectation::Nothing(finding) => finding,
            Expectation::NoRecord => VerifyFinding::RolledBack,
            Expectation::Record if event.seen & DIFFERENT != 0 => VerifyFinding::Different,
            Expectation::Record if self.rules.is_partial => VerifyFinding::NotJudged,
            Expectation::Record => {
                let facts = self.topic_facts.get(&event.topic).copied().unwrap_or_default();
                // An earlier event of the aggregate is there: what was removed was before it, and so before this one.
                let is_later = event.order != NO_ORDER
                    && firsts.get(&event.aggregate).is_some_and(|(first, topic)| {
                        *topic == event.topic && *first < event.order
                    });
                let explained = facts.may_compact || facts.is_truncated && !is_later;
                if explained { VerifyFinding::Unproven } else { VerifyFinding::Lost }
            }
        }
    }
}

/// What header `position` says.
fn place(header: &[u8]) -> Option<HeaderPosition> {
    HeaderPosition::parse(std::str::from_utf8(header).ok()?)
}

/// A position as one number, which sorts as positions do.
fn order_of(at: HeaderPosition) -> u128 {
    let ordinal = at.position.ordinal.min(u64::from(u32::MAX));
    let history = u128::from(at.history.0) << 96;
    history | (u128::from(at.position.commit.get()) << 32) | u128::from(ordinal)
}

#[cfg(test)]
mod tests;
