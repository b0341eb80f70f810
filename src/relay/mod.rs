//! The relay: one synchronous state machine that decides what is published, what may be confirmed, and when to stop.
//!
//! Owns the order of events, the bounds on what is in flight, and the only [`Tracker`]. It takes one [`Input`] at a
//! time with the time it happened and answers with [`Effect`]s; the driver alone waits. It has no clock, socket, lock
//! or random number, and it never sees a payload: an event is its aggregate, its size and its ticket, and the record
//! itself stays with the driver, which publishes the one at hand when told to.
//!
//! The price of a machine that can't wait is that work of several steps (drain, halt) is spelt out as a [`Phase`],
//! and is looked at again after every input ([`Relay::settle`]).
//!
//! ```text
//! Begin Change* Commit ─▶ stream ─▶ tracker ─▶ feedback ─▶ WriteCursor ─▶ (written) ─▶ Confirm
//!                            └────▶ flow ─▶ Publish ─▶ (report) ─▶ tracker
//! ```

mod effect;
mod feedback;
mod flow;
mod input;
mod phase;
mod stream;

pub use effect::{Effect, Restart};
pub use flow::Limits;
pub use input::{Change, Input};
pub use stream::Upcoming;

use crate::ack::{Broken, Progress, Resolution, Tracker};
use crate::error::Halt;
use crate::event::PgTime;
use crate::lsn::Lsn;
use crate::record::{Outcome, Refusal, Scope, Ticket};
use feedback::Feedback;
use flow::{Flow, Slot};
use phase::{Phase, Until, poison, violation};
use std::time::Duration;
use stream::Stream;

/// What an operator may set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bounds on what is in flight.
    pub limits: Limits,
    /// Pause between two cursor rows while events are delivered.
    pub cursor_interval: Duration,
}

/// The relay of one pipeline.
#[derive(Debug)]
pub struct Relay {
    tracker: Tracker,
    stream: Stream,
    flow: Flow,
    feedback: Feedback,
    phase: Phase,
}

impl Relay {
    /// A relay that has not started yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            tracker: Tracker::new(Progress::default()),
            stream: Stream::default(),
            flow: Flow::new(settings.limits),
            feedback: Feedback::new(settings.cursor_interval),
            phase: Phase::Running,
        }
    }

    /// One step. `now` is the time since any fixed moment; it never goes back.
    pub fn apply(&mut self, now: Duration, input: Input<'_>, effects: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let broken = match input {
            Input::Change(change) => self.change(change, effects),
            Input::Report { ticket, outcome } => {
                self.report(ticket, outcome, effects);
                Ok(())
            }
            Input::Refused { ticket, halt } => {
                self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
                Ok(())
            }
            Input::NotTaken { ticket } => {
                self.tracker.retract(ticket);
                self.flow.retract();
                self.stream.retract();
                Ok(())
            }
            Input::Begin { commit_lsn, commit_time } => {
                self.stream.begin(&mut self.tracker, commit_lsn, commit_time)
            }
            Input::Commit { commit_lsn, end_lsn } => {
                self.stream.commit(&mut self.tracker, commit_lsn, end_lsn)
            }
            Input::Keepalive { wal_end } => {
                self.stream.keepalive(&mut self.tracker, wal_end);
                Ok(())
            }
            Input::Started { cursor, same_history } => {
                self.start(cursor, same_history, effects);
                Ok(())
            }
            Input::SinkBroken => {
                self.restart(Restart::SinkBroken, effects);
                Ok(())
            }
            Input::SlotTaken => {
                self.slot_taken(effects);
                Ok(())
            }
            Input::SourceLost => {
                self.source_lost(effects);
                Ok(())
            }
            Input::CursorWritten => {
                self.feedback.written();
                Ok(())
            }
            Input::Drain => {
                self.drain();
                Ok(())
            }
            Input::Halt(halt) => {
                // The first reason stands.
                if !matches!(self.phase, Phase::Halting { .. }) {
                    self.phase = Phase::Halting { halt, until: Until::Quiet };
                }
                Ok(())
            }
            Input::Tick => Ok(()),
        };
        if let Err(broken) = broken {
            self.violated(broken);
        }
        self.settle(now, effects);
    }

    /// Whether the next change may be taken. While it is not, the driver keeps its place and waits for reports.
    pub fn intake_open(&self) -> bool {
        matches!(self.phase, Phase::Running)
            && self.flow.has_room(self.stream.expected())
            && self.tracker.span() < flow::SPAN_MAX
    }

    /// What the next change of the stream is, or `None` where an earlier session has dealt with it.
    pub fn upcoming(&self) -> Option<Upcoming> {
        self.stream.upcoming()
    }

    /// How far the stream is resolved.
    pub fn progress(&self) -> Progress {
        self.tracker.progress()
    }

    /// The highest position received.
    pub fn received(&self) -> Lsn {
        self.tracker.received()
    }

    /// Events and bytes that were handed over and have no report.
    pub fn in_flight(&self) -> (u64, u64) {
        self.flow.in_flight()
    }

    /// Commit time of the oldest event without an outcome.
    pub fn oldest_unresolved(&self) -> Option<PgTime> {
        self.flow.oldest()
    }

    /// When the relay next wants a [`Input::Tick`], by the clock of `now`.
    pub fn deadline(&self) -> Option<Duration> {
        self.feedback.deadline(self.tracker.progress())
    }

    /// Whether the relay has said [`Effect::Drained`] or [`Effect::Halt`].
    pub fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// The halt that waits for what is in flight.
    pub fn halting(&self) -> Option<&Halt> {
        match &self.phase {
            Phase::Halting { halt, .. } => Some(halt),
            Phase::Running | Phase::Draining | Phase::Ended => None,
        }
    }

    /// Whether the intake is shut for good: draining, halting or ended.
    pub fn stopping(&self) -> bool {
        !matches!(self.phase, Phase::Running)
    }

    /// A row ahead of our own progress was written by another owner of the slot, who published what we have in flight.
    /// In another history our progress means nothing: what we took for a repetition there would be a new event.
    fn start(&mut self, cursor: Progress, same_history: bool, effects: &mut Vec<Effect>) {
        self.feedback.lost();
        let ours = self.stream.started() && same_history;
        if !ours || cursor > self.tracker.progress() {
            let in_flight = self.flow.in_flight().0;
            self.tracker.adopt(cursor);
            self.flow.clear();
            self.stream.expect(cursor);
            self.feedback.resumed(cursor);
            if in_flight > 0 {
                effects.push(Effect::Restart { why: Restart::SlotTaken });
            }
        }
        self.stream.reconnected();
    }

    fn change(&mut self, change: Change<'_>, effects: &mut Vec<Effect>) -> Result<(), Broken> {
        let Some(upcoming) = self.stream.change()? else { return Ok(()) };
        let ticket = self.tracker.change();
        match change {
            Change::Event { aggregate: _, size_bytes } => {
                self.flow.hand_over(ticket, Slot::new(&upcoming, size_bytes));
                effects.push(Effect::Publish(ticket));
            }
            Change::Skipped => {
                self.flow.skip(ticket);
                self.resolve(ticket);
            }
            Change::Poison(halt) => {
                self.flow.skip(ticket);
                self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            }
        }
        Ok(())
    }

    fn report(&mut self, ticket: Ticket, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some(slot) = self.flow.get(ticket) else { return };
        match outcome {
            Outcome::Acked => {
                self.flow.landed(ticket);
                self.resolve(ticket);
                self.feedback.delivered();
                effects.push(Effect::Published { commit_time: slot.commit_time });
            }
            Outcome::Rejected { scope: Scope::Event, reason } if self.names_one(reason) => {
                let halt = Box::new(poison(slot.position, reason));
                self.phase = Phase::Halting { halt, until: Until::Lowest(ticket) };
            }
            Outcome::Rejected { scope: Scope::Event, reason } => {
                self.flow.careful(self.stream.expected());
                self.restart(Restart::Refused(reason), effects);
            }
            Outcome::Rejected { scope: Scope::Destination | Scope::Broker, reason: _ }
            | Outcome::Unknown => self.restart(Restart::Unknown, effects),
        }
    }

    /// Whether a refusal can only mean the event it came for. A broker refuses batches: its word counts for one event
    /// alone only while one alone is in flight.
    fn names_one(&self, reason: Refusal) -> bool {
        match reason {
            Refusal::TooLarge { .. } | Refusal::TopicName | Refusal::Partition(_) => true,
            Refusal::Kafka(_) => self.flow.in_flight().0 == 1,
        }
    }

    fn resolve(&mut self, ticket: Ticket) {
        let resolution = self.tracker.resolve(ticket);
        assert_eq!(resolution, Ok(Resolution::Resolved), "of {ticket:?}");
        self.flow.forget_below(self.tracker.low());
    }

    fn restart(&mut self, why: Restart, effects: &mut Vec<Effect>) {
        let progress = self.tracker.progress();
        self.tracker.give_up();
        self.flow.clear();
        self.stream.expect(progress);
        match self.phase {
            Phase::Running => effects.push(Effect::Restart { why }),
            // It may not say that all before it is published when that is in doubt. The stream brings it again.
            Phase::Halting { until: Until::Lowest(_), .. } => {
                self.phase = Phase::Running;
                effects.push(Effect::Restart { why });
            }
            // Nothing more will be resolved, so the end is here.
            Phase::Halting { ref mut until, .. } => *until = Until::Now,
            Phase::Draining | Phase::Ended => {}
        }
    }

    /// What is in flight is not ours to send, nor is the row ours to write: an end that waited for either is here.
    fn slot_taken(&mut self, effects: &mut Vec<Effect>) {
        self.feedback.lost();
        self.restart(Restart::SlotTaken, effects);
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Running => self.phase = Phase::Running,
            Phase::Draining => {
                effects.extend([Effect::Restart { why: Restart::SlotTaken }, Effect::Drained]);
            }
            Phase::Halting { halt, .. } => {
                effects.extend([Effect::Restart { why: Restart::SlotTaken }, Effect::Halt(halt)]);
            }
            Phase::Ended => {}
        }
    }

    fn source_lost(&mut self, effects: &mut Vec<Effect>) {
        self.feedback.lost();
        self.stream.disconnected();
        if matches!(self.phase, Phase::Halting { until: Until::Lowest(_), .. }) {
            // Without a row nobody may rely on what was before the poison: it is found again.
            self.restart(Restart::Unknown, effects);
        }
        // A cursor row can't be written any more: what is repeated then is what the row does not show.
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Running => self.phase = Phase::Running,
            Phase::Draining => effects.push(Effect::Drained),
            Phase::Halting { halt, .. } => effects.push(Effect::Halt(halt)),
            Phase::Ended => {}
        }
    }

    fn drain(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Draining;
        }
    }

    fn violated(&mut self, broken: Broken) {
        let halt = Box::new(violation(broken));
        self.phase = Phase::Halting { halt, until: Until::Now };
    }

    /// What holds after every input: the cursor follows the watermark, the confirmation follows the cursor, and a
    /// phase that has nothing left to wait for ends.
    fn settle(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let progress = self.tracker.progress();
        let last = match &self.phase {
            Phase::Running => false,
            Phase::Draining | Phase::Halting { until: Until::Quiet, .. } => {
                self.flow.in_flight().0 == 0
            }
            Phase::Halting { until: Until::Lowest(poison), .. } => self.tracker.low() == *poison,
            Phase::Halting { until: Until::Now, .. } => true,
            Phase::Ended => return,
        };
        if let Some(row) = self.feedback.cursor_due(now, progress, last) {
            effects.push(Effect::WriteCursor(row));
        }
        if let Some(watermark) = self.feedback.confirmable() {
            effects.push(Effect::Confirm(watermark));
        }
        if last && self.feedback.settled(progress) {
            match std::mem::replace(&mut self.phase, Phase::Ended) {
                Phase::Draining => effects.push(Effect::Drained),
                Phase::Halting { halt, .. } => effects.push(Effect::Halt(halt)),
                Phase::Running | Phase::Ended => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
