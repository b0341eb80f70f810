//! Options of the outbox event router: its own, and those that any transform has.

use super::{Known, needless, to, without};

/// Options of the transform, below `transforms.<alias>.`.
pub const ROUTER: &[Known] = &[
    needless("type", "layout debezium is the router"),
    needless("predicate", "only the outbox table is read"),
    needless("negate", "only the outbox table is read"),
    to("table.field.event.id", "outbox.columns.id"),
    to("table.field.event.key", "outbox.columns.aggregate_id: the key, and the unit of order"),
    needless("table.field.event.type", "the router never reads it; place the column to send it"),
    to("table.field.event.timestamp", "outbox.columns.time"),
    to("table.field.event.payload", "outbox.columns.payload"),
    to("table.field.payload", "outbox.columns.payload; its name in 1.x"),
    to("table.field.payload.id", "outbox.columns.aggregate_id; an option of 1.x"),
    without(
        "table.field.event.schema.version",
        &[],
        "records carry no schema; place the column as a header",
    ),
    without(
        "table.field.schema.version",
        &[],
        "records carry no schema; place the column as a header",
    ),
    to("table.fields.additional.placement", "outbox.extra, in the same order"),
    to("table.field.additional.missing", "`optional` in outbox.extra"),
    to("table.fields.additional.error.on.missing", "`optional` in outbox.extra"),
    to(
        "table.expand.json.payload",
        "payload.expand_json; without an envelope JSON passes as it is",
    ),
    needless(
        "table.json.payload.null.behavior",
        "nothing is dropped: the JSON passes as it was written",
    ),
    needless(
        "table.json.payload.empty.array.behavior",
        "nothing is dropped: an empty array passes as it was written",
    ),
    needless(
        "debezium.expand.json.payload",
        "Debezium itself does not know it any more, and ignores it",
    ),
    to("route.by.field", "outbox.columns.aggregate_type"),
    to("route.topic.regex", "route.replace.pattern"),
    to("route.topic.replacement", "route.topic, or route.replace.with"),
    to("route.tombstone.on.empty.payload", "payload.empty, payload.null"),
    without(
        "table.op.invalid.behavior",
        &["warn", "error"],
        "fatal is refused; an update is never an error: the publication has inserts alone, others are passed over and \
         counted",
    ),
    needless(
        "debezium.op.invalid.behavior",
        "Debezium itself does not know it any more, and ignores it",
    ),
    without("tracing.*", &[], "no spans; a column with a W3C traceparent is outbox.columns.trace"),
];
