//! A small maker of pgoutput messages, and a printer of records.

use crate::{At, Layout, MapError, Mapped, Mapper, OutboxSpec};
use pg_replication::lsn::Lsn;
use pg_replication::pgoutput::{Message, decode};
use postrider_core::event::{PgTime, Position};
use postrider_core::sink::NameRule;
use std::fmt::Write as _;

/// 2024-01-02 03:04:05.5 UTC.
pub(super) const COMMIT_TIME: PgTime =
    PgTime { micros: 1_704_164_645_500_000 - PgTime::UNIX_OFFSET_MICROS };

pub(super) const AT: At = At {
    position: Position { commit_lsn: Lsn::from_wire(0x01A2_B3C8), ordinal: 5 },
    commit_time: COMMIT_TIME,
};

/// A column: name, type OID, type modifier, value.
pub(super) type ColumnSpec<'a> = (&'a str, u32, i32, Option<&'a str>);

pub(super) fn text<'a>(name: &'a str, value: &'a str) -> ColumnSpec<'a> {
    (name, 25, -1, Some(value))
}

pub(super) fn typed<'a>(name: &'a str, oid: u32, value: &'a str) -> ColumnSpec<'a> {
    (name, oid, -1, Some(value))
}

pub(super) fn null(name: &str, oid: u32) -> ColumnSpec<'_> {
    (name, oid, -1, None)
}

pub(super) fn relation(id: u32, schema: &str, table: &str, columns: &[ColumnSpec<'_>]) -> Vec<u8> {
    let mut bytes = vec![b'R'];
    bytes.extend(id.to_be_bytes());
    for name in [schema, table] {
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    bytes.push(b'd');
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (name, oid, modifier, _) in columns {
        bytes.push(0);
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(oid.to_be_bytes());
        bytes.extend(modifier.to_be_bytes());
    }
    bytes
}

pub(super) fn insert(id: u32, columns: &[ColumnSpec<'_>]) -> Vec<u8> {
    let mut bytes = vec![b'I'];
    bytes.extend(id.to_be_bytes());
    bytes.push(b'N');
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (.., value) in columns {
        match value {
            None => bytes.push(b'n'),
            Some(value) => {
                bytes.push(b't');
                bytes.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
                bytes.extend(value.as_bytes());
            }
        }
    }
    bytes
}

/// A rule for names of topics.
pub(super) const TOPICS: NameRule = NameRule {
    allows: |name| {
        let is_legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        (1..=249).contains(&name.len())
            && name.iter().all(is_legal)
            && !matches!(name, b"." | b"..")
    },
    owner: "Kafka",
    words: "1 to 249 of A-Z a-z 0-9 . _ -",
};

/// Describes the layout's table with these columns, then inserts a row of them.
pub(super) fn map_with<R>(
    spec: OutboxSpec,
    columns: &[ColumnSpec<'_>],
    then: impl FnOnce(Result<Option<Mapped<'_>>, MapError>) -> R,
) -> R {
    let table = spec.table.clone().unwrap();
    let mut mapper = Mapper::new(spec).unwrap();
    mapper.set_names(TOPICS);
    let described = relation(7, &table.schema, &table.name, columns);
    let Message::Relation(described) = decode(&described).unwrap() else { unreachable!() };
    if let Err(error) = mapper.relation(&described) {
        return then(Err(error));
    }
    let row = insert(7, columns);
    let Message::Insert(row) = decode(&row).unwrap() else { unreachable!() };
    then(mapper.insert(&row, AT))
}

/// The record of one row, or the error and its hint, printed.
pub(super) fn map(spec: OutboxSpec, columns: &[ColumnSpec<'_>]) -> String {
    map_with(spec, columns, print)
}

pub(super) fn map_layout(layout: Layout, columns: &[ColumnSpec<'_>]) -> String {
    map(OutboxSpec::for_layout(layout), columns)
}

pub(super) fn print(mapped: Result<Option<Mapped<'_>>, MapError>) -> String {
    match mapped {
        Ok(None) => "not ours\n".to_owned(),
        Ok(Some(mapped)) => print_mapped(&mapped),
        Err(error) => {
            let hint = match &error {
                MapError::Poison(poison) => poison.hint(),
                MapError::Unfit(unfit) => unfit.hint(),
                MapError::Inconsistent { .. } => "none".to_owned(),
            };
            let error = error.to_string().replace("published: ", "published:\n       ");
            format!("error: {error}\nhint:  {hint}\n")
        }
    }
}

/// What is wrong with the event, without which event it is.
pub(super) fn problem(error: &MapError) -> String {
    match error {
        MapError::Poison(poison) => poison.problem.to_string(),
        MapError::Unfit(_) | MapError::Inconsistent { .. } => error.to_string(),
    }
}

fn shown(bytes: Option<&[u8]>) -> String {
    bytes.map_or("null".to_owned(), |bytes| format!("\"{}\"", bytes.escape_ascii()))
}

fn print_mapped(mapped: &Mapped<'_>) -> String {
    let mut out = String::new();
    let record = mapped.record();
    let Mapped { aggregate, event_type, event_id, clamped, .. } = mapped;
    writeln!(out, "event     {event_id} {event_type:?}").unwrap();
    writeln!(out, "aggregate {} / {}", aggregate.kind, aggregate.id).unwrap();
    write!(out, "topic     {}", record.topic).unwrap();
    writeln!(out, "{}", record.partition.map_or(String::new(), |p| format!(" / {p}"))).unwrap();
    writeln!(out, "key       {}", shown(record.key)).unwrap();
    writeln!(out, "value     {}", shown(record.value)).unwrap();
    let stamp = record.timestamp_ms.map_or("broker's".to_owned(), |ms| ms.to_string());
    writeln!(out, "timestamp {stamp}{}", if *clamped { " (clamped)" } else { "" }).unwrap();
    for header in record.headers {
        writeln!(out, "header    {} = {}", header.name, shown(header.value)).unwrap();
    }
    out
}
