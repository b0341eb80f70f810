//! A first configuration: a template, or made from the tables of a database or from a Debezium connector's
//! configuration.
//!
//! Makes a [`Draft`] and its text; the command reads and writes the files. A draft contains no secrets: the password of
//! a URL or of a connector is not copied.

pub mod database;
pub mod debezium;
mod draft;
mod error;
mod write;

pub use draft::{Draft, Value};
pub use error::InitError;
pub use write::text;

use crate::config;
use crate::outbox::{Layout, OutboxSpec};
use crate::sink::{DEFAULT_KIND, FirstFile, KINDS};
use std::path::Path;

/// A template for a layout, with values to fill in.
pub fn plain(layout: Layout) -> Draft {
    let mut draft = Draft::new("orders");
    draft.set("source", "url", "postgresql://postrider@localhost/app");
    draft.set("outbox", "table", format!("public.{}", layout.table()));
    draft.set("outbox", "layout", layout.name());
    set_sink(&mut draft, DEFAULT_KIND);
    explain(&mut draft, layout);
    draft
}

/// Replaces the sink by one of another kind. Keys that a first file of the kind has are set to the examples of the
/// reference configuration.
pub fn set_sink(draft: &mut Draft, kind: &str) {
    for (key, _) in first_file(draft.sink_kind()).keys {
        draft.unset("sink", key);
    }
    if kind != DEFAULT_KIND {
        draft.set("sink", "kind", kind);
    }
    let first = first_file(kind);
    for (key, example) in first.keys {
        draft.set("sink", key, *example);
    }
    let own = first.tables.iter().find(|table| table.path == kind);
    for key in own.map(|table| table.keys).unwrap_or_default() {
        // The example of a file is the name of one that does not exist.
        let example = example(kind, key).filter(|_| !key.ends_with("_file"));
        if let Some(example) = example {
            draft.set(&format!("sink.{kind}"), key, example);
        }
    }
}

/// The value of a string key in the own table of a kind, as its reference configuration shows the key, also where a
/// comment shows it because the key has no default. `None` for an empty one.
fn example(kind: &str, key: &str) -> Option<String> {
    let reference = KINDS.iter().find(|known| known.name() == kind)?.reference();
    let header = format!("[pipelines.orders.sink.{kind}]");
    let lines = reference.lines().skip_while(|line| *line != header).skip(1);
    let mut lines = lines.take_while(|line| !line.trim_start_matches("# ").starts_with('['));
    let line = lines.find_map(|line| {
        let rest = line.trim_start_matches("# ").strip_prefix(key)?;
        rest.trim_start().strip_prefix('=')
    })?;
    let value = line.trim().strip_prefix('"')?.strip_suffix('"')?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// What a first file has for a kind of sink; nothing for a kind that this build does not have.
fn first_file(kind: &str) -> FirstFile {
    KINDS
        .iter()
        .find(|known| known.name() == kind)
        .map_or_else(FirstFile::default, |known| known.first_file())
}

/// Adds the layout's default route as comments.
fn explain(draft: &mut Draft, layout: Layout) {
    let spec = OutboxSpec::for_layout(layout);
    let text = "Templates over the event's fields; these are the layout's defaults. \
                Create the topics, or see sink.create_topics.";
    draft.note("route", text);
    draft.note("route", format!("topic = {}", Value::String(spec.topic)));
    draft.note("route", format!("key = {}", Value::String(spec.key)));
}

/// Checks the file of a draft as `postrider run` does, without the properties that are known to be refused.
///
/// # Errors
/// The configuration is invalid.
pub fn check_draft(draft: &Draft) -> Result<(), InitError> {
    check(&text(&draft.checkable()))
}

/// Checks a configuration as `postrider run` does, as if every variable in it were set.
///
/// # Errors
/// The configuration is invalid.
pub fn check(text: &str) -> Result<(), InitError> {
    // Every key accepts a number.
    let set = |name: &str| match name {
        "USER" => Some("postrider".to_owned()),
        name => text.contains(&format!("${{{name}")).then(|| "1".to_owned()),
    };
    match config::parse("postrider.toml", Path::new(""), text, &set) {
        Ok(_) => Ok(()),
        Err(findings) => Err(InitError::Refused(findings)),
    }
}
