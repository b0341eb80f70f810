//! `mode = "auto"`: from the stream to polling when the slot is gone, and back, under load.

use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::parking::Scene;
pub(crate) use crate::pipeline::drop_slot;
use crate::pipeline::{Pipeline, show};
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version, brokers};
use serde_json::Value;
use tokio::task::JoinSet;

/// Events a second of each of the two writers, and events in a transaction.
const RATE: (u32, usize) = (1_000, 10);

pub(crate) async fn auto(version: Version, test: &str) -> Pipeline {
    auto_of(Pipeline::shared(version, test).await)
}

pub(crate) fn auto_of(mut pipeline: Pipeline) -> Pipeline {
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let lines = "mode = \"auto\"\npoll = { interval = \"50ms\" }\n";
    pipeline.config = pipeline.config.replacen(&head, &format!("{head}{lines}"), 1);
    pipeline
}

pub(crate) async fn committed(load: &Load, more: usize) {
    let wanted = load.committed() + more;
    await_that(&format!("{wanted} committed"), SOON, || async {
        let now = load.committed();
        if now >= wanted { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

/// 2,000 events a second; the slot is dropped twice, and made anew each time by the relay itself.
#[tokio::test]
async fn stream_to_polling_and_back_under_load_loses_and_swaps_nothing() {
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = auto(version, "handover").await;
        let mut plan = pipeline.plan();
        (plan.rate, plan.transaction_events) = RATE;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let load = Load::start(&plan, 2);
        for times in 1..=2 {
            committed(&load, 2_000).await;
            drop_slot(&pipeline).await;
            let again = format!("streaming again, the {times}. time");
            await_that(&again, SOON, || async {
                let log = relay.stderr();
                let (polled, streams) = (
                    log.matches("polling the table until").count(),
                    log.matches("INFO streaming ").count(),
                );
                if polled == times && streams > times {
                    Ok(())
                } else {
                    Err(format!("{polled} {streams}"))
                }
            })
            .await;
            committed(&load, 2_000).await;
        }
        let ledger = load.stop().await;
        let all = |status: &Value| {
            let pipeline = &status["pipelines"][0];
            pipeline["in_flight_events"] == 0 && pipeline["lag_seconds"] == 0.0
        };
        pipeline.topic.await_records(ledger.committed(), SOON).await;
        relay.await_status("all published", SOON, all).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        // Nothing is to be done: `repair` refuses a pipeline of this mode, so no line may name it.
        let log = &ended.stderr;
        assert!(
            log.contains("nothing to do: mode = ") && !log.contains("postrider repair"),
            "{log}"
        );
        assert!(log.contains("polling the outbox table") && !log.contains("table again"), "{log}");
        let records = pipeline.topic.read_all().await;
        let findings = ledger.check(&records);
        // What was in flight when the slot was dropped comes twice; what was polled while the new slot stood does not.
        show(&format!(
            "PostgreSQL {}: {} committed, {} duplicates in two hand-overs each way",
            version.major(),
            findings.committed,
            findings.duplicates
        ));
        findings.assert_balanced(2 * 4_000);
        let left = "select count(*)::text from outbox";
        assert_eq!(
            pipeline.sql.text(left).await.as_deref(),
            Some("0"),
            "published rows are marked"
        );
    }
}

/// A role of the pipeline that may do everything but stream, and the configuration with it.
async fn role_that_may_not_stream(pipeline: &Pipeline, config: &str) -> String {
    let role = &pipeline.name;
    pipeline
        .sql
        .batch(&format!(
            "create role {role} login; grant usage on schema postrider to {role}; \
             grant all on all tables in schema postrider to {role}; grant all on outbox to {role}"
        ))
        .await;
    let config = config.replace("user=postgres", &format!("user={role}"));
    config.replace("postgres@", &format!("{role}@"))
}

/// Without the right to stream it polls, and says why it does not stream. The slot that somebody else has created does
/// not end that. With the right it streams; and polls again when the right is taken away.
#[tokio::test]
async fn role_without_replication_polls() {
    for version in [Version::Pg15, Version::Pg17] {
        let pipeline = auto(version, "norepl").await;
        let name = &pipeline.name;
        let config = role_that_may_not_stream(&pipeline, &pipeline.config).await;
        let relay = Relay::spawn(&config);
        relay.await_state("polling", SOON).await;
        for times in 1..=3 {
            pipeline.insert(100).await;
            assert_eq!(pipeline.topic.await_records(100 * times, SOON).await.len(), 100 * times);
        }
        let log = relay.stderr();
        assert_eq!(log.matches("polling the table until").count(), 1, "{log}");
        relay
            .await_status("the WAL that the slot retains", SOON, |status| {
                status["pipelines"][0]["slot_retained_bytes"].as_u64() > Some(0)
            })
            .await;
        pipeline.sql.batch(&format!("alter role {name} replication")).await;
        relay.await_state("streaming", SOON).await;
        pipeline.insert(100).await;
        assert_eq!(pipeline.topic.await_records(400, SOON).await.len(), 400);
        pipeline.sql.batch(&format!("alter role {name} noreplication")).await;
        let end = "select pg_terminate_backend(active_pid)::text from pg_replication_slots where slot_name = ";
        let end = format!("{end}'{}'", pipeline.slot());
        assert_eq!(pipeline.sql.text(&end).await.as_deref(), Some("true"));
        relay.await_state("polling", SOON).await;
        for times in 5..=6 {
            pipeline.insert(100).await;
            assert_eq!(pipeline.topic.await_records(100 * times, SOON).await.len(), 100 * times);
        }
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        drop_slot(&pipeline).await;
        pipeline.sql.batch(&format!("drop owned by {name}; drop role {name}")).await;
    }
}

/// Killed while it polls in the stream's stead: what it had published is marked, and the rest follows in order.
#[tokio::test]
async fn killed_while_polling_in_the_streams_stead() {
    let pipeline = auto(Version::Pg18, "handkill").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let load = Load::start(&pipeline.plan(), 2);
    committed(&load, 1_000).await;
    drop_slot(&pipeline).await;
    relay.await_log("polling the table until", SOON).await;
    drop(relay.kill().await);
    committed(&load, 1_000).await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    committed(&load, 500).await;
    let ledger = load.stop().await;
    // As many records as events are there before the last event is, where some come twice: published rows go.
    await_that("an empty table", SOON, || async {
        match pipeline.sql.text("select count(*)::text from outbox").await.as_deref() {
            Some("0") => Ok(()),
            rows => Err(format!("{rows:?} rows")),
        }
    })
    .await;
    let records = pipeline.topic.read_all().await;
    ledger.check(&records).assert_balanced(3 * 4_000);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What was committed before the new slot is in the table alone, and whoever comes next has to know.
#[tokio::test]
async fn killed_while_the_new_slot_stands_and_the_table_is_not_published() {
    const ROWS: usize = 10_000;
    // A slot waits for every transaction of its server, also for those of other tests.
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let broker = PrivateKafka::start("").await;
    let pipeline = auto_of(Pipeline::on(&server.url(), &broker.brokers(), "handowed").await);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    drop_slot(&pipeline).await;
    pipeline.insert(ROWS).await;
    // Nothing is published before the slot stands.
    broker.freeze();
    let relay = pipeline.run();
    relay.await_log("the slot exists", SOON).await;
    drop(relay.kill().await);
    broker.thaw();
    let left =
        || async { pipeline.sql.text("select count(*)::text from outbox").await.expect("a row") };
    let behind: usize = left().await.parse().expect("a count");
    assert_eq!(behind, ROWS, "something was published before the kill");
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    await_that("an empty table", SOON, || async {
        let rows = left().await;
        if rows == "0" {
            Ok(())
        } else {
            Err(format!("{rows} of {behind} rows\n{}", relay.stderr()))
        }
    })
    .await;
    let mut values: Vec<Option<Vec<u8>>> =
        pipeline.topic.await_records(ROWS, SOON).await.into_iter().map(|one| one.value).collect();
    values.sort();
    values.dedup();
    assert_eq!(values.len(), ROWS, "each is there");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// While the table is polled, another session creates the slot: an operator's, or one of a former owner whose statement
/// the server finishes late. The relay binds the cursor row to that slot, publishes the table, and streams.
#[tokio::test]
async fn slot_that_another_session_creates_while_the_table_is_polled_is_taken() {
    let server = PrivatePostgres::start(Version::Pg17, "max_replication_slots = 1\n").await;
    let pipeline = auto_of(Pipeline::on(&server.url(), &brokers(), "handtaken").await);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    drop_slot(&pipeline).await;
    // The relay can't create a slot.
    pipeline.sql.batch("select pg_create_physical_replication_slot('occupied')").await;
    pipeline.insert(10).await;
    let relay = pipeline.run();
    relay.await_state("polling", SOON).await;
    assert_eq!(pipeline.topic.await_records(10, SOON).await.len(), 10);
    let created = "select slot_created_lsn::text from postrider.cursor";
    let before = pipeline.sql.text(created).await;
    let create = format!(
        "select pg_drop_replication_slot('occupied'); select pg_create_logical_replication_slot('{}', 'pgoutput')",
        pipeline.slot()
    );
    pipeline.sql.batch(&create).await;
    relay.await_state("streaming", SOON).await;
    assert_ne!(pipeline.sql.text(created).await, before, "the cursor row is bound to the new slot");
    pipeline.insert(10).await;
    assert_eq!(pipeline.topic.await_records(20, SOON).await.len(), 20, "each once");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What is delayed, or waits behind it, is neither lost to the new slot nor keeps the relay polling until its time: it
/// is parked, as it would be had the stream brought it.
#[tokio::test]
async fn delayed_rows_do_not_keep_the_relay_polling_and_are_not_left_behind() {
    // A slot waits for every transaction of its server: those of other tests would keep this one polling.
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let (url, brokers) = (server.url(), brokers());
    let pipeline = Pipeline::with_layout(&url, &brokers, "handlate", "commerce", "").await;
    let pipeline = auto_of(pipeline);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    // No slot is made while a transaction is open.
    let open = Client::connect(&pipeline.url).await.expect("a session");
    open.batch("begin; select txid_current()").await;
    drop_slot(&pipeline).await;
    relay.await_state("polling", SOON).await;
    let rows = "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, \
                event_version, payload, occurred_at, available_at) values \
                (1, 'order', 1, 'T', 1, '1', now(), now() + interval '15 seconds'), \
                (1, 'order', 1, 'T', 1, '2', now(), now()), \
                (1, 'order', 2, 'T', 1, '3', now(), now()), \
                (1, 'order', 3, 'T', 1, '4', now(), now() + interval '1 year'), \
                (1, 'order', 3, 'T', 1, '5', now(), now())";
    pipeline.sql.batch(rows).await;
    pipeline.topic.await_records(1, SOON).await;
    open.batch("commit").await;
    let streams = |status: &Value| {
        let pipeline = &status["pipelines"][0];
        pipeline["state"] == "streaming" && pipeline["parked"]["due"].as_u64() >= Some(1)
    };
    relay.await_status("streaming, with what is delayed parked", SOON, streams).await;
    pipeline
        .sql
        .batch(
            "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, event_version, payload, \
             occurred_at) values (1, 'order', 1, 'T', 1, '6', now()), (1, 'order', 3, 'T', 1, '7', now())",
        )
        .await;
    let records = pipeline.topic.await_records(4, SOON).await;
    let of = |key: &str| -> Vec<String> {
        let of_key = records.iter().filter(|record| record.key_text() == Some(key));
        of_key.map(|record| record.value_text().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(
        (of("1"), of("2")),
        (["1", "2", "6"].map(str::to_owned).into(), vec!["3".to_owned()])
    );
    let waiting = "select string_agg(convert_from(value, 'UTF8') || ' ' || state, ', ' order by commit_lsn, ordinal) \
                   from postrider.parked where state not in ('done', 'skipped')";
    await_that("the others parked for a year", SOON, || async {
        match pipeline.sql.text(waiting).await.as_deref() {
            Some("4 due, 5 behind, 7 behind") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// What is polled while the new slot exists comes by the stream as well, and is passed over: also where the session
/// that claims was lost in between. A locked row that was committed before the slot keeps the relay polling until it is
/// published.
#[tokio::test]
async fn session_that_is_lost_while_the_table_is_polled_beside_the_slot_repeats_nothing() {
    const BACKLOG: usize = 100_000;
    const CLAIMS: usize = 4;
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let pipeline = auto_of(Pipeline::on(&server.url(), &brokers(), "handsession").await);
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    drop_slot(&pipeline).await;
    pipeline.insert(BACKLOG).await;
    let one = |aggregate: &str| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '{aggregate}', 'T', '1')"
        )
    };
    pipeline.sql.batch(&one("locked")).await;
    let relay = pipeline.run();
    relay.await_log("the slot exists", SOON).await;
    // Not before: a slot waits for every transaction that has locked a row.
    let holder = server.connect().await;
    holder.batch("begin").await;
    let hold = "select count(*)::text from (select from outbox where aggregate_id = 'locked' for update) one";
    assert_eq!(holder.text(hold).await.as_deref(), Some("1"), "it is not claimed yet");
    let others = "select count(*)::text from outbox where aggregate_id <> 'locked'";
    let all_others = async || {
        await_that("all others published", SOON, || async {
            let rows = pipeline.sql.text(others).await;
            if rows.as_deref() == Some("0") { Ok(()) } else { Err(format!("{rows:?}")) }
        })
        .await;
    };
    all_others().await;
    let claims =
        "select count(pg_terminate_backend(pid))::text from pg_locks where locktype = 'advisory'";
    assert_eq!(pipeline.sql.text(claims).await.as_deref(), Some("1"), "the pipeline's lock");
    await_that("the slot to be found again", SOON, || async {
        let found = relay.stderr().matches("the slot exists").count();
        if found == 2 { Ok(()) } else { Err(found) }
    })
    .await;
    // Each time a claim of its own: the last ones take all that there is but the locked row.
    for _ in 0..CLAIMS {
        pipeline.sql.batch(&one("other")).await;
        all_others().await;
    }
    let streams = || relay.stderr().contains("INFO streaming ");
    assert!(
        !streams(),
        "it streams, and the locked row is in the table alone:\n{}",
        relay.stderr()
    );
    holder.batch("rollback").await;
    relay.await_state("streaming", SOON).await;
    assert!(streams(), "it says so:\n{}", relay.stderr());
    pipeline.sql.batch(&one("last")).await;
    let records = pipeline.topic.await_records(BACKLOG + CLAIMS + 2, SOON).await;
    let last = records.iter().any(|record| record.key_text() == Some("last"));
    assert_eq!((records.len(), last), (BACKLOG + CLAIMS + 2, true), "each once");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// An event whose commit waits for a synchronous standby is not visible, and is not claimed; its commit record lies
/// before the end of WAL that an earlier event of its aggregate is parked at. The stream brings it behind that one.
#[tokio::test]
async fn event_that_is_not_visible_to_the_last_claim_comes_behind_one_that_this_has_parked() {
    const BACKLOG: usize = 10_000;
    for version in [Version::Pg15, Version::Pg18] {
        let server = PrivatePostgres::start(version, "").await;
        let broker = PrivateKafka::start("").await;
        let pipeline = auto_of(Pipeline::on(&server.url(), &broker.brokers(), "handsync").await);
        let lines = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
        let mut scene = Scene::of(pipeline, lines).await;
        scene.config = Pipeline::uncompressed_of(&scene.config, &scene.pipeline.name);
        let relay = scene.run();
        relay.await_state("streaming", SOON).await;
        scene.insert(&["b"]).await;
        scene.await_last("b", 1).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        drop_slot(&scene.pipeline).await;
        let backlog = format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', 'x' || i % 10, 'T', '{{\"n\": 0}}' from generate_series(1, {BACKLOG}) i"
        );
        scene.pipeline.sql.batch(&backlog).await;
        scene.insert(&["!b"]).await;

        // The new slot stands before the large event can be claimed, which is not in the first claim.
        broker.freeze();
        let relay = scene.run();
        relay.await_log("the slot exists", SOON).await;
        let holder = server.connect().await;
        holder.batch("set synchronous_commit = local; begin").await;
        let hold = "select count(*)::text from (select from outbox where length(payload::text) > 3000 for update) one";
        assert_eq!(holder.text(hold).await.as_deref(), Some("1"), "it is not claimed yet");
        broker.thaw();
        scene.pipeline.sql.batch("alter system set synchronous_standby_names = 'nobody'").await;
        server.reload();
        let late = server.connect().await;
        let behind = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                      values ('order', 'b', 'T', '{\"n\": 3}')";
        let waits = |commits: &'static str| {
            let session = &scene.pipeline.sql;
            let sql = "select count(*)::text from pg_stat_activity where wait_event = 'SyncRep'";
            await_that("commits wait for a standby", SOON, move || async move {
                let now = session.text(sql).await.unwrap_or_default();
                if now == commits { Ok(()) } else { Err(now) }
            })
        };
        let mut inserted = JoinSet::new();
        inserted.spawn(async move { late.batch(behind).await });
        waits("1").await;
        // All else is claimed: the next claim is the last before the stream.
        await_that("one row in the table", SOON, || async {
            let rows = scene.pipeline.sql.text("select count(*)::text from outbox").await;
            if rows.as_deref() == Some("1") { Ok(()) } else { Err(format!("{rows:?}")) }
        })
        .await;
        holder.batch("commit").await;
        // And the claim that has parked the large event.
        waits("2").await;
        scene.pipeline.sql.batch("alter system reset synchronous_standby_names").await;
        server.reload();
        inserted.join_next().await.expect("an insert").expect("its end");
        relay.await_state("streaming", SOON).await;
        scene.await_rows("b waiting, b behind").await;
        scene.raise_the_limit().await;
        scene.await_last("b", 3).await;
        let delivered = scene.delivered().await;
        assert_eq!(delivered["b"], [1, 2, 3]);
        show(&format!("PostgreSQL {}: b came as {:?}", version.major(), delivered["b"]));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// A scene in mode auto whose cursor row stays before an event of aggregate b that is too large, and is parked. The row
/// of the event stays in the table: a trigger delays its deletion.
async fn parked_behind_the_cursor_row(
    server: &PrivatePostgres,
    brokers: &str,
    test: &str,
) -> (Scene, Relay) {
    let mut pipeline = auto_of(Pipeline::on(&server.url(), brokers, test).await);
    let flow = format!("[pipelines.{}.flow]\ncursor_interval = \"1m\"\n", pipeline.name);
    pipeline.config.push_str(&flow);
    let lines = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
    let mut scene = Scene::of(pipeline, lines).await;
    let held = "select pg_advisory_lock(1); \
                create function held() returns trigger language plpgsql as \
                  'begin perform pg_advisory_xact_lock(1); return old; end'; \
                create trigger held before delete on outbox for each row \
                  when (length(old.payload::text) > 3000) execute function held()";
    scene.pipeline.sql.batch(held).await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    scene.insert(&["b", "!b"]).await;
    scene.await_rows("b waiting").await;
    (scene, relay)
}

/// The relay is gone. Ends its statements that the trigger delays, so that they delete nothing, and drops the trigger.
async fn release(scene: &Scene) {
    let sql = "select count(pg_terminate_backend(pid, 10000))::text from pg_stat_activity \
               where application_name like 'postrider%'";
    drop(scene.pipeline.sql.text(sql).await);
    scene.pipeline.sql.batch("drop trigger held on outbox; select pg_advisory_unlock(1)").await;
}

/// Skips what is parked, and waits until the states are these.
async fn skipped(scene: &Scene, wanted: &str) {
    postrider_ok(&scene.config, &["parked", "skip", "--all", "--yes"]);
    scene.await_rows("").await;
    let states = "select string_agg(aggregate_id || ' ' || state, ', ' order by aggregate_id) from postrider.parked";
    assert_eq!(scene.pipeline.sql.text(states).await.as_deref(), Some(wanted));
}

/// The slot still has the events, one that the stream had parked and one that a claim has, and the topic takes them
/// now. Nobody wants them any more.
#[tokio::test]
async fn event_that_is_skipped_while_the_table_is_polled_is_not_published_by_the_stream() {
    for version in [Version::Pg15, Version::Pg18] {
        let server = PrivatePostgres::start(version, "track_commit_timestamp = on\n").await;
        let (mut scene, relay) =
            parked_behind_the_cursor_row(&server, &brokers(), "handskip").await;
        drop(relay.kill().await);
        release(&scene).await;

        scene.config = role_that_may_not_stream(&scene.pipeline, &scene.config).await;
        let relay = scene.run();
        relay.await_state("polling", SOON).await;
        scene.insert(&["!c"]).await;
        let moved = "select count(*)::text from postrider.parked where (commit_lsn - '0/0'::pg_lsn) % 2 = 1";
        await_that("the parked events at positions of claims", SOON, || async {
            match scene.pipeline.sql.text(moved).await.as_deref() {
                Some("2") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        skipped(&scene, "b skipped, c skipped").await;
        scene.raise_the_limit().await;
        let allow = format!("alter role {} replication", scene.pipeline.name);
        scene.pipeline.sql.batch(&allow).await;
        // The next process knows only what is stored.
        drop(relay.kill().await);
        let relay = scene.run();
        relay.await_state("streaming", SOON).await;
        scene.insert(&["b", "c"]).await;
        scene.await_last("c", 5).await;
        let delivered = scene.delivered().await;
        assert!(!delivered["b"].contains(&2) && delivered["c"] == [5], "{delivered:?}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// The row of the skipped event is still in the table when the cursor row already belongs to the new slot: the process
/// is killed before a claim is published.
#[tokio::test]
async fn event_that_is_skipped_before_the_slot_is_lost_is_not_published_from_the_table() {
    for version in [Version::Pg15, Version::Pg18] {
        let server = PrivatePostgres::start(version, "track_commit_timestamp = on\n").await;
        let broker = PrivateKafka::start("").await;
        let (mut scene, relay) =
            parked_behind_the_cursor_row(&server, &broker.brokers(), "handforget").await;
        skipped(&scene, "b skipped").await;
        drop(relay.kill().await);
        release(&scene).await;
        drop_slot(&scene.pipeline).await;
        // No claim is published before the slot exists.
        broker.freeze();
        let relay = scene.run();
        relay.await_log("the slot exists", SOON).await;
        drop(relay.kill().await);
        broker.thaw();
        scene.raise_the_limit().await;
        let relay = scene.run();
        relay.await_state("streaming", SOON).await;
        scene.insert(&["b"]).await;
        scene.await_last("b", 3).await;
        let delivered = scene.delivered().await;
        assert!(!delivered["b"].contains(&2), "{delivered:?}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}
