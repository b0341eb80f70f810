//! The log lines about a stop and a pause, and the state behind them.

use crate::health::{Condition, DueReport, duration_text};
use crate::postgres::store::pause::Pause;
use crate::status::PipelineState;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Why the pipeline drains, or that it is paused.
#[derive(Debug)]
pub(super) struct DrainLog {
    /// Name of the pipeline.
    name: String,
    /// What was requested.
    phase: DrainPhase,
    /// The pause, while it lasts.
    condition: Option<Condition>,
    /// The pause can't be read: the database does not answer, or refuses.
    outage: Option<Condition>,
    /// After which time without a reader the slot of the paused pipeline is lost.
    idle_timeout: Option<Duration>,
}

/// What was requested of the pipeline.
#[derive(Debug)]
enum DrainPhase {
    /// Nothing: it runs.
    Running,
    /// A stop: it finishes what is in flight.
    Stopping,
    /// A pause: it finishes what is in flight.
    Pausing(Box<Pause>),
    /// Nothing is read.
    Paused(Box<Pause>),
}

/// State, reason and hint, as the status shows them.
pub(super) type ShownState = (PipelineState, Option<String>, Option<String>);

impl DrainLog {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            phase: DrainPhase::Running,
            condition: None,
            outage: None,
            idle_timeout: None,
        }
    }

    /// Whether the pipeline drains for a pause.
    pub(super) fn pauses(&self) -> bool {
        matches!(self.phase, DrainPhase::Pausing(_))
    }

    /// Whether the pipeline is paused: nothing is in flight, whatever was given up.
    pub(super) fn is_paused(&self) -> bool {
        matches!(self.phase, DrainPhase::Paused(_))
    }

    /// What the status shows of it; `None` while the pipeline runs.
    pub(super) fn state(&self) -> Option<ShownState> {
        match &self.phase {
            DrainPhase::Running => None,
            DrainPhase::Stopping => {
                Some((PipelineState::Draining, Some("received a signal to stop".to_owned()), None))
            }
            DrainPhase::Pausing(pause) => {
                let reason = format!("pausing, {}", words(pause));
                Some((PipelineState::Draining, Some(reason), None))
            }
            DrainPhase::Paused(pause) => {
                let mut reason = words(pause);
                if let Some(outage) = &self.outage {
                    reason = format!("{reason}; the pause can't be read: {}", outage.reason);
                }
                Some((PipelineState::Paused, Some(reason), Some(self.hint())))
            }
        }
    }

    /// The command that ends the pause, and the server's limit to its time.
    fn hint(&self) -> String {
        let limit = self.idle_timeout.map_or_else(String::new, |limit| {
            format!(
                "; the slot is lost after {} without a reader (idle_replication_slot_timeout)",
                duration_text(limit.as_secs())
            )
        });
        format!("postrider resume {}{limit}", self.name)
    }

    /// A stop was requested.
    pub(super) fn stopping(&mut self, in_flight: u64) {
        self.phase = DrainPhase::Stopping;
        let pipeline = &self.name;
        info!(event = "draining", pipeline, in_flight, "stopping: finishing what is in flight");
    }

    /// A pause was requested.
    pub(super) fn pausing(&mut self, pause: Pause, in_flight: u64) {
        let (pipeline, words) = (&self.name, words(&pause));
        info!(
            event = "pausing",
            pipeline, in_flight, "pausing, {words}: finishing what is in flight"
        );
        self.phase = DrainPhase::Pausing(Box::new(pause));
    }

    /// What was requested is not waited for any longer.
    pub(super) fn incomplete(&self, in_flight: u64) {
        let pipeline = &self.name;
        match &self.phase {
            DrainPhase::Running | DrainPhase::Stopping => warn!(
                event = "shutdown_incomplete",
                pipeline,
                in_flight,
                "stopped before everything was acknowledged: the rest is published again at the next start"
            ),
            DrainPhase::Pausing(_) | DrainPhase::Paused(_) => warn!(
                event = "pause_incomplete",
                pipeline,
                in_flight,
                "paused before everything was acknowledged: the rest is published again when the pause ends"
            ),
        }
    }

    /// Nothing is read or published any more. `pause`: the request, if the pipeline did not drain for it.
    pub(super) fn suspended(&mut self, pause: Option<Pause>) {
        let pausing = match std::mem::replace(&mut self.phase, DrainPhase::Running) {
            DrainPhase::Pausing(pause) | DrainPhase::Paused(pause) => Some(pause),
            DrainPhase::Running | DrainPhase::Stopping => None,
        };
        if let Some(pause) = pause.map(Box::new).or(pausing) {
            self.phase = DrainPhase::Paused(pause);
        }
    }

    /// The pipeline is paused, and the database answers. `retained`: WAL that the slot retains, in bytes.
    /// `idle_timeout`: after which time without a reader the slot is lost.
    pub(super) fn paused(
        &mut self,
        pause: Pause,
        retained: Option<u64>,
        idle_timeout: Option<Duration>,
    ) {
        (self.outage, self.idle_timeout) = (None, idle_timeout);
        let reason = words(&pause);
        let hint = self.hint();
        let now = Instant::now();
        let due = Condition::note(&mut self.condition, reason.clone(), Some(hint.clone()), now);
        if let Some(DueReport { seconds, tries }) = due {
            let text = if tries == 1 {
                format!("paused, {reason}: nothing is read or published")
            } else {
                format!("still paused, {}, {reason}", duration_text(pause.seconds))
            };
            let (pipeline, retained_bytes) = (&self.name, retained);
            info!(event = "paused", pipeline, seconds, tries, retained_bytes, hint, "{text}");
        }
        self.phase = DrainPhase::Paused(Box::new(pause));
    }

    /// The pipeline is paused, and the pause can't be read.
    pub(super) fn unreachable(&mut self, reason: &str) {
        let due = Condition::note(&mut self.outage, reason.to_owned(), None, Instant::now());
        if let Some(due) = due {
            let DueReport { seconds, tries } = due;
            let words = if tries == 1 {
                format!("the pipeline stays paused, and the pause can't be read: {reason}")
            } else {
                format!("the pause of the pipeline can't be read, {}, last: {reason}", due.text())
            };
            let pipeline = &self.name;
            warn!(event = "pause_unchecked", pipeline, seconds, tries, reason, "{words}");
        }
    }

    /// The database refuses to read the request: the pipeline connects, which reads it before anything is published.
    pub(super) fn refused(&mut self, reason: &str) {
        self.ended();
        let pipeline = &self.name;
        warn!(
            event = "pause_refused",
            pipeline,
            reason,
            "the pause can't be read: {reason}: connecting, which reads the pause before anything is published"
        );
    }

    /// The pipeline is not paused any longer. Returns for how many seconds it was.
    fn ended(&mut self) -> Option<u64> {
        self.outage = None;
        self.phase = DrainPhase::Running;
        self.condition.take().map(|condition| condition.seconds(Instant::now()))
    }

    /// The pause has ended.
    pub(super) fn resumed(&mut self) {
        let seconds = self.ended();
        let after = seconds
            .map_or_else(String::new, |seconds| format!(", after {}", duration_text(seconds)));
        let pipeline = &self.name;
        info!(event = "resumed", pipeline, seconds, "the pause has ended{after}: connecting");
    }
}

/// Who has requested the pause, when and why.
fn words(pause: &Pause) -> String {
    let Pause { requested_at, requested_by, reason, .. } = pause;
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let text = format!("requested by {requested_by} at {requested_at}{reason}");
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
