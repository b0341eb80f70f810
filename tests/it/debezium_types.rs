//! Every column type in every place of a record, against what Debezium's outbox event router was seen to write.
//!
//! `tests/debezium/types.tsv` has a line a value: its type, its literal, and what Debezium made of it as key and value
//! (`text`, by `StringConverter`), as a header (`SimpleHeaderConverter`), as a member of the envelope (`JsonConverter`
//! without schemas) and as a value by `ByteArrayConverter`. `scripts/record-debezium` writes it anew from a running
//! Debezium (`record`). Ours is what the mapper makes of the rows that each server version sends.

mod record;

use crate::server::{Client, Database, Version};
use pg_replication::lsn::Lsn;
use postrider::event::Position;
use postrider::outbox::{At, Extra, Layout, Mapper, OutboxSpec, Placement, TableName};
use postrider::postgres::{Decoder, Encoding, EventObjects, Frame};
use postrider::source::Change;
use postrider::timestamp::Timestamp;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What the tables need.
const PREPARE: &str = "create extension hstore; create extension citext; \
    create type mood as enum ('happy', 'sad'); create type pair as (n int, t text)";

/// No record came: Debezium can't read the type, or the converter does not take it.
const NOTHING: &str = "-";
/// The text is the identity of a Java object, another one each time.
const IDENTITY: &str = "identity";

/// What stands in a line behind type and literal.
const PLACES: [&str; 4] = ["text", "header", "member", "bytes"];

/// Where we write something else than Debezium, on purpose: type, literal (none: all of them), places, and why. What is
/// not here is the same, and what is here is not.
const DIFFERENT: &[(&str, &str, &[&str], &str)] = &[
    ("numeric", "", &["text"], "the number, where Debezium has an object's identity, or null"),
    ("numeric[]", "{1.5,100}", &["text"], "the numbers, where Debezium has objects' identities"),
    ("numeric(10,2)", "NaN", &["text"], "as a value null is a deletion"),
    ("numeric[]", "{NaN}", ALL, "the array, where Debezium drops it whole"),
    ("bytea", "", &["text"], "as a key; as a value the bytes are sent, as by ByteArrayConverter"),
    ("bytea[]", "", &["text"], "the bytes, where Debezium has objects' identities"),
    ("bit(3)", "", &["text"], AN_IDENTITY),
    ("bit(8)", "", &["text"], AN_IDENTITY),
    ("bit(9)", "", &["text"], AN_IDENTITY),
    ("bit(16)", "", &["text"], AN_IDENTITY),
    ("bit varying(5)", "", &["text"], AN_IDENTITY),
    ("varbit", "", &["text"], AN_IDENTITY),
    ("varbit(20)", "", &["text"], AN_IDENTITY),
    ("point", "", &["text"], AN_IDENTITY),
    ("point", "(Infinity,0)", &["header", "member"], "an infinite number is none in JSON"),
    ("line", "", ALL, GEOMETRY),
    ("box", "", ALL, GEOMETRY),
    ("polygon", "", ALL, GEOMETRY),
    ("circle", "", ALL, GEOMETRY),
    ("lseg", "", ALL, GEOMETRY),
    ("path", "", ALL, GEOMETRY),
    ("hstore", "", ALL, "the type has no number of its own; Debezium's order of keys is Java's"),
    ("hstore[]", "", ALL, OF_UNKNOWN_ELEMENTS),
    ("mood[]", "", ALL, OF_UNKNOWN_ELEMENTS),
    ("integer[]", "{{1,2},{3,4}}", ALL, "Debezium has nulls for what has two dimensions"),
    ("date[]", "{infinity}", ALL, "another number than for a date alone"),
    ("time[]", "", ALL, "Debezium drops what is less than a millisecond"),
    ("name", "", ALL, UNREAD),
    ("name[]", "", ALL, UNREAD),
    ("int4multirange", "", ALL, UNREAD),
    ("tsquery", "", ALL, UNREAD),
    ("pg_lsn", "", ALL, UNREAD),
    ("pair", "", ALL, UNREAD),
    ("interval[]", "", ALL, UNREAD),
    ("money[]", "", ALL, UNREAD),
    ("point[]", "", ALL, UNREAD),
    ("xml[]", "", ALL, UNREAD),
    ("bit(1)[]", "", ALL, UNREAD),
    ("bit(3)[]", "", ALL, UNREAD),
];

const ALL: &[&str] = &["text", "header", "member"];
const AN_IDENTITY: &str = "the text, where Debezium has an object's identity";
const GEOMETRY: &str = "the text, where Debezium has well-known binary";
const OF_UNKNOWN_ELEMENTS: &str = "the text: the type of the elements has no number of its own";
const UNREAD: &str = "the text, where Debezium has null, or no record at all";

/// One value of a type.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Value {
    of_type: String,
    literal: String,
    /// By place; empty before it was recorded.
    recorded: Vec<String>,
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/debezium/types.tsv")
}

fn values() -> Vec<Value> {
    let text = fs::read_to_string(table()).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.split('\t').map(str::to_owned);
            let mut next = || fields.next().unwrap_or_default();
            let (of_type, literal) = (next(), next());
            Value { of_type, literal, recorded: fields.collect() }
        })
        .collect()
}

/// A table for each type, `k_0` and so on, whose id, key and payload are of it; by type.
fn tables(values: &[Value]) -> BTreeMap<&str, String> {
    let mut tables = BTreeMap::new();
    for value in values {
        let number = tables.len();
        tables.entry(value.of_type.as_str()).or_insert_with(|| format!("k_{number}"));
    }
    tables
}

async fn prepare(sql: &Client, values: &[Value]) {
    sql.batch(PREPARE).await;
    for (of_type, name) in tables(values) {
        sql.batch(&format!(
            "create table {name} (n int, aggregatetype text, id {of_type}, aggregateid {of_type}, payload {of_type})"
        ))
        .await;
    }
    sql.batch("create publication everything for all tables").await;
}

/// One row a value, numbered as they are.
async fn insert(sql: &Client, values: &[Value]) {
    let tables = tables(values);
    for (n, value) in values.iter().enumerate() {
        let table = &tables[value.of_type.as_str()];
        // Unknown literals take the column's type without a cast of a cast's own.
        let literal = format!("$value${}$value$", value.literal);
        sql.batch(&format!(
            "insert into {table} values ({n}, 't', {literal}, {literal}, {literal})"
        ))
        .await;
    }
}

/// Bytes as the file has them: text in JSON's quotes, or in hex where it is none.
fn quoted(bytes: Option<&[u8]>) -> String {
    match bytes.map(std::str::from_utf8) {
        None => "null".to_owned(),
        Some(Ok(text)) => serde_json::to_string(text).unwrap(),
        Some(Err(_)) => hex(bytes.unwrap_or_default()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("\\x".to_owned(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// What we make of a row in one kind of record: key, value, header `id`, and the placed header where there is one.
struct Ours {
    key: String,
    value: String,
    bytes: String,
    headers: Vec<String>,
}

/// Maps one row with the id placed once more.
fn map(table: &str, messages: &[Vec<u8>], placement: Placement) -> Vec<(usize, Ours)> {
    let mut spec = OutboxSpec::for_layout(Layout::Debezium);
    spec.table = Some(TableName { schema: "public".into(), name: table.into() });
    spec.extra.push(Extra {
        column: "n".into(),
        placement: Placement::Header("n".into()),
        may_lack: false,
    });
    spec.extra.push(Extra { column: "aggregateid".into(), placement, may_lack: false });
    let mut mapper = Mapper::new(spec).unwrap();
    let at = At { position: Position::default(), commit_time: Timestamp { unix_micros: 0 } };
    let mut all = Vec::new();
    // No type of the table has to be looked up.
    let mut decoder = Decoder::new(EventObjects::default(), None, Encoding::UTF8);
    for data in messages {
        let frame = Frame::XLogData { wal_start: Lsn::ZERO, wal_end: Lsn::ZERO, data };
        match decoder.change(&frame).unwrap() {
            Change::Table(table) => mapper.table(&table).unwrap(),
            Change::Row(row) => {
                let Some(event) = mapper.row(&row, at).unwrap() else { continue };
                let record = event.record();
                let n = record.headers.iter().find(|header| header.name == "n").unwrap();
                let n = std::str::from_utf8(n.value.unwrap()).unwrap().parse().unwrap();
                let others = record.headers.iter().filter(|header| header.name != "n");
                let ours = Ours {
                    key: quoted(record.key),
                    value: quoted(record.value),
                    bytes: record.value.map_or_else(|| "null".to_owned(), hex),
                    headers: others.map(|header| quoted(header.value)).collect(),
                };
                all.push((n, ours));
            }
            Change::Begin { .. }
            | Change::Commit { .. }
            | Change::Updated(_)
            | Change::Message(_)
            | Change::Collected
            | Change::Other
            | Change::Heartbeat(_)
            | Change::Nothing
            | Change::Blocked => {}
        }
    }
    all
}

/// By place, in the order of [`PLACES`], what we make of each value on a server.
async fn ours(version: Version, values: &[Value]) -> Vec<[String; 4]> {
    let database = Database::create(version, "dbztypes").await;
    let sql = database.connect().await;
    prepare(&sql, values).await;
    let slot = &database.name;
    sql.text(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')::text"))
        .await;
    // As the relay pins them: the text of every value depends on them.
    for setting in
        ["datestyle = ISO", "timezone = UTC", "intervalstyle = postgres", "extra_float_digits = 1"]
    {
        sql.batch(&format!("set {setting}")).await;
    }
    insert(&sql, values).await;
    let peek = format!(
        "select data from pg_logical_slot_peek_binary_changes('{slot}', null, null, \
         'proto_version', '1', 'publication_names', 'everything')"
    );
    let rows = sql.query(&peek, &[]).await.unwrap();
    let messages: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
    let mut all = vec![<[String; 4]>::default(); values.len()];
    for table in tables(values).values() {
        for (n, ours) in map(table, &messages, Placement::Header("again".into())) {
            let [id, again] = ours.headers.as_slice() else { panic!("{:?}", ours.headers) };
            assert_eq!(id, again, "header id and a placed one");
            let of_bytes = values[n].of_type == "bytea";
            assert!(of_bytes || ours.key == ours.value, "key {} value {}", ours.key, ours.value);
            all[n][0].clone_from(&ours.key);
            all[n][1].clone_from(id);
            all[n][3] = if of_bytes { ours.bytes } else { NOTHING.to_owned() };
        }
        for (n, ours) in map(table, &messages, Placement::Envelope("again".into())) {
            let value: String = serde_json::from_str(&ours.value).unwrap();
            serde_json::from_str::<serde_json::Value>(&value).expect("the envelope is JSON");
            all[n][2] =
                member(&value).unwrap_or_else(|| panic!("payload and member differ: {value}"));
        }
    }
    all
}

/// Of `{"payload":M,"again":M}` the M.
fn member(envelope: &str) -> Option<String> {
    let inner = envelope.strip_prefix("{\"payload\":")?.strip_suffix('}')?;
    let length = inner.len().checked_sub(",\"again\":".len())? / 2;
    let (payload, again) = inner.split_at_checked(length)?;
    (again.strip_prefix(",\"again\":")? == payload).then(|| payload.to_owned())
}

#[tokio::test]
async fn every_column_type_is_written_as_debezium_writes_it() {
    if let Some(connect) = std::env::var_os("POSTRIDER_RECORD_DEBEZIUM") {
        record::record(Path::new(&connect)).await;
    }
    let values = values();
    for version in Version::ALL {
        let ours = ours(version, &values).await;
        let mut wrong = String::new();
        for (value, ours) in values.iter().zip(&ours) {
            let places = PLACES.iter().zip(&value.recorded).zip(ours);
            // The router passes other types to `ByteArrayConverter`, which refuses most.
            let places =
                places.filter(|((place, _), _)| **place != "bytes" || value.of_type == "bytea");
            for ((place, recorded), ours) in places {
                let is_different = DIFFERENT.iter().any(|(of_type, literal, places, _)| {
                    *of_type == value.of_type
                        && (literal.is_empty() || *literal == value.literal)
                        && places.contains(place)
                });
                let is_same = recorded == ours;
                if is_same == is_different {
                    let Value { of_type, literal, .. } = value;
                    writeln!(
                        wrong,
                        "{of_type} {literal} {place}: Debezium {recorded}, here {ours}"
                    )
                    .unwrap();
                }
            }
        }
        assert!(wrong.is_empty(), "PostgreSQL {}:\n{wrong}", version.major());
    }
}
