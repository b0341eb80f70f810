//! One claim of polling on its way through the relay: fed row by row, and settled when every row has its outcome.
//!
//! To the relay a claim is what a transaction of the stream is. Its position is the server's end of WAL at the time of
//! the claim. That is no commit position, but it rises from claim to claim, which is all that the order of events
//! needs.

use super::lifecycle::Pipeline;
use super::log;
use super::parked::StoreSession;
use super::poll::Polling;
use super::requeue::{RowOrigin, undecided};
use super::service::Stop;
use crate::ack::Progress;
use crate::event::Position;
use crate::offset::Offset;
use crate::outbox::Role;
use crate::parked::{Entry, Lane, Parked, ParkedUpdate, State};
use crate::postgres::client::Canceller;
use crate::postgres::poll::{Claim, OldestReady, PayloadCopy, Poller, RowOutcome};
use crate::postgres::store::cursor::{self, CursorWrite};
use crate::postgres::store::parked::{self, Stored};
use crate::postgres::store::requeue;
use crate::postgres::{SourceError, pipeline_lock, repair};
use crate::record::Ticket;
use crate::relay::{Change, Input};
use crate::row::{OwnedTable, Row};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_postgres::Client;

/// An open claim.
pub(super) struct OpenClaim {
    /// The claimed rows.
    claim: Claim,
    /// The position by which the relay knows the claim.
    at: Offset,
    /// The first position after it.
    end: Offset,
    /// Number of rows that were fed.
    fed: usize,
    /// The tickets of the rows that were fed, in ascending order. A row without a ticket has the one of the next row.
    tickets: Vec<Ticket>,
    /// Rows that the broker has acknowledged since the claim was last fed from its beginning.
    acked: Vec<bool>,
    /// Rows that are settled and committed while other rows of the claim are still being published.
    done: Vec<bool>,
    /// Known outcomes. A row without one is published once the relay has resolved it.
    outcomes: Vec<Option<RowOutcome>>,
    /// Aggregates of rows whose failure, or waiting, is kept in their table.
    kept: HashSet<Lane>,
    /// These rows, as the relay knows them. Before the claim is settled they are recorded nowhere else.
    failures: Vec<Entry>,
    /// Whether its Begin was applied to the relay.
    begun: bool,
    /// Whether its Commit was applied to the relay.
    committed: bool,
    /// The relay has requested a cursor row, which is the commit of the claim.
    pub(super) cursor_waits: bool,
    /// When the rows were claimed.
    pub(super) claimed_at: Instant,
    /// When the rows were claimed, or last settled in part.
    pub(super) held_since: Instant,
}

/// The outcomes with which a claim that is held for long can be settled in part.
struct ClaimPart {
    /// One for each row; [`RowOutcome::Held`] for rows that stay in the claim and for rows that were settled before.
    outcomes: Vec<RowOutcome>,
    /// An event is parked behind a row without an outcome. That row may belong to the same aggregate, and would be
    /// published at a later position if the process ended; so nothing that the claim has parked may be committed yet.
    parked_behind_open: bool,
}

impl OpenClaim {
    /// Opens a claim that has rows. `floor` is the end of the claim before.
    pub(super) fn new(claim: Claim, floor: Offset) -> Self {
        let (at, end) = position(claim.at, floor);
        let (rows, now) = (claim.rows.len(), Instant::now());
        Self {
            claim,
            at,
            end,
            fed: 0,
            tickets: Vec::with_capacity(rows),
            acked: vec![false; rows],
            done: vec![false; rows],
            outcomes: vec![None; rows],
            kept: HashSet::new(),
            failures: Vec::new(),
            begun: false,
            committed: false,
            cursor_waits: false,
            claimed_at: now,
            held_since: now,
        }
    }

    /// The first position after the claim.
    pub(super) fn end(&self) -> Offset {
        self.end
    }

    pub(super) fn rows(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether the row is settled and committed already.
    fn is_done(&self, row: usize) -> bool {
        self.done.get(row).copied().unwrap_or(false)
    }

    /// Prepares to feed the claim from its beginning again, at the same positions.
    pub(super) fn rewind(&mut self) {
        (self.fed, self.begun, self.committed, self.cursor_waits) = (0, false, false, false);
        // A row that is published again needs an acknowledgement again; otherwise an aggregate could end with a
        // repetition of an earlier event.
        self.acked.fill(false);
        self.tickets.clear();
    }

    /// The broker has acknowledged the event of this ticket.
    pub(super) fn acknowledged(&mut self, ticket: Ticket) {
        let row = self.tickets.partition_point(|of| *of <= ticket).checked_sub(1);
        if let Some(acked) = row.and_then(|row| self.acked.get_mut(row)) {
            *acked = true;
        }
    }

    /// The number of leading rows that are resolved: by the relay, or because they are committed. What the claim has
    /// parked among the committed rows must not be undone, whatever the relay remembers of it.
    fn resolved(&self, progress: &Progress) -> usize {
        if progress.watermark.offset() >= self.end {
            return self.outcomes.len();
        }
        let partial = progress.partial.filter(|partial| partial.commit == self.at);
        let by_relay = partial.map_or(0, |at| usize::try_from(at.ordinal).unwrap_or(0));
        by_relay.max(self.done.iter().take_while(|done| **done).count())
    }

    /// The outcomes of the rows: those below `resolved`, and after it those that are acknowledged and have no open row
    /// of their aggregate before them.
    fn part(&self, resolved: usize) -> ClaimPart {
        let (mut open, mut parked_behind_open) = (HashSet::new(), false);
        let mut outcomes = Vec::with_capacity(self.outcomes.len());
        for (row, known) in self.outcomes.iter().enumerate() {
            let key = self.claim.key(row);
            let acked = self.acked.get(row).copied().unwrap_or(false);
            let waits = open.contains(key);
            let outcome = match known {
                _ if self.is_done(row) => {
                    outcomes.push(RowOutcome::Held);
                    continue;
                }
                Some(known) if row < resolved => known.clone(),
                None if row < resolved || acked && !waits => RowOutcome::Published,
                _ => RowOutcome::Held,
            };
            if outcome == RowOutcome::Held {
                parked_behind_open |= !matches!(known, None | Some(RowOutcome::Held));
                open.insert(key);
            }
            outcomes.push(outcome);
        }
        ClaimPart { outcomes, parked_behind_open }
    }

    /// Notes the outcome of a row that is parked. `keeps`: failures of rows are kept in the outbox table. A row whose
    /// event is in doubt is parked nevertheless, because only a parked event can be decided by a person. Returns
    /// whether the outbox table is done with the row.
    fn parks(&mut self, row: &Parked, origin: RowOrigin, keeps: bool) -> bool {
        let waits = row.entry.lane.is_some_and(|lane| self.kept.contains(&lane));
        let outcome = match origin {
            // An earlier event stays in the table, and this one is claimed again after it.
            RowOrigin::Requeued | RowOrigin::Doubted if keeps && waits => RowOutcome::Held,
            RowOrigin::New if keeps => {
                self.kept.extend(row.entry.lane);
                failure(row)
            }
            RowOrigin::Requeued | RowOrigin::Kept | RowOrigin::New | RowOrigin::Doubted => {
                RowOutcome::Moved
            }
        };
        let moved = outcome == RowOutcome::Moved;
        if keeps && origin != RowOrigin::Kept {
            self.failures.push(row.entry);
        }
        if let Some(known) = self.outcomes.get_mut(index_of(row)) {
            *known = Some(outcome);
        }
        moved
    }

    /// Whether a cursor row was requested; resets the request.
    pub(super) fn takes_cursor(&mut self) -> bool {
        std::mem::take(&mut self.cursor_waits)
    }

    /// The parked events, where `loaded` are those of the tables: rows whose failure the outbox table will keep are not
    /// among them.
    pub(super) fn parked(&self, mut loaded: Vec<Entry>) -> Vec<Entry> {
        let ours = |entry: &Entry| entry.position.commit == self.at;
        if !self.failures.is_empty() {
            // The rows of their dead letters are in the parked table instead.
            loaded.retain(|entry| !ours(entry));
            loaded.extend_from_slice(&self.failures);
        }
        loaded
    }
}

impl Pipeline {
    /// Feeds rows of the claim until something stops it.
    pub(super) fn feed_claim(&mut self, now: Duration, open: &mut OpenClaim) {
        if !open.begun && !self.relay.stopping() {
            open.begun = true;
            let (commit, commit_time) = (open.at, open.claim.claimed_at);
            self.apply(now, Input::Begin { commit, commit_time });
        }
        while let Some(row) = open.claim.rows.row(open.fed) {
            if self.relay.stopping() || self.ending() || !self.relay.intake_open() {
                return;
            }
            if open.tickets.len() == open.fed {
                open.tickets.push(self.relay.next_ticket());
            }
            if open.is_done(open.fed) {
                self.apply(now, Input::Change(Change::Skipped));
                open.fed += 1;
                continue;
            }
            let xmin = open.claim.xmin(open.fed);
            self.polled_ids.feeds(open.fed, xmin);
            self.row_status.feeds(xmin);
            self.requeued.feeds(xmin);
            let taken = if open.claim.is_too_large(open.fed) {
                self.feed_too_large(now, &row)
            } else {
                self.feed_row(now, &row)
            };
            if !taken {
                return;
            }
            open.fed += 1;
        }
        if !open.committed && !self.relay.stopping() {
            open.committed = true;
            self.apply(now, Input::Commit { commit: open.at, end: open.end });
        }
    }

    /// Whether the relay has resolved every row of the claim.
    pub(super) fn claim_is_resolved(&self, open: &OpenClaim) -> bool {
        open.committed && self.relay.progress().watermark.offset() >= open.end
    }

    /// Takes rows of parked events. They are written to the parked table in the transaction of the claim, or become the
    /// failure of the row if the outbox table has columns for that.
    pub(super) async fn park_in_claim(
        &mut self,
        polling: &mut Polling,
        rows: usize,
        marks: Vec<ParkedUpdate>,
        stop: &Stop,
    ) -> Result<Stored, SourceError> {
        let rows = self.records.take_rows(rows);
        let keeps = polling.keeps_now;
        let origins = self.origins(polling, &rows).await?;
        let parted =
            origins.iter().any(|origin| matches!(origin, RowOrigin::Kept | RowOrigin::Doubted));
        // Some rows are not written: those that the outbox table keeps, and those that are parked already.
        let some = keeps || parted;
        let (mut places, mut written) = (Vec::new(), Vec::new());
        if let Some(open) = &mut polling.open {
            for (row, origin) in rows.iter().zip(origins) {
                let found_now = origin == RowOrigin::Doubted && row.error_code.is_none();
                let undecided = (origin == RowOrigin::Doubted).then(|| undecided(row));
                let row = undecided.as_ref().unwrap_or(row);
                if !open.parks(row, origin, keeps) {
                    continue;
                }
                match origin {
                    // The row of the parked event is moved to its new position. It is written only if it was deleted
                    // meanwhile.
                    RowOrigin::Requeued => places.extend(self.requeued.moves(row)),
                    RowOrigin::Doubted => self.requeued.keeps_beside(row),
                    RowOrigin::Kept | RowOrigin::New => {}
                }
                if found_now {
                    self.metrics.failed(row.event_type.as_deref().unwrap_or_default());
                    self.log.parked.event_parked(&self.spec, row);
                }
                if some && origin != RowOrigin::Kept {
                    written.push(row.clone());
                }
            }
        }
        polling.failed |= some || !places.is_empty();
        if keeps {
            written.extend(self.dead_letters(polling, &rows));
        }
        let rows: &[Parked] = if some { &written } else { &rows };
        let (spec, epoch) = (Arc::clone(&self.spec), polling.store.epoch);
        let name = spec.name();
        // The new states of events that were parked earlier are not part of the claim. If they were lost with the
        // claim, a published event would be retried, after later events of its aggregate whose states are committed.
        let StoreSession { control, jobs, .. } = &mut polling.store;
        let marked = async {
            jobs.finish().await;
            match marks.as_slice() {
                [] => Ok(Stored::Yes),
                marks => parked::write(control.client(), name, epoch, &[], marks).await,
            }
        };
        let marked = self.within_shutdown_grace(stop, marked).await?;
        if marked == Stored::TakenOver {
            return Ok(Stored::TakenOver);
        }
        let client = polling.poller.client();
        polling.store.jobs.unseen = polling.open.as_ref().map(|open| open.at);
        requeue::move_rows(client, name, &places).await?;
        let stored = parked::write(client, name, epoch, rows, &[]).await?;
        if stored != Stored::TakenOver {
            self.keep_large(polling, rows).await?;
        }
        drop(self.records.stored());
        // A write of rows alone leaves nothing out.
        Ok(if stored == Stored::Yes { marked } else { stored })
    }

    /// The origin of each row that the claim parks.
    async fn origins(
        &self,
        polling: &Polling,
        rows: &[Parked],
    ) -> Result<Vec<RowOrigin>, SourceError> {
        let claim = polling.open.as_ref().map(|open| &open.claim);
        let xmin = |row: &Parked| claim.map_or(0, |claim| claim.xmin(index_of(row)));
        let alike = self.alike(polling.poller.client(), rows, xmin).await?;
        let origin = |row: &Parked| {
            self.requeued.origin(row, xmin(row), alike.contains(&row.entry.position))
        };
        Ok(rows.iter().map(origin).collect())
    }

    /// Makes the server copy the payloads of parked rows that were not read, if the outbox table is done with these
    /// rows.
    async fn keep_large(&self, polling: &Polling, rows: &[Parked]) -> Result<(), SourceError> {
        let Some(open) = &polling.open else { return Ok(()) };
        let payload = self.spec.outbox.column(Role::Payload).unwrap_or_default();
        for parked in rows {
            let position = parked.entry.position;
            let row = usize::try_from(position.ordinal).unwrap_or(usize::MAX);
            let moved = matches!(open.outcomes.get(row), Some(Some(RowOutcome::Moved)));
            if moved && open.claim.is_too_large(row) {
                let (claim, pipeline) = (&open.claim, self.spec.name());
                let keep = PayloadCopy { claim, row, payload, pipeline, position };
                polling.poller.keep_value(&keep).await?;
            }
        }
        Ok(())
    }

    /// Of rows whose failure is kept in their table, those that are dead with this failure and go to the dead-letter
    /// topic. They are written to the parked table too, in the same transaction as the failure, so that a crash does
    /// not lose the dead letter. They block no aggregate.
    fn dead_letters(&self, polling: &Polling, rows: &[Parked]) -> Vec<Parked> {
        let Some(open) = polling.open.as_ref().filter(|_| self.spec.dead_topic.is_some()) else {
            return Vec::new();
        };
        let dead_letter = |row: &Parked| {
            let index = usize::try_from(row.entry.position.ordinal).ok()?;
            let failed = matches!(open.outcomes.get(index)?, Some(RowOutcome::Failed { .. }));
            let attempts = polling.poller.dies(&open.claim.rows.row(index).filter(|_| failed)?)?;
            let entry = Entry { state: State::Dead, lane: None, attempts, ..row.entry };
            Some(Parked { entry, ..row.clone() })
        };
        rows.iter().filter_map(dead_letter).collect()
    }

    /// Whether anything of the open claim can be settled.
    pub(super) fn claim_has_progress(&self, polling: &Polling) -> bool {
        let progress = self.relay.progress();
        let any = |open: &OpenClaim| {
            let part = open.part(open.resolved(&progress));
            part.outcomes.iter().any(|outcome| *outcome != RowOutcome::Held)
        };
        polling.open.as_ref().is_some_and(any)
    }

    /// Settles what is acknowledged or parked of a claim that is open for long, and keeps the other rows, which are
    /// still being published. Returns `false` if nothing was settled, or if the other rows could not be kept.
    pub(super) async fn settle_so_far(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        let Some(mut open) = polling.open.take() else { return Ok(false) };
        let resolved = open.resolved(&self.relay.progress());
        let ClaimPart { outcomes, parked_behind_open } = open.part(resolved);
        let settles =
            |row: usize| outcomes.get(row).is_some_and(|outcome| *outcome != RowOutcome::Held);
        if parked_behind_open || !(0..outcomes.len()).any(settles) {
            polling.open = Some(open);
            return Ok(false);
        }
        let left: Vec<usize> =
            (0..outcomes.len()).filter(|row| !settles(*row) && !open.is_done(*row)).collect();
        let spec = Arc::clone(&self.spec);
        let (poller, epoch) = (&mut polling.poller, polling.store.epoch);
        let kept = async {
            // As in `settle_claim`.
            if !cursor::is_owned(poller.client(), spec.name(), epoch).await? {
                poller.abandon().await?;
                return Ok(None);
            }
            poller.settle_part(&open.claim, &outcomes, &left).await.map(Some)
        };
        polling.store.jobs.unseen = None;
        let Some(kept) = self.within_shutdown_grace(stop, kept).await? else {
            polling.store.overruled = true;
            log::row_taken(self, &CursorWrite::TakenOver);
            self.apply(self.now(), Input::SlotTaken);
            return Ok(true);
        };
        self.polled_ids.settled_so_far(|row| {
            matches!(outcomes.get(row), Some(RowOutcome::Published | RowOutcome::Moved))
        });
        self.requeued.settled();
        if polling.poller.repairs().is_some() {
            // The session of the list marks them.
            self.row_status.forget();
            log::repair_progress(self);
        }
        for (row, outcome) in outcomes.iter().enumerate() {
            if let Some(done) = open.done.get_mut(row) {
                *done |= *outcome != RowOutcome::Held;
            }
        }
        open.held_since = Instant::now();
        polling.open = Some(open);
        Ok(kept)
    }

    /// Marks the rows of the claim up to the first one without an outcome, and those later rows that are acknowledged
    /// and have no such row of their aggregate before them, then commits. Returns whether any row was marked.
    ///
    /// Events of later rows that this claim has parked are removed from the parked table again: they have positions of
    /// this claim, while the open row will get a position of the next claim, after theirs.
    ///
    /// If another process has taken over the pipeline, nothing is marked.
    pub(super) async fn settle_claim(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        let Some(open) = polling.open.take() else { return Ok(false) };
        let done = open.resolved(&self.relay.progress());
        let parks = polling.store.jobs.unseen == Some(open.at);
        let back = (parks && done < open.rows()).then_some(Position {
            commit: open.at,
            ordinal: u64::try_from(done).unwrap_or(u64::MAX),
        });
        let places = back.map(|from| self.requeued.places_back(from)).unwrap_or_default();
        // Before the parked events are read again none of this claim may be retried: the table itself blocks the
        // aggregates of failed rows.
        let cursor_waits = open.cursor_waits && !polling.failed;
        let ClaimPart { outcomes, .. } = open.part(done);
        if polling.poller.repairs().is_some() {
            // The session of the list marks them.
            self.row_status.forget();
            log::repair_progress(self);
        }
        let spec = Arc::clone(&self.spec);
        let (poller, epoch) = (&mut polling.poller, polling.store.epoch);
        let settled = async {
            // Checked in the transaction of the claim: a process that takes over now waits for its commit.
            if !cursor::is_owned(poller.client(), spec.name(), epoch).await? {
                poller.abandon().await?;
                return Ok(false);
            }
            if let Some(from) = back {
                requeue::undo_parking(poller.client(), spec.name(), from, &places).await?;
            }
            poller.settle(open.claim, &outcomes).await.map(|()| true)
        };
        polling.store.jobs.unseen = None;
        if !self.within_shutdown_grace(stop, settled).await? {
            polling.store.overruled = true;
            log::row_taken(self, &CursorWrite::TakenOver);
            self.apply(self.now(), Input::SlotTaken);
            return Ok(false);
        }
        let settled = |row: usize| {
            matches!(outcomes.get(row), Some(RowOutcome::Published | RowOutcome::Moved))
        };
        self.polled_ids.settled(settled);
        if cursor_waits {
            self.apply(self.now(), Input::CursorWritten);
        }
        self.requeued.settled();
        Ok(outcomes.iter().any(|outcome| *outcome != RowOutcome::Held))
    }
}

/// The position of a claim for the relay, and the first position after it: `wal_end`, or `floor` if that is higher.
///
/// The next commit may get the end of WAL as its position, and its event must not be taken for one that was parked in
/// this claim.
fn position(wal_end: Offset, floor: Offset) -> (Offset, Offset) {
    let at = crate::postgres::wire::claim_lsn(wal_end.max(floor));
    // Any number above the position and not above that of the next claim is right.
    (at, Offset::new(at.get() + 1))
}

/// The index of the row in its claim.
fn index_of(row: &Parked) -> usize {
    usize::try_from(row.entry.position.ordinal).unwrap_or(usize::MAX)
}

/// The outcome of a parked event in a table that keeps failures.
fn failure(row: &Parked) -> RowOutcome {
    match row.entry.state {
        State::Waiting | State::Dead => RowOutcome::Failed {
            error: row.error.clone().unwrap_or_default(),
            code: row.error_code.unwrap_or("refused"),
        },
        State::Behind | State::Due | State::Done | State::Skipped => RowOutcome::Held,
    }
}

/// A session that claims rows, one claim at a time: of the table, or of the list of a repair.
pub(super) enum ClaimReader {
    Poll(Box<Poller>),
    Repair(Box<repair::RepairReader>),
}

impl ClaimReader {
    /// The description of the table.
    pub(super) fn description(&self) -> OwnedTable {
        match self {
            Self::Poll(poller) => poller.description(),
            Self::Repair(reader) => reader.table().description(),
        }
    }

    /// The query for the oldest row that is ready; a list has none.
    pub(super) fn oldest_ready(&self) -> Option<OldestReady> {
        match self {
            Self::Poll(poller) => Some(poller.oldest_ready()),
            Self::Repair(_) => None,
        }
    }

    /// The client of the session. While a claim is open, it is in the transaction of the claim.
    pub(super) fn client(&self) -> &Client {
        match self {
            Self::Poll(poller) => poller.client(),
            Self::Repair(reader) => reader.client(),
        }
    }

    /// Cancels the statements of the session.
    pub(super) fn canceller(&self) -> Option<Canceller> {
        match self {
            Self::Poll(poller) => poller.canceller(),
            Self::Repair(reader) => reader.control().canceller(),
        }
    }

    /// Claims the next rows. The pages of a repair have a size of their own.
    pub(super) async fn claim(&mut self, limit: usize) -> Result<Claim, SourceError> {
        match self {
            Self::Poll(poller) => poller.claim(limit, None).await,
            Self::Repair(reader) => reader.claim().await,
        }
    }

    /// Claims the next rows, ready or not. A list has only ready rows.
    pub(super) async fn claim_all(&mut self, limit: usize) -> Result<Claim, SourceError> {
        match self {
            Self::Poll(poller) => poller.claim_all(limit).await,
            Self::Repair(reader) => reader.claim().await,
        }
    }

    pub(super) async fn settle(
        &mut self,
        claim: Claim,
        outcomes: &[RowOutcome],
    ) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.settle(claim, outcomes).await,
            Self::Repair(reader) => reader.settle(&claim, outcomes).await,
        }
    }

    /// Settles and commits part of a claim. Only the rows of `left` stay in it. Returns whether they could be kept.
    pub(super) async fn settle_part(
        &mut self,
        claim: &Claim,
        outcomes: &[RowOutcome],
        left: &[usize],
    ) -> Result<bool, SourceError> {
        match self {
            Self::Poll(poller) => poller.settle_part(claim, outcomes, left).await,
            Self::Repair(reader) => reader.settle_part(claim, outcomes).await.map(|()| true),
        }
    }

    /// Copies the payload of a row that is too large to be read into its row of `postrider.parked`.
    pub(super) async fn keep_value(&self, keep: &PayloadCopy<'_>) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.keep_value(keep).await,
            Self::Repair(reader) => reader.table().keep_value(reader.client(), keep).await,
        }
    }

    /// If the table counts failures and one more makes this row dead: the count including that failure.
    pub(super) fn dies(&self, row: &Row<'_>) -> Option<u32> {
        match self {
            Self::Poll(poller) => poller.dies(row),
            Self::Repair(_) => None,
        }
    }

    pub(super) async fn abandon(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.abandon().await,
            Self::Repair(reader) => reader.abandon().await,
        }
    }

    /// Releases the pipeline's lock. The session is not used any more.
    pub(super) async fn unlock(&self, pipeline: &str) -> Result<(), SourceError> {
        pipeline_lock::unlock(self.client(), pipeline).await
    }

    /// Notified of new rows; a list has no notifications.
    pub(super) fn wake(&self) -> Arc<Notify> {
        match self {
            Self::Poll(poller) => poller.wake(),
            Self::Repair(_) => Arc::default(),
        }
    }

    /// Waits until the session ends; returns the reason. Cancel-safe.
    pub(super) async fn closed(&mut self) -> SourceError {
        match self {
            Self::Poll(poller) => poller.closed().await,
            Self::Repair(reader) => reader.closed().await,
        }
    }

    pub(super) fn repairs(&self) -> Option<&repair::RepairReader> {
        match self {
            Self::Poll(_) => None,
            Self::Repair(reader) => Some(reader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::wire::is_claim_lsn;

    #[test]
    fn claims_rise_and_never_stand_where_a_commit_can() {
        let mut floor = Offset::ZERO;
        for wal_end in [0x100, 0x100, 0x108, 0x50, 0x200].map(Offset::new) {
            let (at, end) = position(wal_end, floor);
            assert!(at >= floor && at >= wal_end && end > at);
            assert!(is_claim_lsn(at), "where a commit record may begin");
            floor = end;
        }
    }

    /// A claim is settled in part by what is acknowledged. A row that is fed again is published again, and is settled
    /// when that is acknowledged. Otherwise its aggregate could end with a repetition of an earlier event.
    #[test]
    fn row_that_is_fed_again_is_settled_when_it_is_acknowledged_again() {
        let mut open = OpenClaim::new(Claim::of_aggregates(&["a", "b", "b", "c"]), Offset::ZERO);
        let fed =
            |open: &mut OpenClaim, from: u64| open.tickets.extend((from..from + 4).map(Ticket));
        let settled = |open: &OpenClaim| {
            let of = open.part(0).outcomes;
            of.into_iter().map(|outcome| outcome == RowOutcome::Published).collect::<Vec<_>>()
        };
        fed(&mut open, 0);
        assert_eq!(settled(&open), [false; 4]);
        open.acknowledged(Ticket(0));
        open.acknowledged(Ticket(2));
        open.acknowledged(Ticket(3));
        assert_eq!(settled(&open), [true, false, false, true], "an earlier row of \"b\" is open");
        open.rewind();
        assert_eq!(settled(&open), [false; 4], "nothing is acknowledged since");
        fed(&mut open, 4);
        open.acknowledged(Ticket(4));
        assert_eq!(settled(&open), [true, false, false, false]);
    }
}
