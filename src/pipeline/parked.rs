//! Parked events: the statements on their table, which run beside the stream, and the buffer of their records.

use super::failpoint::failpoint;
use super::former_owner::FormerOwner;
use super::lifecycle::Pipeline;
use super::requeue::{DOUBT, ID_USED_BEFORE};
use super::slot_monitor::{KEPT, PRUNE_INTERVAL};
use super::spec::Mode;
use super::stream::{StoreJob, await_job};
use super::timer::Timer;
use super::{halts, log};
use crate::event::{Aggregate, Position};
use crate::offset::Offset;
use crate::outbox::{At, Mapped, Poison, set_retry_position};
use crate::parked::{Entry, Parked, ParkedUpdate, Request};
use crate::postgres::SourceError;
use crate::postgres::control::{Control, Notifications};
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::lock_holders::{self, Holder};
use crate::postgres::store::cursor::{CursorWrite, SettledHistories};
use crate::postgres::store::parked::{self, Loaded, Stored};
use crate::postgres::store::requeue::AheadOfCursor;
use crate::record::{Outcome, OwnedRecord, Refusal, Scope, Ticket, has_empty_part};
use crate::relay::{Effect, Input, OnPoison};
use crate::sink::NotTaken;
use crate::timestamp::Timestamp;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two queries for requests: a lost notification delays a request by this time at most.
const REQUESTS_INTERVAL: Duration = Duration::from_secs(5);

/// Payloads that are read for retries and not passed to the sink yet: while there are more, no more are read. Parked
/// events are often the large ones. Unit: bytes.
const ATTEMPTS_BYTES_MAX: u32 = 16 << 20;

/// Pause before a write is repeated that met a row locked by another session.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two queries for the sessions that have locked rows.
const LOCKERS_INTERVAL: Duration = Duration::from_secs(5);

/// Dead events whose rows are checked in one query.
const DEAD_MAX: usize = 10_000;

/// How long an attempt may wait for its destination before it is postponed.
const DESTINATION_WAIT_MAX: Duration = Duration::from_secs(10);

/// The outcome of an attempt whose topic is missing or accepts no records. The reason is a placeholder that is never
/// reported.
const NO_DESTINATION: Outcome =
    Outcome::Rejected { scope: Scope::Destination, reason: Refusal::destination("") };

/// Characters of an event's type that a row keeps; the type is only shown. The ID is kept whole, because marks, retries
/// and rows of the outbox table are found by it.
const TYPE_CHARS_MAX: usize = 400;

/// The result of a write, and the sessions that have locked the rows it left out, if they were queried.
pub(super) struct ParkedWrite {
    /// The error if nothing was written and the same write may succeed later on this connection.
    stored: Result<Stored, SourceError>,
    /// Sessions that have locked rows.
    holders: Vec<Holder>,
}

/// The records that were requested, and those that were found.
type Fetched = (Vec<WantedRecord>, Vec<(Ticket, OwnedRecord)>);

/// Changes that people made to the table.
#[derive(Default)]
pub(super) struct FoundRequests {
    /// Requests, with the positions of their events.
    requests: Vec<(Position, Request)>,
    /// Dead events whose rows were deleted.
    deleted: Vec<Position>,
    /// How long the oldest event has been parked, if no slot monitor queries that.
    oldest: Option<Duration>,
}

/// The session on which the pipeline's tables are written, and the statements that run on it.
pub(super) struct StoreSession {
    /// The connection.
    pub(super) control: Control,
    /// The owner epoch; another process that takes over raises it.
    pub(super) epoch: i64,
    /// The previous owner.
    pub(super) former: FormerOwner,
    /// The histories that positions belong to, committed to the cursor row.
    pub(super) histories: SettledHistories,
    /// The running statements.
    pub(super) jobs: StoreJobs,
    /// Another process has raised the epoch: nothing is stored any more.
    pub(super) overruled: bool,
}

impl StoreSession {
    pub(super) fn new(
        control: Control,
        (former, epoch): (FormerOwner, i64),
        histories: SettledHistories,
    ) -> Self {
        Self { control, epoch, former, histories, jobs: StoreJobs::default(), overruled: false }
    }
}

/// The statements that are running.
pub(super) struct StoreJobs {
    /// A write of rows and status changes.
    writing: Option<StoreJob<ParkedWrite>>,
    /// When it began.
    writing_since: Instant,
    /// The status changes of the running write.
    marks: Arc<[ParkedUpdate]>,
    /// When the sessions that have locked rows were last queried.
    lockers_at: Option<Instant>,
    /// The open claim whose transaction contains rows that the relay takes for written. They are not visible on this
    /// session yet, which does not mean that they were deleted.
    pub(super) unseen: Option<Offset>,
    /// A query for records.
    fetching: Option<StoreJob<Fetched>>,
    /// A query for requests.
    requesting: Option<StoreJob<FoundRequests>>,
    /// When requests are queried without a notification.
    requests_at: Instant,
    /// Wakes at `requests_at`.
    timer: Timer,
    /// When resolved events are next deleted.
    prune_at: Instant,
}

/// What happened on the store session.
pub(super) enum StoreEvent {
    Written(Result<ParkedWrite, SourceError>),
    Fetched(Result<Fetched, SourceError>),
    Requests(Result<FoundRequests, SourceError>),
    /// Requests have to be queried.
    RequestsDue,
}

impl Default for StoreJobs {
    fn default() -> Self {
        let now = Instant::now();
        let (writing, fetching, requesting) = (None, None, None);
        let (writing_since, requests_at, prune_at) = (now, now, now);
        let (unseen, timer) = (None, Timer::default());
        let (marks, lockers_at) = (Arc::default(), None);
        Self {
            writing,
            writing_since,
            marks,
            lockers_at,
            unseen,
            fetching,
            requesting,
            requests_at,
            timer,
            prune_at,
        }
    }
}

impl StoreJobs {
    /// Whether the sessions that have locked rows have to be queried.
    pub(super) fn lockers_are_due(&self) -> bool {
        self.lockers_at.is_none_or(|at| at.elapsed() >= LOCKERS_INTERVAL)
    }

    /// When the running write began.
    pub(super) fn written_since(&self) -> Option<Instant> {
        self.writing.as_ref().map(|_| self.writing_since)
    }

    /// Waits until all running statements have their answers, and keeps the answers for [`next`](Self::next).
    ///
    /// Call this before another statement on this session is awaited: answers come in order, and an answer that nobody
    /// reads blocks those after it (the client buffers only a few messages of each).
    pub(super) async fn finish(&mut self) {
        let Self { writing, fetching, requesting, .. } = self;
        tokio::join!(finished(writing), finished(fetching), finished(requesting));
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self, notifications: &Notifications) -> StoreEvent {
        tokio::select! {
            biased;
            written = await_job(&mut self.writing), if self.writing.is_some() => StoreEvent::Written(written),
            fetched = await_job(&mut self.fetching), if self.fetching.is_some() => StoreEvent::Fetched(fetched),
            found = await_job(&mut self.requesting), if self.requesting.is_some() => StoreEvent::Requests(found),
            () = notifications.next(), if self.requesting.is_none() => StoreEvent::RequestsDue,
            () = self.timer.at(self.requests_at), if self.requesting.is_none() => StoreEvent::RequestsDue,
        }
    }
}

/// Whether only this statement failed, and may succeed later on the same connection.
fn is_passing(error: &SourceError) -> bool {
    matches!(error_policy::action(error, Phase::Control, true), Action::Later(_))
}

async fn finished<T: 'static>(job: &mut Option<StoreJob<T>>) {
    if let Some(pending) = job {
        let answer = pending.await;
        *job = Some(Box::pin(std::future::ready(answer)));
    }
}

impl Pipeline {
    /// Commits rows and status changes, if this process still has the owner epoch.
    pub(super) fn write_parking(
        &mut self,
        store: &mut StoreSession,
        rows: usize,
        marks: Vec<ParkedUpdate>,
    ) {
        assert!(store.jobs.writing.is_none(), "two writes of parked events at once");
        failpoint(if rows > 0 { "parked_row_due" } else { "mark_due" });
        self.log.parked.states_changed(self.spec.name(), &marks);
        drop(self.records.take_rows(rows));
        store.jobs.marks = marks.into();
        store.jobs.writing_since = Instant::now();
        self.write(store, Duration::ZERO);
    }

    /// Starts the pending write after `pause`.
    fn write(&self, store: &mut StoreSession, pause: Duration) {
        let (client, spec) = (store.control.shared_client(), Arc::clone(&self.spec));
        let (rows, marks, epoch) =
            (self.records.rows_being_written(), Arc::clone(&store.jobs.marks), store.epoch);
        let finds_lockers = store.jobs.lockers_are_due();
        store.jobs.writing = Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let name = spec.name();
            let stored = match parked::write(&client, name, epoch, &rows, &marks).await {
                Err(error) if !is_passing(&error) => return Err(error),
                stored => stored,
            };
            let holders = match &stored {
                // Such an error has taken longer than the pause between two queries.
                Err(_) => lock_holders::table_lockers(&client, name).await,
                Ok(Stored::Except(left)) if finds_lockers => {
                    lock_holders::lockers(&client, name, left).await
                }
                Ok(_) => Ok(Vec::new()),
            };
            // The holders are shown to people only: their query must not fail the write.
            Ok(ParkedWrite { stored, holders: holders.unwrap_or_default() })
        }));
    }

    /// Reads the records of pending attempts that are not in memory.
    pub(super) fn fetch_records(&self, store: &mut StoreSession) {
        let full = self.records.bytes_pending() >= ATTEMPTS_BYTES_MAX as usize;
        if store.jobs.fetching.is_some() || full || !self.records.wants_records() {
            return;
        }
        let mut wanted = self.records.missing();
        wanted.retain(|wanted| Some(wanted.position.commit) != store.jobs.unseen);
        if wanted.is_empty() {
            return;
        }
        let (client, spec) = (store.control.shared_client(), Arc::clone(&self.spec));
        let positioned = spec.outbox.standard_headers.position;
        let histories = self.histories.clone();
        store.jobs.fetching = Some(Box::pin(async move {
            let of = |dead_letter: bool| {
                let those = wanted.iter().filter(move |wanted| wanted.dead_letter == dead_letter);
                those.map(|wanted| (wanted.position, wanted.ticket)).collect::<HashMap<_, _>>()
            };
            let (attempts, dead_letters) = (of(false), of(true));
            let mut found = Vec::with_capacity(wanted.len());
            if !attempts.is_empty() {
                let positions: Vec<Position> = attempts.keys().copied().collect();
                let records =
                    parked::fetch(&client, spec.name(), &positions, ATTEMPTS_BYTES_MAX).await?;
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
            if let Some(topic) = spec.dead_topic.as_deref().filter(|_| !dead_letters.is_empty()) {
                let positions: Vec<Position> = dead_letters.keys().copied().collect();
                let records =
                    parked::fetch_dead_letters(&client, spec.name(), &positions, topic).await?;
                found.extend(records.into_iter().map(|(at, record)| (dead_letters[&at], record)));
            }
            Ok((wanted, found))
        }));
    }

    /// Continues with dead letters that were not sent before this start.
    pub(super) fn resume_dead_letters(&mut self, loaded: &[Loaded]) {
        for row in loaded.iter().filter(|row| row.dead_unsent) {
            self.apply(self.now(), Input::DeadLetterUnsent { position: row.entry.position });
        }
    }

    /// Handles the result of a statement. An error is one of the connection.
    pub(super) fn store_event(
        &mut self,
        store: &mut StoreSession,
        event: StoreEvent,
    ) -> Result<(), SourceError> {
        let (now, jobs) = (self.now(), &mut store.jobs);
        match event {
            StoreEvent::Written(written) => {
                jobs.writing = None;
                let ParkedWrite { stored, holders } = written?;
                if !holders.is_empty() {
                    jobs.lockers_at = Some(Instant::now());
                }
                match stored {
                    Ok(stored) => {
                        store.overruled |= stored == Stored::TakenOver;
                        self.stored(now, &stored, &holders);
                    }
                    // Another session has locked the table or the cursor row. Nothing was written; the stream
                    // continues.
                    Err(error) => {
                        log::parked_rows_wait(self, &error, &holders);
                        self.write(store, LOCKED_PAUSE);
                    }
                }
            }
            StoreEvent::Fetched(Err(error)) if is_passing(&error) => {
                // The records are requested again with the next effects.
                jobs.fetching = None;
                log::look_failed(self, &error);
            }
            StoreEvent::Fetched(fetched) => {
                jobs.fetching = None;
                let (requested, found) = fetched?;
                self.fetched(&requested, found);
                self.offer_attempts(now);
            }
            StoreEvent::RequestsDue => {
                jobs.requests_at = Instant::now() + REQUESTS_INTERVAL;
                self.find_requests(store);
            }
            StoreEvent::Requests(Err(error)) if is_passing(&error) => {
                // No event waits for requests: the next query is made when it is due.
                jobs.requesting = None;
                log::look_failed(self, &error);
            }
            StoreEvent::Requests(found) => {
                jobs.requesting = None;
                let FoundRequests { requests, deleted, oldest } = found?;
                self.records.oldest = oldest;
                for position in deleted {
                    self.apply(now, Input::DeadRowDeleted { position });
                }
                for (position, request) in requests {
                    // The event will be requeued; until then its row keeps the request.
                    if self.requeued.holds(position) {
                        continue;
                    }
                    self.apply(now, Input::Request { position, request });
                }
            }
        }
        Ok(())
    }

    /// Queries changes that people made to the table. While the table is polled, also does what a slot monitor does for
    /// a stream.
    fn find_requests(&self, store: &mut StoreSession) {
        let (client, spec) = (store.control.shared_client(), Arc::clone(&self.spec));
        let unseen = store.jobs.unseen;
        let mut dead = self.relay.dead(DEAD_MAX);
        dead.retain(|position| Some(position.commit) != unseen);
        let polls = self.log.polling;
        let prune = polls && store.jobs.prune_at <= Instant::now();
        if prune {
            store.jobs.prune_at = Instant::now() + PRUNE_INTERVAL;
        }
        let any = self.relay.parked().total() > 0;
        store.jobs.requesting = Some(Box::pin(async move {
            let (name, mut found) = (spec.name(), FoundRequests::default());
            if prune && spec.mode == Mode::Poll {
                parked::prune_polled(&client, name, KEPT).await?;
            } else if prune {
                parked::prune(&client, name, Offset::MAX, KEPT).await?;
            }
            if !dead.is_empty() {
                found.deleted = parked::missing(&client, name, &dead).await?;
            }
            if polls && any {
                found.oldest = parked::counts(&client, name).await?.oldest;
            }
            found.requests = parked::requests(&client, name).await?;
            Ok(found)
        }));
    }

    fn stored(&mut self, now: Duration, stored: &Stored, holders: &[Holder]) {
        match stored {
            Stored::Yes | Stored::Except(_) => {
                let rows = self.records.is_writing_rows();
                failpoint(if rows { "parked_row_committed" } else { "mark_committed" });
                for row in self.records.stored() {
                    self.row_status.parked(row);
                }
                self.parking_written(now, stored, holders);
            }
            Stored::TakenOver => {
                log::row_taken(self, &CursorWrite::TakenOver);
                self.apply(now, Input::SlotTaken);
            }
        }
    }

    /// A write is committed. The rows that it has left out, and the sessions that have locked them, are logged until
    /// they are written.
    pub(super) fn parking_written(&mut self, now: Duration, stored: &Stored, holders: &[Holder]) {
        let left: &[Position] = match stored {
            Stored::Except(left) => left,
            Stored::Yes | Stored::TakenOver => &[],
        };
        self.apply(now, Input::ParkingWritten { locked: left });
        match self.relay.deferred_statuses() {
            0 => log::parked_rows_written(self),
            rows if !left.is_empty() => log::parked_rows_locked(self, rows, holders),
            _ => {}
        }
    }

    /// Applies the report of an event to the relay. A large event that the broker has refused is parked now, and all
    /// later ones continue.
    pub(super) fn reported(&mut self, now: Duration, ticket: Ticket, outcome: Outcome) {
        let large = self.records.large.take_if(|large| large.ticket == ticket);
        match (large, outcome) {
            (Some(large), Outcome::Rejected { scope: Scope::Event, reason })
                if reason.is_compressed() =>
            {
                self.large_refused(now, large, reason);
            }
            (_, outcome) => self.apply(now, Input::Report { ticket, outcome }),
        }
    }

    fn large_refused(&mut self, now: Duration, large: LargeInFlight, reason: Refusal) {
        let named = (large.record.topic.as_str(), large.event_id.as_str());
        let halt = Box::new(halts::refused_event(&self.spec, named, large.position, reason));
        self.metrics.failed(&large.event_type);
        self.row_status.not_published(large.ticket);
        let first = self.effects.len();
        let refused = Input::Refused { ticket: large.ticket, reason, halt };
        self.relay.apply(now, refused, &mut self.effects);
        let parked = |effect: &Effect| matches!(effect, Effect::Park { .. });
        let Some(at) = self.effects.iter().skip(first).position(parked) else { return };
        if let Effect::Park { ticket: _, entry, reason: _ } = self.effects.remove(first + at) {
            let row = Parked {
                entry,
                commit_time: large.commit_time,
                event_id: Some(large.event_id),
                event_type: Some(short(&large.event_type)),
                aggregate: Some(large.aggregate),
                record: large.record,
                error_code: Some(reason.code()),
                error: Some(reason.to_string()),
            };
            self.log.parked_total += 1;
            let row = push(&mut self.records.kept, row);
            self.log.parked.event_parked(&self.spec, row);
        }
    }

    /// Takes records that were read for attempts; `requested` are all that were requested.
    pub(super) fn fetched(
        &mut self,
        requested: &[WantedRecord],
        found: Vec<(Ticket, OwnedRecord)>,
    ) {
        for (ticket, record) in found {
            let wanted = self.records.attempts.iter_mut().find(|attempt| attempt.ticket == ticket);
            if let Some(attempt) = wanted {
                attempt.record = Some(record);
            }
        }
        let requested: HashSet<Ticket> = requested.iter().map(|wanted| wanted.ticket).collect();
        let gone = |attempt: &&PendingAttempt| {
            attempt.record.is_none() && requested.contains(&attempt.ticket)
        };
        let gone: Vec<Ticket> =
            self.records.attempts.iter().filter(gone).map(|attempt| attempt.ticket).collect();
        self.records.attempts.retain(|attempt| !gone.contains(&attempt.ticket));
        for ticket in gone {
            self.apply(self.now(), Input::RowMissing { ticket });
        }
    }

    /// Offers pending attempts to the sink. One answer of the broker about a destination decides all attempts that
    /// waited for it.
    pub(super) fn offer_attempts(&mut self, now: Duration) {
        let mut attempts = std::mem::take(&mut self.records.attempts);
        attempts.retain(|attempt| {
            let Some(record) = &attempt.record else { return true };
            let (ticket, since) = (attempt.ticket, attempt.since);
            let probes = attempt.purpose == Purpose::Probe;
            let answer = if probes {
                self.sink.probe(&record.topic, since)
            } else {
                record.lend(|record| match self.sink.enqueue_again(ticket, record, since) {
                    // Nothing of the aggregate is in flight, and its later events wait.
                    Err(NotTaken::Alone) => self.sink.enqueue_alone(ticket, record, Some(since)),
                    taken => taken,
                })
            };
            let outcome = match answer {
                Ok(()) if probes => {
                    self.apply(now, Input::Probed { ticket });
                    return false;
                }
                Ok(()) => {
                    self.destinations.took(&record.topic);
                    return false;
                }
                Err(NotTaken::Full | NotTaken::Alone) => return true,
                Err(NotTaken::Destination | NotTaken::Doubted(_))
                    if since.elapsed() < DESTINATION_WAIT_MAX =>
                {
                    return true;
                }
                Err(NotTaken::Destination | NotTaken::Doubted(_) | NotTaken::Missing) => {
                    NO_DESTINATION
                }
                Err(NotTaken::Unavailable) => {
                    if attempt.purpose != Purpose::DeadLetter {
                        self.destinations.lost(&record.topic, now);
                    }
                    NO_DESTINATION
                }
                Err(NotTaken::Refused(reason)) => Outcome::Rejected { scope: Scope::Event, reason },
            };
            self.apply(now, Input::Report { ticket, outcome });
            false
        });
        // What the relay has requested meanwhile comes after these.
        attempts.append(&mut self.records.attempts);
        self.records.attempts = attempts;
    }
}

/// The requests that were made before a start.
pub(super) fn requests(loaded: &[Loaded]) -> Vec<(Position, Request)> {
    loaded.iter().filter_map(|row| Some((row.entry.position, row.request?))).collect()
}

/// The records of parked events: those whose rows are not committed yet, and those that are being retried. The relay
/// decides which records are kept, written and retried. The kept ones are limited by the relay's intake, the retried
/// ones by [`fetch`](crate::postgres::store::parked::fetch) and by the number of attempts.
#[derive(Debug, Default)]
pub(super) struct RecordBuffer {
    /// Rows to be written, in the relay's order.
    kept: VecDeque<Parked>,
    /// An event that was sent to find out whether the broker accepts one of its size. Nothing else is in flight then,
    /// so there is at most one.
    large: Option<LargeInFlight>,
    /// Rows that are being written; they come before `kept`.
    writing: Arc<Vec<Parked>>,
    /// Attempts that the sink has not accepted yet.
    attempts: VecDeque<PendingAttempt>,
    /// Failures go into the outbox table itself (polling), so only a certain refusal may become a failure.
    pub(super) failures_stay: bool,
    /// How long the oldest event has been parked, by the last query; `None` while a slot monitor queries that.
    pub(super) oldest: Option<Duration>,
}

/// A large event in flight. If the broker refuses it, its record is taken from here.
#[derive(Debug)]
struct LargeInFlight {
    /// Its ticket.
    ticket: Ticket,
    /// Its position.
    position: Position,
    /// Its commit time.
    commit_time: Timestamp,
    /// Its ID.
    event_id: String,
    /// Its type.
    event_type: String,
    /// Type and ID of its aggregate.
    aggregate: (String, String),
    /// Its record.
    record: OwnedRecord,
}

/// An attempt that is not passed to the sink yet.
#[derive(Debug)]
pub(super) struct PendingAttempt {
    /// Its ticket.
    ticket: Ticket,
    /// Position of the parked event.
    position: Position,
    /// `None` until it is read from the table.
    record: Option<OwnedRecord>,
    /// When the attempt was requested. Earlier answers about its destination do not count, because the attempt may have
    /// been requested after the destination was fixed.
    since: std::time::Instant,
    /// What the attempt is for.
    purpose: Purpose,
}

/// The purpose of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// Publish the event.
    Publish,
    /// Find out whether its destination exists.
    Probe,
    /// Send the event to the dead-letter topic.
    DeadLetter,
}

/// A record that has to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRecord {
    /// Ticket of the attempt.
    pub(super) ticket: Ticket,
    /// Position of the parked event.
    pub(super) position: Position,
    /// Read the record as it goes to the dead-letter topic.
    pub(super) dead_letter: bool,
}

impl RecordBuffer {
    /// Discards everything that is kept or pending.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.large = None;
        self.writing = Arc::default();
        self.attempts.clear();
    }

    /// Takes the first `count` rows, to be written. Rows of an earlier write that were not [`stored`](Self::stored) are
    /// among them again.
    pub(super) fn take_rows(&mut self, count: usize) -> Arc<Vec<Parked>> {
        let before = std::mem::take(&mut self.writing);
        let before = Arc::try_unwrap(before).unwrap_or_else(|shared| shared.as_ref().clone());
        for row in before.into_iter().rev() {
            self.kept.push_front(row);
        }
        assert!(count <= self.kept.len(), "{count} rows to write, {} are kept", self.kept.len());
        self.writing = Arc::new(self.kept.drain(..count).collect());
        Arc::clone(&self.writing)
    }

    /// The rows that are being written.
    pub(super) fn rows_being_written(&self) -> Arc<Vec<Parked>> {
        Arc::clone(&self.writing)
    }

    /// Whether new rows are being written, and not only status changes.
    pub(super) fn is_writing_rows(&self) -> bool {
        !self.writing.is_empty()
    }

    /// The rows that were being written are committed; returns the events that have an ID.
    pub(super) fn stored(&mut self) -> Vec<Option<AheadOfCursor>> {
        let rows = std::mem::take(&mut self.writing);
        let stored = |row: &Parked| {
            Some(AheadOfCursor {
                position: row.entry.position,
                id: row.event_id.clone()?,
                commit_time: row.commit_time,
                timestamp_ms: row.record.timestamp_ms,
            })
        };
        rows.iter().map(stored).collect()
    }

    pub(super) fn add_attempt(&mut self, ticket: Ticket, position: Position) {
        self.push(ticket, position, Purpose::Publish);
    }

    pub(super) fn add_probe(&mut self, ticket: Ticket, position: Position) {
        self.push(ticket, position, Purpose::Probe);
    }

    pub(super) fn add_dead_letter(&mut self, ticket: Ticket, position: Position) {
        self.push(ticket, position, Purpose::DeadLetter);
    }

    fn push(&mut self, ticket: Ticket, position: Position, purpose: Purpose) {
        let (record, since) = (None, std::time::Instant::now());
        self.attempts.push_back(PendingAttempt { ticket, position, record, since, purpose });
    }

    /// Whether an event that may not fit its destination is parked until that is known, so that only its aggregate
    /// waits. If a refusal would have lasting effects, everything waits for the destination's answer instead.
    pub(super) fn parks_doubted(&self, on_poison: OnPoison) -> bool {
        on_poison == OnPoison::BlockKey && !self.failures_stay
    }

    /// Whether attempts wait for the sink, or for their records.
    pub(super) fn has_attempts(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// Whether records have to be read.
    pub(super) fn wants_records(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.record.is_none())
    }

    /// Bytes of payloads that were read and wait for the sink.
    pub(super) fn bytes_pending(&self) -> usize {
        let records = self.attempts.iter().filter_map(|attempt| attempt.record.as_ref());
        records.filter_map(|record| record.value.as_ref()).map(Vec::len).sum()
    }

    /// The records that have to be read.
    pub(super) fn missing(&self) -> Vec<WantedRecord> {
        let missing = self.attempts.iter().filter(|attempt| attempt.record.is_none());
        missing
            .map(|&PendingAttempt { ticket, position, purpose, .. }| {
                let dead_letter = purpose == Purpose::DeadLetter;
                WantedRecord { ticket, position, dead_letter }
            })
            .collect()
    }

    /// Keeps the record of a large event until the broker has answered.
    pub(super) fn keep_large(&mut self, ticket: Ticket, mapped: &Mapped<'_>, at: At) {
        let Aggregate { kind, id } = mapped.aggregate;
        self.large = Some(LargeInFlight {
            ticket,
            position: at.position,
            commit_time: at.commit_time,
            event_id: mapped.event_id.to_owned(),
            event_type: mapped.event_type.to_owned(),
            aggregate: (kind.to_owned(), id.to_owned()),
            record: OwnedRecord::of(&mapped.record()),
        });
    }

    /// Keeps the record of an event that is parked although it was not refused.
    pub(super) fn keep(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) {
        self.kept.push_back(parked(entry, mapped, at.commit_time));
    }

    /// Keeps the record of an event that the sink refuses, or, without a reason, whose destination accepts no records.
    pub(super) fn keep_refused(
        &mut self,
        entry: Entry,
        mapped: &Mapped<'_>,
        at: At,
        reason: Option<Refusal>,
    ) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(reason.map_or("destination", Refusal::code));
        let unavailable = || {
            "the topic accepts no records: it does not exist, or Postrider's user may not write to it".to_owned()
        };
        row.error = Some(reason.map_or_else(unavailable, |reason| reason.to_string()));
        push(&mut self.kept, row)
    }

    /// Keeps the record of an event that the sink did not take, because its topic does not exist (`missing`), or for
    /// the reason `refused`.
    pub(super) fn keep_unsent(
        &mut self,
        entry: Entry,
        mapped: &Mapped<'_>,
        at: At,
        (missing, refused): (bool, Option<Refusal>),
    ) -> &Parked {
        if missing {
            self.keep_missing(entry, mapped, at)
        } else {
            self.keep_refused(entry, mapped, at, refused)
        }
    }

    /// Keeps the record of an event whose topic does not exist.
    fn keep_missing(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some("topic_missing");
        row.error = Some(
            if has_empty_part(mapped.record().topic) {
                "the topic does not exist, or Postrider's user may not write to it; a part of its name is empty: a \
                 field of route.topic is empty in this row"
            } else {
                "the topic does not exist, or Postrider's user may not write to it: the event is published \
                 automatically once the topic accepts records"
            }
            .to_owned(),
        );
        push(&mut self.kept, row)
    }

    /// Keeps the record of an event that may be another one than the parked event with its ID.
    pub(super) fn keep_doubted(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(ID_USED_BEFORE);
        row.error = Some(DOUBT.to_owned());
        push(&mut self.kept, row)
    }

    /// Keeps what is known of an event of which no record can be made.
    pub(super) fn keep_poison(
        &mut self,
        entry: Entry,
        poison: &Poison,
        commit_time: Timestamp,
    ) -> &Parked {
        push(
            &mut self.kept,
            Parked {
                entry,
                commit_time,
                event_id: poison.partial.event_id.clone(),
                event_type: poison.partial.event_type.as_deref().map(short),
                aggregate: poison.partial.aggregate.clone(),
                record: poison.partial.record.clone(),
                error_code: Some(poison.problem.code()),
                error: Some(poison.problem.to_string()),
            },
        )
    }
}

fn parked(entry: Entry, mapped: &Mapped<'_>, commit_time: Timestamp) -> Parked {
    Parked {
        entry,
        commit_time,
        event_id: Some(mapped.event_id.to_owned()),
        event_type: Some(short(mapped.event_type)),
        aggregate: Some((mapped.aggregate.kind.to_owned(), mapped.aggregate.id.to_owned())),
        record: OwnedRecord::of(&mapped.record()),
        error_code: None,
        error: None,
    }
}

fn push(kept: &mut VecDeque<Parked>, row: Parked) -> &Parked {
    kept.push_back(row);
    kept.back().unwrap_or_else(|| unreachable!("it was pushed"))
}

fn short(name: &str) -> String {
    name.chars().take(TYPE_CHARS_MAX).collect()
}
