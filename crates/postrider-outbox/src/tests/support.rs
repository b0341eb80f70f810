//! Tables and rows, and a printer of records.

use crate::{At, EventKept, Layout, MapError, Mapped, Mapper, OutboxSpec};
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::row::{Column, Kind, Table, TableId, ValueType};
use postrider_core::row_buffer::RowBuffer;
use postrider_core::sink::NameRule;
use postrider_core::timestamp::Timestamp;
use std::fmt::Write as _;

/// 2024-01-02 03:04:05.5 UTC.
pub(super) const COMMIT_TIME: Timestamp = Timestamp { unix_micros: 1_704_164_645_500_000 };

pub(super) const AT: At = At {
    position: Position { commit: Offset::new(0x01A2_B3C8), ordinal: 5 },
    commit_time: COMMIT_TIME,
};

pub(super) const BYTEA: ValueType = ValueType::of(Kind::Bytea);
pub(super) const INT: ValueType = ValueType::of(Kind::Int);
pub(super) const TEXT: ValueType = ValueType::of(Kind::Text);
pub(super) const JSON: ValueType = ValueType::of(Kind::Json);
pub(super) const UUID: ValueType = ValueType::of(Kind::Uuid);
pub(super) const DATE: ValueType = ValueType::of(Kind::Date);
pub(super) const TIMESTAMP: ValueType = ValueType::of(Kind::Timestamp { digits: 6 });
pub(super) const TIMESTAMPTZ: ValueType = ValueType::of(Kind::Timestamptz { digits: 6 });
/// A type that the source does not know.
pub(super) const UNKNOWN: ValueType = ValueType { kind: Kind::Other, array: false, known: false };

/// A column: name, type, value.
pub(super) type ColumnSpec<'a> = (&'a str, ValueType, Option<&'a str>);

pub(super) fn text<'a>(name: &'a str, value: &'a str) -> ColumnSpec<'a> {
    (name, TEXT, Some(value))
}

pub(super) fn typed<'a>(name: &'a str, of: ValueType, value: &'a str) -> ColumnSpec<'a> {
    (name, of, Some(value))
}

pub(super) fn null(name: &str, of: ValueType) -> ColumnSpec<'_> {
    (name, of, None)
}

/// Describes a table with these columns to the mapper.
pub(super) fn describe(
    mapper: &mut Mapper,
    id: u32,
    (schema, name): (&str, &str),
    columns: &[ColumnSpec<'_>],
) -> Result<(), MapError> {
    let column = |(name, of, _): &ColumnSpec<'_>| Column { name: (*name).to_owned(), of: *of };
    let columns: Vec<Column> = columns.iter().map(column).collect();
    mapper.table(&Table { id: TableId(id), schema, name, columns: &columns })
}

/// One row with these values.
pub(super) fn row(id: u32, columns: &[ColumnSpec<'_>]) -> RowBuffer {
    let mut rows = RowBuffer::default();
    let mut row = rows.push_row(TableId(id));
    for (.., value) in columns {
        row.push_cell(value.map(str::as_bytes));
    }
    rows
}

/// Maps the row of a buffer that has one.
pub(super) fn map_row<'a>(
    mapper: &'a mut Mapper,
    rows: &'a RowBuffer,
) -> Result<Option<Mapped<'a>>, MapError> {
    mapper.row(&rows.row(0).unwrap(), AT)
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
    if let Err(error) = describe(&mut mapper, 7, (&table.schema, &table.name), columns) {
        return then(Err(error));
    }
    then(map_row(&mut mapper, &row(7, columns)))
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
                MapError::Poison(poison) => poison.hint(EventKept::Log),
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
