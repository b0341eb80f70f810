//! Writes that PostgreSQL takes long to commit: when that is logged, and how a stop ends the wait. Statements that only
//! read, or that can be repeated, are cancelled by a stop ([`unless_stopped`]).
//!
//! Rows of the parked table are committed with `synchronous_commit = on`. If a synchronous standby is unavailable, the
//! commit waits until the standby is back or is removed from `synchronous_standby_names`. Nothing is given up because
//! of it.

use super::running::Pipeline;
use super::stop::Stop;
use super::store_port::StorePort;
use crate::postgres::client::Canceller;
use crate::postgres::{SourceError, SourceErrorKind, SqlState};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between two checks of a slow write.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a cancelled statement may take to end; after that its session is given up.
const CANCEL_MAX: Duration = Duration::from_secs(3);

/// Pause between two cancel requests: the first one may have arrived between two statements.
const CANCEL_PAUSE: Duration = Duration::from_millis(300);

/// Waits for statements that can be repeated, and cancels them when a stop is requested: then the result is `None`.
///
/// # Errors
/// Errors of the statements; a time-out if they do not end although they were cancelled.
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
            // A request that can't be sent is sent again. The statement has its time anyway.
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

/// Waits until no statement is running on the control session: one of them may be a write.
pub(super) async fn finish_jobs(
    pipeline: &mut Pipeline,
    store: &mut StorePort,
    stop: &Stop,
) -> Result<(), SourceError> {
    let finished = async {
        store.finish().await;
        Ok(())
    };
    within_shutdown_grace(pipeline, stop, finished).await
}

/// Waits for a statement that may take as long as a standby is unavailable, but no longer than the shutdown grace
/// period after a stop.
pub(super) async fn within_shutdown_grace<T>(
    pipeline: &mut Pipeline,
    stop: &Stop,
    statement: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    let (mut statement, since) = (pin!(statement), Instant::now());
    let grace = pipeline.spec.shutdown_grace;
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
                pipeline.observer.store().slow_write(None);
                return done;
            }
            () = &mut enough => {
                let kind = SourceErrorKind::Timeout(since.elapsed());
                return Err(SourceError::new(kind, "commit a write before the stop"));
            }
            () = sleep(LOOK_INTERVAL) => {
                pipeline.observer.store().slow_write(Some(since));
                pipeline.report_sometimes(None);
            }
        }
    }
}
