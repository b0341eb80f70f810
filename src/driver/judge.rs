//! What a connection that failed, or ended, leads to: another try, standing by, another way to read, or a halt.
//!
//! The table of errors is `postgres::action`'s; here it meets the pipeline's mode and what it has seen before.

use super::connect::Failure;
use super::halts;
use super::pipeline::{Next, Pipeline, Waited};
use super::renewal;
use super::run::{Exit, Stop};
use super::say;
use super::spec::Mode;
use crate::backoff::Backoff;
use crate::error::{Halt, HaltReason};
use crate::metrics::Side;
use crate::postgres::SourceError;
use crate::postgres::action::{self, Action, Class, Phase};
use crate::relay::Input;
use std::time::Duration;

/// What the server refused last, to be looked at again by the fence. Refused once more without another answer in
/// between, the fence and the server disagree, and a human must act.
#[derive(Default, Debug)]
pub(super) struct Rechecked(Option<HaltReason>);

impl Rechecked {
    /// Notes a refusal; whether it is the same as the one before.
    fn refused(&mut self, reason: HaltReason) -> bool {
        self.0.replace(reason) == Some(reason)
    }

    /// The fence has looked, and a refusal before it is explained or over. Not what a statement was refused that no
    /// handshake makes.
    pub(super) fn answered(&mut self) {
        let made_later = |reason: &HaltReason| {
            matches!(reason, HaltReason::SchemaUnfit | HaltReason::TableUnfit)
        };
        self.0 = self.0.filter(made_later);
    }

    /// A session has worked for a while.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

impl Pipeline {
    /// Judges a failure and pauses; the exit, if the pipeline is over.
    pub(super) async fn after(
        &mut self,
        failure: Failure,
        stop: &Stop,
        backoff: &mut Backoff,
    ) -> Option<Exit> {
        // No repair publishes what polling has left.
        let unpolled = matches!(failure, Failure::Unpolled);
        if let Some(halt) = self.judge(failure) {
            if self.spec.mode == Mode::Auto && renewal::polling_helps(halt.reason) {
                say::falling_back(self, &halt);
                self.rechecked.answered();
                self.next = Next::Poll;
                return None;
            }
            if !unpolled && self.repairs_instead(&halt) {
                self.rechecked.answered();
                self.next = Next::Repair;
                return None;
            }
            self.apply(self.now(), Input::SourceLost);
            return Some(Exit::Halted(halt));
        }
        self.pause(stop, backoff).await
    }

    pub(super) async fn pause(&mut self, stop: &Stop, backoff: &mut Backoff) -> Option<Exit> {
        let pause = backoff.next(fastrand::f64()).max(self.pause_min);
        self.pause_min = Duration::ZERO;
        match self.waiting(tokio::time::sleep(pause), stop).await {
            Waited::Over(exit) => Some(exit),
            Waited::Done(()) => None,
        }
    }

    /// What a failed connection means: `None` to try again.
    pub(super) fn judge(&mut self, failure: Failure) -> Option<Box<Halt>> {
        match failure {
            // A process that has lost the pipeline may still be recreating the slot, on a session of its own.
            Failure::Halt(halt)
                if halt.reason == HaltReason::SlotMoved
                    && !self.rechecked.refused(HaltReason::SlotMoved) =>
            {
                say::waiting(self, &halt.message);
            }
            Failure::Halt(halt) => return Some(halt),
            Failure::StandBy { active_pid, progress } => {
                let now = std::time::Instant::now();
                match progress {
                    Some((wal_end, confirmed)) => self.lag.other_reads(wal_end, confirmed, now),
                    None => self.lag.answered(now),
                }
                self.rechecked.answered();
                self.stand_by(Some(active_pid));
            }
            Failure::Wait { message } => say::waiting(self, &message),
            Failure::Reset => {}
            Failure::Unrepaired => {
                self.rechecked.answered();
                self.next = Next::Repair;
            }
            Failure::Unpolled if self.spec.mode == Mode::Auto => {
                self.rechecked.answered();
                self.next = Next::Poll;
            }
            // What is unpublished is in the table, and the slot would bring what polling has published.
            Failure::HandsOver => {
                self.rechecked.answered();
                self.lets_go = true;
                self.next = Next::Poll;
            }
            Failure::Unpolled => return Some(Box::new(halts::unpolled(self.spec.name()))),
            Failure::Sound => self.repaired = true,
            Failure::Source(error, phase) => {
                match action::action(&error, phase, self.ever_streamed) {
                    Action::Reconnect(class) | Action::Later(class) => {
                        return self.reconnect(class, &error);
                    }
                    Action::StandBy => self.stand_by(None),
                    Action::Recheck(reason) if !self.rechecked.refused(reason) => {
                        say::source_down(self, &error);
                    }
                    Action::Recheck(reason) | Action::Halt(reason) => {
                        return Some(Box::new(action::explain(reason, &error, &self.spec.names)));
                    }
                }
            }
        }
        None
    }

    /// Halts for a message that can't be read, once what came before it is resolved.
    pub(super) fn halt_behind(&mut self, now: Duration, error: SourceError) {
        if let Some(halt) = self.judge(Failure::Source(error, Phase::Stream)) {
            self.apply(now, Input::Unreadable(halt));
        }
    }

    fn reconnect(&mut self, class: Class, error: &SourceError) -> Option<Box<Halt>> {
        self.metrics.reconnected(Side::Source, class.name());
        if self.repeats.wedged(error, self.relay.received()) {
            let wedged = action::explain(HaltReason::Wedged, error, &self.spec.names);
            return Some(Box::new(wedged));
        }
        self.pause_min = class.pause_min();
        say::source_down(self, error);
        None
    }

    /// Another process has the slot: what we have in flight is no longer ours to send.
    fn stand_by(&mut self, active_pid: Option<u32>) {
        say::standing_by(self, active_pid);
        if self.relay.in_flight().0 > 0 {
            self.apply(self.now(), Input::SlotTaken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standby process sees each lost slot refuse it once, and never connects: the second loss is not a repetition.
    #[test]
    fn a_refusal_that_the_fence_has_explained_is_no_repetition() {
        let mut rechecked = Rechecked::default();
        assert!(!rechecked.refused(HaltReason::SlotUnusable));
        assert!(rechecked.refused(HaltReason::SlotUnusable), "nothing in between");
        rechecked.answered();
        assert!(!rechecked.refused(HaltReason::SlotUnusable));
        assert!(!rechecked.refused(HaltReason::SchemaUnfit), "another one");
        rechecked.answered();
        assert!(rechecked.refused(HaltReason::SchemaUnfit), "no handshake makes that statement");
        rechecked.forget();
        assert!(!rechecked.refused(HaltReason::SchemaUnfit));
    }
}
