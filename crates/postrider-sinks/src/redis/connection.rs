//! One connection to a server. Commands are written in the order in which they were added, and replies are taken in
//! the same order. Neither side waits for the other: what can be written is written while replies are read.

use super::problem::{RedisProblem, RedisStep};
use super::resp::{self, Reply};
use super::spec::{Address, RedisLogin, RedisSpec};
use crate::tls;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// Memory for commands that is kept. Unit: bytes.
const KEPT_BYTES: usize = 1 << 20;

/// The longest time for a connection to be made.
const CONNECT_MAX: Duration = Duration::from_secs(10);

enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that is logged in.
pub(super) struct Connection {
    pub(super) address: Address,
    socket: Socket,
    /// Commands of which the first `written` bytes are written.
    out: Vec<u8>,
    written: usize,
    /// Bytes that were read, and no reply yet.
    input: Vec<u8>,
    timeout: Duration,
    /// Bytes of a reply at most.
    reply_max: usize,
}

impl Connection {
    /// Connects and logs in.
    ///
    /// # Errors
    /// The server can't be reached, or refuses the login.
    pub(super) async fn open(
        spec: &RedisSpec,
        address: &Address,
        login: &RedisLogin,
    ) -> Result<Self, RedisProblem> {
        let place = address.to_string();
        let opened = tokio::time::timeout(CONNECT_MAX.min(spec.timeout), async {
            let socket = TcpStream::connect((address.host.as_str(), address.port)).await;
            let socket = socket.map_err(|error| RedisProblem::io("connect to", &place, &error))?;
            // Without it small commands are late, but arrive.
            drop(socket.set_nodelay(true));
            Ok(match &spec.tls {
                None => Socket::Plain(socket),
                Some(files) => {
                    let connected = tls::connect(socket, files, &address.host).await;
                    Socket::Tls(Box::new(connected.map_err(|error| {
                        RedisProblem::io("agree on TLS and certificates with", &place, &error)
                    })?))
                }
            })
        });
        let late = |_elapsed| {
            let error = io::Error::from(io::ErrorKind::TimedOut);
            RedisProblem::io("connect to", &place, &error)
        };
        let socket = opened.await.map_err(late)??;
        let (out, input) = (Vec::new(), Vec::new());
        let (timeout, reply_max) = (spec.timeout, spec.sizes.reply);
        let mut connection =
            Self { address: address.clone(), socket, out, written: 0, input, timeout, reply_max };
        connection.log_in(spec, login).await?;
        Ok(connection)
    }

    async fn log_in(&mut self, spec: &RedisSpec, login: &RedisLogin) -> Result<(), RedisProblem> {
        if let Some(file) = &login.password {
            let password = file.read().map_err(|error| {
                RedisProblem::lost(error.to_string(), "correct the file with the password")
            })?;
            let mut words = vec![b"AUTH".as_slice()];
            if !login.username.is_empty() {
                words.push(login.username.as_bytes());
            }
            words.push(password.as_bytes());
            self.ask(&words, RedisStep::Connect, spec).await?;
        }
        // A name is of use to operators only, and a login may lack the right.
        let name = spec.client_name.as_bytes();
        self.command(&[b"CLIENT", b"SETNAME", name]).await?;
        Ok(())
    }

    /// The commands that are to be sent; others are added behind them.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends one command while no other is waited for, and waits for its reply.
    ///
    /// # Errors
    /// The connection is lost, or there is no reply in time.
    pub(super) async fn command(&mut self, words: &[&[u8]]) -> Result<Reply, RedisProblem> {
        resp::command(&mut self.out, words);
        self.reply().await
    }

    /// As [`Self::command`], for a command that was added to [`Self::out`].
    ///
    /// # Errors
    /// The connection is lost, or there is no reply in time.
    pub(super) async fn reply(&mut self) -> Result<Reply, RedisProblem> {
        self.reply_within(self.timeout).await
    }

    /// As [`Self::command`], for a command for which the server itself may wait so long.
    ///
    /// # Errors
    /// The connection is lost, or there is no reply in time.
    pub(super) async fn ask_slowly(
        &mut self,
        words: &[&[u8]],
        more: Duration,
    ) -> Result<Reply, RedisProblem> {
        resp::command(&mut self.out, words);
        self.reply_within(self.timeout + more).await
    }

    async fn reply_within(&mut self, timeout: Duration) -> Result<Reply, RedisProblem> {
        let reply = poll_fn(|context| self.poll_reply(context));
        match tokio::time::timeout(timeout, reply).await {
            Ok(reply) => reply,
            Err(_elapsed) => Err(self.late()),
        }
    }

    /// Waits until the connection ends, while no reply is outstanding. Cancel-safe.
    pub(super) async fn ended(&mut self) -> RedisProblem {
        match poll_fn(|context| self.poll_reply(context)).await {
            Ok(_unasked) => self.unasked(),
            Err(problem) => problem,
        }
    }

    /// The problem of a reply without a command, such as the reason why the server closes the connection.
    pub(super) fn unasked(&self) -> RedisProblem {
        RedisProblem::lost(
            format!("{} has answered what was not asked", self.address),
            "see the log of the server",
        )
    }

    /// Loads a script. Returns its name.
    ///
    /// # Errors
    /// The server can't be reached, or refuses it.
    pub(super) async fn load(
        &mut self,
        script: &str,
        spec: &RedisSpec,
    ) -> Result<String, RedisProblem> {
        let words: [&[u8]; 3] = [b"SCRIPT", b"LOAD", script.as_bytes()];
        let sha = self.ask(&words, RedisStep::Connect, spec).await?.text();
        sha.ok_or_else(|| {
            let reason = format!("{} has loaded no script", self.address);
            RedisProblem::lost(reason, "let sink.redis.servers name Redis or Valkey")
        })
    }

    /// As [`Self::command`]; an error of the server is an error.
    ///
    /// # Errors
    /// Also an error of the server.
    pub(super) async fn ask(
        &mut self,
        words: &[&[u8]],
        step: RedisStep,
        spec: &RedisSpec,
    ) -> Result<Reply, RedisProblem> {
        let reply = self.command(words).await?;
        let place = self.address.to_string();
        reply.checked().map_err(|error| RedisProblem::server(step, &place, &error, spec))
    }

    /// The problem that a reply does not come.
    pub(super) fn late(&self) -> RedisProblem {
        let timeout = self.timeout;
        RedisProblem::lost(
            format!("no answer of {} within {timeout:?}", self.address),
            "find out why the server does not answer, or raise sink.redis.timeout; the sink connects again \
             automatically",
        )
    }

    /// Writes what can be written, and returns the next reply when there is one. Cancel-safe.
    pub(super) fn poll_reply(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Reply, RedisProblem>> {
        match self.poll_io(context) {
            Poll::Ready(Err(error)) => {
                let place = self.address.to_string();
                Poll::Ready(Err(RedisProblem::io("talk to", &place, &error)))
            }
            Poll::Ready(Ok(reply)) => Poll::Ready(Ok(reply)),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_io(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Reply>> {
        if let Poll::Ready(Err(error)) = self.poll_write(context) {
            return Poll::Ready(Err(error));
        }
        loop {
            let malformed = |_| io::Error::other("the server does not speak the protocol of Redis");
            if let Some((reply, length)) =
                resp::decode(&self.input, self.reply_max).map_err(malformed)?
            {
                self.input.drain(..length);
                return Poll::Ready(Ok(reply));
            }
            let mut bytes = [0; READ_BYTES];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(match &mut self.socket {
                Socket::Plain(socket) => Pin::new(socket).poll_read(context, &mut buffer),
                Socket::Tls(socket) => Pin::new(socket.as_mut()).poll_read(context, &mut buffer),
            })?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.input.extend_from_slice(buffer.filled());
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            let written = ready!(match &mut self.socket {
                Socket::Plain(socket) => Pin::new(socket).poll_write(context, rest),
                Socket::Tls(socket) => Pin::new(socket.as_mut()).poll_write(context, rest),
            })?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
            if self.written > KEPT_BYTES {
                self.out.drain(..self.written);
                self.written = 0;
            }
        }
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES);
        self.written = 0;
        match &mut self.socket {
            Socket::Plain(socket) => Pin::new(socket).poll_flush(context),
            Socket::Tls(socket) => Pin::new(socket.as_mut()).poll_flush(context),
        }
    }
}
