//! Requeued events: parked events whose rows are published from the table again. After a slot was lost, the outbox
//! table is read again, so an event can be in the parked table and in the list of rows. It is requeued at its place
//! among the rows of its aggregate, because only the table knows which rows come before it.
//!
//! Owns the queries for such events and the change of their positions.

use super::parked::{columns, position};
use crate::catalog::pg_lsn;
use crate::names::literal;
use crate::poll::by_id::OutboxTable;
use crate::statement::{Statement, StatementError};
use pg_replication::error::SourceError;
use postrider_core::event::{AHEAD_MAX_MS, Aggregate, Position};
use postrider_core::offset::Offset;
use postrider_core::outbox_rows::{
    AheadOfCursor, CandidateRow, CandidateState, FoundParked, RequeueCandidate, WithdrawnEvent,
};
use postrider_core::parked::{Lane, Parked};
use postrider_core::store::PipelineKey;
use std::collections::{HashMap, HashSet};
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Client, Row};

/// Finds the parked events that are on the list of a repair.
///
/// An event that an earlier session of this repair has moved to a claim's position does not count as later: rows of an
/// aggregate are listed in their order, so a row that is still on the list follows that event. Positions of this
/// repair's claims are above the cursor row, which stays where it is until the repair has ended. An event that an
/// earlier claim has parked is below the cursor row, and counts by its position.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn listed(
    client: &Client,
    key: &PipelineKey,
    table: &OutboxTable,
) -> Result<Vec<RequeueCandidate>, SourceError> {
    // The subquery does not refer to `p`, so the ids of the list are hashed once.
    let on_list = format!(
        "p.event_id IN (SELECT unnest(r.ids) FROM postrider.repair_page AS r \
           WHERE r.pipeline = {} AND r.shard = {})",
        literal(&key.pipeline),
        key.shard
    );
    let once = format!(
        "({DECIDED} OR EXISTS (SELECT FROM postrider.repair AS r \
           WHERE r.pipeline = p.pipeline AND r.shard = p.shard AND r.selection IN ('unmarked', 'both')))"
    );
    let sql = format!(
        "{} AND (p.blocks AND p.state NOT IN ('done', 'skipped') OR {on_list})",
        candidates(&once)
    );
    let cursor = watermark(client, key).await?;
    let of_this_repair = |at| crate::wire::is_claim_lsn(at) && at >= cursor;
    let mut candidates = read(client, key, &sql, of_this_repair).await?;
    add_rows(client, table, &mut candidates, &on_list).await?;
    Ok(candidates)
}

/// Finds the parked events whose rows polling will claim.
///
/// An event keeps its position, and its row is passed over, if a later event of its aggregate is parked and is not
/// requeued. An event that a claim has parked does not count as later, whatever its position: rows of an aggregate are
/// claimed in their order, so a row that is still to be claimed follows that event.
///
/// Of the resolved events only those count that the stream may have sent again: if a person removed a row's status
/// later, the row is to be published. Once the cursor row is bound to the new slot, while the table is still polled
/// (`polls_on`), the row does not show which events these are. Then all count that an operator has skipped or replaced.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn unpublished(
    client: &Client,
    key: &PipelineKey,
    table: &OutboxTable,
) -> Result<Vec<RequeueCandidate>, SourceError> {
    // If the table records failures, an event that blocks no other is the dead letter of a row that has failed for
    // good.
    let dead_letters = table.spec().keeps_failures();
    let sql = format!(
        "{} AND (p.blocks OR NOT {dead_letters}) \
           AND (p.state NOT IN ('done', 'skipped') OR EXISTS (SELECT FROM postrider.cursor AS c \
             WHERE c.pipeline = $1 AND c.shard = $2 AND (p.commit_lsn >= c.watermark \
               OR c.polls_on AND (p.state = 'skipped' OR p.acted_action = 'replace'))))",
        candidates("true")
    );
    let mut candidates = read(client, key, &sql, crate::wire::is_claim_lsn).await?;
    add_rows(client, table, &mut candidates, &table.unpublished()).await?;
    Ok(candidates)
}

/// The position of the cursor row; zero if there is none.
async fn watermark(client: &Client, key: &PipelineKey) -> Result<Offset, SourceError> {
    let failed = |e| {
        let doing = format!("read the position of pipeline {key}");
        SourceError::control(doing, e).of(Statement::Cursor)
    };
    let sql = "SELECT watermark FROM postrider.cursor WHERE pipeline = $1 AND shard = $2";
    let row = client.query_opt(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    let at = row.map(|row| row.try_get::<_, PgLsn>(0)).transpose().map_err(failed)?;
    Ok(at.map_or(Offset::ZERO, crate::catalog::lsn))
}

/// The query for candidates, to which a caller adds conditions. `once`: which of them must not be published a second
/// time.
fn candidates(once: &str) -> String {
    format!(
        "SELECT p.event_id, p.commit_lsn, p.ordinal, p.aggregate_type, p.aggregate_id, p.blocks, \
           p.state IN ('done', 'skipped'), {once} \
         FROM postrider.parked AS p WHERE p.pipeline = $1 AND p.shard = $2 AND p.event_id IS NOT NULL"
    )
}

/// Reads candidates, without their rows. `precedes`: whether an event that is parked with this commit position precedes
/// every row that is still to be claimed.
async fn read(
    client: &Client,
    key: &PipelineKey,
    sql: &str,
    precedes: impl Fn(Offset) -> bool,
) -> Result<Vec<RequeueCandidate>, SourceError> {
    let failed = |e| {
        let doing = format!("find the parked events of pipeline {key} that are requeued");
        SourceError::control(doing, e).of(Statement::Parked)
    };
    let candidate = |row: &Row| {
        let position = position(row.try_get(1)?, row.try_get(2)?);
        let (kind, id): (Option<&str>, Option<&str>) = (row.try_get(3)?, row.try_get(4)?);
        Ok(RequeueCandidate {
            event_id: row.try_get(0)?,
            position,
            lane: kind.zip(id).map(|(kind, id)| Lane::of(Aggregate { kind, id })),
            blocks: row.try_get(5)?,
            state: CandidateState::of(row.try_get(6)?, row.try_get(7)?),
            precedes: precedes(position.commit),
            row: None,
        })
    };
    let rows = client.query(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    rows.iter().map(candidate).collect::<Result<_, _>>().map_err(failed)
}

/// Adds the rows that meet `filter` and are or may be the candidates whose ids they have.
async fn add_rows(
    client: &Client,
    table: &OutboxTable,
    candidates: &mut [RequeueCandidate],
    filter: &str,
) -> Result<(), SourceError> {
    let ids: Vec<&str> = candidates.iter().map(|candidate| candidate.event_id.as_str()).collect();
    let columns = format!("p.commit_lsn, p.ordinal, {}, o.xmin::text::int8", the_same());
    let filter = format!("{filter} AND NOT {}", another(table));
    let found = table.beside_parked(client, &ids, &columns, &filter).await?;
    let failed = |e| SourceError::control("find the rows of parked events", e);
    let row = |row: &Row| {
        let xmin: i64 = row.try_get(3)?;
        let (certain, xmin) = (row.try_get(2)?, u32::try_from(xmin).unwrap_or_default());
        Ok((position(row.try_get(0)?, row.try_get(1)?), CandidateRow { certain, xmin }))
    };
    let rows: HashMap<Position, CandidateRow> =
        found.iter().map(row).collect::<Result<_, _>>().map_err(failed)?;
    for candidate in candidates {
        candidate.row = rows.get(&candidate.position).copied();
    }
    Ok(())
}

/// Returns those of `rows` whose content equals the record of the parked event with the same id, given by its position:
/// publishing either one then publishes both. Headers with the event's position are not compared, nor is a timestamp
/// that is the commit time.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn alike(
    client: &Client,
    key: &PipelineKey,
    rows: &[(Position, &Parked)],
) -> Result<HashSet<Position>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("compare parked events of pipeline {key}"), e)
            .of(Statement::Parked)
    };
    let sql = "SELECT FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.shard = $12 AND p.commit_lsn = $2 AND p.ordinal = $3 \
                 AND p.state NOT IN ('done', 'skipped') AND p.acted_action IS DISTINCT FROM 'replace' \
                 AND p.event_type IS NOT DISTINCT FROM $4 AND p.topic = $5 \
                 AND p.partition IS NOT DISTINCT FROM $6 AND p.key IS NOT DISTINCT FROM $7 \
                 AND p.value IS NOT DISTINCT FROM $8 \
                 AND coalesce(p.timestamp_ms = $9 \
                   OR p.timestamp_ms = floor(extract(epoch FROM p.commit_time) * 1000), $9 IS NULL) \
                 AND ARRAY(SELECT h::text FROM unnest(p.header_names, p.header_values) AS h(name, value) \
                       WHERE h.name NOT IN ('position', 'history')) \
                   = ARRAY(SELECT h::text FROM unnest($10::text[], $11::bytea[]) AS h(name, value) \
                       WHERE h.name NOT IN ('position', 'history'))";
    let mut alike = HashSet::new();
    if rows.is_empty() {
        return Ok(alike);
    }
    let statement = client.prepare(sql).await.map_err(failed)?;
    for (before, row) in rows {
        let (lsn, ordinal) = (pg_lsn(before.commit), before.ordinal.cast_signed());
        let record = &row.record;
        let (names, values): (Vec<&str>, Vec<Option<&[u8]>>) =
            record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).unzip();
        let parameters: [&(dyn ToSql + Sync); 12] = [
            &key.pipeline,
            &lsn,
            &ordinal,
            &row.event_type,
            &record.topic,
            &record.partition,
            &record.key,
            &record.value,
            &record.timestamp_ms,
            &names,
            &values,
            &key.shard,
        ];
        if client.query_opt(&statement, &parameters).await.map_err(failed)?.is_some() {
            alike.insert(row.entry.position);
        }
    }
    Ok(alike)
}

/// Moves parked rows, each `(before, after)`, and changes nothing else. Must be called inside a transaction that also
/// calls [`parked::write`](super::parked::write()), which checks the owner.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn move_rows(
    client: &Client,
    key: &PipelineKey,
    places: &[(Position, Position)],
) -> Result<(), SourceError> {
    if places.is_empty() {
        return Ok(());
    }
    let failed = |e| {
        SourceError::control(format!("move parked events of pipeline {key}"), e)
            .of(Statement::Parked)
    };
    let (before, after): (Vec<Position>, Vec<Position>) = places.iter().copied().unzip();
    let ((from_lsn, from_ordinal), (to_lsn, to_ordinal)) = (columns(&before), columns(&after));
    let sql = "UPDATE postrider.parked AS p SET commit_lsn = m.to_lsn, ordinal = m.to_ordinal \
               FROM unnest($2::pg_catalog.pg_lsn[], $3::pg_catalog.int8[], $4::pg_catalog.pg_lsn[], \
                 $5::pg_catalog.int8[]) AS m(from_lsn, from_ordinal, to_lsn, to_ordinal) \
               WHERE p.pipeline = $1 AND p.shard = $6 \
                 AND p.commit_lsn = m.from_lsn AND p.ordinal = m.from_ordinal";
    client
        .execute(sql, &[&key.pipeline, &from_lsn, &from_ordinal, &to_lsn, &to_ordinal, &key.shard])
        .await
        .map(drop)
        .map_err(failed)
}

/// Moves unresolved events that claims have parked to positions before everything that the stream will send, in the
/// same order. Must be called by the owner (`epoch`) before a stream begins.
///
/// A claim's position is the end of WAL after its rows were seen. A transaction whose commit record lies before that
/// point need not be visible yet: a commit becomes visible once synchronous standbys have confirmed it. The stream
/// sends such a transaction at a position below the claim's, although its rows were not claimed and follow the rows
/// that were.
///
/// An event that the stream had parked, and sends again, keeps its position, because the position identifies it. Events
/// of its aggregate that were claimed later get positions directly after it.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn put_before_stream(
    client: &Client,
    key: &PipelineKey,
    epoch: i64,
) -> Result<u64, SourceError> {
    let failed = |e| {
        let doing = format!("move parked events of pipeline {key} before its stream");
        SourceError::control(doing, e).of(Statement::Parked)
    };
    let odd = "(p.commit_lsn - '0/0'::pg_catalog.pg_lsn) % 2 = 1";
    let sql = format!(
        "WITH c AS (SELECT watermark AS at, watermark - '0/0'::pg_catalog.pg_lsn AS n \
           FROM postrider.cursor \
           WHERE pipeline = $1 AND shard = $3 AND owner_epoch = $2 AND watermark > '0/10' FOR SHARE), \
         parked AS (SELECT p.commit_lsn, p.ordinal, c.n, {odd} AS claimed, \
             max(p.commit_lsn) FILTER (WHERE NOT {odd}) OVER (PARTITION BY p.aggregate_type, p.aggregate_id \
               ORDER BY p.commit_lsn, p.ordinal ROWS UNBOUNDED PRECEDING) AS before \
           FROM postrider.parked AS p, c \
           WHERE p.pipeline = $1 AND p.shard = $3 AND p.commit_lsn >= c.at \
             AND p.state NOT IN ('done', 'skipped')), \
         moved AS (SELECT commit_lsn, ordinal, \
             row_number() OVER (ORDER BY commit_lsn, ordinal) AS n, \
             greatest('0/0'::pg_catalog.pg_lsn + (n - n % 8 - 7), before + 1) AS at \
           FROM parked WHERE claimed) \
         UPDATE postrider.parked AS p SET commit_lsn = m.at, \
           ordinal = m.n + coalesce((SELECT max(o.ordinal) FROM postrider.parked AS o \
             WHERE o.pipeline = $1 AND o.shard = $3 AND o.commit_lsn = m.at), 0) \
         FROM moved AS m WHERE p.pipeline = $1 AND p.shard = $3 \
           AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal AND p.commit_lsn <> m.at"
    );
    client.execute(&sql, &[&key.pipeline, &epoch, &key.shard]).await.map_err(failed)
}

/// Undoes what the current transaction has parked at `from` and after it in the same claim: moved rows get their
/// positions back, each `(now, before)`, and new rows are deleted.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn undo_parking(
    client: &Client,
    key: &PipelineKey,
    from: Position,
    places: &[(Position, Position)],
) -> Result<(), SourceError> {
    move_rows(client, key, places).await?;
    let failed = |e| {
        SourceError::control(format!("undo the parking of events of pipeline {key}"), e)
            .of(Statement::Parked)
    };
    let sql = "DELETE FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.shard = $4 AND p.commit_lsn = $2 AND p.ordinal >= $3";
    let (commit_lsn, ordinal) = (pg_lsn(from.commit), from.ordinal.cast_signed());
    client
        .execute(sql, &[&key.pipeline, &commit_lsn, &ordinal, &key.shard])
        .await
        .map(drop)
        .map_err(failed)
}

/// Reads, for a stream that begins, the parked events that the cursor row has not passed, and those that the stream
/// must not publish again.
///
/// The latter are at positions of claims, which say nothing of the positions at which the stream sends them: as many
/// count as are in the table, up to `parking.rows_max` and those resolved in the last 7 days.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn ahead_of_cursor(
    client: &Client,
    key: &PipelineKey,
) -> Result<FoundParked, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read parked events of pipeline {key}"), e)
            .of(Statement::Parked)
    };
    let sql = "SELECT p.commit_lsn, p.ordinal, p.event_id, \
                 (extract(epoch FROM p.commit_time - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8, \
                 p.timestamp_ms, p.aggregate_type, p.aggregate_id, \
                 w.withdrawn, p.xid, p.commit_lsn >= c.watermark \
               FROM postrider.parked AS p \
               JOIN postrider.cursor AS c ON c.pipeline = p.pipeline AND c.shard = p.shard, \
               LATERAL (SELECT (p.commit_lsn - '0/0'::pg_lsn) % 2 = 1 AND (p.state = 'skipped' \
                 OR p.acted_action IS NOT DISTINCT FROM 'replace' \
                 OR p.requested_action IS NOT DISTINCT FROM 'replace') AS withdrawn) AS w \
               WHERE p.pipeline = $1 AND p.shard = $2 AND p.event_id IS NOT NULL \
                 AND (p.commit_lsn >= c.watermark OR w.withdrawn)";
    let rows = client.query(sql, &[&key.pipeline, &key.shard]).await.map_err(failed)?;
    let ahead = |row: &Row| {
        let (lsn, ordinal): (PgLsn, i64) = (row.try_get(0)?, row.try_get(1)?);
        let (kind, id): (Option<&str>, Option<&str>) = (row.try_get(5)?, row.try_get(6)?);
        Ok(AheadOfCursor {
            position: position(lsn, ordinal),
            lane: kind.zip(id).map(|(kind, id)| Lane::of(Aggregate { kind, id })),
            id: row.try_get(2)?,
            commit_time: crate::wire::from_pg_micros(row.try_get(3)?),
            timestamp_ms: row.try_get(4)?,
        })
    };
    let mut found = FoundParked::default();
    for row in &rows {
        let event = ahead(row).map_err(failed)?;
        if row.try_get(7).map_err(failed)? {
            let xid: Option<i64> = row.try_get(8).map_err(failed)?;
            let (id, commit_time) = (event.id.clone(), event.commit_time);
            let xid = xid.and_then(|xid| u32::try_from(xid).ok());
            found.withdrawn.push(WithdrawnEvent { id, commit_time, xid });
        }
        if row.try_get(9).map_err(failed)? {
            found.ahead.push(event);
        }
    }
    Ok(found)
}

// Whether a row of the outbox (`o`) is the event of a row of the parked table (`p`) with the same id.
//
// An equal id proves nothing: after `TRUNCATE … RESTART IDENTITY`, from a restored backup, or with a sequence that was
// set back, ids occur a second time. The transaction that wrote the row decides, with three possible results: the same
// event, another event, or unknown. `docs/decisions/reused-ids.md` states the rule in full.

/// When the transaction that wrote the row was committed; NULL if the server does not record commit times.
const WRITTEN_AT: &str = "(CASE WHEN current_setting('track_commit_timestamp') = 'on' \
                          THEN pg_xact_commit_timestamp(o.xmin) END)";

/// A claim has parked the event, not a stream: its time is that of the claim.
const CLAIMED: &str = "(p.commit_lsn - '0/0'::pg_lsn) % 2 = 1";

/// The row was committed with the event, or was in the table when a claim found the event.
fn committed_with() -> String {
    format!(
        "(CASE WHEN {CLAIMED} THEN {WRITTEN_AT} <= p.commit_time ELSE {WRITTEN_AT} = p.commit_time END)"
    )
}

/// The row was written by a later transaction than the one that last wrote `p`, regardless of the server's clock.
/// Transaction numbers have no epoch here: the two are assumed to be less than 2^31 transactions apart.
const IS_NEWER: &str =
    "((o.xmin::text::int8 - p.xmin::text::int8) & 4294967295) BETWEEN 1 AND 2147483647";

/// A person has decided that the event is not published as its row has it.
pub(crate) const DECIDED: &str =
    "(p.state = 'skipped' OR p.state = 'done' AND p.acted_action IS NOT DISTINCT FROM 'replace')";

/// Whether the row is certainly the event of `p`, provided that it is not [`another`].
pub(crate) fn the_same() -> String {
    format!("coalesce({} AND NOT {IS_NEWER}, false)", committed_with())
}

/// Whether the row is certainly another event than that of `p`, or was written again since. Without commit times this
/// is known only of a row that is newer than `p`, or whose aggregate or time differs.
pub(crate) fn another(table: &OutboxTable) -> String {
    let (kind, id) = table.aggregate();
    // A time that no broker accepts is replaced by the commit time; such a time proves nothing.
    let time = table.time().filter(|_| table.spec().stamps).map_or_else(String::new, |time| {
        let of = format!("extract(epoch FROM {time}) * 1000");
        let commit = "floor(extract(epoch FROM p.commit_time) * 1000)";
        format!(
            " OR coalesce(abs({of} - p.timestamp_ms) > 1 AND (p.timestamp_ms <> {commit} \
             OR {of} BETWEEN 1 AND {commit} + {AHEAD_MAX_MS}), false)"
        )
    });
    format!(
        "(coalesce(NOT {committed}, false) OR {IS_NEWER} \
         OR coalesce(({kind}, {id}) <> (p.aggregate_type, p.aggregate_id), false){time})",
        committed = committed_with(),
    )
}
