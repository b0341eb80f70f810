-- Functions of consumer groups. They run with the rights of the caller, and find every name without search_path.
--
-- Locks: the row of the group first (create, drop, seek, evict, groups_hold), then the rows of its hash partitions in
-- ascending order. poll_outbox takes only partitions that nobody has locked. So there is no deadlock between two calls.
--
-- Snapshots: what is read to change a partition is read by a statement that begins after the partition's row is locked.
-- In READ COMMITTED that statement sees the newest state. In REPEATABLE READ and SERIALIZABLE the snapshot may be
-- older; group_append then raises 40001, and the caller repeats its transaction.

-- Plans: a session keeps the plans of a function. One that was made while consumer_group_state had few rows would scan
-- the whole table, also when it has grown since: so what reads it has no sequential scans. Its statements are planned
-- once and not for each call. They are not compiled, which the planner would want for a log of many millions of events,
-- and which takes longer than any of them.

CREATE OR REPLACE FUNCTION postrider.no_group(p_group text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'consumer group "%" does not exist', p_group USING ERRCODE = 'PR112',
        HINT = format('SELECT postrider.create_consumer_group(%L, ''the log''); or correct the name: table '
            'postrider.consumer_group lists the groups.', p_group);
END $$;

-- State: reading, locking, appending.

-- Whether a lease can be taken by another consumer. The clock decides this and nothing else: never whether a commit
-- counts. A clock that is more than a minute before the beginning of the lease was set back since.
CREATE OR REPLACE FUNCTION postrider.lease_over(p_from timestamptz, p_until timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE
RETURN p_until IS NULL OR clock_timestamp() NOT BETWEEN p_from - interval '60 seconds' AND p_until;

-- The newest state of each hash partition of a group.
CREATE OR REPLACE FUNCTION postrider.group_state(p_group text) RETURNS SETOF postrider.consumer_group_state
LANGUAGE sql STABLE ROWS 16
BEGIN ATOMIC
    SELECT s.* FROM postrider.consumer_group_partition p CROSS JOIN LATERAL (
        SELECT * FROM postrider.consumer_group_state x
        WHERE x.group_name = p.group_name AND x.part = p.part ORDER BY x.n DESC LIMIT 1) s
    WHERE p.group_name = p_group;
END;

-- The newest state of some of them.
CREATE OR REPLACE FUNCTION postrider.part_state(p_group text, p_parts smallint[])
RETURNS SETOF postrider.consumer_group_state
LANGUAGE sql STABLE ROWS 4
BEGIN ATOMIC
    SELECT s.* FROM unnest(p_parts) p(part) CROSS JOIN LATERAL (
        SELECT * FROM postrider.consumer_group_state x
        WHERE x.group_name = p_group AND x.part = p.part ORDER BY x.n DESC LIMIT 1) s;
END;

-- Appends the state that follows each given one.
--
-- In READ COMMITTED the given states are the newest: the caller has locked their partitions. With an older snapshot
-- they may not be. Then the next one exists, and the insert raises 40001; or sweep_states has deleted the given one,
-- and the row lock raises 40001. It can't be that the next one is deleted and the given one is not.
CREATE OR REPLACE FUNCTION postrider.group_append(p_states postrider.consumer_group_state[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_n integer;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        PERFORM FROM unnest(p_states) s JOIN postrider.consumer_group_state x USING (group_name, part, n)
        FOR KEY SHARE OF x;
    END IF;
    INSERT INTO postrider.consumer_group_state (group_name, part, n, last_offset, passed, committed_at, lease, consumer,
        lease_from, lease_until, lease_parts, batch_end, batch_rows, deliveries)
    SELECT s.group_name, s.part, s.n + 1, s.last_offset, s.passed, s.committed_at, s.lease, s.consumer,
        s.lease_from, s.lease_until, s.lease_parts, s.batch_end, s.batch_rows, s.deliveries
    FROM unnest(p_states) s ON CONFLICT (group_name, part, n) DO NOTHING;
    GET DIAGNOSTICS v_n = ROW_COUNT;
    IF v_n <> cardinality(p_states) THEN
        RAISE EXCEPTION 'could not serialize access: the consumer group has moved on' USING ERRCODE = '40001',
            HINT = 'Roll back and run the transaction again.';
    END IF;
END $$;

-- Locks the hash partitions of a group whose newest state has this consumer and this lease (NULL: any), and returns
-- those states as they are once the locks are held.
CREATE OR REPLACE FUNCTION postrider.group_lock(p_group text, p_consumer text, p_lease bigint)
RETURNS postrider.consumer_group_state[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_parts smallint[];
BEGIN
    SELECT array_agg(x.part) INTO v_parts FROM (
        SELECT p.part FROM postrider.consumer_group_partition p
        WHERE p.group_name = p_group AND p.part IN (
            SELECT s.part FROM postrider.group_state(p_group) s
            WHERE (p_consumer IS NULL OR s.consumer = p_consumer) AND (p_lease IS NULL OR s.lease = p_lease))
        ORDER BY p.part FOR UPDATE) x;
    RETURN (
        SELECT coalesce(array_agg(s ORDER BY s.part), '{}') FROM postrider.part_state(p_group, v_parts) s
        WHERE (p_consumer IS NULL OR s.consumer = p_consumer) AND (p_lease IS NULL OR s.lease = p_lease));
END $$;

-- A state of which no lease is out any more.
CREATE OR REPLACE FUNCTION postrider.state_closed(p_state postrider.consumer_group_state)
RETURNS postrider.consumer_group_state
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    p_state.lease_from := NULL;
    p_state.lease_until := NULL;
    p_state.lease_parts := NULL;
    p_state.batch_end := NULL;
    p_state.batch_rows := NULL;
    RETURN p_state;
END $$;

-- Groups.

-- Creates a group that reads a log from its first event that is kept ("earliest") or behind its last one ("latest").
-- Returns false if p_if_not_exists and the group exists.
--
-- The foreign key locks the row of the log, which retention locks to drop events: first_seq can't change from here on.
CREATE OR REPLACE FUNCTION postrider.create_consumer_group(p_name text, p_outbox text,
    p_auto_offset_reset text DEFAULT 'latest', p_retain_max bigint DEFAULT NULL, p_if_not_exists boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_log text;
BEGIN
    PERFORM postrider.check_name('p_name', p_name), postrider.check_name('p_outbox', p_outbox),
        postrider.check_read_committed('create_consumer_group');
    IF p_retain_max IS NOT NULL THEN
        PERFORM postrider.check_number('p_retain_max', p_retain_max, 1, 9223372036854775807);
    END IF;
    IF p_auto_offset_reset IS NULL OR p_auto_offset_reset NOT IN ('earliest', 'latest') THEN
        RAISE EXCEPTION 'p_auto_offset_reset is "%"', p_auto_offset_reset USING ERRCODE = '22023',
            HINT = 'It is ''earliest'' or ''latest''.';
    END IF;
    PERFORM FROM postrider.event_log l WHERE l.name = p_outbox;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not exist', p_outbox USING ERRCODE = 'PR110',
            HINT = 'Table postrider.event_log lists the logs.';
    END IF;
    INSERT INTO postrider.consumer_group (name, log, auto_offset_reset, retain_max)
    VALUES (p_name, p_outbox, p_auto_offset_reset, p_retain_max) ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        SELECT g.log INTO v_log FROM postrider.consumer_group g WHERE g.name = p_name;
        IF p_if_not_exists AND v_log = p_outbox THEN
            RETURN false;
        END IF;
        RAISE EXCEPTION 'consumer group "%" exists already', p_name USING ERRCODE = 'PR111',
            DETAIL = format('It reads log "%s".', v_log),
            HINT = 'Give this one another name, or drop the other one with postrider.drop_consumer_group.';
    END IF;
    -- What somebody may have left by deleting a group by hand.
    DELETE FROM postrider.consumer_group_state s WHERE s.group_name = p_name;
    WITH parts AS (
        INSERT INTO postrider.consumer_group_partition (group_name, part)
        SELECT p_name, p FROM postrider.event_log l CROSS JOIN generate_series(0, l.partitions - 1) p
        WHERE l.name = p_outbox)
    INSERT INTO postrider.consumer_group_state (group_name, part, n, last_offset, passed)
    SELECT p_name, u.i - 1, 0, h.last_seq, u.events
    FROM postrider.log_head(p_outbox) h CROSS JOIN unnest(h.counts) WITH ORDINALITY u(events, i);
    IF p_auto_offset_reset = 'earliest' THEN
        PERFORM postrider.seek_offset(p_name, NULL, l.first_seq - 1)
        FROM postrider.event_log l WHERE l.name = p_outbox;
    END IF;
    RETURN true;
END $$;

-- Drops a group. A lease that is out is worth nothing afterwards: its commit raises PR112.
CREATE OR REPLACE FUNCTION postrider.drop_consumer_group(p_name text, p_if_exists boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM postrider.check_name('p_name', p_name), postrider.check_read_committed('drop_consumer_group');
    PERFORM FROM postrider.consumer_group g WHERE g.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        IF NOT p_if_exists THEN
            PERFORM postrider.no_group(p_name);
        END IF;
        RETURN false;
    END IF;
    -- Waits for polls and commits in progress.
    PERFORM postrider.group_lock(p_name, NULL, NULL);
    DELETE FROM postrider.consumer_group_state s WHERE s.group_name = p_name;
    DELETE FROM postrider.consumer_seen c WHERE c.group_name = p_name;
    DELETE FROM postrider.consumer_group g WHERE g.name = p_name;
    RETURN true;
END $$;

-- Moves a group: it reads on with the first event above p_new_offset (0: from the first event that is kept). Leases
-- that are out are lost. Lifts an eviction. p_consumer is ignored: an offset belongs to the group.
--
-- The row lock on the group excludes retention, which takes it in groups_hold.
CREATE OR REPLACE FUNCTION postrider.seek_offset(p_group text, p_consumer text, p_new_offset bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    g        record;
    r        record;
    s        postrider.consumer_group_state;
    v        postrider.consumer_group_state[];
    v_lease  bigint := nextval('postrider.lease_token');
    v_target bigint := p_new_offset;
    v_last   bigint;
    v_heads  bigint[];
    v_counts bigint[];
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_read_committed('seek_offset'),
        postrider.check_number('p_new_offset', p_new_offset, 0, 9223372036854775807);
    PERFORM FROM postrider.consumer_group c WHERE c.name = p_group FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    END IF;
    v := postrider.group_lock(p_group, NULL, NULL);
    SELECT l.name, l.table_name, l.first_seq INTO g
    FROM postrider.consumer_group c JOIN postrider.event_log l ON l.name = c.log WHERE c.name = p_group;
    IF v_target < g.first_seq - 1 THEN
        RAISE WARNING 'retention has dropped events % to % of log "%": group "%" goes on with event %', v_target + 1,
            g.first_seq - 1, g.name, p_group, g.first_seq;
        v_target := g.first_seq - 1;
    END IF;
    SELECT h.last_seq, h.heads, h.counts INTO v_last, v_heads, v_counts FROM postrider.log_head(g.name) h;
    -- To keep lag exact, the events that follow are counted here once, by the index.
    FOR r IN EXECUTE format($f$
        SELECT s.ordinality AS i, CASE WHEN $2 = 0 THEN 0 WHEN $3[s.part + 1] <= $2 THEN $4[s.part + 1]
            ELSE $4[s.part + 1] - (
                SELECT count(*) FROM postrider_log.%I l
                WHERE l.part = s.part AND l.seq > $2 AND l.seq <= $3[s.part + 1]) END AS passed
        FROM unnest($1) WITH ORDINALITY s$f$, g.table_name)
        USING v, v_target, v_heads, v_counts
    LOOP
        s := postrider.state_closed(v[r.i]);
        s.last_offset := least(v_target, v_last);
        s.passed := r.passed;
        s.lease := v_lease;
        s.consumer := NULL;
        s.deliveries := 0;
        v[r.i] := s;
    END LOOP;
    IF v_target > v_last THEN
        RAISE WARNING 'log "%" ends with event %: group "%" goes on behind it', g.name, v_last, p_group;
    END IF;
    PERFORM postrider.group_append(v);
    UPDATE postrider.consumer_group c SET evicted_at = NULL WHERE c.name = p_group AND c.evicted_at IS NOT NULL;
END $$;

-- Lifts the eviction of a group: each hash partition goes on at its own offset, or at the first event that is kept.
-- Returns how many events are lost: events that the group was not done with, and that retention has dropped.
--
-- The row lock on the group excludes retention, which takes it in groups_hold.
CREATE OR REPLACE FUNCTION postrider.resume_consumer_group(p_group text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    g        record;
    r        record;
    s        postrider.consumer_group_state;
    v        postrider.consumer_group_state[];
    v_next   postrider.consumer_group_state[] := '{}';
    v_lease  bigint := nextval('postrider.lease_token');
    v_lost   bigint := 0;
    v_heads  bigint[];
    v_counts bigint[];
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_read_committed('resume_consumer_group');
    PERFORM FROM postrider.consumer_group c WHERE c.name = p_group FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    END IF;
    v := postrider.group_lock(p_group, NULL, NULL);
    SELECT l.name, l.table_name, l.first_seq INTO g
    FROM postrider.consumer_group c JOIN postrider.event_log l ON l.name = c.log WHERE c.name = p_group;
    SELECT h.heads, h.counts INTO v_heads, v_counts FROM postrider.log_head(g.name) h;
    -- To keep lag exact, the events that are kept are counted.
    FOR r IN EXECUTE format($f$
        SELECT s.ordinality AS i, CASE WHEN $3[s.part + 1] < $2 THEN $4[s.part + 1]
            ELSE $4[s.part + 1] - (
                SELECT count(*) FROM postrider_log.%I l
                WHERE l.part = s.part AND l.seq >= $2 AND l.seq <= $3[s.part + 1]) END AS passed
        FROM unnest($1) WITH ORDINALITY s WHERE s.last_offset < $2 - 1$f$, g.table_name)
        USING v, g.first_seq, v_heads, v_counts
    LOOP
        s := v[r.i];
        -- A partition in which nothing is gone keeps its lease.
        CONTINUE WHEN s.passed = r.passed;
        v_lost := v_lost + r.passed - s.passed;
        s := postrider.state_closed(s);
        s.last_offset := g.first_seq - 1;
        s.passed := r.passed;
        s.lease := v_lease;
        s.consumer := NULL;
        s.deliveries := 0;
        v_next := v_next || s;
    END LOOP;
    PERFORM postrider.group_append(v_next);
    UPDATE postrider.consumer_group c SET evicted_at = NULL WHERE c.name = p_group AND c.evicted_at IS NOT NULL;
    RETURN v_lost;
END $$;

-- Makes retention go on without a group: poll_outbox raises PR113 from now on. A lease that is out can still be
-- committed. Returns false if the group is evicted already. Waits for polls and commits in progress: set lock_timeout.
--
-- Every partition gets a new state, the same as before. So a poll whose snapshot is older than the eviction can't
-- append, and raises 40001 instead of passing over events that are gone.
CREATE OR REPLACE FUNCTION postrider.evict_consumer_group(p_group text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_evicted timestamptz;
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_read_committed('evict_consumer_group');
    SELECT c.evicted_at INTO v_evicted FROM postrider.consumer_group c WHERE c.name = p_group FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    ELSIF v_evicted IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM postrider.group_append(postrider.group_lock(p_group, NULL, NULL));
    UPDATE postrider.consumer_group c SET evicted_at = clock_timestamp() WHERE c.name = p_group;
    RETURN true;
END $$;

-- Consumers.

-- Tells that a consumer is alive. poll_outbox does it; a consumer that works on a batch for more than a minute calls
-- it. It extends no lease. Writes at most every 10 seconds.
CREATE OR REPLACE FUNCTION postrider.consumer_heartbeat(p_group text, p_consumer text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_name('p_consumer', p_consumer);
    PERFORM FROM postrider.consumer_group g WHERE g.name = p_group;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    END IF;
    INSERT INTO postrider.consumer_seen (group_name, consumer, seen_at)
    SELECT p_group, p_consumer, v_now WHERE NOT EXISTS (
        SELECT FROM postrider.consumer_seen c WHERE c.group_name = p_group AND c.consumer = p_consumer
          AND c.seen_at > v_now - interval '10 seconds' AND c.seen_at <= v_now)
    ON CONFLICT (group_name, consumer, seen_at) DO NOTHING;
END $$;

-- Gives a consumer the next events of hash partitions that no other consumer has, at most p_max, in the order of seq.
-- They are leased to it for p_visibility_seconds: then another consumer may get them. All rows have the same lease,
-- which commit_offset takes. No row: there is nothing to read, or other consumers have it.
--
-- Commit the transaction before working on the events, or work and commit_offset in this transaction: until it ends,
-- the partitions are locked, and afterwards they are leased.
CREATE OR REPLACE FUNCTION postrider.poll_outbox(p_group text, p_consumer text, p_max integer DEFAULT 100,
    p_visibility_seconds integer DEFAULT 30)
RETURNS TABLE (lease bigint, seq bigint, part smallint, "position" text, occurred_at timestamptz,
    appended_at timestamptz, event_id text, event_type text, aggregate_type text, aggregate_id text, payload text,
    headers json, deliveries integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    g        record;
    r        record;
    s        postrider.consumer_group_state;
    v_states postrider.consumer_group_state[] := '{}';
    v_heads  bigint[];
    v_counts bigint[];
    v_live   bigint;
    v_share  integer;
    v_left   bigint := p_max;
    v_parts  smallint[] := '{}';
    v_gives  bigint[] := '{}';
    v_lease  bigint;
    v_from   bigint;
    v_to     bigint;
    v_end    bigint;
    v_short  boolean;
    v_before integer;
    v_seen   bigint;
    v_upto   bigint;
    v_lost   bigint;
    c_free CURSOR FOR
        SELECT f.part, f.lag FROM (
            SELECT x.part, x.last_offset, v_counts[x.part + 1] - x.passed AS lag
            FROM postrider.group_state(p_group) x
            WHERE v_heads[x.part + 1] > x.last_offset AND postrider.lease_over(x.lease_from, x.lease_until)) f
        JOIN postrider.consumer_group_partition p ON p.group_name = p_group AND p.part = f.part
        ORDER BY f.last_offset FOR UPDATE OF p SKIP LOCKED;
BEGIN
    PERFORM postrider.check_number('p_max', p_max, 1, 10000),
        postrider.check_number('p_visibility_seconds', p_visibility_seconds, 1, 86400);
    PERFORM postrider.consumer_heartbeat(p_group, p_consumer);
    SELECT c.log, c.evicted_at, l.table_name, l.partitions, l.rows_per_child INTO g
    FROM postrider.consumer_group c JOIN postrider.event_log l ON l.name = c.log WHERE c.name = p_group;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    ELSIF g.evicted_at IS NOT NULL THEN
        RAISE EXCEPTION 'consumer group "%" was evicted: events that it has not read may be gone', p_group
            USING ERRCODE = 'PR113', HINT = format('To go on without the events that are gone: '
                'SELECT postrider.resume_consumer_group(%L);', p_group);
    END IF;
    SELECT count(DISTINCT c.consumer) INTO v_live FROM postrider.consumer_seen c
    WHERE c.group_name = p_group AND c.seen_at > clock_timestamp() - interval '60 seconds'
      AND c.seen_at <= clock_timestamp();
    v_share := greatest(1, ceil(g.partitions::numeric / greatest(v_live, 1)));
    SELECT h.heads, h.counts INTO v_heads, v_counts FROM postrider.log_head(g.log) h;
    -- Locks free partitions one by one, the one furthest behind first, until they have p_max events, and no more of
    -- them than the share of one consumer. (A FOR loop would fetch and so lock ten ahead.)
    OPEN c_free;
    LOOP
        FETCH c_free INTO r;
        EXIT WHEN NOT FOUND;
        v_parts := v_parts || r.part;
        v_gives := v_gives || least(greatest(r.lag, 1), v_left);
        v_left := v_left - r.lag;
        EXIT WHEN v_left <= 0 OR cardinality(v_parts) = v_share;
    END LOOP;
    CLOSE c_free;
    IF v_parts = '{}' THEN
        RETURN;
    END IF;
    -- The statements from here on see the newest state of these partitions. Neither can the group be dropped or evicted
    -- now, but it can have been since the first look, and created again for another log.
    v_lease := nextval('postrider.lease_token');
    SELECT h.last_seq, h.heads, h.counts INTO v_end, v_heads, v_counts FROM postrider.log_head(g.log) h;
    FOR r IN
        SELECT x AS state,
            greatest(1, least(v_gives[array_position(v_parts, x.part)], v_counts[x.part + 1] - x.passed)) AS give
        FROM postrider.part_state(p_group, v_parts) x JOIN postrider.consumer_group c ON c.name = p_group
        WHERE v_heads[x.part + 1] > x.last_offset AND postrider.lease_over(x.lease_from, x.lease_until)
          AND c.log = g.log AND c.evicted_at IS NULL
    LOOP
        s := r.state;
        s.lease := v_lease;
        s.consumer := p_consumer;
        s.lease_from := clock_timestamp();
        s.lease_until := s.lease_from + make_interval(secs => p_visibility_seconds);
        s.batch_rows := r.give;
        s.deliveries := s.deliveries + 1;
        v_states := v_states || s;
        v_from := least(v_from, s.last_offset);
    END LOOP;
    IF v_states = '{}' THEN
        RETURN;
    END IF;
    -- The end of each batch. A LIMIT makes the planner use the index for each partition: without it, the planner joins
    -- a scan of the table. The bounds are constants, so the planner looks only at the children of the table that
    -- matter: the first two, and all up to the end if those do not have enough.
    v_to := least(v_end, (v_from / g.rows_per_child + 2) * g.rows_per_child - 1);
    LOOP
        v_short := false;
        v_lost := NULL;
        -- The event before the batch, if it is in the partition, and the batch.
        FOR r IN EXECUTE format($f$
            SELECT s.ordinality AS i, b.seqs FROM unnest($1) WITH ORDINALITY s CROSS JOIN LATERAL (
                SELECT array_agg(x.seq ORDER BY x.seq) AS seqs FROM (
                    SELECT l.seq FROM postrider_log.%I l
                    WHERE l.part = s.part AND l.seq >= s.last_offset AND l.seq BETWEEN %s AND %s
                    ORDER BY l.seq LIMIT s.batch_rows + 1) x) b$f$, g.table_name, v_from, v_to) USING v_states
        LOOP
            s := v_states[r.i];
            v_before := (r.seqs[1] IS NOT DISTINCT FROM s.last_offset)::integer;
            s.batch_end := r.seqs[s.batch_rows + v_before];
            s.lease_parts := cardinality(v_states);
            v_states[r.i] := s;
            IF s.batch_end IS NULL THEN
                v_short := true;
                v_lost := s.last_offset + 1;
            ELSIF v_before = 0 OR s.last_offset / g.rows_per_child < s.batch_end / g.rows_per_child THEN
                -- Else the event before the batch is there, in the same child: so are those between.
                v_seen := least(v_seen, s.last_offset);
                v_upto := greatest(v_upto, s.batch_end);
            END IF;
        END LOOP;
        EXIT WHEN NOT v_short OR v_to = v_end;
        v_to := v_end;
    END LOOP;
    IF v_lost IS NULL AND v_seen IS NOT NULL THEN
        v_lost := postrider.log_gap(g.log, v_seen, v_upto);
    END IF;
    -- With an older snapshot, events that retention has dropped may be missing: this raises 40001 then.
    PERFORM postrider.group_append(v_states);
    IF v_lost IS NOT NULL THEN
        RAISE EXCEPTION 'log "%" has lost events from % on', g.log, v_lost USING ERRCODE = 'PR103',
            HINT = format('Table postrider_log.%I, or one of its children, was truncated or replaced. Restore it, or '
                'go on without the lost events: postrider.seek_offset.', g.table_name);
    END IF;
    RETURN QUERY EXECUTE format($f$
        SELECT $1, l.seq, l.part, postrider.position_text(l.history, l.commit_lsn, l.ordinal), l.occurred_at,
            l.appended_at, l.event_id, l.event_type, l.aggregate_type, l.aggregate_id, l.payload, l.headers,
            s.deliveries
        FROM unnest($2) s CROSS JOIN LATERAL (
            SELECT * FROM postrider_log.%I l
            WHERE l.part = s.part AND l.seq > s.last_offset AND l.seq > %s AND l.seq <= %s
            ORDER BY l.seq LIMIT s.batch_rows) l
        ORDER BY l.seq$f$, g.table_name, v_from, (SELECT max(x.batch_end) FROM unnest(v_states) x))
    USING v_lease, v_states;
END $$;

-- The first event above p_after that a log must have and does not have, as far as can be seen cheaply: it looks for the
-- next event, and for the first event of each child of the table up to p_upto. The numbers of a log have no gaps, so
-- each of these is in one of its partitions. NULL: all are there.
--
-- An older snapshot does not show what retention has dropped since: then a gap raises 40001, and a transaction with a
-- snapshot of its own shows whether the events are lost.
CREATE OR REPLACE FUNCTION postrider.log_gap(p_log text, p_after bigint, p_upto bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l     record;
    v_seq bigint;
BEGIN
    SELECT e.table_name, e.partitions, e.rows_per_child, e.first_seq INTO STRICT l
    FROM postrider.event_log e WHERE e.name = p_log;
    EXECUTE format($f$
        SELECT min(k.seq) FROM (
            SELECT greatest($1 + 1, $3) AS seq
            UNION ALL SELECT c * $4 FROM generate_series(greatest($1 + 1, $3) / $4 + 1, $2 / $4) c) k
        WHERE k.seq <= $2 AND NOT EXISTS (
            SELECT FROM generate_series(0, %s) p(part) CROSS JOIN LATERAL (
                SELECT FROM postrider_log.%I e WHERE e.part = p.part AND e.seq = k.seq LIMIT 1) x)$f$,
        l.partitions - 1, l.table_name)
    INTO v_seq USING p_after, p_upto, l.first_seq, l.rows_per_child;
    IF v_seq IS NOT NULL
        AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'could not serialize access: event % of log "%" is not there', v_seq, p_log
            USING ERRCODE = '40001', HINT = 'Roll back and run the transaction again. If it fails again, poll in '
                'READ COMMITTED, which shows whether the log has lost events (PR103).';
    END IF;
    -- Retention may have dropped it between the two statements.
    PERFORM FROM postrider.event_log e WHERE e.name = p_log AND e.first_seq <= v_seq;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN v_seq;
END $$;

-- Says that the group is done with the events of a lease up to p_last_offset; the lease holds the others until they are
-- committed too. Call it in the transaction that does the work: if the lease is lost, or these events were committed
-- before, it raises, and the work is rolled back instead of being done twice.
--
-- A lease that has run out still counts as long as no other consumer has taken it.
CREATE OR REPLACE FUNCTION postrider.commit_offset(p_group text, p_consumer text, p_last_offset bigint, p_lease bigint)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v       postrider.consumer_group_state[];
    v_open  postrider.consumer_group_state[] := '{}';
    v_next  postrider.consumer_group_state[] := '{}';
    s       postrider.consumer_group_state;
    v_table name;
    v_n     integer;
    v_moved integer := 0;
    v_rest  integer := 0;
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_name('p_consumer', p_consumer),
        postrider.check_number('p_last_offset', p_last_offset, 1, 9223372036854775807),
        postrider.check_number('p_lease', p_lease, 1, 9223372036854775807);
    v := postrider.group_lock(p_group, p_consumer, p_lease);
    SELECT coalesce(array_agg(x), '{}') INTO v_open FROM unnest(v) x WHERE x.lease_until IS NOT NULL;
    -- The lease has lost a partition; or it has none any more, and what it had does not go up to this event.
    IF cardinality(v_open) <> (v_open[1]).lease_parts
        OR (v_open = '{}' AND NOT EXISTS (SELECT FROM unnest(v) x WHERE x.last_offset >= p_last_offset)) THEN
        PERFORM postrider.lease_lost(p_group, p_consumer, p_lease);
    END IF;
    IF p_last_offset > (SELECT max(x.batch_end) FROM unnest(v_open) x) THEN
        RAISE EXCEPTION 'p_last_offset is %, and the last event of lease % is %', p_last_offset, p_lease,
            (SELECT max(x.batch_end) FROM unnest(v_open) x) USING ERRCODE = '22023',
            HINT = 'Commit the seq of an event of this lease.';
    END IF;
    FOREACH s IN ARRAY v_open LOOP
        IF s.batch_end <= p_last_offset THEN
            s.last_offset := s.batch_end;
            s.passed := s.passed + s.batch_rows;
            s.committed_at := clock_timestamp();
            s.deliveries := 0;
            s := postrider.state_closed(s);
            v_moved := v_moved + 1;
        ELSE
            v_rest := v_rest + 1;
            IF s.last_offset < p_last_offset THEN
                IF v_table IS NULL THEN
                    SELECT l.table_name INTO v_table FROM postrider.consumer_group c
                    JOIN postrider.event_log l ON l.name = c.log WHERE c.name = p_group;
                END IF;
                EXECUTE format('SELECT count(*) FROM postrider_log.%I l '
                    'WHERE l.part = $1 AND l.seq > $2 AND l.seq <= $3', v_table)
                INTO v_n USING s.part, s.last_offset, p_last_offset;
                IF v_n > 0 THEN
                    s.last_offset := p_last_offset;
                    s.passed := s.passed + v_n;
                    s.committed_at := clock_timestamp();
                    s.batch_rows := s.batch_rows - v_n;
                    -- The rest is out for the first time since the group has moved on.
                    s.deliveries := 1;
                    v_moved := v_moved + 1;
                END IF;
            END IF;
        END IF;
        v_next := v_next || s;
    END LOOP;
    IF v_moved = 0 THEN
        RAISE EXCEPTION 'lease % of group "%": event % was committed before', p_lease, p_group, p_last_offset
            USING ERRCODE = 'PR115', HINT = 'Roll back: the work of this transaction has been done, by the transaction '
                'that committed these events.';
    END IF;
    -- What is committed is free for other consumers, and the lease consists of the rest.
    FOR i IN 1 .. cardinality(v_next) LOOP
        s := v_next[i];
        IF s.lease_until IS NOT NULL THEN
            s.lease_parts := v_rest;
            v_next[i] := s;
        END IF;
    END LOOP;
    PERFORM postrider.group_append(v_next);
    RETURN p_last_offset;
END $$;

CREATE OR REPLACE FUNCTION postrider.lease_lost(p_group text, p_consumer text, p_lease bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM postrider.consumer_group g WHERE g.name = p_group;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    END IF;
    RAISE EXCEPTION 'consumer "%" of group "%" does not hold lease % any more', p_consumer, p_group, p_lease
        USING ERRCODE = 'PR114', DETAIL = 'It ran out and another consumer took its events, or it was released, or the '
            'group was moved by a seek, or it is the lease of another consumer.',
        HINT = 'Roll back and poll again. Work that takes longer than the lease calls postrider.extend_lease.';
END $$;

-- The form without a lease, for consumers whose work may be done twice: a commit that is late or repeated has no
-- effect, warns, and returns false. It belongs to the lease of this consumer that has event p_last_offset.
CREATE OR REPLACE FUNCTION postrider.commit_offset(p_group text, p_consumer text, p_last_offset bigint)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_table name;
    v_lease bigint;
    v_found boolean;
    s       record;
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_name('p_consumer', p_consumer),
        postrider.check_number('p_last_offset', p_last_offset, 0, 9223372036854775807);
    SELECT l.table_name INTO v_table FROM postrider.consumer_group c JOIN postrider.event_log l ON l.name = c.log
    WHERE c.name = p_group;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    END IF;
    FOR s IN
        SELECT x.part, x.lease, x.batch_end FROM postrider.group_state(p_group) x
        WHERE x.consumer = p_consumer AND x.lease_until IS NOT NULL AND x.last_offset < p_last_offset
          AND x.batch_end >= p_last_offset
    LOOP
        v_found := s.batch_end = p_last_offset;
        IF NOT v_found THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM postrider_log.%I e WHERE e.part = $1 AND e.seq = $2)', v_table)
            INTO v_found USING s.part, p_last_offset;
        END IF;
        IF v_found THEN
            v_lease := s.lease;
            EXIT;
        END IF;
    END LOOP;
    IF v_lease IS NOT NULL THEN
        BEGIN
            PERFORM postrider.commit_offset(p_group, p_consumer, p_last_offset, v_lease);
            RETURN true;
        EXCEPTION WHEN SQLSTATE 'PR114' OR SQLSTATE 'PR115' THEN
            -- Another session was faster.
        END;
    END IF;
    RAISE WARNING 'group "%": consumer "%" has no lease with event % to commit', p_group, p_consumer, p_last_offset
        USING HINT = 'It ran out and another consumer took its events, or they were committed before.';
    RETURN false;
END $$;

-- Lengthens a lease (NULL: all leases of the consumer) to p_extension_seconds from now. Never shortens one. Returns
-- when the first of them runs out.
CREATE OR REPLACE FUNCTION postrider.extend_lease(p_group text, p_consumer text, p_extension_seconds integer DEFAULT 30,
    p_lease bigint DEFAULT NULL)
RETURNS timestamptz LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v       postrider.consumer_group_state[];
    v_next  postrider.consumer_group_state[] := '{}';
    s       postrider.consumer_group_state;
    v_until timestamptz;
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_name('p_consumer', p_consumer),
        postrider.check_number('p_extension_seconds', p_extension_seconds, 1, 86400);
    v := postrider.group_lock(p_group, p_consumer, p_lease);
    FOREACH s IN ARRAY v LOOP
        CONTINUE WHEN s.lease_until IS NULL;
        s.lease_from := clock_timestamp();
        s.lease_until := greatest(s.lease_until, s.lease_from + make_interval(secs => p_extension_seconds));
        v_until := least(v_until, s.lease_until);
        v_next := v_next || s;
    END LOOP;
    IF v_next = '{}' OR (p_lease IS NOT NULL AND cardinality(v_next) <> (v_next[1]).lease_parts) THEN
        PERFORM postrider.lease_lost(p_group, p_consumer, p_lease);
    END IF;
    PERFORM postrider.group_append(v_next);
    RETURN v_until;
END $$;

-- Gives the events of a lease (NULL: of all leases of the consumer) back before it runs out: a consumer that stops, or
-- that can't do the work now. Returns the number of partitions that are free now.
CREATE OR REPLACE FUNCTION postrider.release_lease(p_group text, p_consumer text, p_lease bigint DEFAULT NULL)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v      postrider.consumer_group_state[];
    v_next postrider.consumer_group_state[] := '{}';
    s      postrider.consumer_group_state;
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_name('p_consumer', p_consumer);
    PERFORM FROM postrider.consumer_group g WHERE g.name = p_group;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    END IF;
    v := postrider.group_lock(p_group, p_consumer, p_lease);
    FOREACH s IN ARRAY v LOOP
        CONTINUE WHEN s.lease_until IS NULL;
        s.lease := nextval('postrider.lease_token');
        s.consumer := NULL;
        v_next := v_next || postrider.state_closed(s);
    END LOOP;
    PERFORM postrider.group_append(v_next);
    RETURN cardinality(v_next);
END $$;

-- Looking.

-- When each consumer was seen last.
CREATE OR REPLACE VIEW postrider.consumer AS
    SELECT c.group_name, c.consumer, max(c.seen_at) AS last_heartbeat_at
    FROM postrider.consumer_seen c GROUP BY c.group_name, c.consumer;

-- A row for each hash partition of a group. lag is exact, and costs the same for any lag.
CREATE OR REPLACE FUNCTION postrider.consumer_lag(p_group text)
RETURNS TABLE (part smallint, consumer text, last_offset bigint, head bigint, lag bigint, leased boolean,
    lease_until timestamptz, healthy boolean, heartbeat_age_sec numeric, deliveries integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_heads  bigint[];
    v_counts bigint[];
BEGIN
    SELECT h.heads, h.counts INTO v_heads, v_counts
    FROM postrider.consumer_group g CROSS JOIN LATERAL postrider.log_head(g.log) h WHERE g.name = p_group;
    IF NOT FOUND THEN
        PERFORM postrider.no_group(p_group);
    END IF;
    RETURN QUERY
    SELECT s.part, s.consumer, s.last_offset, v_heads[s.part + 1], v_counts[s.part + 1] - s.passed,
        NOT postrider.lease_over(s.lease_from, s.lease_until), s.lease_until,
        c.seen_at BETWEEN clock_timestamp() - interval '60 seconds' AND clock_timestamp() + interval '60 seconds',
        round(extract(epoch FROM clock_timestamp() - c.seen_at), 1), s.deliveries
    FROM postrider.group_state(p_group) s LEFT JOIN LATERAL (
        SELECT x.seen_at FROM postrider.consumer_seen x
        WHERE x.group_name = p_group AND x.consumer = s.consumer ORDER BY x.seen_at DESC LIMIT 1) c ON true
    ORDER BY s.part;
END $$;

-- Up to which event a group needs nothing from the log any more. A partition in which nothing is left to read does not
-- count: its last event may be old, and it needs none before the end of the log.
CREATE OR REPLACE FUNCTION postrider.group_done_to(p_group text) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_table name;
    v_heads bigint[];
    v_last  bigint;
    v_done  bigint;
BEGIN
    SELECT l.table_name, h.heads, h.last_seq INTO v_table, v_heads, v_last
    FROM postrider.consumer_group g JOIN postrider.event_log l ON l.name = g.log
    CROSS JOIN LATERAL postrider.log_head(l.name) h WHERE g.name = p_group;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    EXECUTE format($f$
        SELECT min(CASE WHEN $2[s.part + 1] <= s.last_offset THEN $3 ELSE coalesce((
            SELECT e.seq - 1 FROM postrider_log.%I e WHERE e.part = s.part AND e.seq > s.last_offset
            ORDER BY e.seq LIMIT 1), s.last_offset) END)
        FROM postrider.group_state($1) s$f$, v_table) INTO v_done USING p_group, v_heads, v_last;
    RETURN v_done;
END $$;

-- A row for each group.
CREATE OR REPLACE VIEW postrider.consumer_group_lag AS
    SELECT g.name AS group_name, g.log,
        ((SELECT sum(u.events) FROM unnest(h.counts) u(events)) - s.passed)::bigint AS lag,
        postrider.group_done_to(g.name) AS done_to, h.last_seq, s.deliveries AS max_deliveries,
        g.retain_max, g.evicted_at
    FROM postrider.consumer_group g CROSS JOIN LATERAL postrider.log_head(g.log) h CROSS JOIN LATERAL (
        SELECT sum(x.passed) AS passed, max(x.deliveries) AS deliveries FROM postrider.group_state(g.name) x) s;

-- For those who know such a table: a row for each partition of each group.
CREATE OR REPLACE VIEW postrider.consumer_offsets AS
    SELECT g.name AS consumer_name, s.part::text AS partition_key, s.last_offset AS last_processed_id,
        coalesce(s.committed_at, g.created_at) AS last_processed_at
    FROM postrider.consumer_group g CROSS JOIN LATERAL postrider.group_state(g.name) s;

-- Retention and maintenance.

-- Up to which event every group of a log is done, and which group holds back the most; NULL if no group holds anything.
-- Retention calls it in the transaction in which it holds the row of the log FOR UPDATE and sets first_seq. It locks
-- the groups, so that none goes back by a seek meanwhile.
CREATE OR REPLACE FUNCTION postrider.groups_hold(p_log text, OUT done_to bigint, OUT held_by text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM postrider.check_read_committed('groups_hold');
    PERFORM FROM postrider.consumer_group g WHERE g.log = p_log ORDER BY g.name FOR NO KEY UPDATE;
    SELECT postrider.group_done_to(g.name), g.name INTO groups_hold.done_to, groups_hold.held_by
    FROM postrider.consumer_group g WHERE g.log = p_log AND g.evicted_at IS NULL ORDER BY 1, 2 LIMIT 1;
END $$;

-- Forgets consumers that were not seen for p_dead_after. Their leases end by themselves.
CREATE OR REPLACE FUNCTION postrider.reap_consumers(p_dead_after interval DEFAULT '24 hours')
RETURNS TABLE (group_name text, consumer text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_dead_after IS NULL OR p_dead_after < interval '1 minute' THEN
        RAISE EXCEPTION 'p_dead_after is %', coalesce(p_dead_after::text, 'NULL') USING ERRCODE = '22023',
            HINT = 'It is at least 1 minute.';
    END IF;
    RETURN QUERY
    WITH dead AS (
        SELECT c.group_name, c.consumer FROM postrider.consumer c
        WHERE c.last_heartbeat_at NOT BETWEEN clock_timestamp() - p_dead_after AND clock_timestamp() + p_dead_after
           OR NOT EXISTS (SELECT FROM postrider.consumer_group g WHERE g.name = c.group_name)),
    gone AS (
        DELETE FROM postrider.consumer_seen x USING dead d
        WHERE x.group_name = d.group_name AND x.consumer = d.consumer)
    SELECT d.group_name, d.consumer FROM dead d ORDER BY 1, 2;
END $$;

-- Deletes rows of consumer_group_state, event_log_head, event_log_progress and consumer_seen that are not the newest:
-- p_keep newest ones are kept, and at most p_max rows of each table are deleted. Returns how many were; call it again
-- until that is less than p_max.
--
-- It never goes through rows that an earlier call has deleted: as long as a snapshot is held, the index still has them.
CREATE OR REPLACE FUNCTION postrider.sweep_states(p_keep integer DEFAULT 4, p_max integer DEFAULT 10000)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r       record;
    v_step  bigint;
    v_there boolean;
    v_n     bigint;
    v_left  bigint := p_max;
    v_upto  bigint;
    v_total bigint := 0;
    -- Another order in each call: if there is more than p_max, no group is always the last one.
    v_turn  text := clock_timestamp()::text;
BEGIN
    PERFORM postrider.check_number('p_keep', p_keep, 1, 1000), postrider.check_number('p_max', p_max, 1, 1000000),
        postrider.check_read_committed('sweep_states');
    -- The rows of a partition have consecutive n. So steps of 1, 2, 4, ... back from the newest find a row that is
    -- deleted.
    FOR r IN
        SELECT s.group_name, s.part, s.n FROM postrider.consumer_group g
        CROSS JOIN LATERAL postrider.group_state(g.name) s WHERE s.n >= p_keep
        ORDER BY md5(s.group_name || v_turn), s.part
    LOOP
        v_step := p_keep;
        LOOP
            SELECT EXISTS (SELECT FROM postrider.consumer_group_state s
                WHERE s.group_name = r.group_name AND s.part = r.part AND s.n = r.n - v_step) INTO v_there;
            EXIT WHEN NOT v_there;
            v_step := v_step * 2;
        END LOOP;
        CONTINUE WHEN v_step = p_keep;
        DELETE FROM postrider.consumer_group_state d USING (
            SELECT s.n FROM postrider.consumer_group_state s
            WHERE s.group_name = r.group_name AND s.part = r.part AND s.n > r.n - v_step AND s.n <= r.n - p_keep
            ORDER BY s.n LIMIT v_left) x
        WHERE d.group_name = r.group_name AND d.part = r.part AND d.n = x.n;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        v_total := v_total + v_n;
        v_left := v_left - v_n;
        EXIT WHEN v_left <= 0;
    END LOOP;
    v_left := p_max;
    FOR r IN
        SELECT w.writer, p.n FROM postrider.event_log_writer w CROSS JOIN LATERAL (
            SELECT x.n FROM postrider.event_log_progress x WHERE x.writer = w.writer ORDER BY x.n DESC LIMIT 1) p
        WHERE p.n > p_keep ORDER BY w.writer
    LOOP
        v_step := p_keep;
        LOOP
            SELECT EXISTS (SELECT FROM postrider.event_log_progress p
                WHERE p.writer = r.writer AND p.n = r.n - v_step) INTO v_there;
            EXIT WHEN NOT v_there;
            v_step := v_step * 2;
        END LOOP;
        CONTINUE WHEN v_step = p_keep;
        DELETE FROM postrider.event_log_progress d USING (
            SELECT p.n FROM postrider.event_log_progress p
            WHERE p.writer = r.writer AND p.n > r.n - v_step AND p.n <= r.n - p_keep ORDER BY p.n LIMIT v_left) x
        WHERE d.writer = r.writer AND d.n = x.n;
        GET DIAGNOSTICS v_n = ROW_COUNT;
        v_total := v_total + v_n;
        v_left := v_left - v_n;
        EXIT WHEN v_left <= 0;
    END LOOP;
    -- The ends of a log are not consecutive numbers: a row says where the last call stopped.
    v_left := p_max;
    FOR r IN
        SELECT l.name, coalesce(w.last_seq, -1) AS swept FROM postrider.event_log l
        LEFT JOIN postrider.event_log_sweep w ON w.log = l.name ORDER BY l.name
    LOOP
        WITH newest AS (
            SELECT min(k.last_seq) AS last_seq FROM (
                SELECT h.last_seq FROM postrider.event_log_head h WHERE h.log = r.name AND h.last_seq > r.swept
                ORDER BY h.last_seq DESC LIMIT p_keep) k),
        gone AS (
            DELETE FROM postrider.event_log_head d USING (
                SELECT h.last_seq FROM postrider.event_log_head h, newest k
                WHERE h.log = r.name AND h.last_seq > r.swept AND h.last_seq < k.last_seq
                ORDER BY h.last_seq LIMIT v_left) x
            WHERE d.log = r.name AND d.last_seq = x.last_seq RETURNING d.last_seq)
        SELECT count(*), max(g.last_seq) INTO v_n, v_upto FROM gone g;
        CONTINUE WHEN v_n = 0;
        INSERT INTO postrider.event_log_sweep AS w (log, last_seq) VALUES (r.name, v_upto)
        ON CONFLICT (log) DO UPDATE SET last_seq = greatest(w.last_seq, excluded.last_seq);
        v_total := v_total + v_n;
        v_left := v_left - v_n;
        EXIT WHEN v_left <= 0;
    END LOOP;
    DELETE FROM postrider.consumer_seen d USING (
        SELECT x.group_name, x.consumer, x.seen_at FROM postrider.consumer_seen x
        WHERE x.seen_at < clock_timestamp() - interval '60 seconds' AND EXISTS (
            SELECT FROM postrider.consumer_seen y
            WHERE y.group_name = x.group_name AND y.consumer = x.consumer AND y.seen_at > x.seen_at)
        LIMIT p_max) x
    WHERE d.group_name = x.group_name AND d.consumer = x.consumer AND d.seen_at = x.seen_at;
    GET DIAGNOSTICS v_n = ROW_COUNT;
    RETURN v_total + v_n;
END $$;
