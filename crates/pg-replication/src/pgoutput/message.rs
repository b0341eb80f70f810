//! The messages of protocol version 1 and their formats (manual, 55.9).

use super::{DecodeError, Tag};
use crate::lsn::Lsn;
use crate::timestamp::PgTime;
use std::fmt;

/// One message.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// The start of a transaction. Only committed transactions are sent.
    Begin(Begin),
    /// The end of the transaction.
    Commit(Commit),
    /// The transaction came from another server by replication.
    Origin(Origin<'a>),
    /// The columns of a table, sent before its first row and after every change of the table.
    Relation(Relation<'a>),
    /// The name of a type that is not built in.
    Type(TypeName<'a>),
    /// A new row.
    Insert(Insert<'a>),
    /// A changed row.
    Update(Update<'a>),
    /// A deleted row.
    Delete(Delete<'a>),
    /// Truncated tables.
    Truncate(Truncate<'a>),
    /// A logical message (`pg_logical_emit_message`).
    Message(LogicalMessage<'a>),
}

/// `B`: Begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Start of the transaction's commit record. It identifies the transaction.
    pub final_lsn: Lsn,
    /// Time of the commit. It may be lower than that of an earlier transaction.
    pub commit_time: PgTime,
    /// The transaction id, the lower 32 bits of it.
    pub xid: u32,
}

/// `C`: Commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Start of the commit record, as in [`Begin::final_lsn`].
    pub commit_lsn: Lsn,
    /// First byte after the commit record: the position to confirm, see
    /// [`Watermark::from_commit_end`](crate::lsn::Watermark::from_commit_end).
    pub end_lsn: Lsn,
    /// Time of the commit.
    pub commit_time: PgTime,
}

/// `O`: Origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin<'a> {
    /// The commit LSN on the origin server.
    pub commit_lsn: Lsn,
    /// The origin's name.
    pub name: &'a str,
}

/// `R`: Relation.
#[derive(Clone, Copy, Debug)]
pub struct Relation<'a> {
    /// The table's OID, by which later messages refer to it.
    pub id: u32,
    /// The table's schema; empty for `pg_catalog`.
    pub schema: &'a str,
    /// The table's name.
    pub name: &'a str,
    /// `pg_class.relreplident`: `d`, `n`, `f` or `i`.
    pub replica_identity: u8,
    /// The columns.
    pub columns: RelationColumns<'a>,
}

/// The columns of a relation. They were checked when the message was decoded, and are parsed again on each iteration.
#[derive(Clone, Copy)]
pub struct RelationColumns<'a> {
    count: u16,
    reader: Reader<'a>,
}

/// One column of a relation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelationColumn<'a> {
    /// Whether the column belongs to the replica identity.
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// OID of the column's type; for a domain, that of the domain.
    pub type_oid: u32,
    /// `pg_attribute.atttypmod`, −1 for none.
    pub type_modifier: i32,
}

/// `Y`: Type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeName<'a> {
    /// OID of the type.
    pub id: u32,
    /// Its schema; empty for `pg_catalog`.
    pub schema: &'a str,
    /// The type's name; for a domain, that of the base type (measured on 15 and 18).
    pub name: &'a str,
}

/// `I`: Insert.
#[derive(Clone, Copy, Debug)]
pub struct Insert<'a> {
    /// The relation's [`Relation::id`].
    pub relation_id: u32,
    /// The row.
    pub new: Tuple<'a>,
}

/// The old row of an [`Update`] or a [`Delete`].
#[derive(Clone, Copy, Debug)]
pub enum OldTuple<'a> {
    /// `K`: the replica identity's columns, the others NULL.
    Key(Tuple<'a>),
    /// `O`: the whole row, with `REPLICA IDENTITY FULL`.
    Whole(Tuple<'a>),
}

/// `U`: Update.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The relation's [`Relation::id`].
    pub relation_id: u32,
    /// The row before the change, if the replica identity requires it.
    pub old: Option<OldTuple<'a>>,
    /// The row after the change.
    pub new: Tuple<'a>,
}

/// `D`: Delete.
#[derive(Clone, Copy, Debug)]
pub struct Delete<'a> {
    /// The relation's [`Relation::id`].
    pub relation_id: u32,
    /// The deleted row, or its key.
    pub old: OldTuple<'a>,
}

/// `T`: Truncate.
#[derive(Clone, Copy, Debug)]
pub struct Truncate<'a> {
    /// `TRUNCATE … CASCADE`.
    pub cascade: bool,
    /// `TRUNCATE … RESTART IDENTITY`.
    pub restart_identity: bool,
    /// The tables.
    pub relations: RelationIds<'a>,
}

/// The [`Relation::id`]s of a [`Truncate`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelationIds<'a>(&'a [[u8; 4]]);

/// `M`: Message.
#[derive(Clone, Copy)]
pub struct LogicalMessage<'a> {
    /// Whether the message belongs to a transaction. Otherwise it was sent at once, even if its transaction was rolled
    /// back later.
    pub transactional: bool,
    /// End of the message's WAL record.
    pub lsn: Lsn,
    /// The prefix.
    pub prefix: &'a str,
    /// The content.
    pub content: &'a [u8],
}

impl<'a> RelationColumns<'a> {
    /// Number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns in order.
    pub fn iter(&self) -> impl Iterator<Item = RelationColumn<'a>> + use<'a> {
        let mut reader = self.reader;
        (0..self.count).map_while(move |_| column(&mut reader).ok())
    }
}

impl fmt::Debug for RelationColumns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl RelationIds<'_> {
    /// The ids, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|bytes| u32::from_be_bytes(*bytes))
    }
}

impl fmt::Debug for RelationIds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("transactional", &self.transactional)
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content_bytes", &self.content.len())
            .finish()
    }
}

/// Decodes one message, which must fill `data`.
pub(super) fn decode(data: &[u8]) -> Result<Message<'_>, DecodeError> {
    let (tag, mut reader) = Reader::open(data)?;
    let r = &mut reader;
    let message = match tag {
        b'I' => Message::Insert(insert(r)?),
        b'B' => {
            let (final_lsn, commit_time, xid) = (r.lsn()?, r.time()?, r.u32()?);
            Message::Begin(Begin { final_lsn, commit_time, xid })
        }
        b'C' => Message::Commit(commit(r)?),
        b'O' => Message::Origin(Origin { commit_lsn: r.lsn()?, name: r.name()? }),
        b'R' => Message::Relation(relation(r)?),
        b'Y' => Message::Type(TypeName { id: r.u32()?, schema: r.name()?, name: r.name()? }),
        b'U' => Message::Update(update(r)?),
        b'D' => Message::Delete(Delete { relation_id: r.u32()?, old: old_tuple(r)? }),
        b'T' => Message::Truncate(truncate(r)?),
        b'M' => Message::Message(logical_message(r)?),
        other => {
            let what = "an unknown kind of message";
            return Err(DecodeError { offset: 0, tag: Tag(other), what });
        }
    };
    reader.finish()?;
    Ok(message)
}

fn commit(reader: &mut Reader<'_>) -> Result<Commit, DecodeError> {
    let here = *reader;
    // proto.c refuses it too: an unknown flag could change the meaning of the commit.
    if reader.u8()? != 0 {
        return Err(here.error("unknown flags of a commit"));
    }
    let (commit_lsn, end_lsn, commit_time) = (reader.lsn()?, reader.lsn()?, reader.time()?);
    Ok(Commit { commit_lsn, end_lsn, commit_time })
}

fn relation<'a>(reader: &mut Reader<'a>) -> Result<Relation<'a>, DecodeError> {
    let (id, schema, name) = (reader.u32()?, reader.name()?, reader.name()?);
    let replica_identity = reader.u8()?;
    let count = reader.count()?;
    let columns = RelationColumns { count, reader: *reader };
    for _ in 0..count {
        column(reader)?;
    }
    Ok(Relation { id, schema, name, replica_identity, columns })
}

fn column<'a>(reader: &mut Reader<'a>) -> Result<RelationColumn<'a>, DecodeError> {
    let key = reader.u8()? & 1 == 1;
    let (name, type_oid, type_modifier) = (reader.name()?, reader.u32()?, reader.i32()?);
    Ok(RelationColumn { key, name, type_oid, type_modifier })
}

fn insert<'a>(reader: &mut Reader<'a>) -> Result<Insert<'a>, DecodeError> {
    let relation_id = reader.u32()?;
    let here = *reader;
    if reader.u8()? != b'N' {
        return Err(here.error("an insert without a new row"));
    }
    Ok(Insert { relation_id, new: Tuple::read(reader, Toast::Refused)? })
}

fn update<'a>(reader: &mut Reader<'a>) -> Result<Update<'a>, DecodeError> {
    let relation_id = reader.u32()?;
    let old = if reader.rest().first() == Some(&b'N') { None } else { Some(old_tuple(reader)?) };
    let here = *reader;
    if reader.u8()? != b'N' {
        return Err(here.error("an update without a new row"));
    }
    Ok(Update { relation_id, old, new: Tuple::read(reader, Toast::Allowed)? })
}

fn old_tuple<'a>(reader: &mut Reader<'a>) -> Result<OldTuple<'a>, DecodeError> {
    let here = *reader;
    match reader.u8()? {
        b'K' => Tuple::read(reader, Toast::Allowed).map(OldTuple::Key),
        b'O' => Tuple::read(reader, Toast::Allowed).map(OldTuple::Whole),
        _ => Err(here.error("an unknown kind of old row")),
    }
}

fn truncate<'a>(reader: &mut Reader<'a>) -> Result<Truncate<'a>, DecodeError> {
    let here = *reader;
    let count = reader.length()?;
    let options = reader.u8()?;
    let Some(length) = count.checked_mul(4) else {
        return Err(here.error("a count is too large"));
    };
    let (relations, _) = reader.take(length)?.as_chunks();
    Ok(Truncate {
        cascade: options & 1 != 0,
        restart_identity: options & 2 != 0,
        relations: RelationIds(relations),
    })
}

fn logical_message<'a>(reader: &mut Reader<'a>) -> Result<LogicalMessage<'a>, DecodeError> {
    let here = *reader;
    let transactional = match reader.u8()? {
        0 => false,
        1 => true,
        _ => return Err(here.error("unknown flags of a logical message")),
    };
    let (lsn, prefix) = (reader.lsn()?, reader.name()?);
    let length = reader.length()?;
    Ok(LogicalMessage { transactional, lsn, prefix, content: reader.take(length)? })
}

/// Reads the fields of a message in order, with bounds checks. A copy of the reader keeps a position, for errors.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
    tag: Tag,
}

impl<'a> Reader<'a> {
    /// The tag of the message in `data`, and a reader for the rest.
    pub(super) fn open(data: &'a [u8]) -> Result<(u8, Self), DecodeError> {
        let Some((&tag, rest)) = data.split_first() else {
            return Err(DecodeError { offset: 0, tag: Tag(0), what: "the message is empty" });
        };
        Ok((tag, Self { rest, length: data.len(), tag: Tag(tag) }))
    }

    /// An error at the current position.
    pub(super) fn error(&self, what: &'static str) -> DecodeError {
        let offset = self.length.saturating_sub(self.rest.len());
        DecodeError { offset, tag: self.tag, what }
    }

    /// The unread bytes.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The bytes between this position and that of `later`.
    #[inline]
    pub(super) fn up_to(&self, later: &Self) -> &'a [u8] {
        let taken = self.rest.len().saturating_sub(later.rest.len());
        self.rest.get(..taken).unwrap_or(self.rest)
    }

    #[inline]
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.error("the message ends early"));
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((taken, rest)) = self.rest.split_first_chunk() else {
            return Err(self.error("the message ends early"));
        };
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array().map(u64::from_be_bytes).map(Lsn::from_wire)
    }

    pub(super) fn time(&mut self) -> Result<PgTime, DecodeError> {
        self.array().map(|bytes| PgTime { micros: i64::from_be_bytes(bytes) })
    }

    /// A number of columns: two bytes, signed.
    pub(super) fn count(&mut self) -> Result<u16, DecodeError> {
        let here = *self;
        let count = self.array().map(i16::from_be_bytes)?;
        let Ok(count) = u16::try_from(count) else {
            return Err(here.error("a count is below zero"));
        };
        Ok(count)
    }

    /// A length in bytes or a number of items: four bytes, signed.
    pub(super) fn length(&mut self) -> Result<usize, DecodeError> {
        let here = *self;
        let Ok(length) = usize::try_from(self.i32()?) else {
            return Err(here.error("a length is below zero"));
        };
        Ok(length)
    }

    /// A name: UTF-8, terminated by a zero byte.
    pub(super) fn name(&mut self) -> Result<&'a str, DecodeError> {
        let Some(end) = self.rest.iter().position(|&byte| byte == 0) else {
            return Err(self.error("a name has no end"));
        };
        let here = *self;
        let bytes = self.take(end)?;
        self.take(1)?;
        let Ok(name) = std::str::from_utf8(bytes) else {
            return Err(here.error("a name is not UTF-8"));
        };
        Ok(name)
    }

    /// Checks that all bytes are read.
    pub(super) fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error("bytes follow the message")) }
    }
}

/// One row's columns, in the order of the relation. They were checked when the message was decoded. `Debug` shows sizes
/// only.
#[derive(Clone, Copy)]
pub struct Tuple<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// One column's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Column<'a> {
    /// NULL.
    Null,
    /// A value that is stored out of line (TOAST) and that an UPDATE did not change: the server does not send it.
    Unchanged,
    /// The value in text format, in the session's `client_encoding`.
    Text(&'a [u8]),
    /// The value in binary format, if the session requested it.
    Binary(&'a [u8]),
}

/// The place of a column's value inside its tuple, for callers that keep a reusable table of places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cell {
    /// NULL.
    Null,
    /// A value in text format, at this range of [`Tuple::bytes`]. Unit of both: bytes.
    Text {
        /// Offset of the first byte.
        start: usize,
        /// Length.
        len: usize,
    },
    /// An unchanged TOAST value, or a value in binary format.
    Other,
}

/// Which tuples may hold unchanged TOAST values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Toast {
    Allowed,
    Refused,
}

impl<'a> Tuple<'a> {
    /// Parses and checks a tuple.
    pub(super) fn read(reader: &mut Reader<'a>, toast: Toast) -> Result<Self, DecodeError> {
        let count = reader.count()?;
        let start = *reader;
        let mut rest = reader.rest();
        for _ in 0..count {
            let Some(after) = after_column(rest, toast) else {
                let taken = start.rest().len().saturating_sub(rest.len());
                reader.take(taken)?;
                return Err(no_column(*reader, toast));
            };
            rest = after;
        }
        reader.take(start.rest().len().saturating_sub(rest.len()))?;
        Ok(Self { count, bytes: start.up_to(reader) })
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes that [`Cell`]s refer to.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The columns in order.
    pub fn columns(&self) -> Columns<'a> {
        Columns { rest: self.bytes }
    }

    /// The places of all columns, in order.
    #[inline]
    pub fn cells(&self) -> impl Iterator<Item = Cell> + use<'a> {
        let length = self.bytes.len();
        let mut columns = self.columns();
        std::iter::from_fn(move || {
            let column = columns.next()?;
            Some(match column {
                Column::Null => Cell::Null,
                Column::Text(text) => {
                    let end = length.saturating_sub(columns.rest.len());
                    Cell::Text { start: end.saturating_sub(text.len()), len: text.len() }
                }
                Column::Unchanged | Column::Binary(_) => Cell::Other,
            })
        })
    }

    /// The column at `index`, from 0. It iterates over the columns before.
    pub fn get(&self, index: usize) -> Option<Column<'a>> {
        self.columns().nth(index)
    }
}

/// The bytes after the first column of `rest`; `None` if the column is truncated or of a kind that is not allowed.
#[inline]
fn after_column(rest: &[u8], toast: Toast) -> Option<&[u8]> {
    let (kind, rest) = rest.split_first()?;
    match kind {
        b'n' => Some(rest),
        b't' | b'b' => {
            let (length, rest) = rest.split_first_chunk()?;
            rest.get(usize::try_from(i32::from_be_bytes(*length)).ok()?..)
        }
        b'u' if toast == Toast::Allowed => Some(rest),
        _ => None,
    }
}

/// The error of a column that can't be read.
#[cold]
fn no_column(mut reader: Reader<'_>, toast: Toast) -> DecodeError {
    let here = reader;
    let read = match reader.u8() {
        Ok(b't' | b'b') => reader.length().and_then(|length| reader.take(length)),
        Ok(b'u') if toast == Toast::Refused => {
            return here.error("an unchanged TOAST value in a new row");
        }
        Ok(_) => return here.error("an unknown kind of column"),
        Err(error) => return error,
    };
    read.err().unwrap_or_else(|| here.error("an unknown kind of column"))
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tuple({} columns, {} B)", self.count, self.bytes.len())
    }
}

impl fmt::Debug for Column<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Unchanged => f.write_str("Unchanged"),
            Self::Text(bytes) => write!(f, "Text({} B)", bytes.len()),
            Self::Binary(bytes) => write!(f, "Binary({} B)", bytes.len()),
        }
    }
}

/// Iterator over the columns of a [`Tuple`].
#[derive(Clone)]
pub struct Columns<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    // The bytes were checked by `Tuple::read`, so `?` returns only at the end.
    #[inline]
    fn next(&mut self) -> Option<Column<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        if kind == b'n' || kind == b'u' {
            self.rest = rest;
            return Some(if kind == b'n' { Column::Null } else { Column::Unchanged });
        }
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        Some(if kind == b't' { Column::Text(value) } else { Column::Binary(value) })
    }
}
