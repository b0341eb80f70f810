//! Which history the positions of a stream belong to, as long as this process lives.
//!
//! The fence compares a server with its own cursor row. This compares it with the server we streamed from before: after
//! a failover, or behind a name that now leads elsewhere, a position we remember can stand for another transaction.

use crate::error::{Halt, HaltReason};
use crate::lsn::Lsn;
use crate::postgres::cursor::Cursor;

/// Cluster, timeline and slot of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct History {
    system_identifier: String,
    timeline: u32,
    slot_created_lsn: Lsn,
}

impl History {
    /// Of the stream that starts with this row, which is bound to the server's own timeline.
    pub(super) fn of(cursor: &Cursor) -> Self {
        Self {
            system_identifier: cursor.system_identifier.clone(),
            timeline: cursor.timeline,
            slot_created_lsn: cursor.slot_created_lsn,
        }
    }

    /// Why nothing may be streamed from `next` after this: it is another cluster, or an older timeline.
    pub(super) fn refuses(&self, next: &Self) -> Option<Halt> {
        let message = if self.system_identifier != next.system_identifier {
            format!(
                "the server is of cluster {} now, the stream before was of cluster {}",
                next.system_identifier, self.system_identifier
            )
        } else if next.timeline < self.timeline {
            format!(
                "the server is on timeline {}, the stream before was on timeline {}",
                next.timeline, self.timeline
            )
        } else {
            return None;
        };
        Some(Halt {
            reason: HaltReason::OtherHistory,
            message,
            meaning: "source.url leads to another server than before, or to the old primary after a failover: what it \
                      commits may be no part of the database"
                .into(),
            hint: "name the current primary in source.url, or all hosts with target_session_attrs=read-write; then \
                   start again: a start compares the server with its own cursor row"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_cluster_and_older_timeline_are_refused_and_a_promotion_is_not() {
        let at = |system: &str, timeline, slot| History {
            system_identifier: system.into(),
            timeline,
            slot_created_lsn: Lsn::from_wire(slot),
        };
        let before = at("7", 2, 16);
        for fine in [at("7", 2, 16), at("7", 3, 16), at("7", 2, 99)] {
            assert_eq!(before.refuses(&fine), None);
        }
        for other in [at("8", 2, 16), at("8", 3, 16), at("7", 1, 16)] {
            let halt = before.refuses(&other).expect("a halt");
            assert_eq!(halt.reason, HaltReason::OtherHistory);
        }
    }
}
