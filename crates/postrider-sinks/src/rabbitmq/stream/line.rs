//! The records of one stream: those in flight, with their publishing ids, and those that wait.
//!
//! The server stores what a publisher sends if its id is above the last one, and confirms and drops it otherwise. So a
//! record that is in doubt is sent again with the id that it had: the server passes over what it has. And a record that
//! was not sent, or that the server has refused, must get an id above all that were used: with a lower one it would be
//! confirmed and lost.

use crate::record_batch::{QueuedRecord, RecordBatch};
use postrider_core::record::Ticket;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Publishing ids of all streams of a publisher: each is above those before, and none is used for two records.
#[derive(Debug)]
pub(super) struct PublishingIds(AtomicU64);

impl PublishingIds {
    /// RabbitMQ answers 0 for a publisher without messages, so the first id is 1.
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(1))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A record of a stream.
#[derive(Debug)]
pub(super) struct LineRecord {
    batch: Arc<RecordBatch>,
    at: usize,
    /// Number of the fence when the record was taken from the queue.
    epoch: u64,
    /// The id that it has had, if it may be there.
    id: Option<u64>,
}

impl LineRecord {
    pub(super) fn new(batch: &Arc<RecordBatch>, at: usize, epoch: u64) -> Self {
        Self { batch: Arc::clone(batch), at, epoch, id: None }
    }

    pub(super) fn record(&self) -> QueuedRecord<'_> {
        self.batch.get(self.at)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The batch, if this was the last of its records.
    fn into_batch(self) -> Option<RecordBatch> {
        Arc::into_inner(self.batch)
    }
}

/// What the server has answered about a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MessageAnswer {
    None,
    Confirmed,
    Refused,
}

#[derive(Debug)]
struct SentRecord {
    record: LineRecord,
    id: u64,
    answer: MessageAnswer,
}

/// The records of one stream, in their order.
#[derive(Debug, Default)]
pub(super) struct StreamLine {
    sent: VecDeque<SentRecord>,
    waiting: VecDeque<LineRecord>,
    /// The highest id that was sent.
    highest: u64,
    /// Messages without an answer.
    unanswered: usize,
    /// Published, and not reported yet.
    acked: Vec<Ticket>,
    spent: Vec<RecordBatch>,
}

impl StreamLine {
    /// Adds a record behind the others.
    pub(super) fn add(&mut self, record: LineRecord) {
        self.waiting.push_back(record);
    }

    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty()
    }

    /// Whether a record is held that is not the retry of a parked event.
    pub(super) fn is_live(&self) -> bool {
        let mut held = self.sent.iter().map(|sent| &sent.record).chain(&self.waiting);
        held.any(|record| !record.record().is_retry)
    }

    /// Messages without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Messages of which something is still to be done.
    pub(super) fn in_flight(&self) -> usize {
        self.sent.len()
    }

    /// The next record to send.
    pub(super) fn next(&self) -> Option<&LineRecord> {
        self.waiting.front()
    }

    /// The next record is sent with the id that is returned.
    pub(super) fn send(&mut self, ids: &PublishingIds) -> Option<u64> {
        let record = self.waiting.pop_front()?;
        // Ids rise within a connection, whatever was sent before.
        let known = record.id.filter(|id| *id > self.highest);
        let id = known.unwrap_or_else(|| ids.next());
        self.highest = id;
        self.unanswered += 1;
        self.sent.push_back(SentRecord { record, id, answer: MessageAnswer::None });
        Some(id)
    }

    /// Takes out the record that would be sent next: it is refused.
    pub(super) fn refuse_next(&mut self) -> Option<(Ticket, bool)> {
        let record = self.waiting.pop_front()?;
        let QueuedRecord { ticket, is_retry, .. } = record.record();
        self.spent.extend(record.into_batch());
        Some((ticket, is_retry))
    }

    /// The server has answered a message: `stored`, or refused. False: no such message is in flight.
    pub(super) fn answered(&mut self, id: u64, stored: bool) -> bool {
        let Ok(at) = self.sent.binary_search_by_key(&id, |sent| sent.id) else { return false };
        let Some(sent) = self.sent.get_mut(at) else { return false };
        if sent.answer == MessageAnswer::None {
            self.unanswered -= 1;
            sent.answer = if stored { MessageAnswer::Confirmed } else { MessageAnswer::Refused };
        }
        while self.sent.front().is_some_and(|sent| sent.answer == MessageAnswer::Confirmed) {
            if let Some(sent) = self.sent.pop_front() {
                self.published(sent.record);
            }
        }
        true
    }

    fn published(&mut self, record: LineRecord) {
        self.acked.push(record.record().ticket);
        self.spent.extend(record.into_batch());
    }

    /// The connection is given up: what is not confirmed is sent again, before what waits. What may be there keeps its
    /// id, unless the server has refused a message: behind a refused one it may have stored later ones, and then the
    /// refused one needs a higher id, and all behind it too.
    pub(super) fn lost(&mut self) {
        let refused = self.sent.iter().any(|sent| sent.answer == MessageAnswer::Refused);
        for SentRecord { mut record, id, answer } in
            std::mem::take(&mut self.sent).into_iter().rev()
        {
            if answer == MessageAnswer::Confirmed {
                self.published(record);
                continue;
            }
            record.id = Some(id);
            self.waiting.push_front(record);
        }
        if refused {
            for record in &mut self.waiting {
                record.id = None;
            }
        }
        (self.highest, self.unanswered) = (0, 0);
    }

    /// Gives up what was taken before this number of the fence and is not in flight. Returns the number of records.
    pub(super) fn give_up(&mut self, epoch: u64) -> usize {
        let before = self.waiting.len();
        for record in std::mem::take(&mut self.waiting) {
            if record.epoch < epoch {
                self.spent.extend(record.into_batch());
            } else {
                self.waiting.push_back(record);
            }
        }
        before - self.waiting.len()
    }

    /// The tickets of published records that were not taken yet.
    pub(super) fn take_acked(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.acked)
    }

    /// A batch whose records are all done with.
    pub(super) fn spent(&mut self) -> Option<RecordBatch> {
        self.spent.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::record::Record;

    fn line(records: u64, epoch: u64) -> StreamLine {
        let mut batch = RecordBatch::default();
        for ticket in 1..=records {
            let record = Record {
                topic: "t",
                partition: None,
                key: None,
                value: None,
                timestamp_ms: None,
                headers: &[],
            };
            batch.push(Ticket(ticket), &record);
        }
        let batch = Arc::new(batch);
        let mut line = StreamLine::default();
        for at in 0..batch.len() {
            line.add(LineRecord::new(&batch, at, epoch));
        }
        line
    }

    fn send(line: &mut StreamLine, ids: &PublishingIds, count: usize) -> Vec<u64> {
        std::iter::from_fn(|| line.send(ids)).take(count).collect()
    }

    #[test]
    fn record_in_doubt_keeps_its_id_and_a_later_one_gets_a_higher_one() {
        let (mut line, ids) = (line(5, 0), PublishingIds::new());
        assert_eq!(send(&mut line, &ids, 3), [1, 2, 3]);
        assert!(line.answered(1, true) && !line.answered(9, true));
        assert_eq!(line.take_acked(), [Ticket(1)]);
        line.lost();
        assert_eq!((line.unanswered(), line.in_flight()), (0, 0));
        // Another stream has used an id meanwhile.
        assert_eq!(ids.next(), 4);
        assert_eq!(send(&mut line, &ids, 9), [2, 3, 5, 6]);
        for id in [2, 3, 5, 6] {
            assert!(line.answered(id, true));
        }
        assert_eq!(line.take_acked(), [2, 3, 4, 5].map(Ticket));
        assert!(line.is_empty() && line.spent().is_some() && line.spent().is_none());
    }

    /// The server has stored 3, and would confirm and drop 2 if it came again.
    #[test]
    fn refused_record_and_all_behind_it_get_higher_ids() {
        let (mut line, ids) = (line(5, 0), PublishingIds::new());
        assert_eq!(send(&mut line, &ids, 4), [1, 2, 3, 4]);
        assert!(line.answered(2, false) && line.answered(3, true));
        assert_eq!(line.unanswered(), 2);
        line.lost();
        assert_eq!(line.take_acked(), [Ticket(3)], "1 is not reported before it is confirmed");
        assert_eq!(send(&mut line, &ids, 9), [5, 6, 7, 8]);
    }

    /// Two connections are lost: what the second one did not come to send has an old id.
    #[test]
    fn ids_rise_whatever_was_lost() {
        let (mut line, ids) = (line(4, 0), PublishingIds::new());
        assert_eq!(send(&mut line, &ids, 4), [1, 2, 3, 4]);
        line.lost();
        assert_eq!(send(&mut line, &ids, 2), [1, 2]);
        assert!(line.answered(1, false));
        line.lost();
        assert_eq!(send(&mut line, &ids, 9), [5, 6, 7, 8]);
    }

    #[test]
    fn records_of_an_earlier_epoch_are_given_up() {
        let (mut line, ids) = (line(3, 0), PublishingIds::new());
        assert_eq!(send(&mut line, &ids, 1), [1]);
        assert_eq!((line.give_up(0), line.give_up(1)), (0, 2));
        assert_eq!(line.in_flight(), 1);
        line.lost();
        assert_eq!(line.give_up(1), 1);
        assert!(line.is_empty() && line.spent().is_some());
    }
}
