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
//! leaves its own command in the row; a row lock does not. In a page the rows of a transaction lie in the order of
//! insertion, so commands that go back in a page were lost, and the places alone decide then for that transaction.
//! Places mislead where the transaction went on in a page before the one it began in; and commands that were lost
//! can't be told from others where they do not go back. So the order of insertion is not always to be had.
//!
//! A row that was deleted or updated in vain has an `xmax`; but so has a row of a claim that was given back, and its
//! command is right. A claim locks the first rows of an aggregate. So commands of an aggregate's rows are taken for
//! overwritten where a row has an `xmax`, and one without an `xmax` would come before it.
//!
//! A savepoint has a transaction number (`xmin`) of its own, which is higher than that of its transaction, and
//! PostgreSQL does not keep whose savepoint it was. Commands are counted on across savepoints. So the number misleads
//! wherever a transaction goes on after a savepoint, and the command misleads between transactions. Where the server
//! keeps commit times (`track_commit_timestamp`), they decide: a savepoint has that of its transaction. Elsewhere rows
//! of one aggregate that have the same time, with digits below the millisecond, are taken for rows of one transaction,
//! and sorted by command instead of by number,
//!
//! - where they lie in one page, whose places then decide. Two transactions may have such a time in common as well;
//!   but where writers of an aggregate exclude each other, the second one inserts after the first has ended, so the
//!   places are the order too, unless the page was vacuumed between the two;
//! - where they lie in several pages, and in one of them a row with a lower number lies behind a row with a higher
//!   number, and has a later command: a transaction went on after its savepoint. Nothing in any of the pages may
//!   contradict this.
//!
//! In any other case the number decides. Times with a precision of a millisecond or of a second, and no time at all,
//! are common to many transactions of an aggregate. The places of their rows prove nothing: meanwhile pages were
//! vacuumed, and rows inserted before those that were there.

use super::spec::PollSpec;
use super::sql::key;
use super::table::TableShape;
use crate::names::ident;
use crate::times::TimeType;
use pg_replication::error::SourceError;
use tokio_postgres::Client;

/// Columns of [`source`] beside the table's own, which are not called so.
///
/// Of the row: what its failures and the age of its transaction sort by, when that has committed, page, command,
/// whether another transaction has locked, changed or deleted it since then, whether its time has digits below the
/// millisecond, and a hash of its aggregate.
const FAILURES: &str = "\"postrider.failures\"";
const AGE: &str = "\"postrider.age\"";
const COMMIT: &str = "\"postrider.commit\"";
const PAGE: &str = "\"postrider.page\"";
const CMIN: &str = "\"postrider.cmin\"";
const TOUCHED: &str = "\"postrider.touched\"";
const FINE: &str = "\"postrider.fine\"";
const AGGREGATE: &str = "\"postrider.aggregate\"";
/// Of the rows with its transaction number: the highest command up to the row in its page, and whether commands were
/// lost.
const HIGHEST: &str = "\"postrider.highest\"";
const LOST: &str = "\"postrider.lost\"";
/// Of the rows with its time and aggregate: what the row says of whether they are of one transaction (0: nothing, 1: it
/// proves it, 2: it contradicts it, or its command may be lost).
const EVIDENCE: &str = "\"postrider.evidence\"";
/// The highest of these, whether commands of the rows were overwritten, whether the rows are in one page, and the age
/// of their oldest transaction.
const WHOLE_EVIDENCE: &str = "\"postrider.whole_evidence\"";
const OVERWRITTEN: &str = "\"postrider.overwritten\"";
const IN_PAGE: &str = "\"postrider.in_page\"";
const WHOLE_AGE: &str = "\"postrider.whole_age\"";
/// What rows are sorted by: the age of the transaction, or 0 where its commit time decides; and the command, or 0 where
/// that was lost.
const SORT_AGE: &str = "\"postrider.sort_age\"";
const SORT_COMMAND: &str = "\"postrider.sort_command\"";

/// The rows of the table for which `filter` holds, as `o`, with what [`order`] asks for: what follows FROM, with the
/// WHERE where there is one.
pub(crate) fn source(spec: &PollSpec, shape: &TableShape, filter: &str) -> String {
    let table = &spec.table;
    if by_number(spec, shape) {
        return format!("{table} AS o\n  WHERE {filter}");
    }
    let failures = spec.marks.failures();
    let failures = failures.map(|name| format!(" - o.{} AS {FAILURES},", ident(name)));
    let of_number = same(spec, AGE);
    // The commit time is not asked for in the innermost query: its function is volatile, and the planner would read and
    // sort the whole table before the first row, instead of reading it by its index.
    let rows = format!(
        "SELECT o.*, bool_or(o.{CMIN} < o.{HIGHEST}) OVER (PARTITION BY {of_number}) AS {LOST}\n  \
         FROM (SELECT o.*, max(o.{CMIN}) OVER (\n      \
             PARTITION BY {of_number}, o.{PAGE} ORDER BY o.ctid ROWS UNBOUNDED PRECEDING) AS {HIGHEST},\n      \
             {COMMIT_TIME} AS {COMMIT}\n    \
           FROM (SELECT o.*, o.tableoid, o.ctid, o.xmin,{failures} - age(o.xmin) AS {AGE},\n        \
               o.cmin::text::int8 AS {CMIN}, {page} AS {PAGE}, o.xmax <> 0 AS {TOUCHED}\n      \
             FROM {table} AS o\n      WHERE {filter}) AS o) AS o",
        failures = failures.unwrap_or_default(),
        page = page("o"),
    );
    let (rows, age, lost) = match fine(spec, shape, "o") {
        None => (rows, format!("o.{AGE}"), format!("o.{LOST}")),
        Some(fine) => {
            let one = one(spec);
            let age = format!("CASE WHEN {one} THEN o.{WHOLE_AGE} ELSE o.{AGE} END");
            let lost = format!(
                "o.{OVERWRITTEN} OR CASE WHEN {one} THEN o.{WHOLE_EVIDENCE} = 2 ELSE o.{LOST} END"
            );
            (with_evidence(spec, &fine, &rows), age, lost)
        }
    };
    format!(
        "(SELECT o.*, CASE WHEN o.{COMMIT} > '-infinity' THEN 0 ELSE {age} END AS {SORT_AGE},\n  \
           CASE WHEN {lost} THEN 0 ELSE o.{CMIN} END AS {SORT_COMMAND}\n  FROM ({rows}) AS o) AS o"
    )
}

/// These rows, with what tells whether the rows of one aggregate, and with one time, are of one transaction.
fn with_evidence(spec: &PollSpec, fine: &str, rows: &str) -> String {
    let of_whole = same(spec, AGGREGATE);
    let before = |name: &str| format!("lag(o.{name}) OVER p");
    format!(
        "SELECT o.*, max(o.{EVIDENCE}) OVER w AS {WHOLE_EVIDENCE}, min(o.{AGE}) OVER w AS {WHOLE_AGE},\n    \
           min(o.{PAGE}) OVER w = max(o.{PAGE}) OVER w AS {IN_PAGE},\n    \
           coalesce((o.{FINE} OR min(o.{AGE}) OVER w = max(o.{AGE}) OVER w)\n      \
             AND max(o.{CMIN}) FILTER (WHERE o.{TOUCHED}) OVER w\n      \
               >= min(o.{CMIN}) FILTER (WHERE NOT o.{TOUCHED}) OVER w, false) AS {OVERWRITTEN}\n  \
         FROM (SELECT o.*, CASE WHEN o.{LOST} OR o.{CMIN} < {command}\n        \
               OR o.{CMIN} = {command} AND o.{AGE} <> {age} THEN 2\n      \
             WHEN o.{AGE} < {age} THEN 1 ELSE 0 END AS {EVIDENCE}\n    \
           FROM (SELECT o.*, {fine} AS {FINE},\n        \
               hashtext({key} COLLATE \"C\") AS {AGGREGATE}\n      \
             FROM ({rows}) AS o) AS o\n    \
           WINDOW p AS (PARTITION BY {of_whole}, o.{PAGE} ORDER BY o.ctid)) AS o\n  \
         WINDOW w AS (PARTITION BY {of_whole})",
        command = before(CMIN),
        age = before(AGE),
        key = key(spec, "o"),
    )
}

/// Whether the rows with the time and aggregate of a row are taken for rows of one transaction. Rows that have failed
/// were written by polling.
fn one(spec: &PollSpec) -> String {
    let failed = spec.marks.failures().map(|_| format!(" AND o.{FAILURES} = 0"));
    format!("(o.{FINE}{} AND (o.{IN_PAGE} OR o.{WHOLE_EVIDENCE} = 1))", failed.unwrap_or_default())
}

/// The keys of rows with the same time and the same of something else.
fn same(spec: &PollSpec, what: &str) -> String {
    let mut keys = of_event(spec, "o", |_| format!("o.{FAILURES}"));
    keys.push(format!("o.{what}"));
    keys.join(", ")
}

/// When a row's transaction has committed, or `-infinity` where the server does not know.
const COMMIT_TIME: &str = "coalesce(CASE WHEN (SELECT current_setting('track_commit_timestamp') = 'on' \
     AND NOT pg_is_in_recovery()) THEN pg_xact_commit_timestamp(o.xmin) END, '-infinity')";

/// The page in which a row lies, of all pages of a table and its partitions, as a number.
fn page(row: &str) -> String {
    format!("(({row}.tableoid::int8 << 32) + ({row}.ctid::text::point)[0]::int8)")
}

/// Whether a row's time has digits below the millisecond; `None` where the type of the column does not tell.
fn fine(spec: &PollSpec, shape: &TableShape, row: &str) -> Option<String> {
    let time = spec.time.as_ref()?;
    match shape.time_type(time) {
        TimeType::Absolute | TimeType::Local => {
            let time = format!("{row}.{}", ident(time));
            Some(format!("coalesce({time} <> date_trunc('milliseconds', {time}), false)"))
        }
        TimeType::Text | TimeType::Other => None,
    }
}

/// The order of rows of [`source`], first key first.
pub(crate) fn order(spec: &PollSpec, shape: &TableShape) -> Vec<String> {
    if by_number(spec, shape) {
        return vec![id(spec, shape, "o")];
    }
    let mut keys = of_event(spec, "o", |_| format!("o.{FAILURES}"));
    keys.extend([COMMIT, SORT_AGE, SORT_COMMAND].map(|name| format!("o.{name}")));
    keys.extend(["o.ctid".to_owned(), id(spec, shape, "o")]);
    keys
}

/// What [`before`] asks for of a row of [`source`], beside the values of [`order`].
pub(super) fn age_column(spec: &PollSpec, shape: &TableShape) -> String {
    if by_number(spec, shape) {
        String::new()
    } else {
        format!(" o.{AGE} AS age, o.{CMIN} AS command,")
    }
}

/// Whether row `b` of the table comes before `f`, a row of [`source`] with the values of [`order`] as `o0`, `o1`, …,
/// its place as `oid` and `tid`, and [`age_column`]. As far as `b` tells: where both are in one page, and have the same
/// time with digits below the millisecond, the places decide, as in [`source`]. Commit times are not asked for: their
/// function is volatile, and the planner would look for `b` once for each row.
pub(super) fn before(spec: &PollSpec, shape: &TableShape) -> String {
    let last = order(spec, shape).len() - 1;
    let mut keys = Vec::new();
    if !by_number(spec, shape) {
        let of_event = of_event(spec, "b", |failures| format!("- b.{}", ident(failures)));
        keys.extend(of_event.into_iter().zip((0..).map(|at| format!("f.o{at}"))));
        // As `f` has it: one that is taken for lost would come before all others, and nothing would hold it back.
        let command = "f.command".to_owned();
        let not_failed = spec.marks.failures().map_or("", |_| " AND f.o1 = 0");
        let in_page = fine(spec, shape, "b").map(|fine| {
            format!(
                "{fine}{not_failed} AND b.tableoid = f.oid \
                 AND (b.ctid::text::point)[0] = (f.tid::text::point)[0]"
            )
        });
        for (of_b, of_f) in [("- age(b.xmin)", "f.age".to_owned()), ("b.cmin::text::int8", command)]
        {
            let of_b = match &in_page {
                Some(in_page) => format!("CASE WHEN {in_page} THEN {of_f} ELSE {of_b} END"),
                None => of_b.to_owned(),
            };
            keys.push((of_b, of_f));
        }
        keys.push(("b.ctid".to_owned(), "f.tid".to_owned()));
    }
    keys.push((id(spec, shape, "b"), format!("f.o{last}")));
    let (of_b, of_f): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
    format!("ROW({}) < ROW({})", of_b.join(", "), of_f.join(", "))
}

/// The id, as rows are sorted by it.
pub(super) fn id(spec: &PollSpec, shape: &TableShape, row: &str) -> String {
    let column = shape.column(&spec.id);
    column.map_or_else(|| format!("{row}.{}", ident(&spec.id)), |column| column.sort_key(row))
}

fn by_number(spec: &PollSpec, shape: &TableShape) -> bool {
    shape.column(&spec.id).is_some_and(|column| column.number)
}

/// The first keys, which the application and polling have written: the time, and the failures.
fn of_event(spec: &PollSpec, row: &str, failures: impl Fn(&str) -> String) -> Vec<String> {
    let time = spec.time.iter().map(|time| format!("{row}.{}", ident(time)));
    time.chain(spec.marks.failures().map(failures)).collect()
}

/// Why a table does not record the order of events of one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unrecorded {
    /// The id is no number, and no time is named.
    NoTime,
    /// The time is that of the transaction, or of the statement: its default, as the server writes it.
    Default(String),
    /// The time has no digits below the millisecond, or fewer: its type, as the server writes it.
    Precision(String),
}

/// Whether the id (`$2`) is a number, or a domain over one; the default of the time column (`$3`); and its type, where
/// that is `timestamptz` or `timestamp` with a precision below the microsecond's.
const DEFAULT_SQL: &str = "\
SELECT CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END IN (20, 21, 23, 1700), \
  (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a \
   JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
   WHERE a.attrelid = $1 AND a.attname = $3::text), \
  (SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a \
   WHERE a.attrelid = $1 AND a.attname = $3::text AND a.atttypid IN (1114, 1184) AND a.atttypmod BETWEEN 0 AND 5) \
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
/// An error of the server or of the connection.
pub(crate) async fn unrecorded(
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
    let precision: Option<String> = row.try_get(2).map_err(failed)?;
    if let Some(type_name) = precision {
        return Ok(Some(Unrecorded::Precision(type_name)));
    }
    let default: Option<String> = row.try_get(1).map_err(failed)?;
    let same = |default: &String| SAME_FOR_ALL.iter().any(|call| default.contains(call));
    Ok(default.filter(same).map(Unrecorded::Default))
}
