//! Dates and times in documents: ISO 8601 texts, as PostgreSQL writes them into JSON, or whole numbers of the unit.
//! What the unit can't hold is refused and never cut off.

use super::misfit::Misfit;
use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;

/// The unit of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TimeUnit {
    Millis,
    Micros,
    Nanos,
}

impl TimeUnit {
    /// Nanoseconds of one unit.
    fn nanoseconds(self) -> i128 {
        match self {
            Self::Millis => 1_000_000,
            Self::Micros => 1_000,
            Self::Nanos => 1,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Millis => "millis",
            Self::Micros => "micros",
            Self::Nanos => "nanos",
        }
    }

    /// Nanoseconds in this unit.
    fn of(self, nanoseconds: i128) -> Result<i64, Misfit> {
        if nanoseconds % self.nanoseconds() != 0 {
            let words = format!("the time is finer than the schema's unit, {}", self.name());
            return Err(Misfit::new(words));
        }
        i64::try_from(nanoseconds / self.nanoseconds())
            .map_err(|_outside| Misfit::new("the time is out of the range of the type"))
    }
}

/// Days since 1970-01-01.
pub(super) fn days(text: &str) -> Result<i64, Misfit> {
    let wrong = || Misfit::new("expected a date such as 2026-11-29");
    if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return Err(wrong());
    }
    let date: Date = text.parse().map_err(|_invalid| wrong())?;
    let midnight = date.to_datetime(Time::midnight());
    let seconds = in_utc(midnight)?.as_second();
    Ok(seconds / 86_400)
}

/// Units since midnight.
pub(super) fn time_of_day(text: &str, unit: TimeUnit) -> Result<i64, Misfit> {
    let wrong = || Misfit::new("expected a time of day such as 18:30:00.250");
    let is_plain = |byte: u8| byte.is_ascii_digit() || matches!(byte, b':' | b'.');
    if !text.bytes().all(is_plain) || text.contains(":60") {
        return Err(wrong());
    }
    let time: Time = text.parse().map_err(|_invalid| wrong())?;
    let seconds = (i128::from(time.hour()) * 60 + i128::from(time.minute())) * 60;
    let seconds = seconds + i128::from(time.second());
    unit.of(seconds * 1_000_000_000 + i128::from(time.subsec_nanosecond()))
}

/// Units since 1970-01-01 00:00 UTC, of a time with its offset.
pub(super) fn timestamp(text: &str, unit: TimeUnit) -> Result<i64, Misfit> {
    let wrong = || Misfit::new("expected a time with its offset such as 2026-11-29T18:30:00.25Z");
    if text.contains(":60") || text.contains('[') {
        return Err(wrong());
    }
    let time: Timestamp = text.parse().map_err(|_invalid| wrong())?;
    unit.of(time.as_nanosecond())
}

/// Units since 1970-01-01 00:00, of a time without an offset.
pub(super) fn local_timestamp(text: &str, unit: TimeUnit) -> Result<i64, Misfit> {
    let wrong = || Misfit::new("expected a time without offset such as 2026-11-29T18:30:00.25");
    let has_offset = text.get(10..).is_none_or(|time| {
        time.is_empty() || time.contains(['Z', 'z', '+', '-', '[']) || time.contains(":60")
    });
    if has_offset {
        return Err(wrong());
    }
    let time: DateTime = text.parse().map_err(|_invalid| wrong())?;
    unit.of(in_utc(time)?.as_nanosecond())
}

fn in_utc(time: DateTime) -> Result<Timestamp, Misfit> {
    TimeZone::UTC
        .to_timestamp(time)
        .map_err(|_outside| Misfit::new("the time is out of the range of the type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_postgresql_writes_them_into_json() {
        assert_eq!(days("1970-01-01").unwrap(), 0);
        assert_eq!(days("1969-12-31").unwrap(), -1);
        assert_eq!(days("2026-11-29").unwrap(), 20_786);
        assert_eq!(time_of_day("18:30:00.25", TimeUnit::Millis).unwrap(), 66_600_250);
        let at = timestamp("2026-11-29T18:30:00.123456+02:00", TimeUnit::Micros).unwrap();
        assert_eq!(at, 1_795_969_800_123_456);
        assert_eq!(timestamp("1970-01-01T00:00:01Z", TimeUnit::Nanos).unwrap(), 1_000_000_000);
        let local = local_timestamp("1970-01-01T00:00:00.001", TimeUnit::Millis).unwrap();
        assert_eq!(local, 1);
    }

    #[test]
    fn what_the_unit_can_not_hold_is_refused() {
        let error = timestamp("2026-11-29T18:30:00.123456Z", TimeUnit::Millis).unwrap_err();
        assert_eq!(error.to_string(), "$: the time is finer than the schema's unit, millis");
        assert!(time_of_day("18:30:00.0001", TimeUnit::Millis).is_err());
        assert!(timestamp("9999-01-01T00:00:00Z", TimeUnit::Nanos).is_err());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["2026-11-29T18:00:00", "2026-13-29", "20 Nov", "", "infinity", "2026-11-29Z"] {
            assert!(days(text).is_err(), "{text}");
        }
        for text in ["24:00:00", "18:30:60", "18:30:00Z", "2026-11-29T18:30:00", ""] {
            assert!(time_of_day(text, TimeUnit::Micros).is_err(), "{text}");
        }
        for text in ["2026-11-29T18:30:00", "2026-11-29", "infinity", "2026-11-29T23:59:60Z", ""] {
            assert!(timestamp(text, TimeUnit::Micros).is_err(), "{text}");
        }
        for text in ["2026-11-29T18:30:00Z", "2026-11-29T18:30:00+01:00", "2026-11-29", "x", ""] {
            assert!(local_timestamp(text, TimeUnit::Micros).is_err(), "{text}");
        }
    }
}
