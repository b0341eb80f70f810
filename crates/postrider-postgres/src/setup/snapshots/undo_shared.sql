-- Run with: psql -X -v ON_ERROR_STOP=1 -f FILE, and without --single-transaction:
-- each step is a transaction of its own, and their order matters.
-- Lost: slot "postrider_bm_before_fix_000abc", of a bookmark: it can no longer be replayed.
-- Lost: 1 row(s) of postrider.cursor: the pipeline's position and history.
-- Lost: 3 row(s) of postrider.parked: parked events, and the records of those resolved since.
-- Stays: slot "postrider_orders": it is of plugin "wal2json".
-- Stays: schema "postrider": other pipelines have rows in it.
-- Stays: publication "postrider_orders": it publishes other tables too.
-- Stays: table "public"."outbox" with its rows.
-- Stays: roles and their other rights; what is in the broker.

-- 1. drop slot "postrider_bm_before_fix_000abc"
-- The slot of a bookmark, which retains WAL too.
SELECT pg_catalog.pg_drop_replication_slot('postrider_bm_before_fix_000abc');

-- 2. delete the rows of pipeline "orders"
-- Postrider's own tables; those of other pipelines are left alone.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
DELETE FROM postrider."cursor" WHERE pipeline = 'orders';
DELETE FROM postrider."parked" WHERE pipeline = 'orders';
COMMIT;
