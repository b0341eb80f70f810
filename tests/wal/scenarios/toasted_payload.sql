-- A payload that does not fit its page: the insert carries it whole.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL;
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', to_json(repeat('x', 3000)), '2024-01-02');
