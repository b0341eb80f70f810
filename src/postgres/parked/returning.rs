//! Parked events whose rows the table brings again: a lost slot leaves them in both, and only the table knows which
//! rows of their aggregates come before them.
//!
//! Owns the look for them, and the change of their place. When they come is the driver's business.

use super::read::{columns, position};
use crate::event::Position;
use crate::postgres::error::{SourceError, Statement};
use crate::postgres::poll::listed::Table;
use crate::postgres::server::pg_lsn;
use std::collections::{HashMap, HashSet};
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};

/// A parked event that comes again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Again {
    /// Its id, as the row of the table has it.
    pub event_id: String,
    /// Where it stands in the parked table.
    pub position: Position,
    /// It stays there, and only its mark in the table is missing: it is published, given up, or holds nothing back.
    pub passes: bool,
}

/// One that may come again, and its aggregate.
type Candidate = (Again, Option<(String, String)>);

/// Those that are on the list of a repair.
///
/// # Errors
/// What the server says.
pub async fn listed(client: &Client, pipeline: &str) -> Result<Vec<Again>, SourceError> {
    let sql = "SELECT p.event_id, p.commit_lsn, p.ordinal, false, p.aggregate_type, p.aggregate_id \
               FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.blocks AND p.state NOT IN ('done', 'skipped') AND p.event_id IN \
                 (SELECT unnest(r.ids) FROM postrider.repair_page AS r WHERE r.pipeline = $1)";
    let found = read(client, pipeline, sql).await?;
    Ok(found.into_iter().map(|(again, _)| again).collect())
}

/// Those that polling will claim.
///
/// One that has a later one of its aggregate behind it that does not come again stays where it is: its row is passed
/// over. An event that a claim has parked is no such later one, whatever its position: rows of an aggregate are claimed
/// in their order, so a row that is still to be claimed follows the event. Of those that are resolved only what the
/// stream might have brought again counts: a mark that somebody took back later is his word.
///
/// # Errors
/// What the server says.
pub async fn unpublished(
    client: &Client,
    pipeline: &str,
    table: &Table,
) -> Result<Vec<Again>, SourceError> {
    // Where the table keeps failures, one that holds nothing back is the letter of a row that has failed for good.
    let letters = table.spec().keeps_failures();
    let sql = format!(
        "SELECT p.event_id, p.commit_lsn, p.ordinal, NOT p.blocks OR p.state IN ('done', 'skipped'), \
           p.aggregate_type, p.aggregate_id FROM postrider.parked AS p \
         WHERE p.pipeline = $1 AND p.event_id IS NOT NULL AND (p.blocks OR NOT {letters}) \
           AND (p.state NOT IN ('done', 'skipped') OR p.commit_lsn >= \
             (SELECT c.watermark FROM postrider.cursor AS c WHERE c.pipeline = $1))"
    );
    let candidates = read(client, pipeline, &sql).await?;
    let ids: Vec<&str> = candidates.iter().map(|(again, _)| again.event_id.as_str()).collect();
    let stand = table.unpublished_of(client, &ids).await?;
    Ok(coming(candidates, &stand))
}

/// Which of them come, where the rows of these ids stand.
fn coming(candidates: Vec<Candidate>, stand: &HashSet<String>) -> Vec<Again> {
    let mut last_that_stays = HashMap::new();
    for (again, aggregate) in &candidates {
        let claimed = again.position.commit_lsn.is_claims();
        if !again.passes && !claimed && !stand.contains(&again.event_id) {
            let last: &mut Position = last_that_stays.entry(aggregate.clone()).or_default();
            *last = again.position.max(*last);
        }
    }
    let comes = |(mut again, aggregate): Candidate| {
        // Before one that stays: it stays too, and its row is only marked.
        let last = last_that_stays.get(&aggregate);
        again.passes |= last.is_some_and(|last| again.position <= *last);
        stand.contains(&again.event_id).then_some(again)
    };
    candidates.into_iter().filter_map(comes).collect()
}

async fn read(client: &Client, pipeline: &str, sql: &str) -> Result<Vec<Candidate>, SourceError> {
    let failed = |e| {
        let doing = format!("look for parked events of pipeline {pipeline:?} that come again");
        SourceError::control(doing, e).of(Statement::Parked)
    };
    let candidate = |row: &Row| {
        let again = Again {
            event_id: row.try_get(0)?,
            position: position(row.try_get(1)?, row.try_get(2)?),
            passes: row.try_get(3)?,
        };
        let kind: Option<String> = row.try_get(4)?;
        Ok((again, kind.zip(row.try_get::<_, Option<String>>(5)?)))
    };
    let rows = client.query(sql, &[&pipeline]).await.map_err(failed)?;
    rows.iter().map(candidate).collect::<Result<_, _>>().map_err(failed)
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
    let failed = |e| {
        SourceError::control(format!("place parked events of pipeline {pipeline:?} again"), e)
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

/// Puts unresolved events that claims have parked before all that the stream will bring, and leaves them in their
/// order. To be called by the owner (`epoch`) before a stream begins.
///
/// A claim's position is the end of WAL after its rows were seen. A transaction whose commit record lies before that
/// point need not be visible then: a commit becomes visible once synchronous standbys have confirmed it. The stream
/// brings such a transaction below the claim's position, though its rows were not claimed and follow those that were.
///
/// An event that the stream had parked, and brings again, keeps its position: it is known by it. Events of its
/// aggregate that were claimed later come directly behind it.
///
/// # Errors
/// What the server says.
pub async fn put_before_stream(
    client: &Client,
    pipeline: &str,
    epoch: i64,
) -> Result<u64, SourceError> {
    let failed = |e| {
        let doing = format!("place parked events of pipeline {pipeline:?} before its stream");
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

/// Undoes what the transaction at hand has parked at `from` and behind it in the same claim: rows that it has moved go
/// back, each `(now, before)`, and those that it has made go.
///
/// # Errors
/// What the server says.
pub async fn take_back(
    client: &Client,
    pipeline: &str,
    from: Position,
    places: &[(Position, Position)],
) -> Result<(), SourceError> {
    place(client, pipeline, places).await?;
    let failed = |e| {
        SourceError::control(format!("take back parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
    let sql = "DELETE FROM postrider.parked AS p \
               WHERE p.pipeline = $1 AND p.commit_lsn = $2 AND p.ordinal >= $3";
    let (commit_lsn, ordinal) = (pg_lsn(from.commit_lsn), from.ordinal.cast_signed());
    client.execute(sql, &[&pipeline, &commit_lsn, &ordinal]).await.map(drop).map_err(failed)
}

/// Parked events that the cursor row has not passed, with their ids: the rows of the table that are not marked yet.
///
/// # Errors
/// What the server says.
pub async fn not_passed(
    client: &Client,
    pipeline: &str,
) -> Result<Vec<(Position, String)>, SourceError> {
    let failed = |e| {
        SourceError::control(format!("read parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Parked)
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn::Lsn;

    #[test]
    fn what_is_before_one_that_stays_stays_too() {
        let candidate = |id: &str, lsn, aggregate: &str, passes| {
            let position = Position { commit_lsn: Lsn::from_wire(lsn), ordinal: 0 };
            let again = Again { event_id: id.to_owned(), position, passes };
            (again, Some(("order".to_owned(), aggregate.to_owned())))
        };
        let candidates = vec![
            candidate("a1", 0x10, "a", false),
            candidate("b2", 0x20, "b", false),
            candidate("a3 is gone", 0x30, "a", false),
            candidate("a4", 0x40, "a", false),
            candidate("a5 is resolved", 0x50, "a", true),
            candidate("b6 is resolved and gone", 0x60, "b", true),
            // A claim has parked the eighth and marked its row; the seventh is claimed next.
            candidate("c7", 0x70, "c", false),
            candidate("c8 was claimed", 0x81, "c", false),
        ];
        let stand = ["a1", "b2", "a4", "a5 is resolved", "c7"].map(str::to_owned).into();
        let come: Vec<(String, bool)> = coming(candidates, &stand)
            .into_iter()
            .map(|again| (again.event_id, again.passes))
            .collect();
        let come: Vec<(&str, bool)> = come.iter().map(|(id, passes)| (&**id, *passes)).collect();
        let wanted =
            [("a1", true), ("b2", false), ("a4", false), ("a5 is resolved", true), ("c7", false)];
        assert_eq!(come, wanted);
    }
}
