-- A full row of layout gcx, and one of defaults and NULLs.
\ir ../../../sql/layouts/gcx.sql
-- record
INSERT INTO outbox VALUES ('0b6c8a4e-1111-4222-8333-944444444444', 'Trade', 'aaaaaaaa-1111-4222-8333-944444444444', 'trade.matched', 'trades', 'BTC-EUR', '{"price": 1}', '{"source": "engine", "traceId": "t-1"}', 'pending', 0, 5, NULL, '2024-01-02 03:04:05.678901+00', '2024-01-02 03:04:05.678901+00');
INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, topic, payload, expires_at, created_at) VALUES ('0b6c8a4e-1111-4222-8333-944444444445', 'User', 'aaaaaaaa-1111-4222-8333-944444444444', 'user.registered', 'users', '{}', '2024-01-02 03:04:05.678901+00', '2024-01-02 03:04:05.678901+00');
