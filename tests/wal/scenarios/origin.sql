-- A transaction that came from another server.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
SELECT pg_replication_origin_create('elsewhere_' || current_database());
-- record
SELECT pg_replication_origin_session_setup('elsewhere_' || current_database());
BEGIN;
SELECT pg_replication_origin_xact_setup('0/1234', '2024-01-02 03:04:05+00');
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', '{"n": 1}', '2024-01-02 03:04:05.678+00');
COMMIT;
SELECT pg_replication_origin_session_reset();
SELECT pg_replication_origin_drop('elsewhere_' || current_database());
