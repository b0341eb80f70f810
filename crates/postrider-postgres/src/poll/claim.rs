//! What was claimed: rows as the stream would send them, and where each lies so that it can be marked.

use super::order::{order, source};
use super::spec::PollSpec;
use super::sql::{HUGE, Keep, bound, key, sizes, stored, to_publish, unpublished, value};
use super::table::{self, Shape, TableColumn};
use crate::locks::{self, Holder};
use crate::names::{TableName, ident, literal};
use bytes::{BufMut, Bytes, BytesMut};
use pg_replication::error::{SourceError, SourceErrorKind};
use pg_replication::lsn::Lsn;
use postrider_core::event::PgTime;
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
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

// Rows by their ids: what a repair reads, in the order of a list that was made before.
//
// It locks nothing and marks nothing. The rows leave as pgoutput Insert messages in a [`Claim`], as polling's do.

/// Ids that one statement asks for.
const IDS_MAX: usize = 10_000;

/// The outbox table as the catalog has it, and what SQL says of its rows (`o`).
#[derive(Clone, Debug)]
pub struct Table {
    spec: PollSpec,
    shape: Shape,
    id: TableColumn,
}

/// How rows are found by the texts of their ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// By value, where the type of the id allows it: an index serves.
    Value,
    /// By text: the whole table is read.
    Text,
}

/// Some of the rows that were asked for.
#[derive(Debug)]
pub struct Page {
    /// The rows. Its position is [`Lsn::ZERO`].
    pub claim: Claim,
    /// Which id each row has: its place among those asked for.
    pub places: Vec<usize>,
    /// How many of the ids were looked at: those among them that no row has are not in the table. The others are to
    /// be asked for again.
    pub looked_at: usize,
}

impl Table {
    /// Reads what the table looks like.
    ///
    /// # Errors
    /// What the server says; 42P01 and 42703 where table or columns are missing.
    pub async fn read(client: &Client, spec: PollSpec) -> Result<Self, SourceError> {
        let shape = table::read(client, &spec).await?;
        let id = shape.id(&spec.table, &spec.id)?.clone();
        Ok(Self { spec, shape, id })
    }

    /// The names it was read with.
    pub fn spec(&self) -> &PollSpec {
        &self.spec
    }

    /// As [`super::Poller::relation`].
    pub fn relation(&self) -> Bytes {
        self.shape.relation(&self.spec.table)
    }

    /// Its OID.
    pub fn oid(&self) -> u32 {
        self.shape.oid
    }

    /// Whether ids are numbers.
    pub fn id_is_number(&self) -> bool {
        self.id.number
    }

    /// The id of a row (`o`) as one text: as the stream has it.
    pub fn id(&self) -> String {
        self.id.text("o")
    }

    /// The order of an aggregate's rows (of [`Self::source`]), first key first, as polling has it.
    pub fn order(&self) -> Vec<String> {
        order(&self.spec, &self.shape)
    }

    /// What follows FROM for the rows (`o`) for which `filter` holds, where they are to be ordered.
    pub fn source(&self, filter: &str) -> String {
        source(&self.spec, &self.shape, filter)
    }

    /// Rows without the layout's mark of success.
    pub fn unmarked(&self) -> String {
        super::marks::unmarked(&self.spec)
    }

    /// `UPDATE` or `DELETE` that gives rows (`o`) the layout's mark of success, without its `WHERE`.
    pub fn success_sql(&self) -> String {
        super::sql::success(&self.spec, &self.shape, "now()")
    }

    /// The bytes of a row's values as they are stored.
    pub fn stored(&self) -> String {
        stored(&self.shape)
    }

    /// As [`super::Poller::keep_value`].
    ///
    /// # Errors
    /// What the server says.
    pub async fn keep_value(&self, client: &Client, keep: &Keep<'_>) -> Result<(), SourceError> {
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

    /// The time column, where it has one that is `timestamptz`.
    pub fn time(&self) -> Option<String> {
        let time = self.spec.time.as_deref()?;
        let column = self.shape.column(time)?;
        (column.type_name == "timestamp with time zone").then(|| format!("o.{}", ident(time)))
    }

    /// Reads `columns` of the rows (`o`) that have one of these ids and meet `filter`, each with the parked rows (`p`)
    /// of the pipeline that have its id.
    ///
    /// # Errors
    /// What the server says.
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
        // Slow, and for ids that the column can't have: it was another one when they were noted.
        let by_text = sql(&format!("{text} = ANY ($1::text[])"));
        let failed =
            |e| SourceError::control(format!("look at rows of table {}", self.spec.table), e);
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

    /// The rows of these ids, as far as [`super::CLAIM_BYTES_MAX`] goes; one row is always taken. Outside of a
    /// transaction: ids that the column can't have are an error of a statement, and are looked for by text then.
    ///
    /// # Errors
    /// What the server says.
    pub async fn fetch(
        &self,
        client: &Client,
        ids: &[String],
        by: By,
    ) -> Result<Page, SourceError> {
        let doing = || format!("read listed rows of table {}", self.spec.table);
        let answer = match client.simple_query(&self.fetch_sql(ids, by)).await {
            Err(error) if by == By::Value && alien(&error) => {
                client.simple_query(&self.fetch_sql(ids, By::Text)).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|error| SourceError::control(doing(), error))?;
        let look = Look::read(&answer, &self.shape)?;
        let places: Vec<usize> = look
            .numbers
            .iter()
            .map(|number| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX))
            .collect();
        let whole = look.rows.len() >= look.candidates;
        let looked_at = if whole { ids.len() } else { places.last().map_or(0, |place| place + 1) };
        let Look { rows, places: tids, keys, large, claimed_at, .. } = look;
        let claim = Claim {
            rows,
            at: Lsn::ZERO,
            claimed_at,
            expired: 0,
            withheld: 0,
            missed: Missed::default(),
            more: true,
            places: tids,
            keys,
            large,
        };
        Ok(Page { claim, places, looked_at })
    }

    /// As [`super::sql::claim`] answers. The time is that of the beginning: the rows are not locked, and a row that is
    /// written meanwhile under the id of another one is later than it.
    fn fetch_sql(&self, ids: &[String], by: By) -> String {
        let wanted: Vec<String> = ids.iter().map(|id| literal(id)).collect();
        let by_value = self.id.is_listed("o").filter(|_| by == By::Value);
        let (values_of, is_listed) = match by_value {
            Some(is_listed) => (self.id.type_name.as_str(), is_listed),
            None => ("text", format!("{} = w.text", self.id())),
        };
        let (mut carried, mut values) = (String::new(), String::new());
        for (at, column) in self.shape.columns.iter().enumerate() {
            let name = ident(&column.name);
            let _infallible = write!(carried, ", o.{name} AS c{at}");
        }
        // The table's own names may be ours.
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

/// Whether a statement failed for a value that its type can't have.
fn alien(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| state.code().starts_with("22"))
}
