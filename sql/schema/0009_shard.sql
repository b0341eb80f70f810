-- The key of everything that is stored is the pipeline and a shard of it.
--
-- A shard is a part of a pipeline with a slot, a cursor row, parked events, a repair, bookmarks and an owner of its
-- own. Each pipeline has one shard, 0. A later version may split a pipeline over several slots, whose positions can't
-- be compared; it needs no other change of keys.
--
-- A relay of the version before may run beside this schema until it is replaced. Its statements name no shard: the rows
-- that it inserts get shard 0, which all rows have, and its ON CONFLICT needs unique indexes on its own keys. The
-- indexes whose names end with "one_shard" serve it. They also keep a second shard out: no statement of such a relay
-- may ever meet one. The version that adds a second shard drops them, and refuses to run beside such a relay.

-- No row is written: xmin of a parked row tells which rows of the outbox are newer than it.
--
-- The number of rows decides how long the two indexes of postrider.parked take.
SET LOCAL statement_timeout = 0;
-- What exists already, where setup repeats this file because a table was dropped, is not worth a notice.
SET LOCAL client_min_messages = 'warning';

-- All locks first, so that a relay waits once.
--
-- - The session waits for one table for 1.5 s, and holds no other lock meanwhile. Each attempt waits for another table,
--   because a server cancels an autovacuum only if a request has waited for it for deadlock_timeout (1 s).
-- - Then it waits for the other tables for 0.3 s each. That is long enough for a statement of a relay, and shorter than
--   deadlock_timeout: if the two wait for each other, this session gives up, and not the relay.
-- - Statements of a relay queue behind a request that waits. They give up after 5 s, and are repeated.
DO $postrider$
DECLARE
  tables CONSTANT pg_catalog.text[] := '{cursor,parked,repair,repair_page,bookmark,replay}';
  attempt pg_catalog.int4 := 0;
BEGIN
  LOOP
    BEGIN
      PERFORM pg_catalog.set_config('lock_timeout', '1500ms', true);
      EXECUTE pg_catalog.format('LOCK TABLE postrider.%I IN ACCESS EXCLUSIVE MODE', tables[1 + attempt % 6]);
      PERFORM pg_catalog.set_config('lock_timeout', '300ms', true);
      LOCK TABLE postrider.cursor, postrider.parked, postrider.repair, postrider.repair_page, postrider.bookmark,
        postrider.replay IN ACCESS EXCLUSIVE MODE;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      attempt := attempt + 1;
      IF attempt >= 60 THEN
        RAISE;
      END IF;
    END;
    PERFORM pg_catalog.pg_sleep(0.2);
  END LOOP;
END $postrider$;

ALTER TABLE postrider.cursor
    ADD COLUMN IF NOT EXISTS shard integer NOT NULL DEFAULT 0 CHECK (shard >= 0);
ALTER TABLE postrider.cursor
    DROP CONSTRAINT IF EXISTS cursor_pkey,
    ADD PRIMARY KEY (pipeline, shard);
CREATE UNIQUE INDEX IF NOT EXISTS cursor_one_shard ON postrider.cursor (pipeline);

-- The other indexes of this table stay as they are. An aggregate and an event id belong to one shard, so a shard in
-- these indexes would select nothing; and each index that is built prolongs the lock.
ALTER TABLE postrider.parked
    ADD COLUMN IF NOT EXISTS shard integer NOT NULL DEFAULT 0,
    -- The transaction that wrote the event's row, as the stream or the claim knew it: 32 bits, without an epoch. NULL
    -- for events that were parked before this version.
    ADD COLUMN IF NOT EXISTS xid bigint;
ALTER TABLE postrider.parked
    DROP CONSTRAINT IF EXISTS parked_shard_check,
    -- All rows have the default, so the table is not read to validate the constraint.
    ADD CONSTRAINT parked_shard_check CHECK (shard >= 0) NOT VALID,
    DROP CONSTRAINT IF EXISTS parked_pkey,
    ADD PRIMARY KEY (pipeline, shard, commit_lsn, ordinal);
CREATE UNIQUE INDEX IF NOT EXISTS parked_one_shard ON postrider.parked (pipeline, commit_lsn, ordinal);

ALTER TABLE postrider.repair
    ADD COLUMN IF NOT EXISTS shard integer NOT NULL DEFAULT 0 CHECK (shard >= 0);
ALTER TABLE postrider.repair
    DROP CONSTRAINT IF EXISTS repair_pkey,
    ADD PRIMARY KEY (pipeline, shard);
CREATE UNIQUE INDEX IF NOT EXISTS repair_one_shard ON postrider.repair (pipeline);

-- A page of a repair is inserted without ON CONFLICT: no index for the version before.
ALTER TABLE postrider.repair_page
    ADD COLUMN IF NOT EXISTS shard integer NOT NULL DEFAULT 0 CHECK (shard >= 0);
ALTER TABLE postrider.repair_page
    DROP CONSTRAINT IF EXISTS repair_page_pkey,
    ADD PRIMARY KEY (pipeline, shard, number);

-- A bookmark of a pipeline with several slots is a row, and a copy of a slot, for each shard, under one name.
ALTER TABLE postrider.bookmark
    ADD COLUMN IF NOT EXISTS shard integer NOT NULL DEFAULT 0 CHECK (shard >= 0);
ALTER TABLE postrider.bookmark
    DROP CONSTRAINT IF EXISTS bookmark_pkey,
    ADD PRIMARY KEY (pipeline, shard, name);
CREATE UNIQUE INDEX IF NOT EXISTS bookmark_one_shard ON postrider.bookmark (pipeline, name);

-- The progress of a replay is a position in the slot of one bookmark, so each shard has its own. A replay from the
-- table reads no slot, and has shard 0.
ALTER TABLE postrider.replay
    ADD COLUMN IF NOT EXISTS shard integer NOT NULL DEFAULT 0 CHECK (shard >= 0);
ALTER TABLE postrider.replay
    DROP CONSTRAINT IF EXISTS replay_pkey,
    ADD PRIMARY KEY (pipeline, shard, name);
