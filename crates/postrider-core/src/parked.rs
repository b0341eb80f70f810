//! Words of parking: an event that was set aside, the lane it blocks, and what may become of it.
//!
//! `relay` decides, `postgres::parked` remembers, `cli` asks; this is what they say to each other. Nothing here waits.

use crate::event::{Aggregate, PgTime, Position};
use crate::record::OwnedRecord;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

/// What is ordered: all events of one aggregate, by a hash of its type and id.
///
/// Two aggregates with one hash share a lane, which parks more than it must and loses no order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lane(u64);

impl Lane {
    /// The lane of an aggregate, the same in every process.
    #[inline]
    pub fn of(aggregate: Aggregate<'_>) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(aggregate.kind.as_bytes());
        // Not a byte of UTF-8: ("ab", "c") is not ("a", "bc").
        hasher.write_u8(0xff);
        hasher.write(aggregate.id.as_bytes());
        Self(hasher.finish())
    }
}

macro_rules! states {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Where a parked event stands.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum State { $($(#[$doc])* $variant,)* }

        impl State {
            /// Every state.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in the table, in `status` and in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The state of a name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

states! {
    /// It was refused, and is tried again.
    Waiting = "waiting",
    /// Nothing is wrong with it: an earlier event of its aggregate is parked.
    Behind = "behind",
    /// Nothing is wrong with it: its time has not come (`available_at`).
    Due = "due",
    /// Tried as often as allowed: only a person moves it.
    Dead = "dead",
    /// Published.
    Done = "done",
    /// Given up by a person.
    Skipped = "skipped",
}

impl State {
    /// Whether nothing more will become of it: kept so that a repeated event is known.
    pub const fn resolved(self) -> bool {
        matches!(self, Self::Done | Self::Skipped)
    }
}

/// What the relay remembers of a parked event. The record is in the table alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its identity and place in the order.
    pub position: Position,
    /// The lane it blocks; `None` where it blocks nothing: no aggregate is known, or `on_poison = "skip_event"`.
    pub lane: Option<Lane>,
    /// Where it stands.
    pub state: State,
    /// Tries that were refused.
    pub attempts: u32,
    /// From now until it may be tried (again); zero for at once.
    pub wait: Duration,
    /// A later event of its lane that was published before it.
    pub overtaken_by: Option<Position>,
}

/// A change to the row of a parked event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParkedUpdate {
    /// Which.
    pub position: Position,
    /// What became of it.
    pub became: ParkedOutcome,
}

/// What became of a parked event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParkedOutcome {
    /// Published: the broker has it. Its record leaves the row.
    Done,
    /// Given up, as the request in the row asks. Its record leaves the row.
    Skipped,
    /// Tried and refused.
    Refused {
        /// [`State::Waiting`], or [`State::Dead`] at the last attempt.
        state: State,
        /// Tries that were refused.
        attempts: u32,
        /// Until the next; meaningless when dead.
        wait: Duration,
        /// Why.
        reason: crate::record::Refusal,
    },
    /// A person asked for another try now: state `waiting`, attempts from 0. With a value in the request, that value
    /// takes the payload's place.
    Again,
    /// The request in the row can't be carried out: it is taken off.
    Declined,
    /// Dead, and published to the dead-letter topic.
    DeadSent,
    /// A later event of its lane was published before it.
    Overtaken {
        /// The first that was.
        by: Position,
    },
}

/// What a person asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Try it now.
    Retry,
    /// Give it up: the aggregate goes on without it.
    Skip,
    /// Try it now, with the value in the request instead of its own.
    Replace,
}

impl Request {
    /// Its name in the table and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "skip",
            Self::Replace => "replace",
        }
    }

    /// The request of a name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Retry, Self::Skip, Self::Replace].into_iter().find(|request| request.name() == name)
    }
}

/// A row of the parked table to be written: what the relay remembers, and what only the table keeps.
#[derive(Clone, Debug)]
pub struct Parked {
    /// What the relay remembers.
    pub entry: Entry,
    /// When its transaction was committed.
    pub commit_time: PgTime,
    /// The event's id, where it has one.
    pub event_id: Option<String>,
    /// Its type, where it has one.
    pub event_type: Option<String>,
    /// Type and id of its aggregate, where they are known.
    pub aggregate: Option<(String, String)>,
    /// What would be published; of a poison event, what could be made of it: an empty topic where none could.
    pub record: OwnedRecord,
    /// A stable word for why, `too_large`; `None` where nothing is wrong with it.
    pub error_code: Option<&'static str>,
    /// Why, in one line, without values of the row.
    pub error: Option<String>,
}
