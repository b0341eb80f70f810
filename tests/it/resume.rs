//! Stop, kill and restart each of the three parties: what is sent again, and what is not. Nothing is ever lost or
//! swapped.

mod alone;

use crate::answers::{Answer, answer};
use crate::await_that::{SOON, await_that};
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::server::{Client, Version, brokers};
use crate::stream::published;
use postrider::postgres::store::cursor;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Events after which a cursor row is due, however short the time.
const CURSOR_EVENTS: usize = 10_000;

/// Everything committed so far is resolved, and the server knows.
async fn resolved(pipeline: &Pipeline) {
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
}

#[tokio::test]
async fn clean_stops_and_starts_repeat_nothing() {
    let pipeline = Pipeline::shared(Version::Pg15, "restart").await;
    let load = Load::start(&pipeline.plan(), 2);
    for round in 1..=4 {
        let relay = pipeline.run();
        let wanted = round * 800;
        await_that("the load", SOON, || async {
            let committed = load.committed();
            if committed >= wanted { Ok(()) } else { Err(format!("{committed} committed")) }
        })
        .await;
        relay.await_status("some published", SOON, |status| published(status) > 100).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
    let ledger = load.stop().await;
    let relay = pipeline.run();
    resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    ledger.check(&pipeline.topic.read_all().await).assert_balanced(0);
}

/// The acknowledged part of a transaction is not sent again, however large the transaction is.
#[tokio::test]
async fn relay_killed_inside_a_huge_transaction_goes_on_where_it_was() {
    const ROWS: usize = 300_000;
    const IN_FLIGHT_EVENTS: usize = 5_000;
    let mut pipeline = Pipeline::shared(Version::Pg15, "hugekill").await;
    pipeline.bound_in_flight(IN_FLIGHT_EVENTS);
    pipeline.insert(ROWS).await;
    let relay = pipeline.run();
    relay.await_status("a part", SOON, |status| published(status) > 100_000).await;
    relay.kill().await;
    let relay = pipeline.run();
    resolved(&pipeline).await;
    relay.terminate(SOON).await;
    let records = pipeline.topic.read_all().await;
    let mut numbers: Vec<u64> =
        records.iter().filter_map(|r| r.value_text()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ROWS, "every row arrived");
    let repeated = records.len() - ROWS;
    show(&format!("killed inside a transaction of {ROWS} rows: {repeated} repeated"));
    // Of 100,000 that were there. The last is for what is delivered while a row is being written.
    let repeated_max = CURSOR_EVENTS + IN_FLIGHT_EVENTS + CURSOR_EVENTS;
    assert!(repeated <= repeated_max, "{repeated} of {ROWS} came twice");
}

/// Of each round of a transaction: an event, and three changes that are none.
const CHANGES: u64 = 4;

/// A round in so many ends with a TRUNCATE.
const TRUNCATES: u64 = 100;

/// Changes that are no events count in the ordinals of those that are, before and after a start inside the transaction.
/// So events have the positions that they had, none is taken for a repetition, and no repetition for a new one.
#[tokio::test]
async fn positions_are_the_same_after_a_kill_inside_a_transaction_of_inserts_updates_and_deletes() {
    const ROUNDS: u64 = 30_000;
    const IN_FLIGHT_EVENTS: usize = 2_000;
    for version in [Version::Pg15, Version::Pg18] {
        let mut pipeline = Pipeline::shared(version, "ordinals").await;
        pipeline.bound_in_flight(IN_FLIGHT_EVENTS);
        let slot = pipeline.slot();
        let tables = "create table notes (id int primary key); create table scratch (id int)";
        pipeline.sql.batch(tables).await;
        let publication = format!(
            "alter publication {slot} add table notes, scratch; \
             alter publication {slot} set (publish = 'insert, update, delete, truncate')"
        );
        pipeline.sql.batch(&publication).await;
        let transaction = format!(
            "do $$ begin for i in 1..{ROUNDS} loop \
               insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
                 values ('order', (i % 10)::text, 'T', to_json(i)); \
               insert into notes values (i); \
               update outbox set event_type = 'U' where id = i; \
               delete from notes where id = i; \
               if i % {TRUNCATES} = 0 then truncate scratch; end if; \
             end loop; end $$"
        );
        pipeline.sql.batch(&transaction).await;
        let relay = pipeline.run();
        let partial = format!(
            "select coalesce(partial_ordinal, 0)::text from postrider.cursor where pipeline = '{}'",
            pipeline.name
        );
        await_that("a cursor row inside the transaction", SOON, || async {
            let ordinal = pipeline.sql.text(&partial).await.unwrap_or_default();
            if ordinal.parse::<u64>().is_ok_and(|at| at > 0) { Ok(()) } else { Err(ordinal) }
        })
        .await;
        relay.kill().await;
        let killed_at = pipeline.sql.text(&partial).await.unwrap_or_default();
        assert_ne!(killed_at, "0", "the transaction was over before the kill");
        let relay = pipeline.run();
        resolved(&pipeline).await;
        relay.terminate(SOON).await;
        let records = pipeline.topic.read_all().await;
        let mut numbers = BTreeSet::new();
        for record in &records {
            let number: u64 = record.value_text().and_then(|n| n.parse().ok()).expect("a number");
            let before = number - 1;
            let (_, _, ordinal) = record.place().expect("a position");
            let expected = before * CHANGES + before / TRUNCATES;
            assert_eq!(ordinal, expected, "the position of event {number}");
            numbers.insert(number);
        }
        assert_eq!(numbers.len() as u64, ROUNDS, "every event arrived");
        let repeated = records.len() - numbers.len();
        show(&format!(
            "PostgreSQL {}: killed at ordinal {killed_at}, {repeated} repeated",
            version.major()
        ));
        let repeated_max = CURSOR_EVENTS + IN_FLIGHT_EVENTS + CURSOR_EVENTS;
        assert!(repeated <= repeated_max, "{repeated} events came twice");
    }
}

#[tokio::test]
async fn postgres_killed_and_restarted_repeats_nothing_while_the_relay_lives() {
    let mut postgres = PrivatePostgres::start(Version::Pg15, "fsync = on").await;
    let pipeline = Pipeline::on(&postgres.socket_url(), &brokers(), "pgkill").await;
    let load = Load::start(&pipeline.plan(), 2);
    let relay = pipeline.run();
    for round in 1..=3_u64 {
        relay.await_status("published", SOON, |s| published(s) > round * 1_000).await;
        if round == 2 {
            postgres.stop_fast(SOON).await;
        } else {
            postgres.kill().await;
        }
        postgres.restart().await;
        relay.await_state("streaming", SOON).await;
    }
    let ledger = load.stop().await;
    resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    ledger.check(&pipeline.topic.read_all().await).assert_balanced(0);
}

#[tokio::test]
async fn broker_killed_and_restarted_loses_and_swaps_nothing() {
    let mut kafka = PrivateKafka::start("").await;
    let postgres = PrivatePostgres::start(Version::Pg15, "").await;
    let pipeline = Pipeline::on(&postgres.socket_url(), &kafka.brokers(), "brokerkill").await;
    let load = Load::start(&pipeline.plan(), 2);
    let relay = pipeline.run();
    for round in 1..=2_u64 {
        relay.await_status("published", SOON, |s| published(s) > round * 1_500).await;
        kafka.kill().await;
        relay.await_state("broker_down", SOON).await;
        kafka.restart().await;
        relay.await_state("streaming", Duration::from_mins(1)).await;
    }
    let ledger = load.stop().await;
    resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let findings = ledger.check(&pipeline.topic.read_all().await);
    // Some 1,500 are published before each kill: only what was on its way may come again.
    findings.assert_balanced(2_000);
}

#[tokio::test]
async fn broker_down_at_the_start_is_waited_for() {
    let mut kafka = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg15, &kafka.brokers(), "latebroker").await;
    kafka.stop().await;
    pipeline.insert(100).await;
    let relay = pipeline.run();
    let status = relay.await_state("broker_down", SOON).await;
    answer("broker down at the start", &pipeline, Answer::waits(&status));
    let (ready, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!(ready, 503, "{why}");
    kafka.restart().await;
    let records = pipeline.topic.await_records(100, Duration::from_mins(1)).await;
    assert_eq!(records.len(), 100);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The database is never held up by the broker: invariant of the product.
#[tokio::test]
async fn fast_shutdown_returns_within_three_seconds_while_the_broker_is_frozen() {
    const BEHIND: usize = 200_000;
    for version in [Version::Pg15, Version::Pg18] {
        let kafka = PrivateKafka::start("").await;
        let mut postgres = PrivatePostgres::start(version, "").await;
        let pipeline = Pipeline::on(&postgres.socket_url(), &kafka.brokers(), "frozen").await;
        let relay = pipeline.run();
        pipeline.insert(10).await;
        pipeline.topic.await_records(10, SOON).await;
        kafka.freeze();
        // More than fits in flight and in every buffer on the way.
        pipeline.insert(BEHIND).await;
        relay.await_status("a full window", SOON, window_is_full).await;
        let since = Instant::now();
        let took = postgres.stop_fast(Duration::from_secs(20)).await;
        show(&format!("{version:?}: pg_ctl stop -m fast beside a frozen broker took {took:?}"));
        assert!(took < Duration::from_secs(3), "{version:?}: the shutdown took {took:?}");
        kafka.thaw();
        postgres.restart().await;
        let away = since.elapsed();
        resolved(&pipeline).await;
        let records = pipeline.topic.read_all().await;
        let ids: BTreeSet<_> = records.iter().map(|record| record.header("id")).collect();
        assert_eq!(ids.len(), BEHIND + 10, "nothing lost");
        // After 3 s without the database somebody else may have the slot, and what was in flight is sent again.
        let repeated = if away < Duration::from_secs(2) { 0 } else { 50_000 };
        let found = records.len() - ids.len();
        assert!(found <= repeated, "{version:?}: {found} repeated after {away:?}");
        let was_reset = relay.stderr().contains("resetting the producer");
        assert!(found == 0 || was_reset, "{version:?}: {found} repeated, and nothing said why");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// By its default bounds. Small events fill that of bytes first, with what the client holds beside them.
fn window_is_full(status: &serde_json::Value) -> bool {
    let (events, bytes) = (in_flight(status), figure(status, "in_flight_bytes"));
    assert!(events <= 50_000 && bytes <= (32 << 20) + 2_000, "{events} events, {bytes} bytes");
    assert!(bytes >= events * 768, "{events} events, {bytes} bytes");
    bytes >= 32 << 20
}

fn in_flight(status: &serde_json::Value) -> u64 {
    figure(status, "in_flight_events")
}

fn figure(status: &serde_json::Value, name: &str) -> u64 {
    let pipelines = status.as_array().or_else(|| status["pipelines"].as_array());
    pipelines.and_then(|list| list.first()?[name].as_u64()).unwrap_or(0)
}

/// A second process waits for the slot and takes over.
#[tokio::test]
async fn second_process_stands_by_and_takes_over() {
    let pipeline = Pipeline::shared(Version::Pg15, "standby").await;
    let first = pipeline.run();
    first.await_state("streaming", SOON).await;
    let mut second = pipeline.run();
    second.await_state("standing_by", SOON).await;
    let load = Load::start(&pipeline.plan(), 2);
    first.await_status("published", SOON, |status| published(status) > 1_000).await;
    first.kill().await;
    for _ in 0..2 {
        second.await_status("published", SOON, |status| published(status) > 1_000).await;
        let third = pipeline.run();
        third.await_state("standing_by", SOON).await;
        second.kill().await;
        second = third;
    }
    second.await_state("streaming", SOON).await;
    let ledger = load.stop().await;
    resolved(&pipeline).await;
    assert_eq!(second.terminate(SOON).await.code, Some(0));
    let findings = ledger.check(&pipeline.topic.read_all().await);
    show(&format!("three take-overs under load: {findings}"));
    findings.assert_balanced(3 * CURSOR_EVENTS);
}

/// A process loses its connections, and another owner takes the pipeline over before it connects again. That one may
/// have published some of the events behind the cursor row again. So the first one begins at the row as well: from its
/// own progress on, an aggregate could end with a repetition of an earlier event.
#[tokio::test]
async fn process_begins_at_the_cursor_row_when_there_was_another_owner() {
    const EVENTS: usize = 100;
    let pipeline = Pipeline::shared(Version::Pg17, "between").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    // The row stays where it is.
    let other = Client::connect(&pipeline.url).await.expect("a session");
    other.batch("begin; select from postrider.cursor for update").await;
    pipeline.insert(EVENTS).await;
    relay.await_status("all published", SOON, |status| published(status) == EVENTS as u64).await;
    let sessions = format!(
        "select count(pg_terminate_backend(pid))::text from pg_stat_activity \
         where application_name = 'postrider {}' and datname = current_database()",
        pipeline.name
    );
    assert_ne!(pipeline.sql.text(&sessions).await.as_deref(), Some("0"), "its sessions");
    cursor::take_over(&other, &pipeline.key()).await.expect("a row");
    other.batch("commit").await;
    let records = pipeline.topic.await_records(2 * EVENTS, SOON).await;
    let mut last = BTreeMap::new();
    for record in &records {
        let id: usize = record.header("id").and_then(|id| id.parse().ok()).expect("a number");
        last.insert(record.key_text(), id);
    }
    let newest: BTreeSet<usize> = last.into_values().collect();
    assert_eq!((records.len(), newest.len()), (2 * EVENTS, 10), "each twice");
    assert!(
        newest.into_iter().eq(EVENTS - 9..=EVENTS),
        "each aggregate ends with its newest event"
    );
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// The intake is shut and frames wait to be taken: that the stream is gone is seen all the same, or what is in flight
/// would land behind what another process sends, which has the slot. Found by the chaos run.
#[tokio::test]
async fn stream_that_is_lost_behind_a_full_window_is_noticed() {
    let kafka = PrivateKafka::start("").await;
    let mut pipeline = Pipeline::to_broker(Version::Pg17, &kafka.brokers(), "fullwindow").await;
    let flow = format!("[pipelines.{}.flow]\nin_flight_events = 10\n", pipeline.name);
    pipeline.config.push_str(&flow);
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    kafka.freeze();
    pipeline.insert(10_000).await;
    relay.await_status("a full window", SOON, |status| in_flight(status) >= 10).await;
    let ended = "select count(pg_terminate_backend(active_pid))::text from pg_replication_slots \
                 where active and slot_name like '%fullwindow%'";
    assert_eq!(pipeline.sql.text(ended).await.as_deref(), Some("1"));
    let told = |status: &serde_json::Value| {
        status["pipelines"][0]["source_reconnects_total"].as_u64() > Some(0)
    };
    relay.await_status("a new stream", Duration::from_secs(30), told).await;
    kafka.thaw();
    let records = pipeline.topic.await_records(10_010, SOON).await;
    assert!(records.len() <= 10_020, "{}", records.len());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// SIGTERM while nothing can be acknowledged ends within the grace; a second one ends at once.
#[tokio::test]
async fn stop_is_bounded_and_a_second_signal_leaves_at_once() {
    let kafka = PrivateKafka::start("").await;
    let pipeline = Pipeline::to_broker(Version::Pg15, &kafka.brokers(), "grace").await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    kafka.freeze();
    pipeline.insert(1_000).await;
    relay.await_status("something in flight", SOON, |status| in_flight(status) > 0).await;
    let start = Instant::now();
    relay.signal(crate::private::Signal::Term);
    relay.await_state("draining", SOON).await;
    relay.signal(crate::private::Signal::Term);
    assert_eq!(relay.ended(Duration::from_secs(5)).await.code, Some(0));
    assert!(start.elapsed() < Duration::from_secs(6));
    kafka.thaw();
    let relay = pipeline.run();
    resolved(&pipeline).await;
    let records = pipeline.topic.read_all().await;
    let distinct: BTreeSet<_> = records.iter().map(|record| record.header("id")).collect();
    assert_eq!(distinct.len(), 1_010, "of {} records", records.len());
    assert!(records.len() <= 2_010, "{} records", records.len());
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// One signal, and a broker that never answers: what is in flight is waited for as long as the grace says.
#[tokio::test]
async fn stop_waits_for_the_broker_no_longer_than_its_grace() {
    let kafka = PrivateKafka::start("").await;
    let mut pipeline = Pipeline::to_broker(Version::Pg17, &kafka.brokers(), "onlygrace").await;
    pipeline.config = format!("shutdown_grace = \"2s\"\n{}", pipeline.config);
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    kafka.freeze();
    pipeline.insert(100).await;
    relay.await_status("something in flight", SOON, |status| in_flight(status) > 0).await;
    let start = Instant::now();
    let ended = relay.terminate(Duration::from_secs(20)).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // The slot is another's then: what the producer sent after that might land behind its events.
    let took = start.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(9)).contains(&took), "{took:?}");
    assert!(ended.stderr.contains("in_flight=100"), "{}", ended.stderr);
    kafka.thaw();
    let relay = pipeline.run();
    resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let records = pipeline.topic.read_all().await;
    let distinct: BTreeSet<_> = records.iter().map(|record| record.header("id")).collect();
    assert_eq!(distinct.len(), 110, "of {} records", records.len());
}
