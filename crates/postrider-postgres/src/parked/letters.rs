//! What the dead-letter topic gets of a dead event: its record as it stands in its row, and why it is there.

use super::read::{columns, position, record_of};
use crate::poll::ROW_BYTES_MAX;
use pg_replication::error::{SourceError, Statement};
use postrider_core::event::Position;
use postrider_core::record::OwnedRecord;
use tokio_postgres::{Client, Row};

/// The records of these events for the dead-letter topic, in order: key, value, timestamp and headers as they are, the
/// partition the topic's own to choose, and five headers more: `dead_code`, `dead_error`, `dead_attempts`,
/// `dead_position` and `dead_topic`, where the event was to go. An event that is not dead any more is left out.
///
/// # Errors
/// What the server says.
pub async fn fetch_letters(
    client: &Client,
    pipeline: &str,
    positions: &[Position],
    topic: &str,
) -> Result<Vec<(Position, OwnedRecord)>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("fetch dead events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    // A payload that was not read for its size can't be sent, whatever code the event has: the error's text says why.
    // Such a row has no topic.
    let sql = format!(
        "SELECT p.commit_lsn, p.ordinal, p.topic, p.partition, p.key, \
           CASE WHEN p.error_code IS DISTINCT FROM 'row_too_large' \
             AND (p.error_code IS DISTINCT FROM 'id_used_before' OR p.topic <> '') \
             AND pg_catalog.octet_length(p.value) <= {ROW_BYTES_MAX} THEN p.value END, p.timestamp_ms, \
           p.header_names, p.header_values, p.error_code, p.error, p.attempts \
         FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[]) AS w(commit_lsn, ordinal) \
         JOIN postrider.parked p USING (commit_lsn, ordinal) \
         WHERE p.pipeline = $1 AND p.state = 'dead' ORDER BY p.commit_lsn, p.ordinal"
    );
    let (lsns, ordinals) = columns(positions);
    let rows = client.query(&sql, &[&pipeline, &lsns, &ordinals]).await.map_err(failed)?;
    rows.iter().map(|row| letter_of(row, topic).map_err(failed)).collect()
}

fn letter_of(row: &Row, topic: &str) -> Result<(Position, OwnedRecord), tokio_postgres::Error> {
    let (_, mut record) = record_of(row)?;
    let at = position(row.try_get(0)?, row.try_get(1)?);
    let code: Option<String> = row.try_get(9)?;
    let error: Option<String> = row.try_get(10)?;
    let attempts: i32 = row.try_get(11)?;
    let was_for = std::mem::replace(&mut record.topic, topic.to_owned());
    record.partition = None;
    let more = [
        ("dead_code", code),
        ("dead_error", error),
        ("dead_attempts", Some(attempts.to_string())),
        ("dead_position", Some(at.to_string())),
        ("dead_topic", Some(was_for)),
    ];
    let header = |(name, value): (&str, Option<String>)| (name.to_owned(), value.map(Into::into));
    record.headers.extend(more.into_iter().map(header));
    Ok((at, record))
}
