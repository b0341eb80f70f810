//! A consumer of a queue: messages of RabbitMQ, and their acknowledgements. `postrider inbox run` reads with it.
//!
//! A queue that has a consumer is not read: what that consumer has is in front of what another one would get. When its
//! connection ends, the server puts what was not acknowledged back in front, in its order. Exclusive consumers would do
//! the same, but quorum queues do not have them.

use super::codec::{
    CONSUME_OK, DeliveredProperties, MESSAGE_ID, QOS_OK, QueueCounts, TYPE, put_counted,
    put_method, put_short,
};
use super::config::RabbitConfig;
use super::link::{AmqpLink, DeliveredMessage, LinkEvent, PUBLISH};
use super::problem::{ACCESS_REFUSED, NOT_FOUND, RabbitProblem, RabbitStep, in_words_of_sources};
use super::spec::RabbitSpec;
use postrider_core::finding::shell_word;
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

/// A header that messages of a queue of type stream have.
const STREAM_OFFSET: &[u8] = b"x-stream-offset";

/// The header with the time in milliseconds: RabbitMQ's own name for it.
const TIME_HEADER: &[u8] = b"timestamp_in_ms";

/// The longest time for writing acknowledgements.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// Bytes of messages that have come and were not taken: with more, nothing is read from the connection.
const COME_BYTES_MAX: usize = 32 << 20;

/// Bytes of a message in memory beside its texts.
const HELD_BYTES: usize = 300;

/// Messages that follow each other within this time are taken together.
const GAP_MAX: Duration = Duration::from_millis(2);

/// The queue that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueWanted {
    /// Its name.
    pub queue: String,
    /// Messages that are delivered and not acknowledged, at most.
    pub prefetch: u16,
}

/// What a queue or its server does not do, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RabbitConsumerProblem {
    /// What is wrong, in one line.
    pub reason: String,
    /// What fixes it.
    pub hint: Option<String>,
    /// Nothing is wrong: another connection reads the queue.
    pub is_taken: bool,
}

impl From<RabbitProblem> for RabbitConsumerProblem {
    fn from(problem: RabbitProblem) -> Self {
        let hint = problem.hint.unwrap_or_else(|| {
            "start the server, or correct source.rabbitmq.url and, with TLS, ca_file: the host has to be the name in \
             the server's certificate; the intake connects again automatically"
                .to_owned()
        });
        // The command of the sink would replace the rights by those of a publisher.
        let hint = if problem.step == RabbitStep::Open && problem.code.is_some() {
            "create the virtual host, or correct it in source.rabbitmq.url, and let the user read the queue: \
             rabbitmqctl set_permissions -p VHOST USER '^$' '^$' '^QUEUE$' (the command replaces the user's rights)"
                .to_owned()
        } else {
            in_words_of_sources(&hint)
        };
        Self { reason: problem.reason, hint: Some(hint), is_taken: false }
    }
}

/// A message. `Debug` shows no content.
pub struct RabbitDelivery {
    /// Its number on the connection.
    pub tag: u64,
    /// The exchange that it was published to.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// The property `message-id`; `None` if it is absent or empty.
    pub message_id: Option<String>,
    /// When the event happened, as header or property say it. Unit: milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
    /// Further properties that are texts.
    pub properties: Vec<(&'static str, String)>,
    /// Name and value of each header. The property `type` is one of them if no header is called so.
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Its content.
    pub body: Vec<u8>,
}

impl fmt::Debug for RabbitDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitDelivery").field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

impl RabbitDelivery {
    /// Approximate size in memory. Unit: bytes.
    fn size_bytes(&self) -> usize {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let headers: usize =
            self.headers.iter().map(|(name, text)| name.len() + value(text) + 48).sum();
        headers + self.body.len() + self.routing_key.len() + HELD_BYTES
    }

    fn of(message: DeliveredMessage) -> Self {
        let DeliveredMessage { to, properties, body, .. } = message;
        let DeliveredProperties { mut texts, timestamp, mut headers } =
            properties.unwrap_or_default();
        let mut take = |name: &str| {
            let at = texts.iter().position(|(known, text)| *known == name && !text.is_empty())?;
            Some(texts.remove(at).1)
        };
        let (message_id, kind) = (take(MESSAGE_ID), take(TYPE));
        if let Some(kind) = kind
            && !headers.iter().any(|(name, _)| name == TYPE.as_bytes())
        {
            headers.push((TYPE.as_bytes().to_vec(), Some(kind.into_bytes())));
        }
        let time = headers.iter().rposition(|(name, _)| name == TIME_HEADER);
        let of_header = time.and_then(|at| number(headers.get(at)?.1.as_deref()?));
        if of_header.is_some()
            && let Some(at) = time
        {
            headers.remove(at);
        }
        let seconds = timestamp.and_then(|seconds| i64::try_from(seconds).ok());
        let of_property = seconds.and_then(|seconds| seconds.checked_mul(1_000));
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            tag: to.tag,
            exchange: lossy(&to.exchange),
            routing_key: lossy(&to.routing_key),
            message_id,
            timestamp_ms: of_header.or(of_property),
            properties: texts,
            headers,
            body,
        }
    }
}

fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A queue at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RabbitConsumerState {
    /// Messages that are not delivered.
    pub not_delivered: u64,
}

/// A connection that reads one queue.
pub struct RabbitConsumer {
    link: AmqpLink,
    spec: RabbitSpec,
    wanted: QueueWanted,
    /// What has come and was not taken.
    come: VecDeque<RabbitDelivery>,
    come_bytes: usize,
}

impl fmt::Debug for RabbitConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitConsumer").field("queue", &self.wanted.queue).finish_non_exhaustive()
    }
}

impl RabbitConsumer {
    /// Connects to one of the servers and begins to read. `attempt` chooses the server that is tried first, `name` is
    /// that of the connection.
    ///
    /// # Errors
    /// No server can be used, the queue does not exist, or it has a consumer.
    pub async fn open(
        config: &RabbitConfig,
        wanted: &QueueWanted,
        name: &str,
        attempt: usize,
    ) -> Result<Self, RabbitConsumerProblem> {
        Self::connect(config, wanted, name, attempt).await?.begun().await
    }

    /// Looks whether the queue exists, and reads nothing. Returns what was found, in words.
    ///
    /// # Errors
    /// No server can be used, or the queue does not exist.
    pub async fn look(
        config: &RabbitConfig,
        wanted: &QueueWanted,
    ) -> Result<String, RabbitConsumerProblem> {
        let mut consumer = Self::connect(config, wanted, "check", 0).await?;
        let looked = consumer.link.queue(&wanted.queue, &consumer.spec).await?;
        let looked = match looked {
            Ok(counts) => Ok(format!(
                "queue {:?} has {} messages and {} consumers",
                wanted.queue, counts.messages, counts.consumers
            )),
            Err(close) => {
                let problem = RabbitProblem::closed(RabbitStep::Queue, &close, &consumer.spec);
                Err(consumer.refused(problem))
            }
        };
        consumer.close().await;
        looked
    }

    async fn connect(
        config: &RabbitConfig,
        wanted: &QueueWanted,
        name: &str,
        attempt: usize,
    ) -> Result<Self, RabbitConsumerProblem> {
        let spec = config.source_spec(name).map_err(|error| RabbitConsumerProblem {
            reason: error.to_string(),
            hint: Some(in_words_of_sources(error.hint())),
            is_taken: false,
        })?;
        let hosts = &spec.address.hosts;
        let mut problem = None;
        for turn in 0..hosts.len() {
            let Some(host) = hosts.get((attempt + turn) % hosts.len()) else { continue };
            match AmqpLink::open(&spec, host).await {
                Ok(link) => {
                    let (spec, wanted) = (spec.clone(), wanted.clone());
                    return Ok(Self { link, spec, wanted, come: VecDeque::new(), come_bytes: 0 });
                }
                Err(why) => problem = Some(why),
            }
        }
        let none = || RabbitProblem::new(RabbitStep::Connect, "no server is named", None);
        Err(problem.unwrap_or_else(none).into())
    }

    /// Begins to read.
    async fn begun(mut self) -> Result<Self, RabbitConsumerProblem> {
        self.link.consumes();
        self.has_consumers(0).await?;
        let QueueWanted { queue, prefetch } = self.wanted.clone();
        let qos = |out: &mut Vec<u8>| {
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&prefetch.to_be_bytes());
            out.push(0);
        };
        self.link.set_up((60, 10), QOS_OK, &self.spec, qos).await?;
        let consume = |out: &mut Vec<u8>| {
            out.extend_from_slice(&[0, 0]);
            put_short(out, queue.as_bytes());
            put_short(out, b"");
            // Messages are acknowledged.
            out.push(0);
            put_counted(out, |_| ());
        };
        let begun = self.link.set_up((60, 20), CONSUME_OK, &self.spec, consume).await;
        begun.map_err(|problem| self.refused(problem))?;
        // Another one may have begun at the same time.
        self.has_consumers(1).await?;
        Ok(self)
    }

    /// Whether the queue has so many consumers at most.
    ///
    /// # Errors
    /// It has more, or does not exist.
    async fn has_consumers(&mut self, most: u32) -> Result<(), RabbitConsumerProblem> {
        let queue = &self.wanted.queue;
        match self.link.queue(queue, &self.spec).await? {
            Ok(QueueCounts { consumers, .. }) if consumers <= most => Ok(()),
            Ok(_) => {
                let reason = format!(
                    "another connection reads queue {queue:?}: waiting until the server has ended it, so that what it \
                     has is in its place again"
                );
                Err(RabbitConsumerProblem { reason, hint: None, is_taken: true })
            }
            Err(close) => {
                let problem = RabbitProblem::closed(RabbitStep::Queue, &close, &self.spec);
                Err(self.refused(problem))
            }
        }
    }

    /// Why the server lets the queue not be read.
    fn refused(&self, problem: RabbitProblem) -> RabbitConsumerProblem {
        let (queue, vhost) = (&self.wanted.queue, &self.spec.address.vhost);
        let (queue_word, vhost_word) = (shell_word(queue), shell_word(vhost));
        let hint = match problem.code {
            Some(NOT_FOUND) => format!(
                "create the queue, and bind it: rabbitmqadmin --vhost {vhost_word} queues declare --name {queue_word} \
                 --type quorum --durable true --arguments '{{\"x-delivery-limit\": -1}}'; the intake continues \
                 automatically"
            ),
            Some(ACCESS_REFUSED) => format!(
                "let the user read the queue: rabbitmqctl set_permissions -p {vhost_word} {} '^$' '^$' '^{}$', which \
                 replaces the rights that the user has",
                shell_word(self.spec.address.user_shown()),
                queue.replace('.', "\\.")
            ),
            Some(_) | None => return problem.into(),
        };
        RabbitConsumerProblem { hint: Some(hint), ..problem.into() }
    }

    /// The next message that has come.
    pub fn take_next(&mut self) -> Option<RabbitDelivery> {
        let delivery = self.come.pop_front()?;
        self.come_bytes = self.come_bytes.saturating_sub(delivery.size_bytes());
        Some(delivery)
    }

    /// Waits until messages have come, and takes those in that follow at once. Cancel-safe: what has come is kept.
    ///
    /// # Errors
    /// The connection is lost, or the server has ended the consumer.
    pub async fn wait(&mut self, wait: Duration) -> Result<(), RabbitConsumerProblem> {
        let end = Instant::now() + wait;
        while self.come.is_empty() && Instant::now() < end {
            self.turn(end).await?;
        }
        let end = end.min(Instant::now() + GAP_MAX);
        while !self.come.is_empty() && self.come_bytes < COME_BYTES_MAX && Instant::now() < end {
            self.turn(end).await?;
        }
        Ok(())
    }

    /// Keeps the connection alive for some time. Cancel-safe.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub async fn idle(&mut self, time: Duration) -> Result<(), RabbitConsumerProblem> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn(end).await?;
        }
        Ok(())
    }

    /// Reads or writes once, at most until `end`.
    async fn turn(&mut self, end: Instant) -> Result<(), RabbitConsumerProblem> {
        self.link.set_reads(self.come_bytes < COME_BYTES_MAX);
        let until = end.min(self.link.beats_at());
        let pause = until.saturating_duration_since(Instant::now());
        match tokio::time::timeout(pause, self.link.turn(&self.spec)).await {
            Ok(done) => done?,
            Err(_elapsed) => self.link.beat()?,
        }
        while let Some(event) = self.link.next_event() {
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: LinkEvent) -> Result<(), RabbitConsumerProblem> {
        match event {
            LinkEvent::Delivered(message) => {
                let delivery = RabbitDelivery::of(message);
                if delivery.headers.iter().any(|(name, _)| name == STREAM_OFFSET) {
                    return Err(self.is_stream());
                }
                self.come_bytes += delivery.size_bytes();
                self.come.push_back(delivery);
                Ok(())
            }
            LinkEvent::Cancelled => {
                let reason = format!(
                    "RabbitMQ has ended the consumer of queue {:?}: the queue was deleted, or has another leader",
                    self.wanted.queue
                );
                let hint = "the sink connects again automatically".to_owned();
                Err(RabbitProblem::new(RabbitStep::Consume, reason, Some(hint)).into())
            }
            LinkEvent::ChannelClosed(_, close) => {
                Err(RabbitProblem::closed(RabbitStep::Consume, &close, &self.spec).into())
            }
            // Of publishers.
            LinkEvent::Confirmed { .. }
            | LinkEvent::Returned(_)
            | LinkEvent::Blocked(_)
            | LinkEvent::Unblocked => Ok(()),
        }
    }

    fn is_stream(&self) -> RabbitConsumerProblem {
        let reason = format!(
            "queue {:?} is a stream, which does not remember what was acknowledged: messages would be passed over",
            self.wanted.queue
        );
        let hint = "let source.rabbitmq.queue name a queue of type quorum or classic".to_owned();
        RabbitProblem::new(RabbitStep::Consume, reason, Some(hint)).into()
    }

    /// Acknowledges all messages up to this one. The server does not answer.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn acknowledge(&mut self, tag: u64) -> Result<(), RabbitConsumerProblem> {
        put_method(self.link.out(), PUBLISH, (60, 80), |out| {
            out.extend_from_slice(&tag.to_be_bytes());
            // Multiple.
            out.push(1);
        });
        let end = Instant::now() + WRITE_MAX;
        while self.link.unwritten() > 0 {
            self.turn(end).await?;
            if Instant::now() >= end {
                let reason = format!("{} takes no acknowledgement", self.link.host());
                return Err(RabbitProblem::new(RabbitStep::Consume, reason, None).into());
            }
        }
        Ok(())
    }

    /// The queue now; what has come meanwhile is kept.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn state(&mut self) -> Result<RabbitConsumerState, RabbitConsumerProblem> {
        self.link.set_reads(true);
        let counts = self.link.queue(&self.wanted.queue, &self.spec).await?;
        let counts =
            counts.map_err(|close| RabbitProblem::closed(RabbitStep::Queue, &close, &self.spec))?;
        Ok(RabbitConsumerState { not_delivered: counts.messages.into() })
    }

    /// Ends the connection: the server puts what is not acknowledged back.
    pub async fn close(self) {
        self.link.close(&self.spec).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_has_id_type_and_time_of_its_properties_or_headers() {
        let message = |headers: Vec<(&str, &str)>| {
            let headers = headers.into_iter();
            let properties = DeliveredProperties {
                texts: vec![
                    ("content_type", "text/plain".to_owned()),
                    (MESSAGE_ID, "m-1".to_owned()),
                    (TYPE, "Placed".to_owned()),
                ],
                timestamp: Some(5),
                headers: headers.map(|(name, value)| (name.into(), Some(value.into()))).collect(),
            };
            let message = DeliveredMessage {
                properties: Some(properties),
                body: b"hush".to_vec(),
                ..DeliveredMessage::default()
            };
            RabbitDelivery::of(message)
        };
        let plain = message(Vec::new());
        assert_eq!((plain.message_id.as_deref(), plain.timestamp_ms), (Some("m-1"), Some(5_000)));
        assert_eq!(plain.headers, [(b"type".to_vec(), Some(b"Placed".to_vec()))]);
        assert_eq!(plain.properties, [("content_type", "text/plain".to_owned())]);
        assert!(!format!("{plain:?}").contains("hush"));
        let event = message(vec![("type", "Shipped"), ("timestamp_in_ms", "5123")]);
        assert_eq!(event.timestamp_ms, Some(5_123));
        assert_eq!(event.headers, [(b"type".to_vec(), Some(b"Shipped".to_vec()))]);
        assert_eq!(message(vec![("timestamp_in_ms", "soon")]).timestamp_ms, Some(5_000));
    }
}
