-- A full row of layout commerce, and one of defaults and NULLs.
\ir ../../../sql/layouts/commerce.sql
-- record
INSERT INTO outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, payload, occurred_at, available_at, trace_id) VALUES (3, 'Order', 77, 'OrderConfirmed', 2, '{"ok":  true}', '2024-01-02 03:04:05.678901+00', '2024-01-02 03:04:05.678901+00', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01');
INSERT INTO outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, occurred_at, available_at, trace_id) VALUES (3, 'Order', 77, 'OrderShipped', 'null', '2024-01-02 03:04:05.678901+00', '2024-01-02 03:04:05.678901+00', 'trace-1');
INSERT INTO outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, occurred_at, available_at) VALUES (3, 'Order', 77, 'OrderClosed', '[]', '2024-01-02 03:04:05.678901+00', '2024-01-02 03:04:05.678901+00');
