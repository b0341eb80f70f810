//! The connections of the admin endpoint: how many are open, for how long, and which one is closed for a new one.
//!
//! Any client that reaches the address can open any number of connections, and each one takes a file descriptor that
//! the connections to database and broker need too. So each connection carries one request and has one deadline, from
//! its accept to the last byte of the answer. The deadline limits the header, the body, an idle connection and a client
//! that reads slowly. If the maximum is reached, a new connection replaces an old one, so that a scrape is always
//! answered.

use crate::metrics::{Closed, EndpointMetrics};
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};

/// Connections that are open at a time. A scrape and some probes need a handful.
pub const CONNECTIONS_MAX: usize = 64;

/// The longest time from the accept of a connection to the last byte of its answer.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);

/// The longest time from the accept of a connection to the end of its request header.
const HEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// Bytes of a request line and headers; a larger request is answered with 431.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Headers of a request; a request with more is answered with 431.
const HEADERS_MAX: usize = 64;

/// Pause after a failed accept: without descriptors the next one fails too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Pause between two log lines about the same condition.
const LOG_PAUSE: Duration = Duration::from_mins(1);

/// Limits of connections. Tests use smaller ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections at a time.
    pub(super) connections: usize,
    /// From the accept to the last byte of the answer.
    pub(super) exchange: Duration,
    /// From the accept to the end of the request header.
    pub(super) header_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { connections: CONNECTIONS_MAX, exchange: EXCHANGE_MAX, header_time: HEADER_TIME_MAX }
    }
}

/// Serves until `stop` completes.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    metrics: EndpointMetrics,
    stop: impl Future<Output = ()>,
) {
    let mut open = OpenConnections::new(bounds, metrics);
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => return,
            Some(ended) = open.tasks.join_next_with_id() => match ended {
                Ok((id, ())) => open.forget(id),
                Err(ended) => open.forget(ended.id()),
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    open.add(stream, &router);
                    // The new connection reads its request before further ones are accepted and replace it.
                    tokio::task::yield_now().await;
                }
                Err(error) if is_of_the_connection(&error) => {}
                Err(error) => {
                    open.refused(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// Whether an accept failed because of its connection, which is closed already; the listener is not affected.
fn is_of_the_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
    )
}

/// One open connection.
struct Connection {
    /// Its task.
    task: Id,
    /// Closes it.
    abort: AbortHandle,
    /// Whether its request has arrived and is being answered.
    has_request: Arc<AtomicBool>,
}

/// The open connections, the oldest first.
struct OpenConnections {
    /// The tasks of the connections.
    tasks: JoinSet<()>,
    /// The connections, the oldest first.
    connections: VecDeque<Connection>,
    /// Their limits.
    bounds: Bounds,
    /// Counters.
    metrics: EndpointMetrics,
    /// Limits log lines about the maximum.
    full: Throttle,
    /// Limits log lines about failed accepts.
    refused: Throttle,
}

impl OpenConnections {
    fn new(bounds: Bounds, metrics: EndpointMetrics) -> Self {
        Self {
            tasks: JoinSet::new(),
            connections: VecDeque::new(),
            bounds,
            metrics,
            full: Throttle::default(),
            refused: Throttle::default(),
        }
    }

    fn add(&mut self, stream: TcpStream, router: &Router) {
        if self.connections.len() >= self.bounds.connections {
            self.make_room();
        }
        let has_request = Arc::new(AtomicBool::new(false));
        let (asked, metrics, bounds) =
            (Arc::clone(&has_request), self.metrics.clone(), self.bounds);
        let service = TowerToHyperService::new(router.clone());
        let service = service_fn(move |request| {
            asked.store(true, Ordering::Relaxed);
            service.call(request)
        });
        let abort = self.tasks.spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(bounds.header_time)
                .keep_alive(false)
                .max_buf_size(HEADER_BYTES_MAX)
                .max_headers(HEADERS_MAX);
            let exchange = http.serve_connection(TokioIo::new(stream), service);
            let is_late = match tokio::time::timeout(bounds.exchange, exchange).await {
                // A client that has disconnected, or that sent no valid request, is not logged.
                Ok(ended) => ended.is_err_and(|error| error.is_timeout()),
                Err(_elapsed) => true,
            };
            if is_late {
                metrics.closed(Closed::Late);
            }
        });
        self.connections.push_back(Connection { task: abort.id(), abort, has_request });
    }

    /// Closes the oldest connection that has not sent its request, or, if all have, the oldest one.
    fn make_room(&mut self) {
        let waits = |connection: &Connection| !connection.has_request.load(Ordering::Relaxed);
        let oldest = self.connections.iter().position(waits).unwrap_or(0);
        if let Some(connection) = self.connections.remove(oldest) {
            connection.abort.abort();
            self.metrics.closed(Closed::Full);
        }
        if let Some(closed) = self.full.count(Instant::now()) {
            tracing::warn!(
                event = "admin_connections_full",
                connections = self.bounds.connections,
                closed,
                hint = "let only Prometheus, probes and operators reach admin.listen",
                "all {} connections of the admin endpoint are in use; it closes an old one for each new one",
                self.bounds.connections
            );
        }
    }

    fn forget(&mut self, task: Id) {
        self.connections.retain(|connection| connection.task != task);
    }

    /// An accept failed because the process has no descriptors left. A waiting connection is closed, because others
    /// need its descriptor more.
    fn refused(&mut self, error: &io::Error) {
        if let Some(connection) = self.connections.pop_front() {
            connection.abort.abort();
            self.metrics.closed(Closed::Full);
        }
        if let Some(failed) = self.refused.count(Instant::now()) {
            tracing::warn!(
                event = "admin_accept_failed",
                reason = %error,
                failed,
                hint = "allow the process more descriptors: LimitNOFILE= of the systemd unit, ulimit -n of a shell",
                "the admin endpoint could not accept a connection: {error}"
            );
        }
    }
}

/// A condition that may occur thousands of times a second: when it was logged, and how often it occurred since.
#[derive(Default)]
struct Throttle {
    /// When a line was last logged.
    logged_at: Option<Instant>,
    /// Occurrences since then.
    since: u64,
}

impl Throttle {
    /// Counts one occurrence. Returns the count since the last line if a line is due.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        let is_due = self.logged_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_PAUSE);
        is_due.then(|| {
            self.logged_at = Some(now);
            std::mem::take(&mut self.since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_the_same_are_a_minute_apart_and_count() {
        let (mut throttle, start) = (Throttle::default(), Instant::now());
        assert_eq!(throttle.count(start), Some(1));
        for second in 1..60 {
            assert_eq!(throttle.count(start + Duration::from_secs(second)), None);
        }
        assert_eq!(throttle.count(start + LOG_PAUSE), Some(60));
        assert_eq!(throttle.count(start + LOG_PAUSE), None);
    }

    #[test]
    fn an_accept_that_fails_for_its_connection_alone_is_no_trouble_of_the_process() {
        // ECONNABORTED, EMFILE, ENFILE of Linux.
        assert!(is_of_the_connection(&io::Error::from_raw_os_error(103)));
        assert!(!is_of_the_connection(&io::Error::from_raw_os_error(24)));
        assert!(!is_of_the_connection(&io::Error::from_raw_os_error(23)));
    }
}
