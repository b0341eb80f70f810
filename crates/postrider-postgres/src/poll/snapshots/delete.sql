BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
WITH RECURSIVE first AS MATERIALIZED (
  SELECT o.tableoid AS oid, o.ctid AS tid, o."aggregate_type" AS kind, o."aggregate_id" AS id, concat(o."aggregate_type", chr(31), o."aggregate_id") AS key,
    o."id" AS o0,
    false AS expired, row_number() OVER w AS n,
    (32::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) AS stored, sum(CASE WHEN (32::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) > 67108864 THEN 0 ELSE (32::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) END) OVER w AS total,
    (pg_column_compression(o."aggregate_type") IS NOT NULL OR pg_column_compression(o."aggregate_id") IS NOT NULL OR pg_column_compression(o."payload") IS NOT NULL) AS packed
  FROM "public"."outbox" AS o
  WHERE true
  WINDOW w AS (ORDER BY o."id" ROWS UNBOUNDED PRECEDING)
  ORDER BY o."id"
  LIMIT 100
), lines AS MATERIALIZED (
  SELECT array_agg(f.oid ORDER BY f.n) AS oids, array_agg(f.tid ORDER BY f.n) AS tids, max(f.n) AS last,
    coalesce(bool_or(f.packed), false) AS packed
  FROM first AS f WHERE f.total <= 8388608 OR f.n = 1
), walk AS (
  SELECT 0::int8 AS n, 0::numeric AS total, 0::int8 AS size FROM lines AS l WHERE l.packed
  UNION ALL
  SELECT w.n + 1, w.total + CASE WHEN s.size > 67108864 THEN 0 ELSE s.size END, s.size
  FROM walk AS w CROSS JOIN LATERAL (
    SELECT (32 + coalesce(CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."aggregate_id") IS NULL THEN pg_column_size(o."aggregate_id") ELSE octet_length(o."aggregate_id"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."payload") IS NULL THEN pg_column_size(o."payload") ELSE octet_length(o."payload"::text) END, 0))::int8 AS size FROM "public"."outbox" AS o
    WHERE o.tableoid = (SELECT l.oids FROM lines AS l)[w.n + 1]
      AND o.ctid = (SELECT l.tids FROM lines AS l)[w.n + 1] OFFSET 0) AS s
  WHERE w.n < (SELECT l.last FROM lines AS l) AND w.total <= 8388608
), bound AS MATERIALIZED (
  SELECT CASE WHEN l.packed THEN (SELECT max(w.n) FROM walk AS w
    WHERE w.total <= 8388608 OR w.n = 1) ELSE l.last END AS last,
    ARRAY(SELECT w.n FROM walk AS w WHERE w.size > 67108864) AS huge,
    67108864::int8 AS most FROM lines AS l
), free AS MATERIALIZED (
  SELECT f.n, f.oid, f.tid, f.key, f.expired, (f.stored > (SELECT most FROM bound) OR f.n = ANY ((SELECT huge FROM bound)::int8[])) AS huge FROM first AS f
  WHERE f.n <= (SELECT last FROM bound)
), got AS MATERIALIZED (
  SELECT f.n, f.key, o.tableoid AS oid, o.ctid AS tid, f.expired, f.huge, o.xmin AS xmin, o."id" AS c0, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END > 65536 THEN NULL ELSE o."aggregate_type" END AS c1, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."aggregate_id") IS NULL THEN pg_column_size(o."aggregate_id") ELSE octet_length(o."aggregate_id"::text) END > 65536 THEN NULL ELSE o."aggregate_id" END AS c2, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."payload") IS NULL THEN pg_column_size(o."payload") ELSE octet_length(o."payload"::text) END > 65536 THEN NULL ELSE o."payload" END AS c3
  FROM free AS f JOIN "public"."outbox" AS o ON o.tableoid = f.oid AND o.ctid = f.tid
  WHERE true
  FOR UPDATE OF o SKIP LOCKED
)
SELECT f.n, f.key, f.oid, f.tid, f.expired, (SELECT count(*) FROM first), false, NULL, false, NULL, NULL, NULL, NULL
FROM first AS f
WHERE f.n <= (SELECT last FROM bound) AND f.n NOT IN (SELECT g.n FROM got AS g)
UNION ALL
SELECT g.n, g.key, g.oid, g.tid, g.expired, (SELECT count(*) FROM first), true, g.xmin, g.huge, g.c0, g.c1, g.c2, g.c3
FROM got AS g;
SELECT pg_current_wal_insert_lsn(), (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - 946684800000000, '"public"."outbox"'::regclass::oid