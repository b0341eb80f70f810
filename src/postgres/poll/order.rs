//! The order in which the rows of an aggregate are published, wherever the table is read: polling, repair, backfill,
//! replay.
//!
//! A number is assigned in order by the session that has locked the aggregate. Other ids have no order, so rows are
//! sorted by the time column. Rows of the same time are mostly of one transaction: rows that have failed come first,
//! the others in the order of insertion (transaction, command, place).
//!
//! PostgreSQL does not log the command (`cmin`). The redo of an insert sets it to 0 (`heap_xlog_insert`), so after a
//! crash, or on a promoted standby, a row has its command only where its page was written, or logged as a whole, after
//! the row was inserted; the rows behind it in that page have 0. A `DELETE` or `UPDATE` that is rolled back also
//! leaves its own command in the row. In a page the rows of a transaction lie in the order of insertion, so commands
//! that go back in a page were lost, and the places alone decide then for that transaction. Places mislead where the
//! transaction went on in a page before the one it began in; and commands that were lost can't be told from others
//! where they do not go back. So the order of insertion is not always to be had.

use super::spec::PollSpec;
use super::table::Shape;
use crate::postgres::error::SourceError;
use crate::postgres::names::ident;
use tokio_postgres::Client;

/// Columns of [`source`] beside the table's own, which are not called so: what the transaction's age and the row's
/// failures sort by; the command as the row has it, and the highest of the rows up to it in its page; and the command,
/// or 0 where that was lost.
const AGE: &str = "\"postrider.age\"";
const FAILURES: &str = "\"postrider.failures\"";
const CMIN: &str = "\"postrider.cmin\"";
const HIGHEST: &str = "\"postrider.highest\"";
const COMMAND: &str = "\"postrider.command\"";

/// The rows of the table for which `filter` holds, as `o`, with what [`order`] asks for: what follows FROM, with the
/// WHERE where there is one.
pub(in crate::postgres) fn source(spec: &PollSpec, shape: &Shape, filter: &str) -> String {
    let table = &spec.table;
    if by_number(spec, shape) {
        return format!("{table} AS o\n  WHERE {filter}");
    }
    let of_row = transaction(spec, "o", false).join(", ");
    let of_source = transaction(spec, "o", true).join(", ");
    let failures = spec.marks.failures();
    let failures = failures.map(|name| format!(", - o.{} AS {FAILURES}", ident(name)));
    format!(
        "(SELECT o.*, CASE WHEN bool_or(o.{CMIN} < o.{HIGHEST}) OVER (PARTITION BY {of_source})\n      \
           THEN 0 ELSE o.{CMIN} END AS {COMMAND}\n    \
         FROM (SELECT o.*, o.tableoid, o.ctid, o.xmin, - age(o.xmin) AS {AGE}{failures},\n        \
             o.cmin::text::int8 AS {CMIN}, max(o.cmin::text::int8) OVER (\n          \
               PARTITION BY {of_row}, o.tableoid, (o.ctid::text::point)[0]\n          \
               ORDER BY o.ctid ROWS UNBOUNDED PRECEDING) AS {HIGHEST}\n      \
           FROM {table} AS o\n      WHERE {filter}) AS o) AS o",
        failures = failures.unwrap_or_default(),
    )
}

/// The order of rows of [`source`], first key first.
pub(in crate::postgres) fn order(spec: &PollSpec, shape: &Shape) -> Vec<String> {
    keys(spec, shape, "o", true)
}

/// The same keys of a row of the table itself, as far as it tells.
pub(super) fn key_columns(spec: &PollSpec, shape: &Shape, row: &str) -> Vec<String> {
    keys(spec, shape, row, false)
}

fn keys(spec: &PollSpec, shape: &Shape, row: &str, of_source: bool) -> Vec<String> {
    let id = shape
        .column(&spec.id)
        .map_or_else(|| format!("{row}.{}", ident(&spec.id)), |column| column.sort_key(row));
    if by_number(spec, shape) {
        return vec![id];
    }
    let mut keys = transaction(spec, row, of_source);
    let command =
        if of_source { format!("{row}.{COMMAND}") } else { format!("{row}.cmin::text::int8") };
    keys.extend([command, format!("{row}.ctid"), id]);
    keys
}

fn by_number(spec: &PollSpec, shape: &Shape) -> bool {
    shape.column(&spec.id).is_some_and(|column| column.number)
}

/// The keys before the command: rows that are equal in them are of one transaction.
fn transaction(spec: &PollSpec, row: &str, of_source: bool) -> Vec<String> {
    let time = spec.time.iter().map(|time| format!("{row}.{}", ident(time)));
    let failures = spec.marks.failures().map(|failures| {
        if of_source { format!("{row}.{FAILURES}") } else { format!("- {row}.{}", ident(failures)) }
    });
    let age = if of_source { format!("{row}.{AGE}") } else { format!("- age({row}.xmin)") };
    time.chain(failures).chain([age]).collect()
}

/// Why a table does not record the order of events of one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::postgres) enum Unrecorded {
    /// The id is no number, and no time is named.
    NoTime,
    /// The time is that of the transaction, or of the statement: its default, as the server writes it.
    Default(String),
}

/// Whether the id (`$2`) is a number, or a domain over one; and the default of the time column (`$3`).
const DEFAULT_SQL: &str = "\
SELECT CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END IN (20, 21, 23, 1700), \
  (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a \
   JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
   WHERE a.attrelid = $1 AND a.attname = $3::text) \
FROM pg_attribute i JOIN pg_type t ON t.oid = i.atttypid WHERE i.attrelid = $1 AND i.attname = $2::text";

/// Calls in a default of which events of one transaction, or of one statement, get the same time.
const SAME_FOR_ALL: [&str; 6] = [
    "now()",
    "CURRENT_TIMESTAMP",
    "LOCALTIMESTAMP",
    "transaction_timestamp()",
    "statement_timestamp()",
    "CURRENT_DATE",
];

/// Whether the table records in which order the events of one transaction were inserted, as far as its definition
/// tells: times that the application writes are its own.
///
/// # Errors
/// What the server says.
pub(in crate::postgres) async fn unrecorded(
    client: &Client,
    oid: u32,
    spec: &PollSpec,
) -> Result<Option<Unrecorded>, SourceError> {
    let failed = |e| SourceError::control("read the default of the time column", e);
    let row = client.query_opt(DEFAULT_SQL, &[&oid, &spec.id, &spec.time]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    if row.try_get(0).map_err(failed)? {
        return Ok(None);
    }
    if spec.time.is_none() {
        return Ok(Some(Unrecorded::NoTime));
    }
    let default: Option<String> = row.try_get(1).map_err(failed)?;
    let same = |default: &String| SAME_FOR_ALL.iter().any(|call| default.contains(call));
    Ok(default.filter(same).map(Unrecorded::Default))
}
