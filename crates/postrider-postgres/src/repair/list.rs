//! Which rows are unpublished, and in which order they are published: as SQL, and in words.
//!
//! A row does not record where its transaction committed, so the stream's position cannot be used to select rows. A row
//! records its transaction (`xmin`), and the cursor row keeps a snapshot whose transactions are all resolved. A
//! transaction below the snapshot's `xmin` had ended when the snapshot was taken, whatever savepoints it had, and is
//! resolved. A number between `xmin` and `xmax` may be a savepoint's: such a number is not among those in progress,
//! although its transaction is. It counts as unresolved, unless the server keeps commit times, because a savepoint has
//! the commit time of its transaction.
//!
//! An update gives a row the number of the updating transaction, so the row counts as unresolved. No unpublished row is
//! ever counted as published.

use super::row::{RepairRow, Selection};
use crate::names::{TableName, ident, literal};
use crate::poll::by_id::OutboxTable;
use crate::statement::{Statement, StatementError};
use crate::store::requeue;
use pg_replication::error::SourceError;
use postrider_core::store::PipelineKey;
use std::fmt::Write as _;
use std::time::SystemTime;
use tokio_postgres::Client;

/// How rows are selected and ordered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Method {
    /// Which rows.
    pub selection: Selection,
    /// A `pg_snapshot` whose transactions are resolved.
    pub known: Option<String>,
    /// `track_commit_timestamp` is on.
    pub commit_times: bool,
}

/// A `pg_snapshot` in its parts.
#[derive(PartialEq, Eq, Debug)]
struct Snapshot<'a> {
    xmin: u64,
    xmax: u64,
    /// Transactions in progress.
    running: Vec<&'a str>,
}

impl<'a> Snapshot<'a> {
    /// `10:20:10,14`
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let (xmin, xmax) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let running = parts.next()?.split(',').filter(|xid| !xid.is_empty());
        let running = running.filter(|xid| xid.bytes().all(|byte| byte.is_ascii_digit())).collect();
        Some(Self { xmin, xmax, running })
    }
}

/// The number of the transaction that wrote a row (`o`), with the epoch that puts it in the past.
pub(crate) const XID: &str = "((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) \
                    - (((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - o.xmin::text::int8) \
                       & 4294967295))";

/// Counts of rows that polling would publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnmarkedRows {
    /// All rows that polling would publish.
    pub all: u64,
    /// The rows that the stream is known to have published; `None` if nothing is known about transactions. If `before`
    /// is not known, rows from before the slot was created are among them.
    pub passed: Option<u64>,
    /// The rows that may be from before the slot was created; `None` if that is not known.
    pub before: Option<u64>,
    /// The rows that the slot may not send: from before it was created, or known to be published.
    pub not_streamed: Option<u64>,
}

/// Whether a snapshot sees a row (`o`). The result may be wrong (true) for a row that was written in a savepoint.
pub(crate) fn seen(snapshot: &str) -> String {
    format!("pg_visible_in_snapshot({XID}::text::xid8, {}::pg_snapshot)", literal(snapshot))
}

/// Rows (`o`) whose events are not parked. A row with the id of a parked event may be another event.
fn not_parked(table: &OutboxTable) -> String {
    format!(
        "NOT EXISTS (SELECT FROM postrider.parked AS p \
         WHERE p.pipeline = {pipeline} AND p.shard = {shard} AND p.event_id = {id} AND NOT {another})",
        pipeline = literal(&table.spec().key.pipeline),
        shard = table.spec().key.shard,
        id = table.id(),
        another = requeue::another(table),
    )
}

/// Counts rows (`o`) of the table, at most `most`.
async fn count(
    client: &Client,
    name: &TableName,
    rows: &str,
    most: u32,
) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("count rows of {name}"), e).of(Statement::Look);
    let sql =
        format!("SELECT count(*) FROM (SELECT FROM {name} AS o WHERE {rows} LIMIT {most}) AS r");
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    let count: i64 = row.try_get(0).map_err(failed)?;
    Ok(count.unsigned_abs())
}

impl Method {
    /// Reads whether the server keeps commit times.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn of(
        client: &Client,
        selection: Selection,
        known: Option<&str>,
    ) -> Result<Self, SourceError> {
        let failed = |e| SourceError::control("read track_commit_timestamp", e);
        let sql = "SELECT pg_catalog.current_setting('track_commit_timestamp') = 'on'";
        let commit_times = client.query_one(sql, &[]).await.and_then(|row| row.try_get(0));
        Ok(Self {
            selection,
            known: known.map(str::to_owned),
            commit_times: commit_times.map_err(failed)?,
        })
    }

    /// The rows (`o`) to publish: those of the selection, and of the parked events only those that are requeued at
    /// their place among the rows of their aggregate. An event is requeued if no later event of its aggregate stays
    /// parked. An event that is published, skipped, or blocks no other removes a row from the list only if the row is
    /// certainly that event. Rows are listed by their ids, so a row without an id is not among them:
    /// [`Self::without_id_sql`].
    pub(super) fn rows(&self, table: &OutboxTable) -> String {
        let spec = table.spec();
        let (pipeline, shard, id) = (literal(&spec.key.pipeline), spec.key.shard, table.id());
        let selected = self.selected(table);
        let another = requeue::another(table);
        format!(
            "{selected}\n  AND {has_id}\n  AND NOT EXISTS (SELECT FROM postrider.parked AS p LEFT JOIN (\n    \
               SELECT p.aggregate_type, p.aggregate_id, max(p.commit_lsn) AS last\n    \
               FROM postrider.parked AS p\n    \
               WHERE p.pipeline = {pipeline} AND p.shard = {shard} AND p.blocks\n    \
                 AND p.state NOT IN ('done', 'skipped')\n    \
                 AND NOT EXISTS (SELECT FROM {name} AS o\n      \
                   WHERE {id} = p.event_id AND {selected} AND NOT {another})\n    \
               GROUP BY 1, 2) AS stays USING (aggregate_type, aggregate_id)\n  \
             WHERE p.pipeline = {pipeline} AND p.shard = {shard} AND p.event_id = {id}\n    \
               AND NOT {another} AND {the_same}\n    \
               AND (p.state IN ('done', 'skipped') OR NOT p.blocks OR p.commit_lsn <= stays.last))",
            name = spec.table,
            the_same = requeue::the_same(),
            has_id = format_args!("o.{} IS NOT NULL", ident(&spec.id)),
        )
    }

    /// Whether a row (`o`) may be an event that is published or skipped, if that cannot be determined. `once`: of the
    /// events that must not be published a second time, and are parked instead
    /// ([`listed`](crate::store::requeue::listed)).
    pub(super) fn doubtful(&self, table: &OutboxTable, once: bool) -> String {
        let of = match (self.selection.by_marks(), once) {
            (true, true) => "p.state IN ('done', 'skipped')".to_owned(),
            (true, false) => "false".to_owned(),
            (false, true) => requeue::DECIDED.to_owned(),
            (false, false) => format!("p.state = 'done' AND NOT {}", requeue::DECIDED),
        };
        format!(
            "EXISTS (SELECT FROM postrider.parked AS p\n  \
               WHERE p.pipeline = {pipeline} AND p.shard = {shard} AND p.event_id = {id}\n    \
                 AND {of} AND NOT {another} AND NOT {the_same})",
            pipeline = literal(&table.spec().key.pipeline),
            shard = table.spec().key.shard,
            id = table.id(),
            another = requeue::another(table),
            the_same = requeue::the_same(),
        )
    }

    /// Counts the rows of the selection whose id is NULL, because a list of ids cannot hold them. With a snapshot, only
    /// rows that it sees.
    pub(super) fn without_id_sql(&self, table: &OutboxTable, snapshot: Option<&str>) -> String {
        let seen = snapshot.map_or_else(|| "true".to_owned(), seen);
        let spec = table.spec();
        format!(
            "SELECT count(*) FROM {name} AS o WHERE o.{id} IS NULL AND {selected} AND {seen}",
            name = spec.table,
            id = ident(&spec.id),
            selected = self.selected(table),
        )
    }

    /// Counts the rows of the table that are unpublished by this method (with `unmarked`, only those without a status):
    /// those that the snapshot of the list sees, and those that were written later.
    pub(super) fn left_sql(&self, table: &OutboxTable, snapshot: &str, unmarked: bool) -> String {
        let filter = if unmarked { table.unmarked() } else { "true".to_owned() };
        format!(
            "SELECT count(*) FILTER (WHERE r.seen), count(*) FILTER (WHERE NOT r.seen) FROM ( \
               SELECT pg_visible_in_snapshot({XID}::text::xid8, {snapshot}::pg_snapshot) AS seen \
               FROM {name} AS o WHERE {rows} AND {filter}) AS r",
            name = table.spec().table,
            rows = self.rows(table),
            snapshot = literal(snapshot),
        )
    }

    /// Counts rows that polling would publish although their transactions are known to be resolved, at most `most`.
    /// Parked and expired rows are not counted. `None` if nothing is known about transactions.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn count_passed(
        &self,
        client: &Client,
        table: &OutboxTable,
        most: u32,
    ) -> Result<Option<u64>, SourceError> {
        let Some(unresolved) = self.known.as_deref().and_then(|known| self.unresolved(known))
        else {
            return Ok(None);
        };
        let spec = table.spec();
        let failed = |e| {
            SourceError::control(format!("count rows of {} without their mark", spec.table), e)
                .of(Statement::Look)
        };
        let sql = format!(
            "SELECT count(*) FROM (SELECT FROM {name} AS o WHERE {to_publish} AND NOT ({unresolved})\n  \
               AND NOT EXISTS (SELECT FROM postrider.parked AS p\n    \
                 WHERE p.pipeline = {pipeline} AND p.shard = {shard} AND p.event_id = {id} AND NOT {another})\n  \
               LIMIT {most}) AS r",
            name = spec.table,
            to_publish = table.to_publish(),
            pipeline = literal(&spec.key.pipeline),
            shard = spec.key.shard,
            id = table.id(),
            another = requeue::another(table),
        );
        let row = client.query_one(&sql, &[]).await.map_err(failed)?;
        let count: i64 = row.try_get(0).map_err(failed)?;
        Ok(Some(count.unsigned_abs()))
    }

    /// Counts rows with the status of success, at most `most`.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn count_marked(
        client: &Client,
        table: &OutboxTable,
        most: u32,
    ) -> Result<u64, SourceError> {
        count(client, &table.spec().table, &format!("NOT ({})", table.unmarked()), most).await
    }

    /// Counts rows that polling would publish: without a status, not expired, and not parked. Each count is at most
    /// `most`. `before`: a snapshot; rows that it sees may be from before the slot was created.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn count_unmarked(
        &self,
        client: &Client,
        table: &OutboxTable,
        before: Option<&str>,
        most: u32,
    ) -> Result<UnmarkedRows, SourceError> {
        let name = &table.spec().table;
        let unmarked = format!("({}) AND {}", table.to_publish(), not_parked(table));
        let resolved = self.known.as_deref().and_then(|known| self.resolved(known));
        let before = before.map(seen);
        let of_stream =
            before.as_ref().map_or_else(|| "true".to_owned(), |before| format!("NOT {before}"));
        let passed = match &resolved {
            Some(resolved) => {
                let rows = format!("{unmarked} AND ({resolved}) AND {of_stream}");
                Some(count(client, name, &rows, most).await?)
            }
            None => None,
        };
        let (before, not_streamed) = match before {
            Some(before) => {
                let resolved = resolved.map_or_else(String::new, |rows| format!(" OR {rows}"));
                let either = format!("{unmarked} AND ({before}{resolved})");
                let before = format!("{unmarked} AND {before}");
                let before = count(client, name, &before, most).await?;
                (Some(before), Some(count(client, name, &either, most).await?))
            }
            None => (None, None),
        };
        let all = count(client, name, &unmarked, most).await?;
        Ok(UnmarkedRows { all, passed, before, not_streamed })
    }

    /// Counts rows of a table whose transactions are not known to be resolved, at most `most`. `None` if nothing is
    /// known about transactions.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn count_unresolved(
        &self,
        client: &Client,
        table: &TableName,
        most: u32,
    ) -> Result<Option<u64>, SourceError> {
        let Some(unresolved) = self.known.as_deref().and_then(|known| self.unresolved(known))
        else {
            return Ok(None);
        };
        count(client, table, &unresolved, most).await.map(Some)
    }

    /// The statement with which an operator sets the status of the [`passed`](UnmarkedRows::passed) rows. Its last
    /// condition leaves out rows that may be from before the slot was created. `None` if nothing is known about
    /// transactions.
    pub fn mark_passed_sql(&self, table: &OutboxTable, before: &str) -> Option<String> {
        let resolved = self.resolved(self.known.as_deref()?)?;
        Some(format!(
            "{success} WHERE {unmarked}({resolved}) AND {not_parked} AND NOT {before}",
            success = table.success_sql(),
            // If published rows are deleted, no row has a status.
            unmarked = Some(table.to_publish())
                .filter(|unmarked| unmarked != "true")
                .map_or_else(String::new, |unmarked| format!("{unmarked} AND ")),
            not_parked = not_parked(table),
            before = seen(before),
        ))
    }

    /// The rows (`o`) of the selection.
    fn selected(&self, table: &OutboxTable) -> String {
        let mut filter = "true".to_owned();
        let unresolved = || self.known.as_deref().and_then(|known| self.unresolved(known));
        let parts = match self.selection {
            Selection::All => [None, None],
            Selection::Unmarked => [Some(table.unmarked()), None],
            Selection::Unresolved => [None, unresolved()],
            Selection::Both => [Some(table.unmarked()), unresolved()],
        };
        for part in parts.into_iter().flatten() {
            let _infallible = write!(filter, " AND ({part})");
        }
        filter
    }

    fn unresolved(&self, known: &str) -> Option<String> {
        self.resolved(known).map(|resolved| format!("NOT ({resolved})"))
    }

    /// Rows (`o`) of transactions that are known to be resolved.
    pub(crate) fn resolved(&self, known: &str) -> Option<String> {
        let known = Snapshot::parse(known)?;
        let xid = XID;
        let mut resolved = format!("{xid} < {}", known.xmin);
        if self.commit_times && known.xmax > known.xmin {
            let running = known.running.join(",");
            let _infallible = write!(
                resolved,
                " OR {xid} < {} AND {xid} <> ALL ('{{{running}}}'::int8[]) AND \
                 pg_xact_commit_timestamp(o.xmin) IS NOT NULL AND \
                 coalesce(pg_xact_commit_timestamp(o.xmin) <> ALL (SELECT r.at FROM (SELECT \
                 pg_xact_commit_timestamp((t.xid & 4294967295)::text::xid) AS at FROM \
                 unnest('{{{running}}}'::int8[]) AS t(xid)) AS r WHERE r.at IS NOT NULL), false)",
                known.xmax
            );
        }
        Some(resolved)
    }

    /// The order, first key first.
    pub(super) fn order(&self, table: &OutboxTable) -> String {
        let mut keys = table.order();
        if self.commit_times {
            keys.insert(0, "pg_xact_commit_timestamp(o.xmin) NULLS FIRST".to_owned());
        }
        keys.join(", ")
    }

    /// Selection and order in words, for an operator.
    pub fn words(&self, table: &OutboxTable) -> String {
        let known = self.known.as_deref().and_then(Snapshot::parse);
        let ledger = match (&known, self.commit_times) {
            (Some(known), true) => format!(
                "rows from transaction {} on, without those that commit times show to be resolved \
                 (most before {})",
                known.xmin, known.xmax
            ),
            (Some(known), false) => format!("rows from transaction {} on", known.xmin),
            (None, _) => "every row".to_owned(),
        };
        let rows = match self.selection {
            Selection::All => "every row of the table".to_owned(),
            Selection::Unmarked => "rows without their layout's mark".to_owned(),
            Selection::Unresolved => ledger,
            Selection::Both => format!("rows without their layout's mark, of these {ledger}"),
        };
        let by = match (self.commit_times, table.id_is_number()) {
            (true, true) => {
                "commit time, then id. This equals commit order as long as the clock never went back"
            }
            (true, false) => {
                "commit time, then insertion. This equals commit order as long as the clock never went back"
            }
            (false, true) => {
                "id. This equals commit order only if writers lock the aggregate; set \
                 track_commit_timestamp = on for exact order"
            }
            (false, false) => {
                "the time column, then insertion. This equals commit order only if writers lock the \
                 aggregate; set track_commit_timestamp = on for exact order"
            }
        };
        format!("selected: {rows}. Order: {by}")
    }
}

/// A summary of the rows to publish, as the current transaction sees them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairSummary {
    /// Rows.
    pub rows: u64,
    /// Their aggregates.
    pub aggregates: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// The rows that were committed while the relay may have been running, so that it is not known whether
    /// they were published; and those that may be published parked events with the same ids.
    pub uncertain: u64,
    /// The rows that may be skipped or published events with the same ids: they are parked, not published.
    pub undecided: u64,
    /// The first and the last id, if there are rows and ids are numbers.
    pub ids: Option<(String, String)>,
    /// Numbers in between (and after the preceding row) that no row has; `None` if ids are not numbers.
    pub missing: Option<u64>,
    /// Selected rows without an id: they are not among [`Self::rows`], because a list of ids cannot hold them.
    pub without_id: u64,
}

/// Summarizes the rows that `method` selects. `ledger_at`: until when the previous relay may have published.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn summarize(
    client: &Client,
    table: &OutboxTable,
    method: &Method,
    ledger_at: Option<SystemTime>,
) -> Result<RepairSummary, SourceError> {
    let failed = |e| SourceError::control("count the rows to publish", e);
    let committed = match (method.commit_times, table.time()) {
        (true, _) => "coalesce(pg_xact_commit_timestamp(o.xmin) <= $1, true)".to_owned(),
        (false, Some(time)) => format!("coalesce({time} <= $1, true)"),
        (false, None) => "$1::timestamptz IS NOT NULL".to_owned(),
    };
    let spec = table.spec();
    let (id, name) = (ident(&spec.id), &spec.table);
    let number = table.id_is_number();
    let bounds = if number {
        format!("min(o.{id})::text, max(o.{id})::text")
    } else {
        "NULL::text, NULL::text".to_owned()
    };
    let sql = format!(
        "SELECT count(*), count(DISTINCT {key}), coalesce(sum({size}), 0)::int8, \
           count(*) FILTER (WHERE $1::timestamptz IS NOT NULL AND {committed} OR {published}), {bounds}, \
           count(*) FILTER (WHERE {decided}) \
         FROM {name} AS o WHERE {rows}",
        key = table.key(),
        size = table.stored(),
        published = method.doubtful(table, false),
        decided = method.doubtful(table, true),
        rows = method.rows(table),
    );
    let row = client.query_one(&sql, &[&ledger_at]).await.map_err(failed)?;
    let count = |at: usize| row.try_get::<_, i64>(at).map(i64::cast_unsigned).map_err(failed);
    let first: Option<String> = row.try_get(4).map_err(failed)?;
    let last: Option<String> = row.try_get(5).map_err(failed)?;
    let ids = first.zip(last);
    let missing = match &ids {
        Some((first, _)) => Some(missing(client, table, first).await?),
        None => number.then_some(0),
    };
    let sql = method.without_id_sql(table, None);
    let without_id = client.query_one(&sql, &[]).await.and_then(|row| row.try_get::<_, i64>(0));
    Ok(RepairSummary {
        rows: count(0)?,
        aggregates: count(1)?,
        bytes: count(2)?,
        uncertain: count(3)?,
        undecided: count(6)?,
        ids,
        missing,
        without_id: without_id.map_err(failed)?.cast_unsigned(),
    })
}

/// Counts the rows in the table now that the list of `repair` should have and cannot, because their id is NULL.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn without_id(
    client: &Client,
    table: &OutboxTable,
    repair: &RepairRow,
) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("count the rows without an id", e);
    let Some(snapshot) = &repair.snapshot else { return Ok(0) };
    let method = Method::of(client, repair.selection, repair.ledger.as_deref()).await?;
    let sql = method.without_id_sql(table, Some(snapshot));
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    row.try_get::<_, i64>(0).map(i64::cast_unsigned).map_err(failed)
}

/// Counts numbers that no row has, from the row before `first` to the highest of the table.
async fn missing(client: &Client, table: &OutboxTable, first: &str) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("count the missing ids", e);
    let spec = table.spec();
    let (id, name) = (ident(&spec.id), &spec.table);
    let sql = format!(
        "SELECT greatest(max(o.{id})::numeric - coalesce((SELECT max(b.{id}) FROM {name} AS b \
           WHERE b.{id} < $1::text::numeric), $1::text::numeric - 1) - count(*), 0)::int8 \
         FROM {name} AS o WHERE o.{id} >= $1::text::numeric"
    );
    let row = client.query_one(&sql, &[&first]).await.map_err(failed)?;
    let missing: Option<i64> = row.try_get(0).map_err(failed)?;
    Ok(missing.unwrap_or_default().cast_unsigned())
}

/// Backends of relays of the pipeline, by their `application_name`, as far as our role may see them.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn relays(client: &Client, application_name: &str) -> Result<Vec<u32>, SourceError> {
    let failed = |e| SourceError::control("check for other relays", e);
    let sql = "SELECT pid FROM pg_catalog.pg_stat_activity WHERE application_name = $1 \
                 AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()";
    let rows = client.query(sql, &[&application_name]).await.map_err(failed)?;
    let pids = rows.iter().map(|row| row.try_get::<_, i32>(0).map(i32::cast_unsigned));
    pids.collect::<Result<_, _>>().map_err(failed)
}

/// Counts rows that were parked because they have the ids of events that were parked before, and that no operator has
/// decided on.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn undecided(client: &Client, key: &PipelineKey) -> Result<u64, SourceError> {
    let sql = "SELECT count(*) FROM postrider.parked \
               WHERE pipeline = $1 AND shard = $2 AND error_code = 'id_used_before' \
                 AND state NOT IN ('done', 'skipped')";
    number(client, sql, key).await
}

/// Counts the rows that are still on the list.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn left(client: &Client, key: &PipelineKey) -> Result<u64, SourceError> {
    let sql = "SELECT coalesce(sum(cardinality(ids)), 0)::int8 FROM postrider.repair_page \
               WHERE pipeline = $1 AND shard = $2";
    number(client, sql, key).await
}

/// Counts the aggregates whose rows wait for a parked event.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn parked_aggregates(client: &Client, key: &PipelineKey) -> Result<u64, SourceError> {
    let sql = "SELECT count(DISTINCT (aggregate_type, aggregate_id)) FROM postrider.parked \
               WHERE pipeline = $1 AND shard = $2 AND blocks AND state NOT IN ('done', 'skipped')";
    number(client, sql, key).await
}

async fn number(client: &Client, sql: &str, key: &PipelineKey) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("read the state of the repair", e);
    let row = client.query_one(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    row.try_get::<_, i64>(0).map(i64::cast_unsigned).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_three_parts() {
        let parsed = Snapshot::parse("10:20:10,14").unwrap();
        assert_eq!(parsed, Snapshot { xmin: 10, xmax: 20, running: vec!["10", "14"] });
        assert_eq!(Snapshot::parse("7:7:").unwrap().running, Vec::<&str>::new());
        for bad in ["", "7", "7:8", "a:8:"] {
            assert_eq!(Snapshot::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn possible_savepoints_are_unresolved_without_commit_times() {
        let known = Some("10:20:10,14".to_owned());
        let method = |commit_times| Method {
            selection: Selection::Unresolved,
            known: known.clone(),
            commit_times,
        };
        let without = method(false).unresolved("10:20:10,14").unwrap();
        assert!(without.ends_with(" < 10)"), "{without}");
        let with = method(true).unresolved("10:20:10,14").unwrap();
        assert!(with.contains(" < 20 AND ") && with.contains("'{10,14}'"), "{with}");
    }
}
