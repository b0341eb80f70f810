//! Columns that hold times: which of them have a time zone, their points in time as SQL, and whether the server and
//! this program read a zone in the same way.
//!
//! A column without a zone holds local times, and the row does not record the zone. If such a column decides whether or
//! when an event is published, a wrong guess drops events or delays them by hours. So nothing is guessed:
//! `source.time_zone` must be set.
//!
//! The server computes the points in time that the stream's mapper computes (`zone`, `outbox::time`): of an ambiguous
//! local time the later instant is an expiry, the earlier one a delay; a local time that does not exist is read with
//! the offset from before the change. `AT TIME ZONE` gives the later of two instants, and has the same rule for local
//! times that do not exist.

use super::error::SourceError;
use super::names::{TableName, Times, ident, literal};
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

/// Which of two instants an ambiguous local time means (when clocks are set back, local times occur twice).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AmbiguousTime {
    /// The earlier one.
    Earlier,
    /// The later one.
    Later,
}

/// An existing day of the years 1 to 9999, as in `outbox::time::is_plain`.
const DAY: &str = "(?!0000)([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
                   |02-(0[1-9]|1[0-9]|2[0-8]))\
                   |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// A time of day.
const TIME: &str = "[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?";
/// An offset from UTC.
const UTC_OFFSET: &str = "(Z|[+-](0[0-9]|1[0-5])(:[0-5][0-9]){0,2})";

/// The point in time of `value`, an expression of a type of this kind; NULL if a text is no time, which the mapper then
/// refuses.
pub fn instant_sql(
    kind: TimeType,
    zone: Option<&Zone>,
    value: &str,
    twice: AmbiguousTime,
) -> String {
    match kind {
        TimeType::Absolute | TimeType::Other => value.to_owned(),
        TimeType::Local => local(&format!("{value}::timestamp"), zone, twice),
        TimeType::Text => {
            let local = local("t.v::timestamp", zone, twice);
            format!(
                "(SELECT CASE WHEN t.v ~ {absolute} THEN t.v::timestamptz WHEN t.v ~ {plain} THEN {local} END \
                 FROM (SELECT rtrim({value}::text) AS v) AS t)",
                absolute = literal(&format!("^(-?infinity|{DAY}{TIME}{UTC_OFFSET})$")),
                plain = literal(&format!("^{DAY}({TIME})?$")),
            )
        }
    }
}

/// Without a configured zone, UTC. The result is not used then: the start check refuses columns without a zone that
/// decide about publication, and a replay refuses to select rows by one.
fn local(value: &str, zone: Option<&Zone>, twice: AmbiguousTime) -> String {
    let Some(zone) = zone else { return format!("({value} AT TIME ZONE 'UTC')") };
    let zone = literal(zone.name());
    // Outside of these bounds, and for infinity, UTC: `zone::Zone` has the same bounds.
    let has_rules = "l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01'";
    match twice {
        AmbiguousTime::Later => format!(
            "(SELECT CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} ELSE l.at AT TIME ZONE 'UTC' END \
             FROM (SELECT {value} AS at) AS l)"
        ),
        // The other instant of an ambiguous time has the offset of the day before.
        AmbiguousTime::Earlier => format!(
            "(SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE {zone} = l.at THEN e.at \
             ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END \
             FROM (SELECT l.at, CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} END AS later \
             FROM (SELECT {value} AS at) AS l) AS l \
             CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE {zone} \
             - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e)"
        ),
    }
}
