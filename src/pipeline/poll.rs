//! Polling: the same relay, fed with claims of the outbox table instead of a stream.
//!
//! There is one claim at a time: it is claimed, fed, published and settled. Nothing is marked before the broker's
//! acknowledgement. A lost connection leaves the rows as they were, and they are claimed and published again.

use super::claim::{ClaimReader, OpenClaim};
use super::commit_watchdog::unless_stopped;
use super::former_owner;
use super::hand_over::{HandOver, next_step};
use super::history::ServerHistory;
use super::lag::OldestRow;
use super::lifecycle::{Pipeline, Waited};
use super::log::{self, Expiry};
use super::parked::{StoreEvent, StoreSession, requests};
use super::requeue::RequeuedEvents;
use super::service::{PipelineExit, Stop};
use super::settings_change::{LeftBehind, left_behind};
use super::spec::{Mode, PipelineSpec};
use super::stream::{End, StoreJob, await_job};
use super::timer::Timer;
use crate::ack::Progress;
use crate::backoff::Backoff;
use crate::offset::{Offset, Watermark};
use crate::parked::Entry;
use crate::postgres::SourceError;
use crate::postgres::catalog::Instance;
use crate::postgres::error_policy::Phase;
use crate::postgres::poll::by_id::OutboxTable;
use crate::postgres::poll::{CLAIM_ROWS_MAX, MissedRows, OldestReady, PollSpec};
use crate::postgres::repair::{self, Method, Selection};
use crate::postgres::setup::SlotOutcome;
use crate::postgres::store::cursor::CursorWrite;
use crate::postgres::store::parked::{Loaded, Stored};
use crate::relay::{Effect, Input, Restart};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// How long a claim may stay open before it is settled in part or given up: it holds row locks, and the horizon of
/// VACUUM.
const CLAIM_HOLD_MAX: Duration = Duration::from_secs(20);

/// The same for a page of a repair, which holds no locks: what is published and not settled is repeated if the process
/// ends.
const PAGE_HOLD_MAX: Duration = Duration::from_secs(5);

/// Pauses before a claim is fed again after its producer broke or its topic was unavailable: what was published after
/// such an event is published again each time. A claim is held for at most a few of the longest pauses.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Pause before the next claim if a claim found as many rows as it wanted and all of them were locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// How long unanswered attempts delay reading the parked events again.
const ATTEMPTS_WAIT_MAX: Duration = Duration::from_secs(2);

/// Rows of the largest claim: claims grow to this size while there is a backlog.
const BACKLOG_ROWS: usize = 4_000;

/// A claim that was held longer is not followed by a larger one. A quarter of [`CLAIM_HOLD_MAX`].
const CLAIM_SLOW: Duration = Duration::from_secs(5);

const _: () = assert!(BACKLOG_ROWS <= CLAIM_ROWS_MAX);

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

/// Rows without a mark that are counted at most: the whole table may have none.
const UNMARKED_MAX: u32 = 10_000;

/// The sessions of a polling pipeline, and the open claim.
pub(super) struct Polling {
    /// Claims rows.
    pub(super) poller: ClaimReader,
    /// Writes the pipeline's tables.
    pub(super) store: StoreSession,
    /// The parked events as they were last read.
    pub(super) parked: Vec<Loaded>,
    /// The server's end of WAL when polling began.
    pub(super) start: Offset,
    /// The history of the server.
    pub(super) server: ServerHistory,
    /// The server process that other sessions of the pipeline must reach too.
    pub(super) instance: Instance,
    /// Failures are kept in the outbox table itself.
    pub(super) keeps_failures: bool,
    /// Failures of the open claim are kept in the outbox table itself.
    pub(super) keeps_now: bool,
    /// The open claim.
    pub(super) open: Option<OpenClaim>,
    /// A row failed, and the table records that: the relay discards what it knows of the row at the end of the claim.
    pub(super) failed: bool,
    /// The end of the previous claim.
    floor: Offset,
    /// Whether the parked events have to be read again, as soon as no write is running.
    reload: ParkedReload,
    /// Pauses before the claim is fed again; reset when a claim is settled.
    retry_backoff: Backoff,
    /// End of the current pause.
    retry_at: Instant,
    /// Rows of the next claim, if there is a backlog.
    limit: usize,
    /// Rows of the next claim at most. It is lowered when a claim was held for too long.
    limit_max: usize,
    /// When the next claim is made.
    next_at: Instant,
    /// `mode = "auto"`: the way back to streaming.
    pub(super) hand_over: Option<HandOver>,
    /// When a drain is given up.
    leave_at: Option<Instant>,
    /// Queries the backlog of the table.
    backlog_monitor: BacklogMonitor,
    /// Rows that are locked by other sessions.
    locked: LockedRows,
    /// When the newest claim began that took every ready row; `None` once rows were left.
    empties_since: Option<Instant>,
}

/// Whether the parked events have to be read again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParkedReload {
    No,
    /// Yes, since this moment.
    Due(Instant),
    /// Yes, by the session of the claim, if there is one. Positions keep their meaning.
    SameHistory,
}

/// How polling ends.
pub(super) enum PollEnd {
    Exit(PipelineExit),
    /// Everything that the new slot does not stream is published.
    Streams,
    /// Another process has taken over the pipeline.
    Overruled,
    /// The brokers belong to another cluster than when the session began.
    Located,
}

impl Polling {
    pub(super) fn new(
        poller: ClaimReader,
        store: StoreSession,
        parked: Vec<Loaded>,
        (start, server, instance): (Offset, ServerHistory, Instance),
        keeps_failures: bool,
    ) -> Self {
        let backlog_monitor =
            BacklogMonitor::new(store.control.shared_client(), poller.oldest_ready());
        Self {
            backlog_monitor,
            locked: LockedRows::default(),
            empties_since: None,
            poller,
            store,
            parked,
            start,
            server,
            instance,
            keeps_failures,
            keeps_now: keeps_failures,
            open: None,
            failed: false,
            floor: start,
            reload: ParkedReload::No,
            retry_backoff: RETRY_BACKOFF,
            retry_at: Instant::now(),
            limit: 0,
            limit_max: CLAIM_ROWS_MAX,
            next_at: Instant::now(),
            hand_over: None,
            leave_at: None,
        }
    }

    /// When the open claim has to be settled in part, or given up.
    fn held_until(&self) -> Option<Instant> {
        let repairs = self.poller.repairs().is_some();
        let hold = if repairs { PAGE_HOLD_MAX } else { CLAIM_HOLD_MAX };
        self.open.as_ref().map(|open| open.held_since + hold)
    }
}

impl Pipeline {
    /// Polls until something ends it.
    pub(super) async fn poll(&mut self, mut polling: Polling, stop: &Stop) -> End {
        let Polling { poller, store, .. } = &mut polling;
        match Box::pin(former_owner::wait(self, store, poller.closed(), stop)).await {
            Waited::Done(Ok(true)) => {}
            Waited::Done(Ok(false)) => return End::Restart,
            Waited::Done(Err(error)) => return End::Lost(error, Phase::Control),
            Waited::Over(exit) => return End::Over(exit),
        }
        self.records.failures_stay = polling.keeps_failures;
        let expires = self.spec.poll.table.as_ref().is_some_and(PollSpec::expires);
        if expires && polling.poller.repairs().is_none() {
            self.log.expiry = Expiry::ByClaims;
        }
        self.row_status.polls(true);
        let end = self.poll_on(polling, stop).await;
        self.row_status.polls(false);
        self.log.expiry = Expiry::ByRelay;
        self.records.failures_stay = false;
        self.requeued = RequeuedEvents::default();
        end
    }

    async fn poll_on(&mut self, mut polling: Polling, stop: &Stop) -> End {
        if let Err(halt) = self.reset_mapper(&polling.store, true) {
            return End::Over(PipelineExit::Halted(halt));
        }
        let instead_of_slot = self.spec.mode == Mode::Auto && polling.poller.repairs().is_none();
        let canceller = polling.store.control.canceller();
        let queries = Box::pin(self.query_before_polling(&mut polling, instead_of_slot, stop));
        match unless_stopped(stop, canceller, queries).await {
            Ok(Some(())) => {}
            // Nothing was claimed yet, and nothing is in flight.
            Ok(None) => {
                self.apply(self.now(), Input::Drain);
                self.apply(self.now(), Input::SourceLost);
                let exit = self.outcome().unwrap_or(PipelineExit::Stopped);
                if self.give_up_in_flight() {
                    former_owner::leave(self, &polling.store).await;
                }
                return End::Over(exit);
            }
            Err(error) => return End::Lost(error, Phase::Control),
        }
        if let Some(halt) = self.begin_polling(&polling, false) {
            return End::Over(PipelineExit::Halted(halt));
        }
        if self.spec.mode == Mode::Poll {
            polling.backlog_monitor.watch_slot(Arc::clone(&self.spec));
        }
        if instead_of_slot {
            let drops_slot = std::mem::take(&mut self.drops_slot);
            polling.hand_over = Some(HandOver::new(drops_slot));
            self.polled_ids.begins(polling.store.former.epoch, polling.store.epoch);
        }
        loop {
            match self.poll_turn(&mut polling, stop).await {
                Ok(None) => {}
                Ok(Some(PollEnd::Streams)) => {
                    // A service continues as the owner; `postrider repair` ends here.
                    if self.spec.only_repair && self.give_up_in_flight() {
                        former_owner::leave(self, &polling.store).await;
                    }
                    // The session may exist a moment longer, and the stream asks for the lock at once.
                    if let Err(error) = polling.poller.unlock(self.spec.name()).await {
                        return End::Lost(error, Phase::Control);
                    }
                    self.apply(self.now(), Input::SourceLost);
                    return self.outcome().map_or(End::Restart, End::Over);
                }
                Ok(Some(PollEnd::Overruled | PollEnd::Located)) => {
                    self.apply(self.now(), Input::SourceLost);
                    return self.outcome().map_or(End::Restart, End::Over);
                }
                Ok(Some(PollEnd::Exit(exit))) => {
                    let left = self.give_up_in_flight();
                    if let Err(error) = self.settle_claim(&mut polling, stop).await {
                        log::shutdown_error(self, &error);
                    }
                    if left {
                        former_owner::leave(self, &polling.store).await;
                    }
                    return End::Over(exit);
                }
                Err(error) => {
                    // The state of the open claim is unknown: all of it is claimed again.
                    self.apply(self.now(), Input::SlotTaken);
                    self.apply(self.now(), Input::SourceLost);
                    return self.outcome().map_or(End::Lost(error, Phase::Control), End::Over);
                }
            }
        }
    }

    /// Queries the table before the first claim. Each query may take as long as a statement may.
    async fn query_before_polling(
        &mut self,
        polling: &mut Polling,
        instead_of_slot: bool,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        // Marks come first: the stream does not repeat what the cursor row has passed.
        if instead_of_slot {
            self.mark_streamed(polling).await?;
        }
        if polling.poller.repairs().is_none() && !self.log.polling {
            self.report_unmarked_rows(polling).await;
        }
        self.find_requeued(polling, stop).await
    }

    /// Tells mapper and relay where polling begins. `same`: positions keep their meaning. Returns a halt if the table
    /// does not fit.
    fn begin_polling(&mut self, polling: &Polling, same: bool) -> Option<Box<crate::error::Halt>> {
        let table = polling.poller.description();
        self.mapper.clear_tables(Some(table.id));
        if let Err(error) = self.mapper.table(&table.as_table()) {
            return Some(Box::new(super::halts::unfit_table(&error, self.spec.mode)));
        }
        self.history = None;
        self.destinations.awaits(None);
        self.confirmed = Watermark::default();
        let start = Progress { watermark: Watermark::from_keepalive(polling.start), partial: None };
        let cursor = if same { self.relay.progress() } else { start };
        let entries: Vec<Entry> = polling.parked.iter().map(|row| row.entry).collect();
        let entries = match &polling.open {
            Some(open) => open.parked(entries),
            None => entries,
        };
        let requests = requests(&polling.parked);
        let (parked, requests) = (entries.as_slice(), requests.as_slice());
        let (same_history, same_owner) = (same, same);
        let started = Input::Started { cursor, same_history, same_owner, parked, requests };
        self.relay.apply(self.now(), started, &mut self.effects);
        // What is in flight from before is given up with its producer. No claim is given up: none is open at that time.
        let past = Effect::Restart { why: Restart::SlotTaken };
        if let Some(index) = self.effects.iter().position(|effect| *effect == past) {
            self.effects.remove(index);
            self.reset_sink(Restart::SlotTaken);
        }
        self.resume_dead_letters(&polling.parked);
        log::polling(self);
        None
    }

    async fn poll_turn(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<Option<PollEnd>, SourceError> {
        let now = self.now();
        self.take_posts(now);
        if self.cluster.located {
            log::located(self);
            return Ok(Some(PollEnd::Located));
        }
        self.offer_attempts(now);
        if polling.reload == ParkedReload::No
            && let Some(mut open) = polling.open.take()
        {
            self.feed_claim(now, &mut open);
            polling.open = Some(open);
        }
        if let Some(exit) = self.perform_polling(polling, stop).await? {
            return Ok(Some(PollEnd::Exit(exit)));
        }
        if polling.store.overruled {
            return Ok(Some(PollEnd::Overruled));
        }
        self.reload_parked(polling, stop).await?;
        let resolved = polling.open.as_ref().is_some_and(|open| self.claim_is_resolved(open));
        if resolved {
            self.end_claim(polling, stop).await?;
            return Ok(self.hands_over_now(polling, stop).await?.then_some(PollEnd::Streams));
        }
        self.report_slow_write(polling.store.jobs.written_since());
        self.report_sometimes(None);
        let event = self.wait_polling(polling, stop).await;
        self.react_polling(polling, event, stop).await
    }

    /// Performs the relay's effects; returns the exit if the relay has come to its end.
    async fn perform_polling(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<Option<PipelineExit>, SourceError> {
        let mut exit = None;
        // The end waits for its cursor row, and the claim waits for the end.
        if self.relay.stopping() && polling.open.as_mut().is_some_and(OpenClaim::takes_cursor) {
            self.apply(self.now(), Input::CursorWritten);
        }
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Publish(_) | Effect::Park { .. } | Effect::Confirm(_) => {}
                    Effect::Published { ticket, commit_time } => {
                        self.published(ticket, commit_time);
                        if let Some(open) = &mut polling.open {
                            open.acknowledged(ticket);
                        }
                    }
                    Effect::Probe { ticket, position } => {
                        self.records.add_probe(ticket, position);
                    }
                    // The row is committed with the claim, and is found when the parked events are read again.
                    Effect::DeadLetter { ticket, position }
                        if polling.store.jobs.unseen == Some(position.commit) =>
                    {
                        polling.failed = true;
                        self.apply(self.now(), Input::RowMissing { ticket });
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
                    Effect::Attempt { ticket, position } => {
                        self.records.add_attempt(ticket, position);
                    }
                    // A published row is recorded in the table itself, once the claim is committed. Before that, and
                    // before the parked events are read again after it, no parked event of the claim may be retried.
                    Effect::WriteCursor(_) if self.relay.stopping() => {
                        self.apply(self.now(), Input::CursorWritten);
                    }
                    Effect::WriteCursor(_) => match (&mut polling.open, polling.reload) {
                        (Some(open), _) => open.cursor_waits = true,
                        (None, ParkedReload::Due(_)) => {}
                        (None, ParkedReload::No | ParkedReload::SameHistory) => {
                            self.apply(self.now(), Input::CursorWritten);
                        }
                    },
                    Effect::WriteParking { rows: 0, statuses } => {
                        self.write_parking(&mut polling.store, 0, statuses);
                    }
                    Effect::WriteParking { rows, statuses } => {
                        let stored = self.park_in_claim(polling, rows, statuses, stop).await?;
                        if stored == Stored::TakenOver {
                            polling.store.overruled = true;
                            log::row_taken(self, &CursorWrite::TakenOver);
                            self.apply(self.now(), Input::SlotTaken);
                        } else {
                            // The next write queries the sessions that have locked the rows left out.
                            self.parking_written(self.now(), &stored, &[]);
                        }
                    }
                    Effect::Restart { why } => self.feed_claim_again(polling, why).await?,
                    Effect::Drained => exit = Some(PipelineExit::Stopped),
                    Effect::Halt(halt) => exit = Some(PipelineExit::Halted(halt)),
                }
            }
        }
        self.fetch_records(&mut polling.store);
        self.observe_latency();
        Ok(exit)
    }

    async fn wait_polling(&self, polling: &mut Polling, stop: &Stop) -> PollEvent {
        let idle = polling.open.is_none() && polling.reload == ParkedReload::No;
        let wants_claim = idle && !self.relay.stopping() && self.relay.intake_open();
        // While the broker is down a claim would only keep rows locked.
        let claim = wants_claim && !self.broker_is_down();
        let hold = polling.held_until();
        let due = self.due();
        let due = hold.map_or(due, |hold| due.min(hold));
        let retry = (polling.reload == ParkedReload::SameHistory).then_some(polling.retry_at);
        let due = retry.filter(|at| *at > Instant::now()).map_or(due, |at| due.min(at));
        let Polling { poller, store, next_at, leave_at, hand_over, backlog_monitor, .. } = polling;
        let StoreSession { control, jobs, .. } = store;
        let (wake, notifications) = (poller.wake(), control.notifications());
        let grace = leave_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = stop.leave() => PollEvent::Leave,
            () = stop.drain(), if leave_at.is_none() => PollEvent::Drain,
            () = tokio::time::sleep_until(grace), if leave_at.is_some() => PollEvent::Grace,
            error = poller.closed() => PollEvent::Lost(error),
            error = control.closed() => PollEvent::Lost(error),
            () = tokio::time::sleep_until(*next_at), if claim => PollEvent::Claim,
            () = wake.notified(), if claim => PollEvent::Claim,
            event = jobs.next(&notifications) => PollEvent::Store(event),
            () = self.mailbox.arrived() => PollEvent::Posts,
            event = next_step(hand_over) => event,
            backlog = backlog_monitor.next() => PollEvent::Backlog(backlog),
            () = tokio::time::sleep_until(due) => PollEvent::Due,
        }
    }

    async fn react_polling(
        &mut self,
        polling: &mut Polling,
        event: PollEvent,
        stop: &Stop,
    ) -> Result<Option<PollEnd>, SourceError> {
        let now = self.now();
        match event {
            PollEvent::Leave | PollEvent::Grace => {
                log::shutdown_incomplete(self);
                self.apply(now, Input::SourceLost);
                return Ok(Some(PollEnd::Exit(self.outcome().unwrap_or(PipelineExit::Stopped))));
            }
            PollEvent::Drain => {
                polling.leave_at = Some(Instant::now() + self.spec.shutdown_grace);
                log::draining(self);
                self.apply(now, Input::Drain);
            }
            PollEvent::Lost(error) => return Err(error),
            PollEvent::Store(event) => self.store_event(&mut polling.store, event)?,
            PollEvent::Claim => {
                self.claim(polling, stop).await?;
                if polling.open.is_none() {
                    return Ok(self
                        .hands_over_now(polling, stop)
                        .await?
                        .then_some(PollEnd::Streams));
                }
            }
            PollEvent::Backlog(Ok((BacklogStatus { oldest, left }, began))) => {
                if self.spec.mode == Mode::Poll {
                    log::slot_left_behind(self, left.as_ref());
                }
                self.lag.polled(oldest, began.into_std(), std::time::Instant::now());
            }
            // The session has ended. With an SQLSTATE the server refuses only this query, and polling continues.
            PollEvent::Backlog(Err(error)) if error.sqlstate().is_none() => return Err(error),
            PollEvent::Backlog(Err(error)) => log::look_failed(self, &error),
            PollEvent::HandOverDue => self.start_hand_over_step(polling),
            PollEvent::HandOverStep(outcome) => self.hand_over_step_done(polling, outcome),
            PollEvent::Due => {
                if polling.held_until().is_some_and(|until| until <= Instant::now()) {
                    self.claim_held_too_long(polling, stop).await?;
                } else {
                    self.apply(now, Input::Tick);
                }
            }
            PollEvent::Posts => {}
        }
        Ok(None)
    }

    async fn claim(&mut self, polling: &mut Polling, stop: &Stop) -> Result<(), SourceError> {
        self.mark_what_waited(polling, stop).await?;
        let settings = &self.spec.poll;
        self.polled_ids.claims();
        let limit = polling.limit.max(settings.batch).min(polling.limit_max);
        let all = polling.hand_over.as_mut().is_some_and(HandOver::claims);
        polling.keeps_now = polling.keeps_failures && !all;
        let began = Instant::now();
        let canceller = polling.poller.canceller();
        let poller = &mut polling.poller;
        let claim =
            async { if all { poller.claim_all(limit).await } else { poller.claim(limit).await } };
        let Some(claim) = unless_stopped(stop, canceller, claim).await? else {
            return polling.poller.abandon().await;
        };
        let (batch, interval) = (settings.batch, settings.interval);
        // The relay must get an event that is no longer requeued before a later event of its aggregate is published.
        if self.requeued_are_fewer(polling, stop).await? {
            polling.poller.abandon().await?;
            polling.reload = ParkedReload::Due(Instant::now());
            return self.reload_parked(polling, stop).await;
        }
        self.lag.answered(std::time::Instant::now());
        let takes_all = !claim.more && claim.withheld == 0 && polling.poller.repairs().is_none();
        polling.empties_since = takes_all.then_some(began);
        self.log.skipped.rows_expired(self.spec.name(), claim.expired);
        self.report_lock_holders(polling, &claim.missed, stop).await?;
        if let Some(hand_over) = &mut polling.hand_over {
            hand_over.claimed(claim.more, claim.withheld);
        }
        polling.limit = if claim.more { (limit * 2).min(BACKLOG_ROWS) } else { batch };
        if claim.rows.is_empty() {
            self.is_empty(polling);
            let pause = match (claim.more, claim.expired) {
                (true, 0) => LOCKED_PAUSE.min(interval),
                (true, _) => Duration::ZERO,
                (false, _) => interval,
            };
            polling.next_at = Instant::now() + pause;
        } else {
            polling.open = Some(OpenClaim::new(claim, polling.floor));
        }
        Ok(())
    }

    /// Notes for the lag that no row is ready, if the last claim took all there were.
    fn is_empty(&mut self, polling: &mut Polling) {
        if let Some(began) = polling.empties_since.take() {
            self.lag.polled(OldestRow::None, began.into_std(), std::time::Instant::now());
        }
    }

    /// Settles a resolved claim, and makes the next one at once.
    async fn end_claim(&mut self, polling: &mut Polling, stop: &Stop) -> Result<(), SourceError> {
        if let Some(open) = &polling.open {
            polling.floor = open.end();
            polling.limit_max = if open.claimed_at.elapsed() < CLAIM_SLOW {
                polling.limit_max.saturating_mul(2).min(CLAIM_ROWS_MAX)
            } else {
                // A larger claim may be held for too long.
                polling.limit_max.min(open.rows().max(1))
            };
        }
        polling.retry_backoff.reset();
        let any = self.settle_claim(polling, stop).await?;
        self.is_empty(polling);
        if std::mem::take(&mut polling.failed) {
            // The table blocks the aggregates of failed rows: the parked events are read again before the next claim.
            polling.reload = ParkedReload::Due(Instant::now());
            self.reload_parked(polling, stop).await?;
        }
        // If every row waits for something, the next claim finds the same rows.
        let pause = if any { Duration::ZERO } else { self.spec.poll.interval };
        polling.next_at = Instant::now() + pause;
        Ok(())
    }

    /// Gives up everything in flight, but not the claim: its rows are still claimed and are fed again at their
    /// positions, so that the relay knows which of them a broker has refused, or parked. A claim that was held for too
    /// long, or whose pipeline was taken over, is given up too. [`reload_parked`](Self::reload_parked) feeds the claim,
    /// once all effects are performed, because a second one of them may be a restart.
    async fn feed_claim_again(
        &mut self,
        polling: &mut Polling,
        why: Restart,
    ) -> Result<(), SourceError> {
        self.reset_sink(why);
        if why == Restart::SlotTaken {
            return self.give_up_claim(polling).await;
        }
        if polling.reload != ParkedReload::No {
            return Ok(());
        }
        polling.reload = ParkedReload::SameHistory;
        // A resolved claim is settled anyway.
        if let Some(mut open) = polling.open.take() {
            if !self.claim_is_resolved(&open) {
                open.rewind();
            }
            polling.open = Some(open);
        }
        // The next answer of the broker shows which event it refuses: the sooner the better.
        polling.retry_at = match why {
            Restart::Refused(_) => Instant::now(),
            Restart::SinkBroken | Restart::Unknown | Restart::SlotTaken => {
                Instant::now() + polling.retry_backoff.next(fastrand::f64())
            }
        };
        Ok(())
    }

    /// The open claim has been held for the longest allowed time. What is acknowledged is settled, and the other rows
    /// stay in the claim as long as the broker continues to acknowledge. Otherwise the claim is given up, because it
    /// locks rows; only rows without an answer are published again. A page of a repair locks nothing, and stays
    /// whatever the broker does.
    async fn claim_held_too_long(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        let repairs = polling.poller.repairs().is_some();
        let stays = repairs || !self.broker_is_down();
        if stays && self.settle_so_far(polling, stop).await? {
            return Ok(());
        }
        let list = polling.poller.repairs();
        if let (Some(list), Some(open)) = (list, &mut polling.open) {
            list.keep_open().await?;
            open.held_since = Instant::now();
            return Ok(());
        }
        if let Some(open) = &mut polling.open {
            polling.floor = open.end();
            // A claim of the same size would be held for as long again.
            polling.limit_max = (open.rows() / 2).max(1);
            // The parked events are read again.
            open.cursor_waits = false;
        }
        let now = self.now();
        // A claim of which nothing can be settled is rolled back, so that its aggregates are not delayed.
        if self.claim_has_progress(polling) {
            self.settle_claim(polling, stop).await?;
        }
        if !polling.store.overruled {
            self.apply(now, Input::SlotTaken);
        }
        Ok(())
    }

    async fn give_up_claim(&mut self, polling: &mut Polling) -> Result<(), SourceError> {
        polling.poller.abandon().await?;
        polling.store.jobs.unseen = None;
        if let Some(open) = polling.open.take() {
            polling.floor = open.end();
            // A claim of the same size would be held for as long again.
            polling.limit_max = (open.rows() / 2).max(1);
        }
        (polling.failed, polling.reload) = (false, ParkedReload::Due(Instant::now()));
        polling.limit = 0;
        polling.next_at = Instant::now() + self.spec.poll.interval;
        Ok(())
    }

    /// Reads the parked events again and restarts the relay with them, if that is due. A running write comes first: the
    /// relay would order it a second time. Unanswered attempts come first too, for a while: they would be given up with
    /// their producer.
    async fn reload_parked(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        let same = match polling.reload {
            ParkedReload::No => return Ok(()),
            _ if polling.store.jobs.written_since().is_some() => return Ok(()),
            ParkedReload::Due(since)
                if self.relay.has_unsettled_attempts() && since.elapsed() < ATTEMPTS_WAIT_MAX =>
            {
                return Ok(());
            }
            ParkedReload::Due(_) => false,
            ParkedReload::SameHistory if Instant::now() < polling.retry_at => return Ok(()),
            ParkedReload::SameHistory => true,
        };
        polling.reload = ParkedReload::No;
        if same {
            self.read_in_claim(polling).await?;
        } else {
            self.reload(polling, stop).await?;
            polling.start = polling.floor;
        }
        drop(self.begin_polling(polling, same));
        Ok(())
    }

    /// Finds out at intervals which sessions have locked rows that claims could not have, and logs them.
    async fn report_lock_holders(
        &mut self,
        polling: &mut Polling,
        missed: &MissedRows,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        polling.locked.note(missed);
        let Some(rows) = polling.locked.due() else { return Ok(()) };
        let Some(table) = self.spec.poll.table.as_ref().map(|spec| spec.table.clone()) else {
            return Ok(());
        };
        let holders = if rows.is_empty() {
            Vec::new()
        } else {
            self.finish_jobs(polling, stop).await?;
            // The holders are shown to people only: their query must not end the claim.
            rows.holders(polling.store.control.client(), &table).await.unwrap_or_default()
        };
        if holders.is_empty() {
            // The rows are delayed, or have failed, or are free again.
            polling.locked.free();
            log::claims_go_on(self);
        } else {
            log::claims_wait(self, &table, &holders);
        }
        Ok(())
    }

    /// Logs how many rows without a mark the stream has passed: polling publishes them, although they may be published
    /// already. There are such rows if `mode` was "wal" before. A query that fails does not prevent polling.
    async fn report_unmarked_rows(&mut self, polling: &Polling) {
        let Some(spec) = self.spec.poll.table.clone() else { return };
        let (client, name) = (polling.store.control.client(), self.spec.name());
        let counted = async {
            let ledger = repair::resolved_baseline(client, name, None, Duration::ZERO).await?;
            let method = Method::of(client, Selection::Both, ledger.known.as_deref()).await?;
            let table = OutboxTable::read(client, spec).await?;
            method.count_passed(client, &table, UNMARKED_MAX).await
        };
        match counted.await {
            Ok(None | Some(0)) => {}
            Ok(Some(rows)) => log::unmarked_rows(self, rows, rows >= u64::from(UNMARKED_MAX)),
            Err(error) => log::look_failed(self, &error),
        }
    }
}

/// What happened first.
pub(super) enum PollEvent {
    Leave,
    Drain,
    Grace,
    Posts,
    Store(StoreEvent),
    Lost(SourceError),
    Due,
    Claim,
    Backlog(Result<(BacklogStatus, Instant), SourceError>),
    HandOverDue,
    HandOverStep(Result<SlotOutcome, SourceError>),
}

/// Rows that claims could not have because another session has locked them.
#[derive(Default)]
struct LockedRows {
    /// The last ones since the last query.
    rows: MissedRows,
    /// Since when rows are locked.
    since: Option<Instant>,
    /// When the holders were last queried.
    checked_at: Option<Instant>,
}

impl LockedRows {
    /// A claim could not have these rows.
    fn note(&mut self, rows: &MissedRows) {
        if !rows.is_empty() {
            self.rows = rows.clone();
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// The rows to query, if it is time; empty if there were none since the last query.
    fn due(&mut self) -> Option<MissedRows> {
        let lasting = self.since.is_some_and(|since| since.elapsed() >= LOCKED_MIN);
        let rested = self.checked_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL);
        if !lasting || !rested {
            return None;
        }
        self.checked_at = Some(Instant::now());
        Some(std::mem::take(&mut self.rows))
    }

    /// No session holds locks on the rows any more.
    fn free(&mut self) {
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
