//! Databases in another encoding than UTF-8: what has a meaning arrives as UTF-8, and what has none halts.

use super::SOON;
use crate::answers::{Answer, answer};
use crate::halted::run_to_halt;
use crate::pipeline::Pipeline;
use crate::server::{Client, Database, Version, brokers};
use crate::topic::ReadRecord;

/// A pipeline on a database in `encoding`, and the database, which goes away at the end.
async fn encoded(version: Version, encoding: &str) -> (Pipeline, Database) {
    let database = Database::create(version, "encoding").await;
    let admin = Client::connect(&version.variable("URL")).await.expect("a session");
    let name = &database.name;
    admin.batch(&format!("drop database {name}")).await;
    let locale = "template template0 lc_collate 'C' lc_ctype 'C'";
    admin.batch(&format!("create database {name} encoding '{encoding}' {locale}")).await;
    let pipeline = Pipeline::on(&database.socket_url(), &brokers(), "encoding").await;
    (pipeline, database)
}

const INSERT: &str =
    "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ";

#[tokio::test]
async fn latin1_arrives_as_utf8() {
    for version in Version::ALL {
        let (pipeline, _database) = encoded(version, "LATIN1").await;
        pipeline
            .sql
            .batch(&format!(
                "{INSERT}('order', 'caf\u{e9}', '\u{c4}nderung', '\"\u{bf}qu\u{e9}?\"')"
            ))
            .await;
        let relay = pipeline.run();
        let records = pipeline.topic.await_records(1, SOON).await;
        assert_eq!(records[0].key_text(), Some("caf\u{e9}"));
        assert_eq!(records[0].header("type"), Some("\u{c4}nderung"));
        assert_eq!(records[0].value_text(), Some("\"\u{bf}qu\u{e9}?\""));
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        answer("a database in LATIN1", &pipeline, Answer::published("published, in UTF-8"));
    }
}

#[tokio::test]
async fn sql_ascii_arrives_where_it_is_utf8_and_halts_where_it_is_not() {
    let (pipeline, _database) = encoded(Version::Pg17, "SQL_ASCII").await;
    pipeline.sql.batch(&format!("{INSERT}('order', 'caf\u{e9}', 'T', '1')")).await;
    pipeline
        .sql
        .batch(&format!("set client_encoding = 'SQL_ASCII'; {INSERT}('order', '1', E'\\xff', '2')"))
        .await;
    pipeline.sql.batch(&format!("{INSERT}('order', '1', 'T', '3')")).await;
    let halted = run_to_halt(&pipeline.config).await;
    halted.assert_says("PR016", &["22021"], &["docs/operations.md"]);
    assert!(!halted.message.contains("0xff"), "a value: {halted:#?}");
    let records = pipeline.topic.read_all().await;
    let keys: Vec<_> = records.iter().map(ReadRecord::key_text).collect();
    assert_eq!(keys, [Some("caf\u{e9}")], "what is before it, and nothing behind it");
    answer("a database in SQL_ASCII, text in UTF-8", &pipeline, Answer::published("published"));
    answer("a database in SQL_ASCII, bytes that are no text", &pipeline, &halted);
}
