//! The values of a configuration: plain data, complete, without an `Option` where there is a default.

use super::file::{Finding, Properties, Url};
use super::section::Places;
use crate::outbox::{
    Extra, Layout, NullPayload, OnUpdate, Replace, Role, StandardHeaders, TableName,
    TimestampSource,
};
use crate::pipeline::{Mode, OnSlotLost, PipelineSpec};
use crate::relay::OnPoison;
use crate::secret_file::SecretFile;
use crate::sink::CreateTopics;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// A whole file.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file's name, for messages.
    pub file: String,
    /// The admin endpoint.
    pub admin: AdminConfig,
    /// How long a stop may take: waiting for what is in flight, and for the database to take the last position.
    pub shutdown_grace: Duration,
    /// The pipelines, by name.
    pub pipelines: Vec<PipelineConfig>,
    /// The same pipelines as the adapters take them, in the same order.
    pub specs: Vec<PipelineSpec>,
    /// What is allowed and yet looks wrong.
    pub warnings: Vec<Finding>,
    /// Where each key stands in the file.
    pub places: Places,
}

/// `[admin]`
#[derive(Clone, PartialEq, Debug)]
pub struct AdminConfig {
    /// Where /metrics, /live, /ready and /status are served; `None` is off.
    pub listen: Option<SocketAddr>,
    /// `/ready` says 503 while the lag is longer.
    pub ready_lag_max: Duration,
}

/// `[pipelines.NAME]`
#[derive(Clone, PartialEq, Debug)]
pub struct PipelineConfig {
    /// The name.
    pub name: String,
    /// Where events are read from.
    pub mode: Mode,
    /// The database.
    pub source: SourceConfig,
    /// The table, its columns, and the messages.
    pub outbox: OutboxConfig,
    /// Where events go.
    pub route: RouteConfig,
    /// What becomes of payloads.
    pub payload: PayloadConfig,
    /// The broker.
    pub sink: SinkConfig,
    /// Bounds of what is on its way.
    pub flow: FlowConfig,
    /// What becomes of events that can't be published.
    pub parking: ParkingConfig,
    /// How the table is polled.
    pub poll: PollConfig,
    /// What saved positions may cost.
    pub bookmarks: BookmarksConfig,
}

/// `[pipelines.NAME.bookmarks]`
#[derive(Clone, PartialEq, Debug)]
pub struct BookmarksConfig {
    /// Bytes of WAL that all bookmarks together may hold back; past it the oldest is let go.
    pub retain_max: u64,
}

/// `[pipelines.NAME.source]`
#[derive(Clone, PartialEq, Debug)]
pub struct SourceConfig {
    /// URI or `key=value` pairs, as libpq takes them.
    pub url: Url,
    /// The file that holds the password, as it is written in the configuration.
    pub password_file: Option<String>,
    /// The same file, to be read at each login.
    pub password: Option<SecretFile>,
    /// The zone of columns without one; empty where none is said.
    pub time_zone: String,
    /// The replication slot.
    pub slot: String,
    /// The publication, as it is called in the catalog (not folded, not quoted).
    pub publication: String,
    /// Whether the slot is made as one that follows a failover (PostgreSQL 17 and later).
    pub failover: bool,
    /// How much WAL the slot may hold back; `None` for as much as there is. Unit: bytes.
    pub wal_retain_max: Option<u64>,
    /// What is done when the slot is gone.
    pub on_slot_lost: OnSlotLost,
}

/// `[pipelines.NAME.outbox]`
#[derive(Clone, PartialEq, Debug)]
pub struct OutboxConfig {
    /// The table; `None` takes logical messages alone.
    pub table: Option<TableName>,
    /// The column preset.
    pub layout: Layout,
    /// The prefix of logical messages to take; `None` takes none.
    pub message_prefix: Option<String>,
    /// What an UPDATE of the table leads to.
    pub on_update: OnUpdate,
    /// Columns that differ from the layout: role → column.
    pub columns: Vec<(Role, String)>,
    /// Further columns: where each goes.
    pub extra: Vec<Extra>,
}

/// `[pipelines.NAME.route]`
#[derive(Clone, PartialEq, Debug)]
pub struct RouteConfig {
    /// A template; `None` is the layout's own.
    pub topic: Option<String>,
    /// A template, the empty one for a null key; `None` is the layout's own.
    pub key: Option<String>,
    /// A template that gives a number; `None` lets the broker's partitioner choose.
    pub partition: Option<String>,
    /// What stamps a record.
    pub timestamp: TimestampSource,
    /// A rewriting of the topic.
    pub replace: Option<Replace>,
    /// Which of the standard headers are sent; `None` is the layout's choice.
    pub standard_headers: Option<StandardHeaders>,
    /// Templates of further headers, by name.
    pub headers: BTreeMap<String, String>,
}

/// `[pipelines.NAME.payload]`
#[derive(Clone, PartialEq, Debug)]
pub struct PayloadConfig {
    /// What a NULL payload becomes.
    pub null: NullPayload,
    /// Whether a payload of nothing but white space is a null value too.
    pub blank_is_tombstone: bool,
    /// The largest payload that is published.
    pub size_max: SizeMax,
    /// The field the payload is put in, with the extra fields beside it; `None` publishes it as it is.
    pub envelope: Option<String>,
    /// In an envelope, payload text that is a JSON object or array stands as JSON.
    pub expand_json: bool,
}

/// `payload.size_max`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeMax {
    /// What the destination takes.
    Auto,
    /// Bytes.
    Bytes(u64),
}

/// `[pipelines.NAME.sink]`
#[derive(Clone, PartialEq, Debug)]
pub struct SinkConfig {
    /// Which kind of broker.
    pub kind: SinkKind,
    /// `host:port,host:port`; empty where the kind needs none.
    pub brokers: String,
    /// What is promised.
    pub delivery: Delivery,
    /// Producers.
    pub shards: u32,
    /// How topics that are missing are made; `None` where they are not.
    pub create_topics: Option<CreateTopics>,
    /// librdkafka's own settings.
    pub properties: Properties,
    /// Those of the properties that come from a file (`_file`), and the file.
    pub secret_files: BTreeMap<String, SecretFile>,
}

/// `sink.kind`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SinkKind {
    /// Apache Kafka and what speaks its protocol.
    Kafka,
    /// JSON Lines on standard output.
    Stdout,
    /// Nowhere, for measurements.
    Discard,
}

/// `sink.delivery`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// Nothing lost; after a crash some events come twice.
    AtLeastOnce,
}

/// `[pipelines.NAME.flow]`
#[derive(Clone, PartialEq, Debug)]
pub struct FlowConfig {
    /// Bytes that may be in flight.
    pub in_flight_bytes: u64,
    /// Events that may be in flight.
    pub in_flight_events: u64,
    /// How long a moved watermark may wait before the server is told.
    pub confirm_interval: Duration,
    /// How often the durable cursor row is written.
    pub cursor_interval: Duration,
    /// How many events of one aggregate may be in flight.
    pub ordering: Ordering,
}

/// `flow.ordering`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ordering {
    /// Any number: what could be refused is looked at before it is sent.
    Pipelined,
    /// One: even an event that a broker refuses against all expectation can't be overtaken.
    Strict,
}

/// `[pipelines.NAME.parking]`
#[derive(Clone, PartialEq, Debug)]
pub struct ParkingConfig {
    /// What one poison event does to the rest.
    pub on_poison: OnPoison,
    /// Attempts before an event is dead.
    pub attempts_max: u32,
    /// The pauses between attempts.
    pub backoff: BackoffConfig,
    /// Parked rows before the intake shuts.
    pub rows_max: u64,
    /// The topic that dead events are also published to, with the error in headers; `None` keeps them in the table
    /// alone.
    pub dead_topic: Option<String>,
    /// How long a destination may refuse everything before its events are parked; `None` waits for ever.
    pub park_after: Option<Duration>,
}

/// `parking.backoff`
#[derive(Clone, PartialEq, Debug)]
pub struct BackoffConfig {
    /// One step.
    pub step: Duration,
    /// Attempt n waits `min(n, steps_max) × step`.
    pub steps_max: u32,
}

/// `[pipelines.NAME.poll]`
#[derive(Clone, PartialEq, Debug)]
pub struct PollConfig {
    /// The pause between looks.
    pub interval: Duration,
    /// Rows taken at a time.
    pub batch: u32,
    /// What becomes of rows that were published.
    pub mark: Mark,
    /// Whether rows that the stream brought are marked too.
    pub mark_streamed: bool,
}

/// `poll.mark`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// As the layout does it.
    Layout,
    /// They are deleted.
    Delete,
}
