//! Consumer groups as an operator changes them: create, drop, seek, evict, and what a seek would skip or repeat.
//!
//! The functions of the SQL toolkit do the work, and their errors have hints.

use super::log_maintenance::{GroupFacts, number};
use crate::names::ident;
use pg_replication::error::SourceError;
use postrider_core::timestamp::Timestamp;
use tokio_postgres::{Client, Row};

/// A group to be created.
#[derive(Clone, Copy, Debug)]
pub struct NewGroup<'a> {
    /// The group's name.
    pub name: &'a str,
    /// The log that it reads.
    pub log: &'a str,
    /// Whether it begins with the oldest event of the log, and not after the newest one.
    pub earliest: bool,
    /// How many events it may hold back from retention; `None`: any number.
    pub retain_max: Option<u64>,
}

/// Creates a group.
///
/// # Errors
/// SQLSTATE PR110: there is no such log; PR111: the group exists. Any other error of the server or of the connection.
pub async fn create(client: &Client, new: &NewGroup<'_>) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("create group {:?}", new.name), e);
    let from = if new.earliest { "earliest" } else { "latest" };
    let retain_max = new.retain_max.map(|max| i64::try_from(max).unwrap_or(i64::MAX));
    let sql = "SELECT postrider.create_consumer_group($1, $2, $3, $4)";
    client.query(sql, &[&new.name, &new.log, &from, &retain_max]).await.map_err(failed)?;
    Ok(())
}

/// Drops a group with its offsets.
///
/// # Errors
/// SQLSTATE PR112: there is no such group. Any other error of the server or of the connection.
pub async fn drop(client: &Client, name: &str) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("drop group {name:?}"), e);
    client.query("SELECT postrider.drop_consumer_group($1)", &[&name]).await.map_err(failed)?;
    Ok(())
}

/// Evicts a group: retention does not wait for it any more. False if it was evicted before.
///
/// # Errors
/// SQLSTATE PR112: there is no such group. Any other error of the server or of the connection.
pub async fn evict(client: &Client, name: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("evict group {name:?}"), e);
    let sql = "SELECT postrider.evict_consumer_group($1)";
    client.query_one(sql, &[&name]).await.and_then(|row| row.try_get(0)).map_err(failed)
}

/// Lifts the eviction of a group: each hash partition continues at its own offset, or at the first event that is kept.
/// Returns the number of events that are lost.
///
/// # Errors
/// SQLSTATE PR112: there is no such group. Any other error of the server or of the connection.
pub async fn resume(client: &Client, name: &str) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("resume group {name:?}"), e);
    let sql = "SELECT postrider.resume_consumer_group($1)";
    client.query_one(sql, &[&name]).await.and_then(|row| number(&row, 0)).map_err(failed)
}

/// A hash partition of a group.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionFacts {
    /// Its number, from 0.
    pub part: u32,
    /// Every event of it up to this number is done.
    pub last_offset: u64,
    /// The number of its last event.
    pub head: u64,
    /// Events that are not done.
    pub lag: u64,
    /// The consumer that had the last lease.
    pub consumer: Option<String>,
    /// Whether a lease is out.
    pub leased: bool,
    /// Whether the consumer has had a heartbeat in the last 60 seconds; `None` if it is unknown.
    pub healthy: Option<bool>,
    /// How often the events that are not done were given out.
    pub deliveries: u32,
}

/// The hash partitions of a group.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn partitions(client: &Client, group: &str) -> Result<Vec<PartitionFacts>, SourceError> {
    let failed = |e| SourceError::control(format!("read the lag of group {group:?}"), e);
    let sql = "SELECT c.part::pg_catalog.int8, c.last_offset, c.head, c.lag, c.consumer, c.leased, c.healthy, \
                 c.deliveries::pg_catalog.int8 FROM postrider.consumer_lag($1) c ORDER BY c.part";
    let rows = client.query(sql, &[&group]).await.map_err(failed)?;
    let partition = |row: &Row| -> Result<PartitionFacts, tokio_postgres::Error> {
        Ok(PartitionFacts {
            part: u32::try_from(number(row, 0)?).unwrap_or(0),
            last_offset: number(row, 1)?,
            head: number(row, 2)?,
            lag: number(row, 3)?,
            consumer: row.try_get(4)?,
            leased: row.try_get(5)?,
            healthy: row.try_get(6)?,
            deliveries: u32::try_from(number(row, 7)?).unwrap_or(u32::MAX),
        })
    };
    rows.iter().map(partition).collect::<Result<_, _>>().map_err(failed)
}

/// Where a group is to continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTo {
    /// After the event with this number.
    After(u64),
    /// At the first event that was appended at this time or later.
    Time(Timestamp),
    /// At the oldest event of the log.
    Earliest,
    /// After the newest event of the log.
    Latest,
}

/// What a seek would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeekEffect {
    /// The offset: the group is given events with higher numbers.
    pub offset: u64,
    /// Events of the log that are not done, and would not be given to the group any more.
    pub skipped: u64,
    /// Events that are done, and would be given to the group again.
    pub repeated: u64,
    /// The number that was wanted is lower than that of the oldest event: retention has dropped what is before it.
    pub is_before_first: bool,
}

/// Counts what a seek of a group would skip and repeat. Reads the index of the events in between.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn seek_effect(
    client: &Client,
    group: &GroupFacts,
    to: SeekTo,
) -> Result<SeekEffect, SourceError> {
    let failed = |e| SourceError::control(format!("count the events of group {:?}", group.name), e);
    let sql = "SELECT l.table_name::pg_catalog.text, l.first_seq, h.last_seq FROM postrider.event_log l \
               CROSS JOIN LATERAL postrider.log_head(l.name) h WHERE l.name = $1";
    let row = client.query_one(sql, &[&group.log]).await.map_err(failed)?;
    let table: String = row.try_get(0).map_err(failed)?;
    let oldest = number(&row, 1).map_err(failed)?.saturating_sub(1);
    let newest = number(&row, 2).map_err(failed)?;
    let wanted = match to {
        SeekTo::After(seq) => seq,
        SeekTo::Earliest => oldest,
        SeekTo::Latest => newest,
        SeekTo::Time(time) => offset_at(client, &group.log, time).await?,
    };
    let offset = wanted.clamp(oldest, newest.max(oldest));
    let sql = format!(
        "SELECT coalesce(pg_catalog.sum(x.skipped), 0)::pg_catalog.int8, \
           coalesce(pg_catalog.sum(x.repeated), 0)::pg_catalog.int8 \
         FROM postrider.group_state($1) s CROSS JOIN LATERAL (SELECT \
           (SELECT pg_catalog.count(*) FROM postrider_log.{table} e \
            WHERE e.part = s.part AND e.seq > s.last_offset AND e.seq <= $2) AS skipped, \
           (SELECT pg_catalog.count(*) FROM postrider_log.{table} e \
            WHERE e.part = s.part AND e.seq > $2 AND e.seq <= s.last_offset) AS repeated) x",
        table = ident(&table)
    );
    let bound = i64::try_from(offset).unwrap_or(i64::MAX);
    let row = client.query_one(&sql, &[&group.name, &bound]).await.map_err(failed)?;
    let (skipped, repeated) = (number(&row, 0).map_err(failed)?, number(&row, 1).map_err(failed)?);
    Ok(SeekEffect { offset, skipped, repeated, is_before_first: wanted < oldest })
}

/// The number of the last event that was appended before a time.
async fn offset_at(client: &Client, log: &str, time: Timestamp) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control(format!("find a time in log {log:?}"), e);
    let sql = "SELECT postrider.log_offset_at($1, \
               timestamptz 'epoch' + $2::pg_catalog.int8 * interval '1 microsecond')";
    let row = client.query_one(sql, &[&log, &time.unix_micros]).await.map_err(failed)?;
    number(&row, 0).map_err(failed)
}

/// Lets a group continue after the event `offset`. What was leased is given out again; an eviction ends.
///
/// # Errors
/// SQLSTATE PR112: there is no such group. Any other error of the server or of the connection.
pub async fn seek(client: &Client, group: &str, offset: u64) -> Result<(), SourceError> {
    let failed = |e| SourceError::control(format!("seek group {group:?}"), e);
    let offset = i64::try_from(offset).unwrap_or(i64::MAX);
    let sql = "SELECT postrider.seek_offset($1, NULL, $2)";
    client.query(sql, &[&group, &offset]).await.map_err(failed)?;
    Ok(())
}
