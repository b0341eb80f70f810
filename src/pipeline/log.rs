//! The log lines of a pipeline, one for each change of its state, and the status that `status` and `/metrics` read.
//!
//! An ordinary event has no line. A state that lasts is logged again at growing intervals (`trouble`), with how long
//! and how often. Each line has an `event`, a stable name for machines; `docs/operations.md` lists them with their
//! fields. Holds the wall clock: for latencies and lag, and to decide that an event has expired ([`Tell::has_passed`]).

use super::lifecycle::Pipeline;
use super::row_status::Waiting;
use super::service::Exit;
use super::settings_change::{ChangeNote, LeftBehind};
use super::spec::{Mode, PipelineSpec};
use super::trouble::{Due, Few, Trouble, span};
use crate::error::{Chain, Halt, HaltReason};
use crate::event::{HistoryId, PgTime, Position, shown_id};
use crate::lsn::Lsn;
use crate::parked::{Became, Mark, Parked, State};
use crate::postgres::catalog::LeafChange;
use crate::postgres::locks::{self, Holder};
use crate::postgres::repair::{Row, Told};
use crate::postgres::store::bookmark::{Reason, Swept};
use crate::postgres::store::cursor::{Belongs, Written};
use crate::postgres::{SourceError, TableName, error_policy};
use crate::record::Refusal;
use crate::status::{self, Skipped, StatusHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{debug, error, info, warn};

/// How often the status is brought up to date.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// The same, while events are published.
pub(super) const REPORT_SOON: Duration = Duration::from_millis(20);

/// A lag below this ends a backlog.
const CLOSE: Duration = Duration::from_secs(1);

/// For so long, before it is said.
const CLOSE_FOR: Duration = Duration::from_secs(1);

/// What a pipeline remembers in order to speak.
#[derive(Debug, Default)]
pub(super) struct Tell {
    pub(super) published_total: u64,
    pub(super) skipped: Skipped,
    pub(super) skipped_log: SkippedLog,
    pub(super) parked_total: u64,
    pub(super) clamped_total: u64,
    pub(super) reconnects_total: u64,
    pub(super) resets_total: u64,
    pub(super) source: Option<Trouble>,
    pub(super) sink: Option<Trouble>,
    /// With destinations that hold up nobody.
    pub(super) destinations: BTreeMap<String, Option<Trouble>>,
    /// With the dead-letter topic.
    pub(super) letters: Option<Trouble>,
    /// Why there is no slot, while polling in its stead.
    pub(super) slot: Option<Trouble>,
    /// With how much WAL the slot holds back.
    pub(super) budget: Option<Trouble>,
    /// With a standby that the stream waits for.
    pub(super) standby: Option<Trouble>,
    /// With a write that is not committed, and when it was last looked at.
    pub(super) write: Option<Trouble>,
    pub(super) write_at: Option<Instant>,
    /// With changes to rows of parked events: the rows, or their table, are locked.
    pub(super) parked_rows: Option<Trouble>,
    /// With rows that claims can't have: they are locked.
    pub(super) claims: Option<Trouble>,
    /// With marks on published rows.
    pub(super) marks: Option<Trouble>,
    /// With a cursor row that can't be written yet.
    pub(super) row: Option<Trouble>,
    pub(super) standing_by: Option<Trouble>,
    /// Records of the owner before may still arrive at the broker: nothing is published before this moment.
    pub(super) publishes_at: Option<Instant>,
    /// When a repair last told how far it is.
    pub(super) repair_at: Option<Instant>,
    /// Commit time of the transaction that waits to be handed over while the intake is shut.
    pub(super) held_at: Option<PgTime>,
    behind: Option<Trouble>,
    full: Option<Trouble>,
    close_since: Option<Instant>,
    parked: Few,
    overtaken: Few,
    dead: Few,
    /// Retries that were requested, and have no answer yet.
    requested: BTreeSet<Position>,
    expired: Few,
    pub(super) streaming: bool,
    pub(super) polling: bool,
    pub(super) expiry: Expiry,
    pub(super) draining: bool,
    /// `published_total` at the last report.
    pub(super) reported_total: u64,
    pub(super) reported_at: Option<Instant>,
    pub(super) wall: PgTime,
}

/// Whose it is to find events that have expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Expiry {
    /// The relay's.
    #[default]
    Judged,
    /// Not the relay's: the claims find them.
    Left,
}

impl Tell {
    /// Reads the wall clock, once for a whole batch.
    pub(super) fn look_at_the_clock(&mut self) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
        self.wall = PgTime { micros: micros - PgTime::UNIX_OFFSET_MICROS };
    }

    /// From now until `at`, by our clock; zero if that is past.
    pub(super) fn until(&self, at: PgTime) -> Duration {
        let micros = at.micros.saturating_sub(self.wall.micros);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Whether an event's time (`expires_at`) is over, by our clock; the claims of a layout that expires judge by the
    /// server's.
    pub(super) fn has_passed(&self, at: PgTime) -> bool {
        self.expiry == Expiry::Judged && at.micros <= self.wall.micros
    }

    /// Seconds since a commit, by our clock; 0 if the server's is ahead.
    pub(super) fn since(&self, commit_time: PgTime) -> Duration {
        let micros = self.wall.micros.saturating_sub(commit_time.micros);
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }
}

pub(super) fn streaming(pipeline: &mut Pipeline, resume: &crate::postgres::start::Resume) {
    let outage = pipeline.tell.source.take();
    pipeline.tell.standing_by = None;
    pipeline.tell.publishes_at = None;
    pipeline.tell.streaming = true;
    pipeline.tell.polling = false;
    pipeline.tell.claims = None;
    if pipeline.relay.deferred_statuses() == 0 {
        pipeline.tell.parked_rows = None;
    }
    let name = pipeline.spec.name();
    for note in &resume.notes {
        warn!(event = "note", pipeline = name, note = note.name, "{}", note.message);
    }
    let seconds = outage.map(|trouble| trouble.seconds(Instant::now()));
    let after =
        seconds.map_or_else(String::new, |seconds| format!(" again, after {}", span(seconds)));
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

/// Far behind, and close again: a backlog that drains is a state too.
pub(super) fn lag(pipeline: &mut Pipeline, state: status::State, lag: Duration) {
    let now = Instant::now();
    let lag_seconds = lag.as_secs();
    let close = &mut pipeline.tell.close_since;
    let well = matches!(state, status::State::Streaming | status::State::Polling) && lag < CLOSE;
    *close = if well { close.or(Some(now)) } else { None };
    parking_full(pipeline, state, now);
    let behind = &mut pipeline.tell.behind;
    let close = pipeline.tell.close_since;
    let name = pipeline.spec.name();
    if state == status::State::CatchingUp {
        if let Some(Due { seconds, .. }) = Trouble::note(behind, String::new(), None, now) {
            let (far, waits_for) = (span(lag_seconds), pipeline.relay.waits_for());
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
        // Not at the same mark, and not at once: between two transactions of a backlog nothing is behind either.
        if let Some(trouble) = behind.take() {
            let seconds = trouble.seconds(now);
            let after = span(seconds);
            info!(event = "caught_up", pipeline = name, seconds, "caught up after {after}");
        }
    }
}

/// No row more may be parked, or again some may.
fn parking_full(pipeline: &mut Pipeline, state: status::State, now: Instant) {
    if state == status::State::ParkingFull {
        let (reason, hint) = (pipeline.full(), super::status::FULL_HINT);
        let told = &mut pipeline.tell.full;
        if let Some(due) = Trouble::note(told, reason.clone(), Some(hint.to_owned()), now) {
            let (pipeline, Due { seconds, tries }) = (pipeline.spec.name(), due);
            warn!(event = "parking_full", pipeline, seconds, tries, hint, "{reason}");
        }
    } else if let Some(trouble) = pipeline.tell.full.take() {
        let (pipeline, seconds) = (pipeline.spec.name(), trouble.seconds(now));
        let after = span(seconds);
        info!(
            event = "parking_room",
            pipeline,
            seconds,
            "free space in the parking table again, after {after}: reading goes on"
        );
    }
}

/// The slot can't be used, and the table can be polled. `mode = "auto"` creates the slot again itself, and refuses the
/// repair that the halt of another mode asks for.
pub(super) fn falling_back(pipeline: &mut Pipeline, halt: &Halt) {
    pipeline.tell.streaming = false;
    // The halt's own hint for these is `postrider repair`, which refuses a pipeline of mode = "auto".
    let renewed = matches!(
        halt.reason,
        HaltReason::SlotLost | HaltReason::SlotMissing | HaltReason::WalBudget
    );
    let hint = if renewed {
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

/// A slot stands again: what is committed from now on comes by it.
pub(super) fn slot_stands(pipeline: &Pipeline) {
    let (name, slot) = (pipeline.spec.name(), &pipeline.spec.names.slot);
    let words = "the slot exists: polling the rows from before it, then streaming";
    info!(event = "slot_stands", pipeline = name, slot, "{words}");
}

/// It can't be made yet.
pub(super) fn slot_not_yet(pipeline: &mut Pipeline, reason: &str) {
    let (told, now) = (&mut pipeline.tell.slot, Instant::now());
    if let Some(due) = Trouble::note(told, reason.to_owned(), None, now) {
        let Due { seconds, tries } = due;
        let words = if tries == 1 {
            format!("no slot yet, polling continues: {reason}")
        } else {
            format!("still no slot, {}, last: {reason}", due.words())
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "slot_not_yet", pipeline, seconds, tries, reason, "{words}");
    }
}

pub(super) fn polling(pipeline: &mut Pipeline) {
    let outage = pipeline.tell.source.take();
    pipeline.tell.standing_by = None;
    pipeline.tell.publishes_at = None;
    pipeline.tell.streaming = true;
    let polled = std::mem::replace(&mut pipeline.tell.polling, true);
    if !polled || outage.is_some() {
        let seconds = outage.map(|trouble| trouble.seconds(Instant::now()));
        let after = seconds
            .filter(|_| polled)
            .map_or_else(String::new, |seconds| format!(" again, after {}", span(seconds)));
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

pub(super) fn row_taken(pipeline: &Pipeline, written: &Written) {
    let reason = match written {
        Written::Stored => return,
        Written::Behind(_) => "it is further on",
        Written::Rebound(_) => "it belongs to another slot or cluster now",
        Written::TakenOver => "it has another owner now",
        Written::Missing => "it is gone",
    };
    let pipeline = pipeline.spec.name();
    warn!(event = "cursor_taken", pipeline, reason, "another process changed the cursor row");
}

pub(super) fn draining(pipeline: &mut Pipeline) {
    pipeline.tell.draining = true;
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

pub(super) fn shutdown_error(pipeline: &Pipeline, error: &SourceError) {
    warn!(
        event = "shutdown_error",
        pipeline = pipeline.spec.name(),
        reason = %Chain(error),
        "the stream was not closed in order: the cursor row still bounds what is repeated"
    );
}

/// The last word of a pipeline.
pub(super) fn ended(name: &str, status_handle: &StatusHandle, exit: &Exit) {
    status_handle.update(|snapshot| match exit {
        Exit::Stopped => snapshot.state = status::State::Stopped,
        Exit::Halted(halt) => {
            snapshot.state = status::State::Halted;
            // What was last seen may be what the halt is about. The slot is looked at again while the pipeline is
            // halted.
            snapshot.slot_state = None;
            snapshot.slot_safe_bytes = None;
            snapshot.slot_retained_bytes = None;
            snapshot.confirmed_flush_lsn = None;
            if let status::Lag::None = snapshot.lag {
                snapshot.lag = status::Lag::Growing { was: Duration::ZERO, at: Instant::now() };
            }
            // Without the code: it stands beside it.
            snapshot.reason = Some(halt.message.clone());
            snapshot.halt_code = Some(halt.reason.code());
            snapshot.hint = Some(halt.hint.clone());
        }
        Exit::Bug => snapshot.state = status::State::Halted,
    });
    match exit {
        Exit::Stopped => info!(event = "stopped", pipeline = name, "stopped"),
        Exit::Halted(halt) => error!(
            event = "halted",
            pipeline = name,
            code = halt.reason.code(),
            reason = halt.reason.name(),
            meaning = halt.meaning,
            hint = halt.hint,
            "halted: {}",
            halt.message
        ),
        Exit::Bug => error!(event = "bug", pipeline = name, "a bug in Postrider"),
    }
}

// Log lines about the source: a database that does not answer, a slot that another process has, a query that failed.

pub(super) fn source_down(pipeline: &mut Pipeline, error: &SourceError) {
    let reason = Chain(error).to_string();
    let hint = error_policy::hint(error);
    pipeline.tell.reconnects_total += 1;
    pipeline.tell.streaming = false;
    let told =
        Trouble::note(&mut pipeline.tell.source, reason.clone(), hint.clone(), Instant::now());
    if let Some(due) = told {
        let Due { seconds, tries } = due;
        let words = if tries == 1 {
            format!("connecting to the database again: {reason}")
        } else {
            format!("still waiting for database, {}, last: {reason}", due.words())
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "source_down", pipeline, seconds, tries, reason, hint, "{words}");
    }
    pipeline.report(None);
}

/// Positions are of a new history from here on.
pub(super) fn history_begins(
    spec: &PipelineSpec,
    history: HistoryId,
    before: HistoryId,
    from: Lsn,
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
    pipeline.tell.streaming = false;
    let now = Instant::now();
    if let Some(due) = Trouble::note(&mut pipeline.tell.source, message.to_owned(), None, now) {
        let Due { seconds, tries } = due;
        let words = if tries == 1 {
            format!("not streaming yet: {message}")
        } else {
            format!("still not streaming, {}, last: {message}", due.words())
        };
        let (pipeline, reason) = (pipeline.spec.name(), message);
        info!(event = "source_not_ready", pipeline, seconds, tries, reason, "{words}");
    }
    pipeline.report(None);
}

pub(super) fn standing_by(pipeline: &mut Pipeline, active_pid: Option<u32>) {
    pipeline.tell.streaming = false;
    let (told, now) = (&mut pipeline.tell.standing_by, Instant::now());
    if let Some(Due { seconds, tries }) = Trouble::note(told, String::new(), None, now) {
        let slot = &pipeline.spec.names.slot;
        let words = if tries == 1 {
            "another process publishes for this pipeline: standing by to take over when it has ended"
                .to_owned()
        } else {
            format!("still standing by, {}", span(seconds))
        };
        let pipeline = pipeline.spec.name();
        info!(event = "standing_by", pipeline, slot, active_pid, seconds, tries, "{words}");
    }
    pipeline.report(None);
}

pub(super) fn waits_for_former_owner(pipeline: &mut Pipeline, until: tokio::time::Instant) {
    pipeline.tell.standing_by = None;
    pipeline.tell.publishes_at = Some(until.into_std());
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

/// A partition of the outbox was attached with rows in it, or detached.
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

// What is said of the slot: the WAL it holds back, where `source.wal_retain_max` bounds it, and the standby it waits
// for.

/// More than half is spent.
pub(super) fn wal_budget_half(pipeline: &mut Pipeline, retained: u64, max: u64) {
    let reason =
        format!("the slot retains {} MiB of WAL, of at most {} MiB", retained >> 20, max >> 20);
    let then = if pipeline.spec.polls_in_its_stead() {
        "above it the slot is dropped and the table is polled"
    } else {
        "above it the pipeline halts"
    };
    let hint = format!("see what delays the pipeline (postrider status); {then}");
    let (told, now) = (&mut pipeline.tell.budget, Instant::now());
    if let Some(due) = Trouble::note(told, reason.clone(), Some(hint.clone()), now) {
        let Due { seconds, tries } = due;
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

/// Less than half again.
pub(super) fn wal_budget_ok(pipeline: &mut Pipeline, retained: u64) {
    let Some(trouble) = pipeline.tell.budget.take() else { return };
    let (pipeline, seconds) = (pipeline.spec.name(), trouble.seconds(Instant::now()));
    info!(
        event = "wal_budget_ok",
        pipeline,
        retained_bytes = retained,
        seconds,
        "the slot retains less than half of source.wal_retain_max again"
    );
}

/// The slot is gone, and its WAL with the server's next checkpoint.
pub(super) fn slot_dropped(pipeline: &mut Pipeline) {
    (pipeline.tell.slot, pipeline.tell.budget) = (None, None);
    slot_held(pipeline, None);
    let (name, slot) = (pipeline.spec.name(), &pipeline.spec.names.slot);
    let words = "the slot is dropped: PostgreSQL may remove its WAL; a new one is made once all rows are polled";
    warn!(event = "slot_dropped", pipeline = name, slot, "{words}");
}

/// Brings the status up to date with a slot that is not streamed from.
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
    /// Each commit waits for the standby for a moment; with nothing received from one look to the next it is a state.
    pub(super) fn awaits_standby(&mut self, waits: bool) {
        let received = self.relay.received();
        let before = self.stalled_at.replace(received).filter(|_| waits);
        if !waits {
            self.stalled_at = None;
            if let Some(trouble) = self.tell.standby.take() {
                let (pipeline, seconds) = (self.spec.name(), trouble.seconds(Instant::now()));
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
            "bring the standby back, or take it out of that list: postrider check prints the lines";
        let told = &mut self.tell.standby;
        let due = Trouble::note(told, reason.to_owned(), Some(hint.to_owned()), Instant::now());
        if let Some(Due { seconds, tries }) = due {
            let pipeline = self.spec.name();
            warn!(event = "standby_awaited", pipeline, seconds, tries, hint, "{reason}");
        }
    }
}

// Log lines about the sink: brokers and topics that do not take records, and resets of the producer.

/// What an event waits for: the topic, or with `None` the brokers.
pub(super) fn sink_down(
    pipeline: &mut Pipeline,
    topic: Option<&str>,
    reason: &str,
    hint: Option<&str>,
) {
    // It may be down before the first claim.
    let kept = kept(pipeline.tell.polling || pipeline.spec.mode == Mode::Poll);
    let (told, now) = (&mut pipeline.tell.sink, Instant::now());
    let told = Trouble::note(told, reason.to_owned(), hint.map(str::to_owned), now);
    if let Some(due) = told {
        let Due { seconds, tries } = due;
        let words = match topic {
            Some(topic) if tries == 1 => {
                format!("waiting for topic \"{topic}\", nothing is lost, {kept}: {reason}")
            }
            Some(topic) => {
                format!("still waiting for topic \"{topic}\", {}, last: {reason}", due.words())
            }
            None if tries == 1 => {
                format!("broker not available, nothing is lost, {kept}: {reason}")
            }
            None => format!("still waiting for broker, {}, last: {reason}", due.words()),
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "broker_down", pipeline, topic, seconds, tries, reason, hint, "{words}");
    }
}

/// Where unpublished events are meanwhile.
const fn kept(polling: bool) -> &'static str {
    if polling { "the rows stay in the table" } else { "PostgreSQL keeps the WAL" }
}

pub(super) fn sink_up(pipeline: &mut Pipeline, topic: Option<&str>) {
    if let Some(trouble) = pipeline.tell.sink.take() {
        let seconds = trouble.seconds(Instant::now());
        let (pipeline, after) = (pipeline.spec.name(), span(seconds));
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
    pipeline.tell.resets_total += 1;
    let cursor = pipeline.relay.progress().watermark;
    warn!(
        event = "producer_reset",
        pipeline = pipeline.spec.name(),
        reason = why,
        from = %cursor,
        "resetting the Kafka producer; unacknowledged events are sent again"
    );
}

// Log lines about topics that take no records while the pipeline continues with other topics.

/// Topics that are reported at most at a time; further ones are reported when one of these recovers.
const TOLD_MAX: usize = 100;

/// A topic takes no records, and no other event waits for it.
pub(super) fn destination_down(
    pipeline: &mut Pipeline,
    (topic, reason): (&str, &str),
    hint: Option<&str>,
) {
    let told = &mut pipeline.tell.destinations;
    if told.len() >= TOLD_MAX && !told.contains_key(topic) {
        return;
    }
    let told = told.entry(topic.to_owned()).or_default();
    let hint_kept = hint.map(str::to_owned);
    if let Some(due) = Trouble::note(told, reason.to_owned(), hint_kept, Instant::now()) {
        let Due { seconds, tries } = due;
        let pipeline = pipeline.spec.name();
        warn!(
            event = "topic_down",
            pipeline, seconds, tries, reason, hint, "events of the topic are parked: {reason}"
        );
    }
}

/// Events of a destination are parked from here on.
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

/// The dead-letter topic did not take a record.
pub(super) fn undelivered(pipeline: &mut Pipeline, position: Position, reason: Refusal) {
    let told = &mut pipeline.tell.letters;
    if Trouble::note(told, reason.code().to_owned(), None, Instant::now()).is_some() {
        warn!(
            event = "dead_not_sent",
            pipeline = pipeline.spec.name(),
            %position,
            topic = pipeline.spec.dead_topic,
            %reason,
            hint = "see that parking.dead_topic exists and takes records as large as the other topics",
            "dead event not sent to the dead-letter topic: it stays parked, and sending is retried"
        );
    }
}

// What is said of parked events: a few lines a minute, for they may come by the thousand.

/// An event was set aside because something is wrong with it. A few a minute are told one by one.
pub(super) fn parked(tell: &mut Tell, spec: &PipelineSpec, row: &Parked) {
    let Some(suppressed) = tell.parked.admit(Instant::now()) else { return };
    let blocks = row.entry.lane.is_some();
    let rest = if blocks {
        "later events of its aggregate are held back, other aggregates continue"
    } else {
        "all other events continue, those of its aggregate too"
    };
    warn!(
        event = "parked",
        pipeline = spec.name(),
        position = %row.entry.position,
        id = row.event_id.as_deref().map(|id| shown_id(id).into_owned()),
        suppressed,
        code = row.error_code,
        reason = row.error,
        state = row.entry.state.name(),
        blocks,
        hint = format!("postrider parked show {}", row.entry.position),
        "event parked; {rest}"
    );
}

/// An event came behind a later one of its aggregate: a broker had refused its batch and taken that one.
pub(super) fn overtaken(pipeline: &mut Pipeline, position: Position, by: Position) {
    let Some(suppressed) = pipeline.tell.overtaken.admit(Instant::now()) else { return };
    warn!(
        event = "overtaken",
        pipeline = pipeline.spec.name(),
        %position,
        %by,
        suppressed,
        hint = "flow.ordering = \"strict\" rules it out",
        "published behind a later event of its aggregate: a broker refused its batch and took that one"
    );
}

/// A parked event was published.
pub(super) fn released(pipeline: &Pipeline, position: Position) {
    let pipeline = pipeline.spec.name();
    debug!(event = "parked_published", pipeline, %position, "parked event published");
}

/// Another session has locked rows of the parked table: what became of their events is written later.
pub(super) fn parked_rows_locked(pipeline: &mut Pipeline, rows: usize, holders: &[Holder]) {
    let holder = locks::names(holders);
    let known = pipeline.tell.parked_rows.as_ref().filter(|_| holders.is_empty());
    // Holders are looked for now and then; in between the last ones stand.
    let reason = known.map_or_else(
        || {
            format!(
                "rows of \"postrider\".\"parked\" are locked by {holder}: what became of these parked events is \
                 written later"
            )
        },
        |trouble| trouble.reason.clone(),
    );
    let hint = "end that session's transaction (commit or roll back); until then only the aggregates of these parked \
                events wait, and a restart may publish events again that are published already";
    let now = Instant::now();
    let due =
        Trouble::note(&mut pipeline.tell.parked_rows, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        warn!(
            event = "parked_rows_wait",
            pipeline, rows, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// No row of the parked table can be written: the table, or the cursor row, is locked, or the statement took too long.
pub(super) fn parked_rows_wait(pipeline: &mut Pipeline, error: &SourceError, holders: &[Holder]) {
    let holder = locks::names(holders);
    let by = if holders.is_empty() { String::new() } else { format!(" (locked by {holder})") };
    let reason = format!(
        "{}{by}: events that have to be parked wait, and nothing behind them is confirmed; all others are published",
        Chain(error)
    );
    let hint = "end the transaction of the session that has locked table \"postrider\".\"parked\", or the pipeline's \
                row in \"postrider\".\"cursor\"";
    let now = Instant::now();
    let due =
        Trouble::note(&mut pipeline.tell.parked_rows, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = due {
        let pipeline = pipeline.spec.name();
        warn!(
            event = "parked_rows_wait",
            pipeline, holder, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// All rows of the parked table are written.
pub(super) fn parked_rows_written(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.parked_rows.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(
            event = "parked_rows_written",
            pipeline, seconds, "all changes to rows of parked events are written"
        );
    }
}

/// Positions of requested retries that are remembered until they are answered.
const REQUESTED_MAX: usize = 10_000;

/// What became of parked events.
pub(super) fn marked(pipeline: &mut Pipeline, marks: &[Mark]) {
    let (name, tell) = (pipeline.spec.name(), &mut pipeline.tell);
    let (few, requested) = (&mut tell.dead, &mut tell.requested);
    for Mark { position, became } in marks {
        let answers = requested.remove(position);
        match became {
            Became::Refused { state: State::Dead, attempts, reason, .. } => {
                let Some(suppressed) = few.admit(Instant::now()) else { continue };
                warn!(
                    event = "parked_dead",
                    pipeline = name,
                    %position,
                    attempts,
                    %reason,
                    suppressed,
                    hint = format!("postrider parked show {position}"),
                    "parked event is dead: only a person moves it now (parked retry, skip or replace)"
                );
            }
            Became::Refused { attempts, reason, .. } if answers => {
                let Some(suppressed) = few.admit(Instant::now()) else { continue };
                warn!(
                    event = "parked_refused_again",
                    pipeline = name,
                    %position,
                    attempts,
                    %reason,
                    suppressed,
                    hint = format!("postrider parked show {position}"),
                    "retry requested: refused again: {reason}"
                );
            }
            Became::Again => {
                if requested.len() < REQUESTED_MAX {
                    requested.insert(*position);
                }
                answered(
                    name,
                    few,
                    *position,
                    ("retry", "retry or replace requested: event queued"),
                );
            }
            Became::Skipped => {
                answered(name, few, *position, ("skip", "skip requested: event given up"));
            }
            Became::Declined => {
                let words = "request declined: it cannot be carried out where the event is";
                answered(name, few, *position, ("declined", words));
            }
            Became::Done | Became::Refused { .. } | Became::DeadSent | Became::Overtaken { .. } => {
                debug!(event = "parked_marked", pipeline = name, %position, "parked event marked");
            }
        }
    }
}

/// What a person asked for was taken up, or was not.
fn answered(pipeline: &str, few: &mut Few, position: Position, (answer, words): (&str, &str)) {
    let Some(suppressed) = few.admit(Instant::now()) else { return };
    info!(event = "parked_answered", pipeline, %position, answer, suppressed, "{words}");
}

// What is said of writes that PostgreSQL takes long to commit.

const HINT: &str = "another session may hold a lock: SELECT pid, pg_blocking_pids(pid), wait_event_type FROM \
                    pg_stat_activity WHERE application_name LIKE 'postrider%'; or a standby in \
                    synchronous_standby_names is not connected: see SELECT application_name, sync_state FROM \
                    pg_stat_replication; bring it back, or take it out and SELECT pg_reload_conf()";

/// A write is not committed after so long.
pub(super) fn write_waits(pipeline: &mut Pipeline, patience: Duration) {
    let now = Instant::now();
    pipeline.tell.write_at = Some(now);
    let longer = patience.as_secs();
    let reason = format!("PostgreSQL has not committed a write for more than {longer} s");
    let told = Trouble::note(&mut pipeline.tell.write, reason, Some(HINT.into()), now);
    if let Some(Due { seconds, tries }) = told {
        warn!(
            event = "write_waits",
            pipeline = pipeline.spec.name(),
            seconds,
            tries,
            hint = HINT,
            "PostgreSQL has not committed a write for more than {} s: parked events wait, nothing is lost",
            longer + seconds
        );
    }
}

/// It is committed.
pub(super) fn write_done(pipeline: &mut Pipeline) {
    pipeline.tell.write_at = None;
    if let Some(trouble) = pipeline.tell.write.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "write_done", pipeline, seconds, "PostgreSQL commits writes again");
    }
}

// What is said of rows of the outbox table, and of a cursor row, that have to wait: to be claimed, marked, written.

/// Rows that another session has locked.
pub(super) fn marks_wait(pipeline: &mut Pipeline, waiting: &Waiting, given_up: usize) {
    let Waiting { table, rows, holders } = waiting;
    let holder = locks::names(holders);
    let known = pipeline.tell.marks.as_ref().filter(|_| holders.is_empty());
    // Holders are looked for now and then; in between the last ones stand.
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
        |trouble| trouble.reason.clone(),
    );
    let hint = "end that session's transaction (commit or roll back); until then all events are published, and only \
                the marks of these aggregates and the confirmation wait";
    let now = Instant::now();
    let told = Trouble::note(&mut pipeline.tell.marks, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = told {
        let pipeline = pipeline.spec.name();
        let table = table.to_string();
        warn!(
            event = "marks_wait",
            pipeline, table, rows, holder, given_up, seconds, tries, reason, hint, "{reason}"
        );
    }
}

/// The table refuses marks, or could not be asked; what is published goes on.
pub(super) fn marks_failed(
    pipeline: &mut Pipeline,
    waiting: &Waiting,
    error: &SourceError,
    given_up: usize,
) {
    let Waiting { table, rows, .. } = waiting;
    let error_text = Chain(error).to_string();
    let reason = format!("published rows of {table} are not marked: {error_text}");
    let halt =
        error_policy::explain(crate::error::HaltReason::TableUnfit, error, &pipeline.spec.names);
    let hint = halt.hint;
    let now = Instant::now();
    let told = Trouble::note(&mut pipeline.tell.marks, reason.clone(), Some(hint.clone()), now);
    if let Some(Due { seconds, tries }) = told {
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

/// Polling begins, and publishes rows that the stream has passed, since they have no mark.
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

/// Rows that are to be published are locked by another session: claims pass over them.
pub(super) fn claims_wait(pipeline: &mut Pipeline, table: &TableName, holders: &[Holder]) {
    let holder = locks::names(holders);
    let reason = format!(
        "rows of {table} are locked by {holder}: they, and the later events of their aggregates, wait"
    );
    let hint =
        "end that session's transaction (commit or roll back); all other events are published";
    let now = Instant::now();
    let due = Trouble::note(&mut pipeline.tell.claims, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = due {
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
    if let Some(trouble) = pipeline.tell.claims.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(
            event = "claims_go_on",
            pipeline, seconds, "no row to be published is locked any more"
        );
    }
}

/// All published rows are marked.
pub(super) fn marks_made(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.marks.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "marks_made", pipeline, seconds, "all published rows are marked again");
    }
}

/// The cursor row could not be written: another session holds it, or the statement took too long.
pub(super) fn row_waits(pipeline: &mut Pipeline, error: &SourceError) {
    let reason = format!("{}: events are published, and none is confirmed", Chain(error));
    let hint = "see who holds the row: SELECT pid, pg_blocking_pids(pid), application_name FROM pg_stat_activity WHERE \
                wait_event_type = 'Lock'";
    let now = Instant::now();
    let told = Trouble::note(&mut pipeline.tell.row, reason.clone(), Some(hint.to_owned()), now);
    if let Some(Due { seconds, tries }) = told {
        let pipeline = pipeline.spec.name();
        warn!(event = "cursor_waits", pipeline, seconds, tries, reason, hint, "{reason}");
    }
}

/// It is written.
pub(super) fn row_goes_on(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.row.take() {
        let seconds = trouble.seconds(Instant::now());
        let pipeline = pipeline.spec.name();
        info!(event = "cursor_written", pipeline, seconds, "the cursor row is written again");
    }
}

// What is said of changes that are passed over: nothing that is skipped is silent.
//
// An event that expired is named, a few lines a minute. The rest is counted as it passes, and logged when the
// status is brought up to date: at once, then at growing intervals while there are more.

/// What was said last of changes that are no events, and of what was skipped that an application may have meant.
#[derive(Debug, Default)]
pub(super) struct SkippedLog {
    logged: Skipped,
    passed: Option<Trouble>,
    not_transactional: Option<Trouble>,
}

/// An event whose time (`expires_at`) was over before it was published.
pub(super) fn expired(tell: &mut Tell, pipeline: &str, position: Position, id: &str) {
    tell.skipped.expired += 1;
    let Some(suppressed) = tell.expired.admit(Instant::now()) else { return };
    warn!(
        event = "event_expired",
        pipeline,
        %position,
        id = %shown_id(id),
        suppressed,
        "event expired before it was published: it is skipped"
    );
}

/// The same for rows that a claim of polling found expired; their layout marks them.
pub(super) fn rows_expired(tell: &mut Tell, pipeline: &str, rows: u64) {
    if rows == 0 {
        return;
    }
    tell.skipped.expired += rows;
    let Some(suppressed) = tell.expired.admit(Instant::now()) else { return };
    warn!(
        event = "event_expired",
        pipeline,
        rows,
        suppressed,
        "events expired before they were published: they are skipped, and their rows marked as failed"
    );
}

/// Says what was skipped since this was last said, where that is due.
pub(super) fn skipped(pipeline: &mut Pipeline) {
    let (name, now) = (pipeline.spec.name(), Instant::now());
    let Tell { skipped, skipped_log: log, .. } = &mut pipeline.tell;
    let passed = |skipped: &Skipped| skipped.not_inserts + skipped.others + skipped.repeated;
    if passed(skipped) > passed(&log.logged)
        && Trouble::note(&mut log.passed, String::new(), None, now).is_some()
    {
        let (not_inserts, others, repeated) = (
            skipped.not_inserts - log.logged.not_inserts,
            skipped.others - log.logged.others,
            skipped.repeated - log.logged.repeated,
        );
        info!(
            event = "changes_skipped",
            pipeline = name,
            not_inserts,
            others,
            repeated,
            "changes that are no new events were skipped: updates, deletes and truncations; rows of other tables and \
             messages of other prefixes; events that were published before"
        );
        log.logged = Skipped { not_transactional: log.logged.not_transactional, ..*skipped };
    }
    if skipped.not_transactional > log.logged.not_transactional
        && Trouble::note(&mut log.not_transactional, String::new(), None, now).is_some()
    {
        let messages = skipped.not_transactional - log.logged.not_transactional;
        warn!(
            event = "message_not_transactional",
            pipeline = name,
            messages,
            hint = "SELECT pg_logical_emit_message(true, ...)",
            "logical messages of outbox.message_prefix were skipped: they are not transactional, so they are in no \
             transaction, and would be sent though theirs is rolled back"
        );
        log.logged.not_transactional = skipped.not_transactional;
    }
}

// Log lines about a repair.

/// Pause between two lines about how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// `source.on_slot_lost = "repair"`.
pub(super) fn repair_next(pipeline: &mut Pipeline, halt: &Halt) {
    pipeline.tell.streaming = false;
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

pub(super) fn repair_told(spec: &PipelineSpec, told: &Told<'_>) {
    let pipeline = spec.name();
    match told {
        Told::Waiting(blockers) => {
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
        Told::Listing(at) => {
            info!(event = "slot_made", pipeline, %at, "the new slot exists; listing the rows that it will not stream");
        }
    }
}

/// The list is there. `without_id`: rows that it can't hold.
pub(super) fn repairing(spec: &PipelineSpec, row: &Row, without_id: u64) {
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

/// Rows of the list are done with.
pub(super) fn repair_progress(pipeline: &mut Pipeline) {
    let now = Instant::now();
    let told = &mut pipeline.tell.repair_at;
    if told.is_some_and(|at| now.duration_since(at) < PROGRESS_INTERVAL) {
        return;
    }
    let first = told.replace(now).is_none();
    if !first {
        let published = pipeline.tell.published_total;
        info!(
            event = "repair_progress",
            pipeline = pipeline.spec.name(),
            published,
            "publishing from the table"
        );
    }
}

pub(super) fn repaired(pipeline: &Pipeline, row: &Row) {
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

/// The new slot was lost in its turn.
pub(super) fn slot_gone_again(pipeline: &Pipeline) {
    warn!(
        event = "slot_gone_again",
        pipeline = pipeline.spec.name(),
        "the new slot was lost before all rows were published: creating another one"
    );
}

// Log lines about what a pipeline's position belongs to, and about settings that have changed since.

/// From here on the position belongs to these settings. `first`: nothing was known of it before.
pub(super) fn position_belongs(spec: &PipelineSpec, belongs: &Belongs, first: bool) {
    let Belongs { mode, sink, cluster, topic, table, layout, .. } = belongs;
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

/// A setting differs, and the pipeline goes on.
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

/// The slot of a pipeline that polls retains WAL, or is gone.
pub(super) fn slot_left_behind(pipeline: &mut Pipeline, left: Option<&LeftBehind>) {
    let Some(left) = left else {
        if pipeline.tell.budget.take().is_some() {
            slot_held(pipeline, None);
        }
        return;
    };
    slot_held(pipeline, Some(left.retained));
    let (reason, hint) = (left.message(), format!("{} {}", left.line(), LeftBehind::WHY));
    let told = &mut pipeline.tell.budget;
    let due = Trouble::note(told, reason.clone(), Some(hint.clone()), Instant::now());
    if let Some(Due { seconds, tries }) = due {
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

// What is said of bookmarks that were let go while the pipeline runs.

/// A bookmark's slot was dropped without a person's word.
pub(super) fn bookmark_let_go(pipeline: &str, swept: &Swept, retain_max: u64) {
    let (bookmark, held_bytes) = (&swept.name, swept.held_bytes);
    match swept.reason {
        Reason::Expired => {
            info!(
                event = "bookmark_expired",
                pipeline, bookmark, "the bookmark has expired: its slot is dropped"
            );
        }
        Reason::Budget => warn!(
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
