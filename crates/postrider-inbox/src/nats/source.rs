//! The messages of a consumer, in the order of their stream.
//!
//! The server delivers a message again that was not acknowledged in time, behind later ones. So messages are stored
//! only when all that are delivered and not acknowledged are here: then none of them comes after a later one. After a
//! process was killed this takes until the server delivers its messages again (`ack_wait`).

use super::config::NatsSourceConfig;
use crate::acked::{AckedSource, Look, LostMessages, SourceProblem};
use crate::delivery::{Delivery, DeliveryPlace};
use postrider_core::sink::SinkConfig as _;
use postrider_sinks::nats::{NatsConsumer, NatsConsumerProblem, NatsDelivery};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// Bytes of messages that are held; those above go back to the server.
const HELD_BYTES_MAX: usize = 64 << 20;

/// Pause between two looks for messages that another connection has.
const OTHERS_PAUSE: Duration = Duration::from_millis(500);

/// A message that is not stored.
struct HeldMessage {
    delivery: Delivery,
    /// The subject of its acknowledgement.
    reply: String,
}

/// Messages by their numbers in the stream.
#[derive(Default)]
struct HeldMessages {
    held: BTreeMap<u64, HeldMessage>,
    bytes: usize,
    /// Numbers of messages that have gone back to the server.
    back: BTreeSet<u64>,
    /// Messages that another connection has.
    others: u64,
}

impl HeldMessages {
    fn insert(&mut self, sequence: u64, held: HeldMessage) {
        self.bytes += held.delivery.size_bytes();
        self.back.remove(&sequence);
        // The newest delivery is the one that can be acknowledged.
        if let Some(former) = self.held.insert(sequence, held) {
            self.bytes = self.bytes.saturating_sub(former.delivery.size_bytes());
        }
    }

    /// The server says how many messages are delivered and not acknowledged.
    fn counted(&mut self, delivered: u64) {
        let ours = self.held.len() + self.back.len();
        self.others = delivered.saturating_sub(u64::try_from(ours).unwrap_or(u64::MAX));
    }

    /// Messages that can be stored: before them none is missing.
    fn ready(&self) -> impl Iterator<Item = &HeldMessage> {
        let first_back = self.back.first().copied().unwrap_or(u64::MAX);
        let end = if self.others == 0 { first_back } else { 0 };
        self.held.range(..end).map(|(_, held)| held)
    }

    /// Removes the last messages, as long as there are too many bytes; returns the subjects of their acknowledgements.
    fn sheds(&mut self) -> Vec<String> {
        let mut shed = Vec::new();
        while self.bytes > HELD_BYTES_MAX
            && self.held.len() > 1
            && let Some((sequence, held)) = self.held.pop_last()
        {
            self.bytes = self.bytes.saturating_sub(held.delivery.size_bytes());
            self.back.insert(sequence);
            shed.push(held.reply);
        }
        shed
    }

    /// Removes the first ones, which are stored; returns the subjects of their acknowledgements.
    fn stored(&mut self, count: usize) -> Vec<String> {
        let mut stored = Vec::with_capacity(count);
        for _ in 0..count {
            let Some((_, held)) = self.held.pop_first() else { break };
            self.bytes = self.bytes.saturating_sub(held.delivery.size_bytes());
            stored.push(held.reply);
        }
        stored
    }
}

/// A connection that reads a stream.
pub struct NatsSource {
    consumer: NatsConsumer,
    stream: String,
    name: String,
    messages: HeldMessages,
    /// The number up to which deleted messages are reported.
    lost_to: u64,
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSource").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl From<NatsConsumerProblem> for SourceProblem {
    fn from(problem: NatsConsumerProblem) -> Self {
        Self { reason: problem.reason, hint: problem.hint, stands_by: false }
    }
}

impl NatsSource {
    async fn take(&mut self, max: usize, wait: Duration) -> Result<Vec<u64>, SourceProblem> {
        let fetched = self.consumer.fetch(max, wait).await?;
        let mut sequences = Vec::with_capacity(fetched.len());
        for delivery in fetched {
            sequences.push(delivery.sequence);
            let (sequence, held) = self.held(delivery);
            self.messages.insert(sequence, held);
        }
        Ok(sequences)
    }

    fn held(&self, delivery: NatsDelivery) -> (u64, HeldMessage) {
        let headers = delivery.header_values();
        let NatsDelivery { subject, payload, sequence, stored_ns, reply, .. } = delivery;
        let place = DeliveryPlace::Nats {
            stream: self.stream.clone(),
            subject: subject.clone(),
            sequence,
            stored_ns,
        };
        let timestamp_ms = Some(stored_ns.div_euclid(1_000_000));
        let content = (subject, Vec::from(payload));
        let delivery = Delivery::of_headers(place, content, timestamp_ms, headers);
        (sequence, HeldMessage { delivery, reply })
    }

    /// Another connection has messages: looks whether the server delivers them again. It does so before it delivers
    /// new ones, and no more than one new message is taken at a time.
    async fn takes_of_others(&mut self) -> Result<(), SourceProblem> {
        tokio::time::sleep(OTHERS_PAUSE).await;
        let last = self.messages.held.last_key_value().map(|(sequence, _)| *sequence);
        let taken = self.take(1, Duration::ZERO).await?;
        if taken.first().copied().zip(last).is_some_and(|(taken, last)| taken <= last) {
            let others = usize::try_from(self.messages.others).unwrap_or(usize::MAX);
            let max = others.saturating_add(self.messages.held.len());
            self.take(max, Duration::ZERO).await?;
        }
        Ok(())
    }
}

impl AckedSource for NatsSource {
    type Config = NatsSourceConfig;

    fn turn(config: &Self::Config) -> String {
        format!("nats:{}/{}", config.access.stream, config.consumer.name)
    }

    fn place(config: &Self::Config) -> String {
        config.access.place()
    }

    async fn open(
        config: &Self::Config,
        intake: &str,
        attempt: usize,
    ) -> Result<Self, SourceProblem> {
        let name = format!("inbox {intake}");
        let consumer = NatsConsumer::open(&config.access, &config.consumer, &name, attempt).await?;
        let (stream, name) = (config.access.stream.clone(), config.consumer.name.clone());
        Ok(Self { consumer, stream, name, messages: HeldMessages::default(), lost_to: 0 })
    }

    async fn receive(&mut self, max: usize, wait: Duration) -> Result<(), SourceProblem> {
        if self.messages.others > 0 {
            self.takes_of_others().await?;
        } else {
            let room = max.saturating_sub(self.messages.held.len());
            if room == 0 {
                return Ok(());
            }
            let taken = self.take(room, Duration::ZERO).await?;
            if taken.is_empty() && self.messages.ready().next().is_none() {
                self.take(1, wait).await?;
            }
        }
        let shed = self.messages.sheds();
        self.consumer.give_back(&shed).await?;
        if !self.messages.held.is_empty() {
            let state = self.consumer.state().await?;
            self.messages.counted(state.ack_pending);
        }
        Ok(())
    }

    fn ready(&self) -> impl Iterator<Item = &Delivery> {
        self.messages.ready().map(|held| &held.delivery)
    }

    fn waits_for(&self) -> Option<String> {
        let others = self.messages.others;
        (others > 0 && !self.messages.held.is_empty()).then(|| {
            format!(
                "{others} earlier or later messages of consumer {} are delivered to another connection: waiting until \
                 they are acknowledged, or delivered again after ack_wait",
                self.name
            )
        })
    }

    async fn acknowledge(&mut self, count: usize) -> Result<(), SourceProblem> {
        let replies = self.messages.stored(count);
        Ok(self.consumer.acknowledge(&replies).await?)
    }

    async fn look(&mut self) -> Result<Look, SourceProblem> {
        // In this order: a message that is deleted in between is not yet acknowledged, and is found the next time.
        let first = self.consumer.first_sequence().await?;
        let state = self.consumer.state().await?;
        // What this connection has is stored, although the stream has deleted it.
        let held = self.messages.held.range(..first).next_back().map(|(sequence, _)| *sequence);
        let passed = state.acknowledged.max(self.lost_to).max(held.unwrap_or_default());
        // What was given back and is deleted does not come again.
        self.messages.back.retain(|sequence| *sequence >= first);
        let mut look =
            Look { lag: Some(state.not_delivered + state.ack_pending), ..Look::default() };
        if first > passed + 1 && state.delivered > 0 {
            let (from, to, stream) = (passed + 1, first - 1, &self.stream);
            self.lost_to = to;
            look.lost.push(LostMessages {
                messages: to - passed,
                reason: format!(
                    "stream {stream} has deleted messages {from} to {to} before they were acknowledged: at most {} of \
                     them are lost",
                    to - passed
                ),
                hint: format!(
                    "let the stream keep its messages for longer than an outage: nats stream edit {stream} --max-age \
                     TIME"
                ),
            });
        }
        Ok(look)
    }

    async fn idle(&mut self, time: Duration) -> Result<(), SourceProblem> {
        // The client answers the server in a task of its own.
        tokio::time::sleep(time).await;
        Ok(())
    }

    fn passes(&self) -> Option<String> {
        let (_, held) = self.messages.held.first_key_value()?;
        let DeliveryPlace::Nats { stream, sequence, .. } = &held.delivery.place else {
            return None;
        };
        Some(format!(
            "stop all processes of the intake, then nats stream rmm {stream} {sequence}, which deletes this message \
             alone, for ever; then start the intake again"
        ))
    }

    async fn close(self) {
        let replies: Vec<String> =
            self.messages.held.into_values().map(|held| held.reply).collect();
        let given = self.consumer.give_back(&replies);
        // Otherwise they are delivered again after ack_wait.
        drop(tokio::time::timeout(Duration::from_secs(1), given).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(bytes: usize) -> HeldMessage {
        let place = DeliveryPlace::Nats {
            stream: "EVENTS".to_owned(),
            subject: "orders".to_owned(),
            sequence: 1,
            stored_ns: 1,
        };
        let content = ("orders".to_owned(), vec![0; bytes]);
        HeldMessage {
            delivery: Delivery::of_headers(place, content, None, Vec::new()),
            reply: "reply".to_owned(),
        }
    }

    fn sequences(messages: &HeldMessages) -> Vec<u64> {
        let ready = messages.ready().count();
        messages.held.keys().copied().take(ready).collect()
    }

    #[test]
    fn nothing_is_ready_while_another_connection_has_messages() {
        let mut messages = HeldMessages::default();
        for sequence in [7, 5, 6] {
            messages.insert(sequence, held(1));
        }
        messages.counted(4);
        assert_eq!((sequences(&messages), messages.others), (vec![], 1));
        // Delivered again, with one of ours.
        messages.insert(3, held(1));
        messages.insert(5, held(1));
        messages.counted(4);
        assert_eq!(sequences(&messages), [3, 5, 6, 7]);
        assert_eq!(messages.stored(3).len(), 3);
        assert_eq!(sequences(&messages), [7]);
    }

    #[test]
    fn what_goes_back_to_the_server_holds_later_messages_back() {
        let mut messages = HeldMessages::default();
        for sequence in 1..=5 {
            messages.insert(sequence, held(HELD_BYTES_MAX / 4));
        }
        assert_eq!(messages.sheds().len(), 2);
        messages.counted(5);
        assert_eq!(sequences(&messages), [1, 2, 3]);
        messages.insert(6, held(1));
        messages.counted(6);
        assert_eq!(sequences(&messages), [1, 2, 3], "6 is behind 4");
        messages.stored(3);
        messages.insert(5, held(1));
        messages.insert(4, held(1));
        messages.counted(3);
        assert_eq!((sequences(&messages), messages.back.len()), (vec![4, 5, 6], 0));
        // One that is larger than all may be together.
        let mut large = HeldMessages::default();
        large.insert(1, held(HELD_BYTES_MAX + 1));
        assert!(large.sheds().is_empty());
    }
}
