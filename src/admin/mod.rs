//! The admin endpoint: the operators' page, `/live`, `/ready`, `/status`, `/history`, `/find` and
//! `/metrics` over plain HTTP.
//!
//! The endpoint only reads the statuses, the metrics and the newest lines of the log: a stuck pipeline can't block it,
//! and a request can't disturb a pipeline. It changes nothing, so it needs no login; by default it listens on loopback.
//! Its connections are limited in number and time.

mod answer;
mod find;
mod history;
mod log_events;
mod page;
mod report;
mod sentence;
#[cfg(test)]
mod tests;

pub use find::{FindReport, FoundEvent, RememberedReport, TEXT_MAX};
pub use history::{HISTORY_BYTES_MAX, Movement, Outlook};
pub use log_events::{LINES_MAX, LogEvent, LogEvents, TEXT_BYTES_MAX};
pub use report::{
    Blocked, EventFlow, IntakeMaintenanceReport, PipelineReport, Stage, StageName, StatusReport,
};
pub use sentence::{SlotRoom, sentence};

use crate::connections::{self, Bounds, Watch, WhenFull};
use crate::intake_status::{IntakeHandle, IntakeSnapshot};
use crate::metrics::{CONTENT_TYPE, Closed, EndpointMetrics, Metrics};
use crate::status::{self, Snapshot, StatusHandle};
use answer::{PLAIN, json, json_in_lines, respond};
use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use find::FindQuery;
use history::{History, HistoryColumns, Reading, Window};
use serde::Serialize;
use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
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
    /// The newest lines of the log.
    pub log_events: LogEvents,
    /// A pipeline with a larger lag is not ready.
    pub ready_lag_max: Duration,
}

#[derive(Debug)]
struct EndpointState {
    view: AdminView,
    started: Instant,
    /// What the pipelines did.
    history: History,
}

/// The body of `/history/PIPELINE/SHARD/WINDOW`.
#[derive(Serialize, Debug)]
struct HistoryReport {
    /// The clock of the process. Unit: milliseconds since 1970.
    now_unix_ms: u64,
    /// The points.
    columns: HistoryColumns,
    /// The log lines of the time.
    log: Vec<LogEvent>,
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

    fn reading(&self, status_handle: &StatusHandle, snapshot: &Snapshot) -> Reading {
        Reading::of(snapshot, self.view.metrics.latency_of(status_handle))
    }

    /// Reads the statuses again and again into the history.
    async fn sample(&self) {
        let mut ticks = tokio::time::interval(history::SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let readings = self.view.status_handles.iter();
            let readings = readings.map(|handle| self.reading(handle, &handle.read()));
            self.history.note(Instant::now(), readings);
        }
    }

    /// The reports of the pipelines.
    fn reports(&self, now: Instant) -> Vec<PipelineReport> {
        let report = |(index, handle): (usize, &StatusHandle)| {
            let mut snapshot = handle.read();
            snapshot.ready = self.why_not_ready(&snapshot, now).is_none();
            let reading = self.reading(handle, &snapshot);
            let outlook = self.history.outlook(index, now, &reading);
            let stuck = live(&snapshot, self.started, now);
            PipelineReport::new(snapshot, stuck.as_deref(), &outlook)
        };
        self.view.status_handles.iter().enumerate().map(report).collect()
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
        let started = Instant::now();
        let history = History::new(view.status_handles.len(), started);
        let shared = Arc::new(EndpointState { view, started, history });
        let router = router(Arc::clone(&shared));
        tokio::select! {
            () = connections::serve(self.listener, router, self.bounds, watch, stop) => {}
            () = shared.sample() => {}
        }
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
        .route("/", get(page::html))
        .route("/page.css", get(page::css))
        .route("/page.js", get(page::js))
        .route("/live", get(answer_live))
        .route("/ready", get(answer_ready))
        .route("/status", get(answer_status))
        .route("/history/{pipeline}/{shard}/{window}", get(answer_history))
        .route("/find", get(answer_find))
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
    let pipelines = shared.reports(now);
    let mut intakes: Vec<_> = shared.intakes().collect();
    for intake in &mut intakes {
        intake.ready = intake.not_ready(shared.started, now).is_none();
    }
    let version = env!("CARGO_PKG_VERSION");
    let maintenance = shared.maintenance();
    let status = StatusReport { version, pipelines, intakes, maintenance };
    json_in_lines(&status)
}

async fn answer_history(
    State(shared): State<Arc<EndpointState>>,
    Path((pipeline, number, window)): Path<(String, String, String)>,
) -> Response {
    let Some(window) = Window::parse(&window) else {
        return respond(StatusCode::NOT_FOUND, PLAIN, "the time is hour or day\n");
    };
    let of = |snapshot: &Snapshot| {
        snapshot.key.pipeline == pipeline && snapshot.key.shard.to_string() == number
    };
    let Some(index) = shared.snapshots().position(|snapshot| of(&snapshot)) else {
        return respond(StatusCode::NOT_FOUND, PLAIN, "no such pipeline runs in this process\n");
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let length = u64::try_from(window.length().as_millis()).unwrap_or(u64::MAX);
    json(&HistoryReport {
        now_unix_ms,
        columns: shared.history.columns(index, window),
        log: shared.view.log_events.of(&pipeline, now_unix_ms.saturating_sub(length)),
    })
}

async fn answer_find(
    State(shared): State<Arc<EndpointState>>,
    RawQuery(query): RawQuery,
) -> Response {
    let query = match FindQuery::parse(query.as_deref().unwrap_or_default()) {
        Ok(query) => query,
        Err(why) => return respond(StatusCode::BAD_REQUEST, PLAIN, format!("{why}\n")),
    };
    let handle = shared.view.status_handles.iter().find(|handle| {
        let key = handle.read().key;
        key.pipeline == query.pipeline && key.shard == query.shard
    });
    match handle {
        Some(handle) => json_in_lines(&FindReport::new(handle, &query)),
        None => respond(StatusCode::NOT_FOUND, PLAIN, "no such pipeline runs in this process\n"),
    }
}

async fn answer_metrics(State(shared): State<Arc<EndpointState>>) -> Response {
    match shared.view.metrics.text() {
        Ok(body) => respond(StatusCode::OK, CONTENT_TYPE, body),
        Err(error) => respond(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
    }
}

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
