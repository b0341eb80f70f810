//! Messages that are stored in one transaction, and how far that takes each partition.

use crate::message::Message;
use std::collections::BTreeMap;

/// A partition of a topic.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Partition {
    /// The topic.
    pub topic: String,
    /// Its number.
    pub number: i32,
}

/// How far a batch takes a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The stored offset that the batch begins at.
    pub from: i64,
    /// The offset behind its last record, and behind the marks of transactions after that.
    pub next: i64,
    /// The epoch of the leader that the last record came from; `None` if it is not known, or there is no record.
    pub leader_epoch: Option<i32>,
}

/// Messages in the order in which they arrived, and the partitions that they came from.
#[derive(Default)]
pub struct Batch {
    messages: Vec<Message>,
    spans: BTreeMap<Partition, Span>,
    bytes: usize,
}

impl Batch {
    /// Adds a message that did not come from a partition.
    pub fn push(&mut self, message: Message) {
        self.bytes += message.size_bytes();
        self.messages.push(message);
    }

    /// Adds the message of a record. `stored` is the offset at which the partition continues if nothing of this batch
    /// is stored.
    pub fn push_record(
        &mut self,
        message: Message,
        (topic, partition): (&str, i32),
        (stored, offset): (i64, i64),
        leader_epoch: Option<i32>,
    ) {
        let partition = Partition { topic: topic.to_owned(), number: partition };
        let span = self.spans.entry(partition).or_insert(Span {
            from: stored,
            next: stored,
            leader_epoch,
        });
        span.next = offset + 1;
        span.leader_epoch = leader_epoch;
        self.push(message);
    }

    /// A partition was read up to `end`, and has no record between the last one of the batch and `end`: marks of
    /// transactions, or records that compaction removed. `stored` as for [`push_record`](Self::push_record).
    pub fn push_end(&mut self, partition: Partition, stored: i64, end: i64) {
        let begin = Span { from: stored, next: stored, leader_epoch: None };
        self.spans.entry(partition).or_insert(begin).next = end;
    }

    /// The messages.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The partitions.
    pub const fn spans(&self) -> &BTreeMap<Partition, Span> {
        &self.spans
    }

    /// Number of messages.
    pub const fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there is nothing to be stored: no message, and no offset.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.spans.is_empty()
    }

    /// Approximate size of all messages. Unit: bytes.
    pub const fn size_bytes(&self) -> usize {
        self.bytes
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.spans.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_knows_where_each_partition_begins_and_ends() {
        let mut batch = Batch::default();
        let message = || Message { event_id: "x".to_owned(), ..Message::default() };
        // Offset 5 is stored; the record at 5 was removed by compaction, or is a mark of a transaction.
        batch.push_record(message(), ("orders", 0), (5, 6), Some(1));
        batch.push_record(message(), ("orders", 1), (0, 0), None);
        batch.push_record(message(), ("orders", 0), (5, 9), Some(2));
        let spans: Vec<_> = batch.spans().values().copied().collect();
        assert_eq!(
            spans,
            [
                Span { from: 5, next: 10, leader_epoch: Some(2) },
                Span { from: 0, next: 1, leader_epoch: None }
            ]
        );
        assert_eq!((batch.len(), batch.is_empty()), (3, false));
        assert!(batch.size_bytes() > 600);
        let partition = |number| Partition { topic: "orders".to_owned(), number };
        batch.push_end(partition(0), 5, 12);
        batch.push_end(partition(2), 3, 4);
        let spans: Vec<_> = batch.spans().values().map(|span| (span.from, span.next)).collect();
        assert_eq!(spans, [(5, 12), (0, 1), (3, 4)]);
        assert_eq!(batch.spans()[&partition(0)].leader_epoch, Some(2));
        batch.clear();
        assert!(batch.is_empty() && batch.spans().is_empty() && batch.size_bytes() == 0);
    }
}
