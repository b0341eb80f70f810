//! The task: when a run begins, what follows a failure, and how a run is cancelled.

use super::duty::{self, Duty, OwnerEpoch, OwnersWork, ownership_ends};
use super::event_logs::EventLogsSpec;
use super::event_logs_task::EventLogsTask;
use super::inboxes::InboxesSpec;
use super::inboxes_task::InboxMaintenance;
use super::pace::{FAILURE_BACKOFF, FIRST_PAUSE, cancel};
use super::report::{MaintenanceReport, RunError};
use super::retention_task::{Retention, RetentionSpec};
use super::run::{MaintenanceSpec, RunOutcome};
use crate::backoff::Backoff;
use crate::status::StatusHandle;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Pause between two runs.
const INTERVAL: Duration = Duration::from_mins(1);

/// The longest wait for the end of the task.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The maintenance of one pipeline. Dropping it ends its sessions.
#[derive(Debug)]
pub(crate) struct Maintenance {
    owner: OwnerEpoch,
    /// The task for the tables in the source's database.
    task: JoinHandle<()>,
    /// The task for event logs, in another session and maybe another database.
    event_logs: Option<JoinHandle<()>>,
    /// A task for the inboxes of each database.
    inboxes: Vec<InboxMaintenance>,
    /// The task for the outbox table.
    retention: Option<Retention>,
}

impl Maintenance {
    /// Starts the tasks on the runtime of the pipeline's thread. They work while `owner` has an epoch. `event_logs`:
    /// the sink writes event logs. `inboxes`: the databases whose inboxes are maintained. `retention`: old rows of the
    /// outbox table are removed.
    pub(crate) fn start(
        spec: MaintenanceSpec,
        event_logs: Option<EventLogsSpec>,
        inboxes: Vec<InboxesSpec>,
        retention: Option<RetentionSpec>,
        owner: &OwnerEpoch,
        status_handle: StatusHandle,
    ) -> Self {
        let event_logs = event_logs.map(|spec| {
            let task = EventLogsTask::new(spec, owner, status_handle.clone());
            #[expect(
                clippy::disallowed_methods,
                reason = "the handle is kept, and aborted on drop"
            )]
            tokio::spawn(duty::serve(task))
        });
        let inboxes = inboxes
            .into_iter()
            .map(|spec| InboxMaintenance::start(spec, owner, status_handle.clone()))
            .collect();
        let retention = retention.map(|spec| Retention::start(spec, owner, status_handle.clone()));
        let report = MaintenanceReport::new(spec.key.pipeline.clone(), status_handle);
        let task = MaintenanceTask {
            spec,
            duty: owner.subscribe(),
            report,
            next_at: Instant::now(),
            backoff: FAILURE_BACKOFF,
        };
        #[expect(clippy::disallowed_methods, reason = "the handle is kept, and aborted on drop")]
        let task = tokio::spawn(duty::serve(task));
        Self { owner: owner.clone(), task, event_logs, inboxes, retention }
    }

    /// Cancels the statements that are running, and waits for the end of the sessions, but no longer than `grace`.
    pub(crate) async fn stop(mut self, grace: Duration) {
        self.owner.close();
        let Self { task, event_logs, inboxes, retention, .. } = &mut self;
        let ended = async {
            // A task ends by itself, or has panicked, which is logged.
            drop(task.await);
            if let Some(event_logs) = event_logs {
                drop(event_logs.await);
            }
            for inboxes in inboxes {
                inboxes.ended().await;
            }
            if let Some(retention) = retention {
                retention.ended().await;
            }
        };
        // A task that does not end in time is aborted.
        drop(tokio::time::timeout(grace.min(STOP_MAX), ended).await);
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(event_logs) = &self.event_logs {
            event_logs.abort();
        }
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

impl OwnersWork for MaintenanceTask {
    fn duty(&mut self) -> &mut watch::Receiver<Duty> {
        &mut self.duty
    }

    fn rests(&mut self) {
        self.report.rests();
    }

    fn begins(&mut self) {
        self.next_at = self.next_at.max(Instant::now() + FIRST_PAUSE);
    }

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
}

impl MaintenanceTask {
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
