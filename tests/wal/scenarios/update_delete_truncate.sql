-- publish: insert, update, delete, truncate
-- Everything that a publication can send of a table: keys, whole old rows, unchanged TOAST, truncation of two tables.
CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL,
    event_type text NOT NULL, payload json, headers json, created_at timestamptz NOT NULL);
ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE full_row (a integer PRIMARY KEY, b text);
ALTER TABLE full_row REPLICA IDENTITY FULL;
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('order', '1', 'OrderPlaced', to_json(repeat('x', 2500)), '2024-01-02');
UPDATE outbox SET event_type = 'OrderChanged';
UPDATE outbox SET id = DEFAULT;
DELETE FROM outbox;
INSERT INTO full_row VALUES (1, 'one');
UPDATE full_row SET b = NULL;
DELETE FROM full_row;
TRUNCATE outbox, full_row RESTART IDENTITY CASCADE;
