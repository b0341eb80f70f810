//! A session that claims rows: of the outbox table, or of the list of a repair.

use crate::outbox_rows::RowOutcome;
use crate::postgres::client::Canceller;
use crate::postgres::poll::{Claim, OldestReady, PayloadCopy, Poller};
use crate::postgres::{SourceError, pipeline_lock, repair};
use crate::row::{OwnedTable, Row};
use crate::store::PipelineKey;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_postgres::Client;

/// A session that claims rows, one claim at a time: of the table, or of the list of a repair.
pub(super) enum ClaimReader {
    Poll(Box<Poller>),
    Repair(Box<repair::RepairReader>),
}

impl ClaimReader {
    /// The description of the table.
    pub(super) fn description(&self) -> OwnedTable {
        match self {
            Self::Poll(poller) => poller.description(),
            Self::Repair(reader) => reader.table().description(),
        }
    }

    /// The query for the oldest row that is ready; a list has none.
    pub(super) fn oldest_ready(&self) -> Option<OldestReady> {
        match self {
            Self::Poll(poller) => Some(poller.oldest_ready()),
            Self::Repair(_) => None,
        }
    }

    /// The client of the session. While a claim is open, it is in the transaction of the claim.
    pub(super) fn client(&self) -> &Client {
        match self {
            Self::Poll(poller) => poller.client(),
            Self::Repair(reader) => reader.client(),
        }
    }

    /// Cancels the statements of the session.
    pub(super) fn canceller(&self) -> Option<Canceller> {
        match self {
            Self::Poll(poller) => poller.canceller(),
            Self::Repair(reader) => reader.control().canceller(),
        }
    }

    /// Claims the next rows; with `all`, ready or not. Rows whose ids meet `keeps` do not expire. The pages of a repair
    /// have a size of their own, and only ready rows that do not expire.
    pub(super) async fn claim(
        &mut self,
        limit: usize,
        all: bool,
        keeps: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Claim, SourceError> {
        match self {
            Self::Poll(poller) => poller.claim_beside(limit, all, keeps).await,
            Self::Repair(reader) => reader.claim().await,
        }
    }

    pub(super) async fn settle(
        &mut self,
        claim: Claim,
        outcomes: &[RowOutcome],
    ) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.settle(claim, outcomes).await,
            Self::Repair(reader) => reader.settle(&claim, outcomes).await,
        }
    }

    /// Settles and commits part of a claim. Only the rows of `left` stay in it. Returns whether they could be kept.
    pub(super) async fn settle_part(
        &mut self,
        claim: &Claim,
        outcomes: &[RowOutcome],
        left: &[usize],
    ) -> Result<bool, SourceError> {
        match self {
            Self::Poll(poller) => poller.settle_part(claim, outcomes, left).await,
            Self::Repair(reader) => reader.settle_part(claim, outcomes).await.map(|()| true),
        }
    }

    /// Copies the payload of a row that is too large to be read into its row of `postrider.parked`.
    pub(super) async fn keep_value(&self, keep: &PayloadCopy<'_>) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.keep_value(keep).await,
            Self::Repair(reader) => reader.table().keep_value(reader.client(), keep).await,
        }
    }

    /// If the table counts failures and one more makes this row dead: the count including that failure.
    pub(super) fn dies(&self, row: &Row<'_>) -> Option<u32> {
        match self {
            Self::Poll(poller) => poller.dies(row),
            Self::Repair(_) => None,
        }
    }

    /// Sends a statement while a page of a list is open. A claim of the table is not kept open.
    pub(super) async fn keep_open(&self) -> Result<(), SourceError> {
        match self {
            Self::Poll(_) => Ok(()),
            Self::Repair(reader) => reader.keep_open().await,
        }
    }

    pub(super) async fn abandon(&mut self) -> Result<(), SourceError> {
        match self {
            Self::Poll(poller) => poller.abandon().await,
            Self::Repair(reader) => reader.abandon().await,
        }
    }

    /// Releases the pipeline's lock. The session is not used any more.
    pub(super) async fn unlock(&self, key: &PipelineKey) -> Result<(), SourceError> {
        pipeline_lock::unlock(self.client(), key).await
    }

    /// Notified of new rows; a list has no notifications.
    pub(super) fn wake(&self) -> Arc<Notify> {
        match self {
            Self::Poll(poller) => poller.wake(),
            Self::Repair(_) => Arc::default(),
        }
    }

    /// Waits until the session ends; returns the reason. Cancel-safe.
    pub(super) async fn closed(&mut self) -> SourceError {
        match self {
            Self::Poll(poller) => poller.closed().await,
            Self::Repair(reader) => reader.closed().await,
        }
    }

    pub(super) fn repairs(&self) -> Option<&repair::RepairReader> {
        match self {
            Self::Poll(_) => None,
            Self::Repair(reader) => Some(reader),
        }
    }
}
