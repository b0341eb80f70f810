//! The previous owner of the pipeline: whether its records may still arrive at the broker, and the wait for their end.
//!
//! Slot and lock are free as soon as the server has ended the owner's session. A process that has lost its session
//! keeps what it has in flight for at most [`LEASE`], because the connection often comes back, and then nothing is sent
//! twice. Another process that takes over meanwhile would publish the same events, and later ones, between these
//! records. So an owner that ends with nothing in flight notes that in the cursor row, and the successor of an owner
//! without this note waits for [`FORMER_WAIT`] before it publishes. A process that was the owner itself does not wait:
//! its relay knows what is in flight. After a pause the relay is a new one, and the process waits like any other.
//!
//! After a failover the row may lack the last owner's epoch, so on another server every process waits.

use super::failure::End;
use super::running::{Pipeline, Waited};
use super::stop::Stop;
use super::store_port::{FormerOwner, StorePort};
use crate::maintenance::OwnerEpoch;
use crate::postgres::store::cursor;
use crate::postgres::{SourceError, SourceErrorKind};
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// How long records in flight may outlive the connection to the database; a healthy broker answers within this time.
/// After it another process may publish, and records of this process would land after the records of that one. So they
/// are given up, and streamed again. If the server has been silent, the time is over when that is noticed.
const LEASE: Duration = Duration::from_secs(3);

/// How long the successor of such an owner waits, from when it has the pipeline's lock. An owner behind a slow broker
/// does not read from its session, and notices its end by a failed write, after at most 2 s; then comes [`LEASE`]; the
/// thread that closes producers may wait for an answer of a broker for 2 s; and requests that are already sent get 1 s
/// (`sink::kafka`).
pub(super) const FORMER_WAIT: Duration = Duration::from_secs(8);

/// How long an owner may take to write the note at its end.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// What a process knows of its ownership of the pipeline.
#[derive(Clone, Debug)]
pub(super) struct Ownership {
    /// The epoch under which the process last owned the pipeline, streaming or polling. Set when no record of the
    /// previous owner can arrive any more.
    epoch: Option<i64>,
    /// The epoch under which the process waits, or has last waited without reaching the end, and the end of that wait.
    waits: Option<(i64, Instant)>,
    /// When events in flight must be given up while there is no stream.
    lease_ends: Instant,
    /// The epoch for the maintenance of the pipeline's tables, while a session streams or polls.
    announced: OwnerEpoch,
}

impl Ownership {
    pub(super) fn new() -> Self {
        let announced = OwnerEpoch::default();
        Self { epoch: None, waits: None, lease_ends: Instant::now(), announced }
    }

    /// What is announced to maintenance.
    pub(super) fn announced(&self) -> &OwnerEpoch {
        &self.announced
    }

    /// No session streams or polls any more.
    pub(super) fn session_ended(&self) {
        self.announced.ends();
    }

    /// When events in flight must be given up while there is no stream.
    pub(super) fn lease_ends(&self) -> Instant {
        self.lease_ends
    }

    /// A stream has ended this way: the lease begins.
    pub(super) fn stream_ended(&mut self, end: &End) {
        self.lease_ends = Instant::now() + lease(end);
    }

    /// The pipeline was paused, and its sink closed: the process continues like a new one. If it had given events up,
    /// it waits for its own records as for those of another process, because the relay that knew them is gone.
    pub(super) fn paused(&mut self) {
        self.epoch = None;
    }

    /// Waits until no record of the previous owner can arrive any more. `lost` returns the error when the session with
    /// the pipeline's lock ends. Returns whether the pipeline still belongs to this process.
    pub(super) async fn wait(
        &mut self,
        pipeline: &mut Pipeline,
        store: &mut StorePort,
        lost: impl Future<Output = SourceError>,
        stop: &Stop,
    ) -> Waited<Result<bool, SourceError>> {
        let histories = store.histories();
        let (epoch, other_server) = (store.epoch(), histories.raised.is_some() && !histories.first);
        // Standard output is not shared between processes, and a recovery of a sink that publishes in transactions
        // excludes the previous owner.
        let capabilities = pipeline.spec.sink.capabilities();
        let shared = capabilities.remote && capabilities.transactions.is_none();
        let until = self.may_publish_at(store.former(), other_server).filter(|_| shared);
        if let Some(until) = until {
            self.waits = Some((epoch, until));
            // A wait that began in an earlier session may be over.
            if until > Instant::now() {
                pipeline.observer.source().waits_for_former_owner(until);
                pipeline.report(None);
            }
            let (client, key) = (store.shared_client(), store.key().clone());
            let waited = async {
                tokio::select! {
                    biased;
                    error = lost => return Err(error),
                    error = store.closed() => return Err(error),
                    () = tokio::time::sleep_until(until) => {}
                }
                // The session may have ended unnoticed: its socket is not read while much waits to be published.
                cursor::is_owned(&client, &key, epoch).await
            };
            match pipeline.waiting(waited, self.lease_ends, stop).await {
                Waited::Done(Ok(true)) => {}
                over @ (Waited::Done(Ok(false) | Err(_)) | Waited::Over(_)) => {
                    pipeline.observer.source().waits_no_longer();
                    return over;
                }
            }
        }
        (self.epoch, self.waits) = (Some(epoch), None);
        self.announced.begins(epoch);
        Waited::Done(Ok(true))
    }

    /// Notes in the cursor row that no record of this process is in flight. If the note can't be written, if the sink
    /// gave something up a moment ago, or if the wait of this process itself was not over, the successor waits.
    pub(super) async fn leave(&self, pipeline: &mut Pipeline, store: &StorePort) {
        self.session_ended();
        if !self.may_leave(store.epoch(), pipeline.sink.reset_at()) {
            return;
        }
        let left = cursor::leave(store.client(), store.key(), store.epoch());
        if let Ok(Err(error)) = tokio::time::timeout(LEAVE_MAX, left).await {
            pipeline.observer.source().shutdown_error(&error);
        }
    }

    /// When the process may publish after this owner; `None` for at once.
    fn may_publish_at(&self, former: FormerOwner, other_server: bool) -> Option<Instant> {
        let whole = Instant::now() + FORMER_WAIT;
        match self.waits {
            _ if other_server => Some(whole),
            // No other process has owned the pipeline since that wait began.
            Some((epoch, until)) if epoch == former.epoch => Some(until),
            _ if former.left || self.epoch == Some(former.epoch) => None,
            _ => Some(whole),
        }
    }

    /// Whether no record of this process can arrive any more once nothing is in flight. `reset_at`: when the sink last
    /// gave up what was in flight.
    fn may_leave(&self, epoch: i64, reset_at: Option<std::time::Instant>) -> bool {
        self.epoch == Some(epoch) && reset_at.is_none_or(|at| at.elapsed() >= FORMER_WAIT)
    }
}

/// How long events in flight may remain in flight after a stream ended this way.
fn lease(end: &End) -> Duration {
    match end {
        End::Lost(error, _) if matches!(error.kind(), SourceErrorKind::Silent(_)) => Duration::ZERO,
        End::Lost(..) | End::Paused | End::Restart | End::DropSlot(_) | End::Over(_) => LEASE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::error_policy::Phase;

    #[test]
    fn lease_is_zero_after_a_silent_server_and_seconds_after_other_errors() {
        let lost = |kind| End::Lost(SourceError::new(kind, "stream"), Phase::Stream);
        let silent = lost(SourceErrorKind::Silent(Duration::from_secs(13)));
        assert_eq!(lease(&silent), Duration::ZERO);
        assert_eq!(lease(&lost(SourceErrorKind::Closed)), Duration::from_secs(3));
    }

    #[test]
    fn successor_of_an_owner_without_a_note_waits_longer_than_a_lease() {
        let waits = |own: Ownership, former, other_server| {
            let at = own.may_publish_at(former, other_server);
            at.map(|at| at.saturating_duration_since(Instant::now()))
        };
        let former = FormerOwner { epoch: 7, left: false };
        let own = |epoch| Ownership { epoch, ..Ownership::new() };
        assert!(waits(own(None), former, false) > Some(2 * LEASE));
        assert!(waits(own(Some(6)), former, false).is_some());
        assert_eq!(waits(own(Some(7)), former, false), None, "its own records");
        assert!(waits(own(Some(7)), former, true).is_some(), "a row that lacks an epoch");
        assert_eq!(waits(own(None), FormerOwner { left: true, ..former }, false), None);
        assert!(waits(own(None), FormerOwner { left: true, ..former }, true).is_some());
        let mut paused = own(Some(7));
        paused.paused();
        assert!(waits(paused.clone(), former, false) > Some(2 * LEASE), "given up before a pause");
        assert_eq!(waits(paused, FormerOwner { left: true, ..former }, false), None);
        // A wait whose session was lost continues if no other process has owned the pipeline since.
        let until = Instant::now() + Duration::from_secs(1);
        let waited = Ownership { waits: Some((7, until)), ..own(None) };
        assert!(waits(waited.clone(), former, false) <= Some(Duration::from_secs(1)));
        assert!(waits(waited.clone(), former, true) > Some(LEASE));
        assert!(waits(waited, FormerOwner { epoch: 8, ..former }, false) > Some(LEASE));
    }

    #[test]
    fn owner_that_gave_something_up_a_moment_ago_may_not_write_the_note() {
        let own = Ownership { epoch: Some(7), ..Ownership::new() };
        assert!(own.may_leave(7, None) && !own.may_leave(8, None));
        let now = std::time::Instant::now();
        assert!(!own.may_leave(7, Some(now)));
        assert!(own.may_leave(7, now.checked_sub(FORMER_WAIT)));
    }
}
