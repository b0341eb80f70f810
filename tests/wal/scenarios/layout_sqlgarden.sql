-- A full row of layout sqlgarden, and one of defaults and NULLs.
\ir ../../../sql/layouts/sqlgarden.sql
-- record
INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ('User', 'u-1', 'UserEmailUpdated', '{"email": "a@b.example"}', '2024-01-02 03:04:05.678901+00');
