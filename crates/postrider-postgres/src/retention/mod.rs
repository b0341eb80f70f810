//! Retention of the outbox table: which rows may be removed, and the statements that delete them, move them to an
//! archive, or detach and drop their partitions.
//!
//! A row is removed only if every [`Guard`] allows it, and only while nothing blocks the whole table ([`Hold`]). Both
//! are read in the transaction that removes, after the cursor rows of all pipelines that read the table were locked
//! (`FOR KEY SHARE`). What makes rows needed again, the begin of a repair and of a replay from the table, locks the
//! same rows `FOR UPDATE`, so it either waits for the removal, or the removal sees it.
//!
//! Whether a row is published is decided as a repair decides it. The row has no position; it has the number of its
//! transaction (`xmin`), and the cursor row has a snapshot all of whose transactions are resolved. A number below the
//! `xmin` of that snapshot belongs to a transaction that had ended when the snapshot was taken, whatever savepoints it
//! had. A number above it counts as not published, also if it is only that of a savepoint, of an update, or of a
//! transaction that was rolled back. No age takes the place of this rule.
//!
//! The statements may be run by any number of processes at the same time, and repeated after a crash at any place. They
//! check no owner's epoch.

mod convert;
mod exclusion;
mod guard;
mod hold;
mod horizon;
mod partition;
mod pass;
mod rights;
mod root;
mod rows;
mod survey;
mod table;

pub use convert::{ConversionPlan, ConversionRequest, ConversionStep, Refused, plan_conversion};
pub use exclusion::DetachExclusion;
pub use guard::{Guard, RowGuard};
pub use hold::Hold;
pub use horizon::{Horizon, Reader, ReferenceLog};
pub use partition::{Ready, Taken};
pub use pass::{PassEvent, PassFuture, PassReport, pass};
pub use rights::RetentionRight;
pub use root::{Child, PartitionState, PartitionedRoot, Width};
pub use rows::{Archive, BlockRange, Chunk, HeldRows};
pub use survey::{Survey, survey};
pub use table::RetentionTable;

use crate::names::TableName;
use crate::poll::PollSpec;
use pg_replication::error::SourceError;
use std::time::Duration;
use tokio_postgres::Client;

/// Limits of the session. `lock_timeout`: also for rows that another session has locked. Whatever is waited for, it can
/// be done later; and who takes a pipeline over waits for the lock on its cursor row.
const LIMITS: &str = "SET statement_timeout = '3s'; SET lock_timeout = '500ms'";

/// Limits the statements of this session.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn limit(client: &Client) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("set up the session of retention", e);
    client.batch_execute(LIMITS).await.map_err(failed)
}

/// From when on `keep` counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum KeepFrom {
    /// The time of publication, if the row has it; otherwise the time column.
    #[default]
    Published,
    /// The layout's time column.
    Time,
    /// The layout's time of expiry.
    Expiry,
}

/// What becomes of rows that are not kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RetentionAction {
    /// They are deleted.
    #[default]
    Delete,
    /// They are moved to another table: whole partitions by detaching and attaching them, rows of a table that is not
    /// partitioned by copying.
    Archive,
    /// Their partitions are dropped.
    Drop,
}

/// `[pipelines.NAME.retention]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetentionSettings {
    /// How long published rows are kept; `None`: nothing is removed.
    pub keep: Option<Duration>,
    /// From when on.
    pub keep_from: KeepFrom,
    /// What becomes of them then.
    pub action: RetentionAction,
    /// The archive, for [`RetentionAction::Archive`].
    pub archive: Option<TableName>,
    /// How long partitions of the archive are kept, by the layout's time column; `None`: for ever.
    pub archive_keep: Option<Duration>,
    /// How wide new partitions of the outbox and of the archive are; `None`: none are created.
    pub width: Option<Width>,
    /// How many partitions of the outbox are created ahead of the current one.
    pub ahead: u32,
    /// Pause between two passes.
    pub interval: Duration,
    /// Rows that are deleted or moved in a second at most.
    pub rate: u32,
    /// A table of consumers with a column `expires_at`, whose expired rows are deleted.
    pub processed_events: Option<TableName>,
}

impl Default for RetentionSettings {
    fn default() -> Self {
        Self {
            keep: None,
            keep_from: KeepFrom::Published,
            action: RetentionAction::Delete,
            archive: None,
            archive_keep: None,
            width: None,
            ahead: 2,
            interval: Duration::from_mins(10),
            rate: 5000,
            processed_events: None,
        }
    }
}

/// The retention of one pipeline's outbox table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetentionRule {
    /// The table, with the states of its rows.
    pub table: PollSpec,
    /// `wal`, `poll` or `auto`.
    pub mode: &'static str,
    /// The layout's name.
    pub layout: String,
    /// Published rows get their layout's mark.
    pub marked: bool,
    /// The column of the layout's time of expiry, if it has one.
    pub expiry: Option<String>,
    /// How long rows are kept, and what becomes of them.
    pub settings: RetentionSettings,
}

/// An interval, as SQL.
pub(crate) fn interval(of: Duration) -> String {
    format!("interval '{} milliseconds'", of.as_millis())
}
