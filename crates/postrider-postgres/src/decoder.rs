//! From frames of the replication stream to the changes of [`postrider_core::source`].
//!
//! Nothing is allocated for a row: its bytes stay in the batch, and its cells are written into a table that is reused.

use crate::encoding::Encoding;
use crate::names::TableName;
use crate::value_types::{TypeFacts, Types};
use crate::wire;
use pg_replication::pgoutput::{self, Cell, LogicalMessage, Relation, Tuple};
use pg_replication::{Batch as WalBatch, Frame};
use postrider_core::row::{ByteRange, Column, Row, Table, TableId};
use postrider_core::source::{Batch, Change, Message, Unreadable};

/// The table and messages that become events. All changes are decoded; types and encodings are looked up for these
/// only.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EventObjects {
    /// The outbox table, if there is one.
    pub table: Option<TableName>,
    /// Its columns whose types must be known.
    pub columns: Vec<String>,
    /// The prefix of logical messages, if they are events.
    pub message_prefix: Option<String>,
}

/// Decodes the frames of one connection: it knows the types that the connection has named, and those of the catalog.
#[derive(Debug)]
pub struct Decoder {
    objects: EventObjects,
    /// The OID that the outbox table has now. Rows carry this OID also if the table had another name when they were
    /// committed.
    table_oid: Option<u32>,
    /// The encoding of logical messages, which is that of the database: the server sends them as they are in WAL,
    /// whatever the session's encoding.
    encoding: Encoding,
    types: Types,
    /// Types that the last Relation message needs and that must be looked up.
    unknown_types: Vec<u32>,
    /// The columns of the last table.
    columns: Vec<Column>,
    /// The cells of the current row.
    cells: Vec<Option<ByteRange>>,
    /// The current message in UTF-8, if the server sent it in another encoding.
    content: String,
}

impl Decoder {
    /// A decoder for a new connection. `table_oid`: the OID that the outbox table has now.
    pub fn new(objects: EventObjects, table_oid: Option<u32>, encoding: Encoding) -> Self {
        Self {
            objects,
            table_oid,
            encoding,
            types: Types::default(),
            unknown_types: Vec::new(),
            columns: Vec::new(),
            cells: Vec::new(),
            content: String::new(),
        }
    }

    /// A batch of this connection, as changes.
    pub fn batch<'d>(&'d mut self, batch: &'d WalBatch) -> DecodedBatch<'d> {
        DecodedBatch { decoder: self, batch }
    }

    /// After [`Change::Blocked`]: the OIDs of the types that must be looked up in the catalog before the table can be
    /// described, because a Relation message does not have the base type of a domain.
    pub fn unknown_types(&self) -> &[u32] {
        &self.unknown_types
    }

    /// Adds what the catalog has of the [`unknown_types`](Self::unknown_types).
    pub fn add_types(&mut self, found: &[TypeFacts]) {
        self.types.add_found(&self.unknown_types, found);
        self.unknown_types.clear();
    }

    /// The change that a frame is.
    ///
    /// # Errors
    /// The message is not of protocol version 1, or a value of a new row is not in text format.
    #[inline]
    pub fn change<'a>(&'a mut self, frame: &Frame<'a>) -> Result<Change<'a>, Unreadable> {
        let (wal_start, data) = match *frame {
            Frame::XLogData { wal_start, data, .. } => (wal_start, data),
            Frame::Keepalive { wal_end, .. } => {
                return Ok(Change::Heartbeat(wire::from_wire(wal_end)));
            }
        };
        let message = match pgoutput::decode(data) {
            Ok(message) => message,
            Err(error) => return Err(Unreadable::Protocol(Box::new(error))),
        };
        Ok(match message {
            pgoutput::Message::Insert(insert) => {
                let (row, all_text) = self.row(insert.relation_id, &insert.new);
                if !all_text {
                    return Err(Unreadable::NotText(TableId(insert.relation_id)));
                }
                Change::Row(row)
            }
            pgoutput::Message::Begin(begin) => Change::Begin {
                commit: wire::from_wire(begin.final_lsn),
                first: wire::from_wire(wal_start),
                time: wire::time(begin.commit_time),
                transaction: Some(begin.xid),
            },
            pgoutput::Message::Commit(commit) => Change::Commit {
                commit: wire::from_wire(commit.commit_lsn),
                end: wire::from_wire(commit.end_lsn),
                time: wire::time(commit.commit_time),
            },
            pgoutput::Message::Update(update) => {
                // Whether every value is text does not matter: an update is no event.
                let (row, _) = self.row(update.relation_id, &update.new);
                Change::Updated(row)
            }
            pgoutput::Message::Delete(_) | pgoutput::Message::Truncate(_) => Change::Other,
            pgoutput::Message::Message(message) => Change::Message(self.message(&message)),
            pgoutput::Message::Relation(relation) => self.table(&relation),
            pgoutput::Message::Type(of) => {
                self.types.add_named(&of);
                Change::Nothing
            }
            pgoutput::Message::Origin(_) => Change::Nothing,
        })
    }

    /// A row, and whether every value of it is NULL or in text format; others are NULL here.
    #[inline]
    fn row<'a>(&'a mut self, relation_id: u32, row: &Tuple<'a>) -> (Row<'a>, bool) {
        let Self { cells, .. } = self;
        cells.clear();
        cells.reserve(row.len());
        let mut all_text = true;
        for cell in row.cells() {
            cells.push(match cell {
                Cell::Null => None,
                Cell::Text { start, len } => Some(ByteRange { start, len }),
                Cell::Other => {
                    all_text = false;
                    None
                }
            });
        }
        (Row { table: TableId(relation_id), bytes: row.bytes(), cells }, all_text)
    }

    /// A logical message. The content is converted to UTF-8 if it is an event's.
    fn message<'a>(&'a mut self, message: &LogicalMessage<'a>) -> Message<'a> {
        let LogicalMessage { transactional, prefix, content, .. } = *message;
        let as_sent = |is_text| Message { transactional, prefix, content, is_text };
        if !transactional || self.objects.message_prefix.as_deref() != Some(prefix) {
            return as_sent(false);
        }
        self.content.shrink_to(CONTENT_KEPT_MAX);
        match self.encoding.decode(content, &mut self.content) {
            Ok(true) => Message { content: self.content.as_bytes(), ..as_sent(true) },
            Ok(false) => as_sent(true),
            Err(_not_text) => as_sent(false),
        }
    }

    /// The description of a table; blocked until the types that an event's columns have are known.
    fn table<'a>(&'a mut self, relation: &Relation<'a>) -> Change<'a> {
        let Relation { id, schema, name, .. } = *relation;
        let Self { objects, table_oid, types, unknown_types, columns, .. } = self;
        unknown_types.clear();
        // For `pg_catalog` the protocol sends an empty schema name; no outbox is there.
        let is_named = |table: &TableName| table.schema == schema && table.name == name;
        let is_outbox = |table: &TableName| *table_oid == Some(id) || is_named(table);
        if objects.table.as_ref().is_some_and(is_outbox) {
            let needed = relation.columns.iter().filter(|column| {
                objects.columns.iter().any(|name| name == column.name)
                    && types.is_unknown(column.type_oid)
            });
            unknown_types.extend(needed.map(|column| column.type_oid));
            unknown_types.sort_unstable();
            unknown_types.dedup();
            if !unknown_types.is_empty() {
                return Change::Blocked;
            }
        }
        columns.clear();
        columns.extend(relation.columns.iter().map(|column| Column {
            name: column.name.to_owned(),
            of: types.resolve(column.type_oid, column.type_modifier),
        }));
        Change::Table(Table { id: TableId(id), schema, name, columns })
    }
}

/// Maximum size of the buffer between messages, so that one message of a gigabyte does not keep that memory. Unit:
/// bytes.
const CONTENT_KEPT_MAX: usize = 1 << 20;

/// A batch of the stream with the decoder of its connection. A place is an offset in the batch, in bytes.
#[derive(Debug)]
pub struct DecodedBatch<'d> {
    decoder: &'d mut Decoder,
    batch: &'d WalBatch,
}

impl Batch for DecodedBatch<'_> {
    #[inline]
    fn change_at(&mut self, place: usize) -> Result<Option<(Change<'_>, usize)>, Unreadable> {
        let Some((frame, next)) = self.batch.frame_at(place) else { return Ok(None) };
        Ok(Some((self.decoder.change(&frame)?, next)))
    }
}

#[cfg(test)]
mod tests;
