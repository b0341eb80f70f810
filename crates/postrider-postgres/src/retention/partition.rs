//! Takes whole partitions out of a table: detaches them, then drops them or attaches them to the archive.
//!
//! ```text
//! attached ─ rows are read ─▶ marked ─▶ DETACH … CONCURRENTLY ─▶ detached ─ rows are read again ─▶ dropped
//!                                              │ interrupted           │ a row is needed        └▶ archived
//!                                              ▼                       ▼
//!                                          FINALIZE              attached again
//! ```
//!
//! The bounds of a partition say when it may be looked at; its rows decide. Between the first look and the end of the
//! detach a transaction may have added a row, so the second look is the one that counts: nobody can write to the table
//! then except by its own name, which a lock excludes. A process that ends at any place leaves a partition, or a table
//! with the comment, which the next pass finds in the catalog.

use super::hold::Hold;
use super::limit;
use super::root::{Child, PartitionedRoot, mark};
use super::rows::HeldRows;
use crate::names::literal;
use pg_replication::error::{SourceError, SqlState};
use std::time::Duration;
use tokio_postgres::Client;

/// While the rows of a partition are read, nobody waits for this session.
pub(super) const READ_LIMITS: &str = "SET statement_timeout = '5min'";

/// While a partition is detached, this session waits for transactions that use the table, and nobody waits for this
/// session.
const DETACH_LIMITS: &str = "SET statement_timeout = '30s'; SET lock_timeout = '10s'";

/// `FINALIZE` waits for older snapshots with its locks. It ends before the server's `deadlock_timeout` (1 s), so that a
/// statement that waits for these locks never fails.
const FINALIZE_LIMITS: &str = "SET statement_timeout = '700ms'; SET lock_timeout = '300ms'";

/// Attempts of a `FINALIZE`, and the pause between two of them: they take 10 seconds together.
const FINALIZE_ATTEMPTS: u32 = 10;
const FINALIZE_PAUSE: Duration = Duration::from_millis(300);

/// Whether all rows of a partition may be removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ready {
    /// Yes.
    Yes,
    /// No: rows that are old enough and are kept, and the number of rows that are not old enough.
    Held(HeldRows, u64),
    /// Nothing of the table may be removed.
    Blocked(Vec<Hold>),
}

/// What became of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It was dropped.
    Dropped,
    /// It is a partition of the archive.
    Archived,
    /// It is a partition of the table, as before.
    Kept(Ready),
}

/// Marks a partition with a comment, and detaches it.
pub(super) async fn detach(
    client: &Client,
    root: &PartitionedRoot,
    child: &Child,
) -> Result<(), SourceError> {
    let (name, table) = (&root.name, &child.name);
    let failed = |e| SourceError::control(format!("detach partition {table}"), e);
    let comment = literal(&format!("{}{}", mark(name), child.bound));
    let comment = format!("COMMENT ON TABLE {table} IS {comment}");
    client.batch_execute(&comment).await.map_err(failed)?;
    client.batch_execute(DETACH_LIMITS).await.map_err(failed)?;
    let sql = format!("ALTER TABLE {name} DETACH PARTITION {table} CONCURRENTLY");
    let detached = client.batch_execute(&sql).await.map_err(failed);
    limit(client).await?;
    detached
}

/// Ends a `DETACH CONCURRENTLY` that was interrupted.
pub(super) async fn finalize(
    client: &Client,
    root: &PartitionedRoot,
    child: &Child,
) -> Result<(), SourceError> {
    let (name, table) = (&root.name, &child.name);
    let failed = |e| SourceError::control(format!("finish the detach of partition {table}"), e);
    client.batch_execute(FINALIZE_LIMITS).await.map_err(failed)?;
    let sql = format!("ALTER TABLE {name} DETACH PARTITION {table} FINALIZE");
    let mut done = client.batch_execute(&sql).await.map_err(failed);
    for _ in 1..FINALIZE_ATTEMPTS {
        // The snapshots that were waited for may be gone now, and newer ones do not count.
        if !done.as_ref().is_err_and(is_waiting) {
            break;
        }
        tokio::time::sleep(FINALIZE_PAUSE).await;
        done = client.batch_execute(&sql).await.map_err(failed);
    }
    limit(client).await?;
    done
}

/// Makes a detached table a partition again. Its constraint, which the detach has left, proves the bounds.
pub(super) async fn attach_again(
    client: &Client,
    root: &PartitionedRoot,
    child: &Child,
) -> Result<(), SourceError> {
    let (name, table) = (&root.name, &child.name);
    let failed = |e| SourceError::control(format!("attach partition {table} again"), e);
    let sql = format!(
        "BEGIN; ALTER TABLE {name} ATTACH PARTITION {table} {bound}; COMMENT ON TABLE {table} IS NULL; COMMIT",
        bound = child.bound
    );
    let Err(error) = client.batch_execute(&sql).await else { return Ok(()) };
    drop(client.batch_execute("ROLLBACK").await);
    Err(failed(error))
}

/// A statement has waited for another transaction for as long as it may.
pub(crate) fn is_waiting(error: &SourceError) -> bool {
    error.sqlstate().is_some_and(|state| {
        state == SqlState::LOCK_NOT_AVAILABLE || state == SqlState::QUERY_CANCELED
    })
}
