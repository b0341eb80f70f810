//! Timestamps as PostgreSQL prints them.

use super::support::{
    COMMIT_TIME, ColumnSpec, DATE, INT, JSON, TEXT, TIMESTAMP, TIMESTAMPTZ, UNKNOWN, UUID,
    map_with, null, text, typed,
};
use crate::time::{Ambiguous, InstantError, TimeCache, civil_from_days, instant, is_plain, parse};
use crate::{Layout, MapError, OutboxSpec, Role, TimestampSource, Unfit};
use postrider_core::timestamp::Timestamp;
use postrider_core::zone::Zone;

const COMMIT_MS: i64 = 1_704_164_645_500;

#[test]
fn timestamps_of_every_shape_are_read() {
    for (text, micros) in [
        ("1970-01-01 00:00:00", 0_i64),
        ("2024-01-02 03:04:05.678901+00", 1_704_164_645_678_901),
        ("2024-01-02 03:04:05.6+00", 1_704_164_645_600_000),
        ("2024-01-02 08:34:05+05:30", 1_704_164_645_000_000),
        ("2024-01-01 22:04:05-05", 1_704_164_645_000_000),
        ("1850-01-01 00:00:00-00:01:15", -3_786_825_525_000_000),
        ("2024-02-29", 1_709_164_800_000_000),
        ("2000-03-01 00:00:00+00", 951_868_800_000_000),
        ("2024-01-02T03:04:05Z", 1_704_164_645_000_000),
        ("1969-12-31 23:59:59.999999+00", -1),
        ("10000-01-01 00:00:00+00", 253_402_300_800_000_000),
        ("0001-01-01 00:00:00+00 BC", -62_167_219_200_000_000),
        ("4714-11-24 00:00:00 BC", -210_866_803_200_000_000),
    ] {
        assert_eq!(parse(text.as_bytes()), Some(micros), "{text}");
    }
}

#[test]
fn what_is_not_a_timestamp_is_none() {
    for text in [
        "",
        "infinity",
        "-infinity",
        "now",
        "2024",
        "2024-01",
        "2024-1-02",
        "2024-13-01",
        "24-01-02",
        "2024-01-02 ",
        "2024-01-02 03:04",
        "2024-01-02 03:04:05+",
        "2024-01-02 03:04:05 UTC",
        "01/02/2024 03:04:05",
        "2024-01-02 03:04:05.+00",
        "2024-01-02 03:04:05.1234567890",
        "9999999-01-01",
        "294276-12-31 23:59:59",
        "\u{661}",
        "2024-01-02 25:00:00",
    ] {
        assert_eq!(parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn days_and_dates_are_inverse() {
    for days in (-1_000_000..1_000_000).step_by(97) {
        let (year, month, day) = civil_from_days(days);
        let text = if year > 0 {
            format!("{year:04}-{month:02}-{day:02}")
        } else {
            format!("{:04}-{month:02}-{day:02} BC", 1 - year)
        };
        assert_eq!(parse(text.as_bytes()), Some(days * 86_400_000_000), "{text}");
    }
}

#[test]
fn a_time_that_cannot_be_a_stamp_gives_way_to_the_commits() {
    for (text, stamped) in [
        ("2024-01-02 03:04:05.678901+00", (1_704_164_645_678, false)),
        ("2001-01-01 00:00:00+00", (978_307_200_000, false)),
        ("2024-01-02 04:04:05.5+00", (COMMIT_MS + 3_600_000, false)),
        ("2024-01-02 04:04:05.501+00", (COMMIT_MS, true)),
        ("10000-01-01 00:00:00+00", (COMMIT_MS, true)),
        ("1970-01-01 00:00:00+00", (COMMIT_MS, true)),
        ("0044-03-15 12:00:00+00 BC", (COMMIT_MS, true)),
        ("infinity", (COMMIT_MS, true)),
        ("-infinity", (COMMIT_MS, true)),
        ("yesterday", (COMMIT_MS, true)),
    ] {
        assert_eq!(
            TimeCache::default().stamp(text.as_bytes(), COMMIT_TIME, None),
            stamped,
            "{text}"
        );
    }
}

#[test]
fn the_stamp_is_the_events_the_commits_or_the_brokers() {
    for (timestamp, own, expected) in [
        (TimestampSource::Event, Some("2024-01-02 03:04:05+00"), (Some(1_704_164_645_000), false)),
        (TimestampSource::Event, None, (Some(COMMIT_MS), false)),
        (TimestampSource::Event, Some("infinity"), (Some(COMMIT_MS), true)),
        (TimestampSource::Commit, Some("infinity"), (Some(COMMIT_MS), false)),
        (TimestampSource::Broker, Some("infinity"), (None, false)),
    ] {
        let spec = OutboxSpec { timestamp, ..OutboxSpec::for_layout(Layout::Postrider) };
        let columns = [
            typed("id", INT, "42"),
            text("aggregate_type", "order"),
            text("aggregate_id", "o-7"),
            text("event_type", "OrderPlaced"),
            typed("payload", JSON, "{}"),
            null("headers", JSON),
            ("created_at", TIMESTAMPTZ, own),
        ];
        map_with(spec, &columns, |mapped| {
            let mapped = mapped.unwrap().unwrap();
            assert_eq!((mapped.record().timestamp_ms, mapped.clamped), expected);
        });
    }
}

#[test]
fn an_event_says_from_when_until_when_it_may_be_published() {
    let at = |text: &[u8]| instant(text, None, Ambiguous::Earlier);
    let micros = |text: &[u8]| at(text).map(|at| at.unix_micros);
    assert_eq!(micros(b"2024-01-02 03:04:05.5+00"), Ok(1_704_164_645_500_000));
    assert_eq!(at(b"infinity"), Ok(Timestamp::MAX));
    assert_eq!(at(b"-infinity"), Ok(Timestamp::MIN));
    assert_eq!(at(b"soon"), Err(InstantError::Unreadable));
    assert_eq!(at(b"2024-01-02 03:04:05"), Err(InstantError::NoZone));

    let row = [
        typed("id", INT, "1"),
        text("aggregate_type", "Order"),
        typed("aggregate_id", INT, "7"),
        text("event_type", "x"),
        typed("payload", JSON, "{}"),
        typed("occurred_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
        null("trace_id", TEXT),
        typed("tenant_id", INT, "1"),
        typed("event_version", INT, "1"),
        typed("available_at", TIMESTAMPTZ, "2024-01-02 03:05:05+00"),
    ];
    let limits = |spec, columns: &[ColumnSpec<'_>]| {
        map_with(spec, columns, |mapped| {
            let mapped = mapped.unwrap().unwrap();
            (mapped.available_at.map(Timestamp::unix_millis), mapped.expires_at)
        })
    };
    let commerce = OutboxSpec::for_layout(Layout::Commerce);
    assert_eq!(limits(commerce.clone(), &row), (Some(1_704_164_705_000), None));
    assert_eq!(limits(commerce.clone(), &row[..9]), (None, None), "the column may be missing");
    let mut by_hand = commerce.clone();
    by_hand.columns.push((Role::AvailableAt, String::new()));
    assert_eq!(limits(by_hand.clone(), &row), (None, None));
    by_hand.columns.push((Role::AvailableAt, "not_before".to_owned()));
    map_with(by_hand, &row, |mapped| {
        assert!(mapped.is_err(), "a column named by hand must be there");
    });
}

/// A row of layout gcx with one column of another type or value.
fn gcx(expires_at: ColumnSpec<'_>) -> Vec<ColumnSpec<'_>> {
    vec![
        typed("id", UUID, "00000000-0000-0000-0000-000000000001"),
        text("aggregate_type", "Order"),
        typed("aggregate_id", UUID, "00000000-0000-0000-0000-000000000002"),
        text("event_type", "x"),
        typed("payload", JSON, "{}"),
        null("headers", JSON),
        text("topic", "orders"),
        null("partition_key", TEXT),
        typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
        expires_at,
    ]
}

#[test]
fn a_time_without_a_zone_is_refused_where_it_decides_and_read_in_the_configured_one() {
    let hour_twice = "2026-11-01 01:30:00";
    for (zone, kind, value, expected) in [
        (None, TIMESTAMPTZ, "2026-11-01 01:30:00-04", Ok("2026-11-01 05:30:00")),
        (None, TIMESTAMP, hour_twice, Err("no zone")),
        (None, DATE, "2026-11-01", Err("no zone")),
        (None, TEXT, "2026-11-01 01:30:00-04", Err("no zone")),
        (None, UNKNOWN, hour_twice, Err("park")),
        (None, UNKNOWN, "2026-11-01 01:30:00-04", Ok("2026-11-01 05:30:00")),
        (
            Some("America/New_York"),
            TIMESTAMPTZ,
            "2026-11-01 01:30:00+00",
            Ok("2026-11-01 01:30:00"),
        ),
        // An expiry: the later of two.
        (Some("America/New_York"), TIMESTAMP, hour_twice, Ok("2026-11-01 06:30:00")),
        (Some("America/New_York"), UNKNOWN, hour_twice, Ok("2026-11-01 06:30:00")),
        (Some("America/New_York"), DATE, "2026-11-01", Ok("2026-11-01 04:00:00")),
        (Some("America/New_York"), TEXT, hour_twice, Ok("2026-11-01 06:30:00")),
        (Some("America/New_York"), TEXT, "2026-11-01T05:30:00Z", Ok("2026-11-01 05:30:00")),
        (Some("America/New_York"), TEXT, "tomorrow", Err("park")),
        (Some("America/New_York"), TEXT, "2026-02-30", Err("park")),
        (Some("Asia/Tokyo"), TIMESTAMP, "2026-11-01 01:30:00", Ok("2026-10-31 16:30:00")),
        (Some("UTC"), TIMESTAMP, hour_twice, Ok("2026-11-01 01:30:00")),
    ] {
        let mut spec = OutboxSpec::for_layout(Layout::Gcx);
        spec.zone = zone.map(|zone| Zone::named(zone).unwrap());
        let row = gcx(typed("expires_at", kind, value));
        let got = map_with(spec, &row, |mapped| match mapped {
            Ok(mapped) => Ok(mapped.unwrap().expires_at.unwrap().unix_micros),
            Err(MapError::Unfit(Unfit::NoZone { .. })) => Err("no zone"),
            Err(MapError::Poison(poison)) => {
                assert_eq!(poison.problem.code(), "time");
                Err("park")
            }
            Err(other) => panic!("{other}"),
        });
        let expected = expected.map(|utc: &str| parse(utc.as_bytes()).unwrap());
        assert_eq!(got, expected, "{zone:?} type {kind:?} {value}");
    }
}

/// An event whose delay can't be read is parked. It is not published before its time.
#[test]
fn a_delay_that_is_no_time_is_poison() {
    let mut spec = OutboxSpec::for_layout(Layout::Commerce);
    spec.zone = Zone::named("America/New_York");
    for (value, expected) in [("2026-11-02 01:30:00", Ok(true)), ("tomorrow", Err("time"))] {
        let row = [
            typed("id", INT, "1"),
            text("aggregate_type", "Order"),
            typed("aggregate_id", INT, "7"),
            text("event_type", "x"),
            typed("payload", JSON, "{}"),
            typed("occurred_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
            null("trace_id", TEXT),
            typed("tenant_id", INT, "1"),
            typed("event_version", INT, "1"),
            typed("available_at", TEXT, value),
        ];
        let got = map_with(spec.clone(), &row, |mapped| match mapped {
            Ok(mapped) => Ok(mapped.unwrap().available_at.is_some()),
            Err(MapError::Poison(poison)) => Err(poison.problem.code()),
            Err(other) => panic!("{other}"),
        });
        assert_eq!(got, expected, "{value}");
    }
}

#[test]
fn of_the_hour_that_comes_twice_a_delay_counts_the_earlier_one() {
    let zone = Zone::named("Europe/Berlin");
    let at = |twice| instant(b"2026-10-25 02:30:00", zone.as_ref(), twice).unwrap().unix_micros;
    assert_eq!(at(Ambiguous::Earlier), parse(b"2026-10-25 00:30:00").unwrap());
    assert_eq!(at(Ambiguous::Later), parse(b"2026-10-25 01:30:00").unwrap());
}

#[test]
fn a_record_of_the_hour_that_comes_twice_is_stamped_near_its_commit() {
    let zone = Zone::named("America/New_York");
    let ms = |text: &str| parse(text.as_bytes()).unwrap() / 1000;
    for (commit, stamp) in [
        ("2026-11-01 05:30:01", "2026-11-01 05:30:00"),
        ("2026-11-01 06:30:01", "2026-11-01 06:30:00"),
    ] {
        let commit = Timestamp { unix_micros: parse(commit.as_bytes()).unwrap() };
        let stamped = TimeCache::default().stamp(b"2026-11-01 01:30:00.25", commit, zone.as_ref());
        assert_eq!(stamped, (ms(stamp) + 250, false));
    }
}

#[test]
fn a_text_is_a_time_only_where_the_server_reads_the_same() {
    for text in [
        "2024-02-29",
        "2024-01-02 03:04:05",
        "2024-01-02T03:04:05.123456Z",
        "2024-01-02 03:04:05+05:30",
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999-15:59:59",
        "infinity",
        "-infinity",
    ] {
        assert!(is_plain(text.as_bytes()), "{text}");
    }
    for text in [
        "",
        "now",
        "2023-02-29",
        "2024-02-30",
        "2024-04-31",
        "0000-01-01",
        "10000-01-01",
        "2024-1-02",
        "2024-01-02 24:00:00",
        "2024-01-02 03:04:60",
        "2024-01-02 03:04:05.1234567",
        "2024-01-02 03:04",
        "2024-01-02 03:04:05+16",
        "2024-01-02 03:04:05 UTC",
        "0044-03-15 BC",
        "2024-01-02 03:04:05z",
        " 2024-01-02",
    ] {
        assert!(!is_plain(text.as_bytes()), "{text}");
    }
}
