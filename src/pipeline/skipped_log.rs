//! The counts of skipped changes, and the log lines about them: an event that expired is named, a few lines a minute,
//! and the others are counted.

use crate::event::{Position, shown_id};
use crate::health::{Condition, LogRateLimit};
use crate::status::Skipped;
use std::time::Instant;
use tracing::{info, warn};

/// What was logged last about skipped changes. Every skipped change is counted or logged: an expired event is named, a
/// few lines a minute; the others are counted, and logged when the status is updated, at once and then at growing
/// intervals.
#[derive(Debug, Default)]
pub(super) struct SkippedLog {
    /// Changes skipped since the start.
    pub(super) counts: Skipped,
    /// Counts that the last lines contained.
    logged: Skipped,
    /// Changes that are no new events are skipped.
    passed: Option<Condition>,
    /// Logical messages outside of transactions are skipped.
    not_transactional: Option<Condition>,
    /// Limits the lines about expired events.
    expired: LogRateLimit,
}

impl SkippedLog {
    /// An event whose time (`expires_at`) had passed before it was published.
    pub(super) fn event_expired(&mut self, pipeline: &str, position: Position, id: &str) {
        self.counts.expired += 1;
        let Some(suppressed) = self.expired.admit(Instant::now()) else { return };
        warn!(
            event = "event_expired",
            pipeline,
            %position,
            id = %shown_id(id),
            suppressed,
            "event expired before it was published: it is skipped"
        );
    }

    /// Rows that a claim found expired; their layout marks them.
    pub(super) fn rows_expired(&mut self, pipeline: &str, rows: u64) {
        if rows == 0 {
            return;
        }
        self.counts.expired += rows;
        let Some(suppressed) = self.expired.admit(Instant::now()) else { return };
        warn!(
            event = "event_expired",
            pipeline,
            rows,
            suppressed,
            "events expired before they were published: they are skipped, and their rows marked as failed"
        );
    }

    /// Logs what was skipped since the last line about it, if a line is due.
    pub(super) fn report(&mut self, pipeline: &str) {
        let now = Instant::now();
        let Self { counts, logged, passed: condition, not_transactional, .. } = self;
        let passed = |skipped: &Skipped| skipped.not_inserts + skipped.others + skipped.repeated;
        if passed(counts) > passed(logged)
            && Condition::note(condition, String::new(), None, now).is_some()
        {
            let (not_inserts, others, repeated) = (
                counts.not_inserts - logged.not_inserts,
                counts.others - logged.others,
                counts.repeated - logged.repeated,
            );
            info!(
                event = "changes_skipped",
                pipeline,
                not_inserts,
                others,
                repeated,
                "changes that are no new events were skipped: updates, deletes and truncations; rows of other tables \
                 and messages of other prefixes; events that were published before"
            );
            *logged = Skipped { not_transactional: logged.not_transactional, ..*counts };
        }
        if counts.not_transactional > logged.not_transactional
            && Condition::note(not_transactional, String::new(), None, now).is_some()
        {
            let messages = counts.not_transactional - logged.not_transactional;
            warn!(
                event = "message_not_transactional",
                pipeline,
                messages,
                hint = "SELECT pg_logical_emit_message(true, ...)",
                "logical messages of outbox.message_prefix were skipped: they are not transactional, so they are in no \
                 transaction, and would be sent though theirs is rolled back"
            );
            logged.not_transactional = counts.not_transactional;
        }
    }
}
