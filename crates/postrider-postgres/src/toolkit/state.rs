//! What a database has of the SQL toolkit: the version, the roles, the logs with their numbers of events, the consumer
//! groups with their lag, the inboxes, and the table outboxes.

use super::files::VERSION;
use super::roles::{self, ToolkitRole};
use pg_replication::error::SourceError;
use tokio_postgres::{Client, Row};

/// Which version of the toolkit a database has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolkitVersion {
    /// None: there is no table of versions.
    Missing,
    /// All migrations up to this number; 0 for none.
    Version(u32),
}

impl ToolkitVersion {
    /// The number; 0 without the toolkit.
    pub const fn number(self) -> u32 {
        match self {
            Self::Missing => 0,
            Self::Version(number) => number,
        }
    }

    /// A later version than this program's.
    pub const fn is_newer(self) -> bool {
        self.number() > VERSION
    }
}

/// A log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstalledLog {
    /// The log's name.
    pub name: String,
    /// The table of its events, in schema `postrider_log`.
    pub table: String,
    /// The owner of that table; `None` if there is no such table.
    pub owner: Option<String>,
    /// Events that the log has.
    pub events: i64,
    /// Some role that may read the state of groups may not read the table, and the session may not grant it.
    pub is_closed: bool,
}

/// A consumer group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstalledGroup {
    /// The group's name.
    pub name: String,
    /// The log that it reads.
    pub log: String,
    /// Events of the log that the group has not done.
    pub lag: i64,
}

/// An inbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstalledInbox {
    /// The inbox's name.
    pub name: String,
    /// The schema of its table.
    pub schema: String,
    /// The table of its messages.
    pub table: String,
    /// The owner of that table; `None` if there is no such table.
    pub owner: Option<String>,
    /// The table was created by the toolkit.
    pub is_managed: bool,
    /// Some role that may read the list of inboxes may not read the table, and the session may not grant it.
    pub is_closed: bool,
    /// Messages that the toolkit has counted; 0 for a table that is not the toolkit's.
    pub messages: i64,
    /// Those of them that are not processed.
    pub open: i64,
    /// The views, in schema `postrider_inbox`.
    pub views: Vec<String>,
}

/// A table outbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstalledOutbox {
    /// The outbox's name.
    pub name: String,
    /// The table whose changes it has, with its schema, as it was named when the outbox was enabled.
    pub source: String,
    /// The table of its events, in schema `postrider_outbox`.
    pub table: String,
    /// The owner of that table; `None` if there is no such table.
    pub owner: Option<String>,
    /// Some role that may read the list of outboxes may not read the table, and the session may not grant it.
    pub is_closed: bool,
    /// Its tables, views and functions in schema `postrider_outbox`: relations by name, functions as `function NAME()`.
    pub objects: Vec<String>,
}

/// What a database has of the toolkit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolkitFacts {
    /// The database.
    pub database: String,
    /// The role of the session.
    pub role: String,
    /// The session's role may create schemas.
    pub creates: bool,
    /// Schema `postrider` exists.
    pub has_schema: bool,
    /// The version.
    pub version: ToolkitVersion,
    /// The roles that have rights of a kind.
    pub roles: Vec<ToolkitRole>,
}

/// Reads the version from the table of versions, whose name is looked up in the catalog.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_version(client: &Client) -> Result<ToolkitVersion, SourceError> {
    let failed = |e| SourceError::control("read the version of the SQL toolkit", e);
    if !exists(client, "toolkit_migration").await? {
        return Ok(ToolkitVersion::Missing);
    }
    let sql = "SELECT coalesce(pg_catalog.max(number), 0) FROM postrider.toolkit_migration";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let number: i32 = row.try_get(0).map_err(failed)?;
    Ok(ToolkitVersion::Version(u32::try_from(number).unwrap_or(0)))
}

/// Reads what can be read without counting events.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read(client: &Client) -> Result<ToolkitFacts, SourceError> {
    let failed = |e| SourceError::control("read what the database has of the SQL toolkit", e);
    let sql = "SELECT pg_catalog.current_database()::pg_catalog.text, current_user::pg_catalog.text, \
                 pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), \
                 EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'postrider')";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let version = read_version(client).await?;
    let roles = roles::read(client).await?;
    let read = || {
        Ok(ToolkitFacts {
            database: row.try_get(0)?,
            role: row.try_get(1)?,
            creates: row.try_get(2)?,
            has_schema: row.try_get(3)?,
            version,
            roles,
        })
    };
    read().map_err(failed)
}

/// The logs, by name.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn logs(client: &Client) -> Result<Vec<InstalledLog>, SourceError> {
    let failed = |e| SourceError::control("list the event logs", e);
    if !(exists(client, "event_log").await? && exists(client, "event_log_head").await?) {
        return Ok(Vec::new());
    }
    let log = |row: &Row| {
        Ok(InstalledLog {
            name: row.try_get(0)?,
            table: row.try_get(1)?,
            owner: row.try_get(2)?,
            events: row.try_get(3)?,
            is_closed: row.try_get(4)?,
        })
    };
    let rows = client.query(LOGS_SQL, &[]).await.map_err(failed)?;
    rows.iter().map(log).collect::<Result<_, _>>().map_err(failed)
}

const LOGS_SQL: &str = "\
SELECT e.name, e.table_name::pg_catalog.text, pg_catalog.pg_get_userbyid(t.relowner)::pg_catalog.text, \
  greatest(coalesce((SELECT pg_catalog.max(h.last_seq) FROM postrider.event_log_head h WHERE h.log = e.name), 0) \
    - e.first_seq + 1, 0), \
  t.oid IS NOT NULL AND NOT pg_catalog.pg_has_role(t.relowner, 'USAGE') AND EXISTS ( \
    SELECT FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a \
    WHERE c.oid = pg_catalog.to_regclass('postrider.event_log') AND a.privilege_type = 'SELECT' \
      AND NOT CASE WHEN a.grantee = 0 THEN pg_catalog.has_table_privilege('public', t.oid, 'SELECT') \
        ELSE pg_catalog.has_table_privilege(a.grantee, t.oid, 'SELECT') END) \
FROM postrider.event_log e LEFT JOIN (pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n \
  ON n.oid = t.relnamespace AND n.nspname = 'postrider_log') ON t.relname = e.table_name ORDER BY e.name";

/// The consumer groups with their lag, by name. The lag is counted as the view `consumer_group_lag` counts it: the
/// events that a hash partition ever had, without those that the group has passed.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn groups(client: &Client) -> Result<Vec<InstalledGroup>, SourceError> {
    let failed = |e| SourceError::control("list the consumer groups", e);
    if !exists(client, "consumer_group_state").await? {
        return Ok(Vec::new());
    }
    let group = |row: &Row| {
        Ok(InstalledGroup { name: row.try_get(0)?, log: row.try_get(1)?, lag: row.try_get(2)? })
    };
    let rows = client.query(GROUPS_SQL, &[]).await.map_err(failed)?;
    rows.iter().map(group).collect::<Result<_, _>>().map_err(failed)
}

const GROUPS_SQL: &str = "\
SELECT g.name, g.log, coalesce((SELECT pg_catalog.sum(h.counts[p.part + 1] - s.passed) \
    FROM postrider.consumer_group_partition p \
    CROSS JOIN LATERAL (SELECT x.passed FROM postrider.consumer_group_state x WHERE x.group_name = p.group_name \
      AND x.part = p.part ORDER BY x.n DESC LIMIT 1) s \
    WHERE p.group_name = g.name), 0)::pg_catalog.int8 \
FROM postrider.consumer_group g CROSS JOIN LATERAL (SELECT x.counts FROM postrider.event_log_head x \
  WHERE x.log = g.log ORDER BY x.last_seq DESC LIMIT 1) h ORDER BY g.name";

/// The inboxes, by name.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn inboxes(client: &Client) -> Result<Vec<InstalledInbox>, SourceError> {
    let failed = |e| SourceError::control("list the inboxes", e);
    if !(exists(client, "inbox").await? && exists(client, "inbox_delta").await?) {
        return Ok(Vec::new());
    }
    let inbox = |row: &Row| {
        Ok(InstalledInbox {
            name: row.try_get(0)?,
            schema: row.try_get(1)?,
            table: row.try_get(2)?,
            owner: row.try_get(3)?,
            is_managed: row.try_get(4)?,
            is_closed: row.try_get(5)?,
            messages: row.try_get(6)?,
            open: row.try_get(7)?,
            views: row.try_get(8)?,
        })
    };
    let rows = client.query(INBOXES_SQL, &[]).await.map_err(failed)?;
    rows.iter().map(inbox).collect::<Result<_, _>>().map_err(failed)
}

const INBOXES_SQL: &str = "\
SELECT i.name, i.table_schema::pg_catalog.text, i.table_name::pg_catalog.text, \
  pg_catalog.pg_get_userbyid(t.relowner)::pg_catalog.text, i.is_managed, \
  i.is_managed AND t.oid IS NOT NULL AND NOT pg_catalog.pg_has_role(t.relowner, 'USAGE') AND EXISTS ( \
    SELECT FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a \
    WHERE c.oid = pg_catalog.to_regclass('postrider.inbox') AND a.privilege_type = 'SELECT' \
      AND NOT CASE WHEN a.grantee = 0 THEN pg_catalog.has_table_privilege('public', t.oid, 'SELECT') \
        ELSE pg_catalog.has_table_privilege(a.grantee, t.oid, 'SELECT') END), \
  d.messages, d.open, \
  ARRAY['pending_' || i.name, 'dlq_' || i.name, 'stats_' || i.name] || ARRAY( \
    SELECT 'tier_' || i.name || '_' || k.tier FROM pg_catalog.jsonb_object_keys(i.tiers) k(tier)) \
FROM postrider.inbox i LEFT JOIN (pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace) \
  ON n.nspname = i.table_schema AND t.relname = i.table_name \
CROSS JOIN LATERAL ( \
  SELECT coalesce(pg_catalog.sum(x.pending + x.dead + x.processed), 0)::pg_catalog.int8 AS messages, \
    coalesce(pg_catalog.sum(x.pending + x.dead), 0)::pg_catalog.int8 AS open \
  FROM postrider.inbox_delta x WHERE x.inbox = i.name) d ORDER BY i.name";

/// The table outboxes, by name.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn outboxes(client: &Client) -> Result<Vec<InstalledOutbox>, SourceError> {
    let failed = |e| SourceError::control("list the table outboxes", e);
    if !exists(client, "table_outbox").await? {
        return Ok(Vec::new());
    }
    let outbox = |row: &Row| {
        Ok(InstalledOutbox {
            name: row.try_get(0)?,
            source: row.try_get(1)?,
            table: row.try_get(2)?,
            owner: row.try_get(3)?,
            is_closed: row.try_get(4)?,
            objects: row.try_get(5)?,
        })
    };
    let rows = client.query(OUTBOXES_SQL, &[]).await.map_err(failed)?;
    rows.iter().map(outbox).collect::<Result<_, _>>().map_err(failed)
}

const OUTBOXES_SQL: &str = "\
SELECT o.name, pg_catalog.format('%I.%I', o.table_schema, o.table_name), o.outbox_table::pg_catalog.text, \
  pg_catalog.pg_get_userbyid(t.relowner)::pg_catalog.text, \
  t.oid IS NOT NULL AND NOT pg_catalog.pg_has_role(t.relowner, 'USAGE') AND EXISTS ( \
    SELECT FROM pg_catalog.pg_class c CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) a \
    WHERE c.oid = pg_catalog.to_regclass('postrider.table_outbox') AND a.privilege_type = 'SELECT' \
      AND NOT CASE WHEN a.grantee = 0 THEN pg_catalog.has_table_privilege('public', t.oid, 'SELECT') \
        ELSE pg_catalog.has_table_privilege(a.grantee, t.oid, 'SELECT') END), \
  ARRAY[o.outbox_table, o.delta_table, o.latest_view]::pg_catalog.text[] || ARRAY( \
    SELECT 'function ' || i.identity FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n \
      ON n.oid = p.pronamespace AND n.nspname = 'postrider_outbox' \
    CROSS JOIN LATERAL pg_catalog.pg_identify_object('pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 0) i \
    WHERE p.proname = o.function_name) \
FROM postrider.table_outbox o LEFT JOIN (pg_catalog.pg_class t JOIN pg_catalog.pg_namespace n \
  ON n.oid = t.relnamespace AND n.nspname = 'postrider_outbox') ON t.relname = o.outbox_table ORDER BY o.name";

/// Whether schema `postrider` has a table of this name.
async fn exists(client: &Client, table: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control("look for the tables of the SQL toolkit", e);
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
               ON n.oid = c.relnamespace WHERE n.nspname = 'postrider' AND c.relkind = 'r' \
                 AND c.relname = $1::pg_catalog.text)";
    let row = client.query_one(sql, &[&table]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}
