//! The events of the stream in flight, and the bounds on them.
//!
//! [`Flow`] has one slot for each ticket, from the lowest one without an outcome, so that a report finds the size and
//! the time of its event by subtraction.

use super::stream::Upcoming;
use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::parked::Lane;
use postrider_core::record::Ticket;
use postrider_core::timestamp::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// Maximum number of tickets from the oldest without an outcome to the newest. This many resolved tickets may be behind
/// one missing report, at about 50 bytes each: 50 MB in the worst case.
pub(super) const SPAN_MAX: u64 = 1 << 20;

/// Bounds on the events in flight. When one is reached the intake closes; it opens again at three quarters of both.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of events handed to the sink without a report.
    pub events_max: u64,
    /// Bytes of their keys, headers and payloads. A single event may exceed it.
    pub bytes_max: u64,
}

/// What is known of a ticket of the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) position: Position,
    pub(super) commit_time: Timestamp,
    pub(super) lane: Lane,
    size_bytes: u32,
    state: SlotState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    /// Handed to the sink, without a report.
    InFlight,
    Acked,
    /// The broker refused the batch, and may have meant another event of it.
    Refused,
    /// Parked; its row is not committed.
    Parked,
    /// Not an event of this pipeline, or an event that is left out.
    Skipped,
}

impl Slot {
    pub(super) fn new(upcoming: &Upcoming, lane: Lane, size_bytes: usize) -> Self {
        Self {
            position: upcoming.position,
            commit_time: upcoming.commit_time,
            lane,
            size_bytes: u32::try_from(size_bytes).unwrap_or(u32::MAX),
            state: SlotState::InFlight,
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        usize::try_from(self.size_bytes).unwrap_or(usize::MAX)
    }
}

/// The events of the stream in flight, and which event must have nothing else in flight.
#[derive(Debug)]
pub(super) struct Flow {
    limits: Limits,
    slots: VecDeque<Slot>,
    /// The ticket of the first slot.
    base: u64,
    events: u64,
    bytes: u64,
    /// Number of tickets that were not events, or whose events were left out, in all.
    skipped: u64,
    /// A bound was reached.
    full: bool,
    /// Commit time of an event that the sink has not taken yet.
    not_taken: Option<Timestamp>,
    /// Events of batches that a broker refused. Each is sent with nothing else in flight, to find the one that the
    /// broker means.
    suspects: BTreeSet<Position>,
    /// A suspect is in flight.
    suspect_in_flight: bool,
    /// The event that the sink takes only with no other event of the stream in flight: before compression it is larger
    /// than its topic takes, and a producer of its own finds out whether the broker takes it.
    large: Option<Position>,
    large_in_flight: bool,
    /// For a discarded event, a later event of its lane that reached the broker before it.
    overtaken: BTreeMap<Position, Position>,
    /// Events that were discarded without an acknowledgement. A late acknowledgement can still show that one of them
    /// has overtaken another.
    discarded: HashMap<Ticket, (Position, Lane)>,
    /// The positions in `discarded` by lane, highest first.
    discarded_by_lane: HashMap<Lane, Vec<Position>>,
    /// Lanes with an event in flight. `None` unless order is strict.
    lanes_in_flight: Option<HashSet<Lane>>,
    /// See [`Bug::ResendsOnlyFailed`].
    #[cfg(test)]
    pub(super) remembered: BTreeSet<Position>,
}

impl Flow {
    pub(super) fn new(limits: Limits, strict: bool) -> Self {
        Self {
            limits,
            slots: VecDeque::new(),
            base: 0,
            events: 0,
            bytes: 0,
            skipped: 0,
            full: false,
            not_taken: None,
            suspects: BTreeSet::new(),
            suspect_in_flight: false,
            large: None,
            large_in_flight: false,
            overtaken: BTreeMap::new(),
            discarded: HashMap::new(),
            discarded_by_lane: HashMap::new(),
            lanes_in_flight: strict.then(HashSet::new),
            #[cfg(test)]
            remembered: BTreeSet::new(),
        }
    }

    /// Number of tickets that were not events, in all.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Maximum number of events in flight.
    pub(super) fn events_max(&self) -> u64 {
        self.limits.events_max
    }

    /// Whether the next event may be handed over, while this many attempts of parked events are in flight.
    pub(super) fn has_room(&self, next: Position, attempts: usize) -> bool {
        if self.suspect_in_flight || self.suspects.contains(&next) {
            return self.events == 0 && (attempts == 0 || injected(Bug::SuspectNotExclusive));
        }
        if self.is_large(next) && !injected(Bug::LargeNotExclusive) {
            return self.events == 0;
        }
        !self.full || injected(Bug::NoBound)
    }

    /// Whether this event must have no other event of the stream in flight because of its size, or such an event is in
    /// flight.
    pub(super) fn is_large(&self, next: Position) -> bool {
        self.large_in_flight || self.large == Some(next)
    }

    /// Whether this event must have nothing else in flight because it is suspected, or such an event is in flight.
    pub(super) fn is_suspect(&self, next: Position) -> bool {
        (self.suspect_in_flight || self.suspects.contains(&next))
            && !injected(Bug::SuspectNotExclusive)
    }

    /// Whether the lane may have another event in flight.
    pub(super) fn admits(&self, lane: Lane) -> bool {
        let free = |lanes: &HashSet<Lane>| !lanes.contains(&lane) || injected(Bug::NotStrict);
        self.lanes_in_flight.as_ref().is_none_or(free)
    }

    pub(super) fn hand_over(&mut self, ticket: Ticket, slot: Slot) {
        self.not_taken = None;
        self.suspect_in_flight = self.suspects.contains(&slot.position);
        self.large_in_flight = self.large == Some(slot.position);
        if let Some(lanes) = &mut self.lanes_in_flight {
            lanes.insert(slot.lane);
        }
        self.events += 1;
        self.bytes += u64::from(slot.size_bytes);
        self.full = self.events >= self.limits.events_max || self.bytes >= self.limits.bytes_max;
        self.push(ticket, slot);
    }

    /// The newest event was not taken by the sink.
    pub(super) fn retract(&mut self) {
        let Some(slot) = self.slots.pop_back() else { return };
        self.release(&slot);
        self.not_taken = Some(slot.commit_time);
        // The event was taken by the relay, so the bounds were not reached before it.
        self.full = false;
    }

    /// The newest event was not taken by the sink, which takes it only with no other event of the stream in flight.
    pub(super) fn retract_as_large(&mut self) {
        self.large = self.slots.back().map(|slot| slot.position);
        self.retract();
    }

    /// Adds a ticket that is not handed to the sink.
    pub(super) fn skip(&mut self, ticket: Ticket) {
        let slot = Slot {
            position: Position::default(),
            commit_time: Timestamp::default(),
            lane: Lane::default(),
            size_bytes: 0,
            state: SlotState::Skipped,
        };
        self.skipped += 1;
        self.push(ticket, slot);
    }

    /// The event of a ticket in flight; `None` if the ticket is of an earlier session.
    ///
    /// # Panics
    /// If the ticket has an outcome already.
    pub(super) fn get(&self, ticket: Ticket) -> Option<Slot> {
        let slot = self.slots.get(self.index(ticket)?)?;
        assert!(slot.state == SlotState::InFlight, "a second report for {ticket:?}");
        Some(*slot)
    }

    /// Whether the event of a ticket is in flight.
    pub(super) fn is_in_flight(&self, ticket: Ticket) -> bool {
        let slot = self.index(ticket).and_then(|index| self.slots.get(index));
        slot.is_some_and(|slot| slot.state == SlotState::InFlight)
    }

    /// See [`Bug::ResendsOnlyFailed`].
    #[cfg(test)]
    pub(super) fn remember_acked(&mut self) {
        let acked = self.slots.iter().filter(|slot| slot.state == SlotState::Acked);
        self.remembered.extend(acked.map(|slot| slot.position));
    }

    /// The event of a ticket reached the broker. Returns a later event of its lane that had reached the broker first.
    pub(super) fn acked(&mut self, ticket: Ticket) -> Option<Position> {
        let position = self.complete(ticket, SlotState::Acked)?.position;
        if self.overtaken.is_empty() { None } else { self.overtaken.remove(&position) }
    }

    /// The batch that contained the event was refused.
    pub(super) fn refused(&mut self, ticket: Ticket) {
        self.complete(ticket, SlotState::Refused);
    }

    /// The event of a ticket was handed over, and is parked instead.
    pub(super) fn park_handed_over(&mut self, ticket: Ticket) {
        self.complete(ticket, SlotState::Parked);
    }

    /// The event of a ticket in flight is neither published nor parked, and is not sent again.
    pub(super) fn leave_out(&mut self, ticket: Ticket) {
        if let Some(slot) = self.complete(ticket, SlotState::Skipped) {
            self.skipped += 1;
            self.take_overtaken(slot.position);
        }
    }

    /// Adds an event that is parked without being handed over.
    pub(super) fn park(&mut self, ticket: Ticket, slot: Slot) {
        self.not_taken = None;
        self.push(ticket, Slot { state: SlotState::Parked, ..slot });
    }

    /// Whether the newest event is sent with no other event of the stream in flight, because it is suspected or because
    /// of its size.
    pub(super) fn sends_exclusively(&self) -> bool {
        self.suspect_in_flight || self.large_in_flight
    }

    /// Whether the event in flight was sent with nothing else in flight, so that a refusal can mean no other event. A
    /// large event may share its batch with an attempt, because its topic may have come to take its size.
    pub(super) fn is_exclusive(&self) -> bool {
        self.suspect_in_flight
    }

    /// Removes and returns a later event of its lane that was published before this one.
    pub(super) fn take_overtaken(&mut self, position: Position) -> Option<Position> {
        self.suspects.remove(&position);
        self.overtaken.remove(&position)
    }

    #[inline]
    pub(super) fn is_overtaken(&self, position: Position) -> bool {
        !self.overtaken.is_empty() && self.overtaken.contains_key(&position)
    }

    fn complete(&mut self, ticket: Ticket, state: SlotState) -> Option<Slot> {
        let slot = self.index(ticket).and_then(|index| self.slots.get_mut(index))?;
        slot.state = state;
        let slot = *slot;
        if state == SlotState::Acked && self.suspect_in_flight {
            self.suspects.remove(&slot.position);
        }
        self.release(&slot);
        let Limits { events_max, bytes_max } = self.limits;
        self.full &= self.events > events_max / 4 * 3 || self.bytes > bytes_max / 4 * 3;
        Some(slot)
    }

    /// An event is not in flight any more.
    fn release(&mut self, slot: &Slot) {
        self.events -= 1;
        self.bytes -= u64::from(slot.size_bytes);
        (self.suspect_in_flight, self.large_in_flight) = (false, false);
        if let Some(lanes) = &mut self.lanes_in_flight {
            lanes.remove(&slot.lane);
        }
    }

    /// Records, before everything in flight is discarded, which events were in a refused batch, and which were
    /// overtaken by a later event of their lane. An event of a refused batch may have no report yet, and may be the one
    /// that the broker means. `overtakes`: an acknowledged event is published, and has overtaken the discarded events
    /// before it. Not so if it is discarded with the transaction of the sink.
    pub(super) fn suspect_refused(&mut self, overtakes: bool) {
        let mut acked: HashMap<Lane, Position> = HashMap::new();
        self.discarded.clear();
        self.discarded_by_lane.clear();
        let mut ticket = self.base + self.slots.len() as u64;
        for slot in self.slots.iter().rev() {
            ticket -= 1;
            match slot.state {
                SlotState::Acked if overtakes => {
                    acked.entry(slot.lane).or_insert(slot.position);
                }
                SlotState::Refused | SlotState::InFlight => {
                    self.discarded.insert(Ticket(ticket), (slot.position, slot.lane));
                    self.discarded_by_lane.entry(slot.lane).or_default().push(slot.position);
                    if slot.state == SlotState::Refused {
                        self.suspects.insert(slot.position);
                    }
                    if let Some(&later) =
                        acked.get(&slot.lane).filter(|_| !injected(Bug::ForgetsOvertaken))
                    {
                        self.overtaken.insert(slot.position, later);
                    }
                }
                SlotState::Acked | SlotState::Parked | SlotState::Skipped => {}
            }
        }
    }

    /// A discarded event had reached the broker: the discarded events before it in its lane that have no
    /// acknowledgement yet were overtaken.
    pub(super) fn acked_late(&mut self, ticket: Ticket) {
        let Some((position, lane)) = self.discarded.remove(&ticket) else { return };
        if injected(Bug::ForgetsOvertaken) {
            return;
        }
        let Some(unacked) = self.discarded_by_lane.get_mut(&lane) else { return };
        let Ok(at) = unacked.binary_search_by(|discarded| position.cmp(discarded)) else { return };
        unacked.remove(at);
        for &before in &unacked[at..] {
            self.overtaken.entry(before).or_insert(position);
        }
    }

    pub(super) fn forget_below(&mut self, low: Ticket) {
        while self.base < low.0 && self.slots.pop_front().is_some() {
            self.base += 1;
        }
    }

    /// The stream has another history, in which these positions mean other events.
    pub(super) fn forget_positions(&mut self) {
        self.suspects.clear();
        self.large = None;
        self.overtaken.clear();
        self.discarded.clear();
        self.discarded_by_lane.clear();
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.not_taken = None;
        (self.suspect_in_flight, self.large_in_flight) = (false, false);
        if let Some(lanes) = &mut self.lanes_in_flight {
            lanes.clear();
        }
        self.events = 0;
        self.bytes = 0;
        self.full = false;
    }

    pub(super) fn in_flight(&self) -> (u64, u64) {
        (self.events, self.bytes)
    }

    pub(super) fn oldest(&self) -> Option<Timestamp> {
        // An acknowledged event is resolved at once, unless it waits for the commit of the sink's transaction.
        let unresolved = |slot: &&Slot| {
            matches!(slot.state, SlotState::InFlight | SlotState::Acked | SlotState::Parked)
        };
        let front = self.slots.front().filter(unresolved);
        front.map(|slot| slot.commit_time).or(self.not_taken)
    }

    fn push(&mut self, ticket: Ticket, slot: Slot) {
        if self.slots.is_empty() {
            self.base = ticket.0;
        }
        self.slots.push_back(slot);
    }

    fn index(&self, ticket: Ticket) -> Option<usize> {
        ticket.0.checked_sub(self.base).and_then(|index| usize::try_from(index).ok())
    }
}
