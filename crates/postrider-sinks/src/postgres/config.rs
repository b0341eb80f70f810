//! The keys of a PostgreSQL sink, and what the product asks of its settings.

use super::batch::{AGGREGATE_ID, AGGREGATE_TYPE, RECORD_BYTES_MAX};
use super::preflight;
use super::sink::PostgresSink;
use super::spec::{CreateLogs, LogKind, NAMES, PostgresSpec};
use pg_replication::Conninfo;
use pg_replication::conninfo::masked;
use postrider_core::finding::Finding;
use postrider_core::record::{Excess, Refusal, RefusalKind};
use postrider_core::sink::{
    Capabilities, GENERAL_HINT, Keys, Mailbox, NameRule, Needs, Order, RecordHeaders, Shown,
    ShownValue, Sink, SinkConfig, SinkError, TransactionLimits,
};
use postrider_core::units::ShowSize;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(super) const NAME: &str = "postgres";

/// The values of `delivery`.
const DELIVERY: [&str; 1] = ["exactly-once"];

/// What `postrider.create_log` takes if a key of `create` is absent, and its limits.
const PARTITIONS: u32 = 16;
const PARTITIONS_MAX: u32 = 1024;
const ROWS_PER_CHILD: u32 = 1_000_000;
const ROWS_PER_CHILD_MAX: u32 = 1_000_000_000;

/// Bounds of a transaction.
const COMMIT_INTERVAL: Duration = Duration::from_millis(20);
const COMMIT_INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(10);
const EVENTS: u32 = 10_000;
const EVENTS_MAX: u32 = 100_000;
const BYTES: u64 = 8 << 20;
const BYTES_RANGE: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;

/// Memory for an event in the open transaction beside key, value and headers: lengths, numbers, and the id of its
/// aggregate a second time. Unit: bytes.
const HELD_BYTES: usize = 128;

/// `[pipelines.NAME.sink]` of a PostgreSQL sink.
#[derive(Clone)]
pub struct PostgresConfig {
    /// The database of the logs, or why its connection string can't be read; `None` for that of the source.
    pub database: Option<Result<Conninfo, String>>,
    /// `url` without its secrets.
    shown_url: String,
    /// `password_file`.
    shown_file: String,
    /// How logs that do not exist are created; `None` if they are not.
    pub create: Option<CreateLogs>,
    /// When a transaction is committed.
    pub limits: TransactionLimits,
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("database", &self.database)
            .field("create", &self.create)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl PostgresConfig {
    pub(super) fn read(keys: &dyn Keys) -> Self {
        // There is one promise.
        keys.word("delivery", &DELIVERY, &[]);
        let table = keys.table(NAME);
        let url = table.text("url").filter(|url| !url.trim().is_empty());
        let secret = table.secret("password_file");
        let parse = |url: &String| {
            let parsed = Conninfo::parse(url, &|name| table.variable(name));
            parsed.map_err(|error| error.to_string())
        };
        let mut database = url.as_ref().map(parse);
        let shown_file = secret.as_ref().map(|(name, _)| name.clone()).unwrap_or_default();
        match (&mut database, secret) {
            (Some(Ok(conninfo)), Some((_, file))) => conninfo.set_password_file(file),
            (None, Some(_)) => {
                table.error(
                    "password_file",
                    "needs url: the login of the source has its own".to_owned(),
                );
            }
            (Some(Ok(_) | Err(_)) | None, _) => {}
        }
        let config = Self {
            database,
            // A string that is not well formed may have its secret anywhere.
            shown_url: url.map_or_else(String::new, |url| {
                masked(&url, Some("***")).unwrap_or_else(|_unreadable| "***".to_owned())
            }),
            shown_file,
            create: read_create(&*table),
            limits: TransactionLimits {
                interval: table.duration("commit_interval", COMMIT_INTERVAL, COMMIT_INTERVALS),
                // The bound fits a usize on every platform we build for.
                records_max: table.number("events_max", EVENTS, 1..=EVENTS_MAX) as usize,
                bytes_max: table.size("bytes_max", BYTES, BYTES_RANGE),
                whole_for: None,
            },
        };
        table.finish();
        config
    }

    /// What a sink is opened with.
    ///
    /// # Errors
    /// The connection string can't be read, or there is none.
    fn spec(&self, needs: &Needs) -> Result<PostgresSpec, SinkError> {
        let hint = "write the connection string of the logs' database, such as \
                    \"postgresql://postrider@localhost/app\"";
        let conninfo = match &self.database {
            Some(Ok(conninfo)) => conninfo.clone(),
            Some(Err(why)) => {
                return Err(SinkError::new(why.clone(), hint).at(&[NAME, "url"]));
            }
            None => {
                let what = "no database is given, and the source is none in PostgreSQL";
                return Err(SinkError::new(what, hint).at(&[NAME, "url"]));
            }
        };
        Ok(PostgresSpec {
            conninfo,
            writer: needs.pipeline.clone(),
            create: self.create,
            size_max: needs.size_max,
        })
    }
}

/// `false`, or a table that says how logs are created.
fn read_create(keys: &dyn Keys) -> Option<CreateLogs> {
    let table = keys.table_or_false("create");
    let partitions = table.number("partitions", PARTITIONS, 1..=PARTITIONS_MAX);
    let rows_per_child = table.number("rows_per_child", ROWS_PER_CHILD, 1..=ROWS_PER_CHILD_MAX);
    let kind = match table.word("kind", &LogKind::WORDS, &[]) {
        0 => LogKind::Value,
        _ => LogKind::Reference,
    };
    let is_on = table.is_present();
    table.finish();
    is_on.then_some(CreateLogs { partitions, rows_per_child, kind })
}

impl SinkConfig for PostgresConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Total,
            refuses_batches: false,
            transactions: Some(self.limits),
            exactly_once: true,
            dedupe: false,
            headers: true,
            null_value: true,
            record_bytes_max: Some(RECORD_BYTES_MAX),
            held_bytes: HELD_BYTES,
            clusters: false,
            remote: true,
        }
    }

    fn names(&self) -> NameRule {
        NAMES
    }

    fn place(&self) -> String {
        match &self.database {
            Some(Ok(conninfo)) => format!("{}/{}", conninfo.hosts(), conninfo.dbname()),
            Some(Err(_)) | None => "the database of the source".to_owned(),
        }
    }

    fn values(&self) -> Vec<Shown> {
        let text = |key: &str, value: &str| Shown { table: NAME, ..Shown::text(key, value) };
        let number = |table, key: &str, value: u64| Shown {
            table,
            key: key.to_owned(),
            value: ShownValue::Number(value),
        };
        let interval = self.limits.interval.as_millis();
        let mut rows = vec![
            Shown::text("delivery", DELIVERY[0]),
            text("url", &self.shown_url),
            text("password_file", &self.shown_file),
            text("commit_interval", &format!("{interval}ms")),
            number(NAME, "events_max", self.limits.records_max as u64),
            text("bytes_max", &ShowSize(self.limits.bytes_max).to_string()),
        ];
        if let Some(create) = &self.create {
            let table = "postgres.create";
            rows.push(number(table, "partitions", create.partitions.into()));
            rows.push(number(table, "rows_per_child", create.rows_per_child.into()));
            rows.push(Shown { table, ..Shown::text("kind", create.kind.name()) });
        } else {
            let value = ShownValue::Boolean(false);
            rows.push(Shown { table: NAME, key: "create".to_owned(), value });
        }
        rows
    }

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        // Without a database it is that of the source, which is checked there.
        match self.database {
            Some(_) => self.spec(needs).err().into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(PostgresSink::open(self.spec(needs)?, mailbox)?))
    }

    fn preflight(&self, needs: &Needs, destinations: &[String], _keyed: bool) -> Vec<Finding> {
        match self.spec(needs) {
            Ok(spec) => preflight::check(&spec, destinations),
            Err(error) => vec![Finding::error("log_database", error.to_string()).why(error.hint())],
        }
    }

    fn record_headers(&self) -> RecordHeaders {
        RecordHeaders {
            standard: true,
            templates: [(AGGREGATE_TYPE, "{aggregate_type}"), (AGGREGATE_ID, "{aggregate_id}")]
                .map(|(name, template)| (name.to_owned(), template.to_owned()))
                .into(),
            ..RecordHeaders::default()
        }
    }

    fn for_source(&self, source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        let conninfo = source.downcast_ref::<Conninfo>().filter(|_| self.database.is_none())?;
        Some(Arc::new(Self { database: Some(Ok(conninfo.clone())), ..self.clone() }))
    }

    fn creates(&self) -> bool {
        self.create.is_some()
    }

    fn create(&self, needs: &Needs, destinations: &[String]) -> Vec<Finding> {
        match self.spec(needs) {
            Ok(spec) if spec.create.is_some() => preflight::create(&spec, destinations),
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    fn hint(&self, refusal: Refusal, log: &str) -> String {
        match refusal.kind {
            RefusalKind::TooLarge(Some(Excess { size, .. })) if size <= RECORD_BYTES_MAX => {
                format!("raise payload.size_max to {size}, then start again")
            }
            RefusalKind::TooLarge(_) => {
                "keep large payloads outside of the outbox, and publish a reference to them".to_owned()
            }
            RefusalKind::Partition(number) => format!(
                "log \"{log}\" has no hash partition {number}, and their number can't be changed: fix route.partition, \
                 then start again"
            ),
            RefusalKind::Destination(_) => "fix route.topic, then start again".to_owned(),
            RefusalKind::Content(_) => {
                "with parking.on_poison = \"block_key\" it is parked; then postrider parked replace gives it another \
                 payload, and postrider parked skip leaves it out"
                    .to_owned()
            }
            RefusalKind::Policy | RefusalKind::Invalid | RefusalKind::Other => {
                GENERAL_HINT.to_owned()
            }
        }
    }

    fn command(&self, code: &str, log: &str, _size: usize) -> Option<String> {
        let conninfo = self.database.as_ref()?.as_ref().ok()?;
        (code == "topic_missing").then(|| preflight::create_log(conninfo, log))
    }
}
