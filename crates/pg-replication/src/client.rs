//! The SQL connection: `tokio-postgres` on a session that [`crate::handshake`] has logged in.
//!
//! `tokio-postgres` would send the password in clear text if the server asks for that, and supports fewer of libpq's
//! settings. Therefore this crate logs in. `tokio-postgres` then gets a stream on which its startup packet is discarded
//! and answered with the server's earlier answers (parameters, backend key); all later bytes pass through.

use super::conninfo::{Conninfo, Host};
use super::error::{SourceError, SourceErrorKind};
use super::handshake::{self, Purpose, Session};
use super::transport::{self, Transport};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, CancelToken, Client, NoTls};

/// Cancels the statement that a session is executing, over a separate connection (manual, 55.2.8 "Canceling Requests in
/// Progress").
#[derive(Clone)]
pub struct Canceller {
    token: CancelToken,
    conninfo: Conninfo,
    host: Host,
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Canceller {
    /// Sends the cancel request. The server sends no answer: a cancelled statement ends with SQLSTATE 57014, and a
    /// statement that has ended already is not affected.
    ///
    /// # Errors
    /// The server could not be reached within the connection's `connect_timeout`.
    pub async fn cancel(&self) -> Result<(), SourceError> {
        let doing = || format!("cancel a statement on {}", self.host);
        let limit = self.conninfo.connect_timeout;
        let request = async {
            let transport = transport::open(&self.conninfo, &self.host).await?;
            let sent = self.token.cancel_query_raw(transport, NoTls).await;
            sent.map_err(|error| SourceError::control(doing(), error))
        };
        tokio::time::timeout(limit, request).await.unwrap_or_else(|elapsed| {
            Err(SourceError::new(SourceErrorKind::Timeout(limit), doing()).caused_by(elapsed))
        })
    }
}

/// Opens a connection for SQL. The second value is the connection itself: it must be polled for the client to work, and
/// its output is the error that ended the connection (57P01 if the server shuts down).
///
/// The session has `search_path = ''`, so every object must be named with its schema, and fixed settings for the text
/// format of values (`DateStyle`, `TimeZone` and others). `application_name` is used unless the connection string has
/// one.
///
/// # Errors
/// No host could be reached, or the login failed.
pub async fn connect_client(
    conninfo: &Conninfo,
    application_name: &str,
) -> Result<(Client, impl Future<Output = Result<(), SourceError>> + Send + use<>), SourceError> {
    let opened = connect_listening(conninfo, application_name, |_, _| {}).await?;
    let (client, connection, _canceller) = opened;
    Ok((client, connection))
}

/// As [`connect_client`], and calls `notified` with channel and payload of each notification (`LISTEN`). `notified` is
/// called while the connection is polled, so it must not block. The third value cancels the session's statements.
///
/// # Errors
/// As [`connect_client`].
pub async fn connect_listening<F>(
    conninfo: &Conninfo,
    application_name: &str,
    mut notified: F,
) -> Result<
    (Client, impl Future<Output = Result<(), SourceError>> + Send + use<F>, Canceller),
    SourceError,
>
where
    F: FnMut(&str, &str) + Send + 'static,
{
    let session = handshake::connect(conninfo, Purpose::Control, application_name).await?;
    let doing = format!("use the control connection to {}", session.host);
    let host = session.host.clone();
    let mut config = tokio_postgres::Config::new();
    config.user(conninfo.user()).dbname(conninfo.dbname()).ssl_mode(SslMode::Disable);
    let opened = config.connect_raw(LoggedIn::new(session), NoTls).await;
    let (client, mut connection) = opened.map_err(|error| SourceError::control(&doing, error))?;
    let canceller = Canceller { token: client.cancel_token(), conninfo: conninfo.clone(), host };
    // The future owns the connection and drops it at its end, also if the caller keeps the future: otherwise a
    // statement that was created and not yet sent would wait for ever.
    let connection = async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(message)) => {
                    if let AsyncMessage::Notification(message) = message {
                        notified(message.channel(), message.payload());
                    }
                }
                Some(Err(error)) => return Err(SourceError::control(&doing, error)),
                None => return Ok(()),
            }
        }
    };
    Ok((client, connection, canceller))
}

/// A transport after the login. Its reader gets the recorded `greeting` first; the startup packet that is written to it
/// is discarded.
struct LoggedIn {
    transport: Transport,
    greeting: Bytes,
    startup: Startup,
}

/// How much of the startup packet has been discarded.
enum Startup {
    Length { seen: usize, bytes: [u8; 4] },
    Body { left: usize },
}

impl LoggedIn {
    fn new(session: Session) -> Self {
        let mut greeting = BytesMut::new();
        put(&mut greeting, b'R', |body| body.put_u32(0));
        for (name, value) in &session.parameters {
            put(&mut greeting, b'S', |body| {
                for text in [name, value] {
                    body.put_slice(text.as_bytes());
                    body.put_u8(0);
                }
            });
        }
        put(&mut greeting, b'K', |body| {
            body.put_u32(session.backend_pid);
            body.put_u32(session.secret_key);
        });
        put(&mut greeting, b'Z', |body| body.put_u8(b'I'));
        greeting.put_slice(&session.wire.inbox);
        Self {
            transport: session.wire.transport,
            greeting: greeting.freeze(),
            startup: Startup::Length { seen: 0, bytes: [0; 4] },
        }
    }

    /// Discards the bytes of `buf` that belong to the startup packet, and returns how many they are.
    fn discard(&mut self, buf: &[u8]) -> usize {
        let mut taken = 0;
        for byte in buf {
            match &mut self.startup {
                Startup::Length { seen, bytes } => {
                    if let Some(place) = bytes.get_mut(*seen) {
                        *place = *byte;
                    }
                    *seen += 1;
                    if *seen == bytes.len() {
                        let length = usize::try_from(u32::from_be_bytes(*bytes)).unwrap_or(4);
                        self.startup = Startup::Body { left: length.saturating_sub(4) };
                    }
                }
                Startup::Body { left: 0 } => return taken,
                Startup::Body { left } => *left -= 1,
            }
            taken += 1;
        }
        taken
    }
}

fn put(out: &mut BytesMut, tag: u8, body: impl FnOnce(&mut BytesMut)) {
    let mut inner = BytesMut::new();
    body(&mut inner);
    out.put_u8(tag);
    out.put_u32(u32::try_from(inner.len() + 4).unwrap_or(u32::MAX));
    out.put_slice(&inner);
}

impl AsyncRead for LoggedIn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.greeting.has_remaining() {
            let count = this.greeting.len().min(buf.remaining());
            buf.put_slice(&this.greeting.split_to(count));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.transport).poll_read(cx, buf)
    }
}

impl AsyncWrite for LoggedIn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match this.discard(buf) {
            0 => Pin::new(&mut this.transport).poll_write(cx, buf),
            taken => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().transport).poll_shutdown(cx)
    }
}
