//! Rows as real servers sent them, through decoder and mapper, against a snapshot for each layout and version.

use super::support::{COMMIT_TIME, change, print, reader};
use expect_test::expect_file;
use postrider_core::event::Position;
use postrider_core::source::Change;
use postrider_outbox::{At, Extra, Layout, OutboxSpec, Placement, Role, TableName};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const VERSIONS: [&str; 4] = ["pg15", "pg16", "pg17", "pg18"];

fn recording(version: &str, name: &str) -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/wal");
    root.join(version).join(name).with_extension("wal")
}

fn unhex(hex: &str) -> Vec<u8> {
    let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(byte).collect()
}

/// Every record of a recording. Positions count from 0/0: the recorded ones change with each recording.
fn replay(version: &str, name: &str, spec: &OutboxSpec) -> String {
    let (mut decoder, mut mapper) = reader(spec);
    let mut out = String::new();
    let mut at = At { position: Position::default(), commit_time: COMMIT_TIME };
    for line in std::fs::read_to_string(recording(version, name)).unwrap().lines() {
        let bytes = unhex(line.split(' ').nth(2).unwrap());
        if change(&mut decoder, &bytes).unwrap() == Change::Blocked {
            // As if the catalog did not have the types any more.
            decoder.add_types(&[]);
        }
        let record = match change(&mut decoder, &bytes).unwrap() {
            Change::Table(table) => {
                if let Err(error) = mapper.table(&table) {
                    return out + &print(Err(error));
                }
                continue;
            }
            Change::Row(row) => mapper.row(&row, at),
            Change::Message(message) => mapper.message(&message, at),
            Change::Blocked => panic!("blocked again"),
            Change::Begin { .. }
            | Change::Commit { .. }
            | Change::Updated(_)
            | Change::Other
            | Change::Heartbeat(_)
            | Change::Collected
            | Change::Nothing => continue,
        };
        writeln!(out, "{}", print(record)).unwrap();
        at.position.ordinal += 1;
    }
    out
}

/// All versions must agree, so there is one snapshot.
fn check(name: &str, spec: &OutboxSpec) {
    for version in VERSIONS {
        let records = format!("tests/wal/records/{name}.txt");
        let snapshot = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(records);
        expect_file![snapshot].assert_eq(&replay(version, name, spec));
    }
}

#[test]
fn each_layout_gives_the_same_records_on_every_version() {
    for layout in Layout::ALL {
        check(&format!("layout_{}", layout.name()), &OutboxSpec::for_layout(*layout));
    }
}

#[test]
fn columns_are_found_by_name_after_each_change_of_the_table() {
    let spec = OutboxSpec::for_layout(Layout::Postrider);
    for name in ["added_column", "replaced_table", "partitioned", "copy_and_delete", "null_payload"]
    {
        check(name, &spec);
    }
}

#[test]
fn a_dropped_or_renamed_column_is_unfit_until_the_configuration_says_otherwise() {
    let mut spec = OutboxSpec::for_layout(Layout::Postrider);
    check("dropped_column", &spec);
    check("renamed_column", &spec);
    spec.columns = vec![(Role::Headers, String::new())];
    assert!(!replay("pg15", "dropped_column", &spec).contains("error"));
}

#[test]
fn rows_and_transactional_messages_form_one_stream() {
    let mut spec = OutboxSpec::for_layout(Layout::Postrider);
    spec.message_prefix = Some("postrider".to_owned());
    check("logical_message", &spec);
}

#[test]
fn headers_of_every_column_type_are_as_debezium_writes_them() {
    let mut spec = OutboxSpec::for_layout(Layout::Debezium);
    spec.table = Some(TableName { schema: "public".into(), name: "outbox".into() });
    let columns = [
        "flag", "whole", "day", "clock", "clock_ms", "zoned", "zoned_ms", "plain", "plain_ms",
        "span", "ratio", "ratio4", "price", "amount", "mood", "name", "tags", "payload",
    ];
    spec.extra = columns.map(header).to_vec();
    check("types", &spec);
}

fn header(column: &str) -> Extra {
    Extra {
        column: column.to_owned(),
        placement: Placement::Header(column.to_owned()),
        may_lack: false,
    }
}
