BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
WITH RECURSIVE first AS MATERIALIZED (
  SELECT o.tableoid AS oid, o.ctid AS tid, o."aggregate_type" AS kind, o."номер" AS id, concat(o."aggregate_type", chr(31), o."номер") AS key,
    o."Id\" AS o0,
    false AS expired, row_number() OVER w AS n,
    (40::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."номер"), 0) + coalesce(pg_column_size(o."select"), 0)) AS stored, sum(CASE WHEN (40::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."номер"), 0) + coalesce(pg_column_size(o."select"), 0)) > 67108864 THEN 0 ELSE (40::int8 + coalesce(pg_column_size(o."aggregate_type"), 0) + coalesce(pg_column_size(o."номер"), 0) + coalesce(pg_column_size(o."select"), 0)) END) OVER w AS total,
    (pg_column_compression(o."aggregate_type") IS NOT NULL OR pg_column_compression(o."номер") IS NOT NULL OR pg_column_compression(o."select") IS NOT NULL) AS packed
  FROM "my schema"."out""box" AS o
  WHERE o."Done ""at""" IS NULL AND coalesce(o."not' before" <= now(), true)
  WINDOW w AS (ORDER BY o."Id\" ROWS UNBOUNDED PRECEDING)
  ORDER BY o."Id\"
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
    SELECT (40 + coalesce(CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."номер") IS NULL THEN pg_column_size(o."номер") ELSE octet_length(o."номер"::text) END, 0) + coalesce(CASE WHEN pg_column_compression(o."select") IS NULL THEN pg_column_size(o."select") ELSE octet_length(o."select"::text) END, 0))::int8 AS size FROM "my schema"."out""box" AS o
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
    SELECT FROM "my schema"."out""box" AS b
    WHERE b."Done ""at""" IS NULL AND b."not' before" > now()
      AND b."aggregate_type" = f.kind AND b."номер" = f.id
      AND ROW(b."Id\") < ROW(f.o0))
    AND f.n <= (SELECT last FROM bound)
), got AS MATERIALIZED (
  SELECT f.n, f.key, o.tableoid AS oid, o.ctid AS tid, f.expired, f.huge, o.xmin AS xmin, o."Id\" AS c0, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."aggregate_type") IS NULL THEN pg_column_size(o."aggregate_type") ELSE octet_length(o."aggregate_type"::text) END > 65536 THEN NULL ELSE o."aggregate_type" END AS c1, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."номер") IS NULL THEN pg_column_size(o."номер") ELSE octet_length(o."номер"::text) END > 65536 THEN NULL ELSE o."номер" END AS c2, o."Versüche" AS c3, CASE WHEN f.huge AND CASE WHEN pg_column_compression(o."select") IS NULL THEN pg_column_size(o."select") ELSE octet_length(o."select"::text) END > 65536 THEN NULL ELSE o."select" END AS c4
  FROM free AS f JOIN "my schema"."out""box" AS o ON o.tableoid = f.oid AND o.ctid = f.tid
  WHERE o."Done ""at""" IS NULL AND coalesce(o."not' before" <= now(), true)
  FOR UPDATE OF o SKIP LOCKED
)
SELECT f.n, f.key, f.oid, f.tid, f.expired, (SELECT count(*) FROM first), false, NULL, false, NULL, NULL, NULL, NULL, NULL
FROM first AS f
WHERE f.n <= (SELECT last FROM bound) AND f.n NOT IN (SELECT g.n FROM got AS g)
UNION ALL
SELECT g.n, g.key, g.oid, g.tid, g.expired, (SELECT count(*) FROM first), true, g.xmin, g.huge, g.c0, g.c1, g.c2, g.c3, g.c4
FROM got AS g;
SELECT pg_current_wal_insert_lsn(), (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - 946684800000000, '"my schema"."out""box"'::regclass::oid

UPDATE "my schema"."out""box" AS o SET "Done ""at""" = statement_timestamp()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
UPDATE "my schema"."out""box" AS o SET "Done ""at""" = statement_timestamp()
  WHERE o.tableoid = 16385 AND o.ctid = ANY ('{"(7,4)"}'::tid[]);
UPDATE "my schema"."out""box" AS o SET "Versüche" = least(o."Versüche" + 1, 32767), "not' before" = statement_timestamp() + least(o."Versüche" + 1, 8) * interval '30000 milliseconds', "select" = v.error
  FROM (VALUES ('(7,2)'::tid, 'too_large: it''s ''too'' large ')) AS v(tid, error) WHERE o.tableoid = 16384 AND o.ctid = v.tid AND o."Versüche" < 10;
WITH moved AS (
  DELETE FROM "my schema"."out""box" AS o USING (VALUES ('(7,2)'::tid, 'too_large: it''s ''too'' large ')) AS v(tid, error)
  WHERE o.tableoid = 16384 AND o.ctid = v.tid AND o."Versüche" >= 10
  RETURNING o."Id\", least(o."Versüche" + 1, 32767) AS "Versüche", v.error AS "select"
)
INSERT INTO "my schema"."out""box_dlq" ("Id\", "Versüche", "select") OVERRIDING SYSTEM VALUE SELECT "Id\", "Versüche", "select" FROM moved;


WITH e AS MATERIALIZED (
  SELECT w.id, w.xid, w.at, w.ms, w.visible, w.lane, w.n
  FROM unnest($1::text[], $2::int8[], $3::int8[], $4::int8[], $5::bool[], $6::int8[])
    WITH ORDINALITY AS w(id, xid, at, ms, visible, lane, n)
), k AS MATERIALIZED (
  SELECT o.tableoid AS oid, o.ctid AS tid, concat(o."Id\") AS id FROM "my schema"."out""box" AS o
  WHERE o."Id\" OPERATOR(pg_catalog.=) ANY (($1::text[])::bigint[]) AND o."Done ""at""" IS NULL
    AND ((concat(o."Id\"), o.xmin::text::int8) IN (SELECT e.id, e.xid FROM e WHERE e.xid IS NOT NULL)
      OR concat(o."Id\") IN (SELECT e.id FROM e WHERE e.at IS NULL)
      OR CASE WHEN CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END IS NOT NULL
        THEN (concat(o."Id\"), CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END) IN (SELECT e.id, e.at FROM e WHERE e.at IS NOT NULL)
        ELSE true END)
  ORDER BY o."Id\" FOR UPDATE SKIP LOCKED
), l AS MATERIALIZED (
  SELECT concat(o."Id\") AS id FROM "my schema"."out""box" AS o
  WHERE o."Id\" OPERATOR(pg_catalog.=) ANY (($1::text[])::bigint[]) AND o."Done ""at""" IS NULL
    AND ((concat(o."Id\"), o.xmin::text::int8) IN (SELECT e.id, e.xid FROM e WHERE e.xid IS NOT NULL)
      OR concat(o."Id\") IN (SELECT e.id FROM e WHERE e.at IS NULL)
      OR CASE WHEN CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END IS NOT NULL
        THEN (concat(o."Id\"), CASE WHEN current_setting('track_commit_timestamp') = 'on' THEN (extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - timestamptz '2000-01-01 00:00:00+00') * 1000000)::int8 END) IN (SELECT e.id, e.at FROM e WHERE e.at IS NOT NULL)
        ELSE true END)
    AND (o.tableoid, o.ctid) NOT IN (SELECT k.oid, k.tid FROM k)
  UNION ALL SELECT w.id FROM e AS w
  WHERE NOT w.visible
    AND NOT pg_visible_in_snapshot(((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - ((((SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8) - w.xid + 2147483648) & 4294967295) - 2147483648))::text::xid8, pg_current_snapshot())
), b AS MATERIALIZED (
  SELECT w.lane, min(w.n) AS n FROM e AS w
  WHERE w.id IN (SELECT l.id FROM l) GROUP BY w.lane
), u AS MATERIALIZED (
  SELECT k.oid, k.tid FROM k
  WHERE k.id NOT IN (SELECT l.id FROM l
    UNION ALL SELECT w.id FROM e AS w JOIN b ON b.lane = w.lane WHERE w.n > b.n)
), m AS (
  UPDATE "my schema"."out""box" AS o SET "Done ""at""" = statement_timestamp()
  FROM u WHERE o.tableoid = u.oid AND o.ctid = u.tid
  RETURNING 1
)
SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM m), ARRAY(SELECT l.id FROM l)