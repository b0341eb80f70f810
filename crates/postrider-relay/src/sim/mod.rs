//! The simulator: the relay among fake servers, with injected faults and virtual time.
//!
//! A seed determines a [`Plan`](plan::Plan): transactions, faults and probabilities. A run drives
//! [`Relay::apply`](crate::relay::Relay::apply) through a fake PostgreSQL ([`postgres`]), a fake broker ([`broker`])
//! and fake processes ([`world`], [`process`]) that do what `pipeline` does, in the same order. Every step and the end
//! are checked against what really happened ([`truth`]), not against the state of the relay. After the last fault every
//! committed event must be published, parked or skipped, and the next one published. A failing plan is reduced by
//! [`shrink`]. The integration tests `model` run the same scripts on the fakes and on the real servers.

// Not simulated: dead letters, for which nothing waits; the deletion of a dead row, except at the next connection; a
// failover, which is another history; repair and replay, which do not use the relay; polling, and two processes of
// which one polls, which have a search of their own ([`owners`]); and a partition that does not know the producer and
// accepts a later request after it refused an earlier one (`docs/guarantees.md`, order).

mod broker;
mod owners;
mod plan;
mod postgres;
mod process;
mod rng;
mod shrink;
mod tests;
mod truth;
mod walsender;
mod world;

use crate::relay::{HaltWords, Limits, OnPoison, ParkingRules, Settings};

/// Why a turn or a run stops.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stop {
    /// The process dies, as planned.
    Died,
    /// An invariant is violated.
    Wrong(String),
}

type Check<T = ()> = Result<T, Stop>;

fn wrong<T>(message: String) -> Check<T> {
    Err(Stop::Wrong(message))
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Run {
    /// The violated invariant.
    failure: Option<String>,
    /// Number of inputs applied to relays.
    inputs: u64,
    faults: u64,
    /// Number of records written, and of repeated ones among them.
    written: u64,
    repeated: u64,
    /// One line for each input, effect and fault, if requested.
    transcript: String,
}
