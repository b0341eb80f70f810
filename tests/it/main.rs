//! Integration tests against real servers: one binary.
//!
//! `scripts/servers up` starts what they need and `scripts/test` runs them. A test that can't reach a server fails:
//! nothing is ever skipped. Nothing pauses for a guessed time: every wait is for a state, with a deadline
//! (`await_that`).
#![expect(dead_code, reason = "helpers that tests to come will use; delete when all are used")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test helper that fails stops its test with the reason"
)]

// The simulator's fakes are compiled in (`model`), and name these as their crate does.
use postrider::ack;

// The harness.

/// What was answered to bad input, held against the page that documents it.
mod answers;
/// Waits for a state, with a deadline and what was seen instead.
mod await_that;
/// A run that halts, and what it says.
mod halted;
mod handover;
/// What was committed, and what that asks of the delivered records.
mod ledger;
/// Writers under load that keep a ledger, whatever happens to the server.
mod load;
/// A whole pipeline, set up by the real command.
mod pipeline;
/// Servers of a test's own, to kill, freeze and restart.
mod private;
/// A proxy on the way to a server: here it delays.
#[path = "../chaos/proxy/mod.rs"]
mod proxy;
/// The real binary, its configuration, its admin endpoint, its end.
mod relay;
/// `postrider repair` and `source.on_slot_lost`: a slot that is gone, and nothing else.
mod repair;
/// The shared servers: a database of a test's own.
mod server;
/// The SQL toolkit in a test's own database, from its files.
mod toolkit;
/// Topics of a test's own, and an independent reader of them.
mod topic;

// The tests.

/// The admin endpoint among clients that connect and do nothing.
mod admin_flood;
/// Another mode, cluster, topic or table for a pipeline that has published: refused or handed over.
mod adopt;
/// The alert rules, by Prometheus' own tool.
mod alerts;
/// What measures, and runs alone: memory, idleness.
mod alone;
/// `postrider setup --backfill`: a first start on a table that has rows.
mod backfill;
/// The long list of bad input, where no other module has it.
mod bad;
/// `postrider bookmark`: what stands afterwards, what it costs, what is refused.
mod bookmarks;
/// The operators' page in Chromium.
mod browser;
/// Captured tables: setup, refusals, publication, documents and sequences.
mod capture;
/// What is done to slot, publication, table and login while the stream runs.
mod changes;
/// `postrider check`: findings, and their own mending lines executed.
mod check;
/// The binary without servers: exit codes, what goes to which stream, secrets.
mod cli;
/// `postrider config` and `completions`, and mistakes of a file, without servers.
mod config_commands;
/// The consumer's side: what docs/consumers.md and docs/consumers-without-toolkit.md show, over real records.
mod consumers;
/// The control side: setup, the fence, the cursor row, the session's end.
mod control;
/// Topics that the relay makes.
mod crashed;
mod create_topics;
/// Every column type in every place, against what Debezium was seen to write.
mod debezium_types;
/// `postrider demo` as a user runs it: the ledger balances, also under kill -9, and nothing stays behind.
mod demo;
/// Every command, statement and setting that the documents show, run in their order.
mod docs_commands;
/// Domains: published as the type beneath, wherever their row is read.
mod domains;
/// Event logs: the sink `postgres`.
mod event_log;
/// `postrider find`, and the endpoint it asks.
mod find;
/// The forms in which events are published.
mod formats;
/// Consumer groups of the SQL toolkit: the programs of docs/sql/consumers.md, killed, cut off and stopped.
mod group_consumers;
/// Consumer groups in SQL.
mod groups;
/// `postrider groups`: what each subcommand says and does.
mod groups_cli;
/// The harness itself: servers answer, private ones die and come back, the ledger finds what is wrong.
mod harness;
/// The harness of NATS, Redis, Valkey and RabbitMQ.
mod harness_brokers;
/// Code that was planted in schema `postrider`, and the administrator whose rights it is after.
mod hostile;
/// Ids of every type, wherever a row is found again by its id.
mod ids;
/// The inbox in SQL: what a consumer has done is done once.
mod inbox;
/// `postrider inbox run` from NATS, RabbitMQ and Redis: messages are stored once, and in order, whatever is killed.
mod inbox_brokers;
/// `postrider inbox`: what each subcommand says and does.
mod inbox_cli;
/// The inbox in programs of five languages: what docs/consumers.md and docs/sql/inbox-programs.md show.
mod inbox_consumers;
/// The maintenance of inboxes.
mod inbox_maintenance;
/// The worked pipeline of docs/sql/inbox-programs.md: inbox, business logic, outbox.
mod inbox_pipeline;
/// `postrider inbox run`: records are stored once, whatever is killed.
mod inbox_run;
/// The receiver of webhooks: what it acknowledges is stored once.
mod inbox_webhook;
/// `postrider init`: what it writes runs as it is, also from a Debezium connector's configuration.
mod init;
mod insertion_order;
/// Producers that do not find their way back by themselves.
mod kafka_astray;
/// What a bad day of the broker looks like.
mod kafka_outages;
/// The Kafka sink against a real broker.
mod kafka_sink;
/// Records above their topic's limit before compression.
mod kafka_sizes;
/// A partition that does not know a producer.
mod kafka_strangers;
/// More partitions than have their turn at a time.
mod kafka_turns;
/// Lag, readiness and state, whatever stops the flow; a halted process that answers.
mod lag;
/// Payloads above their topic's limit before compression, end to end.
mod large;
/// Rows that are large in the table, in polling and repair.
mod large_rows;
/// The maintenance of event logs and consumer groups.
mod log_maintenance;
/// The log: which lines, with which fields.
mod logs;
/// Maintenance of our own tables, beside the stream and beside polling.
mod maintenance;
/// `postrider setup` by an administrator who is no superuser.
mod managed;
/// Several pipelines in one process; sinks without a broker; messages; partitions.
mod many;
/// The simulator's fakes against the servers that they stand for.
mod marks;
mod model;
/// What somebody types who was called: status, repair and restart.
mod on_call;
/// What the operations page tells an operator to do.
mod operations;
/// `flow.ordering = "strict"` against a real broker.
mod ordering;
mod own_tables;
mod owners;
/// The operators' words that need no relay.
mod parked_cli;
mod parked_locks;
/// The parked table: rows, marks, tombstones, and who may write them.
mod parked_table;
mod parking;
/// Bad events wherever they can stand, and what is done to parked ones behind the relay's back.
mod parking_bad;
/// `postrider pause` and `resume`: nothing in between, and nothing lost, swapped or repeated.
mod pause;
/// Events that can never be published.
mod poison;
/// Polling's adapter: claims, their order, their marks, the session.
mod poll_claims;
mod polling;
/// The programs that the pages show in five languages.
mod programs;
/// A publication that is changed and changed back under a running stream.
mod publication_changes;
/// A wrong start on the shared servers: told, and mended without loss.
mod refusals;
/// A wrong start that needs a server of its own.
mod refused_servers;
/// Each remedy that is printed, followed with rows waiting.
mod remedies;
/// What comes twice where the cursor row can't prevent it.
mod repeats;
/// `postrider replay`: which events, in which order, how far after a kill, and what is refused.
mod replay;
/// Stop, kill, restart, freeze: what is sent again, and what is not.
mod resume;
/// Retention of the outbox: rows, partitions, archive, `postrider retain`.
mod retention;
/// Secrets that are rotated while the service runs.
mod rotation;
/// Formats whose schemas are those of a registry.
mod schemas;
/// What nothing that is written for people or machines may hold.
mod secrets;
/// The shared servers answer, and a produced record is read back with header and key.
mod servers_answer;
/// `postrider setup` as it is typed, and `--undo`.
mod setup;
/// A caller of a sink, for its tests.
mod sink_caller;
/// The conformance test: what every sink promises, on the real server of each.
mod sinks;
/// Publishing from the table to a broker that acknowledges slowly.
mod slow_broker;
/// A stop while a statement of polling takes its time.
mod slow_claims;
/// What must not grow under a steady load, with faults: `scripts/soak`.
mod soak;
/// The pages of docs/sql.
mod sql_docs;
/// `postrider sql`: installation, upgrade, rights and uninstallation of the SQL toolkit.
mod sql_toolkit;
/// A real standby: promotion, restored backups.
mod standby;
/// The way of an event: layouts, statements, sizes.
mod stream;
/// Table outboxes by triggers: documents, rights, names, partitions, and the way to Kafka.
mod table_outbox;
/// `postrider tail`: what it shows in each state, and that nothing moves.
mod tail;
/// No servers: the layers, the limits of files and lines, names that documents promise.
mod tidy;
/// Times without a zone, in stream and polling; what expires.
mod times;
/// Topics that are missing, or go.
mod topics;
/// What the endpoint and `status` say, against what is so.
mod truth;
/// Connections of one pipeline that reach two servers.
mod two_servers;
/// `outbox.on_update`: an UPDATE of the outbox table.
mod updates;
/// From the program of an older commit to this one, under load.
mod upgrade;
/// How much WAL the slot may hold back, and what happens past it.
mod wal_budget;
/// The replication connection: login, stream, and every way it ends.
mod wal_connection;
