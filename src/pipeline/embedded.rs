//! A pipeline of a program that embeds Postrider, over a source and a store of the program's own.
//!
//! The loop is one of its own, over the relay, mapper, feed, sink, status, metrics and log of every pipeline. It has
//! nothing of what only PostgreSQL has: no slot, no owner, no parked events. Without a table of parked events, an event
//! that can't be published halts the pipeline. The pipelines over PostgreSQL use the loops of `stream` and `poll`: no
//! source of the product implements `Source` and `Store`.

use super::feed::{CHANGES_MAX, Fed};
use super::mode::Mode;
use super::running::{Pipeline, RECONNECT_MAX, RECONNECT_MIN, Waited};
use super::service::PanicGuard;
use super::spec::CommonSpec;
use super::stop::{PipelineExit, Stop};
use super::timer::Timer;
use super::{halts, observer};
use crate::ack::Progress;
use crate::backoff::Backoff;
use crate::error::{Failure, Halt, HaltReason};
use crate::event::{Histories, HistoryId};
use crate::metrics::{Metrics, PipelineMetrics, Side};
use crate::offset::{Offset, Watermark};
use crate::outbox::{OutboxSpec, Role};
use crate::postgres::error_policy::Class;
use crate::published::RowStatusRule;
use crate::relay::{Effect, Input, Limits, OnPoison, ParkingRules};
use crate::sink::SinkConfig;
use crate::source::{Batch, Source, Stream};
use crate::status::StatusHandle;
use crate::store::{Cursor, Store};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// As for the other pipelines: under load the loop yields at this interval, so that the source's and the store's tasks
/// make progress on a runtime with one thread.
const YIELD_INTERVAL: Duration = Duration::from_millis(1);

/// How long a stream may take to close.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// In place of the lease of a slot, after which events in flight are given up because another process may publish:
/// longer than any process runs. No other process publishes for an embedded pipeline.
const NO_LEASE: Duration = Duration::from_hours(24 * 365 * 30);

/// A pipeline over a [`Source`] and a [`Store`] of the caller's own.
///
/// It publishes in the order of the source, with the guarantees of every pipeline: an offset is confirmed to the source
/// after every event below it is acknowledged by the sink and the store has a cursor that says so. So nothing is lost,
/// and a restart repeats at most what was published since the stored cursor.
///
/// Not offered: parking (an event that can't be published, or that the sink refuses, halts the pipeline), events that
/// are published later (`available_at`), polling and repair. One process at a time may run a pipeline.
#[derive(Debug)]
pub struct Embedded {
    spec: CommonSpec,
    status_handle: StatusHandle,
    metrics: PipelineMetrics,
}

impl Embedded {
    /// A pipeline called `name` in log, status and metrics. `outbox`: which table of the source has events, and how
    /// records are made of its rows. `sink`: where records go.
    pub fn new(name: &str, outbox: OutboxSpec, sink: Arc<dyn SinkConfig>) -> Self {
        let status_handle = StatusHandle::new(name);
        let metrics = Metrics::default().pipeline(&status_handle);
        Self { spec: spec(name, outbox, sink), status_handle, metrics }
    }

    /// Limits of what the sink holds without a report: `events` in number, and `bytes` of keys, values and headers. A
    /// limit is at least 1, and one event of any size may be in flight. Default: 50,000 events, 32 MiB.
    #[must_use]
    pub fn in_flight(mut self, events: u64, bytes: u64) -> Self {
        self.spec.limits = Limits { events_max: events.max(1), bytes_max: bytes.max(1) };
        self
    }

    /// The pause between two writes of the cursor while events are published. Default: 1 s. It bounds how much a
    /// restart after a crash repeats.
    #[must_use]
    pub fn cursor_interval(mut self, pause: Duration) -> Self {
        self.spec.cursor_interval = pause;
        self
    }

    /// How long a stop waits for the reports of what is in flight. Default: 10 s.
    #[must_use]
    pub fn shutdown_grace(mut self, longest: Duration) -> Self {
        self.spec.shutdown_grace = longest;
        self
    }

    /// Counts into these metrics, which may have other pipelines too.
    #[must_use]
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = metrics.pipeline(&self.status_handle);
        self
    }

    /// The pipeline's status, for as long as the caller wants it.
    pub fn status(&self) -> StatusHandle {
        self.status_handle.clone()
    }

    /// Runs the pipeline until it is stopped or halts. Temporary failures of source, store and sink are retried without
    /// a limit.
    ///
    /// A panic of source, store or sink, or a bug, leaves the status `halted` and reaches the caller: `run` never
    /// returns [`PipelineExit::Bug`].
    ///
    /// The future is not `Send`: give each pipeline a thread with a runtime of tokio that has its timers enabled. If
    /// the future is dropped, the pipeline ends as in a crash: what is in flight is published again at the next start.
    pub async fn run<S: Source, T: Store>(self, source: S, store: T, stop: &Stop) -> PipelineExit {
        let Self { spec, status_handle, metrics } = self;
        let (name, from) = (spec.name.clone(), source.name());
        let guard =
            PanicGuard::new(status_handle.clone(), "the pipeline's thread panicked: see the log");
        status_handle.update(|snapshot| snapshot.from.source.clone_from(&from));
        let made = match needs_parking(&spec.outbox) {
            Some(halt) => Err(halt),
            None => Pipeline::new(spec, RowStatusRule::Off, status_handle.clone(), metrics),
        };
        let exit = match made {
            Ok(pipeline) => {
                let lease = Instant::now() + NO_LEASE;
                let mut running = EmbeddedRun { pipeline, source, history: None, lease };
                let exit = Box::pin(running.run(&store, stop)).await;
                running.pipeline.finish();
                exit
            }
            Err(halt) => PipelineExit::Halted(Box::new(halt)),
        };
        drop(guard);
        observer::ended(&name, &status_handle, &exit);
        exit
    }
}

/// The specification of an embedded pipeline.
fn spec(name: &str, mut outbox: OutboxSpec, sink: Arc<dyn SinkConfig>) -> CommonSpec {
    let interval = Duration::from_secs(1);
    if outbox.source.is_empty() {
        name.clone_into(&mut outbox.source);
    }
    CommonSpec {
        name: name.to_owned(),
        mode: Mode::Embedded,
        outbox,
        sink,
        size_max: None,
        limits: Limits { events_max: 50_000, bytes_max: 32 << 20 },
        // Nothing is parked, so only the first field has an effect.
        parking: ParkingRules {
            on_poison: OnPoison::Stop,
            attempts_max: 1,
            step: interval,
            steps_max: 1,
            rows_max: 1,
            strict: false,
            dead_letters: false,
        },
        dead_topic: None,
        park_after: None,
        cursor_interval: interval,
        shutdown_grace: Duration::from_secs(10),
    }
}

/// Why an outbox can't be published without a table of parked events; `None` if it can.
fn needs_parking(outbox: &OutboxSpec) -> Option<Halt> {
    let column = outbox.column(Role::AvailableAt)?;
    Some(Halt {
        reason: HaltReason::NotApplicable,
        message: format!(
            "column \"{column}\" says when an event is published, and an embedded pipeline publishes at once"
        ),
        meaning: "nothing was touched".to_owned(),
        hint: "set the column of role available_at to \"\", and let the source send an event when it is due"
            .to_owned(),
    })
}

/// How a stream ended.
enum EmbeddedEnd {
    /// The pipeline has ended.
    Over(PipelineExit),
    /// The sink was reset: connect again.
    Restart,
    /// The source or the store has failed.
    Lost(Failure),
}

/// What happened first.
enum EmbeddedEvent {
    Leave,
    Drain,
    Posts,
    Again,
    Due,
    Written(Result<(), Failure>),
    Batch(Result<Box<dyn Batch>, Failure>),
}

/// A running pipeline and its source.
struct EmbeddedRun<S> {
    pipeline: Pipeline,
    source: S,
    /// The history of the streams of this process.
    history: Option<HistoryId>,
    /// When events in flight would be given up while there is no stream.
    lease: Instant,
}

impl<S: Source> EmbeddedRun<S> {
    /// Connects, streams, and connects again, until the pipeline ends.
    async fn run<T: Store>(&mut self, store: &T, stop: &Stop) -> PipelineExit {
        let mut backoff = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
        loop {
            if let Some(exit) = self.pipeline.await_cluster(self.lease, stop).await {
                return exit;
            }
            let attempt = Box::pin(connect(&mut self.source, store));
            let failure = match self.pipeline.waiting(attempt, self.lease, stop).await {
                Waited::Over(exit) => return exit,
                Waited::Done(Err(failure)) => Some(failure),
                Waited::Done(Ok((stored, stream))) => {
                    if let Some(halt) = self.refuses(stored, stream.history()) {
                        return self.halted(Box::new(halt));
                    }
                    let since = Instant::now();
                    let end = Box::pin(self.stream(stream, store, stored, stop)).await;
                    if since.elapsed() > RECONNECT_MAX {
                        backoff.reset();
                    }
                    match end {
                        EmbeddedEnd::Over(exit) => return exit,
                        EmbeddedEnd::Lost(failure) => Some(failure),
                        EmbeddedEnd::Restart => None,
                    }
                }
            };
            match failure {
                Some(Failure::Halt(halt)) => return self.halted(halt),
                Some(Failure::Temporary { reason, hint }) => {
                    self.pipeline.observer.reconnected(Side::Source, Class::Connection.name());
                    self.pipeline.observer.source().lost(&reason, hint.as_deref());
                    self.pipeline.report(None);
                }
                None => {}
            }
            let pause = tokio::time::sleep(backoff.next(fastrand::f64()));
            if let Waited::Over(exit) = self.pipeline.waiting(pause, self.lease, stop).await {
                return exit;
            }
        }
    }

    /// Ends a pipeline without a stream. A halt that was waiting for reports comes first.
    fn halted(&mut self, halt: Box<Halt>) -> PipelineExit {
        self.pipeline.source_lost().unwrap_or(PipelineExit::Halted(halt))
    }

    /// Why nothing may be published from this stream: its offsets are not comparable with those of the stored cursor,
    /// or the store has lost what was confirmed by it.
    fn refuses(&self, stored: Option<Cursor>, history: HistoryId) -> Option<Halt> {
        let other =
            stored.map(|cursor| cursor.history).or(self.history).filter(|of| *of != history);
        let watermark = stored.unwrap_or_default().watermark;
        let confirmed = self.pipeline.confirmed;
        let message = match other {
            Some(other) => {
                format!(
                    "the source is of history {history}, and the stored cursor of history {other}"
                )
            }
            None if watermark < confirmed => format!(
                "the stored cursor is at {watermark}, and {confirmed} was confirmed by a later one"
            ),
            None => return None,
        };
        Some(Halt {
            reason: HaltReason::OtherHistory,
            message,
            meaning: "an offset of the one may be another event in the other; nothing of this stream was published"
                .to_owned(),
            hint: "connect source and store that belong together. If the source was recreated on purpose, remove the \
                   stored cursor: everything that the source has is published then"
                .to_owned(),
        })
    }

    /// Streams until something ends it.
    async fn stream<T: Store>(
        &mut self,
        stream: S::Stream,
        store: &T,
        stored: Option<Cursor>,
        stop: &Stop,
    ) -> EmbeddedEnd {
        let history = stream.history();
        if let Err(halt) = self.begin(history, stored.unwrap_or_default()) {
            return EmbeddedEnd::Over(self.halted(halt));
        }
        let pipeline = &mut self.pipeline;
        let mut session = EmbeddedSession::new(stream, store, history);
        let end = loop {
            if let Some(end) = session.turn(pipeline, stop).await {
                break end;
            }
        };
        if let EmbeddedEnd::Over(_) = &end {
            pipeline.give_up_in_flight();
            session.close(pipeline).await;
            return end;
        }
        pipeline.source_lost().map_or(end, EmbeddedEnd::Over)
    }

    /// Prepares relay and mapper for a stream.
    fn begin(&mut self, history: HistoryId, stored: Cursor) -> Result<(), Box<Halt>> {
        let pipeline = &mut self.pipeline;
        let histories = Histories::new(vec![(Offset::ZERO, history)]).unwrap_or_default();
        pipeline.reset_mapper(&histories, false)?;
        pipeline.mapper.clear_tables(None);
        pipeline.sink.awaits(None);
        let cursor = Progress { watermark: stored.watermark, partial: stored.partial };
        pipeline.confirmed = pipeline.confirmed.max(cursor.watermark);
        // `refuses` has compared the histories: if an earlier stream had one, it is this one.
        let same_history = self.history.replace(history).is_some();
        let (parked, requests) = (&[], &[]);
        let started = Input::Started { cursor, same_history, same_owner: true, parked, requests };
        pipeline.apply(pipeline.now(), started);
        pipeline.admit();
        pipeline.observer.hold(None);
        pipeline.observer.lag().answered(std::time::Instant::now());
        pipeline.observer.source().embedded_streaming(&self.source.name(), cursor.watermark);
        pipeline.report(None);
        Ok(())
    }
}

/// Reads the cursor, and connects to the source there.
async fn connect<S: Source, T: Store>(
    source: &mut S,
    store: &T,
) -> Result<(Option<Cursor>, S::Stream), Failure> {
    let stored = store.read_cursor().await?;
    let from = stored.map_or(Watermark::default(), |cursor| cursor.watermark);
    Ok((stored, source.connect(from).await?))
}

/// A write of the cursor.
type CursorJob<'s> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 's>>;

/// A stream and what is running on it.
struct EmbeddedSession<'s, R, T> {
    stream: R,
    store: &'s T,
    history: HistoryId,
    /// The batch that is being fed, and the place of the next change in it.
    feeding: Option<(Box<dyn Batch>, usize)>,
    /// A write of the cursor.
    writing: Option<CursorJob<'s>>,
    /// What was confirmed on this stream.
    confirmed: Watermark,
    /// When a drain is given up.
    leave_at: Option<Instant>,
    /// Wakes when something is due.
    timer: Timer,
    /// When the loop last yielded, by the relay's clock.
    yielded_at: Duration,
}

impl<'s, R: Stream, T: Store> EmbeddedSession<'s, R, T> {
    fn new(stream: R, store: &'s T, history: HistoryId) -> Self {
        Self {
            stream,
            store,
            history,
            feeding: None,
            writing: None,
            confirmed: Watermark::default(),
            leave_at: None,
            timer: Timer::default(),
            yielded_at: Duration::ZERO,
        }
    }

    /// One turn of the loop: takes posts, performs effects, feeds what is read, then waits for the next input.
    async fn turn(&mut self, pipeline: &mut Pipeline, stop: &Stop) -> Option<EmbeddedEnd> {
        let now = pipeline.now();
        pipeline.take_posts(now);
        if pipeline.sink.is_located() {
            pipeline.report_located();
            return Some(EmbeddedEnd::Restart);
        }
        if let Some(end) = self.perform(pipeline) {
            return Some(end);
        }
        let fed = self.feed_ready(pipeline, now);
        if fed == Fed::Whole {
            pipeline.take_posts(now);
        }
        if let Some(end) = self.perform(pipeline) {
            return Some(end);
        }
        // The stream reports a lost connection itself.
        pipeline.observer.lag().answered(std::time::Instant::now());
        pipeline.report_sometimes(None);
        if now.saturating_sub(self.yielded_at) >= YIELD_INTERVAL {
            self.yielded_at = now;
            tokio::task::yield_now().await;
        }
        let event = self.wait(pipeline, stop, fed == Fed::Turn).await;
        self.react(pipeline, event)
    }

    /// Feeds the current batch, and what the stream has ready, until something stops it.
    fn feed_ready(&mut self, pipeline: &mut Pipeline, now: Duration) -> Fed {
        let mut changes = CHANGES_MAX;
        pipeline.observer.hold(None);
        loop {
            if self.feeding.is_none() && !pipeline.engine.relay().stopping() {
                self.feeding = self.stream.ready().map(|batch| (batch, 0));
            }
            let Some((batch, place)) = &mut self.feeding else { return Fed::Whole };
            match pipeline.feed(now, &mut **batch, place, &mut changes) {
                Fed::Whole => self.feeding = None,
                // Nothing here can answer. What was fed before is published first.
                Fed::Blocked => {
                    pipeline.apply(now, Input::Halt(Box::new(halts::blocked())));
                    return Fed::Waiting;
                }
                stopped @ (Fed::Turn | Fed::Waiting | Fed::Ended) => return stopped,
            }
        }
    }

    async fn wait(&mut self, pipeline: &Pipeline, stop: &Stop, more: bool) -> EmbeddedEvent {
        let wants_batch = self.feeding.is_none() && !pipeline.engine.relay().stopping();
        let due = pipeline.due();
        let Self { stream, writing, leave_at, timer, .. } = self;
        let grace = leave_at.unwrap_or_else(Instant::now);
        tokio::select! {
            biased;
            () = stop.leave() => EmbeddedEvent::Leave,
            () = stop.drain(), if leave_at.is_none() => EmbeddedEvent::Drain,
            () = tokio::time::sleep_until(grace), if leave_at.is_some() => EmbeddedEvent::Leave,
            written = written(writing), if writing.is_some() => EmbeddedEvent::Written(written),
            () = pipeline.sink.arrived() => EmbeddedEvent::Posts,
            () = tokio::task::yield_now(), if more => EmbeddedEvent::Again,
            batch = stream.next(), if wants_batch => EmbeddedEvent::Batch(batch),
            // Last, because due work is checked in every turn and must not starve the other inputs.
            () = timer.at(due) => EmbeddedEvent::Due,
        }
    }

    fn react(&mut self, pipeline: &mut Pipeline, event: EmbeddedEvent) -> Option<EmbeddedEnd> {
        let now = pipeline.now();
        match event {
            EmbeddedEvent::Leave => return Some(EmbeddedEnd::Over(pipeline.leave(now))),
            EmbeddedEvent::Drain => self.leave_at = Some(pipeline.drain(now)),
            EmbeddedEvent::Posts | EmbeddedEvent::Again => {}
            EmbeddedEvent::Due => pipeline.apply(now, Input::Tick),
            EmbeddedEvent::Written(Ok(())) => {
                self.writing = None;
                pipeline.apply(now, Input::CursorWritten);
            }
            // What was received before is published first.
            EmbeddedEvent::Batch(Err(Failure::Halt(halt))) => {
                pipeline.apply(now, Input::Unreadable(halt));
            }
            EmbeddedEvent::Written(Err(failure)) | EmbeddedEvent::Batch(Err(failure)) => {
                return Some(EmbeddedEnd::Lost(failure));
            }
            EmbeddedEvent::Batch(Ok(batch)) => self.feeding = Some((batch, 0)),
        }
        self.perform(pipeline)
    }

    /// Performs the relay's effects, in order.
    fn perform(&mut self, pipeline: &mut Pipeline) -> Option<EmbeddedEnd> {
        let mut effects = std::mem::take(pipeline.engine.effects());
        let mut end = None;
        for effect in effects.drain(..) {
            match pipeline.perform(effect) {
                None => {}
                Some(Effect::WriteCursor(Progress { watermark, partial })) => {
                    assert!(self.writing.is_none(), "two writes of the cursor at once");
                    let cursor = Cursor { history: self.history, watermark, partial };
                    self.writing = Some(Box::pin(self.store.write_cursor(cursor)));
                }
                Some(Effect::Confirm(watermark)) => pipeline.confirmed = watermark,
                Some(Effect::Restart { why }) => {
                    pipeline.reset_sink(why);
                    end = Some(EmbeddedEnd::Restart);
                }
                Some(Effect::Drained) => end = Some(EmbeddedEnd::Over(PipelineExit::Stopped)),
                Some(Effect::Halt(halt)) => {
                    end = Some(EmbeddedEnd::Over(PipelineExit::Halted(halt)));
                }
                Some(effect) => unreachable!("nothing is parked: {effect:?}"),
            }
        }
        *pipeline.engine.effects() = effects;
        pipeline.observer.observe_latency();
        // `pipeline.confirmed` is what was confirmed on any stream of this process. A new stream has not got it yet.
        if pipeline.confirmed > self.confirmed {
            self.confirmed = pipeline.confirmed;
            self.stream.confirm(self.confirmed);
        }
        end
    }

    /// Ends the stream, after the last offset is confirmed.
    async fn close(self, pipeline: &mut Pipeline) {
        match tokio::time::timeout(CLOSE_MAX, self.stream.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => pipeline.observer.source().shutdown_error(&failure),
            Err(elapsed) => pipeline.observer.source().shutdown_error(&elapsed),
        }
    }
}

async fn written(writing: &mut Option<CursorJob<'_>>) -> Result<(), Failure> {
    match writing {
        Some(job) => job.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Position;
    use crate::outbox::{Layout, MapError};
    use crate::record::Refusal;
    use crate::row::TableId;
    use crate::sink::DiscardConfig;
    use crate::source::Unreadable;

    #[test]
    fn specification_has_the_defaults_of_the_page() {
        let outbox = OutboxSpec::for_layout(Layout::Postrider);
        let spec = Embedded::new("orders", outbox, Arc::new(DiscardConfig::default())).spec;
        assert_eq!(spec.table(), "\"public\".\"outbox\"");
        assert_eq!((spec.limits.events_max, spec.limits.bytes_max), (50_000, 32 << 20));
        let spec = Embedded { spec, ..embedded(Layout::Postrider) }.in_flight(0, 0).spec;
        assert_eq!((spec.limits.events_max, spec.limits.bytes_max), (1, 1));
    }

    fn embedded(layout: Layout) -> Embedded {
        Embedded::new("orders", OutboxSpec::for_layout(layout), Arc::new(DiscardConfig::default()))
    }

    #[test]
    fn outbox_with_events_for_later_is_refused() {
        for layout in Layout::ALL {
            let halt = needs_parking(&embedded(*layout).spec.outbox);
            assert_eq!(halt.is_some(), *layout == Layout::Commerce, "{layout:?}");
        }
    }

    #[test]
    fn halts_name_the_source_and_not_the_database() {
        let (mode, position) = (Mode::Embedded, Position::default());
        let spec = embedded(Layout::Postrider).spec;
        let unread = Unreadable::Protocol("it is cut".into());
        let error = MapError::Inconsistent { table: TableId(1), what: "it is narrow" };
        let named = ("orders", "1");
        let halts = [
            halts::unfit_running("it is full".to_owned(), String::new(), mode),
            halts::refused_event((&*spec.sink, mode), named, position, Refusal::too_large(2, 1)),
            halts::unfit_table(&error, mode),
            halts::unreadable(&unread, mode),
            halts::blocked(),
        ];
        for halt in halts {
            let text = format!("{halt} {} {}", halt.meaning, halt.hint);
            for word in ["server", "database", "PostgreSQL", "WAL"] {
                assert!(!text.contains(word), "{word}: {text}");
            }
        }
    }
}
