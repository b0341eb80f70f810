//! The log: text or JSON on standard error. It is started once, before the command runs.

#[cfg(test)]
mod tests;

use super::args::{Global, LogFormat};
use super::error::CliError;
use crate::config::Env;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _};
use tracing_subscriber::field::{RecordFields, Visit};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// The filter of `--quiet`.
const QUIET: &str = "error";

pub(super) fn start(global: &Global, env: Env<'_>) -> Result<(), CliError> {
    let filter = if global.quiet { QUIET } else { &global.log };
    let wrong = |source| CliError::Log { filter: filter.to_owned(), source };
    let parsed = EnvFilter::try_new(present_targets(filter)).map_err(wrong)?;
    let color = global.color(env, io::stderr().is_terminal());
    let log = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(io::stderr);
    // A second start, which happens in tests, keeps the first log.
    let started = match global.log_format {
        LogFormat::Text => {
            let log = log.with_ansi(color).fmt_fields(Fields);
            log.with_target(shows_modules(filter)).try_init()
        }
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    };
    drop(started);
    Ok(())
}

/// The filter with the present names of modules. A filter that names a former one would hide the lines of that module
/// without a word.
fn present_targets(filter: &str) -> String {
    filter.replace("postrider::driver", "postrider::pipeline")
}

/// Whether a line names its module: only with a filter that is used to search for a bug, or that names modules.
fn shows_modules(filter: &str) -> bool {
    ["debug", "trace", "="].iter().any(|word| filter.contains(word))
}

/// Fields for machines: the message has the same in words.
const FOR_MACHINES: [&str; 3] = ["event", "seconds", "tries"];

/// Writes the message of a text line, then the fields whose values the message does not contain.
#[derive(Debug)]
struct Fields;

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, mut to: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line::default();
        fields.record(&mut line);
        write!(to, "{}", line.message)?;
        let (dim, plain) = if to.has_ansi_escapes() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let repeated = |value: &str| line.message.contains(value.trim_matches('"'));
        let fields =
            line.fields.iter().filter(|(name, value)| *name != "reason" || !repeated(value));
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
