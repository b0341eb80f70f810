//! One pipeline: its parts, and its life from the first connection to its exit.

use super::connect::{self, Connected, Failure};
use super::destinations::Destinations;
use super::failpoint::failpoint;
use super::former_owner::{LEASE, Ownership};
use super::history::{SeenPositions, ServerHistory, ServerPast};
use super::lag::LagMeter;
use super::parked::{RecordBuffer, StoreSession};
use super::requeue::RequeuedEvents;
use super::row_status::{HandOverFilter, RowStatusQueue};
use super::service::{PipelineExit, Stop};
use super::slot_monitor::{PublicationState, WalRetentionLimit};
use super::spec::{Mode, PipelineSpec};
use super::stream::End;
use super::{halts, hand_over, log, repair, settings_change};
use crate::backoff::Backoff;
use crate::error::{Halt, HaltReason};
use crate::event::{Histories, Position};
use crate::metrics::{PipelineMetrics, Side};
use crate::offset::{Offset, Watermark};
use crate::outbox::Mapper;
use crate::postgres::error_policy::{self, Action, Class, Phase, Repeats};
use crate::postgres::store::cursor::{self, SettledHistories};
use crate::postgres::{SourceError, SourceErrorKind, catalog};
use crate::record::Ticket;
use crate::relay::{Effect, Input, Relay, Restart, Settings};
use crate::sink::{Mailbox, Post, Purpose, Sink};
use crate::status::StatusHandle;
use crate::timestamp::Timestamp;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest and the longest pause between two attempts to connect.
pub(super) const RECONNECT_MIN: Duration = Duration::from_millis(200);
pub(super) const RECONNECT_MAX: Duration = Duration::from_secs(15);

/// How long a start waits, since the process began, for a broker to report the ID of its cluster. After that the
/// pipeline starts, and publishes nothing until a broker has reported it.
const CLUSTER_WAIT: Duration = Duration::from_secs(2);
const CLUSTER_PAUSE: Duration = Duration::from_millis(20);

/// How long the server may take to answer the end of a stream, and to show the last position in the slot. What it does
/// not answer in time is repeated at the next start.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// Interval between two queries of the slot while it does not show the last position yet: PostgreSQL sends no
/// notification of that.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A pipeline and all its parts.
pub(super) struct Pipeline {
    /// What the pipeline was configured with.
    pub(super) spec: Arc<PipelineSpec>,
    /// Decides the order and the confirmation of events.
    pub(super) relay: Relay,
    /// Makes events of rows and logical messages.
    pub(super) mapper: Mapper,
    /// Where records are published.
    pub(super) sink: Box<dyn Sink>,
    /// The cluster of the sink's brokers.
    pub(super) cluster: SinkCluster,
    /// Posts of the sink to this thread.
    pub(super) mailbox: Mailbox,
    /// Effects of the relay that are not performed yet.
    pub(super) effects: Vec<Effect>,
    /// The last position that was confirmed to the server.
    pub(super) confirmed: Watermark,
    /// Commit time of the newest transaction that was fed.
    pub(super) committed_at: Timestamp,
    /// The status that `/status` and the metrics read.
    pub(super) status_handle: StatusHandle,
    /// Counters of this pipeline.
    pub(super) metrics: PipelineMetrics,
    /// State of the log lines, and the wall clock.
    pub(super) log: log::PipelineLog,
    /// Lag of commits that were not read yet.
    pub(super) lag: LagMeter,
    /// Records of parked events.
    pub(super) records: RecordBuffer,
    /// Destinations that accept no records.
    pub(super) destinations: Destinations,
    /// Rows whose published status is to be written to their table.
    pub(super) row_status: RowStatusQueue,
    /// IDs that polling has published and the stream will repeat.
    pub(super) polled_ids: HandOverFilter,
    /// Parked events whose rows are read from the table again.
    pub(super) requeued: RequeuedEvents,
    /// The slot is to be dropped as soon as the table is polled.
    pub(super) drops_slot: bool,
    /// The position that was received when the stream last waited for a standby.
    pub(super) stalled_at: Option<Offset>,
    /// `source.wal_retain_max`
    pub(super) wal_retention_limit: Option<WalRetentionLimit>,
    /// How events are read next.
    pub(super) next: Next,
    /// A repair has ended, or there was nothing to repair.
    pub(super) repaired: bool,
    /// What a record costs beside its bytes ([`held_bytes`](crate::sink::Capabilities::held_bytes)).
    pub(super) held_bytes: usize,
    /// Scratch space for posts.
    posts: Vec<Post>,
    /// When the sink needs its next turn.
    sink_due: Option<std::time::Instant>,
    /// A commit time, and how many of its events were published since the latency was last observed.
    observed: (Timestamp, u64),
    /// Zero of the relay's clock.
    epoch: Instant,
    /// Whether this process has streamed or polled before.
    pub(super) ever_streamed: bool,
    /// The history that the positions in memory belong to.
    pub(super) history: Option<ServerHistory>,
    /// The server from which events were last read, by stream or by polling.
    server: Option<ServerHistory>,
    /// The histories that published positions belong to.
    pub(super) histories: Histories,
    /// The publication, as the previous stream knew it.
    pub(super) publication: Option<PublicationState>,
    /// The owner epoch under which this process streamed last.
    pub(super) owned: Option<i64>,
    /// What is known of the ownership of the pipeline.
    pub(super) ownership: Ownership,
    /// When events in flight must be given up while there is no stream.
    pub(super) lease_ends: Instant,
    /// The last refusal by the server.
    pub(super) last_refusal: LastRefusal,
    /// Detects an error that repeats at the same position.
    pub(super) repeats: Repeats,
    /// The shortest pause before the next attempt.
    pub(super) pause_min: Duration,
}

/// The cluster of the brokers, with a sink that has one.
#[derive(Default)]
pub(super) struct SinkCluster {
    /// The cluster for which the last start was decided; `None` if no broker had answered.
    decided: Option<String>,
    /// The brokers belong to another cluster, which has to be compared with the one of the position.
    pub(super) located: bool,
}

/// How events are read next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Next {
    /// As the mode says.
    #[default]
    Stream,
    /// From the table, because the slot can't be used.
    Poll,
    /// From the list of rows of a repair.
    Repair,
}

/// The result of a wait.
pub(super) enum Waited<T> {
    Done(T),
    Over(PipelineExit),
}

impl Pipeline {
    /// Waits up to [`CLUSTER_WAIT`] for a broker to report its cluster, so that a start need not be repeated because of
    /// it.
    pub(super) async fn await_cluster(&mut self, stop: &Stop) -> Option<PipelineExit> {
        while self.spec.sink.capabilities().clusters
            && self.sink.cluster().is_none()
            && self.epoch.elapsed() < CLUSTER_WAIT
        {
            if let Waited::Over(exit) = self.waiting(tokio::time::sleep(CLUSTER_PAUSE), stop).await
            {
                return Some(exit);
            }
        }
        self.cluster = SinkCluster { decided: self.sink.cluster(), located: false };
        None
    }

    /// Allows records to be published to the cluster for which the start was decided. If that cluster is not known,
    /// nothing is published, not even to the cluster of an earlier session: another process may have moved the position
    /// forward in another cluster since.
    pub(super) fn admit(&mut self) {
        let cluster = self.cluster.decided.as_deref();
        if self.spec.sink.capabilities().clusters {
            match cluster {
                Some(cluster) => self.sink.admit(cluster),
                None => self.sink.hold(),
            }
        }
        let summary = settings_change::summary(&self.spec, cluster);
        self.status_handle.update(|snapshot| snapshot.belongs_to = Some(summary));
        // A broker may have answered since the decision.
        self.compare_cluster();
    }

    /// Notes whether the brokers belong to another cluster than the one for which the start was decided.
    fn compare_cluster(&mut self) {
        let found = self.sink.cluster();
        self.cluster.located |= found.is_some() && found != self.cluster.decided;
    }

    async fn run(&mut self, stop: &Stop) -> PipelineExit {
        let mut backoff = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
        loop {
            if self.spec.only_repair && self.repaired {
                return PipelineExit::Stopped;
            }
            if let Some(exit) = self.await_cluster(stop).await {
                return exit;
            }
            let next = std::mem::take(&mut self.next);
            let repairs = next == Next::Repair || self.spec.only_repair;
            if repairs || self.spec.mode == Mode::Poll || next == Next::Poll {
                match self.poll_once(repairs, stop, &mut backoff).await {
                    Some(exit) => return exit,
                    None => continue,
                }
            }
            let seen = self.histories.current();
            let cluster = self.cluster.decided.clone();
            let attempt = Box::pin(connect::open(Arc::clone(&self.spec), seen, cluster));
            let failure = match self.waiting(attempt, stop).await {
                Waited::Over(exit) => return exit,
                Waited::Done(Err(failure)) => failure,
                Waited::Done(Ok(connected)) => {
                    let next = ServerHistory::of(&connected.resume.cursor);
                    let seen = SeenPositions {
                        confirmed: self.confirmed,
                        received: self.relay.received(),
                    };
                    let start = connected.resume.start;
                    let refused = self.refuses(&next, &connected.past).or_else(|| {
                        let before = self.history.as_ref()?;
                        before.rewound(&next, &connected.past, seen, start)
                    });
                    if let Some(halt) = refused {
                        self.end_history(&connected.store).await;
                        return PipelineExit::Halted(Box::new(halt));
                    }
                    self.server = Some(next);
                    self.admit();
                    let since = Instant::now();
                    self.ever_streamed = true;
                    self.last_refusal.explained();
                    let end = self.stream(connected, stop).await;
                    self.lease_ends = Instant::now() + lease(&end);
                    if since.elapsed() > RECONNECT_MAX {
                        self.last_refusal.clear();
                        backoff.reset();
                    }
                    match end {
                        End::Over(exit) => return exit,
                        End::Lost(error, phase) => Failure::Source(error, phase),
                        End::Restart => Failure::Reset,
                        End::DropSlot(halt) => {
                            self.drops_slot = true;
                            Failure::Halt(halt)
                        }
                    }
                }
            };
            if let Some(exit) = self.after(failure, stop, &mut backoff).await {
                return exit;
            }
        }
    }

    /// Runs one session of polling, or of a repair, and pauses after it; returns the exit if the pipeline has ended.
    async fn poll_once(
        &mut self,
        repairs: bool,
        stop: &Stop,
        backoff: &mut Backoff,
    ) -> Option<PipelineExit> {
        let spec = Arc::clone(&self.spec);
        let seen = self.histories.current();
        let cluster = self.cluster.decided.clone();
        let attempt = Box::pin(async move {
            if repairs {
                repair::open(spec, seen, cluster).await
            } else {
                connect::open_poll(spec, seen, cluster).await
            }
        });
        let failure = match self.waiting(attempt, stop).await {
            Waited::Over(exit) => return Some(exit),
            Waited::Done(Err(failure)) => failure,
            Waited::Done(Ok(polling)) => {
                let past = ServerPast { wal_end: polling.start, switches: Vec::new() };
                if let Some(halt) = self.refuses(&polling.server, &past) {
                    self.end_history(&polling.store).await;
                    return Some(PipelineExit::Halted(Box::new(halt)));
                }
                self.server = Some(polling.server.clone());
                self.admit();
                let since = Instant::now();
                self.ever_streamed = true;
                self.last_refusal.explained();
                let end = Box::pin(self.poll(polling, stop)).await;
                if since.elapsed() > RECONNECT_MAX {
                    self.last_refusal.clear();
                    backoff.reset();
                }
                match end {
                    End::Over(exit) => return Some(exit),
                    End::Lost(error, phase) => Failure::Source(error, phase),
                    End::Restart => Failure::Reset,
                    End::DropSlot(halt) => Failure::Halt(halt),
                }
            }
        };
        if let Some(halt) = self.halt_for(failure) {
            self.apply(self.now(), Input::SourceLost);
            return Some(PipelineExit::Halted(halt));
        }
        self.pause(stop, backoff).await
    }

    /// Why nothing of this server may be published after what was published from the previous server.
    fn refuses(&self, next: &ServerHistory, past: &ServerPast) -> Option<Halt> {
        self.server.as_ref()?.refuses(next, past)
    }

    /// Creates the mapper of a stream, or of claims (`rows`), whose rows have no position in the WAL. Called before
    /// anything is marked: if the history of this server differs from that of the previous one, everything that is
    /// remembered by event ID is discarded. A server that was promoted without the last commits gives their IDs to
    /// other rows.
    pub(super) fn reset_mapper(
        &mut self,
        store: &StoreSession,
        rows: bool,
    ) -> Result<(), Box<Halt>> {
        let mut mapper = self.spec.mapper().map_err(|e| Box::new(halts::unfit_outbox(&e)))?;
        let SettledHistories { histories, raised, first: _ } = &store.histories;
        mapper.set_histories(histories.clone(), rows);
        if let Some((before, from)) = *raised {
            log::history_begins(&self.spec, histories.current(), before, from);
        }
        if self.histories.current() != histories.current() {
            // On this server the IDs of another history belong to other rows.
            self.row_status.forget();
            self.polled_ids = HandOverFilter::default();
        }
        self.histories = histories.clone();
        self.mapper = mapper;
        Ok(())
    }

    /// Marks the history in the cursor row as ended, on a server that this process refuses to stream from. The next
    /// process reads only that row, and consumers may have seen higher positions of this history, so the next process
    /// must begin a new one. If the row can't be written, the hint of the halt says how to do it by hand.
    async fn end_history(&self, store: &StoreSession) {
        let ended =
            cursor::end_history(store.control.client(), self.spec.name(), store.epoch).await;
        ended.unwrap_or_default();
    }

    /// Waits for `future` while there is no stream. Reports of the sink and a stop are handled meanwhile.
    pub(super) async fn waiting<F: Future>(&mut self, future: F, stop: &Stop) -> Waited<F::Output> {
        let mut future = pin!(future);
        let lease = self.lease_ends;
        loop {
            let held = self.relay.in_flight().0 > 0;
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
                () = self.mailbox.arrived() => self.take_posts(self.now()),
                () = tokio::time::sleep_until(lease), if held => {
                    self.apply(self.now(), Input::SlotTaken);
                }
                () = tokio::time::sleep(log::REPORT_INTERVAL) => self.take_posts(self.now()),
            }
            if let Some(exit) = self.outcome() {
                return Waited::Over(exit);
            }
            self.report_sometimes(None);
        }
    }

    /// Performs the effects that need no stream; returns the exit if the relay has come to its end.
    pub(super) fn outcome(&mut self) -> Option<PipelineExit> {
        let mut exit = None;
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Published { ticket, commit_time } => self.published(ticket, commit_time),
                Effect::Restart { why } => self.reset_sink(why),
                Effect::Drained => exit = Some(PipelineExit::Stopped),
                Effect::Halt(halt) => exit = Some(PipelineExit::Halted(halt)),
                Effect::Released { position } => self.released(position),
                Effect::Overtaken { position, by } => {
                    self.log.parked.event_overtaken(self.spec.name(), position, by);
                }
                Effect::DeadLetterRefused { position, reason } => {
                    log::undelivered(self, position, reason);
                }
                // Without a stream nothing can be written or confirmed; the relay asks again once there is a stream.
                Effect::Publish(_)
                | Effect::Park { .. }
                | Effect::WriteParking { .. }
                | Effect::Attempt { .. }
                | Effect::Probe { .. }
                | Effect::DeadLetter { .. }
                | Effect::WriteCursor(_)
                | Effect::Confirm(_) => {}
            }
        }
        self.observe_latency();
        exit
    }

    pub(super) fn apply(&mut self, now: Duration, input: Input<'_>) {
        self.relay.apply(now, input, &mut self.effects);
    }

    /// Time since this pipeline began: the clock of the relay.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// When the loop must turn at the latest.
    pub(super) fn due(&self) -> Instant {
        // After publishing, the status is updated soon; otherwise at a longer interval.
        let news = self.log.published_total != self.log.reported_total;
        let pause = if news { log::REPORT_SOON } else { log::REPORT_INTERVAL };
        let report = Instant::now() + pause;
        let due = self.sink_due.map_or(report, |at| report.min(at.into()));
        self.relay.deadline().map_or(due, |at| (self.epoch + at).min(due))
    }

    /// Whether a pending effect ends the stream.
    pub(super) fn ending(&self) -> bool {
        self.effects.iter().any(|effect| match effect {
            Effect::Restart { .. } | Effect::Drained | Effect::Halt(_) => true,
            Effect::Publish(_)
            | Effect::Park { .. }
            | Effect::WriteParking { .. }
            | Effect::Attempt { .. }
            | Effect::Probe { .. }
            | Effect::DeadLetter { .. }
            | Effect::DeadLetterRefused { .. }
            | Effect::Overtaken { .. }
            | Effect::Released { .. }
            | Effect::Published { .. }
            | Effect::WriteCursor(_)
            | Effect::Confirm(_) => false,
        })
    }

    /// Runs one pipeline from its start to its exit.
    pub(super) async fn live(
        spec: PipelineSpec,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
        stop: Stop,
    ) -> PipelineExit {
        let name = spec.name().to_owned();
        status_handle.update(|snapshot| {
            snapshot.source = spec.source_name();
            snapshot.slot.clone_from(&spec.names.slot);
        });
        let exit = match Self::new(spec, status_handle.clone(), metrics) {
            Ok(mut pipeline) => {
                let exit = pipeline.run(&stop).await;
                pipeline.finish();
                exit
            }
            Err(halt) => PipelineExit::Halted(Box::new(halt)),
        };
        log::ended(&name, &status_handle, &exit);
        exit
    }

    /// Gives up what is still in flight, and closes the sink.
    pub(super) fn finish(&mut self) {
        self.give_up_in_flight();
        self.sink.close(self.spec.shutdown_grace.min(Duration::from_secs(2)));
        // Nothing is read any more.
        self.log.streaming = false;
        self.report(None);
    }

    /// The parts of a pipeline, with an open sink.
    ///
    /// # Errors
    /// The halt of a pipeline whose outbox or sink can't be used.
    pub(super) fn new(
        spec: PipelineSpec,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
    ) -> Result<Self, Halt> {
        let mailbox = Mailbox::default();
        let mapper = spec.mapper().map_err(|e| halts::unfit_outbox(&e))?;
        let sink = spec.sink.open(&spec.needs(Purpose::Live), mailbox.clone());
        let mut sink = sink.map_err(|e| halts::unfit_sink(&e, spec.mode))?;
        let capabilities = spec.sink.capabilities();
        if capabilities.clusters {
            sink.hold();
        }
        let settings = Settings {
            limits: spec.limits,
            cursor_interval: spec.cursor_interval,
            idle_step: spec.mode.idle_step(),
            words: spec.mode.words(),
            rules: spec.parking,
        };
        let auto = spec.mode == Mode::Auto;
        let row_status = RowStatusQueue::new(auto || spec.poll.mark_streamed, auto);
        let wal_retention_limit = spec
            .wal_retain_max
            .map(|max| WalRetentionLimit::new(max, spec.polls_instead_of_slot()));
        let destinations = Destinations::new(spec.name(), spec.park_after);
        Ok(Self {
            spec: Arc::new(spec),
            relay: Relay::new(settings),
            mapper,
            sink,
            held_bytes: capabilities.held_bytes,
            cluster: SinkCluster::default(),
            mailbox,
            effects: Vec::new(),
            confirmed: Watermark::default(),
            committed_at: Timestamp::default(),
            status_handle,
            metrics,
            log: log::PipelineLog::default(),
            lag: LagMeter::new(std::time::Instant::now()),
            records: RecordBuffer::default(),
            destinations,
            row_status,
            polled_ids: HandOverFilter::default(),
            requeued: RequeuedEvents::default(),
            drops_slot: false,
            stalled_at: None,
            wal_retention_limit,
            next: Next::Stream,
            repaired: false,
            posts: Vec::new(),
            sink_due: None,
            observed: (Timestamp::default(), 0),
            epoch: Instant::now(),
            ever_streamed: false,
            history: None,
            server: None,
            histories: Histories::default(),
            publication: None,
            owned: None,
            ownership: Ownership::default(),
            lease_ends: Instant::now(),
            last_refusal: LastRefusal::default(),
            repeats: Repeats::default(),
            pause_min: Duration::ZERO,
        })
    }

    pub(super) fn reset_sink(&mut self, why: Restart) {
        // While the table is polled there is no slot that another process could have taken: a claim was given up.
        let given_up = why == Restart::SlotTaken && self.log.polling;
        let reason = if given_up { "claim_given_up" } else { why.name() };
        log::resetting(self, reason);
        self.metrics.reconnected(Side::Sink, reason);
        self.records.clear();
        self.row_status.given_up();
        self.ownership.resets();
        self.sink.reset();
    }

    /// Gives up what is in flight before the slot is released: another process may take the slot at once, and a record
    /// that this producer sends later could land after the events of that process. The sink may hold more than the
    /// relay counts, because the relay has already given up what is unknown to it. Returns whether nothing was in
    /// flight.
    pub(super) fn give_up_in_flight(&mut self) -> bool {
        let nothing = self.relay.in_flight().0 == 0
            && !self.relay.has_unsettled_attempts()
            && self.sink.is_idle();
        if !nothing {
            self.ownership.resets();
            self.sink.reset();
        }
        nothing
    }

    /// A parked event reached the broker.
    pub(super) fn released(&mut self, position: Position) {
        failpoint("retry_acknowledged");
        self.log.published_total += 1;
        log::released(self, position);
    }

    pub(super) fn published(&mut self, ticket: Ticket, commit_time: Timestamp) {
        self.row_status.published(ticket);
        self.log.published_total += 1;
        // Events of one transaction have the same latency, and are mostly reported together.
        if self.observed.0 != commit_time {
            self.observe_latency();
            self.observed.0 = commit_time;
        }
        self.observed.1 += 1;
    }

    /// Adds the published events that are not counted yet to the latency metric.
    pub(super) fn observe_latency(&mut self) {
        let (commit_time, times) = std::mem::take(&mut self.observed);
        if times > 0 {
            self.metrics.latency().observe_many(self.log.since(commit_time), times);
        }
    }

    /// Applies the posts of the sink to the relay, then lets the sink continue.
    pub(super) fn take_posts(&mut self, now: Duration) {
        let mut posts = std::mem::take(&mut self.posts);
        self.mailbox.take(&mut posts);
        self.log.read_clock();
        for post in posts.drain(..) {
            match post {
                Post::Report { ticket, outcome } => self.reported(now, ticket, outcome),
                Post::Retry => {}
                // The last start was decided without a known cluster, or for another cluster.
                Post::Located => self.compare_cluster(),
                Post::Down { reason, hint, topic, missing } => {
                    let topic = topic.as_deref().map(|topic| (topic, missing));
                    self.sink_down(now, &reason, hint.as_deref(), topic);
                }
                Post::Up { topic } => self.sink_up(topic.as_deref()),
                Post::Broken { reason } => {
                    log::sink_broken(self, &reason);
                    self.apply(now, Input::SinkBroken);
                }
                Post::Unfit { reason, hint } => {
                    self.apply(
                        now,
                        Input::Halt(Box::new(halts::unfit_running(reason, hint, self.spec.mode))),
                    );
                    // Reports of events in flight may never arrive.
                    self.apply(now, Input::SinkBroken);
                }
            }
        }
        self.posts = posts;
        // If everything is to be given up, the sink sends nothing more before its reset.
        self.sink_due = if self.ending() { None } else { self.sink.turn() };
    }

    /// Handles a failure: halts, chooses another way to read, or pauses; returns the exit if the pipeline has ended.
    pub(super) async fn after(
        &mut self,
        failure: Failure,
        stop: &Stop,
        backoff: &mut Backoff,
    ) -> Option<PipelineExit> {
        // A repair would not publish the rows that polling has left.
        let unpolled = matches!(failure, Failure::Unpolled);
        if let Some(halt) = self.halt_for(failure) {
            if self.spec.mode == Mode::Auto && hand_over::polling_helps(halt.reason) {
                log::falling_back(self, &halt);
                self.last_refusal.explained();
                self.next = Next::Poll;
                return None;
            }
            if !unpolled && self.repairs_instead(&halt) {
                self.last_refusal.explained();
                self.next = Next::Repair;
                return None;
            }
            self.apply(self.now(), Input::SourceLost);
            return Some(PipelineExit::Halted(halt));
        }
        self.pause(stop, backoff).await
    }

    pub(super) async fn pause(
        &mut self,
        stop: &Stop,
        backoff: &mut Backoff,
    ) -> Option<PipelineExit> {
        let pause = backoff.next(fastrand::f64()).max(self.pause_min);
        self.pause_min = Duration::ZERO;
        match self.waiting(tokio::time::sleep(pause), stop).await {
            Waited::Over(exit) => Some(exit),
            Waited::Done(()) => None,
        }
    }

    /// The halt that a failure leads to; `None` if the pipeline tries again. The table of errors is in
    /// `postgres::error_policy`; this function combines it with the mode of the pipeline and with earlier failures.
    pub(super) fn halt_for(&mut self, failure: Failure) -> Option<Box<Halt>> {
        match failure {
            // A process that has lost the pipeline may still be recreating the slot on another session.
            Failure::Halt(halt)
                if halt.reason == HaltReason::SlotMoved
                    && !self.last_refusal.record(HaltReason::SlotMoved) =>
            {
                log::waiting(self, &halt.message);
            }
            Failure::Halt(halt) => return Some(halt),
            Failure::StandBy { active_pid, progress } => {
                let now = std::time::Instant::now();
                match progress {
                    Some((wal_end, confirmed)) => self.lag.other_reads(wal_end, confirmed, now),
                    None => self.lag.answered(now),
                }
                self.last_refusal.explained();
                self.stand_by(Some(active_pid));
            }
            Failure::Wait { message } => log::waiting(self, &message),
            Failure::Reset => {}
            Failure::Unrepaired => {
                self.last_refusal.explained();
                self.next = Next::Repair;
            }
            Failure::Unpolled if self.spec.mode == Mode::Auto => {
                self.last_refusal.explained();
                self.next = Next::Poll;
            }
            // Unpublished rows are in the table, and the slot would repeat what polling has published.
            Failure::HandOver => {
                self.last_refusal.explained();
                self.drops_slot = true;
                self.next = Next::Poll;
            }
            Failure::Unpolled => return Some(Box::new(halts::unpolled(self.spec.name()))),
            Failure::NothingToRepair => self.repaired = true,
            Failure::Source(error, phase) => {
                match error_policy::action(&error, phase, self.ever_streamed) {
                    Action::Reconnect(class) | Action::Later(class) => {
                        return self.reconnect(class, &error);
                    }
                    Action::StandBy => self.stand_by(None),
                    Action::Recheck(reason) if !self.last_refusal.record(reason) => {
                        log::source_down(self, &error);
                    }
                    Action::Recheck(reason) | Action::Halt(reason) => {
                        return Some(Box::new(error_policy::explain(
                            reason,
                            &error,
                            &self.spec.names,
                        )));
                    }
                }
            }
        }
        None
    }

    /// Halts because of a message that can't be read, after everything before that message is resolved.
    pub(super) fn halt_behind(&mut self, now: Duration, error: SourceError) {
        if let Some(halt) = self.halt_for(Failure::Source(error, Phase::Stream)) {
            self.apply(now, Input::Unreadable(halt));
        }
    }

    fn reconnect(&mut self, class: Class, error: &SourceError) -> Option<Box<Halt>> {
        self.metrics.reconnected(Side::Source, class.name());
        if self.repeats.wedged(error, self.relay.received()) {
            let wedged = error_policy::explain(HaltReason::Wedged, error, &self.spec.names);
            return Some(Box::new(wedged));
        }
        self.pause_min = class.pause_min();
        log::source_down(self, error);
        None
    }

    /// Another process has the slot: this process may not send what it has in flight.
    fn stand_by(&mut self, active_pid: Option<u32>) {
        log::standing_by(self, active_pid);
        if self.relay.in_flight().0 > 0 {
            self.apply(self.now(), Input::SlotTaken);
        }
    }

    /// Ends the stream, and waits until the slot shows the last position, so that no event is published twice.
    pub(super) async fn close_gracefully(&mut self, connected: Connected) {
        let Connected { wal, store, version, .. } = connected;
        if let Err(error) = wal.stop(CLOSE_MAX).await {
            log::shutdown_error(self, &error);
            return;
        }
        let deadline = Instant::now() + CLOSE_MAX;
        while Instant::now() < deadline {
            match catalog::read_slot(store.control.client(), version, &self.spec.names.slot).await {
                Ok(Some(row)) if row.confirmed_flush_lsn >= Some(self.confirmed.offset()) => return,
                Ok(Some(_)) => tokio::time::sleep(CLOSE_POLL_INTERVAL).await,
                Ok(None) => return,
                Err(error) => return log::shutdown_error(self, &error),
            }
        }
    }
}

/// How long events in flight may remain in flight after a stream ended this way.
fn lease(end: &End) -> Duration {
    match end {
        End::Lost(error, _) if matches!(error.kind(), SourceErrorKind::Silent(_)) => Duration::ZERO,
        End::Lost(..) | End::Restart | End::DropSlot(_) | End::Over(_) => LEASE,
    }
}

/// The last refusal by the server. The start check examines the reason. If the server refuses again for the same reason
/// and nothing else happened in between, the start check and the server disagree, and an operator must act.
#[derive(Default, Debug)]
pub(super) struct LastRefusal(Option<HaltReason>);

impl LastRefusal {
    /// Records a refusal; returns whether the reason is the same as that of the one before.
    fn record(&mut self, reason: HaltReason) -> bool {
        self.0.replace(reason) == Some(reason)
    }

    /// The start check has passed, so an earlier refusal is explained or over. A refusal of a statement that no
    /// handshake makes is kept.
    pub(super) fn explained(&mut self) {
        let of_later_statement = |reason: &HaltReason| {
            matches!(reason, HaltReason::SchemaUnfit | HaltReason::TableUnfit)
        };
        self.0 = self.0.filter(of_later_statement);
    }

    /// A session has worked for a while: the refusal is over.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::SourceError;
    use crate::postgres::error_policy::Phase;

    #[test]
    fn lease_is_zero_after_a_silent_server_and_seconds_after_other_errors() {
        let lost = |kind| End::Lost(SourceError::new(kind, "stream"), Phase::Stream);
        let silent = lost(SourceErrorKind::Silent(Duration::from_secs(13)));
        assert_eq!(lease(&silent), Duration::ZERO);
        assert_eq!(lease(&lost(SourceErrorKind::Closed)), Duration::from_secs(3));
    }
}

#[cfg(test)]
mod posts_tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::outbox::{Layout, OutboxSpec};
    use crate::pipeline::spec::{Mode, OnSlotLost, PipelineSpec, PollSettings};
    use crate::postgres::names::Times;
    use crate::postgres::{Conninfo, Names};
    use crate::record::Record;
    use crate::relay::{Limits, OnPoison, ParkingRules};
    use crate::sink::{DiscardConfig, NotTaken, Sink};
    use crate::status::StatusHandle;
    use std::sync::Arc;
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

    fn spec() -> PipelineSpec {
        let second = Duration::from_secs(1);
        let poll = PollSettings { table: None, interval: second, batch: 100, mark_streamed: false };
        PipelineSpec {
            conninfo: Conninfo::parse("postgresql://postrider@localhost/app", &|_| None).unwrap(),
            names: Names {
                pipeline: "orders".to_owned(),
                slot: "postrider_orders".to_owned(),
                publication: "postrider_orders".to_owned(),
                table: None,
                times: Times::default(),
                auto: false,
                updates: false,
            },
            failover: false,
            wal_retain_max: None,
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
            mode: Mode::Wal,
            on_slot_lost: OnSlotLost::Halt,
            only_repair: false,
            from_table: false,
            poll,
            bookmarks_retain_max: 1 << 20,
            cursor_interval: second,
            confirm_interval: second,
            shutdown_grace: second,
        }
    }

    fn pipeline() -> (Pipeline, Counting) {
        let status_handle = StatusHandle::new("orders");
        let metrics = Metrics::default().pipeline(&status_handle);
        let mut pipeline = Pipeline::new(spec(), status_handle, metrics).unwrap();
        let sink = Counting::default();
        pipeline.sink = Box::new(sink.clone());
        (pipeline, sink)
    }

    /// A report that a record is unknown makes the relay give up everything and, while stopping, end. What else the
    /// sink holds would be sent after the events of the next owner of the slot.
    #[test]
    fn records_given_up_while_stopping_are_not_sent_after_the_slot_is_released() {
        let (mut pipeline, sink) = pipeline();
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
        let (mut pipeline, sink) = pipeline();
        let turns = || sink.turns.load(Ordering::Relaxed);

        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 1);
        pipeline.mailbox.post(Post::Broken { reason: "its state is lost".to_owned() });
        pipeline.take_posts(pipeline.now());
        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 1, "a restart waits to be performed");
        assert!(pipeline.outcome().is_none());
        pipeline.take_posts(pipeline.now());
        assert_eq!(turns(), 2);
    }
}

#[cfg(test)]
mod refusal_tests {
    use super::*;

    /// A standby process is refused once by each lost slot, and never connects in between: the second loss is not a
    /// repeated refusal.
    #[test]
    fn refusal_explained_by_the_start_check_is_not_a_repetition() {
        let mut last_refusal = LastRefusal::default();
        assert!(!last_refusal.record(HaltReason::SlotUnusable));
        assert!(last_refusal.record(HaltReason::SlotUnusable), "nothing happened in between");
        last_refusal.explained();
        assert!(!last_refusal.record(HaltReason::SlotUnusable));
        assert!(!last_refusal.record(HaltReason::SchemaUnfit), "another reason");
        last_refusal.explained();
        assert!(last_refusal.record(HaltReason::SchemaUnfit), "no handshake makes that statement");
        last_refusal.clear();
        assert!(!last_refusal.record(HaltReason::SchemaUnfit));
    }
}
