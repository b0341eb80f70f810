//! Rules about captured tables and their publication: every change of them is in the stream, under the table's own name
//! and with what identifies the row, and the application's own statements succeed.
//!
//! A change that the publication left out cannot be published again: it is in no table. So each of these rules is a
//! halt, at a start and while the stream runs. `setup` and `check` report the same problems.

use super::{Facts, halt};
use crate::capture::tables::{
    CaptureFacts, CapturePublication, CapturedFacts, CapturedRelation, GeneratedColumn, LeafGroup,
    ReplicaIdentity,
};
use crate::catalog::{Persistence, RelationKind};
use crate::names::{CapturedTable, PUBLISHES_GENERATED, ident, literal};
use postrider_core::error::{Halt, HaltReason};
use std::time::Duration;

/// A problem of a captured table, or of the publication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CaptureProblem {
    /// The name of the finding.
    pub(crate) id: &'static str,
    /// The reason of the halt.
    pub(crate) reason: HaltReason,
    /// The problem: a fragment.
    pub(crate) what: String,
    /// What it means for the data and for the application.
    pub(crate) meaning: String,
    /// What fixes it: a sentence without full stop.
    pub(crate) fix: String,
    /// The statement of the fix, if there is one that is right for every table.
    pub(crate) sql: Option<String>,
}

/// Every captured table exists, is in WAL, and has a replica identity that the publication publishes.
pub(super) fn tables(facts: &Facts) -> Option<Halt> {
    let captured = facts.captured.as_ref()?;
    let problem = of_tables(captured, facts.server.version).into_iter().next()?;
    Some(as_halt(facts, problem))
}

/// The publication publishes every change of exactly these tables, with exactly these columns.
pub(super) fn publication(facts: &Facts) -> Option<Halt> {
    let captured = facts.captured.as_ref()?;
    let problem = of_publication(facts, captured).into_iter().next()?;
    Some(as_halt(facts, problem))
}

/// All problems of captured tables and of their publication, in the order in which they can be fixed.
pub(crate) fn problems(facts: &Facts) -> Vec<CaptureProblem> {
    let Some(captured) = &facts.captured else { return Vec::new() };
    let mut found = of_tables(captured, facts.server.version);
    found.extend(of_publication(facts, captured));
    found
}

fn as_halt(facts: &Facts, problem: CaptureProblem) -> Halt {
    let CaptureProblem { reason, what, meaning, fix, .. } = problem;
    let kept = if facts.slot.is_some() {
        "the slot keeps the WAL; nothing is confirmed while halted"
    } else {
        "nothing was changed"
    };
    let then = if facts.slot.is_none() && facts.cursor.is_none() {
        facts.setup("")
    } else {
        "start again".to_owned()
    };
    let fix = fix.trim_end_matches(';');
    halt(reason, what, format!("{meaning}; {kept}"), format!("{fix}; then {then}"))
}

fn of_tables(captured: &CaptureFacts, version: u32) -> Vec<CaptureProblem> {
    let others = captured.publication.as_ref().map_or(&[][..], |found| &found.others);
    captured
        .tables
        .iter()
        .flat_map(|table| match &table.found {
            None => vec![missing(table, others)],
            Some(found) => of_relation(table, found, version),
        })
        .collect()
}

fn unfit(id: &'static str, what: String, meaning: &str, fix: String) -> CaptureProblem {
    let reason = HaltReason::TableUnfit;
    CaptureProblem { id, reason, what, meaning: meaning.to_owned(), fix, sql: None }
}

/// `others`: the tables of the publication that are not captured. A table that was renamed is one of them.
fn missing(table: &CapturedFacts, others: &[String]) -> CaptureProblem {
    let renamed = if others.is_empty() {
        String::new()
    } else {
        format!(
            ". The publication has a table that is not in capture.tables: {}. If this is the table under a new name, \
             set capture.tables, or rename it back",
            others.join(", ")
        )
    };
    unfit(
        "capture_missing",
        format!("captured table {} does not exist", table.table.name),
        "no change of it is in the stream",
        format!("correct capture.tables or source.url{renamed}"),
    )
}

fn of_relation(
    table: &CapturedFacts,
    found: &CapturedRelation,
    version: u32,
) -> Vec<CaptureProblem> {
    if let Some(kind) = kind(table, found) {
        return vec![kind];
    }
    let groups = found.leaves.iter();
    let not_logged = groups.clone().filter(|group| group.is_foreign || group.is_unlogged);
    let mut problems: Vec<CaptureProblem> =
        not_logged.map(|group| not_in_wal(table, group)).collect();
    problems.extend(columns(table, found, version));
    // An identity is judged by the columns that are published: first those must be right.
    if problems.is_empty() {
        problems.extend(identity(table, found, version));
    }
    problems
}

/// The relation is an ordinary or a partitioned table whose rows are in WAL.
fn kind(table: &CapturedFacts, found: &CapturedRelation) -> Option<CaptureProblem> {
    let name = &table.table.name;
    if found.kind == RelationKind::Other {
        return Some(unfit(
            "capture_kind",
            format!("{name} is not a table: WAL has no rows of it"),
            "no change of it is in the stream",
            "name the tables themselves in capture.tables".to_owned(),
        ));
    }
    if let Some(root) = &found.root {
        return Some(unfit(
            "capture_partition",
            format!("{name} is a partition of {root}"),
            "a row that moves to another partition would be a deletion here",
            format!("name {root} in capture.tables"),
        ));
    }
    let (what, fix) = match found.persistence {
        Persistence::Logged => return None,
        Persistence::Temporary => {
            ("temporary", "name an ordinary table in capture.tables".to_owned())
        }
        Persistence::Unlogged if found.kind == RelationKind::Partitioned => (
            "marked UNLOGGED",
            "make a partitioned table without UNLOGGED in its place, and attach its partitions to it".to_owned(),
        ),
        Persistence::Unlogged => ("unlogged", format!("ALTER TABLE {name} SET LOGGED;")),
    };
    Some(unfit(
        "capture_unlogged",
        format!("captured table {name} is {what}: WAL has no rows of it"),
        "changes that are made while it is so are in no stream, and no publication takes it: load its consumers again \
         from the table afterwards",
        fix,
    ))
}

/// A partition whose rows are in no WAL of this server.
fn not_in_wal(table: &CapturedFacts, group: &LeafGroup) -> CaptureProblem {
    let (name, leaf) = (&table.table.name, &group.example);
    let count = match group.oids.len() {
        1 => String::new(),
        count => format!(" ({count} such partitions)"),
    };
    let (kind, fix) = if group.is_foreign {
        ("a foreign table", format!("ALTER TABLE {name} DETACH PARTITION {leaf};"))
    } else {
        ("unlogged", format!("ALTER TABLE {leaf} SET LOGGED;"))
    };
    unfit(
        "capture_partition_unlogged",
        format!("partition {leaf} of captured table {name} is {kind}{count}"),
        "changes of its rows are in no stream",
        fix,
    )
}

/// The configured columns exist, and can be published.
fn columns(
    table: &CapturedFacts,
    found: &CapturedRelation,
    version: u32,
) -> Option<CaptureProblem> {
    let (name, wanted) = (&table.table.name, table.table.columns.as_ref()?);
    let column = |wanted: &String| found.columns.iter().find(|column| column.name == *wanted);
    let absent: Vec<String> =
        wanted.iter().filter(|wanted| column(wanted).is_none()).map(|name| ident(name)).collect();
    if !absent.is_empty() {
        return Some(unfit(
            "capture_column",
            format!("captured table {name} has no column {}", absent.join(", ")),
            "no publication takes such a list",
            "correct capture.columns".to_owned(),
        ));
    }
    let published = |column: &&String| match self::generated(found, column) {
        GeneratedColumn::No => true,
        GeneratedColumn::Stored => version >= PUBLISHES_GENERATED,
        GeneratedColumn::Virtual => false,
    };
    let not: Vec<String> =
        wanted.iter().filter(|column| !published(column)).map(|name| ident(name)).collect();
    (!not.is_empty()).then(|| {
        unfit(
            "capture_column",
            format!("column {} of captured table {name} is generated", not.join(", ")),
            "PostgreSQL publishes stored generated columns from version 18 on, and virtual ones never",
            "leave it out of capture.columns: a consumer can compute it".to_owned(),
        )
    })
}

fn generated(found: &CapturedRelation, name: &str) -> GeneratedColumn {
    let column = found.columns.iter().find(|column| column.name == *name);
    column.map_or(GeneratedColumn::No, |column| column.generated)
}

/// What an identity that the publication does not publish whole leads to.
const REFUSED: &str = "as long as a publication publishes updates and deletes of it, PostgreSQL refuses the \
                       application's UPDATE and DELETE of the table (SQLSTATE 55000 or 42P10)";

/// The table and each partition have a replica identity, all of whose columns are published.
fn identity(table: &CapturedFacts, found: &CapturedRelation, version: u32) -> Vec<CaptureProblem> {
    let name = &table.table.name;
    let own = (format!("captured table {name}"), name.to_string(), &found.identity);
    let leaves = found.leaves.iter().map(|group| {
        let count = match group.oids.len() {
            1 => String::new(),
            count => format!(" ({count} partitions with this identity)"),
        };
        let what = format!("partition {} of captured table {name}{count}", group.example);
        (what, group.example.clone(), &group.identity)
    });
    let mut problems = Vec::new();
    for (what, place, identity) in std::iter::once(own).chain(leaves) {
        let problem = match identity {
            ReplicaIdentity::Nothing => Some(no_identity(&what, &place)),
            ReplicaIdentity::Full => full(table, found, version, &what),
            ReplicaIdentity::Columns(key) => not_published(table, found, version, &what, key),
        };
        let differs = || !identity.covers(&found.identity);
        let problem = problem.or_else(|| differs().then(|| differing(table, found, &what, &place)));
        problems.extend(problem);
    }
    problems
}

fn no_identity(what: &str, place: &str) -> CaptureProblem {
    unfit(
        "capture_identity",
        format!("{what} has no replica identity"),
        REFUSED,
        format!(
            "give it one of: ALTER TABLE {place} ADD PRIMARY KEY (COLUMNS); (it builds an index under a lock); ALTER \
             TABLE {place} REPLICA IDENTITY USING INDEX NAME; (a unique index that is not deferrable, of columns that \
             are NOT NULL: it costs nothing); ALTER TABLE {place} REPLICA IDENTITY FULL; (each UPDATE and DELETE \
             writes the whole old row to WAL)"
        ),
    )
}

/// REPLICA IDENTITY FULL: all columns must be published.
fn full(
    table: &CapturedFacts,
    found: &CapturedRelation,
    version: u32,
    what: &str,
) -> Option<CaptureProblem> {
    let name = &table.table.name;
    if table.table.columns.is_some() {
        return Some(unfit(
            "capture_identity_columns",
            format!(
                "{what} has REPLICA IDENTITY FULL, and capture.columns names some of its columns"
            ),
            REFUSED,
            format!(
                "remove {name} from capture.columns; or identify rows by a key: ALTER TABLE {name} REPLICA IDENTITY \
                 DEFAULT; (the primary key)"
            ),
        ));
    }
    let is_virtual = |column: &&crate::capture::tables::CapturedColumn| {
        column.generated == GeneratedColumn::Virtual && version >= PUBLISHES_GENERATED
    };
    let column = found.columns.iter().find(is_virtual)?;
    Some(unfit(
        "capture_identity_generated",
        format!(
            "{what} has REPLICA IDENTITY FULL and the virtual generated column {}, which is never published",
            ident(&column.name)
        ),
        REFUSED,
        format!(
            "identify rows by a key: ALTER TABLE {name} REPLICA IDENTITY DEFAULT; (the primary key)"
        ),
    ))
}

/// An identity of columns: all of them must be published.
fn not_published(
    table: &CapturedFacts,
    found: &CapturedRelation,
    version: u32,
    what: &str,
    key: &[String],
) -> Option<CaptureProblem> {
    let hidden = |column: &&String| {
        table.table.columns.as_ref().is_some_and(|columns| !columns.contains(column))
    };
    let hidden: Vec<String> = key.iter().filter(hidden).map(|column| ident(column)).collect();
    if !hidden.is_empty() {
        return Some(unfit(
            "capture_identity_columns",
            format!(
                "capture.columns leaves out {}, of the replica identity of {what}",
                hidden.join(", ")
            ),
            REFUSED,
            format!("add {} to capture.columns", hidden.join(", ")),
        ));
    }
    let lacking = |column: &&String| match generated(found, column) {
        GeneratedColumn::No => false,
        GeneratedColumn::Stored => version < PUBLISHES_GENERATED,
        GeneratedColumn::Virtual => true,
    };
    let lacking = key.iter().find(lacking)?;
    Some(unfit(
        "capture_identity_generated",
        format!("the replica identity of {what} has the generated column {}", ident(lacking)),
        "before PostgreSQL 18 no generated column is in the stream: a deleted row would not be identified",
        format!(
            "identify rows by ordinary columns: ALTER TABLE {} REPLICA IDENTITY USING INDEX NAME;",
            table.table.name
        ),
    ))
}

/// The server labels the old rows of all partitions with the identity of the partitioned table: where the partition's
/// own has fewer columns, the others would come as NULL.
fn differing(
    table: &CapturedFacts,
    found: &CapturedRelation,
    what: &str,
    place: &str,
) -> CaptureProblem {
    let name = &table.table.name;
    let fix = match &found.identity {
        ReplicaIdentity::Full => format!("ALTER TABLE {place} REPLICA IDENTITY FULL;"),
        ReplicaIdentity::Columns(_) | ReplicaIdentity::Nothing => format!(
            "ALTER TABLE {place} REPLICA IDENTITY DEFAULT; (its primary key; or USING INDEX with the same columns as \
             {name})"
        ),
    };
    unfit(
        "capture_identity",
        format!("{what} has another replica identity than the table, with fewer columns"),
        "an UPDATE or DELETE of its rows is published with null in the columns that it lacks, so that consumers do not \
         find the row: if there was one, load them again from the table",
        fix,
    )
}

fn unpublished(what: &str, sql: String) -> CaptureProblem {
    CaptureProblem {
        id: "capture_publication",
        reason: HaltReason::PublicationUnfit,
        what: what.to_owned(),
        meaning: "changes that were committed while it was so are in no stream, and no table has them: load the \
                  consumers of these tables again afterwards"
            .to_owned(),
        fix: sql.clone(),
        sql: Some(sql),
    }
}

fn of_publication(facts: &Facts, captured: &CaptureFacts) -> Vec<CaptureProblem> {
    let Some(found) = &captured.publication else { return Vec::new() };
    let name = &facts.names.publication;
    let alter = format!("ALTER PUBLICATION {}", ident(name));
    if found.is_wide {
        return vec![wide(facts)];
    }
    let mut problems = Vec::new();
    let options = facts.names.publication_options(facts.server.version);
    if !found.lacks.is_empty() || !found.via_root || lacks_generated(facts, captured, found) {
        let what = format!(
            "publication {name:?} does not publish all that is captured: it must have the options {options}"
        );
        problems.push(unpublished(&what, format!("{alter} SET ({options});")));
    }
    let differing: Vec<String> = captured.tables.iter().filter_map(as_published).collect();
    if !differing.is_empty() || !found.others.is_empty() {
        let mut what = differing;
        if !found.others.is_empty() {
            what.push(format!("publishes {}, which is not captured", found.others.join(", ")));
        }
        let what = format!("publication {name:?} {}", what.join("; it "));
        problems.push(unpublished(&what, set_tables(facts)));
    }
    problems
}

/// Stored generated columns of tables without a list of columns are in the stream only if the publication asks for
/// them; otherwise they are not in the documents, and with REPLICA IDENTITY FULL an UPDATE fails.
fn lacks_generated(facts: &Facts, captured: &CaptureFacts, found: &CapturePublication) -> bool {
    let has_stored = |table: &CapturedFacts| {
        table.table.columns.is_none()
            && table.found.as_ref().is_some_and(|found| {
                found.columns.iter().any(|column| column.generated == GeneratedColumn::Stored)
            })
    };
    facts.server.version >= PUBLISHES_GENERATED
        && !found.stored_generated
        && captured.tables.iter().any(has_stored)
}

/// How the publication publishes a table otherwise than it is captured: a fragment after its name.
fn as_published(table: &CapturedFacts) -> Option<String> {
    let name = &table.table.name;
    let Some(published) = &table.published else {
        return table.found.as_ref().map(|_| format!("does not publish table {name}"));
    };
    if published.row_filter.is_some() {
        return Some(format!("has a row filter on table {name}"));
    }
    let mut wanted = table.table.columns.clone().unwrap_or_default();
    let mut have = published.columns.clone();
    wanted.sort_unstable();
    have.sort_unstable();
    let words = |columns: &[String]| {
        let columns: Vec<String> = columns.iter().map(|column| ident(column)).collect();
        if columns.is_empty() { "all columns".to_owned() } else { columns.join(", ") }
    };
    (wanted != have)
        .then(|| format!("publishes {} of table {name}, not {}", words(&have), words(&wanted)))
}

/// The statements that make the publication publish exactly the captured tables. The locks wait for open transactions,
/// whose earlier changes would be left out.
fn set_tables(facts: &Facts) -> String {
    let (names, publication) = (&facts.names, ident(&facts.names.publication));
    let tables: Vec<String> = names.captured.iter().map(CapturedTable::published).collect();
    format!(
        "BEGIN; LOCK TABLE {} IN SHARE MODE; ALTER PUBLICATION {publication} SET TABLE {}; COMMIT;",
        names.captured_list(),
        tables.join(", ")
    )
}

/// FOR ALL TABLES cannot be altered, and would publish Postrider's own tables.
fn wide(facts: &Facts) -> CaptureProblem {
    let name = &facts.names.publication;
    CaptureProblem {
        id: "capture_publication",
        reason: HaltReason::PublicationUnfit,
        what: format!("publication {name:?} publishes tables that are not captured: it is FOR ALL TABLES or IN SCHEMA"),
        meaning: "the UPDATEs and DELETEs of each of these tables need a replica identity, and Postrider's own tables \
                  would be decoded"
            .to_owned(),
        fix: format!(
            "set source.publication to a name that no publication has, such as \"{name}_capture\", and create it: {}",
            create(facts)
        ),
        sql: None,
    }
}

/// The statement that creates the publication.
fn create(facts: &Facts) -> String {
    let names = &facts.names;
    format!(
        "CREATE PUBLICATION {}{} WITH ({});",
        ident(&names.publication),
        names.for_tables(),
        names.publication_options(facts.server.version)
    )
}

/// The publication was changed while it was streamed: what it left out is not in the stream, and nothing shows how much
/// that is. `interval`: how often it is looked at.
pub(super) fn left_out(facts: &Facts, interval: Duration) -> Halt {
    halt(
        HaltReason::PublicationUnfit,
        format!(
            "publication {:?} was changed and changed back, or created again, while it was streamed",
            facts.names.publication
        ),
        format!(
            "the publication was looked at {} s before: changes of {} that were committed in this time may have been \
             left out of the stream, which has no trace of them. How many is not known",
            interval.as_secs(),
            facts.names.captured_list()
        ),
        format!(
            "start again: the stream continues without them. Then load the consumers of these tables again from the \
             tables: {}",
            facts.names.captured_list()
        ),
    )
}

/// The publication may have left out changes that are not known to be published: a fragment.
pub(super) fn gap(facts: &Facts) -> Option<String> {
    facts.since.publication.then(|| {
        format!(
            "publication {:?} was created or changed after what is known to be published: changes of {} that were \
             committed before may be in no stream. If so, load the consumers of these tables again from the tables",
            facts.names.publication,
            facts.names.captured_list()
        )
    })
}

/// The commands that begin with a new slot. Changes between the cursor and the new slot are lost, and the hint says how
/// much WAL that is.
pub(super) fn begin_again(facts: &Facts) -> String {
    let names = &facts.names;
    let between = facts.cursor.as_ref().map_or_else(String::new, |cursor| {
        let bytes = facts.server.wal_end.distance_from(cursor.watermark.offset());
        format!(
            " (at most those in the {} MiB of WAL from {} to {}, and what is committed until the new slot exists)",
            bytes.div_ceil(1 << 20),
            cursor.watermark,
            facts.server.wal_end
        )
    });
    let drop_slot = facts.slot.as_ref().map_or_else(String::new, |_| {
        format!("SELECT pg_drop_replication_slot({}); then ", literal(&names.slot))
    });
    let forget = facts.cursor.as_ref().map_or_else(String::new, |_| {
        format!(
            "DELETE FROM postrider.cursor WHERE pipeline = {}; then ",
            literal(&names.key.pipeline)
        )
    });
    format!(
        "changes that were not published are lost as events{between}; the tables have their result. A new slot begins \
         with: {drop_slot}{forget}{}. Then load the consumers again from the tables: {}",
        facts.setup(""),
        names.captured_list()
    )
}
