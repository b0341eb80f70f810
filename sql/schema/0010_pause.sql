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
