//! The plan of a setup: the steps that the facts require; the backfill; the notification trigger; and the plan as SQL.

use super::{
    Options, ServerKind, SetupPlan, Step, StepKind, UndoPlan, rights, role_sql, transaction,
};
use crate::catalog::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL};
use crate::control::Control;
use crate::names::{TableName, admin_url, ident, literal};
use crate::poll::{CHANNEL, PollSpec};
use crate::repair::{self, NewRepair, RepairProgress, RepairReader, RepairRow, Verdict};
use crate::retention::DetachExclusion;
use crate::schema::{MIGRATION_TABLE, SchemaState, VERSION};
use crate::schema_owner::{self, UntrustedSchema};
use crate::start::{self, Facts};
use crate::store::cursor::{NOTHING_BEFORE, OVER_POLLING};
use pg_replication::error::SourceError;
use postrider_core::error::{Halt, HaltReason};
use std::fmt;

/// Plans the missing steps, in order.
///
/// # Errors
/// An existing object of a configured name cannot be used, or a step would leave events out.
pub fn plan(facts: &Facts, options: &Options<'_>) -> Result<SetupPlan, Halt> {
    refuse_anything(facts, options)?;
    let mut plan = SetupPlan { steps: Vec::new(), adopted: Vec::new() };
    if let Some(found) = &facts.untrusted {
        // The role that prints the plan has read the schema as its owner; the SQL itself refuses any other role that
        // runs it.
        if facts.schema == SchemaState::Untrusted && !found.foreign.is_empty() {
            return Err(start::schema_untrusted(facts));
        }
        ownership(facts, found, options, &mut plan);
    }
    if options.ownership_alone || facts.schema == SchemaState::Untrusted {
        return Ok(plan);
    }
    if options.polls {
        start::check_polled_objects(facts)?;
    } else {
        start::check_objects(facts)?;
    }
    refuse(facts, options)?;
    table(facts, options, &mut plan);
    if !options.polls {
        publication(facts, &mut plan);
    }
    schema(facts, options, &mut plan);
    if let Some(role) = options.role {
        rights(facts, role, options, &mut plan);
    }
    if !options.polls && !options.backfill {
        slot_and_cursor(facts, options, &mut plan);
    }
    if options.notify {
        notify(facts, &mut plan);
    }
    Ok(plan)
}

/// Conditions that make any step impossible.
fn refuse_anything(facts: &Facts, options: &Options<'_>) -> Result<(), Halt> {
    if facts.server.in_recovery {
        return Err(standby());
    }
    if let Some(role) = options.role.filter(|_| options.role_missing) {
        return Err(Halt {
            reason: HaltReason::AccessDenied,
            message: format!("role {role:?} does not exist"),
            meaning: "nothing was changed".to_owned(),
            hint: format!(
                "as an administrator: {} then run setup again",
                role_sql(
                    role,
                    options.polls,
                    options.rights.map_or_else(ServerKind::default, |rights| rights.kind)
                )
            ),
        });
    }
    Ok(())
}

/// Conditions that `check_objects` does not cover, because they are about missing objects.
fn refuse(facts: &Facts, options: &Options<'_>) -> Result<(), Halt> {
    if let SchemaState::Version(number) = facts.schema
        && number > VERSION
    {
        return Err(start::schema_unfit(facts));
    }
    if facts.table.is_none() && options.create_table.is_none() {
        start::check_table(facts)?;
    }
    match (&facts.slot, &facts.cursor) {
        _ if options.polls || options.backfill => Ok(()),
        // There was a slot, which was dropped: creating it again would leave out the events in between.
        (None, Some(_)) => Err(start::slot_missing(facts)),
        // WAL from before the publication cannot be used.
        (Some(_), _) if facts.publication.is_none() => Err(start::publication_missing(facts)),
        (Some(slot), _) if slot.confirmed_flush_lsn.is_none() => Err(half_made(&slot.name)),
        (Some(_), Some(_)) => start::check_binding(facts),
        (Some(_) | None, None) => Ok(()),
    }
}

pub(crate) fn standby() -> Halt {
    Halt {
        reason: HaltReason::ServerUnfit,
        message: "the server is a standby: nothing can be changed on it".to_owned(),
        meaning: "nothing was changed".to_owned(),
        hint: "point source.url at the primary, or name all hosts in it with target_session_attrs=read-write"
            .to_owned(),
    }
}

/// Another session is creating the slot now, or its creation was interrupted: then the slot disappears with the
/// transaction that it waits for.
fn half_made(slot: &str) -> Halt {
    Halt {
        reason: HaltReason::SlotUnusable,
        message: format!("slot {slot:?} is still being created by another session"),
        meaning: "nothing was changed".to_owned(),
        hint: "run setup again when the long transactions of the cluster have ended: SELECT pid, state, xact_start \
               FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start;"
            .to_owned(),
    }
}

fn table(facts: &Facts, options: &Options<'_>, plan: &mut SetupPlan) {
    if facts.names.captures() {
        let tables = facts.names.captured_list();
        plan.adopted.push(format!("captured tables {tables}, with their replica identities"));
    }
    let Some(name) = &facts.names.table else { return };
    match (&facts.table, options.create_table) {
        (Some(_), _) => plan.adopted.push(format!("table {name}")),
        (None, Some(sql)) => plan.steps.push(Step {
            kind: StepKind::Table,
            title: format!("create table {name}"),
            why: "The outbox table of the layout.",
            sql: transaction(&format!("SET LOCAL search_path = {};\n{sql}", ident(&name.schema))),
        }),
        (None, None) => {}
    }
}

fn publication(facts: &Facts, plan: &mut SetupPlan) {
    let name = &facts.names.publication;
    if facts.publication.is_some() {
        plan.adopted.push(format!("publication {name:?}"));
        return;
    }
    plan.steps.push(Step {
        kind: StepKind::Publication,
        title: format!("create publication {name:?}"),
        why: if facts.names.captures() {
            "Must exist before the slot. From here on PostgreSQL refuses an UPDATE or DELETE of these tables if their \
             replica identity is removed. Partitions are published under the parent table's name."
        } else if facts.names.updates {
            "Must exist before the slot. Publishes UPDATEs too, since outbox.on_update = \"halt\" has to see them: the \
             table needs a primary key or REPLICA IDENTITY FULL. Partitions are published under the parent table's \
             name."
        } else {
            "Must exist before the slot. Publishes only INSERTs, so no REPLICA IDENTITY is needed. Partitions are \
             published under the parent table's name."
        },
        sql: transaction(&format!(
            "CREATE PUBLICATION {}{}\n    WITH ({});",
            ident(name),
            facts.names.for_tables(),
            facts.names.publication_options(facts.server.version)
        )),
    });
}

/// Takes the schema from every role that could run code with the rights of the following steps. It comes first: what
/// else is missing is read when no such role is left.
fn ownership(facts: &Facts, found: &UntrustedSchema, options: &Options<'_>, plan: &mut SetupPlan) {
    plan.steps.push(Step {
        kind: StepKind::Ownership,
        title: found.title(),
        why: "A role that owns these tables can add code to them, which runs with the rights of an administrator who \
              uses them. The previous owner keeps its rights on rows; the relay needs no others. A schema with \
              objects that are not Postrider's is refused. What else is missing is known after this step.",
        sql: transaction(&found.sql(options.role, facts.server.version)),
    });
}

/// The check in front of statements that use Postrider's tables with the rights of an administrator.
fn guard(options: &Options<'_>) -> String {
    if options.role.is_some() { schema_owner::guard() } else { String::new() }
}

fn schema(facts: &Facts, options: &Options<'_>, plan: &mut SetupPlan) {
    let guard = guard(options);
    let mut sql = String::new();
    match facts.schema {
        SchemaState::Missing => {
            sql.push_str("CREATE SCHEMA postrider;\n");
            sql.push_str(MIGRATION_TABLE);
            sql.push('\n');
        }
        SchemaState::Empty => {
            sql.push_str(&guard);
            sql.push_str(MIGRATION_TABLE);
            sql.push('\n');
        }
        SchemaState::Version(_) | SchemaState::Untrusted => sql.push_str(&guard),
    }
    let pending: Vec<_> = facts.schema.pending().collect();
    if pending.is_empty() {
        plan.adopted.push(format!("schema \"postrider\", version {VERSION}"));
        return;
    }
    for migration in pending {
        sql.push_str(migration.sql.trim_end());
        let row = format!("({}, {})", migration.number, literal(migration.name));
        sql.push_str("\nINSERT INTO postrider.migration (number, name) VALUES ");
        sql.push_str(&row);
        // The number exists already if only a table of that migration was dropped.
        sql.push_str(" ON CONFLICT DO NOTHING;\n");
    }
    // A table that another session created meanwhile is not created again.
    if facts.schema != SchemaState::Missing {
        sql.push_str(&guard);
    }
    plan.steps.push(Step {
        kind: StepKind::Schema,
        title: match facts.schema {
            SchemaState::Missing => format!("create schema \"postrider\" (version {VERSION})"),
            SchemaState::Empty | SchemaState::Version(_) | SchemaState::Untrusted => {
                format!("update schema \"postrider\" to version {VERSION}")
            }
        },
        why: "The relay's own tables. They are never part of the publication.",
        sql: transaction(&sql),
    });
}

const WHY_SLOT: &str = "Events committed from here on are kept for the relay. It waits for every transaction that is \
    running now, in any database of the cluster, so it may take as long as the longest of them; no lock is held \
    meanwhile. The cursor row is created with the slot's own position.";

/// From PostgreSQL 19 on, `wal_level` is a minimum.
const WHY_FIRST_SLOT: &str = "Events committed from here on are kept for the relay. It waits for every transaction \
    that is running now, in any database of the cluster, so it may take as long as the longest of them; no lock is \
    held meanwhile. The cursor row is created with the slot's own position. If the cluster has no other logical slot, \
    this one raises the WAL level from replica to logical, and may wait for a checkpoint.";

fn slot_and_cursor(facts: &Facts, options: &Options<'_>, plan: &mut SetupPlan) {
    let name = &facts.names.slot;
    let guard = guard(options);
    let Some(slot) = &facts.slot else {
        plan.steps.push(Step {
            kind: StepKind::Slot,
            title: format!("create slot {name:?} and its cursor"),
            why: if facts.server.wal_level == "replica" { WHY_FIRST_SLOT } else { WHY_SLOT },
            sql: format!(
                "BEGIN;\nSET LOCAL lock_timeout = 0;\nSET LOCAL statement_timeout = 0;\n\
                 SET LOCAL search_path = '';\n{guard}{BEFORE};\n{};\n{};\nCOMMIT;",
                creation(facts),
                insert_cursor(
                    facts,
                    "s.confirmed_flush_lsn",
                    BEFORE_VALUE,
                    &existing_slot_sql(name)
                )
            ),
        });
        return;
    };
    plan.adopted.push(match slot.confirmed_flush_lsn {
        Some(at) => format!("slot {name:?}, at position {at}"),
        None => format!("slot {name:?}"),
    });
    if facts.cursor.is_some() {
        plan.adopted.push(format!("the cursor of pipeline {:?}", facts.names.key.pipeline));
        return;
    }
    let source = existing_slot_sql(name);
    plan.steps.push(Step {
        kind: StepKind::Cursor,
        title: format!("adopt slot {name:?}: create its cursor"),
        why: "The slot already exists: the relay continues from its position.",
        sql: transaction(&format!(
            "{guard}{};",
            insert_cursor(facts, "s.confirmed_flush_lsn", "NULL", &source)
        )),
    });
}

/// Adds the notification trigger. Only a polling relay listens for its notifications.
fn notify(facts: &Facts, plan: &mut SetupPlan) {
    let Some(table) = &facts.names.table else { return };
    if facts.table.as_ref().is_some_and(|facts| facts.notifies) {
        plan.adopted.push(format!("the trigger {TRIGGER:?} of table {table}"));
        return;
    }
    plan.steps.push(Step {
        kind: StepKind::Notify,
        title: format!("let inserts into table {table} wake the polling relay"),
        why: "Without it a polling relay queries the table once an interval. Each inserting statement queues a \
            notification, and \
              its commit takes for a moment the one lock under which the cluster's notifications are queued. Creating \
              it waits, at most for the lock_timeout, until no transaction that wrote to the table is open.",
        sql: transaction(&notify_sql(table)),
    });
}

/// The slot, after its creation.
pub(super) fn existing_slot_sql(slot: &str) -> String {
    format!(
        "pg_catalog.pg_replication_slots AS s\nWHERE s.slot_name = {} AND s.confirmed_flush_lsn IS NOT NULL",
        literal(slot)
    )
}

/// Creates a permanent slot that decodes no prepared transactions, and that is synchronised to standbys if the server
/// supports that.
///
/// A statement of its own: together with the use of a table it would fail with `XX000` if the catalog changes
/// meanwhile.
pub(super) fn creation(facts: &Facts) -> String {
    let failover =
        if facts.stream.failover && facts.server.version >= 170_000 { ", true" } else { "" };
    format!(
        "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput', false, false{failover})",
        literal(&facts.names.slot)
    )
}

/// Events that were committed before the slot was created are not in the stream, and no repair publishes them.
const BEFORE: &str = "SELECT pg_catalog.set_config('postrider.before', \
                      pg_catalog.pg_current_snapshot()::pg_catalog.text, true)";
const BEFORE_VALUE: &str = "pg_catalog.current_setting('postrider.before')::pg_catalog.pg_snapshot";

/// The values of `before_slot` and `of_table_oid`, read after the slot was created: a table without a block has no row
/// from before. That is known of this table only ([`crate::store::cursor::write_settings`]).
fn before_slot(table: Option<&TableName>) -> String {
    let Some(table) = table else { return "pg_catalog.pg_current_snapshot(), NULL".to_owned() };
    let table = format!("pg_catalog.to_regclass({})", literal(&table.to_string()));
    format!(
        "CASE WHEN pg_catalog.pg_relation_size({table})\n      \
         + coalesce((SELECT pg_catalog.sum(pg_catalog.pg_relation_size(t.relid))\n                  \
         FROM pg_catalog.pg_partition_tree({table}) AS t), 0) = 0\n      \
         THEN {NOTHING_BEFORE} ELSE pg_catalog.pg_current_snapshot() END,\n    {table}::pg_catalog.oid"
    )
}

fn insert_cursor(facts: &Facts, lsn: &str, resolved: &str, source: &str) -> String {
    let (pipeline, shard) = (literal(&facts.names.key.pipeline), facts.names.key.shard);
    let publication = literal(&facts.names.publication);
    let messages = facts.stream.messages;
    format!(
        "INSERT INTO postrider.cursor (pipeline, shard, system_identifier, timeline, slot, slot_created_lsn,\n    \
         publication, messages, watermark, flush_limit, resolved_snapshot, before_slot, of_table_oid)\n\
         SELECT {pipeline}, {shard}, {SYSTEM_IDENTIFIER_SQL},\n    {TIMELINE_SQL},\n    \
         s.slot_name, {lsn}, {publication}, {messages}, {lsn}, {lsn},\n    \
         {resolved},\n    {before}\nFROM {source}\n{OVER_POLLING}",
        before = before_slot(facts.names.table.as_ref()),
    )
}

/// Grants what the relay's role lacks. The role never owns what an administrator created.
fn rights(facts: &Facts, role: &str, options: &Options<'_>, plan: &mut SetupPlan) {
    let wanted = rights::wanted(facts, role, options);
    let lacking = |step: StepKind| {
        let sql = wanted.iter().filter(move |right| right.step == step && !right.held);
        let sql: Vec<&str> = sql.map(|right| right.sql.as_str()).collect();
        (!sql.is_empty()).then(|| sql.join("\n"))
    };
    let (ours, table) = (lacking(StepKind::Rights), lacking(StepKind::TableRights));
    let (retention, replication) = (lacking(StepKind::Retention), lacking(StepKind::Replication));
    if [&ours, &table, &retention, &replication].iter().all(|lacking| lacking.is_none()) {
        plan.adopted.push(format!("the rights of role {role:?}"));
    }
    if let Some(granted) = ours {
        plan.steps.push(Step {
            kind: StepKind::Rights,
            title: format!("give role {role:?} its rights"),
            why: "It logs in, and keeps its position and its parked events in the schema \"postrider\".",
            sql: transaction(&granted),
        });
    }
    if let (Some(sql), Some(name)) = (table, &facts.names.table) {
        plan.steps.push(Step {
            kind: StepKind::TableRights,
            title: format!("give role {role:?} its rights on table {name}"),
            why: if options.marks.is_some() {
                "It reads the outbox, locks rows while they are being published, and then updates or deletes them."
            } else {
                "Streaming needs none; repair, replay from the table and check read it."
            },
            sql: transaction(&sql),
        });
    }
    if let Some(sql) = retention {
        plan.steps.push(Step {
            kind: StepKind::Retention,
            title: format!("give role {role:?} the rights that retention needs"),
            why: "It removes published rows, and as a member of the owner it creates, detaches and drops partitions.",
            sql: transaction(&sql),
        });
    }
    if let Some(sql) = replication {
        plan.steps.push(Step {
            kind: StepKind::Replication,
            title: format!("let role {role:?} replicate"),
            why: "The stream needs it. It reads every published table of the cluster: treat the role's password \
                  accordingly.",
            sql: transaction(&sql),
        });
    }
}

// `setup --backfill`: creates the first slot of a pipeline on a table that has rows, together with the list of rows
// that are published before its stream.
//
// The work is done by `repair`: one snapshot, which the slot exports; the rows that it sees are listed, all others are
// in the stream. `postrider run` publishes the list first.

/// The result of [`backfill`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backfilled {
    /// The slot was created, with this list.
    Listed(Box<RepairRow>),
    /// Another process has the pipeline's lock.
    Locked {
        /// That process' backend, if it is known.
        pid: Option<u32>,
    },
}

/// Checks whether a backfill can begin: nothing was ever streamed, or a backfill was begun before. `row`: the
/// pipeline's repair.
///
/// # Errors
/// The pipeline has begun already, or there is a slot for which the rows before it cannot be determined.
pub fn check_backfill(facts: &Facts, row: Option<&RepairRow>) -> Result<(), Halt> {
    if facts.server.in_recovery {
        return Err(standby());
    }
    if row.is_some_and(RepairRow::unfinished) {
        return Ok(());
    }
    let (pipeline, slot) = (&facts.names.key.pipeline, &facts.names.slot);
    let halt = |reason, message: String, meaning: &str, hint: String| Halt {
        reason,
        message,
        meaning: meaning.to_owned(),
        hint,
    };
    if facts.names.table.is_none() {
        let message = if facts.names.captures() {
            "captured tables are not published as they are before the slot: only their changes are"
                .to_owned()
        } else {
            "there is no outbox table to backfill from".to_owned()
        };
        let hint = if facts.names.captures() {
            "omit --backfill; load consumers from the tables after setup, and apply what follows to that"
        } else {
            "omit --backfill"
        };
        let reason = HaltReason::NotApplicable;
        return Err(halt(reason, message, "nothing was changed", hint.to_owned()));
    }
    if facts.names.in_transactions {
        return Err(halt(
            HaltReason::NotApplicable,
            "a sink that publishes in transactions takes no rows that were inserted before the slot".to_owned(),
            "nothing was changed",
            "omit --backfill, and insert these rows again after setup (docs/operations/upgrades.md#publishing-again)"
                .to_owned(),
        ));
    }
    if facts.cursor.is_some() {
        return Err(halt(
            HaltReason::AlreadySetUp,
            format!("pipeline {pipeline:?} has begun already: its cursor row is there"),
            "nothing was changed; --backfill is only for the first start; now it would publish rows twice",
            format!(
                "if its slot was lost: postrider repair -p {pipeline}. To start over: postrider setup --undo -p \
                 {pipeline} --url {}",
                admin_url(&facts.server.database)
            ),
        ));
    }
    if facts.slot.is_some() {
        return Err(halt(
            HaltReason::AlreadySetUp,
            format!("slot {slot:?} already exists"),
            "nothing was changed; it can no longer be determined which rows of the table the slot will send",
            format!(
                "if no client reads it: SELECT pg_drop_replication_slot({}); then setup again",
                literal(slot)
            ),
        ));
    }
    Ok(())
}

/// Most rows that are counted.
pub const ROWS_COUNTED_MAX: u64 = 100_000;

/// The role may not read the table, another session holds a lock on it, or counting takes too long.
const UNCOUNTED: [&str; 3] = ["42501", "55P03", "57014"];

/// Counts the rows of the table, up to one more than [`ROWS_COUNTED_MAX`]; `None` if they cannot be counted now.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn rows(control: &Control, table: &TableName) -> Result<Option<u64>, SourceError> {
    let most = ROWS_COUNTED_MAX + 1;
    let sql = format!("SELECT count(*) FROM (SELECT FROM {table} LIMIT {most}) AS counted");
    let counted = control.client().query_one(&sql, &[]).await.and_then(|row| row.try_get(0));
    let failed = |e| SourceError::control(format!("count the rows of table {table}"), e);
    match counted.map_err(failed) {
        Ok(count) => Ok(Some(i64::unsigned_abs(count))),
        Err(error) if error.report().is_some_and(|r| UNCOUNTED.contains(&r.sqlstate.as_str())) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Creates slot and list; publication and schema must exist. If the process is killed, the same call or `postrider run`
/// continues.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn backfill(
    control: &Control,
    facts: &Facts,
    table: PollSpec,
    ask: NewRepair<'_>,
    told: &mut (dyn FnMut(RepairProgress<'_>) + Send),
) -> Result<Backfilled, SourceError> {
    let key = &ask.names.key;
    let list = RepairReader::open(ask.conninfo, ask.application_name, table, false).await?;
    let list = match list {
        Ok(list) => list,
        Err(pid) => return Ok(Backfilled::Locked { pid }),
    };
    let before = repair::read(control.client(), key).await?;
    let unfinished = before.as_ref().filter(|row| row.unfinished());
    let listed =
        unfinished.is_some() && repair::assess(facts, unfinished, false) == Ok(Verdict::Unfinished);
    if !listed {
        let table = &list.table().spec().table;
        let session = (ask.conninfo, ask.application_name);
        let _excluded = DetachExclusion::begin(control.client(), session, table).await?;
        let ask = NewRepair { before: unfinished, drop_slot: facts.slot.is_some(), ..ask };
        repair::begin(control, list.table(), &ask, told).await?;
    }
    let row = repair::read(control.client(), key).await?;
    let none = || SourceError::new(pg_replication::SourceErrorKind::Closed, "read the list");
    row.map(|row| Backfilled::Listed(Box::new(row))).ok_or_else(none)
}

/// The name of the trigger that wakes a polling relay (`setup --notify`).
pub const TRIGGER: &str = "postrider_notify";

/// Creates function and trigger, or replaces them. Each inserting statement pays for one notification, and its commit
/// holds the lock that orders notifications (one for the whole cluster) for the moment it takes to queue the
/// notification.
pub fn notify_sql(table: &TableName) -> String {
    format!(
        "{}\nCREATE OR REPLACE TRIGGER {} AFTER INSERT ON {table}\n    \
         FOR EACH STATEMENT EXECUTE FUNCTION postrider.notify_outbox();",
        notify_function_sql(),
        ident(TRIGGER),
    )
}

/// The function only. It runs with the rights of the inserting role.
pub(crate) fn notify_function_sql() -> String {
    format!(
        "CREATE OR REPLACE FUNCTION postrider.notify_outbox() RETURNS trigger\n    \
         LANGUAGE plpgsql SET search_path = '' AS $$\n\
         BEGIN\n    \
           PERFORM pg_catalog.pg_notify('{CHANNEL}', TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME);\n    \
           RETURN NULL;\n\
         END $$;"
    )
}

/// Drops the trigger. The function is kept while other tables use it; it is dropped with schema `postrider`.
pub fn notify_undo_sql(table: &TableName) -> String {
    format!("DROP TRIGGER IF EXISTS {} ON {table};", ident(TRIGGER))
}

/// Longest comment line of the plan as SQL for a DBA. Unit: characters.
const WIDTH: usize = 100;

const HOW: &str = "\
-- Run with: psql -X -v ON_ERROR_STOP=1 -f FILE, and without --single-transaction:
-- each step is a transaction of its own, and their order matters.
";

impl fmt::Display for SetupPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HOW)?;
        for adopted in &self.adopted {
            writeln!(f, "-- There already: {adopted}.")?;
        }
        if self.steps.is_empty() {
            writeln!(f, "-- Nothing is missing.")?;
        }
        steps(f, &self.steps)
    }
}

impl fmt::Display for UndoPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HOW)?;
        for lost in &self.lost {
            comment(f, &format!("Lost: {lost}."))?;
        }
        for stays in &self.stays {
            comment(f, &format!("Stays: {stays}."))?;
        }
        if self.steps.is_empty() {
            writeln!(f, "-- Nothing is there to undo.")?;
        }
        steps(f, &self.steps)
    }
}

fn steps(f: &mut fmt::Formatter<'_>, steps: &[Step]) -> fmt::Result {
    for (number, step) in (1..).zip(steps) {
        writeln!(f, "\n-- {number}. {}", step.title)?;
        comment(f, step.why)?;
        writeln!(f, "{}", step.sql)?;
    }
    Ok(())
}

fn comment(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut width = 0;
    for word in text.split_whitespace() {
        if width == 0 || width + word.len() > WIDTH {
            write!(f, "{}--", if width == 0 { "" } else { "\n" })?;
            width = 2;
        }
        write!(f, " {word}")?;
        width += word.len() + 1;
    }
    writeln!(f)
}
