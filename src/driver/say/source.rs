//! Log lines about the source: a database that does not answer, a slot that another process has, a query that failed.

use crate::driver::pipeline::Pipeline;
use crate::driver::spec::PipelineSpec;
use crate::driver::trouble::{Due, Trouble, span};
use crate::error::Chain;
use crate::event::HistoryId;
use crate::lsn::Lsn;
use crate::postgres::table::LeafChange;
use crate::postgres::{SourceError, action};
use std::time::{Duration, Instant};
use tracing::{info, warn};

pub(in crate::driver) fn source_down(pipeline: &mut Pipeline, error: &SourceError) {
    let reason = Chain(error).to_string();
    let hint = action::hint(error);
    pipeline.tell.reconnects_total += 1;
    pipeline.tell.streaming = false;
    let told =
        Trouble::note(&mut pipeline.tell.source, reason.clone(), hint.clone(), Instant::now());
    if let Some(due) = told {
        let Due { seconds, tries } = due;
        let words = if tries == 1 {
            format!("connecting to the database again: {reason}")
        } else {
            format!("still waiting for database, {}, last: {reason}", due.words())
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "source_down", pipeline, seconds, tries, reason, hint, "{words}");
    }
    pipeline.report(None);
}

/// Positions are of a new history from here on.
pub(in crate::driver) fn history_begins(
    spec: &PipelineSpec,
    history: HistoryId,
    before: HistoryId,
    from: Lsn,
) {
    info!(
        event = "history_begins",
        pipeline = spec.name(),
        %history,
        %before,
        %from,
        "positions of events committed at {from} or later begin with {history} (history before: {before})"
    );
}

pub(in crate::driver) fn waiting(pipeline: &mut Pipeline, message: &str) {
    pipeline.tell.streaming = false;
    let now = Instant::now();
    if let Some(due) = Trouble::note(&mut pipeline.tell.source, message.to_owned(), None, now) {
        let Due { seconds, tries } = due;
        let words = if tries == 1 {
            format!("not streaming yet: {message}")
        } else {
            format!("still not streaming, {}, last: {message}", due.words())
        };
        let (pipeline, reason) = (pipeline.spec.name(), message);
        info!(event = "source_not_ready", pipeline, seconds, tries, reason, "{words}");
    }
    pipeline.report(None);
}

pub(in crate::driver) fn standing_by(pipeline: &mut Pipeline, active_pid: Option<u32>) {
    pipeline.tell.streaming = false;
    let (told, now) = (&mut pipeline.tell.standing_by, Instant::now());
    if let Some(Due { seconds, tries }) = Trouble::note(told, String::new(), None, now) {
        let slot = &pipeline.spec.names.slot;
        let words = if tries == 1 {
            "another process publishes for this pipeline: standing by to take over when it has ended"
                .to_owned()
        } else {
            format!("still standing by, {}", span(seconds))
        };
        let pipeline = pipeline.spec.name();
        info!(event = "standing_by", pipeline, slot, active_pid, seconds, tries, "{words}");
    }
    pipeline.report(None);
}

pub(in crate::driver) fn waits_for_former_owner(
    pipeline: &mut Pipeline,
    until: tokio::time::Instant,
) {
    pipeline.tell.standing_by = None;
    pipeline.tell.publishes_at = Some(until.into_std());
    let wait = until.saturating_duration_since(tokio::time::Instant::now());
    let (name, seconds) = (pipeline.spec.name(), (wait + Duration::from_millis(500)).as_secs());
    info!(
        event = "waits_for_former_owner",
        pipeline = name,
        seconds,
        "the process that ran this pipeline before has not noted that all of its records are answered, and some may \
         still reach the broker (it was killed, lost its database, stopped behind a broker that did not answer, or was \
         of an older version; or the database failed over): publishing begins in {seconds} s"
    );
    pipeline.report(None);
}

pub(in crate::driver) fn look_failed(pipeline: &Pipeline, error: &SourceError) {
    let (pipeline, reason) = (pipeline.spec.name(), Chain(error));
    warn!(event = "look_failed", pipeline, %reason, "a query of the database's state failed and is repeated: {reason}");
}

/// The publication was changed while it was streamed, and no row is known that the change left out. `undone`: it was
/// changed back, or created again.
pub(in crate::driver) fn publication_changed(pipeline: &str, publication: &str, undone: bool) {
    if undone {
        warn!(
            event = "publication_changed",
            pipeline,
            publication,
            "the publication was changed and changed back, or created again, while it was streamed; the table has no \
             row that was committed in this time, so nothing is known to be left out"
        );
    } else {
        warn!(
            event = "publication_changed",
            pipeline,
            publication,
            "the publication was changed while it was streamed; one ALTER PUBLICATION explains the difference, and \
             inserts of the table were published before and after it"
        );
    }
}

/// A partition of the outbox was attached with rows in it, or detached.
pub(in crate::driver) fn partition_changed(pipeline: &str, change: &LeafChange) {
    let partition = change.name.to_string();
    if change.detached {
        info!(
            event = "partition_detached",
            pipeline,
            partition,
            "the partition was detached: rows inserted into it from now on are no events; those that were committed \
             before are still streamed"
        );
    } else if change.bytes > 0 {
        warn!(
            event = "partition_attached",
            pipeline,
            partition,
            bytes = change.bytes,
            hint = "those that are not published: delete and insert them again through the partitioned table, in one \
                    transaction",
            "a table with rows was attached as a partition: rows inserted before that are in no stream"
        );
    }
}
