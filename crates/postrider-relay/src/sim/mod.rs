//! The simulator: the relay in a world of fake servers, where what can go wrong for it does.
//!
//! One seed makes a [`Plan`](plan::Plan): transactions, faults, and how often the world misbehaves; each seed draws its
//! own weights. A run drives [`Relay::apply`](crate::relay::Relay::apply) through a fake PostgreSQL ([`postgres`]), a
//! fake broker ([`broker`]) and a fake driver ([`process`], [`shelf`], [`feed`], [`session`]) that does what `driver`
//! does, in the same order. Time is virtual. What holds at every step and at the end is checked against what really
//! happened ([`truth`]), never against what the relay believes.
//!
//! What the fakes do is what real servers do: the integration tests `model` run the same scripts on both.
//!
//! Not in it: dead letters, which nothing waits for; a person who deletes a dead row is heard of at the next connection
//! only; a failover, which is another history; repair and replay, which are not the relay's; polling, and two processes
//! of which one polls, which have a world of their own ([`owners`]); a partition that does not know the producer, and
//! takes a later request where it refused an earlier (`docs/guarantees.md`, order).
//!
//! After the last fault everything is mended ([`heal`]): then all that was committed must be delivered, parked for a
//! person, or given up by one, and what is committed next must flow. A plan that fails is cut down ([`shrink`]).

mod broker;
mod faults;
mod feed;
mod heal;
mod owners;
mod plan;
mod postgres;
mod process;
mod rng;
mod session;
mod shelf;
mod shrink;
mod tests;
mod told;
mod truth;
mod walsender;
mod world;

use crate::relay::{Limits, OnPoison, ParkingRules, Settings};

/// Why something does not go on.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stop {
    /// The process died, as planned.
    Died,
    /// What may not happen has happened.
    Wrong(String),
}

type Check<T = ()> = Result<T, Stop>;

fn wrong<T>(message: String) -> Check<T> {
    Err(Stop::Wrong(message))
}

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Run {
    /// What went wrong.
    failure: Option<String>,
    /// Inputs applied to relays.
    inputs: u64,
    faults: u64,
    /// Records written, and how many of them were repetitions.
    written: u64,
    repeated: u64,
    /// What happened, a line each, where it was asked for.
    transcript: String,
}
