//! What a source is whose messages are acknowledged one by one, after they are stored.
//!
//! Such a broker sends a message again that is not acknowledged. So a message is acknowledged behind the commit of its
//! transaction, and one that comes again is recognised by what the inbox remembers of it. A source gives messages in
//! the order of their stream: it holds those back before which an earlier one is neither acknowledged nor here.

use crate::delivery::Delivery;
use std::future::Future;
use std::time::Duration;

/// What a broker does not do, in words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceProblem {
    /// What is wrong, in one line.
    pub reason: String,
    /// What fixes it.
    pub hint: Option<String>,
    /// Nothing is wrong: another process reads.
    pub stands_by: bool,
}

/// Messages that the broker has deleted before they were stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostMessages {
    /// Their number at most.
    pub messages: u64,
    /// What has deleted which.
    pub reason: String,
    /// What keeps more from being deleted.
    pub hint: String,
}

/// What a source looks at now and then.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Messages that are not stored; `None` if the broker does not say it.
    pub lag: Option<u64>,
    /// What was found to be lost since the last look.
    pub lost: Vec<LostMessages>,
    /// What can't be read, while other streams are: what is wrong, and what fixes it.
    pub missing: Vec<(String, String)>,
}

/// A connection that reads one stream or queue.
pub trait AckedSource: Sized {
    /// The settings.
    type Config;

    /// What is read, in words that are the same for all processes that read it: one of them reads at a time.
    fn turn(config: &Self::Config) -> String;

    /// What is read, for messages.
    fn place(config: &Self::Config) -> String;

    /// Connects. `attempt` chooses the server that is tried first.
    ///
    /// # Errors
    /// No server can be used, or what is to be read does not exist.
    fn open(
        config: &Self::Config,
        intake: &str,
        attempt: usize,
    ) -> impl Future<Output = Result<Self, SourceProblem>>;

    /// Takes in messages until `max` are held, and waits for the first one at most `wait`.
    ///
    /// # Errors
    /// The connection is lost.
    fn receive(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<(), SourceProblem>>;

    /// The messages that can be stored, in their order.
    fn ready(&self) -> impl Iterator<Item = &Delivery>;

    /// Why messages that have come can't be stored yet; `None` if they can.
    fn waits_for(&self) -> Option<String>;

    /// The first messages of [`ready`](Self::ready) are stored.
    ///
    /// # Errors
    /// The connection is lost: the broker sends some of them again.
    fn acknowledge(&mut self, count: usize) -> impl Future<Output = Result<(), SourceProblem>>;

    /// Looks at the broker.
    ///
    /// # Errors
    /// The connection is lost.
    fn look(&mut self) -> impl Future<Output = Result<Look, SourceProblem>>;

    /// Keeps the connection alive for some time, while nothing can be stored. Cancel-safe.
    ///
    /// # Errors
    /// The connection is lost.
    fn idle(&mut self, time: Duration) -> impl Future<Output = Result<(), SourceProblem>>;

    /// What passes a message that the table refuses for ever, at the broker.
    fn passes(&self) -> Option<String>;

    /// Gives back what is not stored, and ends the connection.
    fn close(self) -> impl Future<Output = ()>;
}
