//! The log lines about the database, or about the source of an embedded pipeline, and the state behind them.

use super::lag::ReadMode;
use super::mode::Mode;
use super::settings_change::LeftBehind;
use crate::error::{Chain, Halt, HaltReason};
use crate::health::{Condition, DueReport, duration_text};
use crate::offset::{Offset, Watermark};
use crate::postgres::repair::RepairRow;
use crate::postgres::start::Resume;
use crate::postgres::{SourceError, error_policy};
use std::error::Error;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What was logged last about the source. Each [`Condition`] is set while it lasts.
#[derive(Debug)]
pub(super) struct SourceLog {
    /// Name of the pipeline.
    name: String,
    /// How log lines call the source.
    kind: &'static str,
    /// The source is not available.
    outage: Option<Condition>,
    /// Another process has the slot.
    standing_by: Option<Condition>,
    /// Nothing is published before this moment: records of the previous owner may still arrive at the broker.
    publishes_at: Option<Instant>,
    /// There is no slot, and the table is polled instead.
    slot: Option<Condition>,
    /// The slot retains much WAL.
    wal_retention: Option<Condition>,
    /// The stream waits for a standby.
    standby: Option<Condition>,
    /// The position that was received when the stream last waited for a standby.
    stalled_at: Option<Offset>,
    /// Whether events are read, by stream or by polling.
    streaming: bool,
    /// Whether the table is polled.
    polling: bool,
    /// Reconnects since the start.
    reconnects_total: u64,
}

impl SourceLog {
    pub(super) fn new(name: &str, mode: Mode) -> Self {
        Self {
            name: name.to_owned(),
            kind: if mode == Mode::Embedded { "source" } else { "database" },
            outage: None,
            standing_by: None,
            publishes_at: None,
            slot: None,
            wal_retention: None,
            standby: None,
            stalled_at: None,
            streaming: false,
            polling: false,
            reconnects_total: 0,
        }
    }

    /// Whether events are read, by stream or by polling.
    pub(super) fn is_reading(&self) -> bool {
        self.streaming
    }

    /// Whether the table is polled.
    pub(super) fn is_polling(&self) -> bool {
        self.polling
    }

    /// How events are read at the moment. `received`: what the stream has received, if there is one.
    pub(super) fn read_mode(&self, received: Offset) -> ReadMode {
        if self.standing_by.is_some() {
            ReadMode::Other
        } else if !self.streaming {
            ReadMode::Nothing
        } else if self.polling {
            ReadMode::Table
        } else {
            ReadMode::Stream { received }
        }
    }

    /// Another process has the slot.
    pub(super) fn stands_by(&self) -> Option<&Condition> {
        self.standing_by.as_ref()
    }

    /// The source is not available.
    pub(super) fn outage(&self) -> Option<&Condition> {
        self.outage.as_ref()
    }

    /// How long nothing is published yet, because records of the previous owner may still arrive at the broker.
    pub(super) fn publishes_in(&self) -> Option<Duration> {
        self.publishes_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// What else is wrong: the stream waits for a standby, or the slot retains much WAL.
    pub(super) fn warnings(&self) -> [Option<&Condition>; 2] {
        [self.standby.as_ref(), self.wal_retention.as_ref()]
    }

    /// Reconnects since the start.
    pub(super) fn reconnects_total(&self) -> u64 {
        self.reconnects_total
    }

    /// Nothing is read any more.
    pub(super) fn reads_nothing(&mut self) {
        self.streaming = false;
    }

    /// The pipeline is paused: what was logged as lasting begins again after the pause.
    pub(super) fn paused(&mut self) {
        (self.outage, self.standing_by, self.publishes_at) = (None, None, None);
        (self.streaming, self.polling) = (false, false);
    }

    /// The wait for the records of the previous owner has ended early.
    pub(super) fn waits_no_longer(&mut self) {
        self.publishes_at = None;
    }

    /// A stream has begun.
    pub(super) fn streaming(&mut self, slot: &str, resume: &Resume) {
        let outage = self.outage.take();
        self.standing_by = None;
        self.publishes_at = None;
        self.streaming = true;
        self.polling = false;
        let name = &self.name;
        for note in &resume.notes {
            warn!(event = "note", pipeline = name, note = note.name, "{}", note.message);
        }
        let seconds = outage.map(|condition| condition.seconds(Instant::now()));
        let after = seconds.map_or_else(String::new, |seconds| {
            format!(" again, after {}", duration_text(seconds))
        });
        info!(
            event = "streaming",
            pipeline = name,
            slot,
            from = %resume.start,
            seconds,
            "streaming{after}"
        );
    }

    /// A stream of an embedded pipeline has begun.
    pub(super) fn embedded_streaming(&mut self, source: &str, from: Watermark) {
        let outage = self.outage.take();
        self.streaming = true;
        let seconds = outage.map(|condition| condition.seconds(Instant::now()));
        let after = seconds.map_or_else(String::new, |seconds| {
            format!(" again, after {}", duration_text(seconds))
        });
        let name = &self.name;
        info!(event = "streaming", pipeline = name, source, %from, seconds, "streaming{after}");
    }

    /// The table is polled.
    pub(super) fn polling(&mut self, table: Option<&str>) {
        let outage = self.outage.take();
        self.standing_by = None;
        self.publishes_at = None;
        self.streaming = true;
        let polled = std::mem::replace(&mut self.polling, true);
        if !polled || outage.is_some() {
            let seconds = outage.map(|condition| condition.seconds(Instant::now()));
            let after = seconds.filter(|_| polled).map_or_else(String::new, |seconds| {
                format!(" again, after {}", duration_text(seconds))
            });
            let name = &self.name;
            info!(
                event = "polling",
                pipeline = name,
                table,
                seconds,
                "polling the outbox table{after}"
            );
        }
    }

    /// The slot can't be used, and the table can be polled. In mode `auto` the pipeline creates the slot again
    /// automatically, and `postrider repair`, which the halt of another mode asks for, refuses such a pipeline.
    pub(super) fn falling_back(&mut self, halt: &Halt) {
        self.streaming = false;
        // The halt's own hint for these reasons is `postrider repair`, which refuses a pipeline of mode = "auto".
        let recreated = matches!(
            halt.reason,
            HaltReason::SlotLost | HaltReason::SlotMissing | HaltReason::WalBudget
        );
        let hint = if recreated {
            "nothing to do: mode = \"auto\" creates the slot again and returns to streaming"
        } else if halt.reason == HaltReason::SlotUnusable {
            "set source.slot to a name that no slot has, and restart the process: mode = \"auto\" creates that slot \
             and returns to streaming"
        } else {
            &halt.hint
        };
        warn!(
            event = "falling_back",
            pipeline = self.name,
            code = halt.reason.code(),
            reason = halt.reason.name(),
            hint,
            "polling the table until the slot can be used: {}",
            halt.message
        );
    }

    /// A repair begins because of `source.on_slot_lost = "repair"`.
    pub(super) fn repair_next(&mut self, halt: &Halt) {
        self.streaming = false;
        warn!(
            event = "slot_lost",
            pipeline = self.name,
            code = halt.reason.code(),
            reason = halt.reason.name(),
            "repairing from the table, as source.on_slot_lost asks: {}",
            halt.message
        );
    }

    /// The database is not available.
    pub(super) fn down(&mut self, error: &SourceError) {
        self.lost(&Chain(error).to_string(), error_policy::hint(error).as_deref());
    }

    /// The database, or the source or store of an embedded pipeline, is not available.
    pub(super) fn lost(&mut self, reason: &str, hint: Option<&str>) {
        let source = self.kind;
        self.reconnects_total += 1;
        self.streaming = false;
        let condition = &mut self.outage;
        let due =
            Condition::note(condition, reason.to_owned(), hint.map(str::to_owned), Instant::now());
        if let Some(due) = due {
            let DueReport { seconds, tries } = due;
            let words = if tries == 1 {
                format!("connecting to the {source} again: {reason}")
            } else {
                format!("still waiting for {source}, {}, last: {reason}", due.text())
            };
            let pipeline = &self.name;
            warn!(event = "source_down", pipeline, seconds, tries, reason, hint, "{words}");
        }
    }

    /// Nothing can be read yet.
    pub(super) fn waiting(&mut self, message: &str) {
        self.streaming = false;
        let now = Instant::now();
        if let Some(due) = Condition::note(&mut self.outage, message.to_owned(), None, now) {
            let DueReport { seconds, tries } = due;
            let words = if tries == 1 {
                format!("not streaming yet: {message}")
            } else {
                format!("still not streaming, {}, last: {message}", due.text())
            };
            let (pipeline, reason) = (&self.name, message);
            info!(event = "source_not_ready", pipeline, seconds, tries, reason, "{words}");
        }
    }

    /// Another process has the slot.
    pub(super) fn standing_by(&mut self, slot: &str, active_pid: Option<u32>) {
        self.streaming = false;
        let reason = format!("slot {slot:?} is held by another process");
        let (condition, now) = (&mut self.standing_by, Instant::now());
        if let Some(DueReport { seconds, tries }) = Condition::note(condition, reason, None, now) {
            let words = if tries == 1 {
                "another process publishes for this pipeline: standing by to take over when it has ended"
                    .to_owned()
            } else {
                format!("still standing by, {}", duration_text(seconds))
            };
            let pipeline = &self.name;
            info!(event = "standing_by", pipeline, slot, active_pid, seconds, tries, "{words}");
        }
    }

    /// Nothing is published before `until`: records of the previous owner may still arrive at the broker.
    pub(super) fn waits_for_former_owner(&mut self, until: tokio::time::Instant) {
        self.standing_by = None;
        self.publishes_at = Some(until.into_std());
        let wait = until.saturating_duration_since(tokio::time::Instant::now());
        let (name, seconds) = (&self.name, (wait + Duration::from_millis(500)).as_secs());
        info!(
            event = "waits_for_former_owner",
            pipeline = name,
            seconds,
            "the process that ran this pipeline before has not noted that all of its records are answered, and \
             some may still reach the broker (it was killed, lost its database, stopped or paused behind a broker that \
             did not answer, or was of an older version; or the database failed over): publishing begins in {seconds} s"
        );
    }

    /// A query failed that nothing waits for.
    pub(super) fn look_failed(&self, error: &SourceError) {
        let (pipeline, reason) = (&self.name, Chain(error));
        warn!(
            event = "look_failed",
            pipeline,
            %reason,
            "a query of the database's state failed and is repeated: {reason}"
        );
    }

    /// The slot exists again: what is committed from now on comes from the stream.
    pub(super) fn slot_exists(&mut self, slot: &str) {
        self.slot = None;
        let name = &self.name;
        let words = "the slot exists: polling the rows from before it, then streaming";
        info!(event = "slot_stands", pipeline = name, slot, "{words}");
    }

    /// The slot can't be created yet.
    pub(super) fn slot_not_yet(&mut self, reason: &str) {
        let (condition, now) = (&mut self.slot, Instant::now());
        if let Some(due) = Condition::note(condition, reason.to_owned(), None, now) {
            let DueReport { seconds, tries } = due;
            let words = if tries == 1 {
                format!("no slot can be used yet, polling continues: {reason}")
            } else {
                format!("still no slot can be used, {}, last: {reason}", due.text())
            };
            let pipeline = &self.name;
            warn!(event = "slot_not_yet", pipeline, seconds, tries, reason, "{words}");
        }
    }

    /// The slot is dropped; the next checkpoint of the server removes its WAL.
    pub(super) fn slot_dropped(&mut self, slot: &str) {
        (self.slot, self.wal_retention) = (None, None);
        let name = &self.name;
        let words = "the slot is dropped: PostgreSQL may remove its WAL; a new one is created once all rows are polled";
        warn!(event = "slot_dropped", pipeline = name, slot, "{words}");
    }

    /// The slot retains more than half of `source.wal_retain_max`. `then_polls`: above the limit, the slot is dropped
    /// and the table is polled.
    pub(super) fn wal_budget_half(&mut self, retained: u64, max: u64, then_polls: bool) {
        let reason =
            format!("the slot retains {} MiB of WAL, of at most {} MiB", retained >> 20, max >> 20);
        let then = if then_polls {
            "above it the slot is dropped and the table is polled"
        } else {
            "above it the pipeline halts"
        };
        let hint = format!("see what delays the pipeline (postrider status); {then}");
        let (condition, now) = (&mut self.wal_retention, Instant::now());
        if let Some(due) = Condition::note(condition, reason.clone(), Some(hint.clone()), now) {
            let DueReport { seconds, tries } = due;
            warn!(
                event = "wal_budget_half",
                pipeline = self.name,
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
    pub(super) fn wal_budget_ok(&mut self, retained: u64) {
        let Some(condition) = self.wal_retention.take() else { return };
        let (pipeline, seconds) = (&self.name, condition.seconds(Instant::now()));
        info!(
            event = "wal_budget_ok",
            pipeline,
            retained_bytes = retained,
            seconds,
            "the slot retains less than half of source.wal_retain_max again"
        );
    }

    /// The slot of a polling pipeline retains WAL, or is dropped. Returns whether the report of a slot is over.
    pub(super) fn slot_left_behind(&mut self, left: Option<&LeftBehind>) -> bool {
        let Some(left) = left else {
            return self.wal_retention.take().is_some();
        };
        let (reason, hint) = (left.message(), format!("{} {}", left.line(), LeftBehind::WHY));
        let condition = &mut self.wal_retention;
        let due = Condition::note(condition, reason.clone(), Some(hint.clone()), Instant::now());
        if let Some(DueReport { seconds, tries }) = due {
            warn!(
                event = "slot_left_behind",
                pipeline = self.name,
                slot = left.slot,
                retained_bytes = left.retained,
                seconds,
                tries,
                hint,
                "{reason}"
            );
        }
        false
    }

    /// The new slot was lost too.
    pub(super) fn slot_gone_again(&self) {
        warn!(
            event = "slot_gone_again",
            pipeline = self.name,
            "the new slot was lost before all rows were published: creating another one"
        );
    }

    /// The list of a repair is published.
    pub(super) fn repaired(&self, row: &RepairRow) {
        let at = row.slot_created_lsn.map(|at| at.to_string());
        info!(
            event = "repaired",
            pipeline = self.name,
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
                pipeline = self.name,
                gone = row.rows_gone,
                "{} rows were deleted after they were listed and before they were published: these events are lost",
                row.rows_gone
            );
        }
    }

    /// The stream could not be closed.
    pub(super) fn shutdown_error(&self, error: &(dyn Error + 'static)) {
        warn!(
            event = "shutdown_error",
            pipeline = self.name,
            reason = %Chain(error),
            "the stream was not closed in order: the cursor row still bounds what is repeated"
        );
    }

    /// Logs that the stream, which has received everything below `received`, waits for a standby. Each commit waits for
    /// the standby for a moment; if nothing was received between two queries of the slot, it is a state.
    pub(super) fn standby_wait(&mut self, waits: bool, received: Offset) {
        let before = self.stalled_at.replace(received).filter(|_| waits);
        if !waits {
            self.stalled_at = None;
            if let Some(condition) = self.standby.take() {
                let (pipeline, seconds) = (&self.name, condition.seconds(Instant::now()));
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
        let condition = &mut self.standby;
        let due =
            Condition::note(condition, reason.to_owned(), Some(hint.to_owned()), Instant::now());
        if let Some(DueReport { seconds, tries }) = due {
            let pipeline = &self.name;
            warn!(event = "standby_awaited", pipeline, seconds, tries, hint, "{reason}");
        }
    }
}
