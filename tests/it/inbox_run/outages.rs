//! Outages of the database and of the broker, missing things, and rights: the intake waits, says what it waits for, and
//! goes on.

use super::*;
use crate::private::{PrivateKafka, PrivatePostgres};
use crate::server::brokers;
use crate::topic::Topics;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};

#[tokio::test]
async fn sessions_that_are_terminated_and_a_server_that_is_killed_change_nothing() {
    let mut server = PrivatePostgres::start(Version::Pg18, "").await;
    create_inbox(&server.connect().await).await;
    let topics = Topics::new(&brokers(), "intake_killed");
    let topic = topics.create("numbers", 2).await;
    let relay = Relay::spawn_intake(
        &config(&server.url(), &topic.brokers, &topic.name, "batch = 50\n")
            .replace("batch = 50\n", ""),
    );
    let mut written = 0;
    for round in 0..4 {
        write_numbers(&topic, written + 1..=written + 300, |n| (n % 5).to_string()).await;
        written += 300;
        if round % 2 == 0 {
            let sql = server.connect().await;
            sql.batch(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'postrider inbox%'",
            )
            .await;
        } else {
            server.kill().await;
            await_intake_state(&relay, "database_down").await;
            server.restart().await;
        }
        let sql = server.connect().await;
        await_answer(&sql, COUNT, &written.to_string(), &relay).await;
    }
    assert_eq!(faults(&server.connect().await, written).await, "");
    await_intake_state(&relay, "storing").await;
    relay.await_log("the outage has ended", SOON).await;
}

#[tokio::test]
async fn a_broker_that_is_killed_is_waited_for() {
    let world = World::create(Version::Pg17, "intake_broker").await;
    let mut kafka = PrivateKafka::start("").await;
    let topics = Topics::new(&kafka.brokers(), "intake_broker");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=100, |_| "k".to_owned()).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "100", &relay).await;
    kafka.kill().await;
    let intake = await_intake_state(&relay, "broker_down").await;
    assert!(intake["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{intake}");
    assert!(intake["lag_records"].is_null(), "nobody knows it: {intake}");
    kafka.restart().await;
    await_intake_state(&relay, "storing").await;
    write_numbers(&topic, 101..=200, |_| "k".to_owned()).await;
    await_answer(&world.sql, COUNT, "200", &relay).await;
    assert_eq!(faults(&world.sql, 200).await, "");
}

/// `statement_timeout` is the server's, and a frozen server does not keep it.
#[tokio::test]
async fn a_database_that_is_frozen_is_given_up_and_each_record_is_stored_once() {
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    create_inbox(&server.connect().await).await;
    let topics = Topics::new(&brokers(), "intake_frozen");
    let topic = topics.create("numbers", 2).await;
    write_numbers(&topic, 1..=100, |n| (n % 5).to_string()).await;
    let relay = Relay::spawn_intake(&config(&server.url(), &topic.brokers, &topic.name, ""));
    await_answer(&server.connect().await, COUNT, "100", &relay).await;
    server.freeze();
    let start = std::time::Instant::now();
    write_numbers(&topic, 101..=200, |n| (n % 5).to_string()).await;
    await_intake_state(&relay, "database_down").await;
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
    // The broker answers, so the lag is known.
    await_intake(&relay, "lag", |it| it["state"] == "database_down" && it["lag_records"] == 100)
        .await;
    server.thaw();
    let sql = server.connect().await;
    await_answer(&sql, COUNT, "200", &relay).await;
    await_intake_state(&relay, "storing").await;
    assert_eq!(faults(&sql, 200).await, "");
}

#[tokio::test]
async fn the_lag_rises_while_the_inbox_is_full_and_kafka_has_the_stored_offset_after_a_stop() {
    let world = World::create(Version::Pg16, "intake_lag").await;
    let topics = Topics::new(&brokers(), "intake_lag");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=20, |_| "k".to_owned()).await;
    let full = "[inboxes.jobs]\npending_max = 10\nbatch = 20\n";
    let relay = Relay::spawn_intake(&world.config(&topic, "").replace("[inboxes.jobs]\n", full));
    await_intake(&relay, "full", |it| it["state"] == "full" && it["lag_records"] == 0).await;
    write_numbers(&topic, 21..=70, |_| "k".to_owned()).await;
    await_intake(&relay, "a lag", |it| it["state"] == "full" && it["lag_records"] == 50).await;
    assert_eq!(world.sql.text(COUNT).await.as_deref(), Some("20"));
    assert_eq!(relay.terminate(END).await.code, Some(0));
    let mut reader = crate::topic::client_config(&topic.brokers);
    reader.set("group.id", &topic.name);
    let reader: BaseConsumer = reader.create().expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition(&topic.name, 0);
    let committed = reader.committed_offsets(list, END).expect("offsets");
    let offset = committed.find_partition(&topic.name, 0).map(|found| found.offset());
    assert_eq!(offset, Some(Offset::Offset(20)));
}

#[tokio::test]
async fn missing_inboxes_and_topics_and_toolkits_are_named_with_what_fixes_them() {
    let database = Database::create(Version::Pg16, "intake_missing").await;
    let sql = database.connect().await;
    let topics = Topics::new(&brokers(), "intake_missing");
    let topic = topics.create("numbers", 1).await;
    let relay = Relay::spawn_intake(&config(&database.url(), &topic.brokers, &topic.name, ""));
    let hint = |intake: &serde_json::Value| intake["hint"].as_str().unwrap_or_default().to_owned();
    let without = await_intake(&relay, "no toolkit", |it| hint(it).contains("sql --install")).await;
    assert_eq!(without["state"], "database_down");
    install_toolkit(&sql, "postgres").await;
    await_intake(&relay, "no inbox", |it| hint(it).contains("postrider inbox create jobs")).await;
    sql.batch("select postrider.create_inbox('jobs')").await;
    await_intake_state(&relay, "storing").await;
    relay.kill().await;
    let missing = format!("{}missing", topics.prefix);
    let relay = Relay::spawn_intake(&config(&database.url(), &topic.brokers, &missing, ""));
    let waits = await_intake(&relay, "no topic", |it| hint(it).contains("create the topic")).await;
    assert_eq!(waits["state"], "standing_by");
    crate::topic::create_topic(&topic.brokers, &missing, 1, &[]).await;
    await_intake_state(&relay, "storing").await;
}

#[tokio::test]
async fn the_rights_of_a_worker_are_enough_and_their_lack_is_named() {
    let world = World::create(Version::Pg15, "intake_rights").await;
    let role = crate::server::unique("intake_worker");
    world.sql.batch(&format!("create role {role} login")).await;
    let topics = Topics::new(&brokers(), "intake_rights");
    let topic = topics.create("numbers", 1).await;
    write_numbers(&topic, 1..=10, |_| "k".to_owned()).await;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    let relay = Relay::spawn_intake(&config(&url, &topic.brokers, &topic.name, ""));
    let right = |it: &serde_json::Value| {
        it["hint"].as_str().is_some_and(|hint| hint.contains("--worker ROLE"))
    };
    await_intake(&relay, "no right", right).await;
    let install = ["sql", "--install", "--url", &world.database.url(), "--worker", &role];
    crate::relay::postrider_ok("", &install);
    await_answer(&world.sql, COUNT, "10", &relay).await;
    relay.kill().await;
    world.sql.batch(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn a_stop_ends_within_its_grace_although_the_broker_does_not_answer() {
    let world = World::create(Version::Pg18, "intake_stop").await;
    let kafka = PrivateKafka::start("").await;
    let topics = Topics::new(&kafka.brokers(), "intake_stop");
    let topic = topics.create("numbers", 1).await;
    let config = format!("shutdown_grace = \"2s\"\n{}", world.config(&topic, ""));
    let relay = Relay::spawn_intake(&config);
    await_intake_state(&relay, "storing").await;
    kafka.freeze();
    let start = std::time::Instant::now();
    assert_eq!(relay.terminate(END).await.code, Some(0));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    kafka.thaw();
}
