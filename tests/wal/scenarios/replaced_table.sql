-- The table is replaced by another of the same name.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', '{"n": 1}', '2024-01-02 03:04:05.678+00');
ALTER TABLE outbox RENAME TO outbox_old;
CREATE TABLE outbox (LIKE outbox_old INCLUDING ALL);
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '2', 'OrderPlaced', '{"n": 2}', '2024-01-02 03:04:05.678+00');
INSERT INTO outbox_old (aggregate_type, aggregate_id, event_type, created_at) VALUES ('order', '3', 'Old', '2024-01-02');
