//! The simulator: processes of a pipeline among fake servers, with injected faults and virtual time.
//!
//! A seed determines a [`Plan`](plan::Plan): transactions, faults and probabilities. A run drives
//! [`Engine`](crate::engine::Engine) and [`Claims`](crate::claims::Claims) through a fake PostgreSQL ([`postgres`] for
//! the WAL and the tables of the pipeline, [`outbox`] for the outbox table, [`ownership`] for the lock, the hand-over
//! and the list of a repair), a fake broker ([`broker`], [`transactional_sink`]) and fake processes ([`process`]) that
//! do what `pipeline` does, in the same order: [`streaming`] is the loop of a stream, [`polling`] that of polling and
//! of a repair. Every step and the end are checked against what really happened ([`truth`]), not against the state of
//! the engine. After the last fault every committed event must be published, parked, skipped or expired, and the next
//! one published. A failing plan is reduced by [`shrink`]. The integration tests `model` run the same scripts on the
//! fakes and on the real servers.
//!
//! A plan is of the stream alone (`Plan::new`), or has an outbox table and a mode (`Plan::with_table`). With a table,
//! slots are dropped and lost, and the pipeline repairs, polls, or polls and returns to the stream. In a share of the
//! plans the sink publishes in transactions, so that each event must be visible exactly once. Such a sink is not
//! simulated with polling and repair, which the engine refuses
//! ([`PollingRefused`](crate::relay::PollingRefused)).

// Not simulated: dead letters, for which nothing waits; tables of dead letters; the deletion of a dead row, except at
// the next connection; a failover, which is another history; a replay, which does not use the engine; ids that are not
// numbers, whose order the table does not record; payloads that are too large to be read; the wait for the records of a
// former owner, which is assumed to be long enough (`owners` has it); and a partition that does not know the producer
// and accepts a later request after it refused an earlier one (`docs/guarantees/order.md`).

mod broker;
mod ground;
mod outbox;
mod owners;
mod ownership;
mod plan;
mod polling;
mod postgres;
mod process;
mod requeued;
mod rng;
mod shrink;
mod stage;
mod store;
mod streaming;
mod tests;
mod transactional_sink;
mod truth;
mod walsender;
mod world;

use crate::relay::{HaltWords, Limits, OnPoison, ParkingRules, Recovered, Settings};
use postrider_core::sink::TransactionLimits;

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
