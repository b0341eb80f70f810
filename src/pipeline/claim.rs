//! One claim of the poller on its way through the relay: fed row by row, and settled when every row has its outcome.
//!
//! A claim is to the relay what a transaction of the stream is. Its position is the server's end of WAL when it was
//! claimed: made up, but rising from claim to claim, which is all that order asks for.

use super::lifecycle::Pipeline;
use super::log;
use super::parked::Desk;
use super::poll::Polling;
use super::requeue::{Whose, undecided};
use super::service::Stop;
use crate::ack::Progress;
use crate::error::{Halt, HaltReason};
use crate::event::Position;
use crate::lsn::Lsn;
use crate::outbox::Role;
use crate::parked::{Entry, Lane, Mark, Parked, State};
use crate::pgoutput;
use crate::postgres::client::Canceller;
use crate::postgres::poll::{Claim, Keep, OldestReady, Poller, Settled};
use crate::postgres::store::cursor::{self, Written};
use crate::postgres::store::parked::{self, Stored};
use crate::postgres::{SourceError, pipeline_lock, repair};
use crate::record::Ticket;
use crate::relay::{Change, Input};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_postgres::Client;

/// A claim that is open.
pub(super) struct Open {
    claim: Claim,
    /// What the relay knows it by, and the first position behind it.
    at: Lsn,
    end: Lsn,
    /// Rows that were fed.
    fed: usize,
    /// The tickets of rows that were fed, rising; the one of a row that has none is the next row's.
    tickets: Vec<Ticket>,
    /// Rows that the broker has acknowledged since the claim was fed from its beginning.
    acked: Vec<bool>,
    /// Rows that are settled and committed, while the others of the claim are still published.
    done: Vec<bool>,
    /// What is known of a row's outcome; the others are published once the relay has resolved them.
    outcomes: Vec<Option<Settled>>,
    /// Aggregates of rows whose failure, or waiting, their table keeps.
    kept: HashSet<Lane>,
    /// Those rows, as the relay knows them: nothing but the claim says so before it is settled.
    failures: Vec<Entry>,
    begun: bool,
    committed: bool,
    /// The relay has asked for a cursor row, which is the claim's commit.
    pub(super) cursor_waits: bool,
    /// When it was claimed.
    pub(super) claimed_at: Instant,
    /// When it was claimed, or settled in part.
    pub(super) held_since: Instant,
}

/// What a claim that is held for long can be settled with.
struct Part {
    /// One for each row; [`Settled::Held`] for rows that stay, and for those that were settled before.
    outcomes: Vec<Settled>,
    /// An event is parked behind a row that has no answer. It may be one of its aggregate, and would be published at a
    /// later position if the process ended: nothing that the claim has parked may be committed yet.
    parked_behind_open: bool,
}

impl Open {
    /// Takes a claim with rows. `floor` is the end of the one before.
    pub(super) fn new(claim: Claim, floor: Lsn) -> Self {
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

    /// The first position behind it.
    pub(super) fn end(&self) -> Lsn {
        self.end
    }

    pub(super) fn rows(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether the row is settled and committed already.
    fn is_done(&self, row: usize) -> bool {
        self.done.get(row).copied().unwrap_or(false)
    }

    /// It is fed from its beginning once more, at the same positions.
    pub(super) fn rewind(&mut self) {
        (self.fed, self.begun, self.committed, self.cursor_waits) = (0, false, false, false);
        // What is published again is acknowledged again: else an aggregate could end with a repetition of an earlier
        // event.
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

    /// How many rows are done with, from the first on: by the relay, or since they are committed. What the claim has
    /// parked among the committed ones must not be taken back, whatever the relay remembers of it.
    fn resolved(&self, progress: &Progress) -> usize {
        if progress.watermark.lsn() >= self.end {
            return self.outcomes.len();
        }
        let partial = progress.partial.filter(|partial| partial.commit_lsn == self.at);
        let by_relay = partial.map_or(0, |at| usize::try_from(at.ordinal).unwrap_or(0));
        by_relay.max(self.done.iter().take_while(|done| **done).count())
    }

    /// What the rows are to be settled with: those below `resolved`, and behind it those that are acknowledged and have
    /// no open row of their aggregate before them.
    fn part(&self, resolved: usize) -> Part {
        let (mut open, mut parked_behind_open) = (HashSet::new(), false);
        let mut outcomes = Vec::with_capacity(self.outcomes.len());
        for (row, known) in self.outcomes.iter().enumerate() {
            let key = self.claim.key(row);
            let acked = self.acked.get(row).copied().unwrap_or(false);
            let waits = open.contains(key);
            let outcome = match known {
                _ if self.is_done(row) => {
                    outcomes.push(Settled::Held);
                    continue;
                }
                Some(known) if row < resolved => known.clone(),
                None if row < resolved || acked && !waits => Settled::Published,
                _ => Settled::Held,
            };
            if outcome == Settled::Held {
                parked_behind_open |= !matches!(known, None | Some(Settled::Held));
                open.insert(key);
            }
            outcomes.push(outcome);
        }
        Part { outcomes, parked_behind_open }
    }

    /// Notes what becomes of a row that is parked. `keeps`: failures of rows are the table's to keep; a row whose event
    /// is not certain is parked nevertheless, since only there a person can decide on it. Returns whether the outbox
    /// table is done with the row.
    fn parks(&mut self, row: &Parked, whose: Whose, keeps: bool) -> bool {
        let waits = row.entry.lane.is_some_and(|lane| self.kept.contains(&lane));
        let outcome = match whose {
            // An earlier one stays in the table: this one comes again behind it.
            Whose::Again | Whose::Doubted if keeps && waits => Settled::Held,
            Whose::New if keeps => {
                self.kept.extend(row.entry.lane);
                failure(row)
            }
            Whose::Again | Whose::Kept | Whose::New | Whose::Doubted => Settled::Moved,
        };
        let moved = outcome == Settled::Moved;
        if keeps && whose != Whose::Kept {
            self.failures.push(row.entry);
        }
        if let Some(known) = self.outcomes.get_mut(index_of(row)) {
            *known = Some(outcome);
        }
        moved
    }

    /// Whether a cursor row was asked for, once.
    pub(super) fn takes_cursor(&mut self) -> bool {
        std::mem::take(&mut self.cursor_waits)
    }

    /// What is parked, where `loaded` is what the tables say: rows whose failure the outbox is to keep are not there.
    pub(super) fn parked(&self, mut loaded: Vec<Entry>) -> Vec<Entry> {
        let ours = |entry: &Entry| entry.position.commit_lsn == self.at;
        if !self.failures.is_empty() {
            // Their letters stand there in their stead.
            loaded.retain(|entry| !ours(entry));
            loaded.extend_from_slice(&self.failures);
        }
        loaded
    }
}

impl Pipeline {
    /// Feeds rows of the claim until something stops it.
    pub(super) fn feed_claim(&mut self, now: Duration, open: &mut Open) {
        if !open.begun && !self.relay.stopping() {
            open.begun = true;
            let (commit_lsn, commit_time) = (open.at, open.claim.claimed_at);
            self.apply(now, Input::Begin { commit_lsn, commit_time });
        }
        while let Some(row) = open.claim.rows.get(open.fed) {
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
            self.handed.feeds(open.fed, xmin);
            self.marking.feeds(xmin);
            self.returning.feeds(xmin);
            match pgoutput::decode(row) {
                Ok(message) => {
                    let taken = if open.claim.is_too_large(open.fed) {
                        self.feed_too_large(now, &message)
                    } else {
                        self.feed_row(now, &message)
                    };
                    if !taken {
                        return;
                    }
                    open.fed += 1;
                }
                Err(error) => {
                    let halt = Box::new(unreadable(&error));
                    self.apply(now, Input::Halt(halt));
                    return;
                }
            }
        }
        if !open.committed && !self.relay.stopping() {
            open.committed = true;
            self.apply(now, Input::Commit { commit_lsn: open.at, end_lsn: open.end });
        }
    }

    /// Whether the relay is done with every row of the claim.
    pub(super) fn claim_is_resolved(&self, open: &Open) -> bool {
        open.committed && self.relay.progress().watermark.lsn() >= open.end
    }

    /// Takes rows of parked events: they go to the parked table in the claim's own transaction, or, where the outbox
    /// has columns for it, become the row's failure.
    pub(super) async fn park_in_claim(
        &mut self,
        polling: &mut Polling,
        rows: usize,
        marks: Vec<Mark>,
        stop: &Stop,
    ) -> Result<Stored, SourceError> {
        let rows = self.shelf.take_rows(rows);
        let keeps = polling.keeps_now;
        let whose = self.whose(polling, &rows).await?;
        let parted = whose.iter().any(|whose| matches!(whose, Whose::Kept | Whose::Doubted));
        // Not all of the rows are written where some are kept in the outbox table, or are parked already.
        let some = keeps || parted;
        let (mut places, mut written) = (Vec::new(), Vec::new());
        if let Some(open) = &mut polling.open {
            for (row, whose) in rows.iter().zip(whose) {
                let found_now = whose == Whose::Doubted && row.error_code.is_none();
                let undecided = (whose == Whose::Doubted).then(|| undecided(row));
                let row = undecided.as_ref().unwrap_or(row);
                if !open.parks(row, whose, keeps) {
                    continue;
                }
                match whose {
                    // Its row is moved to where it stands now, and written only where somebody has deleted it.
                    Whose::Again => places.extend(self.returning.moves(row)),
                    Whose::Doubted => self.returning.keeps_beside(row),
                    Whose::Kept | Whose::New => {}
                }
                if found_now {
                    self.metrics.failed(row.event_type.as_deref().unwrap_or_default());
                    log::parked(&mut self.tell, &self.spec, row);
                }
                if some && whose != Whose::Kept {
                    written.push(row.clone());
                }
            }
        }
        polling.failed |= some || !places.is_empty();
        if keeps {
            written.extend(self.letters(polling, &rows));
        }
        let rows: &[Parked] = if some { &written } else { &rows };
        let (spec, epoch) = (Arc::clone(&self.spec), polling.desk.epoch);
        let name = spec.name();
        // What became of earlier ones is not the claim's: were its marks lost with it, an event that is published would
        // be tried again, behind later ones of its aggregate whose marks are committed.
        let Desk { control, jobs, .. } = &mut polling.desk;
        let marked = async {
            jobs.finish().await;
            match marks.as_slice() {
                [] => Ok(Stored::Yes),
                marks => parked::write(control.client(), name, epoch, &[], marks).await,
            }
        };
        let marked = self.patiently(stop, marked).await?;
        if marked == Stored::TakenOver {
            return Ok(Stored::TakenOver);
        }
        let client = polling.poller.client();
        polling.desk.jobs.unseen = polling.open.as_ref().map(|open| open.at);
        parked::place(client, name, &places).await?;
        let stored = parked::write(client, name, epoch, rows, &[]).await?;
        if stored != Stored::TakenOver {
            self.keep_large(polling, rows).await?;
        }
        drop(self.shelf.stored());
        // Rows alone leave nothing out.
        Ok(if stored == Stored::Yes { marked } else { stored })
    }

    /// What the rows are that the claim parks.
    async fn whose(&self, polling: &Polling, rows: &[Parked]) -> Result<Vec<Whose>, SourceError> {
        let claim = polling.open.as_ref().map(|open| &open.claim);
        let xmin = |row: &Parked| claim.map_or(0, |claim| claim.xmin(index_of(row)));
        let alike = self.alike(polling.poller.client(), rows, xmin).await?;
        let whose = |row: &Parked| {
            self.returning.whose(row, xmin(row), alike.contains(&row.entry.position))
        };
        Ok(rows.iter().map(whose).collect())
    }

    /// Has the server keep the payloads of parked rows that were not read, where their rows in the outbox are done
    /// with.
    async fn keep_large(&self, polling: &Polling, rows: &[Parked]) -> Result<(), SourceError> {
        let Some(open) = &polling.open else { return Ok(()) };
        let payload = self.spec.outbox.column(Role::Payload).unwrap_or_default();
        for parked in rows {
            let position = parked.entry.position;
            let row = usize::try_from(position.ordinal).unwrap_or(usize::MAX);
            let moved = matches!(open.outcomes.get(row), Some(Some(Settled::Moved)));
            if moved && open.claim.is_too_large(row) {
                let (claim, pipeline) = (&open.claim, self.spec.name());
                let keep = Keep { claim, row, payload, pipeline, position };
                polling.poller.keep_value(&keep).await?;
            }
        }
        Ok(())
    }

    /// Of rows whose failure is their table's to keep, those that are dead with it and go to the dead-letter topic:
    /// they stand in the parked table too, committed with the failure, so that no crash loses the letter. They hold up
    /// nobody.
    fn letters(&self, polling: &Polling, rows: &[Parked]) -> Vec<Parked> {
        let Some(open) = polling.open.as_ref().filter(|_| self.spec.dead_topic.is_some()) else {
            return Vec::new();
        };
        let letter = |row: &Parked| {
            let index = usize::try_from(row.entry.position.ordinal).ok()?;
            let failed = matches!(open.outcomes.get(index)?, Some(Settled::Failed { .. }));
            let attempts = polling.poller.dies(open.claim.rows.get(index).filter(|_| failed)?)?;
            let entry = Entry { state: State::Dead, lane: None, attempts, ..row.entry };
            Some(Parked { entry, ..row.clone() })
        };
        rows.iter().filter_map(letter).collect()
    }

    /// Whether anything of the claim at hand can be settled.
    pub(super) fn claim_has_progress(&self, polling: &Polling) -> bool {
        let progress = self.relay.progress();
        let any = |open: &Open| {
            let part = open.part(open.resolved(&progress));
            part.outcomes.iter().any(|outcome| *outcome != Settled::Held)
        };
        polling.open.as_ref().is_some_and(any)
    }

    /// Settles what is acknowledged or parked of a claim that is open for long, and keeps its other rows, which are
    /// still published. `false`: nothing of it was settled, or its other rows could not be kept.
    pub(super) async fn settle_so_far(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        let Some(mut open) = polling.open.take() else { return Ok(false) };
        let resolved = open.resolved(&self.relay.progress());
        let Part { outcomes, parked_behind_open } = open.part(resolved);
        let settles =
            |row: usize| outcomes.get(row).is_some_and(|outcome| *outcome != Settled::Held);
        if parked_behind_open || !(0..outcomes.len()).any(settles) {
            polling.open = Some(open);
            return Ok(false);
        }
        let left: Vec<usize> =
            (0..outcomes.len()).filter(|row| !settles(*row) && !open.is_done(*row)).collect();
        let spec = Arc::clone(&self.spec);
        let (poller, epoch) = (&mut polling.poller, polling.desk.epoch);
        let kept = async {
            // As in `settle_claim`.
            if !cursor::is_owned(poller.client(), spec.name(), epoch).await? {
                poller.abandon().await?;
                return Ok(None);
            }
            poller.settle_part(&open.claim, &outcomes, &left).await.map(Some)
        };
        polling.desk.jobs.unseen = None;
        let Some(kept) = self.patiently(stop, kept).await? else {
            polling.desk.overruled = true;
            log::row_taken(self, &Written::TakenOver);
            self.apply(self.now(), Input::SlotTaken);
            return Ok(true);
        };
        self.handed.settled_so_far(|row| {
            matches!(outcomes.get(row), Some(Settled::Published | Settled::Moved))
        });
        self.returning.settled();
        if polling.poller.repairs().is_some() {
            // The list's own session marks them.
            self.marking.forget();
            log::repair_progress(self);
        }
        for (row, outcome) in outcomes.iter().enumerate() {
            if let Some(done) = open.done.get_mut(row) {
                *done |= *outcome != Settled::Held;
            }
        }
        open.held_since = Instant::now();
        polling.open = Some(open);
        Ok(kept)
    }

    /// Marks the claim's rows up to the first whose outcome is not known, and of later rows those that are acknowledged
    /// and have no such row of their aggregate before them, and commits. Whether any took a mark.
    ///
    /// Events of later rows that this claim has parked are taken out of the parked ones again. They have positions of
    /// this claim, and the open row would get a position of the next claim, behind them.
    ///
    /// Where another process has taken the pipeline over, nothing is marked.
    pub(super) async fn settle_claim(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<bool, SourceError> {
        let Some(open) = polling.open.take() else { return Ok(false) };
        let done = open.resolved(&self.relay.progress());
        let parks = polling.desk.jobs.unseen == Some(open.at);
        let back = (parks && done < open.rows()).then_some(Position {
            commit_lsn: open.at,
            ordinal: u64::try_from(done).unwrap_or(u64::MAX),
        });
        let places = back.map(|from| self.returning.places_back(from)).unwrap_or_default();
        // Before a new beginning nothing of it may be tried: the table itself holds back what has failed.
        let cursor_waits = open.cursor_waits && !polling.failed;
        let Part { outcomes, .. } = open.part(done);
        if polling.poller.repairs().is_some() {
            // The list's own session marks them.
            self.marking.forget();
            log::repair_progress(self);
        }
        let spec = Arc::clone(&self.spec);
        let (poller, epoch) = (&mut polling.poller, polling.desk.epoch);
        let settled = async {
            // In the claim's own transaction: whoever takes the pipeline over now waits for its commit.
            if !cursor::is_owned(poller.client(), spec.name(), epoch).await? {
                poller.abandon().await?;
                return Ok(false);
            }
            if let Some(from) = back {
                parked::take_back(poller.client(), spec.name(), from, &places).await?;
            }
            poller.settle(open.claim, &outcomes).await.map(|()| true)
        };
        polling.desk.jobs.unseen = None;
        if !self.patiently(stop, settled).await? {
            polling.desk.overruled = true;
            log::row_taken(self, &Written::TakenOver);
            self.apply(self.now(), Input::SlotTaken);
            return Ok(false);
        }
        let settled =
            |row: usize| matches!(outcomes.get(row), Some(Settled::Published | Settled::Moved));
        self.handed.settled(settled);
        if cursor_waits {
            self.apply(self.now(), Input::CursorWritten);
        }
        self.returning.settled();
        Ok(outcomes.iter().any(|outcome| *outcome != Settled::Held))
    }
}

/// Where a claim stands for the relay, and the first position behind it: `wal_end`, or `floor` if that is further on.
///
/// The end of WAL may be where the next commit comes to stand, and its event must not be taken for one that was parked
/// here.
fn position(wal_end: Lsn, floor: Lsn) -> (Lsn, Lsn) {
    let at = wal_end.max(floor).for_claim();
    // Any number above it and not above the next claim's will do.
    (at, Lsn::from_wire(at.to_wire() + 1))
}

/// Which row of its claim it is.
fn index_of(row: &Parked) -> usize {
    usize::try_from(row.entry.position.ordinal).unwrap_or(usize::MAX)
}

/// What a parked event is in a table that keeps failures.
fn failure(row: &Parked) -> Settled {
    match row.entry.state {
        State::Waiting | State::Dead => Settled::Failed {
            error: row.error.clone().unwrap_or_default(),
            code: row.error_code.unwrap_or("refused"),
        },
        State::Behind | State::Due | State::Done | State::Skipped => Settled::Held,
    }
}

fn unreadable(error: &pgoutput::DecodeError) -> Halt {
    Halt {
        reason: HaltReason::Protocol,
        message: format!("a claimed row can't be read: {error}"),
        meaning: "nothing is lost: it is not marked".into(),
        hint: "start again; if it comes back, report it with the server's version".into(),
    }
}

// Where rows are claimed: the table, by its marks, or the list of a repair.

/// A session that claims rows, one claim at a time.
pub(super) enum Reader {
    Poll(Box<Poller>),
    Repair(Box<repair::Reader>),
}

impl Reader {
    /// The table as a pgoutput Relation message.
    pub(super) fn relation(&self) -> Bytes {
        match self {
            Self::Poll(poller) => poller.relation().clone(),
            Self::Repair(reader) => reader.relation(),
        }
    }

    /// The question for the oldest row that is ready; a list has none.
    pub(super) fn oldest_ready(&self) -> Option<OldestReady> {
        match self {
            Self::Poll(poller) => Some(poller.oldest_ready()),
            Self::Repair(_) => None,
        }
    }

    pub(super) fn table_oid(&self) -> u32 {
        match self {
            Self::Poll(poller) => poller.table_oid(),
            Self::Repair(reader) => reader.table().oid(),
        }
    }

    /// The session's client: while a claim is open, of its transaction.
    pub(super) fn client(&self) -> &Client {
        match self {
            Self::Poll(poller) => poller.client(),
            Self::Repair(reader) => reader.client(),
        }
    }

    /// What cancels the session's statements.
    pub(super) fn canceller(&self) -> Option<Canceller> {
        match self {
            Self::Poll(poller) => poller.canceller(),
            Self::Repair(reader) => reader.control().canceller(),
        }
    }

    /// The next rows; a repair's pages have their own size.
    pub(super) async fn claim(&mut self, limit: usize) -> Result<Claim, SourceError> {
        match self {
            Self::Poll(poller) => poller.claim(limit, None).await,
            Self::Repair(reader) => reader.claim().await,
        }
    }

    /// The next rows, whether they are ready or not; a list has no others.
    pub(super) async fn claim_all(&mut self, limit: usize) -> Result<Claim, SourceError> {
        match self {
            Self::Poll(poller) => poller.claim_all(limit).await,
            Self::Repair(reader) => reader.claim().await,
        }
    }

    pub(super) async fn settle(
        &mut self,
        claim: Claim,
        outcomes: &[Settled],
    ) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.settle(claim, outcomes).await,
            Self::Repair(reader) => reader.settle(&claim, outcomes).await,
        }
    }

    /// Settles and commits part of a claim; the rows of `left` stay in it, and no others. Whether they could be kept.
    pub(super) async fn settle_part(
        &mut self,
        claim: &Claim,
        outcomes: &[Settled],
        left: &[usize],
    ) -> Result<bool, SourceError> {
        match self {
            Self::Poll(poller) => poller.settle_part(claim, outcomes, left).await,
            Self::Repair(reader) => reader.settle_part(claim, outcomes).await.map(|()| true),
        }
    }

    /// Copies the payload of a row that is too large to be read into its row of `postrider.parked`.
    pub(super) async fn keep_value(&self, keep: &Keep<'_>) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.keep_value(keep).await,
            Self::Repair(reader) => reader.table().keep_value(reader.client(), keep).await,
        }
    }

    /// If the table counts failures and one more makes this row of a claim dead: the count including that failure.
    pub(super) fn dies(&self, row: &[u8]) -> Option<u32> {
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

    /// Gives the pipeline's lock back: the session is used no more.
    pub(super) async fn unlock(&self, pipeline: &str) -> Result<(), SourceError> {
        pipeline_lock::unlock(self.client(), pipeline).await
    }

    /// Word of new rows; a list has none.
    pub(super) fn wake(&self) -> Arc<Notify> {
        match self {
            Self::Poll(poller) => poller.wake(),
            Self::Repair(_) => Arc::default(),
        }
    }

    /// Waits until the session ends and says why. Cancel-safe.
    pub(super) async fn closed(&mut self) -> SourceError {
        match self {
            Self::Poll(poller) => poller.closed().await,
            Self::Repair(reader) => reader.closed().await,
        }
    }

    pub(super) fn repairs(&self) -> Option<&repair::Reader> {
        match self {
            Self::Poll(_) => None,
            Self::Repair(reader) => Some(reader),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_rise_and_never_stand_where_a_commit_can() {
        let mut floor = Lsn::ZERO;
        for wal_end in [0x100, 0x100, 0x108, 0x50, 0x200].map(Lsn::from_wire) {
            let (at, end) = position(wal_end, floor);
            assert!(at >= floor && at >= wal_end && end > at);
            assert!(at.is_claims(), "where a commit record may begin");
            floor = end;
        }
    }

    /// A claim is settled in part by what is acknowledged. A row that is fed again is published again, and is settled
    /// when that is acknowledged: else its aggregate could end with a repetition of an earlier event.
    #[test]
    fn row_that_is_fed_again_is_settled_when_it_is_acknowledged_again() {
        let mut open = Open::new(Claim::of_aggregates(&["a", "b", "b", "c"]), Lsn::ZERO);
        let fed = |open: &mut Open, from: u64| open.tickets.extend((from..from + 4).map(Ticket));
        let settled = |open: &Open| {
            let of = open.part(0).outcomes;
            of.into_iter().map(|outcome| outcome == Settled::Published).collect::<Vec<_>>()
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
