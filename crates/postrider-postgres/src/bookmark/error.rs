//! Why something about a bookmark was not done, and the line that mends it.

use pg_replication::error::SourceError;

/// Why a bookmark was not made, found or dropped. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BookmarkError {
    /// Not a name.
    #[error("\"{name}\" can't be the name of a bookmark")]
    Name {
        /// What was given.
        name: String,
    },
    /// There is one of this name.
    #[error("bookmark \"{name}\" is there already, made at {created_at}")]
    Exists {
        /// The name.
        name: String,
        /// When it was made, UTC.
        created_at: String,
    },
    /// There is none of this name.
    #[error("pipeline \"{pipeline}\" has no bookmark \"{name}\"{}", others(known))]
    Unknown {
        /// The pipeline.
        pipeline: String,
        /// The name.
        name: String,
        /// Those it has.
        known: Vec<String>,
    },
    /// The pipeline's slot is not there: there is no position to save.
    #[error(
        "slot \"{slot}\" of pipeline \"{pipeline}\" does not exist, so there is nothing to bookmark"
    )]
    NoSlot {
        /// The pipeline.
        pipeline: String,
        /// Its slot.
        slot: String,
    },
    /// The pipeline's slot has lost WAL.
    #[error(
        "slot \"{slot}\" of pipeline \"{pipeline}\" can't be used any more, so there is nothing to bookmark"
    )]
    SlotLost {
        /// The pipeline.
        pipeline: String,
        /// Its slot.
        slot: String,
    },
    /// All slots of the server are in use.
    #[error("the server has no free slot for bookmark \"{name}\"")]
    NoFreeSlot {
        /// The bookmark.
        name: String,
        #[source]
        /// What the server said.
        source: SourceError,
    },
    /// Somebody reads from it.
    #[error("bookmark \"{name}\" is in use by the server's process {pid}")]
    InUse {
        /// The bookmark.
        name: String,
        /// The walsender.
        pid: u32,
    },
    /// Slots are made and dropped on a primary.
    #[error("the server is a standby: bookmarks are made on the primary")]
    Standby,
    /// What the server said.
    #[error(transparent)]
    Source(#[from] SourceError),
}

fn others(known: &[String]) -> String {
    if known.is_empty() {
        "; it has none".to_owned()
    } else {
        format!("; it has {}", known.join(", "))
    }
}

impl BookmarkError {
    /// What mends it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Name { .. } => Some("use 1 to 63 of A-Z a-z 0-9 . _ -".to_owned()),
            Self::Exists { name, .. } => Some(format!(
                "choose another name, or drop the old one: postrider bookmark drop {name}"
            )),
            Self::Unknown { .. } => Some("see what there is: postrider bookmark list".to_owned()),
            Self::NoSlot { .. } => Some(
                "a bookmark is a copy of the pipeline's slot: postrider setup makes it (a pipeline that only polls \
                 has none)"
                    .to_owned(),
            ),
            Self::SlotLost { .. } => {
                Some("fix the pipeline first: postrider check says how".to_owned())
            }
            Self::NoFreeSlot { .. } => Some(
                "drop another bookmark (postrider bookmark list), or raise max_replication_slots and restart \
                 PostgreSQL"
                    .to_owned(),
            ),
            Self::InUse { .. } => {
                Some("a replay reads from it: wait until it has ended, or end it".to_owned())
            }
            Self::Standby => {
                Some("point source.url at the primary (target_session_attrs=read-write)".to_owned())
            }
            Self::Source(_) => None,
        }
    }
}
