//! Which table is the outbox, and whether it fits.

use super::support::{
    BYTEA, ColumnSpec, INT, JSON, TEXT, TIMESTAMPTZ, UNKNOWN, describe, map, map_layout, map_row,
    null, print, row, text, typed,
};
use crate::{DeclaredColumn, Layout, Mapper, OutboxSpec, Role};
use expect_test::expect;
use postrider_core::row::{Kind, TableId, ValueType};

/// The record of a row with these columns, printed.
fn printed(mapper: &mut Mapper, id: u32, columns: &[ColumnSpec<'_>]) -> String {
    print(map_row(mapper, &row(id, columns)))
}

#[test]
fn rows_of_other_tables_are_not_ours() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let columns = [text("id", "1")];
    describe(&mut mapper, 8, ("public", "orders"), &columns).unwrap();
    describe(&mut mapper, 9, ("other", "outbox"), &columns).unwrap();
    assert_eq!(printed(&mut mapper, 8, &columns), "not ours\n");
    assert_eq!(printed(&mut mapper, 9, &columns), "not ours\n");
}

#[test]
fn rows_of_the_tables_number_are_ours_under_any_name() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    mapper.clear_tables(Some(TableId(8)));
    let columns = full();
    describe(&mut mapper, 8, ("public", "events"), &columns).unwrap();
    describe(&mut mapper, 9, ("public", "outbox"), &columns).unwrap();
    for table in [8, 9] {
        assert_ne!(printed(&mut mapper, table, &columns), "not ours\n");
    }
}

#[test]
fn a_row_of_a_table_that_was_never_described_is_out_of_step() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let columns = [text("id", "1")];
    describe(&mut mapper, 8, ("public", "orders"), &columns).unwrap();
    mapper.clear_tables(None);
    expect![[r#"
        error: could not read a row of relation 8: the server never described that relation
        hint:  none
    "#]]
    .assert_eq(&printed(&mut mapper, 8, &columns));
}

#[test]
fn a_row_of_another_width_than_its_table_is_out_of_step() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let columns = full();
    describe(&mut mapper, 7, ("public", "outbox"), &columns).unwrap();
    expect![[r#"
        error: could not read a row of relation 7: it has another number of columns than the relation
        hint:  none
    "#]].assert_eq(&printed(&mut mapper, 7, &columns[..6]));
}

fn full() -> [ColumnSpec<'static>; 7] {
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
fn missing_columns_are_all_named_with_the_keys_that_say_otherwise() {
    expect![[r#"
        error: table "public.outbox" has no column "payload", "headers", "created_at"
        hint:  add the column, or say which it is: outbox.columns.payload, outbox.columns.headers, outbox.columns.time
    "#]].assert_eq(&map_layout(Layout::Postrider, &full()[..4]));
}

#[test]
fn columns_may_be_renamed_reordered_or_declared_absent_by_hand() {
    let mut spec = OutboxSpec::for_layout(Layout::Postrider);
    spec.columns = vec![
        (Role::EventType, "kind".to_owned()),
        (Role::Headers, String::new()),
        (Role::Time, String::new()),
    ];
    let record = map(
        spec,
        &[
            typed("payload", JSON, "1"),
            text("kind", "OrderPlaced"),
            text("aggregate_id", "o-7"),
            text("ignored", "x"),
            text("aggregate_type", "order"),
            typed("id", INT, "42"),
        ],
    );
    expect![[r#"
        event     42 "OrderPlaced"
        aggregate order / o-7
        topic     order
        key       "o-7"
        value     "1"
        timestamp 1704164645500
        header    id = "42"
        header    type = "OrderPlaced"
        header    position = "00000000-0000000001A2B3C8-00000005"
    "#]]
    .assert_eq(&record);
}

/// A source describes a table again after it has learned of the types in it, or after the table was changed.
#[test]
fn the_last_description_of_a_table_counts() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let mut columns = full();
    columns[4] = typed("payload", UNKNOWN, "\\x6869");
    describe(&mut mapper, 7, ("public", "outbox"), &columns).unwrap();
    assert!(printed(&mut mapper, 7, &columns).contains(r#"value     "\\x6869""#));
    columns[4] = typed("payload", BYTEA, "\\x6869");
    describe(&mut mapper, 7, ("public", "outbox"), &columns).unwrap();
    assert!(printed(&mut mapper, 7, &columns).contains("value     \"hi\""));
    // A description that does not fit leaves nothing that a row could be read with.
    assert!(describe(&mut mapper, 7, ("public", "outbox"), &columns[..3]).is_err());
    assert!(printed(&mut mapper, 7, &columns).contains("never described"));
}

#[test]
fn the_columns_that_a_source_has_to_know_are_those_of_the_roles_and_the_extras() {
    let mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let mut columns: Vec<&str> = mapper.columns().collect();
    columns.sort_unstable();
    assert_eq!(
        columns,
        ["aggregate_id", "aggregate_type", "created_at", "event_type", "headers", "id", "payload"]
    );
}

#[test]
fn types_that_are_known_to_be_of_no_kind_cannot_be_times_or_objects() {
    let fits = |name: &str, of: ValueType| {
        let mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
        let column = DeclaredColumn { name, value_type: of, type_name: "x" };
        mapper.unfit_types(&[column]).is_empty()
    };
    for (of, time, object) in [
        (TEXT, true, true),
        (TIMESTAMPTZ, true, false),
        (JSON, false, true),
        (UNKNOWN, true, true),
        (ValueType::of(Kind::Other), false, false),
        (ValueType::array_of(Kind::Other), false, false),
        (ValueType::array_of(Kind::Text), false, false),
        (ValueType { known: false, ..ValueType::array_of(Kind::Other) }, false, false),
    ] {
        assert_eq!(fits("created_at", of), time, "{of:?}");
        assert_eq!(fits("headers", of), object, "{of:?}");
    }
}

#[test]
fn a_column_of_a_type_that_cannot_play_its_role_is_unfit() {
    let mut columns = full();
    columns[6] = typed("created_at", INT, "1704164645");
    expect![[r#"
        error: column "created_at" of table "public.outbox" has a type that can't be time
        hint:  use timestamptz, timestamp, date or text, or set route.timestamp to "commit"
    "#]]
    .assert_eq(&map_layout(Layout::Postrider, &columns));
    let mut columns = full();
    columns[5] = typed("headers", BYTEA, "\\x00");
    expect![[r#"
        error: column "headers" of table "public.outbox" has a type that can't be headers
        hint:  use jsonb, json or text, or set outbox.columns.headers to another column
    "#]]
    .assert_eq(&map_layout(Layout::Postrider, &columns));
}
