//! What a sink publishes, and what it answers.
//!
//! A [`Record`] borrows its bytes from the buffer they were read into: sinks copy or send, they never keep it. What has
//! to be kept is copied into an [`OwnedRecord`].

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
    /// Bytes that flow control counts from the hand-over to the report. A bound on bytes is there for the memory, and
    /// of small records what the client holds `beside` their bytes is most of it
    /// ([`held_bytes`](crate::sink::Capabilities::held_bytes)).
    pub fn held_bytes(&self, beside: usize) -> usize {
        self.size_bytes().saturating_add(beside)
    }

    /// Bytes of key, value and headers.
    pub fn size_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(Header::size_bytes).sum();
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len) + headers
    }
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("topic", &self.topic)
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

/// Whether a part of a destination's name is empty: the name begins or ends with a separator, or has two in a row. A
/// field of the template that is empty in a row makes such a name (`outbox.event.`).
pub fn has_empty_part(topic: &str) -> bool {
    topic.split(['.', '-', '_']).any(str::is_empty)
}

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
/// Tickets rise by one for each change of the stream, and a sink accepts each at most once, so a report of an earlier
/// session is known by its number. A ticket with which a sink did not accept a record may come again, with the same
/// record or, after another process has owned the pipeline, with another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Where a broker has stored a record, as its acknowledgement says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The partition.
    pub partition: i32,
    /// The offset in the partition.
    pub offset: i64,
}

/// What became of a record. There are three answers, not two: a lost answer is neither a failure nor a success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The record survives a crash of the broker, as durably as the broker's settings promise. It is never published
    /// again, and its source may remove the event.
    Acked,
    /// The broker, or the sink on its behalf, refused it.
    Rejected {
        /// How far the refusal reaches.
        scope: Scope,
        /// The refusal's kind.
        reason: Refusal,
    },
    /// No answer will come: it may have been published or not. The pipeline resets the sink, and publishes again from
    /// its cursor.
    Unknown,
}

/// How far a refusal reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// This record, as it is.
    Event,
    /// Every record for this topic, until an operator fixes the topic.
    Destination,
    /// Everything: the producer's state, or the broker's.
    Broker,
}

/// Why a record was refused: what the refusal means, and the broker's own number where a broker has said it.
///
/// The sink that knows the broker's numbers makes it; whoever reads it needs no number. `Debug` shows the number, or
/// else the kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// What it means.
    pub kind: RefusalKind,
    /// The broker's own number; `None` where the sink refused the record without asking the broker.
    pub native: Option<i32>,
    /// The broker has refused a batch: any record of it may be meant.
    pub of_batch: bool,
}

/// What a refusal means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// The record is larger than the destination takes. The numbers are there where the sink knows them.
    TooLarge(Option<Excess>),
    /// The destination's name is not one the broker allows. With the sink's own words for that: a fragment.
    Destination(&'static str),
    /// The route names a partition the destination does not have.
    Partition(i32),
    /// A rule of the broker's operator.
    Policy,
    /// The broker calls the record invalid.
    Invalid,
    /// The destination can't store the record. With the sink's own words for that: a clause.
    Content(&'static str),
    /// Anything else.
    Other,
}

/// How much too large a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Excess {
    /// Bytes of the record before compression.
    pub size: usize,
    /// Bytes the destination takes.
    pub limit: usize,
    /// The broker has judged the record compressed, and refused it.
    pub compressed: bool,
}

impl Refusal {
    /// The sink's own refusal.
    const fn own(kind: RefusalKind) -> Self {
        Self { kind, native: None, of_batch: false }
    }

    /// The record has `size` bytes, the destination takes `limit`.
    pub const fn too_large(size: usize, limit: usize) -> Self {
        Self::own(RefusalKind::TooLarge(Some(Excess { size, limit, compressed: false })))
    }

    /// The same, and the broker has refused the record compressed too. It was sent alone, so no other is meant.
    pub const fn too_large_compressed(size: usize, limit: usize) -> Self {
        Self::own(RefusalKind::TooLarge(Some(Excess { size, limit, compressed: true })))
    }

    /// No destination can have this name. `words` is a fragment that says so.
    pub const fn destination(words: &'static str) -> Self {
        Self::own(RefusalKind::Destination(words))
    }

    /// The destination has no partition of this number.
    pub const fn partition(number: i32) -> Self {
        Self::own(RefusalKind::Partition(number))
    }

    /// The destination can't store the record. `words` is a clause that says why.
    pub const fn content(words: &'static str) -> Self {
        Self::own(RefusalKind::Content(words))
    }

    /// A broker's answer to a batch, with its own number.
    pub const fn of_broker(kind: RefusalKind, native: i32) -> Self {
        Self { kind, native: Some(native), of_batch: true }
    }

    /// How much too large the record is, where that is why and the sink knows it.
    pub const fn excess(self) -> Option<Excess> {
        match self.kind {
            RefusalKind::TooLarge(excess) => excess,
            RefusalKind::Destination(_)
            | RefusalKind::Partition(_)
            | RefusalKind::Policy
            | RefusalKind::Invalid
            | RefusalKind::Content(_)
            | RefusalKind::Other => None,
        }
    }

    /// Whether the broker has judged the record compressed, and refused it.
    pub const fn is_compressed(self) -> bool {
        matches!(self.excess(), Some(Excess { compressed: true, .. }))
    }

    /// A stable word for it, in the parked table: what `postrider parked --error` asks for.
    pub const fn code(self) -> &'static str {
        match self.kind {
            RefusalKind::TooLarge(_) => "too_large",
            RefusalKind::Destination(_) => "topic_name",
            RefusalKind::Partition(_) => "partition",
            RefusalKind::Policy => "policy_violation",
            RefusalKind::Invalid | RefusalKind::Content(_) => "invalid_record",
            RefusalKind::Other => "refused_by_broker",
        }
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.native {
            Some(code) => f.debug_tuple("Native").field(&code).finish(),
            None => self.kind.fmt(f),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(code) = self.native {
            return write!(f, "the broker refused it with code {code}");
        }
        match self.kind {
            RefusalKind::TooLarge(Some(Excess { size, limit, compressed: false })) => {
                write!(f, "the record has {size} bytes, the destination takes {limit}")
            }
            RefusalKind::TooLarge(Some(Excess { size, limit, compressed: true })) => write!(
                f,
                "the record has {size} bytes, and compressed it is still larger than the {limit} that the \
                 destination takes"
            ),
            RefusalKind::TooLarge(None) => {
                f.write_str("the record is larger than the destination takes")
            }
            RefusalKind::Destination(words) | RefusalKind::Content(words) => f.write_str(words),
            RefusalKind::Partition(number) => write!(f, "the topic has no partition {number}"),
            RefusalKind::Policy => f.write_str("a policy of the broker forbids it"),
            RefusalKind::Invalid => f.write_str("the broker calls it invalid"),
            RefusalKind::Other => f.write_str("the broker refused it"),
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
