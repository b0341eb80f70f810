//! Tries of the heads that are due, and what comes of each. One that is suspected of spoiling others goes alone.

use super::{Parking, TRIES_MAX, TRY};
use crate::relay::effect::Effect;
use crate::relay::lanes::Row;
use postrider_core::event::Position;
use postrider_core::parked::{Became, State};
use postrider_core::record::{Refusal, Ticket};
use std::time::Duration;

impl Parking {
    /// Tries what is due and below `durable`. `in_flight` events of the stream have no report yet.
    pub(in crate::relay) fn tick(
        &mut self,
        now: Duration,
        (resolved, durable): (Position, Position),
        in_flight: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.lanes.forget_below(resolved);
        self.lanes.ripen(now);
        while self.connected && self.tries.len() < TRIES_MAX && !self.trying_alone() {
            let nothing = in_flight == 0 && self.tries() == 0;
            if self.soundings.len() == TRIES_MAX {
                break;
            }
            let Some(position) = self.lanes.next_due(durable, nothing) else { break };
            let ticket = self.ticket();
            let Some(row) = self.lanes.row_mut(position) else { continue };
            row.trying = Some(ticket);
            // Everything waits for one that is alone: so first it is seen that there is somewhere for it to go.
            if row.alone && !row.sounded {
                self.soundings.insert(ticket, position);
                effects.push(Effect::Sound { ticket, position });
            } else {
                self.tries.insert(ticket, position);
                effects.push(Effect::Try { ticket, position });
            }
        }
        self.hushed = self.needs_quiet(resolved);
        if self.connected && !self.hushed {
            self.send_letter(now, effects);
        }
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        let ticket = Ticket(TRY | self.next_try);
        self.next_try += 1;
        ticket
    }

    /// When something falls due.
    pub(in crate::relay) fn deadline(&self) -> Option<Duration> {
        // A letter that waits for a try to be alone is not due: time alone does not bring it on.
        let letter = self.letters.deadline().filter(|_| !self.hushed);
        let due = [self.lanes.deadline(), letter];
        due.into_iter().flatten().min().filter(|_| self.connected)
    }

    /// Whether a try is out, or is next, that must have nothing else in flight.
    pub(in crate::relay) fn needs_quiet(&self, durable: Position) -> bool {
        self.connected && (self.trying_alone() || self.lanes.wants_to_be_alone(durable))
    }

    /// Whether a try waits for nothing but a cursor row that says `resolved` instead of `durable`.
    pub(in crate::relay) fn waits_for_row(&self, durable: Position, resolved: Position) -> bool {
        self.connected && self.lanes.is_due_between(durable, resolved)
    }

    fn trying_alone(&self) -> bool {
        // One that is alone is alone.
        let mut tries = self.tries.values();
        let first = tries.next().and_then(|position| self.lanes.row(*position));
        first.is_some_and(|row| row.alone)
    }

    /// Whether a ticket is a try's, of this session or of an earlier one.
    pub(in crate::relay) fn is_try(ticket: Ticket) -> bool {
        ticket.0 & TRY != 0
    }

    /// A try reached the broker; where it was parked.
    pub(in crate::relay) fn released(
        &mut self,
        ticket: Ticket,
        resolved: Position,
    ) -> Option<Position> {
        let (position, row) = self.end_try(ticket)?;
        self.suspects.remove(&position);
        if row.wish.is_some() {
            self.mark(position, Became::Declined, row.lane);
        }
        self.lanes.remove(position, true, position >= resolved);
        self.mark(position, Became::Done, row.lane);
        Some(position)
    }

    /// A try was refused for what the event itself is.
    pub(in crate::relay) fn refused_again(
        &mut self,
        now: Duration,
        ticket: Ticket,
        reason: Refusal,
    ) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(wish) = row.wish {
            self.grant(now, position, wish, position);
            return;
        }
        let attempts = row.attempts.saturating_add(1);
        let dead = attempts >= self.rules.attempts_max;
        let state = if dead { State::Dead } else { State::Waiting };
        let wait = self.rules.wait(attempts);
        self.lanes.becomes(position, state, attempts, now.saturating_add(wait));
        self.lanes.writing(position);
        self.mark(position, Became::Refused { state, attempts, wait, reason }, row.lane);
    }

    /// A try came to nothing, for a reason that is not the event's: no attempt is counted.
    pub(in crate::relay) fn put_off(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(wish) = row.wish {
            self.grant(now, position, wish, position);
            return;
        }
        let due = now.saturating_add(self.rules.wait(1));
        self.lanes.becomes(position, row.state, row.attempts, due);
    }

    /// A batch with a try in it was refused: the try is repeated alone.
    pub(in crate::relay) fn suspect(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        self.suspects.insert(position);
        self.lanes.set_alone(position);
        self.lanes.becomes(position, row.state, row.attempts, now);
    }

    /// The destination of a row that is to be tried alone is known: it is tried as soon as nothing else is in flight.
    pub(in crate::relay) fn sounded(&mut self, now: Duration, ticket: Ticket) {
        let Some((position, row)) = self.end_try(ticket) else { return };
        if let Some(wish) = row.wish {
            self.grant(now, position, wish, position);
            return;
        }
        if let Some(row) = self.lanes.row_mut(position) {
            row.sounded = true;
        }
        self.lanes.becomes(position, row.state, row.attempts, now);
    }

    /// Whether this try is out.
    pub(in crate::relay) fn tried(&self, ticket: Ticket) -> bool {
        self.tries.contains_key(&ticket)
    }

    /// Whether a try was made with nothing else in flight, so that a refusal can mean nothing else.
    pub(in crate::relay) fn was_alone(&self, ticket: Ticket) -> bool {
        let row = self.tries.get(&ticket).and_then(|position| self.lanes.row(*position));
        row.is_some_and(|row| row.alone)
    }

    /// The row of a try is not in the table any more: somebody deleted it.
    pub(in crate::relay) fn gone(&mut self, ticket: Ticket) {
        if self.letters.ended(ticket).is_some() {
            return;
        }
        let Some((position, _)) = self.end_try(ticket) else { return };
        self.lanes.remove(position, false, false);
    }

    /// The row of a dead event is not in the table any more. Where more has become of it meanwhile, that counts.
    pub(in crate::relay) fn deleted(&mut self, position: Position) {
        let row = self.lanes.row(position).copied();
        let still = row.is_some_and(|row| row.state == State::Dead && row.at_rest());
        if still {
            self.letters.forget(position);
            self.lanes.remove(position, false, false);
        }
    }

    fn end_try(&mut self, ticket: Ticket) -> Option<(Position, Row)> {
        let sounding = || self.soundings.remove(&ticket);
        let position = self.tries.remove(&ticket).or_else(sounding)?;
        let row = self.lanes.row_mut(position)?;
        (row.trying, row.sounded) = (None, false);
        Some((position, *row))
    }
}
