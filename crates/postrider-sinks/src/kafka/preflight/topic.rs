//! One topic as its brokers have it: there, led, replicated, open to us, and with settings that take our records.

use super::ANSWER_MAX;
use crate::KafkaSpec;
use crate::kafka::creation::{self, Wanted};
use crate::kafka::sizes::Sizes;
use crate::kafka::topic::{BROKER_DEFAULT_BYTES, Unusable};
use crate::kafka::trouble::{self, Trouble};
use crate::kafka::{Producer, native};
use postrider_core::finding::Finding;
use postrider_core::record::is_topic_name;
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::BTreeMap;
use std::ffi::CString;

/// Replicas of a topic that survives the loss of a broker, where there are as many brokers.
const REPLICAS: usize = 3;
/// What a topic must take at least where nobody has set `payload.size_max`. Unit: bytes.
const SIZE_MIN: usize = 100_000;

/// One topic.
pub(super) struct Ask<'a> {
    pub(super) spec: &'a KafkaSpec,
    pub(super) producer: &'a Producer,
    pub(super) topic: &'a str,
    pub(super) keyed: bool,
}

/// What a topic's partitions say.
struct Shape {
    partitions: usize,
    brokers: usize,
    /// Of the partition with the fewest.
    replicas: usize,
    in_sync: usize,
    leaderless: usize,
}

impl Ask<'_> {
    pub(super) fn look(&self, out: &mut Vec<Finding>) {
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
            let trouble = trouble::of_topic(topic, why, brokers);
            self.missing(code, trouble)
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
    fn missing(&self, code: Code, trouble: Option<Trouble>) -> Finding {
        let (id, why) = match code {
            Code::UnknownTopicOrPartition | Code::UnknownTopic => {
                if let Some(made) = self.made() {
                    return made;
                }
                (
                    "topic_missing",
                    "sink.create_topics does not make it: its events wait, parked, until somebody does",
                )
            }
            Code::TopicAuthorizationFailed => ("topic_write", "its events wait until we may write"),
            _ => ("topic_unusable", "its events wait until it is mended"),
        };
        let topic = self.topic;
        match trouble {
            Some(Trouble { reason, hint: Some(hint), .. }) if id != "topic_unusable" => {
                Finding::error(id, reason).why(why).shell(self.with_login(hint))
            }
            Some(Trouble { reason, hint, .. }) => {
                Finding::error(id, reason).why(format!("{why}; {}", hint.unwrap_or_default()))
            }
            None => Finding::error(id, format!("topic \"{topic}\" can't be used: {code}")).why(why),
        }
    }

    /// What is said of a topic that is missing and would be made; `None` where it would not. The broker is asked, and
    /// makes nothing.
    fn made(&self) -> Option<Finding> {
        let topic = self.topic;
        let wanted = Wanted::of(self.spec.create_topics.as_deref()?).ok()?;
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
                let Trouble { reason, hint, .. } =
                    creation::trouble(topic, &why, &self.spec.brokers);
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
        let insync = number("min.insync.replicas").unwrap_or(1);
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
                .why(if Sizes::compress(self.spec) {
                    "a larger event is published only if it compresses to less; else it is parked, its aggregate waits"
                } else {
                    "a larger event can't be published: it is parked, and its aggregate waits"
                })
                .shell(self.alter(&format!("max.message.bytes={room}"))),
            );
        }
        limit
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
