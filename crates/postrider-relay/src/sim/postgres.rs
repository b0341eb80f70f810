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

/// A start that no stream follows reads no resolved rows.
pub(super) const WITHOUT_RESOLVED: Position = Position { commit: Offset::MAX, ordinal: 0 };

/// Makes the seed of the generator for locked rows differ from the others.
const LOCKS_SEED: u64 = 0x10CC;

/// Number of runs in a thousand in which rows are locked.
const LOCKS_RUNS: u64 = 300;

/// Number of writes in a thousand with status changes, in such a run, that find a row locked.
const LOCKS_ROWS: u64 = 300;

/// WAL of a transaction of Postrider. Unit: bytes.
const OWN_WAL: u64 = 64;

/// The number before that of the first transaction: numbers wrap around.
const FIRST_XID: u32 = u32::MAX - 40;

/// Maximum time that a row stays locked. Unit: milliseconds.
const LOCKED_MAX: u64 = 3_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum WalChange {
    Other,
    Event(usize),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Transaction {
    pub(super) commit: u64,
    pub(super) end: u64,
    pub(super) changes: Vec<WalChange>,
    pub(super) xid: u32,
    /// When it was committed. Unit: milliseconds.
    pub(super) time: u64,
    /// Until when no other session sees it, though a walsender sends it: the commit waits for a standby.
    pub(super) hidden_until: u64,
}

/// The slot of the pipeline.
#[derive(Clone, Debug)]
pub(super) struct ReplicationSlot {
    pub(super) exists: bool,
    /// The slot is invalidated.
    pub(super) lost: bool,
    /// Where it was created: it streams the transactions that commit at or after this position.
    pub(super) created: u64,
    pub(super) confirmed: u64,
    /// The confirmed position after a crash.
    pub(super) saved: u64,
    /// The process that streams.
    pub(super) holder: Option<usize>,
}

impl ReplicationSlot {
    pub(super) fn new(created: u64) -> Self {
        Self {
            exists: true,
            lost: false,
            created,
            confirmed: created,
            saved: created,
            holder: None,
        }
    }

    /// Whether it can be streamed from.
    pub(super) fn is_usable(&self) -> bool {
        self.exists && !self.lost
    }
}

/// A row of the parked table.
#[derive(Clone, Debug)]
pub(super) struct ParkedTableRow {
    pub(super) event: usize,
    pub(super) lane: Option<Lane>,
    pub(super) state: State,
    attempts: u32,
    next_at: u64,
    overtaken_by: Option<Position>,
    pub(super) request: Option<Request>,
    pub(super) version: u32,
    /// The transaction that wrote the row last.
    pub(super) xmin: u32,
    /// When the event was committed, or the time of the claim that has parked it.
    pub(super) commit_time: u64,
    /// The payload: the number of times that the application had changed it.
    pub(super) content: u32,
    /// The transaction that wrote the event's row, if it is known.
    pub(super) xid: Option<u32>,
}

impl ParkedTableRow {
    fn new(
        entry: &Entry,
        event: usize,
        now: u64,
        (commit_time, content, xmin): (u64, u32, u32),
    ) -> Self {
        Self {
            event,
            lane: entry.lane,
            state: entry.state,
            attempts: entry.attempts,
            next_at: now + millis(entry.wait),
            overtaken_by: entry.overtaken_by,
            request: None,
            version: 0,
            xmin,
            commit_time,
            content,
            xid: entry.xid,
        }
    }

    /// Whether a person has decided that the event is not published as its row in the outbox has it.
    pub(super) fn is_decided(&self) -> bool {
        self.state == State::Skipped || self.state == State::Done && self.version > 0
    }

    /// Whether a person has skipped or replaced the event, or wants to replace it.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.state == State::Skipped || self.version > 0 || self.request == Some(Request::Replace)
    }
}

#[derive(Debug)]
pub(super) enum Statement {
    Cursor { progress: Progress, epoch: u64 },
    Parking { rows: Vec<(Entry, usize)>, statuses: Vec<ParkedUpdate>, epoch: u64 },
    Fetch { positions: Vec<Position> },
    ReadRequests,
}

#[derive(Debug)]
pub(super) enum Reply {
    /// Whether the row was written.
    Cursor(bool),
    /// The locked rows whose status was left out; `None` if nothing was written.
    Parking(Option<Vec<Position>>),
    /// The requested positions, and the events and versions that were found.
    Fetched(Vec<Position>, Vec<(Position, usize, u32)>),
    Requests(Vec<(Position, Request)>),
}

/// A change of the parked table in the transaction of a claim.
#[derive(Clone, Copy, Debug)]
pub(super) enum ParkedChange {
    /// A new row, unless there is one at its position.
    Insert { entry: Entry, event: usize, claimed_at: u64, content: u32, undecided: bool },
    /// The row moves from the first position to the second one.
    Move(Position, Position),
    /// The rows of this claim from this position on are deleted.
    DeleteFrom(Position),
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) transactions: Vec<Transaction>,
    /// First byte after the WAL.
    pub(super) end: u64,
    pub(super) slot: ReplicationSlot,
    /// The number of the newest transaction.
    xid: u32,
    pub(super) row: Progress,
    pub(super) epoch: u64,
    pub(super) table: BTreeMap<Position, ParkedTableRow>,
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

/// Whether a claim has parked the event at this position: no commit record has an odd one.
pub(super) fn is_of_claim(position: Position) -> bool {
    position.commit.get() % 2 == 1
}

pub(super) fn watermark(progress: Progress) -> u64 {
    progress.watermark.offset().get()
}

impl Server {
    pub(super) fn new() -> Self {
        let watermark = Watermark::resumed(at(16));
        Self {
            transactions: Vec::new(),
            end: 16,
            slot: ReplicationSlot::new(16),
            xid: FIRST_XID,
            row: Progress { watermark, partial: None },
            epoch: 0,
            table: BTreeMap::new(),
            orphans: VecDeque::new(),
            locked: BTreeMap::new(),
            locks: Locks::default(),
            accounted: 0,
        }
    }

    /// The number of a new transaction.
    pub(super) fn next_xid(&mut self) -> u32 {
        self.xid = self.xid.wrapping_add(1);
        self.xid
    }

    /// A transaction of Postrider commits: the WAL grows.
    pub(super) fn write_own(&mut self) {
        self.end += OWN_WAL;
    }

    /// The lowest number that a transaction may have which is not over at this time.
    pub(super) fn snapshot_xmin(&self, now: u64) -> u32 {
        let hidden = |txn: &&Transaction| txn.hidden_until > now;
        let oldest = self.transactions.iter().find(hidden);
        oldest.map_or(self.xid.wrapping_add(1), |txn| txn.xid)
    }

    /// Writes the commit record of a transaction, behind `gap` bytes of other WAL. Returns its start and end.
    pub(super) fn write(&mut self, gap: u64) -> (u64, u64) {
        let commit = self.end + gap;
        self.end = commit + 48;
        (commit, self.end)
    }

    /// The server dies: the slot returns to its last saved position.
    pub(super) fn crash(&mut self) {
        self.slot.confirmed = self.slot.saved;
        self.slot.holder = None;
        self.orphans.clear();
    }

    /// The slot is saved.
    pub(super) fn save(&mut self) {
        self.slot.saved = self.slot.confirmed;
    }

    /// The progress from which a stream starts.
    pub(super) fn resume(&self) -> Result<Progress, super::Stop> {
        if self.slot.confirmed > watermark(self.row) {
            // The start check halts in this case.
            let (slot, row) = (at(self.slot.confirmed), self.row.watermark);
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
        self.slot.confirmed = self.slot.confirmed.max(lsn);
        Ok(())
    }

    /// The events of the unresolved rows of the parked table.
    pub(super) fn unresolved(&self) -> impl Iterator<Item = usize> {
        let rows = self.table.values().filter(|row| !row.state.resolved());
        rows.map(|row| row.event)
    }

    /// Whether the event has a row in the parked table: at its own position, or at that of a claim.
    pub(super) fn has_parked(&self, truth: &Truth, event: usize) -> bool {
        self.table.contains_key(&truth.events[event].position)
            || self.table.values().any(|row| row.event == event)
    }

    /// Every event below the position is published, has a row, or was skipped.
    pub(super) fn check_below(
        &mut self,
        truth: &Truth,
        lsn: u64,
        partial: Option<Position>,
    ) -> Check {
        if lsn > self.end {
            return wrong(format!("{} is beyond the end of the WAL", at(lsn)));
        }
        let missing = |event: usize| {
            let is_missing = !truth.settled(event) && !self.has_parked(truth, event);
            is_missing.then_some(truth.events[event].position)
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
    ) -> Result<Reply, super::Stop> {
        Ok(match statement {
            Statement::Cursor { progress, epoch } => {
                let stored = epoch == self.epoch && self.row.watermark <= progress.watermark;
                if stored {
                    self.check_below(truth, watermark(progress), progress.partial)?;
                    self.row = progress;
                }
                Reply::Cursor(stored)
            }
            Statement::Parking { rows, statuses, epoch } => {
                if epoch == self.epoch {
                    let left = self.defer_locked(now, &statuses);
                    let mut statuses = statuses;
                    statuses.retain(|status| !left.contains(&status.position));
                    self.write_statuses(truth, now, &statuses)?;
                    self.write_rows(truth, now, &rows)?;
                    Reply::Parking(Some(left))
                } else {
                    Reply::Parking(None)
                }
            }
            Statement::Fetch { positions } => {
                let found = |position: &Position| {
                    let row = self.table.get(position).filter(|row| !row.state.resolved())?;
                    Some((*position, row.event, row.version))
                };
                let found = positions.iter().filter_map(found).collect();
                Reply::Fetched(positions, found)
            }
            Statement::ReadRequests => Reply::Requests(
                self.table.iter().filter_map(|(at, row)| Some((*at, row.request?))).collect(),
            ),
        })
    }

    /// Another session has locked the row until this time.
    pub(super) fn lock_row(&mut self, position: Position, until: u64) {
        self.locked.insert(position, until);
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
            assert_eq!(truth.events[*event].position, entry.position);
            let commit = entry.position.commit.get();
            let of_event = self.transactions.iter().rev().find(|txn| txn.commit == commit);
            let time = of_event.map_or(now, |txn| txn.time);
            self.write_row(truth, now, (entry, *event), (time, 0))?;
        }
        Ok(())
    }

    /// Inserts a row, unless there is one at its position. `time`: when the event was committed or claimed.
    fn write_row(
        &mut self,
        truth: &mut Truth,
        now: u64,
        (entry, event): (&Entry, usize),
        (commit_time, content): (u64, u32),
    ) -> Check {
        let what = &mut truth.events[event];
        if entry.attempts > what.refused {
            return wrong(format!(
                "{} is parked as refused, but was never refused",
                entry.position
            ));
        }
        what.free |= entry.lane.is_none() && !self.table.contains_key(&entry.position);
        let written = (commit_time, content, self.xid);
        let row = || ParkedTableRow::new(entry, event, now, written);
        self.table.entry(entry.position).or_insert_with(row);
        Ok(())
    }

    /// Makes the changes of a claim.
    pub(super) fn write_claim(
        &mut self,
        truth: &mut Truth,
        now: u64,
        changes: &[ParkedChange],
    ) -> Check {
        for change in changes {
            match *change {
                ParkedChange::Insert { entry, event, claimed_at, content, undecided } => {
                    truth.events[event].outbox_row.undecided |= undecided;
                    self.write_row(truth, now, (&entry, event), (claimed_at, content))?;
                }
                ParkedChange::Move(..) => self.make_moves(&[*change])?,
                ParkedChange::DeleteFrom(from) => {
                    self.table.retain(|at, _| at.commit != from.commit || *at < from);
                }
            }
        }
        Ok(())
    }

    fn make_moves(&mut self, moves: &[ParkedChange]) -> Check {
        for change in moves {
            let ParkedChange::Move(from, to) = *change else { continue };
            let Some(mut row) = self.table.remove(&from) else { continue };
            row.xmin = self.xid;
            if self.table.insert(to, row).is_some() {
                return wrong(format!("a row is moved from {from} to {to}, where one is"));
            }
        }
        Ok(())
    }

    /// Moves unresolved events that claims have parked to positions below the cursor row, or behind an event of their
    /// aggregate that the stream repeats (`put_before_stream` of `store::requeue`).
    ///
    /// Polling may have claimed a parked event, and have left a later one of its aggregate as the stream had parked it.
    /// Then the claimed event, which the stream repeats too, gets behind the later one
    /// (`docs/guarantees/order.md`, the last of the windows).
    pub(super) fn put_before_stream(&mut self, truth: &mut Truth) -> Check {
        let row = watermark(self.row);
        if row <= 16 {
            return Ok(());
        }
        let below = row - row % 8 - 7;
        let mut before: BTreeMap<Option<Lane>, u64> = BTreeMap::new();
        let (mut moves, mut nth) = (Vec::new(), 0);
        for (position, parked) in &self.table {
            let commit = position.commit.get();
            if commit < row || parked.state.resolved() {
                continue;
            }
            if !is_of_claim(*position) {
                before.insert(parked.lane, commit);
                continue;
            }
            nth += 1;
            if before.contains_key(&parked.lane) {
                truth.repeats_alone(parked.event);
            }
            let to = below.max(before.get(&parked.lane).map_or(0, |commit| commit + 1));
            let there = self.table.keys().filter(|at| at.commit.get() == to);
            let ordinal = nth + there.map(|at| at.ordinal).max().unwrap_or(0);
            if commit != to {
                moves.push(ParkedChange::Move(*position, Position { commit: at(to), ordinal }));
            }
        }
        self.make_moves(&moves)
    }

    fn write_statuses(&mut self, truth: &mut Truth, now: u64, statuses: &[ParkedUpdate]) -> Check {
        for ParkedUpdate { position, became } in statuses {
            let xmin = self.xid;
            let Some(row) = self.table.get_mut(position) else { continue };
            row.xmin = xmin;
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
        load(&self.table, from, now)
    }

    /// All unresolved rows and their requests, as the transaction of a claim sees them that has made these changes.
    pub(super) fn load_in_claim(
        &self,
        changes: &[ParkedChange],
        now: u64,
    ) -> (Vec<Entry>, Vec<(Position, Request)>) {
        load(&self.table_in_claim(changes, now), WITHOUT_RESOLVED, now)
    }

    /// The parked table as the transaction of a claim sees it that has made these changes.
    pub(super) fn table_in_claim(
        &self,
        changes: &[ParkedChange],
        now: u64,
    ) -> BTreeMap<Position, ParkedTableRow> {
        let mut table = self.table.clone();
        for change in changes {
            match *change {
                ParkedChange::Insert { entry, event, claimed_at, content, undecided: _ } => {
                    let row =
                        ParkedTableRow::new(&entry, event, now, (claimed_at, content, self.xid));
                    table.entry(entry.position).or_insert(row);
                }
                ParkedChange::Move(from, to) => {
                    if let Some(row) = table.remove(&from) {
                        table.insert(to, row);
                    }
                }
                ParkedChange::DeleteFrom(from) => {
                    table.retain(|at, _| at.commit != from.commit || *at < from);
                }
            }
        }
        table
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

fn load(
    table: &BTreeMap<Position, ParkedTableRow>,
    from: Position,
    now: u64,
) -> (Vec<Entry>, Vec<(Position, Request)>) {
    let rows = table.iter().filter(|(at, row)| !row.state.resolved() || **at >= from);
    let entry = |(position, row): (&Position, &ParkedTableRow)| Entry {
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
        xid: None,
    };
    let requests = rows.clone().filter_map(|(at, row)| Some((*at, row.request?))).collect();
    (rows.map(entry).collect(), requests)
}
