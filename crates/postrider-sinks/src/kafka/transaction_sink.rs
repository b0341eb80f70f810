//! The sink that publishes in transactions: a [`KafkaSink`] whose producer is made the only one by a recovery, and
//! whose records become visible at a commit.
//!
//! Records are sent while the transaction is open. They are reported as with any other producer, when a broker has
//! acknowledged them; a record that is refused ends the producer and its transaction.

use super::codes;
use super::sink::KafkaSink;
use super::spec::{KafkaSpec, OpenError};
use super::transaction_spec::KafkaTransaction;
use super::transaction_thread::{CommitLink, CommitThread, KafkaCall};
use postrider_core::record::{Record, Ticket};
use postrider_core::sink::{Mailbox, NotTaken, Post, Sink, SinkCall, SinkProgress, Transactional};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the first records of a transaction wait after the commit before it. The brokers answer a commit before the
/// transaction has ended on all partitions, and refuse the partitions of the next one meanwhile
/// (`CONCURRENT_TRANSACTIONS`). librdkafka offers them again 20 ms later, which is longer than this pause, after which
/// they are usually accepted (measured with one broker and 8 partitions: 13 ms until they are written in place of 43).
const SETTLING: Duration = Duration::from_millis(4);

/// The sink, and the way to the thread that commits.
pub(super) struct KafkaTransactionSink {
    sink: KafkaSink,
    link: Arc<CommitLink>,
    /// The transactional id.
    id: String,
    progress_topic: String,
    /// The open transaction has a record.
    has_records: bool,
}

impl KafkaTransactionSink {
    /// Makes the producer, which connects in the background, and starts the thread that commits.
    ///
    /// # Errors
    /// As [`KafkaSink::open`].
    pub(super) fn open(
        spec: &KafkaSpec,
        transaction: &KafkaTransaction,
        mailbox: Mailbox,
    ) -> Result<Self, OpenError> {
        let sink = KafkaSink::open(spec, mailbox)?;
        let link = Arc::new(CommitLink::default());
        let thread = CommitThread::new(
            Arc::clone(&link),
            Arc::clone(sink.shared()),
            spec.clone(),
            transaction.clone(),
        );
        // Not joined: it may be waiting for a broker that does not answer, and holds nothing that must be kept.
        std::thread::Builder::new()
            .name("kafka-commits".to_owned())
            .spawn(move || thread.run())
            .map_err(OpenError::Thread)?;
        Ok(Self {
            sink,
            link,
            id: transaction.id.clone(),
            progress_topic: transaction.progress_topic.clone(),
            has_records: false,
        })
    }

    /// Whether a record for this topic may be offered to the producer.
    fn admits(&self, topic: &str) -> Result<(), NotTaken> {
        if topic == self.progress_topic {
            return Err(NotTaken::Refused(codes::PROGRESS_TOPIC));
        }
        // The answer of the thread wakes the pipeline.
        if self.link.is_open() { Ok(()) } else { Err(NotTaken::Full) }
    }

    /// Until when the first records of a transaction wait; `None` for the others, and if that time is over.
    fn settles_until(&self) -> Option<Instant> {
        if self.has_records {
            return None;
        }
        let settled = self.link.committed_at()? + SETTLING;
        (Instant::now() < settled).then_some(settled)
    }

    fn offer(
        &mut self,
        record: &Record<'_>,
        offer: impl FnOnce(&mut KafkaSink) -> Result<(), NotTaken>,
    ) -> Result<(), NotTaken> {
        self.admits(record.topic)?;
        let settles_until = self.settles_until();
        if let Some(until) = settles_until {
            self.sink.hold_records(until);
        }
        offer(&mut self.sink)?;
        if settles_until.is_some() {
            // Nothing may be in flight whose report would wake the pipeline: it asks for the time of the next turn.
            self.sink.shared().mailbox.post(Post::Retry);
        }
        self.has_records = true;
        Ok(())
    }
}

impl Sink for KafkaTransactionSink {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        self.offer(record, |sink| sink.enqueue(ticket, record))
    }

    fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Instant,
    ) -> Result<(), NotTaken> {
        self.offer(record, |sink| sink.enqueue_again(ticket, record, since))
    }

    fn enqueue_alone(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.offer(record, |sink| sink.enqueue_alone(ticket, record, since))
    }

    fn probe(&mut self, topic: &str, since: Instant) -> Result<(), NotTaken> {
        self.sink.probe(topic, since)
    }

    fn turn(&mut self) -> Option<Instant> {
        self.sink.turn()
    }

    fn cluster(&self) -> Option<String> {
        self.sink.cluster()
    }

    fn hold(&mut self) {
        self.sink.hold();
    }

    fn admit(&mut self, cluster: &str) {
        self.sink.admit(cluster);
    }

    fn transactional(&mut self) -> Option<&mut dyn Transactional> {
        Some(self)
    }

    fn is_idle(&self) -> bool {
        !self.has_records && !self.link.is_committing() && self.sink.is_idle()
    }

    fn reset(&mut self) {
        self.has_records = false;
        self.link.reset();
        self.sink.reset();
    }

    fn close(&mut self, grace: Duration) {
        self.has_records = false;
        self.link.close();
        self.sink.close(grace);
    }
}

impl Transactional for KafkaTransactionSink {
    fn recover(&mut self, call: SinkCall) {
        self.has_records = false;
        self.link.reset();
        // Without producers the metadata thread says why, and requests a reset when some can be made.
        if let Some(producers) = self.sink.producers_for_recovery() {
            self.link.call(KafkaCall::Recover { call, producers });
        }
    }

    fn commit(&mut self, call: SinkCall, progress: &SinkProgress) {
        self.has_records = false;
        self.link.call(KafkaCall::Commit { call, progress: progress.to_string() });
    }

    fn id(&self) -> Option<&str> {
        Some(&self.id)
    }

    fn fenced_total(&self) -> Option<u64> {
        Some(self.sink.shared().tally.fenced.load(Ordering::Relaxed))
    }
}

impl Drop for KafkaTransactionSink {
    fn drop(&mut self) {
        self.link.close();
    }
}
