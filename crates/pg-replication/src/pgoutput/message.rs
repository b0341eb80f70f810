//! The messages of protocol version 1, and how each is read.

use super::reader::Reader;
use super::tuple::{Toast, Tuple};
use super::{DecodeError, Tag};
use crate::lsn::Lsn;
use crate::timestamp::PgTime;
use std::fmt;

/// One message.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// A transaction begins; only committed ones are ever sent.
    Begin(Begin),
    /// It ends.
    Commit(Commit),
    /// It came from another server by replication.
    Origin(Origin<'a>),
    /// A table's shape, before its first row and after every change of it.
    Relation(Relation<'a>),
    /// The name of a type that is not built in.
    Type(TypeName<'a>),
    /// A new row.
    Insert(Insert<'a>),
    /// A changed row.
    Update(Update<'a>),
    /// A row that went.
    Delete(Delete<'a>),
    /// Tables emptied.
    Truncate(Truncate<'a>),
    /// `pg_logical_emit_message`.
    Message(LogicalMessage<'a>),
}

/// `B`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Start of the transaction's commit record: its identity.
    pub final_lsn: Lsn,
    /// When it committed. Not monotonic.
    pub commit_time: PgTime,
    /// Its transaction id, 32 bits of it.
    pub xid: u32,
}

/// `C`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Start of the commit record, as in [`Begin::final_lsn`].
    pub commit_lsn: Lsn,
    /// First byte after the commit record: what may be confirmed.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: PgTime,
}

/// `O`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin<'a> {
    /// Where it committed on the server it came from.
    pub commit_lsn: Lsn,
    /// The origin's name.
    pub name: &'a str,
}

/// `R`.
#[derive(Clone, Copy, Debug)]
pub struct Relation<'a> {
    /// What later messages call it: its OID.
    pub id: u32,
    /// Its schema; empty for `pg_catalog`.
    pub schema: &'a str,
    /// Its name.
    pub name: &'a str,
    /// `relreplident`: `d`, `n`, `f` or `i`.
    pub replica_identity: u8,
    /// Its columns.
    pub columns: RelationColumns<'a>,
}

/// A relation's columns, read again on each walk; checked when decoded.
#[derive(Clone, Copy)]
pub struct RelationColumns<'a> {
    count: u16,
    reader: Reader<'a>,
}

/// One column of a relation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelationColumn<'a> {
    /// Whether it belongs to the replica identity.
    pub key: bool,
    /// Its name.
    pub name: &'a str,
    /// OID of its type; of the domain where it is one.
    pub type_oid: u32,
    /// `atttypmod`, −1 for none.
    pub type_modifier: i32,
}

/// `Y`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TypeName<'a> {
    /// OID of the type.
    pub id: u32,
    /// Its schema; empty for `pg_catalog`.
    pub schema: &'a str,
    /// Its name; of the base type where it is a domain (measured on 15 and 18).
    pub name: &'a str,
}

/// `I`.
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

/// `U`.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The relation's [`Relation::id`].
    pub relation_id: u32,
    /// The row before, where the replica identity asks for it.
    pub old: Option<OldTuple<'a>>,
    /// The row after.
    pub new: Tuple<'a>,
}

/// `D`.
#[derive(Clone, Copy, Debug)]
pub struct Delete<'a> {
    /// The relation's [`Relation::id`].
    pub relation_id: u32,
    /// The row, or its key.
    pub old: OldTuple<'a>,
}

/// `T`.
#[derive(Clone, Copy, Debug)]
pub struct Truncate<'a> {
    /// `TRUNCATE … CASCADE`.
    pub cascade: bool,
    /// `TRUNCATE … RESTART IDENTITY`.
    pub restart_identity: bool,
    /// The tables.
    pub relations: RelationIds<'a>,
}

/// Ids of the relations a [`Truncate`] names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelationIds<'a>(&'a [[u8; 4]]);

/// `M`.
#[derive(Clone, Copy)]
pub struct LogicalMessage<'a> {
    /// Whether it belongs to the transaction it stands in; else it came at once, even from one that rolled back.
    pub transactional: bool,
    /// End of the message's WAL record.
    pub lsn: Lsn,
    /// The prefix.
    pub prefix: &'a str,
    /// The content.
    pub content: &'a [u8],
}

impl<'a> RelationColumns<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns, first to last.
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

/// Reads the message that `data` holds, all of it.
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
    // proto.c refuses it too: a flag we do not know could change what the commit means.
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
