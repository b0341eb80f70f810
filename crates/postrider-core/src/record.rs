//! What a sink publishes, and what it answers.
//!
//! A [`Record`] borrows its bytes from the buffer they were read into: sinks copy or send, they never keep it. Who has
//! to keep one makes it an [`OwnedRecord`].
//! Topic names, the numbers of refusals and the overhead of a record are those of Kafka and librdkafka.

use std::fmt;

/// One message for a broker. `Debug` shows sizes only: keys, headers and payloads are other people's data.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The destination: a topic.
    pub topic: &'a str,
    /// A partition, where the route names one; else the broker's partitioner chooses by key.
    pub partition: Option<i32>,
    /// The key; `None` is a null key.
    pub key: Option<&'a [u8]>,
    /// The payload; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// Milliseconds since the Unix epoch; `None` leaves the stamp to the broker.
    pub timestamp_ms: Option<i64>,
    /// Headers in order; names may repeat.
    pub headers: &'a [Header<'a>],
}

impl Record<'_> {
    /// Bytes that are held from the hand-over to the report: what flow control counts.
    ///
    /// A bound on bytes is there for the memory, and of small records the client's own structures are most of it.
    pub fn held_bytes(&self) -> usize {
        self.size_bytes().saturating_add(CLIENT_BYTES)
    }

    /// Bytes of key, value and headers.
    pub fn size_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(Header::size_bytes).sum();
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers
    }
}

/// What librdkafka holds for a record beside its bytes: its message, each header by itself, its place in a batch.
///
/// Measured: the resident peak of a drain grew by 1.1 to 1.2 kB for each record of 400 B with three headers.
const CLIENT_BYTES: usize = 768;

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("topic", &self.topic)
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

/// Whether Kafka allows the name of a topic (`org.apache.kafka.common.internals.Topic`): 1 to 249 of
/// `A-Z a-z 0-9 . _ -`, and neither `.` nor `..`.
pub fn is_topic_name(name: &[u8]) -> bool {
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=TOPIC_NAME_BYTES_MAX).contains(&name.len())
        && name.iter().all(legal)
        && !matches!(name, b"." | b"..")
}

/// Whether a part of a topic's name is empty: it begins or ends with a separator, or has two in a row. So it is where a
/// field of the template is empty in a row (`outbox.event.`).
pub fn has_empty_part(topic: &str) -> bool {
    topic.split(['.', '-', '_']).any(str::is_empty)
}

/// Bytes of the longest topic name (Kafka's `Topic.MAX_NAME_LENGTH`).
const TOPIC_NAME_BYTES_MAX: usize = 249;

/// One header of a record.
#[derive(Clone, Copy)]
pub struct Header<'a> {
    /// The name.
    pub name: &'a str,
    /// The value; `None` is a header with a null value.
    pub value: Option<&'a [u8]>,
}

impl Header<'_> {
    /// Bytes of name and value.
    pub fn size_bytes(&self) -> usize {
        self.name.len() + self.value.map_or(0, <[u8]>::len)
    }
}

/// Names one event that was handed to a sink, for the report that comes back.
///
/// Tickets rise by one for each change of the stream and are never handed to a sink twice, so a report of an earlier
/// session is known by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What became of a record. There are three answers, not two: a lost answer is neither a failure nor a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The broker has it, as durably as the broker's settings promise.
    Acked,
    /// The broker, or the sink on its behalf, refused it.
    Rejected {
        /// How far the refusal reaches.
        scope: Scope,
        /// The refusal's kind.
        reason: Refusal,
    },
    /// No answer will come: it may have been published or not.
    Unknown,
}

/// How far a refusal reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// This record, as it is.
    Event,
    /// Every record for this topic, until somebody mends the topic.
    Destination,
    /// Everything: the producer's state, or the broker's.
    Broker,
}

/// Why a record was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The record is larger than the destination takes.
    TooLarge {
        /// Bytes of the record.
        size: usize,
        /// Bytes the destination takes.
        limit: usize,
    },
    /// The record is larger than the destination takes, and the broker refused it compressed too.
    TooLargeCompressed {
        /// Bytes of the record before compression.
        size: usize,
        /// Bytes the destination takes.
        limit: usize,
    },
    /// The topic's name can't be a topic's name.
    TopicName,
    /// The route names a partition the topic does not have.
    Partition(i32),
    /// A broker's code, by librdkafka's number (`rd_kafka_resp_err_t`).
    Kafka(i32),
}

impl Refusal {
    /// A stable word for it: stands in the parked table, and is what `postrider parked --error` asks for.
    pub const fn code(self) -> &'static str {
        match self {
            // MSG_SIZE_TOO_LARGE and RECORD_LIST_TOO_LARGE.
            Self::TooLarge { .. } | Self::TooLargeCompressed { .. } | Self::Kafka(10 | 18) => {
                "too_large"
            }
            // TOPIC_EXCEPTION.
            Self::TopicName | Self::Kafka(17) => "topic_name",
            Self::Partition(_) => "partition",
            Self::Kafka(44) => "policy_violation",
            Self::Kafka(87) => "invalid_record",
            Self::Kafka(_) => "refused_by_broker",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { size, limit } => {
                write!(f, "the record has {size} bytes, the destination takes {limit}")
            }
            Self::TooLargeCompressed { size, limit } => write!(
                f,
                "the record has {size} bytes, and compressed it is still larger than the {limit} that the \
                 destination takes"
            ),
            Self::TopicName => f.write_str("the topic's name is not one Kafka allows"),
            Self::Partition(number) => write!(f, "the topic has no partition {number}"),
            Self::Kafka(code) => write!(f, "the broker refused it with code {code}"),
        }
    }
}

// A record that somebody keeps.

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
