//! A captured table as the stream describes it: what its rows look like as JSON, and what identifies them.

use super::document::{DocumentRow, RowChange, UnchangedColumn};
use super::json::{self, JsonShape, NotUtf8};
use super::shapes::{self, Shapes};
use super::{CaptureError, CaptureFault};
use pg_replication::pgoutput::{Column, Columns, OldTuple, Relation, Tuple};
use std::sync::Arc;

/// `pg_class.relreplident` of a table whose old rows are sent whole.
const FULL: u8 = b'f';

/// The columns of a captured table, and the columns of its replica identity.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct StreamedTable {
    /// Index of the table in the specification.
    pub(super) table: usize,
    /// The OID.
    id: u32,
    /// Old rows are sent whole, and identify the row.
    full: bool,
    /// The replica identity has columns.
    has_key: bool,
    columns: Vec<StreamedColumn>,
}

/// A column of a captured table.
#[derive(PartialEq, Eq, Debug)]
struct StreamedColumn {
    /// The name in quotes, with a colon.
    member: Arc<[u8]>,
    /// Whether it belongs to the replica identity.
    key: bool,
    shape: Arc<JsonShape>,
    /// The type can be changed or dropped: then the text of the value counts for the size of a document instead of its
    /// JSON, so that a transaction that is sent again is divided in the same places.
    may_change: bool,
}

/// The value of a column, and whether the server has sent it.
type SentValue<'a> = Option<Option<&'a [u8]>>;

impl StreamedTable {
    /// The table with the index `table`, as it is described.
    pub(super) fn new(table: usize, relation: &Relation<'_>, shapes: &Shapes) -> Self {
        let full = relation.replica_identity == FULL;
        let column = |column: pg_replication::pgoutput::RelationColumn<'_>| StreamedColumn {
            member: json::member_name(column.name).into(),
            key: column.key,
            shape: shapes.of(column.type_oid),
            may_change: shapes::may_change(column.type_oid),
        };
        let columns: Vec<StreamedColumn> = relation.columns.iter().map(column).collect();
        let has_key = full || columns.iter().any(|column| column.key);
        Self { table, id: relation.id, full, has_key, columns }
    }

    /// A new row.
    pub(super) fn inserted(&self, new: &Tuple<'_>) -> Result<RowChange, CaptureError> {
        Ok(RowChange { inserted: Some(self.row(new, None)?), ..RowChange::default() })
    }

    /// A deleted row.
    pub(super) fn deleted(&self, old: &OldTuple<'_>) -> Result<RowChange, CaptureError> {
        let (deleted, loose) = self.old_row(old)?;
        Ok(RowChange { deleted: Some(deleted), inserted: None, loose })
    }

    /// A changed row.
    pub(super) fn updated(
        &self,
        old: Option<&OldTuple<'_>>,
        new: &Tuple<'_>,
    ) -> Result<RowChange, CaptureError> {
        let (deleted, loose) = match old {
            Some(old) => self.old_row(old)?,
            // The columns of the replica identity are unchanged. Those of a partition that has another one than the
            // partitioned table are not known, but they are in the row.
            None if self.full => (DocumentRow { key: None, ..self.row(new, None)? }, true),
            None => (self.key_row(new)?, false),
        };
        let inserted = Some(self.row(new, old)?);
        Ok(RowChange { deleted: Some(deleted), inserted, loose })
    }

    fn error(&self, fault: CaptureFault) -> CaptureError {
        CaptureError { relation: self.id, fault }
    }

    /// A deleted row, or its key, and whether the key can't be compared with those of other rows.
    fn old_row(&self, old: &OldTuple<'_>) -> Result<(DocumentRow, bool), CaptureError> {
        match old {
            OldTuple::Key(key) if self.full => Ok((self.partition_key(key)?, true)),
            OldTuple::Key(row) | OldTuple::Whole(row) if !self.full => {
                Ok((self.key_row(row)?, false))
            }
            OldTuple::Key(row) | OldTuple::Whole(row) => Ok((self.row(row, None)?, false)),
        }
    }

    /// The key that a partition with a replica identity of its own sends, while the partitioned table sends whole rows.
    /// No column of a replica identity is NULL, and all others are.
    fn partition_key(&self, tuple: &Tuple<'_>) -> Result<DocumentRow, CaptureError> {
        self.check_width(tuple)?;
        let mut object = Object::new();
        for (column, value) in self.columns.iter().zip(tuple.columns()) {
            if let Some(Some(value)) = sent(value).map_err(|fault| self.error(fault))? {
                let pushed = object.push(column, Some(value));
                pushed.map_err(|NotUtf8| self.error(CaptureFault::NotText))?;
            }
        }
        let (json, size_bytes) = object.end();
        Ok(DocumentRow { json, key: None, size_bytes, unchanged: Vec::new() })
    }

    /// The columns of the replica identity, of a row that has them.
    fn key_row(&self, tuple: &Tuple<'_>) -> Result<DocumentRow, CaptureError> {
        self.check_width(tuple)?;
        if !self.has_key {
            return Err(self.error(CaptureFault::NoIdentity));
        }
        let mut object = Object::new();
        for (column, value) in self.columns.iter().zip(tuple.columns()) {
            if !column.key {
                continue;
            }
            let value = sent(value).map_err(|fault| self.error(fault))?;
            // A partition with another replica identity than the partitioned table does not send it.
            let Some(Some(value)) = value else {
                return Err(self.error(CaptureFault::NoKeyValue));
            };
            object
                .push(column, Some(value))
                .map_err(|NotUtf8| self.error(CaptureFault::NotText))?;
        }
        let (json, size_bytes) = object.end();
        let key = Some(Arc::clone(&json));
        Ok(DocumentRow { json, key, size_bytes, unchanged: Vec::new() })
    }

    /// A whole row. `old`: where values are that were not sent with the new row.
    fn row(
        &self,
        tuple: &Tuple<'_>,
        old: Option<&OldTuple<'_>>,
    ) -> Result<DocumentRow, CaptureError> {
        self.check_width(tuple)?;
        let (mut before, whole) = match old {
            Some(OldTuple::Whole(row)) => (Some(row.columns()), true),
            Some(OldTuple::Key(key)) => (Some(key.columns()), false),
            None => (None, false),
        };
        let (mut object, mut key) = (Object::new(), Object::new());
        let mut unchanged = Vec::new();
        for (column, value) in self.columns.iter().zip(tuple.columns()) {
            let old_value = before.as_mut().and_then(Columns::next);
            let fault = |fault| self.error(fault);
            let mut value = sent(value).map_err(fault)?;
            if value.is_none() && (whole || column.key) {
                value = old_value.map_or(Ok(None), sent).map_err(fault)?;
            }
            let Some(value) = value else {
                if column.key && !self.full {
                    return Err(fault(CaptureFault::NoKeyValue));
                }
                object.size_bytes += column.member.len();
                unchanged.push(UnchangedColumn { member: Arc::clone(&column.member) });
                continue;
            };
            let not_text = |NotUtf8| fault(CaptureFault::NotText);
            object.push(column, value).map_err(not_text)?;
            if column.key && !self.full {
                key.push(column, value).map_err(not_text)?;
            }
        }
        let (json, size_bytes) = object.end();
        let key = match (self.full, self.has_key) {
            (true, _) => Some(Arc::clone(&json)),
            (false, true) => Some(key.end().0),
            (false, false) => None,
        };
        Ok(DocumentRow { json, key, size_bytes, unchanged })
    }

    fn check_width(&self, tuple: &Tuple<'_>) -> Result<(), CaptureError> {
        if tuple.len() == self.columns.len() {
            Ok(())
        } else {
            Err(self.error(CaptureFault::Width))
        }
    }
}

/// The value of a column; `None` if the server has not sent it.
fn sent(column: Column<'_>) -> Result<SentValue<'_>, CaptureFault> {
    match column {
        Column::Null => Ok(Some(None)),
        Column::Unchanged => Ok(None),
        Column::Text(text) => Ok(Some(Some(text))),
        Column::Binary(_) => Err(CaptureFault::NotText),
    }
}

/// An object that is being written.
struct Object {
    json: Vec<u8>,
    size_bytes: usize,
}

impl Object {
    fn new() -> Self {
        Self { json: vec![b'{'], size_bytes: "{}".len() }
    }

    fn push(&mut self, column: &StreamedColumn, value: Option<&[u8]>) -> Result<(), NotUtf8> {
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        self.json.extend_from_slice(&column.member);
        let start = self.json.len();
        json::push_value(&column.shape, value, &mut self.json)?;
        let value_bytes = match value {
            Some(text) if column.may_change => json::string_bytes(text),
            Some(_) | None => self.json.len() - start,
        };
        self.size_bytes += 1 + column.member.len() + value_bytes;
        Ok(())
    }

    fn end(mut self) -> (Arc<[u8]>, usize) {
        self.json.push(b'}');
        (self.json.into(), self.size_bytes)
    }
}
