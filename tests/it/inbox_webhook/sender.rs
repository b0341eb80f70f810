//! A sender of webhooks that signs requests with code of its own, and sends each one over a new connection.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long one request may take: longer than the receiver waits for a commit.
const REQUEST_MAX: Duration = Duration::from_secs(45);

/// What a request was answered with.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    /// The headers, in lower case.
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    /// Whether the sender is asked to send the request again after some seconds.
    pub(super) fn is_put_off(&self) -> bool {
        self.code == 503 && self.head.contains("\r\nretry-after: ")
    }
}

/// Sends to one receiver, with one secret.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    port: u16,
    secret: String,
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    i64::try_from(since.as_secs()).expect("a number of seconds")
}

/// HMAC-SHA256.
pub(super) fn signature(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a text");
    }
    text
}

impl Sender {
    pub(super) fn new(port: u16, secret: &str) -> Self {
        Self { port, secret: secret.to_owned() }
    }

    pub(super) fn with_secret(&self, secret: &str) -> Self {
        Self::new(self.port, secret)
    }

    /// Whether the receiver accepts connections.
    pub(super) async fn connects(&self) -> Result<(), String> {
        self.connect().await.map(drop)
    }

    pub(super) async fn connect(&self) -> Result<TcpStream, String> {
        TcpStream::connect(("127.0.0.1", self.port)).await.map_err(|error| error.to_string())
    }

    /// The headers of Standard Webhooks of a request that is signed at this time.
    pub(super) fn signed_at(&self, id: &str, time: i64, body: &str) -> Vec<(&'static str, String)> {
        let key = STANDARD.decode(self.secret.trim_start_matches("whsec_")).expect("a secret");
        let text = format!("{id}.{time}.{body}");
        vec![
            ("Webhook-Id", id.to_owned()),
            ("Webhook-Timestamp", time.to_string()),
            (
                "Webhook-Signature",
                format!("v1,{}", STANDARD.encode(signature(&key, text.as_bytes()))),
            ),
        ]
    }

    pub(super) fn signed(&self, id: &str, body: &str) -> Vec<(&'static str, String)> {
        self.signed_at(id, now(), body)
    }

    /// Sends a message.
    pub(super) async fn send(&self, id: &str, body: &str) -> Result<Answer, String> {
        self.post(&self.signed(id, body), body.as_bytes()).await
    }

    /// The answer to a message that must have one.
    pub(super) async fn sent(&self, id: &str, body: &str) -> Answer {
        self.send(id, body).await.expect("an answer")
    }

    pub(super) async fn post(
        &self,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Result<Answer, String> {
        self.ask("POST /hooks", headers, body).await
    }

    /// Sends a request, and reads its answer.
    pub(super) async fn ask(
        &self,
        method_and_path: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Result<Answer, String> {
        let mut request = format!(
            "{method_and_path} HTTP/1.1\r\nHost: hooks\r\nContent-Length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            write!(request, "{name}: {value}\r\n").expect("a text");
        }
        request += "\r\n";
        let mut request = request.into_bytes();
        request.extend_from_slice(body);
        self.raw(&request).await
    }

    /// Sends these bytes, and reads until the receiver closes the connection.
    pub(super) async fn raw(&self, request: &[u8]) -> Result<Answer, String> {
        let exchange = async {
            let mut stream = self.connect().await?;
            stream.write_all(request).await.map_err(|error| error.to_string())?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.map_err(|error| error.to_string())?;
            let answer = String::from_utf8(answer).map_err(|error| error.to_string())?;
            let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
            let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
            let code = code.ok_or_else(|| format!("no code: {head}"))?;
            Ok(Answer { code, head: head.to_lowercase() + "\r\n", body: body.to_owned() })
        };
        tokio::time::timeout(REQUEST_MAX, exchange)
            .await
            .unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }
}
