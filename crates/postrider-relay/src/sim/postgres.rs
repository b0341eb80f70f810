//! The fake database: WAL, slot, cursor row, parked table, and the statements on them.
//!
//! As the real one where the relay can tell (the integration tests `model` compare the two): the slot's advance is not
//! durable until it is saved; a stream leaves out what commits below its start; a write is fenced by the owner's epoch;
//! of one statement the marks don't see the rows.

use super::rng::Rng;
use super::truth::Truth;
use super::{Check, wrong};
use crate::ack::Progress;
use pg_replication::lsn::{Lsn, Watermark};
use postrider_core::event::Position;
use postrider_core::parked::{Entry, Lane, ParkedOutcome, ParkedUpdate, Request, State};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Makes the seed of the generator for locked rows another one.
const LOCKS_SEED: u64 = 0x10CC;

/// Of a thousand runs, those in which rows are locked.
const LOCKS_RUNS: u64 = 300;

/// Of a thousand writes with marks in such a run, those that find a row locked.
const LOCKS_ROWS: u64 = 300;

/// How long a person holds it. Unit: milliseconds.
const LOCKED_MAX: u64 = 3_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Other,
    Event(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) commit: u64,
    pub(super) end: u64,
    pub(super) changes: Vec<Change>,
}

/// A row of the parked table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) event: usize,
    lane: Option<Lane>,
    pub(super) state: State,
    attempts: u32,
    next_at: u64,
    overtaken_by: Option<Position>,
    pub(super) request: Option<Request>,
    version: u32,
}

#[derive(Debug)]
pub(super) enum Statement {
    Cursor { progress: Progress, epoch: u64 },
    Parking { rows: Vec<(Entry, usize)>, marks: Vec<ParkedUpdate>, epoch: u64 },
    Fetch { positions: Vec<Position> },
    Ask,
}

#[derive(Debug)]
pub(super) enum Answer {
    /// Whether it was stored.
    Cursor(bool),
    /// The rows whose marks were left out, because somebody has locked them; `None` where nothing was stored.
    Parking(Option<Vec<Position>>),
    /// What was asked for, and the events and versions that were there.
    Fetched(Vec<Position>, Vec<(Position, usize, u32)>),
    Asked(Vec<(Position, Request)>),
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) transactions: Vec<Transaction>,
    /// First byte after what is written.
    pub(super) end: u64,
    pub(super) confirmed: u64,
    /// What a crash leaves of it.
    pub(super) saved: u64,
    /// The process that streams.
    pub(super) holder: Option<usize>,
    pub(super) row: Progress,
    pub(super) epoch: u64,
    pub(super) table: BTreeMap<Position, Row>,
    /// Statements whose session is gone, and which nobody has stopped.
    pub(super) orphans: VecDeque<Statement>,
    /// Rows that a person has locked, and until when.
    locked: BTreeMap<Position, u64>,
    /// Whether the next write finds one locked.
    pub(super) locks: Locks,
    /// Transactions below it are known to be accounted for.
    accounted: usize,
}

/// How often a person locks a row just before a mark of it is written.
#[derive(Debug, Default)]
pub(super) struct Locks {
    rng: Rng,
    pub(super) in_1000: u64,
}

impl Locks {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ LOCKS_SEED);
        let in_1000 = if rng.chance(LOCKS_RUNS) { LOCKS_ROWS } else { 0 };
        Self { rng, in_1000 }
    }
}

pub(super) fn at(lsn: u64) -> Lsn {
    Lsn::from_wire(lsn)
}

pub(super) fn watermark(progress: Progress) -> u64 {
    progress.watermark.lsn().to_wire()
}

impl Server {
    pub(super) fn new() -> Self {
        let watermark = Watermark::resumed(at(16));
        let row = Progress { watermark, partial: None };
        Self { end: 16, confirmed: 16, saved: 16, row, ..Self::default() }
    }

    /// The end of a transaction is written, behind `gap` bytes of others: where it stands.
    pub(super) fn write(&mut self, gap: u64) -> (u64, u64) {
        let commit = self.end + gap;
        self.end = commit + 48;
        (commit, self.end)
    }

    /// It dies: the slot is where it was when it was last saved.
    pub(super) fn crash(&mut self) {
        self.confirmed = self.saved;
        self.holder = None;
        self.orphans.clear();
    }

    /// The slot is saved.
    pub(super) fn save(&mut self) {
        self.saved = self.confirmed;
    }

    /// Where a stream starts, and the changes to be passed over.
    pub(super) fn resume(&self) -> Result<Progress, super::Stop> {
        if self.confirmed > watermark(self.row) {
            // As the fence does, which halts.
            let (slot, row) = (at(self.confirmed), self.row.watermark);
            wrong(format!("the slot stands at {slot}, beyond the cursor row at {row}"))?;
        }
        Ok(self.row)
    }

    /// A stream is told this position.
    pub(super) fn confirm(&mut self, truth: &Truth, lsn: u64) -> Check {
        if lsn > watermark(self.row) {
            let row = self.row.watermark;
            return wrong(format!("{} is confirmed, the cursor row says {row}", at(lsn)));
        }
        self.check_below(truth, lsn, None)?;
        self.confirmed = self.confirmed.max(lsn);
        Ok(())
    }

    /// Everything below the position is delivered, has a row, or was given up by a person.
    fn check_below(&mut self, truth: &Truth, lsn: u64, partial: Option<Position>) -> Check {
        if lsn > self.end {
            return wrong(format!("{} is beyond the end of the WAL", at(lsn)));
        }
        let missing = |event: usize| {
            let position = truth.events[event].position;
            let owed = !truth.settled(event) && !self.table.contains_key(&position);
            owed.then_some(position)
        };
        let mut accounted = self.accounted;
        while let Some(transaction) =
            self.transactions.get(accounted).filter(|transaction| transaction.commit < lsn)
        {
            for change in &transaction.changes {
                let Change::Event(event) = change else { continue };
                if let Some(position) = missing(*event) {
                    let lsn = at(lsn);
                    return wrong(format!("{lsn} passes {position}, which is nowhere"));
                }
            }
            accounted += 1;
        }
        let next = self.transactions.get(accounted);
        if let (Some(partial), Some(transaction)) = (partial, next)
            && partial.commit_lsn.to_wire() == transaction.commit
        {
            for change in transaction.changes.iter().take(usize::try_from(partial.ordinal).unwrap())
            {
                let Change::Event(event) = change else { continue };
                if let Some(position) = missing(*event) {
                    return wrong(format!("{partial} passes {position}, which is nowhere"));
                }
            }
        }
        self.accounted = accounted;
        Ok(())
    }

    pub(super) fn execute(
        &mut self,
        truth: &mut Truth,
        now: u64,
        statement: Statement,
    ) -> Result<Answer, super::Stop> {
        Ok(match statement {
            Statement::Cursor { progress, epoch } => {
                let stored = epoch == self.epoch && self.row.watermark <= progress.watermark;
                if stored {
                    self.check_below(truth, watermark(progress), progress.partial)?;
                    self.row = progress;
                }
                Answer::Cursor(stored)
            }
            Statement::Parking { rows, marks, epoch } => {
                if epoch == self.epoch {
                    let left = self.leave_locked(now, &marks);
                    let mut marks = marks;
                    marks.retain(|mark| !left.contains(&mark.position));
                    self.write_marks(truth, now, &marks)?;
                    self.write_rows(truth, now, &rows)?;
                    Answer::Parking(Some(left))
                } else {
                    Answer::Parking(None)
                }
            }
            Statement::Fetch { positions } => {
                let found = |position: &Position| {
                    let row = self.table.get(position).filter(|row| !row.state.resolved())?;
                    Some((*position, row.event, row.version))
                };
                let found = positions.iter().filter_map(found).collect();
                Answer::Fetched(positions, found)
            }
            Statement::Ask => Answer::Asked(
                self.table.iter().filter_map(|(at, row)| Some((*at, row.request?))).collect(),
            ),
        })
    }

    /// Which rows a write leaves out: those that are locked, and the later ones of their lanes.
    fn leave_locked(&mut self, now: u64, marks: &[ParkedUpdate]) -> Vec<Position> {
        if !marks.is_empty() && self.locks.rng.chance(self.locks.in_1000) {
            let at = marks[self.locks.rng.index(marks.len())].position;
            let until = now + self.locks.rng.below(LOCKED_MAX);
            self.locked.insert(at, until);
        }
        self.locked.retain(|_, until| *until > now);
        let (mut left, mut lanes) = (Vec::new(), Vec::new());
        for ParkedUpdate { position, .. } in marks {
            let Some(row) = self.table.get(position) else { continue };
            let behind = row.lane.is_some_and(|lane| lanes.contains(&lane));
            if self.locked.contains_key(position) || behind {
                left.push(*position);
                lanes.extend(row.lane);
            }
        }
        left
    }

    fn write_rows(&mut self, truth: &mut Truth, now: u64, rows: &[(Entry, usize)]) -> Check {
        for (entry, event) in rows {
            let what = &mut truth.events[*event];
            assert_eq!(what.position, entry.position);
            if entry.attempts > what.refused {
                return wrong(format!("{} is parked as refused, and never was", entry.position));
            }
            what.free |= entry.lane.is_none() && !self.table.contains_key(&entry.position);
            self.table.entry(entry.position).or_insert_with(|| Row {
                event: *event,
                lane: entry.lane,
                state: entry.state,
                attempts: entry.attempts,
                next_at: now + millis(entry.wait),
                overtaken_by: entry.overtaken_by,
                request: None,
                version: 0,
            });
        }
        Ok(())
    }

    fn write_marks(&mut self, truth: &mut Truth, now: u64, marks: &[ParkedUpdate]) -> Check {
        for ParkedUpdate { position, became } in marks {
            let Some(row) = self.table.get_mut(position) else { continue };
            let what = &mut truth.events[row.event];
            if matches!(became, ParkedOutcome::Declined) {
                row.request = None;
            }
            if row.state.resolved() {
                if let ParkedOutcome::Overtaken { by } = *became {
                    row.overtaken_by = row.overtaken_by.or(Some(by));
                }
                continue;
            }
            match *became {
                ParkedOutcome::Done => {
                    if !truth.delivered(row.event) {
                        return wrong(format!("{position} is marked as done, and is not"));
                    }
                    (row.state, row.request) = (State::Done, None);
                }
                ParkedOutcome::Skipped => {
                    if !what.skip_asked {
                        return wrong(format!("{position} is skipped, and nobody asked for it"));
                    }
                    what.skipped = true;
                    (row.state, row.request) = (State::Skipped, None);
                }
                ParkedOutcome::Refused { state, attempts, wait, reason: _ } => {
                    if attempts > what.refused {
                        let really = what.refused;
                        return wrong(format!(
                            "{position} counts {attempts} refusals, there were {really}"
                        ));
                    }
                    (row.state, row.attempts) = (state, attempts);
                    row.next_at = now + millis(wait);
                }
                ParkedOutcome::Again => {
                    if row.request == Some(Request::Replace) {
                        row.version += 1;
                        what.version = row.version;
                        // What a person puts in its place is good.
                        what.mended_at = 0;
                    }
                    (row.state, row.attempts, row.next_at) = (State::Waiting, 0, now);
                    row.request = None;
                }
                ParkedOutcome::Overtaken { by } => row.overtaken_by = row.overtaken_by.or(Some(by)),
                ParkedOutcome::Declined | ParkedOutcome::DeadSent => {}
            }
        }
        Ok(())
    }

    /// The parked table as a start reads it.
    pub(super) fn load(&self, from: Position, now: u64) -> (Vec<Entry>, Vec<(Position, Request)>) {
        let rows = self.table.iter().filter(|(at, row)| !row.state.resolved() || **at >= from);
        let entry = |(position, row): (&Position, &Row)| Entry {
            position: *position,
            lane: row.lane,
            state: row.state,
            attempts: row.attempts,
            wait: Duration::from_millis(if row.state == State::Dead {
                0
            } else {
                row.next_at.saturating_sub(now)
            }),
            overtaken_by: row.overtaken_by,
        };
        let requests = rows.clone().filter_map(|(at, row)| Some((*at, row.request?))).collect();
        (rows.map(entry).collect(), requests)
    }

    /// Tombstones that no stream brings again go.
    pub(super) fn prune(&mut self) {
        let low = self.row.watermark.lsn();
        self.table.retain(|at, row| {
            !row.state.resolved() || row.request.is_some() || at.commit_lsn >= low
        });
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}
