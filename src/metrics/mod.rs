//! Metrics: the counters of a process, and their text for Prometheus.
//!
//! Most figures are read from the pipelines' [`StatusHandle`]s when a scrape arrives, so that metrics and `/status`
//! can't disagree; only what a status does not contain is counted here. `admin` serves the text, and `docs/metrics.md`
//! explains it.

mod catalog;
mod intakes;
mod process;
#[cfg(test)]
mod tests;
mod text;

pub use catalog::CATALOG;

use crate::intake_status::IntakeHandle;
use crate::status::StatusHandle;
use intakes::IntakeScrape;
use process::ProcessScrape;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Event types that are counted by name; further ones are counted as [`OTHER_EVENT_TYPE`].
pub const EVENT_TYPES_MAX: usize = 200;

/// The label of event types beyond [`EVENT_TYPES_MAX`].
pub const OTHER_EVENT_TYPE: &str = "other";

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// When the process began to count.
    started: SystemTime,
    /// The pipelines.
    sources: Arc<Mutex<Vec<PipelineSource>>>,
    /// The intakes.
    intakes: Arc<Mutex<Vec<IntakeHandle>>>,
    /// The databases of inboxes that are maintained for intakes.
    maintained: Arc<Mutex<Vec<StatusHandle>>>,
    /// Counters of the admin endpoint.
    endpoint: EndpointMetrics,
}

/// Where the figures of one pipeline come from.
#[derive(Clone, Debug)]
struct PipelineSource {
    /// Its status.
    status_handle: StatusHandle,
    /// Its counters.
    counters: PipelineMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            started: SystemTime::now(),
            sources: Arc::default(),
            intakes: Arc::default(),
            maintained: Arc::default(),
            endpoint: EndpointMetrics::default(),
        }
    }
}

impl Metrics {
    /// Registers a pipeline; returns the counters for its thread.
    pub fn pipeline(&self, status_handle: &StatusHandle) -> PipelineMetrics {
        let counters = PipelineMetrics::default();
        let source =
            PipelineSource { status_handle: status_handle.clone(), counters: counters.clone() };
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(source);
        counters
    }

    /// Registers an intake.
    pub fn intake(&self, handle: &IntakeHandle) {
        self.intakes.lock().unwrap_or_else(PoisonError::into_inner).push(handle.clone());
    }

    /// Registers a database whose inboxes are maintained for an intake. Only `maintenance.inboxes` of its status is
    /// exported: there is no pipeline.
    pub fn maintained(&self, status_handle: &StatusHandle) {
        let mut maintained = self.maintained.lock().unwrap_or_else(PoisonError::into_inner);
        maintained.push(status_handle.clone());
    }

    /// The metrics as they are now, in the `OpenMetrics` text format.
    ///
    /// # Errors
    /// The encoder fails, which means that a metric has no row in [`CATALOG`].
    pub fn text(&self) -> Result<String, fmt::Error> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let intakes = self.intakes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let more = (!intakes.is_empty()).then(|| Box::new(IntakeScrape::of(&intakes)) as Box<_>);
        let maintained = self.maintained.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let process = ProcessScrape::read(self.started);
        text::encode((&sources, &maintained), more, &self.endpoint, process)
    }

    /// What a pipeline has counted from commit to acknowledgement; `None` if it is not registered.
    pub fn latency_of(&self, status_handle: &StatusHandle) -> Option<LatencyCounts> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let source = sources.iter().find(|source| source.status_handle.is_same(status_handle))?;
        Some(source.counters.latency().counts())
    }

    /// The counters of the admin endpoint.
    pub fn endpoint(&self) -> &EndpointMetrics {
        &self.endpoint
    }
}

/// Why the admin endpoint closed a connection before it was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closed {
    /// A newer connection took its place.
    Full,
    /// It took too long.
    Late,
}

impl Closed {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::Full, Self::Late];

    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Late => "late",
        }
    }
}

/// Counters of the admin endpoint, one for the process.
#[derive(Clone, Default, Debug)]
pub struct EndpointMetrics(Arc<[AtomicU64; Closed::ALL.len()]>);

impl EndpointMetrics {
    /// Counts one connection that was closed before it was answered.
    pub fn closed(&self, why: Closed) {
        self.of(why).fetch_add(1, Ordering::Relaxed);
    }

    /// The number of such connections.
    pub fn closed_total(&self, why: Closed) -> u64 {
        self.of(why).load(Ordering::Relaxed)
    }

    fn of(&self, why: Closed) -> &AtomicU64 {
        let [full, late] = &*self.0;
        match why {
            Closed::Full => full,
            Closed::Late => late,
        }
    }
}

/// The side that a connection was lost to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// The database.
    Source,
    /// The broker.
    Sink,
}

impl Side {
    /// The label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Sink => "sink",
        }
    }
}

/// Counters of one pipeline. Cheap to clone; [`Latency::observe`] takes no lock, the others are for rare events.
#[derive(Clone, Default, Debug)]
pub struct PipelineMetrics(Arc<PipelineCounters>);

#[derive(Default, Debug)]
struct PipelineCounters {
    /// From commit to acknowledgement.
    latency: Latency,
    /// From the call of a commit of the sink's transaction to its answer.
    commits: Latency,
    /// Reconnects, by side and class of the error.
    reconnects: Mutex<BTreeMap<(Side, &'static str), u64>>,
    /// Events that could not be published, by type.
    failures: Mutex<BTreeMap<String, u64>>,
}

impl PipelineMetrics {
    /// The time from commit to the broker's acknowledgement.
    pub fn latency(&self) -> &Latency {
        &self.0.latency
    }

    /// The time from the call of a commit of the sink's transaction to its answer.
    pub fn commits(&self) -> &Latency {
        &self.0.commits
    }

    /// Counts one reconnect to `side`; `class` is the class of the error, one of a fixed set.
    pub fn reconnected(&self, side: Side, class: &'static str) {
        let mut reconnects = self.0.reconnects.lock().unwrap_or_else(PoisonError::into_inner);
        *reconnects.entry((side, class)).or_default() += 1;
    }

    /// Counts one event that could not be published.
    pub fn failed(&self, event_type: &str) {
        let mut failures = self.0.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let known = failures.contains_key(event_type) || failures.len() < EVENT_TYPES_MAX;
        let label = if known { event_type } else { OTHER_EVENT_TYPE };
        *failures.entry(label.to_owned()).or_default() += 1;
    }

    fn reconnects(&self) -> BTreeMap<(Side, &'static str), u64> {
        self.0.reconnects.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failures(&self) -> BTreeMap<String, u64> {
        self.0.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Upper bounds of the buckets in seconds; a last bucket has no bound.
pub const BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The same in microseconds.
const BOUNDS_MICROS: [u64; 16] = [
    500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// What a [`Latency`] had counted at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatencyCounts {
    /// The durations of each bucket.
    buckets: [u64; BUCKETS.len() + 1],
    /// The sum of all durations. Unit: microseconds.
    sum_micros: u64,
}

impl LatencyCounts {
    /// What was counted since `earlier`: the mean, and the upper bound of the bucket that 99 of 100 durations do not
    /// exceed, infinite in the last one. Unit: seconds. `None` if nothing was counted.
    pub fn since(&self, earlier: &Self) -> Option<(f64, f64)> {
        let counted = self.buckets.iter().zip(&earlier.buckets);
        let counted: Vec<u64> = counted.map(|(now, then)| now.saturating_sub(*then)).collect();
        let total: u64 = counted.iter().sum();
        let micros = self.sum_micros.saturating_sub(earlier.sum_micros);
        let mean = Duration::from_micros(micros.checked_div(total)?).as_secs_f64();
        let mut within = 0_u64;
        let bucket = counted.iter().position(|count| {
            within += count;
            within.saturating_mul(100) >= total.saturating_mul(99)
        })?;
        Some((mean, BUCKETS.get(bucket).copied().unwrap_or(f64::INFINITY)))
    }
}

/// A histogram of durations without locks: one thread counts a hundred thousand times a second, another one reads now
/// and then. All operations are relaxed: a reader may see a count before its sum.
#[derive(Default, Debug)]
pub struct Latency {
    counters: [AtomicU64; BUCKETS.len() + 1],
    sum_micros: AtomicU64,
}

impl Latency {
    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts a duration that `times` events share, such as the events of one transaction in one batch of reports.
    pub fn observe_many(&self, duration: Duration, times: u64) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counters.get(bucket) {
            count.fetch_add(times, Ordering::Relaxed);
        }
        self.sum_micros.fetch_add(micros.saturating_mul(times), Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn counts(&self) -> LatencyCounts {
        LatencyCounts {
            buckets: self.counters.each_ref().map(|count| count.load(Ordering::Relaxed)),
            sum_micros: self.sum_micros.load(Ordering::Relaxed),
        }
    }

    /// The sum in seconds, and the count of each bucket with its upper bound.
    fn read(&self) -> (f64, Vec<(f64, u64)>) {
        let bounds = BUCKETS.iter().copied().chain(std::iter::once(f64::INFINITY));
        let counters = self.counters.iter().map(|count| count.load(Ordering::Relaxed));
        let sum = Duration::from_micros(self.sum_micros.load(Ordering::Relaxed)).as_secs_f64();
        (sum, bounds.zip(counters).collect())
    }
}
