//! Reads the times of events, and remembers the last: those of one second differ in its fraction alone.

use super::time::{self, MICROS_OF_DIGITS, Written};
use postrider_core::event::{AHEAD_MAX_MS, PgTime};
use postrider_core::zone::Zone;

/// Bytes of `2024-01-02 03:04:05`.
const SECOND_BYTES: usize = 19;

/// The last time that was read whole, if it had a fraction.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// `2024-01-02 03:04:05`.
    second: [u8; SECOND_BYTES],
    /// What follows the fraction: `+00`.
    zone: Vec<u8>,
    /// That second.
    start: Local,
}

/// The two instants that a time can be, mostly the same. Unit: microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Local {
    earlier: i64,
    later: i64,
}

impl Local {
    /// A time without an offset is one of `zone`; without a zone it is UTC.
    fn of(written: Written, zone: Option<&Zone>) -> Self {
        let (earlier, later) = match zone {
            Some(zone) if !written.offset => zone.instants(written.micros),
            Some(_) | None => (written.micros, written.micros),
        };
        Self { earlier, later }
    }

    fn shifted(self, micros: i64) -> Option<Self> {
        let (earlier, later) = (self.earlier.checked_add(micros)?, self.later.checked_add(micros)?);
        Some(Self { earlier, later })
    }

    /// Of a time that comes twice, the one nearer to the commit.
    fn near(self, commit: PgTime) -> i64 {
        let distance = |micros: i64| micros.abs_diff(commit.unix_micros());
        if distance(self.earlier) <= distance(self.later) { self.earlier } else { self.later }
    }
}

impl Clock {
    /// The record's timestamp for an event's own time: milliseconds since the Unix epoch, and whether the commit's had
    /// to be taken because the own one is none, not after 1970 (Kafka has no such stamps), or more than an hour ahead.
    #[inline]
    pub(super) fn stamp(
        &mut self,
        text: &[u8],
        commit: PgTime,
        zone: Option<&Zone>,
    ) -> (i64, bool) {
        let commit_ms = commit.unix_millis();
        let own = self.parse(text, zone).map(|own| own.near(commit).div_euclid(1000));
        match own.filter(|ms| *ms > 0 && *ms <= commit_ms.saturating_add(AHEAD_MAX_MS)) {
            Some(ms) => (ms, false),
            None => (commit_ms, true),
        }
    }

    /// As [`time::read`], in `zone`, which is always the same.
    #[inline]
    fn parse(&mut self, text: &[u8], zone: Option<&Zone>) -> Option<Local> {
        let Some((second, fraction, offset)) = split(text) else {
            return Some(Local::of(time::read(text)?, zone));
        };
        if *second == self.second && offset == self.zone {
            return self.start.shifted(fraction);
        }
        let local = Local::of(time::read(text)?, zone);
        self.second = *second;
        self.start = local.shifted(-fraction)?;
        self.zone.clear();
        self.zone.extend_from_slice(offset);
        Some(local)
    }
}

/// Second, microseconds and zone of a time that has up to six digits behind the second's point.
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
        fn what_is_remembered_never_shows(texts in prop::collection::vec(text(), 1..20)) {
            let zone = Zone::named("Asia/Tokyo");
            for zone in [None, zone.as_ref()] {
                let mut clock = Clock::default();
                for text in &texts {
                    let alone = time::read(text.as_bytes()).map(|written| Local::of(written, zone));
                    prop_assert_eq!(clock.parse(text.as_bytes(), zone), alone, "{}", text);
                }
            }
        }
    }
}
