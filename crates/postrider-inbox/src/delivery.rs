//! A message of a broker that acknowledges messages one by one: of NATS JetStream, RabbitMQ or Redis.

use crate::message::Identity;
use serde_json::Value;
use std::fmt;

/// The header in which Postrider's sinks send the key of an event.
const KEY_HEADER: &[u8] = b"key";

/// The header of an event without content, which an empty message does not show.
const NULL_HEADER: &[u8] = b"null";

/// Bytes of a delivery in memory beside its texts. Unit: bytes.
const HELD_BYTES: usize = 300;

/// Name and value of a header.
pub type DeliveredHeader = (Vec<u8>, Option<Vec<u8>>);

/// Where a message comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum DeliveryPlace {
    /// A stream of JetStream.
    Nats {
        /// The stream.
        stream: String,
        /// The subject.
        subject: String,
        /// The number in the stream.
        sequence: u64,
        /// When the stream stored it. Unit: nanoseconds since 1970.
        stored_ns: i64,
    },
    /// A queue of RabbitMQ.
    RabbitMq {
        /// The queue.
        queue: String,
        /// The exchange that it was published to.
        exchange: String,
        /// The routing key.
        routing_key: String,
        /// The property `message-id`; `None` if it is absent or empty.
        message_id: Option<String>,
        /// Further properties that are texts.
        properties: Vec<(&'static str, String)>,
        /// What no other delivery has.
        receipt: String,
    },
    /// A stream of Redis.
    Redis {
        /// The stream.
        stream: String,
        /// The id of the entry.
        entry: String,
        /// The first 16 digits of the hash of its fields, in base 16.
        digest: String,
    },
}

impl DeliveryPlace {
    /// The source of messages that name none: the stream, or the queue.
    pub(crate) fn origin(&self) -> &str {
        match self {
            Self::Nats { stream, .. } | Self::Redis { stream, .. } => stream,
            Self::RabbitMq { queue, .. } => queue,
        }
    }

    /// The identity of a message without an id.
    pub(crate) const fn identity(&self) -> Identity<'_> {
        match self {
            Self::Nats { stream, sequence, stored_ns, .. } => Identity::Nats {
                stream: stream.as_str(),
                sequence: *sequence,
                stored_ns: *stored_ns,
            },
            Self::RabbitMq { queue, receipt, .. } => {
                Identity::Delivery { queue: queue.as_str(), receipt: receipt.as_str() }
            }
            Self::Redis { stream, entry, digest } => Identity::Redis {
                stream: stream.as_str(),
                entry: entry.as_str(),
                digest: digest.as_str(),
            },
        }
    }

    /// The name of the broker.
    pub(crate) const fn broker(&self) -> &'static str {
        match self {
            Self::Nats { .. } => "nats",
            Self::RabbitMq { .. } => "rabbitmq",
            Self::Redis { .. } => "redis",
        }
    }

    /// What is stored of the place among the headers of a message.
    pub(crate) fn members(&self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Nats { stream, subject, sequence, .. } => vec![
                ("stream", stream.as_str().into()),
                ("subject", shown(subject)),
                ("sequence", (*sequence).into()),
            ],
            Self::RabbitMq { queue, exchange, routing_key, message_id, properties, .. } => {
                let mut members = vec![
                    ("queue", queue.as_str().into()),
                    ("exchange", shown(exchange)),
                    ("routing_key", shown(routing_key)),
                ];
                members.extend(message_id.as_ref().map(|id| ("message_id", shown(id))));
                members.extend(properties.iter().map(|(name, text)| (*name, shown(text))));
                members
            }
            Self::Redis { stream, entry, .. } => {
                vec![("stream", stream.as_str().into()), ("entry_id", entry.as_str().into())]
            }
        }
    }
}

/// A text without zero bytes, which PostgreSQL does not store.
fn shown(text: &str) -> Value {
    text.replace('\0', "\u{fffd}").into()
}

/// A message. `Debug` shows its size alone.
#[derive(Clone, PartialEq)]
pub struct Delivery {
    /// Where it comes from.
    pub place: DeliveryPlace,
    /// The subject, the routing key, or the stream.
    pub topic: String,
    /// When the event happened, or was stored. Unit: milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The content; `None` if it is NULL.
    pub value: Option<Vec<u8>>,
    /// Name and value of each header.
    pub headers: Vec<DeliveredHeader>,
}

impl Delivery {
    /// Of a broker whose messages have headers. The key of an event is the last header of its name, and an event
    /// without content has a header that says so.
    pub fn of_headers(
        place: DeliveryPlace,
        (topic, content): (String, Vec<u8>),
        timestamp_ms: Option<i64>,
        mut headers: Vec<DeliveredHeader>,
    ) -> Self {
        let at = headers.iter().rposition(|(name, _)| name == KEY_HEADER);
        let key = at.and_then(|at| headers.remove(at).1);
        let is_null = |(name, value): &DeliveredHeader| {
            name == NULL_HEADER && value.as_deref() == Some(b"true")
        };
        let null = headers.iter().rposition(is_null).filter(|_| content.is_empty());
        let value = match null {
            Some(at) => {
                headers.remove(at);
                None
            }
            None => Some(content),
        };
        Self { place, topic, timestamp_ms, key, value, headers }
    }

    /// Approximate size in memory. Unit: bytes.
    pub fn size_bytes(&self) -> usize {
        let length = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + length(value) + 48).sum();
        headers + self.topic.len() + length(&self.key) + length(&self.value) + HELD_BYTES
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("bytes", &self.size_bytes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::MessageRules;
    use crate::message::{Body, Message, Remembered, Requirements};

    fn header(name: &str, value: &str) -> DeliveredHeader {
        (name.into(), Some(value.into()))
    }

    fn nats(headers: Vec<DeliveredHeader>, content: &str) -> Delivery {
        let place = DeliveryPlace::Nats {
            stream: "EVENTS".to_owned(),
            subject: "orders.eu/west".to_owned(),
            sequence: 7,
            stored_ns: 1_700_000_000_000_000_001,
        };
        let of = ("orders.eu/west".to_owned(), content.into());
        Delivery::of_headers(place, of, Some(1_000), headers)
    }

    fn rabbit(message_id: Option<&str>, headers: Vec<DeliveredHeader>) -> Delivery {
        let place = DeliveryPlace::RabbitMq {
            queue: "orders".to_owned(),
            exchange: "events".to_owned(),
            routing_key: "orders.eu".to_owned(),
            message_id: message_id.map(str::to_owned),
            properties: vec![("content_type", "application/json".to_owned())],
            receipt: "1-1".to_owned(),
        };
        Delivery::of_headers(place, ("orders.eu".to_owned(), b"{}".to_vec()), None, headers)
    }

    fn message(delivery: &Delivery) -> Message {
        MessageRules::default().delivered(delivery, &Requirements::default())
    }

    #[test]
    fn an_event_of_postrider_is_the_same_message_from_every_broker() {
        let headers = || {
            vec![
                header("id", "7"),
                header("type", "OrderPlaced"),
                header("position", "68F1A2B3-0000000001A2B3C8-00000005"),
                header("source", "shop"),
                header("key", "42"),
            ]
        };
        let of_nats = message(&nats(headers(), "{\"n\": 1}"));
        assert_eq!(of_nats.event_id, "shop/68F1A2B3/7");
        assert_eq!(of_nats.aggregate_id.as_deref(), Some("orders.eu%2Fwest/42"));
        assert_eq!((of_nats.source.as_str(), of_nats.dead), ("shop", None));
        assert!(of_nats.body == Body::Json("{\"n\": 1}".to_owned()));
        let shown: Value = serde_json::from_str(&of_nats.headers).expect("JSON");
        assert_eq!((&shown["nats.sequence"], &shown["nats.stream"]), (&7.into(), &"EVENTS".into()));
        assert_eq!(
            (shown.get("key"), shown.get("nats.key")),
            (None, None),
            "the aggregate shows it"
        );
        let of_rabbit = message(&rabbit(Some("7"), headers()));
        assert_eq!(of_rabbit.event_id, of_nats.event_id);
        assert!(of_rabbit.remembered == of_nats.remembered);
    }

    #[test]
    fn a_message_without_an_id_is_known_by_its_place_and_remembered() {
        let plain = message(&nats(Vec::new(), ""));
        assert_eq!(plain.event_id, "EVENTS@nats/7/1700000000000000001");
        let remembered = Remembered::Id("@EVENTS@nats/7/1700000000000000001".to_owned());
        assert!(plain.remembered == Some(remembered));
        assert!(plain.body == Body::Bytes(Vec::new()), "an empty content is no NULL");
        let null = message(&nats(vec![header("null", "true")], ""));
        assert!(null.body == Body::Absent && !null.headers.contains("null"));
    }

    #[test]
    fn a_message_of_rabbitmq_without_an_id_is_dead() {
        let known = message(&rabbit(Some("m-1"), Vec::new()));
        assert_eq!((known.event_id.as_str(), known.dead), ("orders//m-1", None));
        let unknown = message(&rabbit(None, Vec::new()));
        assert_eq!(unknown.event_id, "orders@rabbitmq/1-1");
        assert!(unknown.dead.is_some_and(|why| why.contains("message-id")));
        assert!(unknown.remembered.is_none());
        let odd = message(&rabbit(Some("a\0b"), Vec::new()));
        assert!(
            odd.dead.is_some() && !odd.event_id.contains('\0') && !odd.headers.contains("\\u0000")
        );
        let rules = MessageRules { id_header: Some("x-id".to_owned()), ..MessageRules::default() };
        let named = rabbit(Some("m-1"), vec![header("x-id", "9")]);
        let named = rules.delivered(&named, &Requirements::default());
        assert_eq!(named.event_id, "orders//9");
    }

    #[test]
    fn names_of_topics_do_not_run_into_keys() {
        let aggregate = |topic: &str, key: &str| {
            let delivery =
                Delivery { topic: topic.to_owned(), key: Some(key.into()), ..nats(Vec::new(), "") };
            message(&delivery).aggregate_id.expect("an aggregate")
        };
        let long = "x".repeat(1_000);
        let all = [
            aggregate("a", "b/c"),
            aggregate("a/b", "c"),
            aggregate("a%2Fb", "c"),
            aggregate("a#b", "c"),
            aggregate(&long, "c"),
            aggregate(&long, "d"),
            aggregate(&format!("{long}y"), "c"),
        ];
        let mut unique = all.to_vec();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), all.len(), "{all:?}");
        assert!(all.iter().all(|aggregate| aggregate.len() <= 1_000));
    }

    #[test]
    fn debug_output_has_no_content() {
        assert!(!format!("{:?}", nats(vec![header("x", "hush")], "hush")).contains("hush"));
    }
}
