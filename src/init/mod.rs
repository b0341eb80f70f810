//! A first configuration: written from what was typed, from the tables of a database, or from a Debezium connector's.
//!
//! Makes a [`Draft`] and its text; files are read and written by the command. Never holds a secret: what was given with
//! a password is taken over without it.

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
use std::path::Path;

/// A configuration of nothing but the layout, with places to fill in.
pub fn plain(layout: Layout) -> Draft {
    let mut draft = Draft::new("orders");
    draft.set("source", "url", "postgresql://postrider@localhost/app");
    draft.set("outbox", "table", format!("public.{}", layout.table()));
    draft.set("outbox", "layout", layout.name());
    draft.set("sink", "brokers", "localhost:9092");
    explain(&mut draft, layout);
    draft
}

/// The layout's own route, in comments.
fn explain(draft: &mut Draft, layout: Layout) {
    let spec = OutboxSpec::for_layout(layout);
    let words = "Templates over the event's fields; these are the layout's own. \
                 Make the topics, or see sink.create_topics.";
    draft.note("route", words);
    draft.note("route", format!("topic = {}", Value::String(spec.topic)));
    draft.note("route", format!("key = {}", Value::String(spec.key)));
}

/// Reads the file of a draft as `postrider run` will, but for what it is known to refuse of it.
///
/// # Errors
/// It would be refused.
pub fn check_draft(draft: &Draft) -> Result<(), InitError> {
    check(&text(&draft.checkable()))
}

/// Reads a written configuration as `postrider run` will, as if every variable in it were set.
///
/// # Errors
/// It would be refused.
pub fn check(text: &str) -> Result<(), InitError> {
    // A number is a value that every key takes.
    let set = |name: &str| match name {
        "USER" => Some("postrider".to_owned()),
        name => text.contains(&format!("${{{name}")).then(|| "1".to_owned()),
    };
    match config::parse("postrider.toml", Path::new(""), text, &set) {
        Ok(_) => Ok(()),
        Err(findings) => Err(InitError::Refused(findings)),
    }
}
