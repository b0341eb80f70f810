-- The inbox: what consumers have done, so that each effect happens once. A consumer calls the functions in the
-- transaction of the effect (functions/inbox.sql).
--
-- Rights: sql/toolkit/roles, a file for each kind of role.

-- By position: the highest position of each aggregate that a consumer has done. Updates change no index, and find room
-- in their page.
CREATE TABLE IF NOT EXISTS postrider.inbox_position (
    consumer  text NOT NULL CHECK (consumer <> '' AND octet_length(consumer) <= 200),
    -- Whose positions these are: the name of the pipeline. Positions of two sources can't be compared.
    source    text NOT NULL CHECK (source <> '' AND octet_length(source) <= 200),
    aggregate text NOT NULL CHECK (octet_length(aggregate) <= 1000),
    -- "C" compares bytes, whatever the collation of the database is.
    position  text COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, source, aggregate)
) WITH (fillfactor = 50);

-- By id: the messages with a time that a consumer has done, for some days. The partition is that of the message's own
-- day, modulo 32. A message has the same time whenever it arrives, so its partition is known, and the key is unique.
CREATE TABLE IF NOT EXISTS postrider.inbox_seen (
    slot       smallint    NOT NULL,
    at         timestamptz NOT NULL,
    consumer   text        NOT NULL CHECK (consumer <> '' AND octet_length(consumer) <= 200),
    source     text        NOT NULL CHECK (source <> '' AND octet_length(source) <= 200),
    message_id text        NOT NULL CHECK (octet_length(message_id) <= 1000),
    PRIMARY KEY (slot, consumer, source, message_id, at)
) PARTITION BY LIST (slot);

DO $postrider$ BEGIN
    FOR i IN 0 .. 31 LOOP
        EXECUTE pg_catalog.format('CREATE TABLE IF NOT EXISTS postrider.%I PARTITION OF postrider.inbox_seen '
            'FOR VALUES IN (%s)', 'inbox_seen_' || pg_catalog.lpad(i::pg_catalog.text, 2, '0'), i);
    END LOOP;
END $postrider$;

-- By id: the messages without a time.
CREATE TABLE IF NOT EXISTS postrider.inbox_seen_undated (
    consumer   text        NOT NULL CHECK (consumer <> '' AND octet_length(consumer) <= 200),
    source     text        NOT NULL CHECK (source <> '' AND octet_length(source) <= 200),
    message_id text        NOT NULL CHECK (octet_length(message_id) <= 1000),
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, source, message_id)
);
CREATE INDEX IF NOT EXISTS inbox_seen_undated_seen_at_idx ON postrider.inbox_seen_undated (seen_at);

-- The first day, counted from 2000-01-01 in UTC, of which ids are remembered. A sequence, because its value is the same
-- for all transactions, whatever their snapshots are.
CREATE SEQUENCE IF NOT EXISTS postrider.inbox_first_day AS integer MINVALUE -1000000 START 0 CACHE 1;

-- The last day whose partition inbox_forget has emptied. One row.
CREATE TABLE IF NOT EXISTS postrider.inbox_sweep (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    swept_day integer NOT NULL
);

-- Inboxes that store messages first: a row for each.
CREATE TABLE IF NOT EXISTS postrider.inbox (
    name                 text        PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,46}$'),
    table_schema         name        NOT NULL,
    table_name           name        NOT NULL,
    -- The table was created by create_inbox, and drop_inbox may drop it. Otherwise enable_inbox_tracking adopted it.
    is_managed           boolean     NOT NULL,
    -- A message that has failed this often is dead.
    max_retries          integer     NOT NULL CHECK (max_retries >= 1),
    -- How long inbox_drain keeps processed and dead messages; 0: for ever.
    retention_hours      integer     NOT NULL CHECK (retention_hours >= 0),
    dead_retention_hours integer     NOT NULL DEFAULT 0 CHECK (dead_retention_hours >= 0),
    -- inbox_health: from this age of the oldest message that waits, the inbox is degraded, or critical.
    degraded_after       interval    NOT NULL DEFAULT '5 minutes',
    critical_after       interval    NOT NULL DEFAULT '1 hour',
    id_column            name        NOT NULL DEFAULT 'event_id',
    processed_at_column  name        NOT NULL DEFAULT 'processed_at',
    retry_count_column   name        NOT NULL DEFAULT 'retry_count',
    error_column         name        NOT NULL DEFAULT 'error',
    received_at_column   name        NOT NULL DEFAULT 'received_at',
    -- NULL: an adopted table without such a column.
    event_type_column    name        DEFAULT 'event_type',
    -- What decides the order of an aggregate's messages: sequence (numbers without gaps, from first_sequence), or
    -- arrival. NULL: none.
    ordering             text        CHECK (ordering IN ('sequence', 'arrival')),
    first_sequence       bigint      NOT NULL DEFAULT 1,
    -- The name of each tier, and its lowest and highest priority. NULL: no priorities.
    tiers                jsonb,
    created_at           timestamptz NOT NULL DEFAULT now(),
    UNIQUE (table_schema, table_name),
    CHECK (ordering IS NULL OR tiers IS NULL)
);

-- How the numbers of messages in managed inboxes have changed: each statement inserts a row for each type of event, and
-- inbox_fold replaces many rows by one. The numbers of an inbox are the sums of its rows.
CREATE TABLE IF NOT EXISTS postrider.inbox_delta (
    inbox      text             NOT NULL,
    event_type text             NOT NULL,
    minute     timestamptz      NOT NULL,
    pending    bigint           NOT NULL,
    dead       bigint           NOT NULL,
    processed  bigint           NOT NULL,
    -- Messages that became processed in this minute, and the seconds between their arrival and that.
    done       bigint           NOT NULL,
    seconds    double precision NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX IF NOT EXISTS inbox_delta_inbox_minute_idx ON postrider.inbox_delta (inbox, minute);

-- Ordered inboxes: how far each aggregate is. Whoever processes the next message of an aggregate locks its row.
CREATE TABLE IF NOT EXISTS postrider.inbox_order (
    inbox        text        NOT NULL,
    aggregate_id text        NOT NULL,
    -- The highest number that is processed.
    last_seq     bigint      NOT NULL,
    -- When the next message can be given out; infinity: it is not there, or it is dead.
    due_at       timestamptz NOT NULL DEFAULT 'infinity',
    PRIMARY KEY (inbox, aggregate_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX IF NOT EXISTS inbox_order_inbox_due_at_idx ON postrider.inbox_order (inbox, due_at);

-- Aggregates whose due_at in inbox_order has to be looked at: their row was locked, or missing, when a message came.
CREATE TABLE IF NOT EXISTS postrider.inbox_wake (
    inbox        text NOT NULL,
    aggregate_id text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
