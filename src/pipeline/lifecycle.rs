//! One pipeline: its parts, and its life from the first connection to its exit.

use super::connect::{self, Connected, Failure};
use super::destinations::Destinations;
use super::failpoint::cut;
use super::former::{LEASE, Ownership};
use super::history::{History, Past, Seen};
use super::lag::LagMeter;
use super::parked::{Desk, Shelf};
use super::requeue::Returning;
use super::row_status::{Handed, Marking};
use super::service::{Exit, Stop};
use super::slot_monitor::{Budget, Published};
use super::spec::{Mode, PipelineSpec};
use super::stream::End;
use super::{halts, handover, log, repair, settings_change};
use crate::backoff::Backoff;
use crate::error::{Halt, HaltReason};
use crate::event::{Histories, PgTime, Position};
use crate::lsn::{Lsn, Watermark};
use crate::metrics::{PipelineMetrics, Side};
use crate::outbox::Mapper;
use crate::postgres::error_policy::{self, Action, Class, Phase, Repeats};
use crate::postgres::store::cursor::{self, Settled};
use crate::postgres::{SourceError, SourceErrorKind, catalog};
use crate::record::Ticket;
use crate::relay::{Effect, Input, Relay, Restart, Settings};
use crate::sink::{self, Mailbox, Post, Sink, SinkSpec};
use crate::status::StatusHandle;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between two tries to connect: the first, and the longest.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(15);

/// How long a start waits for a broker to name its cluster, since the process began. Without it the pipeline starts,
/// and takes no record until one has.
const CLUSTER_WAIT: Duration = Duration::from_secs(2);
const CLUSTER_PAUSE: Duration = Duration::from_millis(20);

/// A pipeline and all its parts.
pub(super) struct Pipeline {
    pub(super) spec: Arc<PipelineSpec>,
    pub(super) relay: Relay,
    pub(super) mapper: Mapper,
    /// Types that the relation at hand waits for: the catalog is to be asked for them.
    pub(super) unknown_types: Vec<u32>,
    pub(super) sink: Box<dyn Sink>,
    pub(super) cluster: Cluster,
    pub(super) mailbox: Mailbox,
    pub(super) effects: Vec<Effect>,
    /// What the server has been told.
    pub(super) confirmed: Watermark,
    /// Commit time of the newest transaction that was fed.
    pub(super) committed_at: PgTime,
    pub(super) status_handle: StatusHandle,
    pub(super) metrics: PipelineMetrics,
    pub(super) tell: log::Tell,
    /// Of commits that were not read yet.
    pub(super) lag: LagMeter,
    /// Records of parked events.
    pub(super) shelf: Shelf,
    pub(super) destinations: Destinations,
    pub(super) marking: Marking,
    pub(super) handed: Handed,
    /// Parked events whose rows the table brings again.
    pub(super) returning: Returning,
    /// The slot is to be let go as soon as the table is polled.
    pub(super) lets_go: bool,
    /// What was received when the stream was last seen to wait for a standby.
    pub(super) stalled_at: Option<Lsn>,
    /// `source.wal_retain_max`
    pub(super) budget: Option<Budget>,
    /// What is tried next.
    pub(super) next: Next,
    /// A repair came to its end, or there was nothing to repair.
    pub(super) repaired: bool,
    posts: Vec<Post>,
    /// When the sink wants a turn, whatever happens.
    sink_due: Option<std::time::Instant>,
    /// A commit's time, and how many of its events were published since the last look at the clock.
    observed: (PgTime, u64),
    epoch: Instant,
    pub(super) ever_streamed: bool,
    /// What the positions we remember belong to.
    pub(super) history: Option<History>,
    /// The server that events were read from last, streamed or polled.
    server: Option<History>,
    /// Which histories published positions belong to.
    pub(super) histories: Histories,
    /// The publication, as the stream before knew it.
    pub(super) published: Option<Published>,
    /// The epoch under which we streamed last.
    pub(super) owned: Option<i64>,
    pub(super) ownership: Ownership,
    /// When what is in flight is no longer ours to send, while there is no stream.
    lease_ends: Instant,
    pub(super) rechecked: Rechecked,
    pub(super) repeats: Repeats,
    pub(super) pause_min: Duration,
}

/// The cluster that the sink's brokers are of.
#[derive(Default)]
pub(super) struct Cluster {
    /// With which the last start was decided; `None` where no broker had answered.
    decided: Option<String>,
    /// Another one answers, and has to be compared with what the position belongs to.
    pub(super) located: bool,
}

/// How events are read next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Next {
    /// By the mode.
    #[default]
    Stream,
    /// From the table, since the slot can't be used.
    Poll,
    /// From the list of a repair.
    Repair,
}

/// What waiting came to.
pub(super) enum Waited<T> {
    Done(T),
    Over(Exit),
}

impl Pipeline {
    /// Waits a moment for a broker to name its cluster, so that a start need not be repeated for it.
    async fn await_cluster(&mut self, stop: &Stop) -> Option<Exit> {
        while matches!(self.spec.sink, SinkSpec::Kafka(_))
            && self.sink.cluster().is_none()
            && self.epoch.elapsed() < CLUSTER_WAIT
        {
            if let Waited::Over(exit) = self.waiting(tokio::time::sleep(CLUSTER_PAUSE), stop).await
            {
                return Some(exit);
            }
        }
        self.cluster = Cluster { decided: self.sink.cluster(), located: false };
        None
    }

    /// The start was decided, and its session is ours: records may go to the cluster that it was decided with. Where
    /// that is not known, they may go to none, also not to the one of an earlier session: another process may have
    /// moved the position on since, in another cluster.
    fn admit(&mut self) {
        let cluster = self.cluster.decided.as_deref();
        match cluster {
            Some(cluster) => self.sink.admit(cluster),
            None => self.sink.hold(),
        }
        let words = settings_change::words(&self.spec, cluster);
        self.status_handle.update(|snapshot| snapshot.belongs_to = Some(words));
        // A broker may have answered since.
        self.compare_cluster();
    }

    /// Notes whether the brokers are of another cluster than the start was decided with.
    fn compare_cluster(&mut self) {
        let found = self.sink.cluster();
        self.cluster.located |= found.is_some() && found != self.cluster.decided;
    }

    async fn run(&mut self, stop: &Stop) -> Exit {
        let mut backoff = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
        loop {
            if self.spec.only_repair && self.repaired {
                return Exit::Stopped;
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
                    let next = History::of(&connected.resume.cursor);
                    let seen = Seen { confirmed: self.confirmed, received: self.relay.received() };
                    let start = connected.resume.start;
                    let refused = self.refuses(&next, &connected.past).or_else(|| {
                        let before = self.history.as_ref()?;
                        before.rewound(&next, &connected.past, seen, start)
                    });
                    if let Some(halt) = refused {
                        self.end_history(&connected.desk).await;
                        return Exit::Halted(Box::new(halt));
                    }
                    self.server = Some(next);
                    self.admit();
                    let since = Instant::now();
                    self.ever_streamed = true;
                    self.rechecked.answered();
                    let end = self.stream(connected, stop).await;
                    self.lease_ends = Instant::now() + lease(&end);
                    if since.elapsed() > RECONNECT_MAX {
                        self.rechecked.forget();
                        backoff.reset();
                    }
                    match end {
                        End::Over(exit) => return exit,
                        End::Lost(error, phase) => Failure::Source(error, phase),
                        End::Restart => Failure::Reset,
                        End::LetGo(halt) => {
                            self.lets_go = true;
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

    /// One session of polling, or of a repair, and the pause after it; the exit, if the pipeline is over.
    async fn poll_once(
        &mut self,
        repairs: bool,
        stop: &Stop,
        backoff: &mut Backoff,
    ) -> Option<Exit> {
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
                let past = Past { wal_end: polling.start, switches: Vec::new() };
                if let Some(halt) = self.refuses(&polling.server, &past) {
                    self.end_history(&polling.desk).await;
                    return Some(Exit::Halted(Box::new(halt)));
                }
                self.server = Some(polling.server.clone());
                self.admit();
                let since = Instant::now();
                self.ever_streamed = true;
                self.rechecked.answered();
                let end = Box::pin(self.poll(polling, stop)).await;
                if since.elapsed() > RECONNECT_MAX {
                    self.rechecked.forget();
                    backoff.reset();
                }
                match end {
                    End::Over(exit) => return Some(exit),
                    End::Lost(error, phase) => Failure::Source(error, phase),
                    End::Restart => Failure::Reset,
                    End::LetGo(halt) => Failure::Halt(halt),
                }
            }
        };
        if let Some(halt) = self.judge(failure) {
            self.apply(self.now(), Input::SourceLost);
            return Some(Exit::Halted(halt));
        }
        self.pause(stop, backoff).await
    }

    /// Why nothing of this server may be published after what was published from the server before.
    fn refuses(&self, next: &History, past: &Past) -> Option<Halt> {
        self.server.as_ref()?.refuses(next, past)
    }

    /// The mapper of streams, or of claims (`rows`): those have no position in the log. Called before anything is
    /// marked: where the server has another history than the one before, what is remembered by id is forgotten. A
    /// server that was promoted without the last commits gives their ids to other rows.
    pub(super) fn renew_mapper(&mut self, desk: &Desk, rows: bool) -> Result<(), Box<Halt>> {
        let outbox = self.spec.outbox.clone();
        let mut mapper = Mapper::new(outbox).map_err(|e| Box::new(halts::unfit_outbox(&e)))?;
        let Settled { histories, raised, first: _ } = &desk.histories;
        mapper.set_histories(histories.clone(), rows);
        if let Some((before, from)) = *raised {
            log::history_begins(&self.spec, histories.current(), before, from);
        }
        if self.histories.current() != histories.current() {
            // Ids of another history are other rows' on this server.
            self.marking.forget();
            self.handed = Handed::default();
        }
        self.histories = histories.clone();
        self.mapper = mapper;
        Ok(())
    }

    /// Marks the history in the cursor row as ended, on a server that this process refuses to stream from. The next
    /// process reads only that row, and consumers may have seen higher positions of this one, so it must begin a new
    /// history. If the row can't be written, the hint of the halt says how a person does it.
    async fn end_history(&self, desk: &Desk) {
        let ended = cursor::end_history(desk.control.client(), self.spec.name(), desk.epoch).await;
        ended.unwrap_or_default();
    }

    /// Waits for `future` without a stream: reports still come, and a stop may.
    pub(super) async fn waiting<F: Future>(&mut self, future: F, stop: &Stop) -> Waited<F::Output> {
        let mut future = pin!(future);
        let lease = self.lease_ends;
        loop {
            let held = self.relay.in_flight().0 > 0;
            tokio::select! {
                biased;
                () = stop.drain() => {
                    self.apply(self.now(), Input::Drain);
                    // Without a database there is nowhere to write a last row.
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

    /// Performs the effects that need no stream; the exit, if the relay has come to its end.
    pub(super) fn outcome(&mut self) -> Option<Exit> {
        let mut exit = None;
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Published { ticket, commit_time } => self.published(ticket, commit_time),
                Effect::Restart { why } => self.reset_sink(why),
                Effect::Drained => exit = Some(Exit::Stopped),
                Effect::Halt(halt) => exit = Some(Exit::Halted(halt)),
                Effect::Released { position } => self.released(position),
                Effect::Overtaken { position, by } => log::overtaken(self, position, by),
                Effect::DeadLetterRefused { position, reason } => {
                    log::undelivered(self, position, reason);
                }
                // Without a stream there is nothing to write or to confirm to; the relay asks again when there is one.
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

    /// Time since this pipeline began: the relay's clock.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// When the loop must turn again, whatever happens.
    pub(super) fn due(&self) -> Instant {
        // What was published since the last report is told soon; nothing new is told now and then.
        let news = self.tell.published_total != self.tell.reported_total;
        let pause = if news { log::REPORT_SOON } else { log::REPORT_INTERVAL };
        let report = Instant::now() + pause;
        let due = self.sink_due.map_or(report, |at| report.min(at.into()));
        self.relay.deadline().map_or(due, |at| (self.epoch + at).min(due))
    }

    /// Whether an effect waits that ends the stream.
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
}

/// How long what is in flight may go on after a stream that ended so.
fn lease(end: &End) -> Duration {
    match end {
        End::Lost(error, _) if matches!(error.kind(), SourceErrorKind::Silent(_)) => Duration::ZERO,
        End::Lost(..) | End::Restart | End::LetGo(_) | End::Over(_) => LEASE,
    }
}

// A pipeline's beginning, from what was configured, and its end.

impl Pipeline {
    /// Lives one pipeline.
    pub(super) async fn live(
        spec: PipelineSpec,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
        stop: Stop,
    ) -> Exit {
        let name = spec.name().to_owned();
        status_handle.update(|snapshot| {
            snapshot.source = spec.source_name();
            snapshot.slot.clone_from(&spec.names.slot);
        });
        let exit = match Self::new(spec, status_handle.clone(), metrics) {
            Ok(mut pipeline) => {
                let exit = pipeline.run(&stop).await;
                pipeline.leave_nothing_in_flight();
                pipeline.sink.close(pipeline.spec.shutdown_grace.min(Duration::from_secs(2)));
                // From here on nothing is read.
                pipeline.tell.streaming = false;
                pipeline.report(None);
                exit
            }
            Err(halt) => Exit::Halted(Box::new(halt)),
        };
        log::ended(&name, &status_handle, &exit);
        exit
    }

    fn new(
        spec: PipelineSpec,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
    ) -> Result<Self, Halt> {
        let mailbox = Mailbox::default();
        let mapper = Mapper::new(spec.outbox.clone()).map_err(|e| halts::unfit_outbox(&e))?;
        let mut sink =
            sink::open(&spec.sink, mailbox.clone()).map_err(|e| halts::unfit_sink(&e))?;
        sink.hold();
        let settings = Settings {
            limits: spec.limits,
            cursor_interval: spec.cursor_interval,
            rules: spec.parking,
        };
        let auto = spec.mode == Mode::Auto;
        let marking = Marking::new(auto || spec.poll.mark_streamed, auto);
        let budget = spec.wal_retain_max.map(|max| Budget::new(max, spec.polls_in_its_stead()));
        let destinations = Destinations::new(spec.name(), spec.park_after);
        Ok(Self {
            spec: Arc::new(spec),
            relay: Relay::new(settings),
            mapper,
            unknown_types: Vec::new(),
            sink,
            cluster: Cluster::default(),
            mailbox,
            effects: Vec::new(),
            confirmed: Watermark::default(),
            committed_at: PgTime::default(),
            status_handle,
            metrics,
            tell: log::Tell::default(),
            lag: LagMeter::new(std::time::Instant::now()),
            shelf: Shelf::default(),
            destinations,
            marking,
            handed: Handed::default(),
            returning: Returning::default(),
            lets_go: false,
            stalled_at: None,
            budget,
            next: Next::Stream,
            repaired: false,
            posts: Vec::new(),
            sink_due: None,
            observed: (PgTime::default(), 0),
            epoch: Instant::now(),
            ever_streamed: false,
            history: None,
            server: None,
            histories: Histories::default(),
            published: None,
            owned: None,
            ownership: Ownership::default(),
            lease_ends: Instant::now(),
            rechecked: Rechecked::default(),
            repeats: Repeats::default(),
            pause_min: Duration::ZERO,
        })
    }
}

// What the sink says, on its way to the relay; what was published, on its way to the metrics; and its reset.

impl Pipeline {
    pub(super) fn reset_sink(&mut self, why: Restart) {
        // While the table is polled there is no slot that somebody could have taken: a claim was given up.
        let given_up = why == Restart::SlotTaken && self.tell.polling;
        let reason = if given_up { "claim_given_up" } else { why.name() };
        log::resetting(self, reason);
        self.metrics.reconnected(Side::Sink, reason);
        self.shelf.clear();
        self.marking.given_up();
        self.ownership.resets();
        self.sink.reset();
    }

    /// What is in flight at an end is given up before the slot is: another process may have it at once, and what this
    /// one's producer sent after that might land behind the other's events. The sink may have more than the relay
    /// counts, which has given up what it holds for unknown. Returns whether nothing was in flight.
    pub(super) fn leave_nothing_in_flight(&mut self) -> bool {
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
        cut("retry_acknowledged");
        self.tell.published_total += 1;
        log::released(self, position);
    }

    pub(super) fn published(&mut self, ticket: Ticket, commit_time: PgTime) {
        self.marking.published(ticket);
        self.tell.published_total += 1;
        // Events of one transaction share a latency, and are mostly reported together.
        if self.observed.0 != commit_time {
            self.observe_latency();
            self.observed.0 = commit_time;
        }
        self.observed.1 += 1;
    }

    /// Counts what is not counted yet of what was published.
    pub(super) fn observe_latency(&mut self) {
        let (commit_time, times) = std::mem::take(&mut self.observed);
        if times > 0 {
            self.metrics.latency().observe_many(self.tell.since(commit_time), times);
        }
    }

    /// Hands the relay everything the sink has said, and has the sink go on with what waited for that.
    pub(super) fn take_posts(&mut self, now: Duration) {
        let mut posts = std::mem::take(&mut self.posts);
        self.mailbox.take(&mut posts);
        self.tell.look_at_the_clock();
        for post in posts.drain(..) {
            match post {
                Post::Report { ticket, outcome } => self.reported(now, ticket, outcome),
                Post::Retry => {}
                // The last start was decided without knowing the cluster, or with another one.
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
                    self.apply(now, Input::Halt(Box::new(halts::unfit_running(reason, hint))));
                    // Reports of what is in flight may never come.
                    self.apply(now, Input::SinkBroken);
                }
            }
        }
        self.posts = posts;
        // Where all is to be given up, nothing more goes on its way before the reset.
        self.sink_due = if self.ending() { None } else { self.sink.turn() };
    }
}

// What a connection that failed, or ended, leads to: another try, standing by, another way to read, or a halt.
//
// The table of errors is `postgres::action`'s; here it meets the pipeline's mode and what it has seen before.

/// What the server refused last, to be looked at again by the fence. Refused once more without another answer in
/// between, the fence and the server disagree, and a human must act.
#[derive(Default, Debug)]
pub(super) struct Rechecked(Option<HaltReason>);

impl Rechecked {
    /// Notes a refusal; whether it is the same as the one before.
    fn refused(&mut self, reason: HaltReason) -> bool {
        self.0.replace(reason) == Some(reason)
    }

    /// The fence has looked, and a refusal before it is explained or over. Not what a statement was refused that no
    /// handshake makes.
    pub(super) fn answered(&mut self) {
        let made_later = |reason: &HaltReason| {
            matches!(reason, HaltReason::SchemaUnfit | HaltReason::TableUnfit)
        };
        self.0 = self.0.filter(made_later);
    }

    /// A session has worked for a while.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }
}

impl Pipeline {
    /// Judges a failure and pauses; the exit, if the pipeline is over.
    pub(super) async fn after(
        &mut self,
        failure: Failure,
        stop: &Stop,
        backoff: &mut Backoff,
    ) -> Option<Exit> {
        // No repair publishes what polling has left.
        let unpolled = matches!(failure, Failure::Unpolled);
        if let Some(halt) = self.judge(failure) {
            if self.spec.mode == Mode::Auto && handover::polling_helps(halt.reason) {
                log::falling_back(self, &halt);
                self.rechecked.answered();
                self.next = Next::Poll;
                return None;
            }
            if !unpolled && self.repairs_instead(&halt) {
                self.rechecked.answered();
                self.next = Next::Repair;
                return None;
            }
            self.apply(self.now(), Input::SourceLost);
            return Some(Exit::Halted(halt));
        }
        self.pause(stop, backoff).await
    }

    pub(super) async fn pause(&mut self, stop: &Stop, backoff: &mut Backoff) -> Option<Exit> {
        let pause = backoff.next(fastrand::f64()).max(self.pause_min);
        self.pause_min = Duration::ZERO;
        match self.waiting(tokio::time::sleep(pause), stop).await {
            Waited::Over(exit) => Some(exit),
            Waited::Done(()) => None,
        }
    }

    /// What a failed connection means: `None` to try again.
    pub(super) fn judge(&mut self, failure: Failure) -> Option<Box<Halt>> {
        match failure {
            // A process that has lost the pipeline may still be recreating the slot, on a session of its own.
            Failure::Halt(halt)
                if halt.reason == HaltReason::SlotMoved
                    && !self.rechecked.refused(HaltReason::SlotMoved) =>
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
                self.rechecked.answered();
                self.stand_by(Some(active_pid));
            }
            Failure::Wait { message } => log::waiting(self, &message),
            Failure::Reset => {}
            Failure::Unrepaired => {
                self.rechecked.answered();
                self.next = Next::Repair;
            }
            Failure::Unpolled if self.spec.mode == Mode::Auto => {
                self.rechecked.answered();
                self.next = Next::Poll;
            }
            // What is unpublished is in the table, and the slot would bring what polling has published.
            Failure::HandsOver => {
                self.rechecked.answered();
                self.lets_go = true;
                self.next = Next::Poll;
            }
            Failure::Unpolled => return Some(Box::new(halts::unpolled(self.spec.name()))),
            Failure::Sound => self.repaired = true,
            Failure::Source(error, phase) => {
                match error_policy::action(&error, phase, self.ever_streamed) {
                    Action::Reconnect(class) | Action::Later(class) => {
                        return self.reconnect(class, &error);
                    }
                    Action::StandBy => self.stand_by(None),
                    Action::Recheck(reason) if !self.rechecked.refused(reason) => {
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

    /// Halts for a message that can't be read, once what came before it is resolved.
    pub(super) fn halt_behind(&mut self, now: Duration, error: SourceError) {
        if let Some(halt) = self.judge(Failure::Source(error, Phase::Stream)) {
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

    /// Another process has the slot: what we have in flight is no longer ours to send.
    fn stand_by(&mut self, active_pid: Option<u32>) {
        log::standing_by(self, active_pid);
        if self.relay.in_flight().0 > 0 {
            self.apply(self.now(), Input::SlotTaken);
        }
    }
}

// The end of a stream in good order. What the server does not answer in time is left to the next start, which
// repeats it.

/// How long the server may take to answer the end of a stream, and to show the last position in the slot.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// Interval between two queries of the slot while it does not show the last position yet: PostgreSQL sends no
/// notification of that.
const FAREWELL_LOOK: Duration = Duration::from_millis(5);

impl Pipeline {
    /// Ends the stream, and waits until the slot shows the last position: so nothing comes twice.
    pub(super) async fn farewell(&mut self, connected: Connected) {
        let Connected { wal, desk, version, .. } = connected;
        if let Err(error) = wal.stop(FAREWELL_MAX).await {
            log::shutdown_error(self, &error);
            return;
        }
        let deadline = Instant::now() + FAREWELL_MAX;
        while Instant::now() < deadline {
            match catalog::read_slot(desk.control.client(), version, &self.spec.names.slot).await {
                Ok(Some(row)) if row.confirmed_flush_lsn >= Some(self.confirmed.lsn()) => return,
                Ok(Some(_)) => tokio::time::sleep(FAREWELL_LOOK).await,
                Ok(None) => return,
                Err(error) => return log::shutdown_error(self, &error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::SourceError;
    use crate::postgres::error_policy::Phase;

    #[test]
    fn what_is_in_flight_outlives_a_silent_server_not_at_all_and_others_for_seconds() {
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
    use crate::sink::{NotTaken, Sink, SinkSpec};
    use crate::status::StatusHandle;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    /// Counts its turns, and what is given up by a reset.
    #[derive(Clone, Default)]
    struct Counting {
        turns: Arc<AtomicUsize>,
        on_their_way: Arc<AtomicUsize>,
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
            self.on_their_way.load(Ordering::Relaxed) == 0
        }

        fn reset(&mut self) {
            self.on_their_way.store(0, Ordering::Relaxed);
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
            sink: SinkSpec::Discard,
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

    /// A report that gives a record up has the relay give up all, and end if it is to: what the sink has beside it
    /// would be sent behind the events of whoever has the slot next.
    #[test]
    fn what_a_relay_has_given_up_while_it_stops_is_not_sent_when_the_slot_is_free() {
        let (mut pipeline, sink) = pipeline();
        sink.on_their_way.store(2, Ordering::Relaxed);
        pipeline.apply(pipeline.now(), Input::Drain);
        pipeline.apply(pipeline.now(), Input::SinkBroken);
        assert!(pipeline.outcome().is_some());
        pipeline.leave_nothing_in_flight();
        assert_eq!(sink.on_their_way.load(Ordering::Relaxed), 0);
    }

    /// What waits in a sink may not be ours any more: it must not go on its way before the reset.
    #[test]
    fn a_sink_that_is_to_be_reset_has_no_turn_before_that() {
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
mod judge_tests {
    use super::*;

    /// A standby process sees each lost slot refuse it once, and never connects: the second loss is not a repetition.
    #[test]
    fn a_refusal_that_the_fence_has_explained_is_no_repetition() {
        let mut rechecked = Rechecked::default();
        assert!(!rechecked.refused(HaltReason::SlotUnusable));
        assert!(rechecked.refused(HaltReason::SlotUnusable), "nothing in between");
        rechecked.answered();
        assert!(!rechecked.refused(HaltReason::SlotUnusable));
        assert!(!rechecked.refused(HaltReason::SchemaUnfit), "another one");
        rechecked.answered();
        assert!(rechecked.refused(HaltReason::SchemaUnfit), "no handshake makes that statement");
        rechecked.forget();
        assert!(!rechecked.refused(HaltReason::SchemaUnfit));
    }
}
