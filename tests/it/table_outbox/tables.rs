//! Which tables may have an outbox, under which names, and partitioned tables.

use super::{ORDERS, TableCopy, TableDatabase};
use crate::groups::refused;
use crate::server::Version;

/// Names with everything that SQL gives a meaning.
#[tokio::test]
async fn names_with_quotes_and_sql_and_of_63_bytes_are_tables_columns_and_outboxes() {
    for version in Version::ALL {
        let world = TableDatabase::create(version, "tbl_names").await;
        world.sql.batch("create table canary (id int); create schema \"a.b\"").await;
        let long = "é".repeat(31) + "x";
        let names = [
            "Order",
            "select",
            "o\"'; drop table canary; --",
            "$b$ $f$ $$ %I %s \\",
            long.as_str(),
            &("y".repeat(62) + "1"),
            &("y".repeat(62) + "2"),
        ];
        for name in names {
            for schema in ["public", "a.b"] {
                let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
                let table = format!("{}.{}", quote(schema), quote(name));
                let literal = format!("'{}'", table.replace('\'', "''"));
                let column = quote(name);
                world.sql.batch(&format!("create table {table} (id int, {column} text)")).await;
                let enable = format!(
                    "select postrider.enable_outbox({literal}::regclass, p_notify => true)::text"
                );
                let outbox = world.sql.text(&enable).await.expect("a table");
                world
                    .sql
                    .batch(&format!("insert into {table} values (1, 'v'); truncate {table}"))
                    .await;
                let found = format!(
                    "select count(*) from {outbox} where aggregate_type = '{0}' and aggregate_id = '{schema}.{0}'",
                    name.replace('\'', "''")
                );
                assert_eq!(world.number(&found).await, 2, "{table}");
                let value = format!(
                    "select count(*) from {outbox} where payload -> 'inserted' -> 0 ->> '{}' = 'v'",
                    name.replace('\'', "''")
                );
                assert_eq!(world.number(&value).await, 1, "{table}");
            }
        }
        let count = i64::try_from(names.len() * 2).expect("a number");
        let distinct = "select count(distinct outbox_table) from postrider.table_outbox \
            where octet_length(outbox_table) <= 63 and octet_length(delta_table) <= 63";
        assert_eq!(world.number(distinct).await, count);
        world
            .sql
            .batch("select postrider.disable_outbox(name, p_discard => true) from postrider.table_outbox")
            .await;
        assert_eq!(world.number("select count(*) from canary").await, 0, "it is there");
        let left =
            "select count(*) from pg_depend where refobjid = 'postrider_outbox'::regnamespace";
        assert_eq!(world.number(left).await, 0, "nothing is left");
    }
}

#[tokio::test]
async fn tables_that_cannot_be_captured_wholly_are_refused() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = TableDatabase::create(version, "tbl_unfit").await;
        world
            .sql
            .batch(&format!(
                "{ORDERS}; create view v as select 1; create temp table temporary (id int); \
                 create unlogged table unlogged (id int); create sequence s; \
                 create table root (id int) partition by range (id); \
                 create table leaf partition of root for values from (0) to (10); \
                 create table mixed (id int) partition by range (id); \
                 create unlogged table quick partition of mixed for values from (0) to (10); \
                 create table parent (id int); create table child () inherits (parent)"
            ))
            .await;
        for table in [
            "v",
            "temporary",
            "unlogged",
            "s",
            "leaf",
            "mixed",
            "parent",
            "child",
            "pg_catalog.pg_class",
            "postrider.table_outbox",
        ] {
            assert_eq!(
                world.refused(&format!("enable_outbox('{table}')")).await,
                "42809",
                "{table}"
            );
        }
        for (call, state) in [
            ("enable_outbox('orders', p_columns => '{id,nothing}')", "42703"),
            ("enable_outbox('orders', p_columns => '{}')", "22023"),
            ("enable_outbox('orders', p_columns => '{id,id}')", "22023"),
            ("enable_outbox('orders', p_columns => array[null]::name[])", "22023"),
            ("enable_outbox('orders', p_notify => null)", "22023"),
            ("enable_outbox('orders', '')", "22023"),
            ("enable_outbox('orders', p_retention_hours => -1)", "22023"),
            ("enable_outbox('orders', p_inline_threshold_rows => 100001)", "22023"),
            ("enable_outbox('orders', p_inline_threshold_rows => null)", "22023"),
            ("enable_outbox(null)", "42P01"),
            ("enable_outbox('nothing')", "42P01"),
            ("enable_outbox('root'); select postrider.enable_outbox('root')", "PR130"),
            (
                "enable_outbox('orders', 'one'); select postrider.enable_outbox('orders', 'two')",
                "PR130",
            ),
            (
                "enable_outbox('orders', 'one'); select postrider.enable_outbox('root', 'one')",
                "PR130",
            ),
            ("disable_outbox('orders')", "PR131"),
            ("outbox_status('orders')", "PR131"),
            ("outbox_refresh('orders')", "PR131"),
        ] {
            assert_eq!(world.refused(call).await, state, "{call}");
        }
        assert_eq!(
            world.sql.text("select postrider.disable_outbox('none', true)::text").await.as_deref(),
            Some("false")
        );
        let serializable =
            "begin isolation level repeatable read; select postrider.enable_outbox('orders')";
        assert_eq!(refused(&world.sql, serializable).await, "25000");
        world.sql.batch("rollback").await;
        assert_eq!(world.number("select count(*) from postrider.table_outbox").await, 0);
    }
}

/// A partitioned table with a partition that is partitioned, whose columns have another order; and what is written.
const PARTS: &str = "\
    create table m (id int, day int, note text, primary key (id, day)) partition by range (day); \
    create table m1 partition of m for values from (0) to (10); \
    create table m2 (note text, day int not null, id int not null) partition by range (id); \
    create table m2a (note text, gone int, day int not null, id int not null); \
    alter table m2a drop column gone; \
    alter table m2 attach partition m2a for values from (0) to (100); \
    alter table m attach partition m2 for values from (10) to (20); \
    select postrider.enable_outbox('m'); \
    insert into m values (1, 1, 'a'), (2, 11, 'b'); insert into m1 values (3, 2, 'c'); \
    insert into m2 values ('d', 12, 4); insert into m2a values ('e', 13, 5); \
    update m set day = 14 where id = 1; update m2a set note = 'f' where id = 5; \
    delete from m2 where id = 4; update m set note = note || '!'";

#[tokio::test]
async fn statements_on_a_partitioned_table_and_on_its_partitions_are_captured_once() {
    for version in Version::ALL {
        let world = TableDatabase::create(version, "tbl_parts").await;
        world.sql.batch(PARTS).await;
        let mut copy = TableCopy::default();
        let mut seen = 0;
        let mut follow = async |expected: &[&str]| {
            let events = world.events("outbox_m").await;
            let lines: Vec<String> = events[seen..].iter().map(super::TableEvent::line).collect();
            assert_eq!(lines, expected, "{}", version.major());
            for event in &events[seen..] {
                copy.apply(&world.sql, &event.document, event.id, "outbox_delta_rows_m").await;
            }
            seen = events.len();
            assert_eq!(copy, TableCopy::of(&world.sql, "m").await, "{}", version.major());
        };
        follow(&[
            "INSERT +2 -0",
            "INSERT +1 -0",
            "INSERT +1 -0",
            "INSERT +1 -0",
            "UPDATE +1 -1",
            "UPDATE +1 -1",
            "DELETE +0 -1",
            "UPDATE +4 -4",
        ])
        .await;
        // A partition that is added later is covered by its root, and by itself after a refresh.
        world
            .sql
            .batch("create table m3 partition of m for values from (20) to (30); insert into m values (6, 21)")
            .await;
        assert_eq!(world.status("m", "uncovered").await, "[\"public.m3\"]");
        assert_eq!(world.number("select postrider.outbox_refresh('m')").await, 5);
        assert_eq!(world.status("m", "uncovered").await, "[]");
        world.sql.batch("insert into m3 values (7, 22)").await;
        follow(&["INSERT +1 -0", "INSERT +1 -0"]).await;
        // The rows of one partition can't be removed by an event that says that all are.
        for truncate in ["truncate m3", "begin; truncate m; truncate m3", "begin; truncate m2, m1"]
        {
            assert_eq!(refused(&world.sql, truncate).await, "0A000", "{truncate}");
            world.sql.batch("rollback").await;
        }
        follow(&[]).await;
        world.sql.batch("truncate m3, m; insert into m values (8, 8)").await;
        follow(&["TRUNCATE +0 -0", "INSERT +1 -0"]).await;
        world
            .sql
            .batch("begin; truncate m; truncate m; commit; insert into m values (9, 25)")
            .await;
        follow(&["TRUNCATE +0 -0", "TRUNCATE +0 -0", "INSERT +1 -0"]).await;
        // A detached partition is a table of its own: what becomes of its rows is no event.
        world
            .sql
            .batch("alter table m detach partition m1; insert into m1 values (70, 1); truncate m1; delete from m1")
            .await;
        follow(&[]).await;
        world.sql.batch("select postrider.disable_outbox('m', p_discard => true)").await;
        assert_eq!(
            world.number("select count(*) from pg_trigger where tgname like 'postrider%'").await,
            0
        );
    }
}

#[tokio::test]
async fn a_table_that_is_renamed_is_captured_on_under_its_first_name_and_one_that_is_dropped_leaves_the_events()
 {
    let world = TableDatabase::with_orders(Version::Pg17, "tbl_renamed", "").await;
    world
        .sql
        .batch(&format!(
            "create schema later; alter table orders rename to sales; alter table sales set schema later; \
             insert into later.sales values (1); {ORDERS}"
        ))
        .await;
    assert_eq!(world.status("orders", "table_now").await, "later.sales");
    assert_eq!(
        world.refused("enable_outbox('orders')").await,
        "PR130",
        "its events would have the same key"
    );
    world.sql.batch("drop table later.sales").await;
    assert_eq!(world.status("orders", "table_now").await, "null");
    assert_eq!(world.status("orders", "events").await, "1");
    assert_eq!(world.refused("outbox_refresh('orders')").await, "42P01");
    assert_eq!(world.refused("disable_outbox('orders')").await, "PR132");
    world.sql.batch("select postrider.disable_outbox('orders', p_discard => true)").await;
    world.sql.batch("select postrider.enable_outbox('orders')").await;
}
