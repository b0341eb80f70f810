//! Takes whole partitions out of a table: detaches them, then drops them or attaches them to the archive.
//!
//! ```text
//! attached ─ rows looked at ─▶ marked (comment) ─▶ DETACH … CONCURRENTLY ─▶ detached ─ rows looked at again ─▶ dropped
//!                                                        │ interrupted            │ a row is needed         └▶ archived
//!                                                        ▼                        ▼
//!                                                    FINALIZE                attached again
//! ```
//!
//! The bounds of a partition say when it may be looked at; its rows decide. Between the first look and the end of the
//! detach a transaction may have added a row, so the second look is the one that counts: nobody can write to the table
//! then except by its own name, which a lock excludes. A process that ends at any place leaves a partition, or a table
//! with the comment, which the next pass finds in the catalog.

use super::RetentionTable;
use super::archive::Archive;
use super::guard::{Guard, RowGuard, all, counts};
use super::hold::Hold;
use super::horizon::Horizon;
use super::root::{Child, ChildState, PartitionedRoot, mark};
use super::rows::HeldRows;
use super::{interval, limit};
use crate::names::{TableName, literal};
use pg_replication::error::{SourceError, SqlState};
use std::time::Duration;
use tokio_postgres::Client;

/// While the rows of a partition are read, nobody waits for this session.
const READ_LIMITS: &str = "SET statement_timeout = '5min'";

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

impl RetentionTable {
    /// Whether all rows of a partition, or of a table that was one, may be removed now. Reads all of its rows.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn ready(&self, client: &Client, child: &TableName) -> Result<Ready, SourceError> {
        let failed = |e| SourceError::control(format!("read the rows of {child}"), e);
        let guards = match self.decide(client).await? {
            (_, Ok(guards)) => guards,
            (_, Err(holds)) => return Ok(Ready::Blocked(holds)),
        };
        client.batch_execute(READ_LIMITS).await.map_err(failed)?;
        let ready = self.all_allowed(client, child, &guards).await;
        limit(client).await?;
        ready
    }

    /// As [`Self::ready`], by these guards.
    pub(crate) async fn all_allowed(
        &self,
        client: &Client,
        child: &TableName,
        guards: &[RowGuard],
    ) -> Result<Ready, SourceError> {
        let failed = |e| SourceError::control(format!("read the rows of {child}"), e);
        let sql = format!("SELECT EXISTS (SELECT FROM {child} AS o WHERE NOT ({}))", all(guards));
        let needed = client.query_one(&sql, &[]).await.and_then(|row| row.try_get::<_, bool>(0));
        if !needed.map_err(failed)? {
            return Ok(Ready::Yes);
        }
        let sql = format!("SELECT {} FROM {child} AS o", counts(guards));
        let row = client.query_one(&sql, &[]).await.map_err(failed)?;
        let held = HeldRows::read(&row, 0).map_err(failed)?;
        Ok(Ready::Held(held, held.of(Guard::Age)))
    }

    /// Takes a partition out of the table, if all of its rows may be removed, or ends what an earlier pass has begun.
    ///
    /// # Errors
    /// An error of the server or of the connection; 55P03 or 57014: something has waited for too long. The next call
    /// continues.
    pub async fn take(
        &self,
        client: &Client,
        root: &PartitionedRoot,
        child: &Child,
        archive: Option<&Archive>,
    ) -> Result<Taken, SourceError> {
        match child.state {
            ChildState::Attached => {
                let ready = self.ready(client, &child.name).await?;
                if ready != Ready::Yes {
                    return Ok(Taken::Kept(ready));
                }
                detach(client, root, child).await?;
            }
            ChildState::Detaching => finalize(client, root, child).await?,
            ChildState::Detached => {}
        }
        let done = self.finish(client, child, archive).await;
        limit(client).await?;
        let taken = done?;
        if matches!(taken, Taken::Kept(_)) {
            attach_again(client, root, child).await?;
        }
        Ok(taken)
    }

    /// Makes a table that an earlier pass has detached, or has begun to detach, a partition again.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn restore(
        client: &Client,
        root: &PartitionedRoot,
        child: &Child,
    ) -> Result<(), SourceError> {
        if child.state == ChildState::Detaching {
            finalize(client, root, child).await?;
        }
        attach_again(client, root, child).await
    }

    /// Drops a detached table, or attaches it to the archive, if all of its rows may be removed.
    async fn finish(
        &self,
        client: &Client,
        child: &Child,
        archive: Option<&Archive>,
    ) -> Result<Taken, SourceError> {
        let failed = |e| SourceError::control(format!("remove table {}", child.name), e);
        client.batch_execute("BEGIN").await.map_err(failed)?;
        let done = self.finish_within(client, child, archive).await;
        let end = if matches!(done, Ok(Taken::Dropped | Taken::Archived)) {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = client.batch_execute(end).await.map_err(failed);
        done.and_then(|taken| ended.map(|()| taken))
    }

    async fn finish_within(
        &self,
        client: &Client,
        child: &Child,
        archive: Option<&Archive>,
    ) -> Result<Taken, SourceError> {
        let name = &child.name;
        let failed = |e| SourceError::control(format!("remove table {name}"), e);
        let lock = format!("LOCK TABLE {name} IN SHARE MODE; {READ_LIMITS}");
        client.batch_execute(&lock).await.map_err(failed)?;
        let (before, decided) = self.decide(client).await?;
        let guards = match decided {
            Ok(guards) => guards,
            Err(holds) => return Ok(Taken::Kept(Ready::Blocked(holds))),
        };
        let ready = self.all_allowed(client, name, &guards).await?;
        if ready != Ready::Yes {
            return Ok(Taken::Kept(ready));
        }
        // The rows were read without the lock of the positions, because that may have taken minutes. What has begun
        // meanwhile shows now.
        client.batch_execute("SET statement_timeout = '3s'").await.map_err(failed)?;
        self.lock_readers(client).await?;
        let (now, decided) = self.decide(client).await?;
        if let Err(holds) = decided {
            return Ok(Taken::Kept(Ready::Blocked(holds)));
        }
        if !now.allows_what(&before) || self.has_parked(client).await? {
            // Parked events, bookmarks or groups are compared with each row again, which ends in time or fails.
            let ready = self.all_allowed(client, name, &self.guards(&now)).await?;
            if ready != Ready::Yes {
                return Ok(Taken::Kept(ready));
            }
        }
        let (sql, taken) = match archive {
            Some(archive) => (
                format!(
                    "ALTER TABLE {archive} ATTACH PARTITION {name} {bound}; COMMENT ON TABLE {name} IS NULL",
                    archive = archive.table,
                    bound = child.bound
                ),
                Taken::Archived,
            ),
            None => (format!("DROP TABLE {name}"), Taken::Dropped),
        };
        client.batch_execute(&sql).await.map_err(failed)?;
        Ok(taken)
    }

    /// Whether a pipeline of the table has parked events that are not resolved.
    async fn has_parked(&self, client: &Client) -> Result<bool, SourceError> {
        let failed = |e| SourceError::control("read the parked events", e);
        let sql =
            "SELECT EXISTS (SELECT FROM postrider.parked WHERE state NOT IN ('done', 'skipped'))";
        client.query_one(sql, &[]).await.and_then(|row| row.try_get(0)).map_err(failed)
    }

    /// Drops a partition of the archive whose rows are older than `keep` by the layout's time column, or ends what an
    /// earlier pass has begun. Returns whether it was dropped.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub async fn drop_archived(
        &self,
        client: &Client,
        root: &PartitionedRoot,
        child: &Child,
        keep: Duration,
    ) -> Result<bool, SourceError> {
        let name = &child.name;
        match child.state {
            ChildState::Attached if self.has_young(client, name, keep).await? => return Ok(false),
            ChildState::Attached => detach(client, root, child).await?,
            ChildState::Detaching => finalize(client, root, child).await?,
            ChildState::Detached => {}
        }
        // Rows may have been moved there before it was detached.
        if self.has_young(client, name, keep).await? {
            attach_again(client, root, child).await?;
            return Ok(false);
        }
        let failed = |e| SourceError::control(format!("remove table {name} of the archive"), e);
        client.batch_execute(&format!("DROP TABLE {name}")).await.map_err(failed)?;
        Ok(true)
    }

    /// Whether a table of the archive has a row that is not older than `keep`, or has no time.
    async fn has_young(
        &self,
        client: &Client,
        name: &TableName,
        keep: Duration,
    ) -> Result<bool, SourceError> {
        let Some(time) = self.time() else { return Ok(true) };
        let failed = |e| SourceError::control(format!("read the rows of {name}"), e);
        let sql = format!(
            "SELECT EXISTS (SELECT FROM {name} AS o \
               WHERE NOT coalesce({time} < statement_timestamp() - {}, false))",
            interval(keep)
        );
        client.batch_execute(READ_LIMITS).await.map_err(failed)?;
        let young = client.query_one(&sql, &[]).await.and_then(|row| row.try_get::<_, bool>(0));
        limit(client).await?;
        young.map_err(failed)
    }
}

impl Horizon {
    /// Whether everything that `before` allows to be removed may be removed by this one too, except for parked events:
    /// resolved transactions stay resolved.
    fn allows_what(&self, before: &Self) -> bool {
        let below = match (self.below, before.below) {
            (Some(now), Some(before)) => now >= before,
            (now, before) => now == before,
        };
        below
            && self.before_slot == before.before_slot
            && self.readers == before.readers
            && self.bookmark_micros == before.bookmark_micros
            && self.logs.iter().all(|log| {
                before
                    .logs
                    .iter()
                    .any(|other| other.table == log.table && other.passed <= log.passed)
            })
    }
}

/// Marks a partition with a comment, and detaches it.
async fn detach(client: &Client, root: &PartitionedRoot, child: &Child) -> Result<(), SourceError> {
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
async fn finalize(
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
async fn attach_again(
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
