//! Messages that the table refuses even as bare dead ones: their partition waits alone, with everything before them
//! stored, and goes on by itself when the table accepts them.

use super::*;
use crate::relay::postrider;
use crate::server::brokers;
use crate::topic::Topics;

/// Refuses the message of this record, in whatever form: by its key, which a bare message has too.
fn refusal(name: &str, partition: i32, offset: i64) -> String {
    format!(
        "alter table postrider_inbox.jobs add constraint {name}
         check (event_id !~ '@[^/]*/{partition}/[0-9]*/{offset}$')"
    )
}

/// Writes numbers to a partition, all with one key.
async fn write_to(topic: &Topic, partition: i32, numbers: std::ops::RangeInclusive<u64>) {
    let all: Vec<String> = numbers.map(|number| format!("{{\"n\": {number}}}")).collect();
    let key = format!("k{partition}");
    let records: Vec<Written<'_>> = all
        .iter()
        .map(|value| Written {
            partition: Some(partition),
            key: Some(key.as_bytes()),
            value: Some(value.as_bytes()),
            headers: &[],
        })
        .collect();
    write(topic, &records).await;
}

/// The stored offsets of the partitions, by their numbers.
const OFFSETS: &str =
    "select string_agg(next_offset::text, ' ' order by part) from postrider.inbox_offset";

fn is_blocked(intake: &serde_json::Value) -> bool {
    intake["blocked_total"] == 1 && intake["blocked"][0]["code"] == "message_unstorable"
}

#[tokio::test]
async fn a_message_that_the_table_refuses_even_as_a_bare_one_blocks_its_partition_alone() {
    let world = World::create(Version::Pg18, "intake_unstorable").await;
    let topics = Topics::new(&brokers(), "intake_unstorable");
    let topic = topics.create("numbers", 2).await;
    world.sql.batch(&refusal("no_fifth", 0, 5)).await;
    write_to(&topic, 0, 1..=10).await;
    write_to(&topic, 1, 11..=20).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    // Five before the message, and the other partition.
    await_answer(&world.sql, COUNT, "15", &relay).await;
    let intake = await_intake(&relay, "blocked", is_blocked).await;
    assert_eq!((&intake["state"], &intake["partitions"]), (&"storing".into(), &1.into()));
    let blocked = &intake["blocked"][0];
    assert_eq!((&blocked["partition"], &blocked["needs_decision"]), (&0.into(), &true.into()));
    let (reason, hint) = (blocked["reason"].to_string(), blocked["hint"].to_string());
    assert!(reason.contains("offset 5") && reason.contains("23514"), "{reason}");
    let seek = format!("--topic {} --partition 0 --to 6", topic.name);
    assert!(hint.contains("no_fifth") && hint.contains(&seek), "{hint}");
    let (ready, why) = relay.get("/ready").await.expect("an answer");
    assert_eq!((ready, why.as_str()), (503, "jobs: 1 partitions are blocked\n"));
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    assert!(
        metrics.contains("postrider_intake_blocked_partitions{intake=\"jobs\"} 1"),
        "{metrics}"
    );
    relay.await_log("is not read until a person decides", SOON).await;
    // The other one flows.
    write_to(&topic, 1, 21..=30).await;
    await_answer(&world.sql, COUNT, "25", &relay).await;
    assert_eq!(world.sql.text(OFFSETS).await.as_deref(), Some("5 20"));
    world.sql.batch("alter table postrider_inbox.jobs drop constraint no_fifth").await;
    await_answer(&world.sql, COUNT, "30", &relay).await;
    await_intake(&relay, "not blocked", |it| it["blocked_total"] == 0 && it["partitions"] == 2)
        .await;
    assert_eq!(faults(&world.sql, 30).await, "");
    assert_eq!(relay.get("/ready").await.expect("an answer").0, 200);
    let log = relay.kill().await.stderr;
    assert_eq!(log.matches("is not read until a person decides").count(), 1, "{log}");
    assert_eq!(
        log.matches("the database refuses a message even as a dead one").count(),
        1,
        "{log}"
    );
}

#[tokio::test]
async fn a_seek_passes_one_message_that_the_table_refuses() {
    let world = World::create(Version::Pg16, "intake_pass").await;
    let topics = Topics::new(&brokers(), "intake_pass");
    let topic = topics.create("numbers", 1).await;
    world.sql.batch(&refusal("no_third", 0, 3)).await;
    write_to(&topic, 0, 1..=10).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    let intake = await_intake(&relay, "blocked", is_blocked).await;
    assert!(intake["blocked"][0]["hint"].to_string().contains("--to 4"), "{intake}");
    // Every partition is blocked, also while it is tried again.
    await_intake_state(&relay, "blocked").await;
    let words = ["inbox", "seek", "jobs", "--topic", &topic.name, "--partition", "0", "--to", "4"];
    let asked = postrider(&world.config(&topic, ""), &words);
    let asked = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(asked.contains("up to 1 records that were not stored will never be stored"), "{asked}");
    let sought = postrider(&world.config(&topic, ""), &[&words[..], &["--yes", "--json"]].concat());
    let sought: serde_json::Value = serde_json::from_slice(&sought.stdout).expect("JSON");
    assert_eq!((&sought["from"], &sought["to"]), (&3.into(), &4.into()));
    assert_eq!((&sought["not_stored"], &sought["read_again"]), (&1.into(), &0.into()));
    await_answer(&world.sql, COUNT, "9", &relay).await;
    await_intake(&relay, "not blocked", |it| it["blocked_total"] == 0).await;
    assert_eq!(faults(&world.sql, 10).await, "missing: 1\n");
}

#[tokio::test]
async fn what_precedes_a_refused_message_in_a_large_batch_is_stored_and_survives_a_kill() {
    let world = World::create(Version::Pg17, "intake_middle").await;
    let topics = Topics::new(&brokers(), "intake_middle");
    let topic = topics.create("numbers", 3).await;
    world.sql.batch(&refusal("no_first", 0, 700)).await;
    world.sql.batch(&refusal("no_second", 1, 0)).await;
    for partition in 0..3 {
        let first = u64::try_from(partition).expect("a number") * 1000 + 1;
        write_to(&topic, partition, first..=first + 999).await;
    }
    let config =
        world.config(&topic, "").replace("[inboxes.jobs]\n", "[inboxes.jobs]\nbatch = 5000\n");
    let relay = Relay::spawn_intake(&config);
    await_answer(&world.sql, COUNT, "1700", &relay).await;
    await_intake(&relay, "two blocked", |it| it["blocked_total"] == 2).await;
    relay.kill().await;
    assert_eq!(world.sql.text(OFFSETS).await.as_deref(), Some("700 0 1000"));
    let relay = Relay::spawn_intake(&config);
    await_intake(&relay, "two blocked", |it| it["blocked_total"] == 2).await;
    write_to(&topic, 2, 3001..=3010).await;
    await_answer(&world.sql, COUNT, "1710", &relay).await;
    assert_eq!(world.sql.text(OFFSETS).await.as_deref(), Some("700 0 1010"));
    // One is accepted, the other one still waits.
    world.sql.batch("alter table postrider_inbox.jobs drop constraint no_second").await;
    await_answer(&world.sql, COUNT, "2710", &relay).await;
    let intake = await_intake(&relay, "one blocked", is_blocked).await;
    assert_eq!(intake["blocked"][0]["partition"], 0);
    world.sql.batch("alter table postrider_inbox.jobs drop constraint no_first").await;
    await_answer(&world.sql, COUNT, "3010", &relay).await;
    await_intake(&relay, "not blocked", |it| it["blocked_total"] == 0).await;
    assert_eq!(faults(&world.sql, 3010).await, "");
    relay.kill().await;
}

/// A deferred trigger speaks at the commit, which names no message: the message that it refuses is dead, and the others
/// of its batch are stored.
#[tokio::test]
async fn a_message_that_a_deferred_constraint_refuses_is_dead_alone() {
    let world = World::create(Version::Pg17, "intake_deferred").await;
    let topics = Topics::new(&brokers(), "intake_deferred");
    let topic = topics.create("numbers", 1).await;
    world
        .sql
        .batch(
            "create function refuse() returns trigger language plpgsql as $$ begin
               if new.error is null and new.payload ->> 'n' = '5' then
                 raise 'not this one' using errcode = 'check_violation';
               end if;
               return null;
             end $$;
             create constraint trigger refuses after insert on postrider_inbox.jobs
             deferrable initially deferred for each row execute function refuse()",
        )
        .await;
    write_to(&topic, 0, 1..=10).await;
    let relay = Relay::spawn_intake(&world.config(&topic, ""));
    await_answer(&world.sql, COUNT, "10", &relay).await;
    let dead = "select string_agg(payload ->> 'n', ' ') from postrider_inbox.jobs where dead_at is not null";
    await_answer(&world.sql, dead, "5", &relay).await;
    let log = relay.kill().await.stderr;
    assert!(log.contains("23514") && !log.contains("not this one"), "{log}");
}
