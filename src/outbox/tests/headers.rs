//! Headers: of the row, of extra columns, traces, constants.

use super::support::{ColumnSpec, map_with, null, problem, text, typed};
use crate::outbox::{Extra, Layout, OutboxSpec, Placement, Role};
use expect_test::expect;
use std::fmt::Write as _;

fn columns<'a>(headers: Option<&'a str>, trace: Option<&'a str>) -> Vec<ColumnSpec<'a>> {
    vec![
        typed("id", 20, "42"),
        text("aggregate_type", "order"),
        text("aggregate_id", "o-7"),
        text("event_type", "OrderPlaced"),
        typed("payload", 114, "{}"),
        ("headers", 114, -1, headers),
        typed("created_at", 1184, "2024-01-02 03:04:05+00"),
        text("tenant", "acme"),
        null("region", 25),
        ("trace", 25, -1, trace),
    ]
}

fn spec() -> OutboxSpec {
    let mut spec = OutboxSpec::for_layout(Layout::Postrider);
    spec.standard_headers.event_type = false;
    spec.standard_headers.position = false;
    spec.columns.push((Role::Trace, "trace".to_owned()));
    spec
}

fn headers(spec: OutboxSpec, columns: &[ColumnSpec<'_>]) -> String {
    map_with(spec, columns, |mapped| match mapped {
        Ok(mapped) => {
            let mapped = mapped.unwrap();
            let mut out = String::new();
            for header in mapped.record().headers.iter().skip(1) {
                let value = header.value.map(|value| value.escape_ascii().to_string());
                writeln!(out, "{} = {value:?}", header.name).unwrap();
            }
            out
        }
        Err(error) => problem(&error),
    })
}

#[test]
fn members_become_headers_strings_raw_the_rest_as_written() {
    let json = r#" {"s": "a\"b\u00e4\n", "n": 1.50, "big": 123456789012345678901234567890,
        "t": true, "z": null, "o": {"a":  [1]}, "": "", "s": "again", "k\u0041y": "" } "#;
    expect![[r#"
        s = Some("a\\\"b\\xc3\\xa4\\n")
        n = Some("1.50")
        big = Some("123456789012345678901234567890")
        t = Some("true")
        z = Some("null")
        o = Some("{\\\"a\\\":  [1]}")
         = Some("")
        s = Some("again")
        kAy = Some("")
    "#]]
    .assert_eq(&headers(spec(), &columns(Some(json), None)));
}

#[test]
fn no_headers_no_headers() {
    assert_eq!(headers(spec(), &columns(None, None)), "");
    assert_eq!(headers(spec(), &columns(Some("{}"), None)), "");
}

#[test]
fn headers_that_are_not_an_object_are_poison() {
    for json in ["[]", "null", "1", r#""x""#, "{", r#"{"a":1} x"#, "", "{'a':1}"] {
        let error = headers(spec(), &columns(Some(json), None));
        assert!(error.ends_with(r#""headers" is not a JSON object"#), "{json}: {error}");
    }
}

#[test]
fn a_header_name_with_a_zero_byte_is_poison() {
    let error = headers(spec(), &columns(Some(r#"{"a": 1, "b\u0000c": "x\u0000"}"#), None));
    assert_eq!(error, "a name in \"headers\" holds a zero byte");
    let value = headers(spec(), &columns(Some(r#"{"a": "x\u0000"}"#), None));
    assert_eq!(value, "a = Some(\"x\\\\x00\")\n");
}

#[test]
fn more_headers_than_fit_in_place_keep_their_order() {
    let members: Vec<String> = (0..20).map(|n| format!(r#""h{n}": {n}"#)).collect();
    let json = format!("{{{}}}", members.join(", "));
    let out = headers(spec(), &columns(Some(&json), None));
    let expected: String =
        (0..20).fold(String::new(), |out, n| out + &format!("h{n} = Some(\"{n}\")\n"));
    assert_eq!(out, expected);
}

#[test]
fn a_w3c_trace_is_a_traceparent_any_other_a_trace_id() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes";
    for trace in [parent, later] {
        let out = headers(spec(), &columns(None, Some(trace)));
        assert_eq!(out, format!("traceparent = Some(\"{trace}\")\n"));
    }
    for trace in [
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "",
    ] {
        let out = headers(spec(), &columns(None, Some(trace)));
        assert_eq!(out, format!("trace_id = Some(\"{trace}\")\n"));
    }
}

#[test]
fn extra_columns_and_templates_are_headers_after_those_of_the_row() {
    let mut spec = spec();
    for (column, header) in [("tenant", "x-tenant"), ("region", "x-region")] {
        let placement = Placement::Header(header.to_owned());
        spec.extra.push(Extra { column: column.to_owned(), placement, may_lack: false });
    }
    let template = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    spec.headers = vec![
        template("source", "shop"),
        template("what", "{event_type} of {aggregate_type}"),
        template("where", "{region}"),
        template("none", ""),
    ];
    expect![[r#"
        a = Some("b")
        trace_id = Some("t")
        x-tenant = Some("acme")
        x-region = None
        source = Some("shop")
        what = Some("OrderPlaced of order")
        where = None
        none = Some("")
    "#]]
    .assert_eq(&headers(spec, &columns(Some(r#"{"a": "b"}"#), Some("t"))));
}

#[test]
fn an_extra_column_that_may_lack_and_does_gives_no_header() {
    let mut spec = spec();
    let placement = Placement::Header("x".to_owned());
    spec.extra.push(Extra { column: "absent".to_owned(), placement, may_lack: true });
    expect![""].assert_eq(&headers(spec, &columns(None, None)));
}
