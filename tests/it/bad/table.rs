//! Tables that no stream can be made of, or not this one.

use super::arrives;
use crate::answers::answer;
use crate::halted::run_to_halt;
use crate::pipeline::Pipeline;
use crate::server::Version;

/// Its name, what is done to the database, what fixes it, the code, words of the message, and words of the hint.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const CASES: &[Case] = &[
    (
        "a view in place of the table",
        "alter table outbox rename to aside; create view outbox as select * from aside",
        "drop view outbox; alter table aside rename to outbox",
        "PR009",
        &["\"outbox\" is not a table"],
        &["outbox.table"],
    ),
    (
        "a foreign table",
        "alter table outbox rename to aside; create foreign data wrapper nothing; \
         create server nowhere foreign data wrapper nothing; \
         create foreign table outbox (id bigint, aggregate_type text, aggregate_id text, event_type text, \
         payload json, headers json, created_at timestamptz) server nowhere",
        "drop foreign table outbox; alter table aside rename to outbox",
        "PR009",
        &["\"outbox\" is not a table"],
        &["outbox.table"],
    ),
    (
        "table unlogged",
        "alter publication {publication} drop table outbox; alter table outbox set unlogged",
        "alter table outbox set logged; alter publication {publication} add table outbox",
        "PR009",
        &["unlogged"],
        &["SET LOGGED"],
    ),
    (
        "publication with a column list",
        "alter publication {publication} set table outbox (id, aggregate_type, aggregate_id, event_type)",
        "alter publication {publication} set table outbox",
        "PR008",
        &["does not publish column", "payload"],
        &["ALTER PUBLICATION", "SET TABLE"],
    ),
];

#[tokio::test]
async fn what_is_no_table_to_stream_is_told_and_mended_without_loss() {
    let pipeline = Pipeline::shared(Version::Pg17, "notable").await;
    pipeline.insert(10).await;
    let before = pipeline.confirmed_lsn().await;
    for (input, hurt, fix, code, message, hint) in CASES {
        pipeline.sql(hurt).await;
        let halted = run_to_halt(&pipeline.config).await;
        halted.assert_says(code, message, hint);
        assert_eq!(pipeline.confirmed_lsn().await, before, "{input}");
        answer(input, &pipeline, &halted);
        pipeline.sql(fix).await;
    }
    pipeline.sql("create temporary table outbox (like public.outbox)").await;
    let schema = "select nspname from pg_namespace where oid = pg_my_temp_schema()";
    let schema = pipeline.sql.text(schema).await.expect("a schema");
    let config = pipeline.config.replace("public.outbox", &format!("{schema}.outbox"));
    let halted = run_to_halt(&config).await;
    halted.assert_says("PR009", &["temporary"], &["outbox.table"]);
    answer("a temporary table", &pipeline, &halted);
    pipeline.sql("drop table pg_temp.outbox").await;
    arrives(&pipeline, 10).await;
}

#[tokio::test]
async fn partition_named_instead_of_its_root_is_told_and_the_root_streams() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "partition").await;
        pipeline
            .sql(
                "create table events (like outbox including defaults) partition by list (aggregate_type); \
                 create table events_order partition of events for values in ('order'); \
                 create table events_rest partition of events default; \
                 alter publication {publication} set table events; \
                 alter publication {publication} set (publish_via_partition_root = true)",
            )
            .await;
        pipeline
            .sql(
                "insert into events (id, aggregate_type, aggregate_id, event_type, payload) \
                 select i, case i % 2 when 0 then 'order' else 'bill' end, 'a', 'T', to_json(i) \
                 from generate_series(1, 10) i",
            )
            .await;
        let halted =
            run_to_halt(&pipeline.config.replace("public.outbox", "public.events_order")).await;
        halted.assert_says("PR008", &["events_order"], &["partitioned table"]);
        answer("a partition in place of its root", &pipeline, &halted);
        let root = pipeline.config.replace("public.outbox", "public.events");
        super::arrives_with(&pipeline, &root, 10).await;
    }
}

/// Found when the first row of that shape comes; those before it are published.
#[tokio::test]
async fn column_of_a_type_that_can_not_be_headers_is_told_and_left_out_it_goes_on() {
    let pipeline = Pipeline::shared(Version::Pg17, "wrongtype").await;
    pipeline.insert(5).await;
    pipeline.sql("alter table outbox alter headers type integer using 1").await;
    pipeline.insert(5).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR009", &["column \"headers\"", "type"], &["jsonb, json or text"]);
    assert_eq!(pipeline.topic.read_all().await.len(), 0, "told before the first event");
    answer("column of the wrong type", &pipeline, &halted);
    let config = format!(
        "{}\n[pipelines.{}.outbox.columns]\nheaders = \"\"\n",
        pipeline.config, pipeline.name
    );
    super::arrives_with(&pipeline, &config, 10).await;
}

/// The stream has no generated columns before PostgreSQL 18, and there only on demand.
#[tokio::test]
async fn generated_column_is_told_and_what_the_hint_says_streams() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "generated").await;
        let add = "alter table outbox add column kind text generated always as (lower(event_type)) stored";
        pipeline.sql(add).await;
        let mapped = format!(
            "{}\n[pipelines.{}.outbox.columns]\nevent_type = \"kind\"\n",
            pipeline.config, pipeline.name
        );
        let halted = run_to_halt(&mapped).await;
        halted.assert_says("PR008", &["does not publish column \"kind\""], &["outbox.columns"]);
        let alter = halted.hint.split_once("if it is STORED: ");
        let Some((_, alter)) = alter.filter(|_| version == Version::Pg18) else {
            assert_eq!(alter, None, "there is no such option before 18");
            pipeline.insert(10).await;
            arrives(&pipeline, 10).await;
            continue;
        };
        answer("a generated column", &pipeline, &halted);
        pipeline.sql(alter.split("; then ").next().expect("a statement")).await;
        pipeline.insert(10).await;
        super::arrives_with(&pipeline, &mapped, 10).await;
        assert_eq!(pipeline.topic.read_all().await[0].header("type"), Some("written"));
    }
}
