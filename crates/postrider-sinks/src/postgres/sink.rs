//! The PostgreSQL sink: the open transaction, and calls for the writer thread.

use super::batch::{Batch, LogFacts};
use super::spec::{NAMES, PostgresSpec};
use super::writer::Writer;
use crate::transaction_link::{TransactionCall, TransactionLink};
use crate::worker_thread;
use postrider_core::record::{Outcome, Record, Refusal, Ticket};
use postrider_core::sink::{
    Mailbox, NotTaken, Sink, SinkCall, SinkError, SinkProgress, Transactional,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The open transaction, and the way to the writer.
pub(super) struct PostgresSink {
    shared: Arc<TransactionLink<Batch, LogFacts>>,
    open: Batch,
    size_max: Option<usize>,
}

impl PostgresSink {
    /// Starts the writer thread, which connects when the pipeline recovers.
    pub(super) fn open(spec: PostgresSpec, mailbox: Mailbox) -> Result<Self, SinkError> {
        let shared = Arc::new(TransactionLink::new(mailbox));
        let size_max = spec.size_max;
        let writer = Writer::new(Arc::clone(&shared), spec);
        worker_thread::start("log-writer", shared.mailbox.clone(), move || writer.run())?;
        Ok(Self { shared, open: Batch::default(), size_max })
    }

    fn offer(
        &mut self,
        ticket: Ticket,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        if !self.open.selects(record.topic) {
            self.select(record.topic, since)?;
        }
        if self.open.is_full() {
            // The commit makes room, and its answer wakes the pipeline.
            return Err(NotTaken::Full);
        }
        self.open.push(record, self.size_max).map_err(NotTaken::Refused)?;
        // Nothing can keep the server from storing it, so the open transaction is sure to have it.
        self.shared.mailbox.report(ticket, Outcome::Acked);
        Ok(())
    }

    /// Lets the open transaction take events of another log.
    fn select(&mut self, log: &str, since: Option<Instant>) -> Result<(), NotTaken> {
        let facts = self.known(log, since)?;
        self.open.add(log, facts);
        Ok(())
    }

    /// What is known of a log. An answer from before `since` does not count.
    fn known(&self, log: &str, since: Option<Instant>) -> Result<LogFacts, NotTaken> {
        if !(NAMES.allows)(log.as_bytes()) {
            let words = "the topic is no name of an event log: 1 to 200 bytes without a zero byte";
            return Err(NotTaken::Refused(Refusal::destination(words)));
        }
        if !self.shared.is_recovered() {
            return Err(NotTaken::Full);
        }
        self.shared.ask(log, since)
    }
}

impl Sink for PostgresSink {
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

    fn probe(&mut self, log: &str, since: Instant) -> Result<(), NotTaken> {
        self.known(log, Some(since)).map(drop)
    }

    fn transactional(&mut self) -> Option<&mut dyn Transactional> {
        Some(self)
    }

    fn is_idle(&self) -> bool {
        self.open.is_empty() && !self.shared.is_committing()
    }

    fn reset(&mut self) {
        self.open = Batch::default();
        self.shared.reset();
    }

    fn close(&mut self, _grace: Duration) {
        self.open = Batch::default();
        self.shared.close();
    }
}

impl Transactional for PostgresSink {
    fn recover(&mut self, call: SinkCall) {
        self.reset();
        self.shared.call(TransactionCall::Recover(call));
    }

    fn commit(&mut self, call: SinkCall, progress: &SinkProgress) {
        let batch = std::mem::replace(&mut self.open, self.shared.spare());
        self.shared.call(TransactionCall::Commit { call, progress: progress.to_string(), batch });
    }
}

impl Drop for PostgresSink {
    fn drop(&mut self) {
        self.shared.close();
    }
}
