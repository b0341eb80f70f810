//! What the sink and its writer thread share: what is to be done, and what is known of logs.

use super::batch::{Batch, LogFacts};
use super::problem::LogProblem;
use crate::destinations::Destinations;
use crate::life::{Life, SinkLife};
use postrider_core::sink::{Mailbox, NotTaken, Post, SinkCall};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// A call of the pipeline that is not answered yet.
#[derive(Debug)]
pub(super) enum Call {
    /// Become the writer.
    Recover(SinkCall),
    /// Append the events, and store the progress.
    Commit { call: SinkCall, progress: String, batch: Batch },
}

/// What the writer does next.
#[derive(Debug)]
pub(super) enum Job {
    Call(Call),
    /// Find out whether a log exists, and where it ends.
    LookUp(String),
}

#[derive(Default, Debug)]
struct LinkState {
    call: Option<Call>,
    /// A commit is called, and not answered.
    committing: bool,
    /// The writer has recovered in this generation.
    recovered: bool,
    logs: Destinations<LogFacts>,
    /// An empty batch with the memory of an earlier one.
    spare: Option<Batch>,
}

/// What the two threads share.
pub(super) struct WriterLink {
    pub(super) mailbox: Mailbox,
    state: Mutex<LinkState>,
    work: Notify,
    life: SinkLife,
}

impl WriterLink {
    pub(super) fn new(mailbox: Mailbox) -> Self {
        Self { mailbox, state: Mutex::default(), work: Notify::new(), life: SinkLife::new() }
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The sink's side.

    /// Hands a call over to the writer.
    pub(super) fn call(&self, call: Call) {
        let mut state = self.state();
        state.committing = matches!(call, Call::Commit { .. });
        state.call = Some(call);
        drop(state);
        self.work.notify_one();
    }

    /// Whether a commit is not answered yet.
    pub(super) fn is_committing(&self) -> bool {
        self.state().committing
    }

    /// Whether the writer has recovered since the last reset.
    pub(super) fn is_recovered(&self) -> bool {
        self.state().recovered
    }

    /// What is known of a log; requests a log that is not known, or that accepted no events a while ago.
    ///
    /// # Errors
    /// As [`Destinations::ask`].
    pub(super) fn ask(&self, log: &str, since: Option<Instant>) -> Result<LogFacts, NotTaken> {
        let (answer, requested) = self.state().logs.ask(log, since);
        if requested {
            self.work.notify_one();
        }
        answer
    }

    /// Discards the call that the writer has not taken yet, and everything that is known.
    pub(super) fn reset(&self) {
        let mut state = self.state();
        // The spare batch too: it takes events of logs that the next writer has not opened.
        *state = LinkState::default();
        // With the state locked: an answer of the earlier generation comes before both, or has no effect.
        self.life.reset();
        drop(state);
        self.work.notify_one();
    }

    /// Ends the writer.
    pub(super) fn close(&self) {
        self.life.close();
        self.work.notify_one();
    }

    /// An empty batch with memory, if there is one.
    pub(super) fn spare(&self) -> Batch {
        self.state().spare.take().unwrap_or_default()
    }

    // The writer's side. What it has found counts only in the generation in which it has begun.

    /// The present generation.
    pub(super) fn life(&self) -> Life {
        self.life.now()
    }

    /// Waits until the sink is in another generation, or closed.
    pub(super) async fn ended(&self, generation: u64) {
        self.life.ended(generation).await;
    }

    /// Waits for work. Level-triggered: take first.
    pub(super) async fn worked(&self) {
        self.work.notified().await;
    }

    /// The next job of this generation.
    pub(super) fn take(&self, generation: u64) -> Option<Job> {
        let mut state = self.state();
        if !self.life.is(generation) {
            return None;
        }
        if let Some(call) = state.call.take() {
            return Some(Job::Call(call));
        }
        // Where a log ends is known only after all former writers are excluded.
        if !state.recovered {
            return None;
        }
        state.logs.next_wanted().map(Job::LookUp)
    }

    /// Changes the state and posts, if the sink is still in this generation.
    fn answer(&self, generation: u64, change: impl FnOnce(&mut LinkState), post: Option<Post>) {
        let mut state = self.state();
        if !self.life.is(generation) {
            return;
        }
        change(&mut state);
        drop(state);
        if let Some(post) = post {
            self.mailbox.post(post);
        }
    }

    /// The writer has recovered.
    pub(super) fn recovered(&self, generation: u64, post: Post) {
        self.answer(generation, |state| state.recovered = true, Some(post));
    }

    /// The commit is durable. The memory of its batch is for the next one.
    pub(super) fn committed(&self, generation: u64, call: SinkCall, mut batch: Batch) {
        batch.clear();
        let change = |state: &mut LinkState| {
            state.committing = false;
            state.spare = Some(batch);
        };
        self.answer(generation, change, Some(Post::Committed { call }));
    }

    /// The pipeline has to recover, or to halt.
    pub(super) fn lost(&self, generation: u64, post: Post) {
        let change = |state: &mut LinkState| {
            state.recovered = false;
            state.committing = false;
        };
        self.answer(generation, change, Some(post));
    }

    /// A log can be written. `was_down`: its problem was reported.
    pub(super) fn opened(&self, generation: u64, log: &str, facts: LogFacts, was_down: bool) {
        let post = if was_down { Post::Up { topic: Some(log.to_owned()) } } else { Post::Retry };
        self.answer(generation, |state| state.logs.opened(log, facts), Some(post));
    }

    /// A log accepts no events.
    pub(super) fn unavailable(&self, generation: u64, log: &str, missing: bool, why: LogProblem) {
        let post =
            Post::Down { reason: why.reason, hint: why.hint, topic: Some(log.to_owned()), missing };
        self.answer(generation, |state| state.logs.closed(log, missing), Some(post));
    }

    /// Posts, if the sink is still in this generation.
    pub(super) fn post(&self, generation: u64, post: Post) {
        self.answer(generation, |_| {}, Some(post));
    }
}
