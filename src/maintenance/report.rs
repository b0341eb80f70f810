//! What maintenance reports: its part of the status, and its log lines.

use crate::error::Chain;
use crate::health::{Condition, DueReport};
use crate::postgres::SourceError;
use crate::postgres::store::bookmark::{DropReason, DroppedBookmark};
use crate::status::{MaintenanceSummary, StatusHandle};
use std::time::Instant;
use tracing::{debug, info, warn};

/// Why a run failed, and what fixes the problem.
#[derive(Debug)]
pub(super) struct RunError {
    pub(super) error: SourceError,
    pub(super) hint: Option<String>,
}

/// The status and the log of the maintenance of one pipeline.
#[derive(Debug)]
pub(super) struct MaintenanceReport {
    /// The pipeline's name.
    pipeline: String,
    /// The status that `/status` and the metrics read.
    status_handle: StatusHandle,
    /// Set while runs fail.
    failing: Option<Condition>,
}

impl MaintenanceReport {
    pub(super) fn new(pipeline: String, status_handle: StatusHandle) -> Self {
        Self { pipeline, status_handle, failing: None }
    }

    /// Resolved parked events were deleted.
    pub(super) fn pruned(&self, rows: u64) {
        if rows > 0 {
            debug!(
                event = "parked_pruned",
                pipeline = self.pipeline,
                rows,
                "{rows} rows of resolved parked events are deleted"
            );
            self.update(|summary| summary.pruned_total += rows);
        }
    }

    /// A bookmark's slot was dropped. Unit of `retain_max`: bytes.
    pub(super) fn bookmark_dropped(&self, dropped: &DroppedBookmark, retain_max: u64) {
        let (pipeline, bookmark) = (&self.pipeline, &dropped.name);
        match dropped.reason {
            DropReason::Expired => {
                info!(
                    event = "bookmark_expired",
                    pipeline, bookmark, "the bookmark has expired: its slot is dropped"
                );
            }
            DropReason::Budget => warn!(
                event = "bookmark_dropped",
                pipeline,
                bookmark,
                held_bytes = dropped.held_bytes,
                retain_max,
                hint = "raise bookmarks.retain_max where the disk allows it; what is still in the outbox table can be \
                        replayed by --since",
                "the oldest bookmark is dropped: bookmarks retained more WAL than bookmarks.retain_max"
            ),
        }
        self.update(|summary| summary.bookmarks_dropped_total += 1);
    }

    /// A run has done all its steps.
    pub(super) fn done(&mut self) {
        if let Some(condition) = self.failing.take() {
            let seconds = condition.seconds(Instant::now());
            info!(
                event = "maintenance_goes_on",
                pipeline = self.pipeline,
                seconds,
                "maintenance of Postrider's tables works again"
            );
        }
        self.update(|summary| summary.runs.done());
    }

    /// A run has failed. Events are published nevertheless.
    pub(super) fn failed(&mut self, RunError { error, hint }: RunError) {
        let reason = Chain(&error).to_string();
        self.update(|summary| summary.runs.failed(&reason, hint.as_deref()));
        let due = Condition::note(&mut self.failing, reason.clone(), hint.clone(), Instant::now());
        if let Some(DueReport { seconds, tries }) = due {
            warn!(
                event = "maintenance_failed",
                pipeline = self.pipeline,
                seconds,
                tries,
                reason,
                hint,
                "maintenance of Postrider's tables failed, and is repeated; publishing is not affected: {reason}"
            );
        }
    }

    /// A run has found that another process owns the pipeline, or is taking it over.
    pub(super) fn did_nothing(&mut self) {
        self.failing = None;
        self.update(|summary| summary.runs.is_fine());
    }

    /// This process does not own the pipeline any more: another process reports.
    pub(super) fn rests(&mut self) {
        self.did_nothing();
        self.update(|summary| summary.runs.rests());
    }

    fn update(&self, change: impl FnOnce(&mut MaintenanceSummary)) {
        self.status_handle.update(|snapshot| change(&mut snapshot.maintenance));
    }
}
