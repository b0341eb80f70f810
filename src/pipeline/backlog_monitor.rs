//! Monitors the polled table while a polling session runs: how long its oldest ready row has waited, which sessions
//! have locked rows, and whether an unused slot is left behind.

use super::lag::OldestRow;
use super::settings_change::{LeftBehind, left_behind};
use super::spec::PipelineSpec;
use super::store_job::{StoreJob, await_job};
use super::timer::Timer;
use crate::postgres::SourceError;
use crate::postgres::poll::{MissedRows, OldestReady};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// How long rows have to be locked before the sessions that hold the locks are queried. Applications lock rows for a
/// moment all the time.
const LOCKED_MIN: Duration = Duration::from_secs(2);

/// Pause between two such queries. It is longer than the delay of an aggregate whose row was locked: a row that no
/// claim meets in this time is free.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest pause between two queries.
const PAUSE_MIN: Duration = Duration::from_secs(2);

/// The pause after a query is at least so many times the duration of the query: queries take at most a tenth of the
/// time of one session.
const PAUSE_FACTOR: u32 = 9;

/// Rows that claims could not have because another session has locked them.
#[derive(Default)]
pub(super) struct LockedRows {
    /// The last ones since the last query.
    rows: MissedRows,
    /// Since when rows are locked.
    since: Option<Instant>,
    /// When the holders were last queried.
    checked_at: Option<Instant>,
}

impl LockedRows {
    /// A claim could not have these rows.
    pub(super) fn note(&mut self, rows: &MissedRows) {
        if !rows.is_empty() {
            self.rows = rows.clone();
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// The rows to query, if it is time; empty if there were none since the last query.
    pub(super) fn due(&mut self) -> Option<MissedRows> {
        let lasting = self.since.is_some_and(|since| since.elapsed() >= LOCKED_MIN);
        let rested = self.checked_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL);
        if !lasting || !rested {
            return None;
        }
        self.checked_at = Some(Instant::now());
        Some(std::mem::take(&mut self.rows))
    }

    /// No session holds locks on the rows any more.
    pub(super) fn free(&mut self) {
        *self = Self::default();
    }
}

/// The result of a query of the polled table.
pub(super) struct BacklogStatus {
    /// How long the oldest ready row has waited.
    pub(super) oldest: OldestRow,
    /// An unused slot.
    pub(super) left: Option<LeftBehind>,
}

/// Queries how long the oldest ready row of the table has waited: one query at a time, on the control connection,
/// whether a claim is open or not.
pub(super) struct BacklogMonitor {
    /// The control connection.
    client: Arc<Client>,
    /// `None` for the list of a repair: all of its rows wait.
    question: Option<OldestReady>,
    /// The pipeline whose slot is queried too: in mode "poll" a slot may be left behind.
    slot_of: Option<Arc<PipelineSpec>>,
    /// The running query.
    running: Option<StoreJob<BacklogStatus>>,
    /// When it began.
    began: Instant,
    /// When the next query is made.
    next_at: Instant,
    /// Wakes at `next_at`.
    timer: Timer,
}

impl BacklogMonitor {
    pub(super) fn new(client: Arc<Client>, question: Option<OldestReady>) -> Self {
        let now = Instant::now();
        let timer = Timer::default();
        Self { client, question, slot_of: None, running: None, began: now, next_at: now, timer }
    }

    /// From here on an unused slot is queried too.
    pub(super) fn watch_slot(&mut self, of: Arc<PipelineSpec>) {
        self.slot_of = Some(of);
    }

    /// Waits for the next result; returns it with the moment when its query began. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<(BacklogStatus, Instant), SourceError> {
        if self.running.is_none() {
            self.timer.at(self.next_at).await;
            let (client, question) = (Arc::clone(&self.client), self.question.clone());
            let slot_of = self.slot_of.clone();
            self.began = Instant::now();
            self.running = Some(Box::pin(async move {
                let left = match slot_of {
                    Some(spec) => left_behind(&client, &spec).await?,
                    None => None,
                };
                let Some(question) = question else {
                    return Ok(BacklogStatus { oldest: OldestRow::Unknown, left });
                };
                let oldest = match question.ask(&client).await? {
                    None => OldestRow::None,
                    Some(Some(age)) => OldestRow::Since(age),
                    Some(None) => OldestRow::Unknown,
                };
                Ok(BacklogStatus { oldest, left })
            }));
        }
        let outcome = await_job(&mut self.running).await;
        self.running = None;
        let pause = self.began.elapsed().saturating_mul(PAUSE_FACTOR).max(PAUSE_MIN);
        self.next_at = Instant::now() + pause;
        Ok((outcome?, self.began))
    }
}
