//! The log: text or JSON on standard error, and its newest lines for the operators' page. It is started once, before
//! the command runs.

#[cfg(test)]
mod tests;

use super::args::{Global, LogFormat};
use super::error::CliError;
use crate::admin::{LogEvent, LogEvents};
use crate::config::Env;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::field::{RecordFields, Visit};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// The filter of `--quiet`.
const QUIET: &str = "error";

pub(super) fn start(global: &Global, env: Env<'_>) -> Result<(), CliError> {
    let filter = if global.quiet { QUIET } else { &global.log };
    let wrong = |source| CliError::Log { filter: filter.to_owned(), source };
    let parsed = EnvFilter::try_new(present_targets(filter)).map_err(wrong)?;
    let color = global.color(env, io::stderr().is_terminal());
    let recent = RecentEvents(LogEvents::of_the_process()).with_filter(LevelFilter::INFO);
    let registry = tracing_subscriber::registry().with(recent);
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    // A second start, which happens in tests, keeps the first log.
    let started = match global.log_format {
        LogFormat::Text => {
            let log = log.with_ansi(color).fmt_fields(Fields);
            registry.with(log.with_target(shows_modules(filter)).with_filter(parsed)).try_init()
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_current_span(false);
            registry.with(log.with_filter(parsed)).try_init()
        }
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

/// Keeps the newest lines that have an event, whatever the filter of the log is.
struct RecentEvents(LogEvents);

impl<S: Subscriber> Layer<S> for RecentEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let Some(name) = fields.event else { return };
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARN",
            Level::INFO => "INFO",
            Level::DEBUG | Level::TRACE => return,
        };
        let EventFields { message, pipeline, hint, .. } = fields;
        self.0.add(LogEvent { unix_ms: 0, level, event: name, pipeline, message, hint });
    }
}

/// The fields of a line that the page shows.
#[derive(Default)]
struct EventFields {
    message: String,
    event: Option<String>,
    pipeline: Option<String>,
    hint: Option<String>,
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        let value = value.to_owned();
        match field.name() {
            "message" => self.message = value,
            "event" => self.event = Some(value),
            "pipeline" => self.pipeline = Some(value),
            "hint" => self.hint = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        if ["message", "pipeline", "hint"].contains(&field.name()) {
            self.record_str(field, &format!("{value:?}"));
        }
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
