//! The settings of a sink together with a format.

use crate::format_config::FormatConfig;
use crate::formatted_sink::FormattedSink;
use postrider_core::finding::Finding;
use postrider_core::record::Refusal;
use postrider_sinks::{
    Capabilities, CloudEventsBinding, Mailbox, NameRule, Needs, RecordHeaders, Retention, Shown,
    Sink, SinkConfig, SinkError,
};
use std::any::Any;
use std::sync::Arc;

/// The settings of a sink whose records have a format. Everything but the records is that of the other sink.
#[derive(Debug)]
pub struct FormattedConfig {
    format: FormatConfig,
    inner: Arc<dyn SinkConfig>,
}

impl FormattedConfig {
    pub(crate) fn new(format: FormatConfig, inner: Arc<dyn SinkConfig>) -> Self {
        Self { format, inner }
    }
}

impl SinkConfig for FormattedConfig {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn inner(&self) -> Option<&dyn SinkConfig> {
        Some(&*self.inner)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn names(&self) -> NameRule {
        self.inner.names()
    }

    fn place(&self) -> String {
        self.inner.place()
    }

    fn values(&self) -> Vec<Shown> {
        self.inner.values()
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        self.inner.check(needs)
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        let steps = self.format.open(needs, self.inner.cloud_events(), &mailbox)?;
        Ok(Box::new(FormattedSink::new(self.inner.open(needs, mailbox)?, steps)))
    }

    fn settings(&self, pipeline: &str) -> Vec<Finding> {
        self.inner.settings(pipeline)
    }

    fn preflight(&self, needs: &Needs, destinations: &[String], keyed: bool) -> Vec<Finding> {
        let mut findings = self.inner.preflight(needs, destinations, keyed);
        findings.extend(self.format.preflight(&*self.inner, needs, destinations));
        findings
    }

    fn retentions(&self, needs: &Needs, destinations: &[String]) -> Vec<Retention> {
        self.inner.retentions(needs, destinations)
    }

    fn cluster(&self, needs: &Needs) -> Option<String> {
        self.inner.cluster(needs)
    }

    fn record_headers(&self) -> RecordHeaders {
        self.format.record_headers(self.inner.record_headers(), self.inner.cloud_events())
    }

    fn cloud_events(&self) -> CloudEventsBinding {
        self.inner.cloud_events()
    }

    fn for_source(&self, source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        let inner = self.inner.for_source(source)?;
        Some(Arc::new(Self { format: self.format.clone(), inner }))
    }

    fn creates(&self) -> bool {
        self.inner.creates()
    }

    fn create(&self, needs: &Needs, destinations: &[String]) -> Vec<Finding> {
        self.inner.create(needs, destinations)
    }

    fn hint(&self, refusal: Refusal, destination: &str) -> String {
        self.inner.hint(refusal, destination)
    }

    fn command(&self, code: &str, destination: &str, size: usize) -> Option<String> {
        self.inner.command(code, destination, size)
    }
}
