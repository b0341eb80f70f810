//! An event as `postrider tail` shows it: the record that would be published, or why none can be made.

use crate::cli::error::printable;
use crate::event::Position;
use crate::outbox::{Mapped, Poison};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

/// An event.
pub(super) struct TailedEvent {
    /// `None` for a row of a table, which has no position in the WAL.
    position: Option<Position>,
    event_id: Option<String>,
    event_type: Option<String>,
    aggregate: Option<(String, String)>,
    content: TailedContent,
}

/// What is known of the record.
enum TailedContent {
    Record(Box<TailedRecord>),
    /// Why the event can't be published as it is.
    Poison(String),
}

struct TailedRecord {
    topic: String,
    partition: Option<i32>,
    key: Option<Vec<u8>>,
    timestamp_ms: Option<i64>,
    headers: Vec<(String, Option<Vec<u8>>)>,
    /// `None`: a tombstone.
    payload_bytes: Option<usize>,
    size_bytes: usize,
    /// If payloads are shown.
    payload: Option<Vec<u8>>,
}

impl TailedEvent {
    /// The record that would be published.
    pub(super) fn of(mapped: &Mapped<'_>, position: Option<Position>, payload: bool) -> Self {
        let record = mapped.record();
        let header = |header: &crate::record::Header<'_>| {
            (header.name.to_owned(), header.value.map(<[u8]>::to_vec))
        };
        let content = TailedRecord {
            topic: record.topic.to_owned(),
            partition: record.partition,
            key: record.key.map(<[u8]>::to_vec),
            timestamp_ms: record.timestamp_ms,
            headers: record.headers.iter().map(header).collect(),
            payload_bytes: record.value.map(<[u8]>::len),
            size_bytes: record.size_bytes(),
            payload: record.value.filter(|_| payload).map(<[u8]>::to_vec),
        };
        let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            position,
            event_id: known(mapped.event_id),
            event_type: known(mapped.event_type),
            aggregate: Some((mapped.aggregate.kind.to_owned(), mapped.aggregate.id.to_owned())),
            content: TailedContent::Record(Box::new(content)),
        }
    }

    /// Why no record can be made.
    pub(super) fn poison(poison: &Poison, position: Option<Position>) -> Self {
        Self {
            position,
            event_id: poison.partial.event_id.clone(),
            event_type: poison.partial.event_type.clone(),
            aggregate: poison.partial.aggregate.clone(),
            content: TailedContent::Poison(poison.to_string()),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.position.map(|position| position.to_string()));
        parts.extend(self.event_id.as_ref().map(|id| format!("event {id}")));
        parts.extend(self.event_type.clone());
        parts.extend(self.aggregate.as_ref().map(|(kind, id)| format!("{kind}:{id}")));
        let mut more = String::new();
        match &self.content {
            TailedContent::Poison(why) => parts.push(format!("can't be published: {why}")),
            TailedContent::Record(record) => {
                parts.push(format!("topic {}", record.topic));
                parts.extend(record.partition.map(|partition| format!("partition {partition}")));
                parts.push(match &record.key {
                    Some(key) => format!("key {}", shown(key)),
                    None => "no key".to_owned(),
                });
                parts.push(match record.payload_bytes {
                    Some(bytes) => format!("payload {bytes} B of {} B", record.size_bytes),
                    None => "no payload".to_owned(),
                });
                let headers = record.headers.iter().map(|(name, value)| match value {
                    Some(value) => format!("{name}={}", shown(value)),
                    None => format!("{name} (null)"),
                });
                parts.push(format!("headers {}", headers.collect::<Vec<_>>().join(" ")));
                if let Some(payload) = &record.payload {
                    more = format!("\n  {}", printable(&shown(payload)));
                }
            }
        }
        printable(&parts.join("  ")) + &more
    }

    pub(super) fn json(&self, pipeline: &str) -> Value {
        let mut value = json!({
            "pipeline": pipeline,
            "position": self.position.map(|position| position.to_string()),
            "id": self.event_id,
            "type": self.event_type,
            "aggregate_type": self.aggregate.as_ref().map(|(kind, _)| kind),
            "aggregate_id": self.aggregate.as_ref().map(|(_, id)| id),
        });
        match &self.content {
            TailedContent::Poison(why) => value["error"] = json!(why),
            TailedContent::Record(record) => {
                value["topic"] = json!(record.topic);
                value["partition"] = json!(record.partition);
                value["key"] = bytes(record.key.as_deref());
                value["timestamp_ms"] = json!(record.timestamp_ms);
                let headers = record.headers.iter();
                let headers = headers
                    .map(|(name, value)| json!({ "name": name, "value": bytes(value.as_deref()) }));
                value["headers"] = Value::Array(headers.collect());
                value["payload_bytes"] = json!(record.payload_bytes);
                value["size_bytes"] = json!(record.size_bytes);
                if let Some(payload) = &record.payload {
                    value["payload"] = bytes(Some(payload));
                }
            }
        }
        value
    }
}

/// Bytes for people: as text, or in base64.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", BASE64.encode(bytes)),
    }
}

/// Bytes in JSON: a string, or an object with base64.
fn bytes(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => Value::Null,
        Some((Ok(text), _)) => json!(text),
        Some((Err(_), bytes)) => json!({ "base64": BASE64.encode(bytes) }),
    }
}
