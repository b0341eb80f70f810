//! The connections of an HTTP server: how many are open, for how long, and which one is closed for a new one.
//!
//! Any client that reaches the address can open any number of connections, and each one takes a file descriptor that
//! the connections to database and broker need too. So each connection carries one request and has one deadline, from
//! its accept to the last byte of the answer. The deadline limits the header, the body, an idle connection and a client
//! that reads slowly. If the maximum is reached, a new connection replaces an old one that has not sent its request, so
//! that clients that do nothing keep nobody out.

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
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

/// Bytes of a request line and headers; a larger request is answered with 431.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// Headers of a request; a request with more is answered with 431.
const HEADERS_MAX: usize = 64;

/// With [`WhenFull::Waits`], a connection without a request is closed for a new one only if it has been open for so
/// long: in a burst of requests, most connections are new and have a request that is about to be read.
const YOUNG_MAX: Duration = Duration::from_millis(250);

/// Pause after a failed accept: without descriptors the next one fails too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

/// Pause between two log lines about the same condition.
const LOG_PAUSE: Duration = Duration::from_mins(1);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at a time.
    pub(crate) connections: usize,
    /// From the accept to the last byte of the answer.
    pub(crate) exchange: Duration,
    /// From the accept to the end of the request header.
    pub(crate) header_time: Duration,
    /// What happens if all connections are in use.
    pub(crate) when_full: WhenFull,
}

/// What happens if all connections are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenFull {
    /// The oldest one without a request is closed, else the oldest one. A request has arrived when its header has.
    ClosesOldest,
    /// The oldest one without a request is closed after [`YOUNG_MAX`]; without such a one, no connection is accepted
    /// until one has been answered. A request has arrived when its handler calls [`Arrival::mark`]. At the end, those
    /// that have arrived are answered.
    Waits,
}

/// In the extensions of each request: lets the handler say that the request has arrived completely.
#[derive(Clone, Debug)]
pub(crate) struct Arrival(Arc<AtomicBool>);

impl Arrival {
    /// From now on, the connection is not closed for a new one.
    pub(crate) fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who counts and logs what happens to connections. Lines about the same condition are a minute apart.
pub(crate) trait Watch: Clone + Send + 'static {
    /// A connection was closed because a newer one took its place.
    fn closed_for_another(&self);

    /// A connection was closed because it took too long.
    fn closed_late(&self);

    /// Logs that all `connections` are in use, and that `closed` were closed for new ones since the last line.
    fn log_full(&self, connections: usize, closed: u64);

    /// Logs that the process could not accept connections, `failed` times since the last line.
    fn log_accept_failed(&self, error: &io::Error, failed: u64);
}

/// Serves until `stop` completes.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    watch: impl Watch,
    stop: impl Future<Output = ()>,
) {
    let mut open = OpenConnections::new(bounds, watch);
    let mut stop = pin!(stop);
    loop {
        let room = open.room();
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(ended) = open.tasks.join_next_with_id() => match ended {
                Ok((id, ())) => open.forget(id),
                Err(ended) => open.forget(ended.id()),
            },
            () = tokio::time::sleep(room.unwrap_or_default()), if room.is_some_and(|wait| !wait.is_zero()) => {}
            accepted = listener.accept(), if room == Some(Duration::ZERO) => match accepted {
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
    // New clients are refused from here on.
    drop(listener);
    open.finish().await;
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
    /// When it was accepted.
    since: Instant,
}

/// The open connections, the oldest first.
struct OpenConnections<W> {
    /// The tasks of the connections.
    tasks: JoinSet<()>,
    /// The connections, the oldest first.
    connections: VecDeque<Connection>,
    /// Their limits.
    bounds: Bounds,
    /// Counts and logs.
    watch: W,
    /// Limits log lines about the maximum.
    full: Throttle,
    /// Limits log lines about failed accepts.
    refused: Throttle,
}

impl Connection {
    fn has_request(&self) -> bool {
        self.has_request.load(Ordering::Relaxed)
    }

    fn young_for(&self) -> Duration {
        YOUNG_MAX.saturating_sub(self.since.elapsed())
    }
}

impl<W: Watch> OpenConnections<W> {
    fn new(bounds: Bounds, watch: W) -> Self {
        Self {
            tasks: JoinSet::new(),
            connections: VecDeque::new(),
            bounds,
            watch,
            full: Throttle::default(),
            refused: Throttle::default(),
        }
    }

    /// How long a further connection has to wait; `None` until one has ended.
    fn room(&self) -> Option<Duration> {
        if self.connections.len() < self.bounds.connections {
            return Some(Duration::ZERO);
        }
        match self.bounds.when_full {
            WhenFull::ClosesOldest => Some(Duration::ZERO),
            WhenFull::Waits => self.without_request().map(|(_, connection)| connection.young_for()),
        }
    }

    /// The oldest connection that has not sent its request.
    fn without_request(&self) -> Option<(usize, &Connection)> {
        self.connections.iter().enumerate().find(|(_, connection)| !connection.has_request())
    }

    /// The connection that is closed for a new one.
    fn replaceable(&self) -> Option<usize> {
        let oldest = self.without_request();
        match self.bounds.when_full {
            WhenFull::ClosesOldest => {
                oldest.map(|(at, _)| at).or((!self.connections.is_empty()).then_some(0))
            }
            WhenFull::Waits => {
                oldest.filter(|(_, connection)| connection.young_for().is_zero()).map(|(at, _)| at)
            }
        }
    }

    fn add(&mut self, stream: TcpStream, router: &Router) {
        if self.connections.len() >= self.bounds.connections {
            self.make_room();
        }
        let has_request = Arc::new(AtomicBool::new(false));
        let (arrival, watch, bounds) =
            (Arrival(Arc::clone(&has_request)), self.watch.clone(), self.bounds);
        let service = TowerToHyperService::new(router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            match bounds.when_full {
                WhenFull::ClosesOldest => arrival.mark(),
                WhenFull::Waits => drop(request.extensions_mut().insert(arrival.clone())),
            }
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
                watch.closed_late();
            }
        });
        self.connections.push_back(Connection {
            task: abort.id(),
            abort,
            has_request,
            since: Instant::now(),
        });
    }

    /// Closes a connection, if one can be closed.
    fn make_room(&mut self) {
        if !self.close_one() {
            return;
        }
        if let Some(closed) = self.full.count(Instant::now()) {
            self.watch.log_full(self.bounds.connections, closed);
        }
    }

    fn close_one(&mut self) -> bool {
        let closed = self.replaceable().and_then(|at| self.connections.remove(at));
        if let Some(connection) = &closed {
            connection.abort.abort();
            self.watch.closed_for_another();
        }
        closed.is_some()
    }

    fn forget(&mut self, task: Id) {
        self.connections.retain(|connection| connection.task != task);
    }

    /// An accept failed because the process has no descriptors left. A waiting connection is closed, because others
    /// need its descriptor more.
    fn refused(&mut self, error: &io::Error) {
        self.close_one();
        if let Some(failed) = self.refused.count(Instant::now()) {
            self.watch.log_accept_failed(error, failed);
        }
    }

    /// Closes the connections; with [`WhenFull::Waits`], those whose request has arrived are answered first.
    async fn finish(mut self) {
        if self.bounds.when_full == WhenFull::ClosesOldest {
            return;
        }
        for connection in self.connections.iter().filter(|connection| !connection.has_request()) {
            connection.abort.abort();
        }
        // Each one has its deadline.
        while self.tasks.join_next().await.is_some() {}
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
