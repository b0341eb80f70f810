-- The inbox in the consumer's transaction. Each function returns true if the effect is to happen, and false if it has
-- happened; it waits while another transaction has the same message in hand, and if that one rolls back, it returns
-- true. They run with the rights of the caller, and find every name without search_path.

-- Days since 2000-01-01 in UTC.
CREATE OR REPLACE FUNCTION postrider.inbox_day(p_at timestamptz) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN floor(extract(epoch FROM p_at - '2000-01-01 00:00:00+00'::timestamptz) / 86400)::integer;

CREATE OR REPLACE FUNCTION postrider.inbox_key(p_argument text, p_value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_value IS NULL OR octet_length(p_value) > 1000 THEN
        RAISE EXCEPTION '% has % bytes', p_argument, coalesce(octet_length(p_value)::text, 'no')
            USING ERRCODE = '22023', HINT = 'It is a text of at most 1000 bytes. Give a longer one by its hash.';
    END IF;
END $$;

-- Why a call of inbox_advance or inbox_is_new can't be answered.
CREATE OR REPLACE FUNCTION postrider.inbox_refuse(p_consumer text, p_source text, p_aggregate text, p_position text)
RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM postrider.check_name('p_consumer', p_consumer), postrider.check_name('p_source', p_source),
        postrider.inbox_key('p_aggregate', p_aggregate);
    RAISE EXCEPTION 'p_position is %', CASE WHEN p_position IS NULL THEN 'NULL' ELSE 'no position' END
        USING ERRCODE = '22023', HINT = CASE WHEN p_position IS NULL
            THEN 'Of a record without header "position" call postrider.inbox_is_new with its header "history".'
            ELSE 'It is the header "position", for instance 68F1A2B3-0000000001A2B3C8-00000000.' END;
END $$;

-- Whether the event at this position is new for a consumer: its position is higher than that of all events of the
-- aggregate that the consumer has done. Positions of an aggregate are remembered for ever.
CREATE OR REPLACE FUNCTION postrider.inbox_advance(p_consumer text, p_source text, p_aggregate text, p_position text)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (octet_length(p_consumer) BETWEEN 1 AND 200 AND octet_length(p_source) BETWEEN 1 AND 200
        AND octet_length(p_aggregate) <= 1000
        AND p_position ~ '^[0-9A-F]{8}-[0-9A-F]{16}-[0-9A-F]{8}$') IS NOT TRUE THEN
        PERFORM postrider.inbox_refuse(p_consumer, p_source, p_aggregate, p_position);
    END IF;
    INSERT INTO postrider.inbox_position AS p (consumer, source, aggregate, position)
    VALUES (p_consumer, p_source, p_aggregate, p_position)
    ON CONFLICT (consumer, source, aggregate) DO UPDATE SET position = excluded.position
    WHERE p.position < excluded.position;
    RETURN FOUND;
END $$;

-- Whether a message is new for a consumer, by its id. With its own time (p_at), which has to be the same whenever the
-- message arrives, ids are remembered from the first day that is kept on; an older message raises PR120. Without it
-- they are remembered for as long after their arrival.
--
-- The first day is read when the partition is locked. inbox_forget raises it, and then waits for that lock.
CREATE OR REPLACE FUNCTION postrider.inbox_once(p_consumer text, p_source text, p_message_id text,
    p_at timestamptz DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_day   integer;
    v_first integer;
    v_new   boolean;
BEGIN
    IF (octet_length(p_consumer) BETWEEN 1 AND 200 AND octet_length(p_source) BETWEEN 1 AND 200
        AND octet_length(p_message_id) <= 1000) IS NOT TRUE THEN
        PERFORM postrider.check_name('p_consumer', p_consumer), postrider.check_name('p_source', p_source),
            postrider.inbox_key('p_message_id', p_message_id);
    END IF;
    IF p_at IS NULL THEN
        INSERT INTO postrider.inbox_seen_undated (consumer, source, message_id)
        VALUES (p_consumer, p_source, p_message_id) ON CONFLICT (consumer, source, message_id) DO NOTHING;
        RETURN FOUND;
    END IF;
    IF NOT isfinite(p_at) THEN
        RAISE EXCEPTION 'p_at is infinite' USING ERRCODE = '22023', HINT = 'It is the time of the message, or NULL.';
    END IF;
    v_day := postrider.inbox_day(p_at);
    INSERT INTO postrider.inbox_seen (slot, at, consumer, source, message_id)
    VALUES (v_day & 31, p_at, p_consumer, p_source, p_message_id)
    ON CONFLICT (slot, consumer, source, message_id, at) DO NOTHING;
    v_new := FOUND;
    SELECT s.last_value INTO v_first FROM postrider.inbox_first_day s;
    IF v_day < v_first THEN
        RAISE EXCEPTION 'the message is of %, and ids are remembered from % on',
            to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), '2000-01-01'::date + v_first
            USING ERRCODE = 'PR120',
            DETAIL = 'Whether its effect has happened is not known.',
            HINT = 'If it can''t have: call inbox_once without p_at. To remember ids longer: call inbox_forget with '
                'more days.';
    END IF;
    RETURN v_new;
END $$;

-- Whether an event of a pipeline is new for a consumer, for every record that Postrider sends: by its position, if it
-- has one, and by history and id. Ids are remembered for some days after their arrival, positions for ever.
--
-- p_position and p_history are the headers of these names; a header that the record does not have is NULL.
CREATE OR REPLACE FUNCTION postrider.inbox_is_new(p_consumer text, p_source text, p_aggregate text, p_id text,
    p_position text, p_history text)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_history text := coalesce(left(p_position, 8), p_history);
BEGIN
    IF p_position IS NULL THEN
        PERFORM postrider.inbox_key('p_aggregate', p_aggregate);
    ELSIF NOT postrider.inbox_advance(p_consumer, p_source, p_aggregate, p_position) THEN
        RETURN false;
    END IF;
    IF p_id IS NULL OR v_history !~ '^[0-9A-F]{8}$' IS NOT FALSE THEN
        RAISE EXCEPTION 'a record needs the headers "id", and "position" or "history"' USING ERRCODE = '22023',
            HINT = 'With layout debezium set route.standard_headers = ["position"]. Of a record of another producer '
                'call postrider.inbox_once.';
    END IF;
    RETURN postrider.inbox_once(p_consumer, p_source, v_history || '/' || p_id);
END $$;

-- Forgets ids: those of messages of days that are over for longer than p_keep, and of messages without a time that
-- arrived longer ago, at most p_max of these. Returns whether there is more to do: then call it again. A call empties
-- the table of one day, and waits for transactions that have a message of that day in hand: set lock_timeout.
CREATE OR REPLACE FUNCTION postrider.inbox_forget(p_keep interval, p_max integer DEFAULT 10000)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_first   integer;
    v_before  integer;
    v_swept   integer;
    v_from    timestamptz;
    v_until   timestamptz;
    v_table   text;
    v_some    boolean := false;
    v_newer   boolean;
    v_deleted bigint;
BEGIN
    PERFORM postrider.check_number('p_max', p_max, 1, 1000000), postrider.check_read_committed('inbox_forget');
    IF p_keep BETWEEN interval '1 day' AND interval '28 days' IS NOT TRUE THEN
        RAISE EXCEPTION 'p_keep is %', coalesce(p_keep::text, 'NULL') USING ERRCODE = '22023',
            HINT = 'Ids are remembered for 1 to 28 days.';
    END IF;
    -- clock_timestamp() in the statement would be no condition of an index: it would read every id.
    v_until := clock_timestamp() - p_keep;
    -- One at a time.
    INSERT INTO postrider.inbox_sweep (swept_day) SELECT -1000000 WHERE NOT EXISTS (SELECT FROM postrider.inbox_sweep)
    ON CONFLICT (only_row) DO NOTHING;
    SELECT w.swept_day INTO v_swept FROM postrider.inbox_sweep w FOR UPDATE;
    -- A longer p_keep brings nothing back.
    SELECT s.last_value INTO v_before FROM postrider.inbox_first_day s;
    v_first := greatest(postrider.inbox_day(v_until), v_before);
    IF v_first > v_before THEN
        PERFORM setval('postrider.inbox_first_day', v_first);
    END IF;
    v_from := '2000-01-01 00:00:00+00'::timestamptz + v_first * interval '24 hours';
    v_swept := greatest(v_swept, v_first - 33);
    WHILE v_swept < v_first - 1 AND NOT v_some LOOP
        v_swept := v_swept + 1;
        v_table := 'postrider.inbox_seen_' || lpad((v_swept & 31)::text, 2, '0');
        EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE at < $1)', v_table) INTO v_some USING v_from;
        IF v_some THEN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', v_table);
            EXECUTE format('SELECT EXISTS (SELECT FROM %s WHERE at >= $1)', v_table) INTO v_newer USING v_from;
            IF v_newer THEN
                EXECUTE format('DELETE FROM %s WHERE at < $1', v_table) USING v_from;
            ELSE
                EXECUTE format('TRUNCATE TABLE %s', v_table);
            END IF;
        END IF;
    END LOOP;
    UPDATE postrider.inbox_sweep w SET swept_day = v_swept WHERE w.swept_day <> v_swept;
    DELETE FROM postrider.inbox_seen_undated u WHERE u.ctid = ANY (ARRAY(
        SELECT x.ctid FROM postrider.inbox_seen_undated x WHERE x.seen_at < v_until
        ORDER BY x.seen_at LIMIT p_max FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    RETURN v_swept < v_first - 1 OR v_deleted = p_max;
END $$;
