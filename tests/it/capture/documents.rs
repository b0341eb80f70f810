//! The documents of real servers: what a value of each type looks like, and what of a transaction is in a document.

use super::keeper::{document, list};
use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::Version;
use crate::topic::ReadRecord;
use serde_json::Value;

/// A pipeline that is set up and streams.
async fn streaming(version: Version, test: &str, ddl: &str, capture: &str) -> (Pipeline, Relay) {
    let pipeline = Pipeline::capturing(version, test, ddl, capture).await;
    postrider_ok(&pipeline.config, &["setup"]);
    let relay = Relay::spawn(&pipeline.config);
    relay.await_state("streaming", SOON).await;
    (pipeline, relay)
}

/// Everything that was committed until now is published: the records, after the relay has ended.
async fn all(pipeline: &Pipeline, relay: Relay) -> Vec<ReadRecord> {
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
    let ended = relay.terminate(SOON).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    pipeline.topic.read_all().await
}

/// The documents with their keys, each as one line.
fn lines(records: &[ReadRecord]) -> Vec<String> {
    let line = |record: &ReadRecord| {
        let (key, value) = (record.key_text().unwrap_or_default(), record.value_text());
        format!("{key} {}", value.unwrap_or_default())
    };
    records.iter().map(line).collect()
}

const TYPES: &str = "\
create type mood as enum ('sad', 'it''s \"ok\"');
create domain positive as int check (value > 0);
create domain names as text[];
create type pair as (number numeric, \"the text\" text, list int[]);
create type nested as (inner_pair pair, at timestamptz, yes bool);
create table everything (
  id int primary key, yes bool, i2 int2, i8 int8, n numeric, n2 numeric(12,2), f4 float4, f8 float8,
  t text, v varchar(40), c char(5), one \"char\", name name, b bytea, d date, ts timestamp, tz timestamptz(3),
  ti time, tt timetz, iv interval, u uuid, j json, jb jsonb, x xml, net inet, ci cidr, mac macaddr, pt point, bx box,
  bits bit(3), vb varbit, r int4range, rt tstzrange, mr int4multirange, tv tsvector, m money, o oid,
  e mood, dom positive, dn names, p pair, ne nested, ia int[], ta text[], ja jsonb[], tza timestamptz[], ea mood[],
  pa pair[], ba box[], iv2 int2vector, \"we\"\"ird \\ name\" text);
insert into everything values (0);";

/// The rows that are written while the pipeline streams, after one that has NULL everywhere.
const VALUES: &str = "\
insert into everything values (1, true, -32768, 9223372036854775807,
  123456789012345678901234567890.123456789012345678901234567890, 12.50, 1.5e-7, 1.0e20,
  E'quote \" backslash \\\\ newline \\n tab \\t bell \\x07 \\u00e4 \\U0001F600', 'v', 'ab', 'x', 'n', '\\x00ff', '2026-10-25',
  '2026-10-25 02:30:00.123456', '2026-10-25 02:30:00.5+02', '02:30:00.5', '02:30:00+05:30',
  '1 year 2 mons -3 days 04:05:06.7', '0199e0f4-7c3a-7d21-b1c5-2f8a3c4d5e6f', '{\"a\" : [1, 2.50,  null]}',
  '{\"b\": {\"c\": 1.10}, \"a\": \"\\u00e4\"}', '<a>\"x\"</a>', '10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03',
  '(1.5,-2)', '(1,1),(0,0)', '101', '10', '[1,10)', '[2026-01-01 00:00+00,)', '{[1,3),[5,9)}', 'a:1 b:2', 12.34, 4294967295,
  'it''s \"ok\"', 7, '{a,\"b \\\\\\\" c\",NULL,\"NULL\"}', row(1.50, 'say \"hi\", \\ ok', '{1,2}'),
  row(row(2, null, null), '2026-10-25 02:30:00+00', false), '{{1,2},{3,null}}', '{\"\",\" \",null}',
  array['{\"a\": \"}\"}'::jsonb, null], array['2026-10-25 02:30:00+00'::timestamptz], '{sad}',
  array[row(1, 'a,b', '{}')::pair, null], '{(1,1),(0,0);(3,3),(2,2)}', '1 2 3', 'weird');
insert into everything (id, n, f4, f8, d, ts, tz, ia, iv, j) values
  (2, 'NaN', 'NaN', '-Infinity', 'infinity', '-infinity', 'infinity', '[0:1]={1,2}', '0', '\"text\"'),
  (3, 'Infinity', '-0', 1e308, '0044-03-15 BC', '0044-03-15 12:00:00 BC', '0044-03-15 12:00:00+00 BC', '{}', '-1 day', '[]'),
  (4, -0.000, 0.1, 123456789.123456789, '12345-06-07', '12345-06-07 00:00:00', '12345-06-07 00:00:00.25+00', null, null, 'null');
update everything set yes = false where id = 0;";

/// Compared on the server, column by column, with what `to_jsonb` says there.
#[tokio::test]
async fn values_of_every_type_are_as_to_jsonb_writes_them() {
    for version in Version::ALL {
        let capture = "tables = [\"everything\"]";
        let (pipeline, relay) = streaming(version, "types", TYPES, capture).await;
        pipeline.sql.batch(VALUES).await;
        let records = all(&pipeline, relay).await;
        pipeline.sql.batch("set timezone = 'UTC'").await;
        let mut rows = 0;
        for record in &records {
            for row in list(&document(record), "inserted") {
                rows += 1;
                // The text of the record, not the parsed numbers.
                let text = record.value_text().expect("a text").replace('\'', "''");
                let id = &row["id"];
                let differ = format!(
                    "select string_agg(x.key || ': ' || coalesce(o.value::text, 'absent') || ' is not ' || x.value::text, '; ') \
                     from (select to_jsonb(every) as whole from everything every where id = {id}) t \
                     cross join jsonb_each(t.whole) x \
                     left join jsonb_each((select r from jsonb_array_elements('{text}'::jsonb -> 'inserted') r \
                                           where r ->> 'id' = '{id}')) o on o.key = x.key \
                     where o.value is distinct from x.value"
                );
                let differ = pipeline.sql.text(&differ).await;
                assert_eq!(differ, None, "{version:?}, row {id}");
            }
        }
        assert_eq!(rows, 5, "{version:?}");
        // Numbers keep digits that a float does not have.
        let numeric = "123456789012345678901234567890.123456789012345678901234567890";
        let text = lines(&records).join("\n");
        assert!(text.contains(numeric) && text.contains("\"n2\":12.50"), "{text}");
    }
}

#[tokio::test]
async fn a_transaction_is_one_document_for_each_table_with_its_result_only() {
    let ddl = "create table orders (id int primary key, note text); \
               create table lines (id int, item text, note text); \
               create unique index by_item on lines (item); alter table lines alter item set not null; \
               alter table lines replica identity using index by_item; \
               create table logs (id int, note text); alter table logs replica identity full; \
               create table plain (id int); \
               insert into orders values (1, 'a'), (2, 'b'), (3, 'c'); insert into lines values (1, 'x', 'n'); \
               insert into logs values (1, 'l'), (2, null)";
    let capture = "tables = [\"orders\", \"lines\", \"logs\"]";
    for version in [Version::Pg15, Version::Pg18] {
        let (pipeline, relay) = streaming(version, "netting", ddl, capture).await;
        for statement in [
            "begin; update lines set note = 'm'; update orders set note = 'A' where id = 1; \
             update orders set note = 'AA' where id = 1; delete from orders where id = 2; \
             insert into orders values (4, 'd'), (5, 'e'); delete from orders where id = 4; \
             update orders set id = 6 where id = 3; insert into plain values (1); \
             savepoint s; insert into orders values (99, 'rolled back'); rollback to s; commit",
            "update lines set item = 'y'",
            "update logs set note = 'L' where id = 1; delete from logs where id = 2",
            // Nothing is left.
            "begin; insert into orders values (7, 'g'); delete from orders where id = 7; commit",
            "begin; delete from orders where id = 1; truncate orders, lines; insert into orders values (1, 'z'); commit",
        ] {
            pipeline.sql.batch(statement).await;
        }
        let records = all(&pipeline, relay).await;
        assert_eq!(
            lines(&records),
            [
                r#"public.lines {"v":1,"inserted":[{"id":1,"item":"x","note":"m"}],"deleted":[{"item":"x"}]}"#,
                r#"public.orders {"v":1,"inserted":[{"id":1,"note":"AA"},{"id":5,"note":"e"},{"id":6,"note":"c"}],"deleted":[{"id":1},{"id":2},{"id":3}]}"#,
                r#"public.lines {"v":1,"inserted":[{"id":1,"item":"y","note":"m"}],"deleted":[{"item":"x"}]}"#,
                r#"public.logs {"v":1,"inserted":[{"id":1,"note":"L"}],"deleted":[{"id":1,"note":"l"},{"id":2,"note":null}]}"#,
                r#"public.orders {"v":1,"truncated":true,"inserted":[{"id":1,"note":"z"}],"deleted":[]}"#,
                r#"public.lines {"v":1,"truncated":true,"inserted":[],"deleted":[]}"#,
            ],
            "{version:?}"
        );
        for record in &records {
            assert_eq!(record.header("id"), record.header("position"), "{version:?}");
        }
    }
}

/// About 8 kB that do not compress, which PostgreSQL stores out of line.
const LARGE: &str = "(select string_agg(md5(i::text), '') from generate_series(1, 250) i)";

#[tokio::test]
async fn a_large_value_that_is_unchanged_is_named_or_taken_from_the_old_row() {
    let ddl = format!(
        "create table orders (id int primary key, n int, note text); \
         create table logs (id int primary key, n int, note text); alter table logs replica identity full; \
         insert into orders values (1, 0, {LARGE}); insert into logs values (1, 0, {LARGE})"
    );
    let capture = "tables = [\"orders\", \"logs\"]";
    let (pipeline, relay) = streaming(Version::Pg17, "toast", &ddl, capture).await;
    let sql = &pipeline.sql;
    sql.batch("update orders set n = 1; update logs set n = 1").await;
    let insert = format!("insert into orders values (2, 0, {LARGE})");
    sql.batch(&format!("begin; {insert}; update orders set n = 1 where id = 2; commit")).await;
    let large = sql.text("select note from orders where id = 1").await.expect("a text");
    let records = all(&pipeline, relay).await;
    let documents: Vec<Value> = records.iter().map(document).collect();
    assert_eq!(documents.len(), 3);
    let row = |note: Option<&str>, id: i32, n: i32| match note {
        Some(note) => serde_json::json!({ "id": id, "n": n, "note": note }),
        None => serde_json::json!({ "id": id, "n": n }),
    };
    assert_eq!(documents[0]["unchanged"], serde_json::json!(["note"]));
    assert_eq!(list(&documents[0], "inserted"), [row(None, 1, 1)]);
    assert_eq!(list(&documents[1], "inserted"), [row(Some(&large), 1, 1)]);
    assert_eq!(list(&documents[1], "deleted"), [row(Some(&large), 1, 0)]);
    // The value of the row that was inserted in the same transaction.
    assert_eq!(list(&documents[2], "inserted"), [row(Some(&large), 2, 1)]);
    assert!(documents[1..].iter().all(|document| document.get("unchanged").is_none()));
}

#[tokio::test]
async fn columns_that_are_added_renamed_and_dropped_are_in_the_next_document() {
    let ddl = "create table orders (id int primary key, note text, old int); \
               create table listed (id int primary key, shown text, hidden text)";
    let capture =
        "tables = [\"orders\", \"listed\"]\ncolumns = { \"listed\" = [\"id\", \"shown\"] }";
    let (pipeline, relay) = streaming(Version::Pg16, "columns", ddl, capture).await;
    for statement in [
        "insert into orders values (1, 'a', 1)",
        "alter table orders add column more text default 'm'",
        "update orders set note = 'b'",
        "alter table orders rename column note to remark; alter table orders drop column old",
        "insert into listed values (1, 's', 'h')",
        // Rows from before and after the change of the table are in two documents.
        "begin; insert into orders values (2, 'c', 'm'); alter table orders add column last int; \
         insert into orders values (3, 'd', 'm', 3); commit",
    ] {
        pipeline.sql.batch(statement).await;
    }
    let records = all(&pipeline, relay).await;
    let mut found = lines(&records);
    let sequence = document(&records[3])["sequence"].as_str().expect("a sequence").to_owned();
    for line in &mut found {
        *line = line.replace(&sequence, "S");
    }
    assert_eq!(
        found,
        [
            r#"public.orders {"v":1,"inserted":[{"id":1,"note":"a","old":1}],"deleted":[]}"#,
            r#"public.orders {"v":1,"inserted":[{"id":1,"note":"b","old":1,"more":"m"}],"deleted":[{"id":1}]}"#,
            r#"public.listed {"v":1,"inserted":[{"id":1,"shown":"s"}],"deleted":[]}"#,
            r#"public.orders {"v":1,"claim_check":false,"sequence":"S"}"#,
            r#"public.orders {"v":1,"sequence":"S","chunk":1,"inserted":[{"id":2,"remark":"c","more":"m"}],"deleted":[]}"#,
            r#"public.orders {"v":1,"sequence":"S","chunk":2,"last":true,"chunks":2,"inserted_count":2,"deleted_count":0,"inserted":[{"id":3,"remark":"d","more":"m","last":3}],"deleted":[]}"#,
        ]
    );
    assert_eq!(records[3].header("id"), Some(sequence.as_str()));
}

#[tokio::test]
async fn a_partitioned_table_is_one_table_and_two_schemas_may_have_one_name() {
    let ddl = "create table orders (id int, part int, primary key (id, part)) partition by list (part); \
               create table orders_1 partition of orders for values in (1); \
               create table orders_2 partition of orders for values in (2); \
               create schema other; create table other.orders (id int primary key)";
    let capture = "tables = [\"public.orders\", \"other.orders\"]";
    let pipeline = Pipeline::capturing(Version::Pg17, "partitions", ddl, capture).await;
    let sink = format!("[pipelines.{}.sink]", pipeline.name);
    let header = "headers = { kind = \"{aggregate_type}\" }";
    let config = pipeline.config.replace(&sink, &format!("{header}\n{sink}"));
    postrider_ok(&config, &["setup"]);
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    for statement in [
        "insert into orders values (1, 1), (2, 2)",
        "update orders set part = 2 where id = 1",
        "create table orders_3 (id int not null, part int not null, primary key (id, part)); \
         alter table orders attach partition orders_3 for values in (3); insert into orders values (3, 3)",
        "insert into other.orders values (9)",
        "truncate orders",
    ] {
        pipeline.sql.batch(statement).await;
    }
    let records = all(&pipeline, relay).await;
    assert_eq!(
        lines(&records),
        [
            r#"public.orders {"v":1,"inserted":[{"id":1,"part":1},{"id":2,"part":2}],"deleted":[]}"#,
            r#"public.orders {"v":1,"inserted":[{"id":1,"part":2}],"deleted":[{"id":1,"part":1}]}"#,
            r#"public.orders {"v":1,"inserted":[{"id":3,"part":3}],"deleted":[]}"#,
            r#"other.orders {"v":1,"inserted":[{"id":9}],"deleted":[]}"#,
            r#"public.orders {"v":1,"truncated":true,"inserted":[],"deleted":[]}"#,
        ]
    );
    let kinds: Vec<_> = records.iter().map(|record| record.header("kind")).collect();
    assert_eq!(kinds[2..4], [Some("public.orders"), Some("other.orders")]);
}
