//! The session of maintenance: its time-outs, and the rights that its statements need.
//!
//! Its statements are [`prune`](super::parked::prune) and [`sweep`](super::bookmark::sweep).

use pg_replication::error::SourceError;
use tokio_postgres::Client;

/// `statement_timeout` is shorter than the `lock_timeout` of a control session: a process that takes the pipeline over
/// waits for the lock that a statement of maintenance has on the cursor row, and must get the row in time.
/// `lock_timeout`: maintenance can be repeated later, so it does not wait for a lock of a table.
const LIMITS: &str = "SET statement_timeout = '3s'; SET lock_timeout = '1s'";

/// Limits the statements of this session.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn limit(client: &Client) -> Result<(), SourceError> {
    let failed = |e| SourceError::control("set up the session of maintenance", e);
    client.batch_execute(LIMITS).await.map_err(failed)
}

/// The statements that grant what the session's role lacks, in order. The last part, REPLICATION, is needed only to
/// drop the slot of a bookmark.
const MISSING: &str = "\
SELECT 1, format('GRANT USAGE ON SCHEMA postrider TO %I;', current_user) \
FROM pg_namespace AS n WHERE n.nspname = 'postrider' AND NOT has_schema_privilege(n.oid, 'USAGE') \
UNION ALL SELECT 2, format('GRANT %s ON TABLE postrider.%I TO %I;', \
  string_agg(w.what, ', ' ORDER BY w.place), w.name, current_user) \
FROM (VALUES ('cursor', 'SELECT', 1), ('cursor', 'UPDATE', 2), ('parked', 'SELECT', 1), ('parked', 'UPDATE', 2), \
    ('parked', 'DELETE', 3), ('bookmark', 'SELECT', 1), ('bookmark', 'UPDATE', 2), ('bookmark', 'DELETE', 3)) \
  AS w(name, what, place) \
JOIN pg_namespace AS n ON n.nspname = 'postrider' \
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.name \
WHERE NOT has_table_privilege(c.oid, w.what) GROUP BY w.name \
UNION ALL SELECT 3, CASE WHEN rds.oid IS NULL THEN format('ALTER ROLE %I WITH REPLICATION;', current_user) \
  ELSE format('GRANT rds_replication TO %I;', current_user) END \
FROM pg_roles AS r LEFT JOIN pg_roles AS rds ON rds.rolname = 'rds_replication' \
WHERE r.rolname = current_user AND NOT (r.rolsuper OR r.rolreplication \
  OR rds.oid IS NOT NULL AND pg_has_role(r.oid, rds.oid, 'MEMBER')) \
ORDER BY 1, 2";

/// The step of [`MISSING`] that lets the role replicate.
const REPLICATION: i32 = 3;

/// After a statement of maintenance was refused (SQLSTATE 42501): the statements that grant what the session's role
/// lacks, each with its semicolon. Empty if it lacks nothing any more.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn missing_rights(client: &Client) -> Result<Vec<String>, SourceError> {
    let failed = |e| SourceError::control("read the rights that maintenance needs", e);
    let rows = client.query(MISSING, &[]).await.map_err(failed)?;
    let mut missing = Vec::new();
    for row in rows {
        let (step, line): (i32, String) =
            (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        // A role that only polls has no REPLICATION, and mostly needs none.
        if step != REPLICATION || missing.is_empty() {
            missing.push(line);
        }
    }
    Ok(missing)
}
