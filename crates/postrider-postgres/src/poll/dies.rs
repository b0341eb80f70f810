//! Whether one more failure is a row's last, as its layout counts: what [`super::settle`] writes then is for good.

use super::spec::{Marks, PollSpec};
use super::table::Shape;
use pg_replication::pgoutput::{self, Column, Message};

/// The failures of a row, as it was claimed, and one more, where it is dead with that.
pub(super) fn dies(spec: &PollSpec, shape: &Shape, row: &[u8]) -> Option<u32> {
    let failures = number(shape, row, spec.marks.failures()?)?.saturating_add(1);
    let dead = match &spec.marks {
        Marks::Delete | Marks::PublishedAt { .. } => false,
        // Over so many, and only where there is a table to move it to.
        Marks::Commerce { .. } => shape.dlq.is_some() && failures > spec.attempts_max,
        Marks::Gcx { max_retries, .. } => {
            number(shape, row, max_retries).is_some_and(|max| failures >= max)
        }
        Marks::Sqlgarden { .. } => failures >= spec.attempts_max,
    };
    dead.then_some(failures)
}

/// The number that a column of the row has.
fn number(shape: &Shape, row: &[u8], name: &str) -> Option<u32> {
    let at = shape.columns.iter().position(|column| column.name == name)?;
    let Ok(Message::Insert(insert)) = pgoutput::decode(row) else { return None };
    let Some(Column::Text(text)) = insert.new.get(at) else { return None };
    std::str::from_utf8(text).ok()?.parse().ok()
}
