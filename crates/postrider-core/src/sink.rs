//! Sinks: the interface to message brokers.
//!
//! A sink takes one record at a time, with a ticket, and never waits. It posts the outcome of each record to a
//! [`Mailbox`].

use crate::finding::Finding;
pub use crate::mailbox::{Mailbox, Post};
use crate::record::{Record, Refusal, Ticket};
use crate::secret_file::SecretFile;
pub use crate::sink_transaction::{SinkCall, SinkProgress, TransactionLimits, Transactional};
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection to a broker, or a substitute for one.
///
/// All methods are called from one thread, in the order of the stream. None of them waits except `close`.
pub trait Sink: Send {
    /// Offers one record. The sink copies what it needs before it returns.
    ///
    /// After `Ok` exactly one report for the ticket is posted, or none if the sink is reset or closed first, or posts
    /// [`Post::Broken`]. After `Err` no report is posted: unless the record is refused for good, the same record must
    /// be offered again before any other one. A refusal is returned and not posted, so that no later record can
    /// overtake the refused one.
    ///
    /// # Errors
    /// See [`NotTaken`].
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken>;

    /// As `enqueue`, for a record that is retried. Facts about the destination from before `since` do not count,
    /// because the destination may have been fixed meanwhile: the sink requests them again. One answer is used for all
    /// records that were retried before the request.
    ///
    /// # Errors
    /// As `enqueue`. [`NotTaken::Unavailable`] and [`NotTaken::Missing`] are answers from after `since`.
    fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        _since: Instant,
    ) -> Result<(), NotTaken> {
        self.enqueue(ticket, record)
    }

    /// As `enqueue`, or with `since` as `enqueue_again`, for a record that was answered with [`NotTaken::Alone`]. No
    /// record that must stay in order with it may be in flight, and none may be offered before its report.
    ///
    /// # Errors
    /// The errors of `enqueue`, except [`NotTaken::Alone`]. [`NotTaken::Full`] also while another such record is in
    /// flight.
    fn enqueue_alone(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        _since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.enqueue(ticket, record)
    }

    /// Checks whether a record for this destination could be offered now. No record is sent.
    ///
    /// # Errors
    /// [`NotTaken::Destination`] while the sink asks the broker about the destination, [`NotTaken::Unavailable`] or
    /// [`NotTaken::Missing`] if the broker has answered after `since` that the destination accepts no records.
    fn probe(&mut self, _topic: &str, _since: Instant) -> Result<(), NotTaken> {
        Ok(())
    }

    /// Sends records that have waited for reports of earlier records. Must be called after posts were taken, and at the
    /// returned time, if there is one.
    fn turn(&mut self) -> Option<Instant> {
        None
    }

    /// The identifier of the cluster that the connected brokers belong to. `None` until a broker has answered, and for
    /// a sink without clusters. Empty if the brokers name no cluster.
    fn cluster(&self) -> Option<String> {
        None
    }

    /// Accepts no record until the next [`Self::admit`]: `enqueue` returns [`NotTaken::Full`]. Called only if the
    /// sink's [`Capabilities::clusters`] is set: first after the sink was opened.
    fn hold(&mut self) {}

    /// Allows records to go to this cluster only. If the brokers belong to another cluster, the sink accepts no record
    /// and posts [`Post::Located`]. Called only if the sink's [`Capabilities::clusters`] is set.
    fn admit(&mut self, _cluster: &str) {}

    /// The calls of a sink that publishes in transactions ([`Capabilities::transactions`]). `None` for any other sink.
    fn transactional(&mut self) -> Option<&mut dyn Transactional> {
        None
    }

    /// Whether no record is queued or in flight, including discarded records that may still reach the broker. A sink
    /// with a queue must implement it: when a pipeline ends, a sink that is not idle is reset, so that nothing which it
    /// holds is sent later.
    fn is_idle(&self) -> bool {
        true
    }

    /// Discards all records in flight, and continues with new producers. Reports of discarded records may still be
    /// posted.
    ///
    /// The outcome of every record that was in flight is then `Unknown`: the caller starts again from its cursor.
    fn reset(&mut self);

    /// Sends the accepted records, unless a record was discarded, waits for their reports, at most `grace`, and then
    /// disconnects. Records that still wait for reports of earlier records are not sent: a caller that wants them sent
    /// waits until [`is_idle`](Self::is_idle) before.
    fn close(&mut self, grace: Duration);
}

/// Why a record was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The client's own queue is full, or the client is being replaced. A post to the mailbox says when to offer it
    /// again: a report, or [`Post::Retry`]. Without a post it is offered again when the pipeline wakes for another
    /// reason, after 0.1 s at the latest.
    Full,
    /// The sink has requested facts about the destination, without which it cannot send. A post says when to offer the
    /// record again.
    Destination,
    /// A broker has answered that the destination accepts no records: the destination does not exist, or this client
    /// may not write to it. A post says when the destination accepts records again.
    Unavailable,
    /// As `Unavailable`, and the destination has never been available to this sink: the record may name a destination
    /// that does not exist.
    Missing,
    /// The record does not fit the known limits of its destination. They were read some time ago, and the sink has
    /// requested them again. Other records may be offered meanwhile. A post says when to offer this record again.
    Doubted(Refusal),
    /// Only the broker can decide whether it accepts the record, and no record that must stay in order with it may be
    /// in flight meanwhile. The record must be offered by `enqueue_alone`; no post says when.
    Alone,
    /// The record can never be published as it is.
    Refused(Refusal),
}

// The description of a broker for the rest of the product: its kind, its keys in the configuration, and its settings. A
// new broker implements `SinkKind`, `SinkConfig` and `Sink`.

/// A kind of broker, as `sink.kind` names it. `KINDS` of `postrider-sinks` lists the kinds of the product. A program
/// that embeds Postrider may pass others to the reader of the configuration.
pub trait SinkKind: Sync {
    /// The name in the configuration, in the cursor row and on the command line.
    fn name(&self) -> &'static str;

    /// Reads the keys of this kind in `[pipelines.NAME.sink]`. Every call requests every key of the kind from `keys`,
    /// so no separate list of keys is needed. Mistakes are reported to `keys`, and the default is used instead.
    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig>;

    /// The keys of this kind with their defaults, each below its description, in the format of
    /// `[pipelines.orders.sink]` in `config/postrider.reference.toml`. The JSON schema takes descriptions and defaults
    /// from this text.
    fn reference(&self) -> &'static str;

    /// What `postrider init` writes into the first configuration file of this kind.
    fn first_file(&self) -> FirstFile {
        FirstFile::default()
    }
}

/// What the first configuration file of a kind of sink has in `[pipelines.NAME.sink]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FirstFile {
    /// The keys that have no default, each with a value as an example.
    pub keys: &'static [(&'static str, &'static str)],
    /// The tables below `sink`, in the order in which a file has them, each with the comment above it and with the keys
    /// that stand first in it. A table without a key is not written.
    pub tables: &'static [FirstFileTable],
}

/// A table of [`FirstFile`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstFileTable {
    /// The table's path below `sink`, such as `create_topics.config`.
    pub path: &'static str,
    /// The comment above it; empty for none.
    pub comment: &'static str,
    /// The keys that stand first in it, in their order.
    pub keys: &'static [&'static str],
}

/// One table of the configuration, whose keys are requested one by one. All mistakes are collected, not only the first.
pub trait Keys {
    /// Whether the table is in the file.
    fn is_present(&self) -> bool;

    /// A string with its variables substituted; `None` if it is absent or wrong.
    fn text(&self, key: &'static str) -> Option<String>;

    /// A required string that must not be empty. `example` is a value for the message. If the pipeline uses another
    /// kind of sink, the string is not required.
    fn required(&self, key: &'static str, example: &str) -> Option<String>;

    /// A whole number between two bounds; the default if it is absent or wrong.
    fn number(&self, key: &'static str, default: u32, range: RangeInclusive<u32>) -> u32;

    /// A duration with its unit, between two bounds; the default if it is absent or wrong.
    fn duration(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration;

    /// A size with its unit, between two bounds; the default if it is absent or wrong. Unit: bytes.
    fn size(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64;

    /// The name of a file that contains a secret, and the file; `None` if it is absent or can't be read, which is
    /// reported.
    fn secret(&self, key: &'static str) -> Option<(String, SecretFile)>;

    /// A variable of the environment that the client library of a kind reads by itself.
    fn variable(&self, name: &str) -> Option<String>;

    /// One of a few words, as its index in `words`; 0 if it is absent or wrong. `later` are words that are reserved for
    /// later versions.
    fn word(&self, key: &'static str, words: &[&str], later: &[&str]) -> usize;

    /// `true` or `false`; the default if it is absent or wrong.
    fn flag(&self, key: &'static str, default: bool) -> bool;

    /// A table in this one.
    fn table(&self, key: &'static str) -> Box<dyn Keys + '_>;

    /// A table in this one, or `false` in its place, which means the same as an absent table.
    fn table_or_false(&self, key: &'static str) -> Box<dyn Keys + '_>;

    /// All entries of a table whose keys the user chooses. Numbers and booleans are returned as strings. A name with
    /// unquoted dots is returned as one name, although TOML reads it as nested tables.
    fn entries(&self) -> Vec<KeyValue>;

    /// Declares that a key was renamed. A file that has the old name is refused.
    fn renamed(&self, old: &'static str, new: &'static str);

    /// A file that contains a secret, and its present content; `None` if it can't be read, which is reported. `path` is
    /// the path of the key, as in [`KeyValue::path`]; `file` is relative to the configuration file.
    fn secret_file(&self, path: &str, file: &str) -> Option<(SecretFile, String)>;

    /// The text of a file that is no secret; `None` if it can't be read or has more than `bytes_max` bytes, which is
    /// reported. Empty where files are not read, as for an editor. `path` and `file` as in
    /// [`secret_file`](Self::secret_file).
    fn file(&self, path: &str, file: &str, bytes_max: usize) -> Option<String>;

    /// Warns if every user of the machine may read a file that contains a secret and that the client library reads
    /// itself.
    fn warn_of_secret(&self, path: &str, file: &str);

    /// Reports a mistake in a key of this table.
    fn error(&self, key: &str, message: String);

    /// Reports a mistake in an entry, by [`KeyValue::path`].
    fn error_at(&self, path: &str, message: String);

    /// Reports the keys that were not requested, which are unknown. Must not be called for the sink's own table: the
    /// reader of the configuration does that.
    fn finish(&self);
}

/// An entry of a table whose keys the user chooses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The name, with its dots.
    pub name: String,
    /// The value, with its variables substituted.
    pub value: String,
    /// The key's path in the file, for messages.
    pub path: String,
}

/// The settings of one sink, as they were read from the configuration.
///
/// [`open`](Self::open) never waits for the network, and [`check`](Self::check) does not use it. `preflight`, `cluster`
/// and `create` wait for a broker, up to half a minute.
pub trait SinkConfig: Any + fmt::Debug + Send + Sync {
    /// The name of the kind.
    fn kind(&self) -> &'static str;

    /// The settings of the sink that this one stands before; `None` for a sink that is a broker's own.
    fn inner(&self) -> Option<&dyn SinkConfig> {
        None
    }

    /// What the broker supports, and its limits.
    fn capabilities(&self) -> Capabilities;

    /// The rule for names of destinations.
    fn names(&self) -> NameRule;

    /// The brokers' addresses, for messages.
    fn place(&self) -> String;

    /// The keys with the values in effect, in the order of the reference configuration. Secrets are masked.
    fn values(&self) -> Vec<Shown>;

    /// The mistakes in the settings that can be found without a broker.
    fn check(&self, needs: &Needs) -> Vec<SinkError>;

    /// Opens the sink, which connects in the background. An unreachable broker is no error here; it is posted as
    /// [`Post::Down`].
    ///
    /// # Errors
    /// The mistakes that [`check`](Self::check) finds; a thread that can't be started.
    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError>;

    /// Findings about settings that are allowed but not recommended, for `postrider check`. The network is not used.
    fn settings(&self, _pipeline: &str) -> Vec<Finding> {
        Vec::new()
    }

    /// Checks whether the broker answers and accepts the login, and whether it would accept records for `destinations`.
    /// `keyed`: the records have keys. Publishes nothing.
    fn preflight(&self, _needs: &Needs, _destinations: &[String], _keyed: bool) -> Vec<Finding> {
        Vec::new()
    }

    /// How long destinations keep records, for `postrider check`. Destinations of which that is not known are left
    /// out.
    fn retentions(&self, _needs: &Needs, _destinations: &[String]) -> Vec<Retention> {
        Vec::new()
    }

    /// The identifier of the cluster that the configured brokers belong to; `None` if no broker answers, and for a sink
    /// without clusters.
    fn cluster(&self, _needs: &Needs) -> Option<String> {
        None
    }

    /// What the headers of each record must have for this kind.
    fn record_headers(&self) -> RecordHeaders {
        RecordHeaders::default()
    }

    /// How the attributes of a CloudEvent are carried in headers.
    fn cloud_events(&self) -> CloudEventsBinding {
        CloudEventsBinding { prefix: "ce_", percent: false }
    }

    /// The same settings for a pipeline that reads from `source`, if they depend on it; otherwise `None`. `source` is
    /// what the crate of the source connects with: a `pg_replication::Conninfo` for PostgreSQL.
    fn for_source(&self, _source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        None
    }

    /// Whether missing destinations are created, by the settings.
    fn creates(&self) -> bool {
        false
    }

    /// Creates what the sink itself needs at the broker, beside destinations, and does not have yet: for `postrider
    /// setup`. `adopt_cursor`: discards the progress that the sink has stored, so that the pipeline continues at its
    /// cursor row. Returns a finding for each part of it.
    fn prepare(&self, _needs: &Needs, _adopt_cursor: bool) -> Vec<Finding> {
        Vec::new()
    }

    /// Creates the destinations that do not exist. Returns one finding for each.
    fn create(&self, _needs: &Needs, _destinations: &[String]) -> Vec<Finding> {
        Vec::new()
    }

    /// How to make the destination accept an event that was refused: the hint of a halt.
    fn hint(&self, _refusal: Refusal, _destination: &str) -> String {
        GENERAL_HINT.to_owned()
    }

    /// The command that makes the destination accept a parked event, by the error code of the event's row. `size`:
    /// bytes of key, value and headers of the record.
    fn command(&self, _code: &str, _destination: &str, _size: usize) -> Option<String> {
        None
    }
}

/// What a kind of sink needs in the headers of each record, because it stores these values elsewhere than in headers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordHeaders {
    /// All standard headers, whatever the layout and `route.standard_headers` say: `type`, if the outbox has a column
    /// for it, and `position`.
    pub standard: bool,
    /// Header `type`, if the outbox has a column for it; the others as configured.
    pub event_type: bool,
    /// Names and templates of further headers. Parked events keep them.
    pub templates: Vec<(String, String)>,
}

/// How long a destination keeps records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retention {
    /// The destination, for messages: a fragment such as `topic "orders"`.
    pub destination: String,
    /// After this time the broker deletes a record; `None` if it does not delete records by their age.
    pub keeps: Option<Duration>,
}

/// How the attributes of a CloudEvent are carried in headers: the binding of CloudEvents to the broker's protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CloudEventsBinding {
    /// The beginning of the headers' names.
    pub prefix: &'static str,
    /// Spaces, quotation marks, percent signs, control characters and everything beyond ASCII are percent-encoded.
    /// `false` also where the sink does that itself.
    pub percent: bool,
}

impl CloudEventsBinding {
    /// Adds a value of an attribute.
    pub fn write_value(self, out: &mut Vec<u8>, value: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        for &byte in value {
            if self.percent && (!(0x21..0x7f).contains(&byte) || matches!(byte, b'"' | b'%')) {
                let digit = |index: u8| DIGITS.get(usize::from(index)).copied().unwrap_or(b'0');
                out.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
            } else {
                out.push(byte);
            }
        }
    }
}

/// The hint of a refusal for which no fix is known.
pub const GENERAL_HINT: &str = "fix the destination so that it accepts the event, then start again";

/// The requirements of a pipeline on its sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needs {
    /// The pipeline's name, which a broker may show in logs and use for quotas.
    pub pipeline: String,
    /// The most events in flight.
    pub in_flight_events: usize,
    /// The most bytes in flight, including [`Capabilities::held_bytes`] for each record.
    pub in_flight_bytes: usize,
    /// The operator's limit on the size of a record, in bytes of key, value and headers; `None` if only the
    /// destination's own limit applies.
    pub size_max: Option<usize>,
    /// The destinations that are known before the first event.
    pub destinations: Vec<String>,
    /// What the sink is opened for.
    pub purpose: Purpose,
}

/// What a sink is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The live stream of a pipeline.
    Live,
    /// Events that are published again beside the live stream. Their latency does not matter.
    Replay,
}

/// What a broker supports, and its limits. The other parts of the product use `held_bytes`, `clusters`, `remote` and
/// `transactions` instead of the kind of the broker. `postrider check` shows the others ([`Self::words`]): the sink
/// itself refuses what it can't publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Capabilities {
    /// Which records the broker keeps in order.
    pub order: Order,
    /// A refusal may name a batch instead of a record. Each refusal says so itself ([`Refusal::of_batch`]).
    pub refuses_batches: bool,
    /// Records are published in transactions that store the position as well ([`Sink::transactional`]), with these
    /// limits. Such a sink needs a stream, and takes no replay.
    pub transactions: Option<TransactionLimits>,
    /// A receiver sees each event once, if it reads as the sink's page says. Only with `transactions`.
    pub exactly_once: bool,
    /// A lost connection to the broker repeats no record: the broker discards what it has already, or says what it has.
    pub dedupe: bool,
    /// Records have headers.
    pub headers: bool,
    /// A record without a value differs from one with an empty value.
    pub null_value: bool,
    /// The size of the largest record, if all destinations have the same limit. Unit: bytes.
    pub record_bytes_max: Option<usize>,
    /// Memory for a record between `enqueue` and its report, in addition to key, value and headers. Flow control counts
    /// it. Unit: bytes.
    pub held_bytes: usize,
    /// Brokers name their cluster, and a position belongs to one cluster.
    pub clusters: bool,
    /// Records go to a server over a network. Records of a process that has ended may still arrive there, and
    /// destinations may be missing.
    pub remote: bool,
}

impl Capabilities {
    /// What is promised, for `postrider check`: a fragment.
    pub fn words(&self) -> String {
        let delivery = if self.exactly_once { "exactly once" } else { "at least once" };
        let order = match self.order {
            Order::Total => "all events in order",
            Order::Key => "the events of each key in order",
        };
        let repeats = match (self.exactly_once, self.dedupe) {
            (true, _) => "",
            (false, true) => "; a lost connection repeats none",
            (false, false) => "; a lost connection may repeat what was in flight",
        };
        let mut words = format!("{delivery}, {order}{repeats}");
        if self.transactions.is_some() && !self.exactly_once {
            words.push_str("; a former owner can't publish");
        }
        if !self.headers {
            words.push_str("; without headers");
        }
        if !self.null_value {
            words.push_str("; a NULL payload is published as an empty one");
        }
        words
    }
}

/// Which records a broker keeps in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// All records, in the order in which the sink accepted them.
    Total,
    /// Records with the same key and destination.
    Key,
}

/// What a destination may be called.
#[derive(Clone, Copy)]
pub struct NameRule {
    /// Whether a name is allowed. Called once for each change of the name, not for each record.
    pub allows: fn(&[u8]) -> bool,
    /// The owner of the rule, for messages: `Kafka`.
    pub owner: &'static str,
    /// The rule in words: `1 to 249 of A-Z a-z 0-9 . _ -`.
    pub words: &'static str,
}

impl NameRule {
    /// Any name that is not empty.
    pub const ANY: Self = Self {
        allows: |name| !name.is_empty(),
        owner: "the broker",
        words: "at least one character",
    };
}

impl PartialEq for NameRule {
    fn eq(&self, other: &Self) -> bool {
        (self.owner, self.words) == (other.owner, other.words)
    }
}

impl Eq for NameRule {}

impl fmt::Debug for NameRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NameRule").field(&self.owner).finish()
    }
}

/// A key with the value in effect.
#[derive(Clone, PartialEq, Debug)]
pub struct Shown {
    /// The table below `[pipelines.NAME.sink]`, `create_topics.config`; empty for the sink's own table.
    pub table: &'static str,
    /// The key.
    pub key: String,
    /// The value.
    pub value: ShownValue,
}

/// The value of a key.
#[derive(Clone, PartialEq, Debug)]
pub enum ShownValue {
    /// A string.
    Text(String),
    /// A number.
    Number(u64),
    /// `true` or `false`.
    Boolean(bool),
    /// Not shown.
    Secret,
}

impl Shown {
    /// A key of the sink's own table with a string.
    pub fn text(key: &str, value: &str) -> Self {
        Self { table: "", key: key.to_owned(), value: ShownValue::Text(value.to_owned()) }
    }
}

/// Why a sink can't be opened, or a mistake in its settings.
#[derive(Debug)]
pub struct SinkError {
    message: String,
    hint: String,
    key: Vec<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SinkError {
    /// An error with a message, which is a fragment without the value of a secret, and a hint: how to fix it.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), key: Vec::new(), source: None }
    }

    /// The key below `[pipelines.NAME.sink]` that the error is about, part by part; without it the error is about the
    /// table.
    #[must_use]
    pub fn at(mut self, key: &[&str]) -> Self {
        self.key = key.iter().map(|&part| part.to_owned()).collect();
        self
    }

    /// Sets the underlying error.
    #[must_use]
    pub fn caused_by(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// How to fix it, in one line.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// The parts of the key that the error is about; none if the error is about the table.
    pub fn key(&self) -> &[String] {
        &self.key
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for SinkError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}
