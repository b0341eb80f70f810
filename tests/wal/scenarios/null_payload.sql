-- A NULL payload, and an empty text beside it.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at) VALUES ('order', '', 'OrderGone', 'infinity');
