//! The settings of a sink that keeps nothing.

use super::sink::Nowhere;
use crate::topic;
use postrider_core::finding::Finding;
use postrider_core::sink::{
    Capabilities, Mailbox, NameRule, Needs, Order, Shown, Sink, SinkConfig, SinkError,
};

pub(super) const NAME: &str = "discard";

/// `[pipelines.NAME.sink]` of such a sink.
#[derive(Clone, Debug)]
pub struct DiscardConfig {
    /// What is promised.
    pub delivery: &'static str,
}

impl Default for DiscardConfig {
    fn default() -> Self {
        Self { delivery: crate::PROMISES[0] }
    }
}

impl SinkConfig for DiscardConfig {
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
        "nowhere".to_owned()
    }

    fn values(&self) -> Vec<Shown> {
        vec![Shown::text("delivery", self.delivery)]
    }

    fn check(&self, _needs: &Needs) -> Vec<SinkError> {
        Vec::new()
    }

    fn open(&self, _needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(Nowhere::new(mailbox)))
    }

    fn settings(&self, pipeline: &str) -> Vec<Finding> {
        let finding = Finding::warning("sink_discard", "sink.kind is \"discard\"")
            .why(
                "every event is confirmed to the database and then discarded; use it only for measurements",
            )
            .config(format!("pipelines.{pipeline}.sink.kind = \"stdout\""));
        vec![finding]
    }
}
