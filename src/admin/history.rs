//! What pipelines did in the last 24 hours: rate, lag, latency, state, parked events and the WAL of the slot, as points
//! in memory; and how fast each position moves now.
//!
//! The endpoint reads the statuses once a second while it is served, and nothing is asked of a pipeline. The memory is
//! bounded by [`HISTORY_BYTES_MAX`] for up to 1,000 pipelines. A restart begins an empty history.

use crate::metrics::LatencyCounts;
use crate::offset::Offset;
use crate::status::{PipelineState, Snapshot};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of the histories of up to 1,000 pipelines together. With more pipelines than fit, points are of longer times.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;

/// How often the statuses are read.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Points of the last hour, and the time of each.
const HOUR: (usize, Duration) = (720, Duration::from_secs(5));

/// Points of the last day, and the time of each.
const DAY: (usize, Duration) = (1440, Duration::from_mins(1));

/// Samples of positions, and the time between two: ten minutes.
const SAMPLES: (usize, Duration) = (121, Duration::from_secs(5));

/// The time over which a position's speed is measured.
const SPEED_OVER: Duration = Duration::from_mins(1);

/// The shortest time over which a growth is measured: the slot is queried every 5 s.
const GROWTH_OVER_MIN: Duration = Duration::from_secs(20);

/// Bytes of one pipeline's points and samples, if these have the shortest times.
const POINTS_BYTES: usize =
    (HOUR.0 + DAY.0) * size_of::<HistoryPoint>() + SAMPLES.0 * size_of::<PositionSample>();

/// What a pipeline was at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    state: PipelineState,
    positions: [Option<u64>; POSITIONS],
    published: u64,
    latency: LatencyCounts,
    lag: f64,
    retained: Option<u64>,
    parked: u64,
}

/// The number of [`PositionKind`]s.
const POSITIONS: usize = 4;

/// A position on the way of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PositionKind {
    /// The end of the server's WAL.
    Committed,
    /// The highest position that was read.
    Read,
    /// The watermark.
    Acknowledged,
    /// The slot's `confirmed_flush_lsn`.
    Confirmed,
}

impl Reading {
    /// What the status says.
    pub(super) fn of(snapshot: &Snapshot, latency: Option<LatencyCounts>) -> Self {
        let number = |text: &str| text.parse::<Offset>().ok().map(Offset::get).filter(|at| *at > 0);
        let parked = &snapshot.parked;
        Self {
            state: snapshot.state,
            positions: [
                snapshot.read.wal_end.as_deref().and_then(number),
                number(&snapshot.read.received),
                number(&snapshot.watermark),
                snapshot.confirmed_flush_lsn.as_deref().and_then(number),
            ],
            published: snapshot.published_total,
            latency: latency.unwrap_or_default(),
            lag: snapshot.lag_seconds,
            retained: snapshot.slot_retained_bytes,
            parked: parked.waiting + parked.behind + parked.due + parked.dead,
        }
    }

    fn at(&self, kind: PositionKind) -> Option<u64> {
        self.positions.get(kind as usize).copied().flatten()
    }
}

/// One point of a chart.
#[derive(Clone, Copy, Debug)]
struct HistoryPoint {
    /// Its begin, in seconds since the history began.
    at: u32,
    /// Published events a second.
    rate: f32,
    /// The longest lag. Unit: seconds.
    lag: f32,
    /// The mean latency in seconds; not a number if nothing was published.
    latency: f32,
    /// The upper bound of 99 of 100 latencies.
    latency_most: f32,
    /// WAL that the slot retains in bytes; not a number without a slot.
    retained: f32,
    /// Parked events.
    parked: u32,
    /// The worst state.
    state: PipelineState,
}

/// Points at equal distances, the oldest first.
#[derive(Debug)]
struct Series {
    points: VecDeque<HistoryPoint>,
    capacity: usize,
    step: Duration,
    open: Option<OpenPoint>,
}

/// The point that is being measured.
#[derive(Clone, Copy, Debug)]
struct OpenPoint {
    since: Instant,
    first: Reading,
    last: Reading,
    lag: f64,
    state: PipelineState,
}

/// A number of points and the time of each, for points of `scale` times that time.
fn scaled((points, step): (usize, Duration), scale: usize) -> (usize, Duration) {
    let step = step.saturating_mul(u32::try_from(scale).unwrap_or(u32::MAX));
    ((points / scale).max(2), step)
}

impl Series {
    fn new(most: (usize, Duration), scale: usize) -> Self {
        let (capacity, step) = scaled(most, scale);
        Self { points: VecDeque::with_capacity(capacity), capacity, step, open: None }
    }

    fn note(&mut self, began: Instant, now: Instant, reading: &Reading) {
        let Some(open) = &mut self.open else {
            self.open = Some(OpenPoint::begin(now, reading, reading));
            return;
        };
        open.last = *reading;
        open.lag = open.lag.max(reading.lag);
        open.state = worse(open.state, reading.state);
        if now.saturating_duration_since(open.since) < self.step {
            return;
        }
        let point = open.close(began, now);
        *open = OpenPoint::begin(now, reading, reading);
        if self.points.len() >= self.capacity {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

impl OpenPoint {
    fn begin(since: Instant, first: &Reading, last: &Reading) -> Self {
        Self { since, first: *first, last: *last, lag: last.lag, state: last.state }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "a chart")]
    fn close(&self, began: Instant, now: Instant) -> HistoryPoint {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        let published = self.last.published.saturating_sub(self.first.published);
        let latency = self.last.latency.since(&self.first.latency);
        let at = self.since.saturating_duration_since(began).as_secs();
        HistoryPoint {
            at: u32::try_from(at).unwrap_or(u32::MAX),
            rate: (published as f64 / seconds.max(f64::MIN_POSITIVE)) as f32,
            lag: self.lag as f32,
            latency: latency.map_or(f32::NAN, |(mean, _)| mean as f32),
            latency_most: latency.map_or(f32::NAN, |(_, most)| most as f32),
            retained: self.last.retained.map_or(f32::NAN, |bytes| bytes as f32),
            parked: u32::try_from(self.last.parked).unwrap_or(u32::MAX),
            state: self.state,
        }
    }
}

/// The state that an operator has to see of two in one point.
fn worse(one: PipelineState, other: PipelineState) -> PipelineState {
    let badness = |state| match state {
        PipelineState::Streaming | PipelineState::Polling => 0,
        PipelineState::CatchingUp => 1,
        PipelineState::StandingBy => 2,
        PipelineState::Starting => 3,
        PipelineState::Draining => 4,
        PipelineState::Paused => 5,
        PipelineState::Stopped => 6,
        PipelineState::ParkingFull => 7,
        PipelineState::BrokerDown => 8,
        PipelineState::SourceDown => 9,
        PipelineState::Halted => 10,
    };
    if badness(other) > badness(one) { other } else { one }
}

/// Positions and counters at a moment.
#[derive(Clone, Copy, Debug)]
struct PositionSample {
    at: Instant,
    positions: [Option<u64>; POSITIONS],
    published: u64,
    retained: Option<u64>,
}

/// How fast the positions of a pipeline move.
#[derive(Debug)]
struct Motion {
    /// The samples of the last minutes, the oldest first.
    samples: VecDeque<PositionSample>,
    capacity: usize,
    step: Duration,
    /// The newest positions, and since when each has not changed.
    since: [(Option<u64>, Instant); POSITIONS],
}

impl Motion {
    fn new(now: Instant, scale: usize) -> Self {
        let (capacity, step) = scaled(SAMPLES, scale);
        let samples = VecDeque::with_capacity(capacity);
        Self { samples, capacity, step, since: [(None, now); POSITIONS] }
    }

    fn note(&mut self, now: Instant, reading: &Reading) {
        for (known, position) in self.since.iter_mut().zip(reading.positions) {
            if known.0 != position {
                *known = (position, now);
            }
        }
        let due = |last: &PositionSample| now.saturating_duration_since(last.at) >= self.step;
        if !self.samples.back().is_none_or(due) {
            return;
        }
        if self.samples.len() >= self.capacity {
            self.samples.pop_front();
        }
        let Reading { positions, published, retained, .. } = *reading;
        self.samples.push_back(PositionSample { at: now, positions, published, retained });
    }

    /// Of the samples with a value, the newest one that is at least a minute old, else the oldest one: its value, and
    /// its age in seconds.
    fn before(
        &self,
        now: Instant,
        value: impl Fn(&PositionSample) -> Option<u64>,
    ) -> Option<(u64, f64)> {
        let age = |sample: &PositionSample| now.saturating_duration_since(sample.at);
        let mut found = None;
        for sample in self.samples.iter().rev() {
            let Some(value) = value(sample) else { continue };
            found = Some((value, age(sample)));
            if age(sample) >= SPEED_OVER {
                break;
            }
        }
        let (value, age) = found.filter(|(_, age)| *age >= SAMPLE_INTERVAL)?;
        Some((value, age.as_secs_f64()))
    }

    fn outlook(&self, now: Instant, reading: &Reading) -> Outlook {
        let movement = |kind: PositionKind| {
            let since = self.since.get(kind as usize).map_or(now, |(_, since)| *since);
            let still = now.saturating_duration_since(since).as_secs_f64();
            let before = self.before(now, |sample| *sample.positions.get(kind as usize)?);
            let speed = reading.at(kind).zip(before);
            Movement {
                still_seconds: reading.at(kind).map(|_| still),
                bytes_per_second: speed.map(|(at, (then, age))| difference(at, then) / age),
            }
        };
        let before = self.before(now, |sample| Some(sample.published));
        Outlook {
            committed: movement(PositionKind::Committed),
            read: movement(PositionKind::Read),
            acknowledged: movement(PositionKind::Acknowledged),
            confirmed: movement(PositionKind::Confirmed),
            events_per_second: before.map(|(then, age)| difference(reading.published, then) / age),
            slot_growth: self.growth(now, reading),
        }
    }

    /// The growth of the slot over all samples. Unit: bytes a second.
    fn growth(&self, now: Instant, reading: &Reading) -> Option<f64> {
        let first = self.samples.iter().find(|sample| sample.retained.is_some())?;
        let over = now.saturating_duration_since(first.at);
        if over < GROWTH_OVER_MIN {
            return None;
        }
        Some(difference(reading.retained?, first.retained?) / over.as_secs_f64())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a speed")]
fn difference(now: u64, before: u64) -> f64 {
    if now >= before { (now - before) as f64 } else { -((before - now) as f64) }
}

/// How a position moves.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Movement {
    /// Seconds since the position last changed, or since the process has seen it; `None` without a position.
    pub still_seconds: Option<f64>,
    /// The speed in the last minute. Unit: bytes of WAL a second.
    pub bytes_per_second: Option<f64>,
}

/// How fast a pipeline moves now. Everything is unknown in the first seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outlook {
    /// The end of the server's WAL.
    pub committed: Movement,
    /// The highest position that was read.
    pub read: Movement,
    /// The watermark.
    pub acknowledged: Movement,
    /// The slot's `confirmed_flush_lsn`.
    pub confirmed: Movement,
    /// Events published a second, in the last minute.
    pub events_per_second: Option<f64>,
    /// How fast the WAL of the slot has grown in the last ten minutes; negative if it shrinks. Unit: bytes a second.
    pub slot_growth: Option<f64>,
}

/// The history of one pipeline.
#[derive(Debug)]
struct PipelineHistory {
    hour: Series,
    day: Series,
    motion: Motion,
}

/// The histories of all pipelines, by their order in the endpoint.
#[derive(Clone, Debug)]
pub(super) struct History(Arc<Mutex<Histories>>);

#[derive(Debug)]
struct Histories {
    began: Instant,
    began_unix_seconds: u64,
    pipelines: Vec<PipelineHistory>,
}

/// Which points a chart has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Window {
    /// The last hour.
    Hour,
    /// The last 24 hours.
    Day,
}

impl Window {
    /// Its length.
    pub(super) fn length(self) -> Duration {
        match self {
            Self::Hour => Duration::from_hours(1),
            Self::Day => Duration::from_hours(24),
        }
    }

    /// The window of this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "hour" => Some(Self::Hour),
            "day" => Some(Self::Day),
            _ => None,
        }
    }
}

/// The points of a chart, as columns of equal length. The newest point is the last.
#[derive(Serialize, Debug, Default)]
pub(super) struct HistoryColumns {
    /// The time of one point. Unit: seconds.
    step_seconds: u64,
    /// The begin of each point. Unit: seconds since 1970.
    at: Vec<u64>,
    /// Published events a second.
    rate: Vec<f32>,
    /// The longest lag. Unit: seconds.
    lag: Vec<f32>,
    /// The mean time from commit to acknowledgement in seconds; null if nothing was published.
    latency: Vec<f32>,
    /// The upper bound of 99 of 100 such times; null if nothing was published, or if it is above 60 s.
    latency_most: Vec<f32>,
    /// WAL that the slot retains in bytes; null without a slot.
    retained: Vec<f32>,
    /// Parked events.
    parked: Vec<u32>,
    /// The worst state.
    state: Vec<&'static str>,
}

impl History {
    /// Empty histories of so many pipelines.
    pub(super) fn new(pipelines: usize, now: Instant) -> Self {
        let rest = HISTORY_BYTES_MAX.saturating_sub(pipelines * size_of::<PipelineHistory>());
        let scale = (pipelines * POINTS_BYTES).div_ceil(rest.max(1)).max(1);
        let empty = || PipelineHistory {
            hour: Series::new(HOUR, scale),
            day: Series::new(DAY, scale),
            motion: Motion::new(now, scale),
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Arc::new(Mutex::new(Histories {
            began: now,
            began_unix_seconds: since.as_secs(),
            pipelines: std::iter::repeat_with(empty).take(pipelines).collect(),
        })))
    }

    /// Adds what each pipeline is now.
    pub(super) fn note(&self, now: Instant, readings: impl Iterator<Item = Reading>) {
        let mut histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = histories.began;
        for (pipeline, reading) in histories.pipelines.iter_mut().zip(readings) {
            pipeline.hour.note(began, now, &reading);
            pipeline.day.note(began, now, &reading);
            pipeline.motion.note(now, &reading);
        }
    }

    /// How fast a pipeline moves now.
    pub(super) fn outlook(&self, pipeline: usize, now: Instant, reading: &Reading) -> Outlook {
        let histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pipeline = histories.pipelines.get(pipeline);
        pipeline.map_or_else(Outlook::default, |pipeline| pipeline.motion.outlook(now, reading))
    }

    /// The points of a pipeline.
    pub(super) fn columns(&self, pipeline: usize, window: Window) -> HistoryColumns {
        let histories = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(pipeline) = histories.pipelines.get(pipeline) else {
            return HistoryColumns::default();
        };
        let series = match window {
            Window::Hour => &pipeline.hour,
            Window::Day => &pipeline.day,
        };
        let mut columns =
            HistoryColumns { step_seconds: series.step.as_secs(), ..HistoryColumns::default() };
        for point in &series.points {
            columns.at.push(histories.began_unix_seconds + u64::from(point.at));
            columns.rate.push(point.rate);
            columns.lag.push(point.lag);
            columns.latency.push(point.latency);
            columns.latency_most.push(point.latency_most);
            columns.retained.push(point.retained);
            columns.parked.push(point.parked);
            columns.state.push(point.state.name());
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn streaming() -> Snapshot {
        let mut snapshot = Snapshot { state: PipelineState::Streaming, ..Snapshot::default() };
        snapshot.watermark = "0/100".to_owned();
        snapshot
    }

    /// A history of one pipeline to which a reading was added each second, the last one now.
    fn watched(seconds: u32, reading: impl Fn(u32, &mut Snapshot)) -> (History, Instant, Reading) {
        let began = Instant::now();
        let history = History::new(1, began);
        let mut last = Reading::of(&streaming(), None);
        let mut now = began;
        for second in 0..=seconds {
            now = began + Duration::from_secs(second.into());
            let mut snapshot = streaming();
            reading(second, &mut snapshot);
            last = Reading::of(&snapshot, None);
            history.note(now, std::iter::once(last));
        }
        (history, now, last)
    }

    #[test]
    fn speeds_are_those_of_the_last_minute() {
        let (history, now, last) = watched(300, |second, snapshot| {
            // It stood still for four minutes.
            let moved = u64::from(second.saturating_sub(240));
            snapshot.published_total = moved * 7;
            snapshot.watermark = Offset::new(0x1000 + moved * 100).to_string();
            snapshot.read.received = "0/2000".to_owned();
        });
        let outlook = history.outlook(0, now, &last);
        assert_eq!(outlook.events_per_second, Some(7.0));
        assert_eq!(outlook.acknowledged.bytes_per_second, Some(100.0));
        assert_eq!(outlook.acknowledged.still_seconds, Some(0.0));
        assert_eq!(outlook.read.bytes_per_second, Some(0.0));
        assert_eq!(outlook.read.still_seconds, Some(300.0));
        assert_eq!(outlook.confirmed, Movement::default());
    }

    #[test]
    fn speed_of_a_position_that_was_not_known_at_the_start_is_measured_since_it_is() {
        let (history, now, last) = watched(20, |second, snapshot| {
            if second >= 10 {
                let end = Offset::new(0x5000 + u64::from(second) * 50);
                snapshot.read.wal_end = Some(end.to_string());
            }
        });
        let committed = history.outlook(0, now, &last).committed;
        assert_eq!(committed.bytes_per_second, Some(50.0));
    }

    #[test]
    fn growth_of_a_slot_is_measured_over_ten_minutes_and_unknown_in_the_first_seconds() {
        let grows = |second: u32, snapshot: &mut Snapshot| {
            snapshot.slot_retained_bytes = Some(u64::from(second) * MIB);
        };
        let (history, now, last) = watched(10, grows);
        assert_eq!(history.outlook(0, now, &last).slot_growth, None);
        let (history, now, last) = watched(2_000, grows);
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let mib = MIB as f64;
        assert_eq!(history.outlook(0, now, &last).slot_growth, Some(mib));
        let (history, now, last) =
            watched(2_000, |_, snapshot| snapshot.slot_retained_bytes = None);
        assert_eq!(history.outlook(0, now, &last).slot_growth, None);
    }

    #[test]
    fn points_have_the_worst_state_the_longest_lag_and_the_rate_of_their_time() {
        let (history, ..) = watched(20, |second, snapshot| {
            snapshot.published_total = u64::from(second) * 10;
            if second == 7 {
                snapshot.state = PipelineState::BrokerDown;
                snapshot.lag_seconds = 3.0;
            }
        });
        let columns = history.columns(0, Window::Hour);
        assert_eq!(columns.step_seconds, 5);
        assert_eq!(columns.state, ["streaming", "broker_down", "streaming", "streaming"]);
        assert_eq!(columns.lag, [0.0, 3.0, 0.0, 0.0]);
        assert_eq!(columns.rate, [10.0; 4]);
        assert!(columns.latency.iter().all(|latency| latency.is_nan()));
        assert!(history.columns(0, Window::Day).at.is_empty());
        assert!(history.columns(1, Window::Hour).at.is_empty());
    }

    #[test]
    fn a_day_is_kept_and_nothing_older() {
        let (history, ..) = watched(25 * 3600, |_, _| {});
        let day = history.columns(0, Window::Day);
        assert_eq!((day.at.len(), day.step_seconds), (1440, 60));
        assert_eq!(day.at.last().unwrap() - day.at[0], 24 * 3600 - 60);
        assert_eq!(history.columns(0, Window::Hour).at.len(), 720);
    }

    #[test]
    fn memory_has_a_bound_for_up_to_a_thousand_pipelines() {
        for pipelines in [1, 100, 200, 300, 1_000] {
            let history = History::new(pipelines, Instant::now());
            let histories = history.0.lock().unwrap();
            let bytes: usize = histories
                .pipelines
                .iter()
                .map(|pipeline| {
                    let points = pipeline.hour.points.capacity() + pipeline.day.points.capacity();
                    let samples = pipeline.motion.samples.capacity();
                    let lists =
                        points * size_of::<HistoryPoint>() + samples * size_of::<PositionSample>();
                    lists + size_of::<PipelineHistory>()
                })
                .sum();
            assert!(bytes <= HISTORY_BYTES_MAX, "{pipelines} pipelines: {bytes} bytes");
            let day = &histories.pipelines[0].day;
            let covered = day.step.as_secs() * day.capacity as u64;
            assert!(covered > 22 * 3600, "{pipelines} pipelines: {covered} s");
        }
        assert_eq!(size_of::<HistoryPoint>(), 32);
    }

    #[test]
    fn latencies_of_a_point_are_those_of_its_time() {
        let counted = crate::metrics::Latency::default();
        counted.observe(Duration::from_secs(30));
        let before = counted.counts();
        assert_eq!(before.since(&before), None);
        counted.observe_many(Duration::from_millis(4), 99);
        counted.observe(Duration::from_millis(900));
        let (mean, most) = counted.counts().since(&before).unwrap();
        assert!((mean - 0.012_96).abs() < 1e-6, "{mean}");
        assert!((most - 0.005).abs() < f64::EPSILON, "{most}");
    }
}
