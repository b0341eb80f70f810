//! Consumers of the brokers other than Kafka, for the demo's reader and for the bench (`benches/suite`). They are
//! written for plain sockets and share no code with the sinks, so that a fault of a sink is not repeated here.

mod amqp;
mod nats;
mod receiver;
mod redis;
mod wire;

use amqp::AmqpConsumer;
use nats::NatsConsumer;
use redis::RedisConsumer;
use std::io;
use std::time::Duration;

pub(super) use receiver::WebhookReceiver;
pub(super) use wire::{BrokerLogin, ConsumedMessage};

/// What is read.
#[derive(Clone, Debug)]
pub(super) enum ConsumedPlace {
    /// A stream of JetStream.
    Nats(String),
    /// A stream of Redis or Valkey.
    Redis(String),
    /// A queue of RabbitMQ. The messages stay in one of type `stream`, and are taken out of another one.
    RabbitMq { queue: String, is_stream: bool },
}

enum OpenConsumer {
    Nats(NatsConsumer),
    Redis(RedisConsumer),
    RabbitMq(AmqpConsumer),
}

/// A consumer that connects when it is polled, and again after an error, behind the last message that it returned.
pub(super) struct BrokerConsumer {
    login: BrokerLogin,
    place: ConsumedPlace,
    connection: Option<OpenConsumer>,
    /// The last sequence of JetStream, or the next offset of RabbitMQ.
    number: u64,
    /// The last ID of Redis.
    id: String,
}

impl BrokerConsumer {
    /// From the beginning. Nothing is connected yet.
    pub(super) fn new(login: BrokerLogin, place: ConsumedPlace) -> Self {
        Self { login, place, connection: None, number: 0, id: "0".to_owned() }
    }

    /// Connects if there is no connection.
    ///
    /// # Errors
    /// The server does not answer, refuses the login, or does not have the place.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        if self.connection.is_some() {
            return Ok(());
        }
        let (login, number) = (&self.login, self.number);
        self.connection = Some(match &self.place {
            ConsumedPlace::Nats(stream) => {
                OpenConsumer::Nats(NatsConsumer::open(login, stream, number)?)
            }
            ConsumedPlace::Redis(stream) => {
                OpenConsumer::Redis(RedisConsumer::open(login, stream, self.id.clone())?)
            }
            ConsumedPlace::RabbitMq { queue, is_stream } => {
                OpenConsumer::RabbitMq(AmqpConsumer::open(login, queue, *is_stream, number)?)
            }
        });
        Ok(())
    }

    /// The next messages; none if none arrived within `wait`.
    ///
    /// # Errors
    /// The connection was lost, or could not be made. The next call connects again.
    pub(super) fn poll(&mut self, wait: Duration) -> io::Result<Vec<ConsumedMessage>> {
        let polled = self.connect().and_then(|()| match &mut self.connection {
            None => Ok(Vec::new()),
            Some(OpenConsumer::Nats(consumer)) => {
                let messages = consumer.poll(wait);
                self.number = consumer.last;
                messages
            }
            Some(OpenConsumer::Redis(consumer)) => {
                let messages = consumer.poll(wait);
                self.id.clone_from(&consumer.last);
                messages
            }
            Some(OpenConsumer::RabbitMq(consumer)) => {
                let messages = consumer.poll(wait);
                self.number = consumer.next;
                messages
            }
        });
        if polled.is_err() {
            self.connection = None;
        }
        polled
    }
}

/// Whether the server accepts the login: it has started.
///
/// # Errors
/// It does not answer, or refuses the login.
pub(super) fn log_in(login: &BrokerLogin, place: &ConsumedPlace) -> io::Result<()> {
    match place {
        ConsumedPlace::Nats(_) => NatsConsumer::log_in(login).map(drop),
        ConsumedPlace::Redis(_) => RedisConsumer::log_in(login).map(drop),
        ConsumedPlace::RabbitMq { .. } => AmqpConsumer::log_in(login).map(drop),
    }
}
