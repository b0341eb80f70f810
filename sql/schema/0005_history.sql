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
