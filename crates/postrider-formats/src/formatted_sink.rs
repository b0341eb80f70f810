//! The sink that changes each record before another sink takes it.

use crate::draft::Draft;
use crate::step::{NotReady, Step};
use postrider_core::record::{Record, Ticket};
use postrider_core::sink::{NotTaken, Sink, Transactional};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

/// A sink behind the steps of a format.
pub(crate) struct FormattedSink {
    inner: Box<dyn Sink>,
    steps: Vec<Box<dyn Step>>,
    draft: Draft,
    /// What the draft belongs to. A record that the other sink did not accept is offered again, and is not changed
    /// twice.
    drafted: Option<Drafted>,
}

/// The record of a draft.
#[derive(Clone, Copy)]
struct Drafted {
    ticket: Ticket,
    /// Of the whole record. A ticket that was not accepted may come again with another record: the stream may continue
    /// elsewhere, after another process has owned the pipeline.
    hash: u64,
    /// How many steps have changed it.
    done: usize,
}

/// The hash of a record.
fn hash_of(record: &Record<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.topic, record.partition, record.key, record.value, record.timestamp_ms)
        .hash(&mut hasher);
    for header in record.headers {
        (header.name, header.value).hash(&mut hasher);
    }
    hasher.finish()
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
        let hash = hash_of(record);
        let before = self.drafted.take().filter(|it| (it.ticket, it.hash) == (ticket, hash));
        if before.is_none() {
            self.draft.begin();
        }
        let mut drafted = before.unwrap_or(Drafted { ticket, hash, done: 0 });
        for step in self.steps.iter_mut().skip(drafted.done) {
            match step.apply(record, &mut self.draft, since) {
                Ok(()) => drafted.done += 1,
                Err(NotReady::Waits) => {
                    self.drafted = Some(drafted);
                    return Err(NotTaken::Full);
                }
                Err(NotReady::Refused(refusal)) => return Err(NotTaken::Refused(refusal)),
            }
        }
        let inner = &mut *self.inner;
        let taken = self.draft.lend(record, |record| enqueue(inner, record));
        if taken.is_err() {
            self.drafted = Some(drafted);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Step;
    use postrider_core::record::Refusal;
    use std::sync::{Arc, Mutex};

    /// Publishes into a list, or is full.
    struct ListSink {
        is_full: Arc<Mutex<bool>>,
        values: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Sink for ListSink {
        fn enqueue(&mut self, _ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
            if *self.is_full.lock().unwrap() {
                return Err(NotTaken::Full);
            }
            self.values.lock().unwrap().push(record.value.unwrap_or_default().to_vec());
            Ok(())
        }

        fn reset(&mut self) {}

        fn close(&mut self, _grace: Duration) {}
    }

    /// Puts a sign before the payload, and counts.
    struct SignStep(Arc<Mutex<usize>>);

    impl Step for SignStep {
        fn apply(
            &mut self,
            record: &Record<'_>,
            draft: &mut Draft,
            _since: Option<Instant>,
        ) -> Result<(), NotReady> {
            let value = draft.value(record).unwrap_or_default();
            if value == b"bad" {
                return Err(NotReady::Refused(Refusal::content("bad")));
            }
            *self.0.lock().unwrap() += 1;
            let mut signed = b"+".to_vec();
            signed.extend_from_slice(value);
            draft.set_value(signed);
            Ok(())
        }
    }

    fn record(value: &[u8]) -> Record<'_> {
        let (topic, partition, key) = ("orders", None, None);
        Record { topic, partition, key, value: Some(value), timestamp_ms: None, headers: &[] }
    }

    /// After another process has owned the pipeline, the stream may offer another record with the ticket of a record
    /// that was not accepted.
    #[test]
    fn a_draft_is_used_again_for_the_same_record_alone() {
        let (is_full, values) = (Arc::new(Mutex::new(true)), Arc::<Mutex<_>>::default());
        let steps_done = Arc::new(Mutex::new(0));
        let inner = ListSink { is_full: Arc::clone(&is_full), values: Arc::clone(&values) };
        let steps: Vec<Box<dyn Step>> = vec![Box::new(SignStep(Arc::clone(&steps_done)))];
        let mut sink = FormattedSink::new(Box::new(inner), steps);
        assert_eq!(sink.enqueue(Ticket(1), &record(b"first")), Err(NotTaken::Full));
        assert_eq!(sink.enqueue(Ticket(1), &record(b"first")), Err(NotTaken::Full));
        assert_eq!(*steps_done.lock().unwrap(), 1, "the draft is used again");
        *is_full.lock().unwrap() = false;
        assert_eq!(sink.enqueue(Ticket(1), &record(b"second")), Ok(()));
        assert_eq!(sink.enqueue(Ticket(2), &record(b"third")), Ok(()));
        assert!(matches!(sink.enqueue(Ticket(3), &record(b"bad")), Err(NotTaken::Refused(_))));
        assert_eq!(sink.enqueue(Ticket(3), &record(b"fourth")), Ok(()));
        assert_eq!(*values.lock().unwrap(), [&b"+second"[..], b"+third", b"+fourth"]);
    }
}
