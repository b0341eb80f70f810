//! The keys of a Kafka sink, and what the product asks of its settings.

use super::sink::KafkaSink;
use super::{preflight, properties, topics};
use crate::topic;
use postrider_core::finding::Finding;
use postrider_core::record::{Excess, Refusal, RefusalKind};
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{
    Capabilities, GENERAL_HINT, KeyValue, Keys, Mailbox, NameRule, Needs, Order, Purpose,
    Retention, Shown, ShownValue, Sink, SinkConfig, SinkError,
};
use std::collections::BTreeMap;
use std::fmt;

pub(super) const NAME: &str = "kafka";

/// `producers`: producers at most.
const PRODUCERS_MAX: u32 = 16;

/// Partitions of a topic that is created.
const PARTITIONS_MAX: u32 = 10_000;

/// Replicas of a topic that is created.
const REPLICAS_MAX: u32 = 100;

/// A property whose name ends so takes its value from the file named.
const FILE_SUFFIX: &str = "_file";

/// Properties that name a file with a private key, which librdkafka reads itself, whatever the file's rights.
const KEY_FILES: [&str; 2] = ["ssl.key.location", "ssl.keystore.location"];

/// How long the events of a replay are gathered for a batch, where the configuration does not say: nobody waits for
/// them, and each request of the brokers' work is one that the live stream waits behind. Unit: milliseconds.
const REPLAY_LINGER_MILLIS: &str = "20";

/// Bytes by which a broker counts a record larger than its key, value and headers are: its batch's head and lengths.
const RECORD_OVERHEAD_BYTES: usize = 1024;

/// `[pipelines.NAME.sink]` of a Kafka sink.
#[derive(Clone, PartialEq, Debug)]
pub struct KafkaConfig {
    /// `host:port,host:port`.
    pub brokers: String,
    /// What is promised.
    pub delivery: &'static str,
    /// Producers among which the keys are divided.
    pub producers: u32,
    /// How topics that are missing are created; `None` where they are not.
    pub create_topics: Option<CreateTopics>,
    /// librdkafka's own settings.
    pub properties: Properties,
    /// Those of the properties that come from a file (`_file`), and the file.
    pub secret_files: BTreeMap<String, SecretFile>,
}

impl KafkaConfig {
    pub(super) fn read(keys: &dyn Keys) -> Self {
        let brokers = keys.required("brokers", "localhost:9092").unwrap_or_default();
        if !brokers.is_empty() && !brokers.split(',').all(is_address) {
            keys.error("brokers", "expected host:port pairs with commas between them".to_owned());
        }
        let (properties, secret_files) = read_properties(&*keys.table("properties"));
        let delivery = crate::read_delivery(keys);
        keys.renamed("shards", "producers");
        Self {
            brokers,
            delivery,
            producers: keys.number("producers", 1, 1..=PRODUCERS_MAX),
            create_topics: read_create_topics(keys),
            properties,
            secret_files,
        }
    }

    /// What a sink is opened with. A replay has a producer and a name of its own and creates no topics: one that is
    /// named by hand has to exist.
    pub fn spec(&self, needs: &Needs) -> KafkaSpec {
        let is_replay = needs.purpose == Purpose::Replay;
        let mut properties = self.properties.0.clone();
        if is_replay {
            let linger = || REPLAY_LINGER_MILLIS.to_owned();
            properties.entry("linger.ms".to_owned()).or_insert_with(linger);
        }
        let create_topics = self.create_topics.as_ref().filter(|_| !is_replay);
        KafkaSpec {
            brokers: self.brokers.clone(),
            properties,
            secret_files: self.secret_files.clone(),
            // The bound fits a usize on every platform we build for.
            producers: if is_replay { 1 } else { self.producers as usize },
            client_id: format!(
                "postrider-{}{}",
                needs.pipeline,
                if is_replay { "-replay" } else { "" }
            ),
            in_flight_events: needs.in_flight_events,
            in_flight_bytes: needs.in_flight_bytes,
            size_max: needs.size_max,
            create_topics: create_topics.map(|create| {
                Box::new(CreateTopics { known: needs.destinations.clone(), ..create.clone() })
            }),
        }
    }
}

impl SinkConfig for KafkaConfig {
    fn kind(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            order: Order::Key,
            refuses_batches: true,
            transactions: None,
            dedupe: false,
            headers: true,
            null_value: true,
            record_bytes_max: None,
            held_bytes: topic::HELD_BYTES,
            clusters: true,
            remote: true,
        }
    }

    fn names(&self) -> NameRule {
        topic::NAMES
    }

    fn place(&self) -> String {
        self.brokers.clone()
    }

    fn values(&self) -> Vec<Shown> {
        let number = |table, key: &str, value: u32| Shown {
            table,
            key: key.to_owned(),
            value: ShownValue::Number(u64::from(value)),
        };
        let mut rows = vec![
            Shown::text("brokers", &self.brokers),
            Shown::text("delivery", self.delivery),
            number("", "producers", self.producers),
        ];
        if let Some(create) = &self.create_topics {
            let table = "create_topics";
            let text = |key: &str, value: &str| Shown { table, ..Shown::text(key, value) };
            for (key, value) in [
                ("partitions", create.partitions),
                ("replication_factor", create.replication_factor),
            ] {
                rows.push(
                    value.map_or_else(|| text(key, "broker"), |value| number(table, key, value)),
                );
            }
            rows.push(text("allow", create.allow.as_deref().unwrap_or_default()));
            let table = "create_topics.config";
            rows.extend(
                create.config.iter().map(|(key, value)| Shown { table, ..Shown::text(key, value) }),
            );
        } else {
            let value = ShownValue::Boolean(false);
            rows.push(Shown { table: "", key: "create_topics".to_owned(), value });
        }
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

    fn check(&self, needs: &Needs) -> Vec<SinkError> {
        let spec = self.spec(needs);
        let mut errors = properties::mistakes(&spec);
        let wanted = spec.create_topics.as_deref().map(topics::TopicCreation::of).transpose();
        errors.extend(wanted.err());
        errors.into_iter().map(SinkError::from).collect()
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(KafkaSink::open(&self.spec(needs), mailbox)?))
    }

    fn settings(&self, pipeline: &str) -> Vec<Finding> {
        preflight::settings(self, pipeline)
    }

    fn preflight(&self, needs: &Needs, destinations: &[String], keyed: bool) -> Vec<Finding> {
        preflight::check(&self.spec(needs), destinations, keyed)
    }

    fn retentions(&self, needs: &Needs, destinations: &[String]) -> Vec<Retention> {
        preflight::retentions(&self.spec(needs), destinations)
    }

    fn cluster(&self, needs: &Needs) -> Option<String> {
        preflight::cluster(&self.spec(needs))
    }

    fn creates(&self) -> bool {
        self.create_topics.is_some()
    }

    fn create(&self, needs: &Needs, destinations: &[String]) -> Vec<Finding> {
        let spec = self.spec(needs);
        if spec.create_topics.is_none() {
            return Vec::new();
        }
        preflight::create(&spec, destinations)
    }

    fn hint(&self, refusal: Refusal, topic: &str) -> String {
        match refusal.kind {
            _ if refusal.of_batch => GENERAL_HINT.to_owned(),
            RefusalKind::TooLarge(Some(Excess { size, .. })) => format!(
                "raise the limit of the topic: kafka-configs.sh --alter --entity-type topics --entity-name {topic} \
                 --add-config max.message.bytes={size}; where payload.size_max sets the limit, raise that; then start \
                 again"
            ),
            RefusalKind::Partition(number) => format!(
                "kafka-topics.sh --alter --topic {topic} --partitions {}; or fix route.partition; then start again",
                i64::from(number) + 1
            ),
            RefusalKind::Destination(_) => "fix route.topic, then start again".to_owned(),
            RefusalKind::TooLarge(None)
            | RefusalKind::Policy
            | RefusalKind::Invalid
            | RefusalKind::Content(_)
            | RefusalKind::Other => GENERAL_HINT.to_owned(),
        }
    }

    fn command(&self, code: &str, topic: &str, size: usize) -> Option<String> {
        let brokers = &self.brokers;
        match code {
            "too_large" => Some(format!(
                "kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {topic} \
                 --add-config max.message.bytes={}",
                size + RECORD_OVERHEAD_BYTES
            )),
            "topic_missing" => Some(format!(
                "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} --partitions 8"
            )),
            _ => None,
        }
    }
}

/// Whether a text is the address of a broker, `host:port`.
pub fn is_address(broker: &str) -> bool {
    let broker = broker.trim();
    let address = broker.rsplit_once("://").map_or(broker, |(_, address)| address);
    let port = address.rsplit_once(':').map(|(_, port)| port);
    let port_fits = port
        .is_none_or(|port| port.ends_with(']') || port.parse::<u16>().is_ok_and(|port| port > 0));
    !address.is_empty() && !address.starts_with(':') && port_fits
}

/// `false`, or a table that says how topics are created. What is not in it is the broker's default.
fn read_create_topics(keys: &dyn Keys) -> Option<CreateTopics> {
    let table = keys.table_or_false("create_topics");
    let number = |key, max| Some(table.number(key, 0, 1..=max)).filter(|number| *number > 0);
    let (partitions, replication_factor) =
        (number("partitions", PARTITIONS_MAX), number("replication_factor", REPLICAS_MAX));
    let allow = table.text("allow").filter(|pattern| !pattern.is_empty());
    let config = read_properties(&*table.table("config")).0.0;
    let is_on = table.is_present();
    table.finish();
    is_on.then(|| CreateTopics { partitions, replication_factor, config, allow, known: Vec::new() })
}

/// librdkafka's names have dots: `"linger.ms"` in quotes is meant, a bare `linger.ms` is taken as the same.
///
/// Those that come from a file are given beside their value with the file, which is read again when producers are made.
pub fn read_properties(keys: &dyn Keys) -> (Properties, BTreeMap<String, SecretFile>) {
    let (mut properties, mut files) = (BTreeMap::new(), BTreeMap::new());
    for KeyValue { name, value, path } in keys.entries() {
        let (name, value) = if let Some(name) = name.strip_suffix(FILE_SUFFIX) {
            let Some((file, value)) = keys.secret_file(&path, &value) else { continue };
            files.insert(name.to_owned(), file);
            (name.to_owned(), value)
        } else {
            if KEY_FILES.contains(&name.as_str()) {
                keys.warn_of_secret(&path, &value);
            }
            (name, value)
        };
        if properties.insert(name.clone(), value).is_some() {
            keys.error_at(&path, format!("\"{name}\" is given twice; delete one"));
        }
    }
    (Properties(properties), files)
}

/// librdkafka's properties. `Debug` shows their names, never their values: a value may be a secret under any name.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Properties(pub BTreeMap<String, String>);

impl Properties {
    /// Whether a property of this name is a secret.
    pub fn is_secret(name: &str) -> bool {
        const WORDS: [&str; 6] = ["pass", "secret", "token", "pem", "credential", "config"];
        let name = name.to_ascii_lowercase();
        WORDS.iter().any(|word| name.contains(word))
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What a Kafka sink is opened with: its settings, and what the pipeline needs. `Debug` shows the names of the
/// properties, never their values.
#[derive(Clone)]
pub struct KafkaSpec {
    /// `host:port`, separated by commas: where the client asks first.
    pub brokers: String,
    /// librdkafka's own properties, verbatim; those that would break a promise are refused.
    pub properties: BTreeMap<String, String>,
    /// Files from which the values of some of the properties are read each time that producers are made.
    pub secret_files: BTreeMap<String, SecretFile>,
    /// Producers among which the aggregates are divided; 0 is as 1.
    pub producers: usize,
    /// The name the broker's logs and quotas know us by; a `client.id` among the properties wins.
    pub client_id: String,
    /// Events the caller lets be in flight: librdkafka's queue is made larger than this.
    pub in_flight_events: usize,
    /// Bytes the caller lets be in flight, with [`held_bytes`](postrider_core::sink::Capabilities::held_bytes) for each
    /// record; librdkafka's queue is made larger.
    pub in_flight_bytes: usize,
    /// The largest record in bytes of key, value and headers, where the operator sets one; else the destination's
    /// limit.
    pub size_max: Option<usize>,
    /// How topics that are missing are made; `None` where they are not.
    pub create_topics: Option<Box<CreateTopics>>,
}

/// How topics that are missing are made.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CreateTopics {
    /// `None` is the broker's default.
    pub partitions: Option<u32>,
    /// `None` is the broker's default.
    pub replication_factor: Option<u32>,
    /// The topic's settings, by Kafka's names.
    pub config: BTreeMap<String, String>,
    /// A regular expression that matches the whole of a name that may be made; `None` is any.
    pub allow: Option<String>,
    /// The topics that are known before the first event.
    pub known: Vec<String>,
}

impl fmt::Debug for KafkaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSpec")
            .field("brokers", &self.brokers)
            .field("properties", &self.properties.keys())
            .field("secret_files", &self.secret_files.keys())
            .field("producers", &self.producers)
            .field("client_id", &self.client_id)
            .field("in_flight_events", &self.in_flight_events)
            .field("in_flight_bytes", &self.in_flight_bytes)
            .field("size_max", &self.size_max)
            .field("create_topics", &self.create_topics)
            .finish()
    }
}

/// Why a Kafka sink can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A property that would break a promise, or that another key says.
    #[error("property `{name}` can't be set here: {why}")]
    Refused {
        /// librdkafka's name.
        name: String,
        /// What it would break.
        why: &'static str,
        /// What to write instead.
        fix: &'static str,
    },
    /// librdkafka has no property of this name.
    #[error("librdkafka has no property `{name}`")]
    UnknownProperty {
        /// The name as written.
        name: String,
        /// The nearest name it does have, where one is near.
        nearest: Option<&'static str>,
    },
    /// librdkafka does not take the value. The value is not repeated: it may be a secret.
    #[error("librdkafka does not take the value of property `{name}`")]
    BadValue {
        /// librdkafka's name.
        name: String,
    },
    /// A property of a login that this build can't make.
    #[error("property `{name}` asks for {what}")]
    NoLogin {
        /// The name as written.
        name: String,
        /// Which login, and what lacks for it.
        what: &'static str,
        /// What to use.
        instead: &'static str,
    },
    /// SASL without a mechanism, where librdkafka's default is one that this build lacks.
    #[error(
        "`security.protocol` asks for SASL without `sasl.mechanism`, and the default, GSSAPI, is not in this build"
    )]
    NoMechanism,
    /// The properties are each right, but librdkafka makes no producer of them.
    #[error("could not make a Kafka producer")]
    Create(#[source] rdkafka::error::KafkaError),
    /// `create_topics.allow` is no regular expression.
    #[error("`create_topics.allow` is not a regular expression")]
    AllowPattern,
    /// No thread for the sink's background work.
    #[error("could not start the sink's thread")]
    Thread(#[source] std::io::Error),
}

impl OpenError {
    /// What fixes it, in one line.
    pub fn hint(&self) -> String {
        match self {
            Self::Refused { name, fix, .. } => format!("delete `{name}`: {fix}"),
            Self::UnknownProperty { nearest: Some(nearest), .. } => {
                format!("did you mean `{nearest}`?")
            }
            Self::UnknownProperty { nearest: None, .. } => {
                "librdkafka's CONFIGURATION.md lists all names".to_owned()
            }
            Self::BadValue { name } => {
                format!("see `{name}` in librdkafka's CONFIGURATION.md for its range")
            }
            Self::NoLogin { instead, .. } => (*instead).to_owned(),
            Self::NoMechanism => {
                "set `sasl.mechanism`: SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN".to_owned()
            }
            Self::Create(_) => {
                "check the files and combinations the ssl.* and sasl.* properties name".to_owned()
            }
            Self::AllowPattern => {
                "write one that matches whole names, such as \"outbox\\.event\\..+\"".to_owned()
            }
            Self::Thread(_) => "raise the limit of threads (ulimit -u, pids.max)".to_owned(),
        }
    }
}

impl From<OpenError> for SinkError {
    fn from(error: OpenError) -> Self {
        let here = Self::new(error.to_string(), error.hint());
        match error {
            OpenError::Refused { name, .. }
            | OpenError::UnknownProperty { name, .. }
            | OpenError::NoLogin { name, .. }
            | OpenError::BadValue { name } => here.at(&["properties", &name]),
            OpenError::NoMechanism => here.at(&["properties", "security.protocol"]),
            OpenError::Create(source) => here.at(&["properties"]).caused_by(source),
            OpenError::AllowPattern => here.at(&["create_topics", "allow"]),
            OpenError::Thread(source) => here.caused_by(source),
        }
    }
}
