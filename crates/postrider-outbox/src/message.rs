//! Events without a table: `pg_logical_emit_message(true, prefix, content)`.
//!
//! The content is one JSON object, UTF-8:
//!
//! ```json
//! {"aggregate_type": "order", "aggregate_id": "42", "event_type": "OrderPlaced", "payload": {"total": 9.5},
//!  "id": "7f0c…", "headers": {"source": "shop"}}
//! ```
//!
//! `id` is optional and defaults to the position; `headers` is an optional object. A member may also be any other
//! role of the layout (`topic`, `partition_key`, `time`, `trace`) or an extra column, by its name. Strings are taken
//! raw, anything else as it was written; the payload always as it was written, so it stays JSON. `null` is NULL.
//! Unknown members are passed over. Where a member comes twice the last counts.

use super::json;
use super::layout::Role;
use super::route::Route;
use super::span::{Extent, Source};
use super::types::Kind;
use super::work::Work;

/// A message's members as if they were a row's columns.
#[derive(Debug, Default)]
pub(super) struct MessageRow {
    pub(super) bytes: Vec<u8>,
    pub(super) cells: Vec<Option<Extent>>,
    pub(super) sources: Vec<Source>,
    names: Vec<u8>,
}

impl MessageRow {
    /// For the fields of `route`: each is a column of its own.
    pub(super) fn new(route: &Route) -> Self {
        let source = |(column, field): (usize, &super::route::Field)| {
            let kind = match field.role {
                Some(Role::Payload | Role::Headers) => Kind::Json,
                Some(_) | None => Kind::Text,
            };
            Source { column: Some(column), kind }
        };
        let sources = route.fields.iter().enumerate().map(source).collect();
        Self { sources, ..Self::default() }
    }

    /// Reads one message's content.
    pub(super) fn read(&mut self, content: &[u8], route: &Route) -> Result<(), json::NotAnObject> {
        let Self { bytes, cells, names, .. } = self;
        bytes.clear();
        bytes.shrink_to(Work::KEPT_MAX);
        names.clear();
        cells.clear();
        cells.resize(route.fields.len(), None);
        json::members(content, names, |names, start, value| {
            let name = &names[start..];
            if let Some(field) = route.fields.iter().position(|field| field.name.as_bytes() == name)
            {
                let start = bytes.len();
                let written =
                    matches!(route.fields[field].role, Some(Role::Payload | Role::Headers));
                if written {
                    bytes.extend_from_slice(value.as_bytes());
                } else {
                    json::append_plain(value, bytes);
                }
                cells[field] =
                    (value != "null").then_some(Extent { start, len: bytes.len() - start });
            }
            names.clear();
        })
    }

    /// Gives the event an id where it brought none.
    pub(super) fn default_id(&mut self, route: &Route, id: impl FnOnce(&mut Vec<u8>)) {
        let cell = &mut self.cells[route.core.id.0];
        if cell.is_none() {
            let start = self.bytes.len();
            id(&mut self.bytes);
            *cell = Some(Extent { start, len: self.bytes.len() - start });
        }
    }
}
