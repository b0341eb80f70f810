//! The JSON Schema of the file, for editors.
//!
//! Only the required keys are listed in this module. Keys, types, words and limits come from reading the reference
//! file, descriptions and defaults from its text.

use super::file::read;
use super::section::Kind;
use crate::sink::KINDS;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The reference file.
pub const REFERENCE: &str = include_str!("../../config/postrider.reference.toml");

/// Required keys.
const REQUIRED: [&str; 8] = [
    "inboxes.*.database",
    "inboxes.*.database.url",
    "inboxes.*.source",
    "pipelines.*.source",
    "pipelines.*.capture.tables",
    "pipelines.*.source.url",
    "pipelines.*.route.replace.pattern",
    "pipelines.*.route.replace.with",
];

/// The pipelines of the reference file: one with an outbox table, and one that captures tables.
const PIPELINES: [&str; 2] = ["orders", "changes"];

/// The intakes of the reference file, one of each kind of source.
const INTAKES: [&str; 5] = ["mail", "payments", "events", "tasks", "jobs"];

/// A string with a variable, which may have any value.
const VARIABLE: &str = r"\$\{";

/// The schema, in JSON Schema 2020-12.
pub fn schema() -> Value {
    let text = uncommented();
    let unset = |_: &str| None;
    // Only the keys that were read matter here, not mistakes in their values.
    let asked = read("", Path::new(""), &text, &unset).map(|(_, found)| found.asked);
    let keys = Keys { asked: asked.unwrap_or_default(), notes: notes() };
    let mut schema = keys.table("");
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "postrider.toml",
        "description": "The configuration of Postrider, which carries events from an outbox table to a message broker.",
    });
    if let (Some(schema), Value::Object(mut head)) = (schema.as_object_mut(), head) {
        head.append(schema);
        return Value::Object(head);
    }
    schema
}

/// The reference file with the keys of its comments.
pub(super) fn uncommented() -> String {
    uncommented_text(REFERENCE)
}

/// A part of a reference file, with everything in it that is in comments.
pub(super) fn uncommented_text(text: &'static str) -> String {
    let line = |line: &'static str| match line.strip_prefix("# ") {
        Some(rest) if is_toml(rest) => rest,
        Some(_) | None => line,
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn is_toml(line: &str) -> bool {
    line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
}

/// Description and default of a key in the reference file.
#[derive(Default)]
struct Note {
    description: String,
    default: Option<Value>,
}

/// Descriptions and defaults, by key path with `*` for the pipeline's name.
/// The reference file comes first: it has the keys of the kind of sink that it uses.
fn notes() -> BTreeMap<String, Note> {
    let mut notes = notes_of(REFERENCE, "");
    for kind in KINDS {
        for (path, note) in notes_of(kind.reference(), "pipelines.*.sink") {
            notes.entry(path).or_insert(note);
        }
    }
    notes
}

/// What a text says of keys, which begins in `table`.
fn notes_of(text: &'static str, table: &str) -> BTreeMap<String, Note> {
    let mut notes = BTreeMap::new();
    let (mut table, mut words) = (table.to_owned(), Vec::new());
    for line in text.lines() {
        let (bare, commented) = line.strip_prefix("# ").map_or((line, false), |rest| (rest, true));
        if !is_toml(bare) {
            match line.strip_prefix("# ") {
                Some(comment) => words.push(comment),
                None => words.clear(),
            }
            continue;
        }
        let description = std::mem::take(&mut words).join(" ");
        if let Some(name) = bare.strip_prefix('[') {
            let name =
                INTAKES.iter().fold(name.trim_end_matches(']').to_owned(), |name, intake| {
                    name.replace(&format!("inboxes.{intake}"), "inboxes.*")
                });
            table = PIPELINES.iter().fold(name, |name, pipeline| {
                name.replace(&format!("pipelines.{pipeline}"), "pipelines.*")
            });
            notes.insert(table.clone(), Note { description, default: None });
        } else if let Some((key, value)) = bare.split_once(" = ") {
            // The value is the default, unless the line is an example or contains the name of the pipeline.
            let said =
                !commented && !description.contains("No default") && !value.contains("_orders");
            let default = said.then(|| value_of(value)).flatten();
            let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
            // The second example of a table says nothing new of a key that the first one has.
            if !description.is_empty() || !notes.contains_key(&path) {
                notes.insert(path, Note { description, default });
            }
        }
    }
    notes
}

/// A TOML value as JSON.
fn value_of(text: &str) -> Option<Value> {
    let table: toml::Table = toml::from_str(&format!("value = {text}")).ok()?;
    serde_json::to_value(table.get("value")?).ok()
}

struct Keys {
    asked: BTreeMap<String, Kind>,
    notes: BTreeMap<String, Note>,
}

impl Keys {
    /// The schema of the table at `path` and of everything in it.
    fn table(&self, path: &str) -> Value {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
        let inside =
            |key: &&String| key.strip_prefix(&prefix).is_some_and(|rest| !rest.contains('.'));
        let (mut properties, mut required) = (Map::new(), Vec::new());
        let mut others = Value::Bool(false);
        for key in self.asked.keys().filter(inside) {
            let name = key.strip_prefix(&prefix).unwrap_or(key);
            if name == "*" {
                others = self.key(key);
                continue;
            }
            properties.insert(name.to_owned(), self.key(key));
            if REQUIRED.contains(&key.as_str()) {
                required.push(name);
            }
        }
        let mut schema = json!({"type": "object"});
        if !properties.is_empty() {
            schema["properties"] = Value::Object(properties);
        }
        schema["additionalProperties"] = others;
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    fn key(&self, path: &str) -> Value {
        let mut schema = match self.asked.get(path) {
            Some(Kind::Table) => self.table(path),
            Some(Kind::TableOrFalse) => json!({"anyOf": [{"const": false}, self.table(path)]}),
            Some(kind) => scalar(kind),
            None => Value::Bool(true),
        };
        if let Some(note) = self.notes.get(path) {
            if !note.description.is_empty() {
                schema["description"] = json!(note.description);
            }
            if let Some(default) = &note.default {
                schema["default"] = default.clone();
            }
        }
        schema
    }
}

fn scalar(kind: &Kind) -> Value {
    let pattern =
        |pattern: &str| json!({"type": "string", "pattern": format!("{pattern}|{VARIABLE}")});
    match kind {
        Kind::Table | Kind::TableOrFalse => json!({"type": "object"}),
        Kind::Text => json!({"type": "string"}),
        Kind::Boolean => json!({"type": "boolean"}),
        Kind::Integer { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        Kind::Duration => pattern("^[0-9]+ *(ms|s|m|h|d)$"),
        Kind::DurationOrNever => pattern("^(0|[0-9]+ *(ms|s|m|h|d))$"),
        Kind::Size => pattern("^[0-9]+ *(B|KiB|MiB|GiB|kB|KB|MB|GB)$"),
        Kind::Word(words) => {
            json!({"anyOf": [{"enum": words}, {"type": "string", "pattern": VARIABLE}]})
        }
        Kind::Words(words) => json!({"type": "array", "items": {"enum": words}}),
        Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Kind::Scalar => json!({"type": ["string", "integer", "number", "boolean", "object"]}),
    }
}

#[cfg(test)]
mod tests;
