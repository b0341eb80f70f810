//! The keys of schemas: `encode` and `schema_id` of `[pipelines.NAME.format]`, and its tables `registry` and `schemas`.

use super::encoder::Encoding;
use super::framing::IdPlace;
use super::registry::{Registry, RegistryLogin, RegistrySettings, SchemaKind};
use super::registry_check;
use super::registry_worker::{FileSchema, RegistryWorker, SchemaSource};
use super::schema_step::{SchemaStep, SchemaStepSettings};
use super::subject::SubjectRule;
use super::subject_cache::SubjectCache;
use crate::https;
use crate::step::Step;
use postrider_core::finding::Finding;
use postrider_core::secret_file::SecretFile;
use postrider_core::units::ShowDuration;
use postrider_sinks::tls::TlsFiles;
use postrider_sinks::{Keys, Mailbox, Shown, ShownValue, SinkConfig, SinkError, worker_thread};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TABLE: &str = "format";
const REGISTRY: &str = "format.registry";
const SCHEMAS: &str = "format.schemas";

const TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(2);
const REFRESH: Duration = Duration::from_mins(5);
const REFRESHES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);

/// The largest file of a schema. Unit: bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// URLs of a registry.
const URLS_MAX: usize = 10;

/// The kinds of sinks whose headers carry any bytes.
const BINARY_HEADERS: [&str; 2] = ["kafka", "discard"];

/// The settings of schemas. Without a registry there are none.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct SchemaConfig {
    encoding: Encoding,
    /// The id is before the payload.
    prefix: bool,
    registry: RegistryKeys,
    /// Subjects with the schemas of their files.
    files: Vec<SchemaFile>,
    /// Headers of the sink carry any bytes.
    binary_headers: bool,
}

/// Table `registry`.
#[derive(Clone, PartialEq, Debug, Default)]
struct RegistryKeys {
    urls: Vec<String>,
    /// None if it can't be read.
    rule: Option<SubjectRule>,
    register: bool,
    username: String,
    password: Option<(String, SecretFile)>,
    token: Option<(String, SecretFile)>,
    ca: String,
    cert: String,
    key: Option<(String, SecretFile)>,
    timeout: Duration,
    refresh: Duration,
}

/// An entry of table `schemas`.
#[derive(Clone, PartialEq, Debug)]
struct SchemaFile {
    subject: String,
    file: String,
    text: String,
}

impl SchemaConfig {
    /// Reads the keys of table `format`.
    pub(crate) fn read(format: &dyn Keys) -> Self {
        let encoding = Encoding::of(format.word("encode", &Encoding::WORDS, &[]));
        let prefix = format.word("schema_id", &["header", "prefix"], &[]) == 1;
        let table = format.table("registry");
        let registry = RegistryKeys::read(&*table);
        let files = read_files(&*format.table("schemas"));
        let has_registry = !registry.urls.is_empty();
        if !has_registry && (encoding != Encoding::None || registry.register) {
            let message = "is missing: schemas have their ids from a registry; for example url = \
                           \"https://registry:8081\"";
            table.error("url", message.to_owned());
        }
        if registry.register && files.is_empty() {
            let message = "register = true registers the schemas of table format.schemas, and it has none; for example \
                           \"shop.orders-value\" = \"orders.avsc\"";
            table.error("register", message.to_owned());
        }
        table.finish();
        Self { encoding, prefix, registry, files, binary_headers: false }
    }

    /// Whether records have schemas.
    pub(crate) fn is_active(&self) -> bool {
        !self.registry.urls.is_empty()
    }

    /// The kind of the sink that records go to.
    pub(crate) fn for_sink(&mut self, sink: &dyn SinkConfig) {
        self.binary_headers = BINARY_HEADERS.contains(&sink.kind());
    }

    /// Whether header `type` is needed: it names subjects, or messages of Protobuf.
    pub(crate) fn needs_type(&self) -> bool {
        let in_subject = self.registry.rule.as_ref().is_some_and(SubjectRule::has_type);
        // Without an encoding a schema may be of Protobuf too.
        let of_message = matches!(self.encoding, Encoding::Protobuf | Encoding::None);
        self.is_active() && (in_subject || of_message)
    }

    /// Whether the payload is not JSON any more.
    pub(crate) fn is_binary(&self) -> bool {
        self.is_active() && (self.encoding.changes() || self.prefix)
    }

    /// What does not go together with the sink.
    pub(crate) fn check(&self, sink: &dyn SinkConfig) -> Vec<(&'static str, String)> {
        if self.is_active() && !self.prefix && !sink.capabilities().headers {
            let message = format!(
                "\"header\" puts the id into a header, and a sink of kind \"{}\" has none; set schema_id = \"prefix\"",
                sink.kind()
            );
            return vec![("format.schema_id", message)];
        }
        Vec::new()
    }

    /// The keys with the values in effect.
    pub(crate) fn values(&self) -> Vec<Shown> {
        let row = |table, key: &str, value| Shown { table, key: key.to_owned(), value };
        let text = |key: &str, value: &str| row(REGISTRY, key, ShownValue::Text(value.to_owned()));
        // Without the table the keys are not read.
        let shown = |time: Duration, default| {
            ShowDuration(if time.is_zero() { default } else { time }).to_string()
        };
        let registry = &self.registry;
        let rule = registry.rule.as_ref().map_or(SubjectRule::DEFAULT, SubjectRule::text);
        let place = if self.prefix { "prefix" } else { "header" };
        let mut rows = vec![
            row(TABLE, "encode", ShownValue::Text(self.encoding.name().to_owned())),
            row(TABLE, "schema_id", ShownValue::Text(place.to_owned())),
            text("url", &registry.urls.join(",")),
            text("subject", rule),
            row(REGISTRY, "register", ShownValue::Boolean(registry.register)),
            text("username", &registry.username),
            text("ca_file", &registry.ca),
            text("cert_file", &registry.cert),
            text("timeout", &shown(registry.timeout, TIMEOUT)),
            text("refresh", &shown(registry.refresh, REFRESH)),
        ];
        // A file that is not given has no default that could be shown.
        let secrets = [
            ("password_file", &registry.password),
            ("token_file", &registry.token),
            ("key_file", &registry.key),
        ];
        rows.extend(secrets.into_iter().filter_map(|(key, file)| {
            let (name, _) = file.as_ref()?;
            Some(text(key, name))
        }));
        rows.extend(
            self.files
                .iter()
                .map(|schema| row(SCHEMAS, &schema.subject, ShownValue::Text(schema.file.clone()))),
        );
        rows
    }

    /// Findings about the registry, and about the subjects that are known before the first event.
    pub(crate) fn preflight(&self, destinations: &[String]) -> Vec<Finding> {
        let Some(rule) = self.registry.rule.as_ref().filter(|_| self.is_active()) else {
            return Vec::new();
        };
        let mut subjects: Vec<String> =
            destinations.iter().filter_map(|topic| rule.of_topic(topic)).collect();
        // A schema that is registered by the first event may not be there.
        subjects.retain(|subject| !self.files.iter().any(|file| file.subject == *subject));
        registry_check::check(self.registry.settings(), &subjects)
    }

    /// Opens the step and its thread.
    ///
    /// # Errors
    /// A thread that can't be started.
    pub(crate) fn open(&self, mailbox: &Mailbox) -> Result<Option<Box<dyn Step>>, SinkError> {
        let Some(rule) = self.registry.rule.clone().filter(|_| self.is_active()) else {
            return Ok(None);
        };
        let place = if self.prefix {
            IdPlace::Prefix
        } else {
            IdPlace::Header { binary: self.binary_headers }
        };
        let cache = Arc::new(SubjectCache::default());
        let source = SchemaSource {
            files: self.files.iter().map(|file| file.of(self.encoding)).collect(),
            register: self.registry.register,
            encoding: self.encoding,
        };
        let settings = self.registry.settings();
        let (of_worker, posts) = (Arc::clone(&cache), mailbox.clone());
        worker_thread::start("schemas", mailbox.clone(), move || {
            RegistryWorker::new(of_worker, Registry::new(settings), source, posts).run()
        })?;
        let settings = SchemaStepSettings {
            rule,
            place,
            encoding: self.encoding,
            refresh: self.registry.refresh,
            pinned: self.files.iter().map(|file| file.subject.clone()).collect(),
        };
        Ok(Some(Box::new(SchemaStep::new(settings, cache))))
    }
}

impl RegistryKeys {
    fn read(table: &dyn Keys) -> Self {
        let text = |key| table.text(key).unwrap_or_default();
        let rule = table.text("subject").unwrap_or_else(|| SubjectRule::DEFAULT.to_owned());
        let rule = SubjectRule::parse(&rule);
        if let Err(why) = &rule {
            table.error("subject", why.clone());
        }
        let keys = Self {
            urls: read_urls(table),
            rule: rule.ok(),
            register: table.flag("register", false),
            username: text("username"),
            password: table.secret("password_file"),
            token: table.secret("token_file"),
            ca: text("ca_file"),
            cert: text("cert_file"),
            key: table.secret("key_file"),
            timeout: table.duration("timeout", TIMEOUT, TIMEOUTS),
            refresh: table.duration("refresh", REFRESH, REFRESHES),
        };
        if !keys.urls.is_empty() {
            keys.check_logins(table);
        }
        keys
    }

    /// A request has one login, and each of its keys.
    fn check_logins(&self, table: &dyn Keys) {
        if self.username.is_empty() != self.password.is_none() {
            let lacks = if self.username.is_empty() { "username" } else { "password_file" };
            let message = "is missing: basic authentication has username and password_file";
            table.error(lacks, message.to_owned());
        }
        if self.cert.is_empty() != self.key.is_none() {
            let lacks = if self.cert.is_empty() { "cert_file" } else { "key_file" };
            let message = "is missing: a client certificate has cert_file and key_file";
            table.error(lacks, message.to_owned());
        }
        if self.token.is_some() && !self.username.is_empty() {
            let message =
                "a request has one login: delete token_file, or username and password_file";
            table.error("token_file", message.to_owned());
        }
    }

    fn settings(&self) -> RegistrySettings {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let file =
            |file: &Option<(String, SecretFile)>| file.as_ref().map(|(_, file)| file.clone());
        let login = match (file(&self.token), file(&self.password)) {
            (Some(token), _) => RegistryLogin::Bearer(token),
            (None, Some(password)) => {
                RegistryLogin::Basic { username: self.username.clone(), password }
            }
            (None, None) => RegistryLogin::None,
        };
        RegistrySettings {
            urls: self.urls.clone(),
            login,
            tls: TlsFiles {
                authorities: path(&self.ca),
                certificate: path(&self.cert),
                key: file(&self.key),
            },
            timeout: self.timeout,
        }
    }
}

impl SchemaFile {
    /// The subject, and its schema. Without an encoding the file's name says what language it is.
    fn of(&self, encoding: Encoding) -> (String, FileSchema) {
        let extension = Path::new(&self.file).extension().and_then(|extension| extension.to_str());
        let kind = match (encoding, extension) {
            (Encoding::None, Some("json")) => SchemaKind::JsonSchema,
            (Encoding::None, Some("proto")) => SchemaKind::Protobuf,
            (Encoding::None | Encoding::Avro | Encoding::JsonSchema | Encoding::Protobuf, _) => {
                encoding.schema_kind()
            }
        };
        (self.subject.clone(), FileSchema { kind, text: self.text.clone() })
    }
}

fn read_urls(table: &dyn Keys) -> Vec<String> {
    let text = table.text("url").unwrap_or_default();
    let urls = text.split(',').map(str::trim).filter(|url| !url.is_empty());
    let urls: Vec<String> = urls.map(|url| url.trim_end_matches('/').to_owned()).collect();
    if urls.len() > URLS_MAX {
        table.error("url", format!("has more than {URLS_MAX} URLs"));
    }
    for url in &urls {
        if let Err(why) = https::parse_url(url) {
            table.error("url", why.to_owned());
        }
    }
    urls
}

fn read_files(table: &dyn Keys) -> Vec<SchemaFile> {
    let mut files = Vec::new();
    for entry in table.entries() {
        let Some(text) = table.file(&entry.path, &entry.value, FILE_BYTES_MAX) else { continue };
        files.push(SchemaFile { subject: entry.name, file: entry.value, text });
    }
    files
}
