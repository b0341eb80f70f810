//! One claim of polling on its way through the relay: fed row by row, and settled when every row has its outcome.
//!
//! To the relay a claim is what a transaction of the stream is. Its position is the end of the source's log at the time
//! of the claim. That is no commit position, but it rises from claim to claim, which is all that the order of events
//! needs.

use super::input::{ClaimedRow, NewClaim};
use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use crate::published::{ParkedRow, RowOrigin};
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::outbox_rows::RowOutcome;
use postrider_core::parked::{Entry, Lane, State};
use postrider_core::record::Ticket;
use postrider_core::timestamp::Timestamp;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// An open claim.
#[derive(Debug)]
pub struct OpenClaim {
    /// The position by which the relay knows the claim.
    at: Offset,
    /// The first position after it.
    end: Offset,
    /// The clock of the server when the rows were claimed: their commit time for the relay.
    commit_time: Timestamp,
    rows: Vec<OpenRow>,
    /// Number of rows that were fed.
    fed: usize,
    fed_to: FedTo,
    /// The tickets of the rows that were fed, in ascending order. A row without a ticket has the one of the next row.
    tickets: Vec<Ticket>,
    /// What it has parked.
    parked: ParkedInClaim,
    /// The relay has requested a cursor row, which is the commit of the claim.
    cursor_waits: bool,
    /// When the rows were claimed.
    claimed_at: Duration,
    /// When the rows were claimed, or last settled in part.
    held_since: Duration,
}

/// What an open claim has parked.
#[derive(Debug, Default)]
struct ParkedInClaim {
    /// Aggregates of rows whose failure, or waiting, is kept in their table.
    kept: HashSet<Lane>,
    /// Aggregates of events that the claim has moved in the parked table, and the last of their rows.
    moved: HashMap<Lane, usize>,
    /// The rows of `kept`, as the relay knows them. Before the claim is settled they are recorded nowhere else.
    failures: Vec<Entry>,
}

/// A row of an open claim.
#[derive(Debug)]
struct OpenRow {
    claimed: ClaimedRow,
    /// The broker has acknowledged the row since the claim was last fed from its beginning.
    acked: bool,
    /// The row is settled and committed while other rows of the claim are still being published.
    done: bool,
    /// The known outcome. A row without one is published once the relay has resolved it.
    outcome: Option<RowOutcome>,
}

/// Which of the changes of a claim were applied to the relay, besides its rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FedTo {
    Nothing,
    Begin,
    Commit,
}

/// The outcomes with which a claim that is held for long can be settled in part.
#[derive(Debug)]
pub(super) struct ClaimPart {
    /// One for each row; [`RowOutcome::Held`] for rows that stay in the claim and for rows that were settled before.
    pub(super) outcomes: Vec<RowOutcome>,
    /// An event is parked behind a row without an outcome. That row may belong to the same aggregate, and would be
    /// published at a later position if the process ended; so nothing that the claim has parked may be committed yet.
    pub(super) parked_behind_open: bool,
}

impl OpenClaim {
    /// Opens a claim that has rows. `floor` is the end of the claim before.
    pub(super) fn new(now: Duration, claim: NewClaim, floor: Offset) -> Self {
        let (at, end) = position(claim.wal_end, floor);
        let open = |claimed| OpenRow { claimed, acked: false, done: false, outcome: None };
        let rows: Vec<OpenRow> = claim.rows.into_iter().map(open).collect();
        Self {
            at,
            end,
            commit_time: claim.claimed_at,
            fed: 0,
            fed_to: FedTo::Nothing,
            tickets: Vec::with_capacity(rows.len()),
            parked: ParkedInClaim::default(),
            cursor_waits: false,
            claimed_at: now,
            held_since: now,
            rows,
        }
    }

    /// The position by which the relay knows the claim.
    pub fn at(&self) -> Offset {
        self.at
    }

    /// The first position after the claim.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn commit_time(&self) -> Timestamp {
        self.commit_time
    }

    pub(super) fn claimed_at(&self) -> Duration {
        self.claimed_at
    }

    pub(super) fn held_since(&self) -> Duration {
        self.held_since
    }

    /// The time for which the claim may be held begins again.
    pub(super) fn holds_since(&mut self, now: Duration) {
        self.held_since = now;
    }

    /// The row at this position of the claim.
    fn row_at(&self, position: Position) -> Option<(usize, &OpenRow)> {
        let index = usize::try_from(position.ordinal).ok()?;
        self.rows.get(index).map(|row| (index, row))
    }

    /// The transaction that wrote the row at this position; 0 if there is no such row.
    pub(super) fn xmin(&self, position: Position) -> u32 {
        self.row_at(position).map_or(0, |(_, row)| row.claimed.xmin)
    }

    /// The index of the row at this position, if it was moved to the parked table and its payload was not read.
    pub(super) fn unread_and_moved(&self, position: Position) -> Option<usize> {
        let (index, row) = self.row_at(position)?;
        (row.outcome == Some(RowOutcome::Moved) && row.claimed.too_large).then_some(index)
    }

    /// Whether the failure of the row at this position is kept in the outbox table.
    pub(super) fn keeps_failure_of(&self, position: Position) -> bool {
        let outcome = self.row_at(position).and_then(|(_, row)| row.outcome.as_ref());
        matches!(outcome, Some(RowOutcome::Failed { .. }))
    }

    pub(super) fn fed_to(&self) -> FedTo {
        self.fed_to
    }

    pub(super) fn feeds_to(&mut self, fed_to: FedTo) {
        self.fed_to = fed_to;
    }

    /// The next row to be fed, whether it is settled and committed already, and its index.
    pub(super) fn next_row(&self) -> Option<(usize, bool, ClaimedRow)> {
        self.rows.get(self.fed).map(|row| (self.fed, row.done, row.claimed))
    }

    /// The next row gets this ticket, unless it is skipped without one.
    pub(super) fn note_ticket(&mut self, ticket: Ticket) {
        if self.tickets.len() == self.fed {
            self.tickets.push(ticket);
        }
    }

    /// The next row was fed.
    pub(super) fn row_fed(&mut self) {
        self.fed += 1;
    }

    /// Prepares to feed the claim from its beginning again, at the same positions.
    pub(super) fn rewind(&mut self) {
        (self.fed, self.fed_to, self.cursor_waits) = (0, FedTo::Nothing, false);
        self.tickets.clear();
        if injected(Bug::KeepsAcksOnRewind) {
            return;
        }
        // A row that is published again needs an acknowledgement again; otherwise an aggregate could end with a
        // repetition of an earlier event.
        for row in &mut self.rows {
            row.acked = false;
        }
    }

    /// The broker has acknowledged the event of this ticket.
    pub(super) fn acknowledged(&mut self, ticket: Ticket) {
        let row = self.tickets.partition_point(|of| *of <= ticket).checked_sub(1);
        if let Some(row) = row.and_then(|row| self.rows.get_mut(row)) {
            row.acked = true;
        }
    }

    /// Whether the relay has resolved every row of the claim.
    pub(super) fn is_resolved(&self, progress: &Progress) -> bool {
        self.fed_to == FedTo::Commit && progress.watermark.offset() >= self.end
    }

    /// The number of leading rows that are resolved: by the relay, or because they are committed. What the claim has
    /// parked among the committed rows must not be undone, whatever the relay remembers of it.
    pub(super) fn resolved(&self, progress: &Progress) -> usize {
        if progress.watermark.offset() >= self.end {
            return self.rows.len();
        }
        let partial = progress.partial.filter(|partial| partial.commit == self.at);
        let by_relay = partial.map_or(0, |at| usize::try_from(at.ordinal).unwrap_or(0));
        by_relay.max(self.rows.iter().take_while(|row| row.done).count())
    }

    /// The outcomes of the rows: those below `resolved`, and after it those that are acknowledged and have no open row
    /// of their aggregate before them.
    pub(super) fn part(&self, resolved: usize) -> ClaimPart {
        let (mut open, mut parked_behind_open) = (HashSet::new(), false);
        let mut outcomes = Vec::with_capacity(self.rows.len());
        for (index, row) in self.rows.iter().enumerate() {
            if row.done {
                outcomes.push(RowOutcome::Held);
                continue;
            }
            let acked = row.acked || injected(Bug::SettlesBeforeAck) && index < self.fed;
            let waits = open.contains(&row.claimed.key) && !injected(Bug::SettlesPastOpenRow);
            let outcome = match &row.outcome {
                Some(known) if index < resolved => known.clone(),
                None if index < resolved || acked && !waits => RowOutcome::Published,
                _ => RowOutcome::Held,
            };
            if outcome == RowOutcome::Held {
                parked_behind_open |= !matches!(row.outcome, None | Some(RowOutcome::Held));
                open.insert(row.claimed.key);
            }
            outcomes.push(outcome);
        }
        let parked_behind_open = parked_behind_open && !injected(Bug::SettlesPartBehindParked);
        ClaimPart { outcomes, parked_behind_open }
    }

    /// Indexes of the rows that stay in the claim when these outcomes are settled.
    pub(super) fn left_by(&self, outcomes: &[RowOutcome]) -> Vec<usize> {
        let rows = self.rows.iter().zip(outcomes).enumerate();
        let left = rows.filter(|(_, (row, outcome))| !row.done && **outcome == RowOutcome::Held);
        left.map(|(index, _)| index).collect()
    }

    /// Rows are settled and committed. `settled` returns whether a row is one of them.
    pub(super) fn settled_in_part(&mut self, settled: impl Fn(usize) -> bool) {
        for (index, row) in self.rows.iter_mut().enumerate() {
            row.done |= settled(index);
        }
    }

    /// Notes the outcome of a row that is parked. `keeps`: failures of rows are kept in the outbox table. A row whose
    /// event is in doubt is parked nevertheless, because only a parked event can be decided by a person. Returns
    /// whether the outbox table is done with the row.
    pub(super) fn parks(
        &mut self,
        (entry, row): (Entry, &ParkedRow<'_>),
        origin: RowOrigin,
        keeps: bool,
    ) -> bool {
        let index = usize::try_from(entry.position.ordinal).unwrap_or(usize::MAX);
        let waits = entry.lane.is_some_and(|lane| self.parked.kept.contains(&lane));
        // The claim is fed again, and has moved a later event of the aggregate before: if this one stayed in the table,
        // it would be claimed again after that one.
        let last_moved = entry.lane.and_then(|lane| self.parked.moved.get(&lane));
        let precedes_moved = last_moved.is_some_and(|last| *last > index);
        let outcome = match origin {
            // An earlier event stays in the table, and this one is claimed again after it.
            RowOrigin::Requeued | RowOrigin::Doubted if keeps && waits => RowOutcome::Held,
            RowOrigin::New if keeps && !precedes_moved => {
                self.parked.kept.extend(entry.lane);
                failure(row)
            }
            RowOrigin::Requeued | RowOrigin::Kept | RowOrigin::New | RowOrigin::Doubted => {
                RowOutcome::Moved
            }
        };
        let moved = outcome == RowOutcome::Moved;
        if keeps && origin != RowOrigin::Kept {
            self.parked.failures.push(entry);
        }
        // A row of an event that stays where it is parked is not moved.
        if let Some(lane) = entry.lane.filter(|_| moved && origin != RowOrigin::Kept) {
            let last = self.parked.moved.entry(lane).or_default();
            *last = index.max(*last);
        }
        if let Some(row) = self.rows.get_mut(index) {
            row.outcome = Some(outcome);
        }
        moved
    }

    /// The relay has requested a cursor row.
    pub(super) fn requests_cursor(&mut self) {
        self.cursor_waits = true;
    }

    /// Whether a cursor row was requested.
    pub(super) fn cursor_waits(&self) -> bool {
        self.cursor_waits
    }

    /// Whether a cursor row was requested; resets the request.
    pub(super) fn takes_cursor(&mut self) -> bool {
        std::mem::take(&mut self.cursor_waits)
    }

    /// The parked events, where `loaded` are those of the tables: rows whose failure the outbox table will keep are not
    /// among them.
    pub(super) fn parked(&self, mut loaded: Vec<Entry>) -> Vec<Entry> {
        let ours = |entry: &Entry| entry.position.commit == self.at;
        if !self.parked.failures.is_empty() {
            // The rows of their dead letters are in the parked table instead.
            loaded.retain(|entry| !ours(entry));
            loaded.extend_from_slice(&self.parked.failures);
        }
        loaded
    }
}

/// The position of a claim for the relay, and the first position after it: the end of the log, or `floor` if that is
/// higher, with its lowest bit set.
///
/// With PostgreSQL, commit records are aligned to 8 bytes, so no commit of the stream has an odd position. The next
/// commit may get the end of the log as its position, and its event must not be taken for one that was parked in this
/// claim.
fn position(wal_end: Offset, floor: Offset) -> (Offset, Offset) {
    let from = if injected(Bug::ClaimPositionStays) { wal_end } else { wal_end.max(floor) };
    let at = Offset::new(from.get() | 1);
    // Any number above the position and not above that of the next claim is right.
    (at, Offset::new(at.get() + 1))
}

/// The outcome of a parked event in a table that keeps failures.
fn failure(row: &ParkedRow<'_>) -> RowOutcome {
    match row.entry.state {
        State::Waiting | State::Dead => RowOutcome::Failed {
            error: row.error.unwrap_or_default().to_owned(),
            code: row.error_code.unwrap_or("refused"),
        },
        State::Behind | State::Due | State::Done | State::Skipped => RowOutcome::Held,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::event::Aggregate;

    #[test]
    fn claims_rise_and_never_stand_where_a_commit_can() {
        let mut floor = Offset::ZERO;
        for wal_end in [0x100, 0x100, 0x108, 0x50, 0x200].map(Offset::new) {
            let (at, end) = position(wal_end, floor);
            assert!(at >= floor && at >= wal_end && end > at);
            assert_eq!(at.get() % 2, 1, "where a commit record may begin");
            floor = end;
        }
    }

    /// An open claim of one row for each of these aggregates.
    fn open_claim(aggregates: &[&str]) -> OpenClaim {
        let row = |id: &&str| ClaimedRow {
            key: Lane::of(Aggregate { kind: "order", id }),
            xmin: 1,
            too_large: false,
        };
        let rows = aggregates.iter().map(row).collect();
        OpenClaim::new(Duration::ZERO, NewClaim { rows, ..NewClaim::default() }, Offset::ZERO)
    }

    fn feed(open: &mut OpenClaim, first: u64) {
        for ticket in first..first + 4 {
            open.note_ticket(Ticket(ticket));
            open.row_fed();
        }
    }

    fn settled(open: &OpenClaim) -> Vec<bool> {
        let of = open.part(0).outcomes;
        of.into_iter().map(|outcome| outcome == RowOutcome::Published).collect()
    }

    /// A claim is settled in part by what is acknowledged. A row that is fed again is published again, and is settled
    /// when that is acknowledged. Otherwise its aggregate could end with a repetition of an earlier event.
    #[test]
    fn row_that_is_fed_again_is_settled_when_it_is_acknowledged_again() {
        let mut open = open_claim(&["a", "b", "b", "c"]);
        feed(&mut open, 0);
        assert_eq!(settled(&open), [false; 4]);
        open.acknowledged(Ticket(0));
        open.acknowledged(Ticket(2));
        open.acknowledged(Ticket(3));
        assert_eq!(settled(&open), [true, false, false, true], "an earlier row of \"b\" is open");
        open.rewind();
        assert_eq!(settled(&open), [false; 4], "nothing is acknowledged since");
        feed(&mut open, 4);
        open.acknowledged(Ticket(4));
        assert_eq!(settled(&open), [true, false, false, false]);
    }

    #[test]
    fn rows_that_are_settled_in_part_are_settled_once() {
        let mut open = open_claim(&["a", "b", "b", "c"]);
        feed(&mut open, 0);
        open.acknowledged(Ticket(0));
        let part = open.part(0);
        assert!(!part.parked_behind_open);
        assert_eq!(open.left_by(&part.outcomes), [1, 2, 3]);
        open.settled_in_part(|row| row == 0);
        assert_eq!(settled(&open), [false; 4]);
        assert_eq!(open.resolved(&Progress::default()), 1, "committed, whatever the relay knows");
        assert_eq!(open.left_by(&open.part(0).outcomes), [1, 2, 3]);
    }
}
