-- Retention of event logs: which tables of events may be dropped, and what holds them back. The functions decide; the
-- drop itself can't be in a function, because DETACH PARTITION CONCURRENTLY runs outside of a transaction only.

-- The end of each hash partition of a log: the seq of its last event, and the number of events that it ever had.
CREATE OR REPLACE FUNCTION postrider.part_heads(p_log text)
RETURNS TABLE (part smallint, head bigint, events bigint, last_seq bigint)
LANGUAGE sql STABLE ROWS 16
BEGIN ATOMIC
    SELECT (u.i - 1)::smallint, u.head, u.events, h.last_seq
    FROM postrider.log_head(p_log) h CROSS JOIN LATERAL unnest(h.heads, h.counts) WITH ORDINALITY u(head, events, i);
END;

-- The tables of a log's events, oldest first. State detaching: a DETACH CONCURRENTLY was interrupted, and has to be
-- finished by DETACH FINALIZE. State detached: no partition any more, and not dropped yet. Such a table is known by its
-- name and by the constraint that log_extend gave it; one that somebody has renamed or moved to another schema is not
-- listed, and so is kept.
CREATE OR REPLACE FUNCTION postrider.log_children(p_log text)
RETURNS TABLE (child name, from_seq bigint, to_seq bigint, state text)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    WITH l AS (
        SELECT e.name, e.rows_per_child, n.oid AS schema,
            to_regclass(format('postrider_log.%I', e.table_name))::oid AS root
        FROM postrider.event_log e JOIN pg_namespace n ON n.nspname = 'postrider_log' WHERE e.name = p_log
    ), parts AS (
        SELECT c.relname, CASE WHEN i.inhdetachpending THEN 'detaching' ELSE 'attached' END AS state,
            regexp_match(pg_get_expr(c.relpartbound, c.oid), $r$FROM \('?(\d+)'?\) TO \('?(\d+)'?\)$r$) AS bounds
        FROM l JOIN pg_inherits i ON i.inhparent = l.root JOIN pg_class c ON c.oid = i.inhrelid
    ), loose AS (
        SELECT c.relname, b.bounds, l.name || '_' || b.bounds[1]::bigint / l.rows_per_child AS suffix
        FROM l JOIN pg_class c ON c.relnamespace = l.schema AND c.relkind = 'r' AND NOT c.relispartition
        JOIN pg_constraint k ON k.conrelid = c.oid AND k.contype = 'c' AND k.conname = 'seq_range'
        CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(k.conbin, k.conrelid),
            $r$seq >= '?(\d+)'?(?:::bigint)?\) AND \(seq < '?(\d+)$r$) AS bounds) b
    )
    SELECT p.relname, p.bounds[1]::bigint, p.bounds[2]::bigint - 1, p.state FROM parts p
    UNION ALL
    -- The two names that log_table_name may have given.
    SELECT d.relname, d.bounds[1]::bigint, d.bounds[2]::bigint - 1, 'detached' FROM loose d
    WHERE d.relname = 'log_' || d.suffix OR right(d.relname, 8) = '_' || left(md5(d.suffix), 7)
        AND starts_with('log_' || d.suffix, left(d.relname, -8))
    ORDER BY 2
$$;

-- The last event of the oldest tables that are wholly older than p_keep; the number before the first event that is
-- kept, if there is no such table. Never an event of the table that has the last event.
CREATE OR REPLACE FUNCTION postrider.log_expired_to(p_log text, p_keep interval) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l         record;
    c         record;
    v_to      bigint;
    v_last    timestamptz;
BEGIN
    IF p_keep IS NULL OR p_keep < interval '0' THEN
        RAISE EXCEPTION 'p_keep is the age that events are kept for, and not negative' USING ERRCODE = '22023';
    END IF;
    SELECT e.table_name, e.partitions, e.first_seq, h.last_seq INTO l
    FROM postrider.event_log e CROSS JOIN LATERAL postrider.log_head(e.name) h WHERE e.name = p_log;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not exist', p_log USING ERRCODE = 'PR110',
            HINT = 'SELECT name FROM postrider.event_log; lists the logs.';
    END IF;
    v_to := l.first_seq - 1;
    FOR c IN
        SELECT x.from_seq, x.to_seq FROM postrider.log_children(p_log) x
        WHERE x.state = 'attached' AND x.to_seq >= l.first_seq AND x.to_seq < l.last_seq ORDER BY x.from_seq
    LOOP
        -- One probe for each hash partition: no index is on appended_at.
        EXECUTE format($f$
            SELECT max(x.appended_at) FROM generate_series(0, %1$s) u(part) CROSS JOIN LATERAL (
                SELECT e.appended_at FROM postrider_log.%2$I e
                WHERE e.part = u.part AND e.seq >= $1 AND e.seq <= $2 ORDER BY e.seq DESC LIMIT 1) x$f$,
            l.partitions - 1, l.table_name)
        INTO v_last USING c.from_seq, c.to_seq;
        EXIT WHEN v_last >= clock_timestamp() - p_keep;
        v_to := c.to_seq;
    END LOOP;
    RETURN v_to;
END $$;

-- The groups that retention may evict, and up to which event each is done: each holds back a table that is old enough,
-- is more than its retain_max events behind the end of the log, and its eviction lets at least one table be dropped,
-- because no group holds that table back that may not be evicted.
CREATE OR REPLACE FUNCTION postrider.log_evictable(p_log text, p_keep interval)
RETURNS TABLE (group_name text, done_to bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_expired bigint := postrider.log_expired_to(p_log, p_keep);
BEGIN
    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT x.group_name, x.done_to, coalesce(x.last_seq - x.done_to > x.retain_max, false) AS is_over
        FROM postrider.consumer_group_lag x
        WHERE x.log = p_log AND x.evicted_at IS NULL AND x.done_to < v_expired)
    SELECT h.group_name, h.done_to FROM held h
    WHERE h.is_over AND EXISTS (
        SELECT FROM postrider.log_children(p_log) c
        WHERE c.state = 'attached' AND c.to_seq <= v_expired AND c.to_seq > h.done_to
          AND NOT EXISTS (SELECT FROM held o WHERE NOT o.is_over AND o.done_to < c.to_seq))
    ORDER BY h.group_name;
END $$;

-- Evicts one of the groups of log_evictable, and returns up to which event it is done; NULL if it is none of them any
-- more. It waits for the polls and commits of the group, and nobody else waits for it: so it is not a part of
-- log_retain, for which appends wait.
CREATE OR REPLACE FUNCTION postrider.log_evict(p_log text, p_keep interval, p_group text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_done bigint;
BEGIN
    PERFORM postrider.check_name('p_group', p_group), postrider.check_read_committed('log_evict');
    PERFORM FROM postrider.consumer_group c WHERE c.name = p_group FOR NO KEY UPDATE;
    PERFORM postrider.group_lock(p_group, NULL, NULL);
    SELECT x.done_to INTO v_done FROM postrider.log_evictable(p_log, p_keep) x WHERE x.group_name = p_group;
    IF v_done IS NOT NULL THEN
        PERFORM postrider.evict_consumer_group(p_group);
    END IF;
    RETURN v_done;
END $$;

-- Decides what retention drops, and returns it: tables that are to be detached and dropped, oldest first, those of
-- earlier calls among them until they are gone; one whose detach was interrupted is the first, because no other one can
-- be detached before that is finished. Run by the owner of the log.
--
-- A table is taken if all of its events are older than p_keep, and if each group that is not evicted has passed them.
CREATE OR REPLACE FUNCTION postrider.log_retain(p_log text, p_keep interval)
RETURNS TABLE (child name, state text, from_seq bigint, to_seq bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_expired bigint := postrider.log_expired_to(p_log, p_keep);
    v_first   bigint;
    v_to      bigint;
BEGIN
    PERFORM postrider.check_read_committed('log_retain');
    SELECT l.first_seq INTO STRICT v_first FROM postrider.event_log l WHERE l.name = p_log;
    IF v_expired >= v_first THEN
        -- Excludes create_consumer_group, whose row of the new group references this row, for as long as groups are
        -- read and first_seq is set. An append waits for this lock too: it is taken only if there is something to do.
        SELECT l.first_seq INTO STRICT v_first FROM postrider.event_log l WHERE l.name = p_log FOR UPDATE;
        SELECT least(h.done_to, v_expired) INTO v_expired FROM postrider.groups_hold(p_log) h;
        SELECT max(c.to_seq) INTO v_to FROM postrider.log_children(p_log) c
        WHERE c.state = 'attached' AND c.to_seq <= v_expired;
        IF v_to >= v_first THEN
            v_first := v_to + 1;
            UPDATE postrider.event_log l SET first_seq = v_first WHERE l.name = p_log;
        END IF;
    END IF;
    RETURN QUERY SELECT c.child, c.state, c.from_seq, c.to_seq FROM postrider.log_children(p_log) c
    WHERE c.to_seq < v_first ORDER BY c.state = 'detaching' DESC, c.from_seq;
END $$;

-- The groups that hold back tables which are old enough to be dropped, the one that holds back most first: how many
-- events of these tables it has not passed, how far it is, and how far it is behind. Two groups may hold back the same.
CREATE OR REPLACE FUNCTION postrider.log_blockers(p_log text, p_keep interval)
RETURNS TABLE (group_name text, held_events bigint, done_to bigint, lag bigint, retain_max bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_expired bigint := postrider.log_expired_to(p_log, p_keep);
BEGIN
    RETURN QUERY
    SELECT g.name, v_expired - h.passed_to, x.done_to, x.lag, g.retain_max
    FROM postrider.event_log l JOIN postrider.consumer_group g ON g.log = l.name
    JOIN postrider.consumer_group_lag x ON x.group_name = g.name
    CROSS JOIN LATERAL (
        SELECT coalesce(max(c.to_seq), l.first_seq - 1) AS passed_to FROM postrider.log_children(p_log) c
        WHERE c.state = 'attached' AND c.to_seq >= l.first_seq AND c.to_seq <= least(x.done_to, v_expired)) h
    WHERE l.name = p_log AND g.evicted_at IS NULL AND h.passed_to < v_expired
    ORDER BY x.done_to, g.name;
END $$;

-- What is watched of groups: a row for each, by name, at most p_max of them. p_log: only those of this log.
--
-- lag: events that are not done; lag_seconds: since when the oldest of them is in the log. alive, silent: consumers
-- whose last heartbeat is younger or older than 60 seconds. leased: hash partitions with a lease. max_deliveries: how
-- often the events were given out that are not done. It takes one probe for each hash partition that is behind.
CREATE OR REPLACE FUNCTION postrider.group_status(p_log text DEFAULT NULL, p_max integer DEFAULT NULL)
RETURNS TABLE (group_name text, log text, lag bigint, lag_seconds double precision, done_to bigint, last_seq bigint,
    alive bigint, silent bigint, leased bigint, partitions integer, max_deliveries integer, retain_max bigint,
    evicted_at timestamptz, created_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    g record;
BEGIN
    FOR g IN
        SELECT c.name, c.log, c.retain_max, c.evicted_at, c.created_at, l.table_name, l.partitions
        FROM postrider.consumer_group c JOIN postrider.event_log l ON l.name = c.log
        WHERE p_log IS NULL OR c.log = p_log ORDER BY c.name LIMIT p_max
    LOOP
        group_name := g.name;
        log := g.log;
        partitions := g.partitions;
        retain_max := g.retain_max;
        evicted_at := g.evicted_at;
        created_at := g.created_at;
        SELECT count(*) FILTER (WHERE c.is_alive), count(*) FILTER (WHERE NOT c.is_alive) INTO alive, silent FROM (
            SELECT x.last_heartbeat_at BETWEEN clock_timestamp() - interval '60 seconds'
                AND clock_timestamp() + interval '60 seconds' AS is_alive
            FROM postrider.consumer x WHERE x.group_name = g.name) c;
        EXECUTE format($f$
            SELECT sum(h.events - s.passed)::bigint,
                coalesce(extract(epoch FROM clock_timestamp() - min(o.appended_at)), 0),
                -- As group_done_to has it.
                min(CASE WHEN h.head <= s.last_offset THEN h.last_seq ELSE coalesce(o.seq - 1, s.last_offset) END),
                max(h.last_seq), count(*) FILTER (WHERE NOT postrider.lease_over(s.lease_from, s.lease_until)),
                max(s.deliveries)
            FROM postrider.part_heads($1) h JOIN postrider.group_state($2) s ON s.part = h.part LEFT JOIN LATERAL (
                SELECT e.seq, e.appended_at FROM postrider_log.%I e
                WHERE h.head > s.last_offset AND e.part = s.part AND e.seq > s.last_offset
                ORDER BY e.seq LIMIT 1) o ON true$f$, g.table_name)
        INTO lag, lag_seconds, done_to, last_seq, leased, max_deliveries USING g.log, g.name;
        RETURN NEXT;
    END LOOP;
END $$;

-- The offset from which a group is given the events that were appended at p_time or later: the number of the last event
-- before. A binary search, because numbers and times grow together, and no index is on appended_at.
CREATE OR REPLACE FUNCTION postrider.log_offset_at(p_log text, p_time timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l        record;
    v_low    bigint;
    v_high   bigint;
    v_middle bigint;
    v_before boolean;
BEGIN
    SELECT e.table_name, e.partitions, e.first_seq, h.last_seq INTO l
    FROM postrider.event_log e CROSS JOIN LATERAL postrider.log_head(e.name) h WHERE e.name = p_log;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not exist', p_log USING ERRCODE = 'PR110',
            HINT = 'SELECT name FROM postrider.event_log; lists the logs.';
    END IF;
    -- The event v_low is before p_time, or is none; the event after v_high is not, or is none.
    v_low := l.first_seq - 1;
    v_high := l.last_seq;
    WHILE v_low < v_high LOOP
        v_middle := v_high - (v_high - v_low) / 2;
        EXECUTE format($f$
            SELECT e.appended_at < $2 FROM generate_series(0, %1$s) u(part)
            JOIN postrider_log.%2$I e ON e.part = u.part AND e.seq = $1$f$, l.partitions - 1, l.table_name)
        INTO v_before USING v_middle, p_time;
        IF v_before IS NOT false THEN
            v_low := v_middle;
        ELSE
            v_high := v_middle - 1;
        END IF;
    END LOOP;
    RETURN v_low;
END $$;
