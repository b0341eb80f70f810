//! Looks before and while something is made: how many rows, which ids are missing, and who else is at work.

use super::list::Method;
use super::row::Row;
use crate::names::ident;
use crate::poll::listed::Table;
use pg_replication::error::SourceError;
use std::time::SystemTime;
use tokio_postgres::Client;

/// What there is to publish, as the transaction of the look sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// Rows.
    pub rows: u64,
    /// Their aggregates.
    pub aggregates: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Of the rows, those that were committed while the relay may have been at work: the ledger can't tell whether they
    /// were published; and those that may be published parked events, whose ids they have.
    pub uncertain: u64,
    /// Of the rows, those that may be events that were skipped or published before, whose ids they have: they are
    /// parked, not published.
    pub undecided: u64,
    /// The first and the last id, where there are rows and ids are numbers.
    pub ids: Option<(String, String)>,
    /// Numbers in between (and from the row before on) that no row has; `None` where ids are no numbers.
    pub missing: Option<u64>,
    /// Rows that are chosen and have no id: they are not among [`Self::rows`], since a list of ids can't hold them.
    pub without_id: u64,
}

/// Looks at the rows that `method` chooses. `ledger_at`: until when the relay before may have published.
///
/// # Errors
/// What the server says.
pub async fn survey(
    client: &Client,
    table: &Table,
    method: &Method,
    ledger_at: Option<SystemTime>,
) -> Result<Survey, SourceError> {
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
    Ok(Survey {
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

/// Rows that the list of `repair` should have and could not, since their id is NULL: those that are in the table now.
///
/// # Errors
/// What the server says.
pub async fn without_id(client: &Client, table: &Table, repair: &Row) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("count the rows without an id", e);
    let Some(snapshot) = &repair.snapshot else { return Ok(0) };
    let method = Method::of(client, repair.selection, repair.ledger.as_deref()).await?;
    let sql = method.without_id_sql(table, Some(snapshot));
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    row.try_get::<_, i64>(0).map(i64::cast_unsigned).map_err(failed)
}

/// Numbers that no row has, from behind the row before `first` to the highest of the table.
async fn missing(client: &Client, table: &Table, first: &str) -> Result<u64, SourceError> {
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

/// Backends of relays of the pipeline, by the name they give the server; those that our role may see.
///
/// # Errors
/// What the server says.
pub async fn relays(client: &Client, application_name: &str) -> Result<Vec<u32>, SourceError> {
    let failed = |e| SourceError::control("look for other relays", e);
    let sql = "SELECT pid FROM pg_catalog.pg_stat_activity WHERE application_name = $1 \
                 AND datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()";
    let rows = client.query(sql, &[&application_name]).await.map_err(failed)?;
    let pids = rows.iter().map(|row| row.try_get::<_, i32>(0).map(i32::cast_unsigned));
    pids.collect::<Result<_, _>>().map_err(failed)
}

/// Rows that were parked since they have ids of events that were parked before: nobody has decided on them.
///
/// # Errors
/// What the server says.
pub async fn undecided(client: &Client, pipeline: &str) -> Result<u64, SourceError> {
    let sql = "SELECT count(*) FROM postrider.parked \
               WHERE pipeline = $1 AND error_code = 'id_used_before' AND state NOT IN ('done', 'skipped')";
    number(client, sql, pipeline).await
}

/// Rows still on the list.
///
/// # Errors
/// What the server says.
pub async fn left(client: &Client, pipeline: &str) -> Result<u64, SourceError> {
    let sql = "SELECT coalesce(sum(cardinality(ids)), 0)::int8 FROM postrider.repair_page WHERE pipeline = $1";
    number(client, sql, pipeline).await
}

/// Aggregates whose rows wait behind a parked event.
///
/// # Errors
/// What the server says.
pub async fn parked_aggregates(client: &Client, pipeline: &str) -> Result<u64, SourceError> {
    let sql = "SELECT count(DISTINCT (aggregate_type, aggregate_id)) FROM postrider.parked \
               WHERE pipeline = $1 AND blocks AND state NOT IN ('done', 'skipped')";
    number(client, sql, pipeline).await
}

async fn number(client: &Client, sql: &str, pipeline: &str) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("look at the repair", e);
    let row = client.query_one(sql, &[&pipeline]).await.map_err(failed)?;
    row.try_get::<_, i64>(0).map(i64::cast_unsigned).map_err(failed)
}
