//! The fake of a sink that publishes in transactions: what it has committed, and the calls on their way to it.
//!
//! A producer keeps the records of its open transaction ([`Producer`](super::broker::Producer)). They become visible
//! together with the progress of the relay, when the sink executes the commit: at once, or after the process that has
//! called it is dead. A recovery makes its producer the only one whose commits are executed; a commit belongs to the
//! last recovery that its producer has called. A commit may be refused, and the answer to a call may be lost or late.
//!
//! Where brokers coordinate the transactions ([`CoordinatorRules`]), as Kafka's do, a recovery has two calls: the first
//! one fences former producers off, the second one reads the progress. A commit may be visible to readers late, behind
//! the open transaction of another pipeline; its call may be lost; a client that waits for the answer repeats the call,
//! which then commits what the producer has sent since; and a transaction that is open for too long is aborted.

use super::broker::ClosedTransaction;
use super::plan::{CoordinatorRules, SinkRules};
use super::postgres::Server;
use super::rng::Rng;
use super::truth::Truth;
use super::{Check, wrong};
use crate::ack::Progress;
use crate::ack::bug::{Bug, injected};
use crate::relay::Recovered;
use postrider_core::event::Position;
use postrider_core::sink::SinkCall;

/// A producer, among all that ever were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Caller {
    pub(super) process: usize,
    /// Which life of the process: it may die and be started again.
    pub(super) life: u64,
    /// The number of the producer in this life.
    pub(super) producer: u64,
}

/// What is called.
#[derive(Debug)]
pub(super) enum Request {
    Recover,
    /// The second call of a recovery. With an injected bug, the first one has read this already.
    Read {
        early: Option<EarlyRead>,
    },
    Commit(CommitRequest),
    /// A commit of the producer with this recovery is called again.
    CommitAgain {
        recovery: SinkCall,
    },
}

/// A commit.
#[derive(Debug)]
pub(super) struct CommitRequest {
    pub(super) closed: ClosedTransaction,
    pub(super) progress: Progress,
    pub(super) attempts: Vec<Position>,
    /// When it was called.
    pub(super) called: u64,
}

/// What a commit has stored: the progress, and the parked events that were attempted.
type StoredCommit = (Progress, Vec<Position>);

/// What was read before former producers were fenced off.
#[derive(Clone, Debug)]
pub(super) struct EarlyRead(Option<StoredCommit>);

/// What an execution has done.
#[derive(Debug, Default)]
pub(super) struct Executed {
    /// In words, for the transcript.
    pub(super) what: Option<String>,
    /// The open transaction of this producer is committed, by the repetition of an earlier call.
    pub(super) commits_open: Option<Caller>,
}

/// A commit that readers do not see yet.
#[derive(Debug)]
struct Hidden {
    until: u64,
    /// What they see meanwhile.
    shown: Option<StoredCommit>,
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub(super) enum SinkAnswer {
    Recovered(SinkCall, Recovered),
    Committed {
        call: SinkCall,
        /// Its client has called it a second time, without an answer to the first call.
        twice: bool,
    },
    /// The call is refused, or this producer may not commit any more.
    Failed,
    /// No answer is ever received.
    Lost,
}

/// Maximum delay of a late call or answer. Unit: milliseconds.
const LATE_MAX: u64 = 400;

/// Maximum time for which a commit is not visible. Unit: milliseconds.
const HIDDEN_MAX: u64 = 600;

/// After so long without an answer a client may call again. Unit: milliseconds.
const CALLED_AGAIN: u64 = 200;

/// The sink.
#[derive(Debug)]
pub(super) struct TransactionalSink {
    pub(super) rules: SinkRules,
    rng: Rng,
    /// Decides what only a coordinator does. A generator of its own leaves the draws of `rng` as they were.
    coordinator: Rng,
    /// The only producer that may commit, and its recovery.
    owner: Option<(Caller, SinkCall)>,
    /// What the last commit has stored.
    stored: Option<StoredCommit>,
    hidden: Option<Hidden>,
    /// What is on its way, and when it arrives.
    calls: Vec<(u64, Caller, SinkCall, Request)>,
    answers: Vec<(u64, Caller, SinkAnswer)>,
    /// Number of lives of processes so far.
    lives: u64,
}

impl TransactionalSink {
    pub(super) fn new(rules: SinkRules, seed: u64) -> Self {
        Self {
            rules,
            rng: Rng::new(seed),
            coordinator: Rng::new(!seed),
            owner: None,
            stored: None,
            hidden: None,
            calls: Vec::new(),
            answers: Vec::new(),
            lives: 0,
        }
    }

    /// A process starts: the number of its life.
    pub(super) fn next_life(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// Sends a call.
    pub(super) fn call(&mut self, now: u64, caller: Caller, call: SinkCall, request: Request) {
        let at = self.arrives_at(now);
        self.calls.push((at, caller, call, request));
    }

    fn arrives_at(&mut self, now: u64) -> u64 {
        now + if self.rng.chance(self.rules.late) { self.rng.range(1, LATE_MAX) } else { 0 }
    }

    /// One of those that have arrived.
    fn arrived(&mut self, now: u64, times: impl Iterator<Item = u64>) -> Option<usize> {
        let due: Vec<usize> =
            times.enumerate().filter(|(_, at)| *at <= now).map(|(index, _)| index).collect();
        if due.is_empty() { None } else { Some(due[self.rng.index(due.len())]) }
    }

    /// Whether a call or an answer is on its way.
    pub(super) fn is_busy(&self) -> bool {
        !self.calls.is_empty() || !self.answers.is_empty()
    }

    /// Executes one of the calls.
    pub(super) fn execute(
        &mut self,
        now: u64,
        truth: &mut Truth,
        server: &mut Server,
    ) -> Check<Executed> {
        let times: Vec<u64> = self.calls.iter().map(|(at, ..)| *at).collect();
        let Some(arrived) = self.arrived(now, times.into_iter()) else {
            return Ok(Executed::default());
        };
        let (_, caller, call, request) = self.calls.remove(arrived);
        let since = if let Request::Commit(commit) = &request { commit.called } else { now };
        let (mut answer, what) = match request {
            Request::CommitAgain { recovery } => return Ok(self.commit_again(caller, recovery)),
            // A second call is that of a client whose first one was executed.
            Request::Read { early } => match self.read(now, caller, call, early) {
                Some(read) => read,
                None => return Ok(Executed::default()),
            },
            Request::Recover | Request::Commit(_) if self.rng.chance(self.rules.refused) => {
                (SinkAnswer::Failed, "refuses a call".to_owned())
            }
            Request::Recover if self.rules.coordinator.on => {
                return Ok(self.fence(now, caller, call));
            }
            Request::Recover => {
                self.owner = Some((caller, call));
                Self::recovered(caller, call, self.stored.clone())
            }
            Request::Commit(commit) => self.commit((now, caller, call), commit, truth, server)?,
        };
        let lost = self.rng.chance(self.rules.answer_lost);
        let at = self.arrives_at(now);
        if let SinkAnswer::Committed { twice, .. } = &mut answer {
            *twice = self.call_again((caller, call), if lost { u64::MAX } else { at }, since);
        }
        self.answers.push((at, caller, if lost { SinkAnswer::Lost } else { answer }));
        Ok(Executed { what: Some(what), commits_open: None })
    }

    fn recovered(
        caller: Caller,
        call: SinkCall,
        stored: Option<StoredCommit>,
    ) -> (SinkAnswer, String) {
        let (progress, attempts) = stored.unzip();
        let attempts = attempts.unwrap_or_default();
        let what = format!("recovers {progress:?} {attempts:?} for {caller:?}");
        (SinkAnswer::Recovered(call, Recovered { progress, attempts }), what)
    }

    /// The first call of a recovery: the producer is the only one. The second call is on its way then.
    fn fence(&mut self, now: u64, caller: Caller, call: SinkCall) -> Executed {
        let early = injected(Bug::ReadsBeforeFencing).then(|| EarlyRead(self.stored.clone()));
        if early.is_none() {
            self.owner = Some((caller, call));
        }
        let at = self.arrives_at(now);
        self.calls.push((at, caller, call, Request::Read { early }));
        Executed { what: Some(format!("fences for {caller:?}")), commits_open: None }
    }

    /// The second call of a recovery. `None` while the last commit is not visible to readers.
    fn read(
        &mut self,
        now: u64,
        caller: Caller,
        call: SinkCall,
        early: Option<EarlyRead>,
    ) -> Option<(SinkAnswer, String)> {
        if let Some(EarlyRead(early)) = early {
            self.owner = Some((caller, call));
            return Some(Self::recovered(caller, call, early));
        }
        let hidden = self.hidden.as_ref().filter(|hidden| hidden.until > now);
        let seen = match hidden {
            None => self.stored.clone(),
            Some(hidden) if injected(Bug::ReadsBeforeStableEnd) => hidden.shown.clone(),
            Some(hidden) => {
                self.calls.push((hidden.until, caller, call, Request::Read { early: None }));
                return None;
            }
        };
        Some(Self::recovered(caller, call, seen))
    }

    fn commit(
        &mut self,
        (now, caller, call): (u64, Caller, SinkCall),
        commit: CommitRequest,
        truth: &mut Truth,
        server: &mut Server,
    ) -> Check<(SinkAnswer, String)> {
        let CommitRequest { closed, progress, attempts, called: _ } = commit;
        let ClosedTransaction { recovery, mut records, began } = closed;
        let CoordinatorRules { call_lost, hidden, time_out, .. } = self.rules.coordinator;
        let failed = |what: String| Ok((SinkAnswer::Failed, what));
        if injected(Bug::ProgressOutsideTransaction) {
            self.stored = Some((progress, attempts.clone()));
        }
        if self.coordinator.chance(call_lost) {
            return Ok((SinkAnswer::Lost, "loses the call of a commit".to_owned()));
        }
        if self.owner != Some((caller, recovery)) && !injected(Bug::CommitsFenced) {
            return failed(format!("fences off a commit of {caller:?}"));
        }
        if time_out > 0 && began.is_some_and(|began| now - began > time_out) {
            if !injected(Bug::CommitsAfterTimeOut) {
                self.owner = None;
                return failed(format!("has aborted the transaction of {caller:?}"));
            }
            records.drain(..records.len() / 2);
        }
        let events: Vec<_> = records.iter().map(|record| record.event).collect();
        for record in records {
            truth.show(record.event, record.version)?;
        }
        let back = |(before, _): &StoredCommit| {
            before.position() > progress.position() || before.watermark > progress.watermark
        };
        if self.stored.as_ref().is_some_and(back) {
            return wrong("the progress that the sink has stored goes back".into());
        }
        server.check_below(truth, progress.watermark.offset().get(), progress.partial)?;
        let what = format!("commits {events:?} {progress:?} {attempts:?} for {caller:?}");
        if self.hidden.as_ref().is_some_and(|hidden| hidden.until <= now) {
            self.hidden = None;
        }
        if self.coordinator.chance(hidden) && self.hidden.is_none() {
            let until = now + self.coordinator.range(1, HIDDEN_MAX);
            self.hidden = Some(Hidden { until, shown: self.stored.clone() });
        }
        self.stored = Some((progress, attempts));
        Ok((SinkAnswer::Committed { call, twice: false }, what))
    }

    /// A client that has no answer yet may call a second time. `answered`: when the answer arrives, `since`: when it
    /// called. Returns whether it calls again.
    fn call_again(
        &mut self,
        (caller, call): (Caller, SinkCall),
        answered: u64,
        since: u64,
    ) -> bool {
        let Some((_, recovery)) = self.owner.filter(|_| answered - since >= CALLED_AGAIN) else {
            return false;
        };
        let again = self.coordinator.chance(self.rules.coordinator.sent_twice);
        if again {
            let at = since + CALLED_AGAIN + self.coordinator.range(0, LATE_MAX);
            self.calls.push((at, caller, call, Request::CommitAgain { recovery }));
        }
        again
    }

    fn commit_again(&self, caller: Caller, recovery: SinkCall) -> Executed {
        if self.owner != Some((caller, recovery)) {
            return Executed::default();
        }
        let what = Some(format!("commits again for {caller:?}"));
        Executed { what, commits_open: Some(caller) }
    }

    /// One of the answers arrives.
    pub(super) fn answer(&mut self, now: u64) -> Option<(Caller, SinkAnswer)> {
        let times: Vec<u64> = self.answers.iter().map(|(at, ..)| *at).collect();
        let arrived = self.arrived(now, times.into_iter())?;
        let (_, caller, answer) = self.answers.remove(arrived);
        Some((caller, answer))
    }

    /// The cursor row is written. It must not be ahead of what the sink has stored.
    pub(super) fn check_row(&self, before: Progress, row: Progress) -> Check {
        let stored = self.stored.as_ref().map_or(before, |(stored, _)| *stored);
        if row.position() > stored.position().max(before.position()) {
            return wrong(format!(
                "the cursor row {row:?} is ahead of the sink's progress {stored:?}"
            ));
        }
        Ok(())
    }
}
