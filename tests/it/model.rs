//! The simulator's fakes against the servers they stand for: the same scripts on both, and their transcripts agree.
//!
//! What the simulator proves is as true as its fakes (`postgres.rs`, `walsender.rs` and `broker.rs` in
//! `crates/postrider-relay/src/sim`). They are compiled in here from their own files. A script ([`script`]) is run by
//! [`fake`] and by [`real`], on each version of PostgreSQL; both write what they saw in the same words ([`notes`]),
//! with positions by name. Where the fake draws, it is run for every draw, and the real transcript has to be one of
//! those that came of it.

// What is compared: the simulator's own source.
#[path = "../../crates/postrider-relay/src/sim/broker.rs"]
mod broker;
#[path = "../../crates/postrider-relay/src/sim/plan.rs"]
mod plan;
#[path = "../../crates/postrider-relay/src/sim/postgres.rs"]
mod postgres;
#[path = "../../crates/postrider-relay/src/sim/rng.rs"]
mod rng;
#[path = "../../crates/postrider-relay/src/sim/truth.rs"]
mod truth;
#[path = "../../crates/postrider-relay/src/sim/walsender.rs"]
mod walsender;

mod fake;
mod notes;
mod real;
mod script;

// The tests.
mod fence;
mod kafka;
mod marks;
mod stream;
mod transactions;

use crate::server::Version;
use postrider::relay::{HaltWords, Limits, OnPoison, ParkingRules, Recovered, Settings};
use postrider_core::sink::TransactionLimits;
use real::Real;
use script::Step;
use std::collections::BTreeSet;

/// As in `sim`: why something does not go on.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stop {
    Wrong(String),
}

type Check<T = ()> = Result<T, Stop>;

fn wrong<T>(message: String) -> Check<T> {
    Err(Stop::Wrong(message))
}

/// Runs a script on the fake, for every draw, and on each version of the real server, whose transcripts are returned:
/// each is one of the fake's.
async fn agree(script: &[Step]) -> Vec<Vec<String>> {
    let allowed = fake::transcripts(script);
    let run = async |version| {
        let seen = Real::run(version, script).await;
        let closest = allowed.iter().next().expect("a transcript");
        assert!(
            allowed.contains(&seen),
            "PostgreSQL {} does what the fake does not.\nreal: {seen:#?}\nfake, one of {}: {closest:#?}",
            version.major(),
            allowed.len()
        );
        seen
    };
    let [pg15, pg16, pg17, pg18] = Version::ALL.map(|version| Box::pin(run(version)));
    <[Vec<String>; 4]>::from(tokio::join!(pg15, pg16, pg17, pg18)).into()
}

/// As [`agree`], of a script that leaves the fake no choice.
async fn agree_on(script: &[Step], expected: &[&str]) {
    let allowed = fake::transcripts(script);
    let expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
    assert_eq!(allowed, BTreeSet::from([expected]), "the fake");
    agree(script).await;
}
