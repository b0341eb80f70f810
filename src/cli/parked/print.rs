//! Parked events as text and as JSON.

use crate::parked::Wish;
use crate::postgres::parked::desk::{Action, Listed};
use crate::record::OwnedRecord;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::fmt::Write as _;

const HEAD: [&str; 8] =
    ["POSITION", "STATE", "EVENT", "TYPE", "AGGREGATE", "TRIES", "SINCE", "ERROR"];

/// One line for each event.
pub(super) fn table(pipeline: &str, events: &[Listed], more: bool) -> String {
    if events.is_empty() {
        return format!("{pipeline}: nothing is parked");
    }
    let rows: Vec<[String; HEAD.len()]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(events.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String; HEAD.len()]| {
        let mut text = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let pad = width.saturating_sub(cell.chars().count()) + 2;
            // Writing to a String does not fail.
            write!(text, "{cell}{}", " ".repeat(pad)).unwrap_or_default();
        }
        text.truncate(text.trim_end().len());
        text
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if more {
        lines.push("and more: --limit shows them".to_owned());
    }
    lines.join("\n")
}

fn cells(event: &Listed) -> [String; HEAD.len()] {
    let text = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), printable);
    let asked = event.requested.as_ref().map(|asked| format!(" ({} asked)", asked.what));
    [
        event.position.to_string(),
        format!("{}{}", event.state.name(), asked.unwrap_or_default()),
        text(&event.event_id),
        text(&event.event_type),
        event.aggregate.as_ref().map_or("-".to_owned(), aggregate),
        event.attempts.to_string(),
        text(&event.parked_at),
        text(&event.error_code),
    ]
}

fn aggregate((kind, id): &(String, String)) -> String {
    printable(&format!("{kind}:{id}"))
}

/// Without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Bytes by which a broker counts a record larger than its key, value and headers are: its batch's head and lengths.
const RECORD_OVERHEAD_BYTES: usize = 1024;

/// The command that lets the topic take the event, where there is one.
fn fix(event: &Listed, record: &OwnedRecord, brokers: &str) -> Option<String> {
    let (topic, position) = (&event.topic, event.position);
    if event.state.resolved() || topic.is_empty() {
        return None;
    }
    match event.error_code.as_deref()? {
        "too_large" => Some(format!(
            "kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {topic} \
             --add-config max.message.bytes={}; where payload.size_max sets the limit, raise that; then postrider \
             parked retry {position}",
            record.size_bytes() + RECORD_OVERHEAD_BYTES
        )),
        "topic_missing" => Some(format!(
            "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions 8; the event is then \
             published automatically"
        )),
        _ => None,
    }
}

/// Everything that is known of one event. `brokers`: where the topics are.
pub(super) fn whole(event: &Listed, record: &OwnedRecord, payload: bool, brokers: &str) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        writeln!(text, "{name:<12} {}", printable(value)).unwrap_or_default();
    };
    line("position", &event.position.to_string());
    line("state", event.state.name());
    let partition = record.partition.map_or_else(String::new, |number| format!(" / {number}"));
    let aggregate = event.aggregate.as_ref().map(self::aggregate);
    for (name, value) in [
        ("event", event.event_id.clone()),
        ("type", event.event_type.clone()),
        ("aggregate", aggregate),
        ("error", event.error_code.clone()),
        ("why", event.error.clone()),
        ("fix", fix(event, record, brokers)),
        ("attempts", Some(event.attempts.to_string())),
        ("next try", event.next_attempt_at.clone()),
        ("committed", event.commit_time.clone()),
        ("parked", event.parked_at.clone()),
        ("resolved", event.resolved_at.clone()),
        ("overtaken by", event.overtaken_by.map(|by| by.to_string())),
        ("asked for", event.requested.as_ref().map(action)),
        ("last word", event.acted.as_ref().map(|acted| last_word(acted, event.declined))),
        ("topic", Some(format!("{}{partition}", event.topic)).filter(|topic| !topic.is_empty())),
        ("timestamp", record.timestamp_ms.map(|ms| ms.to_string())),
        ("key", record.key.as_deref().map(bytes)),
    ] {
        if let Some(value) = value {
            line(name, &value);
        }
    }
    for (name, value) in &record.headers {
        let value = value.as_deref().map_or_else(|| "null".to_owned(), bytes);
        line("header", &format!("{name}: {value}"));
    }
    match (&record.value, payload) {
        (Some(value), true) => line("payload", &bytes(value)),
        (Some(value), false) => {
            line("payload", &format!("{} bytes; --payload shows them", value.len()));
        }
        (None, _) if event.state.resolved() => line("payload", "not kept"),
        (None, _) => line("payload", "null"),
    }
    text.truncate(text.trim_end().len());
    text
}

fn action(action: &Action) -> String {
    let part = |word: &str, text: &Option<String>| {
        text.as_ref().map_or_else(String::new, |text| format!("{word}{text}"))
    };
    let (by, at) = (part(" by ", &action.by), part(" at ", &action.at));
    format!("{}{by}{at}{}", action.what, part(": ", &action.reason))
}

fn last_word(acted: &Action, declined: bool) -> String {
    format!("{}{}", if declined { "declined: " } else { "" }, action(acted))
}

/// As text where it is text, else in base64.
fn bytes(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64 {}", BASE64.encode(bytes)),
    }
}

/// One JSON object a line.
pub(super) fn lines(pipeline: &str, events: &[Listed]) -> String {
    let lines: Vec<String> =
        events.iter().map(|event| event_json(pipeline, event).to_string()).collect();
    lines.join("\n")
}

fn event_json(pipeline: &str, event: &Listed) -> Value {
    let action = |action: &Option<Action>| {
        action.as_ref().map(|action| {
            json!({"action": action.what, "by": action.by, "at": action.at, "reason": action.reason})
        })
    };
    json!({
        "pipeline": pipeline,
        "position": event.position.to_string(),
        "state": event.state.name(),
        "event_id": event.event_id,
        "event_type": event.event_type,
        "aggregate_type": event.aggregate.as_ref().map(|(kind, _)| kind),
        "aggregate_id": event.aggregate.as_ref().map(|(_, id)| id),
        "blocks": event.blocks,
        "topic": event.topic,
        "payload_bytes": event.payload_bytes,
        "attempts": event.attempts,
        "next_attempt_at": event.next_attempt_at,
        "error_code": event.error_code,
        "error": event.error,
        "committed_at": event.commit_time,
        "parked_at": event.parked_at,
        "resolved_at": event.resolved_at,
        "overtaken_by": event.overtaken_by.map(|by| by.to_string()),
        "requested": action(&event.requested),
        "acted": action(&event.acted),
        "declined": event.declined,
    })
}

/// As [`whole`].
pub(super) fn whole_json(
    pipeline: &str,
    event: &Listed,
    record: &OwnedRecord,
    payload: bool,
) -> Value {
    let mut value = event_json(pipeline, event);
    let header =
        |(name, value): &(String, Option<Vec<u8>>)| json!([name, bytes_json(value.as_deref())]);
    value["partition"] = json!(record.partition);
    value["timestamp_ms"] = json!(record.timestamp_ms);
    value["key"] = bytes_json(record.key.as_deref());
    value["headers"] = record.headers.iter().map(header).collect();
    if payload {
        value["payload"] = bytes_json(record.value.as_deref());
    }
    value
}

/// A string where it is text, else an object that says so.
fn bytes_json(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (std::str::from_utf8(bytes), bytes)) {
        None => Value::Null,
        Some((Ok(text), _)) => json!(text),
        Some((Err(_), bytes)) => json!({"base64": BASE64.encode(bytes)}),
    }
}

/// What a command did.
pub(super) fn outcome(
    pipeline: &str,
    wish: Wish,
    dry_run: bool,
    told: &[(Listed, String)],
    missing: &[String],
) -> Value {
    let event = |(event, word): &(Listed, String)| {
        let mut value = event_json(pipeline, event);
        value["outcome"] = json!(word);
        value
    };
    json!({
        "pipeline": pipeline,
        "action": wish.name(),
        "dry_run": dry_run,
        "events": told.iter().map(event).collect::<Vec<_>>(),
        "not_parked": missing,
    })
}
