-- Run with: psql -X -v ON_ERROR_STOP=1 -f FILE, and without --single-transaction:
-- each step is a transaction of its own, and their order matters.
-- There already: table "public"."outbox".
-- There already: publication "postrider_orders".
-- There already: schema "postrider", version 10.
-- There already: slot "postrider_orders", at position 0/5000.

-- 1. adopt slot "postrider_orders": create its cursor
-- The slot already exists: the relay continues from its position.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
INSERT INTO postrider.cursor (pipeline, shard, system_identifier, timeline, slot, slot_created_lsn,
    publication, messages, watermark, flush_limit, resolved_snapshot, before_slot, of_table_oid)
SELECT 'orders', 0, (SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()),
    ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::pg_catalog.bit(32)::pg_catalog.int4,
    s.slot_name, s.confirmed_flush_lsn, 'postrider_orders', false, s.confirmed_flush_lsn, s.confirmed_flush_lsn,
    NULL,
    CASE WHEN pg_catalog.pg_relation_size(pg_catalog.to_regclass('"public"."outbox"'))
      + coalesce((SELECT pg_catalog.sum(pg_catalog.pg_relation_size(t.relid))
                  FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass('"public"."outbox"')) AS t), 0) = 0
      THEN '3:3:'::pg_catalog.pg_snapshot ELSE pg_catalog.pg_current_snapshot() END,
    pg_catalog.to_regclass('"public"."outbox"')::pg_catalog.oid
FROM pg_catalog.pg_replication_slots AS s
WHERE s.slot_name = 'postrider_orders' AND s.confirmed_flush_lsn IS NOT NULL
ON CONFLICT (pipeline, shard) DO UPDATE SET system_identifier = excluded.system_identifier,
    timeline = excluded.timeline, slot = excluded.slot, slot_created_lsn = excluded.slot_created_lsn,
    publication = excluded.publication, messages = excluded.messages,
    watermark = excluded.watermark, flush_limit = excluded.flush_limit,
    partial_commit_lsn = excluded.partial_commit_lsn, partial_ordinal = excluded.partial_ordinal,
    resolved_snapshot = excluded.resolved_snapshot, pending_snapshot = NULL, pending_lsn = NULL,
    before_slot = excluded.before_slot
    WHERE postrider.cursor.slot = '';
COMMIT;
