//! Frames of messages, and the changes that an assembler makes of them.

use crate::capture::{CaptureSpec, CapturedTable, DeltaAssembler, Frames};
use crate::decoder::{Decoder, EventObjects};
use crate::encoding::Encoding;
use crate::names::TableName;
use pg_replication::Frame;
use pg_replication::lsn::Lsn;
use postrider_core::delta;
use postrider_core::event::{HeaderPosition, Histories, HistoryId, Position};
use postrider_core::offset::Offset;
use postrider_core::source::{Batch as _, Change, Unreadable};

/// Messages that arrived together.
pub(super) struct SentFrames(pub(super) Vec<Vec<u8>>);

impl Frames for SentFrames {
    fn frame_at(&self, offset: usize) -> Option<(Frame<'_>, usize)> {
        let data = self.0.get(offset)?;
        let at = Lsn::from_wire(0x100);
        Some((Frame::XLogData { wal_start: at, wal_end: at, data }, offset + 1))
    }
}

/// A column of a table: name, OID of the type, whether it belongs to the replica identity.
pub(super) type ColumnOf = (&'static str, u32, bool);

pub(super) fn begin(commit: u64) -> Vec<u8> {
    let micros = 1_000_000_i64.to_be_bytes();
    [&b"B"[..], &commit.to_be_bytes(), &micros, &7_u32.to_be_bytes()].concat()
}

pub(super) fn commit(commit: u64) -> Vec<u8> {
    let micros = 1_000_000_i64.to_be_bytes();
    [&b"C\0"[..], &commit.to_be_bytes(), &(commit + 0x30).to_be_bytes(), &micros].concat()
}

pub(super) fn relation(id: u32, table: &str, identity: u8, columns: &[ColumnOf]) -> Vec<u8> {
    let mut bytes = [&b"R"[..], &id.to_be_bytes(), b"public\0", table.as_bytes(), b"\0"].concat();
    bytes.push(identity);
    bytes.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    for (name, oid, key) in columns {
        bytes.push(u8::from(*key));
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(oid.to_be_bytes());
        bytes.extend((-1_i32).to_be_bytes());
    }
    bytes
}

/// A value of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Null,
    Text(String),
    Unchanged,
}

fn tuple(tag: u8, values: &[Value], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend(u16::try_from(values.len()).unwrap().to_be_bytes());
    for value in values {
        match value {
            Value::Null => out.push(b'n'),
            Value::Unchanged => out.push(b'u'),
            Value::Text(text) => {
                out.push(b't');
                out.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
                out.extend(text.as_bytes());
            }
        }
    }
}

pub(super) fn insert(id: u32, new: &[Value]) -> Vec<u8> {
    let mut bytes = [&b"I"[..], &id.to_be_bytes()].concat();
    tuple(b'N', new, &mut bytes);
    bytes
}

/// `old`: `K` or `O`, and the values.
pub(super) fn update(id: u32, old: Option<(u8, &[Value])>, new: &[Value]) -> Vec<u8> {
    let mut bytes = [&b"U"[..], &id.to_be_bytes()].concat();
    if let Some((tag, old)) = old {
        tuple(tag, old, &mut bytes);
    }
    tuple(b'N', new, &mut bytes);
    bytes
}

pub(super) fn delete(id: u32, (tag, old): (u8, &[Value])) -> Vec<u8> {
    let mut bytes = [&b"D"[..], &id.to_be_bytes()].concat();
    tuple(tag, old, &mut bytes);
    bytes
}

pub(super) fn truncate(ids: &[u32]) -> Vec<u8> {
    let mut bytes = vec![b'T'];
    bytes.extend(u32::try_from(ids.len()).unwrap().to_be_bytes());
    bytes.push(0);
    bytes.extend(ids.iter().flat_map(|id| id.to_be_bytes()));
    bytes
}

#[expect(clippy::needless_pass_by_value, reason = "so that a test gives a number or a text")]
pub(super) fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

/// The tables of schema `public`, with these limits.
pub(super) fn spec(tables: &[&str], rows: u32, bytes: usize) -> CaptureSpec {
    let table =
        |name: &&str| CapturedTable { name: TableName::new("public", *name), columns: None };
    CaptureSpec {
        tables: tables.iter().map(table).collect(),
        inline_threshold_rows: rows,
        chunk_bytes: bytes,
    }
}

/// The history of all positions.
const HISTORY: HistoryId = HistoryId(0xABC);

pub(super) fn assembler(spec: &CaptureSpec) -> DeltaAssembler {
    let histories = Histories::new(vec![(Offset::ZERO, HISTORY)]).unwrap();
    let decoder = Decoder::new(EventObjects::default(), None, Encoding::UTF8);
    DeltaAssembler::new(spec.clone(), vec![None; spec.tables.len()], histories, decoder)
}

/// An event of the table of documents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Event {
    pub(super) position: Position,
    pub(super) aggregate_type: String,
    pub(super) aggregate_id: String,
    pub(super) document: String,
}

/// Everything that batches become: the events, and the number of changes of each transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Made {
    pub(super) events: Vec<Event>,
    pub(super) changes: Vec<u64>,
}

/// Reads batches as a pipeline does, which asks for some places more than once.
pub(super) fn read(
    assembler: &mut DeltaAssembler,
    batches: &[SentFrames],
    rng: &mut fastrand::Rng,
) -> Result<Made, Unreadable> {
    let mut made = Made::default();
    let mut open: Option<Position> = None;
    for sent in batches {
        assembler.begin_batch();
        let mut place = 0;
        loop {
            let mut batch = assembler.batch(sent);
            if rng.u8(..4) == 0 {
                let once = format!("{:?}", batch.change_at(place)?);
                assert_eq!(once, format!("{:?}", batch.change_at(place)?));
            }
            let Some((change, next)) = batch.change_at(place)? else { break };
            match change {
                Change::Begin { commit, .. } => {
                    assert_eq!(open.replace(Position { commit, ordinal: 0 }), None);
                }
                Change::Row(row) => {
                    let position = open.expect("a transaction");
                    let of =
                        |at: usize| std::str::from_utf8(row.text(at).unwrap()).unwrap().to_owned();
                    let id = HeaderPosition { history: HISTORY, position }.to_string();
                    assert_eq!((of(0), of(3)), (id, "table_delta".to_owned()));
                    let (aggregate_type, aggregate_id) = (of(1), of(2));
                    let begins = of(4).contains("\"claim_check\"");
                    let tables = [delta::TABLE_ID, delta::HEADER_TABLE_ID];
                    assert_eq!(row.table, tables[usize::from(begins)]);
                    made.events.push(Event {
                        position,
                        aggregate_type,
                        aggregate_id,
                        document: of(4),
                    });
                }
                Change::Commit { commit, .. } => {
                    let ended = open.take().expect("a transaction");
                    assert_eq!(ended.commit, commit);
                    made.changes.push(ended.ordinal);
                }
                Change::Table(table) => assert_eq!(table, delta::table(table.id).as_table()),
                Change::Collected | Change::Other | Change::Nothing => {}
                Change::Message(_)
                | Change::Updated(_)
                | Change::Heartbeat(_)
                | Change::Blocked => {
                    panic!("{change:?}")
                }
            }
            let counts = matches!(change, Change::Row(_) | Change::Collected | Change::Other);
            if let Some(position) = open.as_mut().filter(|_| counts) {
                position.ordinal += 1;
            }
            place = next;
        }
    }
    Ok(made)
}

/// Divides messages into batches of random sizes.
pub(super) fn batches(messages: &[Vec<u8>], rng: &mut fastrand::Rng) -> Vec<SentFrames> {
    let mut rest = messages;
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let (batch, after) = rest.split_at(rng.usize(1..=rest.len().min(40)));
        batches.push(SentFrames(batch.to_vec()));
        rest = after;
    }
    batches
}
