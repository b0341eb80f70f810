//! What a start, a retry and a request read from the parked table.

use crate::server::{lsn, pg_lsn};
use futures_util::TryStreamExt;
use pg_replication::error::{SourceError, Statement};
use postrider_core::event::{Aggregate, Position};
use postrider_core::parked::{Entry, Lane, State, Wish};
use postrider_core::record::OwnedRecord;
use std::pin::pin;
use std::time::Duration;
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Client, Row};

/// A parked event as a start finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// What the relay remembers of it.
    pub entry: Entry,
    /// What a person asked for while no relay ran.
    pub wish: Option<Wish>,
    /// It is dead, and was not published to the dead-letter topic.
    pub dead_unsent: bool,
}

/// Not the record's columns: they are large, and stay where they are until a retry ([`fetch`]). `least` and `greatest`
/// keep an infinite time, written by hand, from being an error.
const LOAD: &str = "\
SELECT commit_lsn, ordinal, state, attempts, \
       (pg_catalog.date_part('epoch', least(greatest(next_attempt_at, now), now + interval '100 years') - now) \
         * 1e6)::pg_catalog.int8, \
       CASE WHEN blocks THEN aggregate_type END, CASE WHEN blocks THEN aggregate_id END, \
       overtaken_lsn, overtaken_ordinal, requested_action, \
       state = 'dead' AND dead_sent_at IS NULL \
FROM postrider.parked, pg_catalog.statement_timestamp() AS now \
WHERE pipeline = $1 AND (state NOT IN ('done', 'skipped') OR (commit_lsn, ordinal) >= ($2, $3)) \
ORDER BY commit_lsn, ordinal";

/// Everything a start must know, in order: each event that is not resolved, and the tombstones from `from` on, which is
/// where the log is read again. The server computes the waits, so that its clock alone counts.
///
/// # Errors
/// What the server says.
pub async fn load(
    client: &Client,
    pipeline: &str,
    from: Position,
) -> Result<Vec<Loaded>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("load the parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    let (commit_lsn, ordinal) = (pg_lsn(from.commit_lsn), from.ordinal.cast_signed());
    let parameters: [&(dyn ToSql + Sync); 3] = [&pipeline, &commit_lsn, &ordinal];
    let rows = client.query_raw(LOAD, parameters).await.map_err(failed)?;
    let mut rows = pin!(rows);
    let mut loaded = Vec::new();
    while let Some(row) = rows.try_next().await.map_err(failed)? {
        loaded.push(loaded_of(&row).map_err(failed)?);
    }
    Ok(loaded)
}

fn loaded_of(row: &Row) -> Result<Loaded, tokio_postgres::Error> {
    let aggregate = row.try_get::<_, Option<&str>>(5)?.zip(row.try_get::<_, Option<&str>>(6)?);
    let overtaken = row.try_get::<_, Option<PgLsn>>(7)?.zip(row.try_get::<_, Option<i64>>(8)?);
    let wait = row.try_get::<_, Option<i64>>(4)?.unwrap_or(0);
    Ok(Loaded {
        entry: Entry {
            position: position(row.try_get(0)?, row.try_get(1)?),
            lane: aggregate.map(|(kind, id)| Lane::of(Aggregate { kind, id })),
            state: state(row.try_get(2)?),
            attempts: row.try_get::<_, i32>(3)?.unsigned_abs(),
            wait: Duration::from_micros(u64::try_from(wait).unwrap_or(0)),
            overtaken_by: overtaken.map(|(lsn, ordinal)| position(lsn, ordinal)),
        },
        wish: row.try_get::<_, Option<&str>>(9)?.and_then(Wish::parse),
        dead_unsent: row.try_get(10)?,
    })
}

/// The record of a parked event, for a retry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// Which event.
    pub position: Position,
    /// As it was to be published.
    pub record: OwnedRecord,
    /// Every later event of its aggregate has waited for it.
    pub keeps_order: bool,
}

/// The records of these events, for a retry, in order. An event that is resolved, or whose row is gone, is left out.
///
/// One answer holds them, so it ends with the record whose payload makes `bytes` full: what is behind that one in the
/// log is left out too.
///
/// # Errors
/// What the server says.
pub async fn fetch(
    client: &Client,
    pipeline: &str,
    positions: &[Position],
    bytes: u32,
) -> Result<Vec<Fetched>, SourceError> {
    // Without a topic it is not published, and its payload may be larger than memory allows.
    let value = "CASE WHEN topic <> '' THEN value END";
    let unresolved = "p.state NOT IN ('done', 'skipped')";
    fetch_where(client, pipeline, positions, (unresolved, value), bytes).await
}

/// The same for any state: what is resolved has no more than its topic.
pub(super) async fn fetch_any(
    client: &Client,
    pipeline: &str,
    positions: &[Position],
) -> Result<Vec<(Position, OwnedRecord)>, SourceError> {
    let fetched = fetch_where(client, pipeline, positions, ("true", "value"), u32::MAX).await?;
    Ok(fetched.into_iter().map(|fetched| (fetched.position, fetched.record)).collect())
}

async fn fetch_where(
    client: &Client,
    pipeline: &str,
    positions: &[Position],
    (condition, value): (&str, &str),
    bytes: u32,
) -> Result<Vec<Fetched>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("fetch parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    let sql = format!(
        "SELECT commit_lsn, ordinal, topic, partition, key, \
           {value}, \
           timestamp_ms, header_names, header_values, \
           blocks AND overtaken_lsn IS NULL \
         FROM (SELECT p.*, pg_catalog.sum(pg_catalog.octet_length(p.value)) OVER \
             (ORDER BY p.commit_lsn, p.ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before \
           FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[]) AS w(commit_lsn, ordinal) \
           JOIN postrider.parked p USING (commit_lsn, ordinal) \
           WHERE p.pipeline = $1 AND {condition}) AS wanted \
         WHERE coalesce(before, 0) < $4 ORDER BY commit_lsn, ordinal"
    );
    let (lsns, ordinals) = columns(positions);
    let rows = client
        .query(&sql, &[&pipeline, &lsns, &ordinals, &i64::from(bytes)])
        .await
        .map_err(failed)?;
    let fetched = |row: &Row| {
        let (position, record) = record_of(row)?;
        Ok(Fetched { position, record, keeps_order: row.try_get(9)? })
    };
    rows.iter().map(fetched).collect::<Result<_, _>>().map_err(failed)
}

pub(super) fn record_of(row: &Row) -> Result<(Position, OwnedRecord), tokio_postgres::Error> {
    let names: Vec<String> = row.try_get(7)?;
    let values: Vec<Option<Vec<u8>>> = row.try_get(8)?;
    let record = OwnedRecord {
        topic: row.try_get(2)?,
        partition: row.try_get(3)?,
        key: row.try_get(4)?,
        value: row.try_get(5)?,
        timestamp_ms: row.try_get(6)?,
        headers: names.into_iter().zip(values).collect(),
    };
    Ok((position(row.try_get(0)?, row.try_get(1)?), record))
}

/// Those of these events that have no row any more: somebody deleted it.
///
/// # Errors
/// What the server says.
pub async fn missing(
    client: &Client,
    pipeline: &str,
    positions: &[Position],
) -> Result<Vec<Position>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("look for parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    let sql = "SELECT w.commit_lsn, w.ordinal \
               FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[]) AS w(commit_lsn, ordinal) \
               WHERE NOT EXISTS (SELECT FROM postrider.parked p WHERE p.pipeline = $1 \
                 AND p.commit_lsn = w.commit_lsn AND p.ordinal = w.ordinal)";
    let (lsns, ordinals) = columns(positions);
    let rows = client.query(sql, &[&pipeline, &lsns, &ordinals]).await.map_err(failed)?;
    let position_of = |row: &Row| Ok(position(row.try_get(0)?, row.try_get(1)?));
    rows.iter().map(position_of).collect::<Result<_, _>>().map_err(failed)
}

/// What people ask for and nobody has carried out, in order.
///
/// # Errors
/// What the server says.
pub async fn requests(
    client: &Client,
    pipeline: &str,
) -> Result<Vec<(Position, Wish)>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read the requests for pipeline {pipeline:?}"), e)
            .of(Statement::Requests)
    };
    let sql = "SELECT commit_lsn, ordinal, requested_action FROM postrider.parked \
               WHERE pipeline = $1 AND requested_action IS NOT NULL ORDER BY commit_lsn, ordinal";
    let rows = client.query(sql, &[&pipeline]).await.map_err(failed)?;
    let wished = |row: &Row| {
        let wish = Wish::parse(row.try_get(2)?);
        Ok(wish.map(|wish| {
            Ok::<_, tokio_postgres::Error>((position(row.try_get(0)?, row.try_get(1)?), wish))
        }))
    };
    rows.iter()
        .filter_map(|row| wished(row).and_then(Option::transpose).transpose())
        .collect::<Result<_, _>>()
        .map_err(failed)
}

/// The state of a name. The table's CHECK knows no others; where it was taken off, what we don't know is left to a
/// person.
pub(super) fn state(name: &str) -> State {
    State::parse(name).unwrap_or(State::Dead)
}

pub(super) fn position(commit_lsn: PgLsn, ordinal: i64) -> Position {
    Position { commit_lsn: lsn(commit_lsn), ordinal: ordinal.cast_unsigned() }
}

/// Positions as the two columns of their identity.
pub(super) fn columns(positions: &[Position]) -> (Vec<PgLsn>, Vec<i64>) {
    positions.iter().map(|at| (pg_lsn(at.commit_lsn), at.ordinal.cast_signed())).unzip()
}
