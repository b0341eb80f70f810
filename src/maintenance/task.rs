//! The task: when a run begins, what follows a failure, and how a run is cancelled.

use super::duty::{Duty, OwnerEpoch, ownership_ends};
use super::report::{MaintenanceReport, RunError};
use super::run::{MaintenanceSpec, RunOutcome};
use crate::backoff::Backoff;
use crate::postgres::client::Canceller;
use crate::status::StatusHandle;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// Pause between two runs.
const INTERVAL: Duration = Duration::from_mins(1);

/// The first run begins so long after the pipeline has begun to stream or poll, so that a process that only reconnects
/// again and again does not log in for maintenance too.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses after failed runs.
const FAILURE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// How long a cancelled statement may take to end; after that its connection is closed.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// Pause between two cancel requests: the first one may have arrived between two statements.
const CANCEL_PAUSE: Duration = Duration::from_millis(300);

/// The longest wait for the end of the task.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The maintenance of one pipeline. Dropping it ends its session.
#[derive(Debug)]
pub(crate) struct Maintenance {
    owner: OwnerEpoch,
    task: JoinHandle<()>,
}

impl Maintenance {
    /// Starts the task on the runtime of the pipeline's thread. It works while `owner` has an epoch.
    pub(crate) fn start(
        spec: MaintenanceSpec,
        owner: &OwnerEpoch,
        status_handle: StatusHandle,
    ) -> Self {
        let report = MaintenanceReport::new(spec.key.pipeline.clone(), status_handle);
        let task = MaintenanceTask {
            spec,
            duty: owner.subscribe(),
            report,
            next_at: Instant::now(),
            backoff: FAILURE_BACKOFF,
        };
        #[expect(clippy::disallowed_methods, reason = "the handle is kept, and aborted on drop")]
        let task = tokio::spawn(task.serve());
        Self { owner: owner.clone(), task }
    }

    /// Cancels the statement that is running, and waits for the end of the session, but no longer than `grace`.
    pub(crate) async fn stop(mut self, grace: Duration) {
        self.owner.close();
        // A task that does not end in time is aborted.
        drop(tokio::time::timeout(grace.min(STOP_MAX), &mut self.task).await);
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of the task.
struct MaintenanceTask {
    spec: MaintenanceSpec,
    /// What the pipeline has announced.
    duty: watch::Receiver<Duty>,
    report: MaintenanceReport,
    /// When the next run begins.
    next_at: Instant,
    /// Pauses after failed runs.
    backoff: Backoff,
}

impl MaintenanceTask {
    async fn serve(mut self) {
        let mut owned = None;
        // An error means that the pipeline is gone.
        while self.duty.has_changed().is_ok() {
            let duty = *self.duty.borrow_and_update();
            match duty {
                Duty::End => return self.report.rests(),
                Duty::Idle => {
                    owned = None;
                    self.report.rests();
                    if self.duty.changed().await.is_err() {
                        return;
                    }
                }
                Duty::Owner(epoch) => {
                    if owned.replace(epoch) != Some(epoch) {
                        self.next_at = self.next_at.max(Instant::now() + FIRST_PAUSE);
                    }
                    self.wait_and_run(epoch).await;
                }
            }
        }
    }

    /// Waits for the next run, and runs it. Returns early if this process loses the epoch.
    async fn wait_and_run(&mut self, epoch: i64) {
        tokio::select! {
            biased;
            () = ownership_ends(&mut self.duty, epoch) => return,
            () = sleep_until(self.next_at) => {}
        }
        let pause = match self.run(epoch).await {
            None => return,
            Some(Ok(RunOutcome::Done)) => {
                self.report.done();
                self.backoff.reset();
                INTERVAL
            }
            Some(Ok(RunOutcome::NotOwner)) => {
                self.report.did_nothing();
                INTERVAL
            }
            Some(Err(error)) => {
                self.report.failed(error);
                self.backoff.next(fastrand::f64())
            }
        };
        self.next_at = Instant::now() + pause;
    }

    /// One run on a session of its own; `None` if the epoch was lost meanwhile.
    async fn run(&mut self, epoch: i64) -> Option<Result<RunOutcome, RunError>> {
        let Self { spec, duty, report, .. } = self;
        let mut lost = pin!(ownership_ends(duty, epoch));
        let opened = tokio::select! {
            biased;
            () = &mut lost => return None,
            opened = spec.connect() => opened,
        };
        let control = match opened {
            Ok(control) => control,
            Err(error) => return Some(Err(error)),
        };
        let mut work = pin!(spec.run(control.client(), epoch, report));
        tokio::select! {
            biased;
            done = &mut work => Some(done),
            () = &mut lost => {
                cancel(control.canceller(), work).await;
                None
            }
        }
    }
}

/// Cancels statements until they have ended, so that the next owner of the pipeline does not wait for their locks.
async fn cancel(canceller: Option<Canceller>, statements: impl Future) {
    let cancelling = async {
        loop {
            // A request that can't be sent is sent again. The statement has its time-out anyway.
            if let Some(canceller) = &canceller {
                drop(canceller.cancel().await);
            }
            sleep(CANCEL_PAUSE).await;
        }
    };
    tokio::select! {
        biased;
        _ = statements => {}
        () = cancelling => {}
        () = sleep(CANCEL_MAX) => {}
    }
}
