-- Functions of event logs. They run with the rights of the caller, and find every name without search_path.

-- Arguments.

CREATE OR REPLACE FUNCTION postrider.check_name(p_argument text, p_value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_value IS NULL OR octet_length(p_value) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION '% has % bytes', p_argument, coalesce(octet_length(p_value)::text, 'no')
            USING ERRCODE = '22023', HINT = 'It is a name of 1 to 200 bytes.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION postrider.check_number(p_argument text, p_value bigint, p_from bigint, p_to bigint)
RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_value IS NULL OR p_value NOT BETWEEN p_from AND p_to THEN
        RAISE EXCEPTION '% is %', p_argument, coalesce(p_value::text, 'NULL') USING ERRCODE = '22023',
            HINT = format('It is a number from %s to %s.', p_from, p_to);
    END IF;
END $$;

-- An administrative change must see what retention has done: a snapshot of the whole transaction may be older.
CREATE OR REPLACE FUNCTION postrider.check_read_committed(p_function text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION '% needs a transaction in READ COMMITTED', p_function USING ERRCODE = '25000',
            HINT = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $$;

-- Logs.

-- The name of a table in schema postrider_log: at most 63 bytes, cut between characters, with a hash if it was cut or
-- is taken.
CREATE OR REPLACE FUNCTION postrider.log_table_name(p_name text) RETURNS name
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_full text := 'log_' || p_name;
    v_tail text := '_' || left(md5(p_name), 7);
    v_cut  text := 'log_' || p_name;
BEGIN
    IF octet_length(v_full) <= 63 AND NOT EXISTS (
        SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'postrider_log' AND c.relname = v_full) THEN
        RETURN v_full;
    END IF;
    WHILE octet_length(v_cut || v_tail) > 63 LOOP
        v_cut := left(v_cut, -1);
    END LOOP;
    RETURN v_cut || v_tail;
END $$;

-- The hash partition of a key, from 0: the first 32 bits of MD5 without the highest one, modulo the number of
-- partitions. The same in every language and every server version, which hashtext is not.
CREATE OR REPLACE FUNCTION postrider.hash_partition(p_key text, p_partitions integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ((('x' || left(md5(p_key), 8))::bit(32)::bigint & 2147483647) % p_partitions)::integer;

-- The text of a position, as the header "position" of other sinks has it: it sorts as the positions do.
CREATE OR REPLACE FUNCTION postrider.position_text(p_history bigint, p_commit_lsn pg_lsn, p_ordinal bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lpad(upper(to_hex(p_history)), 8, '0') || '-' || lpad(split_part(p_commit_lsn::text, '/', 1), 8, '0')
    || lpad(split_part(p_commit_lsn::text, '/', 2), 8, '0') || '-' || lpad(upper(to_hex(p_ordinal)), 8, '0');

-- The end of a log: no row if there is no such log.
CREATE OR REPLACE FUNCTION postrider.log_head(p_log text) RETURNS SETOF postrider.event_log_head
LANGUAGE sql STABLE ROWS 1
BEGIN ATOMIC
    SELECT h.* FROM postrider.event_log_head h WHERE h.log = p_log ORDER BY h.last_seq DESC LIMIT 1;
END;

-- Lets every role that may read the state of consumer groups read the events of a log. Run by the owner of the log.
CREATE OR REPLACE FUNCTION postrider.log_grant(p_log text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table text;
    v_role  text;
    v_given integer := 0;
BEGIN
    SELECT format('postrider_log.%I', l.table_name) INTO STRICT v_table FROM postrider.event_log l WHERE l.name = p_log;
    FOR v_role IN
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE c.oid = 'postrider.event_log'::regclass AND a.privilege_type = 'SELECT'
          AND (a.grantee = 0 OR r.oid IS NOT NULL) AND NOT EXISTS (
            SELECT FROM pg_class t CROSS JOIN LATERAL aclexplode(coalesce(t.relacl, acldefault('r', t.relowner))) b
            WHERE t.oid = v_table::regclass AND b.grantee = a.grantee AND b.privilege_type = 'SELECT')
    LOOP
        EXECUTE format('GRANT SELECT ON TABLE %s TO %s', v_table, v_role);
        v_given := v_given + 1;
    END LOOP;
    RETURN v_given;
END $$;

-- Creates children ahead of the last event, and returns the number up to which events can be appended. The table stays
-- usable meanwhile: CREATE TABLE ... PARTITION OF would lock out every reader, ATTACH PARTITION does not.
CREATE OR REPLACE FUNCTION postrider.log_extend(p_log text, p_ahead integer DEFAULT 2) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l       record;
    v_from  bigint;
    v_to    bigint;
    v_child name;
BEGIN
    PERFORM postrider.check_number('p_ahead', p_ahead, 0, 100000);
    SELECT e.name, e.table_name, e.rows_per_child, h.last_seq INTO l
    FROM postrider.event_log e CROSS JOIN LATERAL postrider.log_head(e.name) h WHERE e.name = p_log;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not exist', p_log USING ERRCODE = 'PR110',
            HINT = 'Table postrider.event_log lists the logs, and postrider.create_log creates one.';
    END IF;
    FOR i IN 0 .. p_ahead LOOP
        v_from := (l.last_seq / l.rows_per_child + i) * l.rows_per_child;
        v_to := v_from + l.rows_per_child;
        CONTINUE WHEN EXISTS (
            SELECT FROM pg_inherits x JOIN pg_class c ON c.oid = x.inhrelid
            WHERE x.inhparent = format('postrider_log.%I', l.table_name)::regclass AND NOT x.inhdetachpending
              AND pg_get_expr(c.relpartbound, c.oid) = format('FOR VALUES FROM (''%s'') TO (''%s'')', v_from, v_to));
        v_child := postrider.log_table_name(p_log || '_' || v_from / l.rows_per_child);
        EXECUTE format('CREATE TABLE postrider_log.%I (LIKE postrider_log.%I INCLUDING ALL)', v_child, l.table_name);
        -- ATTACH does not read the rows for its bounds if a CHECK has them; nor does another one, after a detach.
        EXECUTE format('ALTER TABLE postrider_log.%I ADD CONSTRAINT seq_range CHECK (seq >= %s AND seq < %s)',
            v_child, v_from, v_to);
        EXECUTE format('ALTER TABLE postrider_log.%I ATTACH PARTITION postrider_log.%I FOR VALUES FROM (%s) TO (%s)',
            l.table_name, v_child, v_from, v_to);
    END LOOP;
    RETURN v_to - 1;
END $$;

-- Creates a log. Run by the role that will write it, which owns its tables.
CREATE OR REPLACE FUNCTION postrider.create_log(p_log text, p_partitions integer DEFAULT 16,
    p_rows_per_child bigint DEFAULT 1000000, p_kind text DEFAULT 'value') RETURNS name
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table name := postrider.log_table_name(p_log);
BEGIN
    PERFORM postrider.check_name('p_log', p_log), postrider.check_number('p_partitions', p_partitions, 1, 1024),
        postrider.check_number('p_rows_per_child', p_rows_per_child, 1, 1000000000000);
    IF p_kind IS NULL OR p_kind NOT IN ('value', 'reference') THEN
        RAISE EXCEPTION 'p_kind is "%"', p_kind USING ERRCODE = '22023',
            HINT = 'It is ''value'' or ''reference''.';
    END IF;
    INSERT INTO postrider.event_log (name, table_name, partitions, rows_per_child, kind)
    VALUES (p_log, v_table, p_partitions, p_rows_per_child, p_kind);
    INSERT INTO postrider.event_log_head (log, last_seq, heads, counts, appended_at)
    VALUES (p_log, 0, array_fill(0::bigint, ARRAY[p_partitions]), array_fill(0::bigint, ARRAY[p_partitions]),
        clock_timestamp());
    -- There is no index on seq alone: the planner would use it for a hash partition, and read the events of all others
    -- on the way.
    EXECUTE format('CREATE TABLE postrider_log.%I (
        seq            bigint      NOT NULL,
        part           smallint    NOT NULL,
        history        bigint,
        commit_lsn     pg_lsn,
        ordinal        bigint,
        occurred_at    timestamptz,
        appended_at    timestamptz NOT NULL DEFAULT now(),
        event_id       text,
        event_type     text,
        aggregate_type text,
        aggregate_id   text,
        payload        text,
        headers        json,
        PRIMARY KEY (part, seq)) PARTITION BY RANGE (seq)', v_table);
    PERFORM postrider.log_extend(p_log);
    PERFORM postrider.log_grant(p_log);
    RETURN v_table;
EXCEPTION WHEN unique_violation THEN
    RAISE EXCEPTION 'log "%" exists already', p_log USING ERRCODE = 'PR111',
        HINT = 'Give the new log another name, or use the one that exists.';
END $$;

-- Drops a log with its events. Its consumer groups must be dropped first.
CREATE OR REPLACE FUNCTION postrider.drop_log(p_log text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table name;
BEGIN
    DELETE FROM postrider.event_log l WHERE l.name = p_log RETURNING l.table_name INTO v_table;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not exist', p_log USING ERRCODE = 'PR110',
            HINT = 'Table postrider.event_log lists the logs, and postrider.create_log creates one.';
    END IF;
    EXECUTE format('DROP TABLE postrider_log.%I', v_table);
EXCEPTION WHEN foreign_key_violation THEN
    RAISE EXCEPTION 'log "%" has consumer groups', p_log USING ERRCODE = '2BP01',
        HINT = 'Drop the groups first: SELECT postrider.drop_consumer_group(name) FROM postrider.consumer_group WHERE '
            || format('log = %L;', p_log);
END $$;

-- Makes the caller the only process that may append for this writer, and returns what its last append has stored, and
-- the number of appends. Waits for an append that is in progress. Call it in a transaction of its own.
CREATE OR REPLACE FUNCTION postrider.log_take_over(p_writer text, OUT epoch bigint, OUT progress text, OUT n bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO postrider.event_log_writer AS w (writer, epoch) VALUES (p_writer, 1)
    ON CONFLICT (writer) DO UPDATE SET epoch = w.epoch + 1 RETURNING w.epoch INTO log_take_over.epoch;
    SELECT p.progress, p.n INTO log_take_over.progress, log_take_over.n FROM postrider.event_log_progress p
    WHERE p.writer = p_writer ORDER BY p.n DESC LIMIT 1;
    log_take_over.n := coalesce(log_take_over.n, 0);
END $$;

-- Whoever has an older epoch appends nothing more. The first statement of each append.
CREATE OR REPLACE FUNCTION postrider.log_begin(p_writer text, p_epoch bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM postrider.event_log_writer w WHERE w.writer = p_writer AND w.epoch = p_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another process has taken over the logs of writer "%"', p_writer USING ERRCODE = 'PR101';
    END IF;
END $$;

-- Where a writer continues in a log; no row if there is no such log. Binds a new log to the writer. Call it between
-- log_begin and the end of the transaction.
CREATE OR REPLACE FUNCTION postrider.log_open(p_log text, p_writer text)
RETURNS TABLE (table_name name, kind text, partitions integer, last_seq bigint, heads bigint[], counts bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l        record;
    h        postrider.event_log_head;
    v_exists boolean;
BEGIN
    UPDATE postrider.event_log e SET writer = p_writer WHERE e.name = p_log AND e.writer IS NULL;
    SELECT e.table_name, e.kind, e.partitions, e.writer, e.first_seq INTO l
    FROM postrider.event_log e WHERE e.name = p_log;
    IF NOT FOUND THEN
        RETURN;
    ELSIF l.writer <> p_writer THEN
        RAISE EXCEPTION 'log "%" is written by "%"', p_log, l.writer USING ERRCODE = 'PR102',
            HINT = 'A log has one writer. Give this one another log.';
    END IF;
    SELECT * INTO STRICT h FROM postrider.log_head(p_log);
    -- The last event shows whether the table was truncated, or is another one.
    IF h.last_seq >= l.first_seq THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM postrider_log.%I e WHERE e.part = $1 AND e.seq = $2)', l.table_name)
        INTO v_exists USING (array_position(h.heads, h.last_seq) - 1)::smallint, h.last_seq;
        IF NOT v_exists THEN
            RAISE EXCEPTION 'log "%" has lost event %, its last one', p_log, h.last_seq USING ERRCODE = 'PR103',
                HINT = format('Table postrider_log.%I was truncated or replaced: its consumers may not have seen '
                    'everything. Restore the table. If that is not possible, see docs/sql/log.md, "When events of a '
                    'log are lost".', l.table_name);
        END IF;
    END IF;
    RETURN QUERY SELECT l.table_name, l.kind, l.partitions, h.last_seq, h.heads, h.counts;
END $$;

-- The end of a log after an append of p_n events, in the transaction that inserts them. p_heads and p_counts are those
-- after the append.
CREATE OR REPLACE FUNCTION postrider.log_move(p_log text, p_last_seq bigint, p_n bigint, p_heads bigint[],
    p_counts bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO postrider.event_log_head (log, last_seq, heads, counts, appended_at)
    SELECT p_log, p_last_seq + p_n, p_heads, p_counts, clock_timestamp()
    FROM postrider.log_head(p_log) h WHERE h.last_seq = p_last_seq AND p_n > 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not end with event %', p_log, p_last_seq USING ERRCODE = 'PR101';
    END IF;
END $$;

-- How far the writer's source is written, in the transaction of an append.
CREATE OR REPLACE FUNCTION postrider.log_progress(p_writer text, p_progress text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO postrider.event_log_progress (writer, n, progress)
    SELECT p_writer, coalesce(max(p.n), 0) + 1, p_progress FROM postrider.event_log_progress p WHERE p.writer = p_writer
$$;

-- Appends one transaction of a writer: events of one or several logs, the ends of these logs, and its progress.
-- p_n is the number of appends before it, as log_take_over has returned it.
--
-- The arrays of events have those of the first log, then those of the second. p_sizes has the number of events of each
-- log, p_partitions the number of its hash partitions; p_heads and p_counts have the heads and the counts of the first
-- log after the append, then those of the second. An array of events that is empty means NULL for all of them.
--
-- It is one statement, and not BEGIN, INSERT, COMMIT in one round trip: if the BEGIN of such a sequence is cancelled,
-- the server executes each of the following statements in a transaction of its own.
CREATE OR REPLACE FUNCTION postrider.log_append(p_writer text, p_epoch bigint, p_n bigint, p_progress text,
    p_logs text[], p_last_seqs bigint[], p_sizes integer[], p_partitions integer[], p_heads bigint[],
    p_counts bigint[], p_part smallint[], p_history bigint[], p_commit_lsn pg_lsn[], p_ordinal bigint[],
    p_occurred_at timestamptz[], p_event_id text[], p_event_type text[], p_aggregate_type text[],
    p_aggregate_id text[], p_payload text[], p_headers text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_sql   text;
    v_from  integer := 1;
    v_to    integer;
    h_from  integer := 1;
    h_to    integer;
BEGIN
    -- The source is confirmed after the append: it must survive a crash of the server.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM postrider.log_begin(p_writer, p_epoch);
    -- After a failover to a standby that lacks the last append, epoch and logs may be the expected ones all the same.
    IF p_n <> (SELECT coalesce(max(p.n), 0) FROM postrider.event_log_progress p WHERE p.writer = p_writer) THEN
        RAISE EXCEPTION 'append % is not the last one of writer "%"', p_n, p_writer USING ERRCODE = 'PR101';
    END IF;
    INSERT INTO postrider.event_log_progress (writer, n, progress) VALUES (p_writer, p_n + 1, p_progress);
    FOR i IN 1 .. cardinality(p_logs) LOOP
        v_to := v_from + p_sizes[i] - 1;
        h_to := h_from + p_partitions[i] - 1;
        PERFORM postrider.log_move(p_logs[i], p_last_seqs[i], p_sizes[i], p_heads[h_from:h_to],
            p_counts[h_from:h_to]);
        SELECT format('
            INSERT INTO postrider_log.%I (seq, part, history, commit_lsn, ordinal, occurred_at, event_id, event_type,
                aggregate_type, aggregate_id, payload, headers)
            SELECT $1 + u.i, u.part, u.history, u.commit_lsn, u.ordinal, u.occurred_at, u.event_id, u.event_type,
                u.aggregate_type, u.aggregate_id, u.payload, u.headers::json
            FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) WITH ORDINALITY AS u(part, history, commit_lsn,
                ordinal, occurred_at, event_id, event_type, aggregate_type, aggregate_id, payload, headers, i)
            ORDER BY u.i', l.table_name)
        INTO STRICT v_sql FROM postrider.event_log l WHERE l.name = p_logs[i];
        IF cardinality(p_logs) = 1 THEN
            EXECUTE v_sql USING p_last_seqs[i], p_part, p_history, p_commit_lsn, p_ordinal, p_occurred_at, p_event_id,
                p_event_type, p_aggregate_type, p_aggregate_id, p_payload, p_headers;
        ELSE
            EXECUTE v_sql USING p_last_seqs[i], p_part[v_from:v_to], p_history[v_from:v_to],
                p_commit_lsn[v_from:v_to], p_ordinal[v_from:v_to], p_occurred_at[v_from:v_to],
                p_event_id[v_from:v_to], p_event_type[v_from:v_to], p_aggregate_type[v_from:v_to],
                p_aggregate_id[v_from:v_to], p_payload[v_from:v_to], p_headers[v_from:v_to];
        END IF;
        v_from := v_to + 1;
        h_from := h_to + 1;
    END LOOP;
END $$;

-- Events of all hash partitions in their order, for one reader that stores its own offset: those with
-- p_after < seq <= p_after + p_max. The numbers have no gaps, so the next offset is the last seq. If one of these
-- events is missing, it raises PR113 (retention has dropped it) or PR103.
CREATE OR REPLACE FUNCTION postrider.log_read(p_log text, p_after bigint, p_max integer DEFAULT 1000)
RETURNS TABLE (seq bigint, part smallint, "position" text, occurred_at timestamptz, appended_at timestamptz,
    event_id text, event_type text, aggregate_type text, aggregate_id text, payload text, headers json)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l      record;
    v_n    bigint;
    v_lost bigint;
BEGIN
    PERFORM postrider.check_number('p_max', p_max, 1, 100000),
        postrider.check_number('p_after', p_after, 0, 9223372036854775807 - 100000);
    SELECT e.table_name, e.partitions, e.first_seq INTO l FROM postrider.event_log e WHERE e.name = p_log;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not exist', p_log USING ERRCODE = 'PR110',
            HINT = 'Table postrider.event_log lists the logs, and postrider.create_log creates one.';
    ELSIF p_after + 1 < l.first_seq THEN
        RAISE EXCEPTION 'retention has dropped events % to % of log "%"', p_after + 1, l.first_seq - 1, p_log
            USING ERRCODE = 'PR113', HINT = format('To go on without them, read after %s.', l.first_seq - 1);
    END IF;
    RETURN QUERY EXECUTE format($f$
        SELECT e.seq, e.part, postrider.position_text(e.history, e.commit_lsn, e.ordinal), e.occurred_at, e.appended_at,
            e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.payload, e.headers
        FROM generate_series(0, %1$s) u(part) CROSS JOIN LATERAL (
            SELECT * FROM postrider_log.%2$I e
            WHERE e.part = u.part AND e.seq > $1 AND e.seq <= $1 + $2 ORDER BY e.seq LIMIT $2) e
        ORDER BY e.seq$f$, l.partitions - 1, l.table_name) USING p_after, p_max;
    GET DIAGNOSTICS v_n = ROW_COUNT;
    -- The head and the events are read with one snapshot.
    SELECT greatest(0, least(p_max, h.last_seq - p_after)) - v_n INTO v_lost FROM postrider.log_head(p_log) h;
    IF v_lost > 0 THEN
        RAISE EXCEPTION 'log "%" has lost % of the events % to %', p_log, v_lost, p_after + 1, p_after + v_n + v_lost
            USING ERRCODE = 'PR103', HINT = format('Table postrider_log.%I, or one of its children, was truncated, '
                'detached or replaced; or retention has dropped them since this transaction began. Run the transaction '
                'again. If it fails again, restore the table, or read after the gap.', l.table_name);
    END IF;
END $$;

-- Moves rows of an outbox table into a log of the same database: claimed, appended and deleted in one transaction, so
-- each event is in the log exactly once. At most p_max rows, and at most as many as 16 children of the log's table
-- hold. For an application without a relay, called by a job such as pg_cron. Returns the number of events; 0 if there
-- are none, or if another session is moving them.
--
-- The table has the columns of the layout "postrider", and its rows are taken in the order of id. That is not the order
-- of the commits: a row that is committed late is behind rows with higher ids.
CREATE OR REPLACE FUNCTION postrider.log_feed(p_log text, p_outbox regclass, p_max integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_writer   text := 'log_feed of ' || p_outbox::text;
    l          record;
    v_max      integer;
    v_children integer;
    v_n        integer;
    v_heads    bigint[];
    v_counts   bigint[];
BEGIN
    PERFORM postrider.check_number('p_max', p_max, 1, 100000), postrider.check_read_committed('log_feed');
    IF p_outbox IS NULL THEN
        RAISE EXCEPTION 'p_outbox is NULL' USING ERRCODE = '22023', HINT = 'It is the name of the outbox table.';
    END IF;
    INSERT INTO postrider.event_log_writer (writer, epoch) VALUES (v_writer, 1) ON CONFLICT (writer) DO NOTHING;
    PERFORM FROM postrider.event_log_writer w WHERE w.writer = v_writer FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT o.* INTO l FROM postrider.log_open(p_log, v_writer) o;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'log "%" does not exist', p_log USING ERRCODE = 'PR110',
            HINT = 'Table postrider.event_log lists the logs, and postrider.create_log creates one.';
    ELSIF l.kind <> 'value' THEN
        RAISE EXCEPTION 'log "%" has references, and log_feed deletes the rows', p_log USING ERRCODE = '22023',
            HINT = 'Feed a log whose kind is "value".';
    END IF;
    -- Children for as many events, and one more ahead.
    SELECT least(p_max, 16 * e.rows_per_child)::integer,
        ((l.last_seq + least(p_max, 16 * e.rows_per_child)) / e.rows_per_child - l.last_seq / e.rows_per_child)::integer
    INTO v_max, v_children FROM postrider.event_log e WHERE e.name = p_log;
    IF v_children > 0 THEN
        PERFORM postrider.log_extend(p_log, v_children + 1);
    END IF;
    EXECUTE format($f$
        WITH k AS (SELECT o.id FROM %1$s o ORDER BY o.id LIMIT $1 FOR UPDATE),
        d AS (DELETE FROM %1$s o USING k WHERE o.id = k.id RETURNING o.*),
        r AS (
            SELECT $2 + row_number() OVER (ORDER BY d.id) AS seq,
                postrider.hash_partition(coalesce(d.aggregate_id::text, d.id::text), $3)::smallint AS part, d.* FROM d),
        i AS (
            INSERT INTO postrider_log.%2$I (seq, part, occurred_at, event_id, event_type, aggregate_type, aggregate_id,
                payload, headers)
            SELECT r.seq, r.part, r.created_at, r.id::text, r.event_type, r.aggregate_type, r.aggregate_id::text,
                r.payload::text, r.headers::json
            FROM r ORDER BY r.seq RETURNING seq, part),
        p AS (SELECT i.part, max(i.seq) AS head, count(*) AS n FROM i GROUP BY i.part)
        SELECT (SELECT count(*) FROM i)::integer, array_agg(coalesce(p.head, $4[x]) ORDER BY x),
            array_agg($5[x] + coalesce(p.n, 0) ORDER BY x)
        FROM generate_subscripts($4, 1) x LEFT JOIN p ON p.part = x - 1$f$, p_outbox, l.table_name)
    INTO v_n, v_heads, v_counts USING v_max, l.last_seq, l.partitions, l.heads, l.counts;
    IF v_n > 0 THEN
        PERFORM postrider.log_move(p_log, l.last_seq, v_n, v_heads, v_counts);
    END IF;
    RETURN v_n;
END $$;
