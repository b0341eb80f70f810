//! The fake broker and its client: records by partition, batches, and their reports.

use super::plan::{Bad, Knobs};
use super::rng::Rng;
use super::truth::Truth;
use super::{Check, Recovered, Stop, wrong};
use postrider_core::record::{Outcome, Refusal, RefusalKind, Scope, Ticket};
use postrider_core::sink::SinkCall;
use std::collections::{HashMap, VecDeque};

/// Maximum time until a new producer can send. Unit: milliseconds.
const STARTUP_MAX: u64 = 20;

/// The outcome of a record that is too large for the broker.
pub(super) const TOO_LARGE: Outcome =
    Outcome::Rejected { scope: Scope::Event, reason: Refusal::too_large_compressed(9, 8) };

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) ticket: Ticket,
    pub(super) event: usize,
    pub(super) version: u32,
}

/// What a sink posts to the mailbox.
#[derive(Clone, Debug)]
pub(super) enum Post {
    /// `by` is the number of the producer that took the record.
    Report {
        record: Record,
        outcome: Outcome,
        by: u64,
    },
    Broken,
    Recovered(SinkCall, Recovered),
    Committed(SinkCall),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    Full,
    Destination,
    Refused(Refusal),
}

/// What a sink with transactions has of one that is not committed.
#[derive(Debug, Default)]
struct OpenTransaction {
    /// The last recovery that the producer has called.
    recovery: SinkCall,
    records: Vec<Record>,
    /// When its first record was taken.
    began: Option<u64>,
}

/// A transaction that is to be committed.
#[derive(Debug)]
pub(super) struct ClosedTransaction {
    /// The last recovery that the producer has called.
    pub(super) recovery: SinkCall,
    pub(super) records: Vec<Record>,
    /// When the broker took its first record.
    pub(super) began: Option<u64>,
}

/// One producer of a process, and the broker's end of it.
#[derive(Debug)]
pub(super) struct Producer {
    /// Its number among the producers of its process.
    pub(super) number: u64,
    partitions: Vec<VecDeque<Record>>,
    /// Partitions that lack a record: no later record is ever written.
    stuck: Vec<bool>,
    reports: VecDeque<Post>,
    /// Events of batches that were refused.
    refused: Vec<usize>,
    failed: bool,
    pub(super) broken_due: bool,
    /// A report was lost, and is never received.
    pub(super) silent: bool,
    ready_from: u64,
    /// The open transaction, if the sink publishes in transactions.
    open: Option<OpenTransaction>,
    /// The number of the life of its process, and the events of tickets, if the sink publishes in transactions.
    pub(super) life: u64,
    pub(super) tickets: HashMap<Ticket, usize>,
}

impl Producer {
    pub(super) fn new(knobs: &Knobs, number: u64, ready_from: u64) -> Self {
        Self {
            number,
            partitions: vec![VecDeque::new(); knobs.partitions],
            stuck: vec![false; knobs.partitions],
            reports: VecDeque::new(),
            refused: Vec::new(),
            failed: false,
            broken_due: false,
            silent: false,
            ready_from,
            open: knobs.settings.transactions.is_some().then(OpenTransaction::default),
            life: 0,
            tickets: HashMap::new(),
        }
    }

    /// A recovery is called: the open transaction is discarded.
    pub(super) fn recover(&mut self, recovery: SinkCall) {
        if let Some(open) = &mut self.open {
            *open = OpenTransaction { recovery, ..OpenTransaction::default() };
        }
    }

    /// Takes the records of the open transaction for a commit, and the last recovery. `None` if the client can't commit
    /// any more.
    pub(super) fn take_open(&mut self) -> Option<ClosedTransaction> {
        let open = self.open.as_mut().filter(|_| !self.failed)?;
        let (records, began) = (std::mem::take(&mut open.records), open.began.take());
        Some(ClosedTransaction { recovery: open.recovery, records, began })
    }

    /// A commit that was called before is executed again: what the open transaction has so far would be visible, and no
    /// progress would cover it.
    pub(super) fn commit_open(&self, truth: &Truth) -> Check {
        match self.open.iter().flat_map(|open| &open.records).next() {
            Some(record) => {
                let position = truth.events[record.event].position;
                wrong(format!("{position} is visible, and no progress covers it"))
            }
            None => Ok(()),
        }
    }

    /// The broker takes a record: it is visible, or is in the open transaction.
    fn put(&mut self, truth: &mut Truth, record: Record) -> Check {
        match &mut self.open {
            Some(open) => {
                open.began.get_or_insert(truth.now);
                open.records.push(record);
                Ok(())
            }
            None => truth.write(record.event, record.version, &self.refused),
        }
    }

    /// Whether a record or a report is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.broken_due || !self.reports.is_empty() || self.partitions.iter().any(|p| !p.is_empty())
    }

    pub(super) fn enqueue(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
        record: Record,
    ) -> Result<(), NotTaken> {
        if self.failed || now < self.ready_from || rng.chance(knobs.sink_full) {
            return Err(NotTaken::Full);
        }
        let what = &truth.events[record.event];
        let partition = what.aggregate.unwrap_or(0) % self.partitions.len();
        let refusal = match truth.bad(record.event, now) {
            Bad::TopicName => Some(Refusal::destination("none of this name")),
            Bad::TooLarge | Bad::Poison { .. } => Some(Refusal::too_large(9, 8)),
            Bad::No | Bad::Batch => None,
        };
        if let Some(reason) = refusal {
            truth.events[record.event].refused += 1;
            return Err(NotTaken::Refused(reason));
        }
        if rng.chance(knobs.destination_down) {
            return Err(NotTaken::Destination);
        }
        if self.partitions[partition].len() >= knobs.queue_max {
            return Err(NotTaken::Full);
        }
        self.partitions[partition].push_back(record);
        Ok(())
    }

    /// Enqueues a record that the broker refuses for its size. The record has a producer of its own, so this producer
    /// does not fail.
    pub(super) fn send_refused(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
        record: Record,
    ) -> Result<(), NotTaken> {
        if self.failed || now < self.ready_from || rng.chance(knobs.sink_full) {
            return Err(NotTaken::Full);
        }
        truth.events[record.event].refused += 1;
        let by = self.number;
        self.reports.push_back(Post::Report { record, outcome: TOO_LARGE, by });
        Ok(())
    }

    /// The broker takes a batch of one partition.
    pub(super) fn batch(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
    ) -> Check {
        let start = rng.index(self.partitions.len());
        let count = self.partitions.len();
        let has_some = |n: &usize| !self.partitions[*n].is_empty() && !self.stuck[*n];
        let full = (0..count).map(|n| (start + n) % count).find(has_some);
        let Some(at) = full else { return Ok(()) };
        let batch = self.take(at, knobs, rng);
        let scope =
            |scope| Outcome::Rejected { scope, reason: Refusal::of_broker(RefusalKind::Other, 3) };
        let is_refused = |record: &Record| truth.bad(record.event, now) == Bad::Batch;
        if batch.iter().any(is_refused) {
            for record in
                batch.iter().filter(|record| is_refused(record)).copied().collect::<Vec<_>>()
            {
                // The refusal means each of them, though the client knows that only for a batch of one.
                truth.events[record.event].refused += 1;
            }
            let outcome = Outcome::Rejected {
                scope: Scope::Event,
                reason: Refusal::of_broker(RefusalKind::TooLarge(None), 10),
            };
            self.refused.extend(batch.iter().map(|record| record.event));
            self.fail(&batch, Some(outcome));
            while rng.chance(knobs.overtakes) && !self.partitions[at].is_empty() {
                let behind = self.take(at, knobs, rng);
                let is_accepted = |record: &Record| truth.bad(record.event, now) != Bad::Batch;
                if !behind.iter().all(is_accepted) {
                    break;
                }
                self.write(truth, behind)?;
            }
            // The other records get no report.
            self.partitions[at].clear();
        } else if rng.chance(knobs.refused_wider) {
            let wide = [Scope::Destination, Scope::Broker][rng.index(2)];
            self.fail(&batch, Some(scope(wide)));
            self.partitions[at].clear();
        } else if rng.chance(knobs.unknown) {
            let outcome = rng.chance(500).then_some(Outcome::Unknown);
            let written = rng.chance(500);
            self.fail(&batch, outcome);
            if written {
                for record in batch {
                    self.put(truth, record)?;
                }
            }
            self.partitions[at].clear();
        } else {
            self.write(truth, batch)?;
        }
        Ok(())
    }

    fn take(&mut self, at: usize, knobs: &Knobs, rng: &mut Rng) -> Vec<Record> {
        let most = usize::try_from(rng.range(1, knobs.batch_max)).unwrap();
        let count = most.min(self.partitions[at].len());
        self.partitions[at].drain(..count).collect()
    }

    fn fail(&mut self, batch: &[Record], outcome: Option<Outcome>) {
        (self.failed, self.broken_due) = (true, true);
        let Some(outcome) = outcome else { return };
        let by = self.number;
        self.reports.extend(batch.iter().map(|&record| Post::Report { record, outcome, by }));
    }

    fn write(&mut self, truth: &mut Truth, batch: Vec<Record>) -> Check {
        for record in batch {
            self.put(truth, record)?;
            let (outcome, by) = (Outcome::Acked, self.number);
            self.reports.push_back(Post::Report { record, outcome, by });
        }
        Ok(())
    }

    /// The next report.
    pub(super) fn report(&mut self, knobs: &Knobs, rng: &mut Rng) -> Option<Post> {
        let broken = self.broken_due && (self.reports.is_empty() || rng.chance(100));
        if broken || (self.silent && rng.chance(20)) {
            (self.broken_due, self.silent, self.failed) = (false, false, true);
            return Some(Post::Broken);
        }
        if self.reports.is_empty() {
            return None;
        }
        let at = if knobs.reports_shuffled { rng.index(self.reports.len()) } else { 0 };
        let post = self.reports.remove(at);
        if rng.chance(knobs.report_lost) {
            self.silent = true;
            return None;
        }
        post
    }

    /// The client's state is fatal.
    pub(super) fn fatal(&mut self) {
        (self.failed, self.broken_due) = (true, true);
    }

    /// The producer is discarded: the first records of each partition may be written, the others never are. Returns the
    /// records that are written.
    pub(super) fn discard(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
    ) -> Result<Vec<Record>, Stop> {
        let mut late = Vec::new();
        if let Some(open) = &mut self.open {
            // Nobody commits this transaction.
            (open.records, open.began) = (Vec::new(), None);
            self.partitions.iter_mut().for_each(VecDeque::clear);
            return Ok(late);
        }
        for (partition, stuck) in self.partitions.iter_mut().zip(&mut self.stuck) {
            let mut open = !*stuck;
            for record in partition.drain(..) {
                open &=
                    truth.bad(record.event, now) != Bad::Batch && rng.chance(knobs.written_late);
                if open {
                    truth.write(record.event, record.version, &self.refused)?;
                    late.push(record);
                }
                *stuck |= !open;
            }
        }
        Ok(late)
    }

    /// Another process has the slot: a record in flight is written before that process sends, or never.
    pub(super) fn fence(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
    ) -> Check {
        if self.open.is_some() {
            // The recovery of that process fences this producer off.
            return Ok(());
        }
        let in_flight = self.partitions.iter().map(VecDeque::len).sum::<usize>();
        let late = self.discard(truth, (knobs, rng, now))?;
        self.silent |= late.len() < in_flight;
        let (outcome, by) = (Outcome::Acked, self.number);
        let acked = |record| Post::Report { record, outcome, by };
        self.reports.extend(late.into_iter().map(acked));
        Ok(())
    }

    /// When a new producer can send.
    pub(super) fn ready_at(rng: &mut Rng, now: u64) -> u64 {
        now + rng.below(STARTUP_MAX)
    }
}
