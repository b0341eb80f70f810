//! A connection to RabbitMQ's stream protocol: login, requests, and the frames in both directions.

use super::codec::{
    CLOSE, DECLARE_PUBLISHER, METADATA, NotStream, OK, OPEN, PEER_PROPERTIES, SASL_AUTHENTICATE,
    SASL_HANDSHAKE, StreamFields, StreamFrame, StreamPlace, put_bytes, put_close_answer,
    put_heartbeat, put_map, put_request, put_string, put_tune, read_frame,
};
use super::problem::{StreamProblem, StreamStep};
use crate::fence::Fence;
use crate::rabbitmq::link::{Duplex, login, socket};
use crate::rabbitmq::spec::{RabbitHost, RabbitSpec};
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _, ReadHalf, WriteHalf};

/// The longest time for connecting and the login, and for one request.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Bytes of stream frames that are read at once.
const READ_BYTES: usize = 64 << 10;

/// The largest frame that this client sends, if the server has no limit. Unit: bytes.
const FRAME_MAX: u32 = 16 << 20;

/// What the server has sent without a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum StreamEvent {
    Confirmed {
        publisher: u8,
        ids: Vec<u64>,
    },
    /// Messages that are refused, each with the code.
    Refused {
        publisher: u8,
        ids: Vec<(u64, u16)>,
    },
    /// The publishers of a stream are removed from this connection.
    Unavailable {
        stream: String,
    },
}

/// An answer, with its fields behind the code, if it has one.
struct LinkAnswer {
    key: u16,
    correlation: u32,
    fields: Vec<u8>,
}

/// Bytes that are to be written, and when something was written last.
struct Unwritten {
    bytes: Vec<u8>,
    written: usize,
    /// What was written may still be in a buffer of TLS.
    unflushed: bool,
    at: Instant,
}

/// What the server has said of itself at the login.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct StreamServer {
    pub(super) version: String,
    /// Host and port of this node, as other nodes name them.
    pub(super) advertised: Option<(String, u16)>,
    /// Bytes of the largest frame.
    pub(super) frame_max: usize,
}

/// An open connection.
pub(super) struct StreamLink {
    host: String,
    reader: ReadHalf<Box<dyn Duplex>>,
    writer: WriteHalf<Box<dyn Duplex>>,
    inbox: Vec<u8>,
    read_at: Instant,
    outgoing: Unwritten,
    events: VecDeque<StreamEvent>,
    answers: VecDeque<LinkAnswer>,
    correlation: u32,
    heartbeat: Duration,
    /// What the connection is used for now, to distinguish what an error means.
    step: StreamStep,
    pub(super) server: StreamServer,
}

impl Debug for StreamLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLink").field("host", &self.host).finish_non_exhaustive()
    }
}

impl StreamLink {
    /// Connects to a server, logs in, and opens the virtual host.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(super) async fn open(spec: &RabbitSpec, host: &RabbitHost) -> Result<Self, StreamProblem> {
        let place = host.to_string();
        let mut step = StreamStep::Connect;
        let opened = tokio::time::timeout(ANSWER_MAX, async {
            let socket = socket(spec, host).await;
            let socket = socket.map_err(|error| StreamProblem::io(step, &place, &error))?;
            step = StreamStep::Login;
            let (reader, writer) = tokio::io::split(socket);
            let now = Instant::now();
            let bytes = Vec::new();
            let mut link = Self {
                host: place.clone(),
                reader,
                writer,
                inbox: Vec::new(),
                read_at: now,
                outgoing: Unwritten { bytes, written: 0, unflushed: false, at: now },
                events: VecDeque::new(),
                answers: VecDeque::new(),
                correlation: 0,
                heartbeat: spec.heartbeat,
                step,
                server: StreamServer::default(),
            };
            link.log_in(spec).await?;
            Ok(link)
        });
        opened.await.unwrap_or_else(|_elapsed| Err(late(step, &place)))
    }

    async fn log_in(&mut self, spec: &RabbitSpec) -> Result<(), StreamProblem> {
        let name = format!("postrider {}", spec.pipeline);
        let own = [
            ("product", "Postrider"),
            ("version", env!("CARGO_PKG_VERSION")),
            ("connection_name", name.as_str()),
        ];
        let (_, fields) = self.request(PEER_PROPERTIES, |out| put_map(out, &own)).await?;
        let properties = StreamFields(&fields).map().map_err(|NotStream| self.surprise())?;
        let version = properties.into_iter().find(|(name, _)| name == "version");
        self.server.version = version.map(|(_, version)| version).unwrap_or_default();
        let mechanism = if spec.address.user.is_some() { "PLAIN" } else { "EXTERNAL" };
        let (_, fields) = self.request(SASL_HANDSHAKE, |_| ()).await?;
        let offered = StreamFields(&fields).list(StreamFields::string);
        let offered = offered.map_err(|NotStream| self.surprise())?;
        if !offered.iter().any(|offered| offered == mechanism) {
            let reason = format!("RabbitMQ at {} offers no login by {mechanism}", self.host);
            let hint = "allow it by auth_mechanisms in rabbitmq.conf; EXTERNAL needs the plugin \
                        rabbitmq_auth_mechanism_ssl. A url with a user logs in by PLAIN";
            return Err(StreamProblem::new(self.step, reason, Some(hint.to_owned())));
        }
        let login = login(spec).map_err(|problem| {
            StreamProblem::new(StreamStep::Login, problem.reason, problem.hint)
        })?;
        let response = login.map(|(user, password)| format!("\0{user}\0{password}"));
        let response = response.unwrap_or_default();
        let (code, _) = self
            .request(SASL_AUTHENTICATE, |out| {
                put_string(out, mechanism);
                put_bytes(out, |out| out.extend_from_slice(response.as_bytes()));
            })
            .await?;
        if code != OK {
            return Err(StreamProblem::refused(self.step, code, "", spec));
        }
        while self.server.frame_max == 0 {
            self.turn(None).await?;
        }
        self.step = StreamStep::Open;
        let vhost = spec.address.vhost.as_str();
        let (code, fields) = self.request(OPEN, |out| put_string(out, vhost)).await?;
        if code != OK {
            return Err(StreamProblem::refused(self.step, code, "", spec));
        }
        let properties = StreamFields(&fields).map().map_err(|NotStream| self.surprise())?;
        let find = |name| properties.iter().find(|(known, _)| known == name);
        let host = find("advertised_host").map(|(_, host)| host.clone());
        let port = find("advertised_port").and_then(|(_, port)| port.parse().ok());
        self.server.advertised = host.zip(port);
        Ok(())
    }

    fn surprise(&self) -> StreamProblem {
        let hint = "correct the address: sink.rabbitmq.url needs the port of the plugin rabbitmq_stream, 5552, or 5551 \
                    with TLS";
        let reason = format!("what answers at {} is not RabbitMQ's stream protocol", self.host);
        StreamProblem::new(self.step, reason, Some(hint.to_owned()))
    }

    /// The server that is connected to.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Where a stream is, and whether it exists.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn find(&mut self, stream: &str) -> Result<StreamPlace, StreamProblem> {
        self.step = StreamStep::Find;
        let (_, fields) = self
            .request(METADATA, |out| {
                out.extend_from_slice(&1_u32.to_be_bytes());
                put_string(out, stream);
            })
            .await?;
        StreamFields(&fields).metadata().map_err(|NotStream| self.surprise())
    }

    /// Declares a publisher of a stream. From then on errors are those of publishing.
    ///
    /// # Errors
    /// The server refuses it, or the connection is lost.
    pub(super) async fn declare(
        &mut self,
        publisher: u8,
        reference: &str,
        stream: &str,
        spec: &RabbitSpec,
    ) -> Result<(), StreamProblem> {
        let code = self.ask(StreamStep::Declare, DECLARE_PUBLISHER, |out| {
            out.push(publisher);
            put_string(out, reference);
            put_string(out, stream);
        });
        match code.await? {
            OK => {
                self.step = StreamStep::Publish;
                Ok(())
            }
            code => Err(StreamProblem::refused(StreamStep::Declare, code, stream, spec)),
        }
    }

    /// Sends a request of which only the code of the answer counts.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn ask(
        &mut self,
        step: StreamStep,
        key: u16,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u16, StreamProblem> {
        self.step = step;
        self.request(key, write).await.map(|(code, _)| code)
    }

    /// Sends a request, and waits for its answer: the code, and the fields behind it. The answer to `Metadata` has no
    /// code.
    async fn request(
        &mut self,
        key: u16,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(u16, Vec<u8>), StreamProblem> {
        self.correlation = self.correlation.wrapping_add(1);
        let correlation = self.correlation;
        put_request(self.out(), key, correlation, write);
        let answered = tokio::time::timeout(ANSWER_MAX, async {
            loop {
                while let Some(answer) = self.answers.pop_front() {
                    if answer.key == key && answer.correlation == correlation {
                        return Ok(answer.fields);
                    }
                }
                self.turn(None).await?;
            }
        });
        let answered = answered.await;
        let fields = answered.unwrap_or_else(|_elapsed| Err(late(self.step, &self.host)))?;
        if key == METADATA {
            return Ok((OK, fields));
        }
        let mut rest = StreamFields(&fields);
        let code = rest.u16().map_err(|NotStream| self.surprise())?;
        Ok((code, rest.0.to_vec()))
    }

    /// The buffer for frames that are to be sent.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        let outgoing = &mut self.outgoing;
        if outgoing.written == outgoing.bytes.len() {
            outgoing.bytes.clear();
            outgoing.written = 0;
        }
        &mut outgoing.bytes
    }

    /// Bytes that are not written yet.
    pub(super) fn unwritten(&self) -> usize {
        self.outgoing.bytes.len() - self.outgoing.written
    }

    pub(super) fn next_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// Reads or writes once, whichever is possible first, and sorts what was read. With a `fence`, nothing is written
    /// that it does not admit at the moment of writing. Cancel-safe.
    ///
    /// # Errors
    /// The connection is lost, or the server has closed it, or the fence does not admit what is to be written.
    pub(super) async fn turn(&mut self, fence: Option<(&Fence, u64)>) -> Result<(), StreamProblem> {
        let outgoing = &mut self.outgoing;
        let more = outgoing.bytes.get(outgoing.written..).unwrap_or_default();
        let (has_more, writer) = (!more.is_empty(), &mut self.writer);
        let progress = poll_fn(|context| {
            if fence.is_some_and(|(fence, number)| !fence.admits(number)) {
                let words = "what is to be sent is outdated: the process was stopped, or the sink was reset";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::Interrupted, words)));
            }
            let mut writer = Pin::new(&mut *writer);
            if has_more {
                return writer.poll_write(context, more);
            }
            writer.as_mut().poll_flush(context).map_ok(|()| 0)
        });
        self.inbox.reserve(READ_BYTES);
        let done = tokio::select! {
            read = self.reader.read_buf(&mut self.inbox) => match read {
                Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed it")),
                Ok(_) => {
                    self.read_at = Instant::now();
                    Ok(())
                }
                Err(error) => Err(error),
            },
            wrote = progress, if has_more || outgoing.unflushed => wrote.map(|length| {
                outgoing.written += length;
                outgoing.unflushed = has_more;
                if has_more {
                    outgoing.at = Instant::now();
                }
            }),
        };
        // What has arrived before the end says why.
        self.sort()?;
        done.map_err(|error| StreamProblem::io(self.step, &self.host, &error))
    }

    /// Sorts the complete frames that were read.
    fn sort(&mut self) -> Result<(), StreamProblem> {
        let inbox = std::mem::take(&mut self.inbox);
        let mut rest = inbox.as_slice();
        loop {
            match read_frame(rest) {
                Ok(Some((frame, length))) => {
                    self.take(frame)?;
                    rest = &rest[length..];
                }
                Ok(None) => break,
                Err(NotStream) => return Err(self.surprise()),
            }
        }
        let done = inbox.len() - rest.len();
        self.inbox = inbox;
        self.inbox.drain(..done);
        Ok(())
    }

    fn take(&mut self, frame: StreamFrame) -> Result<(), StreamProblem> {
        match frame {
            StreamFrame::Answer { key, correlation, fields } => {
                self.answers.push_back(LinkAnswer { key, correlation, fields });
            }
            StreamFrame::Tune { frame_max } => {
                let agreed = if frame_max == 0 { FRAME_MAX } else { frame_max.min(FRAME_MAX) };
                self.server.frame_max = usize::try_from(agreed).unwrap_or(usize::MAX);
                let seconds = u32::try_from(self.heartbeat.as_secs()).unwrap_or(u32::MAX);
                put_tune(self.out(), agreed, seconds);
            }
            StreamFrame::Confirm { publisher, ids } => {
                self.events.push_back(StreamEvent::Confirmed { publisher, ids });
            }
            StreamFrame::Refused { publisher, ids } => {
                self.events.push_back(StreamEvent::Refused { publisher, ids });
            }
            StreamFrame::Unavailable { stream } => {
                self.events.push_back(StreamEvent::Unavailable { stream });
            }
            StreamFrame::Close(close) => {
                put_close_answer(self.out(), close.correlation);
                return Err(StreamProblem::closed(self.step, &self.host, &close));
            }
            StreamFrame::Heartbeat | StreamFrame::Other => {}
        }
        Ok(())
    }

    /// Sends a heartbeat if it is due. Must be called at [`Self::beats_at`].
    ///
    /// # Errors
    /// The server has sent nothing for two heartbeats.
    pub(super) fn beat(&mut self) -> Result<(), StreamProblem> {
        let heartbeat = self.heartbeat;
        if self.read_at.elapsed() > 2 * heartbeat {
            let silent = format!("it has sent nothing for {:?}", 2 * heartbeat);
            let error = io::Error::new(io::ErrorKind::TimedOut, silent);
            return Err(StreamProblem::io(self.step, &self.host, &error));
        }
        if self.outgoing.at.elapsed() >= heartbeat / 2 {
            if self.unwritten() == 0 {
                put_heartbeat(self.out());
            }
            self.outgoing.at = Instant::now();
        }
        Ok(())
    }

    /// When a heartbeat is due, or the server has been silent for too long.
    pub(super) fn beats_at(&self) -> Instant {
        let silent = self.read_at + 2 * self.heartbeat + Duration::from_millis(1);
        silent.min(self.outgoing.at + self.heartbeat / 2)
    }

    /// Ends the connection. What is not confirmed may be published or not.
    pub(super) async fn close(mut self) {
        let closed = self.ask(self.step, CLOSE, |out| {
            out.extend_from_slice(&OK.to_be_bytes());
            put_string(out, "");
        });
        // The end of the socket ends the connection too, with a line in the server's log.
        drop(tokio::time::timeout(Duration::from_secs(1), closed).await);
    }
}

fn late(step: StreamStep, place: &str) -> StreamProblem {
    let late = io::Error::new(io::ErrorKind::TimedOut, "no answer");
    StreamProblem::io(step, place, &late)
}
