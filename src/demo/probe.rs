//! Observes the relay: `/status` and `/metrics` over HTTP, as monitoring does, and its memory from `/proc`.

use super::error::DemoError;
use super::process::memory;
use super::quantile::Buckets;
use serde::Deserialize;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause between two observations.
const OBSERVE_EVERY: Duration = Duration::from_millis(200);
/// Observations that the quantiles on the screen are computed from: two seconds.
const WINDOW: usize = 10;
/// How long an answer may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// Size of an answer at most. Unit: bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

const HISTOGRAM: &str = "postrider_publish_latency_seconds_bucket{";

/// The last observation.
#[derive(Clone, Default, Debug)]
pub(super) struct Observation {
    /// `None` if the relay does not answer.
    pub(super) status: Option<RelayStatus>,
    /// Resident memory. Unit: bytes.
    pub(super) memory: Option<u64>,
    /// Peak of the resident memory of all processes. Unit: bytes.
    pub(super) memory_peak: Option<u64>,
    /// Largest number of events in flight that was observed.
    pub(super) in_flight_peak: u64,
    /// Commit to acknowledgement in the last two seconds.
    pub(super) recent: Buckets,
    /// Commit to acknowledgement of all processes; what a killed process counted after the last observation is missing.
    pub(super) total: Buckets,
}

/// The fields of a pipeline's status that the demo uses.
#[derive(Clone, Deserialize, Default, Debug)]
pub(super) struct RelayStatus {
    pub(super) state: String,
    pub(super) reason: Option<String>,
    pub(super) in_flight_events: u64,
    pub(super) lag_seconds: f64,
    pub(super) lag_bytes: u64,
}

#[derive(Deserialize)]
struct StatusResponse {
    pipelines: Vec<RelayStatus>,
}

/// The thread that observes the relay.
#[derive(Debug)]
pub(super) struct Probe {
    shared: Arc<ProbeState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProbeState {
    address: SocketAddr,
    stop: AtomicBool,
    /// The process id of the relay; 0: none.
    pid: AtomicU32,
    /// Whether the latencies are to be discarded.
    forget: AtomicBool,
    look: Mutex<Observation>,
}

impl Probe {
    /// Starts observing the relay that listens on `port`.
    pub(super) fn start(port: u16) -> Result<Self, DemoError> {
        let shared = Arc::new(ProbeState {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            stop: AtomicBool::new(false),
            pid: AtomicU32::new(0),
            forget: AtomicBool::new(false),
            look: Mutex::default(),
        });
        let thread = std::thread::Builder::new().name("demo-probe".to_owned());
        let theirs = Arc::clone(&shared);
        let thread = thread.spawn(move || watch(&theirs)).map_err(DemoError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Sets the process to observe, whose counts begin at zero.
    pub(super) fn watch(&self, pid: Option<u32>) {
        self.shared.pid.store(pid.unwrap_or(0), Ordering::Relaxed);
        self.shared.look.lock().unwrap_or_else(PoisonError::into_inner).status = None;
    }

    /// Discards the latencies measured so far, at the next observation.
    pub(super) fn forget(&self) {
        self.shared.forget.store(true, Ordering::Relaxed);
    }

    /// The last observation.
    pub(super) fn look(&self) -> Observation {
        self.shared.look.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The histogram of the present process, and its recent increments.
#[derive(Default)]
struct LatencyHistory {
    pid: u32,
    counted: Buckets,
    steps: VecDeque<Buckets>,
}

fn watch(shared: &ProbeState) {
    let mut history = LatencyHistory::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let pid = shared.pid.load(Ordering::Relaxed);
        if pid != 0 {
            let status = get(shared.address, "/status").ok().and_then(|body| status_in(&body));
            let counted = get(shared.address, "/metrics").map(|body| buckets_in(&body));
            // If the relay was killed meanwhile, it is not known which process has answered.
            if shared.pid.load(Ordering::Relaxed) == pid {
                take(shared, &mut history, pid, status, counted.ok());
            }
        }
        std::thread::sleep(OBSERVE_EVERY);
    }
}

fn take(
    shared: &ProbeState,
    history: &mut LatencyHistory,
    pid: u32,
    status: Option<RelayStatus>,
    counted: Option<Buckets>,
) {
    if history.pid != pid {
        history.pid = pid;
        history.counted = Buckets::default();
    }
    let mut step = Buckets::default();
    if let Some(counted) = counted {
        step = counted.since(&history.counted);
        history.counted = counted;
    }
    let forget = shared.forget.swap(false, Ordering::Relaxed);
    if forget {
        step = Buckets::default();
        history.steps.clear();
    }
    history.steps.push_back(step.clone());
    if history.steps.len() > WINDOW {
        history.steps.pop_front();
    }
    let mut recent = Buckets::default();
    history.steps.iter().for_each(|step| recent.add(step));

    let mut look = shared.look.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = memory(pid);
    look.memory = memory.map(|(now, _)| now);
    look.memory_peak = look.memory_peak.max(memory.map(|(_, peak)| peak));
    let in_flight = status.as_ref().map_or(0, |status| status.in_flight_events);
    look.in_flight_peak = look.in_flight_peak.max(in_flight);
    look.status = status;
    look.recent = recent;
    if forget {
        look.total = Buckets::default();
    }
    look.total.add(&step);
}

fn status_in(body: &str) -> Option<RelayStatus> {
    let answer: StatusResponse = serde_json::from_str(body).ok()?;
    answer.pipelines.into_iter().next()
}

/// The histogram's buckets, each with its own count: in the text the counts are cumulative.
fn buckets_in(body: &str) -> Buckets {
    let mut below = 0;
    let lines = body.lines().filter_map(|line| line.strip_prefix(HISTOGRAM));
    let buckets = lines.filter_map(|line| {
        let (labels, count) = line.rsplit_once("} ")?;
        let (_, bound) = labels.split_once("le=\"")?;
        let bound: f64 = bound.split('"').next()?.parse().ok()?;
        let sum: u64 = count.parse().ok()?;
        let own = sum.saturating_sub(below);
        below = sum;
        Some((bound, own))
    });
    Buckets(buckets.collect())
}

/// Uses HTTP/1.0, so that the answer ends with the connection.
fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_DEADLINE)?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    body.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cumulative_buckets_become_single_counts() {
        let body = "# TYPE postrider_publish_latency_seconds histogram\n\
            postrider_publish_latency_seconds_sum{pipeline=\"d\"} 1.5\n\
            postrider_publish_latency_seconds_bucket{le=\"0.001\",pipeline=\"d\"} 3\n\
            postrider_publish_latency_seconds_bucket{le=\"0.002\",pipeline=\"d\"} 7\n\
            postrider_publish_latency_seconds_bucket{le=\"+Inf\",pipeline=\"d\"} 7\n";
        assert_eq!(buckets_in(body), Buckets(vec![(0.001, 3), (0.002, 4), (f64::INFINITY, 0)]));
        assert_eq!(buckets_in(""), Buckets::default());
    }

    #[test]
    fn the_first_pipeline_of_the_status_is_taken() {
        use crate::admin::{Outlook, PipelineReport, StatusReport};
        use crate::status::Snapshot;
        let snapshot = Snapshot { lag_bytes: 7, ..Default::default() };
        let body = serde_json::to_string(&StatusReport {
            intakes: Vec::new(),
            maintenance: Vec::new(),
            version: "1",
            pipelines: vec![PipelineReport::new(snapshot, None, &Outlook::default())],
        });
        let status = status_in(&body.unwrap()).unwrap();
        assert_eq!((status.state.as_str(), status.lag_bytes), ("starting", 7));
    }
}
