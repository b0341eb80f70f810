//! A stream from its start to its end: takes one input at a time, and performs the effects of the relay in order.

use super::connect::Connected;
use super::failpoint::failpoint;
use super::failure::End;
use super::feed::{CHANGES_MAX, Fed};
use super::history::ServerHistory;
use super::running::{Pipeline, Waited, requests};
use super::session_context::{SessionContext, begin_history};
use super::slot_monitor::{SlotMonitor, SlotStatus};
use super::stop::{PipelineExit, Stop};
use super::store_port::{CursorWritten, StoreEvent};
use super::timer::Timer;
use crate::ack::Progress;
use crate::offset::Watermark;
use crate::parked::Entry;
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::store::cursor::{Cursor, CursorWrite};
use crate::postgres::store::requeue;
use crate::postgres::stream::WalStream;
use crate::postgres::wire::{confirmable, from_wire};
use crate::postgres::{Batch, ChangeReader, SourceError, SourceErrorKind, catalog};
use crate::relay::{Effect, Input};
use crate::row::TableId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Under load there is always something to read, and the loop would never wait. At this interval it yields, so that the
/// control connection, which is another task of this thread, and the timers make progress. To yield in each turn would
/// cost a system call each.
const YIELD_INTERVAL: Duration = Duration::from_millis(1);

/// How long the server may take to answer the end of a stream, and to show the last position in the slot. What it does
/// not answer in time is repeated at the next start.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Interval between two queries of the slot while it does not show the last position yet: PostgreSQL sends no
/// notification of that.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How long a catalog query for the types of columns may take: nothing else is done meanwhile.
const TYPES_MAX: Duration = Duration::from_secs(10);

/// A batch, and how far it has been fed.
struct Feeding {
    /// The frames.
    batch: Batch,
    /// The place of the next change.
    place: usize,
}

impl Feeding {
    fn begin(batch: Batch, reader: &mut ChangeReader) -> Self {
        reader.begin_batch();
        Self { batch, place: 0 }
    }
}

/// A stream and what is running on it.
struct StreamSession<'a> {
    /// The parts of the pipeline.
    pipeline: &'a mut Pipeline,
    /// What sessions know of each other.
    context: &'a mut SessionContext,
    /// The connections.
    connected: Connected,
    /// Makes changes of the frames of this connection.
    reader: ChangeReader,
    /// The batch that is being fed.
    feeding: Option<Feeding>,
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
    Store(StoreEvent),
    SlotStatus(Result<Box<SlotStatus>, SourceError>),
    Due,
    Batch(Result<Batch, SourceError>),
    Again,
}

/// Streams until something ends it.
pub(super) async fn stream(
    pipeline: &mut Pipeline,
    context: &mut SessionContext,
    mut connected: Connected,
    stop: &Stop,
) -> End {
    if let Err(halt) = begin_history(pipeline, &connected.store, false) {
        return End::Over(PipelineExit::Halted(halt));
    }
    let Connected { wal, store, .. } = &mut connected;
    let wait = context.ownership.wait(pipeline, store, wal.lost(), stop);
    match Box::pin(wait).await {
        Waited::Done(Ok(true)) => {}
        Waited::Done(Ok(false)) => return End::Restart,
        Waited::Done(Err(error)) => return End::Lost(error, Phase::Stream),
        Waited::Over(exit) => return End::Over(exit),
    }
    if let Err(error) = pipeline.prepare_statuses(store).await {
        return End::Lost(error, Phase::Control);
    }
    match requeue::ahead_of_cursor(store.client(), store.key()).await {
        Ok(found) => pipeline.engine.stream_begins(found),
        Err(error) => return End::Lost(error, Phase::Control),
    }
    let mut session = StreamSession::new(pipeline, context, connected);
    session.begin();
    let end = loop {
        if let Some(end) = session.turn(stop).await {
            break end;
        }
    };
    session.context.publication = session.slot_monitor.publication().cloned();
    match end {
        end @ (End::Over(_) | End::Paused) => {
            session.close().await;
            end
        }
        end @ (End::Restart | End::Lost(..) | End::DropSlot(_)) => {
            let StreamSession { pipeline, connected, .. } = session;
            connected.wal.abandon();
            let over = pipeline.source_lost();
            over.map_or(end, |exit| pipeline.session_end(exit))
        }
    }
}

impl<'a> StreamSession<'a> {
    fn new(
        pipeline: &'a mut Pipeline,
        context: &'a mut SessionContext,
        connected: Connected,
    ) -> Self {
        let found = connected.tables.clone();
        let histories = pipeline.histories().clone();
        let spec = &context.spec;
        let reader = spec.change_reader(&pipeline.mapper, found, connected.encoding, histories);
        let created = connected.resume.cursor.slot_created_lsn;
        // The publication, as the previous stream of this slot knew it.
        let published = context.publication.take();
        let published = published.filter(|published| published.slot_created_lsn == created);
        let published = published.or_else(|| connected.publication.clone());
        let client = connected.store.shared_client();
        let slot_monitor = SlotMonitor::new(client, Arc::clone(&context.spec), published);
        Self {
            pipeline,
            context,
            connected,
            reader,
            feeding: None,
            slot_monitor,
            leave_at: None,
            timer: Timer::default(),
            yielded_at: Duration::ZERO,
        }
    }

    fn begin(&mut self) {
        let Self { pipeline, context, connected, .. } = self;
        pipeline.mapper.clear_tables(connected.tables.outbox.map(TableId));
        pipeline.sink.awaits(None);
        let cursor = connected.progress;
        let history = ServerHistory::of(&connected.resume.cursor);
        let same_history = context.history.replace(history.clone()) == Some(history);
        let confirmed = cursor.watermark;
        pipeline.confirmed =
            if same_history { pipeline.confirmed.max(confirmed) } else { confirmed };
        let loaded = &connected.parked;
        let entries: Vec<Entry> = loaded.iter().map(|row| row.entry).collect();
        let requests = requests(loaded);
        let (former, epoch) = (connected.store.former().epoch, connected.store.epoch());
        let same_owner = context.streamed_as.replace(epoch) == Some(former);
        if !same_owner {
            // What is in memory was counted as before.
            pipeline.counting = connected.counting.clone();
        }
        pipeline.engine.streams(former, epoch);
        pipeline.sink.owned_as(epoch);
        let (parked, requests) = (entries.as_slice(), requests.as_slice());
        let started = Input::Started { cursor, same_history, same_owner, parked, requests };
        pipeline.apply(pipeline.now(), started);
        // Dead letters that were not sent before this start.
        for row in loaded.iter().filter(|row| row.dead_unsent) {
            let position = row.entry.position;
            pipeline.apply(pipeline.now(), Input::DeadLetterUnsent { position });
        }
        pipeline.observer.parked_loaded(loaded);
        pipeline.observer.hold(None);
        let wal_end = connected.past.wal_end;
        pipeline.observer.lag().connected(wal_end, std::time::Instant::now());
        let deferred = pipeline.engine.relay().deferred_statuses();
        let slot = &context.spec.names.slot;
        pipeline.observer.streaming(slot, &connected.resume, deferred);
        pipeline.report(None);
    }

    /// The pipeline ends: gives up what is in flight, and ends the stream.
    async fn close(self) {
        let Self { pipeline, context, mut connected, .. } = self;
        // Pending jobs are dropped, so that their answers do not delay the statements below.
        connected.store.drop_jobs();
        if pipeline.give_up_in_flight() {
            context.ownership.leave(pipeline, &connected.store).await;
        }
        let confirmed = pipeline.confirmed;
        if let Err(error) = close_gracefully(connected, &context.spec.names.slot, confirmed).await {
            pipeline.observer.source().shutdown_error(&error);
        }
        match pipeline.engine.statuses_owed() {
            0 => {}
            rows => pipeline.observer.store().marks_left(rows),
        }
    }

    /// One turn of the loop: takes posts, performs effects, feeds what is read, then waits for the next input.
    async fn turn(&mut self, stop: &Stop) -> Option<End> {
        let now = self.pipeline.now();
        self.pipeline.take_posts(now);
        if self.pipeline.sink.is_located() {
            self.pipeline.report_located();
            return Some(End::Restart);
        }
        self.pipeline.offer_attempts(now);
        if let Some(end) = self.perform() {
            return Some(end);
        }
        let fed = self.feed_ready(now);
        // A sink that needs no broker has answered already, and another turn would cost more than taking its posts
        // here. If an attempt waits for an answer, that answer has to make the next turn.
        if fed == Fed::Whole && !self.pipeline.records.has_attempts() {
            self.pipeline.take_posts(now);
        }
        if let Some(end) = self.perform() {
            return Some(end);
        }
        self.pipeline.observer.store().slow_write(self.connected.store.written_since());
        let retain_max = self.context.spec.wal_retain_max;
        let slot = self.slot_monitor.latest().map(|status| (status, retain_max));
        self.pipeline.report_sometimes(slot);
        if now.saturating_sub(self.yielded_at) >= YIELD_INTERVAL {
            self.yielded_at = now;
            tokio::task::yield_now().await;
        }
        let blocked = fed == Fed::Blocked;
        if blocked && let Err(error) = self.add_types().await {
            return Some(End::Lost(error, Phase::Control));
        }
        let more = fed == Fed::Turn || blocked;
        let event = self.wait(stop, more).await;
        self.react(event)
    }

    /// Feeds the current batch, and what the connection has ready, until something stops it. One turn of the loop costs
    /// as much as several events, so everything that has arrived is fed in one turn.
    fn feed_ready(&mut self, now: Duration) -> Fed {
        let Self { pipeline, connected, reader, feeding: at_hand, .. } = self;
        let mut changes = CHANGES_MAX;
        pipeline.observer.hold(None);
        loop {
            if at_hand.is_none() && !pipeline.engine.relay().stopping() {
                *at_hand = connected.wal.ready().map(|batch| Feeding::begin(batch, reader));
            }
            let Some(Feeding { batch, place }) = at_hand else { return Fed::Whole };
            let fed = match reader {
                ChangeReader::Rows(decoder) => {
                    pipeline.feed(now, &mut decoder.batch(batch), place, &mut changes)
                }
                ChangeReader::Deltas(deltas) => {
                    deltas.set_absolute(pipeline.counting.absolute_upto());
                    pipeline.feed(now, &mut deltas.batch(batch), place, &mut changes)
                }
            };
            match fed {
                Fed::Whole => *at_hand = None,
                stopped @ (Fed::Turn | Fed::Waiting | Fed::Blocked | Fed::Ended) => return stopped,
            }
        }
    }

    /// Queries the catalog for the types that the description of a table waits for. This happens with the first row of
    /// a connection, and with the first row after an ALTER TABLE.
    async fn add_types(&mut self) -> Result<(), SourceError> {
        let answer = self.reader.look_up_types(self.connected.store.client());
        tokio::time::timeout(TYPES_MAX, answer).await.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(TYPES_MAX);
            Err(SourceError::new(kind, catalog::READ_TYPES).caused_by(elapsed))
        })
    }

    async fn wait(&mut self, stop: &Stop, more: bool) -> StreamEvent {
        let relay = self.pipeline.engine.relay();
        let wants_batch = self.feeding.is_none() && !relay.stopping();
        // The end of the connection is noticed while the intake is closed too: the slot is free then, and what is in
        // flight may soon land after events of another owner. Not if only this turn is over: what was read before the
        // end is fed first.
        let full = self.feeding.is_some() && !more && !relay.stopping();
        let full = full || relay.halt_awaits_all();
        let due = self.pipeline.due();
        let Self { pipeline, connected, slot_monitor, leave_at, timer, .. } = self;
        let Connected { wal, store, .. } = connected;
        let grace = leave_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = stop.leave() => StreamEvent::Leave,
            () = stop.drain(), if leave_at.is_none() => StreamEvent::Drain,
            () = tokio::time::sleep_until(grace), if leave_at.is_some() => StreamEvent::Grace,
            event = store.next() => StreamEvent::Store(event),
            status = slot_monitor.next() => StreamEvent::SlotStatus(status.map(Box::new)),
            () = pipeline.sink.arrived() => StreamEvent::Posts,
            () = tokio::task::yield_now(), if more => StreamEvent::Again,
            batch = next_or_lost(wal, wants_batch), if wants_batch || full => StreamEvent::Batch(batch),
            // Last, because due work is checked in every turn and must not starve the other inputs.
            () = timer.at(due) => StreamEvent::Due,
        }
    }

    fn react(&mut self, event: StreamEvent) -> Option<End> {
        let now = self.pipeline.now();
        match event {
            StreamEvent::Leave | StreamEvent::Grace => {
                let exit = self.pipeline.leave(now);
                return Some(self.pipeline.session_end(exit));
            }
            StreamEvent::Drain => self.leave_at = Some(self.pipeline.drain(now)),
            StreamEvent::Posts | StreamEvent::Again => {}
            StreamEvent::Due => self.pipeline.apply(now, Input::Tick),
            StreamEvent::Store(event) => {
                if let Err(error) = self.store_event(now, event) {
                    return Some(End::Lost(error, Phase::Control));
                }
            }
            StreamEvent::Batch(Err(error)) => {
                // Everything before a message that can't be read is resolved first.
                match error_policy::action(&error, Phase::Stream, true) {
                    Action::Halt(reason) if error.is_of_a_message() => {
                        let halt = error_policy::explain(reason, &error, &self.context.spec.names);
                        self.pipeline.apply(now, Input::Unreadable(Box::new(halt)));
                    }
                    Action::Halt(_)
                    | Action::Reconnect(_)
                    | Action::Later(_)
                    | Action::StandBy
                    | Action::Recheck(_) => return Some(End::Lost(error, Phase::Stream)),
                }
            }
            StreamEvent::SlotStatus(Ok(status)) => {
                if let Some(end) = self.slot_status(now, *status) {
                    return Some(end);
                }
            }
            StreamEvent::SlotStatus(Err(error)) if error.sqlstate().is_none() => {
                return Some(End::Lost(error, Phase::Control));
            }
            StreamEvent::SlotStatus(Err(error)) => {
                self.pipeline.observer.source().look_failed(&error);
            }
            StreamEvent::Batch(Ok(batch)) => {
                self.pipeline.observer.lag().answered(std::time::Instant::now());
                self.feeding = Some(Feeding::begin(batch, &mut self.reader));
            }
        }
        self.perform()
    }

    /// Handles what happened on the store session. An error ends the stream.
    fn store_event(&mut self, now: Duration, event: StoreEvent) -> Result<(), SourceError> {
        let store = &mut self.connected.store;
        match event {
            StoreEvent::Cursor(Ok(written)) => self.cursor_written(now, written),
            StoreEvent::Cursor(Err(error)) => {
                match error_policy::action(&error, Phase::Control, true) {
                    // The stream continues, and the row is written later.
                    Action::Later(_) => {
                        self.pipeline.observer.store().row_waits(&error);
                        self.pipeline.apply(now, Input::CursorDeferred);
                    }
                    Action::Reconnect(_)
                    | Action::StandBy
                    | Action::Recheck(_)
                    | Action::Halt(_) => return Err(error),
                }
            }
            // The server stops, or has ended this session. Without the row nothing can be confirmed, so there is no
            // reason to keep the stream, and an open stream would delay the server's shutdown.
            StoreEvent::Lost(error) => return Err(error),
            StoreEvent::Parking(written) => self.pipeline.parking_written(store, written)?,
            StoreEvent::Fetched(fetched) => self.pipeline.fetched(fetched)?,
            StoreEvent::RequestsDue => self.pipeline.find_requests(store),
            StoreEvent::Requests(found) => {
                if let Some(pause) = self.pipeline.requests_found(found)?
                    && let Some(leave_at) = self.pipeline.pause(now, pause)
                {
                    self.leave_at = Some(leave_at);
                }
            }
        }
        Ok(())
    }

    /// Handles the result of a cursor row.
    fn cursor_written(&mut self, now: Duration, CursorWritten { made, row }: CursorWritten) {
        if let Some(made) = made {
            self.pipeline.statuses_made(made);
        }
        let input = match row {
            Some(CursorWrite::Stored) => {
                failpoint("cursor_committed");
                self.pipeline.observer.store().row_goes_on();
                Input::CursorWritten
            }
            // Another process wrote the row, so the slot belongs to that process.
            Some(taken) => {
                self.pipeline.observer.store().row_taken(&taken);
                Input::SlotTaken
            }
            None => Input::CursorDeferred,
        };
        self.pipeline.apply(now, input);
    }

    /// Handles the result of a query of the slot. Returns the end of the stream if the slot is to be dropped.
    fn slot_status(&mut self, now: Duration, status: SlotStatus) -> Option<End> {
        let Self { pipeline, context, slot_monitor, leave_at, .. } = self;
        let received = pipeline.engine.relay().received();
        let observer = &mut pipeline.observer;
        observer.lag().wal_end_seen(status.wal_end, received, std::time::Instant::now());
        observer.source().standby_wait(status.waits_for_standby, received);
        let spent = status.retained().filter(|_| !pipeline.engine.relay().stopping());
        let halt = spent.and_then(|retained| context.check_wal_retention(observer, retained));
        if let Some(halt) = halt {
            let halt = Box::new(halt);
            if context.spec.polls_instead_of_slot() {
                return Some(End::DropSlot(halt));
            }
            // What is in flight may wait for the broker.
            *leave_at = Some(Instant::now() + context.spec.common.shutdown_grace);
            pipeline.apply(now, Input::Halt(halt));
        }
        if let Some(halt) = slot_monitor.keep(status) {
            pipeline.apply(now, Input::Halt(Box::new(halt)));
        }
        None
    }

    /// Performs the relay's effects, in order.
    fn perform(&mut self) -> Option<End> {
        let mut effects = std::mem::take(self.pipeline.engine.effects());
        let mut end = None;
        for effect in effects.drain(..) {
            let store = &mut self.connected.store;
            match self.pipeline.perform_parking(store, effect) {
                Some(Effect::WriteCursor(row)) => self.write_cursor(row),
                Some(Effect::Confirm(watermark)) => self.pipeline.confirmed = watermark,
                Some(Effect::Restart { why }) => {
                    self.pipeline.reset_sink(why);
                    end = Some(End::Restart);
                }
                Some(Effect::Drained) => {
                    end = Some(self.pipeline.session_end(PipelineExit::Stopped));
                }
                Some(Effect::Halt(halt)) => end = Some(End::Over(PipelineExit::Halted(halt))),
                // All others are performed.
                Some(_) | None => {}
            }
        }
        *self.pipeline.engine.effects() = effects;
        self.pipeline.observer.observe_latency();
        self.confirm();
        self.pipeline.fetch_records(&mut self.connected.store);
        end
    }

    fn write_cursor(&mut self, row: Progress) {
        failpoint("cursor_due");
        let statuses = self.pipeline.take_statuses(&self.connected.store, Some(&row));
        let cursor = Cursor {
            watermark: row.watermark,
            flush_limit: row.watermark.offset(),
            partial: self.pipeline.counting.stored(row),
            ..self.connected.resume.cursor.clone()
        };
        self.connected.store.write_cursor(cursor, self.slot_monitor.ledger(), statuses);
    }

    /// Passes the confirmation to the stream. After a reconnect the server repeats what is known already, and nothing
    /// may be confirmed on a stream that has not sent it.
    fn confirm(&self) {
        let (wal, watermark) = (&self.connected.wal, self.pipeline.confirmed);
        if watermark.offset() <= from_wire(wal.received()) {
            wal.confirm(confirmable(watermark));
        }
    }
}

/// Ends the stream, and waits until the slot shows the last position, so that no event is published twice.
async fn close_gracefully(
    connected: Connected,
    slot: &str,
    confirmed: Watermark,
) -> Result<(), SourceError> {
    let Connected { wal, store, version, .. } = connected;
    wal.stop(CLOSE_MAX).await?;
    let deadline = Instant::now() + CLOSE_MAX;
    while Instant::now() < deadline {
        match catalog::read_slot(store.client(), version, slot).await? {
            Some(row) if row.confirmed_flush_lsn >= Some(confirmed.offset()) => break,
            Some(_) => tokio::time::sleep(CLOSE_POLL_INTERVAL).await,
            None => break,
        }
    }
    Ok(())
}

/// The next batch; or, while there is no room for one, the end of the connection.
async fn next_or_lost(wal: &mut WalStream, wants_batch: bool) -> Result<Batch, SourceError> {
    if wants_batch { wal.next().await } else { Err(wal.lost().await) }
}
