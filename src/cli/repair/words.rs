//! A repair in words, and as JSON.

use crate::cli::setup::folded;
use crate::postgres::repair::{Row, State, Survey, Verdict};
use serde_json::{Value, json};

/// What a dry run has found.
pub(super) struct Found {
    /// Rows on the list of a repair that was begun before.
    pub(super) listed: u64,
    /// Aggregates with a parked event.
    pub(super) parked: u64,
    pub(super) method: String,
    pub(super) survey: Survey,
}

fn why(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Sound => "nothing is the matter",
        Verdict::GoesOn => "a repair or backfill that was begun before goes on",
        Verdict::NewSlot(why) => why,
    }
}

pub(super) fn of_verdict(pipeline: &str, verdict: &Verdict) -> String {
    format!("{pipeline}: {}", why(verdict))
}

/// What would be done.
pub(super) fn of_dry_run(pipeline: &str, verdict: &Verdict, found: &Found) -> String {
    format!("{}\nnothing was changed", of_begin(pipeline, verdict, found))
}

/// The same before it is done.
pub(super) fn of_begin(pipeline: &str, verdict: &Verdict, found: &Found) -> String {
    let mut lines = vec![of_verdict(pipeline, verdict)];
    let survey = &found.survey;
    if *verdict == Verdict::GoesOn {
        lines.push(format!("  listed     {} rows still to be published", found.listed));
        lines.push(folded("  method     ", &found.method));
        return lines.join("\n");
    }
    if found.listed > 0 {
        lines.push(format!("  listed     {} rows of the repair before", found.listed));
    }
    let ids = survey.ids.as_ref();
    let ids = ids.map_or_else(String::new, |(first, last)| format!(", ids {first} to {last}"));
    lines.push(format!(
        "  publish    {} rows of {} aggregates{ids}, {} bytes as stored",
        survey.rows, survey.aggregates, survey.bytes
    ));
    lines.extend(uncertain(survey.uncertain));
    lines.extend(undecided(pipeline, survey.undecided, "will be"));
    lines.extend(missing(survey.missing));
    lines.extend(without_id(survey.without_id));
    if found.parked > 0 {
        let text = format!(
            "{} aggregates have parked events: those stay parked, and their rows wait behind them",
            found.parked
        );
        lines.push(folded("  parked     ", &text));
    }
    lines.push(folded("  method     ", &found.method));
    lines.push(folded(
        "  then       ",
        "a new slot, these rows, and the stream from where the slot begins",
    ));
    lines.join("\n")
}

fn uncertain(rows: u64) -> Option<String> {
    let text = format!(
        "{rows} of them were committed while the relay was at work, after what its cursor row knows to be resolved: \
         they may be published a second time"
    );
    (rows > 0).then(|| folded("  uncertain  ", &text))
}

/// `are`: what was done with them, or will be.
fn undecided(pipeline: &str, rows: u64, are: &str) -> Option<String> {
    let text = format!(
        "{rows} rows have ids of events that were parked before, and may be those events: they {are} parked and not \
         published. Publish them: postrider parked retry -p {pipeline} --error id_used_before --all. Leave them out: \
         postrider parked skip -p {pipeline} --error id_used_before --all"
    );
    (rows > 0).then(|| folded("  undecided  ", &text))
}

fn without_id(rows: u64) -> Option<String> {
    let text = format!(
        "{rows} rows have no id and are not published: rows are listed by their ids. Delete them and insert them again \
         with an id, in one transaction: the stream publishes the new rows"
    );
    (rows > 0).then(|| folded("  no id      ", &text))
}

fn missing(ids: Option<u64>) -> Option<String> {
    let text = match ids {
        None => {
            "Ids are not numeric, so deleted-but-unpublished rows cannot be detected".to_owned()
        }
        Some(0) => return None,
        Some(ids) => format!(
            "{ids} ids have no row: rolled back, or deleted; what was deleted before it was published is lost, and \
             can't be told apart"
        ),
    };
    Some(folded("  missing    ", &text))
}

/// Rows that a repair has not published, and a person has to see to.
#[derive(Clone, Copy)]
pub(super) struct Left {
    /// They have no id.
    pub(super) no_id: u64,
    /// They are parked: they have ids of events that were parked before.
    pub(super) undecided: u64,
}

/// What was done. `start`: what starts the pipeline now.
pub(super) fn of_row(pipeline: &str, row: &Row, left: Left, start: &str) -> String {
    let mut lines = vec![match row.state {
        State::Done => format!("{pipeline} is repaired; {start}"),
        State::Making | State::Publishing => {
            format!("{pipeline} is not repaired yet; run postrider repair again, or postrider run")
        }
    }];
    lines.push(format!(
        "  published  {} of {} rows, or parked behind their aggregate's parked event",
        row.rows_published, row.rows_total
    ));
    lines.extend(uncertain(row.rows_uncertain));
    lines.extend(undecided(pipeline, left.undecided, "are"));
    if row.rows_gone > 0 {
        let text = format!(
            "{} rows were deleted after they were listed and before they were published: these events are lost",
            row.rows_gone
        );
        lines.push(folded("  gone       ", &text));
    }
    lines.extend(missing(row.ids_missing));
    lines.extend(without_id(left.no_id));
    lines.push(folded("  method     ", &row.method));
    if let Some(at) = row.slot_created_lsn {
        lines.push(format!("  slot       {:?} begins at {at}", row.slot));
    }
    lines.join("\n")
}

pub(super) fn json_of(pipeline: &str, row: &Row, left: Left) -> Value {
    json!({
        "pipeline": pipeline,
        "kind": row.kind.word(),
        "state": row.state.word(),
        "rows": row.rows_total,
        "published": row.rows_published,
        "uncertain": row.rows_uncertain,
        "gone": row.rows_gone,
        "ids_missing": row.ids_missing,
        "without_id": left.no_id,
        "undecided": left.undecided,
        "method": row.method,
        "slot": row.slot,
        "slot_created_lsn": row.slot_created_lsn.map(|at| at.to_string()),
    })
}

pub(super) fn json_of_dry_run(pipeline: &str, verdict: &Verdict, found: &Found) -> Value {
    let survey = &found.survey;
    json!({
        "pipeline": pipeline,
        "state": "dry_run",
        "reason": why(verdict),
        "listed": found.listed,
        "rows": survey.rows,
        "aggregates": survey.aggregates,
        "bytes": survey.bytes,
        "uncertain": survey.uncertain,
        "undecided": survey.undecided,
        "ids_missing": survey.missing,
        "without_id": survey.without_id,
        "first_id": survey.ids.as_ref().map(|(first, _)| first),
        "last_id": survey.ids.as_ref().map(|(_, last)| last),
        "parked_aggregates": found.parked,
        "method": found.method,
    })
}
