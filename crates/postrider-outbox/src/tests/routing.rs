//! Topic, key and partition: templates and replacement.

use super::support::{
    ColumnSpec, INT, JSON, TEXT, TIMESTAMPTZ, map, map_with, null, problem, text, typed,
};
use crate::{Extra, Layout, OutboxSpec, Placement, Replace, Role};
use expect_test::{Expect, expect};

fn columns() -> [ColumnSpec<'static>; 9] {
    [
        typed("id", INT, "42"),
        text("aggregate_type", "order.v2"),
        text("aggregate_id", "o-7"),
        text("event_type", "OrderPlaced"),
        typed("payload", JSON, "{}"),
        null("headers", JSON),
        typed("created_at", TIMESTAMPTZ, "2024-01-02 03:04:05+00"),
        text("tenant", "acme"),
        null("region", TEXT),
    ]
}

fn spec() -> OutboxSpec {
    let mut spec = OutboxSpec::for_layout(Layout::Postrider);
    spec.extra = ["tenant", "region"].map(ignored).to_vec();
    spec
}

fn ignored(column: &str) -> Extra {
    Extra { column: column.to_owned(), placement: Placement::Ignore, may_lack: false }
}

/// Topic, key and partition, or the error.
fn route(spec: OutboxSpec) -> String {
    map_with(spec, &columns(), |mapped| match mapped {
        Ok(mapped) => {
            let mapped = mapped.unwrap();
            let record = mapped.record();
            let key = record.key.map(|key| String::from_utf8_lossy(key).into_owned());
            format!("{} / {key:?} / {:?}", record.topic, record.partition)
        }
        Err(error) => problem(&error),
    })
}

fn check_topic(template: &str, expected: &Expect) {
    expected.assert_eq(&route(OutboxSpec { topic: template.to_owned(), ..spec() }));
}

#[test]
fn templates_take_roles_columns_and_extra_columns() {
    check_topic("{aggregate_type}", &expect![[r#"order.v2 / Some("o-7") / None"#]]);
    check_topic("fixed-name", &expect![[r#"fixed-name / Some("o-7") / None"#]]);
    check_topic("{tenant}.{aggregate_type}", &expect![[r#"acme.order.v2 / Some("o-7") / None"#]]);
    check_topic("a-{ event_type }-z", &expect![[r#"a-OrderPlaced-z / Some("o-7") / None"#]]);
    check_topic(
        "{created_at}",
        &expect![[r#"its topic, from {created_at}, is not a name Kafka allows"#]],
    );
    check_topic("x{{y}}", &expect![[r#"its topic, from x{{y}}, is not a name Kafka allows"#]]);
    check_topic(
        "{region|tenant}.{region|event_type|tenant}",
        &expect![[r#"acme.OrderPlaced / Some("o-7") / None"#]],
    );
}

#[test]
fn null_in_a_topic_is_poison() {
    check_topic("{tenant}.{region}", &expect![[r#""region" is NULL"#]]);
    check_topic("{region|headers}", &expect![[r#""headers" is NULL"#]]);
}

#[test]
fn a_name_kafka_does_not_allow_is_poison() {
    for topic in ["{tenant}/x", "..", ".", "a b", "ä", "{headers|payload}"] {
        let error = route(OutboxSpec { topic: topic.to_owned(), ..spec() });
        assert!(error.contains("is not a name Kafka allows"), "{topic}: {error}");
    }
    assert!(!route(OutboxSpec { topic: "a".repeat(249), ..spec() }).contains("error"));
    assert!(route(OutboxSpec { topic: "a".repeat(250), ..spec() }).contains("Kafka allows"));
}

#[test]
fn keys_are_templates_and_may_be_absent_by_choice_only() {
    let key = |key: &str| route(OutboxSpec { key: key.to_owned(), topic: "t".into(), ..spec() });
    expect![[r#"t / Some("o-7") / None"#]].assert_eq(&key("{aggregate_id}"));
    expect![[r#"t / Some("acme:o-7") / None"#]].assert_eq(&key("{tenant}:{aggregate_id}"));
    expect!["t / None / None"].assert_eq(&key(""));
    expect![[r#""region" is NULL"#]].assert_eq(&key("{region}"));
}

#[test]
fn partitions_are_numbers_or_left_to_the_key() {
    let partition =
        |text: &str| route(OutboxSpec { partition: text.to_owned(), topic: "t".into(), ..spec() });
    expect![[r#"t / Some("o-7") / Some(42)"#]].assert_eq(&partition("{id}"));
    expect![[r#"t / Some("o-7") / Some(7)"#]].assert_eq(&partition("7"));
    expect![[r#"t / Some("o-7") / None"#]].assert_eq(&partition("{region}"));
    expect![[r#"its partition is not a number from 0 to 2147483647"#]].assert_eq(&partition("-1"));
    expect![[r#"its partition is not a number from 0 to 2147483647"#]]
        .assert_eq(&partition("{tenant}"));
    expect![[r#"its partition is not a number from 0 to 2147483647"#]]
        .assert_eq(&partition("2147483648"));
}

#[test]
fn an_extra_column_may_be_the_partition() {
    let mut spec = OutboxSpec { topic: "t".into(), ..spec() };
    let placement = Placement::Partition;
    spec.extra.push(Extra { column: "id".to_owned(), placement, may_lack: false });
    expect![[r#"t / Some("o-7") / Some(42)"#]].assert_eq(&route(spec));
}

fn replaced(layout: Layout, pattern: &str, with: &str) -> String {
    let replace = Some(Replace { pattern: pattern.to_owned(), with: with.to_owned() });
    if layout == Layout::Postrider {
        return route(OutboxSpec { replace, ..spec() });
    }
    let mut spec = OutboxSpec { replace, ..OutboxSpec::for_layout(layout) };
    for (role, column) in OutboxSpec::for_layout(Layout::Postrider).roles() {
        spec.columns.push((role, column.to_owned()));
    }
    spec.columns.push((Role::EventType, String::new()));
    spec.table = OutboxSpec::for_layout(Layout::Postrider).table;
    route(spec)
}

#[test]
fn replacement_works_on_the_whole_topic() {
    expect![[r#"order / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Postrider,
        r"(.*)\.v\d+",
        "$1",
    ));
    expect![[r#"order-v2 / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Postrider,
        r"(?<name>\w+)\.(v)(\d)",
        "${name}-$2$3",
    ));
    expect![[r#"o2-a / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Postrider,
        r"(o)(.*)",
        r"$12-\a",
    ));
    // It matches a part only: the topic stays.
    expect![[r#"order.v2 / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Postrider,
        r"order",
        "$0",
    ));
    expect![[r#"all / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Postrider,
        r"order|order\.v2",
        "all",
    ));
    expect![[r#"its topic, from {aggregate_type}, is not a name Kafka allows"#]]
        .assert_eq(&replaced(Layout::Postrider, r".*", r"\$"));
}

#[test]
fn with_debezium_replacement_works_on_the_routed_value_and_drops_the_prefix() {
    let value = r"(?<routedByValue>.*)\.v2";
    expect![[r#"events.order / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Debezium,
        value,
        "events.${routedByValue}",
    ));
    expect![[r#"order.v2 / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Debezium,
        "customer",
        "x",
    ));
    expect![[r#"order.v2 / Some("o-7") / None"#]].assert_eq(&replaced(
        Layout::Debezium,
        "order",
        "x",
    ));
}

#[test]
fn debezium_keeps_a_null_key_null() {
    let mut columns = columns();
    columns[2] = null("aggregate_id", TEXT);
    columns[1] = text("aggregatetype", "Order");
    let mut spec = OutboxSpec::for_layout(Layout::Debezium);
    spec.table = OutboxSpec::for_layout(Layout::Postrider).table;
    spec.columns = vec![(Role::AggregateId, "aggregate_id".to_owned())];
    expect![[r#"
        event     42 ""
        aggregate Order / 
        topic     outbox.event.Order
        key       null
        value     "{}"
        timestamp 1704164645500
        header    id = "42"
    "#]]
    .assert_eq(&map(spec, &columns));
}
