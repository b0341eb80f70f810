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
use postrider_core::sink::{Mailbox, NotTaken, Sink, SinkCall, SinkProgress, Transactional};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A transaction with fewer records and fewer bytes is a small one: no backlog waits. If a quarter of the bounds of a
/// transaction is less, that counts.
const SMALL_RECORDS: usize = 1_000;
const SMALL_BYTES: u64 = 1 << 20;

/// The sink, and the way to the thread that commits.
pub(super) struct KafkaTransactionSink {
    sink: KafkaSink,
    link: Arc<CommitLink>,
    /// The transactional id.
    id: String,
    progress_topic: String,
    /// Records of the open transaction, and their size. Unit of the latter: bytes.
    written: (usize, u64),
    /// The bounds of a small transaction.
    small: (usize, u64),
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
            written: (0, 0),
            small: (
                SMALL_RECORDS.min(transaction.limits.records_max / 4),
                SMALL_BYTES.min(transaction.limits.bytes_max / 4),
            ),
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

    fn offer(
        &mut self,
        record: &Record<'_>,
        offer: impl FnOnce(&mut KafkaSink) -> Result<(), NotTaken>,
    ) -> Result<(), NotTaken> {
        self.admits(record.topic)?;
        offer(&mut self.sink)?;
        let size = record.value.map_or(0, <[u8]>::len) + record.key.map_or(0, <[u8]>::len);
        self.written.0 += 1;
        self.written.1 += size as u64;
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
        self.written.0 == 0 && !self.link.is_committing() && self.sink.is_idle()
    }

    fn reset(&mut self) {
        self.written = (0, 0);
        self.link.reset();
        self.sink.reset();
    }

    fn close(&mut self, grace: Duration) {
        self.written = (0, 0);
        self.link.close();
        self.sink.close(grace);
    }
}

impl Transactional for KafkaTransactionSink {
    fn recover(&mut self, call: SinkCall) {
        self.written = (0, 0);
        self.link.reset();
        // Without producers the metadata thread says why, and requests a reset when some can be made.
        if let Some(producers) = self.sink.producers_for_recovery() {
            self.link.call(KafkaCall::Recover { call, producers });
        }
    }

    fn commit(&mut self, call: SinkCall, progress: &SinkProgress) {
        let (records, bytes) = std::mem::take(&mut self.written);
        let is_small = records < self.small.0 && bytes < self.small.1;
        self.link.call(KafkaCall::Commit { call, progress: progress.to_string(), is_small });
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
