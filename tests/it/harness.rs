//! Tests of the harness itself: each of its checks must be able to fail.

use crate::await_that::{SOON, await_that};
use crate::ledger::{Entry, Findings, Ledger, Outcome};
use crate::load::{Load, Plan};
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::relay::http_get;
use crate::server::{Client, Database, Version};
use crate::topic::{ReadRecord, Topic, create_topic};
use rdkafka::config::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const OUTBOX: &str = "create table outbox (
    id bigint generated always as identity primary key,
    aggregate_type text not null, aggregate_id text not null, event_type text not null,
    payload json, headers json, created_at timestamptz not null default now())";

#[tokio::test]
#[should_panic(expected = "last seen: 3 of 4")]
async fn a_wait_fails_at_its_deadline_with_what_was_seen() {
    await_that("four", Duration::from_millis(50), || async { Err::<(), _>("3 of 4") }).await;
}

#[tokio::test]
#[should_panic(expected = "did not return")]
async fn a_check_that_hangs_ends_at_the_deadline() {
    await_that("an answer", Duration::from_millis(50), std::future::pending::<Result<(), String>>)
        .await;
}

#[tokio::test]
async fn a_private_postgresql_comes_back_from_kill_9_on_its_port_with_its_rows() {
    for version in Version::ALL {
        let mut server = PrivatePostgres::start(version, "max_replication_slots = 7").await;
        let (port, client) = (server.port, server.connect().await);
        assert_eq!(client.text("show max_replication_slots").await.as_deref(), Some("7"));
        client.batch("create table t (i int); insert into t values (1)").await;
        server.kill().await;
        assert!(client.simple_query("select 1").await.is_err());
        assert!(Client::connect(&server.url()).await.is_err());
        server.restart().await;
        assert_eq!(server.port, port);
        assert_eq!(server.connect().await.text("select i from t").await.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn a_private_postgresql_freezes_thaws_and_stops_fast() {
    let mut server = PrivatePostgres::start(Version::Pg15, "").await;
    let client = server.connect().await;
    server.freeze();
    let answer = tokio::time::timeout(Duration::from_millis(300), client.simple_query("select 1"));
    assert!(answer.await.is_err(), "a frozen server answered");
    server.thaw();
    assert_eq!(client.text("select 1").await.as_deref(), Some("1"));
    server.stop_fast(Duration::from_secs(10)).await;
    server.restart().await;
    server.connect().await.batch("select 1").await;
}

#[tokio::test]
async fn a_private_postgresql_demands_a_password_if_its_rules_require_one() {
    let rule = "host all knocker 127.0.0.1/32 scram-sha-256";
    let server = PrivatePostgres::start_with(Version::Pg17, "", rule).await;
    server.connect().await.batch("create role knocker login password 'open'").await;
    let url = |password: &str| {
        format!("postgresql://knocker:{password}@127.0.0.1:{}/postgres", server.port)
    };
    assert!(Client::connect(&url("shut")).await.is_err());
    Client::connect(&url("open")).await.unwrap();
}

#[tokio::test]
async fn a_private_kafka_comes_back_from_kill_9_with_its_records_and_thaws() {
    let mut broker = PrivateKafka::start("").await;
    create_topic(&broker.brokers(), "kept", 2, &[("max.message.bytes", "2000")]).await;
    let topic = Topic { brokers: broker.brokers(), name: "kept".to_owned() };
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", broker.brokers())
        .set("reconnect.backoff.max.ms", "200")
        .create()
        .unwrap();
    let record = FutureRecord::to("kept").key("k").payload("before");
    producer.send(record, SOON).await.unwrap();
    broker.kill().await;
    broker.restart().await;
    let values = |records: Vec<ReadRecord>| -> Vec<String> {
        records.iter().map(|record| record.value_text().unwrap().to_owned()).collect()
    };
    assert_eq!(values(topic.await_records(1, SOON).await), ["before"]);

    broker.freeze();
    let record = FutureRecord::to("kept").key("k").payload("frozen");
    let mut report = Box::pin(producer.send(record, SOON));
    let frozen = tokio::time::timeout(Duration::from_millis(300), &mut report).await;
    assert!(frozen.is_err(), "a frozen broker answered");
    broker.thaw();
    report.await.unwrap();
    assert_eq!(values(topic.await_records(2, SOON).await), ["before", "frozen"]);
    broker.stop().await;
}

#[tokio::test]
async fn writers_know_what_was_committed_even_if_the_server_is_killed() {
    let mut server = PrivatePostgres::start(Version::Pg15, "").await;
    server.connect().await.batch(OUTBOX).await;
    let load = Load::start(&Plan::new(&server.url(), "order"), 2);
    for round in 1..=2 {
        let grown = load.committed() + 200;
        await_that(&format!("round {round}"), SOON, || async {
            let committed = load.committed();
            if committed >= grown { Ok(()) } else { Err(committed) }
        })
        .await;
        if round == 1 {
            server.kill().await;
            server.restart().await;
        }
    }
    let ledger = load.stop().await;
    let rows =
        server.connect().await.query("select id::text, payload::text from outbox", &[]).await;
    let rows: BTreeMap<String, String> =
        rows.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect();
    assert!(ledger.entries.iter().any(|entry| entry.outcome == Outcome::RolledBack));
    // After a crash the id of a rolled-back event may be assigned to another event: a rollback does not flush WAL, so
    // the record of the sequence may be lost.
    for entry in &ledger.entries {
        match entry.outcome {
            Outcome::Committed => assert_eq!(rows.get(&entry.id), Some(&entry.payload)),
            Outcome::RolledBack => assert_ne!(rows.get(&entry.id), Some(&entry.payload)),
            Outcome::Unknown => {}
        }
    }
}

#[tokio::test]
async fn a_load_writes_at_the_given_rate() {
    let database = Database::create(Version::Pg18, "rate").await;
    database.connect().await.batch(OUTBOX).await;
    let plan = Plan { rate: 2_000, rollback_every: 0, ..Plan::new(&database.url(), "order") };
    let start = std::time::Instant::now();
    let load = Load::start(&plan, 1);
    await_that("2000 events", SOON, || async {
        if load.committed() >= 2_000 { Ok(()) } else { Err(load.committed()) }
    })
    .await;
    assert!(start.elapsed() > Duration::from_millis(900), "{:?}", start.elapsed());
    assert_eq!(load.stop().await.entries.len() % 5, 0);
}

fn entry(id: &str, aggregate: &str, outcome: Outcome) -> Entry {
    let payload = format!("payload of {id}");
    Entry { id: id.to_owned(), aggregate: aggregate.to_owned(), payload, outcome }
}

/// Aggregate `a` has 1, 2 (unknown), 3, 4; `b` has 5 and 6 (rolled back).
fn ledger() -> Ledger {
    Ledger {
        entries: vec![
            entry("1", "a", Outcome::Committed),
            entry("2", "a", Outcome::Unknown),
            entry("3", "a", Outcome::Committed),
            entry("4", "a", Outcome::Committed),
            entry("5", "b", Outcome::Committed),
            entry("6", "b", Outcome::RolledBack),
        ],
    }
}

fn delivered(ids: &str) -> Findings {
    let records: Vec<ReadRecord> = ids
        .split_whitespace()
        .zip(0..)
        .map(|(id, offset)| {
            let key = if matches!(id, "5" | "6") { "b" } else { "a" };
            ReadRecord {
                partition: 0,
                offset,
                key: Some(key.into()),
                value: Some(format!("payload of {id}").into()),
                headers: vec![("id".to_owned(), Some(id.into()))],
                timestamp: None,
            }
        })
        .collect();
    ledger().check(&records)
}

#[test]
fn the_ledger_balances_with_unknown_events_and_replayed_suffixes() {
    for ids in
        ["1 3 4 5", "1 2 3 5 4", "1 3 3 4 5 5", "1 3 4 1 3 4 5", "1 2 3 2 3 4 5", "1 3 1 2 3 4 5"]
    {
        let found = delivered(ids);
        assert!(found.balanced(), "{ids}: {found}");
    }
    assert_eq!(delivered("1 2 3 2 3 4 5").duplicates, 2);
    delivered("1 3 4 5").assert_balanced(0);
}

#[test]
fn the_ledger_finds_what_is_lost_invented_and_corrupted() {
    assert_eq!(delivered("1 3 5").lost, ["4"]);
    assert_eq!(delivered("1 3 4 5 6").invented, ["6"]);
    assert_eq!(delivered("1 3 4 5 7").invented, ["7"]);
    let mut ledger = ledger();
    ledger.entries.truncate(1);
    ledger.entries[0].payload = "another".to_owned();
    let record = ReadRecord {
        partition: 0,
        offset: 0,
        key: Some("a".into()),
        value: Some("payload of 1".into()),
        headers: vec![("id".to_owned(), Some("1".into()))],
        timestamp: None,
    };
    assert_eq!(ledger.check(&[record]).corrupted, ["1"]);
}

#[test]
fn the_ledger_finds_swaps_and_skips() {
    assert_eq!(delivered("1 4 3 5").swapped, ["a: 4 after 1",]);
    assert_eq!(delivered("3 1 4 5").swapped, ["a: 3 after the start", "a: 4 after 1"]);
    assert_eq!(delivered("1 3 4 1 4 5").swapped, ["a: 4 after 1"]);
    assert_eq!(delivered("1 3 4 1 4 5").early, [""; 0]);
    assert_eq!(delivered("1 4 3 5").early, ["a: 4 after 1"]);
}

#[tokio::test]
async fn an_http_answer_is_read_with_code_and_body() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\nwhy").await.unwrap();
    };
    let (answer, ()) = tokio::join!(http_get(port, "/ready"), serve);
    assert_eq!(answer, Ok((503, "why".to_owned())));
}
