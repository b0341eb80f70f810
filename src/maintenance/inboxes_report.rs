//! What the maintenance of inboxes reports: its part of the status, and its log lines, one for each change of state.

use super::inbox_watch::{GapChanges, HealthChange, InboxWatch};
use super::report::RunError;
use crate::error::Chain;
use crate::event::shown_id;
use crate::health::{Condition, DueReport, LogRateLimit, grouped};
use crate::postgres::store::inbox_maintenance::{
    InboxState, MaintainedInbox, NewDeadMessage, WaitingGap,
};
use crate::status::{InboxSummary, InboxesSummary, StatusHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tracing::{debug, info, warn};

/// The status and the log of the maintenance of the inboxes of a database.
#[derive(Debug)]
pub(super) struct InboxesReport {
    /// The pipeline's name; in `postrider inbox run`, that of the first intake with this database. The field `pipeline`
    /// of the log lines and the label of the metrics, so that one alert and one search find both.
    owner: String,
    /// Which database it is: `source` or `sink`; `inbox` in `postrider inbox run`.
    database: &'static str,
    /// The status that `/status` and the metrics read.
    status_handle: StatusHandle,
    /// Set while something fails.
    failing: Option<Condition>,
    /// Why nothing is maintained, as logged.
    denied: Option<String>,
    /// Whether there were inboxes since this process owns the pipeline.
    are_found: bool,
    /// What is known of each inbox.
    watches: BTreeMap<String, InboxWatch>,
    /// The last reading of each inbox.
    summaries: BTreeMap<String, InboxSummary>,
    /// Dead messages that this reading may still log by their ids.
    ids_left: u32,
    /// Lines about single gaps.
    gap_lines: LogRateLimit,
    /// Inboxes that are not reported by name, as logged.
    unreported: u64,
}

impl InboxesReport {
    pub(super) fn new(owner: String, database: &'static str, status_handle: StatusHandle) -> Self {
        Self {
            owner,
            database,
            status_handle,
            failing: None,
            denied: None,
            are_found: false,
            watches: BTreeMap::new(),
            summaries: BTreeMap::new(),
            ids_left: 0,
            gap_lines: LogRateLimit::default(),
            unreported: 0,
        }
    }

    /// The database has no inboxes. Nobody has to know.
    pub(super) fn absent(&mut self) {
        self.rests();
        let database = self.database;
        self.status_handle.update(|snapshot| {
            snapshot.maintenance.inboxes.retain(|summary| summary.database != database);
        });
        debug!(
            event = "inboxes_absent",
            pipeline = self.owner,
            database,
            "the database has no inboxes of the SQL toolkit"
        );
    }

    /// The database has inboxes, and this process may not maintain them.
    pub(super) fn denied(&mut self, reason: &str, hint: &str) {
        self.are_found = true;
        if self.denied.as_deref() != Some(reason) {
            warn!(
                event = "inbox_maintenance_denied",
                pipeline = self.owner,
                database = self.database,
                reason,
                hint,
                "the inboxes of the database are not maintained: {reason}"
            );
            self.denied = Some(reason.to_owned());
        }
        self.update(|summary| {
            summary.runs.ran_at = None;
            summary.runs.waits(reason, Some(hint));
        });
    }

    /// The database has inboxes, and this process maintains them from now on.
    pub(super) fn granted(&mut self) {
        self.are_found = true;
        if self.denied.take().is_some() {
            info!(
                event = "inbox_maintenance_goes_on",
                pipeline = self.owner,
                database = self.database,
                seconds = 0,
                "the inboxes of the database are maintained"
            );
            self.update(|summary| summary.runs.is_fine());
        }
        self.update(|summary| {
            summary.runs.ran_at.get_or_insert_with(Instant::now);
        });
    }

    /// Old messages of an inbox were deleted.
    pub(super) fn drained(&self, inbox: &str, messages: u64) {
        if messages > 0 {
            debug!(
                event = "inbox_drained",
                pipeline = self.owner,
                database = self.database,
                inbox,
                messages,
                "{messages} old messages of inbox {inbox} are deleted"
            );
            self.update(|summary| summary.drained_total += messages);
        }
    }

    /// A reading of the inboxes begins. `ids_max`: dead messages that it logs by their ids.
    pub(super) fn reading_begins(&mut self, ids_max: u32) {
        self.ids_left = ids_max;
    }

    /// What is known of an inbox.
    pub(super) fn watch(&mut self, inbox: &str) -> &mut InboxWatch {
        self.watches.entry(inbox.to_owned()).or_default()
    }

    /// These messages have died since the last reading. Of a table of the user's own only their number is known.
    pub(super) fn died(
        &mut self,
        inbox: &MaintainedInbox,
        new: &[NewDeadMessage],
        state: &InboxState,
    ) {
        let name = inbox.name.as_str();
        let is_first = !self.summaries.contains_key(name);
        let risen = self.watch(name).dead(state.dead);
        let mut rest = if is_first || !inbox.is_managed {
            risen
        } else {
            u64::try_from(new.len()).unwrap_or(u64::MAX)
        };
        for message in new {
            if self.ids_left == 0 {
                break;
            }
            self.ids_left -= 1;
            rest = rest.saturating_sub(1);
            let id = shown_id(&message.id);
            warn!(
                event = "inbox_message_dead",
                pipeline = self.owner,
                database = self.database,
                inbox = name,
                %id,
                hint = dead_hint(name),
                "a message of inbox {name} is dead, and is not given out any more"
            );
        }
        if rest > 0 {
            warn!(
                event = "inbox_messages_dead",
                pipeline = self.owner,
                database = self.database,
                inbox = name,
                messages = rest,
                dead = state.dead,
                hint = dead_hint(name),
                "dead messages of inbox {name} that are not logged one by one: {}",
                grouped(rest)
            );
        }
    }

    /// The gaps of an inbox, of `count` that exist.
    pub(super) fn gaps(&mut self, inbox: &str, gaps: Vec<WaitingGap>, count: u64) {
        let GapChanges { opened, closed } = self.watch(inbox).gaps(gaps, count);
        for gap in opened {
            let Some(suppressed) = self.gap_lines.admit(Instant::now()) else { continue };
            let next_id = shown_id(&gap.next_id);
            warn!(
                event = "inbox_gap",
                pipeline = self.owner,
                database = self.database,
                inbox,
                missing_from = gap.missing_from,
                missing_to = gap.missing_to,
                %next_id,
                waiting_seconds = gap.waiting_seconds,
                suppressed,
                hint = format!(
                    "find out why the messages have not come: SELECT * FROM postrider.inbox_ordering_gaps('{inbox}');"
                ),
                "an aggregate of inbox {inbox} waits for messages that are missing"
            );
        }
        for (missing_from, missing_to) in closed {
            let Some(suppressed) = self.gap_lines.admit(Instant::now()) else { continue };
            info!(
                event = "inbox_gap_closed",
                pipeline = self.owner,
                database = self.database,
                inbox,
                missing_from,
                missing_to,
                suppressed,
                "an aggregate of inbox {inbox} does not wait for missing messages any more"
            );
        }
    }

    /// The state of an inbox, when it has been read.
    pub(super) fn state(&mut self, inbox: &str, state: InboxState, gaps: Option<u64>) {
        let InboxState { pending, dead, oldest_pending_seconds, health } = state;
        match self.watch(inbox).health(HealthChange::of(&health)) {
            None => {}
            Some(HealthChange::Healthy) => info!(
                event = "inbox_recovered",
                pipeline = self.owner,
                database = self.database,
                inbox,
                "inbox {inbox} is healthy again"
            ),
            Some(HealthChange::Degraded | HealthChange::Critical) => warn!(
                event = "inbox_degraded",
                pipeline = self.owner,
                database = self.database,
                inbox,
                health,
                pending,
                dead,
                oldest_pending_seconds = oldest_pending_seconds.floor(),
                hint = format!(
                    "start its workers, or see what they fail at; limits and numbers: SELECT * FROM \
                     postrider.inbox_status('{inbox}');"
                ),
                "inbox {inbox} is {health} in two readings one after the other"
            ),
        }
        let name = inbox.to_owned();
        let summary = InboxSummary {
            inbox: name.clone(),
            pending,
            dead,
            oldest_pending_seconds,
            gaps,
            health,
        };
        self.summaries.insert(name, summary);
    }

    /// A reading of these inboxes has ended, of `count` that exist.
    pub(super) fn reading_ends(&mut self, inboxes: &[MaintainedInbox], count: u64) {
        let names: BTreeSet<&str> = inboxes.iter().map(|inbox| inbox.name.as_str()).collect();
        self.watches.retain(|name, _| names.contains(name.as_str()));
        self.summaries.retain(|name, _| names.contains(name.as_str()));
        let unreported = count.saturating_sub(u64::try_from(inboxes.len()).unwrap_or(u64::MAX));
        if unreported > 0 && self.unreported == 0 {
            warn!(
                event = "inboxes_unreported",
                pipeline = self.owner,
                database = self.database,
                unreported,
                hint = "SELECT * FROM postrider.inbox_status(); shows all inboxes",
                "{unreported} inboxes are not in status, metrics and alerts, which have a limit"
            );
        }
        self.unreported = unreported;
        let summaries = self.summaries.values().cloned().collect();
        self.update(|summary| {
            summary.inboxes = summaries;
            summary.unreported = unreported;
        });
    }

    /// Nothing has been failing when it was due the last time.
    pub(super) fn done(&mut self) {
        if let Some(condition) = self.failing.take() {
            let seconds = condition.seconds(Instant::now());
            info!(
                event = "inbox_maintenance_goes_on",
                pipeline = self.owner,
                database = self.database,
                seconds,
                "maintenance of inboxes works again"
            );
        }
        self.update(|summary| summary.runs.done());
    }

    /// A step has failed. The pipeline or the intakes, and the workers of the inboxes, go on nevertheless.
    pub(super) fn failed(&mut self, RunError { error, hint }: RunError) {
        let reason = Chain(&error).to_string();
        if !self.are_found {
            // Most databases have no inboxes. That this one can't be reached is reported by those who need it.
            debug!(
                event = "inboxes_unknown",
                pipeline = self.owner,
                database = self.database,
                reason,
                "whether the database has inboxes of the SQL toolkit could not be found out"
            );
            return;
        }
        self.update(|summary| summary.runs.failed(&reason, hint.as_deref()));
        let due = Condition::note(&mut self.failing, reason.clone(), hint.clone(), Instant::now());
        if let Some(DueReport { seconds, tries }) = due {
            // The maintenance of an intake's database runs in a process without a pipeline.
            let unaffected = if self.database == "inbox" { "storing" } else { "publishing" };
            warn!(
                event = "inbox_maintenance_failed",
                pipeline = self.owner,
                database = self.database,
                seconds,
                tries,
                reason,
                hint,
                "maintenance of inboxes failed, and is repeated; {unaffected} is not affected: {reason}"
            );
        }
    }

    /// This process does not own the pipeline any more: another process reports.
    pub(super) fn rests(&mut self) {
        self.failing = None;
        self.denied = None;
        self.watches.clear();
        self.summaries.clear();
        self.unreported = 0;
        if std::mem::take(&mut self.are_found) {
            self.update(|summary| {
                summary.runs.rests();
                (summary.inboxes, summary.unreported) = (Vec::new(), 0);
            });
        }
    }

    fn update(&self, change: impl FnOnce(&mut InboxesSummary)) {
        let database = self.database;
        self.status_handle.update(|snapshot| {
            let all = &mut snapshot.maintenance.inboxes;
            let known = all.iter().position(|summary| summary.database == database);
            let index = known.unwrap_or(all.len());
            if known.is_none() {
                all.push(InboxesSummary { database, ..InboxesSummary::default() });
            }
            if let Some(summary) = all.get_mut(index) {
                change(summary);
            }
        });
    }
}

fn dead_hint(inbox: &str) -> String {
    format!(
        "see what they failed at: SELECT * FROM postrider_inbox.dlq_{inbox}; then postrider.replay_inbox_messages or \
         postrider.skip_inbox_messages"
    )
}
