//! Which table is the outbox, and whether it fits.

use super::support::{AT, insert, map, map_layout, null, print, relation, text, typed};
use crate::{ColumnType, Layout, Mapper, OutboxSpec, Role, TypeFacts};
use expect_test::expect;
use pg_replication::pgoutput::{Message, TypeName, decode};

fn describe(mapper: &mut Mapper, bytes: &[u8]) {
    let Message::Relation(described) = decode(bytes).unwrap() else { unreachable!() };
    mapper.relation(&described).unwrap();
}

fn row(mapper: &mut Mapper, bytes: &[u8]) -> String {
    let Message::Insert(row) = decode(bytes).unwrap() else { unreachable!() };
    print(mapper.insert(&row, AT))
}

#[test]
fn rows_of_other_tables_are_not_ours() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let columns = [text("id", "1")];
    describe(&mut mapper, &relation(8, "public", "orders", &columns));
    describe(&mut mapper, &relation(9, "other", "outbox", &columns));
    assert_eq!(row(&mut mapper, &insert(8, &columns)), "not ours\n");
    assert_eq!(row(&mut mapper, &insert(9, &columns)), "not ours\n");
}

#[test]
fn rows_of_the_tables_oid_are_ours_under_any_name() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    mapper.clear_relations(Some(8));
    let columns = full();
    describe(&mut mapper, &relation(8, "public", "events", &columns));
    describe(&mut mapper, &relation(9, "public", "outbox", &columns));
    for relation in [8, 9] {
        assert_ne!(row(&mut mapper, &insert(relation, &columns)), "not ours\n");
    }
}

#[test]
fn a_row_of_a_relation_that_was_never_described_is_out_of_step() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let columns = [text("id", "1")];
    describe(&mut mapper, &relation(8, "public", "orders", &columns));
    mapper.clear_relations(None);
    expect![[r#"
        error: could not read a row of relation 8: the server never described that relation
        hint:  none
    "#]]
    .assert_eq(&row(&mut mapper, &insert(8, &columns)));
}

#[test]
fn a_row_of_another_width_than_its_relation_is_out_of_step() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let columns = full();
    describe(&mut mapper, &relation(7, "public", "outbox", &columns));
    expect![[r#"
        error: could not read a row of relation 7: it has another number of columns than the relation
        hint:  none
    "#]].assert_eq(&row(&mut mapper, &insert(7, &columns[..6])));
}

fn full() -> [super::support::ColumnSpec<'static>; 7] {
    [
        typed("id", 20, "42"),
        text("aggregate_type", "order"),
        text("aggregate_id", "o-7"),
        text("event_type", "OrderPlaced"),
        typed("payload", 114, "{}"),
        null("headers", 114),
        typed("created_at", 1184, "2024-01-02 03:04:05+00"),
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
            typed("payload", 114, "1"),
            text("kind", "OrderPlaced"),
            text("aggregate_id", "o-7"),
            text("ignored", "x"),
            text("aggregate_type", "order"),
            typed("id", 20, "42"),
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

/// OID 20001 is a domain over bytea, 20002 one over numeric(10,2), 20003 an enum.
#[test]
fn a_domain_is_the_type_beneath_it_once_the_catalog_was_asked() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let mut columns = full();
    columns[3] = typed("event_type", 20_003, "OrderPlaced");
    columns[4] = typed("payload", 20_001, "\\x6869");
    let bytes = relation(7, "public", "outbox", &columns);
    let Message::Relation(described) = decode(&bytes).unwrap() else { unreachable!() };
    assert_eq!(mapper.unknown_types(&described), [20_001, 20_003]);
    let domain = TypeFacts { oid: 20_001, base_oid: 17, base_modifier: -1, is_text: false };
    mapper.add_types(&[20_001, 20_003], &[domain]);
    assert_eq!(
        mapper.unknown_types(&described),
        Vec::<u32>::new(),
        "what is not in the catalog is asked for once"
    );
    mapper.relation(&described).unwrap();
    assert!(row(&mut mapper, &insert(7, &columns)).contains("value     \"hi\""));
    // Another connection may be one to another server.
    mapper.clear_relations(None);
    assert_eq!(mapper.unknown_types(&described), [20_001, 20_003]);
}

/// A Type message has the OID of the domain and the name of the type beneath it.
#[test]
fn a_domain_that_the_catalog_does_not_have_any_more_is_what_the_stream_names() {
    let mut mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
    let mut columns = full();
    columns[4] = typed("payload", 20_001, "\\x6869");
    mapper.type_name(&TypeName { id: 20_001, schema: "", name: "bytea" });
    mapper.add_types(&[20_001], &[]);
    describe(&mut mapper, &relation(7, "public", "outbox", &columns));
    assert!(row(&mut mapper, &insert(7, &columns)).contains("value     \"hi\""));
}

#[test]
fn types_that_are_known_to_be_of_no_kind_cannot_be_times_or_objects() {
    let fits = |role: &str, oid: u32, is_text: bool| {
        let mapper = Mapper::new(OutboxSpec::for_layout(Layout::Postrider)).unwrap();
        let column = ColumnType { name: role, type_name: "x", oid, modifier: -1, is_text };
        mapper.unfit_types(&[column]).is_empty()
    };
    for (oid, is_text, time, object) in [
        (25, false, true, true),
        (1184, false, true, false),
        (3802, false, false, true),
        (20_001, true, true, true),
        (20_001, false, false, false),
        (869, false, false, false),
        (1009, false, false, false),
    ] {
        assert_eq!(fits("created_at", oid, is_text), time, "{oid}");
        assert_eq!(fits("headers", oid, is_text), object, "{oid}");
    }
}

#[test]
fn a_column_of_a_type_that_cannot_play_its_role_is_unfit() {
    let mut columns = full();
    columns[6] = typed("created_at", 20, "1704164645");
    expect![[r#"
        error: column "created_at" of table "public.outbox" has a type that can't be time
        hint:  use timestamptz, timestamp, date or text, or set route.timestamp to "commit"
    "#]]
    .assert_eq(&map_layout(Layout::Postrider, &columns));
    let mut columns = full();
    columns[5] = typed("headers", 17, "\\x00");
    expect![[r#"
        error: column "headers" of table "public.outbox" has a type that can't be headers
        hint:  use jsonb, json or text, or set outbox.columns.headers to another column
    "#]]
    .assert_eq(&map_layout(Layout::Postrider, &columns));
}
