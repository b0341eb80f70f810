//! A connection to RabbitMQ: login, requests, and the frames in both directions. A sink publishes over it, or a
//! consumer reads.
//!
//! Written for the sink instead of taking a client library. The library that is in use with RabbitMQ (`lapin`) gives a
//! returned message to whichever confirm is resolved next, so that a message which no queue has got can look
//! confirmed; it writes returned payloads to the log; and a connection that is given up goes on sending from a thread
//! of its own.

use super::codec::{
    CHANNEL_OPEN_OK, CONNECTION_OPEN_OK, DeliveredProperties, DeliveredTo, FRAME_PAYLOAD_MAX,
    Frame, Method, PROTOCOL_HEADER, QUEUE_DECLARE_OK, QueueCounts, ReturnedProperties, ServerClose,
    put_counted, put_heartbeat, put_long, put_method, put_short, put_true, read_delivered,
    read_frame,
};
use super::problem::{RabbitProblem, RabbitStep};
use super::spec::{PasswordSource, RabbitHost, RabbitSpec};
use crate::moment::Moment;
use crate::tls;
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;

/// The channel on which messages are published, or delivered.
pub(super) const PUBLISH: u16 = 1;
/// The channel of requests that may be refused, which closes it.
pub(super) const ASK: u16 = 2;

/// The longest time for connecting and the login, and for one request.
const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Bytes of AMQP frames that are read at once.
const READ_BYTES: usize = 64 << 10;

/// The largest frame that this client takes, and the smallest that AMQP allows as a limit.
const FRAME_MAX: usize = FRAME_PAYLOAD_MAX;
const FRAME_MIN: usize = 4_096;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// A message that no queue has got. `Debug` shows sizes only.
pub(super) struct ReturnedMessage {
    pub(super) routing_key: Vec<u8>,
    pub(super) properties: ReturnedProperties,
    pub(super) body: Vec<u8>,
}

impl Debug for ReturnedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReturnedMessage").field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

/// A message that is delivered to a consumer. `Debug` shows sizes only.
#[derive(Default)]
pub(super) struct DeliveredMessage {
    pub(super) to: DeliveredTo,
    /// `None` until they have come.
    pub(super) properties: Option<DeliveredProperties>,
    pub(super) body_size: u64,
    pub(super) body: Vec<u8>,
}

impl DeliveredMessage {
    /// Whether all of it has come.
    fn is_whole(&self) -> bool {
        self.properties.is_some() && self.body.len() as u64 >= self.body_size
    }
}

impl Debug for DeliveredMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveredMessage").field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

/// What the server has sent without a request.
#[derive(Debug)]
pub(super) enum LinkEvent {
    Delivered(DeliveredMessage),
    /// The server has ended the consumer.
    Cancelled,
    Confirmed {
        tag: u64,
        multiple: bool,
        stored: bool,
    },
    Returned(ReturnedMessage),
    Blocked(String),
    Unblocked,
    /// The server has closed a channel.
    ChannelClosed(u16, ServerClose),
}

/// Bytes that are to be written, and when something was written last.
struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    /// What was written may still be in a buffer of TLS.
    unflushed: bool,
    at: Instant,
}

/// Bytes that were read and are no whole frame yet, and when something was read last.
struct Incoming {
    bytes: Vec<u8>,
    at: Instant,
    /// Whether anything is read: not while as much has come as may be in memory.
    is_open: bool,
    /// When this process was last seen to run.
    alive: Moment,
}

/// Messages of which parts have come.
#[derive(Default)]
struct Contents {
    returning: Option<ReturnedMessage>,
    delivering: Option<DeliveredMessage>,
}

/// What the server has said of itself at the login.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ServerFacts {
    pub(super) product: String,
    pub(super) version: String,
}

/// An open connection.
pub(super) struct AmqpLink {
    host: String,
    reader: ReadHalf<Box<dyn Duplex>>,
    writer: WriteHalf<Box<dyn Duplex>>,
    incoming: Incoming,
    outgoing: Outgoing,
    events: VecDeque<LinkEvent>,
    replies: VecDeque<(u16, Method)>,
    contents: Contents,
    /// Of the queue that was last looked up.
    counts: QueueCounts,
    /// What the connection is used for now, to tell what an error means.
    step: RabbitStep,
    limits: LinkLimits,
    pub(super) server: ServerFacts,
}

#[derive(Clone, Copy)]
struct LinkLimits {
    frame_max: usize,
    heartbeat: Duration,
}

impl Debug for AmqpLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("host", &self.host).finish_non_exhaustive()
    }
}

impl AmqpLink {
    /// Connects to one of the servers, logs in, and opens the virtual host and channel [`PUBLISH`].
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(super) async fn open(spec: &RabbitSpec, host: &RabbitHost) -> Result<Self, RabbitProblem> {
        let place = host.to_string();
        let mut step = RabbitStep::Connect;
        let opened = tokio::time::timeout(ANSWER_MAX, async {
            let socket = socket(spec, host).await;
            let socket = socket.map_err(|error| RabbitProblem::io(step, &place, &error))?;
            step = RabbitStep::Login;
            let (reader, writer) = tokio::io::split(socket);
            let now = Instant::now();
            let bytes = PROTOCOL_HEADER.to_vec();
            let mut link = Self {
                host: place.clone(),
                reader,
                writer,
                incoming: Incoming {
                    bytes: Vec::new(),
                    at: now,
                    is_open: true,
                    alive: Moment::now(),
                },
                outgoing: Outgoing { bytes, written: 0, unflushed: false, at: now },
                events: VecDeque::new(),
                replies: VecDeque::new(),
                contents: Contents::default(),
                counts: QueueCounts::default(),
                step,
                limits: LinkLimits { frame_max: FRAME_MAX, heartbeat: spec.heartbeat },
                server: ServerFacts::default(),
            };
            link.log_in(spec).await?;
            // Nothing was held by this connection before.
            link.incoming.alive = Moment::now();
            link.open_channel(PUBLISH, spec).await?;
            Ok(link)
        });
        opened.await.unwrap_or_else(|_elapsed| {
            let late = io::Error::new(io::ErrorKind::TimedOut, "no answer");
            Err(RabbitProblem::io(step, &place, &late))
        })
    }

    async fn log_in(&mut self, spec: &RabbitSpec) -> Result<(), RabbitProblem> {
        let Method::Start { product, version, mechanisms } = self.reply(0, spec).await? else {
            return Err(self.surprise());
        };
        self.server = ServerFacts { product, version };
        let mechanism = if spec.address.user.is_some() { "PLAIN" } else { "EXTERNAL" };
        if !mechanisms.split(' ').any(|offered| offered == mechanism) {
            let reason = format!("RabbitMQ at {} offers no login by {mechanism}", self.host);
            let hint = "allow it by auth_mechanisms in rabbitmq.conf; EXTERNAL needs the plugin \
                        rabbitmq_auth_mechanism_ssl. A url with a user logs in by PLAIN";
            return Err(RabbitProblem::new(self.step, reason, Some(hint.to_owned())));
        }
        let login = login(spec)?;
        let response = login.map(|(user, password)| format!("\0{user}\0{password}"));
        let response = response.unwrap_or_default();
        put_method(&mut self.outgoing.bytes, 0, (10, 11), |out| {
            put_counted(out, |out| put_client_properties(out, &spec.pipeline));
            put_short(out, mechanism.as_bytes());
            put_long(out, response.as_bytes());
            put_short(out, b"en_US");
        });
        let Method::Tune { channel_max, frame_max } = self.reply(0, spec).await? else {
            return Err(self.surprise());
        };
        let frame_max = usize::try_from(frame_max).ok().filter(|max| *max > 0);
        let frame_max = frame_max.unwrap_or(FRAME_MAX).clamp(FRAME_MIN, FRAME_MAX);
        // The server takes the client's heartbeat as it is.
        let seconds = u16::try_from(spec.heartbeat.as_secs()).unwrap_or(u16::MAX);
        self.limits = LinkLimits { frame_max, heartbeat: spec.heartbeat };
        let out = &mut self.outgoing.bytes;
        put_method(out, 0, (10, 31), |out| {
            out.extend_from_slice(&channel_max.to_be_bytes());
            out.extend_from_slice(&u32::try_from(frame_max).unwrap_or(u32::MAX).to_be_bytes());
            out.extend_from_slice(&seconds.to_be_bytes());
        });
        put_method(out, 0, (10, 40), |out| {
            put_short(out, spec.address.vhost.as_bytes());
            out.extend_from_slice(&[0, 0]);
        });
        self.step = RabbitStep::Open;
        let (class, method) = CONNECTION_OPEN_OK;
        let opened = self.reply(0, spec).await? == Method::Other(class, method);
        if opened { Ok(()) } else { Err(self.surprise()) }
    }

    fn surprise(&self) -> RabbitProblem {
        let hint = Some("correct the address: another server answers there".to_owned());
        let reason = format!("what answers at {} is no RabbitMQ", self.host);
        RabbitProblem::new(self.step, reason, hint)
    }

    /// The server that is connected to.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Bytes of the largest frame.
    pub(super) fn frame_max(&self) -> usize {
        self.limits.frame_max
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

    /// Reads, or stops reading; heartbeats are sent all the same.
    pub(super) fn set_reads(&mut self, reads: bool) {
        if reads && !self.incoming.is_open {
            self.incoming.at = Instant::now();
        }
        self.incoming.is_open = reads;
    }

    pub(super) fn next_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    /// Opens a channel.
    pub(super) async fn open_channel(
        &mut self,
        channel: u16,
        spec: &RabbitSpec,
    ) -> Result<(), RabbitProblem> {
        put_method(self.out(), channel, (20, 10), |out| put_short(out, b""));
        match self.answer(channel, CHANNEL_OPEN_OK, spec).await? {
            Ok(()) => Ok(()),
            Err(close) => Err(RabbitProblem::closed(self.step, &close, spec)),
        }
    }

    /// Sends a request on channel [`ASK`], which is opened for it and closed after it. `Err` inside: the refusal.
    pub(super) async fn ask(
        &mut self,
        step: RabbitStep,
        request: (u16, u16),
        expected: (u16, u16),
        spec: &RabbitSpec,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Result<(), ServerClose>, RabbitProblem> {
        let before = std::mem::replace(&mut self.step, step);
        let answered = tokio::time::timeout(ANSWER_MAX, async {
            self.open_channel(ASK, spec).await?;
            put_method(self.out(), ASK, request, write);
            let answer = self.answer(ASK, expected, spec).await?;
            if answer.is_ok() {
                put_method(self.out(), ASK, (20, 40), |out| {
                    out.extend_from_slice(&[0, 200]);
                    put_short(out, b"");
                    out.extend_from_slice(&[0; 4]);
                });
                if let Err(close) = self.answer(ASK, (20, 41), spec).await? {
                    return Err(RabbitProblem::closed(step, &close, spec));
                }
            }
            Ok(answer)
        });
        let answer = answered.await.unwrap_or_else(|_elapsed| {
            let late = io::Error::new(io::ErrorKind::TimedOut, "no answer");
            Err(RabbitProblem::io(step, &self.host, &late))
        });
        self.step = before;
        answer
    }

    /// Sends a request on channel [`PUBLISH`], before anything is published.
    pub(super) async fn set_up(
        &mut self,
        request: (u16, u16),
        expected: (u16, u16),
        spec: &RabbitSpec,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), RabbitProblem> {
        put_method(self.out(), PUBLISH, request, write);
        match self.answer(PUBLISH, expected, spec).await? {
            Ok(()) => Ok(()),
            Err(close) => Err(RabbitProblem::closed(self.step, &close, spec)),
        }
    }

    /// What a queue has; the refusal if it does not exist.
    pub(super) async fn queue(
        &mut self,
        name: &str,
        spec: &RabbitSpec,
    ) -> Result<Result<QueueCounts, ServerClose>, RabbitProblem> {
        let passive = |out: &mut Vec<u8>| {
            out.extend_from_slice(&[0, 0]);
            put_short(out, name.as_bytes());
            // Passive: nothing is created.
            out.push(1);
            put_counted(out, |_| ());
        };
        let asked = self.ask(RabbitStep::Queue, (50, 10), QUEUE_DECLARE_OK, spec, passive).await?;
        Ok(asked.map(|()| self.counts))
    }

    /// From now on errors are those of consuming.
    pub(super) fn consumes(&mut self) {
        self.step = RabbitStep::Consume;
    }

    /// From now on errors are those of publishing.
    pub(super) fn publishes(&mut self) {
        self.step = RabbitStep::Publish;
        self.incoming.alive = Moment::now();
    }

    /// When this process was last seen to run.
    pub(super) fn alive(&self) -> Moment {
        self.incoming.alive
    }

    /// While this process stood still, the server may have ended the connection, and another process may publish. Must
    /// be called more often than once a heartbeat, also while a request is waited for.
    ///
    /// # Errors
    /// The process stood still for longer than a heartbeat.
    pub(super) fn notice_stall(&mut self) -> Result<(), RabbitProblem> {
        let stood = self.incoming.alive.elapsed();
        if stood > self.limits.heartbeat {
            let reason = format!("this process stood still for {stood:.0?}");
            return Err(RabbitProblem::new(RabbitStep::Publish, reason, None));
        }
        self.incoming.alive = Moment::now();
        Ok(())
    }

    async fn answer(
        &mut self,
        channel: u16,
        expected: (u16, u16),
        spec: &RabbitSpec,
    ) -> Result<Result<(), ServerClose>, RabbitProblem> {
        loop {
            let closed = |event: &LinkEvent| matches!(event, LinkEvent::ChannelClosed(closed, _) if *closed == channel);
            let at = self.events.iter().position(closed);
            if let Some(LinkEvent::ChannelClosed(_, close)) =
                at.and_then(|at| self.events.remove(at))
            {
                return Ok(Err(close));
            }
            while let Some((of, method)) = self.replies.pop_front() {
                if of == channel && method.answer() == Some(expected) {
                    return Ok(Ok(()));
                }
            }
            let half = Instant::now() + self.limits.heartbeat / 2;
            let due = tokio::time::Instant::from_std(self.beats_at().min(half));
            tokio::select! {
                turned = self.turn(spec) => turned?,
                () = tokio::time::sleep_until(due) => {}
            }
            self.beat()?;
            self.notice_stall()?;
        }
    }

    async fn reply(&mut self, channel: u16, spec: &RabbitSpec) -> Result<Method, RabbitProblem> {
        loop {
            while let Some((of, method)) = self.replies.pop_front() {
                if of == channel {
                    return Ok(method);
                }
            }
            self.turn(spec).await?;
        }
    }

    /// Reads or writes once, whichever is possible first, and sorts what was read. Cancel-safe.
    pub(super) async fn turn(&mut self, spec: &RabbitSpec) -> Result<(), RabbitProblem> {
        let outgoing = &mut self.outgoing;
        let more = outgoing.bytes.get(outgoing.written..).unwrap_or_default();
        let (has_more, writer) = (!more.is_empty(), &mut self.writer);
        let progress = async {
            if has_more { writer.write(more).await } else { writer.flush().await.map(|()| 0) }
        };
        let is_written = !has_more && !outgoing.unflushed;
        if !self.incoming.is_open && is_written {
            return std::future::pending().await;
        }
        self.incoming.bytes.reserve(READ_BYTES);
        let done = tokio::select! {
            read = self.reader.read_buf(&mut self.incoming.bytes), if self.incoming.is_open => match read {
                Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed it")),
                Ok(_) => {
                    self.incoming.at = Instant::now();
                    Ok(())
                }
                Err(error) => Err(error),
            },
            wrote = progress, if !is_written => wrote.map(|length| {
                outgoing.written += length;
                outgoing.unflushed = has_more;
                if has_more {
                    outgoing.at = Instant::now();
                }
            }),
        };
        // What has arrived before the end says why.
        self.sort(spec)?;
        done.map_err(|error| RabbitProblem::io(self.step, &self.host, &error))
    }

    /// Sorts the complete frames that were read.
    fn sort(&mut self, spec: &RabbitSpec) -> Result<(), RabbitProblem> {
        let inbox = std::mem::take(&mut self.incoming.bytes);
        let mut rest = inbox.as_slice();
        loop {
            match read_frame(rest) {
                Ok(Some((channel, frame, length))) => {
                    self.take(channel, frame, spec)?;
                    rest = &rest[length..];
                }
                Ok(None) => break,
                Err(super::codec::NotAmqp) => return Err(self.surprise()),
            }
        }
        let done = inbox.len() - rest.len();
        self.incoming.bytes = inbox;
        self.incoming.bytes.drain(..done);
        Ok(())
    }

    fn take(
        &mut self,
        channel: u16,
        frame: Frame<'_>,
        spec: &RabbitSpec,
    ) -> Result<(), RabbitProblem> {
        match frame {
            Frame::Heartbeat => {}
            Frame::Header(properties, payload) => {
                if let Some(delivering) = &mut self.contents.delivering {
                    delivering.body_size = properties.body_size;
                    delivering.properties = Some(read_delivered(payload).unwrap_or_default());
                    self.delivered_whole();
                    return Ok(());
                }
                if let Some(returning) = &mut self.contents.returning {
                    returning.properties = properties;
                }
                self.returned_whole();
            }
            Frame::Body(part) => {
                if let Some(delivering) = &mut self.contents.delivering {
                    delivering.body.extend_from_slice(part);
                    self.delivered_whole();
                    return Ok(());
                }
                if let Some(returning) = &mut self.contents.returning {
                    returning.body.extend_from_slice(part);
                }
                self.returned_whole();
            }
            Frame::Method(method) => return self.take_method(channel, method, spec),
        }
        Ok(())
    }

    fn take_method(
        &mut self,
        channel: u16,
        method: Method,
        spec: &RabbitSpec,
    ) -> Result<(), RabbitProblem> {
        let event = match method {
            Method::ConnectionClose(close) => {
                return Err(RabbitProblem::closed(self.step, &close, spec));
            }
            Method::ChannelClose(close) => {
                put_method(self.out(), channel, (20, 41), |_| ());
                LinkEvent::ChannelClosed(channel, close)
            }
            Method::Blocked(reason) => LinkEvent::Blocked(reason),
            Method::Unblocked => LinkEvent::Unblocked,
            Method::Ack { tag, multiple } => LinkEvent::Confirmed { tag, multiple, stored: true },
            Method::Nack { tag, multiple } => LinkEvent::Confirmed { tag, multiple, stored: false },
            Method::Return { routing_key } => {
                let properties = ReturnedProperties::default();
                self.contents.returning =
                    Some(ReturnedMessage { routing_key, properties, body: Vec::new() });
                return Ok(());
            }
            Method::Deliver(to) => {
                self.contents.delivering =
                    Some(DeliveredMessage { to, ..DeliveredMessage::default() });
                return Ok(());
            }
            Method::Cancel => LinkEvent::Cancelled,
            Method::DeclareOk(counts) => {
                self.counts = counts;
                self.replies.push_back((channel, method));
                return Ok(());
            }
            Method::Start { .. }
            | Method::Tune { .. }
            | Method::ConnectionCloseOk
            | Method::Other(..) => {
                self.replies.push_back((channel, method));
                return Ok(());
            }
        };
        self.events.push_back(event);
        Ok(())
    }

    /// A delivered message is complete with its last body frame, or with its properties if it is empty.
    fn delivered_whole(&mut self) {
        let whole = self.contents.delivering.take_if(|message| message.is_whole());
        self.events.extend(whole.map(LinkEvent::Delivered));
    }

    /// A returned message is complete with its last body frame.
    fn returned_whole(&mut self) {
        let whole = self
            .contents
            .returning
            .take_if(|message| message.body.len() as u64 >= message.properties.body_size);
        self.events.extend(whole.map(LinkEvent::Returned));
    }

    /// Sends a heartbeat if it is due. Must be called at [`Self::beats_at`].
    ///
    /// # Errors
    /// The server has sent nothing for two heartbeats.
    pub(super) fn beat(&mut self) -> Result<(), RabbitProblem> {
        let LinkLimits { heartbeat, .. } = self.limits;
        if self.incoming.is_open && self.incoming.at.elapsed() > 2 * heartbeat {
            let silent = format!("it has sent nothing for {:?}", 2 * heartbeat);
            let error = io::Error::new(io::ErrorKind::TimedOut, silent);
            return Err(RabbitProblem::io(self.step, &self.host, &error));
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
        let LinkLimits { heartbeat, .. } = self.limits;
        let silent = self.incoming.at + 2 * heartbeat + Duration::from_millis(1);
        let beat = self.outgoing.at + heartbeat / 2;
        if self.incoming.is_open { silent.min(beat) } else { beat }
    }

    /// Ends the connection. What is not confirmed may be published or not.
    pub(super) async fn close(mut self, spec: &RabbitSpec) {
        put_method(self.out(), 0, (10, 50), |out| {
            out.extend_from_slice(&[0, 200]);
            put_short(out, b"");
            out.extend_from_slice(&[0; 4]);
        });
        let closed = async {
            while !matches!(self.reply(0, spec).await, Ok(Method::ConnectionCloseOk) | Err(_)) {}
        };
        // The end of the socket ends the connection too, with a line in the server's log.
        drop(tokio::time::timeout(Duration::from_secs(1), closed).await);
    }
}

pub(super) async fn socket(spec: &RabbitSpec, host: &RabbitHost) -> io::Result<Box<dyn Duplex>> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
    stream.set_nodelay(true)?;
    if spec.address.tls {
        return Ok(Box::new(tls::connect(stream, &spec.files, &host.name).await?));
    }
    Ok(Box::new(stream))
}

/// User and password; `None` if the client's certificate is the login.
///
/// # Errors
/// The file with the password can't be read.
pub(super) fn login(spec: &RabbitSpec) -> Result<Option<(String, String)>, RabbitProblem> {
    let Some(user) = &spec.address.user else { return Ok(None) };
    let password = match &spec.address.password {
        PasswordSource::Text(text) => text.clone(),
        PasswordSource::File(file) => file.read().map_err(|error| {
            let hint = "correct sink.rabbitmq.password_file".to_owned();
            RabbitProblem::new(RabbitStep::Login, format!("the password: {error}"), Some(hint))
        })?,
    };
    Ok(Some((user.clone(), password)))
}

fn put_client_properties(out: &mut Vec<u8>, pipeline: &str) {
    for (name, value) in [
        ("product", "Postrider"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("connection_name", &format!("postrider {pipeline}")),
    ] {
        super::codec::put_field(out, name, Some(value.as_bytes()));
    }
    put_short(out, b"capabilities");
    out.push(b'F');
    put_counted(out, |out| {
        for name in [
            "publisher_confirms",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            // Without it a refused login looks like a lost connection.
            "authentication_failure_close",
        ] {
            put_true(out, name);
        }
    });
}
