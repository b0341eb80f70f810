//! The owner before: whether records of it may still arrive at the broker, and the wait for their end.
//!
//! Slot and lock are free as soon as the server has ended the owner's session. A process that lost its session keeps
//! what it has in flight for [`LEASE`] at most, since the connection often comes back and nothing has to be sent twice
//! then. Whoever takes the pipeline over meanwhile would publish the same events, and their followers, between those
//! records. So an owner that ends with nothing in flight notes that in the cursor row, and the successor of an owner
//! that has not waits [`FORMER_WAIT`] before it publishes. The process that was the owner itself does not wait: its
//! relay knows what it has in flight.

use super::parking::Desk;
use super::pipeline::{Pipeline, Waited};
use super::run::Stop;
use super::say;
use crate::postgres::SourceError;
use crate::postgres::cursor;
use crate::sink::SinkSpec;
use std::future::Future;
use std::time::Duration;

/// How long records in flight may outlive the connection to the database: a healthy broker answers within it. After
/// that another process may publish, and what we still send would land behind what that process has sent: so it is
/// thrown away, and streamed again. Where the server has been silent, the time is over when we notice.
pub(super) const LEASE: Duration = Duration::from_secs(3);

/// How long the successor of such an owner waits, from when the pipeline's lock is its own: [`LEASE`], and a second for
/// the former owner to notice that its session has ended, and for the broker to answer what was sent last.
const FORMER_WAIT: Duration = Duration::from_secs(4);

/// How long the note may take that an owner writes at its end.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// Who owned the pipeline before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Former {
    /// The owner's epoch; 0 where nobody has owned the pipeline.
    pub(super) epoch: i64,
    /// The owner has noted that nothing of it is on its way to the broker.
    pub(super) left: bool,
}

impl Former {
    /// How long whoever follows waits. `own`: the epoch under which that process has owned the pipeline last.
    fn wait(self, own: Option<i64>) -> Option<Duration> {
        (!self.left && own != Some(self.epoch)).then_some(FORMER_WAIT)
    }
}

/// Waits until no record of the owner before can arrive any more. `lost` gives the error when the session ends that has
/// the pipeline's lock.
pub(super) async fn wait(
    pipeline: &mut Pipeline,
    (former, epoch): (Former, i64),
    lost: impl Future<Output = SourceError>,
    stop: &Stop,
) -> Waited<Result<(), SourceError>> {
    // What is written to standard output goes nowhere that two processes share.
    let shared = matches!(pipeline.spec.sink, SinkSpec::Kafka(_));
    if let Some(wait) = former.wait(pipeline.owns).filter(|_| shared) {
        say::waits_for_former_owner(pipeline, wait);
        let waited = async {
            tokio::select! {
                biased;
                error = lost => Err(error),
                () = tokio::time::sleep(wait) => Ok(()),
            }
        };
        match pipeline.waiting(waited, stop).await {
            Waited::Done(Ok(())) => {}
            over @ (Waited::Done(Err(_)) | Waited::Over(_)) => return over,
        }
    }
    pipeline.owns = Some(epoch);
    Waited::Done(Ok(()))
}

/// Notes in the cursor row that nothing of this process is on its way. Where that can't be written, or the wait of this
/// process itself was not over, the successor waits.
pub(super) async fn leave(pipeline: &Pipeline, desk: &Desk) {
    if pipeline.owns != Some(desk.epoch) {
        return;
    }
    let left = cursor::leave(desk.control.client(), pipeline.spec.name(), desk.epoch);
    if let Ok(Err(error)) = tokio::time::timeout(LEAVE_MAX, left).await {
        say::shutdown_error(pipeline, &error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_of_another_process_that_has_not_left_waits_longer_than_a_lease() {
        let former = Former { epoch: 7, left: false };
        assert!(former.wait(None) > Some(LEASE));
        assert_eq!(former.wait(Some(6)), Some(FORMER_WAIT));
        assert_eq!(former.wait(Some(7)), None, "its own records");
        assert_eq!(Former { left: true, ..former }.wait(None), None);
    }
}
