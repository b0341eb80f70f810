//! Everything goes wrong at once, on a schedule that a seed makes, with a ledger at the end: `scripts/chaos`.
//!
//! Real servers of the run's own: a durable PostgreSQL, a Kafka of three brokers, two relays, and a proxy on every
//! connection of theirs. Shares the helpers of `tests/it`, and none of the relay's code.
#![expect(dead_code, unused_imports, reason = "the helpers of tests/it serve more than this")]
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test helper that fails stops its test with the reason"
)]

/// What `tests/it` shares.
#[path = "../it"]
mod it {
    pub(crate) mod await_that;
    pub(crate) mod private;
    pub(crate) mod relay;
    pub(crate) mod server;
    pub(crate) mod topic;
}
use it::{await_that, private, relay, server, topic};

/// Three brokers, each with a listener per relay that leads through a proxy.
mod cluster;
/// A tablespace that can be full.
mod disk;
/// What arrived, against what was committed.
mod ledger;
/// What is done to whom.
mod nemesis;
/// The schedule that a seed makes.
mod plan;
/// TCP proxies: cut, delay, halve, black-hole, and watch.
mod proxy;
/// An independent consumer, that reads along and at the end.
mod reader;
/// The two relays.
mod relays;
/// The page and the picture.
mod report;
/// The run.
mod run;
/// What the database committed, by a slot of our own.
mod truth;
/// Status updates judged.
mod watch;
/// The watched wire, alone.
mod wire;
/// What runs, together.
mod world;
/// Who writes events, and keeps the ledger.
mod writer;
