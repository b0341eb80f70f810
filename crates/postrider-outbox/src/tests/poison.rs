//! NULL where a value is needed, and text that is none: the column, what fixes it, never the value.

use super::support::{
    AT, ColumnSpec, INT, JSON, TEXT, TIMESTAMPTZ, describe, map_layout, map_row, map_with, null,
    print, row, text, typed,
};
use crate::{EventKept, Layout, MapError, Mapper, OutboxSpec, Poison, Problem};
use expect_test::expect;
use postrider_core::row::TableId;
use postrider_core::row_buffer::RowBuffer;

fn columns() -> [ColumnSpec<'static>; 7] {
    [
        typed("id", INT, "42"),
        text("aggregate_type", "order"),
        text("aggregate_id", "o-7"),
        text("event_type", "OrderPlaced"),
        typed("payload", JSON, "{}"),
        null("headers", JSON),
        typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
    ]
}

#[test]
fn null_where_a_value_is_needed_is_poison() {
    let mut all = String::new();
    for (at, column) in columns().iter().enumerate().take(4) {
        let mut row = columns();
        row[at] = null(column.0, column.1);
        all += &map_layout(Layout::Postrider, &row);
    }
    expect![[r#"
        error: event without id at 0/1A2B3C8:5 can't be published:
               "id" is NULL
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with a value in "id". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted. SET NOT NULL on "id" refuses such rows from now on
        error: event "42" at 0/1A2B3C8:5 can't be published:
               "aggregate_type" is NULL
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with a value in "aggregate_type". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted. SET NOT NULL on "aggregate_type" refuses such rows from now on
        error: event "42" at 0/1A2B3C8:5 can't be published:
               "aggregate_id" is NULL
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with a value in "aggregate_id". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted. SET NOT NULL on "aggregate_id" refuses such rows from now on
        error: event "42" at 0/1A2B3C8:5 can't be published:
               "event_type" is NULL
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with a value in "event_type". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted. SET NOT NULL on "event_type" refuses such rows from now on
    "#]]
    .assert_eq(&all);
}

/// A polled row is read again as it is then, and a source of a program's own has no WAL: neither hint advises to skip.
#[test]
fn hint_follows_where_the_event_is_kept() {
    let at = |problem| Poison {
        position: AT.position,
        event_id: Some("7".to_owned()),
        problem,
        partial: Box::default(),
    };
    let (null, message) = (at(Problem::Null("payload".to_owned())), at(Problem::NotJson));
    let partition = at(Problem::Partition);
    for kept in [EventKept::Row, EventKept::Source] {
        let hints = [null.hint(kept), partition.hint(kept)];
        assert!(
            !hints.iter().any(|hint| hint.contains("WAL") || hint.contains("skip")),
            "{hints:?}"
        );
        assert!(hints[1].starts_with("leave route.partition empty"), "{hints:?}");
    }
    assert!(null.hint(EventKept::Row).contains("by an UPDATE"));
    assert!(null.hint(EventKept::Source).contains("is never published"));
    assert!(message.hint(EventKept::Source).contains("as a JSON object"));
}

/// What is left of such a row must not be published when somebody asks for another attempt.
#[test]
fn row_that_is_too_large_to_be_read_has_neither_topic_nor_payload() {
    let spec = OutboxSpec::for_layout(Layout::Postrider);
    let table = spec.table.clone().unwrap();
    let mut mapper = Mapper::new(spec).unwrap();
    let mut columns = columns();
    columns[4] = null("payload", JSON);
    describe(&mut mapper, 7, (&table.schema, &table.name), &columns).unwrap();
    let rows = row(7, &columns);
    let row = rows.row(0).unwrap();
    let MapError::Poison(poison) = mapper.too_large(&row, AT, 64 << 20) else { unreachable!() };
    let Poison { partial, .. } = poison;
    let of = partial.aggregate.as_ref().map(|(kind, id)| (kind.as_str(), id.as_str()));
    assert_eq!((partial.event_id.as_deref(), of), (Some("42"), Some(("order", "o-7"))));
    assert_eq!((partial.record.topic.as_str(), partial.record.value), ("", None));
}

#[test]
fn null_aggregate_id_is_refused_because_it_is_the_unit_of_order() {
    let mut row = columns();
    row[2] = null("aggregate_id", TEXT);
    assert!(map_layout(Layout::Postrider, &row).contains("\"aggregate_id\" is NULL"));
}

#[test]
fn an_empty_aggregate_type_has_no_topic() {
    let mut row = columns();
    row[1] = text("aggregate_type", "");
    expect![[r#"
        error: event "42" at 0/1A2B3C8:5 can't be published:
               its topic, from {aggregate_type}, is not a name Kafka allows
        hint:  fix route.topic and start again; or skip the event as docs/operations/skipping.md describes, and insert it again corrected (a topic has 1 to 249 of A-Z a-z 0-9 . _ -). The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted
    "#]]
    .assert_eq(&map_layout(Layout::Postrider, &row));
}

#[test]
fn a_long_id_is_cut_in_the_error() {
    let id = "é".repeat(500);
    let mut row = columns();
    row[0] = text("id", &id);
    row[1] = null("aggregate_type", TEXT);
    let printed = map_layout(Layout::Postrider, &row);
    assert!(printed.contains(&format!("\"{}…\"", "é".repeat(100))), "{printed}");
}

#[test]
fn text_that_is_not_utf8_is_poison_and_payloads_are_bytes() {
    let spec = OutboxSpec::for_layout(Layout::Postrider);
    let mut mapper = Mapper::new(spec).unwrap();
    mapper.set_names(super::support::TOPICS);
    describe(&mut mapper, 7, ("public", "outbox"), &columns()).unwrap();
    let mut all = String::new();
    for broken in 0..5 {
        let mut rows = RowBuffer::default();
        let mut row = rows.push_row(TableId(7));
        for (at, (.., value)) in columns().iter().enumerate() {
            let mut value = value.map(|value| value.as_bytes().to_vec());
            if let Some(first) = value.as_mut().and_then(|value| value.first_mut())
                && at == broken
            {
                *first = 0xFF;
            }
            row.push_cell(value.as_deref());
        }
        all += &print(map_row(&mut mapper, &rows));
    }
    expect![[r#"
        error: event without id at 0/1A2B3C8:5 can't be published:
               "id" is not UTF-8
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with UTF-8 in "id". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted
        error: event "42" at 0/1A2B3C8:5 can't be published:
               its topic, from {aggregate_type}, is not a name Kafka allows
        hint:  fix route.topic and start again; or skip the event as docs/operations/skipping.md describes, and insert it again corrected (a topic has 1 to 249 of A-Z a-z 0-9 . _ -). The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted
        error: event "42" at 0/1A2B3C8:5 can't be published:
               "aggregate_id" is not UTF-8
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with UTF-8 in "aggregate_id". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted
        error: event "42" at 0/1A2B3C8:5 can't be published:
               "event_type" is not UTF-8
        hint:  skip the event as docs/operations/skipping.md describes, and insert it again with UTF-8 in "event_type". The skipped event is never published, and the new one comes after all events that are committed before it. Changing the row is not enough: WAL keeps it as it was inserted
        event     42 "OrderPlaced"
        aggregate order / o-7
        topic     order
        key       "o-7"
        value     "\xff}"
        timestamp 1704164645000
        header    id = "42"
        header    type = "OrderPlaced"
        header    position = "00000000-0000000001A2B3C8-00000005"
    "#]]
    .assert_eq(&all);
}

fn poison(columns: &[ColumnSpec<'_>]) -> Poison {
    map_with(OutboxSpec::for_layout(Layout::Postrider), columns, |mapped| match mapped {
        Err(MapError::Poison(poison)) => poison,
        other => panic!("no poison: {other:?}"),
    })
}

/// Everything that a parked event is made of, as far as it is known.
fn partial_event(poison: &Poison) -> String {
    let partial = &poison.partial;
    let record = &partial.record;
    let shown = |bytes: &Option<Vec<u8>>| {
        bytes.as_ref().map_or("null".to_owned(), |bytes| bytes.escape_ascii().to_string())
    };
    let headers: Vec<String> =
        record.headers.iter().map(|(name, value)| format!("{name}={}", shown(value))).collect();
    format!(
        "{}: {:?} {:?} {:?} to {:?} key {} value {} at {:?} {}\n",
        poison.problem.code(),
        partial.event_id,
        partial.event_type,
        partial.aggregate,
        record.topic,
        shown(&record.key),
        shown(&record.value),
        record.timestamp_ms,
        headers.join(" ")
    )
}

#[test]
fn what_is_known_of_a_poison_event_is_kept() {
    let mut all = String::new();
    for at in 0..4 {
        let mut row = columns();
        row[at] = null(row[at].0, row[at].1);
        all += &partial_event(&poison(&row));
    }
    for (at, value) in [(1, "no topic"), (5, "[1]"), (5, "{\"a\": 1, \"b\\u0000\": 2}")] {
        let mut row = columns();
        row[at].2 = Some(value);
        all += &partial_event(&poison(&row));
    }
    expect![[r#"
        null: None Some("OrderPlaced") Some(("order", "o-7")) to "order" key o-7 value {} at Some(1704164645000) id=null type=OrderPlaced position=00000000-0000000001A2B3C8-00000005
        null: Some("42") Some("OrderPlaced") None to "" key o-7 value {} at Some(1704164645000) id=42 type=OrderPlaced position=00000000-0000000001A2B3C8-00000005
        null: Some("42") Some("OrderPlaced") None to "order" key null value {} at Some(1704164645000) id=42 type=OrderPlaced position=00000000-0000000001A2B3C8-00000005
        null: Some("42") None Some(("order", "o-7")) to "order" key o-7 value {} at Some(1704164645000) id=42 type=null position=00000000-0000000001A2B3C8-00000005
        topic_name: Some("42") Some("OrderPlaced") Some(("no topic", "o-7")) to "" key o-7 value {} at Some(1704164645000) id=42 type=OrderPlaced position=00000000-0000000001A2B3C8-00000005
        headers: Some("42") Some("OrderPlaced") Some(("order", "o-7")) to "order" key o-7 value {} at Some(1704164645000) id=42 type=OrderPlaced position=00000000-0000000001A2B3C8-00000005
        header_name: Some("42") Some("OrderPlaced") Some(("order", "o-7")) to "order" key o-7 value {} at Some(1704164645000) id=42 type=OrderPlaced position=00000000-0000000001A2B3C8-00000005
    "#]].assert_eq(&all);
    let mut row = columns();
    row[0] = null("id", INT);
    let shown = format!("{:?}", poison(&row));
    assert!(!shown.contains("o-7"), "{shown}");
}

#[test]
fn a_whole_id_is_kept_where_the_error_cuts_it() {
    let id = "é".repeat(500);
    let mut row = columns();
    row[0] = text("id", &id);
    row[1] = null("aggregate_type", TEXT);
    assert_eq!(poison(&row).partial.event_id, Some(id));
}
