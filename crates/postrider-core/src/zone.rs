//! The time zone of columns without one (`source.time_zone`): converts a local time to points in time.
//!
//! The rules are those of PostgreSQL's `AT TIME ZONE`, because in polling the server computes the same. An ambiguous
//! local time, when clocks are set back, is two instants, and the caller chooses. A local time that does not exist,
//! when clocks are set forward, has the offset from before the change: 02:30 is half an hour after the change.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use std::fmt;

/// Local times outside these limits are taken for UTC: zone databases have no rules beyond the years 1 to 9999, and
/// both limits are far from any time of a delay or an expiry. The limits are 0001-01-02 and 9999-12-01; the SQL of
/// polling has the same. Unit: microseconds since the Unix epoch.
const LOCAL_MIN: i64 = -62_135_510_400_000_000;
const LOCAL_MAX: i64 = 253_399_622_400_000_000;

/// A time zone and its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone {
    name: String,
    rules: TimeZone,
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Zone").field(&self.name).finish()
    }
}

impl Zone {
    /// The zone of a name such as `America/New_York`, or of `UTC`; `None` if the name is not known.
    ///
    /// Other names without a slash, such as `CET` or `EST`, are refused: `AT TIME ZONE` takes them for an abbreviation
    /// with a fixed offset, and the zone database for a zone that may have summer time.
    pub fn named(name: &str) -> Option<Self> {
        if name != "UTC" && !name.contains('/') {
            return None;
        }
        let rules = TimeZone::get(name).ok()?;
        Some(Self { name: name.to_owned(), rules })
    }

    /// The name, as given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The earlier and the later instant of a local time, usually the same. The local time is given as if it were UTC.
    /// Unit: microseconds since the Unix epoch.
    pub fn instants(&self, local: i64) -> (i64, i64) {
        self.computed(local).unwrap_or((local, local))
    }

    fn computed(&self, local: i64) -> Option<(i64, i64)> {
        if !(LOCAL_MIN..LOCAL_MAX).contains(&local) {
            return None;
        }
        let utc = jiff::Timestamp::from_microsecond(local).ok()?;
        let civil: DateTime = TimeZone::UTC.to_datetime(utc);
        let ambiguous = self.rules.to_ambiguous_timestamp(civil);
        let (earlier, later) = if matches!(ambiguous.offset(), AmbiguousOffset::Fold { .. }) {
            (ambiguous.earlier().ok()?, ambiguous.later().ok()?)
        } else {
            let only = ambiguous.compatible().ok()?;
            (only, only)
        };
        Some((earlier.as_microsecond(), later.as_microsecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(zone: &str, local: &str) -> (i64, i64) {
        Zone::named(zone).unwrap().instants(utc(local))
    }

    fn utc(text: &str) -> i64 {
        let civil: DateTime = text.parse().unwrap();
        TimeZone::UTC.to_timestamp(civil).unwrap().as_microsecond()
    }

    #[test]
    fn a_local_time_is_an_instant_or_two() {
        for (zone, local, earlier, later) in [
            ("UTC", "2026-03-08 02:30:00", "2026-03-08 02:30:00", "2026-03-08 02:30:00"),
            ("Asia/Tokyo", "2026-03-08 02:30:00", "2026-03-07 17:30:00", "2026-03-07 17:30:00"),
            (
                "America/New_York",
                "2026-01-01 12:00:00",
                "2026-01-01 17:00:00",
                "2026-01-01 17:00:00",
            ),
            // Clocks go from 02:00 to 03:00: this local time does not exist.
            (
                "America/New_York",
                "2026-03-08 02:30:00",
                "2026-03-08 07:30:00",
                "2026-03-08 07:30:00",
            ),
            // Clocks go from 02:00 to 01:00: this local time is ambiguous.
            (
                "America/New_York",
                "2026-11-01 01:30:00",
                "2026-11-01 05:30:00",
                "2026-11-01 06:30:00",
            ),
            (
                "Europe/Berlin",
                "2026-10-25 02:30:00.5",
                "2026-10-25 00:30:00.5",
                "2026-10-25 01:30:00.5",
            ),
            ("Europe/Berlin", "2026-03-29 02:30:00", "2026-03-29 01:30:00", "2026-03-29 01:30:00"),
            (
                "Australia/Lord_Howe",
                "2026-04-05 01:45:00",
                "2026-04-04 14:45:00",
                "2026-04-04 15:15:00",
            ),
            // Outside the limits.
            ("Asia/Tokyo", "9999-12-15 00:00:00", "9999-12-15 00:00:00", "9999-12-15 00:00:00"),
            (
                "Asia/Tokyo",
                "-000001-01-01 00:00:00",
                "-000001-01-01 00:00:00",
                "-000001-01-01 00:00:00",
            ),
        ] {
            assert_eq!(both(zone, local), (utc(earlier), utc(later)), "{zone} {local}");
        }
    }

    #[test]
    fn only_names_with_the_same_meaning_in_postgresql_are_accepted() {
        for name in ["America/New_York", "Asia/Tokyo", "Europe/Berlin", "UTC", "Etc/UTC"] {
            assert_eq!(Zone::named(name).map(|zone| zone.name().to_owned()), Some(name.to_owned()));
        }
        for name in ["", "CET", "EST", "local", "Mars/Olympus", "+02:00", "America/New York"] {
            assert!(Zone::named(name).is_none(), "{name}");
        }
    }
}
