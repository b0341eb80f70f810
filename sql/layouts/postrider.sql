-- Postrider's own outbox. One row per event, inserted in the transaction that the event reports:
--   INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '42', 'OrderPlaced',
--   '{"total": 9.5}');
-- payload and headers are json, not jsonb: the text goes to the broker as it was written, and the server decodes it
-- at two thirds of the cost. Rows may be deleted at any time, even in the transaction that inserted them: the
-- write-ahead log has them.
CREATE TABLE outbox (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    payload        json,
    headers        json,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
