//! Copies of a topic with planted faults, and topics in which something else has happened.

use super::*;
use crate::sink_caller::alter;
use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};

#[tokio::test]
async fn one_removed_one_swapped_and_one_repeated_are_found_and_nothing_else() {
    for version in Version::ALL {
        let pipeline = published(version, "verify_planted", 100).await;
        let records = pipeline.topic.read_all().await;
        let copy = another_topic(&pipeline, "copy").await;
        let config = with_topic(&pipeline, &copy);
        let mut planted = records.clone();
        // One repeated, at the end of its partition.
        let repeated = planted[2].clone();
        let (before, after) = neighbours(&planted, 20);
        planted.swap(before, after);
        planted.push(repeated.clone());
        let removed = planted.remove(60);
        write(&copy, planted).await;
        let (code, value) = verify(&config, &[]);
        let expected = [("published", 99), ("lost", 1), ("swapped", 1), ("repeated", 1)];
        assert_eq!((code, found(&value)), (Some(1), counts(&expected)), "{value:#}");
        assert_eq!(value["faults"], Value::from(vec!["lost", "swapped"]));
        let example = |name: &str, key: &str| value["examples"][name][0][key].clone();
        assert_eq!(example("lost", "id").as_str(), removed.header("id"));
        // The earlier event is behind the later one.
        assert_eq!(example("swapped", "id").as_str(), records[before].header("id"));
        assert_eq!(example("swapped", "behind_id").as_str(), records[after].header("id"));
        assert_eq!(example("repeated", "id").as_str(), repeated.header("id"));
        assert_eq!(example("repeated", "partition"), repeated.partition);
        assert!(value["examples"].as_object().is_some_and(|all| all.len() == 3), "{value:#}");
        let text = String::from_utf8(postrider(&config, &["verify"]).stdout).expect("text");
        assert!(text.contains("faults found: 1 lost, 1 swapped"), "{text}");
        assert!(!text.contains("Written"), "neither payloads nor types: {text}");
    }
}

#[tokio::test]
async fn repetitions_are_counted_and_a_fault_only_where_they_must_not_be() {
    let pipeline = published(Version::Pg17, "verify_repeats", 50).await;
    let records = pipeline.topic.read_all().await;
    let copy = another_topic(&pipeline, "copy").await;
    let config = with_topic(&pipeline, &copy);
    // As after a crash: the end of each partition again.
    let again = records.iter().filter(|record| record.offset >= 2).cloned();
    let repeated = again.clone().count() as u64;
    write(&copy, records.iter().cloned().chain(again).collect()).await;
    let expected = counts(&[("published", 50), ("repeated", repeated)]);
    let (code, value) = verify(&config, &[]);
    assert_eq!((code, found(&value)), (Some(0), expected.clone()), "{value:#}");
    let (code, value) = verify(&config, &["--no-repeats"]);
    assert_eq!((code, found(&value)), (Some(1), expected.clone()), "{value:#}");
    assert_eq!(value["faults"], Value::from(vec!["repeated"]));
    let exactly =
        config.replace("kind = \"kafka\"\n", "kind = \"kafka\"\ndelivery = \"exactly-once\"\n");
    assert_ne!(exactly, config);
    let (code, value) = verify(&exactly, &[]);
    assert_eq!((code, &value["faults"]), (Some(1), &Value::from(vec!["repeated"])), "{value:#}");
}

#[tokio::test]
async fn records_of_other_writers_are_counted_and_are_no_fault() {
    let pipeline = published(Version::Pg15, "verify_others", 30).await;
    let mut records = vec![
        foreign(&[]),
        foreign(&[("id", "no such event")]),
        foreign(&[("id", "1"), ("source", "another pipeline")]),
    ];
    // A header whose value is no text.
    records[0].headers.push(("id".to_owned(), Some(vec![0xff, 0xfe])));
    records.push(ReadRecord { headers: vec![("id".to_owned(), None)], ..foreign(&[]) });
    write(&pipeline.topic, records).await;
    let (code, value) = verify(&pipeline.config, &["--no-repeats"]);
    let expected =
        [("published", 30), ("without_id", 2), ("not_in_source", 1), ("other_source", 1)];
    assert_eq!((code, found(&value)), (Some(0), counts(&expected)), "{value:#}");
    // An event whose row was deleted.
    pipeline.sql.batch("delete from outbox where id = 7").await;
    let (code, value) = verify(&pipeline.config, &[]);
    let expected =
        [("published", 29), ("without_id", 2), ("not_in_source", 2), ("other_source", 1)];
    assert_eq!((code, found(&value)), (Some(0), counts(&expected)), "{value:#}");
}

#[tokio::test]
async fn a_record_with_another_key_is_not_taken_for_the_event() {
    let pipeline = published(Version::Pg17, "verify_keys", 20).await;
    let mut records = pipeline.topic.read_all().await;
    let copy = another_topic(&pipeline, "copy").await;
    records[4].key = Some(b"another".to_vec());
    let id = records[4].header("id").map(str::to_owned);
    write(&copy, records).await;
    let (code, value) = verify(&with_topic(&pipeline, &copy), &[]);
    let expected = counts(&[("published", 19), ("different", 1)]);
    assert_eq!((code, found(&value)), (Some(1), expected), "{value:#}");
    assert_eq!(value["examples"]["different"][0]["id"].as_str(), id.as_deref());
}

#[tokio::test]
async fn records_of_an_aborted_transaction_are_not_there() {
    let pipeline = published(Version::Pg17, "verify_aborted", 40).await;
    let records = pipeline.topic.read_all().await;
    let copy = another_topic(&pipeline, "copy").await;
    let config = with_topic(&pipeline, &copy);
    let (first, rest) = records.split_at(10);
    write_with(&copy, first.to_vec(), Some(false)).await;
    write_with(&copy, rest.to_vec(), Some(true)).await;
    let (code, value) = verify(&config, &["--no-repeats", "--examples", "3"]);
    let expected = counts(&[("published", 30), ("lost", 10)]);
    assert_eq!((code, found(&value)), (Some(1), expected), "{value:#}");
    assert_eq!(value["examples"]["lost"].as_array().map(Vec::len), Some(3));
    // Marks of transactions have offsets, and are no records.
    assert_eq!(value["records"]["total"], 30);
    // Published again: each partition has its events in order.
    write(&copy, first.to_vec()).await;
    let (_, value) = verify(&config, &["--no-repeats"]);
    assert_eq!(found(&value).get("lost"), None, "{value:#}");
    assert_eq!(found(&value).get("published"), Some(&40), "{value:#}");
}

#[tokio::test]
async fn what_is_missing_in_a_compacted_topic_is_unproven() {
    let pipeline = published(Version::Pg17, "verify_compacted", 30).await;
    let records = pipeline.topic.read_all().await;
    let copy = another_topic(&pipeline, "copy").await;
    alter(&copy, "cleanup.policy", "compact").await;
    let config = with_topic(&pipeline, &copy);
    write(&copy, records[1..].to_vec()).await;
    let (code, value) = verify(&config, &[]);
    let expected = counts(&[("published", 29), ("unproven", 1)]);
    assert_eq!((code, found(&value)), (Some(1), expected.clone()), "{value:#}");
    assert_eq!(value["topics"][0]["compacted"], true);
    let (code, value) = verify(&config, &["--allow-unproven"]);
    assert_eq!((code, found(&value)), (Some(0), expected), "{value:#}");
    assert!(value["notes"].to_string().contains("is compacted"), "{value:#}");
}

#[tokio::test]
async fn behind_a_removed_beginning_what_was_removed_is_unproven_and_what_is_missing_later_is_lost()
{
    let pipeline = published(Version::Pg18, "verify_truncated", 100).await;
    let records = pipeline.topic.read_all().await;
    let copy = another_topic(&pipeline, "copy").await;
    let config = with_topic(&pipeline, &copy);
    // The last event of the partition with the most of them.
    let last = records.iter().rposition(|record| record.offset > 8).expect("a partition with more");
    let removed = records[last].clone();
    let kept = records.iter().enumerate().filter(|(at, _)| *at != last);
    write(&copy, kept.map(|(_, record)| record.clone()).collect()).await;
    let admin = crate::topic::admin(&copy.brokers);
    let mut beginning = TopicPartitionList::new();
    let partition = removed.partition;
    beginning.add_partition_offset(&copy.name, partition, Offset::Offset(3)).expect("an offset");
    admin.delete_records(&beginning, &AdminOptions::new()).await.expect("an answer");
    let (code, value) = verify(&config, &[]);
    let expected = counts(&[("published", 96), ("unproven", 3), ("lost", 1)]);
    assert_eq!((code, found(&value)), (Some(1), expected), "{value:#}");
    assert_eq!(value["examples"]["lost"][0]["id"].as_str(), removed.header("id"));
    assert!(value["notes"].to_string().contains("the beginning of 1 of 8 partitions"), "{value:#}");
}

#[tokio::test]
async fn a_topic_that_does_not_exist_has_lost_everything() {
    let pipeline = published(Version::Pg16, "verify_missing", 10).await;
    let none =
        Topic { brokers: pipeline.topic.brokers.clone(), name: format!("{}.none", pipeline.name) };
    let (code, value) = verify(&with_topic(&pipeline, &none), &[]);
    assert_eq!((code, found(&value)), (Some(1), counts(&[("lost", 10)])), "{value:#}");
    assert_eq!(value["topics"][0]["exists"], false);
    // Where the events went before the setting was changed.
    let old = ["--topic", pipeline.topic.name.as_str()];
    let (code, value) = verify(&with_topic(&pipeline, &none), &old);
    assert_eq!((code, found(&value)), (Some(0), counts(&[("published", 10)])), "{value:#}");
}
