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
