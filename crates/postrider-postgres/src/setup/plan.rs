//! From facts to steps.

use super::{
    Options, ServerKind, SetupPlan, Step, StepKind, UndoPlan, rights, role_sql, transaction,
};
use crate::catalog::{SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL};
use crate::control::Control;
use crate::names::{TableName, ident, literal};
use crate::ownership::{self, Ownership};
use crate::poll::{CHANNEL, PollSpec};
use crate::repair::{self, Ask, Reader, Row, Told, Verdict};
use crate::schema::{MIGRATION_TABLE, SchemaState, VERSION};
use crate::start::{self, Facts};
use crate::store::cursor::OVER_POLLING;
use pg_replication::error::SourceError;
use postrider_core::error::{Halt, HaltReason};
use std::fmt;

/// What is missing, in order.
///
/// # Errors
/// Something of the configured names stands and can't be used, or a step would leave events out.
pub fn plan(facts: &Facts, options: &Options<'_>) -> Result<SetupPlan, Halt> {
    refuse_anything(facts, options)?;
    let mut plan = SetupPlan { steps: Vec::new(), adopted: Vec::new() };
    if let Some(found) = &facts.ownership {
        // Who prints the plan has read the schema as its owner, and whoever runs the SQL is refused by it.
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

/// What makes any step impossible.
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

/// What `check_objects` leaves open, since it concerns what is *not* there.
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
        // A slot was there, and is gone: making one again leaves out what came between.
        (None, Some(_)) => Err(start::slot_missing(facts)),
        // WAL from before the publication can't be used.
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

/// Somebody creates it at this moment, or began to and went away: then it goes with the transaction it waits for.
fn half_made(slot: &str) -> Halt {
    Halt {
        reason: HaltReason::SlotUnusable,
        message: format!("slot {slot:?} is still being created by somebody else"),
        meaning: "nothing was changed".to_owned(),
        hint: "run setup again when the long transactions of the cluster have ended: SELECT pid, state, xact_start \
               FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start;"
            .to_owned(),
    }
}

fn table(facts: &Facts, options: &Options<'_>, plan: &mut SetupPlan) {
    let Some(name) = &facts.names.table else { return };
    match (&facts.table, options.create_table) {
        (Some(_), _) => plan.adopted.push(format!("table {name}")),
        (None, Some(sql)) => plan.steps.push(Step {
            kind: StepKind::Table,
            title: format!("create table {name}"),
            why: "The outbox, as the layout has it.",
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
    let table = facts.names.table.as_ref().map_or_else(String::new, |t| format!(" FOR TABLE {t}"));
    plan.steps.push(Step {
        kind: StepKind::Publication,
        title: format!("create publication {name:?}"),
        why: if facts.names.updates {
            "Must exist before the slot. Publishes UPDATEs too, since outbox.on_update = \"halt\" has to see them: the \
             table needs a primary key or REPLICA IDENTITY FULL. Partitions are published under the parent table's \
             name."
        } else {
            "Must exist before the slot. Publishes only INSERTs, so no REPLICA IDENTITY is needed. Partitions are \
             published under the parent table's name."
        },
        sql: transaction(&format!(
            "CREATE PUBLICATION {}{table}\n    WITH (publish = '{}', publish_via_partition_root = true);",
            ident(name),
            facts.names.published()
        )),
    });
}

/// Takes the schema from whoever could run code with the rights of the steps behind it. It comes first: what else is
/// missing is read when nobody can do that any more.
fn ownership(facts: &Facts, found: &Ownership, options: &Options<'_>, plan: &mut SetupPlan) {
    plan.steps.push(Step {
        kind: StepKind::Ownership,
        title: found.title(),
        why: "Whoever owns these tables can have its own code run by an administrator who uses them. The owner until \
              now keeps its rights on rows; the relay needs no more. A schema with objects that are not Postrider's \
              is refused. What else is missing is known after this step.",
        sql: transaction(&found.sql(options.role, facts.server.version)),
    });
}

/// In front of statements that touch Postrider's tables with the rights of an administrator.
fn guard(options: &Options<'_>) -> String {
    if options.role.is_some() { ownership::guard() } else { String::new() }
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
        // Its number stands there where a table of it was dropped.
        sql.push_str(" ON CONFLICT DO NOTHING;\n");
    }
    // A table that somebody made meanwhile is not made again.
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
    meanwhile. The row is made with the slot's own position.";

/// From PostgreSQL 19 on, where `wal_level` is a floor.
const WHY_FIRST_SLOT: &str = "Events committed from here on are kept for the relay. It waits for every transaction \
    that is running now, in any database of the cluster, so it may take as long as the longest of them; no lock is \
    held meanwhile. The row is made with the slot's own position. Where the cluster has no other logical slot, this \
    one raises the WAL level from replica to logical, and may wait for a checkpoint.";

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
                insert_cursor(facts, "s.confirmed_flush_lsn", BEFORE_VALUE, &standing(name))
            ),
        });
        return;
    };
    plan.adopted.push(match slot.confirmed_flush_lsn {
        Some(at) => format!("slot {name:?}, standing at {at}"),
        None => format!("slot {name:?}"),
    });
    if facts.cursor.is_some() {
        plan.adopted.push(format!("the cursor of pipeline {:?}", facts.names.pipeline));
        return;
    }
    let source = standing(name);
    plan.steps.push(Step {
        kind: StepKind::Cursor,
        title: format!("adopt slot {name:?}: make its cursor"),
        why: "The slot stands already: the relay goes on from where it stands.",
        sql: transaction(&format!(
            "{guard}{};",
            insert_cursor(facts, "s.confirmed_flush_lsn", "NULL", &source)
        )),
    });
}

/// Of any kind of relay, only one that polls listens.
fn notify(facts: &Facts, plan: &mut SetupPlan) {
    let Some(table) = &facts.names.table else { return };
    if facts.table.as_ref().is_some_and(|facts| facts.notifies) {
        plan.adopted.push(format!("the trigger {TRIGGER:?} of table {table}"));
        return;
    }
    plan.steps.push(Step {
        kind: StepKind::Notify,
        title: format!("let inserts into table {table} wake the polling relay"),
        why: "Without it a polling relay looks once an interval. Each inserting statement queues a notification, and \
              its commit takes for a moment the one lock under which the cluster's notifications are queued. Creating \
              it waits, at most for the lock_timeout, until no transaction that wrote to the table is open.",
        sql: transaction(&notify_sql(table)),
    });
}

/// The slot, once it stands.
pub(super) fn standing(slot: &str) -> String {
    format!(
        "pg_catalog.pg_replication_slots AS s\nWHERE s.slot_name = {} AND s.confirmed_flush_lsn IS NOT NULL",
        literal(slot)
    )
}

/// A slot that outlives its session, decodes no prepared transactions, and where the server can follows to standbys.
///
/// In a statement of its own: in one that also uses a table it fails with `XX000` when the catalog changes meanwhile.
pub(super) fn creation(facts: &Facts) -> String {
    let failover = if facts.failover && facts.server.version >= 170_000 { ", true" } else { "" };
    format!(
        "SELECT pg_catalog.pg_create_logical_replication_slot({}, 'pgoutput', false, false{failover})",
        literal(&facts.names.slot)
    )
}

/// What was committed before the slot was made is not the stream's, and nobody's to repair.
const BEFORE: &str = "SELECT pg_catalog.set_config('postrider.before', \
                      pg_catalog.pg_current_snapshot()::pg_catalog.text, true)";
const BEFORE_VALUE: &str = "pg_catalog.current_setting('postrider.before')::pg_catalog.pg_snapshot";

fn insert_cursor(facts: &Facts, lsn: &str, resolved: &str, source: &str) -> String {
    let pipeline = literal(&facts.names.pipeline);
    let publication = literal(&facts.names.publication);
    let messages = facts.messages;
    format!(
        "INSERT INTO postrider.cursor (pipeline, system_identifier, timeline, slot, slot_created_lsn,\n    \
         publication, messages, watermark, flush_limit, resolved_snapshot, before_slot)\n\
         SELECT {pipeline}, {SYSTEM_IDENTIFIER_SQL},\n    {TIMELINE_SQL},\n    \
         s.slot_name, {lsn}, {publication}, {messages}, {lsn}, {lsn},\n    \
         {resolved}, pg_catalog.pg_current_snapshot()\nFROM {source}\n{OVER_POLLING}"
    )
}

/// What the relay's role lacks. It never owns what an administrator made.
fn rights(facts: &Facts, role: &str, options: &Options<'_>, plan: &mut SetupPlan) {
    let wanted = rights::wanted(facts, role, options);
    let lacking = |step: StepKind| {
        let sql = wanted.iter().filter(move |right| right.step == step && !right.held);
        let sql: Vec<&str> = sql.map(|right| right.sql.as_str()).collect();
        (!sql.is_empty()).then(|| sql.join("\n"))
    };
    let (ours, table) = (lacking(StepKind::Rights), lacking(StepKind::TableRights));
    let replication = lacking(StepKind::Replication);
    if ours.is_none() && table.is_none() && replication.is_none() {
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
                "It reads the outbox, locks rows while they are on their way, and then marks or deletes them."
            } else {
                "Streaming needs none; repair, replay from the table and check read it."
            },
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

// `setup --backfill`: the first slot of a pipeline on a table that has rows, made together with the list of those that
// are to be published before its stream.
//
// The work is `repair`'s: one snapshot, which the slot exports; what it sees is listed, what it does not see comes by
// the stream. `postrider run` publishes the list first.

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Backfilled {
    /// The slot stands, and this is the list.
    Listed(Box<Row>),
    /// Another process has the pipeline's lock.
    Locked {
        /// Its backend, where it is known.
        pid: Option<u32>,
    },
}

/// Whether a backfill can begin: nothing was ever streamed, or one was begun before. `row`: the pipeline's repair.
///
/// # Errors
/// The pipeline has begun already, or a slot stands from which the rows before it could not be told apart.
pub fn check_backfill(facts: &Facts, row: Option<&Row>) -> Result<(), Halt> {
    if facts.server.in_recovery {
        return Err(standby());
    }
    if row.is_some_and(Row::unfinished) {
        return Ok(());
    }
    let (pipeline, slot) = (&facts.names.pipeline, &facts.names.slot);
    let halt = |reason, message: String, meaning: &str, hint: String| Halt {
        reason,
        message,
        meaning: meaning.to_owned(),
        hint,
    };
    if facts.names.table.is_none() {
        let message = "there is no outbox table to backfill from".to_owned();
        let (reason, hint) = (HaltReason::NotApplicable, "leave --backfill away".to_owned());
        return Err(halt(reason, message, "nothing was changed", hint));
    }
    if facts.cursor.is_some() {
        return Err(halt(
            HaltReason::AlreadySetUp,
            format!("pipeline {pipeline:?} has begun already: its cursor row is there"),
            "nothing was changed; --backfill is for the first start, and would publish rows twice",
            format!(
                "if its slot was lost: postrider repair -p {pipeline}. To start over: postrider setup --undo -p \
                 {pipeline}"
            ),
        ));
    }
    if facts.slot.is_some() {
        return Err(halt(
            HaltReason::AlreadySetUp,
            format!("slot {slot:?} stands already"),
            "nothing was changed; which rows of the table it will bring can't be told any more",
            format!(
                "if nothing reads it: SELECT pg_drop_replication_slot({}); then setup again",
                literal(slot)
            ),
        ));
    }
    Ok(())
}

/// Rows that are counted at most.
pub const ROWS_COUNTED_MAX: u64 = 100_000;

/// The role may not read the table, somebody holds a lock on it, or counting takes too long.
const UNCOUNTED: [&str; 3] = ["42501", "55P03", "57014"];

/// Rows of the table, up to one more than [`ROWS_COUNTED_MAX`]; `None` where they can't be counted now.
///
/// # Errors
/// What the server says.
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

/// Makes slot and list; publication and schema must stand. Killed, it goes on by the same call, or by `postrider run`.
///
/// # Errors
/// What the server says.
pub async fn backfill(
    control: &Control,
    facts: &Facts,
    table: PollSpec,
    ask: Ask<'_>,
    told: &mut (dyn FnMut(Told<'_>) + Send),
) -> Result<Backfilled, SourceError> {
    let name = &ask.names.pipeline;
    let list = Reader::open(ask.conninfo, ask.application_name, table, false).await?;
    let list = match list {
        Ok(list) => list,
        Err(pid) => return Ok(Backfilled::Locked { pid }),
    };
    let before = repair::read(control.client(), name).await?;
    let unfinished = before.as_ref().filter(|row| row.unfinished());
    let listed =
        unfinished.is_some() && repair::judge(facts, unfinished, false) == Ok(Verdict::GoesOn);
    if !listed {
        let ask = Ask { before: unfinished, drop_slot: facts.slot.is_some(), ..ask };
        repair::begin(control, list.table(), &ask, told).await?;
    }
    let row = repair::read(control.client(), name).await?;
    let none = || SourceError::new(pg_replication::SourceErrorKind::Closed, "read the list");
    row.map(|row| Backfilled::Listed(Box::new(row))).ok_or_else(none)
}

// The trigger that wakes a polling relay (`setup --notify`), and what takes it away.

/// The trigger's name.
pub const TRIGGER: &str = "postrider_notify";

/// Makes function and trigger, or makes them again. A statement that inserts pays for one notification, and its commit
/// holds the lock that orders notifications (one for the whole cluster) for the moment it takes to queue it.
pub fn notify_sql(table: &TableName) -> String {
    format!(
        "{}\nCREATE OR REPLACE TRIGGER {} AFTER INSERT ON {table}\n    \
         FOR EACH STATEMENT EXECUTE FUNCTION postrider.notify_outbox();",
        notify_function_sql(),
        ident(TRIGGER),
    )
}

/// The function alone. It runs with the rights of who inserts.
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

/// Takes the trigger off. The function stays while other tables use it; it goes with schema `postrider`.
pub fn notify_undo_sql(table: &TableName) -> String {
    format!("DROP TRIGGER IF EXISTS {} ON {table};", ident(TRIGGER))
}

// The plan as SQL that a DBA reads, and psql runs.

/// Longest comment line. Unit: characters.
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
