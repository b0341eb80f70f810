//! The claim as SQL. Pure text; every name and value of a user is quoted.
//!
//! The session's `search_path` is empty, so a bare function or type is `pg_catalog`'s. The text goes as a simple
//! query: values come back as the types' own output, as pgoutput sends them, and begin, claim and clock are one
//! round trip. It is planned anew each time, on purpose: a plan made while the outbox was empty is the wrong one for
//! a backlog.

use super::claim::{Claim, Place, Settled};
use super::order::{age_column, before, order, source};
use super::spec::{Marks, PollSpec};
use super::table::{Shape, TableColumn};
use crate::names::{ident, literal};
use crate::statement::{Statement, StatementError};
use crate::times::TimeType;
use pg_replication::error::{SourceError, SourceErrorKind};
use pg_replication::pgoutput::{self, Message};
use postrider_core::event::Position;
use postrider_core::zone::Zone;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tokio_postgres::Client;

/// Most bytes of the rows of one claim, by the sizes of their values; one row is always taken.
pub const CLAIM_BYTES_MAX: usize = 8 << 20;

/// Most bytes of one row's values, as text. A larger row is parked without its large values: about six copies of a
/// value exist while it is published, and the service is to run in 512 MB.
pub const ROW_BYTES_MAX: usize = 64 << 20;

/// Values of such a row that are not larger are read.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// What one claim asks for.
pub(super) struct Ask<'a> {
    pub(super) limit: usize,
    /// Only rows that this snapshot sees, and rows that polling has tried before.
    pub(super) visible_in: Option<&'a str>,
    /// Aggregates to leave out.
    pub(super) without: Vec<&'a str>,
    /// Also rows that are delayed, or have failed: nothing waits for another row.
    pub(super) unready: bool,
}

/// Begins the transaction, claims, and reads the clock and the OID of the table that has the name now.
///
/// Each row of the claim is: its place in the order, by which whoever reads them sorts; the aggregate's key; OID and
/// place of the row; whether it has expired; how many rows were looked at; whether it was had, and is locked by us;
/// the transaction that wrote it; whether it is larger than [`ROW_BYTES_MAX`]; and the table's columns. A row that
/// could not be had is locked, has an unready one before it, or has gone meanwhile.
///
/// `NOT IN` and no join, since the planner underrates how many rows are locked, and would compare each with each.
pub(super) fn claim(spec: &PollSpec, shape: &Shape, ask: &Ask<'_>) -> String {
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

/// An aggregate as one text, as [`super::claim::Claim`] remembers it.
pub(super) fn key(spec: &PollSpec, row: &str) -> String {
    format!(
        "concat({row}.{}, chr(31), {row}.{})",
        ident(&spec.aggregate_type),
        ident(&spec.aggregate_id)
    )
}

/// Rows that may be published now, were there no other rows.
pub(super) fn ready(spec: &PollSpec, shape: &Shape, row: &str) -> String {
    let column = |name: &str| format!("{row}.{}", ident(name));
    match &spec.marks {
        Marks::Delete => "true".to_owned(),
        Marks::PublishedAt { published_at } => format!("{} IS NULL", column(published_at)),
        Marks::Commerce { processed_at, available_at, .. } => format!(
            "{} IS NULL AND coalesce({} <= now(), true)",
            column(processed_at),
            instant(shape, spec.zone.as_ref(), row, available_at, Twice::Earlier)
        ),
        Marks::Gcx { status, .. } => format!("{} = 'pending'", column(status)),
        Marks::Sqlgarden { status, .. } => {
            let status = column(status);
            let again = sqlgarden_again(spec, shape, row);
            // The first condition is the partial index's of `sql/layouts`.
            format!(
                "{status} <> 'PUBLISHED' AND ({status} IN ('PENDING', 'PUBLISHING') OR {status} = 'FAILED' AND {again})"
            )
        }
    }
}

/// Rows that are not published, whatever keeps them from it. What expired stays as it is.
pub(super) fn unpublished(spec: &PollSpec, shape: &Shape, row: &str) -> String {
    let column = |name: &str| format!("{row}.{}", ident(name));
    match &spec.marks {
        Marks::Delete | Marks::PublishedAt { .. } => ready(spec, shape, row),
        Marks::Commerce { processed_at, .. } => format!("{} IS NULL", column(processed_at)),
        Marks::Gcx { status, expires_at, .. } => {
            let status = column(status);
            let expires_at = instant(shape, spec.zone.as_ref(), row, expires_at, Twice::Later);
            format!(
                "({status} = 'pending' OR {status} = 'failed' AND coalesce({expires_at} > now(), true))"
            )
        }
        Marks::Sqlgarden { status, .. } => format!("{} <> 'PUBLISHED'", column(status)),
    }
}

/// Rows (`o`) that are still to be published: not published, and not expired. A stream skips an event that has expired,
/// and polling marks its row as failed.
pub(super) fn to_publish(spec: &PollSpec, shape: &Shape) -> String {
    let unpublished = unpublished(spec, shape, "o");
    match expired(spec, shape) {
        Some(expired) => format!("{unpublished} AND NOT {expired}"),
        None => unpublished,
    }
}

/// Whether a failed row of `sqlgarden` is due again.
fn sqlgarden_again(spec: &PollSpec, shape: &Shape, row: &str) -> String {
    let Marks::Sqlgarden { attempt_count, last_attempt_at, .. } = &spec.marks else {
        return "false".to_owned();
    };
    let count = ident(attempt_count);
    let last = instant(shape, spec.zone.as_ref(), row, last_attempt_at, Twice::Earlier);
    let pause = spec.backoff.sql(&format!("{row}.{count}"));
    format!("({row}.{count} < {} AND coalesce({last} + {pause} <= now(), true))", spec.attempts_max)
}

/// Rows that are not published, are not ready, and hold back later ones of their aggregate (those of `f`).
fn blocker(spec: &PollSpec, shape: &Shape) -> Option<String> {
    let column = |name: &str| format!("b.{}", ident(name));
    let unready = match &spec.marks {
        Marks::Delete | Marks::PublishedAt { .. } => return None,
        // A delay that no failure caused counts even where failures do not.
        Marks::Commerce { processed_at, available_at, attempts, .. } => {
            let failed_too = if spec.block_key {
                String::new()
            } else {
                format!(" AND {} = 0", column(attempts))
            };
            format!(
                "{} IS NULL AND {} > now(){failed_too}",
                column(processed_at),
                instant(shape, spec.zone.as_ref(), "b", available_at, Twice::Earlier)
            )
        }
        Marks::Gcx { .. } | Marks::Sqlgarden { .. } if !spec.block_key => return None,
        Marks::Gcx { status, expires_at, .. } => {
            format!(
                "{} = 'failed' AND coalesce({} > now(), true)",
                column(status),
                instant(shape, spec.zone.as_ref(), "b", expires_at, Twice::Later)
            )
        }
        Marks::Sqlgarden { status, .. } => {
            let again = sqlgarden_again(spec, shape, "b");
            format!(
                "{status} <> 'PUBLISHED' AND {status} = 'FAILED' AND NOT {again}",
                status = column(status)
            )
        }
    };
    Some(format!(
        "SELECT FROM {} AS b\n    WHERE {unready}\n      AND {} = f.kind AND {} = f.id\n      AND {}",
        spec.table,
        column(&spec.aggregate_type),
        column(&spec.aggregate_id),
        before(spec, shape),
    ))
}

/// Rows whose time has passed: their layout gives up on them.
fn expired(spec: &PollSpec, shape: &Shape) -> Option<String> {
    match &spec.marks {
        Marks::Gcx { expires_at, .. } => Some(format!(
            "coalesce({} <= now(), false)",
            instant(shape, spec.zone.as_ref(), "o", expires_at, Twice::Later)
        )),
        Marks::Delete
        | Marks::PublishedAt { .. }
        | Marks::Commerce { .. }
        | Marks::Sqlgarden { .. } => None,
    }
}

/// Rows that a snapshot sees, by the transaction that wrote them, whose epoch is the one that makes it past.
///
/// A row that polling marked as failed was written anew; it was polling's before, and stays so.
fn visible(spec: &PollSpec, snapshot: &str) -> String {
    let past = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8)";
    let seen = format!(
        "pg_visible_in_snapshot(({past} - (({past} - o.xmin::text::int8) & 4294967295))::text::xid8, \
         {}::pg_snapshot)",
        literal(snapshot)
    );
    match spec.marks.failures() {
        Some(failures) => format!("({seen} OR o.{} > 0)", ident(failures)),
        None => seen,
    }
}

/// Bytes of a row's values as text. What is compressed is read for it, except `text`, whose size its header has.
pub(super) fn size(shape: &Shape) -> String {
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

/// A value, or NULL where the row is too large and the value is not small.
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

/// Bytes that a row's values take as they are stored, which is known without reading them.
pub(super) fn stored(shape: &Shape) -> String {
    let fixed: usize = 8 * shape.columns.len();
    let names = shape.columns.iter().filter(|c| c.varies).map(|c| ident(&c.name));
    let sizes: Vec<String> =
        names.map(|name| format!(" + coalesce(pg_column_size(o.{name}), 0)")).collect();
    format!("({fixed}::int8{})", sizes.concat())
}

/// Of each row, in the order of window `w`: `stored`, what its values take as they are stored, which is no more than
/// their size; `total` of it so far, without rows that are not read whole; and whether a value is compressed. None
/// of it reads a value that is stored outside of its row.
pub(super) fn sizes(shape: &Shape) -> String {
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

/// Which rows of `first` fit into [`CLAIM_BYTES_MAX`], as `last`, and those that are too large. The size of a value
/// that is compressed is known only when it is read: so, where there is one, rows are looked at one by one, and no
/// further than the bound.
///
/// Its rows are found by their places in arrays: a join by number would compare each with each.
pub(super) fn bound(table: &str, shape: &Shape) -> String {
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

/// Locks the rows of a claim again, in a transaction of its own. Each row that was had is: OID, place, and the
/// transaction that wrote it.
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

// The marks as SQL: what each outcome writes, as the layouts' own statements do.
//
// `now()` is the time of the claim; `statement_timestamp()` that of settling, which is after the acknowledgement.

/// Longest text of an error that is kept in a row. Unit: characters.
pub const ERROR_CHARS_MAX: usize = 500;

/// Statements, and how many rows they must touch.
#[derive(Default, Debug)]
pub(super) struct Marked {
    pub(super) sql: String,
    pub(super) rows: u64,
}

/// Everything that the outcomes of one claim write, without the commit.
pub(super) fn settle(
    spec: &PollSpec,
    shape: &Shape,
    rows: &[Place],
    outcomes: &[Settled],
) -> Marked {
    let mut marked = Marked::default();
    let mut published: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    let mut failed: BTreeMap<u32, Vec<(Place, String)>> = BTreeMap::new();
    for (place, outcome) in rows.iter().zip(outcomes) {
        match outcome {
            Settled::Published | Settled::Moved => {
                published.entry(place.oid).or_default().push(*place);
            }
            Settled::Failed { error, code } => {
                failed.entry(place.oid).or_default().push((*place, words(code, error)));
            }
            Settled::Held => continue,
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

/// `UPDATE` or `DELETE` of published rows, without its `WHERE`.
pub(super) fn success(spec: &PollSpec, shape: &Shape, now: &str) -> String {
    let table = &spec.table;
    let stored = |column: &str, at: &str| stored_time(shape, spec.zone.as_ref(), column, at);
    if spec.delete {
        return format!("DELETE FROM {table} AS o");
    }
    match &spec.marks {
        Marks::Delete => format!("DELETE FROM {table} AS o"),
        Marks::PublishedAt { published_at } => {
            format!(
                "UPDATE {table} AS o SET {} = {}",
                ident(published_at),
                stored(published_at, now)
            )
        }
        Marks::Commerce { processed_at, .. } => {
            format!(
                "UPDATE {table} AS o SET {} = {}",
                ident(processed_at),
                stored(processed_at, now)
            )
        }
        Marks::Gcx { status, published_at, .. } => {
            let now = stored(published_at, now);
            let (status, published_at) = (ident(status), ident(published_at));
            format!("UPDATE {table} AS o SET {status} = 'published', {published_at} = {now}")
        }
        Marks::Sqlgarden { status, attempt_count, last_attempt_at } => {
            // PUBLISHING, and the count of the attempt, are of this transaction too: nobody else sees them alone.
            let now = stored(last_attempt_at, "now()");
            let (status, count, last) =
                (ident(status), ident(attempt_count), ident(last_attempt_at));
            format!(
                "UPDATE {table} AS o SET {status} = 'PUBLISHED', {count} = o.{count} + 1, {last} = {now}"
            )
        }
    }
}

fn failure(spec: &PollSpec, shape: &Shape, oid: u32, rows: &[(Place, String)]) -> String {
    let table = &spec.table;
    let all: Vec<Place> = rows.iter().map(|(place, _)| *place).collect();
    let these = format!("o.tableoid = {oid} AND o.ctid = ANY ({})", places(&all));
    match &spec.marks {
        Marks::Delete | Marks::PublishedAt { .. } => String::new(),
        Marks::Commerce { .. } => commerce_failure(spec, shape, oid, rows),
        Marks::Gcx { status, retry_count, max_retries, .. } => {
            let (status, count, max) = (ident(status), ident(retry_count), ident(max_retries));
            format!(
                "UPDATE {table} AS o SET {count} = o.{count} + 1,\n  \
                   {status} = CASE WHEN o.{count} + 1 >= o.{max} THEN 'failed' ELSE 'pending' END\n  \
                 WHERE {these};\n"
            )
        }
        Marks::Sqlgarden { status, attempt_count, last_attempt_at } => {
            let now = stored_time(shape, spec.zone.as_ref(), last_attempt_at, "now()");
            let (status, count, last) =
                (ident(status), ident(attempt_count), ident(last_attempt_at));
            format!(
                "UPDATE {table} AS o SET {status} = 'FAILED', {count} = o.{count} + 1, {last} = {now}\n  \
                 WHERE {these};\n"
            )
        }
    }
}

fn commerce_failure(spec: &PollSpec, shape: &Shape, oid: u32, rows: &[(Place, String)]) -> String {
    let Marks::Commerce { attempts, available_at, last_error, dlq, .. } = &spec.marks else {
        return String::new();
    };
    let table = &spec.table;
    let max = spec.attempts_max;
    let values: Vec<String> = rows
        .iter()
        .map(|(place, error)| {
            format!("('({},{})'::tid, {})", place.block, place.line, literal(error))
        })
        .collect();
    let errors = format!("(VALUES {}) AS v(tid, error)", values.join(", "));
    let zone = spec.zone.as_ref();
    let delayed = |at: String| stored_time(shape, zone, available_at, &at);
    let (attempts, available, last) = (ident(attempts), ident(available_at), ident(last_error));
    let next = format!("least(o.{attempts} + 1, 32767)");
    let at = delayed(format!(
        "statement_timestamp() + {}",
        spec.backoff.sql(&format!("o.{attempts} + 1"))
    ));
    let these = format!("o.tableoid = {oid} AND o.ctid = v.tid");
    let update = format!(
        "UPDATE {table} AS o SET {attempts} = {next}, {available} = {at}, {last} = v.error\n  \
         FROM {errors} WHERE {these}"
    );
    let Some(columns) = &shape.dlq else { return format!("{update};\n") };
    let names: Vec<String> = columns.iter().map(|name| ident(name)).collect();
    // As the row would be after the update; a row cannot be updated and deleted by one statement.
    let moved: Vec<String> = names
        .iter()
        .map(|name| match name {
            name if *name == attempts => format!("{next} AS {name}"),
            name if *name == available => format!("{at} AS {name}"),
            name if *name == last => format!("v.error AS {name}"),
            name => format!("o.{name}"),
        })
        .collect();
    format!(
        "{update} AND o.{attempts} < {max};\n\
         WITH moved AS (\n  DELETE FROM {table} AS o USING {errors}\n  WHERE {these} AND o.{attempts} >= {max}\n  \
         RETURNING {moved}\n)\n\
         INSERT INTO {dlq} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM moved;\n",
        moved = moved.join(", "),
        names = names.join(", "),
    )
}

/// Rows whose time has passed get the state that nobody looks at again.
pub(super) fn expire(spec: &PollSpec, rows: &[Place]) -> Marked {
    let mut marked = Marked::default();
    let Marks::Gcx { status, .. } = &spec.marks else { return marked };
    let mut by_table: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
    for place in rows {
        by_table.entry(place.oid).or_default().push(*place);
    }
    for (oid, rows) in by_table {
        marked.rows += rows.len() as u64;
        let _infallible = writeln!(
            marked.sql,
            "UPDATE {} AS o SET {} = 'failed' WHERE o.tableoid = {oid} AND o.ctid = ANY ({});",
            spec.table,
            ident(status),
            places(&rows)
        );
    }
    marked
}

/// One line, of bounded length, that a text column takes.
fn words(code: &str, error: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    format!("{code}: {error}").chars().map(clean).take(ERROR_CHARS_MAX).collect()
}

// Whether one more failure is a row's last, as its layout counts: what [`super::settle`] writes then is for good.

/// The failures of a row, as it was claimed, and one more, where it is dead with that.
pub(super) fn dies(spec: &PollSpec, shape: &Shape, row: &[u8]) -> Option<u32> {
    let failures = number(shape, row, spec.marks.failures()?)?.saturating_add(1);
    let dead = match &spec.marks {
        Marks::Delete | Marks::PublishedAt { .. } => false,
        // Over so many, and only where there is a table to move it to.
        Marks::Commerce { .. } => shape.dlq.is_some() && failures > spec.attempts_max,
        Marks::Gcx { max_retries, .. } => {
            number(shape, row, max_retries).is_some_and(|max| failures >= max)
        }
        Marks::Sqlgarden { .. } => failures >= spec.attempts_max,
    };
    dead.then_some(failures)
}

/// The number that a column of the row has.
fn number(shape: &Shape, row: &[u8], name: &str) -> Option<u32> {
    let at = shape.columns.iter().position(|column| column.name == name)?;
    let Ok(Message::Insert(insert)) = pgoutput::decode(row) else { return None };
    let Some(pgoutput::Column::Text(text)) = insert.new.get(at) else { return None };
    std::str::from_utf8(text).ok()?.parse().ok()
}

// Rows that are too large to be read: the server copies the payload of one into the parked table by itself.

/// Which payload is to be kept, and where.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// The claim that has the row.
    pub claim: &'a Claim,
    /// Which row of it.
    pub row: usize,
    /// The column of the payload.
    pub payload: &'a str,
    /// The pipeline, and the position of the parked event.
    pub pipeline: &'a str,
    /// The same.
    pub position: Position,
}

impl Keep<'_> {
    /// Copies it, in the claim's transaction. What is parked is the payload alone, as a person may want to read it.
    pub(super) async fn run(
        &self,
        client: &Client,
        spec: &PollSpec,
        shape: &Shape,
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
               AND p.pipeline = {pipeline} AND p.commit_lsn = '{lsn}'::pg_lsn AND p.ordinal = {ordinal}",
            table = spec.table,
            oid = place.oid,
            block = place.block,
            line = place.line,
            xmin = place.xmin,
            pipeline = literal(self.pipeline),
            lsn = self.position.commit_lsn,
            ordinal = self.position.ordinal,
        );
        let failed = |error| SourceError::control(doing(), error).of(Statement::Settle);
        match client.execute(&sql, &[]).await.map_err(failed)? {
            1 => Ok(()),
            // A repair locks no rows: the row was changed, or deleted. It is read again.
            _ => Err(SourceError::new(SourceErrorKind::Closed, doing())),
        }
    }
}

// The index from which a claim reads the unpublished rows in the order in which they are published. Without it each
// claim reads, and sorts, all rows that are unpublished, or passes over all that are published.

/// What the table has of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClaimIndex {
    /// The statement that makes it.
    pub(crate) create: String,
    /// There is one.
    pub(crate) exists: bool,
}

/// The order is that of the id where it is a number, else that of the time; `kind` is what the table is. An index
/// serves whose first column is the order's, or the mark's and then the order's; and which has the unpublished rows
/// alone, by its condition or by the mark's column in front, where published rows stay.
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

/// Reads whether the table with this OID has it; `None` where there is no order that an index could have (the id is no
/// number, and no time is named).
///
/// # Errors
/// What the server says.
pub(crate) async fn read(
    client: &Client,
    oid: u32,
    spec: &PollSpec,
) -> Result<Option<ClaimIndex>, SourceError> {
    let failed = |e| SourceError::control("look for the index of claims", e);
    let (mark, condition) = unpublished_rows(spec).unzip();
    let mark = mark.as_deref();
    let row = client.query_opt(SQL, &[&oid, &spec.id, &spec.time, &mark]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let (order, partitioned): (String, bool) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    // A partitioned table takes no CONCURRENTLY.
    let how = if partitioned { "" } else { " CONCURRENTLY" };
    let condition = condition.map_or_else(String::new, |condition| format!(" WHERE {condition}"));
    let create = format!("CREATE INDEX{how} ON {} ({}){condition};", spec.table, ident(&order));
    Ok(Some(ClaimIndex { create, exists: row.try_get(2).map_err(failed)? }))
}

/// The column that says whether a row is published, and the condition under which it is not; `None` where published
/// rows go.
fn unpublished_rows(spec: &PollSpec) -> Option<(String, String)> {
    if spec.delete {
        return None;
    }
    let (column, is_so) = match &spec.marks {
        Marks::Delete => return None,
        Marks::PublishedAt { published_at } => (published_at, "IS NULL"),
        Marks::Commerce { processed_at, .. } => (processed_at, "IS NULL"),
        Marks::Gcx { status, .. } => (status, "= 'pending'"),
        Marks::Sqlgarden { status, .. } => (status, "<> 'PUBLISHED'"),
    };
    Some((column.clone(), format!("{} {is_so}", ident(column))))
}

// Times of columns as SQL: points in time out of columns without a zone, and back.
//
// The server computes what the stream's mapper computes (`zone`, `outbox::time`): of a local time that comes twice the
// later instant is an expiry, the earlier one a delay; one that does not exist is read with the offset from before the
// change. `AT TIME ZONE` gives the later of two, and has the same rule for what does not exist.

/// Which of two instants is meant where a local time comes twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Twice {
    /// The earlier one.
    Earlier,
    /// The later one.
    Later,
}

/// A day of the years 1 to 9999 that exists. As `outbox::time::is_plain`.
const DAY: &str = "(?!0000)([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
                   |02-(0[1-9]|1[0-9]|2[0-8]))\
                   |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// A time of day.
const TIME: &str = "[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?";
/// An offset.
const OFFSET: &str = "(Z|[+-](0[0-9]|1[0-5])(:[0-5][0-9]){0,2})";

/// The point in time of `column`; NULL where a text holds none, which the mapper then refuses.
pub(crate) fn instant(
    shape: &Shape,
    zone: Option<&Zone>,
    row: &str,
    column: &str,
    twice: Twice,
) -> String {
    instant_sql(shape.time_type(column), zone, &format!("{row}.{}", ident(column)), twice)
}

/// The same of any expression of such a type.
pub fn instant_sql(kind: TimeType, zone: Option<&Zone>, value: &str, twice: Twice) -> String {
    match kind {
        TimeType::Absolute | TimeType::Other => value.to_owned(),
        TimeType::Local => local(&format!("{value}::timestamp"), zone, twice),
        TimeType::Text => {
            let local = local("t.v::timestamp", zone, twice);
            format!(
                "(SELECT CASE WHEN t.v ~ {absolute} THEN t.v::timestamptz WHEN t.v ~ {plain} THEN {local} END \
                 FROM (SELECT rtrim({value}::text) AS v) AS t)",
                absolute = literal(&format!("^(-?infinity|{DAY}{TIME}{OFFSET})$")),
                plain = literal(&format!("^{DAY}({TIME})?$")),
            )
        }
    }
}

/// Without a zone it is UTC: nothing is decided by such a column then.
fn local(value: &str, zone: Option<&Zone>, twice: Twice) -> String {
    let Some(zone) = zone else { return format!("({value} AT TIME ZONE 'UTC')") };
    let zone = literal(zone.name());
    // Beyond these, and for infinity, as UTC: `zone::Zone` has the same bounds.
    let has_rules = "l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01'";
    match twice {
        Twice::Later => format!(
            "(SELECT CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} ELSE l.at AT TIME ZONE 'UTC' END \
             FROM (SELECT {value} AS at) AS l)"
        ),
        // Where the time comes twice, its other instant has the offset of a day before.
        Twice::Earlier => format!(
            "(SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE {zone} = l.at THEN e.at \
             ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END \
             FROM (SELECT l.at, CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} END AS later \
             FROM (SELECT {value} AS at) AS l) AS l \
             CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE {zone} \
             - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e)"
        ),
    }
}

/// What is written into `column` for a point in time.
pub(super) fn stored_time(
    shape: &Shape,
    zone: Option<&Zone>,
    column: &str,
    instant: &str,
) -> String {
    match (shape.time_type(column), zone) {
        (TimeType::Local, Some(zone)) => {
            format!("({instant}) AT TIME ZONE {}", literal(zone.name()))
        }
        // The session's zone is UTC.
        (TimeType::Local, None) | (TimeType::Absolute | TimeType::Text | TimeType::Other, _) => {
            instant.to_owned()
        }
    }
}
