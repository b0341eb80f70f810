-- A transaction of two hundred rows, many of them of one multi-insert record.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) SELECT 'order', g::text, 'OrderPlaced', json_build_object('n', g), '2024-01-02 03:04:05+00'::timestamptz + g * interval '1 ms' FROM generate_series(1, 200) g;
