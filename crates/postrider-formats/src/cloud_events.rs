//! CloudEvents 1.0: `binary`, where the attributes are headers and the payload stays as it is, and `structured`, where
//! one JSON document has both. Sources: the specification of CloudEvents 1.0.2, its JSON format, and its bindings to
//! Kafka, HTTP, NATS and AMQP.

use crate::draft::Draft;
use crate::step::{NotReady, Step, is_dead_letter};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postrider_core::record::{Record, Refusal};
use postrider_sinks::CloudEventsBinding;
use serde_json::value::RawValue;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

/// The media type of a structured event.
const STRUCTURED: &str = "application/cloudevents+json; charset=UTF-8";

/// The attribute that names the place of the payload, of the extension `dataref` (claim check).
pub(crate) const DATA_REF: &str = "dataref";

/// How an event is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloudEventsMode {
    /// The attributes are headers.
    Binary,
    /// The attributes and the payload are one JSON document.
    Structured,
}

/// The step that makes a CloudEvent of each record.
#[derive(Debug)]
pub(crate) struct CloudEvents {
    mode: CloudEventsMode,
    /// The media type of the payload.
    content_type: String,
    binding: CloudEventsBinding,
    names: AttributeNames,
}

/// The names of headers.
#[derive(Debug)]
struct AttributeNames {
    spec_version: Arc<str>,
    id: Arc<str>,
    time: Arc<str>,
    position: Arc<str>,
    /// Set by the pipeline's templates.
    source: String,
    event_type: String,
    subject: String,
    content_type: Arc<str>,
}

impl AttributeNames {
    /// Whether a header of this name is made by a template of the pipeline.
    fn are_of_template(&self, name: &str) -> bool {
        [&self.source, &self.event_type, &self.subject].into_iter().any(|known| known == name)
    }
}

impl CloudEvents {
    pub(crate) fn new(
        mode: CloudEventsMode,
        content_type: &str,
        binding: CloudEventsBinding,
    ) -> Self {
        let name = |attribute: &str| format!("{}{attribute}", binding.prefix);
        let names = AttributeNames {
            spec_version: name("specversion").into(),
            id: name("id").into(),
            time: name("time").into(),
            position: name("position").into(),
            source: name("source"),
            event_type: name("type"),
            subject: name("subject"),
            content_type: "content-type".into(),
        };
        Self { mode, content_type: content_type.to_owned(), binding, names }
    }

    /// Adds the attributes that no template makes.
    fn binary(&self, record: &Record<'_>, draft: &mut Draft, id: &[u8]) {
        let mut text = Vec::new();
        let mut add = |draft: &mut Draft, name: &Arc<str>, value: &[u8]| {
            text.clear();
            self.binding.write_value(&mut text, value);
            draft.add_header(name, &text);
        };
        add(draft, &self.names.spec_version, b"1.0");
        add(draft, &self.names.id, id);
        if let Some(time) = time(record) {
            add(draft, &self.names.time, time.as_bytes());
        }
        if let Some(position) = header(record, "position") {
            add(draft, &self.names.position, position);
        }
        for (index, header) in record.headers.iter().enumerate() {
            let Some(value) = header.value.filter(|_| self.names.are_of_template(header.name))
            else {
                continue;
            };
            text.clear();
            self.binding.write_value(&mut text, value);
            if value.is_empty() {
                draft.remove_header(index);
            } else if text != value {
                draft.replace_header(index, &text);
            }
        }
        let has_type = record.headers.iter().any(|h| h.name.eq_ignore_ascii_case("content-type"));
        if draft.value(record).is_some() && !has_type {
            draft.add_header(&self.names.content_type, self.content_type.as_bytes());
        }
    }

    /// The whole event as one document.
    fn structured(&self, record: &Record<'_>, draft: &mut Draft, id: &[u8]) -> Result<(), Refusal> {
        let Some(value) = draft.value(record) else { return Ok(()) };
        let mut document = String::with_capacity(value.len() + 256);
        document.push_str("{\"specversion\":\"1.0\"");
        let mut add = |name: &str, value: &[u8]| {
            document.push_str(",\"");
            document.push_str(name);
            document.push_str("\":");
            push_json(&mut document, &String::from_utf8_lossy(value));
        };
        add("id", id);
        for (name, of) in [
            ("source", &self.names.source),
            ("type", &self.names.event_type),
            ("subject", &self.names.subject),
        ] {
            if let Some(value) = header(record, of).filter(|value| !value.is_empty()) {
                add(name, value);
            }
        }
        if let Some(time) = time(record) {
            add("time", time.as_bytes());
        }
        if let Some(position) = header(record, "position") {
            add("position", position);
        }
        if let Some(place) = draft.header(DATA_REF) {
            add(DATA_REF, place);
            add("datacontenttype", self.content_type.as_bytes());
        } else {
            add("datacontenttype", self.content_type.as_bytes());
            push_data(&mut document, &self.content_type, value)?;
        }
        document.push('}');
        // Readers take an event for a binary one if there is one header of these.
        for (index, header) in record.headers.iter().enumerate() {
            if header.name.starts_with(self.binding.prefix) {
                draft.remove_header(index);
            }
        }
        let mut buffer = draft.buffer();
        buffer.extend_from_slice(document.as_bytes());
        draft.set_value(buffer);
        draft.add_header(&self.names.content_type, STRUCTURED.as_bytes());
        Ok(())
    }
}

impl Step for CloudEvents {
    fn apply(
        &mut self,
        record: &Record<'_>,
        draft: &mut Draft,
        _since: Option<Instant>,
    ) -> Result<(), NotReady> {
        match self.make(record, draft) {
            // It may be dead for the same reason, and must be in its topic as the application wrote it.
            Err(_) if is_dead_letter(record) => Ok(()),
            made => made.map_err(NotReady::Refused),
        }
    }
}

impl CloudEvents {
    /// Makes a CloudEvent of the record. The draft is not changed by a refusal.
    fn make(&self, record: &Record<'_>, draft: &mut Draft) -> Result<(), Refusal> {
        let Some(id) = header(record, "id").filter(|id| !id.is_empty()) else {
            return Err(Refusal::content("the event has no id, which a CloudEvent must have"));
        };
        let required = [
            (
                &self.names.source,
                "format.source is empty for this event: a CloudEvent must have a source",
            ),
            (
                &self.names.event_type,
                "format.type is empty for this event: a CloudEvent must have a type",
            ),
        ];
        for (name, words) in required {
            if header(record, name).is_none_or(<[u8]>::is_empty) {
                return Err(Refusal::content(words));
            }
        }
        match self.mode {
            CloudEventsMode::Binary => {
                self.binary(record, draft, id);
                Ok(())
            }
            CloudEventsMode::Structured => self.structured(record, draft, id),
        }
    }
}

fn header<'a>(record: &Record<'a>, name: &str) -> Option<&'a [u8]> {
    record.headers.iter().find(|header| header.name == name)?.value
}

/// The record's time, as RFC 3339 in UTC.
fn time(record: &Record<'_>) -> Option<String> {
    let time = jiff::Timestamp::from_millisecond(record.timestamp_ms?).ok()?;
    Some(format!("{time:.3}"))
}

/// Adds member `data`, or `data_base64` for a payload that is no text.
fn push_data(document: &mut String, content_type: &str, value: &[u8]) -> Result<(), Refusal> {
    let text = std::str::from_utf8(value).ok();
    if is_json(content_type) {
        let json = text.filter(|text| serde_json::from_str::<&RawValue>(text).is_ok());
        let Some(json) = json else {
            return Err(Refusal::content(
                "the payload is no JSON, and format.content_type says that it is",
            ));
        };
        document.push_str(",\"data\":");
        document.push_str(json);
    } else if let Some(text) = text.filter(|_| content_type.starts_with("text/")) {
        document.push_str(",\"data\":");
        push_json(document, text);
    } else {
        document.push_str(",\"data_base64\":\"");
        STANDARD.encode_string(value, document);
        document.push('"');
    }
    Ok(())
}

/// Whether a payload of this media type is JSON, as the JSON format of CloudEvents decides it.
fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let subtype = media.split_once('/').map_or("", |(_, subtype)| subtype);
    subtype.eq_ignore_ascii_case("json") || subtype.to_ascii_lowercase().ends_with("+json")
}

/// Adds a JSON string.
fn push_json(document: &mut String, text: &str) {
    document.push('"');
    for c in text.chars() {
        match c {
            '"' => document.push_str("\\\""),
            '\\' => document.push_str("\\\\"),
            c if c < ' ' => {
                // Writing to a string can't fail.
                let _written = write!(document, "\\u{:04x}", u32::from(c));
            }
            c => document.push(c),
        }
    }
    document.push('"');
}

#[cfg(test)]
mod tests;
