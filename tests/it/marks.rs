//! Marks on published rows, end to end: rows that others have locked, and tables that refuse to be marked.

use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::halted::{halt_of, spawn};
use crate::parking::{Scene, assert_in_order};
use crate::pipeline::{Pipeline, drop_slot};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version};
use crate::topic::ReadRecord;
use serde_json::Value;

/// A pipeline whose published rows are deleted: `mode = "auto"`, or `wal` with marks.
async fn marking(version: Version, test: &str, mode: &str) -> Pipeline {
    let mut pipeline = Pipeline::shared(version, test).await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines =
        format!("mode = \"{mode}\"\npoll = {{ interval = \"50ms\", mark_streamed = true }}\n");
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{lines}"), 1);
    pipeline
}

/// Waits until these ids are left in the outbox.
async fn left(pipeline: &Pipeline, ids: &str) {
    let sql = "select coalesce(string_agg(id::text, ' ' order by id), '') from outbox";
    await_that(&format!("rows {ids:?} in the outbox"), SOON, || async {
        let found = pipeline.sql.text(sql).await.unwrap_or_default();
        if found == ids { Ok(()) } else { Err(found) }
    })
    .await;
}

/// A session that has locked something.
async fn holding(pipeline: &Pipeline, lock: &str) -> Client {
    let session = Client::connect(&pipeline.url).await.expect("a session");
    session.batch(&format!("set application_name = 'a person'; begin; {lock}")).await;
    session
}

fn is_told(status: &Value) -> bool {
    let pipeline = &status["pipelines"][0];
    let reason = pipeline["reason"].as_str().unwrap_or_default();
    let told = ["are locked by pid ", "application \"a person\""];
    pipeline["state"] == "streaming" && told.iter().all(|words| reason.contains(words))
}

fn ids_of(records: &[ReadRecord], key: &str) -> Vec<String> {
    let of_key = records.iter().filter(|record| record.key_text() == Some(key));
    of_key.map(|record| record.header("id").expect("an id").to_owned()).collect()
}

/// A person's transaction holds one published row: all other aggregates are published and marked, the holder is named,
/// and no position behind the row's event is confirmed.
#[tokio::test]
async fn locked_row_holds_back_the_marks_of_its_aggregate_and_the_cursor_and_nothing_else() {
    for version in Version::ALL {
        for mode in ["auto", "wal"] {
            let pipeline = marking(version, "marklock", mode).await;
            pipeline.insert(20).await;
            let holder = holding(&pipeline, "select from outbox where id = 1 for update").await;
            let relay = pipeline.run();
            pipeline.topic.await_records(20, SOON).await;
            // Two of ten aggregates' rows: the locked one, and the one behind it.
            left(&pipeline, "1 11").await;
            relay.await_status("the holder is named", SOON, is_told).await;
            let cursor = format!(
                "select (watermark, partial_commit_lsn, partial_ordinal)::text from postrider.cursor where pipeline = '{}'",
                pipeline.name
            );
            let before = pipeline.sql.text(&cursor).await;
            pipeline.insert(20).await;
            pipeline.topic.await_records(40, SOON).await;
            left(&pipeline, "1 11 21 31").await;
            assert_eq!(
                pipeline.sql.text(&cursor).await,
                before,
                "the cursor row passes no unmarked event"
            );
            holder.batch("rollback").await;
            left(&pipeline, "").await;
            relay.await_log("all published rows are marked again", SOON).await;
            await_that("a cursor row that goes on", SOON, || async {
                let now = pipeline.sql.text(&cursor).await;
                if now == before { Err(format!("{now:?}")) } else { Ok(()) }
            })
            .await;
            assert_eq!(relay.terminate(SOON).await.code, Some(0));
            let records = pipeline.topic.read_all().await;
            assert_eq!(records.len(), 40, "{mode}: nothing comes twice");
        }
    }
}

/// The slot is lost while a published row is locked: whoever polls in its stead passes over the row and marks it.
#[tokio::test]
async fn published_row_that_was_locked_when_the_slot_was_lost_is_not_published_again() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = marking(version, "marklost", "auto").await;
        pipeline.insert(20).await;
        let holder = holding(&pipeline, "select from outbox where id = 1 for update").await;
        let relay = pipeline.run();
        pipeline.topic.await_records(20, SOON).await;
        left(&pipeline, "1 11").await;
        drop_slot(&pipeline).await;
        relay.await_log("polling the table until", SOON).await;
        pipeline.insert(20).await;
        // Polled: those of the aggregate wait behind the locked row.
        left(&pipeline, "1 11 21 31").await;
        holder.batch("rollback").await;
        left(&pipeline, "").await;
        relay.await_state("streaming", SOON).await;
        let records = pipeline.topic.await_records(40, SOON).await;
        assert_eq!(records.len(), 40, "nothing comes twice");
        assert_eq!(ids_of(&records, "1"), ["1", "11", "21", "31"]);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Killed while a published row is locked, and the slot lost before the next start: what has no mark is published
/// again from there on, in order, and nothing else.
#[tokio::test]
async fn aggregate_of_a_locked_row_comes_again_in_order_after_a_kill_and_a_lost_slot() {
    let pipeline = marking(Version::Pg17, "markkill", "auto").await;
    pipeline.insert(20).await;
    let holder = holding(&pipeline, "select from outbox where id = 1 for update").await;
    let relay = pipeline.run();
    pipeline.topic.await_records(20, SOON).await;
    left(&pipeline, "1 11").await;
    drop(relay.kill().await);
    drop_slot(&pipeline).await;
    holder.batch("rollback").await;
    let relay = pipeline.run();
    left(&pipeline, "").await;
    let records = pipeline.topic.await_records(22, SOON).await;
    assert_eq!(records.len(), 22, "only the two without a mark come again");
    assert_eq!(ids_of(&records, "1"), ["1", "11", "1", "11"]);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The connection is lost while rows are being marked. The stream brings their events again and the relay passes over
/// them, so nobody but this process knows of the marks: they are made on the next connection.
#[tokio::test]
async fn marks_that_were_being_made_when_the_connection_was_lost_are_made_by_the_next() {
    for (version, mode) in [(Version::Pg15, "auto"), (Version::Pg18, "wal")] {
        let pipeline = marking(version, "markconn", mode).await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        pipeline.insert(20).await;
        // It lets rows be read, and none be marked.
        let holder = holding(&pipeline, "lock table outbox in share mode").await;
        pipeline.topic.await_records(20, SOON).await;
        let waits = format!(
            "select string_agg(pid::text, ',') from pg_stat_activity where wait_event_type = 'Lock' \
             and application_name = 'postrider {}'",
            pipeline.name
        );
        let pid = await_that("a session that waits to mark rows", SOON, || async {
            pipeline.sql.text(&waits).await.ok_or("none")
        })
        .await;
        pipeline.sql.batch(&format!("select pg_terminate_backend({pid})")).await;
        holder.batch("rollback").await;
        left(&pipeline, "").await;
        relay.await_state("streaming", SOON).await;
        pipeline.insert(1).await;
        pipeline.topic.await_records(21, SOON).await;
        left(&pipeline, "").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(pipeline.topic.read_all().await.len(), 21, "{mode}: nothing comes twice");
    }
}

/// A parked event's row is done with once the cursor row has passed it. Whoever starts after a kill in between finds
/// the event in the parked table alone, since the stream brings nothing new of it.
#[tokio::test]
async fn row_of_an_event_that_was_parked_before_a_kill_is_marked_by_the_next_process() {
    for (version, mode) in [(Version::Pg15, "auto"), (Version::Pg18, "wal")] {
        let mut scene = Scene::of(marking(version, "markparked", mode).await, "").await;
        scene.insert(&["a", "!a", "a"]).await;
        let cut = [("POSTRIDER_FAILPOINT", "parked_row_committed")];
        let killed = Relay::spawn_with(&scene.config, &[], &cut).ended(SOON).await;
        assert!(killed.stderr.contains("as POSTRIDER_FAILPOINT asks"), "{}", killed.stderr);
        let relay = scene.run();
        scene.await_rows("a waiting, a behind").await;
        left(&scene.pipeline, "").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Whether the statement of docs/polling.md finds these rows, where each row is one without a mark.
fn passed_without_a_mark(pipeline: &Pipeline, ids: &str) -> String {
    let page = include_str!("../../docs/polling.md");
    let block = page.split("```").find(|block| block.contains("resolved_snapshot"));
    let block =
        block.and_then(|block| block.strip_prefix("sql")).expect("the statement of the page");
    let of_gcx = "o.status = 'pending' AND coalesce(o.expires_at > now(), true)";
    assert!(block.contains(of_gcx), "{block}");
    let statement = block.replace(of_gcx, "true");
    let statement = statement.replace("'orders'", &format!("'{}'", pipeline.name));
    let statement = statement.trim().trim_end_matches(';');
    format!("select (count(*) filter (where id in {ids}) = 2)::text from ({statement}) as o")
}

/// Mode `wal` waits a minute for a mark. Killed after that, while the row is still locked: the published rows of its
/// aggregate have no mark. A repair does not publish them again; polling does, behind newer ones, and says how many.
#[tokio::test]
async fn row_that_stayed_locked_for_a_minute_is_not_repaired_again_and_polling_counts_it() {
    let pipeline = marking(Version::Pg17, "markminute", "wal").await;
    pipeline.insert(20).await;
    let holder = holding(&pipeline, "select from outbox where id = 1 for update").await;
    let relay = pipeline.run();
    pipeline.topic.await_records(20, SOON).await;
    left(&pipeline, "1 11").await;
    let wal_end = pipeline.wal_end().await;
    await_that("a cursor row that passes them", SOON, || pipeline.confirmed(&wal_end)).await;
    // The transactions are known to be resolved with one of the next rows.
    let known = passed_without_a_mark(&pipeline, "(1, 11)");
    await_that("their transaction is known to be resolved", SOON, || async {
        pipeline.insert(10).await;
        match pipeline.sql.text(&known).await.as_deref() {
            Some("true") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    drop(relay.kill().await);
    holder.batch("rollback").await;

    // The slot is lost: a repair publishes nothing of the aggregate's past.
    drop_slot(&pipeline).await;
    postrider_ok(&pipeline.config, &["repair"]);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(10).await;
    let last = pipeline.sql.text("select max(id)::text from outbox").await;
    let last: usize = last.and_then(|last| last.parse().ok()).unwrap_or_default();
    await_that("the last event", SOON, || async {
        let ids = ids_of(&pipeline.topic.read_all().await, "1");
        if ids.iter().any(|id| id.parse::<usize>().is_ok_and(|id| id + 10 > last)) {
            Ok(())
        } else {
            Err(format!("{ids:?}"))
        }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let once = ids_of(&pipeline.topic.read_all().await, "1");
    let numbers: Vec<u64> = once.iter().filter_map(|id| id.parse().ok()).collect();
    let mut each = numbers.clone();
    each.sort_unstable();
    each.dedup();
    // What was published just before the kill is repeated in order; what was known to be resolved is not.
    assert_in_order(&numbers, &each);
    let firsts = numbers.iter().filter(|number| **number <= 11).count();
    assert_eq!(firsts, 2, "{numbers:?}");

    // With another mode the table is polled when the slot is lost again: what has no mark is counted, and published.
    let unmarked = "select string_agg(id::text, ' ' order by id) from outbox";
    let unmarked = pipeline.sql.text(unmarked).await.expect("rows without a mark");
    let again: Vec<String> = unmarked.split(' ').map(str::to_owned).collect();
    assert!(again.starts_with(&["1".to_owned(), "11".to_owned()]), "{again:?}");
    let config = pipeline.config.replace("mode = \"wal\"", "mode = \"auto\"");
    let relay = spawn(&config);
    relay.await_state("streaming", SOON).await;
    drop_slot(&pipeline).await;
    left(&pipeline, "").await;
    relay.await_state("streaming", SOON).await;
    let log = relay.stderr();
    let counted = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let counted: Vec<Value> = counted.filter(|line| line["event"] == "unmarked_rows").collect();
    assert_eq!(counted.len(), 1, "{log}");
    assert_eq!(counted[0]["rows"], again.len(), "{log}");
    let all = ids_of(&pipeline.topic.read_all().await, "1");
    assert_eq!(all, [once, again].concat(), "as docs/polling.md says");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// An application updates published rows all the time: each gets its mark, so that a fall-back publishes none again.
#[tokio::test]
async fn rows_that_are_updated_all_the_time_get_their_marks() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = marking(version, "markrace", "auto").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let stop = std::sync::atomic::AtomicBool::new(false);
        let session = Client::connect(&pipeline.url).await.expect("a session");
        let churn = async {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                session.batch("update outbox set headers = '{}'").await;
                tokio::task::yield_now().await;
            }
        };
        let all = async {
            for _ in 0..20 {
                pipeline.insert(50).await;
            }
            pipeline.topic.await_records(1_000, SOON).await;
            left(&pipeline, "").await;
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        };
        tokio::join!(churn, all);
        drop_slot(&pipeline).await;
        relay.await_log("polling the table until", SOON).await;
        relay.await_state("streaming", SOON).await;
        assert_eq!(pipeline.topic.read_all().await.len(), 1_000, "nothing comes twice");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A session holds the cursor row: events go on, nothing is confirmed, and the state says why.
#[tokio::test]
async fn locked_cursor_row_stops_no_event() {
    let pipeline = marking(Version::Pg18, "marksrow", "wal").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let holder = holding(&pipeline, "select from postrider.cursor for update").await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    let told = |status: &Value| {
        let pipeline = &status["pipelines"][0];
        let reason = pipeline["reason"].as_str().unwrap_or_default();
        pipeline["state"] == "streaming" && reason.contains("SQLSTATE 55P03")
    };
    relay.await_status("the row is waited for", SOON, told).await;
    pipeline.insert(10).await;
    pipeline.topic.await_records(20, SOON).await;
    holder.batch("rollback").await;
    relay.await_log("the cursor row is written again", SOON).await;
    let log = relay.stderr();
    assert!(!log.contains("connecting to the database again"), "{log}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_eq!(pipeline.topic.read_all().await.len(), 20);
}

/// What a table does to marks: the input, the SQLSTATE, statements, those that undo them, and words of the hint.
const REFUSALS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "marks: no replica identity in a publication that sends updates",
        "55000",
        "alter table outbox drop constraint outbox_pkey ;; alter publication {publication} set (publish = 'insert, update, delete')",
        "alter table outbox add primary key (id)",
        "REPLICA IDENTITY",
    ),
    (
        "marks: a trigger that raises an exception",
        "P0001",
        "create function no() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$ ;; \
         create trigger no before delete on outbox for each row execute function no()",
        "drop trigger no on outbox",
        "trigger",
    ),
    (
        "marks: a trigger that undoes them",
        "09000",
        "create function keep() returns trigger language plpgsql as $$ begin return null; end $$ ;; \
         create trigger keep before delete on outbox for each row execute function keep()",
        "drop trigger keep on outbox",
        "trigger",
    ),
    (
        "marks: the row is referenced by another table",
        "23503",
        "create table copies (id bigint references outbox) ;; insert into copies select id from outbox",
        "drop table copies",
        "constraint",
    ),
];

/// With `mode = "auto"` polling depends on the marks: it halts with what refuses them, and a hint that loses nothing.
#[tokio::test]
async fn marks_that_are_refused_halt_mode_auto_with_the_reason_and_lose_nothing() {
    for (input, state, refuse, allow, hint) in REFUSALS {
        let pipeline = marking(Version::Pg18, "markhalt", "auto").await;
        // One: the message says how many were to be marked together.
        pipeline.insert(1).await;
        for statement in refuse.split(" ;; ") {
            let statement = statement.replace("{publication}", &pipeline.slot());
            pipeline.sql.batch(&statement).await;
        }
        let halted = halt_of(spawn(&pipeline.config)).await;
        halted.assert_says("PR009", &["mark published rows", state], &[hint]);
        answer(input, &pipeline, &halted);
        pipeline.insert(10).await;
        pipeline.sql.batch(allow).await;
        let relay = pipeline.run();
        left(&pipeline, "").await;
        let records = pipeline.topic.read_all().await;
        let mut ids: Vec<u64> = (0..10)
            .flat_map(|key| ids_of(&records, &key.to_string()))
            .map(|id| id.parse().expect("a number"))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids, (1..=11).collect::<Vec<u64>>(), "{input}: each is there");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The inputs of [`REFUSALS`] with `mode = "wal"`, in its order.
const REFUSALS_WAL: [&str; 4] = [
    "marks: no replica identity in a publication that sends updates (mode wal)",
    "marks: a trigger that raises an exception (mode wal)",
    "marks: a trigger that undoes them (mode wal)",
    "marks: the row is referenced by another table (mode wal)",
];

/// With `mode = "wal"` nothing depends on them: events go on, it is told, and the marks are made when they can be.
#[tokio::test]
async fn marks_that_are_refused_stop_no_event_in_mode_wal_and_are_made_later() {
    for ((_, state, refuse, allow, _), input) in REFUSALS.iter().zip(REFUSALS_WAL) {
        let pipeline = marking(Version::Pg17, "markgoes", "wal").await;
        pipeline.insert(1).await;
        for statement in refuse.split(" ;; ") {
            let statement = statement.replace("{publication}", &pipeline.slot());
            pipeline.sql.batch(&statement).await;
        }
        let relay = spawn(&pipeline.config);
        pipeline.topic.await_records(1, SOON).await;
        let told = |status: &Value| {
            let pipeline = &status["pipelines"][0];
            let reason = pipeline["reason"].as_str().unwrap_or_default();
            pipeline["state"] == "streaming"
                && reason.contains("are not marked")
                && reason.contains(state)
        };
        relay.await_status("marks are refused", SOON, told).await;
        pipeline.insert(10).await;
        let records = pipeline.topic.await_records(11, SOON).await;
        // Not the end of WAL: what failed marks write behind the last event is too little for a row of its own.
        let last = records.iter().map(ReadRecord::commit_lsn).max().expect("a record");
        await_that("confirmed without marks", SOON, || pipeline.confirmed(&last)).await;
        let logged = Answer::logged(&relay.stderr(), "marks_failed");
        answer(input, &pipeline, logged);
        pipeline.sql.batch(allow).await;
        pipeline.insert(1).await;
        left(&pipeline, "").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(pipeline.topic.read_all().await.len(), 12, "nothing comes twice");
    }
}

/// The role may not mark: known by `check`, and the halt has the grant.
#[tokio::test]
async fn role_that_may_not_mark_is_told_the_grant() {
    let pipeline = marking(Version::Pg15, "markrole", "auto").await;
    let name = pipeline.name.clone();
    pipeline
        .sql
        .batch(&format!(
            "create role {name} login replication; grant usage on schema postrider to {name}; \
             grant all on all tables in schema postrider to {name}; grant select on outbox to {name}"
        ))
        .await;
    let config = pipeline.config.replace("user=postgres", &format!("user={name}"));
    let config = config.replace("postgres@", &format!("{name}@"));
    pipeline.insert(10).await;
    let halted = halt_of(spawn(&config)).await;
    halted.assert_says(
        "PR009",
        &["42501"],
        &["GRANT SELECT, UPDATE, DELETE ON \"public\".\"outbox\""],
    );
    answer("marks: a role without the right", &pipeline, &halted);
    pipeline.sql.batch(&format!("grant update, delete on outbox to {name}")).await;
    let relay = Relay::spawn(&config);
    left(&pipeline, "").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    drop_slot(&pipeline).await;
    pipeline.sql.batch(&format!("drop owned by {name}; drop role {name}")).await;
}
