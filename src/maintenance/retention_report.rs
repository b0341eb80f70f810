//! What retention reports: its part of the status, and its log lines.

use super::report::RunError;
use crate::error::Chain;
use crate::health::{Condition, DueReport, grouped};
use crate::postgres::retention::{PassEvent, PassReport, Ready};
use crate::status::{BlockedRetention, HeldByReason, RetentionSummary, StatusHandle};
use std::collections::BTreeSet;
use std::time::Instant;
use tracing::{debug, info, warn};

/// The status and the log of the retention of one pipeline.
#[derive(Debug)]
pub(super) struct RetentionReport {
    /// The pipeline's name.
    pipeline: String,
    /// The status that `/status` and the metrics read.
    status_handle: StatusHandle,
    /// Set while passes fail.
    failing: Option<Condition>,
    /// What blocked the last pass, as logged.
    blocked: BTreeSet<String>,
    /// Reasons for which rows were kept in the last pass, as logged.
    held: BTreeSet<&'static str>,
}

impl RetentionReport {
    pub(super) fn new(pipeline: String, status_handle: StatusHandle) -> Self {
        status_handle.update(|snapshot| {
            snapshot.maintenance.retention = Some(RetentionSummary::default());
        });
        let (blocked, held) = (BTreeSet::new(), BTreeSet::new());
        Self { pipeline, status_handle, failing: None, blocked, held }
    }

    /// Something was removed or created.
    pub(super) fn event(&self, event: PassEvent<'_>) {
        let pipeline = &self.pipeline;
        match event {
            PassEvent::Rows(rows) => self.update(|summary| summary.removed_rows_total += rows),
            PassEvent::Created(table) => {
                info!(
                    event = "partition_created",
                    pipeline,
                    table = table.to_string(),
                    "partition {table} is created"
                );
                self.update(|summary| summary.partitions_created_total += 1);
            }
            PassEvent::Dropped(table, bytes) => {
                info!(
                    event = "partition_dropped",
                    pipeline,
                    table = table.to_string(),
                    bytes,
                    "partition {table} is dropped: its events are published, and older than retention.keep"
                );
                self.update(|summary| summary.partitions_removed_total += 1);
            }
            PassEvent::Archived(table, bytes) => {
                info!(
                    event = "partition_archived",
                    pipeline,
                    table = table.to_string(),
                    bytes,
                    "partition {table} is attached to the archive"
                );
                self.update(|summary| summary.partitions_removed_total += 1);
            }
            PassEvent::ArchiveDropped(table, bytes) => {
                info!(
                    event = "archive_dropped",
                    pipeline,
                    table = table.to_string(),
                    bytes,
                    "partition {table} of the archive is dropped: its rows are older than retention.archive_keep"
                );
                self.update(|summary| summary.partitions_removed_total += 1);
            }
            PassEvent::Kept(table, ready) => {
                let (held, young) = match ready {
                    Ready::Held(held, young) => (held.total(), *young),
                    Ready::Yes | Ready::Blocked(_) => (0, 0),
                };
                debug!(
                    event = "partition_kept",
                    pipeline,
                    table = table.to_string(),
                    held,
                    young,
                    "partition {table} is kept: {held} of its rows are needed, and {young} are not old enough"
                );
            }
        }
    }

    /// A pass has ended.
    pub(super) fn passed(&mut self, pass: &PassReport) {
        if pass.rows > 0 || pass.expired > 0 {
            info!(
                event = "rows_removed",
                pipeline = self.pipeline,
                rows = pass.rows,
                expired = pass.expired,
                busy = pass.busy,
                "retention removed {} rows",
                grouped(pass.rows + pass.expired)
            );
        }
        self.blocked_by(pass);
        self.held_by(pass);
    }

    fn blocked_by(&mut self, pass: &PassReport) {
        let mut now = BTreeSet::new();
        let mut blocked = Vec::new();
        for hold in &pass.holds {
            let (message, hint) = (hold.to_string(), hold.hint());
            if !now.insert(message.clone()) {
                continue;
            }
            if !self.blocked.contains(&message) {
                warn!(
                    event = "retention_blocked",
                    pipeline = self.pipeline,
                    reason = hold.name(),
                    hint,
                    "retention removes nothing: {message}"
                );
            }
            blocked.push(BlockedRetention { reason: hold.name(), message, hint });
        }
        if now.is_empty() && !self.blocked.is_empty() {
            info!(
                event = "retention_released",
                pipeline = self.pipeline,
                "nothing blocks retention any more"
            );
        }
        self.blocked = now;
        self.update(|summary| summary.blocked = blocked);
    }

    fn held_by(&mut self, pass: &PassReport) {
        let mut now = BTreeSet::new();
        let mut held_rows = Vec::new();
        for (guard, rows) in pass.held.reasons() {
            held_rows.push(HeldByReason { reason: guard.name(), rows });
            if rows == 0 {
                continue;
            }
            now.insert(guard.name());
            if !self.held.contains(guard.name()) {
                info!(
                    event = "rows_held",
                    pipeline = self.pipeline,
                    reason = guard.name(),
                    rows,
                    "{} rows that are older than retention.keep are kept: {}",
                    grouped(rows),
                    guard.words()
                );
            }
        }
        self.held = now;
        self.update(|summary| summary.held_rows = held_rows);
    }

    /// A pass has done all its steps.
    pub(super) fn done(&mut self) {
        if let Some(condition) = self.failing.take() {
            let seconds = condition.seconds(Instant::now());
            info!(
                event = "retention_goes_on",
                pipeline = self.pipeline,
                seconds,
                "retention works again"
            );
        }
        self.update(|summary| summary.runs.done());
    }

    /// A pass, or a step of it, has failed. Events are published nevertheless.
    pub(super) fn failed(&mut self, RunError { error, hint }: RunError) {
        let reason = Chain(&error).to_string();
        self.update(|summary| summary.runs.failed(&reason, hint.as_deref()));
        let due = Condition::note(&mut self.failing, reason.clone(), hint.clone(), Instant::now());
        if let Some(DueReport { seconds, tries }) = due {
            warn!(
                event = "retention_failed",
                pipeline = self.pipeline,
                seconds,
                tries,
                reason,
                hint,
                "retention failed, and is repeated; publishing is not affected: {reason}"
            );
        }
    }

    /// This process does not own the pipeline any more: another process reports.
    pub(super) fn rests(&mut self) {
        self.failing = None;
        self.blocked.clear();
        self.held.clear();
        self.update(|summary| {
            summary.runs.rests();
            (summary.held_rows, summary.blocked) = (Vec::new(), Vec::new());
        });
    }

    fn update(&self, change: impl FnOnce(&mut RetentionSummary)) {
        self.status_handle
            .update(|snapshot| change(snapshot.maintenance.retention.get_or_insert_default()));
    }
}
