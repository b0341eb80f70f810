//! Where records go: the seam that every broker is plugged into.
//!
//! A sink takes records one at a time with a ticket, never waits, and posts what became of each to a [`Mailbox`].

use crate::finding::Finding;
pub use crate::mailbox::{Mailbox, Post};
use crate::record::{Record, Refusal, Ticket};
use crate::secret_file::SecretFile;
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
    /// Hands over one record. The sink copies what it needs before it returns.
    ///
    /// On `Ok` exactly one report for the ticket comes to the mailbox, or none if the sink is reset or closed first, or
    /// posts [`Post::Broken`]. On `Err` no report comes: the same record has to be offered again, before any other,
    /// or it is refused for good. The refusal is an answer and not a post, so that nothing behind the record can
    /// overtake it.
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken>;

    /// As `enqueue`, for a record that is retried. What the sink learnt of its destination before `since` refuses
    /// nothing, because the destination may have been fixed. One answer serves all records that were retried before the
    /// request.
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

    /// As `enqueue`, or with `since` as `enqueue_again`, for a record that was answered [`NotTaken::Alone`]: nothing
    /// that must stay in order with it is in flight, and nothing such is handed over before its report.
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

    /// Whether a record for this destination could be offered now. Hands over nothing.
    ///
    /// # Errors
    /// [`NotTaken::Destination`] while the sink asks the broker about the destination, [`NotTaken::Unavailable`] or
    /// [`NotTaken::Missing`] if the broker has answered after `since` that the destination accepts no records.
    fn probe(&mut self, _topic: &str, _since: Instant) -> Result<(), NotTaken> {
        Ok(())
    }

    /// Sends the records that waited for reports which have arrived. To be called after posts were taken, and at the
    /// returned time.
    fn turn(&mut self) -> Option<Instant> {
        None
    }

    /// The cluster whose brokers answer, by its identifier; `None` until one has answered, and where there is no such
    /// thing. Empty where the brokers name none.
    fn cluster(&self) -> Option<String> {
        None
    }

    /// No record is taken until the next [`Self::admit`]: `enqueue` answers [`NotTaken::Full`].
    fn hold(&mut self) {}

    /// Records may go to this cluster, and to no other. Where the brokers turn out to be of another one, nothing is
    /// taken, and [`Post::Located`] says so.
    fn admit(&mut self, _cluster: &str) {}

    /// Whether nothing is on its way, reported or not.
    fn is_idle(&self) -> bool {
        true
    }

    /// Gives up everything in flight and starts with new producers; reports of what was in flight may still come, or
    /// not.
    ///
    /// What was in flight is then `Unknown`, all of it: the caller starts again from its cursor.
    fn reset(&mut self);

    /// Lets what was handed over be sent, unless something of it was given up, and waits for reports, at most `grace`;
    /// then disconnects. Records that still wait for the reports of others are not sent: to have them sent, wait until
    /// [`is_idle`](Self::is_idle) first.
    fn close(&mut self, grace: Duration);
}

/// Why a record was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// The client's own queue is full, or the client is being replaced. A post to the mailbox says when to offer it
    /// again.
    Full,
    /// The sink has requested what it must know of the destination. A post says when to offer the record again.
    Destination,
    /// A broker has answered that the destination accepts no records: it is missing, or we may not write to it. A post
    /// says when that is over.
    Unavailable,
    /// As `Unavailable`, and this sink has never known the destination: the record may name one that does not exist.
    Missing,
    /// The record does not fit the last answer about its destination, which is old and is requested again. Nothing else
    /// waits for the new answer: other records may be offered meanwhile. A post says when to offer this one again.
    Doubted(Refusal),
    /// Only the broker can decide whether it accepts the record, and nothing that must stay in order with the record
    /// may be in flight meanwhile. To be offered by `enqueue_alone`; no post says when.
    Alone,
    /// The record can never be published as it is.
    Refused(Refusal),
}

// What the product knows of a broker: its kind, its keys in the configuration, and its settings. A new broker
// implements these three, and `Sink`.

/// A kind of broker, as `sink.kind` names it. `KINDS` of `postrider-sinks` lists those of the product; a program
/// that embeds Postrider may give the reader of the configuration others.
pub trait SinkKind: Sync {
    /// The word in the configuration, in the cursor row and on the command line.
    fn name(&self) -> &'static str;

    /// Reads the keys of the kind in `[pipelines.NAME.sink]`. It asks for every key that it has, in each call: so the
    /// keys are known without a list of their own. It reports what is wrong to `keys`, and goes on with the default.
    fn read(&self, keys: &dyn Keys) -> Arc<dyn SinkConfig>;

    /// The keys of this kind with their defaults, each below its description, as `config/postrider.reference.toml` has
    /// them in `[pipelines.orders.sink]`. The JSON schema takes descriptions and defaults from it.
    fn reference(&self) -> &'static str;
}

/// One table of the configuration, asked for its keys one by one. What is wrong is collected; nothing stops at the
/// first.
pub trait Keys {
    /// Whether the table is in the file.
    fn is_present(&self) -> bool;

    /// A string with its variables filled in; `None` where it is absent or wrong.
    fn text(&self, key: &'static str) -> Option<String>;

    /// A string that must be there and not be empty. `example` is a value for the message. Where the pipeline uses
    /// another kind of sink, nothing must be there.
    fn required(&self, key: &'static str, example: &str) -> Option<String>;

    /// A whole number between two bounds; the default where it is absent or wrong.
    fn number(&self, key: &'static str, default: u32, range: RangeInclusive<u32>) -> u32;

    /// One of a few words, by its place among `words`; `later` are words of versions to come. 0 where it is absent or
    /// wrong.
    fn word(&self, key: &'static str, words: &[&str], later: &[&str]) -> usize;

    /// A table in this one.
    fn table(&self, key: &'static str) -> Box<dyn Keys + '_>;

    /// A table in this one, or `false` in its place, which is as if it were absent.
    fn table_or_false(&self, key: &'static str) -> Box<dyn Keys + '_>;

    /// All entries of a table whose keys the user chooses: strings, numbers and booleans as strings. A name with dots
    /// outside of quotes, which is a table of tables in TOML, is one name.
    fn entries(&self) -> Vec<KeyValue>;

    /// The key has another name since an earlier version. A file that has the old one is refused.
    fn renamed(&self, old: &'static str, new: &'static str);

    /// A file that holds a secret, and what it holds now; `None` where it can't be read, which is reported. `path` is
    /// that of the key, [`KeyValue::path`]; `file` is relative to the configuration.
    fn secret_file(&self, path: &str, file: &str) -> Option<(SecretFile, String)>;

    /// Warns where everybody may read a file that holds a secret and that the client reads itself.
    fn warn_of_secret(&self, path: &str, file: &str);

    /// Reports what is wrong with a key of this table.
    fn error(&self, key: &str, message: String);

    /// Reports what is wrong with an entry, by [`KeyValue::path`].
    fn error_at(&self, path: &str, message: String);

    /// Reports the keys that were not asked for. The table of the sink itself is finished by its reader.
    fn finish(&self);
}

/// An entry of a table whose keys the user chooses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The name, with its dots.
    pub name: String,
    /// Its value, with its variables filled in.
    pub value: String,
    /// The key's path in the file, for messages.
    pub path: String,
}

/// The settings of one sink, as they were read: all that the product knows of it before it is opened, and without it.
///
/// [`open`](Self::open) never waits for the network, and `check` does not touch it. `preflight`, `cluster` and
/// `create` wait for a broker, up to half a minute.
pub trait SinkConfig: Any + fmt::Debug + Send + Sync {
    /// The name of the kind.
    fn kind(&self) -> &'static str;

    /// What the broker can do, and what it costs.
    fn capabilities(&self) -> Capabilities;

    /// What a destination may be called.
    fn names(&self) -> NameRule;

    /// Where records go, for a reader: the brokers' addresses.
    fn place(&self) -> String;

    /// The keys with the values in effect, in the order of the reference configuration. Secrets are masked.
    fn values(&self) -> Vec<Shown>;

    /// What is wrong with the settings, as far as that can be seen without a broker.
    fn check(&self, needs: &Needs) -> Vec<SinkError>;

    /// Opens the sink, and starts to connect it: a broker that can't be reached is no error here, it is a
    /// [`Post::Down`].
    ///
    /// # Errors
    /// What [`check`](Self::check) finds; a thread that can't be started.
    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError>;

    /// What is allowed and yet unwise in the settings, for `postrider check`, without the network.
    fn settings(&self, _pipeline: &str) -> Vec<Finding> {
        Vec::new()
    }

    /// Whether the broker answers and takes us, and what stands in the way of records for `destinations`; `keyed` says
    /// whether they have keys. Publishes nothing.
    fn preflight(&self, _needs: &Needs, _destinations: &[String], _keyed: bool) -> Vec<Finding> {
        Vec::new()
    }

    /// The cluster whose brokers answer, by its identifier; `None` where there is no such thing, or no broker answers.
    fn cluster(&self, _needs: &Needs) -> Option<String> {
        None
    }

    /// Whether the settings say that destinations that are missing are created.
    fn creates(&self) -> bool {
        false
    }

    /// Creates those of the destinations that do not exist; what became of each.
    fn create(&self, _needs: &Needs, _destinations: &[String]) -> Vec<Finding> {
        Vec::new()
    }

    /// What to do so that the destination takes an event that was refused: a halt's hint.
    fn hint(&self, _refusal: Refusal, _destination: &str) -> String {
        GENERAL_HINT.to_owned()
    }

    /// The command that lets the destination take a parked event, by the error code of its row. `size` is that of the
    /// record, in bytes of key, value and headers.
    fn command(&self, _code: &str, _destination: &str, _size: usize) -> Option<String> {
        None
    }
}

/// The hint of a refusal for which no fix is known.
pub const GENERAL_HINT: &str = "fix the destination so that it accepts the event, then start again";

/// What a pipeline needs of its sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needs {
    /// The pipeline's name, by which a broker's logs and quotas may know us.
    pub pipeline: String,
    /// Events that may be in flight at most.
    pub in_flight_events: usize,
    /// Bytes that may be in flight at most, with [`Capabilities::held_bytes`] for each record.
    pub in_flight_bytes: usize,
    /// The largest record in bytes of key, value and headers, where the operator sets one; else the destination's own
    /// limit.
    pub size_max: Option<usize>,
    /// The destinations that are known before the first event.
    pub destinations: Vec<String>,
    /// What is published.
    pub purpose: Purpose,
}

/// What a sink is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The live stream of a pipeline.
    Live,
    /// Events that are published again, beside the live stream: nobody waits for them.
    Replay,
}

/// What a broker can do, and what it costs, as data: nobody else has to know which broker it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub struct Capabilities {
    /// In which order records are kept.
    pub order: Order,
    /// A refusal may name a batch instead of a record ([`Refusal::of_batch`]).
    pub refuses_batches: bool,
    /// The position can be committed with the records.
    pub transactions: bool,
    /// The broker drops a record that it has already.
    pub dedupe: bool,
    /// Records have headers.
    pub headers: bool,
    /// A record without a value differs from one with an empty value.
    pub null_value: bool,
    /// Bytes of the largest record, where all destinations have the same limit.
    pub record_bytes_max: Option<usize>,
    /// Bytes that are held for a record from the hand-over to the report, beside its key, value and headers: flow
    /// control counts them.
    pub held_bytes: usize,
    /// Brokers name their cluster: a position belongs to one.
    pub clusters: bool,
    /// Records go to a server that other processes publish to: those of a process that has ended may still arrive, and
    /// destinations may be missing.
    pub remote: bool,
}

/// In which order a broker keeps records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// All of them in the order in which they were taken.
    Total,
    /// Those with the same key and destination.
    Key,
}

/// What a destination may be called.
#[derive(Clone, Copy)]
pub struct NameRule {
    /// Whether a name is allowed. Called once for each change of the name, not for each record.
    pub allows: fn(&[u8]) -> bool,
    /// Whose rule it is, for messages: `Kafka`.
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

/// Why a sink can't be opened, or what is wrong with its settings.
#[derive(Debug)]
pub struct SinkError {
    message: String,
    hint: String,
    key: Vec<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl SinkError {
    /// What is wrong, as a fragment without the value of a secret, and what fixes it.
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

    /// What fixes it, in one line.
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
