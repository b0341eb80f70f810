//! The claim as SQL. Pure text; every name and value of a user is quoted.
//!
//! The session's `search_path` is empty, so a bare function or type is `pg_catalog`'s. The text goes as a simple
//! query: values come back as the types' own output, as pgoutput sends them, and begin, claim and clock are one
//! round trip. It is planned again each time, on purpose: a plan made while the outbox was empty is the wrong one for
//! a backlog.

use super::claim::{Claim, Place, RowOutcome};
use super::order::{age_column, before, order, source};
use super::spec::{PollSpec, RowStatus};
use super::table::{TableColumn, TableShape};
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
    let column = |name: &str| format!("{row}.{}", ident(name));
    match &spec.marks {
        RowStatus::Delete => "true".to_owned(),
        RowStatus::PublishedAt { published_at } => format!("{} IS NULL", column(published_at)),
        RowStatus::Commerce { processed_at, available_at, .. } => format!(
            "{} IS NULL AND coalesce({} <= now(), true)",
            column(processed_at),
            instant(shape, spec.zone.as_ref(), row, available_at, AmbiguousTime::Earlier)
        ),
        RowStatus::Gcx { status, .. } => format!("{} = 'pending'", column(status)),
        RowStatus::Sqlgarden { status, .. } => {
            let status = column(status);
            let again = sqlgarden_again(spec, shape, row);
            // The first condition is that of the partial index in `sql/layouts`.
            format!(
                "{status} <> 'PUBLISHED' AND ({status} IN ('PENDING', 'PUBLISHING') OR {status} = 'FAILED' AND {again})"
            )
        }
    }
}

/// The condition for rows that are not published, for whatever reason. An expired row is not included.
pub(super) fn unpublished(spec: &PollSpec, shape: &TableShape, row: &str) -> String {
    let column = |name: &str| format!("{row}.{}", ident(name));
    match &spec.marks {
        RowStatus::Delete | RowStatus::PublishedAt { .. } => ready(spec, shape, row),
        RowStatus::Commerce { processed_at, .. } => format!("{} IS NULL", column(processed_at)),
        RowStatus::Gcx { status, expires_at, .. } => {
            let status = column(status);
            let expires_at =
                instant(shape, spec.zone.as_ref(), row, expires_at, AmbiguousTime::Later);
            format!(
                "({status} = 'pending' OR {status} = 'failed' AND coalesce({expires_at} > now(), true))"
            )
        }
        RowStatus::Sqlgarden { status, .. } => format!("{} <> 'PUBLISHED'", column(status)),
    }
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

/// Whether a failed row of `sqlgarden` is due for another attempt.
fn sqlgarden_again(spec: &PollSpec, shape: &TableShape, row: &str) -> String {
    let RowStatus::Sqlgarden { attempt_count, last_attempt_at, .. } = &spec.marks else {
        return "false".to_owned();
    };
    let count = ident(attempt_count);
    let last = instant(shape, spec.zone.as_ref(), row, last_attempt_at, AmbiguousTime::Earlier);
    let pause = spec.backoff.sql(&format!("{row}.{count}"));
    format!("({row}.{count} < {} AND coalesce({last} + {pause} <= now(), true))", spec.attempts_max)
}

/// A query for rows that are not published, are not ready, and hold back the later rows of the same aggregate (that of
/// `f`).
fn blocker(spec: &PollSpec, shape: &TableShape) -> Option<String> {
    let column = |name: &str| format!("b.{}", ident(name));
    let unready = match &spec.marks {
        RowStatus::Delete | RowStatus::PublishedAt { .. } => return None,
        // A delay that no failure has caused counts even if failures do not hold back other rows.
        RowStatus::Commerce { processed_at, available_at, attempts, .. } => {
            let failed_too = if spec.block_key {
                String::new()
            } else {
                format!(" AND {} = 0", column(attempts))
            };
            format!(
                "{} IS NULL AND {} > now(){failed_too}",
                column(processed_at),
                instant(shape, spec.zone.as_ref(), "b", available_at, AmbiguousTime::Earlier)
            )
        }
        RowStatus::Gcx { .. } | RowStatus::Sqlgarden { .. } if !spec.block_key => return None,
        RowStatus::Gcx { status, expires_at, .. } => {
            format!(
                "{} = 'failed' AND coalesce({} > now(), true)",
                column(status),
                instant(shape, spec.zone.as_ref(), "b", expires_at, AmbiguousTime::Later)
            )
        }
        RowStatus::Sqlgarden { status, .. } => {
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

/// The condition for expired rows, which their layout does not publish any more.
fn expired(spec: &PollSpec, shape: &TableShape) -> Option<String> {
    match &spec.marks {
        RowStatus::Gcx { expires_at, .. } => Some(format!(
            "coalesce({} <= now(), false)",
            instant(shape, spec.zone.as_ref(), "o", expires_at, AmbiguousTime::Later)
        )),
        RowStatus::Delete
        | RowStatus::PublishedAt { .. }
        | RowStatus::Commerce { .. }
        | RowStatus::Sqlgarden { .. } => None,
    }
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
    match spec.marks.failures() {
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

/// Statements that set the status of rows, and how many rows they must change. `now()` is the time of the claim;
/// `statement_timestamp()` is the time of settling, after the acknowledgement.
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

/// `UPDATE` or `DELETE` of published rows, without its `WHERE`.
pub(super) fn success(spec: &PollSpec, shape: &TableShape, now: &str) -> String {
    let table = &spec.table;
    let stored = |column: &str, at: &str| stored_time(shape, spec.zone.as_ref(), column, at);
    if spec.delete {
        return format!("DELETE FROM {table} AS o");
    }
    match &spec.marks {
        RowStatus::Delete => format!("DELETE FROM {table} AS o"),
        RowStatus::PublishedAt { published_at } => {
            format!(
                "UPDATE {table} AS o SET {} = {}",
                ident(published_at),
                stored(published_at, now)
            )
        }
        RowStatus::Commerce { processed_at, .. } => {
            format!(
                "UPDATE {table} AS o SET {} = {}",
                ident(processed_at),
                stored(processed_at, now)
            )
        }
        RowStatus::Gcx { status, published_at, .. } => {
            let now = stored(published_at, now);
            let (status, published_at) = (ident(status), ident(published_at));
            format!("UPDATE {table} AS o SET {status} = 'published', {published_at} = {now}")
        }
        RowStatus::Sqlgarden { status, attempt_count, last_attempt_at } => {
            // PUBLISHING, and the count of the attempt, would be written by this same transaction, so no other session
            // could see them.
            let now = stored(last_attempt_at, "now()");
            let (status, count, last) =
                (ident(status), ident(attempt_count), ident(last_attempt_at));
            format!(
                "UPDATE {table} AS o SET {status} = 'PUBLISHED', {count} = o.{count} + 1, {last} = {now}"
            )
        }
    }
}

fn failure(spec: &PollSpec, shape: &TableShape, oid: u32, rows: &[(Place, String)]) -> String {
    let table = &spec.table;
    let all: Vec<Place> = rows.iter().map(|(place, _)| *place).collect();
    let these = format!("o.tableoid = {oid} AND o.ctid = ANY ({})", places(&all));
    match &spec.marks {
        RowStatus::Delete | RowStatus::PublishedAt { .. } => String::new(),
        RowStatus::Commerce { .. } => commerce_failure(spec, shape, oid, rows),
        RowStatus::Gcx { status, retry_count, max_retries, .. } => {
            let (status, count, max) = (ident(status), ident(retry_count), ident(max_retries));
            format!(
                "UPDATE {table} AS o SET {count} = o.{count} + 1,\n  \
                   {status} = CASE WHEN o.{count} + 1 >= o.{max} THEN 'failed' ELSE 'pending' END\n  \
                 WHERE {these};\n"
            )
        }
        RowStatus::Sqlgarden { status, attempt_count, last_attempt_at } => {
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

fn commerce_failure(
    spec: &PollSpec,
    shape: &TableShape,
    oid: u32,
    rows: &[(Place, String)],
) -> String {
    let RowStatus::Commerce { attempts, available_at, last_error, dlq, .. } = &spec.marks else {
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
    // The row as it would be after the update; one statement cannot update and delete the same row.
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

/// Gives expired rows their final status.
pub(super) fn expire(spec: &PollSpec, rows: &[Place]) -> StatusUpdate {
    let mut marked = StatusUpdate::default();
    let RowStatus::Gcx { status, .. } = &spec.marks else { return marked };
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

/// The error as one line of bounded length that a text column accepts.
fn words(code: &str, error: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    format!("{code}: {error}").chars().map(clean).take(ERROR_CHARS_MAX).collect()
}

/// The failures of a claimed row plus one more, if that failure is its last one by the rules of its layout: [`settle`]
/// then writes the final status.
pub(super) fn dies(spec: &PollSpec, shape: &TableShape, row: &[u8]) -> Option<u32> {
    let failures = number(shape, row, spec.marks.failures()?)?.saturating_add(1);
    let dead = match &spec.marks {
        RowStatus::Delete | RowStatus::PublishedAt { .. } => false,
        // More failures than allowed, and there is a table to move the row to.
        RowStatus::Commerce { .. } => shape.dlq.is_some() && failures > spec.attempts_max,
        RowStatus::Gcx { max_retries, .. } => {
            number(shape, row, max_retries).is_some_and(|max| failures >= max)
        }
        RowStatus::Sqlgarden { .. } => failures >= spec.attempts_max,
    };
    dead.then_some(failures)
}

/// The number in a column of the row.
fn number(shape: &TableShape, row: &[u8], name: &str) -> Option<u32> {
    let at = shape.columns.iter().position(|column| column.name == name)?;
    let Ok(Message::Insert(insert)) = pgoutput::decode(row) else { return None };
    let Some(pgoutput::Column::Text(text)) = insert.new.get(at) else { return None };
    std::str::from_utf8(text).ok()?.parse().ok()
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
    /// The pipeline of the parked event.
    pub pipeline: &'a str,
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
    if spec.delete {
        return None;
    }
    let (column, is_so) = match &spec.marks {
        RowStatus::Delete => return None,
        RowStatus::PublishedAt { published_at } => (published_at, "IS NULL"),
        RowStatus::Commerce { processed_at, .. } => (processed_at, "IS NULL"),
        RowStatus::Gcx { status, .. } => (status, "= 'pending'"),
        RowStatus::Sqlgarden { status, .. } => (status, "<> 'PUBLISHED'"),
    };
    Some((column.clone(), format!("{} {is_so}", ident(column))))
}

// Times in columns as SQL: points in time from columns without a zone, and the reverse.
//
// The server computes what the stream's mapper computes (`zone`, `outbox::time`): of an ambiguous local time the later
// instant is an expiry, the earlier one a delay; a local time that does not exist is read with the offset from before
// the change. `AT TIME ZONE` gives the later of two instants, and has the same rule for local times that do not exist.

/// Which of two instants an ambiguous local time means (when clocks are set back, local times occur twice).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AmbiguousTime {
    /// The earlier one.
    Earlier,
    /// The later one.
    Later,
}

/// An existing day of the years 1 to 9999, as in `outbox::time::is_plain`.
const DAY: &str = "(?!0000)([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
                   |02-(0[1-9]|1[0-9]|2[0-8]))\
                   |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// A time of day.
const TIME: &str = "[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?";
/// An offset.
const OFFSET: &str = "(Z|[+-](0[0-9]|1[0-5])(:[0-5][0-9]){0,2})";

/// The point in time of `column`; NULL if a text is no time, which the mapper then refuses.
pub(crate) fn instant(
    shape: &TableShape,
    zone: Option<&Zone>,
    row: &str,
    column: &str,
    twice: AmbiguousTime,
) -> String {
    instant_sql(shape.time_type(column), zone, &format!("{row}.{}", ident(column)), twice)
}

/// As [`instant`], for any expression of such a type.
pub fn instant_sql(
    kind: TimeType,
    zone: Option<&Zone>,
    value: &str,
    twice: AmbiguousTime,
) -> String {
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

/// Without a configured zone, UTC: then no such column decides anything.
fn local(value: &str, zone: Option<&Zone>, twice: AmbiguousTime) -> String {
    let Some(zone) = zone else { return format!("({value} AT TIME ZONE 'UTC')") };
    let zone = literal(zone.name());
    // Outside of these bounds, and for infinity, UTC: `zone::Zone` has the same bounds.
    let has_rules = "l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01'";
    match twice {
        AmbiguousTime::Later => format!(
            "(SELECT CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} ELSE l.at AT TIME ZONE 'UTC' END \
             FROM (SELECT {value} AS at) AS l)"
        ),
        // The other instant of an ambiguous time has the offset of the day before.
        AmbiguousTime::Earlier => format!(
            "(SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE {zone} = l.at THEN e.at \
             ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END \
             FROM (SELECT l.at, CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} END AS later \
             FROM (SELECT {value} AS at) AS l) AS l \
             CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE {zone} \
             - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e)"
        ),
    }
}

/// The value to write into `column` for a point in time.
pub(super) fn stored_time(
    shape: &TableShape,
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
