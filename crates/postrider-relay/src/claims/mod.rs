//! Claims: what a polling session does next.
//!
//! While a pipeline polls, or repairs, its events are the rows of claims: one claim at a time is claimed, fed,
//! published and settled. Nothing is settled before the broker's acknowledgement. A lost connection leaves the rows as
//! they were, and they are claimed and published again.
//!
//! [`Claims::apply`] takes one [`ClaimInput`] and returns [`ClaimEffect`]s, which the driver performs in order. An
//! effect that has an answer is the last one of its list; the driver applies the answer as the next input. So at most
//! one operation of the session is in progress, besides the steps for the slot, which have a session of their own.
//!
//! ```text
//! Begin ─▶ MarkStreamed ─▶ QueryRequeued ─▶ ReadParked ─▶ (Started)
//! ClaimDue ─▶ MarkStreamed ─▶ Claim ─▶ QueryRequeued ─▶ Accepted ─▶ rows are fed
//! Turn ─▶ ReadParked, if that is due ─▶ Settle, if the claim is resolved ─▶ FinishPolling, FinishRepair
//! Tick ─▶ SettlePart, Settle or KeepOpen, if the claim is held for too long
//! Relay ─▶ Park; Restart: the claim is fed again, or Abandon
//! ```

mod hand_over;
mod input;
mod open_claim;
mod pace;
mod parking;
#[cfg(test)]
mod tests;

pub use hand_over::HandOver;
pub use input::{
    ClaimEffect, ClaimInput, ClaimSettings, ClaimSource, ClaimedRow, NewClaim, ParkPlan,
    ParkedEvents, PollEnd, SlotAnswer, SlotStep, WrittenAs,
};
pub use open_claim::OpenClaim;
pub use pace::BACKLOG_ROWS;

use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use crate::engine::Engine;
use crate::published::{ParkedRow, RequeuedEvents};
use crate::relay::{Change, Effect, Input, Restart};
use open_claim::{ClaimPart, FedTo};
use pace::{ClaimSize, RetryPause};
use postrider_core::event::Position;
use postrider_core::offset::{Offset, Watermark};
use postrider_core::outbox_rows::{RequeueCandidate, RowOutcome};
use postrider_core::parked::{Entry, Request};
use std::collections::HashSet;
use std::time::Duration;

/// How long a claim may stay open before it is settled in part or given up: it holds row locks, and the horizon of
/// VACUUM.
const CLAIM_HOLD_MAX: Duration = Duration::from_secs(20);

/// The same for a page of a repair, which holds no locks: what is published and not settled is repeated if the process
/// ends.
const PAGE_HOLD_MAX: Duration = Duration::from_secs(5);

/// Pause before the next claim if a claim found as many rows as it wanted and all of them were locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// How long unanswered attempts delay reading the parked events again.
const ATTEMPTS_WAIT_MAX: Duration = Duration::from_secs(2);

/// The claims of a polling session.
#[derive(Debug)]
pub struct Claims {
    settings: ClaimSettings,
    ending: Ending,
    step: Step,
    open: Option<OpenClaim>,
    /// Failures of the open claim are kept in the outbox table itself.
    keeps_now: bool,
    /// A row failed, and the table records that: the relay discards what it knows of the row at the end of the claim.
    failed: bool,
    /// The end of the previous claim.
    floor: Offset,
    reload: ParkedReload,
    retry: RetryPause,
    size: ClaimSize,
    /// When the next claim is made.
    next_at: Duration,
    /// Another process has taken over the pipeline.
    overruled: bool,
}

/// How the session ends, other than by a stop.
#[derive(Debug)]
enum Ending {
    Never,
    /// By streaming from a slot.
    HandOver(HandOver),
    /// With the list of a repair. `drained`: the last claim found the list empty.
    List {
        drained: bool,
    },
}

/// Whether the parked events have to be read again, as soon as no write is running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ParkedReload {
    No,
    /// Yes, since this moment.
    Due(Duration),
    /// Yes, by the session of the claim, if there is one. Positions keep their meaning.
    SameHistory,
}

/// The operation that is in progress, with what is decided about its answer.
#[derive(Debug)]
enum Step {
    Idle,
    /// Statuses are written before the table is queried for the first time.
    MarkingFirst,
    QueryingFirst,
    /// Statuses are written before a claim.
    Marking,
    Claiming {
        limit: usize,
    },
    /// The requeued events are queried after a claim.
    Checking {
        limit: usize,
        claim: NewClaim,
    },
    Parking,
    Settling(Settling),
    SettlingPart(SettlingPart),
    Abandoning(Abandoned),
    KeepingOpen,
    Reading {
        reload: Reload,
        then: AfterReading,
    },
    Finishing,
}

/// A claim that is being settled.
#[derive(Debug)]
struct Settling {
    why: SettledFor,
    /// For each row, whether its event is published or moved.
    done: Vec<bool>,
    /// Any row has an outcome.
    any: bool,
    /// The relay waits for the commit of the claim.
    cursor_waits: bool,
}

/// Why a claim is settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SettledFor {
    Resolved,
    HeldTooLong,
    Exit,
}

/// A part of a claim that is being settled.
#[derive(Debug)]
struct SettlingPart {
    /// For each row, whether it has an outcome.
    settled: Vec<bool>,
    /// For each row, whether its event is published or moved.
    done: Vec<bool>,
}

/// Why a claim is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Abandoned {
    /// It was not accepted: the relay has to get parked events back first.
    BackToRelay,
    /// What is in flight is given up with it.
    SlotTaken,
}

/// What the parked events are read for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reload {
    /// Polling begins.
    First,
    /// Positions before the end of the last claim have no meaning any more.
    NewStart,
    /// Positions keep their meaning.
    SameHistory,
}

/// What follows the reading of the parked events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AfterReading {
    Nothing,
    /// The open claim is settled if it is resolved.
    EndClaim,
    /// The session ends if everything is published.
    End,
}

impl Claims {
    /// The claims of a session whose relay starts at `start`.
    pub fn new(now: Duration, settings: ClaimSettings, start: Offset) -> Self {
        let ending = match settings.source {
            ClaimSource::Table => Ending::Never,
            ClaimSource::TableUntilSlot { drops_slot, .. } => {
                Ending::HandOver(HandOver::new(now, drops_slot))
            }
            ClaimSource::List => Ending::List { drained: false },
        };
        Self {
            ending,
            step: Step::Idle,
            open: None,
            keeps_now: settings.keeps_failures,
            failed: false,
            floor: start,
            reload: ParkedReload::No,
            retry: RetryPause::new(now),
            size: ClaimSize::new(settings.batch, settings.rows_max),
            next_at: now,
            overruled: false,
            settings,
        }
    }

    /// Whether the rows are those of the list of a repair.
    pub fn reads_list(&self) -> bool {
        matches!(self.settings.source, ClaimSource::List)
    }

    /// The open claim.
    pub fn open(&self) -> Option<&OpenClaim> {
        self.open.as_ref()
    }

    /// When the next claim is made: [`ClaimInput::ClaimDue`] is applied then, or when new rows are announced. `None`
    /// while no claim is made. While the broker is down a claim would only keep rows locked.
    pub fn claim_due(&self, engine: &Engine, broker_down: bool) -> Option<Duration> {
        let idle = self.open.is_none() && self.reload == ParkedReload::No;
        let relay = engine.relay();
        let wants_claim = idle && !relay.stopping() && relay.intake_open();
        (wants_claim && !broker_down).then_some(self.next_at)
    }

    /// When the next step for the slot is made: [`ClaimInput::SlotDue`] is applied then.
    pub fn slot_due(&self) -> Option<Duration> {
        match &self.ending {
            Ending::HandOver(hand_over) => hand_over.due(),
            Ending::Never | Ending::List { .. } => None,
        }
    }

    /// When [`ClaimInput::Turn`] or [`ClaimInput::Tick`] has to be applied at the latest.
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let read_at = match self.reload {
            ParkedReload::No => None,
            ParkedReload::Due(since) => Some(since + ATTEMPTS_WAIT_MAX),
            ParkedReload::SameHistory => Some(self.retry.until()),
        };
        // What the reading waits for after that time is a write, which has an answer.
        let read_at = read_at.filter(|at| *at > now);
        self.held_until().into_iter().chain(read_at).min()
    }

    /// When the open claim has to be settled in part, or given up.
    fn held_until(&self) -> Option<Duration> {
        let hold = if self.reads_list() { PAGE_HOLD_MAX } else { CLAIM_HOLD_MAX };
        self.open.as_ref().map(|open| open.held_since() + hold)
    }

    /// The row of the open claim that is offered to the engine next; `None` if no row is to be fed now. The driver maps
    /// the row, offers the event, and calls [`Self::row_fed`] if the engine has taken it. A row that is
    /// [too large](ClaimedRow::too_large) is offered as poison.
    pub fn next_row(&mut self, now: Duration, engine: &mut Engine) -> Option<(usize, ClaimedRow)> {
        if self.reload != ParkedReload::No {
            return None;
        }
        let open = self.open.as_mut()?;
        if open.fed_to() == FedTo::Nothing && !engine.relay().stopping() {
            open.feeds_to(FedTo::Begin);
            let (commit, commit_time) = (open.at(), open.commit_time());
            engine.apply(now, Input::Begin { commit, commit_time });
        }
        while let Some((row, is_done, claimed)) = open.next_row() {
            let relay = engine.relay();
            if relay.stopping() || engine.ending() || !relay.intake_open() {
                return None;
            }
            open.note_ticket(relay.next_ticket());
            if is_done {
                engine.apply(now, Input::Change(Change::Skipped));
                open.row_fed();
                continue;
            }
            engine.feeds(row, claimed.xmin);
            return Some((row, claimed));
        }
        if open.fed_to() == FedTo::Begin && !engine.relay().stopping() {
            open.feeds_to(FedTo::Commit);
            engine.apply(now, Input::Commit { commit: open.at(), end: open.end() });
        }
        None
    }

    /// The engine has taken the row of [`Self::next_row`].
    pub fn row_fed(&mut self) {
        if let Some(open) = &mut self.open {
            open.row_fed();
        }
    }

    /// Applies one input, and appends what it requires to `effects`. `now` is the relay's clock.
    pub fn apply(
        &mut self,
        now: Duration,
        input: ClaimInput<'_>,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        match input {
            ClaimInput::Begin => self.begin(effects),
            ClaimInput::Marked => self.marked(engine, effects),
            ClaimInput::RequeuedFound(found) => self.requeued_found(now, found, engine, effects),
            ClaimInput::ParkedRead(read) => self.parked_read(now, read, engine, effects),
            ClaimInput::RelayEffects => self.commits_for_the_end(now, engine),
            ClaimInput::Relay(effect) => self.relay_effect(now, effect, engine, effects),
            ClaimInput::Turn { overruled, writing } => {
                self.turn(now, (overruled, writing), engine, effects);
            }
            ClaimInput::ClaimDue => self.claim_is_due(now, engine, effects),
            ClaimInput::Claimed(claim) => self.claimed(now, claim, engine, effects),
            ClaimInput::ClaimStopped => {
                self.step = Step::Idle;
                self.end_if_published(effects);
            }
            ClaimInput::Parked { owned, locked } => self.parked(now, (owned, locked), engine),
            ClaimInput::Settled { owned, writing } => {
                self.settled(now, (owned, writing), engine, effects);
            }
            ClaimInput::SettledPart { owned, kept } => {
                self.part_settled(now, (owned, kept), engine, effects);
            }
            ClaimInput::Abandoned { writing } => self.abandoned(now, writing, engine, effects),
            ClaimInput::KeptOpen => {
                self.step = Step::Idle;
                if let Some(open) = &mut self.open {
                    open.holds_since(now);
                }
            }
            ClaimInput::SlotDue => {
                if let Ending::HandOver(hand_over) = &mut self.ending {
                    effects.push(ClaimEffect::Slot(hand_over.begin_step()));
                }
            }
            ClaimInput::Slot(answer) => {
                if let Ending::HandOver(hand_over) = &mut self.ending {
                    hand_over.step_done(now, answer);
                }
            }
            ClaimInput::PollingFinished(wal_end) => {
                self.step = Step::Idle;
                engine.polled_ids().ends(wal_end);
                effects.push(ClaimEffect::Ends(PollEnd::Streams));
            }
            ClaimInput::RepairFinished { ended } => {
                self.step = Step::Idle;
                effects.extend(ended.then_some(ClaimEffect::Ends(PollEnd::Streams)));
            }
            ClaimInput::Tick { broker_down } => self.tick(now, broker_down, engine, effects),
            ClaimInput::Exit => {
                self.settle(SettledFor::Exit, engine, effects);
            }
        }
    }

    /// Statuses come first: the stream does not repeat what the cursor row has passed, so a published row without its
    /// status would be published again.
    fn begin(&mut self, effects: &mut Vec<ClaimEffect>) {
        if matches!(self.ending, Ending::HandOver(_)) {
            self.step = Step::MarkingFirst;
            effects.push(ClaimEffect::MarkStreamed);
        } else {
            self.step = Step::QueryingFirst;
            effects.push(ClaimEffect::QueryRequeued);
        }
    }

    fn marked(&mut self, engine: &mut Engine, effects: &mut Vec<ClaimEffect>) {
        if matches!(self.step, Step::MarkingFirst) {
            self.step = Step::QueryingFirst;
            effects.push(ClaimEffect::QueryRequeued);
        } else {
            self.claim(engine, effects);
        }
    }

    /// Before a claim, statuses that waited for locked rows are tried again.
    fn claim_is_due(&mut self, now: Duration, engine: &mut Engine, effects: &mut Vec<ClaimEffect>) {
        if engine.row_status().is_due(now) && !self.reads_list() {
            self.step = Step::Marking;
            effects.push(ClaimEffect::MarkStreamed);
        } else {
            self.claim(engine, effects);
        }
    }

    fn claim(&mut self, engine: &mut Engine, effects: &mut Vec<ClaimEffect>) {
        engine.polled_ids().claims();
        let limit = self.size.limit();
        let all = match &mut self.ending {
            Ending::HandOver(hand_over) => hand_over.claims(),
            Ending::Never | Ending::List { .. } => false,
        };
        self.keeps_now = self.settings.keeps_failures && !all;
        self.step = Step::Claiming { limit };
        effects.push(ClaimEffect::Claim { limit, all });
    }

    fn claimed(
        &mut self,
        now: Duration,
        claim: NewClaim,
        engine: &Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        let Step::Claiming { limit } = self.step else { unreachable!("no claim was requested") };
        if !engine.requeued().is_empty() && !self.reads_list() {
            self.step = Step::Checking { limit, claim };
            effects.push(ClaimEffect::QueryRequeued);
        } else {
            self.step = Step::Idle;
            self.accept(now, limit, claim, effects);
        }
    }

    fn requeued_found(
        &mut self,
        now: Duration,
        found: Vec<RequeueCandidate>,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        let found = RequeuedEvents::new(found);
        let before = std::mem::replace(engine.requeued_mut(), found);
        let Step::Checking { limit, claim } = std::mem::replace(&mut self.step, Step::Idle) else {
            self.read(Reload::First, AfterReading::Nothing, engine, effects);
            return;
        };
        // The relay must get an event that is no longer requeued before a later event of its aggregate is published.
        if engine.requeued().has_all_of(&before) {
            self.accept(now, limit, claim, effects);
        } else {
            self.abandon(Abandoned::BackToRelay, effects);
        }
    }

    fn accept(
        &mut self,
        now: Duration,
        limit: usize,
        claim: NewClaim,
        effects: &mut Vec<ClaimEffect>,
    ) {
        match &mut self.ending {
            Ending::HandOver(hand_over) => hand_over.claimed(now, claim.more, claim.withheld),
            Ending::List { drained } => *drained = claim.drained,
            Ending::Never => {}
        }
        self.size.claimed(limit, claim.more);
        effects.push(ClaimEffect::Accepted);
        if !claim.rows.is_empty() {
            self.open = Some(OpenClaim::new(now, claim, self.floor));
            return;
        }
        let interval = self.settings.interval;
        let pause = match (claim.more, claim.expired) {
            (true, 0) => LOCKED_PAUSE.min(interval),
            (true, _) => Duration::ZERO,
            (false, _) => interval,
        };
        self.next_at = now + pause;
        effects.push(ClaimEffect::Processed);
        self.end_if_published(effects);
    }

    /// Ends the session if everything that the slot does not stream, or that is on the list, is published.
    fn end_if_published(&mut self, effects: &mut Vec<ClaimEffect>) {
        let effect = match &self.ending {
            Ending::List { drained: true } => ClaimEffect::FinishRepair,
            Ending::HandOver(hand_over) if hand_over.is_drained() && self.open.is_none() => {
                ClaimEffect::FinishPolling
            }
            Ending::HandOver(_) | Ending::List { drained: false } | Ending::Never => return,
        };
        self.step = Step::Finishing;
        effects.push(effect);
    }

    /// The end of the relay waits for its cursor row, and the claim waits for the end.
    fn commits_for_the_end(&mut self, now: Duration, engine: &mut Engine) {
        if engine.relay().stopping() && self.open.as_mut().is_some_and(OpenClaim::takes_cursor) {
            engine.apply(now, Input::CursorWritten);
        }
    }

    fn relay_effect(
        &mut self,
        now: Duration,
        effect: Effect,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        match effect {
            // The last two do not occur: `Engine::polls` refuses a sink that publishes in transactions.
            Effect::Publish(_)
            | Effect::Park { .. }
            | Effect::Confirm(_)
            | Effect::RecoverSink { .. }
            | Effect::CommitSink { .. } => {}
            Effect::Published { ticket, .. } => {
                if let Some(open) = &mut self.open {
                    open.acknowledged(ticket);
                }
                effects.push(ClaimEffect::Perform(effect));
            }
            // The row is committed with the claim, and is found when the parked events are read again.
            Effect::DeadLetter { ticket, position } if engine.unseen() == Some(position.commit) => {
                self.failed = true;
                engine.apply(now, Input::RowMissing { ticket });
            }
            Effect::WriteCursor(_) => self.write_cursor(now, engine),
            Effect::WriteParking { rows, statuses } if rows > 0 => {
                self.step = Step::Parking;
                effects.push(ClaimEffect::Park { rows, statuses });
            }
            Effect::Restart { why } => self.feed_again(now, why, engine, effects),
            Effect::Drained => effects.push(ClaimEffect::Ends(PollEnd::Stopped)),
            Effect::Halt(halt) => effects.push(ClaimEffect::Ends(PollEnd::Halted(halt))),
            Effect::DeadLetter { .. }
            | Effect::WriteParking { .. }
            | Effect::Attempt { .. }
            | Effect::Probe { .. }
            | Effect::Overtaken { .. }
            | Effect::DeadLetterRefused { .. }
            | Effect::Released { .. } => effects.push(ClaimEffect::Perform(effect)),
        }
    }

    /// A published row is recorded in the table itself, once the claim is committed. Before that, and before the parked
    /// events are read again after it, no parked event of the claim may be retried.
    fn write_cursor(&mut self, now: Duration, engine: &mut Engine) {
        if engine.relay().stopping() || injected(Bug::RetriesBeforeClaimCommits) {
            engine.apply(now, Input::CursorWritten);
            return;
        }
        match (&mut self.open, self.reload) {
            (Some(open), _) => open.requests_cursor(),
            (None, ParkedReload::Due(_)) => {}
            (None, ParkedReload::No | ParkedReload::SameHistory) => {
                engine.apply(now, Input::CursorWritten);
            }
        }
    }

    /// Gives up everything in flight, but not the claim: its rows are still claimed and are fed again at their
    /// positions, so that the relay knows which of them a broker has refused, or parked. A claim that was held for too
    /// long, or whose pipeline was taken over, is given up too. The claim is fed once all effects are performed,
    /// because a second one of them may be a restart.
    fn feed_again(
        &mut self,
        now: Duration,
        why: Restart,
        engine: &Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        effects.push(ClaimEffect::ResetSink(why));
        if why == Restart::SlotTaken {
            self.abandon(Abandoned::SlotTaken, effects);
            return;
        }
        if self.reload != ParkedReload::No {
            return;
        }
        self.reload = ParkedReload::SameHistory;
        let progress = engine.relay().progress();
        // A resolved claim is settled anyway.
        if let Some(open) = self.open.as_mut().filter(|open| !open.is_resolved(&progress)) {
            open.rewind();
        }
        self.retry.begin(now, why);
    }

    fn abandon(&mut self, why: Abandoned, effects: &mut Vec<ClaimEffect>) {
        self.step = Step::Abandoning(why);
        effects.push(ClaimEffect::Abandon);
    }

    fn abandoned(
        &mut self,
        now: Duration,
        writing: bool,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        let step = std::mem::replace(&mut self.step, Step::Idle);
        self.reload = ParkedReload::Due(now);
        if matches!(step, Step::Abandoning(Abandoned::BackToRelay)) {
            if let Some(reload) = self.reload_due(now, writing, engine) {
                self.read(reload, AfterReading::End, engine, effects);
            }
            return;
        }
        engine.set_unseen(None);
        if let Some(open) = self.open.take() {
            self.floor = open.end();
            self.size.held_too_long(open.rows());
        }
        self.failed = false;
        self.size.restart();
        self.next_at = now + self.settings.interval;
    }

    /// Whether the parked events are read again now. A running write comes first: the relay would order it a second
    /// time. Unanswered attempts come first too, for a while: they would be given up with their producer.
    fn reload_due(&self, now: Duration, writing: bool, engine: &Engine) -> Option<Reload> {
        match self.reload {
            ParkedReload::No => None,
            ParkedReload::Due(_) | ParkedReload::SameHistory if writing => None,
            ParkedReload::Due(since) => {
                let waits = engine.relay().has_unsettled_attempts()
                    && now.saturating_sub(since) < ATTEMPTS_WAIT_MAX;
                (!waits).then_some(Reload::NewStart)
            }
            ParkedReload::SameHistory => (now >= self.retry.until()).then_some(Reload::SameHistory),
        }
    }

    /// Reads the parked events, with which the relay is started again.
    fn read(
        &mut self,
        reload: Reload,
        then: AfterReading,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        self.reload = ParkedReload::No;
        if reload == Reload::NewStart {
            engine.requeued_mut().given_up();
        }
        self.step = Step::Reading { reload, then };
        effects.push(ClaimEffect::ReadParked { in_claim: reload == Reload::SameHistory });
    }

    /// Starts the relay. The parked events that will be requeued are removed from those that it gets.
    fn parked_read(
        &mut self,
        now: Duration,
        read: ParkedEvents<'_>,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        let Step::Reading { reload, then } = std::mem::replace(&mut self.step, Step::Idle) else {
            unreachable!("the parked events were not requested")
        };
        let requeued = engine.requeued();
        let stays = |at: Position| !requeued.holds(at) || injected(Bug::RequeuedReachRelay);
        let parked = read.parked.iter().copied().filter(|entry| stays(entry.position));
        let parked: Vec<Entry> = parked.collect();
        let requests = read.requests.iter().copied().filter(|(at, _)| stays(*at));
        let requests: Vec<(Position, Request)> = requests.collect();
        let dead_unsent = read.dead_unsent.iter().copied().filter(|at| stays(*at));
        let dead_unsent: Vec<Position> = dead_unsent.collect();
        let parked = match &self.open {
            Some(open) => open.parked(parked),
            None => parked,
        };
        let same = reload == Reload::SameHistory;
        let start = Progress { watermark: Watermark::from_keepalive(self.floor), partial: None };
        let cursor = if same { engine.relay().progress() } else { start };
        let (parked, requests) = (parked.as_slice(), requests.as_slice());
        let (same_history, same_owner) = (same, same);
        engine.apply(now, Input::Started { cursor, same_history, same_owner, parked, requests });
        // What is in flight from before is given up with its producer. No claim is given up: none is open at that time.
        if engine.take_slot_taken() {
            effects.push(ClaimEffect::ResetSink(Restart::SlotTaken));
        }
        for position in dead_unsent {
            engine.apply(now, Input::DeadLetterUnsent { position });
        }
        if let (Reload::First, ClaimSource::TableUntilSlot { former, epoch, .. }) =
            (reload, self.settings.source)
        {
            engine.polled_ids().begins(former, epoch);
        }
        effects.push(ClaimEffect::Started);
        match then {
            AfterReading::Nothing => {}
            AfterReading::EndClaim => self.end_if_resolved(now, engine, effects),
            AfterReading::End => self.end_if_published(effects),
        }
    }

    fn turn(
        &mut self,
        now: Duration,
        (overruled, writing): (bool, bool),
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        if overruled || self.overruled {
            effects.push(ClaimEffect::Ends(PollEnd::Overruled));
        } else if let Some(reload) = self.reload_due(now, writing, engine) {
            self.read(reload, AfterReading::EndClaim, engine, effects);
        } else {
            self.end_if_resolved(now, engine, effects);
        }
    }

    /// Settles the claim if it is resolved. The next one is made at once.
    fn end_if_resolved(
        &mut self,
        now: Duration,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        let progress = engine.relay().progress();
        let Some(open) = self.open.as_ref().filter(|open| open.is_resolved(&progress)) else {
            return;
        };
        self.floor = open.end();
        self.size.resolved(open.rows(), now.saturating_sub(open.claimed_at()));
        self.retry.reset();
        self.settle(SettledFor::Resolved, engine, effects);
    }

    /// Settles the rows of the claim up to the first one without an outcome, and those later rows that are acknowledged
    /// and have no such row of their aggregate before them.
    ///
    /// Events of later rows that this claim has parked are removed from the parked table again: they have positions of
    /// this claim, while the open row will get a position of the next claim, after theirs.
    fn settle(&mut self, why: SettledFor, engine: &mut Engine, effects: &mut Vec<ClaimEffect>) {
        let Some(open) = self.open.take() else { return };
        let resolved = open.resolved(&engine.relay().progress());
        let parks = engine.unseen() == Some(open.at());
        let undo_from = (parks && resolved < open.rows()).then_some(Position {
            commit: open.at(),
            ordinal: u64::try_from(resolved).unwrap_or(u64::MAX),
        });
        let places = undo_from.map(|from| engine.requeued_mut().places_back(from));
        let places = places.unwrap_or_default();
        // Before the parked events are read again none of this claim may be retried: the table itself blocks the
        // aggregates of failed rows.
        let cursor_waits = open.cursor_waits() && !self.failed;
        let ClaimPart { outcomes, .. } = open.part(resolved);
        if self.reads_list() {
            // The session of the list writes their statuses.
            engine.row_status().forget();
        }
        engine.set_unseen(None);
        self.step = Step::Settling(Settling {
            why,
            done: outcomes.iter().map(RowOutcome::is_done).collect(),
            any: outcomes.iter().any(|outcome| *outcome != RowOutcome::Held),
            cursor_waits,
        });
        effects.push(ClaimEffect::Settle { outcomes, undo_from, places });
    }

    fn settled(
        &mut self,
        now: Duration,
        (owned, writing): (bool, bool),
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        let Step::Settling(Settling { why, done, any, cursor_waits }) =
            std::mem::replace(&mut self.step, Step::Idle)
        else {
            unreachable!("no claim was settled")
        };
        if owned {
            engine.polled_ids().settled(|row| done.get(row).copied().unwrap_or(false));
            if cursor_waits {
                engine.apply(now, Input::CursorWritten);
            }
            engine.requeued_mut().settled();
        } else {
            self.take_over(now, engine);
        }
        match why {
            SettledFor::Exit => {}
            SettledFor::HeldTooLong => {
                if !self.overruled {
                    engine.apply(now, Input::SlotTaken);
                }
            }
            SettledFor::Resolved => {
                effects.push(ClaimEffect::Processed);
                // If every row waits for something, the next claim finds the same rows.
                let pause = if any && owned { Duration::ZERO } else { self.settings.interval };
                self.next_at = now + pause;
                // The table blocks the aggregates of failed rows: the parked events are read again before the next
                // claim.
                if std::mem::take(&mut self.failed) {
                    self.reload = ParkedReload::Due(now);
                    if let Some(reload) = self.reload_due(now, writing, engine) {
                        self.read(reload, AfterReading::End, engine, effects);
                        return;
                    }
                }
                self.end_if_published(effects);
            }
        }
    }

    /// Another process has taken over the pipeline: nothing was settled, and what is in flight is given up.
    fn take_over(&mut self, now: Duration, engine: &mut Engine) {
        self.overruled = true;
        engine.apply(now, Input::SlotTaken);
    }

    fn tick(
        &mut self,
        now: Duration,
        broker_down: bool,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        if self.held_until().is_none_or(|until| until > now) {
            engine.apply(now, Input::Tick);
            return;
        }
        // What is acknowledged is settled, and the other rows stay in the claim as long as the broker continues to
        // acknowledge. Otherwise the claim is given up, because it locks rows; only rows without an answer are
        // published again. A page of a repair locks nothing, and stays whatever the broker does.
        let stays = self.reads_list() || !broker_down;
        if !stays || !self.settle_part(engine, effects) {
            self.held_too_long(now, engine, effects);
        }
    }

    /// Settles what is acknowledged or parked of a claim that is open for long, and keeps the other rows, which are
    /// still being published. Returns whether there is anything to settle.
    fn settle_part(&mut self, engine: &mut Engine, effects: &mut Vec<ClaimEffect>) -> bool {
        let Some(open) = &self.open else { return false };
        let ClaimPart { outcomes, parked_behind_open } =
            open.part(open.resolved(&engine.relay().progress()));
        let settled: Vec<bool> =
            outcomes.iter().map(|outcome| *outcome != RowOutcome::Held).collect();
        if parked_behind_open || !settled.contains(&true) {
            return false;
        }
        let left = open.left_by(&outcomes);
        let done = outcomes.iter().map(RowOutcome::is_done).collect();
        engine.set_unseen(None);
        self.step = Step::SettlingPart(SettlingPart { settled, done });
        effects.push(ClaimEffect::SettlePart { outcomes, left });
        true
    }

    fn part_settled(
        &mut self,
        now: Duration,
        (owned, kept): (bool, bool),
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        let Step::SettlingPart(SettlingPart { settled, done }) =
            std::mem::replace(&mut self.step, Step::Idle)
        else {
            unreachable!("no part was settled")
        };
        if !owned {
            self.open = None;
            self.take_over(now, engine);
            return;
        }
        let is = |of: &[bool], row: usize| of.get(row).copied().unwrap_or(false);
        engine.polled_ids().settled_so_far(|row| is(&done, row));
        engine.requeued_mut().settled();
        if self.reads_list() {
            // The session of the list writes their statuses.
            engine.row_status().forget();
        }
        if let Some(open) = &mut self.open {
            open.settled_in_part(|row| is(&settled, row));
            open.holds_since(now);
        }
        if !kept {
            self.held_too_long(now, engine, effects);
        }
    }

    /// Nothing of the claim can be settled in part, or its other rows could not be kept: it is given up. The page of a
    /// list stays.
    fn held_too_long(
        &mut self,
        now: Duration,
        engine: &mut Engine,
        effects: &mut Vec<ClaimEffect>,
    ) {
        if self.reads_list() && self.open.is_some() {
            self.step = Step::KeepingOpen;
            effects.push(ClaimEffect::KeepOpen);
            return;
        }
        let mut has_progress = false;
        if let Some(open) = &mut self.open {
            self.floor = open.end();
            self.size.held_too_long(open.rows());
            // The parked events are read again.
            open.takes_cursor();
            let part = open.part(open.resolved(&engine.relay().progress()));
            has_progress = part.outcomes.iter().any(|outcome| *outcome != RowOutcome::Held);
        }
        // A claim of which nothing can be settled is rolled back, so that its aggregates are not delayed.
        if has_progress {
            self.settle(SettledFor::HeldTooLong, engine, effects);
        } else if !self.overruled {
            engine.apply(now, Input::SlotTaken);
        }
    }

    /// Of the rows of [`ClaimEffect::Park`], the indexes of those whose content the driver has to compare with that of
    /// the parked event at this position.
    pub fn to_compare(&self, rows: &[ParkedRow<'_>], engine: &Engine) -> Vec<(Position, usize)> {
        let xmin = |at| self.open.as_ref().map_or(0, |open| open.xmin(at));
        engine.requeued().to_compare(rows, xmin)
    }

    /// Decides how the rows of [`ClaimEffect::Park`] are written. `alike`: positions of those rows whose content equals
    /// that of the parked event with which they were compared.
    pub fn plan_parking(
        &mut self,
        rows: &[ParkedRow<'_>],
        alike: &HashSet<Position>,
        engine: &mut Engine,
    ) -> ParkPlan {
        let keeps = self.keeps_now;
        let plan = parking::plan(self.open.as_mut(), rows, alike, keeps, engine.requeued_mut());
        self.failed |= !plan.all_as_they_are || !plan.moves.is_empty();
        plan
    }

    fn parked(&mut self, now: Duration, (owned, locked): (bool, &[Position]), engine: &mut Engine) {
        self.step = Step::Idle;
        if owned {
            engine.set_unseen(self.open.as_ref().map(OpenClaim::at));
            engine.apply(now, Input::ParkingWritten { locked });
        } else {
            self.take_over(now, engine);
        }
    }
}
