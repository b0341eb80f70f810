//! The events of captured tables: one document for each transaction and table, and the table in whose rows a source
//! hands the documents on.
//!
//! The rows are made by the source, so that everything after it is the same as for the rows of an outbox.

use crate::row::{Column, Kind, OwnedTable, TableId, ValueType};

/// The schema of the table of documents, which no database has to have.
pub const SCHEMA: &str = "postrider";

/// The name of the table of documents.
pub const TABLE: &str = "table_delta";

/// The number of the table of documents. No table of PostgreSQL has this OID.
pub const TABLE_ID: TableId = TableId(0);

/// The number of the same table for the documents that begin a sequence. They have no rows, so their positions say
/// nothing about rows before them, and their records have header `history` in place of `position`. No table of
/// PostgreSQL has this OID.
pub const HEADER_TABLE_ID: TableId = TableId(1);

/// The event's id: its position with the history of the position.
pub const ID: &str = "id";

/// The table's name, with its schema if two captured tables have the same name.
pub const AGGREGATE_TYPE: &str = "aggregate_type";

/// The table's qualified name, without quotes.
pub const AGGREGATE_ID: &str = "aggregate_id";

/// Always [`DELTA_TYPE`].
pub const EVENT_TYPE: &str = "event_type";

/// The document, JSON.
pub const PAYLOAD: &str = "payload";

/// The event type of all documents.
pub const DELTA_TYPE: &str = "table_delta";

/// The description of the table of documents under one of its two numbers, with its columns in the order in which a
/// source fills them: id, aggregate type, aggregate id, event type, payload.
pub fn table(id: TableId) -> OwnedTable {
    let column = |name: &str, kind| Column { name: name.to_owned(), of: ValueType::of(kind) };
    OwnedTable {
        id,
        schema: SCHEMA.to_owned(),
        name: TABLE.to_owned(),
        columns: vec![
            column(ID, Kind::Text),
            column(AGGREGATE_TYPE, Kind::Text),
            column(AGGREGATE_ID, Kind::Text),
            column(EVENT_TYPE, Kind::Text),
            column(PAYLOAD, Kind::Json),
        ],
    }
}
