//! Requests to a bucket: the few that are needed of the S3 API.

use super::config::{ClaimCheckConfig, StorageBucket, StorageLogin};
use super::digest::PayloadDigest;
use super::problem::{Refusing, StorageProblem};
use super::sign::{Credentials, Signing, amz_date};
use crate::https::{HttpsAnswer, HttpsClient, HttpsRequest};
use bytes::Bytes;
use hyper::header::{DATE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED};
use hyper::{Method, Uri};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use postrider_sinks::tls::TlsFiles;
use std::time::Duration;

/// How long a connection may take, with TLS.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The largest answer: an error, or the rules of a bucket. Unit: bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// A request has 1 s more for each so many bytes of its body.
const BYTES_PER_SECOND: u64 = 1 << 20;

/// A bucket of an object storage. Used within a tokio runtime.
#[derive(Debug)]
pub(super) struct Storage {
    bucket: StorageBucket,
    login: StorageLogin,
    client: HttpsClient,
    timeout: Duration,
}

/// What is known of an object without reading it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StoredObject {
    /// Unit: bytes.
    pub(super) size: Option<u64>,
    /// Its SHA-256, in base 64, if the store keeps it.
    pub(super) checksum: Option<String>,
    /// Since it was last stored, by the store's clock.
    pub(super) age: Option<Duration>,
}

/// A request to the bucket.
struct Call<'a> {
    method: Method,
    /// The object; empty for the bucket.
    key: &'a str,
    query: &'a str,
    body: Bytes,
    digest: PayloadDigest,
    headers: Vec<(&'static str, String)>,
}

impl Storage {
    pub(super) fn new(config: &ClaimCheckConfig) -> Self {
        let tls = TlsFiles { authorities: config.ca_file.clone(), ..TlsFiles::default() };
        Self {
            bucket: config.bucket.clone(),
            login: config.login.clone(),
            client: HttpsClient::new(tls, CONNECT_MAX),
            timeout: config.timeout,
        }
    }

    /// Stores an object. `only_new`: not if there is one of this name already, which is then the problem.
    ///
    /// # Errors
    /// The object is not known to be stored.
    pub(super) async fn put(
        &self,
        key: &str,
        body: Bytes,
        digest: PayloadDigest,
        only_new: bool,
    ) -> Result<HttpsAnswer, StorageProblem> {
        let mut headers = vec![("x-amz-checksum-sha256", digest.base64())];
        if only_new {
            headers.push(("if-none-match", "*".to_owned()));
        }
        let call = Call { method: Method::PUT, key, query: "", body, digest, headers };
        let answer = self.call(call).await?;
        if answer.headers.contains_key(ETAG) { Ok(answer) } else { Err(StorageProblem::NoStorage) }
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// The store does not say it, which it may also refuse for an object that does not exist.
    pub(super) async fn look(&self, key: &str) -> Result<StoredObject, StorageProblem> {
        let headers = vec![("x-amz-checksum-mode", "ENABLED".to_owned())];
        let call = Call { headers, ..Call::without_body(Method::HEAD, key, "") };
        let answer = self.call(call).await?;
        let text = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
        let now = time(&answer.headers, &DATE).unwrap_or_else(Timestamp::now);
        let stored = time(&answer.headers, &LAST_MODIFIED);
        let age = stored.map(|stored| now.duration_since(stored));
        Ok(StoredObject {
            size: text("content-length").and_then(|size| size.parse().ok()),
            checksum: text("x-amz-checksum-sha256").map(str::to_owned),
            // An object from the future has just been stored.
            age: age.map(|age| Duration::try_from(age).unwrap_or_default()),
        })
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// It is not known to be deleted.
    pub(super) async fn delete(&self, key: &str) -> Result<(), StorageProblem> {
        self.call(Call::without_body(Method::DELETE, key, "")).await.map(drop)
    }

    /// The document with the rules of the bucket that delete objects.
    ///
    /// # Errors
    /// The store does not say them; with the code `NoSuchLifecycleConfiguration` there are none.
    pub(super) async fn lifecycle(&self) -> Result<Bytes, StorageProblem> {
        let call = Call::without_body(Method::GET, "", "lifecycle=");
        Ok(self.call(call).await?.body)
    }

    /// Sends a request. The answer is one of success.
    async fn call(&self, call: Call<'_>) -> Result<HttpsAnswer, StorageProblem> {
        let credentials = self.credentials()?;
        let request = self.request(call, &credentials, Timestamp::now());
        let request = request.ok_or(StorageProblem::Unsendable)?;
        let answer = self.client.send(request).await.map_err(StorageProblem::Unanswered)?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        Err(StorageProblem::Refused(Refusing::new(answer.status, &answer.body)))
    }

    /// The signed request; `None` if it has a character that a request can't have.
    fn request(
        &self,
        call: Call<'_>,
        credentials: &Credentials,
        time: Timestamp,
    ) -> Option<HttpsRequest> {
        let bucket = &self.bucket;
        let (scheme, host) = bucket.endpoint.split_once("://")?;
        let host = if bucket.in_path { host.to_owned() } else { format!("{}.{host}", bucket.name) };
        // The names have no other character that is encoded.
        let key = call.key.replace('=', "%3D");
        let path = match (bucket.in_path, key.is_empty()) {
            (true, true) => format!("/{}", bucket.name),
            (true, false) => format!("/{}/{key}", bucket.name),
            (false, _) => format!("/{key}"),
        };
        let mark = if call.query.is_empty() { "" } else { "?" };
        let url: Uri = format!("{scheme}://{host}{path}{mark}{}", call.query).parse().ok()?;
        let (date, body) = (amz_date(time), call.digest.hex());
        let mut headers = call.headers;
        headers.push(("x-amz-content-sha256", body.clone()));
        headers.push(("x-amz-date", date.clone()));
        if let Some(token) = &credentials.session_token {
            headers.push(("x-amz-security-token", token.clone()));
        }
        let sent_host = sent_host(&url)?;
        let mut signed: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        signed.push(("host", &sent_host));
        let signing = Signing {
            method: call.method.as_str(),
            path: &path,
            query: call.query,
            headers: signed,
            body: &body,
            region: &bucket.region,
        };
        let authorization = signing.authorization(credentials, &date);
        let mut map = HeaderMap::new();
        for (name, value) in &headers {
            map.insert(*name, secret_header(value)?);
        }
        map.insert("authorization", secret_header(&authorization)?);
        let seconds = call.body.len() as u64 / BYTES_PER_SECOND;
        Some(HttpsRequest {
            method: call.method,
            url,
            headers: map,
            body: call.body,
            timeout: self.timeout + Duration::from_secs(seconds),
            answer_bytes_max: ANSWER_BYTES_MAX,
        })
    }

    /// Reads the login.
    fn credentials(&self) -> Result<Credentials, StorageProblem> {
        match &self.login {
            StorageLogin::Files { access_key, secret_key, session_token } => {
                let read = |file: &postrider_core::secret_file::SecretFile| {
                    let text =
                        file.read().map_err(|error| StorageProblem::Login(error.to_string()));
                    text.map(|text| text.trim().to_owned())
                };
                Ok(Credentials {
                    access_key: read(access_key)?,
                    secret_key: read(secret_key)?,
                    session_token: session_token.as_ref().map(read).transpose()?,
                })
            }
            StorageLogin::Environment { access_key, secret_key, session_token } => {
                Ok(Credentials {
                    access_key: access_key.clone(),
                    secret_key: secret_key.clone(),
                    session_token: session_token.clone(),
                })
            }
            StorageLogin::Missing => Err(StorageProblem::Login("there is none".to_owned())),
        }
    }
}

impl<'a> Call<'a> {
    fn without_body(method: Method, key: &'a str, query: &'a str) -> Self {
        let digest = PayloadDigest::of(b"");
        Self { method, key, query, body: Bytes::new(), digest, headers: Vec::new() }
    }
}

/// The value of header `Host`, as the client sends it: without the port that the scheme has anyway.
fn sent_host(url: &Uri) -> Option<String> {
    let host = url.host()?;
    let usual = if url.scheme_str() == Some("https") { 443 } else { 80 };
    match url.port_u16().filter(|port| *port != usual) {
        Some(port) => Some(format!("{host}:{port}")),
        None => Some(host.to_owned()),
    }
}

/// A value that `Debug` does not show.
fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// The time of a header.
fn time(headers: &HeaderMap, name: &HeaderName) -> Option<Timestamp> {
    let text = headers.get(name)?.to_str().ok()?;
    DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(endpoint: &str, in_path: bool) -> Storage {
        Storage {
            bucket: StorageBucket {
                name: "shop".to_owned(),
                prefix: String::new(),
                endpoint: endpoint.to_owned(),
                region: "eu-1".to_owned(),
                in_path,
            },
            login: StorageLogin::Missing,
            client: HttpsClient::new(TlsFiles::default(), CONNECT_MAX),
            timeout: Duration::from_secs(30),
        }
    }

    fn url(endpoint: &str, in_path: bool, key: &str, query: &str) -> String {
        let credentials = Credentials {
            access_key: "key".to_owned(),
            secret_key: "hush".to_owned(),
            session_token: Some("hush".to_owned()),
        };
        let call = Call::without_body(Method::GET, key, query);
        let storage = storage(endpoint, in_path);
        let request = storage.request(call, &credentials, Timestamp::UNIX_EPOCH).unwrap();
        assert!(!format!("{request:?}").contains("hush"), "{request:?}");
        request.url.to_string()
    }

    #[test]
    fn the_bucket_is_in_the_path_or_in_the_host() {
        assert_eq!(url("https://s3.example", true, "a/b=c", ""), "https://s3.example/shop/a/b%3Dc");
        assert_eq!(url("https://s3.example:99", false, "a", ""), "https://shop.s3.example:99/a");
        assert_eq!(
            url("http://s3.example", true, "", "lifecycle="),
            "http://s3.example/shop?lifecycle="
        );
        assert_eq!(
            url("http://s3.example", false, "", "lifecycle="),
            "http://shop.s3.example/?lifecycle="
        );
    }

    #[test]
    fn the_host_that_is_signed_is_the_host_that_is_sent() {
        for (url, host) in [
            ("https://s3.example/a", "s3.example"),
            ("https://s3.example:443/a", "s3.example"),
            ("http://s3.example:443/a", "s3.example:443"),
            ("http://s3.example:80/a", "s3.example"),
            ("http://[::1]:9000/a", "[::1]:9000"),
        ] {
            assert_eq!(sent_host(&url.parse().unwrap()).unwrap(), host);
        }
    }

    #[test]
    fn a_large_body_has_more_time() {
        let credentials = Credentials {
            access_key: String::new(),
            secret_key: String::new(),
            session_token: None,
        };
        let body = Bytes::from(vec![0; 50 << 20]);
        let call = Call { body, ..Call::without_body(Method::PUT, "a", "") };
        let request = storage("http://s3", true).request(call, &credentials, Timestamp::UNIX_EPOCH);
        assert_eq!(request.unwrap().timeout, Duration::from_secs(80));
    }

    #[test]
    fn the_time_of_an_answer_is_read() {
        let mut headers = HeaderMap::new();
        assert_eq!(time(&headers, &DATE), None);
        headers.insert(DATE, HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(time(&headers, &DATE).unwrap().as_second(), 784_111_777);
    }
}
