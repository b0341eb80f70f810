//! The fields of a line of text: the message, then what it does not say already.

use std::fmt::{self, Write as _};
use tracing_subscriber::field::{RecordFields, Visit};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Fields for machines: the message has them in words.
const FOR_MACHINES: [&str; 3] = ["event", "seconds", "tries"];

/// How a line's fields are written.
#[derive(Debug)]
pub(super) struct Fields;

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, mut to: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line::default();
        fields.record(&mut line);
        write!(to, "{}", line.message)?;
        let (dim, plain) = if to.has_ansi_escapes() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let told = |value: &str| line.message.contains(value.trim_matches('"'));
        let fields = line.fields.iter().filter(|(name, value)| *name != "reason" || !told(value));
        for (name, value) in fields {
            let gap = if line.message.is_empty() { "" } else { " " };
            write!(to, "{gap}{dim}{name}={plain}{value}")?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Line {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        let name = field.name();
        if name == "message" {
            // Writing to a String does not fail.
            write!(self.message, "{value:?}").unwrap_or_default();
        } else if !FOR_MACHINES.contains(&name) {
            self.fields.push((name, format!("{value:?}")));
        }
    }
}

#[cfg(test)]
mod tests;
