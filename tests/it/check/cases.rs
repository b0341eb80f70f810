//! What is done to a database, one thing at a time, and what `check` is to find.

/// What is done to the database, the finding, how much it matters, and what puts everything back.
pub(super) type Case = (&'static str, &'static str, &'static str, &'static str);

pub(super) const TABLE: &[Case] = &[
    (
        "alter table outbox rename to aside",
        "table_missing",
        "error",
        "drop table outbox; alter table aside rename to outbox",
    ),
    (
        "create schema app; alter table outbox set schema app",
        "table_missing",
        "error",
        "alter table app.outbox set schema public; drop schema app",
    ),
    (
        "alter table outbox rename to base; create view outbox as select * from base",
        "table_kind",
        "error",
        "drop view outbox; alter table base rename to outbox",
    ),
    (
        "alter publication {publication} drop table outbox; alter table outbox set unlogged",
        "table_unlogged",
        "error",
        "alter publication {publication} add table outbox",
    ),
    ("create table kid () inherits (outbox)", "table_inherited", "warning", "drop table kid"),
    (
        "create rule away as on insert to outbox do instead nothing",
        "table_rule",
        "error",
        "drop rule away on outbox",
    ),
    (
        "alter table outbox drop column headers",
        "column_missing",
        "error",
        "alter table outbox add headers json",
    ),
    (
        "alter table outbox rename event_type to type",
        "column_missing",
        "error",
        "alter table outbox rename type to event_type",
    ),
    (
        "alter table outbox drop column created_at; alter table outbox add created_at bigint",
        "column_type",
        "error",
        "alter table outbox drop column created_at; \
         alter table outbox add created_at timestamptz not null default now()",
    ),
    (
        "alter table outbox drop column event_type; \
         alter table outbox add event_type text not null generated always as ('T') stored",
        "column_generated",
        "error",
        "alter table outbox drop column event_type; alter table outbox add event_type text not null",
    ),
];

pub(super) const PUBLICATION: &[Case] = &[
    ("alter publication {publication} drop table outbox", "publication_table", "error", ""),
    (
        "alter publication {publication} set table outbox where (id > 5)",
        "publication_row_filter",
        "error",
        "",
    ),
    (
        "alter publication {publication} set table outbox (id, aggregate_type, aggregate_id)",
        "publication_columns",
        "error",
        "",
    ),
    ("alter publication {publication} set (publish = 'delete')", "publication_insert", "error", ""),
    (
        "alter publication {publication} set (publish = 'insert, truncate')",
        "publication_more",
        "warning",
        "",
    ),
    (
        "alter table outbox drop constraint outbox_pkey; \
         alter publication {publication} set (publish = 'insert, delete')",
        "publication_more",
        "error",
        "alter table outbox add primary key (id)",
    ),
    (
        "create table other (id int); alter publication {publication} add table other",
        "publication_other_tables",
        "warning",
        "drop table other",
    ),
    (
        "drop publication {publication}; create publication {publication} for all tables with (publish = 'insert')",
        "publication_all_tables",
        "warning",
        "drop publication {publication}_outbox; drop publication {publication}; \
         create publication {publication} for table outbox \
         with (publish = 'insert', publish_via_partition_root = true)",
    ),
];

/// Behind each of them the slot and the cursor are made anew.
pub(super) const SLOT: &[Case] = &[
    ("select pg_drop_replication_slot('{slot}')", "slot_missing", "error", ""),
    (
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)",
        "slot_two_phase",
        "error",
        "",
    ),
    (
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_logical_replication_slot('{slot}', 'test_decoding')",
        "slot_plugin",
        "error",
        "",
    ),
    (
        "select pg_drop_replication_slot('{slot}'); select pg_create_physical_replication_slot('{slot}')",
        "slot_plugin",
        "error",
        "",
    ),
    (
        "select pg_drop_replication_slot('{slot}'); \
         select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
        "slot_moved",
        "error",
        "",
    ),
    ("drop publication {publication}", "publication_missing", "error", ""),
    (
        "update postrider.cursor set system_identifier = '1' || system_identifier where pipeline = '{pipeline}'",
        "other_history",
        "error",
        "",
    ),
    (
        "update postrider.cursor set watermark = 'F/0', flush_limit = 'F/0' where pipeline = '{pipeline}'",
        "position_ahead",
        "error",
        "",
    ),
    ("drop schema postrider cascade", "schema", "error", ""),
    (
        "insert into postrider.migration (number, name) values (99, 'later')",
        "schema",
        "error",
        "delete from postrider.migration where number = 99",
    ),
];
