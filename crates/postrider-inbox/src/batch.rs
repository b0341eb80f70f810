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

/// The record that a message of a batch came from. It is of use only with its batch, which knows the topic's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The topic, as the batch numbers its topics.
    topic: usize,
    partition: i32,
    offset: i64,
    leader_epoch: Option<i32>,
}

impl Origin {
    /// The offset of the record.
    pub const fn offset(&self) -> i64 {
        self.offset
    }

    /// What is the same for all records of a partition, and for no others.
    pub(crate) const fn place(&self) -> (usize, i32) {
        (self.topic, self.partition)
    }

    /// Whether the record is this one, or a later one of its partition.
    fn is_from(&self, first: &Self) -> bool {
        self.place() == first.place() && self.offset >= first.offset
    }
}

/// Messages in the order in which they arrived, and the partitions that they came from.
#[derive(Default)]
pub struct Batch {
    messages: Vec<Message>,
    /// Where each message came from; `None` if it did not come from a partition.
    origins: Vec<Option<Origin>>,
    /// The numbers of the topics, by name: a name is copied once, and not for each record.
    topics: BTreeMap<String, usize>,
    /// By topic and partition, as [`Origin::place`].
    spans: BTreeMap<(usize, i32), Span>,
    bytes: usize,
}

impl Batch {
    /// Adds a message that did not come from a partition.
    pub fn push(&mut self, message: Message) {
        self.push_from(message, None);
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
        let topic = self.topic(topic);
        let begin = Span { from: stored, next: stored, leader_epoch };
        let span = self.spans.entry((topic, partition)).or_insert(begin);
        span.next = offset + 1;
        span.leader_epoch = leader_epoch;
        let origin = Origin { topic, partition, offset, leader_epoch };
        self.push_from(message, Some(origin));
    }

    /// A partition was read up to `end`, and has no record between the last one of the batch and `end`: marks of
    /// transactions, or records that compaction removed. `stored` as for [`push_record`](Self::push_record).
    pub fn push_end(&mut self, partition: &Partition, stored: i64, end: i64) {
        let begin = Span { from: stored, next: stored, leader_epoch: None };
        let topic = self.topic(&partition.topic);
        self.spans.entry((topic, partition.number)).or_insert(begin).next = end;
    }

    fn push_from(&mut self, message: Message, origin: Option<Origin>) {
        self.bytes += message.size_bytes();
        self.messages.push(message);
        self.origins.push(origin);
    }

    /// The number of a topic.
    fn topic(&mut self, name: &str) -> usize {
        if let Some(number) = self.topics.get(name) {
            return *number;
        }
        let number = self.topics.len();
        self.topics.insert(name.to_owned(), number);
        number
    }

    /// The partition of a record of this batch.
    pub fn partition(&self, origin: &Origin) -> Option<Partition> {
        let (name, _) = self.topics.iter().find(|(_, number)| **number == origin.topic)?;
        Some(Partition { topic: name.clone(), number: origin.partition })
    }

    /// Removes the message of a record and all later ones of its partition: the batch takes the partition to that
    /// record.
    pub fn cut(&mut self, first: &Origin) {
        let is_cut = |origin: &Option<Origin>| origin.is_some_and(|it| it.is_from(first));
        let (mut origins, mut bytes) = (self.origins.iter(), self.bytes);
        self.messages.retain(|message| {
            let goes = origins.next().is_some_and(is_cut);
            if goes {
                bytes -= message.size_bytes();
            }
            !goes
        });
        self.bytes = bytes;
        self.origins.retain(|origin| !is_cut(origin));
        let before = self.origins.iter().flatten().rfind(|origin| origin.place() == first.place());
        let leader_epoch = before.and_then(|origin| origin.leader_epoch);
        if let Some(span) = self.spans.get_mut(&first.place()) {
            (span.next, span.leader_epoch) = (first.offset, leader_epoch);
            if span.next == span.from {
                self.spans.remove(&first.place());
            }
        }
    }

    /// The messages.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages, each with the record that it came from.
    pub fn messages_from(&self) -> impl Iterator<Item = (&Message, Option<Origin>)> {
        self.messages.iter().zip(self.origins.iter().copied())
    }

    /// The partitions, in the order of topics and numbers.
    pub fn spans(&self) -> impl Iterator<Item = ((&str, i32), &Span)> {
        self.topics.iter().flat_map(|(name, topic)| {
            let of_topic = self.spans.range((*topic, i32::MIN)..=(*topic, i32::MAX));
            of_topic.map(|((_, number), span)| ((name.as_str(), *number), span))
        })
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
        self.origins.clear();
        self.topics.clear();
        self.spans.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message { event_id: "x".to_owned(), ..Message::default() }
    }

    fn spans(batch: &Batch) -> Vec<(i64, i64, Option<i32>)> {
        batch.spans().map(|(_, span)| (span.from, span.next, span.leader_epoch)).collect()
    }

    #[test]
    fn a_batch_knows_where_each_partition_begins_and_ends() {
        let mut batch = Batch::default();
        // Offset 5 is stored; the record at 5 was removed by compaction, or is a mark of a transaction.
        batch.push_record(message(), ("orders", 0), (5, 6), Some(1));
        batch.push_record(message(), ("orders", 1), (0, 0), None);
        batch.push_record(message(), ("orders", 0), (5, 9), Some(2));
        assert_eq!(spans(&batch), [(5, 10, Some(2)), (0, 1, None)]);
        assert_eq!((batch.len(), batch.is_empty()), (3, false));
        assert!(batch.size_bytes() > 600);
        let partition = |number| Partition { topic: "orders".to_owned(), number };
        batch.push_end(&partition(0), 5, 12);
        batch.push_end(&partition(2), 3, 4);
        assert_eq!(spans(&batch), [(5, 12, Some(2)), (0, 1, None), (3, 4, None)]);
        batch.clear();
        assert!(batch.is_empty() && spans(&batch).is_empty() && batch.size_bytes() == 0);
    }

    #[test]
    fn a_batch_that_is_cut_takes_the_partition_to_the_record_and_no_further() {
        let mut batch = Batch::default();
        for offset in 5..10 {
            let epoch = i32::try_from(offset).ok();
            batch.push_record(message(), ("payments", 0), (5, offset), epoch);
            batch.push_record(message(), ("orders", 0), (5, offset), epoch);
            batch.push_record(message(), ("orders", 1), (5, offset), epoch);
        }
        let whole = batch.size_bytes();
        let origin = |batch: &Batch, name: &str, number: i32, offset: i64| {
            let is = |origin: &Origin| {
                let wanted = Partition { topic: name.to_owned(), number };
                origin.offset == offset && batch.partition(origin) == Some(wanted)
            };
            batch.messages_from().filter_map(|(_, origin)| origin).find(is).expect("a message")
        };
        batch.cut(&origin(&batch, "orders", 0, 7));
        assert_eq!(spans(&batch), [(5, 7, Some(6)), (5, 10, Some(9)), (5, 10, Some(9))]);
        assert_eq!((batch.len(), batch.size_bytes()), (12, whole / 15 * 12));
        // The first one: nothing of the partition is left.
        batch.cut(&origin(&batch, "orders", 1, 5));
        assert_eq!(spans(&batch), [(5, 7, Some(6)), (5, 10, Some(9))]);
        batch.cut(&origin(&batch, "payments", 0, 5));
        batch.cut(&origin(&batch, "orders", 0, 5));
        assert!(batch.is_empty() && batch.size_bytes() == 0);
    }
}
