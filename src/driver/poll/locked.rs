//! Rows that claims could not have, since another session has locked them: which session that is, for people.
//!
//! An application locks rows for a moment all the time. So only rows that stay locked are looked into.

use super::Polling;
use crate::driver::pipeline::Pipeline;
use crate::driver::run::Stop;
use crate::driver::say;
use crate::postgres::SourceError;
use crate::postgres::poll::Missed;
use std::time::Duration;
use tokio::time::Instant;

/// How long rows have to be locked before that is looked into.
const LOCKED_MIN: Duration = Duration::from_secs(2);

/// Pause between two looks. Longer than an aggregate rests whose row was locked: what is not met again in it is free.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What claims could not have.
#[derive(Default)]
pub(super) struct LockedRows {
    /// The last that were met since the last look.
    rows: Missed,
    since: Option<Instant>,
    looked_at: Option<Instant>,
}

impl LockedRows {
    /// A claim could not have these.
    fn note(&mut self, rows: &Missed) {
        if !rows.is_empty() {
            self.rows = rows.clone();
            self.since.get_or_insert_with(Instant::now);
        }
    }

    /// The rows to look into, if it is time; none where none was met since the last look.
    fn due(&mut self) -> Option<Missed> {
        let lasting = self.since.is_some_and(|since| since.elapsed() >= LOCKED_MIN);
        let rested = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_INTERVAL);
        if !lasting || !rested {
            return None;
        }
        self.looked_at = Some(Instant::now());
        Some(std::mem::take(&mut self.rows))
    }

    /// Nobody holds rows any more.
    fn free(&mut self) {
        *self = Self::default();
    }
}

impl Pipeline {
    /// Finds out, now and then, who has locked rows that claims could not have.
    pub(super) async fn look_who_locks(
        &mut self,
        polling: &mut Polling,
        missed: &Missed,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        polling.locked.note(missed);
        let Some(rows) = polling.locked.due() else { return Ok(()) };
        let Some(table) = self.spec.poll.table.as_ref().map(|spec| spec.table.clone()) else {
            return Ok(());
        };
        let holders = if rows.is_empty() {
            Vec::new()
        } else {
            self.finish_jobs(polling, stop).await?;
            // For people: a look that fails must not end the claim.
            rows.holders(polling.desk.control.client(), &table).await.unwrap_or_default()
        };
        if holders.is_empty() {
            // They are delayed, or have failed, or were free again.
            polling.locked.free();
            say::claims_go_on(self);
        } else {
            say::claims_wait(self, &table, &holders);
        }
        Ok(())
    }
}
