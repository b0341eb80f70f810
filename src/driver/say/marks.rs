//! What is said of rows of the outbox table, and of a cursor row, that have to wait: to be claimed, marked, written.

use crate::driver::marking::Waiting;
use crate::driver::pipeline::Pipeline;
use crate::driver::trouble::{Due, Trouble};
use crate::error::Chain;
use crate::postgres::locks::Holder;
use crate::postgres::{SourceError, TableName, action, locks};
use std::time::Instant;
use tracing::{info, warn};

/// Rows that another session has locked.
pub(in crate::driver) fn marks_wait(pipeline: &mut Pipeline, waiting: &Waiting, given_up: usize) {
    let Waiting { table, rows, holders } = waiting;
    let holder = locks::names(holders);
    let known = pipeline.tell.marks.as_ref().filter(|_| holders.is_empty());
    // Holders are looked for now and then; in between the last ones stand.
    let reason = known.map_or_else(
        || {
            let why = if holders.is_empty() {
                "are locked, or not visible to other sessions yet (a commit that waits for a synchronous standby)"
                    .to_owned()
            } else {
                format!("are locked by {holder}")
            };
            format!("published rows of {table} {why}: their marks and the cursor row wait")
        },
        |trouble| trouble.reason.clone(),
    );
    let hint = "end that session's transaction (commit or roll back); until then all events are published, and only \
                the marks of these aggregates and the confirmation wait";
    let now = Instant::now();
    let told = Trouble::note(&mut pipeline.tell.marks, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = told {
        let pipeline = pipeline.spec.name();
        let table = table.to_string();
        warn!(
            event = "marks_wait",
            pipeline, table, rows, holder, given_up, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// The table refuses marks, or could not be asked; what is published goes on.
pub(in crate::driver) fn marks_failed(
    pipeline: &mut Pipeline,
    waiting: &Waiting,
    error: &SourceError,
    given_up: usize,
) {
    let Waiting { table, rows, .. } = waiting;
    let error_text = Chain(error).to_string();
    let reason = format!("published rows of {table} are not marked: {error_text}");
    let halt = action::explain(crate::error::HaltReason::TableUnfit, error, &pipeline.spec.names);
    let hint = halt.hint;
    let now = Instant::now();
    let told = Trouble::note(&mut pipeline.tell.marks, reason.clone(), Some(hint.clone()), now);
    if let Some(Due { seconds, tries }) = told {
        let pipeline = pipeline.spec.name();
        let table = table.to_string();
        warn!(
            event = "marks_failed",
            pipeline,
            table,
            rows,
            given_up,
            seconds,
            tries,
            reason,
            hint,
            "published rows can't be marked; publishing continues"
        );
    }
}

/// Polling begins, and publishes rows that the stream has passed, since they have no mark.
pub(in crate::driver) fn unmarked_rows(pipeline: &Pipeline, rows: u64, or_more: bool) {
    let more = if or_more { " or more" } else { "" };
    let hint = "docs/polling.md (from the stream to polling) has the statement that shows these rows, and what to do";
    warn!(
        event = "unmarked_rows",
        pipeline = pipeline.spec.name(),
        rows,
        or_more,
        hint,
        "{rows}{more} rows without a mark are of transactions that the stream has passed: polling publishes them, \
         though they may be published already, and maybe behind newer events of their aggregates"
    );
}

/// Published rows stay without their mark: this process ends, and mode "wal" does not wait for marks.
pub(in crate::driver) fn marks_left(pipeline: &Pipeline, rows: usize) {
    let hint = "docs/polling.md (from the stream to polling) has the statement that shows these rows, and what to do";
    warn!(
        event = "marks_left",
        pipeline = pipeline.spec.name(),
        rows,
        hint,
        "{rows} published rows stay without their mark: they were locked, or the table refused it"
    );
}

/// Rows that are to be published are locked by another session: claims pass over them.
pub(in crate::driver) fn claims_wait(
    pipeline: &mut Pipeline,
    table: &TableName,
    holders: &[Holder],
) {
    let holder = locks::names(holders);
    let reason = format!(
        "rows of {table} are locked by {holder}: they, and the later events of their aggregates, wait"
    );
    let hint =
        "end that session's transaction (commit or roll back); all other events are published";
    let now = Instant::now();
    let due = Trouble::note(&mut pipeline.tell.claims, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        let table = table.to_string();
        warn!(
            event = "claims_wait",
            pipeline, table, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// No row that is to be published is locked.
pub(in crate::driver) fn claims_go_on(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.claims.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(
            event = "claims_go_on",
            pipeline, seconds, "no row to be published is locked any more"
        );
    }
}

/// All published rows are marked.
pub(in crate::driver) fn marks_made(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.marks.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "marks_made", pipeline, seconds, "all published rows are marked again");
    }
}

/// The cursor row could not be written: another session holds it, or the statement took too long.
pub(in crate::driver) fn row_waits(pipeline: &mut Pipeline, error: &SourceError) {
    let reason = format!("{}: events are published, and none is confirmed", Chain(error));
    let hint = "see who holds the row: SELECT pid, pg_blocking_pids(pid), application_name FROM pg_stat_activity WHERE \
                wait_event_type = 'Lock'";
    let now = Instant::now();
    let told = Trouble::note(&mut pipeline.tell.row, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = told {
        let pipeline = pipeline.spec.name();
        warn!(event = "cursor_waits", pipeline, seconds, tries, reason, hint, "{reason}");
    }
}

/// It is written.
pub(in crate::driver) fn row_goes_on(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.row.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "cursor_written", pipeline, seconds, "the cursor row is written again");
    }
}
