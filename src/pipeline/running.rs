//! A running pipeline: the parts that live from its start to its exit, whatever it is connected to.
//!
//! The sessions (`stream`, `poll`, `embedded`) take one input at a time, apply it here, and perform the effects of the
//! relay in order. What they do alike is here: posts of the sink, retries, answers of the store, and the effects that
//! need no connection.

use super::counting::{Counting, Recounted};
use super::destinations::SinkProblem;
use super::failpoint::failpoint;
use super::failure::End;
use super::feed::{Fed, Feeder};
use super::halts;
use super::mode::Mode;
use super::observer::{Facts, Observer, REPORT_INTERVAL};
use super::record_buffer::{AttemptPurpose, LargeInFlight, PendingAttempt, RecordBuffer};
use super::row_status::{RowStatusJob, RowStatusOutcome, WaitingRows};
use super::sink_port::SinkPort;
use super::slot_monitor::SlotStatus;
use super::spec::CommonSpec;
use super::stop::{PipelineExit, Stop};
use super::store_port::{
    ATTEMPTS_BYTES_MAX, Fetched, FoundRequests, ParkedWrite, RequestsQuery, StorePort, is_passing,
};
use crate::ack::Progress;
use crate::engine::Engine;
use crate::error::Halt;
use crate::event::{Histories, Position};
use crate::metrics::PipelineMetrics;
use crate::offset::Watermark;
use crate::outbox::Mapper;
use crate::parked::{ParkedUpdate, Request};
use crate::postgres::SourceError;
use crate::postgres::lock_holders::Holder;
use crate::postgres::store::cursor::CursorWrite;
use crate::postgres::store::parked::{Loaded, Stored};
use crate::postgres::store::pause::Pause;
use crate::published::RowStatusRule;
use crate::record::{Outcome, Refusal, Scope, Ticket};
use crate::relay::{Effect, Input, OnPoison, PollingRefused, Recovered, Restart, Settings};
use crate::row::Row;
use crate::sink::{NotTaken, Post, SinkCall, SinkProgress};
use crate::source;
use crate::status::StatusHandle;
use crate::status::TransactionsSummary;
use crate::store::Cursor;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest and the longest pause between two attempts to connect.
pub(super) const RECONNECT_MIN: Duration = Duration::from_millis(200);
pub(super) const RECONNECT_MAX: Duration = Duration::from_secs(15);

/// How long a start waits, since the sink was opened, for a broker to report the ID of its cluster. After that the
/// pipeline starts, and publishes nothing until a broker has reported it.
const CLUSTER_WAIT: Duration = Duration::from_secs(2);
const CLUSTER_PAUSE: Duration = Duration::from_millis(20);

/// The longest time that the sink gets to close.
const SINK_CLOSE_MAX: Duration = Duration::from_secs(2);

/// Dead events whose rows are checked in one query.
const DEAD_MAX: usize = 10_000;

/// How long an attempt may wait for its destination before it is postponed.
const DESTINATION_WAIT_MAX: Duration = Duration::from_secs(10);

/// The outcome of an attempt whose topic is missing or accepts no records. The reason is a placeholder that is never
/// reported.
const NO_DESTINATION: Outcome =
    Outcome::Rejected { scope: Scope::Destination, reason: Refusal::destination("") };

/// The parts of a running pipeline.
pub(super) struct Pipeline {
    /// What the pipeline is configured with, whatever it reads from.
    pub(super) spec: Arc<CommonSpec>,
    /// Decides the order and the confirmation of events.
    pub(super) engine: Engine,
    /// Makes events of rows and logical messages.
    pub(super) mapper: Mapper,
    /// Where records are published.
    pub(super) sink: SinkPort,
    /// Records of parked events.
    pub(super) records: RecordBuffer,
    /// Counters, log, status, metrics, and the wall clock.
    pub(super) observer: Observer,
    /// The last position that was confirmed to the source.
    pub(super) confirmed: Watermark,
    /// The histories that published positions belong to.
    histories: Histories,
    /// How positions within a transaction are stored.
    pub(super) counting: Counting,
    /// Which published rows get a status.
    row_status: RowStatusRule,
    /// Zero of the relay's clock.
    epoch: Instant,
}

/// The result of a wait.
pub(super) enum Waited<T> {
    Done(T),
    Over(PipelineExit),
}

impl Pipeline {
    /// The parts of a pipeline, with an open sink.
    ///
    /// # Errors
    /// The halt of a pipeline whose outbox or sink can't be used.
    pub(super) fn new(
        spec: CommonSpec,
        row_status: RowStatusRule,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
    ) -> Result<Self, Halt> {
        let mapper = spec.mapper().map_err(|e| halts::unfit_outbox(&e))?;
        let sink = SinkPort::open(&spec)?;
        let settings = settings(&spec);
        if settings.transactions.is_some() && matches!(spec.mode, Mode::Poll | Mode::Auto) {
            return Err(halts::polling_refused(PollingRefused, spec.mode));
        }
        let spec = Arc::new(spec);
        Ok(Self {
            engine: Engine::new(settings, row_status),
            mapper,
            sink,
            records: RecordBuffer::default(),
            observer: Observer::new(Arc::clone(&spec), status_handle, metrics),
            confirmed: Watermark::default(),
            histories: Histories::default(),
            counting: Counting::default(),
            row_status,
            epoch: Instant::now(),
            spec,
        })
    }

    /// Applies an input to the relay.
    pub(super) fn apply(&mut self, now: Duration, input: Input<'_>) {
        self.engine.apply(now, input);
    }

    /// Time since this pipeline began: the clock of the relay.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// A moment by the clock of the relay.
    pub(super) fn instant(&self, at: Duration) -> Instant {
        self.epoch + at
    }

    /// When the loop must turn at the latest.
    pub(super) fn due(&self) -> Instant {
        let report = Instant::now() + self.observer.report_pause();
        let due = self.sink.due().map_or(report, |at| report.min(at.into()));
        self.engine.relay().deadline().map_or(due, |at| (self.epoch + at).min(due))
    }

    /// The histories that published positions belong to.
    pub(super) fn histories(&self) -> &Histories {
        &self.histories
    }

    /// Creates the mapper of a session. `rows`: it reads claims, whose rows have no position in the WAL.
    ///
    /// # Errors
    /// The halt of a pipeline whose outbox can't be used.
    pub(super) fn reset_mapper(
        &mut self,
        histories: &Histories,
        rows: bool,
    ) -> Result<(), Box<Halt>> {
        let mut mapper = self.spec.mapper().map_err(|e| Box::new(halts::unfit_outbox(&e)))?;
        mapper.set_histories(histories.clone(), rows);
        self.mapper = mapper;
        self.histories = histories.clone();
        Ok(())
    }

    fn feeder(&mut self) -> Feeder<'_> {
        let Self { spec, engine, mapper, sink, records, observer, .. } = self;
        Feeder { spec, engine, mapper, sink, records, observer }
    }

    /// Feeds the changes of `batch` from `place` on until something stops it.
    pub(super) fn feed(
        &mut self,
        now: Duration,
        batch: &mut (impl source::Batch + ?Sized),
        place: &mut usize,
        changes: &mut usize,
    ) -> Fed {
        self.feeder().feed(now, batch, place, changes)
    }

    /// Feeds one row of a claim; returns whether it was accepted. `too_large`: its payload was not read.
    pub(super) fn feed_row(&mut self, now: Duration, row: &Row<'_>, too_large: bool) -> bool {
        let mut feeder = self.feeder();
        if too_large { feeder.feed_too_large(now, row) } else { feeder.feed_row(now, row) }
    }

    /// Allows records to be published to the cluster for which the start was decided.
    pub(super) fn admit(&mut self) {
        self.sink.admit();
        let summary = self.spec.summary(self.sink.decided_cluster());
        self.observer.belongs_to(summary);
    }

    /// Waits up to [`CLUSTER_WAIT`] for a broker to report its cluster, so that a start need not be repeated because of
    /// it.
    pub(super) async fn await_cluster(
        &mut self,
        lease: Instant,
        stop: &Stop,
    ) -> Option<PipelineExit> {
        while self.sink.awaits_cluster() && self.sink.opened_at().elapsed() < CLUSTER_WAIT {
            let pause = tokio::time::sleep(CLUSTER_PAUSE);
            if let Waited::Over(exit) = self.waiting(pause, lease, stop).await {
                return Some(exit);
            }
        }
        self.sink.decide_cluster();
        None
    }

    /// Waits for `future` while there is no stream. Reports of the sink and a stop are handled meanwhile. What is in
    /// flight at `lease` is given up.
    pub(super) async fn waiting<F: Future>(
        &mut self,
        future: F,
        lease: Instant,
        stop: &Stop,
    ) -> Waited<F::Output> {
        let mut future = pin!(future);
        loop {
            let held = self.engine.relay().in_flight().0 > 0;
            tokio::select! {
                biased;
                () = stop.drain() => {
                    self.apply(self.now(), Input::Drain);
                    // Without a database no last cursor row can be written.
                    self.apply(self.now(), Input::SourceLost);
                }
                done = &mut future => {
                    return self.outcome().map_or(Waited::Done(done), Waited::Over);
                }
                () = self.sink.arrived() => self.take_posts(self.now()),
                () = tokio::time::sleep_until(lease), if held => {
                    self.apply(self.now(), Input::SlotTaken);
                }
                () = tokio::time::sleep(REPORT_INTERVAL) => self.take_posts(self.now()),
            }
            if let Some(exit) = self.outcome() {
                return Waited::Over(exit);
            }
            self.report_sometimes(None);
        }
    }

    /// Performs the effects that need no stream; returns the exit if the relay has come to its end. Without a stream
    /// nothing can be written or confirmed; the relay requires that again once there is a stream.
    pub(super) fn outcome(&mut self) -> Option<PipelineExit> {
        let mut exit = None;
        for effect in std::mem::take(self.engine.effects()) {
            match self.perform(effect) {
                Some(Effect::Restart { why }) => self.reset_sink(why),
                Some(Effect::Drained) => exit = Some(PipelineExit::Stopped),
                Some(Effect::Halt(halt)) => exit = Some(PipelineExit::Halted(halt)),
                Some(_) | None => {}
            }
        }
        self.observer.observe_latency();
        exit
    }

    /// Performs an effect of the relay that needs no connection; gives any other one back to its session.
    #[inline]
    pub(super) fn perform(&mut self, effect: Effect) -> Option<Effect> {
        match effect {
            Effect::Published { ticket, commit_time } => {
                self.engine.row_status().published(ticket);
                self.observer.published(commit_time);
            }
            Effect::Released { position } => {
                failpoint("retry_acknowledged");
                self.observer.released(position);
            }
            Effect::Overtaken { position, by } => self.observer.overtaken(position, by),
            Effect::DeadLetterRefused { position, reason } => {
                self.observer.undelivered(position, reason);
            }
            Effect::RecoverSink { call } => self.sink.recover(call),
            Effect::CommitSink { call, progress, attempts } => {
                failpoint("sink_commit");
                if let Some(position) = progress.partial.filter(|_| self.sink.keeps_whole()) {
                    self.observer.sink().divided(position);
                }
                let history = self.histories.of(progress.position().commit);
                let partial = self.counting.stored_by_sink(progress);
                let cursor = Cursor { history, watermark: progress.watermark, partial };
                self.sink.commit(call, &SinkProgress { cursor, published: attempts });
            }
            // These were answers to the change that was fed.
            Effect::Publish(_) | Effect::Park { .. } => {}
            Effect::WriteParking { .. }
            | Effect::Attempt { .. }
            | Effect::Probe { .. }
            | Effect::DeadLetter { .. }
            | Effect::WriteCursor(_)
            | Effect::Confirm(_)
            | Effect::Restart { .. }
            | Effect::Drained
            | Effect::Halt(_) => return Some(effect),
        }
        None
    }

    /// Performs an effect of the relay about parked events, as a session with a store does; gives any other one back.
    pub(super) fn perform_parking(
        &mut self,
        store: &mut StorePort,
        effect: Effect,
    ) -> Option<Effect> {
        match effect {
            Effect::WriteParking { rows, statuses } => self.write_parking(store, rows, statuses),
            Effect::Attempt { ticket, position } => self.records.add_attempt(ticket, position),
            Effect::Probe { ticket, position } => self.records.add_probe(ticket, position),
            Effect::DeadLetter { ticket, position } => {
                self.records.add_dead_letter(ticket, position);
            }
            Effect::Publish(_)
            | Effect::Park { .. }
            | Effect::DeadLetterRefused { .. }
            | Effect::Released { .. }
            | Effect::Published { .. }
            | Effect::Overtaken { .. }
            | Effect::RecoverSink { .. }
            | Effect::CommitSink { .. }
            | Effect::WriteCursor(_)
            | Effect::Confirm(_)
            | Effect::Restart { .. }
            | Effect::Drained
            | Effect::Halt(_) => return self.perform(effect),
        }
        None
    }

    /// Gives up what is in flight, as the relay requires.
    pub(super) fn reset_sink(&mut self, why: Restart) {
        // While the table is polled there is no slot that another process could have taken: a claim was given up.
        let given_up = why == Restart::SlotTaken && self.observer.is_polling();
        let reason = if given_up { "claim_given_up" } else { why.name() };
        let cursor = self.engine.relay().progress().watermark;
        self.observer.resetting(reason, cursor);
        self.records.clear();
        self.engine.row_status().given_up();
        self.sink.reset();
    }

    /// Gives up what is in flight before the slot is released: another process may take the slot at once, and a record
    /// that this producer sends later could land after the events of that process. The sink may hold more than the
    /// relay counts, because the relay has already given up what is unknown to it. Returns whether nothing was in
    /// flight.
    pub(super) fn give_up_in_flight(&mut self) -> bool {
        let nothing = self.engine.relay().in_flight().0 == 0
            && !self.engine.relay().has_unsettled_attempts()
            && self.sink.is_idle();
        if !nothing {
            self.sink.reset();
        }
        nothing
    }

    /// Gives up what is still in flight, and closes the sink.
    pub(super) fn finish(&mut self) {
        self.give_up_in_flight();
        self.sink.close(self.spec.shutdown_grace.min(SINK_CLOSE_MAX));
        // Nothing is read any more.
        self.observer.source().reads_nothing();
        self.report(None);
    }

    /// Applies the posts of the sink to the relay, then lets the sink continue.
    pub(super) fn take_posts(&mut self, now: Duration) {
        let mut posts = self.sink.take_posts();
        self.observer.read_clock();
        for post in posts.drain(..) {
            match post {
                Post::Report { ticket, outcome } => self.reported(now, ticket, outcome),
                Post::Retry => {}
                // The last start was decided without a known cluster, or for another cluster.
                Post::Located => self.sink.compare_cluster(),
                Post::Down { reason, hint, topic, missing } => {
                    let topic = topic.as_deref().map(|topic| (topic, missing));
                    self.sink_down(now, &reason, hint.as_deref(), topic);
                }
                Post::Held { topic, reason, hint } => {
                    self.sink.holds(&topic);
                    self.observer.sink_down(Some(&topic), &reason, hint.as_deref());
                }
                Post::Up { topic } => self.sink_up(topic.as_deref()),
                Post::Recovered { call, progress } => self.recovered(now, call, progress),
                Post::Committed { call } => {
                    failpoint("sink_committed");
                    if let Some(took) = self.sink.committed() {
                        self.observer.sink_committed(took);
                    }
                    self.apply(now, Input::SinkCommitted { call });
                }
                Post::Broken { reason } => {
                    self.observer.sink().broken(&reason);
                    self.apply(now, Input::SinkBroken);
                }
                Post::Unfit { reason, hint } => {
                    let halt = halts::unfit_running(reason, hint, self.spec.mode);
                    self.apply(now, Input::Halt(Box::new(halt)));
                    // Reports of events in flight may never arrive.
                    self.apply(now, Input::SinkBroken);
                }
            }
        }
        self.sink.posts_taken(posts, self.engine.ending());
    }

    /// The sink says what it has committed. Its position belongs to the source only if both have the same history
    /// there.
    fn recovered(&mut self, now: Duration, call: SinkCall, stored: Option<SinkProgress>) {
        let SinkProgress { cursor, published } = stored.clone().unwrap_or_default();
        let Cursor { history, watermark, partial } = cursor;
        let position = Progress { watermark, partial }.position();
        if stored.is_some() && !self.histories.has(position.commit, history) {
            let (ours, id) = (self.histories.current(), self.sink.transactional_id());
            let halt = halts::other_history_of_sink(history, ours, id);
            return self.apply(now, Input::Halt(Box::new(halt)));
        }
        if stored.is_none() {
            self.observer.sink().without_progress();
        }
        let partial = match self.counting.resumed_from_sink(partial) {
            Ok(partial) => partial,
            // Documents of captured tables are absolute then, and mean the same if they come twice.
            Err(Recounted) if self.promises_once() && !self.counting.needs_position() => {
                let id = self.sink.transactional_id();
                let halt = halts::recounted_transaction(&self.spec.name, position.commit, id);
                return self.apply(now, Input::Halt(Box::new(halt)));
            }
            Err(Recounted) => {
                self.counting.begins_again(partial);
                self.observer.sink().published_part_again(position.commit);
                None
            }
        };
        let progress = stored.map(|_| Progress { watermark, partial });
        let recovered = Recovered { progress, attempts: published };
        self.apply(now, Input::SinkRecovered { call, recovered });
    }

    /// Whether consumers see each event once.
    fn promises_once(&self) -> bool {
        self.spec.sink.capabilities().exactly_once
    }

    /// The sink accepts no records. With the topic comes whether it was never known.
    fn sink_down(
        &mut self,
        now: Duration,
        reason: &str,
        hint: Option<&str>,
        topic: Option<(&str, bool)>,
    ) {
        let stops = self.spec.parking.on_poison == OnPoison::Stop;
        let may_park = topic.is_some_and(|(_, missing)| missing && !stops);
        let topic = topic.map(|(topic, _)| topic);
        match (self.sink.down(topic, may_park, now), topic) {
            (SinkProblem::Destination { was_awaited }, Some(topic)) => {
                if was_awaited {
                    // That report ends.
                    self.observer.sink().intake_waits_no_longer();
                }
                self.observer.sink().destination_down((topic, reason), hint);
            }
            (SinkProblem::Intake | SinkProblem::Destination { .. }, topic) => {
                self.observer.sink_down(topic, reason, hint);
            }
        }
    }

    /// The destination, or with `None` the broker, accepts records again.
    fn sink_up(&mut self, topic: Option<&str>) {
        if let Some(topic) = topic {
            self.observer.sink().destination_up(topic);
        }
        if self.sink.up(topic) {
            self.observer.sink().up(topic);
        }
    }

    /// Whether no broker accepts records.
    pub(super) fn broker_is_down(&self) -> bool {
        self.observer.sink_is_down() && self.sink.is_of_brokers()
    }

    /// Applies the report of an event to the relay. A large event that the broker has refused is parked now, and all
    /// later ones continue.
    fn reported(&mut self, now: Duration, ticket: Ticket, outcome: Outcome) {
        match (self.records.take_large(ticket), outcome) {
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
        let rules = (&*self.spec.sink, self.spec.mode);
        let halt = Box::new(halts::refused_event(rules, named, large.position, reason));
        self.observer.failed(&large.event_type);
        if let Some(entry) = self.engine.large_refused(now, large.ticket, reason, halt) {
            self.observer.parked();
            let row = self.records.keep_large_refused(entry, large, reason);
            self.observer.failure_parked(row);
        }
    }

    /// Offers pending attempts to the sink. One answer of the broker about a destination decides all attempts that
    /// waited for it.
    pub(super) fn offer_attempts(&mut self, now: Duration) {
        let mut attempts = self.records.take_attempts();
        attempts.retain(|attempt| self.offer_attempt(now, attempt));
        // What the relay has requested meanwhile comes after these.
        self.records.put_back(attempts);
    }

    /// Offers an attempt to the sink; returns whether the attempt waits.
    fn offer_attempt(&mut self, now: Duration, attempt: &PendingAttempt) -> bool {
        let Some(record) = &attempt.record else { return true };
        let (ticket, since) = (attempt.ticket, attempt.since);
        let probes = attempt.purpose == AttemptPurpose::Probe;
        let answer = if probes {
            self.sink.probe(&record.topic, since)
        } else {
            self.sink.enqueue_again(ticket, record, since)
        };
        let outcome = match answer {
            Ok(()) if probes => {
                self.apply(now, Input::Probed { ticket });
                return false;
            }
            Ok(()) => return false,
            Err(NotTaken::Full | NotTaken::Alone) => return true,
            Err(NotTaken::Destination | NotTaken::Doubted(_))
                if since.elapsed() < DESTINATION_WAIT_MAX =>
            {
                return true;
            }
            Err(NotTaken::Destination | NotTaken::Doubted(_) | NotTaken::Missing) => NO_DESTINATION,
            Err(NotTaken::Unavailable) => {
                if attempt.purpose != AttemptPurpose::DeadLetter {
                    self.sink.lost(&record.topic, now);
                }
                NO_DESTINATION
            }
            Err(NotTaken::Refused(reason)) => Outcome::Rejected { scope: Scope::Event, reason },
        };
        self.apply(now, Input::Report { ticket, outcome });
        false
    }

    /// Updates the status, unless that was done a moment ago. `slot`: the slot that is streamed from, and how much WAL
    /// it may retain.
    pub(super) fn report_sometimes(&mut self, slot: Option<(&SlotStatus, Option<u64>)>) {
        if self.observer.report_is_due() {
            self.report(slot);
        }
    }

    /// Updates the status.
    pub(super) fn report(&mut self, slot: Option<(&SlotStatus, Option<u64>)>) {
        let transactions = self.transactions();
        let facts = Facts {
            relay: self.engine.relay(),
            now: self.epoch.elapsed(),
            sink_blocks: self.sink.blocks_intake(),
            oldest_parked: self.records.oldest(),
            slot,
            transactions,
        };
        self.observer.report(facts);
    }

    /// The transactions of the sink, if it has any.
    fn transactions(&mut self) -> Option<TransactionsSummary> {
        let summary = self.sink.transactions()?;
        let relay = self.engine.relay();
        let text = |progress: Progress| {
            let history = self.histories.of(progress.position().commit);
            let Progress { watermark, partial } = progress;
            Cursor { history, watermark, partial }.to_string()
        };
        let progress = relay.sink_progress().map(text);
        Some(TransactionsSummary { progress, cursor_row: text(relay.cursor_row()), ..summary })
    }

    /// A cluster answers that was not known when this session began.
    pub(super) fn report_located(&mut self) {
        self.observer.sink().located(self.sink.cluster().as_deref());
    }

    /// A stop was requested: finishes what is in flight. Returns when that is given up.
    pub(super) fn drain(&mut self, now: Duration) -> Instant {
        let leave_at = Instant::now() + self.spec.shutdown_grace;
        let (in_flight, _) = self.engine.relay().in_flight();
        self.observer.drain().stopping(in_flight);
        self.report(None);
        self.apply(now, Input::Drain);
        leave_at
    }

    /// A pause was requested: finishes what is in flight. Returns when that is given up; `None` if the pipeline is
    /// ending already.
    pub(super) fn pause(&mut self, now: Duration, pause: Pause) -> Option<Instant> {
        if self.engine.relay().stopping() {
            return None;
        }
        let leave_at = Instant::now() + self.spec.shutdown_grace;
        let (in_flight, _) = self.engine.relay().in_flight();
        self.observer.drain().pausing(pause, in_flight);
        self.report(None);
        self.apply(now, Input::Drain);
        Some(leave_at)
    }

    /// How a session ends with this exit: a pipeline that has drained for a pause does not exit.
    pub(super) fn session_end(&self, exit: PipelineExit) -> End {
        match exit {
            PipelineExit::Stopped if self.observer.pauses() => End::Paused,
            PipelineExit::Stopped | PipelineExit::Halted(_) | PipelineExit::Bug => End::Over(exit),
        }
    }

    /// The pipeline is paused: gives up what is still in flight, and closes the sink. Returns the number of events that
    /// were given up, also earlier in the drain. `pause`: the request, if the pipeline did not drain for it.
    pub(super) fn suspend(&mut self, pause: Option<Pause>) -> u64 {
        let unacknowledged = self.engine.relay().unacknowledged();
        self.give_up_in_flight();
        self.sink.suspend(self.spec.shutdown_grace.min(SINK_CLOSE_MAX));
        self.observer.source().paused();
        self.observer.sink().paused();
        self.observer.drain().suspended(pause);
        unacknowledged
    }

    /// The pause has ended: the pipeline is as it was before its first start, except for its history, its counters, and
    /// the ids that polling has published.
    ///
    /// # Errors
    /// The halt of a pipeline whose sink can't be used.
    pub(super) fn resume(&mut self) -> Result<(), Halt> {
        self.sink.reopen(&self.spec)?;
        self.engine.begin_again(settings(&self.spec), self.row_status);
        self.records = RecordBuffer::default();
        Ok(())
    }

    /// A stop is not waited for any longer. A halt that was waiting for reports is still a halt.
    pub(super) fn leave(&mut self, now: Duration) -> PipelineExit {
        let (in_flight, _) = self.engine.relay().in_flight();
        self.observer.drain().incomplete(in_flight);
        self.apply(now, Input::SourceLost);
        self.outcome().unwrap_or(PipelineExit::Stopped)
    }

    /// The source is lost: returns the exit if the relay has come to its end.
    pub(super) fn source_lost(&mut self) -> Option<PipelineExit> {
        self.apply(self.now(), Input::SourceLost);
        self.outcome()
    }

    /// Commits rows and status changes of parked events.
    fn write_parking(&mut self, store: &mut StorePort, rows: usize, statuses: Vec<ParkedUpdate>) {
        self.observer.states_changed(&statuses);
        store.write_parking(self.records.take_rows(rows), statuses);
    }

    /// Handles the result of a write of parked events. An error is one of the connection.
    pub(super) fn parking_written(
        &mut self,
        store: &mut StorePort,
        written: Result<ParkedWrite, SourceError>,
    ) -> Result<(), SourceError> {
        let ParkedWrite { stored, holders } = written?;
        match stored {
            Ok(stored) => self.stored(&stored, &holders),
            // Another session has locked the table or the cursor row. Nothing was written; the stream continues.
            Err(error) => {
                self.observer.store().parked_rows_wait(&error, &holders);
                store.write_parking_again(self.records.rows_being_written());
            }
        }
        Ok(())
    }

    fn stored(&mut self, stored: &Stored, holders: &[Holder]) {
        let now = self.now();
        let left: &[Position] = match stored {
            Stored::Yes => &[],
            Stored::Except(left) => left,
            Stored::TakenOver => {
                self.observer.store().row_taken(&CursorWrite::TakenOver);
                self.apply(now, Input::SlotTaken);
                return;
            }
        };
        let rows = self.records.is_writing_rows();
        failpoint(if rows { "parked_row_committed" } else { "mark_committed" });
        for row in self.records.stored() {
            self.engine.row_status().parked(row);
        }
        self.apply(now, Input::ParkingWritten { locked: left });
        self.report_locked(left, holders);
    }

    /// Logs the parked rows that the last write has left out, and the sessions that have locked them.
    pub(super) fn report_locked(&mut self, left: &[Position], holders: &[Holder]) {
        let deferred = self.engine.relay().deferred_statuses();
        self.observer.store().parked_rows_deferred(deferred, left.len(), holders);
    }

    /// Reads the records of pending attempts that are not in memory.
    pub(super) fn fetch_records(&self, store: &mut StorePort) {
        let full = self.records.bytes_pending() >= ATTEMPTS_BYTES_MAX as usize;
        if store.is_fetching() || full || !self.records.wants_records() {
            return;
        }
        let mut wanted = self.records.missing();
        // Rows in the transaction of a claim are not visible on this session yet.
        wanted.retain(|wanted| Some(wanted.position.commit) != self.engine.unseen());
        if !wanted.is_empty() {
            store.fetch(wanted, self.histories.clone());
        }
    }

    /// Handles records that were read for attempts. An error is one of the connection.
    pub(super) fn fetched(
        &mut self,
        fetched: Result<Fetched, SourceError>,
    ) -> Result<(), SourceError> {
        match fetched {
            // The records are requested again with the next effects.
            Err(error) if is_passing(&error) => self.observer.source().look_failed(&error),
            fetched => {
                let now = self.now();
                let (requested, found) = fetched?;
                for ticket in self.records.fetched(&requested, found) {
                    self.apply(now, Input::RowMissing { ticket });
                }
                self.offer_attempts(now);
            }
        }
        Ok(())
    }

    /// Queries changes that people made to the parked table.
    pub(super) fn find_requests(&self, store: &mut StorePort) {
        // Rows in the transaction of a claim are not visible on this session yet, and were not deleted.
        let unseen = self.engine.unseen();
        let mut dead = self.engine.relay().dead(DEAD_MAX);
        dead.retain(|position| Some(position.commit) != unseen);
        let asks_age = self.observer.is_polling() && self.engine.relay().parked().total() > 0;
        store.find_requests(RequestsQuery { dead, asks_age });
    }

    /// Applies the changes that people made to the parked table. Returns the pause that was requested, if one was. An
    /// error is one of the connection.
    pub(super) fn requests_found(
        &mut self,
        found: Result<FoundRequests, SourceError>,
    ) -> Result<Option<Pause>, SourceError> {
        let FoundRequests { requests, deleted, oldest, pause } = match found {
            // No event waits for requests: the next query is made when it is due.
            Err(error) if is_passing(&error) => {
                self.observer.source().look_failed(&error);
                return Ok(None);
            }
            found => found?,
        };
        let now = self.now();
        self.records.set_oldest(oldest);
        for position in deleted {
            self.apply(now, Input::DeadRowDeleted { position });
        }
        for (position, request) in requests {
            // The event will be requeued; until then its row keeps the request.
            if !self.engine.requeued().holds(position) {
                self.apply(now, Input::Request { position, request });
            }
        }
        Ok(pause)
    }

    /// Prepares the statements that write the status of rows, on a new session.
    pub(super) async fn prepare_statuses(
        &mut self,
        store: &mut StorePort,
    ) -> Result<(), SourceError> {
        let prepared = self.engine.row_status().is_on() && store.prepare_statuses().await?;
        self.engine.row_status().prepared(prepared);
        Ok(())
    }

    /// Takes the rows that get their status before the cursor row `row`; `None` if the slot is lost.
    pub(super) fn take_statuses(
        &mut self,
        store: &StorePort,
        row: Option<&Progress>,
    ) -> Option<RowStatusJob> {
        let batch = self.engine.take_statuses(self.now(), row)?;
        store.status_job(batch)
    }

    /// Handles the result of row statuses, and logs those that wait.
    pub(super) fn statuses_made(&mut self, outcome: RowStatusOutcome) {
        let now = self.now();
        let RowStatusOutcome { made, holders, failed, table } = outcome;
        let Some(waiting) = self.engine.row_status().made(now, &made) else {
            return self.observer.store().marks_made();
        };
        let given_up = waiting.given_up;
        let waiting = WaitingRows { table, rows: waiting.rows, holders };
        match failed {
            Some((error, hint)) => {
                self.observer.store().marks_failed(&waiting, (&error, hint), given_up);
            }
            None => self.observer.store().marks_wait(&waiting, given_up),
        }
    }
}

/// The settings of the relay.
fn settings(spec: &CommonSpec) -> Settings {
    Settings {
        limits: spec.limits,
        cursor_interval: spec.cursor_interval,
        idle_step: spec.mode.idle_step(),
        words: spec.mode.words(),
        rules: spec.parking,
        transactions: spec.sink.capabilities().transactions,
    }
}

/// The requests that were made before a start.
pub(super) fn requests(loaded: &[Loaded]) -> Vec<(Position, Request)> {
    loaded.iter().filter_map(|row| Some((row.entry.position, row.request?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::outbox::{Layout, OutboxSpec};
    use crate::pipeline::mode::Mode;
    use crate::record::Record;
    use crate::relay::{Limits, ParkingRules};
    use crate::sink::{DiscardConfig, Mailbox, Sink};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// Counts turns, and what a reset gives up.
    #[derive(Clone, Default)]
    struct Counting {
        turns: Arc<AtomicUsize>,
        in_flight: Arc<AtomicUsize>,
    }

    impl Sink for Counting {
        fn enqueue(&mut self, _: Ticket, _: &Record<'_>) -> Result<(), NotTaken> {
            Ok(())
        }

        fn turn(&mut self) -> Option<Instant> {
            self.turns.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn is_idle(&self) -> bool {
            self.in_flight.load(Ordering::Relaxed) == 0
        }

        fn reset(&mut self) {
            self.in_flight.store(0, Ordering::Relaxed);
        }

        fn close(&mut self, _: Duration) {}
    }

    fn spec() -> CommonSpec {
        let second = Duration::from_secs(1);
        CommonSpec {
            name: "orders".to_owned(),
            mode: Mode::Wal,
            outbox: OutboxSpec::for_layout(Layout::Postrider),
            sink: Arc::new(DiscardConfig::default()),
            size_max: None,
            limits: Limits { events_max: 100, bytes_max: 1 << 20 },
            parking: ParkingRules {
                on_poison: OnPoison::BlockKey,
                attempts_max: 10,
                step: second,
                steps_max: 8,
                rows_max: 100,
                strict: false,
                dead_letters: false,
            },
            dead_topic: None,
            park_after: None,
            cursor_interval: second,
            shutdown_grace: second,
        }
    }

    fn pipeline() -> (Pipeline, Counting, Mailbox) {
        let status_handle = StatusHandle::new("orders");
        let metrics = Metrics::default().pipeline(&status_handle);
        let mut pipeline =
            Pipeline::new(spec(), RowStatusRule::Off, status_handle, metrics).unwrap();
        let sink = Counting::default();
        let mailbox = pipeline.sink.replace(Box::new(sink.clone()));
        (pipeline, sink, mailbox)
    }

    /// A report that a record is unknown makes the relay give up everything and, while stopping, end. What else the
    /// sink holds would be sent after the events of the next owner of the slot.
    #[test]
    fn records_given_up_while_stopping_are_not_sent_after_the_slot_is_released() {
        let (mut pipeline, sink, _) = pipeline();
        sink.in_flight.store(2, Ordering::Relaxed);
        pipeline.apply(pipeline.now(), Input::Drain);
        pipeline.apply(pipeline.now(), Input::SinkBroken);
        assert!(pipeline.outcome().is_some());
        pipeline.give_up_in_flight();
        assert_eq!(sink.in_flight.load(Ordering::Relaxed), 0);
    }

    /// Records that wait in the sink may belong to another owner by now: they must not be sent before the reset.
    #[test]
    fn sink_has_no_turn_before_its_reset() {
        let (mut pipeline, sink, mailbox) = pipeline();
        let turns = || sink.turns.load(Ordering::Relaxed);

        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 1);
        mailbox.post(Post::Broken { reason: "its state is lost".to_owned() });
        pipeline.take_posts(pipeline.now());
        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 1, "a restart waits to be performed");
        assert!(pipeline.outcome().is_none());
        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 2);
    }
}
