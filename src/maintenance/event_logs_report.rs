//! What the maintenance of event logs reports: its part of the status, and its log lines, one for each change of state.

use super::report::RunError;
use crate::error::Chain;
use crate::finding::shell_word;
use crate::health::{Condition, DueReport, LogRateLimit, grouped};
use crate::postgres::store::log_maintenance::{Consumer, HoldingGroup, LogChild};
use crate::status::{EventLogSummary, EventLogsSummary, StatusHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tracing::{debug, info, warn};

/// The status and the log of the maintenance of a pipeline's event logs.
#[derive(Debug)]
pub(super) struct EventLogsReport {
    /// The pipeline's name.
    pipeline: String,
    /// The status that `/status` and the metrics read.
    status_handle: StatusHandle,
    /// Set while runs fail.
    failing: Option<Condition>,
    /// Groups and consumers without a heartbeat at the last reading; `None` before the first one.
    silent: Option<BTreeSet<(String, String)>>,
    /// Groups that are evicted, as logged.
    evicted: BTreeSet<String>,
    /// Logs that are held back, and by which groups: the events that each holds.
    held: BTreeMap<String, BTreeMap<String, u64>>,
    /// Lines about single consumers.
    consumer_lines: LogRateLimit,
    /// Logs and groups that are not reported by name, as logged.
    unreported: usize,
}

impl EventLogsReport {
    pub(super) fn new(pipeline: String, status_handle: StatusHandle) -> Self {
        status_handle.update(|snapshot| {
            snapshot.maintenance.event_logs = Some(EventLogsSummary::default());
        });
        Self {
            pipeline,
            status_handle,
            failing: None,
            silent: None,
            evicted: BTreeSet::new(),
            held: BTreeMap::new(),
            consumer_lines: LogRateLimit::default(),
            unreported: 0,
        }
    }

    /// States that are not the newest were deleted.
    pub(super) fn swept(&self, rows: u64) {
        if rows > 0 {
            debug!(
                event = "states_swept",
                pipeline = self.pipeline,
                rows,
                "{rows} states of logs and groups that are not the newest are deleted"
            );
        }
    }

    /// A consumer was deleted, because it has had no heartbeat for `maintenance.consumer_dead_after`.
    pub(super) fn reaped(&mut self, group: &str, consumer: &str) {
        if let Some(suppressed) = self.consumer_lines.admit(Instant::now()) {
            info!(
                event = "consumer_reaped",
                pipeline = self.pipeline,
                group,
                consumer,
                suppressed,
                "a consumer of group {group} is forgotten: it has had no heartbeat for \
                 maintenance.consumer_dead_after"
            );
        }
    }

    /// These consumers have had no heartbeat for 60 s. One that was known as silent, or was so at the first reading, is
    /// not logged.
    pub(super) fn silent(&mut self, consumers: Vec<Consumer>) {
        let mut silent = BTreeSet::new();
        for consumer in consumers {
            let Consumer { log, group, name, silent_seconds } = consumer;
            let key = (group, name);
            let is_new = self.silent.as_ref().is_some_and(|before| !before.contains(&key));
            if is_new && let Some(suppressed) = self.consumer_lines.admit(Instant::now()) {
                let (group, consumer) = &key;
                warn!(
                    event = "consumer_unhealthy",
                    pipeline = self.pipeline,
                    log,
                    group,
                    consumer,
                    silent_seconds,
                    suppressed,
                    "a consumer of group {group} has had no heartbeat for {silent_seconds} s: it has ended, or hangs"
                );
            }
            silent.insert(key);
        }
        self.silent = Some(silent);
    }

    /// A group was evicted by this process. `lost`: the events that it had not done and that are dropped, from the
    /// first to the last; none if the second number is lower.
    pub(super) fn evicted(&mut self, log: &str, group: &str, lost: (u64, u64)) {
        let (from_seq, to_seq) = lost;
        self.log_evicted(log, group, (from_seq <= to_seq).then_some(lost));
        self.evicted.insert(group.to_owned());
    }

    fn log_evicted(&self, log: &str, group: &str, lost: Option<(u64, u64)>) {
        let (from_seq, to_seq) = lost.unzip();
        warn!(
            event = "group_evicted",
            pipeline = self.pipeline,
            log,
            group,
            from_seq,
            to_seq,
            hint = format!(
                "to let it go on without the events that are dropped: postrider groups resume {}",
                shell_word(group)
            ),
            "group {group} is evicted: retention of log {log} does not wait for it, and poll_outbox refuses it (PR113)"
        );
    }

    /// Tables of events were dropped.
    pub(super) fn dropped(&self, log: &str, children: &[&LogChild]) {
        let (Some(first), Some(last)) = (children.first(), children.last()) else { return };
        let tables = children.len();
        info!(
            event = "log_children_dropped",
            pipeline = self.pipeline,
            log,
            tables,
            from_seq = first.from_seq,
            to_seq = last.to_seq,
            "{tables} tables of log {log} are dropped, with its events up to {}",
            grouped(last.to_seq)
        );
        let tables = u64::try_from(tables).unwrap_or(u64::MAX);
        self.update(|summary| summary.dropped_total += tables);
    }

    /// These groups hold tables back that are old enough to be dropped.
    pub(super) fn held_back(&mut self, log: &str, blockers: &[HoldingGroup]) {
        let now: BTreeMap<String, u64> =
            blockers.iter().map(|blocker| (blocker.group.clone(), blocker.held_events)).collect();
        let before = self.held.get(log);
        let is_new = |group: &str| before.is_none_or(|before| !before.contains_key(group));
        for HoldingGroup { group, held_events, lag } in blockers.iter().filter(|b| is_new(&b.group))
        {
            warn!(
                event = "log_held_back",
                pipeline = self.pipeline,
                log,
                group,
                held_events,
                lag,
                hint = format!(
                    "start its consumers; or, if it may lose these events: postrider groups evict {0}; if it is not \
                     used any more: postrider groups drop {0}",
                    shell_word(group)
                ),
                "group {group} holds {} events of log {log} back that are older than maintenance.log_keep",
                grouped(*held_events)
            );
        }
        if now.is_empty() {
            if self.held.remove(log).is_some() {
                info!(
                    event = "log_released",
                    pipeline = self.pipeline,
                    log,
                    "no group holds events of log {log} back any more"
                );
            }
        } else {
            self.held.insert(log.to_owned(), now);
        }
    }

    /// Events of a log that a group holds back.
    pub(super) fn held_events(&self, log: &str, group: &str) -> u64 {
        self.held.get(log).and_then(|groups| groups.get(group)).copied().unwrap_or(0)
    }

    /// What was read of logs and groups. `unreported`: those that are not among `logs`. A group that another process or
    /// an operator has evicted is logged here, and at the first reading each one that is evicted.
    pub(super) fn read(&mut self, logs: Vec<EventLogSummary>, unreported: usize) {
        let mut evicted = BTreeSet::new();
        for log in &logs {
            for group in log.groups.iter().filter(|group| group.evicted) {
                if !self.evicted.contains(&group.group) {
                    self.log_evicted(&log.log, &group.group, None);
                }
                evicted.insert(group.group.clone());
            }
        }
        self.evicted = evicted;
        if unreported > 0 && self.unreported == 0 {
            warn!(
                event = "groups_unreported",
                pipeline = self.pipeline,
                unreported,
                "{unreported} logs and groups are not in status and metrics, which have limits; postrider groups list \
                 shows all groups"
            );
        }
        self.unreported = unreported;
        self.update(|summary| {
            summary.logs = logs;
            summary.unreported = u64::try_from(unreported).unwrap_or(u64::MAX);
        });
    }

    /// This process owns the pipeline from now on.
    pub(super) fn begins(&self) {
        self.update(|summary| summary.runs.ran_at = Some(Instant::now()));
    }

    /// Every step was done the last time that it was due.
    pub(super) fn done(&mut self) {
        if let Some(condition) = self.failing.take() {
            let seconds = condition.seconds(Instant::now());
            info!(
                event = "log_maintenance_goes_on",
                pipeline = self.pipeline,
                seconds,
                "maintenance of event logs works again"
            );
        }
        self.update(|summary| summary.runs.done());
    }

    /// A step has failed. Events are published nevertheless.
    pub(super) fn failed(&mut self, RunError { error, hint }: RunError) {
        let reason = Chain(&error).to_string();
        self.update(|summary| summary.runs.failed(&reason, hint.as_deref()));
        let due = Condition::note(&mut self.failing, reason.clone(), hint.clone(), Instant::now());
        if let Some(DueReport { seconds, tries }) = due {
            warn!(
                event = "log_maintenance_failed",
                pipeline = self.pipeline,
                seconds,
                tries,
                reason,
                hint,
                "maintenance of event logs failed, and is repeated; publishing is not affected: {reason}"
            );
        }
    }

    /// This process does not own the pipeline any more: another process reports.
    pub(super) fn rests(&mut self) {
        self.failing = None;
        self.silent = None;
        self.evicted.clear();
        self.held.clear();
        self.unreported = 0;
        self.update(|summary| {
            summary.runs.rests();
            (summary.logs, summary.unreported) = (Vec::new(), 0);
        });
    }

    fn update(&self, change: impl FnOnce(&mut EventLogsSummary)) {
        self.status_handle
            .update(|snapshot| change(snapshot.maintenance.event_logs.get_or_insert_default()));
    }
}
