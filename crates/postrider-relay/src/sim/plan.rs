//! What a run is made of: the transactions, the faults, and how often the world misbehaves. All of it from one seed.
//!
//! A plan is plain data, so that a failing one can be cut down ([`shrink`](super::shrink)).

use super::rng::Rng;
use super::{Limits, OnPoison, ParkingRules, Settings};
use std::time::Duration;

/// Aggregates there may be.
pub(super) const AGGREGATES: u64 = 6;

/// What is wrong with an event, until somebody mends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// Nothing.
    No,
    /// The sink does not take it.
    TooLarge,
    /// The sink does not take it, and no try can change that.
    TopicName,
    /// The broker refuses the batch it is in.
    Batch,
    /// It can't be mapped; whether its aggregate is known all the same.
    Poison { known: bool },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PlannedChange {
    /// Another table's.
    Other,
    Event {
        aggregate: u64,
        bad: Bad,
        /// Milliseconds after its commit at which it is mended without anybody's help.
        mends_after: u64,
        size: u64,
        /// Milliseconds after its commit before which it may not be published.
        kept_back: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct PlannedTransaction {
    /// Steps after the one before.
    pub(super) pause: u64,
    /// Bytes of other WAL before it: 0 where two commits touch.
    pub(super) gap: u64,
    pub(super) rolled_back: bool,
    pub(super) changes: Vec<PlannedChange>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The process dies after this many boundaries of effects.
    Crash { boundaries: u64 },
    /// The connections are gone; statements on their way may arrive, all the same.
    Lost,
    /// The server dies: connections are gone, and the slot's advance since it was last saved.
    ServerCrash,
    /// The slot is saved.
    Checkpoint,
    /// The client's state is fatal.
    SinkFatal,
    /// The process is told to stop, and started again.
    Drain,
    /// The driver finds a reason to halt; the process is started again.
    Halt,
    /// A person asks for something.
    Request,
    /// A person deletes a parked row.
    Delete,
    /// Tombstones below the cursor go.
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

/// How the world behaves: chances in a thousand, and bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knobs {
    pub(super) settings: Settings,
    pub(super) processes: usize,
    pub(super) partitions: usize,
    pub(super) batch_max: u64,
    /// Records that wait in the client before it is full.
    pub(super) queue_max: usize,
    pub(super) sink_full: u64,
    pub(super) destination_down: u64,
    /// Of a batch: no answer will come, though it may be written.
    pub(super) unknown: u64,
    /// Of a batch: refused for the destination, or for the broker.
    pub(super) refused_wider: u64,
    /// Of a report: it never comes.
    pub(super) report_lost: u64,
    /// Reports come in any order.
    pub(super) reports_shuffled: bool,
    /// Of the batch behind a refused one: it is written.
    pub(super) overtakes: u64,
    /// Of what a producer had in its queue when it was thrown away: it is written.
    pub(super) written_late: u64,
    /// Of a report of a producer that was thrown away: it comes all the same, and late.
    pub(super) stragglers: u64,
    pub(super) keepalive: u64,
    pub(super) frames_max: u64,
    /// How often each thing has its turn: the server, the broker, reports, the control connection, processes, time.
    pub(super) turns: [u64; 6],
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) schedule: u64,
    pub(super) knobs: Knobs,
    pub(super) transactions: Vec<PlannedTransaction>,
    /// Steps at which they happen, in order.
    pub(super) faults: Vec<(u64, Fault)>,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let knobs = Knobs::new(&mut rng);
        let poisoned = swarm(&mut rng, 300);
        let (kept_back, others) = (swarm(&mut rng, 200), swarm(&mut rng, 400));
        let aggregates = rng.range(1, AGGREGATES);
        let pause = [1, 10, 40][rng.index(3)];
        let events_max = [2, 4, 12][rng.index(3)];
        let mends = [50, 400, 5_000][rng.index(3)];
        let count = rng.range(1, 30);
        let event = |rng: &mut Rng| PlannedChange::Event {
            aggregate: rng.below(aggregates),
            bad: if rng.chance(poisoned) { bad(rng) } else { Bad::No },
            mends_after: rng.below(mends),
            size: rng.range(1, 120),
            kept_back: if rng.chance(kept_back) { rng.range(1, 300) } else { 0 },
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
}

impl Plan {
    /// Few aggregates, much that is parked and soon mended, and hardly anything but crashes and requests: for what goes
    /// wrong in a narrow place.
    fn focused(rng: &mut Rng, mut knobs: Knobs) -> Self {
        let aggregates = rng.range(1, 2);
        let (poisoned, mends) = (rng.range(50, 500), rng.range(10, 120));
        let event = |rng: &mut Rng| {
            let late = rng.chance(150);
            PlannedChange::Event {
                aggregate: rng.below(aggregates),
                bad: if late || !rng.chance(poisoned) { Bad::No } else { mendable(rng) },
                mends_after: rng.below(mends),
                size: 1,
                kept_back: if late { rng.below(mends) } else { 0 },
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

    /// The control connection is slow, all else is fast, and there are crashes: for what is decided, and not yet
    /// committed when the next thing happens. One event is refused for long, so that a mark of it is nearly always on
    /// its way; others are parked for a moment, and their aggregates go on soon after.
    fn lagging(rng: &mut Rng, mut knobs: Knobs) -> Self {
        let parked = rng.range(300, 500);
        let transaction = |pause, aggregate, mends_after, bad| {
            let change =
                PlannedChange::Event { aggregate, bad, mends_after, size: 1, kept_back: 0 };
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

fn mendable(rng: &mut Rng) -> Bad {
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

/// In half of all seeds a thing never happens; else its weight is drawn.
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
            // Copies of dead events for people: no order, and no resolution, hangs on them.
            dead_letters: false,
        };
        let limits = Limits {
            events_max: [1, 4, 16, 100][rng.index(4)],
            bytes_max: [100, 1_000, 100_000][rng.index(3)],
        };
        let cursor_interval = Duration::from_millis(rng.range(1, 100));
        Self {
            settings: Settings { limits, cursor_interval, rules },
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
            stragglers: swarm(&mut rng.clone(), 600),
        }
    }
}
