//! Records that are gone: a partition waits for a person, and the others go on.

use super::*;
use crate::private::PrivateKafka;
use crate::relay::{postrider, postrider_ok};
use crate::server::brokers;
use crate::topic::Topics;
use rdkafka::admin::AdminOptions;
use rdkafka::{Offset, TopicPartitionList};

async fn delete_records(topic: &Topic, partition: i32, before: i64) {
    let admin = crate::topic::admin(&topic.brokers);
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic.name, partition, Offset::Offset(before)).expect("an offset");
    admin.delete_records(&list, &AdminOptions::new()).await.expect("an answer");
}

fn blocked(intake: &serde_json::Value) -> (String, String, String) {
    let of = |key: &str| intake["blocked"][0][key].as_str().unwrap_or_default().to_owned();
    (of("code"), of("reason"), of("hint"))
}

/// Marks of transactions, and records of aborted ones, have offsets: they are not missing when retention deletes them.
#[tokio::test]
async fn marks_of_transactions_that_retention_deletes_block_nothing() {
    let world = World::create(Version::Pg16, "intake_marks").await;
    let topics = Topics::new(&brokers(), "intake_marks");
    let topic = topics.create("numbers", 1).await;
    super::records::write_in_transactions(&topic, &[(1, true), (2, true), (3, false)]).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    // Two records, an aborted one, and three marks.
    let next = "select next_offset::text from postrider.inbox_offset";
    await_answer(&world.sql, next, "6", &relay).await;
    await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
    relay.kill().await;
    delete_records(&topic, 0, 6).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    write_numbers(&topic, 3..=3, |_| "k".to_owned()).await;
    await_answer(&world.sql, COUNT, "3", &relay).await;
    let intake = await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
    assert_eq!(intake["blocked_total"], 0);
    assert_eq!(faults(&world.sql, 3).await, "");
}

#[tokio::test]
async fn records_that_were_deleted_before_they_were_stored_block_their_partition_alone() {
    let world = World::create(Version::Pg18, "intake_deleted").await;
    let topics = Topics::new(&brokers(), "intake_deleted");
    let topic = topics.create("numbers", 2).await;
    let to = |partition: i32, count: usize| {
        let topic = topic.clone();
        async move {
            let record = Written {
                partition: Some(partition),
                key: Some(b"k"),
                value: Some(b"{}"),
                headers: &[],
            };
            write(&topic, &vec![record; count]).await;
        }
    };
    to(0, 5).await;
    to(1, 5).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "10", &relay).await;
    relay.kill().await;
    to(0, 7).await;
    to(1, 3).await;
    delete_records(&topic, 0, 9).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    // Partition 1 goes on.
    await_answer(&world.sql, COUNT, "13", &relay).await;
    let intake = await_intake(&relay, "blocked", |it| it["blocked_total"] == 1).await;
    let (code, reason, hint) = blocked(&intake);
    assert_eq!(code, "records_deleted");
    assert_eq!(
        reason,
        "up to 4 records from offset 5 on were deleted before they were stored; the oldest one has offset 9"
    );
    let command =
        format!("postrider inbox seek jobs --topic {} --partition 0 --to earliest", topic.name);
    assert!(hint.contains("without up to 4 records") && hint.contains(&command), "{hint}");
    let (ready, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!((ready, why.as_str()), (503, "jobs: 1 partitions are blocked\n"));
    relay.await_log("is not read until a person decides", SOON).await;
    let seek = |to: &str| {
        let words =
            ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0", "--to", to];
        postrider(&world.config(&topic, ""), &[&words[..], &["--yes", "--json"]].concat())
    };
    let outside = seek("5");
    let said = String::from_utf8_lossy(&outside.stderr).into_owned();
    assert_eq!(outside.status.code(), Some(2), "{said}");
    assert!(said.contains("offset 5 is not in the log, which has offsets 9 to 12"), "{said}");
    let words = ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0"];
    let asked = postrider(&world.config(&topic, ""), &[&words[..], &["--to", "earliest"]].concat());
    let asked = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(asked.contains("up to 4 records were deleted before they were stored"), "{asked}");
    let sought: serde_json::Value = serde_json::from_slice(&seek("earliest").stdout).expect("JSON");
    assert_eq!((&sought["from"], &sought["to"]), (&5.into(), &9.into()));
    assert_eq!((&sought["not_stored"], &sought["read_again"]), (&0.into(), &0.into()));
    assert_eq!((&sought["gone"], &sought["maybe_replaced"]), (&4.into(), &0.into()));
    await_answer(&world.sql, COUNT, "16", &relay).await;
    await_intake(&relay, "not blocked", |it| it["blocked_total"] == 0).await;
    assert_eq!(relay.get("/ready").await.expect("an answer").0, 200);
}

/// A topic of which five records were stored, before it was deleted and created again with these numbers.
async fn created_again(
    world: &World,
    topics: &Topics,
    numbers: std::ops::RangeInclusive<u64>,
) -> Topic {
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=5, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "5", &relay).await;
    relay.kill().await;
    topic.delete().await;
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, numbers, |_| "k".to_owned()).await;
    topic
}

#[tokio::test]
async fn a_topic_that_was_created_again_is_not_read_at_the_offsets_of_the_former_one() {
    let world = World::create(Version::Pg17, "intake_again").await;
    let topics = Topics::new(&brokers(), "intake_again");
    let topic = created_again(&world, &topics, 6..=15).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    let intake = await_intake(&relay, "blocked", |it| it["state"] == "blocked").await;
    let (code, reason, hint) = blocked(&intake);
    assert_eq!(code, "other_topic");
    assert!(reason.contains("the stored offset 5 is of the former topic"), "{reason}");
    assert!(hint.contains("up to 10 records of the new topic"), "{hint}");
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("5"));
    let words =
        ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0", "--to", "earliest"];
    let asked = postrider(&world.config(&topic, ""), &words);
    assert_eq!(asked.status.code(), Some(2), "it asks, and there is no terminal");
    assert!(String::from_utf8_lossy(&asked.stderr).contains("the topic was created again since"));
    postrider_ok(&world.config(&topic, ""), &[&words[..], &["--yes"]].concat());
    // The new records have the offsets of the former ones, and are other messages: they have an id of their own.
    await_answer(
        &world.sql,
        "select max((payload ->> 'n')::int) from postrider_inbox.jobs",
        "15",
        &relay,
    )
    .await;
    assert_eq!(faults(&world.sql, 15).await, "");
}

#[tokio::test]
async fn a_partition_whose_records_are_deleted_while_it_is_read_is_blocked_too() {
    let world = World::create(Version::Pg16, "intake_behind").await;
    let topics = Topics::new(&brokers(), "intake_behind");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=5, |_| "k".to_owned()).await;
    let more = "[inboxes.jobs.message]\n";
    let config =
        world.config(&topic, more).replace("[inboxes.jobs]\n", "[inboxes.jobs]\npending_max = 5\n");
    let relay = Relay::spawn_intake(&config);
    await_intake_state(&relay, "full").await;
    write_numbers(&topic, 6..=20, |_| "k".to_owned()).await;
    delete_records(&topic, 0, 12).await;
    world.sql.batch("update postrider_inbox.jobs set processed_at = now()").await;
    let intake = await_intake(&relay, "blocked", |it| it["blocked_total"] == 1).await;
    assert_eq!(blocked(&intake).0, "records_deleted");
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("5"));
}

#[tokio::test]
async fn an_intake_waits_while_the_inbox_is_full_and_stays_in_the_group() {
    let world = World::create(Version::Pg15, "intake_full").await;
    let topics = Topics::new(&brokers(), "intake_full");
    let topic = topics.create("numbers", 1).await;
    let config = world
        .config(&topic, "")
        .replace("[inboxes.jobs]\n", "[inboxes.jobs]\npending_max = 100\nbatch = 10\n");
    let relay = Relay::spawn_intake(&config);
    await_intake(&relay, "one partition", |it| it["partitions"] == 1).await;
    write_numbers(&topic, 1..=100, |_| "k".to_owned()).await;
    let intake = await_intake_state(&relay, "full").await;
    assert_eq!(intake["pending"], 100);
    assert!(intake["hint"].as_str().is_some_and(|hint| hint.contains("pending_max")));
    write_numbers(&topic, 101..=150, |_| "k".to_owned()).await;
    world.sql.batch("update postrider_inbox.jobs set processed_at = now()").await;
    await_answer(&world.sql, COUNT, "150", &relay).await;
    assert_eq!(faults(&world.sql, 150).await, "");
}

/// A tenth of a small number too.
#[tokio::test]
async fn an_intake_goes_on_when_a_tenth_of_a_small_inbox_is_processed() {
    let world = World::create(Version::Pg17, "intake_tenth").await;
    let topics = Topics::new(&brokers(), "intake_tenth");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=20, |_| "k".to_owned()).await;
    let small = "[inboxes.jobs]\npending_max = 10\nbatch = 1\n";
    let config = world.config(&topic, "").replace("[inboxes.jobs]\n", small);
    let relay = Relay::spawn_intake(&config);
    await_intake_state(&relay, "full").await;
    // How many are stored until the next count is a matter of speed: all but nine are processed.
    let leave = "update postrider_inbox.jobs set processed_at = now() where processed_at is null and seq not in
        (select seq from postrider_inbox.jobs where processed_at is null order by seq limit 8)";
    world.sql.batch(leave).await;
    await_intake(&relay, "going on, or all stored", |it| {
        it["state"] == "storing" || it["stored_total"] == 20
    })
    .await;
}

/// The broker loses its newest records, and others get their offsets: it says so when a fetch begins at the stored one.
#[tokio::test]
async fn a_log_that_was_truncated_blocks_its_partition_until_a_person_has_decided() {
    let world = World::create(Version::Pg16, "intake_truncated").await;
    let mut kafka = PrivateKafka::start("").await;
    let topics = Topics::new(&kafka.brokers(), "intake_truncated");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=10, |_| "k".to_owned()).await;
    kafka.stop().await;
    let saved = kafka.saved();
    // Each start is another epoch of the leader.
    kafka.restart().await;
    write_numbers(&topic, 11..=20, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "20", &relay).await;
    relay.kill().await;
    kafka.stop().await;
    kafka.restore(&saved);

    kafka.restart().await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    let shorter = await_intake(&relay, "blocked", |it| it["blocked_total"] == 1).await;
    assert_eq!(blocked(&shorter).0, "log_shorter");
    let (_, reason, hint) = blocked(&shorter);
    assert!(reason.contains("below offset 10 may be other ones"), "{reason}");
    assert!(hint.contains("up to 10 records from offset 10 on"), "{hint}");
    assert!(hint.contains("--to OFFSET. To pass over them, which are up to 10 records"), "{hint}");
    let passes_over = |count: &str, end: &str| {
        let words = ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0"];
        let words = [&words[..], &["--to", "latest"]].concat();
        let asked = postrider(&world.config(&topic, ""), &words);
        let asked = String::from_utf8_lossy(&asked.stderr).into_owned();
        let expected = format!("up to {count} records before offset {end} may be other ones");
        assert!(asked.contains(&expected), "{asked}");
    };
    passes_over("10", "10");
    relay.kill().await;
    kafka.stop().await;
    kafka.restart().await;
    write_numbers(&topic, 21..=45, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    let truncated = await_intake(&relay, "blocked", |it| it["blocked_total"] == 1).await;
    assert_eq!(blocked(&truncated).0, "log_truncated");
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("20"));
    passes_over("20", "20");
    assert_eq!(first_replaced(&world, &topic).await, 10);
    // To the first record that was replaced: those with the same offsets are other messages.
    let words = ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0", "--to", "10"];
    postrider_ok(&world.config(&topic, ""), &[&words[..], &["--yes"]].concat());
    await_answer(&world.sql, COUNT, "45", &relay).await;
    assert_eq!(faults(&world.sql, 45).await, "");
}

#[tokio::test]
async fn a_seek_on_a_topic_without_new_records_is_noticed_within_seconds() {
    let world = World::create(Version::Pg18, "intake_seek").await;
    let topics = Topics::new(&brokers(), "intake_seek");
    let topic = topics.create("numbers", 2).await;
    write_numbers(&topic, 1..=40, |n| (n % 7).to_string()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "40", &relay).await;
    let first = "select next_offset from postrider.inbox_offset where part = 0";
    let records: u64 = world.sql.text(first).await.expect("an offset").parse().expect("a number");
    assert!(records > 0);
    let words =
        ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0", "--to", "earliest"];
    postrider_ok(&world.config(&topic, ""), &[&words[..], &["--yes"]].concat());
    let start = std::time::Instant::now();
    // Its records are read again, and are known.
    await_intake(&relay, "repeats", |it| it["repeated_total"] == records).await;
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    relay.await_log("has changed the stored offsets", SOON).await;
    // The same inbox, dropped and created again: it is filled again without a new record.
    world
        .sql
        .batch(
            "select postrider.drop_inbox('jobs'); drop table if exists postrider_inbox.jobs;
             select postrider.create_inbox('jobs')",
        )
        .await;
    await_answer(&world.sql, COUNT, "40", &relay).await;
}

/// The first offset of a topic whose record is another one than the stored one: by the query of the page, and by the
/// times of the records that the topic has.
async fn first_replaced(world: &World, topic: &Topic) -> i64 {
    let blocks = crate::docs_commands::blocks::of("docs/sql/inbox-run.md");
    let query = blocks.into_iter().find(|block| block.language == "sql").expect("the query").text;
    assert!(query.contains("postrider_inbox.mail") && query.contains("'orders'"), "{query}");
    let query = query.replace("postrider_inbox.mail", "postrider_inbox.jobs");
    let query = query.replace("'orders'", &format!("'{}'", topic.name)).replace("= 3", "= 0");
    let rows = world.sql.query(query.trim().trim_end_matches(';'), &[]).await.expect("the query");
    let stored = rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, Option<i64>>(1)));
    let there = topic.read_all().await;
    let is_other = |(offset, time): &(i64, Option<i64>)| {
        there.iter().any(|record| record.offset == *offset && record.timestamp != *time)
    };
    stored.filter(is_other).map(|(offset, _)| offset).min().expect("a record that was replaced")
}

/// The decision may be to go on at the same offset.
#[tokio::test]
async fn a_seek_to_the_same_offset_of_a_new_topic_is_a_decision_too() {
    let world = World::create(Version::Pg15, "intake_same").await;
    let topics = Topics::new(&brokers(), "intake_same");
    let topic = created_again(&world, &topics, 1..=9).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_intake(&relay, "blocked", |it| it["state"] == "blocked").await;
    let words = ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0", "--to", "5"];
    postrider_ok(&world.config(&topic, ""), &[&words[..], &["--yes"]].concat());
    await_answer(&world.sql, COUNT, "9", &relay).await;
    assert_eq!(faults(&world.sql, 9).await, "");
}
