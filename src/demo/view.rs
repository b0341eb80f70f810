//! The figures on the screen: rates and latencies of the last seconds, from the ledger's totals and the probe.

use super::chaos::FailureKind;
use super::ledger::{SharedLedger, Totals};
use super::probe::Observation;
use super::quantile::Spread;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The window of a rate: short enough to show a kill.
const RATE_WINDOW: Duration = Duration::from_secs(1);
/// The window of the quantiles.
const QUANTILE_WINDOW: Duration = Duration::from_secs(2);
/// Between two points of the charts.
const POINT_EVERY: Duration = Duration::from_millis(250);
/// Points that the charts keep: one minute.
const POINTS_MAX: usize = 240;

/// A killed relay may publish again the events of its last moments: by default the cursor is at most 1 s old, and a
/// status update 200 ms.
const REPEATED: Duration = Duration::from_millis(1200);

/// What the demo is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Events are written.
    Writing,
    /// No more events are written; the last ones are being delivered.
    Draining,
}

/// Median and 99th percentile.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Quantiles {
    pub(super) p50: Option<Duration>,
    pub(super) p99: Option<Duration>,
}

/// One point of the charts. Latencies in milliseconds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Point {
    pub(super) written: f64,
    pub(super) delivered: f64,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// Everything that a screen shows.
#[derive(Clone, Debug)]
pub(super) struct ScreenView {
    pub(super) phase: Phase,
    pub(super) elapsed: Duration,
    /// `None`: until Ctrl-C.
    pub(super) limit: Option<Duration>,
    /// Events per second that were committed, and read.
    pub(super) written: f64,
    pub(super) delivered: f64,
    pub(super) acknowledged: Quantiles,
    pub(super) consumed: Quantiles,
    pub(super) totals: Totals,
    pub(super) look: Observation,
    /// The failure from which the relay has not recovered yet.
    pub(super) breaking: Option<FailureKind>,
    /// Number of failures that were injected, and that are planned for one round.
    pub(super) broken: usize,
    pub(super) planned: usize,
    /// Whether the failures are those of `--chaos`.
    pub(super) chaos: bool,
    /// Why the writers do not write, if they do not.
    pub(super) trouble: Option<String>,
}

impl ScreenView {
    /// The state of the relay.
    pub(super) fn state(&self) -> &str {
        match (&self.look.status, self.phase) {
            (None, _) if self.breaking == Some(FailureKind::KillRelay) => "restarting",
            (None, _) => "no answer",
            (Some(_), Phase::Draining) => "draining",
            (Some(status), Phase::Writing) => &status.state,
        }
    }
}

/// Computes rates from the ledger's totals.
#[derive(Debug)]
pub(super) struct Meter {
    ledger: SharedLedger,
    samples: VecDeque<Sample>,
    pub(super) points: VecDeque<Point>,
    next_point: Instant,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    totals: Totals,
    consumed: Spread,
}

impl Meter {
    pub(super) fn new(ledger: &SharedLedger) -> Self {
        let (samples, points) = (VecDeque::new(), VecDeque::new());
        Self { ledger: ledger.clone(), samples, points, next_point: Instant::now() }
    }

    /// Discards the samples.
    pub(super) fn forget(&mut self) {
        self.samples.clear();
    }

    /// Samples the ledger's totals.
    pub(super) fn sample(&mut self) -> Totals {
        let (totals, consumed) = {
            let ledger = self.ledger.lock();
            (ledger.totals(), ledger.consumed.clone())
        };
        let at = Instant::now();
        self.samples.push_back(Sample { at, totals, consumed });
        while self.samples.front().is_some_and(|sample| at - sample.at > QUANTILE_WINDOW) {
            self.samples.pop_front();
        }
        totals
    }

    /// The oldest sample inside a window.
    fn back(&self, window: Duration) -> Option<&Sample> {
        let now = self.samples.back()?.at;
        self.samples.iter().find(|sample| now - sample.at <= window)
    }

    fn rate(&self, count: impl Fn(&Totals) -> u64) -> f64 {
        let (Some(then), Some(now)) = (self.back(RATE_WINDOW), self.samples.back()) else {
            return 0.0;
        };
        let seconds = (now.at - then.at).as_secs_f64();
        let counted = count(&now.totals).saturating_sub(count(&then.totals));
        if seconds > 0.0 { real(counted) / seconds } else { 0.0 }
    }

    /// Events per second that were committed.
    pub(super) fn written(&self) -> f64 {
        self.rate(|totals| totals.committed)
    }

    /// Records per second that were read, including repeated ones.
    pub(super) fn delivered(&self) -> f64 {
        self.rate(|totals| totals.records)
    }

    /// From sending COMMIT to reading the record, in the last two seconds.
    pub(super) fn consumed(&self) -> Quantiles {
        let (Some(then), Some(now)) = (self.samples.front(), self.samples.back()) else {
            return Quantiles::default();
        };
        let recent = now.consumed.since(&then.consumed);
        Quantiles { p50: recent.quantile(0.5), p99: recent.quantile(0.99) }
    }

    /// Number of events that a kill at this moment may cause to be published again.
    pub(super) fn repeatable(&self) -> u64 {
        let (Some(then), Some(now)) = (self.back(REPEATED), self.samples.back()) else { return 0 };
        now.totals.records - then.totals.records + now.totals.outstanding
    }

    /// Adds a point to the charts if it is due.
    pub(super) fn plot(&mut self, view: &ScreenView) {
        let now = Instant::now();
        if now < self.next_point {
            return;
        }
        self.next_point = now + POINT_EVERY;
        let millis = |duration: Option<Duration>| duration.map(|it| it.as_secs_f64() * 1000.0);
        let (p50, p99) = (millis(view.acknowledged.p50), millis(view.acknowledged.p99));
        self.points.push_back(Point { written: view.written, delivered: view.delivered, p50, p99 });
        if self.points.len() > POINTS_MAX {
            self.points.pop_front();
        }
    }
}

/// A count as a real number.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(super) fn real(count: u64) -> f64 {
    count as f64
}
