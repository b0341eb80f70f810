//! The document of each kind of statement.

use super::{ORDERS, TableCopy, TableDatabase};
use crate::server::Version;
use std::fmt::Write as _;

/// Statements, and the events that each writes.
const STATEMENTS: [(&str, &[&str]); 22] = [
    ("insert into orders values (1, 1.50, 'a'), (2, 2, null)", &["INSERT +2 -0"]),
    ("update orders set amount = amount + 1", &["UPDATE +2 -2"]),
    ("update orders set amount = amount where id = 1", &["UPDATE +1 -1"]),
    ("delete from orders where id = 2", &["DELETE +0 -1"]),
    ("copy orders (id) from program 'printf \"3\\n4\\n5\\n\"'", &["INSERT +3 -0"]),
    ("insert into orders values (3) on conflict do nothing", &[]),
    (
        "insert into orders values (3), (6) on conflict (id) do update set note = 'again'",
        &["UPDATE +1 -1", "INSERT +1 -0"],
    ),
    (
        "merge into orders o using (values (1), (3), (7)) v(i) on v.i = o.id \
         when matched and o.id = 1 then delete when matched then update set note = 'merged' \
         when not matched then insert (id) values (v.i)",
        &["DELETE +0 -1", "UPDATE +1 -1", "INSERT +1 -0"],
    ),
    (
        "with gone as (delete from orders where id = 7 returning id), moved as ( \
         update orders set note = 'cte' where id = 3 returning id) \
         insert into orders select 8 from gone",
        &["DELETE +0 -1", "INSERT +1 -0", "UPDATE +1 -1"],
    ),
    ("update orders set note = 'no' where false", &[]),
    ("delete from orders where false", &[]),
    ("insert into orders select 99 where false", &[]),
    ("begin; insert into orders values (10); rollback", &[]),
    (
        "begin; insert into orders values (10); savepoint s; insert into orders values (11); rollback to s; \
         insert into orders values (12); commit",
        &["INSERT +1 -0", "INSERT +1 -0"],
    ),
    ("insert into item values (1, 10), (2, 10), (3, 12)", &[]),
    ("delete from orders where id = 10", &["DELETE +0 -1"]),
    ("alter table orders add column extra text default 'x'", &[]),
    ("update orders set note = 'extra' where id = 12", &["UPDATE +1 -1"]),
    ("alter table orders drop column note", &[]),
    ("insert into orders (id) values (13)", &["INSERT +1 -0"]),
    ("truncate orders cascade", &["TRUNCATE +0 -0"]),
    ("truncate orders cascade; insert into orders values (1)", &["TRUNCATE +0 -0", "INSERT +1 -0"]),
];

#[tokio::test]
async fn each_kind_of_statement_writes_its_rows_in_one_event_and_an_empty_one_writes_none() {
    for version in Version::ALL {
        let world = TableDatabase::with_orders(version, "tbl_kinds", "").await;
        world
            .sql
            .batch(
                "create table item (id int primary key, orders int references orders on delete cascade); \
                 select postrider.enable_outbox('item')",
            )
            .await;
        let (mut seen, mut copy, mut item) = (0, TableCopy::default(), TableCopy::default());
        for (statement, expected) in STATEMENTS {
            world.sql.batch(statement).await;
            let events = world.events("outbox_orders").await;
            let lines: Vec<String> = events[seen..].iter().map(super::TableEvent::line).collect();
            assert_eq!(lines, expected, "{statement} on {}", version.major());
            for event in &events[seen..] {
                copy.apply(&world.sql, &event.document, event.id, "outbox_delta_rows_orders").await;
            }
            seen = events.len();
            // A column that is added or dropped shows in the documents from then on.
            if !statement.starts_with("alter table") && !statement.contains("'extra'") {
                let table = TableCopy::of(&world.sql, "orders").await;
                assert_eq!(copy.0.keys().collect::<Vec<_>>(), table.0.keys().collect::<Vec<_>>());
            }
        }
        // The rows that a foreign key has deleted, in one event; those of the TRUNCATE.
        for event in world.events("outbox_item").await {
            item.apply(&world.sql, &event.document, event.id, "outbox_delta_rows_item").await;
        }
        let lines = world.lines("outbox_item").await;
        assert_eq!(lines, ["INSERT +3 -0", "DELETE +0 -2", "TRUNCATE +0 -0", "TRUNCATE +0 -0"]);
        assert_eq!(item, TableCopy::of(&world.sql, "item").await);
        let shape = "select string_agg(distinct aggregate_type || ' ' || aggregate_id, ',') \
                     from postrider_outbox.outbox_orders";
        assert_eq!(world.sql.text(shape).await.as_deref(), Some("orders public.orders"));
        let truncated = "select payload::text from postrider_outbox.outbox_orders \
                         where event_type = 'TRUNCATE' limit 1";
        assert_eq!(
            world.sql.text(truncated).await.as_deref(),
            Some(r#"{"v":1,"truncated":true,"inserted":[],"deleted":[]}"#)
        );
    }
}

/// The same rows in sessions with other settings are the same text, and it is that of `to_jsonb`.
#[tokio::test]
async fn values_are_written_as_to_jsonb_does_whatever_the_session_has_set() {
    for version in Version::ALL {
        let world = TableDatabase::create(version, "tbl_values").await;
        world
            .sql
            .batch(
                "create type mood as enum ('fine'); create domain cents as numeric check (value >= 0); \
                 create table kinds (id int primary key, big bigint, digits numeric, nan numeric, inf numeric, \
                   float float8, yes boolean, j json, b jsonb, list int[], texts text[], uid uuid, at timestamptz, \
                   local timestamp, day date, span interval, bytes bytea, during tstzrange, mood mood, cents cents, \
                   none text, \"odd \"\"name\" text); \
                 select postrider.enable_outbox('kinds')",
            )
            .await;
        let values = "9007199254740993, 12345678901234567890.12345678901234567890, 'NaN', 'Infinity', \
             0.1::float8 + 0.2::float8, true, '{\"a\":  1.50, \"a\": 2}', '{\"b\": 1.50}', '{1,null,3}', '{\"x,y\",\"z\"}', \
             '0b6c8a4e-1111-4222-8333-944444444444', '2024-01-02 03:04:05.678901+00', '2024-01-02 03:04:05', \
             '2024-01-02', '1 day 02:00', '\\xdead', '[2024-01-02 00:00+00,2024-01-03 00:00+00)', 'fine', 1.50, null, \
             'ü \"q\" \\ '";
        let hostile = "set datestyle = 'German'; set timezone = 'Asia/Kolkata'; set intervalstyle = 'iso_8601'; \
             set bytea_output = 'escape'; set extra_float_digits = -3";
        for (id, settings) in [(1, "select 1"), (2, hostile)] {
            world
                .sql
                .batch(&format!("{settings}; insert into kinds values ({id}, {values})"))
                .await;
        }
        world
            .sql
            .batch(
                "reset all; set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres'; \
                 set bytea_output = 'hex'; set extra_float_digits = 1",
            )
            .await;
        let same = "select count(*) from postrider_outbox.outbox_kinds o join kinds k \
             on (o.payload #>> '{inserted,0,id}')::int = k.id \
             where (o.payload -> 'inserted' -> 0)::jsonb = to_jsonb(k) \
               and (o.payload -> 'inserted' -> 0)::text = row_to_json(k)::text";
        assert_eq!(world.number(same).await, 2, "{}", version.major());
        let text =
            world.sql.text("select payload::text from postrider_outbox.outbox_kinds limit 1").await;
        let text = text.expect("a document");
        for part in [
            "12345678901234567890.12345678901234567890",
            "\"nan\":\"NaN\"",
            "\"inf\":\"Infinity\"",
            "{\"a\":  1.50, \"a\": 2}",
            "\"at\":\"2024-01-02T03:04:05.678901+00:00\"",
            "\"none\":null",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[tokio::test]
async fn rows_beyond_the_threshold_are_in_a_table_of_their_own_with_the_deleted_ones_first() {
    for version in Version::ALL {
        let world =
            TableDatabase::with_orders(version, "tbl_check", ", p_inline_threshold_rows => 100")
                .await;
        for statement in [
            "insert into orders select i from generate_series(1, 100) i",
            "insert into orders select i from generate_series(101, 201) i",
            "update orders set note = 'n' where id <= 50",
            "update orders set note = 'm' where id <= 51",
            // Few rows, and more bytes than a broker takes; more than are counted before the document is built.
            "insert into orders values (300, 0, repeat('x', 450000)), (301, 0, repeat('y', 450001))",
            "insert into orders select i, 0, string_agg(md5((i * 10000 + j)::text), '') \
             from generate_series(400, 401) i, generate_series(1, 20000) j group by i",
            "begin; insert into orders select i from generate_series(1000, 2000) i; rollback",
        ] {
            world.sql.batch(statement).await;
        }
        assert_eq!(
            world.lines("outbox_orders").await,
            [
                "INSERT +100 -0",
                "INSERT +101 -0 elsewhere",
                "UPDATE +50 -50",
                "UPDATE +51 -51 elsewhere",
                "INSERT +2 -0 elsewhere",
                "INSERT +2 -0 elsewhere",
            ]
        );
        let rows = "select string_agg(n, ', ' order by n) from (select outbox_id || op::text || count(*) || ' ' || \
            min(row_num) || '-' || max(row_num) as n from postrider_outbox.outbox_delta_rows_orders \
            group by outbox_id, op) x";
        assert_eq!(
            world.sql.text(rows).await.as_deref(),
            Some("2I101 1-101, 4D51 1-51, 4I51 52-102, 5I2 1-2, 6I2 1-2"),
            "a rollback leaves none"
        );
        assert_eq!(world.status("orders", "claim_check_pending_count").await, "4");
    }
}

#[tokio::test]
async fn claim_check_is_needed_until_each_group_has_read_it() {
    let world =
        TableDatabase::with_orders(Version::Pg16, "tbl_groups", ", p_inline_threshold_rows => 0")
            .await;
    world.sql.batch("insert into orders values (1); insert into orders values (2)").await;
    let said = async |call: &str| world.sql.text(&format!("select postrider.{call}::text")).await;
    let yes = Some("true".to_owned());
    let no = Some("false".to_owned());
    let unread = async || world.status("orders", "claim_check_pending_count").await;
    assert_eq!(said("outbox_add_group('orders', 'billing')").await, yes);
    assert_eq!(said("outbox_add_group('orders', 'billing')").await, no);
    assert_eq!(said("outbox_rows_consumed('orders', 1, 'search')").await, yes);
    assert_eq!(unread().await, "2", "billing has not read it");
    assert_eq!(said("outbox_rows_consumed('orders', 1, 'billing')").await, yes);
    assert_eq!(said("outbox_rows_consumed('orders', 1, 'billing')").await, no);
    assert_eq!(unread().await, "1");
    assert_eq!(said("outbox_rows_consumed('orders', 2, 'search')").await, yes);
    assert_eq!(unread().await, "1");
    // A group that is given up is waited for no longer.
    assert_eq!(said("outbox_drop_group('orders', 'billing')").await, yes);
    assert_eq!(said("outbox_drop_group('orders', 'billing')").await, no);
    assert_eq!(unread().await, "0");
    assert_eq!(world.status("orders", "groups").await, "[\"search\"]");
    // An event that is gone is no error of a consumer that is late.
    assert_eq!(said("outbox_rows_consumed('orders', 99)").await, no);
    world
        .sql
        .batch("update postrider_outbox.outbox_orders set is_claim_check = false where id = 2")
        .await;
    assert_eq!(world.refused("outbox_rows_consumed('orders', 2, 'late')").await, "22023");
    assert_eq!(world.refused("outbox_rows_consumed('orders', 1, '')").await, "22023");
    assert_eq!(world.refused("outbox_rows_consumed('none', 1)").await, "PR131");
    // The last group goes: nobody has read what is unread.
    world.sql.batch("insert into orders values (3)").await;
    assert_eq!(said("outbox_drop_group('orders', 'search')").await, yes);
    assert_eq!(said("outbox_drop_group('orders', 'default')").await, yes);
    assert_eq!(unread().await, "1");
}

/// A column may have the name of anything in the body of the trigger.
#[tokio::test]
async fn listed_columns_are_the_only_ones_in_a_document_whatever_their_names_are() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = TableDatabase::create(version, "tbl_columns").await;
        world
            .sql
            .batch(
                "create table t (id int, x text, y text, new_rows text, \"v_payload\" text, \"a\"\"'$f$,b\" text, \
                   secret text); \
                 select postrider.enable_outbox('t', p_columns => array['id', 'x', 'y', 'new_rows', 'v_payload', \
                   'a\"''$f$,b']); \
                 insert into t values (1, '2', '3', '4', '5', '6', 'hush'); update t set x = 'z'; delete from t; \
                 create table whole (id int, x text, y text, n text, t text); \
                 select postrider.enable_outbox('whole'); insert into whole values (1, '2', '3', '4', '5')",
            )
            .await;
        let events = world.events("outbox_t").await;
        let row = serde_json::json!(
            {"id": 1, "x": "2", "y": "3", "new_rows": "4", "v_payload": "5", "a\"'$f$,b": "6"}
        );
        assert_eq!(events[0].document["inserted"], serde_json::json!([row]));
        assert_eq!(events[1].document["deleted"], serde_json::json!([row]));
        assert_eq!(events.len(), 3);
        assert!(events.iter().all(|event| !event.document.to_string().contains("hush")));
        let whole = serde_json::json!([{"id": 1, "x": "2", "y": "3", "n": "4", "t": "5"}]);
        assert_eq!(world.events("outbox_whole").await[0].document["inserted"], whole);
        if version == Version::Pg18 {
            world
                .sql
                .batch("create table v (id int, twice int generated always as (id * 2) virtual)")
                .await;
            assert_eq!(world.refused("enable_outbox('v')").await, "42809");
            assert_eq!(world.refused("enable_outbox('v', p_columns => '{twice}')").await, "42809");
            world.sql.batch("select postrider.enable_outbox('v', p_columns => '{id}')").await;
        }
    }
}

/// What the page says of triggers that change rows of the table again: the event of the inner statement is first.
#[tokio::test]
async fn a_trigger_that_changes_rows_of_its_table_is_warned_of_and_its_event_is_the_first_one() {
    let world = TableDatabase::create(Version::Pg17, "tbl_nested").await;
    world
        .sql
        .batch(&format!(
            "{ORDERS}; create function again() returns trigger language plpgsql as $$ begin \
               update orders set note = 'again' where id = new.id; return null; end $$; \
             create trigger again after insert on orders for each row execute function again(); \
             select postrider.enable_outbox('orders'); insert into orders values (1)"
        ))
        .await;
    assert_eq!(world.lines("outbox_orders").await, ["UPDATE +1 -1", "INSERT +1 -0"]);
    assert_eq!(world.status("orders", "other_triggers").await, "[\"again\"]");
}

/// Random statements in random transactions; the seed is in the message of a failure.
#[tokio::test]
async fn a_consumer_that_applies_the_documents_of_random_statements_has_the_table() {
    for version in Version::ALL {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let world =
            TableDatabase::with_orders(version, "tbl_random", ", p_inline_threshold_rows => 20")
                .await;
        let (mut copy, mut done) = (TableCopy::default(), 0);
        for _ in 0..40 {
            let mut script = String::from("begin;");
            for _ in 0..random.u32(1..6) {
                write!(script, "{};", statement(&mut random)).expect("a String");
            }
            script.push_str(if random.u32(..6) == 0 { "rollback" } else { "commit" });
            world.sql.batch(&script).await;
            for event in world.events("outbox_orders").await.iter().filter(|event| event.id > done)
            {
                copy.apply(&world.sql, &event.document, event.id, "outbox_delta_rows_orders").await;
            }
            done = world
                .number("select coalesce(max(id), 0) from postrider_outbox.outbox_orders")
                .await;
            let table = TableCopy::of(&world.sql, "orders").await;
            assert_eq!(copy, table, "seed {seed}, PostgreSQL {}: {script}", version.major());
        }
        let checks = world
            .number("select count(*) from postrider_outbox.outbox_orders where is_claim_check")
            .await;
        assert!(checks > 0, "seed {seed}: no claim check");
    }
}

fn statement(random: &mut fastrand::Rng) -> String {
    let (low, count, value) = (random.i32(1..60), random.i32(0..30), random.u32(..1000));
    let high = low + count;
    match random.u32(..12) {
        0..=2 => format!(
            "insert into orders select i, {value} / 7.0, 'n{value}' from generate_series({low}, {high}) i \
             on conflict do nothing"
        ),
        3 => format!(
            "insert into orders select i, {value} from generate_series({low}, {high}) i \
             on conflict (id) do update set amount = excluded.amount, note = null"
        ),
        4 | 5 => {
            format!("update orders set amount = amount + {value} where id between {low} and {high}")
        }
        6 => format!(
            "update orders set id = -id where abs(id) between {low} and {high} \
             and not exists (select from orders o where o.id = -orders.id)"
        ),
        7 => format!("delete from orders where id between {low} and {high}"),
        8 => format!(
            "merge into orders o using generate_series({low}, {high}) i on o.id = i \
             when matched and i % 3 = 0 then delete when matched then update set note = 'm{value}' \
             when not matched then insert (id, amount) values (i, {value})"
        ),
        9 => format!(
            "with gone as (delete from orders where id between {low} and {high} returning *) \
             insert into orders select -id, amount, 'moved' from gone on conflict do nothing"
        ),
        10 => format!(
            "savepoint s; delete from orders where id > {low}; truncate orders; rollback to s; \
             update orders set note = 'kept' where id = {low}"
        ),
        _ if value < 200 => "truncate orders".to_owned(),
        _ => format!("delete from orders where id < -{low}"),
    }
}
