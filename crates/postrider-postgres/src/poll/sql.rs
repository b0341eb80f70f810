//! The claim as SQL. Pure text; every name and value of a user is quoted.
//!
//! The session's `search_path` is empty, so a bare function or type is `pg_catalog`'s. The text goes as a simple
//! query: values come back as the types' own output, as pgoutput sends them, and begin, claim and clock are one
//! round trip. It is planned anew each time, on purpose: a plan made while the outbox was empty is the wrong one for
//! a backlog.

use super::claim::Place;
use super::order::{age_column, before, order, source};
use super::spec::{Marks, PollSpec};
use super::table::{Column, Shape};
use super::times::{Twice, instant};
use crate::names::{ident, literal};
use std::collections::BTreeMap;
use std::fmt::Write as _;

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

fn size_of(column: &Column) -> String {
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
pub(super) fn value(column: &Column, huge: &str) -> String {
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
