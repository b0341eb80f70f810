//! `kind = "http"`: webhooks. Each event is a POST request, signed as Standard Webhooks has it.
//!
//! One request is in flight for each aggregate ([`lines`]), and up to `concurrency` over all of them. [`worker`] sends
//! the requests and [`answer`] has what an answer means. `docs/sinks/http.md` describes the behaviour.

mod answer;
mod auth;
mod client;
mod config;
mod connect;
mod event;
mod exchange;
mod hosts;
mod lines;
mod places;
mod preflight;
mod sign;
mod sink;
mod spec;
mod target;
mod worker;

pub use config::HttpConfig;

use postrider_core::sink::{FirstFile, FirstFileTable, Keys, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct Http;

impl SinkKind for Http {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(HttpConfig::read(keys))
    }

    fn reference(&self) -> &'static str {
        include_str!("reference.toml")
    }

    fn first_file(&self) -> FirstFile {
        FirstFile { keys: &[], tables: FIRST_FILE_TABLES }
    }
}

const FIRST_FILE_TABLES: &[FirstFileTable] = &[FirstFileTable {
    path: "http",
    comment: "Each event is a POST request to url/TOPIC.",
    keys: &["url", "secret_file"],
}];
