//! A histogram without locks: one thread counts a hundred thousand times a second, another reads now and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in seconds; a last one takes the rest.
pub const BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The same in microseconds.
const BOUNDS_MICROS: [u64; 16] = [
    500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Durations, counted by bucket. All operations are relaxed: a reader may see a count before its sum.
#[derive(Default, Debug)]
pub struct Latency {
    counts: [AtomicU64; BUCKETS.len() + 1],
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
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(times, Ordering::Relaxed);
        }
        self.sum_micros.fetch_add(micros.saturating_mul(times), Ordering::Relaxed);
    }

    /// The sum in seconds, and the count of each bucket with its upper bound.
    pub(super) fn read(&self) -> (f64, Vec<(f64, u64)>) {
        let bounds = BUCKETS.iter().copied().chain(std::iter::once(f64::INFINITY));
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let sum = Duration::from_micros(self.sum_micros.load(Ordering::Relaxed)).as_secs_f64();
        (sum, bounds.zip(counts).collect())
    }
}
