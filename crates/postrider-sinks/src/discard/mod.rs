//! `kind = "discard"`: nothing is published, for measurements of everything before the sink.

mod config;
mod sink;

pub use config::DiscardConfig;

use postrider_core::sink::{Keys, SinkConfig, SinkKind};
use std::sync::Arc;

/// The kind.
pub(crate) struct Discard;

impl SinkKind for Discard {
    fn name(&self) -> &'static str {
        config::NAME
    }

    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig> {
        Arc::new(DiscardConfig { delivery: crate::read_delivery(keys) })
    }

    fn reference(&self) -> &'static str {
        ""
    }
}
