//! The world of one run: what there is, and who has the next turn.

use super::broker::{Post, Producer};
use super::plan::{AGGREGATES, Bad, Plan, PlannedChange, PlannedTransaction};
use super::postgres::{Change, Locks, Server, Transaction, at};
use super::process::Process;
use super::rng::Rng;
use super::session::Stage;
use super::truth::Truth;
use super::{Check, Run, Stop};
use crate::relay::Relay;
use postrider_core::event::Position;
use std::fmt::Write;

/// Steps between the last fault or transaction and the healing.
const AFTERMATH: u64 = 150;

/// Makes the seed of the generator for large records another one.
const LARGE_SEED: u64 = 0x6c61_7267_6500_0000;
/// Of a thousand runs, those with large records.
const LARGE_RUNS: u64 = 100;
/// Of a thousand records of such a run, those that the sink takes only with nothing else in flight.
const LARGE_RECORDS: u64 = 50;

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    /// Of reports that come late: a stream of its own, so that the others are what they were.
    pub(super) late: Rng,
    /// Of records that the sink takes only alone: as `late`.
    pub(super) large: Rng,
    /// How many of a thousand records those are. In most runs there are none, and they are what they were.
    pub(super) large_in_1000: u64,
    /// Milliseconds.
    pub(super) now: u64,
    pub(super) step: u64,
    pub(super) server: Server,
    pub(super) truth: Truth,
    pub(super) procs: Vec<Process>,
    pub(super) run: Run,
    pub(super) telling: bool,
}

/// Runs a plan to its end.
pub(super) fn run(plan: &Plan, telling: bool) -> Run {
    let caught = std::panic::catch_unwind(|| {
        let mut world = World::new(plan, telling);
        match world.live() {
            Ok(()) => {}
            Err(Stop::Wrong(message)) => world.run.failure = Some(message),
            Err(Stop::Died) => unreachable!("only a turn ends so"),
        }
        world.run.written = world.truth.written;
        world.run.repeated = world.truth.repeated;
        world.run
    });
    caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let failure = Some(format!("panic: {}", text.unwrap_or_default()));
        Run { failure, ..Run::default() }
    })
}

impl World {
    fn new(plan: &Plan, telling: bool) -> Self {
        let knobs = plan.knobs;
        // One aggregate more for the event at the end, and one for poison.
        let aggregates = usize::try_from(AGGREGATES).unwrap() + 1;
        let mut large = Rng::new(plan.schedule ^ LARGE_SEED);
        let large_in_1000 = if large.chance(LARGE_RUNS) { LARGE_RECORDS } else { 0 };
        let mut world = Self {
            rng: Rng::new(plan.schedule),
            late: Rng::new(!plan.schedule),
            large,
            large_in_1000,
            plan: plan.clone(),
            now: 0,
            step: 0,
            server: Server::new(),
            truth: Truth::new(aggregates, knobs.settings.rules.strict),
            procs: Vec::new(),
            run: Run::default(),
            telling,
        };
        world.server.locks = Locks::new(plan.schedule);
        for _ in 0..knobs.processes {
            let process = Process::new(0, Relay::new(knobs.settings), Producer::new(&knobs, 0, 0));
            world.procs.push(process);
        }
        world
    }

    fn live(&mut self) -> Check {
        let transactions = std::mem::take(&mut self.plan.transactions);
        let faults = std::mem::take(&mut self.plan.faults);
        let (mut transactions, mut faults) = (transactions.iter(), faults.iter().peekable());
        let mut next = transactions.next();
        let mut commits_at = next.map_or(0, |first| first.pause);
        let mut last = 0;
        while next.is_some() || faults.peek().is_some() || self.step < last + AFTERMATH {
            while let Some(transaction) = next.filter(|_| commits_at <= self.step) {
                self.commit(transaction);
                next = transactions.next();
                commits_at += next.map_or(0, |next| next.pause);
                last = self.step;
            }
            if let Some((_, fault)) = faults.next_if(|(at, _)| *at <= self.step) {
                self.run.faults += 1;
                self.strike(*fault)?;
                last = self.step;
            }
            self.advance()?;
        }
        self.heal()
    }

    /// One step of somebody.
    pub(super) fn advance(&mut self) -> Check {
        self.step += 1;
        let turns = self.plan.knobs.turns;
        let mut left = self.rng.below(turns.iter().sum());
        let who = turns.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        let i = self.rng.index(self.procs.len());
        match who.unwrap() {
            0 => {
                for _ in 0..self.rng.range(1, 4) {
                    self.serve(i);
                }
                Ok(())
            }
            1 => {
                let knobs = (&self.plan.knobs, &mut self.rng, self.now);
                self.procs[i].producer.batch(&mut self.truth, knobs)
            }
            2 => {
                for _ in 0..self.rng.range(1, 4) {
                    self.report(i);
                }
                Ok(())
            }
            3 => match self.rng.below(4) {
                0 => self.status(i),
                1 => match self.server.orphans.pop_front() {
                    None => Ok(()),
                    Some(statement) => {
                        self.server.execute(&mut self.truth, self.now, statement).map(drop)
                    }
                },
                _ => self.control(i),
            },
            4 => self.take_turn(i),
            _ => {
                self.now += self.rng.range(1, 12);
                Ok(())
            }
        }
    }

    fn take_turn(&mut self, i: usize) -> Check {
        match self.turn(i) {
            Err(Stop::Died) => self.kill(i),
            other => other,
        }
    }

    fn report(&mut self, i: usize) {
        let post = self.procs[i].producer.report(&self.plan.knobs, &mut self.rng);
        let Some(post) = post else { return };
        if matches!(self.procs[i].stage, Stage::Off { .. }) {
            return;
        }
        if self.telling {
            let line = match &post {
                Post::Report { record, outcome, by: _ } => {
                    let at = self.truth.events[record.event].position;
                    format!("the sink posts {at} {outcome:?}")
                }
                Post::Broken => "the sink posts that it is broken".into(),
            };
            self.tell(i, &line);
        }
        self.procs[i].mailbox.push(post);
    }

    /// A transaction commits, or is rolled back.
    pub(super) fn commit(&mut self, planned: &PlannedTransaction) {
        let (commit, end) = self.server.write(planned.gap);
        if planned.rolled_back || planned.changes.is_empty() {
            return;
        }
        let mut changes = Vec::new();
        for (change, ordinal) in planned.changes.iter().zip(0..) {
            changes.push(match *change {
                PlannedChange::Other => Change::Other,
                PlannedChange::Event { aggregate, bad, mends_after, size, kept_back } => {
                    let position = Position { commit_lsn: at(commit), ordinal };
                    let aggregate = Some(usize::try_from(aggregate).unwrap())
                        .filter(|_| bad != Bad::Poison { known: false });
                    let times = (size, self.now + kept_back);
                    let mended = self.now + mends_after;
                    Change::Event(self.truth.commit(position, aggregate, bad, mended, times))
                }
            });
        }
        if self.telling {
            self.tell(9, &format!("commit {} {changes:?}", at(commit)));
        }
        self.server.transactions.push(Transaction { commit, end, changes });
    }

    pub(super) fn tell(&mut self, i: usize, what: &str) {
        if self.telling {
            let who = if i == 9 { "world".into() } else { format!("p{i}") };
            writeln!(self.run.transcript, "{:>6} ms {who}: {what}", self.now).unwrap();
        }
    }
}
