//! What becomes of a record of Kafka, or of a message of another broker: the message that an inbox stores.

use crate::delivery::{Delivery, DeliveryPlace};
use crate::message::{
    Body, ID_BYTES_MAX, Identity, Message, Remembered, Requirements, SOURCE_BYTES_MAX,
    TEXT_BYTES_MAX,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::fmt::Write as _;

/// A record of Kafka.
#[derive(Clone, Copy, Debug)]
pub struct KafkaRecord<'a> {
    /// The id of the cluster; empty if the brokers have none.
    pub cluster: &'a str,
    /// The topic.
    pub topic: &'a str,
    /// The id of the topic; `None` if the broker has no ids.
    pub topic_id: Option<&'a str>,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// The epoch of the leader that wrote the record; `None` if the broker does not say it.
    pub leader_epoch: Option<i32>,
    /// The time of the record. Unit: milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// Name and value of each header, in their order.
    pub headers: &'a [(&'a [u8], Option<&'a [u8]>)],
}

/// Name and value of a header.
type HeaderPair<'a> = (&'a [u8], Option<&'a [u8]>);

/// Where a message comes from.
#[derive(Clone, Copy)]
enum Place<'a> {
    Kafka(&'a KafkaRecord<'a>),
    Other(&'a DeliveryPlace),
}

/// A message of any broker, as the rules see it.
struct Incoming<'a> {
    place: Place<'a>,
    /// The topic, the subject, the routing key, or the stream.
    topic: &'a str,
    /// The source, if neither the rules nor a header name one.
    origin: &'a str,
    timestamp_ms: Option<i64>,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    headers: &'a [HeaderPair<'a>],
}

impl<'a> Place<'a> {
    /// The identity of a message without an id.
    const fn identity(self) -> Identity<'a> {
        match self {
            Self::Kafka(record) => Identity::Record {
                cluster: record.cluster,
                topic: record.topic,
                topic_id: record.topic_id,
                partition: record.partition,
                leader_epoch: record.leader_epoch,
                offset: record.offset,
            },
            Self::Other(place) => place.identity(),
        }
    }

    /// The name of the broker, before the names of the members that [`headers_json`] adds.
    const fn broker(self) -> &'static str {
        match self {
            Self::Kafka(_) => "kafka",
            Self::Other(place) => place.broker(),
        }
    }

    /// These members without the name of the broker.
    fn members(self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Kafka(record) => vec![
                ("topic", record.topic.into()),
                ("partition", record.partition.into()),
                ("offset", record.offset.into()),
            ],
            Self::Other(place) => place.members(),
        }
    }
}

impl Incoming<'_> {
    /// The key in the inbox of a message without an id, and what is remembered of it.
    ///
    /// # Errors
    /// A message of this place needs an id.
    fn identity(&self) -> Result<(String, Option<Remembered>), String> {
        let event_id = self.place.identity().event_id();
        match self.place {
            // The stored offset is what recognises it.
            Place::Kafka(_) => Ok((event_id, None)),
            Place::Other(DeliveryPlace::RabbitMq { .. }) => Err(
                "the message has no id by which it would be recognised if it came again: neither those of Postrider, \
                 nor the header of message.id_header, nor the property message-id"
                    .to_owned(),
            ),
            // No history and no id of a producer begins so.
            Place::Other(_) => {
                let remembered = Remembered::Id(format!("@{event_id}"));
                Ok((event_id, Some(remembered)))
            }
        }
    }
}

/// `[inboxes.NAME.message]`: which headers a message is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageRules {
    /// The source of every message; `None`: header `source`, or the topic.
    pub source: Option<String>,
    /// The header with an id that the producer never gives twice, for records that are no events of Postrider.
    pub id_header: Option<String>,
    /// The header with the type.
    pub type_header: String,
    /// The header with the aggregate; `None`: topic and key.
    pub aggregate_header: Option<String>,
    /// The header with the number of the message among those of its aggregate.
    pub sequence_header: Option<String>,
    /// The header with the priority.
    pub priority_header: Option<String>,
    /// Whether positions are compared: an event whose position is not higher than an earlier one of its aggregate is a
    /// repetition.
    pub positions: bool,
}

impl Default for MessageRules {
    fn default() -> Self {
        Self {
            source: None,
            id_header: None,
            type_header: "type".to_owned(),
            aggregate_header: None,
            sequence_header: None,
            priority_header: None,
            positions: false,
        }
    }
}

/// The headers of a record that were found to be a text, or why not.
pub(crate) struct Headers<'a>(pub(crate) &'a [(&'a [u8], Option<&'a [u8]>)]);

impl<'a> Headers<'a> {
    /// The first header of a name; `None` if there is none, or if its value is null.
    fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.0.iter().find(|(known, _)| *known == name.as_bytes()).and_then(|(_, value)| *value)
    }

    /// The same as a text.
    ///
    /// # Errors
    /// The value is not UTF-8, or has a zero byte, which PostgreSQL does not store in a text.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.bytes(name) {
            None => Ok(None),
            Some(bytes) => match plain(bytes) {
                Some(text) => Ok(Some(text)),
                None => Err(format!("header \"{name}\" is no text")),
            },
        }
    }

    /// The same as a text of at most [`TEXT_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The value is no such text.
    pub(crate) fn short_text(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.text(name)? {
            Some(text) if text.len() > TEXT_BYTES_MAX => {
                let bytes = text.len();
                Err(format!(
                    "header \"{name}\" has {bytes} bytes, and {TEXT_BYTES_MAX} can be stored"
                ))
            }
            text => Ok(text),
        }
    }
}

/// The text of bytes that PostgreSQL can store as text.
pub(crate) fn plain(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

impl MessageRules {
    /// The message of a record. A record that does not have what the inbox requires becomes a dead message, with the
    /// reason in [`Message::dead`]: none is left out.
    pub fn message(&self, record: &KafkaRecord<'_>, needs: &Requirements) -> Message {
        let incoming = Incoming {
            place: Place::Kafka(record),
            topic: record.topic,
            origin: record.topic,
            timestamp_ms: record.timestamp_ms,
            key: record.key,
            value: record.value,
            headers: record.headers,
        };
        self.message_of(&incoming, needs)
    }

    /// The same of a message of another broker than Kafka.
    pub fn delivered(&self, delivery: &Delivery, needs: &Requirements) -> Message {
        let pairs: Vec<HeaderPair<'_>> = delivery
            .headers
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_deref()))
            .collect();
        let incoming = Incoming {
            place: Place::Other(&delivery.place),
            topic: &delivery.topic,
            origin: delivery.place.origin(),
            timestamp_ms: delivery.timestamp_ms,
            key: delivery.key.as_deref(),
            value: delivery.value.as_deref(),
            headers: &pairs,
        };
        self.message_of(&incoming, needs)
    }

    fn message_of(&self, record: &Incoming<'_>, needs: &Requirements) -> Message {
        let headers = Headers(record.headers);
        let mut message = self.complete(record, &headers, needs).unwrap_or_else(|why| Message {
            event_id: record.place.identity().event_id(),
            source: record.origin.to_owned(),
            aggregate_id: self.aggregate(record, &headers).ok().flatten(),
            dead: Some(why),
            ..Message::default()
        });
        message.body = record.value.map_or(Body::Absent, Body::of);
        message.headers = headers_json(record, message.aggregate_id.as_deref());
        message.with_required(needs)
    }

    /// A message without content and headers.
    ///
    /// # Errors
    /// Why the record can't be processed, as a fragment without its content.
    fn complete(
        &self,
        record: &Incoming<'_>,
        headers: &Headers<'_>,
        needs: &Requirements,
    ) -> Result<Message, String> {
        let source = if let Some(source) = &self.source {
            source.clone()
        } else {
            let header = headers.text("source")?.filter(|source| !source.is_empty());
            header.unwrap_or(record.origin).to_owned()
        };
        if source.len() > SOURCE_BYTES_MAX {
            return Err(format!("header \"source\" has {} bytes", source.len()));
        }
        let aggregate_id = self.aggregate(record, headers)?;
        let (event_id, remembered) =
            self.identity(record, headers, &source, aggregate_id.as_deref())?;
        let mut message = Message {
            event_id,
            remembered,
            event_type: headers.short_text(&self.type_header)?.map(str::to_owned),
            source,
            aggregate_id,
            trace_id: trace_id(headers)?,
            sequence_num: number(headers, self.sequence_header.as_deref())?,
            priority: number(headers, self.priority_header.as_deref())?,
            ..Message::default()
        };
        // The other columns are kept: in an ordered inbox the message is dead in its own place.
        message.dead = if needs.aggregate && message.aggregate_id.is_none() {
            Some("the record has no key, and the inbox has an order".to_owned())
        } else if needs.first_sequence.is_some() && message.sequence_num.is_none() {
            Some(match &self.sequence_header {
                Some(header) => format!("the record has no header \"{header}\""),
                None => "message.sequence_header is not set, and the inbox is ordered by sequence"
                    .to_owned(),
            })
        } else {
            None
        };
        Ok(message)
    }

    /// The key in the inbox, and what is remembered.
    fn identity(
        &self,
        record: &Incoming<'_>,
        headers: &Headers<'_>,
        source: &str,
        aggregate: Option<&str>,
    ) -> Result<(String, Option<Remembered>), String> {
        let position = headers.bytes("position").and_then(plain).filter(|text| is_position(text));
        let history = headers.bytes("history").and_then(plain).filter(|text| is_history(text));
        let history = position.and_then(|position| position.get(..8)).or(history);
        if let (Some(history), Some(id)) = (history, headers.text("id")?) {
            let event_id = Identity::Event { source, history, id: checked("id", id)? }.event_id();
            let remembered = match (position, aggregate) {
                (Some(position), Some(aggregate)) if self.positions => Remembered::Position {
                    aggregate: aggregate.to_owned(),
                    id: id.to_owned(),
                    position: position.to_owned(),
                },
                _ => Remembered::Id(format!("{history}/{id}")),
            };
            return Ok((event_id, Some(remembered)));
        }
        if let Some(header) = &self.id_header
            && let Some(id) = headers.text(header)?
        {
            let event_id = Identity::Id { source, id: checked(header, id)? }.event_id();
            return Ok((event_id, Some(Remembered::Id(format!("/{id}")))));
        }
        if let Place::Other(DeliveryPlace::RabbitMq { message_id: Some(id), .. }) = record.place {
            let id = plain(id.as_bytes()).ok_or("the property message-id is no text")?;
            let event_id = Identity::Id { source, id: checked("message-id", id)? }.event_id();
            return Ok((event_id, Some(Remembered::Id(format!("/{id}")))));
        }
        record.identity()
    }

    /// The header that is configured, else topic and key; `None` if there is none.
    fn aggregate(
        &self,
        record: &Incoming<'_>,
        headers: &Headers<'_>,
    ) -> Result<Option<String>, String> {
        if let Some(header) = &self.aggregate_header {
            return Ok(headers.short_text(header)?.map(str::to_owned));
        }
        let Some(key) = record.key else { return Ok(None) };
        let topic = escaped_topic(record.topic);
        // A slash behind the topic means that the text of the key follows. With # it is in another form. No name of a
        // topic has one of the two.
        let text = match plain(key) {
            Some(text) => format!("{topic}/{text}"),
            None => format!("{topic}#{}", STANDARD.encode(key)),
        };
        if text.len() <= TEXT_BYTES_MAX {
            return Ok(Some(text));
        }
        let hash = format!("{topic}#sha256={}", sha256(key));
        if hash.len() <= TEXT_BYTES_MAX {
            return Ok(Some(hash));
        }
        Ok(Some(format!("#sha256={}#sha256={}", sha256(record.topic.as_bytes()), sha256(key))))
    }
}

/// The name of a topic without slash, # and zero bytes. Only names of other brokers than Kafka have them.
fn escaped_topic(topic: &str) -> Cow<'_, str> {
    if !topic.contains(['%', '/', '#', '\0']) {
        return Cow::Borrowed(topic);
    }
    let escaped = topic.replace('%', "%25").replace('/', "%2F").replace('#', "%23");
    Cow::Owned(escaped.replace('\0', "%00"))
}

/// Digits in base 16.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hash, byte| {
        // Writing to a String does not fail.
        write!(hash, "{byte:02x}").unwrap_or_default();
        hash
    })
}

fn checked<'a>(header: &str, id: &'a str) -> Result<&'a str, String> {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        let bytes = id.len();
        return Err(format!(
            "header \"{header}\" has {bytes} bytes, an id has 1 to {ID_BYTES_MAX}"
        ));
    }
    Ok(id)
}

/// `68F1A2B3-0000000001A2B3C8-00000005`, as Postrider sends it.
fn is_position(text: &str) -> bool {
    let mut parts = text.split('-');
    let part = |part: Option<&str>, digits| part.is_some_and(|part| is_hex(part, digits));
    part(parts.next(), 8)
        && part(parts.next(), 16)
        && part(parts.next(), 8)
        && parts.next().is_none()
}

fn is_history(text: &str) -> bool {
    is_hex(text, 8)
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
}

/// A header that is a whole number.
pub(crate) fn number<T: std::str::FromStr>(
    headers: &Headers<'_>,
    header: Option<&str>,
) -> Result<Option<T>, String> {
    let Some(header) = header else { return Ok(None) };
    match headers.text(header)?.map(str::parse) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(format!("header \"{header}\" is no number that the inbox can store")),
    }
}

/// The trace id of a W3C header `traceparent`, else header `trace_id`.
pub(crate) fn trace_id(headers: &Headers<'_>) -> Result<Option<String>, String> {
    if let Some(parent) = headers.text("traceparent")? {
        let id = parent.split('-').nth(1).filter(|id| id.len() == 32);
        if let Some(id) = id {
            return Ok(Some(id.to_owned()));
        }
    }
    Ok(headers.text("trace_id")?.map(str::to_owned))
}

/// All headers as a JSON object, and the record's place in members whose names begin with that of the broker, such as
/// `kafka.`. Of several headers of one name the values are an array. A value that is no text is an object with its
/// bytes in base64.
fn headers_json(record: &Incoming<'_>, aggregate: Option<&str>) -> String {
    let broker = record.place.broker();
    let is_ours = |name: &str| name.strip_prefix(broker).is_some_and(|rest| rest.starts_with('.'));
    let mut all = Map::new();
    for (name, value) in record.headers {
        let mut name =
            plain(name).map_or_else(|| format!("base64:{}", STANDARD.encode(name)), str::to_owned);
        if is_ours(&name) {
            name.insert_str(0, "record.");
        }
        let value = value.map_or(Value::Null, json_text);
        match all.get_mut(&name) {
            None => drop(all.insert(name, value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    for (name, value) in record.place.members() {
        all.insert(format!("{broker}.{name}"), value);
    }
    if let Some(time) = record.timestamp_ms {
        all.insert(format!("{broker}.timestamp_ms"), time.into());
    }
    let topic = escaped_topic(record.topic);
    let shows_key = |key: &[u8]| {
        let text = plain(key).unwrap_or("\0");
        aggregate.is_some_and(|aggregate| {
            aggregate.strip_prefix(&*topic).and_then(|rest| rest.strip_prefix('/')) == Some(text)
        })
    };
    if let Some(key) = record.key
        && !shows_key(key)
    {
        all.insert(format!("{broker}.key"), json_text(key));
    }
    Value::Object(all).to_string()
}

/// A text, or an object with the bytes in base64.
pub(crate) fn json_text(bytes: &[u8]) -> Value {
    if let Some(text) = plain(bytes) {
        return text.into();
    }
    let mut object = Map::new();
    object.insert("base64".to_owned(), STANDARD.encode(bytes).into());
    Value::Object(object)
}

#[cfg(test)]
mod tests;
