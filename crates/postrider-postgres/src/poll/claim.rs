//! What was claimed: rows as the stream would send them, and where each lies so that it can be marked.

use super::table::Shape;
use crate::locks::{self, Holder};
use crate::names::TableName;
use bytes::{BufMut, Bytes, BytesMut};
use pg_replication::error::{SourceError, SourceErrorKind};
use pg_replication::lsn::Lsn;
use postrider_core::event::PgTime;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

/// Rows of one transaction that is still open: nobody else can take them, and nothing is marked.
///
/// Without rows there is no transaction, and nothing to settle. `Debug` shows counts only.
pub struct Claim {
    /// pgoutput Insert messages, in the order in which they are to be published.
    pub rows: Vec<Bytes>,
    /// End of WAL after the rows were seen: every one of them was committed before it.
    pub at: Lsn,
    /// The server's clock at that moment.
    pub claimed_at: PgTime,
    /// Rows whose time had passed (`expires_at`): marked, and not among the rows.
    pub expired: u64,
    /// Rows that an earlier one of their aggregate held back: it is locked, delayed, or has failed.
    pub withheld: u64,
    /// Of those, rows that could not be had themselves: mostly because another session has locked them.
    pub missed: Missed,
    /// There may be more to claim at once.
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

    /// A claim of one row for each of the aggregates.
    #[doc(hidden)]
    pub fn of_aggregates(aggregates: &[&str]) -> Self {
        Self {
            rows: vec![Bytes::new(); aggregates.len()],
            at: Lsn::ZERO,
            claimed_at: PgTime::default(),
            expired: 0,
            withheld: 0,
            missed: Missed::default(),
            more: false,
            places: Vec::new(),
            keys: aggregates.iter().map(|key| (*key).to_owned()).collect(),
            large: BTreeSet::new(),
        }
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

/// Where a row lies: the partition's OID (or the table's), block and line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) oid: u32,
    pub(super) block: u32,
    pub(super) line: u16,
    /// The transaction that wrote this version of the row: another row may come to lie there.
    pub(super) xmin: u32,
}

/// Rows of the table that a claim could not have, each as `OID:(block,line)`; at most [`locks::ROWS_MAX`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Missed(Vec<String>);

impl Missed {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, place: Place) {
        if self.0.len() < locks::ROWS_MAX {
            let Place { oid, block, line, xmin: _ } = place;
            self.0.push(format!("{oid}:({block},{line})"));
        }
    }

    /// These too.
    pub(super) fn extend(&mut self, more: &Self) {
        let room = locks::ROWS_MAX.saturating_sub(self.0.len());
        self.0.extend(more.0.iter().take(room).cloned());
    }

    /// Which sessions have locked them. To be asked by another session than the claim's, whose transaction an error
    /// would end.
    ///
    /// # Errors
    /// What the server says.
    pub async fn holders(
        &self,
        client: &Client,
        table: &TableName,
    ) -> Result<Vec<Holder>, SourceError> {
        let rows: Vec<&str> = self.0.iter().map(String::as_str).collect();
        // By the places first, which finds the rows without reading the table.
        let xmax = format!(
            "SELECT o.xmax::text FROM {table} AS o \
             WHERE o.ctid = ANY (ARRAY(SELECT split_part(w, ':', 2)::tid FROM unnest($1::text[]) AS w)) \
               AND concat(o.tableoid, ':', o.ctid) = ANY ($1::text[])"
        );
        locks::holders(client, table, &xmax, &rows).await
    }
}

/// What became of one claimed row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Settled {
    /// The broker has it.
    Published,
    /// It was refused. Only where the table keeps failures ([`super::PollSpec::keeps_failures`]).
    Failed {
        /// Why, without values of the row.
        error: String,
        /// A stable word for it.
        code: &'static str,
    },
    /// Nothing: an earlier one of its aggregate failed.
    Held,
    /// It is kept elsewhere now (`postrider.parked`): its row counts as published.
    Moved,
}

/// What one look at the table gave.
#[derive(Default)]
pub(super) struct Look {
    pub(super) rows: Vec<Bytes>,
    /// Where each of the rows stands in the order.
    pub(super) numbers: Vec<u64>,
    pub(super) places: Vec<Place>,
    pub(super) keys: Vec<String>,
    pub(super) large: BTreeSet<usize>,
    pub(super) expired: Vec<Place>,
    /// Aggregates whose first row could not be had.
    pub(super) blocked: BTreeSet<String>,
    pub(super) withheld: u64,
    pub(super) missed: Missed,
    /// Rows that were looked at, before the bound on bytes.
    pub(super) candidates: usize,
    /// Rows the answer spoke of.
    seen: usize,
    pub(super) at: Lsn,
    pub(super) claimed_at: PgTime,
    /// The OID of the table that has the name, where that was asked.
    pub(super) table: Option<u32>,
}

/// Columns of the answer before the table's own: see [`super::sql::claim`].
const HEAD: usize = 9;

/// One row of the answer.
struct Seen<'a> {
    /// Its place in the order.
    n: u64,
    key: &'a str,
    place: Place,
    /// It is locked by us.
    had: bool,
    expired: bool,
    /// Its large values were not read.
    large: bool,
    /// Where its message is in the buffer.
    message: Range<usize>,
}

impl Look {
    /// Reads the answer to [`super::sql::claim`].
    pub(super) fn read(answer: &[SimpleQueryMessage], shape: &Shape) -> Result<Self, SourceError> {
        let mut look = Self::default();
        let mut buffer = BytesMut::new();
        let mut rows = Vec::with_capacity(answer.len());
        for message in answer {
            let SimpleQueryMessage::Row(row) = message else { continue };
            if row.len() == HEAD + shape.columns.len() {
                look.candidates = number(text(row, 5)?)?;
                rows.push(Seen::read(row, shape, &mut buffer)?);
            } else {
                look.clock(row)?;
            }
        }
        look.seen = rows.len();
        rows.sort_unstable_by_key(|row| row.n);
        let buffer = buffer.freeze();
        for row in rows {
            look.take(row, &buffer);
        }
        Ok(look)
    }

    fn take(&mut self, row: Seen<'_>, buffer: &Bytes) {
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
            self.rows.push(buffer.slice(row.message));
            self.numbers.push(row.n);
            self.places.push(row.place);
            self.keys.push(row.key.to_owned());
        }
    }

    fn clock(&mut self, row: &SimpleQueryRow) -> Result<(), SourceError> {
        let at = text(row, 0)?.and_then(|at| at.parse().ok());
        self.at = at.ok_or_else(unreadable)?;
        self.claimed_at = PgTime { micros: number(text(row, 1)?)? };
        if row.len() > 2 {
            self.table = Some(number(text(row, 2)?)?);
        }
        Ok(())
    }

    /// Whether the bound on rows or on bytes ended it, and not the table.
    pub(super) fn cut(&self, limit: usize) -> bool {
        self.candidates >= limit || self.seen < self.candidates
    }
}

impl<'a> Seen<'a> {
    /// Reads one, and appends its message.
    fn read(
        row: &'a SimpleQueryRow,
        shape: &Shape,
        buffer: &mut BytesMut,
    ) -> Result<Self, SourceError> {
        let start = buffer.len();
        let had = text(row, 6)? == Some("t");
        if had {
            insert(row, shape, buffer)?;
        }
        // What could not be had is not marked.
        let xmin = text(row, 7)?.unwrap_or("0");
        let place = Place::read(number(text(row, 2)?)?, text(row, 3)?.unwrap_or_default(), xmin)?;
        Ok(Self {
            had,
            n: number(text(row, 0)?)?,
            key: text(row, 1)?.unwrap_or_default(),
            place,
            expired: text(row, 4)? == Some("t"),
            large: text(row, 8)? == Some("t"),
            message: start..buffer.len(),
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

/// Appends the row as a pgoutput Insert message.
fn insert(row: &SimpleQueryRow, shape: &Shape, out: &mut BytesMut) -> Result<(), SourceError> {
    out.put_u8(b'I');
    out.put_u32(shape.oid);
    out.put_u8(b'N');
    out.put_u16(u16::try_from(shape.columns.len()).unwrap_or(u16::MAX));
    for index in HEAD..row.len() {
        let Some(text) = text(row, index)? else {
            out.put_u8(b'n');
            continue;
        };
        out.put_u8(b't');
        out.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        out.put_slice(text.as_bytes());
    }
    Ok(())
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
