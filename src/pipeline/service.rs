//! The pipelines of one process, each on a thread of its own, and the request to stop them.

use super::lifecycle::Pipeline;
use super::slot_monitor;
use super::spec::PipelineSpec;
use crate::error::Halt;
use crate::metrics::PipelineMetrics;
use crate::status::{PipelineState, StatusHandle};
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};

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
    pub(super) async fn leave(&self) {
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
    /// is in the log. Only [`Service`] returns it: a panic of an [`Embedded`](super::Embedded) pipeline reaches the
    /// caller of `run`.
    Bug,
}

/// The pipelines of one process.
#[derive(Debug)]
pub struct Service {
    pipelines: Vec<(String, JoinHandle<()>, oneshot::Receiver<PipelineExit>)>,
}

impl Service {
    /// Starts a thread for each pipeline.
    ///
    /// # Errors
    /// The system can't create a thread.
    pub fn start(
        pipelines: Vec<(PipelineSpec, StatusHandle, PipelineMetrics)>,
        stop: &Stop,
    ) -> std::io::Result<Self> {
        let mut started = Vec::with_capacity(pipelines.len());
        for (spec, status_handle, metrics) in pipelines {
            let name = spec.name().to_owned();
            let (ended, wait) = oneshot::channel();
            let stop = stop.clone();
            let thread = std::thread::Builder::new()
                .name(format!("pipeline-{name}"))
                .spawn(move || thread(&spec, &status_handle, metrics, &stop, ended))?;
            started.push((name, thread, wait));
        }
        Ok(Self { pipelines: started })
    }

    /// Waits for the next pipeline to end; `None` if none is left. The thread of a halted pipeline keeps querying its
    /// slot until the process stops.
    pub async fn next_exit(&mut self) -> Option<(String, PipelineExit)> {
        let (index, exit) = std::future::poll_fn(|context| {
            if self.pipelines.is_empty() {
                return std::task::Poll::Ready(None);
            }
            for (index, (_, _, wait)) in self.pipelines.iter_mut().enumerate() {
                // A dropped sender means that the thread panicked, so it has ended too.
                let ended = std::future::Future::poll(std::pin::Pin::new(wait), context);
                if let std::task::Poll::Ready(exit) = ended {
                    return std::task::Poll::Ready(Some((
                        index,
                        exit.unwrap_or(PipelineExit::Bug),
                    )));
                }
            }
            std::task::Poll::Pending
        })
        .await?;
        let (name, thread, _) = self.pipelines.swap_remove(index);
        if !matches!(exit, PipelineExit::Halted(_)) {
            // The exit reports a panic already.
            drop(thread.join());
        }
        Some((name, exit))
    }
}

fn thread(
    spec: &PipelineSpec,
    status_handle: &StatusHandle,
    metrics: PipelineMetrics,
    stop: &Stop,
    ended: oneshot::Sender<PipelineExit>,
) {
    // If this thread panics, its sender is dropped too.
    let guard = PanicGuard::new(status_handle.clone(), "a bug in Postrider: see the log");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "could not make the pipeline's runtime");
            return;
        }
    };
    let exit = runtime.block_on(Pipeline::live(
        spec.clone(),
        status_handle.clone(),
        metrics,
        stop.clone(),
    ));
    drop(guard);
    let halted = matches!(exit, PipelineExit::Halted(_));
    // Sending fails if the receiver is dropped: then the process is exiting, and the slot need not be monitored.
    if ended.send(exit).is_ok() && halted {
        runtime.block_on(slot_monitor::watch(spec, status_handle, stop));
    }
}

/// Sets the status to halted, with this reason, if the thread panics.
pub(super) struct PanicGuard {
    status_handle: StatusHandle,
    reason: &'static str,
}

impl PanicGuard {
    pub(super) fn new(status_handle: StatusHandle, reason: &'static str) -> Self {
        Self { status_handle, reason }
    }
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.status_handle.update(|snapshot| {
                snapshot.state = PipelineState::Halted;
                snapshot.reason = Some(self.reason.into());
            });
        }
    }
}
