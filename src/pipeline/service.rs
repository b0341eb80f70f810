//! The pipelines of one process, each on a thread of its own.

use super::slot_monitor;
use super::spec::PipelineSpec;
use super::stop::{PipelineExit, Stop};
use super::supervisor::Supervisor;
use crate::metrics::PipelineMetrics;
use crate::status::{PipelineState, StatusHandle};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

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
    let exit = runtime.block_on(Supervisor::live(
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
