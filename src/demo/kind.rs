//! The kinds of brokers that a demo can publish to.

/// Where a demo publishes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are those of the servers")]
pub enum DemoSink {
    /// librdkafka's mock, or the brokers of `--brokers`.
    Kafka,
    Nats,
    RabbitMq,
    Redis,
    Valkey,
    /// A receiver in the process of the demo.
    Http,
}

impl DemoSink {
    /// `sink.kind` of the relay's configuration.
    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::RabbitMq => "rabbitmq",
            Self::Redis | Self::Valkey => "redis",
            Self::Http => "http",
        }
    }

    /// The name of the server.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kafka => "Kafka",
            Self::Nats => "NATS",
            Self::RabbitMq => "RabbitMQ",
            Self::Redis => "Redis",
            Self::Valkey => "Valkey",
            Self::Http => "HTTP receiver",
        }
    }

    /// The server's program and the variable that names its path; `None` if the broker is in the demo's process.
    pub(super) const fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Kafka | Self::Http => None,
            Self::Nats => Some(("nats-server", "POSTRIDER_NATS_SERVER")),
            Self::RabbitMq => Some(("rabbitmq-server", "POSTRIDER_RABBITMQ_SERVER")),
            Self::Redis => Some(("redis-server", "POSTRIDER_REDIS_SERVER")),
            Self::Valkey => Some(("valkey-server", "POSTRIDER_VALKEY_SERVER")),
        }
    }

    /// How to get the server's program.
    pub(super) const fn hint(self) -> &'static str {
        match self {
            Self::Nats => {
                "package nats-server (Debian, Ubuntu): apt-get update && apt-get install -y nats-server; or set \
                 POSTRIDER_NATS_SERVER to the program; in a clone of the repository, scripts/demo fetches it"
            }
            Self::RabbitMq => {
                "package rabbitmq-server (Debian, Ubuntu): apt-get update && apt-get install -y rabbitmq-server; or \
                 set POSTRIDER_RABBITMQ_SERVER to the program; in a clone of the repository, scripts/demo fetches it"
            }
            Self::Redis => {
                "package redis-server (Debian, Ubuntu): apt-get update && apt-get install -y redis-server; or set \
                 POSTRIDER_REDIS_SERVER to the program; in a clone of the repository, scripts/demo fetches it"
            }
            Self::Valkey => {
                "package valkey-server (Debian 13, Ubuntu 24.04): apt-get update && apt-get install -y valkey-server; \
                 or set POSTRIDER_VALKEY_SERVER to the program; in a clone of the repository, scripts/demo fetches it"
            }
            Self::Kafka | Self::Http => "no server program is needed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_a_hint_that_names_its_package_and_its_variable() {
        for sink in [DemoSink::Nats, DemoSink::RabbitMq, DemoSink::Redis, DemoSink::Valkey] {
            let (program, variable) = sink.program().unwrap();
            assert!(sink.hint().contains(variable), "{sink:?}");
            assert!(sink.hint().contains(&format!("apt-get install -y {program}")), "{sink:?}");
        }
    }
}
