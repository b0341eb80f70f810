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
//!
//! While a partition is detached concurrently, no query of the table finds its rows. The stream needs no query. Polling
//! would not find a row that was added meanwhile, and the mark of a row that the stream has published could not be
//! written. So a partition of a table whose rows are marked is detached by one transaction, which excludes writers for
//! some milliseconds and first looks for rows without a mark ([`detach_published`]).

use super::hold::Hold;
use super::limit;
use super::root::{Child, PartitionedRoot, mark};
use super::rows::HeldRows;
use crate::names::{TableName, literal};
use pg_replication::error::{SourceError, SqlState};
use std::time::Duration;
use tokio_postgres::Client;

/// While the rows of a partition are read, nobody waits for this session.
pub(super) const READ_LIMITS: &str = "SET statement_timeout = '5min'";

/// While a partition is detached, this session waits for transactions that use the table, and nobody waits for this
/// session.
const DETACH_LIMITS: &str = "SET statement_timeout = '30s'; SET lock_timeout = '10s'";

/// While a `FINALIZE` waits for older snapshots, and while a partition is detached by one transaction, writers and
/// readers of the table wait for this session. It gives up before the server's `deadlock_timeout` (1 s), so that a
/// statement that waits for its locks never fails.
const EXCLUSIVE_LIMITS: &str = "SET statement_timeout = '700ms'; SET lock_timeout = '300ms'";

/// How long the search for rows without a mark may take before writers are excluded for it: half of the time for which
/// they may be.
const PROBE_LIMITS: &str = "SET statement_timeout = '350ms'; SET lock_timeout = '300ms'";

/// Attempts of a `FINALIZE`, which take 10 seconds together, and of such a transaction; the pause between two of them.
const FINALIZE_ATTEMPTS: u32 = 10;
const DETACH_ATTEMPTS: u32 = 5;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(300);

/// The constraint that repeats the bounds of a partition.
const BOUNDS: &str = "postrider_bounds";

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

/// Marks a partition with a comment, and detaches it. Its rows are in no query of the table from its beginning on.
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

/// Whether the search for a row (`o`) that meets `unpublished` is quick enough for [`detach_published`], which excludes
/// writers meanwhile: an index has the rows, or the partition is small. Nobody waits for this session.
pub(super) async fn is_found_quickly(
    client: &Client,
    child: &Child,
    unpublished: &str,
) -> Result<bool, SourceError> {
    let table = &child.name;
    let failed = |e| SourceError::control(format!("look for rows of {table} without a mark"), e);
    client.batch_execute(PROBE_LIMITS).await.map_err(failed)?;
    let sql = format!("SELECT EXISTS (SELECT FROM {table} AS o WHERE {unpublished})");
    let probed = client.query_one(&sql, &[]).await.map_err(failed);
    limit(client).await?;
    match probed {
        Ok(_) => Ok(true),
        Err(error) if error.sqlstate() == Some(SqlState::QUERY_CANCELED) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Marks a partition with a comment and detaches it, unless it has a row (`o`) that meets `unpublished`. Returns
/// whether it was detached. At every moment each such row is in the queries of the table.
pub(super) async fn detach_published(
    client: &Client,
    root: &PartitionedRoot,
    child: &Child,
    unpublished: &str,
) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("detach partition {}", child.name), e);
    client.batch_execute(EXCLUSIVE_LIMITS).await.map_err(failed)?;
    let mut done = try_detach(client, root, child, unpublished).await;
    for _ in 1..DETACH_ATTEMPTS {
        if !done.as_ref().is_err_and(is_waiting) {
            break;
        }
        tokio::time::sleep(ATTEMPT_PAUSE).await;
        done = try_detach(client, root, child, unpublished).await;
    }
    limit(client).await?;
    done
}

/// Adds the constraint with which the table is attached again, or to the archive, without reading its rows; a `DETACH
/// CONCURRENTLY` leaves one by itself. Nobody waits while the rows are compared with it.
pub(super) async fn add_bounds(client: &Client, child: &Child) -> Result<(), SourceError> {
    let table = &child.name;
    let failed = |e| SourceError::control(format!("bound the rows of partition {table}"), e);
    let sql = "SELECT pg_get_partition_constraintdef(to_regclass($1))";
    let row = client.query_one(sql, &[&table.to_string()]).await.map_err(failed)?;
    let Some(bounds) = row.try_get::<_, Option<String>>(0).map_err(failed)? else { return Ok(()) };
    let sql = format!(
        "ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {BOUNDS}, ADD CONSTRAINT {BOUNDS} CHECK ({bounds}) NOT VALID"
    );
    client.batch_execute(&sql).await.map_err(failed)?;
    client.batch_execute(READ_LIMITS).await.map_err(failed)?;
    let sql = format!("ALTER TABLE {table} VALIDATE CONSTRAINT {BOUNDS}");
    let validated = client.batch_execute(&sql).await.map_err(failed);
    limit(client).await?;
    validated
}

/// One attempt of [`detach_published`].
async fn try_detach(
    client: &Client,
    root: &PartitionedRoot,
    child: &Child,
    unpublished: &str,
) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("detach partition {}", child.name), e);
    let detached = detach_within(client, root, child, unpublished).await;
    let end = if matches!(detached, Ok(true)) { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await;
    detached.and_then(|detached| ended.map(|()| detached)).map_err(failed)
}

/// Begins a transaction that detaches the partition, if it may be detached. The table is locked before its partition,
/// as writers lock them.
async fn detach_within(
    client: &Client,
    root: &PartitionedRoot,
    child: &Child,
    unpublished: &str,
) -> Result<bool, tokio_postgres::Error> {
    let (name, table) = (&root.name, &child.name);
    let lock = format!(
        "BEGIN; LOCK TABLE ONLY {name} IN ACCESS EXCLUSIVE MODE; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
    );
    client.batch_execute(&lock).await?;
    let sql = format!("SELECT EXISTS (SELECT FROM {table} AS o WHERE {unpublished})");
    if client.query_one(&sql, &[]).await?.try_get(0)? {
        return Ok(false);
    }
    let comment = literal(&format!("{}{}", mark(name), child.bound));
    let detach = format!(
        "COMMENT ON TABLE {table} IS {comment}; ALTER TABLE {name} DETACH PARTITION {table}"
    );
    client.batch_execute(&detach).await?;
    Ok(true)
}

/// The statement that removes the constraint with the bounds of a partition, if there is one.
pub(super) fn drop_bounds(table: &TableName) -> String {
    format!("ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {BOUNDS}")
}

/// Ends a `DETACH CONCURRENTLY` that was interrupted.
pub(super) async fn finalize(
    client: &Client,
    root: &PartitionedRoot,
    child: &Child,
) -> Result<(), SourceError> {
    let (name, table) = (&root.name, &child.name);
    let failed = |e| SourceError::control(format!("finish the detach of partition {table}"), e);
    client.batch_execute(EXCLUSIVE_LIMITS).await.map_err(failed)?;
    let sql = format!("ALTER TABLE {name} DETACH PARTITION {table} FINALIZE");
    let mut done = client.batch_execute(&sql).await.map_err(failed);
    for _ in 1..FINALIZE_ATTEMPTS {
        // The snapshots that were waited for may be gone now, and newer ones do not count.
        if !done.as_ref().is_err_and(is_waiting) {
            break;
        }
        tokio::time::sleep(ATTEMPT_PAUSE).await;
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
        "BEGIN; ALTER TABLE {name} ATTACH PARTITION {table} {bound}; COMMENT ON TABLE {table} IS NULL; {drop_bounds}; \
         COMMIT",
        bound = child.bound,
        drop_bounds = drop_bounds(table)
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
