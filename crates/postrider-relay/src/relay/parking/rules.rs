//! How events are parked and tried again, as a configuration says. Decides nothing but the first entry of a row.

use postrider_core::event::Position;
use postrider_core::parked::{Entry, Lane, State};
use std::time::Duration;

/// The first try of an event whose destination is missing; further ones keep the usual pause.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What a poison event does to the events behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnPoison {
    /// Later events of its aggregate wait.
    BlockKey,
    /// It alone is set aside; its aggregate goes on without it.
    SkipEvent,
    /// The pipeline halts.
    Stop,
}

/// How events are parked and tried again.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What a poison event does to the events behind it.
    pub on_poison: OnPoison,
    /// Tries before an event is dead.
    pub attempts_max: u32,
    /// Attempt n waits `min(n, steps_max)` times this.
    pub step: Duration,
    /// See `step`.
    pub steps_max: u32,
    /// Parked events; reaching it shuts the intake.
    pub rows_max: u64,
    /// One event of an aggregate in flight at a time (`flow.ordering = "strict"`).
    pub strict: bool,
    /// Dead events are also sent to a topic (`parking.dead_topic`).
    pub letters: bool,
}

impl Rules {
    pub(super) fn wait(&self, attempts: u32) -> Duration {
        self.step.saturating_mul(attempts.clamp(1, self.steps_max.max(1)))
    }

    /// The entry of an event that was refused for the first time. One whose refusal no later try can change is dead.
    pub(in crate::relay) fn refused(
        &self,
        position: Position,
        lane: Option<Lane>,
        hopeless: bool,
    ) -> Entry {
        let lane = lane.filter(|_| self.on_poison == OnPoison::BlockKey);
        // Without a lane its time is over: what comes after it is published already.
        let dead = hopeless || lane.is_none() || self.attempts_max <= 1;
        Entry {
            position,
            lane,
            state: if dead { State::Dead } else { State::Waiting },
            attempts: 1,
            wait: self.wait(1),
            overtaken_by: None,
        }
    }

    /// How an event waits for its destination: nothing is wrong with it, so no attempt is counted. `soon`: it may be
    /// that the destination was made a moment ago, and not every broker has heard of it.
    pub(in crate::relay) fn unavailable(&self, soon: bool) -> (State, Duration) {
        let wait = self.wait(1);
        (State::Waiting, if soon { wait.min(FIRST_LOOK) } else { wait })
    }
}
