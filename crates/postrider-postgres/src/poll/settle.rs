//! The marks as SQL: what each outcome writes, as the layouts' own statements do.
//!
//! `now()` is the time of the claim; `statement_timestamp()` that of settling, which is after the acknowledgement.

use super::claim::{Place, Settled};
use super::spec::{Marks, PollSpec};
use super::sql::places;
use super::table::Shape;
use super::times::stored;
use crate::names::{ident, literal};
use std::collections::BTreeMap;
use std::fmt::Write as _;

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
    let stored = |column: &str, at: &str| stored(shape, spec.zone.as_ref(), column, at);
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
            let now = stored(shape, spec.zone.as_ref(), last_attempt_at, "now()");
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
    let delayed = |at: String| stored(shape, zone, available_at, &at);
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
