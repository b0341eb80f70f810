-- Event logs: tables with one writer each, in which the number of an event (seq) is the order of the commits, and the
-- order in which events become visible. The events themselves are in schema postrider_log, whose tables belong to the
-- role that writes them.

-- One row for each log.
CREATE TABLE IF NOT EXISTS postrider.event_log (
    name           text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200),
    -- The table of the events, in schema postrider_log.
    table_name     name        NOT NULL UNIQUE,
    -- The number of hash partitions that consumer groups divide among their consumers. Fixed, as in Kafka.
    partitions     integer     NOT NULL CHECK (partitions >= 1 AND partitions <= 1024),
    -- Events in each child of the table.
    rows_per_child bigint      NOT NULL CHECK (rows_per_child >= 1),
    -- value: the log has payload and headers. reference: they stay in the outbox table, in the row with the event's id.
    kind           text        NOT NULL CHECK (kind IN ('value', 'reference')),
    -- The only writer: the name of a pipeline, or the table that log_feed reads. NULL before the first append.
    writer         text,
    -- The lowest number that retention has kept.
    first_seq      bigint      NOT NULL DEFAULT 1 CHECK (first_seq >= 1),
    created_at     timestamptz NOT NULL DEFAULT now()
);

-- The end of each log. Every append inserts a row, in its transaction; the row with the highest last_seq counts, and
-- sweep_states deletes the others. One row that is updated would not do: while a transaction holds a snapshot (a
-- backup, a report, the feedback of a standby), every version of it stays, and every read goes through all of them.
CREATE TABLE IF NOT EXISTS postrider.event_log_head (
    log         text        NOT NULL REFERENCES postrider.event_log ON DELETE CASCADE,
    last_seq    bigint      NOT NULL,
    -- For each hash partition: the seq of its last event, and the number of events that it ever had.
    heads       bigint[]    NOT NULL,
    counts      bigint[]    NOT NULL,
    appended_at timestamptz NOT NULL,
    PRIMARY KEY (log, last_seq)
);

-- Who may append. The row is locked by each append, and updated only when another process takes over.
CREATE TABLE IF NOT EXISTS postrider.event_log_writer (
    writer text   PRIMARY KEY,
    epoch  bigint NOT NULL
);

-- How far the writer's source has been written: a row for each append, as in event_log_head. The highest n counts.
CREATE TABLE IF NOT EXISTS postrider.event_log_progress (
    writer   text   NOT NULL REFERENCES postrider.event_log_writer ON DELETE CASCADE,
    n        bigint NOT NULL,
    progress text   NOT NULL,
    PRIMARY KEY (writer, n)
);
