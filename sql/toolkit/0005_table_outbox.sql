-- Table outboxes: changes of ordinary tables as events, by triggers. The events of a table are in tables of schema
-- postrider_outbox, which postrider.enable_outbox creates (functions/table_outbox.sql).

-- The triggers run as the role that writes a table: each of these roles finds the events of its tables there. The
-- tables in the schema have their own rights.
DO $postrider$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'postrider_outbox') THEN
        CREATE SCHEMA postrider_outbox;
        GRANT USAGE ON SCHEMA postrider_outbox TO PUBLIC;
    END IF;
END $postrider$;

-- A row for each table whose changes are captured.
CREATE TABLE IF NOT EXISTS postrider.table_outbox (
    name                  text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200),
    -- The table as it was named then: the topic and the key of its events. The table itself is the one that has the
    -- triggers.
    table_schema          name        NOT NULL,
    table_name            name        NOT NULL,
    -- Objects of schema postrider_outbox.
    outbox_table          name        NOT NULL UNIQUE,
    delta_table           name        NOT NULL UNIQUE,
    latest_view           name        NOT NULL UNIQUE,
    function_name         name        NOT NULL UNIQUE,
    -- The columns that an event has; NULL: all of them, also those that are added later.
    columns               name[],
    -- How long published events are to be kept.
    retention_hours       integer     NOT NULL CHECK (retention_hours >= 0),
    -- A statement that has changed more rows has them in delta_table.
    inline_threshold_rows integer     NOT NULL CHECK (inline_threshold_rows >= 0),
    notify                boolean     NOT NULL,
    created_at            timestamptz NOT NULL DEFAULT now(),
    UNIQUE (table_schema, table_name)
);

-- The consumer groups that read the rows of claim checks. A claim check is needed until each of them has read it.
CREATE TABLE IF NOT EXISTS postrider.table_outbox_group (
    outbox     text        NOT NULL REFERENCES postrider.table_outbox (name) ON DELETE CASCADE,
    group_name text        NOT NULL CHECK (group_name <> '' AND octet_length(group_name) <= 200),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (outbox, group_name)
);
