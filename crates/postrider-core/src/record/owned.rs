//! A record that somebody keeps.

use super::{Header, Record};
use std::fmt;

/// A record that outlives the buffer it was read from. `Debug` shows sizes only.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct OwnedRecord {
    /// The destination.
    pub topic: String,
    /// As [`Record::partition`].
    pub partition: Option<i32>,
    /// As [`Record::key`].
    pub key: Option<Vec<u8>>,
    /// As [`Record::value`].
    pub value: Option<Vec<u8>>,
    /// As [`Record::timestamp_ms`].
    pub timestamp_ms: Option<i64>,
    /// Names and values, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl OwnedRecord {
    /// A copy.
    pub fn of(record: &Record<'_>) -> Self {
        let header =
            |header: &Header<'_>| (header.name.to_owned(), header.value.map(<[u8]>::to_vec));
        Self {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            timestamp_ms: record.timestamp_ms,
            headers: record.headers.iter().map(header).collect(),
        }
    }

    /// Lends it out as what a sink takes.
    pub fn lend<T>(&self, f: impl FnOnce(&Record<'_>) -> T) -> T {
        let headers: Vec<Header<'_>> = self
            .headers
            .iter()
            .map(|(name, value)| Header { name, value: value.as_deref() })
            .collect();
        f(&Record {
            topic: &self.topic,
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            timestamp_ms: self.timestamp_ms,
            headers: &headers,
        })
    }

    /// Bytes of topic, key, value and headers.
    pub fn size_bytes(&self) -> usize {
        let bytes = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + bytes(value)).sum();
        self.topic.len() + bytes(&self.key) + bytes(&self.value) + headers
    }
}

impl fmt::Debug for OwnedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedRecord")
            .field("topic", &self.topic)
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}
