//! The tables `[inboxes.NAME]`: what stores messages in inboxes (`postrider inbox run`).

use super::file::Url;
use super::pipeline::is_plain;
use super::section::{Kind, Section, SinkKeys, wrong_kind};
use crate::error::Chain;
use crate::inbox::kafka::KafkaSourceConfig;
use crate::inbox::mapping::MessageRules;
use crate::inbox::message::SOURCE_BYTES_MAX;
#[cfg(feature = "nats")]
use crate::inbox::nats::NatsSourceConfig;
#[cfg(feature = "rabbitmq")]
use crate::inbox::rabbitmq::RabbitSourceConfig;
#[cfg(feature = "redis")]
use crate::inbox::redis::RedisSourceConfig;
use crate::inbox::store::InboxSpec;
use crate::inbox::webhook::WebhookConfig;
use crate::intake::{IntakeSource, IntakeSpec};
use crate::postgres::Conninfo;
use crate::secret_file::SecretFile;
use crate::sink::Shown;

/// Length of an inbox's name at most, as in SQL. Unit: bytes.
const NAME_BYTES_MAX: usize = 47;

/// Messages of a transaction.
const BATCH_MAX: u32 = 10_000;

/// `[inboxes.NAME]`
#[derive(Clone, Debug)]
pub struct InboxConfig {
    /// The name.
    pub name: String,
    /// The database.
    pub url: Url,
    /// The file with the password, as written in the configuration.
    pub password_file: Option<String>,
    /// What the intake is started with; `None` if the address of the database can't be read, which is reported.
    pub spec: Option<IntakeSpec>,
    /// The values of the source, for `postrider config show`.
    pub source: Vec<Shown>,
    /// The word of the source.
    pub kind: &'static str,
    /// The name of the inbox in the database.
    pub inbox: String,
    /// Messages of a transaction at most.
    pub batch: u32,
    /// Messages that may wait to be processed; 0: any number.
    pub pending_max: u64,
    /// How a record becomes a message.
    pub rules: MessageRules,
}

/// Reads all tables.
pub(super) fn all(inboxes: &Section<'_>) -> Vec<InboxConfig> {
    let mut all = Vec::new();
    for entry in inboxes.entries(Kind::Table) {
        let is_name = (1..=NAME_BYTES_MAX).contains(&entry.name.len()) && is_plain(entry.name);
        if !is_name {
            let rule = format!(
                "expected 1 to {NAME_BYTES_MAX} of the characters a-z, 0-9 and _ in the name of an intake"
            );
            inboxes.context.error(entry.place, &entry.path, rule);
        }
        if let Some(section) = inboxes.inner(&entry) {
            all.push(one(entry.name, section));
        } else {
            let (context, value) = (inboxes.context, entry.value.get_ref());
            wrong_kind(context, entry.place, &entry.path, "a table", value);
        }
    }
    all
}

fn one(name: &str, section: Section<'_>) -> InboxConfig {
    let inbox = section.optional("inbox").unwrap_or_else(|| name.to_owned());
    let batch = section.small("batch", 1000, 1..=BATCH_MAX);
    let pending_max = section.integer("pending_max", 1_000_000, 0..=1_000_000_000);
    let (url, password_file, conninfo) = database(section.section("database"));
    let (source, kind, shown) = source(name, section.section("source"));
    let rules = rules(section.section("message"), kind);
    section.finish();
    let spec = conninfo.map(|conninfo| IntakeSpec {
        name: name.to_owned(),
        inbox: InboxSpec { inbox: inbox.clone(), conninfo },
        source,
        rules: rules.clone(),
        batch_messages: usize::try_from(batch).unwrap_or(1),
        pending_max: (pending_max > 0).then_some(pending_max),
    });
    InboxConfig {
        name: name.to_owned(),
        url,
        password_file,
        spec,
        source: shown,
        kind,
        inbox,
        batch,
        pending_max,
        rules,
    }
}

fn database(section: Section<'_>) -> (Url, Option<String>, Option<Conninfo>) {
    let url = section.required("url", "postgresql://worker@localhost/app").unwrap_or_default();
    let password_file = section.text("password_file");
    let password: Option<SecretFile> = password_file
        .as_deref()
        .and_then(|file| section.context.secret_file(&section.path_of("password_file"), file))
        .map(|(file, _)| file);
    let conninfo = match Conninfo::parse(&url, section.context.env) {
        _ if url.is_empty() => None,
        Ok(mut conninfo) => {
            if let Some(password) = password {
                conninfo.set_password_file(password);
            }
            Some(conninfo)
        }
        Err(error) => {
            section.error("url", Chain(&error));
            None
        }
    };
    section.finish();
    (Url::new(url), password_file, conninfo)
}

/// The words of `source.kind`.
const KINDS: &[(&str, SourceKind)] = &[
    ("kafka", SourceKind::Kafka),
    ("webhook", SourceKind::Webhook),
    #[cfg(feature = "nats")]
    ("nats", SourceKind::Nats),
    #[cfg(feature = "rabbitmq")]
    ("rabbitmq", SourceKind::RabbitMq),
    #[cfg(feature = "redis")]
    ("redis", SourceKind::Redis),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum SourceKind {
    Kafka,
    Webhook,
    #[cfg(feature = "nats")]
    Nats,
    #[cfg(feature = "rabbitmq")]
    RabbitMq,
    #[cfg(feature = "redis")]
    Redis,
}

impl SourceKind {
    /// Reads the keys of this kind: the source, and its values.
    fn read(self, keys: &SinkKeys<'_>, name: &str) -> (IntakeSource, Vec<Shown>) {
        match self {
            Self::Kafka => {
                let config = KafkaSourceConfig::read(keys, name);
                let shown = config.values();
                (IntakeSource::Kafka(Box::new(config)), shown)
            }
            Self::Webhook => {
                let config = WebhookConfig::read(keys, name);
                let shown = config.values();
                (IntakeSource::Webhook(Box::new(config)), shown)
            }
            #[cfg(feature = "nats")]
            Self::Nats => {
                let config = NatsSourceConfig::read(keys, name);
                let shown = config.values();
                (IntakeSource::Nats(Box::new(config)), shown)
            }
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq => {
                let config = RabbitSourceConfig::read(keys);
                let shown = config.values();
                (IntakeSource::RabbitMq(Box::new(config)), shown)
            }
            #[cfg(feature = "redis")]
            Self::Redis => {
                let config = RedisSourceConfig::read(keys, name);
                let shown = config.values();
                (IntakeSource::Redis(Box::new(config)), shown)
            }
        }
    }
}

fn source(name: &str, section: Section<'_>) -> (IntakeSource, &'static str, Vec<Shown>) {
    let kind = section.one_of("kind", KINDS, &[], SourceKind::Kafka);
    // The schema has the keys of all kinds; those of other kinds are unknown here.
    for (_, other) in KINDS.iter().filter(|(_, other)| *other != kind) {
        let keys = SinkKeys { section: section.absent(), is_chosen: false, taken: Vec::new() };
        other.read(&keys, name);
    }
    let keys = SinkKeys { section, is_chosen: true, taken: Vec::new() };
    let (source, shown) = kind.read(&keys, name);
    keys.section.finish();
    let word = source.kind();
    (source, word, shown)
}

fn rules(section: Section<'_>, kind: &str) -> MessageRules {
    let default = MessageRules::default();
    let rules = MessageRules {
        source: section.optional("source"),
        id_header: section.optional("id_header"),
        type_header: section.optional("type_header").unwrap_or(default.type_header),
        aggregate_header: section.optional("aggregate_header"),
        sequence_header: section.optional("sequence_header"),
        priority_header: section.optional("priority_header"),
        positions: section.boolean("positions", default.positions),
    };
    for key in ["id_header", "positions"] {
        if kind == "webhook" && section.has(key) {
            section.error(
                key,
                "is for messages of brokers alone: a webhook has the id of its scheme; remove the key",
            );
        }
    }
    if rules.source.as_ref().is_some_and(|source| source.len() > SOURCE_BYTES_MAX) {
        section.error("source", format!("expected at most {SOURCE_BYTES_MAX} bytes"));
    }
    section.finish();
    rules
}
