//! The keys of an HTTP sink, and what the product asks of its settings.

use super::event::push_part;
use super::sign::SigningKeys;
use super::spec::{HttpLimits, HttpLogin, HttpSpec, HttpVersion, OAuth};
use super::target::{self, Base, TopicUse};
use super::{connect, preflight, sink};
use crate::tls::TlsFiles;
use hyper::header::{HeaderName, HeaderValue};
use pg_replication::Conninfo;
use postrider_core::finding::Finding;
use postrider_core::record::{Excess, Refusal, RefusalKind};
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{
    Capabilities, CloudEventsBinding, Keys, Mailbox, NameRule, Needs, Order, RecordHeaders, Shown,
    ShownValue, Sink, SinkConfig, SinkError,
};
use postrider_core::units::{ShowDuration, ShowSize};
use std::any::Any;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(super) const NAME: &str = "http";
const OAUTH: &str = "http.oauth";

const CONCURRENCY: u32 = 64;
const CONCURRENCY_MAX: u32 = 1024;
const BATCH_MAX: u32 = 1000;
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_BYTES_RANGE: RangeInclusive<u64> = 1 << 10..=64 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_mins(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_mins(1);
const RETRY_AFTER_MAX: Duration = Duration::from_mins(10);
const RETRY_AFTERS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);

/// Bytes of `header_prefix`, and of `id_prefix`.
const PREFIX_BYTES_MAX: usize = 64;

/// Memory for an event between `enqueue` and its answer beside key, value and headers: its place in a line, the line,
/// and the names of its headers. Unit: bytes.
const HELD_BYTES: usize = 512;

/// `[pipelines.NAME.sink]` of an HTTP sink.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    delivery: &'static str,
    /// The receiver; `None` without one, or if it can't be read.
    base: Option<Base>,
    topic: TopicUse,
    private: bool,
    content_type: String,
    header_prefix: String,
    id_prefix: String,
    /// The name of the source's database.
    database: String,
    limits: HttpLimits,
    version: HttpVersion,
    files: HttpFiles,
    /// The token endpoint, without its secret.
    oauth: OAuthKeys,
}

/// What is in files, with the names as they are configured.
#[derive(Clone, Debug, Default)]
struct HttpFiles {
    secrets: Option<(String, SecretFile)>,
    token: Option<(String, SecretFile)>,
    username: String,
    password: Option<(String, SecretFile)>,
    ca: String,
    cert: String,
    key: Option<(String, SecretFile)>,
}

#[derive(Clone, Debug, Default)]
struct OAuthKeys {
    token_url: String,
    client_id: String,
    client_secret: Option<(String, SecretFile)>,
    scope: String,
}

impl HttpConfig {
    pub(super) fn read(keys: &dyn Keys) -> Self {
        let delivery = crate::read_delivery(keys);
        let table = keys.table(NAME);
        let topic = TopicUse::of(table.word("topic", &TopicUse::WORDS, &[]));
        let base = read_base(&*table, topic);
        let private = table.word("private_addresses", &["refused", "allowed"], &[]) == 1;
        let limits = read_limits(&*table);
        let version = HttpVersion::of(table.word("version", &HttpVersion::WORDS, &[]));
        let config = Self {
            delivery,
            base,
            topic,
            private,
            content_type: read_content_type(&*table),
            header_prefix: read_prefix(&*table),
            id_prefix: read_id_prefix(&*table),
            database: String::new(),
            limits,
            version,
            files: read_files(&*table),
            oauth: read_oauth(&*table),
        };
        config.check_logins(&*table);
        table.finish();
        config
    }

    /// A request has one login, and each of its keys.
    fn check_logins(&self, table: &dyn Keys) {
        let HttpFiles { token, username, password, cert, key, .. } = &self.files;
        if username.is_empty() != password.is_none() {
            let lacks = if username.is_empty() { "username" } else { "password_file" };
            table.error(
                lacks,
                "is missing: basic authentication has username and password_file".to_owned(),
            );
        }
        if cert.is_empty() != key.is_none() {
            let lacks = if cert.is_empty() { "cert_file" } else { "key_file" };
            table.error(
                lacks,
                "is missing: a client certificate has cert_file and key_file".to_owned(),
            );
        }
        let logins = [token.is_some(), !username.is_empty(), !self.oauth.token_url.is_empty()];
        if logins.into_iter().filter(|login| *login).count() > 1 {
            let one = "a request has one login: token_file, username with password_file, or oauth; delete the others";
            table.error("token_file", one.to_owned());
        }
    }

    pub(super) fn spec(&self, needs: &Needs) -> HttpSpec {
        let mut identity = String::new();
        let prefix = if self.id_prefix.is_empty() { &self.database } else { &self.id_prefix };
        push_part(&mut identity, prefix.as_bytes());
        identity.push(':');
        push_part(&mut identity, needs.pipeline.as_bytes());
        let file =
            |file: &Option<(String, SecretFile)>| file.as_ref().map(|(_, file)| file.clone());
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        HttpSpec {
            base: self.base.clone(),
            topic: self.topic,
            private: self.private,
            content_type: self.content_type.clone(),
            header_prefix: self.header_prefix.to_ascii_lowercase(),
            identity,
            limits: self.limits,
            version: self.version,
            secret_file: file(&self.files.secrets),
            login: self.login(),
            tls: TlsFiles {
                authorities: path(&self.files.ca),
                certificate: path(&self.files.cert),
                key: file(&self.files.key),
            },
            size_max: needs.size_max,
        }
    }

    fn login(&self) -> HttpLogin {
        let OAuthKeys { token_url, client_id, client_secret, scope } = &self.oauth;
        if let Some((_, file)) = &self.files.token {
            return HttpLogin::Bearer(file.clone());
        }
        if let Some((_, file)) = &self.files.password {
            return HttpLogin::Basic {
                username: self.files.username.clone(),
                password: file.clone(),
            };
        }
        match client_secret {
            Some((_, file)) if !token_url.is_empty() => HttpLogin::OAuth(OAuth {
                token_url: token_url.clone(),
                client_id: client_id.clone(),
                client_secret: file.clone(),
                scope: scope.clone(),
            }),
            Some(_) | None => HttpLogin::None,
        }
    }
}

fn read_base(table: &dyn Keys, topic: TopicUse) -> Option<Base> {
    // Not required if the topic is the URL, or if the pipeline has another sink.
    let text = if topic == TopicUse::Url {
        table.text("url").filter(|url| !url.is_empty())?
    } else {
        table.required("url", "http://localhost:8080/events")?
    };
    if topic == TopicUse::Url {
        table.error(
            "url",
            "with topic = \"url\" each event's topic is its URL: delete url".to_owned(),
        );
    }
    let base = Base::parse(&text);
    if let Err(why) = &base {
        table.error("url", (*why).to_owned());
    }
    base.ok()
}

fn read_limits(table: &dyn Keys) -> HttpLimits {
    // The bounds fit a usize on every platform we build for.
    let number = |key, default, max| table.number(key, default, 1..=max) as usize;
    let bytes = table.size("batch_bytes", BATCH_BYTES, BATCH_BYTES_RANGE);
    HttpLimits {
        concurrency: number("concurrency", CONCURRENCY, CONCURRENCY_MAX),
        batch: number("batch", 1, BATCH_MAX),
        batch_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        timeout: table.duration("timeout", TIMEOUT, TIMEOUTS),
        connect_timeout: table.duration("connect_timeout", CONNECT_TIMEOUT, CONNECT_TIMEOUTS),
        retry_after_max: table.duration("retry_after_max", RETRY_AFTER_MAX, RETRY_AFTERS),
    }
}

fn read_content_type(table: &dyn Keys) -> String {
    let text = table.text("content_type").unwrap_or_else(|| "application/json".to_owned());
    if text.is_empty() || HeaderValue::from_str(&text).is_err() {
        table.error(
            "content_type",
            "expected a media type, such as \"application/json\"".to_owned(),
        );
        return "application/json".to_owned();
    }
    text
}

fn read_prefix(table: &dyn Keys) -> String {
    let text = table.text("header_prefix").unwrap_or_default();
    let is_name = text.is_empty() || HeaderName::from_bytes(text.as_bytes()).is_ok();
    if text.len() > PREFIX_BYTES_MAX || !is_name {
        table.error(
            "header_prefix",
            "expected the beginning of a header's name, such as \"x-event-\"".to_owned(),
        );
        return String::new();
    }
    text
}

fn read_id_prefix(table: &dyn Keys) -> String {
    let text = table.text("id_prefix").unwrap_or_default();
    if text.len() > PREFIX_BYTES_MAX {
        table.error("id_prefix", format!("has more than {PREFIX_BYTES_MAX} bytes"));
    }
    text
}

fn read_files(table: &dyn Keys) -> HttpFiles {
    let secrets = table.secret("secret_file");
    if let Some((_, file)) = &secrets
        && let Err(why) = SigningKeys::read(file)
    {
        table.error("secret_file", why);
    }
    HttpFiles {
        secrets,
        token: table.secret("token_file"),
        username: table.text("username").unwrap_or_default(),
        password: table.secret("password_file"),
        ca: table.text("ca_file").unwrap_or_default(),
        cert: table.text("cert_file").unwrap_or_default(),
        key: table.secret("key_file"),
    }
}

fn read_oauth(table: &dyn Keys) -> OAuthKeys {
    let table = table.table("oauth");
    let text = |key| table.text(key).unwrap_or_default();
    let oauth = OAuthKeys {
        token_url: text("token_url"),
        client_id: text("client_id"),
        client_secret: table.secret("client_secret_file"),
        scope: text("scope"),
    };
    if !oauth.token_url.is_empty() {
        if let Err(why) = target::parse(&oauth.token_url) {
            table.error("token_url", why.to_owned());
        }
        if oauth.client_id.is_empty() {
            table.error("client_id", "is missing".to_owned());
        }
        if oauth.client_secret.is_none() {
            table.error("client_secret_file", "is missing".to_owned());
        }
    }
    table.finish();
    oauth
}

impl SinkConfig for HttpConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Key,
            refuses_batches: self.limits.batch > 1,
            transactions: None,
            exactly_once: false,
            dedupe: false,
            headers: true,
            null_value: false,
            record_bytes_max: None,
            held_bytes: HELD_BYTES,
            clusters: false,
            remote: true,
        }
    }

    fn names(&self) -> NameRule {
        self.topic.names()
    }

    fn place(&self) -> String {
        self.base.as_ref().map_or_else(|| "the URLs of the events".to_owned(), Base::shown)
    }

    fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: &str| Shown { table: NAME, ..Shown::text(key, value) };
        let number = |key: &str, value: usize| Shown {
            table: NAME,
            key: key.to_owned(),
            value: ShownValue::Number(value as u64),
        };
        let file = |file: &Option<(String, SecretFile)>| {
            file.as_ref().map(|(name, _)| name.clone()).unwrap_or_default()
        };
        let (files, limits, oauth) = (&self.files, &self.limits, &self.oauth);
        let oauth_text = |key: &str, value: &str| Shown { table: OAUTH, ..Shown::text(key, value) };
        vec![
            Shown::text("delivery", self.delivery),
            text("url", &self.base.as_ref().map(Base::shown).unwrap_or_default()),
            text("topic", self.topic.name()),
            text("private_addresses", if self.private { "allowed" } else { "refused" }),
            text("content_type", &self.content_type),
            text("header_prefix", &self.header_prefix),
            text("id_prefix", &self.id_prefix),
            number("concurrency", limits.concurrency),
            number("batch", limits.batch),
            text("batch_bytes", &ShowSize(limits.batch_bytes as u64).to_string()),
            text("timeout", &ShowDuration(limits.timeout).to_string()),
            text("connect_timeout", &ShowDuration(limits.connect_timeout).to_string()),
            text("retry_after_max", &ShowDuration(limits.retry_after_max).to_string()),
            text("version", self.version.name()),
            text("secret_file", &file(&files.secrets)),
            text("token_file", &file(&files.token)),
            text("username", &files.username),
            text("password_file", &file(&files.password)),
            text("ca_file", &files.ca),
            text("cert_file", &files.cert),
            text("key_file", &file(&files.key)),
            oauth_text("token_url", &oauth.token_url),
            oauth_text("client_id", &oauth.client_id),
            oauth_text("client_secret_file", &file(&oauth.client_secret)),
            oauth_text("scope", &oauth.scope),
        ]
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        let spec = self.spec(needs);
        let mut errors = Vec::new();
        if spec.base.is_none() && spec.topic != TopicUse::Url {
            let hint = "write the receiver's URL, such as \"http://localhost:8080/events\"";
            errors.push(SinkError::new("no receiver is given", hint).at(&[NAME, "url"]));
        }
        let is_tls = |url: &str| url.starts_with("https:");
        let uses_tls = spec.topic == TopicUse::Url
            || spec.base.as_ref().is_some_and(|base| is_tls(&base.shown()))
            || is_tls(&self.oauth.token_url);
        if uses_tls && let Err(error) = connect::check_files(&spec.tls) {
            errors.push(SinkError::new(error.to_string(), error.hint()).at(&[NAME, "ca_file"]));
        }
        errors
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        match self.check(needs).into_iter().next() {
            Some(error) => Err(error),
            None => sink::open(self.spec(needs), needs, mailbox),
        }
    }

    fn settings(&self, _pipeline: &str) -> Vec<Finding> {
        preflight::settings(self.base.as_ref(), self.files.secrets.is_some(), &self.login())
    }

    fn preflight(&self, needs: &Needs, destinations: &[String], keyed: bool) -> Vec<Finding> {
        preflight::check(&self.spec(needs), destinations, keyed)
    }

    fn record_headers(&self) -> RecordHeaders {
        RecordHeaders { standard: true, ..RecordHeaders::default() }
    }

    fn cloud_events(&self) -> CloudEventsBinding {
        // The sink encodes them.
        CloudEventsBinding { prefix: "ce-", percent: false }
    }

    fn for_source(&self, source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        let database = source.downcast_ref::<Conninfo>()?.dbname().to_owned();
        Some(Arc::new(Self { database, ..self.clone() }))
    }

    fn hint(&self, refusal: Refusal, _destination: &str) -> String {
        let hint = match refusal.kind {
            RefusalKind::TooLarge(Some(Excess { size, .. })) => {
                return format!("raise payload.size_max to {size}, then start again");
            }
            RefusalKind::TooLarge(None) => {
                "raise the receiver's limit on requests (nginx: client_max_body_size), then start again"
            }
            RefusalKind::Destination(_) => "fix route.topic, then start again",
            RefusalKind::Content(_)
            | RefusalKind::Partition(_)
            | RefusalKind::Policy
            | RefusalKind::Invalid
            | RefusalKind::Other => {
                "let the receiver accept the event, then start again; with parking.on_poison = \"block_key\" it is \
                 parked: postrider parked replace gives it another payload, postrider parked skip leaves it out"
            }
        };
        hint.to_owned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a sink of pipeline `p` of database `shop` is opened with; `keys` has `name = value` in lines.
    pub(crate) fn spec(keys: &str) -> HttpSpec {
        let value = |name: &str| {
            let line = keys.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        let limits = HttpLimits {
            concurrency: 64,
            batch: value("batch").map_or(1, |batch| batch.parse().unwrap()),
            batch_bytes: 1 << 20,
            timeout: TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            retry_after_max: RETRY_AFTER_MAX,
        };
        HttpSpec {
            base: Some(Base::parse("http://127.0.0.1:1/hooks").unwrap()),
            topic: TopicUse::of(value("topic").map_or(0, |word| {
                TopicUse::WORDS.iter().position(|known| *known == word).unwrap()
            })),
            private: false,
            content_type: "application/json".to_owned(),
            header_prefix: value("header_prefix").unwrap_or_default(),
            identity: "shop:p".to_owned(),
            limits,
            version: HttpVersion::Auto,
            secret_file: None,
            login: HttpLogin::None,
            tls: TlsFiles::default(),
            size_max: None,
        }
    }

    #[test]
    fn durations_and_sizes_are_shown_with_their_units() {
        assert_eq!(ShowDuration(Duration::from_millis(1_500)).to_string(), "1500ms");
        assert_eq!(ShowDuration(TIMEOUT).to_string(), "30s");
        assert_eq!(ShowDuration(RETRY_AFTER_MAX).to_string(), "10m");
        assert_eq!(
            (ShowSize(1 << 20).to_string(), ShowSize(1_024).to_string(), ShowSize(7).to_string()),
            ("1MiB".to_owned(), "1KiB".to_owned(), "7B".to_owned())
        );
    }

    #[test]
    fn topics_choose_private_addresses_only_where_that_is_allowed() {
        let urls = HttpSpec { base: None, ..spec("topic = \"url\"\n") };
        assert!(urls.chooses_private("http://169.254.169.254/latest"));
        assert!(!urls.chooses_private("http://8.8.8.8/"));
        assert!(!HttpSpec { private: true, ..urls }.chooses_private("http://127.0.0.1/"));
        assert!(!spec("").chooses_private("127.0.0.1"));
    }
}
