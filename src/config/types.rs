//! The values of a configuration: plain data, complete, without an `Option` where there is a default.

use super::file::{Finding, Url};
use super::section::Places;
use crate::formats::FormatConfig;
use crate::outbox::{
    Extra, Layout, NullPayload, OnUpdate, Replace, Role, StandardHeaders, TableName,
    TimestampSource,
};
use crate::pipeline::{MaintenanceSettings, Mode, OnSlotLost, PipelineSpec};
use crate::postgres::capture::CaptureSpec;
use crate::postgres::retention::RetentionSettings;
use crate::relay::OnPoison;
use crate::secret_file::SecretFile;
use crate::sink::SinkConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The configuration of a process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file's name, for messages.
    pub file: String,
    /// The admin endpoint.
    pub admin: AdminConfig,
    /// How long a shutdown waits for events in flight, and for the database to store the last position.
    pub shutdown_grace: Duration,
    /// The maintenance of event logs, consumer groups and inboxes.
    pub maintenance: MaintenanceSettings,
    /// The pipelines, by name.
    pub pipelines: Vec<PipelineConfig>,
    /// The specifications of the same pipelines, in the same order.
    pub specs: Vec<PipelineSpec>,
    /// What stores messages in inboxes, by name.
    #[cfg(feature = "kafka")]
    pub inboxes: Vec<super::inboxes::InboxConfig>,
    /// Settings that are valid but probably wrong.
    pub warnings: Vec<Finding>,
    /// The position of each key in the file.
    pub places: Places,
}

/// `[admin]`
#[derive(Clone, PartialEq, Debug)]
pub struct AdminConfig {
    /// The address of /metrics, /live, /ready and /status; `None`: no endpoint.
    pub listen: Option<SocketAddr>,
    /// `/ready` answers 503 while the lag is longer.
    pub ready_lag_max: Duration,
    /// Of how many of the newest changes of each pipeline the process remembers where they were published; 0: of none.
    pub remember_changes: u32,
}

/// `[pipelines.NAME]`
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// The name.
    pub name: String,
    /// What events are read from.
    pub mode: Mode,
    /// The database.
    pub source: SourceConfig,
    /// The table, its columns, and the messages.
    pub outbox: OutboxConfig,
    /// Topic, key, partition and headers of the records.
    pub route: RouteConfig,
    /// How payloads are published.
    pub payload: PayloadConfig,
    /// The broker, behind the form in which events are published ([`PayloadConfig::format`]).
    pub sink: Arc<dyn SinkConfig>,
    /// The keys of the other kinds of sinks: a file may have them beside those of its own kind, and is tried out with
    /// another one by `sink.kind` alone.
    pub other_sinks: Vec<Arc<dyn SinkConfig>>,
    /// Limits of the events in flight.
    pub flow: FlowConfig,
    /// What happens to events that cannot be published.
    pub parking: ParkingConfig,
    /// How the table is polled.
    pub poll: PollConfig,
    /// What is kept of published events: WAL and rows.
    pub kept: KeptConfig,
}

/// What is kept of published events.
#[derive(Clone, PartialEq, Debug)]
pub struct KeptConfig {
    /// How much WAL saved positions may retain.
    pub bookmarks: BookmarksConfig,
    /// How long rows are kept.
    pub retention: RetentionSettings,
}

/// `[pipelines.NAME.bookmarks]`
#[derive(Clone, PartialEq, Debug)]
pub struct BookmarksConfig {
    /// How much WAL all bookmarks together may retain; beyond it the oldest is dropped. Unit: bytes.
    pub retain_max: u64,
}

/// `[pipelines.NAME.source]`
#[derive(Clone, PartialEq, Debug)]
pub struct SourceConfig {
    /// A URI or `key=value` pairs as in libpq.
    pub url: Url,
    /// The file with the password, as written in the configuration.
    pub password_file: Option<String>,
    /// The same file, which is read at each login.
    pub password: Option<SecretFile>,
    /// The time zone of columns without one; empty if not set.
    pub time_zone: String,
    /// The replication slot.
    pub slot: String,
    /// The name of the publication in the catalog (not folded, not quoted).
    pub publication: String,
    /// Whether the slot is created as a failover slot (PostgreSQL 17 and later).
    pub failover: bool,
    /// How much WAL the slot may retain; `None`: no limit. Unit: bytes.
    pub wal_retain_max: Option<u64>,
    /// What to do if the slot is lost.
    pub on_slot_lost: OnSlotLost,
}

/// `[pipelines.NAME.outbox]`
#[derive(Clone, PartialEq, Debug)]
pub struct OutboxConfig {
    /// The table; `None`: only logical messages are published.
    pub table: Option<TableName>,
    /// The column preset.
    pub layout: Layout,
    /// The prefix of logical messages that are published; `None`: none are.
    pub message_prefix: Option<String>,
    /// What an UPDATE of the table leads to.
    pub on_update: OnUpdate,
    /// Columns that have another name than in the layout: role → column.
    pub columns: Vec<(Role, String)>,
    /// Additional columns, and where each is placed.
    pub extra: Vec<Extra>,
    /// `[pipelines.NAME.capture]`: the tables whose changes are published instead; `None`: none are.
    pub capture: Option<CaptureSpec>,
}

/// `[pipelines.NAME.route]`
#[derive(Clone, PartialEq, Debug)]
pub struct RouteConfig {
    /// A template; `None` is the layout's own.
    pub topic: Option<String>,
    /// A template, the empty one for a null key; `None` is the layout's own.
    pub key: Option<String>,
    /// A template for a number; `None`: the partitioner chooses.
    pub partition: Option<String>,
    /// The timestamp of a record.
    pub timestamp: TimestampSource,
    /// A rewriting of the topic.
    pub replace: Option<Replace>,
    /// Which of the standard headers are sent; `None` is the layout's choice.
    pub standard_headers: Option<StandardHeaders>,
    /// Templates of additional headers, by name.
    pub headers: BTreeMap<String, String>,
}

/// `[pipelines.NAME.payload]`
#[derive(Clone, PartialEq, Debug)]
pub struct PayloadConfig {
    /// `[pipelines.NAME.format]`: the form in which events are published.
    pub format: FormatConfig,
    /// The value for a NULL payload.
    pub null: NullPayload,
    /// Whether a payload that is empty or only white space is published as a null value.
    pub blank_is_tombstone: bool,
    /// The largest payload that is published.
    pub size_max: SizeMax,
    /// The field of an object that contains the payload, beside the extra fields; `None`: the payload is the value.
    pub envelope: Option<String>,
    /// Whether payload text that is a JSON object or array is JSON in an envelope, not a string.
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
