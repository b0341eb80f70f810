//! The net changes of a table: what is in one document.

use super::json;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// A row as a JSON object. `Debug` shows sizes only.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct DocumentRow {
    /// The object.
    pub(super) json: Arc<[u8]>,
    /// The columns of the replica identity, as an object; `None` if the table has no replica identity.
    pub(super) key: Option<Arc<[u8]>>,
    /// What counts for the size of a document: it depends on the WAL only. Unit: bytes.
    pub(super) size_bytes: usize,
    /// The columns that the object lacks, because their values are unchanged and were not sent.
    pub(super) unchanged: Vec<UnchangedColumn>,
}

/// A column without its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct UnchangedColumn {
    /// The name in quotes, with a colon.
    pub(super) member: Arc<[u8]>,
}

impl fmt::Debug for DocumentRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DocumentRow({} B)", self.json.len())
    }
}

/// What one change does to a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RowChange {
    /// The row that is no longer there, or its key.
    pub(super) deleted: Option<DocumentRow>,
    /// The row that is there now.
    pub(super) inserted: Option<DocumentRow>,
    /// The deleted row has no key that can be compared with those of inserted rows, so the change must not be in one
    /// document with rows that were inserted before it.
    pub(super) loose: bool,
}

/// Which document of a sequence it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DocumentChunk<'a> {
    /// The sequence.
    pub(super) sequence: &'a str,
    /// The number in the sequence, from 1.
    pub(super) number: u64,
    /// Inserted and deleted rows of the whole sequence, in its last document.
    pub(super) totals: Option<(u64, u64)>,
}

/// The net changes of a table since the document before it.
///
/// A consumer removes the deleted rows first, and then adds the inserted ones. So a row that was inserted and deleted
/// here is in neither list, unless its key existed before: then the first change of the key was its deletion, and is
/// still in the list. Of two updates of one row, the old row of the first and the new row of the last are left.
#[derive(Debug, Default)]
pub(super) struct Document {
    truncated: bool,
    deleted: Vec<DocumentRow>,
    /// The keys of the deleted rows, if [`absolute`](Self::add) was requested.
    deleted_keys: HashSet<Arc<[u8]>>,
    inserted: InsertedRows,
    size_bytes: usize,
}

/// The inserted rows in order, by their keys.
#[derive(Debug, Default)]
struct InsertedRows {
    rows: Vec<Option<InsertedRow>>,
    live: usize,
    /// The last row with a key.
    by_key: HashMap<Arc<[u8]>, usize>,
}

#[derive(Debug)]
struct InsertedRow {
    row: DocumentRow,
    /// The row before it with the same key: with the replica identity FULL a table may have equal rows.
    before: Option<usize>,
}

/// Removed rows that the list may hold besides as many as live ones.
const REMOVED_MAX: usize = 1024;

impl InsertedRows {
    fn get(&self, key: &[u8]) -> Option<&DocumentRow> {
        let at = *self.by_key.get(key)?;
        self.rows.get(at)?.as_ref().map(|inserted| &inserted.row)
    }

    fn push(&mut self, row: DocumentRow) {
        let at = self.rows.len();
        let before = row.key.as_ref().and_then(|key| self.by_key.insert(Arc::clone(key), at));
        self.rows.push(Some(InsertedRow { row, before }));
        self.live += 1;
    }

    fn remove(&mut self, key: &[u8]) -> Option<DocumentRow> {
        let at = *self.by_key.get(key)?;
        let InsertedRow { row, before } = self.rows.get_mut(at)?.take()?;
        match (before, &row.key) {
            (Some(before), Some(key)) => self.by_key.insert(Arc::clone(key), before),
            (Some(_) | None, _) => self.by_key.remove(key),
        };
        self.live -= 1;
        if self.rows.len() > 2 * self.live + REMOVED_MAX {
            let rows = std::mem::take(self);
            rows.rows.into_iter().flatten().for_each(|inserted| self.push(inserted.row));
        }
        Some(row)
    }

    fn iter(&self) -> impl Iterator<Item = &DocumentRow> {
        self.rows.iter().flatten().map(|inserted| &inserted.row)
    }
}

/// Size of a document without its rows: the longest names and numbers. Unit: bytes.
pub(super) const ENVELOPE_BYTES: usize = 512;

impl Document {
    /// Whether a consumer has nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        !self.truncated && !self.has_rows()
    }

    /// Whether it has rows.
    pub(super) fn has_rows(&self) -> bool {
        self.inserted.live > 0 || !self.deleted.is_empty()
    }

    /// Inserted and deleted rows.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.inserted.live, self.deleted.len())
    }

    /// Takes values that the server did not send from the row that the change replaces, if that row is in this
    /// document.
    pub(super) fn complete(&self, change: &mut RowChange) {
        let RowChange { deleted: Some(deleted), inserted: Some(inserted), .. } = change else {
            return;
        };
        if inserted.unchanged.is_empty() {
            return;
        }
        let Some(replaced) = deleted.key.as_deref().and_then(|key| self.inserted.get(key)) else {
            return;
        };
        let mut object = inserted.json.to_vec();
        inserted.unchanged.retain(|column| {
            let Some(value) = json::member(&replaced.json, &column.member) else { return true };
            object.pop();
            if object.len() > 1 {
                object.push(b',');
            }
            object.extend_from_slice(&column.member);
            object.extend_from_slice(value);
            object.push(b'}');
            false
        });
        inserted.size_bytes += object.len().saturating_sub(inserted.json.len());
        inserted.json = object.into();
    }

    /// Rows and size with a change, as [`add`](Self::add) would leave them. Unit of the size: bytes.
    pub(super) fn with(&self, change: &RowChange, absolute: bool) -> (usize, usize) {
        let (mut rows, mut bytes) = (self.inserted.live + self.deleted.len(), self.size_bytes);
        if let Some(deleted) = &change.deleted {
            let removed = deleted.key.as_deref().and_then(|key| self.inserted.get(key));
            if let Some(removed) = removed {
                rows -= 1;
                bytes -= removed.size_bytes + 1;
            }
            if removed.is_none() || absolute && !self.has_deleted(deleted) {
                rows += 1;
                bytes += deleted.size_bytes + 1;
            }
        }
        if let Some(inserted) = &change.inserted {
            rows += 1;
            bytes += inserted.size_bytes + 1;
        }
        (rows, ENVELOPE_BYTES + bytes)
    }

    fn has_deleted(&self, row: &DocumentRow) -> bool {
        row.key.as_ref().is_some_and(|key| self.deleted_keys.contains(key))
    }

    /// Adds a change. `absolute`: a row that was inserted and deleted here is in the list of deleted rows, because a
    /// consumer may have got it in a document that was divided in another way.
    pub(super) fn add(&mut self, change: RowChange, absolute: bool) {
        if let Some(deleted) = change.deleted {
            let removed = deleted.key.as_deref().and_then(|key| self.inserted.remove(key));
            if let Some(removed) = &removed {
                self.size_bytes -= removed.size_bytes + 1;
            }
            if removed.is_none() || absolute && !self.has_deleted(&deleted) {
                self.size_bytes += deleted.size_bytes + 1;
                if let Some(key) = deleted.key.as_ref().filter(|_| absolute) {
                    self.deleted_keys.insert(Arc::clone(key));
                }
                self.deleted.push(deleted);
            }
        }
        if let Some(inserted) = change.inserted {
            self.size_bytes += inserted.size_bytes + 1;
            self.inserted.push(inserted);
        }
    }

    /// All rows were removed.
    pub(super) fn truncate(&mut self) {
        *self = Self { truncated: true, ..Self::default() };
    }

    /// Appends the document.
    pub(super) fn push(&self, chunk: Option<DocumentChunk<'_>>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"v\":1");
        if let Some(DocumentChunk { sequence, number, totals }) = chunk {
            out.extend_from_slice(b",\"sequence\":\"");
            out.extend_from_slice(sequence.as_bytes());
            push_number(out, "\",\"chunk\":", number);
            if let Some((inserted, deleted)) = totals {
                out.extend_from_slice(b",\"last\":true");
                push_number(out, ",\"chunks\":", number);
                push_number(out, ",\"inserted_count\":", inserted);
                push_number(out, ",\"deleted_count\":", deleted);
            }
        }
        if self.truncated {
            out.extend_from_slice(b",\"truncated\":true");
        }
        let unchanged = self.inserted.iter().flat_map(|row| &row.unchanged);
        let unchanged: BTreeSet<&[u8]> = unchanged.map(|column| &*column.member).collect();
        for (at, member) in unchanged.iter().enumerate() {
            out.extend_from_slice(if at == 0 { b",\"unchanged\":[" } else { b"," });
            // Without the colon.
            out.extend_from_slice(member.strip_suffix(b":").unwrap_or(member));
        }
        if !unchanged.is_empty() {
            out.push(b']');
        }
        push_rows(out, b",\"inserted\":[", self.inserted.iter());
        push_rows(out, b",\"deleted\":[", self.deleted.iter());
        out.push(b'}');
    }
}

/// Appends the document that begins a sequence.
pub(super) fn push_header(sequence: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"v\":1,\"claim_check\":false,\"sequence\":\"");
    out.extend_from_slice(sequence.as_bytes());
    out.extend_from_slice(b"\"}");
}

fn push_number(out: &mut Vec<u8>, before: &str, number: u64) {
    out.extend_from_slice(before.as_bytes());
    out.extend_from_slice(number.to_string().as_bytes());
}

fn push_rows<'r>(out: &mut Vec<u8>, before: &[u8], rows: impl Iterator<Item = &'r DocumentRow>) {
    out.extend_from_slice(before);
    for (at, row) in rows.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&row.json);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, value: Option<&str>) -> DocumentRow {
        let object: Arc<[u8]> = match value {
            Some(value) => format!("{{\"k\":{key},\"v\":{value}}}").into_bytes().into(),
            None => format!("{{\"k\":{key}}}").into_bytes().into(),
        };
        let key = Some(format!("{{\"k\":{key}}}").into_bytes().into());
        DocumentRow { size_bytes: object.len(), json: object, key, unchanged: Vec::new() }
    }

    fn insert(key: &str, value: &str) -> RowChange {
        RowChange { inserted: Some(row(key, Some(value))), ..RowChange::default() }
    }

    fn delete(key: &str) -> RowChange {
        RowChange { deleted: Some(row(key, None)), ..RowChange::default() }
    }

    fn update(key: &str, value: &str) -> RowChange {
        RowChange { inserted: Some(row(key, Some(value))), ..delete(key) }
    }

    fn document(changes: &[RowChange], absolute: bool) -> String {
        let mut document = Document::default();
        for change in changes {
            let expected = document.with(change, absolute);
            document.add(change.clone(), absolute);
            let rows = document.inserted.live + document.deleted.len();
            assert_eq!(expected, (rows, ENVELOPE_BYTES + document.size_bytes));
        }
        text(&document)
    }

    fn text(document: &Document) -> String {
        let mut out = Vec::new();
        document.push(None, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_that_comes_and_goes_is_in_neither_list_unless_its_key_was_there_before() {
        let both = [insert("1", "1"), update("1", "2"), delete("1")];
        assert_eq!(document(&both, false), r#"{"v":1,"inserted":[],"deleted":[]}"#);
        let before = [delete("1"), insert("1", "1"), delete("1")];
        assert_eq!(document(&before, false), r#"{"v":1,"inserted":[],"deleted":[{"k":1}]}"#);
        let twice = [update("1", "1"), update("1", "2"), insert("2", "0")];
        assert_eq!(
            document(&twice, false),
            r#"{"v":1,"inserted":[{"k":1,"v":2},{"k":2,"v":0}],"deleted":[{"k":1}]}"#
        );
        // A consumer may have the row from a document that was divided in another way.
        assert_eq!(document(&both, true), r#"{"v":1,"inserted":[],"deleted":[{"k":1}]}"#);
        assert_eq!(document(&before, true), r#"{"v":1,"inserted":[],"deleted":[{"k":1}]}"#);
    }

    #[test]
    fn equal_rows_are_removed_one_by_one() {
        let whole = |value: &str| {
            let mut row = row("1", Some(value));
            row.key = Some(Arc::clone(&row.json));
            Some(row)
        };
        let insert = |value| RowChange { inserted: whole(value), ..RowChange::default() };
        let delete = |value| RowChange { deleted: whole(value), ..RowChange::default() };
        let one = [insert("1"), insert("1"), insert("2"), delete("1")];
        let expected = r#"{"v":1,"inserted":[{"k":1,"v":1},{"k":1,"v":2}],"deleted":[]}"#;
        assert_eq!(document(&one, false), expected);
        let all = [insert("1"), insert("1"), delete("1"), delete("1"), delete("1")];
        assert_eq!(document(&all, false), r#"{"v":1,"inserted":[],"deleted":[{"k":1,"v":1}]}"#);
    }

    #[test]
    fn a_truncation_removes_what_was_before_it() {
        let mut document = Document::default();
        document.add(insert("1", "1"), false);
        document.add(delete("2"), false);
        document.truncate();
        assert!(!document.is_empty() && !document.has_rows());
        document.add(insert("3", "1"), false);
        assert_eq!(
            text(&document),
            r#"{"v":1,"truncated":true,"inserted":[{"k":3,"v":1}],"deleted":[]}"#
        );
        assert_eq!(document.size_bytes, r#"{"k":3,"v":1},"#.len());
    }

    #[test]
    fn an_unchanged_value_is_taken_from_the_row_that_is_replaced_or_named() {
        let member: Arc<[u8]> = b"\"v\":".to_vec().into();
        let mut unsent = update("1", "0");
        let inserted = unsent.inserted.as_mut().unwrap();
        inserted.json = b"{\"k\":1}".to_vec().into();
        inserted.unchanged = vec![UnchangedColumn { member }];
        let mut alone = Document::default();
        let mut change = unsent.clone();
        alone.complete(&mut change);
        alone.add(change, false);
        assert_eq!(
            text(&alone),
            r#"{"v":1,"unchanged":["v"],"inserted":[{"k":1}],"deleted":[{"k":1}]}"#
        );
        let mut after = Document::default();
        after.add(insert("1", "\"toast, }\""), false);
        after.complete(&mut unsent);
        after.add(unsent, false);
        assert_eq!(text(&after), r#"{"v":1,"inserted":[{"k":1,"v":"toast, }"}],"deleted":[]}"#);
    }

    #[test]
    fn rows_that_come_and_go_take_no_memory() {
        let mut document = Document::default();
        document.add(insert("0", "0"), false);
        for number in 1..100_000 {
            let key = number.to_string();
            document.add(insert(&key, "1"), false);
            document.add(delete(&key), false);
        }
        assert_eq!(document.counts(), (1, 0));
        assert!(document.inserted.rows.len() <= REMOVED_MAX + 8);
        document.add(delete("0"), false);
        assert_eq!(document.size_bytes, 0);
    }

    #[test]
    fn a_document_of_a_sequence_says_which_and_the_last_one_how_much() {
        let mut document = Document::default();
        document.add(insert("1", "1"), false);
        let mut out = Vec::new();
        let chunk = DocumentChunk { sequence: "S-1", number: 3, totals: None };
        document.push(Some(chunk), &mut out);
        out.push(b'\n');
        document.push(Some(DocumentChunk { totals: Some((2001, 7)), ..chunk }), &mut out);
        out.push(b'\n');
        push_header("S-1", &mut out);
        let counts = r#""chunks":3,"inserted_count":2001,"deleted_count":7"#;
        let rows = r#""inserted":[{"k":1,"v":1}],"deleted":[]}"#;
        let expected = format!(
            "{{\"v\":1,\"sequence\":\"S-1\",\"chunk\":3,{rows}\n\
             {{\"v\":1,\"sequence\":\"S-1\",\"chunk\":3,\"last\":true,{counts},{rows}\n\
             {{\"v\":1,\"claim_check\":false,\"sequence\":\"S-1\"}}"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
