//! The description of a polled table: names, the columns of the rows' status, and the policy for attempts. Plain data.

use crate::names::TableName;
use postrider_core::row_state::{Done, NamedRowState, Pause, RowState};
use postrider_core::store::PipelineKey;
use postrider_core::zone::Zone;
use std::time::Duration;

/// How one outbox table is polled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PollSpec {
    /// The pipeline and its shard: one relay at a time polls for it.
    pub key: PipelineKey,
    /// The outbox.
    pub table: TableName,
    /// The event's id: the table's key.
    pub id: String,
    /// The aggregate's type.
    pub aggregate_type: String,
    /// The aggregate's id.
    pub aggregate_id: String,
    /// When the event happened: the order, if the id is not a number.
    pub time: Option<String>,
    /// Records get this time as their timestamp, if a broker accepts it.
    pub stamps: bool,
    /// The states of a row, and their columns.
    pub row_state: NamedRowState,
    /// A published row is deleted, whatever the layout would write (`poll.mark = "delete"`).
    pub delete: bool,
    /// A failed row holds back the later ones of its aggregate (`parking.on_poison = "block_key"`).
    pub block_key: bool,
    /// Failures after which there is no further attempt, if the table does not say so itself.
    pub attempts_max: u32,
    /// The pause after a failure.
    pub backoff: Backoff,
    /// The zone of columns without one.
    pub zone: Option<Zone>,
}

/// The pause after the n-th failure: `min(n, steps_max)` steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// One step.
    pub step: Duration,
    /// The most steps.
    pub steps_max: u32,
}

impl Backoff {
    /// As layout `commerce` writes it: `least(attempts + 1, 8) * interval '30 seconds'`.
    pub const DEFAULT: Self = Self { step: Duration::from_secs(30), steps_max: 8 };

    /// The pause after `failures`.
    pub fn after(self, failures: u32) -> Duration {
        self.step.saturating_mul(failures.min(self.steps_max))
    }
}

impl PollSpec {
    /// Whether a failure is recorded in the row itself. Otherwise the event has to be parked, and its row settled as
    /// moved.
    pub fn keeps_failures(&self) -> bool {
        self.row_state.state.failed.is_some()
    }

    /// Whether a published row is deleted.
    pub fn deletes_published(&self) -> bool {
        self.delete || self.row_state.state.done == Done::Delete
    }

    /// Whether rows are deleted, for whatever reason.
    pub fn deletes(&self) -> bool {
        self.deletes_published() || self.dlq().is_some()
    }

    /// Whether a table that records failures has no column for the pause after one.
    pub(super) fn pauses_in_memory(&self) -> bool {
        self.row_state.state.failed.as_ref().is_some_and(|failed| failed.pause == Pause::InMemory)
    }

    /// Whether claims find expired rows and set their status.
    pub fn expires(&self) -> bool {
        self.row_state.state.expired.is_some()
    }

    /// The table to which rows are moved that have failed for good. It may not exist.
    pub fn dlq(&self) -> Option<TableName> {
        let suffix = self.row_state.state.failed.as_ref()?.dead_letters?;
        let TableName { schema, name } = &self.table;
        Some(TableName::new(schema.clone(), format!("{name}{suffix}")))
    }

    /// Every row counts as unpublished: the columns of the layout's states are neither read nor written.
    #[must_use]
    pub fn without_status(self) -> Self {
        Self { row_state: NamedRowState::new(&RowState::DELETE), delete: false, ..self }
    }

    /// The columns that a status `UPDATE` writes.
    pub(crate) fn written(&self) -> Vec<&str> {
        self.row_state.written(self.delete)
    }

    /// Every column that SQL names.
    pub(crate) fn columns(&self) -> Vec<&str> {
        let mut columns = vec![&*self.id, &*self.aggregate_type, &*self.aggregate_id];
        columns.extend(self.time.as_deref());
        columns.extend(self.row_state.columns());
        columns
    }
}
