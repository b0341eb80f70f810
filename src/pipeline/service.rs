//! Any number of pipelines in one process, each on its own thread, and how they are told to stop.

use super::lifecycle::Pipeline;
use super::slot_monitor;
use super::spec::PipelineSpec;
use crate::error::Halt;
use crate::metrics::PipelineMetrics;
use crate::status::{State, StatusHandle};
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};

/// How urgently a stop is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Urgency {
    /// Not at all.
    Run,
    /// Finish what is in flight.
    Drain,
    /// Leave; what is in flight is published again at the next start.
    Leave,
}

/// The end that tells pipelines to stop.
#[derive(Debug, Clone)]
pub struct StopHandle(watch::Sender<Urgency>);

/// The end that a pipeline listens to.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Urgency>);

impl StopHandle {
    /// Asks for a stop: the first call drains, the second leaves at once.
    pub fn stop(&self) {
        self.0.send_modify(|urgency| {
            *urgency = if *urgency == Urgency::Run { Urgency::Drain } else { Urgency::Leave };
        });
    }
}

impl Stop {
    /// A stop that has not been asked for.
    pub fn new() -> (StopHandle, Self) {
        let (sender, receiver) = watch::channel(Urgency::Run);
        (StopHandle(sender), Self(receiver))
    }

    /// Whether any stop was asked for.
    pub fn is_asked_for(&self) -> bool {
        *self.0.borrow() != Urgency::Run
    }

    /// Waits until a drain, or more, is asked for.
    pub async fn drain(&self) {
        self.wait(Urgency::Drain).await;
    }

    /// Waits until leaving at once is asked for.
    pub(super) async fn leave(&self) {
        self.wait(Urgency::Leave).await;
    }

    async fn wait(&self, least: Urgency) {
        let mut asked = self.0.clone();
        // A handle that is gone asks for nothing any more.
        if asked.wait_for(|urgency| *urgency >= least).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// How a pipeline ended.
#[derive(Debug)]
pub enum Exit {
    /// Told to stop, and everything in flight is finished or will come again.
    Stopped,
    /// Stopped for an operator.
    Halted(Box<Halt>),
    /// An invariant of our own broke; the message of the panic stands in the log.
    Bug,
}

/// The pipelines of one process.
#[derive(Debug)]
pub struct Service {
    pipelines: Vec<(String, JoinHandle<()>, oneshot::Receiver<Exit>)>,
}

impl Service {
    /// Starts a thread for each pipeline.
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

    /// Waits for the next pipeline to end; `None` when none is left. The thread of a halted one goes on looking at its
    /// slot until the process is told to stop.
    pub async fn next_exit(&mut self) -> Option<(String, Exit)> {
        let (index, exit) = std::future::poll_fn(|context| {
            if self.pipelines.is_empty() {
                return std::task::Poll::Ready(None);
            }
            for (index, (_, _, wait)) in self.pipelines.iter_mut().enumerate() {
                // A dropped sender is a thread that panicked: it has ended as well.
                let ended = std::future::Future::poll(std::pin::Pin::new(wait), context);
                if let std::task::Poll::Ready(exit) = ended {
                    return std::task::Poll::Ready(Some((index, exit.unwrap_or(Exit::Bug))));
                }
            }
            std::task::Poll::Pending
        })
        .await?;
        let (name, thread, _) = self.pipelines.swap_remove(index);
        if !matches!(exit, Exit::Halted(_)) {
            // A panic is told by the exit already.
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
    ended: oneshot::Sender<Exit>,
) {
    // Where this thread panics, its sender is dropped with it.
    let guard = Panic { status_handle: status_handle.clone() };
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
    let halted = matches!(exit, Exit::Halted(_));
    // Sending fails when the supervisor has dropped the receiver: the process is exiting, and the slot need not be
    // watched.
    if ended.send(exit).is_ok() && halted {
        runtime.block_on(slot_monitor::watch(spec, status_handle, stop));
    }
}

/// Shows on the status that the thread panicked.
struct Panic {
    status_handle: StatusHandle,
}

impl Drop for Panic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.status_handle.update(|snapshot| {
                snapshot.state = State::Halted;
                snapshot.reason = Some("a bug in Postrider: see the log".into());
            });
        }
    }
}
