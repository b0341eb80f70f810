//! The life of a pipeline on PostgreSQL: connect, run a session, decide what its end or a failure leads to, and again.

use super::connect;
use super::failure::{End, Failure, polling_helps};
use super::former_owner::FORMER_WAIT;
use super::halts;
use super::history::{SeenPositions, ServerHistory, ServerPast};
use super::mode::Mode;
use super::observer::{self, REPORT_INTERVAL};
use super::pause_watch::{PauseLook, PauseWatch};
use super::poll::poll;
use super::repair::{self, repairs_instead};
use super::running::{Pipeline, RECONNECT_MAX, RECONNECT_MIN, Waited};
use super::session_context::SessionContext;
use super::spec::{PipelineSpec, log_database};
use super::stop::{PipelineExit, Stop};
use super::store_port::StorePort;
use super::stream::stream;
use crate::backoff::Backoff;
use crate::error::{Chain, Halt, HaltReason};
use crate::maintenance::{EventLogsSpec, InboxesSpec, Maintenance, MaintenanceSpec, RetentionSpec};
use crate::metrics::{PipelineMetrics, Side};
use crate::postgres::error_policy::{self, Action, Class, Phase, Repeats};
use crate::postgres::store::cursor;
use crate::postgres::store::parked::PruneRule;
use crate::postgres::store::pause::Pause;
use crate::postgres::{CapturedTable, SourceError};
use crate::published::RowStatusRule;
use crate::relay::Input;
use crate::status::{SourceSummary, StatusHandle};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Connects, streams or polls, and connects again, until the pipeline ends.
pub(super) struct Supervisor {
    /// The parts of the pipeline.
    pipeline: Pipeline,
    /// What sessions know of each other.
    context: SessionContext,
    /// How events are read next.
    next: Next,
    /// A repair has ended, or there was nothing to repair.
    repaired: bool,
    /// Whether this process has streamed or polled before.
    ever_read: bool,
    /// The server from which events were last read, by stream or by polling.
    server: Option<ServerHistory>,
    /// The last refusal by the server.
    last_refusal: LastRefusal,
    /// Detects an error that repeats at the same position.
    repeats: Repeats,
    /// The shortest pause before the next attempt.
    pause_min: Duration,
    /// The pauses between attempts.
    backoff: Backoff,
}

/// How events are read next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Next {
    /// As the mode says.
    #[default]
    Stream,
    /// From the table, because the slot can't be used.
    Poll,
    /// From the list of rows of a repair.
    Repair,
}

impl Supervisor {
    /// Runs one pipeline from its start to its exit.
    pub(super) async fn live(
        spec: PipelineSpec,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
        stop: Stop,
    ) -> PipelineExit {
        let name = spec.name().to_owned();
        status_handle.update(|snapshot| {
            snapshot.from = SourceSummary {
                source: spec.source_name(),
                slot: spec.names.slot.clone(),
                captured: spec.names.captured.iter().map(CapturedTable::qualified).collect(),
            };
        });
        let exit = match Self::new(spec, status_handle.clone(), metrics) {
            Ok(mut supervisor) => {
                let repairs = supervisor.context.spec.repair.only;
                let maintenance =
                    (!repairs).then(|| supervisor.start_maintenance(status_handle.clone()));
                let exit = Box::pin(supervisor.run(&stop)).await;
                supervisor.pipeline.finish();
                if let Some(maintenance) = maintenance {
                    maintenance.stop(supervisor.context.spec.common.shutdown_grace).await;
                }
                exit
            }
            Err(halt) => PipelineExit::Halted(Box::new(halt)),
        };
        observer::ended(&name, &status_handle, &exit);
        exit
    }

    /// A pipeline with an open sink.
    ///
    /// # Errors
    /// The halt of a pipeline whose outbox or sink can't be used.
    fn new(
        spec: PipelineSpec,
        status_handle: StatusHandle,
        metrics: PipelineMetrics,
    ) -> Result<Self, Halt> {
        let row_status = match (spec.common.mode, spec.poll.mark_streamed) {
            (Mode::Auto, _) => RowStatusRule::Required,
            (Mode::Wal | Mode::Poll | Mode::Embedded, true) => RowStatusRule::Beside,
            (Mode::Wal | Mode::Poll | Mode::Embedded, false) => RowStatusRule::Off,
        };
        Ok(Self {
            pipeline: Pipeline::new(spec.common.clone(), row_status, status_handle, metrics)?,
            context: SessionContext::new(Arc::new(spec)),
            next: Next::Stream,
            repaired: false,
            ever_read: false,
            server: None,
            last_refusal: LastRefusal::default(),
            repeats: Repeats::default(),
            pause_min: Duration::ZERO,
            backoff: Backoff::new(RECONNECT_MIN, RECONNECT_MAX),
        })
    }

    /// Starts the maintenance of the pipeline's tables, which works while this process owns the pipeline. A command
    /// that repairs has none: it drops no bookmark that someone needs for a replay.
    fn start_maintenance(&self, status_handle: StatusHandle) -> Maintenance {
        let SessionContext { spec, ownership, .. } = &self.context;
        let maintenance_spec = MaintenanceSpec {
            key: spec.key().clone(),
            conninfo: spec.conninfo.clone(),
            prune: match spec.common.mode {
                Mode::Poll => PruneRule::Aged,
                Mode::Wal | Mode::Auto | Mode::Embedded => PruneRule::PassedByCursor,
            },
            bookmarks_retain_max: spec.bookmarks_retain_max,
        };
        let log_database = log_database(&*spec.common.sink);
        let settings = &spec.maintenance.inboxes;
        let inboxes =
            InboxesSpec::of_pipeline(spec.name(), &spec.conninfo, log_database.as_ref(), settings);
        let event_logs = log_database.map(|conninfo| EventLogsSpec {
            pipeline: spec.name().to_owned(),
            conninfo,
            settings: spec.maintenance.clone(),
        });
        let retention = spec.maintenance.retention.clone();
        let retention =
            retention.map(|rule| RetentionSpec { conninfo: spec.conninfo.clone(), rule });
        let owner = ownership.announced();
        Maintenance::start(maintenance_spec, event_logs, inboxes, retention, owner, status_handle)
    }

    async fn run(&mut self, stop: &Stop) -> PipelineExit {
        let spec = Arc::clone(&self.context.spec);
        loop {
            if spec.repair.only && self.repaired {
                return PipelineExit::Stopped;
            }
            let lease = self.context.ownership.lease_ends();
            if let Some(exit) = self.pipeline.await_cluster(lease, stop).await {
                return exit;
            }
            let next = std::mem::take(&mut self.next);
            let repairs = next == Next::Repair || spec.repair.only;
            let polls = repairs || spec.common.mode == Mode::Poll || next == Next::Poll;
            let ended = if polls {
                self.poll_once(repairs, stop).await
            } else {
                Box::pin(self.stream_once(stop)).await
            };
            let failure = match ended {
                Ok(Failure::Paused(pause)) => match Box::pin(self.pause(pause, stop)).await {
                    Some(exit) => return exit,
                    None => continue,
                },
                Ok(failure) => failure,
                Err(exit) => return exit,
            };
            if let Some(exit) = self.after(failure, polls, stop).await {
                return exit;
            }
        }
    }

    /// Makes one attempt to stream. Returns why the pipeline has to connect again, or its exit.
    async fn stream_once(&mut self, stop: &Stop) -> Result<Failure, PipelineExit> {
        let spec = Arc::clone(&self.context.spec);
        let seen = self.pipeline.histories().current();
        let cluster = self.pipeline.sink.decided_cluster().map(str::to_owned);
        let connected = match self.waiting(Box::pin(connect::open(spec, seen, cluster)), stop).await
        {
            Waited::Over(exit) => return Err(exit),
            Waited::Done(Err(failure)) => return Ok(failure),
            Waited::Done(Ok(connected)) => connected,
        };
        let next = ServerHistory::of(&connected.resume.cursor);
        let seen = SeenPositions {
            confirmed: self.pipeline.confirmed,
            received: self.pipeline.engine.relay().received(),
        };
        let start = connected.resume.start;
        let refused = self.refuses(&next, &connected.past).or_else(|| {
            let before = self.context.history.as_ref()?;
            before.rewound(&next, &connected.past, seen, start)
        });
        if let Some(halt) = refused {
            self.end_history(&connected.store).await;
            return Err(PipelineExit::Halted(Box::new(halt)));
        }
        let since = self.begin(next);
        let end = stream(&mut self.pipeline, &mut self.context, connected, stop).await;
        self.context.ownership.session_ended();
        self.context.ownership.stream_ended(&end);
        if matches!(end, End::DropSlot(_)) {
            self.context.drops_slot = true;
        }
        self.ended(since, end)
    }

    /// Makes one attempt to poll, or to repair. Returns why the pipeline has to connect again, or its exit.
    async fn poll_once(&mut self, repairs: bool, stop: &Stop) -> Result<Failure, PipelineExit> {
        let spec = Arc::clone(&self.context.spec);
        let seen = self.pipeline.histories().current();
        let cluster = self.pipeline.sink.decided_cluster().map(str::to_owned);
        let attempt = Box::pin(async move {
            if repairs {
                repair::open(spec, seen, cluster).await
            } else {
                connect::open_poll(spec, seen, cluster).await
            }
        });
        let polling = match self.waiting(attempt, stop).await {
            Waited::Over(exit) => return Err(exit),
            Waited::Done(Err(failure)) => return Ok(failure),
            Waited::Done(Ok(polling)) => polling,
        };
        let past = ServerPast { wal_end: polling.start, switches: Vec::new() };
        if let Some(halt) = self.refuses(&polling.server, &past) {
            self.end_history(&polling.store).await;
            return Err(PipelineExit::Halted(Box::new(halt)));
        }
        let since = self.begin(polling.server.clone());
        let polled = poll(&mut self.pipeline, &mut self.context, polling, stop);
        let (end, repaired) = Box::pin(polled).await;
        self.context.ownership.session_ended();
        self.repaired |= repaired;
        self.ended(since, end)
    }

    /// Waits until an operator ends the pause; returns the exit if the process is stopped before. `found`: the request,
    /// if it was found while connecting. Then records may be on their way, of the process that had the pipeline before
    /// or of a session that this process has lost.
    async fn pause(&mut self, found: Option<Box<Pause>>, stop: &Stop) -> Option<PipelineExit> {
        let settles = if found.is_some() { FORMER_WAIT } else { Duration::ZERO };
        let unacknowledged = self.pipeline.suspend(found.map(|pause| *pause));
        let (spec, settled_at) = (Arc::clone(&self.context.spec), Instant::now() + settles);
        let mut watch = PauseWatch::new(spec, unacknowledged, settled_at);
        loop {
            let mut next = pin!(watch.next());
            let looked = loop {
                tokio::select! {
                    biased;
                    () = stop.drain() => return Some(PipelineExit::Stopped),
                    looked = &mut next => break looked,
                    () = tokio::time::sleep(REPORT_INTERVAL) => self.pipeline.report(None),
                }
            };
            match looked {
                Ok(PauseLook::Paused(status)) => self.pipeline.observer.paused(*status),
                Ok(PauseLook::Over) => {
                    self.pipeline.observer.drain().resumed();
                    break;
                }
                Ok(PauseLook::Refused(error)) => {
                    let reason = Chain(&error).to_string();
                    self.pipeline.observer.drain().refused(&reason);
                    break;
                }
                Err(error) => {
                    let reason = Chain(&error).to_string();
                    self.pipeline.observer.drain().unreachable(&reason);
                }
            }
            self.pipeline.report(None);
        }
        self.context.forget_retained();
        self.context.ownership.paused();
        self.last_refusal.clear();
        self.backoff.reset();
        match self.pipeline.resume() {
            Ok(()) => None,
            Err(halt) => Some(PipelineExit::Halted(Box::new(halt))),
        }
    }

    /// Waits for an attempt, or for the pause before the attempt, while there is no session.
    async fn waiting<F: Future>(&mut self, future: F, stop: &Stop) -> Waited<F::Output> {
        let lease = self.context.ownership.lease_ends();
        self.pipeline.waiting(future, lease, stop).await
    }

    /// A session with this server begins. Returns when.
    fn begin(&mut self, server: ServerHistory) -> Instant {
        self.server = Some(server);
        self.pipeline.admit();
        self.ever_read = true;
        self.last_refusal.explained();
        Instant::now()
    }

    /// The session that began at `since` has ended.
    fn ended(&mut self, since: Instant, end: End) -> Result<Failure, PipelineExit> {
        if since.elapsed() > RECONNECT_MAX {
            self.last_refusal.clear();
            self.backoff.reset();
        }
        match end {
            End::Over(exit) => Err(exit),
            End::Lost(error, phase) => Ok(Failure::Source(error, phase)),
            End::Restart => Ok(Failure::Reset),
            End::Paused => Ok(Failure::Paused(None)),
            End::DropSlot(halt) => Ok(Failure::Halt(halt)),
        }
    }

    /// Why nothing of this server may be published after what was published from the previous server.
    fn refuses(&self, next: &ServerHistory, past: &ServerPast) -> Option<Halt> {
        self.server.as_ref()?.refuses(next, past)
    }

    /// Marks the history in the cursor row as ended, on a server that this process refuses to stream from. The next
    /// process reads only that row, and consumers may have seen higher positions of this history, so the next process
    /// must begin a new one. If the row can't be written, the hint of the halt says how to do it by hand.
    async fn end_history(&self, store: &StorePort) {
        let ended = cursor::end_history(store.client(), store.key(), store.epoch()).await;
        ended.unwrap_or_default();
    }

    /// Handles a failure: halts, chooses another way to read, or pauses; returns the exit if the pipeline has ended.
    /// `polled`: the table was polled.
    async fn after(&mut self, failure: Failure, polled: bool, stop: &Stop) -> Option<PipelineExit> {
        // A repair would not publish the rows that polling has left.
        let unpolled = matches!(failure, Failure::Unpolled);
        if let Some(halt) = self.halt_for(failure, polled) {
            if !polled && self.reads_otherwise(&halt, unpolled) {
                return None;
            }
            self.pipeline.apply(self.pipeline.now(), Input::SourceLost);
            return Some(PipelineExit::Halted(halt));
        }
        let pause = self.backoff.next(fastrand::f64()).max(self.pause_min);
        self.pause_min = Duration::ZERO;
        match self.waiting(tokio::time::sleep(pause), stop).await {
            Waited::Over(exit) => Some(exit),
            Waited::Done(()) => None,
        }
    }

    /// Whether events are read in another way from here on, because the stream can't be used for this reason.
    fn reads_otherwise(&mut self, halt: &Halt, unpolled: bool) -> bool {
        let spec = &self.context.spec;
        let source = self.pipeline.observer.source();
        if spec.common.mode == Mode::Auto && polling_helps(halt.reason) {
            source.falling_back(halt);
            self.next = Next::Poll;
        } else if !unpolled && repairs_instead(spec, halt) {
            source.repair_next(halt);
            if self.pipeline.engine.relay().in_flight().0 > 0 {
                self.pipeline.apply(self.pipeline.now(), Input::SlotTaken);
            }
            self.next = Next::Repair;
        } else {
            return false;
        }
        self.last_refusal.explained();
        true
    }

    /// The halt that a failure leads to; `None` if the pipeline tries again. The table of errors is in
    /// `postgres::error_policy`; this function combines it with the mode of the pipeline and with earlier failures.
    fn halt_for(&mut self, failure: Failure, polled: bool) -> Option<Box<Halt>> {
        match failure {
            // A process that has lost the pipeline may still be recreating the slot on another session.
            Failure::Halt(halt)
                if halt.reason == HaltReason::SlotMoved
                    && !self.last_refusal.record(HaltReason::SlotMoved) =>
            {
                self.not_ready(&halt.message);
            }
            Failure::Halt(halt) => return Some(halt),
            Failure::StandBy { active_pid, progress } => {
                let (lag, now) = (self.pipeline.observer.lag(), std::time::Instant::now());
                match progress {
                    Some((wal_end, confirmed)) => lag.other_reads(wal_end, confirmed, now),
                    None => lag.answered(now),
                }
                self.last_refusal.explained();
                self.stand_by(Some(active_pid));
            }
            Failure::Wait { message } => self.not_ready(&message),
            Failure::Reset | Failure::Paused(_) => {}
            Failure::Unrepaired => {
                self.last_refusal.explained();
                self.next = Next::Repair;
            }
            Failure::Unpolled if self.context.spec.common.mode == Mode::Auto => {
                self.last_refusal.explained();
                self.next = Next::Poll;
            }
            // Unpublished rows are in the table, and the slot would repeat what polling has published.
            Failure::HandOver => {
                self.last_refusal.explained();
                self.context.drops_slot = true;
                self.next = Next::Poll;
            }
            Failure::Unpolled => return Some(Box::new(halts::unpolled(self.context.spec.name()))),
            Failure::NothingToRepair => self.repaired = true,
            Failure::Source(error, phase) => {
                let proven = self.ever_read && !self.may_poll_only(&error, phase, polled);
                match error_policy::action(&error, phase, proven) {
                    Action::Reconnect(class) | Action::Later(class) => {
                        return self.reconnect(class, &error);
                    }
                    Action::StandBy => self.stand_by(None),
                    Action::Recheck(reason) if !self.last_refusal.record(reason) => {
                        self.source_down(&error);
                    }
                    Action::Recheck(reason) | Action::Halt(reason) => {
                        return Some(Box::new(self.explain(reason, &error)));
                    }
                }
            }
        }
        None
    }

    /// Whether the server has refused the login for replication, or the stream, for lack of a right, in a mode that can
    /// poll. To read the table needs another right, so the pipeline polls, although it may have streamed before.
    fn may_poll_only(&self, error: &SourceError, phase: Phase, polled: bool) -> bool {
        let mode = self.context.spec.common.mode;
        let of_stream = matches!(phase, Phase::Connect | Phase::Start);
        let refused = error.sqlstate().is_some_and(|state| state.as_str() == "42501");
        !polled && mode == Mode::Auto && of_stream && refused
    }

    fn explain(&self, reason: HaltReason, error: &SourceError) -> Halt {
        error_policy::explain(reason, error, &self.context.spec.names)
    }

    fn reconnect(&mut self, class: Class, error: &SourceError) -> Option<Box<Halt>> {
        self.pipeline.observer.reconnected(Side::Source, class.name());
        if self.repeats.wedged(error, self.pipeline.engine.relay().received()) {
            return Some(Box::new(self.explain(HaltReason::Wedged, error)));
        }
        self.pause_min = class.pause_min();
        self.source_down(error);
        None
    }

    /// The database is not available.
    fn source_down(&mut self, error: &SourceError) {
        self.pipeline.observer.source().down(error);
        self.pipeline.report(None);
    }

    /// Nothing can be read yet.
    fn not_ready(&mut self, message: &str) {
        self.pipeline.observer.source().waiting(message);
        self.pipeline.report(None);
    }

    /// Another process has the slot: this process may not send what it has in flight.
    fn stand_by(&mut self, active_pid: Option<u32>) {
        let slot = &self.context.spec.names.slot;
        self.pipeline.observer.source().standing_by(slot, active_pid);
        self.pipeline.report(None);
        if self.pipeline.engine.relay().in_flight().0 > 0 {
            self.pipeline.apply(self.pipeline.now(), Input::SlotTaken);
        }
    }
}

/// The last refusal by the server. The start check examines the reason. If the server refuses again for the same reason
/// and nothing else happened in between, the start check and the server disagree, and an operator must act.
#[derive(Default, Debug)]
struct LastRefusal(Option<HaltReason>);

impl LastRefusal {
    /// Records a refusal; returns whether the reason is the same as that of the one before.
    fn record(&mut self, reason: HaltReason) -> bool {
        self.0.replace(reason) == Some(reason)
    }

    /// The start check has passed, so an earlier refusal is explained or over. A refusal of a statement that no
    /// handshake makes is kept.
    fn explained(&mut self) {
        let of_later_statement = |reason: &HaltReason| {
            matches!(reason, HaltReason::SchemaUnfit | HaltReason::TableUnfit)
        };
        self.0 = self.0.filter(of_later_statement);
    }

    /// A session has worked for a while: the refusal is over.
    fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A standby process is refused once by each lost slot, and never connects in between: the second loss is not a
    /// repeated refusal.
    #[test]
    fn refusal_explained_by_the_start_check_is_not_a_repetition() {
        let mut last_refusal = LastRefusal::default();
        assert!(!last_refusal.record(HaltReason::SlotUnusable));
        assert!(last_refusal.record(HaltReason::SlotUnusable), "nothing happened in between");
        last_refusal.explained();
        assert!(!last_refusal.record(HaltReason::SlotUnusable));
        assert!(!last_refusal.record(HaltReason::SchemaUnfit), "another reason");
        last_refusal.explained();
        assert!(last_refusal.record(HaltReason::SchemaUnfit), "no handshake makes that statement");
        last_refusal.clear();
        assert!(!last_refusal.record(HaltReason::SchemaUnfit));
    }
}
