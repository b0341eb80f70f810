//! Several processes, zombies, and kills of all parties.

use super::*;
use crate::private::{PrivateKafka, PrivatePostgres, Signal};
use crate::server::brokers;
use crate::topic::Topics;
use std::time::Instant;
use tokio::task::JoinSet;

#[tokio::test]
async fn a_process_that_was_frozen_and_has_lost_its_partitions_stores_nothing_twice() {
    let world = World::create(Version::Pg18, "intake_zombie").await;
    let topics = Topics::new(&brokers(), "intake_zombie");
    let topic = topics.create("numbers", 4).await;
    let first = Relay::spawn_intake(&world.config(&topic, ""));
    let second = Relay::spawn_intake(&world.config(&topic, ""));
    for relay in [&first, &second] {
        await_intake(relay, "two partitions", |it| it["partitions"] == 2).await;
    }
    write_numbers(&topic, 1..=1000, |n| (n % 50).to_string()).await;
    first.signal(Signal::Stop);
    write_numbers(&topic, 1001..=2000, |n| (n % 50).to_string()).await;
    // The group gives its partitions to the other one.
    await_intake(&second, "four partitions", |it| it["partitions"] == 4).await;
    await_answer(&world.sql, COUNT, "2000", &second).await;
    first.signal(Signal::Cont);
    write_numbers(&topic, 2001..=3000, |n| (n % 50).to_string()).await;
    for relay in [&first, &second] {
        await_intake(relay, "two partitions", |it| it["partitions"] == 2).await;
    }
    await_answer(&world.sql, COUNT, "3000", &second).await;
    assert_eq!(faults(&world.sql, 3000).await, "");
}

#[tokio::test]
async fn two_groups_that_read_one_topic_into_one_inbox_store_each_record_once() {
    let world = World::create(Version::Pg16, "intake_groups").await;
    let topics = Topics::new(&brokers(), "intake_groups");
    let topic = topics.create("numbers", 2).await;
    let first = Relay::spawn_intake(&world.config(&topic, ""));
    let other = world.config(&topic, "").replace("group = \"", "group = \"other-");
    let second = Relay::spawn_intake(&other);
    for chunk in 0..5 {
        write_numbers(&topic, chunk * 200 + 1..=chunk * 200 + 200, |n| (n % 9).to_string()).await;
    }
    await_answer(&world.sql, COUNT, "1000", &first).await;
    for relay in [&first, &second] {
        await_intake(relay, "no lag", |it| it["lag_records"] == 0).await;
    }
    assert_eq!(faults(&world.sql, 1000).await, "");
}

/// Records that are written while intakes, the database and the broker are killed.
async fn through_kills(records: u64, name: &str, seconds: Duration) {
    let mut server =
        PrivatePostgres::start(Version::Pg17, "fsync = on\nfull_page_writes = on\n").await;
    create_inbox(&server.connect().await).await;
    let mut kafka = PrivateKafka::start("").await;
    let topics = Topics::new(&kafka.brokers(), name);
    let topic = topics.create("numbers", 6).await;
    let writing = topic.clone();
    let mut writer = JoinSet::new();
    writer.spawn(async move {
        const CHUNK: u64 = 5_000;
        let mut from = 1;
        while from <= records {
            let to = (from + CHUNK - 1).min(records);
            write_numbers(&writing, from..=to, |n| (n % 1000).to_string()).await;
            from = to + 1;
        }
    });
    let mut is_written = false;
    let config = config(&server.url(), &topic.brokers, &topic.name, "");
    let mut intakes = vec![Relay::spawn_intake(&config), Relay::spawn_intake(&config)];
    let (start, mut kills) = (Instant::now(), [0; 3]);
    let mut pauses = tokio::time::interval(Duration::from_secs(3));
    pauses.tick().await;
    for round in 0.. {
        pauses.tick().await;
        if let Some(ended) = writer.try_join_next() {
            ended.expect("the writer");
            is_written = true;
        }
        if start.elapsed() > seconds && is_written {
            break;
        }
        match round % 4 {
            0 | 2 => {
                kills[0] += 1;
                intakes.remove(0).kill().await;
                intakes.push(Relay::spawn_intake(&config));
            }
            1 => {
                kills[1] += 1;
                server.kill().await;
                server.restart().await;
            }
            _ => {
                kills[2] += 1;
                kafka.kill().await;
                kafka.restart().await;
            }
        }
    }
    let sql = server.connect().await;
    let log = &intakes[1];
    let look = || async {
        let now = sql.text(COUNT).await.unwrap_or_default();
        if now == records.to_string() { Ok(()) } else { Err(now) }
    };
    await_or_dump(&format!("{records} messages"), 2 * SOON, look, || log.stderr()).await;
    assert_eq!(faults(&sql, records).await, "");
    let [of_intakes, of_server, of_broker] = kills;
    #[expect(clippy::print_stdout, reason = "the figures of the run")]
    {
        println!(
            "{records} records in {:.0} s, each stored once and in order; killed: {of_intakes} intakes, the database \
             {of_server} times, the broker {of_broker} times",
            start.elapsed().as_secs_f64()
        );
    }
}

#[tokio::test]
async fn each_record_is_stored_once_through_kills_of_all_three() {
    through_kills(20_000, "intake_kills", Duration::from_secs(12)).await;
}

/// For `scripts/test long`.
#[tokio::test]
#[ignore = "a million records: scripts/test long"]
async fn a_million_records_through_kills_of_all_three() {
    through_kills(1_000_000, "intake_million", Duration::from_mins(2)).await;
}
