//! What a sink that publishes in transactions and its writer thread share: what is to be done, and what is known of
//! destinations.
//!
//! `B`: the records of a transaction. `F`: what is known of a destination that accepts records.

use crate::destinations::Destinations;
use crate::life::{Life, SinkLife};
use postrider_core::sink::{Mailbox, NotTaken, Post, SinkCall};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// A call of the pipeline that is not answered yet.
#[derive(Debug)]
pub(crate) enum TransactionCall<B> {
    /// Become the writer.
    Recover(SinkCall),
    /// Publish the records, and store the progress.
    Commit { call: SinkCall, progress: String, batch: B },
}

/// What the writer does next.
#[derive(Debug)]
pub(crate) enum WriterJob<B> {
    Call(TransactionCall<B>),
    /// Find out whether a destination accepts records.
    LookUp(String),
}

#[derive(Debug)]
struct LinkState<B, F> {
    call: Option<TransactionCall<B>>,
    /// A commit is called, and not answered.
    committing: bool,
    /// The writer has recovered in this generation.
    recovered: bool,
    destinations: Destinations<F>,
    /// An empty batch with the memory of an earlier one.
    spare: Option<B>,
}

// Derived, it would need `B: Default`.
impl<B, F> Default for LinkState<B, F> {
    fn default() -> Self {
        Self {
            call: None,
            committing: false,
            recovered: false,
            destinations: Destinations::default(),
            spare: None,
        }
    }
}

/// What the two threads share.
pub(crate) struct TransactionLink<B, F> {
    pub(crate) mailbox: Mailbox,
    state: Mutex<LinkState<B, F>>,
    work: Notify,
    life: SinkLife,
}

impl<B: Default, F: Clone> TransactionLink<B, F> {
    pub(crate) fn new(mailbox: Mailbox) -> Self {
        Self { mailbox, state: Mutex::default(), work: Notify::new(), life: SinkLife::new() }
    }

    fn state(&self) -> MutexGuard<'_, LinkState<B, F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The sink's side.

    /// Hands a call over to the writer.
    pub(crate) fn call(&self, call: TransactionCall<B>) {
        let mut state = self.state();
        state.committing = matches!(call, TransactionCall::Commit { .. });
        state.call = Some(call);
        drop(state);
        self.work.notify_one();
    }

    /// Whether a commit is not answered yet.
    pub(crate) fn is_committing(&self) -> bool {
        self.state().committing
    }

    /// Whether the writer has recovered since the last reset.
    pub(crate) fn is_recovered(&self) -> bool {
        self.state().recovered
    }

    /// What is known of a destination; requests one that is not known, or that accepted no records a while ago.
    ///
    /// # Errors
    /// As [`Destinations::ask`].
    pub(crate) fn ask(&self, name: &str, since: Option<Instant>) -> Result<F, NotTaken> {
        let (answer, requested) = self.state().destinations.ask(name, since);
        if requested {
            self.work.notify_one();
        }
        answer
    }

    /// Discards the call that the writer has not taken yet, and everything that is known.
    pub(crate) fn reset(&self) {
        let mut state = self.state();
        // The spare batch too: it may take records of destinations that the next writer has not opened.
        *state = LinkState::default();
        // With the state locked: an answer of the earlier generation comes before both, or has no effect.
        self.life.reset();
        drop(state);
        self.work.notify_one();
    }

    /// Ends the writer.
    pub(crate) fn close(&self) {
        self.life.close();
        self.work.notify_one();
    }

    /// An empty batch with memory, if there is one.
    pub(crate) fn spare(&self) -> B {
        self.state().spare.take().unwrap_or_default()
    }

    // The writer's side. What it has found counts only in the generation in which it has begun.

    /// The present generation.
    pub(crate) fn life(&self) -> Life {
        self.life.now()
    }

    /// Waits until the sink is in another generation, or closed.
    pub(crate) async fn ended(&self, generation: u64) {
        self.life.ended(generation).await;
    }

    /// Waits for work. Level-triggered: take first.
    pub(crate) async fn worked(&self) {
        self.work.notified().await;
    }

    /// The next job of this generation.
    pub(crate) fn take(&self, generation: u64) -> Option<WriterJob<B>> {
        let mut state = self.state();
        if !self.life.is(generation) {
            return None;
        }
        if let Some(call) = state.call.take() {
            return Some(WriterJob::Call(call));
        }
        // What is found is sure only after all former writers are excluded.
        if !state.recovered {
            return None;
        }
        state.destinations.next_wanted().map(WriterJob::LookUp)
    }

    /// Changes the state and posts, if the sink is still in this generation.
    fn answer(
        &self,
        generation: u64,
        change: impl FnOnce(&mut LinkState<B, F>),
        post: Option<Post>,
    ) {
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
    pub(crate) fn recovered(&self, generation: u64, post: Post) {
        self.answer(generation, |state| state.recovered = true, Some(post));
    }

    /// The commit is durable. The memory of its batch, which is empty now, is for the next one.
    pub(crate) fn committed(&self, generation: u64, call: SinkCall, batch: B) {
        let change = |state: &mut LinkState<B, F>| {
            state.committing = false;
            state.spare = Some(batch);
        };
        self.answer(generation, change, Some(Post::Committed { call }));
    }

    /// The pipeline has to recover, or to halt.
    pub(crate) fn lost(&self, generation: u64, post: Post) {
        let change = |state: &mut LinkState<B, F>| {
            state.recovered = false;
            state.committing = false;
        };
        self.answer(generation, change, Some(post));
    }

    /// A destination accepts records. `was_down`: its problem was reported.
    pub(crate) fn opened(&self, generation: u64, name: &str, facts: F, was_down: bool) {
        let post = if was_down { Post::Up { topic: Some(name.to_owned()) } } else { Post::Retry };
        self.answer(generation, |state| state.destinations.opened(name, facts), Some(post));
    }

    /// A destination accepts no records, for this reason, with a hint.
    pub(crate) fn unavailable(
        &self,
        generation: u64,
        (name, missing): (&str, bool),
        (reason, hint): (String, Option<String>),
    ) {
        let post = Post::Down { reason, hint, topic: Some(name.to_owned()), missing };
        self.answer(generation, |state| state.destinations.closed(name, missing), Some(post));
    }

    /// Posts, if the sink is still in this generation.
    pub(crate) fn post(&self, generation: u64, post: Post) {
        self.answer(generation, |_| {}, Some(post));
    }
}
