//! The request to stop the pipelines of a process, and how a pipeline ends.

use crate::error::Halt;
use tokio::sync::watch;

/// How a pipeline is asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Urgency {
    /// No stop is requested.
    Run,
    /// Finish what is in flight, then stop.
    Drain,
    /// Stop at once. What is in flight is published again at the next start.
    Leave,
}

/// Requests a stop of all pipelines that have the matching [`Stop`].
#[derive(Debug, Clone)]
pub struct StopHandle(watch::Sender<Urgency>);

/// Receives the request to stop.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Urgency>);

impl StopHandle {
    /// Requests a stop: the first call drains, the second one stops at once.
    pub fn stop(&self) {
        self.0.send_modify(|urgency| {
            *urgency = if *urgency == Urgency::Run { Urgency::Drain } else { Urgency::Leave };
        });
    }
}

impl Stop {
    /// A pair without a requested stop.
    pub fn new() -> (StopHandle, Self) {
        let (sender, receiver) = watch::channel(Urgency::Run);
        (StopHandle(sender), Self(receiver))
    }

    /// Whether a stop of any kind is requested.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() != Urgency::Run
    }

    /// Waits until a drain, or an immediate stop, is requested. Cancel-safe.
    pub async fn drain(&self) {
        self.wait(Urgency::Drain).await;
    }

    /// Waits until an immediate stop is requested. Cancel-safe.
    pub(crate) async fn leave(&self) {
        self.wait(Urgency::Leave).await;
    }

    async fn wait(&self, least: Urgency) {
        let mut asked = self.0.clone();
        // A dropped handle can't request anything any more.
        if asked.wait_for(|urgency| *urgency >= least).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// How a pipeline ended.
#[derive(Debug)]
pub enum PipelineExit {
    /// Stopped on request. Everything in flight is finished, or is published again at the next start.
    Stopped,
    /// Halted: an operator must act.
    Halted(Box<Halt>),
    /// A panic of the pipeline's thread: a bug in Postrider, or in a sink of the caller's own. The message of the panic
    /// is in the log. Only [`Service`](super::Service) returns it: a panic of an [`Embedded`](super::Embedded) pipeline
    /// reaches the caller of `run`.
    Bug,
}
