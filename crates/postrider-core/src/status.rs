//! The status of a pipeline: the snapshot that `/status`, `/ready` and `postrider status` show.
//!
//! The pipeline updates the snapshot, and the admin endpoint and the command line read it.

use crate::publications::Publications;
use crate::store::PipelineKey;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The state of a pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineState {
    /// Connecting for the first time.
    #[default]
    Starting,
    /// Streaming, without a backlog.
    Streaming,
    /// Polling the table, without a backlog.
    Polling,
    /// Streaming, with a backlog.
    CatchingUp,
    /// Another process owns the slot; this one waits to take over.
    StandingBy,
    /// The broker can't be reached, or refuses records: the intake is closed.
    BrokerDown,
    /// The database can't be reached.
    SourceDown,
    /// The number of parked rows is `parking.rows_max`: nothing is read until there is room.
    ParkingFull,
    /// Stopping or pausing: waiting for events in flight.
    Draining,
    /// An operator has paused the pipeline: nothing is read until an operator ends the pause.
    Paused,
    /// Stopped until an operator acts.
    Halted,
    /// Ended without an error.
    Stopped,
}

impl PipelineState {
    /// Every state, for the metric that is 1 for the current state.
    pub const ALL: &'static [Self] = &[
        Self::Starting,
        Self::Streaming,
        Self::Polling,
        Self::CatchingUp,
        Self::StandingBy,
        Self::BrokerDown,
        Self::SourceDown,
        Self::ParkingFull,
        Self::Draining,
        Self::Paused,
        Self::Halted,
        Self::Stopped,
    ];

    /// The name, as in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Streaming => "streaming",
            Self::Polling => "polling",
            Self::CatchingUp => "catching_up",
            Self::StandingBy => "standing_by",
            Self::BrokerDown => "broker_down",
            Self::SourceDown => "source_down",
            Self::ParkingFull => "parking_full",
            Self::Draining => "draining",
            Self::Paused => "paused",
            Self::Halted => "halted",
            Self::Stopped => "stopped",
        }
    }
}

/// The parked events of a pipeline.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ParkedSummary {
    /// Refused, to be attempted again.
    pub waiting: u64,
    /// Behind an earlier event of their aggregate.
    pub behind: u64,
    /// To be published later (`available_at`).
    pub due: u64,
    /// Only an operator can change them.
    pub dead: u64,
    /// Number of blocked aggregates.
    pub aggregates: u64,
    /// Whether `parking.rows_max` is reached, so that the intake is closed.
    pub full: bool,
    /// Age of the oldest parked event when it was last queried; 0 if there is none. Unit: seconds.
    pub oldest_seconds: f64,
    /// The first events of blocked aggregates, at most ten, by the number of events behind each.
    pub heads: Vec<Head>,
    /// Refused events by the code of the error, the most frequent code first, at most twenty codes.
    pub by_error: Vec<RefusedByError>,
}

/// Parked events that were refused for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RefusedByError {
    /// The code of the error, as in the parked table.
    pub error_code: String,
    /// The number of events in the states `waiting` and `dead`.
    pub events: u64,
}

/// A parked event that others may wait behind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Head {
    /// The position.
    pub position: String,
    /// The state.
    pub state: &'static str,
    /// Number of refused attempts.
    pub attempts: u32,
    /// Seconds until the next attempt; `None` if only an operator can change the event.
    pub retry_in_seconds: Option<f64>,
    /// Number of later events of its aggregate that are parked behind it.
    pub behind: u64,
    /// The code of its last error; `None` if it was not refused.
    pub error_code: Option<String>,
}

/// What a pipeline reads events from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SourceSummary {
    /// The source database: hosts and name, without login. Together with the slot it distinguishes pipelines of the
    /// same name.
    pub source: String,
    /// The replication slot.
    pub slot: String,
    /// The captured tables, each with its schema; empty for an outbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub captured: Vec<String>,
}

/// How far a pipeline has read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ReadSummary {
    /// The highest position received.
    pub received: String,
    /// The end of the server's WAL, when it was last queried; `None` if no slot is streamed from.
    pub wal_end: Option<String>,
    /// What the intake waits for, while it is closed.
    pub waits_for: Option<&'static str>,
}

/// Number of changes that were skipped on purpose, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Skipped {
    /// Updates, deletes and truncations.
    pub not_inserts: u64,
    /// Rows of other tables, and logical messages of other prefixes.
    pub others: u64,
    /// Events that had expired (`expires_at`).
    pub expired: u64,
    /// Logical messages of the configured prefix that are not transactional.
    pub not_transactional: u64,
    /// Events that were published before, by polling or a repair.
    pub repeated: u64,
}

impl Skipped {
    /// Each reason with its count, for metrics.
    pub const fn reasons(self) -> [(&'static str, u64); 5] {
        [
            ("not_inserts", self.not_inserts),
            ("others", self.others),
            ("expired", self.expired),
            ("not_transactional", self.not_transactional),
            ("repeated", self.repeated),
        ]
    }

    /// The sum.
    pub fn total(self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }
}

/// The sink of a pipeline.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SinkSummary {
    /// Producers that were replaced since the process started.
    #[serde(rename = "sink_resets_total")]
    pub resets_total: u64,
    /// Its transactions; `None` if the sink publishes without transactions.
    #[serde(rename = "sink_transactions", skip_serializing_if = "Option::is_none")]
    pub transactions: Option<TransactionsSummary>,
}

/// The transactions of a sink. Numbers are since the process started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TransactionsSummary {
    /// The name by which brokers know the pipeline's producers: Kafka's transactional id. `None` if there is no such
    /// name.
    pub id: Option<String>,
    /// When this process took the pipeline over, by the clock of the source's database, which it does with each
    /// connection; `None` before its first stream.
    pub taken_over_at: Option<String>,
    /// The progress that the sink has stored, as this process knows it; `None` until the sink has said so.
    pub progress: Option<String>,
    /// The cursor row, which is never ahead of the progress.
    pub cursor_row: String,
    /// Transactions that were committed.
    pub committed_total: u64,
    /// Records of these transactions, without the progress.
    pub records_total: u64,
    /// Transactions with a record that were given up before their commit: none of their records is visible, and all of
    /// them are published again.
    pub aborted_total: u64,
    /// Commits that were not answered, so that the sink was asked what it has.
    pub unknown_total: u64,
    /// How often brokers have refused a producer of this process, because another one had its name, or because its
    /// transaction had taken too long; `None` if the sink does not count that.
    pub fenced_total: Option<u64>,
}

/// The maintenance of a pipeline's tables, which no event waits for.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct MaintenanceSummary {
    /// Resolved rows of the parked table that were deleted since the process started.
    pub pruned_total: u64,
    /// Bookmarks that were dropped since the process started because they had expired, or retained too much WAL.
    pub bookmarks_dropped_total: u64,
    /// Its runs.
    #[serde(flatten)]
    pub runs: RunsSummary,
    /// The event logs that the pipeline writes; `None` if its sink is no database with event logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_logs: Option<EventLogsSummary>,
    /// The retention of the outbox table; `None` if nothing is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionSummary>,
    /// The inboxes of the SQL toolkit, an entry for each database that has them; empty if none has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inboxes: Vec<InboxesSummary>,
}

/// The retention of a pipeline's outbox table.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RetentionSummary {
    /// Rows that were deleted or moved to the archive since the process started.
    pub removed_rows_total: u64,
    /// Partitions that were created since the process started.
    pub partitions_created_total: u64,
    /// Partitions of the outbox and of the archive that were dropped or archived since the process started.
    pub partitions_removed_total: u64,
    /// Rows that are old enough and were kept in the last pass, by reason.
    pub held_rows: Vec<HeldByReason>,
    /// What blocked the removal of all rows in the last pass.
    pub blocked: Vec<BlockedRetention>,
    /// Its passes.
    #[serde(flatten)]
    pub runs: RunsSummary,
}

/// Rows that retention keeps for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct HeldByReason {
    /// The reason.
    pub reason: &'static str,
    /// The number of rows.
    pub rows: u64,
}

/// Why retention removes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BlockedRetention {
    /// The reason as a label.
    pub reason: &'static str,
    /// The reason in words.
    pub message: String,
    /// What ends it, if an action does.
    pub hint: Option<String>,
}

/// The runs of one kind of maintenance.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RunsSummary {
    /// Failed runs, or steps of it, since the process started.
    pub failures_total: u64,
    /// Seconds since all its work was last done, or since this process owns the pipeline; `None` before that, while
    /// this process does not own the pipeline, and while rights are missing.
    pub last_run_seconds: Option<f64>,
    /// Why the last run failed, in one line; `None` if it did not.
    pub reason: Option<String>,
    /// What fixes the problem, if there is one.
    pub hint: Option<String>,
    /// `last_run_seconds` is computed from this when the snapshot is read.
    #[serde(skip)]
    pub ran_at: Option<Instant>,
}

impl RunsSummary {
    /// All work is done.
    pub fn done(&mut self) {
        self.ran_at = Some(Instant::now());
        self.is_fine();
    }

    /// Nothing is wrong, as far as this process knows.
    pub fn is_fine(&mut self) {
        (self.reason, self.hint) = (None, None);
    }

    /// Something has failed.
    pub fn failed(&mut self, reason: &str, hint: Option<&str>) {
        self.failures_total += 1;
        self.waits(reason, hint);
    }

    /// The work can't be done.
    pub fn waits(&mut self, reason: &str, hint: Option<&str>) {
        (self.reason, self.hint) = (Some(reason.to_owned()), hint.map(str::to_owned));
    }

    /// This process does the work no longer: only its failures stay.
    pub fn rests(&mut self) {
        *self = Self { failures_total: self.failures_total, ..Self::default() };
    }

    fn compute(&mut self, now: Instant) {
        let since = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        self.last_run_seconds = self.ran_at.map(since);
    }
}

/// The event logs that a pipeline writes, and their consumer groups, as their maintenance last read them.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct EventLogsSummary {
    /// The logs by name, as many as are reported.
    pub logs: Vec<EventLogSummary>,
    /// Logs and groups that are not reported, because there are more than the limits allow.
    pub unreported: u64,
    /// Tables of events that retention has dropped since the process started.
    pub dropped_total: u64,
    /// The steps of this maintenance.
    #[serde(flatten)]
    pub runs: RunsSummary,
}

/// An event log.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct EventLogSummary {
    /// The log's name.
    pub log: String,
    /// The lowest number that retention has kept.
    pub first_seq: u64,
    /// The number of the last event; 0 if there was none.
    pub last_seq: u64,
    /// Its consumer groups by name, as many as are reported.
    pub groups: Vec<GroupSummary>,
}

impl EventLogSummary {
    /// Events that the log has.
    pub const fn retained_events(&self) -> u64 {
        (self.last_seq + 1).saturating_sub(self.first_seq)
    }
}

/// A consumer group.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct GroupSummary {
    /// The group's name.
    pub group: String,
    /// Events that are not done.
    pub lag_events: u64,
    /// How long the oldest of them has been in the log; 0 if there is none. Unit: seconds.
    pub lag_seconds: f64,
    /// Consumers with a heartbeat in the last 60 seconds.
    pub consumers_alive: u64,
    /// Consumers without one, which are not reaped yet.
    pub consumers_silent: u64,
    /// Hash partitions with a lease.
    pub leased_partitions: u64,
    /// How often events were given out that are not done; the highest number.
    pub deliveries_max: u64,
    /// Whether the group is evicted: events that it had not done may be gone.
    pub evicted: bool,
    /// Events of tables that are old enough to be dropped, and that the group has not passed.
    pub held_events: u64,
}

/// The inboxes of a database, as their maintenance last read them.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct InboxesSummary {
    /// Which database it is: `source`, that of the outbox, `sink`, that of the event logs, or
    /// `inbox`, that of intakes.
    pub database: &'static str,
    /// The inboxes by name, as many as are reported.
    pub inboxes: Vec<InboxSummary>,
    /// Inboxes that are not reported, because there are more than the limit allows.
    pub unreported: u64,
    /// Old messages that this process has deleted since it started.
    pub drained_total: u64,
    /// The steps of this maintenance.
    #[serde(flatten)]
    pub runs: RunsSummary,
}

/// An inbox that stores messages.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct InboxSummary {
    /// The inbox's name.
    pub inbox: String,
    /// Messages that are neither processed nor dead.
    pub pending: u64,
    /// Dead messages.
    pub dead: u64,
    /// How long ago the oldest pending message arrived; 0 if there is none. Unit: seconds.
    pub oldest_pending_seconds: f64,
    /// Gaps behind which a message has been waiting for at least 10 s; `None` if the inbox is not ordered by numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<u64>,
    /// `healthy`, `degraded` or `critical`, as the limits of the inbox say.
    pub health: String,
}

/// Moments from which durations are computed when a snapshot is read. They are not part of the JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moments {
    /// The main loop's last iteration.
    pub turned_at: Option<Instant>,
    /// For [`Snapshot::lag_seconds`].
    pub lag: Lag,
    /// For [`Snapshot::source_contact_seconds`].
    pub source_contact_at: Option<Instant>,
}

/// The status of a pipeline at a moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// The pipeline's name, and its shard: the fields `pipeline` and `shard`.
    #[serde(flatten)]
    pub key: PipelineKey,
    /// What events are read from: the fields `source`, `slot` and `captured`.
    #[serde(flatten)]
    pub from: SourceSummary,
    /// What the position belongs to: mode, destination, table and layout; `None` before the start check has compared
    /// them.
    pub belongs_to: Option<String>,
    /// The state.
    pub state: PipelineState,
    /// The reason of a state other than normal operation, in one line.
    pub reason: Option<String>,
    /// The code of the halt, if the pipeline is halted.
    pub halt_code: Option<&'static str>,
    /// What fixes the problem, if there is one.
    pub hint: Option<String>,
    /// The position below which every event is resolved.
    pub watermark: String,
    /// What was read: the fields `received`, `wal_end` and `waits_for`.
    #[serde(flatten)]
    pub read: ReadSummary,
    /// Events that were passed to the sink and have no report yet.
    pub in_flight_events: u64,
    /// Size of these events. Unit: bytes.
    pub in_flight_bytes: u64,
    /// Events published since the process started.
    pub published_total: u64,
    /// Events parked since the process started.
    pub parked_total: u64,
    /// The parked events.
    pub parked: ParkedSummary,
    /// Changes skipped on purpose since the process started.
    pub skipped_total: u64,
    /// Changes skipped on purpose since the process started, by reason.
    pub skipped: Skipped,
    /// Reconnects to the source since the process started.
    pub source_reconnects_total: u64,
    /// The sink: the fields `sink_resets_total` and, if it publishes in transactions, `sink_transactions`.
    #[serde(flatten)]
    pub sink: SinkSummary,
    /// Seconds since the commit of the oldest event that is neither published nor parked; 0 if there is none. While the
    /// database can't be read, later commits are not known, and the value is at least the seconds since the last read.
    pub lag_seconds: f64,
    /// Seconds since the database last answered; `None` before its first answer.
    pub source_contact_seconds: Option<f64>,
    /// Bytes of WAL between the watermark and the server's end of WAL, when it was last queried.
    pub lag_bytes: u64,
    /// Bytes of WAL that the slot retains, when it was last queried.
    pub slot_retained_bytes: Option<u64>,
    /// Bytes of WAL that the slot may retain (`source.wal_retain_max`), if limited.
    pub slot_retain_max_bytes: Option<u64>,
    /// Bytes of WAL that may be written before the slot is lost (`safe_wal_size`), if the server has a limit.
    pub slot_safe_bytes: Option<i64>,
    /// The slot's `wal_status`, when it was last queried.
    pub slot_state: Option<String>,
    /// The slot's `confirmed_flush_lsn`, when it was last queried.
    pub confirmed_flush_lsn: Option<String>,
    /// The maintenance of the pipeline's tables.
    pub maintenance: MaintenanceSummary,
    /// Whether `/ready` answers 200.
    pub ready: bool,
    /// From which durations are computed.
    #[serde(skip)]
    pub moments: Moments,
}

/// The lag of a pipeline, in a form from which a later reader computes the lag at that time, also if the pipeline has
/// halted since.
#[derive(Clone, Copy, Debug, Default)]
pub enum Lag {
    /// All known events are published or parked.
    #[default]
    None,
    /// The lag grows with time.
    Growing {
        /// The lag when it was measured.
        was: Duration,
        /// When the lag was measured.
        at: Instant,
    },
}

impl Lag {
    /// A growing lag with the value `was` now; [`Lag::None`] if that is zero.
    pub fn growing(was: Duration) -> Self {
        if was.is_zero() { Self::None } else { Self::Growing { was, at: Instant::now() } }
    }

    /// The lag at `now`.
    pub fn at(self, now: Instant) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Growing { was, at } => was.saturating_add(now.saturating_duration_since(at)),
        }
    }
}

/// The newest snapshot and the newest publications, shared by the pipeline and the readers.
#[derive(Clone, Default, Debug)]
pub struct StatusHandle {
    snapshot: Arc<Mutex<Snapshot>>,
    publications: Publications,
}

impl StatusHandle {
    /// The initial status of the pipeline `name`, of its first shard.
    pub fn new(name: &str) -> Self {
        Self::of(&PipelineKey::first(name))
    }

    /// The initial status of a shard of a pipeline.
    pub fn of(key: &PipelineKey) -> Self {
        let snapshot = Snapshot { key: key.clone(), ..Snapshot::default() };
        let publications = Publications::default();
        Self { snapshot: Arc::new(Mutex::new(snapshot)), publications }
    }

    /// The same, and the process remembers where the newest events of the pipeline were published: at most `changes`
    /// ([`Publications::new`]).
    #[must_use]
    pub fn remembering(mut self, changes: u32) -> Self {
        self.publications = Publications::new(changes);
        self
    }

    /// Where the newest events were published, as far as that is remembered.
    pub fn publications(&self) -> &Publications {
        &self.publications
    }

    /// Whether both handles are of the same pipeline of this process.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.snapshot, &other.snapshot)
    }

    /// Changes the snapshot.
    pub fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.snapshot.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The newest snapshot, with durations computed for the time of the call.
    pub fn read(&self) -> Snapshot {
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let now = Instant::now();
        let since =
            |at: Option<Instant>| at.map(|at| now.saturating_duration_since(at).as_secs_f64());
        snapshot.lag_seconds = snapshot.moments.lag.at(now).as_secs_f64();
        snapshot.source_contact_seconds = since(snapshot.moments.source_contact_at);
        snapshot.maintenance.runs.compute(now);
        if let Some(retention) = &mut snapshot.maintenance.retention {
            retention.runs.compute(now);
        }
        if let Some(logs) = &mut snapshot.maintenance.event_logs {
            logs.runs.compute(now);
        }
        for inboxes in &mut snapshot.maintenance.inboxes {
            inboxes.runs.compute(now);
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_grows_though_nobody_writes_the_board() {
        let status_handle = StatusHandle::new("orders");
        assert_eq!(status_handle.read().lag_seconds.to_bits(), 0.0_f64.to_bits());
        status_handle
            .update(|snapshot| snapshot.moments.lag = Lag::growing(Duration::from_secs(7)));
        let (first, second) = (status_handle.read().lag_seconds, status_handle.read().lag_seconds);
        assert!(first >= 7.0 && second > first, "{first} {second}");
        assert_eq!(Lag::growing(Duration::ZERO).at(Instant::now()), Duration::ZERO);
    }

    #[test]
    fn the_last_contact_is_told_once_there_was_one() {
        let status_handle = StatusHandle::new("orders");
        assert_eq!(status_handle.read().source_contact_seconds, None);
        status_handle.update(|snapshot| snapshot.moments.source_contact_at = Some(Instant::now()));
        assert!(status_handle.read().source_contact_seconds.is_some_and(|seconds| seconds < 60.0));
    }
}
