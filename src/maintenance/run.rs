//! One run of maintenance: its session, and its steps in order.

use super::report::{MaintenanceReport, RunError};
use crate::postgres::control::Control;
use crate::postgres::store::bookmark::{self, SweepBy};
use crate::postgres::store::maintenance;
use crate::postgres::store::parked::{self, PruneRule, Pruned};
use crate::postgres::{Conninfo, SourceError, SourceErrorKind, SqlState, error_policy};
use crate::store::PipelineKey;
use std::time::Duration;
use tokio_postgres::Client;

/// How long resolved parked events are kept for people. Those that the stream may send again are kept in any case.
const KEPT: Duration = Duration::from_hours(7 * 24);

/// Pause between two statements that delete rows, so that a large number of rows is no burst of WAL.
const BATCH_PAUSE: Duration = Duration::from_millis(100);

/// The longest time for a login.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// What maintenance knows of its pipeline.
#[derive(Clone, Debug)]
pub(crate) struct MaintenanceSpec {
    /// The pipeline and its shard.
    pub(crate) key: PipelineKey,
    /// The database.
    pub(crate) conninfo: Conninfo,
    /// Which resolved parked events may be deleted.
    pub(crate) prune: PruneRule,
    /// WAL that all bookmarks together may retain. Unit: bytes.
    pub(crate) bookmarks_retain_max: u64,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunOutcome {
    /// All steps are done.
    Done,
    /// Another process owns the pipeline, or is taking it over.
    NotOwner,
}

impl MaintenanceSpec {
    /// Opens the session of a run.
    pub(super) async fn connect(&self) -> Result<Control, RunError> {
        let name = format!("postrider {} maintenance", self.key.pipeline);
        let opened = tokio::time::timeout(CONNECT_MAX, Control::connect(&self.conninfo, &name));
        let opened = opened.await.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(CONNECT_MAX);
            Err(SourceError::new(kind, "open the session of maintenance").caused_by(elapsed))
        });
        opened.map_err(|error| {
            let hint = error_policy::hint(&error);
            RunError { error, hint }
        })
    }

    /// Does all that is due. `epoch` is that of the owner.
    pub(super) async fn run(
        &self,
        client: &Client,
        epoch: i64,
        report: &mut MaintenanceReport,
    ) -> Result<RunOutcome, RunError> {
        match self.steps(client, epoch, report).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                let hint = hint(client, &error).await;
                Err(RunError { error, hint })
            }
        }
    }

    async fn steps(
        &self,
        client: &Client,
        epoch: i64,
        report: &mut MaintenanceReport,
    ) -> Result<RunOutcome, SourceError> {
        maintenance::limit(client).await?;
        // A step that fails does not keep the other one from being done.
        let swept = self.sweep_bookmarks(client, epoch, report).await;
        let pruned = self.prune_parked(client, epoch, report).await?;
        swept.map(|()| pruned)
    }

    async fn prune_parked(
        &self,
        client: &Client,
        epoch: i64,
        report: &mut MaintenanceReport,
    ) -> Result<RunOutcome, SourceError> {
        loop {
            match parked::prune(client, &self.key, epoch, self.prune, KEPT).await? {
                Pruned::NotOwner => return Ok(RunOutcome::NotOwner),
                Pruned::Rows { deleted, more } => {
                    report.pruned(deleted);
                    if !more {
                        return Ok(RunOutcome::Done);
                    }
                }
            }
            tokio::time::sleep(BATCH_PAUSE).await;
        }
    }

    async fn sweep_bookmarks(
        &self,
        client: &Client,
        epoch: i64,
        report: &mut MaintenanceReport,
    ) -> Result<(), SourceError> {
        let (max, by) = (self.bookmarks_retain_max, SweepBy::Owner(epoch));
        let mut swept = Vec::new();
        let done = bookmark::sweep(client, &self.key, max, by, &mut swept).await;
        for bookmark in &swept {
            report.bookmark_dropped(bookmark, max);
        }
        done
    }
}

/// What fixes the problem. If a right is missing, the statements that grant it.
async fn hint(client: &Client, error: &SourceError) -> Option<String> {
    let general = error_policy::hint(error);
    if error.sqlstate() != Some(SqlState::INSUFFICIENT_PRIVILEGE) {
        return general;
    }
    // The rights are shown to people only: if they can't be read, the general hint remains.
    match maintenance::missing_rights(client).await {
        Ok(missing) if !missing.is_empty() => Some(missing.join(" ")),
        Ok(_) | Err(_) => general,
    }
}
