//! The log lines of a pipeline, one for each change of its state, and the state behind them.
//!
//! An ordinary event has no line. A state that lasts is logged again at growing intervals (`health`), with how long and
//! how often. Each line has an `event`, a stable name for machines; `docs/operations.md` lists the events and their
//! fields. [`PipelineLog`] also holds the wall clock, for latencies and lag and for the expiry of events
//! ([`PipelineLog::has_passed`]).

use super::health::{Condition, DueReport, duration_text};
use super::lifecycle::Pipeline;
use super::parked_log::ParkedLog;
use super::row_status::WaitingRows;
use super::service::PipelineExit;
use super::settings_change::{ChangeNote, LeftBehind};
use super::skipped_log::SkippedLog;
use super::spec::{Mode, PipelineSpec};
use crate::error::{Chain, Halt, HaltReason};
use crate::event::{HistoryId, Position};
use crate::offset::{Offset, Watermark};
use crate::postgres::catalog::LeafChange;
use crate::postgres::lock_holders::{self, Holder};
use crate::postgres::repair::{RepairProgress, RepairRow};
use crate::postgres::store::bookmark::{DropReason, DroppedBookmark};
use crate::postgres::store::cursor::{CursorWrite, PositionSettings};
use crate::postgres::{SourceError, TableName, error_policy};
use crate::record::Refusal;
use crate::status::{self, StatusHandle};
use crate::timestamp::Timestamp;
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{debug, error, info, warn};

/// How often the status is updated.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// How often the status is updated while events are published.
pub(super) const REPORT_SOON: Duration = Duration::from_millis(20);

/// A lag below this ends a backlog.
const CLOSE: Duration = Duration::from_secs(1);

/// How long the lag must stay below [`CLOSE`] before the end of a backlog is logged.
const CLOSE_FOR: Duration = Duration::from_secs(1);

/// Topics that are reported at a time. Further ones are reported when one of these recovers.
const REPORTED_MAX: usize = 100;

/// What to do about a write that PostgreSQL takes long to commit.
const WRITE_HINT: &str = "another session may hold a lock: SELECT pid, pg_blocking_pids(pid), wait_event_type FROM \
                    pg_stat_activity WHERE application_name LIKE 'postrider%'; or a standby in \
                    synchronous_standby_names is not connected: see SELECT application_name, sync_state FROM \
                    pg_stat_replication; bring it back, or take it out and SELECT pg_reload_conf()";

/// Pause between two lines about the progress of a repair.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The state behind the log lines of a pipeline. Each [`Condition`] is set while it lasts.
#[derive(Debug, Default)]
pub(super) struct PipelineLog {
    /// Events published since the start.
    pub(super) published_total: u64,
    /// Changes skipped since the start, and the lines about them.
    pub(super) skipped: SkippedLog,
    /// Events parked since the start.
    pub(super) parked_total: u64,
    /// Events since the start whose time was replaced by one that the broker accepts.
    pub(super) clamped_total: u64,
    /// Reconnects to the database since the start.
    pub(super) reconnects_total: u64,
    /// Resets of the sink since the start.
    pub(super) resets_total: u64,
    /// The database is not available.
    pub(super) source: Option<Condition>,
    /// The sink, or the topic that the intake waits for, accepts no records.
    pub(super) sink: Option<Condition>,
    /// Topics that accept no records, and for which the intake does not wait.
    pub(super) destinations: BTreeMap<String, Option<Condition>>,
    /// The dead-letter topic accepts no records.
    pub(super) dead_letters: Option<Condition>,
    /// There is no slot, and the table is polled instead.
    pub(super) slot: Option<Condition>,
    /// The slot retains much WAL.
    pub(super) wal_retention: Option<Condition>,
    /// The stream waits for a standby.
    pub(super) standby: Option<Condition>,
    /// A write is not committed.
    pub(super) write: Option<Condition>,
    /// When that write was last checked.
    pub(super) write_at: Option<Instant>,
    /// Rows of parked events, or their table, are locked.
    pub(super) parked_rows: Option<Condition>,
    /// Rows to be claimed are locked.
    pub(super) claims: Option<Condition>,
    /// Published rows can't be marked.
    pub(super) marks: Option<Condition>,
    /// The cursor row can't be written.
    pub(super) row: Option<Condition>,
    /// Another process has the slot.
    pub(super) standing_by: Option<Condition>,
    /// Nothing is published before this moment: records of the previous owner may still arrive at the broker.
    pub(super) publishes_at: Option<Instant>,
    /// When the progress of a repair was last logged.
    pub(super) repair_at: Option<Instant>,
    /// Commit time of the transaction that waits while the intake is closed.
    pub(super) held_at: Option<Timestamp>,
    /// The pipeline is far behind.
    behind: Option<Condition>,
    /// No more events can be parked.
    full: Option<Condition>,
    /// Since when the lag is small.
    close_since: Option<Instant>,
    /// Lines about parked events.
    pub(super) parked: ParkedLog,
    /// Whether events are read, by stream or by polling.
    pub(super) streaming: bool,
    /// Whether the table is polled.
    pub(super) polling: bool,
    /// What finds expired events.
    pub(super) expiry: Expiry,
    /// A stop was requested.
    pub(super) draining: bool,
    /// `published_total` at the last update of the status.
    pub(super) reported_total: u64,
    /// When the status was last updated.
    pub(super) reported_at: Option<Instant>,
    /// The wall clock, as it was last read.
    pub(super) wall: Timestamp,
}

/// What finds expired events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Expiry {
    /// The relay.
    #[default]
    ByRelay,
    /// The claims: the relay does not look for expired events.
    ByClaims,
}

impl PipelineLog {
    /// Reads the wall clock, once for a whole batch.
    pub(super) fn read_clock(&mut self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
        self.wall = Timestamp { unix_micros };
    }

    /// From now until `at`, by the clock of this host; zero if `at` is past.
    pub(super) fn until(&self, at: Timestamp) -> Duration {
        let micros = at.unix_micros.saturating_sub(self.wall.unix_micros);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Whether the time of an event (`expires_at`) has passed, by the clock of this host. The claims of a layout with
    /// expiry compare it with the clock of the server.
    pub(super) fn has_passed(&self, at: Timestamp) -> bool {
        self.expiry == Expiry::ByRelay && at.unix_micros <= self.wall.unix_micros
    }

    /// Time since a commit, by the clock of this host; zero if the clock of the server is ahead.
    pub(super) fn since(&self, commit_time: Timestamp) -> Duration {
        let micros = self.wall.unix_micros.saturating_sub(commit_time.unix_micros);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

pub(super) fn streaming(pipeline: &mut Pipeline, resume: &crate::postgres::start::Resume) {
    let outage = pipeline.log.source.take();
    pipeline.log.standing_by = None;
    pipeline.log.publishes_at = None;
    pipeline.log.streaming = true;
    pipeline.log.polling = false;
    pipeline.log.claims = None;
    if pipeline.relay.deferred_statuses() == 0 {
        pipeline.log.parked_rows = None;
    }
    let name = pipeline.spec.name();
    for note in &resume.notes {
        warn!(event = "note", pipeline = name, note = note.name, "{}", note.message);
    }
    let seconds = outage.map(|condition| condition.seconds(Instant::now()));
    let after = seconds
        .map_or_else(String::new, |seconds| format!(" again, after {}", duration_text(seconds)));
    info!(
        event = "streaming",
        pipeline = name,
        slot = pipeline.spec.names.slot,
        from = %resume.start,
        seconds,
        "streaming{after}"
    );
    pipeline.report(None);
}

/// A stream of an embedded pipeline has begun.
pub(super) fn embedded_streaming(pipeline: &mut Pipeline, source: &str, from: Watermark) {
    let outage = pipeline.log.source.take();
    pipeline.log.streaming = true;
    let seconds = outage.map(|condition| condition.seconds(Instant::now()));
    let after = seconds
        .map_or_else(String::new, |seconds| format!(" again, after {}", duration_text(seconds)));
    let name = pipeline.spec.name();
    info!(event = "streaming", pipeline = name, source, %from, seconds, "streaming{after}");
    pipeline.report(None);
}

/// Logs that the pipeline is far behind, and that it has caught up.
pub(super) fn lag(pipeline: &mut Pipeline, state: status::PipelineState, lag: Duration) {
    let now = Instant::now();
    let lag_seconds = lag.as_secs();
    let close = &mut pipeline.log.close_since;
    let is_close =
        matches!(state, status::PipelineState::Streaming | status::PipelineState::Polling)
            && lag < CLOSE;
    *close = if is_close { close.or(Some(now)) } else { None };
    parking_full(pipeline, state, now);
    let behind = &mut pipeline.log.behind;
    let close = pipeline.log.close_since;
    let name = pipeline.spec.name();
    if state == status::PipelineState::CatchingUp {
        if let Some(DueReport { seconds, .. }) = Condition::note(behind, String::new(), None, now) {
            let (far, waits_for) = (duration_text(lag_seconds), pipeline.relay.waits_for());
            info!(
                event = "catching_up",
                pipeline = name,
                lag_seconds,
                seconds,
                waits_for,
                "catching up: {far} behind"
            );
        }
    } else if close.is_some_and(|since| now.duration_since(since) >= CLOSE_FOR) {
        // The two thresholds differ, and a small lag must last: between two transactions of a backlog the lag is zero
        // too.
        if let Some(condition) = behind.take() {
            let seconds = condition.seconds(now);
            let after = duration_text(seconds);
            info!(event = "caught_up", pipeline = name, seconds, "caught up after {after}");
        }
    }
}

/// Logs that no more rows can be parked, and that there is space again.
fn parking_full(pipeline: &mut Pipeline, state: status::PipelineState, now: Instant) {
    if state == status::PipelineState::ParkingFull {
        let (reason, hint) = (pipeline.full(), super::status::FULL_HINT);
        let condition = &mut pipeline.log.full;
        if let Some(due) = Condition::note(condition, reason.clone(), Some(hint.to_owned()), now) {
            let (pipeline, DueReport { seconds, tries }) = (pipeline.spec.name(), due);
            warn!(event = "parking_full", pipeline, seconds, tries, hint, "{reason}");
        }
    } else if let Some(condition) = pipeline.log.full.take() {
        let (pipeline, seconds) = (pipeline.spec.name(), condition.seconds(now));
        let after = duration_text(seconds);
        info!(
            event = "parking_room",
            pipeline,
            seconds,
            "free space in the parking table again, after {after}: reading continues"
        );
    }
}

/// The slot can't be used, and the table can be polled. In mode `auto` the pipeline creates the slot again
/// automatically, and `postrider repair`, which the halt of another mode asks for, refuses such a pipeline.
pub(super) fn falling_back(pipeline: &mut Pipeline, halt: &Halt) {
    pipeline.log.streaming = false;
    // The halt's own hint for these reasons is `postrider repair`, which refuses a pipeline of mode = "auto".
    let recreated = matches!(
        halt.reason,
        HaltReason::SlotLost | HaltReason::SlotMissing | HaltReason::WalBudget
    );
    let hint = if recreated {
        "nothing to do: mode = \"auto\" creates the slot again and returns to streaming"
    } else if halt.reason == HaltReason::SlotUnusable {
        "set source.slot to a name that no slot has, and restart the process: mode = \"auto\" creates that slot and \
         returns to streaming"
    } else {
        &halt.hint
    };
    warn!(
        event = "falling_back",
        pipeline = pipeline.spec.name(),
        code = halt.reason.code(),
        reason = halt.reason.name(),
        hint,
        "polling the table until the slot can be used: {}",
        halt.message
    );
}

/// The slot exists again: what is committed from now on comes from the stream.
pub(super) fn slot_stands(pipeline: &Pipeline) {
    let (name, slot) = (pipeline.spec.name(), &pipeline.spec.names.slot);
    let words = "the slot exists: polling the rows from before it, then streaming";
    info!(event = "slot_stands", pipeline = name, slot, "{words}");
}

/// The slot can't be created yet.
pub(super) fn slot_not_yet(pipeline: &mut Pipeline, reason: &str) {
    let (condition, now) = (&mut pipeline.log.slot, Instant::now());
    if let Some(due) = Condition::note(condition, reason.to_owned(), None, now) {
        let DueReport { seconds, tries } = due;
        let words = if tries == 1 {
            format!("no slot yet, polling continues: {reason}")
        } else {
            format!("still no slot, {}, last: {reason}", due.text())
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "slot_not_yet", pipeline, seconds, tries, reason, "{words}");
    }
}

pub(super) fn polling(pipeline: &mut Pipeline) {
    let outage = pipeline.log.source.take();
    pipeline.log.standing_by = None;
    pipeline.log.publishes_at = None;
    pipeline.log.streaming = true;
    let polled = std::mem::replace(&mut pipeline.log.polling, true);
    if !polled || outage.is_some() {
        let seconds = outage.map(|condition| condition.seconds(Instant::now()));
        let after = seconds.filter(|_| polled).map_or_else(String::new, |seconds| {
            format!(" again, after {}", duration_text(seconds))
        });
        let table = pipeline.spec.names.table.as_ref().map(ToString::to_string);
        let name = pipeline.spec.name();
        info!(
            event = "polling",
            pipeline = name,
            table,
            seconds,
            "polling the outbox table{after}"
        );
    }
    pipeline.report(None);
}

pub(super) fn row_taken(pipeline: &Pipeline, written: &CursorWrite) {
    let reason = match written {
        CursorWrite::Stored => return,
        CursorWrite::Behind(_) => "it is further on",
        CursorWrite::Rebound(_) => "it belongs to another slot or cluster now",
        CursorWrite::TakenOver => "it has another owner now",
        CursorWrite::Missing => "it was deleted",
    };
    let pipeline = pipeline.spec.name();
    warn!(event = "cursor_taken", pipeline, reason, "another process changed the cursor row");
}

pub(super) fn draining(pipeline: &mut Pipeline) {
    pipeline.log.draining = true;
    let (in_flight, _) = pipeline.relay.in_flight();
    let name = pipeline.spec.name();
    info!(event = "draining", pipeline = name, in_flight, "stopping: finishing what is in flight");
    pipeline.report(None);
}

pub(super) fn shutdown_incomplete(pipeline: &Pipeline) {
    let (in_flight, _) = pipeline.relay.in_flight();
    warn!(
        event = "shutdown_incomplete",
        pipeline = pipeline.spec.name(),
        in_flight,
        "stopped before everything was acknowledged: the rest is published again at the next start"
    );
}

pub(super) fn shutdown_error(pipeline: &Pipeline, error: &(dyn Error + 'static)) {
    warn!(
        event = "shutdown_error",
        pipeline = pipeline.spec.name(),
        reason = %Chain(error),
        "the stream was not closed in order: the cursor row still bounds what is repeated"
    );
}

/// Logs the end of a pipeline, and sets its status.
pub(super) fn ended(name: &str, status_handle: &StatusHandle, exit: &PipelineExit) {
    status_handle.update(|snapshot| match exit {
        PipelineExit::Stopped => snapshot.state = status::PipelineState::Stopped,
        PipelineExit::Halted(halt) => {
            snapshot.state = status::PipelineState::Halted;
            // The last known values may be the reason of the halt. The slot is queried again while the pipeline is
            // halted.
            snapshot.slot_state = None;
            snapshot.slot_safe_bytes = None;
            snapshot.slot_retained_bytes = None;
            snapshot.confirmed_flush_lsn = None;
            if let status::Lag::None = snapshot.lag {
                snapshot.lag = status::Lag::Growing { was: Duration::ZERO, at: Instant::now() };
            }
            // Without the code, which has a field of its own.
            snapshot.reason = Some(halt.message.clone());
            snapshot.halt_code = Some(halt.reason.code());
            snapshot.hint = Some(halt.hint.clone());
        }
        PipelineExit::Bug => snapshot.state = status::PipelineState::Halted,
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

pub(super) fn source_down(pipeline: &mut Pipeline, error: &SourceError) {
    source_lost(pipeline, &Chain(error).to_string(), error_policy::hint(error).as_deref());
}

/// The database, or the source or store of an embedded pipeline, is not available.
pub(super) fn source_lost(pipeline: &mut Pipeline, reason: &str, hint: Option<&str>) {
    let source = if pipeline.spec.mode == Mode::Embedded { "source" } else { "database" };
    pipeline.log.reconnects_total += 1;
    pipeline.log.streaming = false;
    let condition = &mut pipeline.log.source;
    let due =
        Condition::note(condition, reason.to_owned(), hint.map(str::to_owned), Instant::now());
    if let Some(due) = due {
        let DueReport { seconds, tries } = due;
        let words = if tries == 1 {
            format!("connecting to the {source} again: {reason}")
        } else {
            format!("still waiting for {source}, {}, last: {reason}", due.text())
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "source_down", pipeline, seconds, tries, reason, hint, "{words}");
    }
    pipeline.report(None);
}

/// Positions belong to a new history from here on.
pub(super) fn history_begins(
    spec: &PipelineSpec,
    history: HistoryId,
    before: HistoryId,
    from: Offset,
) {
    info!(
        event = "history_begins",
        pipeline = spec.name(),
        %history,
        %before,
        %from,
        "positions of events committed at {from} or later begin with {history} (history before: {before})"
    );
}

pub(super) fn waiting(pipeline: &mut Pipeline, message: &str) {
    pipeline.log.streaming = false;
    let now = Instant::now();
    if let Some(due) = Condition::note(&mut pipeline.log.source, message.to_owned(), None, now) {
        let DueReport { seconds, tries } = due;
        let words = if tries == 1 {
            format!("not streaming yet: {message}")
        } else {
            format!("still not streaming, {}, last: {message}", due.text())
        };
        let (pipeline, reason) = (pipeline.spec.name(), message);
        info!(event = "source_not_ready", pipeline, seconds, tries, reason, "{words}");
    }
    pipeline.report(None);
}

pub(super) fn standing_by(pipeline: &mut Pipeline, active_pid: Option<u32>) {
    pipeline.log.streaming = false;
    let (condition, now) = (&mut pipeline.log.standing_by, Instant::now());
    if let Some(DueReport { seconds, tries }) = Condition::note(condition, String::new(), None, now)
    {
        let slot = &pipeline.spec.names.slot;
        let words = if tries == 1 {
            "another process publishes for this pipeline: standing by to take over when it has ended"
                .to_owned()
        } else {
            format!("still standing by, {}", duration_text(seconds))
        };
        let pipeline = pipeline.spec.name();
        info!(event = "standing_by", pipeline, slot, active_pid, seconds, tries, "{words}");
    }
    pipeline.report(None);
}

pub(super) fn waits_for_former_owner(pipeline: &mut Pipeline, until: tokio::time::Instant) {
    pipeline.log.standing_by = None;
    pipeline.log.publishes_at = Some(until.into_std());
    let wait = until.saturating_duration_since(tokio::time::Instant::now());
    let (name, seconds) = (pipeline.spec.name(), (wait + Duration::from_millis(500)).as_secs());
    info!(
        event = "waits_for_former_owner",
        pipeline = name,
        seconds,
        "the process that ran this pipeline before has not noted that all of its records are answered, and some may \
         still reach the broker (it was killed, lost its database, stopped behind a broker that did not answer, or was \
         of an older version; or the database failed over): publishing begins in {seconds} s"
    );
    pipeline.report(None);
}

pub(super) fn look_failed(pipeline: &Pipeline, error: &SourceError) {
    let (pipeline, reason) = (pipeline.spec.name(), Chain(error));
    warn!(event = "look_failed", pipeline, %reason, "a query of the database's state failed and is repeated: {reason}");
}

/// The publication was changed while it was streamed, and no row is known that the change left out. `undone`: it was
/// changed back, or created again.
pub(super) fn publication_changed(pipeline: &str, publication: &str, undone: bool) {
    if undone {
        warn!(
            event = "publication_changed",
            pipeline,
            publication,
            "the publication was changed and changed back, or created again, while it was streamed; the table has no \
             row that was committed in this time, so nothing is known to be left out"
        );
    } else {
        warn!(
            event = "publication_changed",
            pipeline,
            publication,
            "the publication was changed while it was streamed; one ALTER PUBLICATION explains the difference, and \
             inserts of the table were published before and after it"
        );
    }
}

/// A partition of the outbox table was attached with rows in it, or detached.
pub(super) fn partition_changed(pipeline: &str, change: &LeafChange) {
    let partition = change.name.to_string();
    if change.detached {
        info!(
            event = "partition_detached",
            pipeline,
            partition,
            "the partition was detached: rows inserted into it from now on are no events; those that were committed \
             before are still streamed"
        );
    } else if change.bytes > 0 {
        warn!(
            event = "partition_attached",
            pipeline,
            partition,
            bytes = change.bytes,
            hint = "those that are not published: delete and insert them again through the partitioned table, in one \
                    transaction",
            "a table with rows was attached as a partition: rows inserted before that are in no stream"
        );
    }
}

/// The slot retains more than half of `source.wal_retain_max`.
pub(super) fn wal_budget_half(pipeline: &mut Pipeline, retained: u64, max: u64) {
    let reason =
        format!("the slot retains {} MiB of WAL, of at most {} MiB", retained >> 20, max >> 20);
    let then = if pipeline.spec.polls_instead_of_slot() {
        "above it the slot is dropped and the table is polled"
    } else {
        "above it the pipeline halts"
    };
    let hint = format!("see what delays the pipeline (postrider status); {then}");
    let (condition, now) = (&mut pipeline.log.wal_retention, Instant::now());
    if let Some(due) = Condition::note(condition, reason.clone(), Some(hint.clone()), now) {
        let DueReport { seconds, tries } = due;
        warn!(
            event = "wal_budget_half",
            pipeline = pipeline.spec.name(),
            retained_bytes = retained,
            max_bytes = max,
            seconds,
            tries,
            hint,
            "{reason}"
        );
    }
}

/// The slot retains less than half of `source.wal_retain_max` again.
pub(super) fn wal_budget_ok(pipeline: &mut Pipeline, retained: u64) {
    let Some(condition) = pipeline.log.wal_retention.take() else { return };
    let (pipeline, seconds) = (pipeline.spec.name(), condition.seconds(Instant::now()));
    info!(
        event = "wal_budget_ok",
        pipeline,
        retained_bytes = retained,
        seconds,
        "the slot retains less than half of source.wal_retain_max again"
    );
}

/// The slot is dropped; the next checkpoint of the server removes its WAL.
pub(super) fn slot_dropped(pipeline: &mut Pipeline) {
    (pipeline.log.slot, pipeline.log.wal_retention) = (None, None);
    slot_held(pipeline, None);
    let (name, slot) = (pipeline.spec.name(), &pipeline.spec.names.slot);
    let words = "the slot is dropped: PostgreSQL may remove its WAL; a new one is created once all rows are polled";
    warn!(event = "slot_dropped", pipeline = name, slot, "{words}");
}

/// Updates the status with a slot that is not streamed from.
pub(super) fn slot_held(pipeline: &Pipeline, retained: Option<u64>) {
    pipeline.status_handle.update(|snapshot| {
        snapshot.slot_retained_bytes = retained;
        if retained.is_none() {
            snapshot.slot_state = None;
            snapshot.slot_safe_bytes = None;
        }
    });
}

impl Pipeline {
    /// Logs that the stream waits for a standby. Each commit waits for the standby for a moment; if nothing was
    /// received between two queries of the slot, it is a state.
    pub(super) fn report_standby_wait(&mut self, waits: bool) {
        let received = self.relay.received();
        let before = self.stalled_at.replace(received).filter(|_| waits);
        if !waits {
            self.stalled_at = None;
            if let Some(condition) = self.log.standby.take() {
                let (pipeline, seconds) = (self.spec.name(), condition.seconds(Instant::now()));
                info!(
                    event = "standby_back",
                    pipeline, seconds, "the stream no longer waits for a standby"
                );
            }
            return;
        }
        if before != Some(received) {
            return;
        }
        let reason =
            "the stream waits for a standby in synchronized_standby_slots: nothing is published";
        let hint =
            "start the standby, or remove it from that list: postrider check prints the statements";
        let condition = &mut self.log.standby;
        let due =
            Condition::note(condition, reason.to_owned(), Some(hint.to_owned()), Instant::now());
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = self.spec.name();
            warn!(event = "standby_awaited", pipeline, seconds, tries, hint, "{reason}");
        }
    }
}

/// Events wait for a topic, or, with `None`, for the brokers.
pub(super) fn sink_down(
    pipeline: &mut Pipeline,
    topic: Option<&str>,
    reason: &str,
    hint: Option<&str>,
) {
    // The broker may be down before the first claim.
    let kept = kept(pipeline.spec.mode, pipeline.log.polling);
    let (condition, now) = (&mut pipeline.log.sink, Instant::now());
    let due = Condition::note(condition, reason.to_owned(), hint.map(str::to_owned), now);
    if let Some(due) = due {
        let DueReport { seconds, tries } = due;
        let words = match topic {
            Some(topic) if tries == 1 => {
                format!("waiting for topic \"{topic}\", nothing is lost, {kept}: {reason}")
            }
            Some(topic) => {
                format!("still waiting for topic \"{topic}\", {}, last: {reason}", due.text())
            }
            None if tries == 1 => {
                format!("broker not available, nothing is lost, {kept}: {reason}")
            }
            None => format!("still waiting for broker, {}, last: {reason}", due.text()),
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "broker_down", pipeline, topic, seconds, tries, reason, hint, "{words}");
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

pub(super) fn sink_up(pipeline: &mut Pipeline, topic: Option<&str>) {
    if let Some(condition) = pipeline.log.sink.take() {
        let seconds = condition.seconds(Instant::now());
        let (pipeline, after) = (pipeline.spec.name(), duration_text(seconds));
        let words = match topic {
            Some(topic) => format!("topic \"{topic}\" accepts records after {after}"),
            None => format!("broker available again after {after}"),
        };
        info!(event = "broker_up", pipeline, topic, seconds, "{words}");
    }
}

pub(super) fn sink_broken(pipeline: &Pipeline, reason: &str) {
    let pipeline = pipeline.spec.name();
    warn!(event = "producer_broken", pipeline, reason, "the producer's state can't be trusted");
}

pub(super) fn resetting(pipeline: &mut Pipeline, why: &str) {
    pipeline.log.resets_total += 1;
    let cursor = pipeline.relay.progress().watermark;
    warn!(
        event = "producer_reset",
        pipeline = pipeline.spec.name(),
        reason = why,
        from = %cursor,
        "resetting the Kafka producer; unacknowledged events are sent again"
    );
}

/// A topic accepts no records, and no event of another topic waits for it.
pub(super) fn destination_down(
    pipeline: &mut Pipeline,
    (topic, reason): (&str, &str),
    hint: Option<&str>,
) {
    let condition = &mut pipeline.log.destinations;
    if condition.len() >= REPORTED_MAX && !condition.contains_key(topic) {
        return;
    }
    let condition = condition.entry(topic.to_owned()).or_default();
    let hint_kept = hint.map(str::to_owned);
    if let Some(due) = Condition::note(condition, reason.to_owned(), hint_kept, Instant::now()) {
        let DueReport { seconds, tries } = due;
        let pipeline = pipeline.spec.name();
        warn!(
            event = "topic_down",
            pipeline, seconds, tries, reason, hint, "events of the topic are parked: {reason}"
        );
    }
}

/// Events of a topic are parked from here on.
pub(super) fn destination_given_up(pipeline: &str, topic: &str, park_after: Option<Duration>) {
    let park_after = park_after.unwrap_or_default();
    warn!(
        event = "topic_given_up",
        pipeline,
        topic,
        ?park_after,
        hint = "fix the topic; its parked events are then retried automatically",
        "the topic has accepted no records for parking.park_after: its events are parked, other topics continue"
    );
}

/// The dead-letter topic did not accept a record.
pub(super) fn undelivered(pipeline: &mut Pipeline, position: Position, reason: Refusal) {
    let condition = &mut pipeline.log.dead_letters;
    if Condition::note(condition, reason.code().to_owned(), None, Instant::now()).is_some() {
        warn!(
            event = "dead_not_sent",
            pipeline = pipeline.spec.name(),
            %position,
            topic = pipeline.spec.dead_topic,
            %reason,
            hint = "check that parking.dead_topic exists and accepts records as large as the other topics",
            "dead event not sent to the dead-letter topic: it stays parked, and sending is retried"
        );
    }
}

/// A parked event was published.
pub(super) fn released(pipeline: &Pipeline, position: Position) {
    let pipeline = pipeline.spec.name();
    debug!(event = "parked_published", pipeline, %position, "parked event published");
}

/// Another session has locked rows of the parked table: the new states of their events are written later.
pub(super) fn parked_rows_locked(pipeline: &mut Pipeline, rows: usize, holders: &[Holder]) {
    let holder = lock_holders::holder_names(holders);
    let known = pipeline.log.parked_rows.as_ref().filter(|_| holders.is_empty());
    // Lock holders are queried now and then; in between the last known ones are shown.
    let reason = known.map_or_else(
        || {
            format!(
                "rows of \"postrider\".\"parked\" are locked by {holder}: what became of these parked events is \
                 written later"
            )
        },
        |condition| condition.reason.clone(),
    );
    let hint = "end that session's transaction (commit or roll back); until then only the aggregates of these parked \
                events wait, and a restart may publish events again that are published already";
    let now = Instant::now();
    let due =
        Condition::note(&mut pipeline.log.parked_rows, reason.clone(), Some(hint.to_owned()), now);
    if let Some(DueReport { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        warn!(
            event = "parked_rows_wait",
            pipeline, rows, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// No row of the parked table can be written: the table or the cursor row is locked, or the statement timed out.
pub(super) fn parked_rows_wait(pipeline: &mut Pipeline, error: &SourceError, holders: &[Holder]) {
    let holder = lock_holders::holder_names(holders);
    let by = if holders.is_empty() { String::new() } else { format!(" (locked by {holder})") };
    let reason = format!(
        "{}{by}: events that have to be parked wait, and nothing behind them is confirmed; all others are published",
        Chain(error)
    );
    let hint = "end the transaction of the session that has locked table \"postrider\".\"parked\", or the pipeline's \
                row in \"postrider\".\"cursor\"";
    let now = Instant::now();
    let due =
        Condition::note(&mut pipeline.log.parked_rows, reason.clone(), Some(hint.to_owned()), now);
    if let Some(DueReport { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        warn!(
            event = "parked_rows_wait",
            pipeline, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// All rows of the parked table are written.
pub(super) fn parked_rows_written(pipeline: &mut Pipeline) {
    if let Some(condition) = pipeline.log.parked_rows.take() {
        let seconds = condition.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(
            event = "parked_rows_written",
            pipeline, seconds, "all changes to rows of parked events are written"
        );
    }
}

/// A write is not committed after this time.
pub(super) fn write_waits(pipeline: &mut Pipeline, reported_after: Duration) {
    let now = Instant::now();
    pipeline.log.write_at = Some(now);
    let longer = reported_after.as_secs();
    let reason = format!("PostgreSQL has not committed a write for more than {longer} s");
    let due = Condition::note(&mut pipeline.log.write, reason, Some(WRITE_HINT.into()), now);
    if let Some(DueReport { seconds, tries }) = due {
        warn!(
            event = "write_waits",
            pipeline = pipeline.spec.name(),
            seconds,
            tries,
            hint = WRITE_HINT,
            "PostgreSQL has not committed a write for more than {} s: parked events wait, nothing is lost",
            longer + seconds
        );
    }
}

/// The write is committed.
pub(super) fn write_done(pipeline: &mut Pipeline) {
    pipeline.log.write_at = None;
    if let Some(condition) = pipeline.log.write.take() {
        let seconds = condition.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "write_done", pipeline, seconds, "PostgreSQL commits writes again");
    }
}

/// Published rows can't be marked because another session has locked them.
pub(super) fn marks_wait(pipeline: &mut Pipeline, waiting: &WaitingRows, given_up: usize) {
    let WaitingRows { table, rows, holders } = waiting;
    let holder = lock_holders::holder_names(holders);
    let known = pipeline.log.marks.as_ref().filter(|_| holders.is_empty());
    // Lock holders are queried now and then; in between the last known ones are shown.
    let reason = known.map_or_else(
        || {
            let why = if holders.is_empty() {
                "are locked, or not visible to other sessions yet (a commit that waits for a synchronous standby)"
                    .to_owned()
            } else {
                format!("are locked by {holder}")
            };
            format!("published rows of {table} {why}: their marks and the cursor row wait")
        },
        |condition| condition.reason.clone(),
    );
    let hint = "end that session's transaction (commit or roll back); until then all events are published, and only \
                the marks of these aggregates and the confirmation wait";
    let now = Instant::now();
    let due = Condition::note(&mut pipeline.log.marks, reason.clone(), Some(hint.to_owned()), now);
    if let Some(DueReport { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        let table = table.to_string();
        warn!(
            event = "marks_wait",
            pipeline, table, rows, holder, given_up, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// The table refuses marks, or could not be queried. Publishing continues.
pub(super) fn marks_failed(
    pipeline: &mut Pipeline,
    waiting: &WaitingRows,
    error: &SourceError,
    given_up: usize,
) {
    let WaitingRows { table, rows, .. } = waiting;
    let error_text = Chain(error).to_string();
    let reason = format!("published rows of {table} are not marked: {error_text}");
    let halt =
        error_policy::explain(crate::error::HaltReason::TableUnfit, error, &pipeline.spec.names);
    let hint = halt.hint;
    let now = Instant::now();
    let due = Condition::note(&mut pipeline.log.marks, reason.clone(), Some(hint.clone()), now);
    if let Some(DueReport { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        let table = table.to_string();
        warn!(
            event = "marks_failed",
            pipeline,
            table,
            rows,
            given_up,
            seconds,
            tries,
            reason,
            hint,
            "published rows can't be marked; publishing continues"
        );
    }
}

/// Polling begins, and publishes rows that the stream has passed, because they have no mark.
pub(super) fn unmarked_rows(pipeline: &Pipeline, rows: u64, or_more: bool) {
    let more = if or_more { " or more" } else { "" };
    let hint = "docs/polling.md (from the stream to polling) has the statement that shows these rows, and what to do";
    warn!(
        event = "unmarked_rows",
        pipeline = pipeline.spec.name(),
        rows,
        or_more,
        hint,
        "{rows}{more} rows without a mark are of transactions that the stream has passed: polling publishes them, \
         though they may be published already, and maybe behind newer events of their aggregates"
    );
}

/// Published rows stay without their mark: this process ends, and mode "wal" does not wait for marks.
pub(super) fn marks_left(pipeline: &Pipeline, rows: usize) {
    let hint = "docs/polling.md (from the stream to polling) has the statement that shows these rows, and what to do";
    warn!(
        event = "marks_left",
        pipeline = pipeline.spec.name(),
        rows,
        hint,
        "{rows} published rows stay without their mark: they were locked, or the table refused it"
    );
}

/// Rows that are to be published are locked by another session: claims skip them.
pub(super) fn claims_wait(pipeline: &mut Pipeline, table: &TableName, holders: &[Holder]) {
    let holder = lock_holders::holder_names(holders);
    let reason = format!(
        "rows of {table} are locked by {holder}: they, and the later events of their aggregates, wait"
    );
    let hint =
        "end that session's transaction (commit or roll back); all other events are published";
    let now = Instant::now();
    let due = Condition::note(&mut pipeline.log.claims, reason.clone(), Some(hint.to_owned()), now);
    if let Some(DueReport { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        let table = table.to_string();
        warn!(
            event = "claims_wait",
            pipeline, table, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// No row that is to be published is locked.
pub(super) fn claims_go_on(pipeline: &mut Pipeline) {
    if let Some(condition) = pipeline.log.claims.take() {
        let seconds = condition.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(
            event = "claims_go_on",
            pipeline, seconds, "no row to be published is locked any more"
        );
    }
}

/// All published rows are marked.
pub(super) fn marks_made(pipeline: &mut Pipeline) {
    if let Some(condition) = pipeline.log.marks.take() {
        let seconds = condition.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "marks_made", pipeline, seconds, "all published rows are marked again");
    }
}

/// The cursor row could not be written: another session holds it, or the statement timed out.
pub(super) fn row_waits(pipeline: &mut Pipeline, error: &SourceError) {
    let reason = format!("{}: events are published, and none is confirmed", Chain(error));
    let hint = "see who holds the row: SELECT pid, pg_blocking_pids(pid), application_name FROM pg_stat_activity WHERE \
                wait_event_type = 'Lock'";
    let now = Instant::now();
    let due = Condition::note(&mut pipeline.log.row, reason.clone(), Some(hint.to_owned()), now);
    if let Some(DueReport { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        warn!(event = "cursor_waits", pipeline, seconds, tries, reason, hint, "{reason}");
    }
}

/// The cursor row is written.
pub(super) fn row_goes_on(pipeline: &mut Pipeline) {
    if let Some(condition) = pipeline.log.row.take() {
        let seconds = condition.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "cursor_written", pipeline, seconds, "the cursor row is written again");
    }
}

/// A repair begins because of `source.on_slot_lost = "repair"`.
pub(super) fn repair_next(pipeline: &mut Pipeline, halt: &Halt) {
    pipeline.log.streaming = false;
    warn!(
        event = "slot_lost",
        pipeline = pipeline.spec.name(),
        code = halt.reason.code(),
        reason = halt.reason.name(),
        "repairing from the table, as source.on_slot_lost asks: {}",
        halt.message
    );
}

pub(super) fn repair_begins(spec: &PipelineSpec, why: &str) {
    let slot = &spec.names.slot;
    warn!(
        event = "repair_begins",
        pipeline = spec.name(),
        slot,
        reason = why,
        "recreating the slot: {why}"
    );
}

pub(super) fn repair_step(spec: &PipelineSpec, step: &RepairProgress<'_>) {
    let pipeline = spec.name();
    match step {
        RepairProgress::Waiting(blockers) => {
            let xids: Vec<&str> = blockers.iter().map(|blocker| blocker.xid.as_str()).collect();
            let pids: Vec<u32> = blockers.iter().filter_map(|blocker| blocker.pid).collect();
            info!(
                event = "slot_waits",
                pipeline,
                xids = xids.join(","),
                ?pids,
                "creating the slot waits for transactions that were already running"
            );
        }
        RepairProgress::Listing(at) => {
            info!(event = "slot_made", pipeline, %at, "the new slot exists; listing the rows that it will not stream");
        }
    }
}

/// The list of a repair is complete. `without_id`: rows that the list can't hold.
pub(super) fn repairing(spec: &PipelineSpec, row: &RepairRow, without_id: u64) {
    let left = row.rows_total.saturating_sub(row.rows_published + row.rows_gone);
    info!(
        event = "repairing",
        pipeline = spec.name(),
        kind = row.kind.word(),
        rows = row.rows_total,
        left,
        uncertain = row.rows_uncertain,
        method = row.method,
        "publishing {left} rows from the table before streaming"
    );
    if without_id > 0 {
        let table = spec.names.table.as_ref().map_or_else(String::new, ToString::to_string);
        warn!(
            event = "repair_rows_without_id",
            pipeline = spec.name(),
            rows = without_id,
            hint = "delete them and insert them again with an id, in one transaction: the stream publishes \
                    the new rows",
            "{without_id} rows of table {table} have no id and are not published: rows are listed by their ids"
        );
    }
}

/// Rows of the list are published.
pub(super) fn repair_progress(pipeline: &mut Pipeline) {
    let now = Instant::now();
    let condition = &mut pipeline.log.repair_at;
    if condition.is_some_and(|at| now.duration_since(at) < PROGRESS_INTERVAL) {
        return;
    }
    let first = condition.replace(now).is_none();
    if !first {
        let published = pipeline.log.published_total;
        info!(
            event = "repair_progress",
            pipeline = pipeline.spec.name(),
            published,
            "publishing from the table"
        );
    }
}

pub(super) fn repaired(pipeline: &Pipeline, row: &RepairRow) {
    let at = row.slot_created_lsn.map(|at| at.to_string());
    info!(
        event = "repaired",
        pipeline = pipeline.spec.name(),
        kind = row.kind.word(),
        rows = row.rows_published,
        uncertain = row.rows_uncertain,
        gone = row.rows_gone,
        ids_missing = row.ids_missing,
        at,
        "{} rows of the list are published; streaming starts from the new slot",
        row.rows_published
    );
    if row.rows_gone > 0 {
        warn!(
            event = "repair_rows_gone",
            pipeline = pipeline.spec.name(),
            gone = row.rows_gone,
            "{} rows were deleted after they were listed and before they were published: these events are lost",
            row.rows_gone
        );
    }
}

/// The new slot was lost too.
pub(super) fn slot_gone_again(pipeline: &Pipeline) {
    warn!(
        event = "slot_gone_again",
        pipeline = pipeline.spec.name(),
        "the new slot was lost before all rows were published: creating another one"
    );
}

/// From here on the position belongs to these settings. `first`: nothing was recorded before.
pub(super) fn position_belongs(spec: &PipelineSpec, belongs: &PositionSettings, first: bool) {
    let PositionSettings { mode, sink, cluster, topic, table, layout, .. } = belongs;
    info!(
        event = "position_belongs",
        pipeline = spec.name(),
        mode,
        sink,
        cluster,
        topic,
        table,
        layout,
        first,
        "the position belongs to these settings from here on; others are compared with them at each start"
    );
}

/// A setting differs, and the pipeline continues.
pub(super) fn setting_changed(spec: &PipelineSpec, note: &ChangeNote) {
    let ChangeNote { message, why, sql } = note;
    warn!(
        event = "setting_changed",
        pipeline = spec.name(),
        reason = message,
        hint = sql,
        "{message}: {why}"
    );
}

/// A cluster answers that was not known when this session began.
pub(super) fn located(pipeline: &Pipeline) {
    info!(
        event = "cluster_found",
        pipeline = pipeline.spec.name(),
        cluster = pipeline.sink.cluster(),
        "a Kafka cluster answers: comparing it with the one that the position belongs to"
    );
}

/// The slot of a polling pipeline retains WAL, or is dropped.
pub(super) fn slot_left_behind(pipeline: &mut Pipeline, left: Option<&LeftBehind>) {
    let Some(left) = left else {
        if pipeline.log.wal_retention.take().is_some() {
            slot_held(pipeline, None);
        }
        return;
    };
    slot_held(pipeline, Some(left.retained));
    let (reason, hint) = (left.message(), format!("{} {}", left.line(), LeftBehind::WHY));
    let condition = &mut pipeline.log.wal_retention;
    let due = Condition::note(condition, reason.clone(), Some(hint.clone()), Instant::now());
    if let Some(DueReport { seconds, tries }) = due {
        warn!(
            event = "slot_left_behind",
            pipeline = pipeline.spec.name(),
            slot = left.slot,
            retained_bytes = left.retained,
            seconds,
            tries,
            hint,
            "{reason}"
        );
    }
}

/// A bookmark's slot was dropped automatically.
pub(super) fn bookmark_let_go(pipeline: &str, swept: &DroppedBookmark, retain_max: u64) {
    let (bookmark, held_bytes) = (&swept.name, swept.held_bytes);
    match swept.reason {
        DropReason::Expired => {
            info!(
                event = "bookmark_expired",
                pipeline, bookmark, "the bookmark has expired: its slot is dropped"
            );
        }
        DropReason::Budget => warn!(
            event = "bookmark_dropped",
            pipeline,
            bookmark,
            held_bytes,
            retain_max,
            hint = "raise bookmarks.retain_max where the disk allows it; what is still in the outbox table can be \
                    replayed by --since",
            "the oldest bookmark is dropped: bookmarks retained more WAL than bookmarks.retain_max"
        ),
    }
}
