//! What a sink and its worker thread share: the records that are to be sent, and what is known of destinations.
//!
//! The sink is called by the pipeline's thread and never waits. The worker talks to the broker. It sends the records in
//! the order of the queue and reports them; [`queued_sink`](crate::queued_sink) has the rules for both.

use crate::destinations::Destinations;
use crate::life::{Life, SinkLife};
use crate::record_batch::RecordBatch;
use postrider_core::record::{Outcome, Record, Refusal, Scope, Ticket};
use postrider_core::sink::{Mailbox, NotTaken, Post};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Buffers that are kept for later batches.
const SPARE_MAX: usize = 4;

/// The most that waits in the queue; the pipeline's own bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) records_max: usize,
    /// Bytes of topics, keys, values and headers. The last record may exceed it.
    pub(crate) bytes_max: usize,
}

/// The queue. `F`: what is known of a destination that accepts records.
#[derive(Debug)]
pub(crate) struct SendQueue<F> {
    mailbox: Mailbox,
    limits: QueueLimits,
    state: Mutex<QueueState<F>>,
    /// Work for the worker.
    work: Notify,
    /// The worker has nothing any more; for `close`.
    emptied: Condvar,
    life: SinkLife,
}

#[derive(Debug)]
struct QueueState<F> {
    /// Records that the worker has not taken.
    open: RecordBatch,
    spare: Vec<RecordBatch>,
    /// Records that the worker has taken and not settled, also those of earlier generations.
    taken: usize,
    /// A record was refused because the queue was full.
    full: bool,
    /// A record was not published: nothing is accepted until the reset.
    failed: bool,
    destinations: Destinations<F>,
}

impl<F: Clone> SendQueue<F> {
    pub(crate) fn new(mailbox: Mailbox, limits: QueueLimits) -> Self {
        let state = QueueState {
            open: RecordBatch::default(),
            spare: Vec::new(),
            taken: 0,
            full: false,
            failed: false,
            destinations: Destinations::default(),
        };
        Self {
            mailbox,
            limits,
            state: Mutex::new(state),
            work: Notify::new(),
            emptied: Condvar::new(),
            life: SinkLife::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The sink's side.

    /// Adds a copy of the record. `is_retry`: it is that of a parked event.
    ///
    /// # Errors
    /// [`NotTaken::Full`].
    pub(crate) fn push(
        &self,
        ticket: Ticket,
        record: &Record<'_>,
        is_retry: bool,
    ) -> Result<(), NotTaken> {
        let mut state = self.state();
        let QueueLimits { records_max, bytes_max } = self.limits;
        let is_full = state.open.len() >= records_max || state.open.size_bytes() >= bytes_max;
        if is_full || state.failed {
            // After a failure the reset lets the pipeline continue.
            state.full |= is_full;
            return Err(NotTaken::Full);
        }
        let was_empty = state.open.is_empty();
        state.open.push(ticket, record);
        if is_retry {
            state.open.mark_retry();
        }
        drop(state);
        if was_empty {
            self.work.notify_one();
        }
        Ok(())
    }

    /// What is known of a destination that accepts records; the others are looked up.
    ///
    /// # Errors
    /// As [`Destinations::ask`].
    pub(crate) fn destination(&self, name: &str, since: Option<Instant>) -> Result<F, NotTaken> {
        let (answer, requested) = self.state().destinations.ask(name, since);
        if requested {
            self.work.notify_one();
        }
        answer
    }

    /// Whether nothing is queued or in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.open.is_empty() && state.taken == 0
    }

    /// Gives up all records. What is known of destinations is kept, because the worker keeps its connection.
    pub(crate) fn reset(&self) {
        let mut state = self.state();
        state.open.clear();
        (state.full, state.failed) = (false, false);
        // With the state locked: an answer of the earlier generation comes before both, or has no effect.
        self.life.reset();
        drop(state);
        self.work.notify_one();
    }

    /// Waits until everything is sent and reported, at most `grace`, and ends the worker.
    pub(crate) fn close(&self, grace: Duration) {
        let state = self.state();
        let busy = |state: &mut QueueState<F>| {
            !state.failed && (!state.open.is_empty() || state.taken > 0)
        };
        let waited = self.emptied.wait_timeout_while(state, grace, busy);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.open.clear();
        self.life.close();
        drop(state);
        self.work.notify_one();
    }

    // The worker's side.

    /// The present generation.
    pub(crate) fn life(&self) -> Life {
        self.life.now()
    }

    /// Waits until the sink is in another generation, or closed. Cancel-safe.
    pub(crate) async fn ended(&self, generation: u64) {
        self.life.ended(generation).await;
    }

    /// Waits for records, destinations to look up, or another life. Cancel-safe, and level-triggered: take first.
    pub(crate) async fn worked(&self) {
        self.work.notified().await;
    }

    /// The records that wait; an empty batch if there are none, or if the sink is in another generation.
    pub(crate) fn take(&self, generation: u64) -> RecordBatch {
        let mut state = self.state();
        if state.open.is_empty() || !self.life.is(generation) {
            return RecordBatch::default();
        }
        let next = state.spare.pop().unwrap_or_default();
        let batch = std::mem::replace(&mut state.open, next);
        state.taken += batch.len();
        let was_full = std::mem::take(&mut state.full);
        drop(state);
        if was_full {
            self.mailbox.post(Post::Retry);
        }
        batch
    }

    /// The next destination to look up.
    pub(crate) fn next_wanted(&self) -> Option<String> {
        self.state().destinations.next_wanted()
    }

    /// The memory of a batch whose records are settled is used again.
    pub(crate) fn recycle(&self, mut batch: RecordBatch) {
        batch.clear();
        let mut state = self.state();
        if state.spare.len() < SPARE_MAX {
            state.spare.push(batch);
        }
    }

    /// These records are published. Also called for records of an earlier generation, whose publication the pipeline
    /// has to know.
    pub(crate) fn acked(&self, tickets: &[Ticket]) {
        self.mailbox.report_all(tickets, Outcome::Acked);
        self.settle(tickets.len());
    }

    /// A record is refused, or its destination accepts no records. Nothing is accepted until the reset that follows,
    /// and nothing of this generation may be sent.
    pub(crate) fn rejected(&self, generation: u64, ticket: Ticket, scope: Scope, reason: Refusal) {
        self.fail(generation, |mailbox| {
            mailbox.report(ticket, Outcome::Rejected { scope, reason });
            // Not every refusal makes the pipeline start again by itself, and the records behind it have no report.
            let reason = "a record was refused, and what was behind it is given up".to_owned();
            mailbox.post(Post::Broken { reason });
        });
        self.settle(1);
    }

    /// The record of a parked event is refused. The pipeline tries it again later and resets nothing for that, so the
    /// queue continues.
    pub(crate) fn retry_rejected(&self, ticket: Ticket, scope: Scope, reason: Refusal) {
        self.mailbox.report(ticket, Outcome::Rejected { scope, reason });
        self.settle(1);
    }

    /// Records that are given up without a report, of an earlier generation or behind a failure.
    pub(crate) fn dropped(&self, records: usize) {
        self.settle(records);
    }

    fn settle(&self, records: usize) {
        let mut state = self.state();
        state.taken = state.taken.saturating_sub(records);
        drop(state);
        self.emptied.notify_all();
    }

    /// The pipeline has to reset the sink, and to start again from its cursor.
    pub(crate) fn broken(&self, generation: u64, reason: String) {
        self.fail(generation, |mailbox| mailbox.post(Post::Broken { reason }));
    }

    fn fail(&self, generation: u64, post: impl FnOnce(&Mailbox)) {
        let mut state = self.state();
        if !self.life.is(generation) {
            return;
        }
        state.failed = true;
        state.open.clear();
        // With the state locked: after a reset nothing of the generation before is posted.
        post(&self.mailbox);
        drop(state);
        self.emptied.notify_all();
    }

    /// The broker can't be reached, or refuses all records. Repeated with each attempt.
    pub(crate) fn down(&self, reason: String, hint: Option<String>) {
        self.mailbox.post(Post::Down { reason, hint, topic: None, missing: false });
    }

    /// The broker is back.
    pub(crate) fn up(&self) {
        self.mailbox.post(Post::Up { topic: None });
    }

    /// A destination refuses records for now. The sink keeps them and sends them again in their order; other
    /// destinations accept theirs. Repeated with each attempt. `is_live`: events of the stream wait, not only parked
    /// ones.
    pub(crate) fn held(&self, name: &str, is_live: bool, reason: String, hint: Option<String>) {
        let topic = name.to_owned();
        self.mailbox.post(if is_live {
            Post::Held { topic, reason, hint }
        } else {
            Post::Down { topic: Some(topic), reason, hint, missing: false }
        });
    }

    /// What [`Self::held`] reported is over.
    pub(crate) fn released(&self, name: &str) {
        self.mailbox.post(Post::Up { topic: Some(name.to_owned()) });
    }

    /// A destination accepts records. `was_down`: its problem was reported.
    pub(crate) fn opened(&self, name: &str, facts: F, was_down: bool) {
        self.state().destinations.opened(name, facts);
        let topic = was_down.then(|| name.to_owned());
        self.mailbox.post(topic.map_or(Post::Retry, |topic| Post::Up { topic: Some(topic) }));
    }

    /// A destination accepts no records. `missing`: it never did.
    pub(crate) fn unavailable(
        &self,
        name: &str,
        missing: bool,
        reason: String,
        hint: Option<String>,
    ) {
        self.state().destinations.closed(name, missing);
        self.mailbox.post(Post::Down { reason, hint, topic: Some(name.to_owned()), missing });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Record<'_> = Record {
        topic: "orders",
        partition: None,
        key: None,
        value: None,
        timestamp_ms: None,
        headers: &[],
    };

    fn queue() -> (SendQueue<()>, Mailbox) {
        let mailbox = Mailbox::default();
        let limits = QueueLimits { records_max: 10, bytes_max: 1_000 };
        (SendQueue::new(mailbox.clone(), limits), mailbox)
    }

    fn posts(mailbox: &Mailbox) -> Vec<Post> {
        let mut posts = Vec::new();
        mailbox.take(&mut posts);
        posts
    }

    #[test]
    fn refusal_lets_the_pipeline_start_again_and_one_of_a_retry_does_not() {
        let (queue, mailbox) = queue();
        for (ticket, is_retry) in [(1, false), (2, true)] {
            assert_eq!(queue.push(Ticket(ticket), &RECORD, is_retry), Ok(()));
        }
        let batch = queue.take(0);
        assert_eq!((batch.len(), queue.is_idle()), (2, false));
        let reason = Refusal::destination("none of this name");
        queue.retry_rejected(Ticket(2), Scope::Event, reason);
        assert_eq!(posts(&mailbox).len(), 1);
        assert_eq!(queue.push(Ticket(3), &RECORD, false), Ok(()), "others go on");
        queue.rejected(0, Ticket(1), Scope::Event, reason);
        let found = posts(&mailbox);
        assert!(matches!(found[..], [Post::Report { .. }, Post::Broken { .. }]), "{found:?}");
        assert_eq!(queue.push(Ticket(4), &RECORD, false), Err(NotTaken::Full));
        assert!(queue.is_idle(), "what was behind it is given up");
        queue.reset();
        assert_eq!(queue.push(Ticket(5), &RECORD, false), Ok(()));
        assert!(queue.take(0).is_empty() && queue.take(1).len() == 1);
    }

    #[test]
    fn nothing_of_an_earlier_generation_is_posted() {
        let (queue, mailbox) = queue();
        queue.reset();
        queue.broken(0, "late".to_owned());
        queue.rejected(0, Ticket(1), Scope::Event, Refusal::destination("none"));
        assert_eq!(posts(&mailbox), []);
    }
}
