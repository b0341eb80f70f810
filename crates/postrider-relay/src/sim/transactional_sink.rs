//! The fake of a sink that publishes in transactions: what it has committed, and the calls on their way to it.
//!
//! A producer keeps the records of its open transaction ([`Producer`](super::broker::Producer)). They become visible
//! together with the progress of the relay, when the sink executes the commit: at once, or after the process that has
//! called it is dead. A recovery makes its producer the only one whose commits are executed; a commit belongs to the
//! last recovery that its producer has called. A commit may be refused, and the answer to a call may be lost or late.

use super::broker::Record;
use super::plan::SinkRules;
use super::postgres::Server;
use super::rng::Rng;
use super::truth::Truth;
use super::{Check, wrong};
use crate::ack::Progress;
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
    Commit {
        /// The last recovery that its producer had called.
        recovery: SinkCall,
        records: Vec<Record>,
        progress: Progress,
        attempts: Vec<Position>,
    },
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub(super) enum SinkAnswer {
    Recovered(SinkCall, Recovered),
    Committed(SinkCall),
    /// The call is refused, or this producer may not commit any more.
    Failed,
    /// No answer is ever received.
    Lost,
}

/// Maximum delay of a late call or answer. Unit: milliseconds.
const LATE_MAX: u64 = 400;

/// The sink.
#[derive(Debug)]
pub(super) struct TransactionalSink {
    pub(super) rules: SinkRules,
    rng: Rng,
    /// The only producer that may commit, and its recovery.
    owner: Option<(Caller, SinkCall)>,
    /// What the last commit has stored.
    stored: Option<(Progress, Vec<Position>)>,
    /// What is on its way, and when it arrives.
    calls: Vec<(u64, Caller, SinkCall, Request)>,
    answers: Vec<(u64, Caller, SinkAnswer)>,
    /// Number of lives of processes so far.
    lives: u64,
}

impl TransactionalSink {
    pub(super) fn new(rules: SinkRules, seed: u64) -> Self {
        let (calls, answers) = (Vec::new(), Vec::new());
        Self { rules, rng: Rng::new(seed), owner: None, stored: None, calls, answers, lives: 0 }
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

    /// Executes one of the calls. Returns what happened, for the transcript.
    pub(super) fn execute(
        &mut self,
        now: u64,
        truth: &mut Truth,
        server: &mut Server,
    ) -> Check<Option<String>> {
        let times: Vec<u64> = self.calls.iter().map(|(at, ..)| *at).collect();
        let Some(arrived) = self.arrived(now, times.into_iter()) else { return Ok(None) };
        let (_, caller, call, request) = self.calls.remove(arrived);
        let refused = self.rng.chance(self.rules.refused);
        let (answer, what) = match request {
            _ if refused => (SinkAnswer::Failed, "refuses a call".to_owned()),
            Request::Recover => {
                self.owner = Some((caller, call));
                let (progress, attempts) = self.stored.clone().unzip();
                let attempts = attempts.unwrap_or_default();
                let what = format!("recovers {progress:?} {attempts:?} for {caller:?}");
                (SinkAnswer::Recovered(call, Recovered { progress, attempts }), what)
            }
            Request::Commit { recovery, .. } if self.owner != Some((caller, recovery)) => {
                (SinkAnswer::Failed, format!("fences off a commit of {caller:?}"))
            }
            Request::Commit { records, progress, attempts, .. } => {
                let events: Vec<_> = records.iter().map(|record| record.event).collect();
                for record in records {
                    truth.show(record.event, record.version)?;
                }
                let back = |(before, _): &(Progress, Vec<Position>)| {
                    before.position() > progress.position() || before.watermark > progress.watermark
                };
                if self.stored.as_ref().is_some_and(back) {
                    return wrong("the progress that the sink has stored goes back".into());
                }
                let upto = progress.watermark.offset().get();
                server.check_below(truth, upto, progress.partial)?;
                let what = format!("commits {events:?} {progress:?} {attempts:?} for {caller:?}");
                self.stored = Some((progress, attempts));
                (SinkAnswer::Committed(call), what)
            }
        };
        let lost = self.rng.chance(self.rules.answer_lost);
        let at = self.arrives_at(now);
        self.answers.push((at, caller, if lost { SinkAnswer::Lost } else { answer }));
        Ok(Some(what))
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
