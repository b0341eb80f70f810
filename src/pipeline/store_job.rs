//! A statement that runs on a session while its pipeline does something else.

use crate::postgres::SourceError;
use std::future::Future;
use std::pin::Pin;

/// A statement that runs on a session.
pub(super) type StoreJob<T> = Pin<Box<dyn Future<Output = Result<T, SourceError>>>>;

/// Waits for the statement, if there is one. Cancel-safe.
pub(super) async fn await_job<T>(job: &mut Option<StoreJob<T>>) -> Result<T, SourceError> {
    match job {
        Some(job) => job.await,
        None => std::future::pending().await,
    }
}
