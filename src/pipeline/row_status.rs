//! The published status of outbox rows, as statements: `postrider_relay::published` decides which rows get their status
//! and which cursor row waits for them.

use super::spec::PipelineSpec;
use crate::error::HaltReason;
use crate::event::Position;
use crate::postgres::error_policy::{self, Action, Phase};
use crate::postgres::lock_holders::Holder;
use crate::postgres::poll::row_status::{PublishedRow, StatusWriter};
use crate::postgres::{SourceError, TableName};
use crate::published::{RowStatusBatch, RowStatusMade};
use std::sync::Arc;
use tokio_postgres::Client;

/// Statuses to be written before a cursor row, and the prepared statements.
pub(super) struct RowStatusJob {
    /// The prepared statements.
    pub(super) writer: StatusWriter,
    /// The rows.
    pub(super) batch: RowStatusBatch,
    /// The pipeline.
    pub(super) spec: Arc<PipelineSpec>,
}

/// The result of a batch.
pub(super) struct RowStatusOutcome {
    /// What the core needs of it.
    pub(super) made: RowStatusMade,
    /// Sessions that hold locks on the rows that wait.
    pub(super) holders: Vec<Holder>,
    /// Why no row got its status, and what to do about it.
    pub(super) failed: Option<(SourceError, String)>,
    /// The table of the rows.
    pub(super) table: TableName,
}

/// Rows that wait for their status, for the log.
pub(super) struct WaitingRows {
    /// Their table.
    pub(super) table: TableName,
    /// How many rows wait.
    pub(super) rows: usize,
    /// Sessions that hold locks on them.
    pub(super) holders: Vec<Holder>,
}

impl RowStatusJob {
    /// Writes the statuses.
    ///
    /// # Errors
    /// Errors that end the connection, or have to halt the pipeline. Errors of the statuses alone are in
    /// [`RowStatusOutcome::failed`].
    pub(super) async fn make(&self, client: &Client) -> Result<RowStatusOutcome, SourceError> {
        let Self { writer, batch, spec } = self;
        let table = writer.table().clone();
        let left = match writer.mark(client, &batch.rows, &batch.waiting).await {
            Ok(left) => left,
            Err(error) => {
                let refused = match error_policy::action(&error, Phase::Control, true) {
                    Action::Later(_) => false,
                    // A pipeline that only streams does not depend on the statuses.
                    Action::Halt(_) if !batch.required => true,
                    Action::Halt(_)
                    | Action::Reconnect(_)
                    | Action::StandBy
                    | Action::Recheck(_) => return Err(error),
                };
                let left = (0..batch.rows.len()).collect();
                let made = RowStatusMade { left, locked: false, failed: true, refused };
                let hint = error_policy::explain(HaltReason::TableUnfit, &error, &spec.names).hint;
                let failed = Some((error, hint));
                return Ok(RowStatusOutcome { made, holders: Vec::new(), failed, table });
            }
        };
        let holders = if batch.finds_holders && !left.is_empty() {
            let rows: Vec<PublishedRow> =
                left.iter().filter_map(|place| batch.rows.get(*place).cloned()).collect();
            // The holders are shown to people only: their query must not fail the statuses.
            writer.holders(client, &rows).await.unwrap_or_default()
        } else {
            Vec::new()
        };
        let locked = !holders.is_empty();
        let made = RowStatusMade { left, locked, failed: false, refused: false };
        Ok(RowStatusOutcome { made, holders, failed: None, table })
    }

    /// Whether the cursor row at `row` has to wait because it would pass an event whose row has no status.
    pub(super) fn holds_back(&self, outcome: &RowStatusOutcome, row: Position) -> bool {
        self.batch.holds_back(&outcome.made, row)
    }
}
