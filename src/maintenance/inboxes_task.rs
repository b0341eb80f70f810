//! The task for inboxes: it works while this process owns the pipeline, on a session that is kept as long as there are
//! inboxes.

use super::duty::{self, Duty, OwnerEpoch, OwnersWork, ownership_ends};
use super::inboxes::{INBOX_STEPS, InboxStep, InboxWork, InboxesSpec};
use super::inboxes_report::InboxesReport;
use super::pace::{FAILURE_BACKOFF, FIRST_PAUSE, Schedule, cancel};
use super::report::RunError;
use crate::backoff::Backoff;
use crate::postgres::control::Control;
use crate::postgres::store::inbox_maintenance::InboxAccess;
use crate::status::StatusHandle;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// The first look is so much later than the first run of other maintenance: a role may have few sessions.
const LATER: Duration = Duration::from_secs(1);

/// Pause before a database that has no inboxes is looked at again.
const ABSENT_PAUSE: Duration = Duration::from_mins(3);

/// The maintenance of the inboxes of one database. Dropping it ends its session.
#[derive(Debug)]
pub(crate) struct InboxMaintenance {
    task: JoinHandle<()>,
}

impl InboxMaintenance {
    /// Starts the task on the runtime of this thread. It works while `owner` has an epoch; a process without a pipeline
    /// announces one that never ends. The readings are in `maintenance.inboxes` of the handle's snapshot.
    pub(crate) fn start(
        spec: InboxesSpec,
        owner: &OwnerEpoch,
        status_handle: StatusHandle,
    ) -> Self {
        let task = InboxesTask::new(spec, owner, status_handle);
        #[expect(clippy::disallowed_methods, reason = "the handle is kept, and aborted on drop")]
        let task = tokio::spawn(duty::serve(task));
        Self { task }
    }

    /// Waits for the end of the task, which its owner has announced, and of its session.
    pub(super) async fn ended(&mut self) {
        // A task ends by itself, or has panicked, which is logged.
        drop((&mut self.task).await);
    }
}

impl Drop for InboxMaintenance {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of the task.
struct InboxesTask {
    spec: InboxesSpec,
    /// What the pipeline has announced.
    duty: watch::Receiver<Duty>,
    report: InboxesReport,
    /// When the steps are due.
    schedule: Schedule<InboxStep, 3>,
    work: InboxWork,
    /// The session; `None` after a failure, while there is nothing to do, and while this process does not own the
    /// pipeline.
    session: Option<Control>,
    /// Pauses while the rights are missing.
    denied: Backoff,
}

impl OwnersWork for InboxesTask {
    fn duty(&mut self) -> &mut watch::Receiver<Duty> {
        &mut self.duty
    }

    fn rests(&mut self) {
        self.session = None;
        self.work = InboxWork::default();
        self.report.rests();
    }

    fn begins(&mut self) {
        self.schedule.postpone(Instant::now() + FIRST_PAUSE + LATER);
    }

    async fn wait_and_run(&mut self, epoch: i64) {
        tokio::select! {
            biased;
            () = ownership_ends(&mut self.duty, epoch) => return,
            () = sleep_until(self.schedule.next_at()) => {}
        }
        let opened = match &self.session {
            Some(_) => Some(true),
            None => self.open(epoch).await,
        };
        match opened {
            None => self.session = None,
            Some(false) => {}
            Some(true) => {
                if !self.run(epoch).await {
                    self.session = None;
                }
            }
        }
    }
}

impl InboxesTask {
    fn new(spec: InboxesSpec, owner: &OwnerEpoch, status_handle: StatusHandle) -> Self {
        let report = InboxesReport::new(spec.owner.clone(), spec.database, status_handle);
        Self {
            spec,
            duty: owner.subscribe(),
            report,
            schedule: Schedule::new(INBOX_STEPS, Instant::now()),
            work: InboxWork::default(),
            session: None,
            denied: FAILURE_BACKOFF,
        }
    }

    /// Opens a session. Returns whether there is something to do; `None` if the epoch was lost meanwhile.
    async fn open(&mut self, epoch: i64) -> Option<bool> {
        let opened = tokio::select! {
            biased;
            () = ownership_ends(&mut self.duty, epoch) => return None,
            opened = self.spec.connect() => opened,
        };
        let pause = match opened {
            Ok((control, InboxAccess::Granted)) => {
                self.denied.reset();
                self.report.granted();
                self.session = Some(control);
                return Some(true);
            }
            Ok((_, InboxAccess::Absent)) => {
                self.report.absent();
                ABSENT_PAUSE
            }
            Ok((_, InboxAccess::Outdated)) => {
                let reason = "the database has an earlier version of the SQL toolkit";
                self.refused(reason)
            }
            Ok((_, InboxAccess::Denied)) => {
                let user = self.spec.conninfo.user();
                let reason =
                    format!("role {user:?} has not all rights of a relay of the SQL toolkit");
                self.refused(&reason)
            }
            Err(error) => {
                for step in self.schedule.due(Instant::now()) {
                    let pause = step.pause(&self.spec.settings, false);
                    self.schedule.ended(step, false, Instant::now(), pause);
                }
                self.report.failed(error);
                return Some(false);
            }
        };
        self.schedule.postpone(Instant::now() + pause);
        Some(false)
    }

    /// Reports why nothing is done, and returns the pause before the next attempt.
    fn refused(&mut self, reason: &str) -> Duration {
        let hint = format!(
            "as an administrator: {}; or turn this off: maintenance.inbox_enabled = false",
            self.spec.install_command()
        );
        self.report.denied(reason, &hint);
        self.denied.next(fastrand::f64())
    }

    /// Does the steps that are due. Returns whether the session is kept.
    async fn run(&mut self, epoch: i64) -> bool {
        let Self { spec, duty, report, schedule, work, session, .. } = self;
        let Some(control) = session else { return false };
        let mut lost = pin!(ownership_ends(duty, epoch));
        let mut failed: Vec<RunError> = Vec::new();
        let mut is_kept = true;
        for step in schedule.due(Instant::now()) {
            let mut working = pin!(work.run(spec, control.client(), step, report));
            let done = tokio::select! {
                biased;
                done = &mut working => done,
                () = &mut lost => {
                    cancel(control.canceller(), working).await;
                    return false;
                }
            };
            let now = Instant::now();
            match done {
                Ok(end) => {
                    schedule.ended(step, true, now, step.pause(&spec.settings, end.more));
                    failed.extend(end.failed);
                }
                Err(error) => {
                    schedule.ended(step, false, now, step.pause(&spec.settings, false));
                    failed.push(error);
                    // The session may be the reason, or a right that is missing.
                    is_kept = false;
                }
            }
        }
        if failed.is_empty() && schedule.all_done() && work.all_done() {
            report.done();
        }
        for error in failed {
            report.failed(error);
        }
        is_kept
    }
}
