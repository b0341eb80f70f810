//! Runs a script on the fake broker.

use super::{Kind, PARTITIONS, Seen, Step};
use crate::model::broker::{NotTaken, Post, Producer, Record};
use crate::model::plan::{Bad, Knobs, Plan};
use crate::model::rng::Rng;
use crate::model::truth::Truth;
use postrider::event::Position;
use postrider::record::{Outcome, Scope, Ticket};

/// When an event that is bad is no longer; the script runs before.
const NEVER: u64 = 1_000;
const NOW: u64 = 0;

struct Fake {
    knobs: Knobs,
    rng: Rng,
    truth: Truth,
    producer: Producer,
    seen: Seen,
}

/// Its batches, their fate and the order of its reports are drawn from the seed.
pub(super) fn run(script: &[Step], seed: u64) -> Seen {
    let mut fake = Fake::new(seed);
    for step in script {
        match *step {
            Step::Send(partition, kind) => fake.send(partition, kind),
            Step::Reported(count) => {
                while fake.seen.outcomes.len() < count && !fake.seen.broken {
                    fake.turn();
                }
            }
            Step::Broken => {
                while !fake.seen.broken {
                    fake.turn();
                }
            }
            // What is guilty has always been.
            Step::Narrow => {}
        }
    }
    fake.end()
}

impl Fake {
    fn new(seed: u64) -> Self {
        let mut knobs = Plan::new(seed).knobs;
        knobs.partitions = PARTITIONS;
        // Of its bad days, those that the scripts are about.
        (knobs.sink_full, knobs.destination_down, knobs.report_lost) = (0, 0, 0);
        (knobs.unknown, knobs.refused_wider) = (0, 0);
        // Kafka is used without transactions.
        knobs.settings.transactions = None;
        // It takes as much as the real one, or is full at times.
        knobs.queue_max = [5, 50, 10_000][usize::try_from(seed % 3).unwrap()];
        Self {
            knobs,
            rng: Rng::new(seed),
            truth: Truth::new(PARTITIONS, false),
            producer: Producer::new(&knobs, 0, NOW),
            seen: Seen::default(),
        }
    }

    fn event(&mut self, partition: usize, kind: Kind) -> usize {
        let bad = match kind {
            Kind::Small => Bad::No,
            Kind::TooLarge => Bad::TooLarge,
            Kind::Guilty => Bad::Batch,
        };
        let ordinal = self.truth.events.len() as u64;
        let position = Position { ordinal, ..Position::default() };
        let event = self.truth.commit(position, Some(partition), bad, NEVER, (1, 0));
        // What may be published when is the relay's concern.
        self.truth.events[event].free = true;
        event
    }

    fn enqueue(&mut self, event: usize) -> Result<(), NotTaken> {
        let record = Record { ticket: Ticket(event as u64), event, version: 0 };
        let knobs = (&self.knobs, &mut self.rng, NOW);
        self.producer.enqueue(&mut self.truth, knobs, record)
    }

    fn send(&mut self, partition: usize, kind: Kind) {
        let event = self.event(partition, kind);
        let name = u32::try_from(event).unwrap();
        self.seen.sent.entry(partition).or_default().push(name);
        // Offered again while it is full, and given up with the producer.
        while !self.seen.broken {
            match self.enqueue(event) {
                Ok(()) => return,
                Err(NotTaken::Refused(reason)) => {
                    let outcome = Outcome::Rejected { scope: Scope::Event, reason };
                    self.seen.outcomes.insert(name, outcome);
                    return;
                }
                Err(NotTaken::Full | NotTaken::Destination) => self.turn(),
            }
        }
    }

    /// The broker's, or the client's.
    fn turn(&mut self) {
        if self.rng.chance(500) {
            let knobs = (&self.knobs, &mut self.rng, NOW);
            self.producer.batch(&mut self.truth, knobs).unwrap();
            return;
        }
        match self.producer.report(&self.knobs, &mut self.rng) {
            Some(Post::Report { record, outcome, by: _ }) => {
                let name = u32::try_from(record.event).unwrap();
                self.seen.outcomes.insert(name, outcome);
            }
            Some(Post::Broken) => self.seen.broken = true,
            // This sink has no transactions.
            Some(Post::Recovered(..) | Post::Committed(_)) | None => {}
        }
    }

    fn end(mut self) -> Seen {
        // It goes on a while before it is thrown away.
        while self.rng.chance(700) {
            self.turn();
        }
        let knobs = (&self.knobs, &mut self.rng, NOW);
        self.producer.discard(&mut self.truth, knobs).unwrap();
        self.producer = Producer::new(&self.knobs, 0, NOW);
        let first_marker = self.truth.events.len();
        for partition in 0..PARTITIONS {
            let marker = self.event(partition, Kind::Small);
            self.enqueue(marker).unwrap();
        }
        while self.producer.is_busy() {
            self.turn();
        }
        let mut written: Vec<_> =
            (0..first_marker).filter(|at| self.truth.delivered(*at)).collect();
        written.sort_by_key(|event| self.truth.events[*event].newest);
        for event in written {
            let what = &self.truth.events[event];
            let partition = what.aggregate.unwrap();
            let name = u32::try_from(event).unwrap();
            if what.newest < self.truth.events[first_marker + partition].newest {
                self.seen.log.entry(partition).or_default().push(name);
            } else {
                self.seen.late.push(name);
            }
        }
        let markers = u32::try_from(first_marker).unwrap();
        self.seen.outcomes.retain(|event, _| *event < markers);
        self.seen
    }
}
