-- Run with: psql -X -v ON_ERROR_STOP=1 -f FILE, and without --single-transaction:
-- each step is a transaction of its own, and their order matters.

-- 1. create table "public"."outbox"
-- The outbox, as the layout has it.
BEGIN;
SET LOCAL lock_timeout = '5s';
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
CREATE PUBLICATION "postrider_orders" FOR TABLE "public"."outbox"
    WITH (publish = 'insert', publish_via_partition_root = true);
COMMIT;

-- 3. create schema "postrider" (version 5)
-- The relay's own tables. They are never part of the publication.
BEGIN;
SET LOCAL lock_timeout = '5s';
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
COMMIT;

-- 4. give role "postrider" its rights
-- It logs in, and keeps its position and its parked events in the schema "postrider".
BEGIN;
SET LOCAL lock_timeout = '5s';
GRANT CONNECT ON DATABASE "shop" TO "postrider";
ALTER SCHEMA postrider OWNER TO "postrider";
ALTER TABLE postrider.migration OWNER TO "postrider";
ALTER TABLE postrider.cursor OWNER TO "postrider";
ALTER TABLE postrider.parked OWNER TO "postrider";
ALTER TABLE postrider.repair OWNER TO "postrider";
ALTER TABLE postrider.repair_page OWNER TO "postrider";
ALTER TABLE postrider.bookmark OWNER TO "postrider";
ALTER TABLE postrider.replay OWNER TO "postrider";
COMMIT;

-- 5. give role "postrider" its rights on table "public"."outbox"
-- Streaming needs none; repair, replay from the table and check read it.
BEGIN;
SET LOCAL lock_timeout = '5s';
GRANT USAGE ON SCHEMA "public" TO "postrider";
GRANT SELECT ON TABLE "public"."outbox" TO "postrider";
COMMIT;

-- 6. let role "postrider" replicate
-- The stream needs it. It reads every published table of the cluster: treat the role's password
-- accordingly.
BEGIN;
SET LOCAL lock_timeout = '5s';
ALTER ROLE "postrider" WITH REPLICATION;
COMMIT;

-- 7. create slot "postrider_orders" and its cursor
-- Events committed from here on are kept for the relay. It waits for every transaction that is
-- running now, in any database of the cluster, so it may take as long as the longest of them; no
-- lock is held meanwhile. The row is made with the slot's own position.
BEGIN;
SET LOCAL lock_timeout = 0;
SET LOCAL statement_timeout = 0;
SELECT pg_catalog.set_config('postrider.before', pg_catalog.pg_current_snapshot()::pg_catalog.text, true);
SELECT pg_catalog.pg_create_logical_replication_slot('postrider_orders', 'pgoutput', false, false, true);
INSERT INTO postrider.cursor (pipeline, system_identifier, timeline, slot, slot_created_lsn,
    publication, messages, watermark, flush_limit, resolved_snapshot)
SELECT 'orders', (SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system()),
    ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::pg_catalog.bit(32)::pg_catalog.int4,
    s.slot_name, s.confirmed_flush_lsn, 'postrider_orders', false, s.confirmed_flush_lsn, s.confirmed_flush_lsn,
    pg_catalog.current_setting('postrider.before')::pg_catalog.pg_snapshot
FROM pg_catalog.pg_replication_slots AS s
WHERE s.slot_name = 'postrider_orders' AND s.confirmed_flush_lsn IS NOT NULL
ON CONFLICT (pipeline) DO UPDATE SET system_identifier = excluded.system_identifier,
    timeline = excluded.timeline, slot = excluded.slot, slot_created_lsn = excluded.slot_created_lsn,
    publication = excluded.publication, messages = excluded.messages,
    watermark = excluded.watermark, flush_limit = excluded.flush_limit,
    partial_commit_lsn = excluded.partial_commit_lsn, partial_ordinal = excluded.partial_ordinal,
    resolved_snapshot = excluded.resolved_snapshot, pending_snapshot = NULL, pending_lsn = NULL
    WHERE postrider.cursor.slot = '';
COMMIT;
