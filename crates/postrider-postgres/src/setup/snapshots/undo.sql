-- Run with: psql -X -v ON_ERROR_STOP=1 -f FILE, and without --single-transaction:
-- each step is a transaction of its own, and their order matters.
-- Lost: slot "postrider_orders" (confirmed up to 0/5000): events in the 16384 bytes of WAL after it
-- that are not published yet are lost to the stream; a new slot starts at its creation.
-- Lost: slot "postrider_bm_before_fix_000abc", of a bookmark: it can no longer be replayed.
-- Lost: 1 row(s) of postrider.cursor: the pipeline's position and history.
-- Lost: 3 row(s) of postrider.parked: parked events, and the records of those resolved since.
-- Lost: publication "postrider_orders".
-- Stays: table "public"."outbox" with its rows.
-- Stays: roles and their other rights; what is in the broker.

-- 1. drop slot "postrider_orders"
-- After this the server keeps no WAL for this pipeline.
SELECT pg_catalog.pg_drop_replication_slot('postrider_orders');

-- 2. drop slot "postrider_bm_before_fix_000abc"
-- The slot of a bookmark, which retains WAL too.
SELECT pg_catalog.pg_drop_replication_slot('postrider_bm_before_fix_000abc');

-- 3. drop schema "postrider"
-- No other pipeline has rows in it.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
DROP SCHEMA postrider CASCADE;
COMMIT;

-- 4. drop publication "postrider_orders"
-- Last, since a slot can't be read without it.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
DROP PUBLICATION "postrider_orders";
COMMIT;
