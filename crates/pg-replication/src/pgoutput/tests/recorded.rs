//! Every recording of `tests/wal` (made by `scripts/record`): compared with its snapshot, truncated at every byte, and
//! with every byte flipped.

use crate::pgoutput::{Column, Message, OldTuple, Tuple, decode};
use expect_test::expect_file;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const VERSIONS: [&str; 4] = ["pg15", "pg16", "pg17", "pg18"];

/// Every recording, in order.
fn recordings() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/wal");
    let files = VERSIONS.iter().flat_map(|version| std::fs::read_dir(root.join(version)).unwrap());
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
    paths.sort();
    paths
}

/// A recording's messages, each with the LSN it was found at.
fn messages(path: &Path) -> Vec<(String, Vec<u8>)> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let mut parts = line.split(' ');
        let (lsn, hex) = (parts.next().unwrap().to_owned(), parts.nth(1).unwrap());
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        (lsn, hex.as_bytes().chunks(2).map(byte).collect())
    };
    text.lines().map(line).collect()
}

#[test]
fn each_scenario_was_recorded_on_each_version() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/wal");
    for scenario in std::fs::read_dir(root.join("scenarios")).unwrap() {
        let name = scenario.unwrap().path().file_stem().unwrap().to_owned();
        for version in VERSIONS {
            let recording = root.join(version).join(&name).with_extension("wal");
            assert!(recording.exists(), "{} is missing: scripts/record", recording.display());
        }
    }
}

#[test]
fn recordings_decode_to_their_snapshots() {
    for path in recordings() {
        let mut out = String::new();
        for (lsn, bytes) in messages(&path) {
            writeln!(out, "{lsn} {}", print(&decode(&bytes).unwrap())).unwrap();
        }
        expect_file![path.with_extension("snap")].assert_eq(&out);
    }
}

#[test]
fn every_recording_has_a_snapshot_and_every_snapshot_a_recording() {
    for path in recordings() {
        assert!(path.with_extension("snap").exists(), "{}", path.display());
    }
    for directory in VERSIONS {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("tests/wal")
            .join(directory);
        for entry in std::fs::read_dir(root).unwrap() {
            assert!(entry.unwrap().path().with_extension("wal").exists());
        }
    }
}

#[test]
fn a_truncated_message_is_an_error() {
    for path in recordings() {
        for (lsn, bytes) in messages(&path) {
            for length in 0..bytes.len() {
                let truncated = decode(&bytes[..length]);
                assert!(truncated.is_err(), "{} {lsn} truncated to {length}", path.display());
                assert!(truncated.unwrap_err().offset <= length);
            }
        }
    }
}

#[test]
fn a_message_with_a_byte_too_many_is_an_error() {
    for path in recordings() {
        for (_, mut bytes) in messages(&path) {
            bytes.push(0);
            let error = decode(&bytes).unwrap_err();
            assert_eq!(error.offset, bytes.len() - 1);
        }
    }
}

#[test]
fn a_message_with_any_byte_flipped_never_panics() {
    for path in recordings() {
        for (_, mut bytes) in messages(&path) {
            // More bytes of a long value add nothing.
            for at in 0..bytes.len().min(600) {
                for flip in [0xFF, 0x80, 0x01] {
                    bytes[at] ^= flip;
                    if let Ok(message) = decode(&bytes) {
                        print(&message);
                    }
                    bytes[at] ^= flip;
                }
            }
        }
    }
}

/// One message on one line; long values by their length.
fn print(message: &Message<'_>) -> String {
    match message {
        Message::Begin(m) => {
            format!("begin commit={} xid={} time={}", m.final_lsn, m.xid, m.commit_time.micros)
        }
        Message::Commit(m) => {
            format!("commit {} end={} time={}", m.commit_lsn, m.end_lsn, m.commit_time.micros)
        }
        Message::Origin(m) => format!("origin {:?} commit={}", m.name, m.commit_lsn),
        Message::Relation(m) => {
            let identity = char::from(m.replica_identity);
            let mut out = format!("relation {} {}.{} {identity}", m.id, m.schema, m.name);
            assert_eq!(m.columns.iter().count(), m.columns.len());
            for column in m.columns.iter() {
                let key = if column.key { "*" } else { "" };
                let type_modifier = column.type_modifier;
                write!(out, " {}{key}:{}/{type_modifier}", column.name, column.type_oid).unwrap();
            }
            out
        }
        Message::Type(m) => format!("type {} {:?}.{}", m.id, m.schema, m.name),
        Message::Insert(m) => format!("insert {}{}", m.relation_id, tuple(m.new)),
        Message::Update(m) => {
            let old = m.old.map_or(String::new(), |old| format!("{} ->", old_tuple(old)));
            format!("update {}{old}{}", m.relation_id, tuple(m.new))
        }
        Message::Delete(m) => format!("delete {}{}", m.relation_id, old_tuple(m.old)),
        Message::Truncate(m) => {
            let (cascade, restart) = (m.cascade, m.restart_identity);
            format!("truncate {:?} cascade={cascade} restart_identity={restart}", m.relations)
        }
        Message::Message(m) => {
            let content = m.content.escape_ascii();
            let transactional = m.transactional;
            format!("message {:?} transactional={transactional} {} {content}", m.prefix, m.lsn)
        }
    }
}

fn old_tuple(old: OldTuple<'_>) -> String {
    match old {
        OldTuple::Key(row) => format!(" key{}", tuple(row)),
        OldTuple::Whole(row) => format!(" whole{}", tuple(row)),
    }
}

fn tuple(tuple: Tuple<'_>) -> String {
    let mut out = String::new();
    assert_eq!(tuple.columns().count(), tuple.len());
    assert_eq!(tuple.cells().count(), tuple.len());
    for column in tuple.columns() {
        match column {
            Column::Null => out.push_str(" NULL"),
            Column::Unchanged => out.push_str(" unchanged"),
            Column::Binary(value) => write!(out, " binary({} B)", value.len()).unwrap(),
            Column::Text(value) if value.len() > 200 => {
                write!(out, " text({} B)", value.len()).unwrap();
            }
            Column::Text(value) => write!(out, " '{}'", value.escape_ascii()).unwrap(),
        }
    }
    out
}
