//! The format of figures, common to screen, lines and ledger.

use std::time::Duration;

/// `1,234,567`
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `498`, for a rate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is small and not negative"
)]
pub(super) fn rate(rate: f64) -> String {
    count(rate.round() as u64)
}

/// `0.8 ms`, `12 ms`, `1.2 s`; `-` for no measurement.
pub(super) fn duration(duration: Option<Duration>) -> String {
    let Some(duration) = duration else { return "-".to_owned() };
    let millis = duration.as_secs_f64() * 1000.0;
    if millis < 9.95 {
        format!("{millis:.1} ms")
    } else if millis < 999.5 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.1} s", millis / 1000.0)
    }
}

/// `23 MB`; `-` if unknown.
pub(super) fn memory(bytes: Option<u64>) -> String {
    bytes
        .map_or_else(|| "-".to_owned(), |bytes| format!("{:.0} MB", super::view::real(bytes) / 1e6))
}

/// `812 B`, `3.4 kB`, `12 MB`
pub(super) fn bytes(bytes: u64) -> String {
    let real = super::view::real(bytes);
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", real / 1e3),
        _ => format!("{:.1} MB", real / 1e6),
    }
}

/// `01:05`
pub(super) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_for_people() {
        assert_eq!([count(0), count(999), count(1_234_567)], ["0", "999", "1,234,567"]);
        let millis = |millis| duration(Some(Duration::from_millis(millis)));
        assert_eq!(
            [millis(3), millis(40), millis(999), millis(2_340)],
            ["3.0 ms", "40 ms", "999 ms", "2.3 s"]
        );
        assert_eq!(duration(Some(Duration::from_micros(9_960))), "10 ms");
        assert_eq!([bytes(12), bytes(3_400), bytes(12_000_000)], ["12 B", "3.4 kB", "12.0 MB"]);
        assert_eq!(clock(Duration::from_secs(65)), "01:05");
    }
}
