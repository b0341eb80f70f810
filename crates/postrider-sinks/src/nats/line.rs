//! The records between the queue and the stream, in their order: those in flight, and those behind them.

use super::api::ApiError;
use super::message;
use super::problem::NatsProblem;
use super::spec::ChainMode;
use crate::record_batch::{QueuedRecord, RecordBatch};
use postrider_core::record::Ticket;
use std::collections::{HashSet, VecDeque};
use std::time::Instant;

/// What became of a message in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// No answer yet.
    Unanswered,
    /// Acknowledged, and not reported yet.
    Stored,
    /// Reported.
    Done,
    /// Refused.
    Refused(ApiError),
}

/// A message that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RefusedMessage {
    pub(super) ticket: Ticket,
    /// It is that of a parked event.
    pub(super) is_retry: bool,
    pub(super) topic: String,
    pub(super) error: ApiError,
}

/// A message in flight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ChainedMessage {
    pub(super) ticket: Ticket,
    /// Destination, and without any chain the key.
    pub(super) order: u64,
    /// The sequence of the last message before it, in the stream or of its subject.
    pub(super) after: u64,
    pub(super) at: Instant,
    pub(super) fate: Fate,
}

/// Batches in their order; some records of the first one may be settled.
#[derive(Debug, Default)]
pub(super) struct SendLine {
    batches: VecDeque<RecordBatch>,
    /// Settled records of the first batch.
    settled: usize,
    /// The next record to send: its batch, and its place there.
    next: (usize, usize),
    sent: VecDeque<ChainedMessage>,
    /// The number of the first message in flight.
    first: u64,
    /// Records that were acknowledged before a record in front of them, and are not sent again. Only without a chain of
    /// the stream.
    done: HashSet<Ticket>,
    /// Orders in flight. Only without a chain of the stream.
    busy: HashSet<u64>,
}

impl SendLine {
    pub(super) fn push(&mut self, batch: RecordBatch) {
        if !batch.is_empty() {
            self.batches.push_back(batch);
        }
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Messages in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.sent.len()
    }

    /// When the oldest message without an answer was sent.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.sent.iter().find(|sent| sent.fate == Fate::Unanswered).map(|sent| sent.at)
    }

    /// Whether every message in flight is answered.
    pub(super) fn is_answered(&self) -> bool {
        self.sent.iter().all(|sent| sent.fate != Fate::Unanswered)
    }

    /// The number that the next message gets.
    pub(super) fn number(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// The next record to send.
    pub(super) fn next(&self) -> Option<QueuedRecord<'_>> {
        let (batch, place) = self.next;
        self.batches.get(batch).map(|batch| batch.get(place))
    }

    /// Whether the next record may be sent, before those in front of it are answered.
    pub(super) fn may_send(&self, chain: ChainMode, record: &QueuedRecord<'_>) -> bool {
        message::is_chained(chain) || !self.busy.contains(&message::order(record, chain))
    }

    /// The next record is in flight, or needs not to be sent.
    pub(super) fn sent(&mut self, chain: ChainMode, after: u64, at: Instant) {
        let Some(record) = self.next() else { return };
        let (ticket, order) = (record.ticket, message::order(&record, chain));
        let fate = if self.done.remove(&ticket) { Fate::Done } else { Fate::Unanswered };
        if !message::is_chained(chain) && fate == Fate::Unanswered {
            self.busy.insert(order);
        }
        self.sent.push_back(ChainedMessage { ticket, order, after, at, fate });
        let (batch, place) = self.next;
        let is_last = self.batches.get(batch).is_none_or(|batch| place + 1 >= batch.len());
        self.next = if is_last { (batch + 1, 0) } else { (batch, place + 1) };
    }

    /// Whether the next record was acknowledged before.
    pub(super) fn next_is_done(&self) -> bool {
        self.next().is_some_and(|record| self.done.contains(&record.ticket))
    }

    /// The answer to a message. Those to messages that are not in flight any more have no effect.
    pub(super) fn answered(&mut self, number: u64, fate: Fate) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(sent) = at.and_then(|at| self.sent.get_mut(at)) else { return };
        if sent.fate == Fate::Unanswered {
            if fate == Fate::Stored {
                self.busy.remove(&sent.order);
            }
            sent.fate = fate;
        }
    }

    /// The first refused message.
    pub(super) fn refused(&self) -> Option<RefusedMessage> {
        let refused = |sent: &ChainedMessage| matches!(sent.fate, Fate::Refused(_));
        let at = self.sent.iter().position(refused)?;
        let record = self.records().nth(at)?;
        let (topic, is_retry) = (record.topic.to_owned(), record.is_retry);
        let sent = self.sent.get(at)?;
        match &sent.fate {
            Fate::Refused(error) => {
                Some(RefusedMessage { ticket: sent.ticket, is_retry, topic, error: error.clone() })
            }
            Fate::Unanswered | Fate::Stored | Fate::Done => None,
        }
    }

    /// The first refused message is reported, and is not sent again.
    pub(super) fn leave_out(&mut self) {
        let refused = self.sent.iter_mut().find(|sent| matches!(sent.fate, Fate::Refused(_)));
        if let Some(sent) = refused {
            self.busy.remove(&sent.order);
            sent.fate = Fate::Done;
        }
    }

    /// The records from the first one that is not settled.
    pub(super) fn records(&self) -> impl Iterator<Item = QueuedRecord<'_>> {
        self.batches.iter().flat_map(RecordBatch::iter).skip(self.settled)
    }

    /// The messages in flight, each with its record.
    pub(super) fn flight(&self) -> Vec<(&ChainedMessage, QueuedRecord<'_>)> {
        self.sent.iter().zip(self.records()).collect()
    }

    /// The order of a message in flight.
    pub(super) fn order_of(&self, number: u64) -> Option<u64> {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok())?;
        self.sent.get(at).map(|sent| sent.order)
    }

    /// The messages of which it is not known whether they are stored, by number, each with its order and its record.
    pub(super) fn in_doubt(&self) -> Vec<(u64, u64, QueuedRecord<'_>)> {
        let flight = (self.first..).zip(self.sent.iter().zip(self.records()));
        let open = flight
            .filter(|(_, (sent, _))| matches!(sent.fate, Fate::Unanswered | Fate::Refused(_)));
        open.map(|(number, (sent, record))| (number, sent.order, record)).collect()
    }

    /// This message is stored, although its answer is missing, or was a refusal.
    pub(super) fn found_at(&mut self, number: u64) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let sent = at.and_then(|at| self.sent.get_mut(at)).filter(|sent| sent.fate != Fate::Done);
        if let Some(sent) = sent {
            self.busy.remove(&sent.order);
            sent.fate = Fate::Stored;
        }
    }

    /// These first messages in flight are stored.
    pub(super) fn found(&mut self, count: usize) {
        for sent in self.sent.iter_mut().take(count).filter(|sent| sent.fate != Fate::Done) {
            self.busy.remove(&sent.order);
            sent.fate = Fate::Stored;
        }
    }

    /// Takes the tickets of acknowledged messages that are not reported: with a chain those from the front only.
    /// Settled records leave; `empty` gets the batches of which all are.
    pub(super) fn settle(
        &mut self,
        chain: ChainMode,
        tickets: &mut Vec<Ticket>,
        empty: &mut Vec<RecordBatch>,
    ) {
        let chained = message::is_chained(chain);
        for sent in &mut self.sent {
            match sent.fate {
                Fate::Stored => {
                    tickets.push(sent.ticket);
                    sent.fate = Fate::Done;
                }
                Fate::Unanswered | Fate::Refused(_) if chained => break,
                Fate::Done | Fate::Unanswered | Fate::Refused(_) => {}
            }
        }
        while self.sent.front().is_some_and(|sent| sent.fate == Fate::Done) {
            self.sent.pop_front();
            self.first += 1;
            self.settled += 1;
            if self.batches.front().is_some_and(|batch| batch.len() <= self.settled) {
                empty.extend(self.batches.pop_front());
                self.settled = 0;
                self.next.0 = self.next.0.saturating_sub(1);
            }
        }
    }

    /// All messages in flight are sent again, except those that are acknowledged.
    pub(super) fn rewind(&mut self) {
        for sent in self.sent.drain(..) {
            self.first += 1;
            if sent.fate == Fate::Done {
                self.done.insert(sent.ticket);
            }
        }
        self.busy.clear();
        self.next = (0, self.settled);
    }

    /// Gives everything up. Returns the number of records that were not reported.
    pub(super) fn clear(&mut self) -> usize {
        let all = self.records().count();
        let reported = self.sent.iter().filter(|sent| sent.fate == Fate::Done).count();
        let open = all - reported - self.done.len();
        self.first += self.sent.len() as u64;
        self.sent.clear();
        self.batches.clear();
        self.done.clear();
        self.busy.clear();
        (self.settled, self.next) = (0, (0, 0));
        open
    }
}

/// Why a connection is given up.
#[derive(Debug)]
pub(super) enum Left {
    /// The sink is closed.
    Closed,
    /// Another attempt follows.
    Failed(NatsProblem),
}

impl From<NatsProblem> for Left {
    fn from(problem: NatsProblem) -> Self {
        Self::Failed(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::record::Record;

    fn line(keys: &[(u64, &str)]) -> SendLine {
        let mut line = SendLine::default();
        for chunk in keys.chunks(2) {
            let mut batch = RecordBatch::default();
            for (ticket, key) in chunk {
                let record = Record {
                    topic: "orders",
                    partition: None,
                    key: Some(key.as_bytes()),
                    value: None,
                    timestamp_ms: None,
                    headers: &[],
                };
                batch.push(Ticket(*ticket), &record);
            }
            line.push(batch);
        }
        line
    }

    fn send_all(line: &mut SendLine, chain: ChainMode) -> Vec<u64> {
        let mut sent = Vec::new();
        while let Some(record) = line.next().filter(|record| line.may_send(chain, record)) {
            if !line.next_is_done() {
                sent.push(record.ticket.0);
            }
            line.sent(chain, 0, Instant::now());
        }
        sent
    }

    fn settled(line: &mut SendLine, chain: ChainMode) -> Vec<u64> {
        let (mut tickets, mut empty) = (Vec::new(), Vec::new());
        line.settle(chain, &mut tickets, &mut empty);
        tickets.into_iter().map(|ticket| ticket.0).collect()
    }

    fn refusal() -> Fate {
        Fate::Refused(ApiError { err_code: 10_071, ..ApiError::default() })
    }

    #[test]
    fn chain_reports_from_the_front_and_sends_the_rest_again() {
        let mut line = line(&[(1, "a"), (2, "a"), (3, "b"), (4, "a"), (5, "b")]);
        assert_eq!(send_all(&mut line, ChainMode::Stream), [1, 2, 3, 4, 5]);
        line.answered(0, Fate::Stored);
        line.answered(2, Fate::Stored);
        assert_eq!(settled(&mut line, ChainMode::Stream), [1]);
        line.answered(1, refusal());
        assert_eq!(line.refused().map(|refused| refused.ticket), Some(Ticket(2)));
        assert!(!line.is_answered());
        line.found(0);
        line.rewind();
        assert_eq!(send_all(&mut line, ChainMode::Stream), [2, 3, 4, 5]);
        // A late answer to the first attempt.
        line.answered(3, Fate::Stored);
        assert_eq!(settled(&mut line, ChainMode::Stream), [] as [u64; 0]);
        for number in 5..9 {
            line.answered(number, Fate::Stored);
        }
        assert_eq!(settled(&mut line, ChainMode::Stream), [2, 3, 4, 5]);
        assert!(line.is_empty());
        assert_eq!(line.clear(), 0);
    }

    #[test]
    fn without_a_chain_a_key_has_one_message_in_flight() {
        let mut line = line(&[(1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "b")]);
        assert_eq!(send_all(&mut line, ChainMode::None), [1, 2, 3]);
        line.answered(1, Fate::Stored);
        line.answered(2, Fate::Stored);
        assert_eq!(settled(&mut line, ChainMode::None), [2, 3]);
        assert_eq!(send_all(&mut line, ChainMode::None), [] as [u64; 0], "1 is before 4");
        line.answered(0, refusal());
        line.rewind();
        assert_eq!(send_all(&mut line, ChainMode::None), [1], "2 and 3 are acknowledged");
        line.answered(5, Fate::Stored);
        assert_eq!(settled(&mut line, ChainMode::None), [] as [u64; 0], "that number is of 3");
        line.answered(3, Fate::Stored);
        assert_eq!(settled(&mut line, ChainMode::None), [1]);
        assert_eq!(send_all(&mut line, ChainMode::None), [4, 5]);
        assert_eq!(line.clear(), 2);
    }

    #[test]
    fn chain_of_subjects_has_one_message_of_a_subject_in_flight_and_finds_each_by_itself() {
        let mut line = SendLine::default();
        let mut batch = RecordBatch::default();
        for (ticket, topic) in [(1, "a"), (2, "b"), (3, "c"), (4, "a")] {
            let record = Record {
                topic,
                partition: None,
                key: Some(topic.as_bytes()),
                value: None,
                timestamp_ms: None,
                headers: &[],
            };
            batch.push(Ticket(ticket), &record);
        }
        line.push(batch);
        assert_eq!(send_all(&mut line, ChainMode::Subject), [1, 2, 3]);
        line.answered(0, Fate::Stored);
        line.answered(1, refusal());
        let open: Vec<u64> = line.in_doubt().into_iter().map(|(number, ..)| number).collect();
        assert_eq!(open, [1, 2], "one is refused, one has no answer");
        line.found_at(2);
        assert_eq!(settled(&mut line, ChainMode::Subject), [1, 3]);
        line.rewind();
        assert_eq!(send_all(&mut line, ChainMode::Subject), [2, 4], "3 is stored");
        assert!(
            line.order_of(3).is_some() && line.order_of(2).is_none(),
            "2 is of the first attempt"
        );
    }

    #[test]
    fn records_that_were_not_reported_are_counted() {
        let mut line = line(&[(1, "a"), (2, "b"), (3, "c")]);
        send_all(&mut line, ChainMode::None);
        line.answered(1, Fate::Stored);
        assert_eq!(settled(&mut line, ChainMode::None), [2]);
        assert_eq!(line.clear(), 2);
        assert!(line.is_empty() && line.in_flight() == 0);
    }
}
