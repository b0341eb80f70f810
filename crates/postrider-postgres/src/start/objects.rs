//! Rules about the objects on the server: version, settings, schema, slot, table, publication, and the columns for the
//! status of rows.

use super::{Facts, halt};
use crate::catalog::{
    AffectedRows, Persistence, RelationKind, TableFacts, UnfitLeaf, UnfitLeafKind,
};
use crate::names::{Names, TableName, admin_url, ident, literal};
use crate::poll::PollSpec;
use crate::poll::dialect::column_type;
use crate::poll::row_status::unmarked;
use crate::schema::{self, SchemaState};
use crate::schema_owner::UntrustedSchema;
use crate::times::{ServerZone, TimeType, with_zone};
use postrider_core::error::{Halt, HaltReason};
use std::time::Duration;

/// The oldest supported server: 15 is the first version with row filters and column lists in the views.
pub(crate) const VERSION_MIN: u32 = 150_000;

pub(super) fn version(facts: &Facts) -> Option<Halt> {
    (facts.server.version < VERSION_MIN).then(|| {
        halt(
            HaltReason::ServerUnfit,
            format!(
                "the server is PostgreSQL {}, 15 or later is needed",
                facts.server.version / 10_000
            ),
            "nothing is read from it, nothing is lost",
            "upgrade the server, or point source.url at another one",
        )
    })
}

pub(super) fn wal_level(facts: &Facts) -> Option<Halt> {
    let (server, needed) = (&facts.server, facts.server.wal_level_needed());
    (!server.decodes()).then(|| {
        halt(
            HaltReason::ServerUnfit,
            format!("wal_level is {:?}, logical decoding needs {needed:?}", server.wal_level),
            "WAL written until it is changed can't be decoded: events committed before the slot exists are not \
             streamed",
            format!(
                "ALTER SYSTEM SET wal_level = {needed}; then restart PostgreSQL (managed: rds.logical_replication = \
                 1, cloudsql.logical_decoding = on)"
            ),
        )
    })
}

/// An obstacle that may go away without an operator.
pub(super) fn not_now(facts: &Facts) -> Option<String> {
    if facts.server.in_recovery {
        return Some(
            "the server is a standby: waiting for its promotion, or for a primary among the hosts of source.url \
             (target_session_attrs=read-write finds it)"
                .to_owned(),
        );
    }
    let identity = facts.identity.as_ref()?;
    let same = identity.system_identifier == facts.server.system_identifier
        && identity.timeline == facts.server.timeline;
    (!same).then(|| "the two connections reached two servers: a failover is under way".to_owned())
}

pub(super) fn schema(facts: &Facts) -> Option<Halt> {
    (facts.schema != SchemaState::Version(schema::VERSION)).then(|| other_schema(facts))
}

pub(super) fn other_schema(facts: &Facts) -> Halt {
    let setup = facts.setup("");
    let known = schema::VERSION;
    let (message, hint) = match facts.schema {
        SchemaState::Version(number) if number > known => (
            format!(
                "schema \"postrider\" has version {number}, this program knows versions up to {known}"
            ),
            "run the newer postrider that created it".to_owned(),
        ),
        SchemaState::Version(number) => {
            (format!("schema \"postrider\" has version {number}, {known} is needed"), setup)
        }
        SchemaState::Missing | SchemaState::Empty => (
            format!(
                "schema \"postrider\" does not exist or is empty in database {:?}",
                facts.server.database
            ),
            setup,
        ),
        SchemaState::Untrusted => return untrusted(facts),
    };
    halt(
        HaltReason::SchemaUnfit,
        message,
        format!("Postrider cannot store its position; {}", kept(facts)),
        hint,
    )
}

/// The halt for a schema through which another role could run code with the rights of this session.
pub(super) fn untrusted(facts: &Facts) -> Halt {
    let none = UntrustedSchema::default();
    let untrusted = facts.untrusted.as_ref().unwrap_or(&none);
    let hint = if untrusted.foreign.is_empty() {
        let url = untrusted.by_other_login || !facts.server.creates;
        let admin = format!(" --url {}", admin_url(&facts.server.database));
        let admin = if url { &*admin } else { "" };
        format!(
            "{}{admin} takes them over; then run the same command again",
            facts.command("setup")
        )
    } else {
        let lines: Vec<&str> = untrusted.removals().collect();
        let remove = if lines.is_empty() {
            "Remove them".to_owned()
        } else {
            format!("To remove them, as a superuser or as their owner: {}", lines.join(" "))
        };
        format!(
            "if a later version of postrider has upgraded the schema, use that version. Otherwise find out who made \
             them. {remove} Then run the same command again"
        )
    };
    halt(
        HaltReason::SchemaUntrusted,
        untrusted.words(),
        "code in it would run with the rights of this login: none was run, and nothing was changed",
        hint,
    )
}

/// What a halt before the stream means for the data.
fn kept(facts: &Facts) -> &'static str {
    if facts.slot.is_some() {
        "the slot keeps the WAL, nothing is lost"
    } else {
        "nothing is streamed: there is no slot, and what is committed before it is created is not sent"
    }
}

pub(super) fn slot_missing(facts: &Facts) -> Option<Halt> {
    facts.slot.is_none().then(|| missing(facts))
}

/// The halt for a slot that does not exist. If there is no cursor row, setup was not completed; otherwise the slot was
/// dropped, and events are missing.
pub(super) fn missing(facts: &Facts) -> Halt {
    let names = &facts.names;
    let message = format!("slot {:?} does not exist", names.slot);
    let Some(cursor) = &facts.cursor else {
        return halt(
            HaltReason::SlotMissing,
            message,
            "the pipeline was never set up here: events committed before the slot exists are not streamed",
            facts.setup(""),
        );
    };
    halt(
        HaltReason::SlotMissing,
        message,
        format!(
            "events committed after {} that were not published are in no slot any more; {}",
            cursor.watermark,
            rows_remain(facts)
        ),
        format!(
            "after a failover to a server without the slot, go back to the one that has it. Otherwise {}",
            repair(facts)
        ),
    )
}

pub(super) fn slot_kind(facts: &Facts) -> Option<Halt> {
    let slot = facts.slot.as_ref()?;
    let name = &slot.name;
    // The pipeline has begun and its slot was dropped: the events that the slot would have sent are in the table.
    let then = match (&facts.cursor, &facts.names.table) {
        (Some(_), Some(_)) if facts.names.auto => "postrider run".to_owned(),
        (Some(_), Some(_)) => facts.command("repair"),
        _ => facts.setup(""),
    };
    let other_name = format!(
        "set source.slot to a name that no slot has, such as \"{name}_2\" (SELECT slot_name FROM \
         pg_replication_slots lists those that exist); then {then}"
    );
    let unusable = |what: String, meaning: &str, hint: String| {
        let meaning = format!("nothing was read from it and nothing was changed{meaning}");
        halt(HaltReason::SlotUnusable, what, meaning, hint)
    };
    // The slot's reader is another program, which may only be stopped: the remedy never drops such a slot.
    let anothers = |what: String, whose: &str| {
        let meaning =
            format!("; it belongs to {whose}: dropping it would lose what its reader has not read");
        Some(unusable(what, &meaning, other_name.clone()))
    };
    let ours = |what: String| {
        let hint = format!(
            "{other_name}; or, if nothing else uses this slot: SELECT pg_drop_replication_slot({}); then {then}",
            literal(name)
        );
        unusable(what, "", hint)
    };
    if !slot.logical {
        let what = format!("slot {name:?} is a physical slot");
        return anothers(what, "a standby, or a receiver of WAL");
    }
    let plugin = slot.plugin.as_deref().unwrap_or_default();
    // Another process is creating it at this moment: the plugin is entered after the name.
    if plugin.is_empty() && slot.active_pid.is_some() {
        return None;
    }
    if plugin != "pgoutput" {
        let what = format!("slot {name:?} is of plugin {plugin:?}, not \"pgoutput\"");
        return anothers(what, "another program");
    }
    let database = slot.database.as_deref().unwrap_or_default();
    if database != facts.server.database {
        let here = &facts.server.database;
        return anothers(
            format!("slot {name:?} belongs to database {database:?}, this is {here:?}"),
            "a pipeline of that database, or another program",
        );
    }
    if slot.temporary {
        return Some(ours(format!(
            "slot {name:?} is temporary: it is dropped when its session ends"
        )));
    }
    slot.two_phase.then(|| {
        ours(format!("slot {name:?} has two_phase on: it would send prepared transactions"))
    })
}

pub(super) fn slot_lost(facts: &Facts) -> Option<Halt> {
    let slot = facts.slot.as_ref()?;
    slot.lost().then(|| {
        let recovery = "conflict with recovery";
        let default_reason = if slot.conflicting { recovery } else { "wal_removed" };
        let why = slot.invalidation_reason.as_deref().unwrap_or(default_reason);
        let prevent = match why {
            "idle_timeout" => "idle_replication_slot_timeout",
            "wal_removed" => "max_slot_wal_keep_size",
            _ => "hot_standby_feedback",
        };
        let after = facts
            .cursor
            .as_ref()
            .map_or_else(|| "by now".to_owned(), |cursor| format!("after {}", cursor.watermark));
        halt(
            HaltReason::SlotLost,
            format!("slot {:?} was invalidated ({why}): it can no longer be used", slot.name),
            format!(
                "events committed {after} that were not published can't be streamed any more; {}",
                rows_remain(facts)
            ),
            format!("{}. To prevent this from happening again, check {prevent}", repair(facts)),
        )
    })
}

fn rows_remain(facts: &Facts) -> String {
    facts.names.table.as_ref().map_or_else(
        || facts.names.unrepeatable().to_owned(),
        |table| format!("their rows are still in {table} unless the application deleted them"),
    )
}

/// The commands that count and then publish what no slot sends any more, and create a new slot. Logical messages leave
/// no row: without a table, the text says that they are lost.
pub(super) fn repair(facts: &Facts) -> String {
    if facts.names.repair_table().is_none() {
        return begin_without(facts);
    }
    if facts.names.auto {
        return run_without_slot(&facts.names, facts.slot.is_some());
    }
    format!(
        "{} (it counts the rows that no slot sends any more); then {} (it publishes them and creates a new slot)",
        facts.command_with("repair", "--dry-run"),
        facts.command("repair")
    )
}

/// As [`repair`], for a slot that can be used but would leave rows out.
pub(super) fn from_table(facts: &Facts) -> String {
    if facts.names.repair_table().is_none() {
        return begin_without(facts);
    }
    if facts.names.auto {
        return run_without_slot(&facts.names, facts.slot.is_some());
    }
    format!(
        "{} (it counts the rows that are not known to be published); then {} (it publishes them and creates a \
         new slot)",
        facts.command_with("repair", "--from-table --dry-run"),
        facts.command_with("repair", "--from-table")
    )
}

/// As [`repair`], in mode `auto`: without a slot the run polls the table and creates a new slot.
pub(crate) fn run_without_slot(names: &Names, slot: bool) -> String {
    let drop_slot = if slot {
        format!("SELECT pg_drop_replication_slot({}); then ", literal(&names.slot))
    } else {
        String::new()
    };
    format!(
        "{drop_slot}postrider run (it publishes every row of the table that has no mark, and begins a new slot; what \
         is in the slot and no longer in the table is lost with the slot)"
    )
}

/// The commands for a pipeline without rows to publish: without a table, or with a sink that takes none.
fn begin_without(facts: &Facts) -> String {
    if facts.names.captures() {
        return super::captured::begin_again(facts);
    }
    let drop_slot = match facts.slot {
        Some(_) => {
            format!("SELECT pg_drop_replication_slot({}); then ", literal(&facts.names.slot))
        }
        None => String::new(),
    };
    let forget = match facts.cursor {
        Some(_) => format!(
            "DELETE FROM postrider.cursor WHERE pipeline = {}; then ",
            literal(&facts.names.key.pipeline)
        ),
        None => String::new(),
    };
    if facts.names.table.is_some() {
        return format!(
            "the sink publishes in transactions, so nothing can be published from the table: the events that were not \
             published have to be inserted again. A new slot begins with: {drop_slot}{forget}{}; before the start, \
             discard the position that the sink has stored for the former slot, and then insert the rows again that \
             consumers do not have (docs/operations/halts.md#begin-a-new-slot has the lines for each sink)",
            facts.setup("--adopt-cursor")
        );
    }
    format!(
        "every logical message that was not published is lost, since messages leave no row; have the application \
         emit again what consumers miss. A new slot begins with: {drop_slot}{forget}{}",
        facts.setup("")
    )
}

/// The commands that publish every row of the table, and so lose no event, if the cursor row does not belong to this
/// server.
pub(crate) fn begin_with_every_row(facts: &Facts) -> String {
    if facts.names.repair_table().is_none() {
        return begin_without(facts);
    }
    let drop_slot = match facts.slot {
        Some(_) => {
            format!("SELECT pg_drop_replication_slot({}); then ", literal(&facts.names.slot))
        }
        None => String::new(),
    };
    format!(
        "{drop_slot}DELETE FROM postrider.cursor WHERE pipeline = {}; then {} (it publishes every row of the table, \
         those too that were published before; \"unpublished\" instead of \"all\": only rows without their layout's \
         mark)",
        literal(&facts.names.key.pipeline),
        facts.setup("--backfill all")
    )
}

/// An ordinary table whose rows are not in WAL.
fn unlogged(facts: &Facts, name: &TableName) -> Halt {
    let message = format!("table {name} is unlogged: WAL has no rows of it");
    // Before there is a slot, the first setup publishes the rows of the table.
    if facts.slot.is_none() && facts.cursor.is_none() {
        return halt(
            HaltReason::TableUnfit,
            message,
            "rows inserted while it is unlogged are never streamed, and a crash of the server empties it: setup \
             --backfill all publishes every row that is in the table when it creates the slot; with \"unpublished\" in \
             place of \"all\" only rows without their layout's mark",
            format!("ALTER TABLE {name} SET LOGGED; then {}", facts.setup("--backfill all")),
        );
    }
    let published = facts.publication.as_ref().map(|p| p.table.is_some());
    let add = if published == Some(false) {
        format!("{}; then ", add_table(facts, name))
    } else {
        String::new()
    };
    halt(
        HaltReason::TableUnfit,
        message,
        "rows inserted while it is unlogged are never streamed; what came before is in the slot",
        format!("ALTER TABLE {name} SET LOGGED; then {add}{}", from_table(facts)),
    )
}

pub(super) fn table(facts: &Facts) -> Option<Halt> {
    let name = facts.names.table.as_ref()?;
    let unfit = |what: String, hint: String| {
        halt(
            HaltReason::TableUnfit,
            what,
            format!("no event can be made of it; {}", kept(facts)),
            hint,
        )
    };
    let Some(table) = &facts.table else {
        return Some(unfit(
            format!("table {name} does not exist in database {:?}", facts.server.database),
            format!(
                "correct outbox.table or source.url; or create it: {}",
                facts.setup("--create-table")
            ),
        ));
    };
    if table.kind == RelationKind::Other {
        let what = format!("{name} is not a table: WAL has no rows of it");
        return Some(unfit(what, "name the table itself in outbox.table".to_owned()));
    }
    match table.persistence {
        Persistence::Logged => {}
        Persistence::Unlogged if table.kind == RelationKind::Partitioned => {
            return Some(unfit(
                format!("partitioned table {name} is marked UNLOGGED: no publication takes it"),
                format!(
                    "make a partitioned table without UNLOGGED in its place (ALTER TABLE … SET LOGGED does not change \
                     a partitioned table), and attach the partitions of {name} to it"
                ),
            ));
        }
        Persistence::Unlogged => return Some(unlogged(facts, name)),
        Persistence::Temporary => {
            let what = format!("table {name} is temporary: WAL has no rows of it");
            return Some(unfit(what, "name an ordinary table in outbox.table".to_owned()));
        }
    }
    let lacks = |column: &&String| !table.columns.iter().any(|have| have.name == **column);
    let missing: Vec<String> = facts.columns.iter().filter(lacks).map(|c| ident(c)).collect();
    (!missing.is_empty()).then(|| {
        unfit(
            format!("table {name} has no column {}", missing.join(", ")),
            "correct outbox.layout, or map the columns in outbox.columns (\"\" where the table has none), or add them \
             to the table"
                .to_owned(),
        )
    })
}

/// Every partition is written to WAL.
pub(super) fn leaves(facts: &Facts) -> Option<Halt> {
    let (name, table) = (facts.names.table.as_ref()?, facts.table.as_ref()?);
    let loses = |leaf: &&UnfitLeaf| leaf.kind != UnfitLeafKind::Foreign { insertable: false };
    let unfit: Vec<&UnfitLeaf> = table.partitions.unfit.iter().filter(loses).collect();
    if unfit.is_empty() {
        return None;
    }
    let logs = unfit.iter().any(|leaf| leaf.kind == UnfitLeafKind::Unlogged);
    // Before there is a slot, rows that are inserted again are in no stream either.
    let is_fresh = facts.slot.is_none() && facts.cursor.is_none();
    let save = |leaf: &&UnfitLeaf| match leaf.kind {
        UnfitLeafKind::Unlogged if is_fresh => format!("ALTER TABLE {} SET LOGGED;", leaf.name),
        UnfitLeafKind::Unlogged | UnfitLeafKind::Foreign { .. } => {
            save_leaf(facts, table, name, leaf)
        }
    };
    let mut lines: Vec<String> = unfit.iter().map(save).collect();
    let mut meaning = "rows inserted into it are in no stream, and a crash of the server empties an unlogged table"
        .to_owned();
    if is_fresh && logs {
        lines.push(format!("then {}", facts.setup("--backfill all")));
        meaning.push_str(
            ": setup --backfill all publishes every row that is in the table when it creates the slot; with \
             \"unpublished\" in place of \"all\" only rows without their layout's mark",
        );
    } else {
        meaning.push_str(
            ": they are published when they are inserted again, behind later events of their aggregate",
        );
        if logs && facts.marks.is_none() {
            meaning.push_str(
                ". The statements publish every row of the partition, also one that was streamed before: consumers \
                 know repetitions by the header id",
            );
        }
    }
    if facts.slot.is_some() {
        meaning.push_str(". Rows of the other partitions wait in the slot");
    }
    Some(halt(
        HaltReason::TableUnfit,
        format!("WAL has no rows of {}", described(&unfit)),
        meaning,
        lines.join(" "),
    ))
}

/// Polling reads every partition, but rows are not safe in a partition that a crash of this server empties, or that
/// another server stores.
pub(super) fn polled_leaves(facts: &Facts) -> Option<Halt> {
    let name = facts.names.table.as_ref()?;
    let unfit: Vec<&UnfitLeaf> = facts.table.as_ref()?.partitions.unfit.iter().collect();
    if unfit.is_empty() {
        return None;
    }
    let lines: Vec<String> = unfit
        .iter()
        .map(|leaf| match leaf.kind {
            UnfitLeafKind::Unlogged => format!("ALTER TABLE {} SET LOGGED;", leaf.name),
            UnfitLeafKind::Foreign { .. } => {
                format!(
                    "ALTER TABLE {name} DETACH PARTITION {}; and insert its rows that are not published into an \
                     ordinary partition;",
                    leaf.name
                )
            }
        })
        .collect();
    Some(halt(
        HaltReason::TableUnfit,
        format!("rows of {} can't be polled safely", described(&unfit)),
        "a crash of the server empties an unlogged table, and rows of a foreign table can't be locked and marked here; \
         nothing is published while halted",
        lines.join(" "),
    ))
}

/// `partition "public"."a" (unlogged), "public"."b" (a foreign table)`
fn described(leaves: &[&UnfitLeaf]) -> String {
    let one = |leaf: &&UnfitLeaf| match leaf.kind {
        UnfitLeafKind::Unlogged => format!("{} (unlogged)", leaf.name),
        UnfitLeafKind::Foreign { .. } => format!("{} (a foreign table)", leaf.name),
    };
    let list: Vec<String> = leaves.iter().map(one).collect();
    format!("partition {}", list.join(", "))
}

/// The statements that make an unlogged leaf part of the stream, with its rows. `SET LOGGED` alone writes them to WAL
/// as pages, which are in no stream.
pub(crate) fn log_leaf(
    marks: Option<&PollSpec>,
    table: &TableFacts,
    name: &TableName,
    leaf: &TableName,
) -> String {
    let columns = inserted(table);
    let filter = marks.map_or_else(String::new, |spec| format!(" WHERE {}", unmarked(spec, "o")));
    format!(
        "BEGIN; ALTER TABLE {leaf} SET LOGGED; WITH again AS (DELETE FROM {leaf} AS o{filter} RETURNING {columns}) \
         INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM again; COMMIT;"
    )
}

/// The columns that an `INSERT` may name.
pub(super) fn inserted(table: &TableFacts) -> String {
    let columns = table.columns.iter().filter(|column| !column.generated);
    columns.map(|column| ident(&column.name)).collect::<Vec<_>>().join(", ")
}

fn save_leaf(facts: &Facts, table: &TableFacts, name: &TableName, leaf: &UnfitLeaf) -> String {
    let (leaf, columns) = match leaf.kind {
        UnfitLeafKind::Unlogged => {
            let marks = facts.marks.as_ref().map(|marks| &marks.spec);
            return log_leaf(marks, table, name, &leaf.name);
        }
        UnfitLeafKind::Foreign { .. } => (&leaf.name, inserted(table)),
    };
    format!(
        "ALTER TABLE {name} DETACH PARTITION {leaf}; make an ordinary partition in its place; INSERT INTO {name} \
         ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {leaf}; or, where it only keeps old rows, let it \
         refuse new ones (postgres_fdw): ALTER FOREIGN TABLE {leaf} OPTIONS (ADD updatable 'false');"
    )
}

/// If a column decides whether or when an event is published, the zone of its values is known, also to the server.
pub(super) fn times(facts: &Facts) -> Option<Halt> {
    let (table, times) = (facts.names.table.as_ref()?, &facts.names.times);
    if facts.times.zone == ServerZone::Unknown {
        let name = times.zone.as_ref().map_or("", |zone| zone.name());
        return Some(halt(
            HaltReason::ServerUnfit,
            format!("the server has no time zone {name:?}, which source.time_zone names"),
            format!("times of columns without a zone can't be computed by it; {}", kept(facts)),
            "set source.time_zone to a name of: SELECT name FROM pg_timezone_names",
        ));
    }
    if times.zone.is_some() {
        return None;
    }
    let lacks = |name: &str| {
        facts.times.columns.iter().find(|column| column.name == name && column.kind.lacks_zone())
    };
    let (deciding, column) =
        times.deciding.iter().find_map(|deciding| Some((deciding, lacks(&deciding.column)?)))?;
    let name = ident(&column.name);
    let alter = match column.kind {
        TimeType::Local => {
            format!("; or: {}", with_zone(table, &column.name, "America/New_York"))
        }
        TimeType::Text | TimeType::Absolute | TimeType::Other => String::new(),
    };
    Some(halt(
        HaltReason::TableUnfit,
        format!(
            "column {name} ({}) of table {table} has no time zone, and decides {}",
            column.type_name, deciding.what
        ),
        format!(
            "read in another zone than it was written in, events would be dropped, or hours late; {}",
            kept(facts)
        ),
        format!(
            "set source.time_zone to the zone of the sessions that insert (SHOW TimeZone there), such as \
             \"America/New_York\", and start again{alter}"
        ),
    ))
}

/// The first server with `publish_generated_columns`.
const GENERATED_SINCE: u32 = 180_000;

/// The publication exists.
pub(super) fn exists(facts: &Facts) -> Option<Halt> {
    facts.publication.is_none().then(|| missing_publication(facts))
}

pub(super) fn missing_publication(facts: &Facts) -> Halt {
    let name = &facts.names.publication;
    halt(
        HaltReason::PublicationMissing,
        format!("publication {name:?} does not exist in database {:?}", facts.server.database),
        "the server decodes with the publication as it was at each commit: rows committed while it did not exist \
             are skipped (18) or stop the stream (15 to 17), even if it is made again now",
        match (&facts.slot, &facts.cursor) {
            (None, None) => facts.setup(""),
            // Nothing records what was published.
            (Some(_), None) => begin_with_every_row(facts),
            (_, Some(_)) => format!("{}; then {}", create(facts), from_the_table(facts)),
        },
    )
}

/// The statement that creates the publication.
pub(super) fn create(facts: &Facts) -> String {
    format!(
        "CREATE PUBLICATION {}{} WITH ({})",
        ident(&facts.names.publication),
        facts.names.for_tables(),
        facts.names.publication_options(facts.server.version)
    )
}

/// The publication may have left out rows that are not known to be published.
pub(super) fn gap(facts: &Facts) -> Option<String> {
    facts.since.publication.then(|| {
        if facts.since.table {
            return format!(
                "the outbox table and its place in publication {:?} were created after what is known to be published: \
                 rows that were inserted before the table was published are in no stream, and events of a table that \
                 was dropped are in the slot alone",
                facts.names.publication
            );
        }
        format!(
            "publication {:?} was created or changed after what is known to be published: rows that were committed \
             before the change may be in no stream",
            facts.names.publication
        )
    })
}

/// The publication was changed while it was streamed.
pub(super) fn left_out(facts: &Facts, concerned: AffectedRows, interval: Duration) -> Halt {
    let table = facts.names.table.as_ref().map_or_else(String::new, ToString::to_string);
    let rows = match concerned.rows {
        Some(rows) => format!("{rows} rows of {table} that were committed in this time"),
        None => {
            format!("rows of {table} that were committed in this time and could not be counted")
        }
    };
    let open =
        if concerned.open_writers { ", and rows of transactions that are still open," } else { "" };
    halt(
        HaltReason::PublicationUnfit,
        format!(
            "publication {:?} was changed and changed back, or created again, while it was streamed",
            facts.names.publication
        ),
        format!(
            "the publication was looked at {} s before: {rows}{open} may have been left out of the stream, which says \
             nothing of it. They are in the table unless the application deleted them, and are not taken for published",
            interval.as_secs()
        ),
        from_the_table(facts),
    )
}

/// The command that publishes the rows that it left out, if the publication is suitable now.
pub(super) fn from_the_table(facts: &Facts) -> String {
    created_again(facts).unwrap_or_else(|| from_table(facts))
}

/// The remedy if the table was created after what is known to be published. A new slot would lose what the old slot
/// still holds of a dropped table, so the new table's rows are written again, and follow in the same slot.
fn created_again(facts: &Facts) -> Option<String> {
    let (name, table) = (facts.names.table.as_ref()?, facts.table.as_ref()?);
    if !facts.since.table || facts.slot.is_none() || table.is_partition {
        return None;
    }
    let marks = facts.marks.as_ref().map(|marks| &marks.spec);
    Some(format!(
        "{} (it writes the rows of the new table again, so that the slot brings them; rows that it brings already come \
         twice). The table was created after what is known to be published, and only the slot has events of one that \
         was dropped: start again with this slot, do not repair",
        insert_again(marks, table, name).trim_end_matches(';')
    ))
}

/// The statements that delete the unmarked rows and insert them again, under the publication as it is now.
pub(crate) fn insert_again(
    marks: Option<&PollSpec>,
    table: &TableFacts,
    name: &TableName,
) -> String {
    let columns = inserted(table);
    let filter = marks.map_or_else(String::new, |spec| format!(" WHERE {}", unmarked(spec, "o")));
    format!(
        "BEGIN; LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE; WITH again AS (DELETE FROM {name} AS o{filter} \
         RETURNING {columns}) INSERT INTO {name} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM again; \
         COMMIT;"
    )
}

/// The step that must follow a change of the publication: the earlier rows are published from the table.
fn then_from_table(facts: &Facts, change: &str) -> String {
    let change = change.trim_end_matches(';');
    match (&facts.slot, &facts.cursor) {
        (Some(_), Some(_)) => match created_again(facts) {
            Some(again) => format!("{change}; then {again}"),
            None => format!("{change}; then {}", from_table(facts)),
        },
        _ => format!("{change};"),
    }
}

fn unfit(facts: &Facts, what: &str, hint: &str) -> Halt {
    halt(
        HaltReason::PublicationUnfit,
        format!("publication {:?} {what}", facts.names.publication),
        "rows that were committed while it was so are in no stream; nothing is confirmed while halted",
        then_from_table(facts, hint),
    )
}

/// The halt for a publication without updates: the relay would see no UPDATE, so none would halt the pipeline. The
/// stream has all inserts.
fn no_updates(facts: &Facts, alter: &str) -> Halt {
    halt(
        HaltReason::PublicationUnfit,
        format!(
            "publication {:?} does not publish updates, which outbox.on_update = \"halt\" has to see",
            facts.names.publication
        ),
        "no event is lost; an UPDATE that was committed until then is not in the stream, and halts nothing",
        format!(
            "{alter} SET (publish = '{}'); then start again. The table needs a primary key, or REPLICA IDENTITY FULL: \
             else PostgreSQL refuses its UPDATEs (SQLSTATE 55000)",
            facts.names.published()
        ),
    )
}

/// The publication publishes all inserts of the table, under the table's own name.
pub(super) fn rows(facts: &Facts) -> Option<Halt> {
    let publication = facts.publication.as_ref()?;
    let alter = format!("ALTER PUBLICATION {}", ident(&facts.names.publication));
    if !publication.insert {
        let hint = format!("{alter} SET (publish = '{}');", facts.names.published());
        return Some(unfit(facts, "does not publish inserts", &hint));
    }
    if facts.names.updates && !publication.update {
        return Some(no_updates(facts, &alter));
    }
    let name = facts.names.table.as_ref()?;
    let facts_of_table = facts.table.as_ref()?;
    let Some(published) = &publication.table else {
        let hint = if facts_of_table.is_partition {
            "name the partitioned table in outbox.table, not its partition".to_owned()
        } else {
            add_table(facts, name)
        };
        return Some(unfit(facts, &format!("does not publish table {name}"), &hint));
    };
    if facts_of_table.kind == RelationKind::Partitioned && !publication.via_root {
        return Some(unfit(
            facts,
            &format!("publishes partitions of {name} under their own names"),
            &via_root(&alter, name, publication.names_table),
        ));
    }
    published.row_filter.as_ref().map(|_| {
        unfit(
            facts,
            &format!("has a row filter on table {name}"),
            &format!("{alter} SET TABLE {name};"),
        )
    })
}

/// If the table itself is not named, its other partitions are not published: the same transaction adds the table.
pub(crate) fn via_root(alter: &str, name: &TableName, named: bool) -> String {
    let set = format!("{alter} SET (publish_via_partition_root = true);");
    if named {
        return set;
    }
    format!("BEGIN; LOCK TABLE {name} IN SHARE MODE; {alter} ADD TABLE {name}; {set} COMMIT;")
}

/// Rows that open transactions wrote before the change would be left out: the lock waits for those transactions.
pub(super) fn add_table(facts: &Facts, name: &TableName) -> String {
    let publication = ident(&facts.names.publication);
    format!(
        "BEGIN; LOCK TABLE {name} IN SHARE MODE; ALTER PUBLICATION {publication} ADD TABLE {name}; COMMIT"
    )
}

/// The publication publishes every column that the layout needs.
pub(super) fn published_columns(facts: &Facts) -> Option<Halt> {
    let name = facts.names.table.as_ref()?;
    let published = facts.publication.as_ref()?.table.as_ref()?;
    let table = facts.table.as_ref()?;
    // Before 18 the catalog counts generated columns among the published ones, but the stream has none of them.
    let generated = |name: &String| {
        facts.server.version < GENERATED_SINCE
            && table.columns.iter().any(|column| column.generated && column.name == *name)
    };
    let hidden: Vec<&String> = facts
        .columns
        .iter()
        .filter(|column| !published.columns.contains(column) || generated(column))
        .collect();
    if hidden.is_empty() {
        return None;
    }
    let quoted: Vec<String> = hidden.iter().map(|column| ident(column)).collect();
    Some(unfit(
        facts,
        &format!("does not publish column {} of table {name}", quoted.join(", ")),
        &show_columns(facts, table, name, &hidden),
    ))
}

/// The remedy that publishes these columns. The server computes a generated column from others, which the stream has.
fn show_columns(facts: &Facts, table: &TableFacts, name: &TableName, hidden: &[&String]) -> String {
    let alter = format!("ALTER PUBLICATION {}", ident(&facts.names.publication));
    if !table.columns.iter().any(|column| column.generated && hidden.contains(&&column.name)) {
        return format!("{alter} SET TABLE {name};");
    }
    let map = "a generated column is not streamed: map an ordinary column in outbox.columns";
    if facts.server.version < GENERATED_SINCE {
        return map.to_owned();
    }
    format!("{map}; or, if it is STORED: {alter} SET (publish_generated_columns = stored);")
}

const NOT_PUBLISHED: &str =
    "nothing is published while halted; committed rows stay in the table, nothing is lost";

/// Every column that a status reads or writes exists.
pub(super) fn mark_columns(facts: &Facts) -> Option<Halt> {
    let (marks, table) = (facts.marks.as_ref()?, facts.table.as_ref()?);
    let lacks = |column: &&str| !table.columns.iter().any(|have| have.name == **column);
    let missing: Vec<&str> = marks.spec.columns().into_iter().filter(lacks).collect();
    if missing.is_empty() {
        return None;
    }
    let name = &marks.spec.table;
    let list: Vec<String> = missing.iter().map(|column| ident(column)).collect();
    let (order, written): (Vec<&str>, Vec<&str>) =
        missing.iter().partition(|column| marks.spec.time.as_deref() == Some(**column));
    let mut ways = vec!["correct outbox.layout".to_owned()];
    if !order.is_empty() {
        ways.push(
            "set outbox.columns.time to the table's own column (\"\" where it has none)".to_owned(),
        );
    }
    ways.push("stream without marks: mode = \"wal\" and poll.mark_streamed = false".to_owned());
    if !written.is_empty() {
        let add = |column: &&str| {
            format!("ADD COLUMN {} {}", ident(column), column_type(&marks.spec, column))
        };
        let added: Vec<String> = written.iter().map(add).collect();
        ways.push(format!(
            "add what the marks need: ALTER TABLE {name} {}; then write the mark into the rows that are published \
             already, since polling publishes every row without it",
            added.join(", ")
        ));
    }
    Some(halt(
        HaltReason::MarksUnfit,
        format!(
            "table {name} has no column {}, which polling and the marks of published rows need",
            list.join(", ")
        ),
        NOT_PUBLISHED,
        ways.join("; or "),
    ))
}

/// A row that has failed for good is deleted from the outbox and inserted into the dead-letter table: a column that the
/// dead-letter table lacks would be lost.
pub(super) fn dead_letters(facts: &Facts) -> Option<Halt> {
    let marks = facts.marks.as_ref()?;
    let (dlq, have) = (marks.spec.dlq()?, marks.dlq.as_ref()?);
    let missing: Vec<String> =
        facts.columns.iter().filter(|column| !have.contains(column)).map(|c| ident(c)).collect();
    if missing.is_empty() {
        return None;
    }
    let outbox = &marks.spec.table;
    Some(halt(
        HaltReason::MarksUnfit,
        format!(
            "table {dlq}, where rows go that have failed for good, has no column {}",
            missing.join(", ")
        ),
        format!(
            "the move deletes the row from {outbox}: what has no column would be lost; {NOT_PUBLISHED}"
        ),
        format!(
            "give {dlq} the columns of {outbox}; or rename it: then a row that fails stays in {outbox} and is tried \
             again for ever"
        ),
    ))
}

/// An `UPDATE` that moves a row to another partition is a `DELETE` and an `INSERT` in WAL, and pgoutput does not
/// distinguish such an `INSERT` from that of a new row.
pub(super) fn partition_key(facts: &Facts) -> Option<Halt> {
    let (marks, table) = (facts.marks.as_ref()?, facts.table.as_ref()?);
    let key = &table.partitions.key;
    let moving: Vec<String> = marks
        .spec
        .written()
        .into_iter()
        .filter(|written| key.iter().any(|column| column == written))
        .map(ident)
        .collect();
    if moving.is_empty() {
        return None;
    }
    let name = &marks.spec.table;
    Some(halt(
        HaltReason::MarksUnfit,
        format!(
            "table {name} is partitioned by column {}, which the marks of published rows change",
            moving.join(", ")
        ),
        format!(
            "a mark that moves a row to another partition comes back by the stream as a new event: each event would \
             be published twice; {NOT_PUBLISHED}"
        ),
        "turn the marks off: mode = \"wal\" and poll.mark_streamed = false, and let the application mark or delete \
         its rows without moving them; or read the table without the stream: mode = \"poll\"; or partition the table \
         by a column that no mark changes, the event's time for example",
    ))
}
