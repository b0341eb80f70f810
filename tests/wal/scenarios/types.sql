-- Every kind of column that a header may come from, with its ends.
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN name AS varchar(20);
CREATE TABLE outbox (id uuid, aggregatetype varchar(255), aggregateid char(5), payload bytea, flag boolean, whole smallint,
    day date, clock time, clock_ms time(3), zoned timestamptz, zoned_ms timestamptz(3), plain timestamp, plain_ms timestamp(3),
    span interval, ratio double precision, ratio4 real, price numeric(10,2), amount numeric, mood mood, name name, tags text[]);
-- record
INSERT INTO outbox VALUES ('0b6c8a4e-1111-4222-8333-944444444444', 'Order', '42', '\x00ff10', true, -7,
    '2024-02-29', '03:04:05.678901', '03:04:05.678', '2024-01-02 03:04:05.678901+02', '2024-01-02 03:04:05.678+00',
    '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05.678', '1 year 2 mons -3 days +04:05:06.7', 100, 0.1, 12.5, 123.45,
    'glad', 'Ada', '{a,NULL,"b c"}');
INSERT INTO outbox VALUES ('0b6c8a4e-1111-4222-8333-944444444445', 'Order', NULL, NULL, false, 0,
    '0044-03-15 BC', '24:00:00', '00:00:00', 'infinity', '10000-01-01 00:00:00+00', '-infinity', '1969-12-31 23:59:59.999',
    '-00:00:00.000001', 'NaN', '-Infinity', 'NaN', -0.0001, NULL, '', '{}');
INSERT INTO outbox VALUES ('0b6c8a4e-1111-4222-8333-944444444446', '', 'ä', '', NULL, NULL, '294276-12-31', NULL, NULL,
    '0001-01-01 00:00:00+00 BC', NULL, '5000-01-01', NULL, '-1 mon', 1e300, 1e-30, -0.01, 1e40, NULL, NULL, NULL);
