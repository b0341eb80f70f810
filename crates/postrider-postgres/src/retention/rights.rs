//! The rights that retention needs, and what fixes an error of its statements.

use super::partition::is_waiting;
use super::{RetentionAction, RetentionRule};
use crate::names::{TableName, literal};
use pg_replication::error::{SourceError, SqlState};
use tokio_postgres::Client;

/// How the transaction is found that a statement has waited for.
const WAITS: &str = "a transaction that is open in the database is waited for, and this query finds it: SELECT pid, \
                     xact_start, state, query FROM pg_stat_activity WHERE backend_xmin IS NOT NULL ORDER BY \
                     xact_start; the next pass continues";

/// The rights on each row of a relation that is named by `$1` as a literal, and on those of its partitions.
const OF_TABLE: &str = "\
SELECT format('GRANT %s ON TABLE %I.%I TO %I;', string_agg(w.what, ', ' ORDER BY w.what DESC), n.nspname, c.relname, \
  current_user) \
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace CROSS JOIN unnest({rights}) AS w(what) \
WHERE (c.oid = to_regclass({table}) OR {leaves} AND c.oid IN (SELECT t.relid \
    FROM pg_partition_tree(to_regclass({table})) AS t)) \
  AND NOT has_table_privilege(c.oid, w.what) GROUP BY n.nspname, c.relname";

/// Membership in the role that owns a table.
const OF_OWNER: &str = "\
SELECT format('GRANT %I TO %I;', r.rolname, current_user) FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner \
WHERE c.oid = to_regclass({table}) AND NOT pg_has_role(r.oid, 'USAGE')";

impl RetentionRule {
    /// The statements that grant what the session's role lacks, each with its semicolon; empty if it lacks nothing.
    ///
    /// # Errors
    /// An error of the server or of the connection.
    pub async fn missing_rights(&self, client: &Client) -> Result<Vec<String>, SourceError> {
        let failed = |e| SourceError::control("read the rights that retention needs", e);
        let queries = self.rights_sql(client).await?;
        let mut missing = Vec::new();
        for sql in queries {
            for row in client.query(&sql, &[]).await.map_err(failed)? {
                missing.push(row.try_get(0).map_err(failed)?);
            }
        }
        Ok(missing)
    }

    async fn rights_sql(&self, client: &Client) -> Result<Vec<String>, SourceError> {
        let failed = |e| SourceError::control("read whether the outbox is partitioned", e);
        let table = &self.table.table;
        let sql =
            "SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass($1) AND relkind = 'p')";
        let row = client.query_one(sql, &[&table.to_string()]).await.map_err(failed)?;
        let is_partitioned: bool = row.try_get(0).map_err(failed)?;
        let of = |table: &TableName, rights: &str, leaves: bool| {
            let leaves = if leaves { "true" } else { "false" };
            OF_TABLE
                .replace("{rights}", rights)
                .replace("{table}", &literal(&table.to_string()))
                .replace("{leaves}", leaves)
        };
        let owner = |table: &TableName| OF_OWNER.replace("{table}", &literal(&table.to_string()));
        let settings = &self.settings;
        let mut queries = Vec::new();
        if let Some(events) = &settings.processed_events {
            queries.push(of(events, "ARRAY['SELECT', 'DELETE', 'UPDATE']", true));
        }
        if settings.keep.is_none() {
            return Ok(queries);
        }
        let moves = is_partitioned && settings.action != RetentionAction::Delete;
        if moves || is_partitioned && settings.width.is_some() {
            queries.push(owner(table));
        }
        if !moves {
            queries.push(of(table, "ARRAY['SELECT', 'DELETE']", true));
        }
        if let Some(archive) = &settings.archive {
            let keeps = moves || settings.archive_keep.is_some() || settings.width.is_some();
            queries.push(if keeps {
                owner(archive)
            } else {
                of(archive, "ARRAY['INSERT']", false)
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
