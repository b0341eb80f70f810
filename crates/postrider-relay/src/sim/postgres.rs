//! The fake database: WAL, slot, cursor row, parked table, and the statements on them.
//!
//! The fake behaves as PostgreSQL does wherever the relay can observe a difference (the integration tests `model`
//! compare the two): the advance of the slot is durable only after it is saved; a stream skips transactions that commit
//! below its start; a write is fenced by the owner's epoch; the status changes of a statement do not see its new rows.

use super::rng::Rng;
use super::truth::Truth;
use super::{Check, wrong};
use crate::ack::Progress;
use postrider_core::event::Position;
use postrider_core::offset::{Offset, Watermark};
use postrider_core::parked::{Entry, Lane, ParkedOutcome, ParkedUpdate, Request, State};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Makes the seed of the generator for locked rows differ from the others.
const LOCKS_SEED: u64 = 0x10CC;

/// Number of runs in a thousand in which rows are locked.
const LOCKS_RUNS: u64 = 300;

/// Number of writes in a thousand with status changes, in such a run, that find a row locked.
const LOCKS_ROWS: u64 = 300;

/// Maximum time that a row stays locked. Unit: milliseconds.
const LOCKED_MAX: u64 = 3_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum WalChange {
    Other,
    Event(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) commit: u64,
    pub(super) end: u64,
    pub(super) changes: Vec<WalChange>,
}

/// A row of the parked table.
#[derive(Clone, Debug)]
pub(super) struct ParkedRow {
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
    Parking { rows: Vec<(Entry, usize)>, statuses: Vec<ParkedUpdate>, epoch: u64 },
    Fetch { positions: Vec<Position> },
    ReadRequests,
}

#[derive(Debug)]
pub(super) enum Answer {
    /// Whether the row was written.
    Cursor(bool),
    /// The locked rows whose status was left out; `None` if nothing was written.
    Parking(Option<Vec<Position>>),
    /// The requested positions, and the events and versions that were found.
    Fetched(Vec<Position>, Vec<(Position, usize, u32)>),
    Requests(Vec<(Position, Request)>),
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) transactions: Vec<Transaction>,
    /// First byte after the WAL.
    pub(super) end: u64,
    pub(super) confirmed: u64,
    /// The confirmed position after a crash.
    pub(super) saved: u64,
    /// The process that streams.
    pub(super) holder: Option<usize>,
    pub(super) row: Progress,
    pub(super) epoch: u64,
    pub(super) table: BTreeMap<Position, ParkedRow>,
    /// Statements of lost sessions that may still be executed.
    pub(super) orphans: VecDeque<Statement>,
    /// Locked rows, and until when.
    locked: BTreeMap<Position, u64>,
    /// Decides whether the next write finds a row locked.
    pub(super) locks: Locks,
    /// Transactions before this index are checked: all of their events are accounted for.
    accounted: usize,
}

/// How often a row is locked just before a status of it is written.
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

pub(super) fn at(lsn: u64) -> Offset {
    Offset::new(lsn)
}

pub(super) fn watermark(progress: Progress) -> u64 {
    progress.watermark.offset().get()
}

impl Server {
    pub(super) fn new() -> Self {
        let watermark = Watermark::resumed(at(16));
        let row = Progress { watermark, partial: None };
        Self { end: 16, confirmed: 16, saved: 16, row, ..Self::default() }
    }

    /// Writes the commit record of a transaction, behind `gap` bytes of other WAL. Returns its start and end.
    pub(super) fn write(&mut self, gap: u64) -> (u64, u64) {
        let commit = self.end + gap;
        self.end = commit + 48;
        (commit, self.end)
    }

    /// The server dies: the slot returns to its last saved position.
    pub(super) fn crash(&mut self) {
        self.confirmed = self.saved;
        self.holder = None;
        self.orphans.clear();
    }

    /// The slot is saved.
    pub(super) fn save(&mut self) {
        self.saved = self.confirmed;
    }

    /// The progress from which a stream starts.
    pub(super) fn resume(&self) -> Result<Progress, super::Stop> {
        if self.confirmed > watermark(self.row) {
            // The start check halts in this case.
            let (slot, row) = (at(self.confirmed), self.row.watermark);
            wrong(format!("the slot is at {slot}, beyond the cursor row at {row}"))?;
        }
        Ok(self.row)
    }

    /// A status update confirms this position.
    pub(super) fn confirm(&mut self, truth: &Truth, lsn: u64) -> Check {
        if lsn > watermark(self.row) {
            let row = self.row.watermark;
            return wrong(format!("{} is confirmed, the cursor row is at {row}", at(lsn)));
        }
        self.check_below(truth, lsn, None)?;
        self.confirmed = self.confirmed.max(lsn);
        Ok(())
    }

    /// Every event below the position is published, has a row, or was skipped.
    fn check_below(&mut self, truth: &Truth, lsn: u64, partial: Option<Position>) -> Check {
        if lsn > self.end {
            return wrong(format!("{} is beyond the end of the WAL", at(lsn)));
        }
        let missing = |event: usize| {
            let position = truth.events[event].position;
            let is_missing = !truth.settled(event) && !self.table.contains_key(&position);
            is_missing.then_some(position)
        };
        let mut accounted = self.accounted;
        while let Some(transaction) =
            self.transactions.get(accounted).filter(|transaction| transaction.commit < lsn)
        {
            for change in &transaction.changes {
                let WalChange::Event(event) = change else { continue };
                if let Some(position) = missing(*event) {
                    let lsn = at(lsn);
                    return wrong(format!("{lsn} passes {position}, which is lost"));
                }
            }
            accounted += 1;
        }
        let next = self.transactions.get(accounted);
        if let (Some(partial), Some(transaction)) = (partial, next)
            && partial.commit.get() == transaction.commit
        {
            for change in transaction.changes.iter().take(usize::try_from(partial.ordinal).unwrap())
            {
                let WalChange::Event(event) = change else { continue };
                if let Some(position) = missing(*event) {
                    return wrong(format!("{partial} passes {position}, which is lost"));
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
            Statement::Parking { rows, statuses, epoch } => {
                if epoch == self.epoch {
                    let left = self.defer_locked(now, &statuses);
                    let mut statuses = statuses;
                    statuses.retain(|status| !left.contains(&status.position));
                    self.write_statuses(truth, now, &statuses)?;
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
            Statement::ReadRequests => Answer::Requests(
                self.table.iter().filter_map(|(at, row)| Some((*at, row.request?))).collect(),
            ),
        })
    }

    /// The rows whose status a write leaves out: locked rows, and later rows of their lanes.
    fn defer_locked(&mut self, now: u64, statuses: &[ParkedUpdate]) -> Vec<Position> {
        if !statuses.is_empty() && self.locks.rng.chance(self.locks.in_1000) {
            let at = statuses[self.locks.rng.index(statuses.len())].position;
            let until = now + self.locks.rng.below(LOCKED_MAX);
            self.locked.insert(at, until);
        }
        self.locked.retain(|_, until| *until > now);
        let (mut left, mut lanes) = (Vec::new(), Vec::new());
        for ParkedUpdate { position, .. } in statuses {
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
                return wrong(format!(
                    "{} is parked as refused, but was never refused",
                    entry.position
                ));
            }
            what.free |= entry.lane.is_none() && !self.table.contains_key(&entry.position);
            self.table.entry(entry.position).or_insert_with(|| ParkedRow {
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

    fn write_statuses(&mut self, truth: &mut Truth, now: u64, statuses: &[ParkedUpdate]) -> Check {
        for ParkedUpdate { position, became } in statuses {
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
                        return wrong(format!("{position} is set to done, and was not published"));
                    }
                    (row.state, row.request) = (State::Done, None);
                }
                ParkedOutcome::Skipped => {
                    if !what.skip_asked {
                        return wrong(format!("{position} is skipped without a request"));
                    }
                    what.skipped = true;
                    (row.state, row.request) = (State::Skipped, None);
                }
                ParkedOutcome::Refused { state, attempts, wait, reason: _ } => {
                    if attempts > what.refused {
                        let really = what.refused;
                        return wrong(format!("{position} counts {attempts} refusals of {really}"));
                    }
                    (row.state, row.attempts) = (state, attempts);
                    row.next_at = now + millis(wait);
                }
                ParkedOutcome::Again => {
                    if row.request == Some(Request::Replace) {
                        row.version += 1;
                        what.version = row.version;
                        // The replacement is published without a refusal.
                        what.fixed_at = 0;
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

    /// The rows and requests that a start reads.
    pub(super) fn load(&self, from: Position, now: u64) -> (Vec<Entry>, Vec<(Position, Request)>) {
        let rows = self.table.iter().filter(|(at, row)| !row.state.resolved() || **at >= from);
        let entry = |(position, row): (&Position, &ParkedRow)| Entry {
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

    /// Deletes resolved rows that no stream repeats.
    pub(super) fn prune(&mut self) {
        let low = self.row.watermark.offset();
        self.table
            .retain(|at, row| !row.state.resolved() || row.request.is_some() || at.commit >= low);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}
