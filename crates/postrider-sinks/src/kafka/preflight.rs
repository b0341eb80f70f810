//! What `postrider check` asks the brokers: do they answer, do they take us, and would each topic take our records.
//!
//! Nothing is published and nothing changed: metadata, a topic's configuration, and the broker's own word on what we
//! may do. It uses the same producer and the same requests as the sink, so a check that passes here passes there.

use super::config::KafkaConfig;
use super::health::{self, Problem};
use super::native::Producer;
use super::producer::{Context, Polled, SizeLimits, TRANSACTIONAL_ID};
use super::progress::{self, ProgressProblem, StoredProgress};
use super::shared::{Shared, Suspicion};
use super::spec::{KafkaSpec, OpenError};
use super::topics::{self, BROKER_DEFAULT_BYTES, Creation, Made, TopicCreation, Unusable};
use super::transaction_spec::KafkaTransaction;
use super::{native, properties, topics as facts};
use crate::topic::is_topic_name;
use postrider_core::error::Chain;
use postrider_core::finding::Finding;
use postrider_core::sink::{Mailbox, Retention};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::metadata::MetadataTopic;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the brokers may take to answer the first question: name, TCP, TLS and login are in it.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(8);
/// The brokers' own topic, which has the states of transactions.
const TRANSACTION_LOG: &str = "__transaction_state";
/// How long the reading of the progress may take.
const READ_MAX: Duration = Duration::from_secs(10);
/// How long each further answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Findings about the properties alone, without asking the brokers.
pub(super) fn settings(config: &KafkaConfig, pipeline: &str) -> Vec<Finding> {
    let (brokers, properties) = (&config.brokers, &config.properties.0);
    let is = |name: &str, value: &str| {
        properties.get(name).is_some_and(|known| known.trim().eq_ignore_ascii_case(value))
    };
    let set = |name: &str, value: &str| {
        format!("pipelines.{pipeline}.sink.properties.\"{name}\" = \"{value}\"")
    };
    let mut found = Vec::new();
    let protocol = "security.protocol";
    let plain = !properties.contains_key(protocol) || is(protocol, "plaintext");
    let sasl = is(protocol, "sasl_plaintext");
    let local = |broker: &str| {
        let host = broker.trim().rsplit_once(':').map_or(broker, |(host, _)| host.trim());
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    };
    if (plain || sasl) && !brokers.split(',').all(local) {
        found.push(
            Finding::warning(
                "broker_plaintext",
                format!("the connection to {brokers} is not encrypted"),
            )
            .why("an attacker on the network can read every event and, with SASL PLAIN, the password")
            .config(set(protocol, if sasl { "SASL_SSL" } else { "SSL" })),
        );
    }
    for (name, off, on) in [
        ("enable.ssl.certificate.verification", "false", "true"),
        ("ssl.endpoint.identification.algorithm", "none", "https"),
    ] {
        if is(name, off) {
            found.push(
                Finding::warning("broker_verify", format!("`{name}` is {off}"))
                    .why("an attacker on the network can take the broker's place")
                    .config(set(name, on)),
            );
        }
    }
    found
}

/// Looks. Whatever fails is a finding.
pub(super) fn check(spec: &KafkaSpec, topics: &[String], keyed: bool) -> Vec<Finding> {
    let shared = Arc::new(Shared::new(Mailbox::default()));
    let producer = match producer(spec, &shared) {
        Ok(producer) => producer,
        Err(error) => {
            return vec![
                Finding::error("sink_settings", Chain(&error).to_string()).why(error.hint()),
            ];
        }
    };
    let mut found = Vec::new();
    let Some(cluster) = producer.client().fetch_cluster_id(FIRST_ANSWER_MAX) else {
        found.push(unreachable(spec, shared.take_suspicion().as_ref()));
        return found;
    };
    found.push(Finding::ok(
        "broker",
        format!("connected to Kafka cluster {cluster} at {}, authentication OK", spec.brokers),
    ));
    for topic in topics {
        let ask = Ask { spec, producer: &producer, topic, keyed };
        ask.look(&mut found);
    }
    if let Some(transaction) = &spec.transaction {
        let ask = |topic| Ask { spec, producer: &producer, topic, keyed: true };
        ask(&transaction.progress_topic).look_at_progress(transaction, &mut found);
        ask(TRANSACTION_LOG).look_at_transactions(&mut found);
    }
    found
}

/// How long the topics keep records, where their configuration can be read.
pub(super) fn retentions(spec: &KafkaSpec, topics: &[String]) -> Vec<Retention> {
    let shared = Arc::new(Shared::new(Mailbox::default()));
    let Ok(producer) = producer(spec, &shared) else { return Vec::new() };
    let answers = producer.client().fetch_cluster_id(FIRST_ANSWER_MAX).is_some();
    let topics = topics.iter().filter(|topic| answers && is_topic_name(topic.as_bytes()));
    let retention = |topic: &String| {
        let name = CString::new(topic.as_str()).ok()?;
        let entries = native::topic_config(&producer, &name, ANSWER_MAX).ok()?;
        Some(Retention {
            destination: format!("topic \"{topic}\""),
            keeps: keeps(&entries.into_iter().collect()),
        })
    };
    topics.filter_map(retention).collect()
}

/// Whether each of the topics is compacted, as far as the brokers answer.
pub(super) fn compaction(spec: &KafkaSpec, topics: &[String]) -> BTreeMap<String, bool> {
    let shared = Arc::new(Shared::new(Mailbox::default()));
    let Ok(producer) = producer(spec, &shared) else { return BTreeMap::new() };
    let answers = producer.client().fetch_cluster_id(FIRST_ANSWER_MAX).is_some();
    let topics = topics.iter().filter(|topic| answers && is_topic_name(topic.as_bytes()));
    let compacts = |topic: &String| {
        let name = CString::new(topic.as_str()).ok()?;
        let entries = native::topic_config(&producer, &name, ANSWER_MAX).ok()?;
        let policy = entries.iter().find(|(name, _)| name == "cleanup.policy")?;
        Some((topic.clone(), policy.1.contains("compact")))
    };
    topics.filter_map(compacts).collect()
}

/// After which time a topic with this configuration deletes a record; `None` if age alone deletes none.
fn keeps(entries: &BTreeMap<String, String>) -> Option<Duration> {
    let deletes = entries.get("cleanup.policy").is_none_or(|policy| policy.contains("delete"));
    let millis: i64 = entries.get("retention.ms").filter(|_| deletes)?.parse().ok()?;
    // -1 is for ever.
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// The cluster's identifier, where a broker answers.
pub(super) fn cluster(spec: &KafkaSpec) -> Option<String> {
    let shared = Arc::new(Shared::new(Mailbox::default()));
    producer(spec, &shared).ok()?.client().fetch_cluster_id(FIRST_ANSWER_MAX)
}

/// Makes those of `topics` that do not exist, as `sink.create_topics` says. Whatever fails is a finding.
pub(super) fn create(spec: &KafkaSpec, topics: &[String]) -> Vec<Finding> {
    let shared = Arc::new(Shared::new(Mailbox::default()));
    let wanted = spec.create_topics.as_deref().map(TopicCreation::of).transpose();
    let (producer, wanted) = match (producer(spec, &shared), wanted) {
        (Ok(producer), Ok(wanted)) => (producer, wanted),
        (Err(error), _) | (_, Err(error)) => {
            let what = Chain(&error).to_string();
            return vec![Finding::error("sink_settings", what).why(error.hint())];
        }
    };
    if producer.client().fetch_cluster_id(FIRST_ANSWER_MAX).is_none() {
        return vec![unreachable(spec, shared.take_suspicion().as_ref())];
    }
    let mut creation = Creation::new(wanted);
    let mut found = Vec::new();
    for topic in topics {
        let looked = facts::look_up(&producer, topic, (ANSWER_MAX, ANSWER_MAX));
        found.push(match looked {
            Ok(_) => Finding::ok("topic", format!("topic \"{topic}\" exists")),
            Err(why) if why.does_not_exist() => match creation.make(&producer, topic, ANSWER_MAX) {
                Made::Yes => Finding::ok("topic", format!("topic \"{topic}\" was made")),
                Made::No | Made::Later => Finding::error(
                    "topic_missing",
                    format!(
                        "topic \"{topic}\" does not exist, and sink.create_topics does not create it"
                    ),
                ),
                Made::Not(why) => {
                    let Problem { reason, hint, .. } = topics::problem(topic, &why, &spec.brokers);
                    Finding::error("topic_missing", reason).why(hint.unwrap_or_default())
                }
            },
            Err(why) => {
                let what = format!("topic \"{topic}\" can't be used: {}", why.code);
                Finding::error("topic_unusable", what)
            }
        });
    }
    found
}

fn producer(spec: &KafkaSpec, shared: &Arc<Shared>) -> Result<Polled, OpenError> {
    let mut config = properties::client_config(spec)?;
    // Nothing is published, and nobody is fenced off.
    config.remove(TRANSACTIONAL_ID);
    // librdkafka's errors come by its error callback; its log would appear between the findings.
    config.set_log_level(RDKafkaLogLevel::Emerg);
    config.set("log_level", "0");
    Polled::make(&config, Context::new(Arc::clone(shared), Arc::default()))
}

fn unreachable(spec: &KafkaSpec, suspicion: Option<&Suspicion>) -> Finding {
    let Problem { reason, hint, .. } = health::of_broker(&spec.brokers, suspicion);
    let id = match suspicion.map(|suspicion| suspicion.code) {
        Some(Code::Authentication | Code::SaslAuthenticationFailed) => "broker_login",
        Some(Code::SSL) => "broker_tls",
        Some(_) | None => "broker_unreachable",
    };
    let why = format!(
        "nothing can be published; events wait in the database. {}",
        hint.unwrap_or_default()
    );
    let finding = Finding::error(id, reason).why(why);
    if id == "broker_unreachable" {
        let first = spec.brokers.split(',').next().unwrap_or_default().trim();
        let (host, port) = first.rsplit_once(':').unwrap_or((first, "9092"));
        return finding.shell(format!("nc -vz '{host}' {port}"));
    }
    finding
}

// One topic as its brokers have it: there, led, replicated, open to us, and with settings that take our records.

/// Replicas of a topic that survives the loss of a broker, where there are as many brokers.
const REPLICAS: usize = 3;
/// What a topic must take at least where nobody has set `payload.size_max`. Unit: bytes.
const SIZE_MIN: usize = 100_000;

/// What the pipeline does with the topic of the progress.
const PROGRESS_RIGHTS: &str = "--operation Read --operation Write --operation Describe";

/// One topic.
struct Ask<'a> {
    spec: &'a KafkaSpec,
    producer: &'a Producer,
    topic: &'a str,
    keyed: bool,
}

/// What the partitions of a topic show.
struct Shape {
    partitions: usize,
    brokers: usize,
    /// Of the partition with the fewest.
    replicas: usize,
    in_sync: usize,
    leaderless: usize,
}

impl Ask<'_> {
    fn look(&self, out: &mut Vec<Finding>) {
        let topic = self.topic;
        if !is_topic_name(topic.as_bytes()) {
            out.push(
                Finding::error("topic_name", format!("rows go to topic {topic:?}, which Kafka does not allow"))
                    .why("such an event can't be published: it is parked, and its aggregate waits. Change route.topic"),
            );
            return;
        }
        let Ok(name) = CString::new(topic) else { return };
        let shape = match self.shape() {
            Ok(shape) => shape,
            Err(finding) => {
                out.push(*finding);
                return;
            }
        };
        let before = out.len();
        self.replicas(&shape, out);
        let limit = match native::topic_config(self.producer, &name, ANSWER_MAX) {
            Ok(entries) => self.configured(&entries.into_iter().collect(), &shape, out),
            Err(code) => {
                out.push(
                    Finding::info("topic_config", format!("topic \"{topic}\" does not show its configuration: {code}"))
                        .why(format!(
                            "its size limit is taken to be Kafka's default of {BROKER_DEFAULT_BYTES} bytes; \
                             min.insync.replicas and cleanup.policy are not known"
                        ))
                        .shell(self.acls("--operation DescribeConfigs")),
                );
                BROKER_DEFAULT_BYTES
            }
        };
        self.write(&name, out);
        if out.len() == before {
            let count = |number: usize, word: &str| {
                format!("{number} {word}{}", if number == 1 { "" } else { "s" })
            };
            let partitions = count(shape.partitions, "partition");
            let replicas = count(shape.replicas, "replica");
            out.push(Finding::ok(
                "topic",
                format!("\"{topic}\": {partitions}, {replicas}, records up to {limit} bytes, write access OK"),
            ));
        }
    }

    fn shape(&self) -> Result<Shape, Box<Finding>> {
        let (topic, brokers) = (self.topic, &self.spec.brokers);
        let metadata =
            self.producer.client().fetch_metadata(Some(topic), ANSWER_MAX).map_err(|error| {
                Finding::error(
                    "broker_unreachable",
                    format!("no answer about topic \"{topic}\": {error}"),
                )
                .why("the brokers answered a moment ago: check again, and look at advertised.listeners")
            })?;
        let unusable = |code| {
            let why = Unusable { code, brokers: metadata.brokers().len() };
            let problem = health::of_topic(topic, why, brokers);
            self.missing(code, problem)
        };
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let found = found.ok_or_else(|| unusable(Code::UnknownTopicOrPartition))?;
        if let Some(error) = found.error() {
            return Err(unusable(error.into()).into());
        }
        Ok(shape(found, metadata.brokers().len()))
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "librdkafka's list is open: the rest is a topic in trouble"
    )]
    fn missing(&self, code: Code, problem: Option<Problem>) -> Finding {
        let (id, why) = match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => {
                if let Some(made) = self.made() {
                    return made;
                }
                (
                    "topic_missing",
                    "sink.create_topics does not create it: its events are parked until the topic exists",
                )
            }
            Code::TopicAuthorizationFailed => ("topic_write", "its events wait until we may write"),
            _ => ("topic_unusable", "its events wait until it is fixed"),
        };
        let topic = self.topic;
        match problem {
            Some(Problem { reason, hint: Some(hint), .. }) if id != "topic_unusable" => {
                Finding::error(id, reason).why(why).shell(self.with_login(hint))
            }
            Some(Problem { reason, hint, .. }) => {
                Finding::error(id, reason).why(format!("{why}; {}", hint.unwrap_or_default()))
            }
            None => Finding::error(id, format!("topic \"{topic}\" can't be used: {code}")).why(why),
        }
    }

    /// What is said of a topic that is missing and would be made; `None` where it would not. The broker is asked, and
    /// makes nothing.
    fn made(&self) -> Option<Finding> {
        let topic = self.topic;
        let wanted = TopicCreation::of(self.spec.create_topics.as_deref()?).ok()?;
        let name = CString::new(topic).ok().filter(|_| wanted.allows(topic))?;
        let asked = native::create_topic(self.producer, &name, &wanted.spec, true, ANSWER_MAX);
        Some(match asked {
            Ok(()) => Finding::ok(
                "topic",
                format!(
                    "topic \"{topic}\" does not exist, and is made with its first event: {}",
                    wanted.words()
                ),
            ),
            Err(why) => {
                let Problem { reason, hint, .. } = topics::problem(topic, &why, &self.spec.brokers);
                let hint = self.with_login(hint.unwrap_or_default());
                Finding::error("topic_missing", reason)
                    .why("its events wait, parked, until it exists")
                    .shell(hint)
            }
        })
    }

    fn replicas(&self, shape: &Shape, out: &mut Vec<Finding>) {
        let topic = self.topic;
        let describe = self.with_login(format!(
            "kafka-topics.sh --bootstrap-server {} --describe --topic {topic}",
            self.spec.brokers
        ));
        if shape.leaderless > 0 {
            let what = format!("{} partitions of \"{topic}\" have no leader", shape.leaderless);
            out.push(
                Finding::error("topic_unusable", what)
                    .why("their brokers are down: events with keys of theirs wait, and what is behind them")
                    .shell(describe),
            );
        } else if shape.in_sync < shape.replicas {
            out.push(
                Finding::warning(
                    "topic_under_replicated",
                    format!(
                        "topic \"{topic}\" has {} of {} replicas in step",
                        shape.in_sync, shape.replicas
                    ),
                )
                .why("one broker less, and records are refused or lost: see which broker is down")
                .shell(describe),
            );
        } else if shape.replicas < 2 && shape.brokers > 1 {
            out.push(
                Finding::warning("topic_replicas", format!("\"{topic}\" has 1 replica, of {} brokers", shape.brokers))
                    .why(format!(
                        "what is acknowledged, and confirmed to the database, is lost with that one broker; add \
                         replicas with kafka-reassign-partitions.sh, {} are usual",
                        shape.brokers.min(REPLICAS)
                    ))
                    .shell(describe),
            );
        }
    }

    /// What the topic's own configuration says; gives back the size it takes.
    fn configured(
        &self,
        entries: &BTreeMap<String, String>,
        shape: &Shape,
        out: &mut Vec<Finding>,
    ) -> usize {
        let topic = self.topic;
        let number = |name: &str| entries.get(name).and_then(|value| value.parse::<usize>().ok());
        self.insync(entries, shape, out);
        if entries.get("cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
            out.push(self.compacted());
        }
        let limit = number("max.message.bytes").unwrap_or(BROKER_DEFAULT_BYTES);
        let wanted = self.spec.size_max.unwrap_or(SIZE_MIN);
        if limit < wanted {
            // A record is more than its payload: room for key and headers.
            let room = wanted + wanted / 10 + 10_000;
            let set =
                if self.spec.size_max.is_some() { "payload.size_max" } else { "an ordinary event" };
            out.push(
                Finding::warning(
                    "topic_size",
                    format!("topic \"{topic}\" takes {limit} bytes, less than {set} ({wanted})"),
                )
                .why(if SizeLimits::compress(self.spec) {
                    "a larger event is published only if it compresses to less; else it is parked, its aggregate waits"
                } else {
                    "a larger event can't be published: it is parked, and its aggregate waits"
                })
                .shell(self.alter(&format!("max.message.bytes={room}"))),
            );
        }
        limit
    }

    /// How many replicas must have a record before it is acknowledged.
    fn insync(&self, entries: &BTreeMap<String, String>, shape: &Shape, out: &mut Vec<Finding>) {
        let topic = self.topic;
        let insync = entries.get("min.insync.replicas").and_then(|value| value.parse().ok());
        let insync: usize = insync.unwrap_or(1);
        if insync > shape.replicas {
            out.push(
                Finding::error(
                    "topic_min_insync",
                    format!(
                        "topic \"{topic}\" wants {insync} replicas in step and has {}",
                        shape.replicas
                    ),
                )
                .why("every record is refused")
                .shell(self.alter(&format!(
                    "min.insync.replicas={}",
                    shape.replicas.saturating_sub(1).max(1)
                ))),
            );
        } else if insync < 2 && shape.replicas > 1 {
            out.push(
                Finding::warning("topic_min_insync", format!("topic \"{topic}\" has min.insync.replicas = 1"))
                    .why("a record can be acknowledged, and confirmed to the database, with one broker having it")
                    .shell(self.alter("min.insync.replicas=2")),
            );
        }
    }

    /// The topic of the progress records.
    fn look_at_progress(&self, transaction: &KafkaTransaction, out: &mut Vec<Finding>) {
        let topic = self.topic;
        let before = out.len();
        let error = |what: String| Finding::error("progress_topic", what);
        let looked = facts::look_up(self.producer, topic, (ANSWER_MAX, ANSWER_MAX));
        let (shape, name) = match (looked, self.shape()) {
            (Ok(facts), Ok(shape)) => (shape, facts.name),
            (Err(why), _) if why.does_not_exist() => {
                let what = format!("topic \"{topic}\", which has the progress, does not exist");
                let why = "nothing is published until it exists";
                out.push(error(what).why(why).shell("postrider setup"));
                return;
            }
            (Err(why), _) => {
                let what = format!(
                    "topic \"{topic}\", which has the progress, can't be used: {}",
                    why.code
                );
                out.push(error(what).why("nothing is published").shell(self.acls(PROGRESS_RIGHTS)));
                return;
            }
            (Ok(_), Err(finding)) => {
                out.push(*finding);
                return;
            }
        };
        if shape.partitions != 1 {
            let what = format!(
                "topic \"{topic}\", which has the progress, has {} partitions",
                shape.partitions
            );
            out.push(error(what).why(
                "only partition 0 is used: choose another transaction.progress_topic, and run postrider setup",
            ));
        }
        self.replicas(&shape, out);
        if let Ok(entries) = native::topic_config(self.producer, &name, ANSWER_MAX) {
            let entries = entries.into_iter().collect();
            self.insync(&entries, &shape, out);
            if entries.get("cleanup.policy").is_some_and(|policy| policy != "compact") {
                let what = format!("topic \"{topic}\", which has the progress, is not compacted");
                out.push(
                    error(what)
                        .why("the broker deletes the progress of an idle pipeline, which then does not start")
                        .shell(self.alter("cleanup.policy=compact")),
                );
            }
        }
        self.write(&name, out);
        let began = Instant::now();
        let is_wanted = || began.elapsed() < READ_MAX;
        match progress::read(self.spec, transaction, self.producer, &is_wanted) {
            Ok(StoredProgress::Begun | StoredProgress::At(_)) => {}
            Ok(StoredProgress::Absent) => {
                let ProgressProblem { reason, hint } = progress::absent(self.spec, transaction);
                out.push(error(reason).why(hint).shell("postrider setup"));
            }
            Err(Some(ProgressProblem { reason, hint })) => out.push(error(reason).why(hint)),
            Err(None) => {
                out.push(error(format!(
                    "topic \"{topic}\" was not read to its end in {READ_MAX:?}"
                )));
            }
        }
        if out.len() == before {
            let what = format!("\"{topic}\" has the progress of \"{}\"", transaction.id);
            out.push(Finding::ok("progress_topic", what));
        }
    }

    /// The brokers' topic of transactions.
    fn look_at_transactions(&self, out: &mut Vec<Finding>) {
        let before = out.len();
        let Ok(shape) = self.shape() else {
            let what = "the brokers have made no transaction yet, or do not show their topic of transactions";
            out.push(
                Finding::info("transaction_log", what).why(
                    "it needs as many brokers as transaction.state.log.replication.factor says",
                ),
            );
            return;
        };
        self.replicas(&shape, out);
        let name = CString::new(self.topic).unwrap_or_default();
        if let Ok(entries) = native::topic_config(self.producer, &name, ANSWER_MAX) {
            self.insync(&entries.into_iter().collect(), &shape, out);
        }
        if out.len() == before {
            let s = if shape.replicas == 1 { "" } else { "s" };
            let what = format!(
                "transactions: the topic of their states has {} replica{s}",
                shape.replicas
            );
            out.push(Finding::ok("transaction_log", what));
        }
    }

    fn compacted(&self) -> Finding {
        let topic = self.topic;
        let finding = if self.keyed {
            Finding::warning("topic_compact", format!("topic \"{topic}\" is compacted"))
                .why("of the events of an aggregate only the last is kept: a consumer that is late misses the others")
        } else {
            Finding::error(
                "topic_compact",
                format!("topic \"{topic}\" is compacted, and records have no key"),
            )
            .why("the broker refuses every record without a key")
        };
        finding.shell(self.alter("cleanup.policy=delete"))
    }

    fn write(&self, name: &CString, out: &mut Vec<Finding>) {
        // A broker that does not say is no finding: the first record tells.
        let described = native::describe(self.producer, name, ANSWER_MAX);
        if described.is_ok_and(|described| described.may_write == Some(false)) {
            out.push(
                Finding::error(
                    "topic_write",
                    format!("we may not write to topic \"{}\"", self.topic),
                )
                .why("its events wait until we may")
                .shell(self.acls("--producer")),
            );
        }
    }

    fn alter(&self, setting: &str) -> String {
        self.with_login(format!(
            "kafka-configs.sh --bootstrap-server {} --alter --entity-type topics --entity-name {} \
             --add-config {setting}",
            self.spec.brokers, self.topic
        ))
    }

    fn acls(&self, what: &str) -> String {
        let user = self.spec.properties.get("sasl.username").map_or("ANONYMOUS", String::as_str);
        self.with_login(format!(
            "kafka-acls.sh --bootstrap-server {} --add --allow-principal User:{user} {what} --topic {}",
            self.spec.brokers, self.topic
        ))
    }

    /// Kafka's own programs read the login from a file.
    fn with_login(&self, command: String) -> String {
        let protocol = self.spec.properties.get("security.protocol");
        if protocol.is_some_and(|protocol| !protocol.eq_ignore_ascii_case("plaintext")) {
            format!("{command} --command-config client.properties")
        } else {
            command
        }
    }
}

fn shape(topic: &MetadataTopic, brokers: usize) -> Shape {
    let partitions = topic.partitions();
    let fewest = |count: fn(&rdkafka::metadata::MetadataPartition) -> usize| {
        partitions.iter().map(count).min().unwrap_or(0)
    };
    Shape {
        partitions: partitions.len(),
        brokers,
        replicas: fewest(|partition| partition.replicas().len()),
        in_sync: fewest(|partition| partition.isr().len()),
        leaderless: partitions.iter().filter(|partition| partition.leader() < 0).count(),
    }
}
