//! Connections: addresses, TCP, TLS. Files of TLS are read for each connection, because they are renewed while the
//! process runs. Addresses are judged where they are connected to, so a name that resolves to another address the next
//! time is judged again.

use super::spec::{HttpSpec, HttpVersion};
use super::target::{TopicUse, is_private, literal_address};
use crate::fence::Fence;
use crate::tls::{self, TlsFiles, TlsFilesError};
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The name has no address.
    #[error("the host's name has no address: {0}")]
    Resolve(#[source] io::Error),
    /// All addresses are private ones, which the configuration refuses.
    #[error("the host has private addresses only, and sink.http.private_addresses is \"refused\"")]
    Private,
    /// The host does not answer.
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

impl ConnectError {
    /// Whether the server's certificate was refused.
    pub(super) fn is_certificate(&self) -> bool {
        let Self::Tls(error) = self else { return false };
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
    }

    /// How to fix it.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Resolve(_) => "correct the host in sink.http.url, or the name service",
            Self::Private => {
                "give the event's topic a URL of a public host, or set sink.http.private_addresses = \"allowed\" if \
                 the writers of topics may reach this network"
            }
            Self::Tcp(_) | Self::Late(_) => {
                "start the receiver, or correct sink.http.url; the sink connects again automatically"
            }
            Self::Tls(_) if self.is_certificate() => {
                "let the host in sink.http.url be a name of the receiver's certificate, and sink.http.ca_file the \
                 authority that signed it; the sink connects again automatically"
            }
            Self::Tls(_) => {
                "correct sink.http.url (http or https), and sink.http.cert_file and key_file if the receiver asks for \
                 a certificate"
            }
            Self::Files(_) => "correct sink.http.ca_file, cert_file and key_file",
        }
    }
}

/// What a connection is made with. Cloned for each.
#[derive(Clone, Debug)]
pub(super) struct Connector(Arc<ConnectorSettings>);

#[derive(Debug)]
struct ConnectorSettings {
    tls: TlsFiles,
    version: HttpVersion,
    timeout: Duration,
    refuses_private: bool,
    fence: Arc<Fence>,
}

impl Connector {
    pub(super) fn new(spec: &HttpSpec, fence: &Arc<Fence>) -> Self {
        Self(Arc::new(ConnectorSettings {
            tls: spec.tls.clone(),
            version: spec.version,
            timeout: spec.limits.connect_timeout,
            refuses_private: spec.topic == TopicUse::Url && !spec.private,
            fence: Arc::clone(fence),
        }))
    }

    /// For requests to a URL of the configuration: any address is allowed.
    pub(super) fn trusted(spec: &HttpSpec, fence: &Arc<Fence>) -> Self {
        let Self(of_spec) = Self::new(spec, fence);
        Self(Arc::new(ConnectorSettings {
            tls: of_spec.tls.clone(),
            version: HttpVersion::Auto,
            timeout: of_spec.timeout,
            refuses_private: false,
            fence: Arc::clone(fence),
        }))
    }

    /// Connects, with TLS where the URL has it.
    pub(super) async fn connect(&self, uri: &Uri) -> Result<HttpStream, ConnectError> {
        let timeout = self.0.timeout;
        let connecting = tokio::time::timeout(timeout, self.connect_slowly(uri));
        connecting.await.unwrap_or(Err(ConnectError::Late(timeout)))
    }

    async fn connect_slowly(&self, uri: &Uri) -> Result<HttpStream, ConnectError> {
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let host = uri.host().unwrap_or_default();
        // Before the connection: the process may be stopped while it is established.
        let fence = (Arc::clone(&self.0.fence), self.0.fence.number());
        let tcp = self.connect_tcp(uri, host, port).await?;
        if !is_tls {
            let inner = InnerStream::Plain(TokioIo::new(tcp));
            return Ok(HttpStream { inner, fence });
        }
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name)
            .map_err(|invalid| ConnectError::Tls(io::Error::other(invalid)))?;
        let config = client_config(&self.0.tls, self.0.version)?;
        let handshake = TlsConnector::from(Arc::new(config)).connect(name, tcp);
        let stream = handshake.await.map_err(ConnectError::Tls)?;
        let inner = InnerStream::Tls(Box::new(TokioIo::new(stream)));
        Ok(HttpStream { inner, fence })
    }

    async fn connect_tcp(
        &self,
        uri: &Uri,
        host: &str,
        port: u16,
    ) -> Result<TcpStream, ConnectError> {
        let all: Vec<SocketAddr> = if let Some(address) = literal_address(uri) {
            vec![SocketAddr::new(address, port)]
        } else {
            let found = tokio::net::lookup_host((host, port)).await;
            found.map_err(ConnectError::Resolve)?.collect()
        };
        let allowed = |address: &SocketAddr| !self.0.refuses_private || !is_private(address.ip());
        let mut last = if all.is_empty() {
            ConnectError::Resolve(io::Error::from(io::ErrorKind::NotFound))
        } else {
            ConnectError::Private
        };
        for address in all.into_iter().filter(allowed) {
            // An address that does not answer leaves time for the others.
            match tokio::time::timeout(self.0.timeout / 3, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true).map_err(ConnectError::Tcp)?;
                    return Ok(stream);
                }
                Ok(Err(error)) => last = ConnectError::Tcp(named(address.ip(), &error)),
                Err(_late) => last = ConnectError::Late(self.0.timeout / 3),
            }
        }
        Err(last)
    }
}

/// The error with the address that it is about.
fn named(address: IpAddr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

impl tower_service::Service<Uri> for Connector {
    type Response = HttpStream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<HttpStream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(&uri).await })
    }
}

/// A connection, for hyper.
pub(super) struct HttpStream {
    inner: InnerStream,
    /// With the number of the fence when it was made.
    fence: (Arc<Fence>, u64),
}

enum InnerStream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl HttpStream {
    /// Whether both sides have agreed on HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        match &self.inner {
            InnerStream::Plain(_) => false,
            InnerStream::Tls(stream) => stream.inner().get_ref().1.alpn_protocol() == Some(b"h2"),
        }
    }
}

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        if self.is_http2() { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl Read for HttpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            InnerStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            InnerStream::Tls(stream) => Pin::new(&mut **stream).poll_read(context, buffer),
        }
    }
}

impl Write for HttpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let (fence, number) = &self.fence;
        if !fence.admits(*number) {
            let why = "the process was stopped, and another one may publish";
            return Poll::Ready(Err(io::Error::other(why)));
        }
        match &mut self.get_mut().inner {
            InnerStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            InnerStream::Tls(stream) => Pin::new(&mut **stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            InnerStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            InnerStream::Tls(stream) => Pin::new(&mut **stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().inner {
            InnerStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            InnerStream::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(context),
        }
    }
}

// TLS.

fn client_config(files: &TlsFiles, version: HttpVersion) -> Result<ClientConfig, ConnectError> {
    let mut config = tls::client_config(files)?;
    config.alpn_protocols = match version {
        HttpVersion::Auto => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        HttpVersion::One => vec![b"http/1.1".to_vec()],
        HttpVersion::Two => vec![b"h2".to_vec()],
    };
    Ok(config)
}

/// Checks the files, for `postrider check` and at the start.
pub(super) fn check_files(files: &TlsFiles) -> Result<(), ConnectError> {
    client_config(files, HttpVersion::Auto).map(drop)
}
