//! The values in effect, each with its origin, for `postrider config show`.
//!
//! Secrets are masked in this module, so its results may be printed.

use super::file::MASK;
use super::section::{FilePosition, quoted};
use super::types::{Config, Mark, Ordering, PipelineConfig, SizeMax};
use crate::outbox::{NullPayload, OnUpdate, OutboxSpec, Placement, TimestampSource};
use crate::pipeline::{Mode, OnSlotLost};
use crate::postgres::capture::CaptureSpec;
use crate::postgres::names::TableName;
use crate::postgres::retention::{KeepFrom, RetentionAction, RetentionSettings};
use crate::postgres::store::inbox_maintenance::InboxKeep;
use crate::relay::OnPoison;
use crate::sink::{self, ShownValue};
use crate::units::{ShowDuration, ShowSize};
use serde_json::{Value, json};
use std::time::Duration;

/// The origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The file.
    File {
        /// The position of the key.
        place: FilePosition,
        /// The environment variables that the value uses.
        variables: Vec<String>,
    },
    /// The default.
    Default,
    /// The layout's default.
    Layout(&'static str),
}

/// One key with its value.
#[derive(Clone, PartialEq, Debug)]
pub struct Shown {
    /// The table, `pipelines.orders.flow`; empty for the file itself.
    pub table: String,
    /// The key in it.
    pub key: String,
    /// The value in JSON; null if there is none.
    pub value: Value,
    /// The origin of the value.
    pub origin: Origin,
}

/// Every key of a configuration, in the order of the reference file.
pub fn show(config: &Config) -> Vec<Shown> {
    let mut rows = Rows { config, rows: Vec::new() };
    rows.add("", "shutdown_grace", duration(config.shutdown_grace));
    let listen = config.admin.listen.map_or_else(String::new, |address| address.to_string());
    rows.add("admin", "listen", json!(listen));
    rows.add("admin", "ready_lag_max", duration(config.admin.ready_lag_max));
    rows.add("admin", "remember_changes", json!(config.admin.remember_changes));
    rows.maintenance();
    for (pipeline, spec) in config.pipelines.iter().zip(&config.specs) {
        rows.pipeline(pipeline, &spec.common.outbox);
    }
    #[cfg(feature = "kafka")]
    for inbox in &config.inboxes {
        rows.inbox(inbox);
    }
    rows.rows
}

struct Rows<'c> {
    config: &'c Config,
    rows: Vec<Shown>,
}

impl Rows<'_> {
    fn add(&mut self, table: &str, key: &str, value: Value) {
        self.add_or(table, key, value, Origin::Default);
    }

    /// Adds a row. `origin`: the origin of the value if the key is not in the file.
    fn add_or(&mut self, table: &str, key: &str, value: Value, otherwise: Origin) {
        let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
        let places = &self.config.places;
        let origin = places.get(&path).map_or(otherwise, |place| {
            let variables = places.variables(&path).to_vec();
            Origin::File { place, variables }
        });
        self.rows.push(Shown { table: table.to_owned(), key: key.to_owned(), value, origin });
    }

    fn maintenance(&mut self) {
        let settings = self.config.maintenance.clone();
        let table = "maintenance";
        self.add(table, "sweep_interval", duration(settings.sweep_interval));
        self.add(table, "sweep_keep", json!(settings.sweep_keep));
        self.add(table, "sweep_max", json!(settings.sweep_max));
        self.add(table, "consumer_dead_after", duration(settings.consumer_dead_after));
        self.add(table, "log_keep", settings.log_keep.map_or_else(|| json!("0"), duration));
        self.add(table, "log_evict", json!(settings.log_evict));
        self.add(table, "log_retain_interval", duration(settings.log_retain_interval));
        let inboxes = settings.inboxes;
        let keep = |keep| match keep {
            InboxKeep::OfInbox => Value::Null,
            InboxKeep::Forever => json!("0"),
            InboxKeep::For(time) => duration(time),
        };
        self.add(table, "inbox_enabled", json!(inboxes.enabled));
        self.add(table, "inbox_ids_keep", duration(inboxes.ids_keep));
        self.add(table, "inbox_processed_keep", keep(inboxes.processed_keep));
        self.add(table, "inbox_dead_keep", keep(inboxes.dead_keep));
        self.add(table, "inbox_drain_interval", duration(inboxes.drain_interval));
        self.add(table, "inbox_drain_batch", json!(inboxes.drain_batch));
        self.add(table, "inbox_dead_alerts_max", json!(inboxes.dead_alerts_max));
    }

    #[cfg(feature = "kafka")]
    fn inbox(&mut self, inbox: &super::InboxConfig) {
        let of = |table: &str| format!("inboxes.{}.{table}", inbox.name);
        let table = format!("inboxes.{}", inbox.name);
        self.add(&table, "inbox", json!(inbox.inbox));
        self.add(&table, "batch", json!(inbox.batch));
        self.add(&table, "pending_max", json!(inbox.pending_max));
        let table = of("database");
        self.add(&table, "url", json!(inbox.url.masked()));
        self.add(&table, "password_file", json!(inbox.password_file));
        let table = of("source");
        self.add(&table, "kind", json!(inbox.kind));
        for row in &inbox.source {
            self.sink_row(&table, row.clone(), true);
        }
        let (rules, table) = (&inbox.rules, of("message"));
        let text = |text: &Option<String>| json!(text.as_deref().unwrap_or_default());
        self.add(&table, "source", text(&rules.source));
        self.add(&table, "id_header", text(&rules.id_header));
        self.add(&table, "type_header", json!(rules.type_header));
        self.add(&table, "aggregate_header", text(&rules.aggregate_header));
        self.add(&table, "sequence_header", text(&rules.sequence_header));
        self.add(&table, "priority_header", text(&rules.priority_header));
        self.add(&table, "positions", json!(rules.positions));
    }

    fn pipeline(&mut self, pipeline: &PipelineConfig, spec: &OutboxSpec) {
        let of = |table: &str| format!("pipelines.{}.{table}", pipeline.name);
        let mode = match pipeline.mode {
            Mode::Wal => "wal",
            Mode::Poll => "poll",
            Mode::Embedded => "embedded",
            Mode::Auto => "auto",
        };
        self.add(&format!("pipelines.{}", pipeline.name), "mode", json!(mode));
        let (source, table) = (&pipeline.source, of("source"));
        self.add(&table, "url", json!(source.url.masked()));
        self.add(&table, "password_file", json!(source.password_file));
        self.add(&table, "time_zone", json!(source.time_zone));
        self.add(&table, "slot", json!(source.slot));
        self.add(&table, "publication", json!(source.publication));
        self.add(&table, "failover", json!(source.failover));
        let retained =
            source.wal_retain_max.map_or("off".to_owned(), |max| ShowSize(max).to_string());
        self.add(&table, "wal_retain_max", json!(retained));
        let on_slot_lost = match source.on_slot_lost {
            OnSlotLost::Halt => "halt",
            OnSlotLost::Repair => "repair",
        };
        self.add(&table, "on_slot_lost", json!(on_slot_lost));
        match &pipeline.outbox.capture {
            Some(capture) => self.capture(capture, &of("capture")),
            None => self.outbox(pipeline, &of("outbox")),
        }
        self.route(pipeline, spec, &of("route"));
        let (payload, table) = (&pipeline.payload, of("payload"));
        let of_null = match payload.null {
            NullPayload::Tombstone => "tombstone",
            NullPayload::Empty => "empty",
            NullPayload::Park => "park",
        };
        self.add(&table, "null", json!(of_null));
        let empty = if payload.blank_is_tombstone { "tombstone" } else { "keep" };
        self.add(&table, "empty", json!(empty));
        let size = match payload.size_max {
            SizeMax::Auto => "auto".to_owned(),
            SizeMax::Bytes(bytes) => ShowSize(bytes).to_string(),
        };
        self.add(&table, "size_max", json!(size));
        self.add(&table, "envelope", json!(payload.envelope.as_deref().unwrap_or_default()));
        self.add(&table, "expand_json", json!(payload.expand_json));
        for row in payload.format.values() {
            self.sink_row(&format!("pipelines.{}", pipeline.name), row, true);
        }
        self.sink(pipeline, &of("sink"));
        self.flow(pipeline, &of);
    }

    fn outbox(&mut self, pipeline: &PipelineConfig, table: &str) {
        let outbox = &pipeline.outbox;
        let name = outbox.table.as_ref().map(|t| format!("{}.{}", name(&t.schema), name(&t.name)));
        self.add(table, "table", json!(name));
        self.add(table, "layout", json!(outbox.layout.name()));
        self.add(
            table,
            "message_prefix",
            json!(outbox.message_prefix.as_deref().unwrap_or_default()),
        );
        let on_update = match outbox.on_update {
            OnUpdate::Skip => "skip",
            OnUpdate::Halt => "halt",
        };
        self.add(table, "on_update", json!(on_update));
        let columns = format!("{table}.columns");
        for (role, column) in &outbox.columns {
            // The file may have the layout's own name of the column.
            let own = outbox.layout.column(*role).unwrap_or(role.name());
            let by_role = self.config.places.get(&format!("{columns}.{role}")).is_some();
            let key = if by_role { role.name() } else { own };
            self.add(&columns, &quoted(key), json!(column));
        }
        for extra in &outbox.extra {
            let mut value = match &extra.placement {
                Placement::Header(name) => json!({"header": name}),
                Placement::Envelope(name) => json!({"envelope": name}),
                Placement::Partition => json!({"partition": true}),
                Placement::Ignore => json!({"ignore": true}),
            };
            if extra.may_lack {
                value["optional"] = json!(true);
            }
            self.add(&format!("{table}.extra"), &quoted(&extra.column), value);
        }
    }

    fn capture(&mut self, capture: &CaptureSpec, table: &str) {
        let written = |of: &TableName| format!("{}.{}", name(&of.schema), name(&of.name));
        let tables: Vec<String> = capture.tables.iter().map(|of| written(&of.name)).collect();
        self.add(table, "tables", json!(tables));
        let columns = format!("{table}.columns");
        for of in &capture.tables {
            let Some(list) = &of.columns else { continue };
            // The file may have the table's name in another way.
            let prefix = format!("{columns}.");
            let keys = [written(&of.name), of.qualified(), of.name.name.clone()];
            let is_in_file = |key: &&String| {
                self.config.places.get(&format!("{prefix}{}", quoted(key))).is_some()
            };
            let key = keys.iter().find(is_in_file).unwrap_or(&keys[0]);
            self.add(&columns, &quoted(key), json!(list));
        }
        self.add(table, "inline_threshold_rows", json!(capture.inline_threshold_rows));
        let bytes = u64::try_from(capture.chunk_bytes).unwrap_or(u64::MAX);
        self.add(table, "chunk_bytes", json!(ShowSize(bytes).to_string()));
    }

    fn route(&mut self, pipeline: &PipelineConfig, spec: &OutboxSpec, table: &str) {
        let route = &pipeline.route;
        let layout = match pipeline.outbox.capture {
            Some(_) => Origin::Default,
            None => Origin::Layout(pipeline.outbox.layout.name()),
        };
        self.add_or(table, "topic", json!(spec.topic), layout.clone());
        self.add_or(table, "key", json!(spec.key), layout.clone());
        self.add(table, "partition", json!(route.partition.as_deref().unwrap_or_default()));
        let timestamp = match route.timestamp {
            TimestampSource::Event => "event",
            TimestampSource::Commit => "commit",
            TimestampSource::Broker => "broker",
        };
        self.add(table, "timestamp", json!(timestamp));
        let sent = spec.standard_headers;
        let headers =
            [("type", sent.event_type), ("position", sent.position), ("source", sent.source)];
        let headers: Vec<_> =
            headers.iter().filter(|(_, sent)| *sent).map(|(name, _)| name).collect();
        self.add_or(table, "standard_headers", json!(headers), layout);
        if let Some(replace) = &route.replace {
            let table = format!("{table}.replace");
            self.add(&table, "pattern", json!(replace.pattern));
            self.add(&table, "with", json!(replace.with));
        }
        for (header, template) in &route.headers {
            self.add(&format!("{table}.headers"), &quoted(header), json!(template));
        }
    }

    fn sink(&mut self, pipeline: &PipelineConfig, table: &str) {
        self.add(table, "kind", json!(pipeline.sink.kind()));
        for row in pipeline.sink.values() {
            self.sink_row(table, row, true);
        }
        for other in &pipeline.other_sinks {
            for row in other.values() {
                self.sink_row(table, row, false);
            }
        }
    }

    /// Adds a key of a sink. Those of another kind than the pipeline's (`is_own`) have no effect: they are shown where
    /// they are in the file.
    fn sink_row(&mut self, table: &str, row: sink::Shown, is_own: bool) {
        let table = match row.table {
            "" => table.to_owned(),
            inner => format!("{table}.{inner}"),
        };
        let key = quoted(&row.key);
        // The name may be in quotes, end in `_file`, or have bare dots, of which the first part is a table.
        let (first, _) = row.key.split_once('.').unwrap_or((&row.key, ""));
        let written = [key.clone(), quoted(&format!("{}_file", row.key)), quoted(first)];
        let is_in_file =
            |key: &&String| self.config.places.get(&format!("{table}.{key}")).is_some();
        let written = written.iter().find(is_in_file).cloned();
        let is_shown = self.rows.iter().any(|shown| shown.table == table && shown.key == key);
        if is_shown || !is_own && written.is_none() {
            return;
        }
        let value = match row.value {
            ShownValue::Text(text) => json!(text),
            ShownValue::Number(number) => json!(number),
            ShownValue::Boolean(yes) => json!(yes),
            ShownValue::Secret => json!(MASK),
        };
        self.add(&table, written.as_ref().unwrap_or(&key), value);
        if let Some(row) = self.rows.last_mut() {
            row.key = key;
        }
    }

    fn flow(&mut self, pipeline: &PipelineConfig, of: &dyn Fn(&str) -> String) {
        let (flow, table) = (&pipeline.flow, of("flow"));
        self.add(&table, "in_flight_bytes", json!(ShowSize(flow.in_flight_bytes).to_string()));
        self.add(&table, "in_flight_events", json!(flow.in_flight_events));
        self.add(&table, "confirm_interval", duration(flow.confirm_interval));
        self.add(&table, "cursor_interval", duration(flow.cursor_interval));
        let ordering = match flow.ordering {
            Ordering::Pipelined => "pipelined",
            Ordering::Strict => "strict",
        };
        self.add(&table, "ordering", json!(ordering));
        let (parking, table) = (&pipeline.parking, of("parking"));
        let on_poison = match parking.on_poison {
            OnPoison::BlockKey => "block_key",
            OnPoison::SkipEvent => "skip_event",
            OnPoison::Stop => "stop",
        };
        self.add(&table, "on_poison", json!(on_poison));
        self.add(&table, "attempts_max", json!(parking.attempts_max));
        self.add(&table, "rows_max", json!(parking.rows_max));
        let dead_topic = parking.dead_topic.as_deref().unwrap_or_default();
        self.add(&table, "dead_topic", json!(dead_topic));
        self.add(&table, "park_after", parking.park_after.map_or_else(|| json!("0"), duration));
        let backoff = format!("{table}.backoff");
        self.add(&backoff, "step", duration(parking.backoff.step));
        self.add(&backoff, "steps_max", json!(parking.backoff.steps_max));
        let (poll, table) = (&pipeline.poll, of("poll"));
        self.add(&table, "interval", duration(poll.interval));
        self.add(&table, "batch", json!(poll.batch));
        let mark = match poll.mark {
            Mark::Layout => "layout",
            Mark::Delete => "delete",
        };
        self.add(&table, "mark", json!(mark));
        self.add(&table, "mark_streamed", json!(poll.mark_streamed));
        let retain_max = ShowSize(pipeline.kept.bookmarks.retain_max).to_string();
        self.add(&of("bookmarks"), "retain_max", json!(retain_max));
        self.retention(&pipeline.kept.retention, &of("retention"));
    }

    fn retention(&mut self, settings: &RetentionSettings, table: &str) {
        let never = |of: Option<Duration>| of.map_or_else(|| json!("0"), duration);
        let named = |of: &Option<TableName>| {
            let shown = of.as_ref().map(|of| format!("{}.{}", name(&of.schema), name(&of.name)));
            json!(shown.unwrap_or_default())
        };
        self.add(table, "keep", never(settings.keep));
        let keep_from = match settings.keep_from {
            KeepFrom::Published => "published",
            KeepFrom::Time => "time",
            KeepFrom::Expiry => "expiry",
        };
        self.add(table, "keep_from", json!(keep_from));
        let action = match settings.action {
            RetentionAction::Delete => "delete",
            RetentionAction::Archive => "archive",
            RetentionAction::Drop => "drop",
        };
        self.add(table, "action", json!(action));
        self.add(table, "archive", named(&settings.archive));
        self.add(table, "archive_keep", never(settings.archive_keep));
        self.add(table, "interval", duration(settings.interval));
        self.add(table, "rate", json!(settings.rate));
        self.add(table, "processed_events", named(&settings.processed_events));
        let partitions = format!("{table}.partitions");
        let by = settings.width.map(|width| width.to_string()).unwrap_or_default();
        self.add(&partitions, "by", json!(by));
        self.add(&partitions, "ahead", json!(settings.ahead));
    }
}

fn duration(value: Duration) -> Value {
    json!(ShowDuration(value).to_string())
}

/// A part of a table's name in SQL.
fn name(part: &str) -> String {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    let bare = part.bytes().all(plain) && !part.starts_with(|c: char| c.is_ascii_digit());
    if bare { part.to_owned() } else { format!("\"{}\"", part.replace('"', "\"\"")) }
}

/// Whether a shown value is masked.
pub fn is_masked(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.contains(MASK))
}
