//! The task for event logs: it works while this process owns the pipeline, on a session that is kept.

use super::duty::{Duty, OwnerEpoch, OwnersWork, ownership_ends};
use super::event_logs::{EventLogsSpec, STEPS, Step};
use super::event_logs_report::EventLogsReport;
use super::pace::{FIRST_PAUSE, Schedule, cancel};
use super::report::RunError;
use crate::postgres::control::Control;
use crate::status::StatusHandle;
use std::pin::pin;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The state of the task.
pub(super) struct EventLogsTask {
    spec: EventLogsSpec,
    /// What the pipeline has announced.
    duty: watch::Receiver<Duty>,
    report: EventLogsReport,
    /// When the steps are due.
    schedule: Schedule<Step, 3>,
    /// The session; `None` after a failure, and while this process does not own the pipeline.
    session: Option<Control>,
}

impl OwnersWork for EventLogsTask {
    fn duty(&mut self) -> &mut watch::Receiver<Duty> {
        &mut self.duty
    }

    fn rests(&mut self) {
        self.session = None;
        self.report.rests();
    }

    fn begins(&mut self) {
        self.schedule.postpone(Instant::now() + FIRST_PAUSE);
        self.report.begins();
    }

    async fn wait_and_run(&mut self, epoch: i64) {
        tokio::select! {
            biased;
            () = ownership_ends(&mut self.duty, epoch) => return,
            () = sleep_until(self.schedule.next_at()) => {}
        }
        let Some(failed) = self.run(epoch).await else {
            self.session = None;
            return;
        };
        if failed.is_empty() && self.schedule.all_done() {
            self.report.done();
        }
        for error in failed {
            // The session may be the reason.
            self.session = None;
            self.report.failed(error);
        }
    }
}

impl EventLogsTask {
    pub(super) fn new(
        spec: EventLogsSpec,
        owner: &OwnerEpoch,
        status_handle: StatusHandle,
    ) -> Self {
        let report = EventLogsReport::new(spec.pipeline.clone(), status_handle);
        Self {
            spec,
            duty: owner.subscribe(),
            report,
            schedule: Schedule::new(STEPS, Instant::now()),
            session: None,
        }
    }

    /// Does the steps that are due, and returns the errors; `None` if the epoch was lost meanwhile.
    async fn run(&mut self, epoch: i64) -> Option<Vec<RunError>> {
        let Self { spec, duty, report, schedule, session } = self;
        let mut lost = pin!(ownership_ends(duty, epoch));
        let due = schedule.due(Instant::now());
        let control = if let Some(control) = session {
            control
        } else {
            let opened = tokio::select! {
                biased;
                () = &mut lost => return None,
                opened = spec.connect() => opened,
            };
            match opened {
                Ok(control) => session.insert(control),
                Err(error) => {
                    for step in due {
                        schedule.ended(step, false, Instant::now(), step.pause(&spec.settings));
                    }
                    return Some(vec![error]);
                }
            }
        };
        let mut failed = Vec::new();
        for step in due {
            let mut work = pin!(spec.run(control.client(), step, report));
            let done = tokio::select! {
                biased;
                done = &mut work => done,
                () = &mut lost => {
                    cancel(control.canceller(), work).await;
                    return None;
                }
            };
            let pause = step.pause(&spec.settings);
            schedule.ended(step, done.is_ok(), Instant::now(), pause);
            failed.extend(done.err());
        }
        Some(failed)
    }
}
