//! A chaos test: faults on a schedule that a seed determines, and a comparison of ledgers at the end (`scripts/chaos`).
//!
//! Real servers for each run: a durable PostgreSQL, a Kafka cluster of three brokers, two relays, and a proxy on every
//! connection of the relays. Shares the helpers of `tests/it`, and no code of the relay.
#![expect(dead_code, unused_imports, reason = "the helpers of tests/it serve more than this")]
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::wildcard_enum_match_arm,
    reason = "a test helper that fails stops its test with the reason"
)]

/// Helpers of `tests/it`.
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
/// Compares what arrived with what was committed.
mod ledger;
/// The faults.
mod nemesis;
/// The schedule that a seed determines.
mod plan;
/// TCP proxies: disconnect, delay, throttle, drop all traffic, and record status updates.
mod proxy;
/// An independent consumer, which reads during the run and at its end.
mod reader;
/// The two relays.
mod relays;
/// The report: a page and a picture.
mod report;
/// The run.
mod run;
/// What the database committed, by a slot of the test's own.
mod truth;
/// Checks status updates.
mod watch;
/// The test of status updates alone.
mod wire;
/// Everything that runs in a test.
mod world;
/// Writers of events, and their ledger.
mod writer;
