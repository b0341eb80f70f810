//! Where partitions begin, in which cluster, and what becomes of those about which the brokers have no answer.

use super::*;
use crate::private::PrivateKafka;
use crate::relay::postrider_ok;
use crate::server::brokers;
use crate::topic::{Topics, create_topic};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The intake of a world that begins with the newest records.
fn latest(config: &str) -> String {
    config.replace("[inboxes.jobs.source]\n", "[inboxes.jobs.source]\nstart = \"latest\"\n")
}

/// Writes a record to each of the partitions.
async fn write_to_each(topic: &Topic, partitions: std::ops::Range<i32>, count: usize) {
    for partition in partitions {
        let value = Some(&b"{}"[..]);
        let record =
            Written { partition: Some(partition), key: Some(b"k"), value, ..Written::default() };
        write(topic, &vec![record; count]).await;
    }
}

/// Number of offsets that are stored.
const OFFSETS: &str = "select count(*) from postrider.inbox_offset";

/// A member of the group that is not Postrider, and that stores nothing. Dropping it leaves the group.
struct Member(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Member {
    fn join(topic: &Topic) -> Self {
        let mut config = crate::topic::client_config(&topic.brokers);
        config.set("group.id", &topic.name).set("session.timeout.ms", "6000");
        config.set("heartbeat.interval.ms", "500");
        config.set("partition.assignment.strategy", "range,roundrobin");
        let consumer: BaseConsumer = config.create().expect("a consumer");
        consumer.subscribe(&[&topic.name]).expect("a subscription");
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                drop(consumer.poll(Duration::from_millis(50)));
            }
        });
        Self(ends, Some(thread))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            drop(thread.join());
        }
    }
}

/// Of a topic that is begun by half, the other partitions would look as if they had been added later.
#[tokio::test]
async fn with_start_latest_all_partitions_of_a_topic_begin_together() {
    let world = World::create(Version::Pg18, "intake_latest").await;
    let topics = Topics::new(&brokers(), "intake_latest");
    let topic = topics.create("numbers", 4).await;
    write_to_each(&topic, 0..4, 10).await;
    let other = Member::join(&topic);
    let relay = Relay::spawn_intake(&latest(&world.config(&topic, "")));
    await_intake(&relay, "half of the partitions", |it| it["partitions"] == 2).await;
    assert_eq!(world.sql.text(OFFSETS).await.as_deref(), Some("4"));
    drop(other);
    await_intake(&relay, "all partitions", |it| it["partitions"] == 4).await;
    write_to_each(&topic, 0..4, 1).await;
    await_answer(&world.sql, COUNT, "4", &relay).await;
    await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("4"));
}

#[tokio::test]
async fn with_start_latest_two_processes_that_start_at_once_read_no_history() {
    let world = World::create(Version::Pg17, "intake_both").await;
    let kafka = PrivateKafka::start("group.initial.rebalance.delay.ms=3000").await;
    let topics = Topics::new(&kafka.brokers(), "intake_both");
    let topic = topics.create("numbers", 8).await;
    write_to_each(&topic, 0..8, 10).await;
    let config = latest(&world.config(&topic, ""));
    let both = [Relay::spawn_intake(&config), Relay::spawn_intake(&config)];
    for relay in &both {
        await_intake(relay, "half of the partitions", |it| it["partitions"] == 4).await;
    }
    write_to_each(&topic, 0..8, 2).await;
    await_answer(&world.sql, COUNT, "16", &both[0]).await;
    for relay in &both {
        await_intake(relay, "no lag", |it| it["lag_records"] == 0).await;
    }
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("16"));
}

#[tokio::test]
async fn with_start_latest_a_topic_that_an_expression_finds_later_is_read_from_its_beginning() {
    let world = World::create(Version::Pg16, "intake_found").await;
    let topics = Topics::new(&brokers(), "intake_found");
    let first = topics.create("a", 2).await;
    let second = topics.create("b", 1).await;
    write_to_each(&first, 0..2, 10).await;
    write_to_each(&second, 0..1, 10).await;
    let more = "\"topic.metadata.refresh.interval.ms\" = \"1000\"\n";
    let pattern = format!("^{}", topics.prefix.trim_end_matches('.'));
    let config = latest(&config(&world.database.url(), &brokers(), &pattern, more));
    let relay = Relay::spawn_intake(&config);
    await_intake(&relay, "three partitions", |it| it["partitions"] == 3).await;
    let later = topics.create("c", 1).await;
    write_to_each(&later, 0..1, 7).await;
    await_answer(&world.sql, COUNT, "7", &relay).await;
    await_intake(&relay, "no lag", |it| it["lag_records"] == 0).await;
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("7"));
    assert_eq!(world.sql.text(OFFSETS).await.as_deref(), Some("4"));
}

/// A topic of another cluster has other records, and other offsets.
#[tokio::test]
async fn two_clusters_with_a_topic_of_the_same_name_are_read_into_one_inbox() {
    let world = World::create(Version::Pg15, "intake_clusters").await;
    let (one, two) = (PrivateKafka::start("").await, PrivateKafka::start("").await);
    let topic = Topics::new(&one.brokers(), "intake_clusters").create("numbers", 1).await;
    create_topic(&two.brokers(), &topic.name, 1, &[]).await;
    let same = Topic { brokers: two.brokers(), name: topic.name.clone() };
    write_numbers(&topic, 1..=10, |_| "k".to_owned()).await;
    write_numbers(&same, 11..=30, |_| "k".to_owned()).await;
    let first = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "10", &first).await;
    // It may be the same topic after a move to another cluster: nothing is passed over.
    let second = Relay::spawn_intake(&latest(&world.config(&same, "")));
    await_answer(&world.sql, COUNT, "30", &second).await;
    write_numbers(&topic, 31..=35, |_| "k".to_owned()).await;
    write_numbers(&same, 36..=40, |_| "k".to_owned()).await;
    await_answer(&world.sql, COUNT, "40", &first).await;
    for relay in [&first, &second] {
        await_intake(relay, "no lag", |it| it["lag_records"] == 0 && it["blocked_total"] == 0)
            .await;
    }
    let offsets = "select string_agg(next_offset::text, ' ' order by next_offset)
                   from postrider.inbox_offset";
    assert_eq!(world.sql.text(offsets).await.as_deref(), Some("15 25"));
    let words = ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0", "--to", "20"];
    let seek = [&words[..], &["--yes", "--json"]].concat();
    let sought = postrider_ok(&world.config(&same, ""), &seek);
    let sought: serde_json::Value = serde_json::from_str(&sought).expect("JSON");
    assert_eq!((&sought["from"], &sought["to"]), (&25.into(), &20.into()));
    // With a record more, whether the process has noticed it or not. What is read again is known by its place.
    write_numbers(&same, 41..=41, |_| "k".to_owned()).await;
    await_answer(&world.sql, offsets, "15 26", &second).await;
    assert_eq!(faults(&world.sql, 41).await, "");
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("41"));
}

/// One partition has its only replica on a broker that is down.
#[tokio::test]
async fn a_partition_without_a_leader_is_waited_for_and_the_others_are_read() {
    let world = World::create(Version::Pg17, "intake_leaderless").await;
    let first = PrivateKafka::start("").await;
    // The group's own topic is created while there is one broker.
    let topics = Topics::new(&first.brokers(), "intake_leaderless");
    let early = topics.create("early", 1).await;
    write_numbers(&early, 1..=1, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&early, ""));
    await_answer(&world.sql, COUNT, "1", &relay).await;
    relay.kill().await;
    let mut second = first.start_beside().await;
    let topic = Topic { brokers: first.brokers(), name: format!("{}spread", topics.prefix) };
    let replicas: [&[i32]; 2] = [&[1], &[2]];
    let new = NewTopic::new(&topic.name, 2, TopicReplication::Variable(&replicas));
    let admin = crate::topic::admin(&topic.brokers);
    let created = admin.create_topics([&new], &AdminOptions::new()).await.expect("an answer");
    assert!(created.iter().all(Result::is_ok), "{created:?}");
    write_to_each(&topic, 0..2, 5).await;
    second.kill().await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "6", &relay).await;
    let intake = await_intake(&relay, "no answer", |it| it["blocked_total"] == 1).await;
    let blocked = &intake["blocked"][0];
    assert_eq!((&blocked["code"], &blocked["partition"]), (&"no_answer".into(), &1.into()));
    assert_eq!(blocked["needs_decision"], false);
    assert_eq!((&intake["state"], &intake["partitions"]), (&"storing".into(), &1.into()));
    let hint = blocked["hint"].as_str().unwrap_or_default();
    assert!(!hint.contains("seek") && hint.contains("asked again every 5 s"), "{hint}");
    // The other one is read meanwhile.
    write_to_each(&topic, 0..1, 5).await;
    await_answer(&world.sql, COUNT, "11", &relay).await;
    second.restart().await;
    await_answer(&world.sql, COUNT, "16", &relay).await;
    await_intake(&relay, "all read", |it| it["blocked_total"] == 0 && it["partitions"] == 2).await;
    let log = relay.kill().await.stderr;
    assert_eq!(log.matches("is not read meanwhile").count(), 1, "{log}");
}

/// The group removes a member that asks for five minutes.
#[tokio::test]
async fn twelve_hundred_partitions_are_placed_within_seconds() {
    let world = World::create(Version::Pg18, "intake_many").await;
    let kafka = PrivateKafka::start("").await;
    let topic = Topics::new(&kafka.brokers(), "intake_many").create("numbers", 1200).await;
    let since = Instant::now();
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_intake(&relay, "all partitions", |it| it["partitions"] == 1200).await;
    let first = since.elapsed();
    relay.kill().await;
    let since = Instant::now();
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_intake(&relay, "all partitions", |it| it["partitions"] == 1200).await;
    let again = since.elapsed();
    write_numbers(&topic, 1..=100, |n| n.to_string()).await;
    await_answer(&world.sql, COUNT, "100", &relay).await;
    crate::pipeline::show(&format!(
        "1,200 partitions were placed {first:?} after the first start, and {again:?} after the second one"
    ));
    assert!(first < Duration::from_secs(30), "{first:?}");
}
