//! One pipeline: its parts, and its life from the first connection to its exit.

mod life;
mod posts;

use super::budget::Budget;
use super::change;
use super::connect::{self, Failure};
use super::destinations::Destinations;
use super::former::{LEASE, Ownership};
use super::halts;
use super::history::{History, Past, Seen};
use super::judge::Rechecked;
use super::lag::LagMeter;
use super::looks::Published;
use super::marking::{Handed, Marking};
use super::parking::Desk;
use super::repair;
use super::returning::Returning;
use super::run::{Exit, Stop};
use super::say;
use super::session::End;
use super::shelf::Shelf;
use super::spec::{Mode, PipelineSpec};
use crate::backoff::Backoff;
use crate::error::Halt;
use crate::event::{Histories, PgTime};
use crate::lsn::{Lsn, Watermark};
use crate::metrics::PipelineMetrics;
use crate::outbox::Mapper;
use crate::postgres::SourceErrorKind;
use crate::postgres::action::Repeats;
use crate::postgres::cursor::{self, Settled};
use crate::relay::{Effect, Input, Relay};
use crate::sink::{Mailbox, Post, Sink, SinkSpec};
use crate::status::Board;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between two tries to connect: the first, and the longest.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
const RECONNECT_MAX: Duration = Duration::from_secs(15);

/// How long a start waits for a broker to name its cluster, since the process began. Without it the pipeline starts,
/// and takes no record until one has.
const CLUSTER_WAIT: Duration = Duration::from_secs(2);
const CLUSTER_PAUSE: Duration = Duration::from_millis(20);

/// A pipeline and all its parts.
pub(super) struct Pipeline {
    pub(super) spec: Arc<PipelineSpec>,
    pub(super) relay: Relay,
    pub(super) mapper: Mapper,
    /// Types that the relation at hand waits for: the catalog is to be asked for them.
    pub(super) unknown_types: Vec<u32>,
    pub(super) sink: Box<dyn Sink>,
    pub(super) cluster: Cluster,
    pub(super) mailbox: Mailbox,
    pub(super) effects: Vec<Effect>,
    /// What the server has been told.
    pub(super) confirmed: Watermark,
    /// Commit time of the newest transaction that was fed.
    pub(super) committed_at: PgTime,
    pub(super) board: Board,
    pub(super) metrics: PipelineMetrics,
    pub(super) tell: say::Tell,
    /// Of commits that were not read yet.
    pub(super) lag: LagMeter,
    /// Records of parked events.
    pub(super) shelf: Shelf,
    pub(super) destinations: Destinations,
    pub(super) marking: Marking,
    pub(super) handed: Handed,
    /// Parked events whose rows the table brings again.
    pub(super) returning: Returning,
    /// The slot is to be let go as soon as the table is polled.
    pub(super) lets_go: bool,
    /// What was received when the stream was last seen to wait for a standby.
    pub(super) stalled_at: Option<Lsn>,
    /// `source.wal_retain_max`
    pub(super) budget: Option<Budget>,
    /// What is tried next.
    pub(super) next: Next,
    /// A repair came to its end, or there was nothing to repair.
    pub(super) repaired: bool,
    posts: Vec<Post>,
    /// When the sink wants a turn, whatever happens.
    sink_due: Option<std::time::Instant>,
    /// A commit's time, and how many of its events were published since the last look at the clock.
    observed: (PgTime, u64),
    epoch: Instant,
    pub(super) ever_streamed: bool,
    /// What the positions we remember belong to.
    pub(super) history: Option<History>,
    /// The server that events were read from last, streamed or polled.
    server: Option<History>,
    /// Which histories published positions belong to.
    pub(super) histories: Histories,
    /// The publication, as the stream before knew it.
    pub(super) published: Option<Published>,
    /// The epoch under which we streamed last.
    pub(super) owned: Option<i64>,
    pub(super) ownership: Ownership,
    /// When what is in flight is no longer ours to send, while there is no stream.
    lease_ends: Instant,
    pub(super) rechecked: Rechecked,
    pub(super) repeats: Repeats,
    pub(super) pause_min: Duration,
}

/// The cluster that the sink's brokers are of.
#[derive(Default)]
pub(super) struct Cluster {
    /// With which the last start was decided; `None` where no broker had answered.
    decided: Option<String>,
    /// Another one answers, and has to be compared with what the position belongs to.
    pub(super) located: bool,
}

/// How events are read next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Next {
    /// By the mode.
    #[default]
    Stream,
    /// From the table, since the slot can't be used.
    Poll,
    /// From the list of a repair.
    Repair,
}

/// What waiting came to.
pub(super) enum Waited<T> {
    Done(T),
    Over(Exit),
}

impl Pipeline {
    /// Waits a moment for a broker to name its cluster, so that a start need not be repeated for it.
    async fn await_cluster(&mut self, stop: &Stop) -> Option<Exit> {
        while matches!(self.spec.sink, SinkSpec::Kafka(_))
            && self.sink.cluster().is_none()
            && self.epoch.elapsed() < CLUSTER_WAIT
        {
            if let Waited::Over(exit) = self.waiting(tokio::time::sleep(CLUSTER_PAUSE), stop).await
            {
                return Some(exit);
            }
        }
        self.cluster = Cluster { decided: self.sink.cluster(), located: false };
        None
    }

    /// The start was decided, and its session is ours: records may go to the cluster that it was decided with. Where
    /// that is not known, they may go to none, also not to the one of an earlier session: another process may have
    /// moved the position on since, in another cluster.
    fn admit(&mut self) {
        let cluster = self.cluster.decided.as_deref();
        match cluster {
            Some(cluster) => self.sink.admit(cluster),
            None => self.sink.hold(),
        }
        let words = change::words(&self.spec, cluster);
        self.board.update(|snapshot| snapshot.belongs_to = Some(words));
        // A broker may have answered since.
        self.compare_cluster();
    }

    /// Notes whether the brokers are of another cluster than the start was decided with.
    fn compare_cluster(&mut self) {
        let found = self.sink.cluster();
        self.cluster.located |= found.is_some() && found != self.cluster.decided;
    }

    async fn run(&mut self, stop: &Stop) -> Exit {
        let mut backoff = Backoff::new(RECONNECT_MIN, RECONNECT_MAX);
        loop {
            if self.spec.only_repair && self.repaired {
                return Exit::Stopped;
            }
            if let Some(exit) = self.await_cluster(stop).await {
                return exit;
            }
            let next = std::mem::take(&mut self.next);
            let repairs = next == Next::Repair || self.spec.only_repair;
            if repairs || self.spec.mode == Mode::Poll || next == Next::Poll {
                match self.poll_once(repairs, stop, &mut backoff).await {
                    Some(exit) => return exit,
                    None => continue,
                }
            }
            let seen = self.histories.current();
            let cluster = self.cluster.decided.clone();
            let attempt = Box::pin(connect::open(Arc::clone(&self.spec), seen, cluster));
            let failure = match self.waiting(attempt, stop).await {
                Waited::Over(exit) => return exit,
                Waited::Done(Err(failure)) => failure,
                Waited::Done(Ok(connected)) => {
                    let next = History::of(&connected.resume.cursor);
                    let seen = Seen { confirmed: self.confirmed, received: self.relay.received() };
                    let start = connected.resume.start;
                    let refused = self.refuses(&next, &connected.past).or_else(|| {
                        let before = self.history.as_ref()?;
                        before.rewound(&next, &connected.past, seen, start)
                    });
                    if let Some(halt) = refused {
                        self.end_history(&connected.desk).await;
                        return Exit::Halted(Box::new(halt));
                    }
                    self.server = Some(next);
                    self.admit();
                    let since = Instant::now();
                    self.ever_streamed = true;
                    self.rechecked.answered();
                    let end = self.stream(connected, stop).await;
                    self.lease_ends = Instant::now() + lease(&end);
                    if since.elapsed() > RECONNECT_MAX {
                        self.rechecked.forget();
                        backoff.reset();
                    }
                    match end {
                        End::Over(exit) => return exit,
                        End::Lost(error, phase) => Failure::Source(error, phase),
                        End::Restart => Failure::Reset,
                        End::LetGo(halt) => {
                            self.lets_go = true;
                            Failure::Halt(halt)
                        }
                    }
                }
            };
            if let Some(exit) = self.after(failure, stop, &mut backoff).await {
                return exit;
            }
        }
    }

    /// One session of polling, or of a repair, and the pause after it; the exit, if the pipeline is over.
    async fn poll_once(
        &mut self,
        repairs: bool,
        stop: &Stop,
        backoff: &mut Backoff,
    ) -> Option<Exit> {
        let spec = Arc::clone(&self.spec);
        let seen = self.histories.current();
        let cluster = self.cluster.decided.clone();
        let attempt = Box::pin(async move {
            if repairs {
                repair::open(spec, seen, cluster).await
            } else {
                connect::open_poll(spec, seen, cluster).await
            }
        });
        let failure = match self.waiting(attempt, stop).await {
            Waited::Over(exit) => return Some(exit),
            Waited::Done(Err(failure)) => failure,
            Waited::Done(Ok(polling)) => {
                let past = Past { wal_end: polling.start, switches: Vec::new() };
                if let Some(halt) = self.refuses(&polling.server, &past) {
                    self.end_history(&polling.desk).await;
                    return Some(Exit::Halted(Box::new(halt)));
                }
                self.server = Some(polling.server.clone());
                self.admit();
                let since = Instant::now();
                self.ever_streamed = true;
                self.rechecked.answered();
                let end = Box::pin(self.poll(polling, stop)).await;
                if since.elapsed() > RECONNECT_MAX {
                    self.rechecked.forget();
                    backoff.reset();
                }
                match end {
                    End::Over(exit) => return Some(exit),
                    End::Lost(error, phase) => Failure::Source(error, phase),
                    End::Restart => Failure::Reset,
                    End::LetGo(halt) => Failure::Halt(halt),
                }
            }
        };
        if let Some(halt) = self.judge(failure) {
            self.apply(self.now(), Input::SourceLost);
            return Some(Exit::Halted(halt));
        }
        self.pause(stop, backoff).await
    }

    /// Why nothing of this server may be published after what was published from the server before.
    fn refuses(&self, next: &History, past: &Past) -> Option<Halt> {
        self.server.as_ref()?.refuses(next, past)
    }

    /// The mapper of streams, or of claims (`rows`): those have no position in the log. Called before anything is
    /// marked: where the server has another history than the one before, what is remembered by id is forgotten. A
    /// server that was promoted without the last commits gives their ids to other rows.
    pub(super) fn renew_mapper(&mut self, desk: &Desk, rows: bool) -> Result<(), Box<Halt>> {
        let outbox = self.spec.outbox.clone();
        let mut mapper = Mapper::new(outbox).map_err(|e| Box::new(halts::unfit_outbox(&e)))?;
        let Settled { histories, raised, first: _ } = &desk.histories;
        mapper.set_histories(histories.clone(), rows);
        if let Some((before, from)) = *raised {
            say::history_begins(&self.spec, histories.current(), before, from);
        }
        if self.histories.current() != histories.current() {
            // Ids of another history are other rows' on this server.
            self.marking.forget();
            self.handed = Handed::default();
        }
        self.histories = histories.clone();
        self.mapper = mapper;
        Ok(())
    }

    /// Marks the history in the cursor row as ended, on a server that this process refuses to stream from. The next
    /// process reads only that row, and consumers may have seen higher positions of this one, so it must begin a new
    /// history. If the row can't be written, the hint of the halt says how a person does it.
    async fn end_history(&self, desk: &Desk) {
        let ended = cursor::end_history(desk.control.client(), self.spec.name(), desk.epoch).await;
        ended.unwrap_or_default();
    }

    /// Waits for `future` without a stream: reports still come, and a stop may.
    pub(super) async fn waiting<F: Future>(&mut self, future: F, stop: &Stop) -> Waited<F::Output> {
        let mut future = pin!(future);
        let lease = self.lease_ends;
        loop {
            let held = self.relay.in_flight().0 > 0;
            tokio::select! {
                biased;
                () = stop.drain() => {
                    self.apply(self.now(), Input::Drain);
                    // Without a database there is nowhere to write a last row.
                    self.apply(self.now(), Input::SourceLost);
                }
                done = &mut future => {
                    return self.outcome().map_or(Waited::Done(done), Waited::Over);
                }
                () = self.mailbox.arrived() => self.take_posts(self.now()),
                () = tokio::time::sleep_until(lease), if held => {
                    self.apply(self.now(), Input::SlotTaken);
                }
                () = tokio::time::sleep(say::REPORT_INTERVAL) => self.take_posts(self.now()),
            }
            if let Some(exit) = self.outcome() {
                return Waited::Over(exit);
            }
            self.report_sometimes(None);
        }
    }

    /// Performs the effects that need no stream; the exit, if the relay has come to its end.
    pub(super) fn outcome(&mut self) -> Option<Exit> {
        let mut exit = None;
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Published { ticket, commit_time } => self.published(ticket, commit_time),
                Effect::Restart { why } => self.reset_sink(why),
                Effect::Drained => exit = Some(Exit::Stopped),
                Effect::Halt(halt) => exit = Some(Exit::Halted(halt)),
                Effect::Released { position } => self.released(position),
                Effect::Overtaken { position, by } => say::overtaken(self, position, by),
                Effect::Undelivered { position, reason } => {
                    say::undelivered(self, position, reason);
                }
                // Without a stream there is nothing to write or to confirm to; the relay asks again when there is one.
                Effect::Publish(_)
                | Effect::Park { .. }
                | Effect::WriteParking { .. }
                | Effect::Try { .. }
                | Effect::Sound { .. }
                | Effect::Letter { .. }
                | Effect::WriteCursor(_)
                | Effect::Confirm(_) => {}
            }
        }
        self.observe_latency();
        exit
    }

    pub(super) fn apply(&mut self, now: Duration, input: Input<'_>) {
        self.relay.apply(now, input, &mut self.effects);
    }

    /// Time since this pipeline began: the relay's clock.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// When the loop must turn again, whatever happens.
    pub(super) fn due(&self) -> Instant {
        // What was published since the last report is told soon; nothing new is told now and then.
        let news = self.tell.published_total != self.tell.reported_total;
        let pause = if news { say::REPORT_SOON } else { say::REPORT_INTERVAL };
        let report = Instant::now() + pause;
        let due = self.sink_due.map_or(report, |at| report.min(at.into()));
        self.relay.deadline().map_or(due, |at| (self.epoch + at).min(due))
    }

    /// Whether an effect waits that ends the stream.
    pub(super) fn ending(&self) -> bool {
        self.effects.iter().any(|effect| match effect {
            Effect::Restart { .. } | Effect::Drained | Effect::Halt(_) => true,
            Effect::Publish(_)
            | Effect::Park { .. }
            | Effect::WriteParking { .. }
            | Effect::Try { .. }
            | Effect::Sound { .. }
            | Effect::Letter { .. }
            | Effect::Undelivered { .. }
            | Effect::Overtaken { .. }
            | Effect::Released { .. }
            | Effect::Published { .. }
            | Effect::WriteCursor(_)
            | Effect::Confirm(_) => false,
        })
    }
}

/// How long what is in flight may go on after a stream that ended so.
fn lease(end: &End) -> Duration {
    match end {
        End::Lost(error, _) if matches!(error.kind(), SourceErrorKind::Silent(_)) => Duration::ZERO,
        End::Lost(..) | End::Restart | End::LetGo(_) | End::Over(_) => LEASE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::SourceError;
    use crate::postgres::action::Phase;

    #[test]
    fn what_is_in_flight_outlives_a_silent_server_not_at_all_and_others_for_seconds() {
        let lost = |kind| End::Lost(SourceError::new(kind, "stream"), Phase::Stream);
        let silent = lost(SourceErrorKind::Silent(Duration::from_secs(13)));
        assert_eq!(lease(&silent), Duration::ZERO);
        assert_eq!(lease(&lost(SourceErrorKind::Closed)), Duration::from_secs(3));
    }
}
