//! The maintenance of the SQL toolkit's inboxes: its steps, and their statements in order.

use super::inbox_pace::{InboxJob, InboxPaces};
use super::inbox_watch::GAPS_MAX;
use super::inboxes_report::InboxesReport;
use super::report::RunError;
use crate::finding::shell_word;
use crate::postgres::control::Control;
use crate::postgres::store::inbox_maintenance::{self, InboxAccess, InboxKeep, MaintainedInbox};
use crate::postgres::{Conninfo, SourceError, SourceErrorKind, error_policy};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use tokio_postgres::Client;

/// Pause between two readings, for status, metrics and alerts.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// Pause between two runs of [`InboxStep::Forget`].
const FORGET_INTERVAL: Duration = Duration::from_mins(5);

/// Pause before a step goes on that has not done everything.
const MORE_PAUSE: Duration = Duration::from_secs(5);

/// The longest time for a login.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// After this time a step begins no further statement, so that the other steps get their turn.
const STEP_MAX: Duration = Duration::from_secs(30);

/// Calls of `inbox_forget` in one step; those of `inbox_drain`, and of `inbox_fold`, for one inbox in one step.
const CALLS_MAX: u32 = 20;

/// Rows of `postrider.inbox_delta` that are left to the next call of `inbox_drain`.
const UNFOLDED_MAX: u32 = 5000;

/// Inboxes that one statement lists.
const PAGE: usize = 100;

/// Inboxes that are reported by name.
const REPORTED_MAX: usize = 100;

/// A gap is reported when a message has been waiting behind it for so long: messages may arrive in any order.
const GAP_AGE_MIN: Duration = Duration::from_secs(10);

/// The settings of `[maintenance]` that begin with `inbox_`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxSettings {
    /// Whether inboxes are maintained.
    pub enabled: bool,
    /// How long ids of messages are remembered; 1 to 28 days.
    pub ids_keep: Duration,
    /// How long processed messages are kept in inboxes that `create_inbox` has created.
    pub processed_keep: InboxKeep,
    /// How long dead messages are kept in these.
    pub dead_keep: InboxKeep,
    /// Pause between two deletions of old messages.
    pub drain_interval: Duration,
    /// Messages that one statement deletes at most of each kind, processed and dead.
    pub drain_batch: u32,
    /// New dead messages that are logged by their ids for each reading.
    pub dead_alerts_max: u32,
}

impl Default for InboxSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            ids_keep: Duration::from_hours(14 * 24),
            processed_keep: InboxKeep::OfInbox,
            dead_keep: InboxKeep::OfInbox,
            drain_interval: Duration::from_mins(1),
            drain_batch: 1000,
            dead_alerts_max: 10,
        }
    }
}

/// What this maintenance knows of the database, and of the process that does it.
#[derive(Clone, Debug)]
pub(crate) struct InboxesSpec {
    /// Who does it, for `application_name` and log lines: the name of a pipeline or of an intake.
    pub(crate) owner: String,
    /// Which database it is, for status and metrics: `source` or `sink`, or `inbox` of an intake.
    pub(crate) database: &'static str,
    /// The database.
    pub(crate) conninfo: Conninfo,
    /// What is done, and how often.
    pub(crate) settings: InboxSettings,
}

/// A step of this maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InboxStep {
    /// Forget ids of old messages.
    Forget,
    /// Delete old messages, and fold what the triggers have counted.
    Drain,
    /// Read the inboxes for status, metrics and alerts.
    Read,
}

/// The steps, in the order in which they are done.
pub(super) const INBOX_STEPS: [InboxStep; 3] =
    [InboxStep::Forget, InboxStep::Drain, InboxStep::Read];

impl InboxStep {
    /// The pause after it. `more`: it has not done everything.
    pub(super) fn pause(self, settings: &InboxSettings, more: bool) -> Duration {
        let pause = match self {
            Self::Forget => FORGET_INTERVAL,
            Self::Drain => settings.drain_interval,
            Self::Read => READ_INTERVAL,
        };
        if more { pause.min(MORE_PAUSE) } else { pause }
    }
}

/// How a step ended that has not failed as a whole.
#[derive(Debug, Default)]
pub(super) struct StepEnd {
    /// There is more to do.
    pub(super) more: bool,
    /// What failed at single inboxes.
    pub(super) failed: Vec<RunError>,
}

impl InboxesSpec {
    /// The databases of intakes, each once, by the first intake that has it.
    #[cfg(feature = "kafka")]
    pub(crate) fn of_intakes<'a>(
        intakes: impl Iterator<Item = (&'a str, &'a Conninfo)>,
        settings: &InboxSettings,
    ) -> Vec<Self> {
        let mut specs: Vec<Self> = Vec::new();
        for (intake, conninfo) in intakes.filter(|_| settings.enabled) {
            if !specs.iter().any(|spec| spec.conninfo.is_same_database(conninfo)) {
                specs.push(Self {
                    owner: intake.to_owned(),
                    database: "inbox",
                    conninfo: conninfo.clone(),
                    settings: settings.clone(),
                });
            }
        }
        specs
    }

    /// The databases whose inboxes a pipeline maintains: that of its outbox, and that of its event logs. If they are
    /// the same one, the role of the sink does it, which has the rights for the logs.
    pub(crate) fn of_pipeline(
        pipeline: &str,
        source: &Conninfo,
        sink: Option<&Conninfo>,
        settings: &InboxSettings,
    ) -> Vec<Self> {
        if !settings.enabled {
            return Vec::new();
        }
        let spec = |database, conninfo: &Conninfo| Self {
            owner: pipeline.to_owned(),
            database,
            conninfo: conninfo.clone(),
            settings: settings.clone(),
        };
        match sink {
            None => vec![spec("source", source)],
            Some(sink) if source.is_same_database(sink) => vec![spec("source", sink)],
            Some(sink) => vec![spec("source", source), spec("sink", sink)],
        }
    }

    /// Opens a session. It is kept, as that of the maintenance of event logs.
    pub(super) async fn connect(&self) -> Result<(Control, InboxAccess), RunError> {
        let name = format!("postrider {} inbox maintenance", self.owner);
        let opening = async {
            let control = Control::connect(&self.conninfo, &name).await?;
            inbox_maintenance::limit(control.client()).await?;
            let access = inbox_maintenance::access(control.client()).await?;
            Ok::<_, SourceError>((control, access))
        };
        let opened = tokio::time::timeout(CONNECT_MAX, opening);
        let opened = opened.await.unwrap_or_else(|elapsed| {
            let kind = SourceErrorKind::Timeout(CONNECT_MAX);
            Err(SourceError::new(kind, "open the session of inbox maintenance").caused_by(elapsed))
        });
        opened.map_err(|error| {
            let hint = error_policy::hint(&error);
            RunError { error, hint }
        })
    }

    /// The command that installs the toolkit of this version, and grants the role its rights.
    pub(super) fn install_command(&self) -> String {
        let role = shell_word(self.conninfo.user());
        format!("postrider sql --install --url ADMIN_URL --relay {role}")
    }

    /// What fixes the problem. `inbox`: the one at which the statement failed.
    fn hint(&self, inbox: Option<&MaintainedInbox>, error: &SourceError) -> Option<String> {
        let general = error_policy::hint(error);
        let Some(state) = error.sqlstate() else { return general };
        match (state.as_str(), inbox) {
            ("42501", Some(inbox)) => {
                Some(format!("as the owner of the table: {}", inbox.grant(self.conninfo.user())))
            }
            ("57014", Some(inbox)) if !inbox.is_managed => Some(format!(
                "the statement on table {} took longer than 10 s and is repeated later; create indexes for the \
                 conditions of the views postrider_inbox.pending_{1} and postrider_inbox.dlq_{1}",
                inbox.table, inbox.name
            )),
            ("55P03" | "57014", _) => Some(WAITS.to_owned()),
            ("42P01", Some(inbox)) => Some(format!(
                "if table {} was dropped for good, drop its inbox too, with the numbers and the order that are stored \
                 about it: SELECT postrider.drop_inbox('{}');",
                inbox.table, inbox.name
            )),
            // A right; no such function, table or schema; a column of another version.
            ("42501" | "42883" | "42P01" | "3F000" | "42703", _) => {
                Some(format!("as an administrator: {}", self.install_command()))
            }
            _ => general,
        }
    }
}
/// A table could not be locked in time, or a statement took too long.
const WAITS: &str = "a transaction that is open in the database of the inboxes is waited for, and this query finds it: \
    SELECT pid, xact_start, state, query FROM pg_stat_activity WHERE xact_start IS NOT NULL ORDER BY xact_start;";

/// The steps, and what they know from one time to the next.
#[derive(Debug, Default)]
pub(super) struct InboxWork {
    /// What is due at which inbox.
    paces: InboxPaces,
    /// The name of the inbox that was drained last in this round; empty at its beginning.
    drained_to: String,
    /// The inboxes of this round.
    met: BTreeSet<String>,
}

impl InboxWork {
    /// Whether nothing fails at any inbox.
    pub(super) fn all_done(&self) -> bool {
        self.paces.all_done()
    }

    /// Does one step. An error: the step as a whole has failed.
    pub(super) async fn run(
        &mut self,
        spec: &InboxesSpec,
        client: &Client,
        step: InboxStep,
        report: &mut InboxesReport,
    ) -> Result<StepEnd, RunError> {
        let mut end = StepEnd::default();
        let done = match step {
            InboxStep::Forget => forget(spec, client, &mut end).await,
            InboxStep::Drain => self.drain(spec, client, report, &mut end).await,
            InboxStep::Read => self.read(spec, client, report, &mut end).await,
        };
        match done {
            Ok(()) => Ok(end),
            Err(error) => {
                let hint = spec.hint(None, &error);
                Err(RunError { error, hint })
            }
        }
    }

    /// Goes through all inboxes, from the one behind the last one on. One that fails does not keep the others from
    /// being done.
    async fn drain(
        &mut self,
        spec: &InboxesSpec,
        client: &Client,
        report: &InboxesReport,
        end: &mut StepEnd,
    ) -> Result<(), SourceError> {
        let until = Instant::now() + STEP_MAX;
        loop {
            let page = inbox_maintenance::inboxes(client, &self.drained_to, PAGE).await?;
            if page.is_empty() {
                self.drained_to.clear();
                self.paces.keep(&std::mem::take(&mut self.met));
                return Ok(());
            }
            for inbox in page {
                let start = Instant::now();
                if start >= until {
                    end.more = true;
                    return Ok(());
                }
                self.drained_to.clone_from(&inbox.name);
                self.met.insert(inbox.name.clone());
                if !self.paces.is_due(&inbox.name, InboxJob::Drain, start) {
                    continue;
                }
                let done = drain_one(spec, client, &inbox, report).await;
                let more = self.ended(spec, client, (&inbox, InboxJob::Drain, start), done, end)?;
                end.more |= more.unwrap_or(false);
            }
        }
    }

    /// Reads the first inboxes by name.
    async fn read(
        &mut self,
        spec: &InboxesSpec,
        client: &Client,
        report: &mut InboxesReport,
        end: &mut StepEnd,
    ) -> Result<(), SourceError> {
        let until = Instant::now() + STEP_MAX;
        let inboxes = inbox_maintenance::inboxes(client, "", REPORTED_MAX).await?;
        let mut count = u64::try_from(inboxes.len()).unwrap_or(u64::MAX);
        if inboxes.len() == REPORTED_MAX {
            count = inbox_maintenance::count_inboxes(client).await?;
        }
        report.reading_begins(spec.settings.dead_alerts_max);
        for inbox in &inboxes {
            let start = Instant::now();
            if start >= until {
                end.more = true;
                break;
            }
            if self.paces.is_due(&inbox.name, InboxJob::Read, start) {
                let done = read_one(client, inbox, report).await;
                self.ended(spec, client, (inbox, InboxJob::Read, start), done, end)?;
            }
        }
        report.reading_ends(&inboxes, count);
        Ok(())
    }

    /// Takes how a job ended that began at an inbox at this time. Returns what was done; the error only if all inboxes
    /// have it: the session is gone, or the toolkit.
    fn ended<T>(
        &mut self,
        spec: &InboxesSpec,
        client: &Client,
        (inbox, job, start): (&MaintainedInbox, InboxJob, Instant),
        done: Result<T, SourceError>,
        end: &mut StepEnd,
    ) -> Result<Option<T>, SourceError> {
        let now = Instant::now();
        let took = now.saturating_duration_since(start);
        match done {
            Ok(done) => {
                self.paces.ended(&inbox.name, job, true, now, took);
                Ok(Some(done))
            }
            Err(error) if client.is_closed() || is_of_toolkit(&error) => Err(error),
            // It was dropped after it was listed.
            Err(error) if error.sqlstate().is_some_and(|state| state.as_str() == NO_INBOX) => {
                Ok(None)
            }
            Err(error) => {
                self.paces.ended(&inbox.name, job, false, now, took);
                let hint = spec.hint(Some(inbox), &error);
                end.failed.push(RunError { error, hint });
                Ok(None)
            }
        }
    }
}

/// Whether a statement failed because a function or a schema of the toolkit is missing, and not at one inbox.
fn is_of_toolkit(error: &SourceError) -> bool {
    error.sqlstate().is_some_and(|state| matches!(state.as_str(), "42883" | "3F000"))
}

/// The SQLSTATE of a call for an inbox that does not exist.
const NO_INBOX: &str = "PR121";

/// Forgets ids, a part with each call.
async fn forget(spec: &InboxesSpec, client: &Client, end: &mut StepEnd) -> Result<(), SourceError> {
    let until = Instant::now() + STEP_MAX;
    for _ in 0..CALLS_MAX {
        end.more = inbox_maintenance::forget(client, spec.settings.ids_keep).await?;
        if !end.more || Instant::now() >= until {
            break;
        }
    }
    Ok(())
}

/// Deletes old messages of an inbox, and folds its numbers. Returns whether there is more to do.
async fn drain_one(
    spec: &InboxesSpec,
    client: &Client,
    inbox: &MaintainedInbox,
    report: &InboxesReport,
) -> Result<bool, SourceError> {
    let InboxSettings { drain_batch, processed_keep, dead_keep, .. } = spec.settings;
    // How long a table of the user's own is kept is said by its own row alone.
    let own = (InboxKeep::OfInbox, InboxKeep::OfInbox);
    let keep = if inbox.is_managed { (processed_keep, dead_keep) } else { own };
    let mut more = true;
    for _ in 0..CALLS_MAX {
        let deleted = inbox_maintenance::drain(client, &inbox.name, drain_batch, keep).await?;
        report.drained(&inbox.name, deleted);
        more = deleted >= u64::from(drain_batch);
        if !more {
            break;
        }
    }
    for _ in 0..CALLS_MAX {
        // Each call of inbox_drain has folded a part.
        if !inbox_maintenance::is_unfolded(client, &inbox.name, UNFOLDED_MAX).await?
            || inbox_maintenance::fold(client, &inbox.name).await? == 0
        {
            break;
        }
    }
    Ok(more)
}

/// Reads an inbox: its state, the messages that have died, and its gaps.
async fn read_one(
    client: &Client,
    inbox: &MaintainedInbox,
    report: &mut InboxesReport,
) -> Result<(), SourceError> {
    let name = inbox.name.as_str();
    let Some(state) = inbox_maintenance::state(client, name).await? else { return Ok(()) };
    if inbox.is_managed {
        let is_first = !report.watch(name).is_known();
        let now = if is_first { inbox_maintenance::clock(client).await? } else { 0 };
        let (from, max) = report.watch(name).deaths_to_read(now);
        let read = if state.dead > 0 {
            inbox_maintenance::dead_messages(client, name, from, max).await?
        } else {
            Vec::new()
        };
        let new = report.watch(name).died(read, is_first);
        report.died(inbox, &new, &state);
    } else {
        report.died(inbox, &[], &state);
    }
    let gaps = if inbox.is_numbered {
        let (gaps, count) = inbox_maintenance::gaps(client, name, GAP_AGE_MIN, GAPS_MAX).await?;
        report.gaps(name, gaps, count);
        Some(count)
    } else {
        None
    };
    report.state(name, state, gaps);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_has_more_to_do_goes_on_soon() {
        let settings = InboxSettings::default();
        let pauses = |more| INBOX_STEPS.map(|step| step.pause(&settings, more).as_secs());
        assert_eq!(pauses(false), [300, 60, 10]);
        assert_eq!(pauses(true), [5, 5, 5]);
    }

    #[test]
    fn the_databases_of_a_pipeline_are_maintained_once_each() {
        let conninfo = |text: &str| Conninfo::parse(text, &|_| None).unwrap();
        let source = conninfo("postgresql://relay@db1/shop");
        let of = |sink: Option<&str>| -> Vec<String> {
            let sink = sink.map(conninfo);
            let settings = InboxSettings::default();
            let specs = InboxesSpec::of_pipeline("orders", &source, sink.as_ref(), &settings);
            specs.iter().map(|spec| format!("{} {}", spec.database, spec.conninfo.user())).collect()
        };
        assert_eq!(of(None), ["source relay"]);
        assert_eq!(of(Some("postgresql://logs@db1:5432/shop")), ["source logs"]);
        assert_eq!(of(Some("postgresql://logs@db1/logs")), ["source relay", "sink logs"]);
        assert_eq!(of(Some("postgresql://logs@db2/shop")), ["source relay", "sink logs"]);
        let off = InboxSettings { enabled: false, ..InboxSettings::default() };
        assert_eq!(InboxesSpec::of_pipeline("orders", &source, None, &off).len(), 0);
    }
}
