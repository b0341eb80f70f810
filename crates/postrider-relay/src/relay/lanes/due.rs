//! Which head is tried next, and when: those whose time has not come, and those whose time has.
//!
//! Owns what is scheduled: the head of a lane, where the table has it as it is. Knows no sink, nor what became of a
//! try; what is due goes to `parking`, which sends it.

use super::{Lanes, Row};
use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::parked::State;
use std::time::Duration;

impl Lanes {
    /// Whether neither time nor a report changes anything before something else does: no head is due, and no settled
    /// row waits to be forgotten.
    #[inline]
    pub(in crate::relay) fn asleep(&self, now: Duration) -> bool {
        self.now.is_empty()
            && self.settled.is_empty()
            && self.later.first().is_none_or(|(due, _)| *due > now)
    }

    /// Time has passed: rows fall due.
    pub(in crate::relay) fn ripen(&mut self, now: Duration) {
        while let Some(&(due, position)) = self.later.first().filter(|(due, _)| *due <= now) {
            self.later.remove(&(due, position));
            self.now.insert(position);
        }
    }

    /// The next row to try, or to sound: due, at the head of its lane, and below the cursor row, `durable`.
    /// `alone_allowed` where nothing is in flight. `None` where there is none, or the next one has to wait to be alone.
    pub(in crate::relay) fn next_due(
        &mut self,
        durable: Position,
        alone_allowed: bool,
    ) -> Option<Position> {
        let position = self.now.first().copied().filter(|position| *position < durable)?;
        let alone = self.rows.get(&position).is_some_and(|row| row.alone && row.sounded);
        if alone && !alone_allowed {
            return None;
        }
        self.now.remove(&position);
        Some(position)
    }

    /// Whether the next row to try must have nothing else in flight.
    pub(in crate::relay) fn wants_to_be_alone(&self, durable: Position) -> bool {
        let first = self.now.first().filter(|position| **position < durable);
        first
            .and_then(|position| self.rows.get(position))
            .is_some_and(|row| row.alone && row.sounded)
    }

    /// Whether a head is due that stands at `durable` or behind it, and before `resolved`.
    pub(in crate::relay) fn is_due_between(&self, durable: Position, resolved: Position) -> bool {
        durable < resolved && self.now.range(durable..resolved).next().is_some()
    }

    /// When the next row falls due.
    pub(in crate::relay) fn deadline(&self) -> Option<Duration> {
        self.later.first().map(|(due, _)| *due)
    }

    pub(super) fn is_head(&self, position: Position, row: &Row) -> bool {
        let any = injected(Bug::TriesOutOfOrder);
        any || row.lane.is_none_or(|lane| {
            self.queues.get(&lane).is_none_or(|queue| queue.rows.front() == Some(&position))
        })
    }

    /// Puts a row where its time finds it, if it is at the head and nothing keeps it.
    pub(super) fn schedule(&mut self, position: Position) {
        let Some(row) = self.rows.get(&position) else { return };
        let written = row.unwritten == 0 || injected(Bug::TriesUncommitted);
        let free = row.trying.is_none() && written && row.state != State::Dead;
        let held = row.lane.and_then(|lane| self.queues.get(&lane)).is_some_and(|queue| queue.held);
        if free && !held && self.is_head(position, row) {
            self.later.insert((row.due, position));
        }
    }

    pub(super) fn unschedule(&mut self, position: Position) {
        self.now.remove(&position);
        if let Some(row) = self.rows.get(&position) {
            self.later.remove(&(row.due, position));
        }
    }
}
