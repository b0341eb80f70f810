//! Polling: the same engine, fed with claims of the outbox table instead of a stream.
//!
//! [`Claims`] decide what a polling session does next. This loop takes one input at a time, applies it, and performs
//! the effects in order; `claim` and `hand_over` have their statements. A lost connection leaves the rows of the open
//! claim as they were, and they are claimed and published again.

use super::backlog_monitor::{BacklogMonitor, BacklogStatus, LockedRows};
use super::claim::{ClaimPort, ClaimReport, ParkedInClaim};
use super::commit_watchdog::{finish_jobs, unless_stopped, within_shutdown_grace};
use super::connect::{Polling, load_all};
use super::failure::End;
use super::halts;
use super::hand_over::slot_step;
use super::lag::OldestRow;
use super::mode::Mode;
use super::repair::{finish_repair, unexplained};
use super::running::{Pipeline, Waited, requests};
use super::session_context::{SessionContext, begin_history};
use super::spec::PipelineSpec;
use super::stop::{PipelineExit, Stop};
use super::store_job::{StoreJob, await_job};
use super::store_port::{StoreEvent, StorePort};
use crate::claims::{
    BACKLOG_ROWS, ClaimEffect, ClaimInput, ClaimSettings, ClaimSource, ClaimedRow, Claims,
    ParkedEvents, PollEnd, SlotAnswer,
};
use crate::engine::PollingRules;
use crate::error::{Chain, Halt};
use crate::event::Position;
use crate::offset::{Offset, Watermark};
use crate::outbox_rows::{RequeueCandidate, RowOutcome};
use crate::parked::{Entry, ParkedUpdate};
use crate::postgres::SourceError;
use crate::postgres::catalog::{self, Instance};
use crate::postgres::error_policy::Phase;
use crate::postgres::poll::by_id::OutboxTable;
use crate::postgres::poll::{CLAIM_ROWS_MAX, MissedRows, PollSpec};
use crate::postgres::repair::{self, Method, RepairOutcome, Selection};
use crate::postgres::setup::SlotOutcome;
use crate::postgres::store::cursor::{self, CursorWrite};
use crate::postgres::store::parked::{Loaded, Stored};
use crate::postgres::store::requeue;
use crate::relay::Input;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const _: () = assert!(BACKLOG_ROWS <= CLAIM_ROWS_MAX);

/// Rows without a mark that are counted at most: the whole table may have none.
const UNMARKED_MAX: u32 = 10_000;

/// A polling session: its connections, its claims, and what is running.
struct PollSession<'a> {
    /// The parts of the pipeline.
    pipeline: &'a mut Pipeline,
    /// What sessions know of each other.
    context: &'a mut SessionContext,
    /// Claims rows.
    port: ClaimPort,
    /// Writes the pipeline's tables.
    store: StorePort,
    /// The server process that other sessions of the pipeline must reach too.
    instance: Instance,
    /// Decides what is done next.
    claims: Claims,
    /// The parked events that were read when this process became the owner, until the relay gets them.
    parked: Option<Vec<Loaded>>,
    /// The running step for the slot.
    slot_step: Option<StoreJob<SlotOutcome>>,
    /// When a drain is given up.
    leave_at: Option<Instant>,
    /// Queries the backlog of the table.
    backlog_monitor: BacklogMonitor,
    /// Rows that are locked by other sessions.
    locked: LockedRows,
    /// The list of a repair is published, and the cursor is set.
    repaired: bool,
}

/// How a polling session ends.
enum PollingEnd {
    Exit(PipelineExit),
    /// Everything that the new slot does not stream is published.
    Streams,
    /// Connect again: another process has taken over the pipeline, or the brokers belong to another cluster than when
    /// the session began.
    Reconnect,
}

/// What happened first.
enum PollEvent {
    Leave,
    Drain,
    Grace,
    Posts,
    Store(StoreEvent),
    Lost(SourceError),
    Due,
    Claim,
    Backlog(Result<(BacklogStatus, Instant), SourceError>),
    SlotDue,
    SlotStepDone(Result<SlotOutcome, SourceError>),
}

/// The settings of the claims of a session.
fn settings(polling: &Polling, spec: &PipelineSpec, drops_slot: bool) -> ClaimSettings {
    let (former, epoch) = (polling.store.former().epoch, polling.store.epoch());
    let source = match (polling.poller.repairs(), spec.common.mode) {
        (Some(_), _) => ClaimSource::List,
        (None, Mode::Auto) => ClaimSource::TableUntilSlot { drops_slot, former, epoch },
        (None, Mode::Wal | Mode::Poll | Mode::Embedded) => ClaimSource::Table,
    };
    ClaimSettings {
        interval: spec.poll.interval,
        batch: spec.poll.batch,
        rows_max: CLAIM_ROWS_MAX,
        keeps_failures: polling.keeps_failures,
        source,
    }
}

/// Polls until something ends it. Returns also whether a repair has ended.
pub(super) async fn poll(
    pipeline: &mut Pipeline,
    context: &mut SessionContext,
    mut polling: Polling,
    stop: &Stop,
) -> (End, bool) {
    let Polling { poller, store, .. } = &mut polling;
    let wait = context.ownership.wait(pipeline, store, poller.closed(), stop);
    match Box::pin(wait).await {
        Waited::Done(Ok(true)) => {}
        Waited::Done(Ok(false)) => return (End::Restart, false),
        Waited::Done(Err(error)) => return (End::Lost(error, Phase::Control), false),
        Waited::Over(exit) => return (End::Over(exit), false),
    }
    let expires = context.spec.poll.table.as_ref().is_some_and(PollSpec::expires);
    let rules = PollingRules {
        failures_stay: polling.keeps_failures,
        claims_expire: expires && polling.poller.repairs().is_none(),
    };
    if let Err(refused) = pipeline.engine.polls(rules) {
        let halt = Box::new(halts::polling_refused(refused, context.spec.common.mode));
        return (End::Over(PipelineExit::Halted(halt)), false);
    }
    let ended = match begin_history(pipeline, &polling.store, true) {
        Ok(()) => PollSession::new(pipeline, context, polling).run(stop).await,
        Err(halt) => (End::Over(PipelineExit::Halted(halt)), false),
    };
    pipeline.engine.polls_no_more();
    ended
}

impl<'a> PollSession<'a> {
    fn new(pipeline: &'a mut Pipeline, context: &'a mut SessionContext, polling: Polling) -> Self {
        let settings = settings(&polling, &context.spec, context.drops_slot);
        let Polling { poller, store, parked, start, instance, .. } = polling;
        let port = ClaimPort::new(poller, Arc::clone(&context.spec));
        Self {
            claims: Claims::new(pipeline.now(), settings, start),
            backlog_monitor: BacklogMonitor::new(store.shared_client(), port.oldest_ready()),
            pipeline,
            context,
            port,
            store,
            instance,
            parked: Some(parked),
            slot_step: None,
            leave_at: None,
            locked: LockedRows::default(),
            repaired: false,
        }
    }

    async fn run(mut self, stop: &Stop) -> (End, bool) {
        let end = self.poll_on(stop).await;
        (end, self.repaired)
    }

    async fn poll_on(&mut self, stop: &Stop) -> End {
        let spec = Arc::clone(&self.context.spec);
        let instead_of_slot = spec.common.mode == Mode::Auto && self.port.repairs().is_none();
        let canceller = self.store.canceller();
        let begun = Box::pin(self.drive(ClaimInput::Begin, stop));
        match unless_stopped(stop, canceller, begun).await {
            Ok(Some(None)) => {}
            Ok(Some(Some(PollingEnd::Exit(exit)))) => return End::Over(exit),
            Ok(Some(Some(PollingEnd::Streams | PollingEnd::Reconnect))) => return End::Restart,
            // Nothing was claimed yet, and nothing is in flight.
            Ok(None) => {
                self.pipeline.apply(self.pipeline.now(), Input::Drain);
                let exit = self.pipeline.source_lost().unwrap_or(PipelineExit::Stopped);
                if self.pipeline.give_up_in_flight() {
                    self.leave_ownership().await;
                }
                return End::Over(exit);
            }
            Err(error) => return End::Lost(error, Phase::Control),
        }
        if spec.common.mode == Mode::Poll {
            self.backlog_monitor.watch_slot(spec);
        }
        if instead_of_slot {
            self.context.drops_slot = false;
        }
        loop {
            match self.turn(stop).await {
                Ok(None) => {}
                Ok(Some(end)) => return self.ends(end, stop).await,
                Err(error) => {
                    // The state of the open claim is unknown: all of it is claimed again.
                    self.pipeline.apply(self.pipeline.now(), Input::SlotTaken);
                    return match self.pipeline.source_lost() {
                        Some(exit) => self.pipeline.session_end(exit),
                        None => End::Lost(error, Phase::Control),
                    };
                }
            }
        }
    }

    async fn ends(&mut self, end: PollingEnd, stop: &Stop) -> End {
        match end {
            PollingEnd::Streams => {
                // A service continues as the owner; `postrider repair` ends here.
                if self.context.spec.repair.only && self.pipeline.give_up_in_flight() {
                    self.leave_ownership().await;
                }
                // The session may exist a moment longer, and the stream asks for the lock at once.
                if let Err(error) = self.port.unlock().await {
                    return End::Lost(error, Phase::Control);
                }
            }
            PollingEnd::Reconnect => {}
            PollingEnd::Exit(exit) => {
                let left = self.pipeline.give_up_in_flight();
                // What is acknowledged is settled.
                if let Err(error) = self.drive(ClaimInput::Exit, stop).await {
                    self.pipeline.observer.source().shutdown_error(&error);
                }
                if left {
                    self.leave_ownership().await;
                }
                return self.pipeline.session_end(exit);
            }
        }
        let over = self.pipeline.source_lost();
        over.map_or(End::Restart, |exit| self.pipeline.session_end(exit))
    }

    /// Notes in the cursor row that no record of this process is in flight.
    async fn leave_ownership(&mut self) {
        self.context.ownership.leave(self.pipeline, &self.store).await;
    }

    /// Applies an input to the claims.
    fn apply(&mut self, input: ClaimInput<'_>, effects: &mut Vec<ClaimEffect>) {
        let now = self.pipeline.now();
        self.claims.apply(now, input, &mut self.pipeline.engine, effects);
    }

    async fn turn(&mut self, stop: &Stop) -> Result<Option<PollingEnd>, SourceError> {
        let now = self.pipeline.now();
        self.pipeline.take_posts(now);
        if self.pipeline.sink.is_located() {
            self.pipeline.report_located();
            return Ok(Some(PollingEnd::Reconnect));
        }
        self.pipeline.offer_attempts(now);
        self.feed_claim(now);
        if let Some(end) = self.perform_relay(stop).await? {
            return Ok(Some(end));
        }
        let had_claim = self.claims.open().is_some();
        let (overruled, writing) = (self.store.is_overruled(), self.store.is_writing_parking());
        let end = self.drive(ClaimInput::Turn { overruled, writing }, stop).await?;
        // After a claim the next one is made at once.
        if end.is_some() || had_claim && self.claims.open().is_none() {
            return Ok(end);
        }
        self.pipeline.observer.store().slow_write(self.store.written_since());
        self.pipeline.report_sometimes(None);
        let event = self.wait(stop).await;
        self.react(event, stop).await
    }

    /// Feeds rows of the claim until something stops it.
    fn feed_claim(&mut self, now: Duration) {
        let Self { pipeline, claims, port, .. } = self;
        while let Some((index, ClaimedRow { too_large, .. })) =
            claims.next_row(now, &mut pipeline.engine)
        {
            let Some(row) = port.row(index) else { return };
            if !pipeline.feed_row(now, &row, too_large) {
                return;
            }
            claims.row_fed();
        }
    }

    /// Performs the relay's effects; returns the end if the relay has come to its end.
    async fn perform_relay(&mut self, stop: &Stop) -> Result<Option<PollingEnd>, SourceError> {
        let (mut end, mut effects) = (None, Vec::new());
        self.apply(ClaimInput::RelayEffects, &mut effects);
        while !self.pipeline.engine.effects().is_empty() {
            let mut pending = std::mem::take(self.pipeline.engine.effects()).into_iter();
            while let Some(effect) = pending.next() {
                self.apply(ClaimInput::Relay(effect), &mut effects);
                match self.perform_all(&mut effects, stop).await {
                    Ok(ended) => end = ended.or(end),
                    // The relay has come to its end, and says so once: the session is lost behind it.
                    Err(error) if end.is_some() => {
                        self.pipeline.observer.source().shutdown_error(&error);
                        return Ok(end);
                    }
                    Err(error) => {
                        // The end of the relay may be among the effects that are left.
                        drop(self.pipeline.engine.effects().splice(0..0, pending));
                        return Err(error);
                    }
                }
            }
        }
        self.pipeline.fetch_records(&mut self.store);
        self.pipeline.observer.observe_latency();
        Ok(end)
    }

    /// Applies an input to the claims, and performs what they require.
    async fn drive(
        &mut self,
        input: ClaimInput<'_>,
        stop: &Stop,
    ) -> Result<Option<PollingEnd>, SourceError> {
        let mut effects = Vec::new();
        self.apply(input, &mut effects);
        self.perform_all(&mut effects, stop).await
    }

    /// Performs the effects of the claims, and those that follow from the answers, until no answer is due.
    async fn perform_all(
        &mut self,
        effects: &mut Vec<ClaimEffect>,
        stop: &Stop,
    ) -> Result<Option<PollingEnd>, SourceError> {
        let (mut end, mut next) = (None, Vec::new());
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                let ended = match self.perform_at_once(effect) {
                    Ok(ended) => ended,
                    Err(effect) => {
                        Box::pin(self.perform_statement(effect, &mut next, stop)).await?
                    }
                };
                end = ended.or(end);
            }
            std::mem::swap(effects, &mut next);
        }
        Ok(end)
    }

    /// Performs an effect that needs no statement; gives it back if it needs one.
    fn perform_at_once(&mut self, effect: ClaimEffect) -> Result<Option<PollingEnd>, ClaimEffect> {
        match effect {
            // The claims keep to themselves what is left.
            ClaimEffect::Perform(effect) => {
                drop(self.pipeline.perform_parking(&mut self.store, effect));
            }
            ClaimEffect::ResetSink(why) => self.pipeline.reset_sink(why),
            ClaimEffect::Started => {
                let table = self.context.spec.names.table.as_ref().map(ToString::to_string);
                self.pipeline.observer.source().polling(table.as_deref());
                self.pipeline.report(None);
            }
            ClaimEffect::Processed => {
                // No row is ready, if the last claim took all there were.
                if let Some(began) = self.port.processed() {
                    let (began, now) = (began.into_std(), std::time::Instant::now());
                    self.pipeline.observer.lag().polled(OldestRow::None, began, now);
                }
            }
            ClaimEffect::Slot(step) => {
                let spec = Arc::clone(&self.context.spec);
                let step = slot_step(spec, self.store.epoch(), self.instance.clone(), step);
                self.slot_step = Some(step);
            }
            ClaimEffect::Ends(end) => {
                return Ok(Some(match end {
                    PollEnd::Stopped => PollingEnd::Exit(PipelineExit::Stopped),
                    PollEnd::Halted(halt) => PollingEnd::Exit(PipelineExit::Halted(halt)),
                    PollEnd::Streams => PollingEnd::Streams,
                    PollEnd::Overruled => PollingEnd::Reconnect,
                }));
            }
            statement @ (ClaimEffect::MarkStreamed
            | ClaimEffect::QueryRequeued
            | ClaimEffect::ReadParked { .. }
            | ClaimEffect::Claim { .. }
            | ClaimEffect::Accepted
            | ClaimEffect::Park { .. }
            | ClaimEffect::Settle { .. }
            | ClaimEffect::SettlePart { .. }
            | ClaimEffect::Abandon
            | ClaimEffect::KeepOpen
            | ClaimEffect::FinishPolling
            | ClaimEffect::FinishRepair) => return Err(statement),
        }
        Ok(None)
    }

    /// Performs an effect of the claims; `next` gets what follows from its answer. Returns the end if the table does
    /// not fit.
    async fn perform_statement(
        &mut self,
        effect: ClaimEffect,
        next: &mut Vec<ClaimEffect>,
        stop: &Stop,
    ) -> Result<Option<PollingEnd>, SourceError> {
        let first = self.parked.is_some();
        let answer = match effect {
            ClaimEffect::Perform(_)
            | ClaimEffect::ResetSink(_)
            | ClaimEffect::Started
            | ClaimEffect::Processed
            | ClaimEffect::Slot(_)
            | ClaimEffect::Ends(_) => return Ok(None),
            ClaimEffect::Accepted => {
                self.claim_accepted(stop).await?;
                return Ok(None);
            }
            ClaimEffect::ReadParked { in_claim } => {
                let halt = self.read_parked(in_claim, next, stop).await?;
                return Ok(halt.map(|halt| PollingEnd::Exit(PipelineExit::Halted(halt))));
            }
            ClaimEffect::Park { rows, statuses } => {
                self.park(rows, &statuses, next, stop).await?;
                return Ok(None);
            }
            ClaimEffect::Claim { limit, all } => {
                let requeued = self.pipeline.engine.requeued();
                let keeps = |id: &str| requeued.keeps_expired(id);
                match self.port.claim((limit, all), &keeps, stop).await? {
                    Some(claim) => ClaimInput::Claimed(claim),
                    None => ClaimInput::ClaimStopped,
                }
            }
            ClaimEffect::MarkStreamed => {
                self.mark_streamed(first, stop).await?;
                ClaimInput::Marked
            }
            ClaimEffect::QueryRequeued => {
                if first && !self.claims.reads_list() && !self.pipeline.observer.is_polling() {
                    self.report_unmarked_rows().await;
                }
                ClaimInput::RequeuedFound(self.query_requeued(stop).await?)
            }
            ClaimEffect::Settle { outcomes, undo_from, places } => {
                let owned = self.settle(&outcomes, (undo_from, &places), stop).await?;
                ClaimInput::Settled { owned, writing: self.store.is_writing_parking() }
            }
            ClaimEffect::SettlePart { outcomes, left } => {
                let kept = self.settle_part(&outcomes, &left, stop).await?;
                ClaimInput::SettledPart { owned: kept.is_some(), kept: kept.unwrap_or(false) }
            }
            ClaimEffect::Abandon => {
                self.port.abandon().await?;
                ClaimInput::Abandoned { writing: self.store.is_writing_parking() }
            }
            ClaimEffect::KeepOpen => {
                self.port.keep_open().await?;
                ClaimInput::KeptOpen
            }
            ClaimEffect::FinishPolling => {
                ClaimInput::PollingFinished(self.finish_polling(stop).await?)
            }
            ClaimEffect::FinishRepair => {
                ClaimInput::RepairFinished { ended: self.repair_ends(stop).await? }
            }
        };
        self.apply(answer, next);
        Ok(None)
    }

    async fn wait(&mut self, stop: &Stop) -> PollEvent {
        let pipeline = &*self.pipeline;
        let claim = self.claims.claim_due(&pipeline.engine, pipeline.broker_is_down());
        let (claims, claim_at) = (claim.is_some(), pipeline.instant(claim.unwrap_or_default()));
        let slot = self.claims.slot_due();
        let (steps, step_at) = (slot.is_some(), pipeline.instant(slot.unwrap_or_default()));
        let due = pipeline.due();
        let deadline = self.claims.deadline(pipeline.now());
        let due = deadline.map_or(due, |at| due.min(pipeline.instant(at)));
        let Self { port, store, leave_at, slot_step, backlog_monitor, .. } = self;
        let wake = port.wake();
        let grace = leave_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = stop.leave() => PollEvent::Leave,
            () = stop.drain(), if leave_at.is_none() => PollEvent::Drain,
            () = tokio::time::sleep_until(grace), if leave_at.is_some() => PollEvent::Grace,
            error = port.closed() => PollEvent::Lost(error),
            event = store.next() => PollEvent::Store(event),
            () = tokio::time::sleep_until(claim_at), if claims => PollEvent::Claim,
            () = wake.notified(), if claims => PollEvent::Claim,
            () = pipeline.sink.arrived() => PollEvent::Posts,
            done = await_job(slot_step), if slot_step.is_some() => PollEvent::SlotStepDone(done),
            () = tokio::time::sleep_until(step_at), if steps => PollEvent::SlotDue,
            backlog = backlog_monitor.next() => PollEvent::Backlog(backlog),
            () = tokio::time::sleep_until(due) => PollEvent::Due,
        }
    }

    async fn react(
        &mut self,
        event: PollEvent,
        stop: &Stop,
    ) -> Result<Option<PollingEnd>, SourceError> {
        let now = self.pipeline.now();
        let input = match event {
            PollEvent::Leave | PollEvent::Grace => {
                return Ok(Some(PollingEnd::Exit(self.pipeline.leave(now))));
            }
            PollEvent::Drain => {
                self.leave_at = Some(self.pipeline.drain(now));
                return Ok(None);
            }
            PollEvent::Lost(error) => return Err(error),
            PollEvent::Store(event) => return self.store_event(event).map(|()| None),
            PollEvent::Backlog(Ok((BacklogStatus { oldest, left }, began))) => {
                let observer = &mut self.pipeline.observer;
                if self.context.spec.common.mode == Mode::Poll {
                    observer.slot_left_behind(left.as_ref());
                }
                observer.lag().polled(oldest, began.into_std(), std::time::Instant::now());
                return Ok(None);
            }
            // The session has ended. With an SQLSTATE the server refuses only this query, and polling continues.
            PollEvent::Backlog(Err(error)) if error.sqlstate().is_none() => return Err(error),
            PollEvent::Backlog(Err(error)) => {
                self.pipeline.observer.source().look_failed(&error);
                return Ok(None);
            }
            PollEvent::Posts => return Ok(None),
            PollEvent::Claim => ClaimInput::ClaimDue,
            PollEvent::SlotDue => ClaimInput::SlotDue,
            PollEvent::SlotStepDone(outcome) => {
                self.slot_step = None;
                ClaimInput::Slot(self.slot_step_done(outcome))
            }
            PollEvent::Due => ClaimInput::Tick { broker_down: self.pipeline.broker_is_down() },
        };
        self.drive(input, stop).await
    }

    /// Handles what happened on the store session.
    fn store_event(&mut self, event: StoreEvent) -> Result<(), SourceError> {
        let Self { pipeline, store, .. } = self;
        match event {
            StoreEvent::Lost(error) => Err(error),
            StoreEvent::Parking(written) => pipeline.parking_written(store, written),
            StoreEvent::Fetched(fetched) => pipeline.fetched(fetched),
            StoreEvent::RequestsDue => {
                pipeline.find_requests(store);
                Ok(())
            }
            StoreEvent::Requests(found) => {
                let now = pipeline.now();
                if let Some(pause) = pipeline.requests_found(found)?
                    && let Some(until) = pipeline.pause(now, pause)
                {
                    self.leave_at = Some(until);
                }
                Ok(())
            }
            // While the table is polled, no cursor row is written.
            StoreEvent::Cursor(written) => written.map(|_| ()),
        }
    }

    /// Waits until no statement is running on the control session: one of them may be a write.
    async fn finish_jobs(&mut self, stop: &Stop) -> Result<(), SourceError> {
        finish_jobs(self.pipeline, &mut self.store, stop).await
    }

    /// The newest claim is accepted: for logs and metrics.
    async fn claim_accepted(&mut self, stop: &Stop) -> Result<(), SourceError> {
        let reads_list = self.claims.reads_list();
        let Some(ClaimReport { expired, missed }) = self.port.accepted(reads_list) else {
            return Ok(());
        };
        self.pipeline.observer.lag().answered(std::time::Instant::now());
        self.pipeline.observer.rows_expired(expired);
        self.report_lock_holders(&missed, stop).await
    }

    /// Finds out at intervals which sessions have locked rows that claims could not have, and logs them.
    async fn report_lock_holders(
        &mut self,
        missed: &MissedRows,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        self.locked.note(missed);
        let Some(rows) = self.locked.due() else { return Ok(()) };
        let Some(spec) = &self.context.spec.poll.table else { return Ok(()) };
        let table = spec.table.clone();
        let holders = if rows.is_empty() {
            Vec::new()
        } else {
            self.finish_jobs(stop).await?;
            // The holders are shown to people only: their query must not end the claim.
            rows.holders(self.store.client(), &table).await.unwrap_or_default()
        };
        if holders.is_empty() {
            // The rows are delayed, or have failed, or are free again.
            self.locked.free();
            self.pipeline.observer.store().claims_go_on();
        } else {
            self.pipeline.observer.store().claims_wait(&table, &holders);
        }
        Ok(())
    }

    /// Logs how many rows without a mark the stream has passed: polling publishes them, although they may be published
    /// already. There are such rows if `mode` was "wal" before. A query that fails does not prevent session.
    async fn report_unmarked_rows(&mut self) {
        let Some(spec) = self.context.spec.poll.table.clone() else { return };
        let (client, key) = (self.store.client(), self.context.spec.key());
        let counted = async {
            let ledger = repair::resolved_baseline(client, key, None, Duration::ZERO).await?;
            let method = Method::of(client, Selection::Both, ledger.known.as_deref()).await?;
            let table = OutboxTable::read(client, spec).await?;
            method.count_passed(client, &table, UNMARKED_MAX).await
        };
        match counted.await {
            Ok(None | Some(0)) => {}
            Ok(Some(rows)) => {
                let or_more = rows >= u64::from(UNMARKED_MAX);
                self.pipeline.observer.store().unmarked_rows(rows, or_more);
            }
            Err(error) => self.pipeline.observer.source().look_failed(&error),
        }
    }

    /// Reads the parked events, and starts relay and mapper with them. Returns a halt if the table does not fit.
    async fn read_parked(
        &mut self,
        in_claim: bool,
        next: &mut Vec<ClaimEffect>,
        stop: &Stop,
    ) -> Result<Option<Box<Halt>>, SourceError> {
        let loaded = match self.parked.take() {
            Some(loaded) => loaded,
            None if in_claim => self.port.load_parked().await?,
            None => {
                self.finish_jobs(stop).await?;
                load_all(self.store.client(), self.context.spec.key()).await?
            }
        };
        let table = self.port.description();
        let pipeline = &mut *self.pipeline;
        pipeline.mapper.clear_tables(Some(table.id));
        if let Err(error) = pipeline.mapper.table(&table.as_table()) {
            return Ok(Some(Box::new(halts::unfit_table(&error, pipeline.spec.mode))));
        }
        self.context.history = None;
        pipeline.sink.awaits(None);
        pipeline.confirmed = Watermark::default();
        let entries: Vec<Entry> = loaded.iter().map(|row| row.entry).collect();
        pipeline.observer.parked_loaded(&loaded);
        let unsent = loaded.iter().filter(|row| row.dead_unsent);
        let read = ParkedEvents {
            parked: &entries,
            requests: &requests(&loaded),
            dead_unsent: &unsent.map(|row| row.entry.position).collect::<Vec<_>>(),
        };
        self.apply(ClaimInput::ParkedRead(read), next);
        Ok(None)
    }

    /// Takes rows of parked events. They are written to the parked table in the transaction of the claim, or become the
    /// failure of the row if the outbox table has columns for that.
    async fn park(
        &mut self,
        rows: usize,
        statuses: &[ParkedUpdate],
        next: &mut Vec<ClaimEffect>,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        let rows = self.pipeline.records.take_rows(rows);
        let engine = &mut self.pipeline.engine;
        let plan = self.port.plan_parking(&rows, &mut self.claims, engine).await?;
        let written = ParkedInClaim::of(&plan, &rows);
        for row in written.doubted() {
            self.pipeline.observer.failed(row.event_type.as_deref().unwrap_or_default());
            self.pipeline.observer.failure_parked(row);
        }
        self.pipeline.observer.causes_changed(statuses);
        let statuses_written = self.store.write_statuses(statuses);
        let mut stored = within_shutdown_grace(self.pipeline, stop, statuses_written).await?;
        if stored != Stored::TakenOver {
            let rows_stored = self.port.park(self.store.epoch(), &plan, &written).await?;
            drop(self.pipeline.records.stored());
            // A write of rows alone leaves nothing out.
            if rows_stored != Stored::Yes {
                stored = rows_stored;
            }
        }
        let left: &[Position] = match &stored {
            Stored::Except(left) => left,
            Stored::Yes | Stored::TakenOver => &[],
        };
        let owned = stored != Stored::TakenOver;
        if !owned {
            self.pipeline.observer.store().row_taken(&CursorWrite::TakenOver);
        }
        self.apply(ClaimInput::Parked { owned, locked: left }, next);
        if owned {
            // The next write queries the sessions that have locked the rows left out.
            self.pipeline.report_locked(left, &[]);
        }
        Ok(())
    }

    /// Writes the outcomes of a claim, and commits; returns whether this process still owns the pipeline.
    async fn settle(
        &mut self,
        outcomes: &[RowOutcome],
        undo: (Option<Position>, &[(Position, Position)]),
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        if self.claims.reads_list() {
            self.pipeline.observer.repair_progress();
        }
        let settled = self.port.settle(self.store.epoch(), outcomes, undo);
        let owned = within_shutdown_grace(self.pipeline, stop, settled).await?;
        if !owned {
            self.pipeline.observer.store().row_taken(&CursorWrite::TakenOver);
        }
        Ok(owned)
    }

    /// Writes the outcomes of a part of a claim, and commits; the rows `left` stay in the claim. Returns whether they
    /// could be kept; `None` if this process does not own the pipeline any more.
    async fn settle_part(
        &mut self,
        outcomes: &[RowOutcome],
        left: &[usize],
        stop: &Stop,
    ) -> Result<Option<bool>, SourceError> {
        let settled = self.port.settle_part(self.store.epoch(), outcomes, left);
        let kept = within_shutdown_grace(self.pipeline, stop, settled).await?;
        if kept.is_none() {
            self.pipeline.observer.store().row_taken(&CursorWrite::TakenOver);
        } else if self.claims.reads_list() {
            self.pipeline.observer.repair_progress();
        }
        Ok(kept)
    }

    /// Writes the statuses of rows that the stream has published, if the rows are not locked. `first`: before the table
    /// is queried for unpublished rows, on a new session. The IDs of the others are remembered, and skipped in claims.
    async fn mark_streamed(&mut self, first: bool, stop: &Stop) -> Result<(), SourceError> {
        if first {
            self.pipeline.prepare_statuses(&mut self.store).await?;
        } else {
            self.finish_jobs(stop).await?;
        }
        match self.pipeline.take_statuses(&self.store, None) {
            Some(job) => {
                let made = job.make(self.store.client()).await?;
                self.pipeline.statuses_made(made);
            }
            // Rows that waited are left to the claims.
            None => self.pipeline.observer.store().marks_made(),
        }
        Ok(())
    }

    /// Finds the parked events whose rows are in the table or on the list. After a slot was lost, a parked event whose
    /// row is still in the outbox table is requeued at its place among the rows of its aggregate.
    async fn query_requeued(&mut self, stop: &Stop) -> Result<Vec<RequeueCandidate>, SourceError> {
        self.finish_jobs(stop).await?;
        let (client, spec) = (self.store.client(), &self.context.spec);
        if let Some(list) = self.port.repairs() {
            return requeue::listed(client, spec.key(), list.table()).await;
        }
        match &spec.poll.table {
            Some(table) if spec.common.mode == Mode::Auto => {
                let table = OutboxTable::read(client, table.clone()).await?;
                requeue::unpublished(client, spec.key(), &table).await
            }
            Some(_) | None => Ok(Vec::new()),
        }
    }

    /// The table is published: the stream may continue from the slot. Returns the end of WAL.
    async fn finish_polling(&mut self, stop: &Stop) -> Result<Offset, SourceError> {
        self.finish_jobs(stop).await?;
        let client = self.store.client();
        cursor::polled(client, self.context.spec.key(), self.store.epoch()).await?;
        Ok(catalog::read_server(client).await?.wal_end)
    }

    /// The list is published: sets the cursor. Returns whether the repair has ended, with or without success.
    async fn repair_ends(&mut self, stop: &Stop) -> Result<bool, SourceError> {
        let Some(list) = self.port.repairs() else { return Ok(false) };
        let finished = finish_repair(list, &self.context.spec, self.store.epoch(), stop).await?;
        // An unfinished step is finished by the next start.
        let Some(finished) = finished else { return Ok(false) };
        match finished {
            RepairOutcome::Done(row) => {
                self.repaired = true;
                self.pipeline.observer.source().repaired(&row);
            }
            RepairOutcome::SlotChanged => self.pipeline.observer.source().slot_gone_again(),
            RepairOutcome::TakenOver => {
                self.pipeline.observer.store().row_taken(&CursorWrite::TakenOver);
            }
            RepairOutcome::Unexplained { row, left } => {
                let halt = Box::new(unexplained(&self.context.spec, &row, left));
                self.pipeline.apply(self.pipeline.now(), Input::Halt(halt));
            }
        }
        Ok(true)
    }

    /// The answer of a step for the slot, for the claims.
    fn slot_step_done(&mut self, outcome: Result<SlotOutcome, SourceError>) -> SlotAnswer {
        let Self { pipeline, context, .. } = self;
        let observer = &mut pipeline.observer;
        let spec = Arc::clone(&context.spec);
        let slot = &spec.names.slot;
        match outcome {
            Ok(SlotOutcome::Usable) => {
                observer.source().slot_exists(slot);
                SlotAnswer::Usable
            }
            Ok(SlotOutcome::Dropped) => {
                observer.slot_dropped(slot);
                SlotAnswer::Dropped
            }
            // The new slot waits until the table is published, and retains WAL meanwhile.
            Ok(SlotOutcome::Retains(bytes)) => {
                observer.slot_held(Some(bytes));
                let over_limit = spec.polls_instead_of_slot()
                    && context.check_wal_retention(observer, bytes).is_some();
                SlotAnswer::Retains { over_limit }
            }
            Ok(SlotOutcome::Refused { reason, bytes }) => {
                // Above the limit the slot is not dropped here: that needs the right that is missing.
                observer.slot_held((bytes > 0).then_some(bytes));
                let of = format!("slot {slot:?} retains {} MiB of WAL meanwhile", bytes >> 20);
                let words = if bytes == 0 { reason } else { format!("{reason}; {of}") };
                observer.source().slot_not_yet(&words);
                SlotAnswer::NotYet
            }
            Ok(SlotOutcome::NotYet(reason)) => {
                observer.source().slot_not_yet(&reason);
                SlotAnswer::NotYet
            }
            Err(error) => {
                observer.source().slot_not_yet(&Chain(&error).to_string());
                SlotAnswer::Failed
            }
        }
    }
}
