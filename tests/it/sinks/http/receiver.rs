//! A receiver of webhooks that a test kills, freezes and scripts. It keeps what it has processed.

use crate::await_that::{SOON, await_that};
use crate::private::free_port;
use crate::topic::ReadRecord;
use crate::wal_connection::login::make_certificates;
use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs;
use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The path of the receiver's URL.
pub(super) const BASE: &str = "/hooks";

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) path: String,
    pub(super) version: axum::http::Version,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
    pub(super) at: Instant,
    /// The status it was answered with.
    pub(super) status: u16,
}

impl Received {
    /// A header with its percent signs decoded.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| decoded(value.as_bytes()))
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    /// What a consumer makes of it.
    fn record(&self, offset: usize) -> ReadRecord {
        const OURS: [&str; 8] = [
            "key",
            "host",
            "user-agent",
            "content-length",
            "idempotency-key",
            "authorization",
            "accept",
            "connection",
        ];
        let is_of_event = |name: &&axum::http::HeaderName| {
            !OURS.contains(&name.as_str()) && !name.as_str().starts_with("webhook-")
        };
        let headers =
            self.headers.iter().filter(|(name, _)| is_of_event(name)).map(|(name, value)| {
                (name.to_string(), Some(decoded(value.as_bytes()).into_bytes()))
            });
        ReadRecord {
            partition: 0,
            offset: i64::try_from(offset).expect("an offset"),
            key: self.header("key").map(String::into_bytes),
            value: Some(self.body.clone()).filter(|body| !body.is_empty()),
            headers: headers.collect(),
            timestamp: None,
        }
    }
}

/// Decodes percent signs, in a way of its own.
pub(super) fn decoded(text: &[u8]) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            _ => bytes.push(first),
        }
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// What a script makes of a request; none: what the receiver's state says.
pub(super) type Script = Box<dyn FnMut(&Received) -> Option<Reply> + Send>;

/// A scripted answer.
#[derive(Clone, Default)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// How long it takes. The request is processed first.
    pub(super) after: Duration,
}

impl Reply {
    pub(super) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }
}

/// What survives a kill.
struct Shared {
    state: Mutex<State>,
    frozen: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    log: BTreeMap<String, Vec<Received>>,
    /// Requests that were not published.
    refused: Vec<Received>,
    destinations: BTreeSet<String>,
    /// Requests of any method, with those that only ask.
    asked: usize,
    connections: usize,
    limit: Option<usize>,
    forbidden: bool,
    script: Option<Script>,
    /// The status of OPTIONS, whatever the destination is.
    options: Option<u16>,
}

/// The receiver, with a plain port and one with TLS.
pub(super) struct Receiver {
    pub(super) port: u16,
    pub(super) tls_port: u16,
    pub(super) certificates: TempDir,
    asks_certificates: bool,
    shared: Arc<Shared>,
    /// What ends it, and its thread.
    running: Option<(watch::Sender<bool>, JoinHandle<()>)>,
}

impl Receiver {
    pub(super) async fn start() -> Self {
        Self::start_with(false).await
    }

    /// `asks_certificates`: the port with TLS takes only clients with a certificate.
    pub(super) async fn start_with(asks_certificates: bool) -> Self {
        let certificates = TempDir::new().expect("a directory");
        make_certificates(certificates.path());
        let shared = Shared { state: Mutex::default(), frozen: watch::Sender::new(false) };
        let mut receiver = Self {
            port: free_port(),
            tls_port: free_port(),
            certificates,
            asks_certificates,
            shared: Arc::new(shared),
            running: None,
        };
        receiver.listen().await;
        receiver
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn create(&self, destination: &str) {
        self.state().destinations.insert(destination.to_owned());
    }

    pub(super) fn delete(&self, destination: &str) {
        let mut state = self.state();
        state.destinations.remove(destination);
        state.log.remove(destination);
    }

    pub(super) fn limit(&self, bytes: Option<usize>) {
        self.state().limit = bytes;
    }

    pub(super) fn forbid(&self, forbidden: bool) {
        self.state().forbidden = forbidden;
    }

    pub(super) fn script(&self, script: impl FnMut(&Received) -> Option<Reply> + Send + 'static) {
        self.state().script = Some(Box::new(script));
    }

    pub(super) fn answer_options(&self, status: u16) {
        self.state().options = Some(status);
    }

    /// The published requests of a destination, in the order in which they were processed.
    pub(super) fn received(&self, destination: &str) -> Vec<Received> {
        self.state().log.get(destination).cloned().unwrap_or_default()
    }

    /// Requests that were answered with something else than 2xx.
    pub(super) fn refused(&self) -> Vec<Received> {
        self.state().refused.clone()
    }

    pub(super) fn asked(&self) -> usize {
        self.state().asked
    }

    pub(super) fn connections(&self) -> usize {
        self.state().connections
    }

    pub(super) fn records(&self, destination: &str) -> Result<Vec<ReadRecord>, String> {
        let state = self.state();
        if !state.destinations.contains(destination) {
            return Err(format!("no destination {destination}"));
        }
        let all = state.log.get(destination).map(Vec::as_slice).unwrap_or_default();
        Ok(all.iter().enumerate().map(|(offset, request)| request.record(offset)).collect())
    }

    pub(super) fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    /// All connections are reset, and nothing listens.
    pub(super) fn kill(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.send_replace(true);
            thread.join().expect("the receiver's thread");
        }
    }

    /// Listens, again on its ports.
    pub(super) async fn listen(&mut self) {
        let acceptor = acceptor(self.certificates.path(), self.asks_certificates);
        let mut listeners = Vec::new();
        for (port, acceptor) in [(self.port, None), (self.tls_port, Some(acceptor))] {
            let listener = await_that("the port", SOON, || async {
                TcpListener::bind(("127.0.0.1", port)).await
            })
            .await;
            listeners.push((listener.into_std().expect("a listener"), acceptor));
        }
        let stop = watch::Sender::new(false);
        let (mut stopped, shared) = (stop.subscribe(), Arc::clone(&self.shared));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // With the runtime all connections end.
            runtime.expect("a runtime").block_on(async {
                let mut accepting = JoinSet::new();
                for (listener, acceptor) in listeners {
                    accepting.spawn(accept(listener, acceptor, Arc::clone(&shared)));
                }
                stopped.wait_for(|stopped| *stopped).await.expect("the test");
            });
        });
        self.running = Some((stop, thread));
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.kill();
    }
}

fn acceptor(directory: &Path, asks_certificates: bool) -> TlsAcceptor {
    let pem = |name: &str| fs::read(directory.join(name)).expect("a file");
    let certificates = |name: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(&pem(name)).map(|found| found.expect("PEM")).collect()
    };
    let key = PrivateKeyDer::from_pem_slice(&pem("server.key")).expect("a key");
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().expect("versions");
    let builder = if asks_certificates {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates("root.crt"));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
    } else {
        builder.with_no_client_auth()
    };
    let mut config =
        builder.with_single_cert(certificates("server.crt"), key).expect("a certificate");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn accept(
    listener: std::net::TcpListener,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    let mut serving = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        lock(&shared).connections += 1;
        serving.spawn(serve(stream, acceptor.clone(), Arc::clone(&shared)));
        while serving.try_join_next().is_some() {}
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(stream: TcpStream, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    // A kill resets connections.
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
    stream.set_nodelay(true).expect("an option");
    let answering = move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(request, &shared).await) }
    };
    let service = hyper::service::service_fn(answering);
    let builder = Builder::new(TokioExecutor::new());
    match acceptor {
        None => drop(builder.serve_connection(TokioIo::new(stream), service).await),
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                drop(builder.serve_connection(TokioIo::new(stream), service).await);
            }
        }
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared) -> Response<Body> {
    let (parts, mut body) = request.into_parts();
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    thawed(shared).await;
    let path = decoded(parts.uri.path().as_bytes());
    let mut received = Received {
        path,
        version: parts.version,
        headers: parts.headers,
        body: bytes,
        at: Instant::now(),
        status: 0,
    };
    let reply = {
        let mut state = lock(shared);
        state.asked += 1;
        let reply = state.reply(&parts.method, &received);
        received.status = reply.status;
        if parts.method == Method::POST {
            let destination =
                received.path.strip_prefix(&format!("{BASE}/")).unwrap_or("").to_owned();
            if (200..300).contains(&reply.status) {
                state.log.entry(destination).or_default().push(received);
            } else {
                state.refused.push(received);
            }
        }
        reply
    };
    // Here a kill leaves a processed request without its answer.
    drop(tokio::time::timeout(reply.after, std::future::pending::<()>()).await);
    thawed(shared).await;
    let mut response = Response::new(Body::from(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).expect("a status");
    for (name, value) in reply.headers {
        response.headers_mut().append(name, value.parse().expect("a value"));
    }
    response
}

async fn thawed(shared: &Shared) {
    let mut frozen = shared.frozen.subscribe();
    frozen.wait_for(|frozen| !frozen).await.expect("the receiver");
}

impl State {
    fn reply(&mut self, method: &Method, request: &Received) -> Reply {
        let destination = request.path.strip_prefix(&format!("{BASE}/")).unwrap_or("");
        if method == Method::OPTIONS
            && let Some(status) = self.options
        {
            return Reply::status(status);
        }
        if method == Method::POST
            && let Some(script) = &mut self.script
            && let Some(reply) = script(request)
        {
            return reply;
        }
        let is_post = method == Method::POST;
        let is_too_large = self.limit.is_some_and(|limit| request.body.len() > limit);
        Reply::status(if self.forbidden {
            401
        } else if !self.destinations.contains(destination) {
            404
        } else if is_post && is_too_large {
            413
        } else if is_post || method == Method::OPTIONS {
            204
        } else {
            405
        })
    }
}
