//! From an outbox's specification to what polling is told of its table.

use crate::outbox::{Layout, OutboxSpec, Role, TimestampSource};
use crate::postgres::TableName;
use crate::postgres::poll::{Backoff, Marks, PollSpec};

/// How the outbox of `pipeline` is polled; `None` where it has no table. `delete`: `poll.mark = "delete"`.
///
/// Failures are tried again as layout `commerce` has it, and hold their aggregates back; set the fields to differ.
pub fn poll_spec(pipeline: &str, outbox: &OutboxSpec, delete: bool) -> Option<PollSpec> {
    let table = outbox.table.as_ref()?;
    let table = TableName::new(table.schema.clone(), table.name.clone());
    let column = |role| outbox.column(role).map(str::to_owned);
    Some(PollSpec {
        pipeline: pipeline.to_owned(),
        id: column(Role::Id)?,
        aggregate_type: column(Role::AggregateType)?,
        aggregate_id: column(Role::AggregateId)?,
        time: column(Role::Time),
        stamps: outbox.timestamp == TimestampSource::Event,
        marks: marks(outbox, &table),
        table,
        delete,
        block_key: true,
        attempts_max: 10,
        backoff: Backoff::DEFAULT,
        zone: outbox.zone.clone(),
    })
}

/// The layout's marks; a column that plays a role is the one named for it.
fn marks(outbox: &OutboxSpec, table: &TableName) -> Marks {
    let named = |role, column: &mut String| {
        if let Some(name) = outbox.column(role) {
            name.clone_into(column);
        }
    };
    match outbox.layout {
        Layout::Postrider | Layout::Debezium => Marks::Delete,
        Layout::Adr30 => Marks::adr30(),
        Layout::Sqlgarden => Marks::sqlgarden(),
        Layout::Commerce => {
            let mut marks = Marks::commerce(table);
            if let Marks::Commerce { available_at, .. } = &mut marks {
                named(Role::AvailableAt, available_at);
            }
            marks
        }
        Layout::Gcx => {
            let mut marks = Marks::gcx();
            if let Marks::Gcx { expires_at, .. } = &mut marks {
                named(Role::ExpiresAt, expires_at);
            }
            marks
        }
    }
}
