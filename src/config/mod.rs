//! The configuration: one TOML file, read into plain values.
//!
//! Owns the keys, their defaults and their bounds, and reports the mistakes of all keys at once, each with its place.
//! What needs the configuration as a whole (sink properties, routes) is checked only once no key has a mistake. Reads
//! the file, the secret files it names and, through one closure, the environment; never the network. Knows nothing of
//! how the values are used: `build` turns them into what the adapters take.

mod build;
mod file;
mod pipeline;
pub mod schema;
mod section;
pub mod show;
mod types;

pub use file::{
    ConfigError, Env, Finding, Findings, Properties, Url, find, load, load_without_secrets, parse,
    process_variable,
};
pub use pipeline::table_name;
pub use section::{Excerpt, Place, Places, quoted as key_as_toml};
pub use types::{
    AdminConfig, BackoffConfig, BookmarksConfig, Config, Delivery, FlowConfig, Mark, Ordering,
    OutboxConfig, ParkingConfig, PayloadConfig, PipelineConfig, PollConfig, RouteConfig,
    SinkConfig, SinkKind, SizeMax, SourceConfig,
};

/// Reads `"250ms"`, `"10s"`, `"5m"`, `"2h"`, `"1d"`, as the file has them.
///
/// # Errors
/// What is expected.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    pipeline::duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
