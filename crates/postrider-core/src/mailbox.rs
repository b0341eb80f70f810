//! The mailbox between a sink and its pipeline: the sink posts reports by ticket and the broker's health, and the posts
//! are kept until the pipeline takes them.
//!
//! Any thread may post; the threads of librdkafka do. A post takes one lock, and so does taking all posts.

use crate::record::{Outcome, Placement, Ticket};
use crate::sink_transaction::{SinkCall, SinkProgress};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A message of a sink.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Post {
    /// The outcome of a record.
    Report {
        /// The record's ticket.
        ticket: Ticket,
        /// The outcome.
        outcome: Outcome,
    },
    /// The record is acknowledged ([`Outcome::Acked`]), and the broker has said where it has stored the record.
    Published {
        /// The record's ticket.
        ticket: Ticket,
        /// The place.
        placement: Placement,
    },
    /// A record that was not accepted for a temporary reason may be offered again.
    Retry,
    /// The broker can't be reached, or a destination can't accept records.
    ///
    /// Repeated while the problem lasts. No record is lost or discarded meanwhile.
    Down {
        /// The problem, in one line, without secrets.
        reason: String,
        /// How to fix it, if that is known.
        hint: Option<String>,
        /// The destination, if the problem is that of one destination.
        topic: Option<String>,
        /// The destination was never available ([`NotTaken::Missing`](crate::sink::NotTaken::Missing)).
        missing: bool,
    },
    /// A destination refuses records for now. The sink keeps them and sends them again in their order, and records of
    /// other destinations are published meanwhile.
    ///
    /// Repeated while it lasts, and ended by [`Post::Up`] with the destination.
    Held {
        /// The destination.
        topic: String,
        /// The problem, in one line, without secrets.
        reason: String,
        /// How to fix it, if that is known.
        hint: Option<String>,
    },
    /// The broker, or the destination, accepts records again.
    Up {
        /// The destination; `None` if the broker answers again.
        topic: Option<String>,
    },
    /// A broker has answered, and its cluster is not the admitted one
    /// ([`Sink::admit`](crate::sink::Sink::admit)), or no cluster was admitted yet.
    Located,
    /// The answer to [`Transactional::recover`](crate::sink::Transactional::recover).
    Recovered {
        /// The call.
        call: SinkCall,
        /// What the last commit stored; `None` if there was none.
        progress: Option<SinkProgress>,
    },
    /// The answer to [`Transactional::commit`](crate::sink::Transactional::commit): the commit is durable.
    Committed {
        /// The call.
        call: SinkCall,
    },
    /// The client's state is unknown: the pipeline has to reset the sink and to start again from its cursor.
    ///
    /// Posted once, after the report of the record that was the cause, if there is such a record.
    Broken {
        /// The reason.
        reason: String,
    },
    /// The sink can't be used as it is configured, and a retry does not help.
    Unfit {
        /// The reason.
        reason: String,
        /// How to fix it.
        hint: String,
    },
}

/// The posts of a sink that the pipeline has not taken yet. Clones share them.
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

    /// Adds a post, and wakes the task that waits in [`Mailbox::arrived`].
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

    /// Adds the acknowledgements of many records, each with its place, under one lock.
    pub fn published_all(&self, placed: &[(Ticket, Placement)]) {
        let posts = placed.iter().map(|&(ticket, placement)| Post::Published { ticket, placement });
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

    /// Takes all posts in their order. `into` must be empty: the buffers are exchanged.
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
