//! What the server says of itself: version, role, end of WAL, history.
//!
//! Only reads. The timeline and the system identifier also come from `IDENTIFY_SYSTEM` on the replication connection;
//! both must agree, which `fence` checks, since the two connections could have reached two servers.

use super::error::SourceError;
use pg_replication::lsn::Lsn;
use std::fmt;
use tokio_postgres::Client;
use tokio_postgres::types::PgLsn;

/// The server, as one statement saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFacts {
    /// `server_version_num`: 150018.
    pub version: u32,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// `wal_level`, as it is configured.
    pub wal_level: String,
    /// End of the WAL that is on its disk; on a standby, of what it has replayed.
    pub wal_end: Lsn,
    /// The cluster's identity, as `IDENTIFY_SYSTEM` prints it.
    pub system_identifier: String,
    /// The timeline it writes, or on a standby the one of its last restart point.
    pub timeline: u32,
    /// The database we are in.
    pub database: String,
    /// The database's encoding: `UTF8`, `SQL_ASCII` …
    pub encoding: String,
    /// The role we are.
    pub role: String,
    /// Whether the role may use replication (REPLICATION or superuser).
    pub replication: bool,
    /// Whether the role may create schemas and publications in the database.
    pub creates: bool,
}

/// What tells the process of one server from that of another. Two servers can have the same cluster identifier and
/// timeline (a primary and its standby, a copy of the files), and then no more than this in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// The cluster's identity.
    pub system_identifier: String,
    /// The timeline.
    pub timeline: u32,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// The database we are in.
    pub database: String,
    /// When the server was started, to the microsecond.
    pub started_at: String,
}

impl Instance {
    /// Why two sessions are not of one server, where they are not: a fragment.
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

/// That a replication connection and a control connection are not of one server: a fragment.
pub const TWO_SERVERS: &str = "two connections reached two servers: a failover is under way, or source.url leads \
     to more than one server, as a load balancer does: name the hosts themselves, with \
     target_session_attrs=read-write";

/// Whether the walsender of a replication connection is a process of this server, in this database.
///
/// # Errors
/// What the server says.
pub async fn has_backend(client: &Client, walsender: u32) -> Result<bool, SourceError> {
    let failed = |e| SourceError::control("look for our walsender", e);
    let sql = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS a WHERE a.pid = $1 \
                 AND a.datname = pg_catalog.current_database())";
    let row = client.query_one(sql, &[&walsender.cast_signed()]).await.map_err(failed)?;
    row.try_get(0).map_err(failed)
}

/// Asks the server which one it is.
///
/// # Errors
/// What the server says.
pub async fn instance(client: &Client) -> Result<Instance, SourceError> {
    let failed = |e| SourceError::control("look which server this is", e);
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

/// The first server whose `wal_level` is a floor: with `replica` the first logical slot raises `effective_wal_level` to
/// `logical`, and the last one that goes lowers it again (PostgreSQL 19, commit 67c20979ce72).
const RAISES_WAL_LEVEL: u32 = 190_000;

impl ServerFacts {
    /// Whether a logical slot can be made, or is served.
    pub fn decodes(&self) -> bool {
        self.wal_level == "logical"
            || (self.version >= RAISES_WAL_LEVEL && self.wal_level == "replica")
    }

    /// What `wal_level` has to be at least.
    pub fn wal_level_needed(&self) -> &'static str {
        if self.version >= RAISES_WAL_LEVEL { "replica" } else { "logical" }
    }
}

/// The system identifier as text. `IDENTIFY_SYSTEM` prints it unsigned, the function signed: the same until 2038, since
/// its high half is the time of `initdb`.
pub(super) const SYSTEM_IDENTIFIER_SQL: &str =
    "(SELECT system_identifier::pg_catalog.text FROM pg_catalog.pg_control_system())";

/// The timeline of a primary: the one in the name of the WAL file being written. The control file's lags behind a
/// promotion until the first checkpoint.
pub(super) const TIMELINE_SQL: &str = "('x' || pg_catalog.left(pg_catalog.pg_walfile_name(\
     pg_catalog.pg_current_wal_lsn()), 8))::pg_catalog.bit(32)::pg_catalog.int4";

/// Asks the server.
pub async fn read(client: &Client) -> Result<ServerFacts, SourceError> {
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
    Lsn::from_wire(value.into())
}

/// A position as a `pg_lsn` value.
pub(super) fn pg_lsn(position: Lsn) -> PgLsn {
    PgLsn::from(position.to_wire())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_servers_differ_in_any_of_what_tells_them_apart() {
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
