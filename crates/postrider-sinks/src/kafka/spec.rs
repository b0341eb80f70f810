//! What a Kafka sink is opened with, and why it can't be.

use super::transaction_spec::KafkaTransaction;
use postrider_core::secret_file::SecretFile;
use postrider_core::sink::SinkError;
use std::collections::BTreeMap;
use std::fmt;

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
    /// The transactions in which records are published; `None` where there are none.
    pub transaction: Option<Box<KafkaTransaction>>,
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
            .field("transaction", &self.transaction)
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
