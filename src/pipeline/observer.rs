//! What a pipeline shows to people: log lines, one for each change of its state, its status, and its metrics.
//!
//! An ordinary event has no line. A state that lasts is logged again at growing intervals (`health`), with how long and
//! how often. Each line has an `event`, a stable name for machines; `docs/operations.md` lists the events and their
//! fields. The methods of the [`Observer`] take facts. It also reads the wall clock, for latencies and lag, and for the
//! times of events, which the engine compares with it.

use super::backlog_log::{BacklogLog, FULL_HINT};
use super::drain_log::DrainLog;
use super::lag::LagMeter;
use super::mode::Mode;
use super::parked_causes::ParkedCauses;
use super::parked_log::ParkedLog;
use super::pause::PauseStatus;
use super::settings_change::LeftBehind;
use super::sink_log::SinkLog;
use super::skipped_log::SkippedLog;
use super::slot_monitor::{SlotStatus, show};
use super::source_log::SourceLog;
use super::spec::CommonSpec;
use super::stop::PipelineExit;
use super::store_log::StoreLog;
use crate::event::{HistoryId, Position};
use crate::health::{Condition, grouped};
use crate::metrics::{PipelineMetrics, Side};
use crate::offset::{Offset, Watermark};
use crate::parked::{self, Parked, ParkedUpdate};
use crate::postgres::start::Resume;
use crate::postgres::store::parked::Loaded;
use crate::record::Refusal;
use crate::relay::{ParkedHead, Relay};
use crate::status::{
    Head, Lag, ParkedSummary, PipelineState, Skipped, StatusHandle, TransactionsSummary,
};
use crate::timestamp::Timestamp;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{debug, error, info};

/// How often the status is updated.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// How often the status is updated while events are published.
const REPORT_SOON: Duration = Duration::from_millis(20);

/// A lag above this is the state `catching_up`.
const CATCHING_UP: Duration = Duration::from_secs(5);

/// Parked heads shown in the status.
const HEADS_MAX: usize = 10;

/// The counters, log, status and metrics of a pipeline, and the wall clock.
pub(super) struct Observer {
    /// What the pipeline was configured with.
    spec: Arc<CommonSpec>,
    /// The status that `/status` and the metrics read.
    status_handle: StatusHandle,
    /// Counters of this pipeline.
    metrics: PipelineMetrics,
    /// Lines about the source.
    source: SourceLog,
    /// Lines about the tables.
    store: StoreLog,
    /// Lines about the sink.
    sink: SinkLog,
    /// Lines about the lag.
    backlog: BacklogLog,
    /// Lines about parked events.
    parked: ParkedLog,
    /// Changes skipped since the start, and the lines about them.
    skipped: SkippedLog,
    /// Events since the start.
    counts: Counts,
    /// The wall clock, and latencies that are not in the metrics yet.
    clock: Clock,
    /// Lines about a stop and a pause.
    drain: DrainLog,
}

/// Events since the start.
#[derive(Debug, Default)]
struct Counts {
    /// Events published.
    published: u64,
    /// Events parked.
    parked: u64,
    /// `published` at the last update of the status.
    reported: u64,
    /// When the status was last updated.
    reported_at: Option<Instant>,
}

/// The wall clock, and the latencies of the newest published events.
#[derive(Debug, Default)]
struct Clock {
    /// The wall clock, as it was last read.
    wall: Timestamp,
    /// A commit time.
    commit_time: Timestamp,
    /// How many events of that commit time were published since the latency was last observed.
    times: u64,
}

impl Clock {
    fn read(&mut self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
        self.wall = Timestamp { unix_micros };
    }

    /// Time since a commit, by the clock of this host; zero if the clock of the server is ahead.
    fn since(&self, commit_time: Timestamp) -> Duration {
        let micros = self.wall.unix_micros.saturating_sub(commit_time.unix_micros);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

/// What the status shows of the parts that the observer does not own.
pub(super) struct Facts<'a> {
    /// What waits, what is in flight, and what is parked.
    pub(super) relay: &'a Relay,
    /// The clock of the relay.
    pub(super) now: Duration,
    /// The reported condition of the sink blocks the intake.
    pub(super) sink_blocks: bool,
    /// How long the oldest event has been parked, if no slot monitor queries that.
    pub(super) oldest_parked: Option<Duration>,
    /// The slot that is streamed from, and how much WAL it may retain.
    pub(super) slot: Option<(&'a SlotStatus, Option<u64>)>,
    /// The transactions of the sink, if it has any.
    pub(super) transactions: Option<TransactionsSummary>,
}

impl Facts<'_> {
    /// `parking table full (100,000 of 100,000 rows): the pipeline is paused`
    fn full(&self, rows_max: u64) -> String {
        let rows = self.relay.parked().total();
        format!(
            "parking table full ({} of {} rows): the pipeline is paused",
            grouped(rows),
            grouped(rows_max)
        )
    }

    fn parked(&self, causes: &mut ParkedCauses) -> ParkedSummary {
        let (counts, now) = (self.relay.parked(), self.now);
        if counts.total() == 0 {
            return ParkedSummary::default();
        }
        let by_error = causes.by_error(self.relay, Instant::now()).to_vec();
        let head = |head: ParkedHead| {
            let ParkedHead { position, state, attempts, due, behind } = head;
            let wait = due.saturating_sub(now).as_secs_f64();
            Head {
                position: position.to_string(),
                state: state.name(),
                attempts,
                retry_in_seconds: (state != parked::State::Dead).then_some(wait),
                behind,
                error_code: causes.code(position).map(str::to_owned),
            }
        };
        ParkedSummary {
            waiting: counts.waiting,
            behind: counts.behind,
            due: counts.due,
            dead: counts.dead,
            aggregates: self.relay.blocked_lanes() as u64,
            full: self.relay.parking_is_full(),
            oldest_seconds: self.oldest_parked.map_or(0.0, |age| age.as_secs_f64()),
            heads: self.relay.heads(HEADS_MAX).into_iter().map(head).collect(),
            by_error,
        }
    }
}

impl Observer {
    pub(super) fn new(
        spec: Arc<CommonSpec>,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
    ) -> Self {
        let name = &spec.name;
        Self {
            source: SourceLog::new(name, spec.mode),
            store: StoreLog::new(name),
            sink: SinkLog::new(name),
            backlog: BacklogLog::new(name),
            parked: ParkedLog::default(),
            skipped: SkippedLog::default(),
            counts: Counts::default(),
            clock: Clock::default(),
            drain: DrainLog::new(name),
            spec,
            status_handle,
            metrics,
        }
    }

    /// Lines about the source.
    pub(super) fn source(&mut self) -> &mut SourceLog {
        &mut self.source
    }

    /// Lines about the tables.
    pub(super) fn store(&mut self) -> &mut StoreLog {
        &mut self.store
    }

    /// Lines about the sink.
    pub(super) fn sink(&mut self) -> &mut SinkLog {
        &mut self.sink
    }

    /// Lines about a stop and a pause.
    pub(super) fn drain(&mut self) -> &mut DrainLog {
        &mut self.drain
    }

    /// Whether the pipeline drains for a pause.
    pub(super) fn pauses(&self) -> bool {
        self.drain.pauses()
    }

    /// The pipeline is paused, and the database answers.
    pub(super) fn paused(&mut self, status: PauseStatus) {
        let PauseStatus { pause, slot, wal_end, idle_timeout } = status;
        self.lag().answered(Instant::now());
        // Polling has no slot, unless one was left behind.
        if self.spec.mode != Mode::Poll || slot.is_some() {
            show(&self.status_handle, slot.as_ref(), wal_end);
        }
        let restart = slot.and_then(|slot| slot.restart_lsn);
        let retained = restart.map(|lsn| wal_end.distance_from(lsn));
        self.drain.paused(pause, retained, idle_timeout);
    }

    /// What is known of commits that were not read yet.
    pub(super) fn lag(&mut self) -> &mut LagMeter {
        self.backlog.lag()
    }

    /// Changes skipped since the start.
    #[inline]
    pub(super) fn skipped(&mut self) -> &mut Skipped {
        &mut self.skipped.counts
    }

    /// Whether the table is polled.
    pub(super) fn is_polling(&self) -> bool {
        self.source.is_polling()
    }

    /// Whether the sink was reported as down, and not as up since.
    pub(super) fn sink_is_down(&self) -> bool {
        self.sink.outage().is_some()
    }

    /// Reads the wall clock, once for a whole batch.
    pub(super) fn read_clock(&mut self) {
        self.clock.read();
    }

    /// The wall clock, as it was last read.
    #[inline]
    pub(super) fn wall(&self) -> Timestamp {
        self.clock.wall
    }

    /// The transaction of this commit time waits while the intake is closed, or none does.
    pub(super) fn hold(&mut self, commit_time: Option<Timestamp>) {
        self.backlog.hold(commit_time);
    }

    /// An event was published.
    pub(super) fn published(&mut self, commit_time: Timestamp) {
        self.counts.published += 1;
        // Events of one transaction have the same latency, and are mostly reported together.
        if self.clock.commit_time != commit_time {
            self.observe_latency();
            self.clock.commit_time = commit_time;
        }
        self.clock.times += 1;
    }

    /// Adds the published events that are not counted yet to the latency metric.
    pub(super) fn observe_latency(&mut self) {
        let commit_time = std::mem::take(&mut self.clock.commit_time);
        let times = std::mem::take(&mut self.clock.times);
        if times > 0 {
            self.metrics.latency().observe_many(self.clock.since(commit_time), times);
        }
    }

    /// A transaction of the sink was committed.
    pub(super) fn sink_committed(&self, took: Duration) {
        self.metrics.commits().observe(took);
    }

    /// A parked event was published.
    pub(super) fn released(&mut self, position: Position) {
        self.counts.published += 1;
        let pipeline = &self.spec.name;
        debug!(event = "parked_published", pipeline, %position, "parked event published");
    }

    /// An event is parked.
    pub(super) fn parked(&mut self) {
        self.counts.parked += 1;
    }

    /// Something is wrong with an event.
    pub(super) fn failed(&self, event_type: &str) {
        self.metrics.failed(event_type);
    }

    /// Something is wrong with an event, and it is parked as this row.
    pub(super) fn failure_parked(&mut self, row: &Parked) {
        self.parked.event_parked(&self.spec.name, row);
    }

    /// An event was published after a later event of its aggregate.
    pub(super) fn overtaken(&mut self, position: Position, by: Position) {
        self.parked.event_overtaken(&self.spec.name, position, by);
    }

    /// A session begins with these parked events.
    pub(super) fn parked_loaded(&mut self, rows: &[Loaded]) {
        self.parked.causes().loaded(rows);
    }

    /// The new states of parked events, for the status only.
    pub(super) fn causes_changed(&mut self, statuses: &[ParkedUpdate]) {
        self.parked.causes().changed(statuses);
    }

    /// The new states of parked events.
    pub(super) fn states_changed(&mut self, statuses: &[ParkedUpdate]) {
        self.parked.states_changed(&self.spec.name, statuses);
    }

    /// An event has expired.
    pub(super) fn expired(&mut self, position: Position, id: &str) {
        self.skipped.event_expired(&self.spec.name, position, id);
    }

    /// A claim found rows that have expired.
    pub(super) fn rows_expired(&mut self, rows: u64) {
        self.skipped.rows_expired(&self.spec.name, rows);
    }

    /// The pipeline connects to the source again, or resets the sink.
    pub(super) fn reconnected(&self, side: Side, why: &'static str) {
        self.metrics.reconnected(side, why);
    }

    /// The sink gives up what is in flight, and continues after `cursor`.
    pub(super) fn resetting(&mut self, why: &'static str, cursor: Watermark) {
        self.sink.resetting(why, cursor);
        self.metrics.reconnected(Side::Sink, why);
    }

    /// Events wait for a topic, or, with `None`, for the brokers.
    pub(super) fn sink_down(&mut self, topic: Option<&str>, reason: &str, hint: Option<&str>) {
        // The broker may be down before the first claim.
        let kept = kept(self.spec.mode, self.source.is_polling());
        self.sink.down(kept, topic, reason, hint);
    }

    /// The dead-letter topic did not accept a record.
    pub(super) fn undelivered(&mut self, position: Position, reason: Refusal) {
        self.sink.undelivered(position, reason, self.spec.dead_topic.as_deref());
    }

    /// A stream has begun. `deferred`: rows of parked events that are to be written.
    pub(super) fn streaming(&mut self, slot: &str, resume: &Resume, deferred: usize) {
        self.store.streaming(deferred);
        self.source.streaming(slot, resume);
    }

    /// Rows of the list of a repair are published.
    pub(super) fn repair_progress(&mut self) {
        self.store.repair_progress(self.counts.published);
    }

    /// Positions belong to a new history from here on.
    pub(super) fn history_begins(&self, history: HistoryId, before: HistoryId, from: Offset) {
        info!(
            event = "history_begins",
            pipeline = self.spec.name,
            %history,
            %before,
            %from,
            "positions of events committed at {from} or later begin with {history} (history before: {before})"
        );
    }

    /// The slot is dropped; the next checkpoint of the server removes its WAL.
    pub(super) fn slot_dropped(&mut self, slot: &str) {
        self.slot_held(None);
        self.source.slot_dropped(slot);
    }

    /// The slot of a polling pipeline retains WAL, or is dropped.
    pub(super) fn slot_left_behind(&mut self, left: Option<&LeftBehind>) {
        let over = self.source.slot_left_behind(left);
        if left.is_some() || over {
            self.slot_held(left.map(|left| left.retained));
        }
    }

    /// Updates the status with a slot that is not streamed from.
    pub(super) fn slot_held(&mut self, retained: Option<u64>) {
        self.status_handle.update(|snapshot| {
            snapshot.slot_retained_bytes = retained;
            if retained.is_none() {
                snapshot.slot_state = None;
                snapshot.slot_safe_bytes = None;
            }
        });
    }

    /// The settings that the position belongs to, as one line.
    pub(super) fn belongs_to(&mut self, summary: String) {
        self.status_handle.update(|snapshot| snapshot.belongs_to = Some(summary));
    }

    /// How long the next update of the status may take: after publishing, the status is updated soon.
    pub(super) fn report_pause(&self) -> Duration {
        let news = self.counts.published != self.counts.reported;
        if news { REPORT_SOON } else { REPORT_INTERVAL }
    }

    /// Whether the last update of the status was not a moment ago.
    pub(super) fn report_is_due(&self) -> bool {
        self.counts.reported_at.is_none_or(|at| at.elapsed() >= REPORT_SOON)
    }

    /// Updates the status.
    pub(super) fn report(&mut self, mut facts: Facts<'_>) {
        self.clock.read();
        let transactions = facts.transactions.take();
        self.counts.reported_at = Some(Instant::now());
        self.counts.reported = self.counts.published;
        let relay = facts.relay;
        let (events, bytes) = if self.drain.is_paused() { (0, 0) } else { relay.in_flight() };
        let watermark = relay.progress().watermark;
        let lag = self.lag_now(relay);
        let (state, reason, hint) = self.state(&facts, lag);
        let mut warnings = self.store.warnings().into_iter().chain(self.source.warnings());
        let (reason, hint) = match warnings.find_map(std::convert::identity) {
            Some(warning) if reason.is_none() => {
                (Some(warning.reason.clone()), warning.hint.clone())
            }
            Some(_) | None => (reason, hint),
        };
        let full = state == PipelineState::ParkingFull;
        let full = full.then(|| facts.full(self.spec.parking.rows_max));
        self.backlog.parking_full(full);
        self.backlog.far(state, lag, relay.waits_for());
        self.skipped.report(&self.spec.name);
        let parked = facts.parked(self.parked.causes());
        let parked_any = relay.parked().total() > 0;
        let contact = self.backlog.answered_at();
        let Self { counts, skipped, source, sink, .. } = &*self;
        self.status_handle.update(|snapshot| {
            snapshot.state = state;
            (snapshot.reason, snapshot.hint) = (reason, hint);
            snapshot.watermark = watermark.to_string();
            snapshot.read.received = relay.received().to_string();
            snapshot.read.waits_for = relay.waits_for();
            (snapshot.in_flight_events, snapshot.in_flight_bytes) = (events, bytes);
            snapshot.published_total = counts.published;
            snapshot.skipped_total = skipped.counts.total();
            snapshot.skipped = skipped.counts;
            snapshot.parked_total = counts.parked;
            snapshot.parked = parked;
            snapshot.source_reconnects_total = source.reconnects_total();
            snapshot.sink.resets_total = sink.resets_total();
            snapshot.sink.transactions = transactions;
            snapshot.moments.lag = Lag::growing(lag);
            snapshot.moments.source_contact_at = contact;
            snapshot.moments.turned_at = counts.reported_at;
            let Some((slot_status, retain_max)) = facts.slot else { return };
            // The result of the slot monitor is older than what the relay knows.
            snapshot.parked.oldest_seconds = slot_status
                .oldest_parked
                .filter(|_| parked_any)
                .map_or(0.0, |age| age.as_secs_f64());
            snapshot.read.wal_end = Some(slot_status.wal_end.to_string());
            snapshot.lag_bytes = slot_status.wal_end.distance_from(watermark.offset());
            let slot = slot_status.slot.as_ref();
            snapshot.slot_retained_bytes = slot_status.retained();
            snapshot.slot_retain_max_bytes = retain_max;
            snapshot.slot_safe_bytes = slot.and_then(|slot| slot.safe_wal_size);
            snapshot.slot_state = slot.and_then(|slot| slot.wal_status.clone());
            let confirmed = slot.and_then(|slot| slot.confirmed_flush_lsn);
            snapshot.confirmed_flush_lsn = confirmed.map(|at| at.to_string());
        });
    }

    /// The age of the oldest commit that is not published or parked, whether it was read yet or not.
    fn lag_now(&mut self, relay: &Relay) -> Duration {
        let reading = self.source.read_mode(relay.received());
        let known = relay.oldest_unresolved().into_iter().chain(self.backlog.held_at());
        let known = known.map(|at| self.clock.since(at)).max().unwrap_or_default();
        known.max(self.backlog.lag().of_unread(reading, Instant::now()))
    }

    fn state(
        &self,
        facts: &Facts<'_>,
        lag: Duration,
    ) -> (PipelineState, Option<String>, Option<String>) {
        let relay = facts.relay;
        let shown =
            |condition: &Condition| (Some(condition.reason.clone()), condition.hint.clone());
        if let Some(halt) = relay.halting() {
            let reason = format!("halting once what is in flight is answered: {halt}");
            return (PipelineState::Draining, Some(reason), Some(halt.hint.clone()));
        }
        if let Some(shown) = self.drain.state() {
            return shown;
        }
        if let Some(condition) = self.source.stands_by() {
            return (PipelineState::StandingBy, Some(condition.reason.clone()), None);
        }
        if let Some(wait) = self.source.publishes_in().filter(|wait| !wait.is_zero()) {
            let reason = format!(
                "publishing begins in {:.0} s: records of the process that ran before may still reach the broker",
                wait.as_secs_f64()
            );
            return (PipelineState::Starting, Some(reason), None);
        }
        if let Some(condition) = self.source.outage() {
            let (reason, hint) = shown(condition);
            return (PipelineState::SourceDown, reason, hint);
        }
        if let Some(condition) = self.sink.outage().filter(|_| facts.sink_blocks) {
            let (reason, hint) = shown(condition);
            return (PipelineState::BrokerDown, reason, hint);
        }
        if relay.parking_is_full() {
            let (reason, hint) = (facts.full(self.spec.parking.rows_max), FULL_HINT.to_owned());
            return (PipelineState::ParkingFull, Some(reason), Some(hint));
        }
        if !self.source.is_reading() {
            return (PipelineState::Starting, None, None);
        }
        if lag > CATCHING_UP {
            let reason = relay.waits_for().map(|what| format!("the intake waits for {what}"));
            return (PipelineState::CatchingUp, reason, None);
        }
        let state = if self.source.is_polling() {
            PipelineState::Polling
        } else {
            PipelineState::Streaming
        };
        (state, None, None)
    }
}

/// Where unpublished events are meanwhile.
const fn kept(mode: Mode, polling: bool) -> &'static str {
    match mode {
        Mode::Embedded => "the source keeps them",
        Mode::Poll => "the rows stay in the table",
        Mode::Wal | Mode::Auto if polling => "the rows stay in the table",
        Mode::Wal | Mode::Auto => "PostgreSQL keeps the WAL",
    }
}

/// Logs the end of a pipeline, and sets its status.
pub(super) fn ended(name: &str, status_handle: &StatusHandle, exit: &PipelineExit) {
    status_handle.update(|snapshot| match exit {
        PipelineExit::Stopped => snapshot.state = PipelineState::Stopped,
        PipelineExit::Halted(halt) => {
            snapshot.state = PipelineState::Halted;
            // The last known values may be the reason of the halt. The slot is queried again while the pipeline is
            // halted.
            snapshot.slot_state = None;
            snapshot.slot_safe_bytes = None;
            snapshot.slot_retained_bytes = None;
            snapshot.confirmed_flush_lsn = None;
            if let Lag::None = snapshot.moments.lag {
                snapshot.moments.lag = Lag::Growing { was: Duration::ZERO, at: Instant::now() };
            }
            // Maintenance has ended too.
            let maintenance = &mut snapshot.maintenance;
            maintenance.runs.rests();
            // Without the code, which has a field of its own.
            snapshot.reason = Some(halt.message.clone());
            snapshot.halt_code = Some(halt.reason.code());
            snapshot.hint = Some(halt.hint.clone());
        }
        PipelineExit::Bug => snapshot.state = PipelineState::Halted,
    });
    match exit {
        PipelineExit::Stopped => info!(event = "stopped", pipeline = name, "stopped"),
        PipelineExit::Halted(halt) => error!(
            event = "halted",
            pipeline = name,
            code = halt.reason.code(),
            reason = halt.reason.name(),
            meaning = halt.meaning,
            hint = halt.hint,
            "halted: {}",
            halt.message
        ),
        PipelineExit::Bug => error!(event = "bug", pipeline = name, "a bug in Postrider"),
    }
}
