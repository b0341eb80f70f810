//! What a pass would remove, and what keeps the rest: for people. Reads the whole table, and changes nothing.

use super::RetentionTable;
use super::guard::{Guard, all, counts};
use super::hold::Hold;
use super::horizon::Horizon;
use super::rows::HeldRows;
use pg_replication::error::SourceError;
use tokio_postgres::Client;

/// Parked events that are named.
const PARKED_MAX: i64 = 5;

/// The rows of a table, by what becomes of them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Survey {
    /// What blocks the removal of all rows.
    pub holds: Vec<Hold>,
    /// All rows.
    pub rows: u64,
    /// Rows that would be removed if there were no holds.
    pub allowed: u64,
    /// Rows that are kept, by the first guard that keeps them.
    pub held: HeldRows,
    /// Rows without a time: they are never removed, and are among those that the age keeps.
    pub without_time: u64,
    /// Transactions with lower numbers are resolved.
    pub below: Option<i64>,
    /// The oldest bookmark.
    pub bookmark: Option<String>,
    /// Ids of some of the parked events that keep rows.
    pub parked: Vec<String>,
}

impl Survey {
    /// Rows that would be removed: none while there are holds.
    pub fn removable(&self) -> u64 {
        if self.holds.is_empty() { self.allowed } else { 0 }
    }
}

/// Counts the rows of a table as a pass would find them, in one snapshot.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn survey(client: &Client, table: &RetentionTable) -> Result<Survey, SourceError> {
    let failed = |e| SourceError::control(format!("count the rows of {}", table.name()), e);
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL statement_timeout = 0";
    client.batch_execute(begin).await.map_err(failed)?;
    let counted = counted(client, table).await;
    let ended = client.batch_execute("ROLLBACK").await.map_err(failed);
    counted.and_then(|survey| ended.map(|()| survey))
}

async fn counted(client: &Client, table: &RetentionTable) -> Result<Survey, SourceError> {
    let name = table.name();
    let failed = |e| SourceError::control(format!("count the rows of {name}"), e);
    let horizon = table.horizon(client).await?;
    let guards = table.guards(&horizon);
    let age = table.age().unwrap_or_else(|| "NULL".to_owned());
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE {all}), count(*) FILTER (WHERE {age} IS NULL), {counts} \
         FROM {name} AS o",
        all = all(&guards),
        counts = counts(&guards)
    );
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    let count = |at: usize| row.try_get::<_, i64>(at).map(i64::unsigned_abs).map_err(failed);
    let held = HeldRows::read(&row, 3).map_err(failed)?;
    let Horizon { holds, below, bookmark, .. } = horizon;
    let mut survey = Survey {
        rows: count(0)?,
        allowed: count(1)?,
        held,
        without_time: count(2)?,
        holds,
        below,
        bookmark,
        parked: Vec::new(),
    };
    if held.of(Guard::Parked) > 0 {
        let sql = "SELECT p.event_id FROM postrider.parked AS p WHERE p.pipeline = $1 AND p.shard = $2 \
                     AND p.state NOT IN ('done', 'skipped') ORDER BY p.commit_lsn, p.ordinal LIMIT $3";
        let key = &table.rule().table.key;
        let rows =
            client.query(sql, &[&key.pipeline, &key.shard, &PARKED_MAX]).await.map_err(failed)?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>();
        survey.parked = ids.map_err(failed)?;
    }
    Ok(survey)
}
