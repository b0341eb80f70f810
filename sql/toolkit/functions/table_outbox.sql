-- Table outboxes: the triggers of a table write each statement that changes it as one event. They run with the rights
-- of the role that writes: a type's cast to json, which may be code of anybody who owns a type, never runs with the
-- rights of another role.
--
-- Locks: the list of outboxes first, then the table and its partitions, then the tables of the outbox. A writer has
-- them in the same order. disable_outbox takes its strongest lock of the table at once: with a weaker one first, a
-- transaction that has read the table and then writes would be waited for, and would wait.

CREATE OR REPLACE FUNCTION postrider.outbox_get(p_name text) RETURNS postrider.table_outbox
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v postrider.table_outbox;
BEGIN
    SELECT * INTO v FROM postrider.table_outbox o WHERE o.name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'outbox "%" is not enabled', p_name USING ERRCODE = 'PR131',
            HINT = 'Table postrider.table_outbox lists the outboxes, and postrider.enable_outbox creates one.';
    END IF;
    RETURN v;
END $$;

-- The name of an object in schema postrider_outbox: at most 63 bytes, cut between characters, with a hash if it was cut
-- or is taken.
CREATE OR REPLACE FUNCTION postrider.outbox_object(p_prefix text, p_name text) RETURNS name
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_full text := p_prefix || p_name;
    v_tail text := '_' || left(md5(p_name), 7);
    v_cut  text := p_prefix || p_name;
BEGIN
    IF octet_length(v_full) <= 63 AND NOT EXISTS (
        SELECT FROM pg_namespace n WHERE n.nspname = 'postrider_outbox' AND (
            EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = v_full)
            OR EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname = v_full))) THEN
        RETURN v_full;
    END IF;
    WHILE octet_length(v_cut || v_tail) > 63 LOOP
        v_cut := left(v_cut, -1);
    END LOOP;
    RETURN v_cut || v_tail;
END $$;

-- The tables that have the triggers of an outbox: the table itself, and its partitions.
CREATE OR REPLACE FUNCTION postrider.outbox_triggers(p_function name)
RETURNS TABLE (relid oid, trigger_name name, is_part boolean, is_enabled boolean)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT g.tgrelid, g.tgname, g.tgargs = '\x7061727400'::bytea, g.tgenabled IN ('O', 'A')
    FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'postrider_outbox' AND p.proname = p_function
$$;

-- The table whose changes an outbox has; NULL if it was dropped.
CREATE OR REPLACE FUNCTION postrider.outbox_source(p_function name) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT t.relid::regclass FROM postrider.outbox_triggers(p_function) t WHERE NOT t.is_part LIMIT 1
$$;

-- The table and its partitions, roots first.
CREATE OR REPLACE FUNCTION postrider.outbox_tables(p_table regclass) RETURNS TABLE (relid oid, level integer)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    SELECT p_table::oid, 0 UNION ALL SELECT t.relid::oid, t.level FROM pg_partition_tree(p_table) t WHERE t.level > 0
$$;

-- The relations through which a role writes rows of a table: the table and its partitions; the views and rules that
-- lead to it; the tables that it references by a foreign key that changes or deletes rows.
--
-- A trigger runs as the role that writes, also where the owner of a view or of a foreign key has the rights on the
-- table. (From PostgreSQL 18 on, what a foreign key does runs as the owner of the table.)
CREATE OR REPLACE FUNCTION postrider.outbox_ways(p_table regclass) RETURNS SETOF oid
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE ways(relid) AS (
        SELECT t.relid FROM postrider.outbox_tables(p_table) t
        UNION
        SELECT s.relid FROM ways w CROSS JOIN LATERAL (
            SELECT r.ev_class AS relid FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid
            WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = w.relid
            UNION ALL
            SELECT k.confrelid FROM pg_constraint k
            WHERE k.contype = 'f' AND k.conrelid = w.relid
              AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))) s
    )
    SELECT w.relid FROM ways w
$$;

-- The roles that can write the table and lack a right that the triggers need. A superuser lacks none.
CREATE OR REPLACE FUNCTION postrider.outbox_writers_without_rights(p_name text) RETURNS SETOF name
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o       postrider.table_outbox := postrider.outbox_get(p_name);
    v_table regclass := postrider.outbox_source(o.function_name);
    v_out   oid := to_regclass(format('postrider_outbox.%I', o.outbox_table));
    v_delta oid := to_regclass(format('postrider_outbox.%I', o.delta_table));
BEGIN
    RETURN QUERY
    WITH ways AS MATERIALIZED (SELECT w.relid FROM postrider.outbox_ways(v_table) w(relid))
    SELECT r.rolname FROM pg_roles r
    WHERE NOT r.rolsuper
      AND NOT coalesce(has_schema_privilege(r.oid, 'postrider_outbox', 'USAGE')
        AND has_table_privilege(r.oid, v_out, 'INSERT') AND has_column_privilege(r.oid, v_out, 'id', 'SELECT')
        AND has_table_privilege(r.oid, v_delta, 'INSERT'), false)
      AND EXISTS (SELECT FROM ways w WHERE has_table_privilege(r.oid, w.relid, 'INSERT, UPDATE, DELETE, TRUNCATE')
        OR has_any_column_privilege(r.oid, w.relid, 'INSERT, UPDATE'))
    ORDER BY r.rolname;
END $$;

-- Gives the roles that can write the table the rights that the triggers need; the roles that may read the list of
-- outboxes, those on the events; those that may insert into the list of groups (workers, administrators, relays), that
-- of acknowledging claim checks; and relays, those of marking and removing events. Run by the owner of the outbox.
CREATE OR REPLACE FUNCTION postrider.outbox_grant(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o       postrider.table_outbox := postrider.outbox_get(p_name);
    v_table regclass := postrider.outbox_source(o.function_name);
    v_out   text := format('postrider_outbox.%I', o.outbox_table);
    v_delta text := format('postrider_outbox.%I', o.delta_table);
    r       record;
BEGIN
    FOR r IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(e.rolname) END AS role
        FROM (
            SELECT x.grantee FROM postrider.outbox_ways(v_table) w(relid) JOIN pg_class c ON c.oid = w.relid
            CROSS JOIN LATERAL aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) x
            WHERE x.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')
            UNION
            SELECT x.grantee FROM postrider.outbox_ways(v_table) w(relid) JOIN pg_attribute b ON b.attrelid = w.relid
            CROSS JOIN LATERAL aclexplode(b.attacl) x WHERE x.privilege_type IN ('INSERT', 'UPDATE')
            UNION
            -- Its members can write every table, and can read none.
            SELECT s.oid FROM pg_roles s WHERE s.rolname = 'pg_write_all_data'
        ) a LEFT JOIN pg_roles e ON e.oid = a.grantee
        WHERE a.grantee = 0 OR e.oid IS NOT NULL AND NOT e.rolsuper
    LOOP
        EXECUTE format('GRANT INSERT ON TABLE %s, %s TO %s', v_out, v_delta, r.role);
        EXECUTE format('GRANT SELECT (id) ON TABLE %s TO %s', v_out, r.role);
    END LOOP;
    FOR r IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(e.rolname) END AS role,
            c.relname, a.privilege_type
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a LEFT JOIN pg_roles e ON e.oid = a.grantee
        WHERE (c.oid = 'postrider.table_outbox'::regclass AND a.privilege_type = 'SELECT'
            OR c.oid = 'postrider.table_outbox_group'::regclass AND a.privilege_type = 'INSERT'
            -- Relays alone write the tables of logs.
            OR c.oid = 'postrider.event_log_writer'::regclass AND a.privilege_type = 'INSERT')
          AND (a.grantee = 0 OR e.oid IS NOT NULL)
    LOOP
        IF r.relname = 'table_outbox' THEN
            EXECUTE format('GRANT SELECT ON TABLE %s, %s, postrider_outbox.%I TO %s', v_out, v_delta, o.latest_view,
                r.role);
        ELSIF r.relname = 'table_outbox_group' THEN
            EXECUTE format('GRANT UPDATE (consumed_by, unread_since) ON TABLE %s TO %s', v_out, r.role);
        ELSE
            -- Polling locks the rows for which it asks, and check looks for UPDATE on the whole table.
            EXECUTE format('GRANT UPDATE, DELETE ON TABLE %s TO %s', v_out, r.role);
        END IF;
    END LOOP;
END $$;

-- Puts the triggers on the table and those of its partitions that have none.
--
-- A statement fires the triggers of the table that it names, and no others. A TRUNCATE of the root fires those of the
-- partitions too, hence the argument of the triggers.
CREATE OR REPLACE FUNCTION postrider.outbox_cover(p_table regclass, p_function name) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t       record;
    e       record;
    v_added integer := 0;
BEGIN
    FOR t IN SELECT x.relid::regclass AS rel, x.relid, x.level FROM postrider.outbox_tables(p_table) x LOOP
        FOR e IN
            SELECT * FROM (VALUES
                ('insert', 'AFTER INSERT', 'REFERENCING NEW TABLE AS new_rows'),
                ('update', 'AFTER UPDATE', 'REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows'),
                ('delete', 'AFTER DELETE', 'REFERENCING OLD TABLE AS old_rows'),
                ('truncate', 'AFTER TRUNCATE', ''),
                ('before_truncate', 'BEFORE TRUNCATE', '')) v(suffix, event, referencing)
            WHERE NOT EXISTS (SELECT FROM postrider.outbox_triggers(p_function) g
                WHERE g.relid = t.relid AND g.trigger_name = 'postrider_outbox_' || v.suffix)
        LOOP
            EXECUTE format('CREATE TRIGGER postrider_outbox_%s %s ON %s %s FOR EACH STATEMENT '
                'EXECUTE FUNCTION postrider_outbox.%I(%L)', e.suffix, e.event, t.rel, e.referencing, p_function,
                CASE t.level WHEN 0 THEN 'table' ELSE 'part' END);
            v_added := v_added + 1;
        END LOOP;
    END LOOP;
    RETURN v_added;
END $$;

-- Why the changes of a table can't be captured; NULL if they can.
CREATE OR REPLACE FUNCTION postrider.outbox_unfit(p_table regclass) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c record;
BEGIN
    SELECT n.nspname, x.relkind, x.relpersistence, x.relispartition INTO c
    FROM pg_class x JOIN pg_namespace n ON n.oid = x.relnamespace WHERE x.oid = p_table;
    IF c.relkind NOT IN ('r', 'p') THEN
        RETURN 'it is not a table';
    ELSIF c.nspname IN ('pg_catalog', 'information_schema', 'pg_toast')
        OR c.nspname IN ('postrider', 'postrider_log', 'postrider_inbox', 'postrider_outbox') THEN
        RETURN format('it is in schema %I', c.nspname);
    ELSIF c.relispartition THEN
        -- A statement that names the root would not fire the triggers of the partition.
        RETURN format('it is a partition: enable the outbox of %s', pg_partition_root(p_table));
    ELSIF EXISTS (SELECT FROM pg_inherits i JOIN pg_class x ON x.oid = i.inhparent
        WHERE p_table IN (i.inhrelid, i.inhparent) AND x.relkind = 'r') THEN
        RETURN 'it inherits from a table, or tables inherit from it';
    END IF;
    -- A crash empties an unlogged table, and no trigger sees it.
    RETURN (SELECT string_agg(format('%s is %s', x.oid::regclass, CASE WHEN x.relpersistence = 't' THEN 'temporary'
            WHEN x.relpersistence = 'u' THEN 'unlogged' ELSE 'a foreign table' END), ', ' ORDER BY x.oid)
        FROM postrider.outbox_tables(p_table) t JOIN pg_class x ON x.oid = t.relid
        WHERE x.relpersistence <> 'p' OR x.relkind NOT IN ('r', 'p'));
END $$;

-- The enabled triggers of a table and of its partitions that are not of outboxes.
CREATE OR REPLACE FUNCTION postrider.outbox_other_triggers(p_table regclass) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(DISTINCT g.tgname), '[]')
    FROM postrider.outbox_tables(p_table) t JOIN pg_trigger g ON g.tgrelid = t.relid
    JOIN pg_proc p ON p.oid = g.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE NOT g.tgisinternal AND g.tgenabled <> 'D' AND n.nspname <> 'postrider_outbox'
$$;

-- The text of the trigger function of an outbox. What it writes: docs/sql/table-outbox.md.
CREATE OR REPLACE FUNCTION postrider.outbox_function(p_name text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o      postrider.table_outbox := postrider.outbox_get(p_name);
    v_list text;
BEGIN
    -- A column may be named as the alias: "x.*" is the row, "x" would be the column.
    SELECT string_agg(format('y.%I', u.c), ', ' ORDER BY u.n) INTO v_list
    FROM unnest(o.columns) WITH ORDINALITY u(c, n);
    -- The settings make the text of a value the same in each session. The body is a literal: a name may have any
    -- characters.
    RETURN format($f$CREATE OR REPLACE FUNCTION postrider_outbox.%I() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET datestyle = 'ISO' SET intervalstyle = 'postgres' SET timezone = 'UTC'
SET bytea_output = 'hex' SET extra_float_digits = 1 AS %L$f$, o.function_name, format($f$
-- Written by postrider.enable_outbox. It runs with the rights of the role that writes the table.
DECLARE
    v_inserted bigint := 0;
    v_deleted  bigint := 0;
    v_bytes    bigint := 0;
    v_id       bigint;
    v_payload  json;
    v_flag     text := 'postrider.truncate_%4$s';
BEGIN
    IF TG_ARGV[0] = 'part' AND NOT EXISTS (
        SELECT FROM pg_trigger p JOIN pg_trigger r ON r.tgfoid = p.tgfoid AND r.tgname = p.tgname
        WHERE p.tgrelid = TG_RELID AND p.tgname = TG_NAME AND r.tgrelid = pg_partition_root(TG_RELID)
          AND r.tgrelid <> p.tgrelid) THEN
        -- It was detached: its rows are none of the table's any more.
        RETURN NULL;
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
        -- All triggers BEFORE of a statement fire first, then all those AFTER it.
        IF TG_WHEN = 'BEFORE' THEN
            IF TG_ARGV[0] = 'table' THEN
                PERFORM set_config(v_flag, 'now', true);
            ELSIF current_setting(v_flag, true) IS DISTINCT FROM 'now' THEN
                PERFORM set_config(v_flag, '', true);
            END IF;
            RETURN NULL;
        ELSIF TG_ARGV[0] = 'table' THEN
            PERFORM set_config(v_flag, 'done', true);
        ELSIF current_setting(v_flag, true) IN ('now', 'done') THEN
            RETURN NULL;
        ELSE
            RAISE EXCEPTION 'TRUNCATE of a partition is not captured by outbox %%', %3$L USING ERRCODE = '0A000',
                HINT = 'Delete the rows of the partition with DELETE, or truncate the whole table.';
        END IF;
        INSERT INTO postrider_outbox.%1$I (event_type, payload, inserted_count, deleted_count)
        VALUES (TG_OP, '{"v":1,"truncated":true,"inserted":[],"deleted":[]}', 0, 0);
        %8$s
        RETURN NULL;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT count(*), coalesce(sum(z.bytes), 0) INTO v_inserted, v_bytes
        FROM (SELECT pg_column_size(x.*) AS bytes FROM %6$s x LIMIT %5$s + 1) z;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        SELECT count(*), coalesce(sum(z.bytes), 0) + v_bytes INTO v_deleted, v_bytes
        FROM (SELECT pg_column_size(x.*) AS bytes FROM %7$s x LIMIT %5$s + 1) z;
    END IF;
    IF v_inserted = 0 AND v_deleted = 0 THEN
        RETURN NULL;
    END IF;
    -- A document is not even built from values that are, compressed, larger than it may be: a gigabyte is an error.
    IF v_inserted + v_deleted <= %5$s AND v_bytes <= 900000 THEN
        IF TG_OP = 'INSERT' THEN
            SELECT json_build_object('v', 1, 'inserted', json_agg(x.*), 'deleted', '[]'::json) INTO v_payload
            FROM %6$s x;
        ELSIF TG_OP = 'DELETE' THEN
            SELECT json_build_object('v', 1, 'inserted', '[]'::json, 'deleted', json_agg(x.*)) INTO v_payload
            FROM %7$s x;
        ELSE
            SELECT json_build_object('v', 1, 'inserted', (SELECT json_agg(x.*) FROM %6$s x),
                'deleted', (SELECT json_agg(x.*) FROM %7$s x)) INTO v_payload;
        END IF;
        -- Brokers refuse messages above about a megabyte.
        IF octet_length(v_payload::text) <= 900000 THEN
            INSERT INTO postrider_outbox.%1$I (event_type, payload, inserted_count, deleted_count)
            VALUES (TG_OP, v_payload, v_inserted, v_deleted);
            %8$s
            RETURN NULL;
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT count(*) INTO v_inserted FROM new_rows;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        SELECT count(*) INTO v_deleted FROM old_rows;
    END IF;
    INSERT INTO postrider_outbox.%1$I
        (event_type, payload, inserted_count, deleted_count, is_claim_check, unread_since)
    VALUES (TG_OP, json_build_object('v', 1, 'claim_check', true, 'inserted_count', v_inserted, 'deleted_count',
        v_deleted), v_inserted, v_deleted, true, clock_timestamp()) RETURNING id INTO v_id;
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO postrider_outbox.%2$I (outbox_id, row_num, op, payload)
        SELECT v_id, row_number() OVER (), 'D', row_to_json(x.*) FROM %7$s x;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO postrider_outbox.%2$I (outbox_id, row_num, op, payload)
        SELECT v_id, v_deleted + row_number() OVER (), 'I', row_to_json(x.*) FROM %6$s x;
    END IF;
    %8$s
    RETURN NULL;
END $f$,
        o.outbox_table, o.delta_table, o.name, left(md5(o.name), 16), o.inline_threshold_rows,
        CASE WHEN v_list IS NULL THEN 'new_rows' ELSE format('(SELECT %s FROM new_rows y)', v_list) END,
        CASE WHEN v_list IS NULL THEN 'old_rows' ELSE format('(SELECT %s FROM old_rows y)', v_list) END,
        CASE WHEN o.notify THEN format('PERFORM pg_notify(''postrider_outbox'', %L);',
            'postrider_outbox.' || o.outbox_table) ELSE '' END));
END $$;

-- Captures the changes of a table from now on: each statement that changes rows writes an event into a table of the
-- outbox, in its transaction. Returns that table. Run by the owner of the captured table.
--
-- It waits at most 2 s for a lock, because writers wait behind it.
CREATE OR REPLACE FUNCTION postrider.enable_outbox(p_table regclass, p_name text DEFAULT NULL,
    p_retention_hours integer DEFAULT 24, p_inline_threshold_rows integer DEFAULT 1000, p_columns name[] DEFAULT NULL,
    p_notify boolean DEFAULT false) RETURNS regclass
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    c       record;
    t       record;
    v_name  text := p_name;
    v_words text;
    v_roles text;
BEGIN
    PERFORM postrider.check_read_committed('enable_outbox'),
        postrider.check_number('p_retention_hours', p_retention_hours, 0, 1000000),
        postrider.check_number('p_inline_threshold_rows', p_inline_threshold_rows, 0, 100000),
        postrider.check_name('p_name', coalesce(p_name, 'default'));
    IF p_notify IS NULL OR cardinality(p_columns) = 0 OR array_position(p_columns, NULL) IS NOT NULL
        OR cardinality(p_columns) > (SELECT count(DISTINCT u.c) FROM unnest(p_columns) u(c)) THEN
        RAISE EXCEPTION 'p_columns or p_notify is not usable' USING ERRCODE = '22023',
            HINT = 'p_columns is NULL or a list of columns, each once; p_notify is true or false.';
    END IF;
    SELECT n.nspname, x.relname, x.relowner INTO c
    FROM pg_class x JOIN pg_namespace n ON n.oid = x.relnamespace WHERE x.oid = p_table;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'p_table is not a table that exists' USING ERRCODE = '42P01';
    END IF;
    v_words := postrider.outbox_unfit(p_table);
    IF v_words IS NULL THEN
        LOCK TABLE postrider.table_outbox IN SHARE ROW EXCLUSIVE MODE;
        PERFORM postrider.outbox_owned(p_table);
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', p_table);
        -- Partitions may have been added meanwhile.
        PERFORM postrider.outbox_owned(p_table);
        v_words := postrider.outbox_unfit(p_table);
    END IF;
    IF v_words IS NOT NULL THEN
        RAISE EXCEPTION '% can have no outbox: %', p_table, v_words USING ERRCODE = '42809',
            HINT = 'An outbox is for a logged table, or for a partitioned table as a whole.';
    END IF;
    SELECT o.name INTO t FROM postrider.table_outbox o WHERE o.table_schema = c.nspname AND o.table_name = c.relname;
    IF NOT FOUND THEN
        SELECT o.name INTO t FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
        JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'postrider_outbox'
        LEFT JOIN postrider.table_outbox o ON o.function_name = p.proname WHERE g.tgrelid = p_table LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION '% has an outbox already: %', p_table, coalesce(quote_literal(t.name), 'it is not in the list')
            USING ERRCODE = 'PR130', HINT = 'SELECT postrider.disable_outbox(name) removes it. If it is not in the '
                'list, the rows of postrider.table_outbox were not restored: restore them.';
    END IF;
    v_name := coalesce(p_name, CASE WHEN EXISTS (SELECT FROM postrider.table_outbox o WHERE o.name = c.relname)
        THEN c.nspname::text || '.' || c.relname::text ELSE c.relname::text END);
    IF EXISTS (SELECT FROM postrider.table_outbox o WHERE o.name = v_name) THEN
        RAISE EXCEPTION 'outbox "%" exists already', v_name USING ERRCODE = 'PR130',
            HINT = 'Give this one another name with p_name.';
    END IF;
    PERFORM postrider.outbox_check_columns(p_table, p_columns);
    INSERT INTO postrider.table_outbox (name, table_schema, table_name, outbox_table, delta_table, latest_view,
        function_name, columns, retention_hours, inline_threshold_rows, notify)
    VALUES (v_name, c.nspname, c.relname, postrider.outbox_object('outbox_', v_name),
        postrider.outbox_object('outbox_delta_rows_', v_name), postrider.outbox_object('outbox_latest_', v_name),
        postrider.outbox_object('outbox_fn_', v_name), p_columns, p_retention_hours, p_inline_threshold_rows, p_notify);
    PERFORM postrider.outbox_create(v_name);
    PERFORM postrider.outbox_cover(p_table, o.function_name) FROM postrider.table_outbox o WHERE o.name = v_name;
    PERFORM postrider.outbox_grant(v_name);
    SELECT string_agg(quote_ident(r.role), ', ') INTO v_roles
    FROM postrider.outbox_writers_without_rights(v_name) r(role);
    IF v_roles IS NOT NULL THEN
        RAISE EXCEPTION 'roles that can write % could not any more: %', p_table, v_roles USING ERRCODE = '42501',
            HINT = 'Grant these roles INSERT, UPDATE or DELETE on the table itself, or revoke what lets them write it.';
    END IF;
    IF postrider.outbox_other_triggers(p_table) <> '[]' THEN
        RAISE WARNING '% has triggers of its own: %', p_table, postrider.outbox_other_triggers(p_table) USING
            DETAIL = 'If one of them changes rows of this table, its event is written before that of the statement.',
            HINT = 'Look at them. A table outbox from the write-ahead log has no such limit.';
    END IF;
    RETURN (SELECT format('postrider_outbox.%I', o.outbox_table)::regclass
        FROM postrider.table_outbox o WHERE o.name = v_name);
END $$;

-- Whether the session may create and drop triggers of a table and of its partitions.
CREATE OR REPLACE FUNCTION postrider.outbox_owned(p_table regclass) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    FOR t IN
        SELECT c.oid::regclass AS rel, pg_get_userbyid(c.relowner) AS owner FROM postrider.outbox_tables(p_table) x
        JOIN pg_class c ON c.oid = x.relid WHERE NOT pg_has_role(c.relowner, 'USAGE') ORDER BY x.level LIMIT 1
    LOOP
        RAISE EXCEPTION 'table % belongs to role "%"', t.rel, t.owner USING ERRCODE = '42501',
            HINT = format('Run it as a role that has the rights of role %s.', quote_ident(t.owner));
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION postrider.outbox_check_columns(p_table regclass, p_columns name[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT u.c FROM unnest(p_columns) WITH ORDINALITY u(c, n) WHERE NOT EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = p_table AND a.attname = u.c AND a.attnum > 0 AND NOT a.attisdropped) ORDER BY u.n LIMIT 1
    LOOP
        RAISE EXCEPTION 'table % has no column "%"', p_table, r.c USING ERRCODE = '42703';
    END LOOP;
    -- From PostgreSQL 18 on: the triggers do not see the value of such a column.
    FOR r IN
        SELECT a.attname FROM pg_attribute a WHERE a.attrelid = p_table AND a.attgenerated = 'v' AND NOT a.attisdropped
          AND (p_columns IS NULL OR a.attname = ANY (p_columns)) ORDER BY a.attnum LIMIT 1
    LOOP
        RAISE EXCEPTION 'column "%" of table % is a virtual generated column', r.attname, p_table
            USING ERRCODE = '42809', HINT = 'Name the other columns in p_columns.';
    END LOOP;
END $$;

-- Creates the objects of an outbox that is in the list.
CREATE OR REPLACE FUNCTION postrider.outbox_create(p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o postrider.table_outbox := postrider.outbox_get(p_name);
BEGIN
    EXECUTE format($f$
        CREATE TABLE postrider_outbox.%I (
            id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            aggregate_type text        NOT NULL DEFAULT %L,
            aggregate_id   text        NOT NULL DEFAULT %L,
            event_type     text        NOT NULL,
            payload        json        NOT NULL,
            inserted_count bigint      NOT NULL,
            deleted_count  bigint      NOT NULL,
            is_claim_check boolean     NOT NULL DEFAULT false,
            created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
            published_at   timestamptz,
            -- A claim check whose rows are not read by every group: since when.
            unread_since   timestamptz,
            consumed_by    text[]      NOT NULL DEFAULT '{}'
        )$f$, o.outbox_table, o.table_name, o.table_schema::text || '.' || o.table_name::text);
    EXECUTE format('CREATE INDEX ON postrider_outbox.%I (id) WHERE published_at IS NULL', o.outbox_table);
    EXECUTE format('CREATE INDEX ON postrider_outbox.%I (id) WHERE unread_since IS NOT NULL', o.outbox_table);
    EXECUTE format($f$
        CREATE TABLE postrider_outbox.%I (
            outbox_id bigint NOT NULL REFERENCES postrider_outbox.%I (id) ON DELETE CASCADE,
            row_num   bigint NOT NULL,
            op        "char" NOT NULL CHECK (op IN ('D', 'I')),
            payload   json   NOT NULL,
            PRIMARY KEY (outbox_id, row_num)
        )$f$, o.delta_table, o.outbox_table);
    EXECUTE format('CREATE VIEW postrider_outbox.%I WITH (security_invoker = true) AS '
        'SELECT * FROM postrider_outbox.%I ORDER BY id DESC LIMIT 1', o.latest_view, o.outbox_table);
    EXECUTE postrider.outbox_function(p_name);
    EXECUTE format('REVOKE ALL ON FUNCTION postrider_outbox.%I() FROM PUBLIC', o.function_name);
END $$;

-- Puts right what has changed since: partitions without triggers get them, and roles that can write the table, their
-- rights. Returns the number of triggers that it has created. Run by the owner of the table.
CREATE OR REPLACE FUNCTION postrider.outbox_refresh(p_name text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    o       postrider.table_outbox;
    v_table regclass;
    v_words text;
    v_added integer;
BEGIN
    PERFORM postrider.check_read_committed('outbox_refresh');
    LOCK TABLE postrider.table_outbox IN SHARE ROW EXCLUSIVE MODE;
    o := postrider.outbox_get(p_name);
    v_table := postrider.outbox_source(o.function_name);
    IF v_table IS NULL THEN
        RAISE EXCEPTION 'the table of outbox "%" was dropped: %.%', p_name, o.table_schema, o.table_name
            USING ERRCODE = '42P01', HINT = 'postrider.disable_outbox removes the outbox with its events.';
    END IF;
    PERFORM postrider.outbox_owned(v_table);
    v_words := postrider.outbox_unfit(v_table);
    IF v_words IS NOT NULL THEN
        RAISE EXCEPTION 'the changes of % are not wholly captured: %', v_table, v_words USING ERRCODE = '42809';
    END IF;
    v_added := postrider.outbox_cover(v_table, o.function_name);
    PERFORM postrider.outbox_grant(p_name);
    RETURN v_added;
END $$;

-- Ends the capture, and drops the outbox. An outbox that has events is dropped only with p_discard: they are deleted,
-- also those that no pipeline has published, and the rows of claim checks. Returns whether there was one. Run by the
-- owner of the table.
CREATE OR REPLACE FUNCTION postrider.disable_outbox(p_name text, p_if_exists boolean DEFAULT false,
    p_discard boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    o        postrider.table_outbox;
    v_table  regclass;
    v_events bigint;
    v_unread bigint;
    t        record;
BEGIN
    PERFORM postrider.check_read_committed('disable_outbox');
    LOCK TABLE postrider.table_outbox IN SHARE ROW EXCLUSIVE MODE;
    IF p_if_exists AND NOT EXISTS (SELECT FROM postrider.table_outbox x WHERE x.name = p_name) THEN
        RETURN false;
    END IF;
    o := postrider.outbox_get(p_name);
    v_table := postrider.outbox_source(o.function_name);
    IF v_table IS NOT NULL THEN
        PERFORM postrider.outbox_owned(v_table);
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', v_table);
    END IF;
    EXECUTE format('SELECT count(*), count(unread_since) FROM postrider_outbox.%I', o.outbox_table)
    INTO v_events, v_unread;
    IF v_events > 0 AND p_discard IS NOT TRUE THEN
        RAISE EXCEPTION 'outbox "%" has % events, % of them claim checks that are not read', p_name, v_events, v_unread
            USING ERRCODE = 'PR132', HINT = format('If none of them is needed any more: SELECT '
                'postrider.disable_outbox(%L, p_discard => true); deletes them. To stop the capture alone, disable '
                'each trigger whose name begins with postrider_outbox_: ALTER TABLE ... DISABLE TRIGGER ...;', p_name);
    END IF;
    -- Before the tables are dropped: a session that acknowledges a claim check locks them in this order.
    DELETE FROM postrider.table_outbox x WHERE x.name = p_name;
    FOR t IN SELECT g.trigger_name, g.relid::regclass AS rel FROM postrider.outbox_triggers(o.function_name) g
        ORDER BY g.is_part, g.relid LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', t.trigger_name, t.rel);
    END LOOP;
    EXECUTE format('DROP FUNCTION IF EXISTS postrider_outbox.%I()', o.function_name);
    EXECUTE format('DROP VIEW IF EXISTS postrider_outbox.%I', o.latest_view);
    EXECUTE format('DROP TABLE IF EXISTS postrider_outbox.%I', o.delta_table);
    EXECUTE format('DROP TABLE IF EXISTS postrider_outbox.%I', o.outbox_table);
    RETURN true;
END $$;

-- Claim checks.

-- A group will read the rows of claim checks: those that it has not read are kept from now on. Returns whether it is
-- new.
CREATE OR REPLACE FUNCTION postrider.outbox_add_group(p_name text, p_group text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o postrider.table_outbox := postrider.outbox_get(p_name);
BEGIN
    PERFORM postrider.check_name('p_group', p_group);
    INSERT INTO postrider.table_outbox_group (outbox, group_name) VALUES (o.name, p_group) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- A group reads no claim checks any more: nothing is kept for it. Returns whether there was one.
CREATE OR REPLACE FUNCTION postrider.outbox_drop_group(p_name text, p_group text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o       postrider.table_outbox := postrider.outbox_get(p_name);
    v_found boolean;
BEGIN
    DELETE FROM postrider.table_outbox_group g WHERE g.outbox = p_name AND g.group_name = p_group;
    v_found := FOUND;
    -- Without a group nobody has read anything.
    EXECUTE format($f$
        UPDATE postrider_outbox.%I SET unread_since = NULL
        WHERE unread_since IS NOT NULL AND consumed_by @> $1 AND cardinality($1) > 0$f$, o.outbox_table)
    USING ARRAY(SELECT g.group_name FROM postrider.table_outbox_group g WHERE g.outbox = p_name);
    RETURN v_found;
END $$;

-- A group has read the rows of a claim check. They are needed until each group has. Returns whether that is new: false
-- also if the event is not there any more.
CREATE OR REPLACE FUNCTION postrider.outbox_rows_consumed(p_name text, p_outbox_id bigint,
    p_group text DEFAULT 'default') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o          postrider.table_outbox := postrider.outbox_get(p_name);
    v_is_check boolean;
    v_by       text[];
BEGIN
    PERFORM postrider.outbox_add_group(p_name, p_group);
    EXECUTE format('SELECT is_claim_check, consumed_by FROM postrider_outbox.%I WHERE id = $1 FOR UPDATE',
        o.outbox_table) INTO v_is_check, v_by USING p_outbox_id;
    IF NOT v_is_check THEN
        RAISE EXCEPTION 'event % of outbox "%" is not a claim check', p_outbox_id, p_name USING ERRCODE = '22023',
            HINT = 'Its rows are in its payload. Claim checks have "claim_check": true.';
    ELSIF v_is_check IS NULL OR p_group = ANY (v_by) THEN
        RETURN false;
    END IF;
    EXECUTE format($f$
        UPDATE postrider_outbox.%I SET consumed_by = consumed_by || $2,
            unread_since = CASE WHEN consumed_by || $2 @> $3 THEN NULL ELSE unread_since END
        WHERE id = $1$f$, o.outbox_table)
    USING p_outbox_id, p_group, ARRAY(SELECT g.group_name FROM postrider.table_outbox_group g WHERE g.outbox = p_name);
    RETURN true;
END $$;

-- What is to be known of an outbox. It counts the events: some time for many millions.
--
-- uncovered: tables whose statements are not captured where they are named directly. Writers without rights fail.
CREATE OR REPLACE FUNCTION postrider.outbox_status(p_name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    o       postrider.table_outbox := postrider.outbox_get(p_name);
    v_table regclass := postrider.outbox_source(o.function_name);
    r       record;
BEGIN
    EXECUTE format('SELECT count(*) AS events, max(id) AS last_id, min(created_at) AS oldest, '
        'count(unread_since) AS unread, count(published_at) AS published FROM postrider_outbox.%I', o.outbox_table)
    INTO r;
    RETURN jsonb_build_object('name', o.name, 'table', o.table_schema::text || '.' || o.table_name::text,
        'table_now', v_table::text, 'outbox', format('postrider_outbox.%I', o.outbox_table),
        'delta_rows', format('postrider_outbox.%I', o.delta_table), 'retention_hours', o.retention_hours,
        'inline_threshold_rows', o.inline_threshold_rows, 'columns', o.columns, 'notify', o.notify,
        'events', r.events, 'marked_published', r.published, 'last_id', r.last_id, 'oldest', r.oldest,
        'claim_check_pending_count', r.unread,
        'bytes', pg_total_relation_size(format('postrider_outbox.%I', o.outbox_table)::regclass)
            + pg_total_relation_size(format('postrider_outbox.%I', o.delta_table)::regclass),
        'groups', (SELECT coalesce(jsonb_agg(g.group_name ORDER BY g.group_name), '[]')
            FROM postrider.table_outbox_group g WHERE g.outbox = p_name),
        'unfit', postrider.outbox_unfit(v_table), 'other_triggers', postrider.outbox_other_triggers(v_table),
        'uncovered', (SELECT coalesce(jsonb_agg(t.relid::regclass::text ORDER BY t.level, t.relid), '[]')
            FROM postrider.outbox_tables(v_table) t WHERE v_table IS NOT NULL
              AND (SELECT count(*) FROM postrider.outbox_triggers(o.function_name) g
                WHERE g.relid = t.relid AND g.is_enabled) < 5),
        'writers_without_rights', (SELECT coalesce(jsonb_agg(w.role), '[]')
            FROM postrider.outbox_writers_without_rights(p_name) w(role)));
END $$;
