-- Run with: psql -X -v ON_ERROR_STOP=1 -f FILE, and without --single-transaction:
-- each step is a transaction of its own, and their order matters.

-- 1. create table "public"."outbox"
-- The outbox table of the layout.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
SET LOCAL search_path = "public";
CREATE TABLE outbox (
    id bigint PRIMARY KEY
);
COMMIT;

-- 2. create publication "postrider_orders"
-- Must exist before the slot. Publishes only INSERTs, so no REPLICA IDENTITY is needed. Partitions
-- are published under the parent table's name.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
CREATE PUBLICATION "postrider_orders" FOR TABLE "public"."outbox"
    WITH (publish = 'insert', publish_via_partition_root = true);
COMMIT;

-- 3. create schema "postrider" (version 10)
-- The relay's own tables. They are never part of the publication.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
CREATE SCHEMA postrider;
CREATE TABLE postrider.migration (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
-- One row a pipeline: how far it has got, and in which history.
--
-- The row lives in the database it speaks of. A server on which it can be read has more WAL than the position in it, so
-- after a failover or a restore the cursor is never ahead of the data.
CREATE TABLE postrider.cursor (
    pipeline           text        PRIMARY KEY,
    -- The cluster, as IDENTIFY_SYSTEM prints it, and the timeline of the last write.
    system_identifier  text        NOT NULL,
    timeline           bigint      NOT NULL,
    -- The slot, and the position it was created (or adopted) at: a slot made again under the same name is another slot.
    slot               text        NOT NULL,
    slot_created_lsn   pg_lsn      NOT NULL,
    -- What the stream was asked for: the ordinals of a partly published transaction hold for these alone.
    publication        text        NOT NULL,
    messages           boolean     NOT NULL,
    -- Every event below it is resolved.
    watermark          pg_lsn      NOT NULL,
    -- No position above it is ever confirmed before this row says so: a slot found beyond it was moved by somebody
    -- else.
    flush_limit        pg_lsn      NOT NULL,
    -- The transaction at the watermark of which the first changes are resolved, and how many.
    partial_commit_lsn pg_lsn,
    partial_ordinal    bigint,
    updated_at         timestamptz NOT NULL DEFAULT now(),
    CHECK (flush_limit >= watermark),
    CHECK ((partial_commit_lsn IS NULL) = (partial_ordinal IS NULL)),
    CHECK (partial_commit_lsn >= watermark AND partial_ordinal >= 0)
)
-- Rewritten every second: room for the new version on the same page, so that no index is touched.
WITH (fillfactor = 10);
INSERT INTO postrider.migration (number, name) VALUES (1, 'cursor') ON CONFLICT DO NOTHING;
-- The events that were set aside: what each would have been published as, why it was not, and what becomes of it.
--
-- A row is written before its event counts as resolved, and stays behind as a tombstone once it is published or
-- skipped: an event that the log sends again is known by it. The relay that owns the pipeline decides; a person writes
-- a request into the row (`postrider parked`) and never a state.
CREATE TABLE postrider.parked (
    -- Identity and order: the pipeline, where the transaction commits, and which change of it the event is.
    pipeline         text        NOT NULL,
    commit_lsn       pg_lsn      NOT NULL,
    ordinal          bigint      NOT NULL CHECK (ordinal >= 0),
    commit_time      timestamptz NOT NULL,
    event_id         text,
    event_type       text,
    aggregate_type   text,
    aggregate_id     text,
    -- Whether later events of its aggregate wait behind it.
    blocks           boolean     NOT NULL,
    -- The record as it would be published; key, value and headers only as long as they are needed. An empty topic where
    -- none could be made.
    topic            text        NOT NULL,
    partition        integer,
    key              bytea,
    value            bytea,
    header_names     text[]      NOT NULL DEFAULT '{}',
    header_values    bytea[]     NOT NULL DEFAULT '{}',
    timestamp_ms     bigint,
    -- Why: a stable word, and a line without values.
    error_code       text,
    error            text,
    attempts         integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at  timestamptz,
    state            text        NOT NULL
        CHECK (state IN ('waiting', 'behind', 'due', 'dead', 'done', 'skipped')),
    -- A later event of its aggregate that was published before it.
    overtaken_lsn     pg_lsn,
    overtaken_ordinal bigint,
    -- What a person asks for; taken off when the relay has carried it out or declined it.
    requested_action text        CHECK (requested_action IN ('retry', 'skip', 'replace')),
    requested_by     text,
    requested_at     timestamptz,
    requested_reason text,
    requested_value  bytea,
    -- The last request that was taken off, and whether it was carried out.
    acted_action     text,
    acted_by         text,
    acted_at         timestamptz,
    acted_reason     text,
    acted_declined   boolean     NOT NULL DEFAULT false,
    parked_at        timestamptz NOT NULL DEFAULT now(),
    resolved_at      timestamptz,
    -- When it was published to the dead-letter topic.
    dead_sent_at     timestamptz,
    PRIMARY KEY (pipeline, commit_lsn, ordinal),
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)),
    CHECK (aggregate_type IS NOT NULL OR NOT blocks),
    CHECK (cardinality(header_names) = cardinality(header_values)),
    CHECK ((overtaken_lsn IS NULL) = (overtaken_ordinal IS NULL)),
    CHECK ((requested_value IS NOT NULL) = (requested_action IS NOT DISTINCT FROM 'replace')),
    CHECK ((resolved_at IS NOT NULL) = (state IN ('done', 'skipped')))
)
-- A try that is refused changes no column that is indexed: its new version finds room on the same page.
WITH (fillfactor = 70);

CREATE INDEX parked_unresolved ON postrider.parked (pipeline, commit_lsn, ordinal)
    WHERE state NOT IN ('done', 'skipped');
CREATE INDEX parked_aggregate ON postrider.parked (pipeline, aggregate_type, aggregate_id)
    WHERE state NOT IN ('done', 'skipped');
CREATE INDEX parked_resolved ON postrider.parked (pipeline, resolved_at)
    WHERE state IN ('done', 'skipped');
CREATE INDEX parked_requested ON postrider.parked (pipeline) WHERE requested_action IS NOT NULL;
CREATE INDEX parked_event_id ON postrider.parked (pipeline, event_id);

-- Who owns the pipeline: raised by each relay that takes it over, so that one which lost it writes nothing more.
ALTER TABLE postrider.cursor ADD COLUMN IF NOT EXISTS owner_epoch bigint NOT NULL DEFAULT 0;
INSERT INTO postrider.migration (number, name) VALUES (2, 'parked') ON CONFLICT DO NOTHING;
-- What a table can be asked for when its slot is gone: which transactions were resolved, by their ids.
--
-- Every transaction that resolved_snapshot sees is resolved. pending_snapshot was taken before the log's end stood at
-- pending_lsn: all that it sees is resolved once the watermark has reached that.
ALTER TABLE postrider.cursor
    ADD COLUMN IF NOT EXISTS resolved_snapshot pg_snapshot,
    ADD COLUMN IF NOT EXISTS pending_snapshot  pg_snapshot,
    ADD COLUMN IF NOT EXISTS pending_lsn       pg_lsn,
    -- The slot was made while the table was polled, and rows of before are not all published: polling goes on first.
    ADD COLUMN IF NOT EXISTS polls_on          boolean NOT NULL DEFAULT false;

-- One row a pipeline: the repair, or the first backfill, that is under way or was the last.
CREATE TABLE IF NOT EXISTS postrider.repair (
    pipeline         text        PRIMARY KEY,
    kind             text        NOT NULL CHECK (kind IN ('repair', 'backfill')),
    -- making: the slot, and the list of rows; publishing: the list; done: the cursor stands at the slot.
    state            text        NOT NULL CHECK (state IN ('making', 'publishing', 'done')),
    -- Which rows: unresolved (by the snapshot below, or the marks), unmarked, all.
    selection        text        NOT NULL,
    -- What was resolved before, and until when a relay may have published more.
    ledger           pg_snapshot,
    ledger_at        timestamptz,
    -- The new slot, where it begins, and what its snapshot sees: each row is in the list, or comes by the stream.
    slot             text        NOT NULL,
    slot_created_lsn pg_lsn,
    snapshot         pg_snapshot,
    -- How rows were told apart and put in order, in words.
    method           text        NOT NULL DEFAULT '',
    rows_total       bigint      NOT NULL DEFAULT 0,
    rows_published   bigint      NOT NULL DEFAULT 0,
    -- Of the total: may have been published before.
    rows_uncertain   bigint      NOT NULL DEFAULT 0,
    -- Deleted from the outbox after they were listed.
    rows_gone        bigint      NOT NULL DEFAULT 0,
    -- Numbers between the lowest and the highest that no row has; NULL where ids are no numbers.
    ids_missing      bigint,
    started_at       timestamptz NOT NULL DEFAULT now(),
    finished_at      timestamptz
);

-- The rows still to be published, by their ids, in order: a page goes when all of it is published or parked.
CREATE TABLE IF NOT EXISTS postrider.repair_page (
    pipeline text   NOT NULL,
    number   bigint NOT NULL,
    ids      text[] NOT NULL,
    PRIMARY KEY (pipeline, number)
);
INSERT INTO postrider.migration (number, name) VALUES (3, 'repair') ON CONFLICT DO NOTHING;
-- Saved positions: each a copy of the pipeline's slot, which keeps the WAL from there on.
CREATE TABLE IF NOT EXISTS postrider.bookmark (
    pipeline          text        NOT NULL,
    name              text        NOT NULL,
    note              text,
    -- The copy. Its own position is at or before `lsn`.
    slot              text        NOT NULL UNIQUE,
    -- The history that the position is of.
    system_identifier text        NOT NULL,
    timeline          bigint      NOT NULL,
    -- What the stream was asked for: ordinals hold for these alone.
    publication       text        NOT NULL,
    messages          boolean     NOT NULL,
    -- The position: everything that commits at it or later comes after the bookmark. NULL until the slot stands.
    lsn               pg_lsn,
    created_at        timestamptz NOT NULL DEFAULT now(),
    expires_at        timestamptz,
    -- When Postrider let the slot go, and why: expired, or budget.
    dropped_at        timestamptz,
    dropped_why       text,
    PRIMARY KEY (pipeline, name),
    CHECK ((dropped_at IS NULL) = (dropped_why IS NULL))
);

-- Replays: what each was asked for, and how far it has got. A row moves only behind the broker's acknowledgement.
CREATE TABLE IF NOT EXISTS postrider.replay (
    pipeline          text        NOT NULL,
    name              text        NOT NULL,
    -- What was asked for, as JSON: what --resume goes on with.
    request           text        NOT NULL,
    -- wal or table; of the log the bookmark whose slot is read.
    source            text        NOT NULL CHECK (source IN ('wal', 'table')),
    bookmark          text,
    -- Of the log: where it begins, where it ends (what commits at it or later is not replayed), and the first position
    -- that is not done.
    from_lsn          pg_lsn,
    until_lsn         pg_lsn,
    next_lsn          pg_lsn,
    next_ordinal      bigint      CHECK (next_ordinal >= 0),
    -- Of the table: the id of the last row that is done.
    last_id           text,
    -- Of the ids that were asked for, those that were met.
    found             text[]      NOT NULL DEFAULT '{}',
    published         bigint      NOT NULL DEFAULT 0,
    refused           bigint      NOT NULL DEFAULT 0,
    started_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    finished_at       timestamptz,
    PRIMARY KEY (pipeline, name)
)
WITH (fillfactor = 50);
INSERT INTO postrider.migration (number, name) VALUES (4, 'bookmark') ON CONFLICT DO NOTHING;
-- Which history the positions of published records belong to (header "position"): LSNs of two histories can't be
-- compared.
--
-- A history is the Unix second at which it began: a counter alone would give a restored database a number that was used
-- after its backup. The relay that owns the pipeline raises it before it publishes anything under it.
ALTER TABLE postrider.cursor
    -- In order of the log: what commits at histories_from[n] or later has histories[n]. The last one is in force.
    -- 0 is the history of what was published before histories were kept.
    ADD COLUMN IF NOT EXISTS histories      bigint[] NOT NULL DEFAULT '{0}',
    ADD COLUMN IF NOT EXISTS histories_from pg_lsn[] NOT NULL DEFAULT '{0/0}',
    -- The cluster and the timeline that the last history was raised for. A server that is another, and NULL, raise it.
    ADD COLUMN IF NOT EXISTS history_system_identifier text,
    ADD COLUMN IF NOT EXISTS history_timeline          bigint;

UPDATE postrider.cursor SET history_system_identifier = system_identifier, history_timeline = timeline
    WHERE histories = '{0}' AND history_timeline IS NULL;

ALTER TABLE postrider.cursor
    ALTER COLUMN histories SET DEFAULT ARRAY[floor(extract(epoch FROM now()))::bigint];
INSERT INTO postrider.migration (number, name) VALUES (5, 'history') ON CONFLICT DO NOTHING;
-- A trigger runs with the rights of whoever writes to the table, also with an administrator's: nobody but the owner may
-- add one. Who owns the tables does not depend on the version: `setup` reads it each time, and takes them over.
REVOKE CREATE ON SCHEMA postrider FROM PUBLIC;
REVOKE TRIGGER, REFERENCES, TRUNCATE ON ALL TABLES IN SCHEMA postrider FROM PUBLIC;
INSERT INTO postrider.migration (number, name) VALUES (6, 'rights') ON CONFLICT DO NOTHING;
-- What the position belongs to: the settings under which it was last moved. Compared at each start, so that a pipeline
-- whose mode, destination, table or layout was changed does not go on at a position of another place. NULL in all of
-- them: no process of this version has used the row yet.
ALTER TABLE postrider.cursor
    -- wal, poll or auto.
    ADD COLUMN IF NOT EXISTS of_mode      text CHECK (of_mode IN ('wal', 'poll', 'auto')),
    -- Published rows got their layout's mark.
    ADD COLUMN IF NOT EXISTS of_marks     boolean,
    -- kafka, stdout or discard.
    ADD COLUMN IF NOT EXISTS of_sink      text,
    -- Kafka's identifier of the cluster, as the brokers give it; NULL until one has answered.
    ADD COLUMN IF NOT EXISTS of_cluster   text,
    -- route.topic, with route.replace.
    ADD COLUMN IF NOT EXISTS of_topic     text,
    -- route.key, with route.partition.
    ADD COLUMN IF NOT EXISTS of_key       text,
    -- The outbox table, as SQL writes it, and its OID; NULL for logical messages alone.
    ADD COLUMN IF NOT EXISTS of_table     text,
    ADD COLUMN IF NOT EXISTS of_table_oid oid,
    ADD COLUMN IF NOT EXISTS of_layout    text,
    -- Taken after the slot was made: rows that it does not see come by the slot's stream, and rows that it sees may
    -- have been committed before, so that no stream has published them. NULL where that is not known.
    ADD COLUMN IF NOT EXISTS before_slot  pg_snapshot;
INSERT INTO postrider.migration (number, name) VALUES (7, 'belongs') ON CONFLICT DO NOTHING;
-- The epoch of the last owner that ended with nothing on its way to the broker. Where that is not the owner's epoch,
-- records of the owner may still arrive, and its successor, if that is another process, waits before it publishes.
ALTER TABLE postrider.cursor
    ADD COLUMN IF NOT EXISTS owner_left bigint;
INSERT INTO postrider.migration (number, name) VALUES (8, 'owner_left') ON CONFLICT DO NOTHING;
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
INSERT INTO postrider.migration (number, name) VALUES (9, 'shard') ON CONFLICT DO NOTHING;
-- Pauses: while a row exists, `postrider run` reads and publishes nothing for the shard. An operator inserts and
-- deletes the row; the process that has paused notes in it that nothing is in flight any more.
--
-- A relay of the version before, which may run beside this schema until it is replaced, does not read this table.
CREATE TABLE IF NOT EXISTS postrider.pause (
    pipeline       text        NOT NULL,
    shard          integer     NOT NULL DEFAULT 0 CHECK (shard >= 0),
    requested_at   timestamptz NOT NULL DEFAULT now(),
    -- Database role and operating system user.
    requested_by   text        NOT NULL,
    reason         text,
    -- When a process had nothing in flight any more, and published nothing from then on. NULL until then.
    drained_at     timestamptz,
    -- Events that the broker had not acknowledged by then (shutdown_grace): they are published again.
    unacknowledged bigint      NOT NULL DEFAULT 0 CHECK (unacknowledged >= 0),
    PRIMARY KEY (pipeline, shard)
);
INSERT INTO postrider.migration (number, name) VALUES (10, 'pause') ON CONFLICT DO NOTHING;
COMMIT;

-- 4. give role "postrider" its rights
-- It logs in, and keeps its position and its parked events in the schema "postrider".
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
GRANT CONNECT ON DATABASE "shop" TO "postrider";
GRANT USAGE ON SCHEMA postrider TO "postrider";
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE postrider.migration, postrider.cursor, postrider.parked, postrider.repair, postrider.repair_page, postrider.bookmark, postrider.replay, postrider.pause TO "postrider";
COMMIT;

-- 5. give role "postrider" its rights on table "public"."outbox"
-- Streaming needs none; repair, replay from the table and check read it.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
GRANT USAGE ON SCHEMA "public" TO "postrider";
GRANT SELECT ON TABLE "public"."outbox" TO "postrider";
COMMIT;

-- 6. let role "postrider" replicate
-- The stream needs it. It reads every published table of the cluster: treat the role's password
-- accordingly.
BEGIN;
SET LOCAL lock_timeout = '5s';
SET LOCAL search_path = '';
ALTER ROLE "postrider" WITH REPLICATION;
COMMIT;

-- 7. create slot "postrider_orders" and its cursor
-- Events committed from here on are kept for the relay. It waits for every transaction that is
-- running now, in any database of the cluster, so it may take as long as the longest of them; no
-- lock is held meanwhile. The cursor row is created with the slot's own position.
BEGIN;
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = 0;
SET LOCAL search_path = '';
DO $postrider$ DECLARE found pg_catalog.text; BEGIN
SELECT pg_catalog.string_agg(o.named, ', ') INTO found FROM (
-- The text of toolkit/objects.sql.
-- Functions of former versions of the SQL toolkit, which an installation drops (sql/toolkit/functions): they are no
-- objects of others, and an uninstallation drops them too. This text stands behind that of objects.sql.
known_routines(name, arguments, result) AS (
  SELECT k.name, k.arguments, k.result FROM toolkit_routines k
  UNION ALL VALUES ('inbox_drain', 'p_name text, p_batch integer DEFAULT 1000', 'integer')),
-- Objects in schema "postrider", and on its tables, that are not Postrider's. Only the catalog is read. Expressions are
-- compared as pg_get_expr prints them under search_path = '', where only names of pg_catalog are unqualified: the same
-- on PostgreSQL 15 to 18. A migration that adds a default, a CHECK, a partial index or a function adds it here. What
-- the SQL toolkit has in the schema is listed in toolkit/objects.sql and toolkit/former.sql, whose texts stand before
-- this one.
n AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'postrider'),
own(kind, name) AS (
  VALUES ('r', 'migration'), ('r', 'cursor'), ('r', 'parked'), ('r', 'repair'), ('r', 'repair_page'), ('r', 'bookmark'),
    ('r', 'replay'), ('r', 'pause')
  UNION ALL SELECT k.kind, k.name FROM toolkit_relations k),
c AS (
  SELECT r.oid, r.relname, r.relkind, r.relrowsecurity OR r.relforcerowsecurity AS secured,
    (r.relkind::pg_catalog.text, r.relname::pg_catalog.text) IN (SELECT own.kind, own.name FROM own) AS ours
  FROM pg_catalog.pg_class r JOIN n ON n.oid = r.relnamespace),
t AS (
  SELECT c.oid, c.relname, c.relkind, c.secured, c.ours, pg_catalog.format('postrider.%I', c.relname) AS named
  FROM c WHERE c.relkind IN ('r', 'p', 'f') OR c.relkind = 'v' AND c.ours),
defaults(rel, col, expr) AS (VALUES
  ('bookmark', 'created_at', 'now()'),
  ('bookmark', 'shard', '0'),
  ('cursor', 'histories', 'ARRAY[(floor(EXTRACT(epoch FROM now())))::bigint]'),
  -- Between two statements of one migration.
  ('cursor', 'histories', '''{0}''::bigint[]'),
  ('cursor', 'histories_from', '''{0/0}''::pg_lsn[]'),
  ('cursor', 'owner_epoch', '0'),
  ('cursor', 'polls_on', 'false'),
  ('cursor', 'shard', '0'),
  ('cursor', 'updated_at', 'now()'),
  ('migration', 'applied_at', 'now()'),
  ('parked', 'acted_declined', 'false'),
  ('parked', 'attempts', '0'),
  ('parked', 'header_names', '''{}''::text[]'),
  ('parked', 'header_values', '''{}''::bytea[]'),
  ('parked', 'parked_at', 'now()'),
  ('parked', 'shard', '0'),
  ('pause', 'requested_at', 'now()'),
  ('pause', 'shard', '0'),
  ('pause', 'unacknowledged', '0'),
  ('repair', 'method', '''''::text'),
  ('repair', 'rows_gone', '0'),
  ('repair', 'rows_published', '0'),
  ('repair', 'rows_total', '0'),
  ('repair', 'rows_uncertain', '0'),
  ('repair', 'shard', '0'),
  ('repair', 'started_at', 'now()'),
  ('repair_page', 'shard', '0'),
  ('replay', 'found', '''{}''::text[]'),
  ('replay', 'published', '0'),
  ('replay', 'refused', '0'),
  ('replay', 'shard', '0'),
  ('replay', 'started_at', 'now()'),
  ('replay', 'updated_at', 'now()')
  UNION ALL SELECT k.rel, k.col, k.expr FROM toolkit_defaults k),
checks(rel, def) AS (VALUES
  ('bookmark', '((dropped_at IS NULL) = (dropped_why IS NULL))'),
  ('bookmark', '(shard >= 0)'),
  ('cursor', '(flush_limit >= watermark)'),
  ('cursor', '((partial_commit_lsn IS NULL) = (partial_ordinal IS NULL))'),
  ('cursor', '(of_mode = ANY (ARRAY[''wal''::text, ''poll''::text, ''auto''::text]))'),
  ('cursor', '((partial_commit_lsn >= watermark) AND (partial_ordinal >= 0))'),
  ('cursor', '(shard >= 0)'),
  ('parked', '(attempts >= 0)'),
  ('parked', '((aggregate_type IS NULL) = (aggregate_id IS NULL))'),
  ('parked', '((aggregate_type IS NOT NULL) OR (NOT blocks))'),
  ('parked', '(cardinality(header_names) = cardinality(header_values))'),
  ('parked', '((overtaken_lsn IS NULL) = (overtaken_ordinal IS NULL))'),
  ('parked', '((requested_value IS NOT NULL) = (NOT (requested_action IS DISTINCT FROM ''replace''::text)))'),
  ('parked', '((resolved_at IS NOT NULL) = (state = ANY (ARRAY[''done''::text, ''skipped''::text])))'),
  ('parked', '(ordinal >= 0)'),
  ('parked', '(shard >= 0)'),
  ('parked', '(requested_action = ANY (ARRAY[''retry''::text, ''skip''::text, ''replace''::text]))'),
  ('parked', '(state = ANY (ARRAY[''waiting''::text, ''behind''::text, ''due''::text, ''dead''::text, ''done''::text, '
             '''skipped''::text]))'),
  ('pause', '(shard >= 0)'),
  ('pause', '(unacknowledged >= 0)'),
  ('repair', '(shard >= 0)'),
  ('repair', '(kind = ANY (ARRAY[''repair''::text, ''backfill''::text]))'),
  ('repair', '(state = ANY (ARRAY[''making''::text, ''publishing''::text, ''done''::text]))'),
  ('repair_page', '(shard >= 0)'),
  ('replay', '(next_ordinal >= 0)'),
  ('replay', '(shard >= 0)'),
  ('replay', '(source = ANY (ARRAY[''wal''::text, ''table''::text]))')
  UNION ALL SELECT k.rel, k.def FROM toolkit_checks k),
predicates(rel, def) AS (VALUES
  ('parked', '(state <> ALL (ARRAY[''done''::text, ''skipped''::text]))'),
  ('parked', '(state = ANY (ARRAY[''done''::text, ''skipped''::text]))'),
  ('parked', '(requested_action IS NOT NULL)')
  UNION ALL SELECT k.rel, k.def FROM toolkit_predicates k),
-- In the order in which the lines can be executed. Without a line: as the object's own DROP.
f(rank, class, object, sub, named, line) AS (
  SELECT 1, 'pg_catalog.pg_policy'::pg_catalog.regclass::pg_catalog.oid, p.oid, 0, NULL::pg_catalog.text,
    NULL::pg_catalog.text
  FROM pg_catalog.pg_policy p JOIN t ON t.oid = p.polrelid
  UNION ALL
  SELECT 1, 0, t.oid, 0, 'row level security on ' || t.named, pg_catalog.format(
    'ALTER TABLE %s NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY;', t.named)
  FROM t WHERE t.secured AND t.ours
  UNION ALL
  SELECT 2, 'pg_catalog.pg_rewrite'::pg_catalog.regclass, r.oid, 0, NULL, NULL
  FROM pg_catalog.pg_rewrite r JOIN t ON t.oid = r.ev_class
  -- The query of a view is a rule of this name.
  WHERE NOT (t.relkind = 'v' AND r.rulename = '_RETURN')
  UNION ALL
  SELECT 3, 'pg_catalog.pg_trigger'::pg_catalog.regclass, g.oid, 0, NULL, NULL
  FROM pg_catalog.pg_trigger g JOIN t ON t.oid = g.tgrelid
  -- Those of a foreign key go with it.
  WHERE NOT (g.tgisinternal AND g.tgconstraint <> 0)
  UNION ALL
  SELECT 4, 'pg_catalog.pg_attrdef'::pg_catalog.regclass, d.oid, 0, NULL,
    pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I DROP DEFAULT;', t.named, a.attname)
  FROM pg_catalog.pg_attrdef d JOIN t ON t.oid = d.adrelid AND t.ours
  JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  WHERE a.attgenerated = '' AND NOT EXISTS (SELECT FROM defaults k
    WHERE k.rel = t.relname AND k.col = a.attname AND k.expr = pg_catalog.pg_get_expr(d.adbin, d.adrelid))
  UNION ALL
  SELECT 5, 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, 0, NULL,
    pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT %I;', c.conrelid::pg_catalog.regclass, c.conname)
  FROM pg_catalog.pg_constraint c LEFT JOIN t ON t.oid = c.conrelid AND t.ours
  WHERE (c.contype IN ('c', 'f', 'x') AND t.oid IS NOT NULL
      OR c.contype = 'f' AND c.confrelid IN (SELECT o.oid FROM t AS o WHERE o.ours))
    AND NOT EXISTS (SELECT FROM checks k WHERE c.contype = 'c' AND k.rel = t.relname
      AND pg_catalog.pg_get_constraintdef(c.oid) IN ('CHECK (' || k.def || ')', 'CHECK (' || k.def || ') NOT VALID'))
    AND NOT EXISTS (SELECT FROM toolkit_keys k WHERE c.contype = 'f' AND k.rel = t.relname
      AND k.def = pg_catalog.pg_get_constraintdef(c.oid))
  UNION ALL
  SELECT 6, 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid, 0, NULL, NULL
  FROM pg_catalog.pg_index i JOIN t ON t.oid = i.indrelid AND t.ours
  WHERE (i.indexprs IS NOT NULL
      OR i.indpred IS NOT NULL AND NOT EXISTS (SELECT FROM predicates k
        WHERE k.rel = t.relname AND k.def = pg_catalog.pg_get_expr(i.indpred, i.indrelid))
      OR EXISTS (SELECT FROM pg_catalog.pg_opclass o
        WHERE o.oid = ANY (i.indclass::pg_catalog.oid[]) AND o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace))
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint c WHERE c.conindid = i.indexrelid AND c.contype = 'x')
  UNION ALL
  SELECT 6, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid, 0, NULL, NULL
  FROM pg_catalog.pg_statistic_ext s JOIN t ON t.oid = s.stxrelid
  UNION ALL
  SELECT 7, 'pg_catalog.pg_class'::pg_catalog.regclass, t.oid, a.attnum::pg_catalog.int4, NULL, CASE
    WHEN a.attgenerated <> '' THEN pg_catalog.format('ALTER TABLE %s DROP COLUMN %I;', t.named, a.attname)
    WHEN b.typnamespace = 'pg_catalog'::pg_catalog.regnamespace THEN pg_catalog.format(
      'ALTER TABLE %s ALTER COLUMN %I TYPE %s;', t.named, a.attname, pg_catalog.format_type(b.oid, y.typtypmod))
    ELSE '' END
  FROM pg_catalog.pg_attribute a JOIN t ON t.oid = a.attrelid AND t.ours JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_type b ON b.oid = y.typbasetype
  WHERE a.attnum > 0 AND NOT a.attisdropped
    AND (a.attgenerated <> '' OR y.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace)
  UNION ALL
  SELECT 8, 0, i.inhrelid, i.inhseqno, pg_catalog.format('table %s, which inherits from table %s',
      i.inhrelid::pg_catalog.regclass, i.inhparent::pg_catalog.regclass),
    pg_catalog.format(CASE WHEN c.relispartition THEN 'ALTER TABLE %2$s DETACH PARTITION %1$s;'
      ELSE 'ALTER TABLE %1$s NO INHERIT %2$s;' END, i.inhrelid::pg_catalog.regclass, i.inhparent::pg_catalog.regclass)
  FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relkind IN ('r', 'p', 'f')
  WHERE (i.inhrelid IN (SELECT t.oid FROM t WHERE t.ours) OR i.inhparent IN (SELECT t.oid FROM t WHERE t.ours))
    -- The partitions of the SQL toolkit.
    AND NOT (c.relispartition AND i.inhrelid IN (SELECT t.oid FROM t WHERE t.ours)
      AND i.inhparent IN (SELECT t.oid FROM t WHERE t.ours))
  UNION ALL
  -- A table may hold rows that somebody needs.
  SELECT CASE WHEN c.relkind IN ('r', 'p') THEN 10 ELSE 9 END, 'pg_catalog.pg_class'::pg_catalog.regclass, c.oid, 0,
    NULL,
    CASE WHEN c.relkind IN ('r', 'p') THEN pg_catalog.format('ALTER TABLE postrider.%I SET SCHEMA public;', c.relname)
      WHEN c.relkind = 'c' THEN pg_catalog.format('DROP TYPE postrider.%I;', c.relname) END
  FROM c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c') AND NOT c.ours
  UNION ALL
  SELECT 11, 'pg_catalog.pg_cast'::pg_catalog.regclass, c.oid, 0, NULL, NULL
  FROM pg_catalog.pg_cast c JOIN pg_catalog.pg_type y ON y.oid IN (c.castsource, c.casttarget)
  JOIN n ON n.oid = y.typnamespace
  UNION ALL
  SELECT CASE d.classid WHEN 'pg_catalog.pg_proc'::pg_catalog.regclass THEN 14
      WHEN 'pg_catalog.pg_type'::pg_catalog.regclass THEN 13 ELSE 12 END, d.classid, d.objid, 0, NULL, NULL
  FROM pg_catalog.pg_depend d JOIN n ON n.oid = d.refobjid
  WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.deptype = 'n'
    AND d.classid <> 'pg_catalog.pg_class'::pg_catalog.regclass
    AND NOT (d.classid = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass AND EXISTS (
      SELECT FROM pg_catalog.pg_statistic_ext s JOIN t ON t.oid = s.stxrelid WHERE s.oid = d.objid))
    -- The function of `setup --notify`. An administrator never calls it, and its body is written again with its owner.
    AND NOT (d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND EXISTS (
      SELECT FROM pg_catalog.pg_proc p WHERE p.oid = d.objid AND p.proname = 'notify_outbox' AND p.pronargs = 0
        AND p.prokind = 'f' AND p.prorettype = 'pg_catalog.trigger'::pg_catalog.regtype))
    -- The functions of the SQL toolkit. Where one of them belongs to another role, its body is written again too.
    AND NOT (d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND EXISTS (
      SELECT FROM pg_catalog.pg_proc p JOIN known_routines k ON k.name = p.proname
        AND k.arguments = pg_catalog.pg_get_function_arguments(p.oid)
        AND k.result = pg_catalog.pg_get_function_result(p.oid)
      WHERE p.oid = d.objid AND p.prokind = 'f')))
SELECT f.rank, coalesce(f.named, o.type || ' ' || o.identity) AS named,
  coalesce(f.line, 'DROP ' || pg_catalog.upper(o.type) || ' ' || o.identity || ';') AS line
FROM f LEFT JOIN LATERAL pg_catalog.pg_identify_object(nullif(f.class, 0), f.object, f.sub) o ON true
WHERE coalesce(f.named, o.identity) IS NOT NULL
ORDER BY 1, 2) AS o;
IF found IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'PR024',
  MESSAGE = 'schema "postrider" has objects that are not Postrider''s: ' || found;
END IF;
END $postrider$;
DO $postrider$ DECLARE found pg_catalog.text; BEGIN
SELECT pg_catalog.string_agg(DISTINCT nullif(o.role, ''), ', ') INTO found
FROM (
-- Who owns schema "postrider" and what is in it, and who else may add objects to it or code to its tables.
WITH n AS (SELECT oid, nspowner, nspacl FROM pg_catalog.pg_namespace WHERE nspname = 'postrider'),
c AS (
  SELECT r.oid, r.relowner, r.relacl, pg_catalog.format('postrider.%I', r.relname) AS named
  FROM pg_catalog.pg_class r JOIN n ON n.oid = r.relnamespace WHERE r.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')),
h(rank, alters, revokes, role) AS (
  SELECT 1, 'SCHEMA postrider', NULL::pg_catalog.text, n.nspowner FROM n
  UNION ALL SELECT 2, 'TABLE ' || c.named, NULL, c.relowner FROM c
  UNION ALL SELECT 3, 'ROUTINE ' || o.identity, NULL, p.proowner
    FROM pg_catalog.pg_proc p JOIN n ON n.oid = p.pronamespace
    CROSS JOIN LATERAL pg_catalog.pg_identify_object(
      'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid, p.oid, 0) o
  UNION ALL SELECT 4, NULL, 'CREATE ON SCHEMA postrider', a.grantee
    FROM n, pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  UNION ALL SELECT 4, NULL, a.privilege_type || ' ON TABLE ' || c.named, a.grantee
    FROM c, pg_catalog.aclexplode(c.relacl) a
    WHERE a.privilege_type IN ('TRIGGER', 'REFERENCES') AND a.grantee <> c.relowner
  UNION ALL SELECT 4, NULL, pg_catalog.format('REFERENCES (%I) ON TABLE %s', b.attname, c.named), a.grantee
    FROM c JOIN pg_catalog.pg_attribute b ON b.attrelid = c.oid AND NOT b.attisdropped,
      pg_catalog.aclexplode(b.attacl) a
    WHERE a.privilege_type = 'REFERENCES' AND a.grantee <> c.relowner)
SELECT h.rank, h.alters, h.revokes, coalesce(r.rolname::pg_catalog.text, '') AS role,
  coalesce(r.rolsuper, false) AS super, coalesce(r.rolname = current_user, false) AS me
FROM h LEFT JOIN pg_catalog.pg_roles r ON r.oid = h.role
) AS o WHERE NOT o.super AND NOT o.me AND o.alters IS NOT NULL;
IF found IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'PR024',
  MESSAGE = 'schema "postrider" or tables in it belong to another role: ' || found;
END IF;
SELECT pg_catalog.string_agg(o.revokes, ', ') INTO found
FROM (
-- Who owns schema "postrider" and what is in it, and who else may add objects to it or code to its tables.
WITH n AS (SELECT oid, nspowner, nspacl FROM pg_catalog.pg_namespace WHERE nspname = 'postrider'),
c AS (
  SELECT r.oid, r.relowner, r.relacl, pg_catalog.format('postrider.%I', r.relname) AS named
  FROM pg_catalog.pg_class r JOIN n ON n.oid = r.relnamespace WHERE r.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')),
h(rank, alters, revokes, role) AS (
  SELECT 1, 'SCHEMA postrider', NULL::pg_catalog.text, n.nspowner FROM n
  UNION ALL SELECT 2, 'TABLE ' || c.named, NULL, c.relowner FROM c
  UNION ALL SELECT 3, 'ROUTINE ' || o.identity, NULL, p.proowner
    FROM pg_catalog.pg_proc p JOIN n ON n.oid = p.pronamespace
    CROSS JOIN LATERAL pg_catalog.pg_identify_object(
      'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid, p.oid, 0) o
  UNION ALL SELECT 4, NULL, 'CREATE ON SCHEMA postrider', a.grantee
    FROM n, pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  UNION ALL SELECT 4, NULL, a.privilege_type || ' ON TABLE ' || c.named, a.grantee
    FROM c, pg_catalog.aclexplode(c.relacl) a
    WHERE a.privilege_type IN ('TRIGGER', 'REFERENCES') AND a.grantee <> c.relowner
  UNION ALL SELECT 4, NULL, pg_catalog.format('REFERENCES (%I) ON TABLE %s', b.attname, c.named), a.grantee
    FROM c JOIN pg_catalog.pg_attribute b ON b.attrelid = c.oid AND NOT b.attisdropped,
      pg_catalog.aclexplode(b.attacl) a
    WHERE a.privilege_type = 'REFERENCES' AND a.grantee <> c.relowner)
SELECT h.rank, h.alters, h.revokes, coalesce(r.rolname::pg_catalog.text, '') AS role,
  coalesce(r.rolsuper, false) AS super, coalesce(r.rolname = current_user, false) AS me
FROM h LEFT JOIN pg_catalog.pg_roles r ON r.oid = h.role
) AS o WHERE NOT o.super AND NOT o.me AND o.revokes IS NOT NULL;
IF found IS NOT NULL THEN RAISE EXCEPTION USING ERRCODE = 'PR024',
  MESSAGE = 'others may add code to schema "postrider": ' || found;
END IF;
END $postrider$;
SELECT pg_catalog.set_config('postrider.before', pg_catalog.pg_current_snapshot()::pg_catalog.text, true);
SELECT pg_catalog.pg_create_logical_replication_slot('postrider_orders', 'pgoutput', false, false, true);
INSERT INTO postrider.cursor (pipeline, shard, system_identifier, timeline, slot, slot_created_lsn,
    publication, messages, watermark, flush_limit, resolved_snapshot, before_slot, of_table_oid)
SELECT 'orders', 0, (SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()),
    ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::pg_catalog.bit(32)::pg_catalog.int4,
    s.slot_name, s.confirmed_flush_lsn, 'postrider_orders', false, s.confirmed_flush_lsn, s.confirmed_flush_lsn,
    pg_catalog.current_setting('postrider.before')::pg_catalog.pg_snapshot,
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
