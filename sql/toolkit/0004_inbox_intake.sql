-- How far `postrider inbox run` has read Kafka topics into inboxes. A row is changed in the transaction that stores the
-- records before its offset, and only if it has the offset that the process has begun at: of two processes that read
-- one partition, one commits.

CREATE TABLE IF NOT EXISTS postrider.inbox_offset (
    inbox        text        NOT NULL REFERENCES postrider.inbox (name) ON DELETE CASCADE,
    -- The id of the Kafka cluster: a topic of the same name in another cluster has other records. Empty if the brokers
    -- have none (before 0.10.1).
    cluster_id   text        NOT NULL,
    topic        text        NOT NULL,
    part         integer     NOT NULL CHECK (part >= 0),
    -- The offset of the next record.
    next_offset  bigint      NOT NULL CHECK (next_offset >= 0),
    -- The epoch of the leader that the record before it came from; NULL if it is not known. It shows
    -- whether the log was truncated since.
    leader_epoch integer,
    -- The id of the topic. Another topic of the same name has other records. NULL if the broker has no ids.
    topic_id     text,
    updated_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (inbox, cluster_id, topic, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The oldest pending message was looked up in an index that had the dead messages too.
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT i.table_schema, c.relname, format('%I.%I', i.table_schema, i.table_name) AS of_table
        FROM postrider.inbox i
        JOIN pg_catalog.pg_index x ON x.indrelid = to_regclass(format('%I.%I', i.table_schema, i.table_name))
        JOIN pg_catalog.pg_class c ON c.oid = x.indexrelid
        WHERE i.is_managed AND pg_get_indexdef(x.indexrelid) LIKE '%(seq) WHERE (processed_at IS NULL)'
    LOOP
        EXECUTE format('DROP INDEX %I.%I', r.table_schema, r.relname);
        EXECUTE format('CREATE INDEX ON %s (seq) WHERE processed_at IS NULL AND dead_at IS NULL', r.of_table);
    END LOOP;
END $$;
