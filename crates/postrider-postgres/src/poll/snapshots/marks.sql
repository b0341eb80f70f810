DELETE FROM "public"."outbox" AS o
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);

UPDATE "public"."outbox" AS o SET "published_at" = statement_timestamp()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);

UPDATE "public"."outbox" AS o SET "status" = 'published', "published_at" = statement_timestamp()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
UPDATE "public"."outbox" AS o SET "retry_count" = o."retry_count" + 1,
  "status" = CASE WHEN o."retry_count" + 1 >= o."max_retries" THEN 'failed' ELSE 'pending' END
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,2)"}'::tid[]);
UPDATE "public"."outbox" AS o SET "status" = 'failed' WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,3)"}'::tid[]);

UPDATE "public"."outbox" AS o SET "status" = 'PUBLISHED', "attempt_count" = o."attempt_count" + 1, "last_attempt_at" = now()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,1)"}'::tid[]);
UPDATE "public"."outbox" AS o SET "status" = 'FAILED', "attempt_count" = o."attempt_count" + 1, "last_attempt_at" = now()
  WHERE o.tableoid = 16384 AND o.ctid = ANY ('{"(7,2)"}'::tid[]);

