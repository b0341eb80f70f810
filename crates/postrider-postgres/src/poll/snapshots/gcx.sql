BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
WITH RECURSIVE first AS MATERIALIZED (
  SELECT o.tableoid AS oid, o.ctid AS tid, o."aggregate_type" AS kind, o."aggregate_id" AS id, concat(o."aggregate_type", chr(31), o."aggregate_id") AS key,
    o."created_at" AS o0, o."postrider.failures" AS o1, o."postrider.commit" AS o2, o."postrider.sort_age" AS o3, o."postrider.sort_command" AS o4, o.ctid AS o5, o."id" AS o6, o."postrider.age" AS age, o."postrider.cmin" AS command,
    coalesce(o."expires_at" <= now(), false) AS expired, row_number() OVER w AS n,
    (40::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) AS stored, sum(CASE WHEN (40::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) > 67108864 THEN 0 ELSE (40::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."aggregate_id"), 0) + coalesce(pg_column_size(o."payload"), 0)) END) OVER w AS total,
    (pg_column_compression(o."aggregate_type") IS NOT NULL OR pg_column_compression(o."aggregate_id") IS NOT NULL OR pg_column_compression(o."payload") IS NOT NULL) AS packed
  FROM (SELECT o.*, CASE WHEN o."postrider.commit" > '-infinity' THEN 0 ELSE CASE WHEN (o."postrider.fine" AND o."postrider.failures" = 0 AND (o."postrider.in_page" OR o."postrider.whole_evidence" = 1)) THEN o."postrider.whole_age" ELSE o."postrider.age" END END AS "postrider.sort_age",
  CASE WHEN o."postrider.overwritten" OR CASE WHEN (o."postrider.fine" AND o."postrider.failures" = 0 AND (o."postrider.in_page" OR o."postrider.whole_evidence" = 1)) THEN o."postrider.whole_evidence" = 2 ELSE o."postrider.lost" END THEN 0 ELSE o."postrider.cmin" END AS "postrider.sort_command"
  FROM (SELECT o.*, max(o."postrider.evidence") OVER w AS "postrider.whole_evidence", min(o."postrider.age") OVER w AS "postrider.whole_age",
    min(o."postrider.page") OVER w = max(o."postrider.page") OVER w AS "postrider.in_page",
    coalesce((o."postrider.fine" OR min(o."postrider.age") OVER w = max(o."postrider.age") OVER w)
      AND max(o."postrider.cmin") FILTER (WHERE o."postrider.touched") OVER w
      >= min(o."postrider.cmin") FILTER (WHERE NOT o."postrider.touched") OVER w, false) AS "postrider.overwritten"
  FROM (SELECT o.*, CASE WHEN o."postrider.lost" OR o."postrider.cmin" < lag(o."postrider.cmin") OVER p
        OR o."postrider.cmin" = lag(o."postrider.cmin") OVER p AND o."postrider.age" <> lag(o."postrider.age") OVER p THEN 2
      WHEN o."postrider.age" < lag(o."postrider.age") OVER p THEN 1 ELSE 0 END AS "postrider.evidence"
    FROM (SELECT o.*, coalesce(o."created_at" <> date_trunc('milliseconds', o."created_at"), false) AS "postrider.fine",
        hashtext(concat(o."aggregate_type", chr(31), o."aggregate_id") COLLATE "C") AS "postrider.aggregate"
      FROM (SELECT o.*, bool_or(o."postrider.cmin" < o."postrider.highest") OVER (PARTITION BY o."created_at", o."postrider.failures", o."postrider.age") AS "postrider.lost"
  FROM (SELECT o.*, max(o."postrider.cmin") OVER (
      PARTITION BY o."created_at", o."postrider.failures", o."postrider.age", o."postrider.page" ORDER BY o.ctid ROWS UNBOUNDED PRECEDING) AS "postrider.highest",
      coalesce(CASE WHEN (SELECT current_setting('track_commit_timestamp') = 'on' AND NOT pg_is_in_recovery()) THEN pg_xact_commit_timestamp(o.xmin) END, '-infinity') AS "postrider.commit"
    FROM (SELECT o.*, o.tableoid, o.ctid, o.xmin, - o."retry_count" AS "postrider.failures", - age(o.xmin) AS "postrider.age",
        o.cmin::text::int8 AS "postrider.cmin", ((o.tableoid::int8 << 32) + (o.ctid::text::point)[0]::int8) AS "postrider.page", o.xmax <> 0 AS "postrider.touched"
      FROM "public"."outbox" AS o
      WHERE o."status" = 'pending'
    AND (pg_visible_in_snapshot(((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - (((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - o.xmin::text::int8) & 4294967295))::text::xid8, '10:20:10,14'::pg_snapshot) OR o."retry_count" > 0)
    AND concat(o."aggregate_type", chr(31), o."aggregate_id") <> ALL (ARRAY['orderit''s']::text[])) AS o) AS o) AS o) AS o
    WINDOW p AS (PARTITION BY o."created_at", o."postrider.failures", o."postrider.aggregate", o."postrider.page" ORDER BY o.ctid)) AS o
  WINDOW w AS (PARTITION BY o."created_at", o."postrider.failures", o."postrider.aggregate")) AS o) AS o
  WINDOW w AS (ORDER BY o."created_at", o."postrider.failures", o."postrider.commit", o."postrider.sort_age", o."postrider.sort_command", o.ctid, o."id" ROWS UNBOUNDED PRECEDING)
  ORDER BY o."created_at", o."postrider.failures", o."postrider.commit", o."postrider.sort_age", o."postrider.sort_command", o.ctid, o."id"
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
    SELECT (40 + coalesce(CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."aggregate_id") IS NULL THEN pg_column_size(o."aggregate_id") ELSE octet_length(o."aggregate_id"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."payload") IS NULL THEN pg_column_size(o."payload") ELSE octet_length(o."payload"::text) END, 0))::int8 AS size FROM "public"."outbox" AS o
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
      AND ROW(b."created_at", - b."retry_count", CASE WHEN coalesce(b."created_at" <> date_trunc('milliseconds', b."created_at"), false) AND f.o1 = 0 AND b.tableoid = f.oid AND (b.ctid::text::point)[0] = (f.tid::text::point)[0] THEN f.age ELSE - age(b.xmin) END, CASE WHEN coalesce(b."created_at" <> date_trunc('milliseconds', b."created_at"), false) AND f.o1 = 0 AND b.tableoid = f.oid AND (b.ctid::text::point)[0] = (f.tid::text::point)[0] THEN f.command ELSE b.cmin::text::int8 END, b.ctid, b."id") < ROW(f.o0, f.o1, f.age, f.command, f.tid, f.o6))
    AND f.n <= (SELECT last FROM bound)
), got AS MATERIALIZED (
  SELECT f.n, f.key, o.tableoid AS oid, o.ctid AS tid, f.expired, f.huge, o.xmin AS xmin, o."id" AS c0, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END > 65536 THEN NULL ELSE o."aggregate_type" END AS c1, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."aggregate_id") IS NULL THEN pg_column_size(o."aggregate_id") ELSE octet_length(o."aggregate_id"::text) END > 65536 THEN NULL ELSE o."aggregate_id" END AS c2, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."payload") IS NULL THEN pg_column_size(o."payload") ELSE octet_length(o."payload"::text) END > 65536 THEN NULL ELSE o."payload" END AS c3, o."created_at" AS c4
  FROM free AS f JOIN "public"."outbox" AS o ON o.tableoid = f.oid AND o.ctid = f.tid
  WHERE o."status" = 'pending'
  FOR UPDATE OF o SKIP LOCKED
)
SELECT f.n, f.key, f.oid, f.tid, f.expired, (SELECT count(*) FROM first), false, NULL, false, NULL, NULL, NULL, NULL, NULL
FROM first AS f
WHERE f.n <= (SELECT last FROM bound) AND f.n NOT IN (SELECT g.n FROM got AS g)
UNION ALL
SELECT g.n, g.key, g.oid, g.tid, g.expired, (SELECT count(*) FROM first), true, g.xmin, g.huge, g.c0, g.c1, g.c2, g.c3, g.c4
FROM got AS g;
SELECT pg_current_wal_insert_lsn(), (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - 946684800000000, '"public"."outbox"'::regclass::oid