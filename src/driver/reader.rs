//! Where rows are claimed: the table, by its marks, or the list of a repair.

use crate::postgres::client::Canceller;
use crate::postgres::poll::{Claim, Keep, OldestReady, Poller, Settled};
use crate::postgres::repair;
use crate::postgres::{SourceError, pipeline_lock};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_postgres::Client;

/// A session that claims rows, one claim at a time.
pub(super) enum Reader {
    Poll(Box<Poller>),
    Repair(Box<repair::Reader>),
}

impl Reader {
    /// The table as a pgoutput Relation message.
    pub(super) fn relation(&self) -> Bytes {
        match self {
            Self::Poll(poller) => poller.relation().clone(),
            Self::Repair(reader) => reader.relation(),
        }
    }

    /// The question for the oldest row that is ready; a list has none.
    pub(super) fn oldest_ready(&self) -> Option<OldestReady> {
        match self {
            Self::Poll(poller) => Some(poller.oldest_ready()),
            Self::Repair(_) => None,
        }
    }

    pub(super) fn table_oid(&self) -> u32 {
        match self {
            Self::Poll(poller) => poller.table_oid(),
            Self::Repair(reader) => reader.table().oid(),
        }
    }

    /// The session's client: while a claim is open, of its transaction.
    pub(super) fn client(&self) -> &Client {
        match self {
            Self::Poll(poller) => poller.client(),
            Self::Repair(reader) => reader.client(),
        }
    }

    /// What cancels the session's statements.
    pub(super) fn canceller(&self) -> Option<Canceller> {
        match self {
            Self::Poll(poller) => poller.canceller(),
            Self::Repair(reader) => reader.control().canceller(),
        }
    }

    /// The next rows; a repair's pages have their own size.
    pub(super) async fn claim(&mut self, limit: usize) -> Result<Claim, SourceError> {
        match self {
            Self::Poll(poller) => poller.claim(limit, None).await,
            Self::Repair(reader) => reader.claim().await,
        }
    }

    /// The next rows, whether they are ready or not; a list has no others.
    pub(super) async fn claim_all(&mut self, limit: usize) -> Result<Claim, SourceError> {
        match self {
            Self::Poll(poller) => poller.claim_all(limit).await,
            Self::Repair(reader) => reader.claim().await,
        }
    }

    pub(super) async fn settle(
        &mut self,
        claim: Claim,
        outcomes: &[Settled],
    ) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.settle(claim, outcomes).await,
            Self::Repair(reader) => reader.settle(&claim, outcomes).await,
        }
    }

    /// Settles and commits part of a claim; the rows of `left` stay in it, and no others. Whether they could be kept.
    pub(super) async fn settle_part(
        &mut self,
        claim: &Claim,
        outcomes: &[Settled],
        left: &[usize],
    ) -> Result<bool, SourceError> {
        match self {
            Self::Poll(poller) => poller.settle_part(claim, outcomes, left).await,
            Self::Repair(reader) => reader.settle_part(claim, outcomes).await.map(|()| true),
        }
    }

    /// Copies the payload of a row that is too large to be read into its row of `postrider.parked`.
    pub(super) async fn keep_value(&self, keep: &Keep<'_>) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.keep_value(keep).await,
            Self::Repair(reader) => reader.table().keep_value(reader.client(), keep).await,
        }
    }

    /// If the table counts failures and one more makes this row of a claim dead: the count including that failure.
    pub(super) fn dies(&self, row: &[u8]) -> Option<u32> {
        match self {
            Self::Poll(poller) => poller.dies(row),
            Self::Repair(_) => None,
        }
    }

    pub(super) async fn abandon(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.abandon().await,
            Self::Repair(reader) => reader.abandon().await,
        }
    }

    /// Gives the pipeline's lock back: the session is used no more.
    pub(super) async fn unlock(&self, pipeline: &str) -> Result<(), SourceError> {
        pipeline_lock::unlock(self.client(), pipeline).await
    }

    /// Word of new rows; a list has none.
    pub(super) fn wake(&self) -> Arc<Notify> {
        match self {
            Self::Poll(poller) => poller.wake(),
            Self::Repair(_) => Arc::default(),
        }
    }

    /// Waits until the session ends and says why. Cancel-safe.
    pub(super) async fn closed(&mut self) -> SourceError {
        match self {
            Self::Poll(poller) => poller.closed().await,
            Self::Repair(reader) => reader.closed().await,
        }
    }

    pub(super) fn repairs(&self) -> Option<&repair::Reader> {
        match self {
            Self::Poll(_) => None,
            Self::Repair(reader) => Some(reader),
        }
    }
}
