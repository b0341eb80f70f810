//! Runs the steps of a setup and reports its progress; and replaces the slot of a pipeline in mode `auto`.

use super::plan::{creation, existing_slot_sql, plan};
use super::rights::{Right, wanted};
use super::{Options, RightsFacts, SetupCommand, SetupPlan, Step, StepKind, read_rights};
use crate::catalog::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL};
use crate::control::{Control, FactsQuery};
use crate::names::{admin_url, literal};
use crate::schema_owner::UNTRUSTED;
use crate::start::{self, Facts};
use pg_replication::error::{SourceError, SqlState};
use postrider_core::error::{Chain, Halt};
use std::time::Duration;
use tokio_postgres::Client;

/// How often the wait for running transactions is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Setup did not finish. Completed steps are kept; running setup again continues.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// An existing object is unsuitable, or a step would leave events out. The failing step changed nothing.
    #[error("could not set the pipeline up")]
    Halt(#[source] Box<Halt>),
    /// A statement failed.
    #[error("could not {step}")]
    Step {
        /// The step's title.
        step: String,
        /// The server's error.
        #[source]
        error: SourceError,
    },
    /// Steps were refused because the login lacks a right; all other possible steps are done.
    #[error("{}", .0.words())]
    Refused(Box<PartialSetup>),
    /// The login may not create the slot with its list of rows; the steps before are done.
    #[error("could not create the slot with the list of rows that are published first")]
    Backfill {
        /// The server's error.
        #[source]
        error: SourceError,
        /// How, and by which role, it can be done.
        hint: String,
    },
    /// A step was executed without an effect.
    #[error("could not {step}: its statements succeeded but had no effect")]
    NoEffect {
        /// The step's title.
        step: String,
    },
    /// The state could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// The result of a setup in which the server refused steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartialSetup {
    /// Completed steps, and existing objects.
    pub done: SetupPlan,
    /// The refused steps, in order.
    pub refused: Vec<RefusedStep>,
    /// Titles of steps that were not begun, because they need a refused step.
    pub left: Vec<String>,
}

/// A step that was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedStep {
    kind: StepKind,
    /// The step's title.
    pub title: String,
    /// The server's error, or the rights that the role still lacks.
    pub why: String,
    /// The commands or statements that allow it, or that do it.
    pub lines: Vec<String>,
}

impl PartialSetup {
    fn words(&self) -> String {
        let titles: Vec<String> = self
            .refused
            .iter()
            .map(|step| format!("could not {}: {}", step.title, step.why))
            .collect();
        titles.join("; ")
    }
}

impl From<Halt> for SetupError {
    fn from(halt: Halt) -> Self {
        Self::Halt(Box::new(halt))
    }
}

/// Progress of a setup.
#[derive(Clone, PartialEq, Debug)]
pub enum SetupProgress<'a> {
    /// A step begins.
    Begin(&'a Step),
    /// The slot waits for transactions that were running when its creation began.
    Waiting(&'a [Blocker]),
    /// The step is done.
    Done(&'a Step),
}

/// A transaction that the creation of a slot waits for.
#[derive(Clone, PartialEq, Debug)]
pub struct Blocker {
    /// The transaction.
    pub xid: String,
    /// The transaction's backend; `None` for a prepared transaction.
    pub pid: Option<u32>,
    /// The prepared transaction's name, or the session's application; empty if our role may not see it.
    pub name: String,
    /// The session's state: `active`, `idle in transaction`, `prepared` …
    pub state: String,
    /// Seconds since the transaction began.
    pub seconds: f64,
}

/// Creates what is missing. Reads the facts at the beginning and again after each step, so that an object that another
/// session created in between is adopted and not created twice. `watch` is a second session, which reads what the first
/// one waits for.
///
/// # Errors
/// See [`SetupError`].
pub async fn apply(
    control: &Control,
    watch: &Control,
    ask: &FactsQuery<'_>,
    options: &Options<'_>,
    progress: &mut (dyn FnMut(SetupProgress<'_>) + Send),
) -> Result<SetupPlan, SetupError> {
    let mut done = SetupPlan { steps: Vec::new(), adopted: Vec::new() };
    let (mut tried, mut refused) = (Vec::new(), Vec::<RefusedStep>::new());
    let mut first = true;
    loop {
        let facts = control.facts(ask).await?;
        let rights = rights_of(control, ask, options).await?;
        let options = Options { rights: options.role.and(rights.as_ref()), ..*options };
        let plan = plan(&facts, &options)?;
        if std::mem::take(&mut first) {
            done.adopted.clone_from(&plan.adopted);
        }
        let waits = |step: &Step| refused.iter().any(|earlier| step.kind.needs(earlier.kind));
        let next = plan.steps.iter().find(|step| !tried.contains(&step.kind) && !waits(step));
        let Some(step) = next.cloned() else {
            let left = plan.steps.iter().filter(|step| waits(step)).map(|step| step.title.clone());
            let left = left.collect();
            let ended = ends(PartialSetup { done, refused, left }, &plan, &facts, &options);
            return ended.map_err(SetupError::Refused);
        };
        if done.steps.iter().any(|earlier| earlier.title == step.title) {
            return Err(SetupError::NoEffect { step: step.title });
        }
        progress(SetupProgress::Begin(&step));
        let outcome = match step.kind {
            StepKind::Slot => waiting(control.client(), watch.client(), &step.sql, progress).await,
            StepKind::Table
            | StepKind::Publication
            | StepKind::Ownership
            | StepKind::Schema
            | StepKind::Cursor
            | StepKind::Notify
            | StepKind::Rights
            | StepKind::TableRights
            | StepKind::Retention
            | StepKind::Replication => run(control.client(), &step.sql).await,
        };
        if step.kind.gives_rights() {
            tried.push(step.kind);
        }
        match outcome {
            Ok(()) => {
                progress(SetupProgress::Done(&step));
                done.steps.push(step);
            }
            Err(error) if error.report().is_some_and(|r| r.sqlstate.as_str() == UNTRUSTED) => {
                return Err(untrusted(control, ask, &error).await);
            }
            Err(error) if !is_denied(&error) => {
                return Err(SetupError::Step { step: step.title, error });
            }
            // The rights that are missing are read from the catalog at the end.
            Err(_) if step.kind.gives_rights() => {}
            Err(error) => {
                tried.push(step.kind);
                let why = error.report().map_or_else(String::new, |report| {
                    format!("{} (SQLSTATE {})", report.message, report.sqlstate)
                });
                refused.push(RefusedStep {
                    kind: step.kind,
                    title: step.title,
                    why,
                    lines: Vec::new(),
                });
            }
        }
    }
}

/// A step found foreign objects that were created after the facts were read: they are read again, to be named.
async fn untrusted(control: &Control, ask: &FactsQuery<'_>, error: &SourceError) -> SetupError {
    match control.facts(ask).await {
        Ok(facts) => {
            let mut halt = start::schema_untrusted(&facts);
            if let (None, Some(report)) = (&facts.untrusted, error.report()) {
                halt.message.clone_from(&report.message);
            }
            halt.into()
        }
        Err(error) => error.into(),
    }
}

/// `insufficient_privilege`
fn is_denied(error: &SourceError) -> bool {
    error.report().is_some_and(|report| report.sqlstate.as_str() == "42501")
}

/// The rights of the relay's role, and of the role that runs the steps.
async fn rights_of(
    control: &Control,
    ask: &FactsQuery<'_>,
    options: &Options<'_>,
) -> Result<Option<RightsFacts>, SourceError> {
    let Some(role) = options.role else { return Ok(None) };
    let table = ask.names.table.as_ref();
    read_rights(control, role, table, options.marks, options.retention).await.map(Some)
}

/// The result when no possible step is left. A step that grants rights counts as done if the role has them.
fn ends(
    mut partial: PartialSetup,
    plan: &SetupPlan,
    facts: &Facts,
    options: &Options<'_>,
) -> Result<SetupPlan, Box<PartialSetup>> {
    let nowhere = SetupCommand {
        command: format!("postrider setup -p {}", facts.names.key.pipeline),
        login: None,
    };
    let call = options.call.unwrap_or(&nowhere);
    if let (Some(role), Some(rights)) = (options.role, options.rights) {
        for step in &mut partial.refused {
            step.lines = rights.denied(facts, step.kind, call);
        }
        lacking(&mut partial, plan, facts, options, (role, rights), call);
    } else {
        // The relay's own role is never given the rights that setup needs: an administrator runs it.
        let line = format!("run setup as an administrator: {}", call.by("ADMIN"));
        for step in &mut partial.refused {
            step.lines = vec![line.clone()];
        }
    }
    if partial.refused.is_empty() {
        return Ok(partial.done);
    }
    Err(Box::new(partial))
}

/// Adds the rights that the role still lacks after the step that grants them was done or refused: such a step is in the
/// plan again.
fn lacking(
    partial: &mut PartialSetup,
    plan: &SetupPlan,
    facts: &Facts,
    options: &Options<'_>,
    (role, rights): (&str, &RightsFacts),
    call: &SetupCommand,
) {
    let wanted = wanted(facts, role, options);
    let steps = plan.steps.iter().filter(|step| step.kind.gives_rights());
    for step in steps.filter(|step| !partial.left.contains(&step.title)) {
        let missing: Vec<&Right> =
            wanted.iter().filter(|right| right.step == step.kind && !right.held).collect();
        let what: Vec<&str> = missing.iter().map(|right| right.what.as_str()).collect();
        partial.done.steps.retain(|done| done.kind != step.kind);
        partial.refused.push(RefusedStep {
            kind: step.kind,
            title: step.title.clone(),
            why: format!("role {role:?} lacks {}", what.join(", ")),
            lines: rights.remedy(facts, role, &missing, call),
        });
    }
    // The slot comes last: who may create it follows from the others.
    partial.refused.sort_by_key(|step| matches!(step.kind, StepKind::Slot | StepKind::Cursor));
}

pub(super) async fn run(client: &Client, sql: &str) -> Result<(), SourceError> {
    let Err(error) = client.batch_execute(sql).await else { return Ok(()) };
    // The session is in a failed transaction; if the rollback does not work, the next statement fails.
    drop(client.batch_execute("ROLLBACK").await);
    Err(SourceError::control("run its statements", error))
}

async fn waiting(
    client: &Client,
    watch: &Client,
    sql: &str,
    progress: &mut (dyn FnMut(SetupProgress<'_>) + Send),
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("check the wait for running transactions", e);
    let row = client.query_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.map_err(failed)?;
    let pid: i32 = row.try_get(0).map_err(failed)?;
    let creation = run(client, sql);
    tokio::pin!(creation);
    let mut checks =
        tokio::time::interval_at(tokio::time::Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
    loop {
        tokio::select! {
            outcome = &mut creation => return outcome,
            _ = checks.tick() => {
                // If the blockers cannot be read, the wait continues.
                let blockers = blockers(watch, pid).await.unwrap_or_default();
                progress(SetupProgress::Waiting(&blockers));
            }
        }
    }
}

/// The transactions that the backend `pid` waits for: it requests the locks on their transaction ids.
pub(crate) async fn blockers(
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

/// The state of the slot of a pipeline in mode `auto` after an operation on it.
#[derive(Debug)]
pub enum SlotOutcome {
    /// A slot exists, and can be streamed from.
    Usable,
    /// Not possible now, and why.
    NotYet(String),
    /// The slot was dropped ([`super::drop_slot`]).
    Dropped,
    /// The slot retains this many bytes of WAL ([`super::retained_wal`]); 0 if it does not exist.
    Retains(u64),
    /// The login for replication was refused, and why. A slot that exists retains this many bytes of WAL.
    Refused {
        /// The error of the login.
        reason: String,
        /// Bytes of WAL.
        bytes: u64,
    },
}

/// Ensures that a usable slot exists for a pipeline that polls meanwhile (`mode = "auto"`): drops a lost slot of the
/// pipeline, creates a new one, and binds the cursor row to it. Needs a session of its own, because the creation waits
/// for every running transaction.
///
/// Events that were committed before the new slot's consistent point are published by polling, later ones by the
/// stream. So polling continues until it has found the table empty once after the slot was created.
///
/// # Errors
/// An error of the server or of the connection; a missing right to create slots is [`SlotOutcome::NotYet`].
pub async fn recreate_slot(
    control: &Control,
    ask: &FactsQuery<'_>,
    epoch: i64,
) -> Result<SlotOutcome, SourceError> {
    let facts = control.facts(ask).await?;
    if facts.publication.is_none() {
        let name = &facts.names.publication;
        return Ok(SlotOutcome::NotYet(format!(
            "publication {name:?} does not exist: postrider setup -p {} --url {}",
            facts.names.key.pipeline,
            admin_url(&facts.server.database)
        )));
    }
    let slot = facts.slot.as_ref();
    if slot.is_some_and(|slot| !slot.lost()) {
        return adopt_existing(control, &facts, epoch).await;
    }
    if slot
        .is_some_and(|slot| slot.active_pid.is_some() || slot.plugin.as_deref() != Some("pgoutput"))
    {
        return Ok(SlotOutcome::NotYet("the slot is lost, and not ours to drop".to_owned()));
    }
    match make(control, &facts, epoch).await {
        Ok(()) => Ok(SlotOutcome::Usable),
        Err(error) if error.sqlstate().is_some_and(refused) => {
            Ok(SlotOutcome::NotYet(Chain(&error).to_string()))
        }
        Err(error) => Err(error),
    }
}

/// A slot that another session created: it is the pipeline's if the cursor row says so; otherwise it is bound now.
///
/// A slot beyond every position that this pipeline has confirmed is another slot under the same name: an operator has
/// created it, or the server has finished a statement of a former owner, whose epoch changes no row. The table is
/// polled to its end behind such a slot as behind one that this process has created, so nothing before its start is
/// left out.
///
/// After a promotion, or on a restored server, nothing is bound here: the start of the stream decides, and may halt.
async fn adopt_existing(
    control: &Control,
    facts: &Facts,
    epoch: i64,
) -> Result<SlotOutcome, SourceError> {
    if let Err(halt) = start::check_objects(facts) {
        return Ok(SlotOutcome::NotYet(halt.message));
    }
    let bound = start::check_binding(facts).is_ok() && !start::slot_is_beyond(facts);
    if facts.cursor.is_some() && bound {
        return Ok(SlotOutcome::Usable);
    }
    run_on_control(control, &bind(facts, epoch)).await.map(|()| SlotOutcome::Usable)
}

async fn make(control: &Control, facts: &Facts, epoch: i64) -> Result<(), SourceError> {
    if facts.slot.is_some() {
        let slot = literal(&facts.names.slot);
        run_on_control(control, &format!("SELECT pg_catalog.pg_drop_replication_slot({slot})"))
            .await?;
    }
    run_on_control(
        control,
        &format!(
            "BEGIN;\nSET LOCAL lock_timeout = 0;\nSET LOCAL statement_timeout = 0;\n{};\n{};\nCOMMIT",
            creation(facts),
            bind(facts, epoch)
        ),
    )
    .await
}

/// Updates the pipeline's own row under the owner's epoch; the row of another owner is not changed.
///
/// Rows that the table has now may be from before the slot. That is recorded until polling has finished
/// ([`crate::store::cursor::polled`]): an operator may end polling earlier (`polls_on = false`), and then nobody has
/// published them.
fn bind(facts: &Facts, epoch: i64) -> String {
    let (key, slot) = (&facts.names.key, &facts.names.slot);
    let pipeline = literal(&key.pipeline);
    let publication = literal(&facts.names.publication);
    format!(
        "UPDATE postrider.cursor c SET system_identifier = {SYSTEM_IDENTIFIER_SQL}, timeline = {TIMELINE_SQL}, \
           slot = s.slot_name, slot_created_lsn = s.confirmed_flush_lsn, publication = {publication}, \
           messages = {}, watermark = s.confirmed_flush_lsn, flush_limit = s.confirmed_flush_lsn, \
           partial_commit_lsn = NULL, partial_ordinal = NULL, updated_at = pg_catalog.now(), \
           resolved_snapshot = NULL, pending_snapshot = NULL, pending_lsn = NULL, polls_on = true, \
           before_slot = pg_catalog.pg_current_snapshot(), of_mode = 'auto' \
         FROM {} AND c.pipeline = {pipeline} AND c.shard = {} AND c.owner_epoch = {epoch}",
        facts.stream.messages,
        existing_slot_sql(slot),
        key.shard
    )
}

async fn run_on_control(control: &Control, sql: &str) -> Result<(), SourceError> {
    let Err(error) = control.client().batch_execute(sql).await else { return Ok(()) };
    drop(control.client().batch_execute("ROLLBACK").await);
    Err(SourceError::control("recreate the slot", error))
}

/// No right to create slots, no logical decoding, or no free slot.
fn refused(sqlstate: SqlState) -> bool {
    [
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        SqlState::CONFIGURATION_LIMIT_EXCEEDED,
    ]
    .contains(&sqlstate)
}

/// Drops the pipeline's slot if it is inactive, so that the server can remove its WAL. Only for a pipeline that polls
/// the table instead.
///
/// # Errors
/// An error of the server or of the connection; a slot in use is [`SlotOutcome::NotYet`].
pub async fn drop_slot(control: &Control, slot: &str) -> Result<SlotOutcome, SourceError> {
    let sql = "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots \
               WHERE slot_name = $1::pg_catalog.text AND plugin = 'pgoutput' \
                 AND database = pg_catalog.current_database()";
    match control.client().execute(sql, &[&slot]).await {
        Ok(_) => Ok(SlotOutcome::Dropped),
        Err(error) => {
            let error = SourceError::control("drop the slot", error);
            if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) {
                return Ok(SlotOutcome::NotYet(format!("slot {slot:?} is still in use")));
            }
            Err(error)
        }
    }
}

/// Reads how many bytes of WAL the slot retains; 0 if there is no slot.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn retained_wal(control: &Control, slot: &str) -> Result<u64, SourceError> {
    let sql = "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_flush_lsn(), restart_lsn)::pg_catalog.int8 \
               FROM pg_catalog.pg_replication_slots WHERE slot_name = $1::pg_catalog.text";
    let failed = |error| SourceError::control("check how much WAL the slot retains", error);
    let row = control.client().query_opt(sql, &[&slot]).await.map_err(failed)?;
    let bytes: Option<i64> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?.flatten();
    Ok(bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0))
}
