//! When the work of an owner begins, its pauses after failures, and how it is cancelled: the same for each task.

use crate::backoff::Backoff;
use crate::postgres::client::Canceller;
use std::future::Future;
use std::time::Duration;
use tokio::time::sleep;

/// The first run begins so long after the pipeline has begun to stream or poll, so that a process that only reconnects
/// again and again does not log in for maintenance too.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Pauses after failed runs.
pub(super) const FAILURE_BACKOFF: Backoff =
    Backoff::new(Duration::from_secs(5), Duration::from_mins(5));

/// How long a cancelled statement may take to end; after that its connection is closed.
const CANCEL_MAX: Duration = Duration::from_secs(1);

/// Pause between two cancel requests: the first one may have arrived between two statements.
const CANCEL_PAUSE: Duration = Duration::from_millis(300);

/// Cancels statements until they have ended, so that the next owner of the pipeline does not wait for their locks.
pub(super) async fn cancel(canceller: Option<Canceller>, statements: impl Future) {
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
