//! The sink that publishes in transactions: the open transaction, and calls for the writer thread.

use super::sink::RedisRules;
use super::spec::RedisSpec;
use super::transaction_writer::{RedisTransactionLink, RedisWriter};
use crate::record_batch::RecordBatch;
use crate::transaction_link::{TransactionCall, TransactionLink};
use crate::worker_thread;
use postrider_core::record::{Outcome, Record, Ticket};
use postrider_core::sink::{
    Mailbox, Needs, NotTaken, Sink, SinkCall, SinkError, SinkProgress, Transactional,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parts of the records of a transaction at most: a server takes 1,048,576 words in one command, and each part is two.
const PARTS_MAX: usize = 250_000;

/// Parts of a record that are no headers, and what counts beside the parts.
const PARTS_BESIDE_HEADERS: usize = 5;

/// The open transaction, and the way to the writer.
pub(super) struct RedisTransactionSink {
    shared: Arc<RedisTransactionLink>,
    rules: RedisRules,
    open: RecordBatch,
    parts: usize,
}

impl RedisTransactionSink {
    /// Starts the writer thread, which connects when the pipeline recovers.
    ///
    /// # Errors
    /// A thread that can't be started.
    pub(super) fn open(
        spec: RedisSpec,
        needs: &Needs,
        mailbox: Mailbox,
    ) -> Result<Self, SinkError> {
        let shared = Arc::new(TransactionLink::new(mailbox));
        let rules = RedisRules::new(&spec, needs);
        let writer = RedisWriter::new(Arc::clone(&shared), spec);
        worker_thread::start("redis-writer", shared.mailbox.clone(), move || writer.run())?;
        Ok(Self { shared, rules, open: RecordBatch::default(), parts: 0 })
    }

    fn offer(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.rules.judge(record).map_err(NotTaken::Refused)?;
        self.known(record.topic, since)?;
        let parts = PARTS_BESIDE_HEADERS + record.headers.len();
        if !self.open.is_empty() && self.parts + parts > PARTS_MAX {
            // The commit makes room, and its answer wakes the pipeline.
            return Err(NotTaken::Full);
        }
        self.parts += parts;
        self.open.push(ticket, record);
        // What could still keep the server from storing it fails the whole commit, and the pipeline recovers.
        self.shared.mailbox.report(ticket, Outcome::Acked);
        Ok(())
    }

    /// Whether a stream accepts records. An answer from before `since` does not count.
    fn known(&self, topic: &str, since: Option<Instant>) -> Result<(), NotTaken> {
        if !self.shared.is_recovered() {
            return Err(NotTaken::Full);
        }
        self.shared.ask(topic, since)
    }

    fn discard(&mut self) {
        self.open.clear();
        self.parts = 0;
    }
}

impl Sink for RedisTransactionSink {
    fn enqueue(&mut self, ticket: Ticket, record: &Record<'_>) -> Result<(), NotTaken> {
        self.offer(ticket, record, None)
    }

    fn enqueue_again(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Instant,
    ) -> Result<(), NotTaken> {
        self.offer(ticket, record, Some(since))
    }

    fn probe(&mut self, topic: &str, since: Instant) -> Result<(), NotTaken> {
        self.rules.judge_name(topic).map_err(NotTaken::Refused)?;
        self.known(topic, Some(since))
    }

    fn transactional(&mut self) -> Option<&mut dyn Transactional> {
        Some(self)
    }

    fn is_idle(&self) -> bool {
        self.open.is_empty() && !self.shared.is_committing()
    }

    fn reset(&mut self) {
        self.discard();
        self.shared.reset();
    }

    fn close(&mut self, _grace: Duration) {
        self.discard();
        self.shared.close();
    }
}

impl Transactional for RedisTransactionSink {
    fn recover(&mut self, call: SinkCall) {
        self.reset();
        self.shared.call(TransactionCall::Recover(call));
    }

    fn commit(&mut self, call: SinkCall, progress: &SinkProgress) {
        let batch = std::mem::replace(&mut self.open, self.shared.spare());
        self.parts = 0;
        self.shared.call(TransactionCall::Commit { call, progress: progress.to_string(), batch });
    }
}

impl Drop for RedisTransactionSink {
    fn drop(&mut self) {
        self.shared.close();
    }
}
