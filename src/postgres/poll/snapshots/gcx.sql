BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
WITH RECURSIVE first AS MATERIALIZED (
  SELECT o.tableoid AS oid, o.ctid AS tid, o."aggregate_type" AS kind, o."aggregate_id" AS id, concat(o."aggregate_type", chr(31), o."aggregate_id") AS key,
    o."created_at" AS o0, o."postrider.failures" AS o1, o."postrider.age" AS o2, o."postrider.command" AS o3, o.ctid AS o4, o."id" AS o5,
    coalesce(o."expires_at" <= now(), false) AS expired, row_number() OVER w AS n,
    (32::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) AS stored, sum(CASE WHEN (32::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) > 67108864 THEN 0 ELSE (32::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) END) OVER w AS total,
    (pg_column_compression(o."aggregate_type") IS NOT NULL OR pg_column_compression(o."aggregate_id") IS NOT NULL OR pg_column_compression(o."payload") IS NOT NULL) AS packed
  FROM (SELECT o.*, CASE WHEN bool_or(o."postrider.cmin" < o."postrider.highest") OVER (PARTITION BY o."created_at", o."postrider.failures", o."postrider.age")
      THEN 0 ELSE o."postrider.cmin" END AS "postrider.command"
    FROM (SELECT o.*, o.tableoid, o.ctid, o.xmin, - age(o.xmin) AS "postrider.age", - o."retry_count" AS "postrider.failures",
        o.cmin::text::int8 AS "postrider.cmin", max(o.cmin::text::int8) OVER (
          PARTITION BY o."created_at", - o."retry_count", - age(o.xmin), o.tableoid, (o.ctid::text::point)[0]
          ORDER BY o.ctid ROWS UNBOUNDED PRECEDING) AS "postrider.highest"
      FROM "public"."outbox" AS o
      WHERE o."status" = 'pending'
    AND (pg_visible_in_snapshot(((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - (((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - o.xmin::text::int8) & 4294967295))::text::xid8, '10:20:10,14'::pg_snapshot) OR o."retry_count" > 0)
    AND concat(o."aggregate_type", chr(31), o."aggregate_id") <> ALL (ARRAY['orderit''s']::text[])) AS o) AS o
  WINDOW w AS (ORDER BY o."created_at", o."postrider.failures", o."postrider.age", o."postrider.command", o.ctid, o."id" ROWS UNBOUNDED PRECEDING)
  ORDER BY o."created_at", o."postrider.failures", o."postrider.age", o."postrider.command", o.ctid, o."id"
  LIMIT 5
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
  WHERE NOT EXISTS (
    SELECT FROM "public"."outbox" AS b
    WHERE b."status" = 'failed' AND coalesce(b."expires_at" > now(), true)
      AND b."aggregate_type" = f.kind AND b."aggregate_id" = f.id
      AND ROW(b."created_at", - b."retry_count", - age(b.xmin), b.cmin::text::int8, b.ctid, b."id") < ROW(f.o0, f.o1, f.o2, f.o3, f.o4, f.o5))
    AND f.n <= (SELECT last FROM bound)
), got AS MATERIALIZED (
  SELECT f.n, f.key, o.tableoid AS oid, o.ctid AS tid, f.expired, f.huge, o.xmin AS xmin, o."id" AS c0, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END > 65536 THEN NULL ELSE o."aggregate_type" END AS c1, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."aggregate_id") IS NULL THEN pg_column_size(o."aggregate_id") ELSE octet_length(o."aggregate_id"::text) END > 65536 THEN NULL ELSE o."aggregate_id" END AS c2, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."payload") IS NULL THEN pg_column_size(o."payload") ELSE octet_length(o."payload"::text) END > 65536 THEN NULL ELSE o."payload" END AS c3
  FROM free AS f JOIN "public"."outbox" AS o ON o.tableoid = f.oid AND o.ctid = f.tid
  WHERE o."status" = 'pending'
  FOR UPDATE OF o SKIP LOCKED
)
SELECT f.n, f.key, f.oid, f.tid, f.expired, (SELECT count(*) FROM first), false, NULL, false, NULL, NULL, NULL, NULL
FROM first AS f
WHERE f.n <= (SELECT last FROM bound) AND f.n NOT IN (SELECT g.n FROM got AS g)
UNION ALL
SELECT g.n, g.key, g.oid, g.tid, g.expired, (SELECT count(*) FROM first), true, g.xmin, g.huge, g.c0, g.c1, g.c2, g.c3
FROM got AS g;
SELECT pg_current_wal_insert_lsn(), (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - 946684800000000