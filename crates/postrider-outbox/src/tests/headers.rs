//! Headers: of the row, of extra columns, traces, constants.

use super::support::{
    AT, ColumnSpec, INT, JSON, TEXT, TIMESTAMPTZ, describe, map_with, null, problem, row, text,
    typed,
};
use crate::{At, Extra, Layout, Mapper, OutboxSpec, Placement, Role};
use expect_test::expect;
use postrider_core::event::{Histories, HistoryId, Position};
use postrider_core::offset::Offset;
use std::fmt::Write as _;

fn columns<'a>(headers: Option<&'a str>, trace: Option<&'a str>) -> Vec<ColumnSpec<'a>> {
    vec![
        typed("id", INT, "42"),
        text("aggregate_type", "order"),
        text("aggregate_id", "o-7"),
        text("event_type", "OrderPlaced"),
        typed("payload", JSON, "{}"),
        ("headers", JSON, headers),
        typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
        text("tenant", "acme"),
        null("region", TEXT),
        ("trace", TEXT, trace),
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

/// A member of the row that has the name of one of our headers is marked: a consumer that takes the first header of a
/// name, and one that takes the last, must both get ours.
#[test]
fn a_members_name_that_is_a_header_of_ours_is_marked_as_the_rows() {
    let json = r#"{"id": "x", "type": "x", "position": "x", "history": "x", "replay": "x", "traceparent": "x",
        "trace_id": "x", "x-tenant": "x", "source": "x", "p\u006fsition": "y", "Id": "x", "other": "x"}"#;
    let full = || {
        let mut spec = spec();
        spec.standard_headers.event_type = true;
        spec.standard_headers.position = true;
        let placement = Placement::Header("x-tenant".to_owned());
        spec.extra.push(Extra { column: "tenant".to_owned(), placement, may_lack: false });
        spec.headers = vec![("source".to_owned(), "shop".to_owned())];
        spec
    };
    expect![[r#"
        type = Some("OrderPlaced")
        position = Some("00000000-0000000001A2B3C8-00000005")
        row.id = Some("x")
        row.type = Some("x")
        row.position = Some("x")
        row.history = Some("x")
        row.replay = Some("x")
        row.traceparent = Some("x")
        row.trace_id = Some("x")
        row.x-tenant = Some("x")
        row.source = Some("x")
        row.position = Some("y")
        Id = Some("x")
        other = Some("x")
        trace_id = Some("t")
        x-tenant = Some("acme")
        source = Some("shop")
    "#]]
    .assert_eq(&headers(full(), &columns(Some(json), Some("t"))));
    // Where the configuration sends no such header, it is the row's to have.
    let mut few = spec();
    few.columns.push((Role::Trace, String::new()));
    expect![[r#"
        row.id = Some("x")
        type = Some("x")
        position = Some("x")
        history = Some("x")
        row.replay = Some("x")
        traceparent = Some("x")
        trace_id = Some("x")
        x-tenant = Some("x")
        source = Some("x")
        position = Some("y")
        Id = Some("x")
        other = Some("x")
    "#]]
    .assert_eq(&headers(few, &columns(Some(json), None)));
}

#[test]
fn a_record_has_its_pipeline_as_source_unless_row_or_configuration_has_a_source() {
    let named = |change: &dyn Fn(&mut OutboxSpec)| {
        let mut spec = spec();
        spec.source = "orders".to_owned();
        change(&mut spec);
        spec
    };
    let sent = |spec, json| headers(spec, &columns(json, None));
    let ours = "source = Some(\"orders\")\n";
    assert_eq!(sent(named(&|_| ()), None), ours);
    assert_eq!(sent(named(&|_| ()), Some("{}")), ours);
    assert_eq!(sent(named(&|_| ()), Some(r#"{"source": "web"}"#)), "source = Some(\"web\")\n");
    let other = r#"{"Source": "web"}"#;
    assert_eq!(sent(named(&|_| ()), Some(other)), format!("Source = Some(\"web\")\n{ours}"));
    assert_eq!(sent(named(&|spec| spec.standard_headers.source = false), None), "");
    assert_eq!(sent(named(&|spec| spec.source.clear()), None), "");
    let constant = |spec: &mut OutboxSpec| {
        spec.headers = vec![("source".to_owned(), "shop".to_owned())];
    };
    assert_eq!(sent(named(&constant), None), "source = Some(\"shop\")\n");
    let column = |spec: &mut OutboxSpec| {
        let placement = Placement::Header("source".to_owned());
        spec.extra.push(Extra { column: "tenant".to_owned(), placement, may_lack: false });
    };
    assert_eq!(sent(named(&column), None), "source = Some(\"acme\")\n");
    let debezium = OutboxSpec::for_layout(Layout::Debezium).standard_headers;
    assert!(!debezium.source, "Debezium sends no such header");
}

#[test]
fn a_second_header_of_one_name_is_refused_with_its_key() {
    for layout in Layout::ALL.iter().copied() {
        for name in ["id", "replay"] {
            let mut spec = OutboxSpec::for_layout(layout);
            spec.headers = vec![(name.to_owned(), "x".to_owned())];
            if (layout, name) == (Layout::Debezium, "id") {
                assert!(Mapper::new(spec).is_ok(), "Debezium sends both, its own first");
                continue;
            }
            let errors = Mapper::new(spec).unwrap_err();
            let said = format!("route.headers.{name} would be a second header \"{name}\"");
            assert_eq!(errors[0].to_string(), said, "{layout:?}");
            assert_eq!(errors[0].key(), format!("route.headers.{name}"));
        }
    }
    let two = |sent: bool, name: &str| {
        let mut spec = spec();
        spec.standard_headers.event_type = sent;
        spec.standard_headers.position = sent;
        let placement = Placement::Header(name.to_owned());
        spec.extra.push(Extra { column: "tenant".to_owned(), placement, may_lack: false });
        Mapper::new(spec).err().map(|errors| errors[0].to_string())
    };
    for name in ["type", "position", "history"] {
        let said = format!("outbox.extra.tenant would be a second header \"{name}\"");
        assert_eq!(two(true, name), Some(said));
        assert_eq!(two(false, name), None);
    }
    assert!(two(false, "traceparent").is_some(), "the layout has a trace");
}

/// The position header, or the history header, of one event.
fn place(mapper: &mut Mapper, columns: &[ColumnSpec<'_>], at: At, late: bool) -> String {
    let rows = row(7, columns);
    let mut event = mapper.row(&rows.row(0).unwrap(), at).unwrap().unwrap();
    if late {
        event.remove_position();
    }
    let record = event.record();
    let places: Vec<String> = record
        .headers
        .iter()
        .filter(|header| ["position", "history"].contains(&header.name))
        .map(|header| {
            let value = header.value.map(|value| value.escape_ascii().to_string());
            format!("{} {}", header.name, value.unwrap_or_default())
        })
        .collect();
    places.join(", ")
}

#[test]
fn a_record_has_a_position_that_sorts_or_its_history_alone() {
    let mut spec = spec();
    spec.standard_headers.position = true;
    let columns =
        columns(Some(r#"{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7}"#), None);
    let table = spec.table.clone().unwrap();
    let mut mapper = Mapper::new(spec).unwrap();
    describe(&mut mapper, 7, (&table.schema, &table.name), &columns).unwrap();
    let at =
        |offset, ordinal| At { position: Position { commit: Offset::new(offset), ordinal }, ..AT };
    let begun = Histories::default().raised(Offset::ZERO, 0x68F1_A2B3, HistoryId(0));
    let histories = begun.raised(Offset::new(0x100), 0x68F1_A2B4, HistoryId(0));
    mapper.set_histories(histories.clone(), false);
    let mut of = |at, late| place(&mut mapper, &columns, at, late);
    assert_eq!(of(at(0xFF, 7), false), "position 68F1A2B3-00000000000000FF-00000007");
    assert_eq!(of(at(0x100, 7), false), "position 68F1A2B4-0000000000000100-00000007");
    assert_eq!(of(at(0x100, 7), true), "history 68F1A2B4");
    assert_eq!(of(at(0xFF, 7), true), "history 68F1A2B3");
    // No digit is left for it.
    assert_eq!(
        of(at(0xFF, u64::from(u32::MAX)), false),
        "position 68F1A2B3-00000000000000FF-FFFFFFFF"
    );
    assert_eq!(of(at(0xFF, u64::from(u32::MAX) + 1), false), "history 68F1A2B3");
    mapper.set_histories(histories, true);
    assert_eq!(place(&mut mapper, &columns, at(0xFF, 7), false), "history 68F1A2B4");
}
