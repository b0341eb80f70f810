//! The description of a polled table: names, the columns of the rows' status, and the policy for attempts. Plain data.

use crate::names::TableName;
use postrider_core::zone::Zone;
use std::time::Duration;

/// How one outbox table is polled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PollSpec {
    /// The pipeline: one relay at a time polls for it.
    pub pipeline: String,
    /// The outbox.
    pub table: TableName,
    /// The event's id: the table's key.
    pub id: String,
    /// The aggregate's type.
    pub aggregate_type: String,
    /// The aggregate's id.
    pub aggregate_id: String,
    /// When the event happened: the order, if the id is not a number.
    pub time: Option<String>,
    /// Records get this time as their timestamp, if a broker accepts it.
    pub stamps: bool,
    /// The columns of a row's status.
    pub marks: RowStatus,
    /// A published row is deleted, whatever the layout would write (`poll.mark = "delete"`).
    pub delete: bool,
    /// A failed row holds back the later ones of its aggregate (`parking.on_poison = "block_key"`).
    pub block_key: bool,
    /// Failures after which there is no further attempt, if the table does not say so itself.
    pub attempts_max: u32,
    /// The pause after a failure.
    pub backoff: Backoff,
    /// The zone of columns without one.
    pub zone: Option<Zone>,
}

/// The pause after the n-th failure: `min(n, steps_max)` steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// One step.
    pub step: Duration,
    /// The most steps.
    pub steps_max: u32,
}

impl Backoff {
    /// As layout `commerce` writes it: `least(attempts + 1, 8) * interval '30 seconds'`.
    pub const DEFAULT: Self = Self { step: Duration::from_secs(30), steps_max: 8 };

    /// The pause after `failures`.
    pub fn after(self, failures: u32) -> Duration {
        self.step.saturating_mul(failures.min(self.steps_max))
    }

    /// The same in SQL, after `failures`, an expression.
    pub(super) fn sql(self, failures: &str) -> String {
        format!(
            "least({failures}, {}) * interval '{} milliseconds'",
            self.steps_max,
            self.step.as_millis()
        )
    }
}

/// How a row records its status: the names of the columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowStatus {
    /// There is no status column: every row in the table is unpublished, and a published row is deleted.
    Delete,
    /// A time, NULL until the row is published.
    PublishedAt {
        /// `timestamptz`
        published_at: String,
    },
    /// Layout `commerce`.
    Commerce {
        /// `timestamptz`, NULL until published.
        processed_at: String,
        /// Failures.
        attempts: String,
        /// No attempt before this time.
        available_at: String,
        /// The last failure, as text.
        last_error: String,
        /// The table to which a row is moved that has failed more than [`PollSpec::attempts_max`] times.
        dlq: TableName,
    },
    /// Layout `gcx`.
    Gcx {
        /// `pending`, `published`, `failed`.
        status: String,
        /// Failures.
        retry_count: String,
        /// Failures after which the status is `failed`.
        max_retries: String,
        /// `timestamptz`
        published_at: String,
        /// Not published after this time.
        expires_at: String,
    },
    /// Layout `sqlgarden`.
    Sqlgarden {
        /// `PENDING`, `PUBLISHING`, `PUBLISHED`, `FAILED`.
        status: String,
        /// Attempts, including the successful one.
        attempt_count: String,
        /// The time of the last attempt.
        last_attempt_at: String,
    },
}

impl RowStatus {
    /// `adr30`'s names.
    pub fn adr30() -> Self {
        Self::PublishedAt { published_at: "published_at".to_owned() }
    }

    /// `commerce`'s names, for this table: the dead-letter table is beside it and named `…_dlq`.
    pub fn commerce(table: &TableName) -> Self {
        Self::Commerce {
            processed_at: "processed_at".to_owned(),
            attempts: "attempts".to_owned(),
            available_at: "available_at".to_owned(),
            last_error: "last_error".to_owned(),
            dlq: TableName::new(table.schema.clone(), format!("{}_dlq", table.name)),
        }
    }

    /// `gcx`'s names.
    pub fn gcx() -> Self {
        Self::Gcx {
            status: "status".to_owned(),
            retry_count: "retry_count".to_owned(),
            max_retries: "max_retries".to_owned(),
            published_at: "published_at".to_owned(),
            expires_at: "expires_at".to_owned(),
        }
    }

    /// `sqlgarden`'s names.
    pub fn sqlgarden() -> Self {
        Self::Sqlgarden {
            status: "status".to_owned(),
            attempt_count: "attempt_count".to_owned(),
            last_attempt_at: "last_attempt_at".to_owned(),
        }
    }

    /// The columns that the table must have.
    pub(super) fn columns(&self) -> Vec<&str> {
        let columns: [Option<&String>; 5] = match self {
            Self::Delete => [None; 5],
            Self::PublishedAt { published_at } => [Some(published_at), None, None, None, None],
            Self::Commerce { processed_at, attempts, available_at, last_error, dlq: _ } => {
                [Some(processed_at), Some(attempts), Some(available_at), Some(last_error), None]
            }
            Self::Gcx { status, retry_count, max_retries, published_at, expires_at } => {
                [status, retry_count, max_retries, published_at, expires_at].map(Some)
            }
            Self::Sqlgarden { status, attempt_count, last_attempt_at } => {
                [Some(status), Some(attempt_count), Some(last_attempt_at), None, None]
            }
        };
        columns.into_iter().flatten().map(String::as_str).collect()
    }

    /// The type of one of the columns, as in the layouts' own SQL.
    pub(crate) fn column_type(&self, column: &str) -> &'static str {
        match self {
            Self::Commerce { attempts, .. } if column == attempts => "smallint NOT NULL DEFAULT 0",
            Self::Commerce { last_error, .. } if column == last_error => "text",
            Self::Commerce { available_at, .. } if column == available_at => {
                "timestamptz NOT NULL DEFAULT now()"
            }
            Self::Gcx { status, .. } if column == status => {
                "varchar(20) NOT NULL DEFAULT 'pending'"
            }
            Self::Gcx { retry_count, .. } if column == retry_count => "smallint NOT NULL DEFAULT 0",
            Self::Gcx { max_retries, .. } if column == max_retries => "smallint NOT NULL DEFAULT 5",
            Self::Sqlgarden { status, .. } if column == status => "text NOT NULL DEFAULT 'PENDING'",
            Self::Sqlgarden { attempt_count, .. } if column == attempt_count => {
                "integer NOT NULL DEFAULT 0"
            }
            Self::Delete
            | Self::PublishedAt { .. }
            | Self::Commerce { .. }
            | Self::Gcx { .. }
            | Self::Sqlgarden { .. } => "timestamptz",
        }
    }

    /// The column that counts failures.
    pub(super) fn failures(&self) -> Option<&str> {
        match self {
            Self::Delete | Self::PublishedAt { .. } => None,
            Self::Commerce { attempts, .. } => Some(attempts),
            Self::Gcx { retry_count, .. } => Some(retry_count),
            Self::Sqlgarden { attempt_count, .. } => Some(attempt_count),
        }
    }
}

impl PollSpec {
    /// Whether a failure is recorded in the row itself. Otherwise the event has to be parked, and its row settled as
    /// moved.
    pub fn keeps_failures(&self) -> bool {
        self.marks.failures().is_some()
    }

    /// Whether rows are deleted.
    pub fn deletes(&self) -> bool {
        match &self.marks {
            RowStatus::Delete | RowStatus::Commerce { .. } => true,
            RowStatus::PublishedAt { .. } | RowStatus::Gcx { .. } | RowStatus::Sqlgarden { .. } => {
                self.delete
            }
        }
    }

    /// Whether claims find expired rows and set their status.
    pub fn expires(&self) -> bool {
        matches!(self.marks, RowStatus::Gcx { .. })
    }

    /// The table to which rows are moved that have failed for good.
    pub fn dlq(&self) -> Option<&TableName> {
        match &self.marks {
            RowStatus::Commerce { dlq, .. } => Some(dlq),
            RowStatus::Delete
            | RowStatus::PublishedAt { .. }
            | RowStatus::Gcx { .. }
            | RowStatus::Sqlgarden { .. } => None,
        }
    }

    /// The columns that a status `UPDATE` writes.
    pub(crate) fn written(&self) -> Vec<&str> {
        let columns: [Option<&String>; 5] = match &self.marks {
            RowStatus::Delete => [None; 5],
            RowStatus::PublishedAt { published_at } => {
                [Some(published_at).filter(|_| !self.delete), None, None, None, None]
            }
            RowStatus::Commerce { processed_at, attempts, available_at, last_error, dlq: _ } => [
                Some(processed_at).filter(|_| !self.delete),
                Some(attempts),
                Some(available_at),
                Some(last_error),
                None,
            ],
            RowStatus::Gcx { status, retry_count, published_at, max_retries: _, expires_at: _ } => {
                [
                    Some(status),
                    Some(retry_count),
                    Some(published_at).filter(|_| !self.delete),
                    None,
                    None,
                ]
            }
            RowStatus::Sqlgarden { status, attempt_count, last_attempt_at } => {
                [Some(status), Some(attempt_count), Some(last_attempt_at), None, None]
            }
        };
        columns.into_iter().flatten().map(String::as_str).collect()
    }

    /// Every column that SQL names.
    pub(crate) fn columns(&self) -> Vec<&str> {
        let mut columns = vec![&*self.id, &*self.aggregate_type, &*self.aggregate_id];
        columns.extend(self.time.as_deref());
        columns.extend(self.marks.columns());
        columns
    }
}
