//! The records of parked events: those whose rows are not committed yet, and those that are being retried.

use super::halts::DOUBT;
use crate::event::{Aggregate, Position};
use crate::outbox::{At, Mapped, Poison};
use crate::outbox_rows::AheadOfCursor;
use crate::parked::{Entry, Lane, Parked};
use crate::record::{OwnedRecord, Refusal, Ticket, has_empty_part};
use crate::timestamp::Timestamp;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Characters of an event's type that a row keeps; the type is only shown. The ID is kept whole, because marks, retries
/// and rows of the outbox table are found by it.
const TYPE_CHARS_MAX: usize = 400;

/// `error_code` of a row that is parked because a parked event has the same ID, and it is not known whether they are
/// the same event.
const ID_USED_BEFORE: &str = "id_used_before";

/// The records of parked events: those whose rows are not committed yet, and those that are being retried. The relay
/// decides which records are kept, written and retried. The kept ones are limited by the relay's intake, the retried
/// ones by [`fetch`](crate::postgres::store::parked::fetch) and by the number of attempts.
#[derive(Debug, Default)]
pub(super) struct RecordBuffer {
    /// Rows to be written, in the relay's order.
    kept: VecDeque<Parked>,
    /// An event that was sent to find out whether the broker accepts one of its size. Nothing else is in flight then,
    /// so there is at most one.
    large: Option<LargeInFlight>,
    /// Rows that are being written; they come before `kept`.
    writing: Arc<Vec<Parked>>,
    /// Attempts that the sink has not accepted yet.
    attempts: VecDeque<PendingAttempt>,
    /// How long the oldest event has been parked, by the last query; `None` while a slot monitor queries that.
    oldest: Option<Duration>,
}

/// A large event in flight. If the broker refuses it, its record is taken from here.
#[derive(Debug)]
pub(super) struct LargeInFlight {
    /// Its ticket.
    pub(super) ticket: Ticket,
    /// Its position.
    pub(super) position: Position,
    /// Its commit time.
    commit_time: Timestamp,
    /// Its ID.
    pub(super) event_id: String,
    /// Its type.
    pub(super) event_type: String,
    /// Type and ID of its aggregate.
    aggregate: (String, String),
    /// Its record.
    pub(super) record: OwnedRecord,
}

/// An attempt that is not passed to the sink yet.
#[derive(Debug)]
pub(super) struct PendingAttempt {
    /// Its ticket.
    pub(super) ticket: Ticket,
    /// Position of the parked event.
    position: Position,
    /// `None` until it is read from the table.
    pub(super) record: Option<OwnedRecord>,
    /// When the attempt was requested. Earlier answers about its destination do not count, because the attempt may have
    /// been requested after the destination was fixed.
    pub(super) since: std::time::Instant,
    /// What the attempt is for.
    pub(super) purpose: AttemptPurpose,
}

/// The purpose of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AttemptPurpose {
    /// Publish the event.
    Publish,
    /// Find out whether its destination exists.
    Probe,
    /// Send the event to the dead-letter topic.
    DeadLetter,
}

/// A record that has to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRecord {
    /// Ticket of the attempt.
    pub(super) ticket: Ticket,
    /// Position of the parked event.
    pub(super) position: Position,
    /// Read the record as it goes to the dead-letter topic.
    pub(super) dead_letter: bool,
}

impl RecordBuffer {
    /// Discards everything that is kept or pending.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.large = None;
        self.writing = Arc::default();
        self.attempts.clear();
    }

    /// Takes the first `count` rows, to be written. Rows of an earlier write that were not [`stored`](Self::stored) are
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

    /// The rows that are being written.
    pub(super) fn rows_being_written(&self) -> Arc<Vec<Parked>> {
        Arc::clone(&self.writing)
    }

    /// Whether new rows are being written, and not only status changes.
    pub(super) fn is_writing_rows(&self) -> bool {
        !self.writing.is_empty()
    }

    /// The rows that were being written are committed; returns the events that have an ID.
    pub(super) fn stored(&mut self) -> Vec<Option<AheadOfCursor>> {
        let rows = std::mem::take(&mut self.writing);
        let stored = |row: &Parked| {
            let lane = |(kind, id): &(String, String)| Lane::of(Aggregate { kind, id });
            Some(AheadOfCursor {
                position: row.entry.position,
                lane: row.aggregate.as_ref().map(lane),
                id: row.event_id.clone()?,
                commit_time: row.commit_time,
                timestamp_ms: row.record.timestamp_ms,
            })
        };
        rows.iter().map(stored).collect()
    }

    pub(super) fn add_attempt(&mut self, ticket: Ticket, position: Position) {
        self.push(ticket, position, AttemptPurpose::Publish);
    }

    pub(super) fn add_probe(&mut self, ticket: Ticket, position: Position) {
        self.push(ticket, position, AttemptPurpose::Probe);
    }

    pub(super) fn add_dead_letter(&mut self, ticket: Ticket, position: Position) {
        self.push(ticket, position, AttemptPurpose::DeadLetter);
    }

    fn push(&mut self, ticket: Ticket, position: Position, purpose: AttemptPurpose) {
        let (record, since) = (None, std::time::Instant::now());
        self.attempts.push_back(PendingAttempt { ticket, position, record, since, purpose });
    }

    /// Whether attempts wait for the sink, or for their records.
    pub(super) fn has_attempts(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// Whether records have to be read.
    pub(super) fn wants_records(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.record.is_none())
    }

    /// Bytes of payloads that were read and wait for the sink.
    pub(super) fn bytes_pending(&self) -> usize {
        let records = self.attempts.iter().filter_map(|attempt| attempt.record.as_ref());
        records.filter_map(|record| record.value.as_ref()).map(Vec::len).sum()
    }

    /// The records that have to be read.
    pub(super) fn missing(&self) -> Vec<WantedRecord> {
        let missing = self.attempts.iter().filter(|attempt| attempt.record.is_none());
        missing
            .map(|&PendingAttempt { ticket, position, purpose, .. }| {
                let dead_letter = purpose == AttemptPurpose::DeadLetter;
                WantedRecord { ticket, position, dead_letter }
            })
            .collect()
    }

    /// The attempts that the sink has not accepted yet. Those that still wait come back by [`Self::put_back`].
    pub(super) fn take_attempts(&mut self) -> VecDeque<PendingAttempt> {
        std::mem::take(&mut self.attempts)
    }

    /// Attempts that still wait. What was added meanwhile comes after them.
    pub(super) fn put_back(&mut self, mut attempts: VecDeque<PendingAttempt>) {
        attempts.append(&mut self.attempts);
        self.attempts = attempts;
    }

    /// Takes records that were read for attempts; `requested` are all that were requested. Returns the attempts whose
    /// rows do not exist any more.
    pub(super) fn fetched(
        &mut self,
        requested: &[WantedRecord],
        found: Vec<(Ticket, OwnedRecord)>,
    ) -> Vec<Ticket> {
        for (ticket, record) in found {
            let wanted = self.attempts.iter_mut().find(|attempt| attempt.ticket == ticket);
            if let Some(attempt) = wanted {
                attempt.record = Some(record);
            }
        }
        let requested: HashSet<Ticket> = requested.iter().map(|wanted| wanted.ticket).collect();
        let gone = |attempt: &&PendingAttempt| {
            attempt.record.is_none() && requested.contains(&attempt.ticket)
        };
        let gone: Vec<Ticket> =
            self.attempts.iter().filter(gone).map(|attempt| attempt.ticket).collect();
        self.attempts.retain(|attempt| !gone.contains(&attempt.ticket));
        gone
    }

    /// How long the oldest event has been parked, by the last query; `None` while a slot monitor queries that.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.oldest
    }

    /// The result of a query: how long the oldest event has been parked.
    pub(super) fn set_oldest(&mut self, oldest: Option<Duration>) {
        self.oldest = oldest;
    }

    /// The large event in flight with this ticket. It is not kept any longer.
    #[inline]
    pub(super) fn take_large(&mut self, ticket: Ticket) -> Option<LargeInFlight> {
        self.large.take_if(|large| large.ticket == ticket)
    }

    /// Keeps the record of a large event that the broker has refused.
    pub(super) fn keep_large_refused(
        &mut self,
        entry: Entry,
        large: LargeInFlight,
        reason: Refusal,
    ) -> &Parked {
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
        push(&mut self.kept, row)
    }

    /// Keeps the record of a large event until the broker has answered.
    pub(super) fn keep_large(&mut self, ticket: Ticket, mapped: &Mapped<'_>, at: At) {
        let Aggregate { kind, id } = mapped.aggregate;
        self.large = Some(LargeInFlight {
            ticket,
            position: at.position,
            commit_time: at.commit_time,
            event_id: mapped.event_id.to_owned(),
            event_type: mapped.event_type.to_owned(),
            aggregate: (kind.to_owned(), id.to_owned()),
            record: OwnedRecord::of(&mapped.record()),
        });
    }

    /// Keeps the record of an event that is parked although it was not refused.
    pub(super) fn keep(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) {
        self.kept.push_back(parked(entry, mapped, at.commit_time));
    }

    /// Keeps the record of an event that the sink refuses, or, without a reason, whose destination accepts no records.
    pub(super) fn keep_refused(
        &mut self,
        entry: Entry,
        mapped: &Mapped<'_>,
        at: At,
        reason: Option<Refusal>,
    ) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(reason.map_or("destination", Refusal::code));
        let unavailable = || {
            "the topic accepts no records: it does not exist, or Postrider's user may not write to it".to_owned()
        };
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

    /// Keeps the record of an event whose topic does not exist.
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

    /// Keeps the record of an event that may be another one than the parked event with its ID.
    pub(super) fn keep_doubted(&mut self, entry: Entry, mapped: &Mapped<'_>, at: At) -> &Parked {
        let mut row = parked(entry, mapped, at.commit_time);
        row.error_code = Some(ID_USED_BEFORE);
        row.error = Some(DOUBT.to_owned());
        push(&mut self.kept, row)
    }

    /// Keeps what is known of an event of which no record can be made.
    pub(super) fn keep_poison(
        &mut self,
        entry: Entry,
        poison: &Poison,
        commit_time: Timestamp,
    ) -> &Parked {
        push(
            &mut self.kept,
            Parked {
                entry,
                commit_time,
                event_id: poison.partial.event_id.clone(),
                event_type: poison.partial.event_type.as_deref().map(short),
                aggregate: poison.partial.aggregate.clone(),
                record: poison.partial.record.clone(),
                error_code: Some(poison.problem.code()),
                error: Some(poison.problem.to_string()),
            },
        )
    }
}

fn parked(entry: Entry, mapped: &Mapped<'_>, commit_time: Timestamp) -> Parked {
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

/// The row as it is parked beside the event that has its ID, for a person to decide. Another error of the row is kept
/// in the text, even that it was not read because of its size: such a row has no topic, so that it can only be skipped.
pub(super) fn undecided(row: &Parked, entry: Entry) -> Parked {
    let other = row.error.as_deref().filter(|_| row.error_code != Some(ID_USED_BEFORE));
    let error = other.map_or_else(|| DOUBT.to_owned(), |other| format!("{DOUBT}; {other}"));
    Parked { entry, error_code: Some(ID_USED_BEFORE), error: Some(error), ..row.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Position;
    use crate::parked::State;
    use crate::record::OwnedRecord;
    use crate::timestamp::Timestamp;
    use std::time::Duration;

    #[test]
    fn doubted_row_has_the_error_code_of_the_doubt_whatever_other_error_it_has() {
        let entry = Entry {
            position: Position::default(),
            lane: None,
            state: State::Dead,
            attempts: 0,
            wait: Duration::ZERO,
            overtaken_by: None,
            xid: None,
        };
        for code in ["row_too_large", "too_large"] {
            let parked = Parked {
                entry: Entry { state: State::Due, ..entry },
                commit_time: Timestamp::default(),
                event_id: Some("a".to_owned()),
                event_type: None,
                aggregate: None,
                record: OwnedRecord::default(),
                error_code: Some(code),
                error: Some("a value is too large".to_owned()),
            };
            let undecided = undecided(&parked, entry);
            assert_eq!((undecided.error_code, undecided.entry), (Some(ID_USED_BEFORE), entry));
            assert_eq!(undecided.error, Some(format!("{DOUBT}; a value is too large")));
        }
    }
}
