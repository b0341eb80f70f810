//! What a request meets: path, method, size, signature, the gate and the queue; and what it is answered with.
//!
//! A request is read whole before it is answered, also one that is refused: a client that is still sending when its
//! connection is closed does not see the answer.

use crate::connections::Arrival;
use crate::inbox::webhook::{
    Header, Refused, Secrets, SecretsError, SignedRequest, WebhookConfig, WebhookRequest, verify,
};
use crate::intake::observer::IntakeObserver;
use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// The longest time for a body.
pub(super) const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// The longest wait for the commit.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(15);

/// Bytes of all bodies that are in memory; with more, requests are answered with 503.
const MEMORY_MAX: usize = 64 << 20;

/// Bytes that are read of a body that is too large, so that its sender sees the answer.
const DISCARD_MAX: usize = 32 << 20;

/// The file of secrets is read again when it was read so long ago.
const SECRETS_AGE_MAX: Duration = Duration::from_secs(2);

/// What a sender is asked to wait. Unit: seconds.
const RETRY_SOON: u32 = 1;
const RETRY_UNKNOWN: u32 = 5;

/// Whether requests are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gate {
    /// They are.
    Open,
    /// They are refused at once.
    Closed {
        /// Why, for the answer.
        why: &'static str,
        /// What the sender is asked to wait. Unit: seconds.
        retry_after: u32,
    },
}

/// What the loop and the requests share.
pub(super) struct Shared {
    observer: Mutex<IntakeObserver>,
    gate: Mutex<Gate>,
}

impl Shared {
    pub(super) fn new(observer: IntakeObserver) -> Self {
        let gate = Gate::Closed { why: "the receiver is starting", retry_after: RETRY_SOON };
        Self { observer: Mutex::new(observer), gate: Mutex::new(gate) }
    }

    pub(super) fn observer(&self) -> MutexGuard<'_, IntakeObserver> {
        self.observer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_gate(&self, gate: Gate) {
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = gate;
    }

    fn gate(&self) -> Gate {
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ReceptionEnd {
    /// Its message is committed, or was known before.
    Stored,
    /// The database refuses the message even as a dead one.
    Refused {
        /// The SQLSTATE.
        state: String,
    },
    /// It is not known to be committed.
    Unknown,
}

/// A request that waits to be stored.
pub(super) struct Waiting {
    pub(super) request: WebhookRequest,
    reply: oneshot::Sender<ReceptionEnd>,
    /// Its bytes in memory.
    _memory: OwnedSemaphorePermit,
}

impl Waiting {
    pub(super) fn answer(self, outcome: ReceptionEnd) {
        // A client that has gone sends its request again.
        self.reply.send(outcome).unwrap_or_default();
    }
}

/// Why a request is not stored.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("there is nothing at this path")]
    Path,
    #[error("only POST is possible")]
    Method,
    #[error("the body has more than {max} bytes")]
    TooLarge { max: usize },
    #[error("the body did not arrive within {} s", BODY_TIME_MAX.as_secs())]
    Slow,
    #[error("the body is not as its headers say")]
    Broken,
    #[error(transparent)]
    Request(#[from] Refused),
    #[error("{why}")]
    Closed { why: &'static str, retry_after: u32 },
    #[error("too many requests wait to be stored")]
    Busy,
    #[error("the database refuses the message, even as a dead one, with SQLSTATE {state}")]
    Database { state: String },
    #[error("the message is not known to be stored: send it again")]
    Unknown,
}

impl Refusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Path => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
            Self::Request(refused) if refused.is_malformed() => StatusCode::BAD_REQUEST,
            Self::Request(_) => StatusCode::UNAUTHORIZED,
            Self::Closed { .. } | Self::Busy | Self::Database { .. } | Self::Unknown => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    const fn retry_after(&self) -> Option<u32> {
        match self {
            Self::Closed { retry_after, .. } => Some(*retry_after),
            Self::Busy => Some(RETRY_SOON),
            Self::Database { .. } | Self::Unknown => Some(RETRY_UNKNOWN),
            Self::Path
            | Self::Method
            | Self::TooLarge { .. }
            | Self::Slow
            | Self::Broken
            | Self::Request(_) => None,
        }
    }

    /// Whether a line of its own says why: during an outage, one line about the outage does.
    const fn has_line(&self) -> bool {
        !matches!(self, Self::Closed { .. } | Self::Unknown)
    }

    fn response(&self) -> Response {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::Method) {
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        (self.status(), headers, format!("{self}\n")).into_response()
    }
}

/// The secrets, as they were last read.
struct CachedSecrets {
    /// None if the file could never be read.
    secrets: Option<Secrets>,
    read_at: Option<Instant>,
}

/// Takes the requests of one receiver.
struct Reception {
    config: WebhookConfig,
    shared: Arc<Shared>,
    queue: mpsc::Sender<Waiting>,
    memory: Arc<Semaphore>,
    secrets: Mutex<CachedSecrets>,
}

/// The only handler: of every path and method.
pub(super) fn router(
    (intake, config): (&str, &WebhookConfig),
    shared: Arc<Shared>,
    queue: mpsc::Sender<Waiting>,
) -> Router {
    tracing::debug!(intake, path = config.path, "a receiver begins");
    let reception = Reception {
        config: config.clone(),
        shared,
        queue,
        memory: Arc::new(Semaphore::new(MEMORY_MAX)),
        secrets: Mutex::new(CachedSecrets { secrets: None, read_at: None }),
    };
    Router::new().fallback(answer).with_state(Arc::new(reception))
}

async fn answer(State(reception): State<Arc<Reception>>, request: Request) -> Response {
    match reception.stores(request).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(refusal) => {
            let mut observer = reception.shared.observer();
            if refusal.has_line() {
                observer.refused(&refusal.to_string());
            } else {
                observer.puts_off();
            }
            refusal.response()
        }
    }
}

impl Reception {
    /// Returns when the message of a request is stored.
    async fn stores(&self, request: Request) -> Result<(), Refusal> {
        let (parts, body) = request.into_parts();
        let is_ours = if parts.uri.path() != self.config.path {
            Err(Refusal::Path)
        } else if parts.method != Method::POST {
            Err(Refusal::Method)
        } else {
            Ok(())
        };
        let max = if is_ours.is_ok() { self.config.body_max } else { 0 };
        let read = self.read(body, max).await;
        if let Some(arrival) = parts.extensions.get::<Arrival>() {
            arrival.mark();
        }
        is_ours?;
        let (body, memory) = read?;
        let headers: Vec<Header> = parts
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect();
        let verified = {
            let signed = SignedRequest {
                headers: &headers,
                body: &body,
                now: now(),
                tolerance: self.config.tolerance,
            };
            verify(&self.config.scheme, &signed, &self.secrets()?)?
        };
        if let Gate::Closed { why, retry_after } = self.shared.gate() {
            return Err(Refusal::Closed { why, retry_after });
        }
        let (reply, outcome) = oneshot::channel();
        let request = WebhookRequest { verified, headers, body };
        let waiting = Waiting { request, reply, _memory: memory };
        self.queue.try_send(waiting).map_err(|_full| Refusal::Busy)?;
        match tokio::time::timeout(ANSWER_MAX, outcome).await {
            Ok(Ok(ReceptionEnd::Stored)) => Ok(()),
            Ok(Ok(ReceptionEnd::Refused { state })) => Err(Refusal::Database { state }),
            Ok(Ok(ReceptionEnd::Unknown) | Err(_)) | Err(_) => Err(Refusal::Unknown),
        }
    }

    /// The body, with its bytes in memory.
    async fn read(
        &self,
        body: Body,
        max: usize,
    ) -> Result<(Vec<u8>, OwnedSemaphorePermit), Refusal> {
        let reading = read_body(body, max, Arc::clone(&self.memory));
        tokio::time::timeout(BODY_TIME_MAX, reading).await.unwrap_or(Err(Refusal::Slow))
    }

    /// The secrets, which are read again now and then. A file that can't be read leaves them as they were.
    fn secrets(&self) -> Result<Secrets, Refusal> {
        let mut cached = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.read_at.is_none_or(|at| at.elapsed() >= SECRETS_AGE_MAX) {
            cached.read_at = Some(Instant::now());
            match Secrets::read(&self.config.secret_file, &self.config.scheme) {
                Ok(secrets) => {
                    self.notes_secrets(cached.secrets.as_ref(), &secrets);
                    cached.secrets = Some(secrets);
                }
                Err(error) => self.secrets_fail(&error, cached.secrets.is_some()),
            }
        }
        let why = "the secrets of the receiver can't be read";
        cached.secrets.clone().ok_or(Refusal::Closed { why, retry_after: RETRY_UNKNOWN })
    }

    fn notes_secrets(&self, before: Option<&Secrets>, now: &Secrets) {
        let is_new = before.is_some_and(|before| before != now);
        self.shared.observer().reads_secrets(is_new, now.count());
    }

    fn secrets_fail(&self, error: &SecretsError, has_others: bool) {
        self.shared.observer().misses_secrets(&error.to_string(), has_others);
    }
}

/// Reads a body. Of one that is refused, the rest is read and discarded.
async fn read_body(
    mut body: Body,
    max: usize,
    memory: Arc<Semaphore>,
) -> Result<(Vec<u8>, OwnedSemaphorePermit), Refusal> {
    let (mut bytes, mut total) = (Vec::new(), 0_usize);
    let mut held = Arc::clone(&memory).try_acquire_many_owned(0).map_err(|_full| Refusal::Busy)?;
    let mut refusal = None;
    // Refused at once, unless the rest is short enough to be read.
    if body.size_hint().lower() > DISCARD_MAX as u64 {
        return Err(Refusal::TooLarge { max });
    }
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_broken| Refusal::Broken)?;
        // Trailers are of no use.
        let Ok(data) = frame.into_data() else { continue };
        total = total.saturating_add(data.len());
        if refusal.is_none() {
            refusal = if total > max {
                Some(Refusal::TooLarge { max })
            } else {
                hold(&mut held, &memory, data.len()).err()
            };
        }
        match &refusal {
            None => bytes.extend_from_slice(&data),
            Some(_) if total > DISCARD_MAX => break,
            Some(_) => {
                bytes = Vec::new();
                drop(held.split(held.num_permits()));
            }
        }
    }
    match refusal {
        Some(refusal) => Err(refusal),
        None => Ok((bytes, held)),
    }
}

/// Holds further bytes of the memory of all bodies.
fn hold(
    held: &mut OwnedSemaphorePermit,
    memory: &Arc<Semaphore>,
    bytes: usize,
) -> Result<(), Refusal> {
    let bytes = u32::try_from(bytes).map_err(|_full| Refusal::Busy)?;
    let more = Arc::clone(memory).try_acquire_many_owned(bytes).map_err(|_full| Refusal::Busy)?;
    held.merge(more);
    Ok(())
}

/// Unit: seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
