-- The same on a publication of inserts alone: nothing but the insert.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', '{"n": 1}', '2024-01-02 03:04:05.678+00');
UPDATE outbox SET event_type = 'OrderChanged';
DELETE FROM outbox;
TRUNCATE outbox;
