//! What becomes of a record of Kafka: the message that an inbox stores.

use crate::message::{
    Body, ID_BYTES_MAX, Identity, Message, Remembered, Requirements, SOURCE_BYTES_MAX,
    TEXT_BYTES_MAX,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
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

impl KafkaRecord<'_> {
    /// The identity of a record without an id.
    const fn place(&self) -> Identity<'_> {
        Identity::Record {
            cluster: self.cluster,
            topic: self.topic,
            topic_id: self.topic_id,
            partition: self.partition,
            leader_epoch: self.leader_epoch,
            offset: self.offset,
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
        let headers = Headers(record.headers);
        let mut message = self.complete(record, &headers, needs).unwrap_or_else(|why| Message {
            event_id: record.place().event_id(),
            source: record.topic.to_owned(),
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
        record: &KafkaRecord<'_>,
        headers: &Headers<'_>,
        needs: &Requirements,
    ) -> Result<Message, String> {
        let source = if let Some(source) = &self.source {
            source.clone()
        } else {
            let header = headers.text("source")?.filter(|source| !source.is_empty());
            header.unwrap_or(record.topic).to_owned()
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
        record: &KafkaRecord<'_>,
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
        Ok((record.place().event_id(), None))
    }

    /// The header that is configured, else topic and key; `None` if there is none.
    fn aggregate(
        &self,
        record: &KafkaRecord<'_>,
        headers: &Headers<'_>,
    ) -> Result<Option<String>, String> {
        if let Some(header) = &self.aggregate_header {
            return Ok(headers.short_text(header)?.map(str::to_owned));
        }
        let Some(key) = record.key else { return Ok(None) };
        let topic = record.topic;
        // A slash behind the topic means that the text of the key follows. With # it is in another form. No name of a
        // topic has one of the two.
        let text = match plain(key) {
            Some(text) => format!("{topic}/{text}"),
            None => format!("{topic}#{}", STANDARD.encode(key)),
        };
        if text.len() <= TEXT_BYTES_MAX {
            return Ok(Some(text));
        }
        let mut hash = format!("{topic}#sha256=");
        for byte in Sha256::digest(key) {
            // Writing to a String does not fail.
            write!(hash, "{byte:02x}").unwrap_or_default();
        }
        Ok(Some(hash))
    }
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

/// All headers as a JSON object, and the record's place in members whose names begin with `kafka.`. Of several headers
/// of one name the values are an array. A value that is no text is an object with its bytes in base64.
fn headers_json(record: &KafkaRecord<'_>, aggregate: Option<&str>) -> String {
    let mut all = Map::new();
    for (name, value) in record.headers {
        let mut name =
            plain(name).map_or_else(|| format!("base64:{}", STANDARD.encode(name)), str::to_owned);
        if name.starts_with("kafka.") {
            name.insert_str(0, "record.");
        }
        let value = value.map_or(Value::Null, json_text);
        match all.get_mut(&name) {
            None => drop(all.insert(name, value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    all.insert("kafka.topic".to_owned(), record.topic.into());
    all.insert("kafka.partition".to_owned(), record.partition.into());
    all.insert("kafka.offset".to_owned(), record.offset.into());
    if let Some(time) = record.timestamp_ms {
        all.insert("kafka.timestamp_ms".to_owned(), time.into());
    }
    let shows_key = |key: &[u8]| {
        let text = plain(key).unwrap_or("\0");
        aggregate.is_some_and(|aggregate| {
            aggregate.strip_prefix(record.topic).and_then(|rest| rest.strip_prefix('/'))
                == Some(text)
        })
    };
    if let Some(key) = record.key
        && !shows_key(key)
    {
        all.insert("kafka.key".to_owned(), json_text(key));
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
