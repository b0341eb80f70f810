//! The engine: what becomes of each event that a pipeline reads, from a stream or from a claim.
//!
//! [`Engine::offer`] decides about one event: whether it is new, has expired, was published by id before, is in doubt,
//! waits, or is published now. The relay below the engine decides about order and confirmation. The driver maps rows,
//! passes records to the sink, and performs the relay's effects.

mod answer;
#[cfg(test)]
mod tests;

pub use answer::{Answer, NextChange, Offered, PoisonAnswer, PollingRules, SentRow, SetAside};

use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use crate::published::{PolledIds, RequeuedEvents, RowStatusBatch, RowStatusQueue, RowStatusRule};
use crate::relay::{Change, Effect, Input, OnPoison, PollingRefused, Relay, Settings};
use answer::RelayAnswer;
use postrider_core::error::Halt;
use postrider_core::event::{Aggregate, Position};
use postrider_core::offset::Offset;
use postrider_core::outbox_rows::{FoundParked, WithdrawnEvent, WritingTransaction};
use postrider_core::parked::Entry;
use postrider_core::record::{Refusal, Ticket};
use postrider_core::sink::NotTaken;
use postrider_core::timestamp::Timestamp;
use std::collections::HashMap;
use std::time::Duration;

/// The relay of a pipeline, with what the pipeline remembers by event id.
#[derive(Debug)]
pub struct Engine {
    relay: Relay,
    /// Effects of the relay that are not performed yet.
    effects: Vec<Effect>,
    polled_ids: PolledIds,
    row_status: RowStatusQueue,
    /// Parked events whose rows are read from the table again.
    requeued: RequeuedEvents,
    /// The transaction that is being streamed, and when it was committed.
    xid: Option<u32>,
    commit_time: Timestamp,
    /// Events that the stream does not publish again, by their ids.
    withdrawn: HashMap<String, Vec<WithdrawnEvent>>,
    /// The claimed row that is fed next, and the transaction that wrote it.
    claimed: (usize, u32),
    /// `None` while the pipeline streams.
    polling: Option<PollingRules>,
    /// The open claim whose transaction contains rows that the relay takes for written. They are not visible to other
    /// sessions yet, which does not mean that they were deleted.
    unseen: Option<Offset>,
    on_poison: OnPoison,
}

impl Engine {
    /// An engine whose relay has not started yet.
    pub fn new(settings: Settings, row_status: RowStatusRule) -> Self {
        Self {
            relay: Relay::new(settings),
            effects: Vec::new(),
            polled_ids: PolledIds::default(),
            row_status: RowStatusQueue::new(row_status),
            requeued: RequeuedEvents::default(),
            xid: None,
            commit_time: Timestamp::default(),
            withdrawn: HashMap::new(),
            claimed: (0, 0),
            polling: None,
            unseen: None,
            on_poison: settings.rules.on_poison,
        }
    }

    /// Begins again as a new engine does, except that the ids are kept that polling has published: the stream may send
    /// their events, and the process was not replaced.
    pub fn begin_again(&mut self, settings: Settings, row_status: RowStatusRule) {
        let polled_ids = std::mem::take(&mut self.polled_ids);
        *self = Self { polled_ids, ..Self::new(settings, row_status) };
    }

    /// The relay, to be read.
    #[inline]
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Applies an input to the relay.
    #[inline]
    pub fn apply(&mut self, now: Duration, input: Input<'_>) {
        self.relay.apply(now, input, &mut self.effects);
    }

    /// The effects of the relay that are not performed yet. The driver takes them, and performs them in order.
    #[inline]
    pub fn effects(&mut self) -> &mut Vec<Effect> {
        &mut self.effects
    }

    /// Whether a pending effect ends the stream.
    pub fn ending(&self) -> bool {
        self.effects.iter().any(|effect| match effect {
            Effect::Restart { .. } | Effect::Drained | Effect::Halt(_) => true,
            Effect::Publish(_)
            | Effect::Park { .. }
            | Effect::WriteParking { .. }
            | Effect::Attempt { .. }
            | Effect::Probe { .. }
            | Effect::DeadLetter { .. }
            | Effect::RecoverSink { .. }
            | Effect::CommitSink { .. }
            | Effect::DeadLetterRefused { .. }
            | Effect::Overtaken { .. }
            | Effect::Released { .. }
            | Effect::Published { .. }
            | Effect::WriteCursor(_)
            | Effect::Confirm(_) => false,
        })
    }

    /// Removes a pending restart because another owner was or may have been active; returns whether there was one.
    pub(crate) fn take_slot_taken(&mut self) -> bool {
        let past = Effect::Restart { why: crate::relay::Restart::SlotTaken };
        match self.effects.iter().position(|effect| *effect == past) {
            Some(index) => {
                self.effects.remove(index);
                true
            }
            None => false,
        }
    }

    /// Published rows whose status is to be written.
    pub fn row_status(&mut self) -> &mut RowStatusQueue {
        &mut self.row_status
    }

    /// Number of published rows that stay without their status if the process ends now.
    pub fn statuses_owed(&self) -> usize {
        self.row_status.owed()
    }

    /// Takes the rows that get their status before the next cursor row, which is `row`; `None` if the slot is lost.
    pub fn take_statuses(
        &mut self,
        now: Duration,
        row: Option<&Progress>,
    ) -> Option<RowStatusBatch> {
        self.row_status.take(now, row)
    }

    /// The parked events that are requeued.
    pub fn requeued(&self) -> &RequeuedEvents {
        &self.requeued
    }

    pub(crate) fn requeued_mut(&mut self) -> &mut RequeuedEvents {
        &mut self.requeued
    }

    pub(crate) fn polled_ids(&mut self) -> &mut PolledIds {
        &mut self.polled_ids
    }

    /// The position of the open claim whose transaction contains rows of parked events. Other sessions do not see them
    /// yet.
    pub fn unseen(&self) -> Option<Offset> {
        self.unseen
    }

    pub(crate) fn set_unseen(&mut self, claim: Option<Offset>) {
        self.unseen = claim;
    }

    /// Discards what is remembered by id. On a server with another history the ids belong to other rows.
    pub fn forget_ids(&mut self) {
        self.row_status.forget();
        self.polled_ids = PolledIds::default();
        self.withdrawn.clear();
    }

    /// What a stream finds in the parked table when it begins.
    pub fn stream_begins(&mut self, found: FoundParked) {
        let FoundParked { ahead, withdrawn } = found;
        self.row_status.stream_begins(ahead);
        self.withdrawn.clear();
        for event in withdrawn {
            // An id may have been given to several events.
            self.withdrawn.entry(event.id.clone()).or_default().push(event);
        }
    }

    /// A stream begins under an owner epoch; `before` is the epoch of the previous owner.
    pub fn streams(&mut self, before: i64, epoch: i64) {
        self.polled_ids.streams(before, epoch);
    }

    /// Polling, or a repair, begins with these rules.
    ///
    /// # Errors
    /// The sink publishes in transactions.
    pub fn polls(&mut self, rules: PollingRules) -> Result<(), PollingRefused> {
        if self.relay.commits_sink() {
            return Err(PollingRefused);
        }
        self.row_status.polls(true);
        self.polling = Some(rules);
        Ok(())
    }

    /// Polling, or a repair, ends, or none has begun.
    pub fn polls_no_more(&mut self) {
        self.row_status.polls(false);
        self.requeued = RequeuedEvents::default();
        self.unseen = None;
        self.polling = None;
    }

    /// A transaction of the stream begins. `xid`: its number, if the source has numbers.
    pub fn begin(
        &mut self,
        now: Duration,
        commit: Offset,
        commit_time: Timestamp,
        xid: Option<u32>,
    ) {
        (self.xid, self.commit_time) = (xid, commit_time);
        self.apply(now, Input::Begin { commit, commit_time });
    }

    /// The next event offered is row `row` of the claim, written by transaction `xmin`.
    pub(crate) fn feeds(&mut self, row: usize, xmin: u32) {
        self.claimed = (row, xmin);
    }

    /// What the next change is.
    #[inline]
    pub fn next_change(&self) -> NextChange {
        match self.relay.upcoming() {
            Some(_) if !self.relay.intake_open() => NextChange::Wait,
            Some(next) => NextChange::New(next),
            None => NextChange::Repeated,
        }
    }

    /// The next change is no event of this pipeline, or an event that was dealt with before.
    #[inline]
    pub fn skip(&mut self, now: Duration) {
        self.apply(now, Input::Change(Change::Skipped));
    }

    /// Decides about an event, which is the next change and [`NextChange::New`]. `doubted`: the halt if it is not known
    /// whether the event is a parked one, and the configuration asks for a halt then.
    #[inline]
    pub fn offer(
        &mut self,
        now: Duration,
        event: &Offered<'_>,
        doubted: impl FnOnce() -> Box<Halt>,
    ) -> Answer {
        if !self.relay.admits(event.aggregate) {
            return Answer::Wait;
        }
        if self.has_expired(event) {
            self.skip(now);
            return Answer::Expired;
        }
        if self.is_repeated(event) {
            self.skip(now);
            return Answer::Repeated;
        }
        let (_, xmin) = self.claimed;
        if self.requeued.doubts(event.id, xmin) {
            return Answer::Doubted(self.park_doubted(now, event, doubted()).map(Box::new));
        }
        let wait = event.available_at.map_or(Duration::ZERO, |at| until(at, event.wall));
        let wait = self.requeued.wait(event.id, xmin, wait);
        let Offered { aggregate, size_bytes, .. } = *event;
        match self.answer_to(now, Input::Change(Change::Event { aggregate, size_bytes, wait })) {
            RelayAnswer::Publish(ticket) => Answer::Publish(ticket),
            RelayAnswer::Park(entry, refused) => {
                self.note_claimed(event.id);
                Answer::Park(entry, refused)
            }
            RelayAnswer::Nothing => Answer::Nothing,
        }
    }

    /// Whether the event has expired. A parked event does not expire: otherwise it would be skipped while later events
    /// of its aggregate wait for it.
    #[inline]
    fn has_expired(&self, event: &Offered<'_>) -> bool {
        event.expires_at.is_some_and(|at| self.has_passed(at, event.wall)) && {
            let (_, xmin) = self.claimed;
            !self.requeued.parks(event.id, xmin) || injected(Bug::ExpiresRequeued)
        }
    }

    /// Whether a time has passed. The claims of a layout with expiry compare it with the clock of the server.
    fn has_passed(&self, at: Timestamp, wall: Timestamp) -> bool {
        let by_claims = self.polling.is_some_and(|rules| rules.claims_expire);
        !by_claims && at.unix_micros <= wall.unix_micros
    }

    /// Whether an operator has skipped the event that the stream sends now, or has replaced it, at the position of a
    /// claim. The time of the commit, or the transaction, distinguishes the event from another one that got its id.
    #[inline]
    fn is_withdrawn(&self, id: &str) -> bool {
        !self.withdrawn.is_empty()
            && self.polling.is_none()
            && self.withdrawn.get(id).is_some_and(|events| {
                events.iter().any(|event| {
                    event.commit_time == self.commit_time
                        || event.xid.is_some() && event.xid == self.xid
                })
            })
            && !injected(Bug::PublishesWithdrawn)
    }

    /// Whether polling or a repair has published the event, or has claimed it.
    #[inline]
    fn is_repeated(&mut self, event: &Offered<'_>) -> bool {
        let (_, xmin) = self.claimed;
        let at = (event.position.commit, self.xid);
        self.is_withdrawn(event.id)
            || self.row_status.waits_for(event.id, xmin, event.aggregate)
            || self.requeued.passes(event.id, xmin)
            || self.polled_ids.has(event.id, at, Some(event.aggregate))
    }

    /// Parks an event whose id belongs to a parked event: it may be the same event or another one.
    fn park_doubted(
        &mut self,
        now: Duration,
        event: &Offered<'_>,
        halt: Box<Halt>,
    ) -> Option<Entry> {
        self.note_claimed(event.id);
        let change = Change::Poison { aggregate: Some(event.aggregate), halt };
        self.parked_by(now, Input::Change(change))
    }

    /// The next change is an event that can't be published as it is. `event_id` is empty if the event has none.
    pub fn poison(
        &mut self,
        now: Duration,
        (position, event_id): (Position, &str),
        aggregate: Option<Aggregate<'_>>,
        halt: impl FnOnce() -> Box<Halt>,
    ) -> PoisonAnswer {
        let (_, xmin) = self.claimed;
        if self.is_withdrawn(event_id)
            || self.requeued.passes(event_id, xmin)
            || self.polled_ids.has(event_id, (position.commit, self.xid), aggregate)
        {
            self.skip(now);
            return PoisonAnswer::Repeated;
        }
        self.note_claimed(event_id);
        let change = Change::Poison { aggregate, halt: halt() };
        PoisonAnswer::New(self.parked_by(now, Input::Change(change)))
    }

    /// The sink has accepted the event of [`Answer::Publish`]. `row`: the times of its row; `None` for an event that is
    /// no row.
    #[inline]
    pub fn taken(&mut self, ticket: Ticket, event: &Offered<'_>, row: Option<SentRow>) {
        if let Some(SentRow { commit_time, time_ms }) = row {
            let written =
                WritingTransaction { xid: self.xid, committed: Some(commit_time), time_ms };
            let at = (event.position, event.aggregate);
            self.row_status.sent(ticket, at, written, event.id);
        }
        self.note_claimed(event.id);
    }

    /// The sink has not accepted the event of [`Answer::Publish`]. Returns how it is parked; `None` if it is offered
    /// again before any other. `lost`: whether an event is parked whose destination accepts no records.
    pub fn not_taken(
        &mut self,
        now: Duration,
        (ticket, event_id): (Ticket, &str),
        not_taken: NotTaken,
        lost: impl FnOnce() -> bool,
        halt: impl FnOnce(Refusal) -> Box<Halt>,
    ) -> Option<SetAside> {
        let aside = match not_taken {
            NotTaken::Refused(reason) => {
                Some((Input::Refused { ticket, reason, halt: halt(reason) }, Some(reason)))
            }
            NotTaken::Doubted(reason) => {
                self.parks_doubted().then_some((Input::StaleDestination { ticket }, Some(reason)))
            }
            NotTaken::Unavailable | NotTaken::Missing => {
                let soon = not_taken == NotTaken::Missing;
                lost().then_some((Input::Unavailable { ticket, soon }, None))
            }
            NotTaken::Full | NotTaken::Destination | NotTaken::Alone => None,
        };
        let Some((input, refused)) = aside else {
            let again = if not_taken == NotTaken::Alone {
                Input::NeedsExclusive { ticket }
            } else {
                Input::NotTaken { ticket }
            };
            self.apply(now, again);
            return None;
        };
        self.note_claimed(event_id);
        Some(SetAside { entry: self.parked_by(now, input), refused })
    }

    /// Whether an event that may not fit its destination is parked until that is known, so that only its aggregate
    /// waits. If a refusal would have lasting effects, everything waits for the destination's answer instead.
    fn parks_doubted(&self) -> bool {
        let failures_stay = self.polling.is_some_and(|rules| rules.failures_stay);
        self.on_poison == OnPoison::BlockKey && !failures_stay
    }

    /// The broker has refused an event that was sent with nothing else in flight. Returns how it is parked.
    pub fn large_refused(
        &mut self,
        now: Duration,
        ticket: Ticket,
        reason: Refusal,
        halt: Box<Halt>,
    ) -> Option<Entry> {
        self.row_status.not_published(ticket);
        self.parked_by(now, Input::Refused { ticket, reason, halt })
    }

    #[inline]
    fn note_claimed(&mut self, event_id: &str) {
        let (row, xmin) = self.claimed;
        self.polled_ids.claimed(row, xmin, event_id);
    }

    fn parked_by(&mut self, now: Duration, input: Input<'_>) -> Option<Entry> {
        match self.answer_to(now, input) {
            RelayAnswer::Park(entry, _) => Some(*entry),
            RelayAnswer::Publish(_) | RelayAnswer::Nothing => None,
        }
    }

    /// The transaction that wrote the row of the current event, if its number is known.
    #[inline]
    fn transaction(&self) -> Option<u32> {
        let (_, xmin) = self.claimed;
        if self.polling.is_some() { Some(xmin).filter(|xmin| *xmin != 0) } else { self.xid }
    }

    /// Applies an input to the relay, and takes the answer for the current event out of the effects: only now its
    /// record is available.
    #[inline]
    fn answer_to(&mut self, now: Duration, input: Input<'_>) -> RelayAnswer {
        let first = self.effects.len();
        self.relay.apply(now, input, &mut self.effects);
        RelayAnswer::take(&mut self.effects, first).written_by(self.transaction())
    }
}

/// From `wall` until `at`; zero if `at` is past.
fn until(at: Timestamp, wall: Timestamp) -> Duration {
    let micros = at.unix_micros.saturating_sub(wall.unix_micros);
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
