//! A producer's first records for a partition, which takes whatever it gets first of a producer it does not know.

use crate::await_that::await_that;
use crate::private::topic_that_lacks_a_copy;
use crate::server::unique;
use crate::sink_caller::{Caller, SOON, alter, by_key, record, spec};
use crate::topic::{Topic, Topics, client_config};
use postrider::sink::NotTaken;
use rdkafka::producer::{FutureProducer, FutureRecord};
use turnstile::Turnstile;

pub(crate) mod turnstile;

/// The first request is refused, since the topic asks for a copy that there is not; what comes behind it would be
/// taken, since it no longer asks.
#[tokio::test]
async fn nothing_overtakes_a_first_record_that_is_refused_for_a_moment() {
    let (broker, turnstile) = Turnstile::before_a_broker(&spec("").client_id).await;
    let (topic, _second) = topic_that_lacks_a_copy(&broker, unique("sink_stranger"), 1).await;
    let mut caller = Caller::open(&spec(&broker.brokers()));
    caller.send(&record(&topic.name, "k", b"0")).await;
    count("requests", 1, || turnstile.seen()).await;
    // Where the second record is taken, it is behind the first one before the turnstile.
    let second = caller.offer(&record(&topic.name, "k", b"1"));
    if second.is_ok() {
        count("requests", 2, || turnstile.seen()).await;
    }
    turnstile.let_through(1);
    count("answers", 1, || turnstile.answered()).await;
    alter(&topic, "min.insync.replicas", "1").await;
    takes_records(&topic).await;
    turnstile.open();
    if second.is_err() {
        caller.send(&record(&topic.name, "k", b"1")).await;
    }
    caller
        .until("both", SOON, |caller| caller.outcomes.len() == 2 || caller.was_told("broken"))
        .await;
    let numbers = by_key(&topic.read_all().await).remove("k").unwrap_or_default();
    assert_eq!(numbers, [0, 1], "said: {:?}", caller.said);
    assert_eq!(second, Err(NotTaken::Full));
    assert!(caller.all_acked());
}

/// No partition knows the producers that a reset makes, whatever it has of the former ones.
#[tokio::test]
async fn producers_of_a_reset_send_first_records_of_their_own() {
    let (broker, turnstile) = Turnstile::before_a_broker(&spec("").client_id).await;
    let topic = Topics::new(&broker.brokers(), "sink_newcomers").create("t", 1).await;
    let mut caller = Caller::open(&spec(&broker.brokers()));
    turnstile.let_through(1);
    caller.send(&record(&topic.name, "k", b"0")).await;
    caller.reported().await;
    caller.sink.reset();
    caller.send(&record(&topic.name, "k", b"1")).await;
    count("requests", 2, || turnstile.seen()).await;
    let third = caller.offer(&record(&topic.name, "k", b"2"));
    assert_eq!(third, Err(NotTaken::Full), "the first record has no answer");
    turnstile.open();
    caller.send(&record(&topic.name, "k", b"2")).await;
    caller.reported().await;
    assert!(caller.all_acked());
    assert_eq!(by_key(&topic.read_all().await)["k"], [0, 1, 2]);
}

async fn count(what: &str, expected: usize, count: impl Fn() -> usize) {
    let what = format!("{expected} {what}");
    await_that(&what, SOON, async || if count() == expected { Ok(()) } else { Err(count()) }).await;
}

/// Waits until the topic takes records again, those of somebody who does not stand before the turnstile.
async fn takes_records(topic: &Topic) {
    let producer: FutureProducer =
        client_config(&topic.brokers).set("acks", "all").create().expect("a producer");
    let record = FutureRecord::to(&topic.name).key("another").payload("0");
    producer.send(record, SOON).await.expect("a delivery");
}
