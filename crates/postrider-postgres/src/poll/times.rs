//! Times of columns as SQL: points in time out of columns without a zone, and back.
//!
//! The server computes what the stream's mapper computes (`zone`, `outbox::time`): of a local time that comes twice the
//! later instant is an expiry, the earlier one a delay; one that does not exist is read with the offset from before the
//! change. `AT TIME ZONE` gives the later of two, and has the same rule for what does not exist.

use super::table::Shape;
use crate::names::{ident, literal};
use crate::times::TimeType;
use postrider_core::zone::Zone;

/// Which of two instants is meant where a local time comes twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Twice {
    /// The earlier one.
    Earlier,
    /// The later one.
    Later,
}

/// A day of the years 1 to 9999 that exists. As `outbox::time::is_plain`.
const DAY: &str = "(?!0000)([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)\
                   |02-(0[1-9]|1[0-9]|2[0-8]))\
                   |([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// A time of day.
const TIME: &str = "[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?";
/// An offset.
const OFFSET: &str = "(Z|[+-](0[0-9]|1[0-5])(:[0-5][0-9]){0,2})";

/// The point in time of `column`; NULL where a text holds none, which the mapper then refuses.
pub(crate) fn instant(
    shape: &Shape,
    zone: Option<&Zone>,
    row: &str,
    column: &str,
    twice: Twice,
) -> String {
    instant_sql(shape.time_type(column), zone, &format!("{row}.{}", ident(column)), twice)
}

/// The same of any expression of such a type.
pub fn instant_sql(kind: TimeType, zone: Option<&Zone>, value: &str, twice: Twice) -> String {
    match kind {
        TimeType::Absolute | TimeType::Other => value.to_owned(),
        TimeType::Local => local(&format!("{value}::timestamp"), zone, twice),
        TimeType::Text => {
            let local = local("t.v::timestamp", zone, twice);
            format!(
                "(SELECT CASE WHEN t.v ~ {absolute} THEN t.v::timestamptz WHEN t.v ~ {plain} THEN {local} END \
                 FROM (SELECT rtrim({value}::text) AS v) AS t)",
                absolute = literal(&format!("^(-?infinity|{DAY}{TIME}{OFFSET})$")),
                plain = literal(&format!("^{DAY}({TIME})?$")),
            )
        }
    }
}

/// Without a zone it is UTC: nothing is decided by such a column then.
fn local(value: &str, zone: Option<&Zone>, twice: Twice) -> String {
    let Some(zone) = zone else { return format!("({value} AT TIME ZONE 'UTC')") };
    let zone = literal(zone.name());
    // Beyond these, and for infinity, as UTC: `zone::Zone` has the same bounds.
    let has_rules = "l.at >= timestamp '0001-01-02' AND l.at < timestamp '9999-12-01'";
    match twice {
        Twice::Later => format!(
            "(SELECT CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} ELSE l.at AT TIME ZONE 'UTC' END \
             FROM (SELECT {value} AS at) AS l)"
        ),
        // Where the time comes twice, its other instant has the offset of a day before.
        Twice::Earlier => format!(
            "(SELECT CASE WHEN e.at < l.later AND e.at AT TIME ZONE {zone} = l.at THEN e.at \
             ELSE coalesce(l.later, l.at AT TIME ZONE 'UTC') END \
             FROM (SELECT l.at, CASE WHEN {has_rules} THEN l.at AT TIME ZONE {zone} END AS later \
             FROM (SELECT {value} AS at) AS l) AS l \
             CROSS JOIN LATERAL (SELECT (l.at - ((l.later - interval '24 hours') AT TIME ZONE {zone} \
             - (l.later - interval '24 hours') AT TIME ZONE 'UTC')) AT TIME ZONE 'UTC' AS at) AS e)"
        ),
    }
}

/// What is written into `column` for a point in time.
pub(super) fn stored(shape: &Shape, zone: Option<&Zone>, column: &str, instant: &str) -> String {
    match (shape.time_type(column), zone) {
        (TimeType::Local, Some(zone)) => {
            format!("({instant}) AT TIME ZONE {}", literal(zone.name()))
        }
        // The session's zone is UTC.
        (TimeType::Local, None) | (TimeType::Absolute | TimeType::Text | TimeType::Other, _) => {
            instant.to_owned()
        }
    }
}
