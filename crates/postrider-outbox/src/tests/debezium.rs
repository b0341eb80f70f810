//! Header texts by column type, beyond what the recorded rows show.

use super::support::{ColumnSpec, map_with, text, typed};
use crate::{Extra, Layout, OutboxSpec, Placement};

/// The header that a column of this type and text becomes.
fn header(oid: u32, modifier: i32, value: &str) -> Option<String> {
    let column: ColumnSpec<'_> = ("x", oid, modifier, Some(value));
    let columns = [
        typed("id", 2950, "0b6c8a4e-1111-4222-8333-944444444444"),
        text("aggregatetype", "Order"),
        text("aggregateid", "42"),
        typed("payload", 3802, "{}"),
        column,
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

fn check(oid: u32, modifier: i32, cases: &[(&str, &str)]) {
    for (value, expected) in cases {
        assert_eq!(header(oid, modifier, value).as_deref(), Some(*expected), "{value}");
    }
}

/// The member of the envelope that a column of this type and text becomes.
fn member(oid: u32, modifier: i32, value: &str) -> String {
    let column: ColumnSpec<'_> = ("x", oid, modifier, Some(value));
    let columns = [
        typed("id", 2950, "0b6c8a4e-1111-4222-8333-944444444444"),
        text("aggregatetype", "Order"),
        text("aggregateid", "42"),
        typed("payload", 3802, "{}"),
        column,
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
    for (oid, modifier, value, expected) in [
        (1114, -1, "2024-01-02 03:04:05.678901", "1704164645678901"),
        (1114, 3, "2024-01-02 03:04:05.678", "1704164645678"),
        (1184, 3, "2024-01-02 03:04:05.67+02", r#""2024-01-02T01:04:05.670Z""#),
        (1114, -1, "infinity", "9223372036854775807"),
        (1114, 3, "-infinity", "-9223372036832400000"),
        (1082, -1, "infinity", "2146033979"),
        (1700, -1, "Infinity", "null"),
        (1700, (10 << 16 | 8) + 4, "0.00000001", r#""AQ==""#),
        (790, -1, "-$1,234.56", r#""/h3A""#),
        (1266, -1, "23:00:00-03:30", r#""02:30:00Z""#),
        (1560, 1, "1", "true"),
        (1560, 3, "101", r#""BQ==""#),
        (26, -1, "12", "12"),
        (1007, -1, "{1,NULL,3}", "[1,null,3]"),
        (1009, -1, r#"{a,"b c","d\"e","NULL"}"#, r#"["a","b c","d\"e","NULL"]"#),
        (1009, -1, "{}", "[]"),
        (1007, -1, "{{1,2},{3,4}}", r#""{{1,2},{3,4}}""#),
        (1022, -1, "{NaN,100}", r#"["NaN",100.0]"#),
        (1231, (10 << 16 | 2) + 4, "{1.50}", r#"["AJY="]"#),
        (1184, -1, "infinity", r#""infinity""#),
        (1082, -1, "2024-02-29", "19782"),
        (1083, -1, "03:04:05.678901", "11045678901"),
        (1186, -1, "1 day 02:03:04.5", "93784500000"),
        (1700, (5 << 16 | 2) + 4, "123.45", r#""MDk=""#),
        (1700, -1, "123.45", r#"{"scale":2,"value":"MDk="}"#),
        (1700, -1, "NaN", "null"),
        (701, -1, "100", "100.0"),
        (701, -1, "NaN", r#""NaN""#),
        (23, -1, "7", "7"),
        (16, -1, "t", "true"),
        (17, -1, "\\x00ff10", r#""AP8Q""#),
        (3802, -1, r#"{"a": 1}"#, r#""{\"a\": 1}""#),
        (
            2950,
            -1,
            "0b6c8a4e-1111-4222-8333-944444444444",
            r#""0b6c8a4e-1111-4222-8333-944444444444""#,
        ),
        (25, -1, "a\"b", r#""a\"b""#),
    ] {
        assert_eq!(member(oid, modifier, value), expected, "{oid} {value}");
        serde_json::from_str::<serde_json::Value>(&member(oid, modifier, value)).unwrap();
    }
}

#[test]
fn doubles_are_printed_as_java_does() {
    check(
        701,
        -1,
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
        1700,
        -1,
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
    check(1700, (10 << 16 | 2) + 4, &[("12.50", "12.50")]);
    for special in ["NaN", "Infinity", "-Infinity"] {
        assert_eq!(header(1700, -1, special), None);
    }
    // numeric(10,8)
    check(
        1700,
        (10 << 16 | 8) + 4,
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
        1114,
        -1,
        &[("2024-01-02 03:04:05.678901", "1704164645678901"), ("infinity", "9223372036854775807")],
    );
    check(1114, 3, &[("2024-01-02 03:04:05.678", "1704164645678")]);
    check(1184, -1, &[("2024-01-02 03:04:05.678+00", "2024-01-02T03:04:05.678000Z")]);
    check(1184, 3, &[("2024-01-02 03:04:05.67+02", "2024-01-02T01:04:05.670Z")]);
    check(1184, 0, &[("2024-01-02 03:04:05+00", "2024-01-02T03:04:05Z")]);
    check(1082, -1, &[("2024-02-29", "19782"), ("1969-12-31", "-1")]);
    check(1083, -1, &[("03:04:05.678901", "11045678901")]);
    check(1083, 3, &[("03:04:05.678", "11045678")]);
}

#[test]
fn intervals_are_microseconds() {
    check(
        1186,
        -1,
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
    check(16, -1, &[("t", "true"), ("f", "false")]);
    check(17, -1, &[("\\x00ff10", "AP8Q"), ("\\x", ""), ("\\xff", "/w=="), ("\\xffff", "//8=")]);
    check(
        2950,
        -1,
        &[("0b6c8a4e-1111-4222-8333-944444444444", "0b6c8a4e-1111-4222-8333-944444444444")],
    );
    check(1042, 9, &[("ab   ", "ab   ")]);
    check(3802, -1, &[(r#"{"a": 1}"#, r#"{"a": 1}"#)]);
}

#[test]
fn arrays_in_headers_are_json_whatever_stands_in_them() {
    check(
        1009,
        -1,
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
    check(1182, -1, &[("{2019-03-24,NULL}", "[17979,null]")]);
    check(1001, -1, &[(r#"{"\\x00ff"}"#, r#"["AP8="]"#)]);
}

#[test]
fn money_is_a_number_whatever_is_around_it() {
    check(
        790,
        -1,
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
    check(1560, 1, &[("1", "true"), ("0", "false")]);
    check(1562, -1, &[("", ""), ("000", ""), ("101", "BQ=="), ("0000000100000010", "AgE=")]);
    check(
        600,
        -1,
        &[
            ("(1.5,2)", r#"{"x":1.5,"y":2.0,"wkb":"AQEAAAAAAAAAAAD4PwAAAAAAAABA","srid":null}"#),
            ("(Infinity,0)", "(Infinity,0)"),
            ("(1.5", "(1.5"),
        ],
    );
}
