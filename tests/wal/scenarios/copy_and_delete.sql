-- COPY, and an insert and delete of one row in one transaction: the insert is sent.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
-- record
COPY outbox (aggregate_type, aggregate_id, event_type, payload, created_at) FROM stdin;
order	1	OrderPlaced	{"n": 1}	2024-01-02
order	2	OrderPlaced	{"n": 2}	2024-01-02
\.
BEGIN;
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '3', 'OrderPlaced', '{"n": 3}', '2024-01-02 03:04:05.678+00');
DELETE FROM outbox;
COMMIT;
