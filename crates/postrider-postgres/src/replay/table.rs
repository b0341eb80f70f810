//! The outbox table's rows, in the order of the layout's key, with the texts and types that the stream's rows have.
//!
//! The server sorts them once and keeps the result (a cursor `WITH HOLD`), so no snapshot stays open for longer than
//! one answer, however slowly the rows are read, and no later row is among them. No row is locked or changed.

use crate::control::Control;
use crate::names::{ident, literal};
use crate::poll::PollSpec;
use crate::poll::order::{order, source};
use crate::poll::table::{TableShape, shape};
use crate::times::AmbiguousTime;
use futures_util::TryStreamExt;
use pg_replication::conninfo::Conninfo;
use pg_replication::error::{SourceError, SourceErrorKind};
use postrider_core::row::{OwnedTable, Row, TableId};
use postrider_core::row_buffer::RowBuffer;
use postrider_core::timestamp::Timestamp;
use std::fmt;
use std::pin::Pin;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow, SimpleQueryStream};

/// Bytes of rows that are read at a time, plus at most one row: their texts, and the table of their cells. The number
/// of rows to fetch is computed from the size of the previous rows; if the next rows are larger, the server waits in
/// the middle of its answer.
const FETCH_BYTES: usize = 4 << 20;

/// Most rows of one fetch, and the rows of the first fetch, when no size is known.
const FETCH_ROWS_MAX: usize = 1000;
const FETCH_ROWS_FIRST: usize = 20;

/// Selects rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RowSelection<'a> {
    /// With these ids; empty for any.
    pub ids: &'a [String],
    /// Of this aggregate, type and id.
    pub aggregate: Option<&'a (String, String)>,
    /// Not older than this, by the layout's time column.
    pub since: Option<Timestamp>,
    /// Older than this.
    pub until: Option<Timestamp>,
    /// After the row with this id.
    pub after: Option<&'a str>,
}

/// Rows that were read together, in order. `Debug` shows sizes only.
#[derive(Default)]
pub struct FetchedRows {
    rows: RowBuffer,
    /// The events' ids, by row.
    ids: Vec<String>,
    /// The index of the first row that was not taken.
    next: usize,
}

impl FetchedRows {
    /// Whether all rows were taken.
    pub fn is_empty(&self) -> bool {
        self.next >= self.ids.len()
    }

    /// The next row; `None` if all rows were taken.
    pub fn first(&self) -> Option<Row<'_>> {
        self.rows.row(self.next)
    }

    /// Takes the next row; returns its event's id.
    pub fn take_first(&mut self) -> Option<String> {
        let id = std::mem::take(self.ids.get_mut(self.next)?);
        self.next += 1;
        Some(id)
    }

    /// Takes all rows up to and including the one with this id; returns whether there is one.
    fn skip_to(&mut self, id: &str) -> bool {
        let at = self.ids.iter().position(|other| other == id);
        self.next = at.map_or(self.ids.len(), |at| at + 1);
        at.is_some()
    }

    /// Adds a row of the answer, whose first column is the id.
    fn push(&mut self, table: TableId, row: &SimpleQueryRow) -> Result<(), SourceError> {
        let mut values = self.rows.push_row(table);
        for column in 1..row.len() {
            values.push_cell(text(row, column)?.map(str::as_bytes));
        }
        self.ids.push(text(row, 0)?.unwrap_or_default().to_owned());
        Ok(())
    }
}

impl fmt::Debug for FetchedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchedRows")
            .field("rows", &self.rows)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// The selected rows. Dropping it ends the session.
pub struct OutboxRows {
    control: Control,
    description: OwnedTable,
    /// Rows to fetch next.
    count: usize,
    /// An answer that was not read to its end, and whether it had rows.
    answer: Option<(Pin<Box<SimpleQueryStream>>, bool)>,
    /// Rows up to and including this id are skipped, because the query cannot start after a given row.
    skip_to: Option<String>,
}

impl fmt::Debug for OutboxRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxRows").field("count", &self.count).finish_non_exhaustive()
    }
}

impl OutboxRows {
    /// Opens a session and lets the server sort the rows.
    ///
    /// # Errors
    /// An error of the server or of the connection; the table does not exist.
    pub async fn open(
        conninfo: &Conninfo,
        application_name: &str,
        spec: &PollSpec,
        select: &RowSelection<'_>,
    ) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control(format!("read table {}", spec.table), e);
        let control = Control::connect(conninfo, application_name).await?;
        let client = control.client();
        let shape = shape(client, &spec.table, &spec.id).await?;
        // Sorting a large table takes long and blocks no other session; reading the answer may take long too
        // (PostgreSQL 17 has a time-out for that).
        let pinned = "SET statement_timeout = 0; SET default_transaction_read_only = on; \
                      SELECT set_config('transaction_timeout', '0', false) \
                      WHERE current_setting('transaction_timeout', true) IS NOT NULL";
        client.batch_execute(pinned).await.map_err(failed)?;
        let is_number = shape.column(&spec.id).is_some_and(|column| column.number);
        client.batch_execute(&declare(spec, &shape, select, is_number)).await.map_err(failed)?;
        let description = shape.description(&spec.table);
        let skip_to = select.after.filter(|_| !is_number).map(str::to_owned);
        Ok(Self { control, description, count: FETCH_ROWS_FIRST, answer: None, skip_to })
    }

    /// The description of the table.
    pub fn description(&self) -> &OwnedTable {
        &self.description
    }

    /// Returns the next rows; none at the end.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn next(&mut self) -> Result<FetchedRows, SourceError> {
        loop {
            let mut rows = self.take().await?;
            if rows.is_empty() {
                return Ok(rows);
            }
            if let Some(id) = &self.skip_to {
                if rows.skip_to(id) {
                    self.skip_to = None;
                }
                if rows.is_empty() {
                    continue;
                }
            }
            return Ok(rows);
        }
    }

    /// The rest of an answer, or the next one, up to [`FETCH_BYTES`]; none at the end.
    async fn take(&mut self) -> Result<FetchedRows, SourceError> {
        let failed = |e| SourceError::control("fetch rows of the outbox table", e);
        let mut rows = FetchedRows::default();
        loop {
            let (mut answer, mut has_rows) = match self.answer.take() {
                Some(answer) => answer,
                None => (self.ask().await.map_err(failed)?, false),
            };
            while let Some(message) = answer.try_next().await.map_err(failed)? {
                let SimpleQueryMessage::Row(row) = message else { continue };
                rows.push(self.description.id, &row)?;
                has_rows = true;
                if rows.rows.size_bytes() >= FETCH_BYTES {
                    self.answer = Some((answer, has_rows));
                    break;
                }
            }
            if !rows.is_empty() {
                let (count, bytes) = (rows.rows.len(), rows.rows.size_bytes());
                self.count = (FETCH_BYTES * count / bytes.max(1)).clamp(1, FETCH_ROWS_MAX);
            }
            // An answer whose rows were all read before does not mean the end.
            if !rows.is_empty() || !has_rows {
                return Ok(rows);
            }
        }
    }

    async fn ask(&self) -> Result<Pin<Box<SimpleQueryStream>>, tokio_postgres::Error> {
        let sql = format!("FETCH {} FROM postrider_replay", self.count);
        Ok(Box::pin(self.control.client().simple_query_raw(&sql).await?))
    }

    /// Whether the row after which the rows were to begin was not found: it was deleted, and all rows were skipped.
    pub fn lost_its_place(&self) -> bool {
        self.skip_to.is_some()
    }
}

/// The order of the rows in words.
///
/// # Errors
/// An error of the server or of the connection; the table does not exist.
pub async fn order_in_words(client: &Client, spec: &PollSpec) -> Result<String, SourceError> {
    let shape = shape(client, &spec.table, &spec.id).await?;
    let is_number = shape.column(&spec.id).is_some_and(|column| column.number);
    Ok(match (&spec.time, is_number) {
        (_, true) => format!("by column {}", spec.id),
        (Some(time), false) => format!("by column {time}, then as inserted"),
        (None, false) => "as inserted".to_owned(),
    })
}

/// Whether a text is one of the requested texts; the trailing blanks of a `char(n)` may be left out of the request.
fn asked(text: &str, texts: &[&str]) -> String {
    let list: Vec<String> = texts.iter().map(|text| literal(text)).collect();
    let list = list.join(", ");
    format!("({text} IN ({list}) OR rtrim({text}) IN ({list}))")
}

/// The row's time column, if it has no zone and none is configured.
///
/// # Errors
/// An error of the server or of the connection; the table does not exist.
pub async fn time_without_zone(
    client: &Client,
    spec: &PollSpec,
) -> Result<Option<String>, SourceError> {
    let shape = shape(client, &spec.table, &spec.id).await?;
    let time = spec.time.as_ref().filter(|_| spec.zone.is_none());
    Ok(time.filter(|time| shape.time_type(time).lacks_zone()).cloned())
}

fn declare(
    spec: &PollSpec,
    shape: &TableShape,
    select: &RowSelection<'_>,
    is_number: bool,
) -> String {
    let column = |name: &str| format!("o.{}", ident(name));
    let columns: Vec<String> = shape.columns.iter().map(|c| column(&c.name)).collect();
    // As the stream has the value: a cast to text differs for some types.
    let text = |name: &str| format!("concat({})", column(name));
    let id = text(&spec.id);
    let mut filter = Vec::new();
    if !select.ids.is_empty() {
        let ids: Vec<&str> = select.ids.iter().map(String::as_str).collect();
        filter.push(asked(&id, &ids));
    }
    if let Some((kind, of)) = select.aggregate {
        for (name, value) in [(&spec.aggregate_type, kind), (&spec.aggregate_id, of)] {
            filter.push(asked(&text(name), &[value]));
        }
    }
    // Of an ambiguous local time the instant counts by which the row is selected: better one row too many.
    for (bound, sign, twice) in
        [(select.since, ">=", AmbiguousTime::Later), (select.until, "<", AmbiguousTime::Earlier)]
    {
        if let (Some(bound), Some(time)) = (bound, &spec.time) {
            let micros = bound.unix_micros;
            let at = shape.instant(spec.zone.as_ref(), "o", time, twice);
            filter.push(format!(
                "{at}::timestamptz {sign} 'epoch'::timestamptz + interval '{micros} microseconds'"
            ));
        }
    }
    if let Some(after) = select.after.filter(|_| is_number) {
        filter.push(format!("{} > {}::numeric", column(&spec.id), literal(after)));
    }
    let filter = if filter.is_empty() { "true".to_owned() } else { filter.join("\n    AND ") };
    format!(
        "BEGIN READ ONLY;\nDECLARE postrider_replay NO SCROLL CURSOR WITH HOLD FOR\n  SELECT {id}, {}\n  \
         FROM {}\n  ORDER BY {};\nCOMMIT",
        columns.join(", "),
        source(spec, shape, &filter),
        order(spec, shape).join(", ")
    )
}

fn text(row: &SimpleQueryRow, index: usize) -> Result<Option<&str>, SourceError> {
    row.try_get(index).map_err(|error| {
        SourceError::new(SourceErrorKind::Protocol, "read a row of the outbox table")
            .caused_by(error)
    })
}
