//! Asks the relay how it is: `/status` and `/metrics` over HTTP, as any monitoring would, and its memory from the
//! kernel.

use super::DemoError;
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

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Looks of which the quantiles on the screen are made: two seconds.
const WINDOW_LOOKS: usize = 10;
/// How long one answer may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(1);
/// Bytes one answer may have.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

const HISTOGRAM: &str = "postrider_publish_latency_seconds_bucket{";

/// What was seen last.
#[derive(Clone, Default, Debug)]
pub(super) struct Look {
    /// `None` while nobody answers.
    pub(super) status: Option<Status>,
    /// Resident memory. Unit: bytes.
    pub(super) memory: Option<u64>,
    /// The most any of the processes had. Unit: bytes.
    pub(super) memory_peak: Option<u64>,
    /// The most events that were seen in flight.
    pub(super) in_flight_peak: u64,
    /// Commit to acknowledgement in the last two seconds.
    pub(super) recent: Buckets,
    /// Commit to acknowledgement, all runs together; what a killed one counted after the last look is missing.
    pub(super) total: Buckets,
}

/// What the demo reads of a pipeline's status.
#[derive(Clone, Deserialize, Default, Debug)]
pub(super) struct Status {
    pub(super) state: String,
    pub(super) reason: Option<String>,
    pub(super) in_flight_events: u64,
    pub(super) lag_seconds: f64,
    pub(super) lag_bytes: u64,
}

#[derive(Deserialize)]
struct Answer {
    pipelines: Vec<Status>,
}

/// The thread that looks.
#[derive(Debug)]
pub(super) struct Probe {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    stop: AtomicBool,
    /// The relay's process; 0: none.
    pid: AtomicU32,
    /// Told to begin the latencies anew.
    forget: AtomicBool,
    look: Mutex<Look>,
}

impl Probe {
    /// Starts looking at the relay that listens on `port`.
    pub(super) fn start(port: u16) -> Result<Self, DemoError> {
        let shared = Arc::new(Shared {
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

    /// Tells which process is looked at: its counts begin at zero.
    pub(super) fn watch(&self, pid: Option<u32>) {
        self.shared.pid.store(pid.unwrap_or(0), Ordering::Relaxed);
        self.shared.look.lock().unwrap_or_else(PoisonError::into_inner).status = None;
    }

    /// Begins the latencies anew at the next look.
    pub(super) fn forget(&self) {
        self.shared.forget.store(true, Ordering::Relaxed);
    }

    /// What was seen last.
    pub(super) fn look(&self) -> Look {
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

/// One process's histogram so far, and the last few steps of all.
#[derive(Default)]
struct History {
    pid: u32,
    counted: Buckets,
    steps: VecDeque<Buckets>,
}

fn watch(shared: &Shared) {
    let mut history = History::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let pid = shared.pid.load(Ordering::Relaxed);
        if pid != 0 {
            let status = get(shared.address, "/status").ok().and_then(|body| status_in(&body));
            let counted = get(shared.address, "/metrics").map(|body| buckets_in(&body));
            // Killed meanwhile: whose answer it is nobody knows.
            if shared.pid.load(Ordering::Relaxed) == pid {
                take(shared, &mut history, pid, status, counted.ok());
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn take(
    shared: &Shared,
    history: &mut History,
    pid: u32,
    status: Option<Status>,
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
    if history.steps.len() > WINDOW_LOOKS {
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

fn status_in(body: &str) -> Option<Status> {
    let answer: Answer = serde_json::from_str(body).ok()?;
    answer.pipelines.into_iter().next()
}

/// The histogram's buckets, each with its own count: in the text they are summed up.
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

/// HTTP/1.0 by hand, so that the answer ends with the connection.
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
    fn sums_of_buckets_become_their_own_counts() {
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
        let body = serde_json::to_string(&crate::admin::StatusReport {
            version: "1",
            pipelines: vec![crate::status::Snapshot { lag_bytes: 7, ..Default::default() }],
        });
        let status = status_in(&body.unwrap()).unwrap();
        assert_eq!((status.state.as_str(), status.lag_bytes), ("starting", 7));
    }
}
