//! Statements on the parked table, as jobs beside the stream: the write, the records of tries, people's requests.

use super::failpoint::failpoint;
use super::former_owner::FormerOwner;
use super::lifecycle::Pipeline;
use super::requeue::{DOUBT, ID_USED_BEFORE};
use super::slot_monitor::{KEPT, PRUNE_INTERVAL};
use super::spec::Mode;
use super::stream::{StoreJob, await_job};
use super::timer::Timer;
use super::{halts, log};
use crate::event::{Aggregate, PgTime, Position};
use crate::lsn::Lsn;
use crate::outbox::{At, Mapped, Poison, of_retried};
use crate::parked::{Entry, Mark, Parked, Request};
use crate::postgres::SourceError;
use crate::postgres::control::{Control, Notifications};
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::locks::Holder;
use crate::postgres::store::cursor::{Settled, Written};
use crate::postgres::store::parked::{self, Loaded, NotPassed, Stored};
use crate::record::{Outcome, OwnedRecord, Refusal, Scope, Ticket, has_empty_part};
use crate::relay::{Effect, Input, OnPoison};
use crate::sink::NotTaken;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two looks for requests: a notification that got lost costs no more than this.
const REQUESTS_INTERVAL: Duration = Duration::from_secs(5);

/// Payloads that are read for tries and not handed over yet: no more are read then. Parked events are the large ones.
const ATTEMPTS_BYTES_MAX: u32 = 16 << 20;

/// Pause before a write is made again that met a row which another session has locked.
const LOCKED_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two looks at who holds locks on rows that could not be written.
const LOCKERS_INTERVAL: Duration = Duration::from_secs(5);

/// What became of a write, and who has locked what it did not get, where that was looked for.
pub(super) struct ParkedWrite {
    /// The error where nothing was written, and the same write may succeed later on this connection.
    stored: Result<Stored, SourceError>,
    holders: Vec<Holder>,
}

/// What was asked for, and the records that were there.
type Fetched = (Vec<WantedRecord>, Vec<(Ticket, OwnedRecord)>);

/// Dead events whose rows are looked for at once.
const DEAD_MAX: usize = 10_000;

/// What people did to the table.
#[derive(Default)]
pub(super) struct FoundRequests {
    requests: Vec<(Position, Request)>,
    /// Dead events whose rows were deleted.
    deleted: Vec<Position>,
    /// How long the oldest has been parked, where nothing else looks.
    oldest: Option<Duration>,
}

/// The control connection, our right to write on it, and what is under way.
pub(super) struct StoreSession {
    pub(super) control: Control,
    /// Another process that takes over raises it.
    pub(super) epoch: i64,
    /// The owner before us.
    pub(super) former: FormerOwner,
    /// Which histories positions belong to, committed to the cursor row.
    pub(super) histories: Settled,
    pub(super) jobs: StoreJobs,
    /// Another process has raised the epoch: nothing is stored any more.
    pub(super) overruled: bool,
}

impl StoreSession {
    pub(super) fn new(
        control: Control,
        (former, epoch): (FormerOwner, i64),
        histories: Settled,
    ) -> Self {
        Self { control, epoch, former, histories, jobs: StoreJobs::default(), overruled: false }
    }
}

/// What is under way.
pub(super) struct StoreJobs {
    writing: Option<StoreJob<ParkedWrite>>,
    writing_since: Instant,
    /// The changes to rows of that write.
    marks: Arc<[Mark]>,
    /// When it was last found out who has locked rows.
    lockers_at: Option<Instant>,
    /// The claim, not committed, in which rows stand that the relay takes for written: here they can't be seen yet,
    /// which does not mean that somebody has deleted them.
    pub(super) unseen: Option<Lsn>,
    fetching: Option<StoreJob<Fetched>>,
    requesting: Option<StoreJob<FoundRequests>>,
    /// When requests are looked for, though nobody has said that there are any.
    requests_at: Instant,
    timer: Timer,
    prune_at: Instant,
}

/// What came of one.
pub(super) enum StoreEvent {
    Written(Result<ParkedWrite, SourceError>),
    Fetched(Result<Fetched, SourceError>),
    Requests(Result<FoundRequests, SourceError>),
    /// It is time to look for requests.
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
    /// Whether it is time to find out who has locked rows.
    pub(super) fn lockers_are_due(&self) -> bool {
        self.lockers_at.is_none_or(|at| at.elapsed() >= LOCKERS_INTERVAL)
    }

    /// When the write began that is under way.
    pub(super) fn written_since(&self) -> Option<Instant> {
        self.writing.as_ref().map(|_| self.writing_since)
    }

    /// Waits until all that is under way has its answer, and keeps the answers for [`next`](Self::next).
    ///
    /// To be awaited before anything else is asked on this session and waited for: its answers come in order, and one
    /// that nobody takes holds up those behind it (the client's buffer has a few messages of each).
    pub(super) async fn finish(&mut self) {
        let Self { writing, fetching, requesting, .. } = self;
        tokio::join!(finished(writing), finished(fetching), finished(requesting));
    }

    /// Waits for whatever comes first. Cancel-safe.
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
    /// Commits rows and marks, fenced by our epoch.
    pub(super) fn write_parking(
        &mut self,
        store: &mut StoreSession,
        rows: usize,
        marks: Vec<Mark>,
    ) {
        assert!(store.jobs.writing.is_none(), "two writes of parked events at once");
        failpoint(if rows > 0 { "parked_row_due" } else { "mark_due" });
        self.log.parked.states_changed(self.spec.name(), &marks);
        drop(self.record_buffer.take_rows(rows));
        store.jobs.marks = marks.into();
        store.jobs.writing_since = Instant::now();
        self.write(store, Duration::ZERO);
    }

    /// Makes the write that is due, after this pause.
    fn write(&self, store: &mut StoreSession, pause: Duration) {
        let (client, spec) = (store.control.shared_client(), Arc::clone(&self.spec));
        let (rows, marks, epoch) =
            (self.record_buffer.rows_being_written(), Arc::clone(&store.jobs.marks), store.epoch);
        let finds_lockers = store.jobs.lockers_are_due();
        store.jobs.writing = Some(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let name = spec.name();
            let stored = match parked::write(&client, name, epoch, &rows, &marks).await {
                Err(error) if !is_passing(&error) => return Err(error),
                stored => stored,
            };
            let holders = match &stored {
                // Such an error has taken longer than the pause between two looks.
                Err(_) => parked::table_lockers(&client, name).await,
                Ok(Stored::Except(left)) if finds_lockers => {
                    parked::lockers(&client, name, left).await
                }
                Ok(_) => Ok(Vec::new()),
            };
            // For people: a look that fails must not fail the write.
            Ok(ParkedWrite { stored, holders: holders.unwrap_or_default() })
        }));
    }

    /// Reads the records that are to be tried and are not here.
    pub(super) fn fetch_records(&self, store: &mut StoreSession) {
        let full = self.record_buffer.bytes_pending() >= ATTEMPTS_BYTES_MAX as usize;
        if store.jobs.fetching.is_some() || full || !self.record_buffer.wants_records() {
            return;
        }
        let mut wanted = self.record_buffer.missing();
        wanted.retain(|wanted| Some(wanted.position.commit_lsn) != store.jobs.unseen);
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
                // What did not fit is asked for again: it is not gone.
                let values = records.iter().filter_map(|fetched| fetched.record.value.as_ref());
                if values.map(Vec::len).sum::<usize>() >= ATTEMPTS_BYTES_MAX as usize {
                    let last = records.last().map(|fetched| fetched.position);
                    wanted.retain(|wanted| wanted.dead_letter || Some(wanted.position) <= last);
                }
                found.extend(records.into_iter().map(|fetched| {
                    let parked::Fetched { position, mut record, keeps_order } = fetched;
                    if positioned {
                        of_retried(&mut record, keeps_order, &histories);
                    }
                    (attempts[&position], record)
                }));
            }
            if let Some(topic) = spec.dead_topic.as_deref().filter(|_| !dead_letters.is_empty()) {
                let positions: Vec<Position> = dead_letters.keys().copied().collect();
                let records =
                    parked::fetch_letters(&client, spec.name(), &positions, topic).await?;
                found.extend(records.into_iter().map(|(at, record)| (dead_letters[&at], record)));
            }
            Ok((wanted, found))
        }));
    }

    /// Goes on with what a start has found in the table: letters that were not sent.
    pub(super) fn resume_dead_letters(&mut self, loaded: &[Loaded]) {
        for row in loaded.iter().filter(|row| row.dead_unsent) {
            self.apply(self.now(), Input::DeadLetterUnsent { position: row.entry.position });
        }
    }

    /// Takes what came of a job. An error is the connection's.
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
                    // Somebody has locked the table or the cursor row. Nothing was written; the stream goes on.
                    Err(error) => {
                        log::parked_rows_wait(self, &error, &holders);
                        self.write(store, LOCKED_PAUSE);
                    }
                }
            }
            StoreEvent::Fetched(Err(error)) if is_passing(&error) => {
                // They are asked for again with the next effects.
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
                // No event waits for them: they are looked for again when they are due.
                jobs.requesting = None;
                log::look_failed(self, &error);
            }
            StoreEvent::Requests(found) => {
                jobs.requesting = None;
                let FoundRequests { requests, deleted, oldest } = found?;
                self.record_buffer.oldest = oldest;
                for position in deleted {
                    self.apply(now, Input::DeadRowDeleted { position });
                }
                for (position, request) in requests {
                    // Of one that is to come again: its row keeps the request until then.
                    if self.requeued.holds(position) {
                        continue;
                    }
                    self.apply(now, Input::Request { position, request });
                }
            }
        }
        Ok(())
    }

    /// Looks for what people did to the table; where the outbox is polled, also what a stream's looks would see to.
    fn find_requests(&self, store: &mut StoreSession) {
        let (client, spec) = (store.control.shared_client(), Arc::clone(&self.spec));
        let unseen = store.jobs.unseen;
        let mut dead = self.relay.dead(DEAD_MAX);
        dead.retain(|position| Some(position.commit_lsn) != unseen);
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
                parked::prune(&client, name, Lsn::from_wire(u64::MAX), KEPT).await?;
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
                let rows = self.record_buffer.is_writing_rows();
                failpoint(if rows { "parked_row_committed" } else { "mark_committed" });
                for row in self.record_buffer.stored() {
                    self.row_status.parked(row);
                }
                self.parking_written(now, stored, holders);
            }
            Stored::TakenOver => {
                log::row_taken(self, &Written::TakenOver);
                self.apply(now, Input::SlotTaken);
            }
        }
    }
}

impl Pipeline {
    /// A write is committed; which rows it has left out, and who has locked them, is reported until they are written.
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
}

/// What persons asked for before a start.
pub(super) fn requests(loaded: &[Loaded]) -> Vec<(Position, Request)> {
    loaded.iter().filter_map(|row| Some((row.entry.position, row.request?))).collect()
}

// The records of parked events: those whose rows are not committed yet, and those that are being tried again.
//
// The relay decides what is kept, written and tried; this holds the bytes meanwhile. What is kept is bounded by the
// relay's intake, what is tried by [`fetch`](crate::postgres::store::parked::fetch) and the number of tries.

/// How long a try may wait for its destination before it is put off.
const DESTINATION_WAIT_MAX: Duration = Duration::from_secs(10);

/// The outcome of an attempt whose topic is missing or takes no records. The reason is a placeholder, which is never
/// reported.
const NO_DESTINATION: Outcome =
    Outcome::Rejected { scope: Scope::Destination, reason: Refusal::TopicName };

/// Characters of an event's type that a row keeps: it is shown, and nothing is found by it. The id is kept whole, since
/// marks, retries and rows of the outbox are found by it.
const TYPE_CHARS_MAX: usize = 400;

/// What the shelf holds.
#[derive(Debug, Default)]
pub(super) struct RecordBuffer {
    /// Rows to be written, in the relay's order.
    kept: VecDeque<Parked>,
    /// An event that was sent to find out whether the broker takes one of its size. Nothing else is in flight then, so
    /// there is one of them at most.
    large: Option<LargeInFlight>,
    /// Rows that are being written, before those.
    writing: Arc<Vec<Parked>>,
    /// Tries that the sink has not taken yet.
    attempts: VecDeque<PendingAttempt>,
    /// Failures go into the outbox table itself (polling): only what is sure may become one.
    pub(super) failures_stay: bool,
    /// How long the oldest event has been parked, as the last look had it; `None` where a stream's own looks say so.
    pub(super) oldest: Option<Duration>,
}

/// A large event that is in flight. Where it is refused, its record comes from here.
#[derive(Debug)]
struct LargeInFlight {
    ticket: Ticket,
    position: Position,
    commit_time: PgTime,
    event_id: String,
    event_type: String,
    aggregate: (String, String),
    record: OwnedRecord,
}

/// One try on its way to the sink.
#[derive(Debug)]
pub(super) struct PendingAttempt {
    ticket: Ticket,
    position: Position,
    /// `None` until it is read from the table.
    record: Option<OwnedRecord>,
    /// When it was asked for: what was heard of its destination before that refuses nothing, for it may be tried
    /// because somebody has just mended it.
    since: std::time::Instant,
    purpose: Purpose,
}

/// What is wanted of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// To be published.
    Publish,
    /// Whether its destination is known.
    Probe,
    /// To go to the dead-letter topic.
    DeadLetter,
}

/// A record that has to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRecord {
    pub(super) ticket: Ticket,
    pub(super) position: Position,
    /// As it goes to the dead-letter topic.
    pub(super) dead_letter: bool,
}

impl RecordBuffer {
    /// Nothing that was kept or tried counts any more.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.large = None;
        self.writing = Arc::default();
        self.attempts.clear();
    }

    /// The first `count` rows, to be written. What was being written before and was not [`stored`](Self::stored) is
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

    /// Those that are being written.
    pub(super) fn rows_being_written(&self) -> Arc<Vec<Parked>> {
        Arc::clone(&self.writing)
    }

    /// Whether new rows are being written, and not marks alone.
    pub(super) fn is_writing_rows(&self) -> bool {
        !self.writing.is_empty()
    }

    /// What was being written is committed; gives the events that have an id.
    pub(super) fn stored(&mut self) -> Vec<Option<NotPassed>> {
        let rows = std::mem::take(&mut self.writing);
        let stored = |row: &Parked| {
            Some(NotPassed {
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

    /// Whether an event that may not fit its destination is set aside until that is known, and nobody but its aggregate
    /// waits. Where a refusal would end more than a try, everything waits for the destination's answer.
    pub(super) fn parks_doubted(&self, on_poison: OnPoison) -> bool {
        on_poison == OnPoison::BlockKey && !self.failures_stay
    }

    /// Whether tries wait for the sink, or for their records.
    pub(super) fn has_attempts(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// Whether records have to be read.
    pub(super) fn wants_records(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.record.is_none())
    }

    /// Payloads that were read and wait for the sink.
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
}

impl RecordBuffer {
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

    /// Keeps the record of an event that is set aside although nothing is wrong with it.
    pub(super) fn keep(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) {
        self.kept.push_back(parked(entry, mapped, at.commit_time));
    }

    /// Keeps the record of an event that the sink will not take, or, without a reason, whose destination takes none.
    pub(super) fn keep_refused(
        &mut self,
        entry: Entry,
        mapped: &Mapped<'_>,
        at: At,
        reason: Option<Refusal>,
    ) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(reason.map_or("destination", Refusal::code));
        let unavailable =
            || "the topic takes no records: it is missing, or not open to us".to_owned();
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

    /// Keeps the record of an event whose topic nobody has made.
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

    /// Keeps the record of an event that may be another one than its id says.
    pub(super) fn keep_doubted(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(ID_USED_BEFORE);
        row.error = Some(DOUBT.to_owned());
        push(&mut self.kept, row)
    }

    /// Keeps what is known of an event that can't be made a record.
    pub(super) fn keep_poison(
        &mut self,
        entry: Entry,
        poison: &Poison,
        commit_time: PgTime,
    ) -> &Parked {
        push(
            &mut self.kept,
            Parked {
                entry,
                commit_time,
                event_id: poison.remains.event_id.clone(),
                event_type: poison.remains.event_type.as_deref().map(short),
                aggregate: poison.remains.aggregate.clone(),
                record: poison.remains.record.clone(),
                error_code: Some(poison.problem.code()),
                error: Some(poison.problem.to_string()),
            },
        )
    }
}

impl Pipeline {
    /// Hands the relay what became of an event. A large one that the broker has refused is parked now, and all that is
    /// behind it goes on.
    pub(super) fn reported(&mut self, now: Duration, ticket: Ticket, outcome: Outcome) {
        let large = self.record_buffer.large.take_if(|large| large.ticket == ticket);
        match (large, outcome) {
            (
                Some(large),
                Outcome::Rejected {
                    scope: Scope::Event,
                    reason: reason @ Refusal::TooLargeCompressed { .. },
                },
            ) => self.large_refused(now, large, reason),
            (_, outcome) => self.apply(now, Input::Report { ticket, outcome }),
        }
    }

    fn large_refused(&mut self, now: Duration, large: LargeInFlight, reason: Refusal) {
        let named = (large.record.topic.as_str(), large.event_id.as_str());
        let halt = Box::new(halts::refused_event(named, large.position, reason));
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
            let row = push(&mut self.record_buffer.kept, row);
            self.log.parked.event_parked(&self.spec, row);
        }
    }

    /// Takes the records that were read for tries; `asked` are all that were asked for.
    pub(super) fn fetched(
        &mut self,
        requested: &[WantedRecord],
        found: Vec<(Ticket, OwnedRecord)>,
    ) {
        for (ticket, record) in found {
            let wanted =
                self.record_buffer.attempts.iter_mut().find(|attempt| attempt.ticket == ticket);
            if let Some(attempt) = wanted {
                attempt.record = Some(record);
            }
        }
        let requested: HashSet<Ticket> = requested.iter().map(|wanted| wanted.ticket).collect();
        let gone = |attempt: &&PendingAttempt| {
            attempt.record.is_none() && requested.contains(&attempt.ticket)
        };
        let gone: Vec<Ticket> =
            self.record_buffer.attempts.iter().filter(gone).map(|attempt| attempt.ticket).collect();
        self.record_buffer.attempts.retain(|attempt| !gone.contains(&attempt.ticket));
        for ticket in gone {
            self.apply(self.now(), Input::RowMissing { ticket });
        }
    }

    /// Offers the sink what is to be tried. One answer of the broker about a destination decides all that waited for
    /// it.
    pub(super) fn offer_attempts(&mut self, now: Duration) {
        let mut attempts = std::mem::take(&mut self.record_buffer.attempts);
        attempts.retain(|attempt| {
            let Some(record) = &attempt.record else { return true };
            let (ticket, since) = (attempt.ticket, attempt.since);
            let probes = attempt.purpose == Purpose::Probe;
            let answer = if probes {
                self.sink.sound(&record.topic, since)
            } else {
                record.lend(|record| match self.sink.enqueue_again(ticket, record, since) {
                    // Nothing of its aggregate is in flight, and what is behind it waits.
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
        // What the relay has asked for meanwhile stands behind.
        attempts.append(&mut self.record_buffer.attempts);
        self.record_buffer.attempts = attempts;
    }
}

fn parked(entry: Entry, mapped: &Mapped<'_>, commit_time: PgTime) -> Parked {
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
