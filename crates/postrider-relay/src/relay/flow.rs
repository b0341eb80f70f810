//! What is in flight, and the bounds on it.
//!
//! One slot a ticket, from the lowest without an outcome on, so that a report finds its event's size and time by
//! subtraction.

use super::stream::Upcoming;
use crate::ack::bug::{Bug, injected};
use postrider_core::event::{PgTime, Position};
use postrider_core::parked::Lane;
use postrider_core::record::Ticket;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

/// Tickets from the oldest without an outcome to the newest. One stuck report may have this many resolved ones behind
/// it: about 50 bytes each, 50 MB at the worst.
pub(super) const SPAN_MAX: u64 = 1 << 20;

/// Bounds on what is in flight. Reaching one shuts the intake; it opens again at three quarters.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Events handed over without a report.
    pub events_max: u64,
    /// Bytes of their keys, headers and payloads. One event may exceed it alone.
    pub bytes_max: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) position: Position,
    pub(super) commit_time: PgTime,
    pub(super) lane: Lane,
    size_bytes: u32,
    state: Handed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Handed {
    Over,
    Landed,
    /// Refused, by a broker that may have meant another of its batch.
    Refused,
    /// Set aside: its row is not committed.
    Aside,
    Never,
}

impl Slot {
    pub(super) fn new(upcoming: &Upcoming, lane: Lane, size_bytes: usize) -> Self {
        Self {
            position: upcoming.position,
            commit_time: upcoming.commit_time,
            lane,
            size_bytes: u32::try_from(size_bytes).unwrap_or(u32::MAX),
            state: Handed::Over,
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        usize::try_from(self.size_bytes).unwrap_or(usize::MAX)
    }
}

#[derive(Debug)]
pub(super) struct Flow {
    limits: Limits,
    slots: VecDeque<Slot>,
    /// The ticket of the first slot.
    base: u64,
    events: u64,
    bytes: u64,
    /// Tickets of what is no event, in all.
    skipped: u64,
    shut: bool,
    /// Commit time of an event that the sink has not taken yet.
    waiting: Option<PgTime>,
    /// Events of batches that a broker refused: they are sent with nothing else in flight, to find the one it means.
    suspects: BTreeSet<Position>,
    /// One of them is in flight.
    alone: bool,
    /// The event that the sink takes only with no other event of the stream in flight: it is larger than its topic
    /// takes before compression, and a producer of its own finds out whether the broker takes it.
    large: Option<Position>,
    /// It is in flight.
    large_flies: bool,
    /// Of a suspect, a later event of its lane that reached the broker before it.
    overtaken: BTreeMap<Position, Position>,
    /// What was given up without a report that it landed: one that comes late can still tell of overtaking.
    given_up: HashMap<Ticket, (Position, Lane)>,
    /// The same by lane, newest first.
    behind: HashMap<Lane, Vec<Position>>,
    /// Lanes with an event in flight, where a lane may have only one.
    flying: Option<HashSet<Lane>>,
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
            shut: false,
            waiting: None,
            suspects: BTreeSet::new(),
            alone: false,
            large: None,
            large_flies: false,
            overtaken: BTreeMap::new(),
            given_up: HashMap::new(),
            behind: HashMap::new(),
            flying: strict.then(HashSet::new),
            #[cfg(test)]
            remembered: BTreeSet::new(),
        }
    }

    /// Tickets of what is no event, in all.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// How many events may be in flight.
    pub(super) fn events_max(&self) -> u64 {
        self.limits.events_max
    }

    /// Whether the next event may be handed over, while `tries` of parked events are out.
    pub(super) fn has_room(&self, next: Position, tries: usize) -> bool {
        if self.alone || self.suspects.contains(&next) {
            return self.events == 0 && (tries == 0 || injected(Bug::SuspectInCompany));
        }
        if self.goes_alone(next) && !injected(Bug::LargeInCompany) {
            return self.events == 0;
        }
        !self.shut || injected(Bug::NoBound)
    }

    /// Whether this event is sent with no other of the stream in flight because of its size, or one that is has not
    /// been reported.
    pub(super) fn goes_alone(&self, next: Position) -> bool {
        self.large_flies || self.large == Some(next)
    }

    /// Whether this event is sent with nothing else in flight, or one that is has not been reported.
    pub(super) fn is_suspicious(&self, next: Position) -> bool {
        (self.alone || self.suspects.contains(&next)) && !injected(Bug::SuspectInCompany)
    }

    /// Whether the lane may have another event in flight.
    pub(super) fn admits(&self, lane: Lane) -> bool {
        let free = |flying: &HashSet<Lane>| !flying.contains(&lane) || injected(Bug::NotStrict);
        self.flying.as_ref().is_none_or(free)
    }

    pub(super) fn hand_over(&mut self, ticket: Ticket, slot: Slot) {
        self.waiting = None;
        self.alone = self.suspects.contains(&slot.position);
        self.large_flies = self.large == Some(slot.position);
        if let Some(flying) = &mut self.flying {
            flying.insert(slot.lane);
        }
        self.events += 1;
        self.bytes += u64::from(slot.size_bytes);
        self.shut = self.events >= self.limits.events_max || self.bytes >= self.limits.bytes_max;
        self.push(ticket, slot);
    }

    /// The newest event was not taken by the sink.
    pub(super) fn retract(&mut self) {
        let Some(slot) = self.slots.pop_back() else { return };
        self.left(&slot);
        self.waiting = Some(slot.commit_time);
        // It was let in, so the intake was open before it.
        self.shut = false;
    }

    /// The newest event was not taken by the sink, which takes it only with no other in flight.
    pub(super) fn retract_to_send_alone(&mut self) {
        self.large = self.slots.back().map(|slot| slot.position);
        self.retract();
    }

    /// A ticket that no sink will report on.
    pub(super) fn skip(&mut self, ticket: Ticket) {
        let slot = Slot {
            position: Position::default(),
            commit_time: PgTime::default(),
            lane: Lane::default(),
            size_bytes: 0,
            state: Handed::Never,
        };
        self.skipped += 1;
        self.push(ticket, slot);
    }

    /// The event of a ticket that is in flight; `None` for a report of an earlier session.
    pub(super) fn get(&self, ticket: Ticket) -> Option<Slot> {
        let slot = self.slots.get(self.index(ticket)?)?;
        assert!(slot.state == Handed::Over, "a second report for {ticket:?}");
        Some(*slot)
    }

    /// Whether the event of a ticket is in flight.
    #[cfg(test)]
    pub(super) fn flies(&self, ticket: Ticket) -> bool {
        let slot = self.index(ticket).and_then(|index| self.slots.get(index));
        slot.is_some_and(|slot| slot.state == Handed::Over)
    }

    /// See [`Bug::ResendsTheFailed`].
    #[cfg(test)]
    pub(super) fn remember_the_landed(&mut self) {
        let landed = self.slots.iter().filter(|slot| slot.state == Handed::Landed);
        self.remembered.extend(landed.map(|slot| slot.position));
    }

    /// The event of a ticket reached the broker; a later one of its lane that had come first.
    pub(super) fn landed(&mut self, ticket: Ticket) -> Option<Position> {
        let position = self.ends(ticket, Handed::Landed)?.position;
        if self.overtaken.is_empty() { None } else { self.overtaken.remove(&position) }
    }

    /// The batch the event was in was refused.
    pub(super) fn refused(&mut self, ticket: Ticket) {
        self.ends(ticket, Handed::Refused);
    }

    /// The event of a ticket was handed over, and is to be set aside instead.
    pub(super) fn put_aside(&mut self, ticket: Ticket) {
        self.ends(ticket, Handed::Aside);
    }

    /// An event that is set aside without being handed over.
    pub(super) fn aside(&mut self, ticket: Ticket, slot: Slot) {
        self.waiting = None;
        self.push(ticket, Slot { state: Handed::Aside, ..slot });
    }

    /// Whether the newest event is sent with no other of the stream in flight, because it is suspected or for its size.
    pub(super) fn sends_exclusively(&self) -> bool {
        self.alone || self.large_flies
    }

    /// Whether the event in flight was sent with nothing else in flight, so that a refusal can mean nothing else. One
    /// that is sent by itself for its size may have a try in its batch: its topic may have come to take its size.
    pub(super) fn was_alone(&self) -> bool {
        self.alone
    }

    /// A later event of its lane that was published before this one.
    pub(super) fn overtaken(&mut self, position: Position) -> Option<Position> {
        self.suspects.remove(&position);
        self.overtaken.remove(&position)
    }

    #[inline]
    pub(super) fn is_overtaken(&self, position: Position) -> bool {
        !self.overtaken.is_empty() && self.overtaken.contains_key(&position)
    }

    fn ends(&mut self, ticket: Ticket, state: Handed) -> Option<Slot> {
        let slot = self.index(ticket).and_then(|index| self.slots.get_mut(index))?;
        slot.state = state;
        let slot = *slot;
        if state == Handed::Landed && self.alone {
            self.suspects.remove(&slot.position);
        }
        self.left(&slot);
        let Limits { events_max, bytes_max } = self.limits;
        self.shut &= self.events > events_max / 4 * 3 || self.bytes > bytes_max / 4 * 3;
        Some(slot)
    }

    /// An event is not in flight any more.
    fn left(&mut self, slot: &Slot) {
        self.events -= 1;
        self.bytes -= u64::from(slot.size_bytes);
        (self.alone, self.large_flies) = (false, false);
        if let Some(flying) = &mut self.flying {
            flying.remove(&slot.lane);
        }
    }

    /// Remembers who was in a refused batch, and whom a later event of its lane has overtaken: of a batch that was
    /// refused some may have no report yet, and one of those can be the culprit.
    pub(super) fn suspect_the_refused(&mut self) {
        let mut landed: HashMap<Lane, Position> = HashMap::new();
        self.given_up.clear();
        self.behind.clear();
        let mut ticket = self.base + self.slots.len() as u64;
        for slot in self.slots.iter().rev() {
            ticket -= 1;
            match slot.state {
                Handed::Landed => {
                    landed.entry(slot.lane).or_insert(slot.position);
                }
                Handed::Refused | Handed::Over => {
                    self.given_up.insert(Ticket(ticket), (slot.position, slot.lane));
                    self.behind.entry(slot.lane).or_default().push(slot.position);
                    if slot.state == Handed::Refused {
                        self.suspects.insert(slot.position);
                    }
                    if let Some(&later) =
                        landed.get(&slot.lane).filter(|_| !injected(Bug::ForgetsOvertaken))
                    {
                        self.overtaken.insert(slot.position, later);
                    }
                }
                Handed::Aside | Handed::Never => {}
            }
        }
    }

    /// An event that was given up had reached the broker: whoever is before it in its lane was overtaken.
    pub(super) fn landed_late(&mut self, ticket: Ticket) {
        let Some((position, lane)) = self.given_up.remove(&ticket) else { return };
        if injected(Bug::ForgetsOvertaken) {
            return;
        }
        for &before in self.behind.get(&lane).into_iter().flatten() {
            if before < position {
                self.overtaken.entry(before).or_insert(position);
            }
        }
    }

    pub(super) fn forget_below(&mut self, low: Ticket) {
        while self.base < low.0 && self.slots.pop_front().is_some() {
            self.base += 1;
        }
    }

    /// Positions mean something else from now on.
    pub(super) fn forget_positions(&mut self) {
        self.suspects.clear();
        self.large = None;
        self.overtaken.clear();
        self.given_up.clear();
        self.behind.clear();
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.waiting = None;
        (self.alone, self.large_flies) = (false, false);
        if let Some(flying) = &mut self.flying {
            flying.clear();
        }
        self.events = 0;
        self.bytes = 0;
        self.shut = false;
    }

    pub(super) fn in_flight(&self) -> (u64, u64) {
        (self.events, self.bytes)
    }

    pub(super) fn oldest(&self) -> Option<PgTime> {
        let unresolved = |slot: &&Slot| matches!(slot.state, Handed::Over | Handed::Aside);
        let front = self.slots.front().filter(unresolved);
        front.map(|slot| slot.commit_time).or(self.waiting)
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
