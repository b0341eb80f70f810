-- A full row of layout postrider, and one of defaults and NULLs.
\ir ../../../sql/layouts/postrider.sql
-- record
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers, created_at) VALUES ('order', 'o-7', 'OrderPlaced', '{"total":  9.50}', '{"source": "shop", "attempt": 1.0, "b": {"c": [1, 2]}}', '2024-01-02 03:04:05.678901+00');
INSERT INTO outbox (aggregate_type, aggregate_id, event_type, created_at) VALUES ('order', 'o-7', 'OrderGone', '2024-01-02 03:04:05.678901+00');
