//! New rows as columns: each an array, so that a batch is one statement.

use super::micros;
use crate::server::pg_lsn;
use postrider_core::event::PgTime;
use postrider_core::parked::{Parked, State};
use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::types::{PgLsn, ToSql};

/// The rows of one statement.
#[derive(Default)]
pub(super) struct Rows<'a> {
    commit_lsn: Vec<PgLsn>,
    ordinal: Vec<i64>,
    commit_time: Vec<SystemTime>,
    event_id: Vec<Option<Cow<'a, str>>>,
    event_type: Vec<Option<Cow<'a, str>>>,
    aggregate_type: Vec<Option<Cow<'a, str>>>,
    aggregate_id: Vec<Option<Cow<'a, str>>>,
    blocks: Vec<bool>,
    topic: Vec<Cow<'a, str>>,
    partition: Vec<Option<i32>>,
    key: Vec<Option<&'a [u8]>>,
    value: Vec<Option<&'a [u8]>>,
    timestamp_ms: Vec<Option<i64>>,
    error_code: Vec<Option<&'a str>>,
    error: Vec<Option<Cow<'a, str>>>,
    attempts: Vec<i32>,
    wait: Vec<Option<i64>>,
    state: Vec<&'a str>,
    overtaken_lsn: Vec<Option<PgLsn>>,
    overtaken_ordinal: Vec<Option<i64>>,
    // An array of arrays must be rectangular, so headers are a list of their own.
    header_line: Vec<i64>,
    header_name: Vec<Cow<'a, str>>,
    header_value: Vec<Option<&'a [u8]>>,
}

/// Inserts `$3` to `$25`, [`Rows::parameters`], where `fence` lets it. What stands there already stays as it is:
/// no insert of it is tried, which would wait for a session that is changing or deleting it.
pub(super) const INSERT: &str = "\
INSERT INTO postrider.parked (pipeline, commit_lsn, ordinal, commit_time, event_id, event_type, \
  aggregate_type, aggregate_id, blocks, topic, partition, key, value, timestamp_ms, error_code, \
  error, attempts, next_attempt_at, state, overtaken_lsn, overtaken_ordinal, resolved_at, \
  header_names, header_values) \
SELECT $1, n.commit_lsn, n.ordinal, n.commit_time, n.event_id, n.event_type, n.aggregate_type, \
  n.aggregate_id, n.blocks, n.topic, n.partition, n.key, n.value, n.timestamp_ms, n.error_code, \
  n.error, n.attempts, pg_catalog.now() + n.wait * interval '1 microsecond', n.state, \
  n.overtaken_lsn, n.overtaken_ordinal, \
  CASE WHEN n.state IN ('done', 'skipped') THEN pg_catalog.now() END, \
  coalesce(h.names, '{}'), coalesce(h.vals, '{}') \
FROM fence, unnest($3::pg_catalog.pg_lsn[], $4::pg_catalog.int8[], \
    $5::pg_catalog.timestamptz[], $6::pg_catalog.text[], $7::pg_catalog.text[], \
    $8::pg_catalog.text[], $9::pg_catalog.text[], $10::pg_catalog.bool[], $11::pg_catalog.text[], \
    $12::pg_catalog.int4[], $13::pg_catalog.bytea[], $14::pg_catalog.bytea[], \
    $15::pg_catalog.int8[], $16::pg_catalog.text[], $17::pg_catalog.text[], \
    $18::pg_catalog.int4[], $19::pg_catalog.int8[], $20::pg_catalog.text[], \
    $21::pg_catalog.pg_lsn[], $22::pg_catalog.int8[]) WITH ORDINALITY \
  AS n(commit_lsn, ordinal, commit_time, event_id, event_type, aggregate_type, aggregate_id, \
    blocks, topic, partition, key, value, timestamp_ms, error_code, error, attempts, wait, state, \
    overtaken_lsn, overtaken_ordinal, line) \
LEFT JOIN ( \
  SELECT u.line, pg_catalog.array_agg(u.name ORDER BY u.at) AS names, \
    pg_catalog.array_agg(u.val ORDER BY u.at) AS vals \
  FROM unnest($23::pg_catalog.int8[], $24::pg_catalog.text[], $25::pg_catalog.bytea[]) \
    WITH ORDINALITY AS u(line, name, val, at) GROUP BY u.line) h ON h.line = n.line \
WHERE NOT EXISTS (SELECT FROM postrider.parked s \
  WHERE s.pipeline = $1 AND s.commit_lsn = n.commit_lsn AND s.ordinal = n.ordinal) \
ON CONFLICT (pipeline, commit_lsn, ordinal) DO NOTHING";

impl<'a> Rows<'a> {
    pub(super) fn push(&mut self, row: &'a Parked) {
        let (entry, record) = (&row.entry, &row.record);
        self.commit_lsn.push(pg_lsn(entry.position.commit_lsn));
        self.ordinal.push(entry.position.ordinal.cast_signed());
        self.commit_time.push(system_time(row.commit_time));
        self.event_id.push(row.event_id.as_deref().map(text));
        self.event_type.push(row.event_type.as_deref().map(text));
        let aggregate = row.aggregate.as_ref();
        self.aggregate_type.push(aggregate.map(|(kind, _)| text(kind)));
        self.aggregate_id.push(aggregate.map(|(_, id)| text(id)));
        self.blocks.push(entry.lane.is_some() && aggregate.is_some());
        self.topic.push(text(&record.topic));
        self.partition.push(record.partition);
        // A tombstone from the start has nothing to publish.
        let kept = !entry.state.resolved();
        self.key.push(record.key.as_deref().filter(|_| kept));
        self.value.push(record.value.as_deref().filter(|_| kept));
        self.timestamp_ms.push(record.timestamp_ms);
        self.error_code.push(row.error_code);
        self.error.push(row.error.as_deref().map(text));
        self.attempts.push(i32::try_from(entry.attempts).unwrap_or(i32::MAX));
        self.wait.push(wait(entry.state, entry.wait));
        self.state.push(entry.state.name());
        let overtaken = entry.overtaken_by;
        self.overtaken_lsn.push(overtaken.map(|by| pg_lsn(by.commit_lsn)));
        self.overtaken_ordinal.push(overtaken.map(|by| by.ordinal.cast_signed()));
        let line = i64::try_from(self.state.len()).unwrap_or(i64::MAX);
        for (name, value) in record.headers.iter().filter(|_| kept) {
            self.header_line.push(line);
            self.header_name.push(text(name));
            self.header_value.push(value.as_deref());
        }
    }

    /// `$3` to `$25`.
    pub(super) fn parameters(&self) -> [&(dyn ToSql + Sync); 23] {
        [
            &self.commit_lsn,
            &self.ordinal,
            &self.commit_time,
            &self.event_id,
            &self.event_type,
            &self.aggregate_type,
            &self.aggregate_id,
            &self.blocks,
            &self.topic,
            &self.partition,
            &self.key,
            &self.value,
            &self.timestamp_ms,
            &self.error_code,
            &self.error,
            &self.attempts,
            &self.wait,
            &self.state,
            &self.overtaken_lsn,
            &self.overtaken_ordinal,
            &self.header_line,
            &self.header_name,
            &self.header_value,
        ]
    }
}

/// Until the next try, where there is to be one.
pub(super) fn wait(state: State, wait: Duration) -> Option<i64> {
    match state {
        State::Waiting | State::Behind | State::Due => Some(micros(wait)),
        State::Dead | State::Done | State::Skipped => None,
    }
}

/// As PostgreSQL takes text: without the zero byte, which it would refuse, and a row that can't be written would hold
/// up the pipeline.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

fn system_time(time: PgTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(time.unix_micros()).unwrap_or(0))
}
