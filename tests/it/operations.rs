//! What the pages in `docs/operations` tell an operator to do, done as they say.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::private::PrivatePostgres;
use crate::server::{Client, Version, brokers};
use crate::topic::ReadRecord;

/// Runs until the pipeline halts with `code`; its log.
async fn halted(pipeline: &Pipeline, code: &str) -> String {
    let ended =
        crate::relay::Relay::spawn_with(&pipeline.config, &["--fail-fast"], &[]).ended(SOON).await;
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("code=\"{code}\"")), "{}", ended.stderr);
    ended.stderr
}

/// The word behind `marker` in a log.
fn word_after<'t>(log: &'t str, marker: &str) -> &'t str {
    let (_, rest) = log.rsplit_once(marker).expect("the marker");
    rest.split(|c: char| c.is_whitespace() || c == '"').next().expect("a word")
}

async fn arrived(pipeline: &Pipeline, values: &[&str]) {
    let relay = pipeline.run();
    let records = pipeline.topic.await_records(values.len(), SOON).await;
    let seen: Vec<&str> = records.iter().filter_map(ReadRecord::value_text).collect();
    assert_eq!(seen, values);
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Exactly one event is left out: not what stands before or behind it, in its own transaction or another.
#[tokio::test]
async fn an_event_that_can_not_be_published_is_passed_over_by_its_position() {
    for version in Version::ALL {
        let mut pipeline = Pipeline::shared(version, "passover").await;
        pipeline.config = pipeline.stops();
        let row = |n: u32, headers: &str| format!("('order', '1', 'T', '{n}', {headers})");
        let insert = "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) values ";
        for rows in [
            vec![row(1, "null"), row(2, "'[]'"), row(3, "null")],
            vec![row(4, "null")],
            vec![row(5, "'[]'"), row(6, "null")],
        ] {
            pipeline.sql.batch(&format!("{insert}{}", rows.join(", "))).await;
        }
        for _ in 0..2 {
            let log = halted(&pipeline, "PR011").await;
            let (lsn, ordinal) = word_after(&log, "\" at ").split_once(':').expect("a position");
            let sql = format!(
                "UPDATE postrider.cursor SET partial_commit_lsn = '{lsn}', partial_ordinal = {ordinal} + 1 \
                 WHERE pipeline = '{}'",
                pipeline.name
            );
            pipeline.sql.batch(&sql).await;
        }
        arrived(&pipeline, &["1", "3", "4", "6"]).await;
    }
}

/// A row that is not UTF-8 in a database that does not look: the server fails at it for ever.
#[tokio::test]
async fn a_transaction_that_can_not_be_decoded_is_passed_over_in_the_cursor_row() {
    let postgres = PrivatePostgres::start(Version::Pg15, "").await;
    let admin = postgres.connect().await;
    admin
        .batch(
            "create database ascii encoding 'SQL_ASCII' template template0 lc_collate 'C' lc_ctype 'C'",
        )
        .await;
    let pipeline = Pipeline::on(&postgres.url_of("ascii"), &brokers(), "ascii").await;
    pipeline.insert(1).await;
    let bad = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
               values ('order', '1', E'\\xff', '2')";
    pipeline.sql.batch(&format!("set client_encoding = 'SQL_ASCII'; {bad}")).await;
    pipeline.sql.batch(&bad.replace("E'\\xff', '2'", "'T', '3'")).await;
    let log = halted(&pipeline, "PR016").await;
    assert!(!log.contains("0xff"), "a value in the log: {log}");

    let at = postgres.log();
    let at = word_after(&at, "associated LSN ");
    let session = Client::connect(&pipeline.url).await.expect("a session");
    session.batch("create extension pg_walinspect").await;
    let end = format!(
        "SELECT w.end_lsn::text FROM pg_get_wal_record_info('{at}') AS change, \
         pg_get_wal_records_info('{at}', pg_current_wal_flush_lsn()) AS w \
         WHERE w.xid = change.xid AND w.resource_manager = 'Transaction' AND w.record_type LIKE 'COMMIT%'"
    );
    let end = session.text(&end).await.expect("the end of the transaction");
    let sql = format!(
        "UPDATE postrider.cursor SET watermark = '{end}', flush_limit = '{end}', partial_commit_lsn = NULL, \
         partial_ordinal = NULL WHERE pipeline = '{}'",
        pipeline.name
    );
    session.batch(&sql).await;
    arrived(&pipeline, &["1", "3"]).await;
    let wal_end = pipeline.wal_end().await;
    let relay = pipeline.run();
    pipeline.insert(1).await;
    await_that("the slot to move on", SOON, || pipeline.confirmed(&wal_end)).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
