//! The settings of a sink that writes to standard output.

use super::sink::Lines;
use crate::topic;
use postrider_core::sink::{
    Capabilities, Mailbox, NameRule, Needs, Order, Shown, Sink, SinkConfig, SinkError,
};

pub(super) const NAME: &str = "stdout";

/// `[pipelines.NAME.sink]` of such a sink.
#[derive(Clone, Debug)]
pub struct StdoutConfig {
    /// What is promised.
    pub delivery: &'static str,
}

impl Default for StdoutConfig {
    fn default() -> Self {
        Self { delivery: crate::PROMISES[0] }
    }
}

impl SinkConfig for StdoutConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Total,
            refuses_batches: false,
            transactions: None,
            exactly_once: false,
            dedupe: false,
            headers: true,
            null_value: true,
            record_bytes_max: None,
            held_bytes: topic::HELD_BYTES,
            clusters: false,
            remote: false,
        }
    }

    fn names(&self) -> NameRule {
        topic::NAMES
    }

    fn place(&self) -> String {
        "standard output".to_owned()
    }

    fn values(&self) -> Vec<Shown> {
        vec![Shown::text("delivery", self.delivery)]
    }

    fn check(&self, _needs: &Needs) -> Vec<SinkError> {
        Vec::new()
    }

    fn open(&self, _needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(Lines::open(std::io::stdout(), mailbox)?))
    }
}
