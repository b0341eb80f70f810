//! The message of every rule as a snapshot. Each message follows from one change to facts that pass all rules.

mod histories;

use super::*;
use crate::catalog::{
    ChangesSince, ColumnFacts, Partitions, Persistence, PublishedTable, RelationKind, TableFacts,
    UnfitLeaf, UnfitLeafKind,
};
use crate::names::{TableName, Times};
use crate::poll::Backoff;
use crate::publication_version::PublicationVersion;
use crate::times::TimesFacts;
use crate::value_types::TypeFacts;
use expect_test::expect_file;
use histories::HISTORIES;
use postrider_core::store::PipelineKey;
use postrider_outbox::{Layout, OutboxSpec};
use std::fmt::Write;

pub(crate) fn at(text: &str) -> Lsn {
    text.parse().unwrap()
}

/// A pipeline that is set up and was stopped cleanly at 0/5000.
pub(crate) fn good() -> Facts {
    let columns = ["id", "aggregate_type", "aggregate_id", "payload"].map(str::to_owned);
    let column = |name: &String| ColumnFacts {
        name: name.clone(),
        type_name: "text".to_owned(),
        type_facts: TypeFacts { oid: 25, base_oid: 25, base_modifier: -1, is_text: false },
        not_null: true,
        generated: false,
    };
    Facts {
        names: Names {
            key: PipelineKey::first("orders"),
            slot: "postrider_orders".to_owned(),
            publication: "postrider_orders".to_owned(),
            table: Some(TableName::new("public", "outbox")),
            captured: Vec::new(),
            times: Times::default(),
            auto: false,
            in_transactions: false,
            updates: false,
        },
        identity: Some(Identity {
            system_identifier: "7000".to_owned(),
            timeline: 1,
            switches: Vec::new(),
        }),
        server: ServerFacts {
            version: 180_006,
            in_recovery: false,
            wal_level: "logical".to_owned(),
            wal_end: at("0/9000"),
            system_identifier: "7000".to_owned(),
            timeline: 1,
            database: "shop".to_owned(),
            encoding: "UTF8".to_owned(),
            role: "postrider".to_owned(),
            replication: true,
            creates: true,
        },
        schema: SchemaState::Version(crate::schema::VERSION),
        untrusted: None,
        slot: Some(good_slot()),
        cursor: Some(good_cursor()),
        publication: Some(PublicationFacts {
            insert: true,
            update: false,
            delete_or_truncate: false,
            all_tables: false,
            via_root: true,
            names_table: true,
            table: Some(PublishedTable { row_filter: None, columns: columns.to_vec() }),
            other_tables: 0,
            version: PublicationVersion::of("1.7 table 2.7", "1 table 2", "insert"),
        }),
        times: TimesFacts::default(),
        since: ChangesSince::default(),
        table: Some(TableFacts {
            oid: 16_400,
            kind: RelationKind::Table,
            persistence: Persistence::Logged,
            is_partition: false,
            owned: true,
            notifies: false,
            partitions: Partitions::default(),
            columns: columns.iter().map(column).collect(),
        }),
        columns: columns.to_vec(),
        stream: StreamOptions { messages: false, failover: true },
        marks: None,
        captured: None,
    }
}

fn good_slot() -> SlotRow {
    SlotRow {
        name: "postrider_orders".to_owned(),
        plugin: Some("pgoutput".to_owned()),
        logical: true,
        database: Some("shop".to_owned()),
        temporary: false,
        two_phase: false,
        active_pid: None,
        wal_status: Some("reserved".to_owned()),
        restart_lsn: Some(at("0/4000")),
        confirmed_flush_lsn: Some(at("0/5000")),
        safe_wal_size: None,
        conflicting: false,
        failover: true,
        synced: false,
        invalidation_reason: None,
        inactive_since: None,
    }
}

fn good_cursor() -> Cursor {
    Cursor {
        key: PipelineKey::first("orders"),
        system_identifier: "7000".to_owned(),
        timeline: 1,
        slot: "postrider_orders".to_owned(),
        slot_created_lsn: at("0/1000"),
        publication: "postrider_orders".to_owned(),
        messages: false,
        watermark: Watermark::resumed(at("0/5000")),
        flush_limit: at("0/5800"),
        partial: None,
        owner_epoch: 3,
    }
}

type Edit = fn(&mut Facts);

fn slot(facts: &mut Facts) -> &mut SlotRow {
    facts.slot.as_mut().unwrap()
}

fn cursor(facts: &mut Facts) -> &mut Cursor {
    facts.cursor.as_mut().unwrap()
}

fn publication(facts: &mut Facts) -> &mut PublicationFacts {
    facts.publication.as_mut().unwrap()
}

fn published(facts: &mut Facts) -> &mut PublishedTable {
    publication(facts).table.as_mut().unwrap()
}

fn table(facts: &mut Facts) -> &mut TableFacts {
    facts.table.as_mut().unwrap()
}

const SERVER: &[(&str, Edit)] = &[
    ("nothing changed", |_| {}),
    ("an old server", |f| f.server.version = 140_020),
    ("a minor release with known bugs", |f| f.server.version = 170_002),
    ("a standby", |f| f.server.in_recovery = true),
    ("wal_level replica", |f| f.server.wal_level = "replica".to_owned()),
    ("wal_level replica on 19, where the first slot raises it", |f| {
        (f.server.version, f.server.wal_level) = (190_000, "replica".to_owned());
    }),
    ("wal_level minimal on 19", |f| {
        (f.server.version, f.server.wal_level) = (190_000, "minimal".to_owned());
    }),
    ("encoding SQL_ASCII", |f| f.server.encoding = "SQL_ASCII".to_owned()),
    ("another cluster", |f| {
        f.server.system_identifier = "8000".to_owned();
        f.identity.as_mut().unwrap().system_identifier = "8000".to_owned();
    }),
    ("the two connections reached two clusters", |f| {
        f.identity.as_mut().unwrap().system_identifier = "8000".to_owned();
    }),
    ("an older timeline", |f| cursor(f).timeline = 2),
    ("no replication connection yet", |f| f.identity = None),
    ("no schema", |f| f.schema = SchemaState::Missing),
    ("an empty schema", |f| f.schema = SchemaState::Empty),
    ("an older schema", |f| f.schema = SchemaState::Version(0)),
    ("a newer schema", |f| f.schema = SchemaState::Version(99)),
];

const SLOT: &[(&str, Edit)] = &[
    ("no slot", |f| f.slot = None),
    ("no slot and no cursor", |f| {
        f.slot = None;
        f.cursor = None;
    }),
    ("a physical slot", |f| slot(f).logical = false),
    ("another plugin", |f| slot(f).plugin = Some("test_decoding".to_owned())),
    ("another database", |f| slot(f).database = Some("other".to_owned())),
    ("a temporary slot", |f| slot(f).temporary = true),
    ("two_phase", |f| slot(f).two_phase = true),
    ("wal_status lost", |f| slot(f).wal_status = Some("lost".to_owned())),
    ("wal_status unreserved", |f| slot(f).wal_status = Some("unreserved".to_owned())),
    ("invalidated by idleness", |f| slot(f).invalidation_reason = Some("idle_timeout".to_owned())),
    ("in conflict with recovery", |f| slot(f).conflicting = true),
    ("active elsewhere", |f| slot(f).active_pid = Some(4711)),
    ("active elsewhere and far ahead", |f| {
        slot(f).active_pid = Some(4711);
        slot(f).confirmed_flush_lsn = Some(at("0/8000"));
    }),
    ("being created, the plugin not entered yet", |f| {
        (slot(f).plugin, slot(f).active_pid) = (Some(String::new()), Some(4711));
        slot(f).confirmed_flush_lsn = None;
    }),
    ("half created", |f| slot(f).confirmed_flush_lsn = None),
    ("not a failover slot", |f| slot(f).failover = false),
];

const POSITIONS: &[(&str, Edit)] = &[
    ("no cursor row", |f| f.cursor = None),
    ("the cursor of another slot", |f| cursor(f).slot = "postrider_old".to_owned()),
    ("the slot behind the cursor", |f| slot(f).confirmed_flush_lsn = Some(at("0/4800"))),
    ("the slot at the limit", |f| slot(f).confirmed_flush_lsn = Some(at("0/5800"))),
    ("the slot past the limit", |f| slot(f).confirmed_flush_lsn = Some(at("0/5801"))),
    ("the slot past the WAL", |f| slot(f).confirmed_flush_lsn = Some(at("0/9001"))),
    ("the cursor past the WAL", |f| cursor(f).watermark = Watermark::resumed(at("0/9001"))),
    ("a transaction partly published", |f| {
        cursor(f).partial = Some(Position { commit: at("0/5000"), ordinal: 7 });
    }),
    ("a transaction partly published, confirmed since", |f| {
        cursor(f).partial = Some(Position { commit: at("0/5000"), ordinal: 7 });
        slot(f).confirmed_flush_lsn = Some(at("0/5100"));
    }),
    ("a transaction partly published, messages since", |f| {
        cursor(f).partial = Some(Position { commit: at("0/5000"), ordinal: 7 });
        f.stream.messages = true;
    }),
    ("a transaction partly published, other publication since", |f| {
        cursor(f).partial = Some(Position { commit: at("0/5000"), ordinal: 7 });
        cursor(f).publication = "other".to_owned();
    }),
];

const OBJECTS: &[(&str, Edit)] = &[
    ("no table", |f| f.table = None),
    ("a view", |f| table(f).kind = RelationKind::Other),
    ("an unlogged table", |f| table(f).persistence = Persistence::Unlogged),
    ("a temporary table", |f| table(f).persistence = Persistence::Temporary),
    ("two columns missing", |f| f.columns.extend(["kind".to_owned(), "Trace".to_owned()])),
    ("no publication", |f| f.publication = None),
    ("no publication, first start", |f| {
        f.publication = None;
        f.cursor = None;
    }),
    ("no inserts", |f| publication(f).insert = false),
    ("deletes too", |f| publication(f).delete_or_truncate = true),
    ("FOR ALL TABLES", |f| publication(f).all_tables = true),
    ("three other tables", |f| publication(f).other_tables = 3),
    ("without the table", |f| publication(f).table = None),
    ("without the table, a partition", |f| {
        publication(f).table = None;
        table(f).is_partition = true;
    }),
    ("a row filter", |f| published(f).row_filter = Some("(id > 0)".to_owned())),
    ("a column list", |f| published(f).columns.retain(|c| c != "payload")),
    ("a generated column", |f| {
        f.server.version = 170_000;
        generate(f);
    }),
    ("a generated column, 18", |f| {
        f.server.version = 180_000;
        generate(f);
    }),
    ("partitions under their own names", |f| {
        table(f).kind = RelationKind::Partitioned;
        publication(f).via_root = false;
    }),
    ("some partitions under their own names", |f| {
        table(f).kind = RelationKind::Partitioned;
        publication(f).via_root = false;
        publication(f).names_table = false;
    }),
    ("partitioned, by root", |f| table(f).kind = RelationKind::Partitioned),
    ("an unlogged root", |f| {
        table(f).kind = RelationKind::Partitioned;
        table(f).persistence = Persistence::Unlogged;
    }),
    ("an unlogged partition", |f| leaf(f, UnfitLeafKind::Unlogged)),
    ("an unlogged partition, marks", |f| {
        marked(f);
        leaf(f, UnfitLeafKind::Unlogged);
    }),
    ("a foreign partition", |f| leaf(f, UnfitLeafKind::Foreign { insertable: true })),
    ("a foreign partition that takes no rows", |f| {
        leaf(f, UnfitLeafKind::Foreign { insertable: false });
    }),
    ("marks without their columns", |f| {
        marked(f);
        table(f).columns.retain(|column| column.name == "id" || !column.name.contains("_at"));
    }),
    ("a table of dead letters without the payload", |f| {
        marked(f);
        f.marks.as_mut().unwrap().dlq = Some(vec!["id".to_owned(), "aggregate_type".to_owned()]);
    }),
    ("marks that move rows", |f| {
        marked(f);
        table(f).partitions.key = vec!["id".to_owned(), "processed_at".to_owned()];
    }),
    ("a partition key that no mark changes", |f| {
        marked(f);
        table(f).partitions.key = vec!["id".to_owned()];
    }),
    ("not partitioned, not by root", |f| publication(f).via_root = false),
    ("logical messages alone", |f| {
        f.names.table = None;
        f.table = None;
        publication(f).table = None;
        f.columns.clear();
        f.stream.messages = true;
    }),
    ("logical messages alone, the slot lost", |f| {
        f.names.table = None;
        f.table = None;
        slot(f).wal_status = Some("lost".to_owned());
    }),
];

fn leaf(facts: &mut Facts, kind: UnfitLeafKind) {
    table(facts).kind = RelationKind::Partitioned;
    table(facts).partitions.unfit =
        vec![UnfitLeaf { name: TableName::new("public", "late"), kind }];
}

/// Adds the row status of layout `commerce`.
fn marked(facts: &mut Facts) {
    let text = |name: &str| name.to_owned();
    let spec = PollSpec {
        key: PipelineKey::first("orders"),
        table: TableName::new("public", "outbox"),
        id: text("id"),
        aggregate_type: text("aggregate_type"),
        aggregate_id: text("aggregate_id"),
        time: Some(text("occurred_at")),
        stamps: true,
        row_state: OutboxSpec::for_layout(Layout::Commerce).row_state(),
        delete: false,
        block_key: true,
        attempts_max: 10,
        backoff: Backoff::DEFAULT,
        zone: None,
    };
    let more = spec.columns().into_iter().map(str::to_owned).collect::<Vec<_>>();
    for name in more {
        if table(facts).columns.iter().all(|column| column.name != name) {
            let type_name = text("timestamp with time zone");
            let type_facts =
                TypeFacts { oid: 1184, base_oid: 1184, base_modifier: -1, is_text: false };
            table(facts).columns.push(ColumnFacts {
                name,
                type_name,
                type_facts,
                not_null: false,
                generated: false,
            });
        }
    }
    facts.marks = Some(RowStatusFacts { spec, dlq: None });
}

/// Makes column `payload` a generated column. Before PostgreSQL 18 the catalog counts it among the published columns,
/// although the stream does not have it.
fn generate(facts: &mut Facts) {
    if facts.server.version >= 180_000 {
        published(facts).columns.retain(|column| column != "payload");
    }
    for column in table(facts).columns.iter_mut().filter(|column| column.name == "payload") {
        column.generated = true;
    }
}

fn rendered(changes: &[(&str, Edit)]) -> String {
    let mut out = String::new();
    for (what, change) in changes {
        let mut facts = good();
        change(&mut facts);
        write!(out, "## {what}\n\n").unwrap();
        match decide(&facts) {
            Err(halt) => {
                let Halt { meaning, hint, .. } = &halt;
                writeln!(out, "{halt}\nmeans: {meaning}\nfix:   {hint}").unwrap();
            }
            Ok(Decision::Wait { message }) => writeln!(out, "wait: {message}").unwrap(),
            Ok(Decision::StandBy { pid }) => writeln!(out, "stand by for {pid}").unwrap(),
            Ok(Decision::Resume(resume)) => {
                write!(out, "resume at {}", resume.start).unwrap();
                if let Some(partial) = resume.skip_before {
                    write!(out, ", passing over changes before {partial}").unwrap();
                }
                writeln!(out, "{}", if resume.adopt { ", making the row" } else { "" }).unwrap();
                for note in &resume.notes {
                    writeln!(out, "note {}: {}", note.name, note.message).unwrap();
                }
                assert!(resume.cursor.flush_limit >= resume.start.offset());
                assert_eq!(resume.cursor.watermark, resume.start);
            }
        }
        out.push('\n');
    }
    out
}

#[test]
fn every_rule_has_a_meaning_and_a_remediation() {
    expect_file!["snapshots/server.md"].assert_eq(&rendered(SERVER));
    expect_file!["snapshots/slot.md"].assert_eq(&rendered(SLOT));
    expect_file!["snapshots/positions.md"].assert_eq(&rendered(POSITIONS));
    expect_file!["snapshots/objects.md"].assert_eq(&rendered(OBJECTS));
    expect_file!["snapshots/histories.md"].assert_eq(&rendered(HISTORIES));
}

#[test]
fn a_start_is_never_below_the_slot_nor_above_the_wal() {
    for (what, change) in [SERVER, SLOT, POSITIONS, OBJECTS, HISTORIES].concat() {
        let mut facts = good();
        change(&mut facts);
        if let Ok(Decision::Resume(resume)) = decide(&facts) {
            let start = resume.start.offset();
            assert!(start >= facts.confirmed().unwrap(), "{what}");
            assert!(start <= facts.server.wal_end, "{what}");
        }
    }
}

#[test]
fn setup_asks_nothing_of_what_does_not_exist_yet() {
    let mut facts = good();
    facts.slot = None;
    facts.publication = None;
    facts.table = None;
    facts.schema = SchemaState::Missing;
    assert_eq!(check_objects(&facts), Ok(()));
}

#[test]
fn the_second_check_requires_our_backend_and_an_unmoved_slot() {
    let mut facts = good();
    let Ok(Decision::Resume(resume)) = decide(&facts) else { panic!("good facts do not resume") };
    slot(&mut facts).active_pid = Some(77);
    assert_eq!(check_after_start(facts.slot.as_ref(), 77, &resume), AfterStart::Held);
    let again = |facts: &Facts, pid| {
        assert!(matches!(
            check_after_start(facts.slot.as_ref(), pid, &resume),
            AfterStart::Again { .. }
        ));
    };
    again(&facts, 78);
    slot(&mut facts).active_pid = None;
    assert_eq!(check_after_start(facts.slot.as_ref(), 77, &resume), AfterStart::Held);
    slot(&mut facts).confirmed_flush_lsn = Some(at("0/5001"));
    again(&facts, 77);
    slot(&mut facts).confirmed_flush_lsn = None;
    again(&facts, 77);
    facts.slot = None;
    again(&facts, 77);
}
