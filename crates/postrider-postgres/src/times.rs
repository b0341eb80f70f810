//! Columns that hold times: which of them have a time zone, and whether the server and this program read a zone in the
//! same way.
//!
//! A column without a zone holds local times, and the row does not record the zone. If such a column decides whether or
//! when an event is published, a wrong guess drops events or delays them by hours. So nothing is guessed:
//! `source.time_zone` must be set.

use super::error::SourceError;
use super::names::{TableName, Times, ident};
use crate::catalog::BASE_TYPE_SQL;
use postrider_core::zone::Zone;
use tokio_postgres::Client;

/// How a column of this type records times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimeType {
    /// `timestamptz`: points in time.
    Absolute,
    /// `timestamp` or `date`: a local time.
    Local,
    /// Text, which may or may not contain an offset.
    Text,
    /// Any other type.
    #[default]
    Other,
}

impl TimeType {
    /// The kind of the type with this OID; for a domain, of its base type.
    pub(super) const fn of(base: u32) -> Self {
        match base {
            1184 => Self::Absolute,
            1114 | 1082 => Self::Local,
            25 | 1042 | 1043 => Self::Text,
            _ => Self::Other,
        }
    }

    /// Whether a value may be a time without a zone.
    pub const fn lacks_zone(self) -> bool {
        matches!(self, Self::Local | Self::Text)
    }
}

/// A column that holds times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeColumn {
    /// The column.
    pub name: String,
    /// The column's type, as SQL writes it.
    pub type_name: String,
    /// The kind of the type.
    pub kind: TimeType,
}

/// How the server reads the configured zone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ServerZone {
    /// No zone is configured.
    #[default]
    None,
    /// The server has no zone of that name.
    Unknown,
    /// From this local day on, or earlier, it reads times differently from this program.
    Differs(String),
    /// As this program does.
    Same,
}

/// What is known about the table's times.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TimesFacts {
    /// The columns that [`Times`] names, as far as they exist.
    pub columns: Vec<TimeColumn>,
    /// The zone on the server.
    pub zone: ServerZone,
}

/// Days around today whose noons are compared: a year back, three years ahead.
const DAYS: std::ops::RangeInclusive<i32> = -366..=1096;

/// Reads the facts. `table` is the table's OID, if there is one.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn read(
    client: &Client,
    times: &Times,
    table: Option<u32>,
) -> Result<TimesFacts, SourceError> {
    let columns = match table {
        Some(oid) if times.names().next().is_some() => columns(client, times, oid).await?,
        Some(_) | None => Vec::new(),
    };
    let zone = match &times.zone {
        Some(zone) => compare(client, zone).await?,
        None => ServerZone::None,
    };
    Ok(TimesFacts { columns, zone })
}

async fn columns(client: &Client, times: &Times, oid: u32) -> Result<Vec<TimeColumn>, SourceError> {
    let failed = |e| SourceError::control("read the types of the columns that hold times", e);
    let sql = format!(
        "SELECT a.attname::pg_catalog.text, pg_catalog.format_type(a.atttypid, a.atttypmod), base.oid \
         FROM pg_catalog.pg_attribute a {BASE_TYPE_SQL} \
         WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY ($2) ORDER BY a.attnum"
    );
    let names: Vec<&str> = times.names().collect();
    let rows = client.query(&sql, &[&oid, &names]).await.map_err(failed)?;
    let column = |row: &tokio_postgres::Row| {
        Ok(TimeColumn {
            name: row.try_get(0)?,
            type_name: row.try_get(1)?,
            kind: TimeType::of(row.try_get(2)?),
        })
    };
    rows.iter().map(|row| column(row).map_err(failed)).collect()
}

/// Compares the rules for the zone: the server and this program have a time zone database each, and either may be
/// older.
async fn compare(client: &Client, zone: &Zone) -> Result<ServerZone, SourceError> {
    let failed = |e| SourceError::control("read how the server reads source.time_zone", e);
    let sql = "SELECT l.day::pg_catalog.text, \
                 (pg_catalog.date_part('epoch', l.day) * 1e6)::pg_catalog.int8, \
                 (pg_catalog.date_part('epoch', l.day AT TIME ZONE $1::pg_catalog.text) * 1e6)::pg_catalog.int8 \
               FROM (SELECT pg_catalog.date_trunc('day', pg_catalog.now() AT TIME ZONE 'UTC') \
                       + pg_catalog.make_interval(days => n, hours => 12) AS day \
                     FROM pg_catalog.generate_series($2::pg_catalog.int4, $3::pg_catalog.int4) AS g(n)) AS l \
               ORDER BY l.day";
    let days = client.query(sql, &[&zone.name(), DAYS.start(), DAYS.end()]).await;
    let rows = match days {
        Ok(rows) => rows,
        Err(error) => {
            let error = failed(error);
            // Only the zone's name can be our mistake: 22023, invalid_parameter_value.
            let unknown = error.sqlstate().is_some_and(|state| state.as_str() == "22023");
            return if unknown { Ok(ServerZone::Unknown) } else { Err(error) };
        }
    };
    for row in &rows {
        let (local, theirs): (i64, i64) =
            (row.try_get(1).map_err(failed)?, row.try_get(2).map_err(failed)?);
        if zone.instants(local).1 != theirs {
            let day: String = row.try_get(0).map_err(failed)?;
            return Ok(ServerZone::Differs(day));
        }
    }
    Ok(ServerZone::Same)
}

/// The time zones that sessions of this database get from settings of roles and databases, and the server's own if it
/// may be read: probably those of the application's sessions. Postrider's own sessions use UTC.
///
/// # Errors
/// An error of the server or of the connection.
pub async fn session_zones(client: &Client) -> Result<Vec<String>, SourceError> {
    let failed = |e| SourceError::control("read the time zones of sessions", e);
    let sql = "SELECT DISTINCT pg_catalog.split_part(s.setting, '=', 2) \
               FROM pg_catalog.pg_db_role_setting r, pg_catalog.unnest(r.setconfig) AS s(setting) \
               WHERE pg_catalog.lower(s.setting) LIKE 'timezone=%' AND r.setdatabase IN \
                 (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())) \
               ORDER BY 1";
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    rows.iter().map(|row| row.try_get(0).map_err(failed)).collect()
}

/// The statement that gives a column a zone; its values are read as local times of `zone`.
pub(super) fn with_zone(table: &TableName, column: &str, zone: &str) -> String {
    let column = ident(column);
    format!(
        "ALTER TABLE {table} ALTER COLUMN {column} TYPE timestamptz USING {column} AT TIME ZONE '{zone}'"
    )
}
