//! The keys of Kafka as a source of messages, and the client's settings that follow from them.

use super::positions::StartAt;
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{Keys, Shown, ShownValue};
use postrider_sinks::kafka::{
    OpenError, Properties, canonical_name, check_login, check_property, is_address, read_properties,
};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use std::collections::BTreeMap;

/// Topics of an intake.
const TOPICS_MAX: usize = 1000;

/// `[inboxes.NAME.source]` with `kind = "kafka"`. `Debug` shows the names of the properties, never their values.
#[derive(Clone, PartialEq, Debug)]
pub struct KafkaSourceConfig {
    /// `host:port,host:port`.
    pub brokers: String,
    /// The topics. A name that begins with ^ is a regular expression.
    pub topics: Vec<String>,
    /// The consumer group, whose members divide the partitions among themselves.
    pub group: String,
    /// Where a topic begins of which no offset is stored.
    pub start: StartAt,
    /// librdkafka's own settings.
    pub properties: Properties,
    /// Those of the properties that come from a file (`_file`), and the file, which is read when a client is made.
    pub secret_files: BTreeMap<String, SecretFile>,
}

/// Properties that would break a promise, or that another key says: name, why, and what to do instead.
const REFUSED: &[(&str, &str, &str)] = &[
    ("bootstrap.servers", "the key `brokers` says it", "write it in `brokers`"),
    ("group.id", "the key `group` says it", "write it in `group`"),
    ("enable.auto.commit", OFFSETS, KEPT),
    ("enable.auto.offset.store", OFFSETS, KEPT),
    ("auto.commit.interval.ms", OFFSETS, KEPT),
    (
        "auto.offset.reset",
        "records could be passed over in silence",
        "the key `start` says where a new topic begins",
    ),
    ("isolation.level", "records of transactions that were aborted would be stored", KEPT),
    ("partition.assignment.strategy", EAGER, KEPT),
    ("group.protocol", EAGER, KEPT),
    ("enable.partition.eof", "the ends of partitions show which offsets have no record", KEPT),
    ("allow.auto.create.topics", "a misspelt topic would be created", "create the topic"),
    ("enable.sasl.oauthbearer.unsecure.jwt", "nobody would renew the token when it expires", KEPT),
    ("log.queue", "log lines go to Postrider's own log", KEPT),
    ("test.mock.num.brokers", "a mock broker keeps nothing", KEPT),
];

const KEPT: &str = "Postrider sets what its promises need";
const OFFSETS: &str = "offsets are stored in the database, in the transaction of their records";
const EAGER: &str =
    "each assignment is read again from the stored offsets, with all partitions at once";

impl KafkaSourceConfig {
    /// Reads the keys, and reports mistakes.
    pub fn read(keys: &dyn Keys, name: &str) -> Self {
        let brokers = keys.required("brokers", "localhost:9092").unwrap_or_default();
        if !brokers.is_empty() && !brokers.split(',').all(is_address) {
            keys.error("brokers", "expected host:port pairs with commas between them".to_owned());
        }
        let topics = keys.required("topics", "orders, payments").unwrap_or_default();
        let topics: Vec<String> = topics
            .split(',')
            .map(|topic| topic.trim().to_owned())
            .filter(|topic| !topic.is_empty())
            .collect();
        if topics.len() > TOPICS_MAX {
            keys.error("topics", format!("expected at most {TOPICS_MAX} topics"));
        }
        for topic in &topics {
            if !is_topic(topic) {
                let rule = "expected names of topics with commas between them; a name that begins with ^ is a regular \
                            expression";
                keys.error("topics", rule.to_owned());
            }
        }
        let group = keys.text("group").filter(|group| !group.is_empty());
        let starts = [StartAt::Earliest, StartAt::Latest];
        let start = keys.word("start", &starts.map(StartAt::name), &[]);
        let table = keys.table("properties");
        let (properties, secret_files) = read_properties(&*table);
        let config = Self {
            brokers,
            topics,
            group: group.unwrap_or_else(|| format!("postrider-inbox-{name}")),
            start: starts.get(start).copied().unwrap_or_default(),
            properties,
            secret_files,
        };
        for error in config.mistakes() {
            keys.error("properties", format!("{error}; {}", error.hint()));
        }
        config
    }

    /// Keys and values, for `postrider config show`.
    pub fn values(&self) -> Vec<Shown> {
        let mut rows = vec![
            Shown::text("brokers", &self.brokers),
            Shown::text("topics", &self.topics.join(", ")),
            Shown::text("group", &self.group),
            Shown::text("start", self.start.name()),
        ];
        rows.extend(self.properties.0.iter().map(|(name, value)| {
            let row = Shown { table: "properties", ..Shown::text(name, value) };
            if Properties::is_secret(name) {
                Shown { value: ShownValue::Secret, ..row }
            } else {
                row
            }
        }));
        rows
    }

    fn mistakes(&self) -> Vec<OpenError> {
        let of = |(name, value): (&String, &String)| of_property(name, value).err();
        let mut errors: Vec<OpenError> = self.properties.0.iter().filter_map(of).collect();
        errors.extend(check_login(&self.properties.0).err());
        errors
    }

    /// The settings of a client. Secrets are read from their files; a file that can't be read keeps the value of the
    /// start.
    pub(super) fn client_config(&self, client_id: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Info);
        for (name, value) in [
            ("bootstrap.servers", self.brokers.as_str()),
            ("group.id", self.group.as_str()),
            ("client.id", client_id),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("auto.offset.reset", "error"),
            ("isolation.level", "read_committed"),
            // Marks of transactions have offsets and are no records: only this event says that they were read.
            ("enable.partition.eof", "true"),
            ("partition.assignment.strategy", "range,roundrobin"),
            ("allow.auto.create.topics", "false"),
            ("socket.keepalive.enable", "true"),
            ("reconnect.backoff.ms", "50"),
            ("reconnect.backoff.max.ms", "1000"),
            ("log.connection.close", "false"),
            // What is fetched ahead of the database: bounded in bytes, over all partitions.
            ("queued.max.messages.kbytes", "32768"),
            ("queued.min.messages", "10000"),
        ] {
            config.set(name, value);
        }
        for (name, value) in &self.properties.0 {
            let now = self.secret_files.get(name).and_then(|file| file.read().ok());
            config.set(canonical_name(name), now.as_ref().unwrap_or(value));
        }
        config
    }
}

fn of_property(name: &str, value: &str) -> Result<(), OpenError> {
    let plain = name.strip_prefix("topic.").unwrap_or(name);
    let ours = canonical_name(plain);
    if let Some((_, why, fix)) = REFUSED.iter().find(|(refused, ..)| *refused == ours) {
        return Err(OpenError::Refused { name: name.to_owned(), why, fix });
    }
    check_property(name, value)
}

/// Whether a text is a name that Kafka allows for a topic, or a regular expression that librdkafka takes for one.
fn is_topic(topic: &str) -> bool {
    topic.starts_with('^')
        || topic.len() <= 249
            && !matches!(topic, "." | "..")
            && topic.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}
