//! The log lines about what is written to the database, or read from its tables, and the state behind them.

use super::row_status::WaitingRows;
use crate::error::Chain;
use crate::health::{Condition, DueReport};
use crate::postgres::lock_holders::{self, Holder};
use crate::postgres::store::cursor::CursorWrite;
use crate::postgres::{SourceError, TableName};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What to do about a write that PostgreSQL takes long to commit.
const WRITE_HINT: &str = "another session may hold a lock: SELECT pid, pg_blocking_pids(pid), wait_event_type FROM \
                    pg_stat_activity WHERE application_name LIKE 'postrider%'; or a standby in \
                    synchronous_standby_names is not connected: see SELECT application_name, sync_state FROM \
                    pg_stat_replication; bring it back, or take it out and SELECT pg_reload_conf()";

/// How long a write may take before it is logged.
const WRITE_REPORT_AFTER: Duration = Duration::from_secs(5);

/// Pause between two checks of a slow write.
const WRITE_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Pause between two lines about the progress of a repair.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// What was logged last about the pipeline's tables and the outbox table. Each [`Condition`] is set while it lasts.
#[derive(Debug)]
pub(super) struct StoreLog {
    /// Name of the pipeline.
    name: String,
    /// A write is not committed.
    write: Option<Condition>,
    /// When that write was last checked.
    write_at: Option<Instant>,
    /// Rows of parked events, or their table, are locked.
    parked_rows: Option<Condition>,
    /// Rows to be claimed are locked.
    claims: Option<Condition>,
    /// Published rows can't be marked.
    marks: Option<Condition>,
    /// The cursor row can't be written.
    row: Option<Condition>,
    /// When the progress of a repair was last logged.
    repair_at: Option<Instant>,
}

impl StoreLog {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            write: None,
            write_at: None,
            parked_rows: None,
            claims: None,
            marks: None,
            row: None,
            repair_at: None,
        }
    }

    /// A write has been running since `since`: logs it if that is too long, and its end.
    pub(super) fn slow_write(&mut self, since: Option<tokio::time::Instant>) {
        let long = since.filter(|since| since.elapsed() >= WRITE_REPORT_AFTER);
        match long {
            None if self.write.is_some() => self.write_done(),
            None => {}
            Some(_) if self.write_at.is_some_and(|at| at.elapsed() < WRITE_LOOK_INTERVAL) => {}
            Some(_) => self.write_waits(WRITE_REPORT_AFTER),
        }
    }

    /// Parked rows `deferred` were left out of writes, `left` of them by the last one, because `holders` have locked
    /// them.
    pub(super) fn parked_rows_deferred(
        &mut self,
        deferred: usize,
        left: usize,
        holders: &[Holder],
    ) {
        match deferred {
            0 => self.parked_rows_written(),
            rows if left > 0 => self.parked_rows_locked(rows, holders),
            _ => {}
        }
    }

    /// A stream has begun. `deferred`: rows of parked events that are to be written.
    pub(super) fn streaming(&mut self, deferred: usize) {
        self.claims = None;
        if deferred == 0 {
            self.parked_rows = None;
        }
    }

    /// What is wrong, the most urgent first.
    pub(super) fn warnings(&self) -> [Option<&Condition>; 5] {
        let Self { parked_rows, write, row, claims, marks, .. } = self;
        [parked_rows.as_ref(), write.as_ref(), row.as_ref(), claims.as_ref(), marks.as_ref()]
    }

    /// The cursor row belongs to another process.
    pub(super) fn row_taken(&self, written: &CursorWrite) {
        let reason = match written {
            CursorWrite::Stored => return,
            CursorWrite::Behind(_) => "it is further on",
            CursorWrite::Rebound(_) => "it belongs to another slot or cluster now",
            CursorWrite::TakenOver => "it has another owner now",
            CursorWrite::Missing => "it was deleted",
        };
        let pipeline = &self.name;
        warn!(event = "cursor_taken", pipeline, reason, "another process changed the cursor row");
    }

    /// The cursor row could not be written: another session holds it, or the statement timed out.
    pub(super) fn row_waits(&mut self, error: &SourceError) {
        let reason = format!("{}: events are published, and none is confirmed", Chain(error));
        let hint = "see who holds the row: SELECT pid, pg_blocking_pids(pid), application_name FROM pg_stat_activity \
                    WHERE wait_event_type = 'Lock'";
        let now = Instant::now();
        let due = Condition::note(&mut self.row, reason.clone(), Some(hint.to_owned()), now);
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = &self.name;
            warn!(event = "cursor_waits", pipeline, seconds, tries, reason, hint, "{reason}");
        }
    }

    /// The cursor row is written.
    pub(super) fn row_goes_on(&mut self) {
        if let Some(condition) = self.row.take() {
            let seconds = condition.seconds(Instant::now());
            let pipeline = &self.name;
            info!(event = "cursor_written", pipeline, seconds, "the cursor row is written again");
        }
    }

    /// A write is not committed after this time.
    fn write_waits(&mut self, reported_after: Duration) {
        let now = Instant::now();
        self.write_at = Some(now);
        let longer = reported_after.as_secs();
        let reason = format!("PostgreSQL has not committed a write for more than {longer} s");
        let due = Condition::note(&mut self.write, reason, Some(WRITE_HINT.into()), now);
        if let Some(DueReport { seconds, tries }) = due {
            warn!(
                event = "write_waits",
                pipeline = self.name,
                seconds,
                tries,
                hint = WRITE_HINT,
                "PostgreSQL has not committed a write for more than {} s: parked events wait, nothing is lost",
                longer + seconds
            );
        }
    }

    /// The write is committed.
    fn write_done(&mut self) {
        self.write_at = None;
        if let Some(condition) = self.write.take() {
            let seconds = condition.seconds(Instant::now());
            let pipeline = &self.name;
            info!(event = "write_done", pipeline, seconds, "PostgreSQL commits writes again");
        }
    }

    /// Another session has locked rows of the parked table: the new states of their events are written later.
    fn parked_rows_locked(&mut self, rows: usize, holders: &[Holder]) {
        let holder = lock_holders::holder_names(holders);
        let known = self.parked_rows.as_ref().filter(|_| holders.is_empty());
        // Lock holders are queried now and then; in between the last known ones are shown.
        let reason = known.map_or_else(
            || {
                format!(
                    "rows of \"postrider\".\"parked\" are locked by {holder}: what became of these parked events is \
                     written later"
                )
            },
            |condition| condition.reason.clone(),
        );
        let hint = "end that session's transaction (commit or roll back); until then only the aggregates of these \
                    parked events wait, and a restart may publish events again that are published already";
        let now = Instant::now();
        let due =
            Condition::note(&mut self.parked_rows, reason.clone(), Some(hint.to_owned()), now);
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = &self.name;
            warn!(
                event = "parked_rows_wait",
                pipeline, rows, holder, seconds, tries, reason, hint, "{reason}"
            );
        }
    }

    /// No row of the parked table can be written: the table or the cursor row is locked, or the statement timed out.
    pub(super) fn parked_rows_wait(&mut self, error: &SourceError, holders: &[Holder]) {
        let holder = lock_holders::holder_names(holders);
        let by = if holders.is_empty() { String::new() } else { format!(" (locked by {holder})") };
        let reason = format!(
            "{}{by}: events that have to be parked wait, and nothing behind them is confirmed; all others are \
             published",
            Chain(error)
        );
        let hint = "end the transaction of the session that has locked table \"postrider\".\"parked\", or the \
                    pipeline's row in \"postrider\".\"cursor\"";
        let now = Instant::now();
        let due =
            Condition::note(&mut self.parked_rows, reason.clone(), Some(hint.to_owned()), now);
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = &self.name;
            warn!(
                event = "parked_rows_wait",
                pipeline, holder, seconds, tries, reason, hint, "{reason}"
            );
        }
    }

    /// All rows of the parked table are written.
    fn parked_rows_written(&mut self) {
        if let Some(condition) = self.parked_rows.take() {
            let seconds = condition.seconds(Instant::now());
            let pipeline = &self.name;
            info!(
                event = "parked_rows_written",
                pipeline, seconds, "all changes to rows of parked events are written"
            );
        }
    }

    /// Published rows can't be marked because another session has locked them.
    pub(super) fn marks_wait(&mut self, waiting: &WaitingRows, given_up: usize) {
        let WaitingRows { table, rows, holders } = waiting;
        let holder = lock_holders::holder_names(holders);
        let known = self.marks.as_ref().filter(|_| holders.is_empty());
        // Lock holders are queried now and then; in between the last known ones are shown.
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
            |condition| condition.reason.clone(),
        );
        let hint = "end that session's transaction (commit or roll back); until then all events are published, and \
                    only the marks of these aggregates and the confirmation wait";
        let now = Instant::now();
        let due = Condition::note(&mut self.marks, reason.clone(), Some(hint.to_owned()), now);
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = &self.name;
            let table = table.to_string();
            warn!(
                event = "marks_wait",
                pipeline, table, rows, holder, given_up, seconds, tries, reason, hint, "{reason}"
            );
        }
    }

    /// The table refuses marks, or could not be queried. Publishing continues.
    pub(super) fn marks_failed(
        &mut self,
        waiting: &WaitingRows,
        (error, hint): (&SourceError, String),
        given_up: usize,
    ) {
        let WaitingRows { table, rows, .. } = waiting;
        let error_text = Chain(error).to_string();
        let reason = format!("published rows of {table} are not marked: {error_text}");
        let now = Instant::now();
        let due = Condition::note(&mut self.marks, reason.clone(), Some(hint.clone()), now);
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = &self.name;
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

    /// All published rows are marked.
    pub(super) fn marks_made(&mut self) {
        if let Some(condition) = self.marks.take() {
            let seconds = condition.seconds(Instant::now());
            let pipeline = &self.name;
            info!(event = "marks_made", pipeline, seconds, "all published rows are marked again");
        }
    }

    /// Published rows stay without their mark: this process ends, and mode "wal" does not wait for marks.
    pub(super) fn marks_left(&self, rows: usize) {
        let hint = "docs/polling.md (from the stream to polling) has the statement that shows these rows, and what to \
                    do";
        warn!(
            event = "marks_left",
            pipeline = self.name,
            rows,
            hint,
            "{rows} published rows stay without their mark: they were locked, or the table refused it"
        );
    }

    /// Polling begins, and publishes rows that the stream has passed, because they have no mark.
    pub(super) fn unmarked_rows(&self, rows: u64, or_more: bool) {
        let more = if or_more { " or more" } else { "" };
        let hint = "docs/polling.md (from the stream to polling) has the statement that shows these rows, and what to \
                    do";
        warn!(
            event = "unmarked_rows",
            pipeline = self.name,
            rows,
            or_more,
            hint,
            "{rows}{more} rows without a mark are of transactions that the stream has passed: polling publishes them, \
             though they may be published already, and maybe behind newer events of their aggregates"
        );
    }

    /// Rows that are to be published are locked by another session: claims skip them.
    pub(super) fn claims_wait(&mut self, table: &TableName, holders: &[Holder]) {
        let holder = lock_holders::holder_names(holders);
        let reason = format!(
            "rows of {table} are locked by {holder}: they, and the later events of their aggregates, wait"
        );
        let hint =
            "end that session's transaction (commit or roll back); all other events are published";
        let now = Instant::now();
        let due = Condition::note(&mut self.claims, reason.clone(), Some(hint.to_owned()), now);
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = &self.name;
            let table = table.to_string();
            warn!(
                event = "claims_wait",
                pipeline, table, holder, seconds, tries, reason, hint, "{reason}"
            );
        }
    }

    /// No row that is to be published is locked.
    pub(super) fn claims_go_on(&mut self) {
        if let Some(condition) = self.claims.take() {
            let seconds = condition.seconds(Instant::now());
            let pipeline = &self.name;
            info!(
                event = "claims_go_on",
                pipeline, seconds, "no row to be published is locked any more"
            );
        }
    }

    /// Rows of the list are published.
    pub(super) fn repair_progress(&mut self, published: u64) {
        let now = Instant::now();
        let condition = &mut self.repair_at;
        if condition.is_some_and(|at| now.duration_since(at) < PROGRESS_INTERVAL) {
            return;
        }
        let first = condition.replace(now).is_none();
        if !first {
            info!(
                event = "repair_progress",
                pipeline = self.name,
                published,
                "publishing from the table"
            );
        }
    }
}
