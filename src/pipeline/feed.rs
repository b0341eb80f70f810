//! The hot path: frames of the stream, one by one, through decoder, mapper and relay into the sink.
//!
//! Nothing here allocates for an event or waits. It stops where the intake shuts or the sink is busy, remembers the
//! place, and goes on from there: the batch stays where it was read.

use super::halts;
use super::lifecycle::Pipeline;
use super::log::{self, Tell};
use super::parked::Shelf;
use super::requeue::Returning;
use super::row_status::{Handed, Marking};
use super::spec::PipelineSpec;
use crate::error::{Halt, HaltReason};
use crate::event::{Aggregate, PgTime};
use crate::metrics::PipelineMetrics;
use crate::outbox::{At, MapError, Mapped, Mapper};
use crate::parked::Entry;
use crate::pgoutput::{self, Insert, LogicalMessage, Message, Update};
use crate::postgres::poll::ROW_BYTES_MAX;
use crate::postgres::{Batch, Frame};
use crate::record::{Record, Refusal, Ticket};
use crate::relay::{Change, Effect, Input, OnPoison, Relay};
use crate::sink::{NotTaken, Sink};
use std::time::Duration;

/// Frames fed before the driver looks at everything else again. At about 1 µs a frame: 2 ms.
const FRAMES_MAX: usize = 2048;

/// A batch, and how far it has been fed.
#[derive(Debug)]
pub(super) struct Feeding {
    pub(super) batch: Batch,
    pub(super) offset: usize,
}

/// Why feeding stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fed {
    /// The batch is used up.
    Whole,
    /// Enough for one turn.
    Turn,
    /// The intake is shut, or the sink is busy: go on after a post.
    Waiting,
    /// There are effects which change everything.
    Ended,
}

/// A change that may be an event.
enum Candidate<'a> {
    Row(&'a Insert<'a>),
    Message(&'a LogicalMessage<'a>),
}

enum Step {
    Next,
    Stay,
}

impl Pipeline {
    /// Feeds what is at hand, and what `more` has, until something stops it. One turn of the loop costs as much as
    /// several events: what is there already is taken in one.
    pub(super) fn feed_ready(
        &mut self,
        now: Duration,
        at_hand: &mut Option<Feeding>,
        more: impl Fn() -> Option<Batch>,
    ) -> Fed {
        let mut frames = FRAMES_MAX;
        self.tell.held_at = None;
        loop {
            if at_hand.is_none() && !self.relay.stopping() {
                *at_hand = more().map(|batch| Feeding { batch, offset: 0 });
            }
            let Some(feeding) = at_hand else { return Fed::Whole };
            match self.feed(now, feeding, &mut frames) {
                Fed::Whole => *at_hand = None,
                stopped @ (Fed::Turn | Fed::Waiting | Fed::Ended) => return stopped,
            }
        }
    }

    /// Feeds frames of `feeding` until something stops it.
    fn feed(&mut self, now: Duration, feeding: &mut Feeding, frames: &mut usize) -> Fed {
        while *frames > 0 {
            *frames -= 1;
            let Some((frame, next)) = feeding.batch.frame_at(feeding.offset) else {
                return Fed::Whole;
            };
            if self.relay.stopping() || self.ending() {
                return Fed::Ended;
            }
            match self.frame(now, &frame) {
                Step::Next => feeding.offset = next,
                Step::Stay => {
                    self.tell.held_at = self.relay.upcoming().map(|next| next.commit_time);
                    return Fed::Waiting;
                }
            }
        }
        Fed::Turn
    }

    fn frame(&mut self, now: Duration, frame: &Frame<'_>) -> Step {
        match frame {
            Frame::Keepalive { wal_end, .. } => {
                self.apply(now, Input::Keepalive { wal_end: *wal_end });
                Step::Next
            }
            Frame::XLogData { data, .. } => match pgoutput::decode(data) {
                Ok(message) => self.message(now, &message),
                Err(error) => {
                    self.apply(now, Input::Halt(Box::new(protocol(&error))));
                    Step::Stay
                }
            },
        }
    }

    /// Takes one row of a claim; whether it was taken.
    pub(super) fn feed_row(&mut self, now: Duration, message: &Message<'_>) -> bool {
        matches!(self.message(now, message), Step::Next)
    }

    /// Takes one row of a claim that was not read whole, since it is too large; whether it was taken.
    pub(super) fn feed_too_large(&mut self, now: Duration, message: &Message<'_>) -> bool {
        let Message::Insert(insert) = message else { return self.feed_row(now, message) };
        let Some(next) = self.relay.upcoming() else {
            return matches!(self.skip(now), Step::Next);
        };
        let at = At { position: next.position, commit_time: next.commit_time };
        let error = self.mapper.too_large(insert, at, ROW_BYTES_MAX);
        matches!(self.not_mapped(now, at, error), Step::Next)
    }

    fn message(&mut self, now: Duration, message: &Message<'_>) -> Step {
        let input = match message {
            Message::Begin(begin) => {
                self.marking.begins(begin.xid);
                Input::Begin { commit_lsn: begin.final_lsn, commit_time: begin.commit_time }
            }
            Message::Commit(commit) => {
                self.committed_at = commit.commit_time;
                Input::Commit { commit_lsn: commit.commit_lsn, end_lsn: commit.end_lsn }
            }
            Message::Type(of) => {
                self.mapper.type_name(of);
                return Step::Next;
            }
            Message::Relation(relation) => {
                self.unknown_types = self.mapper.unknown_types(relation);
                if !self.unknown_types.is_empty() {
                    return Step::Stay;
                }
                if let Err(error) = self.mapper.relation(relation) {
                    self.apply(now, Input::Halt(Box::new(halts::unfit_table(&error))));
                    return Step::Stay;
                }
                return Step::Next;
            }
            Message::Insert(insert) => return self.change(now, &Candidate::Row(insert)),
            // One that is not transactional stands outside of every transaction and is nobody's event.
            Message::Message(logical) if logical.transactional => {
                return self.change(now, &Candidate::Message(logical));
            }
            Message::Update(update) => match self.halts_at(update) {
                // What was resolved before comes again behind a reconnect, and was passed over then.
                Some(halt) if self.relay.upcoming().is_some() => {
                    self.apply(now, Input::Halt(halt));
                    return Step::Stay;
                }
                Some(_) | None => Input::Change(Change::Skipped),
            },
            Message::Delete(_) | Message::Truncate(_) => Input::Change(Change::Skipped),
            Message::Message(logical) => {
                // It comes once more where the connection does: the count is of messages seen.
                self.tell.skipped.not_transactional += u64::from(self.mapper.has_prefix(logical));
                return Step::Next;
            }
            Message::Origin(_) => return Step::Next,
        };
        if matches!(input, Input::Change(_)) {
            if self.relay.upcoming().is_some() && !self.relay.intake_open() {
                return Step::Stay;
            }
            self.tell.skipped.not_inserts += 1;
        }
        self.apply(now, input);
        Step::Next
    }

    /// The halt of an UPDATE, where the configuration asks for one.
    fn halts_at(&self, update: &Update<'_>) -> Option<Box<Halt>> {
        match self.mapper.halting_update(update) {
            Ok(id) => {
                let at = self.relay.upcoming().map(|next| next.position);
                id.map(|id| Box::new(halts::updated_row(&self.spec.names, id.as_deref(), at)))
            }
            Err(error) => Some(Box::new(halts::unfit_table(&error))),
        }
    }

    /// A change that may be an event: maps it, asks the relay, and hands it to the sink if told to.
    fn change(&mut self, now: Duration, change: &Candidate<'_>) -> Step {
        let at = match self.relay.upcoming() {
            Some(_) if !self.relay.intake_open() => return Step::Stay,
            Some(next) => At { position: next.position, commit_time: next.commit_time },
            None => return self.skip(now),
        };
        let mut mapped = match map(&mut self.mapper, change, at) {
            Ok(Some(mapped)) => mapped,
            Ok(None) => return self.skip_other(now),
            Err(error) => return self.not_mapped(now, at, error),
        };
        if !self.relay.admits(mapped.aggregate) {
            return Step::Stay;
        }
        if self.relay.is_overtaken(at.position) {
            mapped.take_off_position();
        }
        if has_expired(&self.tell, &self.returning, mapped.expires_at, mapped.event_id) {
            log::expired(&mut self.tell, self.spec.name(), at.position, mapped.event_id);
            return self.skip(now);
        }
        if is_repeated((&self.returning, &mut self.marking), &mut self.handed, &mapped, at) {
            return self.skip_repeated(now);
        }
        if self.returning.doubts(mapped.event_id) {
            let parker = (&mut self.handed, &mut self.shelf, &mut self.tell, &self.metrics);
            let decider = (now, &mut self.relay, &mut self.effects);
            return park_doubted(decider, parker, &self.spec, (&mapped, at));
        }
        let record = mapped.record();
        let (aggregate, size_bytes) = (mapped.aggregate, record.held_bytes());
        let wait = wait_of(&self.tell, &self.returning, &mapped);
        let event = Input::Change(Change::Event { aggregate, size_bytes, wait });
        let ticket = match answer_to((now, &mut self.relay, &mut self.effects), event) {
            Answer::Publish(ticket) => ticket,
            Answer::Park(entry, refused) => {
                self.handed.claimed(mapped.event_id);
                let parker = (&mut self.shelf, &mut self.tell, &self.metrics);
                park(parker, &self.spec, entry, (&mapped, at), refused);
                return Step::Next;
            }
            Answer::Nothing => return Step::Next,
        };
        let not_taken = match enqueue(&mut *self.sink, &self.relay, ticket, &record) {
            Ok(sent) => {
                self.destinations.takes(record.topic);
                let row = of_row(change, (&mapped, record.timestamp_ms), at);
                self.marking.sent(ticket, row, mapped.event_id);
                let keepers = (&mut self.handed, &mut self.shelf, &mut self.tell);
                keep_sent(keepers, ticket, (&mapped, at), sent);
                return Step::Next;
            }
            Err(not_taken) => not_taken,
        };
        let doubted = self.shelf.takes_doubted(self.spec.parking.on_poison);
        let missing = not_taken == NotTaken::Missing;
        let may_park = missing && self.spec.parking.on_poison != OnPoison::Stop;
        let lost = || self.destinations.parks(record.topic, may_park, now);
        let named = (record.topic, mapped.event_id);
        let halt = |reason| Box::new(halts::refused_event(named, at.position, reason));
        let Some((input, refused)) = set_aside(not_taken, ticket, (doubted, lost), halt) else {
            self.destinations.awaits(nowhere(not_taken).then_some(record.topic));
            self.apply(now, offered_again(not_taken, ticket));
            return Step::Stay;
        };
        self.destinations.awaits(None);
        self.handed.claimed(mapped.event_id);
        let answer = answer_to((now, &mut self.relay, &mut self.effects), input);
        let parker = (&mut self.shelf, &mut self.tell, &self.metrics);
        park_unsent(parker, &self.spec, answer, (&mapped, at), (missing, refused));
        Step::Next
    }

    fn skip_other(&mut self, now: Duration) -> Step {
        self.tell.skipped.others += 1;
        self.skip(now)
    }

    fn skip_repeated(&mut self, now: Duration) -> Step {
        self.tell.skipped.repeated += 1;
        self.skip(now)
    }

    fn skip(&mut self, now: Duration) -> Step {
        self.apply(now, Input::Change(Change::Skipped));
        Step::Next
    }

    fn not_mapped(&mut self, now: Duration, at: At, error: MapError) -> Step {
        match error {
            MapError::Poison(poison) => {
                let remains = &poison.remains;
                let event_id = remains.event_id.as_deref().unwrap_or_default();
                let aggregate = remains.aggregate.as_ref();
                let aggregate = aggregate.map(|(kind, id)| Aggregate { kind, id });
                if self.returning.passes(event_id)
                    || self.handed.has(
                        event_id,
                        (at.position.commit_lsn, self.marking.xid()),
                        aggregate,
                    )
                {
                    return self.skip_repeated(now);
                }
                self.handed.claimed(event_id);
                self.metrics.failed(remains.event_type.as_deref().unwrap_or_default());
                let halt = Box::new(halts::poison_event(&poison));
                let first = self.effects.len();
                let change = Input::Change(Change::Poison { aggregate, halt });
                self.relay.apply(now, change, &mut self.effects);
                if let Answer::Park(entry, _) = take_answer(&mut self.effects, first) {
                    let row = self.shelf.keep_poison(entry, &poison, at.commit_time);
                    self.tell.parked_total += 1;
                    log::parked(&mut self.tell, &self.spec, row);
                }
                Step::Next
            }
            MapError::Unfit(_) | MapError::OutOfStep { .. } => {
                self.apply(now, Input::Halt(Box::new(halts::unfit_table(&error))));
                Step::Stay
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
        Candidate::Row(insert) => mapper.insert(insert, at),
        Candidate::Message(message) => mapper.message(message, at),
    }
}

/// How an event went to the sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// As others.
    Plain,
    /// With nothing else in flight, to find out whether the broker takes one of its size.
    Large,
}

/// Hands the event at hand to the sink, which may take it only with nothing else in flight.
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

/// The event was not taken, and comes again as the next change.
fn offered_again(not_taken: NotTaken, ticket: Ticket) -> Input<'static> {
    if not_taken == NotTaken::Alone {
        Input::NeedsExclusive { ticket }
    } else {
        Input::NotTaken { ticket }
    }
}

/// Remembers an event that the sink has taken; of a large one the record too, until its report: the broker may refuse
/// it.
fn keep_sent(
    (handed, shelf, tell): (&mut Handed, &mut Shelf, &mut Tell),
    ticket: Ticket,
    (mapped, at): (&Mapped<'_>, At),
    sent: Sent,
) {
    handed.claimed(mapped.event_id);
    tell.clamped_total += u64::from(mapped.clamped);
    if sent == Sent::Large {
        shelf.keep_large(ticket, mapped, at);
    }
}

/// Keeps the record of an event that the sink did not take, where the relay parks it.
fn park_unsent(
    (shelf, tell, metrics): (&mut Shelf, &mut Tell, &PipelineMetrics),
    spec: &PipelineSpec,
    answer: Answer,
    (mapped, at): (&Mapped<'_>, At),
    (missing, refused): (bool, Option<Refusal>),
) {
    if refused.is_some() {
        metrics.failed(mapped.event_type);
    }
    let Answer::Park(entry, _) = answer else { return };
    tell.parked_total += 1;
    let row = shelf.keep_unsent(entry, mapped, at, (missing, refused));
    if missing || refused.is_some() {
        log::parked(tell, spec, row);
    }
}

/// Keeps the record of an event that is parked before it is sent: behind another, or since a broker refused it.
fn park(
    (shelf, tell, metrics): (&mut Shelf, &mut Tell, &PipelineMetrics),
    spec: &PipelineSpec,
    entry: Entry,
    (mapped, at): (&Mapped<'_>, At),
    refused: Option<Refusal>,
) {
    tell.parked_total += 1;
    if refused.is_none() {
        shelf.keep(entry, mapped, at);
        return;
    }
    metrics.failed(mapped.event_type);
    let row = shelf.keep_refused(entry, mapped, at, refused);
    log::parked(tell, spec, row);
}

/// Parks an event that has the id of another one, or is that one.
fn park_doubted(
    decider: (Duration, &mut Relay, &mut Vec<Effect>),
    (handed, shelf, tell, metrics): (&mut Handed, &mut Shelf, &mut Tell, &PipelineMetrics),
    spec: &PipelineSpec,
    (mapped, at): (&Mapped<'_>, At),
) -> Step {
    handed.claimed(mapped.event_id);
    metrics.failed(mapped.event_type);
    let halt = Box::new(halts::doubted_event(mapped.event_id, at.position));
    let change = Change::Poison { aggregate: Some(mapped.aggregate), halt };
    if let Answer::Park(entry, _) = answer_to(decider, Input::Change(change)) {
        tell.parked_total += 1;
        let row = shelf.keep_doubted(entry, mapped, at);
        log::parked(tell, spec, row);
    }
    Step::Next
}

/// Whether an event that the sink did not take is parked, and why; `None` where it is offered again before any other.
/// `doubted` and `lost`: whether that is so for one that may not fit, and for one whose destination takes none.
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

/// What is to be done with the record at hand.
#[derive(Clone, Copy)]
enum Answer {
    Publish(Ticket),
    Park(Entry, Option<Refusal>),
    Nothing,
}

/// How long the event is kept back.
fn wait_of(tell: &Tell, returning: &Returning, mapped: &Mapped<'_>) -> Duration {
    let wait = mapped.available_at.map_or(Duration::ZERO, |at| tell.until(at));
    returning.wait(mapped.event_id, wait)
}

/// Whether the event's time has passed. One that is parked does not expire: it would go behind its followers.
fn has_expired(
    tell: &Tell,
    returning: &Returning,
    expires_at: Option<PgTime>,
    event_id: &str,
) -> bool {
    expires_at.is_some_and(|at| tell.has_passed(at)) && !returning.parks(event_id)
}

/// Whether polling or a repair has published the event, or has it in hand.
fn is_repeated(
    (returning, marking): (&Returning, &mut Marking),
    handed: &mut Handed,
    mapped: &Mapped<'_>,
    at: At,
) -> bool {
    let (id, of) = (mapped.event_id, (at.position.commit_lsn, marking.xid()));
    marking.waits_for(id, mapped.aggregate)
        || returning.passes(id)
        || handed.has(id, of, Some(mapped.aggregate))
}

/// Where an event of a row stands, of which aggregate, and its own time; `None` of a message.
fn of_row<'a>(
    change: &Candidate<'_>,
    (mapped, timestamp_ms): (&Mapped<'a>, Option<i64>),
    at: At,
) -> Option<(At, Aggregate<'a>, Option<i64>)> {
    let time_ms = timestamp_ms.filter(|_| !mapped.clamped);
    matches!(change, Candidate::Row(_)).then_some((at, mapped.aggregate, time_ms))
}

/// Whether a record waits for its destination alone.
fn nowhere(not_taken: NotTaken) -> bool {
    matches!(not_taken, NotTaken::Destination | NotTaken::Unavailable | NotTaken::Missing)
}

/// Applies an event, or what became of the one at hand, and takes the answer.
#[inline]
fn answer_to(
    (now, relay, effects): (Duration, &mut Relay, &mut Vec<Effect>),
    input: Input<'_>,
) -> Answer {
    let first = effects.len();
    relay.apply(now, input, effects);
    take_answer(effects, first)
}

/// The answer to the event just applied, taken out of the effects: its record is at hand only now.
fn take_answer(effects: &mut Vec<Effect>, first: usize) -> Answer {
    let at_hand = |effect: &Effect| matches!(effect, Effect::Publish(_) | Effect::Park { .. });
    let Some(at) = effects.iter().skip(first).position(at_hand) else { return Answer::Nothing };
    match effects.remove(first + at) {
        Effect::Publish(ticket) => Answer::Publish(ticket),
        Effect::Park { ticket: _, entry, reason } => Answer::Park(entry, reason),
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
        | Effect::Halt(_) => Answer::Nothing,
    }
}

fn protocol(error: &pgoutput::DecodeError) -> Halt {
    Halt {
        reason: HaltReason::Protocol,
        message: format!("the server sent a message that can't be read: {error}"),
        meaning: "nothing is lost: the cursor stands before it; skipping it could lose an event"
            .into(),
        hint: "start again; if it comes back, report it with the server's version".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Position;
    use crate::postgres::store::parked::{Again, Fate};

    #[test]
    fn event_expires_unless_it_is_parked_and_comes_again() {
        let again = |id: &str, fate| Again {
            event_id: id.to_owned(),
            position: Position::default(),
            fate,
            xmin: 0,
        };
        let parked = again("parked", Fate::Again { certain: true });
        let returning = Returning::new(vec![parked, again("resolved", Fate::Passes)]);
        let mut tell = Tell::default();
        tell.look_at_the_clock();
        // The beginning of 2000, and the end of time.
        let (past, future) = (PgTime::default(), PgTime { micros: i64::MAX });
        for (id, expires_at, expired) in [
            ("another", Some(past), true),
            ("another", Some(future), false),
            ("another", None, false),
            ("resolved", Some(past), true),
            ("parked", Some(past), false),
        ] {
            assert_eq!(has_expired(&tell, &returning, expires_at, id), expired, "{id}");
        }
    }
}
