//! The keys of `[pipelines.NAME.format]` and `[pipelines.NAME.payload.claim_check]`.

#[cfg(feature = "claim-check")]
use crate::claim_check::{ClaimCheck, check_storage};
use crate::claim_check::{ClaimCheckConfig, ClaimCheckKeys};
use crate::cloud_events::{CloudEvents, CloudEventsMode};
#[cfg(feature = "schemas")]
use crate::schema::SchemaConfig;
use crate::step::Step;
use postrider_core::finding::Finding;
use postrider_sinks::{
    CloudEventsBinding, Keys, Mailbox, Needs, RecordHeaders, Shown, ShownValue, SinkConfig,
    SinkError,
};

/// The media type of the payload, where the key is not given.
const CONTENT_TYPE: &str = "application/json";

/// The templates of attributes, where the keys are not given.
const EVENT_TYPE: &str = "{event_type}";
const SUBJECT: &str = "{aggregate_id}";

/// The form in which a pipeline publishes its events. The default is `raw`: as the application wrote them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FormatConfig {
    cloud_events: Option<CloudEventsConfig>,
    claim_check: Option<ClaimCheckConfig>,
    claim_check_keys: ClaimCheckKeys,
    #[cfg(feature = "schemas")]
    schemas: SchemaConfig,
}

/// The keys of `kind = "cloudevents"`.
#[derive(Clone, PartialEq, Debug)]
struct CloudEventsConfig {
    mode: CloudEventsMode,
    source: String,
    event_type: String,
    subject: String,
    content_type: String,
}

impl FormatConfig {
    /// Reads the keys. `claim_check` is table `payload.claim_check`.
    pub fn read(format: &dyn Keys, claim_check: &dyn Keys) -> Self {
        let is_cloud_events = format.word("kind", &["raw", "cloudevents"], &[]) == 1;
        let mode = match format.word("mode", &["binary", "structured"], &[]) {
            1 => CloudEventsMode::Structured,
            _ => CloudEventsMode::Binary,
        };
        let text = |key, default: &str| format.text(key).unwrap_or_else(|| default.to_owned());
        let cloud_events = CloudEventsConfig {
            mode,
            source: text("source", ""),
            event_type: text("type", EVENT_TYPE),
            subject: text("subject", SUBJECT),
            content_type: text("content_type", CONTENT_TYPE),
        };
        if is_cloud_events && cloud_events.source.is_empty() {
            let message = "kind = \"cloudevents\" needs a source, a URI or a path that names the writer of the events; \
                           for example source = \"/shop/orders\"";
            format.error("source", message.to_owned());
        }
        if !cloud_events.content_type.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            let message = "must have ASCII characters only, as in \"application/json\"";
            format.error("content_type", message.to_owned());
        }
        let (claim_check, claim_check_keys) = ClaimCheckConfig::read(claim_check);
        let config = Self {
            cloud_events: is_cloud_events.then_some(cloud_events),
            claim_check,
            claim_check_keys,
            #[cfg(feature = "schemas")]
            schemas: SchemaConfig::read(format),
        };
        format.finish();
        config
    }

    /// Whether events are published as the application wrote them, and nothing has to be done.
    pub fn is_raw(&self) -> bool {
        #[cfg(feature = "schemas")]
        if self.schemas.is_active() {
            return false;
        }
        self.cloud_events.is_none() && self.claim_check.is_none()
    }

    /// The same for a sink.
    pub(crate) fn for_sink(&self, sink: &dyn SinkConfig) -> Self {
        #[cfg_attr(not(feature = "schemas"), expect(unused_mut, reason = "for schemas"))]
        let mut format = self.clone();
        #[cfg(feature = "schemas")]
        format.schemas.for_sink(sink);
        #[cfg(not(feature = "schemas"))]
        let _unused = sink;
        format
    }

    /// The keys with the values in effect: of tables `format` and `payload.claim_check`.
    pub fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: &str| Shown {
            table: "format",
            key: key.to_owned(),
            value: ShownValue::Text(value.to_owned()),
        };
        let cloud_events = self.cloud_events.as_ref();
        let mode = cloud_events.map_or(CloudEventsMode::Binary, |config| config.mode);
        let mode = match mode {
            CloudEventsMode::Binary => "binary",
            CloudEventsMode::Structured => "structured",
        };
        let of = |value: fn(&CloudEventsConfig) -> &str, default| {
            cloud_events.map_or(default, value).to_owned()
        };
        let mut values = vec![
            text("kind", if cloud_events.is_some() { "cloudevents" } else { "raw" }),
            text("mode", mode),
            text("source", &of(|config| &config.source, "")),
            text("type", &of(|config| &config.event_type, EVENT_TYPE)),
            text("subject", &of(|config| &config.subject, SUBJECT)),
            text("content_type", &of(|config| &config.content_type, CONTENT_TYPE)),
        ];
        #[cfg(feature = "schemas")]
        values.extend(self.schemas.values());
        values.extend(self.claim_check_keys.values());
        values
    }

    /// The mistakes that show only together with the sink: each with its key, below the pipeline.
    pub fn check(&self, sink: &dyn SinkConfig) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let binary =
            self.cloud_events.as_ref().is_some_and(|config| config.mode == CloudEventsMode::Binary);
        if binary && !sink.capabilities().headers {
            let message = format!(
                "\"binary\" puts the attributes into headers, and a sink of kind \"{}\" has none; set mode = \
                 \"structured\"",
                sink.kind()
            );
            found.push(("format.mode", message));
        }
        let has_prefix = |shown: &Shown| {
            let is_empty = matches!(&shown.value, ShownValue::Text(text) if text.is_empty());
            (shown.table, &*shown.key) == ("http", "header_prefix") && !is_empty
        };
        if self.cloud_events.is_some()
            && sink.kind() == "http"
            && sink.values().iter().any(has_prefix)
        {
            let message = "a CloudEvent has headers of fixed names, which header_prefix would change; leave \
                           header_prefix out";
            found.push(("sink.http.header_prefix", message.to_owned()));
        }
        if self.claim_check.is_some() && !sink.capabilities().headers {
            let message = format!(
                "a reference is in headers, and a sink of kind \"{}\" has none; remove the table",
                sink.kind()
            );
            found.push(("payload.claim_check", message));
        }
        if self.claim_check.is_some() && cfg!(not(feature = "claim-check")) {
            let message = "this program was built without feature \"formats\"";
            found.push(("payload.claim_check", message.to_owned()));
        }
        #[cfg(feature = "schemas")]
        found.extend(self.check_schemas(sink));
        found
    }

    /// The mistakes in the keys of schemas that show only together with the others.
    #[cfg(feature = "schemas")]
    fn check_schemas(&self, sink: &dyn SinkConfig) -> Vec<(&'static str, String)> {
        let mut found = self.schemas.check(sink);
        let is_json = self
            .cloud_events
            .as_ref()
            .is_some_and(|config| config.content_type.to_ascii_lowercase().contains("json"));
        if is_json && self.schemas.is_binary() {
            let message = "says that the payload is JSON, and format.encode or schema_id = \"prefix\" publishes none; \
                           for example content_type = \"application/vnd.apache.avro+binary\"";
            found.push(("format.content_type", message.to_owned()));
        }
        found
    }

    /// What the steps need in the headers of each record, beside what the sink needs.
    pub(crate) fn record_headers(
        &self,
        mut headers: RecordHeaders,
        binding: CloudEventsBinding,
    ) -> RecordHeaders {
        if let Some(config) = &self.cloud_events {
            headers.standard = true;
            for (attribute, template) in [
                ("source", &config.source),
                ("type", &config.event_type),
                ("subject", &config.subject),
            ] {
                let name = format!("{}{attribute}", binding.prefix);
                headers.templates.push((name, template.clone()));
            }
        }
        #[cfg(feature = "schemas")]
        if self.schemas.needs_type() {
            headers.event_type = true;
        }
        headers
    }

    /// Findings of `postrider check` about servers that the steps need. `sink`: the settings of the other sink.
    pub(crate) fn preflight(
        &self,
        sink: &dyn SinkConfig,
        needs: &Needs,
        destinations: &[String],
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        #[cfg(feature = "schemas")]
        found.extend(self.schemas.preflight(destinations));
        #[cfg(feature = "claim-check")]
        if let Some(config) = &self.claim_check {
            let retentions = sink.retentions(needs, destinations);
            found.extend(check_storage(config, &needs.pipeline, &retentions));
        }
        found
    }

    /// Opens the steps, in their order. Servers are connected to in the background.
    ///
    /// # Errors
    /// A thread that can't be started.
    pub(crate) fn open(
        &self,
        _needs: &Needs,
        binding: CloudEventsBinding,
        mailbox: &Mailbox,
    ) -> Result<Vec<Box<dyn Step>>, SinkError> {
        let mut steps: Vec<Box<dyn Step>> = Vec::new();
        #[cfg(feature = "schemas")]
        steps.extend(self.schemas.open(mailbox)?);
        #[cfg(feature = "claim-check")]
        if let Some(config) = &self.claim_check {
            let prefix = self.cloud_events.as_ref().map(|config| match config.mode {
                CloudEventsMode::Binary => binding.prefix,
                CloudEventsMode::Structured => "",
            });
            steps.push(Box::new(ClaimCheck::open(config, prefix, mailbox)?));
        }
        if let Some(config) = &self.cloud_events {
            let step = CloudEvents::new(config.mode, &config.content_type, binding);
            steps.push(Box::new(step));
        }
        Ok(steps)
    }
}
