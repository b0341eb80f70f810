//! The keys of a Kafka sink, and what the product asks of its settings.

use super::sink::KafkaSink;
use super::spec::{CreateTopics, KafkaSpec, OpenError};
use super::transaction_sink::KafkaTransactionSink;
use super::transaction_spec::TransactionKeys;
use super::{preflight, progress, properties, topics};
use crate::topic;
use pg_replication::Conninfo;
use postrider_core::finding::Finding;
use postrider_core::record::{Excess, Refusal, RefusalKind};
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::{
    Capabilities, GENERAL_HINT, KeyValue, Keys, Mailbox, NameRule, Needs, Order, Purpose,
    Retention, Shown, ShownValue, Sink, SinkConfig, SinkError,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

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
    /// What is promised, and the transactions for it.
    pub transaction: TransactionKeys,
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
        let transaction = TransactionKeys::read(keys);
        keys.renamed("shards", "producers");
        Self {
            brokers,
            transaction,
            producers: keys.number("producers", 1, 1..=PRODUCERS_MAX),
            create_topics: read_create_topics(keys),
            properties,
            secret_files,
        }
    }

    /// What a sink is opened with. A replay has a producer and a name of its own and creates no topics: one that is
    /// named by hand has to exist. It publishes without transactions.
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
            transaction: self.transaction.spec(&needs.pipeline).filter(|_| !is_replay),
        }
    }
}

impl KafkaConfig {
    /// The properties with which a consumer reaches the same brokers and logs in to them, and the files of those that
    /// are secret.
    pub fn consumer_properties(&self) -> (Properties, BTreeMap<String, SecretFile>) {
        let is_shared = |name: &str| progress::is_shared(properties::canonical_name(name));
        let of = self.properties.0.iter().filter(|(name, _)| is_shared(name));
        let files = self.secret_files.iter().filter(|(name, _)| is_shared(name));
        let copy = |(name, value): (&String, &String)| (name.clone(), value.clone());
        (
            Properties(of.map(copy).collect()),
            files.map(|(name, file)| (name.clone(), file.clone())).collect(),
        )
    }

    /// Whether each of the topics is compacted, so that records are removed for the sake of later ones with their key.
    /// A topic whose settings the brokers do not tell is not among the result.
    pub fn compaction(&self, needs: &Needs, topics: &[String]) -> BTreeMap<String, bool> {
        preflight::compaction(&self.spec(needs), topics)
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
            transactions: self.transaction.limits(),
            exactly_once: self.transaction.is_exactly_once(),
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
        let mut rows = vec![Shown::text("brokers", &self.brokers)];
        rows.extend(self.transaction.promise());
        rows.push(number("", "producers", self.producers));
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
        rows.extend(self.transaction.values());
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
        let errors = errors.into_iter().map(SinkError::from);
        errors.chain(self.transaction.mistakes(self.producers)).collect()
    }

    fn open(&self, needs: &Needs, mailbox: Mailbox) -> Result<Box<dyn Sink>, SinkError> {
        open(&self.spec(needs), mailbox).map_err(SinkError::from)
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

    fn prepare(&self, needs: &Needs, adopt_cursor: bool) -> Vec<Finding> {
        progress::prepare(&self.spec(needs), adopt_cursor)
    }

    fn for_source(&self, source: &dyn Any) -> Option<Arc<dyn SinkConfig>> {
        let database = source.downcast_ref::<Conninfo>()?.dbname();
        let transaction = self.transaction.of_source(database);
        Some(Arc::new(Self { transaction, ..self.clone() }))
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

/// Opens a sink of these settings. Connects in the background: a broker that can't be reached is no error.
///
/// # Errors
/// A setting that librdkafka does not know, does not take, or that would break a promise; a thread that can't be
/// started.
pub fn open(spec: &KafkaSpec, mailbox: Mailbox) -> Result<Box<dyn Sink>, OpenError> {
    Ok(match &spec.transaction {
        None => Box::new(KafkaSink::open(spec, mailbox)?),
        Some(transaction) => Box::new(KafkaTransactionSink::open(spec, transaction, mailbox)?),
    })
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
