//! Where rows of the outbox are, as far as the database knows: whether their transactions are resolved, and whether they
//! have the layout's mark.
//!
//! Whether a row is published is decided as a repair and retention decide it, from the same facts
//! ([`RetentionTable::own_horizon`]): a row has no position, but the number of its transaction, and the cursor row has a
//! snapshot all of whose transactions are resolved. A hold means that the position proves nothing about the rows.

use crate::poll::by_id::OutboxTable;
use crate::repair::XID;
use crate::retention::{Hold, RetentionRule, RetentionTable};
use pg_replication::error::{SourceError, SqlState};
use postrider_core::store::PipelineKey;
use tokio_postgres::{Client, Row};

/// For how long resolved parked events are kept at least, less a day for clocks that differ: a row whose own time is
/// older may belong to an event that was skipped and is not among the parked events any more.
const KEPT_DAYS: u32 = 6;

/// How long a statement of a search may take.
const LIMITS: &str = "SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '2s'";

/// What rows are searched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowSought<'a> {
    /// The rows with this id.
    Id(&'a str),
    /// The rows of the aggregate of this type and id.
    Aggregate(&'a str, &'a str),
}

/// The stored position of a pipeline. Times are UTC, `2026-01-02T03:04:05Z`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredPosition {
    /// The position below which every event is resolved.
    pub watermark: String,
    /// When it was last written.
    pub written_at: String,
}

/// A row of the outbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundRow {
    /// The event's id.
    pub id: String,
    /// The type and the id of the aggregate.
    pub aggregate: (String, String),
    /// The row's own time, if it has one.
    pub time: Option<String>,
    /// The pipeline has resolved the row's transaction; `None` if nothing is known about transactions.
    pub is_resolved: Option<bool>,
    /// The row has the layout's mark of a published row; `None` if rows are not marked.
    pub is_marked: Option<bool>,
    /// Polling would publish the row; `None` if rows are not marked.
    pub is_to_publish: Option<bool>,
    /// The row has a time of expiry.
    pub may_expire: bool,
    /// By its own time, the row is younger than the parked events that are kept.
    pub is_recent: bool,
}

/// What the table has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundRows {
    /// The rows, the newest first.
    pub rows: Vec<FoundRow>,
    /// There are more.
    pub more: bool,
    /// Why the stored position proves nothing about the rows; empty if it does.
    pub holds: Vec<Hold>,
}

/// Begins the transaction of a search: everything is read in one snapshot, and nothing can be written.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn begin(client: &Client) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("begin a search", e);
    let sql = format!("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {LIMITS}");
    client.batch_execute(&sql).await.map_err(failed)
}

/// Ends the transaction.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn end(client: &Client) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("end a search", e);
    client.batch_execute("ROLLBACK").await.map_err(failed)
}

/// Reads the stored position of a pipeline; `None` if it has none.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn position(
    client: &Client,
    key: &PipelineKey,
) -> Result<Option<StoredPosition>, SourceError> {
    let failed = |e| SourceError::control(format!("read the position of pipeline {key}"), e);
    let sql = format!(
        "SELECT watermark::pg_catalog.text, {} FROM postrider.cursor WHERE pipeline = $1 AND shard = $2",
        utc("updated_at")
    );
    let row = client.query_opt(&sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(StoredPosition {
        watermark: row.try_get(0).map_err(failed)?,
        written_at: row.try_get(1).map_err(failed)?,
    }))
}

/// Searches for rows, at most `most`, in the transaction of [`begin`]. After an error that transaction can only be ended.
///
/// # Errors
/// An error of the server or of the connection: 42501 without the right to read the table, 57014 if the search takes
/// longer than 10 s.
pub async fn rows(
    client: &Client,
    rule: RetentionRule,
    sought: RowSought<'_>,
    most: u32,
) -> Result<FoundRows, SourceError> {
    let table = RetentionTable::read(client, rule).await?;
    let horizon = table.own_horizon(client).await?;
    let doing = || format!("search table {}", table.name());
    let failed = |e| SourceError::control(doing(), e);
    let outbox = table.table();
    let sql = rows_sql(&table, outbox, horizon.below, sought, most);
    let found = match sought {
        RowSought::Id(id) => client.query(&sql, &[&id]).await,
        RowSought::Aggregate(kind, id) => client.query(&sql, &[&kind, &id]).await,
    };
    let found = match found {
        // A value that the type of the column cannot have: no row has it.
        Err(error) if is_alien(&error) => Vec::new(),
        found => found.map_err(failed)?,
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let more = found.len() > most;
    let rows = found.iter().take(most).map(read).collect::<Result<_, _>>().map_err(failed)?;
    Ok(FoundRows { rows, more, holds: horizon.holds })
}

/// Whether a search was ended because it took too long.
pub fn took_too_long(error: &SourceError) -> bool {
    error.sqlstate() == Some(SqlState::QUERY_CANCELED)
}

fn is_alien(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|state| state.code().starts_with("22"))
}

/// A time as text.
fn utc(of: &str) -> String {
    format!("pg_catalog.to_char({of} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')")
}

fn rows_sql(
    table: &RetentionTable,
    outbox: &OutboxTable,
    below: Option<i64>,
    sought: RowSought<'_>,
    most: u32,
) -> String {
    let marked = table.rule().marked;
    let (kind, aggregate) = outbox.aggregate();
    let time = table.time();
    let expiry = table.rule().expiry.as_deref().and_then(|column| outbox.instant(column));
    let condition = match sought {
        RowSought::Id(_) => outbox.has_id("ARRAY[$1::text]"),
        RowSought::Aggregate(..) => outbox.is_of_aggregate("ARRAY[$1::text]", "ARRAY[$2::text]"),
    };
    let boolean = |condition: String| format!("coalesce(({condition}), false)");
    format!(
        "SELECT {id}, {kind}, {aggregate}, {shown}, {resolved}, {is_marked}, {to_publish}, {may_expire}, {recent} \
         FROM {name} AS o WHERE {condition} ORDER BY {XID} DESC, {key} DESC LIMIT {limit}",
        id = outbox.id(),
        shown = time.as_deref().map_or_else(|| "NULL::text".to_owned(), utc),
        resolved =
            below.map_or_else(|| "NULL::bool".to_owned(), |below| format!("{XID} < {below}")),
        is_marked = if marked {
            boolean(format!("NOT ({})", outbox.unmarked()))
        } else {
            "NULL::bool".to_owned()
        },
        to_publish = if marked { boolean(outbox.to_publish()) } else { "NULL::bool".to_owned() },
        may_expire =
            expiry.map_or_else(|| "false".to_owned(), |expiry| format!("{expiry} IS NOT NULL")),
        recent = time.as_deref().map_or_else(
            || "false".to_owned(),
            |time| boolean(format!("{time} > now() - interval '{KEPT_DAYS} days'"))
        ),
        name = table.name(),
        key = outbox.id_key(),
        limit = u64::from(most) + 1,
    )
}

fn read(row: &Row) -> Result<FoundRow, tokio_postgres::Error> {
    Ok(FoundRow {
        id: row.try_get(0)?,
        aggregate: (row.try_get(1)?, row.try_get(2)?),
        time: row.try_get(3)?,
        is_resolved: row.try_get(4)?,
        is_marked: row.try_get(5)?,
        is_to_publish: row.try_get(6)?,
        may_expire: row.try_get(7)?,
        is_recent: row.try_get(8)?,
    })
}
