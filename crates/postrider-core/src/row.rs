//! Tables and rows, as sources hand them on: values are text, each with the type of its column.
//!
//! A row borrows the bytes in which its source has received it, so a row is handed on without a copy.

use std::fmt;

/// The number by which a source refers to a table after it has described the table. With PostgreSQL it is the OID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TableId(pub u32);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The description of a table. A source sends it on each stream, before the first row of the table, and again after the
/// table changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table<'a> {
    /// The table's number in the rows that follow.
    pub id: TableId,
    /// The table's schema, or what the source has in its place.
    pub schema: &'a str,
    /// The table's name.
    pub name: &'a str,
    /// The columns, in the order of the rows' cells.
    pub columns: &'a [Column],
}

/// The description of a table that a source keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnedTable {
    /// As [`Table::id`].
    pub id: TableId,
    /// As [`Table::schema`].
    pub schema: String,
    /// As [`Table::name`].
    pub name: String,
    /// As [`Table::columns`].
    pub columns: Vec<Column>,
}

impl OwnedTable {
    /// The description, borrowed.
    pub fn as_table(&self) -> Table<'_> {
        Table { id: self.id, schema: &self.schema, name: &self.name, columns: &self.columns }
    }
}

/// A column of a table. It owns its name, because a source keeps the description after the bytes in which it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// The column's name.
    pub name: String,
    /// The type of its values.
    pub of: ValueType,
}

/// The type of a column's values, as far as it decides how a value is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ValueType {
    /// The kind of the values, or of the elements of an array.
    pub kind: Kind,
    /// Whether the values are arrays that are written element by element. `false` for every other array: a value is
    /// then one text.
    pub array: bool,
    /// `false`: the source could not find out the type. Then a value counts as a time or a JSON object if its text is
    /// one. `true` with [`Kind::Other`]: the type is known, and is neither.
    pub known: bool,
}

impl ValueType {
    /// A type that the source knows.
    pub const fn of(kind: Kind) -> Self {
        Self { kind, array: false, known: true }
    }

    /// An array of a type that the source knows.
    pub const fn array_of(element: Kind) -> Self {
        Self { kind: element, array: true, known: true }
    }

    /// Whether the values are of this kind, and no arrays.
    #[inline]
    pub fn is(self, kind: Kind) -> bool {
        !self.array && self.kind == kind
    }

    /// Whether a value can be a time. The values of a type without a kind can, if the source does not know the type.
    pub fn can_be_time(self) -> bool {
        !self.array && self.kind.can_be_time() && !(self.known && self.kind == Kind::Other)
    }

    /// Whether a value may be a time without a zone. For a type that the source does not know, only the values show it.
    pub fn lacks_zone(self) -> bool {
        !self.array && matches!(self.kind, Kind::Timestamp { .. } | Kind::Date | Kind::Text)
    }

    /// Whether a value can be a JSON object. The values of a type without a kind can, if the source does not know the
    /// type.
    pub fn can_be_object(self) -> bool {
        let kind =
            matches!(self.kind, Kind::Json | Kind::Text) || self.kind == Kind::Other && !self.known;
        !self.array && kind
    }

    /// Whether a text may be JSON although its type does not say so.
    pub fn may_be_json(self) -> bool {
        !self.array && matches!(self.kind, Kind::Text | Kind::Other)
    }
}

/// The kind of a value, with an example of its text: as PostgreSQL's text output with `DateStyle` ISO and
/// `IntervalStyle` postgres.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// `t` or `f`.
    Bool,
    /// Bytes, as `\x` and two hexadecimal digits for each: `\x6869`.
    Bytea,
    /// A whole number: `-42`.
    Int,
    /// A floating-point number of 32 bits: `1.5`, `1e+20`, `NaN`.
    Float4,
    /// A floating-point number of 64 bits, written in the same way.
    Float8,
    /// A decimal number: `12.50`, `NaN`.
    Numeric {
        /// Number of digits after the point, if the column declares one.
        scale: Option<u8>,
    },
    /// A JSON text: `{"a": 1}`.
    Json,
    /// A text, as it is.
    Text,
    /// A UUID: `0199e0f4-7c3a-7d21-b1c5-2f8a3c4d5e6f`.
    Uuid,
    /// A day: `2026-10-25`, `0044-03-15 BC`, `infinity`.
    Date,
    /// A time of day: `02:30:00.5`.
    Time {
        /// Number of digits of the fraction of a second, as declared; 6 if none is declared.
        digits: u8,
    },
    /// A time without a zone: `2026-10-25 02:30:00.5`.
    Timestamp {
        /// As for [`Kind::Time`].
        digits: u8,
    },
    /// A time with an offset from UTC: `2026-10-25 02:30:00.5+00`.
    Timestamptz {
        /// As for [`Kind::Time`].
        digits: u8,
    },
    /// PostgreSQL's `interval`: `1 year 2 mons -3 days 04:05:06.7`.
    Interval,
    /// A time of day with an offset from UTC: `02:30:00.5+02`.
    TimeTz,
    /// PostgreSQL's `money`: `$1,234.50`.
    Money,
    /// PostgreSQL's `oid`: `16384`.
    Oid,
    /// PostgreSQL's `point`: `(1.5,-2)`.
    Point,
    /// Bits: `101`.
    Bit {
        /// The declared length; 0 if none is declared. Unit: bits.
        length: i32,
    },
    /// Anything else: a text that is written as it is.
    #[default]
    Other,
}

impl Kind {
    /// Whether a value can be a time.
    fn can_be_time(self) -> bool {
        match self {
            Self::Text
            | Self::Date
            | Self::Timestamp { .. }
            | Self::Timestamptz { .. }
            | Self::Other => true,
            Self::Bool
            | Self::Bytea
            | Self::Int
            | Self::Float4
            | Self::Float8
            | Self::Numeric { .. }
            | Self::Json
            | Self::Uuid
            | Self::Time { .. }
            | Self::TimeTz
            | Self::Interval
            | Self::Money
            | Self::Oid
            | Self::Point
            | Self::Bit { .. } => false,
        }
    }
}

/// A range of bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: usize,
    /// Length. Unit: bytes.
    pub len: usize,
}

impl ByteRange {
    /// The bytes.
    ///
    /// # Panics
    /// If the range is not in `buffer`.
    #[inline]
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        &buffer[self.start..self.start + self.len]
    }
}

/// A row. `Debug` shows sizes only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    /// The table, which the source has described before.
    pub table: TableId,
    /// The bytes that the cells refer to.
    pub bytes: &'a [u8],
    /// The text of each column, UTF-8 unless a value is bytes; `None` for NULL. In the order of the table's columns.
    pub cells: &'a [Option<ByteRange>],
}

impl<'a> Row<'a> {
    /// The text of a column, by its index; `None` for NULL and for an index beyond the columns.
    ///
    /// # Panics
    /// If the cell is not in the row's bytes.
    pub fn text(&self, column: usize) -> Option<&'a [u8]> {
        self.cells.get(column).copied().flatten().map(|cell| cell.of(self.bytes))
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row({}, {} columns, {} B)", self.table, self.cells.len(), self.bytes.len())
    }
}
