//! What an intake is started with.

#[cfg(feature = "kafka")]
use crate::inbox::kafka::KafkaSourceConfig;
use crate::inbox::mapping::MessageRules;
#[cfg(feature = "nats")]
use crate::inbox::nats::NatsSourceConfig;
#[cfg(feature = "rabbitmq")]
use crate::inbox::rabbitmq::RabbitSourceConfig;
#[cfg(feature = "redis")]
use crate::inbox::redis::RedisSourceConfig;
use crate::inbox::store::InboxSpec;
use crate::inbox::webhook::WebhookConfig;

/// An intake: where messages come from, and the inbox that stores them.
#[derive(Clone, Debug)]
pub struct IntakeSpec {
    /// The name in the configuration.
    pub name: String,
    /// The inbox and its database.
    pub inbox: InboxSpec,
    /// Where messages come from.
    pub source: IntakeSource,
    /// How a record becomes a message.
    pub rules: MessageRules,
    /// Messages that are stored in one transaction at most.
    pub batch_messages: usize,
    /// Messages of the inbox that may wait to be processed: with more, nothing is read. `None`: any number.
    pub pending_max: Option<u64>,
}

/// Where messages come from.
#[derive(Clone, Debug)]
pub enum IntakeSource {
    /// Topics of Kafka.
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaSourceConfig>),
    /// A stream of NATS JetStream.
    #[cfg(feature = "nats")]
    Nats(Box<NatsSourceConfig>),
    /// A queue of RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    RabbitMq(Box<RabbitSourceConfig>),
    /// Streams of Redis.
    #[cfg(feature = "redis")]
    Redis(Box<RedisSourceConfig>),
    /// Webhooks.
    Webhook(Box<WebhookConfig>),
}

impl IntakeSource {
    /// The word of the configuration.
    pub const fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => "kafka",
            #[cfg(feature = "nats")]
            Self::Nats(_) => "nats",
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => "rabbitmq",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
            Self::Webhook(_) => "webhook",
        }
    }
}
