//! A row as it came: checked once when decoded, walked without checks that can fail afterwards.

use super::DecodeError;
use super::reader::Reader;
use std::fmt;

/// One row's columns in the order of the relation. `Debug` shows sizes only.
#[derive(Clone, Copy)]
pub struct Tuple<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// One column's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Column<'a> {
    /// NULL.
    Null,
    /// A value stored out of line (TOAST) which an UPDATE did not change and the server therefore did not read.
    Unchanged,
    /// The type's text output, in the session's `client_encoding`.
    Text(&'a [u8]),
    /// The type's binary output; only where the session asked for it.
    Binary(&'a [u8]),
}

/// Where a column's value lies inside its tuple, for callers that keep a reusable table of places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cell {
    /// NULL.
    Null,
    /// Text at this range of [`Tuple::bytes`].
    Text {
        /// Offset of the first byte.
        start: usize,
        /// Bytes.
        len: usize,
    },
    /// Unchanged TOAST, or binary: not text.
    Other,
}

/// Which tuples may hold unchanged TOAST values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Toast {
    Allowed,
    Refused,
}

impl<'a> Tuple<'a> {
    /// Reads and checks one tuple.
    pub(super) fn read(reader: &mut Reader<'a>, toast: Toast) -> Result<Self, DecodeError> {
        let count = reader.count()?;
        let start = *reader;
        let mut rest = reader.rest();
        for _ in 0..count {
            let Some(after) = behind_column(rest, toast) else {
                let taken = start.rest().len().saturating_sub(rest.len());
                reader.take(taken)?;
                return Err(no_column(*reader, toast));
            };
            rest = after;
        }
        reader.take(start.rest().len().saturating_sub(rest.len()))?;
        Ok(Self { count, bytes: start.up_to(reader) })
    }

    /// How many columns there are.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The columns' bytes, which [`Cell`]s point into.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The columns, first to last.
    pub fn columns(&self) -> Columns<'a> {
        Columns { rest: self.bytes }
    }

    /// The places of all columns, first to last.
    #[inline]
    pub fn cells(&self) -> impl Iterator<Item = Cell> + use<'a> {
        let length = self.bytes.len();
        let mut columns = self.columns();
        std::iter::from_fn(move || {
            let column = columns.next()?;
            Some(match column {
                Column::Null => Cell::Null,
                Column::Text(text) => {
                    let end = length.saturating_sub(columns.rest.len());
                    Cell::Text { start: end.saturating_sub(text.len()), len: text.len() }
                }
                Column::Unchanged | Column::Binary(_) => Cell::Other,
            })
        })
    }

    /// The column at `index`, from 0: walks there.
    pub fn get(&self, index: usize) -> Option<Column<'a>> {
        self.columns().nth(index)
    }
}

/// What follows the column at the beginning of `rest`, if that is whole and of a kind that may be there.
#[inline]
fn behind_column(rest: &[u8], toast: Toast) -> Option<&[u8]> {
    let (kind, rest) = rest.split_first()?;
    match kind {
        b'n' => Some(rest),
        b't' | b'b' => {
            let (length, rest) = rest.split_first_chunk()?;
            rest.get(usize::try_from(i32::from_be_bytes(*length)).ok()?..)
        }
        b'u' if toast == Toast::Allowed => Some(rest),
        _ => None,
    }
}

/// What is wrong where no column can be read.
#[cold]
fn no_column(mut reader: Reader<'_>, toast: Toast) -> DecodeError {
    let here = reader;
    let read = match reader.u8() {
        Ok(b't' | b'b') => reader.length().and_then(|length| reader.take(length)),
        Ok(b'u') if toast == Toast::Refused => {
            return here.error("an unchanged TOAST value in a new row");
        }
        Ok(_) => return here.error("an unknown kind of column"),
        Err(error) => return error,
    };
    read.err().unwrap_or_else(|| here.error("an unknown kind of column"))
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tuple({} columns, {} B)", self.count, self.bytes.len())
    }
}

impl fmt::Debug for Column<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Unchanged => f.write_str("Unchanged"),
            Self::Text(bytes) => write!(f, "Text({} B)", bytes.len()),
            Self::Binary(bytes) => write!(f, "Binary({} B)", bytes.len()),
        }
    }
}

/// Walks a tuple's columns.
#[derive(Clone)]
pub struct Columns<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Columns<'a> {
    type Item = Column<'a>;

    // The bytes were checked by `Tuple::read`, so `?` only ever fires at the end.
    #[inline]
    fn next(&mut self) -> Option<Column<'a>> {
        let (&kind, rest) = self.rest.split_first()?;
        if kind == b'n' || kind == b'u' {
            self.rest = rest;
            return Some(if kind == b'n' { Column::Null } else { Column::Unchanged });
        }
        let (length, rest) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        Some(if kind == b't' { Column::Text(value) } else { Column::Binary(value) })
    }
}
