//! A durable pull consumer of a stream: messages of JetStream, and their acknowledgements. `postrider inbox run` reads
//! with it.
//!
//! A request for messages has ended when its call returns. So what the server counts as delivered is what the callers
//! have, unless another connection reads the consumer too.

use super::api::{ApiError, ErrCode, StreamState};
use super::config::NatsConfig;
use super::link::NatsLink;
use super::problem::{NatsProblem, in_words_of_sources};
use super::spec::NatsSpec;
use async_nats::{HeaderMap, Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;
use std::fmt;
use std::time::{Duration, Instant};

/// Messages of one request at most: the client's queue has room for as many.
const REQUEST_MESSAGES_MAX: usize = 2_000;

/// Bytes of one request, or one message if it is larger.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// A request whose end does not come counts as ended so long after its time.
const END_MAX: Duration = Duration::from_secs(5);

/// The same behind its last message: a server may end a request without a word.
const SILENCE_MAX: Duration = Duration::from_millis(250);

/// Bytes of a message beside headers and payload that count against a request.
const MESSAGE_BYTES: usize = 4 << 10;

/// JetStream's code: there is no consumer of this name.
const CONSUMER_NOT_FOUND: i32 = 10_014;

/// Where a consumer begins that does not exist yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NatsStart {
    /// With the oldest message of the stream.
    #[default]
    Earliest,
    /// Behind the newest one.
    Latest,
}

impl NatsStart {
    /// The word of the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Earliest => "earliest",
            Self::Latest => "latest",
        }
    }
}

/// The consumer that is wanted. It is created if it does not exist.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerWanted {
    /// Its durable name.
    pub name: String,
    /// Only messages of these subjects; all of the stream if there are none.
    pub subjects: Vec<String>,
    /// Where it begins.
    pub start: NatsStart,
    /// A message that is not acknowledged after this time is delivered again.
    pub ack_wait: Duration,
    /// Messages that are delivered and not acknowledged, at most.
    pub ack_pending_max: usize,
}

/// What a stream or its server does not do, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NatsConsumerProblem {
    /// What is wrong, in one line.
    pub reason: String,
    /// What fixes it.
    pub hint: Option<String>,
}

impl From<NatsProblem> for NatsConsumerProblem {
    fn from(problem: NatsProblem) -> Self {
        let hint = problem.hint.map(|hint| in_words_of_sources(&hint));
        Self { reason: problem.reason, hint }
    }
}

/// A message. `Debug` shows no content.
pub struct NatsDelivery {
    /// Its subject.
    pub subject: String,
    /// Its headers; none if it has none.
    pub headers: Option<HeaderMap>,
    /// Its content.
    pub payload: Bytes,
    /// Its number in the stream.
    pub sequence: u64,
    /// When the stream stored it. Unit: nanoseconds since 1970.
    pub stored_ns: i64,
    /// The subject of its acknowledgement.
    pub reply: String,
}

impl fmt::Debug for NatsDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsDelivery")
            .field("sequence", &self.sequence)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl NatsDelivery {
    /// The headers: name and value of each, those of one name in their order.
    pub fn header_values(&self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let Some(headers) = &self.headers else { return Vec::new() };
        let mut all: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for (name, values) in headers.iter() {
            let name = name.to_string().into_bytes();
            all.extend(values.iter().map(|value| (name.clone(), Some(value.as_str().into()))));
        }
        // The client keeps them in no order.
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    /// Of the message that the server has sent; `None` if its reply subject is not that of a consumer.
    fn of(message: Message) -> Option<Self> {
        let reply = message.reply?.to_string();
        let (sequence, stored_ns) = place(&reply)?;
        Some(Self {
            subject: message.subject.to_string(),
            headers: message.headers,
            payload: message.payload,
            sequence,
            stored_ns,
            reply,
        })
    }
}

/// Number in the stream, and time, of a subject of acknowledgements. It has nine parts, or with domain and account
/// before the stream eleven or more.
fn place(reply: &str) -> Option<(u64, i64)> {
    let parts: Vec<&str> = reply.split('.').collect();
    if parts.first() != Some(&"$JS") || parts.get(1) != Some(&"ACK") {
        return None;
    }
    let at = match parts.len() {
        9 => 5,
        11.. => 7,
        _ => return None,
    };
    Some((parts.get(at)?.parse().ok()?, parts.get(at + 2)?.parse().ok()?))
}

/// A consumer at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConsumerState {
    /// When it was created, in the server's words.
    pub created: String,
    /// Messages that are delivered and not acknowledged.
    pub ack_pending: u64,
    /// Messages that are not delivered yet.
    pub not_delivered: u64,
    /// The number in the stream of the last message that was delivered, or passed because it was deleted.
    pub delivered: u64,
    /// The number in the stream up to which all messages are acknowledged, or were passed because they were deleted.
    pub acknowledged: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConsumerAnswer {
    error: Option<ApiError>,
    created: String,
    config: ConsumerSettings,
    delivered: SequencePair,
    ack_floor: SequencePair,
    num_ack_pending: u64,
    num_pending: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConsumerSettings {
    ack_policy: String,
    deliver_subject: String,
    max_deliver: i64,
    filter_subject: String,
    filter_subjects: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SequencePair {
    stream_seq: u64,
}

impl ConsumerAnswer {
    /// Whether messages could be lost, or others are read than those that are wanted.
    ///
    /// # Errors
    /// Why.
    fn check(&self, stream: &str, wanted: &ConsumerWanted) -> Result<(), NatsConsumerProblem> {
        let ConsumerSettings { ack_policy, deliver_subject, max_deliver, .. } = &self.config;
        let name = &wanted.name;
        let what = if ack_policy != "explicit" {
            format!("has ack_policy {ack_policy}, and explicit is needed")
        } else if !deliver_subject.is_empty() {
            "is a push consumer, and a pull consumer is needed".to_owned()
        } else if *max_deliver > 0 {
            format!(
                "gives a message up after {max_deliver} deliveries (max_deliver), and -1 is needed"
            )
        } else if self.filters() != wanted.filters() {
            "has other filter subjects than source.nats.subjects".to_owned()
        } else {
            return Ok(());
        };
        let hint = format!(
            "correct the consumer (nats consumer edit {stream} {name}), or set source.nats.consumer to a name that is \
             free, which reads the stream again from source.nats.start"
        );
        let reason = format!("consumer {name} of stream {stream} {what}");
        Err(NatsConsumerProblem { reason, hint: Some(hint) })
    }

    fn filters(&self) -> Vec<&str> {
        let ConsumerSettings { filter_subject, filter_subjects, .. } = &self.config;
        let one = Some(filter_subject.as_str()).filter(|subject| !subject.is_empty());
        let mut all: Vec<&str> = filter_subjects.iter().map(String::as_str).chain(one).collect();
        all.sort_unstable();
        all
    }

    fn state(self) -> ConsumerState {
        ConsumerState {
            created: self.created,
            ack_pending: self.num_ack_pending,
            not_delivered: self.num_pending,
            delivered: self.delivered.stream_seq,
            acknowledged: self.ack_floor.stream_seq,
        }
    }
}

impl ConsumerWanted {
    fn filters(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.subjects.iter().map(String::as_str).collect();
        all.sort_unstable();
        all
    }

    fn settings(&self) -> serde_json::Value {
        let nanos = u64::try_from(self.ack_wait.as_nanos()).unwrap_or(u64::MAX);
        let mut config = json!({
            "durable_name": self.name,
            "deliver_policy": match self.start {
                NatsStart::Earliest => "all",
                NatsStart::Latest => "new",
            },
            "ack_policy": "explicit",
            "ack_wait": nanos,
            "max_deliver": -1,
            "max_ack_pending": self.ack_pending_max,
            "replay_policy": "instant",
        });
        match self.subjects.as_slice() {
            [] => {}
            [one] => config["filter_subject"] = one.as_str().into(),
            more => config["filter_subjects"] = more.into(),
        }
        config
    }
}

/// Whether this status ends the request of this number. It comes to the subject of its request; a heartbeat ends
/// nothing.
fn is_end(status: StatusCode, subject: &str, number: u64) -> bool {
    let of = subject.rsplit('.').next().and_then(|last| last.parse().ok());
    of == Some(number) && status.as_u16() != 100
}

/// A connection that reads one consumer.
pub struct NatsConsumer {
    link: NatsLink,
    spec: NatsSpec,
    wanted: ConsumerWanted,
    /// Requests that were sent.
    requests: u64,
}

impl fmt::Debug for NatsConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConsumer").field("consumer", &self.wanted.name).finish_non_exhaustive()
    }
}

impl NatsConsumer {
    /// Connects to one of the servers, and creates the consumer if it does not exist. `attempt` chooses the server
    /// that is tried first, `name` is that of the connection.
    ///
    /// # Errors
    /// No server can be used, the stream does not exist, or the consumer has settings that lose messages.
    pub async fn open(
        config: &NatsConfig,
        wanted: &ConsumerWanted,
        name: &str,
        attempt: usize,
    ) -> Result<Self, NatsConsumerProblem> {
        let consumer = Self::connect(config, wanted, name, attempt).await?;
        consumer.create_if_missing().await?;
        Ok(consumer)
    }

    async fn connect(
        config: &NatsConfig,
        wanted: &ConsumerWanted,
        name: &str,
        attempt: usize,
    ) -> Result<Self, NatsConsumerProblem> {
        let spec = config.source_spec(name).map_err(|error| {
            let hint = in_words_of_sources(error.hint());
            NatsConsumerProblem { reason: error.to_string(), hint: Some(hint) }
        })?;
        let mut problem = None;
        for turn in 0..spec.servers.len() {
            let at = (attempt + turn) % spec.servers.len();
            let Some(server) = spec.servers.get(at) else { continue };
            match NatsLink::open(&spec, server).await {
                Ok(link) => {
                    let (spec, wanted) = (spec.clone(), wanted.clone());
                    return Ok(Self { link, spec, wanted, requests: 0 });
                }
                Err(why) => problem = Some(why),
            }
        }
        let none = || NatsProblem::new("no server is named", "set sink.nats.url");
        Err(problem.unwrap_or_else(none).into())
    }

    /// Looks whether the stream and the consumer exist, and changes nothing. Returns what was found, in words.
    ///
    /// # Errors
    /// No server can be used, the stream does not exist, or the consumer has settings that lose messages.
    pub async fn look(
        config: &NatsConfig,
        wanted: &ConsumerWanted,
    ) -> Result<String, NatsConsumerProblem> {
        let consumer = Self::connect(config, wanted, "check", 0).await?;
        consumer.first_sequence().await?;
        let (stream, name, answer) =
            (&consumer.spec.stream, &wanted.name, consumer.look_up().await?);
        match &answer.error {
            None => answer.check(stream, wanted)?,
            Some(error) if error.err_code == CONSUMER_NOT_FOUND => {
                return Ok(format!("stream {stream} exists, and consumer {name} will be created"));
            }
            Some(error) => return Err(consumer.refused(error)),
        }
        Ok(format!("stream {stream} and consumer {name} exist"))
    }

    async fn create_if_missing(&self) -> Result<(), NatsConsumerProblem> {
        let (stream, name) = (&self.spec.stream, &self.wanted.name);
        let answer = self.look_up().await?;
        match &answer.error {
            None => return answer.check(stream, &self.wanted),
            Some(error) if error.err_code == CONSUMER_NOT_FOUND => {}
            Some(error) => return Err(self.refused(error)),
        }
        let body = json!({ "stream_name": stream, "config": self.wanted.settings() });
        let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{name}");
        let created: ConsumerAnswer = self.link.ask(&subject, &body).await?;
        match &created.error {
            None => created.check(stream, &self.wanted),
            Some(error) => Err(self.refused(error)),
        }
    }

    async fn look_up(&self) -> Result<ConsumerAnswer, NatsProblem> {
        let (stream, name) = (&self.spec.stream, &self.wanted.name);
        self.link.ask(&format!("$JS.API.CONSUMER.INFO.{stream}.{name}"), &json!({})).await
    }

    fn refused(&self, error: &ApiError) -> NatsConsumerProblem {
        let (stream, name) = (&self.spec.stream, &self.wanted.name);
        let what = if error.err_code == ErrCode::STREAM_NOT_FOUND {
            format!("stream {stream} does not exist")
        } else {
            format!("consumer {name} of stream {stream} can't be used")
        };
        NatsProblem::answer(&what, error, &self.spec).into()
    }

    /// The consumer now.
    ///
    /// # Errors
    /// No answer, or the consumer does not exist any more.
    pub async fn state(&self) -> Result<ConsumerState, NatsConsumerProblem> {
        let answer = self.look_up().await?;
        match &answer.error {
            None => Ok(answer.state()),
            Some(error) => Err(self.refused(error)),
        }
    }

    /// The number of the oldest message that the stream has, or will have.
    ///
    /// # Errors
    /// No answer, or the stream does not exist any more.
    pub async fn first_sequence(&self) -> Result<u64, NatsConsumerProblem> {
        let answer = self.link.stream(&self.spec).await?.map_err(|error| self.refused(&error))?;
        let StreamState { first_seq, .. } = answer.state;
        Ok(first_seq)
    }

    /// Messages, at most `max`. It waits for the first one at most `wait`; with zero it takes what is there. When it
    /// returns, no request is open: the server sends nothing more.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn fetch(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<NatsDelivery>, NatsConsumerProblem> {
        let batch = max.clamp(1, REQUEST_MESSAGES_MAX);
        let number = self.request(batch, wait).await?;
        let mut fetched = Vec::new();
        let end = Instant::now() + wait + END_MAX;
        while fetched.len() < batch {
            let left = end.saturating_duration_since(Instant::now());
            let pause = if fetched.is_empty() { left } else { left.min(SILENCE_MAX) };
            let message = match tokio::time::timeout(pause, self.link.answers.next()).await {
                // The server has forgotten the request, or ends it without a word.
                Err(_elapsed) => break,
                Ok(None) => return Err(self.lost()),
                Ok(Some(message)) => message,
            };
            if let Some(status) = message.status.filter(|status| *status != StatusCode::OK) {
                if is_end(status, message.subject.as_str(), number) {
                    break;
                }
                continue;
            }
            fetched.extend(NatsDelivery::of(message));
        }
        if fetched.is_empty() && self.link.state.borrow().lost {
            return Err(self.lost());
        }
        Ok(fetched)
    }

    /// Sends a request, and returns its number.
    async fn request(&mut self, batch: usize, wait: Duration) -> Result<u64, NatsConsumerProblem> {
        let (stream, name) = (&self.spec.stream, &self.wanted.name);
        let bytes = REQUEST_BYTES_MAX.max(self.link.max_payload() + MESSAGE_BYTES);
        let mut body = json!({ "batch": batch, "max_bytes": bytes });
        if wait.is_zero() {
            body["no_wait"] = true.into();
        } else {
            body["expires"] = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).into();
        }
        self.requests += 1;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}");
        let reply = format!("{}.{}", self.link.inbox, self.requests);
        let sent =
            self.link.client.publish_with_reply(subject, reply, body.to_string().into()).await;
        sent.map_err(|_closed| self.lost())?;
        Ok(self.requests)
    }

    /// Acknowledges messages by their [`NatsDelivery::reply`], and waits until the server has taken that in.
    ///
    /// # Errors
    /// The connection is lost; some may be acknowledged.
    pub async fn acknowledge(&self, replies: &[String]) -> Result<(), NatsConsumerProblem> {
        let Some((last, others)) = replies.split_last() else { return Ok(()) };
        self.send(others, b"+ACK").await?;
        // The server processes the acknowledgements of a consumer in their order.
        let answer = self.link.client.request(last.clone(), Bytes::from_static(b"+ACK")).await;
        answer.map(drop).map_err(|error| NatsProblem::request("an acknowledgement", &error).into())
    }

    /// Lets messages be delivered again at once.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn give_back(&self, replies: &[String]) -> Result<(), NatsConsumerProblem> {
        self.send(replies, b"-NAK").await?;
        self.link.client.flush().await.map_err(|_closed| self.lost())
    }

    async fn send(
        &self,
        replies: &[String],
        answer: &'static [u8],
    ) -> Result<(), NatsConsumerProblem> {
        for reply in replies {
            let sent = self.link.client.publish(reply.clone(), Bytes::from_static(answer)).await;
            sent.map_err(|_closed| self.lost())?;
        }
        Ok(())
    }

    fn lost(&self) -> NatsConsumerProblem {
        let state = self.link.state.borrow();
        let why = state.denied.as_ref().or(state.error.as_ref());
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let reason = format!("lost the connection to NATS at {}{why}", self.link.address);
        NatsProblem::new(reason, "the sink connects again automatically").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_message_is_in_the_subject_of_its_acknowledgement() {
        assert_eq!(
            place("$JS.ACK.EVENTS.inbox.1.7.3.1700000000000000001.0"),
            Some((7, 1_700_000_000_000_000_001))
        );
        let long = "$JS.ACK.hub.ABCD.EVENTS.inbox.2.8.9.1700000000000000002.4.token";
        assert_eq!(place(long), Some((8, 1_700_000_000_000_000_002)));
        for other in ["", "_INBOX.a.1", "$JS.ACK.EVENTS.inbox.1.x.3.4.0", "$JS.ACK.1.2.3.4.5.6.7.8"]
        {
            assert_eq!(place(other), None, "{other}");
        }
    }

    #[test]
    fn a_consumer_that_could_lose_messages_is_refused() {
        let wanted = ConsumerWanted {
            name: "inbox".to_owned(),
            subjects: vec!["orders.>".to_owned()],
            start: NatsStart::Earliest,
            ack_wait: Duration::from_secs(10),
            ack_pending_max: 10,
        };
        let check = |config: serde_json::Value| {
            let answer = json!({ "config": config }).to_string();
            let answer: ConsumerAnswer = serde_json::from_str(&answer).expect("an answer");
            answer.check("EVENTS", &wanted).is_ok()
        };
        assert!(check(wanted.settings()));
        for (key, value) in [
            ("ack_policy", json!("none")),
            ("deliver_subject", json!("push")),
            ("max_deliver", json!(5)),
            ("filter_subject", json!("")),
        ] {
            let mut config = wanted.settings();
            config[key] = value;
            assert!(!check(config), "{key}");
        }
    }
}
