//! What can be kept of an event that can't be published. Nothing here runs for any other event.

use super::error::{MapError, Poison, Problem, Remains};
use super::route::Route;
use super::shape::Shape;
use super::span::{Buffers, Row, Span};
use super::work::Work;
use postrider_core::event::{Position, shown_id};
use postrider_core::record::OwnedRecord;

/// The event of this shape is poison.
#[cold]
pub(super) fn poison(
    route: &Route,
    work: &Work,
    row: Row<'_>,
    shape: &Shape,
    position: Position,
    problem: Problem,
) -> MapError {
    let buffers = Buffers { row: row.bytes, scratch: &work.scratch, fixed: &route.fixed };
    let bytes = |span: Span| buffers.get(span).map(<[u8]>::to_vec);
    let text = |span: Span| bytes(span).and_then(|bytes| String::from_utf8(bytes).ok());
    let aggregate_id = if shape.aggregate_id == Span::Null && route.debezium {
        // As a record of the layout has it.
        Some(String::new())
    } else {
        text(shape.aggregate_id)
    };
    let header = |(name, value): &(Span, Span)| Some((text(*name)?, bytes(*value)));
    let remains = Remains {
        event_id: text(shape.id),
        event_type: text(shape.event_type),
        aggregate: text(shape.aggregate_type).zip(aggregate_id),
        record: OwnedRecord {
            topic: text(shape.topic).unwrap_or_default(),
            partition: shape.partition,
            key: bytes(shape.key),
            value: bytes(shape.value),
            timestamp_ms: shape.timestamp_ms,
            headers: work.headers.iter().filter_map(header).collect(),
        },
    };
    of(position, problem, remains)
}

/// A message that nothing can be read of: its content is kept as it is.
#[cold]
pub(super) fn not_json(position: Position, content: &[u8]) -> MapError {
    let record = OwnedRecord { value: Some(content.to_vec()), ..OwnedRecord::default() };
    of(position, Problem::NotJson, Remains { record, ..Remains::default() })
}

fn of(position: Position, problem: Problem, remains: Remains) -> MapError {
    let id = remains.event_id.as_deref();
    let event_id = id.map(|id| shown_id(id).into_owned());
    MapError::Poison(Poison { position, event_id, problem, remains: Box::new(remains) })
}
