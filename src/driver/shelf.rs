//! The records of parked events: those whose rows are not committed yet, and those that are being tried again.
//!
//! The relay decides what is kept, written and tried; this holds the bytes meanwhile. What is kept is bounded by the
//! relay's intake, what is tried by [`fetch`](crate::postgres::parked::fetch) and the number of tries.

use super::halts;
use super::pipeline::Pipeline;
use super::returning::{DOUBT, ID_USED_BEFORE};
use super::say;
use crate::event::{Aggregate, PgTime, Position};
use crate::outbox::{At, Mapped, Poison};
use crate::parked::{Entry, Parked};
use crate::postgres::parked::NotPassed;
use crate::record::{Outcome, OwnedRecord, Refusal, Scope, Ticket, has_empty_part};
use crate::relay::{Effect, Input, OnPoison};
use crate::sink::NotTaken;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a try may wait for its destination before it is put off.
const DESTINATION_PATIENCE: Duration = Duration::from_secs(10);

/// The outcome of an attempt whose topic is missing or takes no records. The reason is a placeholder, which is never
/// reported.
const NO_DESTINATION: Outcome =
    Outcome::Rejected { scope: Scope::Destination, reason: Refusal::TopicName };

/// Characters of an event's type that a row keeps: it is shown, and nothing is found by it. The id is kept whole, since
/// marks, retries and rows of the outbox are found by it.
const TYPE_CHARS_MAX: usize = 400;

/// What the shelf holds.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// Rows to be written, in the relay's order.
    kept: VecDeque<Parked>,
    /// An event that was sent to find out whether the broker takes one of its size. Nothing else is in flight then, so
    /// there is one of them at most.
    large: Option<Large>,
    /// Rows that are being written, before those.
    writing: Arc<Vec<Parked>>,
    /// Tries that the sink has not taken yet.
    tries: VecDeque<Try>,
    /// Failures go into the outbox table itself (polling): only what is sure may become one.
    pub(super) failures_stay: bool,
    /// How long the oldest event has been parked, as the last look had it; `None` where a stream's own looks say so.
    pub(super) oldest: Option<Duration>,
}

/// A large event that is in flight. Where it is refused, its record comes from here.
#[derive(Debug)]
struct Large {
    ticket: Ticket,
    position: Position,
    commit_time: PgTime,
    event_id: String,
    event_type: String,
    aggregate: (String, String),
    record: OwnedRecord,
}

/// One try on its way to the sink.
#[derive(Debug)]
pub(super) struct Try {
    ticket: Ticket,
    position: Position,
    /// `None` until it is read from the table.
    record: Option<OwnedRecord>,
    /// When it was asked for: what was heard of its destination before that refuses nothing, for it may be tried
    /// because somebody has just mended it.
    since: Instant,
    what: What,
}

/// What is wanted of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// To be published.
    Try,
    /// Whether its destination is known.
    Sound,
    /// To go to the dead-letter topic.
    Letter,
}

/// A record that has to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) ticket: Ticket,
    pub(super) position: Position,
    /// As it goes to the dead-letter topic.
    pub(super) letter: bool,
}

impl Shelf {
    /// Nothing that was kept or tried counts any more.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.large = None;
        self.writing = Arc::default();
        self.tries.clear();
    }

    /// The first `count` rows, to be written. What was being written before and was not [`stored`](Self::stored) is
    /// among them again.
    pub(super) fn take_rows(&mut self, count: usize) -> Arc<Vec<Parked>> {
        let before = std::mem::take(&mut self.writing);
        let before = Arc::try_unwrap(before).unwrap_or_else(|shared| shared.as_ref().clone());
        for row in before.into_iter().rev() {
            self.kept.push_front(row);
        }
        assert!(count <= self.kept.len(), "{count} rows to write, {} are kept", self.kept.len());
        self.writing = Arc::new(self.kept.drain(..count).collect());
        Arc::clone(&self.writing)
    }

    /// Those that are being written.
    pub(super) fn rows_being_written(&self) -> Arc<Vec<Parked>> {
        Arc::clone(&self.writing)
    }

    /// Whether new rows are being written, and not marks alone.
    pub(super) fn is_writing_rows(&self) -> bool {
        !self.writing.is_empty()
    }

    /// What was being written is committed; gives the events that have an id.
    pub(super) fn stored(&mut self) -> Vec<Option<NotPassed>> {
        let rows = std::mem::take(&mut self.writing);
        let stored = |row: &Parked| {
            Some(NotPassed {
                position: row.entry.position,
                id: row.event_id.clone()?,
                commit_time: row.commit_time,
                timestamp_ms: row.record.timestamp_ms,
            })
        };
        rows.iter().map(stored).collect()
    }

    pub(super) fn try_again(&mut self, ticket: Ticket, position: Position) {
        self.push_try(ticket, position, What::Try);
    }

    pub(super) fn sound(&mut self, ticket: Ticket, position: Position) {
        self.push_try(ticket, position, What::Sound);
    }

    pub(super) fn send_letter(&mut self, ticket: Ticket, position: Position) {
        self.push_try(ticket, position, What::Letter);
    }

    fn push_try(&mut self, ticket: Ticket, position: Position, what: What) {
        let (record, since) = (None, Instant::now());
        self.tries.push_back(Try { ticket, position, record, since, what });
    }

    /// Whether an event that may not fit its destination is set aside until that is known, and nobody but its aggregate
    /// waits. Where a refusal would end more than a try, everything waits for the destination's answer.
    pub(super) fn takes_doubted(&self, on_poison: OnPoison) -> bool {
        on_poison == OnPoison::BlockKey && !self.failures_stay
    }

    /// Whether tries wait for the sink, or for their records.
    pub(super) fn has_tries(&self) -> bool {
        !self.tries.is_empty()
    }

    /// Whether records have to be read.
    pub(super) fn wants_records(&self) -> bool {
        self.tries.iter().any(|a_try| a_try.record.is_none())
    }

    /// Payloads that were read and wait for the sink.
    pub(super) fn bytes_to_try(&self) -> usize {
        let records = self.tries.iter().filter_map(|a_try| a_try.record.as_ref());
        records.filter_map(|record| record.value.as_ref()).map(Vec::len).sum()
    }

    /// The records that have to be read.
    pub(super) fn missing(&self) -> Vec<Wanted> {
        let missing = self.tries.iter().filter(|a_try| a_try.record.is_none());
        missing
            .map(|&Try { ticket, position, what, .. }| {
                let letter = what == What::Letter;
                Wanted { ticket, position, letter }
            })
            .collect()
    }
}

impl Shelf {
    /// Keeps the record of a large event until the broker has answered.
    pub(super) fn keep_large(&mut self, ticket: Ticket, mapped: &Mapped<'_>, at: At) {
        let Aggregate { kind, id } = mapped.aggregate;
        self.large = Some(Large {
            ticket,
            position: at.position,
            commit_time: at.commit_time,
            event_id: mapped.event_id.to_owned(),
            event_type: mapped.event_type.to_owned(),
            aggregate: (kind.to_owned(), id.to_owned()),
            record: OwnedRecord::of(&mapped.record()),
        });
    }

    /// Keeps the record of an event that is set aside although nothing is wrong with it.
    pub(super) fn keep(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) {
        self.kept.push_back(parked(entry, mapped, at.commit_time));
    }

    /// Keeps the record of an event that the sink will not take, or, without a reason, whose destination takes none.
    pub(super) fn keep_refused(
        &mut self,
        entry: Entry,
        mapped: &Mapped<'_>,
        at: At,
        reason: Option<Refusal>,
    ) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(reason.map_or("destination", Refusal::code));
        let unavailable =
            || "the topic takes no records: it is missing, or not open to us".to_owned();
        row.error = Some(reason.map_or_else(unavailable, |reason| reason.to_string()));
        push(&mut self.kept, row)
    }

    /// Keeps the record of an event that the sink did not take, because its topic does not exist (`missing`), or for
    /// the reason `refused`.
    pub(super) fn keep_unsent(
        &mut self,
        entry: Entry,
        mapped: &Mapped<'_>,
        at: At,
        (missing, refused): (bool, Option<Refusal>),
    ) -> &Parked {
        if missing {
            self.keep_missing(entry, mapped, at)
        } else {
            self.keep_refused(entry, mapped, at, refused)
        }
    }

    /// Keeps the record of an event whose topic nobody has made.
    fn keep_missing(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some("topic_missing");
        row.error = Some(
            if has_empty_part(mapped.record().topic) {
                "the topic does not exist, or Postrider's user may not write to it; a part of its name is empty: a \
                 field of route.topic is empty in this row"
            } else {
                "the topic does not exist, or Postrider's user may not write to it: the event is published \
                 automatically once the topic accepts records"
            }
            .to_owned(),
        );
        push(&mut self.kept, row)
    }

    /// Keeps the record of an event that may be another one than its id says.
    pub(super) fn keep_doubted(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(ID_USED_BEFORE);
        row.error = Some(DOUBT.to_owned());
        push(&mut self.kept, row)
    }

    /// Keeps what is known of an event that can't be made a record.
    pub(super) fn keep_poison(
        &mut self,
        entry: Entry,
        poison: &Poison,
        commit_time: PgTime,
    ) -> &Parked {
        push(
            &mut self.kept,
            Parked {
                entry,
                commit_time,
                event_id: poison.remains.event_id.clone(),
                event_type: poison.remains.event_type.as_deref().map(short),
                aggregate: poison.remains.aggregate.clone(),
                record: poison.remains.record.clone(),
                error_code: Some(poison.problem.code()),
                error: Some(poison.problem.to_string()),
            },
        )
    }
}

impl Pipeline {
    /// Hands the relay what became of an event. A large one that the broker has refused is parked now, and all that is
    /// behind it goes on.
    pub(super) fn reported(&mut self, now: Duration, ticket: Ticket, outcome: Outcome) {
        let large = self.shelf.large.take_if(|large| large.ticket == ticket);
        match (large, outcome) {
            (
                Some(large),
                Outcome::Rejected {
                    scope: Scope::Event,
                    reason: reason @ Refusal::TooLargeCompressed { .. },
                },
            ) => self.large_refused(now, large, reason),
            (_, outcome) => self.apply(now, Input::Report { ticket, outcome }),
        }
    }

    fn large_refused(&mut self, now: Duration, large: Large, reason: Refusal) {
        let named = (large.record.topic.as_str(), large.event_id.as_str());
        let halt = Box::new(halts::refused_event(named, large.position, reason));
        self.metrics.failed(&large.event_type);
        self.marking.not_published(large.ticket);
        let first = self.effects.len();
        let refused = Input::Refused { ticket: large.ticket, reason, halt };
        self.relay.apply(now, refused, &mut self.effects);
        let parked = |effect: &Effect| matches!(effect, Effect::Park { .. });
        let Some(at) = self.effects.iter().skip(first).position(parked) else { return };
        if let Effect::Park { ticket: _, entry, reason: _ } = self.effects.remove(first + at) {
            let row = Parked {
                entry,
                commit_time: large.commit_time,
                event_id: Some(large.event_id),
                event_type: Some(short(&large.event_type)),
                aggregate: Some(large.aggregate),
                record: large.record,
                error_code: Some(reason.code()),
                error: Some(reason.to_string()),
            };
            self.tell.parked_total += 1;
            say::parked(&mut self.tell, &self.spec, push(&mut self.shelf.kept, row));
        }
    }

    /// Takes the records that were read for tries; `asked` are all that were asked for.
    pub(super) fn fetched(&mut self, asked: &[Wanted], found: Vec<(Ticket, OwnedRecord)>) {
        for (ticket, record) in found {
            let wanted = self.shelf.tries.iter_mut().find(|a_try| a_try.ticket == ticket);
            if let Some(a_try) = wanted {
                a_try.record = Some(record);
            }
        }
        let asked: HashSet<Ticket> = asked.iter().map(|wanted| wanted.ticket).collect();
        let gone = |a_try: &&Try| a_try.record.is_none() && asked.contains(&a_try.ticket);
        let gone: Vec<Ticket> =
            self.shelf.tries.iter().filter(gone).map(|a_try| a_try.ticket).collect();
        self.shelf.tries.retain(|a_try| !gone.contains(&a_try.ticket));
        for ticket in gone {
            self.apply(self.now(), Input::Gone { ticket });
        }
    }

    /// Offers the sink what is to be tried. One answer of the broker about a destination decides all that waited for
    /// it.
    pub(super) fn offer_tries(&mut self, now: Duration) {
        let mut tries = std::mem::take(&mut self.shelf.tries);
        tries.retain(|a_try| {
            let Some(record) = &a_try.record else { return true };
            let (ticket, since) = (a_try.ticket, a_try.since);
            let sounds = a_try.what == What::Sound;
            let answer = if sounds {
                self.sink.sound(&record.topic, since)
            } else {
                record.lend(|record| match self.sink.enqueue_again(ticket, record, since) {
                    // Nothing of its aggregate is in flight, and what is behind it waits.
                    Err(NotTaken::Alone) => self.sink.enqueue_alone(ticket, record, Some(since)),
                    taken => taken,
                })
            };
            let outcome = match answer {
                Ok(()) if sounds => {
                    self.apply(now, Input::Sounded { ticket });
                    return false;
                }
                Ok(()) => {
                    self.destinations.took(&record.topic);
                    return false;
                }
                Err(NotTaken::Full | NotTaken::Alone) => return true,
                Err(NotTaken::Destination | NotTaken::Doubted(_))
                    if since.elapsed() < DESTINATION_PATIENCE =>
                {
                    return true;
                }
                Err(NotTaken::Destination | NotTaken::Doubted(_) | NotTaken::Missing) => {
                    NO_DESTINATION
                }
                Err(NotTaken::Unavailable) => {
                    if a_try.what != What::Letter {
                        self.destinations.lost(&record.topic, now);
                    }
                    NO_DESTINATION
                }
                Err(NotTaken::Refused(reason)) => Outcome::Rejected { scope: Scope::Event, reason },
            };
            self.apply(now, Input::Report { ticket, outcome });
            false
        });
        // What the relay has asked for meanwhile stands behind.
        tries.append(&mut self.shelf.tries);
        self.shelf.tries = tries;
    }
}

fn parked(entry: Entry, mapped: &Mapped<'_>, commit_time: PgTime) -> Parked {
    Parked {
        entry,
        commit_time,
        event_id: Some(mapped.event_id.to_owned()),
        event_type: Some(short(mapped.event_type)),
        aggregate: Some((mapped.aggregate.kind.to_owned(), mapped.aggregate.id.to_owned())),
        record: OwnedRecord::of(&mapped.record()),
        error_code: None,
        error: None,
    }
}

fn push(kept: &mut VecDeque<Parked>, row: Parked) -> &Parked {
    kept.push_back(row);
    kept.back().unwrap_or_else(|| unreachable!("it was pushed"))
}

fn short(name: &str) -> String {
    name.chars().take(TYPE_CHARS_MAX).collect()
}
