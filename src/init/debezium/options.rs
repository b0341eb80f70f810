//! Every option of the outbox event router and of the PostgreSQL connector, with its counterpart in Postrider.
//!
//! Both the translation and docs/debezium.md are made from these tables. Names are those of Debezium 3.7, and names of
//! older releases that are still in use; a name that ends in `*` stands for all options with this prefix.

use super::Verdict;
use super::translator::Verdict::{NoCounterpart, NotNeeded, Translated};

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name.
    pub name: &'static str,
    /// The result of its translation.
    pub verdict: Verdict,
    /// Values with which the option makes no difference, whatever the verdict.
    pub same: &'static [&'static str],
    /// The key that replaces the option, why it is not needed, or what to do.
    pub text: &'static str,
}

const fn to(name: &'static str, text: &'static str) -> Known {
    Known { name, verdict: Translated, same: &[], text }
}

const fn needless(name: &'static str, text: &'static str) -> Known {
    Known { name, verdict: NotNeeded, same: &[], text }
}

const fn without(name: &'static str, same: &'static [&'static str], text: &'static str) -> Known {
    Known { name, verdict: NoCounterpart, same, text }
}

/// The entry for an option: its own, or the one with the longest prefix.
pub fn find(table: &'static [Known], option: &str) -> Option<&'static Known> {
    let matches = |known: &&Known| match known.name.strip_suffix('*') {
        Some(start) => option.starts_with(start),
        None => known.name == option,
    };
    table.iter().filter(matches).max_by_key(|known| (!known.name.ends_with('*'), known.name.len()))
}

/// Options of the connector, and those that Kafka Connect, Debezium Server and the embedded engine add, in this order:
/// database, slot, table, values, Kafka Connect, the embedded engine and Debezium Server.
pub const CONNECTOR: &[Known] = &[
    to("name", "the pipeline's name"),
    needless("connector.class", "always PostgreSQL"),
    needless("tasks.max", "a pipeline is one stream"),
    needless("tasks.max.enforce", "a pipeline is one stream"),
    to("database.hostname", "source.url"),
    to("database.port", "source.url"),
    to("database.user", "source.url"),
    to("database.dbname", "source.url"),
    without("database.password", &[], "not copied: write source.password_file, or set PGPASSWORD"),
    to("database.sslmode", "sslmode in source.url"),
    to("database.sslcert", "sslcert in source.url: PEM"),
    to(
        "database.sslkey",
        "sslkey in source.url: PEM, not DER as for the JDBC driver (openssl pkcs8 -inform DER -nocrypt)",
    ),
    to("database.sslrootcert", "sslrootcert in source.url: PEM"),
    without("database.sslpassword", &[], "the key must not be encrypted; protect its file"),
    without(
        "database.sslfactory",
        &[],
        "sslmode and sslrootcert in source.url decide what is trusted",
    ),
    without(
        "database.initial.statements",
        &[],
        "settings of the session belong to the role: ALTER ROLE … SET …",
    ),
    needless("database.query.timeout.ms", "every wait has its own limit"),
    needless("database.tcpKeepAlive", "always on; keepalives_idle and the like in source.url"),
    without("driver.*", &[], "settings of the JDBC driver; libpq's parameters go into source.url"),
    needless("read.only", "only Postrider's own schema is written to"),
    needless("connection.validation.timeout.ms", "connect_timeout in source.url"),
    to("plugin.name", "source.slot: only a slot of pgoutput is used further"),
    to("slot.name", "source.slot"),
    to("publication.name", "source.publication"),
    needless(
        "publication.autocreate.mode",
        "postrider setup uses the existing publication, or creates one with only the table",
    ),
    needless("publish.via.partition.root", "a partitioned outbox is named by its root"),
    to("slot.failover", "source.failover"),
    without(
        "slot.drop.on.stop",
        &["false"],
        "set it to false before you stop the connector: otherwise the slot is dropped and events are lost",
    ),
    without("slot.stream.params", &[], "Postrider sets the parameters of pgoutput"),
    needless("slot.max.retries", "temporary errors are retried without a limit"),
    needless("slot.retry.delay.ms", "temporary errors are retried without a limit"),
    needless("create.slot.command.timeout", "postrider setup logs what it waits for"),
    needless(
        "offset.mismatch.strategy",
        "slot and cursor row are compared at each start; a mismatch halts the pipeline",
    ),
    needless(
        "slot.seek.to.known.offset.on.start",
        "slot and cursor row are compared at each start",
    ),
    needless(
        "status.update.interval.ms",
        "flow.confirm_interval; the slot advances automatically, also when idle",
    ),
    needless("lsn.flush.timeout.ms", "confirming never waits"),
    needless("lsn.flush.timeout.action", "confirming never waits"),
    without(
        "lsn.flush.mode",
        &["connector", "connector_and_driver"],
        "only Postrider confirms positions",
    ),
    without("flush.lsn.source", &["true"], "only Postrider confirms positions"),
    needless("xmin.fetch.interval.ms", "not used"),
    needless("replica.identity.autoset.values", "inserts contain the whole row"),
    needless("heartbeat.interval.ms", "an idle outbox retains no WAL"),
    needless("heartbeat.action.query", "an idle outbox retains no WAL"),
    needless("heartbeat.topics.prefix", "an idle outbox retains no WAL"),
    needless("topic.heartbeat.prefix", "an idle outbox retains no WAL"),
    to("table.include.list", "outbox.table"),
    to("table.whitelist", "outbox.table"),
    needless("table.exclude.list", "only the outbox table is read"),
    needless("table.blacklist", "only the outbox table is read"),
    needless("table.ignore.builtin", "only the outbox table is read"),
    needless("schema.include.list", "outbox.table includes the schema"),
    needless("schema.exclude.list", "outbox.table includes the schema"),
    needless("schema.whitelist", "outbox.table includes the schema"),
    needless("column.include.list", "columns that are not configured are not published"),
    needless("column.exclude.list", "columns that are not configured are not published"),
    without(
        "column.truncate.to.*",
        &[],
        "values are published as in the row: shorten them before the INSERT",
    ),
    without(
        "column.mask.*",
        &[],
        "values are published as in the row: mask them before the INSERT",
    ),
    needless("column.propagate.source.type", "records have no schema"),
    needless("datatype.propagate.source.type", "records have no schema"),
    needless("message.key.columns", "the router's key is the aggregate's id"),
    without(
        "message.prefix.include.list",
        &[],
        "outbox.message_prefix publishes logical messages as events: docs/configuration.md",
    ),
    needless(
        "message.prefix.exclude.list",
        "logical messages are published only with outbox.message_prefix",
    ),
    needless("skipped.operations", "only inserts are published"),
    needless("tombstones.on.delete", "deletes are ignored, as in the router"),
    needless("topic.prefix", "the router's topics do not have it"),
    needless("database.server.name", "the router's topics do not have it"),
    needless("topic.naming.strategy", "the router names the topics"),
    needless("topic.delimiter", "the router names the topics"),
    needless("topic.cache.size", "the router names the topics"),
    needless("topic.transaction", "there is no topic of transactions"),
    without(
        "provide.transaction.metadata",
        &["false"],
        "no topic of transactions; header position has history, commit LSN and ordinal: route.standard_headers",
    ),
    needless("transaction.metadata.factory", "there is no topic of transactions"),
    without(
        "binary.handling.mode",
        &["bytes"],
        "bytea is raw in the value, base64 in headers and envelope",
    ),
    without(
        "decimal.handling.mode",
        &["precise"],
        "differs in placed numeric columns without a scale, and in the envelope",
    ),
    without(
        "time.precision.mode",
        &["adaptive"],
        "differs in placed columns of date, time and timestamp",
    ),
    without("interval.handling.mode", &["numeric"], "differs in placed columns of type interval"),
    without(
        "hstore.handling.mode",
        &[],
        "differs in placed columns of type hstore, which are published in PostgreSQL's text format",
    ),
    without("money.fraction.digits", &["2"], "differs in placed columns of type money"),
    needless("include.unknown.datatypes", "every type is published in PostgreSQL's text format"),
    needless("unavailable.value.placeholder", "an insert contains all values"),
    needless("schema.refresh.mode", "columns are found by name each time the table changes"),
    needless("schema.name.adjustment.mode", "records have no schema"),
    needless("field.name.adjustment.mode", "names are not changed"),
    needless("sourceinfo.struct.maker", "the router drops this struct"),
    without(
        "event.processing.failure.handling.mode",
        &["fail"],
        "no event is skipped: an event that cannot be published is parked, and its aggregate waits",
    ),
    needless(
        "event.converting.failure.handling.mode",
        "values are published in PostgreSQL's text format",
    ),
    needless("extended.headers.enabled", "headers of the framework are not published"),
    without("converters", &[], "there are no converters of columns"),
    needless(
        "snapshot.mode",
        "no snapshot: the connector's slot has no gap; rows from before a new slot are not read",
    ),
    needless("snapshot.*", "there is no snapshot"),
    needless("min.row.count.to.stream.results", "there is no snapshot"),
    without("incremental.snapshot.*", &[], "no incremental snapshots: insert the rows again"),
    needless("streaming.delay.ms", "there is no snapshot"),
    without("signal.*", &[], "no signals: use the commands of postrider"),
    without("notification.*", &[], "no notifications: see /status, /metrics and the log"),
    needless("max.batch.size", "flow.in_flight_events, flow.in_flight_bytes"),
    needless("max.queue.size", "flow.in_flight_events, flow.in_flight_bytes"),
    needless("max.queue.size.in.bytes", "flow.in_flight_events, flow.in_flight_bytes"),
    needless("poll.interval.ms", "the stream is read continuously"),
    needless("query.fetch.size", "there is no snapshot"),
    needless("retriable.restart.connector.wait.ms", "temporary errors are retried without a limit"),
    needless("executor.shutdown.timeout.ms", "shutdown_grace"),
    without(
        "errors.tolerance",
        &["none"],
        "no event is skipped: an event that cannot be published is parked, and its aggregate waits",
    ),
    to(
        "errors.deadletterqueue.topic.name",
        "parking.dead_topic: a dead event is also published there, and stays in the parked table",
    ),
    needless(
        "errors.deadletterqueue.*",
        "records in parking.dead_topic always have the error in headers; the topic is created like others",
    ),
    needless(
        "errors.*",
        "temporary errors are retried without a limit; an event that cannot be published is parked",
    ),
    needless(
        "custom.metric.tags",
        "metrics have a label for the pipeline; other labels are added by the scraper",
    ),
    needless("advanced.metrics.enable", "docs/metrics.md"),
    needless("guardrail.*", "one table is read"),
    needless("internal.*", "Debezium's own"),
    without("openlineage.*", &[], "no lineage is reported"),
    // Kafka Connect.
    without(
        "key.converter",
        &["org.apache.kafka.connect.storage.StringConverter"],
        "keys are plain text",
    ),
    needless("key.converter.*", "keys are plain text"),
    without(
        "value.converter",
        &[
            "org.apache.kafka.connect.storage.StringConverter",
            "org.apache.kafka.connect.converters.ByteArrayConverter",
            "io.debezium.converters.BinaryDataConverter",
            "io.debezium.converters.ByteArrayConverter",
            "io.debezium.converters.ByteBufferConverter",
        ],
        "values are the text or bytes of the payload, without schema or registry: consumers of Avro or Protobuf cannot \
         read them",
    ),
    needless("value.converter.*", "values are the text or bytes of the payload"),
    without(
        "header.converter",
        &["org.apache.kafka.connect.storage.SimpleHeaderConverter"],
        "header values are plain text as with SimpleHeaderConverter; StringConverter differs in arrays, bytea, bit and \
         numbers without a scale",
    ),
    needless("header.converter.*", "header values are plain text"),
    to("transforms", "the event router; other transforms: transforms.*"),
    without(
        "transforms.*",
        &[],
        "other transforms are not applied: do the same in the application or the consumers",
    ),
    to("predicates", "outbox.table, unless another option names it"),
    to("predicates.*", "outbox.table, unless another option names it"),
    to("producer.override.*", "sink.properties: the table below"),
    to("producer.*", "sink.properties: the table below"),
    to("bootstrap.servers", "sink.brokers"),
    to(
        "topic.creation.default.partitions",
        "sink.create_topics.partitions; -1 is the broker's default",
    ),
    to(
        "topic.creation.default.replication.factor",
        "sink.create_topics.replication_factor; -1 is the broker's default",
    ),
    to("topic.creation.default.*", "sink.create_topics.config, with the same name"),
    without(
        "topic.creation.enable",
        &["true"],
        "a setting of the worker: if it is false, delete sink.create_topics",
    ),
    without(
        "topic.creation.*",
        &[],
        "all topics have the settings of one group (default): create the topics of other groups yourself",
    ),
    without(
        "exactly.once.support",
        &["requested"],
        "sink.delivery: at least once, or \"exactly-once\"; a repeated record has the same id and the same position",
    ),
    needless("transaction.boundary*", "positions follow the database's transactions"),
    needless("offsets.storage.topic", "the position is a row of schema postrider"),
    needless("config.action.reload", "a changed configuration takes effect at the next start"),
    // The embedded engine and Debezium Server.
    needless("offset.*", "the position is a row of schema postrider"),
    needless("schema.history.internal*", "PostgreSQL's connector has none"),
    needless("database.history.*", "PostgreSQL's connector has none"),
    needless("record.processing.*", "events are published in commit order"),
    to("debezium.sink.type", "sink.kind: only kafka"),
    needless("debezium.sink.kafka.*", "only the settings of the producer are used"),
    without("debezium.format.key", &["simplestring", "string"], "keys are plain text"),
    without(
        "debezium.format.value",
        &["simplestring", "string", "binary"],
        "values are the text or bytes of the payload, without schema or registry",
    ),
    without(
        "debezium.format.header",
        &["simplestring", "string"],
        "header values are plain text; the server writes JSON",
    ),
    needless("debezium.format.*", "keys and values are plain"),
    needless("debezium.*", "Debezium Server's own"),
    needless("quarkus.*", "Debezium Server's own: --log, [admin]"),
];

/// Options of the outbox event router and those of every transform, below `transforms.<alias>.`.
pub const ROUTER: &[Known] = &[
    needless("type", "layout debezium is the router"),
    needless("predicate", "only the outbox table is read"),
    needless("negate", "only the outbox table is read"),
    to("table.field.event.id", "outbox.columns.id"),
    to("table.field.event.key", "outbox.columns.aggregate_id: the key, and the unit of order"),
    needless("table.field.event.type", "the router never reads it; place the column to publish it"),
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
        "payload.expand_json; without an envelope JSON is published unchanged",
    ),
    needless("table.json.payload.null.behavior", "nothing is dropped: JSON is published unchanged"),
    needless(
        "table.json.payload.empty.array.behavior",
        "nothing is dropped: JSON is published unchanged",
    ),
    needless(
        "debezium.expand.json.payload",
        "Debezium itself ignores this option, which it no longer has",
    ),
    to("route.by.field", "outbox.columns.aggregate_type"),
    to("route.topic.regex", "route.replace.pattern"),
    to("route.topic.replacement", "route.topic, or route.replace.with"),
    to("route.tombstone.on.empty.payload", "payload.empty, payload.null"),
    Known {
        name: "table.op.invalid.behavior",
        verdict: Verdict::Translated,
        same: &["warn", "error"],
        text: "fatal is outbox.on_update = \"halt\"; warn and error log and drop an UPDATE: here UPDATEs are not in \
               the stream, or are ignored and counted",
    },
    needless(
        "debezium.op.invalid.behavior",
        "Debezium itself ignores this option, which it no longer has",
    ),
    without("tracing.*", &[], "no spans; a column with a W3C traceparent is outbox.columns.trace"),
];
