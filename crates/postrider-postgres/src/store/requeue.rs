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
    AheadOfCursor, FoundParked, RequeueDecision, RequeuedEvent, WithdrawnEvent,
};
use postrider_core::parked::{Lane, Parked};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use tokio_postgres::types::{PgLsn, ToSql};
use tokio_postgres::{Client, Row};

/// A parked event that may have a row in the table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Candidate {
    event_id: String,
    position: Position,
    aggregate: Option<(String, String)>,
    blocks: bool,
    resolved: bool,
    /// The event must not be published a second time: a person has skipped or replaced it, or the rows that follow it
    /// in its aggregate are marked as published, so the event would be repeated alone.
    once: bool,
}

/// The positions of the events that have a row or may have one: whether the row is certainly the event, and the
/// transaction that wrote the row.
type Rows = HashMap<Position, (bool, u32)>;

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
    pipeline: &str,
    table: &OutboxTable,
) -> Result<Vec<RequeuedEvent>, SourceError> {
    // The subquery does not refer to `p`, so the ids of the list are hashed once.
    let on_list = format!(
        "p.event_id IN (SELECT unnest(r.ids) FROM postrider.repair_page AS r WHERE r.pipeline = {})",
        literal(pipeline)
    );
    let once = format!(
        "({DECIDED} OR EXISTS (SELECT FROM postrider.repair AS r \
           WHERE r.pipeline = p.pipeline AND r.selection IN ('unmarked', 'both')))"
    );
    let sql = format!(
        "{} AND (p.blocks AND p.state NOT IN ('done', 'skipped') OR {on_list})",
        candidates(&once)
    );
    let candidates = read(client, pipeline, &sql).await?;
    let rows = rows_of(client, table, &candidates, &on_list).await?;
    let cursor = watermark(client, pipeline).await?;
    Ok(decide(candidates, &rows, |at| crate::wire::is_claim_lsn(at) && at >= cursor))
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
    pipeline: &str,
    table: &OutboxTable,
) -> Result<Vec<RequeuedEvent>, SourceError> {
    // If the table records failures, an event that blocks no other is the dead letter of a row that has failed for
    // good.
    let dead_letters = table.spec().keeps_failures();
    let sql = format!(
        "{} AND (p.blocks OR NOT {dead_letters}) \
           AND (p.state NOT IN ('done', 'skipped') OR EXISTS (SELECT FROM postrider.cursor AS c \
             WHERE c.pipeline = $1 AND (p.commit_lsn >= c.watermark \
               OR c.polls_on AND (p.state = 'skipped' OR p.acted_action = 'replace'))))",
        candidates("true")
    );
    let candidates = read(client, pipeline, &sql).await?;
    let rows = rows_of(client, table, &candidates, &table.unpublished()).await?;
    Ok(decide(candidates, &rows, crate::wire::is_claim_lsn))
}

/// The position of the cursor row; zero if there is none.
async fn watermark(client: &Client, pipeline: &str) -> Result<Offset, SourceError> {
    let failed = |e| {
        let doing = format!("read the position of pipeline {pipeline:?}");
        SourceError::control(doing, e).of(Statement::Cursor)
    };
    let sql = "SELECT watermark FROM postrider.cursor WHERE pipeline = $1";
    let row = client.query_opt(sql, &[&pipeline]).await.map_err(failed)?;
    let at = row.map(|row| row.try_get::<_, PgLsn>(0)).transpose().map_err(failed)?;
    Ok(at.map_or(Offset::ZERO, crate::catalog::lsn))
}

/// Decides about the rows. `rows` are or may be events of `candidates`. `precedes`: whether the event that is parked
/// with this commit position precedes every row that is still to be claimed, whatever the positions.
fn decide(
    candidates: Vec<Candidate>,
    rows: &Rows,
    precedes: impl Fn(Offset) -> bool,
) -> Vec<RequeuedEvent> {
    let mut last_that_stays = HashMap::new();
    for candidate in &candidates {
        let precedes = precedes(candidate.position.commit);
        let blocks = candidate.blocks && !candidate.resolved;
        if blocks && !precedes && !rows.contains_key(&candidate.position) {
            let last: &mut Position =
                last_that_stays.entry(candidate.aggregate.clone()).or_default();
            *last = candidate.position.max(*last);
        }
    }
    let mut coming = HashMap::new();
    for candidate in candidates {
        let Some(&(certain, xmin)) = rows.get(&candidate.position) else { continue };
        // An event before one that keeps its position keeps its own too, and its row only gets its status.
        let last = last_that_stays.get(&candidate.aggregate);
        let stays = last.is_some_and(|last| candidate.position <= *last);
        let decision = match (candidate.resolved, certain) {
            (false, _) if candidate.blocks && !stays => RequeueDecision::Requeue { certain },
            (_, true) => RequeueDecision::MarkOnly,
            (false, false) => RequeueDecision::Undecided { kept: true },
            (true, false) if candidate.once => RequeueDecision::Undecided { kept: false },
            // The event was published, and is published a second time together with the events that follow it.
            (true, false) => continue,
        };
        let Candidate { event_id, position, .. } = candidate;
        let again = RequeuedEvent { event_id: event_id.clone(), position, decision, xmin };
        // If several events have one id, the row belongs to the unresolved one, or else to the last one.
        let rank = |again: &RequeuedEvent| {
            let rank = match again.decision {
                RequeueDecision::MarkOnly | RequeueDecision::Requeue { certain: true } => 3,
                RequeueDecision::Requeue { certain: false } => 2,
                RequeueDecision::Undecided { kept } => u8::from(kept),
            };
            (rank, again.position)
        };
        match coming.entry(event_id) {
            Entry::Occupied(mut known) if rank(known.get()) < rank(&again) => {
                known.insert(again);
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(free) => {
                free.insert(again);
            }
        }
    }
    coming.into_values().collect()
}

/// The query for candidates, to which a caller adds conditions. `once`: which of them must not be published a second
/// time.
fn candidates(once: &str) -> String {
    format!(
        "SELECT p.event_id, p.commit_lsn, p.ordinal, p.aggregate_type, p.aggregate_id, p.blocks, \
           p.state IN ('done', 'skipped'), {once} \
         FROM postrider.parked AS p WHERE p.pipeline = $1 AND p.event_id IS NOT NULL"
    )
}

async fn read(client: &Client, pipeline: &str, sql: &str) -> Result<Vec<Candidate>, SourceError> {
    let failed = |e| {
        let doing = format!("find the parked events of pipeline {pipeline:?} that are requeued");
        SourceError::control(doing, e).of(Statement::Parked)
    };
    let candidate = |row: &Row| {
        let kind: Option<String> = row.try_get(3)?;
        Ok(Candidate {
            event_id: row.try_get(0)?,
            position: position(row.try_get(1)?, row.try_get(2)?),
            aggregate: kind.zip(row.try_get::<_, Option<String>>(4)?),
            blocks: row.try_get(5)?,
            resolved: row.try_get(6)?,
            once: row.try_get(7)?,
        })
    };
    let rows = client.query(sql, &[&pipeline]).await.map_err(failed)?;
    rows.iter().map(candidate).collect::<Result<_, _>>().map_err(failed)
}

/// The rows that meet `filter` and may be the candidates whose ids they have.
async fn rows_of(
    client: &Client,
    table: &OutboxTable,
    candidates: &[Candidate],
    filter: &str,
) -> Result<Rows, SourceError> {
    let ids: Vec<&str> = candidates.iter().map(|candidate| candidate.event_id.as_str()).collect();
    let columns = format!("p.commit_lsn, p.ordinal, {}, o.xmin::text::int8", the_same());
    let filter = format!("{filter} AND NOT {}", another(table));
    let found = table.beside_parked(client, &ids, &columns, &filter).await?;
    let failed = |e| SourceError::control("find the rows of parked events", e);
    let row = |row: &Row| {
        let xmin: i64 = row.try_get(3)?;
        let of = (row.try_get(2)?, u32::try_from(xmin).unwrap_or_default());
        Ok((position(row.try_get(0)?, row.try_get(1)?), of))
    };
    found.iter().map(row).collect::<Result<_, _>>().map_err(failed)
}

/// Returns those of `rows` whose content equals the record of the parked event with the same id, given by its position:
/// publishing either one then publishes both. Headers with the event's position are not compared, nor is a timestamp
/// that is the commit time.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn alike(
    client: &Client,
    pipeline: &str,
    rows: &[(Position, &Parked)],
) -> Result<HashSet<Position>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("compare parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    let sql = "SELECT FROM postrider.parked AS p WHERE p.pipeline = $1 AND p.commit_lsn = $2 AND p.ordinal = $3 \
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
        let parameters: [&(dyn ToSql + Sync); 11] = [
            &pipeline,
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
    pipeline: &str,
    places: &[(Position, Position)],
) -> Result<(), SourceError> {
    if places.is_empty() {
        return Ok(());
    }
    let failed = |e| {
        SourceError::control(format!("move parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
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
    pipeline: &str,
    epoch: i64,
) -> Result<u64, SourceError> {
    let failed = |e| {
        let doing = format!("move parked events of pipeline {pipeline:?} before its stream");
        SourceError::control(doing, e).of(Statement::Parked)
    };
    let odd = "(p.commit_lsn - '0/0'::pg_catalog.pg_lsn) % 2 = 1";
    let sql = format!(
        "WITH c AS (SELECT watermark AS at, watermark - '0/0'::pg_catalog.pg_lsn AS n \
           FROM postrider.cursor \
           WHERE pipeline = $1 AND owner_epoch = $2 AND watermark > '0/10' FOR SHARE), \
         parked AS (SELECT p.commit_lsn, p.ordinal, c.n, {odd} AS claimed, \
             max(p.commit_lsn) FILTER (WHERE NOT {odd}) OVER (PARTITION BY p.aggregate_type, p.aggregate_id \
               ORDER BY p.commit_lsn, p.ordinal ROWS UNBOUNDED PRECEDING) AS before \
           FROM postrider.parked AS p, c WHERE p.pipeline = $1 AND p.commit_lsn >= c.at \
             AND p.state NOT IN ('done', 'skipped')), \
         moved AS (SELECT commit_lsn, ordinal, \
             row_number() OVER (ORDER BY commit_lsn, ordinal) AS n, \
             greatest('0/0'::pg_catalog.pg_lsn + (n - n % 8 - 7), before + 1) AS at \
           FROM parked WHERE claimed) \
         UPDATE postrider.parked AS p SET commit_lsn = m.at, \
           ordinal = m.n + coalesce((SELECT max(o.ordinal) FROM postrider.parked AS o \
             WHERE o.pipeline = $1 AND o.commit_lsn = m.at), 0) \
         FROM moved AS m WHERE p.pipeline = $1 AND p.commit_lsn = m.commit_lsn AND p.ordinal = m.ordinal \
           AND p.commit_lsn <> m.at"
    );
    client.execute(&sql, &[&pipeline, &epoch]).await.map_err(failed)
}

/// Undoes what the current transaction has parked at `from` and after it in the same claim: moved rows get their
/// positions back, each `(now, before)`, and new rows are deleted.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn undo_parking(
    client: &Client,
    pipeline: &str,
    from: Position,
    places: &[(Position, Position)],
) -> Result<(), SourceError> {
    move_rows(client, pipeline, places).await?;
    let failed = |e| {
        SourceError::control(format!("undo the parking of events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    let sql = "DELETE FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.commit_lsn = $2 AND p.ordinal >= $3";
    let (commit_lsn, ordinal) = (pg_lsn(from.commit), from.ordinal.cast_signed());
    client.execute(sql, &[&pipeline, &commit_lsn, &ordinal]).await.map(drop).map_err(failed)
}

/// Reads the parked events that the cursor row has not passed, for a stream that begins.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn ahead_of_cursor(client: &Client, pipeline: &str) -> Result<FoundParked, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    let sql = "SELECT p.commit_lsn, p.ordinal, p.event_id, \
                 (extract(epoch FROM p.commit_time - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8, \
                 p.timestamp_ms, p.aggregate_type, p.aggregate_id, \
                 p.state = 'skipped' OR p.state = 'done' AND p.acted_action IS NOT DISTINCT FROM 'replace' \
               FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.event_id IS NOT NULL AND p.commit_lsn >= \
                 (SELECT c.watermark FROM postrider.cursor AS c WHERE c.pipeline = $1)";
    let rows = client.query(sql, &[&pipeline]).await.map_err(failed)?;
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
        // At the position at which the stream has parked it, the relay knows the event.
        let moved = crate::wire::is_claim_lsn(event.position.commit);
        if moved && row.try_get(7).map_err(failed)? {
            let (id, commit_time) = (event.id.clone(), event.commit_time);
            found.withdrawn.push(WithdrawnEvent { id, commit_time });
        }
        found.ahead.push(event);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Lsn;

    fn at(lsn: u64) -> Position {
        Position { commit: Lsn::new(lsn), ordinal: 0 }
    }

    fn candidate(id: &str, lsn: u64, aggregate: &str, resolved: bool) -> Candidate {
        Candidate {
            event_id: id.to_owned(),
            position: at(lsn),
            aggregate: Some(("order".to_owned(), aggregate.to_owned())),
            blocks: true,
            resolved,
            once: false,
        }
    }

    /// The decisions about the candidates whose rows are these, by id.
    fn decisions(
        candidates: Vec<Candidate>,
        rows: &[(u64, bool)],
    ) -> Vec<(String, RequeueDecision)> {
        let rows = rows.iter().map(|(lsn, certain)| (at(*lsn), (*certain, 1))).collect();
        let found = decide(candidates, &rows, crate::wire::is_claim_lsn);
        let mut found: Vec<_> =
            found.into_iter().map(|again| (again.event_id, again.decision)).collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    #[test]
    fn event_before_one_that_keeps_its_position_keeps_its_own() {
        let candidates = vec![
            candidate("a1", 0x10, "a", false),
            candidate("b2", 0x20, "b", false),
            candidate("a3 is gone", 0x30, "a", false),
            candidate("a4", 0x40, "a", false),
            candidate("a5 is resolved", 0x50, "a", true),
            candidate("b6 is resolved and gone", 0x60, "b", true),
            // A claim has parked the eighth event and set its row's status; the seventh is claimed next.
            candidate("c7", 0x70, "c", false),
            candidate("c8 was claimed", 0x81, "c", false),
        ];
        let rows = [0x10, 0x20, 0x40, 0x50, 0x70].map(|lsn| (lsn, true));
        let again = RequeueDecision::Requeue { certain: true };
        let wanted = [
            ("a1", RequeueDecision::MarkOnly),
            ("a4", again),
            ("a5 is resolved", RequeueDecision::MarkOnly),
            ("b2", again),
            ("c7", again),
        ];
        let wanted = wanted.map(|(id, decision)| (id.to_owned(), decision));
        assert_eq!(decisions(candidates, &rows), wanted);
    }

    /// In a repair, an event at a claim's position above the cursor row was on an earlier page of the list.
    #[test]
    fn only_a_claim_of_this_repair_precedes_the_rows_that_are_still_listed() {
        let cursor = Lsn::new(0x20);
        let of_this_repair = |at| crate::wire::is_claim_lsn(at) && at >= cursor;
        let decision = |moved_to| {
            let candidates =
                vec![candidate("a1", moved_to, "a", false), candidate("a2", 0x10, "a", false)];
            let rows = Rows::from([(at(0x10), (true, 1))]);
            let found = decide(candidates, &rows, of_this_repair);
            found.into_iter().map(|again| again.decision).collect::<Vec<_>>()
        };
        assert_eq!(decision(0x31), [RequeueDecision::Requeue { certain: true }]);
        for earlier in [0x19, 0x30] {
            assert_eq!(decision(earlier), [RequeueDecision::MarkOnly], "{earlier:#x}");
        }
    }

    /// An equal id is no proof: a row that may be another event is never passed over.
    #[test]
    fn row_that_may_be_another_event_is_never_passed_over() {
        let once = |candidate| Candidate { once: true, ..candidate };
        let candidates = vec![
            candidate("a stays before b", 0x10, "a", false),
            candidate("b is gone", 0x20, "a", false),
            candidate("c", 0x30, "c", false),
            candidate("d is published", 0x40, "d", true),
            once(candidate("e is skipped", 0x50, "e", true)),
            Candidate { blocks: false, ..candidate("f blocks nothing", 0x60, "f", false) },
            // Two events have had this id: the parked one is compared, not the skipped one.
            once(candidate("g", 0x70, "g", true)),
            candidate("g", 0x80, "g", false),
        ];
        let rows = [0x10, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80].map(|lsn| (lsn, false));
        let (again, doubted) = (
            RequeueDecision::Requeue { certain: false },
            RequeueDecision::Undecided { kept: true },
        );
        let wanted = [
            ("a stays before b", doubted),
            ("c", again),
            ("e is skipped", RequeueDecision::Undecided { kept: false }),
            ("f blocks nothing", doubted),
            ("g", again),
        ];
        let wanted = wanted.map(|(id, decision)| (id.to_owned(), decision));
        assert_eq!(decisions(candidates, &rows), wanted);
    }
}
