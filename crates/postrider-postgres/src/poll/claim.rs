//! Claimed rows: their contents as the stream would send them, and their places, by which they get their status. Also
//! the outbox table as a repair reads it, by ids.

use super::order::{order, source};
use super::spec::PollSpec;
use super::sql::{HUGE, PayloadCopy, bound, key, sizes, stored, to_publish, unpublished, value};
use super::table::{self, TableColumn, TableShape};
use crate::lock_holders::{self, Holder};
use crate::lsn::Lsn;
use crate::names::{TableName, ident, literal};
use pg_replication::error::{SourceError, SourceErrorKind};
use postrider_core::row::{OwnedTable, TableId};
use postrider_core::row_buffer::RowBuffer;
use postrider_core::timestamp::Timestamp;
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
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

    /// A claim of one row for each aggregate, for tests.
    #[doc(hidden)]
    pub fn of_aggregates(aggregates: &[&str]) -> Self {
        let mut rows = RowBuffer::default();
        for _ in aggregates {
            rows.push_row(TableId::default());
        }
        Self {
            rows,
            at: Lsn::ZERO,
            claimed_at: Timestamp::default(),
            expired: 0,
            withheld: 0,
            missed: MissedRows::default(),
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

/// The outcome of one claimed row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RowOutcome {
    /// The broker has acknowledged the event.
    Published,
    /// The event was refused. Only for a table that keeps failures ([`super::PollSpec::keeps_failures`]).
    Failed {
        /// The reason, without values of the row.
        error: String,
        /// A stable error code.
        code: &'static str,
    },
    /// No outcome: an earlier row of its aggregate failed.
    Held,
    /// The event was moved to `postrider.parked`: its row counts as published.
    Moved,
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
    /// Reads the answer to [`super::sql::claim`].
    pub(super) fn read(
        answer: &[SimpleQueryMessage],
        shape: &TableShape,
    ) -> Result<Self, SourceError> {
        let mut claimed = Self::default();
        let mut rows = Vec::with_capacity(answer.len());
        for message in answer {
            let SimpleQueryMessage::Row(row) = message else { continue };
            if row.len() == HEAD + shape.columns.len() {
                claimed.candidates = number(text(row, 5)?)?;
                rows.push(AnswerRow::read(row)?);
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
        self.claimed_at = crate::lsn::from_pg_micros(number(text(row, 1)?)?);
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

/// Most ids of one statement.
const IDS_MAX: usize = 10_000;

/// The outbox table as the catalog describes it, and SQL about its rows (`o`). A repair reads rows by their ids, in the
/// order of its list. It locks no rows and sets no status; the rows leave in a [`Claim`], as those of polling do.
#[derive(Clone, Debug)]
pub struct OutboxTable {
    spec: PollSpec,
    shape: TableShape,
    id: TableColumn,
}

/// How rows are found by the texts of their ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdLookup {
    /// By value, if the type of the id allows it: an index is used.
    Value,
    /// By text: the whole table is read.
    Text,
}

/// Some of the requested rows.
#[derive(Debug)]
pub struct FetchedPage {
    /// The rows. The claim's position is [`Lsn::ZERO`].
    pub claim: Claim,
    /// For each row, the index of its id among the requested ids.
    pub places: Vec<usize>,
    /// How many of the ids were read: those among them without a row are not in the table. The remaining ids have to be
    /// requested again.
    pub looked_at: usize,
}

impl OutboxTable {
    /// Reads the table's definition.
    ///
    /// # Errors
    /// An error of the server or of the connection; 42P01 or 42703 if the table or a column does not exist.
    pub async fn read(client: &Client, spec: PollSpec) -> Result<Self, SourceError> {
        let shape = table::read(client, &spec).await?;
        let id = shape.id(&spec.table, &spec.id)?.clone();
        Ok(Self { spec, shape, id })
    }

    /// The names with which it was read.
    pub fn spec(&self) -> &PollSpec {
        &self.spec
    }

    /// The description of the table.
    pub fn description(&self) -> OwnedTable {
        self.shape.description(&self.spec.table)
    }

    /// Whether ids are numbers.
    pub fn id_is_number(&self) -> bool {
        self.id.number
    }

    /// The id of a row (`o`) as one text, as the stream has it.
    pub fn id(&self) -> String {
        self.id.text("o")
    }

    /// The order of an aggregate's rows (of [`Self::source`]), first key first, as polling has it.
    pub fn order(&self) -> Vec<String> {
        order(&self.spec, &self.shape)
    }

    /// What follows FROM for the ordered rows (`o`) that meet `filter`.
    pub fn source(&self, filter: &str) -> String {
        source(&self.spec, &self.shape, filter)
    }

    /// The condition for rows without the layout's status of success.
    pub fn unmarked(&self) -> String {
        super::row_status::unmarked(&self.spec)
    }

    /// `UPDATE` or `DELETE` that sets the layout's status of success for rows (`o`), without its `WHERE`.
    pub fn success_sql(&self) -> String {
        super::sql::success(&self.spec, &self.shape, "now()")
    }

    /// The stored size of a row's values. Unit: bytes.
    pub fn stored(&self) -> String {
        stored(&self.shape)
    }

    /// As [`super::Poller::keep_value`].
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn keep_value(
        &self,
        client: &Client,
        keep: &PayloadCopy<'_>,
    ) -> Result<(), SourceError> {
        keep.run(client, &self.spec, &self.shape).await
    }

    /// Type and id of a row's aggregate, as texts.
    pub fn aggregate(&self) -> (String, String) {
        let text = |name: &str| format!("concat(o.{})", ident(name));
        (text(&self.spec.aggregate_type), text(&self.spec.aggregate_id))
    }

    /// An aggregate as one text.
    pub fn key(&self) -> String {
        key(&self.spec, "o")
    }

    /// The time column, if the table has one of type `timestamptz`.
    pub fn time(&self) -> Option<String> {
        let time = self.spec.time.as_deref()?;
        let column = self.shape.column(time)?;
        (column.type_name == "timestamp with time zone").then(|| format!("o.{}", ident(time)))
    }

    /// Reads `columns` of the rows (`o`) that have one of these ids and meet `filter`, each with the parked rows (`p`)
    /// of the pipeline that have its id.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub(crate) async fn beside_parked(
        &self,
        client: &Client,
        ids: &[&str],
        columns: &str,
        filter: &str,
    ) -> Result<Vec<tokio_postgres::Row>, SourceError> {
        let (table, text) = (&self.spec.table, self.id());
        let sql = |wanted: &str| {
            format!(
                "SELECT {columns} FROM {table} AS o JOIN postrider.parked AS p \
                 ON p.pipeline = $2 AND p.event_id = {text} WHERE {wanted} AND {filter}"
            )
        };
        let by_value = sql(&self.id.is_one_of("o", "$1::text[]"));
        // Slow, and only for ids that the column cannot have, because the column was another one when the ids were
        // stored.
        let by_text = sql(&format!("{text} = ANY ($1::text[])"));
        let failed = |e| SourceError::control(format!("read rows of table {}", self.spec.table), e);
        let mut found = Vec::new();
        for ids in ids.chunks(IDS_MAX) {
            let rows = match client.query(&by_value, &[&ids, &self.spec.pipeline]).await {
                Err(error) if alien(&error) => {
                    client.query(&by_text, &[&ids, &self.spec.pipeline]).await
                }
                answer => answer,
            };
            found.extend(rows.map_err(failed)?);
        }
        Ok(found)
    }

    /// Rows (`o`) that are not published.
    pub(crate) fn unpublished(&self) -> String {
        unpublished(&self.spec, &self.shape, "o")
    }

    /// Rows (`o`) that are not published and have not expired.
    pub(crate) fn to_publish(&self) -> String {
        to_publish(&self.spec, &self.shape)
    }

    /// Reads the rows with these ids, up to [`super::CLAIM_BYTES_MAX`]; at least one row is returned. Must run outside
    /// a transaction: an id that the column cannot have makes the statement fail, and the ids are then searched for by
    /// their text.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn fetch(
        &self,
        client: &Client,
        ids: &[String],
        by: IdLookup,
    ) -> Result<FetchedPage, SourceError> {
        let doing = || format!("read listed rows of table {}", self.spec.table);
        let answer = match client.simple_query(&self.fetch_sql(ids, by)).await {
            Err(error) if by == IdLookup::Value && alien(&error) => {
                client.simple_query(&self.fetch_sql(ids, IdLookup::Text)).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| SourceError::control(doing(), error))?;
        let claimed = ClaimAnswer::read(&answer, &self.shape)?;
        let places: Vec<usize> = claimed
            .numbers
            .iter()
            .map(|number| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX))
            .collect();
        let whole = claimed.rows.len() >= claimed.candidates;
        let looked_at = if whole { ids.len() } else { places.last().map_or(0, |place| place + 1) };
        let ClaimAnswer { rows, places: tids, keys, large, claimed_at, .. } = claimed;
        let claim = Claim {
            rows,
            at: Lsn::ZERO,
            claimed_at,
            expired: 0,
            withheld: 0,
            missed: MissedRows::default(),
            more: true,
            places: tids,
            keys,
            large,
        };
        Ok(FetchedPage { claim, places, looked_at })
    }

    /// The answer has the columns of [`super::sql::claim`]. Its time is that of the statement's beginning: the rows are
    /// not locked, and a row that is written meanwhile with the id of another one is later than that.
    fn fetch_sql(&self, ids: &[String], by: IdLookup) -> String {
        let wanted: Vec<String> = ids.iter().map(|id| literal(id)).collect();
        let by_value = self.id.is_listed("o").filter(|_| by == IdLookup::Value);
        let (values_of, is_listed) = match by_value {
            Some(is_listed) => (self.id.type_name.as_str(), is_listed),
            None => ("text", format!("{} = w.text", self.id())),
        };
        let (mut carried, mut values) = (String::new(), String::new());
        for (at, column) in self.shape.columns.iter().enumerate() {
            let name = ident(&column.name);
            let _infallible = write!(carried, ", o.{name} AS c{at}");
        }
        // The table's own column names may be those used here.
        let mut shape = self.shape.clone();
        for (at, column) in shape.columns.iter_mut().enumerate() {
            column.name = format!("c{at}");
            let _infallible = write!(values, ", {}", value(column, "o.huge"));
        }
        format!(
            "WITH RECURSIVE found AS (\n  \
               SELECT w.n AS wanted, o.tableoid AS oid, o.ctid AS tid, {key} AS key, o.xmin AS xmin{carried}\n  \
               FROM (SELECT ARRAY[{wanted}]::text[] AS ids) AS l\n  \
               CROSS JOIN unnest(l.ids, l.ids::{values_of}[]) WITH ORDINALITY AS w(text, id, n)\n  \
               JOIN {table} AS o ON {is_listed}\n\
             ), first AS MATERIALIZED (\n  \
               SELECT o.*, row_number() OVER w AS n,\n    {sizes}\n  \
               FROM found AS o WINDOW w AS (ORDER BY o.wanted ROWS UNBOUNDED PRECEDING)\n\
             ), {bound}\n\
             SELECT o.wanted, o.key, o.oid, o.tid, false, (SELECT count(*) FROM first), true, o.xmin, o.huge{values}\n\
             FROM (SELECT f.*, {HUGE} AS huge FROM first AS f WHERE f.n <= (SELECT last FROM bound)) AS o;\n\
             SELECT pg_current_wal_insert_lsn(), \
               (extract(epoch FROM statement_timestamp()) * 1000000)::int8 - 946684800000000",
            key = self.key(),
            wanted = wanted.join(", "),
            table = self.spec.table,
            sizes = sizes(&shape),
            bound = bound(&self.spec.table.to_string(), &self.shape),
        )
    }
}

/// Whether a statement failed because of a value that its type cannot have.
fn alien(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| state.code().starts_with("22"))
}
