//! The hot path: changes of the source, one by one, through mapper and relay into the sink.
//!
//! This module allocates nothing for an event that is published and never waits. If the intake is closed or the sink is
//! busy, it keeps the place in the batch and continues there; the batch stays in the buffer in which it was read.

use super::halts;
use super::mode::Mode;
use super::observer::Observer;
use super::record_buffer::RecordBuffer;
use super::sink_port::{Sent, SinkPort};
use super::spec::CommonSpec;
use crate::engine::{Answer, Engine, NextChange, Offered, PoisonAnswer, SentRow, SetAside};
use crate::error::Halt;
use crate::event::Aggregate;
use crate::outbox::{At, MapError, Mapped, Mapper};
use crate::postgres::poll::ROW_BYTES_MAX;
use crate::publications::PublicationsWriter;
use crate::relay::{Change, Input, OnPoison};
use crate::row::Row;
use crate::sink::NotTaken;
use crate::source::{self, Message};
use crate::timestamp::Timestamp;
use std::time::Duration;

/// Changes fed before the loop handles other inputs. At about 1 µs a change: 2 ms.
pub(super) const CHANGES_MAX: usize = 2048;

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

/// The parts of a pipeline that an event passes through.
pub(super) struct Feeder<'a> {
    /// What the pipeline is configured with.
    pub(super) spec: &'a CommonSpec,
    /// Decides what becomes of each event.
    pub(super) engine: &'a mut Engine,
    /// Makes events of rows and logical messages.
    pub(super) mapper: &'a mut Mapper,
    /// Where records are published.
    pub(super) sink: &'a mut SinkPort,
    /// Records of parked events.
    pub(super) records: &'a mut RecordBuffer,
    /// Counters and log.
    pub(super) observer: &'a mut Observer,
    /// Where the newest events were published, locked for as long as this feeds.
    pub(super) publications: PublicationsWriter<'a>,
}

impl Feeder<'_> {
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
            if self.engine.relay().stopping() || self.engine.ending() {
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
                    let halt = halts::unreadable(&error, self.spec.mode);
                    self.engine.apply(now, Input::Halt(Box::new(halt)));
                    FeedStep::Stay
                }
            };
            let stopped = match step {
                FeedStep::Next => continue,
                FeedStep::Stay => Fed::Waiting,
                FeedStep::Blocked => Fed::Blocked,
            };
            self.observer.hold(self.engine.relay().upcoming().map(|next| next.commit_time));
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
        let Some(next) = self.engine.relay().upcoming() else {
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
                self.engine.begin(now, *commit, *time, *transaction);
                return FeedStep::Next;
            }
            source::Change::Commit { commit, end, time: _ } => {
                Input::Commit { commit: *commit, end: *end }
            }
            source::Change::Table(table) => {
                if let Err(error) = self.mapper.table(table) {
                    let halt = halts::unfit_table(&error, self.spec.mode);
                    self.engine.apply(now, Input::Halt(Box::new(halt)));
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
                self.observer.skipped().not_transactional +=
                    u64::from(self.mapper.has_prefix(message));
                return FeedStep::Next;
            }
            source::Change::Updated(row) => match self.halts_at(row) {
                // After a reconnect changes that were resolved before are repeated; such an update was skipped then.
                Some(halt) if self.engine.relay().upcoming().is_some() => {
                    self.engine.apply(now, Input::Halt(halt));
                    return FeedStep::Stay;
                }
                Some(_) | None => Input::Change(Change::Skipped),
            },
            source::Change::Collected => return self.collected(now),
            source::Change::Other => Input::Change(Change::Skipped),
            source::Change::Heartbeat(upto) => Input::Keepalive { upto: *upto },
            source::Change::Nothing => return FeedStep::Next,
            source::Change::Blocked => return FeedStep::Blocked,
        };
        if matches!(input, Input::Change(_)) {
            if self.engine.next_change() == NextChange::Wait {
                return FeedStep::Stay;
            }
            self.observer.skipped().not_inserts += 1;
        }
        self.engine.apply(now, input);
        FeedStep::Next
    }

    /// A change that a later event has in it: it is no event, and not skipped.
    fn collected(&mut self, now: Duration) -> FeedStep {
        if self.engine.next_change() == NextChange::Wait {
            return FeedStep::Stay;
        }
        self.engine.apply(now, Input::Change(Change::Skipped));
        FeedStep::Next
    }

    /// The halt because of an UPDATE, if the configuration asks for one.
    fn halts_at(&self, row: &Row<'_>) -> Option<Box<Halt>> {
        match self.mapper.halting_update(row) {
            Ok(id) => {
                let at = self.engine.relay().upcoming().map(|next| next.position);
                let (table, mode) = (self.spec.table(), self.spec.mode);
                id.map(|id| Box::new(halts::updated_row(&table, id.as_deref(), at, mode)))
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

    /// A change that may be an event: maps it, offers it to the engine, and passes it to the sink if the engine says
    /// so.
    fn change(&mut self, now: Duration, change: &Candidate<'_>) -> FeedStep {
        let at = match self.engine.next_change() {
            NextChange::Wait => return FeedStep::Stay,
            NextChange::New(next) => At { position: next.position, commit_time: next.commit_time },
            NextChange::Repeated => return self.skip(now),
        };
        let mut mapped = match map(self.mapper, change, at) {
            Ok(Some(mapped)) => mapped,
            Ok(None) => return self.skip_other(now, change),
            Err(error) => return self.not_mapped(now, at, error),
        };
        if self.engine.relay().is_overtaken(at.position) {
            mapped.remove_position();
        }
        let record = mapped.record();
        let size_bytes = record.held_bytes(self.sink.held_bytes());
        let event = offered(&mapped, at, size_bytes, self.observer.wall());
        let spec = self.spec;
        let doubted = || Box::new(halts::doubted_event(event.id, at.position, spec.mode));
        let ticket = match self.engine.offer(now, &event, doubted) {
            Answer::Publish(ticket) => ticket,
            Answer::Wait => return FeedStep::Stay,
            other @ (Answer::Park(..)
            | Answer::Expired
            | Answer::Repeated
            | Answer::Doubted(_)
            | Answer::Nothing) => {
                let keeper = (&mut *self.records, &mut *self.observer);
                not_sent(keeper, other, (&mapped, at));
                return FeedStep::Next;
            }
        };
        let relay = self.engine.relay();
        let not_taken = match self.sink.enqueue(ticket, &record, || relay.sends_exclusively()) {
            Ok(sent) => {
                let named = (at.position, event.id, event.aggregate);
                self.publications.sent(ticket, named, record.topic);
                self.engine.taken(
                    ticket,
                    &event,
                    sent_row(change, &mapped, record.timestamp_ms, at),
                );
                // The broker may refuse a large event: its record is kept until its report.
                if sent == Sent::Large {
                    self.records.keep_large(ticket, &mapped, at);
                }
                return FeedStep::Next;
            }
            Err(not_taken) => not_taken,
        };
        let missing = not_taken == NotTaken::Missing;
        let may_park = missing && self.spec.parking.on_poison != OnPoison::Stop;
        let lost = || self.sink.parks(record.topic, may_park, now);
        let named = (record.topic, event.id);
        let rules = (&*spec.sink, spec.mode);
        let halt = |reason| Box::new(halts::refused_event(rules, named, at.position, reason));
        match self.engine.not_taken(now, (ticket, event.id), not_taken, lost, halt) {
            None => {
                self.sink.awaits(nowhere(not_taken).then_some(record.topic));
                FeedStep::Stay
            }
            Some(aside) => {
                self.sink.awaits(None);
                let keeper = (&mut *self.records, &mut *self.observer);
                park_unsent(keeper, aside, (&mapped, at), missing);
                FeedStep::Next
            }
        }
    }

    /// A row of another table, or a message with another prefix.
    fn skip_other(&mut self, now: Duration, change: &Candidate<'_>) -> FeedStep {
        if let Some(halt) = self.halts_before_outbox(change) {
            self.engine.apply(now, Input::Halt(halt));
            return FeedStep::Stay;
        }
        self.observer.skipped().others += 1;
        self.skip(now)
    }

    fn skip(&mut self, now: Duration) -> FeedStep {
        self.engine.skip(now);
        FeedStep::Next
    }

    fn not_mapped(&mut self, now: Duration, at: At, error: MapError) -> FeedStep {
        match error {
            MapError::Poison(poison) => {
                let partial = &poison.partial;
                let event = (at.position, partial.event_id.as_deref().unwrap_or_default());
                let aggregate = partial.aggregate.as_ref();
                let aggregate = aggregate.map(|(kind, id)| Aggregate { kind, id });
                let (mode, polling) = (self.spec.mode, self.observer.is_polling());
                let halt = || Box::new(halts::poison_event(&poison, mode, polling));
                match self.engine.poison(now, event, aggregate, halt) {
                    PoisonAnswer::Repeated => self.observer.skipped().repeated += 1,
                    PoisonAnswer::New(entry) => {
                        self.observer.failed(partial.event_type.as_deref().unwrap_or_default());
                        if let Some(entry) = entry {
                            let row = self.records.keep_poison(entry, &poison, at.commit_time);
                            self.observer.parked();
                            self.observer.failure_parked(row);
                        }
                    }
                }
                FeedStep::Next
            }
            MapError::Unfit(_) | MapError::Inconsistent { .. } => {
                self.engine
                    .apply(now, Input::Halt(Box::new(halts::unfit_table(&error, self.spec.mode))));
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

/// The event as it is offered to the engine. `wall`: the clock of this host.
#[inline]
fn offered<'a>(mapped: &Mapped<'a>, at: At, size_bytes: usize, wall: Timestamp) -> Offered<'a> {
    Offered {
        position: at.position,
        id: mapped.event_id,
        aggregate: mapped.aggregate,
        size_bytes,
        available_at: mapped.available_at,
        expires_at: mapped.expires_at,
        wall,
    }
}

/// What the driver has to do about an event that is not passed to the sink.
fn not_sent(
    (records, observer): (&mut RecordBuffer, &mut Observer),
    answer: Answer,
    (mapped, at): (&Mapped<'_>, At),
) {
    match answer {
        // Parked before it is sent: behind another event, for later, or because a broker has refused it.
        Answer::Park(entry, None) => {
            observer.parked();
            records.keep(*entry, mapped, at);
        }
        Answer::Park(entry, refused) => {
            observer.parked();
            observer.failed(mapped.event_type);
            let row = records.keep_refused(*entry, mapped, at, refused);
            observer.failure_parked(row);
        }
        Answer::Expired => observer.expired(at.position, mapped.event_id),
        Answer::Repeated => observer.skipped().repeated += 1,
        Answer::Doubted(entry) => {
            observer.failed(mapped.event_type);
            if let Some(entry) = entry {
                observer.parked();
                let row = records.keep_doubted(*entry, mapped, at);
                observer.failure_parked(row);
            }
        }
        Answer::Publish(_) | Answer::Wait | Answer::Nothing => {}
    }
}

/// Keeps the record of an event that the sink did not accept, if the relay parks it.
fn park_unsent(
    (records, observer): (&mut RecordBuffer, &mut Observer),
    SetAside { entry, refused }: SetAside,
    (mapped, at): (&Mapped<'_>, At),
    missing: bool,
) {
    if refused.is_some() {
        observer.failed(mapped.event_type);
    }
    let Some(entry) = entry else { return };
    observer.parked();
    let row = records.keep_unsent(entry, mapped, at, (missing, refused));
    if missing || refused.is_some() {
        observer.failure_parked(row);
    }
}

/// The times of an event that comes from a row; `None` for a message.
fn sent_row(
    change: &Candidate<'_>,
    mapped: &Mapped<'_>,
    timestamp_ms: Option<i64>,
    at: At,
) -> Option<SentRow> {
    let time_ms = timestamp_ms.filter(|_| !mapped.clamped);
    let row = SentRow { commit_time: at.commit_time, time_ms };
    matches!(change, Candidate::Row(_)).then_some(row)
}

/// Whether a record waits only for its destination.
fn nowhere(not_taken: NotTaken) -> bool {
    matches!(not_taken, NotTaken::Destination | NotTaken::Unavailable | NotTaken::Missing)
}
