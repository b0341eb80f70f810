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
