//! The way of an event: from a committed row to the topic, in every layout, and from every kind of statement.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::server::Version;
use crate::topic::ReadRecord;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// The walking skeleton: one row, one record, its position confirmed after the report.
#[tokio::test]
async fn committed_row_is_in_the_topic_and_then_confirmed() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "skeleton").await;
        let relay = pipeline.run();
        relay.await_state("streaming", SOON).await;
        let before = pipeline.wal_end().await;
        pipeline.insert(1).await;
        let records = pipeline.topic.await_records(1, SOON).await;
        assert_eq!(records[0].key_text(), Some("1"));
        assert_eq!(records[0].value_text(), Some("1"));
        assert_eq!(records[0].header("id"), Some("1"));
        assert_eq!(records[0].header("type"), Some("Written"));
        let (history, commit_lsn, ordinal) = records[0].place().expect("a position");
        assert_eq!(ordinal, 0, "the first change of its transaction");
        assert_ne!(before, commit_lsn);
        // The Unix second of the pipeline's first start, which comes after that of setup.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let age = (now + 1).checked_sub(u64::from(history)).expect("a history of the past");
        assert!(age < 3600, "history {history} began {age} s ago");
        await_that("the confirmation", SOON, || pipeline.confirmed(&commit_lsn)).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// Values of one column type each, in all layouts: `(layout, insert, rows)`.
fn inserts(count: usize) -> Vec<(&'static str, String)> {
    let series = format!("from generate_series(1, {count}) i");
    let uuid = "lpad(to_hex(i % 1000), 32, '0')::uuid";
    let json = "json_build_object('n', i)";
    vec![
        (
            "postrider",
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers) \
                 select 'order', (i % 1000)::text, 'Made', {json}, '{{\"source\":\"shop\",\"n\":1}}' {series}"
            ),
        ),
        (
            "debezium",
            format!(
                "insert into outboxevent (id, aggregatetype, aggregateid, type, payload) \
                 select lpad(to_hex(i), 32, '0')::uuid, 'order', (i % 1000)::text, 'Made', {json} {series}"
            ),
        ),
        (
            "commerce",
            format!(
                "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, trace_id) \
                 select 7, 'Order', i % 1000, 'Made', {json}::jsonb, \
                 '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' {series}"
            ),
        ),
        (
            "gcx",
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, topic, partition_key, payload, headers) \
                 select 'Order', {uuid}, 'made', 'unused', (i % 1000)::text, {json}::jsonb, '{{\"source\":\"shop\"}}' \
                 {series}"
            ),
        ),
        (
            "sqlgarden",
            format!(
                "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) \
                 select 'Order', (i % 1000)::text, 'Made', {json}::jsonb {series}"
            ),
        ),
        (
            "adr30",
            format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload, metadata) \
                 select 'booking', {uuid}, 'booking.created', {json}::jsonb, '{{\"userId\":\"u1\"}}' {series}"
            ),
        ),
        (
            "pgtrickle",
            format!(
                "insert into outbox_changes (aggregate_type, aggregate_id, event_type, payload, inserted_count, \
                 deleted_count) select 'order', (i % 1000)::text, 'INSERT', {json}, 1, 0 {series}"
            ),
        ),
    ]
}

/// 100,000 rows in each of the seven layouts, read back by a consumer that knows nothing of us.
#[tokio::test]
async fn every_layout_arrives_whole_and_in_order() {
    const ROWS: usize = 100_000;
    for (layout, insert) in inserts(ROWS) {
        let pipeline = Pipeline::in_layout(Version::Pg15, layout, layout).await;
        let relay = pipeline.run();
        pipeline.sql.batch(&insert).await;
        let committed_ms = now_ms();
        let records = pipeline.topic.await_records(ROWS, Duration::from_mins(2)).await;
        assert_eq!(records.len(), ROWS, "{layout}: no more and no less");
        in_order(layout, &records);
        record_is_right(layout, &records[0], committed_ms);
        assert_eq!(relay.terminate(SOON).await.code, Some(0), "{layout}");
    }
}

/// In each aggregate the payload's number rises, and it starts at the aggregate's own first.
fn in_order(layout: &str, records: &[ReadRecord]) {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for record in records {
        let value: serde_json::Value =
            serde_json::from_slice(record.value.as_deref().expect("a payload")).expect("JSON");
        let number = value["n"].as_u64().expect("a number");
        let key = record.key_text().expect("a key");
        match last.insert(key, number) {
            Some(before) => {
                assert_eq!(number, before + 1000, "{layout} {key}: the next of its aggregate");
            }
            None => assert!(number <= 1000, "{layout} {key}: {number} is not its first"),
        }
    }
    assert_eq!(last.len(), 1000, "{layout}: as many aggregates as were written");
}

fn record_is_right(layout: &str, record: &ReadRecord, committed_ms: i64) {
    let names: Vec<&str> = record.headers.iter().map(|(name, _)| name.as_str()).collect();
    let wanted: &[&str] = match layout {
        "postrider" => &["id", "type", "position", "source", "n"],
        "debezium" => &["id"],
        "commerce" => {
            &["id", "type", "position", "tenant_id", "event_version", "traceparent", "source"]
        }
        "gcx" | "sqlgarden" | "pgtrickle" => &["id", "type", "position", "source"],
        "adr30" => &["id", "type", "position", "userId", "source"],
        other => panic!("no such layout: {other}"),
    };
    let sorted = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(sorted(&names), sorted(wanted), "{layout}");
    let stamp = record.timestamp.expect("a timestamp");
    assert!((committed_ms - stamp).abs() < 60_000, "{layout}: {stamp} beside {committed_ms}");
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(now.expect("a clock").as_millis()).expect("a date")
}

/// Whatever the statement, what is committed is published once and what is rolled back never is.
#[tokio::test]
async fn every_kind_of_statement_publishes_what_it_commits_and_nothing_else() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "statements").await;
        let relay = pipeline.run();
        let sql = &pipeline.sql;
        let row = |n: u32| format!("('order', 'a', 'T', '{n}')");
        let insert =
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ";
        sql.batch(&format!("begin; {insert}{}; rollback", row(100))).await;
        sql.batch(&format!(
            "begin; {insert}{}; savepoint s; {insert}{}; rollback to s; {insert}{}; commit",
            row(1),
            row(101),
            row(2)
        ))
        .await;
        sql.batch(&format!("{insert}{}, {}", row(3), row(4))).await;
        sql.batch(&format!("begin; {insert}{}; prepare transaction '{}'", row(5), pipeline.name))
            .await;
        sql.batch(&format!("commit prepared '{}'", pipeline.name)).await;
        sql.batch(&format!("begin; {insert}{}; delete from outbox; commit", row(6))).await;
        sql.batch(&format!("{insert}{}; update outbox set event_type = 'U'", row(7))).await;
        sql.batch("delete from outbox").await;
        sql.batch(&format!("{insert}{}", row(8))).await;
        sql.batch("truncate outbox").await;
        sql.batch(&format!("{insert}{}", row(9))).await;
        sql.batch("create table other (id int); insert into other values (1)").await;
        sql.batch(
            "copy outbox (aggregate_type, aggregate_id, event_type, payload) from program \
             'printf \"order\\ta\\tT\\t10\\norder\\ta\\tT\\t11\\n\"'",
        )
        .await;
        let records = pipeline.topic.await_records(11, SOON).await;
        let values: Vec<&str> = records.iter().filter_map(ReadRecord::value_text).collect();
        assert_eq!(values, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]);
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
    }
}

/// `published_total` of the only pipeline.
pub(crate) fn published(status: &serde_json::Value) -> u64 {
    let pipelines = status.as_array().or_else(|| status["pipelines"].as_array());
    let first = pipelines.and_then(|list| list.first()).unwrap_or(status);
    first["published_total"].as_u64().unwrap_or(0)
}

/// An idle outbox beside a busy table pins no WAL.
#[tokio::test]
async fn idle_outbox_keeps_up_beside_a_busy_table() {
    let pipeline = Pipeline::shared(Version::Pg15, "idle").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.sql.batch("create table busy (t text)").await;
    for _ in 0..20 {
        let sql = "insert into busy select repeat('x', 500) from generate_series(1, 4000)";
        pipeline.sql.batch(sql).await;
    }
    // Another transaction lets `restart_lsn` follow.
    pipeline.sql.batch("checkpoint").await;
    let end = pipeline.wal_end().await;
    await_that("confirmed_flush_lsn within 64 KiB of the end", Duration::from_secs(10), || async {
        let slot = pipeline.slot();
        let sql = format!(
            "select ('{end}'::pg_lsn - confirmed_flush_lsn <= 65536 and '{end}'::pg_lsn - restart_lsn <= 1048576)::text \
             || ' ' || confirmed_flush_lsn::text || ' ' || restart_lsn::text \
             from pg_replication_slots where slot_name = '{slot}'"
        );
        let seen = pipeline.sql.text(&sql).await.unwrap_or_default();
        if seen.starts_with("true") { Ok(()) } else { Err(format!("{seen}, end {end}")) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
