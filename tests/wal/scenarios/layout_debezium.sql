-- A full row of layout debezium, and one of defaults and NULLs.
\ir ../../../sql/layouts/debezium.sql
-- record
INSERT INTO outboxevent VALUES ('0b6c8a4e-1111-4222-8333-944444444444', 'Order', '42', 'OrderCreated', '{"total":  9.50}');
INSERT INTO outboxevent VALUES ('0b6c8a4e-1111-4222-8333-944444444445', 'Order', '42', 'OrderGone', NULL);
