//! The fake broker and its client: records by partition, batches, and what comes back of them.

use super::plan::{Bad, Knobs};
use super::rng::Rng;
use super::truth::Truth;
use super::{Check, Stop};
use postrider_core::record::{Outcome, Refusal, Scope, Ticket};
use std::collections::VecDeque;

/// Milliseconds a new producer is waited for.
const SETTLING_MAX: u64 = 20;

/// What a broker says of a record that is too large for it.
pub(super) const TOO_LARGE: Outcome = Outcome::Rejected {
    scope: Scope::Event,
    reason: Refusal::TooLargeCompressed { size: 9, limit: 8 },
};

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) ticket: Ticket,
    pub(super) event: usize,
    pub(super) version: u32,
}

/// What a sink posts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Post {
    /// `by` is the number of the producer that took the record.
    Report {
        record: Record,
        outcome: Outcome,
        by: u64,
    },
    Broken,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    Full,
    Destination,
    Refused(Refusal),
}

/// One producer of one process, and the broker's end of it.
#[derive(Debug)]
pub(super) struct Producer {
    /// Of those of its process.
    pub(super) number: u64,
    partitions: Vec<VecDeque<Record>>,
    /// Partitions that lack a record: nothing behind it is ever written.
    stuck: Vec<bool>,
    reports: VecDeque<Post>,
    /// Events of batches that were refused.
    refused: Vec<usize>,
    failed: bool,
    pub(super) broken_due: bool,
    /// Reports that will never come.
    pub(super) silent: bool,
    settled_at: u64,
}

impl Producer {
    pub(super) fn new(knobs: &Knobs, number: u64, settled_at: u64) -> Self {
        Self {
            number,
            partitions: vec![VecDeque::new(); knobs.partitions],
            stuck: vec![false; knobs.partitions],
            reports: VecDeque::new(),
            refused: Vec::new(),
            failed: false,
            broken_due: false,
            silent: false,
            settled_at,
        }
    }

    /// Whether something is on its way.
    pub(super) fn busy(&self) -> bool {
        self.broken_due || !self.reports.is_empty() || self.partitions.iter().any(|p| !p.is_empty())
    }

    pub(super) fn enqueue(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
        record: Record,
    ) -> Result<(), NotTaken> {
        if self.failed || now < self.settled_at || rng.chance(knobs.sink_full) {
            return Err(NotTaken::Full);
        }
        let what = &truth.events[record.event];
        let partition = what.aggregate.unwrap_or(0) % self.partitions.len();
        let refusal = match truth.bad(record.event, now) {
            Bad::TopicName => Some(Refusal::TopicName),
            Bad::TooLarge | Bad::Poison { .. } => Some(Refusal::TooLarge { size: 9, limit: 8 }),
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

    /// The same for a record that the broker refuses for its size. It goes through a producer of its own, and costs
    /// none.
    pub(super) fn send_refused(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
        record: Record,
    ) -> Result<(), NotTaken> {
        if self.failed || now < self.settled_at || rng.chance(knobs.sink_full) {
            return Err(NotTaken::Full);
        }
        truth.events[record.event].refused += 1;
        let by = self.number;
        self.reports.push_back(Post::Report { record, outcome: TOO_LARGE, by });
        Ok(())
    }

    /// The broker takes a batch of some partition.
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
        let scope = |scope| Outcome::Rejected { scope, reason: Refusal::Kafka(3) };
        let guilty = |record: &Record| truth.bad(record.event, now) == Bad::Batch;
        if batch.iter().any(guilty) {
            for record in batch.iter().filter(|record| guilty(record)).copied().collect::<Vec<_>>()
            {
                // Only one that was alone is known to be meant, but each of them was.
                truth.events[record.event].refused += 1;
            }
            let outcome = Outcome::Rejected { scope: Scope::Event, reason: Refusal::Kafka(10) };
            self.refused.extend(batch.iter().map(|record| record.event));
            self.fail(&batch, Some(outcome));
            while rng.chance(knobs.overtakes) && !self.partitions[at].is_empty() {
                let behind = self.take(at, knobs, rng);
                let innocent = |record: &Record| truth.bad(record.event, now) != Bad::Batch;
                if !behind.iter().all(innocent) {
                    break;
                }
                self.write(truth, behind)?;
            }
            // The rest has no report any more.
            self.partitions[at].clear();
        } else if rng.chance(knobs.refused_wider) {
            let wide = [Scope::Destination, Scope::Broker][rng.index(2)];
            self.fail(&batch, Some(scope(wide)));
            self.partitions[at].clear();
        } else if rng.chance(knobs.unknown) {
            let said = rng.chance(500).then_some(Outcome::Unknown);
            let written = rng.chance(500);
            self.fail(&batch, said);
            if written {
                for record in batch {
                    truth.write(record.event, record.version, &self.refused)?;
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
            truth.write(record.event, record.version, &self.refused)?;
            let (outcome, by) = (Outcome::Acked, self.number);
            self.reports.push_back(Post::Report { record, outcome, by });
        }
        Ok(())
    }

    /// The next thing it says.
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

    /// Nobody listens any more: of each partition a beginning may be written, the rest never will be.
    pub(super) fn cut(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
    ) -> Result<Vec<Record>, Stop> {
        let mut late = Vec::new();
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

    /// Another process has the slot: what is on its way is written before that one sends, or never.
    pub(super) fn overruled(
        &mut self,
        truth: &mut Truth,
        (knobs, rng, now): (&Knobs, &mut Rng, u64),
    ) -> Check {
        let on_the_way = self.partitions.iter().map(VecDeque::len).sum::<usize>();
        let late = self.cut(truth, (knobs, rng, now))?;
        self.silent |= late.len() < on_the_way;
        let (outcome, by) = (Outcome::Acked, self.number);
        let acked = |record| Post::Report { record, outcome, by };
        self.reports.extend(late.into_iter().map(acked));
        Ok(())
    }

    /// When a new one may send.
    pub(super) fn settles(rng: &mut Rng, now: u64) -> u64 {
        now + rng.below(SETTLING_MAX)
    }
}
