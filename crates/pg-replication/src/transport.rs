//! One connected stream to the server: TCP or a Unix socket, with TLS already agreed on where it is to be.
//!
//! Owns addresses, socket options and the TLS request; knows no message of the protocol but that one. `handshake` logs
//! in over it. The caller puts a time limit around [`open`].

use super::conninfo::{Conninfo, Host, Keepalive, Place, SslMode};
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

/// A connected stream. Read and write it as any; it ends when dropped.
pub struct Transport {
    io: Io,
    end_point: Option<Vec<u8>>,
}

enum Io {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Transport {
    /// The `tls-server-end-point` channel binding (RFC 5929, section 4): the hash of the server's certificate.
    ///
    /// `None` without TLS, and where the certificate's signature names no hash (Ed25519).
    pub fn tls_server_end_point(&self) -> Option<Vec<u8>> {
        self.end_point.clone()
    }

    /// Whether TLS is on.
    pub const fn is_tls(&self) -> bool {
        matches!(self.io, Io::Tls(_))
    }

    /// Whether it is a Unix socket.
    pub fn is_local(&self) -> bool {
        match &self.io {
            Io::Plain(socket) => matches!(socket, Socket::Unix(_) | Socket::IdleUnix(_)),
            Io::Tls(_) => false,
        }
    }

    /// A socket that a test has the other end of.
    #[cfg(test)]
    pub(super) const fn of(socket: UnixStream) -> Self {
        Self { io: Io::Plain(Socket::Unix(socket)), end_point: None }
    }

    /// Takes the socket off the runtime it was opened on, to be [`attach`](Self::attach)ed on another thread's.
    pub(super) fn detach(&mut self) -> io::Result<()> {
        self.socket().detach()
    }

    /// Puts a detached socket on the runtime this is called on.
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

/// Connects to one host: socket, options, TLS. Every address of a name is tried.
pub(super) async fn open(conninfo: &Conninfo, host: &Host) -> Result<Transport, SourceError> {
    match &host.place {
        Place::Socket(dir) => {
            // As libpq: TLS makes no sense on a Unix socket, and `sslmode` is not looked at.
            let socket = unix(dir, host.port).await;
            let socket = socket.map_err(|error| unreachable_host(host, error))?;
            Ok(Transport { io: Io::Plain(Socket::Unix(socket)), end_point: None })
        }
        Place::Net { name, address } => {
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

/// Small status updates must not wait for Nagle, and a silent peer must be noticed by the kernel too.
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

/// Agrees on TLS as `sslmode` asks.
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

/// Sends the `SSLRequest` and reads its one byte of answer. More than one byte is refused: what comes before the
/// handshake is not the server's word (CVE-2021-23222).
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
        // An error message in the clear proves nothing, so it is not even shown: a server out of processes sends one.
        Some([b'E', ..]) => Err(SourceError::new(SourceErrorKind::Unreachable, doing())),
        _ => Err(SourceError::new(SourceErrorKind::Protocol, doing())),
    }
}

/// Most bytes of one read off the runtime: they are written with zeros before, which a larger buffer would pay for.
pub(super) const AT_ONCE_BYTES: usize = 32 << 10;

/// A socket that can change its runtime. Off it, a read gives what is there and wakes nobody.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    IdleTcp(std::net::TcpStream),
    IdleUnix(std::os::unix::net::UnixStream),
    Gone,
}

impl Socket {
    fn detach(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Gone) {
            Self::Tcp(stream) => Self::IdleTcp(stream.into_std()?),
            Self::Unix(stream) => Self::IdleUnix(stream.into_std()?),
            other @ (Self::IdleTcp(_) | Self::IdleUnix(_) | Self::Gone) => other,
        };
        Ok(())
    }

    fn attach(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Gone) {
            Self::IdleTcp(stream) => Self::Tcp(TcpStream::from_std(stream)?),
            Self::IdleUnix(stream) => Self::Unix(UnixStream::from_std(stream)?),
            other @ (Self::Tcp(_) | Self::Unix(_) | Self::Gone) => other,
        };
        Ok(())
    }
}

fn off_runtime() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket is between two runtimes")
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
            Self::IdleTcp(stream) => at_once(filled(stream, buf)),
            Self::IdleUnix(stream) => at_once(filled(stream, buf)),
            Self::Gone => Poll::Ready(Err(off_runtime())),
        }
    }
}

/// One read into `buf`, of no more than [`AT_ONCE_BYTES`].
fn filled(stream: &mut impl io::Read, buf: &mut ReadBuf<'_>) -> io::Result<()> {
    let room = buf.remaining().min(AT_ONCE_BYTES);
    let count = stream.read(buf.initialize_unfilled_to(room))?;
    buf.advance(count);
    Ok(())
}

/// Off the runtime nobody is woken: who reads there asks again by himself.
fn at_once<T>(done: io::Result<T>) -> Poll<io::Result<T>> {
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
            Self::IdleTcp(stream) => at_once(io::Write::write(stream, buf)),
            Self::IdleUnix(stream) => at_once(io::Write::write(stream, buf)),
            Self::Gone => Poll::Ready(Err(off_runtime())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::IdleTcp(_) | Self::IdleUnix(_) | Self::Gone => Poll::Ready(Ok(())),
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
