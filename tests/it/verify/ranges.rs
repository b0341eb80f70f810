//! Parts of what was published: by time, by position, by offset.

use super::*;
use crate::server::Client;

/// A time between what was inserted before and what is inserted later.
async fn time(sql: &Client) -> String {
    sql.batch("select pg_sleep(0.01)").await;
    let time = sql.text("select clock_timestamp()::text").await.expect("a time");
    sql.batch("select pg_sleep(0.01)").await;
    time
}

#[tokio::test]
async fn a_range_of_time_has_its_events_alone_also_of_a_removed_record() {
    let pipeline = Pipeline::shared(Version::Pg17, "verify_time").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(20).await;
    let since = time(&pipeline.sql).await;
    pipeline.insert(30).await;
    let until = time(&pipeline.sql).await;
    pipeline.insert(10).await;
    let records = pipeline.topic.await_records(60, SOON).await;
    await_resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let range = ["--since", since.as_str(), "--until", until.as_str()];
    let (code, value) = verify(&pipeline.config, &range);
    assert_eq!((code, &value["events"]["total"]), (Some(0), &Value::from(30)), "{value:#}");
    assert_eq!(value["events"]["by_finding"]["published"], 30, "{value:#}");
    // The records of before are not read.
    assert!(value["records"]["total"].as_u64() < Some(60), "{value:#}");

    let copy = another_topic(&pipeline, "copy").await;
    let number = |record: &ReadRecord| record.header("id").unwrap().parse::<u32>().unwrap();
    let kept = records.iter().filter(|record| number(record) != 25 && number(record) != 5);
    write(&copy, kept.cloned().collect()).await;
    let config = with_topic(&pipeline, &copy);
    let (code, value) = verify(&config, &range);
    assert_eq!((code, &value["faults"]), (Some(1), &Value::from(vec!["lost"])), "{value:#}");
    assert_eq!(value["examples"]["lost"][0]["id"], "25", "{value:#}");
    let (code, value) = verify(&config, &["--since", &until]);
    assert_eq!((code, &value["events"]["total"]), (Some(0), &Value::from(10)), "{value:#}");
}

/// The record of an event may be older than its row: what is missing is looked for in the part of before too.
#[tokio::test]
async fn an_event_that_was_published_with_an_earlier_time_is_found() {
    let pipeline = published(Version::Pg17, "verify_earlier", 20).await;
    let since = time(&pipeline.sql).await;
    let relay = pipeline.run();
    let later = "update outbox set created_at = now() + interval '1 day' where id = 3";
    pipeline.sql.batch(later).await;
    await_resolved(&pipeline).await;
    let (code, value) = verify(&pipeline.config, &["--since", &since]);
    assert_eq!((code, found(&value)), (Some(0), counts(&[("published", 1)])), "{value:#}");
    let copy = another_topic(&pipeline, "copy").await;
    let (code, value) = verify(&with_topic(&pipeline, &copy), &["--since", &since]);
    assert_eq!((code, found(&value)), (Some(1), counts(&[("lost", 1)])), "{value:#}");
    relay.terminate(SOON).await;
}

#[tokio::test]
async fn a_range_of_positions_or_offsets_has_its_records_alone() {
    let pipeline = Pipeline::shared(Version::Pg18, "verify_lsn").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    pipeline.insert(20).await;
    pipeline.topic.await_records(20, SOON).await;
    let from = pipeline.wal_end().await;
    pipeline.insert(30).await;
    let records = pipeline.topic.await_records(50, SOON).await;
    await_resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let (code, value) = verify(&pipeline.config, &["--lsn", &format!("{from}..")]);
    let expected = counts(&[("published", 30), ("outside_range", 20)]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");
    let (code, value) = verify(&pipeline.config, &["--lsn", &format!("..{from}")]);
    let expected = counts(&[("published", 20), ("outside_range", 30)]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");

    let first = &records[0];
    let part = format!("{}:{}:0..2", pipeline.topic.name, first.partition);
    let (code, value) = verify(&pipeline.config, &["--offsets", &part]);
    let expected = counts(&[("published", 2), ("not_judged", 48)]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");
    assert_eq!(value["records"]["total"], 2);
    let none = format!("{}:99:0..2", pipeline.topic.name);
    let output = postrider(&pipeline.config, &["verify", "--offsets", &none]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("has no partition 99"), "{errors}");
}

#[tokio::test]
async fn more_events_than_the_memory_has_room_for_are_refused() {
    let pipeline = Pipeline::shared(Version::Pg17, "verify_memory").await;
    pipeline.insert(3000).await;
    let output = postrider(&pipeline.config, &["verify", "--memory", "200KiB"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("take more memory than") && errors.contains("raise --memory"),
        "{errors}"
    );
}
