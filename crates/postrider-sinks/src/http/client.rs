//! hyper's client: the bodies of requests and answers, and connections that are kept.

use super::connect::{ConnectError, Connector};
use super::spec::{HttpSpec, HttpVersion};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::error::Error;
use std::time::Duration;

/// Bytes of an answer's body that are read, so that its connection can be used again. More closes the connection.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;

/// How long a connection is kept without a request. Servers close theirs after 5 s and more.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// An HTTP/2 connection that does not answer a ping for so long is given up.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) type HttpClient = Client<Connector, Full<Bytes>>;

/// A client of these connections.
pub(super) fn client(connector: Connector, spec: &HttpSpec, version: HttpVersion) -> HttpClient {
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_MAX)
        .pool_max_idle_per_host(spec.limits.concurrency)
        .http2_only(version == HttpVersion::Two)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_adaptive_window(true)
        .build(connector)
}

/// The connector's own error, if there was no connection.
pub(super) fn connect_error(error: &ClientError) -> Option<&ConnectError> {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(found) = inner.downcast_ref::<ConnectError>() {
            return Some(found);
        }
        source = inner.source();
    }
    None
}

/// The body, unless it is larger than `max` or breaks off. The rest of a larger one is not read.
pub(super) async fn read_body(body: Incoming, max: usize) -> Option<Bytes> {
    Some(Limited::new(body, max).collect().await.ok()?.to_bytes())
}
