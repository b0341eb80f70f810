//! The admin endpoint: `/live`, `/ready`, `/status` and `/metrics` over plain HTTP.
//!
//! The endpoint only reads the statuses and the metrics: a stuck pipeline can't block it, and a request can't disturb a
//! pipeline. It changes nothing, so it needs no login; by default it listens on loopback. Its connections are limited
//! in number and time.

#[cfg(test)]
mod tests;

use crate::connections::{self, Bounds, Watch, WhenFull};
use crate::intake_status::{IntakeHandle, IntakeSnapshot};
use crate::metrics::{CONTENT_TYPE, Closed, EndpointMetrics, Metrics};
use crate::status::{self, InboxesSummary, Snapshot, StatusHandle};
use axum::Router;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE as TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// Connections that are open at a time. A scrape and some probes need a handful.
pub const CONNECTIONS_MAX: usize = 64;

/// Limits of the endpoint's connections. If all are in use, a new one replaces an old one, so that a scrape is always
/// answered.
const BOUNDS: Bounds = Bounds {
    connections: CONNECTIONS_MAX,
    exchange: Duration::from_secs(10),
    header_time: Duration::from_secs(5),
    when_full: WhenFull::ClosesOldest,
};

/// Why there is no admin endpoint.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is not available.
    #[error("could not listen on {address}, which admin.listen names")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The listener does not know its own address.
    #[error("could not read the address of the admin endpoint")]
    Address(#[source] io::Error),
}

impl AdminError {
    /// Whether another process uses the address.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    /// What to do about it, in one line.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Bind { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                "another process listens there: find it with ss -ltnp. If it is no postrider, give admin.listen \
                 another port, or \"\" for no endpoint. postrider run and postrider inbox run with one file need two \
                 addresses: listen = \"${POSTRIDER_LISTEN:-127.0.0.1:9464}\", and the variable set for one of them"
            }
            Self::Bind { .. } | Self::Address(_) => {
                "give admin.listen an address of this host, or \"\" for no endpoint"
            }
        }
    }
}

/// What the endpoint reads.
#[derive(Clone, Debug)]
pub struct AdminView {
    /// One status for each pipeline.
    pub status_handles: Vec<StatusHandle>,
    /// One status for each intake.
    pub intake_handles: Vec<IntakeHandle>,
    /// One status for each database of inboxes that is maintained for an intake.
    pub maintenance_handles: Vec<StatusHandle>,
    /// The metrics of the process.
    pub metrics: Metrics,
    /// A pipeline with a larger lag is not ready.
    pub ready_lag_max: Duration,
}

/// All pipelines at one moment: the body of `/status`.
#[derive(Serialize, Debug)]
pub struct StatusReport {
    /// The version of the running process.
    pub version: &'static str,
    /// The pipelines, in the order of the configuration file.
    pub pipelines: Vec<Snapshot>,
    /// The intakes of `postrider inbox run`, in the same order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intakes: Vec<IntakeSnapshot>,
    /// The databases of these intakes whose inboxes the process maintains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub maintenance: Vec<IntakeMaintenanceReport>,
}

/// The inboxes of a database of intakes, as their maintenance last read them.
#[derive(Serialize, Debug)]
pub struct IntakeMaintenanceReport {
    /// The first intake that has the database.
    pub intake: String,
    /// What was read.
    #[serde(flatten)]
    pub summary: InboxesSummary,
}

#[derive(Debug)]
struct EndpointState {
    view: AdminView,
    started: Instant,
}

impl EndpointState {
    fn snapshots(&self) -> impl Iterator<Item = Snapshot> {
        self.view.status_handles.iter().map(StatusHandle::read)
    }

    fn intakes(&self) -> impl Iterator<Item = IntakeSnapshot> {
        self.view.intake_handles.iter().map(IntakeHandle::read)
    }

    fn maintenance(&self) -> Vec<IntakeMaintenanceReport> {
        let read = self.view.maintenance_handles.iter().map(StatusHandle::read);
        let reports = read.flat_map(|snapshot| {
            let intake = snapshot.key.pipeline;
            let all = snapshot.maintenance.inboxes.into_iter();
            all.map(move |summary| IntakeMaintenanceReport { intake: intake.clone(), summary })
        });
        reports.collect()
    }

    fn why_not_ready(&self, snapshot: &Snapshot, now: Instant) -> Why {
        ready(snapshot, self.view.ready_lag_max, self.started, now)
    }
}

/// A bound address that is not served yet.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    bounds: Bounds,
}

impl Admin {
    /// Binds the address. Port 0 takes a free port, which [`Admin::address`] returns.
    ///
    /// # Errors
    /// The address is not available.
    pub async fn bind(address: SocketAddr) -> Result<Self, AdminError> {
        let bound = TcpListener::bind(address).await;
        bound
            .map(|listener| Self { listener, bounds: BOUNDS })
            .map_err(|source| AdminError::Bind { address, source })
    }

    /// The same with fewer connections at a time than [`CONNECTIONS_MAX`], for a process with few descriptors.
    #[must_use]
    pub fn with_connections_max(mut self, connections: usize) -> Self {
        self.bounds.connections = connections.clamp(1, CONNECTIONS_MAX);
        self
    }

    /// The bound address.
    ///
    /// # Errors
    /// The listener does not know its own address.
    pub fn address(&self) -> Result<SocketAddr, AdminError> {
        self.listener.local_addr().map_err(AdminError::Address)
    }

    /// Serves until `stop` completes. After an error of the listener it accepts again, so nothing else ends it.
    pub async fn serve(self, view: AdminView, stop: impl Future<Output = ()>) {
        let watch = EndpointWatch(view.metrics.endpoint().clone());
        let shared = Arc::new(EndpointState { view, started: Instant::now() });
        connections::serve(self.listener, router(shared), self.bounds, watch, stop).await;
    }
}

/// Counts and logs what happens to the endpoint's connections.
#[derive(Clone)]
struct EndpointWatch(EndpointMetrics);

impl Watch for EndpointWatch {
    fn closed_for_another(&self) {
        self.0.closed(Closed::Full);
    }

    fn closed_late(&self) {
        self.0.closed(Closed::Late);
    }

    fn log_full(&self, connections: usize, closed: u64) {
        tracing::warn!(
            event = "admin_connections_full",
            connections,
            closed,
            hint = "let only Prometheus, probes and operators reach admin.listen",
            "all {connections} connections of the admin endpoint are in use; it closes an old one for each new one"
        );
    }

    fn log_accept_failed(&self, error: &io::Error, failed: u64) {
        tracing::warn!(
            event = "admin_accept_failed",
            reason = %error,
            failed,
            hint = "allow the process more descriptors: LimitNOFILE= of the systemd unit, ulimit -n of a shell",
            "the admin endpoint could not accept a connection: {error}"
        );
    }
}

fn router(shared: Arc<EndpointState>) -> Router {
    Router::new()
        .route("/live", get(answer_live))
        .route("/ready", get(answer_ready))
        .route("/status", get(answer_status))
        .route("/metrics", get(answer_metrics))
        .with_state(shared)
}

async fn answer_live(State(shared): State<Arc<EndpointState>>) -> Response {
    let now = Instant::now();
    let intakes = shared.intakes().map(|intake| {
        let why = intake.stuck(shared.started, now);
        (intake.intake, why)
    });
    let pipelines = shared.snapshots().map(|snapshot| {
        let why = live(&snapshot, shared.started, now);
        (snapshot.key.pipeline, why)
    });
    verdict(pipelines.chain(intakes))
}

async fn answer_ready(State(shared): State<Arc<EndpointState>>) -> Response {
    let now = Instant::now();
    let intakes = shared.intakes().map(|intake| {
        let why = intake.not_ready(shared.started, now);
        (intake.intake, why)
    });
    let pipelines = shared.snapshots().map(|snapshot| {
        let why = shared.why_not_ready(&snapshot, now);
        (snapshot.key.pipeline, why)
    });
    verdict(pipelines.chain(intakes))
}

async fn answer_status(State(shared): State<Arc<EndpointState>>) -> Response {
    let now = Instant::now();
    let mut pipelines: Vec<_> = shared.snapshots().collect();
    for snapshot in &mut pipelines {
        snapshot.ready = shared.why_not_ready(snapshot, now).is_none();
    }
    let mut intakes: Vec<_> = shared.intakes().collect();
    for intake in &mut intakes {
        intake.ready = intake.not_ready(shared.started, now).is_none();
    }
    let version = env!("CARGO_PKG_VERSION");
    let maintenance = shared.maintenance();
    let status = StatusReport { version, pipelines, intakes, maintenance };
    match serde_json::to_string_pretty(&status) {
        Ok(body) => respond(StatusCode::OK, "application/json", body + "\n"),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

async fn answer_metrics(State(shared): State<Arc<EndpointState>>) -> Response {
    match shared.view.metrics.text() {
        Ok(body) => respond(StatusCode::OK, CONTENT_TYPE, body),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";

/// 200 and `ok`, or 503 and one line for each pipeline with a problem.
fn verdict(pipelines: impl Iterator<Item = (String, Why)>) -> Response {
    let mut lines = String::new();
    for (pipeline, why) in pipelines {
        if let Some(why) = why {
            // Writing to a String does not fail.
            writeln!(lines, "{pipeline}: {why}").unwrap_or_default();
        }
    }
    if lines.is_empty() {
        respond(StatusCode::OK, PLAIN, "ok\n".to_owned())
    } else {
        respond(StatusCode::SERVICE_UNAVAILABLE, PLAIN, lines)
    }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response {
    let headers = [
        (TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, body).into_response()
}

/// A loop that has not turned for longer is stuck. Longer than any step of a healthy loop; the longest step is a
/// connect.
pub const TURN_MAX: Duration = Duration::from_secs(30);

/// What is wrong with a pipeline, in one line; `None` if nothing is.
pub type Why = Option<String>;

/// Whether the loop turns. A pipeline that ended, stopped or halted, is alive: a restart would not help.
pub fn live(snapshot: &Snapshot, started: Instant, now: Instant) -> Why {
    match snapshot.state {
        status::PipelineState::Halted | status::PipelineState::Stopped => None,
        status::PipelineState::Starting
        | status::PipelineState::Streaming
        | status::PipelineState::Polling
        | status::PipelineState::CatchingUp
        | status::PipelineState::StandingBy
        | status::PipelineState::BrokerDown
        | status::PipelineState::SourceDown
        | status::PipelineState::ParkingFull
        | status::PipelineState::Draining
        | status::PipelineState::Paused => {
            let since =
                now.saturating_duration_since(snapshot.moments.turned_at.unwrap_or(started));
            let seconds = since.as_secs();
            (since > TURN_MAX).then(|| format!("the loop has not turned for {seconds} s"))
        }
    }
}

/// Whether the pipeline streams or polls with a small lag.
pub fn ready(snapshot: &Snapshot, lag_max: Duration, started: Instant, now: Instant) -> Why {
    if let Some(stuck) = live(snapshot, started, now) {
        return Some(stuck);
    }
    match snapshot.state {
        status::PipelineState::Streaming
        | status::PipelineState::Polling
        | status::PipelineState::CatchingUp => {
            let (lag, max) = (snapshot.lag_seconds, lag_max.as_secs_f64());
            let behind = lag.is_nan() || lag >= max;
            behind.then(|| format!("the lag is {lag:.1} s, admin.ready_lag_max is {max} s"))
        }
        status::PipelineState::Starting
        | status::PipelineState::StandingBy
        | status::PipelineState::BrokerDown
        | status::PipelineState::SourceDown
        | status::PipelineState::ParkingFull
        | status::PipelineState::Draining
        | status::PipelineState::Paused
        | status::PipelineState::Halted
        | status::PipelineState::Stopped => Some(summary(snapshot)),
    }
}

/// State, code and reason as one line.
fn summary(snapshot: &Snapshot) -> String {
    let mut line = snapshot.state.name().to_owned();
    for part in [snapshot.halt_code, snapshot.reason.as_deref()].into_iter().flatten() {
        line.push_str(": ");
        line.push_str(&part.replace(['\n', '\r'], " "));
    }
    line
}
