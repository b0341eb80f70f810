//! A connected byte stream to the server: TCP or a Unix socket, after the TLS handshake if TLS is used.
//!
//! The module resolves addresses, sets socket options and sends the `SSLRequest`. [`open`] has no time limit; the
//! caller sets one.

use super::conninfo::{Conninfo, Host, HostAddress, Keepalive, SslMode};
use super::error::{SourceError, SourceErrorKind};
use super::tls;
use bytes::BytesMut;
use postgres_protocol::message::frontend;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

/// A connected stream. Dropping it closes the connection.
pub struct Transport {
    io: Io,
    end_point: Option<Vec<u8>>,
}

enum Io {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Transport {
    /// The `tls-server-end-point` channel binding (RFC 5929, section 4): the hash of the server's certificate. `None`
    /// without TLS, and for a certificate whose signature algorithm has no single hash function (Ed25519).
    pub fn tls_server_end_point(&self) -> Option<Vec<u8>> {
        self.end_point.clone()
    }

    /// Whether the connection uses TLS.
    pub const fn is_tls(&self) -> bool {
        matches!(self.io, Io::Tls(_))
    }

    /// Whether the connection is a Unix socket.
    pub fn is_local(&self) -> bool {
        match &self.io {
            Io::Plain(socket) => matches!(socket, Socket::Unix(_) | Socket::DetachedUnix(_)),
            Io::Tls(_) => false,
        }
    }

    /// A transport over one end of a socket pair.
    #[cfg(test)]
    pub(super) const fn of(socket: UnixStream) -> Self {
        Self { io: Io::Plain(Socket::Unix(socket)), end_point: None }
    }

    /// Deregisters the socket from the runtime. It may be [`attach`](Self::attach)ed to the runtime of another thread.
    pub(super) fn detach(&mut self) -> io::Result<()> {
        self.socket().detach()
    }

    /// Registers a detached socket with the current runtime.
    pub(super) fn attach(&mut self) -> io::Result<()> {
        self.socket().attach()
    }

    fn socket(&mut self) -> &mut Socket {
        match &mut self.io {
            Io::Plain(socket) => socket,
            Io::Tls(stream) => stream.get_mut().0,
        }
    }
}

/// Connects to one host: socket, socket options, TLS. All addresses of a name are tried.
pub(super) async fn open(conninfo: &Conninfo, host: &Host) -> Result<Transport, SourceError> {
    match &host.address {
        HostAddress::Socket(dir) => {
            // As in libpq, a Unix socket never uses TLS, and `sslmode` is ignored.
            let socket = unix(dir, host.port).await;
            let socket = socket.map_err(|error| unreachable_host(host, error))?;
            Ok(Transport { io: Io::Plain(Socket::Unix(socket)), end_point: None })
        }
        HostAddress::Net { name, address } => {
            let stream = match address {
                Some(address) => TcpStream::connect((*address, host.port)).await,
                None => TcpStream::connect((name.as_str(), host.port)).await,
            };
            let stream = stream.map_err(|error| unreachable_host(host, error))?;
            tune(&stream, conninfo).map_err(|error| {
                SourceError::new(SourceErrorKind::System, format!("set up the socket to {host}"))
                    .caused_by(error)
            })?;
            secure(Socket::Tcp(stream), conninfo, host, name).await
        }
    }
}

fn unreachable_host(host: &Host, error: io::Error) -> SourceError {
    SourceError::new(SourceErrorKind::Unreachable, format!("connect to {host}")).caused_by(error)
}

async fn unix(dir: &str, port: u16) -> io::Result<UnixStream> {
    let path = format!("{dir}/.s.PGSQL.{port}");
    let Some(name) = path.strip_prefix('@') else { return UnixStream::connect(&path).await };
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let stream = std::os::unix::net::UnixStream::connect_addr(&address)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Sets the socket options: no Nagle algorithm, because small status updates must not wait, and keepalive and user
/// timeout, so that the kernel also notices a dead peer.
fn tune(stream: &TcpStream, conninfo: &Conninfo) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    if let Some(Keepalive { idle, interval, count }) = conninfo.keepalive {
        let mut keepalive = socket2::TcpKeepalive::new();
        if let Some(idle) = idle {
            keepalive = keepalive.with_time(idle);
        }
        if let Some(interval) = interval {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(count) = count {
            keepalive = keepalive.with_retries(count);
        }
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_keepalive(true)?;
    }
    socket.set_tcp_user_timeout(conninfo.tcp_user_timeout)
}

/// Starts TLS as `sslmode` and `sslnegotiation` ask.
async fn secure(
    mut socket: Socket,
    conninfo: &Conninfo,
    host: &Host,
    name: &str,
) -> Result<Transport, SourceError> {
    let mode = conninfo.ssl.mode;
    if mode == SslMode::Disable {
        return Ok(Transport { io: Io::Plain(socket), end_point: None });
    }
    if !conninfo.ssl.direct {
        match request_tls(&mut socket, host).await? {
            true => {}
            false if mode == SslMode::Prefer => {
                return Ok(Transport { io: Io::Plain(socket), end_point: None });
            }
            false => {
                let doing = format!("use TLS with {host}, which does not offer it");
                return Err(SourceError::new(SourceErrorKind::Tls, doing));
            }
        }
    }
    let (stream, end_point) = tls::connect(socket, &conninfo.ssl, host, name).await?;
    Ok(Transport { io: Io::Tls(Box::new(stream)), end_point })
}

/// Sends the `SSLRequest` and reads the answer of one byte (manual, 54.2.10 "SSL Session Encryption"). More bytes are
/// refused: bytes before the handshake may come from an attacker (CVE-2021-23222).
async fn request_tls(socket: &mut Socket, host: &Host) -> Result<bool, SourceError> {
    let doing = || format!("ask {host} for TLS");
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    socket.write_all(&request).await.map_err(|error| SourceError::io(doing(), error))?;
    let mut answer = [0; 16];
    let count = socket.read(&mut answer).await.map_err(|error| SourceError::io(doing(), error))?;
    match answer.get(..count) {
        Some(b"S") => Ok(true),
        Some(b"N") => Ok(false),
        Some(b"") => Err(SourceError::new(SourceErrorKind::Closed, doing())),
        // A server that can't start a process sends an error in clear text. It is not authenticated, so it is not
        // shown.
        Some([b'E', ..]) => Err(SourceError::new(SourceErrorKind::Unreachable, doing())),
        _ => Err(SourceError::new(SourceErrorKind::Protocol, doing())),
    }
}

/// Maximum size of a direct read: the buffer is zeroed first, which costs more for a larger one. Unit: bytes.
pub(super) const DIRECT_READ_BYTES_MAX: usize = 32 << 10;

/// A socket that can be detached from its runtime. A read from a detached socket returns the bytes that have arrived,
/// or `Pending`, and registers no waker: the caller polls again.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    DetachedTcp(std::net::TcpStream),
    DetachedUnix(std::os::unix::net::UnixStream),
    /// Between two states, while `detach` or `attach` runs, and after one of them failed.
    Moved,
}

impl Socket {
    fn detach(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Moved) {
            Self::Tcp(stream) => Self::DetachedTcp(stream.into_std()?),
            Self::Unix(stream) => Self::DetachedUnix(stream.into_std()?),
            other @ (Self::DetachedTcp(_) | Self::DetachedUnix(_) | Self::Moved) => other,
        };
        Ok(())
    }

    fn attach(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Moved) {
            Self::DetachedTcp(stream) => Self::Tcp(TcpStream::from_std(stream)?),
            Self::DetachedUnix(stream) => Self::Unix(UnixStream::from_std(stream)?),
            other @ (Self::Tcp(_) | Self::Unix(_) | Self::Moved) => other,
        };
        Ok(())
    }
}

fn off_runtime() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotConnected,
        "the socket could not be moved between two runtimes",
    )
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::DetachedTcp(stream) => pending_if_would_block(read_directly(stream, buf)),
            Self::DetachedUnix(stream) => pending_if_would_block(read_directly(stream, buf)),
            Self::Moved => Poll::Ready(Err(off_runtime())),
        }
    }
}

/// Reads once into `buf`, at most [`DIRECT_READ_BYTES_MAX`].
fn read_directly(stream: &mut impl io::Read, buf: &mut ReadBuf<'_>) -> io::Result<()> {
    let room = buf.remaining().min(DIRECT_READ_BYTES_MAX);
    let count = stream.read(buf.initialize_unfilled_to(room))?;
    buf.advance(count);
    Ok(())
}

/// The result of a direct read or write: `Pending` if it would block or was interrupted. No waker is registered.
fn pending_if_would_block<T>(done: io::Result<T>) -> Poll<io::Result<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Poll::Pending,
        done => Poll::Ready(done),
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::DetachedTcp(stream) => pending_if_would_block(io::Write::write(stream, buf)),
            Self::DetachedUnix(stream) => pending_if_would_block(io::Write::write(stream, buf)),
            Self::Moved => Poll::Ready(Err(off_runtime())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::DetachedTcp(_) | Self::DetachedUnix(_) | Self::Moved => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            Io::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
