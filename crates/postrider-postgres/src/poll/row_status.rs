//! The status of rows whose events were streamed (`poll.mark_streamed`; always in mode `auto`). Rows are found by their
//! ids, so an application's own cleanup and dashboards keep working, and polling knows what is published.
//!
//! A status update never waits for a row: a row that another session has locked is skipped, and updated later. The
//! later rows of its aggregate wait with it, because a row without a status may be published again from the table, and
//! then the rows after it in its aggregate have to follow it again.

use super::dialect::Dialect;
use super::spec::PollSpec;
use super::sql::success;
use super::table::{self, TableColumn, TableShape};
use crate::lock_holders::{self, Holder};
use crate::names::{TableName, ident};
use crate::statement::{Statement, StatementError};
use pg_replication::error::{ServerReport, SourceError, SqlState};
use postrider_core::event::Position;
pub use postrider_core::outbox_rows::{PublishedRow, WritingTransaction};
use postrider_core::parked::Lane;
use std::collections::{HashMap, HashSet};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

/// Most ids of one statement.
pub const MARK_ROWS_MAX: usize = 10_000;

/// Maximum number of attempts for the same rows in one call, when rows are locked or changed by others meanwhile.
const ROUNDS_MAX: usize = 6;

/// The prepared statement that sets the status of rows. It belongs to the session that prepared it.
#[derive(Clone, Debug)]
pub struct StatusWriter {
    statement: tokio_postgres::Statement,
    /// The same statement for ids that the column cannot have (a logical message's id may be any text). It is slow,
    /// because it compares the ids' texts.
    by_text: String,
    table: TableName,
    locked: String,
}

impl StatusWriter {
    /// Prepares the statement on a session of [`crate::control::Control`]: its `search_path` must be empty.
    ///
    /// # Errors
    /// An error of the server or of the connection; 42P01 or 42703 if the table or a column does not exist.
    pub async fn prepare(client: &Client, spec: &PollSpec) -> Result<Self, SourceError> {
        let shape = table::read(client, spec).await.map_err(|error| error.of(Statement::Mark))?;
        let id = shape.id(&spec.table, &spec.id)?;
        let statement = client.prepare(&sql(spec, &shape)?).await;
        let statement = statement.map_err(|error| failed(&spec.table, error))?;
        Ok(Self {
            statement,
            by_text: sql_of(spec, &shape, id, &format!("{} = ANY ($1::text[])", id.text("o"))),
            table: spec.table.clone(),
            locked: locked_sql(spec, id),
        })
    }

    /// The table whose rows it updates.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// Sets the status of the rows of these events, [`MARK_ROWS_MAX`] per statement, and returns the indexes of the
    /// rows that have to wait, in order. All other rows have their status, had it before, or were deleted. `rows` are
    /// in the order of the stream; `waiting` are the aggregates of which a row was locked in the last call. The session
    /// must not be in a transaction.
    ///
    /// # Errors
    /// An error of the server or of the connection, as an error of [`Statement::Mark`]; SQLSTATE 09000 if rows did not
    /// take their status (a trigger of the table undoes it). A repetition does no harm.
    pub async fn mark(
        &self,
        client: &Client,
        rows: &[PublishedRow],
        waiting: &HashSet<Lane>,
    ) -> Result<Vec<usize>, SourceError> {
        self.mark_all(client, rows, waiting, Transaction::Own).await
    }

    /// As [`Self::mark`], in the transaction that the session is in. The transaction must be READ COMMITTED. Without
    /// aggregates that wait.
    ///
    /// # Errors
    /// As [`Self::mark`]. Then the transaction has failed.
    pub async fn mark_within(
        &self,
        client: &Client,
        rows: &[PublishedRow],
    ) -> Result<Vec<usize>, SourceError> {
        self.mark_all(client, rows, &HashSet::new(), Transaction::Callers).await
    }

    async fn mark_all(
        &self,
        client: &Client,
        rows: &[PublishedRow],
        waiting: &HashSet<Lane>,
        transaction: Transaction,
    ) -> Result<Vec<usize>, SourceError> {
        let (done, held) = (vec![false; rows.len()], waiting.clone());
        let mut marking = StatusPass { rows, transaction, done, held };
        // The first row of a waiting aggregate shows whether the aggregate still waits.
        let heads = marking.heads();
        self.mark_some(client, &mut marking, &heads).await?;
        for place in heads {
            if let (true, Some(lane)) = (marking.done[place], rows[place].lane) {
                marking.held.remove(&lane);
            }
        }
        for chunk in marking.chunks() {
            let chunk: Vec<usize> =
                chunk.into_iter().filter(|place| !marking.waits(*place)).collect();
            self.mark_some(client, &mut marking, &chunk).await?;
        }
        Ok((0..rows.len()).filter(|place| !marking.done[*place]).collect())
    }

    /// Updates the rows at these indexes as far as possible. A row that is locked, or that a transaction changed and
    /// committed meanwhile, is tried again, once, and again as long as any row is updated; then it waits, with the
    /// later rows of its aggregate.
    async fn mark_some(
        &self,
        client: &Client,
        marking: &mut StatusPass<'_>,
        places: &[usize],
    ) -> Result<(), SourceError> {
        let mut todo = places.to_vec();
        for round in 1..=ROUNDS_MAX {
            if todo.is_empty() {
                return Ok(());
            }
            let rows = todo.iter().map(|place| &marking.rows[*place]);
            let columns = Columns::of(rows);
            let left = match marking.transaction {
                Transaction::Own if round > 1 => self.mark_twice(client, &columns).await,
                Transaction::Own | Transaction::Callers => self.mark_free(client, &columns).await,
            };
            let left = match left {
                Ok(left) => left,
                // The row moved to another partition meanwhile: a new snapshot finds it there.
                Err(error) if error.sqlstate().is_some_and(|state| state.class() == "40") => {
                    if round == ROUNDS_MAX {
                        return Err(error);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let left: HashSet<&str> = left.iter().map(String::as_str).collect();
            let rest = marking.settle(&todo, &left);
            if round == ROUNDS_MAX || (round > 1 && rest.len() == todo.len()) {
                marking.hold(&rest, &left);
                return Ok(());
            }
            todo = rest;
        }
        Ok(())
    }

    /// Updates the rows that are free, except those behind a row of their aggregate that is not. Returns the ids of the
    /// rows that are not free.
    async fn mark_free(
        &self,
        client: &Client,
        columns: &Columns<'_>,
    ) -> Result<Vec<String>, SourceError> {
        let parameters = columns.parameters();
        let row = match client.query_one(&self.statement, &parameters).await {
            Err(error) if is_alien(&error) => client.query_one(&self.by_text, &parameters).await,
            answer => answer,
        };
        self.left(row, columns)
    }

    /// As [`Self::mark_free`], with the statement twice in a transaction. The first one locks rows. Some of
    /// them another session has changed after that statement's snapshot. These are updated by the second one, whose
    /// snapshot has them. Where rows are changed without a pause, a single statement hardly ever finds rows as its
    /// snapshot has them.
    ///
    /// The four messages are sent at once: a call that is abandoned leaves no transaction open, and no statement of
    /// the same task comes between them. A COMMIT that is cancelled leaves a transaction that has failed: the next
    /// statement is refused with 25P02, and the session is given up.
    async fn mark_twice(
        &self,
        client: &Client,
        columns: &Columns<'_>,
    ) -> Result<Vec<String>, SourceError> {
        let parameters = columns.parameters();
        let (begun, first, second, committed) = tokio::join!(
            biased;
            client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"),
            client.query_one(&self.statement, &parameters),
            client.query_one(&self.statement, &parameters),
            client.batch_execute("COMMIT"),
        );
        begun.map_err(|error| failed(&self.table, error))?;
        if first.as_ref().is_err_and(is_alien) {
            return self.mark_free(client, columns).await;
        }
        self.left(first, columns)?;
        let left = self.left(second, columns)?;
        committed.map_err(|error| failed(&self.table, error))?;
        Ok(left)
    }

    /// The ids of the rows that were not free, from the answer of the statement.
    fn left(
        &self,
        answer: Result<tokio_postgres::Row, tokio_postgres::Error>,
        columns: &Columns<'_>,
    ) -> Result<Vec<String>, SourceError> {
        let failed = |error| failed(&self.table, error);
        let row = answer.map_err(failed)?;
        let (free, marked): (i64, i64) =
            (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        let left: Vec<String> = row.try_get(2).map_err(failed)?;
        if marked == free {
            return Ok(left);
        }
        if left.is_empty() {
            return Err(self.undone(marked, free));
        }
        // Either a trigger has undone some, or a row got another one's id behind the snapshot. The next attempt shows.
        Ok(columns.ids.iter().map(|id| (*id).to_owned()).collect())
    }

    fn undone(&self, marked: i64, of: i64) -> SourceError {
        let message = format!("{marked} of {of} rows took their mark");
        self.refused(SqlState::TRIGGERED_ACTION_EXCEPTION, message)
    }

    /// The error for rows that stayed locked.
    pub fn locked(&self, rows: usize, holders: &[Holder]) -> SourceError {
        let message = format!("{rows} rows are locked by {}", lock_holders::holder_names(holders));
        self.refused(SqlState::LOCK_NOT_AVAILABLE, message)
    }

    fn refused(&self, sqlstate: SqlState, message: String) -> SourceError {
        let report = ServerReport {
            severity: "ERROR".to_owned(),
            sqlstate,
            message,
            detail: None,
            hint: None,
            constraint: None,
            associated_lsn: None,
        };
        SourceError::server(doing(&self.table), report).of(Statement::Mark)
    }

    /// Reads which sessions hold locks on the rows of these events.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn holders(
        &self,
        client: &Client,
        rows: &[PublishedRow],
    ) -> Result<Vec<Holder>, SourceError> {
        let ids: Vec<&str> =
            rows.iter().take(lock_holders::ROWS_MAX).map(|row| row.id.as_str()).collect();
        lock_holders::holders(client, &self.table, &self.locked, &ids).await
    }
}

/// The parameters of [`sql_of`].
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<&'a str>,
    xids: Vec<Option<i64>>,
    /// Unit: microseconds since 2000.
    committed: Vec<Option<i64>>,
    times: Vec<Option<i64>>,
    visible: Vec<bool>,
    /// One number for each aggregate.
    lanes: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn parameters(&self) -> [&(dyn ToSql + Sync); 6] {
        let Self { ids, xids, committed, times, visible, lanes } = self;
        [ids, xids, committed, times, visible, lanes]
    }

    fn of(rows: impl Iterator<Item = &'a PublishedRow>) -> Self {
        let mut columns = Self::default();
        for row in rows {
            columns.ids.push(&row.id);
            columns.xids.push(row.written.xid.map(i64::from));
            columns.committed.push(row.written.committed.map(crate::wire::to_pg_micros));
            columns.times.push(row.written.time_ms);
            columns.visible.push(row.visible);
            columns.lanes.push(row.lane.map(Lane::number));
        }
        columns
    }
}

/// The transaction of a status update.
#[derive(Clone, Copy)]
enum Transaction {
    /// Each attempt has one.
    Own,
    /// The session is in one.
    Callers,
}

/// The state of one call of [`StatusWriter::mark`].
struct StatusPass<'a> {
    rows: &'a [PublishedRow],
    transaction: Transaction,
    done: Vec<bool>,
    /// Aggregates of which a row is locked.
    held: HashSet<Lane>,
}

impl StatusPass<'_> {
    /// The indexes of the rows without a status, in order, in lists of at most [`MARK_ROWS_MAX`]. No list has two
    /// events of one id (the row was deleted, and inserted again with the same id): the statement knows rows by their
    /// ids alone. An event that the stream repeated is in a list twice, at one position.
    fn chunks(&self) -> Vec<Vec<usize>> {
        let (mut chunks, mut chunk, mut ids) = (Vec::new(), Vec::new(), HashMap::new());
        for (place, row) in self.rows.iter().enumerate().filter(|(place, _)| !self.done[*place]) {
            let is_other = |position: &Position| *position != row.position;
            if chunk.len() == MARK_ROWS_MAX || ids.get(row.id.as_str()).is_some_and(is_other) {
                chunks.push(std::mem::take(&mut chunk));
                ids.clear();
            }
            ids.insert(row.id.as_str(), row.position);
            chunk.push(place);
        }
        chunks.push(chunk);
        chunks
    }

    fn waits(&self, place: usize) -> bool {
        self.rows[place].lane.is_some_and(|lane| self.held.contains(&lane))
    }

    /// The first row of each waiting aggregate.
    fn heads(&self) -> Vec<usize> {
        let mut heads = HashMap::new();
        for (place, row) in self.rows.iter().enumerate() {
            if let Some(lane) = row.lane.filter(|lane| self.held.contains(lane)) {
                heads.entry(lane).or_insert(place);
            }
        }
        let mut heads: Vec<usize> = heads.into_values().collect();
        heads.sort_unstable();
        heads
    }

    /// The statement updated the rows at these indexes, except those with the ids `left` and the later rows of their
    /// aggregates. Returns the indexes of the exceptions. `todo` is in the order of the rows.
    fn settle(&mut self, todo: &[usize], left: &HashSet<&str>) -> Vec<usize> {
        let (mut rest, mut blocked) = (Vec::new(), HashSet::new());
        for place in todo.iter().copied() {
            let row = &self.rows[place];
            let is_left = left.contains(row.id.as_str());
            if is_left {
                blocked.extend(row.lane);
            }
            if is_left || row.lane.is_some_and(|lane| blocked.contains(&lane)) {
                rest.push(place);
            } else {
                self.done[place] = true;
            }
        }
        rest
    }

    /// The rows at these indexes are not tried again in this call: those with the ids `left` could not be locked.
    fn hold(&mut self, rest: &[usize], left: &HashSet<&str>) {
        let rows = rest.iter().map(|place| &self.rows[*place]);
        self.held
            .extend(rows.filter(|row| left.contains(row.id.as_str())).filter_map(|row| row.lane));
    }
}

fn doing(table: &TableName) -> String {
    format!("mark published rows of table {table}")
}

/// Whether the id column cannot have one of the ids.
fn is_alien(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| state.code().starts_with("22"))
}

fn failed(table: &TableName, error: tokio_postgres::Error) -> SourceError {
    SourceError::control(doing(table), error).of(Statement::Mark)
}

pub(super) fn sql(spec: &PollSpec, shape: &TableShape) -> Result<String, SourceError> {
    let id = shape.id(&spec.table, &spec.id)?;
    Ok(sql_of(spec, shape, id, &id.is_one_of("o", "$1::text[]")))
}

/// The first transaction after a statement's snapshot, with its epoch. A transaction's own number has no epoch: it is
/// the number nearest to this one.
const XMAX: &str = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8)";

/// Updates the rows of `these` that can be locked, except those behind a row of their aggregate that can not. The
/// answer has how many rows were to be updated, how many took the status, and the ids of those that could not be
/// locked.
///
/// `k` locks rows in the order of the ids and waits for none. A row that another transaction changed and committed
/// after the statement's snapshot is locked at its new place, which the snapshot does not see, so an update of it would
/// change nothing: such a row is in `l`, like a locked one. So is a row whose transaction (`$2`, beside the ids of
/// `$1`) the snapshot does not see yet: a walsender sends a commit as soon as its WAL is flushed, and other sessions
/// see its rows a moment later, with a synchronous standby that is down much later. Such a row was not deleted, and
/// gets its status later. `b` has the first row of `l` in each aggregate (`$6`), and `u` the rows to be updated: those
/// of `k` that are neither in `l` nor behind such a row. They are locked at the places that the snapshot sees, unless
/// one got its id behind the snapshot. Rows that are not ready (failed, or with a status) are left alone, except that a
/// delay does not matter any more. No two events in `$1` may have one id.
fn sql_of(spec: &PollSpec, shape: &TableShape, id: &TableColumn, these: &str) -> String {
    let (table, order, text) = (&spec.table, id.sort_key("o"), id.text("o"));
    let ready = format!("{}\n    AND {}", unmarked(spec, "o"), is_the_events(spec, shape, &text));
    format!(
        "WITH e AS MATERIALIZED (\n  \
           SELECT w.id, w.xid, w.at, w.ms, w.visible, w.lane, w.n\n  \
           FROM unnest($1::text[], $2::int8[], $3::int8[], $4::int8[], $5::bool[], $6::int8[])\n    \
             WITH ORDINALITY AS w(id, xid, at, ms, visible, lane, n)\n\
         ), k AS MATERIALIZED (\n  SELECT o.tableoid AS oid, o.ctid AS tid, {text} AS id FROM {table} AS o\n  \
         WHERE {these} AND {ready}\n  ORDER BY {order} FOR UPDATE SKIP LOCKED\n\
         ), l AS MATERIALIZED (\n  SELECT {text} AS id FROM {table} AS o\n  \
         WHERE {these} AND {ready}\n    AND (o.tableoid, o.ctid) NOT IN (SELECT k.oid, k.tid FROM k)\n  \
         UNION ALL SELECT w.id FROM e AS w\n  \
         WHERE NOT w.visible\n    \
           AND NOT pg_visible_in_snapshot(({XMAX} - ((({XMAX} - w.xid + 2147483648) & 4294967295) - 2147483648))\
         ::text::xid8, pg_current_snapshot())\n\
         ), b AS MATERIALIZED (\n  SELECT w.lane, min(w.n) AS n FROM e AS w\n  \
         WHERE w.id IN (SELECT l.id FROM l) GROUP BY w.lane\n\
         ), u AS MATERIALIZED (\n  SELECT k.oid, k.tid FROM k\n  \
         WHERE k.id NOT IN (SELECT l.id FROM l\n    \
           UNION ALL SELECT w.id FROM e AS w JOIN b ON b.lane = w.lane WHERE w.n > b.n)\n\
         ), m AS (\n  {}\n  {} u WHERE o.tableoid = u.oid AND o.ctid = u.tid\n  \
         RETURNING 1\n)\n\
         SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM m), ARRAY(SELECT l.id FROM l)",
        success(spec, shape, "statement_timestamp()"),
        if spec.deletes_published() { "USING" } else { "FROM" },
    )
}

/// Whether a row (`o`) is the row of an event of `e` that has its id. Another event may have got the id since, and a
/// status on its row would keep it from being published.
///
/// The row is the event's if its transaction is. A savepoint has a number of its own, which the stream does not show,
/// and a row that was updated since has the updating transaction's. So the row is also the event's if its commit time
/// is the event's, or its own time is. Without an own time, and if the server keeps no commit times, the row is assumed
/// to be the event's. Only equalities are used, so that each subquery is hashed once.
fn is_the_events(spec: &PollSpec, shape: &TableShape, text: &str) -> String {
    let committed = "CASE WHEN current_setting('track_commit_timestamp') = 'on' \
                     THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) \
                     - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END";
    let time = spec.time.as_deref().filter(|time| {
        let shape = shape.column(time);
        spec.stamps && shape.is_some_and(|column| column.type_name == "timestamp with time zone")
    });
    let (by_time, without) = time.map_or_else(
        || (String::new(), "true".to_owned()),
        |time| {
            let time = ident(time);
            let by_time = format!(
                "\n      OR ({text}, floor(extract(epoch FROM o.{time}) * 1000)) IN \
                 (SELECT e.id, e.ms::numeric FROM e WHERE e.ms IS NOT NULL)"
            );
            let without =
                format!("(o.{time} IS NULL OR {text} IN (SELECT e.id FROM e WHERE e.ms IS NULL))");
            (by_time, without)
        },
    );
    format!(
        "(({text}, o.xmin::text::int8) IN (SELECT e.id, e.xid FROM e WHERE e.xid IS NOT NULL)\n      \
         OR {text} IN (SELECT e.id FROM e WHERE e.at IS NULL)\n      \
         OR CASE WHEN {committed} IS NOT NULL\n        \
           THEN ({text}, {committed}) IN (SELECT e.id, e.at FROM e WHERE e.at IS NOT NULL)\n        \
           ELSE {without} END{by_time})"
    )
}

/// The `xmax` of rows by their ids in `$1`, as text.
fn locked_sql(spec: &PollSpec, id: &TableColumn) -> String {
    let these = id.is_one_of("o", "$1::text[]");
    format!("SELECT o.xmax::text FROM {} AS o WHERE {these}", spec.table)
}

/// The condition for rows that retention may remove when they are published; `None`: all of them.
pub(crate) fn removable(spec: &PollSpec) -> Option<String> {
    let condition = spec.row_state.state.removable.as_ref()?;
    Some(Dialect::without_types(spec).condition(condition, "o"))
}

/// The condition for rows without a status of success. `row`: the alias of the table; "" in an index.
pub(crate) fn unmarked(spec: &PollSpec, row: &str) -> String {
    Dialect::without_types(spec).condition(&spec.row_state.state.not_done, row)
}
