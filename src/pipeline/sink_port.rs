//! The sink of a pipeline, its mailbox and its destinations: the only place from which records are enqueued.

use super::destinations::{Destinations, SinkProblem};
use super::halts;
use super::spec::CommonSpec;
use super::transaction_meter::TransactionMeter;
use crate::error::Halt;
use crate::record::{OwnedRecord, Record, Ticket};
use crate::sink::{Mailbox, NotTaken, Post, Purpose, Sink, SinkCall, SinkProgress};
use crate::status::TransactionsSummary;
use std::time::{Duration, Instant};

/// The sink, and what is known of its brokers and destinations.
pub(super) struct SinkPort {
    /// Where records are published.
    sink: Box<dyn Sink>,
    /// Posts of the sink to this thread.
    mailbox: Mailbox,
    /// Destinations that accept no records.
    destinations: Destinations,
    /// Scratch space for posts.
    posts: Vec<Post>,
    /// When the sink needs its next turn.
    due: Option<Instant>,
    /// What a record costs beside its bytes ([`held_bytes`](crate::sink::Capabilities::held_bytes)).
    held_bytes: usize,
    /// The brokers of the sink belong to a cluster.
    clusters: bool,
    /// The cluster for which the last start was decided; `None` if no broker had answered.
    decided: Option<String>,
    /// The brokers belong to another cluster, which has to be compared with the one of the position.
    located: bool,
    /// When the sink was last reset: requests from before that may still arrive at the broker.
    reset_at: Option<Instant>,
    /// When the sink was opened.
    opened_at: Instant,
    /// The transactions of the sink, if it has any.
    transactions: Option<TransactionMeter>,
}

/// How an event was passed to the sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// Like all other events.
    Plain,
    /// With nothing else in flight, to find out whether the broker accepts a record of this size.
    Large,
}

impl SinkPort {
    /// Opens the sink.
    ///
    /// # Errors
    /// The halt of a pipeline whose sink can't be used.
    pub(super) fn open(spec: &CommonSpec) -> Result<Self, Halt> {
        let mailbox = Mailbox::default();
        let sink = spec.sink.open(&spec.needs(Purpose::Live), mailbox.clone());
        let mut sink = sink.map_err(|e| halts::unfit_sink(&e, spec.mode))?;
        let capabilities = spec.sink.capabilities();
        if capabilities.clusters {
            sink.hold();
        }
        let transactions = match (capabilities.transactions, sink.transactional()) {
            (None, _) => None,
            (Some(_), None) => return Err(halts::no_transactions(spec.sink.kind(), spec.mode)),
            (Some(limits), Some(sink)) => {
                Some(TransactionMeter::new(sink.id(), limits.whole_for.is_some()))
            }
        };
        Ok(Self {
            sink,
            mailbox,
            destinations: Destinations::new(&spec.name, spec.park_after),
            posts: Vec::new(),
            due: None,
            held_bytes: capabilities.held_bytes,
            clusters: capabilities.clusters,
            decided: None,
            located: false,
            reset_at: None,
            opened_at: Instant::now(),
            transactions,
        })
    }

    /// What a record costs beside its bytes.
    #[inline]
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Passes the current event to the sink. A record that the sink accepts only with nothing else in flight is
    /// accepted if the event is sent alone (`exclusive`).
    #[inline]
    pub(super) fn enqueue(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        exclusive: impl FnOnce() -> bool,
    ) -> Result<Sent, NotTaken> {
        let sent = match self.sink.enqueue(ticket, record) {
            Ok(()) => Sent::Plain,
            Err(NotTaken::Alone) if exclusive() => {
                self.sink.enqueue_alone(ticket, record, None)?;
                Sent::Large
            }
            Err(not_taken) => return Err(not_taken),
        };
        self.count_record();
        self.destinations.takes(record.topic);
        Ok(sent)
    }

    /// Passes the record of a parked event to the sink. Nothing of its aggregate is in flight, and its later events
    /// wait. Answers about its destination from before `since` do not count.
    pub(super) fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &OwnedRecord,
        since: Instant,
    ) -> Result<(), NotTaken> {
        let taken = record.lend(|record| match self.sink.enqueue_again(ticket, record, since) {
            Err(NotTaken::Alone) => self.sink.enqueue_alone(ticket, record, Some(since)),
            taken => taken,
        });
        if taken.is_ok() {
            self.count_record();
            self.destinations.took(&record.topic);
        }
        taken
    }

    /// Whether a destination accepts records. Answers from before `since` do not count.
    pub(super) fn probe(&mut self, topic: &str, since: Instant) -> Result<(), NotTaken> {
        self.sink.probe(topic, since)
    }

    /// Whether the current event, which its destination did not accept, is parked. `may_park`: the destination was
    /// never known, and its events may be parked for that.
    pub(super) fn parks(&mut self, topic: &str, may_park: bool, now: Duration) -> bool {
        self.destinations.parks(topic, may_park, now)
    }

    /// A destination did not accept the record of a parked event.
    pub(super) fn lost(&mut self, topic: &str, now: Duration) {
        self.destinations.lost(topic, now);
    }

    /// The current event waits for this destination, or for none.
    pub(super) fn awaits(&mut self, topic: Option<&str>) {
        self.destinations.awaits(topic);
    }

    /// The sink accepts no records; `topic` is the destination, if the problem is that of one destination. A
    /// destination for which only dead letters and parked events wait blocks nothing, nor does one whose current event
    /// is about to be parked. `may_park`: the destination was never known, and its events may be parked for that.
    pub(super) fn down(
        &mut self,
        topic: Option<&str>,
        may_park: bool,
        now: Duration,
    ) -> SinkProblem {
        self.destinations.down(topic, may_park, now)
    }

    /// The sink keeps the records of a destination that refuses them for now.
    pub(super) fn holds(&mut self, topic: &str) {
        self.destinations.holds(topic);
    }

    /// The destination, or with `None` the broker, accepts records again. Returns whether the intake can use the sink
    /// again.
    pub(super) fn up(&mut self, topic: Option<&str>) -> bool {
        self.destinations.up(topic)
    }

    /// Whether the reported condition of the sink is about the brokers, or about the destination that the current event
    /// waits for.
    pub(super) fn blocks_intake(&self) -> bool {
        self.destinations.blocks_intake()
    }

    /// Whether the reported condition of the sink is about the brokers.
    pub(super) fn is_of_brokers(&self) -> bool {
        self.destinations.is_of_brokers()
    }

    /// Waits for a post. Cancel-safe.
    pub(super) async fn arrived(&self) {
        self.mailbox.arrived().await;
    }

    /// The posts that have arrived. They come back by [`Self::posts_taken`].
    pub(super) fn take_posts(&mut self) -> Vec<Post> {
        let mut posts = std::mem::take(&mut self.posts);
        self.mailbox.take(&mut posts);
        posts
    }

    /// All posts are applied: lets the sink continue. `ending`: everything is to be given up, and the sink sends
    /// nothing more before its reset.
    pub(super) fn posts_taken(&mut self, posts: Vec<Post>, ending: bool) {
        self.posts = posts;
        self.due = if ending { None } else { self.sink.turn() };
    }

    /// When the sink needs its next turn.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether the sink holds no record.
    pub(super) fn is_idle(&self) -> bool {
        self.sink.is_idle()
    }

    /// Fences former producers off, if the sink publishes in transactions.
    pub(super) fn recover(&mut self, call: SinkCall) {
        if let Some(sink) = self.sink.transactional() {
            sink.recover(call);
        }
    }

    /// Commits the open transaction, if the sink publishes in transactions.
    pub(super) fn commit(&mut self, call: SinkCall, progress: &SinkProgress) {
        if let Some(sink) = self.sink.transactional() {
            sink.commit(call, progress);
        }
        if let Some(transactions) = &mut self.transactions {
            transactions.committing();
        }
    }

    /// Whether the sink publishes in transactions.
    pub(super) fn is_transactional(&self) -> bool {
        self.transactions.is_some()
    }

    /// A commit is answered. Returns how long it took.
    pub(super) fn committed(&mut self) -> Option<Duration> {
        self.transactions.as_mut()?.committed()
    }

    /// Whether transactions of the source are not to be divided.
    pub(super) fn keeps_whole(&self) -> bool {
        self.transactions.as_ref().is_some_and(TransactionMeter::keeps_whole)
    }

    /// The name by which brokers know the producers of the pipeline, if the sink has one.
    pub(super) fn transactional_id(&self) -> Option<&str> {
        self.transactions.as_ref()?.id()
    }

    /// A record is in the open transaction, if there are transactions.
    #[inline]
    fn count_record(&mut self) {
        if let Some(transactions) = &mut self.transactions {
            transactions.record();
        }
    }

    /// The process owns the pipeline as the owner of this epoch.
    pub(super) fn owned_as(&mut self, epoch: i64) {
        if let Some(transactions) = &mut self.transactions {
            transactions.owned_as(epoch);
        }
    }

    /// What the status shows of the sink's transactions, without the progress; `None` if there are none.
    pub(super) fn transactions(&mut self) -> Option<TransactionsSummary> {
        let fenced_total = self.sink.transactional().and_then(|sink| sink.fenced_total());
        let summary = self.transactions.as_ref()?.summary();
        Some(TransactionsSummary { fenced_total, ..summary })
    }

    /// Gives up everything that the sink holds.
    pub(super) fn reset(&mut self) {
        self.reset_at = Some(Instant::now());
        if let Some(transactions) = &mut self.transactions {
            transactions.given_up();
        }
        self.sink.reset();
    }

    /// When the sink was last reset.
    pub(super) fn reset_at(&self) -> Option<Instant> {
        self.reset_at
    }

    pub(super) fn close(&mut self, longest: Duration) {
        self.sink.close(longest);
    }

    /// Closes the sink for a pause.
    pub(super) fn suspend(&mut self, longest: Duration) {
        self.sink.close(longest);
        self.sink = Box::new(ClosedSink);
        if let Some(transactions) = &mut self.transactions {
            transactions.given_up();
        }
    }

    /// Opens the sink again after a pause. What was counted stays.
    ///
    /// # Errors
    /// The halt of a pipeline whose sink can't be used.
    pub(super) fn reopen(&mut self, spec: &CommonSpec) -> Result<(), Halt> {
        let closed = std::mem::replace(self, Self::open(spec)?);
        self.reset_at = closed.reset_at;
        self.transactions = closed.transactions.or(self.transactions.take());
        Ok(())
    }

    /// When the sink was opened.
    pub(super) fn opened_at(&self) -> Instant {
        self.opened_at
    }

    /// The cluster of the brokers that have answered.
    pub(super) fn cluster(&self) -> Option<String> {
        self.sink.cluster()
    }

    /// Whether no broker has reported its cluster yet.
    pub(super) fn awaits_cluster(&self) -> bool {
        self.clusters && self.sink.cluster().is_none()
    }

    /// The next start is decided for the cluster that the brokers belong to now.
    pub(super) fn decide_cluster(&mut self) {
        (self.decided, self.located) = (self.sink.cluster(), false);
    }

    /// The cluster for which the last start was decided.
    pub(super) fn decided_cluster(&self) -> Option<&str> {
        self.decided.as_deref()
    }

    /// Allows records to be published to the cluster for which the start was decided. If that cluster is not known,
    /// nothing is published, not even to the cluster of an earlier session: another process may have moved the position
    /// forward in another cluster since.
    pub(super) fn admit(&mut self) {
        if self.clusters {
            match &self.decided {
                Some(cluster) => self.sink.admit(cluster),
                None => self.sink.hold(),
            }
        }
        // A broker may have answered since the decision.
        self.compare_cluster();
    }

    /// Notes whether the brokers belong to another cluster than the one for which the start was decided.
    pub(super) fn compare_cluster(&mut self) {
        let found = self.sink.cluster();
        self.located |= found.is_some() && found != self.decided;
    }

    /// Whether the brokers belong to another cluster than the one for which the start was decided.
    pub(super) fn is_located(&self) -> bool {
        self.located
    }

    /// Replaces the sink.
    #[cfg(test)]
    pub(super) fn replace(&mut self, sink: Box<dyn Sink>) -> Mailbox {
        self.sink = sink;
        self.mailbox.clone()
    }
}

/// The sink while the pipeline is paused: it takes nothing, and holds nothing.
struct ClosedSink;

impl Sink for ClosedSink {
    fn enqueue(&mut self, _ticket: Ticket, _record: &Record<'_>) -> Result<(), NotTaken> {
        Err(NotTaken::Full)
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn reset(&mut self) {}

    fn close(&mut self, _longest: Duration) {}
}
