//! The keys of a Redis sink, and what the product asks of its settings.

use super::resp::REPLY_BYTES_MAX;
use super::spec::{
    Address, Mode, NAMES, RedisLogin, RedisSizes, RedisSpec, STATE_PREFIX, Storing, Trim,
};
use super::transaction_sink::RedisTransactionSink;
use super::{looks, preflight, sink};
use crate::tls::TlsFiles;
use pg_replication::Conninfo;
use postrider_core::finding::Finding;
use postrider_core::record::{Excess, Refusal, RefusalKind};
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{
    Capabilities, GENERAL_HINT, Keys, Mailbox, NameRule, Needs, Order, Purpose, Shown, ShownValue,
    Sink, SinkConfig, SinkError, TransactionLimits,
};
use postrider_core::units::{ShowDuration, ShowSize};
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(super) const NAME: &str = "redis";

/// Databases of a server at most.
const DATABASE_MAX: u32 = 65_535;

/// Replicas that can be waited for.
const REPLICAS_MAX: u32 = 100;

const REPLICA_TIMEOUT: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
const SECONDS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_mins(10);
const REPLICA_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_mins(1);
const AGE_MAX: Duration = Duration::from_hours(10 * 365 * 24);

const EVENT_BYTES: u64 = 1 << 20;
const EVENT_BYTES_RANGE: std::ops::RangeInclusive<u64> = 1 << 10..=256 << 20;

/// Memory for a record between `enqueue` and its report beside its bytes: its lengths, its place, and its share of the
/// call, which is a second copy. Unit: bytes.
const HELD_BYTES: usize = 256;

/// The words of `delivery`.
const DELIVERY: [&str; 2] = ["at-least-once", "exactly-once"];

/// Bounds of a transaction. The server does nothing else while it executes a commit.
const COMMIT_INTERVAL: Duration = Duration::from_millis(10);
const COMMIT_INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(10);
const EVENTS: u32 = 1_000;
const EVENTS_MAX: u32 = 10_000;
const BYTES: u64 = 1 << 20;
const BYTES_RANGE: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;
const LIMITS: TransactionLimits = TransactionLimits {
    records_max: EVENTS as usize,
    bytes_max: BYTES,
    interval: COMMIT_INTERVAL,
    whole_for: None,
};

/// Bytes of an answer with entries at most. Unit: bytes.
const READ_BYTES_MAX: usize = 64 << 20;

/// The words of `missing_streams`.
const MISSING: [&str; 2] = ["create", "park"];

/// `[pipelines.NAME.sink]` of a Redis sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisConfig {
    servers: String,
    mode: Mode,
    sentinel_master: String,
    sentinel: LoginKeys,
    database: u32,
    login: LoginKeys,
    storing: Storing,
    event_bytes_max: u64,
    timeout: Duration,
    state_key: String,
    delivery: RedisPromise,
    rest: Surroundings,
}

/// What is promised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RedisPromise {
    exactly_once: bool,
    /// When a transaction is committed, if there are transactions.
    limits: TransactionLimits,
}

/// TLS, and what is not in the sink's table.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Surroundings {
    tls: Option<TlsFiles>,
    /// The database of the source, which is a part of the progress key.
    source: String,
}

/// A login, and the name of its file as the configuration has it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct LoginKeys {
    login: RedisLogin,
    shown_file: String,
}

impl LoginKeys {
    fn read(keys: &dyn Keys, username: &'static str, file: &'static str) -> Self {
        let username = keys.text(username).unwrap_or_default();
        let (shown_file, password) = keys.secret(file).unzip();
        if !username.is_empty() && password.is_none() {
            keys.error(file, "is missing: a user name needs a password".to_owned());
        }
        Self {
            login: RedisLogin { username, password },
            shown_file: shown_file.unwrap_or_default(),
        }
    }
}

impl RedisConfig {
    pub(super) fn read(keys: &dyn Keys) -> Self {
        let exactly_once = keys.word("delivery", &DELIVERY, &[]) == 1;
        let table = keys.table(NAME);
        let trim_length = table.number("trim_length", 0, 0..=u32::MAX);
        let trim_age = table.duration("trim_age", Duration::ZERO, Duration::ZERO..=AGE_MAX);
        if trim_length > 0 && !trim_age.is_zero() {
            table.error("trim_age", "can't be set together with trim_length".to_owned());
        }
        let trim = match (trim_length, trim_age) {
            (0, Duration::ZERO) => Trim::Nothing,
            (0, age) => Trim::Age(age),
            (length, _) => Trim::Length(length),
        };
        let storing = Storing {
            in_transactions: exactly_once,
            creates: table.word("missing_streams", &MISSING, &[]) == 0,
            trim,
            replicas: table.number("replicas", 0, 0..=REPLICAS_MAX),
            replica_timeout: table.duration("replica_timeout", REPLICA_TIMEOUT, REPLICA_TIMEOUTS),
        };
        let limits = TransactionLimits {
            interval: table.duration("commit_interval", COMMIT_INTERVAL, COMMIT_INTERVALS),
            // The bound fits a usize on every platform we build for.
            records_max: table.number("events_max", EVENTS, 1..=EVENTS_MAX) as usize,
            bytes_max: table.size("bytes_max", BYTES, BYTES_RANGE),
            whole_for: None,
        };
        let config = Self {
            storing,
            event_bytes_max: table.size("event_bytes_max", EVENT_BYTES, EVENT_BYTES_RANGE),
            state_key: table.text("state_key").unwrap_or_default(),
            delivery: RedisPromise { exactly_once, limits },
            ..Self::read_access(&*table)
        };
        table.finish();
        config
    }

    /// Reads how the servers are reached and logged in to; the other settings are those of no key.
    fn read_access(table: &dyn Keys) -> Self {
        let servers = table.required("servers", "localhost:6379").unwrap_or_default();
        if !servers.is_empty() && addresses(&servers).is_none() {
            table.error("servers", "expected host:port pairs with commas between them".to_owned());
        }
        let mode = match table.word("mode", &Mode::WORDS, &[]) {
            0 => Mode::Single,
            1 => Mode::Sentinel,
            _ => Mode::Cluster,
        };
        Self {
            servers,
            mode,
            sentinel_master: table.text("sentinel_master").unwrap_or_default(),
            sentinel: LoginKeys::read(table, "sentinel_username", "sentinel_password_file"),
            database: table.number("database", 0, 0..=DATABASE_MAX),
            login: LoginKeys::read(table, "username", "password_file"),
            storing: Storing {
                in_transactions: false,
                creates: false,
                trim: Trim::Nothing,
                replicas: 0,
                replica_timeout: REPLICA_TIMEOUT,
            },
            event_bytes_max: EVENT_BYTES,
            timeout: table.duration("timeout", TIMEOUT, SECONDS),
            state_key: String::new(),
            delivery: RedisPromise { exactly_once: false, limits: LIMITS },
            rest: Surroundings { tls: read_tls(table), source: String::new() },
        }
    }

    /// Reads how a consumer reaches the servers and logs in.
    pub fn read_source(table: &dyn Keys) -> Self {
        Self::read_access(table)
    }

    /// What a consumer connects with. `name` is that of its connection.
    pub(super) fn source_spec(&self, name: &str) -> RedisSpec {
        let spec = self.spec(&no_needs(name));
        let sizes = RedisSizes { reply: READ_BYTES_MAX, ..spec.sizes };
        RedisSpec { sizes, ..spec }
    }

    /// The first mistake in the keys of [`read_source`](Self::read_source): what is wrong, and what fixes it.
    pub(super) fn source_mistake(&self) -> Option<(String, String)> {
        if self.mode == Mode::Cluster {
            let what = "an intake reads no cluster yet".to_owned();
            return Some((what, "use mode = \"single\" or \"sentinel\"".to_owned()));
        }
        let error = self.check(&no_needs("")).into_iter().next()?;
        Some((error.to_string(), super::problem::in_words_of_sources(error.hint())))
    }

    /// The keys of [`read_source`](Self::read_source) with their values, for `postrider config show`.
    pub fn source_values(&self) -> Vec<Shown> {
        const OF_SINKS: [&str; 8] = [
            "delivery",
            "missing_streams",
            "trim_length",
            "trim_age",
            "replicas",
            "replica_timeout",
            "event_bytes_max",
            "state_key",
        ];
        let of_both = |row: &Shown| !OF_SINKS.contains(&row.key.as_str());
        self.values().into_iter().filter(of_both).collect()
    }

    fn bytes_max(&self) -> usize {
        usize::try_from(self.event_bytes_max).unwrap_or(usize::MAX)
    }

    /// What a sink is opened with. A replay has a progress of its own.
    pub(super) fn spec(&self, needs: &Needs) -> RedisSpec {
        let end = if needs.purpose == Purpose::Replay { ":replay" } else { "" };
        let state_key = if self.state_key.is_empty() {
            format!("{STATE_PREFIX}{}:{}", self.rest.source, needs.pipeline)
        } else {
            self.state_key.clone()
        };
        RedisSpec {
            servers: addresses(&self.servers).unwrap_or_default(),
            mode: self.mode,
            sentinel_master: self.sentinel_master.clone(),
            sentinel_login: self.sentinel.login.clone(),
            database: self.database,
            login: self.login.login.clone(),
            tls: self.rest.tls.clone(),
            client_name: format!("postrider-{}{}", needs.pipeline, end.replace(':', "-")),
            state_key: state_key + end,
            storing: self.storing,
            timeout: self.timeout,
            sizes: RedisSizes { event: self.bytes_max(), reply: REPLY_BYTES_MAX },
        }
    }
}

/// What a consumer needs of its settings, which is nothing that a pipeline does.
fn no_needs(name: &str) -> Needs {
    Needs {
        pipeline: name.to_owned(),
        in_flight_events: 0,
        in_flight_bytes: 0,
        size_max: None,
        destinations: Vec::new(),
        purpose: Purpose::Live,
    }
}

/// The addresses of the servers; `None` if one is none.
fn addresses(servers: &str) -> Option<Vec<Address>> {
    servers.split(',').map(|text| Address::parse(text, Address::PORT)).collect()
}

/// `false`, or a table that has the files of TLS.
fn read_tls(keys: &dyn Keys) -> Option<TlsFiles> {
    let table = keys.table_or_false("tls");
    let file = |key: &'static str| {
        let path = table.text(key).filter(|path| !path.is_empty())?;
        Some(PathBuf::from(path))
    };
    let ca = file("ca_file");
    let (certificate, key) = (file("cert_file"), file("key_file"));
    match (&certificate, &key) {
        (Some(_), None) => table.error("key_file", "is missing: cert_file needs it".to_owned()),
        (None, Some(_)) => table.error("cert_file", "is missing: key_file needs it".to_owned()),
        (Some(_), Some(_)) | (None, None) => {}
    }
    let is_on = table.is_present();
    table.finish();
    is_on.then_some(TlsFiles { authorities: ca, certificate, key: key.map(SecretFile::new) })
}

impl SinkConfig for RedisConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Key,
            refuses_batches: false,
            transactions: self.delivery.exactly_once.then_some(self.delivery.limits),
            exactly_once: self.delivery.exactly_once,
            dedupe: true,
            headers: true,
            null_value: true,
            record_bytes_max: Some(self.bytes_max()),
            held_bytes: HELD_BYTES,
            clusters: false,
            remote: true,
        }
    }

    fn names(&self) -> NameRule {
        NAMES
    }

    fn place(&self) -> String {
        self.servers.clone()
    }

    fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: &str| Shown { table: NAME, ..Shown::text(key, value) };
        let number = |key: &str, value: u64| Shown {
            table: NAME,
            key: key.to_owned(),
            value: ShownValue::Number(value),
        };
        let storing = &self.storing;
        let (length, age) = match storing.trim {
            Trim::Nothing => (0, Duration::ZERO),
            Trim::Length(length) => (length, Duration::ZERO),
            Trim::Age(age) => (0, age),
        };
        let mut rows = vec![
            Shown::text("delivery", DELIVERY[usize::from(self.delivery.exactly_once)]),
            text("servers", &self.servers),
            text("mode", self.mode.name()),
            text("sentinel_master", &self.sentinel_master),
            text("sentinel_username", &self.sentinel.login.username),
            text("sentinel_password_file", &self.sentinel.shown_file),
            number("database", self.database.into()),
            text("username", &self.login.login.username),
            text("password_file", &self.login.shown_file),
            text("missing_streams", if storing.creates { MISSING[0] } else { MISSING[1] }),
            number("trim_length", length.into()),
            text("trim_age", &ShowDuration(age).to_string()),
            number("replicas", storing.replicas.into()),
            text("replica_timeout", &ShowDuration(storing.replica_timeout).to_string()),
            text("event_bytes_max", &ShowSize(self.event_bytes_max).to_string()),
            text("timeout", &ShowDuration(self.timeout).to_string()),
            text("state_key", &self.state_key),
            text("commit_interval", &ShowDuration(self.delivery.limits.interval).to_string()),
            number("events_max", self.delivery.limits.records_max as u64),
            text("bytes_max", &ShowSize(self.delivery.limits.bytes_max).to_string()),
        ];
        match &self.rest.tls {
            None => {
                let value = ShownValue::Boolean(false);
                rows.push(Shown { table: NAME, key: "tls".to_owned(), value });
            }
            Some(tls) => {
                let file = |key: &str, path: Option<&Path>| {
                    let path = path.map(|path| path.display().to_string()).unwrap_or_default();
                    Shown { table: "redis.tls", ..Shown::text(key, &path) }
                };
                rows.push(file("ca_file", tls.authorities.as_deref()));
                rows.push(file("cert_file", tls.certificate.as_deref()));
                rows.push(file("key_file", tls.key.as_ref().map(SecretFile::path)));
            }
        }
        rows
    }

    fn check(&self, _needs: &Needs) -> Vec<SinkError> {
        let mut errors = Vec::new();
        let mut wrong = |key: &str, what: &str, hint: &str| {
            errors.push(SinkError::new(what, hint).at(&[NAME, key]));
        };
        match self.mode {
            Mode::Sentinel if self.sentinel_master.is_empty() => wrong(
                "sentinel_master",
                "mode = \"sentinel\" needs the name of the primary",
                "set it as the sentinels have it: sentinel_master = \"mymaster\"",
            ),
            Mode::Single | Mode::Cluster if !self.sentinel_master.is_empty() => wrong(
                "sentinel_master",
                "is for mode = \"sentinel\" only",
                "set mode = \"sentinel\", or delete the key",
            ),
            Mode::Cluster if self.database > 0 => wrong(
                "database",
                "a cluster has database 0 only",
                "delete the key, or use another mode",
            ),
            Mode::Cluster if self.delivery.exactly_once => wrong(
                "mode",
                "a commit can't span the nodes of a cluster",
                "set mode = \"single\" or \"sentinel\", or delivery = \"at-least-once\"",
            ),
            Mode::Single | Mode::Sentinel | Mode::Cluster => {}
        }
        if self.state_key.contains(['{', '}']) {
            wrong(
                "state_key",
                "the key of the progress has a brace",
                "choose a name without braces: a cluster needs a hash tag of the sink's own",
            );
        }
        errors
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        if let Some(error) = self.check(needs).into_iter().next() {
            return Err(error);
        }
        let spec = self.spec(needs);
        if spec.storing.in_transactions {
            return Ok(Box::new(RedisTransactionSink::open(spec, needs, mailbox)?));
        }
        Ok(Box::new(sink::open(spec, needs, mailbox)?))
    }

    fn settings(&self, _pipeline: &str) -> Vec<Finding> {
        preflight::settings(self.storing.trim, self.rest.tls.is_some(), &self.servers)
    }

    fn preflight(&self, needs: &Needs, destinations: &[String], _keyed: bool) -> Vec<Finding> {
        preflight::check(&self.spec(needs), destinations)
    }

    fn for_source(&self, source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        let source = source.downcast_ref::<Conninfo>()?.dbname().to_owned();
        let rest = Surroundings { source, ..self.rest.clone() };
        Some(Arc::new(Self { rest, ..self.clone() }))
    }

    fn hint(&self, refusal: Refusal, _stream: &str) -> String {
        match refusal.kind {
            RefusalKind::TooLarge(Some(Excess { size, .. })) => format!(
                "raise sink.redis.event_bytes_max to {size}; where payload.size_max sets the limit, raise that; then \
                 start again"
            ),
            RefusalKind::Destination(_) => "fix route.topic, then start again".to_owned(),
            RefusalKind::TooLarge(None)
            | RefusalKind::Partition(_)
            | RefusalKind::Content(_)
            | RefusalKind::Policy
            | RefusalKind::Invalid
            | RefusalKind::Other => GENERAL_HINT.to_owned(),
        }
    }

    fn command(&self, code: &str, stream: &str, _size: usize) -> Option<String> {
        (code == "topic_missing").then(|| looks::create_command(stream))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const LIMITS: TransactionLimits = TransactionLimits {
        records_max: 10,
        bytes_max: 100,
        interval: Duration::from_millis(10),
        whole_for: None,
    };

    pub(crate) fn config() -> RedisConfig {
        RedisConfig {
            servers: "localhost:6379".to_owned(),
            mode: Mode::Single,
            sentinel_master: String::new(),
            sentinel: LoginKeys::default(),
            database: 0,
            login: LoginKeys::default(),
            storing: Storing {
                in_transactions: false,
                creates: true,
                trim: Trim::Nothing,
                replicas: 0,
                replica_timeout: REPLICA_TIMEOUT,
            },
            event_bytes_max: EVENT_BYTES,
            timeout: TIMEOUT,
            state_key: String::new(),
            delivery: RedisPromise { exactly_once: false, limits: LIMITS },
            rest: Surroundings { tls: None, source: "app".to_owned() },
        }
    }

    fn needs(purpose: Purpose) -> Needs {
        Needs {
            pipeline: "orders".to_owned(),
            in_flight_events: 100,
            in_flight_bytes: 100,
            size_max: None,
            destinations: Vec::new(),
            purpose,
        }
    }

    pub(crate) fn spec() -> RedisSpec {
        config().spec(&needs(Purpose::Live))
    }

    #[test]
    fn the_progress_key_names_database_and_pipeline_and_a_replay_has_its_own() {
        assert_eq!(spec().state_key, "postrider:app:orders");
        let replay = config().spec(&needs(Purpose::Replay));
        assert_eq!(replay.state_key, "postrider:app:orders:replay");
        assert_eq!(replay.client_name, "postrider-orders-replay");
        let own = RedisConfig { state_key: "mine".to_owned(), ..config() };
        assert_eq!(own.spec(&needs(Purpose::Live)).state_key, "mine");
    }

    #[test]
    fn settings_that_exclude_each_other_are_mistakes() {
        let key = |config: RedisConfig| {
            let errors = config.check(&needs(Purpose::Live));
            errors.first().map(|error| error.key().join("."))
        };
        assert_eq!(key(config()), None);
        let master = || "mymaster".to_owned();
        let delivery = RedisPromise { exactly_once: true, ..config().delivery };
        for (wrong, expected) in [
            (RedisConfig { mode: Mode::Sentinel, ..config() }, "redis.sentinel_master"),
            (RedisConfig { sentinel_master: master(), ..config() }, "redis.sentinel_master"),
            (RedisConfig { mode: Mode::Cluster, database: 1, ..config() }, "redis.database"),
            (RedisConfig { state_key: "{a}".to_owned(), ..config() }, "redis.state_key"),
            (RedisConfig { mode: Mode::Cluster, delivery, ..config() }, "redis.mode"),
        ] {
            assert_eq!(key(wrong).as_deref(), Some(expected));
        }
        let right = RedisConfig {
            mode: Mode::Sentinel,
            sentinel_master: master(),
            database: 1,
            ..config()
        };
        assert_eq!(key(right), None);
    }
}
