//! What is said of changes that are passed over: nothing that is skipped is silent.
//!
//! An event that expired is named, a few lines a minute. The rest is counted as it passes, and logged when the board is
//! brought up to date: at once, then at growing intervals while there are more.

use super::Tell;
use crate::driver::pipeline::Pipeline;
use crate::driver::trouble::Trouble;
use crate::event::{Position, shown_id};
use crate::status::Skipped;
use std::time::Instant;
use tracing::{info, warn};

/// What was said last of changes that are no events, and of what was skipped that an application may have meant.
#[derive(Debug, Default)]
pub(in crate::driver) struct SkippedLog {
    logged: Skipped,
    passed: Option<Trouble>,
    not_transactional: Option<Trouble>,
}

/// An event whose time (`expires_at`) was over before it was published.
pub(in crate::driver) fn expired(tell: &mut Tell, pipeline: &str, position: Position, id: &str) {
    tell.skipped.expired += 1;
    let Some(suppressed) = tell.expired.admit(Instant::now()) else { return };
    warn!(
        event = "event_expired",
        pipeline,
        %position,
        id = %shown_id(id),
        suppressed,
        "event expired before it was published: it is skipped"
    );
}

/// The same for rows that a claim of polling found expired; their layout marks them.
pub(in crate::driver) fn rows_expired(tell: &mut Tell, pipeline: &str, rows: u64) {
    if rows == 0 {
        return;
    }
    tell.skipped.expired += rows;
    let Some(suppressed) = tell.expired.admit(Instant::now()) else { return };
    warn!(
        event = "event_expired",
        pipeline,
        rows,
        suppressed,
        "events expired before they were published: they are skipped, and their rows marked as failed"
    );
}

/// Says what was skipped since this was last said, where that is due.
pub(in crate::driver) fn skipped(pipeline: &mut Pipeline) {
    let (name, now) = (pipeline.spec.name(), Instant::now());
    let Tell { skipped, skipped_log: log, .. } = &mut pipeline.tell;
    let passed = |skipped: &Skipped| skipped.not_inserts + skipped.others + skipped.repeated;
    if passed(skipped) > passed(&log.logged)
        && Trouble::note(&mut log.passed, String::new(), None, now).is_some()
    {
        let (not_inserts, others, repeated) = (
            skipped.not_inserts - log.logged.not_inserts,
            skipped.others - log.logged.others,
            skipped.repeated - log.logged.repeated,
        );
        info!(
            event = "changes_skipped",
            pipeline = name,
            not_inserts,
            others,
            repeated,
            "changes that are no new events were skipped: updates, deletes and truncations; rows of other tables and \
             messages of other prefixes; events that were published before"
        );
        log.logged = Skipped { not_transactional: log.logged.not_transactional, ..*skipped };
    }
    if skipped.not_transactional > log.logged.not_transactional
        && Trouble::note(&mut log.not_transactional, String::new(), None, now).is_some()
    {
        let messages = skipped.not_transactional - log.logged.not_transactional;
        warn!(
            event = "message_not_transactional",
            pipeline = name,
            messages,
            hint = "SELECT pg_logical_emit_message(true, ...)",
            "logical messages of outbox.message_prefix were skipped: they are not transactional, so they are in no \
             transaction, and would be sent though theirs is rolled back"
        );
        log.logged.not_transactional = skipped.not_transactional;
    }
}
