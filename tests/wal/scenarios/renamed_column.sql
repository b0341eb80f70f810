-- A column is renamed between two rows.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', '{"n": 1}', '2024-01-02 03:04:05.678+00');
ALTER TABLE outbox RENAME event_type TO kind;
INSERT INTO outbox (aggregate_type, aggregate_id, kind, created_at) VALUES ('order', '2', 'OrderPlaced', '2024-01-02');
