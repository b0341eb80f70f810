//! Options of the outbox event router: its own, and those that any transform has.

use super::{Known, needless, to, without};
use crate::init::debezium::Verdict;

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
    Known {
        name: "table.op.invalid.behavior",
        verdict: Verdict::Translated,
        same: &["warn", "error"],
        text: "fatal is outbox.on_update = \"halt\"; warn and error log an UPDATE and drop it: here none is in the \
               stream, or it is passed over and counted",
    },
    needless(
        "debezium.op.invalid.behavior",
        "Debezium itself does not know it any more, and ignores it",
    ),
    without("tracing.*", &[], "no spans; a column with a W3C traceparent is outbox.columns.trace"),
];
