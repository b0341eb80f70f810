//! One connection: its client, the answers to messages, and what the server reports about it.
//!
//! async-nats connects again by itself and continues with what it still holds, behind what was lost. A [`NatsLink`] is
//! therefore used for one connection only: its login works once ([`login`](super::login)), so the client ends when the
//! connection does, and the worker makes another one.

use super::api::{ApiError, ErrCode, StoredAnswer, StreamAnswer, StreamFacts};
use super::problem::NatsProblem;
use super::spec::{CreateStream, NatsSpec, address};
use async_nats::{Client, ConnectOptions, Event, Request, ServerAddr, ServerError, Subscriber};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Messages in flight. A server queues 10,000 for a stream.
pub(super) const WINDOW: usize = 4_000;

/// Requests and subscriptions beside the messages in flight.
const BESIDE: usize = 96;

const CONNECT_MAX: Duration = Duration::from_secs(5);
const REQUEST_MAX: Duration = Duration::from_secs(5);

/// A connection without any message of the server is tested this often, and given up after two tests without answer.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// What the client has reported.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NatsLinkState {
    /// The connection is lost, or the client has dropped an answer.
    pub(super) lost: bool,
    /// The server's words about a message that the login may not publish.
    pub(super) denied: Option<String>,
    /// The server's last error.
    pub(super) error: Option<String>,
}

impl NatsLinkState {
    /// Takes an event in.
    fn note(&mut self, event: Event) {
        match event {
            Event::Disconnected | Event::Closed | Event::SlowConsumer(_) => self.lost = true,
            Event::ServerError(ServerError::Other(words)) => {
                // The protocol has no codes for these.
                if words.to_ascii_lowercase().starts_with("permissions violation for publish") {
                    self.denied = Some(words);
                } else {
                    self.error = Some(words);
                }
            }
            Event::ServerError(error) => self.error = Some(error.to_string()),
            // A server that is about to stop ends its connections one after another.
            Event::LameDuckMode | Event::Connected | Event::Draining | Event::ClientError(_) => {}
        }
    }
}

/// One connection.
pub(super) struct NatsLink {
    pub(super) client: Client,
    /// The answers to messages: their subject ends with the message's number.
    pub(super) answers: Subscriber,
    pub(super) state: watch::Receiver<NatsLinkState>,
    /// The subject of answers without its last token.
    pub(super) inbox: String,
    /// The address, for messages.
    pub(super) address: String,
}

impl NatsLink {
    /// Connects to one of the servers and asks for the stream.
    ///
    /// # Errors
    /// Why that failed.
    pub(super) async fn open(spec: &NatsSpec, server: &ServerAddr) -> Result<Self, NatsProblem> {
        let address = address(server);
        let login = spec.login.prepare().map_err(|error| NatsProblem::login(&error))?;
        let (events, state) = watch::channel(NatsLinkState::default());
        let events = Arc::new(events);
        let mut options = ConnectOptions::with_auth_callback(move |nonce| {
            let answer = login.answer(&nonce);
            async move { answer }
        })
        .name(format!("postrider {}", spec.pipeline))
        .custom_inbox_prefix(&spec.inbox_prefix)
        .connection_timeout(CONNECT_MAX)
        .request_timeout(Some(REQUEST_MAX))
        .ping_interval(PING_INTERVAL)
        // Fewer are in flight, so the client never waits for room and drops no answer.
        .client_capacity(WINDOW + BESIDE)
        .subscription_capacity(WINDOW + BESIDE)
        .max_reconnects(1)
        .ignore_discovered_servers()
        .retain_servers_order()
        .event_callback(move |event| {
            let events = Arc::clone(&events);
            async move { events.send_modify(|state| state.note(event)) }
        });
        if let Some(ca) = &spec.tls.ca {
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &spec.tls.client {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        let connected = options.connect(server.clone()).await;
        let client = connected.map_err(|error| NatsProblem::connect(&address, &error))?;
        let inbox = client.new_inbox();
        let answers = client.subscribe(format!("{inbox}.*")).await;
        let answers = answers.map_err(|error| {
            NatsProblem::new(
                format!("NATS at {address}: {error}"),
                "the sink tries again automatically",
            )
        })?;
        Ok(Self { client, answers, state, inbox, address })
    }

    /// The largest message that the server takes. Unit: bytes.
    pub(super) fn max_payload(&self) -> usize {
        self.client.server_info().max_payload
    }

    /// A request to JetStream.
    ///
    /// # Errors
    /// No answer, or one that can't be read.
    pub(super) async fn ask<A: DeserializeOwned>(
        &self,
        subject: &str,
        body: &impl Serialize,
    ) -> Result<A, NatsProblem> {
        let unreadable = |error: serde_json::Error| {
            NatsProblem::new(
                format!("the answer to {subject} can't be read: {error}"),
                "this program needs nats-server 2.10 or later",
            )
        };
        let body = serde_json::to_vec(body).map_err(unreadable)?;
        let request = Request::new().payload(Bytes::from(body));
        let answer = self.client.send_request(subject.to_owned(), request).await;
        let answer = answer.map_err(|error| NatsProblem::request(subject, &error))?;
        serde_json::from_slice(&answer.payload).map_err(unreadable)
    }

    /// The stream, as JetStream describes it; its error if there is none.
    ///
    /// # Errors
    /// No answer.
    pub(super) async fn stream(
        &self,
        spec: &NatsSpec,
    ) -> Result<Result<StreamAnswer, ApiError>, NatsProblem> {
        let subject = format!("$JS.API.STREAM.INFO.{}", spec.stream);
        let answer: StreamAnswer = self.ask(&subject, &serde_json::json!({})).await?;
        Ok(match answer.error {
            Some(error) => Err(error),
            None => Ok(answer),
        })
    }

    /// What is known of the stream. One that does not exist takes no subjects.
    ///
    /// # Errors
    /// No answer, or another error.
    pub(super) async fn facts(&self, spec: &NatsSpec) -> Result<StreamFacts, NatsProblem> {
        let max_payload = self.max_payload();
        match self.stream(spec).await? {
            Ok(answer) if answer.config.no_ack => Err(NatsProblem::new(
                format!("stream {} acknowledges no messages (no_ack)", spec.stream),
                "let sink.nats.stream name a stream without no_ack",
            )),
            Ok(answer) => Ok(StreamFacts::of(answer, max_payload)),
            Err(error) if error.err_code == ErrCode::STREAM_NOT_FOUND => {
                let Some(create) = &spec.create else { return Ok(StreamFacts::none(max_payload)) };
                let created = self.create(spec, create).await?;
                let what = format!("stream {} could not be created", spec.stream);
                match &created.error {
                    Some(error) => Err(NatsProblem::answer(&what, error, spec)),
                    None => Ok(StreamFacts::of(created, max_payload)),
                }
            }
            Err(error) => {
                let what = format!("the server does not describe stream {}", spec.stream);
                Err(NatsProblem::answer(&what, &error, spec))
            }
        }
    }

    /// Creates the stream.
    ///
    /// # Errors
    /// No answer.
    pub(super) async fn create(
        &self,
        spec: &NatsSpec,
        create: &CreateStream,
    ) -> Result<StreamAnswer, NatsProblem> {
        let subjects: Vec<&str> = create.subjects.split(',').map(str::trim).collect();
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(0);
        let body = serde_json::json!({
            "name": spec.stream,
            "subjects": subjects,
            "retention": "limits",
            "discard": "new",
            "storage": create.storage,
            "num_replicas": create.replicas,
            "max_age": nanos(create.max_age),
            "duplicate_window": nanos(create.duplicate_window),
            "allow_direct": true,
        });
        self.ask(&format!("$JS.API.STREAM.CREATE.{}", spec.stream), &body).await
    }

    /// A header of a message of the stream; `None` if the message does not exist any more, or has no such header.
    ///
    /// # Errors
    /// No answer.
    pub(super) async fn header_at(
        &self,
        spec: &NatsSpec,
        sequence: u64,
        name: &str,
    ) -> Result<Option<String>, NatsProblem> {
        let subject = format!("$JS.API.STREAM.MSG.GET.{}", spec.stream);
        let answer: StoredAnswer =
            self.ask(&subject, &serde_json::json!({ "seq": sequence })).await?;
        Ok(if answer.error.is_some() { None } else { answer.message.header(name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_connections_and_dropped_answers_end_a_link() {
        for event in [Event::Disconnected, Event::Closed, Event::SlowConsumer(1)] {
            let mut state = NatsLinkState::default();
            state.note(event);
            assert!(state.lost);
        }
        let mut state = NatsLinkState::default();
        let words = "Permissions Violation for Publish to \"orders\"".to_owned();
        state.note(Event::ServerError(ServerError::Other(words.clone())));
        assert_eq!((state.lost, state.denied), (false, Some(words)));
    }
}
