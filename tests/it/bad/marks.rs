//! Marks that can't be written, or that would come back by the stream as new events.

use crate::answers::answer;
use crate::await_that::{SOON, await_that};
use crate::halted::{Halted, halt_of, run_to_halt, spawn};
use crate::pipeline::Pipeline;
use crate::relay::{postrider, postrider_ok};
use crate::server::Version;
use std::collections::BTreeMap;

/// The layouts that mark their rows: the table, and five events.
const LAYOUTS: [(&str, &str, &str); 4] = [
    (
        "commerce",
        "outbox_messages",
        "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload) \
         select 1, 'order', i % 3, 'T', to_jsonb(i) from generate_series(1, 5) i",
    ),
    (
        "gcx",
        "outbox",
        "insert into outbox (aggregate_type, aggregate_id, event_type, topic, payload) \
         select 'order', gen_random_uuid(), 'T', 't', to_jsonb(i) from generate_series(1, 5) i",
    ),
    (
        "sqlgarden",
        "outbox_events",
        "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % 3)::text, 'T', to_jsonb(i) from generate_series(1, 5) i",
    ),
    (
        "adr30",
        "outbox",
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', gen_random_uuid(), 'T', to_jsonb(i) from generate_series(1, 5) i",
    ),
];

fn layout(name: &str) -> (&'static str, &'static str) {
    let (_, table, insert) = LAYOUTS.iter().find(|(layout, ..)| *layout == name).expect("a layout");
    (table, insert)
}

const MARKED: &str = "poll = { mark_streamed = true, interval = \"50ms\" }\n";
const AUTO: &str = "mode = \"auto\"\npoll = { interval = \"50ms\" }\n";
const POLL: &str = "mode = \"poll\"\npoll = { interval = \"50ms\" }\n";

/// The configuration with these lines in `[pipelines.NAME]`.
fn with(pipeline: &Pipeline, lines: &str) -> String {
    let head = format!("[pipelines.{}]\n", pipeline.name);
    pipeline.config.replacen(&head, &format!("{head}{lines}"), 1)
}

/// A pipeline that polls, and was never set up otherwise.
async fn polls(pipeline: &Pipeline) -> String {
    pipeline.sql("select pg_drop_replication_slot('{slot}'); drop schema postrider cascade").await;
    let config = with(pipeline, POLL);
    postrider_ok(&config, &["setup"]);
    config
}

/// How often each of five events is published by a run with this configuration.
async fn published(pipeline: &Pipeline, config: &str) -> BTreeMap<String, usize> {
    let relay = spawn(config);
    let found = await_that("five events", SOON, || async {
        let mut found = BTreeMap::new();
        for record in pipeline.topic.read_all().await {
            *found.entry(record.header("id").expect("an id").to_owned()).or_insert(0) += 1;
        }
        if found.len() == 5 { Ok(found) } else { Err(format!("{found:?}")) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    found
}

/// `check`, `setup` and `run` refuse; the halt.
async fn refused(config: &str, finding: &str) -> Halted {
    let check = postrider(config, &["check", "--json"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("\"{finding}\"")), "{said}");
    let setup = postrider(config, &["setup"]);
    let told = String::from_utf8_lossy(&setup.stderr).into_owned();
    assert!(setup.status.code() != Some(0) && told.contains("PR018"), "{told}");
    run_to_halt(config).await
}

/// What it is called on the page; the layout; how its table is partitioned, and into what; the column of the key.
const KEYS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "a mark's column in the partition key",
        "gcx",
        "list (status)",
        "create table moved partition of {table} default; \
         create table fresh partition of {table} for values in ('pending')",
        "status",
    ),
    (
        "a mark's column in the key of a partition",
        "gcx",
        "range (created_at)",
        "create table part partition of {table} default partition by list (status); \
         create table moved partition of part default; \
         create table fresh partition of part for values in ('pending')",
        "status",
    ),
    (
        "a mark's column in an expression of the partition key",
        "commerce",
        "list ((processed_at is null))",
        "create table moved partition of {table} for values in (false); \
         create table fresh partition of {table} for values in (true)",
        "processed_at",
    ),
    (
        "a mark's column as a range",
        "adr30",
        "range (published_at)",
        "create table moved partition of {table} for values from ('2000-01-01') to (maxvalue); \
         create table fresh partition of {table} default",
        "published_at",
    ),
    (
        "a mark's column in a function of the partition key",
        "sqlgarden",
        "list (lower(status))",
        "create table moved partition of {table} default; \
         create table fresh partition of {table} for values in ('pending')",
        "status",
    ),
];

#[tokio::test]
async fn marks_that_move_rows_are_refused_and_each_way_out_publishes_each_event_once() {
    for version in Version::ALL {
        for (input, name, key, parts, column) in KEYS {
            let pipeline = Pipeline::in_layout(version, "moves", name).await;
            let (table, insert) = layout(name);
            let made = format!(
                "alter table {table} rename to plain; \
                 create table {table} (like plain including defaults including identity) partition by {key}; {parts}; \
                 alter publication {{publication}} set table {table}"
            );
            pipeline.sql(&made.replace("{table}", table)).await;
            pipeline.sql.batch(insert).await;
            for lines in [MARKED, AUTO] {
                let halted = refused(&with(&pipeline, lines), "marks_unfit").await;
                halted.assert_says("PR018", &[&format!("\"{column}\"")], &["mode = \"poll\""]);
                if version == Version::Pg18 && lines == MARKED {
                    answer(input, &pipeline, &halted);
                }
            }
            assert_eq!(pipeline.topic.read_all().await.len(), 0);
            let found = published(&pipeline, &pipeline.config).await;
            assert!(found.values().all(|times| *times == 1), "{input}, no marks: {found:?}");

            let config = polls(&pipeline).await;
            pipeline.sql.batch(&format!("delete from {table}")).await;
            pipeline.sql.batch(insert).await;
            let before = pipeline.topic.read_all().await.len();
            let relay = spawn(&config);
            await_that("rows that moved", SOON, || async {
                let moved = pipeline.sql.text("select count(*)::text from moved").await;
                if moved.as_deref() == Some("5") { Ok(()) } else { Err(format!("{moved:?}")) }
            })
            .await;
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
            let after = pipeline.topic.read_all().await.len();
            assert_eq!(after - before, 5, "{input}: polled once each");
        }
    }
}

/// Not ours to prevent: the event comes again, with its id, and `check` says so before.
#[tokio::test]
async fn update_of_the_application_that_moves_a_row_publishes_it_again_and_check_warns() {
    let pipeline = Pipeline::in_layout(Version::Pg18, "appmoves", "gcx").await;
    let (_, name, key, parts, _) = KEYS[0];
    let (table, insert) = layout(name);
    let made = format!(
        "alter table {table} rename to plain; create table {table} (like plain including defaults) partition by {key}; \
         {parts}; alter publication {{publication}} set table {table}"
    );
    pipeline.sql(&made.replace("{table}", table)).await;
    let check = postrider(&pipeline.config, &["check", "--json"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains("\"table_moves\"") && said.contains("same id"), "{said}");
    pipeline.sql.batch(insert).await;
    pipeline.sql.batch("update outbox set status = 'published'").await;
    let relay = spawn(&pipeline.config);
    let records = pipeline.topic.await_records(10, SOON).await;
    let mut times = BTreeMap::new();
    for record in &records {
        *times.entry(record.header("id").expect("an id").to_owned()).or_insert(0) += 1;
    }
    assert!(times.len() == 5 && times.values().all(|times| *times == 2), "{times:?}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The columns of each layout's marks.
const COLUMNS: [(&str, &[&str]); 4] = [
    ("commerce", &["processed_at", "attempts", "available_at", "last_error"]),
    ("gcx", &["status", "retry_count", "max_retries", "published_at", "expires_at"]),
    ("sqlgarden", &["status", "attempt_count", "last_attempt_at"]),
    ("adr30", &["published_at"]),
];

/// Without each of its columns: `check` names it. Without all of them: the halt names them, and what its hint adds is
/// enough.
#[tokio::test]
async fn column_of_a_mark_that_is_missing_halts_in_each_mode_and_the_hint_adds_it() {
    for (name, columns) in COLUMNS {
        let (table, insert) = layout(name);
        for lines in [MARKED, AUTO, POLL] {
            let pipeline = Pipeline::in_layout(Version::Pg17, "nomark", name).await;
            let config =
                if lines == POLL { polls(&pipeline).await } else { with(&pipeline, lines) };
            for column in columns {
                pipeline.sql.batch(&format!("alter table {table} rename {column} to aside")).await;
                let check = postrider(&config, &["check", "--json"]);
                let said = String::from_utf8_lossy(&check.stdout).into_owned();
                assert_eq!(check.status.code(), Some(1), "{name} {column}: {said}");
                assert!(said.contains(column), "{name} {column}: {said}");
                pipeline.sql.batch(&format!("alter table {table} rename aside to {column}")).await;
            }
            for column in columns {
                pipeline.sql.batch(&format!("alter table {table} drop {column} cascade")).await;
            }
            let halted = refused(&config, "poll_column").await;
            halted.assert_says("PR018", columns, &["outbox.layout"]);
            if name == "gcx" {
                let input = match lines {
                    MARKED => "a mark's column missing",
                    AUTO => "a mark's column missing, mode auto",
                    _ => "a mark's column missing, mode poll",
                };
                answer(input, &pipeline, &halted);
            }
            let add = halted.hint.split_once("ALTER TABLE").expect("a statement").1;
            let add = add.split_once(';').expect("its end").0;
            pipeline.sql.batch(&format!("ALTER TABLE{add}")).await;
            pipeline.sql.batch(insert).await;
            let found = published(&pipeline, &config).await;
            assert!(found.values().all(|times| *times == 1), "{name}: {found:?}");
        }
    }
}

#[tokio::test]
async fn column_of_a_mark_that_is_dropped_while_running_halts() {
    for lines in [MARKED, AUTO, POLL] {
        let pipeline = Pipeline::in_layout(Version::Pg18, "dropmark", "adr30").await;
        let config = if lines == POLL { polls(&pipeline).await } else { with(&pipeline, lines) };
        let relay = spawn(&config);
        let state = if lines == POLL { "polling" } else { "streaming" };
        relay.await_state(state, SOON).await;
        let (table, insert) = layout("adr30");
        pipeline.sql.batch(insert).await;
        pipeline.topic.await_records(5, SOON).await;
        pipeline.sql.batch(&format!("alter table {table} drop published_at cascade")).await;
        let halted = halt_of(relay).await;
        halted.assert_says("PR018", &["published_at"], &["ADD COLUMN"]);
        if lines == MARKED {
            answer("a mark's column dropped while running", &pipeline, &halted);
        }
    }
}

/// The move to the table of dead letters deletes the row: what has no column there would be gone.
#[tokio::test]
async fn table_of_dead_letters_without_a_needed_column_halts_where_it_is_written() {
    let (_, insert) = layout("commerce");
    for lines in [AUTO, POLL] {
        let pipeline = Pipeline::in_layout(Version::Pg17, "nodlq", "commerce").await;
        let config = if lines == POLL { polls(&pipeline).await } else { with(&pipeline, lines) };
        pipeline.sql("alter table outbox_messages_dlq drop payload").await;
        let halted = refused(&config, "marks_unfit").await;
        halted.assert_says("PR018", &["outbox_messages_dlq", "payload"], &["outbox_messages_dlq"]);
        if lines == POLL {
            answer("a table of dead letters without the payload", &pipeline, &halted);
        }
        pipeline.sql("drop table outbox_messages_dlq").await;
        postrider_ok(&config, &["setup"]);
        let check = postrider(&config, &["check", "--json"]);
        let said = String::from_utf8_lossy(&check.stdout).into_owned();
        assert!(said.contains("\"poll_dlq\""), "{said}");
        pipeline.sql.batch(insert).await;
        let found = published(&pipeline, &config).await;
        assert!(found.values().all(|times| *times == 1), "{found:?}");
    }
    // The stream alone never writes into it.
    let pipeline = Pipeline::in_layout(Version::Pg17, "nodlqwal", "commerce").await;
    pipeline.sql("alter table outbox_messages_dlq drop payload").await;
    pipeline.sql.batch(insert).await;
    let found = published(&pipeline, &with(&pipeline, MARKED)).await;
    assert!(found.values().all(|times| *times == 1), "{found:?}");
}
