//! A stream from its start to its end: takes one input at a time, and performs the effects of the relay in order.

use super::connect::Connected;
use super::failpoint::failpoint;
use super::feed::{Fed, Feeding};
use super::history::ServerHistory;
use super::lifecycle::{Pipeline, Waited};
use super::parked::{StoreEvent, StoreJobs, StoreSession, requests};
use super::row_status::{RowStatusBatch, RowStatusOutcome};
use super::service::{PipelineExit, Stop};
use super::slot_monitor::{PublicationState, SlotMonitor, SlotStatus};
use super::spec::PipelineSpec;
use super::timer::Timer;
use super::{former_owner, log};
use crate::ack::Progress;
use crate::error::Halt;
use crate::offset::Watermark;
use crate::parked::Entry;
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::store::cursor::{self, Cursor, CursorWrite};
use crate::postgres::stream::WalStream;
use crate::postgres::wire::{confirmable, from_wire};
use crate::postgres::{Batch, Decoder, SourceError, SourceErrorKind, catalog};
use crate::relay::{Effect, Input};
use crate::row::TableId;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Under load there is always something to read, and the loop would never wait. At this interval it yields, so that the
/// control connection, which is another task of this thread, and the timers make progress. To yield in each turn would
/// cost a system call each.
const YIELD_INTERVAL: Duration = Duration::from_millis(1);

/// How long a catalog query for the types of columns may take: nothing else is done meanwhile.
const TYPES_MAX: Duration = Duration::from_secs(10);

/// A statement that runs on the control connection.
pub(super) type StoreJob<T> = Pin<Box<dyn Future<Output = Result<T, SourceError>>>>;

/// How a stream ended.
pub(super) enum End {
    /// The pipeline has ended.
    Over(PipelineExit),
    /// The sink was reset: connect again.
    Restart,
    /// The connection is lost or unusable.
    Lost(SourceError, Phase),
    /// The slot retains more WAL than it may: it is dropped, and the table is polled.
    DropSlot(Box<Halt>),
}

/// The result of a cursor row, and of the marks before it.
pub(super) struct RowWritten {
    /// The result of the marks, if there were any.
    made: Option<RowStatusOutcome>,
    /// `None` if the row was not written, because it would pass an event without its mark.
    row: Option<CursorWrite>,
}

/// A stream and what is running on it.
pub(super) struct StreamSession {
    /// The connections.
    pub(super) connected: Connected,
    /// Makes changes of the frames of this connection.
    decoder: Decoder,
    /// The batch that is being fed.
    feeding: Option<Feeding>,
    /// A write of the cursor row.
    writing: Option<StoreJob<RowWritten>>,
    /// When it began.
    writing_since: Instant,
    /// Queries slot and publication.
    slot_monitor: SlotMonitor,
    /// When a drain is given up.
    leave_at: Option<Instant>,
    /// Wakes when something is due.
    timer: Timer,
    /// When the loop last yielded, by the relay's clock.
    yielded_at: Duration,
}

/// What happened first.
enum StreamEvent {
    Leave,
    Drain,
    Grace,
    Posts,
    Written(Result<RowWritten, SourceError>),
    Store(StoreEvent),
    SlotStatus(Result<Box<SlotStatus>, SourceError>),
    ControlLost(SourceError),
    Due,
    Batch(Result<Batch, SourceError>),
    Again,
}

impl StreamSession {
    /// `published`: the publication, as the previous stream knew it.
    fn new(
        connected: Connected,
        decoder: Decoder,
        spec: &Arc<PipelineSpec>,
        published: Option<PublicationState>,
    ) -> Self {
        let created = connected.resume.cursor.slot_created_lsn;
        let published = published.filter(|published| published.slot_created_lsn == created);
        let published = published.or_else(|| connected.publication.clone());
        let slot_monitor =
            SlotMonitor::new(connected.store.control.shared_client(), Arc::clone(spec), published);
        Self {
            connected,
            decoder,
            feeding: None,
            writing: None,
            writing_since: Instant::now(),
            slot_monitor,
            leave_at: None,
            timer: Timer::default(),
            yielded_at: Duration::ZERO,
        }
    }

    /// Queries the catalog for the types that the description of a table waits for. This happens with the first row of
    /// a connection, and with the first row after an ALTER TABLE.
    async fn add_types(&mut self) -> Result<(), SourceError> {
        let client = self.connected.store.control.client();
        let answer = catalog::read_types(client, self.decoder.unknown_types());
        let found = tokio::time::timeout(TYPES_MAX, answer).await.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(TYPES_MAX);
            Err(SourceError::new(kind, catalog::READ_TYPES).caused_by(elapsed))
        })?;
        self.decoder.add_types(&found);
        Ok(())
    }

    /// When the older one of the running writes began.
    fn written_since(&self) -> Option<Instant> {
        let row = self.writing.as_ref().map(|_| self.writing_since);
        [row, self.connected.store.jobs.written_since()].into_iter().flatten().min()
    }

    /// Passes the confirmation to the stream. After a reconnect the server repeats what is known already, and nothing
    /// may be confirmed on a stream that has not sent it.
    fn confirm(&self, watermark: Watermark) {
        if watermark.offset() <= from_wire(self.connected.wal.received()) {
            self.connected.wal.confirm(confirmable(watermark));
        }
    }

    /// Writes the marks that come before the row, then the row, unless it would pass an event whose mark has to wait.
    fn write(&mut self, row: Progress, marks: Option<RowStatusBatch>) {
        assert!(self.writing.is_none(), "two cursor rows at once");
        let resume = &self.connected.resume;
        let cursor = Cursor {
            watermark: row.watermark,
            flush_limit: row.watermark.offset(),
            partial: row.partial,
            owner_epoch: self.connected.store.epoch,
            ..resume.cursor.clone()
        };
        let client = self.connected.store.control.shared_client();
        let ledger = self.slot_monitor.ledger();
        self.writing_since = Instant::now();
        self.writing = Some(Box::pin(async move {
            let mut made = None;
            if let Some(batch) = marks {
                let done = batch.make(&client).await?;
                let held = batch.holds_back(&done, row.position());
                made = Some(done);
                if held {
                    return Ok(RowWritten { made, row: None });
                }
            }
            let row = Some(cursor::write(&client, &cursor, &ledger).await?);
            Ok(RowWritten { made, row })
        }));
    }
}

impl Pipeline {
    /// Streams until something ends it.
    pub(super) async fn stream(&mut self, mut connected: Connected, stop: &Stop) -> End {
        if let Err(halt) = self.reset_mapper(&connected.store, false) {
            return End::Over(PipelineExit::Halted(halt));
        }
        let Connected { wal, store, .. } = &mut connected;
        match Box::pin(former_owner::wait(self, store, wal.lost(), stop)).await {
            Waited::Done(Ok(true)) => {}
            Waited::Done(Ok(false)) => return End::Restart,
            Waited::Done(Err(error)) => return End::Lost(error, Phase::Stream),
            Waited::Over(exit) => return End::Over(exit),
        }
        let client = connected.store.control.shared_client();
        if let Err(error) = self.row_status.prepare(&client, self.spec.poll.table.as_ref()).await {
            return End::Lost(error, Phase::Control);
        }
        if let Err(error) = self.row_status.find_parked(&client, self.spec.name()).await {
            return End::Lost(error, Phase::Control);
        }
        let objects = self.spec.decoded_objects(&self.mapper);
        let decoder = Decoder::new(objects, connected.table_oid, connected.encoding);
        let mut session =
            StreamSession::new(connected, decoder, &self.spec, self.publication.take());
        self.begin(&session);
        let end = loop {
            if let Some(end) = self.turn(&mut session, stop).await {
                break end;
            }
        };
        self.publication = session.slot_monitor.publication().cloned();
        match end {
            End::Over(exit) => {
                // Pending jobs are dropped, so that their answers do not delay the statements below.
                session.connected.store.jobs = StoreJobs::default();
                if self.give_up_in_flight() {
                    former_owner::leave(self, &session.connected.store).await;
                }
                self.close_gracefully(session.connected).await;
                match self.row_status.owed() {
                    0 => {}
                    rows => log::marks_left(self, rows),
                }
                return End::Over(exit);
            }
            End::Restart | End::Lost(..) | End::DropSlot(_) => session.connected.wal.abandon(),
        }
        self.apply(self.now(), Input::SourceLost);
        match self.outcome() {
            Some(exit) => End::Over(exit),
            None => end,
        }
    }

    fn begin(&mut self, session: &StreamSession) {
        self.mapper.clear_tables(session.connected.table_oid.map(TableId));
        self.destinations.awaits(None);
        let cursor = session.connected.progress;
        let history = ServerHistory::of(&session.connected.resume.cursor);
        let same_history = self.history.replace(history.clone()) == Some(history);
        self.confirmed =
            if same_history { self.confirmed.max(cursor.watermark) } else { cursor.watermark };
        let loaded = &session.connected.parked;
        let entries: Vec<Entry> = loaded.iter().map(|row| row.entry).collect();
        let requests = requests(loaded);
        let owned = self.owned.replace(session.connected.store.epoch);
        let same_owner = owned == Some(session.connected.store.former.epoch);
        self.polled_ids
            .streams(session.connected.store.former.epoch, session.connected.store.epoch);
        let (parked, requests) = (entries.as_slice(), requests.as_slice());
        let started = Input::Started { cursor, same_history, same_owner, parked, requests };
        self.relay.apply(self.now(), started, &mut self.effects);
        self.resume_dead_letters(loaded);
        self.log.held_at = None;
        self.lag.connected(session.connected.past.wal_end, std::time::Instant::now());
        log::streaming(self, &session.connected.resume);
    }

    /// One turn of the loop: takes posts, performs effects, feeds what is read, then waits for the next input.
    async fn turn(&mut self, session: &mut StreamSession, stop: &Stop) -> Option<End> {
        let now = self.now();
        self.take_posts(now);
        if self.cluster.located {
            log::located(self);
            return Some(End::Restart);
        }
        self.offer_attempts(now);
        if let Some(end) = self.perform(session) {
            return Some(end);
        }
        let StreamSession { feeding, decoder, connected, .. } = session;
        let fed = self.feed_ready(now, decoder, feeding, || connected.wal.ready());
        // A sink that needs no broker has answered already, and another turn would cost more than taking its posts
        // here. If an attempt waits for an answer, that answer has to make the next turn.
        if fed == Fed::Whole && !self.records.has_attempts() {
            self.take_posts(now);
        }
        if let Some(end) = self.perform(session) {
            return Some(end);
        }
        self.report_slow_write(session.written_since());
        self.report_sometimes(Some(&session.slot_monitor));
        if now.saturating_sub(session.yielded_at) >= YIELD_INTERVAL {
            session.yielded_at = now;
            tokio::task::yield_now().await;
        }
        let blocked = fed == Fed::Blocked;
        if blocked && let Err(error) = session.add_types().await {
            return Some(End::Lost(error, Phase::Control));
        }
        let more = fed == Fed::Turn || blocked;
        let event = self.wait(session, stop, more).await;
        self.react(session, event)
    }

    async fn wait(&self, session: &mut StreamSession, stop: &Stop, more: bool) -> StreamEvent {
        let wants_batch = session.feeding.is_none() && !self.relay.stopping();
        // The end of the connection is noticed while the intake is closed too: the slot is free then, and what is in
        // flight may soon land after events of another owner. Not if only this turn is over: what was read before the
        // end is fed first.
        let full = session.feeding.is_some() && !more && !self.relay.stopping();
        let full = full || self.relay.halt_awaits_all();
        let due = self.due();
        let StreamSession { connected, writing, slot_monitor, leave_at, timer, .. } = session;
        let StoreSession { control, jobs, .. } = &mut connected.store;
        let notifications = control.notifications();
        let grace = leave_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = stop.leave() => StreamEvent::Leave,
            () = stop.drain(), if leave_at.is_none() => StreamEvent::Drain,
            () = tokio::time::sleep_until(grace), if leave_at.is_some() => StreamEvent::Grace,
            written = await_job(writing), if writing.is_some() => StreamEvent::Written(written),
            error = control.closed() => StreamEvent::ControlLost(error),
            event = jobs.next(&notifications) => StreamEvent::Store(event),
            status = slot_monitor.next() => StreamEvent::SlotStatus(status.map(Box::new)),
            () = self.mailbox.arrived() => StreamEvent::Posts,
            () = tokio::task::yield_now(), if more => StreamEvent::Again,
            batch = next_or_lost(&mut connected.wal, wants_batch), if wants_batch || full => StreamEvent::Batch(batch),
            // Last, because due work is checked in every turn and must not starve the other inputs.
            () = timer.at(due) => StreamEvent::Due,
        }
    }

    fn react(&mut self, session: &mut StreamSession, event: StreamEvent) -> Option<End> {
        let now = self.now();
        match event {
            StreamEvent::Leave | StreamEvent::Grace => {
                log::shutdown_incomplete(self);
                // A halt that was waiting for reports is still a halt.
                self.apply(now, Input::SourceLost);
                return Some(End::Over(self.outcome().unwrap_or(PipelineExit::Stopped)));
            }
            StreamEvent::Drain => {
                session.leave_at = Some(Instant::now() + self.spec.shutdown_grace);
                log::draining(self);
                self.apply(now, Input::Drain);
            }
            StreamEvent::Posts | StreamEvent::Again => {}
            StreamEvent::Due => self.apply(now, Input::Tick),
            StreamEvent::Written(Ok(written)) => {
                session.writing = None;
                self.row_written(now, written);
            }
            StreamEvent::Written(Err(error)) => {
                session.writing = None;
                match error_policy::action(&error, Phase::Control, true) {
                    // The stream continues, and the row is written later.
                    Action::Later(_) => {
                        log::row_waits(self, &error);
                        self.apply(now, Input::CursorDeferred);
                    }
                    Action::Reconnect(_)
                    | Action::StandBy
                    | Action::Recheck(_)
                    | Action::Halt(_) => return Some(End::Lost(error, Phase::Control)),
                }
            }
            StreamEvent::Store(event) => {
                if let Err(error) = self.store_event(&mut session.connected.store, event) {
                    return Some(End::Lost(error, Phase::Control));
                }
            }
            StreamEvent::Batch(Err(error)) if error.is_of_a_message() => {
                self.halt_behind(now, error);
            }
            // The server stops, or has ended this session. Without the row nothing can be confirmed, so there is no
            // reason to keep the stream, and an open stream would delay the server's shutdown.
            StreamEvent::ControlLost(error) => return Some(End::Lost(error, Phase::Control)),
            StreamEvent::Batch(Err(error)) => return Some(End::Lost(error, Phase::Stream)),
            StreamEvent::SlotStatus(Ok(status)) => {
                let received = self.relay.received();
                self.lag.wal_end_seen(status.wal_end, received, std::time::Instant::now());
                self.report_standby_wait(status.waits_for_standby);
                let spent = status.retained().filter(|_| !self.relay.stopping());
                if let Some(halt) = spent.and_then(|retained| self.check_wal_retention(retained)) {
                    let halt = Box::new(halt);
                    if self.spec.polls_instead_of_slot() {
                        return Some(End::DropSlot(halt));
                    }
                    // What is in flight may wait for the broker.
                    session.leave_at = Some(Instant::now() + self.spec.shutdown_grace);
                    self.apply(now, Input::Halt(halt));
                }
                if let Some(halt) = session.slot_monitor.keep(*status) {
                    self.apply(now, Input::Halt(Box::new(halt)));
                }
            }
            StreamEvent::SlotStatus(Err(error)) if error.sqlstate().is_none() => {
                return Some(End::Lost(error, Phase::Control));
            }
            StreamEvent::SlotStatus(Err(error)) => log::look_failed(self, &error),
            StreamEvent::Batch(Ok(batch)) => {
                self.lag.answered(std::time::Instant::now());
                session.feeding = Some(Feeding { batch, place: 0 });
            }
        }
        self.perform(session)
    }

    /// Handles the result of a cursor row.
    fn row_written(&mut self, now: Duration, RowWritten { made, row }: RowWritten) {
        if let Some(made) = &made {
            self.marks_made(made);
        }
        let input = match row {
            Some(CursorWrite::Stored) => {
                failpoint("cursor_committed");
                log::row_goes_on(self);
                Input::CursorWritten
            }
            // Another process wrote the row, so the slot belongs to that process.
            Some(taken) => {
                log::row_taken(self, &taken);
                Input::SlotTaken
            }
            None => Input::CursorDeferred,
        };
        self.apply(now, input);
    }

    /// Handles the result of marks, and logs those that wait.
    pub(super) fn marks_made(&mut self, made: &RowStatusOutcome) {
        let (waiting, given_up) = self.row_status.made(made);
        match (waiting, &made.failed) {
            (None, _) => log::marks_made(self),
            (Some(waiting), Some(error)) => log::marks_failed(self, &waiting, error, given_up),
            (Some(waiting), None) => log::marks_wait(self, &waiting, given_up),
        }
    }

    /// Performs the relay's effects, in order.
    fn perform(&mut self, session: &mut StreamSession) -> Option<End> {
        let mut effects = std::mem::take(&mut self.effects);
        let mut end = None;
        for effect in effects.drain(..) {
            match effect {
                Effect::Publish(_) | Effect::Park { .. } => {}
                Effect::WriteParking { rows, statuses } => {
                    self.write_parking(&mut session.connected.store, rows, statuses);
                }
                Effect::Attempt { ticket, position } => {
                    self.records.add_attempt(ticket, position);
                }
                Effect::Probe { ticket, position } => {
                    self.records.add_probe(ticket, position);
                }
                Effect::DeadLetter { ticket, position } => {
                    self.records.add_dead_letter(ticket, position);
                }
                Effect::Overtaken { position, by } => {
                    self.log.parked.event_overtaken(self.spec.name(), position, by);
                }
                Effect::DeadLetterRefused { position, reason } => {
                    log::undelivered(self, position, reason);
                }
                Effect::Released { position } => self.released(position),
                Effect::Published { ticket, commit_time } => self.published(ticket, commit_time),
                Effect::WriteCursor(row) => {
                    failpoint("cursor_due");
                    let marks = self.row_status.take(Some(&row));
                    session.write(row, marks);
                }
                Effect::Confirm(watermark) => self.confirmed = watermark,
                Effect::Restart { why } => {
                    self.reset_sink(why);
                    end = Some(End::Restart);
                }
                Effect::Drained => end = Some(End::Over(PipelineExit::Stopped)),
                Effect::Halt(halt) => end = Some(End::Over(PipelineExit::Halted(halt))),
            }
        }
        self.effects = effects;
        self.observe_latency();
        session.confirm(self.confirmed);
        self.fetch_records(&mut session.connected.store);
        end
    }
}

/// The next batch; or, while there is no room for one, the end of the connection.
async fn next_or_lost(wal: &mut WalStream, wants_batch: bool) -> Result<Batch, SourceError> {
    if wants_batch { wal.next().await } else { Err(wal.lost().await) }
}

pub(super) async fn await_job<T>(job: &mut Option<StoreJob<T>>) -> Result<T, SourceError> {
    match job {
        Some(job) => job.await,
        None => std::future::pending().await,
    }
}
