-- Objects in schema "postrider", and on its tables, that are not Postrider's. Only the catalog is read. Expressions are
-- compared as pg_get_expr prints them under search_path = '', where only names of pg_catalog are unqualified: the same
-- on PostgreSQL 15 to 18. A migration that adds a default, a CHECK, a partial index or a function adds it here. What
-- the SQL toolkit has in the schema is listed in toolkit/objects.sql and toolkit/former.sql, whose texts stand before
-- this one.
n AS (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = 'postrider'),
own(kind, name) AS (
  VALUES ('r', 'migration'), ('r', 'cursor'), ('r', 'parked'), ('r', 'repair'), ('r', 'repair_page'), ('r', 'bookmark'),
    ('r', 'replay'), ('r', 'pause')
  UNION ALL SELECT k.kind, k.name FROM toolkit_relations k),
c AS (
  SELECT r.oid, r.relname, r.relkind, r.relrowsecurity OR r.relforcerowsecurity AS secured,
    (r.relkind::pg_catalog.text, r.relname::pg_catalog.text) IN (SELECT own.kind, own.name FROM own) AS ours
  FROM pg_catalog.pg_class r JOIN n ON n.oid = r.relnamespace),
t AS (
  SELECT c.oid, c.relname, c.relkind, c.secured, c.ours, pg_catalog.format('postrider.%I', c.relname) AS named
  FROM c WHERE c.relkind IN ('r', 'p', 'f') OR c.relkind = 'v' AND c.ours),
defaults(rel, col, expr) AS (VALUES
  ('bookmark', 'created_at', 'now()'),
  ('bookmark', 'shard', '0'),
  ('cursor', 'histories', 'ARRAY[(floor(EXTRACT(epoch FROM now())))::bigint]'),
  -- Between two statements of one migration.
  ('cursor', 'histories', '''{0}''::bigint[]'),
  ('cursor', 'histories_from', '''{0/0}''::pg_lsn[]'),
  ('cursor', 'owner_epoch', '0'),
  ('cursor', 'polls_on', 'false'),
  ('cursor', 'shard', '0'),
  ('cursor', 'updated_at', 'now()'),
  ('migration', 'applied_at', 'now()'),
  ('parked', 'acted_declined', 'false'),
  ('parked', 'attempts', '0'),
  ('parked', 'header_names', '''{}''::text[]'),
  ('parked', 'header_values', '''{}''::bytea[]'),
  ('parked', 'parked_at', 'now()'),
  ('parked', 'shard', '0'),
  ('pause', 'requested_at', 'now()'),
  ('pause', 'shard', '0'),
  ('pause', 'unacknowledged', '0'),
  ('repair', 'method', '''''::text'),
  ('repair', 'rows_gone', '0'),
  ('repair', 'rows_published', '0'),
  ('repair', 'rows_total', '0'),
  ('repair', 'rows_uncertain', '0'),
  ('repair', 'shard', '0'),
  ('repair', 'started_at', 'now()'),
  ('repair_page', 'shard', '0'),
  ('replay', 'found', '''{}''::text[]'),
  ('replay', 'published', '0'),
  ('replay', 'refused', '0'),
  ('replay', 'shard', '0'),
  ('replay', 'started_at', 'now()'),
  ('replay', 'updated_at', 'now()')
  UNION ALL SELECT k.rel, k.col, k.expr FROM toolkit_defaults k),
checks(rel, def) AS (VALUES
  ('bookmark', '((dropped_at IS NULL) = (dropped_why IS NULL))'),
  ('bookmark', '(shard >= 0)'),
  ('cursor', '(flush_limit >= watermark)'),
  ('cursor', '((partial_commit_lsn IS NULL) = (partial_ordinal IS NULL))'),
  ('cursor', '(of_mode = ANY (ARRAY[''wal''::text, ''poll''::text, ''auto''::text]))'),
  ('cursor', '((partial_commit_lsn >= watermark) AND (partial_ordinal >= 0))'),
  ('cursor', '(shard >= 0)'),
  ('parked', '(attempts >= 0)'),
  ('parked', '((aggregate_type IS NULL) = (aggregate_id IS NULL))'),
  ('parked', '((aggregate_type IS NOT NULL) OR (NOT blocks))'),
  ('parked', '(cardinality(header_names) = cardinality(header_values))'),
  ('parked', '((overtaken_lsn IS NULL) = (overtaken_ordinal IS NULL))'),
  ('parked', '((requested_value IS NOT NULL) = (NOT (requested_action IS DISTINCT FROM ''replace''::text)))'),
  ('parked', '((resolved_at IS NOT NULL) = (state = ANY (ARRAY[''done''::text, ''skipped''::text])))'),
  ('parked', '(ordinal >= 0)'),
  ('parked', '(shard >= 0)'),
  ('parked', '(requested_action = ANY (ARRAY[''retry''::text, ''skip''::text, ''replace''::text]))'),
  ('parked', '(state = ANY (ARRAY[''waiting''::text, ''behind''::text, ''due''::text, ''dead''::text, ''done''::text, '
             '''skipped''::text]))'),
  ('pause', '(shard >= 0)'),
  ('pause', '(unacknowledged >= 0)'),
  ('repair', '(shard >= 0)'),
  ('repair', '(kind = ANY (ARRAY[''repair''::text, ''backfill''::text]))'),
  ('repair', '(state = ANY (ARRAY[''making''::text, ''publishing''::text, ''done''::text]))'),
  ('repair_page', '(shard >= 0)'),
  ('replay', '(next_ordinal >= 0)'),
  ('replay', '(shard >= 0)'),
  ('replay', '(source = ANY (ARRAY[''wal''::text, ''table''::text]))')
  UNION ALL SELECT k.rel, k.def FROM toolkit_checks k),
predicates(rel, def) AS (VALUES
  ('parked', '(state <> ALL (ARRAY[''done''::text, ''skipped''::text]))'),
  ('parked', '(state = ANY (ARRAY[''done''::text, ''skipped''::text]))'),
  ('parked', '(requested_action IS NOT NULL)')
  UNION ALL SELECT k.rel, k.def FROM toolkit_predicates k),
-- In the order in which the lines can be executed. Without a line: as the object's own DROP.
f(rank, class, object, sub, named, line) AS (
  SELECT 1, 'pg_catalog.pg_policy'::pg_catalog.regclass::pg_catalog.oid, p.oid, 0, NULL::pg_catalog.text,
    NULL::pg_catalog.text
  FROM pg_catalog.pg_policy p JOIN t ON t.oid = p.polrelid
  UNION ALL
  SELECT 1, 0, t.oid, 0, 'row level security on ' || t.named, pg_catalog.format(
    'ALTER TABLE %s NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY;', t.named)
  FROM t WHERE t.secured AND t.ours
  UNION ALL
  SELECT 2, 'pg_catalog.pg_rewrite'::pg_catalog.regclass, r.oid, 0, NULL, NULL
  FROM pg_catalog.pg_rewrite r JOIN t ON t.oid = r.ev_class
  -- The query of a view is a rule of this name.
  WHERE NOT (t.relkind = 'v' AND r.rulename = '_RETURN')
  UNION ALL
  SELECT 3, 'pg_catalog.pg_trigger'::pg_catalog.regclass, g.oid, 0, NULL, NULL
  FROM pg_catalog.pg_trigger g JOIN t ON t.oid = g.tgrelid
  -- Those of a foreign key go with it.
  WHERE NOT (g.tgisinternal AND g.tgconstraint <> 0)
  UNION ALL
  SELECT 4, 'pg_catalog.pg_attrdef'::pg_catalog.regclass, d.oid, 0, NULL,
    pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I DROP DEFAULT;', t.named, a.attname)
  FROM pg_catalog.pg_attrdef d JOIN t ON t.oid = d.adrelid AND t.ours
  JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
  WHERE a.attgenerated = '' AND NOT EXISTS (SELECT FROM defaults k
    WHERE k.rel = t.relname AND k.col = a.attname AND k.expr = pg_catalog.pg_get_expr(d.adbin, d.adrelid))
  UNION ALL
  SELECT 5, 'pg_catalog.pg_constraint'::pg_catalog.regclass, c.oid, 0, NULL,
    pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT %I;', c.conrelid::pg_catalog.regclass, c.conname)
  FROM pg_catalog.pg_constraint c LEFT JOIN t ON t.oid = c.conrelid AND t.ours
  WHERE (c.contype IN ('c', 'f', 'x') AND t.oid IS NOT NULL
      OR c.contype = 'f' AND c.confrelid IN (SELECT o.oid FROM t AS o WHERE o.ours))
    AND NOT EXISTS (SELECT FROM checks k WHERE c.contype = 'c' AND k.rel = t.relname
      AND pg_catalog.pg_get_constraintdef(c.oid) IN ('CHECK (' || k.def || ')', 'CHECK (' || k.def || ') NOT VALID'))
    AND NOT EXISTS (SELECT FROM toolkit_keys k WHERE c.contype = 'f' AND k.rel = t.relname
      AND k.def = pg_catalog.pg_get_constraintdef(c.oid))
  UNION ALL
  SELECT 6, 'pg_catalog.pg_class'::pg_catalog.regclass, i.indexrelid, 0, NULL, NULL
  FROM pg_catalog.pg_index i JOIN t ON t.oid = i.indrelid AND t.ours
  WHERE (i.indexprs IS NOT NULL
      OR i.indpred IS NOT NULL AND NOT EXISTS (SELECT FROM predicates k
        WHERE k.rel = t.relname AND k.def = pg_catalog.pg_get_expr(i.indpred, i.indrelid))
      OR EXISTS (SELECT FROM pg_catalog.pg_opclass o
        WHERE o.oid = ANY (i.indclass::pg_catalog.oid[]) AND o.opcnamespace <> 'pg_catalog'::pg_catalog.regnamespace))
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint c WHERE c.conindid = i.indexrelid AND c.contype = 'x')
  UNION ALL
  SELECT 6, 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass, s.oid, 0, NULL, NULL
  FROM pg_catalog.pg_statistic_ext s JOIN t ON t.oid = s.stxrelid
  UNION ALL
  SELECT 7, 'pg_catalog.pg_class'::pg_catalog.regclass, t.oid, a.attnum::pg_catalog.int4, NULL, CASE
    WHEN a.attgenerated <> '' THEN pg_catalog.format('ALTER TABLE %s DROP COLUMN %I;', t.named, a.attname)
    WHEN b.typnamespace = 'pg_catalog'::pg_catalog.regnamespace THEN pg_catalog.format(
      'ALTER TABLE %s ALTER COLUMN %I TYPE %s;', t.named, a.attname, pg_catalog.format_type(b.oid, y.typtypmod))
    ELSE '' END
  FROM pg_catalog.pg_attribute a JOIN t ON t.oid = a.attrelid AND t.ours JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
  LEFT JOIN pg_catalog.pg_type b ON b.oid = y.typbasetype
  WHERE a.attnum > 0 AND NOT a.attisdropped
    AND (a.attgenerated <> '' OR y.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace)
  UNION ALL
  SELECT 8, 0, i.inhrelid, i.inhseqno, pg_catalog.format('table %s, which inherits from table %s',
      i.inhrelid::pg_catalog.regclass, i.inhparent::pg_catalog.regclass),
    pg_catalog.format(CASE WHEN c.relispartition THEN 'ALTER TABLE %2$s DETACH PARTITION %1$s;'
      ELSE 'ALTER TABLE %1$s NO INHERIT %2$s;' END, i.inhrelid::pg_catalog.regclass, i.inhparent::pg_catalog.regclass)
  FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relkind IN ('r', 'p', 'f')
  WHERE (i.inhrelid IN (SELECT t.oid FROM t WHERE t.ours) OR i.inhparent IN (SELECT t.oid FROM t WHERE t.ours))
    -- The partitions of the SQL toolkit.
    AND NOT (c.relispartition AND i.inhrelid IN (SELECT t.oid FROM t WHERE t.ours)
      AND i.inhparent IN (SELECT t.oid FROM t WHERE t.ours))
  UNION ALL
  -- A table may hold rows that somebody needs.
  SELECT CASE WHEN c.relkind IN ('r', 'p') THEN 10 ELSE 9 END, 'pg_catalog.pg_class'::pg_catalog.regclass, c.oid, 0,
    NULL,
    CASE WHEN c.relkind IN ('r', 'p') THEN pg_catalog.format('ALTER TABLE postrider.%I SET SCHEMA public;', c.relname)
      WHEN c.relkind = 'c' THEN pg_catalog.format('DROP TYPE postrider.%I;', c.relname) END
  FROM c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S', 'c') AND NOT c.ours
  UNION ALL
  SELECT 11, 'pg_catalog.pg_cast'::pg_catalog.regclass, c.oid, 0, NULL, NULL
  FROM pg_catalog.pg_cast c JOIN pg_catalog.pg_type y ON y.oid IN (c.castsource, c.casttarget)
  JOIN n ON n.oid = y.typnamespace
  UNION ALL
  SELECT CASE d.classid WHEN 'pg_catalog.pg_proc'::pg_catalog.regclass THEN 14
      WHEN 'pg_catalog.pg_type'::pg_catalog.regclass THEN 13 ELSE 12 END, d.classid, d.objid, 0, NULL, NULL
  FROM pg_catalog.pg_depend d JOIN n ON n.oid = d.refobjid
  WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.deptype = 'n'
    AND d.classid <> 'pg_catalog.pg_class'::pg_catalog.regclass
    AND NOT (d.classid = 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass AND EXISTS (
      SELECT FROM pg_catalog.pg_statistic_ext s JOIN t ON t.oid = s.stxrelid WHERE s.oid = d.objid))
    -- The function of `setup --notify`. An administrator never calls it, and its body is written again with its owner.
    AND NOT (d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND EXISTS (
      SELECT FROM pg_catalog.pg_proc p WHERE p.oid = d.objid AND p.proname = 'notify_outbox' AND p.pronargs = 0
        AND p.prokind = 'f' AND p.prorettype = 'pg_catalog.trigger'::pg_catalog.regtype))
    -- The functions of the SQL toolkit. Where one of them belongs to another role, its body is written again too.
    AND NOT (d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND EXISTS (
      SELECT FROM pg_catalog.pg_proc p JOIN known_routines k ON k.name = p.proname
        AND k.arguments = pg_catalog.pg_get_function_arguments(p.oid)
        AND k.result = pg_catalog.pg_get_function_result(p.oid)
      WHERE p.oid = d.objid AND p.prokind = 'f')))
SELECT f.rank, coalesce(f.named, o.type || ' ' || o.identity) AS named,
  coalesce(f.line, 'DROP ' || pg_catalog.upper(o.type) || ' ' || o.identity || ';') AS line
FROM f LEFT JOIN LATERAL pg_catalog.pg_identify_object(nullif(f.class, 0), f.object, f.sub) o ON true
WHERE coalesce(f.named, o.identity) IS NOT NULL
