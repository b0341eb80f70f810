//! The history that the events of a server belong to, while this process lives.
//!
//! The start check compares a server with its own cursor row. This module compares it with the server that was streamed
//! from before: after a failover, or behind a host name that now leads to another server, a remembered position may be
//! that of another transaction.

use crate::error::{Halt, HaltReason};
use crate::offset::{Offset, Watermark};
use crate::postgres::catalog::ServerFacts;
use crate::postgres::start::Identity;
use crate::postgres::store::cursor::Cursor;
use crate::postgres::{Conninfo, SourceError, TimelineSwitch, WalConnection};

/// What a server knows of its past.
#[derive(Clone, Debug)]
pub(super) struct ServerPast {
    /// Its end of WAL.
    pub(super) wal_end: Offset,
    /// The timelines before its own; empty if nothing is known of them.
    pub(super) switches: Vec<TimelineSwitch>,
}

/// How much of a server this process has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenPositions {
    /// Confirmed to the server, and so written to its cursor row before.
    pub(super) confirmed: Watermark,
    /// Received from the server.
    pub(super) received: Offset,
}

/// Cluster, timeline and slot of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServerHistory {
    /// Identifier of the database cluster.
    system_identifier: String,
    /// The timeline.
    timeline: u32,
    /// Identifies the slot; zero while the table is polled.
    slot_created_lsn: Offset,
}

impl ServerHistory {
    /// The history of the stream that starts with this row, which is bound to the server's own timeline.
    pub(super) fn of(cursor: &Cursor) -> Self {
        Self {
            system_identifier: cursor.system_identifier.clone(),
            timeline: cursor.timeline,
            slot_created_lsn: cursor.slot_created_lsn,
        }
    }

    /// The history of a server whose table is polled: there is no slot.
    pub(super) fn polled(server: &ServerFacts) -> Self {
        Self {
            system_identifier: server.system_identifier.clone(),
            timeline: server.timeline,
            slot_created_lsn: Offset::ZERO,
        }
    }

    /// Why nothing may be published from `next` after this history: it is another cluster, an older timeline, or a
    /// timeline that does not descend from this one.
    pub(super) fn refuses(&self, next: &Self, past: &ServerPast) -> Option<Halt> {
        let behind = || past.switches.iter().any(|switch| switch.timeline == self.timeline);
        let message = if self.system_identifier != next.system_identifier {
            format!(
                "the server is of cluster {} now, the one before was of cluster {}",
                next.system_identifier, self.system_identifier
            )
        } else if next.timeline < self.timeline {
            format!(
                "the server is on timeline {}, the one before was on timeline {}",
                next.timeline, self.timeline
            )
        } else if next.timeline > self.timeline && !past.switches.is_empty() && !behind() {
            format!(
                "the server is on timeline {}, which does not descend from timeline {}, the one of the previous server",
                next.timeline, self.timeline
            )
        } else {
            return None;
        };
        Some(other_history(message))
    }

    /// Why nothing may be streamed from `next` although it has the same timeline: the server has less WAL than this
    /// process has seen of it. Its next events would have positions that belong to other events here.
    ///
    /// A crash loses nothing that was streamed or confirmed, because both come after the flush: only a restored copy of
    /// the files does, or a crash of the machine with `fsync = off`.
    pub(super) fn rewound(
        &self,
        next: &Self,
        past: &ServerPast,
        seen: SeenPositions,
        start: Watermark,
    ) -> Option<Halt> {
        let same =
            self.system_identifier == next.system_identifier && self.timeline == next.timeline;
        let message = if same && start < seen.confirmed {
            format!(
                "the server's cursor row and slot are at {start}, and this process had confirmed {} to it",
                seen.confirmed
            )
        } else if same && past.wal_end < seen.received {
            format!(
                "the server's WAL ends at {}, and this process had read it up to {}",
                past.wal_end, seen.received
            )
        } else {
            return None;
        };
        Some(Halt {
            meaning: "the server was set back to an earlier state: consumers have events that it does not have any \
                      more, and what it commits next would be taken for a repetition; nothing of it was read"
                .into(),
            hint: "if source.url leads to a copy, correct it. If this server is the source now, start again: a start \
                   knows only the server's own cursor row, publishes all that is committed behind it, and begins a \
                   new history of positions, so that consumers take no event of it for a repetition"
                .into(),
            ..other_history(message)
        })
    }
}

/// The server's identity and timeline history, by the replication protocol.
///
/// # Errors
/// Errors of the connection and of the server.
pub async fn identity(conninfo: &Conninfo, name: &str) -> Result<Option<Identity>, SourceError> {
    let system = WalConnection::connect(conninfo, name).await?.identify_system().await?;
    Ok(Some(Identity::from(&system)))
}

fn other_history(message: String) -> Halt {
    Halt {
        reason: HaltReason::OtherHistory,
        message,
        meaning: "source.url leads to another server than before, or to the old primary after a failover: what it \
                  commits may be no part of the database"
            .into(),
        hint: "name the current primary in source.url, or all hosts with target_session_attrs=read-write; then start \
               again: a start compares the server with its own cursor row"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(system: &str, timeline: u32, slot: u64) -> ServerHistory {
        ServerHistory {
            system_identifier: system.into(),
            timeline,
            slot_created_lsn: Offset::new(slot),
        }
    }

    fn past(wal_end: u64, timelines: &[u32]) -> ServerPast {
        let switch = |timeline: &u32| TimelineSwitch {
            timeline: *timeline,
            at: crate::postgres::wire::to_wire(Offset::new(50)),
            reason: "no recovery target specified".to_owned(),
        };
        ServerPast {
            wal_end: Offset::new(wal_end),
            switches: timelines.iter().map(switch).collect(),
        }
    }

    #[test]
    fn other_cluster_and_older_timeline_are_refused_and_a_promotion_is_not() {
        let before = at("7", 2, 16);
        for (fine, timelines) in [
            (at("7", 2, 16), &[1][..]),
            (at("7", 3, 16), &[1, 2]),
            // The file of its timeline history is missing.
            (at("7", 3, 16), &[]),
            (at("7", 2, 99), &[1]),
        ] {
            assert_eq!(before.refuses(&fine, &past(99, timelines)), None);
        }
        for (other, timelines) in [
            (at("8", 2, 16), &[1][..]),
            (at("8", 3, 16), &[1, 2]),
            (at("7", 1, 16), &[]),
            // Restored from timeline 1 although timeline 2 was used.
            (at("7", 3, 16), &[1]),
        ] {
            let halt = before.refuses(&other, &past(99, timelines)).expect("a halt");
            assert_eq!(halt.reason, HaltReason::OtherHistory);
        }
    }

    #[test]
    fn server_set_back_on_its_timeline_is_refused() {
        let before = at("7", 2, 16);
        let mark = |lsn| Watermark::resumed(Offset::new(lsn));
        let seen = SeenPositions { confirmed: mark(60), received: Offset::new(80) };
        for (next, wal_end, start, refused) in [
            (at("7", 2, 16), 80, 60, false),
            (at("7", 2, 16), 90, 70, false),
            (at("7", 2, 16), 90, 59, true),
            (at("7", 2, 16), 79, 60, true),
            (at("7", 2, 99), 79, 60, true),
            // After a promotion less WAL is expected.
            (at("7", 3, 16), 79, 59, false),
        ] {
            let halt = before.rewound(&next, &past(wal_end, &[1]), seen, mark(start));
            assert_eq!(halt.is_some(), refused, "{next:?} {wal_end} {start}");
        }
    }
}
