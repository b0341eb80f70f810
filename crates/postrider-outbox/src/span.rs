//! Places of bytes: in the row as it came, in the mapper's scratch buffer, in the text fixed when it was built.
//!
//! A record is first laid out as places while the scratch buffer grows, then resolved to slices in one go: so nothing
//! is allocated and nothing borrows what is still being written.

/// Index of a field: a role or an extra column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FieldId(pub(super) usize);

/// A run of bytes in some buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Extent {
    /// The bytes. Out of range is our own bug, and panics.
    #[inline]
    pub(super) fn of(self, buffer: &[u8]) -> &[u8] {
        &buffer[self.start..self.start + self.len]
    }
}

/// Where a value lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Span {
    /// Nowhere: it is null.
    Null,
    /// In the row.
    Row(Extent),
    /// In the scratch buffer.
    Scratch(Extent),
    /// In the fixed text.
    Fixed(Extent),
}

impl Span {
    /// What was written to `scratch` since it had `start` bytes.
    pub(super) fn since(start: usize, scratch: &[u8]) -> Self {
        Self::Scratch(Extent { start, len: scratch.len() - start })
    }
}

impl From<Option<Extent>> for Span {
    fn from(extent: Option<Extent>) -> Self {
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
    /// The bytes at `span`.
    #[inline]
    pub(super) fn get(self, span: Span) -> Option<&'a [u8]> {
        match span {
            Span::Null => None,
            Span::Row(extent) => Some(extent.of(self.row)),
            Span::Scratch(extent) => Some(extent.of(self.scratch)),
            Span::Fixed(extent) => Some(extent.of(self.fixed.as_bytes())),
        }
    }
}

/// One event's columns, found by field.
#[derive(Clone, Copy)]
pub(super) struct Row<'r> {
    pub(super) bytes: &'r [u8],
    /// By column.
    pub(super) cells: &'r [Option<Extent>],
    /// By field: its column and the column's type.
    pub(super) columns: &'r [Source],
}

/// Where a field is found in a relation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Source {
    /// The column's index; `None` where the relation lacks it.
    pub(super) column: Option<usize>,
    /// The column's type.
    pub(super) kind: super::types::Kind,
}

impl<'r> Row<'r> {
    /// Where the field's text lies; `None` for NULL and for a column that is not there.
    #[inline]
    pub(super) fn extent(&self, field: FieldId) -> Option<Extent> {
        self.cells[self.columns[field.0].column?]
    }

    /// Whether the relation has a column for the field.
    #[inline]
    pub(super) fn has(&self, field: FieldId) -> bool {
        self.columns[field.0].column.is_some()
    }

    /// The bytes at `extent`.
    #[inline]
    pub(super) fn at(&self, extent: Extent) -> &'r [u8] {
        extent.of(self.bytes)
    }

    /// The field's text.
    #[inline]
    pub(super) fn text(&self, field: FieldId) -> Option<&'r [u8]> {
        self.extent(field).map(|extent| self.at(extent))
    }

    /// The field's type.
    #[inline]
    pub(super) fn kind(&self, field: FieldId) -> super::types::Kind {
        self.columns[field.0].kind
    }
}
