//! What comes twice where the cursor row can't prevent it: no more than docs/guarantees.md says, all of it, in order.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::server::{Version, brokers};
use crate::stream::published;
use crate::topic::ReadRecord;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Every row of `1..=count` is there, the first copies of an aggregate's in order; how many copies there are besides.
fn repeated(records: &[ReadRecord], count: usize) -> usize {
    let mut last: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for record in records {
        let id: u64 = record.header("id").and_then(|id| id.parse().ok()).expect("a number");
        if seen.insert(id) {
            let before = last.insert(record.key_text(), id);
            assert!(before < Some(id), "{id} behind {before:?} of {:?}", record.key_text());
        }
    }
    assert!(seen.iter().copied().eq(1..=count as u64), "{} of {count} rows", seen.len());
    records.len() - count
}

fn in_flight(status: &Value) -> u64 {
    status["pipelines"][0]["in_flight_events"].as_u64().unwrap_or(0)
}

/// The slot's own position is what is left to go by.
#[tokio::test]
async fn deleted_cursor_row_repeats_what_came_since_the_slots_own_position() {
    let pipeline = Pipeline::shared(Version::Pg17, "norow").await;
    let relay = pipeline.run();
    pipeline.insert(100).await;
    pipeline.topic.await_records(100, SOON).await;
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let forget = "delete from postrider.cursor where pipeline = '{pipeline}'";
    pipeline.sql(forget).await;
    // The slot knows of the first hundred.
    let relay = pipeline.run();
    pipeline.insert(50).await;
    pipeline.topic.await_records(150, SOON).await;
    relay.kill().await;
    pipeline.sql(forget).await;
    let relay = pipeline.run();
    pipeline.insert(50).await;
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let twice = repeated(&pipeline.topic.read_all().await, 200);
    assert!(twice <= 50, "{twice} came twice");
}

/// What the row says of a transaction's published part is in the order of a stream that no longer is.
#[tokio::test]
async fn publication_changed_inside_a_transaction_repeats_its_published_part() {
    const ROWS: usize = 200_000;
    const IN_FLIGHT_EVENTS: usize = 5_000;
    let mut pipeline = Pipeline::shared(Version::Pg17, "otherpub").await;
    pipeline.bound_in_flight(IN_FLIGHT_EVENTS);
    let other = format!("{}_other", pipeline.slot());
    let make = format!("create publication {other} for table outbox with (publish = 'insert')");
    pipeline.sql(&make).await;
    // The WAL that is read is to be of a time when it was there.
    let relay = pipeline.run();
    pipeline.insert(10).await;
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline.insert(ROWS).await;
    let relay = pipeline.run();
    relay.await_status("a part", SOON, |status| published(status) > 50_000).await;
    relay.kill().await;
    let there = pipeline.topic.read_all().await.len() - 10;
    assert!(there < ROWS, "the transaction was over");
    let table = format!("[pipelines.{}.source]\n", pipeline.name);
    assert!(pipeline.config.contains(&table), "{}", pipeline.config);
    pipeline.config =
        pipeline.config.replace(&table, &format!("{table}publication = \"{other}\"\n"));
    let relay = pipeline.run();
    relay.await_log("partial_dropped", SOON).await;
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let twice = repeated(&pipeline.topic.read_all().await, 10 + ROWS);
    // What was on its way when it was killed may have come behind our look.
    assert!(
        (there..=there + IN_FLIGHT_EVENTS).contains(&twice),
        "{there} were there, {twice} came twice"
    );
}

/// Another process may have the slot by then: what is in flight is thrown away, and sent again.
#[tokio::test]
async fn database_and_broker_away_together_repeat_what_was_in_flight() {
    const IN_FLIGHT_EVENTS: usize = 100;
    let kafka = PrivateKafka::start("").await;
    let mut postgres = PrivatePostgres::start(Version::Pg17, "fsync = on").await;
    let mut pipeline = Pipeline::on(&postgres.socket_url(), &kafka.brokers(), "bothaway").await;
    pipeline.bound_in_flight(IN_FLIGHT_EVENTS);
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    kafka.freeze();
    pipeline.insert(5_000).await;
    relay.await_status("a full window", SOON, |s| in_flight(s) >= IN_FLIGHT_EVENTS as u64).await;
    postgres.kill().await;
    relay.await_status("nothing in flight", SOON, |status| in_flight(status) == 0).await;
    kafka.thaw();
    postgres.restart().await;
    relay.await_status("all of it", SOON, |status| published(status) >= 5_010).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let twice = repeated(&pipeline.topic.read_all().await, 5_010);
    assert!(twice <= IN_FLIGHT_EVENTS, "{twice} came twice");
}

/// No row can be written any more: what was delivered since the last one comes again, and what was in flight.
#[tokio::test]
async fn stop_while_the_database_is_away_repeats_what_came_since_the_last_row() {
    const ROWS: usize = 100_000;
    // A row is due after so many events at the latest.
    const CURSOR_EVENTS: usize = 10_000;
    const IN_FLIGHT_EVENTS: usize = 1_000;
    let mut postgres = PrivatePostgres::start(Version::Pg17, "fsync = on").await;
    let mut pipeline = Pipeline::on(&postgres.socket_url(), &brokers(), "dbaway").await;
    pipeline.bound_in_flight(IN_FLIGHT_EVENTS);
    pipeline.insert(ROWS).await;
    let relay = pipeline.run();
    relay.await_status("a part", SOON, |status| published(status) > 40_000).await;
    postgres.kill().await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let there = pipeline.topic.read_all().await.len();
    assert!(there < ROWS, "the backlog was drained");
    postgres.restart().await;
    let relay = pipeline.run();
    relay.await_status("the rest", SOON, |status| published(status) >= (ROWS - there) as u64).await;
    let end = pipeline.wal_end().await;
    await_that("all to be confirmed", SOON, || pipeline.confirmed(&end)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let twice = repeated(&pipeline.topic.read_all().await, ROWS);
    // The last is for what is delivered while a row is being written.
    let twice_max = CURSOR_EVENTS + IN_FLIGHT_EVENTS + CURSOR_EVENTS;
    assert!(twice <= twice_max, "{twice} of {there} came twice");
}
