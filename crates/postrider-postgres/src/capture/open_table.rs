//! A table that the open transaction has changed: its document, and the sequence that the document belongs to.

use super::document::{self, Document, DocumentChunk, RowChange};
use super::spec::CaptureSpec;
use super::streamed_table::StreamedTable;
use std::sync::Arc;

/// The net changes of a table that are not published yet.
#[derive(Debug, Default)]
pub(super) struct OpenTable {
    document: Document,
    /// The description of the table under which the rows of the document were made.
    relation: Option<Arc<StreamedTable>>,
    sequence: Option<Sequence>,
}

/// A sequence of documents that has begun.
#[derive(Debug)]
struct Sequence {
    id: String,
    /// Documents that were published.
    documents: u64,
    /// Inserted rows in them.
    inserted: u64,
    /// Deleted rows in them.
    deleted: u64,
}

impl OpenTable {
    /// Whether the document must be published before this change: it has no room, or the change was made under another
    /// description of the table, so that a row may have another key.
    pub(super) fn is_full_for(
        &self,
        relation: &Arc<StreamedTable>,
        change: &RowChange,
        spec: &CaptureSpec,
        absolute: bool,
    ) -> bool {
        if !self.document.has_rows() {
            return false;
        }
        if change.loose || self.relation.as_ref() != Some(relation) {
            return true;
        }
        let (rows, bytes) = self.document.with(change, absolute);
        // The two rows of an UPDATE are not divided.
        let rows_max = usize::try_from(spec.inline_threshold_rows).unwrap_or(usize::MAX).max(2);
        rows > rows_max || bytes > spec.chunk_bytes
    }

    /// Takes values that the server did not send from the row that the change replaces.
    pub(super) fn complete(&self, relation: &Arc<StreamedTable>, change: &mut RowChange) {
        if self.relation.as_ref() == Some(relation) {
            self.document.complete(change);
        }
    }

    /// Adds a change.
    pub(super) fn add(&mut self, relation: &Arc<StreamedTable>, change: RowChange, absolute: bool) {
        self.document.add(change, absolute);
        self.relation = Some(Arc::clone(relation));
    }

    /// All rows were removed.
    pub(super) fn truncate(&mut self) {
        self.document.truncate();
    }

    /// Whether a sequence has begun.
    pub(super) fn is_sequence(&self) -> bool {
        self.sequence.is_some()
    }

    /// Begins a sequence, and appends its first document.
    pub(super) fn begin_sequence(&mut self, id: String, out: &mut Vec<u8>) {
        document::push_header(&id, out);
        self.sequence = Some(Sequence { id, documents: 0, inserted: 0, deleted: 0 });
    }

    /// Appends the next document of the sequence, and begins another one.
    pub(super) fn push_chunk(&mut self, out: &mut Vec<u8>) {
        self.push_next(false, out);
        self.document = Document::default();
    }

    /// Whether a document is to be published at the commit.
    pub(super) fn ends_with_document(&self) -> bool {
        self.is_sequence() || !self.document.is_empty()
    }

    /// Appends the last document of the transaction.
    pub(super) fn push_last(mut self, out: &mut Vec<u8>) {
        self.push_next(true, out);
    }

    fn push_next(&mut self, last: bool, out: &mut Vec<u8>) {
        let Self { document, sequence, .. } = self;
        let Some(sequence) = sequence else { return document.push(None, out) };
        let count = |rows: usize| u64::try_from(rows).unwrap_or(u64::MAX);
        let (inserted, deleted) = document.counts();
        sequence.documents += 1;
        sequence.inserted += count(inserted);
        sequence.deleted += count(deleted);
        let totals = last.then_some((sequence.inserted, sequence.deleted));
        let chunk = DocumentChunk { sequence: &sequence.id, number: sequence.documents, totals };
        document.push(Some(chunk), out);
    }
}
