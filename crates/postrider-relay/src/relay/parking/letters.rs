//! Dead events whose records also go to the dead-letter topic: which are still to be sent, and when.
//!
//! One at a time, by a ticket of its own, and only once the row that says "dead" is committed: the record is read from
//! there, and a crash before the mark sends it again. What is refused is put off and never given up; nothing waits for
//! it but the letters themselves. Knows no lane: `parking` says who is dead.

use super::Parking;
use crate::relay::Effect;
use postrider_core::event::Position;
use postrider_core::parked::{Became, State};
use postrider_core::record::Ticket;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Letters {
    /// Whether there is a topic for them.
    on: bool,
    /// To be sent, and from when on, by the relay's clock.
    due: HashMap<Position, Duration>,
    /// The same in order.
    order: BTreeSet<(Duration, Position)>,
    out: Option<(Ticket, Position)>,
    /// Acknowledged; the marks that say so are not committed.
    sent: BTreeSet<Position>,
}

impl Letters {
    pub(super) fn new(on: bool) -> Self {
        Self { on, ..Self::default() }
    }

    /// The row of a dead event is committed, and does not say that it was sent.
    pub(super) fn dead(&mut self, position: Position) {
        let flies = self.out.is_some_and(|(_, out)| out == position);
        if self.on && !flies && !self.sent.contains(&position) {
            self.send_at(position, Duration::ZERO);
        }
    }

    /// The next to be sent, unless one is out.
    pub(super) fn next(&self, now: Duration) -> Option<Position> {
        let first = self.order.first().filter(|(due, _)| self.out.is_none() && *due <= now);
        first.map(|(_, position)| *position)
    }

    /// It is on its way.
    pub(super) fn goes(&mut self, ticket: Ticket, position: Position) {
        self.forget(position);
        self.out = Some((ticket, position));
    }

    /// What a report is about, if it is about the letter that is out.
    pub(super) fn ended(&mut self, ticket: Ticket) -> Option<Position> {
        self.out.take_if(|(out, _)| *out == ticket).map(|(_, position)| position)
    }

    /// Whether this letter is out.
    pub(super) fn is_out(&self, ticket: Ticket) -> bool {
        self.out.is_some_and(|(out, _)| out == ticket)
    }

    /// Letters that are out: one at most.
    pub(super) fn flying(&self) -> usize {
        usize::from(self.out.is_some())
    }

    pub(super) fn send_at(&mut self, position: Position, due: Duration) {
        self.forget(position);
        self.due.insert(position, due);
        self.order.insert((due, position));
    }

    /// The broker has it.
    pub(super) fn sent(&mut self, position: Position) {
        self.sent.insert(position);
    }

    /// The mark that says so is committed.
    pub(super) fn marked(&mut self, position: Position) {
        self.sent.remove(&position);
    }

    /// It is not dead any more. A report that still comes is about nothing.
    pub(super) fn forget(&mut self, position: Position) {
        if let Some(due) = self.due.remove(&position) {
            self.order.remove(&(due, position));
        }
        self.out.take_if(|(_, out)| *out == position);
    }

    /// No report will come.
    pub(super) fn given_up(&mut self) {
        if let Some((_, position)) = self.out.take() {
            self.send_at(position, Duration::ZERO);
        }
    }

    /// What is to be sent is read from the table again.
    pub(super) fn reload(&mut self) {
        self.due.clear();
        self.order.clear();
    }

    /// The rows are another owner's.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.on);
    }

    /// Whether none is out or due.
    #[inline]
    pub(super) fn asleep(&self, now: Duration) -> bool {
        self.out.is_none() && self.order.first().is_none_or(|(due, _)| *due > now)
    }

    /// When the next falls due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.order.first().filter(|_| self.out.is_none()).map(|(due, _)| *due)
    }
}

impl Parking {
    pub(super) fn send_letter(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while let Some(position) = self.letters.next(now) {
            if self.lanes.row(position).is_none_or(|row| row.state != State::Dead) {
                self.letters.forget(position);
                continue;
            }
            let ticket = self.ticket();
            self.letters.goes(ticket, position);
            effects.push(Effect::Letter { ticket, position });
        }
    }

    /// A row is committed: if it is dead now, its record is to be sent.
    pub(super) fn may_be_a_letter(&mut self, position: Position) {
        if self.lanes.row(position).is_some_and(|row| row.state == State::Dead) {
            self.letters.dead(position);
        }
    }

    /// A row read at the start is dead and was not sent.
    pub(in crate::relay) fn unsent(&mut self, position: Position) {
        self.may_be_a_letter(position);
    }

    /// Whether a ticket is the letter's that is out.
    pub(in crate::relay) fn is_letter(&self, ticket: Ticket) -> bool {
        self.letters.is_out(ticket)
    }

    /// The dead-letter topic has the record.
    pub(in crate::relay) fn delivered(&mut self, ticket: Ticket) {
        let Some(position) = self.letters.ended(ticket) else { return };
        self.letters.sent(position);
        self.mark(position, Became::DeadSent, None);
    }

    /// The dead-letter topic did not take the record; whose.
    pub(in crate::relay) fn undelivered(
        &mut self,
        now: Duration,
        ticket: Ticket,
    ) -> Option<Position> {
        let position = self.letters.ended(ticket)?;
        let due = now.saturating_add(self.rules.wait(self.rules.steps_max));
        self.letters.send_at(position, due);
        Some(position)
    }
}
