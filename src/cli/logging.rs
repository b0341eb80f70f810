//! The log: text or JSON on standard error. Started once, before anything else happens.

mod text;

use super::args::{Global, LogFormat};
use super::error::CliError;
use crate::config::Env;
use std::io::{self, IsTerminal as _};
use tracing_subscriber::filter::EnvFilter;

/// What `--quiet` leaves.
const QUIET: &str = "error";

pub(super) fn start(global: &Global, env: Env<'_>) -> Result<(), CliError> {
    let filter = if global.quiet { QUIET } else { &global.log };
    let wrong = |source| CliError::Log { filter: filter.to_owned(), source };
    let parsed = EnvFilter::try_new(filter).map_err(wrong)?;
    let color = global.color(env, io::stderr().is_terminal());
    let log = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(io::stderr);
    // A second start, as tests have it, keeps the first log.
    let started = match global.log_format {
        LogFormat::Text => {
            let log = log.with_ansi(color).fmt_fields(text::Fields);
            log.with_target(shows_modules(filter)).try_init()
        }
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    };
    drop(started);
    Ok(())
}

/// Which module speaks is for those who look for a bug, or filter by module.
fn shows_modules(filter: &str) -> bool {
    ["debug", "trace", "="].iter().any(|word| filter.contains(word))
}
