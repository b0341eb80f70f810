//! The task for the outbox table: it removes what is old, published and needed by nobody, while this process owns the
//! pipeline. A pass has a session of its own, which ends with it.

use super::duty::{self, Duty, OwnerEpoch, OwnersWork, ownership_ends};
use super::pace::{FAILURE_BACKOFF, FIRST_PAUSE, cancel};
use super::report::RunError;
use super::retention_report::RetentionReport;
use crate::backoff::Backoff;
use crate::postgres::control::Control;
use crate::postgres::retention::{PassEvent, RetentionRule, pass};
use crate::postgres::{Conninfo, SourceError, SourceErrorKind, SqlState, error_policy};
use crate::status::StatusHandle;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Client;

/// The longest time for a login.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// A pass is followed by a pause that is at least so many times as long as the pass.
const REST: u32 = 10;

/// What the task knows of its pipeline.
#[derive(Clone, Debug)]
pub(crate) struct RetentionSpec {
    /// The database.
    pub(crate) conninfo: Conninfo,
    /// Which rows are kept, and what becomes of the others.
    pub(crate) rule: RetentionRule,
}

/// The retention of one pipeline. Dropping it ends its session.
#[derive(Debug)]
pub(super) struct Retention {
    task: JoinHandle<()>,
}

impl Retention {
    /// Starts the task on the runtime of this thread. It works while `owner` has an epoch.
    pub(super) fn start(
        spec: RetentionSpec,
        owner: &OwnerEpoch,
        status_handle: StatusHandle,
    ) -> Self {
        let task = RetentionTask::new(spec, owner, status_handle);
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

impl Drop for Retention {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of the task.
struct RetentionTask {
    spec: RetentionSpec,
    /// What the pipeline has announced.
    duty: watch::Receiver<Duty>,
    report: RetentionReport,
    /// When the next pass begins.
    next_at: Instant,
    /// Pauses after failed passes.
    backoff: Backoff,
}

impl OwnersWork for RetentionTask {
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
        let started = Instant::now();
        let Some(failed) = self.run(epoch).await else { return };
        let pause = match failed {
            None => {
                self.report.done();
                self.backoff.reset();
                self.spec.rule.settings.interval.max(started.elapsed() * REST)
            }
            Some(error) => {
                self.report.failed(error);
                self.backoff.next(fastrand::f64())
            }
        };
        self.next_at = Instant::now() + pause;
    }
}

impl RetentionTask {
    fn new(spec: RetentionSpec, owner: &OwnerEpoch, status_handle: StatusHandle) -> Self {
        let report = RetentionReport::new(spec.rule.table.key.pipeline.clone(), status_handle);
        let next_at = Instant::now();
        Self { spec, duty: owner.subscribe(), report, next_at, backoff: FAILURE_BACKOFF }
    }

    /// One pass on a session of its own; `None` if the epoch was lost meanwhile.
    async fn run(&mut self, epoch: i64) -> Option<Option<RunError>> {
        let Self { spec, duty, report, .. } = self;
        let mut lost = pin!(ownership_ends(duty, epoch));
        let opened = tokio::select! {
            biased;
            () = &mut lost => return None,
            opened = spec.connect() => opened,
        };
        let control = match opened {
            Ok(control) => control,
            Err(error) => {
                let hint = error_policy::hint(&error);
                return Some(Some(RunError { error, hint }));
            }
        };
        let done = {
            let mut on = |event: PassEvent<'_>| report.event(event);
            let mut work = pin!(pass(control.client(), &spec.rule, &mut on));
            tokio::select! {
                biased;
                done = &mut work => Some(done),
                () = &mut lost => {
                    cancel(control.canceller(), work).await;
                    None
                }
            }
        };
        let done = done?;
        report.passed(&done);
        match done.errors.into_iter().next() {
            Some(error) => Some(Some(spec.explained(control.client(), error).await)),
            None => Some(None),
        }
    }
}

impl RetentionSpec {
    async fn connect(&self) -> Result<Control, SourceError> {
        let name = format!("postrider {} retention", self.rule.table.key.pipeline);
        let opened = tokio::time::timeout(CONNECT_MAX, Control::connect(&self.conninfo, &name));
        opened.await.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(CONNECT_MAX);
            Err(SourceError::new(kind, "open the session of retention").caused_by(elapsed))
        })
    }

    /// An error with what fixes it.
    async fn explained(&self, client: &Client, error: SourceError) -> RunError {
        // The rights are shown to people only: if they can't be read, the general hint remains.
        let missing = if error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE) {
            self.rule.missing_rights(client).await.unwrap_or_default()
        } else {
            Vec::new()
        };
        let hint = self.rule.hint(&error, &missing).or_else(|| error_policy::hint(&error));
        RunError { error, hint }
    }
}
