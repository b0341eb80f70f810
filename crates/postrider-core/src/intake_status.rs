//! The status of an intake, which stores messages in an inbox: the snapshot that `/status` and `/ready` show.

use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Partitions that are blocked and are listed; further ones are counted.
pub const BLOCKED_MAX: usize = 100;

/// The state of an intake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IntakeState {
    /// Connecting for the first time.
    #[default]
    Starting,
    /// Messages are stored as they come.
    Storing,
    /// Other processes read: the group gives this one no partition, or it is not its turn. Or no topic can be read, or
    /// messages of another process come first, and then the reason says so.
    StandingBy,
    /// The inbox has as many messages that wait as it may have: nothing is read.
    Full,
    /// The broker can't be reached, or refuses requests.
    BrokerDown,
    /// The database can't be reached, or refuses statements.
    DatabaseDown,
    /// The address of the receiver of webhooks is not available.
    ListenerDown,
    /// Every partition waits for a decision of a person.
    Blocked,
    /// Ended on request.
    Stopped,
    /// Ended by a bug in Postrider.
    Failed,
}

impl IntakeState {
    /// Every state, for the metric that is 1 for the current state.
    pub const ALL: &'static [Self] = &[
        Self::Starting,
        Self::Storing,
        Self::StandingBy,
        Self::Full,
        Self::BrokerDown,
        Self::DatabaseDown,
        Self::ListenerDown,
        Self::Blocked,
        Self::Stopped,
        Self::Failed,
    ];

    /// The name, as in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Storing => "storing",
            Self::StandingBy => "standing_by",
            Self::Full => "full",
            Self::BrokerDown => "broker_down",
            Self::DatabaseDown => "database_down",
            Self::ListenerDown => "listener_down",
            Self::Blocked => "blocked",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// A partition that is not read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BlockedPartition {
    /// The topic.
    pub topic: String,
    /// The number of the partition.
    pub partition: i32,
    /// A short name of the reason.
    pub code: &'static str,
    /// The reason.
    pub reason: String,
    /// What fixes it.
    pub hint: String,
    /// Whether a person has to decide. Otherwise the brokers have no answer about the partition, and are asked again.
    pub needs_decision: bool,
}

/// Numbers of messages since the start of an intake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct IntakeTotals {
    /// Messages that were stored since the start.
    pub stored_total: u64,
    /// Messages that were known before, since the start.
    pub repeated_total: u64,
    /// Messages that were stored as dead, since the start.
    pub dead_total: u64,
    /// Requests that were answered with another status than 204 since the start; only of a receiver of webhooks.
    pub refused_total: u64,
    /// Messages that the broker has deleted before they were stored, at most, as found since the start; not of Kafka,
    /// whose partition is blocked then.
    pub lost_total: u64,
}

/// An intake at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct IntakeSnapshot {
    /// The name of the intake in the configuration.
    pub intake: String,
    /// The inbox that it stores messages in.
    pub inbox: String,
    /// `kafka`, `nats`, `rabbitmq`, `redis` or `webhook`.
    pub source: &'static str,
    /// The state.
    pub state: IntakeState,
    /// Whether `/ready` answers 200 for this intake.
    pub ready: bool,
    /// Why the intake stores nothing.
    pub reason: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Partitions that are read.
    pub partitions: usize,
    /// Partitions that wait for a decision of a person, or for an answer of the brokers, at most [`BLOCKED_MAX`].
    pub blocked: Vec<BlockedPartition>,
    /// Number of all of them.
    pub blocked_total: usize,
    /// Numbers since the start.
    #[serde(flatten)]
    pub totals: IntakeTotals,
    /// Records of all partitions that are read and not stored yet; `None` if it is not known.
    pub lag_records: Option<u64>,
    /// Messages of the inbox that wait to be processed; `None` if they were not counted.
    pub pending: Option<u64>,
    /// Seconds since a batch was last stored; `None`: none was.
    pub last_stored_seconds: Option<f64>,
    /// When a batch was last stored.
    #[serde(skip)]
    pub stored_at: Option<Instant>,
    /// When the loop last turned.
    #[serde(skip)]
    pub turned_at: Option<Instant>,
}

/// A loop that has not turned for longer is stuck: longer than any step of a healthy one.
pub const TURN_MAX: Duration = Duration::from_mins(2);

impl IntakeSnapshot {
    /// Whether the loop turns, in one line if it does not. `started`: when the process began.
    pub fn stuck(&self, started: Instant, now: Instant) -> Option<String> {
        match self.state {
            IntakeState::Stopped | IntakeState::Failed => None,
            IntakeState::Starting
            | IntakeState::Storing
            | IntakeState::StandingBy
            | IntakeState::Full
            | IntakeState::BrokerDown
            | IntakeState::DatabaseDown
            | IntakeState::ListenerDown
            | IntakeState::Blocked => {
                let since = now.saturating_duration_since(self.turned_at.unwrap_or(started));
                let seconds = since.as_secs();
                (since > TURN_MAX).then(|| format!("the loop has not turned for {seconds} s"))
            }
        }
    }

    /// Why the intake is not ready, in one line; `None` if it is.
    pub fn not_ready(&self, started: Instant, now: Instant) -> Option<String> {
        if let Some(stuck) = self.stuck(started, now) {
            return Some(stuck);
        }
        match self.state {
            IntakeState::Storing | IntakeState::StandingBy if self.blocked_total > 0 => {
                Some(format!("{} partitions are blocked", self.blocked_total))
            }
            IntakeState::Storing | IntakeState::StandingBy => None,
            IntakeState::Starting
            | IntakeState::Full
            | IntakeState::BrokerDown
            | IntakeState::DatabaseDown
            | IntakeState::ListenerDown
            | IntakeState::Blocked
            | IntakeState::Stopped
            | IntakeState::Failed => {
                let mut line = self.state.name().to_owned();
                if let Some(reason) = &self.reason {
                    line.push_str(": ");
                    line.push_str(&reason.replace(['\n', '\r'], " "));
                }
                Some(line)
            }
        }
    }
}

/// The newest snapshot, shared by the intake and its readers.
#[derive(Clone, Default, Debug)]
pub struct IntakeHandle(Arc<Mutex<IntakeSnapshot>>);

impl IntakeHandle {
    /// The first snapshot of an intake.
    pub fn new(intake: &str, inbox: &str, source: &'static str) -> Self {
        Self(Arc::new(Mutex::new(IntakeSnapshot {
            intake: intake.to_owned(),
            inbox: inbox.to_owned(),
            source,
            ..IntakeSnapshot::default()
        })))
    }

    /// Changes the snapshot.
    pub fn update(&self, change: impl FnOnce(&mut IntakeSnapshot)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The newest snapshot, with durations computed for the time of the call.
    pub fn read(&self) -> IntakeSnapshot {
        let mut snapshot = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let since = |at: Instant| Instant::now().saturating_duration_since(at).as_secs_f64();
        snapshot.last_stored_seconds = snapshot.stored_at.map(since);
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intake_is_ready_while_it_stores_and_nothing_is_blocked() {
        let now = Instant::now();
        let handle = IntakeHandle::new("mail", "mail", "kafka");
        let ready = || handle.read().not_ready(now, now).is_none();
        assert!(!ready());
        handle.update(|snapshot| snapshot.state = IntakeState::Storing);
        assert!(ready());
        handle.update(|snapshot| snapshot.blocked_total = 1);
        assert!(!ready());
        handle.update(|snapshot| {
            (snapshot.blocked_total, snapshot.state) = (0, IntakeState::DatabaseDown);
            snapshot.reason = Some("no\nroute".to_owned());
        });
        let why = handle.read().not_ready(now, now);
        assert_eq!(why.as_deref(), Some("database_down: no route"));
    }

    #[test]
    fn a_loop_that_does_not_turn_is_stuck_and_one_that_has_ended_is_not() {
        let start = Instant::now();
        let later = start + TURN_MAX + Duration::from_secs(1);
        let mut snapshot = IntakeSnapshot { state: IntakeState::Storing, ..Default::default() };
        assert!(snapshot.stuck(start, start).is_none());
        assert!(snapshot.stuck(start, later).is_some());
        assert!(snapshot.not_ready(start, later).is_some());
        snapshot.turned_at = Some(later);
        assert!(snapshot.stuck(start, later).is_none());
        snapshot.state = IntakeState::Stopped;
        snapshot.turned_at = None;
        assert!(snapshot.stuck(start, later).is_none());
    }
}
