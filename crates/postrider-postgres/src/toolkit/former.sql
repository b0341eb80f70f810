-- Functions of former versions of the SQL toolkit, which an installation drops (sql/toolkit/functions): they are no
-- objects of others, and an uninstallation drops them too. This text stands behind that of objects.sql.
known_routines(name, arguments, result) AS (
  SELECT k.name, k.arguments, k.result FROM toolkit_routines k
  UNION ALL VALUES ('inbox_drain', 'p_name text, p_batch integer DEFAULT 1000', 'integer')),
