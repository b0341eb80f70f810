-- A partitioned outbox, published by its root.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL) PARTITION BY RANGE (created_at);
CREATE TABLE outbox_2024 PARTITION OF outbox FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE outbox_rest PARTITION OF outbox DEFAULT;
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', '{"n": 1}', '2024-01-02 03:04:05.678+00');
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at) VALUES ('order', '2', 'OrderPlaced', '2025-06-01');
