-- Inboxes that store messages first and process them later. They run with the rights of the caller, and find every name
-- without search_path. The tables are in schema postrider_inbox; their columns: create_inbox.
--
-- A message is pending until it is processed or dead. due_at is when it may be given out (again).
--
-- Locks of an ordered inbox: the row of an aggregate in inbox_order is locked by whoever processes its next message,
-- and by a statement that inserts messages of it. An insert waits for nobody: where it finds the row locked, or none,
-- it leaves a row in inbox_wake, at which the next inbox_next looks.

CREATE OR REPLACE FUNCTION postrider.inbox_get(p_name text, p_managed boolean DEFAULT false) RETURNS postrider.inbox
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v postrider.inbox;
BEGIN
    SELECT * INTO v FROM postrider.inbox i WHERE i.name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'inbox "%" does not exist', p_name USING ERRCODE = 'PR121',
            HINT = 'Table postrider.inbox lists the inboxes, and postrider.create_inbox creates one.';
    END IF;
    IF p_managed AND NOT v.is_managed THEN
        RAISE EXCEPTION 'inbox "%" is a table of yours: %.%', p_name, v.table_schema, v.table_name
            USING ERRCODE = 'PR124', HINT = 'Its own workers process it. Views, health, replay and drain work with it.';
    END IF;
    RETURN v;
END $$;

-- The table of an inbox, and its views: pending, dlq, stats.
CREATE OR REPLACE FUNCTION postrider.inbox_table(p_inbox postrider.inbox) RETURNS text
LANGUAGE sql IMMUTABLE RETURN format('%I.%I', p_inbox.table_schema, p_inbox.table_name);

CREATE OR REPLACE FUNCTION postrider.inbox_object(p_kind text, p_name text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN format('postrider_inbox.%I', p_kind || '_' || p_name);

-- Lets the roles that may read the list of inboxes read an inbox, and those that may insert into inbox_delta (workers,
-- administrators and relays) insert and process messages. Run by the owner of the inbox.
CREATE OR REPLACE FUNCTION postrider.inbox_grant(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i      postrider.inbox := postrider.inbox_get(p_name);
    v_view text;
    r      record;
BEGIN
    FOR r IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(o.rolname) END AS role,
            c.relname = 'inbox_delta' AS works
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles o ON o.oid = a.grantee
        WHERE (c.oid = 'postrider.inbox'::regclass AND a.privilege_type = 'SELECT'
            OR c.oid = 'postrider.inbox_delta'::regclass AND a.privilege_type = 'INSERT')
          AND (a.grantee = 0 OR o.oid IS NOT NULL)
    LOOP
        FOR v_view IN
            SELECT postrider.inbox_object(v.kind, p_name) FROM (VALUES ('pending'), ('dlq'), ('stats')) v(kind)
            UNION ALL SELECT postrider.inbox_object('tier', p_name || '_' || t.tier)
            FROM jsonb_object_keys(i.tiers) t(tier)
        LOOP
            EXECUTE format('GRANT SELECT ON TABLE %s TO %s', v_view, r.role);
        END LOOP;
        CONTINUE WHEN NOT i.is_managed;
        EXECUTE format('GRANT %s ON TABLE %s TO %s',
            CASE WHEN r.works THEN 'SELECT, INSERT, UPDATE, DELETE' ELSE 'SELECT' END, postrider.inbox_table(i),
            r.role);
    END LOOP;
END $$;

-- The views of an inbox: pending_NAME, dlq_NAME, stats_NAME, and tier_NAME_TIER for each tier.
CREATE OR REPLACE FUNCTION postrider.inbox_views(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i         postrider.inbox := postrider.inbox_get(p_name);
    v_table   text := postrider.inbox_table(i);
    v_open    text;
    v_dead    text;
    v_tier    record;
BEGIN
    IF i.is_managed THEN
        v_open := 'm.processed_at IS NULL AND m.dead_at IS NULL';
        v_dead := 'm.processed_at IS NULL AND m.dead_at IS NOT NULL';
    ELSE
        v_open := format('m.%I IS NULL AND coalesce(m.%I, 0) < %s', i.processed_at_column, i.retry_count_column,
            i.max_retries);
        v_dead := format('m.%I IS NULL AND coalesce(m.%I, 0) >= %s', i.processed_at_column, i.retry_count_column,
            i.max_retries);
    END IF;
    EXECUTE format('CREATE OR REPLACE VIEW %s AS SELECT * FROM %s m WHERE %s',
        postrider.inbox_object('pending', p_name), v_table, v_open);
    EXECUTE format('CREATE OR REPLACE VIEW %s AS SELECT * FROM %s m WHERE %s',
        postrider.inbox_object('dlq', p_name), v_table, v_dead);
    IF i.is_managed THEN
        EXECUTE format('CREATE OR REPLACE VIEW %s AS SELECT s.* FROM postrider.inbox_stats(%L) s',
            postrider.inbox_object('stats', p_name), p_name);
    ELSE
        EXECUTE format($f$CREATE OR REPLACE VIEW %s AS
            SELECT %s AS event_type, count(*) FILTER (WHERE %s) AS pending, count(*) FILTER (WHERE %s) AS dead,
                count(m.%5$I) AS processed,
                (avg(extract(epoch FROM m.%5$I - m.%6$I)))::double precision AS avg_processing_time_sec
            FROM %7$s m GROUP BY 1$f$, postrider.inbox_object('stats', p_name),
            CASE WHEN i.event_type_column IS NULL THEN '''''::text'
                ELSE format('coalesce(m.%I::text, '''')', i.event_type_column) END,
            v_open, v_dead, i.processed_at_column, i.received_at_column, v_table);
    END IF;
    FOR v_tier IN SELECT t.key AS name, t.value AS bounds FROM jsonb_each(i.tiers) t LOOP
        EXECUTE format('CREATE OR REPLACE VIEW %s AS SELECT * FROM %s m WHERE %s AND m.priority BETWEEN %s AND %s',
            postrider.inbox_object('tier', p_name || '_' || v_tier.name), v_table, v_open,
            (v_tier.bounds ->> 0)::smallint, (v_tier.bounds ->> 1)::smallint);
    END LOOP;
END $$;

-- Numbers.

-- Triggers of managed inboxes: what a statement changes in the numbers. The argument is the name of the inbox.
CREATE OR REPLACE FUNCTION postrider.inbox_inserted() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO postrider.inbox_delta (inbox, event_type, minute, pending, dead, processed, done, seconds)
    SELECT TG_ARGV[0], coalesce(n.event_type, ''), date_trunc('minute', clock_timestamp()),
        count(*) FILTER (WHERE n.processed_at IS NULL AND n.dead_at IS NULL),
        count(*) FILTER (WHERE n.processed_at IS NULL AND n.dead_at IS NOT NULL), count(n.processed_at), 0, 0
    FROM new_rows n GROUP BY 2;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION postrider.inbox_updated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO postrider.inbox_delta (inbox, event_type, minute, pending, dead, processed, done, seconds)
    SELECT TG_ARGV[0], c.event_type, date_trunc('minute', clock_timestamp()), sum(c.pending), sum(c.dead),
        sum(c.processed), sum(c.done), sum(c.seconds)
    FROM (
        SELECT coalesce(n.event_type, '') AS event_type, (n.processed_at IS NULL AND n.dead_at IS NULL)::int AS pending,
            (n.processed_at IS NULL AND n.dead_at IS NOT NULL)::int AS dead, (n.processed_at IS NOT NULL)::int
            AS processed, 0 AS done, 0 AS seconds FROM new_rows n
        UNION ALL
        SELECT coalesce(o.event_type, ''), -(o.processed_at IS NULL AND o.dead_at IS NULL)::int,
            -(o.processed_at IS NULL AND o.dead_at IS NOT NULL)::int, -(o.processed_at IS NOT NULL)::int, 0, 0
        FROM old_rows o
        UNION ALL
        SELECT coalesce(n.event_type, ''), 0, 0, 0, 1, extract(epoch FROM n.processed_at - n.received_at)
        FROM new_rows n JOIN old_rows o USING (event_id) WHERE n.processed_at IS NOT NULL AND o.processed_at IS NULL) c
    GROUP BY c.event_type
    HAVING sum(c.pending) <> 0 OR sum(c.dead) <> 0 OR sum(c.processed) <> 0 OR sum(c.done) <> 0;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION postrider.inbox_deleted() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO postrider.inbox_delta (inbox, event_type, minute, pending, dead, processed, done, seconds)
    SELECT TG_ARGV[0], coalesce(o.event_type, ''), date_trunc('minute', clock_timestamp()),
        -count(*) FILTER (WHERE o.processed_at IS NULL AND o.dead_at IS NULL),
        -count(*) FILTER (WHERE o.processed_at IS NULL AND o.dead_at IS NOT NULL), -count(o.processed_at), 0, 0
    FROM old_rows o GROUP BY 2;
    -- The next message of an aggregate may be another one now.
    INSERT INTO postrider.inbox_wake (inbox, aggregate_id)
    SELECT DISTINCT i.name, o.aggregate_id FROM postrider.inbox i CROSS JOIN old_rows o
    WHERE i.name = TG_ARGV[0] AND i.ordering IS NOT NULL AND o.processed_at IS NULL;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION postrider.inbox_truncated() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(TG_ARGV[0], 7366915));   -- inbox_fold says why
    DELETE FROM postrider.inbox_delta d WHERE d.inbox = TG_ARGV[0];
    DELETE FROM postrider.inbox_wake w WHERE w.inbox = TG_ARGV[0];
    RETURN NULL;
END $$;

-- Trigger of ordered inboxes, on insert: the aggregates whose next message has come. Arguments: the name of the inbox,
-- and what decides the order.
CREATE OR REPLACE FUNCTION postrider.inbox_arrived() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    WITH came AS (
        SELECT n.aggregate_id, min(n.sequence_num) AS lowest, min(n.due_at) AS due_at FROM new_rows n
        WHERE n.processed_at IS NULL AND n.dead_at IS NULL GROUP BY n.aggregate_id
    ), locked AS (
        SELECT o.aggregate_id, o.last_seq, o.due_at FROM postrider.inbox_order o
        WHERE o.inbox = TG_ARGV[0] AND o.aggregate_id IN (SELECT c.aggregate_id FROM came c)
        FOR UPDATE OF o SKIP LOCKED
    ), woken AS (
        UPDATE postrider.inbox_order o SET due_at = c.due_at FROM locked l JOIN came c USING (aggregate_id)
        -- Where that is too early (another message waits, or is being worked on), inbox_next puts it right.
        WHERE o.inbox = TG_ARGV[0] AND o.aggregate_id = l.aggregate_id AND l.due_at > c.due_at
          AND TG_ARGV[1] = 'sequence' AND c.lowest <= l.last_seq + 1
    )
    -- In order of arrival, a message behind one that waits or is dead is not the next one: inbox_next decides.
    INSERT INTO postrider.inbox_wake (inbox, aggregate_id)
    SELECT TG_ARGV[0], c.aggregate_id FROM came c LEFT JOIN locked l USING (aggregate_id)
    WHERE l.aggregate_id IS NULL OR TG_ARGV[1] = 'arrival' AND l.due_at = 'infinity';
    RETURN NULL;
END $$;

-- Replaces rows of inbox_delta by one for each type and minute, and for all minutes that are over for ten. Returns how
-- many rows there are less.
CREATE OR REPLACE FUNCTION postrider.inbox_fold(p_name text, p_max integer DEFAULT 10000) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_less bigint;
    v_more bigint;
BEGIN
    PERFORM postrider.check_number('p_max', p_max, 1, 1000000);
    -- inbox_recount and inbox_truncated take this lock too: a DELETE that waited for a transaction that folds the
    -- numbers would delete the rows of before, and not see the row that has their sum.
    IF NOT pg_try_advisory_xact_lock(hashtextextended(p_name, 7366915)) THEN
        RETURN 0;
    END IF;
    WITH gone AS (
        DELETE FROM postrider.inbox_delta d WHERE d.ctid = ANY (ARRAY(
            SELECT x.ctid FROM postrider.inbox_delta x WHERE x.inbox = p_name ORDER BY x.minute LIMIT p_max
            FOR UPDATE SKIP LOCKED))
        RETURNING d.*
    ), kept AS (
        INSERT INTO postrider.inbox_delta (inbox, event_type, minute, pending, dead, processed, done, seconds)
        SELECT g.inbox, g.event_type, CASE WHEN g.minute < clock_timestamp() - interval '10 minutes' THEN '-infinity'
            ELSE g.minute END, sum(g.pending), sum(g.dead), sum(g.processed), sum(g.done), sum(g.seconds)
        FROM gone g GROUP BY 1, 2, 3 RETURNING 1
    )
    SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM kept) INTO v_less, v_more;
    RETURN v_less - v_more;
END $$;

CREATE OR REPLACE FUNCTION postrider.inbox_stats(p_name text)
RETURNS TABLE (event_type text, pending bigint, dead bigint, processed bigint, avg_processing_time_sec double precision)
LANGUAGE sql STABLE ROWS 10
BEGIN ATOMIC
    SELECT d.event_type, sum(d.pending)::bigint, sum(d.dead)::bigint, sum(d.processed)::bigint,
        sum(d.seconds) / nullif(sum(d.done), 0)::double precision
    FROM postrider.inbox_delta d WHERE d.inbox = p_name GROUP BY d.event_type
    HAVING sum(d.pending) <> 0 OR sum(d.dead) <> 0 OR sum(d.processed) <> 0 OR sum(d.done) <> 0;
END;

-- Inboxes.

-- Creates an inbox. Returns its table.
CREATE OR REPLACE FUNCTION postrider.create_inbox(p_name text, p_schema text DEFAULT 'postrider_inbox',
    p_max_retries integer DEFAULT 5, p_retention_hours integer DEFAULT 72, p_if_not_exists boolean DEFAULT false)
RETURNS regclass LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table text;
BEGIN
    PERFORM postrider.inbox_check_name(p_name), postrider.check_name('p_schema', p_schema),
        postrider.check_number('p_max_retries', p_max_retries, 1, 1000000),
        postrider.check_number('p_retention_hours', p_retention_hours, 0, 1000000);
    IF p_schema = 'postrider' THEN
        RAISE EXCEPTION 'schema "postrider" is for Postrider''s own tables' USING ERRCODE = '22023',
            HINT = 'Leave p_schema out, or name a schema of yours.';
    END IF;
    v_table := format('%I.%I', p_schema, p_name);
    INSERT INTO postrider.inbox (name, table_schema, table_name, is_managed, max_retries, retention_hours)
    VALUES (p_name, p_schema, p_name, true, p_max_retries, p_retention_hours) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        IF p_if_not_exists AND EXISTS (SELECT FROM postrider.inbox i WHERE i.name = p_name AND i.is_managed) THEN
            RETURN postrider.inbox_table(postrider.inbox_get(p_name))::regclass;
        END IF;
        RAISE EXCEPTION 'inbox "%" exists already', p_name USING ERRCODE = 'PR122',
            HINT = 'Give this one another name, or drop the other one with postrider.drop_inbox.';
    END IF;
    IF to_regclass(v_table) IS NOT NULL THEN
        RAISE EXCEPTION 'table % exists already', v_table USING ERRCODE = 'PR122',
            HINT = 'Drop or rename it, or adopt it with postrider.enable_inbox_tracking.';
    END IF;
    EXECUTE format($f$
        CREATE TABLE %1$s (
            -- The key by which a repetition is recognised.
            event_id     text        PRIMARY KEY CHECK (octet_length(event_id) <= 2000),
            event_type   text,
            source       text,
            aggregate_id text,
            payload      jsonb,
            -- In place of payload where that is no JSON that jsonb can store.
            payload_bytes bytea,
            headers      jsonb,
            trace_id     text,
            received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
            processed_at timestamptz,
            error        text,
            retry_count  integer     NOT NULL DEFAULT 0,
            dead_at      timestamptz,
            -- Whose turn it is: aggregate_id and sequence_num in an ordered inbox, priority in one with priorities.
            sequence_num bigint,
            priority     smallint,
            -- The order of arrival.
            seq          bigint      GENERATED ALWAYS AS IDENTITY,
            due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
            claim        bigint,
            claimed_by   text
        ) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000)$f$, v_table);
    EXECUTE format('CREATE INDEX ON %s (due_at, seq) WHERE processed_at IS NULL AND dead_at IS NULL', v_table);
    EXECUTE format('CREATE INDEX ON %s (seq) WHERE processed_at IS NULL AND dead_at IS NULL', v_table);
    EXECUTE format('CREATE INDEX ON %s (processed_at) WHERE processed_at IS NOT NULL', v_table);
    EXECUTE format('CREATE INDEX ON %s (dead_at) WHERE dead_at IS NOT NULL', v_table);
    EXECUTE format('CREATE TRIGGER inbox_inserted AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows '
        'FOR EACH STATEMENT EXECUTE FUNCTION postrider.inbox_inserted(%L)', v_table, p_name);
    EXECUTE format('CREATE TRIGGER inbox_updated AFTER UPDATE ON %s REFERENCING OLD TABLE AS old_rows NEW TABLE AS '
        'new_rows FOR EACH STATEMENT EXECUTE FUNCTION postrider.inbox_updated(%L)', v_table, p_name);
    EXECUTE format('CREATE TRIGGER inbox_deleted AFTER DELETE ON %s REFERENCING OLD TABLE AS old_rows '
        'FOR EACH STATEMENT EXECUTE FUNCTION postrider.inbox_deleted(%L)', v_table, p_name);
    EXECUTE format('CREATE TRIGGER inbox_truncated AFTER TRUNCATE ON %s '
        'FOR EACH STATEMENT EXECUTE FUNCTION postrider.inbox_truncated(%L)', v_table, p_name);
    PERFORM postrider.inbox_views(p_name), postrider.inbox_grant(p_name);
    RETURN v_table::regclass;
END $$;

CREATE OR REPLACE FUNCTION postrider.inbox_check_name(p_name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_name ~ '^[a-z][a-z0-9_]{0,46}$' IS NOT TRUE OR p_name ~ '^(pending|dlq|stats|tier)_' THEN
        RAISE EXCEPTION '% is no name of an inbox', coalesce(quote_literal(p_name), 'NULL') USING ERRCODE = '22023',
            HINT = 'It has 1 to 47 characters of a-z, 0-9 and _, begins with one of a-z, and not with pending_, dlq_, '
                'stats_ or tier_.';
    END IF;
END $$;

-- Processing.

-- Gives a worker the next messages that are due, at most p_max, oldest first; of an ordered inbox the next message of
-- each aggregate, of one with priorities the lowest priority number first.
--
-- Without p_lease the messages are locked until the transaction ends: do the work and call inbox_done in this
-- transaction, and its effect in this database happens once. With p_lease the messages are claimed for that time, and
-- the column claim is given back with inbox_done: the work is repeated if the lease is over before. That counts as a
-- failure, and with the last of max_retries the message is dead.
CREATE OR REPLACE FUNCTION postrider.inbox_next(p_name text, p_worker text, p_max integer DEFAULT 10,
    p_lease interval DEFAULT NULL)
RETURNS TABLE (event_id text, event_type text, source text, aggregate_id text, payload jsonb, payload_bytes bytea,
    headers jsonb, trace_id text, received_at timestamptz, retry_count integer, sequence_num bigint, priority smallint,
    seq bigint, claim bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    i       postrider.inbox := postrider.inbox_get(p_name, true);
    v_table text := postrider.inbox_table(i);
    v_now   timestamptz := clock_timestamp();
    v_claim bigint;
    v_ids   text[];
    v_dead  text[];
BEGIN
    PERFORM postrider.check_name('p_worker', p_worker), postrider.check_number('p_max', p_max, 1, 10000);
    IF p_lease IS NOT NULL THEN
        IF p_lease NOT BETWEEN interval '1 second' AND interval '24 hours' THEN
            RAISE EXCEPTION 'p_lease is %', p_lease USING ERRCODE = '22023',
                HINT = 'It is 1 second to 24 hours, or NULL.';
        END IF;
        v_claim := nextval('postrider.lease_token');
    END IF;
    -- Once more if all that were due have become dead: there may be others.
    LOOP
        IF i.ordering IS NOT NULL THEN
            v_ids := postrider.inbox_heads(i, p_max, v_now, v_now + p_lease);
        ELSE
            EXECUTE format($f$
                SELECT array_agg(x.event_id ORDER BY x.n) FROM (
                    SELECT m.event_id, row_number() OVER () AS n FROM (
                        SELECT t.event_id FROM %s t
                        WHERE t.processed_at IS NULL AND t.dead_at IS NULL AND t.due_at <= $1
                        ORDER BY %s LIMIT $2 FOR UPDATE SKIP LOCKED) m) x$f$, v_table,
                CASE WHEN i.tiers IS NULL THEN 't.due_at, t.seq' ELSE 't.priority, t.seq' END)
            INTO v_ids USING v_now, p_max;
        END IF;
        IF v_ids IS NULL THEN
            RETURN;
        END IF;
        IF v_claim IS NOT NULL THEN
            -- A lease that ended without inbox_done and inbox_fail is a failure: the message may have killed its
            -- worker.
            EXECUTE format($f$
                UPDATE %s t SET claim = CASE WHEN l.is_dead THEN NULL ELSE $1 END, claimed_by = $2, due_at = $3,
                    retry_count = l.retry_count, dead_at = CASE WHEN l.is_dead THEN clock_timestamp() END,
                    error = CASE WHEN l.is_lost THEN 'the lease of ' || t.claimed_by || ' ended' ELSE t.error END
                FROM (SELECT x.event_id, x.claim IS NOT NULL AS is_lost, x.retry_count + (x.claim IS NOT NULL)::int
                        AS retry_count, x.claim IS NOT NULL AND x.retry_count + 1 >= $5 AS is_dead
                    FROM %1$s x WHERE x.event_id = ANY ($4)) l
                WHERE t.event_id = l.event_id$f$, v_table)
            USING v_claim, p_worker, v_now + p_lease, v_ids, i.max_retries;
            EXECUTE format($f$
                SELECT array_agg(t.event_id) FROM %s t
                WHERE t.event_id = ANY ($1) AND t.dead_at IS NOT NULL$f$, v_table)
            INTO v_dead USING v_ids;
            IF v_dead IS NOT NULL THEN
                PERFORM pg_notify('postrider_inbox_dead', p_name);
                v_ids := ARRAY(SELECT u.id FROM unnest(v_ids) WITH ORDINALITY u(id, n) WHERE u.id <> ALL (v_dead)
                    ORDER BY u.n);
                IF i.ordering IS NOT NULL THEN
                    PERFORM postrider.inbox_settle(i, postrider.inbox_lock(i, v_dead));
                END IF;
            END IF;
        END IF;
        EXIT WHEN cardinality(v_ids) > 0;
    END LOOP;
    RETURN QUERY EXECUTE format($f$
        SELECT t.event_id, t.event_type, t.source, t.aggregate_id, t.payload, t.payload_bytes, t.headers, t.trace_id,
            t.received_at, t.retry_count, t.sequence_num, t.priority, t.seq, $2
        FROM unnest($1) WITH ORDINALITY u(event_id, n) JOIN %s t USING (event_id) ORDER BY u.n$f$, v_table)
        USING v_ids, v_claim;
END $$;

-- What decides the order of an aggregate's messages.
CREATE OR REPLACE FUNCTION postrider.inbox_number(p_inbox postrider.inbox) RETURNS text
LANGUAGE sql IMMUTABLE RETURN CASE p_inbox.ordering WHEN 'sequence' THEN 'sequence_num' ELSE 'seq' END;

-- Writes when the next message of each of these aggregates is due; their rows in inbox_order are locked.
--
-- The next message is the lowest number that is not processed: it is due if it does not leave a gap, and is not dead.
CREATE OR REPLACE FUNCTION postrider.inbox_settle(p_inbox postrider.inbox, p_aggregates text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    EXECUTE format($f$
        UPDATE postrider.inbox_order o SET due_at = n.due_at
        FROM (
            SELECT s.ctid AS at, s.due_at AS was, coalesce((
                SELECT CASE WHEN h.dead_at IS NULL AND %2$s THEN h.due_at END
                FROM (SELECT t.%1$I AS number, t.dead_at, t.due_at FROM %3$s t
                    WHERE t.aggregate_id = s.aggregate_id AND t.processed_at IS NULL ORDER BY t.%1$I LIMIT 1) h),
                'infinity') AS due_at
            FROM postrider.inbox_order s WHERE s.inbox = $1 AND s.aggregate_id = ANY ($2) OFFSET 0) n
        WHERE o.ctid = n.at AND n.was <> n.due_at$f$,
        postrider.inbox_number(p_inbox),
        CASE p_inbox.ordering WHEN 'sequence' THEN 'h.number <= s.last_seq + 1' ELSE 'true' END,
        postrider.inbox_table(p_inbox))
    USING p_inbox.name, p_aggregates;
END $$;

-- Locks aggregates whose next message is due, at most p_max, and returns these messages. With p_until they are not due
-- again before.
CREATE OR REPLACE FUNCTION postrider.inbox_heads(p_inbox postrider.inbox, p_max integer, p_now timestamptz,
    p_until timestamptz)
RETURNS text[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_wake   tid[];
    v_left   tid[] := '{}';
    v_woken  text[];
    v_picked text[];
    v_ids    text[];
BEGIN
    FOR v_round IN 1 .. 10 LOOP
        -- Aggregates that somebody has to look at. A row in inbox_order that is locked, or created by a transaction
        -- that goes on, is left to the next call.
        SELECT array_agg(w.ctid), array_agg(DISTINCT w.aggregate_id) INTO v_wake, v_woken FROM (
            SELECT x.ctid, x.aggregate_id FROM postrider.inbox_wake x
            WHERE x.inbox = p_inbox.name AND x.ctid <> ALL (v_left) LIMIT 200 FOR UPDATE SKIP LOCKED) w;
        IF v_wake IS NOT NULL THEN
            INSERT INTO postrider.inbox_order (inbox, aggregate_id, last_seq)
            SELECT p_inbox.name, a.id, CASE p_inbox.ordering WHEN 'sequence' THEN p_inbox.first_sequence - 1 ELSE 0 END
            FROM unnest(v_woken) a(id) WHERE NOT EXISTS (
                SELECT FROM postrider.inbox_order o WHERE o.inbox = p_inbox.name AND o.aggregate_id = a.id)
              AND pg_try_advisory_xact_lock(hashtextextended(p_inbox.name || ' ' || a.id, 7366914))
            ON CONFLICT (inbox, aggregate_id) DO NOTHING;
            SELECT array_agg(x.aggregate_id) INTO v_woken FROM (
                SELECT o.aggregate_id FROM postrider.inbox_order o
                WHERE o.inbox = p_inbox.name AND o.aggregate_id = ANY (v_woken) FOR UPDATE SKIP LOCKED) x;
            PERFORM postrider.inbox_settle(p_inbox, v_woken);
            -- Of those that are left one row each is enough.
            DELETE FROM postrider.inbox_wake w USING (
                SELECT x.ctid AS at, x.aggregate_id = ANY (v_woken) AS is_settled,
                    row_number() OVER (PARTITION BY x.aggregate_id ORDER BY x.ctid) AS n
                FROM postrider.inbox_wake x WHERE x.ctid = ANY (v_wake) OFFSET 0) d
            WHERE w.ctid = d.at AND (d.is_settled OR d.n > 1);
            SELECT v_left || array_agg(w.ctid) INTO v_left FROM postrider.inbox_wake w WHERE w.ctid = ANY (v_wake);
        END IF;
        SELECT array_agg(x.aggregate_id) INTO v_picked FROM (
            SELECT o.aggregate_id FROM postrider.inbox_order o WHERE o.inbox = p_inbox.name AND o.due_at <= p_now
            ORDER BY o.due_at LIMIT p_max FOR UPDATE SKIP LOCKED) x;
        EXIT WHEN v_picked IS NOT NULL OR v_wake IS NULL;
    END LOOP;
    IF v_picked IS NULL THEN
        RETURN NULL;
    END IF;
    -- What was changed by hand since due_at was written.
    PERFORM postrider.inbox_settle(p_inbox, v_picked);
    EXECUTE format($f$
        SELECT array_agg(h.event_id ORDER BY h.due_at, h.number) FROM postrider.inbox_order o CROSS JOIN LATERAL (
            SELECT t.event_id, t.due_at, t.%1$I AS number FROM %2$s t
            WHERE t.aggregate_id = o.aggregate_id AND t.processed_at IS NULL ORDER BY t.%1$I LIMIT 1) h
        WHERE o.inbox = $1 AND o.aggregate_id = ANY ($2) AND o.due_at <= $3$f$,
        postrider.inbox_number(p_inbox), postrider.inbox_table(p_inbox))
    INTO v_ids USING p_inbox.name, v_picked, p_now;
    IF p_until IS NOT NULL THEN
        UPDATE postrider.inbox_order o SET due_at = p_until
        WHERE o.inbox = p_inbox.name AND o.aggregate_id = ANY (v_picked) AND o.due_at <= p_now;
    END IF;
    RETURN v_ids;
END $$;

CREATE OR REPLACE FUNCTION postrider.inbox_claim_lost(p_name text, p_ids text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'inbox "%": of these % messages at least one is not this worker''s to finish', p_name,
        cardinality(p_ids) USING ERRCODE = 'PR114',
        DETAIL = 'It is processed already, or claimed again since, or (ordered inbox) not the next of its aggregate.',
        HINT = 'Roll back this transaction and call inbox_next again.';
END $$;

-- Locks the rows of these messages' aggregates in inbox_order, and returns the aggregates.
CREATE OR REPLACE FUNCTION postrider.inbox_lock(p_inbox postrider.inbox, p_ids text[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_aggregates text[];
BEGIN
    EXECUTE format('SELECT array_agg(DISTINCT t.aggregate_id) FROM %s t WHERE t.event_id = ANY ($1)',
        postrider.inbox_table(p_inbox)) INTO v_aggregates USING p_ids;
    PERFORM FROM postrider.inbox_order o WHERE o.inbox = p_inbox.name AND o.aggregate_id = ANY (v_aggregates)
    ORDER BY o.aggregate_id FOR UPDATE;
    RETURN v_aggregates;
END $$;

-- The condition that message t is the next one of its aggregate; $3 is the name of the inbox.
CREATE OR REPLACE FUNCTION postrider.inbox_is_next(p_inbox postrider.inbox) RETURNS text
LANGUAGE sql IMMUTABLE RETURN format('NOT EXISTS (SELECT FROM %1$s l WHERE l.aggregate_id = t.aggregate_id '
    'AND l.processed_at IS NULL AND l.%2$I < t.%2$I) AND EXISTS (SELECT FROM postrider.inbox_order o '
    'WHERE o.inbox = $3 AND o.aggregate_id = t.aggregate_id AND %3$s)', postrider.inbox_table(p_inbox),
    postrider.inbox_number(p_inbox),
    CASE p_inbox.ordering WHEN 'sequence' THEN 't.sequence_num <= o.last_seq + 1' ELSE 'true' END);

-- Writes that the aggregates of these messages have got as far as they.
CREATE OR REPLACE FUNCTION postrider.inbox_passed(p_inbox postrider.inbox, p_ids text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    EXECUTE format($f$
        UPDATE postrider.inbox_order o SET last_seq = m.number
        FROM (SELECT t.aggregate_id, max(t.%I) AS number FROM %s t WHERE t.event_id = ANY ($2) GROUP BY 1) m
        WHERE o.inbox = $1 AND o.aggregate_id = m.aggregate_id AND o.last_seq < m.number$f$,
        postrider.inbox_number(p_inbox), postrider.inbox_table(p_inbox)) USING p_inbox.name, p_ids;
END $$;

-- Ends the work on messages of one inbox_next: in the transaction of their effects. Returns how many there are. A
-- message that is processed already, or that another worker has claimed since, raises PR114.
CREATE OR REPLACE FUNCTION postrider.inbox_done(p_name text, p_event_ids text[], p_claim bigint DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    i            postrider.inbox := postrider.inbox_get(p_name, true);
    v_table      text := postrider.inbox_table(i);
    v_aggregates text[];
    v_done       integer;
BEGIN
    IF p_event_ids IS NULL OR cardinality(p_event_ids) NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'p_event_ids has % ids', coalesce(cardinality(p_event_ids)::text, 'no')
            USING ERRCODE = '22023', HINT = 'It has the 1 to 10000 ids that inbox_next has returned.';
    END IF;
    IF i.ordering IS NOT NULL THEN
        v_aggregates := postrider.inbox_lock(i, p_event_ids);
    END IF;
    EXECUTE format($f$
        UPDATE %1$s t SET processed_at = clock_timestamp(), error = NULL, claim = NULL, claimed_by = NULL
        WHERE t.event_id = ANY ($1) AND t.processed_at IS NULL AND t.dead_at IS NULL AND (t.claim = $2
            OR $2 IS NULL AND (t.claim IS NULL OR t.due_at <= clock_timestamp())) AND %2$s$f$, v_table,
        CASE WHEN i.ordering IS NULL THEN 'true' ELSE postrider.inbox_is_next(i) END)
        USING p_event_ids, p_claim, p_name;
    GET DIAGNOSTICS v_done = ROW_COUNT;
    IF v_done <> cardinality(ARRAY(SELECT DISTINCT u FROM unnest(p_event_ids) u)) THEN
        PERFORM postrider.inbox_claim_lost(p_name, p_event_ids);
    END IF;
    IF i.ordering IS NOT NULL THEN
        PERFORM postrider.inbox_passed(i, p_event_ids);
        PERFORM postrider.inbox_settle(i, v_aggregates);
    END IF;
    RETURN v_done;
END $$;

-- Extends a lease: the messages are not given out to others for p_lease from now on. A message that is processed, or
-- claimed by another worker since, raises PR114.
CREATE OR REPLACE FUNCTION postrider.inbox_extend(p_name text, p_event_ids text[], p_claim bigint, p_lease interval)
RETURNS timestamptz LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    i            postrider.inbox := postrider.inbox_get(p_name, true);
    v_until      timestamptz;
    v_aggregates text[];
    v_extended   integer;
BEGIN
    IF p_lease BETWEEN interval '0' AND interval '24 hours' IS NOT TRUE THEN
        RAISE EXCEPTION 'p_lease is %', coalesce(p_lease::text, 'NULL') USING ERRCODE = '22023',
            HINT = 'It is at most 24 hours; 0 seconds releases the messages.';
    END IF;
    IF p_event_ids IS NULL OR cardinality(p_event_ids) NOT BETWEEN 1 AND 10000 THEN
        RAISE EXCEPTION 'p_event_ids has % ids', coalesce(cardinality(p_event_ids)::text, 'no')
            USING ERRCODE = '22023', HINT = 'It has the 1 to 10000 ids that inbox_next has returned.';
    END IF;
    v_until := clock_timestamp() + p_lease;
    IF i.ordering IS NOT NULL THEN
        v_aggregates := postrider.inbox_lock(i, p_event_ids);
    END IF;
    -- A message that is released is free, and its lease has not ended without an answer.
    EXECUTE format('UPDATE %s t SET due_at = $1, claim = CASE WHEN $4 THEN NULL ELSE t.claim END '
        'WHERE t.event_id = ANY ($2) AND t.claim = $3 AND t.processed_at IS NULL AND t.dead_at IS NULL',
        postrider.inbox_table(i)) USING v_until, p_event_ids, p_claim, p_lease = interval '0';
    GET DIAGNOSTICS v_extended = ROW_COUNT;
    IF v_extended <> cardinality(ARRAY(SELECT DISTINCT u FROM unnest(p_event_ids) u)) THEN
        PERFORM postrider.inbox_claim_lost(p_name, p_event_ids);
    END IF;
    IF i.ordering IS NOT NULL THEN
        PERFORM postrider.inbox_settle(i, v_aggregates);
    END IF;
    RETURN v_until;
END $$;

-- Reports that the work on a message has failed. The message is given out again after p_retry_after, by default after
-- 1 s, 2 s, 4 s ... up to 1 h with up to a fifth more or less; with the last of max_retries failures it is dead.
-- Returns whether it is dead. Messages of other workers raise PR114.
--
-- Roll back the effects before, to a savepoint or by another transaction.
CREATE OR REPLACE FUNCTION postrider.inbox_fail(p_name text, p_event_id text, p_error text,
    p_claim bigint DEFAULT NULL, p_retry_after interval DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    i            postrider.inbox := postrider.inbox_get(p_name, true);
    v_aggregates text[];
    v_dead       boolean;
BEGIN
    IF p_retry_after < interval '0' OR p_retry_after > interval '30 days' THEN
        RAISE EXCEPTION 'p_retry_after is %', p_retry_after USING ERRCODE = '22023',
            HINT = 'It is 0 seconds to 30 days.';
    END IF;
    IF i.ordering IS NOT NULL THEN
        v_aggregates := postrider.inbox_lock(i, ARRAY[p_event_id]);
    END IF;
    EXECUTE format($f$
        UPDATE %s t SET retry_count = t.retry_count + 1, error = left($3, 10000), claim = NULL, claimed_by = NULL,
            dead_at = CASE WHEN t.retry_count + 1 >= $4 THEN clock_timestamp() END,
            due_at = clock_timestamp() + coalesce($5, least(interval '1 hour',
                interval '1 second' * power(2, least(t.retry_count, 20))) * (0.8 + 0.4 * random()))
        WHERE t.event_id = $1 AND t.processed_at IS NULL AND t.dead_at IS NULL AND (t.claim = $2
            OR $2 IS NULL AND (t.claim IS NULL OR t.due_at <= clock_timestamp()))
        RETURNING t.dead_at IS NOT NULL$f$, postrider.inbox_table(i))
    INTO v_dead USING p_event_id, p_claim, p_error, i.max_retries, p_retry_after;
    IF v_dead IS NULL THEN
        PERFORM postrider.inbox_claim_lost(p_name, ARRAY[p_event_id]);
    END IF;
    IF v_dead THEN
        PERFORM pg_notify('postrider_inbox_dead', p_name);
    END IF;
    IF i.ordering IS NOT NULL THEN
        PERFORM postrider.inbox_settle(i, v_aggregates);
    END IF;
    RETURN v_dead;
END $$;

-- Makes messages pending again, at once and with all retries: dead ones, and processed ones, whose effects then happen
-- again. Returns how many of the ids exist.
CREATE OR REPLACE FUNCTION postrider.replay_inbox_messages(p_name text, p_event_ids text[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i            postrider.inbox := postrider.inbox_get(p_name);
    v_aggregates text[];
    v_found      integer;
BEGIN
    IF NOT i.is_managed THEN
        EXECUTE format('UPDATE %s t SET %I = NULL, %I = 0, %I = NULL WHERE t.%I::text = ANY ($1)',
            postrider.inbox_table(i), i.processed_at_column, i.retry_count_column, i.error_column, i.id_column)
        USING p_event_ids;
        GET DIAGNOSTICS v_found = ROW_COUNT;
        RETURN v_found;
    END IF;
    IF i.ordering IS NOT NULL THEN
        v_aggregates := postrider.inbox_lock(i, p_event_ids);
    END IF;
    EXECUTE format('UPDATE %s t SET processed_at = NULL, dead_at = NULL, error = NULL, retry_count = 0, claim = NULL, '
        'claimed_by = NULL, due_at = clock_timestamp() WHERE t.event_id = ANY ($1)', postrider.inbox_table(i))
    USING p_event_ids;
    GET DIAGNOSTICS v_found = ROW_COUNT;
    IF i.ordering IS NOT NULL THEN
        PERFORM postrider.inbox_settle(i, v_aggregates);
        -- Messages that were inserted as dead ones have no row in inbox_order yet.
        INSERT INTO postrider.inbox_wake (inbox, aggregate_id)
        SELECT p_name, a.id FROM unnest(v_aggregates) a(id) WHERE NOT EXISTS (
            SELECT FROM postrider.inbox_order o WHERE o.inbox = p_name AND o.aggregate_id = a.id);
    END IF;
    RETURN v_found;
END $$;

-- Gives messages up: they count as processed, and keep their error with the reason in front. An ordered inbox goes on
-- behind them; there a message that is not the next one of its aggregate raises PR114. Returns how many there were;
-- processed ones are left as they are.
CREATE OR REPLACE FUNCTION postrider.skip_inbox_messages(p_name text, p_event_ids text[], p_reason text)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    i            postrider.inbox := postrider.inbox_get(p_name, true);
    v_table      text := postrider.inbox_table(i);
    v_skip       text := format($f$
        UPDATE %s t SET processed_at = clock_timestamp(), dead_at = NULL, claim = NULL, claimed_by = NULL,
            error = left('skipped: ' || $2 || coalesce('; ' || t.error, ''), 10000)
        WHERE t.event_id = ANY ($1) AND t.processed_at IS NULL$f$, v_table);
    v_aggregates text[];
    v_id         text;
    v_skipped    integer := 0;
    v_n          integer;
BEGIN
    IF p_reason IS NULL OR p_reason = '' THEN
        RAISE EXCEPTION 'p_reason is empty' USING ERRCODE = '22023', HINT = 'Say why the messages are given up.';
    END IF;
    IF i.ordering IS NULL THEN
        EXECUTE v_skip USING p_event_ids, p_reason;
        GET DIAGNOSTICS v_skipped = ROW_COUNT;
        RETURN v_skipped;
    END IF;
    -- An aggregate at which no inbox_next has looked yet.
    EXECUTE format('INSERT INTO postrider.inbox_order (inbox, aggregate_id, last_seq) '
        'SELECT DISTINCT $1, t.aggregate_id, %s FROM %s t WHERE t.event_id = ANY ($3) ORDER BY 2 '
        'ON CONFLICT (inbox, aggregate_id) DO NOTHING',
        CASE i.ordering WHEN 'sequence' THEN '$2 - 1' ELSE '0 * $2' END, v_table)
    USING p_name, i.first_sequence, p_event_ids;
    v_aggregates := postrider.inbox_lock(i, p_event_ids);
    FOR v_id IN EXECUTE format('SELECT t.event_id FROM %s t WHERE t.event_id = ANY ($1) AND t.processed_at IS NULL '
        'ORDER BY t.%I', v_table, postrider.inbox_number(i)) USING p_event_ids
    LOOP
        EXECUTE v_skip || ' AND ' || postrider.inbox_is_next(i) USING ARRAY[v_id], p_reason, p_name;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        IF v_n = 0 THEN
            PERFORM postrider.inbox_claim_lost(p_name, ARRAY[v_id]);
        END IF;
        v_skipped := v_skipped + 1;
        PERFORM postrider.inbox_passed(i, ARRAY[v_id]);
    END LOOP;
    PERFORM postrider.inbox_settle(i, v_aggregates);
    RETURN v_skipped;
END $$;

-- State.

-- What the numbers say of an inbox. Costs the same for any number of messages in a managed inbox.
CREATE OR REPLACE FUNCTION postrider.inbox_health(p_name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i        postrider.inbox := postrider.inbox_get(p_name);
    v_now    timestamptz := clock_timestamp();
    v_open   text;
    v_dead   text;
    v_oldest timestamptz;
    v_from   timestamptz;
    c        record;
    v_age    double precision;
BEGIN
    v_from := CASE WHEN i.is_managed THEN date_trunc('minute', v_now - interval '5 minutes')
        ELSE v_now - interval '5 minutes' END;
    IF i.is_managed THEN
        EXECUTE format('SELECT t.received_at FROM %s t WHERE t.processed_at IS NULL AND t.dead_at IS NULL '
            'ORDER BY t.seq LIMIT 1', postrider.inbox_table(i)) INTO v_oldest;
        SELECT coalesce(sum(d.pending), 0)::bigint AS pending, coalesce(sum(d.dead), 0)::bigint AS dead,
            coalesce(sum(d.done) FILTER (WHERE d.minute >= v_from), 0)::bigint AS done,
            sum(d.seconds) FILTER (WHERE d.minute >= v_from) AS seconds
        INTO c FROM postrider.inbox_delta d WHERE d.inbox = p_name;
    ELSE
        v_open := format('t.%I IS NULL AND coalesce(t.%I, 0) < %s', i.processed_at_column, i.retry_count_column,
            i.max_retries);
        v_dead := format('t.%I IS NULL AND coalesce(t.%I, 0) >= %s', i.processed_at_column, i.retry_count_column,
            i.max_retries);
        EXECUTE format($f$
            SELECT count(*) FILTER (WHERE %1$s) AS pending, count(*) FILTER (WHERE %2$s) AS dead,
                count(*) FILTER (WHERE t.%3$I >= $1) AS done,
                (sum(extract(epoch FROM t.%3$I - t.%4$I)) FILTER (WHERE t.%3$I >= $1))::double precision AS seconds,
                min(t.%4$I) FILTER (WHERE %1$s) AS oldest FROM %5$s t$f$,
            v_open, v_dead, i.processed_at_column, i.received_at_column, postrider.inbox_table(i)) INTO c USING v_from;
        v_oldest := c.oldest;
    END IF;
    v_age := greatest(0, extract(epoch FROM v_now - v_oldest));
    RETURN jsonb_build_object('inbox', p_name, 'pending_count', c.pending, 'dead_letter_count', c.dead,
        'avg_processing_time_sec', c.seconds / nullif(c.done, 0),
        'oldest_pending_age_sec', coalesce(v_age, 0),
        'throughput_per_sec', c.done / extract(epoch FROM v_now - v_from)::double precision,
        'health_status', CASE WHEN v_age >= extract(epoch FROM i.critical_after) THEN 'critical'
            WHEN v_age >= extract(epoch FROM i.degraded_after) OR c.dead > 0 THEN 'degraded' ELSE 'healthy' END);
END $$;

-- A row for each inbox, or for one.
CREATE OR REPLACE FUNCTION postrider.inbox_status(p_name text DEFAULT NULL)
RETURNS TABLE (name text, "table" text, is_managed boolean, ordering text, has_priorities boolean, pending bigint,
    dead bigint, oldest_pending_age_sec double precision, throughput_per_sec double precision, health_status text,
    max_retries integer, retention_hours integer)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT i.name, postrider.inbox_table(i), i.is_managed, i.ordering, i.tiers IS NOT NULL,
        (h.health ->> 'pending_count')::bigint, (h.health ->> 'dead_letter_count')::bigint,
        (h.health ->> 'oldest_pending_age_sec')::double precision,
        (h.health ->> 'throughput_per_sec')::double precision, h.health ->> 'health_status', i.max_retries,
        i.retention_hours
    FROM postrider.inbox i CROSS JOIN LATERAL (SELECT postrider.inbox_health(i.name) AS health) h
    WHERE p_name IS NULL OR i.name = p_name ORDER BY i.name
$$;

-- Counts the messages of a managed inbox again, after rows were changed while the triggers were off (a restored table,
-- a logical replica).
CREATE OR REPLACE FUNCTION postrider.inbox_recount(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i postrider.inbox := postrider.inbox_get(p_name, true);
BEGIN
    PERFORM postrider.check_read_committed('inbox_recount');
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', postrider.inbox_table(i));
    PERFORM pg_advisory_xact_lock(hashtextextended(p_name, 7366915));   -- inbox_fold says why
    DELETE FROM postrider.inbox_delta d WHERE d.inbox = p_name;
    EXECUTE format($f$
        INSERT INTO postrider.inbox_delta (inbox, event_type, minute, pending, dead, processed, done, seconds)
        SELECT $1, coalesce(t.event_type, ''), '-infinity',
            count(*) FILTER (WHERE t.processed_at IS NULL AND t.dead_at IS NULL),
            count(*) FILTER (WHERE t.processed_at IS NULL AND t.dead_at IS NOT NULL), count(t.processed_at),
            count(t.processed_at), coalesce(sum(extract(epoch FROM t.processed_at - t.received_at)), 0)
        FROM %s t GROUP BY 2$f$, postrider.inbox_table(i)) USING p_name;
END $$;

-- A former version had no arguments for the times; two functions that fit the same call would be ambiguous.
DROP FUNCTION IF EXISTS postrider.inbox_drain(text, integer);

-- Deletes messages that are processed for longer than p_keep, and dead for longer than p_dead_keep, at most p_batch of
-- each. Without these, the inbox's own retention_hours and dead_retention_hours decide; 0: they are kept for ever.
-- Returns how many messages were deleted.
CREATE OR REPLACE FUNCTION postrider.inbox_drain(p_name text, p_batch integer DEFAULT 1000,
    p_keep interval DEFAULT NULL, p_dead_keep interval DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i       postrider.inbox := postrider.inbox_get(p_name);
    v_table text := postrider.inbox_table(i);
    v_keep  interval := coalesce(p_keep, i.retention_hours * interval '1 hour');
    v_dead  interval := coalesce(p_dead_keep, i.dead_retention_hours * interval '1 hour');
    -- clock_timestamp() in the statements would be no condition of an index: they would read every message.
    v_now   timestamptz := clock_timestamp();
    v_gone  integer := 0;
    v_more  integer;
BEGIN
    PERFORM postrider.check_number('p_batch', p_batch, 1, 100000);
    IF p_keep < interval '0' OR p_dead_keep < interval '0' THEN
        RAISE EXCEPTION 'p_keep is %, and p_dead_keep is %', coalesce(p_keep::text, 'NULL'),
            coalesce(p_dead_keep::text, 'NULL') USING ERRCODE = '22023',
            HINT = 'How long messages are kept: 0 is for ever, NULL what the row of postrider.inbox says.';
    END IF;
    IF NOT i.is_managed AND p_dead_keep > interval '0' THEN
        RAISE EXCEPTION 'inbox "%" is a table of yours: %', p_name, v_table USING ERRCODE = 'PR124',
            HINT = 'Its dead messages are yours to delete: leave p_dead_keep out.';
    END IF;
    IF v_keep > interval '0' THEN
        EXECUTE format('DELETE FROM ONLY %1$s t WHERE t.ctid = ANY (ARRAY(SELECT x.ctid FROM ONLY %1$s x '
            'WHERE x.%2$I < $1 ORDER BY x.%2$I LIMIT $2 FOR UPDATE SKIP LOCKED))', v_table, i.processed_at_column)
            USING v_now - v_keep, p_batch;
        GET DIAGNOSTICS v_gone = ROW_COUNT;
    END IF;
    IF i.is_managed AND v_dead > interval '0' THEN
        EXECUTE format('DELETE FROM ONLY %1$s t WHERE t.ctid = ANY (ARRAY(SELECT x.ctid FROM ONLY %1$s x '
            'WHERE x.dead_at < $1 ORDER BY x.dead_at LIMIT $2 FOR UPDATE SKIP LOCKED))', v_table)
            USING v_now - v_dead, p_batch;
        GET DIAGNOSTICS v_more = ROW_COUNT;
        v_gone := v_gone + v_more;
    END IF;
    PERFORM postrider.inbox_fold(p_name);
    RETURN v_gone;
END $$;

-- Drops the views of an inbox and what is stored about it; with p_cascade also the table, if create_inbox created it.
CREATE OR REPLACE FUNCTION postrider.drop_inbox(p_name text, p_if_exists boolean DEFAULT false,
    p_cascade boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i      postrider.inbox;
    v_view text;
    v_tier text;
    v_kind text;
BEGIN
    IF p_if_exists AND NOT EXISTS (SELECT FROM postrider.inbox x WHERE x.name = p_name) THEN
        RETURN false;
    END IF;
    i := postrider.inbox_get(p_name);
    FOR v_tier IN SELECT t.key FROM jsonb_object_keys(i.tiers) t(key) LOOP
        EXECUTE format('DROP VIEW IF EXISTS %s', postrider.inbox_object('tier', p_name || '_' || v_tier));
    END LOOP;
    FOREACH v_view IN ARRAY ARRAY['pending', 'dlq', 'stats'] LOOP
        EXECUTE format('DROP VIEW IF EXISTS %s', postrider.inbox_object(v_view, p_name));
    END LOOP;
    IF i.is_managed AND p_cascade THEN
        EXECUTE format('DROP TABLE IF EXISTS %s', postrider.inbox_table(i));
    ELSIF i.is_managed THEN
        PERFORM postrider.disable_inbox_ordering(p_name, true), postrider.disable_inbox_priority(p_name, true);
        FOREACH v_kind IN ARRAY ARRAY['inserted', 'updated', 'deleted', 'truncated'] LOOP
            EXECUTE format('DROP TRIGGER IF EXISTS %I ON %s', 'inbox_' || v_kind, postrider.inbox_table(i));
        END LOOP;
    END IF;
    DELETE FROM postrider.inbox_delta d WHERE d.inbox = p_name;
    DELETE FROM postrider.inbox_order o WHERE o.inbox = p_name;
    DELETE FROM postrider.inbox_wake w WHERE w.inbox = p_name;
    DELETE FROM postrider.inbox x WHERE x.name = p_name;
    RETURN true;
END $$;

-- Order.

-- From now on inbox_next gives out of each aggregate only the next message: by sequence_num without gaps from
-- p_first_sequence, or by arrival. The messages that are there are taken over.
CREATE OR REPLACE FUNCTION postrider.enable_inbox_ordering(p_name text, p_by text DEFAULT 'sequence',
    p_first_sequence bigint DEFAULT 1)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i       postrider.inbox := postrider.inbox_get(p_name, true);
    v_table text := postrider.inbox_table(i);
BEGIN
    PERFORM postrider.check_read_committed('enable_inbox_ordering');
    IF p_by IS NULL OR p_by NOT IN ('sequence', 'arrival') THEN
        RAISE EXCEPTION 'p_by is %', coalesce(quote_literal(p_by), 'NULL') USING ERRCODE = '22023',
            HINT = 'It is ''sequence'' (sequence_num, without gaps) or ''arrival''.';
    END IF;
    PERFORM postrider.check_number('p_first_sequence', p_first_sequence, -9223372036854775807, 9223372036854775807);
    IF i.tiers IS NOT NULL OR i.ordering IS NOT NULL THEN
        PERFORM postrider.inbox_has_rule(i);
    END IF;
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', v_table);
    UPDATE postrider.inbox x SET ordering = p_by, first_sequence = p_first_sequence WHERE x.name = p_name
    RETURNING x.* INTO i;
    EXECUTE format('ALTER TABLE %s ADD CONSTRAINT inbox_ordering CHECK (aggregate_id IS NOT NULL%s)', v_table,
        CASE p_by WHEN 'sequence' THEN ' AND sequence_num IS NOT NULL' ELSE '' END);
    EXECUTE format('CREATE INDEX %I ON %s (aggregate_id, %I) WHERE processed_at IS NULL', p_name || '_next', v_table,
        postrider.inbox_number(i));
    EXECUTE format('CREATE TRIGGER inbox_arrived AFTER INSERT ON %s REFERENCING NEW TABLE AS new_rows '
        'FOR EACH STATEMENT EXECUTE FUNCTION postrider.inbox_arrived(%L, %L)', v_table, p_name, p_by);
    EXECUTE format($f$
        INSERT INTO postrider.inbox_order (inbox, aggregate_id, last_seq)
        SELECT $1, t.aggregate_id, %s FROM %s t GROUP BY t.aggregate_id$f$,
        CASE p_by WHEN 'sequence' THEN 'greatest($2 - 1, coalesce(max(t.sequence_num) FILTER (WHERE '
            't.processed_at IS NOT NULL), $2 - 1))' ELSE '0 * $2' END, v_table) USING p_name, p_first_sequence;
    PERFORM postrider.inbox_settle(i, ARRAY(
        SELECT o.aggregate_id FROM postrider.inbox_order o WHERE o.inbox = p_name));
END $$;

CREATE OR REPLACE FUNCTION postrider.inbox_has_rule(p_inbox postrider.inbox) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'inbox "%" has %', p_inbox.name,
        CASE WHEN p_inbox.tiers IS NULL THEN 'an order' ELSE 'priorities' END USING ERRCODE = 'PR125',
        HINT = CASE WHEN p_inbox.tiers IS NULL
            THEN format('SELECT postrider.disable_inbox_ordering(%L); an inbox has an order or priorities, not both.',
                p_inbox.name)
            ELSE format('SELECT postrider.disable_inbox_priority(%L); an inbox has an order or priorities, not both.',
                p_inbox.name) END;
END $$;

CREATE OR REPLACE FUNCTION postrider.disable_inbox_ordering(p_name text, p_if_exists boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i postrider.inbox := postrider.inbox_get(p_name, true);
BEGIN
    IF i.ordering IS NULL THEN
        IF NOT p_if_exists THEN
            RAISE EXCEPTION 'inbox "%" has no order', p_name USING ERRCODE = 'PR125',
                HINT = 'There is nothing to do. With p_if_exists => true this is no error.';
        END IF;
        RETURN false;
    END IF;
    EXECUTE format('DROP TRIGGER inbox_arrived ON %s', postrider.inbox_table(i));
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT inbox_ordering', postrider.inbox_table(i));
    EXECUTE format('DROP INDEX %I.%I', i.table_schema, p_name || '_next');
    UPDATE postrider.inbox x SET ordering = NULL WHERE x.name = p_name;
    DELETE FROM postrider.inbox_order o WHERE o.inbox = p_name;
    DELETE FROM postrider.inbox_wake w WHERE w.inbox = p_name;
    RETURN true;
END $$;

-- The first gap of each aggregate that waits for one: the numbers that are missing, and since when the message behind
-- them waits.
CREATE OR REPLACE FUNCTION postrider.inbox_ordering_gaps(p_name text)
RETURNS TABLE (aggregate_id text, missing_from bigint, missing_to bigint, next_event_id text, waiting_since timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    i postrider.inbox := postrider.inbox_get(p_name, true);
BEGIN
    IF i.ordering IS DISTINCT FROM 'sequence' THEN
        RAISE EXCEPTION 'inbox "%" is not ordered by sequence', p_name USING ERRCODE = 'PR125',
            HINT = 'Only numbers have gaps: an inbox with postrider.enable_inbox_ordering(..., ''sequence'').';
    END IF;
    RETURN QUERY EXECUTE format($f$
        SELECT o.aggregate_id, o.last_seq + 1, h.sequence_num - 1, h.event_id, h.received_at
        FROM (
            SELECT x.aggregate_id, x.last_seq FROM postrider.inbox_order x
            WHERE x.inbox = $1 AND x.due_at = 'infinity'
            -- No inbox_next has looked at these yet.
            UNION SELECT w.aggregate_id, $2 - 1 FROM postrider.inbox_wake w
            WHERE w.inbox = $1 AND NOT EXISTS (SELECT FROM postrider.inbox_order x
                WHERE x.inbox = $1 AND x.aggregate_id = w.aggregate_id)) o CROSS JOIN LATERAL (
            SELECT t.sequence_num, t.event_id, t.received_at FROM %s t
            WHERE t.aggregate_id = o.aggregate_id AND t.processed_at IS NULL ORDER BY t.sequence_num LIMIT 1) h
        WHERE h.sequence_num > o.last_seq + 1 ORDER BY h.received_at$f$, postrider.inbox_table(i))
    USING p_name, i.first_sequence;
END $$;

-- Every gap, also behind the first one of an aggregate. Reads all messages that wait.
CREATE OR REPLACE FUNCTION postrider.inbox_all_gaps(p_name text)
RETURNS TABLE (aggregate_id text, missing_from bigint, missing_to bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    i postrider.inbox := postrider.inbox_get(p_name, true);
BEGIN
    IF i.ordering IS DISTINCT FROM 'sequence' THEN
        RAISE EXCEPTION 'inbox "%" is not ordered by sequence', p_name USING ERRCODE = 'PR125',
            HINT = 'Only numbers have gaps: an inbox with postrider.enable_inbox_ordering(..., ''sequence'').';
    END IF;
    RETURN QUERY EXECUTE format($f$
        SELECT g.aggregate_id, g.was + 1, g.sequence_num - 1 FROM (
            SELECT t.aggregate_id, t.sequence_num, coalesce(lag(t.sequence_num) OVER w, o.last_seq, $2 - 1) AS was
            FROM %s t LEFT JOIN postrider.inbox_order o ON o.inbox = $1 AND o.aggregate_id = t.aggregate_id
            WHERE t.processed_at IS NULL AND (o.last_seq IS NULL OR t.sequence_num > o.last_seq)
            WINDOW w AS (PARTITION BY t.aggregate_id ORDER BY t.sequence_num)) g
        WHERE g.sequence_num > g.was + 1 ORDER BY 1, 2$f$, postrider.inbox_table(i)) USING p_name, i.first_sequence;
END $$;

-- Gives up waiting for missing numbers: the aggregate goes on with the next message that is there. A message with a
-- missing number that arrives later is processed when it arrives. Returns how many numbers are missing.
CREATE OR REPLACE FUNCTION postrider.skip_inbox_gap(p_name text, p_aggregate_id text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i         postrider.inbox := postrider.inbox_get(p_name, true);
    v_last    bigint;
    v_next    bigint;
BEGIN
    PERFORM postrider.check_read_committed('skip_inbox_gap');
    IF i.ordering IS DISTINCT FROM 'sequence' THEN
        RAISE EXCEPTION 'inbox "%" is not ordered by sequence', p_name USING ERRCODE = 'PR125',
            HINT = 'Only numbers have gaps: an inbox with postrider.enable_inbox_ordering(..., ''sequence'').';
    END IF;
    INSERT INTO postrider.inbox_order (inbox, aggregate_id, last_seq)
    VALUES (p_name, p_aggregate_id, i.first_sequence - 1) ON CONFLICT (inbox, aggregate_id) DO NOTHING;
    SELECT o.last_seq INTO v_last FROM postrider.inbox_order o
    WHERE o.inbox = p_name AND o.aggregate_id = p_aggregate_id FOR UPDATE;
    EXECUTE format('SELECT min(t.sequence_num) FROM %s t WHERE t.aggregate_id = $1 AND t.processed_at IS NULL',
        postrider.inbox_table(i)) INTO v_next USING p_aggregate_id;
    IF v_next IS NULL OR v_last IS NULL OR v_next <= v_last + 1 THEN
        RETURN 0;
    END IF;
    UPDATE postrider.inbox_order o SET last_seq = v_next - 1
    WHERE o.inbox = p_name AND o.aggregate_id = p_aggregate_id;
    PERFORM postrider.inbox_settle(i, ARRAY[p_aggregate_id]);
    RETURN v_next - 1 - v_last;
END $$;

-- Priorities.

-- From now on inbox_next gives out messages with a lower priority number first. A view tier_NAME_TIER for each tier.
CREATE OR REPLACE FUNCTION postrider.enable_inbox_priority(p_name text,
    p_tiers jsonb DEFAULT '{"critical": [1, 2], "normal": [3, 6], "background": [7, 9]}', p_default integer DEFAULT 5)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i       postrider.inbox := postrider.inbox_get(p_name, true);
    v_table text := postrider.inbox_table(i);
BEGIN
    PERFORM postrider.check_read_committed('enable_inbox_priority');
    IF i.tiers IS NOT NULL OR i.ordering IS NOT NULL THEN
        PERFORM postrider.inbox_has_rule(i);
    END IF;
    PERFORM postrider.check_number('p_default', p_default, -32768, 32767);
    IF jsonb_typeof(p_tiers) IS DISTINCT FROM 'object' OR EXISTS (
        SELECT FROM jsonb_each(p_tiers) t
        WHERE t.key !~ '^[a-z][a-z0-9]{0,9}$' OR t.value::text !~ '^\[-?\d{1,4}, -?\d{1,4}\]$') THEN
        RAISE EXCEPTION 'p_tiers is not the tiers' USING ERRCODE = '22023',
            HINT = 'An object: name of a tier (1 to 10 characters of a-z and 0-9) to its lowest and highest number, '
                'for instance {"urgent": [1, 2]}.';
    END IF;
    EXECUTE format('UPDATE %s SET priority = %s WHERE priority IS NULL', v_table, p_default);
    EXECUTE format('ALTER TABLE %s ALTER COLUMN priority SET DEFAULT %s, ALTER COLUMN priority SET NOT NULL', v_table,
        p_default);
    EXECUTE format('CREATE INDEX %I ON %s (priority, seq) WHERE processed_at IS NULL AND dead_at IS NULL',
        p_name || '_priority', v_table);
    UPDATE postrider.inbox x SET tiers = p_tiers WHERE x.name = p_name;
    PERFORM postrider.inbox_views(p_name), postrider.inbox_grant(p_name);
END $$;

CREATE OR REPLACE FUNCTION postrider.disable_inbox_priority(p_name text, p_if_exists boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i      postrider.inbox := postrider.inbox_get(p_name, true);
    v_tier text;
BEGIN
    IF i.tiers IS NULL THEN
        IF NOT p_if_exists THEN
            RAISE EXCEPTION 'inbox "%" has no priorities', p_name USING ERRCODE = 'PR125',
                HINT = 'There is nothing to do. With p_if_exists => true this is no error.';
        END IF;
        RETURN false;
    END IF;
    FOR v_tier IN SELECT t.key FROM jsonb_object_keys(i.tiers) t(key) LOOP
        EXECUTE format('DROP VIEW IF EXISTS %s', postrider.inbox_object('tier', p_name || '_' || v_tier));
    END LOOP;
    EXECUTE format('DROP INDEX %I.%I', i.table_schema, p_name || '_priority');
    EXECUTE format('ALTER TABLE %s ALTER COLUMN priority DROP NOT NULL, ALTER COLUMN priority DROP DEFAULT',
        postrider.inbox_table(i));
    UPDATE postrider.inbox x SET tiers = NULL WHERE x.name = p_name;
    RETURN true;
END $$;

-- Whether an aggregate belongs to a worker, for workers 0 to p_workers - 1 that share an inbox by their own WHERE.
CREATE OR REPLACE FUNCTION postrider.inbox_is_my_partition(p_aggregate_id text, p_worker integer, p_workers integer)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN postrider.hash_partition(p_aggregate_id, p_workers) = p_worker;

-- Tables of others.

-- Adopts a table of messages: views, health, replay and drain work with it, its own workers go on. The table must be
-- in the schema's search or named with its schema.
CREATE OR REPLACE FUNCTION postrider.enable_inbox_tracking(p_name text, p_table regclass,
    p_id_column text DEFAULT 'event_id', p_processed_at_column text DEFAULT 'processed_at',
    p_retry_count_column text DEFAULT 'retry_count', p_error_column text DEFAULT 'error',
    p_received_at_column text DEFAULT 'received_at', p_event_type_column text DEFAULT 'event_type',
    p_max_retries integer DEFAULT 5, p_retention_hours integer DEFAULT 0)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_schema name;
    v_table  name;
    v_type   text;
    c        record;
BEGIN
    PERFORM postrider.inbox_check_name(p_name), postrider.check_number('p_max_retries', p_max_retries, 1, 1000000),
        postrider.check_number('p_retention_hours', p_retention_hours, 0, 1000000);
    SELECT n.nspname, t.relname INTO v_schema, v_table FROM pg_class t JOIN pg_namespace n ON n.oid = t.relnamespace
    WHERE t.oid = p_table AND t.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_inherits x WHERE x.inhparent = t.oid);
    IF NOT FOUND THEN
        RAISE EXCEPTION '% is no table without partitions or children', p_table USING ERRCODE = 'PR123',
            HINT = 'Adopt an ordinary table.';
    END IF;
    FOR c IN
        SELECT w.name, w.types FROM (VALUES (p_id_column, NULL::text[]),
            (p_processed_at_column, ARRAY['timestamp with time zone']),
            (p_retry_count_column, ARRAY['integer', 'smallint', 'bigint']),
            (p_error_column, ARRAY['text', 'character varying']),
            (p_received_at_column, ARRAY['timestamp with time zone'])) w(name, types)
    LOOP
        SELECT format_type(a.atttypid, NULL) INTO v_type FROM pg_attribute a
        WHERE a.attrelid = p_table AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'table % has no column "%"', p_table, c.name USING ERRCODE = 'PR123',
                HINT = 'Name the column of the table by the argument p_..._column.';
        ELSIF c.types IS NOT NULL AND v_type <> ALL (c.types) THEN
            RAISE EXCEPTION 'column "%" of table % is of type %', c.name, p_table, v_type USING ERRCODE = 'PR123',
                HINT = format('It has to be %s.', array_to_string(c.types, ' or '));
        END IF;
    END LOOP;
    IF p_event_type_column IS NOT NULL AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = p_table
        AND a.attname = p_event_type_column AND a.attnum > 0 AND NOT a.attisdropped) THEN
        RAISE EXCEPTION 'table % has no column "%"', p_table, p_event_type_column USING ERRCODE = 'PR123',
            HINT = 'Give p_event_type_column => NULL for a table without types.';
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
        WHERE x.indrelid = p_table AND x.indisunique AND x.indisvalid AND x.indimmediate AND x.indpred IS NULL
          AND x.indnkeyatts = 1 AND a.attname = p_id_column) THEN
        RAISE EXCEPTION 'column "%" of table % is not unique by itself', p_id_column, p_table USING ERRCODE = 'PR123',
            HINT = 'A primary key or a unique constraint of this column alone, neither partial nor deferrable.';
    END IF;
    INSERT INTO postrider.inbox (name, table_schema, table_name, is_managed, max_retries, retention_hours, id_column,
        processed_at_column, retry_count_column, error_column, received_at_column, event_type_column)
    VALUES (p_name, v_schema, v_table, false, p_max_retries, p_retention_hours, p_id_column, p_processed_at_column,
        p_retry_count_column, p_error_column, p_received_at_column, p_event_type_column) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'inbox "%" exists already, or another one has table %', p_name, p_table USING ERRCODE = 'PR122',
            HINT = 'Table postrider.inbox lists the inboxes.';
    END IF;
    PERFORM postrider.inbox_views(p_name), postrider.inbox_grant(p_name);
END $$;
