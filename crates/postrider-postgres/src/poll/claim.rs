//! Claimed rows, in a [`RowBuffer`], and the place of each, by which the row gets its status.

use super::table::TableShape;
use crate::lock_holders::{self, Holder};
use crate::names::TableName;
use crate::wire::Lsn;
use pg_replication::error::{SourceError, SourceErrorKind};
use postrider_core::row::TableId;
use postrider_core::row_buffer::RowBuffer;
use postrider_core::timestamp::Timestamp;
use std::collections::BTreeSet;
use std::fmt;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

/// Rows of one transaction that is still open: no other session can claim them, and none has its new status yet.
///
/// Without rows there is no transaction, and nothing to settle. `Debug` shows counts only.
pub struct Claim {
    /// The rows, in the order in which they are to be published.
    pub rows: RowBuffer,
    /// End of WAL after the rows were seen: every one of them was committed before it.
    pub at: Lsn,
    /// The server's clock at that time.
    pub claimed_at: Timestamp,
    /// Rows that have expired (`expires_at`): they got their status, and are not among the rows.
    pub expired: u64,
    /// Rows that an earlier row of their aggregate holds back, because it is locked, delayed, or has failed.
    pub withheld: u64,
    /// Of those, rows that could not be locked, mostly because another session has locked them.
    pub missed: MissedRows,
    /// There may be more rows to claim immediately.
    pub more: bool,
    pub(super) places: Vec<Place>,
    /// The aggregates of the rows.
    pub(super) keys: Vec<String>,
    /// Rows whose large values were not read.
    pub(super) large: BTreeSet<usize>,
}

impl Claim {
    /// The transaction that wrote a row.
    pub fn xmin(&self, row: usize) -> u32 {
        self.places.get(row).map_or(0, |place| place.xmin)
    }

    /// Whether the row is larger than [`super::ROW_BYTES_MAX`]: its large values are missing.
    pub fn is_too_large(&self, row: usize) -> bool {
        self.large.contains(&row)
    }

    /// The aggregate of a row, as one text.
    pub fn key(&self, row: usize) -> &str {
        self.keys.get(row).map_or("", String::as_str)
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("rows", &self.rows.len())
            .field("at", &self.at)
            .field("expired", &self.expired)
            .field("withheld", &self.withheld)
            .field("more", &self.more)
            .finish_non_exhaustive()
    }
}

/// The place of a row: the OID of its partition (or table), block and line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) oid: u32,
    pub(super) block: u32,
    pub(super) line: u16,
    /// The transaction that wrote this version of the row. Another row may get the same place later.
    pub(super) xmin: u32,
}

/// Rows of the table that a claim could not lock, each as `OID:(block,line)`; at most [`lock_holders::ROWS_MAX`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MissedRows(Vec<String>);

impl MissedRows {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, place: Place) {
        if self.0.len() < lock_holders::ROWS_MAX {
            let Place { oid, block, line, xmin: _ } = place;
            self.0.push(format!("{oid}:({block},{line})"));
        }
    }

    /// Adds these rows.
    pub(super) fn extend(&mut self, more: &Self) {
        let room = lock_holders::ROWS_MAX.saturating_sub(self.0.len());
        self.0.extend(more.0.iter().take(room).cloned());
    }

    /// Reads which sessions have locked the rows. Must run on another session than the claim's, because an error would
    /// end the claim's transaction.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn holders(
        &self,
        client: &Client,
        table: &TableName,
    ) -> Result<Vec<Holder>, SourceError> {
        let rows: Vec<&str> = self.0.iter().map(String::as_str).collect();
        // First by the places, which finds the rows without reading the whole table.
        let xmax = format!(
            "SELECT o.xmax::text FROM {table} AS o \
             WHERE o.ctid = ANY (ARRAY(SELECT split_part(w, ':', 2)::tid FROM unnest($1::text[]) AS w)) \
               AND concat(o.tableoid, ':', o.ctid) = ANY ($1::text[])"
        );
        lock_holders::holders(client, table, &xmax, &rows).await
    }
}

/// Rows that are claimed although they have expired.
pub(super) struct KeptRows<'a> {
    /// The column of the ids.
    pub(super) id: &'a str,
    /// Whether the row with this id is one of them.
    pub(super) keeps: &'a (dyn Fn(&str) -> bool + Sync),
}

/// The result of one claim statement.
#[derive(Default)]
pub(super) struct ClaimAnswer {
    pub(super) rows: RowBuffer,
    /// The place of each row in the order.
    pub(super) numbers: Vec<u64>,
    pub(super) places: Vec<Place>,
    pub(super) keys: Vec<String>,
    pub(super) large: BTreeSet<usize>,
    pub(super) expired: Vec<Place>,
    /// Aggregates whose first row could not be locked.
    pub(super) blocked: BTreeSet<String>,
    pub(super) withheld: u64,
    pub(super) missed: MissedRows,
    /// Rows that were considered, before the bound on bytes.
    pub(super) candidates: usize,
    /// Rows in the answer.
    seen: usize,
    pub(super) at: Lsn,
    pub(super) claimed_at: Timestamp,
    /// The OID of the table that has the name now, if the statement read it.
    pub(super) table: Option<u32>,
}

/// Columns of the answer before the table's own: see [`super::sql::claim`].
const HEAD: usize = 9;

/// One row of the answer.
struct AnswerRow<'a> {
    /// Its number in the order.
    n: u64,
    key: &'a str,
    place: Place,
    /// This session has locked it.
    had: bool,
    expired: bool,
    /// Its large values were not read.
    large: bool,
    /// The answer's row, whose columns after [`HEAD`] are those of the table.
    values: &'a SimpleQueryRow,
}

impl ClaimAnswer {
    /// Reads the answer to [`super::sql::claim`]. Rows of `kept` do not expire.
    pub(super) fn read(
        answer: &[SimpleQueryMessage],
        shape: &TableShape,
        kept: Option<&KeptRows<'_>>,
    ) -> Result<Self, SourceError> {
        let id = kept.map(|kept| (kept, shape.columns.iter().position(|c| c.name == kept.id)));
        let mut claimed = Self::default();
        let mut rows = Vec::with_capacity(answer.len());
        for message in answer {
            let SimpleQueryMessage::Row(row) = message else { continue };
            if row.len() == HEAD + shape.columns.len() {
                claimed.candidates = number(text(row, 5)?)?;
                let mut row = AnswerRow::read(row)?;
                if let Some((kept, Some(column))) = id.filter(|_| row.expired) {
                    let id = text(row.values, HEAD + column)?;
                    row.expired = !id.is_some_and(|id| (kept.keeps)(id));
                }
                rows.push(row);
            } else {
                claimed.clock(row)?;
            }
        }
        claimed.seen = rows.len();
        rows.sort_unstable_by_key(|row| row.n);
        for row in &rows {
            claimed.take(row, TableId(shape.oid))?;
        }
        Ok(claimed)
    }

    fn take(&mut self, row: &AnswerRow<'_>, table: TableId) -> Result<(), SourceError> {
        if !row.had {
            self.blocked.insert(row.key.to_owned());
            self.withheld += 1;
            self.missed.push(row.place);
        } else if row.expired {
            self.expired.push(row.place);
        } else if self.blocked.contains(row.key) {
            self.withheld += 1;
        } else {
            if row.large {
                self.large.insert(self.rows.len());
            }
            let mut values = self.rows.push_row(table);
            for column in HEAD..row.values.len() {
                values.push_cell(text(row.values, column)?.map(str::as_bytes));
            }
            self.numbers.push(row.n);
            self.places.push(row.place);
            self.keys.push(row.key.to_owned());
        }
        Ok(())
    }

    fn clock(&mut self, row: &SimpleQueryRow) -> Result<(), SourceError> {
        let at = text(row, 0)?.and_then(|at| at.parse().ok());
        self.at = at.ok_or_else(unreadable)?;
        self.claimed_at = crate::wire::from_pg_micros(number(text(row, 1)?)?);
        if row.len() > 2 {
            self.table = Some(number(text(row, 2)?)?);
        }
        Ok(())
    }

    /// Whether the bound on rows or on bytes ended the claim, and not the end of the table.
    pub(super) fn cut(&self, limit: usize) -> bool {
        self.candidates >= limit || self.seen < self.candidates
    }
}

impl<'a> AnswerRow<'a> {
    fn read(row: &'a SimpleQueryRow) -> Result<Self, SourceError> {
        // A row that could not be locked gets no status.
        let xmin = text(row, 7)?.unwrap_or("0");
        let place = Place::read(number(text(row, 2)?)?, text(row, 3)?.unwrap_or_default(), xmin)?;
        Ok(Self {
            had: text(row, 6)? == Some("t"),
            n: number(text(row, 0)?)?,
            key: text(row, 1)?.unwrap_or_default(),
            place,
            expired: text(row, 4)? == Some("t"),
            large: text(row, 8)? == Some("t"),
            values: row,
        })
    }
}

impl Place {
    /// Reads a row of the answer to [`super::sql::lock_again`].
    pub(super) fn of_locked(row: &SimpleQueryRow) -> Result<Self, SourceError> {
        let column = |index| text(row, index).map(Option::unwrap_or_default);
        Self::read(number(Some(column(0)?))?, column(1)?, column(2)?)
    }

    fn read(oid: u32, tid: &str, xmin: &str) -> Result<Self, SourceError> {
        let inner = tid.strip_prefix('(').and_then(|tid| tid.strip_suffix(')'));
        let (block, line) = inner.and_then(|tid| tid.split_once(',')).ok_or_else(unreadable)?;
        let (block, line) = (number(Some(block))?, number(Some(line))?);
        Ok(Self { oid, block, line, xmin: number(Some(xmin))? })
    }
}

fn text(row: &SimpleQueryRow, index: usize) -> Result<Option<&str>, SourceError> {
    row.try_get(index).map_err(|error| unreadable().caused_by(error))
}

fn number<N: std::str::FromStr>(text: Option<&str>) -> Result<N, SourceError> {
    text.and_then(|text| text.parse().ok()).ok_or_else(unreadable)
}

fn unreadable() -> SourceError {
    SourceError::new(SourceErrorKind::Protocol, "read the claimed rows")
}
