//! The rights that retention needs, and what fixes an error of its statements.

use super::partition::is_waiting;
use super::{RetentionAction, RetentionRule};
use crate::names::{TableName, literal};
use pg_replication::error::{SourceError, SqlState};
use tokio_postgres::{Client, Row};

/// How the transaction is found that a statement has waited for.
const WAITS: &str = "a transaction that is open in the database is waited for, and this query finds it: SELECT pid, \
                     xact_start, state, query FROM pg_stat_activity WHERE xact_start IS NOT NULL ORDER BY xact_start; \
                     the next pass continues";

/// A right that retention needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetentionRight {
    /// `DELETE on table public.outbox`
    pub what: String,
    /// The statements that grant what is missing of it.
    pub grant: String,
    /// The statements that revoke what was granted to this role itself; `None` if nothing was.
    pub revoke: Option<String>,
    /// The role has it.
    pub held: bool,
    /// It is membership in a superuser, which would make a superuser of the role: no program may grant it. `grant`
    /// gives the table another owner.
    pub of_superuser: bool,
}

/// The role, the version of the server, and the relation that is named by a literal; with `{leaves}` also its
/// partitions.
const ROLE: &str = "\
WITH r AS (SELECT (SELECT p.oid FROM pg_roles AS p WHERE p.rolname = {role}) AS oid, {role}::text AS name, \
  current_setting('server_version_num')::int4 >= 160000 AS has_options), \
t AS (SELECT to_regclass({table})::oid AS relid \
  UNION SELECT l.relid::oid FROM pg_partition_tree(to_regclass({table})) AS l WHERE {leaves}) ";

/// The rights on the rows of these relations. `{kept}`: rights that the role has for another reason,
/// which are not revoked.
const OF_TABLE: &str = "\
SELECT format('%s on table %I.%I', string_agg(w.what, ', ' ORDER BY w.what DESC), n.nspname, c.relname), \
  CASE WHEN bool_and(u.may_use) THEN '' ELSE format('GRANT USAGE ON SCHEMA %I TO %I; ', n.nspname, r.name) END \
    || format('GRANT %s ON TABLE %I.%I TO %I;', coalesce( \
      string_agg(w.what, ', ' ORDER BY w.what DESC) FILTER (WHERE NOT h.is_held), \
      string_agg(w.what, ', ' ORDER BY w.what DESC)), n.nspname, c.relname, r.name), \
  format('REVOKE ' || string_agg(w.what, ', ' ORDER BY w.what DESC) FILTER (WHERE h.is_direct) \
    || ' ON TABLE %I.%I FROM %I;', n.nspname, c.relname, r.name), \
  bool_and(h.is_held AND u.may_use), false \
FROM r CROSS JOIN t JOIN pg_class AS c ON c.oid = t.relid JOIN pg_namespace AS n ON n.oid = c.relnamespace \
CROSS JOIN unnest({rights}) AS w(what) \
CROSS JOIN LATERAL (SELECT coalesce(has_schema_privilege(r.oid, n.oid, 'USAGE'), false) AS may_use) AS u \
CROSS JOIN LATERAL (SELECT coalesce(has_table_privilege(r.oid, c.oid, w.what), false) AS is_held, \
  w.what <> ALL ({kept}) AND EXISTS (SELECT FROM aclexplode(c.relacl) AS a \
    WHERE a.grantee = r.oid AND a.privilege_type = w.what) AS is_direct) AS h \
GROUP BY n.nspname, c.relname, r.name ORDER BY n.nspname, c.relname";

/// Membership in the role that owns a relation. With `{creates}` that role creates partitions in the schema.
const OF_OWNER: &str = "\
SELECT format('membership in role %I, which owns table %I.%I', o.rolname, n.nspname, c.relname), \
  CASE WHEN m.may_create THEN '' ELSE format('GRANT %s ON SCHEMA %I TO %I; ', \
      CASE WHEN {creates} THEN 'USAGE, CREATE' ELSE 'USAGE' END, n.nspname, o.rolname) END \
    || CASE WHEN o.rolsuper THEN format('CREATE ROLE %I NOLOGIN; GRANT USAGE, CREATE ON SCHEMA %I TO %1$I; ', \
        c.relname || '_owner', n.nspname) \
      || (SELECT string_agg( \
            format('ALTER TABLE %I.%I OWNER TO %I; ', s.nspname, p.relname, c.relname || '_owner'), '') \
          FROM t JOIN pg_class AS p ON p.oid = t.relid JOIN pg_namespace AS s ON s.oid = p.relnamespace) ELSE '' END \
    || format('GRANT %I TO %I', CASE WHEN o.rolsuper THEN c.relname || '_owner' ELSE o.rolname END, r.name) \
    || CASE WHEN r.has_options THEN ' WITH INHERIT TRUE, SET TRUE;' ELSE ';' END, \
  (SELECT string_agg(format('REVOKE %I FROM %I', o.rolname, r.name) || CASE WHEN r.has_options \
      THEN format(' GRANTED BY %I', pg_get_userbyid(g.grantor)) ELSE '' END || ';', ' ') \
    FROM pg_auth_members AS g WHERE g.roleid = o.oid AND g.member = r.oid), \
  coalesce(pg_has_role(r.oid, o.oid, 'USAGE') \
    AND pg_has_role(r.oid, o.oid, CASE WHEN r.has_options THEN 'SET' ELSE 'MEMBER' END), false) AND m.may_create, \
  o.rolsuper \
FROM r CROSS JOIN pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
JOIN pg_roles AS o ON o.oid = c.relowner \
CROSS JOIN LATERAL (SELECT has_schema_privilege(o.oid, n.oid, 'USAGE') \
  AND (NOT {creates} OR has_schema_privilege(o.oid, n.oid, 'CREATE')) AS may_create) AS m \
WHERE c.oid = to_regclass({table})";

impl RetentionRule {
    /// The statements that grant what the session's role lacks, each with its semicolon; empty if it lacks nothing.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn missing_rights(&self, client: &Client) -> Result<Vec<String>, SourceError> {
        let rights = self.rights(client, None).await?;
        Ok(rights.into_iter().filter(|right| !right.held).map(|right| right.grant).collect())
    }

    /// The rights that `role` needs, or the session's role. A table that does not exist needs none.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn rights(
        &self,
        client: &Client,
        role: Option<&str>,
    ) -> Result<Vec<RetentionRight>, SourceError> {
        let failed = |e| SourceError::control("read the rights that retention needs", e);
        let mut rights = Vec::new();
        for sql in self.rights_sql(client, role).await? {
            for row in client.query(&sql, &[]).await.map_err(failed)? {
                rights.push(right(&row).map_err(failed)?);
            }
        }
        Ok(rights)
    }

    async fn rights_sql(
        &self,
        client: &Client,
        role: Option<&str>,
    ) -> Result<Vec<String>, SourceError> {
        let failed = |e| SourceError::control("read whether the outbox is partitioned", e);
        let table = &self.table.table;
        let sql =
            "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind = 'p')";
        let row = client.query_one(sql, &[&table.to_string()]).await.map_err(failed)?;
        let is_partitioned: bool = row.try_get(0).map_err(failed)?;
        let role = role.map_or_else(|| "current_user".to_owned(), literal);
        let about = |sql: &str, table: &TableName, leaves: &str| {
            let sql = format!("{ROLE}{sql}").replace("{leaves}", leaves);
            sql.replace("{role}", &role).replace("{table}", &literal(&table.to_string()))
        };
        let of = |table: &TableName, rights: &str, kept: &str, leaves: &str| {
            about(&OF_TABLE.replace("{rights}", rights).replace("{kept}", kept), table, leaves)
        };
        let settings = &self.settings;
        let creates = if settings.width.is_some() { "true" } else { "false" };
        let owner =
            |table: &TableName| about(&OF_OWNER.replace("{creates}", creates), table, "true");
        let mut queries = Vec::new();
        if let Some(events) = &settings.processed_events {
            queries.push(of(events, "ARRAY['SELECT', 'DELETE', 'UPDATE']", "ARRAY['']", "true"));
        }
        if settings.keep.is_none() {
            return Ok(queries);
        }
        let moves = is_partitioned && settings.action != RetentionAction::Delete;
        if moves || is_partitioned && settings.width.is_some() {
            queries.push(owner(table));
        }
        if !moves {
            // Repair, replay and check read the table too.
            queries.push(of(table, "ARRAY['SELECT', 'DELETE']", "ARRAY['SELECT']", "true"));
        }
        if let Some(archive) = &settings.archive {
            let keeps = moves || settings.archive_keep.is_some() || settings.width.is_some();
            queries.push(if keeps {
                owner(archive)
            } else {
                of(archive, "ARRAY['INSERT']", "ARRAY['']", "false")
            });
        }
        Ok(queries)
    }

    /// What fixes an error of these statements, by its SQLSTATE; `None` if that is not known. `missing`: the statements
    /// that grant missing rights.
    pub fn hint(&self, error: &SourceError, missing: &[String]) -> Option<String> {
        let state = error.sqlstate()?;
        if is_waiting(error) {
            return Some(WAITS.to_owned());
        }
        if state == SqlState::INSUFFICIENT_PRIVILEGE {
            return (!missing.is_empty()).then(|| missing.join(" "));
        }
        let table = &self.table.table;
        match state.as_str() {
            // A row is referenced by another table.
            "23503" => Some(format!(
                "another table references rows of {table}: let its foreign key end with ON DELETE CASCADE, or remove \
                 retention"
            )),
            // A DELETE of a table without a replica identity, which a publication publishes deletes of.
            "55000" => Some(format!(
                "a publication publishes the deletes of {table}, which has no replica identity: ALTER PUBLICATION ... \
                 SET (publish = 'insert');"
            )),
            // Bounds that overlap those of another partition.
            "42P17" => Some(
                "another partition has these bounds: detach it, or move its rows, and let the next pass continue"
                    .to_owned(),
            ),
            // Columns or constraints of the archive differ.
            "42804" | "42P16" | "42830" => Some(format!(
                "the archive needs the columns of {table} with the same types and NOT NULLs, and no others"
            )),
            _ => None,
        }
    }
}

fn right(row: &Row) -> Result<RetentionRight, tokio_postgres::Error> {
    Ok(RetentionRight {
        what: row.try_get(0)?,
        grant: row.try_get(1)?,
        revoke: row.try_get(2)?,
        held: row.try_get(3)?,
        of_superuser: row.try_get(4)?,
    })
}
