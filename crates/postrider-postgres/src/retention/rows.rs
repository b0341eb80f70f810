//! Removes rows of a table, block range by block range: each in a transaction of its own, and at most as many rows as
//! the blocks have. They are deleted, or moved to the archive, a table of the user's own with the columns of the
//! outbox.
//!
//! A table is read from its first block to its last, so a pass needs no index on the time column, sorts nothing, and
//! costs the same however many rows are kept. A row that is changed meanwhile is compared again by the server with all
//! conditions before it is deleted, and its new version has a transaction number that is not resolved.

use super::guard::Guard;
use super::hold::Hold;
use crate::names::{TableName, ident};
use pg_replication::error::{SourceError, SqlState};
use std::ops::AddAssign;
use tokio_postgres::Row;

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
    pub(super) fn rows(self) -> String {
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

/// The archive, as the catalog describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    /// Its name.
    pub table: TableName,
    /// The columns that are copied, in the order of the outbox.
    columns: Vec<String>,
}

impl Archive {
    pub(super) fn new(table: TableName, columns: Vec<String>) -> Self {
        Self { table, columns }
    }

    /// The statement that inserts what `delete` deletes: one statement, so a row is in one of the two tables.
    pub(crate) fn insert_sql(&self, delete: &str) -> String {
        let list = |prefix: &str| {
            let columns = self.columns.iter().map(|column| format!("{prefix}{}", ident(column)));
            columns.collect::<Vec<_>>().join(", ")
        };
        // An archive that was created with the identity column of the outbox keeps the numbers of the rows.
        format!(
            "WITH gone AS ({delete}\n  RETURNING {returned})\n\
             INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM gone",
            returned = list("o."),
            table = self.table,
            columns = list(""),
        )
    }

    /// Whether a statement failed because the archive has no partition for a row. The error has the SQLSTATE of a
    /// violated check, and no constraint.
    pub(crate) fn lacks_partition(error: &SourceError) -> bool {
        error.sqlstate() == Some(SqlState::CHECK_VIOLATION)
            && error.report().is_some_and(|report| report.constraint.is_none())
    }
}
