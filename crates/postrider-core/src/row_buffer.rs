//! Rows that are kept after the source has received them.

use crate::row::{ByteRange, Row, TableId};
use std::fmt;
use std::mem::size_of;

/// Rows in one buffer, in the order in which they were added. Nothing is allocated for a row, except that the buffer
/// grows. `Debug` shows sizes only.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RowBuffer {
    rows: Vec<KeptRow>,
    cells: Vec<Option<ByteRange>>,
    bytes: Vec<u8>,
}

/// A row of the buffer: its table, and where its cells and bytes begin. They end where those of the next row begin.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KeptRow {
    table: TableId,
    cells: usize,
    bytes: usize,
}

impl RowBuffer {
    /// Adds a row, without cells.
    pub fn push_row(&mut self, table: TableId) -> NewRow<'_> {
        let begins = self.bytes.len();
        self.rows.push(KeptRow { table, cells: self.cells.len(), bytes: begins });
        NewRow { buffer: self, begins }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What the rows take. Unit: bytes.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
            + self.cells.len() * size_of::<Option<ByteRange>>()
            + self.rows.len() * size_of::<KeptRow>()
    }

    /// The row at `index`, from 0; `None` at the end.
    pub fn row(&self, index: usize) -> Option<Row<'_>> {
        let KeptRow { table, cells, bytes } = *self.rows.get(index)?;
        let next = self.rows.get(index + 1);
        let (cells_end, bytes_end) =
            next.map_or((self.cells.len(), self.bytes.len()), |next| (next.cells, next.bytes));
        Some(Row {
            table,
            bytes: self.bytes.get(bytes..bytes_end)?,
            cells: self.cells.get(cells..cells_end)?,
        })
    }

    /// The rows in order.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.rows.len()).filter_map(|index| self.row(index))
    }
}

/// The last row of a buffer, whose cells are added in the order of the table's columns.
#[derive(Debug)]
pub struct NewRow<'b> {
    buffer: &'b mut RowBuffer,
    /// Where its bytes begin.
    begins: usize,
}

impl NewRow<'_> {
    /// Adds a cell: a text, or `None` for NULL.
    pub fn push_cell(&mut self, text: Option<&[u8]>) {
        let RowBuffer { bytes, cells, .. } = &mut *self.buffer;
        cells.push(text.map(|text| {
            let start = bytes.len() - self.begins;
            bytes.extend_from_slice(text);
            ByteRange { start, len: text.len() }
        }));
    }
}

impl fmt::Debug for RowBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowBuffer({} rows, {} B)", self.rows.len(), self.size_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_its_own_cells_and_bytes() {
        let mut rows = RowBuffer::default();
        assert_eq!((rows.len(), rows.row(0)), (0, None));
        let mut row = rows.push_row(TableId(7));
        row.push_cell(Some(b"one"));
        row.push_cell(None);
        row.push_cell(Some(b""));
        rows.push_row(TableId(8));
        rows.push_row(TableId(9)).push_cell(Some(b"secret"));
        let read = |index| {
            let row: Row<'_> = rows.row(index)?;
            let cells = (0..row.cells.len()).map(|cell| row.text(cell));
            Some((row.table.0, row.bytes, cells.collect::<Vec<_>>()))
        };
        assert_eq!(read(0), Some((7, &b"one"[..], vec![Some(&b"one"[..]), None, Some(b"")])));
        assert_eq!(read(1), Some((8, &b""[..], vec![])));
        assert_eq!(read(2), Some((9, &b"secret"[..], vec![Some(&b"secret"[..])])));
        assert_eq!(read(3), None);
        assert_eq!(rows.iter().count(), 3);
        assert!(rows.size_bytes() >= 9 + 4 * 16);
        assert!(!format!("{rows:?} {:?}", rows.row(2)).contains("secret"));
    }
}
