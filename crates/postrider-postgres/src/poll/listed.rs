//! Rows by their ids: what a repair reads, in the order of a list that was made before.
//!
//! It locks nothing and marks nothing. The rows leave as pgoutput Insert messages in a [`Claim`], as polling's do.

use super::claim::{Claim, Look, Missed};
use super::large::Keep;
use super::order::{order, source};
use super::spec::PollSpec;
use super::sql::{HUGE, bound, key, sizes, stored, to_publish, unpublished, value};
use super::table::{self, Column, Shape};
use crate::names::{ident, literal};
use bytes::Bytes;
use pg_replication::error::SourceError;
use pg_replication::lsn::Lsn;
use std::fmt::Write as _;
use tokio_postgres::Client;

/// Ids that one statement asks for.
const IDS_MAX: usize = 10_000;

/// The outbox table as the catalog has it, and what SQL says of its rows (`o`).
#[derive(Clone, Debug)]
pub struct Table {
    spec: PollSpec,
    shape: Shape,
    id: Column,
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
        super::settle::success(&self.spec, &self.shape, "now()")
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
