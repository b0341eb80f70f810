//! What the sessions of one process on PostgreSQL know of each other.

use super::former_owner::Ownership;
use super::history::ServerHistory;
use super::observer::Observer;
use super::running::Pipeline;
use super::slot_monitor::{PublicationState, RetentionLevel, WalRetentionLimit};
use super::spec::PipelineSpec;
use super::store_port::StorePort;
use crate::error::Halt;
use crate::postgres::store::cursor::SettledHistories;
use std::sync::Arc;

/// What a session leaves to the next one of the same process.
pub(super) struct SessionContext {
    /// What the pipeline was configured with.
    pub(super) spec: Arc<PipelineSpec>,
    /// What is known of the ownership of the pipeline.
    pub(super) ownership: Ownership,
    /// The publication, as the previous stream knew it.
    pub(super) publication: Option<PublicationState>,
    /// The history that the positions in memory belong to.
    pub(super) history: Option<ServerHistory>,
    /// The owner epoch under which this process streamed last.
    pub(super) streamed_as: Option<i64>,
    /// The slot is to be dropped as soon as the table is polled.
    pub(super) drops_slot: bool,
    /// `source.wal_retain_max`
    wal_retention_limit: Option<WalRetentionLimit>,
}

impl SessionContext {
    pub(super) fn new(spec: Arc<PipelineSpec>) -> Self {
        let limit = retention_limit(&spec);
        Self {
            spec,
            ownership: Ownership::new(),
            publication: None,
            history: None,
            streamed_as: None,
            drops_slot: false,
            wal_retention_limit: limit,
        }
    }

    /// The pipeline was paused: as at the start of a process, a backlog may be published although the slot retains more
    /// than the limit.
    pub(super) fn forget_retained(&mut self) {
        self.wal_retention_limit = retention_limit(&self.spec);
    }

    /// Logs what the slot retains; returns the halt if that is more than the limit.
    pub(super) fn check_wal_retention(
        &mut self,
        observer: &mut Observer,
        retained: u64,
    ) -> Option<Halt> {
        let limit = self.wal_retention_limit.as_mut()?;
        match limit.assess(retained) {
            RetentionLevel::BelowHalf => observer.source().wal_budget_ok(retained),
            RetentionLevel::AboveHalf => {
                let polls = self.spec.polls_instead_of_slot();
                observer.source().wal_budget_half(retained, limit.max(), polls);
            }
            RetentionLevel::Exceeded => return Some(limit.exceeded(&self.spec, retained)),
        }
        None
    }
}

fn retention_limit(spec: &PipelineSpec) -> Option<WalRetentionLimit> {
    let strict = spec.polls_instead_of_slot();
    spec.wal_retain_max.map(|max| WalRetentionLimit::new(max, strict))
}

/// Creates the mapper of a stream, or of claims (`rows`). Called before anything is marked: if the history of this
/// server differs from that of the previous one, everything that is remembered by event ID is discarded. A server that
/// was promoted without the last commits gives their IDs to other rows.
///
/// # Errors
/// The halt of a pipeline whose outbox can't be used.
pub(super) fn begin_history(
    pipeline: &mut Pipeline,
    store: &StorePort,
    rows: bool,
) -> Result<(), Box<Halt>> {
    let SettledHistories { histories, raised, first: _ } = store.histories();
    let before = pipeline.histories().current();
    pipeline.reset_mapper(histories, rows)?;
    if let Some((before, from)) = *raised {
        pipeline.observer.history_begins(histories.current(), before, from);
    }
    if before != histories.current() {
        // On this server the IDs of another history belong to other rows.
        pipeline.engine.forget_ids();
    }
    Ok(())
}
