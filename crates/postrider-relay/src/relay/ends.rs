//! Starts, restarts and ends of a stream: what survives them.

use super::Relay;
use super::effect::{Effect, Restart};
use super::phase::{Phase, Until, violation};
use crate::ack::bug::{Bug, injected};
use crate::ack::{Broken, Progress};
use postrider_core::error::Halt;

impl Relay {
    /// Another owner of the slot has published what we have in flight, and may have published again what we had
    /// resolved: so events come once more from the row on, or an aggregate could end with one of those. The same where
    /// the row is ahead of our own progress.
    /// In another history our progress means nothing: what we took for a repetition there would be a new event.
    pub(super) fn start(
        &mut self,
        cursor: Progress,
        (same_history, same_owner): (bool, bool),
        effects: &mut Vec<Effect>,
    ) {
        self.feedback.lost();
        let ours = self.stream.started() && same_history && same_owner;
        let ours = ours || (self.stream.started() && injected(Bug::IgnoresOtherOwner));
        let ahead = cursor > self.tracker.progress() && !injected(Bug::IgnoresOtherOwner);
        if !ours || ahead {
            let busy = self.flow.in_flight().0 > 0 || !self.parking.quiet();
            self.tracker.adopt(cursor);
            self.flow.clear();
            self.refused = None;
            if !same_history {
                self.flow.forget_positions();
            }
            if !injected(Bug::KeepsPending) {
                self.parking.forget(same_history);
            }
            self.stream.expect(cursor);
            self.feedback.resumed(cursor, self.unresolved());
            if busy {
                effects.push(Effect::Restart { why: Restart::SlotTaken });
            }
        }
        self.stream.reconnected();
    }

    pub(super) fn restart(&mut self, why: Restart, effects: &mut Vec<Effect>) {
        let progress = self.tracker.progress();
        self.refused = None;
        #[cfg(test)]
        if injected(Bug::ResendsTheFailed) {
            self.flow.remember_the_landed();
        }
        self.flow.suspect_the_refused();
        self.tracker.give_up();
        self.flow.clear();
        self.parking.given_up();
        self.stream.expect(progress);
        match self.phase {
            Phase::Running => {
                self.parking.lost();
                effects.push(Effect::Restart { why });
            }
            // It may not say that all before it is published when that is in doubt. The stream brings it again.
            Phase::Halting { until: Until::Lowest(_), .. } => {
                self.phase = Phase::Running;
                self.parking.lost();
                effects.push(Effect::Restart { why });
            }
            // Nothing more will be resolved, so the end is here.
            Phase::Halting { ref mut until, .. } => *until = Until::Now,
            Phase::Draining | Phase::Ended => {}
        }
    }

    /// What is in flight is not ours to send, nor is the row ours to write: an end that waited for either is here.
    pub(super) fn slot_taken(&mut self, effects: &mut Vec<Effect>) {
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

    pub(super) fn source_lost(&mut self, effects: &mut Vec<Effect>) {
        self.feedback.lost();
        self.parking.lost();
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

    pub(super) fn drain(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Draining;
        }
    }

    pub(super) fn halt(&mut self, halt: Box<Halt>) {
        // The first reason stands.
        if !matches!(self.phase, Phase::Halting { .. }) {
            self.phase = Phase::Halting { halt, until: Until::Quiet };
        }
    }

    /// Once all that has come is resolved.
    pub(super) fn halt_behind(&mut self, halt: Box<Halt>) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Halting { halt, until: Until::Lowest(self.tracker.next()) };
        }
    }

    pub(super) fn violated(&mut self, broken: Broken) {
        let halt = Box::new(violation(broken));
        self.phase = Phase::Halting { halt, until: Until::Now };
    }
}
