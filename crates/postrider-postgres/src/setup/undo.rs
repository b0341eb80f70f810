//! Removes a pipeline from the database: slot, rows, publication; with the last pipeline also the schema, or only
//! Postrider's own tables in it if the SQL toolkit is installed there; and the rights that were granted for retention.
//!
//! [`plan`] is pure, lists what will be lost before anything is, and prints as SQL like the plan of a setup. Never
//! dropped: the outbox table, a role and its other rights, a slot or a publication that is also used by others.

use super::apply::{SetupError, run};
use super::{Step, StepKind, TRIGGER, notify_undo_sql, transaction};
use crate::catalog::SlotRow;
use crate::control::{Control, FactsQuery};
use crate::names::{OWN_TABLES, admin_url, ident, literal};
use crate::retention::RetentionRule;
use crate::schema::SchemaState;
use crate::schema_owner::{self, SessionRights};
use crate::start::{self, Facts};
use crate::store::pause::{self, ConnectedProcesses};
use crate::toolkit::files::PRESENT_SQL;
use pg_replication::error::SourceError;
use postrider_core::error::{Halt, HaltReason};

/// What will be dropped, how, and what is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UndoPlan {
    /// What is lost, one line each.
    pub lost: Vec<String>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What is kept, one line each.
    pub stays: Vec<String>,
}

/// The contents of Postrider's tables.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StoredRows {
    /// Rows of this pipeline: the table's name in schema `postrider`, and how many.
    pub rows: Vec<(String, i64)>,
    /// Slots of its bookmarks.
    pub bookmark_slots: Vec<String>,
    /// Whether other pipelines have rows.
    pub others: bool,
    /// Those of Postrider's own tables that exist, by name.
    pub tables: Vec<String>,
    /// The SQL toolkit is installed in the same schema.
    pub toolkit: bool,
    /// What retention was granted: the right, and the statements that revoke it.
    pub retention: Vec<(String, String)>,
    /// The processes of the pipeline that are connected: also one that polls or is paused, which uses no slot.
    pub processes: ConnectedProcesses,
}

/// Reads what is to be undone, and plans it. `retention`: the rule of the pipeline, and the relay's role.
///
/// # Errors
/// See [`SetupError`]: the server cannot be read, or the slot is in use.
pub async fn read(
    control: &Control,
    ask: &FactsQuery<'_>,
    retention: Option<(&RetentionRule, &str)>,
) -> Result<UndoPlan, SetupError> {
    let facts = control.facts(ask).await?;
    if facts.schema == SchemaState::Untrusted {
        return Err(start::schema_untrusted(&facts).into());
    }
    let mut holdings = holdings(control, &facts).await?;
    if let Some((of, role)) = retention {
        let rights = of.rights(control.client(), Some(role)).await?;
        let revoked = rights.into_iter().filter_map(|right| Some((right.what, right.revoke?)));
        // The archive may have the owner of the outbox.
        holdings.retention = revoked.collect();
        holdings.retention.dedup_by(|(_, sql), (_, before)| sql == before);
    }
    let is_guarded = matches!(ask.acting, SessionRights::Administrator | SessionRights::Printing);
    let plan = plan(&facts, &holdings, is_guarded)?;
    if plan.steps.is_empty() {
        return Ok(plan);
    }
    match denied(control, &facts).await? {
        Some(object) => Err(not_ours(&facts.server.role, &object, &facts).into()),
        None => Ok(plan),
    }
}

/// An existing object that the role may not drop: checked before anything is dropped, so that nothing is left half
/// undone.
async fn denied(control: &Control, facts: &Facts) -> Result<Option<String>, SourceError> {
    let failed = |e| SourceError::control("check who owns the objects to be dropped", e);
    let sql = "SELECT 'publication ' || pg_catalog.quote_ident(pubname) FROM pg_catalog.pg_publication \
                 WHERE pubname = $1::pg_catalog.text AND NOT pg_catalog.pg_has_role(pubowner, 'USAGE') \
               UNION ALL SELECT 'the trigger on ' || c.oid::pg_catalog.regclass FROM pg_catalog.pg_trigger t \
                 JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE t.tgname = $2::pg_catalog.text AND n.nspname = $3::pg_catalog.text \
                 AND c.relname = $4::pg_catalog.text \
                 AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE') \
               UNION ALL SELECT 'schema postrider' FROM pg_catalog.pg_namespace \
                 WHERE nspname = 'postrider' AND NOT pg_catalog.pg_has_role(nspowner, 'USAGE') LIMIT 1";
    let (schema, table) =
        facts.names.table.as_ref().map_or(("", ""), |name| (&*name.schema, &*name.name));
    let (client, publication) = (control.client(), &facts.names.publication);
    let row =
        client.query_opt(sql, &[publication, &TRIGGER, &schema, &table]).await.map_err(failed)?;
    row.map(|row| row.try_get(0).map_err(failed)).transpose()
}

fn not_ours(role: &str, object: &str, facts: &Facts) -> Halt {
    Halt {
        reason: HaltReason::AccessDenied,
        message: format!("role {role:?} may not drop {object}"),
        meaning: "nothing was changed".to_owned(),
        hint: format!(
            "log in as an administrator: postrider setup --undo --url {} -p {}",
            admin_url(&facts.server.database),
            facts.names.key.pipeline
        ),
    }
}

/// Reads which of Postrider's own tables exist, and counts the rows of those that have a column `pipeline`.
async fn holdings(control: &Control, facts: &Facts) -> Result<StoredRows, SourceError> {
    let failed = |e| SourceError::control("count the rows of schema \"postrider\"", e);
    let row = control.client().query_one(PRESENT_SQL, &[]).await.map_err(failed)?;
    let toolkit = row.try_get(0).map_err(failed)?;
    let processes = pause::connected(control.client(), &facts.names.key).await?;
    let mut holdings = StoredRows { toolkit, processes, ..StoredRows::default() };
    let sql = "SELECT c.relname::pg_catalog.text, a.attname IS NOT NULL FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'pipeline' \
               WHERE n.nspname = 'postrider' AND c.relkind = 'r' \
                 AND c.relname = ANY ($1::pg_catalog.text[]) ORDER BY c.relname";
    let own = OWN_TABLES.as_slice();
    for row in control.client().query(sql, &[&own]).await.map_err(failed)? {
        let table: String = row.try_get(0).map_err(failed)?;
        holdings.tables.push(table.clone());
        if !row.try_get::<_, bool>(1).map_err(failed)? {
            continue;
        }
        let sql = format!(
            "SELECT pg_catalog.count(*) FILTER (WHERE pipeline = $1), \
             pg_catalog.count(*) FILTER (WHERE pipeline <> $1) FROM postrider.{}",
            ident(&table)
        );
        let name = &facts.names.key.pipeline;
        let row = control.client().query_one(&sql, &[name]).await.map_err(failed)?;
        let (own, others): (i64, i64) =
            (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        holdings.others |= others > 0;
        if own > 0 && table == "bookmark" {
            let sql = "SELECT b.slot FROM postrider.bookmark b \
                       JOIN pg_catalog.pg_replication_slots s ON s.slot_name = b.slot \
                       WHERE b.pipeline = $1 ORDER BY b.slot";
            let rows = control.client().query(sql, &[name]).await.map_err(failed)?;
            let slots = rows.iter().map(|row| row.try_get(0).map_err(failed));
            holdings.bookmark_slots = slots.collect::<Result<_, _>>()?;
        }
        if own > 0 {
            holdings.rows.push((table, own));
        }
    }
    Ok(holdings)
}

/// Plans what to drop, in order: first what retains WAL. `is_guarded`: an administrator drops it, and no other role's
/// code may run with those rights.
///
/// # Errors
/// The server is a standby, the slot is in use, or a process of the pipeline is connected.
pub fn plan(
    facts: &Facts,
    holdings: &StoredRows,
    is_guarded: bool,
) -> Result<UndoPlan, SetupError> {
    if facts.server.in_recovery {
        return Err(super::plan::standby().into());
    }
    let mut plan = UndoPlan { lost: Vec::new(), steps: Vec::new(), stays: Vec::new() };
    slot(facts, &mut plan)?;
    if let Some(halt) = connected(facts, holdings.processes) {
        return Err(halt.into());
    }
    bookmarks(holdings, &mut plan);
    trigger(facts, &mut plan);
    rows(facts, holdings, is_guarded, &mut plan);
    retention(holdings, is_guarded, &mut plan);
    publication(facts, &mut plan);
    if facts.names.captures() {
        plan.stays.push(format!("tables {} with their rows", facts.names.captured_list()));
    }
    if let Some(table) = facts.table.as_ref().and(facts.names.table.as_ref()) {
        plan.stays.push(format!("table {table} with its rows"));
    }
    plan.stays.push("roles and their other rights; what is in the broker".to_owned());
    Ok(plan)
}

fn slot(facts: &Facts, plan: &mut UndoPlan) -> Result<(), SetupError> {
    let Some(slot) = &facts.slot else { return Ok(()) };
    if let Some(why) = foreign(slot, &facts.server.database) {
        plan.stays.push(format!("slot {:?}: it is {why}", slot.name));
        return Ok(());
    }
    if let Some(pid) = slot.active_pid {
        return Err(in_use(&slot.name, pid).into());
    }
    let confirmed = slot.confirmed_flush_lsn;
    let behind = confirmed.map_or(0, |at| facts.server.wal_end.distance_from(at));
    let at = confirmed.map_or_else(|| "nowhere yet".to_owned(), |at| at.to_string());
    plan.lost.push(format!(
        "slot {:?} (confirmed up to {at}): events in the {behind} bytes of WAL after it that are not published yet are \
         lost to the stream; a new slot starts at its creation",
        slot.name
    ));
    plan.steps.push(Step {
        kind: StepKind::Slot,
        title: format!("drop slot {:?}", slot.name),
        why: "After this the server keeps no WAL for this pipeline.",
        sql: format!("SELECT pg_catalog.pg_drop_replication_slot({});", literal(&slot.name)),
    });
    Ok(())
}

/// The slots of the pipeline's bookmarks, which could not be found without their rows.
fn bookmarks(holdings: &StoredRows, plan: &mut UndoPlan) {
    for slot in &holdings.bookmark_slots {
        plan.lost.push(format!("slot {slot:?}, of a bookmark: it can no longer be replayed"));
        plan.steps.push(Step {
            kind: StepKind::Slot,
            title: format!("drop slot {slot:?}"),
            why: "The slot of a bookmark, which retains WAL too.",
            sql: format!("SELECT pg_catalog.pg_drop_replication_slot({});", literal(slot)),
        });
    }
}

/// Why a slot of the configured name is not this pipeline's.
fn foreign(slot: &SlotRow, database: &str) -> Option<String> {
    match (&slot.plugin, &slot.database) {
        (Some(plugin), _) if plugin != "pgoutput" => Some(format!("of plugin {plugin:?}")),
        (_, Some(other)) if other != database => Some(format!("of database {other:?}")),
        (None, _) => Some("a physical slot".to_owned()),
        (Some(_), _) => None,
    }
}

fn in_use(slot: &str, pid: u32) -> Halt {
    Halt {
        reason: HaltReason::RelayRunning,
        message: format!("slot {slot:?} is in use by the server's process {pid}"),
        meaning: "nothing was changed".to_owned(),
        hint: "stop postrider run first; who holds it: SELECT pid, application_name, client_addr FROM \
               pg_stat_replication;"
            .to_owned(),
    }
}

/// A process that is connected would create its objects again, or publish the rows of the table after its pause is
/// gone.
fn connected(facts: &Facts, processes: ConnectedProcesses) -> Option<Halt> {
    let what = match processes {
        ConnectedProcesses { reads: true, .. } => "runs",
        ConnectedProcesses { paused: 1.., .. } => "is paused, and waits for postrider resume",
        ConnectedProcesses { .. } => return None,
    };
    Some(Halt {
        reason: HaltReason::RelayRunning,
        message: format!("a process of pipeline {:?} {what}", facts.names.key.pipeline),
        meaning: "nothing was changed".to_owned(),
        hint: "stop postrider run first; who is connected: SELECT pid, application_name, client_addr FROM \
               pg_stat_activity;"
            .to_owned(),
    })
}

/// The only object of Postrider on another owner's table.
fn trigger(facts: &Facts, plan: &mut UndoPlan) {
    let notifies = facts.table.as_ref().is_some_and(|table| table.notifies);
    let Some(name) = facts.names.table.as_ref().filter(|_| notifies) else { return };
    plan.lost.push(format!("trigger {TRIGGER:?} on table {name}"));
    plan.steps.push(Step {
        kind: StepKind::Notify,
        title: format!("drop trigger {TRIGGER:?} on table {name}"),
        why: "Inserts no longer wake a relay.",
        sql: transaction(&notify_undo_sql(name)),
    });
}

fn rows(facts: &Facts, holdings: &StoredRows, is_guarded: bool, plan: &mut UndoPlan) {
    let guard = if is_guarded { schema_owner::guard() } else { String::new() };
    if facts.schema == SchemaState::Missing {
        return;
    }
    let pipeline = &facts.names.key.pipeline;
    for (table, count) in &holdings.rows {
        let what = match table.as_str() {
            "cursor" => "the pipeline's position and history",
            "parked" => "parked events, and the records of those resolved since",
            "bookmark" => "saved positions",
            "replay" => "replays and their progress",
            "pause" => "the request that pauses the pipeline",
            _ => "rows of Postrider",
        };
        plan.lost.push(format!("{count} row(s) of postrider.{table}: {what}"));
    }
    if holdings.others {
        plan.stays.push("schema \"postrider\": other pipelines have rows in it".to_owned());
        let deletes = holdings.rows.iter().map(|(table, _)| {
            let (table, name) = (ident(table), literal(pipeline));
            format!("DELETE FROM postrider.{table} WHERE pipeline = {name};\n")
        });
        let sql: String = deletes.collect();
        if !sql.is_empty() {
            plan.steps.push(Step {
                kind: StepKind::Cursor,
                title: format!("delete the rows of pipeline {pipeline:?}"),
                why: "Postrider's own tables; those of other pipelines are left alone.",
                sql: transaction(&format!("{guard}{sql}")),
            });
        }
        return;
    }
    if !holdings.toolkit {
        plan.steps.push(Step {
            kind: StepKind::Schema,
            title: "drop schema \"postrider\"".to_owned(),
            why: "No other pipeline has rows in it.",
            sql: transaction(&format!("{guard}DROP SCHEMA postrider CASCADE;")),
        });
        return;
    }
    plan.stays.push(format!(
        "schema \"postrider\": the SQL toolkit is installed in it, with its logs, consumer groups and inboxes. To \
         remove these: postrider sql --uninstall --url {}",
        admin_url(&facts.server.database)
    ));
    if holdings.tables.is_empty() {
        return;
    }
    let tables: Vec<String> =
        holdings.tables.iter().map(|table| format!("postrider.{}", ident(table))).collect();
    plan.steps.push(Step {
        kind: StepKind::Schema,
        title: "drop Postrider's own tables in schema \"postrider\"".to_owned(),
        why: "No other pipeline has rows in them. The SQL toolkit is installed in the same schema, and stays.",
        sql: transaction(&format!(
            "{guard}DROP TABLE {} CASCADE;\nDROP FUNCTION IF EXISTS postrider.notify_outbox() CASCADE;",
            tables.join(", ")
        )),
    });
}

/// The rights that setup grants for retention. A role can't revoke its own ones.
fn retention(holdings: &StoredRows, is_guarded: bool, plan: &mut UndoPlan) {
    if holdings.retention.is_empty() {
        return;
    }
    let what: Vec<&str> = holdings.retention.iter().map(|(what, _)| what.as_str()).collect();
    let what = format!("rights of retention: {}", what.join(", "));
    let sql: Vec<&str> = holdings.retention.iter().map(|(_, sql)| sql.as_str()).collect();
    if holdings.others {
        plan.stays.push(format!("{what}: other pipelines may need them"));
    } else if is_guarded {
        plan.lost.push(what);
        plan.steps.push(Step {
            kind: StepKind::Retention,
            title: "revoke the rights of retention".to_owned(),
            why: "No other pipeline has rows in schema \"postrider\". Rights that streaming needs are kept.",
            sql: transaction(&sql.join("\n")),
        });
    } else {
        plan.stays.push(format!("{what}; as an administrator: {}", sql.join(" ")));
    }
}

fn publication(facts: &Facts, plan: &mut UndoPlan) {
    let Some(publication) = &facts.publication else { return };
    let name = &facts.names.publication;
    // Without an outbox table every table counts as another one; of captured tables it is known which are.
    let others = match facts.captured.as_ref().and_then(|captured| captured.publication.as_ref()) {
        Some(captured) => captured.is_wide || !captured.others.is_empty(),
        None => publication.all_tables || publication.other_tables > 0,
    };
    if others {
        plan.stays.push(format!("publication {name:?}: it publishes other tables too"));
        return;
    }
    plan.lost.push(format!("publication {name:?}"));
    plan.steps.push(Step {
        kind: StepKind::Publication,
        title: format!("drop publication {name:?}"),
        why: "Last, since a slot can't be read without it.",
        sql: transaction(&format!("DROP PUBLICATION {};", ident(name))),
    });
}

/// Runs the steps. Completed steps are kept, and a new plan has the rest.
///
/// # Errors
/// The step that failed.
pub async fn undo(control: &Control, plan: &UndoPlan) -> Result<(), SetupError> {
    for step in &plan.steps {
        let done = run(control.client(), &step.sql).await;
        done.map_err(|error| SetupError::Step { step: step.title.clone(), error })?;
    }
    Ok(())
}
