//! What a pipeline says of itself: the snapshot behind `/status`, `/ready` and `postrider status`.
//!
//! Plain words. The driver writes a snapshot, the admin endpoint and the command line read it, and neither calls the
//! other.

use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a pipeline is doing. Exactly one of them holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineState {
    /// Connecting for the first time.
    #[default]
    Starting,
    /// Streaming, and close behind the server.
    Streaming,
    /// Polling the table, and close behind it.
    Polling,
    /// Streaming, with a backlog.
    CatchingUp,
    /// Another process holds the slot: standing by.
    StandingBy,
    /// The broker can't be reached or can't take records: the intake is shut.
    BrokerDown,
    /// The database can't be reached.
    SourceDown,
    /// As many rows are parked as `parking.rows_max` allows: nothing is read until there is room.
    ParkingFull,
    /// Told to stop: waiting for what is in flight.
    Draining,
    /// Stopped for an operator.
    Halted,
    /// Ended, cleanly.
    Stopped,
}

impl PipelineState {
    /// Every state, for the metric that is 1 for one of them.
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
            Self::Halted => "halted",
            Self::Stopped => "stopped",
        }
    }
}

/// The events of a pipeline that are set aside.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ParkedSummary {
    /// Refused, and tried again.
    pub waiting: u64,
    /// Behind an earlier event of their aggregate.
    pub behind: u64,
    /// Their time has not come.
    pub due: u64,
    /// Only a person moves them.
    pub dead: u64,
    /// Aggregates that are held up.
    pub aggregates: u64,
    /// Whether `parking.rows_max` is reached, so that the intake is shut.
    pub full: bool,
    /// How long the oldest has been parked, as last seen; 0 where none is.
    pub oldest_seconds: f64,
    /// The first events that others wait behind, at most ten.
    pub heads: Vec<Head>,
}

/// A parked event that others may wait behind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Head {
    /// Its position.
    pub position: String,
    /// Its state.
    pub state: &'static str,
    /// Tries that were refused.
    pub attempts: u32,
    /// Seconds until the next try; `None` when only a person moves it.
    pub retry_in_seconds: Option<f64>,
}

/// Changes that were skipped on purpose, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Skipped {
    /// Updates, deletes and truncations.
    pub not_inserts: u64,
    /// Rows of other tables, and logical messages of other prefixes.
    pub others: u64,
    /// Events whose time (`expires_at`) was over.
    pub expired: u64,
    /// Logical messages of our prefix that are not transactional.
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

    /// All of them.
    pub fn total(self) -> u64 {
        self.reasons().iter().map(|(_, count)| count).sum()
    }
}

/// One look at one pipeline.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Snapshot {
    /// The pipeline's name.
    pub pipeline: String,
    /// The database it reads: hosts and name, without login. With the slot it tells pipelines of one name apart.
    pub source: String,
    /// Its replication slot.
    pub slot: String,
    /// What its position belongs to: mode, destination, table and layout; `None` before a start has compared it.
    pub belongs_to: Option<String>,
    /// What it is doing.
    pub state: PipelineState,
    /// Why, in one line, where the state is not a good one.
    pub reason: Option<String>,
    /// The code of the halt, where halted.
    pub halt_code: Option<&'static str>,
    /// What mends it, where something needs mending.
    pub hint: Option<String>,
    /// The position below which every event is resolved.
    pub watermark: String,
    /// The highest position received.
    pub received: String,
    /// Events handed to the broker without a report.
    pub in_flight_events: u64,
    /// Their bytes.
    pub in_flight_bytes: u64,
    /// Events published since the process started.
    pub published_total: u64,
    /// Events parked since the process started.
    pub parked_total: u64,
    /// Events that are parked.
    pub parked: ParkedSummary,
    /// Changes skipped on purpose since the process started.
    pub skipped_total: u64,
    /// The same by reason.
    pub skipped: Skipped,
    /// Reconnects to the source since the process started.
    pub source_reconnects_total: u64,
    /// Producers thrown away since the process started.
    pub sink_resets_total: u64,
    /// Seconds since the commit of the oldest event that is not published or parked; 0 when there is none. While the
    /// database can't be read it is not known what was committed: then at least the seconds since it was read last.
    pub lag_seconds: f64,
    /// Seconds since the database last answered; `None` before its first answer.
    pub source_contact_seconds: Option<f64>,
    /// Bytes of WAL between the server's end and the watermark, as last seen.
    pub lag_bytes: u64,
    /// Bytes of WAL the slot holds back, as last seen.
    pub slot_retained_bytes: Option<u64>,
    /// Bytes of WAL it may hold back, where `source.wal_retain_max` says so.
    pub slot_retain_max_bytes: Option<u64>,
    /// Bytes of WAL that may still be written before the slot is lost, where the server sets a limit.
    pub slot_safe_bytes: Option<i64>,
    /// `wal_status` of the slot as last seen.
    pub slot_state: Option<String>,
    /// The slot's `confirmed_flush_lsn` as last seen.
    pub confirmed_flush_lsn: Option<String>,
    /// Whether `/ready` says 200.
    pub ready: bool,
    /// When the loop last turned; not part of the JSON.
    #[serde(skip)]
    pub turned_at: Option<Instant>,
    /// What `lag_seconds` is made from when the snapshot is read.
    #[serde(skip)]
    pub lag: Lag,
    /// What `source_contact_seconds` is made from.
    #[serde(skip)]
    pub source_contact_at: Option<Instant>,
}

/// How far behind a pipeline is, so that whoever reads it later knows it then: the driver may have halted meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub enum Lag {
    /// Everything that is known of is published or parked.
    #[default]
    None,
    /// It was so long when it was measured, and grows.
    Growing {
        /// The lag at that moment.
        was: Duration,
        /// The moment.
        at: Instant,
    },
}

impl Lag {
    /// A lag that is so long now, and grows; none where it is zero.
    pub fn growing(was: Duration) -> Self {
        if was.is_zero() { Self::None } else { Self::Growing { was, at: Instant::now() } }
    }

    /// How long it is at `now`.
    pub fn at(self, now: Instant) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Growing { was, at } => was.saturating_add(now.saturating_duration_since(at)),
        }
    }
}

/// A place for the newest snapshot, shared by its writer and its readers.
#[derive(Clone, Default, Debug)]
pub struct StatusHandle(Arc<Mutex<Snapshot>>);

impl StatusHandle {
    /// A status for the pipeline `name`.
    pub fn new(name: &str) -> Self {
        Self(Arc::new(Mutex::new(Snapshot { pipeline: name.to_owned(), ..Snapshot::default() })))
    }

    /// Changes the snapshot in place.
    pub fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The newest snapshot, with what has passed since it was written.
    pub fn read(&self) -> Snapshot {
        let mut snapshot = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let now = Instant::now();
        snapshot.lag_seconds = snapshot.lag.at(now).as_secs_f64();
        let contact = snapshot.source_contact_at;
        snapshot.source_contact_seconds =
            contact.map(|at| now.saturating_duration_since(at).as_secs_f64());
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
        status_handle.update(|snapshot| snapshot.lag = Lag::growing(Duration::from_secs(7)));
        let (first, second) = (status_handle.read().lag_seconds, status_handle.read().lag_seconds);
        assert!(first >= 7.0 && second > first, "{first} {second}");
        assert_eq!(Lag::growing(Duration::ZERO).at(Instant::now()), Duration::ZERO);
    }

    #[test]
    fn the_last_contact_is_told_once_there_was_one() {
        let status_handle = StatusHandle::new("orders");
        assert_eq!(status_handle.read().source_contact_seconds, None);
        status_handle.update(|snapshot| snapshot.source_contact_at = Some(Instant::now()));
        assert!(status_handle.read().source_contact_seconds.is_some_and(|seconds| seconds < 60.0));
    }
}
