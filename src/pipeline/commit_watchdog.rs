//! Writes of ours that PostgreSQL takes long to commit: how long one waits in silence, and that a stop is heard
//! meanwhile. Statements that only read, or can be made again, are cancelled by a stop ([`unless_stopped`]).
//!
//! A row of the parked table commits with `synchronous_commit = on`: with a synchronous standby that is away it waits
//! until that is back, or taken out of `synchronous_standby_names`. Nothing is given up for it.

use super::lifecycle::Pipeline;
use super::log;
use super::poll::Polling;
use super::service::Stop;
use crate::postgres::client::Canceller;
use crate::postgres::{SourceError, SourceErrorKind, SqlState};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a write may take before that is told.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between two looks at a write that takes long.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a statement that was cancelled may take to end; then its session is given up.
const CANCEL_MAX: Duration = Duration::from_secs(3);

/// Pause between two requests to cancel: the first may have come between two statements.
const CANCEL_PAUSE: Duration = Duration::from_millis(300);

/// Waits for statements that can be made again, and cancels them when a stop is asked for: `None` then.
///
/// # Errors
/// Those of the statements; a time-out where they do not end though they were cancelled.
pub(super) async fn unless_stopped<T>(
    stop: &Stop,
    canceller: Option<Canceller>,
    statements: impl Future<Output = Result<T, SourceError>>,
) -> Result<Option<T>, SourceError> {
    let mut statements = pin!(statements);
    tokio::select! {
        biased;
        done = &mut statements => return done.map(Some),
        () = stop.drain() => {}
    }
    let mut cancelling = pin!(async {
        loop {
            // One that can't be sent is sent again; the statement has its time all the same.
            if let Some(canceller) = &canceller {
                drop(canceller.cancel().await);
            }
            sleep(CANCEL_PAUSE).await;
        }
    });
    tokio::select! {
        biased;
        done = &mut statements => match done {
            Ok(done) => Ok(Some(done)),
            Err(error) if error.sqlstate() == Some(SqlState::QUERY_CANCELED) => Ok(None),
            Err(error) => Err(error),
        },
        () = &mut cancelling => Ok(None),
        () = sleep(CANCEL_MAX) => {
            let kind = SourceErrorKind::Timeout(CANCEL_MAX);
            Err(SourceError::new(kind, "cancel a statement before the stop"))
        }
    }
}

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
            None if self.tell.write.is_some() => log::write_done(self),
            None => {}
            Some(_) if self.tell.write_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) => {}
            Some(_) => log::write_waits(self, WRITE_PATIENCE),
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
