//! The hot path: changes of the source, one by one, through mapper and relay into the sink.
//!
//! This module allocates nothing for an event that is published and never waits. If the intake is closed or the sink is
//! busy, it keeps the place in the batch and continues there; the batch stays in the buffer in which it was read.

use super::halts;
use super::lifecycle::Pipeline;
use super::log::PipelineLog;
use super::parked::RecordBuffer;
use super::requeue::RequeuedEvents;
use super::row_status::{HandOverFilter, RowStatusQueue};
use super::spec::{Mode, PipelineSpec};
use crate::error::Halt;
use crate::event::Aggregate;
use crate::metrics::PipelineMetrics;
use crate::outbox::{At, MapError, Mapped, Mapper};
use crate::parked::Entry;
use crate::postgres::poll::ROW_BYTES_MAX;
use crate::postgres::{Batch, Decoder};
use crate::record::{Record, Refusal, Ticket};
use crate::relay::{Change, Effect, Input, OnPoison, Relay};
use crate::row::Row;
use crate::sink::{NotTaken, Sink};
use crate::source::{self, Message};
use crate::timestamp::Timestamp;
use std::time::Duration;

/// Changes fed before the loop handles other inputs. At about 1 µs a change: 2 ms.
pub(super) const CHANGES_MAX: usize = 2048;

/// A batch, and how far it has been fed.
#[derive(Debug)]
pub(super) struct Feeding {
    /// The frames.
    pub(super) batch: Batch,
    /// The place of the next change.
    pub(super) place: usize,
}

/// Why feeding stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fed {
    /// The batch is used up.
    Whole,
    /// Enough for one turn of the loop.
    Turn,
    /// The intake is closed, or the sink is busy: continue after a post.
    Waiting,
    /// The source needs an answer of its own before it can read on.
    Blocked,
    /// An effect waits that ends the stream.
    Ended,
}

/// A change that may be an event.
enum Candidate<'a> {
    Row(&'a Row<'a>),
    Message(&'a Message<'a>),
}

enum FeedStep {
    Next,
    Stay,
    Blocked,
}

impl Pipeline {
    /// Feeds the current batch, and what `more` returns, until something stops it. One turn of the loop costs as much
    /// as several events, so everything that has arrived is fed in one turn.
    pub(super) fn feed_ready(
        &mut self,
        now: Duration,
        decoder: &mut Decoder,
        at_hand: &mut Option<Feeding>,
        more: impl Fn() -> Option<Batch>,
    ) -> Fed {
        let mut changes = CHANGES_MAX;
        self.log.held_at = None;
        loop {
            if at_hand.is_none() && !self.relay.stopping() {
                *at_hand = more().map(|batch| Feeding { batch, place: 0 });
            }
            let Some(feeding) = at_hand else { return Fed::Whole };
            let mut batch = decoder.batch(&feeding.batch);
            match self.feed(now, &mut batch, &mut feeding.place, &mut changes) {
                Fed::Whole => *at_hand = None,
                stopped @ (Fed::Turn | Fed::Waiting | Fed::Blocked | Fed::Ended) => return stopped,
            }
        }
    }

    /// Feeds the changes of `batch` from `place` on until something stops it.
    pub(super) fn feed(
        &mut self,
        now: Duration,
        batch: &mut (impl source::Batch + ?Sized),
        place: &mut usize,
        changes: &mut usize,
    ) -> Fed {
        while *changes > 0 {
            *changes -= 1;
            let Some(at_place) = batch.change_at(*place).transpose() else { return Fed::Whole };
            if self.relay.stopping() || self.ending() {
                return Fed::Ended;
            }
            let step = match at_place {
                Ok((change, next)) => {
                    let step = self.offer(now, &change);
                    if matches!(step, FeedStep::Next) {
                        *place = next;
                    }
                    step
                }
                Err(error) => {
                    self.apply(
                        now,
                        Input::Halt(Box::new(halts::unreadable(&error, self.spec.mode))),
                    );
                    FeedStep::Stay
                }
            };
            let stopped = match step {
                FeedStep::Next => continue,
                FeedStep::Stay => Fed::Waiting,
                FeedStep::Blocked => Fed::Blocked,
            };
            self.log.held_at = self.relay.upcoming().map(|next| next.commit_time);
            return stopped;
        }
        Fed::Turn
    }

    /// Feeds one row of a claim; returns whether it was accepted.
    pub(super) fn feed_row(&mut self, now: Duration, row: &Row<'_>) -> bool {
        matches!(self.change(now, &Candidate::Row(row)), FeedStep::Next)
    }

    /// Feeds one row of a claim whose payload was not read because it is too large; returns whether it was accepted.
    pub(super) fn feed_too_large(&mut self, now: Duration, row: &Row<'_>) -> bool {
        let Some(next) = self.relay.upcoming() else {
            return matches!(self.skip(now), FeedStep::Next);
        };
        let at = At { position: next.position, commit_time: next.commit_time };
        let error = self.mapper.too_large(row, at, ROW_BYTES_MAX);
        matches!(self.not_mapped(now, at, error), FeedStep::Next)
    }

    /// Applies a change of the source to mapper and relay.
    fn offer(&mut self, now: Duration, change: &source::Change<'_>) -> FeedStep {
        let input = match change {
            source::Change::Row(row) => return self.change(now, &Candidate::Row(row)),
            source::Change::Begin { commit, time, transaction, first: _ } => {
                self.row_status.begins(*transaction);
                Input::Begin { commit: *commit, commit_time: *time }
            }
            source::Change::Commit { commit, end, time } => {
                self.committed_at = *time;
                Input::Commit { commit: *commit, end: *end }
            }
            source::Change::Table(table) => {
                if let Err(error) = self.mapper.table(table) {
                    self.apply(
                        now,
                        Input::Halt(Box::new(halts::unfit_table(&error, self.spec.mode))),
                    );
                    return FeedStep::Stay;
                }
                return FeedStep::Next;
            }
            // A message that is not transactional belongs to no transaction and is no event.
            source::Change::Message(message) if message.transactional => {
                return self.change(now, &Candidate::Message(message));
            }
            source::Change::Message(message) => {
                // After a reconnect the message is repeated: this counts messages received.
                self.log.skipped.counts.not_transactional +=
                    u64::from(self.mapper.has_prefix(message));
                return FeedStep::Next;
            }
            source::Change::Updated(row) => match self.halts_at(row) {
                // After a reconnect changes that were resolved before are repeated; such an update was skipped then.
                Some(halt) if self.relay.upcoming().is_some() => {
                    self.apply(now, Input::Halt(halt));
                    return FeedStep::Stay;
                }
                Some(_) | None => Input::Change(Change::Skipped),
            },
            source::Change::Other => Input::Change(Change::Skipped),
            source::Change::Heartbeat(upto) => Input::Keepalive { upto: *upto },
            source::Change::Nothing => return FeedStep::Next,
            source::Change::Blocked => return FeedStep::Blocked,
        };
        if matches!(input, Input::Change(_)) {
            if self.relay.upcoming().is_some() && !self.relay.intake_open() {
                return FeedStep::Stay;
            }
            self.log.skipped.counts.not_inserts += 1;
        }
        self.apply(now, input);
        FeedStep::Next
    }

    /// The halt because of an UPDATE, if the configuration asks for one.
    fn halts_at(&self, row: &Row<'_>) -> Option<Box<Halt>> {
        match self.mapper.halting_update(row) {
            Ok(id) => {
                let at = self.relay.upcoming().map(|next| next.position);
                let (names, mode) = (&self.spec.names, self.spec.mode);
                id.map(|id| Box::new(halts::updated_row(names, id.as_deref(), at, mode)))
            }
            Err(error) => Some(Box::new(halts::unfit_table(&error, self.spec.mode))),
        }
    }

    /// The halt because a source of the caller's own sends a row of another table, and has not described the outbox.
    /// With PostgreSQL, the start has found the outbox in the catalog.
    fn halts_before_outbox(&self, change: &Candidate<'_>) -> Option<Box<Halt>> {
        let Candidate::Row(row) = change else { return None };
        if self.spec.mode != Mode::Embedded {
            return None;
        }
        let (other, outbox) = self.mapper.before_outbox(row.table)?;
        Some(Box::new(halts::outbox_not_described(other, outbox)))
    }

    /// A change that may be an event: maps it, applies it to the relay, and passes it to the sink if the relay says so.
    fn change(&mut self, now: Duration, change: &Candidate<'_>) -> FeedStep {
        let at = match self.relay.upcoming() {
            Some(_) if !self.relay.intake_open() => return FeedStep::Stay,
            Some(next) => At { position: next.position, commit_time: next.commit_time },
            None => return self.skip(now),
        };
        let mut mapped = match map(&mut self.mapper, change, at) {
            Ok(Some(mapped)) => mapped,
            Ok(None) => return self.skip_other(now, change),
            Err(error) => return self.not_mapped(now, at, error),
        };
        if !self.relay.admits(mapped.aggregate) {
            return FeedStep::Stay;
        }
        if self.relay.is_overtaken(at.position) {
            mapped.remove_position();
        }
        if has_expired(&self.log, &self.requeued, mapped.expires_at, mapped.event_id) {
            self.log.skipped.event_expired(self.spec.name(), at.position, mapped.event_id);
            return self.skip(now);
        }
        if is_repeated((&self.requeued, &mut self.row_status), &mut self.polled_ids, &mapped, at) {
            return self.skip_repeated(now);
        }
        if self.requeued.doubts(mapped.event_id) {
            let parker = (&mut self.polled_ids, &mut self.records, &mut self.log, &self.metrics);
            let decider = (now, &mut self.relay, &mut self.effects);
            return park_doubted(decider, parker, &self.spec, (&mapped, at));
        }
        let record = mapped.record();
        let (aggregate, size_bytes) = (mapped.aggregate, record.held_bytes(self.held_bytes));
        let wait = wait_of(&self.log, &self.requeued, &mapped);
        let event = Input::Change(Change::Event { aggregate, size_bytes, wait });
        let ticket = match answer_to((now, &mut self.relay, &mut self.effects), event) {
            RelayAnswer::Publish(ticket) => ticket,
            RelayAnswer::Park(entry, refused) => {
                self.polled_ids.claimed(mapped.event_id);
                let parker = (&mut self.records, &mut self.log, &self.metrics);
                park(parker, &self.spec, entry, (&mapped, at), refused);
                return FeedStep::Next;
            }
            RelayAnswer::Nothing => return FeedStep::Next,
        };
        let not_taken = match enqueue(&mut *self.sink, &self.relay, ticket, &record) {
            Ok(sent) => {
                self.destinations.takes(record.topic);
                let row = of_row(change, (&mapped, record.timestamp_ms), at);
                self.row_status.sent(ticket, row, mapped.event_id);
                let kept = (&mut self.polled_ids, &mut self.records, &mut self.log);
                keep_sent(kept, ticket, (&mapped, at), sent);
                return FeedStep::Next;
            }
            Err(not_taken) => not_taken,
        };
        let doubted = self.records.parks_doubted(self.spec.parking.on_poison);
        let missing = not_taken == NotTaken::Missing;
        let may_park = missing && self.spec.parking.on_poison != OnPoison::Stop;
        let lost = || self.destinations.parks(record.topic, may_park, now);
        let (spec, named) = (&self.spec, (record.topic, mapped.event_id));
        let halt = |reason| Box::new(halts::refused_event(spec, named, at.position, reason));
        let Some((input, refused)) = set_aside(not_taken, ticket, (doubted, lost), halt) else {
            self.destinations.awaits(nowhere(not_taken).then_some(record.topic));
            self.apply(now, offered_again(not_taken, ticket));
            return FeedStep::Stay;
        };
        self.destinations.awaits(None);
        self.polled_ids.claimed(mapped.event_id);
        let answer = answer_to((now, &mut self.relay, &mut self.effects), input);
        let parker = (&mut self.records, &mut self.log, &self.metrics);
        park_unsent(parker, &self.spec, answer, (&mapped, at), (missing, refused));
        FeedStep::Next
    }

    /// A row of another table, or a message with another prefix.
    fn skip_other(&mut self, now: Duration, change: &Candidate<'_>) -> FeedStep {
        if let Some(halt) = self.halts_before_outbox(change) {
            self.apply(now, Input::Halt(halt));
            return FeedStep::Stay;
        }
        self.log.skipped.counts.others += 1;
        self.skip(now)
    }

    fn skip_repeated(&mut self, now: Duration) -> FeedStep {
        self.log.skipped.counts.repeated += 1;
        self.skip(now)
    }

    fn skip(&mut self, now: Duration) -> FeedStep {
        self.apply(now, Input::Change(Change::Skipped));
        FeedStep::Next
    }

    fn not_mapped(&mut self, now: Duration, at: At, error: MapError) -> FeedStep {
        match error {
            MapError::Poison(poison) => {
                let partial = &poison.partial;
                let event_id = partial.event_id.as_deref().unwrap_or_default();
                let aggregate = partial.aggregate.as_ref();
                let aggregate = aggregate.map(|(kind, id)| Aggregate { kind, id });
                if self.requeued.passes(event_id)
                    || self.polled_ids.has(
                        event_id,
                        (at.position.commit, self.row_status.xid()),
                        aggregate,
                    )
                {
                    return self.skip_repeated(now);
                }
                self.polled_ids.claimed(event_id);
                self.metrics.failed(partial.event_type.as_deref().unwrap_or_default());
                let halt = Box::new(halts::poison_event(&poison, self.spec.mode, self.log.polling));
                let first = self.effects.len();
                let change = Input::Change(Change::Poison { aggregate, halt });
                self.relay.apply(now, change, &mut self.effects);
                if let RelayAnswer::Park(entry, _) = take_answer(&mut self.effects, first) {
                    let row = self.records.keep_poison(entry, &poison, at.commit_time);
                    self.log.parked_total += 1;
                    self.log.parked.event_parked(&self.spec, row);
                }
                FeedStep::Next
            }
            MapError::Unfit(_) | MapError::Inconsistent { .. } => {
                self.apply(now, Input::Halt(Box::new(halts::unfit_table(&error, self.spec.mode))));
                FeedStep::Stay
            }
        }
    }
}

fn map<'a>(
    mapper: &'a mut Mapper,
    change: &Candidate<'a>,
    at: At,
) -> Result<Option<Mapped<'a>>, MapError> {
    match change {
        Candidate::Row(row) => mapper.row(row, at),
        Candidate::Message(message) => mapper.message(message, at),
    }
}

/// How an event was passed to the sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// Like all other events.
    Plain,
    /// With nothing else in flight, to find out whether the broker accepts a record of this size.
    Large,
}

/// Passes the current event to the sink, which may accept it only with nothing else in flight.
#[inline]
fn enqueue(
    sink: &mut dyn Sink,
    relay: &Relay,
    ticket: Ticket,
    record: &Record<'_>,
) -> Result<Sent, NotTaken> {
    match sink.enqueue(ticket, record) {
        Err(NotTaken::Alone) if relay.sends_exclusively() => {
            sink.enqueue_alone(ticket, record, None).map(|()| Sent::Large)
        }
        taken => taken.map(|()| Sent::Plain),
    }
}

/// The event was not accepted, and is offered again as the next change.
fn offered_again(not_taken: NotTaken, ticket: Ticket) -> Input<'static> {
    if not_taken == NotTaken::Alone {
        Input::NeedsExclusive { ticket }
    } else {
        Input::NotTaken { ticket }
    }
}

/// Remembers an event that the sink has accepted. The record of a large event is kept until its report, because the
/// broker may refuse it.
fn keep_sent(
    (polled_ids, records, log): (&mut HandOverFilter, &mut RecordBuffer, &mut PipelineLog),
    ticket: Ticket,
    (mapped, at): (&Mapped<'_>, At),
    sent: Sent,
) {
    polled_ids.claimed(mapped.event_id);
    log.clamped_total += u64::from(mapped.clamped);
    if sent == Sent::Large {
        records.keep_large(ticket, mapped, at);
    }
}

/// Keeps the record of an event that the sink did not accept, if the relay parks it.
fn park_unsent(
    (records, log, metrics): (&mut RecordBuffer, &mut PipelineLog, &PipelineMetrics),
    spec: &PipelineSpec,
    answer: RelayAnswer,
    (mapped, at): (&Mapped<'_>, At),
    (missing, refused): (bool, Option<Refusal>),
) {
    if refused.is_some() {
        metrics.failed(mapped.event_type);
    }
    let RelayAnswer::Park(entry, _) = answer else { return };
    log.parked_total += 1;
    let row = records.keep_unsent(entry, mapped, at, (missing, refused));
    if missing || refused.is_some() {
        log.parked.event_parked(spec, row);
    }
}

/// Keeps the record of an event that is parked before it is sent: behind another event, or because a broker refused it.
fn park(
    (records, log, metrics): (&mut RecordBuffer, &mut PipelineLog, &PipelineMetrics),
    spec: &PipelineSpec,
    entry: Entry,
    (mapped, at): (&Mapped<'_>, At),
    refused: Option<Refusal>,
) {
    log.parked_total += 1;
    if refused.is_none() {
        records.keep(entry, mapped, at);
        return;
    }
    metrics.failed(mapped.event_type);
    let row = records.keep_refused(entry, mapped, at, refused);
    log.parked.event_parked(spec, row);
}

/// Parks an event whose ID belongs to a parked event: it may be the same event or another one.
fn park_doubted(
    decider: (Duration, &mut Relay, &mut Vec<Effect>),
    (polled_ids, records, log, metrics): (
        &mut HandOverFilter,
        &mut RecordBuffer,
        &mut PipelineLog,
        &PipelineMetrics,
    ),
    spec: &PipelineSpec,
    (mapped, at): (&Mapped<'_>, At),
) -> FeedStep {
    polled_ids.claimed(mapped.event_id);
    metrics.failed(mapped.event_type);
    let halt = Box::new(halts::doubted_event(mapped.event_id, at.position, spec.mode));
    let change = Change::Poison { aggregate: Some(mapped.aggregate), halt };
    if let RelayAnswer::Park(entry, _) = answer_to(decider, Input::Change(change)) {
        log.parked_total += 1;
        let row = records.keep_doubted(entry, mapped, at);
        log.parked.event_parked(spec, row);
    }
    FeedStep::Next
}

/// Whether an event that the sink did not accept is parked, and why; `None` if it is offered again before any other.
/// `doubted`, `lost`: whether an event that may not fit, or whose destination accepts no records, is parked.
fn set_aside(
    not_taken: NotTaken,
    ticket: Ticket,
    (doubted, lost): (bool, impl FnOnce() -> bool),
    halt: impl FnOnce(Refusal) -> Box<Halt>,
) -> Option<(Input<'static>, Option<Refusal>)> {
    match not_taken {
        NotTaken::Refused(reason) => {
            Some((Input::Refused { ticket, reason, halt: halt(reason) }, Some(reason)))
        }
        NotTaken::Doubted(reason) => {
            doubted.then_some((Input::StaleDestination { ticket }, Some(reason)))
        }
        NotTaken::Unavailable | NotTaken::Missing => {
            let soon = not_taken == NotTaken::Missing;
            lost().then_some((Input::Unavailable { ticket, soon }, None))
        }
        NotTaken::Full | NotTaken::Destination | NotTaken::Alone => None,
    }
}

/// What to do with the current record.
#[derive(Clone, Copy)]
enum RelayAnswer {
    Publish(Ticket),
    Park(Entry, Option<Refusal>),
    Nothing,
}

/// How long the event is delayed.
fn wait_of(log: &PipelineLog, requeued: &RequeuedEvents, mapped: &Mapped<'_>) -> Duration {
    let wait = mapped.available_at.map_or(Duration::ZERO, |at| log.until(at));
    requeued.wait(mapped.event_id, wait)
}

/// Whether the event has expired. A parked event does not expire: otherwise it would be skipped while later events of
/// its aggregate wait for it.
fn has_expired(
    log: &PipelineLog,
    requeued: &RequeuedEvents,
    expires_at: Option<Timestamp>,
    event_id: &str,
) -> bool {
    expires_at.is_some_and(|at| log.has_passed(at)) && !requeued.parks(event_id)
}

/// Whether polling or a repair has published the event, or has claimed it.
fn is_repeated(
    (requeued, row_status): (&RequeuedEvents, &mut RowStatusQueue),
    polled_ids: &mut HandOverFilter,
    mapped: &Mapped<'_>,
    at: At,
) -> bool {
    let (id, of) = (mapped.event_id, (at.position.commit, row_status.xid()));
    row_status.waits_for(id, mapped.aggregate)
        || requeued.passes(id)
        || polled_ids.has(id, of, Some(mapped.aggregate))
}

/// Position, aggregate and own time of an event that comes from a row; `None` for a message.
fn of_row<'a>(
    change: &Candidate<'_>,
    (mapped, timestamp_ms): (&Mapped<'a>, Option<i64>),
    at: At,
) -> Option<(At, Aggregate<'a>, Option<i64>)> {
    let time_ms = timestamp_ms.filter(|_| !mapped.clamped);
    matches!(change, Candidate::Row(_)).then_some((at, mapped.aggregate, time_ms))
}

/// Whether a record waits only for its destination.
fn nowhere(not_taken: NotTaken) -> bool {
    matches!(not_taken, NotTaken::Destination | NotTaken::Unavailable | NotTaken::Missing)
}

/// Applies an input to the relay, and takes the answer for the current event.
#[inline]
fn answer_to(
    (now, relay, effects): (Duration, &mut Relay, &mut Vec<Effect>),
    input: Input<'_>,
) -> RelayAnswer {
    let first = effects.len();
    relay.apply(now, input, effects);
    take_answer(effects, first)
}

/// Takes the answer to the current event out of the effects: only now its record is available.
fn take_answer(effects: &mut Vec<Effect>, first: usize) -> RelayAnswer {
    let at_hand = |effect: &Effect| matches!(effect, Effect::Publish(_) | Effect::Park { .. });
    let Some(at) = effects.iter().skip(first).position(at_hand) else {
        return RelayAnswer::Nothing;
    };
    match effects.remove(first + at) {
        Effect::Publish(ticket) => RelayAnswer::Publish(ticket),
        Effect::Park { ticket: _, entry, reason } => RelayAnswer::Park(entry, reason),
        Effect::Published { .. }
        | Effect::WriteParking { .. }
        | Effect::Attempt { .. }
        | Effect::Probe { .. }
        | Effect::DeadLetter { .. }
        | Effect::DeadLetterRefused { .. }
        | Effect::Overtaken { .. }
        | Effect::Released { .. }
        | Effect::WriteCursor(_)
        | Effect::Confirm(_)
        | Effect::Restart { .. }
        | Effect::Drained
        | Effect::Halt(_) => RelayAnswer::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Position;
    use crate::postgres::store::requeue::{RequeueDecision, RequeuedEvent};

    #[test]
    fn event_expires_unless_it_is_parked_and_requeued() {
        let again = |id: &str, decision| RequeuedEvent {
            event_id: id.to_owned(),
            position: Position::default(),
            decision,
            xmin: 0,
        };
        let parked = again("parked", RequeueDecision::Requeue { certain: true });
        let requeued =
            RequeuedEvents::new(vec![parked, again("resolved", RequeueDecision::MarkOnly)]);
        let mut log = PipelineLog::default();
        log.read_clock();
        // The beginning of 1970, and the end of time.
        let (past, future) = (Timestamp::default(), Timestamp::MAX);
        for (id, expires_at, expired) in [
            ("another", Some(past), true),
            ("another", Some(future), false),
            ("another", None, false),
            ("resolved", Some(past), true),
            ("parked", Some(past), false),
        ] {
            assert_eq!(has_expired(&log, &requeued, expires_at, id), expired, "{id}");
        }
    }
}
