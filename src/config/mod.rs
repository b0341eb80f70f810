//! The configuration: one TOML file, read into plain values.
//!
//! Owns the keys, their defaults and their bounds, and reports the mistakes of all keys at once, each with its place.
//! What needs the configuration as a whole (sink properties, routes) is checked only once no key has a mistake. Reads
//! the file, the secret files it names and, through one closure, the environment; never the network. Knows nothing of
//! how the values are used: `build` turns them into what the adapters take.

mod build;
mod check;
mod context;
pub mod env;
mod error;
mod excerpt;
mod file;
mod interpolate;
mod kind;
mod names;
mod outbox;
mod pipeline;
mod place;
pub mod schema;
mod secret;
mod section;
pub mod show;
mod sink;
mod types;
mod units;

pub use env::Env;
pub use error::{ConfigError, Finding, Findings};
pub use excerpt::Excerpt;
pub use file::{find, load, load_without_secrets, parse};
pub use names::quoted as key_as_toml;
pub use outbox::table_name;
pub use place::{Place, Places};
pub use secret::{Properties, Url};
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
    units::duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
