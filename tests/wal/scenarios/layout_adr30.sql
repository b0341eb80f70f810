-- A full row of layout adr30, and one of defaults and NULLs.
\ir ../../../sql/layouts/adr30.sql
-- record
INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, metadata, created_at) VALUES ('0b6c8a4e-1111-4222-8333-944444444444', 'booking', 'aaaaaaaa-1111-4222-8333-944444444444', 'booking.created', '{"guest": "x"}', '{"userId": "u", "traceId": "t"}', '2024-01-02 03:04:05.678901+00');
INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, metadata, created_at) VALUES ('0b6c8a4e-1111-4222-8333-944444444445', 'booking', 'aaaaaaaa-1111-4222-8333-944444444444', 'booking.updated', '{}', NULL, '2024-01-02 03:04:05.678901+00');
