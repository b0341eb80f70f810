//! The plan of a run: its transactions, its faults, and their probabilities. All of it is drawn from one seed.
//!
//! A plan is plain data, so that a failing plan can be reduced ([`shrink`](super::shrink)).

use super::rng::Rng;
use super::{HaltWords, Limits, OnPoison, ParkingRules, Settings, TransactionLimits};
use std::time::Duration;

/// The least bound on parked rows with which a repair is simulated.
const LIST_ROWS_MAX: u64 = 1_000;

/// Maximum number of aggregates.
pub(super) const AGGREGATES: u64 = 6;

/// Makes the seed of the generator for the sink differ from the others.
const SINK_SEED: u64 = 0x7369_6e6b_0000_0000;

/// Number of plans in a thousand whose sink publishes in transactions: of the stream alone, and with a table.
const SINK_PLANS: u64 = 250;
const SINK_TABLE_PLANS: u64 = 100;

/// Makes the seed of the generator for the coordinator differ from the others.
const COORDINATOR_SEED: u64 = 0x6b61_666b_6100_0000;

/// Number of plans in a thousand of those with a sink that publishes in transactions, that have a coordinator.
const COORDINATOR_PLANS: u64 = 600;

/// Makes the seed of the generator for the outbox table differ from the others.
const TABLE_SEED: u64 = 0x7461_626c_6500_0000;

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
        /// Milliseconds after its commit from which it is not published any more; 0: it does not expire.
        expires: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct PlannedTransaction {
    /// Number of steps after the transaction before it.
    pub(super) pause: u64,
    /// Bytes of other WAL before it: 0 makes two commits adjacent.
    pub(super) gap: u64,
    pub(super) rolled_back: bool,
    /// Milliseconds after its commit during which no other session sees its rows.
    pub(super) hidden: u64,
    /// Its rows are written in a savepoint, which has a number of its own.
    pub(super) savepoint: bool,
    pub(super) changes: Vec<PlannedChange>,
}

impl PlannedTransaction {
    /// A transaction whose rows are visible at once, adjacent to the one before it.
    pub(super) fn plain(pause: u64, changes: Vec<PlannedChange>) -> Self {
        Self { pause, gap: 0, rolled_back: false, hidden: 0, savepoint: false, changes }
    }
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
    /// The slot is dropped.
    SlotDropped,
    /// The server invalidates the slot.
    SlotLost,
    /// The slot retains more WAL than it may.
    WalBudget,
    /// The server refuses streams for a while.
    StreamRefused,
    /// The session that claims rows ends.
    ClaimSessionLost,
    /// Another session locks a row for a while.
    LockRow,
    /// The application updates an unpublished row.
    UpdateRow,
    /// The application deletes an unpublished row.
    DeleteRow,
    /// The application deletes a row, and inserts another event under its id.
    ReuseId,
    /// Published rows are deleted.
    CleanUp,
    /// The broker is not available for a while.
    BrokerDown,
    /// The server ends the session of a stream, and the process does not notice for a while: the slot is free, and the
    /// process publishes what it has received. Only with a sink that fences it off.
    Unnoticed,
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

/// The faults of a world with an outbox table, beside [`FAULTS`].
const TABLE_FAULTS: [Fault; 11] = [
    Fault::SlotDropped,
    Fault::SlotLost,
    Fault::WalBudget,
    Fault::StreamRefused,
    Fault::ClaimSessionLost,
    Fault::LockRow,
    Fault::UpdateRow,
    Fault::DeleteRow,
    Fault::ReuseId,
    Fault::CleanUp,
    Fault::BrokerDown,
];

/// How a process reads its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceMode {
    /// From the stream. If the slot is lost, it is repaired.
    Wal,
    /// From the table.
    Poll,
    /// From the stream; from the table while the stream can't be used.
    Auto,
}

/// The outbox table, and how it is read.
#[expect(clippy::struct_excessive_bools, reason = "each is a rule of its own")]
#[derive(Clone, Copy, Debug)]
pub(super) struct TableRules {
    pub(super) mode: SourceMode,
    /// Published rows are deleted. Otherwise they get a status.
    pub(super) deletes: bool,
    /// Failures are kept in the table.
    pub(super) keeps_failures: bool,
    /// The table has a column for delays. Otherwise only the record has the time.
    pub(super) delays: bool,
    /// The server keeps the commit times of transactions.
    pub(super) commit_times: bool,
    /// Rows that the stream has published get their status, though nothing depends on it (`poll.mark_streamed`).
    pub(super) statuses: bool,
    /// Most rows of a claim.
    pub(super) batch: usize,
    /// Probability that a row is locked just before it gets its status.
    pub(super) row_locked: u64,
    /// Probability that another session is faster to lock a row again after a claim was settled in part.
    pub(super) relock_lost: u64,
    /// Probability that the server notices the end of a session only after a while.
    pub(super) ghosts: u64,
}

/// How a sink behaves that publishes in transactions: probabilities in a thousand.
#[derive(Clone, Copy, Debug)]
pub(super) struct SinkRules {
    /// Probability that a call is refused.
    pub(super) refused: u64,
    /// Probability that the answer to a call is lost.
    pub(super) answer_lost: u64,
    /// Probability that a call is late, and that its answer is.
    pub(super) late: u64,
    /// What only a coordinator of transactions does; nothing for a sink whose database has the events.
    pub(super) coordinator: CoordinatorRules,
}

/// How brokers behave that coordinate transactions of Kafka: probabilities in a thousand.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct CoordinatorRules {
    /// There is a coordinator: a recovery reads the progress after its producer is the only one, by another call.
    pub(super) on: bool,
    /// Probability that the call for a commit is lost, and its answer with it.
    pub(super) call_lost: u64,
    /// Probability that a commit is visible to readers late, behind the open transaction of another pipeline.
    pub(super) hidden: u64,
    /// Probability that a commit whose answer is late is called twice.
    pub(super) sent_twice: u64,
    /// After so long an open transaction is aborted; 0 for never. Unit: milliseconds.
    pub(super) time_out: u64,
}

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
    /// The outbox table; `None` if only the stream is simulated.
    pub(super) table: Option<TableRules>,
    /// `None` if the sink publishes without transactions.
    pub(super) sink: Option<SinkRules>,
}

impl Plan {
    /// Changes the rules of the table, if there is one.
    pub(super) fn each_rule(&mut self, change: impl FnOnce(&mut TableRules)) {
        if let Some(rules) = &mut self.table {
            change(rules);
        }
    }

    /// Changes the rules of the sink, if it publishes in transactions.
    pub(super) fn each_sink_rule(&mut self, change: impl FnOnce(&mut SinkRules)) {
        if let Some(rules) = &mut self.sink {
            change(rules);
        }
    }

    /// A plan with an outbox table.
    pub(super) fn with_table(seed: u64) -> Self {
        let mut plan = Self::plain_with_table(seed);
        let mut sink = Rng::new(seed ^ SINK_SEED);
        if sink.chance(SINK_TABLE_PLANS) {
            plan.add_transactions(&mut sink);
        }
        plan
    }

    /// A plan with an outbox table, and with a sink that publishes without transactions.
    pub(super) fn plain_with_table(seed: u64) -> Self {
        let mut plan = Self::plain(seed);
        plan.add_table(seed);
        plan
    }

    /// A plan of the stream alone.
    pub(super) fn new(seed: u64) -> Self {
        let mut plan = Self::without_coordinator(seed);
        let mut coordinator = Rng::new(seed ^ COORDINATOR_SEED);
        if coordinator.chance(COORDINATOR_PLANS) {
            plan.add_coordinator(&mut coordinator);
        }
        plan
    }

    /// A plan of the stream alone. Its sink publishes without transactions, or its database has the events.
    pub(super) fn without_coordinator(seed: u64) -> Self {
        let mut plan = Self::plain(seed);
        let mut sink = Rng::new(seed ^ SINK_SEED);
        if sink.chance(SINK_PLANS) {
            plan.add_transactions(&mut sink);
        }
        plan
    }

    /// The sink publishes in transactions. With a table, the pipeline never leaves the stream.
    fn add_transactions(&mut self, rng: &mut Rng) {
        let knobs = &mut self.knobs;
        let (refused, answer_lost, late) = (swarm(rng, 100), swarm(rng, 100), swarm(rng, 300));
        let coordinator = CoordinatorRules::default();
        self.sink = Some(SinkRules { refused, answer_lost, late, coordinator });
        knobs.settings.transactions = Some(TransactionLimits {
            records_max: [1, 3, 20][rng.index(3)],
            bytes_max: [200, 100_000][rng.index(2)],
            interval: Duration::from_millis(rng.range(1, 60)),
            whole_for: None,
        });
        if self.table.is_none() && rng.chance(500) {
            knobs.processes = 2;
            let last = self.faults.last().map_or(0, |(at, _)| *at);
            let last =
                last.max(self.transactions.iter().map(|transaction| transaction.pause).sum());
            for _ in 0..rng.range(1, 6) {
                self.faults.push((rng.below(last + 50), Fault::Unnoticed));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
        if let Some(rules) = &mut self.table {
            rules.mode = SourceMode::Wal;
            (knobs.reports_shuffled, knobs.report_lost) = (false, 0);
            let ends_slot = |fault: &Fault| matches!(fault, Fault::SlotDropped | Fault::SlotLost);
            self.faults.retain(|(_, fault)| !ends_slot(fault));
        }
    }

    /// Brokers coordinate the transactions of the sink, if it publishes in transactions.
    fn add_coordinator(&mut self, rng: &mut Rng) {
        let Some(rules) = &mut self.sink else { return };
        rules.coordinator = CoordinatorRules {
            on: true,
            call_lost: swarm(rng, 100),
            hidden: swarm(rng, 300),
            sent_twice: swarm(rng, 500),
            time_out: [0, 60, 200, 600][rng.index(4)],
        };
        if rng.chance(500) {
            rules.late = rules.late.max(rng.range(1, 300));
        }
        let whole_for = rng.chance(400).then(|| Duration::from_millis(rng.range(1, 300)));
        if let Some(limits) = &mut self.knobs.settings.transactions {
            limits.whole_for = whole_for;
        }
    }

    fn add_table(&mut self, seed: u64) {
        let mut rng = Rng::new(seed ^ TABLE_SEED);
        let plan = self;
        let rules = TableRules::new(&mut rng, &mut plan.knobs);
        let (hidden, expires) = (swarm(&mut rng, 300), swarm(&mut rng, 100));
        for transaction in &mut plan.transactions {
            transaction.gap &= !7;
            transaction.hidden = if rng.chance(hidden) { rng.range(1, 300) } else { 0 };
            transaction.savepoint = rng.chance(200);
            for change in &mut transaction.changes {
                if let PlannedChange::Event { expires: after, .. } = change {
                    *after = if rng.chance(expires) { rng.range(1, 600) } else { 0 };
                }
            }
        }
        let last = plan.faults.last().map_or(0, |(at, _)| *at);
        let last = last.max(plan.transactions.iter().map(|transaction| transaction.pause).sum());
        plan.faults.extend(table_faults(&mut rng, last));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan.table = Some(rules);
    }

    /// A plan of the stream alone, with a sink that publishes in transactions.
    pub(super) fn with_transactions(seed: u64) -> Self {
        let mut plan = Self::plain(seed);
        plan.add_transactions(&mut Rng::new(seed ^ SINK_SEED));
        plan
    }

    /// The same with brokers that coordinate the transactions.
    pub(super) fn with_coordinator(seed: u64) -> Self {
        let mut plan = Self::with_transactions(seed);
        plan.add_coordinator(&mut Rng::new(seed ^ COORDINATOR_SEED));
        plan
    }

    /// A plan of the stream alone, with a sink that publishes without transactions.
    pub(super) fn plain(seed: u64) -> Self {
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
            expires: 0,
        };
        let change = |rng: &mut Rng| {
            if rng.chance(others) { PlannedChange::Other } else { event(rng) }
        };
        let transaction = |rng: &mut Rng| PlannedTransaction {
            pause: rng.below(pause),
            gap: if rng.chance(500) { 0 } else { rng.range(8, 6_000) },
            rolled_back: rng.chance(100),
            hidden: 0,
            savepoint: false,
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
        Self { schedule: rng.next(), knobs, transactions, faults, table: None, sink: None }
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
                expires: 0,
            }
        };
        let transaction = |rng: &mut Rng| {
            let pause = rng.below(20);
            PlannedTransaction::plain(pause, (0..rng.range(1, 3)).map(|_| event(rng)).collect())
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
        Self { schedule: rng.next(), knobs, transactions, faults, table: None, sink: None }
    }

    /// The control connection is slow, everything else is fast, and there are crashes: finds bugs around decisions that
    /// are not committed yet. One event is refused for long, so that a status of its row is nearly always in flight;
    /// other events are parked for a moment, and their aggregates continue soon after.
    fn lagging(rng: &mut Rng, mut knobs: Knobs) -> Self {
        let parked = rng.range(300, 500);
        let transaction = |pause, aggregate, fixed_after, bad| {
            let (size, delay, expires) = (1, 0, 0);
            let change = PlannedChange::Event { aggregate, bad, fixed_after, size, delay, expires };
            PlannedTransaction::plain(pause, vec![change])
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
        Self { schedule: rng.next(), knobs, transactions, faults, table: None, sink: None }
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

/// Faults of the table in the steps up to `last`.
fn table_faults(rng: &mut Rng, last: u64) -> Vec<(u64, Fault)> {
    let mut weights: Vec<u64> = TABLE_FAULTS.iter().map(|_| swarm(rng, 10)).collect();
    // Without a lost slot a pipeline that streams would not leave the stream.
    weights[0] += 2;
    let total: u64 = weights.iter().sum();
    let count = [1, 4, 12][rng.index(3)];
    let last = last.max(100) + 50;
    let fault = |rng: &mut Rng| {
        let mut left = rng.below(total);
        let kind = weights.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        (rng.below(last), TABLE_FAULTS[kind.unwrap()])
    };
    (0..count).map(|_| fault(rng)).collect()
}

impl TableRules {
    /// Draws the rules, and adapts what does not go with a table.
    fn new(rng: &mut Rng, knobs: &mut Knobs) -> Self {
        let mode = match rng.below(8) {
            0 => SourceMode::Wal,
            1 | 2 => SourceMode::Poll,
            _ => SourceMode::Auto,
        };
        let deletes = rng.chance(300);
        // A page of a repair that fills the parked table alone is never finished (its events are attempted only behind
        // the page): the bound is larger than a page.
        if mode == SourceMode::Wal {
            let rows_max = &mut knobs.settings.rules.rows_max;
            *rows_max = (*rows_max).max(LIST_ROWS_MAX);
        }
        knobs.processes = if rng.chance(350) { 2 } else { 1 };
        // Row statuses rely on it that the reports of an aggregate come in order, and that none is missing before a
        // later one.
        if mode != SourceMode::Poll {
            (knobs.reports_shuffled, knobs.report_lost) = (false, 0);
        }
        Self {
            mode,
            deletes,
            keeps_failures: !deletes && rng.chance(400),
            delays: rng.chance(500),
            commit_times: rng.chance(300),
            statuses: rng.chance(500),
            batch: [1, 2, 5, 20][rng.index(4)],
            row_locked: swarm(rng, 200),
            relock_lost: swarm(rng, 300),
            ghosts: swarm(rng, 500),
        }
    }
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
                transactions: None,
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
