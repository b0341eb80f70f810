//! Header texts by column type, beyond what the recorded rows show.

use super::support::{JSON, UUID, map_with, text, typed};
use crate::{Extra, Layout, OutboxSpec, Placement};
use postrider_core::row::{Kind, ValueType};

/// The header that a column of this type and text becomes.
fn header(of: ValueType, value: &str) -> Option<String> {
    let columns = [
        typed("id", UUID, "0b6c8a4e-1111-4222-8333-944444444444"),
        text("aggregatetype", "Order"),
        text("aggregateid", "42"),
        typed("payload", JSON, "{}"),
        typed("x", of, value),
    ];
    let mut spec = OutboxSpec::for_layout(Layout::Debezium);
    let placement = Placement::Header("x".to_owned());
    spec.extra.push(Extra { column: "x".to_owned(), placement, may_lack: false });
    map_with(spec, &columns, |mapped| {
        let mapped = mapped.unwrap().unwrap();
        let value = mapped.record().headers[1].value;
        value.map(|value| String::from_utf8_lossy(value).into_owned())
    })
}

fn check(of: ValueType, cases: &[(&str, &str)]) {
    for (value, expected) in cases {
        assert_eq!(header(of, value).as_deref(), Some(*expected), "{value}");
    }
}

/// The member of the envelope that a column of this type and text becomes.
fn member(of: ValueType, value: &str) -> String {
    let columns = [
        typed("id", UUID, "0b6c8a4e-1111-4222-8333-944444444444"),
        text("aggregatetype", "Order"),
        text("aggregateid", "42"),
        typed("payload", JSON, "{}"),
        typed("x", of, value),
    ];
    let mut spec = OutboxSpec::for_layout(Layout::Debezium);
    let placement = Placement::Envelope("x".to_owned());
    spec.extra.push(Extra { column: "x".to_owned(), placement, may_lack: false });
    map_with(spec, &columns, |mapped| {
        let mapped = mapped.unwrap().unwrap();
        let value = String::from_utf8_lossy(mapped.record().value.unwrap()).into_owned();
        let x = value.strip_prefix(r#"{"payload":"{}","x":"#).unwrap();
        x.strip_suffix('}').unwrap().to_owned()
    })
}

#[test]
fn members_of_the_envelope_are_as_the_json_converter_writes_them() {
    for (of, value, expected) in [
        (
            ValueType::of(Kind::Timestamp { digits: 6 }),
            "2024-01-02 03:04:05.678901",
            "1704164645678901",
        ),
        (ValueType::of(Kind::Timestamp { digits: 3 }), "2024-01-02 03:04:05.678", "1704164645678"),
        (
            ValueType::of(Kind::Timestamptz { digits: 3 }),
            "2024-01-02 03:04:05.67+02",
            r#""2024-01-02T01:04:05.670Z""#,
        ),
        (ValueType::of(Kind::Timestamp { digits: 6 }), "infinity", "9223372036854775807"),
        (ValueType::of(Kind::Timestamp { digits: 3 }), "-infinity", "-9223372036832400000"),
        (ValueType::of(Kind::Date), "infinity", "2146033979"),
        (ValueType::of(Kind::Numeric { scale: None }), "Infinity", "null"),
        (ValueType::of(Kind::Numeric { scale: Some(8) }), "0.00000001", r#""AQ==""#),
        (ValueType::of(Kind::Money), "-$1,234.56", r#""/h3A""#),
        (ValueType::of(Kind::TimeTz), "23:00:00-03:30", r#""02:30:00Z""#),
        (ValueType::of(Kind::Bit { length: 1 }), "1", "true"),
        (ValueType::of(Kind::Bit { length: 3 }), "101", r#""BQ==""#),
        (ValueType::of(Kind::Oid), "12", "12"),
        (ValueType::array_of(Kind::Int), "{1,NULL,3}", "[1,null,3]"),
        (
            ValueType::array_of(Kind::Text),
            r#"{a,"b c","d\"e","NULL"}"#,
            r#"["a","b c","d\"e","NULL"]"#,
        ),
        (ValueType::array_of(Kind::Text), "{}", "[]"),
        (ValueType::array_of(Kind::Int), "{{1,2},{3,4}}", r#""{{1,2},{3,4}}""#),
        (ValueType::array_of(Kind::Float8), "{NaN,100}", r#"["NaN",100.0]"#),
        (ValueType::array_of(Kind::Numeric { scale: Some(2) }), "{1.50}", r#"["AJY="]"#),
        (ValueType::of(Kind::Timestamptz { digits: 6 }), "infinity", r#""infinity""#),
        (ValueType::of(Kind::Date), "2024-02-29", "19782"),
        (ValueType::of(Kind::Time { digits: 6 }), "03:04:05.678901", "11045678901"),
        (ValueType::of(Kind::Interval), "1 day 02:03:04.5", "93784500000"),
        (ValueType::of(Kind::Numeric { scale: Some(2) }), "123.45", r#""MDk=""#),
        (ValueType::of(Kind::Numeric { scale: None }), "123.45", r#"{"scale":2,"value":"MDk="}"#),
        (ValueType::of(Kind::Numeric { scale: None }), "NaN", "null"),
        (ValueType::of(Kind::Float8), "100", "100.0"),
        (ValueType::of(Kind::Float8), "NaN", r#""NaN""#),
        (ValueType::of(Kind::Int), "7", "7"),
        (ValueType::of(Kind::Bool), "t", "true"),
        (ValueType::of(Kind::Bytea), "\\x00ff10", r#""AP8Q""#),
        (ValueType::of(Kind::Json), r#"{"a": 1}"#, r#""{\"a\": 1}""#),
        (
            ValueType::of(Kind::Uuid),
            "0b6c8a4e-1111-4222-8333-944444444444",
            r#""0b6c8a4e-1111-4222-8333-944444444444""#,
        ),
        (ValueType::of(Kind::Text), "a\"b", r#""a\"b""#),
    ] {
        assert_eq!(member(of, value), expected, "{of:?} {value}");
        serde_json::from_str::<serde_json::Value>(&member(of, value)).unwrap();
    }
}

#[test]
fn doubles_are_printed_as_java_does() {
    check(
        ValueType::of(Kind::Float8),
        &[
            ("100", "100.0"),
            ("0", "0.0"),
            ("-0", "-0.0"),
            ("0.1", "0.1"),
            ("-1.5", "-1.5"),
            ("0.001", "0.001"),
            ("0.00012", "1.2E-4"),
            ("1234567", "1234567.0"),
            ("12345678", "1.2345678E7"),
            ("10000000", "1.0E7"),
            ("9999999.5", "9999999.5"),
            ("1e+300", "1.0E300"),
            ("1.5e-05", "1.5E-5"),
            ("1.2345678901234567e+16", "1.2345678901234567E16"),
            ("NaN", "NaN"),
            ("-Infinity", "-Infinity"),
        ],
    );
}

#[test]
fn numbers_without_a_scale_are_their_unscaled_bytes() {
    check(
        ValueType::of(Kind::Numeric { scale: None }),
        &[
            ("123.45", r#"{"scale":2,"value":"MDk="}"#),
            ("0", r#"{"scale":0,"value":"AA=="}"#),
            ("127", r#"{"scale":0,"value":"fw=="}"#),
            ("128", r#"{"scale":0,"value":"AIA="}"#),
            ("-128", r#"{"scale":0,"value":"gA=="}"#),
            ("-129", r#"{"scale":0,"value":"/38="}"#),
            ("-1", r#"{"scale":0,"value":"/w=="}"#),
            ("-256", r#"{"scale":0,"value":"/wA="}"#),
            ("18446744073709551616", r#"{"scale":0,"value":"AQAAAAAAAAAA"}"#),
        ],
    );
    // numeric(10,2): as text; NaN is a null header.
    check(ValueType::of(Kind::Numeric { scale: Some(2) }), &[("12.50", "12.50")]);
    for special in ["NaN", "Infinity", "-Infinity"] {
        assert_eq!(header(ValueType::of(Kind::Numeric { scale: None }), special), None);
    }
    // numeric(10,8)
    check(
        ValueType::of(Kind::Numeric { scale: Some(8) }),
        &[
            ("0.00000001", "1E-8"),
            ("-0.00000123", "-0.00000123"),
            ("0.00000012", "1.2E-7"),
            ("-0.00000012", "-1.2E-7"),
            ("0.00000000", "0E-8"),
            ("12.00000000", "12.00000000"),
        ],
    );
}

#[test]
fn times_are_numbers_and_instants() {
    check(
        ValueType::of(Kind::Timestamp { digits: 6 }),
        &[("2024-01-02 03:04:05.678901", "1704164645678901"), ("infinity", "9223372036854775807")],
    );
    check(
        ValueType::of(Kind::Timestamp { digits: 3 }),
        &[("2024-01-02 03:04:05.678", "1704164645678")],
    );
    check(
        ValueType::of(Kind::Timestamptz { digits: 6 }),
        &[("2024-01-02 03:04:05.678+00", "2024-01-02T03:04:05.678000Z")],
    );
    check(
        ValueType::of(Kind::Timestamptz { digits: 3 }),
        &[("2024-01-02 03:04:05.67+02", "2024-01-02T01:04:05.670Z")],
    );
    check(
        ValueType::of(Kind::Timestamptz { digits: 0 }),
        &[("2024-01-02 03:04:05+00", "2024-01-02T03:04:05Z")],
    );
    check(ValueType::of(Kind::Date), &[("2024-02-29", "19782"), ("1969-12-31", "-1")]);
    check(ValueType::of(Kind::Time { digits: 6 }), &[("03:04:05.678901", "11045678901")]);
    check(ValueType::of(Kind::Time { digits: 3 }), &[("03:04:05.678", "11045678")]);
}

#[test]
fn intervals_are_microseconds() {
    check(
        ValueType::of(Kind::Interval),
        &[
            ("1 day 02:03:04.5", "93784500000"),
            ("-00:00:00.000001", "-1"),
            ("123:00:00", "442800000000"),
            ("1 mon", "2629800000000"),
            ("1 year -1 days", "31471200000000"),
            ("00:00:00", "0"),
        ],
    );
}

#[test]
fn the_rest_is_plain() {
    check(ValueType::of(Kind::Bool), &[("t", "true"), ("f", "false")]);
    check(
        ValueType::of(Kind::Bytea),
        &[("\\x00ff10", "AP8Q"), ("\\x", ""), ("\\xff", "/w=="), ("\\xffff", "//8=")],
    );
    check(
        ValueType::of(Kind::Uuid),
        &[("0b6c8a4e-1111-4222-8333-944444444444", "0b6c8a4e-1111-4222-8333-944444444444")],
    );
    check(ValueType::of(Kind::Text), &[("ab   ", "ab   ")]);
    check(ValueType::of(Kind::Json), &[(r#"{"a": 1}"#, r#"{"a": 1}"#)]);
}

#[test]
fn arrays_in_headers_are_json_whatever_stands_in_them() {
    check(
        ValueType::array_of(Kind::Text),
        &[
            ("{}", "[]"),
            (r#"{a,"b,c",NULL,"NULL",""}"#, r#"["a","b,c",null,"NULL",""]"#),
            (r#"{"a\\b","d\"e"}"#, r#"["a\\b","d\"e"]"#),
            ("[0:1]={a,b}", r#"["a","b"]"#),
            // What is no array of one dimension goes as it is.
            ("{{a},{b}}", "{{a},{b}}"),
            ("{a", "{a"),
            (r#"{"a"#, r#"{"a"#),
            (r#"{"a"b}"#, r#"{"a"b}"#),
            ("[0:1]", "[0:1]"),
            ("a", "a"),
            ("", ""),
        ],
    );
    check(ValueType::array_of(Kind::Date), &[("{2019-03-24,NULL}", "[17979,null]")]);
    check(ValueType::array_of(Kind::Bytea), &[(r#"{"\\x00ff"}"#, r#"["AP8="]"#)]);
}

#[test]
fn money_is_a_number_whatever_is_around_it() {
    check(
        ValueType::of(Kind::Money),
        &[
            ("$1,234.56", "1234.56"),
            ("-$1.00", "-1.00"),
            ("($1.00)", "-1.00"),
            ("1.234,56 EUR", "1234.56"),
            // Without two digits behind a point it is another currency's.
            ("JPY 1,234", "JPY 1,234"),
            ("$", "$"),
        ],
    );
}

#[test]
fn bits_are_bytes_and_points_have_coordinates() {
    check(ValueType::of(Kind::Bit { length: 1 }), &[("1", "true"), ("0", "false")]);
    check(
        ValueType::of(Kind::Bit { length: 0 }),
        &[("", ""), ("000", ""), ("101", "BQ=="), ("0000000100000010", "AgE=")],
    );
    check(
        ValueType::of(Kind::Point),
        &[
            ("(1.5,2)", r#"{"x":1.5,"y":2.0,"wkb":"AQEAAAAAAAAAAAD4PwAAAAAAAABA","srid":null}"#),
            ("(Infinity,0)", "(Infinity,0)"),
            ("(1.5", "(1.5"),
        ],
    );
}
