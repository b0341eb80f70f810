//! The sink that changes each record before another sink takes it.

use crate::draft::Draft;
use crate::step::{NotReady, Step};
use postrider_core::record::{Record, Ticket};
use postrider_core::sink::{NotTaken, Sink, Transactional};
use std::time::{Duration, Instant};

/// A sink behind the steps of a format.
pub(crate) struct FormattedSink {
    inner: Box<dyn Sink>,
    steps: Vec<Box<dyn Step>>,
    draft: Draft,
    /// The record that the draft belongs to, and how many steps have changed it. A record that the other sink did not
    /// accept is offered again with the same ticket, and is not changed twice.
    drafted: Option<(Ticket, usize)>,
}

impl FormattedSink {
    pub(crate) fn new(inner: Box<dyn Sink>, steps: Vec<Box<dyn Step>>) -> Self {
        Self { inner, steps, draft: Draft::default(), drafted: None }
    }

    /// Lets the steps change the record, and offers it.
    fn offer(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Option<Instant>,
        enqueue: impl FnOnce(&mut dyn Sink, &Record<'_>) -> Result<(), NotTaken>,
    ) -> Result<(), NotTaken> {
        let mut done = match self.drafted {
            Some((drafted, done)) if drafted == ticket => done,
            Some(_) | None => {
                self.draft.begin();
                0
            }
        };
        self.drafted = Some((ticket, done));
        for step in self.steps.iter_mut().skip(done) {
            match step.apply(record, &mut self.draft, since) {
                Ok(()) => done += 1,
                Err(NotReady::Waits) => return Err(NotTaken::Full),
                Err(NotReady::Refused(refusal)) => {
                    self.drafted = None;
                    return Err(NotTaken::Refused(refusal));
                }
            }
            self.drafted = Some((ticket, done));
        }
        let inner = &mut *self.inner;
        let taken = self.draft.lend(record, |record| enqueue(inner, record));
        if taken.is_ok() {
            self.drafted = None;
        }
        taken
    }
}

impl Sink for FormattedSink {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        self.offer(ticket, record, None, |sink, record| sink.enqueue(ticket, record))
    }

    fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Instant,
    ) -> Result<(), NotTaken> {
        self.offer(ticket, record, Some(since), |sink, record| {
            sink.enqueue_again(ticket, record, since)
        })
    }

    fn enqueue_alone(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.offer(ticket, record, since, |sink, record| sink.enqueue_alone(ticket, record, since))
    }

    fn probe(&mut self, topic: &str, since: Instant) -> Result<(), NotTaken> {
        self.inner.probe(topic, since)
    }

    fn turn(&mut self) -> Option<Instant> {
        self.inner.turn()
    }

    fn cluster(&self) -> Option<String> {
        self.inner.cluster()
    }

    fn hold(&mut self) {
        self.inner.hold();
    }

    fn admit(&mut self, cluster: &str) {
        self.inner.admit(cluster);
    }

    fn transactional(&mut self) -> Option<&mut dyn Transactional> {
        self.inner.transactional()
    }

    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    fn reset(&mut self) {
        self.drafted = None;
        for step in &mut self.steps {
            step.reset();
        }
        self.inner.reset();
    }

    fn close(&mut self, grace: Duration) {
        self.inner.close(grace);
    }
}
