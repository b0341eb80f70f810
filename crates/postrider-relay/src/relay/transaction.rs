//! When a sink that publishes in transactions commits, and what its commit resolves.
//!
//! Such a sink reports an event as soon as the open transaction has its record. The event is published only by the
//! commit, which stores the relay's progress in the sink as well. So the report of an event resolves nothing: its
//! ticket is resolved when the transaction is committed, and the cursor row and the confirmation follow as with any
//! other sink.
//!
//! ```text
//! RecoverSink ─▶ (recovered) ─▶ WriteCursor ─▶ (written) ─▶ Publish, Attempt … ─▶ (reports)
//!             ─▶ CommitSink ─▶ (committed) ─▶ WriteCursor ─▶ (written) ─▶ Confirm
//! ```
//!
//! The progress that a commit stores covers every event of its transaction, and no other event. So the intake closes
//! before a commit, until every event handed over is reported and every parked row is committed, and stays closed until
//! the commit is answered. If the answer is lost, the relay starts again, and the sink says which progress it has.
//!
//! A start reads the parked rows, then fences former producers off, and then writes the cursor row. Without the write,
//! another process could have become the owner after the rows were read, and have published some of these parked events
//! before its producer was fenced off.
//!
//! Polling and repair are refused ([`PollingRefused`]).

use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use postrider_core::event::Position;
use postrider_core::parked::Request;
use postrider_core::record::Ticket;
use postrider_core::sink::{SinkCall, TransactionLimits};
use postrider_core::timestamp::Timestamp;
use std::time::Duration;

/// A sink that publishes in transactions does not go with polling or a repair: the positions of claims belong to one
/// process. After the answer to a commit is lost, or a process has ended, the progress that the sink has stored could
/// not be compared with a claim of the next process, and its rows would be published twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a sink that publishes in transactions needs a stream: the rows that polling or a repair claims have no position \
     that outlasts the process"
)]
pub struct PollingRefused;

/// An event of the stream whose record is in the open transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentEvent {
    pub(super) ticket: Ticket,
    pub(super) commit_time: Timestamp,
}

/// What a commit has resolved.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) events: Vec<SentEvent>,
    /// Attempts of parked events, and dead letters.
    pub(super) attempts: Vec<Ticket>,
}

/// The progress that the sink has stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stored {
    /// The sink stores none.
    NotAsked,
    /// The producer is new, or the answer to its recovery is outstanding.
    Unknown,
    /// The last progress that is known to be stored; that of the cursor row if there was none.
    At(Progress),
}

/// The sink has stored less than it had stored before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LostProgress {
    /// What it has stored.
    pub(super) stored: Progress,
    /// What it must have stored at least.
    pub(super) known: Progress,
    /// The source was confirmed up to `known`, and may lack events that the sink has lost. Else it has all of them.
    pub(super) confirmed: bool,
}

/// What the relay waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TransactionStage {
    /// Nothing was recovered from the producer yet: nothing is handed over to it.
    New,
    /// [`Effect::RecoverSink`](super::Effect::RecoverSink) is not answered yet.
    Recovering,
    /// The cursor row is written, to find out whether this process is still the owner.
    Verifying,
    /// Events are added.
    Open,
    /// No event is added any more; the events handed over are not all reported.
    Closing,
    /// [`Effect::CommitSink`](super::Effect::CommitSink) is not answered yet, and stores this progress.
    Committing(Progress),
}

/// The transaction of the sink.
#[derive(Debug)]
pub(super) struct SinkTransaction {
    /// `None` for a sink that publishes without transactions: then nothing here has an effect.
    limits: Option<TransactionLimits>,
    stage: TransactionStage,
    /// The last call of the sink.
    call: SinkCall,
    stored: Option<Progress>,
    /// The last progress that this process knows to be stored; kept when the producer is discarded.
    committed: Option<Progress>,
    events: Vec<SentEvent>,
    attempts: Vec<Ticket>,
    bytes: u64,
    /// When the first event of the transaction was reported.
    began: Option<Duration>,
    /// When the transaction before was closed, unless it was large.
    closed: Option<Duration>,
    /// Requests of operators that wait for the recovery.
    requests: Vec<(Position, Request)>,
}

impl SinkTransaction {
    pub(super) fn new(limits: Option<TransactionLimits>) -> Self {
        Self {
            limits,
            stage: TransactionStage::New,
            call: SinkCall::default(),
            stored: None,
            committed: None,
            events: Vec::new(),
            attempts: Vec::new(),
            bytes: 0,
            began: None,
            closed: None,
            requests: Vec::new(),
        }
    }

    /// Whether the sink publishes in transactions.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.limits.is_some()
    }

    /// Whether an event may be handed over to the sink.
    #[inline]
    pub(super) fn admits(&self) -> bool {
        let admits = matches!(self.stage, TransactionStage::Committing(_))
            && injected(Bug::AdmitsDuringCommit);
        self.limits.is_none() || self.stage == TransactionStage::Open || admits
    }

    /// Whether the sink has said what it has, or is not asked.
    pub(super) fn is_recovered(&self) -> bool {
        self.limits.is_none()
            || !matches!(self.stage, TransactionStage::New | TransactionStage::Recovering)
    }

    /// Whether a recovery was begun on this producer.
    pub(super) fn is_used(&self) -> bool {
        self.is_on() && self.stage != TransactionStage::New
    }

    /// Whether the cursor row has to be written before an event is handed over.
    pub(super) fn verifies(&self) -> bool {
        self.stage == TransactionStage::Verifying
    }

    /// Whether a commit is in progress, or may be begun.
    pub(super) fn can_commit(&self) -> bool {
        matches!(
            self.stage,
            TransactionStage::Open | TransactionStage::Closing | TransactionStage::Committing(_)
        )
    }

    /// The progress that the sink has stored.
    pub(super) fn stored(&self) -> Stored {
        match self.stored {
            _ if self.limits.is_none() => Stored::NotAsked,
            Some(progress) => Stored::At(progress),
            None => Stored::Unknown,
        }
    }

    /// What the next event waits for, as `status` and the log show it.
    pub(super) fn waits_for(&self) -> &'static str {
        match self.stage {
            TransactionStage::New | TransactionStage::Recovering => {
                "the sink to end the transaction of its former producer"
            }
            TransactionStage::Verifying => "the source's database to commit the cursor row",
            TransactionStage::Open
            | TransactionStage::Closing
            | TransactionStage::Committing(_) => "the commit of the sink's transaction",
        }
    }

    /// Whether the transaction has no event.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.attempts.is_empty()
    }

    /// Whether transactions of the source are not divided.
    #[inline]
    pub(super) fn keeps_whole(&self) -> bool {
        self.limits.is_some_and(|limits| limits.whole_for.is_some())
    }

    /// Whether a bound on the size is reached by the transaction and by the events and bytes of the stream that are
    /// handed over and not reported. `within`: a transaction of the source that is not to be divided has begun. Below
    /// the bounds there was room for one of their size.
    #[inline]
    pub(super) fn is_full(&self, (events, bytes): (u64, u64), within: bool) -> bool {
        let Some(limits) = self.limits else { return false };
        let times = if within { 2 } else { 1 };
        let sent = (self.events.len() + self.attempts.len()) as u64;
        let (records, bytes) = (sent + events, self.bytes + bytes);
        records >= (limits.records_max as u64).max(1) * times
            || bytes >= limits.bytes_max.max(1).saturating_mul(times)
    }

    /// The attempts and the dead letters in the transaction.
    #[inline]
    pub(super) fn attempts(&self) -> &[Ticket] {
        &self.attempts
    }

    /// A record of the stream is in the transaction.
    pub(super) fn sent(&mut self, now: Duration, event: SentEvent, size_bytes: u64) {
        self.began.get_or_insert(now);
        self.bytes += size_bytes;
        self.events.push(event);
    }

    /// The record of an attempt, or of a dead letter, is in the transaction.
    pub(super) fn sent_attempt(&mut self, now: Duration, ticket: Ticket) {
        self.began.get_or_insert(now);
        self.attempts.push(ticket);
    }

    /// A stream starts. Returns the call if the sink has to recover first, because its producer is new.
    pub(super) fn recovers(&mut self) -> Option<SinkCall> {
        if !self.is_on() || self.stage != TransactionStage::New {
            return None;
        }
        self.stage = TransactionStage::Recovering;
        Some(self.next_call())
    }

    /// A request of an operator waits for the recovery.
    pub(super) fn defer(&mut self, position: Position, request: Request) {
        self.requests.push((position, request));
    }

    /// The sink has recovered, and has stored this progress. Returns the requests that have waited; `None` if the
    /// answer is not awaited.
    pub(super) fn recovered(
        &mut self,
        call: SinkCall,
        stored: Progress,
    ) -> Option<Vec<(Position, Request)>> {
        if self.stage != TransactionStage::Recovering || !self.is_last(call) {
            return None;
        }
        let trusts = injected(Bug::TrustsRecovery);
        self.stage = if trusts { TransactionStage::Open } else { TransactionStage::Verifying };
        self.stored = Some(stored);
        Some(std::mem::take(&mut self.requests))
    }

    /// The cursor row is written: this process is the owner, and no other producer can commit.
    pub(super) fn verified(&mut self) {
        if self.stage == TransactionStage::Verifying {
            self.stage = TransactionStage::Open;
        }
    }

    /// The connection to the source is lost. A recovery that is not complete is repeated by the next stream.
    pub(super) fn disconnected(&mut self) {
        if matches!(self.stage, TransactionStage::Recovering | TransactionStage::Verifying) {
            self.discard();
        }
    }

    /// The producer is discarded, and its transaction with it.
    pub(super) fn discard(&mut self) {
        let (call, committed) = (self.call, self.committed);
        *self = Self { call, committed, ..Self::new(self.limits) };
    }

    /// The cursor row counts, and not what this process has seen: another process may have continued.
    pub(super) fn forget(&mut self) {
        self.discard();
        self.committed = None;
    }

    /// What the sink has lost, if it has stored less than before: less than the cursor row has, which is written after
    /// a commit, or less than this process has seen to be committed. The server of the sink may have failed over to
    /// one that lacks the last commits.
    pub(super) fn lost(&self, stored: Option<Progress>, row: Progress) -> Option<LostProgress> {
        let is_below = |stored: Progress, known: Progress| {
            stored.position() < known.position() || stored.watermark < known.watermark
        };
        match (stored, self.committed) {
            // What the sink had was confirmed up to the cursor row.
            (None, Some(_)) => {
                Some(LostProgress { stored: Progress::default(), known: row, confirmed: true })
            }
            (Some(stored), _) if is_below(stored, row) => {
                Some(LostProgress { stored, known: row, confirmed: true })
            }
            (Some(stored), Some(committed)) if is_below(stored, committed) => {
                Some(LostProgress { stored, known: committed, confirmed: false })
            }
            // A sink without any progress is a new one, unless this process has committed to it.
            (None, None) | (Some(_), _) => None,
        }
    }

    /// Closes the transaction if it has an event and its time is over or `at_once`, and if it is to be committed even
    /// without an event (`anyway`). `within`: a transaction of the source that is not to be divided has begun.
    pub(super) fn close_if_due(
        &mut self,
        now: Duration,
        (at_once, within): (bool, bool),
        anyway: bool,
    ) {
        let due = at_once || self.due_at(within).is_some_and(|due| due <= now);
        if self.stage == TransactionStage::Open && (!self.is_empty() && due || anyway) {
            self.stage = TransactionStage::Closing;
            self.closed = Some(now);
        }
    }

    /// Whether the commit begins now. `settled`: every event that was handed over is reported, and every parked row is
    /// committed.
    pub(super) fn commits(&self, settled: bool) -> bool {
        self.stage == TransactionStage::Closing && (settled || injected(Bug::CommitsUnsettled))
    }

    /// Begins the commit, which stores this progress.
    pub(super) fn call_commit(&mut self, progress: Progress) -> SinkCall {
        self.stage = TransactionStage::Committing(progress);
        self.next_call()
    }

    /// A commit is done. Returns what it has resolved; `None` if the answer is not awaited.
    pub(super) fn committed(&mut self, call: SinkCall) -> Option<Committed> {
        let TransactionStage::Committing(progress) = self.stage else { return None };
        if !self.is_last(call) {
            return None;
        }
        let events = std::mem::take(&mut self.events);
        let attempts = std::mem::take(&mut self.attempts);
        (self.stage, self.bytes, self.began) = (TransactionStage::Open, 0, None);
        self.closed = self.closed.filter(|_| !self.is_large(events.len()));
        self.stored = Some(progress);
        self.committed = Some(progress);
        Some(Committed { events, attempts })
    }

    /// When the transaction is closed, if nothing else happens. `within` as in [`Self::close_if_due`].
    #[inline]
    pub(super) fn deadline(&self, within: bool) -> Option<Duration> {
        self.due_at(within).filter(|_| self.stage == TransactionStage::Open)
    }

    /// An event that has come during the commit before has waited for it already, so the interval counts from the close
    /// before that commit: an event waits no longer than the interval and its own commit. After a large transaction,
    /// which shows that more events come than can be published in time, the interval counts from the first event, so
    /// that the commit takes no part of it.
    fn due_at(&self, within: bool) -> Option<Duration> {
        let (began, limits) = (self.began?, self.limits?);
        if let Some(whole_for) = limits.whole_for.filter(|_| within) {
            return Some(began.saturating_add(whole_for.max(limits.interval)));
        }
        let due = self.closed.unwrap_or(began).saturating_add(limits.interval);
        Some(due.max(began))
    }

    /// Whether a transaction of so many events is a quarter of the bound or more.
    fn is_large(&self, events: usize) -> bool {
        self.limits.is_some_and(|limits| events >= limits.records_max.div_ceil(4))
    }

    fn next_call(&mut self) -> SinkCall {
        self.call.0 += 1;
        self.call
    }

    /// The progress that counts as stored: what the sink says. With an injected bug, what this process has seen.
    pub(super) fn believed(&self, stored: Progress) -> Progress {
        let seen = self.committed.filter(|_| injected(Bug::UnknownIsNotCommitted));
        seen.unwrap_or(stored)
    }

    /// The last call of the sink.
    pub(super) const fn last_call(&self) -> SinkCall {
        self.call
    }

    /// Whether this is the last call.
    fn is_last(&self, call: SinkCall) -> bool {
        call == self.call || injected(Bug::TakesOldAnswers)
    }
}

/// What a sink that publishes in transactions has committed, as it answers to
/// [`Effect::RecoverSink`](super::Effect::RecoverSink).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// The progress of the last transaction; `None` if there is none.
    pub progress: Option<Progress>,
    /// The parked events that the last transaction listed.
    pub attempts: Vec<Position>,
}
