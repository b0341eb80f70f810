//! The log lines of a pipeline, one for each change of its state, and the board that `status` and `/metrics` read.
//!
//! An ordinary event has no line. A state that lasts is logged again at growing intervals (`trouble`), with how long
//! and how often. Each line has an `event`, a stable name for machines; `docs/operations.md` lists them with their
//! fields. Holds the wall clock: for latencies and lag, and to decide that an event has expired ([`Tell::has_passed`]).

mod bookmark;
mod change;
mod destination;
mod marks;
mod parked;
mod repair;
mod sink;
mod skipped;
mod slot;
mod source;
mod write;

pub(super) use bookmark::bookmark_let_go;
pub(super) use change::{located, position_belongs, setting_changed, slot_left_behind};
pub(super) use destination::{destination_down, destination_given_up, undelivered};
pub(super) use marks::{
    claims_go_on, claims_wait, marks_failed, marks_left, marks_made, marks_wait, row_goes_on,
    row_waits, unmarked_rows,
};
pub(super) use parked::{
    marked, overtaken, parked, parked_rows_locked, parked_rows_wait, parked_rows_written, released,
};
pub(super) use repair::{
    repair_begins, repair_next, repair_progress, repair_told, repaired, repairing, slot_gone_again,
};
pub(super) use sink::{resetting, sink_broken, sink_down, sink_up};
pub(super) use skipped::{expired, rows_expired, skipped};
pub(super) use slot::{slot_dropped, slot_held, wal_budget_half, wal_budget_ok};
pub(super) use source::{
    history_begins, look_failed, partition_changed, publication_changed, source_down, standing_by,
    waiting, waits_for_former_owner,
};
pub(super) use write::{write_done, write_waits};

use super::pipeline::Pipeline;
use super::run::Exit;
use super::trouble::{Due, Few, Trouble, span};
use crate::error::{Chain, Halt, HaltReason};
use crate::event::{PgTime, Position};
use crate::postgres::SourceError;
use crate::postgres::cursor::Written;
use crate::status::{self, Board, Skipped};
use skipped::SkippedLog;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{error, info, warn};

/// How often the board is brought up to date.
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

pub(super) fn streaming(pipeline: &mut Pipeline, resume: &crate::postgres::fence::Resume) {
    let outage = pipeline.tell.source.take();
    pipeline.tell.standing_by = None;
    pipeline.tell.publishes_at = None;
    pipeline.tell.streaming = true;
    pipeline.tell.polling = false;
    pipeline.tell.claims = None;
    if pipeline.relay.marks_left() == 0 {
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
        let (reason, hint) = (pipeline.full(), super::board::FULL_HINT);
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
pub(super) fn ended(name: &str, board: &Board, exit: &Exit) {
    board.update(|snapshot| match exit {
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
