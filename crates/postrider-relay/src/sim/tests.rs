//! Seeds that must pass, and injected bugs of the relay that must be detected.

use super::Run;
use super::plan::Plan;
use super::shrink::shrink;
use super::world::run;
use crate::ack::bug::{Bug, inject};
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Number of seeds in every run of the tests.
const SEEDS: u64 = 600;

/// Number of seeds within which each injected bug must be detected.
const BUG_SEEDS: u64 = 2_000;

/// Duration of the long run, unless the environment sets another.
const LONG_RUN: Duration = Duration::from_secs(30);

/// The bugs that must be detected from seed 0.
const BUGS: &[Bug] = &[
    Bug::ConfirmsOneEarly,
    Bug::UnknownIsAcked,
    Bug::TimeOutIsAcked,
    Bug::KeepaliveConfirms,
    Bug::PartialCountsSent,
    Bug::ParkedBeforeCommit,
    Bug::AttemptsOutOfOrder,
    Bug::ResendsOnlyFailed,
    Bug::ConfirmsBeforeRow,
    Bug::BlamesWholeBatch,
    Bug::AttemptsAhead,
    Bug::AttemptsAboveCursor,
    Bug::ForgetsTombstones,
    Bug::IgnoresOtherOwner,
    Bug::KeepsPending,
    Bug::NoBound,
    Bug::FullBlocksRepeats,
    Bug::NotStrict,
    Bug::ForgetsOvertaken,
    Bug::UnblocksBeforeStatuses,
    Bug::ForgetsDeferredStatuses,
    Bug::StatusesPassDeferred,
    Bug::OvertakenUnreported,
    Bug::LargeNotExclusive,
];

/// Bugs that only a coincidence of several faults reveals, because other checks prevent their effect, and a seed
/// shortly before such a coincidence.
const RARE_BUGS: &[(Bug, u64)] = &[
    (Bug::SuspectNotExclusive, 2_700),
    (Bug::DrainForgetsWrite, 3_400),
    (Bug::ForgetsSessions, 45_300),
    (Bug::AttemptsUncommitted, 53_800),
];

/// Runs a seed that must pass. A failure is reported with the shortest plan that fails in the same way.
fn check(seed: u64) -> Run {
    let result = run(&Plan::new(seed), false);
    if let Some(failure) = &result.failure {
        let small = shrink(&Plan::new(seed));
        let result = run(&small, true);
        panic!("seed {seed}: {failure}\n{small:#?}\n{}{:?}", result.transcript, result.failure);
    }
    result
}

fn report(what: &str, seeds: u64, sum: &Run, took: Duration) {
    let Run { inputs, faults, written, repeated, .. } = sum;
    let per_second = u128::from(*inputs) * 1_000 / took.as_millis().max(1);
    println!(
        "{what}: {seeds} seeds, {inputs} events ({per_second} a second), {faults} faults, {written} records, \
         {repeated} of them repetitions"
    );
}

fn add(sum: &mut Run, run: &Run) {
    sum.inputs += run.inputs;
    sum.faults += run.faults;
    sum.written += run.written;
    sum.repeated += run.repeated;
}

#[test]
fn nothing_is_lost_or_reordered_whatever_fails() {
    let (began, mut sum) = (Instant::now(), Run::default());
    for seed in 0..SEEDS {
        add(&mut sum, &check(seed));
    }
    report("simulator", SEEDS, &sum, began.elapsed());
}

#[test]
fn seeds_that_failed_once_pass() {
    for line in include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#')) {
        let seed = line.split_whitespace().next().and_then(|word| word.parse().ok());
        if let Some(seed) = seed {
            check(seed);
        }
    }
}

#[test]
fn same_seed_has_the_same_transcript() {
    for seed in [1, 25, 307] {
        let (one, other) = (run(&Plan::new(seed), true), run(&Plan::new(seed), true));
        assert!(!one.transcript.is_empty());
        assert_eq!(one, other);
    }
}

#[test]
fn injected_bugs_are_detected() {
    let mut table = String::new();
    let mut missed = Vec::new();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for (bug, first) in BUGS.iter().map(|bug| (*bug, 0)).chain(RARE_BUGS.iter().copied()) {
        inject(Some(bug));
        let fails = |nth: u64| Some((nth + 1, run(&Plan::new(first + nth), false).failure?));
        let found = (0..BUG_SEEDS).find_map(fails);
        inject(None);
        match found {
            Some((seeds, how)) => {
                writeln!(table, "{seeds:>5} seeds from {first}  {bug:?}: {how}").unwrap();
            }
            None => missed.push(bug),
        }
    }
    std::panic::set_hook(hook);
    println!("{table}");
    assert!(missed.is_empty(), "not detected within {BUG_SEEDS} seeds: {missed:?}");
}

/// `scripts/test` runs it with a seed of the commit.
#[test]
#[ignore = "takes as long as it is given"]
#[expect(clippy::disallowed_methods, reason = "settings of a test")]
fn long_run() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("POSTRIDER_SIM_SEED").unwrap_or(0);
    let lasts = number("POSTRIDER_SIM_SECONDS").map_or(LONG_RUN, Duration::from_secs);
    let (began, mut sum, mut seeds) = (Instant::now(), Run::default(), 0);
    while began.elapsed() < lasts {
        add(&mut sum, &check(first.wrapping_add(seeds)));
        seeds += 1;
    }
    report(&format!("simulator, from seed {first}"), seeds, &sum, began.elapsed());
}
