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
