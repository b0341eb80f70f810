//! The log lines about parked events, and why the events were refused. There may be thousands of them, so a few lines a
//! minute are logged and the others are counted.

use super::parked_causes::ParkedCauses;
use crate::event::{Position, shown_id};
use crate::health::LogRateLimit;
use crate::parked::{Parked, ParkedOutcome, ParkedUpdate, State};
use std::collections::BTreeSet;
use std::time::Instant;
use tracing::{debug, info, warn};

/// Positions of requested retries that are remembered until they are answered.
const REQUESTED_MAX: usize = 10_000;

/// What limits the log lines about parked events.
#[derive(Debug, Default)]
pub(super) struct ParkedLog {
    /// Lines about events that are parked.
    parked: LogRateLimit,
    /// Lines about events that were published after a later one.
    overtaken: LogRateLimit,
    /// Lines about dead events and answered requests.
    dead: LogRateLimit,
    /// Requested retries that have no answer yet.
    requested: BTreeSet<Position>,
    /// The codes of the events.
    causes: ParkedCauses,
}

impl ParkedLog {
    /// Why events were refused.
    pub(super) fn causes(&mut self) -> &mut ParkedCauses {
        &mut self.causes
    }

    /// An event was parked because something is wrong with it. A few a minute are logged one by one.
    pub(super) fn event_parked(&mut self, pipeline: &str, row: &Parked) {
        self.causes.parked(row);
        let Some(suppressed) = self.parked.admit(Instant::now()) else { return };
        let blocks = row.entry.lane.is_some();
        let rest = if blocks {
            "later events of its aggregate are held back, other aggregates continue"
        } else {
            "all other events continue, those of its aggregate too"
        };
        warn!(
            event = "parked",
            pipeline,
            position = %row.entry.position,
            id = row.event_id.as_deref().map(|id| shown_id(id).into_owned()),
            suppressed,
            code = row.error_code,
            reason = row.error,
            state = row.entry.state.name(),
            blocks,
            hint = format!("postrider parked show {}", row.entry.position),
            "event parked; {rest}"
        );
    }

    /// An event was published after a later event of its aggregate: a broker had refused its batch and accepted the
    /// batch of the later one.
    pub(super) fn event_overtaken(&mut self, pipeline: &str, position: Position, by: Position) {
        let Some(suppressed) = self.overtaken.admit(Instant::now()) else { return };
        warn!(
            event = "overtaken",
            pipeline,
            %position,
            %by,
            suppressed,
            hint = "flow.ordering = \"strict\" rules it out",
            "published after a later event of its aggregate: a broker refused its batch and accepted the later one"
        );
    }

    /// The new states of parked events.
    pub(super) fn states_changed(&mut self, pipeline: &str, marks: &[ParkedUpdate]) {
        self.causes.changed(marks);
        let (limit, requested) = (&mut self.dead, &mut self.requested);
        for ParkedUpdate { position, became } in marks {
            let answers = requested.remove(position);
            match became {
                ParkedOutcome::Refused { state: State::Dead, attempts, reason, .. } => {
                    let Some(suppressed) = limit.admit(Instant::now()) else { continue };
                    warn!(
                        event = "parked_dead",
                        pipeline,
                        %position,
                        attempts,
                        %reason,
                        suppressed,
                        hint = format!("postrider parked show {position}"),
                        "parked event is dead: only a person moves it now (parked retry, skip or replace)"
                    );
                }
                ParkedOutcome::Refused { attempts, reason, .. } if answers => {
                    let Some(suppressed) = limit.admit(Instant::now()) else { continue };
                    warn!(
                        event = "parked_refused_again",
                        pipeline,
                        %position,
                        attempts,
                        %reason,
                        suppressed,
                        hint = format!("postrider parked show {position}"),
                        "retry requested: refused again: {reason}"
                    );
                }
                ParkedOutcome::Again => {
                    if requested.len() < REQUESTED_MAX {
                        requested.insert(*position);
                    }
                    answered(
                        pipeline,
                        limit,
                        *position,
                        ("retry", "retry or replace requested: event queued"),
                    );
                }
                ParkedOutcome::Skipped => {
                    answered(
                        pipeline,
                        limit,
                        *position,
                        ("skip", "skip requested: event given up"),
                    );
                }
                ParkedOutcome::Declined => {
                    let words = "request declined: it cannot be carried out where the event is";
                    answered(pipeline, limit, *position, ("declined", words));
                }
                ParkedOutcome::Done
                | ParkedOutcome::Refused { .. }
                | ParkedOutcome::DeadSent
                | ParkedOutcome::Overtaken { .. } => {
                    debug!(event = "parked_marked", pipeline, %position, "parked event marked");
                }
            }
        }
    }
}

/// A request was carried out, or declined.
fn answered(
    pipeline: &str,
    limit: &mut LogRateLimit,
    position: Position,
    (answer, words): (&str, &str),
) {
    let Some(suppressed) = limit.admit(Instant::now()) else { return };
    info!(event = "parked_answered", pipeline, %position, answer, suppressed, "{words}");
}
