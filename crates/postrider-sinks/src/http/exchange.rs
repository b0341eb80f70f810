//! One request and its answer.

use super::answer::{HostState, Meaning, WebhookAnswer};
use super::auth::Authorizer;
use super::client::{BODY_BYTES_MAX, HttpClient, client, connect_error, read_body};
use super::connect::Connector;
use super::sign::{Reread, SigningKeys};
use super::spec::{HttpSpec, HttpVersion};
use super::target::{Target, TopicUse};
use crate::fence::Fence;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Error as ClientError;
use postrider_core::error::Chain;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the body of an answer is read.
const BODY_TIME_MAX: Duration = Duration::from_secs(1);

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("postrider/", env!("CARGO_PKG_VERSION")));

/// What is sent.
#[derive(Clone)]
pub(super) struct OutgoingRequest {
    pub(super) target: Target,
    pub(super) id: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Events in the body.
    pub(super) events: usize,
    /// The number of the fence when it was made.
    pub(super) fence: u64,
}

/// What requests are made with.
pub(super) struct Exchanger {
    client: HttpClient,
    /// For the token endpoint, whose URL is in the configuration.
    trusted: HttpClient,
    login: Rc<Authorizer>,
    keys: RefCell<Reread<SigningKeys>>,
    spec: HttpSpec,
    fence: Arc<Fence>,
}

impl Exchanger {
    pub(super) fn new(spec: HttpSpec, fence: Arc<Fence>) -> Self {
        Self {
            client: client(Connector::new(&spec, &fence), &spec, spec.version),
            trusted: client(Connector::trusted(&spec, &fence), &spec, HttpVersion::Auto),
            login: Rc::new(Authorizer::new(spec.login.clone())),
            keys: RefCell::default(),
            spec,
            fence,
        }
    }

    /// One with new connections, and the same login.
    pub(super) fn renewed(&self) -> Self {
        let new = Self::new(self.spec.clone(), Arc::clone(&self.fence));
        Self { login: Rc::clone(&self.login), ..new }
    }

    /// Sends a request, once more if the receiver refuses a login that has changed since. The time-out covers all until
    /// the status is there: a body that comes slowly does not make an answer none.
    pub(super) async fn send(&self, outgoing: &OutgoingRequest) -> WebhookAnswer {
        let limit = self.spec.limits.timeout;
        let seen = RefCell::new(None);
        let sent = tokio::time::timeout(limit, self.send_signed(outgoing, &seen)).await;
        sent.unwrap_or_else(|_elapsed| {
            let reason = || format!("the receiver did not answer within {limit:?}");
            seen.take().unwrap_or_else(|| WebhookAnswer::lost(reason()))
        })
    }

    async fn send_signed(
        &self,
        outgoing: &OutgoingRequest,
        seen: &RefCell<Option<WebhookAnswer>>,
    ) -> WebhookAnswer {
        let (answer, used) = self.attempt(outgoing, seen).await;
        let Some(used) = used.filter(|_| answer.status == Some(StatusCode::UNAUTHORIZED)) else {
            return answer;
        };
        self.login.refused(&used).await;
        match self.authorization().await {
            Ok(Some(header)) if header != used => self.attempt(outgoing, seen).await.0,
            Ok(_) | Err(_) => answer,
        }
    }

    async fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        self.login.header(&self.trusted, self.spec.limits.timeout).await
    }

    /// The answer, and the login that was used. `seen` has the answer as soon as its status is there.
    async fn attempt(
        &self,
        outgoing: &OutgoingRequest,
        seen: &RefCell<Option<WebhookAnswer>>,
    ) -> (WebhookAnswer, Option<HeaderValue>) {
        seen.take();
        let login = match self.authorization().await {
            Ok(login) => login,
            Err(reason) => {
                let hint =
                    "correct the login of sink.http: its files, or oauth.token_url and its client";
                return (WebhookAnswer::not_sent(reason, hint), None);
            }
        };
        let request = match self.request(outgoing, login.clone()) {
            Ok(request) => request,
            Err(reason) => {
                let hint = "correct sink.http.secret_file: whsec_BASE64, one secret in each line";
                return (WebhookAnswer::not_sent(reason, hint), None);
            }
        };
        if !self.fence.admits(outgoing.fence) {
            return (WebhookAnswer::lost("the process was stopped".to_owned()), None);
        }
        let answer = match self.client.request(request).await {
            Ok(response) => self.answered(response, outgoing.events, seen).await,
            Err(error) => self.failed(&error),
        };
        (answer, login)
    }

    fn request(
        &self,
        outgoing: &OutgoingRequest,
        login: Option<HeaderValue>,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::new(Full::new(outgoing.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = outgoing.target.uri.clone();
        let mut headers = outgoing.headers.clone();
        let value = |text: &str| {
            HeaderValue::from_str(text)
                .map_err(|_invalid| "an id is no value of a header".to_owned())
        };
        headers.insert(WEBHOOK_ID, value(&outgoing.id)?);
        headers.insert(IDEMPOTENCY_KEY, value(&outgoing.id)?);
        // Without a body there would be no length.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(outgoing.body.len()));
        headers.insert(USER_AGENT, AGENT);
        if let Some(login) = login {
            headers.insert(AUTHORIZATION, login);
        }
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(timestamp));
        if let Some(file) = &self.spec.secret_file {
            let mut keys = self.keys.borrow_mut();
            let keys = keys.get(|| SigningKeys::read(file))?;
            let signature = keys.sign(&outgoing.id, timestamp, &outgoing.body);
            headers.insert(WEBHOOK_SIGNATURE, value(&signature)?);
        }
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn answered(
        &self,
        response: Response<Incoming>,
        events: usize,
        seen: &RefCell<Option<WebhookAnswer>>,
    ) -> WebhookAnswer {
        let (status, max) = (response.status(), self.spec.limits.retry_after_max);
        let answer = WebhookAnswer::of_status(status, response.headers(), events, max);
        seen.replace(Some(answer.clone()));
        // The status is the answer, whatever becomes of the body.
        let reading = read_body(response.into_body(), BODY_BYTES_MAX);
        drop(tokio::time::timeout(BODY_TIME_MAX, reading).await);
        answer
    }

    fn failed(&self, error: &ClientError) -> WebhookAnswer {
        if let Some(connect) = connect_error(error) {
            return WebhookAnswer::not_connected(connect, self.spec.topic == TopicUse::Url);
        }
        WebhookAnswer::lost(format!("no answer: {}", Chain(error)))
    }

    /// Asks a destination for its options, which changes nothing there.
    pub(super) async fn probe(&self, target: &Target) -> Probe {
        let limit = self.spec.limits.timeout;
        let late = |_elapsed| {
            Probe::Unreachable(WebhookAnswer::lost(format!("no answer within {limit:?}")))
        };
        tokio::time::timeout(limit, self.probe_slowly(target)).await.unwrap_or_else(late)
    }

    async fn probe_slowly(&self, target: &Target) -> Probe {
        let login = match self.authorization().await {
            Ok(login) => login,
            Err(reason) => {
                let hint =
                    "correct the login of sink.http: its files, or oauth.token_url and its client";
                return Probe::Unreachable(WebhookAnswer::not_sent(reason, hint));
            }
        };
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.method_mut() = Method::OPTIONS;
        *request.uri_mut() = target.uri.clone();
        request.headers_mut().insert(USER_AGENT, AGENT);
        if let Some(login) = &login {
            request.headers_mut().insert(AUTHORIZATION, login.clone());
        }
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => return Probe::Unreachable(self.failed(&error)),
        };
        let allow = response.headers().get(ALLOW).and_then(|allow| allow.to_str().ok());
        let forbids_post = allow.is_some_and(|allow| {
            !allow.split(',').any(|method| method.trim().eq_ignore_ascii_case("POST"))
        });
        let version = response.version();
        let answer = self.answered(response, 1, &RefCell::default()).await;
        if answer.status == Some(StatusCode::UNAUTHORIZED)
            && let Some(login) = login
        {
            self.login.refused(&login).await;
        }
        // A receiver that knows no OPTIONS at a path answers 405.
        let is_closed = matches!(answer.verdict, Meaning::Destination { .. })
            && answer.status != Some(StatusCode::METHOD_NOT_ALLOWED);
        let fails = matches!(answer.verdict, Meaning::Again { host: HostState::Fails, .. });
        Probe::Answered { answer, is_closed, fails, forbids_post, version }
    }
}

/// What a destination says about itself.
pub(super) enum Probe {
    Unreachable(WebhookAnswer),
    Answered {
        answer: WebhookAnswer,
        /// By its status it accepts no events.
        is_closed: bool,
        /// 5xx.
        fails: bool,
        /// Header `Allow` is there and lacks POST.
        forbids_post: bool,
        version: hyper::Version,
    },
}
