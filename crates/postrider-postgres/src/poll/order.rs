//! The order of the rows of an aggregate, wherever the table is read: by polling, a repair, a backfill, or a replay.
//!
//! If ids are numbers, rows are sorted by id: numbers are assigned in order by the session that has locked the
//! aggregate. Other ids have no order, so rows are sorted by the time column. Rows with the same time are mostly rows
//! of one transaction. Among them, rows that have failed come first. The others come in the order of insertion: by
//! transaction number (`xmin`), command (`cmin`) and place (`ctid`). Each of the three can be wrong.
//!
//! # Commands
//!
//! PostgreSQL does not log the command. The redo of an insert sets it to 0 (`heap_xlog_insert`). So after a crash, or
//! on a promoted standby, a row has its command only if its page was written, or logged as a whole, after the row was
//! inserted; later rows of that page have command 0. A `DELETE` or `UPDATE` that is rolled back also leaves its own
//! command in the row; a row lock does not.
//!
//! The rows of a transaction lie in a page in the order of insertion. So if commands decrease within a page, commands
//! were lost, and only the places are used for that transaction. Places are wrong if the transaction continued in a
//! page that lies before its first page. Lost commands that do not decrease cannot be recognised. So the order of
//! insertion cannot always be determined.
//!
//! A row whose `DELETE` or `UPDATE` was rolled back has an `xmax`. A row of an abandoned claim has one as well, and its
//! command is right; a claim locks the first rows of an aggregate. So the commands of an aggregate's rows count as
//! overwritten only if a row has an `xmax`, and a row without an `xmax` would come before it.
//!
//! # Transaction numbers
//!
//! A savepoint has a transaction number of its own, which is higher than that of its transaction, and PostgreSQL does
//! not keep which transaction it belongs to. Commands are counted across savepoints. So transaction numbers are wrong
//! if a transaction continues after a savepoint, and commands cannot be compared between transactions. If the server
//! keeps commit times (`track_commit_timestamp`), these decide, because a savepoint has the commit time of its
//! transaction. Otherwise rows of one aggregate that have the same time, with digits below the millisecond, are assumed
//! to be rows of one transaction, and are sorted by command instead of by transaction number, in two cases:
//!
//! - The rows lie in one page. Then their places decide. Two transactions may have the same time by chance. If writers
//!   of an aggregate exclude each other, the second one inserts after the first has ended, so the places give the right
//!   order for them too, unless the page was vacuumed between the two.
//! - The rows lie in several pages. In one of these pages a row with a lower transaction number lies behind a row with
//!   a higher one and has a later command, which proves that a transaction continued after its savepoint. No row in any
//!   of the pages contradicts this.
//!
//! In any other case the transaction number decides. If times have a precision of a millisecond or of a second, or if
//! there is no time column, many transactions of an aggregate have the same time. The places of their rows prove
//! nothing, because pages may have been vacuumed, and rows inserted before existing ones.

use super::spec::PollSpec;
use super::sql::key;
use super::table::TableShape;
use crate::names::ident;
use crate::times::TimeType;
use pg_replication::error::SourceError;
use tokio_postgres::Client;

/// Columns that [`source`] adds to those of the table. The application's columns do not have such names.
///
/// Facts about the row itself, in this order: its negated number of failures, the negated age of its transaction (to be
/// sorted ascending), the transaction's commit time, the row's page, its command, whether another transaction has
/// locked, changed or deleted the row since, whether its time has digits below the millisecond, and a hash of its
/// aggregate.
const FAILURES: &str = "\"postrider.failures\"";
const AGE: &str = "\"postrider.age\"";
const COMMIT: &str = "\"postrider.commit\"";
const PAGE: &str = "\"postrider.page\"";
const CMIN: &str = "\"postrider.cmin\"";
const TOUCHED: &str = "\"postrider.touched\"";
const FINE: &str = "\"postrider.fine\"";
const AGGREGATE: &str = "\"postrider.aggregate\"";
/// Facts about the rows with the same transaction number: the highest command of those in the same page up to this row,
/// and whether commands were lost.
const HIGHEST: &str = "\"postrider.highest\"";
const LOST: &str = "\"postrider.lost\"";
/// Whether this row shows that the rows with the same time and aggregate are rows of one transaction. 0: it shows
/// nothing, 1: it proves it, 2: it contradicts it, or its command may be lost.
const EVIDENCE: &str = "\"postrider.evidence\"";
/// Facts about the rows with the same time and aggregate: the highest [`EVIDENCE`], whether commands were overwritten,
/// whether the rows are in one page, and the negated age of their oldest transaction.
const WHOLE_EVIDENCE: &str = "\"postrider.whole_evidence\"";
const OVERWRITTEN: &str = "\"postrider.overwritten\"";
const IN_PAGE: &str = "\"postrider.in_page\"";
const WHOLE_AGE: &str = "\"postrider.whole_age\"";
/// Sort keys: the negated age of the transaction, or 0 if its commit time decides; and the command, or 0 if it was
/// lost.
const SORT_AGE: &str = "\"postrider.sort_age\"";
const SORT_COMMAND: &str = "\"postrider.sort_command\"";

/// SQL that follows `FROM`: the rows (`o`) of the table for which `filter` holds, with the columns that [`order`] uses.
/// If ids are numbers, the SQL ends with a `WHERE`.
pub(crate) fn source(spec: &PollSpec, shape: &TableShape, filter: &str) -> String {
    let table = &spec.table;
    if by_number(spec, shape) {
        return format!("{table} AS o\n  WHERE {filter}");
    }
    let failures = spec.row_state.failures();
    let failures = failures.map(|name| format!(" - o.{} AS {FAILURES},", ident(name)));
    let of_number = same(spec, AGE);
    // The commit time is not computed in the innermost query: its function is volatile, so the planner would read and
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

/// Adds to `rows` the columns from which [`one`] decides whether the rows of one aggregate with the same time are rows
/// of one transaction. `fine`: whether the time of a row has digits below the millisecond, as SQL.
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

/// Whether the rows with the time and aggregate of a row are assumed to be rows of one transaction. Rows that have
/// failed are not: polling has written them since.
fn one(spec: &PollSpec) -> String {
    let failed = spec.row_state.failures().map(|_| format!(" AND o.{FAILURES} = 0"));
    format!("(o.{FINE}{} AND (o.{IN_PAGE} OR o.{WHOLE_EVIDENCE} = 1))", failed.unwrap_or_default())
}

/// A list of expressions that are equal for rows with the same time, the same failures, and the same value of `what`.
fn same(spec: &PollSpec, what: &str) -> String {
    let mut keys = of_event(spec, "o", |_| format!("o.{FAILURES}"));
    keys.push(format!("o.{what}"));
    keys.join(", ")
}

/// The commit time of a row's transaction, or `-infinity` if the server does not know it.
const COMMIT_TIME: &str = "coalesce(CASE WHEN (SELECT current_setting('track_commit_timestamp') = 'on' \
     AND NOT pg_is_in_recovery()) THEN pg_xact_commit_timestamp(o.xmin) END, '-infinity')";

/// The page of a row as a number, which is unique among all pages of a table and its partitions.
fn page(row: &str) -> String {
    format!("(({row}.tableoid::int8 << 32) + ({row}.ctid::text::point)[0]::int8)")
}

/// SQL for whether a row's time has digits below the millisecond; `None` if there is no time column, or its type does
/// not store points in time.
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

/// The sort keys for rows of [`source`], the first key first.
pub(crate) fn order(spec: &PollSpec, shape: &TableShape) -> Vec<String> {
    if by_number(spec, shape) {
        return vec![id(spec, shape, "o")];
    }
    let mut keys = of_event(spec, "o", |_| format!("o.{FAILURES}"));
    keys.extend([COMMIT, SORT_AGE, SORT_COMMAND].map(|name| format!("o.{name}")));
    keys.extend(["o.ctid".to_owned(), id(spec, shape, "o")]);
    keys
}

/// The columns of a row of [`source`] that [`before`] uses in addition to the values of [`order`].
pub(super) fn age_column(spec: &PollSpec, shape: &TableShape) -> String {
    if by_number(spec, shape) {
        String::new()
    } else {
        format!(" o.{AGE} AS age, o.{CMIN} AS command,")
    }
}

/// SQL for whether row `b` of the table comes before `f`. `f` is a row of [`source`] with the values of [`order`] as
/// `o0`, `o1`, …, its place as `oid` and `tid`, and the columns of [`age_column`].
///
/// The comparison uses only facts that `b` itself has. If both rows are in one page and have the same time with digits
/// below the millisecond, their places decide, as in [`source`]. Commit times are not compared: their function is
/// volatile, so the planner would search for `b` once for each row.
pub(super) fn before(spec: &PollSpec, shape: &TableShape) -> String {
    let last = order(spec, shape).len() - 1;
    let mut keys = Vec::new();
    if !by_number(spec, shape) {
        let of_event = of_event(spec, "b", |failures| format!("- b.{}", ident(failures)));
        keys.extend(of_event.into_iter().zip((0..).map(|at| format!("f.o{at}"))));
        // The command itself, not the sort key: a command that counts as lost has sort key 0, so no row would come
        // before `f`, and `f` would not be held back by any.
        let command = "f.command".to_owned();
        let not_failed = spec.row_state.failures().map_or("", |_| " AND f.o1 = 0");
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

/// The sort key of the id.
pub(super) fn id(spec: &PollSpec, shape: &TableShape, row: &str) -> String {
    let column = shape.column(&spec.id);
    column.map_or_else(|| format!("{row}.{}", ident(&spec.id)), |column| column.sort_key(row))
}

fn by_number(spec: &PollSpec, shape: &TableShape) -> bool {
    shape.column(&spec.id).is_some_and(|column| column.number)
}

/// The first sort keys, which are columns of the table: the time (written by the application), and the failures
/// (written by polling).
fn of_event(spec: &PollSpec, row: &str, failures: impl Fn(&str) -> String) -> Vec<String> {
    let time = spec.time.iter().map(|time| format!("{row}.{}", ident(time)));
    time.chain(spec.row_state.failures().map(failures)).collect()
}

/// Why a table does not record the order of events of one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unrecorded {
    /// The id is not a number, and no time column is configured.
    NoTime,
    /// The default of the time column is the time of the transaction or of the statement. The value is that default, as
    /// the server writes it.
    Default(String),
    /// The time column has a precision below the microsecond's. The value is its type, as the server writes it.
    Precision(String),
}

/// Reads whether the id (`$2`) is a number or a domain over one, the default of the time column (`$3`), and the type of
/// the time column if it is `timestamptz` or `timestamp` with a precision below the microsecond's.
const DEFAULT_SQL: &str = "\
SELECT CASE WHEN t.typbasetype <> 0 THEN t.typbasetype ELSE t.oid END IN (20, 21, 23, 1700), \
  (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a \
   JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
   WHERE a.attrelid = $1 AND a.attname = $3::text), \
  (SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a \
   WHERE a.attrelid = $1 AND a.attname = $3::text AND a.atttypid IN (1114, 1184) AND a.atttypmod BETWEEN 0 AND 5) \
FROM pg_attribute i JOIN pg_type t ON t.oid = i.atttypid WHERE i.attrelid = $1 AND i.attname = $2::text";

/// Functions that return the same time for all events of a transaction or of a statement.
const SAME_FOR_ALL: [&str; 6] = [
    "now()",
    "CURRENT_TIMESTAMP",
    "LOCALTIMESTAMP",
    "transaction_timestamp()",
    "statement_timestamp()",
    "CURRENT_DATE",
];

/// Reads why the table does not record the order in which the events of one transaction were inserted; `None` if it
/// does, by its definition. Times that the application writes itself cannot be checked.
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
