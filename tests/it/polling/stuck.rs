//! What the broker does not answer, or refuses for good: it holds up what it has to, and no more.

use super::{count, ids, polling_to};
use crate::await_that::{SOON, await_that};
use crate::private::{PrivateKafka, topic_that_lacks_a_copy};
use crate::relay::Relay;
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::{Topic, create_topic};
use std::collections::HashSet;

/// Of a sink that was thrown away, as the metrics have it: how often.
async fn resets(relay: &Relay) -> u64 {
    let (_, metrics) = relay.get("/metrics").await.expect("an answer");
    let lines = metrics.lines().filter(|line| line.contains("side=\"sink\""));
    lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)).sum()
}

/// What is parked behind an event that has no answer stays in the table with it: parked alone, it would come to stand
/// before it.
#[tokio::test]
async fn stop_leaves_a_parked_event_behind_an_earlier_one_that_has_no_answer() {
    let kafka = PrivateKafka::start("").await;
    let mut pipeline =
        polling_to(&kafka.brokers(), Version::Pg17, "pollstopbehind", "postrider").await;
    // The fourth is to be parked while the broker is frozen.
    pipeline.config = pipeline.uncompressed();
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let insert = |from: u32, large: u32| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select 'order', 'a', 'T', to_json(case when i = {large} then (select string_agg(md5(random()::text), '') \
             from generate_series(1, 600)) else 'x' end) from generate_series({from}, {from} + 1) i"
        )
    };
    let relay = Relay::spawn(&format!("shutdown_grace = \"1s\"\n{}", pipeline.config));
    pipeline.sql.batch(&insert(1, 0)).await;
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    kafka.freeze();
    pipeline.sql.batch(&insert(3, 4)).await;
    let parked = |status: &serde_json::Value| status["pipelines"][0]["parked"]["waiting"] == 1;
    relay.await_status("the fourth is parked in its claim", SOON, parked).await;
    let ended = relay.terminate(SOON).await;
    kafka.thaw();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let left = "select string_agg(id::text, ' ' order by id) from outbox";
    count(&pipeline, left, "3 4").await;
    count(&pipeline, "select count(*)::text from postrider.parked", "0").await;
    let relay = pipeline.run();
    count(
        &pipeline,
        "select event_id || ' ' || (state <> 'behind') from postrider.parked",
        "4 true",
    )
    .await;
    alter(&pipeline.topic, "max.message.bytes", "100000").await;
    let again = "update postrider.parked set requested_action = 'retry', requested_at = now()";
    pipeline.sql.batch(again).await;
    let done = "select count(*)::text from postrider.parked where state <> 'done'";
    count(&pipeline, done, "0").await;
    let mut ids = ids(&pipeline.topic.read_all().await, "a");
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    assert_eq!(ids, ["1", "2", "3", "4"], "in order");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A dead-letter topic that answers nobody holds up letters, and no other event; what has failed meanwhile is
/// not tried.
#[tokio::test]
async fn letters_that_nobody_answers_hold_up_no_other_event() {
    let kafka = PrivateKafka::start("").await;
    let brokers = kafka.brokers();
    let mut pipeline = polling_to(&brokers, Version::Pg15, "pollmute", "sqlgarden").await;
    let name = format!("{}-dead", pipeline.topic.name);
    let (dead, mut second) = topic_that_lacks_a_copy(&kafka, name, 1).await;
    let line = format!("parking = {{ dead_topic = \"{}\", ", dead.name);
    pipeline.config = pipeline.config.replace("parking = { ", &line);
    alter(&pipeline.topic, "max.message.bytes", "3000").await;
    let watch = "create table woken (id text);
        create function woke() returns trigger language plpgsql as \
        $$ begin insert into public.woken values (new.event_id); return new; end $$;
        create trigger woke before update on postrider.parked for each row \
        when (old.state = 'dead' and new.state <> 'dead') execute function woke()";
    pipeline.sql.batch(watch).await;
    let relay = pipeline.run();
    let published = async |rows: u32| {
        let published = "select count(*)::text from outbox_events where status = 'PUBLISHED'";
        count(&pipeline, published, &rows.to_string()).await;
    };
    for bad in 1..=3 {
        let insert = |from: u32| {
            format!(
                "insert into outbox_events (aggregate_type, aggregate_id, event_type, attempt_count, payload)
                 select 'order', '{bad}' || i, 'T', 2, to_jsonb(case when i = 1 \
                 then (select string_agg(md5(random()::text), '') from generate_series(1, 600)) else 'x' end) \
                 from generate_series({from}, {from} + 2) i"
            )
        };
        // The cursor is written, and not again within the second in which the next claim fails.
        pipeline.sql.batch(&insert(5)).await;
        published(5 * bad - 2).await;
        pipeline.sql.batch(&insert(1)).await;
        published(5 * bad).await;
    }
    count(&pipeline, "select count(*)::text from postrider.parked where state = 'dead'", "3").await;
    count(&pipeline, "select count(*)::text from woken", "0").await;
    let resets = resets(&relay).await;
    assert!(resets <= 3, "{resets} producers thrown away\n{}", relay.stderr());
    second.restart().await;
    let sent = "select count(*)::text from postrider.parked where dead_sent_at is not null";
    count(&pipeline, sent, "3").await;
    count(&pipeline, "select count(*)::text from woken", "0").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// A topic that may be seen and not written to: what was published behind its event comes again with each producer that
/// is thrown away for it.
#[tokio::test]
async fn topic_that_may_not_be_written_to_costs_a_producer_once() {
    let kafka = PrivateKafka::start_with_rules().await;
    let pipeline = polling_to(&kafka.brokers(), Version::Pg17, "pollmaynot", "postrider").await;
    let (base, brokers) = (pipeline.topic.name.as_str(), pipeline.topic.brokers.as_str());
    let config = pipeline.config.replace(base, &format!("{base}.{{aggregate_type}}"));
    let [orders, closed] = ["order", "closed"]
        .map(|kind| Topic { name: format!("{base}.{kind}"), brokers: brokers.to_owned() });
    for topic in [&orders, &closed] {
        create_topic(brokers, &topic.name, 1, &[]).await;
    }
    kafka.deny_writes(&closed.name);
    let relay = Relay::spawn(&config);
    pipeline
        .sql
        .batch(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             select case when i = 1 then 'closed' else 'order' end, i::text, 'T', '1' from generate_series(1, 10) i",
        )
        .await;
    let long = |status: &serde_json::Value| {
        status["pipelines"][0]["lag_seconds"].as_f64().is_some_and(|lag| lag > 8.0)
    };
    relay.await_status("a lag of eight seconds", SOON, long).await;
    let resets = resets(&relay).await;
    assert!((1..=2).contains(&resets), "{resets} producers thrown away\n{}", relay.stderr());
    let copies = orders.read_all().await.len() as u64;
    assert!(copies <= 9 * (resets + 1), "{copies} copies of nine");
    kafka.deny(&closed.name, false);
    count(&pipeline, "select count(*)::text from outbox", "0").await;
    await_that("the first of all", SOON, || async {
        let found = closed.read_all().await.len();
        if found >= 1 { Ok(()) } else { Err(found.to_string()) }
    })
    .await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
