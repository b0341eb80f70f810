BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
WITH first AS MATERIALIZED (
  SELECT o.tableoid AS oid, o.ctid AS tid, o."aggregate_type" AS kind, o."aggregate_id" AS id, concat(o."aggregate_type", chr(31), o."aggregate_id") AS key,
    o."id" AS o0,
    false AS expired, row_number() OVER w AS n, sum(32 + coalesce(CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."aggregate_id") IS NULL THEN pg_column_size(o."aggregate_id") ELSE octet_length(o."aggregate_id"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."payload") IS NULL THEN pg_column_size(o."payload") ELSE octet_length(o."payload"::text) END, 0)) OVER w AS total
  FROM "public"."outbox" AS o
  WHERE true
  WINDOW w AS (ORDER BY o."id" ROWS UNBOUNDED PRECEDING)
  ORDER BY o."id"
  LIMIT 100
), free AS MATERIALIZED (
  SELECT f.n, f.oid, f.tid, f.key, f.expired FROM first AS f
  WHERE (f.total <= 8388608 OR f.n = 1)
), got AS MATERIALIZED (
  SELECT f.n, f.key, o.tableoid AS oid, o.ctid AS tid, f.expired, o.xmin AS xmin, o."id" AS c0, o."aggregate_type" AS c1, o."aggregate_id" AS c2, o."payload" AS c3
  FROM free AS f JOIN "public"."outbox" AS o ON o.tableoid = f.oid AND o.ctid = f.tid
  WHERE true
  FOR UPDATE OF o SKIP LOCKED
)
SELECT f.n, f.key, f.oid, f.tid, f.expired, (SELECT count(*) FROM first), false, NULL, NULL, NULL, NULL, NULL
FROM first AS f
WHERE (f.total <= 8388608 OR f.n = 1) AND f.n NOT IN (SELECT g.n FROM got AS g)
UNION ALL
SELECT g.n, g.key, g.oid, g.tid, g.expired, (SELECT count(*) FROM first), true, g.xmin, g.c0, g.c1, g.c2, g.c3
FROM got AS g;
SELECT pg_current_wal_insert_lsn(), (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - 946684800000000