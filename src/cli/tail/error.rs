//! Why `postrider tail` can show nothing.

use crate::error::Halt;
use crate::outbox::{MapError, SpecError};
use crate::postgres::{SourceError, SqlState};
use crate::source::Unreadable;

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TailError {
    #[error("slot \"{0}\" does not exist: there is no WAL that could be read for this pipeline")]
    NoSlot(String),
    #[error("slot \"{0}\" was invalidated: its WAL can't be read")]
    Lost(String),
    #[error("--follow needs a stream, and mode \"poll\" has none")]
    FollowsTable,
    #[error("the outbox of the configuration can't be used: {}", listed(.0))]
    Outbox(Vec<SpecError>),
    #[error("the logical messages can't be read: {}", .0.message)]
    Messages(Box<Halt>),
    #[error("what the server has sent can't be read")]
    Unreadable(#[source] Unreadable),
    #[error("the table does not fit its layout")]
    Unfit(#[source] MapError),
    #[error("the slot can't be read")]
    Slot(#[source] SourceError),
}

fn listed(errors: &[SpecError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl TailError {
    /// What to do about it.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::NoSlot(_) => "create it: postrider setup; if it was lost: postrider repair",
            Self::Lost(_) => {
                "postrider check shows why; postrider repair publishes what was missed"
            }
            Self::FollowsTable => "leave out --follow, and run the command again for newer rows",
            Self::Slot(error)
                if error.sqlstate() == Some(SqlState::CONFIGURATION_LIMIT_EXCEEDED) =>
            {
                "raise max_replication_slots, or pause the pipeline (postrider pause): then its own slot is read"
            }
            Self::Slot(error) if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) => {
                "a process has just begun to stream: run the command again"
            }
            Self::Slot(error) if error.sqlstate() == Some(SqlState::QUERY_CANCELED) => {
                "it took longer than 30 s: end the transactions that have been open for long (pg_stat_activity)"
            }
            Self::Outbox(_)
            | Self::Messages(_)
            | Self::Unreadable(_)
            | Self::Unfit(_)
            | Self::Slot(_) => "postrider check shows what fixes it",
        }
    }
}
