//! What all processes of a run share: the servers, the clock, the generators of random numbers, and the transcript.

use super::outbox::{Outbox, Received, Sent};
use super::ownership::{Ownership, SlotJob};
use super::plan::{AGGREGATES, Knobs, Plan, TableRules};
use super::postgres::{Locks, Reply, Server, Statement};
use super::rng::Rng;
use super::transactional_sink::{Caller, Request, TransactionalSink};
use super::truth::Truth;
use super::{Run, Stop};
use postrider_core::sink::SinkCall;
use postrider_core::timestamp::Timestamp;
use std::fmt::Write;

/// Makes the seed of the generator for large records differ from the others.
const LARGE_SEED: u64 = 0x6c61_7267_6500_0000;

/// Number of runs in a thousand that have large records.
const LARGE_RUNS: u64 = 100;

/// Number of records in a thousand of such a run that the sink takes only with nothing else in flight.
const LARGE_RECORDS: u64 = 50;

/// Number of steps of time in a thousand that are long, and their longest duration. Unit: milliseconds.
const LONG_STEPS: [u64; 4] = [0, 20, 60, 200];
const LONG_STEP_MAX: u64 = 12_000;

/// The number of the world among the processes of a transcript.
pub(super) const WORLD: usize = 9;

/// The outbox table of the fake server, and what it records of the pipeline beside its position.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) outbox: Outbox,
    pub(super) ownership: Ownership,
    /// Decides how long what has to do with the table takes. A generator of its own leaves the draws of the others as
    /// they were.
    pub(super) rng: Rng,
    /// Until when the brokers are not available.
    pub(super) broker_down_until: u64,
    /// Steps for the slot whose session is lost, and that the server still executes.
    pub(super) jobs: Vec<SlotJob>,
    /// The last owner was a stream.
    pub(super) streamed: bool,
    /// Number of steps of time in a thousand that are long, because some pauses of polling are long.
    pub(super) long_steps: u64,
}

impl Database {
    fn new(rules: TableRules, schedule: u64, server: &mut Server) -> Self {
        let mut rng = Rng::new(schedule ^ u64::from(u32::MAX));
        let outbox = Outbox::new(rules, rng.next());
        let ownership = Ownership::new(server.next_xid());
        let long_steps = LONG_STEPS[rng.index(LONG_STEPS.len())];
        Self {
            outbox,
            ownership,
            rng,
            broker_down_until: 0,
            jobs: Vec::new(),
            streamed: false,
            long_steps,
        }
    }
}

/// Large records.
#[derive(Debug)]
pub(super) struct LargeRecords {
    /// A generator of its own, as for late reports.
    pub(super) rng: Rng,
    /// Number of records in a thousand that the sink takes only with nothing else in flight; 0 in most runs.
    pub(super) in_1000: u64,
}

/// The servers, the clock and the generators of a run.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) knobs: Knobs,
    pub(super) rng: Rng,
    /// The generator for late reports. A generator of its own leaves the draws of `rng` as they were.
    pub(super) late: Rng,
    pub(super) large: LargeRecords,
    /// Unit: milliseconds.
    pub(super) now: u64,
    pub(super) server: Server,
    pub(super) truth: Truth,
    /// `None` if only the stream is simulated.
    pub(super) database: Option<Box<Database>>,
    /// The sink, if it publishes in transactions.
    pub(super) sink: Option<Box<TransactionalSink>>,
    /// The process that has become the owner last, and may publish.
    pub(super) publisher: usize,
    pub(super) result: Run,
    pub(super) transcribes: bool,
}

impl Ground {
    pub(super) fn new(plan: &Plan, transcribes: bool) -> Self {
        let knobs = plan.knobs;
        // One aggregate more for the event at the end, and one for poison.
        let aggregates = usize::try_from(AGGREGATES).unwrap() + 1;
        let mut large = Rng::new(plan.schedule ^ LARGE_SEED);
        let in_1000 = if large.chance(LARGE_RUNS) { LARGE_RECORDS } else { 0 };
        let mut server = Server::new();
        server.locks = Locks::new(plan.schedule);
        let database =
            plan.table.map(|rules| Box::new(Database::new(rules, plan.schedule, &mut server)));
        let sink = plan.sink.map(|rules| {
            Box::new(TransactionalSink::new(rules, plan.schedule ^ u64::from(u32::MAX) << 32))
        });
        Self {
            knobs,
            rng: Rng::new(plan.schedule),
            late: Rng::new(!plan.schedule),
            large: LargeRecords { rng: large, in_1000 },
            now: 0,
            server,
            truth: Truth::new(aggregates, knobs.settings.rules.strict),
            database,
            sink,
            publisher: 0,
            result: Run::default(),
            transcribes,
        }
    }

    /// The rules of the table, if there is one.
    pub(super) fn rules(&self) -> Option<TableRules> {
        self.database.as_ref().map(|database| database.outbox.rules)
    }

    /// The clock of every host.
    pub(super) fn wall(&self) -> Timestamp {
        wall(self.now)
    }

    /// Time passes.
    pub(super) fn pass(&mut self) {
        self.now += self.rng.range(1, 12);
        if let Some(database) = &mut self.database
            && database.rng.chance(database.long_steps)
        {
            self.now += database.rng.range(100, LONG_STEP_MAX);
        }
        self.truth.now = self.now;
    }

    /// Whether the brokers are not available.
    pub(super) fn broker_is_down(&self) -> bool {
        self.database.as_ref().is_some_and(|database| database.broker_down_until > self.now)
    }

    /// Whether brokers coordinate the transactions of the sink.
    pub(super) fn has_coordinator(&self) -> bool {
        self.sink.as_ref().is_some_and(|sink| sink.rules.coordinator.on)
    }

    /// A producer calls the sink.
    pub(super) fn call_sink(&mut self, caller: Caller, call: SinkCall, request: Request) {
        if let Some(sink) = &mut self.sink {
            sink.call(self.now, caller, call, request);
        }
    }

    /// The sink executes a call. Returns the producer whose open transaction it has committed again.
    pub(super) fn serve_sink(&mut self) -> Result<Option<Caller>, Stop> {
        let Some(sink) = &mut self.sink else { return Ok(None) };
        let executed = sink.execute(self.now, &mut self.truth, &mut self.server)?;
        if let Some(what) = &executed.what {
            self.log(WORLD, &format!("the sink {what}"));
        }
        Ok(executed.commits_open)
    }

    /// The faults are over.
    pub(super) fn end_faults(&mut self) {
        if let Some(sink) = &mut self.sink {
            (sink.rules.refused, sink.rules.answer_lost) = (0, 0);
            (sink.rules.late, sink.rules.coordinator.call_lost) = (0, 0);
            (sink.rules.coordinator.sent_twice, sink.rules.coordinator.time_out) = (0, 0);
        }
        for transaction in &mut self.server.transactions {
            transaction.hidden_until = 0;
        }
        if let Some(database) = &mut self.database {
            database.outbox.end_faults();
            (database.broker_down_until, database.long_steps) = (0, LONG_STEPS[2]);
            (database.ownership.refuses_until, database.ownership.over_budget) = (0, false);
        }
    }

    /// Writes a line of the transcript about a process, or about the [`WORLD`].
    pub(super) fn log(&mut self, i: usize, what: &str) {
        if self.transcribes {
            let who = if i == WORLD { "world".into() } else { format!("p{i}") };
            writeln!(self.result.transcript, "{:>6} ms {who}: {what}", self.now).unwrap();
        }
    }

    /// Rows of the parked table are committed with `synchronous_commit = on`: what was committed before is visible.
    fn show_earlier(&mut self) {
        let Some(database) = &mut self.database else { return };
        for transaction in &mut self.server.transactions {
            if transaction.hidden_until > self.now {
                transaction.hidden_until = self.now;
                database.outbox.show(transaction.xid, self.now);
            }
        }
    }

    /// The server executes a statement.
    pub(super) fn execute(&mut self, statement: Sent) -> Result<Received, Stop> {
        let now = self.now;
        Ok(match statement {
            Sent::Table(statement) => {
                if let (Statement::Parking { statuses, .. }, Some(database)) =
                    (&statement, &self.database)
                {
                    for status in statuses {
                        if database.outbox.has_moved(status.position) {
                            self.server.lock_row(status.position, now + 1);
                        }
                    }
                }
                let parks =
                    matches!(&statement, Statement::Parking { rows, .. } if !rows.is_empty());
                let before = self.server.row;
                let answer = self.server.execute(&mut self.truth, now, statement)?;
                if let (Reply::Cursor(true), Some(sink)) = (&answer, &self.sink) {
                    sink.check_row(before, self.server.row)?;
                }
                if parks {
                    self.show_earlier();
                }
                if let (Reply::Cursor(true), Some(database)) = (&answer, &mut self.database) {
                    database.ownership.cursor_written(&self.server, now);
                }
                Received::Table(answer)
            }
            Sent::Statuses(rows, waiting) => {
                let Some(database) = &mut self.database else {
                    return Ok(Received::Statuses(Vec::new()));
                };
                let world = (&mut self.server, &self.truth, now);
                Received::Statuses(database.outbox.set_statuses(world, &rows, &waiting, &[])?)
            }
        })
    }
}

/// A time of the world as a clock shows it.
pub(super) fn wall(millis: u64) -> Timestamp {
    Timestamp { unix_micros: i64::try_from(millis).unwrap() * 1_000 }
}
