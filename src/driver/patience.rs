//! Writes of ours that PostgreSQL takes long to commit: how long one waits in silence, and that a stop is heard
//! meanwhile.
//!
//! A row of the parked table commits with `synchronous_commit = on`: with a synchronous standby that is away it waits
//! until that is back, or taken out of `synchronous_standby_names`. Nothing is given up for it.

use super::pipeline::Pipeline;
use super::poll::Polling;
use super::run::Stop;
use super::say;
use crate::postgres::{SourceError, SourceErrorKind};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a write may take before that is told.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two looks at a write that takes long.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Pipeline {
    /// Waits until nothing is under way on the control session: one of them may be a write.
    pub(super) async fn finish_jobs(
        &mut self,
        polling: &mut Polling,
        stop: &Stop,
    ) -> Result<(), SourceError> {
        let finished = async {
            polling.desk.jobs.finish().await;
            Ok(())
        };
        self.patiently(stop, finished).await
    }

    /// Tells of a write that has been under way since then, if that is too long; and when it no longer is.
    pub(super) fn writes_wait(&mut self, since: Option<Instant>) {
        let long = since.filter(|since| since.elapsed() >= WRITE_PATIENCE);
        match long {
            None if self.tell.write.is_some() => say::write_done(self),
            None => {}
            Some(_) if self.tell.write_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) => {}
            Some(_) => say::write_waits(self, WRITE_PATIENCE),
        }
    }

    /// Waits for a statement that may take as long as a standby is away; no longer than a stop allows.
    pub(super) async fn patiently<T>(
        &mut self,
        stop: &Stop,
        statement: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, SourceError> {
        let (mut statement, since) = (pin!(statement), Instant::now());
        let grace = self.spec.shutdown_grace;
        let mut enough = pin!(async {
            stop.drain().await;
            tokio::select! {
                () = stop.leave() => {}
                () = sleep(grace) => {}
            }
        });
        loop {
            tokio::select! {
                biased;
                done = &mut statement => {
                    self.writes_wait(None);
                    return done;
                }
                () = &mut enough => {
                    let kind = SourceErrorKind::Timeout(since.elapsed());
                    return Err(SourceError::new(kind, "commit a write before the stop"));
                }
                () = sleep(LOOK_INTERVAL) => {
                    self.writes_wait(Some(since));
                    self.report_sometimes(None);
                }
            }
        }
    }
}
