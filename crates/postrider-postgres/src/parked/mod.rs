//! The parked table, `postrider.parked`: the durability of the relay's lanes.
//!
//! Owns the rows and their statements. It decides nothing: `relay` says what is parked and what becomes of it, a person
//! asks by a request in the row ([`desk`]), and what is read here at a start is what the relay goes on from. Every
//! write is fenced by the owner's epoch in the cursor row ([`super::cursor::take_over`]).
//!
//! Payloads go in and out as bytes and are in no error, log or `Debug`.

pub mod desk;
pub(crate) mod identity;
mod letters;
mod lockers;
mod marks;
mod read;
mod returning;
mod rows;
mod write;

pub use letters::fetch_letters;
pub use lockers::{lockers, table_lockers};
pub use read::{Fetched, Loaded, fetch, load, missing, requests};
pub use returning::{
    Again, Fate, NotPassed, alike, listed, not_passed, place, put_before_stream, take_back,
    unpublished,
};
pub use write::{ROUND_BYTES_MAX, ROUND_ROWS_MAX, Stored, write};

use super::error::{SourceError, Statement};
use super::server::pg_lsn;
use pg_replication::lsn::Lsn;
use postrider_core::parked::State;
use std::time::Duration;
use tokio_postgres::Client;

/// The channel on which a session is told that a request was written; the payload is the pipeline's name.
pub const CHANNEL: &str = "postrider_parked";

/// Tombstones that one statement of [`prune`] deletes.
const PRUNE_ROWS: i64 = 1_000;

/// The longest wait or age that is written: what is longer is as good as for ever. Unit: microseconds (100 years).
const MICROS_MAX: i64 = 100 * 365 * 86_400 * 1_000_000;

/// A duration as the statements here take it: microseconds, at most [`MICROS_MAX`].
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).map_or(MICROS_MAX, |micros| micros.min(MICROS_MAX))
}

/// Deletes tombstones that are no longer needed: the cursor row has passed them, so their events are never sent again,
/// and they are older than `keep`. In statements of 1,000 rows, so that others have their turn on the session.
/// Returns how many went.
///
/// `watermark` is only an upper bound: what counts is the cursor row as it stands.
///
/// # Errors
/// What the server says. What was deleted before stays deleted.
pub async fn prune(
    client: &Client,
    pipeline: &str,
    watermark: Lsn,
    keep: Duration,
) -> Result<u64, SourceError> {
    prune_where(client, pipeline, watermark, keep, false).await
}

/// The same where there is no stream that could bring an event again (`mode = "poll"`): age alone counts.
///
/// # Errors
/// What the server says. What was deleted before stays deleted.
pub async fn prune_polled(
    client: &Client,
    pipeline: &str,
    keep: Duration,
) -> Result<u64, SourceError> {
    prune_where(client, pipeline, Lsn::default(), keep, true).await
}

async fn prune_where(
    client: &Client,
    pipeline: &str,
    watermark: Lsn,
    keep: Duration,
    polled: bool,
) -> Result<u64, SourceError> {
    let failed = |e| {
        SourceError::control(format!("prune the parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Requests)
    };
    let sql = "DELETE FROM postrider.parked p USING ( \
                 SELECT t.commit_lsn, t.ordinal FROM postrider.parked t \
                 WHERE t.pipeline = $1 AND t.state IN ('done', 'skipped') \
                   AND t.resolved_at < pg_catalog.now() - $3::pg_catalog.int8 * interval '1 microsecond' \
                   AND t.requested_action IS NULL \
                   AND ($5 OR t.commit_lsn < least($2::pg_catalog.pg_lsn, \
                     (SELECT c.watermark FROM postrider.cursor c WHERE c.pipeline = $1))) \
                 ORDER BY t.resolved_at LIMIT $4 FOR UPDATE SKIP LOCKED) old \
               WHERE p.pipeline = $1 AND p.commit_lsn = old.commit_lsn AND p.ordinal = old.ordinal";
    let mut total = 0;
    loop {
        let deleted = client
            .execute(sql, &[&pipeline, &pg_lsn(watermark), &micros(keep), &PRUNE_ROWS, &polled])
            .await
            .map_err(failed)?;
        total += deleted;
        if deleted < PRUNE_ROWS.unsigned_abs() {
            return Ok(total);
        }
    }
}

/// How many rows a pipeline has, by state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Each state of [`State::ALL`] that has rows.
    pub rows: Vec<(State, u64)>,
    /// How long the oldest that is not resolved has been parked.
    pub oldest: Option<Duration>,
}

impl Counts {
    /// Rows in this state.
    pub fn of(&self, state: State) -> u64 {
        self.rows.iter().find(|(known, _)| *known == state).map_or(0, |(_, count)| *count)
    }
}

/// Counts the rows of a pipeline, for `status` where no relay runs: the relay knows without asking.
///
/// # Errors
/// What the server says.
pub async fn counts(client: &Client, pipeline: &str) -> Result<Counts, SourceError> {
    let failed = |e| {
        SourceError::control(format!("count the parked events of pipeline {pipeline:?}"), e)
            .of(Statement::Requests)
    };
    let sql = "SELECT state, pg_catalog.count(*), \
                 (greatest(0, pg_catalog.date_part('epoch', \
                   pg_catalog.now() - pg_catalog.min(parked_at))) * 1e6)::pg_catalog.int8 \
               FROM postrider.parked WHERE pipeline = $1 GROUP BY state";
    let mut counts = Counts::default();
    for row in client.query(sql, &[&pipeline]).await.map_err(failed)? {
        let state = read::state(row.try_get(0).map_err(failed)?);
        counts.rows.push((state, row.try_get::<_, i64>(1).map_err(failed)?.unsigned_abs()));
        if !state.resolved() {
            let age =
                Duration::from_micros(row.try_get::<_, i64>(2).map_err(failed)?.unsigned_abs());
            counts.oldest = counts.oldest.max(Some(age));
        }
    }
    Ok(counts)
}
