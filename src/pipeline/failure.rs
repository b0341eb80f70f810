//! Why an attempt to connect failed, how a session ended, and when polling helps.

use super::stop::PipelineExit;
use crate::error::{Halt, HaltReason};
use crate::offset::Offset;
use crate::postgres::SourceError;
use crate::postgres::error_policy::Phase;
use crate::postgres::store::pause::Pause;

/// Why an attempt failed.
pub(super) enum Failure {
    /// A connection failed; `postgres::error_policy` decides what to do.
    Source(SourceError, Phase),
    /// Another process has the slot. `progress`, if known: the server's end of WAL, and what that process has
    /// confirmed.
    StandBy { active_pid: u32, progress: Option<(Offset, Offset)> },
    /// The stream can't start yet.
    Wait { message: String },
    /// The sink was reset. The database is not the cause.
    Reset,
    /// A repair or a backfill was begun, and must be finished first.
    Unrepaired,
    /// The table must be polled to its end first: the slot was created while it was polled.
    Unpolled,
    /// The table was polled until now, and the position of the slot is meaningless: first the table is polled, then a
    /// new slot is created.
    HandOver,
    /// There is nothing to repair.
    NothingToRepair,
    /// An operator has paused the pipeline. The request, if the pipeline did not drain for it.
    Paused(Option<Box<Pause>>),
    /// An operator must act.
    Halt(Box<Halt>),
}

/// How a session ended.
pub(super) enum End {
    /// The pipeline has ended.
    Over(PipelineExit),
    /// An operator has paused the pipeline, and it has drained.
    Paused,
    /// The sink was reset: connect again.
    Restart,
    /// The connection is lost or unusable.
    Lost(SourceError, Phase),
    /// The slot retains more WAL than it may: it is dropped, and the table is polled.
    DropSlot(Box<Halt>),
}

/// Whether the table can be polled although the stream can't be used.
pub(super) const fn polling_helps(reason: HaltReason) -> bool {
    matches!(
        reason,
        HaltReason::SlotLost
            | HaltReason::SlotMissing
            | HaltReason::WalBudget
            | HaltReason::SlotUnusable
            | HaltReason::ServerUnfit
            | HaltReason::AccessDenied
    )
}
