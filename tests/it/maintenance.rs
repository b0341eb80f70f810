//! Maintenance of Postrider's own tables: it works beside a stream and beside polling, delays neither, and is the
//! owner's alone. What one statement deletes, and who waits for it, is in `parked_table::pruning`.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::polling::polls;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version};
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long an event may take through a pipeline that nothing delays, on a machine that is busy with other tests.
const UNDELAYED: Duration = Duration::from_secs(10);

/// Writes rows of resolved parked events that were resolved `age` ago.
async fn resolved(pipeline: &Pipeline, commit_lsn: &str, count: u32, age: &str) {
    let sql = format!(
        "insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, blocks, topic, state, resolved_at) \
         select '{}', '{commit_lsn}', i, now(), false, 'events', 'done', now() - interval '{age}' \
         from generate_series(1, {count}) i",
        pipeline.name
    );
    pipeline.sql.batch(&sql).await;
}

async fn await_rows(pipeline: &Pipeline, relay: &Relay, wanted: &str) {
    let sql = "select count(*)::text from postrider.parked";
    await_that(&format!("{wanted} rows of parked events"), SOON, || async {
        let found = pipeline.sql.text(sql).await.unwrap_or_default();
        if found == wanted { Ok(()) } else { Err(format!("{found}\n{}", relay.stderr())) }
    })
    .await;
}

/// Publishes an event; returns how long that took.
async fn publish(pipeline: &Pipeline, before: usize) -> Duration {
    let start = Instant::now();
    pipeline.insert(1).await;
    let records = pipeline.topic.await_records(before + 1, SOON).await;
    assert_eq!(records.len(), before + 1);
    start.elapsed()
}

fn of(status: &Value) -> &Value {
    &status["pipelines"][0]["maintenance"]
}

/// Sessions of the pipeline's maintenance.
async fn sessions(pipeline: &Pipeline) -> Vec<String> {
    let sql = format!(
        "select coalesce(string_agg(pid::text, ','), '') from pg_stat_activity \
         where application_name = 'postrider {} maintenance' and datname = current_database()",
        pipeline.name
    );
    let pids = pipeline.sql.text(&sql).await.unwrap_or_default();
    pids.split(',').filter(|pid| !pid.is_empty()).map(str::to_owned).collect()
}

/// A session of a person, with this statement in an open transaction.
async fn holding(pipeline: &Pipeline, statement: &str) -> Client {
    let session = Client::connect(&pipeline.url).await.expect("a session");
    session.batch(&format!("set application_name = 'a person'; begin; {statement}")).await;
    session
}

/// No session of the pipeline is left.
async fn assert_no_session(pipeline: &Pipeline) {
    let sql = format!(
        "select coalesce(string_agg(application_name, ','), '') from pg_stat_activity \
         where application_name like 'postrider {}%' and datname = current_database()",
        pipeline.name
    );
    await_that("no session of the pipeline", Duration::from_secs(5), || async {
        let left = pipeline.sql.text(&sql).await.unwrap_or_default();
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

#[tokio::test]
async fn resolved_rows_are_deleted_while_the_pipeline_streams() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "maintwal").await;
        // More than one statement deletes.
        resolved(&pipeline, "0/1", 2_500, "8 days").await;
        resolved(&pipeline, "0/2", 5, "6 days").await;
        // A stream may still send events at such positions.
        resolved(&pipeline, "FFFFFFFF/0", 5, "8 days").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        await_rows(&pipeline, &relay, "10").await;
        publish(&pipeline, 0).await;
        let done = |status: &Value| of(status)["last_run_seconds"].is_number();
        let status = relay.await_status("a run", SOON, done).await;
        assert_eq!(of(&status)["pruned_total"], 2_500, "{status}");
        assert_eq!(of(&status)["failures_total"], 0, "{status}");
        let (_, metrics) = relay.get("/metrics").await.expect("an answer");
        let line = format!(
            "postrider_parked_pruned_total{{pipeline=\"{}\",shard=\"0\"}} 2500",
            pipeline.name
        );
        assert!(metrics.contains(&line), "{metrics}");
        assert!(metrics.contains("postrider_maintenance_last_run_seconds{"), "{metrics}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_no_session(&pipeline).await;
    }
}

#[tokio::test]
async fn resolved_rows_are_deleted_while_the_pipeline_polls() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut pipeline = Pipeline::shared(version, "maintpoll").await;
        polls(&mut pipeline).await;
        resolved(&pipeline, "0/1", 10, "8 days").await;
        resolved(&pipeline, "FFFFFFFF/0", 10, "8 days").await;
        resolved(&pipeline, "0/2", 5, "6 days").await;
        let relay = pipeline.run();
        relay.await_state("polling", SOON).await;
        await_rows(&pipeline, &relay, "5").await;
        publish(&pipeline, 0).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_no_session(&pipeline).await;
    }
}

/// A person has locked a row: other rows are deleted, events are published as always, and the row is deleted when the
/// lock is gone.
#[tokio::test]
async fn locked_row_delays_neither_stream_nor_polling_and_is_deleted_later() {
    for mode in ["streaming", "polling"] {
        let mut pipeline = Pipeline::shared(Version::Pg17, "maintlock").await;
        if mode == "polling" {
            polls(&mut pipeline).await;
        }
        resolved(&pipeline, "0/1", 20, "8 days").await;
        let lock = "select from postrider.parked where ordinal = 1 for update";
        let holder = holding(&pipeline, lock).await;
        let relay = pipeline.run();
        relay.await_state(mode, SOON).await;
        await_rows(&pipeline, &relay, "1").await;
        for before in 0..10 {
            let took = publish(&pipeline, before).await;
            assert!(took < UNDELAYED, "{mode}: {took:?}");
        }
        let status = relay.status().await.expect("a status");
        assert_eq!(status["pipelines"][0]["state"], mode, "{status}");
        holder.batch("rollback").await;
        await_rows(&pipeline, &relay, "0").await;
        let log = relay.stderr();
        assert!(!log.contains("maintenance of Postrider's tables failed"), "{log}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The session is killed, and the table of bookmarks is locked: maintenance fails and says so, events are published as
/// always, and maintenance goes on when it can.
#[tokio::test]
async fn maintenance_that_fails_is_repeated_and_the_stream_goes_on() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "maintkill").await;
        let holder =
            holding(&pipeline, "lock table postrider.bookmark in access exclusive mode").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let reconnects = |status: &Value| {
            status["pipelines"][0]["source_reconnects_total"].as_u64().expect("a count")
        };
        await_that("its session is killed", SOON, || async {
            let pids = sessions(&pipeline).await;
            let [pid] = pids.as_slice() else { return Err(format!("{pids:?}")) };
            let killed = format!("select pg_terminate_backend({pid})::text");
            match pipeline.sql.text(&killed).await.as_deref() {
                Some("true") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        let failed = |times| {
            move |status: &Value| {
                of(status)["failures_total"].as_u64() >= Some(times)
                    && of(status)["reason"].is_string()
            }
        };
        relay.await_status("a failure", SOON, failed(1)).await;
        assert!(publish(&pipeline, 0).await < UNDELAYED);
        // The lock is not waited for.
        let status = relay.await_status("another failure", SOON, failed(2)).await;
        assert_eq!(reconnects(&status), 0, "{status}");
        assert_eq!(status["pipelines"][0]["ready"], true, "{status}");
        assert!(publish(&pipeline, 1).await < UNDELAYED);
        resolved(&pipeline, "0/1", 20, "8 days").await;
        holder.batch("rollback").await;
        await_rows(&pipeline, &relay, "0").await;
        let well = |status: &Value| {
            of(status)["reason"].is_null() && of(status)["last_run_seconds"].is_number()
        };
        relay.await_status("it works again", SOON, well).await;
        relay.await_log("maintenance of Postrider's tables works again", SOON).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        assert!(
            ended.stderr.contains("maintenance of Postrider's tables failed"),
            "{}",
            ended.stderr
        );
        assert_no_session(&pipeline).await;
    }
}

/// The statement that grants what the role lacks is shown, and works. The step that lacks nothing is done meanwhile: an
/// expired bookmark is dropped.
#[tokio::test]
async fn missing_right_is_named_by_the_statement_that_grants_it() {
    let pipeline = Pipeline::shared(Version::Pg17, "maintright").await;
    let role = &pipeline.name;
    let rights = format!(
        "create role {role} login replication; grant usage on schema postrider to {role}; \
         grant all on all tables in schema postrider to {role}; grant select on outbox to {role}; \
         revoke delete on postrider.parked from {role}"
    );
    postrider_ok(&pipeline.config, &["bookmark", "create", "short", "--expire", "5s"]);
    pipeline.sql.batch(&rights).await;
    let config = pipeline.config.replace("user=postgres", &format!("user={role}"));
    resolved(&pipeline, "0/1", 20, "8 days").await;
    let relay = Relay::spawn(&config);
    relay.await_state("streaming", SOON).await;
    let hinted = |status: &Value| of(status)["hint"].is_string();
    let status = relay.await_status("what is missing", SOON, hinted).await;
    let hint = of(&status)["hint"].as_str().expect("a hint");
    assert_eq!(hint, format!("GRANT DELETE ON TABLE postrider.parked TO {role};"));
    assert!(of(&status)["reason"].as_str().expect("a reason").contains("42501"), "{status}");
    assert!(publish(&pipeline, 0).await < UNDELAYED);
    assert!(relay.stderr().contains(hint), "{}", relay.stderr());
    await_that("no bookmark", SOON, || async {
        let left = bookmarks(&pipeline).await;
        if left == "0" { Ok(()) } else { Err(format!("{left} slots\n{}", relay.stderr())) }
    })
    .await;
    let rows = pipeline.sql.text("select count(*)::text from postrider.parked").await;
    assert_eq!(rows.as_deref(), Some("20"), "the right is there");
    pipeline.sql.batch(hint).await;
    await_rows(&pipeline, &relay, "0").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
}

/// Slots of the pipeline's bookmarks.
async fn bookmarks(pipeline: &Pipeline) -> String {
    let sql = "select count(*)::text from pg_replication_slots \
               where slot_name like 'postrider_bm_%' and database = current_database()";
    pipeline.sql.text(sql).await.expect("a count")
}

/// Another session has the pipeline's lock, as an owner whose maintenance is not at work: a process that stands by
/// opens no session for it, and deletes and drops nothing.
#[tokio::test]
async fn process_that_stands_by_deletes_nothing() {
    // Longer than it takes until the first run of an owner.
    const LONG_ENOUGH: Duration = Duration::from_secs(12);
    for mode in ["streaming", "polling"] {
        let mut pipeline = Pipeline::shared(Version::Pg17, "maintstand").await;
        if mode == "streaming" {
            postrider_ok(&pipeline.config, &["bookmark", "create", "short", "--expire", "5s"]);
        } else {
            polls(&mut pipeline).await;
        }
        let kept = bookmarks(&pipeline).await;
        resolved(&pipeline, "0/1", 20, "8 days").await;
        let lock = format!(
            "select pg_advisory_lock(hashtextextended('postrider poll {}', 0))",
            pipeline.name
        );
        let owner = holding(&pipeline, &lock).await;
        let relay = pipeline.run();
        relay.await_state("standing_by", SOON).await;
        let since = Instant::now();
        await_that("some time as a standby process", SOON, || async {
            assert_eq!(sessions(&pipeline).await, Vec::<String>::new(), "{mode}");
            if since.elapsed() >= LONG_ENOUGH { Ok(()) } else { Err("not yet") }
        })
        .await;
        await_rows(&pipeline, &relay, "20").await;
        let status = relay.status().await.expect("a status");
        assert!(of(&status)["last_run_seconds"].is_null(), "{status}");
        assert_eq!(bookmarks(&pipeline).await, kept);
        drop(owner);
        relay.await_state(mode, SOON).await;
        await_rows(&pipeline, &relay, "0").await;
        await_that("expired bookmarks are dropped", SOON, || async {
            let left = bookmarks(&pipeline).await;
            if left == "0" { Ok(()) } else { Err(left) }
        })
        .await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
