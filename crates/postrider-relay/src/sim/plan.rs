//! The plan of a run: its transactions, its faults, and their probabilities. All of it is drawn from one seed.
//!
//! A plan is plain data, so that a failing plan can be reduced ([`shrink`](super::shrink)).

use super::rng::Rng;
use super::{HaltWords, Limits, OnPoison, ParkingRules, Settings};
use std::time::Duration;

/// Maximum number of aggregates.
pub(super) const AGGREGATES: u64 = 6;

/// What is wrong with an event, until it is fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// Nothing.
    No,
    /// The sink refuses the event.
    TooLarge,
    /// The sink refuses the event, and no attempt can change that.
    TopicName,
    /// The broker refuses the batch that contains the event.
    Batch,
    /// The event can't be mapped. `known`: its aggregate is known.
    Poison { known: bool },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PlannedChange {
    /// A change of another table.
    Other,
    Event {
        aggregate: u64,
        bad: Bad,
        /// Milliseconds after its commit when it is fixed without an operator.
        fixed_after: u64,
        size: u64,
        /// Milliseconds after its commit before which it may not be published.
        delay: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct PlannedTransaction {
    /// Number of steps after the transaction before it.
    pub(super) pause: u64,
    /// Bytes of other WAL before it: 0 makes two commits adjacent.
    pub(super) gap: u64,
    pub(super) rolled_back: bool,
    pub(super) changes: Vec<PlannedChange>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The process dies after this many boundaries of effects.
    Crash { boundaries: u64 },
    /// The connections are lost. Statements that were sent may still arrive.
    Lost,
    /// The server dies: connections are lost, and the advance of the slot since it was last saved.
    ServerCrash,
    /// The slot is saved.
    Checkpoint,
    /// The client's state is fatal.
    SinkFatal,
    /// The process drains, and is started again.
    Drain,
    /// The pipeline halts the relay, and the process is started again.
    Halt,
    /// An operator requests something.
    Request,
    /// An operator deletes a parked row.
    Delete,
    /// Resolved rows below the cursor are deleted.
    Prune,
}

const FAULTS: [Fault; 10] = [
    Fault::Crash { boundaries: 0 },
    Fault::Lost,
    Fault::ServerCrash,
    Fault::Checkpoint,
    Fault::SinkFatal,
    Fault::Drain,
    Fault::Halt,
    Fault::Request,
    Fault::Delete,
    Fault::Prune,
];

/// How the world behaves: probabilities in a thousand, and bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knobs {
    pub(super) settings: Settings,
    pub(super) processes: usize,
    pub(super) partitions: usize,
    pub(super) batch_max: u64,
    /// Maximum number of records in the client.
    pub(super) queue_max: usize,
    pub(super) sink_full: u64,
    pub(super) destination_down: u64,
    /// Probability that the outcome of a batch is unknown. The batch may be written.
    pub(super) unknown: u64,
    /// Probability that a batch is refused because of the destination or the broker.
    pub(super) refused_wider: u64,
    /// Probability that a report is lost.
    pub(super) report_lost: u64,
    /// Reports are received in any order.
    pub(super) reports_shuffled: bool,
    /// Probability that the batch behind a refused one is written.
    pub(super) overtakes: u64,
    /// Probability that a record in the queue of a discarded producer is written.
    pub(super) written_late: u64,
    /// Probability that a report of a discarded producer is received late.
    pub(super) late_reports: u64,
    pub(super) keepalive: u64,
    pub(super) frames_max: u64,
    /// The weights of the turns of the server, the broker, reports, the control connection, processes, and time.
    pub(super) turns: [u64; 6],
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) schedule: u64,
    pub(super) knobs: Knobs,
    pub(super) transactions: Vec<PlannedTransaction>,
    /// The faults and their steps, in order.
    pub(super) faults: Vec<(u64, Fault)>,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let knobs = Knobs::new(&mut rng);
        let poisoned = swarm(&mut rng, 300);
        let (delay, others) = (swarm(&mut rng, 200), swarm(&mut rng, 400));
        let aggregates = rng.range(1, AGGREGATES);
        let pause = [1, 10, 40][rng.index(3)];
        let events_max = [2, 4, 12][rng.index(3)];
        let fixed_max = [50, 400, 5_000][rng.index(3)];
        let count = rng.range(1, 30);
        let event = |rng: &mut Rng| PlannedChange::Event {
            aggregate: rng.below(aggregates),
            bad: if rng.chance(poisoned) { bad(rng) } else { Bad::No },
            fixed_after: rng.below(fixed_max),
            size: rng.range(1, 120),
            delay: if rng.chance(delay) { rng.range(1, 300) } else { 0 },
        };
        let change = |rng: &mut Rng| {
            if rng.chance(others) { PlannedChange::Other } else { event(rng) }
        };
        let transaction = |rng: &mut Rng| PlannedTransaction {
            pause: rng.below(pause),
            gap: if rng.chance(500) { 0 } else { rng.range(8, 6_000) },
            rolled_back: rng.chance(100),
            changes: (0..rng.below(events_max + 1)).map(|_| change(rng)).collect(),
        };
        if rng.chance(400) {
            let lags = seed % 4 == 3;
            return if lags {
                Self::lagging(&mut rng, knobs)
            } else {
                Self::focused(&mut rng, knobs)
            };
        }
        let transactions = (0..count).map(|_| transaction(&mut rng)).collect();
        let faults = faults(&mut rng);
        Self { schedule: rng.next(), knobs, transactions, faults }
    }

    /// Few aggregates, many events that are parked and fixed soon, and no faults but crashes, lost connections and
    /// requests: finds bugs that need many events of one aggregate.
    fn focused(rng: &mut Rng, mut knobs: Knobs) -> Self {
        let aggregates = rng.range(1, 2);
        let (poisoned, fixed_max) = (rng.range(50, 500), rng.range(10, 120));
        let event = |rng: &mut Rng| {
            let late = rng.chance(150);
            PlannedChange::Event {
                aggregate: rng.below(aggregates),
                bad: if late || !rng.chance(poisoned) { Bad::No } else { fixable(rng) },
                fixed_after: rng.below(fixed_max),
                size: 1,
                delay: if late { rng.below(fixed_max) } else { 0 },
            }
        };
        let transaction = |rng: &mut Rng| PlannedTransaction {
            pause: rng.below(20),
            gap: 0,
            rolled_back: false,
            changes: (0..rng.range(1, 3)).map(|_| event(rng)).collect(),
        };
        let transactions = (0..rng.range(5, 25)).map(|_| transaction(rng)).collect();
        let rules = &mut knobs.settings.rules;
        (rules.on_poison, rules.attempts_max) = (OnPoison::BlockKey, 5);
        rules.step = Duration::from_millis(rng.range(1, 15));
        rules.rows_max = [3, 1_000, 1_000][rng.index(3)];
        (knobs.sink_full, knobs.destination_down, knobs.report_lost) = (0, 0, 0);
        knobs.processes = 1;
        let (mut at, pause) = (0, rng.range(5, 60));
        let mut fault = |rng: &mut Rng| {
            at += rng.range(1, pause);
            let kinds = [
                Fault::Crash { boundaries: rng.below(12) },
                Fault::Lost,
                Fault::Request,
                Fault::Request,
            ];
            (at, kinds[rng.index(4)])
        };
        let faults = (0..25).map(|_| fault(rng)).collect();
        Self { schedule: rng.next(), knobs, transactions, faults }
    }

    /// The control connection is slow, everything else is fast, and there are crashes: finds bugs around decisions that
    /// are not committed yet. One event is refused for long, so that a status of its row is nearly always in flight;
    /// other events are parked for a moment, and their aggregates continue soon after.
    fn lagging(rng: &mut Rng, mut knobs: Knobs) -> Self {
        let parked = rng.range(300, 500);
        let transaction = |pause, aggregate, fixed_after, bad| {
            let change = PlannedChange::Event { aggregate, bad, fixed_after, size: 1, delay: 0 };
            PlannedTransaction { pause, gap: 0, rolled_back: false, changes: vec![change] }
        };
        let moment = |rng: &mut Rng| {
            let (pause, aggregate) = (rng.below(200), rng.range(1, AGGREGATES - 1));
            let bad = if rng.chance(parked) { Bad::TooLarge } else { Bad::No };
            transaction(pause, aggregate, 5, bad)
        };
        let mut transactions = vec![transaction(0, 0, 3_000, Bad::TooLarge)];
        transactions.extend((0..60).map(|_| moment(rng)));
        let settings = &mut knobs.settings;
        settings.limits = Limits { events_max: 100, bytes_max: 100_000 };
        settings.cursor_interval = Duration::from_millis(rng.range(1, 10));
        let rules = &mut settings.rules;
        (rules.on_poison, rules.step) = (OnPoison::BlockKey, Duration::from_millis(1));
        (rules.attempts_max, rules.rows_max) = (1_000, 1_000);
        (knobs.sink_full, knobs.destination_down, knobs.report_lost) = (0, 0, 0);
        (knobs.unknown, knobs.refused_wider, knobs.processes) = (0, 0, 1);
        (knobs.batch_max, knobs.queue_max, knobs.frames_max) = (2, 50, 30);
        knobs.turns = [8, 8, 8, 2, 8, 3];
        let mut at = 0;
        let mut crash = |rng: &mut Rng| {
            at += rng.range(20, 600);
            (at, Fault::Crash { boundaries: rng.below(6) })
        };
        let faults = (0..12).map(|_| crash(rng)).collect();
        Self { schedule: rng.next(), knobs, transactions, faults }
    }
}

fn fixable(rng: &mut Rng) -> Bad {
    if rng.chance(400) { Bad::TooLarge } else { Bad::Batch }
}

fn bad(rng: &mut Rng) -> Bad {
    match rng.below(8) {
        0 => Bad::TopicName,
        1 => Bad::Poison { known: rng.chance(500) },
        2 | 3 => Bad::TooLarge,
        _ => Bad::Batch,
    }
}

/// A weight that is 0 in half of all seeds, and drawn otherwise.
fn swarm(rng: &mut Rng, most: u64) -> u64 {
    if rng.chance(500) { 0 } else { rng.range(1, most) }
}

fn faults(rng: &mut Rng) -> Vec<(u64, Fault)> {
    let weights: Vec<u64> = FAULTS.iter().map(|_| swarm(rng, 10)).collect();
    let total: u64 = weights.iter().sum();
    if total == 0 {
        return Vec::new();
    }
    let count = [0, 3, 10, 40][rng.index(4)];
    let pause = [5, 20, 100][rng.index(3)];
    let mut at = 0;
    let mut fault = |rng: &mut Rng| {
        at += rng.range(1, pause * 2);
        let mut left = rng.below(total);
        let kind = weights.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        let mut fault = FAULTS[kind.unwrap()];
        if let Fault::Crash { boundaries } = &mut fault {
            *boundaries = rng.below(20);
        }
        (at, fault)
    };
    (0..count).map(|_| fault(rng)).collect()
}

impl Knobs {
    fn new(rng: &mut Rng) -> Self {
        let on_poison = match rng.below(8) {
            0 => OnPoison::Stop,
            1 => OnPoison::SkipEvent,
            _ => OnPoison::BlockKey,
        };
        let rules = ParkingRules {
            on_poison,
            attempts_max: u32::try_from(rng.range(1, 5)).unwrap(),
            step: Duration::from_millis(rng.range(1, 60)),
            steps_max: 3,
            rows_max: [2, 5, 1_000][rng.index(3)],
            strict: rng.chance(250),
            // Dead letters are copies for operators: neither order nor resolution depends on them.
            dead_letters: false,
        };
        let limits = Limits {
            events_max: [1, 4, 16, 100][rng.index(4)],
            bytes_max: [100, 1_000, 100_000][rng.index(3)],
        };
        let cursor_interval = Duration::from_millis(rng.range(1, 100));
        Self {
            settings: Settings {
                limits,
                cursor_interval,
                idle_step: 4096,
                words: HaltWords::POSTGRES,
                rules,
            },
            processes: if rng.chance(250) { 2 } else { 1 },
            partitions: rng.index(3) + 1,
            batch_max: rng.range(1, 6),
            queue_max: [1, 5, 50][rng.index(3)],
            sink_full: swarm(rng, 200),
            destination_down: swarm(rng, 100),
            unknown: swarm(rng, 60),
            refused_wider: swarm(rng, 60),
            report_lost: swarm(rng, 40),
            reports_shuffled: rng.chance(500),
            overtakes: swarm(rng, 1_000),
            written_late: rng.range(0, 1_000),
            keepalive: swarm(rng, 300),
            frames_max: [1, 3, 30][rng.index(3)],
            turns: std::array::from_fn(|_| rng.range(1, 8)),
            late_reports: swarm(&mut rng.clone(), 600),
        }
    }
}
