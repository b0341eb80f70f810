//! The shared servers are what the other tests believe they are.

use crate::await_that::SOON;
use crate::private::free_port;
use crate::server::{Database, Version, brokers};
use crate::topic::Topics;
use rdkafka::config::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::collections::BTreeSet;

#[tokio::test]
async fn every_postgresql_answers_with_its_version_and_logical_wal() {
    for version in Version::ALL {
        let database = Database::create(version, "servers_answer").await;
        let client = database.connect().await;
        let number = client.text("show server_version_num").await.unwrap();
        assert_eq!(number.parse::<u32>().unwrap() / 10_000, version.major());
        assert_eq!(client.text("show wal_level").await.as_deref(), Some("logical"));
        let slot = format!("{}_slot", database.name);
        client
            .batch(&format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')"))
            .await;
        let count = format!("select count(*) from pg_replication_slots where slot_name = '{slot}'");
        assert_eq!(client.text(&count).await.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn a_database_goes_away_with_its_slots() {
    let database = Database::create(Version::Pg15, "goes_away").await;
    let (name, outside) = (database.name.clone(), Database::create(Version::Pg15, "stays").await);
    let client = database.connect().await;
    client.batch(&format!("select pg_create_logical_replication_slot('{name}', 'pgoutput')")).await;
    drop(database);
    let left = format!(
        "select (select count(*) from pg_database where datname = '{name}')
              + (select count(*) from pg_replication_slots where slot_name = '{name}')"
    );
    assert_eq!(outside.connect().await.text(&left).await.as_deref(), Some("0"));
}

#[tokio::test]
async fn every_postgresql_answers_on_its_unix_socket() {
    for version in Version::ALL {
        let database = Database::create(version, "socket").await;
        let client = crate::server::Client::connect(&database.socket_url()).await.unwrap();
        assert_eq!(client.text("select inet_server_addr()").await, None);
    }
}

#[tokio::test]
async fn a_produced_record_is_read_back_with_header_and_key() {
    let topics = Topics::new(&brokers(), "servers_answer");
    let topic = topics.create("orders", 3).await;
    assert!(topic.read_all().await.is_empty());
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", brokers()).create().unwrap();
    let header = Header { key: "id", value: Some("7") };
    let record = FutureRecord::to(&topic.name)
        .key("order-1")
        .payload("{}")
        .timestamp(1_700_000_000_123)
        .headers(OwnedHeaders::new().insert(header));
    producer.send(record, SOON).await.unwrap();

    let records = topic.await_records(1, SOON).await;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].key_text(), Some("order-1"));
    assert_eq!(records[0].value_text(), Some("{}"));
    assert_eq!(records[0].header("id"), Some("7"));
    assert_eq!(records[0].timestamp, Some(1_700_000_000_123));
    assert_eq!(records[0].offset, 0);
}

#[test]
fn two_tests_are_not_given_the_same_port() {
    let ports: BTreeSet<u16> = (0..2_000).map(|_| free_port()).collect();
    assert_eq!(ports.len(), 2_000);
}
