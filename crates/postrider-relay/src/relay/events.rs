//! What an input does: events of the stream, sent or parked, and what comes back from the table. What a sink
//! says of them is in `reports`.

use super::effect::{Effect, Restart};
use super::flow::Slot;
use super::input::{Change, Input};
use super::parking::{OnPoison, Parking};
use super::phase::{Phase, Until};
use super::{Relay, Upcoming};
use crate::ack::bug::{Bug, injected};
use crate::ack::{Broken, Resolution};
use postrider_core::error::Halt;
use postrider_core::event::{Aggregate, Position};
use postrider_core::parked::{Entry, Lane, State};
use postrider_core::record::{Refusal, Ticket};
use std::time::Duration;

impl Relay {
    /// Takes one input.
    pub(super) fn take(
        &mut self,
        now: Duration,
        input: Input<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Broken> {
        match input {
            Input::Change(change) => self.change(now, change, effects)?,
            Input::Report { ticket, outcome } if self.parking.is_letter(ticket) => {
                self.report_letter(now, ticket, outcome, effects);
            }
            Input::Report { ticket, outcome } if Parking::is_try(ticket) => {
                self.report_try(now, ticket, outcome, effects);
            }
            Input::Report { ticket, outcome } => self.report(ticket, outcome, effects),
            Input::Refused { ticket, reason, halt } => {
                self.refused_at_once(now, ticket, reason, halt, effects);
            }
            Input::NotTaken { ticket } => {
                self.tracker.retract(ticket);
                self.flow.retract();
                self.stream.retract();
            }
            Input::Begin { commit_lsn, commit_time } => {
                self.stream.begin(&mut self.tracker, commit_lsn, commit_time)?;
            }
            Input::Commit { commit_lsn, end_lsn } => {
                self.stream.commit(&mut self.tracker, commit_lsn, end_lsn)?;
            }
            Input::Keepalive { wal_end } => self.stream.keepalive(&mut self.tracker, wal_end),
            Input::Started { cursor, same_history, same_owner, parked, wishes } => {
                self.start(cursor, (same_history, same_owner), effects);
                self.parking.load(now, parked);
                for (position, wish) in wishes {
                    self.parking.wish(now, *position, *wish, self.resolved());
                }
            }
            Input::SinkBroken => {
                let why = self.refused.map_or(Restart::SinkBroken, Restart::Refused);
                self.restart(why, effects);
            }
            Input::SlotTaken => self.slot_taken(effects),
            Input::SourceLost => self.source_lost(effects),
            Input::CursorWritten => self.feedback.written(),
            Input::CursorHeld => self.feedback.held(),
            Input::ParkingWritten { left } => self.parking_written(now, left),
            Input::Alone { ticket } => {
                self.tracker.retract(ticket);
                self.flow.retract_to_send_alone();
                self.stream.retract();
            }
            Input::Gone { ticket } => self.parking.gone(ticket),
            Input::Sounded { ticket } => self.parking.sounded(now, ticket),
            Input::Deleted { position } => self.parking.deleted(position),
            Input::Unsent { position } => self.parking.unsent(position),
            Input::Unavailable { ticket, soon } => {
                let (state, wait) = self.parking.rules.unavailable(soon);
                self.wait_aside(now, ticket, (state, wait), effects);
            }
            Input::Doubted { ticket } => {
                self.wait_aside(now, ticket, (State::Due, Duration::ZERO), effects);
            }
            Input::Wish { position, wish } => {
                self.parking.wish(now, position, wish, self.resolved());
            }
            Input::Drain => self.drain(),
            Input::Halt(halt) => self.halt(halt),
            Input::Unreadable(halt) => self.halt_behind(halt),
            Input::Tick => {
                #[cfg(test)]
                self.acknowledge_by_time(effects);
            }
        }
        Ok(())
    }

    fn change(
        &mut self,
        now: Duration,
        change: Change<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Broken> {
        let Some(upcoming) = self.stream.change()? else { return Ok(()) };
        let ticket = self.tracker.change();
        #[cfg(test)]
        if self.flow.remembered.contains(&upcoming.position) {
            self.flow.skip(ticket);
            self.resolve(ticket);
            return Ok(());
        }
        if self.parking.lanes.knows(upcoming.position) {
            self.flow.skip(ticket);
            self.resolve(ticket);
            return Ok(());
        }
        match change {
            Change::Event { aggregate, size_bytes, wait } => {
                let slot = Slot::new(&upcoming, Lane::of(aggregate), size_bytes);
                match self.to_be_parked(&upcoming, slot.lane, wait) {
                    None => {
                        self.flow.hand_over(ticket, slot);
                        effects.push(Effect::Publish(ticket));
                    }
                    Some((entry, reason)) => {
                        self.flow.aside(ticket, slot);
                        self.park(now, ticket, (entry, reason), size_bytes, effects);
                    }
                }
            }
            Change::Skipped => {
                self.flow.skip(ticket);
                self.resolve(ticket);
            }
            Change::Poison { aggregate, halt } => {
                self.poison(now, ticket, &upcoming, aggregate, halt, effects);
            }
        }
        Ok(())
    }

    /// What an event is parked as before it is sent, and why the broker has refused it; `None` where it is sent.
    fn to_be_parked(
        &self,
        upcoming: &Upcoming,
        lane: Lane,
        wait: Duration,
    ) -> Option<(Entry, Option<Refusal>)> {
        let position = upcoming.position;
        let (state, wait) = if self.parking.lanes.is_blocked(lane) {
            // Whether its own time has come is seen when it is at the head.
            (if wait.is_zero() { State::Behind } else { State::Due }, wait)
        } else if let Some((entry, reason)) = self.parking.condemned(position) {
            return Some((entry, Some(reason)));
        } else if wait.is_zero() {
            return None;
        } else {
            (State::Due, wait)
        };
        let lane = Some(lane);
        Some((Entry { position, lane, state, attempts: 0, wait, overtaken_by: None }, None))
    }

    fn poison(
        &mut self,
        now: Duration,
        ticket: Ticket,
        upcoming: &Upcoming,
        aggregate: Option<Aggregate<'_>>,
        halt: Box<Halt>,
        effects: &mut Vec<Effect>,
    ) {
        if self.parking.rules.on_poison == OnPoison::Stop {
            self.flow.skip(ticket);
            self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            return;
        }
        let lane = aggregate.map(Lane::of);
        let slot = Slot::new(upcoming, lane.unwrap_or_default(), 0);
        self.flow.aside(ticket, slot);
        let entry = self.parking.rules.refused(upcoming.position, lane, true);
        self.park(now, ticket, (entry, None), 0, effects);
    }

    /// The sink will not take the event just handed over; its record is still at hand.
    fn refused_at_once(
        &mut self,
        now: Duration,
        ticket: Ticket,
        reason: Refusal,
        halt: Box<Halt>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.flow.get(ticket) else { return };
        if self.parking.rules.on_poison == OnPoison::Stop {
            self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            return;
        }
        self.flow.put_aside(ticket);
        let hopeless = reason == Refusal::TopicName;
        let mut entry = self.parking.rules.refused(slot.position, Some(slot.lane), hopeless);
        entry.overtaken_by = self.flow.overtaken(slot.position);
        self.park(now, ticket, (entry, None), slot.size_bytes(), effects);
    }

    /// Nothing is known to be wrong with the event just handed over, and yet it is parked: its aggregate waits.
    fn wait_aside(
        &mut self,
        now: Duration,
        ticket: Ticket,
        (state, wait): (State, Duration),
        effects: &mut Vec<Effect>,
    ) {
        let Some(slot) = self.flow.get(ticket) else { return };
        self.flow.put_aside(ticket);
        let overtaken_by = self.flow.overtaken(slot.position);
        let (position, lane) = (slot.position, Some(slot.lane));
        let entry = Entry { position, lane, state, attempts: 0, wait, overtaken_by };
        self.park(now, ticket, (entry, None), slot.size_bytes(), effects);
    }

    fn park(
        &mut self,
        now: Duration,
        ticket: Ticket,
        (entry, reason): (Entry, Option<Refusal>),
        size_bytes: usize,
        effects: &mut Vec<Effect>,
    ) {
        self.parking.park(now, ticket, entry, size_bytes as u64);
        if injected(Bug::ParkedBeforeCommit) {
            self.resolve(ticket);
        }
        effects.push(Effect::Park { ticket, entry, reason });
    }

    fn parking_written(&mut self, now: Duration, left: &[Position]) {
        for ticket in self.parking.written(now, left) {
            if injected(Bug::ParkedBeforeCommit) {
                continue;
            }
            self.resolve(ticket);
            self.feedback.delivered();
        }
    }

    pub(super) fn resolve(&mut self, ticket: Ticket) {
        let resolution = self.tracker.resolve(ticket);
        assert_eq!(resolution, Ok(Resolution::Resolved), "of {ticket:?}");
        self.flow.forget_below(self.tracker.low());
    }
}
