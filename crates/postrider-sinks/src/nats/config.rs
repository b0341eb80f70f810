//! The keys of a NATS sink, and what the product asks of its settings.

use super::login::NatsLogin;
use super::spec::{ChainMode, CreateStream, NatsSpec, NatsTlsFiles, STORAGES};
use super::subject::NAMES;
use super::{message, preflight, sink};
use crate::read_delivery;
use async_nats::ServerAddr;
use pg_replication::Conninfo;
use postrider_core::finding::{Finding, shell_word};
use postrider_core::record::{Refusal, RefusalKind};
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{
    Capabilities, CloudEventsBinding, GENERAL_HINT, Keys, Mailbox, NameRule, Needs, Order, Purpose,
    RecordHeaders, Retention, Shown, ShownValue, Sink, SinkConfig, SinkError,
};
use postrider_core::units::ShowDuration;
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(super) const NAME: &str = "nats";

const ACK_TIMEOUT: Duration = Duration::from_secs(10);
const ACK_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_mins(5);
const MAX_AGES: std::ops::RangeInclusive<Duration> =
    Duration::ZERO..=Duration::from_hours(24 * 3_650);
const DUPLICATE_WINDOW: Duration = Duration::from_mins(2);
const DUPLICATE_WINDOWS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_hours(24 * 7);
const REPLICAS_MAX: u32 = 5;

/// Memory for a record in flight beside key, value and headers: the client's message, with its map of headers, and what
/// the worker remembers of it. Unit: bytes.
const HELD_BYTES: usize = 1_536;

/// The files of `[pipelines.NAME.sink.nats]`, by their names in the configuration.
#[derive(Clone, Debug, Default)]
struct LoginFiles {
    password: Option<(String, SecretFile)>,
    token: Option<(String, SecretFile)>,
    nkey: Option<(String, SecretFile)>,
    credentials: Option<(String, SecretFile)>,
    ca: String,
    certificate: String,
    key: String,
}

/// `[pipelines.NAME.sink]` of a NATS sink.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    /// The servers, separated by commas.
    url: String,
    /// The stream.
    pub stream: String,
    /// How the order is kept.
    pub chain: ChainMode,
    user: String,
    files: LoginFiles,
    inbox_prefix: String,
    ack_timeout: Duration,
    /// How `setup` creates the stream; `None` if it does not.
    pub create: Option<CreateStream>,
    delivery: &'static str,
    /// The source database's name, for identifiers.
    database: String,
}

impl NatsConfig {
    pub(super) fn read(keys: &dyn Keys) -> Self {
        let delivery = read_delivery(keys);
        let table = keys.table(NAME);
        let config = Self {
            stream: table.required("stream", "EVENTS").unwrap_or_default(),
            chain: match table.word("chain", &ChainMode::WORDS, &[]) {
                0 => ChainMode::Stream,
                1 => ChainMode::Subject,
                _ => ChainMode::None,
            },
            ack_timeout: table.duration("ack_timeout", ACK_TIMEOUT, ACK_TIMEOUTS),
            create: read_create(&*table),
            delivery,
            ..Self::read_access(&*table)
        };
        table.finish();
        config
    }

    /// Reads how the servers are reached and logged in to; the other settings are those of no key.
    fn read_access(table: &dyn Keys) -> Self {
        let text = |key| table.text(key).unwrap_or_default();
        Self {
            url: table.required("url", "nats://localhost:4222").unwrap_or_default(),
            stream: String::new(),
            chain: ChainMode::None,
            user: text("user"),
            files: LoginFiles {
                password: table.secret("password_file"),
                token: table.secret("token_file"),
                nkey: table.secret("nkey_file"),
                credentials: table.secret("credentials_file"),
                ca: text("ca_file"),
                certificate: text("cert_file"),
                key: text("key_file"),
            },
            inbox_prefix: table.text("inbox_prefix").unwrap_or_else(|| "_INBOX".to_owned()),
            ack_timeout: ACK_TIMEOUT,
            create: None,
            delivery: "",
            database: String::new(),
        }
    }

    /// Reads how a consumer reaches the servers and logs in, and the stream that it reads.
    pub fn read_source(table: &dyn Keys) -> Self {
        let stream = table.required("stream", "EVENTS").unwrap_or_default();
        Self { stream, ..Self::read_access(table) }
    }

    /// What a consumer connects with. `name` is that of its connection.
    ///
    /// # Errors
    /// The first mistake.
    pub(super) fn source_spec(&self, name: &str) -> Result<NatsSpec, SinkError> {
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
        const OF_SINKS: [&str; 4] = ["delivery", "chain", "ack_timeout", "create"];
        let of_both = |row: &Shown| !OF_SINKS.contains(&row.key.as_str());
        self.values().into_iter().filter(of_both).collect()
    }

    /// The servers.
    ///
    /// # Errors
    /// A text that is no address, or has a login.
    fn servers(&self) -> Result<Vec<ServerAddr>, SinkError> {
        let error = |what: String| {
            let hint = "write nats://host:port or tls://host:port, several separated by commas";
            SinkError::new(what, hint).at(&[NAME, "url"])
        };
        let mut servers = Vec::new();
        for url in self.url.split(',').map(str::trim) {
            let server: ServerAddr = url
                .parse()
                .map_err(|why| error(format!("a server of url can't be read: {why}")))?;
            if server.has_user_pass() {
                let hint = "write the user into sink.nats.user, and the password into the file of password_file";
                return Err(SinkError::new("url has a login", hint).at(&[NAME, "url"]));
            }
            if !["nats", "tls"].contains(&server.scheme()) {
                return Err(error(format!("{}:// is not supported", server.scheme())));
            }
            servers.push(server);
        }
        Ok(servers)
    }

    fn login(&self) -> Result<NatsLogin, SinkError> {
        let LoginFiles { password, token, nkey, credentials, .. } = &self.files;
        let file =
            |file: &Option<(String, SecretFile)>| file.as_ref().map(|(_, file)| file.clone());
        let mut logins = Vec::new();
        match (self.user.is_empty(), file(password)) {
            (false, Some(file)) => logins.push(NatsLogin::Password(self.user.clone(), file)),
            (true, None) => {}
            (false, None) | (true, Some(_)) => {
                let hint = "write both, or none of them";
                let what = "user and password_file belong together";
                return Err(SinkError::new(what, hint).at(&[NAME, "user"]));
            }
        }
        logins.extend(file(token).map(NatsLogin::Token));
        logins.extend(file(nkey).map(NatsLogin::Nkey));
        logins.extend(file(credentials).map(NatsLogin::Credentials));
        if logins.len() > 1 {
            let hint =
                "keep one of user with password_file, token_file, nkey_file and credentials_file";
            return Err(SinkError::new("there is more than one login", hint).at(&[NAME]));
        }
        Ok(logins.pop().unwrap_or_default())
    }

    fn tls(&self) -> Result<NatsTlsFiles, SinkError> {
        let LoginFiles { ca, certificate, key, .. } = &self.files;
        let client = match (certificate.is_empty(), key.is_empty()) {
            (true, true) => None,
            (false, false) => Some((PathBuf::from(certificate), PathBuf::from(key))),
            (true, false) | (false, true) => {
                let what = "cert_file and key_file belong together";
                let hint = "write both, or none of them";
                return Err(SinkError::new(what, hint).at(&[NAME, "cert_file"]));
            }
        };
        Ok(NatsTlsFiles { ca: (!ca.is_empty()).then(|| PathBuf::from(ca)), client })
    }

    /// What a sink is opened with.
    ///
    /// # Errors
    /// The first mistake.
    fn spec(&self, needs: &Needs) -> Result<NatsSpec, SinkError> {
        let plain = |byte: u8| byte.is_ascii_graphic() && !b".*>/\\".contains(&byte);
        if self.stream.is_empty() || !self.stream.bytes().all(plain) {
            let hint = "write the name of a stream, such as \"EVENTS\"";
            let what =
                "stream is no name of a stream: a name has no spaces, and none of . * > / \\";
            return Err(SinkError::new(what, hint).at(&[NAME, "stream"]));
        }
        if !(NAMES.allows)(self.inbox_prefix.as_bytes())
            || super::subject::encoded(&self.inbox_prefix) != self.inbox_prefix
        {
            let hint = "write tokens separated by \".\", such as \"_INBOX\"";
            let what = "inbox_prefix is no subject";
            return Err(SinkError::new(what, hint).at(&[NAME, "inbox_prefix"]));
        }
        if self.create.as_ref().is_some_and(|create| create.subjects.trim().is_empty()) {
            let hint = "write the subjects of the stream, such as subjects = \"orders.>\"";
            let what = "create has no subjects";
            return Err(SinkError::new(what, hint).at(&[NAME, "create"]));
        }
        let replay = if needs.purpose == Purpose::Replay { " replay" } else { "" };
        Ok(NatsSpec {
            servers: self.servers()?,
            stream: self.stream.clone(),
            chain: self.chain,
            login: self.login()?,
            tls: self.tls()?,
            inbox_prefix: self.inbox_prefix.clone(),
            ack_timeout: self.ack_timeout,
            pipeline: format!("{}{replay}", needs.pipeline),
            id_prefix: message::id_prefix(&self.database, &needs.pipeline),
            size_max: needs.size_max,
            create: self.create.clone(),
        })
    }
}

/// `false`, or a table that says how the stream is created.
fn read_create(keys: &dyn Keys) -> Option<CreateStream> {
    let table = keys.table_or_false("create");
    let create = CreateStream {
        subjects: table.text("subjects").unwrap_or_default(),
        replicas: table.number("replicas", 1, 1..=REPLICAS_MAX),
        storage: STORAGES.get(table.word("storage", &STORAGES, &[])).copied().unwrap_or("file"),
        max_age: table.duration("max_age", Duration::ZERO, MAX_AGES),
        duplicate_window: table.duration("duplicate_window", DUPLICATE_WINDOW, DUPLICATE_WINDOWS),
    };
    let is_on = table.is_present();
    table.finish();
    is_on.then_some(create)
}

impl SinkConfig for NatsConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: match self.chain {
                ChainMode::Stream => Order::Total,
                ChainMode::Subject | ChainMode::None => Order::Key,
            },
            refuses_batches: false,
            transactions: None,
            exactly_once: false,
            dedupe: self.chain != ChainMode::None,
            headers: true,
            null_value: true,
            record_bytes_max: None,
            held_bytes: HELD_BYTES,
            clusters: false,
            remote: true,
        }
    }

    fn names(&self) -> NameRule {
        NAMES
    }

    fn place(&self) -> String {
        let Ok(servers) = self.servers() else { return self.stream.clone() };
        let addresses: Vec<String> = servers.iter().map(super::spec::address).collect();
        format!("{}/{}", addresses.join(","), self.stream)
    }

    fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: &str| Shown { table: NAME, ..Shown::text(key, value) };
        let file = |key: &str, file: &Option<(String, SecretFile)>| {
            text(key, file.as_ref().map_or("", |(name, _)| name))
        };
        // A url with a login is refused, and not shown.
        let url = if self.url.contains('@') { "***" } else { &self.url };
        let mut rows = vec![
            Shown::text("delivery", self.delivery),
            text("url", url),
            text("stream", &self.stream),
            text("chain", self.chain.name()),
            text("user", &self.user),
            file("password_file", &self.files.password),
            file("token_file", &self.files.token),
            file("nkey_file", &self.files.nkey),
            file("credentials_file", &self.files.credentials),
            text("ca_file", &self.files.ca),
            text("cert_file", &self.files.certificate),
            text("key_file", &self.files.key),
            text("inbox_prefix", &self.inbox_prefix),
            text("ack_timeout", &ShowDuration(self.ack_timeout).to_string()),
        ];
        if let Some(create) = &self.create {
            let inner = |shown: Shown| Shown { table: "nats.create", ..shown };
            rows.push(inner(Shown::text("subjects", &create.subjects)));
            rows.push(inner(Shown {
                table: "",
                key: "replicas".to_owned(),
                value: ShownValue::Number(create.replicas.into()),
            }));
            rows.push(inner(Shown::text("storage", create.storage)));
            rows.push(inner(Shown::text("max_age", &ShowDuration(create.max_age).to_string())));
            let window = ShowDuration(create.duplicate_window).to_string();
            rows.push(inner(Shown::text("duplicate_window", &window)));
        } else {
            let value = ShownValue::Boolean(false);
            rows.push(Shown { table: NAME, key: "create".to_owned(), value });
        }
        rows
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        if self.url.is_empty() || self.stream.is_empty() {
            // Reported where they were read.
            return Vec::new();
        }
        self.spec(needs).err().into_iter().collect()
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        sink::open(self.spec(needs)?, needs, mailbox)
    }

    fn settings(&self, _pipeline: &str) -> Vec<Finding> {
        let plain = self.files.ca.is_empty() && !self.url.contains("tls://");
        let local =
            |url: &str| ["localhost", "127.0.0.1", "[::1]"].iter().any(|host| url.contains(host));
        if plain && !self.url.split(',').all(local) {
            let what = format!("sink.nats.url = {:?} asks for no TLS", self.url);
            return vec![
                Finding::warning("nats_plaintext", what)
                    .why("unless the server requires TLS, events and login cross the network in plain text")
                    .config("url = \"tls://HOST:4222\""),
            ];
        }
        Vec::new()
    }

    fn preflight(&self, needs: &Needs, destinations: &[String], _keyed: bool) -> Vec<Finding> {
        match self.spec(needs) {
            Ok(spec) => preflight::check(&spec, destinations),
            Err(error) => vec![Finding::error("nats_server", error.to_string()).why(error.hint())],
        }
    }

    fn retentions(&self, needs: &Needs, _destinations: &[String]) -> Vec<Retention> {
        self.spec(needs).map_or_else(|_error| Vec::new(), |spec| preflight::retentions(&spec))
    }

    fn record_headers(&self) -> RecordHeaders {
        RecordHeaders { standard: true, ..RecordHeaders::default() }
    }

    fn cloud_events(&self) -> CloudEventsBinding {
        CloudEventsBinding { prefix: "ce-", percent: true }
    }

    fn for_source(&self, source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        let database = source.downcast_ref::<Conninfo>()?.dbname().to_owned();
        Some(Arc::new(Self { database, ..self.clone() }))
    }

    fn creates(&self) -> bool {
        self.create.is_some()
    }

    fn create(&self, needs: &Needs, _destinations: &[String]) -> Vec<Finding> {
        match self.spec(needs) {
            Ok(spec) if spec.create.is_some() => preflight::create(&spec),
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    fn hint(&self, refusal: Refusal, _subject: &str) -> String {
        let stream = &self.stream;
        match refusal.kind {
            RefusalKind::TooLarge(_) => format!(
                "raise the server's max_payload, and max_msg_size of stream {stream} if it has one (nats stream edit \
                 {stream} --max-msg-size BYTES), or payload.size_max; then start again"
            ),
            RefusalKind::Destination(_) => "fix route.topic, then start again".to_owned(),
            RefusalKind::Content(_) => {
                "fix the event's headers or its key; with parking.on_poison = \"block_key\" it is parked, and \
                 postrider parked skip leaves it out"
                    .to_owned()
            }
            RefusalKind::Partition(_)
            | RefusalKind::Policy
            | RefusalKind::Invalid
            | RefusalKind::Other => GENERAL_HINT.to_owned(),
        }
    }

    fn command(&self, code: &str, _subject: &str, size: usize) -> Option<String> {
        let stream = shell_word(&self.stream);
        match code {
            "too_large" => {
                // Room for the headers that the sink adds.
                Some(format!("nats stream edit {stream} --max-msg-size {}", size + 1_024))
            }
            "topic_missing" => Some(format!("nats stream edit {stream}")),
            _ => None,
        }
    }
}
