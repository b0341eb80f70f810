//! Timestamps as PostgreSQL prints them with `DateStyle = ISO`: `2024-01-02 03:04:05.678+00`, `0044-03-15 12:00:00 BC`.

use postrider_core::event::AHEAD_MAX_MS;
use postrider_core::timestamp::Timestamp;
use postrider_core::zone::Zone;

const DAY_MICROS: i64 = 86_400_000_000;

/// Microseconds of the last digit of a fraction of a second, by the number of digits.
pub(super) const MICROS_OF_DIGITS: [i64; 7] = [1_000_000, 100_000, 10_000, 1_000, 100, 10, 1];

/// A date or time as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ParsedTime {
    /// Microseconds since the Unix epoch; without an offset as if it were UTC.
    pub(super) micros: i64,
    /// Whether the text has an offset: then the value is a point in time, whatever the zone.
    pub(super) offset: bool,
}

/// Reads a date, `timestamp` or `timestamptz`; `None` for `infinity`, for other texts, and for values beyond 64 bits.
pub(super) fn read(text: &[u8]) -> Option<ParsedTime> {
    let mut text = TimeReader(text);
    let bc = text.0.strip_suffix(b" BC");
    text.0 = bc.unwrap_or(text.0);
    let (year, digits) = text.number()?;
    if !(4..=6).contains(&digits) {
        return None;
    }
    text.byte(b'-')?;
    let month = text.two_digits(1, 12)?;
    text.byte(b'-')?;
    let day = text.two_digits(1, 31)?;
    let year = if bc.is_some() { 1 - year } else { year };
    let mut micros = days_from_civil(year, month, day).checked_mul(DAY_MICROS)?;
    let mut offset = false;
    if text.byte(b' ').or_else(|| text.byte(b'T')).is_some() {
        micros = micros.checked_add(text.time_of_day()?)?;
        offset = !text.0.is_empty();
        micros = micros.checked_sub(text.zone()?)?;
    }
    text.0.is_empty().then_some(ParsedTime { micros, offset })
}

/// As [`read`], with a time without an offset as UTC.
pub(super) fn parse(text: &[u8]) -> Option<i64> {
    read(text).map(|parsed| parsed.micros)
}

/// Which of its two instants an ambiguous local time is. Local times are ambiguous when clocks are set back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ambiguous {
    /// The earlier, for `available_at`: no event waits an hour too long.
    Earlier,
    /// The later, for `expires_at`: no event expires an hour too soon.
    Later,
}

/// Why a text is not a point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InstantError {
    /// The text is not a date or time.
    Unreadable,
    /// The text has no offset, and no zone is configured.
    NoZone,
}

/// The point in time of a text. `infinity` is later than any other time, `-infinity` earlier.
pub(super) fn instant(
    text: &[u8],
    zone: Option<&Zone>,
    ambiguous: Ambiguous,
) -> Result<Timestamp, InstantError> {
    match text {
        b"infinity" => return Ok(Timestamp::MAX),
        b"-infinity" => return Ok(Timestamp::MIN),
        _ => {}
    }
    let parsed = read(text).ok_or(InstantError::Unreadable)?;
    let unix_micros = match (parsed.offset, zone) {
        (true, _) => parsed.micros,
        (false, Some(zone)) => {
            let (earlier, later) = zone.instants(parsed.micros);
            if ambiguous == Ambiguous::Earlier { earlier } else { later }
        }
        (false, None) => return Err(InstantError::NoZone),
    };
    Ok(Timestamp { unix_micros })
}

/// Whether a text is a time that a column of type text may have: years 1 to 9999, an existing day, an optional offset.
/// Polling has the same rule in SQL (`postgres::times`), so that a row means the same in both modes.
pub(super) fn is_plain(text: &[u8]) -> bool {
    match text {
        b"infinity" | b"-infinity" => return true,
        _ => {}
    }
    let mut rest = TimeReader(text);
    let mut plain = || {
        let (year, digits) = rest.number()?;
        rest.byte(b'-')?;
        let month = rest.two_digits(1, 12)?;
        rest.byte(b'-')?;
        let day = rest.two_digits(1, 31)?;
        let exists = civil_from_days(days_from_civil(year, month, day)) == (year, month, day);
        if digits != 4 || year == 0 || !exists {
            return None;
        }
        if rest.0.is_empty() {
            return Some(());
        }
        rest.byte(b' ').or_else(|| rest.byte(b'T'))?;
        rest.two_digits(0, 23)?;
        for _ in 0..2 {
            rest.byte(b':')?;
            rest.two_digits(0, 59)?;
        }
        if rest.byte(b'.').is_some() {
            let (_, digits) = rest.number()?;
            (digits <= 6).then_some(())?;
        }
        if rest.0.is_empty() || rest.byte(b'Z').is_some() {
            return Some(());
        }
        rest.byte(b'+').or_else(|| rest.byte(b'-'))?;
        rest.two_digits(0, 15)?;
        for _ in 0..2 {
            if rest.byte(b':').is_some() {
                rest.two_digits(0, 59)?;
            }
        }
        Some(())
    };
    plain().is_some() && rest.0.is_empty()
}

/// Microseconds since midnight of a `time`.
pub(super) fn parse_time_of_day(text: &[u8]) -> Option<i64> {
    let mut text = TimeReader(text);
    let micros = text.time_of_day()?;
    text.0.is_empty().then_some(micros)
}

/// Microseconds east of a zone as PostgreSQL prints it, `+05:30`.
pub(super) fn parse_zone(text: &[u8]) -> Option<i64> {
    let mut text = TimeReader(text);
    let micros = text.zone()?;
    text.0.is_empty().then_some(micros)
}

/// Days between 1970-01-01 and a date of the proleptic Gregorian calendar, in which year 0 is 1 BC.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so the leap day is a year's last; an era has 400 years and 146,097 days.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a number of days since 1970-01-01: the inverse of [`days_from_civil`].
pub(super) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[inline]
fn digit(byte: u8) -> Option<i64> {
    let digit = byte.wrapping_sub(b'0');
    (digit < 10).then_some(i64::from(digit))
}

/// Reads a text; holds the unread rest.
struct TimeReader<'t>(&'t [u8]);

impl TimeReader<'_> {
    #[inline]
    fn byte(&mut self, wanted: u8) -> Option<()> {
        let (&first, rest) = self.0.split_first()?;
        if first != wanted {
            return None;
        }
        self.0 = rest;
        Some(())
    }

    /// Up to nine digits: their value and their number.
    fn number(&mut self) -> Option<(i64, usize)> {
        let (mut value, mut count) = (0, 0);
        while let Some(digit) = self.0.get(count).copied().and_then(digit) {
            if count == 9 {
                return None;
            }
            value = value * 10 + digit;
            count += 1;
        }
        self.0 = self.0.get(count..)?;
        (count > 0).then_some((value, count))
    }

    /// Two digits. A third one remains, and the caller detects it.
    #[inline]
    fn two_digits(&mut self, low: i64, high: i64) -> Option<i64> {
        let (&[tens, ones], rest) = self.0.split_first_chunk()?;
        let value = digit(tens)? * 10 + digit(ones)?;
        self.0 = rest;
        (low..=high).contains(&value).then_some(value)
    }

    /// `03:04:05.678`, in microseconds. PostgreSQL prints 24:00:00 for the end of a day.
    fn time_of_day(&mut self) -> Option<i64> {
        let hour = self.two_digits(0, 24)?;
        self.byte(b':')?;
        let minute = self.two_digits(0, 59)?;
        self.byte(b':')?;
        let second = self.two_digits(0, 60)?;
        let micros = if self.byte(b'.').is_some() {
            let (fraction, digits) = self.number()?;
            match MICROS_OF_DIGITS.get(digits) {
                Some(micros) => fraction * micros,
                None => fraction / 10_i64.pow(u32::try_from(digits).ok()?.checked_sub(6)?),
            }
        } else {
            0
        };
        Some((hour * 3600 + minute * 60 + second) * 1_000_000 + micros)
    }

    /// `+05:30`, `-00:12:34`, `Z` or nothing, in microseconds east.
    fn zone(&mut self) -> Option<i64> {
        let sign = if self.byte(b'+').is_some() {
            1
        } else if self.byte(b'-').is_some() {
            -1
        } else {
            // Anything else remains, and the caller detects it.
            return self.byte(b'Z').or(Some(())).map(|()| 0);
        };
        let mut seconds = self.two_digits(0, 23)? * 3600;
        for unit in [60, 1] {
            if self.byte(b':').is_some() {
                seconds += self.two_digits(0, 59)? * unit;
            }
        }
        Some(sign * seconds * 1_000_000)
    }
}

/// Bytes of `2024-01-02 03:04:05`.
const SECOND_BYTES: usize = 19;

/// Reads the times of events. It caches the last time that had a fraction, because times of one second differ only in
/// the fraction.
#[derive(Debug, Default)]
pub(super) struct TimeCache {
    /// `2024-01-02 03:04:05`.
    second: [u8; SECOND_BYTES],
    /// What follows the fraction: `+00`.
    zone: Vec<u8>,
    /// The instants of that second.
    start: Local,
}

/// The two instants of a local time, usually the same. Unit: microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Local {
    earlier: i64,
    later: i64,
}

impl Local {
    /// A time without an offset is in `zone`, or in UTC without a zone.
    fn of(parsed: ParsedTime, zone: Option<&Zone>) -> Self {
        let (earlier, later) = match zone {
            Some(zone) if !parsed.offset => zone.instants(parsed.micros),
            Some(_) | None => (parsed.micros, parsed.micros),
        };
        Self { earlier, later }
    }

    fn shifted(self, micros: i64) -> Option<Self> {
        let (earlier, later) = (self.earlier.checked_add(micros)?, self.later.checked_add(micros)?);
        Some(Self { earlier, later })
    }

    /// The instant that is nearer to the commit.
    fn near(self, commit: Timestamp) -> i64 {
        let distance = |micros: i64| micros.abs_diff(commit.unix_micros);
        if distance(self.earlier) <= distance(self.later) { self.earlier } else { self.later }
    }
}

impl TimeCache {
    /// The record's timestamp, in milliseconds since the Unix epoch, from the event's own time; and whether it is the
    /// time of the commit, because the own time is not readable, not after 1970 (Kafka has no such timestamps), or more
    /// than an hour ahead.
    #[inline]
    pub(super) fn stamp(
        &mut self,
        text: &[u8],
        commit: Timestamp,
        zone: Option<&Zone>,
    ) -> (i64, bool) {
        let commit_ms = commit.unix_millis();
        let own = self.parse(text, zone).map(|own| own.near(commit).div_euclid(1000));
        match own.filter(|ms| *ms > 0 && *ms <= commit_ms.saturating_add(AHEAD_MAX_MS)) {
            Some(ms) => (ms, false),
            None => (commit_ms, true),
        }
    }

    /// As [`read`], in `zone`, which must be the same in each call.
    #[inline]
    fn parse(&mut self, text: &[u8], zone: Option<&Zone>) -> Option<Local> {
        let Some((second, fraction, offset)) = split(text) else {
            return Some(Local::of(read(text)?, zone));
        };
        if *second == self.second && offset == self.zone {
            return self.start.shifted(fraction);
        }
        let local = Local::of(read(text)?, zone);
        self.second = *second;
        self.start = local.shifted(-fraction)?;
        self.zone.clear();
        self.zone.extend_from_slice(offset);
        Some(local)
    }
}

/// Splits a time with one to six digits of a fraction into second, microseconds and zone.
#[inline]
fn split(text: &[u8]) -> Option<(&[u8; SECOND_BYTES], i64, &[u8])> {
    let (second, rest) = text.split_first_chunk()?;
    let rest = rest.strip_prefix(b".")?;
    let (mut fraction, mut digits) = (0, 0);
    while let Some(byte) = rest.get(digits).filter(|byte| byte.is_ascii_digit()) {
        fraction = fraction * 10 + i64::from(byte - b'0');
        digits += 1;
        if digits == MICROS_OF_DIGITS.len() {
            return None;
        }
    }
    let zone = rest.get(digits..)?;
    (digits > 0).then_some((second, fraction * MICROS_OF_DIGITS.get(digits)?, zone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = String> {
        let second = prop::sample::select(vec![
            "2024-01-02 03:04:05",
            "2024-01-02 03:04:06",
            "0044-03-15 12:00:00",
            "10000-01-01 00:00:00",
            "2024-13-02 03:04:05",
        ]);
        let zone = prop::sample::select(vec!["+00", "-05:30", "", " BC", "Z", "+", "x"]);
        (second, "(\\.[0-9]{0,8})?", zone)
            .prop_map(|(second, rest, zone)| format!("{second}{rest}{zone}"))
    }

    proptest! {
        #[test]
        fn the_cache_never_changes_a_result(texts in prop::collection::vec(text(), 1..20)) {
            let zone = Zone::named("Asia/Tokyo");
            for zone in [None, zone.as_ref()] {
                let mut clock = TimeCache::default();
                for text in &texts {
                    let alone = read(text.as_bytes()).map(|parsed| Local::of(parsed, zone));
                    prop_assert_eq!(clock.parse(text.as_bytes(), zone), alone, "{}", text);
                }
            }
        }
    }
}
