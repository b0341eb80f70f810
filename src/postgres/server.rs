//! What the server says of itself: version, role, end of WAL, history.
//!
//! Only reads. The timeline and the system identifier also come from `IDENTIFY_SYSTEM` on the replication connection;
//! both must agree, which `fence` checks, since the two connections could have reached two servers.

use super::error::SourceError;
use crate::lsn::Lsn;
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
