//! What is said of parked events: a few lines a minute, for they may come by the thousand.

use super::Tell;
use crate::driver::pipeline::Pipeline;
use crate::driver::spec::PipelineSpec;
use crate::driver::trouble::{Due, Few, Trouble};
use crate::error::Chain;
use crate::event::{Position, shown_id};
use crate::parked::{Became, Mark, Parked, State};
use crate::postgres::SourceError;
use crate::postgres::locks::{self, Holder};
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

/// Another session has locked rows of the parked table: what became of their events is written later.
pub(in crate::driver) fn parked_rows_locked(
    pipeline: &mut Pipeline,
    rows: usize,
    holders: &[Holder],
) {
    let holder = locks::names(holders);
    let known = pipeline.tell.parked_rows.as_ref().filter(|_| holders.is_empty());
    // Holders are looked for now and then; in between the last ones stand.
    let reason = known.map_or_else(
        || {
            format!(
                "rows of \"postrider\".\"parked\" are locked by {holder}: what became of these parked events is \
                 written later"
            )
        },
        |trouble| trouble.reason.clone(),
    );
    let hint = "end that session's transaction (commit or roll back); until then only the aggregates of these parked \
                events wait, and a restart may publish events again that are published already";
    let now = Instant::now();
    let due =
        Trouble::note(&mut pipeline.tell.parked_rows, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        warn!(
            event = "parked_rows_wait",
            pipeline, rows, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// No row of the parked table can be written: the table, or the cursor row, is locked, or the statement took too long.
pub(in crate::driver) fn parked_rows_wait(
    pipeline: &mut Pipeline,
    error: &SourceError,
    holders: &[Holder],
) {
    let holder = locks::names(holders);
    let by = if holders.is_empty() { String::new() } else { format!(" (locked by {holder})") };
    let reason = format!(
        "{}{by}: events that have to be parked wait, and nothing behind them is confirmed; all others are published",
        Chain(error)
    );
    let hint = "end the transaction of the session that has locked table \"postrider\".\"parked\", or the pipeline's \
                row in \"postrider\".\"cursor\"";
    let now = Instant::now();
    let due =
        Trouble::note(&mut pipeline.tell.parked_rows, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        warn!(
            event = "parked_rows_wait",
            pipeline, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// All rows of the parked table are written.
pub(in crate::driver) fn parked_rows_written(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.parked_rows.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(
            event = "parked_rows_written",
            pipeline, seconds, "all changes to rows of parked events are written"
        );
    }
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
                answered(
                    name,
                    few,
                    *position,
                    ("retry", "retry or replace requested: event queued"),
                );
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
