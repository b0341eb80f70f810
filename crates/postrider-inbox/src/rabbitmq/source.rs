//! The messages of a queue, in its order.
//!
//! The server puts what was not acknowledged back in front when a connection ends, and a queue that still has a
//! consumer is not read. So the order is that of the queue. Two deliveries of one message are recognised by its id.

use super::config::RabbitSourceConfig;
use crate::acked::{AckedSource, Look, SourceProblem};
use crate::delivery::{Delivery, DeliveryPlace};
use postrider_core::sink::SinkConfig as _;
use postrider_sinks::rabbitmq::{RabbitConsumer, RabbitConsumerProblem, RabbitDelivery};
use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of messages that are held; with more, no further one is taken.
const HELD_BYTES_MAX: usize = 32 << 20;

/// A connection that reads a queue.
pub struct RabbitSource {
    consumer: RabbitConsumer,
    queue: String,
    /// What no other connection has, before the numbers of its deliveries.
    receipts: String,
    /// Messages that are not stored, each with its number on the connection.
    held: VecDeque<Delivery>,
    tags: VecDeque<u64>,
    bytes: usize,
}

impl fmt::Debug for RabbitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSource").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl From<RabbitConsumerProblem> for SourceProblem {
    fn from(problem: RabbitConsumerProblem) -> Self {
        Self { reason: problem.reason, hint: problem.hint, stands_by: problem.is_taken }
    }
}

impl RabbitSource {
    fn hold(&mut self, delivery: RabbitDelivery) {
        let RabbitDelivery { tag, exchange, routing_key, message_id, .. } = delivery;
        let place = DeliveryPlace::RabbitMq {
            queue: self.queue.clone(),
            exchange,
            routing_key: routing_key.clone(),
            message_id,
            properties: delivery.properties,
            receipt: format!("{}-{tag}", self.receipts),
        };
        let content = (routing_key, delivery.body);
        let held = Delivery::of_headers(place, content, delivery.timestamp_ms, delivery.headers);
        self.bytes += held.size_bytes();
        self.held.push_back(held);
        self.tags.push_back(tag);
    }
}

impl AckedSource for RabbitSource {
    type Config = RabbitSourceConfig;

    fn turn(config: &Self::Config) -> String {
        format!("rabbitmq:{}/{}", config.access.vhost(), config.queue.queue)
    }

    fn place(config: &Self::Config) -> String {
        format!("{}/{}", config.access.place(), config.queue.queue)
    }

    async fn open(
        config: &Self::Config,
        intake: &str,
        attempt: usize,
    ) -> Result<Self, SourceProblem> {
        let name = format!("inbox {intake}");
        let consumer = RabbitConsumer::open(&config.access, &config.queue, &name, attempt).await?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            consumer,
            queue: config.queue.queue.clone(),
            receipts: format!("{}-{}", std::process::id(), since.as_nanos()),
            held: VecDeque::new(),
            tags: VecDeque::new(),
            bytes: 0,
        })
    }

    async fn receive(&mut self, max: usize, wait: Duration) -> Result<(), SourceProblem> {
        let wait = if self.held.is_empty() { wait } else { Duration::ZERO };
        self.consumer.wait(wait).await?;
        while self.held.len() < max && self.bytes < HELD_BYTES_MAX {
            let Some(delivery) = self.consumer.take_next() else { break };
            self.hold(delivery);
        }
        Ok(())
    }

    fn ready(&self) -> impl Iterator<Item = &Delivery> {
        self.held.iter()
    }

    fn waits_for(&self) -> Option<String> {
        None
    }

    async fn acknowledge(&mut self, count: usize) -> Result<(), SourceProblem> {
        let mut last = None;
        for _ in 0..count {
            let (Some(stored), Some(tag)) = (self.held.pop_front(), self.tags.pop_front()) else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(stored.size_bytes());
            last = Some(tag);
        }
        match last {
            Some(tag) => Ok(self.consumer.acknowledge(tag).await?),
            None => Ok(()),
        }
    }

    async fn look(&mut self) -> Result<Look, SourceProblem> {
        let state = self.consumer.state().await?;
        let held = u64::try_from(self.held.len()).unwrap_or(u64::MAX);
        Ok(Look { lag: Some(state.not_delivered.saturating_add(held)), ..Look::default() })
    }

    async fn idle(&mut self, time: Duration) -> Result<(), SourceProblem> {
        Ok(self.consumer.idle(time).await?)
    }

    fn passes(&self) -> Option<String> {
        let queue = &self.queue;
        Some(format!(
            "stop all processes of the intake: another one would take the message. See that the first message of the \
             queue is the one: rabbitmqadmin get messages --ack-mode ack_requeue_true --count 1 --queue {queue}; then \
             take it out, which loses this one message unless it is kept elsewhere: the same with ack_requeue_false"
        ))
    }

    async fn close(self) {
        self.consumer.close().await;
    }
}
