//! What is said of parked events: a few lines a minute, for they may come by the thousand.

use super::Tell;
use crate::driver::pipeline::Pipeline;
use crate::driver::spec::PipelineSpec;
use crate::driver::trouble::Few;
use crate::event::Position;
use crate::parked::{Became, Mark, Parked, State};
use std::time::Instant;
use tracing::{debug, info, warn};

/// An event was set aside because something is wrong with it. A few a minute are told one by one.
pub(in crate::driver) fn parked(tell: &mut Tell, spec: &PipelineSpec, row: &Parked) {
    let Some(suppressed) = tell.parked.admit(Instant::now()) else { return };
    let blocks = row.entry.lane.is_some();
    let rest = if blocks {
        "later events of its aggregate are held back, other aggregates continue"
    } else {
        "all other events continue, those of its aggregate too"
    };
    warn!(
        event = "parked",
        pipeline = spec.name(),
        position = %row.entry.position,
        id = row.event_id,
        suppressed,
        code = row.error_code,
        reason = row.error,
        state = row.entry.state.name(),
        blocks,
        hint = format!("postrider parked show {}", row.entry.position),
        "event parked; {rest}"
    );
}

/// An event came behind a later one of its aggregate: a broker had refused its batch and taken that one.
pub(in crate::driver) fn overtaken(pipeline: &mut Pipeline, position: Position, by: Position) {
    let Some(suppressed) = pipeline.tell.overtaken.admit(Instant::now()) else { return };
    warn!(
        event = "overtaken",
        pipeline = pipeline.spec.name(),
        %position,
        %by,
        suppressed,
        hint = "flow.ordering = \"strict\" rules it out",
        "published behind a later event of its aggregate: a broker refused its batch and took that one"
    );
}

/// A parked event was published.
pub(in crate::driver) fn released(pipeline: &Pipeline, position: Position) {
    let pipeline = pipeline.spec.name();
    debug!(event = "parked_published", pipeline, %position, "parked event published");
}

/// Positions of requested retries that are remembered until they are answered.
const REQUESTED_MAX: usize = 10_000;

/// What became of parked events.
pub(in crate::driver) fn marked(pipeline: &mut Pipeline, marks: &[Mark]) {
    let (name, tell) = (pipeline.spec.name(), &mut pipeline.tell);
    let (few, requested) = (&mut tell.dead, &mut tell.requested);
    for Mark { position, became } in marks {
        let answers = requested.remove(position);
        match became {
            Became::Refused { state: State::Dead, attempts, reason, .. } => {
                let Some(suppressed) = few.admit(Instant::now()) else { continue };
                warn!(
                    event = "parked_dead",
                    pipeline = name,
                    %position,
                    attempts,
                    %reason,
                    suppressed,
                    hint = format!("postrider parked show {position}"),
                    "parked event is dead: only a person moves it now (parked retry, skip or replace)"
                );
            }
            Became::Refused { attempts, reason, .. } if answers => {
                let Some(suppressed) = few.admit(Instant::now()) else { continue };
                warn!(
                    event = "parked_refused_again",
                    pipeline = name,
                    %position,
                    attempts,
                    %reason,
                    suppressed,
                    hint = format!("postrider parked show {position}"),
                    "retry requested: refused again: {reason}"
                );
            }
            Became::Again => {
                if requested.len() < REQUESTED_MAX {
                    requested.insert(*position);
                }
                answered(name, few, *position, ("retry", "retry requested: event queued"));
            }
            Became::Skipped => {
                answered(name, few, *position, ("skip", "skip requested: event given up"));
            }
            Became::Declined => {
                let words = "request declined: it cannot be carried out where the event is";
                answered(name, few, *position, ("declined", words));
            }
            Became::Done | Became::Refused { .. } | Became::DeadSent | Became::Overtaken { .. } => {
                debug!(event = "parked_marked", pipeline = name, %position, "parked event marked");
            }
        }
    }
}

/// What a person asked for was taken up, or was not.
fn answered(pipeline: &str, few: &mut Few, position: Position, (answer, words): (&str, &str)) {
    let Some(suppressed) = few.admit(Instant::now()) else { return };
    info!(event = "parked_answered", pipeline, %position, answer, suppressed, "{words}");
}
