//! Ranges of bytes in one of three buffers: the row, the mapper's scratch buffer, and the fixed text of the route.
//!
//! A record is first built as ranges, while the scratch buffer grows, and then resolved to slices: so nothing is
//! allocated, and no slice borrows a buffer that is still written.

use postrider_core::row::{ByteRange, ValueType};

/// Index of a field: a role or an extra column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FieldId(pub(super) usize);

/// The place of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CellRange {
    /// The value is NULL.
    Null,
    /// In the row.
    Row(ByteRange),
    /// In the scratch buffer.
    Scratch(ByteRange),
    /// In the fixed text.
    Fixed(ByteRange),
}

impl CellRange {
    /// The bytes that were written to `scratch` since its length was `start`.
    pub(super) fn since(start: usize, scratch: &[u8]) -> Self {
        Self::Scratch(ByteRange { start, len: scratch.len() - start })
    }
}

impl From<Option<ByteRange>> for CellRange {
    fn from(extent: Option<ByteRange>) -> Self {
        extent.map_or(Self::Null, Self::Row)
    }
}

/// The three buffers.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a> {
    pub(super) row: &'a [u8],
    pub(super) scratch: &'a [u8],
    pub(super) fixed: &'a str,
}

impl<'a> Buffers<'a> {
    /// The bytes at `range`.
    #[inline]
    pub(super) fn get(self, range: CellRange) -> Option<&'a [u8]> {
        match range {
            CellRange::Null => None,
            CellRange::Row(extent) => Some(extent.of(self.row)),
            CellRange::Scratch(extent) => Some(extent.of(self.scratch)),
            CellRange::Fixed(extent) => Some(extent.of(self.fixed.as_bytes())),
        }
    }
}

/// The columns of one event, a row or a message, accessible by field.
#[derive(Clone, Copy)]
pub(super) struct EventRow<'r> {
    pub(super) bytes: &'r [u8],
    /// By column.
    pub(super) cells: &'r [Option<ByteRange>],
    /// By field: its column and the column's type.
    pub(super) columns: &'r [ColumnSource],
}

/// The column of a field in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ColumnSource {
    /// The column's index; `None` if the table has no such column.
    pub(super) column: Option<usize>,
    /// The column's type.
    pub(super) value_type: ValueType,
}

impl<'r> EventRow<'r> {
    /// The range of the field's text; `None` for NULL and for a missing column.
    #[inline]
    pub(super) fn extent(&self, field: FieldId) -> Option<ByteRange> {
        self.cells[self.columns[field.0].column?]
    }

    /// Whether the table has a column for the field.
    #[inline]
    pub(super) fn has(&self, field: FieldId) -> bool {
        self.columns[field.0].column.is_some()
    }

    /// The bytes at `extent`.
    #[inline]
    pub(super) fn at(&self, extent: ByteRange) -> &'r [u8] {
        extent.of(self.bytes)
    }

    /// The field's text.
    #[inline]
    pub(super) fn text(&self, field: FieldId) -> Option<&'r [u8]> {
        self.extent(field).map(|extent| self.at(extent))
    }

    /// The field's type.
    #[inline]
    pub(super) fn type_of(&self, field: FieldId) -> ValueType {
        self.columns[field.0].value_type
    }
}
