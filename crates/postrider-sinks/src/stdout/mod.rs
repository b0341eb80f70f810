//! `kind = "stdout"`: JSON Lines on standard output.

mod config;
mod sink;

pub use config::StdoutConfig;

use postrider_core::sink::{Keys, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct Stdout;

impl SinkKind for Stdout {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(StdoutConfig { delivery: crate::read_delivery(keys) })
    }

    fn reference(&self) -> &'static str {
        ""
    }
}
