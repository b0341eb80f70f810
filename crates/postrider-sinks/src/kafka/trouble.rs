//! What to tell when a broker or a topic can't take records, and what mends it.

use super::shared::Suspicion;
use super::topic::Unusable;
use crate::SinkError;
use postrider_core::error::Chain;
use rdkafka::types::RDKafkaErrorCode as Code;
use std::time::Duration;

/// One thing that is wrong, as it is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Trouble {
    pub(super) about: About,
    pub(super) reason: String,
    pub(super) hint: Option<String>,
}

/// What is in trouble, which decides what ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum About {
    /// No broker answers.
    Broker,
    /// A topic can't be used.
    Topic,
    /// Brokers answer, but acknowledge nothing.
    Stall,
}

/// Replicas of a topic that survives the loss of a broker without a halt, where there are as many brokers.
const REPLICAS: usize = 3;

/// The answer to a look-up that failed: the topic's fault, or the broker's (`None`).
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: what does not blame the topic is the broker's"
)]
pub(super) fn of_topic(topic: &str, why: Unusable, brokers: &str) -> Option<Trouble> {
    let (reason, hint) = match why.code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => (
            format!("topic \"{topic}\" does not exist"),
            format!(
                "kafka-topics.sh --bootstrap-server {brokers} --create --topic {topic} \
                 --partitions 8 --replication-factor {}",
                if why.brokers == 0 { REPLICAS } else { why.brokers.min(REPLICAS) }
            ),
        ),
        Code::TopicAuthorizationFailed => (
            format!("topic \"{topic}\" is not open to us"),
            format!(
                "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:NAME \
                 --producer --topic {topic}"
            ),
        ),
        Code::InvalidTopic => (
            format!("the broker does not allow the topic name \"{topic}\""),
            "change `route.topic`".to_owned(),
        ),
        Code::LeaderNotAvailable => (
            format!("topic \"{topic}\" has no leader yet"),
            "wait, or see why its brokers are down".to_owned(),
        ),
        _ => return None,
    };
    Some(Trouble { about: About::Topic, reason, hint: Some(hint) })
}

/// No broker answers: what librdkafka said of it, where it said something.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: the rest is a connection that fails"
)]
pub(super) fn of_broker(brokers: &str, said: Option<&Suspicion>) -> Trouble {
    let (reason, hint) = match said {
        // A listener that wants TLS or SASL closes a connection that begins without, and nothing else is heard.
        None | Some(Suspicion { code: Code::AllBrokersDown, .. }) => (
            format!("no answer from the brokers at {brokers}"),
            "check `sink.brokers`, `security.protocol`, the network, and that the brokers run"
                .to_owned(),
        ),
        Some(Suspicion { code, reason }) => match code {
            Code::Authentication | Code::SaslAuthenticationFailed => (
                format!("the brokers at {brokers} refuse our login: {reason}"),
                "check `sasl.username`, `sasl.password` and `sasl.mechanism`".to_owned(),
            ),
            Code::SSL => (
                format!("no TLS connection to the brokers at {brokers}: {reason}"),
                "check `ssl.ca.location` and that the certificate names this host".to_owned(),
            ),
            Code::Resolve => (
                format!("the brokers at {brokers} have no address: {reason}"),
                "check the host names in `sink.brokers` and the broker's advertised.listeners"
                    .to_owned(),
            ),
            _ => (
                format!("no connection to the brokers at {brokers}: {reason}"),
                "check `sink.brokers`, `security.protocol`, the network, and that the brokers run"
                    .to_owned(),
            ),
        },
    };
    Trouble { about: About::Broker, reason, hint: Some(hint) }
}

/// No producer can be made of the files of secrets, certificates and keys.
pub(super) fn of_files(error: &SinkError) -> Trouble {
    let reason =
        format!("the changed files of secrets or certificates do not fit: {}", Chain(error));
    Trouble { about: About::Broker, reason, hint: Some(error.hint()) }
}

/// Brokers answer, but for a while nothing was acknowledged.
pub(super) fn of_stall(after: Duration) -> Trouble {
    Trouble {
        about: About::Stall,
        reason: format!("the broker has acknowledged nothing for more than {} s", after.as_secs()),
        hint: Some(
            "look for partitions below min.insync.replicas: \
             kafka-topics.sh --describe --under-min-isr-partitions"
                .to_owned(),
        ),
    }
}
