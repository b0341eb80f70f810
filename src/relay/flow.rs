//! What is in flight, and the bounds on it.
//!
//! One slot a ticket, from the lowest without an outcome on, so that a report finds its event's size and time by
//! subtraction.

use super::stream::Upcoming;
use crate::event::{PgTime, Position};
use crate::record::Ticket;
use std::collections::VecDeque;

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
    size_bytes: u32,
    state: Handed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Handed {
    Over,
    Landed,
    Never,
}

impl Slot {
    pub(super) fn new(upcoming: &Upcoming, size_bytes: usize) -> Self {
        Self {
            position: upcoming.position,
            commit_time: upcoming.commit_time,
            size_bytes: u32::try_from(size_bytes).unwrap_or(u32::MAX),
            state: Handed::Over,
        }
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
    shut: bool,
    /// Commit time of an event that the sink has not taken yet.
    waiting: Option<PgTime>,
    /// Below this position one event at a time is in flight, to find the one a broker refuses.
    careful_until: Position,
}

impl Flow {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: VecDeque::new(),
            base: 0,
            events: 0,
            bytes: 0,
            shut: false,
            waiting: None,
            careful_until: Position::default(),
        }
    }

    pub(super) fn has_room(&self, next: Position) -> bool {
        if next < self.careful_until {
            return self.events == 0;
        }
        !self.shut
    }

    pub(super) fn careful(&mut self, until: Position) {
        self.careful_until = self.careful_until.max(until);
    }

    pub(super) fn hand_over(&mut self, ticket: Ticket, slot: Slot) {
        self.waiting = None;
        self.events += 1;
        self.bytes += u64::from(slot.size_bytes);
        self.shut = self.events >= self.limits.events_max || self.bytes >= self.limits.bytes_max;
        self.push(ticket, slot);
    }

    /// The newest event was not taken by the sink.
    pub(super) fn retract(&mut self) {
        let Some(slot) = self.slots.pop_back() else { return };
        self.events -= 1;
        self.bytes -= u64::from(slot.size_bytes);
        self.waiting = Some(slot.commit_time);
        // It was let in, so the intake was open before it.
        self.shut = false;
    }

    /// A ticket that no sink will report on.
    pub(super) fn skip(&mut self, ticket: Ticket) {
        let slot = Slot {
            position: Position::default(),
            commit_time: PgTime::default(),
            size_bytes: 0,
            state: Handed::Never,
        };
        self.push(ticket, slot);
    }

    /// The event of a ticket that is in flight; `None` for a report of an earlier session.
    pub(super) fn get(&self, ticket: Ticket) -> Option<Slot> {
        let slot = self.slots.get(self.index(ticket)?)?;
        assert!(slot.state == Handed::Over, "a second report for {ticket:?}");
        Some(*slot)
    }

    /// The event of a ticket reached the broker.
    pub(super) fn landed(&mut self, ticket: Ticket) {
        let slot = self.index(ticket).and_then(|index| self.slots.get_mut(index));
        let Some(slot) = slot else { return };
        slot.state = Handed::Landed;
        self.events -= 1;
        self.bytes -= u64::from(slot.size_bytes);
        let Limits { events_max, bytes_max } = self.limits;
        self.shut &= self.events > events_max / 4 * 3 || self.bytes > bytes_max / 4 * 3;
    }

    pub(super) fn forget_below(&mut self, low: Ticket) {
        while self.base < low.0 && self.slots.pop_front().is_some() {
            self.base += 1;
        }
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.waiting = None;
        self.events = 0;
        self.bytes = 0;
        self.shut = false;
    }

    pub(super) fn in_flight(&self) -> (u64, u64) {
        (self.events, self.bytes)
    }

    pub(super) fn oldest(&self) -> Option<PgTime> {
        let front = self.slots.front().filter(|slot| slot.state == Handed::Over);
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
