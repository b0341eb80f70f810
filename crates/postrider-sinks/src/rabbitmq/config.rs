//! The keys of a RabbitMQ sink, and what the product asks of its settings.

use super::commands;
use super::preflight;
use super::sink;
use super::spec::{
    CreateQueues, MessageRules, NAMES, PasswordSource, Protocol, RabbitAddress, RabbitSpec,
};
use super::stream;
use crate::read_delivery;
use crate::tls::TlsFiles;
use pg_replication::Conninfo;
use postrider_core::finding::Finding;
use postrider_core::record::{Excess, Refusal, RefusalKind};
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{
    Capabilities, CloudEventsBinding, GENERAL_HINT, Keys, Mailbox, NameRule, Needs, Order, Purpose,
    RecordHeaders, Shown, ShownValue, Sink, SinkConfig, SinkError,
};
use postrider_core::units::ShowSize;
use std::any::Any;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(super) const NAME: &str = "rabbitmq";

const URL_EXAMPLE: &str = "amqp://postrider@localhost:5672/%2f";
const STREAM_URL_EXAMPLE: &str = "rabbitmq-stream://postrider@localhost:5552/%2f";
const CONTENT_TYPE: &str = "application/json";

/// The default of RabbitMQ 4.
const MESSAGE_BYTES: u64 = 16 << 20;
const MESSAGE_BYTES_RANGE: RangeInclusive<u64> = 1 << 10..=512 << 20;

const WINDOW: u32 = 1_000;
const WINDOW_MAX: u32 = 10_000;

const HEARTBEAT: Duration = Duration::from_secs(10);
const HEARTBEAT_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_mins(5);

/// Words of `lock_queue`.
const AUTO: &str = "auto";
const NONE: &str = "none";

/// The values of `create.queue_type` and of `create.exchange_type`.
const QUEUE_TYPES: [&str; 3] = ["quorum", "classic", STREAM_TYPE];
const STREAM_TYPE: &str = "stream";
const EXCHANGE_TYPES: [&str; 3] = ["topic", "direct", "fanout"];

/// Memory for a record in flight beside key, value and headers: its frames that are not written yet, its place in the
/// window, and the length of each header. Unit: bytes.
const HELD_BYTES: usize = 512;

/// The keys as they were written, for `postrider config`.
#[derive(Clone, Debug, Default)]
struct ShownKeys {
    url: String,
    password_file: String,
    ca_file: String,
    cert_file: String,
    key_file: String,
    lock_queue: String,
}

/// `[pipelines.NAME.sink]` of a RabbitMQ sink.
#[derive(Clone)]
pub struct RabbitConfig {
    /// The address, or why it can't be read; `None` if there is none.
    address: Option<Result<RabbitAddress, String>>,
    protocol: Protocol,
    files: TlsFiles,
    rules: MessageRules,
    window: u32,
    heartbeat: Duration,
    management_url: String,
    create: Option<CreateQueues>,
    /// The name of the source's database.
    database: Option<String>,
    shown: ShownKeys,
}

impl fmt::Debug for RabbitConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitConfig")
            .field("address", &self.address)
            .field("rules", &self.rules)
            .field("create", &self.create)
            .finish_non_exhaustive()
    }
}

impl RabbitConfig {
    pub(super) fn read(keys: &dyn Keys) -> Self {
        read_delivery(keys);
        let table = keys.table(NAME);
        let text = |key| table.text(key).unwrap_or_default();
        let protocol =
            [Protocol::Amqp, Protocol::Stream][table.word("protocol", &Protocol::WORDS, &[])];
        let access = Self::read_access(&*table);
        let shown = ShownKeys {
            lock_queue: table.text("lock_queue").unwrap_or_else(|| AUTO.to_owned()),
            ..access.shown.clone()
        };
        let content_type = table.text("content_type").unwrap_or_else(|| CONTENT_TYPE.to_owned());
        if !(1..=255).contains(&content_type.len()) {
            table.error("content_type", "must have 1 to 255 bytes".to_owned());
        }
        let exchange = text("exchange");
        if exchange.len() > 255 {
            table.error("exchange", "must have at most 255 bytes".to_owned());
        }
        let bytes_max = table.size("message_bytes_max", MESSAGE_BYTES, MESSAGE_BYTES_RANGE);
        let config = Self {
            rules: MessageRules {
                exchange,
                content_type,
                message_bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
                size_max: None,
            },
            protocol,
            window: table.number("window", WINDOW, 1..=WINDOW_MAX),
            management_url: text("management_url"),
            create: read_create(&*table),
            shown,
            ..access
        };
        table.finish();
        config
    }

    /// The virtual host; empty if the address can't be read.
    pub fn vhost(&self) -> &str {
        match &self.address {
            Some(Ok(address)) => &address.vhost,
            Some(Err(_)) | None => "",
        }
    }

    /// Reads how the servers are reached and logged in to; the other settings are those of no key.
    fn read_access(table: &dyn Keys) -> Self {
        let url = table.required("url", URL_EXAMPLE);
        let password = table.secret("password_file");
        let key = table.secret("key_file");
        let name = |secret: &Option<(String, SecretFile)>| {
            secret.as_ref().map(|(name, _)| name.clone()).unwrap_or_default()
        };
        let text = |key| table.text(key).unwrap_or_default();
        let shown = ShownKeys {
            url: url.as_deref().map(masked).unwrap_or_default(),
            password_file: name(&password),
            ca_file: text("ca_file"),
            cert_file: text("cert_file"),
            key_file: name(&key),
            lock_queue: NONE.to_owned(),
        };
        let mut address = url.as_deref().map(RabbitAddress::parse);
        if let (Some(Ok(address)), Some((_, file))) = (&mut address, password) {
            address.password = PasswordSource::File(file);
        }
        let path = |name: &String| (!name.is_empty()).then(|| PathBuf::from(name));
        Self {
            address,
            protocol: Protocol::Amqp,
            files: TlsFiles {
                authorities: path(&shown.ca_file),
                certificate: path(&shown.cert_file),
                key: key.map(|(_, file)| file),
            },
            rules: MessageRules {
                exchange: String::new(),
                content_type: String::new(),
                message_bytes_max: 0,
                size_max: None,
            },
            window: 0,
            heartbeat: table.duration("heartbeat", HEARTBEAT, HEARTBEAT_RANGE),
            management_url: String::new(),
            create: None,
            database: None,
            shown,
        }
    }

    /// Reads how a consumer reaches the servers and logs in.
    pub fn read_source(table: &dyn Keys) -> Self {
        Self::read_access(table)
    }

    /// What a consumer connects with. `name` is that of its connection.
    ///
    /// # Errors
    /// The first mistake.
    pub(super) fn source_spec(&self, name: &str) -> Result<RabbitSpec, SinkError> {
        self.spec(&Needs {
            pipeline: name.to_owned(),
            in_flight_events: 0,
            in_flight_bytes: 0,
            size_max: None,
            destinations: Vec::new(),
            purpose: Purpose::Live,
        })
    }

    /// The keys of [`read_source`](Self::read_source) with their values, for `postrider config show`.
    pub fn source_values(&self) -> Vec<Shown> {
        const OF_BOTH: [&str; 6] =
            ["url", "password_file", "ca_file", "cert_file", "key_file", "heartbeat"];
        let rows = self.values().into_iter();
        rows.filter(|row| OF_BOTH.contains(&row.key.as_str())).collect()
    }

    /// What a sink is opened with.
    ///
    /// # Errors
    /// The address can't be read; files of TLS that don't fit.
    pub(super) fn spec(&self, needs: &Needs) -> Result<RabbitSpec, SinkError> {
        let hint = format!("write the address of RabbitMQ, such as \"{URL_EXAMPLE}\"");
        let address = match &self.address {
            Some(Ok(address)) => address.clone(),
            Some(Err(why)) => return Err(SinkError::new(why.clone(), hint).at(&[NAME, "url"])),
            None => return Err(SinkError::new("no address is given", hint).at(&[NAME, "url"])),
        };
        if self.files.certificate.is_some() != self.files.key.is_some() {
            let what = "the client's certificate and its key belong together";
            let hint = "give both cert_file and key_file, or none of them";
            return Err(SinkError::new(what, hint).at(&[NAME, "cert_file"]));
        }
        self.fits(&address)?;
        let has_files = self.files.authorities.is_some() || self.files.certificate.is_some();
        if has_files && !address.tls {
            let what = "certificates are given, and the address is one without TLS";
            let hint = match self.protocol {
                Protocol::Amqp => "write amqps:// in url",
                Protocol::Stream => "write rabbitmq-stream+tls:// in url",
            };
            return Err(SinkError::new(what, hint).at(&[NAME, "url"]));
        }
        if address.user.is_none() && self.files.certificate.is_none() {
            let what = "the address has no user, and there is no client's certificate";
            return Err(SinkError::new(what, hint).at(&[NAME, "url"]));
        }
        let rules = MessageRules { size_max: needs.size_max, ..self.rules.clone() };
        Ok(RabbitSpec {
            address,
            files: self.files.clone(),
            pipeline: needs.pipeline.clone(),
            rules,
            window: usize::try_from(self.window).unwrap_or(usize::MAX),
            heartbeat: self.heartbeat,
            lock_queue: self.lock_queue(needs),
            publisher: self.name_of(needs),
        })
    }

    /// Whether the other keys are those of the protocol.
    fn fits(&self, address: &RabbitAddress) -> Result<(), SinkError> {
        if address.protocol != self.protocol {
            let (what, hint) = match self.protocol {
                Protocol::Amqp => (
                    "the address is that of the stream protocol, and protocol is \"amqp\"",
                    format!(
                        "set protocol = \"stream\", or write an address such as \"{URL_EXAMPLE}\""
                    ),
                ),
                Protocol::Stream => (
                    "protocol is \"stream\", and the address is not that of the stream protocol",
                    format!("write an address such as \"{STREAM_URL_EXAMPLE}\""),
                ),
            };
            return Err(SinkError::new(what, hint).at(&[NAME, "url"]));
        }
        if self.protocol == Protocol::Amqp {
            return Ok(());
        }
        if !self.rules.exchange.is_empty() {
            let what = "streams have no exchange: route.topic is the name of the stream";
            return Err(SinkError::new(what, "leave out exchange").at(&[NAME, "exchange"]));
        }
        if self.shown.lock_queue != AUTO {
            let what = "the stream protocol has no lock queue";
            return Err(SinkError::new(what, "leave out lock_queue").at(&[NAME, "lock_queue"]));
        }
        if self.create.is_some_and(|create| create.queue_type != STREAM_TYPE) {
            let what = "with protocol = \"stream\" only streams are created";
            let hint = "set create.queue_type = \"stream\"";
            return Err(SinkError::new(what, hint).at(&[NAME, "create", "queue_type"]));
        }
        Ok(())
    }

    /// The name of what a pipeline has at the server.
    fn name_of(&self, needs: &Needs) -> String {
        let replay = match needs.purpose {
            Purpose::Live => "",
            Purpose::Replay => ".replay",
        };
        let database = self.database.as_deref().unwrap_or("default");
        format!("postrider.{database}.{}{replay}", needs.pipeline)
    }

    /// The name of the lock. A replay publishes beside the live stream, so it has its own.
    fn lock_queue(&self, needs: &Needs) -> Option<String> {
        let name = match (self.shown.lock_queue.as_str(), needs.purpose) {
            (NONE, _) => return None,
            (AUTO, _) => format!("{}.lock", self.name_of(needs)),
            (name, Purpose::Live) => name.to_owned(),
            (name, Purpose::Replay) => format!("{name}.replay"),
        };
        // Names of queues have at most 255 bytes.
        let end = name.floor_char_boundary(255);
        Some(name.get(..end).map(str::to_owned).unwrap_or_default())
    }
}

/// `false`, or a table that says what is created.
fn read_create(keys: &dyn Keys) -> Option<CreateQueues> {
    let table = keys.table_or_false("create");
    let queue_type = QUEUE_TYPES[table.word("queue_type", &QUEUE_TYPES, &[])];
    let exchange_type = EXCHANGE_TYPES[table.word("exchange_type", &EXCHANGE_TYPES, &[])];
    let is_on = table.is_present();
    table.finish();
    is_on.then_some(CreateQueues { queue_type, exchange_type })
}

/// The address without its password.
fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "***".to_owned() };
    // A password may have any character, a slash too: the login ends at the last @.
    match rest.rsplit_once('@') {
        Some((login, hosts)) => match login.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:***@{hosts}"),
            None => url.to_owned(),
        },
        None => url.to_owned(),
    }
}

impl SinkConfig for RabbitConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Key,
            refuses_batches: false,
            transactions: None,
            exactly_once: false,
            dedupe: self.protocol == Protocol::Stream,
            headers: true,
            null_value: true,
            record_bytes_max: Some(self.rules.message_bytes_max),
            held_bytes: HELD_BYTES,
            clusters: false,
            remote: true,
        }
    }

    fn names(&self) -> NameRule {
        NAMES
    }

    fn place(&self) -> String {
        match &self.address {
            Some(Ok(address)) => address.place(),
            Some(Err(_)) | None => "an address that can't be read".to_owned(),
        }
    }

    fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: &str| Shown { table: NAME, ..Shown::text(key, value) };
        let keys = &self.shown;
        let number = ShownValue::Number(self.window.into());
        let bytes = self.rules.message_bytes_max as u64;
        let mut rows = vec![
            Shown::text("delivery", crate::PROMISES[0]),
            text("protocol", self.protocol.name()),
            text("url", &keys.url),
            text("password_file", &keys.password_file),
            text("ca_file", &keys.ca_file),
            text("cert_file", &keys.cert_file),
            text("key_file", &keys.key_file),
            text("exchange", &self.rules.exchange),
            text("content_type", &self.rules.content_type),
            text("message_bytes_max", &ShowSize(bytes).to_string()),
            Shown { table: NAME, key: "window".to_owned(), value: number },
            text("heartbeat", &format!("{}s", self.heartbeat.as_secs())),
            text("lock_queue", &keys.lock_queue),
            text("management_url", &self.management_url),
        ];
        if let Some(create) = &self.create {
            let table = "rabbitmq.create";
            rows.push(Shown { table, ..Shown::text("queue_type", create.queue_type) });
            rows.push(Shown { table, ..Shown::text("exchange_type", create.exchange_type) });
        } else {
            let value = ShownValue::Boolean(false);
            rows.push(Shown { table: NAME, key: "create".to_owned(), value });
        }
        rows
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        self.spec(needs).err().into_iter().collect()
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        match self.protocol {
            Protocol::Amqp => sink::open(self.spec(needs)?, needs, mailbox),
            Protocol::Stream => stream::open(self.spec(needs)?, needs, mailbox),
        }
    }

    fn settings(&self, _pipeline: &str) -> Vec<Finding> {
        preflight::settings(self.shown.lock_queue == NONE, self.is_exposed(), self.protocol)
    }

    fn preflight(&self, needs: &Needs, destinations: &[String], _keyed: bool) -> Vec<Finding> {
        match self.spec(needs) {
            Ok(spec) if self.protocol == Protocol::Stream => {
                stream::check(&spec, &self.management_url, destinations)
            }
            Ok(spec) => preflight::check(&spec, &self.management_url, destinations),
            Err(error) => {
                vec![Finding::error("rabbitmq_server", error.to_string()).why(error.hint())]
            }
        }
    }

    fn record_headers(&self) -> RecordHeaders {
        RecordHeaders { standard: true, ..RecordHeaders::default() }
    }

    fn cloud_events(&self) -> CloudEventsBinding {
        // AMQP 1.0 has a binding of CloudEvents itself, AMQP 0-9-1 has that of Knative.
        let prefix = match self.protocol {
            Protocol::Stream => "cloudEvents:",
            Protocol::Amqp => "ce-",
        };
        CloudEventsBinding { prefix, percent: false }
    }

    fn for_source(&self, source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        let database = source.downcast_ref::<Conninfo>()?.dbname().to_owned();
        Some(Arc::new(Self { database: Some(database), ..self.clone() }))
    }

    fn creates(&self) -> bool {
        self.create.is_some()
    }

    fn create(&self, needs: &Needs, destinations: &[String]) -> Vec<Finding> {
        match (self.spec(needs), self.create) {
            (Ok(spec), Some(_)) if self.protocol == Protocol::Stream => {
                stream::create(&spec, destinations)
            }
            (Ok(spec), Some(create)) => preflight::create(&spec, create, destinations),
            (Ok(_) | Err(_), _) => Vec::new(),
        }
    }

    fn hint(&self, refusal: Refusal, _destination: &str) -> String {
        match refusal.kind {
            RefusalKind::TooLarge(Some(Excess { size, limit, .. }))
                if limit == self.rules.message_bytes_max =>
            {
                format!(
                    "raise max_message_size in rabbitmq.conf and sink.rabbitmq.message_bytes_max to {size} or more, \
                     then start again"
                )
            }
            RefusalKind::TooLarge(Some(Excess { size, limit, .. }))
                if self.protocol == Protocol::Stream =>
            {
                format!(
                    "raise the limit of {limit} bytes to {size} or more: payload.size_max, or stream.frame_max in \
                     rabbitmq.conf; then start again"
                )
            }
            RefusalKind::TooLarge(Some(Excess { size, .. })) => {
                format!("raise payload.size_max to {size}, then start again")
            }
            RefusalKind::TooLarge(None) => {
                "set sink.rabbitmq.message_bytes_max to the server's max_message_size, then start again".to_owned()
            }
            RefusalKind::Destination(_) => "fix route.topic, then start again".to_owned(),
            RefusalKind::Content(_) => {
                "with parking.on_poison = \"block_key\" it is parked; then postrider parked replace gives it other \
                 content, and postrider parked skip leaves it out"
                    .to_owned()
            }
            RefusalKind::Partition(_) => {
                "RabbitMQ has no partitions: leave out route.partition, then start again".to_owned()
            }
            RefusalKind::Policy
            | RefusalKind::Invalid
            | RefusalKind::Other => GENERAL_HINT.to_owned(),
        }
    }

    fn command(&self, code: &str, destination: &str, _size: usize) -> Option<String> {
        let address = self.address.as_ref()?.as_ref().ok()?;
        let (exchange, vhost) = (&self.rules.exchange, &address.vhost);
        (code == "topic_missing").then(|| match self.protocol {
            Protocol::Amqp => commands::declare_queue(vhost, exchange, destination),
            Protocol::Stream => commands::declare_stream(vhost, destination),
        })
    }
}

impl RabbitConfig {
    /// Whether a password goes over the network without TLS.
    fn is_exposed(&self) -> bool {
        let local = |name: &str| matches!(name, "localhost" | "127.0.0.1" | "::1");
        match &self.address {
            Some(Ok(address)) => {
                !address.tls && address.hosts.iter().any(|host| !local(&host.name))
            }
            Some(Err(_)) | None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str, lock_queue: &str) -> RabbitConfig {
        RabbitConfig {
            address: Some(RabbitAddress::parse(url)),
            protocol: Protocol::Amqp,
            files: TlsFiles::default(),
            rules: MessageRules {
                exchange: "events".to_owned(),
                content_type: CONTENT_TYPE.to_owned(),
                message_bytes_max: 16 << 20,
                size_max: None,
            },
            window: WINDOW,
            heartbeat: HEARTBEAT,
            management_url: String::new(),
            create: None,
            database: Some("shop".to_owned()),
            shown: ShownKeys { lock_queue: lock_queue.to_owned(), ..ShownKeys::default() },
        }
    }

    fn needs(purpose: Purpose) -> Needs {
        Needs {
            pipeline: "orders".to_owned(),
            in_flight_events: 1,
            in_flight_bytes: 1,
            size_max: Some(7),
            destinations: Vec::new(),
            purpose,
        }
    }

    #[test]
    fn lock_queue_is_that_of_database_pipeline_and_purpose() {
        let name = |words: &str, purpose| {
            config("amqp://u@h", words).spec(&needs(purpose)).unwrap().lock_queue
        };
        let (live, replay) = (Purpose::Live, Purpose::Replay);
        assert_eq!(name(AUTO, live).as_deref(), Some("postrider.shop.orders.lock"));
        assert_eq!(name(AUTO, replay).as_deref(), Some("postrider.shop.orders.replay.lock"));
        assert_eq!(name("mine", live).as_deref(), Some("mine"));
        assert_eq!(name("mine", replay).as_deref(), Some("mine.replay"));
        assert_eq!(name(NONE, live), None);
    }

    #[test]
    fn passwords_are_masked() {
        for (url, shown) in [
            ("amqp://u:p@a,b:7/v", "amqp://u:***@a,b:7/v"),
            ("amqp://u:p/a@ss@a/v", "amqp://u:***@a/v"),
            ("amqp://u@a", "amqp://u@a"),
            ("amqp://a/v", "amqp://a/v"),
            ("no address: p", "***"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }

    #[test]
    fn settings_that_do_not_fit_are_mistakes() {
        let mistake = |url: &str, change: fn(&mut RabbitConfig)| {
            let mut config = config(url, AUTO);
            change(&mut config);
            config.check(&needs(Purpose::Live)).into_iter().next().map(|error| error.to_string())
        };
        assert_eq!(mistake("amqp://u@h", |_| ()), None);
        assert!(mistake("amqp://h", |_| ()).is_some_and(|what| what.contains("no user")));
        let with_ca = |config: &mut RabbitConfig| config.files.authorities = Some("ca".into());
        assert!(mistake("amqp://u@h", with_ca).is_some_and(|what| what.contains("without TLS")));
        assert_eq!(mistake("amqps://u@h", with_ca), None);
        let with_cert = |config: &mut RabbitConfig| config.files.certificate = Some("c".into());
        assert!(mistake("amqps://u@h", with_cert).is_some_and(|what| what.contains("key")));
        let stream = |config: &mut RabbitConfig| {
            config.protocol = Protocol::Stream;
            config.rules.exchange.clear();
        };
        assert_eq!(mistake("rabbitmq-stream://u@h", stream), None);
        assert!(mistake("amqp://u@h", stream).is_some_and(|what| what.contains("not that of")));
        assert!(
            mistake("rabbitmq-stream://u@h", |_| ()).is_some_and(|what| what.contains("that of"))
        );
        let exchange = |config: &mut RabbitConfig| config.protocol = Protocol::Stream;
        let what = mistake("rabbitmq-stream://u@h", exchange);
        assert!(what.is_some_and(|what| what.contains("no exchange")));
        assert!(mistake("http://u@h", |_| ()).is_some_and(|what| what.contains("scheme")));
        assert!(config("amqp://u@far", AUTO).is_exposed());
        assert!(!config("amqps://u@far", AUTO).is_exposed());
        assert!(!config("amqp://u@localhost", AUTO).is_exposed());
    }
}
