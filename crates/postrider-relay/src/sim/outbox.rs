//! The fake outbox table: its rows, the locks on them, claims, and the status of published rows.
//!
//! The fake behaves as the statements in `postrider-postgres` do: `poll` (claims), `poll::row_status` (published rows
//! of the stream), `poll::by_id` (rows of a list). A claim is a transaction: what it changes is visible to others when
//! it is settled, and undone if its session ends. A row that another session has locked is not claimed, and neither is
//! a later row of its aggregate.

use super::plan::TableRules;
use super::postgres::{ParkedChange, Reply, Server, Statement};
use super::rng::Rng;
use super::truth::Truth;
use super::{Check, wrong};
use postrider_core::event::Position;
use postrider_core::parked::{Lane, ParkedUpdate};
use std::collections::{BTreeMap, BTreeSet};

/// A statement on its way to the server.
#[derive(Debug)]
pub(super) enum Sent {
    Table(Statement),
    /// Published rows get their status in the outbox.
    Statuses(Vec<StatusRow>, Vec<Lane>),
}

/// An answer on its way to the process.
#[derive(Debug)]
pub(super) enum Received {
    Table(Reply),
    /// The indexes of the rows that wait.
    Statuses(Vec<usize>),
}

/// Maximum time for which another session locks a row. Unit: milliseconds.
const LOCKED_MAX: u64 = 400;

/// The pause of a row that has failed, as the table records it. Unit: milliseconds.
const FAILED_PAUSE: u64 = 60;

/// The own time of event 0, and the distance to that of the next event. No commit has such a time, and two times differ
/// by more than is ascribed to rounding. Unit: milliseconds.
const FIRST_TIME: i64 = 1_000_000_000;
const TIME_STEP: i64 = 10;

/// The time that the time column of an event's row has.
pub(super) fn time_of(event: usize) -> i64 {
    FIRST_TIME + TIME_STEP * i64::try_from(event).unwrap()
}

/// A session that claims rows.
pub(super) type SessionId = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowState {
    Unpublished,
    Published,
    Expired,
}

/// A row of the outbox.
#[derive(Clone, Debug)]
pub(super) struct OutboxRow {
    pub(super) event: usize,
    /// Its aggregate, as one value.
    pub(super) key: u64,
    /// The transaction that wrote this version of the row.
    pub(super) xmin: u32,
    /// When that transaction was committed. Unit: milliseconds, as all times here.
    pub(super) written_at: u64,
    /// Number of times that the application has changed the payload.
    pub(super) content: u32,
    /// From when other sessions see the row.
    visible_at: u64,
    /// Before this time the row is not claimed: its event is delayed, or has failed.
    ready_at: u64,
    expires_at: Option<u64>,
    state: RowState,
    /// Until when another session has locked the row.
    locked_until: u64,
    claimed_by: Option<SessionId>,
}

impl OutboxRow {
    pub(super) fn is_unpublished(&self) -> bool {
        self.state == RowState::Unpublished
    }

    fn is_visible(&self, now: u64) -> bool {
        self.visible_at <= now
    }

    fn is_locked(&self, now: u64, for_session: Option<SessionId>) -> bool {
        self.locked_until > now || self.claimed_by.is_some_and(|by| Some(by) != for_session)
    }
}

/// The transaction of a claim.
#[derive(Debug, Default)]
pub(super) struct ClaimTransaction {
    /// The ids of the claimed rows, in order.
    pub(super) ids: Vec<u64>,
    /// Rows that get the status of expired rows.
    expired: Vec<u64>,
    /// Changes of the parked table.
    pub(super) parked: Vec<ParkedChange>,
    /// Statuses of rows that were parked earlier. Only an injected bug writes them in the transaction of a claim.
    pub(super) statuses: Vec<ParkedUpdate>,
}

/// What a claim asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimQuery<'a> {
    pub(super) limit: usize,
    /// Rows that are delayed or have failed are claimed too.
    pub(super) all: bool,
    /// Aggregates that are left out.
    pub(super) without: &'a [u64],
    /// Ids of rows that do not expire.
    pub(super) kept: &'a [u64],
}

/// The answer to one statement of a claim.
#[derive(Clone, Debug, Default)]
pub(super) struct ClaimAnswer {
    /// The ids of the claimed rows, in order.
    pub(super) ids: Vec<u64>,
    /// Aggregates whose first row could not be had.
    pub(super) blocked: Vec<u64>,
    pub(super) expired: u64,
    pub(super) withheld: u64,
    /// The bound on rows ended the claim.
    pub(super) cut: bool,
}

/// The outcome of a claimed row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Settled {
    Held,
    /// Published, or moved to the parked table.
    Done,
    Failed,
}

/// A published row of the stream that gets its status.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatusRow {
    pub(super) id: u64,
    pub(super) lane: Option<Lane>,
    pub(super) xid: Option<u32>,
    /// The own time of the event; `None` if only the id decides.
    pub(super) time: Option<i64>,
    /// The transaction of the event is known to be visible.
    pub(super) visible: bool,
}

/// The table, and the claims on it.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) rules: TableRules,
    pub(super) rows: BTreeMap<u64, OutboxRow>,
    claims: BTreeMap<SessionId, ClaimTransaction>,
    /// Decides which rows other sessions lock. A generator of its own leaves the draws of the others as they were.
    rng: Rng,
}

impl Outbox {
    pub(super) fn new(rules: TableRules, seed: u64) -> Self {
        Self { rules, rows: BTreeMap::new(), claims: BTreeMap::new(), rng: Rng::new(seed) }
    }

    /// A transaction has inserted the row of an event.
    pub(super) fn insert(
        &mut self,
        id: u64,
        (event, key): (usize, u64),
        (xmin, written_at, visible_at): (u32, u64, u64),
        (ready_at, expires_at): (u64, Option<u64>),
    ) {
        let row = OutboxRow {
            event,
            key,
            xmin,
            written_at,
            content: 0,
            visible_at,
            ready_at,
            expires_at,
            state: RowState::Unpublished,
            locked_until: 0,
            claimed_by: None,
        };
        self.rows.insert(id, row);
    }

    /// Rows that other sessions see, by their ids.
    pub(super) fn visible(&self, now: u64) -> impl Iterator<Item = (u64, &OutboxRow)> {
        let rows = self.rows.iter().map(|(id, row)| (*id, row));
        rows.filter(move |(_, row)| row.is_visible(now))
    }

    /// The rows of this transaction, and of its savepoint, are visible.
    pub(super) fn show(&mut self, xid: u32, now: u64) {
        for row in self.rows.values_mut() {
            if row.xmin.wrapping_sub(xid) <= 1 {
                row.visible_at = row.visible_at.min(now);
            }
        }
    }

    /// The row gets this id.
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        if let Some(row) = self.rows.remove(&from) {
            self.rows.insert(to, row);
        }
    }

    /// One statement of a claim, in the transaction of the session, which it begins if there is none.
    pub(super) fn claim(
        &mut self,
        now: u64,
        session: SessionId,
        ask: ClaimQuery<'_>,
    ) -> ClaimAnswer {
        let claim = self.claims.entry(session).or_default();
        let candidate = |(id, row): &(&u64, &OutboxRow)| {
            row.is_visible(now)
                && row.is_unpublished()
                && (ask.all || row.ready_at <= now)
                && !claim.expired.contains(id)
                && !ask.without.contains(&row.key)
        };
        let first: Vec<u64> =
            self.rows.iter().filter(candidate).take(ask.limit).map(|(id, _)| *id).collect();
        let mut answer = ClaimAnswer { cut: first.len() >= ask.limit, ..ClaimAnswer::default() };
        for id in first {
            let row = &self.rows[&id];
            let key = row.key;
            // A delayed or failed row before this one holds it back.
            let waits = !ask.all
                && self.rows.range(..id).any(|(_, other)| {
                    other.key == key
                        && other.is_visible(now)
                        && other.is_unpublished()
                        && other.ready_at > now
                });
            let had = !waits && !row.is_locked(now, Some(session));
            let expired = row.expires_at.is_some_and(|at| at <= now) && !ask.kept.contains(&id);
            if had {
                self.rows.get_mut(&id).unwrap().claimed_by = Some(session);
            }
            if !had {
                answer.withheld += 1;
                if !answer.blocked.contains(&key) {
                    answer.blocked.push(key);
                }
            } else if expired {
                answer.expired += 1;
                claim.expired.push(id);
            } else if answer.blocked.contains(&key) {
                answer.withheld += 1;
            } else {
                answer.ids.push(id);
            }
        }
        claim.ids.clone_from(&answer.ids);
        answer
    }

    /// A transaction begins that locks no rows: a page of a repair.
    pub(super) fn begin(&mut self, session: SessionId, ids: Vec<u64>) {
        self.claims.insert(session, ClaimTransaction { ids, ..ClaimTransaction::default() });
    }

    /// The transaction of a session.
    pub(super) fn transaction(&mut self, session: SessionId) -> Option<&mut ClaimTransaction> {
        self.claims.get_mut(&session)
    }

    /// The changes of the parked table in the transaction of a session.
    pub(super) fn parked(&self, session: SessionId) -> &[ParkedChange] {
        self.claims.get(&session).map_or(&[], |claim| &claim.parked)
    }

    /// Whether a transaction has moved the row of the parked table at this position, which is locked then.
    pub(super) fn has_moved(&self, at: Position) -> bool {
        let moves =
            |change: &ParkedChange| matches!(change, ParkedChange::Move(from, _) if *from == at);
        self.claims.values().any(|claim| claim.parked.iter().any(moves))
    }

    /// The transaction of the session commits. `outcomes`: one for each claimed row.
    pub(super) fn commit(
        &mut self,
        (server, truth, now): (&mut Server, &mut Truth, u64),
        session: SessionId,
        outcomes: &[Settled],
    ) -> Check {
        let Some(claim) = self.claims.remove(&session) else { return Ok(()) };
        let xid = server.next_xid();
        server.write_own();
        server.write_claim(truth, now, &claim.parked)?;
        if !claim.statuses.is_empty() {
            let (rows, statuses, epoch) = (Vec::new(), claim.statuses, server.epoch);
            server.execute(truth, now, Statement::Parking { rows, statuses, epoch })?;
        }
        for id in claim.expired {
            let row = self.rows.get_mut(&id).unwrap();
            (row.state, row.xmin, row.written_at) = (RowState::Expired, xid, now);
        }
        for (id, outcome) in claim.ids.iter().zip(outcomes) {
            match outcome {
                Settled::Held => {}
                Settled::Done => self.set_published((server, truth), *id, (xid, now), &[])?,
                Settled::Failed => {
                    let row = self.rows.get_mut(id).unwrap();
                    (row.ready_at, row.xmin, row.written_at) = (now + FAILED_PAUSE, xid, now);
                }
            }
        }
        self.unlock(session);
        Ok(())
    }

    /// A claim without rows commits: the rows that have expired get their status.
    pub(super) fn commit_expired(&mut self, server: &Server, now: u64, session: SessionId) {
        let Some(claim) = self.claims.remove(&session) else { return };
        let xid = server.snapshot_xmin(now);
        for id in claim.expired {
            if let Some(row) = self.rows.get_mut(&id) {
                (row.state, row.xmin, row.written_at) = (RowState::Expired, xid, now);
            }
        }
        self.unlock(session);
    }

    /// Sets a row to published, or deletes it. `parked`: what the transaction has parked.
    fn set_published(
        &mut self,
        (server, truth): (&Server, &Truth),
        id: u64,
        (xid, now): (u32, u64),
        parked: &[ParkedChange],
    ) -> Check {
        let Some(row) = self.rows.get_mut(&id) else { return Ok(()) };
        let event = row.event;
        let parks = |change: &ParkedChange| match change {
            ParkedChange::Insert { event: of, .. } => *of == event,
            ParkedChange::Move(..) | ParkedChange::DeleteFrom(_) => false,
        };
        let is_parked = server.has_parked(truth, event) || parked.iter().any(parks);
        if !truth.settled(event) && !is_parked {
            let position = truth.events[event].position;
            return wrong(format!(
                "the row of {position} is set to published, and the topic lacks it"
            ));
        }
        (row.state, row.xmin, row.written_at) = (RowState::Published, xid, now);
        if self.rules.deletes {
            self.rows.remove(&id);
        }
        Ok(())
    }

    /// After a claim was settled in part: locks these rows again, each with the transaction that had written it.
    /// Returns whether all of them could be locked. Another session may be faster.
    pub(super) fn lock_again(
        &mut self,
        now: u64,
        session: SessionId,
        left: &[(usize, u64, u32)],
        ids: Vec<u64>,
    ) -> bool {
        if self.rng.chance(self.rules.relock_lost)
            && let Some((_, id, _)) = left.first()
            && let Some(row) = self.rows.get_mut(id)
        {
            row.locked_until = now + 1 + self.rng.below(LOCKED_MAX);
        }
        let mut all = true;
        for (_, id, xmin) in left {
            let row = self.rows.get_mut(id);
            match row.filter(|row| row.xmin == *xmin && !row.is_locked(now, Some(session))) {
                Some(row) => row.claimed_by = Some(session),
                None => all = false,
            }
        }
        self.begin(session, ids);
        all
    }

    /// The transaction of the session is rolled back, if there is one.
    pub(super) fn roll_back(&mut self, session: SessionId) {
        self.claims.remove(&session);
        self.unlock(session);
    }

    fn unlock(&mut self, session: SessionId) {
        for row in self.rows.values_mut().filter(|row| row.claimed_by == Some(session)) {
            row.claimed_by = None;
        }
    }

    /// Sets the status of published rows of the stream, which are in its order. `waiting`: aggregates of which a row
    /// was locked at the last attempt. Returns the indexes of the rows that have to wait (`StatusWriter::mark`).
    pub(super) fn set_statuses(
        &mut self,
        (server, truth, now): (&mut Server, &Truth, u64),
        rows: &[StatusRow],
        waiting: &[Lane],
        parked: &[ParkedChange],
    ) -> Result<Vec<usize>, super::Stop> {
        let xid = server.next_xid();
        server.write_own();
        let mut held: BTreeSet<Lane> = waiting.iter().copied().collect();
        let mut done = vec![false; rows.len()];
        let mut heads = BTreeSet::new();
        // The first row of a waiting aggregate shows whether the aggregate still waits.
        for (place, row) in rows.iter().enumerate() {
            let Some(lane) = row.lane.filter(|lane| waiting.contains(lane)) else { continue };
            if heads.insert(lane) && self.may_get_status(server, now, row) {
                held.remove(&lane);
                self.set_status((server, truth, now), row, xid, parked)?;
                done[place] = true;
            }
        }
        for (place, row) in rows.iter().enumerate() {
            if done[place] || row.lane.is_some_and(|lane| held.contains(&lane)) {
                continue;
            }
            if self.may_get_status(server, now, row) {
                self.set_status((server, truth, now), row, xid, parked)?;
                done[place] = true;
            } else {
                held.extend(row.lane);
            }
        }
        Ok((0..rows.len()).filter(|place| !done[*place]).collect())
    }

    /// The rows are as they were `before`; those that are locked stay so.
    pub(super) fn take_back(&mut self, mut before: BTreeMap<u64, OutboxRow>) {
        for (id, row) in &mut before {
            row.locked_until = self.rows.get(id).map_or(row.locked_until, |now| now.locked_until);
        }
        self.rows = before;
    }

    /// Whether the row of the event is visible to the statement, and not locked.
    fn may_get_status(&mut self, server: &Server, now: u64, row: &StatusRow) -> bool {
        let hidden = |xid: u32| {
            let mut all = server.transactions.iter().rev();
            all.find(|txn| txn.xid == xid).is_some_and(|txn| txn.hidden_until > now)
        };
        if !row.visible && row.xid.is_some_and(hidden) {
            return false;
        }
        if self.rng.chance(self.rules.row_locked)
            && let Some(found) = self.rows.get_mut(&row.id)
        {
            found.locked_until = found.locked_until.max(now + self.rng.below(LOCKED_MAX));
        }
        let found = self.rows.get(&row.id);
        let found = found.filter(|found| found.is_visible(now) && is_of(found, row));
        found.is_none_or(|found| !found.is_unpublished() || !found.is_locked(now, None))
    }

    fn set_status(
        &mut self,
        (server, truth, now): (&Server, &Truth, u64),
        row: &StatusRow,
        xid: u32,
        parked: &[ParkedChange],
    ) -> Check {
        let found = self.rows.get(&row.id);
        let found = found.filter(|found| found.is_visible(now) && is_of(found, row));
        if found.is_none_or(|found| !found.is_unpublished()) {
            return Ok(());
        }
        self.set_published((server, truth), row.id, (xid, now), parked)
    }

    /// The session of the claim has ended, or an application locks rows for a while: the ids of rows that it may lock
    /// or write.
    fn free_rows(&self, now: u64, filter: impl Fn(&OutboxRow) -> bool) -> Vec<u64> {
        let free = |row: &OutboxRow| row.is_visible(now) && !row.is_locked(now, None);
        let rows = self.rows.iter().filter(|(_, row)| free(row) && filter(row));
        rows.map(|(id, _)| *id).collect()
    }

    fn pick(&mut self, now: u64, filter: impl Fn(&OutboxRow) -> bool) -> Option<u64> {
        let ids = self.free_rows(now, filter);
        (!ids.is_empty()).then(|| ids[self.rng.index(ids.len())])
    }

    /// Another session locks an unpublished row for a while.
    pub(super) fn lock_one(&mut self, now: u64) {
        let Some(id) = self.pick(now, OutboxRow::is_unpublished) else { return };
        if let Some(row) = self.rows.get_mut(&id) {
            row.locked_until = now + 1 + self.rng.below(LOCKED_MAX);
        }
    }

    /// The application updates an unpublished row, and maybe its payload. Returns its event.
    pub(super) fn update_one(&mut self, now: u64, xid: u32) -> Option<usize> {
        let id = self.pick(now, OutboxRow::is_unpublished)?;
        let changes = self.rng.chance(500);
        let row = self.rows.get_mut(&id)?;
        (row.xmin, row.written_at) = (xid, now);
        row.content += u32::from(changes);
        Some(row.event)
    }

    /// The application deletes an unpublished row. Returns its event.
    pub(super) fn delete_one(&mut self, now: u64) -> Option<usize> {
        let id = self.pick(now, OutboxRow::is_unpublished)?;
        self.rows.remove(&id).map(|row| row.event)
    }

    /// The application deletes a published row. Returns its id, and its aggregate if it has one of several rows.
    pub(super) fn reuse_one(&mut self, now: u64) -> Option<(u64, Option<u64>)> {
        let id = self.pick(now, |row| row.state == RowState::Published)?;
        let key = self.rows.remove(&id)?.key;
        Some((id, Some(key).filter(|key| *key < super::plan::AGGREGATES)))
    }

    /// Deletes published rows.
    pub(super) fn clean_up(&mut self, now: u64) {
        for id in self.free_rows(now, |row| row.state == RowState::Published) {
            self.rows.remove(&id);
        }
    }

    /// The faults are over: no other session has locked a row, and all rows are visible.
    pub(super) fn end_faults(&mut self) {
        let TableRules { row_locked, relock_lost, ghosts, .. } = &mut self.rules;
        (*row_locked, *relock_lost, *ghosts) = (0, 0, 0);
        for row in self.rows.values_mut() {
            (row.locked_until, row.visible_at) = (0, 0);
        }
    }

    /// A row that is not published yet, for the end of a run.
    pub(super) fn unpublished(&self, now: u64) -> Option<&OutboxRow> {
        let expired = |row: &OutboxRow| row.expires_at.is_some_and(|at| at <= now);
        self.rows.values().find(|row| row.is_unpublished() && !expired(row))
    }
}

/// Whether the row is the one of this event (`is_the_events` of `poll::row_status`).
fn is_of(found: &OutboxRow, row: &StatusRow) -> bool {
    match row.time {
        Some(time) => row.xid == Some(found.xmin) || time_of(found.event) == time,
        None => true,
    }
}
