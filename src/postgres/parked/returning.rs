//! Parked events whose rows the table brings again: a lost slot leaves them in both, and only the table knows which
//! rows of their aggregates come before them.
//!
//! Owns the look for them, and the change of their place. When they come is the driver's business.

use super::read::{columns, position};
use crate::event::Position;
use crate::postgres::error::SourceError;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};

/// A parked event that comes again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Again {
    /// Its id, as the row of the table has it.
    pub event_id: String,
    /// Where it stands in the parked table.
    pub position: Position,
    /// It was published or given up, and only its mark in the table is missing.
    pub resolved: bool,
}

/// Those that are on the list of a repair.
///
/// # Errors
/// What the server says.
pub async fn listed(client: &Client, pipeline: &str) -> Result<Vec<Again>, SourceError> {
    let sql = "SELECT p.event_id, p.commit_lsn, p.ordinal, false FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.blocks AND p.state NOT IN ('done', 'skipped') \
                 AND p.event_id IN (SELECT unnest(r.ids) FROM postrider.repair_page AS r WHERE r.pipeline = $1)";
    read(client, pipeline, sql).await
}

/// Those that polling will claim. `ids` is a query for the ids of rows that are not published, as text.
///
/// One that has a later one of its aggregate behind it that does not come again stays where it is. Of those that are
/// resolved only what the stream might have brought again counts: a mark that somebody took back later is his word.
///
/// # Errors
/// What the server says.
pub async fn unpublished(
    client: &Client,
    pipeline: &str,
    ids: &str,
) -> Result<Vec<Again>, SourceError> {
    let sql = format!(
        "WITH parked AS MATERIALIZED ( \
           SELECT p.event_id, p.commit_lsn, p.ordinal, p.aggregate_type, p.aggregate_id, \
             p.state IN ('done', 'skipped') AS resolved, s.id IS NOT NULL AS stands \
           FROM postrider.parked AS p LEFT JOIN ({ids}) AS s ON s.id = p.event_id \
           WHERE p.pipeline = $1 AND p.blocks AND (p.state NOT IN ('done', 'skipped') OR p.commit_lsn >= \
             (SELECT c.watermark FROM postrider.cursor AS c WHERE c.pipeline = $1))) \
         SELECT a.event_id, a.commit_lsn, a.ordinal, a.resolved FROM parked AS a \
         WHERE a.stands AND NOT EXISTS (SELECT FROM parked AS b WHERE NOT b.stands AND NOT b.resolved \
           AND b.aggregate_type = a.aggregate_type AND b.aggregate_id = a.aggregate_id \
           AND (b.commit_lsn, b.ordinal) > (a.commit_lsn, a.ordinal))"
    );
    let any =
        "SELECT EXISTS (SELECT FROM postrider.parked AS p WHERE p.pipeline = $1 AND p.blocks)";
    let failed = |e| SourceError::control(doing(pipeline), e);
    let any = client.query_one(any, &[&pipeline]).await.and_then(|row| row.try_get(0));
    if any.map_err(failed)? { read(client, pipeline, &sql).await } else { Ok(Vec::new()) }
}

fn doing(pipeline: &str) -> String {
    format!("look for parked events of pipeline {pipeline:?} whose rows are not published")
}

async fn read(client: &Client, pipeline: &str, sql: &str) -> Result<Vec<Again>, SourceError> {
    let failed = |e| SourceError::control(doing(pipeline), e);
    let again = |row: &Row| {
        Ok(Again {
            event_id: row.try_get(0)?,
            position: position(row.try_get(1)?, row.try_get(2)?),
            resolved: row.try_get(3)?,
        })
    };
    let rows = client.query(sql, &[&pipeline]).await.map_err(failed)?;
    rows.iter().map(again).collect::<Result<_, _>>().map_err(failed)
}

/// Gives rows another place, each `(before, after)`; everything else of them stays. To be called inside a transaction
/// that also writes as [`write`](super::write()) does: that is its fence.
///
/// # Errors
/// What the server says.
pub async fn place(
    client: &Client,
    pipeline: &str,
    places: &[(Position, Position)],
) -> Result<(), SourceError> {
    if places.is_empty() {
        return Ok(());
    }
    let failed =
        |e| SourceError::control(format!("place parked events of pipeline {pipeline:?} anew"), e);
    let (before, after): (Vec<Position>, Vec<Position>) = places.iter().copied().unzip();
    let ((from_lsn, from_ordinal), (to_lsn, to_ordinal)) = (columns(&before), columns(&after));
    let sql = "UPDATE postrider.parked AS p SET commit_lsn = m.to_lsn, ordinal = m.to_ordinal \
               FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[], $4::pg_catalog.pg_lsn[], \
                 $5::pg_catalog.int8[]) AS m(from_lsn, from_ordinal, to_lsn, to_ordinal) \
               WHERE p.pipeline = $1 AND p.commit_lsn = m.from_lsn AND p.ordinal = m.from_ordinal";
    client
        .execute(sql, &[&pipeline, &from_lsn, &from_ordinal, &to_lsn, &to_ordinal])
        .await
        .map(drop)
        .map_err(failed)
}

/// Parked events that the cursor row has not passed, with their ids: the rows of the table that are not marked yet.
///
/// # Errors
/// What the server says.
pub async fn not_passed(
    client: &Client,
    pipeline: &str,
) -> Result<Vec<(Position, String)>, SourceError> {
    let failed =
        |e| SourceError::control(format!("read parked events of pipeline {pipeline:?}"), e);
    let sql = "SELECT p.commit_lsn, p.ordinal, p.event_id FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.event_id IS NOT NULL AND p.commit_lsn >= \
                 (SELECT c.watermark FROM postrider.cursor AS c WHERE c.pipeline = $1)";
    let rows = client.query(sql, &[&pipeline]).await.map_err(failed)?;
    let found = |row: &Row| {
        let (lsn, ordinal): (PgLsn, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok((position(lsn, ordinal), row.try_get(2)?))
    };
    rows.iter().map(found).collect::<Result<_, _>>().map_err(failed)
}
