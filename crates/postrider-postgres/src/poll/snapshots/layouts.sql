==== Postrider: timestamp with time zone
not done: true
unpublished: true
ready: true
blocked: none
delayed: none
indexed: true
expired: none
removable: none
done: DELETE FROM "public"."outbox" AS o
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: none
expire: none
==== Postrider: timestamp without time zone
not done: true
unpublished: true
ready: true
blocked: none
delayed: none
indexed: true
expired: none
removable: none
done: DELETE FROM "public"."outbox" AS o
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: none
expire: none
==== Adr30: timestamp with time zone
column published_at: timestamptz
not done: o."published_at" IS NULL
unpublished: o."published_at" IS NULL
ready: o."published_at" IS NULL
blocked: none
delayed: none
indexed: "published_at" IS NULL
expired: none
removable: none
done: UPDATE "public"."outbox" AS o SET "published_at" = statement_timestamp()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: none
expire: none
==== Adr30: timestamp without time zone
column published_at: timestamptz
not done: o."published_at" IS NULL
unpublished: o."published_at" IS NULL
ready: o."published_at" IS NULL
blocked: none
delayed: none
indexed: "published_at" IS NULL
expired: none
removable: none
done: UPDATE "public"."outbox" AS o SET "published_at" = (statement_timestamp()) AT TIME ZONE 'Europe/Berlin'
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: none
expire: none
==== Commerce: timestamp with time zone
column processed_at: timestamptz
column attempts: smallint NOT NULL DEFAULT 0
column available_at: timestamptz NOT NULL DEFAULT now()
column last_error: text
not done: o."processed_at" IS NULL
unpublished: o."processed_at" IS NULL
ready: o."processed_at" IS NULL AND coalesce(o."available_at" <= now(), true)
blocked: b."processed_at" IS NULL AND b."available_at" > now()
delayed: b."processed_at" IS NULL AND b."available_at" > now() AND b."attempts" = 0
indexed: "processed_at" IS NULL
expired: none
removable: none
done: UPDATE "public"."outbox" AS o SET "processed_at" = statement_timestamp()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: UPDATE "public"."outbox" AS o SET "attempts" = least(o."attempts" + 1, 32767), "available_at" = statement_timestamp() + least(o."attempts" + 1, 8) * interval '30000 milliseconds', "last_error" = v.error
  FROM (VALUES ('(7,1)'::tid, 'x: it''s')) AS v(tid, error) WHERE o.tableoid = 16384 AND o.ctid = v.tid AND o."attempts" < 10;
WITH moved AS (
  DELETE FROM "public"."outbox" AS o USING (VALUES ('(7,1)'::tid, 'x: it''s')) AS v(tid, error)
  WHERE o.tableoid = 16384 AND o.ctid = v.tid AND o."attempts" >= 10
  RETURNING o."id", o."processed_at", least(o."attempts" + 1, 32767) AS "attempts", statement_timestamp() + least(o."attempts" + 1, 8) * interval '30000 milliseconds' AS "available_at", v.error AS "last_error"
)
INSERT INTO "public"."outbox_dlq" ("id", "processed_at", "attempts", "available_at", "last_error") OVERRIDING SYSTEM VALUE SELECT "id", "processed_at", "attempts", "available_at", "last_error" FROM moved;
expire: none
==== Commerce: timestamp without time zone
column processed_at: timestamptz
column attempts: smallint NOT NULL DEFAULT 0
column available_at: timestamptz NOT NULL DEFAULT now()
column last_error: text
not done: o."processed_at" IS NULL
unpublished: o."processed_at" IS NULL
ready: o."processed_at" IS NULL AND coalesce((SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE 'Europe/Berlin' = l.at THEN e.at ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END FROM (SELECT l.at, CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' END AS later FROM (SELECT o."available_at"::timestamp AS at) AS l) AS l CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE 'Europe/Berlin' - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e) <= now(), true)
blocked: b."processed_at" IS NULL AND (SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE 'Europe/Berlin' = l.at THEN e.at ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END FROM (SELECT l.at, CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' END AS later FROM (SELECT b."available_at"::timestamp AS at) AS l) AS l CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE 'Europe/Berlin' - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e) > now()
delayed: b."processed_at" IS NULL AND (SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE 'Europe/Berlin' = l.at THEN e.at ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END FROM (SELECT l.at, CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' END AS later FROM (SELECT b."available_at"::timestamp AS at) AS l) AS l CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE 'Europe/Berlin' - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e) > now() AND b."attempts" = 0
indexed: "processed_at" IS NULL
expired: none
removable: none
done: UPDATE "public"."outbox" AS o SET "processed_at" = (statement_timestamp()) AT TIME ZONE 'Europe/Berlin'
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: UPDATE "public"."outbox" AS o SET "attempts" = least(o."attempts" + 1, 32767), "available_at" = (statement_timestamp() + least(o."attempts" + 1, 8) * interval '30000 milliseconds') AT TIME ZONE 'Europe/Berlin', "last_error" = v.error
  FROM (VALUES ('(7,1)'::tid, 'x: it''s')) AS v(tid, error) WHERE o.tableoid = 16384 AND o.ctid = v.tid AND o."attempts" < 10;
WITH moved AS (
  DELETE FROM "public"."outbox" AS o USING (VALUES ('(7,1)'::tid, 'x: it''s')) AS v(tid, error)
  WHERE o.tableoid = 16384 AND o.ctid = v.tid AND o."attempts" >= 10
  RETURNING o."id", o."processed_at", least(o."attempts" + 1, 32767) AS "attempts", (statement_timestamp() + least(o."attempts" + 1, 8) * interval '30000 milliseconds') AT TIME ZONE 'Europe/Berlin' AS "available_at", v.error AS "last_error"
)
INSERT INTO "public"."outbox_dlq" ("id", "processed_at", "attempts", "available_at", "last_error") OVERRIDING SYSTEM VALUE SELECT "id", "processed_at", "attempts", "available_at", "last_error" FROM moved;
expire: none
==== Gcx: timestamp with time zone
column status: varchar(20) NOT NULL DEFAULT 'pending'
column retry_count: smallint NOT NULL DEFAULT 0
column max_retries: smallint NOT NULL DEFAULT 5
column published_at: timestamptz
column expires_at: timestamptz
not done: o."status" <> 'published'
unpublished: (o."status" = 'pending' OR o."status" = 'failed' AND coalesce(o."expires_at" > now(), true))
ready: o."status" = 'pending'
blocked: b."status" = 'failed' AND coalesce(b."expires_at" > now(), true)
delayed: none
indexed: "status" = 'pending'
expired: coalesce(o."expires_at" <= now(), false)
removable: none
done: UPDATE "public"."outbox" AS o SET "status" = 'published', "published_at" = statement_timestamp()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: UPDATE "public"."outbox" AS o SET "retry_count" = o."retry_count" + 1,
  "status" = CASE WHEN o."retry_count" + 1 >= o."max_retries" THEN 'failed' ELSE 'pending' END
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
expire: UPDATE "public"."outbox" AS o SET "status" = 'failed' WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
==== Gcx: timestamp without time zone
column status: varchar(20) NOT NULL DEFAULT 'pending'
column retry_count: smallint NOT NULL DEFAULT 0
column max_retries: smallint NOT NULL DEFAULT 5
column published_at: timestamptz
column expires_at: timestamptz
not done: o."status" <> 'published'
unpublished: (o."status" = 'pending' OR o."status" = 'failed' AND coalesce((SELECT CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' ELSE l.at AT TIME ZONE 'UTC' END FROM (SELECT o."expires_at"::timestamp AS at) AS l) > now(), true))
ready: o."status" = 'pending'
blocked: b."status" = 'failed' AND coalesce((SELECT CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' ELSE l.at AT TIME ZONE 'UTC' END FROM (SELECT b."expires_at"::timestamp AS at) AS l) > now(), true)
delayed: none
indexed: "status" = 'pending'
expired: coalesce((SELECT CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' ELSE l.at AT TIME ZONE 'UTC' END FROM (SELECT o."expires_at"::timestamp AS at) AS l) <= now(), false)
removable: none
done: UPDATE "public"."outbox" AS o SET "status" = 'published', "published_at" = (statement_timestamp()) AT TIME ZONE 'Europe/Berlin'
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: UPDATE "public"."outbox" AS o SET "retry_count" = o."retry_count" + 1,
  "status" = CASE WHEN o."retry_count" + 1 >= o."max_retries" THEN 'failed' ELSE 'pending' END
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
expire: UPDATE "public"."outbox" AS o SET "status" = 'failed' WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
==== Sqlgarden: timestamp with time zone
column status: text NOT NULL DEFAULT 'PENDING'
column attempt_count: integer NOT NULL DEFAULT 0
column last_attempt_at: timestamptz
not done: o."status" <> 'PUBLISHED'
unpublished: o."status" <> 'PUBLISHED'
ready: o."status" <> 'PUBLISHED' AND (o."status" IN ('PENDING', 'PUBLISHING') OR o."status" = 'FAILED' AND (o."attempt_count" < 10 AND coalesce(o."last_attempt_at" + least(o."attempt_count", 8) * interval '30000 milliseconds' <= now(), true)))
blocked: b."status" <> 'PUBLISHED' AND b."status" = 'FAILED' AND NOT (b."attempt_count" < 10 AND coalesce(b."last_attempt_at" + least(b."attempt_count", 8) * interval '30000 milliseconds' <= now(), true))
delayed: none
indexed: "status" <> 'PUBLISHED'
expired: none
removable: none
done: UPDATE "public"."outbox" AS o SET "status" = 'PUBLISHED', "attempt_count" = o."attempt_count" + 1, "last_attempt_at" = now()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: UPDATE "public"."outbox" AS o SET "status" = 'FAILED', "attempt_count" = o."attempt_count" + 1, "last_attempt_at" = now()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
expire: none
==== Sqlgarden: timestamp without time zone
column status: text NOT NULL DEFAULT 'PENDING'
column attempt_count: integer NOT NULL DEFAULT 0
column last_attempt_at: timestamptz
not done: o."status" <> 'PUBLISHED'
unpublished: o."status" <> 'PUBLISHED'
ready: o."status" <> 'PUBLISHED' AND (o."status" IN ('PENDING', 'PUBLISHING') OR o."status" = 'FAILED' AND (o."attempt_count" < 10 AND coalesce((SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE 'Europe/Berlin' = l.at THEN e.at ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END FROM (SELECT l.at, CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' END AS later FROM (SELECT o."last_attempt_at"::timestamp AS at) AS l) AS l CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE 'Europe/Berlin' - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e) + least(o."attempt_count", 8) * interval '30000 milliseconds' <= now(), true)))
blocked: b."status" <> 'PUBLISHED' AND b."status" = 'FAILED' AND NOT (b."attempt_count" < 10 AND coalesce((SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE 'Europe/Berlin' = l.at THEN e.at ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END FROM (SELECT l.at, CASE WHEN l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01' THEN l.at AT TIME ZONE 'Europe/Berlin' END AS later FROM (SELECT b."last_attempt_at"::timestamp AS at) AS l) AS l CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE 'Europe/Berlin' - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e) + least(b."attempt_count", 8) * interval '30000 milliseconds' <= now(), true))
delayed: none
indexed: "status" <> 'PUBLISHED'
expired: none
removable: none
done: UPDATE "public"."outbox" AS o SET "status" = 'PUBLISHED', "attempt_count" = o."attempt_count" + 1, "last_attempt_at" = (now()) AT TIME ZONE 'Europe/Berlin'
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: UPDATE "public"."outbox" AS o SET "status" = 'FAILED', "attempt_count" = o."attempt_count" + 1, "last_attempt_at" = (now()) AT TIME ZONE 'Europe/Berlin'
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
expire: none
==== Pgtrickle: timestamp with time zone
column published_at: timestamptz
column unread_since: timestamptz
not done: o."published_at" IS NULL
unpublished: o."published_at" IS NULL
ready: o."published_at" IS NULL
blocked: none
delayed: none
indexed: "published_at" IS NULL
expired: none
removable: o."unread_since" IS NULL
done: UPDATE "public"."outbox" AS o SET "published_at" = statement_timestamp()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: none
expire: none
==== Pgtrickle: timestamp without time zone
column published_at: timestamptz
column unread_since: timestamptz
not done: o."published_at" IS NULL
unpublished: o."published_at" IS NULL
ready: o."published_at" IS NULL
blocked: none
delayed: none
indexed: "published_at" IS NULL
expired: none
removable: o."unread_since" IS NULL
done: UPDATE "public"."outbox" AS o SET "published_at" = (statement_timestamp()) AT TIME ZONE 'Europe/Berlin'
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
failed: none
expire: none
