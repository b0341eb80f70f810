//! A polling session, or the one of a repair: performs the effects of [`Claims`] on the fake table.
//!
//! The process waits for each operation of the session, as `src/pipeline/poll.rs` does: while one is in progress, the
//! process has no turn, and servers and other processes go on.

use super::ground::{Database, Ground, wall};
use super::outbox::{
    ClaimAnswer, ClaimQuery, Received, Sent, SessionId, Settled, StatusRow, time_of,
};
use super::ownership::{SlotJob, Snapshot, create_slot};
use super::plan::SourceMode;
use super::postgres::{ParkedChange, Reply, Server, Statement, WITHOUT_RESOLVED, at};
use super::process::{End, NextReading, Process, aggregate_of};
use super::requeued;
use super::store::{Store, status_rows};
use super::truth::Truth;
use super::{Check, wrong};
use crate::ack::bug::{Bug, injected};
use crate::claims::{
    ClaimEffect, ClaimInput, ClaimSettings, ClaimSource, ClaimedRow, Claims, NewClaim,
    ParkedEvents, PollEnd, WrittenAs,
};
use crate::engine::PollingRules;
use crate::published::{ParkedRow, RowStatusBatch, RowStatusMade};
use crate::relay::{Effect, Restart};
use postrider_core::event::{Aggregate, Position};
use postrider_core::outbox_rows::{RequeueCandidate, RowOutcome};
use postrider_core::parked::{Entry, Lane, ParkedUpdate, Request};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

/// Pause between two claims of a table without ready rows.
const INTERVAL: Duration = Duration::from_millis(20);

/// Rows of the largest claim.
const ROWS_MAX: usize = 40;

/// Most statements of one claim.
const STATEMENTS_MAX: usize = 4;

/// How long an aggregate is left out whose rows filled a claim and could not be had. Unit: milliseconds.
const BLOCKED_PAUSE: u64 = 1_000;

/// What is still to be done before the first claim.
#[derive(Debug)]
enum Opening {
    /// The session has the lock.
    Locked,
    /// This process owns the pipeline, and waits for the records of the owner before it.
    Owner,
    /// A repair is recorded, and its slot is created next.
    Noted,
    /// The slot exists; the ids that its snapshot sees are to be listed.
    Created(Snapshot, Vec<u64>),
    Done,
}

/// What the process does when the operation in progress has its answer, and all effects are performed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TurnStage {
    /// A turn begins.
    Begin,
    /// The effects of the relay are performed.
    Relay,
    /// The turn was applied.
    Turn,
    /// What was left when the pipeline ends is settled.
    Exit,
}

/// An operation of the session.
#[derive(Debug)]
enum Operation {
    Mark(RowStatusBatch),
    QueryRequeued,
    ReadParked {
        in_claim: bool,
    },
    Claim {
        limit: usize,
        all: bool,
        /// Ids of rows that do not expire.
        kept: Vec<u64>,
    },
    /// Statuses of events that were parked earlier come first, on the control session.
    Park {
        statuses: Option<Vec<ParkedUpdate>>,
        locked: Vec<Position>,
        changes: Vec<ParkedChange>,
    },
    Settle {
        outcomes: Vec<RowOutcome>,
        undo: Vec<ParkedChange>,
    },
    SettlePart {
        outcomes: Vec<RowOutcome>,
        left: Vec<usize>,
    },
    Abandon,
    KeepOpen,
    FinishPolling,
    FinishRepair,
}

/// The answer to an operation.
#[derive(Debug)]
enum Reaction {
    Marked(RowStatusMade),
    Requeued(Vec<RequeueCandidate>),
    Parked(Vec<Entry>, Vec<(Position, Request)>),
    Claimed(NewClaim),
    Stored { owned: bool, locked: Vec<Position> },
    Settled { owned: bool },
    SettledPart { owned: bool, kept: bool },
    Abandoned,
    KeptOpen,
    Finished(u64),
    RepairFinished,
}

/// Parked events as they are read, and the requests of operators.
type ReadEvents = (Vec<Entry>, Vec<(Position, Request)>);

/// A claimed row.
#[derive(Clone, Copy, Debug)]
struct ReadRow {
    id: u64,
    event: usize,
    content: u32,
    claimed: ClaimedRow,
}

/// The session that reads rows: of the table, or of the list of a repair.
#[derive(Debug)]
struct Reader {
    session: SessionId,
    /// Aggregates that are left out for a while, and until when.
    pauses: BTreeMap<u64, u64>,
    /// The rows of the open claim.
    rows: Vec<ReadRow>,
    claimed_at: u64,
    /// The rows are those of a list: the ids of the page that are not finished.
    page: Option<Vec<u64>>,
}

/// A polling session.
#[derive(Debug)]
pub(super) struct PollSession {
    store: Store,
    reader: Reader,
    opening: Opening,
    /// The parked events that were read when this process became the owner.
    first: Option<ReadEvents>,
    claims: Option<Claims>,
    phase: TurnStage,
    effects: VecDeque<ClaimEffect>,
    operation: Option<Operation>,
    reaction: Option<Reaction>,
    slot_job: Option<SlotJob>,
    ends: Option<PollEnd>,
    overruled: bool,
}

impl PollSession {
    /// A process connects to poll, or to repair. Returns `None` if it has to try again later.
    pub(super) fn open(ground: &mut Ground, process: &mut Process) -> Check<Option<Self>> {
        let now = ground.now;
        let Some(database) = &mut ground.database else { return Ok(None) };
        let repairs = std::mem::take(&mut process.connections.next) == NextReading::Repair;
        let session = database.ownership.connect();
        if !database.ownership.lock(session) {
            if process.engine.relay().in_flight().0 > 0 {
                process.apply(ground, crate::relay::Input::SlotTaken)?;
            }
            return Ok(None);
        }
        if repairs && database.ownership.unfinished().is_none() && ground.server.slot.is_usable() {
            // Another process has repaired the slot meanwhile.
            database.ownership.unlock(session);
            return Ok(None);
        }
        process.connections.session = Some(session);
        let reader = Reader {
            session,
            pauses: BTreeMap::new(),
            rows: Vec::new(),
            claimed_at: 0,
            page: repairs.then(Vec::new),
        };
        Ok(Some(Self {
            store: Store::new(0, now),
            reader,
            opening: Opening::Locked,
            first: None,
            claims: None,
            phase: TurnStage::Begin,
            effects: VecDeque::new(),
            operation: None,
            reaction: None,
            slot_job: None,
            ends: None,
            overruled: false,
        }))
    }

    /// Whether the session is about to publish as the new owner: the records of other processes in flight are written
    /// now, or never.
    pub(super) fn takes_over(&self) -> bool {
        matches!(self.opening, Opening::Owner)
    }

    /// Whether the pipeline ends with this session.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.ends, Some(PollEnd::Stopped | PollEnd::Halted(_)))
    }

    /// Whether a claim is open, or an operation or a statement is in progress.
    pub(super) fn is_busy(&self) -> bool {
        let open = self.claims.as_ref().is_none_or(|claims| claims.open().is_some());
        open || self.operation.is_some() || self.reaction.is_some() || !self.store.is_settled()
    }

    /// An operator has made a request: the notification.
    pub(super) fn notify(&mut self, now: u64) {
        self.store.notify(now);
    }

    /// One turn of the process.
    pub(super) fn turn(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
    ) -> Check<Option<End>> {
        if self.operation.is_some() {
            return Ok(None);
        }
        if !matches!(self.opening, Opening::Done) {
            process.take_posts(ground)?;
            if process.perform_offline(ground)? {
                return Ok(Some(End::Over));
            }
            return self.open_further(ground, process);
        }
        if let Some(reaction) = self.reaction.take() {
            self.react(ground, process, reaction)?;
        } else if self.phase == TurnStage::Begin && self.effects.is_empty() {
            process.take_posts(ground)?;
            process.offer_attempts(ground)?;
            self.feed(ground, process)?;
            self.apply(ground, process, ClaimInput::RelayEffects)?;
            self.phase = TurnStage::Relay;
        }
        self.go_on(ground, process)
    }

    /// Performs effects until an operation is in progress, or the turn is over.
    fn go_on(&mut self, ground: &mut Ground, process: &mut Process) -> Check<Option<End>> {
        loop {
            while let Some(effect) = self.effects.pop_front() {
                process.boundary()?;
                self.perform(ground, process, effect)?;
                process.boundary()?;
                if self.operation.is_some() {
                    return Ok(None);
                }
            }
            match self.phase {
                TurnStage::Relay if !process.engine.effects().is_empty() => {
                    let effect = process.engine.effects().remove(0);
                    self.apply(ground, process, ClaimInput::Relay(effect))?;
                }
                TurnStage::Relay if self.ends.is_some() => {
                    Self::give_up_in_flight(ground, process)?;
                    self.apply(ground, process, ClaimInput::Exit)?;
                    self.phase = TurnStage::Exit;
                }
                TurnStage::Relay => {
                    if process.buffer.wants_records() {
                        self.store.fetch_records(process, process.engine.unseen());
                    }
                    let turn = ClaimInput::Turn {
                        overruled: self.overruled,
                        writing: self.store.is_writing(),
                    };
                    self.apply(ground, process, turn)?;
                    self.phase = TurnStage::Turn;
                }
                TurnStage::Exit => return Ok(Some(End::Over)),
                TurnStage::Turn | TurnStage::Begin if self.ends.is_some() => {
                    return Ok(Some(End::PollingEnds));
                }
                TurnStage::Turn => {
                    self.phase = TurnStage::Begin;
                    self.take_event(ground, process)?;
                    if self.effects.is_empty() {
                        return Ok(None);
                    }
                }
                TurnStage::Begin => return Ok(None),
            }
        }
    }

    /// What is in flight is given up before the lock is released.
    fn give_up_in_flight(ground: &mut Ground, process: &mut Process) -> Check {
        let relay = process.engine.relay();
        let busy = relay.in_flight().0 > 0 || relay.has_unsettled_attempts();
        if busy || process.producer.is_busy() {
            process.reset_sink(ground, Restart::SinkBroken)?;
        }
        Ok(())
    }

    fn apply(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
        input: ClaimInput<'_>,
    ) -> Check {
        let Some(claims) = &mut self.claims else { return Ok(()) };
        // Each turn applies these two, whether something has happened or not.
        let of_turn = matches!(input, ClaimInput::RelayEffects | ClaimInput::Turn { .. });
        if ground.transcribes && !of_turn {
            ground.log(process.index, &format!("claims: {input:?}"));
        }
        ground.result.inputs += u64::from(!of_turn);
        let mut effects = Vec::new();
        process.ask(ground, |engine, clock| claims.apply(clock, input, engine, &mut effects))?;
        if ground.transcribes {
            for effect in &effects {
                ground.log(process.index, &format!("    claims: {effect:?}"));
            }
        }
        self.effects.extend(effects);
        Ok(())
    }

    /// Offers the rows of the open claim.
    fn feed(&mut self, ground: &mut Ground, process: &mut Process) -> Check {
        while let Some(claims) = &mut self.claims {
            let next = process.ask(ground, |engine, clock| claims.next_row(clock, engine))?;
            let Some((index, _)) = next else { return Ok(()) };
            let Some(row) = self.reader.rows.get(index).copied() else {
                return wrong(format!("row {index} of the claim does not exist"));
            };
            if !process.offer(ground, row.event, None)? {
                return Ok(());
            }
            if let Some(claims) = &mut self.claims {
                claims.row_fed();
            }
        }
        Ok(())
    }

    /// What the process waits for has happened: one event is handled.
    fn take_event(&mut self, ground: &mut Ground, process: &mut Process) -> Check {
        let (now, clock) = (ground.now, process.clock(ground.now));
        self.store.send_prepared();
        let broker_down = ground.broker_is_down();
        let Some(claims) = &mut self.claims else { return Ok(()) };
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= clock);
        let claim_due = is_due(claims.claim_due(&process.engine, broker_down));
        let tick_due =
            is_due(claims.deadline(clock)) || process.due().is_some_and(|due| due <= now);
        let slot_due = is_due(claims.slot_due()) && self.slot_job.is_none();
        if let Some(answer) = self.store.receive() {
            if let Received::Table(answer) = answer {
                self.overruled |= !self.store.take(ground, process, answer)?;
            }
            return Ok(());
        }
        if let Some(answer) = self.slot_job.and_then(|job| job.answer) {
            self.slot_job = None;
            return self.apply(ground, process, ClaimInput::Slot(answer));
        }
        if claim_due {
            return self.apply(ground, process, ClaimInput::ClaimDue);
        }
        if slot_due {
            return self.apply(ground, process, ClaimInput::SlotDue);
        }
        if tick_due {
            return self.apply(ground, process, ClaimInput::Tick { broker_down });
        }
        self.store.read_requests(now);
        Ok(())
    }

    /// Performs an effect, or begins its operation.
    fn perform(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
        effect: ClaimEffect,
    ) -> Check {
        self.operation = Some(match effect {
            ClaimEffect::Perform(effect) => return self.perform_for_relay(ground, process, effect),
            ClaimEffect::ResetSink(why) => return process.reset_sink(ground, why),
            ClaimEffect::Started | ClaimEffect::Accepted | ClaimEffect::Processed => return Ok(()),
            ClaimEffect::Ends(end) => {
                self.ends.get_or_insert(end);
                return Ok(());
            }
            ClaimEffect::Slot(step) => {
                let epoch = self.store.epoch();
                self.slot_job = Some(SlotJob { step, epoch, answer: None });
                return Ok(());
            }
            ClaimEffect::MarkStreamed => {
                self.store.finish(ground)?;
                let clock = process.clock(ground.now);
                if self.first.is_some() {
                    process.engine.row_status().prepared(true);
                }
                match process.engine.take_statuses(clock, None) {
                    Some(batch) => {
                        // Another session may have repeated some of these rows, and the others are not repeated.
                        ground.truth.cut_repetitions(ground.server.unresolved());
                        Operation::Mark(batch)
                    }
                    None => return self.apply(ground, process, ClaimInput::Marked),
                }
            }
            ClaimEffect::QueryRequeued => {
                self.store.finish(ground)?;
                Operation::QueryRequeued
            }
            ClaimEffect::ReadParked { in_claim } => {
                if !in_claim {
                    self.store.finish(ground)?;
                }
                Operation::ReadParked { in_claim }
            }
            ClaimEffect::Claim { limit, all } => {
                let parked = ground.server.table.values();
                let mut kept: Vec<u64> =
                    parked.map(|row| ground.truth.rows[row.event].id).collect();
                kept.retain(|id| process.engine.requeued().keeps_expired(&id.to_string()));
                Operation::Claim { limit, all, kept }
            }
            ClaimEffect::Park { rows, statuses } => self.park(ground, process, rows, statuses)?,
            ClaimEffect::Settle { outcomes, undo_from, places } => {
                let back = places.into_iter().map(|(from, to)| ParkedChange::Move(from, to));
                let undo = back.chain(undo_from.map(ParkedChange::DeleteFrom)).collect();
                Operation::Settle { outcomes, undo }
            }
            ClaimEffect::SettlePart { outcomes, left } => Operation::SettlePart { outcomes, left },
            ClaimEffect::Abandon => Operation::Abandon,
            ClaimEffect::KeepOpen => Operation::KeepOpen,
            ClaimEffect::FinishPolling => {
                self.store.finish(ground)?;
                Operation::FinishPolling
            }
            ClaimEffect::FinishRepair => Operation::FinishRepair,
        });
        Ok(())
    }

    /// Performs an effect of the relay, as a stream does.
    #[expect(clippy::wildcard_enum_match_arm, reason = "Claims performs the other effects")]
    fn perform_for_relay(
        &mut self,
        ground: &Ground,
        process: &mut Process,
        effect: Effect,
    ) -> Check {
        match effect {
            Effect::WriteParking { rows, statuses } => {
                self.store.write_parking(process, rows, statuses);
            }
            Effect::Attempt { ticket, position } => {
                process.buffer.add_attempt(ticket, position, ground.now);
            }
            Effect::Probe { ticket, .. } => process.buffer.probes.push(ticket),
            Effect::Published { ticket, .. } => process.engine.row_status().published(ticket),
            Effect::Released { .. } | Effect::Overtaken { .. } => {}
            other => return wrong(format!("{other:?} is not performed while the table is polled")),
        }
        Ok(())
    }

    /// Takes the rows to park, and decides how they are written.
    fn park(
        &mut self,
        ground: &mut Ground,
        process: &mut Process,
        rows: usize,
        statuses: Vec<ParkedUpdate>,
    ) -> Check<Operation> {
        let rows = process.buffer.take_rows(rows);
        self.store.finish(ground)?;
        let ids: Vec<String> =
            rows.iter().map(|(_, event)| ground.truth.rows[*event].id.to_string()).collect();
        let row = |((entry, _), id): (&(Entry, usize), &'_ String)| (*entry, id.clone());
        let named: Vec<(Entry, String)> = rows.iter().zip(&ids).map(row).collect();
        let parked: Vec<ParkedRow<'_>> =
            named.iter().map(|(entry, id)| parked_row(*entry, id)).collect();
        let content = |at: Position| {
            let row = usize::try_from(at.ordinal).ok().and_then(|row| self.reader.rows.get(row));
            row.map_or(0, |row| row.content)
        };
        let (Some(claims), Some(database)) = (&mut self.claims, &mut ground.database) else {
            return Ok(Operation::Abandon);
        };
        let changes = database.outbox.parked(self.reader.session);
        let alike = |(before, index): (Position, usize)| {
            let (entry, event) = rows[index];
            let row = (event, content(entry.position));
            let table = ground.server.table_in_claim(changes, ground.now);
            requeued::is_alike(&table, before, row).then_some(entry.position)
        };
        let compared = claims.to_compare(&parked, &process.engine);
        let alike: HashSet<Position> = compared.into_iter().filter_map(alike).collect();
        let plan = claims.plan_parking(&parked, &alike, &mut process.engine);
        let moves = plan.moves.iter().map(|(from, to)| ParkedChange::Move(*from, *to));
        let written = |(index, written): &(usize, WrittenAs)| {
            let (entry, event) = rows[*index];
            let (entry, undecided) = match *written {
                WrittenAs::Parked => (entry, false),
                WrittenAs::Undecided { entry, .. } => (entry, true),
                WrittenAs::DeadLetter { entry } => (entry, false),
            };
            let (claimed_at, content) = (self.reader.claimed_at, content(entry.position));
            ParkedChange::Insert { entry, event, claimed_at, content, undecided }
        };
        let changes = moves.chain(plan.rows.iter().map(written)).collect();
        Ok(Operation::Park { statuses: Some(statuses), locked: Vec::new(), changes })
    }

    /// Passes the answer of the operation to [`Claims`].
    fn react(&mut self, ground: &mut Ground, process: &mut Process, reaction: Reaction) -> Check {
        let writing = self.store.is_writing();
        match reaction {
            Reaction::Marked(made) => {
                let clock = process.clock(ground.now);
                process.engine.row_status().made(clock, &made);
                self.apply(ground, process, ClaimInput::Marked)
            }
            Reaction::Requeued(found) => {
                self.apply(ground, process, ClaimInput::RequeuedFound(found))
            }
            Reaction::Parked(parked, requests) => {
                let unresolved = parked.len() as u64 + ROWS_MAX as u64;
                process.rows_max = unresolved + ground.knobs.settings.rules.rows_max;
                let (parked, requests) = (parked.as_slice(), requests.as_slice());
                let read = ParkedEvents { parked, requests, dead_unsent: &[] };
                self.apply(ground, process, ClaimInput::ParkedRead(read))
            }
            Reaction::Claimed(_) if process.engine.relay().stopping() => {
                self.roll_back(ground);
                self.apply(ground, process, ClaimInput::ClaimStopped)
            }
            Reaction::Claimed(claim) => self.apply(ground, process, ClaimInput::Claimed(claim)),
            Reaction::Stored { owned, locked } => {
                process.buffer.writing.clear();
                self.overruled |= !owned;
                self.apply(ground, process, ClaimInput::Parked { owned, locked: &locked })
            }
            Reaction::Settled { owned } => {
                self.apply(ground, process, ClaimInput::Settled { owned, writing })
            }
            Reaction::SettledPart { owned, kept } => {
                self.apply(ground, process, ClaimInput::SettledPart { owned, kept })
            }
            Reaction::Abandoned => self.apply(ground, process, ClaimInput::Abandoned { writing }),
            Reaction::KeptOpen => self.apply(ground, process, ClaimInput::KeptOpen),
            Reaction::Finished(end) => {
                self.apply(ground, process, ClaimInput::PollingFinished(at(end)))
            }
            Reaction::RepairFinished => {
                let ended = !process.engine.relay().stopping();
                self.apply(ground, process, ClaimInput::RepairFinished { ended })
            }
        }
    }

    fn roll_back(&mut self, ground: &mut Ground) {
        if let Some(database) = &mut ground.database {
            database.outbox.roll_back(self.reader.session);
        }
    }

    /// The server executes a statement of one of the sessions.
    pub(super) fn execute(&mut self, ground: &mut Ground) -> Check {
        if let Some(job) = &mut self.slot_job
            && !job.is_done()
            && ground.database.as_mut().is_some_and(|database| database.rng.chance(300))
        {
            return match &mut ground.database {
                Some(database) => {
                    job.execute(&mut ground.server, &mut database.ownership, ground.now)
                }
                None => Ok(()),
            };
        }
        if self.operation.is_some() && !self.store.has_sent() {
            return self.operate(ground);
        }
        self.store.execute(ground)
    }

    /// The server executes the operation in progress.
    fn operate(&mut self, ground: &mut Ground) -> Check {
        let Some(operation) = self.operation.take() else { return Ok(()) };
        let (now, owned) = (ground.now, self.store.epoch() == ground.server.epoch);
        let session = self.reader.session;
        let Ground { server, truth, database: Some(database), .. } = ground else { return Ok(()) };
        self.reaction = match operation {
            Operation::Mark(batch) => {
                let rows = status_rows(&batch.rows);
                let waiting: Vec<Lane> = batch.waiting.iter().copied().collect();
                let world = (server, &*truth, now);
                let left = database.outbox.set_statuses(world, &rows, &waiting, &[])?;
                Some(Reaction::Marked(RowStatusMade { left, ..RowStatusMade::default() }))
            }
            Operation::QueryRequeued => {
                Some(Reaction::Requeued(self.reader.requeued((server, truth, database), now)))
            }
            Operation::ReadParked { in_claim } => {
                let (parked, requests) = match self.first.take() {
                    Some(first) => first,
                    None if in_claim => server.load_in_claim(database.outbox.parked(session), now),
                    None => server.load(WITHOUT_RESOLVED, now),
                };
                Some(Reaction::Parked(parked, requests))
            }
            Operation::Claim { limit, all, kept } => {
                let claim = self.reader.claim(
                    (&*server, &*truth, &mut **database),
                    now,
                    (limit, all, &kept),
                );
                Some(Reaction::Claimed(claim))
            }
            Operation::Park { statuses: Some(statuses), changes, .. } => {
                self.write_statuses(ground, statuses, changes)?
            }
            Operation::Park { statuses: None, locked, changes } => {
                let transaction = database.outbox.transaction(session).filter(|_| owned);
                let owned = transaction.is_some();
                if let Some(transaction) = transaction {
                    transaction.parked.extend(changes);
                }
                Some(Reaction::Stored { owned, locked })
            }
            Operation::Settle { outcomes, undo } => self.settle(ground, outcomes, undo)?,
            Operation::SettlePart { outcomes, left } => self.settle_part(ground, outcomes, left)?,
            Operation::Abandon => {
                database.outbox.roll_back(session);
                Some(Reaction::Abandoned)
            }
            Operation::KeepOpen => Some(Reaction::KeptOpen),
            Operation::FinishPolling => {
                if owned {
                    database.ownership.polled(server, truth)?;
                }
                Some(Reaction::Finished(server.end))
            }
            Operation::FinishRepair => {
                if owned {
                    database.ownership.finish(server, truth)?;
                }
                Some(Reaction::RepairFinished)
            }
        };
        Ok(())
    }

    /// A write of statuses is committed at once, before the claim that parks rows. Returns nothing if the rows follow.
    fn write_statuses(
        &mut self,
        ground: &mut Ground,
        statuses: Vec<ParkedUpdate>,
        changes: Vec<ParkedChange>,
    ) -> Check<Option<Reaction>> {
        let epoch = self.store.epoch();
        let Some(database) = &mut ground.database else { return Ok(None) };
        if injected(Bug::StatusesInClaim)
            && let Some(transaction) = database.outbox.transaction(self.reader.session)
        {
            transaction.statuses.extend(statuses);
            self.operation = Some(Operation::Park { statuses: None, locked: Vec::new(), changes });
            return Ok(None);
        }
        let statement = Statement::Parking { rows: Vec::new(), statuses, epoch };
        let answer = ground.execute(Sent::Table(statement))?;
        if let Received::Table(Reply::Parking(Some(locked))) = answer {
            self.operation = Some(Operation::Park { statuses: None, locked, changes });
            return Ok(None);
        }
        Ok(Some(Reaction::Stored { owned: false, locked: Vec::new() }))
    }

    /// Settles the claim. Returns nothing if rows are locked, so that the statement is still in progress.
    fn settle(
        &mut self,
        ground: &mut Ground,
        outcomes: Vec<RowOutcome>,
        undo: Vec<ParkedChange>,
    ) -> Check<Option<Reaction>> {
        let (now, owned) = (ground.now, self.store.epoch() == ground.server.epoch);
        let Ground { server, truth, database: Some(database), .. } = ground else {
            return Ok(None);
        };
        if !owned {
            database.outbox.roll_back(self.reader.session);
        } else if !self.reader.settle((server, truth, database), now, (&outcomes, undo))? {
            self.operation = Some(Operation::Settle { outcomes, undo: Vec::new() });
            return Ok(None);
        }
        Ok(Some(Reaction::Settled { owned }))
    }

    /// As [`Self::settle`], for a part of the claim.
    fn settle_part(
        &mut self,
        ground: &mut Ground,
        outcomes: Vec<RowOutcome>,
        left: Vec<usize>,
    ) -> Check<Option<Reaction>> {
        let (now, owned) = (ground.now, self.store.epoch() == ground.server.epoch);
        let Ground { server, truth, database: Some(database), .. } = ground else {
            return Ok(None);
        };
        let mut kept = false;
        if !owned {
            database.outbox.roll_back(self.reader.session);
        } else if self.reader.settle((server, truth, database), now, (&outcomes, Vec::new()))? {
            kept = self.reader.lock_again(database, now, &left);
        } else {
            self.operation = Some(Operation::SettlePart { outcomes, left });
            return Ok(None);
        }
        Ok(Some(Reaction::SettledPart { owned, kept }))
    }

    /// The session is lost. The server may still execute what it was sent.
    pub(super) fn release(&mut self, ground: &mut Ground) -> Check {
        self.store.lose(ground)?;
        let arrived = ground.database.as_mut().is_some_and(|database| database.rng.chance(500));
        if arrived && self.operation.is_some() {
            self.operate(ground)?;
        }
        if let Some(job) = self.slot_job.take().filter(|job| !job.is_done())
            && let Some(database) = &mut ground.database
        {
            database.jobs.push(job);
        }
        Ok(())
    }

    /// The next step before the first claim.
    fn open_further(&mut self, ground: &mut Ground, process: &mut Process) -> Check<Option<End>> {
        process.boundary()?;
        let (now, repairs) = (ground.now, self.reader.page.is_some());
        let Ground { server, truth, database: Some(database), .. } = ground else {
            return Ok(Some(End::Lost));
        };
        let ownership = &mut database.ownership;
        self.opening = match std::mem::replace(&mut self.opening, Opening::Done) {
            Opening::Locked => {
                server.epoch += 1;
                self.store = Store::new(server.epoch, now);
                Opening::Owner
            }
            Opening::Owner if repairs && !ownership.continues(server) => {
                ownership.begin_repair(server, database.outbox.rules.statuses);
                Opening::Noted
            }
            Opening::Noted if !create_new(server, now)? => Opening::Noted,
            Opening::Noted => {
                let ids = ownership.list(server, (&database.outbox, &*truth, now));
                Opening::Created(server.snapshot_xmin(now), ids)
            }
            Opening::Created(snapshot, ids) => {
                if self.store.epoch() == server.epoch {
                    ownership.listed(server, (snapshot, &ids));
                }
                Opening::Owner
            }
            Opening::Owner | Opening::Done => Opening::Done,
        };
        if matches!(self.opening, Opening::Done) {
            self.begin(ground, process)?;
        }
        Ok(None)
    }

    /// Polling begins.
    fn begin(&mut self, ground: &mut Ground, process: &mut Process) -> Check {
        let (now, clock, epoch) = (ground.now, process.clock(ground.now), self.store.epoch());
        let repairs = self.reader.page.is_some();
        ground.publisher = process.index;
        let Ground { server, truth, database: Some(database), .. } = ground else { return Ok(()) };
        let rules = database.outbox.rules;
        // What a stream has repeated is not repeated further, because its rows have their status.
        if std::mem::take(&mut database.streamed) {
            truth.cut_repetitions(server.unresolved());
        }
        self.first = Some(server.load(WITHOUT_RESOLVED, now));
        let start = if repairs { database.ownership.list_start(server) } else { server.end };
        let connections = &mut process.connections;
        connections.history = None;
        process.confirmed = 0;
        process.overtakings.clear();
        let signed = |epoch: u64| i64::try_from(epoch).unwrap();
        let source = match rules.mode {
            SourceMode::Poll => ClaimSource::Table,
            SourceMode::Wal => ClaimSource::List,
            SourceMode::Auto => ClaimSource::TableUntilSlot {
                drops_slot: std::mem::take(&mut connections.drops_slot),
                former: signed(epoch - 1),
                epoch: signed(epoch),
            },
        };
        let keeps_failures = rules.keeps_failures && !repairs;
        let settings = ClaimSettings {
            interval: INTERVAL,
            batch: rules.batch,
            rows_max: ROWS_MAX,
            keeps_failures,
            source,
        };
        let polling = PollingRules { failures_stay: keeps_failures, claims_expire: !repairs };
        process.engine.polls(polling).unwrap();
        self.claims = Some(Claims::new(clock, settings, at(start)));
        self.apply(ground, process, ClaimInput::Begin)
    }
}

/// The slot of a repair is created: the lost one is dropped first.
fn create_new(server: &mut Server, now: u64) -> Check<bool> {
    server.slot.exists = false;
    create_slot(server, now)
}

fn parked_row(entry: Entry, id: &str) -> ParkedRow<'_> {
    let refused = entry.attempts > 0;
    ParkedRow {
        entry,
        event_id: Some(id),
        error: refused.then_some("refused"),
        error_code: refused.then_some("refused"),
        dies: None,
    }
}

impl Reader {
    /// Finds the parked events whose rows are in the table or on the list.
    fn requeued(
        &self,
        (server, truth, database): (&Server, &Truth, &Database),
        now: u64,
    ) -> Vec<RequeueCandidate> {
        let (facts, ownership) = ((&database.outbox, truth, now), &database.ownership);
        if self.page.is_some() {
            let (on_list, by_status) = (ownership.on_list(), ownership.lists_by_status());
            return requeued::listed(server, facts, (&on_list, by_status));
        }
        match database.outbox.rules.mode {
            SourceMode::Auto => requeued::unpublished(server, facts, database.ownership.polls_on),
            SourceMode::Poll | SourceMode::Wal => Vec::new(),
        }
    }

    /// Claims rows of the table, or reads the next page of the list.
    fn claim(
        &mut self,
        (server, truth, database): (&Server, &Truth, &mut Database),
        now: u64,
        (limit, all, kept): (usize, bool, &[u64]),
    ) -> NewClaim {
        let session = self.session;
        database.outbox.roll_back(session);
        self.claimed_at = now;
        if self.page.is_some() {
            return self.read_page((database, truth), now);
        }
        self.pauses.retain(|_, until| *until > now);
        let mut without: Vec<u64> = self.pauses.keys().copied().filter(|_| !all).collect();
        let (mut expired, mut withheld) = (0, 0);
        let mut answer = ClaimAnswer::default();
        for _ in 0..STATEMENTS_MAX {
            let query = ClaimQuery { limit, all, without: &without, kept };
            answer = database.outbox.claim(now, session, query);
            expired += answer.expired;
            withheld += answer.withheld;
            let in_vain = !answer.blocked.is_empty() || answer.expired > 0;
            if !answer.ids.is_empty() || !answer.cut || !in_vain {
                break;
            }
            without.extend(answer.blocked.iter().copied());
            for key in &answer.blocked {
                self.pauses.entry(*key).or_insert(now + BLOCKED_PAUSE);
            }
        }
        self.take_rows((database, truth), &answer.ids);
        if answer.ids.is_empty() {
            // Rows that have expired get their status.
            database.outbox.commit_expired(server, now, session);
        }
        NewClaim {
            wal_end: at(server.end),
            claimed_at: wall(now),
            rows: self.claimed_rows(),
            more: answer.cut,
            withheld,
            expired,
            drained: false,
        }
    }

    fn take_rows(&mut self, (database, truth): (&Database, &Truth), ids: &[u64]) {
        let row = |id: &u64| {
            let row = database.outbox.rows.get(id)?;
            let (event, number) = (row.event, id.to_string());
            let aggregate = match truth.events[event].aggregate {
                Some(_) => aggregate_of(truth, event),
                None => Aggregate { kind: "row", id: &number },
            };
            let claimed = ClaimedRow { key: Lane::of(aggregate), xmin: row.xmin, too_large: false };
            Some(ReadRow { id: *id, event, content: row.content, claimed })
        };
        self.rows = ids.iter().filter_map(row).collect();
    }

    fn claimed_rows(&self) -> Vec<ClaimedRow> {
        self.rows.iter().map(|row| row.claimed).collect()
    }

    /// Reads the rows of the first page that has any. Rows are read whatever their status.
    fn read_page(&mut self, (database, truth): (&mut Database, &Truth), now: u64) -> NewClaim {
        loop {
            let Some(ids) = database.ownership.page().map(<[u64]>::to_vec) else {
                self.rows.clear();
                return NewClaim { more: true, drained: true, ..NewClaim::default() };
            };
            let there = |id: &u64| database.outbox.visible(now).any(|(of, _)| of == *id);
            let found: Vec<u64> = ids.iter().copied().filter(there).collect();
            if found.is_empty() {
                database.ownership.keep_page(Vec::new());
                continue;
            }
            self.take_rows((database, truth), &found);
            self.page = Some(found);
            database.outbox.begin(self.session, Vec::new());
            return NewClaim {
                claimed_at: wall(now),
                rows: self.claimed_rows(),
                more: true,
                ..NewClaim::default()
            };
        }
    }

    /// Settles the rows, after what the claim has parked is undone in part, and commits. Returns false if rows of the
    /// list are locked, so that they can't get their status: then nothing else was done.
    fn settle(
        &mut self,
        (server, truth, database): (&mut Server, &mut Truth, &mut Database),
        now: u64,
        (outcomes, undo): (&[RowOutcome], Vec<ParkedChange>),
    ) -> Check<bool> {
        let session = self.session;
        if let Some(transaction) = database.outbox.transaction(session) {
            transaction.parked.extend(undo);
        }
        if let Some(page) = &self.page {
            let rows = self.rows.iter().zip(outcomes);
            let done = rows.filter(|(_, outcome)| outcome.is_done()).map(|(row, _)| row);
            let done: Vec<&ReadRow> = done.collect();
            if database.outbox.rules.statuses {
                let status = |row: &&ReadRow| StatusRow {
                    id: row.id,
                    lane: None,
                    xid: Some(row.claimed.xmin),
                    time: Some(time_of(row.event)),
                    visible: true,
                };
                let rows: Vec<StatusRow> = done.iter().map(status).collect();
                let parked = database.outbox.parked(session).to_vec();
                let world = (&mut *server, &*truth, now);
                let before = database.outbox.rows.clone();
                if !database.outbox.set_statuses(world, &rows, &[], &parked)?.is_empty() {
                    // The transaction of the page is not committed yet.
                    database.outbox.take_back(before);
                    return Ok(false);
                }
            }
            let is_left = |id: &u64| !done.iter().any(|row| row.id == *id);
            let left: Vec<u64> = page.iter().copied().filter(is_left).collect();
            database.ownership.keep_page(left.clone());
            self.page = Some(left);
            database.outbox.commit((server, truth, now), session, &[])?;
            return Ok(true);
        }
        let settled = |outcome: &RowOutcome| match outcome {
            RowOutcome::Published | RowOutcome::Moved => Settled::Done,
            RowOutcome::Failed { .. } => Settled::Failed,
            RowOutcome::Held => Settled::Held,
        };
        let outcomes: Vec<Settled> = outcomes.iter().map(settled).collect();
        // Without a pause only the oldest rows of these aggregates would be claimed.
        if outcomes.iter().all(|outcome| *outcome == Settled::Held) {
            for row in &self.rows {
                if let Some(found) = database.outbox.rows.get(&row.id) {
                    self.pauses.entry(found.key).or_insert(now + BLOCKED_PAUSE);
                }
            }
        }
        database.outbox.commit((server, truth, now), session, &outcomes)?;
        Ok(true)
    }

    /// After a part was settled: locks the other rows again. Returns whether all of them could be locked.
    fn lock_again(&mut self, database: &mut Database, now: u64, left: &[usize]) -> bool {
        if self.page.is_some() {
            database.outbox.begin(self.session, Vec::new());
            return true;
        }
        let row = |row: &usize| self.rows.get(*row).map(|of| (*row, of.id, of.claimed.xmin));
        let left: Vec<_> = left.iter().filter_map(row).collect();
        let ids = self.rows.iter().map(|row| row.id).collect();
        database.outbox.lock_again(now, self.session, &left, ids)
    }
}
