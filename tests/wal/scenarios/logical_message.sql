-- Logical messages: in a transaction, outside, of another prefix, from a transaction that rolled back.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
-- record
BEGIN;
SELECT pg_logical_emit_message(true, 'postrider', '{"aggregate_type": "order", "aggregate_id": "1", "event_type": "OrderPlaced", "payload": {"n": 1}}');
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', '{"n": 1}', '2024-01-02 03:04:05.678+00');
SELECT pg_logical_emit_message(true, 'other', 'not ours');
COMMIT;
SELECT pg_logical_emit_message(false, 'postrider', 'at once');
BEGIN;
SELECT pg_logical_emit_message(true, 'postrider', 'lost');
SELECT pg_logical_emit_message(false, 'postrider', 'sent all the same');
ROLLBACK;
-- The server reads only what is on disk: a commit brings the messages before it there.
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '2', 'OrderPlaced', '{"n": 2}', '2024-01-02 03:04:05.678+00');
