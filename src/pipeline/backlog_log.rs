//! How far a pipeline is behind, and the log lines about that.

use super::lag::LagMeter;
use crate::health::{Condition, DueReport, duration_text};
use crate::status::PipelineState;
use crate::timestamp::Timestamp;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// A lag below this ends a backlog.
const CLOSE: Duration = Duration::from_secs(1);

/// How long the lag must stay below [`CLOSE`] before the end of a backlog is logged.
const CLOSE_FOR: Duration = Duration::from_secs(1);

/// What to do when no more events can be parked.
pub(super) const FULL_HINT: &str =
    "postrider parked list; then retry, skip or replace the events, or raise parking.rows_max";

/// The lag, and what was logged last about it.
#[derive(Debug)]
pub(super) struct BacklogLog {
    /// Name of the pipeline.
    name: String,
    /// Lag of commits that were not read yet.
    lag: LagMeter,
    /// Commit time of the transaction that waits while the intake is closed.
    held_at: Option<Timestamp>,
    /// The pipeline is far behind.
    behind: Option<Condition>,
    /// No more events can be parked.
    full: Option<Condition>,
    /// Since when the lag is small.
    close_since: Option<Instant>,
}

impl BacklogLog {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            lag: LagMeter::new(Instant::now()),
            held_at: None,
            behind: None,
            full: None,
            close_since: None,
        }
    }

    /// Lag of commits that were not read yet.
    pub(super) fn lag(&mut self) -> &mut LagMeter {
        &mut self.lag
    }

    /// When the source last answered.
    pub(super) fn answered_at(&self) -> Option<Instant> {
        self.lag.answered_at()
    }

    /// Commit time of the transaction that waits while the intake is closed.
    pub(super) fn held_at(&self) -> Option<Timestamp> {
        self.held_at
    }

    /// The transaction of this commit time waits, or none does.
    pub(super) fn hold(&mut self, commit_time: Option<Timestamp>) {
        self.held_at = commit_time;
    }

    /// Logs that the pipeline is far behind, and that it has caught up. `waits_for`: why the intake is closed.
    pub(super) fn far(
        &mut self,
        state: PipelineState,
        lag: Duration,
        waits_for: Option<&'static str>,
    ) {
        let now = Instant::now();
        let lag_seconds = lag.as_secs();
        let is_close =
            matches!(state, PipelineState::Streaming | PipelineState::Polling) && lag < CLOSE;
        self.close_since = if is_close { self.close_since.or(Some(now)) } else { None };
        let (name, behind) = (&self.name, &mut self.behind);
        if state == PipelineState::CatchingUp {
            if let Some(DueReport { seconds, .. }) =
                Condition::note(behind, String::new(), None, now)
            {
                let far = duration_text(lag_seconds);
                info!(
                    event = "catching_up",
                    pipeline = name,
                    lag_seconds,
                    seconds,
                    waits_for,
                    "catching up: {far} behind"
                );
            }
        } else if self.close_since.is_some_and(|since| now.duration_since(since) >= CLOSE_FOR) {
            // The two thresholds differ, and a small lag must last: between two transactions of a backlog the lag is
            // zero too.
            if let Some(condition) = behind.take() {
                let seconds = condition.seconds(now);
                let after = duration_text(seconds);
                info!(event = "caught_up", pipeline = name, seconds, "caught up after {after}");
            }
        }
    }

    /// Logs that no more rows can be parked, for this `reason`, and that there is space again.
    pub(super) fn parking_full(&mut self, reason: Option<String>) {
        let (name, now) = (&self.name, Instant::now());
        if let Some(reason) = reason {
            let hint = FULL_HINT;
            if let Some(DueReport { seconds, tries }) =
                Condition::note(&mut self.full, reason.clone(), Some(hint.to_owned()), now)
            {
                warn!(event = "parking_full", pipeline = name, seconds, tries, hint, "{reason}");
            }
        } else if let Some(condition) = self.full.take() {
            let (pipeline, seconds) = (name, condition.seconds(now));
            let after = duration_text(seconds);
            info!(
                event = "parking_room",
                pipeline,
                seconds,
                "free space in the parking table again, after {after}: reading continues"
            );
        }
    }
}
