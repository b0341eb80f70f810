-- A full row of layout pgtrickle, and one of defaults and NULLs.
\ir ../../../sql/layouts/pgtrickle.sql
-- record
INSERT INTO outbox_changes (id, aggregate_type, aggregate_id, event_type, payload, inserted_count, deleted_count, is_claim_check, created_at, published_at, unread_since) OVERRIDING SYSTEM VALUE VALUES (7, 'orders', 'public.orders', 'UPDATE', '{"v":1,"claim_check":true,"inserted_count":2000,"deleted_count":2000}', 2000, 2000, true, '2024-01-02 03:04:05.678901+00', NULL, '2024-01-02 03:04:05.678901+00');
INSERT INTO outbox_changes (id, aggregate_type, aggregate_id, event_type, payload, inserted_count, deleted_count, created_at) OVERRIDING SYSTEM VALUE VALUES (8, 'orders', 'public.orders', 'TRUNCATE', '{"v":1,"truncated":true,"inserted":[],"deleted":[]}', 0, 0, '2024-01-02 03:04:05.678901+00');
