//! A proxy with TLS before a registry, which passes only requests with a certain login.

use crate::private::PrivateRegistry;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The proxy. It ends with this value.
pub(super) struct LoginProxy {
    pub(super) port: u16,
    wanted: Arc<Mutex<String>>,
    _accepting: JoinSet<()>,
}

impl LoginProxy {
    /// Listens with the certificate that was made for the registry's test.
    pub(super) fn start(registry: &PrivateRegistry) -> Self {
        let chain = CertificateDer::from_pem_file(registry.file("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(registry.file("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let listener = TcpListener::from_std(listener).unwrap();
        let wanted = Arc::new(Mutex::new(String::new()));
        let (of_task, to) = (Arc::clone(&wanted), registry.port());
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, wanted) = (acceptor.clone(), Arc::clone(&of_task));
                connections.spawn(async move {
                    // A client that leaves ends its connection, and nothing else.
                    drop(pass(acceptor, stream, to, &wanted).await);
                });
            }
        });
        Self { port, wanted, _accepting: accepting }
    }

    /// From now on requests pass that have this value of header `Authorization`.
    pub(super) fn wants(&self, login: &str) {
        login.clone_into(&mut self.wanted.lock().unwrap());
    }
}

/// Passes one request on, and its answer back.
async fn pass(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    to: u16,
    wanted: &Mutex<String>,
) -> std::io::Result<()> {
    let mut client = acceptor.accept(stream).await?;
    let (mut request, mut buffer) = (String::new(), [0; 4096]);
    while !request.contains("\r\n\r\n") {
        let count = client.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        request.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    let login = format!("authorization: {}\r\n", wanted.lock().unwrap());
    if !request.to_ascii_lowercase().contains(&login.to_ascii_lowercase()) {
        let refused = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        client.write_all(refused.as_bytes()).await?;
        return client.shutdown().await;
    }
    let mut server = TcpStream::connect(("127.0.0.1", to)).await?;
    // The requests of the test have no body.
    let request = request.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    server.write_all(request.as_bytes()).await?;
    tokio::io::copy(&mut server, &mut client).await?;
    client.shutdown().await
}
