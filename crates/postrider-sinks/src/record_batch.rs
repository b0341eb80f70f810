//! Records that a sink has copied, one behind the other in one buffer.
//!
//! A batch is filled by the pipeline's thread and emptied by the thread that sends. Its memory is used again, so a
//! record costs no allocation.

use postrider_core::record::{Header, Record, Ticket};
use std::fmt;
use std::ops::Range;

/// Records in the order in which they were accepted. `Debug` shows the number of records and bytes only.
#[derive(Default)]
pub(crate) struct RecordBatch {
    bytes: Vec<u8>,
    headers: Vec<HeaderLengths>,
    entries: Vec<BatchEntry>,
}

/// Where a record is. Its bytes are topic, key, value, then the name and the value of each header.
struct BatchEntry {
    ticket: Ticket,
    partition: Option<i32>,
    timestamp_ms: Option<i64>,
    start: usize,
    topic: usize,
    key: Option<usize>,
    value: Option<usize>,
    /// In [`RecordBatch::headers`].
    headers: Range<usize>,
}

#[derive(Clone, Copy)]
struct HeaderLengths {
    name: usize,
    value: Option<usize>,
}

impl RecordBatch {
    /// Adds a copy of the record.
    pub(crate) fn push(&mut self, ticket: Ticket, record: &Record<'_>) {
        let start = self.bytes.len();
        let first_header = self.headers.len();
        self.bytes.extend_from_slice(record.topic.as_bytes());
        self.bytes.extend_from_slice(record.key.unwrap_or_default());
        self.bytes.extend_from_slice(record.value.unwrap_or_default());
        for header in record.headers {
            self.bytes.extend_from_slice(header.name.as_bytes());
            self.bytes.extend_from_slice(header.value.unwrap_or_default());
            let lengths =
                HeaderLengths { name: header.name.len(), value: header.value.map(<[u8]>::len) };
            self.headers.push(lengths);
        }
        self.entries.push(BatchEntry {
            ticket,
            partition: record.partition,
            timestamp_ms: record.timestamp_ms,
            start,
            topic: record.topic.len(),
            key: record.key.map(<[u8]>::len),
            value: record.value.map(<[u8]>::len),
            headers: first_header..self.headers.len(),
        });
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the topics, keys, values and headers of all records.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The record at this place, counted from 0.
    ///
    /// # Panics
    /// If there are fewer records.
    pub(crate) fn get(&self, at: usize) -> QueuedRecord<'_> {
        let entry = &self.entries[at];
        let mut rest = &self.bytes[entry.start..];
        let topic = cut(&mut rest, entry.topic);
        QueuedRecord {
            ticket: entry.ticket,
            // It was copied from a `str`.
            topic: std::str::from_utf8(topic).unwrap_or_default(),
            partition: entry.partition,
            key: entry.key.map(|length| cut(&mut rest, length)),
            value: entry.value.map(|length| cut(&mut rest, length)),
            timestamp_ms: entry.timestamp_ms,
            headers: QueuedHeaders { lengths: &self.headers[entry.headers.clone()], bytes: rest },
        }
    }

    /// All records, in their order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = QueuedRecord<'_>> {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Drops the records and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.headers.clear();
        self.entries.clear();
    }
}

impl fmt::Debug for RecordBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBatch")
            .field("records", &self.len())
            .field("size_bytes", &self.size_bytes())
            .finish()
    }
}

fn cut<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (front, rest) = bytes.split_at(length);
    *bytes = rest;
    front
}

/// A record of a batch, as [`Record`]. `Debug` shows the ticket only.
#[derive(Clone, Copy)]
pub(crate) struct QueuedRecord<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) topic: &'a str,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for a sink whose destinations have partitions")
    )]
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) headers: QueuedHeaders<'a>,
}

impl fmt::Debug for QueuedRecord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuedRecord").field(&self.ticket).finish()
    }
}

/// The headers of a record, in their order; an iterator.
#[derive(Clone, Copy)]
pub(crate) struct QueuedHeaders<'a> {
    lengths: &'a [HeaderLengths],
    bytes: &'a [u8],
}

impl<'a> QueuedHeaders<'a> {
    /// The value of the first header with this name; `None` also if that value is null.
    pub(crate) fn value_of(self, name: &str) -> Option<&'a [u8]> {
        let mut headers = self;
        headers.find(|header| header.name == name).and_then(|header| header.value)
    }
}

#[expect(
    clippy::copy_iterator,
    reason = "a copy starts where the original is, which `value_of` needs"
)]
impl<'a> Iterator for QueuedHeaders<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        let (lengths, rest) = self.lengths.split_first()?;
        self.lengths = rest;
        let name = cut(&mut self.bytes, lengths.name);
        let value = lengths.value.map(|length| cut(&mut self.bytes, length));
        Some(Header { name: std::str::from_utf8(name).unwrap_or_default(), value })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.lengths.len(), Some(self.lengths.len()))
    }
}

impl ExactSizeIterator for QueuedHeaders<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in() {
        let headers = [
            Header { name: "id", value: Some(b"7") },
            Header { name: "none", value: None },
            Header { name: "id", value: Some(b"") },
        ];
        let plain = Record {
            topic: "orders",
            partition: Some(3),
            key: Some(b"k"),
            value: Some(b"{}"),
            timestamp_ms: Some(-1),
            headers: &headers,
        };
        let bare = Record {
            topic: "",
            partition: None,
            key: None,
            value: None,
            timestamp_ms: None,
            headers: &[],
        };
        let mut batch = RecordBatch::default();
        for round in 0..2 {
            for (ticket, record) in [(1, &plain), (2, &bare), (3, &plain)] {
                batch.push(Ticket(ticket), record);
            }
            assert_eq!(batch.len(), 3, "round {round}");
            for (queued, (ticket, record)) in
                batch.iter().zip([(1, &plain), (2, &bare), (3, &plain)])
            {
                assert_eq!((queued.ticket, queued.topic), (Ticket(ticket), record.topic));
                assert_eq!((queued.key, queued.value), (record.key, record.value));
                assert_eq!(
                    (queued.partition, queued.timestamp_ms),
                    (record.partition, record.timestamp_ms)
                );
                let pairs =
                    |header: Header<'_>| (header.name.to_owned(), header.value.map(<[u8]>::to_vec));
                let expected: Vec<_> = record.headers.iter().copied().map(pairs).collect();
                assert_eq!(queued.headers.map(pairs).collect::<Vec<_>>(), expected);
            }
            assert_eq!(batch.get(0).headers.value_of("id"), Some(&b"7"[..]));
            assert_eq!(batch.get(0).headers.value_of("none"), None);
            batch.clear();
            assert!(batch.is_empty() && batch.size_bytes() == 0);
        }
    }

    #[test]
    fn debug_shows_no_payload() {
        let record = Record {
            topic: "orders",
            partition: None,
            key: Some(b"secret-key"),
            value: Some(b"secret-value"),
            timestamp_ms: None,
            headers: &[],
        };
        let mut batch = RecordBatch::default();
        batch.push(Ticket(1), &record);
        let shown = format!("{batch:?} {:?}", batch.get(0));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
