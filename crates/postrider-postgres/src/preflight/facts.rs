//! Facts that only `check` reads: settings, slots and walsenders, roles, and the objects related to the outbox table.
//!
//! Every statement is a read-only transaction of its own, so that one that is refused does not affect the others. The
//! rules in the other files of this module interpret the facts.

use crate::names::{OWN_TABLES, TableName};
use pg_replication::error::SourceError;
use std::collections::BTreeMap;
use tokio_postgres::{Client, Row};

/// The result of a statement here.
type Read<T> = Result<T, SourceError>;

/// The relevant settings of the server, by name; values in their base units.
const SETTINGS: &[&str] = &[
    "hot_standby_feedback",
    "idle_replication_slot_timeout",
    "logical_decoding_work_mem",
    "max_connections",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_senders",
    "sync_replication_slots",
    "synchronized_standby_slots",
    "synchronous_standby_names",
    "wal_sender_timeout",
];

/// Reads [`SETTINGS`]; those that a version lacks are not in the map.
pub(super) async fn settings(client: &Client) -> Read<BTreeMap<String, String>> {
    let failed = |e| SourceError::control("read the server's settings", e);
    let names: Vec<&str> = SETTINGS.to_vec();
    let sql = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = ANY($1)";
    let rows = client.query(sql, &[&names]).await.map_err(failed)?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect::<Result<_, _>>()
        .map_err(failed)
}

/// A slot of any kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AnySlot {
    pub(super) name: String,
    pub(super) logical: bool,
    pub(super) active: bool,
    /// The slot has an `xmin`: its standby sends feedback.
    pub(super) feedback: bool,
    /// Bytes of WAL that the slot retains; `None` on a standby, and if nothing is reserved.
    pub(super) retained: Option<i64>,
}

/// Every slot of the cluster.
pub(super) async fn slots(client: &Client) -> Read<Vec<AnySlot>> {
    let failed = |e| SourceError::control("list the replication slots", e);
    let sql = "SELECT slot_name::text, slot_type = 'logical', active, xmin IS NOT NULL, \
                 CASE WHEN pg_is_in_recovery() THEN NULL \
                      ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END \
               FROM pg_catalog.pg_replication_slots ORDER BY slot_name";
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    let slot = |row: &Row| {
        Ok(AnySlot {
            name: row.try_get(0)?,
            logical: row.try_get(1)?,
            active: row.try_get(2)?,
            feedback: row.try_get(3)?,
            retained: row.try_get(4)?,
        })
    };
    rows.iter().map(slot).collect::<Result<_, _>>().map_err(failed)
}

/// Facts about sessions, transactions, the clock, and this session.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sessions {
    /// Active walsenders.
    pub(super) walsenders: i64,
    /// Walsenders of standbys that the role may see, by `application_name`. One that only logged in does not count yet.
    pub(super) standbys: Vec<String>,
    /// The TLS version of this session.
    pub(super) tls: Option<String>,
    /// The server's clock, in seconds since 1970.
    pub(super) clock: f64,
    /// Prepared transactions older than an hour: name and database.
    pub(super) prepared: Vec<(String, String)>,
    /// Backends that have been writing in one transaction for more than an hour.
    pub(super) long: Vec<i32>,
    /// Functions that write logical messages and may be executed by PUBLIC, as SQL names them.
    pub(super) emit: Vec<String>,
}

/// Reads [`Sessions`].
pub(super) async fn sessions(client: &Client) -> Read<Sessions> {
    let failed = |e| SourceError::control("read the lists of sessions", e);
    let sql = "SELECT (SELECT count(*) FROM pg_stat_get_wal_senders()), \
        (SELECT coalesce(array_agg(coalesce(r.application_name, '')), '{}') \
           FROM pg_catalog.pg_stat_replication r WHERE r.state IN ('catchup', 'streaming') \
             AND r.pid NOT IN (SELECT s.active_pid \
             FROM pg_catalog.pg_replication_slots s \
             WHERE s.slot_type = 'logical' AND s.active_pid IS NOT NULL)), \
        (SELECT t.version FROM pg_catalog.pg_stat_ssl t WHERE t.pid = pg_backend_pid() AND t.ssl), \
        date_part('epoch', clock_timestamp()), \
        (SELECT coalesce(array_agg(p.gid ORDER BY p.gid), '{}') FROM pg_catalog.pg_prepared_xacts p \
           WHERE p.prepared < now() - interval '1 hour'), \
        (SELECT coalesce(array_agg(p.database::text ORDER BY p.gid), '{}') \
           FROM pg_catalog.pg_prepared_xacts p WHERE p.prepared < now() - interval '1 hour'), \
        (SELECT coalesce(array_agg(a.pid), '{}') FROM pg_catalog.pg_stat_activity a \
           WHERE a.backend_xid IS NOT NULL AND a.xact_start < now() - interval '1 hour'), \
        (SELECT coalesce(array_agg(p.oid::regprocedure::text), '{}') FROM pg_catalog.pg_proc p \
           WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = 'pg_logical_emit_message' \
           AND has_function_privilege('public', p.oid, 'EXECUTE'))";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let read = || {
        let (gids, databases): (Vec<String>, Vec<String>) = (row.try_get(4)?, row.try_get(5)?);
        Ok(Sessions {
            walsenders: row.try_get(0)?,
            standbys: row.try_get(1)?,
            tls: row.try_get(2)?,
            clock: row.try_get(3)?,
            prepared: gids.into_iter().zip(databases).collect(),
            long: row.try_get(6)?,
            emit: row.try_get(7)?,
        })
    };
    read().map_err(failed)
}

/// A role and its attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "attributes of a role")]
pub(super) struct RoleFacts {
    pub(super) name: String,
    pub(super) superuser: bool,
    /// The role was created by `initdb`, so it cannot be made an ordinary role.
    pub(super) bootstrap: bool,
    /// The role has REPLICATION, is a superuser, or has the equivalent right of a managed service.
    pub(super) replication: bool,
    pub(super) can_login: bool,
    pub(super) bypasses_rls: bool,
    /// The role's connection limit; negative for none.
    pub(super) connections: i32,
    pub(super) valid_until: Option<String>,
    pub(super) expired: bool,
    pub(super) expires_soon: bool,
    pub(super) may_connect: bool,
    /// The role may create schemas and publications in the database.
    pub(super) may_create: bool,
    /// The service has the role `rds_replication`.
    pub(super) rds: bool,
    /// `default_transaction_read_only` as it is set for the role or the database.
    pub(super) read_only: bool,
}

/// The role `name`; `None` if it does not exist.
pub(super) async fn role(client: &Client, name: &str) -> Read<Option<RoleFacts>> {
    let failed = |e| SourceError::control(format!("read the rights of role {name:?}"), e);
    let sql = "SELECT r.rolsuper, r.oid = 10, \
          r.rolreplication OR r.rolsuper OR EXISTS (SELECT FROM pg_catalog.pg_roles s \
            WHERE s.rolname = 'rds_replication' AND pg_has_role(r.oid, s.oid, 'MEMBER')), \
          r.rolcanlogin, r.rolbypassrls OR r.rolsuper, r.rolconnlimit, r.rolvaliduntil::text, \
          coalesce(r.rolvaliduntil < now(), false), \
          coalesce(r.rolvaliduntil < now() + interval '30 days', false), \
          has_database_privilege(r.oid, current_database(), 'CONNECT'), \
          has_database_privilege(r.oid, current_database(), 'CREATE'), \
          EXISTS (SELECT FROM pg_catalog.pg_roles s WHERE s.rolname = 'rds_replication'), \
          coalesce((SELECT split_part(c.setting, '=', 2) IN ('on', 'true', 'yes', '1') \
            FROM pg_catalog.pg_db_role_setting g \
            JOIN pg_catalog.pg_database d ON d.datname = current_database() \
            CROSS JOIN LATERAL unnest(g.setconfig) c(setting) \
            WHERE g.setrole IN (0, r.oid) AND g.setdatabase IN (0, d.oid) \
              AND c.setting LIKE 'default\\_transaction\\_read\\_only=%' \
            ORDER BY g.setrole <> 0 DESC, g.setdatabase <> 0 DESC LIMIT 1), false) \
        FROM pg_catalog.pg_roles r WHERE r.rolname = $1";
    let row = client.query_opt(sql, &[&name]).await.map_err(failed)?;
    let facts = |row: Row| {
        Ok(RoleFacts {
            name: name.to_owned(),
            superuser: row.try_get(0)?,
            bootstrap: row.try_get(1)?,
            replication: row.try_get(2)?,
            can_login: row.try_get(3)?,
            bypasses_rls: row.try_get(4)?,
            connections: row.try_get(5)?,
            valid_until: row.try_get(6)?,
            expired: row.try_get(7)?,
            expires_soon: row.try_get(8)?,
            may_connect: row.try_get(9)?,
            may_create: row.try_get(10)?,
            rds: row.try_get(11)?,
            read_only: row.try_get(12)?,
        })
    };
    row.map(facts).transpose().map_err(failed)
}

/// Objects and rights related to the outbox table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts of a table")]
pub(super) struct TableSurroundings {
    /// The kind of relation: `table`, `view` …
    pub(super) kind: String,
    /// Row level security is on.
    pub(super) rls: bool,
    /// A policy lets the relay's role read every row.
    pub(super) rls_open: bool,
    /// DELETE and UPDATE can be published.
    pub(super) has_identity: bool,
    /// The root of the partitioned table that the outbox table is a partition of.
    pub(super) root: Option<TableName>,
    /// Tables that inherit from the outbox table, and are not partitions.
    pub(super) children: Vec<TableName>,
    /// Enabled BEFORE INSERT row triggers, without those of partitions.
    pub(super) triggers: Vec<String>,
    /// Rules ON INSERT DO INSTEAD.
    pub(super) rules: Vec<String>,
    /// The role may read the table.
    pub(super) readable: bool,
    /// The role may set the status of the table's rows, and delete them.
    pub(super) markable: bool,
    pub(super) deletable: bool,
    /// The role may insert into the dead-letter table; `None` if there is none.
    pub(super) buriable: Option<bool>,
    /// The role of the session owns the table.
    pub(super) owned: bool,
    /// The table of a view, if the view has only one.
    pub(super) beneath: Option<TableName>,
}

/// Reads [`TableSurroundings`] for the table with this OID, as `role` (which exists) sees it.
pub(super) async fn around(
    client: &Client,
    oid: u32,
    role: &str,
    dlq: Option<&TableName>,
) -> Read<TableSurroundings> {
    let failed = |e| SourceError::control("read the objects related to the outbox table", e);
    let dlq = dlq.map(ToString::to_string);
    let row = client.query_one(AROUND, &[&oid, &role, &dlq]).await.map_err(failed)?;
    let pair = |schema: Option<String>, name: Option<String>| Some(TableName::new(schema?, name?));
    let read = || {
        let (schemas, names): (Vec<String>, Vec<String>) = (row.try_get(6)?, row.try_get(7)?);
        Ok(TableSurroundings {
            kind: row.try_get(0)?,
            rls: row.try_get(1)?,
            rls_open: row.try_get(2)?,
            has_identity: row.try_get(3)?,
            root: pair(row.try_get(4)?, row.try_get(5)?),
            children: schemas.into_iter().zip(names).map(|(s, n)| TableName::new(s, n)).collect(),
            triggers: row.try_get(8)?,
            rules: row.try_get(9)?,
            readable: row.try_get(10)?,
            owned: row.try_get(11)?,
            beneath: pair(row.try_get(12)?, row.try_get(13)?),
            markable: row.try_get(14)?,
            deletable: row.try_get(15)?,
            buriable: row.try_get(16)?,
        })
    };
    read().map_err(failed)
}

const AROUND: &str = "\
SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' \
         WHEN 'f' THEN 'foreign table' WHEN 'S' THEN 'sequence' ELSE 'table' END, \
  c.relrowsecurity, \
  EXISTS (SELECT FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND p.polpermissive \
    AND p.polcmd IN ('*', 'r') AND pg_get_expr(p.polqual, p.polrelid) = 'true' \
    AND (p.polroles = '{0}' OR EXISTS (SELECT FROM unnest(p.polroles) o(oid) \
         WHERE pg_has_role(r.oid, o.oid, 'MEMBER')))), \
  c.relreplident = 'f' OR EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid \
    AND (i.indisreplident OR i.indisprimary AND c.relreplident = 'd')), \
  rn.nspname::text, rc.relname::text, \
  (SELECT coalesce(array_agg(n.nspname::text ORDER BY h.oid), '{}') FROM pg_catalog.pg_inherits i \
    JOIN pg_catalog.pg_class h ON h.oid = i.inhrelid AND NOT h.relispartition \
    JOIN pg_catalog.pg_namespace n ON n.oid = h.relnamespace WHERE i.inhparent = c.oid), \
  (SELECT coalesce(array_agg(h.relname::text ORDER BY h.oid), '{}') FROM pg_catalog.pg_inherits i \
    JOIN pg_catalog.pg_class h ON h.oid = i.inhrelid AND NOT h.relispartition WHERE i.inhparent = c.oid), \
  (SELECT coalesce(array_agg(t.tgname::text ORDER BY t.tgname), '{}') FROM pg_catalog.pg_trigger t \
    WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgtype & 7 = 7 AND t.tgenabled IN ('O', 'A')), \
  (SELECT coalesce(array_agg(w.rulename::text ORDER BY w.rulename), '{}') FROM pg_catalog.pg_rewrite w \
    WHERE w.ev_class = c.oid AND w.ev_type = '3' AND w.is_instead AND w.ev_enabled IN ('O', 'A')), \
  has_schema_privilege(r.oid, c.relnamespace, 'USAGE') AND has_table_privilege(r.oid, c.oid, 'SELECT'), \
  pg_has_role(current_user, c.relowner, 'USAGE'), bn.nspname::text, bc.relname::text, \
  has_table_privilege(r.oid, c.oid, 'UPDATE'), has_table_privilege(r.oid, c.oid, 'DELETE'), \
  has_table_privilege(r.oid, to_regclass($3::text)::oid, 'INSERT') \
FROM pg_catalog.pg_class c \
JOIN pg_catalog.pg_roles r ON r.rolname = $2 \
LEFT JOIN pg_catalog.pg_class rc ON c.relispartition AND rc.oid = pg_partition_root(c.oid) \
LEFT JOIN pg_catalog.pg_namespace rn ON rn.oid = rc.relnamespace \
LEFT JOIN LATERAL (SELECT min(d.refobjid::bigint)::oid AS oid FROM pg_catalog.pg_rewrite w \
  JOIN pg_catalog.pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid \
    AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> c.oid \
  WHERE w.ev_class = c.oid AND c.relkind IN ('v', 'm') \
  HAVING count(DISTINCT d.refobjid) = 1) b ON true \
LEFT JOIN pg_catalog.pg_class bc ON bc.oid = b.oid AND bc.relkind IN ('r', 'p') \
LEFT JOIN pg_catalog.pg_namespace bn ON bn.oid = bc.relnamespace \
WHERE c.oid = $1";

/// Tables and partitioned tables of this name in other schemas.
pub(super) async fn namesakes(client: &Client, table: &TableName) -> Read<Vec<TableName>> {
    let failed = |e| SourceError::control(format!("find tables named {:?}", table.name), e);
    let sql = "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE lower(c.relname) = lower($1) AND c.relkind IN ('r', 'p') AND NOT c.relispartition \
                 AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 10";
    let rows = client.query(sql, &[&table.name]).await.map_err(failed)?;
    let name =
        |row: &Row| Ok(TableName::new(row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?));
    rows.iter().map(name).collect::<Result<_, _>>().map_err(failed)
}

/// Whether `role` owns schema `postrider` or a table in it, and is no superuser.
pub(super) async fn owns_schema(client: &Client, role: &str) -> Read<bool> {
    let failed = |e| SourceError::control("read who owns schema \"postrider\"", e);
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace n \
                 JOIN pg_catalog.pg_roles r ON r.rolname = $1 AND NOT r.rolsuper \
                 LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relowner = r.oid \
                 WHERE n.nspname = 'postrider' AND (n.nspowner = r.oid OR c.oid IS NOT NULL))";
    let row = client.query_one(sql, &[&role]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// Whether `role` (which exists) can use Postrider's own tables (which exist).
pub(super) async fn cursor_usable(client: &Client, role: &str) -> Read<bool> {
    let failed = |e| SourceError::control("read the rights on schema \"postrider\"", e);
    let sql = "SELECT has_schema_privilege($1::name, n.oid, 'USAGE') AND \
                 (SELECT bool_and(has_table_privilege($1::name, c.oid, 'SELECT') AND (c.relname = 'migration' \
                    OR has_table_privilege($1::name, c.oid, 'INSERT') \
                    AND has_table_privilege($1::name, c.oid, 'UPDATE'))) \
                  FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' \
                    AND c.relname = ANY ($2::text[])) \
               FROM pg_catalog.pg_namespace n WHERE n.nspname = 'postrider'";
    let own = OWN_TABLES.as_slice();
    let row = client.query_opt(sql, &[&role, &own]).await.map_err(failed)?;
    let usable = row.map(|row| row.try_get::<_, Option<bool>>(0)).transpose().map_err(failed)?;
    Ok(usable.flatten().unwrap_or(true))
}

/// The client of a backend: `"app" of role x from 10.0.0.1`; less if the role may not see it.
pub(super) async fn who(client: &Client, pid: u32) -> Read<(String, String)> {
    let failed = |e| SourceError::control("read who holds the slot", e);
    let sql = "SELECT coalesce(application_name, ''), concat_ws(' ', 'role ' || usename, \
                 'from ' || coalesce(host(client_addr), 'this machine')) \
               FROM pg_catalog.pg_stat_activity WHERE pid = $1";
    let row = client.query_opt(sql, &[&pid.cast_signed()]).await.map_err(failed)?;
    row.map_or(Ok((String::new(), String::new())), |row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .map_err(failed)
}

/// Whether the server's list of sessions contains this backend.
pub(super) async fn has_backend(client: &Client, pid: u32) -> Read<bool> {
    let failed = |e| SourceError::control("find our own session", e);
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = $1)";
    let row = client.query_one(sql, &[&pid.cast_signed()]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}
