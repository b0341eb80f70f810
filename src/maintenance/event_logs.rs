//! The maintenance of event logs and consumer groups: its steps, and their statements in order.

use super::event_logs_report::EventLogsReport;
use super::inboxes::InboxSettings;
use super::report::RunError;
use crate::postgres::control::Control;
use crate::postgres::retention::RetentionRule;
use crate::postgres::store::log_maintenance::{self, LogFacts};
use crate::postgres::{Conninfo, SourceError, SourceErrorKind, SqlState, error_policy};
use crate::status::{EventLogSummary, GroupSummary};
use std::time::Duration;
use tokio_postgres::Client;

/// Pause between two readings of logs and groups, for status and metrics.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// The longest time for a login.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// Logs of a pipeline that are reported by name.
const LOGS_MAX: usize = 100;

/// Groups of a pipeline that are reported by name.
const GROUPS_MAX: usize = 200;

/// Silent consumers that are compared from one reading to the next.
const SILENT_MAX: usize = 1000;

/// `[maintenance]` of the configuration: the maintenance of event logs, of their consumer groups, and of inboxes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MaintenanceSettings {
    /// Pause between two deletions of states that are not the newest.
    pub sweep_interval: Duration,
    /// How many of the newest states of each are kept.
    pub sweep_keep: u32,
    /// Rows of each table that one deletion deletes at most.
    pub sweep_max: u32,
    /// A consumer without a heartbeat for so long is deleted.
    pub consumer_dead_after: Duration,
    /// How long events are kept at least; `None`: nothing is dropped.
    pub log_keep: Option<Duration>,
    /// Whether groups that are further behind than their `retain_max` are evicted.
    pub log_evict: bool,
    /// Pause between two decisions about what is dropped.
    pub log_retain_interval: Duration,
    /// The maintenance of inboxes.
    pub inboxes: InboxSettings,
    /// Of a pipeline: which rows of its outbox are kept; `None`: nothing is removed.
    pub retention: Option<RetentionRule>,
}

impl Default for MaintenanceSettings {
    fn default() -> Self {
        Self {
            sweep_interval: Duration::from_secs(5),
            sweep_keep: 4,
            sweep_max: 10_000,
            consumer_dead_after: Duration::from_hours(24),
            log_keep: None,
            log_evict: false,
            log_retain_interval: Duration::from_mins(1),
            inboxes: InboxSettings::default(),
            retention: None,
        }
    }
}

/// What this maintenance knows of its pipeline.
#[derive(Clone, Debug)]
pub(crate) struct EventLogsSpec {
    /// The pipeline, which is the writer of its logs.
    pub(crate) pipeline: String,
    /// The database of the logs.
    pub(crate) conninfo: Conninfo,
    /// What is done, and how often.
    pub(crate) settings: MaintenanceSettings,
}

/// A step of this maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Delete states that are not the newest.
    Sweep,
    /// Grant rights, and drop what retention does not keep.
    Retain,
    /// Delete dead consumers, and read logs and groups for status and metrics.
    Read,
}

/// The steps, in the order in which they are done.
pub(super) const STEPS: [Step; 3] = [Step::Sweep, Step::Retain, Step::Read];

impl Step {
    /// The pause after it.
    pub(super) const fn pause(self, settings: &MaintenanceSettings) -> Duration {
        match self {
            Self::Sweep => settings.sweep_interval,
            Self::Retain => settings.log_retain_interval,
            Self::Read => READ_INTERVAL,
        }
    }
}

impl EventLogsSpec {
    /// Opens a session. Unlike the one of other maintenance it is kept: a login every few seconds would cost more than
    /// one connection.
    pub(super) async fn connect(&self) -> Result<Control, RunError> {
        let name = format!("postrider {} log maintenance", self.pipeline);
        let opening = async {
            let control = Control::connect(&self.conninfo, &name).await?;
            log_maintenance::limit(control.client()).await?;
            Ok::<_, SourceError>(control)
        };
        let opened = tokio::time::timeout(CONNECT_MAX, opening);
        let opened = opened.await.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(CONNECT_MAX);
            Err(SourceError::new(kind, "open the session of log maintenance").caused_by(elapsed))
        });
        opened.map_err(|error| {
            let hint = error_policy::hint(&error);
            RunError { error, hint }
        })
    }

    /// Does one step.
    pub(super) async fn run(
        &self,
        client: &Client,
        step: Step,
        report: &mut EventLogsReport,
    ) -> Result<(), RunError> {
        let done = match step {
            Step::Sweep => self.sweep(client, report).await,
            Step::Retain => self.retain(client, report).await,
            Step::Read => self.read(client, report).await,
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => {
                let hint = hint(client, &self.pipeline, &error).await;
                Err(RunError { error, hint })
            }
        }
    }

    async fn sweep(&self, client: &Client, report: &EventLogsReport) -> Result<(), SourceError> {
        let MaintenanceSettings { sweep_keep, sweep_max, .. } = self.settings;
        // A call deletes at most sweep_max rows of each table. Other steps wait meanwhile.
        for _ in 0..SWEEPS_MAX {
            let swept = log_maintenance::sweep(client, sweep_keep, sweep_max).await?;
            report.swept(swept);
            if swept < u64::from(sweep_max) {
                break;
            }
        }
        Ok(())
    }

    /// Deletes dead consumers, and reads logs and groups for status and metrics.
    async fn read(&self, client: &Client, report: &mut EventLogsReport) -> Result<(), SourceError> {
        let dead_after = self.settings.consumer_dead_after;
        for (group, consumer) in log_maintenance::reap(client, dead_after).await? {
            report.reaped(&group, &consumer);
        }
        let silent = log_maintenance::silent_consumers(client, &self.pipeline, SILENT_MAX).await?;
        report.silent(silent);
        let (logs, mut unreported) =
            log_maintenance::logs(client, &self.pipeline, LOGS_MAX).await?;
        let mut summaries = Vec::with_capacity(logs.len());
        let mut room = GROUPS_MAX;
        for log in logs {
            let groups = log_maintenance::groups(client, Some(&log.name), room).await?;
            room -= groups.len().min(room);
            if room == 0 {
                let all = log_maintenance::count_groups(client, &log.name).await?;
                unreported += all.saturating_sub(groups.len());
            }
            let groups = groups.into_iter().map(|group| GroupSummary {
                held_events: report.held_events(&log.name, &group.name),
                group: group.name,
                lag_events: group.lag,
                lag_seconds: group.lag_seconds,
                consumers_alive: group.alive,
                consumers_silent: group.silent,
                leased_partitions: group.leased,
                deliveries_max: group.max_deliveries,
                evicted: group.evicted_at.is_some(),
            });
            summaries.push(EventLogSummary {
                groups: groups.collect(),
                log: log.name,
                first_seq: log.first_seq,
                last_seq: log.last_seq,
            });
        }
        report.read(summaries, unreported);
        Ok(())
    }

    /// Grants what roles that were added lack, and drops what retention does not keep. A log that fails does not keep
    /// the others from being done.
    async fn retain(
        &self,
        client: &Client,
        report: &mut EventLogsReport,
    ) -> Result<(), SourceError> {
        let (logs, _) = log_maintenance::logs(client, &self.pipeline, usize::MAX).await?;
        let mut done = Ok(());
        for log in &logs {
            let granted = log_maintenance::grant(client, &log.name).await.map(|_given| ());
            let retained = match self.settings.log_keep {
                Some(keep) => self.retain_log(client, log, keep, report).await,
                None => Ok(()),
            };
            done = done.and(granted).and(retained);
        }
        done
    }

    async fn retain_log(
        &self,
        client: &Client,
        log: &LogFacts,
        keep: Duration,
        report: &mut EventLogsReport,
    ) -> Result<(), SourceError> {
        let (evicted, mut done) = if self.settings.log_evict {
            log_maintenance::evict(client, &log.name, keep).await
        } else {
            (Vec::new(), Ok(()))
        };
        let children = log_maintenance::retain(client, &log.name, keep).await;
        let kept_from = children.as_ref().ok().and_then(|children| children.last());
        let kept_from = kept_from.map_or(log.first_seq, |child| child.to_seq + 1);
        for (group, done_to) in &evicted {
            report.evicted(&log.name, group, (done_to + 1, kept_from - 1));
        }
        let children = children?;
        let mut dropped = Vec::new();
        for child in &children {
            match log_maintenance::drop_child(client, log, child).await {
                Ok(()) => dropped.push(child),
                Err(error) => {
                    done = done.and(Err(error));
                    break;
                }
            }
        }
        report.dropped(&log.name, &dropped);
        // A group that could not be evicted is reported too.
        match log_maintenance::blockers(client, &log.name, keep).await {
            Ok(blockers) => report.held_back(&log.name, &blockers),
            Err(error) => done = done.and(Err(error)),
        }
        done
    }
}

/// What fixes the problem: if a right is missing, the statements that grant it; if a transaction is waited for, how it
/// is found.
async fn hint(client: &Client, writer: &str, error: &SourceError) -> Option<String> {
    let general = error_policy::hint(error);
    let Some(state) = error.sqlstate() else { return general };
    match state.as_str() {
        // The rights are shown to people only: if they can't be read, the general hint remains.
        _ if state == SqlState::INSUFFICIENT_PRIVILEGE => {
            match log_maintenance::missing_rights(client, writer).await {
                Ok(missing) if !missing.is_empty() => Some(missing.join(" ")),
                Ok(_) | Err(_) => general,
            }
        }
        "55P03" | "57014" => Some(WAITS.to_owned()),
        // No such function, table or schema; a column of another version.
        "42883" | "42P01" | "3F000" | "42703" => Some(NOT_INSTALLED.to_owned()),
        _ => general,
    }
}

/// A table could not be locked or detached in time.
const WAITS: &str = "a transaction that is open in the log's database is waited for, and this query finds it: \
    SELECT pid, xact_start, state, query FROM pg_stat_activity WHERE backend_xmin IS NOT NULL ORDER BY xact_start;";

/// Calls of `sweep_states` in one step.
const SWEEPS_MAX: u32 = 20;

/// The SQL toolkit is not installed, or an earlier version of it is.
const NOT_INSTALLED: &str = "install the SQL toolkit of this version in the log's database, as an administrator: \
    postrider sql --install --url ADMIN_URL --relay ROLE, with the role of this pipeline";
