-- Consumer groups: each group reads one event log, and its consumers share the hash partitions of the log. No poll and
-- no commit updates a row in place. While a transaction holds a snapshot (a backup, a report, the feedback
-- of a standby), every version of an updated row stays, and every read goes through all of them. A new row for each
-- change costs the same however long a snapshot is held: the newest row is the first that the index finds.
--
-- Rights: sql/toolkit/roles, a file for each kind of role.

CREATE TABLE IF NOT EXISTS postrider.consumer_group (
    name              text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200),
    log               text        NOT NULL REFERENCES postrider.event_log,
    auto_offset_reset text        NOT NULL CHECK (auto_offset_reset IN ('earliest', 'latest')),
    -- How many events the group may keep from retention. With more it is evicted. NULL: no limit, retention waits.
    retain_max        bigint      CHECK (retain_max > 0),
    -- Set: retention has dropped events that the group has not read. poll_outbox raises PR113 until seek_offset.
    evicted_at        timestamptz,
    created_at        timestamptz NOT NULL DEFAULT now()
);

-- A row for each hash partition. Every change of the partition's state locks its row; no row is ever updated.
CREATE TABLE IF NOT EXISTS postrider.consumer_group_partition (
    group_name text     NOT NULL REFERENCES postrider.consumer_group ON DELETE CASCADE,
    part       smallint NOT NULL,
    PRIMARY KEY (group_name, part)
);

-- The state of each hash partition. Each change inserts a row, and the row with the highest n counts. sweep_states
-- deletes the others from the lowest n upwards, so the rows of a partition are always consecutive.
CREATE TABLE IF NOT EXISTS postrider.consumer_group_state (
    group_name   text        NOT NULL,
    part         smallint    NOT NULL,
    n            bigint      NOT NULL,
    -- The group is done with every event of the partition at or below last_offset; passed is the number of those.
    last_offset  bigint      NOT NULL,
    passed       bigint      NOT NULL,
    committed_at timestamptz,
    -- The last lease, or the last seek or release (0: none yet). No value is used twice.
    lease        bigint      NOT NULL DEFAULT 0,
    -- Whose lease it is or was.
    consumer     text,
    -- The other columns of a lease are NULL unless it is out. It can be taken when the clock is not between these two.
    lease_from   timestamptz,
    lease_until  timestamptz,
    -- How many partitions of this lease are still out.
    lease_parts  smallint,
    -- The last event of the batch, and the number of its events.
    batch_end    bigint,
    batch_rows   integer,
    -- How often the events that follow last_offset have been given out.
    deliveries   integer     NOT NULL DEFAULT 0,
    PRIMARY KEY (group_name, part, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- When a consumer was seen: a row at most every 10 seconds. The newest row counts.
CREATE TABLE IF NOT EXISTS postrider.consumer_seen (
    group_name text        NOT NULL,
    consumer   text        NOT NULL CHECK (consumer <> '' AND octet_length(consumer) <= 200),
    seen_at    timestamptz NOT NULL,
    PRIMARY KEY (group_name, consumer, seen_at)
);
CREATE INDEX IF NOT EXISTS consumer_seen_group_name_seen_at_idx ON postrider.consumer_seen (group_name, seen_at);

-- Where sweep_states goes on in event_log_head.
CREATE TABLE IF NOT EXISTS postrider.event_log_sweep (
    log      text   PRIMARY KEY REFERENCES postrider.event_log ON DELETE CASCADE,
    last_seq bigint NOT NULL
);

-- Leases are numbered for all groups together, so a lease of a dropped group is never valid in one of the same name.
CREATE SEQUENCE IF NOT EXISTS postrider.lease_token AS bigint CACHE 1;
