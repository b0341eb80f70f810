//! What `postrider check` asks the brokers: do they answer, do they take us, and would each topic take our records.
//!
//! Nothing is published and nothing changed: metadata, a topic's configuration, and the broker's own word on what we
//! may do. Made of the same producer and the same questions as the sink, so that what is well here is well there.

mod topic;

use super::context::Context;
use super::creation::{self, Creation, Made, Wanted};
use super::polled::Polled;
use super::properties;
use super::shared::{Shared, Suspicion};
use super::topic as facts;
use super::trouble::{self, Trouble};
use crate::{KafkaSpec, Mailbox, SinkError};
use postrider_core::error::Chain;
use postrider_core::finding::Finding;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::Arc;
use std::time::Duration;
use topic::Ask;

/// How long the brokers may take to answer the first question: name, TCP, TLS and login are in it.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(8);
/// How long each further answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What the properties say, without a look at the brokers.
pub(crate) fn settings(spec: &KafkaSpec, pipeline: &str) -> Vec<Finding> {
    let is = |name: &str, value: &str| {
        spec.properties.get(name).is_some_and(|known| known.trim().eq_ignore_ascii_case(value))
    };
    let set = |name: &str, value: &str| {
        format!("pipelines.{pipeline}.sink.properties.\"{name}\" = \"{value}\"")
    };
    let mut found = Vec::new();
    let protocol = "security.protocol";
    let plain = !spec.properties.contains_key(protocol) || is(protocol, "plaintext");
    let sasl = is(protocol, "sasl_plaintext");
    let local = |broker: &str| {
        let host = broker.trim().rsplit_once(':').map_or(broker, |(host, _)| host.trim());
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    };
    if (plain || sasl) && !spec.brokers.split(',').all(local) {
        found.push(
            Finding::warning(
                "broker_plaintext",
                format!("the connection to {} is not encrypted", spec.brokers),
            )
            .why("whoever is on the way reads every event and, with SASL PLAIN, the password")
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
                    .why("whoever gets in between can take the broker's place")
                    .config(set(name, on)),
            );
        }
    }
    found
}

/// Looks. Whatever fails is a finding.
pub(crate) fn look(spec: &KafkaSpec, topics: &[String], keyed: bool) -> Vec<Finding> {
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
        found.push(unreachable(spec, shared.heard().as_ref()));
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
    found
}

/// The cluster's identifier, where a broker answers.
pub(crate) fn cluster(spec: &KafkaSpec) -> Option<String> {
    let shared = Arc::new(Shared::new(Mailbox::default()));
    producer(spec, &shared).ok()?.client().fetch_cluster_id(FIRST_ANSWER_MAX)
}

/// Makes those of `topics` that do not exist, as `sink.create_topics` says. Whatever fails is a finding.
pub(crate) fn create(spec: &KafkaSpec, topics: &[String]) -> Vec<Finding> {
    let shared = Arc::new(Shared::new(Mailbox::default()));
    let wanted = spec.create_topics.as_deref().map(Wanted::of).transpose();
    let (producer, wanted) = match (producer(spec, &shared), wanted) {
        (Ok(producer), Ok(wanted)) => (producer, wanted),
        (Err(error), _) | (_, Err(error)) => {
            let what = Chain(&error).to_string();
            return vec![Finding::error("sink_settings", what).why(error.hint())];
        }
    };
    if producer.client().fetch_cluster_id(FIRST_ANSWER_MAX).is_none() {
        return vec![unreachable(spec, shared.heard().as_ref())];
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
                        "topic \"{topic}\" does not exist, and sink.create_topics does not make it"
                    ),
                ),
                Made::Not(why) => {
                    let Trouble { reason, hint, .. } =
                        creation::trouble(topic, &why, &spec.brokers);
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

fn producer(spec: &KafkaSpec, shared: &Arc<Shared>) -> Result<Polled, SinkError> {
    let mut config = properties::client_config(spec)?;
    // What librdkafka has to say comes by its error callback; its log would stand between the findings.
    config.set_log_level(RDKafkaLogLevel::Emerg);
    config.set("log_level", "0");
    Polled::make(&config, Context::new(Arc::clone(shared), Arc::default()))
}

fn unreachable(spec: &KafkaSpec, heard: Option<&Suspicion>) -> Finding {
    let Trouble { reason, hint, .. } = trouble::of_broker(&spec.brokers, heard);
    let id = match heard.map(|heard| heard.code) {
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
