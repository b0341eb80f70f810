//! Removes the toolkit: the logs with their events, the groups, and the functions. Objects are dropped one by one and
//! without CASCADE, so nothing goes that is not the toolkit's.

use super::error::ToolkitError;
use super::install::run;
use super::script::guarded;
use super::state::{self, InstalledInbox, InstalledLog, InstalledOutbox, ToolkitVersion};
use crate::control::Control;
use crate::names::{ident, literal};
use crate::schema_owner::{self, SessionRights};
use pg_replication::error::{SourceError, SqlState};
use std::fmt::Write as _;

/// The lists of the toolkit's objects, as common table expressions.
const OBJECTS: &str = concat!(include_str!("objects.sql"), include_str!("former.sql"));

/// What an uninstallation drops, and what is lost by it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovalPlan {
    /// The database.
    pub database: String,
    /// The version that it has.
    pub version: ToolkitVersion,
    /// What is lost, one line each.
    pub lost: Vec<String>,
    /// What is kept, one line each.
    pub stays: Vec<String>,
    /// The statements; empty if there is nothing of the toolkit.
    pub sql: String,
}

/// An object of schema `postrider`.
#[derive(Debug)]
struct SchemaObject {
    /// `TABLE`, `VIEW`, `SEQUENCE` or `FUNCTION`.
    kind: String,
    /// The object, as SQL names it.
    name: String,
    /// The object is the toolkit's.
    is_ours: bool,
}

/// Reads what is there, and plans what to drop.
///
/// # Errors
/// The state can't be read, the database has a later version, or another role could run code with the rights of this
/// session.
pub async fn plan(control: &Control) -> Result<RemovalPlan, ToolkitError> {
    let client = control.client();
    if let Some(found) = schema_owner::read(client, SessionRights::Administrator).await? {
        return Err(ToolkitError::Untrusted(Box::new(found)));
    }
    let facts = state::read(client).await?;
    if facts.version.is_newer() {
        let (database, found) = (facts.database, facts.version.number());
        return Err(ToolkitError::Newer { database, found });
    }
    let objects = objects(control).await?;
    let logs = state::logs(client).await?;
    let mut plan = RemovalPlan {
        database: facts.database,
        version: facts.version,
        lost: logs.iter().map(lost_log).collect(),
        stays: Vec::new(),
        sql: String::new(),
    };
    for group in state::groups(client).await? {
        plan.lost.push(format!(
            "consumer group {:?} of log {:?}: its position; {} not done",
            group.name,
            group.log,
            events(group.lag)
        ));
    }
    drops_outboxes(control, &state::outboxes(client).await?, &mut plan).await?;
    drops_inboxes(control, &state::inboxes(client).await?, &mut plan).await?;
    drops_logs(control, &logs, &mut plan).await?;
    drops_objects(&objects, facts.has_schema, &mut plan);
    if !plan.sql.is_empty() {
        plan.sql = guarded(plan.sql.trim_end());
    }
    plan.stays.push("roles; outbox tables; what was published elsewhere".to_owned());
    Ok(plan)
}

fn events(count: i64) -> String {
    if count == 1 { "1 event".to_owned() } else { format!("{count} events") }
}

fn lost_log(log: &InstalledLog) -> String {
    let (name, count) = (&log.name, events(log.events));
    match &log.owner {
        Some(owner) => {
            let table = ident(&log.table);
            format!("log {name:?}: {count}, in table postrider_log.{table} of role {owner:?}")
        }
        None => format!("log {name:?}: its table in schema \"postrider_log\" does not exist"),
    }
}

/// Drops the table outboxes with their events, and their schema if nothing else is in it. The tables whose changes they
/// have stay, without the triggers.
async fn drops_outboxes(
    control: &Control,
    outboxes: &[InstalledOutbox],
    plan: &mut RemovalPlan,
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("count the events of the table outboxes", e);
    let mut ours = Vec::new();
    for outbox in outboxes {
        let (name, source) = (&outbox.name, &outbox.source);
        let count: i64 = if outbox.owner.is_some() {
            let sql = format!(
                "SELECT pg_catalog.count(*) FROM postrider_outbox.{}",
                ident(&outbox.table)
            );
            let row = control.client().query_one(&sql, &[]).await.map_err(failed)?;
            row.try_get(0).map_err(failed)?
        } else {
            0
        };
        plan.lost.push(format!(
            "table outbox {name:?} of table {source}: {}, and the rows of its claim checks",
            events(count)
        ));
        ours.extend(outbox.objects.iter().map(String::as_str));
        writeln!(
            plan.sql,
            "SELECT postrider.disable_outbox({}, p_discard => true);",
            literal(name)
        )
        .unwrap_or_default();
    }
    drops_schema(control, "postrider_outbox", "table outbox", &ours, plan).await
}

/// Drops the inboxes, with the tables that the toolkit created, and their schema if nothing else is in it.
async fn drops_inboxes(
    control: &Control,
    inboxes: &[InstalledInbox],
    plan: &mut RemovalPlan,
) -> Result<(), SourceError> {
    let mut ours = Vec::new();
    for inbox in inboxes {
        let table = format!("{}.{}", ident(&inbox.schema), ident(&inbox.table));
        plan.lost.push(if inbox.is_managed {
            format!(
                "inbox {:?}: messages in table {table}: {}, of them not processed: {}",
                inbox.name, inbox.messages, inbox.open
            )
        } else {
            format!("inbox {:?}: its views; table {table} stays", inbox.name)
        });
        if inbox.is_managed {
            ours.push(inbox.table.as_str());
        }
        ours.extend(inbox.views.iter().map(String::as_str));
        plan.sql.push_str(&format_drop_inbox(&inbox.name));
    }
    drops_schema(control, "postrider_inbox", "inbox", &ours, plan).await
}

/// Drops the tables of the logs, and their schema if nothing else is in it.
async fn drops_logs(
    control: &Control,
    logs: &[InstalledLog],
    plan: &mut RemovalPlan,
) -> Result<(), SourceError> {
    let tables: Vec<&str> =
        logs.iter().filter(|log| log.owner.is_some()).map(|log| log.table.as_str()).collect();
    for table in &tables {
        plan.sql.push_str(&format_drop("TABLE", &format!("postrider_log.{}", ident(table))));
    }
    drops_schema(control, "postrider_log", "log", &tables, plan).await
}

/// Drops a schema if it has nothing but these tables, views and functions, each of which belongs to an `owner`; else
/// says what it has.
async fn drops_schema(
    control: &Control,
    schema: &str,
    owner: &str,
    ours: &[&str],
    plan: &mut RemovalPlan,
) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("list the objects of the SQL toolkit's schemas", e);
    // An index and a sequence of a column go with their table, and a partition with its root.
    let sql = "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace AND n.nspname = $2::pg_catalog.text \
               WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c') \
                 AND c.relname::pg_catalog.text <> ALL ($1::pg_catalog.text[]) AND NOT EXISTS ( \
                   SELECT FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class p ON p.oid = i.inhparent \
                   WHERE i.inhrelid = c.oid AND p.relnamespace = n.oid \
                     AND p.relname::pg_catalog.text = ANY ($1::pg_catalog.text[])) AND NOT EXISTS ( \
                   SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class t ON t.oid = d.refobjid \
                   WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid \
                     AND d.refclassid = d.classid AND d.deptype = 'i' AND t.relnamespace = n.oid \
                     AND t.relname::pg_catalog.text = ANY ($1::pg_catalog.text[])) \
               UNION ALL SELECT o.type || ' ' || o.identity FROM pg_catalog.pg_depend d \
               JOIN pg_catalog.pg_namespace n ON n.oid = d.refobjid AND n.nspname = $2::pg_catalog.text \
               CROSS JOIN LATERAL pg_catalog.pg_identify_object(d.classid, d.objid, 0) o \
               WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.deptype = 'n' \
                 AND d.classid <> 'pg_catalog.pg_class'::pg_catalog.regclass \
                 AND o.type || ' ' || o.identity <> ALL ($1::pg_catalog.text[]) ORDER BY 1";
    let rows = control.client().query(sql, &[&ours, &schema]).await.map_err(failed)?;
    let others: Vec<String> =
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(failed)?;
    let sql =
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::pg_catalog.text)";
    let row = control.client().query_one(sql, &[&schema]).await.map_err(failed)?;
    let has_schema: bool = row.try_get(0).map_err(failed)?;
    if has_schema && others.is_empty() {
        plan.sql.push_str(&format_drop("SCHEMA", schema));
    } else if has_schema {
        plan.stays.push(format!(
            "schema \"{schema}\", which has objects that belong to no {owner}: {}",
            others.join(", ")
        ));
    }
    Ok(())
}

/// Drops the toolkit's views, functions, tables and sequences, in this order, and the schema if nothing is left in it.
fn drops_objects(objects: &[SchemaObject], has_schema: bool, plan: &mut RemovalPlan) {
    for kind in ["VIEW", "FUNCTION", "TABLE", "SEQUENCE"] {
        let ours = objects.iter().filter(|object| object.is_ours && object.kind == kind);
        let names: Vec<&str> = ours.map(|object| object.name.as_str()).collect();
        if !names.is_empty() {
            plan.sql.push_str(&format_drop(kind, &names.join(", ")));
        }
    }
    if objects.iter().any(|object| !object.is_ours) {
        plan.stays.push(
            "schema \"postrider\", with the tables of pipelines; postrider setup --undo removes these"
                .to_owned(),
        );
    } else if has_schema && !plan.sql.is_empty() {
        plan.sql.push_str("DROP SCHEMA postrider;\n");
    }
}

fn format_drop_inbox(name: &str) -> String {
    format!("SELECT postrider.drop_inbox({}, p_cascade => true);\n", literal(name))
}

fn format_drop(kind: &str, names: &str) -> String {
    format!("DROP {kind} {names};\n")
}

/// Every object of schema `postrider`.
async fn objects(control: &Control) -> Result<Vec<SchemaObject>, SourceError> {
    let failed = |e| SourceError::control("list the objects of the SQL toolkit", e);
    let sql = format!(
        "{OBJECTS}n AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'postrider') \
         SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, \
           pg_catalog.format('postrider.%I', c.relname), EXISTS (SELECT FROM toolkit_relations k \
             WHERE k.kind = c.relkind::pg_catalog.text AND k.name = c.relname::pg_catalog.text) \
         FROM pg_catalog.pg_class c JOIN n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') \
         UNION ALL SELECT 'FUNCTION', p.oid::pg_catalog.regprocedure::pg_catalog.text, \
           EXISTS (SELECT FROM known_routines k WHERE k.name = p.proname::pg_catalog.text \
             AND k.arguments = pg_catalog.pg_get_function_arguments(p.oid) \
             AND k.result = pg_catalog.pg_get_function_result(p.oid)) \
         FROM pg_catalog.pg_proc p JOIN n ON n.oid = p.pronamespace ORDER BY 1, 2"
    );
    let rows = control.client().query(&sql, &[]).await.map_err(failed)?;
    let object = |row: &tokio_postgres::Row| {
        Ok(SchemaObject { kind: row.try_get(0)?, name: row.try_get(1)?, is_ours: row.try_get(2)? })
    };
    rows.iter().map(object).collect::<Result<_, _>>().map_err(failed)
}

/// Drops what the plan has.
///
/// # Errors
/// Why nothing was dropped: a right is missing, or an object of others depends on one of the toolkit's.
pub async fn uninstall(control: &Control, plan: &RemovalPlan) -> Result<(), ToolkitError> {
    const DOING: &str = "remove the SQL toolkit";
    let Err(error) = run(control, &plan.sql).await else { return Ok(()) };
    if error.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE) {
        let lines =
            vec!["run it as the role that owns schema \"postrider\", or as a superuser".to_owned()];
        return Err(ToolkitError::Denied { doing: DOING, error, lines });
    }
    Err(ToolkitError::Failed { doing: DOING, error })
}
