//! The configuration: one TOML file, read into plain values.
//!
//! Owns the keys, their defaults and their limits, and reports the mistakes of all keys at once, each with its place.
//! Rules that need several keys (sink properties, routes) are checked only if no single key has a mistake. Reads the
//! file, the secret files that it names and, through one closure, the environment. `build` turns the values into the
//! specifications of the pipelines.

mod build;
mod capture;
mod file;
#[cfg(feature = "kafka")]
mod inboxes;
mod pipeline;
pub mod schema;
mod section;
pub mod show;
mod types;

pub use file::{
    ConfigError, Env, Finding, Findings, Url, find, load, load_without_secrets, parse, parse_with,
    process_variable,
};
#[cfg(feature = "kafka")]
pub use inboxes::InboxConfig;
pub use pipeline::table_name;
pub use section::{Excerpt, FilePosition, Places, quoted as key_as_toml};
pub use types::{
    AdminConfig, BackoffConfig, BookmarksConfig, Config, FlowConfig, KeptConfig, Mark, Ordering,
    OutboxConfig, ParkingConfig, PayloadConfig, PipelineConfig, PollConfig, RouteConfig, SizeMax,
    SourceConfig,
};

/// Reads a duration in the format of the file: `"250ms"`, `"10s"`, `"5m"`, `"2h"`, `"1d"`.
///
/// # Errors
/// The expected format.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    crate::units::duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
