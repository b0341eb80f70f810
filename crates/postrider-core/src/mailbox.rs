//! Posts of a sink, kept until the pipeline takes them: reports by ticket, and the broker's health.
//!
//! Any thread may post (librdkafka's do). One lock is taken for a post and one for a whole batch taken.

use crate::record::{Outcome, Ticket};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A message of a sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Post {
    /// What became of a record.
    Report {
        /// The record's ticket.
        ticket: Ticket,
        /// What became of it.
        outcome: Outcome,
    },
    /// A record that was refused as busy may be offered again.
    Retry,
    /// The broker can't be reached, or a destination can't accept records: the reason, and what fixes it.
    ///
    /// Repeated while it lasts. Nothing is lost meanwhile, and nothing is given up.
    Down {
        /// What is wrong, in one line, without secrets.
        reason: String,
        /// The line that fixes it, if there is one.
        hint: Option<String>,
        /// The destination, if the problem is that of one destination.
        topic: Option<String>,
        /// The destination was never known ([`NotTaken::Missing`](crate::sink::NotTaken::Missing)).
        missing: bool,
    },
    /// The broker, or the destination, accepts records again.
    Up {
        /// The destination; `None` if the broker answers again.
        topic: Option<String>,
    },
    /// A broker has answered, and its cluster is not the one that records may go to, or none was admitted yet.
    Located,
    /// The client's state can't be trusted any more: reset it and start from the cursor.
    ///
    /// Comes after the report of the record that was the cause, where there is one, and is not repeated.
    Broken {
        /// What is wrong.
        reason: String,
    },
    /// The sink can't be used as it is configured, and no waiting helps.
    Unfit {
        /// What is wrong.
        reason: String,
        /// What fixes it.
        hint: String,
    },
}

/// A box that the sink posts to and the pipeline takes from; clones share it.
#[derive(Clone, Default, Debug)]
pub struct Mailbox(Arc<Mutex<Held>>);

#[derive(Default, Debug)]
struct Held {
    posts: Vec<Post>,
    /// The task that waits for the first post. One task waits at a time: a second one would replace it.
    waiter: Option<Waker>,
}

impl Mailbox {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a post, and wakes the pipeline if the box was empty.
    pub fn post(&self, post: Post) {
        self.leave(|posts| posts.push(post));
    }

    /// Adds the outcome of one record.
    pub fn report(&self, ticket: Ticket, outcome: Outcome) {
        self.post(Post::Report { ticket, outcome });
    }

    /// Adds the same outcome of many records, under one lock.
    pub fn report_all(&self, tickets: &[Ticket], outcome: Outcome) {
        let posts = tickets.iter().map(|&ticket| Post::Report { ticket, outcome });
        self.leave(|held| held.extend(posts));
    }

    fn leave(&self, put: impl FnOnce(&mut Vec<Post>)) {
        let mut held = self.held();
        put(&mut held.posts);
        let waiter = if held.posts.is_empty() { None } else { held.waiter.take() };
        drop(held);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Takes all posts in their order, by exchanging the buffers: `into` must be empty.
    pub fn take(&self, into: &mut Vec<Post>) {
        debug_assert!(into.is_empty(), "posts taken before were not handled");
        std::mem::swap(&mut self.held().posts, into);
    }

    /// Waits until there may be a post. Level-triggered: take first, then wait, in a loop.
    pub async fn arrived(&self) {
        poll_fn(|context| {
            let mut held = self.held();
            if held.posts.is_empty() {
                held.waiter = Some(context.waker().clone());
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }
}
