//! The one write of the parked table: new rows and marks, fenced, in one statement.

use super::marks::{self, Marks};
use super::rows::{self, Rows};
use pg_replication::error::{SourceError, Statement};
use postrider_core::event::Position;
use postrider_core::parked::{Mark, Parked};
use std::collections::HashSet;
use std::sync::LazyLock;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

/// Rows and marks of one statement.
pub const ROUND_ROWS_MAX: usize = 10_000;

/// Bytes of the records in one statement; one larger record has a statement to itself. PostgreSQL takes less than 1 GiB
/// in one message.
pub const ROUND_BYTES_MAX: usize = 64 << 20;

/// What became of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "an event whose row was not stored is not resolved"]
pub enum Stored {
    /// Stored, and as durable as the server's settings make any commit.
    Yes,
    /// The same but for the marks of these rows: another session has locked them, or an earlier one of their aggregate.
    Except(Vec<Position>),
    /// Nothing more was stored: another process has taken the pipeline over, or its cursor row is gone.
    TakenOver,
}

/// One statement is one transaction, and nothing on the shared session can come between its parts.
///
/// `FOR SHARE` waits for a [`take_over`](crate::cursor::take_over) that is under way and then sees its epoch,
/// or makes it wait; `FOR KEY SHARE` would let the two pass each other (manual, 13.3.2 "Row-Level Locks"). The setting
/// is read at the commit, after the statement: with a synchronous standby the commit waits for it, since the session's
/// own `local` would let a failover lose the row of an event that is confirmed.
static SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH fence AS MATERIALIZED ( \
           SELECT 1 FROM postrider.cursor WHERE pipeline = $1 AND owner_epoch = $2 FOR SHARE), \
         parked AS ({}), {}, marked AS ({}) \
         SELECT EXISTS (SELECT FROM fence), ARRAY(SELECT x.line FROM later x), \
           pg_catalog.set_config('synchronous_commit', 'on', true)",
        rows::INSERT,
        marks::LOCK,
        marks::UPDATE
    )
});

/// Writes new rows, then marks. Where a row stands already it stays as it is: the event was parked before. A mark on a
/// row that is not there, or is resolved, changes nothing. A mark whose row another session has locked is left out, and
/// so are the later ones of its aggregate ([`Stored::Except`]); all others are made, without waiting for that session.
///
/// It is one transaction as long as no position comes twice and the bounds ([`ROUND_ROWS_MAX`], [`ROUND_BYTES_MAX`])
/// are kept; else it is several, in order, so that a crash leaves the beginning of what was asked.
///
/// # Errors
/// What the server says. What was written by earlier statements of the same call stays.
pub async fn write(
    client: &Client,
    pipeline: &str,
    epoch: i64,
    rows: &[Parked],
    marks: &[Mark],
) -> Result<Stored, SourceError> {
    let mut write = Write { client, pipeline, epoch, round: Round::default(), left: Vec::new() };
    for row in rows {
        let bytes = row.record.size_bytes();
        if !write.round.takes(row.entry.position, bytes) && !write.store().await? {
            return Ok(Stored::TakenOver);
        }
        write.round.note(row.entry.position, bytes);
        write.round.rows.push(row);
    }
    for mark in marks {
        // One of an earlier statement may be of the same aggregate.
        if !write.left.is_empty() {
            write.left.push(mark.position);
            continue;
        }
        if !write.round.takes(mark.position, 0) && !write.store().await? {
            return Ok(Stored::TakenOver);
        }
        write.round.note(mark.position, 0);
        write.round.marked.push(mark.position);
        write.round.marks.push(mark);
    }
    Ok(match write.store().await? {
        false => Stored::TakenOver,
        true if write.left.is_empty() => Stored::Yes,
        true => Stored::Except(write.left),
    })
}

/// A write of several statements.
struct Write<'a> {
    client: &'a Client,
    pipeline: &'a str,
    epoch: i64,
    round: Round<'a>,
    /// Rows whose marks were left out so far.
    left: Vec<Position>,
}

impl Write<'_> {
    /// Writes what has gathered; whether the pipeline is still ours.
    async fn store(&mut self) -> Result<bool, SourceError> {
        let round = std::mem::take(&mut self.round);
        let Some(left) = round.store(self.client, self.pipeline, self.epoch).await? else {
            return Ok(false);
        };
        self.left.extend(left);
        Ok(true)
    }
}

/// One statement.
#[derive(Default)]
struct Round<'a> {
    rows: Rows<'a>,
    marks: Marks,
    /// Of the marks, in order.
    marked: Vec<Position>,
    positions: HashSet<Position>,
    bytes: usize,
}

impl Round<'_> {
    /// Whether it may also have this: the parts of a statement don't see each other, so each position comes once.
    fn takes(&self, position: Position, bytes: usize) -> bool {
        let room = self.positions.len() < ROUND_ROWS_MAX
            && (self.bytes == 0 || self.bytes + bytes <= ROUND_BYTES_MAX);
        room && !self.positions.contains(&position)
    }

    fn note(&mut self, position: Position, bytes: usize) {
        self.positions.insert(position);
        self.bytes += bytes;
    }

    /// The rows whose marks were left out; `None` where the pipeline is another's, and nothing was stored.
    async fn store(
        &self,
        client: &Client,
        pipeline: &str,
        epoch: i64,
    ) -> Result<Option<Vec<Position>>, SourceError> {
        let failed = |e| {
            SourceError::control(format!("write parked events of pipeline {pipeline:?}"), e)
                .of(Statement::Parked)
        };
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&pipeline, &epoch];
        parameters.extend(self.rows.parameters());
        parameters.extend(self.marks.parameters());
        let row = client.query_one(SQL.as_str(), &parameters).await.map_err(failed)?;
        let owned: bool = row.try_get(0).map_err(failed)?;
        // Lines count from 1.
        let lines: Vec<i64> = row.try_get(1).map_err(failed)?;
        let at = |line: i64| usize::try_from(line - 1).ok().and_then(|at| self.marked.get(at));
        Ok(owned.then(|| lines.into_iter().filter_map(at).copied().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> Position {
        Position { ordinal: number, ..Position::default() }
    }

    #[test]
    fn a_statement_has_bounds_and_each_position_once() {
        let mut round = Round::default();
        assert!(round.takes(at(0), 10 * ROUND_BYTES_MAX), "alone, whatever its size");
        round.note(at(0), ROUND_BYTES_MAX - 1);
        assert!(!round.takes(at(0), 0));
        assert!(round.takes(at(1), 1) && !round.takes(at(1), 2));
        for number in 1..10_000 {
            assert!(round.takes(at(number), 0));
            round.note(at(number), 0);
        }
        assert_eq!(round.positions.len(), ROUND_ROWS_MAX);
        assert!(!round.takes(at(10_000), 0));
    }
}
