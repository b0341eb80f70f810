//! Removes rows of a table, block range by block range: each in a transaction of its own, and at most as many rows as
//! the blocks have.
//!
//! A table is read from its first block to its last, so a pass needs no index on the time column, sorts nothing, and
//! costs the same however many rows are kept. A row that is changed meanwhile is compared again by the server with all
//! conditions before it is deleted, and its new version has a transaction number that is not resolved.

use super::RetentionTable;
use super::archive::Archive;
use super::guard::{Guard, RowGuard, all, counts};
use super::hold::Hold;
use super::horizon::Horizon;
use crate::names::{TableName, ident};
use pg_replication::error::SourceError;
use std::ops::AddAssign;
use tokio_postgres::{Client, Row};

/// Rows that are old enough and were not removed, by the guard that kept them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeldRows([u64; Guard::ALL.len()]);

impl HeldRows {
    /// Reads the columns of [`counts`], the first of which is at `first`.
    pub(crate) fn read(row: &Row, first: usize) -> Result<Self, tokio_postgres::Error> {
        let mut held = Self::default();
        for (at, count) in held.0.iter_mut().enumerate() {
            *count = row.try_get::<_, i64>(first + at)?.unsigned_abs();
        }
        Ok(held)
    }

    /// The number of rows that a guard keeps.
    pub fn of(&self, guard: Guard) -> u64 {
        Guard::ALL.iter().zip(self.0).find(|(of, _)| **of == guard).map_or(0, |(_, count)| count)
    }

    /// Each guard with its number of rows, except that of the age.
    pub fn reasons(&self) -> impl Iterator<Item = (Guard, u64)> {
        Guard::ALL.into_iter().zip(self.0).filter(|(guard, _)| *guard != Guard::Age)
    }

    /// Rows that are old enough and are kept.
    pub fn total(&self) -> u64 {
        self.reasons().map(|(_, count)| count).sum()
    }
}

impl AddAssign for HeldRows {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}

/// Consecutive blocks of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// The first block.
    pub from: u32,
    /// The block after the last one.
    pub to: u32,
}

impl BlockRange {
    /// The condition for its rows (`o`).
    fn rows(self) -> String {
        format!("o.ctid >= '({},0)'::tid AND o.ctid < '({},0)'::tid", self.from, self.to)
    }
}

/// What became of a range of blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// The rows that may be removed are removed.
    Done {
        /// Their number.
        removed: u64,
        /// The rows that are old enough and are kept.
        held: HeldRows,
    },
    /// Nothing may be removed.
    Held(Vec<Hold>),
    /// The archive has no partition for some of the rows; they are kept.
    NoPartition,
}

/// The tables that have the rows of a table, and their numbers of blocks: the table itself, or its partitions.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn leaves(
    client: &Client,
    table: &RetentionTable,
) -> Result<Vec<(TableName, u32)>, SourceError> {
    let failed = |e| SourceError::control(format!("read the partitions of {}", table.name()), e);
    let sql = "SELECT n.nspname::text, c.relname::text, \
                 pg_relation_size(c.oid) / current_setting('block_size')::int8 \
               FROM pg_partition_tree($1::oid::regclass) AS t JOIN pg_class AS c ON c.oid = t.relid \
               JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind = 'r' \
               UNION ALL \
               SELECT n.nspname::text, c.relname::text, \
                 pg_relation_size(c.oid) / current_setting('block_size')::int8 \
               FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE c.oid = $1 AND c.relkind = 'r' \
                 AND NOT EXISTS (SELECT FROM pg_partition_tree($1::oid::regclass)) ORDER BY 1, 2";
    let rows = client.query(sql, &[&table.oid()]).await.map_err(failed)?;
    let leaf = |row: &Row| -> Result<(TableName, u32), tokio_postgres::Error> {
        let name = TableName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?);
        Ok((name, u32::try_from(row.try_get::<_, i64>(2)?).unwrap_or(u32::MAX)))
    };
    rows.iter().map(leaf).collect::<Result<_, _>>().map_err(failed)
}

impl RetentionTable {
    /// The statement that removes the rows of a range of blocks that all of these guards allow to be removed. It must
    /// run in the transaction in which the guards were read.
    pub fn remove_sql(
        &self,
        leaf: &TableName,
        range: BlockRange,
        guards: &[RowGuard],
        archive: Option<&Archive>,
    ) -> String {
        let delete = format!(
            "DELETE FROM ONLY {leaf} AS o WHERE {range}\n  AND {allowed}",
            range = range.rows(),
            allowed = all(guards)
        );
        match archive {
            Some(archive) => archive.insert_sql(&delete),
            None => delete,
        }
    }

    /// The values of a column of the rows that would be removed, as a query.
    pub(crate) fn keys_sql(
        leaf: &TableName,
        range: BlockRange,
        guards: &[RowGuard],
        key: &str,
    ) -> String {
        format!(
            "SELECT DISTINCT o.{key} FROM ONLY {leaf} AS o WHERE {range} AND {allowed}",
            key = ident(key),
            range = range.rows(),
            allowed = all(guards)
        )
    }

    /// Removes what may be removed of a range of blocks.
    ///
    /// # Errors
    /// An error of the server or of the connection; the transaction is rolled back. 55P03 or 57014: something has
    /// waited for too long, and the range is to be tried later.
    pub async fn remove(
        &self,
        client: &Client,
        leaf: &TableName,
        range: BlockRange,
        archive: Option<&Archive>,
    ) -> Result<Chunk, SourceError> {
        let failed = |e| SourceError::control(format!("remove old rows of {leaf}"), e);
        client.batch_execute("BEGIN").await.map_err(failed)?;
        let done = self.remove_within(client, leaf, range, archive).await;
        let end = if matches!(done, Ok(Chunk::Done { .. })) { "COMMIT" } else { "ROLLBACK" };
        let ended = client.batch_execute(end).await.map_err(failed);
        match done {
            Ok(chunk) => ended.map(|()| chunk),
            Err(error) if archive.is_some() && Archive::lacks_partition(&error) => {
                ended.map(|()| Chunk::NoPartition)
            }
            Err(error) => Err(error),
        }
    }

    async fn remove_within(
        &self,
        client: &Client,
        leaf: &TableName,
        range: BlockRange,
        archive: Option<&Archive>,
    ) -> Result<Chunk, SourceError> {
        let failed = |e| SourceError::control(format!("remove old rows of {leaf}"), e);
        self.lock_readers(client).await?;
        let horizon = self.horizon(client).await?;
        if !horizon.holds.is_empty() {
            return Ok(Chunk::Held(horizon.holds));
        }
        let guards = self.guards(&horizon);
        let sql = self.remove_sql(leaf, range, &guards, archive);
        let removed = client.execute(&sql, &[]).await.map_err(failed)?;
        let held = self.held(client, leaf, Some(range), &guards).await?;
        Ok(Chunk::Done { removed, held })
    }

    /// Counts the rows of a table, or of a range of its blocks, that are old enough, by the guard that keeps them.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub(crate) async fn held(
        &self,
        client: &Client,
        leaf: &TableName,
        range: Option<BlockRange>,
        guards: &[RowGuard],
    ) -> Result<HeldRows, SourceError> {
        let failed = |e| SourceError::control(format!("count the kept rows of {leaf}"), e);
        let age = guards.iter().find(|guard| guard.guard == Guard::Age);
        let sql = format!(
            "SELECT {counts} FROM ONLY {leaf} AS o WHERE {range} AND {age}",
            counts = counts(guards),
            range = range.map_or_else(|| "true".to_owned(), BlockRange::rows),
            age = age.map_or("false", |guard| guard.allows.as_str()),
        );
        let row = client.query_one(&sql, &[]).await.map_err(failed)?;
        HeldRows::read(&row, 0).map_err(failed)
    }

    /// What is needed now, and the guards that follow from it; `Err` if nothing may be removed.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn decide(
        &self,
        client: &Client,
    ) -> Result<(Horizon, Result<Vec<RowGuard>, Vec<Hold>>), SourceError> {
        let horizon = self.horizon(client).await?;
        let decided = if horizon.holds.is_empty() {
            Ok(self.guards(&horizon))
        } else {
            Err(horizon.holds.clone())
        };
        Ok((horizon, decided))
    }
}
