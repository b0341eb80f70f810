//! Producers that do not find their way back by themselves: all goes on with new ones.

use crate::await_that::await_that;
use crate::kafka_strangers::turnstile::Turnstile;
use crate::private::PrivateKafka;
use crate::server::unique;
use crate::sink_caller::{Caller, SOON, by_key, record, spec};
use crate::topic::{Topic, admin, client_config};
use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer as _};

/// Nothing is sent to it while it is not there. Its leaders' epochs begin at 0 again, and librdkafka believes none that
/// is older than the one it knows (its issue 4898): it would send to the leader of before for ever.
#[tokio::test]
async fn topic_that_is_made_anew_with_another_leader_gets_its_records() {
    let first = PrivateKafka::start("").await;
    let mut second = first.start_beside().await;
    let topic = Topic { brokers: first.brokers(), name: unique("sink_anew") };
    create(&topic, &[2, 1]).await;
    led_by(&topic, 2).await;
    // A leader that is lost makes the next one's epoch 1.
    second.kill().await;
    led_by(&topic, 1).await;
    let mut caller = Caller::open(&spec(&first.brokers()));
    caller.send(&record(&topic.name, "k", b"0")).await;
    caller.reported().await;
    assert!(caller.all_acked());

    second.restart().await;
    topic.delete().await;
    create(&topic, &[2]).await;
    led_by(&topic, 2).await;
    caller.send(&record(&topic.name, "k", b"1")).await;
    caller
        .until("the news", SOON, |caller| {
            caller.was_told("broken: topic") || caller.outcomes.len() > 1
        })
        .await;
    assert!(caller.was_told("was deleted and recreated"), "said: {:?}", caller.said);
    again(&mut caller, &topic, b"1").await;
    assert_eq!(by_key(&topic.read_all().await)["k"], [1]);
}

/// Brokers answer, topics lack nothing, and nothing is acknowledged: what a start of the program would fix is mended
/// without one.
#[tokio::test]
async fn producers_that_are_acknowledged_nothing_for_long_are_given_up() {
    let (broker, turnstile) = Turnstile::before_a_broker(&spec("").client_id).await;
    let topic = Topic { brokers: broker.brokers(), name: unique("sink_mute") };
    create(&topic, &[1]).await;
    let mut caller = Caller::open(&spec(&broker.brokers()));
    caller.send(&record(&topic.name, "k", b"0")).await;
    caller
        .until("the end of patience", SOON, |caller| caller.was_told("broken: brokers answer"))
        .await;
    assert!(caller.was_told("acknowledged nothing"), "said: {:?}", caller.said);
    caller.sink.reset();
    let ticket = caller.send(&record(&topic.name, "k", b"0")).await;
    assert!(!caller.was_told("up"), "said: {:?}", caller.said);
    turnstile.open();
    caller.until("an answer", SOON, |caller| caller.outcomes.contains_key(&ticket)).await;
    assert!(caller.all_acked());
    caller.until("the end of the trouble", SOON, |caller| caller.was_told("up")).await;
    assert!(by_key(&topic.read_all().await)["k"].contains(&0));
}

/// Starts anew, and hands the record over once more.
async fn again(caller: &mut Caller, topic: &Topic, value: &[u8]) {
    caller.sink.reset();
    let ticket = caller.send(&record(&topic.name, "k", value)).await;
    caller.until("an answer", SOON, |caller| caller.outcomes.contains_key(&ticket)).await;
    assert!(caller.all_acked(), "said: {:?}", caller.said);
}

/// With the one partition on these brokers, of which the first leads.
async fn create(topic: &Topic, brokers: &[i32]) {
    let replicas = [brokers];
    let new = NewTopic::new(&topic.name, 1, TopicReplication::Variable(&replicas));
    // It may be on its way out still.
    await_that("a new topic", SOON, async || {
        let made = admin(&topic.brokers).create_topics([&new], &AdminOptions::new()).await;
        made.expect("an answer").remove(0).map(drop).map_err(|(_, code)| code.to_string())
    })
    .await;
}

async fn led_by(topic: &Topic, broker: i32) {
    await_that(&format!("broker {broker} leads"), SOON, async || {
        let consumer: BaseConsumer = client_config(&topic.brokers).create().expect("a client");
        let metadata = consumer.fetch_metadata(Some(&topic.name), SOON);
        let metadata = metadata.map_err(|error| error.to_string())?;
        let leaders: Vec<i32> = metadata.topics()[0]
            .partitions()
            .iter()
            .map(rdkafka::metadata::MetadataPartition::leader)
            .collect();
        if leaders == [broker] { Ok(()) } else { Err(format!("{leaders:?}")) }
    })
    .await;
}
