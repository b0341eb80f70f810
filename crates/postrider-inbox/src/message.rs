//! A message as an inbox stores it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write as _};

/// The largest id that a producer gives. Where it is remembered, a history of eight digits and a slash are before it,
/// and both together are a key of at most [`TEXT_BYTES_MAX`] bytes. Unit: bytes.
pub const ID_BYTES_MAX: usize = TEXT_BYTES_MAX - 9;

/// The largest aggregate, and the largest type of an event: both are parts of indexes. Unit: bytes.
pub const TEXT_BYTES_MAX: usize = 1000;

/// The largest name of a source. Unit: bytes.
pub const SOURCE_BYTES_MAX: usize = 200;

/// A message, as it becomes a row of an inbox.
#[derive(Clone, PartialEq, Default)]
pub struct Message {
    /// The key by which the inbox recognises a repetition: that of [`Identity::event_id`].
    pub event_id: String,
    /// What is remembered of the message beyond its row; `None` if the row alone is.
    pub remembered: Option<Remembered>,
    /// The type of the event.
    pub event_type: Option<String>,
    /// Whose message this is: the name of a pipeline, of a topic, or of a receiver of webhooks.
    pub source: String,
    /// The aggregate whose messages are processed in order.
    pub aggregate_id: Option<String>,
    /// The content.
    pub body: Body,
    /// The headers, as a JSON object.
    pub headers: String,
    /// The trace that the message belongs to.
    pub trace_id: Option<String>,
    /// The number of the message among those of its aggregate.
    pub sequence_num: Option<i64>,
    /// The priority; a lower number is processed first.
    pub priority: Option<i16>,
    /// Why the message is stored as a dead one: it does not have what the inbox requires. `None` for other messages.
    pub dead: Option<String>,
}

/// What an inbox requires of its messages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Requirements {
    /// Every message needs an aggregate.
    pub aggregate: bool,
    /// Every message needs a number; the first one of an aggregate is this.
    pub first_sequence: Option<i64>,
    /// The priority of messages that have none.
    pub default_priority: Option<i16>,
}

/// What is remembered of a message beyond its row.
#[derive(Clone, PartialEq, Eq)]
pub enum Remembered {
    /// An id, for some days.
    Id(String),
    /// The position of an event of Postrider, for ever, and its id for some days.
    Position {
        /// The aggregate whose positions rise.
        aggregate: String,
        /// Header `id`.
        id: String,
        /// Header `position`.
        position: String,
    },
}

/// The content of a message.
#[derive(Clone, PartialEq, Eq, Default)]
pub enum Body {
    /// The record has no value.
    #[default]
    Absent,
    /// A text that is JSON.
    Json(String),
    /// Other bytes.
    Bytes(Vec<u8>),
}

impl Body {
    /// JSON where `bytes` are JSON, otherwise the bytes. A text that is JSON may still be one that `jsonb` can't store:
    /// [`Body::as_bytes`] is what becomes of it then.
    pub fn of(bytes: &[u8]) -> Self {
        let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
        match std::str::from_utf8(bytes) {
            Ok(text) if is_json => Self::Json(text.to_owned()),
            Ok(_) | Err(_) => Self::Bytes(bytes.to_vec()),
        }
    }

    /// The same content as bytes.
    #[must_use]
    pub fn as_bytes(self) -> Self {
        match self {
            Self::Json(text) => Self::Bytes(text.into_bytes()),
            Self::Absent | Self::Bytes(_) => self,
        }
    }

    /// Size of the content. Unit: bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Json(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether there is no content.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A text, or its hash if it is not ASCII: every encoding of a server has ASCII.
fn ascii(text: String) -> String {
    if text.is_ascii() {
        return text;
    }
    Sha256::digest(text).iter().fold("#sha256=".to_owned(), |mut hash, byte| {
        // Writing to a string can't fail.
        write!(hash, "{byte:02x}").unwrap_or_default();
        hash
    })
}

impl Message {
    /// The message without what a database of another encoding than UTF-8 may not be able to store: the headers in
    /// base64, neither type nor trace, a hash in place of each id that is not ASCII, and nothing remembered but its
    /// key.
    #[must_use]
    pub fn bare(self) -> Self {
        let headers = serde_json::json!({"base64": STANDARD.encode(&self.headers)}).to_string();
        Self {
            headers,
            event_type: None,
            trace_id: None,
            event_id: ascii(self.event_id),
            source: ascii(self.source),
            aggregate_id: self.aggregate_id.map(ascii),
            dead: self.dead.map(|reason| reason.replace(|c: char| !c.is_ascii(), "?")),
            remembered: None,
            ..self
        }
    }

    /// Gives the message the columns that the inbox requires and that it may still lack: the default priority; and to a
    /// dead message an aggregate of its own, so that it holds back no other message, and the first number.
    #[must_use]
    pub(crate) fn with_required(mut self, needs: &Requirements) -> Self {
        if self.dead.is_some() {
            if needs.aggregate && self.aggregate_id.is_none() {
                // No topic is empty, so no aggregate of topic and key begins with a slash.
                self.aggregate_id = Some(format!("//{}", self.event_id));
            }
            self.sequence_num = self.sequence_num.or(needs.first_sequence);
        }
        self.priority = self.priority.or(needs.default_priority);
        self
    }

    /// Approximate size of the message in memory and in a statement. Unit: bytes.
    pub fn size_bytes(&self) -> usize {
        let known = match &self.remembered {
            None => 0,
            Some(Remembered::Id(id)) => id.len(),
            Some(Remembered::Position { aggregate, id, position }) => {
                aggregate.len() + id.len() + position.len()
            }
        };
        self.body.len() + self.headers.len() + self.event_id.len() + known + 200
    }
}

/// What makes a message the same whenever it arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity<'a> {
    /// An event of Postrider: ids of an outbox are unique within a history of its database.
    Event {
        /// The source.
        source: &'a str,
        /// Eight digits in base 16.
        history: &'a str,
        /// Header `id`.
        id: &'a str,
    },
    /// A message with an id that its producer never gives twice.
    Id {
        /// The source.
        source: &'a str,
        /// The id.
        id: &'a str,
    },
    /// A record without an id: its place in Kafka. A topic that is created again has another id, and a record that
    /// takes the offset of one that was truncated has a higher epoch.
    Record {
        /// The id of the cluster: without an id of the topic it tells topics of the same name apart. Empty if the
        /// brokers have none.
        cluster: &'a str,
        /// The topic.
        topic: &'a str,
        /// The id of the topic; `None` if the broker has no ids.
        topic_id: Option<&'a str>,
        /// The partition.
        partition: i32,
        /// The epoch of the leader that wrote the record; `None` if the broker does not say it.
        leader_epoch: Option<i32>,
        /// The offset.
        offset: i64,
    },
    /// A message of JetStream without an id: its place in the stream. A number that is given again, because the stream
    /// was created again or the server has lost its end, has another time.
    Nats {
        /// The stream.
        stream: &'a str,
        /// The number in the stream.
        sequence: u64,
        /// When the stream stored it. Unit: nanoseconds since 1970.
        stored_ns: i64,
    },
    /// An entry of a stream of Redis without an id: its own. An entry of other content with the same one, of another
    /// server or after a failover, is another message.
    Redis {
        /// The stream.
        stream: &'a str,
        /// The id of the entry.
        entry: &'a str,
        /// The first 16 digits of the hash of its fields, in base 16.
        digest: &'a str,
    },
    /// A message of RabbitMQ without an id, which has no place: only this delivery of it. It is stored as a dead one.
    Delivery {
        /// The queue.
        queue: &'a str,
        /// What no other delivery has.
        receipt: &'a str,
    },
}

impl Identity<'_> {
    /// The key of the message in the inbox. Two identities have the same key only if they are equal: the source ends at
    /// the first slash, and a place has an @ instead.
    pub fn event_id(&self) -> String {
        match self {
            Self::Event { source, history, id } => format!("{}/{history}/{id}", escaped(source)),
            Self::Id { source, id } => format!("{}//{id}", escaped(source)),
            Self::Record { cluster, topic, topic_id, partition, leader_epoch, offset } => {
                // No id of a topic begins with a dot.
                let cluster_id =
                    || if cluster.is_empty() { String::new() } else { format!(".{cluster}") };
                let id = topic_id.map_or_else(cluster_id, str::to_owned);
                let epoch = leader_epoch.map(|epoch| epoch.to_string()).unwrap_or_default();
                format!("{topic}@{id}/{partition}/{epoch}/{offset}")
            }
            // A place of Kafka has three slashes.
            Self::Nats { stream, sequence, stored_ns } => {
                format!("{}@nats/{sequence}/{stored_ns}", escaped(stream))
            }
            Self::Redis { stream, entry, digest } => {
                format!("{}@redis/{entry}/{digest}", escaped(stream))
            }
            Self::Delivery { queue, receipt } => {
                format!("{}@rabbitmq/{receipt}", escaped(queue))
            }
        }
    }
}

/// The source with %, / and @ as in a URL.
fn escaped(source: &str) -> String {
    if !source.contains(['%', '/', '@']) {
        return source.to_owned();
    }
    source.replace('%', "%25").replace('/', "%2F").replace('@', "%40")
}

impl fmt::Debug for Message {
    /// Without content, headers and ids.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("source", &self.source)
            .field("bytes", &self.body.len())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_differ_have_different_keys() {
        let event = |source, history, id| Identity::Event { source, history, id }.event_id();
        let id = |source, id| Identity::Id { source, id }.event_id();
        let record_in = |cluster, topic, (topic_id, leader_epoch), partition, offset| {
            Identity::Record { cluster, topic, topic_id, partition, leader_epoch, offset }
                .event_id()
        };
        let record = |topic, ids, partition, offset| record_in("", topic, ids, partition, offset);
        let all = [
            event("orders", "68F1A2B3", "7"),
            event("orders", "68F1A2B4", "7"),
            event("orders/68F1A2B3", "68F1A2B3", "7"),
            event("orders%2F68F1A2B3", "68F1A2B3", "7"),
            event("shop", "68F1A2B3", "7"),
            id("orders", "68F1A2B3/7"),
            id("orders/68F1A2B3", "7"),
            id("orders/", "7"),
            id("orders@3", "7"),
            id("orders", "@3/7"),
            record("orders", (None, None), 3, 7),
            record("orders", (None, None), 37, 7),
            record("orders", (Some("id"), None), 3, 7),
            record("orders", (Some("other"), None), 3, 7),
            record("orders", (None, Some(1)), 3, 7),
            record("orders", (None, Some(2)), 3, 7),
            record_in("a", "orders", (None, None), 3, 7),
            record_in("b", "orders", (None, None), 3, 7),
            Identity::Nats { stream: "orders", sequence: 3, stored_ns: 7 }.event_id(),
            Identity::Nats { stream: "orders", sequence: 3, stored_ns: 8 }.event_id(),
            Identity::Nats { stream: "other", sequence: 3, stored_ns: 7 }.event_id(),
            Identity::Redis { stream: "orders", entry: "3-7", digest: "a" }.event_id(),
            Identity::Redis { stream: "orders", entry: "3-7", digest: "b" }.event_id(),
            Identity::Redis { stream: "orders@redis", entry: "3-7", digest: "a" }.event_id(),
            Identity::Delivery { queue: "orders", receipt: "3-7" }.event_id(),
        ];
        let mut unique = all.to_vec();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len(), "{all:?}");
        assert_eq!(all[0], "orders/68F1A2B3/7");
        assert_eq!(all[10], "orders@/3//7");
    }

    #[test]
    fn a_dead_message_without_an_aggregate_has_one_of_its_own() {
        let needs =
            Requirements { aggregate: true, first_sequence: Some(1), default_priority: Some(5) };
        let message = |dead: Option<&str>| Message {
            event_id: "orders@/3//7".to_owned(),
            dead: dead.map(str::to_owned),
            ..Message::default()
        };
        let dead = message(Some("no key")).with_required(&needs);
        assert_eq!(dead.aggregate_id.as_deref(), Some("//orders@/3//7"));
        assert_eq!((dead.sequence_num, dead.priority), (Some(1), Some(5)));
        let other = message(None).with_required(&needs);
        assert_eq!((other.aggregate_id, other.sequence_num, other.priority), (None, None, Some(5)));
        let kept = Message { aggregate_id: Some("a".to_owned()), ..message(Some("no number")) };
        assert_eq!(kept.with_required(&needs).aggregate_id.as_deref(), Some("a"));
    }

    #[test]
    fn only_json_is_stored_as_json() {
        for text in ["{}", "[1, 2]", " \"a\" ", "null", "1e400", "{\"a\": \"\\u0000\"}"] {
            assert!(Body::of(text.as_bytes()) == Body::Json(text.to_owned()), "{text}");
        }
        for bytes in [&b""[..], b"{", b"abc", b"{} {}", b"\xff", b"\"\xff\"", b"\0", b"NaN"] {
            assert!(Body::of(bytes) == Body::Bytes(bytes.to_vec()), "{bytes:?}");
        }
    }

    #[test]
    fn debug_output_has_no_content() {
        let message = Message {
            body: Body::Json("\"secret\"".to_owned()),
            headers: "{\"h\": \"secret\"}".to_owned(),
            event_id: "orders//secret".to_owned(),
            ..Message::default()
        };
        assert!(!format!("{message:?}").contains("secret"));
    }
}
