//! Frames of messages, a decoder for the objects of a specification, and a printer of records.

use crate::decoder::{Decoder, EventObjects};
use crate::encoding::Encoding;
use crate::names::TableName;
use pg_replication::Frame;
use pg_replication::lsn::Lsn;
use postrider_core::event::Position;
use postrider_core::offset::Offset;
use postrider_core::source::{Change, Unreadable};
use postrider_core::timestamp::Timestamp;
use postrider_outbox::{At, EventKept, MapError, Mapped, Mapper, OutboxSpec};
use std::fmt::Write as _;

/// 2024-01-02 03:04:05.5 UTC.
pub(super) const COMMIT_TIME: Timestamp = Timestamp { unix_micros: 1_704_164_645_500_000 };

pub(super) const AT: At = At {
    position: Position { commit: Offset::new(0x01A2_B3C8), ordinal: 5 },
    commit_time: COMMIT_TIME,
};

/// A decoder and a mapper, as a pipeline of this specification has them.
pub(super) fn reader(spec: &OutboxSpec) -> (Decoder, Mapper) {
    let mapper = Mapper::new(spec.clone()).unwrap();
    let table = spec.table.as_ref().map(|table| TableName::new(&table.schema, &table.name));
    let objects = EventObjects {
        table,
        columns: mapper.columns().map(str::to_owned).collect(),
        message_prefix: spec.message_prefix.clone(),
    };
    (Decoder::new(objects, None, Encoding::UTF8), mapper)
}

/// The frame of a message.
pub(super) fn frame(data: &[u8]) -> Frame<'_> {
    Frame::XLogData { wal_start: Lsn::from_wire(0x100), wal_end: Lsn::from_wire(0x100), data }
}

/// The change that a message is.
pub(super) fn change<'a>(
    decoder: &'a mut Decoder,
    data: &'a [u8],
) -> Result<Change<'a>, Unreadable> {
    decoder.change(&frame(data))
}

/// A Relation message: OID, schema, name, and name, type OID and modifier of each column.
pub(super) fn relation(
    id: u32,
    schema: &str,
    table: &str,
    columns: &[(&str, u32, i32)],
) -> Vec<u8> {
    let mut bytes = vec![b'R'];
    bytes.extend(id.to_be_bytes());
    for name in [schema, table] {
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    bytes.push(b'd');
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (name, oid, modifier) in columns {
        bytes.push(0);
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(oid.to_be_bytes());
        bytes.extend(modifier.to_be_bytes());
    }
    bytes
}

/// What a column of a row message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent<'a> {
    Null,
    Text(&'a [u8]),
    Binary(&'a [u8]),
    Unchanged,
}

/// An Insert message (`I`) or an Update message (`U`) without an old row.
pub(super) fn row(tag: u8, id: u32, columns: &[Sent<'_>]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend(id.to_be_bytes());
    bytes.push(b'N');
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for column in columns {
        let (kind, value) = match *column {
            Sent::Null => (b'n', None),
            Sent::Unchanged => (b'u', None),
            Sent::Text(value) => (b't', Some(value)),
            Sent::Binary(value) => (b'b', Some(value)),
        };
        bytes.push(kind);
        if let Some(value) = value {
            bytes.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            bytes.extend(value);
        }
    }
    bytes
}

/// A logical message.
pub(super) fn message(transactional: bool, prefix: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![b'M', u8::from(transactional)];
    bytes.extend(0_u64.to_be_bytes());
    bytes.extend(prefix.as_bytes());
    bytes.push(0);
    bytes.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
    bytes.extend(content);
    bytes
}

/// A Type message.
pub(super) fn type_name(id: u32, schema: &str, name: &str) -> Vec<u8> {
    let mut bytes = vec![b'Y'];
    bytes.extend(id.to_be_bytes());
    for name in [schema, name] {
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    bytes
}

/// The record, or the error and its hint, printed as the mapper's own tests print them.
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
