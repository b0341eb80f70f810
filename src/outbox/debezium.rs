//! Header texts as Debezium's converters write them, column type by column type.

use super::span::{Extent, FieldId, Row, Span};

/// The header's text for a field.
pub(super) fn header(row: &Row<'_>, field: FieldId, _scratch: &mut Vec<u8>) -> Span {
    let extent: Option<Extent> = row.extent(field);
    Span::from(extent)
}
