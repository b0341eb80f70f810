//! The server's catalog as Postrider reads it: the server itself, the slot, the publication, the outbox table, and
//! types. Only reads.
//!
//! Timeline and system identifier also come from `IDENTIFY_SYSTEM` on the replication connection. The start check
//! requires that both agree, because the two connections could have reached two servers.

use crate::error::SourceError;
use crate::names::TableName;
use crate::publication_version::{self, PublicationVersion};
use crate::value_types::TypeFacts;
use crate::wire::Lsn;
use postrider_core::store::PipelineKey;
use std::fmt;
use std::time::Duration;
use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Row};

/// The server, read by one statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFacts {
    /// `server_version_num`: 150018.
    pub version: u32,
    /// Whether the server is a standby.
    pub in_recovery: bool,
    /// `wal_level`, as it is configured.
    pub wal_level: String,
    /// End of the WAL that is on the server's disk; on a standby, of the WAL that it has replayed.
    pub wal_end: Lsn,
    /// The cluster's identity, as `IDENTIFY_SYSTEM` prints it.
    pub system_identifier: String,
    /// The timeline that it writes; on a standby, the one of its last restart point.
    pub timeline: u32,
    /// The database of the session.
    pub database: String,
    /// The database's encoding: `UTF8`, `SQL_ASCII` …
    pub encoding: String,
    /// The role of the session.
    pub role: String,
    /// Whether the role may use replication (REPLICATION or superuser).
    pub replication: bool,
    /// Whether the role may create schemas and publications in the database.
    pub creates: bool,
}

/// Identifies the process of one server. Two servers can have the same cluster identifier and timeline (a primary and
/// its standby, a copy of the files), and then differ only in the other fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// The cluster's identity.
    pub system_identifier: String,
    /// The timeline.
    pub timeline: u32,
    /// Whether the server is a standby.
    pub in_recovery: bool,
    /// The database of the session.
    pub database: String,
    /// When the server was started, to the microsecond.
    pub started_at: String,
}

impl Instance {
    /// Why two sessions are not of one server, if they are not: a fragment.
    pub fn differs(&self, other: &Self) -> Option<String> {
        (self != other).then(|| {
            format!(
                "two connections reached two servers ({self}; {other}): a failover is under way, or source.url leads \
                 to more than one server, as a load balancer does: name the hosts themselves, with \
                 target_session_attrs=read-write"
            )
        })
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.in_recovery { "standby" } else { "primary" };
        write!(
            f,
            "a {kind} of cluster {} on timeline {}, database {:?}, started {}",
            self.system_identifier, self.timeline, self.database, self.started_at
        )
    }
}

/// The message for a replication connection and a control connection that are not of one server: a fragment.
pub const TWO_SERVERS: &str = "two connections reached two servers: a failover is under way, or source.url leads \
     to more than one server, as a load balancer does: name the hosts themselves, with \
     target_session_attrs=read-write";

/// Whether the walsender of a replication connection is a process of this server, in this database.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn has_backend(client: &Client, walsender: u32) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control("find our walsender", e);
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = $1 \
                 AND a.datname = pg_catalog.current_database())";
    let row = client.query_one(sql, &[&walsender.cast_signed()]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// Reads which server this is.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn instance(client: &Client) -> Result<Instance, SourceError> {
    let failed = |e| SourceError::control("check which server this is", e);
    let sql = format!(
        "SELECT {SYSTEM_IDENTIFIER_SQL}, \
           CASE WHEN r.recovering \
                THEN (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()) \
                ELSE {TIMELINE_SQL} END, \
           r.recovering, pg_catalog.current_database()::pg_catalog.text, \
           pg_catalog.pg_postmaster_start_time()::pg_catalog.text \
         FROM (SELECT pg_catalog.pg_is_in_recovery() AS recovering) r"
    );
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    let read = || {
        Ok(Instance {
            system_identifier: row.try_get(0)?,
            timeline: row.try_get::<_, i32>(1)?.cast_unsigned(),
            in_recovery: row.try_get(2)?,
            database: row.try_get(3)?,
            started_at: row.try_get(4)?,
        })
    };
    read().map_err(failed)
}

/// The first server whose `wal_level` is a minimum: with `replica` the first logical slot raises `effective_wal_level`
/// to `logical`, and dropping the last one lowers it again (PostgreSQL 19, commit 67c20979ce72).
const RAISES_WAL_LEVEL: u32 = 190_000;

impl ServerFacts {
    /// Whether a logical slot can be created or read.
    pub fn decodes(&self) -> bool {
        self.wal_level == "logical"
            || (self.version >= RAISES_WAL_LEVEL && self.wal_level == "replica")
    }

    /// The lowest sufficient `wal_level`.
    pub fn wal_level_needed(&self) -> &'static str {
        if self.version >= RAISES_WAL_LEVEL { "replica" } else { "logical" }
    }
}

/// The system identifier as text. `IDENTIFY_SYSTEM` prints it unsigned, the function signed: the same until 2038, since
/// its high half is the time of `initdb`.
pub(super) const SYSTEM_IDENTIFIER_SQL: &str =
    "(SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system())";

/// The timeline of a primary: the one in the name of the WAL file being written. The one in the control file is
/// outdated after a promotion until the first checkpoint.
pub(super) const TIMELINE_SQL: &str = "('x' || pg_catalog.left(pg_catalog.pg_walfile_name(\
     pg_catalog.pg_current_wal_lsn()), 8))::pg_catalog.bit(32)::pg_catalog.int4";

/// Reads the state of the server.
pub async fn read_server(client: &Client) -> Result<ServerFacts, SourceError> {
    let failed = |e| SourceError::control("read the server's state", e);
    let sql = format!(
        "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4, r.recovering, \
           pg_catalog.current_setting('wal_level'), \
           CASE WHEN r.recovering THEN coalesce(pg_catalog.pg_last_wal_replay_lsn(), '0/0') \
                ELSE pg_catalog.pg_current_wal_flush_lsn() END, \
           {SYSTEM_IDENTIFIER_SQL}, \
           CASE WHEN r.recovering \
                THEN (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()) \
                ELSE {TIMELINE_SQL} END, \
           d.datname::pg_catalog.text, \
           pg_catalog.pg_encoding_to_char(d.encoding)::pg_catalog.text, \
           u.rolname::pg_catalog.text, u.rolreplication OR u.rolsuper, \
           pg_catalog.has_database_privilege(u.oid, d.oid, 'CREATE') \
         FROM (SELECT pg_catalog.pg_is_in_recovery() AS recovering) r, \
              pg_catalog.pg_database d, pg_catalog.pg_roles u \
         WHERE d.datname = pg_catalog.current_database() AND u.rolname = current_user"
    );
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    let facts = || {
        Ok(ServerFacts {
            version: row.try_get::<_, i32>(0)?.cast_unsigned(),
            in_recovery: row.try_get(1)?,
            wal_level: row.try_get(2)?,
            wal_end: lsn(row.try_get(3)?),
            system_identifier: row.try_get(4)?,
            timeline: row.try_get::<_, i32>(5)?.cast_unsigned(),
            database: row.try_get(6)?,
            encoding: row.try_get(7)?,
            role: row.try_get(8)?,
            replication: row.try_get(9)?,
            creates: row.try_get(10)?,
        })
    };
    facts().map_err(failed)
}

/// A `pg_lsn` value as a position.
pub(super) fn lsn(value: PgLsn) -> Lsn {
    Lsn::new(value.into())
}

/// A position as a `pg_lsn` value.
pub(super) fn pg_lsn(position: Lsn) -> PgLsn {
    PgLsn::from(position.get())
}

/// One row of `pg_replication_slots`. Columns that a version lacks are `None` or `false`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of pg_replication_slots")]
pub struct SlotRow {
    /// The slot's name.
    pub name: String,
    /// The output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// Whether the slot is a logical slot.
    pub logical: bool,
    /// The database it decodes; `None` for a physical slot.
    pub database: Option<String>,
    /// The slot is dropped when its session ends.
    pub temporary: bool,
    /// The slot decodes PREPARE TRANSACTION as it happens.
    pub two_phase: bool,
    /// The backend that uses the slot now.
    pub active_pid: Option<u32>,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` while nothing is reserved.
    pub wal_status: Option<String>,
    /// The oldest WAL that the slot needs; `None` when the slot is invalidated.
    pub restart_lsn: Option<Lsn>,
    /// The position up to which the slot's consumer has confirmed; `None` while the slot is being created.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// Bytes of WAL that may still be written before the slot can be lost; `None` without a limit or when it is lost.
    pub safe_wal_size: Option<i64>,
    /// PostgreSQL 16 and later: the slot was invalidated by a conflict with recovery.
    pub conflicting: bool,
    /// PostgreSQL 17 and later: the slot is synchronised to standbys.
    pub failover: bool,
    /// PostgreSQL 17 and later: the slot was created by slot synchronisation, here or before this server was promoted.
    pub synced: bool,
    /// PostgreSQL 17 and later: why the slot was invalidated (`wal_removed`, `idle_timeout` …).
    pub invalidation_reason: Option<String>,
    /// PostgreSQL 17 and later: when the slot was last released, as the server prints it; `None` while it is in use.
    pub inactive_since: Option<String>,
}

impl SlotRow {
    /// Whether the slot was invalidated. Such a slot can never be used again.
    pub fn lost(&self) -> bool {
        self.wal_status.as_deref() == Some("lost")
            || self.invalidation_reason.is_some()
            || self.conflicting
    }
}

/// Reads the row of the slot `name`; `None` if there is none.
pub async fn read_slot(
    client: &Client,
    version: u32,
    name: &str,
) -> Result<Option<SlotRow>, SourceError> {
    // The columns by version: manual, 54.20 "pg_replication_slots", of 15, 16 and 17.
    let later = match version {
        170_000.. => {
            "coalesce(s.conflicting, false), s.failover, s.synced, s.invalidation_reason, \
             s.inactive_since::pg_catalog.text"
        }
        // In 16 `conflicting` is true of every slot that was invalidated. One whose WAL was removed has no
        // restart_lsn any more, and one in conflict with recovery keeps it.
        160_000.. => {
            "coalesce(s.conflicting, false) AND s.restart_lsn IS NOT NULL, false, false, \
             null::pg_catalog.text, null::pg_catalog.text"
        }
        _ => "false, false, false, null::pg_catalog.text, null::pg_catalog.text",
    };
    let sql = format!(
        "SELECT s.plugin::pg_catalog.text, s.slot_type = 'logical', s.database::pg_catalog.text, \
         s.temporary, s.two_phase, s.active_pid, s.wal_status, s.restart_lsn, \
         s.confirmed_flush_lsn, s.safe_wal_size, {later} \
         FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text"
    );
    let doing = || format!("read the state of slot {name:?}");
    let row =
        client.query_opt(&sql, &[&name]).await.map_err(|e| SourceError::control(doing(), e))?;
    row.map(|row| slot_from_row(name, &row).map_err(|e| SourceError::control(doing(), e)))
        .transpose()
}

/// Reads after which time without a reader the server invalidates a slot (`idle_replication_slot_timeout`, PostgreSQL
/// 18 and later); `None` if it does not.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_idle_timeout(client: &Client) -> Result<Option<Duration>, SourceError> {
    let failed = |e| SourceError::control("read idle_replication_slot_timeout", e);
    // Unit: seconds.
    let sql = "SELECT s.setting::pg_catalog.int8 FROM pg_catalog.pg_settings s \
               WHERE s.name = 'idle_replication_slot_timeout'";
    let Some(row) = client.query_opt(sql, &[]).await.map_err(failed)? else { return Ok(None) };
    let seconds = row.try_get::<_, i64>(0).map_err(failed)?;
    Ok(u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs))
}

/// Reads how many bytes of WAL the inactive slot `name` of this database retains; `None` if there is no such slot.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn retained(client: &Client, name: &str) -> Result<Option<u64>, SourceError> {
    let failed = |e| SourceError::control(format!("read what slot {name:?} retains"), e);
    let sql = "SELECT coalesce(pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_insert_lsn(), s.restart_lsn), 0) \
                 ::pg_catalog.int8 \
               FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text \
                 AND s.database = pg_catalog.current_database() AND NOT s.active";
    let row = client.query_opt(sql, &[&name]).await.map_err(failed)?;
    let bytes: Option<i64> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?;
    Ok(bytes.map(|bytes| u64::try_from(bytes).unwrap_or_default()))
}

/// Reads how many bytes of WAL there are after a position.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn wal_after(client: &Client, position: &str) -> Result<u64, SourceError> {
    let failed = |e| SourceError::control("read how much WAL there is after the position", e);
    let sql = "SELECT greatest(pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery() \
                 THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END, \
                 $1::pg_catalog.text::pg_catalog.pg_lsn), 0)::pg_catalog.int8";
    let row = client.query_one(sql, &[&position]).await.map_err(failed)?;
    let bytes: i64 = row.try_get(0).map_err(failed)?;
    Ok(bytes.unsigned_abs())
}

/// Whether the slot `name` of this database exists and has all of its WAL.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn slot_usable(client: &Client, name: &str) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control(format!("check slot {name:?}"), e);
    let sql = "SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::pg_catalog.text \
                 AND s.database = pg_catalog.current_database() AND s.wal_status IS DISTINCT FROM 'lost'";
    Ok(client.query_opt(sql, &[&name]).await.map_err(failed)?.is_some())
}

/// Whether the walsender `pid` waits for a standby in `synchronized_standby_slots` (17 and later): it sends keepalives
/// meanwhile and nothing else.
pub async fn waits_for_standby(client: &Client, pid: u32) -> Result<bool, SourceError> {
    let failed = |error| SourceError::control("check what the stream waits for", error);
    let sql = "SELECT wait_event = 'WaitForStandbyConfirmation' FROM pg_catalog.pg_stat_activity WHERE pid = $1";
    let row = client.query_opt(sql, &[&pid.cast_signed()]).await.map_err(failed)?;
    let waits: Option<bool> = row.map(|row| row.try_get(0)).transpose().map_err(failed)?.flatten();
    Ok(waits.unwrap_or(false))
}

fn slot_from_row(name: &str, row: &Row) -> Result<SlotRow, tokio_postgres::Error> {
    Ok(SlotRow {
        name: name.to_owned(),
        plugin: row.try_get(0)?,
        logical: row.try_get(1)?,
        database: row.try_get(2)?,
        temporary: row.try_get(3)?,
        two_phase: row.try_get(4)?,
        active_pid: row.try_get::<_, Option<i32>>(5)?.map(i32::cast_unsigned),
        wal_status: row.try_get(6)?,
        restart_lsn: row.try_get(7).map(|at: Option<_>| at.map(lsn))?,
        confirmed_flush_lsn: row.try_get(8).map(|at: Option<_>| at.map(lsn))?,
        safe_wal_size: row.try_get(9)?,
        conflicting: row.try_get(10)?,
        failover: row.try_get(11)?,
        synced: row.try_get(12)?,
        invalidation_reason: row.try_get(13)?,
        inactive_since: row.try_get(14)?,
    })
}

/// A publication as it is now. The server decodes with the publication *as it was* at the WAL being decoded, so a
/// suitable publication does not prove that older WAL is complete; that is why `setup` creates the publication before
/// the slot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the columns of pg_publication")]
pub struct PublicationFacts {
    /// Publishes INSERT.
    pub insert: bool,
    /// Publishes UPDATE.
    pub update: bool,
    /// Publishes DELETE or TRUNCATE, which the relay ignores.
    pub delete_or_truncate: bool,
    /// FOR ALL TABLES.
    pub all_tables: bool,
    /// Rows of partitions are published under the name of the partitioned table.
    pub via_root: bool,
    /// It names the outbox table itself: as a table, by its schema, or as one of all tables. A partitioned table of
    /// which only partitions are named counts as published if `via_root` is off.
    pub names_table: bool,
    /// How it publishes the outbox table; `None` if it does not.
    pub table: Option<PublishedTable>,
    /// Other tables in it.
    pub other_tables: u32,
    /// The versions of the catalog rows that these facts are from.
    pub version: PublicationVersion,
}

impl PublicationFacts {
    /// Whether the publication publishes statements that the relay ignores. `updates`: the relay needs updates.
    pub fn more_than_needed(&self, updates: bool) -> bool {
        self.delete_or_truncate || self.update && !updates
    }
}

/// How a publication publishes one table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedTable {
    /// The row filter, as an SQL expression.
    pub row_filter: Option<String>,
    /// The columns that are published, in the table's order.
    pub columns: Vec<String>,
}

/// With `publish_via_partition_root = false` the view lists a partitioned table's leaves and not the table; the table
/// itself then counts as published when any partition is.
const FACTS: &str = "\
SELECT p.pubinsert, p.pubdelete OR p.pubtruncate, p.puballtables, p.pubviaroot, \
       t.attnames::pg_catalog.text[], t.rowfilter, \
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_publication_tables o \
         WHERE o.pubname = p.pubname AND (o.schemaname, o.tablename) \
               IS DISTINCT FROM (t.schemaname, t.tablename)), \
       p.puballtables OR EXISTS ( \
         SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $2::pg_catalog.text AND c.relname = $3::pg_catalog.text \
           AND (EXISTS (SELECT FROM pg_catalog.pg_publication_rel r \
                        WHERE r.prpubid = p.oid AND r.prrelid = c.oid) \
                OR EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s \
                           WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid))), \
       p.pubupdate, {version} \
FROM pg_catalog.pg_publication p \
LEFT JOIN LATERAL ( \
  SELECT x.schemaname, x.tablename, x.attnames, x.rowfilter \
  FROM pg_catalog.pg_publication_tables x \
  JOIN pg_catalog.pg_namespace n ON n.nspname = x.schemaname \
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = x.tablename \
  WHERE x.pubname = p.pubname \
    AND (x.schemaname = $2::pg_catalog.text AND x.tablename = $3::pg_catalog.text \
         OR NOT p.pubviaroot AND pg_catalog.pg_partition_root(c.oid) = ( \
            SELECT r.oid FROM pg_catalog.pg_class r \
            JOIN pg_catalog.pg_namespace s ON s.oid = r.relnamespace \
            WHERE s.nspname = $2::pg_catalog.text AND r.relname = $3::pg_catalog.text)) \
  ORDER BY x.schemaname <> $2::pg_catalog.text OR x.tablename <> $3::pg_catalog.text \
  LIMIT 1) t ON true \
WHERE p.pubname = $1::pg_catalog.text";

/// Reads the publication `name`; `None` if there is none.
pub async fn read_publication(
    client: &Client,
    name: &str,
    table: Option<&TableName>,
) -> Result<Option<PublicationFacts>, SourceError> {
    let failed = |e| SourceError::control(format!("read publication {name:?}"), e);
    let (schema, relation) = table.map_or(("", ""), |t| (t.schema.as_str(), t.name.as_str()));
    let oid = "(SELECT vt.oid FROM pg_catalog.pg_class vt \
               JOIN pg_catalog.pg_namespace vs ON vs.oid = vt.relnamespace \
               WHERE vs.nspname = $2::pg_catalog.text AND vt.relname = $3::pg_catalog.text)";
    let rows = |xmin| publication_version::table_sql("$1::pg_catalog.text", oid, xmin);
    let version = publication_version::columns_sql(&rows(true), &rows(false), "");
    let sql = FACTS.replace("{version}", &version);
    let row = client.query_opt(&sql, &[&name, &schema, &relation]).await.map_err(failed)?;
    row.map(|row| publication_from_row(&row).map_err(failed)).transpose()
}

fn publication_from_row(row: &Row) -> Result<PublicationFacts, tokio_postgres::Error> {
    let columns: Option<Vec<String>> = row.try_get(4)?;
    let row_filter: Option<String> = row.try_get(5)?;
    Ok(PublicationFacts {
        insert: row.try_get(0)?,
        update: row.try_get(8)?,
        delete_or_truncate: row.try_get(1)?,
        all_tables: row.try_get(2)?,
        via_root: row.try_get(3)?,
        names_table: row.try_get(7)?,
        table: columns.map(|columns| PublishedTable { row_filter, columns }),
        other_tables: u32::try_from(row.try_get::<_, i64>(6)?).unwrap_or(u32::MAX),
        version: PublicationVersion::read(row, 9)?,
    })
}

/// Rows that a publication may have left out since it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AffectedRows {
    /// Rows of the table that were committed since; `None` if they could not be counted.
    pub rows: Option<u64>,
    /// A transaction of another session has written to the table and is still open.
    pub open_writers: bool,
}

/// Counts the rows that were committed to the table since `version` was read, and checks for writers. Rows that were
/// deleted since cannot be counted.
///
/// # Errors
/// An error of the server or of the connection, except that the server refuses to count.
pub async fn affected_rows(
    client: &Client,
    name: &TableName,
    version: &PublicationVersion,
) -> Result<AffectedRows, SourceError> {
    let failed = |e| SourceError::control("check which sessions write to the outbox table", e);
    // Before the count: a transaction that ends in between is in one of the two.
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l \
                 WHERE l.mode = 'RowExclusiveLock' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid() \
                   AND l.database = (SELECT oid FROM pg_catalog.pg_database \
                                     WHERE datname = pg_catalog.current_database()) \
                   AND l.relation IN (SELECT c.oid FROM pg_catalog.pg_class c \
                       JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                       WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text \
                       UNION ALL \
                       SELECT t.relid FROM pg_catalog.pg_class c \
                       JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace, \
                       pg_catalog.pg_partition_tree(c.oid) t \
                       WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text))";
    let row = client.query_one(sql, &[&name.schema, &name.name]).await.map_err(failed)?;
    let open_writers: bool = row.try_get(0).map_err(failed)?;
    // A row's transaction number has no epoch, so the epoch is chosen that puts it in the past.
    let sql = format!(
        "WITH past AS (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS at) \
         SELECT pg_catalog.count(*) FROM {name} AS o, past \
         WHERE NOT pg_catalog.pg_visible_in_snapshot((past.at - ((past.at - o.xmin::text::int8) & 4294967295)) \
                   ::text::xid8, $1::text::pg_catalog.pg_snapshot)"
    );
    let rows = match client.query_one(&sql, &[&version.snapshot()]).await {
        Ok(row) => Some(row.try_get::<_, i64>(0).map_err(failed)?.unsigned_abs()),
        // No right to read it, or too large to be read within the session's time.
        Err(error) if error.as_db_error().is_some() => None,
        Err(error) => return Err(failed(error)),
    };
    Ok(AffectedRows { rows, open_writers })
}

/// Objects that were created or changed by a transaction whose events are not known to be resolved.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChangesSince {
    /// The publication, or the table's place in it: it may have left out rows that were committed before.
    pub publication: bool,
    /// The table was created: the slot may hold events of a dropped table of the same name.
    pub table: bool,
}

/// Reads what of the publication, and of these tables, was created or changed since the last transactions that are
/// known to be resolved; nothing if no such transactions are known yet. The schema must be of this program's version.
///
/// A change that is not found was certainly made before everything that may still be unpublished, unless it was made in
/// a savepoint. A change that is found may be harmless, such as a change of the published statements.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn changed_since(
    client: &Client,
    key: &PipelineKey,
    name: &str,
    tables: &[u32],
) -> Result<ChangesSince, SourceError> {
    let failed = |e| SourceError::control(format!("read the age of publication {name:?}"), e);
    // A row's transaction number has no epoch, so the epoch is chosen that puts it in the past. Of a table's catalog
    // rows, that of a system column is never updated.
    let sql = "\
WITH past AS (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8 AS at), \
known AS (SELECT CASE WHEN pending_lsn <= watermark THEN pending_snapshot ELSE resolved_snapshot END AS of \
          FROM postrider.cursor WHERE pipeline = $1 AND shard = $4), \
rows AS (SELECT p.xmin::text::int8 AS xid, false AS created FROM pg_catalog.pg_publication p \
         WHERE p.pubname = $2::text \
         UNION ALL \
         SELECT r.xmin::text::int8, false FROM pg_catalog.pg_publication_rel r \
         JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid \
         WHERE p.pubname = $2::text AND r.prrelid = ANY ($3) \
         UNION ALL \
         SELECT a.xmin::text::int8, true FROM pg_catalog.pg_attribute a \
         WHERE a.attrelid = ANY ($3) AND a.attname = 'ctid' AND a.attnum < 0), \
news AS (SELECT rows.created FROM past, known, rows \
         WHERE known.of IS NOT NULL AND NOT pg_catalog.pg_visible_in_snapshot(\
           (past.at - ((past.at - rows.xid) & 4294967295))::text::xid8, known.of)) \
SELECT EXISTS (SELECT FROM news WHERE NOT created), EXISTS (SELECT FROM news WHERE created)";
    let row = client.query_one(sql, &[&key.pipeline, &name, &tables, &key.shard]).await;
    let row = row.map_err(failed)?;
    Ok(ChangesSince {
        publication: row.try_get(0).map_err(failed)?,
        table: row.try_get(1).map_err(failed)?,
    })
}

/// The kind of relation that has the table's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RelationKind {
    /// An ordinary table.
    Table,
    /// A partitioned table.
    Partitioned,
    /// A view, a foreign table, a sequence …: rows of it are not in WAL.
    Other,
}

/// How its rows are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence {
    /// Written to WAL.
    Logged,
    /// UNLOGGED: not written to WAL.
    Unlogged,
    /// TEMPORARY.
    Temporary,
}

/// The outbox table as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableFacts {
    /// The relation's OID.
    pub oid: u32,
    /// The kind of relation.
    pub kind: RelationKind,
    /// How the table's rows are stored.
    pub persistence: Persistence,
    /// Whether the table is a partition of another table.
    pub is_partition: bool,
    /// Whether the role of the session has the rights of the table's owner.
    pub owned: bool,
    /// Whether inserts into the table wake a polling relay (`setup --notify`).
    pub notifies: bool,
    /// The partitions of a partitioned table.
    pub partitions: Partitions,
    /// The table's columns, in order, without dropped ones.
    pub columns: Vec<ColumnFacts>,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnFacts {
    /// The name.
    pub name: String,
    /// The type, as SQL writes it.
    pub type_name: String,
    /// The type, as the catalog has it.
    pub type_facts: TypeFacts,
    /// Whether the column refuses NULL.
    pub not_null: bool,
    /// GENERATED ALWAYS AS: not in the stream before PostgreSQL 18, and there only if the publication asks for it.
    pub generated: bool,
}

/// The partitions of a partitioned table at every level, as inserts see them: a partition whose `DETACH … CONCURRENTLY`
/// has begun is not among them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Partitions {
    /// OIDs of the leaves, ascending.
    pub leaves: Vec<u32>,
    /// Leaves whose rows are not in WAL, by name; at most [`UNFIT_LEAVES_MAX`].
    pub unfit: Vec<UnfitLeaf>,
    /// Columns that decide which leaf a row is in, at any level, by name.
    pub key: Vec<String>,
}

/// Most unsuitable leaves that are named.
pub const UNFIT_LEAVES_MAX: usize = 10;

/// A leaf whose rows are not in WAL. The server refuses a temporary one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnfitLeaf {
    /// The leaf's name.
    pub name: TableName,
    /// The reason.
    pub kind: UnfitLeafKind,
}

/// Why the rows of a leaf are not in WAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnfitLeafKind {
    /// UNLOGGED.
    Unlogged,
    /// A foreign table.
    Foreign {
        /// Rows can be inserted into it. If it refuses them, none is lost silently.
        insertable: bool,
    },
}

const TABLE_SQL: &str = "\
SELECT c.oid, c.relkind::pg_catalog.text, c.relpersistence::pg_catalog.text, c.relispartition, \
       k.name, k.type_name, k.not_null, k.generated, \
       EXISTS (SELECT FROM pg_catalog.pg_trigger t \
               WHERE t.tgrelid = c.oid AND t.tgname = 'postrider_notify'), \
       k.oid, k.base_oid, k.base_modifier, k.is_text, pg_catalog.pg_has_role(c.relowner, 'USAGE') \
FROM pg_catalog.pg_class c \
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
CROSS JOIN LATERAL (SELECT \
       coalesce(pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY a.attnum), '{}') AS name, \
       coalesce(pg_catalog.array_agg(pg_catalog.format_type(a.atttypid, a.atttypmod) ORDER BY a.attnum), '{}') \
         AS type_name, \
       coalesce(pg_catalog.array_agg(a.attnotnull ORDER BY a.attnum), '{}') AS not_null, \
       coalesce(pg_catalog.array_agg(a.attgenerated <> '' ORDER BY a.attnum), '{}') AS generated, \
       coalesce(pg_catalog.array_agg(a.atttypid ORDER BY a.attnum), '{}') AS oid, \
       coalesce(pg_catalog.array_agg(base.oid ORDER BY a.attnum), '{}') AS base_oid, \
       coalesce(pg_catalog.array_agg(base.modifier ORDER BY a.attnum), '{}') AS base_modifier, ";

const COLUMNS_SQL: &str = "\
  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS k \
WHERE n.nspname = $1::pg_catalog.text AND c.relname = $2::pg_catalog.text";

/// `pg_inherits` is read instead of `pg_partition_tree`, which locks every partition and so waits behind an
/// `ALTER TABLE` of one. A key column depends on its own table, whether it is named in the key or in an expression.
const PARTITIONS_SQL: &str = "\
WITH RECURSIVE tree AS ( \
  SELECT $1::pg_catalog.oid AS oid \
  UNION ALL \
  SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending), \
node AS ( \
  SELECT c.oid, c.relkind, c.relpersistence, n.nspname::pg_catalog.text AS schema, \
         c.relname::pg_catalog.text AS name \
  FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid \
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace), \
unfit AS ( \
  SELECT schema, name, relkind = 'f' AS foreign_table, \
         CASE WHEN relkind = 'f' THEN pg_catalog.pg_relation_is_updatable(oid, false) & 8 <> 0 ELSE true END \
           AS insertable \
  FROM node WHERE relkind = 'f' OR relkind <> 'p' AND relpersistence <> 'p' \
  ORDER BY relkind = 'f', schema, name LIMIT $2) \
SELECT (SELECT coalesce(pg_catalog.array_agg(oid ORDER BY oid), '{}') FROM node WHERE relkind <> 'p'), \
       (SELECT coalesce(pg_catalog.array_agg(DISTINCT a.attname::pg_catalog.text), '{}') FROM node \
          JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
            AND d.objid = node.oid AND d.objsubid > 0 \
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass \
            AND d.refobjid = node.oid AND d.refobjsubid = 0 AND d.deptype = 'i' \
          JOIN pg_catalog.pg_attribute a ON a.attrelid = node.oid AND a.attnum = d.objsubid \
          WHERE node.relkind = 'p'), \
       coalesce(pg_catalog.array_agg(schema), '{}'), coalesce(pg_catalog.array_agg(name), '{}'), \
       coalesce(pg_catalog.array_agg(foreign_table), '{}'), coalesce(pg_catalog.array_agg(insertable), '{}') \
FROM unfit";

async fn partitions(client: &Client, root: u32) -> Result<Partitions, tokio_postgres::Error> {
    let max = i64::try_from(UNFIT_LEAVES_MAX).unwrap_or(i64::MAX);
    let row = client.query_one(PARTITIONS_SQL, &[&root, &max]).await?;
    let (schemas, names): (Vec<String>, Vec<String>) = (row.try_get(2)?, row.try_get(3)?);
    let (foreign, insertable): (Vec<bool>, Vec<bool>) = (row.try_get(4)?, row.try_get(5)?);
    let names = schemas.into_iter().zip(names).map(|(schema, name)| TableName::new(schema, name));
    let kinds = foreign.into_iter().zip(insertable).map(|(foreign, insertable)| {
        if foreign { UnfitLeafKind::Foreign { insertable } } else { UnfitLeafKind::Unlogged }
    });
    Ok(Partitions {
        leaves: row.try_get(0)?,
        unfit: names.zip(kinds).map(|(name, kind)| UnfitLeaf { name, kind }).collect(),
        key: row.try_get(1)?,
    })
}

/// A change of a partitioned table's leaves between two readings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafChange {
    /// The table.
    pub name: TableName,
    /// The table was a leaf and was detached; otherwise an existing table was attached as a leaf.
    pub detached: bool,
    /// The table's size on disk. Unit: bytes.
    pub bytes: u64,
}

/// Returns which of the leaves `gone` are tables of their own now, and which of `new` were existing tables before they
/// were attached.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn leaf_changes(
    client: &Client,
    gone: &[u32],
    new: &[u32],
) -> Result<Vec<LeafChange>, SourceError> {
    // A column that every table has carries the number of the transaction that created the table.
    const SQL: &str = "\
SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text, NOT c.relispartition, \
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) \
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
WHERE c.relkind = 'r' AND ( \
  c.oid = ANY ($1) AND NOT c.relispartition \
  OR c.oid = ANY ($2) AND c.relispartition AND EXISTS ( \
    SELECT FROM pg_catalog.pg_inherits i \
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhrelid AND a.attname = 'tableoid' \
    WHERE i.inhrelid = c.oid AND i.xmin <> a.xmin)) \
ORDER BY 1, 2";
    let failed = |e| SourceError::control("read which partitions were attached or detached", e);
    let rows = client.query(SQL, &[&gone, &new]).await.map_err(failed)?;
    let change = |row: &tokio_postgres::Row| {
        let (schema, name): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let bytes: i64 = row.try_get(3)?;
        Ok(LeafChange {
            name: TableName::new(schema, name),
            detached: row.try_get(2)?,
            bytes: u64::try_from(bytes).unwrap_or(0),
        })
    };
    rows.iter().map(change).collect::<Result<_, _>>().map_err(failed)
}

/// Reads the name of the table with this OID; `None` if there is none, or if it is a view or a foreign table.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn name_of(client: &Client, oid: u32) -> Result<Option<TableName>, SourceError> {
    let failed = |e| SourceError::control(format!("read the name of table {oid}"), e);
    let sql = "SELECT n.nspname::pg_catalog.text, c.relname::pg_catalog.text FROM pg_catalog.pg_class c \
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
               WHERE c.oid = $1 AND c.relkind IN ('r', 'p')";
    let Some(row) = client.query_opt(sql, &[&oid]).await.map_err(failed)? else {
        return Ok(None);
    };
    let schema: String = row.try_get(0).map_err(failed)?;
    let name: String = row.try_get(1).map_err(failed)?;
    Ok(Some(TableName::new(schema, name)))
}

/// Reads the table; `None` if there is none of that name.
pub async fn read_table(
    client: &Client,
    table: &TableName,
) -> Result<Option<TableFacts>, SourceError> {
    let failed = |e| SourceError::control(format!("read the definition of table {table}"), e);
    let sql = format!(
        "{TABLE_SQL} coalesce(pg_catalog.array_agg({IS_TEXT_SQL} ORDER BY a.attnum), '{{}}') AS is_text \
         FROM pg_catalog.pg_attribute a {BASE_TYPE_SQL} JOIN pg_catalog.pg_type t ON t.oid = base.oid \
         {COLUMNS_SQL}"
    );
    let row = client.query_opt(&sql, &[&table.schema, &table.name]).await.map_err(failed)?;
    let Some(row) = row else { return Ok(None) };
    let facts = || {
        let names: Vec<String> = row.try_get(4)?;
        let type_names: Vec<String> = row.try_get(5)?;
        let not_null: Vec<bool> = row.try_get(6)?;
        let generated: Vec<bool> = row.try_get(7)?;
        let (oids, base_oids): (Vec<u32>, Vec<u32>) = (row.try_get(9)?, row.try_get(10)?);
        let (modifiers, texts): (Vec<i32>, Vec<bool>) = (row.try_get(11)?, row.try_get(12)?);
        let types = oids.into_iter().zip(base_oids).zip(modifiers.into_iter().zip(texts));
        let types = types.map(|((oid, base_oid), (base_modifier, is_text))| TypeFacts {
            oid,
            base_oid,
            base_modifier,
            is_text,
        });
        let flags = not_null.into_iter().zip(generated);
        let columns = names.into_iter().zip(type_names).zip(types.zip(flags));
        let columns = columns.map(|((name, type_name), (type_facts, (not_null, generated)))| {
            ColumnFacts { name, type_name, type_facts, not_null, generated }
        });
        Ok(TableFacts {
            oid: row.try_get(0)?,
            kind: match row.try_get::<_, &str>(1)? {
                "r" => RelationKind::Table,
                "p" => RelationKind::Partitioned,
                _ => RelationKind::Other,
            },
            persistence: match row.try_get::<_, &str>(2)? {
                "p" => Persistence::Logged,
                "u" => Persistence::Unlogged,
                _ => Persistence::Temporary,
            },
            is_partition: row.try_get(3)?,
            notifies: row.try_get(8)?,
            owned: row.try_get(13)?,
            partitions: Partitions::default(),
            columns: columns.collect(),
        })
    };
    let mut facts = facts().map_err(failed)?;
    if facts.kind == RelationKind::Partitioned {
        facts.partitions = partitions(client, facts.oid).await.map_err(failed)?;
    }
    Ok(Some(facts))
}

/// What [`read_types`] does, for error messages.
pub const READ_TYPES: &str = "look up the types of the outbox table's columns";

/// Reads the types with these OIDs, as far as they exist.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read_types(client: &Client, oids: &[u32]) -> Result<Vec<TypeFacts>, SourceError> {
    let failed = |e| SourceError::control(READ_TYPES, e);
    let sql = format!(
        "SELECT a.atttypid, base.oid, base.modifier, {IS_TEXT_SQL} \
         FROM (SELECT t.oid AS atttypid, -1 AS atttypmod FROM pg_catalog.pg_type t WHERE t.oid = ANY ($1)) AS a \
         {BASE_TYPE_SQL} JOIN pg_catalog.pg_type t ON t.oid = base.oid"
    );
    let rows = client.query(&sql, &[&oids]).await.map_err(failed)?;
    let facts = |row: &tokio_postgres::Row| {
        Ok(TypeFacts {
            oid: row.try_get(0)?,
            base_oid: row.try_get(1)?,
            base_modifier: row.try_get(2)?,
            is_text: row.try_get(3)?,
        })
    };
    rows.iter().map(|row| facts(row).map_err(failed)).collect()
}

/// Whether type `t` is not built in, and a text type.
pub const IS_TEXT_SQL: &str =
    "(t.typcategory = 'S' AND t.typnamespace <> 'pg_catalog'::pg_catalog.regnamespace)";

/// Joins `base` to an attribute `a`: OID and modifier of its type, or, for a domain, of the type beneath all domains.
/// The modifier is then that of the innermost domain (`getBaseTypeAndTypmod`).
pub const BASE_TYPE_SQL: &str = "\
CROSS JOIN LATERAL (WITH RECURSIVE r (oid, modifier, depth) AS (\
    SELECT a.atttypid, a.atttypmod, 0 \
    UNION ALL SELECT d.typbasetype, d.typtypmod, r.depth + 1 \
      FROM r JOIN pg_catalog.pg_type d ON d.oid = r.oid WHERE d.typtype = 'd') \
  SELECT r.oid, r.modifier FROM r ORDER BY r.depth DESC LIMIT 1) AS base ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_differ_in_any_identifying_field() {
        let one = Instance {
            system_identifier: "7000".to_owned(),
            timeline: 1,
            in_recovery: false,
            database: "shop".to_owned(),
            started_at: "2026-01-01 00:00:00.000001+00".to_owned(),
        };
        assert_eq!(one.differs(&one), None);
        for other in [
            Instance { system_identifier: "8000".to_owned(), ..one.clone() },
            Instance { timeline: 2, ..one.clone() },
            Instance { in_recovery: true, ..one.clone() },
            Instance { database: "other".to_owned(), ..one.clone() },
            Instance { started_at: "2026-01-01 00:00:00.000002+00".to_owned(), ..one.clone() },
        ] {
            let message = one.differs(&other).unwrap();
            assert!(
                message.contains("two servers") && message.contains("load balancer"),
                "{message}"
            );
        }
    }
}
