//! Parked events: their states, the lane that each blocks, the changes of their rows, and requests of operators.
//!
//! The relay decides about parked events, the store keeps their rows, and the command line shows and requests.

use crate::event::{Aggregate, Position};
use crate::record::OwnedRecord;
use crate::timestamp::Timestamp;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

/// The unit of order: all events of an aggregate, by a hash of the aggregate's type and id.
///
/// Two aggregates with the same hash share a lane. Then more events than necessary are parked, and the order is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lane(u64);

/// The longest aggregate, in bytes with its separator, that is hashed by one write.
const JOINED_MAX: usize = 96;

impl Lane {
    /// The lane of an aggregate, the same in every process.
    #[inline]
    pub fn of(aggregate: Aggregate<'_>) -> Self {
        let mut hasher = DefaultHasher::new();
        let (kind, id) = (aggregate.kind.as_bytes(), aggregate.id.as_bytes());
        // 0xff is not a byte of UTF-8, so ("ab", "c") and ("a", "bc") differ. One write of the whole takes fewer
        // instructions than three (`scripts/bench --budget`), and has the same hash.
        let mut joined = [0xff; JOINED_MAX];
        let len = kind.len() + 1 + id.len();
        if len <= JOINED_MAX {
            joined[..kind.len()].copy_from_slice(kind);
            joined[kind.len() + 1..len].copy_from_slice(id);
            hasher.write(&joined[..len]);
        } else {
            hasher.write(kind);
            hasher.write_u8(0xff);
            hasher.write(id);
        }
        Self(hasher.finish())
    }

    /// The hash as a number of SQL's type `bigint`.
    pub const fn number(self) -> i64 {
        self.0.cast_signed()
    }
}

macro_rules! states {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The state of a parked event.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum State { $($(#[$doc])* $variant,)* }

        impl State {
            /// Every state.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name, as in the table, in `status` and in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The state of that name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

states! {
    /// The event was refused, and is attempted again.
    Waiting = "waiting",
    /// The event was not refused: an earlier event of its aggregate is parked.
    Behind = "behind",
    /// The event was not refused: its time of publication (`available_at`) is in the future.
    Due = "due",
    /// The event was attempted as often as allowed: only an operator can change its state.
    Dead = "dead",
    /// The event is published.
    Done = "done",
    /// An operator skipped the event.
    Skipped = "skipped",
}

impl State {
    /// Whether the state is final. The row is kept so that the event is recognised if the stream repeats it.
    pub const fn resolved(self) -> bool {
        matches!(self, Self::Done | Self::Skipped)
    }
}

/// What the relay keeps in memory of a parked event. Only the table has the record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The event's position.
    pub position: Position,
    /// The lane that the event blocks; `None` if it blocks none: its aggregate is not known, or
    /// `on_poison = "skip_event"`.
    pub lane: Option<Lane>,
    /// The state.
    pub state: State,
    /// Number of refused attempts.
    pub attempts: u32,
    /// Time until the next attempt is allowed; zero means now.
    pub wait: Duration,
    /// A later event of the lane that was published before this event.
    pub overtaken_by: Option<Position>,
    /// The transaction that wrote the event's row, as the stream or the claim knows it: 32 bits, without an epoch.
    /// `None` if it is not known. The stream recognises by it an event that a claim has parked and an operator has
    /// skipped ([`WithdrawnEvent`](crate::outbox_rows::WithdrawnEvent)).
    pub xid: Option<u32>,
}

/// A change to the row of a parked event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParkedUpdate {
    /// The event's position.
    pub position: Position,
    /// The change.
    pub became: ParkedOutcome,
}

/// What happened to a parked event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkedOutcome {
    /// The event is published. The record is removed from the row.
    Done,
    /// The event is skipped, as the row's request asks. The record is removed from the row.
    Skipped,
    /// An attempt was refused.
    Refused {
        /// [`State::Waiting`], or [`State::Dead`] at the last attempt.
        state: State,
        /// Number of refused attempts.
        attempts: u32,
        /// Time until the next attempt; without meaning in state `dead`.
        wait: Duration,
        /// The reason of the refusal.
        reason: crate::record::Refusal,
    },
    /// An operator requested another attempt now: the state becomes `waiting`, and attempts are counted from 0. A value
    /// in the request replaces the record's value.
    Again,
    /// The row's request can't be carried out, and is removed.
    Declined,
    /// The dead event is published to the dead-letter topic.
    DeadSent,
    /// A later event of the lane was published before this event.
    Overtaken {
        /// The first such event.
        by: Position,
    },
}

/// A request of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Attempt the event now.
    Retry,
    /// Skip the event: its aggregate continues without it.
    Skip,
    /// Attempt the event now, with the value of the request instead of its own.
    Replace,
}

impl Request {
    /// The name, as in the table and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Replace => "replace",
        }
    }

    /// The request of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Retry, Self::Skip, Self::Replace].into_iter().find(|request| request.name() == name)
    }
}

/// A row of the parked table to be written.
#[derive(Clone, Debug)]
pub struct Parked {
    /// What the relay keeps in memory.
    pub entry: Entry,
    /// Time of the commit.
    pub commit_time: Timestamp,
    /// The event's id, if it has one.
    pub event_id: Option<String>,
    /// The event's type, if it has one.
    pub event_type: Option<String>,
    /// Type and id of the aggregate, if they are known.
    pub aggregate: Option<(String, String)>,
    /// The record to publish. For poison, its readable parts: the topic may be empty.
    pub record: OwnedRecord,
    /// A stable code of the reason, `too_large`; `None` if the event was not refused.
    pub error_code: Option<&'static str>,
    /// The reason in one line, without values of the row.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of an aggregate is the same whether it is short enough for one write or not.
    #[test]
    fn lanes_do_not_depend_on_how_they_are_hashed() {
        for (kind, id) in [(0, 0), (5, 36), (5, JOINED_MAX - 6), (5, JOINED_MAX - 5), (200, 7)] {
            let (kind, id) = ("k".repeat(kind), "i".repeat(id));
            let mut hasher = DefaultHasher::new();
            hasher.write(kind.as_bytes());
            hasher.write_u8(0xff);
            hasher.write(id.as_bytes());
            let lane = Lane::of(Aggregate { kind: &kind, id: &id });
            assert_eq!(lane, Lane(hasher.finish()), "{kind} {id}");
        }
        let lane = |kind, id| Lane::of(Aggregate { kind, id });
        assert_ne!(lane("ab", "c"), lane("a", "bc"));
    }
}
