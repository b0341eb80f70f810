//! Runs the steps, and says what it waits for.

use super::rights::wanted;
use super::{Options, RightsFacts, SetupPlan, Step, StepKind, plan, read_rights};
use crate::error::Halt;
use crate::postgres::control::{Ask, Control};
use crate::postgres::error::SourceError;
use crate::postgres::fence::Facts;
use std::time::Duration;
use tokio_postgres::Client;

/// How often the wait for running transactions is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Setup did not come to its end. Steps that were done stay done; running it again goes on.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// What stands does not fit, or a step would leave events out. Nothing was changed by the step that says so.
    #[error("could not set the pipeline up")]
    Halt(#[source] Box<Halt>),
    /// A statement failed.
    #[error("could not {step}")]
    Step {
        /// The step's title.
        step: String,
        /// What the server said.
        #[source]
        error: SourceError,
    },
    /// A step was refused.
    #[error("could not {step}")]
    Denied {
        /// The step's title.
        step: String,
        /// What the server said.
        #[source]
        error: SourceError,
        /// The lines that let it be done.
        hint: String,
    },
    /// Everything else was done, but the relay's role lacks rights that could not be given.
    #[error("role {role:?} lacks {}; the other steps are done", .missing.join(", "))]
    Rights {
        /// The relay's role.
        role: String,
        /// What it lacks.
        missing: Vec<String>,
        /// The lines that give it.
        hint: String,
    },
    /// A step was done, and is still missing.
    #[error("could not {step}: it was done, and does not show")]
    NoEffect {
        /// The step's title.
        step: String,
    },
    /// The state could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

impl From<Halt> for SetupError {
    fn from(halt: Halt) -> Self {
        Self::Halt(Box::new(halt))
    }
}

/// What is being told while it runs.
#[derive(Clone, PartialEq, Debug)]
pub enum Progress<'a> {
    /// A step begins.
    Begin(&'a Step),
    /// The slot waits for transactions that were running when it was begun.
    Waiting(&'a [Blocker]),
    /// The step is done.
    Done(&'a Step),
}

/// A transaction that a slot in the making waits for.
#[derive(Clone, PartialEq, Debug)]
pub struct Blocker {
    /// The transaction.
    pub xid: String,
    /// Its backend; `None` for a prepared transaction.
    pub pid: Option<u32>,
    /// The prepared transaction's name, or the session's application; empty where our role may not see it.
    pub name: String,
    /// `active`, `idle in transaction`, `prepared` …
    pub state: String,
    /// Seconds since it began.
    pub seconds: f64,
}

/// Makes what is missing. Reads the facts itself and again after each step, so that what somebody else made in
/// between is adopted and not made twice. `watch` is a second session, which sees what the first one waits for.
///
/// # Errors
/// See [`SetupError`].
pub async fn apply(
    control: &Control,
    watch: &Control,
    ask: &Ask<'_>,
    options: &Options<'_>,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<SetupPlan, SetupError> {
    let mut done = SetupPlan { steps: Vec::new(), adopted: Vec::new() };
    let mut tried = Vec::new();
    let mut first = true;
    loop {
        let facts = control.facts(ask).await?;
        let rights = match options.role {
            Some(role) => Some(rights_of(control, ask, options, role).await?),
            None => None,
        };
        let options = Options { rights: rights.as_ref(), ..*options };
        let plan = plan(&facts, &options)?;
        if std::mem::take(&mut first) {
            done.adopted.clone_from(&plan.adopted);
        }
        let next = plan.steps.into_iter().find(|step| !tried.contains(&step.kind));
        let Some(step) = next else {
            return ends(done, &facts, &options).map_err(|error| *error);
        };
        if done.steps.iter().any(|earlier| earlier.title == step.title) {
            return Err(SetupError::NoEffect { step: step.title });
        }
        progress(Progress::Begin(&step));
        let outcome = match step.kind {
            StepKind::Slot => waiting(control.client(), watch.client(), &step.sql, progress).await,
            StepKind::Table
            | StepKind::Publication
            | StepKind::Schema
            | StepKind::Cursor
            | StepKind::Notify
            | StepKind::Rights
            | StepKind::TableRights
            | StepKind::Replication => run(control.client(), &step.sql).await,
        };
        if step.kind.gives_rights() {
            tried.push(step.kind);
        }
        match outcome {
            Ok(()) => {
                progress(Progress::Done(&step));
                done.steps.push(step);
            }
            Err(error) if is_denied(&error) && step.kind.gives_rights() => {}
            Err(error) => return Err(refused(control, ask, &options, &facts, step, error).await),
        }
    }
}

/// `insufficient_privilege`
fn is_denied(error: &SourceError) -> bool {
    error.report().is_some_and(|report| report.sqlstate.as_str() == "42501")
}

async fn rights_of(
    control: &Control,
    ask: &Ask<'_>,
    options: &Options<'_>,
    role: &str,
) -> Result<RightsFacts, SourceError> {
    read_rights(control, role, ask.names.table.as_ref(), options.marks).await
}

/// A step that failed; what was refused comes with what lets it be done.
async fn refused(
    control: &Control,
    ask: &Ask<'_>,
    options: &Options<'_>,
    facts: &Facts,
    step: Step,
    error: SourceError,
) -> SetupError {
    let step_failed = |error| SetupError::Step { step: step.title.clone(), error };
    if !is_denied(&error) {
        return step_failed(error);
    }
    let role = options.role.unwrap_or(&facts.server.role);
    let Ok(rights) = rights_of(control, ask, options, role).await else {
        return step_failed(error);
    };
    match rights.denied(facts, step.kind) {
        Some(hint) => SetupError::Denied { step: step.title, error, hint },
        None => step_failed(error),
    }
}

/// What is true when there is nothing left to do. A step that gives rights counts as done where they are held.
fn ends(
    mut done: SetupPlan,
    facts: &Facts,
    options: &Options<'_>,
) -> Result<SetupPlan, Box<SetupError>> {
    let (Some(role), Some(rights)) = (options.role, options.rights) else { return Ok(done) };
    let mut missing = wanted(facts, role, options);
    missing.retain(|right| !right.held);
    done.steps.retain(|step| missing.iter().all(|right| right.step != step.kind));
    if missing.is_empty() {
        return Ok(done);
    }
    Err(Box::new(SetupError::Rights {
        role: role.to_owned(),
        hint: rights.remedy(facts, &missing),
        missing: missing.into_iter().map(|right| right.what).collect(),
    }))
}

pub(super) async fn run(client: &Client, sql: &str) -> Result<(), SourceError> {
    let Err(error) = client.batch_execute(sql).await else { return Ok(()) };
    // The session is left in the failed transaction; whether this works is the next statement's to find out.
    drop(client.batch_execute("ROLLBACK").await);
    Err(SourceError::control("run its statements", error))
}

async fn waiting(
    client: &Client,
    watch: &Client,
    sql: &str,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("look at the wait for running transactions", e);
    let row = client.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.map_err(failed)?;
    let pid: i32 = row.try_get(0).map_err(failed)?;
    let creation = run(client, sql);
    tokio::pin!(creation);
    let mut looks =
        tokio::time::interval_at(tokio::time::Instant::now() + LOOK_INTERVAL, LOOK_INTERVAL);
    loop {
        tokio::select! {
            outcome = &mut creation => return outcome,
            _ = looks.tick() => {
                // Not seeing what it waits for is no reason not to wait.
                let blockers = blockers(watch, pid).await.unwrap_or_default();
                progress(Progress::Waiting(&blockers));
            }
        }
    }
}

/// The transactions that the backend `pid` waits for: the lock it asks for is the transaction's own.
pub(in crate::postgres) async fn blockers(
    watch: &Client,
    pid: i32,
) -> Result<Vec<Blocker>, tokio_postgres::Error> {
    let rows = watch
        .query(
            "SELECT l.transactionid::pg_catalog.text, nullif(b.pid, 0), \
               coalesce(p.gid, a.application_name, ''), \
               CASE WHEN p.gid IS NOT NULL THEN 'prepared' ELSE coalesce(a.state, '') END, \
               coalesce(pg_catalog.date_part('epoch', \
                 pg_catalog.clock_timestamp() - coalesce(p.prepared, a.xact_start)), 0) \
             FROM pg_catalog.pg_locks l \
             LEFT JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) b(pid) ON true \
             LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid \
             LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = l.transactionid \
             WHERE l.pid = $1 AND l.locktype = 'transactionid' AND NOT l.granted",
            &[&pid],
        )
        .await?;
    rows.iter()
        .map(|row| {
            Ok(Blocker {
                xid: row.try_get(0)?,
                pid: row.try_get::<_, Option<i32>>(1)?.map(i32::cast_unsigned),
                name: row.try_get(2)?,
                state: row.try_get(3)?,
                seconds: row.try_get(4)?,
            })
        })
        .collect()
}
