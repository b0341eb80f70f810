//! The options of the outbox event router.

use super::java_regex;
use super::read::Flavour;
use super::translator::Translator;
use super::translator::Verdict::{NoCounterpart, NotNeeded, Translated};
use crate::init::InitError;
use crate::init::draft::verbatim;
use crate::outbox::{Layout, Mapper, OutboxSpec, Replace, Role};
use toml::Value;

const DEFAULT_REGEX: &str = "(?<routedByValue>.*)";
const DEFAULT_REPLACEMENT: &str = "outbox.event.${routedByValue}";

pub(super) fn translate(t: &mut Translator<'_>) -> Result<(), InitError> {
    t.draft.set("outbox", "layout", Layout::Debezium.name());
    column(t, Role::Id, &["table.field.event.id"]);
    column(t, Role::AggregateType, &["route.by.field"]);
    column(t, Role::AggregateId, &["table.field.event.key", "table.field.payload.id"]);
    column(t, Role::Payload, &["table.field.event.payload", "table.field.payload"]);
    column(t, Role::Time, &["table.field.event.timestamp"]);
    operations(t);
    let has_envelope = placement(t)?;
    topic(t)?;
    payload(t, has_envelope);
    value_converter(t, has_envelope);
    key_converter(t);
    Ok(())
}

/// With `fatal` an UPDATE of the outbox table stops Debezium. With `warn` and `error` it is logged and dropped;
/// Postrider's stream does not contain it.
fn operations(t: &mut Translator<'_>) {
    let behavior = t.router("table.op.invalid.behavior");
    if behavior.is_some_and(|behavior| behavior.eq_ignore_ascii_case("fatal")) {
        t.draft.set("outbox", "on_update", "halt");
    }
}

/// Sets a column that has another name than in the layout.
fn column(t: &mut Translator<'_>, role: Role, options: &[&str]) {
    let Some(column) = options.iter().find_map(|option| t.router(option)) else { return };
    if Layout::Debezium.column(role) != Some(column) {
        t.draft.set("outbox.columns", role.name(), verbatim(column));
    }
}

/// `column:header:alias,column:envelope,column:partition`. Returns whether a column is placed in the envelope.
fn placement(t: &mut Translator<'_>) -> Result<bool, InitError> {
    let may_lack = t
        .router("table.field.additional.missing")
        .is_some_and(|v| v.eq_ignore_ascii_case("ignore"))
        || t.router("table.fields.additional.error.on.missing")
            .is_some_and(|v| v.eq_ignore_ascii_case("false"));
    let Some(list) = t.router_as_given("table.fields.additional.placement") else {
        return Ok(false);
    };
    let mut members = vec!["payload"];
    // Java drops empty entries at the end and only there; an empty list has one empty entry.
    let entries = list.trim_end_matches(|c: char| c == ',' || c.is_whitespace());
    if entries.is_empty() && !list.is_empty() {
        return Ok(false);
    }
    for entry in entries.split(',').map(str::trim) {
        let parts: Vec<&str> = entry.trim_end_matches(':').split(':').map(str::trim).collect();
        let (column, way, alias) = match parts.as_slice() {
            [column, way] => (*column, *way, *column),
            [column, way, alias] => (*column, *way, *alias),
            _ => return Err(bad_placement(entry)),
        };
        if column.is_empty() || alias.is_empty() {
            return Err(bad_placement(entry));
        }
        match way.to_ascii_lowercase().as_str() {
            "header" => header(t, column, alias, may_lack),
            "envelope" if members.contains(&alias) => return Err(taken_member(entry, alias)),
            "envelope" => {
                members.push(alias);
                envelope(t, column, alias, may_lack);
            }
            "partition" if t.draft.get("outbox.extra", column).is_none() => {
                t.draft.place(column, "partition", Value::Boolean(true), may_lack);
            }
            "partition" => t.draft.set("route", "partition", format!("{{{column}}}")),
            _ => return Err(bad_placement(entry)),
        }
    }
    Ok(members.len() > 1)
}

/// The error for two columns with the same member name. The payload has the member name `payload`.
fn taken_member(entry: &str, alias: &str) -> InitError {
    InitError::NotOurs {
        what: format!(
            "\"{entry}\" in table.fields.additional.placement: the envelope already has a member \"{alias}\""
        ),
        hint: "give the column another alias: column:envelope:alias; Debezium itself fails at the first record"
            .to_owned(),
    }
}

fn bad_placement(entry: &str) -> InitError {
    InitError::NotOurs {
        what: format!("\"{entry}\" in table.fields.additional.placement is not a placement"),
        hint: "write column:header, column:envelope or column:partition, the first two optionally with :alias, or \
               remove the option; Debezium refuses an entry without a placement, and fails at the first record if the \
               placement is unknown"
            .to_owned(),
    }
}

fn header(t: &mut Translator<'_>, column: &str, alias: &str, may_lack: bool) {
    if t.draft.get("outbox.extra", column).is_none() {
        t.draft.place(column, "header", Value::String(verbatim(alias)), may_lack);
    } else {
        by_template(t, column, alias);
    }
}

/// Adds a header by a template, for a column that is placed twice.
fn by_template(t: &mut Translator<'_>, column: &str, alias: &str) {
    t.draft.set("route.headers", alias, format!("{{{column}}}"));
}

fn envelope(t: &mut Translator<'_>, column: &str, alias: &str, may_lack: bool) {
    let before =
        t.draft.get("outbox.extra", column).and_then(|placed| placed.get("header")).cloned();
    if let Some(name) = before.as_ref().and_then(Value::as_str) {
        by_template(t, column, name);
    }
    t.draft.place(column, "envelope", Value::String(verbatim(alias)), may_lack);
}

fn topic(t: &mut Translator<'_>) -> Result<(), InitError> {
    let regex = t.router("route.topic.regex").unwrap_or(DEFAULT_REGEX);
    let replacement = t.router("route.topic.replacement").unwrap_or(DEFAULT_REPLACEMENT);
    if regex == DEFAULT_REGEX {
        let template = template(replacement).ok_or_else(|| InitError::NotOurs {
            what: "route.topic.replacement cannot be read".to_owned(),
            hint: "with the default regex only ${routedByValue} can be used".to_owned(),
        })?;
        t.draft.set("route", "topic", template);
        return Ok(());
    }
    let pattern = java_regex::translate(regex).map_err(|what| InitError::NotOurs {
        what: format!("route.topic.regex uses {what}, which Postrider does not support"),
        hint: "rewrite it in a copy of the connector's file; (a|b|c) is often equivalent"
            .to_owned(),
    })?;
    let replace = Replace { pattern: pattern.clone(), with: replacement.to_owned() };
    let spec = OutboxSpec { replace: Some(replace), ..OutboxSpec::for_layout(Layout::Debezium) };
    if let Err(errors) = Mapper::new(spec) {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        return Err(InitError::NotOurs {
            what: format!("route.topic.replacement does not fit route.topic.regex: {}", errors.join("; ")),
            hint: "correct it in a copy of the connector's file; Debezium itself fails at the first record".to_owned(),
        });
    }
    t.draft.set("route.replace", "pattern", verbatim(&pattern));
    t.draft.set("route.replace", "with", verbatim(replacement));
    t.draft
        .note("route.replace", "A value that does not match is the topic itself, as in Debezium.");
    Ok(())
}

/// A replacement of the default regex as a template: every group of that regex is the whole value.
fn template(replacement: &str) -> Option<String> {
    let mut template = String::new();
    let mut chars = replacement.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => template.push(chars.next()?),
            '{' => template.push_str("{{"),
            '}' => template.push_str("}}"),
            '$' => {
                if chars.next_if_eq(&'{').is_some() {
                    let name: String = chars.by_ref().take_while(|c| *c != '}').collect();
                    (name == "routedByValue").then_some(())?;
                } else {
                    chars.next_if(|c| matches!(c, '0' | '1'))?;
                }
                template.push_str("{aggregate_type}");
            }
            other => template.push(other),
        }
    }
    Some(template)
}

fn payload(t: &mut Translator<'_>, has_envelope: bool) {
    let tombstone = Translator::is_true(t.router("route.tombstone.on.empty.payload"));
    if tombstone {
        t.draft.set("payload", "empty", "tombstone");
    } else if has_envelope {
        // `{"payload":null,…}`, as in Debezium.
        t.draft.set("payload", "null", "empty");
    }
    if Translator::is_true(t.router("table.expand.json.payload")) {
        if has_envelope {
            t.draft.set("payload", "expand_json", true);
        } else {
            let text = "JSON is published unchanged; Debezium drops nulls and empty arrays, and rounds large numbers";
            t.answer_router("table.expand.json.payload", NotNeeded, text);
        }
    }
}

/// The option for the converter of keys or values, the converter, and whether it adds a schema.
fn converter(t: &Translator<'_>, of: &str) -> (String, Option<String>, bool) {
    let (option, schemas) = match t.flavour {
        Flavour::Connect => (format!("{of}.converter"), format!("{of}.converter.schemas.enable")),
        Flavour::Server => {
            (format!("debezium.format.{of}"), format!("debezium.format.{of}.schemas.enable"))
        }
    };
    // The default of Debezium Server is JSON; the default of Kafka Connect is a setting of the worker.
    let name = t
        .get(&option)
        .map(str::to_owned)
        .or((t.flavour == Flavour::Server).then(|| "json".to_owned()));
    let has_schema = !t.get(&schemas).is_some_and(|value| value.eq_ignore_ascii_case("false"));
    (option, name, has_schema)
}

fn is_json(name: &str) -> bool {
    name == "json" || name.ends_with(".JsonConverter")
}

fn value_converter(t: &mut Translator<'_>, has_envelope: bool) {
    let (option, name, has_schema) = converter(t, "value");
    let Some(name) = name else {
        t.hint(
            "key.converter and value.converter are set in the worker and not in this file: StringConverter is assumed",
        );
        return;
    };
    let expanded = Translator::is_true(t.router("table.expand.json.payload"));
    let (verdict, text) = if is_json(&name) && has_schema {
        (
            NoCounterpart,
            "the value was {\"schema\": …, \"payload\": …}; Postrider publishes only the payload: adapt the consumers",
        )
    } else if is_json(&name) && has_envelope {
        (NotNeeded, "the value is the same JSON object")
    } else if is_json(&name) && expanded {
        (NotNeeded, "the value is the payload's JSON, unchanged")
    } else if is_json(&name) {
        (
            NoCounterpart,
            "the value was a JSON string that contains JSON, or base64; Postrider publishes the payload itself: \
             consumers must parse it once, not twice",
        )
    } else if name.ends_with(".StringConverter") && has_envelope {
        (
            NotNeeded,
            "the value was Struct{payload=…}, which consumers cannot parse; Postrider publishes a JSON object",
        )
    } else if has_registry(&name) {
        (NoCounterpart, REGISTRY)
    } else {
        return;
    };
    t.answer(&option, verdict, text);
    if verdict == NoCounterpart {
        let given = if t.get(&option).is_none() { " is not given, so it is json" } else { "" };
        t.hint(format!("{option}{given}: {text}"));
    }
}

/// The answer for a converter that uses a schema registry.
const REGISTRY: &str = "written as Avro, Protobuf or JSON with a schema registry; Postrider publishes the text or \
                        bytes of the column: consumers that use the registry cannot read these records";

/// Whether a converter uses a schema registry.
fn has_registry(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["avro", "protobuf", "jsonschema", "registry", "apicurio"]
        .iter()
        .any(|part| name.contains(part))
}

fn key_converter(t: &mut Translator<'_>) {
    let (option, name, has_schema) = converter(t, "key");
    if name.as_deref().is_some_and(has_registry) {
        t.hint(format!("{option}: {REGISTRY}"));
        t.answer(&option, NoCounterpart, REGISTRY);
        return;
    }
    if !name.is_some_and(|name| is_json(&name)) {
        return;
    }
    let text = if has_schema {
        "the key was {\"schema\": …, \"payload\": …}; Postrider's keys are plain text: keys and partitions change"
    } else {
        t.draft.set("route", "key", "\"{aggregate_id}\"");
        let note = "The key in quotes, as the connector's JSON string; delete this line if the column is a number.";
        t.draft.note("route", note);
        t.answer(&option, Translated, "route.key, in quotes like the connector's JSON string");
        return;
    };
    t.answer(&option, NoCounterpart, text);
    if t.get(&option).is_none() {
        t.hint(format!("{option} is not given, so it is json: {text}"));
    }
}
