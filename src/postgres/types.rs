//! What a column's type is beneath its domains.

/// Joins `base` to an attribute `a`: OID and modifier of its type, and where that is a domain, of the type beneath all
/// domains. The modifier is that of the innermost domain then (`getBaseTypeAndTypmod`).
pub(in crate::postgres) const BASE_TYPE_SQL: &str = "\
CROSS JOIN LATERAL (WITH RECURSIVE r (oid, modifier, depth) AS (\
    SELECT a.atttypid, a.atttypmod, 0 \
    UNION ALL SELECT d.typbasetype, d.typtypmod, r.depth + 1 \
      FROM r JOIN pg_catalog.pg_type d ON d.oid = r.oid WHERE d.typtype = 'd') \
  SELECT r.oid, r.modifier FROM r ORDER BY r.depth DESC LIMIT 1) AS base ";
