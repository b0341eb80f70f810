//! From frames of the replication stream to the documents of captured tables.
//!
//! A document is made when the frame that ends it is read, and one at a time, so the memory is that of the documents
//! that are not complete: one for each table that the open transaction has changed.

use super::document::RowChange;
use super::error::CaptureError;
use super::open_table::OpenTable;
use super::relations::Relations;
use super::shapes::ShapeFacts;
use super::spec::CaptureSpec;
use super::streamed_table::StreamedTable;
use crate::decoder::Decoder;
use crate::wire;
use pg_replication::pgoutput::{self, Truncate};
use pg_replication::{Batch as WalBatch, Frame};
use postrider_core::delta::{self, DELTA_TYPE};
use postrider_core::event::{HeaderPosition, Histories, Position};
use postrider_core::offset::Offset;
use postrider_core::row::{ByteRange, OwnedTable, Row, TableId};
use postrider_core::source::{Batch, Change, Unreadable};
use postrider_core::timestamp::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;

/// Frames that can be read again.
pub trait Frames {
    /// The frame that begins at `offset`, and the offset of the next frame; the first offset is 0. `None` at the end.
    fn frame_at(&self, offset: usize) -> Option<(Frame<'_>, usize)>;
}

impl Frames for WalBatch {
    #[inline]
    fn frame_at(&self, offset: usize) -> Option<(Frame<'_>, usize)> {
        self.frame_at(offset)
    }
}

/// Makes changes of the frames of one connection: rows of the table of documents ([`delta::table`]).
#[derive(Debug)]
pub struct DeltaAssembler {
    spec: CaptureSpec,
    /// Aggregate type and aggregate id of each table.
    aggregates: Vec<(String, String)>,
    histories: Histories,
    relations: Relations,
    /// Reads everything that is not a row.
    decoder: Decoder,
    /// Transactions that commit at this offset or below have absolute documents.
    absolute_upto: Offset,
    /// Whether the table of documents was described.
    described: bool,
    transaction: OpenTransaction,
    reading: Reading,
}

/// The open transaction.
#[derive(Debug, Default)]
struct OpenTransaction {
    commit: Offset,
    /// The ordinal of the next change.
    ordinal: u64,
    /// The tables that it has changed, by their index, in the order of their first changes.
    tables: Vec<(usize, OpenTable)>,
}

/// The place in the current batch.
#[derive(Debug, Default)]
struct Reading {
    /// Where the next frame begins.
    offset: usize,
    /// The place of the current step; `None` before the first one.
    place: Option<usize>,
    current: Option<FrameStep>,
    /// The steps after the current one that the frames before `offset` lead to.
    next: VecDeque<FrameStep>,
}

/// What a frame leads to.
#[derive(Debug)]
enum FrameStep {
    Table(OwnedTable),
    Begin {
        commit: Offset,
        first: Offset,
        time: Timestamp,
        transaction: u32,
    },
    /// A change, or the first half of one, that is part of a document.
    Collected,
    /// A change of a table that is not captured.
    Other,
    Event(Box<EventRow>),
    /// The last document of the first table that has none yet.
    Last,
    Commit {
        commit: Offset,
        end: Offset,
        time: Timestamp,
    },
    /// The frame at this offset, as the decoder reads it.
    Decoded(usize),
    Blocked,
}

/// A row of the table of documents.
#[derive(Debug)]
struct EventRow {
    table: TableId,
    bytes: Vec<u8>,
    cells: [Option<ByteRange>; 5],
}

impl EventRow {
    /// `aggregate`: type and id.
    fn new(id: &str, aggregate: &(String, String), payload: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = Vec::new();
        let (kind, aggregate_id) = aggregate;
        let texts = [id, kind, aggregate_id, DELTA_TYPE];
        let mut cells = [None; 5];
        for (cell, text) in cells.iter_mut().zip(texts) {
            *cell = Some(ByteRange { start: bytes.len(), len: text.len() });
            bytes.extend_from_slice(text.as_bytes());
        }
        let start = bytes.len();
        payload(&mut bytes);
        cells[4] = Some(ByteRange { start, len: bytes.len() - start });
        Self { table: delta::TABLE_ID, bytes, cells }
    }

    fn row(&self) -> Row<'_> {
        Row { table: self.table, bytes: &self.bytes, cells: &self.cells }
    }
}

impl DeltaAssembler {
    /// An assembler for a new connection. `oids`: the OIDs that the captured tables have now, in the order of the
    /// specification. `histories`: those of the pipeline's positions. `decoder`: reads everything that is not a row.
    pub fn new(
        spec: CaptureSpec,
        oids: Vec<Option<u32>>,
        histories: Histories,
        decoder: Decoder,
    ) -> Self {
        let aggregate = |table| (spec.aggregate_type(table), table.qualified());
        Self {
            aggregates: spec.tables.iter().map(aggregate).collect(),
            spec,
            histories,
            relations: Relations::new(oids),
            decoder,
            absolute_upto: Offset::ZERO,
            described: false,
            transaction: OpenTransaction::default(),
            reading: Reading::default(),
        }
    }

    /// Sets the highest commit of a transaction that may have been published in part under another specification. Its
    /// documents are absolute: a row that was inserted and deleted in one is among the deleted rows, because a consumer
    /// may have got the row in a document that was divided in another way.
    pub fn set_absolute(&mut self, upto: Offset) {
        self.absolute_upto = upto;
    }

    /// A new batch is read, from place 0 on. To be called before the first [`batch`](Self::batch) of it.
    pub fn begin_batch(&mut self) {
        self.reading = Reading::default();
    }

    /// The batch that is read, as changes. A place is the number of a change in the batch.
    pub fn batch<'d, F: Frames>(&'d mut self, batch: &'d F) -> AssembledBatch<'d, F> {
        AssembledBatch { assembler: self, batch }
    }

    /// After [`Change::Blocked`]: the OIDs of the types that must be looked up in the catalog before the table's rows
    /// can be written as JSON.
    pub fn unknown_types(&self) -> &[u32] {
        self.relations.unknown_types()
    }

    /// Adds what the catalog has of the [`unknown_types`](Self::unknown_types).
    pub fn add_shapes(&mut self, found: &[ShapeFacts]) {
        self.relations.add_shapes(found);
    }

    /// Goes to the change at `place`, which is the current one or the next one. Returns whether there is one.
    fn go_to(&mut self, batch: &impl Frames, place: usize) -> Result<bool, Unreadable> {
        if self.reading.place == Some(place) {
            return Ok(true);
        }
        loop {
            if let Some(step) = self.reading.next.pop_front() {
                self.reading.current = Some(self.counted(step));
                self.reading.place = Some(place);
                return Ok(true);
            }
            let offset = self.reading.offset;
            let Some((frame, next)) = batch.frame_at(offset) else { return Ok(false) };
            if self.read(&frame, offset)? {
                self.reading.offset = next;
            } else {
                // The same frame is read again after the answer.
                self.reading.current = Some(FrameStep::Blocked);
                return Ok(true);
            }
        }
    }

    /// The step, and its ordinal is counted.
    fn counted(&mut self, step: FrameStep) -> FrameStep {
        let step = if matches!(step, FrameStep::Last) { self.last_document() } else { step };
        if matches!(step, FrameStep::Collected | FrameStep::Other | FrameStep::Event(_)) {
            self.transaction.ordinal += 1;
        }
        step
    }

    /// Reads a frame; `false` if types must be looked up first.
    fn read(&mut self, frame: &Frame<'_>, offset: usize) -> Result<bool, Unreadable> {
        let Frame::XLogData { wal_start, data, .. } = *frame else {
            self.reading.next.push_back(FrameStep::Decoded(offset));
            return Ok(true);
        };
        let message = match pgoutput::decode(data) {
            Ok(message) => message,
            Err(error) => return Err(Unreadable::Protocol(Box::new(error))),
        };
        match message {
            pgoutput::Message::Insert(insert) => {
                self.change(insert.relation_id, |relation| relation.inserted(&insert.new))?;
            }
            pgoutput::Message::Update(update) => self.change(update.relation_id, |relation| {
                relation.updated(update.old.as_ref(), &update.new)
            })?,
            pgoutput::Message::Delete(delete) => {
                self.change(delete.relation_id, |relation| relation.deleted(&delete.old))?;
            }
            pgoutput::Message::Truncate(truncate) => self.truncate(&truncate)?,
            pgoutput::Message::Relation(relation) => {
                return Ok(self.relations.describe(&relation, &self.spec));
            }
            pgoutput::Message::Begin(begin) => {
                let commit = wire::from_wire(begin.final_lsn);
                self.transaction = OpenTransaction { commit, ..OpenTransaction::default() };
                if !std::mem::replace(&mut self.described, true) {
                    let tables = [delta::TABLE_ID, delta::HEADER_TABLE_ID].map(delta::table);
                    self.reading.next.extend(tables.map(FrameStep::Table));
                }
                self.reading.next.push_back(FrameStep::Begin {
                    commit,
                    first: wire::from_wire(wal_start),
                    time: wire::time(begin.commit_time),
                    transaction: begin.xid,
                });
            }
            pgoutput::Message::Commit(commit) => {
                let last = self.transaction.tables.iter().map(|_| FrameStep::Last);
                self.reading.next.extend(last);
                self.reading.next.push_back(FrameStep::Commit {
                    commit: wire::from_wire(commit.commit_lsn),
                    end: wire::from_wire(commit.end_lsn),
                    time: wire::time(commit.commit_time),
                });
            }
            pgoutput::Message::Message(message) => {
                // The decoder's change counts for the ordinal.
                self.transaction.ordinal += u64::from(message.transactional);
                self.reading.next.push_back(FrameStep::Decoded(offset));
            }
            pgoutput::Message::Type(_) | pgoutput::Message::Origin(_) => {}
        }
        Ok(true)
    }

    /// A change of a row: two ordinals.
    fn change(
        &mut self,
        relation: u32,
        make: impl FnOnce(&StreamedTable) -> Result<RowChange, CaptureError>,
    ) -> Result<(), CaptureError> {
        let Some(relation) = self.relations.get(relation)?.map(Arc::clone) else {
            self.reading.next.extend([FrameStep::Collected, FrameStep::Other]);
            return Ok(());
        };
        let mut change = make(&relation)?;
        let absolute = self.transaction.commit <= self.absolute_upto;
        let open = self.transaction.table(relation.table);
        open.complete(&relation, &mut change);
        let steps = if open.is_full_for(&relation, &change, &self.spec, absolute) {
            self.publish(relation.table)
        } else {
            [FrameStep::Collected, FrameStep::Collected]
        };
        let open = self.transaction.table(relation.table);
        open.add(&relation, change, absolute);
        self.reading.next.extend(steps);
        Ok(())
    }

    /// The document of a table as a part of a sequence, which begins here if it has not begun: two ordinals.
    fn publish(&mut self, table: usize) -> [FrameStep; 2] {
        let ordinal = self.transaction.ordinal;
        let (begins, follows) = (self.id(ordinal), self.id(ordinal + 1));
        let Some(aggregate) = self.aggregates.get(table) else {
            return [FrameStep::Collected, FrameStep::Collected];
        };
        let open = self.transaction.table(table);
        let first = if open.is_sequence() {
            FrameStep::Collected
        } else {
            let id = begins.clone();
            let header = |out: &mut Vec<u8>| open.begin_sequence(id, out);
            let row = EventRow::new(&begins, aggregate, header);
            FrameStep::Event(Box::new(EventRow { table: delta::HEADER_TABLE_ID, ..row }))
        };
        let chunk = EventRow::new(&follows, aggregate, |out| open.push_chunk(out));
        [first, FrameStep::Event(Box::new(chunk))]
    }

    /// All rows of some tables were removed: two ordinals.
    fn truncate(&mut self, truncate: &Truncate<'_>) -> Result<(), CaptureError> {
        let mut captured = false;
        for id in truncate.relations.iter() {
            if let Some(relation) = self.relations.get(id)? {
                self.transaction.table(relation.table).truncate();
                captured = true;
            }
        }
        let last = if captured { FrameStep::Collected } else { FrameStep::Other };
        self.reading.next.extend([FrameStep::Collected, last]);
        Ok(())
    }

    /// The document of a table at the commit: one ordinal, also if there is none.
    fn last_document(&mut self) -> FrameStep {
        if self.transaction.tables.is_empty() {
            return FrameStep::Collected;
        }
        let (table, open) = self.transaction.tables.remove(0);
        match self.aggregates.get(table).filter(|_| open.ends_with_document()) {
            Some(aggregate) => {
                let id = self.id(self.transaction.ordinal);
                FrameStep::Event(Box::new(EventRow::new(&id, aggregate, |out| open.push_last(out))))
            }
            None => FrameStep::Collected,
        }
    }

    /// The id of the event with this ordinal in the open transaction: its position with the history of the position.
    fn id(&self, ordinal: u64) -> String {
        let commit = self.transaction.commit;
        let position = Position { commit, ordinal };
        HeaderPosition { history: self.histories.of(commit), position }.to_string()
    }
}

impl OpenTransaction {
    fn table(&mut self, table: usize) -> &mut OpenTable {
        let at = self.tables.iter().position(|(open, _)| *open == table).unwrap_or_else(|| {
            self.tables.push((table, OpenTable::default()));
            self.tables.len() - 1
        });
        &mut self.tables[at].1
    }
}

/// A batch of the stream with the assembler of its connection.
#[derive(Debug)]
pub struct AssembledBatch<'d, F> {
    assembler: &'d mut DeltaAssembler,
    batch: &'d F,
}

impl<F: Frames> Batch for AssembledBatch<'_, F> {
    fn change_at(&mut self, place: usize) -> Result<Option<(Change<'_>, usize)>, Unreadable> {
        if !self.assembler.go_to(self.batch, place)? {
            return Ok(None);
        }
        let DeltaAssembler { reading, decoder, .. } = &mut *self.assembler;
        let change = match &reading.current {
            Some(FrameStep::Table(table)) => Change::Table(table.as_table()),
            Some(FrameStep::Begin { commit, first, time, transaction }) => Change::Begin {
                commit: *commit,
                first: *first,
                time: *time,
                transaction: Some(*transaction),
            },
            Some(FrameStep::Collected) => Change::Collected,
            Some(FrameStep::Other) => Change::Other,
            Some(FrameStep::Event(event)) => Change::Row(event.row()),
            Some(FrameStep::Commit { commit, end, time }) => {
                Change::Commit { commit: *commit, end: *end, time: *time }
            }
            Some(FrameStep::Decoded(offset)) => match self.batch.frame_at(*offset) {
                Some((frame, _)) => decoder.change(&frame)?,
                None => Change::Nothing,
            },
            Some(FrameStep::Blocked) => Change::Blocked,
            Some(FrameStep::Last) | None => Change::Nothing,
        };
        Ok(Some((change, place + 1)))
    }
}
