//! The parked table, `postrider.parked`: the durable form of the relay's lanes. Owns the rows and their statements.
//!
//! The relay decides which events are parked and how they are resolved. An operator requests an action by a request in
//! the row ([`requests`](super::requests)). A start continues from the rows that [`load`] reads. Every write is fenced
//! by the owner's epoch in the cursor row ([`super::cursor::take_over`]).
//!
//! Payloads are handled as bytes and appear in no error, log or `Debug`.

use crate::catalog::{lsn, pg_lsn};
use crate::poll::ROW_BYTES_MAX;
use crate::statement::{Statement, StatementError};
use futures_util::TryStreamExt;
use pg_replication::error::SourceError;
use postrider_core::event::{Aggregate, Position};
use postrider_core::parked::{Entry, Lane, Parked, ParkedOutcome, ParkedUpdate, Request, State};
use postrider_core::record::OwnedRecord;
use postrider_core::store::PipelineKey;
use postrider_core::timestamp::Timestamp;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Client, Row};

/// The channel that notifies a session of a written request; the payload is the pipeline's name.
pub const CHANNEL: &str = "postrider_parked";

/// Tombstones that one call of [`prune`] deletes at most.
const PRUNE_ROWS_MAX: i64 = 1_000;

/// The longest wait or age that is written (100 years). Unit: microseconds.
const MICROS_MAX: i64 = 100 * 365 * 86_400 * 1_000_000;

/// A duration in microseconds, at most [`MICROS_MAX`].
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).map_or(MICROS_MAX, |micros| micros.min(MICROS_MAX))
}

/// Which tombstones may be deleted, besides their age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PruneRule {
    /// Those that the cursor row has passed: no stream sends their events again.
    PassedByCursor,
    /// All of them (`mode = "poll"`): no stream can send an event again.
    Aged,
}

/// The result of [`prune`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a process that does not own the pipeline must stop"]
pub enum Pruned {
    /// So many tombstones were deleted.
    Rows {
        /// Their number.
        deleted: u64,
        /// There may be more of them.
        more: bool,
    },
    /// Nothing was deleted: the owner's epoch is another one, another process is taking the pipeline over, or there is
    /// no cursor row.
    NotOwner,
}

/// Whether the epoch is the owner's, and whether there may be tombstones to delete. A plain read: the common case, in
/// which nothing is to be deleted, takes no lock and writes nothing.
const PRUNE_DUE: &str = "\
SELECT EXISTS (SELECT FROM postrider.parked AS t \
  WHERE t.pipeline = $1 AND t.shard = $5 AND t.state IN ('done', 'skipped') \
    AND t.resolved_at < pg_catalog.now() - $3::pg_catalog.int8 * interval '1 microsecond' \
    AND t.requested_action IS NULL AND ($4::pg_catalog.bool OR t.commit_lsn < c.watermark)) \
FROM postrider.cursor AS c WHERE c.pipeline = $1 AND c.shard = $5 AND c.owner_epoch = $2";

/// Deletes tombstones (`old`), if the epoch is the owner's (`owner`).
///
/// This statement runs on another session than the statements of the stream. Three rules make that safe:
///
/// - The watermark that decides is that of the cursor row which is locked here, and the owner's epoch is checked in the
///   same row. A stream parks, and looks for, only events at its cursor row's watermark or above it, so it meets no
///   tombstone that is being deleted; polling parks at new positions. Without a cursor row nothing is deleted.
/// - `FOR KEY SHARE` conflicts only with the locks of a process that takes the pipeline over
///   ([`seize`](crate::store::cursor::seize)), of the end of a repair, and of a deletion of the cursor row. They wait
///   until this statement has committed, so a new owner reads the parked rows after the deletion, also if the position
///   of the cursor row is moved back in between. The owner's own writes of the cursor row (`FOR NO KEY UPDATE`) and of
///   parked rows (`FOR SHARE` of the cursor row) do not wait.
/// - `SKIP LOCKED`: this statement does not wait for a row lock. Tombstones that another session has locked are deleted
///   by a later call. If another process is taking the pipeline over, nothing is deleted.
///
/// The rows are found by their `ctid`, which does not change while they are locked: by the key, a table without
/// statistics would be joined in quadratic time.
const PRUNE: &str = "\
WITH owner AS MATERIALIZED ( \
  SELECT c.watermark FROM postrider.cursor AS c \
  WHERE c.pipeline = $1 AND c.shard = $6 AND c.owner_epoch = $2 \
  FOR KEY SHARE SKIP LOCKED \
), old AS MATERIALIZED ( \
  SELECT t.ctid FROM owner AS o, postrider.parked AS t \
  WHERE t.pipeline = $1 AND t.shard = $6 AND t.state IN ('done', 'skipped') \
    AND t.resolved_at < pg_catalog.now() - $3::pg_catalog.int8 * interval '1 microsecond' \
    AND t.requested_action IS NULL AND ($4::pg_catalog.bool OR t.commit_lsn < o.watermark) \
  ORDER BY t.resolved_at LIMIT $5 FOR UPDATE OF t SKIP LOCKED \
), gone AS ( \
  DELETE FROM postrider.parked AS p WHERE p.ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o)) RETURNING 1 \
) SELECT EXISTS (SELECT FROM owner), (SELECT pg_catalog.count(*) FROM gone)";

/// Deletes tombstones that are no longer needed: those that `rule` allows, that are older than `keep`, and that have no
/// request. One statement deletes at most 1,000 rows; call this again while there are more. `epoch` is the owner's: for
/// any other process nothing is deleted. For a session beside that of the stream; it is never delayed by a lock of a
/// row.
///
/// # Errors
/// An error of the server or of the connection. Rows that were deleted before stay deleted.
pub async fn prune(
    client: &Client,
    key: &PipelineKey,
    epoch: i64,
    rule: PruneRule,
    keep: Duration,
) -> Result<Pruned, SourceError> {
    let failed = |e| SourceError::control(format!("prune the parked events of pipeline {key}"), e);
    let (keep, aged) = (micros(keep), rule == PruneRule::Aged);
    let due = client.query_opt(PRUNE_DUE, &[&key.pipeline, &epoch, &keep, &aged, &key.shard]).await;
    match due.map_err(failed)? {
        None => return Ok(Pruned::NotOwner),
        Some(row) if row.try_get(0).map_err(failed)? => {}
        Some(_) => return Ok(Pruned::Rows { deleted: 0, more: false }),
    }
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&key.pipeline, &epoch, &keep, &aged, &PRUNE_ROWS_MAX, &key.shard];
    let row = client.query_one(PRUNE, &parameters).await.map_err(failed)?;
    if !row.try_get::<_, bool>(0).map_err(failed)? {
        return Ok(Pruned::NotOwner);
    }
    let deleted: i64 = row.try_get(1).map_err(failed)?;
    Ok(Pruned::Rows { deleted: deleted.unsigned_abs(), more: deleted >= PRUNE_ROWS_MAX })
}

/// How many rows a pipeline has, by state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// A count for each state of [`State::ALL`] that has rows.
    pub rows: Vec<(State, u64)>,
    /// How long the oldest unresolved event has been parked.
    pub oldest: Option<Duration>,
}

impl Counts {
    /// The number of rows in this state.
    pub fn of(&self, state: State) -> u64 {
        self.rows.iter().find(|(known, _)| *known == state).map_or(0, |(_, count)| *count)
    }
}

/// Counts the rows of a pipeline, for `status` when no relay runs: a running relay has these numbers in memory.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn counts(client: &Client, key: &PipelineKey) -> Result<Counts, SourceError> {
    let failed = |e| {
        SourceError::control(format!("count the parked events of pipeline {key}"), e)
            .of(Statement::Requests)
    };
    let sql = "SELECT state, pg_catalog.count(*), \
                 (greatest(0, pg_catalog.date_part('epoch', \
                   pg_catalog.now() - pg_catalog.min(parked_at))) * 1e6)::pg_catalog.int8 \
               FROM postrider.parked WHERE pipeline = $1 AND shard = $2 GROUP BY state";
    let mut counts = Counts::default();
    for row in client.query(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)? {
        let state = state(row.try_get(0).map_err(failed)?);
        counts.rows.push((state, row.try_get::<_, i64>(1).map_err(failed)?.unsigned_abs()));
        if !state.resolved() {
            let age =
                Duration::from_micros(row.try_get::<_, i64>(2).map_err(failed)?.unsigned_abs());
            counts.oldest = counts.oldest.max(Some(age));
        }
    }
    Ok(counts)
}

/// The new rows of one statement as columns: each an array, so that a batch is one statement.
#[derive(Default)]
struct NewRows<'a> {
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
    xid: Vec<Option<i64>>,
    wait: Vec<Option<i64>>,
    state: Vec<&'a str>,
    overtaken: (Vec<Option<PgLsn>>, Vec<Option<i64>>),
    // An array of arrays must be rectangular, so headers have columns of their own.
    header_line: Vec<i64>,
    header_name: Vec<Cow<'a, str>>,
    header_value: Vec<Option<&'a [u8]>>,
}

/// Inserts `$3` to `$25` ([`NewRows::parameters`]) and `$37`, if `fence` has a row. An existing row is kept: no insert
/// is attempted for it, because that would wait for a session that is changing or deleting the row. No index is named
/// for the conflict, so that each unique index counts: the key, and the one that serves relays from before the key had
/// a shard (migration 9).
const INSERT: &str = "\
INSERT INTO postrider.parked (pipeline, commit_lsn, ordinal, commit_time, event_id, event_type, \
  aggregate_type, aggregate_id, blocks, topic, partition, key, value, timestamp_ms, error_code, \
  error, attempts, next_attempt_at, state, overtaken_lsn, overtaken_ordinal, resolved_at, \
  header_names, header_values, xid, shard) \
SELECT $1, n.commit_lsn, n.ordinal, n.commit_time, n.event_id, n.event_type, n.aggregate_type, \
  n.aggregate_id, n.blocks, n.topic, n.partition, n.key, n.value, n.timestamp_ms, n.error_code, \
  n.error, n.attempts, pg_catalog.now() + n.wait * interval '1 microsecond', n.state, \
  n.overtaken_lsn, n.overtaken_ordinal, \
  CASE WHEN n.state IN ('done', 'skipped') THEN pg_catalog.now() END, \
  coalesce(h.names, '{}'), coalesce(h.vals, '{}'), n.xid, $36::pg_catalog.int4 \
FROM fence, unnest($3::pg_catalog.pg_lsn[], $4::pg_catalog.int8[], \
    $5::pg_catalog.timestamptz[], $6::pg_catalog.text[], $7::pg_catalog.text[], \
    $8::pg_catalog.text[], $9::pg_catalog.text[], $10::pg_catalog.bool[], $11::pg_catalog.text[], \
    $12::pg_catalog.int4[], $13::pg_catalog.bytea[], $14::pg_catalog.bytea[], \
    $15::pg_catalog.int8[], $16::pg_catalog.text[], $17::pg_catalog.text[], \
    $18::pg_catalog.int4[], $19::pg_catalog.int8[], $20::pg_catalog.text[], \
    $21::pg_catalog.pg_lsn[], $22::pg_catalog.int8[], $37::pg_catalog.int8[]) WITH ORDINALITY \
  AS n(commit_lsn, ordinal, commit_time, event_id, event_type, aggregate_type, aggregate_id, \
    blocks, topic, partition, key, value, timestamp_ms, error_code, error, attempts, wait, state, \
    overtaken_lsn, overtaken_ordinal, xid, line) \
LEFT JOIN ( \
  SELECT u.line, pg_catalog.array_agg(u.name ORDER BY u.at) AS names, \
    pg_catalog.array_agg(u.val ORDER BY u.at) AS vals \
  FROM unnest($23::pg_catalog.int8[], $24::pg_catalog.text[], $25::pg_catalog.bytea[]) \
    WITH ORDINALITY AS u(line, name, val, at) GROUP BY u.line) h ON h.line = n.line \
WHERE NOT EXISTS (SELECT FROM postrider.parked s \
  WHERE s.pipeline = $1 AND s.shard = $36 AND s.commit_lsn = n.commit_lsn AND s.ordinal = n.ordinal) \
ON CONFLICT (pipeline, shard, commit_lsn, ordinal) DO NOTHING";

impl<'a> NewRows<'a> {
    fn push(&mut self, row: &'a Parked) {
        let (entry, record) = (&row.entry, &row.record);
        self.commit_lsn.push(pg_lsn(entry.position.commit));
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
        // A row that is stored as a tombstone from the start has nothing to publish.
        let kept = !entry.state.resolved();
        self.key.push(record.key.as_deref().filter(|_| kept));
        self.value.push(record.value.as_deref().filter(|_| kept));
        self.timestamp_ms.push(record.timestamp_ms);
        self.error_code.push(row.error_code);
        self.error.push(row.error.as_deref().map(text));
        self.attempts.push(i32::try_from(entry.attempts).unwrap_or(i32::MAX));
        self.xid.push(entry.xid.map(i64::from));
        self.wait.push(wait(entry.state, entry.wait));
        self.state.push(entry.state.name());
        let overtaken = entry.overtaken_by;
        self.overtaken.0.push(overtaken.map(|by| pg_lsn(by.commit)));
        self.overtaken.1.push(overtaken.map(|by| by.ordinal.cast_signed()));
        let line = i64::try_from(self.state.len()).unwrap_or(i64::MAX);
        for (name, value) in record.headers.iter().filter(|_| kept) {
            self.header_line.push(line);
            self.header_name.push(text(name));
            self.header_value.push(value.as_deref());
        }
    }

    /// `$3` to `$25`.
    fn parameters(&self) -> [&(dyn ToSql + Sync); 23] {
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
            &self.overtaken.0,
            &self.overtaken.1,
            &self.header_line,
            &self.header_name,
            &self.header_value,
        ]
    }
}

/// The wait until the next attempt; `None` if there is to be none.
fn wait(state: State, wait: Duration) -> Option<i64> {
    match state {
        State::Waiting | State::Behind | State::Due => Some(micros(wait)),
        State::Dead | State::Done | State::Skipped => None,
    }
}

/// Replaces zero bytes, which PostgreSQL refuses in text: a row that cannot be written would block the pipeline.
fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

fn system_time(time: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(time.unix_micros).unwrap_or(0))
}

/// The state changes of one statement as columns.
#[derive(Default)]
struct StateChanges {
    commit_lsn: Vec<PgLsn>,
    ordinal: Vec<i64>,
    became: Vec<&'static str>,
    state: Vec<Option<&'static str>>,
    attempts: Vec<Option<i32>>,
    wait: Vec<Option<i64>>,
    error_code: Vec<Option<&'static str>>,
    error: Vec<Option<String>>,
    by_lsn: Vec<Option<PgLsn>>,
    by_ordinal: Vec<Option<i64>>,
}

/// Turns `$26` to `$35`, [`StateChanges::parameters`], into rows (`m`), in order; locks their parked rows; and
/// determines which changes are left out (`later`): those of rows that another session has locked, and the later ones
/// of the same aggregates. A change of a row that does not exist, or that the change does not affect, is not among
/// them.
///
/// `FOR NO KEY UPDATE` is the lock that the update takes. A row that another transaction has changed and committed
/// since the snapshot is locked at its newest version, and the update finds that version too, because it looks it up by
/// the key. A row that was deleted since is among `later` once, and does not exist at the next attempt.
///
/// `SKIP LOCKED`, because waiting for one row would delay all other changes. The later changes of the aggregate wait
/// too: an event whose change is missing is published again after a crash, and the events that follow it in its
/// aggregate have to follow it again.
const LOCK: &str = "\
m AS MATERIALIZED ( \
  SELECT u.*, u.became IN ('done', 'skipped') AS resolves, \
    u.became IN ('done', 'skipped', 'again', 'declined') AS takes \
  FROM unnest($26::pg_catalog.pg_lsn[], $27::pg_catalog.int8[], $28::pg_catalog.text[], \
    $29::pg_catalog.text[], $30::pg_catalog.int4[], $31::pg_catalog.int8[], \
    $32::pg_catalog.text[], $33::pg_catalog.text[], $34::pg_catalog.pg_lsn[], \
    $35::pg_catalog.int8[]) WITH ORDINALITY \
    AS u(commit_lsn, ordinal, became, state, attempts, wait, error_code, error, by_lsn, by_ordinal, line) \
), there AS MATERIALIZED ( \
  SELECT m.line, CASE WHEN p.blocks THEN p.aggregate_type END AS kind, p.aggregate_id AS id \
  FROM m JOIN postrider.parked p \
    ON p.pipeline = $1 AND p.shard = $36 AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal \
  WHERE p.state NOT IN ('done', 'skipped') OR m.became IN ('declined', 'overtaken') \
), locked AS MATERIALIZED ( \
  SELECT m.line FROM fence, m JOIN postrider.parked p \
    ON p.pipeline = $1 AND p.shard = $36 AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal \
  WHERE p.state NOT IN ('done', 'skipped') OR m.became IN ('declined', 'overtaken') \
  FOR NO KEY UPDATE OF p SKIP LOCKED \
), missed AS MATERIALIZED ( \
  SELECT t.line, t.kind, t.id FROM there t WHERE t.line NOT IN (SELECT l.line FROM locked l) \
), later AS MATERIALIZED ( \
  SELECT x.line FROM missed x \
  UNION SELECT t.line FROM there t JOIN missed x ON x.kind = t.kind AND x.id = t.id AND x.line < t.line \
), due AS MATERIALIZED ( \
  SELECT m.* FROM m WHERE m.line IN (SELECT l.line FROM locked l) \
    AND m.line NOT IN (SELECT x.line FROM later x))";

/// Applies the changes of [`LOCK`] that are not left out (`due`), if `fence` has a row.
///
/// A resolved row stays resolved; only changes that remove a request are applied to it. A large value that is kept is
/// not rewritten: the new version of the row points to the same TOAST value.
const UPDATE: &str = "\
UPDATE postrider.parked p SET \
  state = CASE m.became WHEN 'done' THEN 'done' WHEN 'skipped' THEN 'skipped' \
    WHEN 'refused' THEN m.state WHEN 'again' THEN 'waiting' ELSE p.state END, \
  resolved_at = CASE WHEN m.resolves THEN pg_catalog.now() ELSE p.resolved_at END, \
  key = CASE WHEN m.resolves THEN NULL ELSE p.key END, \
  value = CASE WHEN m.resolves THEN NULL \
    WHEN m.became = 'again' AND p.requested_action = 'replace' THEN p.requested_value \
    ELSE p.value END, \
  header_names = CASE WHEN m.resolves THEN '{}' ELSE p.header_names END, \
  header_values = CASE WHEN m.resolves THEN '{}' ELSE p.header_values END, \
  attempts = CASE m.became WHEN 'refused' THEN m.attempts WHEN 'again' THEN 0 ELSE p.attempts END, \
  next_attempt_at = CASE WHEN m.resolves THEN NULL \
    WHEN m.became = 'refused' THEN pg_catalog.now() + m.wait * interval '1 microsecond' \
    WHEN m.became = 'again' THEN pg_catalog.now() ELSE p.next_attempt_at END, \
  error_code = CASE WHEN m.became = 'refused' THEN m.error_code ELSE p.error_code END, \
  error = CASE WHEN m.became = 'refused' THEN m.error ELSE p.error END, \
  dead_sent_at = CASE m.became WHEN 'dead_sent' THEN pg_catalog.now() WHEN 'again' THEN NULL \
    ELSE p.dead_sent_at END, \
  overtaken_lsn = CASE WHEN m.became = 'overtaken' THEN coalesce(p.overtaken_lsn, m.by_lsn) \
    ELSE p.overtaken_lsn END, \
  overtaken_ordinal = CASE WHEN m.became = 'overtaken' \
    THEN coalesce(p.overtaken_ordinal, m.by_ordinal) ELSE p.overtaken_ordinal END, \
  acted_action = CASE WHEN m.takes THEN coalesce(p.requested_action, p.acted_action) \
    ELSE p.acted_action END, \
  acted_by = CASE WHEN m.takes AND p.requested_action IS NOT NULL THEN p.requested_by \
    ELSE p.acted_by END, \
  acted_at = CASE WHEN m.takes AND p.requested_action IS NOT NULL THEN pg_catalog.now() \
    ELSE p.acted_at END, \
  acted_reason = CASE WHEN m.takes AND p.requested_action IS NOT NULL THEN p.requested_reason \
    ELSE p.acted_reason END, \
  acted_declined = CASE WHEN m.takes AND p.requested_action IS NOT NULL \
    THEN m.became IN ('done', 'declined') ELSE p.acted_declined END, \
  requested_action = CASE WHEN m.takes THEN NULL ELSE p.requested_action END, \
  requested_by = CASE WHEN m.takes THEN NULL ELSE p.requested_by END, \
  requested_at = CASE WHEN m.takes THEN NULL ELSE p.requested_at END, \
  requested_reason = CASE WHEN m.takes THEN NULL ELSE p.requested_reason END, \
  requested_value = CASE WHEN m.takes THEN NULL ELSE p.requested_value END \
FROM fence, due m \
WHERE p.pipeline = $1 AND p.shard = $36 AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal \
  AND (p.state NOT IN ('done', 'skipped') OR m.became IN ('declined', 'overtaken'))";

impl StateChanges {
    fn push(&mut self, mark: &ParkedUpdate) {
        self.commit_lsn.push(pg_lsn(mark.position.commit));
        self.ordinal.push(mark.position.ordinal.cast_signed());
        self.became.push(name(mark.became));
        let mut by: Option<Position> = None;
        let mut refused = (None, None, None, None, None);
        match mark.became {
            ParkedOutcome::Refused { state, attempts, wait: until, reason } => {
                refused = (
                    Some(state.name()),
                    Some(i32::try_from(attempts).unwrap_or(i32::MAX)),
                    wait(state, until),
                    Some(reason.code()),
                    Some(reason.to_string()),
                );
            }
            ParkedOutcome::Overtaken { by: later } => by = Some(later),
            ParkedOutcome::Done
            | ParkedOutcome::Skipped
            | ParkedOutcome::Again
            | ParkedOutcome::Declined
            | ParkedOutcome::DeadSent => {}
        }
        let (state, attempts, wait, error_code, error) = refused;
        self.state.push(state);
        self.attempts.push(attempts);
        self.wait.push(wait);
        self.error_code.push(error_code);
        self.error.push(error);
        self.by_lsn.push(by.map(|by| pg_lsn(by.commit)));
        self.by_ordinal.push(by.map(|by| by.ordinal.cast_signed()));
    }

    /// `$26` to `$35`.
    fn parameters(&self) -> [&(dyn ToSql + Sync); 10] {
        [
            &self.commit_lsn,
            &self.ordinal,
            &self.became,
            &self.state,
            &self.attempts,
            &self.wait,
            &self.error_code,
            &self.error,
            &self.by_lsn,
            &self.by_ordinal,
        ]
    }
}

/// The name that [`UPDATE`] uses.
const fn name(became: ParkedOutcome) -> &'static str {
    match became {
        ParkedOutcome::Done => "done",
        ParkedOutcome::Skipped => "skipped",
        ParkedOutcome::Refused { .. } => "refused",
        ParkedOutcome::Again => "again",
        ParkedOutcome::Declined => "declined",
        ParkedOutcome::DeadSent => "dead_sent",
        ParkedOutcome::Overtaken { .. } => "overtaken",
    }
}

/// Most new rows and state changes of one statement.
pub const WRITE_ROWS_MAX: usize = 10_000;

/// Most bytes of the records in one statement. A single larger record has a statement to itself. PostgreSQL accepts
/// less than 1 GiB in one message.
pub const WRITE_BYTES_MAX: usize = 64 << 20;

/// The result of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "an event whose row was not stored is not resolved"]
pub enum Stored {
    /// Stored, as durably as the server's settings make any commit.
    Yes,
    /// Stored, except for the changes of these rows: another session has locked them, or an earlier row of their
    /// aggregate.
    Except(Vec<Position>),
    /// Nothing more was stored: another process owns the pipeline now, or its cursor row was deleted.
    TakenOver,
}

/// One statement is one transaction, so no other statement of the shared session can run between its parts.
///
/// `FOR SHARE` waits for a [`take_over`](crate::store::cursor::take_over) that is in progress and then sees its epoch,
/// or makes `take_over` wait; with `FOR KEY SHARE` neither would wait for the other (manual, 13.3.2 "Row-Level Locks").
/// The setting is read at the commit, after the statement: with a synchronous standby the commit waits for the standby,
/// because the session's own `local` would let a failover lose the row of an event that is confirmed.
static SQL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH fence AS MATERIALIZED ( \
           SELECT 1 FROM postrider.cursor \
           WHERE pipeline = $1 AND shard = $36 AND owner_epoch = $2 FOR SHARE), \
         parked AS ({INSERT}), {LOCK}, marked AS ({UPDATE}) \
         SELECT EXISTS (SELECT FROM fence), ARRAY(SELECT x.line FROM later x), \
           pg_catalog.set_config('synchronous_commit', 'on', true)"
    )
});

/// Writes new rows, then state changes. An existing row is kept: the event was parked before. A change of a row that
/// does not exist or is resolved has no effect. A change whose row another session has locked is left out, and so are
/// the later changes of the same aggregate ([`Stored::Except`]); all other changes are made without waiting for that
/// session.
///
/// The write is one transaction if no position occurs twice and the bounds ([`WRITE_ROWS_MAX`], [`WRITE_BYTES_MAX`])
/// are kept. Otherwise it is several transactions, in order, so a crash leaves the first part.
///
/// # Errors
/// An error of the server or of the connection. Rows that earlier statements of the same call wrote are kept.
pub async fn write(
    client: &Client,
    key: &PipelineKey,
    epoch: i64,
    rows: &[Parked],
    marks: &[ParkedUpdate],
) -> Result<Stored, SourceError> {
    let mut write =
        ParkedWrite { client, key, epoch, round: WriteBatch::default(), left: Vec::new() };
    for row in rows {
        let bytes = row.record.size_bytes();
        if !write.round.takes(row.entry.position, bytes) && !write.store().await? {
            return Ok(Stored::TakenOver);
        }
        write.round.note(row.entry.position, bytes);
        write.round.rows.push(row);
    }
    for mark in marks {
        // A change that an earlier statement left out may be of the same aggregate.
        if !write.left.is_empty() {
            write.left.push(mark.position);
            continue;
        }
        if !write.round.takes(mark.position, 0) && !write.store().await? {
            return Ok(Stored::TakenOver);
        }
        write.round.note(mark.position, 0);
        write.round.marked.push(mark.position);
        write.round.marks.push(mark);
    }
    Ok(match write.store().await? {
        false => Stored::TakenOver,
        true if write.left.is_empty() => Stored::Yes,
        true => Stored::Except(write.left),
    })
}

/// A write that may take several statements.
struct ParkedWrite<'a> {
    client: &'a Client,
    key: &'a PipelineKey,
    epoch: i64,
    round: WriteBatch<'a>,
    /// Rows whose changes were left out so far.
    left: Vec<Position>,
}

impl ParkedWrite<'_> {
    /// Writes the batch. Returns whether the pipeline still belongs to this owner.
    async fn store(&mut self) -> Result<bool, SourceError> {
        let round = std::mem::take(&mut self.round);
        let Some(left) = round.store(self.client, self.key, self.epoch).await? else {
            return Ok(false);
        };
        self.left.extend(left);
        Ok(true)
    }
}

/// The content of one statement.
#[derive(Default)]
struct WriteBatch<'a> {
    rows: NewRows<'a>,
    marks: StateChanges,
    /// The positions of the state changes, in order.
    marked: Vec<Position>,
    positions: HashSet<Position>,
    bytes: usize,
}

impl WriteBatch<'_> {
    /// Whether the batch may also take this row. The parts of a statement do not see each other, so each position may
    /// occur once.
    fn takes(&self, position: Position, bytes: usize) -> bool {
        let room = self.positions.len() < WRITE_ROWS_MAX
            && (self.bytes == 0 || self.bytes + bytes <= WRITE_BYTES_MAX);
        room && !self.positions.contains(&position)
    }

    fn note(&mut self, position: Position, bytes: usize) {
        self.positions.insert(position);
        self.bytes += bytes;
    }

    /// Returns the rows whose changes were left out; `None` if another process owns the pipeline and nothing was
    /// stored.
    async fn store(
        &self,
        client: &Client,
        key: &PipelineKey,
        epoch: i64,
    ) -> Result<Option<Vec<Position>>, SourceError> {
        let failed = |e| {
            SourceError::control(format!("write parked events of pipeline {key}"), e)
                .of(Statement::Parked)
        };
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&key.pipeline, &epoch];
        parameters.extend(self.rows.parameters());
        parameters.extend(self.marks.parameters());
        parameters.extend([&key.shard as &(dyn ToSql + Sync), &self.rows.xid]);
        let row = client.query_one(SQL.as_str(), &parameters).await.map_err(failed)?;
        let owned: bool = row.try_get(0).map_err(failed)?;
        // Lines count from 1.
        let lines: Vec<i64> = row.try_get(1).map_err(failed)?;
        let at = |line: i64| usize::try_from(line - 1).ok().and_then(|at| self.marked.get(at));
        Ok(owned.then(|| lines.into_iter().filter_map(at).copied().collect()))
    }
}

/// A parked event as a start reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// The entry of the relay.
    pub entry: Entry,
    /// The request that a person made while no relay ran.
    pub request: Option<Request>,
    /// The event is dead and was not published to the dead-letter topic.
    pub dead_unsent: bool,
    /// The code of the last error, if the event was refused. Events of one code share the text.
    pub error_code: Option<Arc<str>>,
}

/// Without the record's columns: they are large, and are read only for a retry ([`fetch`]). `least` and `greatest`
/// prevent an error if a person wrote an infinite time.
const LOAD: &str = "\
SELECT commit_lsn, ordinal, state, attempts, \
       (pg_catalog.date_part('epoch', least(greatest(next_attempt_at, now), now + interval '100 years') - now) \
         * 1e6)::pg_catalog.int8, \
       CASE WHEN blocks THEN aggregate_type END, CASE WHEN blocks THEN aggregate_id END, \
       overtaken_lsn, overtaken_ordinal, requested_action, \
       state = 'dead' AND dead_sent_at IS NULL, xid, error_code \
FROM postrider.parked, pg_catalog.statement_timestamp() AS now \
WHERE pipeline = $1 AND shard = $4 \
  AND (state NOT IN ('done', 'skipped') OR (commit_lsn, ordinal) >= ($2, $3)) \
ORDER BY commit_lsn, ordinal";

/// Reads all that a start needs, in order: every unresolved event, and the tombstones from `from` on, where the WAL is
/// read again. The server computes the waits, so only its clock counts.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn load(
    client: &Client,
    key: &PipelineKey,
    from: Position,
) -> Result<Vec<Loaded>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("load the parked events of pipeline {key}"), e)
            .of(Statement::Parked)
    };
    let (commit_lsn, ordinal) = (pg_lsn(from.commit), from.ordinal.cast_signed());
    let parameters: [&(dyn ToSql + Sync); 4] = [&key.pipeline, &commit_lsn, &ordinal, &key.shard];
    let rows = client.query_raw(LOAD, parameters).await.map_err(failed)?;
    let mut rows = pin!(rows);
    let (mut loaded, mut codes) = (Vec::new(), BTreeSet::new());
    while let Some(row) = rows.try_next().await.map_err(failed)? {
        loaded.push(loaded_of(&row, &mut codes).map_err(failed)?);
    }
    Ok(loaded)
}

/// `codes`: the codes of errors that were read before.
fn loaded_of(row: &Row, codes: &mut BTreeSet<Arc<str>>) -> Result<Loaded, tokio_postgres::Error> {
    let aggregate = row.try_get::<_, Option<&str>>(5)?.zip(row.try_get::<_, Option<&str>>(6)?);
    let overtaken = row.try_get::<_, Option<PgLsn>>(7)?.zip(row.try_get::<_, Option<i64>>(8)?);
    let wait = row.try_get::<_, Option<i64>>(4)?.unwrap_or(0);
    let xid: Option<i64> = row.try_get(11)?;
    Ok(Loaded {
        entry: Entry {
            position: position(row.try_get(0)?, row.try_get(1)?),
            lane: aggregate.map(|(kind, id)| Lane::of(Aggregate { kind, id })),
            state: state(row.try_get(2)?),
            attempts: row.try_get::<_, i32>(3)?.unsigned_abs(),
            wait: Duration::from_micros(u64::try_from(wait).unwrap_or(0)),
            overtaken_by: overtaken.map(|(lsn, ordinal)| position(lsn, ordinal)),
            xid: xid.and_then(|xid| u32::try_from(xid).ok()),
        },
        request: row.try_get::<_, Option<&str>>(9)?.and_then(Request::parse),
        dead_unsent: row.try_get(10)?,
        error_code: row.try_get::<_, Option<&str>>(12)?.map(|code| shared(codes, code)),
    })
}

/// The text of a code, which events with the same code share.
fn shared(codes: &mut BTreeSet<Arc<str>>, code: &str) -> Arc<str> {
    if let Some(known) = codes.get(code) {
        return Arc::clone(known);
    }
    let new: Arc<str> = code.into();
    codes.insert(Arc::clone(&new));
    new
}

/// The record of a parked event, for a retry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetched {
    /// Which event.
    pub position: Position,
    /// The record as it was to be published.
    pub record: OwnedRecord,
    /// Every later event of its aggregate has waited for this event.
    pub keeps_order: bool,
}

/// Reads the records of these events for a retry, in order. An event that is resolved or whose row was deleted is left
/// out.
///
/// The result ends with the record whose payload brings the total to `bytes`; events after that one in the WAL are left
/// out.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn fetch(
    client: &Client,
    key: &PipelineKey,
    positions: &[Position],
    bytes: u32,
) -> Result<Vec<Fetched>, SourceError> {
    // An event without a topic is not published, and its payload may be larger than memory allows.
    let value = "CASE WHEN topic <> '' THEN value END";
    let unresolved = "p.state NOT IN ('done', 'skipped')";
    fetch_where(client, key, positions, (unresolved, value), bytes).await
}

/// As [`fetch`], in any state. Of a resolved event only the topic is left.
pub(super) async fn fetch_any(
    client: &Client,
    key: &PipelineKey,
    positions: &[Position],
) -> Result<Vec<(Position, OwnedRecord)>, SourceError> {
    let fetched = fetch_where(client, key, positions, ("true", "value"), u32::MAX).await?;
    Ok(fetched.into_iter().map(|fetched| (fetched.position, fetched.record)).collect())
}

async fn fetch_where(
    client: &Client,
    key: &PipelineKey,
    positions: &[Position],
    (condition, value): (&str, &str),
    bytes: u32,
) -> Result<Vec<Fetched>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("fetch parked events of pipeline {key}"), e)
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
           WHERE p.pipeline = $1 AND p.shard = $5 AND {condition}) AS wanted \
         WHERE coalesce(before, 0) < $4 ORDER BY commit_lsn, ordinal"
    );
    let (lsns, ordinals) = columns(positions);
    let rows = client
        .query(&sql, &[&key.pipeline, &lsns, &ordinals, &i64::from(bytes), &key.shard])
        .await
        .map_err(failed)?;
    let fetched = |row: &Row| {
        let (position, record) = record_of(row)?;
        Ok(Fetched { position, record, keeps_order: row.try_get(9)? })
    };
    rows.iter().map(fetched).collect::<Result<_, _>>().map_err(failed)
}

fn record_of(row: &Row) -> Result<(Position, OwnedRecord), tokio_postgres::Error> {
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

/// Returns the events of `positions` whose rows were deleted.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn missing(
    client: &Client,
    key: &PipelineKey,
    positions: &[Position],
) -> Result<Vec<Position>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("check which parked events of pipeline {key} exist"), e)
            .of(Statement::Parked)
    };
    let sql = "SELECT w.commit_lsn, w.ordinal \
               FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[]) AS w(commit_lsn, ordinal) \
               WHERE NOT EXISTS (SELECT FROM postrider.parked p WHERE p.pipeline = $1 AND p.shard = $4 \
                 AND p.commit_lsn = w.commit_lsn AND p.ordinal = w.ordinal)";
    let (lsns, ordinals) = columns(positions);
    let rows =
        client.query(sql, &[&key.pipeline, &lsns, &ordinals, &key.shard]).await.map_err(failed)?;
    let position_of = |row: &Row| Ok(position(row.try_get(0)?, row.try_get(1)?));
    rows.iter().map(position_of).collect::<Result<_, _>>().map_err(failed)
}

/// Reads the requests that have not been carried out, in order.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn requests(
    client: &Client,
    key: &PipelineKey,
) -> Result<Vec<(Position, Request)>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read the requests for pipeline {key}"), e)
            .of(Statement::Requests)
    };
    let sql = "SELECT commit_lsn, ordinal, requested_action FROM postrider.parked \
               WHERE pipeline = $1 AND shard = $2 AND requested_action IS NOT NULL \
               ORDER BY commit_lsn, ordinal";
    let rows = client.query(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    let request = |row: &Row| {
        let request = Request::parse(row.try_get(2)?);
        Ok(request.map(|request| {
            Ok::<_, tokio_postgres::Error>((position(row.try_get(0)?, row.try_get(1)?), request))
        }))
    };
    rows.iter()
        .filter_map(|row| request(row).and_then(Option::transpose).transpose())
        .collect::<Result<_, _>>()
        .map_err(failed)
}

/// The state of this name. The table's CHECK allows no other names; if the CHECK was removed, an unknown state counts
/// as dead, so that a person decides.
pub(super) fn state(name: &str) -> State {
    State::parse(name).unwrap_or(State::Dead)
}

pub(super) fn position(commit_lsn: PgLsn, ordinal: i64) -> Position {
    Position { commit: lsn(commit_lsn), ordinal: ordinal.cast_unsigned() }
}

/// Positions as the two columns of the key.
pub(super) fn columns(positions: &[Position]) -> (Vec<PgLsn>, Vec<i64>) {
    positions.iter().map(|at| (pg_lsn(at.commit), at.ordinal.cast_signed())).unzip()
}

/// Reads the records of these events for the dead-letter topic, in order. Key, value, timestamp and headers are those
/// of the event; the topic's partitioner chooses the partition; five headers are added: `dead_code`, `dead_error`,
/// `dead_attempts`, `dead_position` and `dead_topic` (the event's original destination). An event that is no longer
/// dead is left out.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn fetch_dead_letters(
    client: &Client,
    key: &PipelineKey,
    positions: &[Position],
    topic: &str,
) -> Result<Vec<(Position, OwnedRecord)>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("fetch dead events of pipeline {key}"), e)
            .of(Statement::Parked)
    };
    // A payload that was not read because of its size cannot be sent, whatever the event's code is; the error's text
    // says why. Such a row has no topic.
    let sql = format!(
        "SELECT p.commit_lsn, p.ordinal, p.topic, p.partition, p.key, \
           CASE WHEN p.error_code IS DISTINCT FROM 'row_too_large' \
             AND (p.error_code IS DISTINCT FROM 'id_used_before' OR p.topic <> '') \
             AND pg_catalog.octet_length(p.value) <= {ROW_BYTES_MAX} THEN p.value END, p.timestamp_ms, \
           p.header_names, p.header_values, p.error_code, p.error, p.attempts \
         FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[]) AS w(commit_lsn, ordinal) \
         JOIN postrider.parked p USING (commit_lsn, ordinal) \
         WHERE p.pipeline = $1 AND p.shard = $4 AND p.state = 'dead' ORDER BY p.commit_lsn, p.ordinal"
    );
    let (lsns, ordinals) = columns(positions);
    let rows =
        client.query(&sql, &[&key.pipeline, &lsns, &ordinals, &key.shard]).await.map_err(failed)?;
    rows.iter().map(|row| dead_letter_of(row, topic).map_err(failed)).collect()
}

fn dead_letter_of(
    row: &Row,
    topic: &str,
) -> Result<(Position, OwnedRecord), tokio_postgres::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> Position {
        Position { ordinal: number, ..Position::default() }
    }

    #[test]
    fn a_statement_has_bounds_and_each_position_once() {
        let mut round = WriteBatch::default();
        assert!(round.takes(at(0), 10 * WRITE_BYTES_MAX), "alone, whatever its size");
        round.note(at(0), WRITE_BYTES_MAX - 1);
        assert!(!round.takes(at(0), 0));
        assert!(round.takes(at(1), 1) && !round.takes(at(1), 2));
        for number in 1..10_000 {
            assert!(round.takes(at(number), 0));
            round.note(at(number), 0);
        }
        assert_eq!(round.positions.len(), WRITE_ROWS_MAX);
        assert!(!round.takes(at(10_000), 0));
    }
}
