//! Statements of applications, migrations and operators, while the stream runs: what they commit is published once, in
//! order, and what they roll back never is; what changes the table's shape is told where it matters.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::halted::{halt_of, run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version};
use crate::topic::ReadRecord;

/// The input, statements that insert with `{row N}` and `{rows N M}`, and how many events they commit.
const STATEMENTS: &[(&str, &str, u32)] = &[
    ("rolled back", "begin; {row -1}; rollback", 0),
    (
        "savepoints",
        "begin; {row 1}; savepoint a; {row -1}; savepoint b; {row -1}; rollback to a; {row 2}; release a; {row 3}; commit",
        3,
    ),
    (
        "two-phase commit",
        "begin; {row 1}; prepare transaction '{pipeline}'; commit prepared '{pipeline}'",
        1,
    ),
    (
        "two-phase commit, rolled back",
        "begin; {row -1}; prepare transaction '{pipeline}'; rollback prepared '{pipeline}'",
        0,
    ),
    ("inserted and deleted in one transaction", "begin; {row 1}; delete from outbox; commit", 1),
    ("updated and deleted", "{row 1}; update outbox set payload = '-1'; delete from outbox", 1),
    ("truncated", "{row 1}; truncate outbox; begin; {row 2}; truncate outbox; {row 3}; commit", 3),
    (
        "COPY",
        "copy outbox (aggregate_type, aggregate_id, event_type, payload) from program 'printf \"{copy 3}\"'",
        3,
    ),
    (
        "COPY with FREEZE behind TRUNCATE",
        "begin; truncate outbox; copy outbox (aggregate_type, aggregate_id, event_type, payload) \
         from program 'printf \"{copy 2}\"' with (freeze); commit",
        2,
    ),
    ("many rows in one statement", "{rows 500}", 500),
    (
        "ON CONFLICT DO NOTHING",
        "{rows 2} on conflict do nothing; {again} on conflict do nothing",
        2,
    ),
    ("ON CONFLICT DO UPDATE", "{row 1}; {again} on conflict (id) do update set payload = '-1'", 1),
    (
        "MERGE",
        "merge into outbox o using (select 'x' as x) s on o.aggregate_id = s.x when not matched then \
         insert (aggregate_type, aggregate_id, event_type, payload) values ('order', 'a', 'T', '{n 1}')",
        1,
    ),
    (
        "session_replication_role = replica",
        "set session_replication_role = replica; {row 1}; reset session_replication_role",
        1,
    ),
    (
        "a replication origin",
        "select pg_replication_origin_create('{pipeline}'); select pg_replication_origin_session_setup('{pipeline}'); \
         begin; {row 1}; commit; select pg_replication_origin_session_reset(); \
         select pg_replication_origin_drop('{pipeline}')",
        1,
    ),
    ("default changed", "alter table outbox alter event_type set default 'D'; {row 1}", 1),
    (
        "column's type changed, the table rewritten",
        "{row 1}; alter table outbox alter payload type jsonb; {row 2}; alter table outbox alter payload type text; \
         {row 3}; alter table outbox alter payload type bytea using convert_to(payload, 'UTF8'); \
         {row 4}; alter table outbox alter payload type json using convert_from(payload, 'UTF8')::json",
        4,
    ),
    (
        "column added",
        "alter table outbox add column note text default 'x', add column early int; {row 1}",
        1,
    ),
    (
        "column dropped",
        "begin; {row 1}; alter table outbox drop column early; {row 2}; commit; {row 3}",
        3,
    ),
    (
        "VACUUM FULL and CLUSTER",
        "vacuum full outbox; {row 1}; cluster outbox using outbox_pkey; {row 2}",
        2,
    ),
];

/// The statements with numbers counting on from `next` in place of the marks.
fn filled(text: &str, next: u32, pipeline: &Pipeline) -> String {
    const INTO: &str = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)";
    let mut text = text.replace("{pipeline}", &pipeline.name);
    for offset in 1..=4 {
        let number = next + offset - 1;
        text = text.replace(
            &format!("{{row {offset}}}"),
            &format!("{INTO} values ('order', 'a', 'T', '{number}')"),
        );
        text = text.replace(&format!("{{n {offset}}}"), &number.to_string());
        let lines = (next..next + offset).map(|n| format!("order\\ta\\tT\\t{n}\\n"));
        text = text.replace(&format!("{{copy {offset}}}"), &lines.collect::<String>());
    }
    for count in [2, 500] {
        let rows = format!(
            "{INTO} select 'order', 'a', 'T', to_json(i) from generate_series({next}, {}) i",
            next + count - 1
        );
        text = text.replace(&format!("{{rows {count}}}"), &rows);
    }
    // What is there once more, with its id.
    let again = "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) overriding system value \
                 select id, aggregate_type, aggregate_id, event_type, payload from outbox";
    text.replace("{again}", again)
        .replace("{row -1}", &format!("{INTO} values ('order', 'a', 'T', '-1')"))
}

#[tokio::test]
async fn whatever_the_statement_what_is_committed_is_published_once_and_in_order() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "statement").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let mut next = 1;
        for (_, statements, count) in STATEMENTS {
            let session = Client::connect(&pipeline.url).await.expect("a session");
            for statement in filled(statements, next, &pipeline).split("; ") {
                session.batch(statement).await;
            }
            next += count;
        }
        let count = usize::try_from(next - 1).expect("a count");
        let records = pipeline.topic.await_records(count, SOON).await;
        let values: Vec<&str> = records.iter().filter_map(ReadRecord::value_text).collect();
        let wanted: Vec<String> = (1..next).map(|number| number.to_string()).collect();
        assert_eq!(values, wanted);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        for (input, _, count) in STATEMENTS {
            let how = if *count == 0 { "nothing" } else { "each row once, in order" };
            answer(input, &pipeline, Answer::published(&format!("published: {how}")));
        }
    }
}

const FIVE: &str = "select 'order', 'a', 'T', to_json(i) from generate_series(1, 5) i";
const COLUMNS: &str = "(aggregate_type, aggregate_id, event_type, payload)";

/// The publication follows the table; the configuration has to.
#[tokio::test]
async fn table_renamed_or_moved_is_told_and_goes_on_when_it_is_named() {
    for (input, statement, table) in [
        ("table renamed", "alter table outbox rename to events", "public.events"),
        (
            "table moved to another schema",
            "create schema away; alter table outbox set schema away",
            "away.outbox",
        ),
    ] {
        let pipeline = Pipeline::shared(Version::Pg18, "renamed").await;
        let relay = spawn(&pipeline.config);
        relay.await_state("streaming", SOON).await;
        pipeline.insert(10).await;
        pipeline.sql(statement).await;
        pipeline.sql.batch(&format!("insert into {table} {COLUMNS} {FIVE}")).await;
        // Which look finds it first is a matter of the moment; at a start it is always the same.
        halt_of(relay).await;
        let halted = run_to_halt(&pipeline.config).await;
        halted.assert_says("PR009", &["\"outbox\" does not exist"], &["outbox.table"]);
        answer(input, &pipeline, &halted);
        super::arrives_with(&pipeline, &pipeline.config.replace("public.outbox", table), 15).await;
    }
}

/// The new one is another table: rows of before the publication has it are not streamed, and the halt says so.
#[tokio::test]
async fn table_dropped_and_made_anew_is_told_and_goes_on_behind_the_mend() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "anew").await;
        let relay = spawn(&pipeline.config);
        relay.await_state("streaming", SOON).await;
        pipeline.insert(10).await;
        pipeline
            .sql
            .batch("begin; create table anew (like outbox including all); drop table outbox; alter table anew rename to outbox; commit")
            .await;
        pipeline.insert(5).await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR008", &["does not publish table"], &["LOCK TABLE", "ADD TABLE"]);
        let halted = run_to_halt(&pipeline.config).await;
        answer("table dropped and recreated", &pipeline, &halted);
        // The statements; then, since the table itself was dropped and created again, a start.
        let sql = halted.hint.split("; then ").next().expect("statements");
        pipeline.sql.batch(sql).await;
        pipeline.sql(&format!("insert into outbox {COLUMNS} select aggregate_type, aggregate_id, event_type, payload from outbox order by id")).await;
        super::arrives(&pipeline, 15).await;
    }
}

/// The input, and statements or rows: `events U 2` is one of the root, `events_u U -1` one of the table beside it.
const PARTITIONS: &[(&str, &[&str])] = &[
    (
        "partition attached",
        &[
            "events T 1",
            "create table events_u (like events including defaults)",
            "events_u U -1",
            "alter table events attach partition events_u for values in ('U')",
            "events U 2",
            "events_u U 3",
        ],
    ),
    (
        "partition detached",
        &[
            "events_u U 4",
            "alter table events detach partition events_u",
            "events_u U -1",
            "events T 5",
            "alter table events attach partition events_u for values in ('U')",
            "events U 6",
        ],
    ),
    (
        "partition dropped",
        &[
            "events U 7",
            "drop table events_u",
            "events T 8",
            "create table events_u partition of events for values in ('U', 'V')",
            "events V 9",
            "events_t T 10",
        ],
    ),
];

/// Rows are events from the moment the root has them, until it has them no more.
#[tokio::test]
async fn partitions_come_and_go_and_only_rows_of_the_root_are_events() {
    for version in Version::ALL {
        let mut pipeline = Pipeline::shared(version, "partitions").await;
        pipeline
            .sql(
                "create table events (like outbox including defaults) partition by list (event_type); \
                 create table events_t partition of events for values in ('T'); \
                 alter publication {publication} set table events; \
                 alter publication {publication} set (publish_via_partition_root = true)",
            )
            .await;
        pipeline.config = pipeline.config.replace("public.outbox", "public.events");
        postrider_ok(&pipeline.config, &["setup"]);
        let relay = Relay::spawn(&pipeline.config);
        relay.await_state("streaming", SOON).await;
        for statement in PARTITIONS.iter().flat_map(|(_, statements)| statements.iter()) {
            let sql = match statement.split(' ').collect::<Vec<_>>()[..] {
                [table, kind, n] if table.starts_with("events") => format!(
                    "insert into {table} (id, aggregate_type, aggregate_id, event_type, payload) \
                     values ({n}, 'o', 'a', '{kind}', '{n}')"
                ),
                _ => (*statement).to_owned(),
            };
            pipeline.sql.batch(&sql).await;
        }
        let records = pipeline.topic.await_records(10, SOON).await;
        let values: Vec<&str> = records.iter().filter_map(ReadRecord::value_text).collect();
        assert_eq!(values, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        for (input, _) in PARTITIONS {
            let how = "published: rows inserted while it is of the table";
            answer(input, &pipeline, Answer::published(how));
        }
    }
}
