//! The login of requests: a bearer token, basic authentication, or OAuth2 client credentials. Files are read again
//! every few seconds, and at once after a 401.

use super::client::{BODY_BYTES_MAX, HttpClient, read_body};
use super::sign::Reread;
use super::spec::{HttpLogin, OAuth};
use super::target;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use postrider_core::error::Chain;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// A token without a lifetime is requested again after this.
const TOKEN_TIME: Duration = Duration::from_mins(5);

/// A token is requested again so long before it expires, or after half of a shorter lifetime.
const RENEWED_BEFORE: Duration = Duration::from_secs(30);

/// The value of header `Authorization`, as it is known.
#[derive(Debug, Default)]
pub(super) struct Authorizer {
    login: HttpLogin,
    file: RefCell<Reread<HeaderValue>>,
    /// One request for a token at a time.
    token: tokio::sync::Mutex<Option<Token>>,
}

#[derive(Debug)]
struct Token {
    header: HeaderValue,
    renew_at: Instant,
}

impl Authorizer {
    pub(super) fn new(login: HttpLogin) -> Self {
        Self { login, ..Self::default() }
    }

    /// The header, if there is a login.
    ///
    /// # Errors
    /// A file can't be read, or there is no token. Without secrets.
    pub(super) async fn header(
        &self,
        client: &HttpClient,
        timeout: Duration,
    ) -> Result<Option<HeaderValue>, String> {
        let HttpLogin::OAuth(oauth) = &self.login else {
            let mut file = self.file.borrow_mut();
            return match of_file(&self.login) {
                Some(read) => file.get(read).cloned().map(Some),
                None => Ok(None),
            };
        };
        let mut token = self.token.lock().await;
        if let Some(Token { header, renew_at }) = &*token
            && Instant::now() < *renew_at
        {
            return Ok(Some(header.clone()));
        }
        let requested = tokio::time::timeout(timeout, request_token(client, oauth)).await;
        let late = |_elapsed| "the token endpoint does not answer in time".to_owned();
        let new = requested.map_err(late).flatten()?;
        Ok(Some(token.insert(new).header.clone()))
    }

    /// The receiver has refused this header.
    pub(super) async fn refused(&self, used: &HeaderValue) {
        self.file.borrow_mut().expire();
        let mut token = self.token.lock().await;
        // Another request may have brought a new one.
        if token.as_ref().is_some_and(|token| token.header == *used) {
            *token = None;
        }
    }
}

/// Reads the header of a login that is in a file.
fn of_file(login: &HttpLogin) -> Option<impl FnOnce() -> Result<HeaderValue, String> + '_> {
    let (username, file) = match login {
        HttpLogin::Bearer(file) => (None, file),
        HttpLogin::Basic { username, password } => (Some(username), password),
        HttpLogin::None | HttpLogin::OAuth(_) => return None,
    };
    Some(move || {
        let secret = file.read().map_err(|error| error.to_string())?;
        let header = match username {
            None => bearer(secret.trim()),
            Some(username) => basic(username, &secret),
        };
        let path = file.path().display();
        header.ok_or_else(|| format!("\"{path}\" has characters that a header can't have"))
    })
}

fn bearer(token: &str) -> Option<HeaderValue> {
    secret_header(&format!("Bearer {token}"))
}

fn basic(username: &str, password: &str) -> Option<HeaderValue> {
    secret_header(&format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
}

fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// Requests a token.
async fn request_token(client: &HttpClient, oauth: &OAuth) -> Result<Token, String> {
    let secret = oauth.client_secret.read().map_err(|error| error.to_string())?;
    let form = |text: &str| {
        let mut encoded = String::new();
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                encoded.push(char::from(byte));
            } else {
                target::push_encoded(&mut encoded, byte);
            }
        }
        encoded
    };
    let mut body = "grant_type=client_credentials".to_owned();
    if !oauth.scope.is_empty() {
        body.push_str("&scope=");
        body.push_str(&form(&oauth.scope));
    }
    let login =
        basic(&form(&oauth.client_id), &form(&secret)).ok_or("the client's id is no text")?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&oauth.token_url)
        .header(AUTHORIZATION, login)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header("accept", "application/json")
        .body(Full::new(body.into()))
        .map_err(|error| format!("the token endpoint's URL: {error}"))?;
    let answer = client.request(request).await;
    let answer = answer.map_err(|error| format!("the token endpoint: {}", Chain(&error)))?;
    let status = answer.status();
    let body = read_body(answer.into_body(), BODY_BYTES_MAX).await;
    if status != StatusCode::OK {
        return Err(format!("the token endpoint answers {status}"));
    }
    let token = body.as_deref().and_then(|body| serde_json::from_slice::<TokenAnswer>(body).ok());
    let none = || "the token endpoint's answer has no access_token".to_owned();
    let TokenAnswer { access_token, expires_in } = token.ok_or_else(none)?;
    let lifetime = expires_in.map_or(TOKEN_TIME, Duration::from_secs);
    let used_for = lifetime.saturating_sub(RENEWED_BEFORE).max(lifetime / 2);
    let header = bearer(&access_token).ok_or_else(none)?;
    let now = Instant::now();
    let renew_at = now.checked_add(used_for).unwrap_or(now + TOKEN_TIME);
    Ok(Token { header, renew_at })
}

#[derive(serde::Deserialize)]
struct TokenAnswer {
    access_token: String,
    expires_in: Option<u64>,
}
