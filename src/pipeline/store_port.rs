//! The session on which the pipeline's tables are written, and the statements that run on it beside the stream or the
//! claims: the cursor row, parked events, retries, and requests of operators.

use super::failpoint::failpoint;
use super::pause;
use super::record_buffer::WantedRecord;
use super::row_status::{RowStatusJob, RowStatusOutcome};
use super::spec::PipelineSpec;
use super::store_job::{StoreJob, await_job};
use super::timer::Timer;
use crate::event::{Histories, Position};
use crate::outbox::set_retry_position;
use crate::parked::{Parked, ParkedUpdate, Request};
use crate::postgres::SourceError;
use crate::postgres::client::Canceller;
use crate::postgres::control::Control;
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::lock_holders::{self, Holder};
use crate::postgres::poll::row_status::StatusWriter;
use crate::postgres::store::cursor::{self, Cursor, CursorWrite, SettledHistories, SnapshotPolicy};
use crate::postgres::store::parked::{self, Stored};
use crate::postgres::store::pause::Pause;
use crate::published::RowStatusBatch;
use crate::record::{OwnedRecord, Ticket};
use crate::store::PipelineKey;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// Pause between two queries for requests: a lost notification delays a request by this time at most.
const REQUESTS_INTERVAL: Duration = Duration::from_secs(5);

/// Payloads that are read for retries and not passed to the sink yet: while there are more, no more are read. Parked
/// events are often the large ones. Unit: bytes.
pub(super) const ATTEMPTS_BYTES_MAX: u32 = 16 << 20;

/// Pause before a write is repeated that met a row locked by another session.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two queries for the sessions that have locked rows.
const LOCKERS_INTERVAL: Duration = Duration::from_secs(5);

/// The previous owner of the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FormerOwner {
    /// The owner's epoch; 0 if the pipeline never had an owner.
    pub(super) epoch: i64,
    /// The owner has noted that none of its records is in flight.
    pub(super) left: bool,
}

/// The result of a cursor row, and of the marks before it.
pub(super) struct CursorWritten {
    /// The result of the marks, if there were any.
    pub(super) made: Option<RowStatusOutcome>,
    /// `None` if the row was not written, because it would pass an event without its mark.
    pub(super) row: Option<CursorWrite>,
}

/// The result of a write, and the sessions that have locked the rows it left out, if they were queried.
pub(super) struct ParkedWrite {
    /// The error if nothing was written and the same write may succeed later on this connection.
    pub(super) stored: Result<Stored, SourceError>,
    /// Sessions that have locked rows.
    pub(super) holders: Vec<Holder>,
}

/// The records that were requested, and those that were found.
/// The requested records, and those of them that were found.
pub(super) type Fetched = (Vec<WantedRecord>, Vec<(Ticket, OwnedRecord)>);

/// What is queried together with the requests of operators.
pub(super) struct RequestsQuery {
    /// Dead events whose rows may have been deleted.
    pub(super) dead: Vec<Position>,
    /// How long the oldest event has been parked is queried too, as a slot monitor does for a stream.
    pub(super) asks_age: bool,
}

/// Changes that people made to the table.
#[derive(Default)]
pub(super) struct FoundRequests {
    /// Requests, with the positions of their events.
    pub(super) requests: Vec<(Position, Request)>,
    /// Dead events whose rows were deleted.
    pub(super) deleted: Vec<Position>,
    /// How long the oldest event has been parked, if no slot monitor queries that.
    pub(super) oldest: Option<Duration>,
    /// The pause that an operator has requested.
    pub(super) pause: Option<Pause>,
}

/// What happened on the session.
pub(super) enum StoreEvent {
    /// The cursor row is written, or not.
    Cursor(Result<CursorWritten, SourceError>),
    /// The session has ended.
    Lost(SourceError),
    /// Parked events are written, or not.
    Parking(Result<ParkedWrite, SourceError>),
    /// Records are read.
    Fetched(Result<Fetched, SourceError>),
    /// Requests are read.
    Requests(Result<FoundRequests, SourceError>),
    /// Requests have to be queried.
    RequestsDue,
}

/// The session on which the pipeline's tables are written.
pub(super) struct StorePort {
    /// The connection.
    control: Control,
    /// The pipeline.
    spec: Arc<PipelineSpec>,
    /// The owner epoch; another process that takes over raises it.
    epoch: i64,
    /// The previous owner.
    former: FormerOwner,
    /// The histories that positions belong to, committed to the cursor row.
    histories: SettledHistories,
    /// Writes the status of published rows.
    status_writer: Option<StatusWriter>,
    /// The running statements.
    jobs: StoreJobs,
    /// Another process has raised the epoch: nothing is stored any more.
    overruled: bool,
}

/// The statements that are running.
struct StoreJobs {
    /// A write of the cursor row, and when it began.
    cursor: Option<(StoreJob<CursorWritten>, Instant)>,
    /// A write of parked events.
    parking: Option<StoreJob<ParkedWrite>>,
    /// When it began, with the attempts before it.
    parking_since: Instant,
    /// The status changes of that write.
    statuses: Arc<[ParkedUpdate]>,
    /// When the sessions that have locked rows were last queried.
    lockers_at: Option<Instant>,
    /// A query for records.
    fetching: Option<StoreJob<Fetched>>,
    /// A query for requests.
    requesting: Option<StoreJob<FoundRequests>>,
    /// When requests are queried without a notification.
    requests_at: Instant,
    /// Wakes at `requests_at`.
    timer: Timer,
}

impl Default for StoreJobs {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            cursor: None,
            parking: None,
            parking_since: now,
            statuses: Arc::default(),
            lockers_at: None,
            fetching: None,
            requesting: None,
            requests_at: now,
            timer: Timer::default(),
        }
    }
}

impl StorePort {
    pub(super) fn new(
        control: Control,
        spec: Arc<PipelineSpec>,
        (former, epoch): (FormerOwner, i64),
        histories: SettledHistories,
    ) -> Self {
        Self {
            control,
            spec,
            epoch,
            former,
            histories,
            status_writer: None,
            jobs: StoreJobs::default(),
            overruled: false,
        }
    }

    /// The client, for a statement that nothing else runs beside. Call [`Self::finish`] first.
    pub(super) fn client(&self) -> &Client {
        self.control.client()
    }

    /// What the tables' rows of this pipeline are stored under.
    pub(super) fn key(&self) -> &PipelineKey {
        self.spec.key()
    }

    /// The client, for a statement that runs concurrently with others.
    pub(super) fn shared_client(&self) -> Arc<Client> {
        self.control.shared_client()
    }

    /// Cancels the statements of the session.
    pub(super) fn canceller(&self) -> Option<Canceller> {
        self.control.canceller()
    }

    /// Waits until the session ends; returns the reason. Cancel-safe.
    pub(super) async fn closed(&mut self) -> SourceError {
        self.control.closed().await
    }

    /// The owner epoch of this process.
    pub(super) fn epoch(&self) -> i64 {
        self.epoch
    }

    /// The previous owner.
    pub(super) fn former(&self) -> FormerOwner {
        self.former
    }

    /// The histories that positions belong to.
    pub(super) fn histories(&self) -> &SettledHistories {
        &self.histories
    }

    /// Whether another process has raised the epoch: nothing is stored any more.
    pub(super) fn is_overruled(&self) -> bool {
        self.overruled
    }

    /// Whether a write of parked events is running.
    pub(super) fn is_writing_parking(&self) -> bool {
        self.jobs.parking.is_some()
    }

    /// When the older one of the running writes began.
    pub(super) fn written_since(&self) -> Option<Instant> {
        let StoreJobs { cursor, parking, parking_since, .. } = &self.jobs;
        let cursor = cursor.as_ref().map(|(_, since)| *since);
        let parking = parking.as_ref().map(|_| *parking_since);
        [cursor, parking].into_iter().flatten().min()
    }

    /// Whether records are being read.
    pub(super) fn is_fetching(&self) -> bool {
        self.jobs.fetching.is_some()
    }

    /// Drops the running statements, so that their answers do not delay the next ones.
    pub(super) fn drop_jobs(&mut self) {
        self.jobs = StoreJobs::default();
    }

    /// Waits until all running statements have their answers, and keeps the answers for [`Self::next`].
    ///
    /// Call this before another statement on this session is awaited: answers come in order, and an answer that nobody
    /// reads blocks those after it (the client buffers only a few messages of each).
    pub(super) async fn finish(&mut self) {
        let StoreJobs { parking, fetching, requesting, .. } = &mut self.jobs;
        tokio::join!(finished(parking), finished(fetching), finished(requesting));
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> StoreEvent {
        let notifications = self.control.notifications();
        let StoreJobs { cursor, parking, fetching, requesting, requests_at, timer, .. } =
            &mut self.jobs;
        let idle = requesting.is_none();
        let event = tokio::select! {
            biased;
            written = await_cursor(cursor), if cursor.is_some() => StoreEvent::Cursor(written),
            error = self.control.closed() => StoreEvent::Lost(error),
            written = await_job(parking), if parking.is_some() => StoreEvent::Parking(written),
            fetched = await_job(fetching), if fetching.is_some() => StoreEvent::Fetched(fetched),
            found = await_job(requesting), if !idle => StoreEvent::Requests(found),
            () = notifications.next(), if idle => StoreEvent::RequestsDue,
            () = timer.at(*requests_at), if idle => StoreEvent::RequestsDue,
        };
        match &event {
            StoreEvent::Cursor(_) => self.jobs.cursor = None,
            StoreEvent::Parking(written) => {
                self.jobs.parking = None;
                if let Ok(ParkedWrite { stored, holders }) = written {
                    if !holders.is_empty() {
                        self.jobs.lockers_at = Some(Instant::now());
                    }
                    self.overruled |= matches!(stored, Ok(Stored::TakenOver));
                }
            }
            StoreEvent::Fetched(_) => self.jobs.fetching = None,
            StoreEvent::Requests(_) => self.jobs.requesting = None,
            StoreEvent::Lost(_) | StoreEvent::RequestsDue => {}
        }
        event
    }

    /// Prepares the statements that write the status of rows. Returns whether there are such rows.
    pub(super) async fn prepare_statuses(&mut self) -> Result<bool, SourceError> {
        let spec = self.spec.poll.table.as_ref();
        self.status_writer = match spec {
            Some(spec) => Some(StatusWriter::prepare(self.control.client(), spec).await?),
            None => None,
        };
        Ok(self.status_writer.is_some())
    }

    /// The statements that write these statuses.
    pub(super) fn status_job(&self, batch: RowStatusBatch) -> Option<RowStatusJob> {
        let writer = self.status_writer.clone()?;
        Some(RowStatusJob { writer, batch, spec: Arc::clone(&self.spec) })
    }

    /// Writes the statuses that come before the row, then the row, unless it would pass an event without its status.
    pub(super) fn write_cursor(
        &mut self,
        cursor: Cursor,
        ledger: SnapshotPolicy,
        statuses: Option<RowStatusJob>,
    ) {
        assert!(self.jobs.cursor.is_none(), "two cursor rows at once");
        let client = self.control.shared_client();
        let cursor = Cursor { owner_epoch: self.epoch, ..cursor };
        let job: StoreJob<CursorWritten> = Box::pin(async move {
            let mut made = None;
            if let Some(job) = statuses {
                let done = job.make(&client).await?;
                let row =
                    crate::ack::Progress { watermark: cursor.watermark, partial: cursor.partial };
                let held = job.holds_back(&done, row.position());
                made = Some(done);
                if held {
                    return Ok(CursorWritten { made, row: None });
                }
            }
            let row = Some(cursor::write(&client, &cursor, &ledger).await?);
            Ok(CursorWritten { made, row })
        });
        self.jobs.cursor = Some((job, Instant::now()));
    }

    /// Commits rows and status changes of parked events, if this process still has the owner epoch.
    pub(super) fn write_parking(&mut self, rows: Arc<Vec<Parked>>, statuses: Vec<ParkedUpdate>) {
        assert!(self.jobs.parking.is_none(), "two writes of parked events at once");
        failpoint(if rows.is_empty() { "mark_due" } else { "parked_row_due" });
        self.jobs.statuses = statuses.into();
        self.jobs.parking_since = Instant::now();
        self.start_parking(rows, Duration::ZERO);
    }

    /// Repeats the last write of parked events, after a pause. Nothing was written.
    pub(super) fn write_parking_again(&mut self, rows: Arc<Vec<Parked>>) {
        self.start_parking(rows, LOCKED_PAUSE);
    }

    fn start_parking(&mut self, rows: Arc<Vec<Parked>>, pause: Duration) {
        let (client, spec) = (self.control.shared_client(), Arc::clone(&self.spec));
        let (statuses, epoch) = (Arc::clone(&self.jobs.statuses), self.epoch);
        let lockers_at = self.jobs.lockers_at;
        let finds_lockers = lockers_at.is_none_or(|at| at.elapsed() >= LOCKERS_INTERVAL);
        self.jobs.parking = Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let key = spec.key();
            let stored = match parked::write(&client, key, epoch, &rows, &statuses).await {
                Err(error) if !is_passing(&error) => return Err(error),
                stored => stored,
            };
            let holders = match &stored {
                // Such an error has taken longer than the pause between two queries.
                Err(_) => lock_holders::table_lockers(&client, key).await,
                Ok(Stored::Except(left)) if finds_lockers => {
                    lock_holders::lockers(&client, key, left).await
                }
                Ok(_) => Ok(Vec::new()),
            };
            // The holders are shown to people only: their query must not fail the write.
            Ok(ParkedWrite { stored, holders: holders.unwrap_or_default() })
        }));
    }

    /// Writes status changes of parked events, and waits for the result.
    pub(super) async fn write_statuses(
        &mut self,
        statuses: &[ParkedUpdate],
    ) -> Result<Stored, SourceError> {
        self.finish().await;
        match statuses {
            [] => Ok(Stored::Yes),
            statuses => {
                let (client, key) = (self.control.client(), self.key());
                parked::write(client, key, self.epoch, &[], statuses).await
            }
        }
    }

    /// Reads the records of attempts that are not in memory.
    pub(super) fn fetch(&mut self, mut wanted: Vec<WantedRecord>, histories: Histories) {
        let (client, spec) = (self.control.shared_client(), Arc::clone(&self.spec));
        let positioned = spec.common.outbox.standard_headers.position;
        self.jobs.fetching = Some(Box::pin(async move {
            let of = |dead_letter: bool| {
                let those = wanted.iter().filter(move |wanted| wanted.dead_letter == dead_letter);
                those.map(|wanted| (wanted.position, wanted.ticket)).collect::<HashMap<_, _>>()
            };
            let (attempts, dead_letters) = (of(false), of(true));
            let mut found = Vec::with_capacity(wanted.len());
            if !attempts.is_empty() {
                let positions: Vec<Position> = attempts.keys().copied().collect();
                let records =
                    parked::fetch(&client, spec.key(), &positions, ATTEMPTS_BYTES_MAX).await?;
                // Records that did not fit are requested again: they are not missing.
                let values = records.iter().filter_map(|fetched| fetched.record.value.as_ref());
                if values.map(Vec::len).sum::<usize>() >= ATTEMPTS_BYTES_MAX as usize {
                    let last = records.last().map(|fetched| fetched.position);
                    wanted.retain(|wanted| wanted.dead_letter || Some(wanted.position) <= last);
                }
                found.extend(records.into_iter().map(|fetched| {
                    let parked::Fetched { position, mut record, keeps_order } = fetched;
                    if positioned {
                        set_retry_position(&mut record, keeps_order, &histories);
                    }
                    (attempts[&position], record)
                }));
            }
            if let Some(topic) =
                spec.common.dead_topic.as_deref().filter(|_| !dead_letters.is_empty())
            {
                let positions: Vec<Position> = dead_letters.keys().copied().collect();
                let records =
                    parked::fetch_dead_letters(&client, spec.key(), &positions, topic).await?;
                found.extend(records.into_iter().map(|(at, record)| (dead_letters[&at], record)));
            }
            Ok((wanted, found))
        }));
    }

    /// Queries changes that people made to the table. While the table is polled, also does what a slot monitor does for
    /// a stream.
    pub(super) fn find_requests(&mut self, query: RequestsQuery) {
        let RequestsQuery { dead, asks_age } = query;
        let (client, spec) = (self.control.shared_client(), Arc::clone(&self.spec));
        self.jobs.requests_at = Instant::now() + REQUESTS_INTERVAL;
        self.jobs.requesting = Some(Box::pin(async move {
            let (key, mut found) = (spec.key(), FoundRequests::default());
            if !dead.is_empty() {
                found.deleted = parked::missing(&client, key, &dead).await?;
            }
            if asks_age {
                found.oldest = parked::counts(&client, key).await?.oldest;
            }
            found.requests = parked::requests(&client, key).await?;
            found.pause = pause::read(&client, &spec).await?;
            Ok(found)
        }));
    }
}

/// Whether only this statement failed, and may succeed later on the same connection.
pub(super) fn is_passing(error: &SourceError) -> bool {
    matches!(error_policy::action(error, Phase::Control, true), Action::Later(_))
}

async fn await_cursor(
    job: &mut Option<(StoreJob<CursorWritten>, Instant)>,
) -> Result<CursorWritten, SourceError> {
    match job {
        Some((job, _)) => job.await,
        None => std::future::pending().await,
    }
}

async fn finished<T: 'static>(job: &mut Option<StoreJob<T>>) {
    if let Some(pending) = job {
        let answer = pending.await;
        *job = Some(Box::pin(std::future::ready(answer)));
    }
}
