//! From frames of the replication stream to the changes of [`postrider_core::source`].
//!
//! Nothing is allocated for a row: its bytes stay in the batch, and its cells are written into a table that is reused.

use crate::encoding::Encoding;
use crate::lsn;
use crate::names::TableName;
use crate::value_types::{TypeFacts, Types};
use pg_replication::pgoutput::{self, Cell, LogicalMessage, Relation, Tuple};
use pg_replication::{Batch as WalBatch, Frame};
use postrider_core::row::{ByteRange, Column, Row, Table, TableId};
use postrider_core::source::{Batch, Change, Message, Unreadable};

/// What of the stream becomes events. A decoder hands on everything; only for these it looks up types and encodings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DecodedObjects {
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
    objects: DecodedObjects,
    /// The current OID of the outbox table, whose rows may be of a table that had another name at their commit.
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
    /// A decoder for a new connection. `table_oid`: the current OID of the outbox table.
    pub fn new(objects: DecodedObjects, table_oid: Option<u32>, encoding: Encoding) -> Self {
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
        self.types.learn(&self.unknown_types, found);
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
                return Ok(Change::Heartbeat(lsn::from_wire(wal_end)));
            }
        };
        let message = match pgoutput::decode(data) {
            Ok(message) => message,
            Err(error) => return Err(Unreadable::Protocol(Box::new(error))),
        };
        Ok(match message {
            pgoutput::Message::Insert(insert) => {
                if !self.read_cells(&insert.new) {
                    return Err(Unreadable::NotText(TableId(insert.relation_id)));
                }
                Change::Row(self.row(insert.relation_id, &insert.new))
            }
            pgoutput::Message::Begin(begin) => Change::Begin {
                commit: lsn::from_wire(begin.final_lsn),
                first: lsn::from_wire(wal_start),
                time: lsn::time(begin.commit_time),
                transaction: Some(begin.xid),
            },
            pgoutput::Message::Commit(commit) => Change::Commit {
                commit: lsn::from_wire(commit.commit_lsn),
                end: lsn::from_wire(commit.end_lsn),
                time: lsn::time(commit.commit_time),
            },
            pgoutput::Message::Update(update) => {
                // Whether a value is text does not matter: an update is no event.
                self.read_cells(&update.new);
                Change::Updated(self.row(update.relation_id, &update.new))
            }
            pgoutput::Message::Delete(_) | pgoutput::Message::Truncate(_) => Change::Other,
            pgoutput::Message::Message(message) => Change::Message(self.message(&message)),
            pgoutput::Message::Relation(relation) => self.table(&relation),
            pgoutput::Message::Type(of) => {
                self.types.name(&of);
                Change::Nothing
            }
            pgoutput::Message::Origin(_) => Change::Nothing,
        })
    }

    /// Writes the cells of a row. Returns whether every value is NULL or in text format; others are NULL here.
    #[inline]
    fn read_cells(&mut self, row: &Tuple<'_>) -> bool {
        self.cells.clear();
        self.cells.resize(row.len(), None);
        let mut all_text = true;
        for (place, cell) in self.cells.iter_mut().zip(row.cells()) {
            match cell {
                Cell::Null => {}
                Cell::Text { start, len } => *place = Some(ByteRange { start, len }),
                Cell::Other => all_text = false,
            }
        }
        all_text
    }

    /// The row whose cells were read.
    #[inline]
    fn row<'a>(&'a self, relation_id: u32, row: &Tuple<'a>) -> Row<'a> {
        Row { table: TableId(relation_id), bytes: row.bytes(), cells: &self.cells }
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
        // The protocol has no schema name for `pg_catalog`, which has no outbox.
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
