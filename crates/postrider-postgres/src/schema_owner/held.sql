-- Who owns schema "postrider" and what is in it, and who else may add objects to it or code to its tables.
WITH n AS (SELECT oid, nspowner, nspacl FROM pg_catalog.pg_namespace WHERE nspname = 'postrider'),
c AS (
  SELECT r.oid, r.relowner, r.relacl, pg_catalog.format('postrider.%I', r.relname) AS named
  FROM pg_catalog.pg_class r JOIN n ON n.oid = r.relnamespace WHERE r.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')),
h(rank, alters, revokes, role) AS (
  SELECT 1, 'SCHEMA postrider', NULL::pg_catalog.text, n.nspowner FROM n
  UNION ALL SELECT 2, 'TABLE ' || c.named, NULL, c.relowner FROM c
  UNION ALL SELECT 3, 'ROUTINE ' || o.identity, NULL, p.proowner
    FROM pg_catalog.pg_proc p JOIN n ON n.oid = p.pronamespace
    CROSS JOIN LATERAL pg_catalog.pg_identify_object(
      'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid, p.oid, 0) o
  UNION ALL SELECT 4, NULL, 'CREATE ON SCHEMA postrider', a.grantee
    FROM n, pg_catalog.aclexplode(n.nspacl) a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
  UNION ALL SELECT 4, NULL, a.privilege_type || ' ON TABLE ' || c.named, a.grantee
    FROM c, pg_catalog.aclexplode(c.relacl) a
    WHERE a.privilege_type IN ('TRIGGER', 'REFERENCES') AND a.grantee <> c.relowner
  UNION ALL SELECT 4, NULL, pg_catalog.format('REFERENCES (%I) ON TABLE %s', b.attname, c.named), a.grantee
    FROM c JOIN pg_catalog.pg_attribute b ON b.attrelid = c.oid AND NOT b.attisdropped,
      pg_catalog.aclexplode(b.attacl) a
    WHERE a.privilege_type = 'REFERENCES' AND a.grantee <> c.relowner)
SELECT h.rank, h.alters, h.revokes, coalesce(r.rolname::pg_catalog.text, '') AS role,
  coalesce(r.rolsuper, false) AS super, coalesce(r.rolname = current_user, false) AS me
FROM h LEFT JOIN pg_catalog.pg_roles r ON r.oid = h.role
