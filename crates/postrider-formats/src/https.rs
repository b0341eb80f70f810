//! A client for HTTP and HTTPS: requests to schema registries and to object storage. HTTP/1.1, with connections that
//! are kept for a few seconds. Files of TLS are read for each connection, because they are renewed while the process
//! runs.
//!
//! Everything is bounded: the time to connect, the time of a request with its answer, and the bytes of an answer.
//! Redirects are not followed. Errors have no header, no body and no part of a URL but its host's addresses.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue, USER_AGENT};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use postrider_core::error::Chain;
use postrider_sinks::tls::{self, TlsFiles, TlsFilesError};
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

/// How long a connection is kept without a request. Servers close theirs after 5 s and more.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// The most connections that are kept without a request, for each host.
const IDLE_COUNT_MAX: usize = 8;

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("postrider/", env!("CARGO_PKG_VERSION")));

/// Sends requests. Clones share its connections. Used within a tokio runtime.
#[derive(Clone, Debug)]
pub(crate) struct HttpsClient(Client<HttpsConnector, Full<Bytes>>);

/// A request.
#[derive(Clone)]
pub(crate) struct HttpsRequest {
    pub(crate) method: Method,
    /// With scheme and host: see [`parse_url`].
    pub(crate) url: Uri,
    /// Without `host`, `content-length` and `user-agent`, which the client adds.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The longest time until the whole answer has been read, with the time to connect.
    pub(crate) timeout: Duration,
    /// The largest body of an answer. Unit: bytes.
    pub(crate) answer_bytes_max: usize,
}

impl std::fmt::Debug for HttpsRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpsRequest")
            .field("method", &self.method)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// An answer of any status.
#[derive(Clone)]
pub(crate) struct HttpsAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Why there is no answer. The server may have performed the request, except after [`HttpsError::Connect`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpsError {
    /// There is no connection: nothing was sent.
    #[error("{0}")]
    Connect(Arc<HttpsConnectError>),
    /// Not within the request's time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The answer is larger than its bound. Unit: bytes.
    #[error("the answer has more than {max} bytes")]
    TooLarge {
        /// The bound.
        max: usize,
    },
    /// The connection ended before the answer did.
    #[error("no answer: {0}")]
    Lost(String),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpsConnectError {
    /// The name has no address.
    #[error("the host's name has no address: {0}")]
    Resolve(#[source] io::Error),
    /// The host does not answer at any of its addresses.
    #[error("could not connect: {0}")]
    Tcp(#[source] io::Error),
    /// Not within the time-out.
    #[error("no connection within {0:?}")]
    Late(Duration),
    /// The handshake failed.
    #[error("could not agree on TLS: {0}")]
    Tls(#[source] io::Error),
    /// A file of TLS can't be used.
    #[error(transparent)]
    Files(#[from] TlsFilesError),
}

impl HttpsConnectError {
    /// Whether the server's certificate was refused.
    pub(crate) fn is_certificate(&self) -> bool {
        let Self::Tls(error) = self else { return false };
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
    }
}

/// Reads a URL of the configuration: `http` or `https`, with a host, without a login in it.
///
/// # Errors
/// A clause that says what is wrong, without the URL, which may have a secret in it.
pub(crate) fn parse_url(text: &str) -> Result<Uri, &'static str> {
    let url: Uri = text.parse().map_err(|_unreadable| "is no URL")?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err("must begin with https:// or http://");
    }
    if url.host().is_none_or(str::is_empty) {
        return Err("must name a host");
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("must not have a user or a password in it");
    }
    Ok(url)
}

impl HttpsClient {
    /// A client whose connections have these files of TLS. `connect_timeout` bounds address, TCP and TLS together.
    pub(crate) fn new(tls: TlsFiles, connect_timeout: Duration) -> Self {
        let connector = HttpsConnector(Arc::new(ConnectSettings { tls, timeout: connect_timeout }));
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_COUNT_MAX)
            .build(connector);
        Self(client)
    }

    /// Sends a request once, and reads the answer.
    ///
    /// # Errors
    /// There is no answer within the bounds.
    pub(crate) async fn send(&self, request: HttpsRequest) -> Result<HttpsAnswer, HttpsError> {
        let timeout = request.timeout;
        let sent = tokio::time::timeout(timeout, self.send_slowly(request)).await;
        sent.unwrap_or(Err(HttpsError::Late(timeout)))
    }

    async fn send_slowly(&self, request: HttpsRequest) -> Result<HttpsAnswer, HttpsError> {
        let max = request.answer_bytes_max;
        let mut outgoing = Request::new(Full::new(request.body));
        *outgoing.method_mut() = request.method;
        *outgoing.uri_mut() = request.url;
        *outgoing.headers_mut() = request.headers;
        outgoing.headers_mut().insert(USER_AGENT, AGENT);
        let response = self.0.request(outgoing).await.map_err(|error| of_client(&error))?;
        let (parts, body) = response.into_parts();
        let body = read_body(body, max).await?;
        Ok(HttpsAnswer { status: parts.status, headers: parts.headers, body })
    }
}

/// The connector's own error, if there was no connection.
fn of_client(error: &ClientError) -> HttpsError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(connect) = inner.downcast_ref::<Arc<HttpsConnectError>>() {
            return HttpsError::Connect(Arc::clone(connect));
        }
        source = inner.source();
    }
    HttpsError::Lost(Chain(error).to_string())
}

/// Reads the body of an answer. The rest of a larger one is not read, and its connection not used again.
async fn read_body(body: Incoming, max: usize) -> Result<Bytes, HttpsError> {
    match Limited::new(body, max).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(HttpsError::TooLarge { max }),
        Err(error) => Err(HttpsError::Lost(Chain(&*error).to_string())),
    }
}

// Connections.

/// What a connection is made with. Cloned for each.
#[derive(Clone, Debug)]
struct HttpsConnector(Arc<ConnectSettings>);

#[derive(Debug)]
struct ConnectSettings {
    tls: TlsFiles,
    timeout: Duration,
}

impl HttpsConnector {
    async fn connect(&self, url: &Uri) -> Result<HttpsStream, HttpsConnectError> {
        let timeout = self.0.timeout;
        let connecting = tokio::time::timeout(timeout, self.connect_slowly(url));
        connecting.await.unwrap_or(Err(HttpsConnectError::Late(timeout)))
    }

    async fn connect_slowly(&self, url: &Uri) -> Result<HttpsStream, HttpsConnectError> {
        let is_tls = url.scheme_str() == Some("https");
        let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let tcp = self.connect_tcp(host, port).await?;
        if !is_tls {
            return Ok(HttpsStream::Plain(TokioIo::new(tcp)));
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|invalid| HttpsConnectError::Tls(io::Error::other(invalid)))?;
        let mut config = tls::client_config(&self.0.tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let handshake = TlsConnector::from(Arc::new(config)).connect(name, tcp);
        let stream = handshake.await.map_err(HttpsConnectError::Tls)?;
        Ok(HttpsStream::Tls(Box::new(TokioIo::new(stream))))
    }

    /// Tries each address: a name may have addresses of both families, and only one of them may be reachable.
    async fn connect_tcp(&self, host: &str, port: u16) -> Result<TcpStream, HttpsConnectError> {
        let found = tokio::net::lookup_host((host, port)).await;
        let all: Vec<SocketAddr> = found.map_err(HttpsConnectError::Resolve)?.collect();
        let mut last = HttpsConnectError::Resolve(io::Error::from(io::ErrorKind::NotFound));
        for address in all {
            // An address that does not answer leaves time for the others.
            let limit = self.0.timeout / 3;
            match tokio::time::timeout(limit, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true).map_err(HttpsConnectError::Tcp)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = HttpsConnectError::Tcp(named(address.ip(), &error)),
                Err(_late) => last = HttpsConnectError::Late(limit),
            }
        }
        Err(last)
    }
}

/// The error with the address that it is about.
fn named(address: IpAddr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

impl tower_service::Service<Uri> for HttpsConnector {
    type Response = HttpsStream;
    /// Shared, because hyper lends its errors' sources and does not give them away.
    type Error = Arc<HttpsConnectError>;
    type Future = Pin<Box<dyn Future<Output = Result<HttpsStream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(&url).await.map_err(Arc::new) })
    }
}

/// A connection, for hyper.
enum HttpsStream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for HttpsStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for HttpsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
        }
    }
}

impl Write for HttpsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests;
