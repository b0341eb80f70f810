//! What the fake database records of a pipeline beside its position: who has its lock, whether the table is polled
//! although the slot exists, which transactions are known to be resolved, and the list of a repair.

use super::outbox::{Outbox, SessionId};
use super::postgres::{ReplicationSlot, Server, at, watermark};
use super::requeued;
use super::truth::Truth;
use super::{Check, wrong};
use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use crate::claims::{SlotAnswer, SlotStep};
use postrider_core::event::Position;
use postrider_core::offset::Watermark;
use std::collections::{BTreeMap, VecDeque};

/// Rows of one page of a list.
const PAGE_ROWS: usize = 3;

/// A snapshot of the server: every transaction below this number is over.
pub(super) type Snapshot = u32;

/// Which transactions the cursor row knows to be resolved.
#[derive(Clone, Copy, Debug, Default)]
struct Ledger {
    resolved: Option<Snapshot>,
    /// A later snapshot, and the end of WAL at its time: it is known to be resolved when the cursor has passed that.
    pending: Option<(Snapshot, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RepairStage {
    /// The slot and the list are being created.
    Making,
    /// The list is being published.
    Publishing,
    Done,
}

/// The repair of the pipeline.
#[derive(Clone, Debug)]
pub(super) struct Repair {
    pub(super) stage: RepairStage,
    /// Rows are selected by their status too.
    by_status: bool,
    /// Every transaction below this number was resolved before.
    known: Option<Snapshot>,
    /// Where the new slot was created, and what its snapshot sees.
    created: u64,
    snapshot: Option<Snapshot>,
    /// The ids that are still to be published, page by page.
    pages: VecDeque<Vec<u64>>,
}

/// What is recorded of the pipeline.
#[derive(Debug)]
pub(super) struct Ownership {
    /// The session that has the pipeline's lock.
    pub(super) lock: Option<SessionId>,
    /// Sessions that have ended, until when the server does not notice that.
    pub(super) ghosts: Vec<(u64, SessionId)>,
    /// The slot was created while the table was polled, and polling has not finished.
    pub(super) polls_on: bool,
    /// Until when the server refuses streams.
    pub(super) refuses_until: u64,
    /// The slot retains more WAL than it may, the next time that a process reads how much.
    pub(super) over_budget: bool,
    ledger: Ledger,
    pub(super) repair: Option<Repair>,
    sessions: SessionId,
}

impl Ownership {
    pub(super) fn new(first: Snapshot) -> Self {
        Self {
            lock: None,
            ghosts: Vec::new(),
            polls_on: false,
            refuses_until: 0,
            over_budget: false,
            ledger: Ledger { resolved: Some(first), pending: None },
            repair: None,
            sessions: 0,
        }
    }

    /// A session connects.
    pub(super) fn connect(&mut self) -> SessionId {
        self.sessions += 1;
        self.sessions
    }

    /// The session requests the lock. Returns whether it has the lock.
    pub(super) fn lock(&mut self, session: SessionId) -> bool {
        *self.lock.get_or_insert(session) == session
    }

    /// The session ends, or releases the lock.
    pub(super) fn unlock(&mut self, session: SessionId) {
        self.lock.take_if(|holder| *holder == session);
    }

    /// The cursor row was written: takes the snapshot that goes with it.
    pub(super) fn cursor_written(&mut self, server: &Server, now: u64) {
        let (row, ledger) = (watermark(server.row), &mut self.ledger);
        if let Some((snapshot, _)) = ledger.pending.filter(|(_, at)| *at <= row) {
            (ledger.resolved, ledger.pending) = (Some(snapshot), None);
        }
        if ledger.pending.is_none() {
            ledger.pending = Some((server.snapshot_xmin(now), server.end));
        }
    }

    /// The cursor row is bound to the slot, before the table is polled to its end.
    pub(super) fn bind(&mut self, server: &mut Server) {
        bind(server);
        (self.polls_on, self.ledger) = (true, Ledger::default());
    }

    /// Polling has published everything that was committed before the slot.
    pub(super) fn polled(&mut self, server: &mut Server, truth: &Truth) -> Check {
        if !self.polls_on {
            return Ok(());
        }
        self.polls_on = false;
        let row = watermark(server.row);
        server.check_below(truth, row, None)
    }

    /// The transactions that are known to be resolved, or listed already.
    fn known(&self, server: &Server) -> Option<Snapshot> {
        if let Some(repair) = self.unfinished() {
            return repair.snapshot.or(repair.known);
        }
        let Ledger { resolved, pending } = self.ledger;
        pending
            .filter(|(_, at)| *at <= watermark(server.row))
            .map(|(snapshot, _)| snapshot)
            .or(resolved)
    }

    /// The repair, unless it is finished.
    pub(super) fn unfinished(&self) -> Option<&Repair> {
        self.repair.as_ref().filter(|repair| repair.stage != RepairStage::Done)
    }

    /// Whether the list can be continued: its slot is still the one that was made with it.
    pub(super) fn continues(&self, server: &Server) -> bool {
        let slot = &server.slot;
        self.unfinished().is_some_and(|repair| {
            repair.stage == RepairStage::Publishing
                && slot.is_usable()
                && slot.confirmed == repair.created
        })
    }

    /// A repair begins: records what is resolved, before the slot is dropped.
    pub(super) fn begin_repair(&mut self, server: &Server, by_status: bool) {
        let known = self.known(server);
        let pages = self.unfinished().map(|repair| repair.pages.clone()).unwrap_or_default();
        self.repair = Some(Repair {
            stage: RepairStage::Making,
            by_status,
            known,
            created: 0,
            snapshot: None,
            pages,
        });
    }

    /// The new slot exists since this moment: the ids of the rows to publish, in order, as its snapshot sees them.
    pub(super) fn list(
        &self,
        server: &Server,
        (outbox, truth, now): (&Outbox, &Truth, u64),
    ) -> Vec<u64> {
        let Some(repair) = &self.repair else { return Vec::new() };
        let selected = |id: u64| {
            let row = outbox.rows.get(&id)?;
            let unresolved =
                repair.known.is_none_or(|known| row.xmin.wrapping_sub(known) < u32::MAX / 2);
            (unresolved && (!repair.by_status || row.is_unpublished())).then_some(row)
        };
        // The highest position of each aggregate at which an event stays parked.
        let mut stays: BTreeMap<_, Position> = BTreeMap::new();
        for (position, parked) in &server.table {
            let id = truth.rows[parked.event].id;
            let comes = selected(id)
                .is_some_and(|row| !requeued::is_another(parked, *position, row, (truth, outbox)));
            if parked.lane.is_some() && !parked.state.resolved() && !comes {
                stays.insert(parked.lane, *position);
            }
        }
        let left_out = |id: u64| {
            server.table.iter().any(|(at, parked)| {
                let last = stays.get(&parked.lane).filter(|_| parked.lane.is_some());
                let keeps_place = parked.state.resolved()
                    || parked.lane.is_none()
                    || last.is_some_and(|last| at.commit <= last.commit);
                let row = &outbox.rows[&id];
                truth.rows[parked.event].id == id
                    && keeps_place
                    && !requeued::is_another(parked, *at, row, (truth, outbox))
                    && requeued::is_the_same(parked, *at, row, outbox)
            })
        };
        let visible = outbox.visible(now).map(|(id, _)| id);
        visible.filter(|id| selected(*id).is_some() && !left_out(*id)).collect()
    }

    /// The list is committed.
    pub(super) fn listed(&mut self, server: &Server, (snapshot, ids): (Snapshot, &[u64])) {
        let Some(repair) = &mut self.repair else { return };
        repair.pages.extend(ids.chunks(PAGE_ROWS).map(<[u64]>::to_vec));
        (repair.stage, repair.created) = (RepairStage::Publishing, server.slot.created);
        repair.snapshot = Some(snapshot);
    }

    /// The ids on the list.
    pub(super) fn on_list(&self) -> Vec<u64> {
        let pages = self.repair.as_ref().map(|repair| repair.pages.iter().flatten().copied());
        pages.map(Iterator::collect).unwrap_or_default()
    }

    /// The first page of the list.
    pub(super) fn page(&self) -> Option<&[u64]> {
        self.repair.as_ref()?.pages.front().map(Vec::as_slice)
    }

    /// Replaces the first page by what is left of it.
    pub(super) fn keep_page(&mut self, left: Vec<u64>) {
        let Some(repair) = &mut self.repair else { return };
        repair.pages.pop_front();
        if !left.is_empty() {
            repair.pages.push_front(left);
        }
    }

    /// The list is empty: sets the cursor row to the new slot, unless the slot has changed. Returns whether it was set.
    pub(super) fn finish(
        &mut self,
        server: &mut Server,
        truth: &Truth,
    ) -> Result<bool, super::Stop> {
        if !self.continues(server) || self.page().is_some() {
            return Ok(false);
        }
        let Some(repair) = &mut self.repair else { return Ok(false) };
        repair.stage = RepairStage::Done;
        self.ledger = Ledger { resolved: repair.snapshot, pending: None };
        bind(server);
        let row = watermark(server.row);
        server.check_below(truth, row, None)?;
        Ok(true)
    }

    /// The earliest position that a claim of the list may have.
    pub(super) fn list_start(&self, server: &Server) -> u64 {
        let created = self.repair.as_ref().map_or(0, |repair| repair.created);
        let below = |at: &u64| *at < created;
        let parked = server.table.keys().map(|at| at.commit.get()).filter(below).max();
        let row = Some(watermark(server.row)).filter(below);
        parked.max(row).unwrap_or(1) + 1
    }

    /// Whether rows of the list are selected by their status.
    pub(super) fn lists_by_status(&self) -> bool {
        self.repair.as_ref().is_some_and(|repair| repair.by_status)
    }
}

/// Sets the cursor row to the position of the slot.
fn bind(server: &mut Server) {
    let watermark = Watermark::resumed(at(server.slot.confirmed));
    server.row = Progress { watermark, partial: None };
}

/// The slot is created at the end of WAL, once every transaction that has begun is over.
pub(super) fn create_slot(server: &mut Server, now: u64) -> Result<bool, super::Stop> {
    if server.transactions.iter().any(|txn| txn.hidden_until > now) {
        return Ok(false);
    }
    if server.slot.is_usable() {
        return wrong("a slot is created, and there is one".into());
    }
    let end = server.end + 8;
    server.end = end;
    server.slot = ReplicationSlot::new(end);
    Ok(true)
}

/// A step for the slot, on a session of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotJob {
    pub(super) step: SlotStep,
    pub(super) epoch: u64,
    pub(super) answer: Option<SlotAnswer>,
}

impl SlotJob {
    /// The server executes the step, if that is possible now.
    pub(super) fn execute(
        &mut self,
        server: &mut Server,
        ownership: &mut Ownership,
        now: u64,
    ) -> Check {
        self.answer = match self.step {
            SlotStep::Drop if server.slot.holder.is_some() => Some(SlotAnswer::NotYet),
            SlotStep::Drop => {
                server.slot.exists = false;
                Some(SlotAnswer::Dropped)
            }
            SlotStep::ReadRetained => {
                let over_limit = std::mem::take(&mut ownership.over_budget);
                Some(SlotAnswer::Retains { over_limit })
            }
            SlotStep::Create if server.slot.is_usable() => {
                // The job of an earlier owner has created the slot, and has not bound the cursor row to it.
                let unbound = server.slot.confirmed > watermark(server.row);
                if unbound && self.epoch == server.epoch && !injected(Bug::SlotIsNotBound) {
                    ownership.bind(server);
                }
                Some(SlotAnswer::Usable)
            }
            SlotStep::Create if create_slot(server, now)? => {
                if self.epoch == server.epoch {
                    ownership.bind(server);
                }
                Some(SlotAnswer::Usable)
            }
            // Transactions that are running are waited for.
            SlotStep::Create => None,
        };
        Ok(())
    }

    /// Whether the step has its answer.
    pub(super) fn is_done(&self) -> bool {
        self.answer.is_some()
    }
}
