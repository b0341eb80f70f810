//! The outbox table as a repair reads it: rows by their ids, in the order of a list. No row is locked, and none gets a
//! status.

use super::claim::{Claim, ClaimAnswer, MissedRows};
use super::order::{order, source};
use super::spec::PollSpec;
use super::sql::{HUGE, PayloadCopy, bound, key, sizes, stored, to_publish, unpublished, value};
use super::table::{self, TableColumn, TableShape};
use crate::names::{TableName, fitted, ident, literal};
use crate::times::AmbiguousTime;
use crate::wire::Lsn;
use pg_replication::error::SourceError;
use postrider_core::outbox_rows::WritingTransaction;
use postrider_core::row::OwnedTable;
use postrider_core::store::PipelineKey;
use std::fmt::Write as _;
use tokio_postgres::Client;

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

    /// The condition for rows (`o`) without the layout's status of success.
    pub fn unmarked(&self) -> String {
        super::row_status::unmarked(&self.spec, "o")
    }

    /// Statements that create an index of these rows for a partition, and for those that are created later. Writers are
    /// not held up.
    pub(crate) fn unmarked_index(&self, partition: &TableName) -> String {
        let (id, condition) = (ident(&self.spec.id), super::row_status::unmarked(&self.spec, ""));
        let root = &self.spec.table;
        // A name, so that the statement that another partition prints does not create a second index of the table.
        let name = ident(&fitted(&root.name, "_unmarked"));
        format!(
            "CREATE INDEX CONCURRENTLY ON {partition} ({id}) WHERE {condition}; CREATE INDEX IF NOT EXISTS {name} ON \
             ONLY {root} ({id}) WHERE {condition};"
        )
    }

    /// The condition for rows (`o`) that retention may remove when they are published; `None`: all of them.
    pub fn removable(&self) -> Option<String> {
        super::row_status::removable(&self.spec)
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

    /// The point in time of a column of a row (`o`), as SQL; `None` if the table has no such column. Of an ambiguous
    /// local time it is the later instant.
    pub(crate) fn instant(&self, column: &str) -> Option<String> {
        self.shape.column(column)?;
        Some(self.shape.instant(self.spec.zone.as_ref(), "o", column, AmbiguousTime::Later))
    }

    /// Whether a column may have times without a zone.
    pub(crate) fn lacks_zone(&self, column: &str) -> bool {
        self.shape.time_type(column).lacks_zone()
    }

    /// The names of its columns, in order.
    pub(crate) fn column_names(&self) -> impl Iterator<Item = &str> {
        self.shape.columns.iter().map(|column| column.name.as_str())
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
                 ON p.pipeline = $2 AND p.shard = $3 AND p.event_id = {text} WHERE {wanted} AND {filter}"
            )
        };
        let by_value = sql(&self.id.is_one_of("o", "$1::text[]"));
        // Slow, and only for ids that the column cannot have, because the column was another one when the ids were
        // stored.
        let by_text = sql(&format!("{text} = ANY ($1::text[])"));
        let failed = |e| SourceError::control(format!("read rows of table {}", self.spec.table), e);
        let mut found = Vec::new();
        for ids in ids.chunks(IDS_MAX) {
            let PipelineKey { pipeline, shard } = &self.spec.key;
            let rows = match client.query(&by_value, &[&ids, pipeline, shard]).await {
                Err(error) if alien(&error) => {
                    client.query(&by_text, &[&ids, pipeline, shard]).await
                }
                answer => answer,
            };
            found.extend(rows.map_err(failed)?);
        }
        Ok(found)
    }

    /// For each row of a claim, what distinguishes it from another row that gets its id later: the transaction that
    /// wrote it, and its own time.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub(crate) async fn written(
        &self,
        client: &Client,
        claim: &Claim,
    ) -> Result<Vec<WritingTransaction>, SourceError> {
        let rows = 0..claim.rows.len();
        let time = self.time().and(self.spec.time.as_deref());
        let column =
            self.shape.columns.iter().position(|column| Some(column.name.as_str()) == time);
        let text = |row: usize| {
            let row = claim.rows.row(row)?;
            std::str::from_utf8(row.text(column?)?).ok()
        };
        let times: Vec<Option<&str>> = rows.clone().map(text).collect();
        let sql = "SELECT CASE WHEN isfinite(t.at::timestamptz) \
                     THEN floor(extract(epoch FROM t.at::timestamptz) * 1000)::int8 END \
                   FROM unnest($1::text[]) WITH ORDINALITY AS t(at, n) ORDER BY t.n";
        let failed = |e| SourceError::control("read the times of listed rows", e);
        let times = client.query(sql, &[&times]).await.map_err(failed)?;
        let written = |row: usize| {
            let time_ms = times.get(row).map_or(Ok(None), |time| time.try_get(0))?;
            // No row has been written at the time of the claim. With it the id alone does not decide.
            let committed = Some(claim.claimed_at);
            Ok(WritingTransaction { xid: Some(claim.xmin(row)), committed, time_ms })
        };
        rows.map(written).collect::<Result<_, _>>().map_err(failed)
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
        let claimed = ClaimAnswer::read(&answer, &self.shape, None)?;
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
