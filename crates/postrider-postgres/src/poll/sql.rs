//! The claim as SQL. Pure text; every name and value of a user is quoted.
//!
//! The session's `search_path` is empty, so a bare function or type is `pg_catalog`'s. The text goes as a simple
//! query: values come back as the types' own output, as pgoutput sends them, and begin, claim and clock are one
//! round trip. It is planned again each time, on purpose: a plan made while the outbox was empty is the wrong one for
//! a backlog.

use super::claim::{Claim, Place};
use super::dialect::Dialect;
use super::order::{age_column, before, order, source};
use super::spec::PollSpec;
use super::table::{TableColumn, TableShape};
use crate::names::{ident, literal};
use crate::statement::{Statement, StatementError};
use pg_replication::error::{SourceError, SourceErrorKind};
use postrider_core::event::Position;
use postrider_core::outbox_rows::RowOutcome;
use postrider_core::row::Row;
use postrider_core::row_state::{Done, FailureLimit};
use postrider_core::store::PipelineKey;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tokio_postgres::Client;

/// Most bytes of the rows of one claim, by the sizes of their values; at least one row is claimed.
pub const CLAIM_BYTES_MAX: usize = 8 << 20;

/// Most bytes of one row's values, as text. A larger row is parked without its large values: about six copies of a
/// value exist while it is published, and the service must run in 512 MB.
pub const ROW_BYTES_MAX: usize = 64 << 20;

/// Values up to this size are read even of a row that is too large.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// The parameters of one claim.
pub(super) struct ClaimQuery<'a> {
    pub(super) limit: usize,
    /// Only rows that this snapshot sees, and rows for which polling has made an attempt before.
    pub(super) visible_in: Option<&'a str>,
    /// Aggregates to leave out.
    pub(super) without: Vec<&'a str>,
    /// Include rows that are delayed or have failed: no row waits for another one.
    pub(super) unready: bool,
}

/// Begins the transaction, claims rows, and reads the clock and the OID of the table that has the name now.
///
/// A row of the answer has these columns: its number in the order, by which the reader sorts; the aggregate's key; OID
/// and place of the row; whether it has expired; how many rows were considered; whether it could be locked; the
/// transaction that wrote it; whether it is larger than [`ROW_BYTES_MAX`]; and the table's columns. A row that could
/// not be locked is locked by another session, has an unready row before it, or was deleted meanwhile.
///
/// `NOT IN` and no join, because the planner underestimates how many rows are locked, and would compare every row with
/// every other one.
pub(super) fn claim(spec: &PollSpec, shape: &TableShape, ask: &ClaimQuery<'_>) -> String {
    let table = &spec.table;
    let ready = if ask.unready { unpublished(spec, shape, "o") } else { ready(spec, shape, "o") };
    let order = order(spec, shape);
    let mut filter = ready.clone();
    if let Some(snapshot) = ask.visible_in {
        let _infallible = write!(filter, "\n    AND {}", visible(spec, snapshot));
    }
    if !ask.without.is_empty() {
        let keys: Vec<String> = ask.without.iter().map(|key| literal(key)).collect();
        let key = key(spec, "o");
        let _infallible =
            write!(filter, "\n    AND {key} <> ALL (ARRAY[{}]::text[])", keys.join(", "));
    }
    let order_columns: Vec<String> =
        order.iter().enumerate().map(|(at, key)| format!("{key} AS o{at}")).collect();
    let values: Vec<String> = (0..)
        .zip(&shape.columns)
        .map(|(at, c)| format!("{} AS c{at}", value(c, "f.huge")))
        .collect();
    let names: Vec<String> = (0..shape.columns.len()).map(|at| format!(", g.c{at}")).collect();
    let blocker = blocker(spec, shape)
        .filter(|_| !ask.unready)
        .map_or_else(String::new, |blocker| format!("NOT EXISTS (\n    {blocker})\n    AND "));
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;\n\
         WITH RECURSIVE first AS MATERIALIZED (\n  \
           SELECT o.tableoid AS oid, o.ctid AS tid, o.{kind} AS kind, o.{id} AS id, {key} AS key,\n    \
             {order_columns},{age}\n    {expired} AS expired, row_number() OVER w AS n,\n    {sizes}\n  \
           FROM {source}\n  \
           WINDOW w AS (ORDER BY {order} ROWS UNBOUNDED PRECEDING)\n  ORDER BY {order}\n  LIMIT {limit}\n\
         ), {bound}, free AS MATERIALIZED (\n  \
           SELECT f.n, f.oid, f.tid, f.key, f.expired, {huge} AS huge FROM first AS f\n  \
           WHERE {blocker}f.n <= (SELECT last FROM bound)\n\
         ), got AS MATERIALIZED (\n  \
           SELECT f.n, f.key, o.tableoid AS oid, o.ctid AS tid, f.expired, f.huge, o.xmin AS xmin, {values}\n  \
           FROM free AS f JOIN {table} AS o ON o.tableoid = f.oid AND o.ctid = f.tid\n  \
           WHERE {ready}\n  FOR UPDATE OF o SKIP LOCKED\n\
         )\n\
         SELECT f.n, f.key, f.oid, f.tid, f.expired, (SELECT count(*) FROM first), false, NULL, false{nothing}\n\
         FROM first AS f\n\
         WHERE f.n <= (SELECT last FROM bound) AND f.n NOT IN (SELECT g.n FROM got AS g)\n\
         UNION ALL\n\
         SELECT g.n, g.key, g.oid, g.tid, g.expired, (SELECT count(*) FROM first), true, g.xmin, g.huge{names}\n\
         FROM got AS g;\n\
         SELECT pg_current_wal_insert_lsn(), \
           (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - 946684800000000, {named}::regclass::oid",
        kind = ident(&spec.aggregate_type),
        id = ident(&spec.aggregate_id),
        key = key(spec, "o"),
        order_columns = order_columns.join(", "),
        age = age_column(spec, shape),
        expired = expired(spec, shape).unwrap_or_else(|| "false".to_owned()),
        sizes = sizes(shape),
        bound = bound(&table.to_string(), shape),
        huge = HUGE,
        source = source(spec, shape, &filter),
        order = order.join(", "),
        limit = ask.limit,
        values = values.join(", "),
        names = names.concat(),
        named = literal(&table.to_string()),
        nothing = ", NULL".repeat(shape.columns.len()),
    )
}

/// An aggregate as one text, as in [`super::claim::Claim`].
pub(super) fn key(spec: &PollSpec, row: &str) -> String {
    format!(
        "concat({row}.{}, chr(31), {row}.{})",
        ident(&spec.aggregate_type),
        ident(&spec.aggregate_id)
    )
}

/// The condition for rows that may be published now, regardless of other rows.
pub(super) fn ready(spec: &PollSpec, shape: &TableShape, row: &str) -> String {
    Dialect::new(spec, shape).condition(&spec.row_state.state.ready, row)
}

/// The condition for rows that are not published, for whatever reason. An expired row is not included.
pub(super) fn unpublished(spec: &PollSpec, shape: &TableShape, row: &str) -> String {
    Dialect::new(spec, shape).condition(&spec.row_state.state.unpublished, row)
}

/// The condition for rows (`o`) that are still to be published: neither published nor expired. A stream skips an
/// expired event, and polling sets its row's status to failed.
pub(super) fn to_publish(spec: &PollSpec, shape: &TableShape) -> String {
    let unpublished = unpublished(spec, shape, "o");
    match expired(spec, shape) {
        Some(expired) => format!("{unpublished} AND NOT {expired}"),
        None => unpublished,
    }
}

/// A query for rows that are not published, are not ready, and hold back the later rows of the same aggregate (that of
/// `f`).
fn blocker(spec: &PollSpec, shape: &TableShape) -> Option<String> {
    let state = spec.row_state.state;
    let unready = if spec.block_key { &state.blocked } else { &state.delayed };
    let unready = Dialect::new(spec, shape).condition(unready.as_ref()?, "b");
    Some(format!(
        "SELECT FROM {} AS b\n    WHERE {unready}\n      AND b.{} = f.kind AND b.{} = f.id\n      AND {}",
        spec.table,
        ident(&spec.aggregate_type),
        ident(&spec.aggregate_id),
        before(spec, shape),
    ))
}

/// The condition for expired rows, which their layout does not publish any more.
fn expired(spec: &PollSpec, shape: &TableShape) -> Option<String> {
    let expiry = spec.row_state.state.expired.as_ref()?;
    Some(Dialect::new(spec, shape).condition(&expiry.condition, "o"))
}

/// The condition for rows that a snapshot sees, by the transaction that wrote them, with the epoch that puts it in the
/// past.
///
/// A row that polling marked as failed has a new version; it belonged to polling before, and still does.
fn visible(spec: &PollSpec, snapshot: &str) -> String {
    let past = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8)";
    let seen = format!(
        "pg_visible_in_snapshot(({past} - (({past} - o.xmin::text::int8) & 4294967295))::text::xid8, \
         {}::pg_snapshot)",
        literal(snapshot)
    );
    match spec.row_state.failures() {
        Some(failures) => format!("({seen} OR o.{} > 0)", ident(failures)),
        None => seen,
    }
}

/// The size of a row's values as text. A compressed value is read for this, except `text`, whose size is in its header.
/// Unit: bytes.
pub(super) fn size(shape: &TableShape) -> String {
    let fixed: usize = 8 * shape.columns.len();
    let varying = shape.columns.iter().filter(|column| column.varies);
    let sizes = varying.map(|column| format!(" + coalesce({}, 0)", size_of(column)));
    format!("{fixed}{}", sizes.collect::<String>())
}

fn size_of(column: &TableColumn) -> String {
    let name = ident(&column.name);
    if column.type_name == "bytea" {
        return format!("2 * octet_length(o.{name})::int8");
    }
    format!(
        "CASE WHEN pg_column_compression(o.{name}) IS NULL THEN pg_column_size(o.{name}) \
         ELSE octet_length(o.{name}::text) END"
    )
}

/// A value, or NULL if the row is too large and the value is not small.
pub(super) fn value(column: &TableColumn, huge: &str) -> String {
    let name = ident(&column.name);
    if !column.varies {
        return format!("o.{name}");
    }
    format!(
        "CASE WHEN {huge} AND {} > {KEPT_BYTES_MAX} THEN NULL ELSE o.{name} END",
        size_of(column)
    )
}

/// The stored size of a row's values, which is known without reading them. Unit: bytes.
pub(super) fn stored(shape: &TableShape) -> String {
    let fixed: usize = 8 * shape.columns.len();
    let names = shape.columns.iter().filter(|c| c.varies).map(|c| ident(&c.name));
    let sizes: Vec<String> =
        names.map(|name| format!(" + coalesce(pg_column_size(o.{name}), 0)")).collect();
    format!("({fixed}::int8{})", sizes.concat())
}

/// For each row, in the order of window `w`: `stored`, the stored size of its values, which is not above their size;
/// `total`, the sum of it so far, without rows that are not read whole; and `packed`, whether a value is compressed.
/// None of these reads a value that is stored outside of its row.
pub(super) fn sizes(shape: &TableShape) -> String {
    let stored = stored(shape);
    let names = shape.columns.iter().filter(|c| c.varies).map(|c| ident(&c.name));
    let packed: Vec<String> =
        names.map(|name| format!("pg_column_compression(o.{name}) IS NOT NULL")).collect();
    let packed = if packed.is_empty() { "false".to_owned() } else { packed.join(" OR ") };
    format!(
        "{stored} AS stored, sum(CASE WHEN {stored} > {ROW_BYTES_MAX} THEN 0 ELSE {stored} END) OVER w AS total,\n    \
         ({packed}) AS packed"
    )
}

/// Whether a row of `first` (`f`) is larger than [`ROW_BYTES_MAX`].
pub(super) const HUGE: &str =
    "(f.stored > (SELECT most FROM bound) OR f.n = ANY ((SELECT huge FROM bound)::int8[]))";

/// Which rows of `first` fit into [`CLAIM_BYTES_MAX`], as `last`, and which are too large. The size of a compressed
/// value is known only when the value is read; if there is one, rows are measured one by one, up to the bound.
///
/// The rows are found by their places in arrays: a join by number would compare every row with every other one.
pub(super) fn bound(table: &str, shape: &TableShape) -> String {
    format!(
        "lines AS MATERIALIZED (\n  \
           SELECT array_agg(f.oid ORDER BY f.n) AS oids, array_agg(f.tid ORDER BY f.n) AS tids, max(f.n) AS last,\n    \
             coalesce(bool_or(f.packed), false) AS packed\n  \
           FROM first AS f WHERE f.total <= {CLAIM_BYTES_MAX} OR f.n = 1\n\
         ), walk AS (\n  \
           SELECT 0::int8 AS n, 0::numeric AS total, 0::int8 AS size FROM lines AS l WHERE l.packed\n  \
           UNION ALL\n  \
           SELECT w.n + 1, w.total + CASE WHEN s.size > {ROW_BYTES_MAX} THEN 0 ELSE s.size END, s.size\n  \
           FROM walk AS w CROSS JOIN LATERAL (\n    \
             SELECT ({size})::int8 AS size FROM {table} AS o\n    \
             WHERE o.tableoid = (SELECT l.oids FROM lines AS l)[w.n + 1]\n      \
               AND o.ctid = (SELECT l.tids FROM lines AS l)[w.n + 1] OFFSET 0) AS s\n  \
           WHERE w.n < (SELECT l.last FROM lines AS l) AND w.total <= {CLAIM_BYTES_MAX}\n\
         ), bound AS MATERIALIZED (\n  \
           SELECT CASE WHEN l.packed THEN (SELECT max(w.n) FROM walk AS w\n    \
               WHERE w.total <= {CLAIM_BYTES_MAX} OR w.n = 1) ELSE l.last END AS last,\n    \
             ARRAY(SELECT w.n FROM walk AS w WHERE w.size > {ROW_BYTES_MAX}) AS huge,\n    \
             {ROW_BYTES_MAX}::int8 AS most FROM lines AS l\n\
         )",
        size = size(shape),
    )
}

/// Locks the rows of a claim again, in a new transaction. For each row that could be locked, the answer has its OID,
/// its place, and the transaction that wrote it.
pub(super) fn lock_again(spec: &PollSpec, rows: &[Place]) -> String {
    let mut by_table: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    for place in rows {
        by_table.entry(place.oid).or_default().push(*place);
    }
    let mut sql = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE".to_owned();
    for (oid, rows) in by_table {
        let _infallible = write!(
            sql,
            ";\nSELECT o.tableoid, o.ctid, o.xmin FROM {} AS o WHERE o.tableoid = {oid} AND o.ctid = ANY ({}) \
             FOR UPDATE OF o SKIP LOCKED",
            spec.table,
            places(&rows)
        );
    }
    sql
}

/// `'{(0,1),(0,2)}'::tid[]`
pub(super) fn places(places: &[Place]) -> String {
    let mut text = String::with_capacity(places.len() * 14 + 10);
    text.push_str("'{");
    for (at, place) in places.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _infallible = write!(text, "{comma}\"({},{})\"", place.block, place.line);
    }
    text.push_str("}'::tid[]");
    text
}

/// Longest error text that is stored in a row. Unit: characters.
pub const ERROR_CHARS_MAX: usize = 500;

/// Statements that set the status of rows, and how many rows they must change.
#[derive(Default, Debug)]
pub(super) struct StatusUpdate {
    pub(super) sql: String,
    pub(super) rows: u64,
}

/// Everything that the outcomes of one claim write, without the commit, as the layouts' own statements do.
pub(super) fn settle(
    spec: &PollSpec,
    shape: &TableShape,
    rows: &[Place],
    outcomes: &[RowOutcome],
) -> StatusUpdate {
    let mut marked = StatusUpdate::default();
    let mut published: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    let mut failed: BTreeMap<u32, Vec<(Place, String)>> = BTreeMap::new();
    for (place, outcome) in rows.iter().zip(outcomes) {
        match outcome {
            RowOutcome::Published | RowOutcome::Moved => {
                published.entry(place.oid).or_default().push(*place);
            }
            RowOutcome::Failed { error, code } => {
                failed.entry(place.oid).or_default().push((*place, words(code, error)));
            }
            RowOutcome::Held => continue,
        }
        marked.rows += 1;
    }
    for (oid, rows) in published {
        let _infallible = writeln!(
            marked.sql,
            "{}\n  WHERE o.tableoid = {oid} AND o.ctid = ANY ({});",
            success(spec, shape, "statement_timestamp()"),
            places(&rows)
        );
    }
    for (oid, rows) in failed {
        marked.sql.push_str(&failure(spec, shape, oid, &rows));
    }
    marked
}

/// `UPDATE` or `DELETE` of published rows, without its `WHERE`. `now` is the time of settling.
pub(super) fn success(spec: &PollSpec, shape: &TableShape, now: &str) -> String {
    let table = &spec.table;
    match spec.row_state.state.done {
        Done::Set(set) if !spec.delete => {
            let set = Dialect::new(spec, shape).settling_at(now).set(set);
            format!("UPDATE {table} AS o SET {set}")
        }
        Done::Set(_) | Done::Delete => format!("DELETE FROM {table} AS o"),
    }
}

/// Counts the failures of rows, all of the table with this OID, and moves those away that have failed for good.
fn failure(spec: &PollSpec, shape: &TableShape, oid: u32, rows: &[(Place, String)]) -> String {
    let Some(failed) = &spec.row_state.state.failed else { return String::new() };
    let dialect = Dialect::new(spec, shape);
    let update = format!("UPDATE {} AS o SET {}\n  ", spec.table, dialect.set(failed.set));
    if !failed.records_error() && failed.dead_letters.is_none() {
        let all: Vec<Place> = rows.iter().map(|(place, _)| *place).collect();
        let these = format!("o.tableoid = {oid} AND o.ctid = ANY ({})", places(&all));
        return format!("{update}WHERE {these};\n");
    }
    let values: Vec<String> = rows
        .iter()
        .map(|(place, error)| {
            format!("('({},{})'::tid, {})", place.block, place.line, literal(error))
        })
        .collect();
    let errors = format!("(VALUES {}) AS v(tid, error)", values.join(", "));
    let these = format!("o.tableoid = {oid} AND o.ctid = v.tid");
    let update = format!("{update}FROM {errors} WHERE {these}");
    let (Some(columns), Some(dlq)) = (&shape.dlq, spec.dlq()) else {
        return format!("{update};\n");
    };
    // The row as it would be after the update; one statement cannot update and delete the same row.
    let moved = columns.iter().map(|column| {
        let assigned = failed.set.iter().find(|set| spec.row_state.name(set.column()) == column);
        let name = ident(column);
        assigned.map_or_else(
            || format!("o.{name}"),
            |assigned| format!("{} AS {name}", dialect.value(assigned)),
        )
    });
    let names: Vec<String> = columns.iter().map(|name| ident(name)).collect();
    format!(
        "{update} AND {goes_on};\n\
         WITH moved AS (\n  DELETE FROM {table} AS o USING {errors}\n  WHERE {these} AND {is_last}\n  \
         RETURNING {moved}\n)\n\
         INSERT INTO {dlq} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM moved;\n",
        goes_on = dialect.limit(failed, "<"),
        is_last = dialect.limit(failed, ">="),
        table = spec.table,
        moved = moved.collect::<Vec<_>>().join(", "),
        names = names.join(", "),
    )
}

/// Gives expired rows their final status.
pub(super) fn expire(spec: &PollSpec, shape: &TableShape, rows: &[Place]) -> StatusUpdate {
    let mut marked = StatusUpdate::default();
    let Some(expiry) = &spec.row_state.state.expired else { return marked };
    let set = Dialect::new(spec, shape).set(expiry.set);
    let mut by_table: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    for place in rows {
        by_table.entry(place.oid).or_default().push(*place);
    }
    for (oid, rows) in by_table {
        marked.rows += rows.len() as u64;
        let _infallible = writeln!(
            marked.sql,
            "UPDATE {} AS o SET {set} WHERE o.tableoid = {oid} AND o.ctid = ANY ({});",
            spec.table,
            places(&rows)
        );
    }
    marked
}

/// The error as one line of bounded length that a text column accepts.
fn words(code: &str, error: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    format!("{code}: {error}").chars().map(clean).take(ERROR_CHARS_MAX).collect()
}

/// The failures of a claimed row plus one more, if that failure is its last one by the rules of its layout: [`settle`]
/// then writes the final status.
pub(super) fn dies(spec: &PollSpec, shape: &TableShape, row: &Row<'_>) -> Option<u32> {
    let failed = spec.row_state.state.failed.as_ref()?;
    let number = |column| number(shape, row, spec.row_state.name(column));
    let failures = number(failed.counter)?.saturating_add(1);
    let is_last = match failed.limit {
        FailureLimit::Configured => failures >= spec.attempts_max,
        FailureLimit::BeyondConfigured => failures > spec.attempts_max,
        FailureLimit::Column(column) => number(column).is_some_and(|max| failures >= max),
    };
    // A row that has to be moved needs a table to go to.
    let dead = is_last && (failed.dead_letters.is_none() || shape.dlq.is_some());
    dead.then_some(failures)
}

/// The number in a column of the row.
fn number(shape: &TableShape, row: &Row<'_>, name: &str) -> Option<u32> {
    let at = shape.columns.iter().position(|column| column.name == name)?;
    std::str::from_utf8(row.text(at)?).ok()?.parse().ok()
}

/// A payload that the server copies into the parked table, because its row is too large to be read.
#[derive(Clone, Copy, Debug)]
pub struct PayloadCopy<'a> {
    /// The claim that has the row.
    pub claim: &'a Claim,
    /// The index of the row in the claim.
    pub row: usize,
    /// The column of the payload.
    pub payload: &'a str,
    /// The pipeline of the parked event, and its shard.
    pub key: &'a PipelineKey,
    /// The position of the parked event.
    pub position: Position,
}

impl PayloadCopy<'_> {
    /// Copies the payload in the claim's transaction. Only the payload is kept, for an operator who wants to read it.
    pub(super) async fn run(
        &self,
        client: &Client,
        spec: &PollSpec,
        shape: &TableShape,
    ) -> Result<(), SourceError> {
        let doing = || format!("keep the payload of a large row of table {}", spec.table);
        let Some(place) = self.claim.places.get(self.row) else { return Ok(()) };
        let payload = ident(self.payload);
        let value = match shape.column(self.payload) {
            Some(column) if column.type_name == "bytea" => format!("o.{payload}"),
            Some(_) => format!("convert_to(o.{payload}::text, 'UTF8')"),
            None => return Ok(()),
        };
        let sql = format!(
            "UPDATE postrider.parked AS p SET value = {value} FROM {table} AS o \
             WHERE o.tableoid = {oid} AND o.ctid = '({block},{line})'::tid AND o.xmin::text = '{xmin}' \
               AND p.pipeline = {pipeline} AND p.shard = {shard} \
               AND p.commit_lsn = '{lsn}'::pg_lsn AND p.ordinal = {ordinal}",
            table = spec.table,
            oid = place.oid,
            block = place.block,
            line = place.line,
            xmin = place.xmin,
            pipeline = literal(&self.key.pipeline),
            shard = self.key.shard,
            lsn = self.position.commit,
            ordinal = self.position.ordinal,
        );
        let failed = |error| SourceError::control(doing(), error).of(Statement::Settle);
        match client.execute(&sql, &[]).await.map_err(failed)? {
            1 => Ok(()),
            // A repair locks no rows: the row was changed or deleted, and is read again.
            _ => Err(SourceError::new(SourceErrorKind::Closed, doing())),
        }
    }
}

/// The index from which a claim reads the unpublished rows in the order of publishing. Without it each claim reads and
/// sorts all unpublished rows, or reads all published rows as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClaimIndex {
    /// The statement that creates it.
    pub(crate) create: String,
    /// Such an index exists.
    pub(crate) exists: bool,
}

/// The order is that of the id if it is a number, else that of the time; `kind` is the kind of the table. An index is
/// suitable if its first column is the order's, or the status column followed by the order's, and if, where published
/// rows stay in the table, it contains only unpublished rows by its condition, or has the status column first.
const SQL: &str = "\
WITH o AS ( \
  SELECT CASE WHEN CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END IN (20, 21, 23, 1700) \
           THEN $2::text ELSE $3::text END AS name, c.relkind = 'p' AS partitioned \
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = $2::text \
  JOIN pg_type t ON t.oid = a.atttypid WHERE c.oid = $1 \
) \
SELECT o.name, o.partitioned, EXISTS ( \
  SELECT FROM pg_index i \
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = o.name \
  LEFT JOIN pg_attribute m ON m.attrelid = i.indrelid AND m.attname = $4::text \
  WHERE i.indrelid = $1 AND i.indisvalid \
    AND (i.indkey[0] = a.attnum OR i.indkey[0] = m.attnum AND i.indkey[1] = a.attnum) \
    AND CASE WHEN m.attnum IS NULL THEN i.indpred IS NULL \
          ELSE i.indkey[0] = m.attnum OR strpos(pg_get_expr(i.indpred, i.indrelid), m.attname) > 0 END) \
FROM o WHERE o.name IS NOT NULL";

/// Reads whether the table with this OID has such an index; `None` if no index could have the order (the id is not a
/// number, and no time is configured).
///
/// # Errors
/// An error of the server or of the connection.
pub(crate) async fn read(
    client: &Client,
    oid: u32,
    spec: &PollSpec,
) -> Result<Option<ClaimIndex>, SourceError> {
    let failed = |e| SourceError::control("read the index of claims", e);
    let (mark, condition) = unpublished_rows(spec).unzip();
    let mark = mark.as_deref();
    let row = client.query_opt(SQL, &[&oid, &spec.id, &spec.time, &mark]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let (order, partitioned): (String, bool) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    // A partitioned table does not allow CONCURRENTLY.
    let how = if partitioned { "" } else { " CONCURRENTLY" };
    let condition = condition.map_or_else(String::new, |condition| format!(" WHERE {condition}"));
    let create = format!("CREATE INDEX{how} ON {} ({}){condition};", spec.table, ident(&order));
    Ok(Some(ClaimIndex { create, exists: row.try_get(2).map_err(failed)? }))
}

/// The column that tells whether a row is published, and the condition under which it is not; `None` if published rows
/// are deleted.
fn unpublished_rows(spec: &PollSpec) -> Option<(String, String)> {
    let indexed = &spec.row_state.state.indexed;
    let column = indexed.column().filter(|_| !spec.delete)?;
    let condition = Dialect::without_types(spec).condition(indexed, "");
    Some((spec.row_state.name(column).to_owned(), condition))
}
