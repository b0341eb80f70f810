//! What the simulator's coordinator of transactions does (`transactional_sink.rs` in `crates/postrider-relay/src/sim`),
//! by a real broker, through the crate's own sink. Fencing, and progress that readers do not see yet, are in
//! `sinks::kafka_transactions`.

use crate::await_that::{SOON, await_that};
use crate::kafka_strangers::turnstile::Turnstile;
use crate::sink_caller;
use crate::sinks::transaction_caller::{FIRST, SECOND, TransactionCaller, topics_at, values};
use crate::topic::{Topic, client_config};
use postrider::sink::Post;
use postrider::sink::kafka::KafkaSpec;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longer than any of these tests.
const LONG: Duration = Duration::from_mins(10);

async fn orders_have(orders: &Topic, wanted: &[&str]) {
    await_that(&format!("{wanted:?}"), SOON, || async {
        let records = orders.read_all().await;
        let found = values(&records);
        if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

/// A coordinator whose requests stand before a turnstile, with the topics and the sink of a pipeline.
async fn coordinator(test: &str) -> (impl Sized, Turnstile, Topic, KafkaSpec) {
    let client = sink_caller::spec("").client_id;
    let (broker, turnstile) = Turnstile::before_a_coordinator(&client).await;
    let (orders, mut spec) = topics_at(&broker.brokers(), test, LONG).await;
    spec.properties.insert("socket.timeout.ms".to_owned(), "2000".to_owned());
    (broker, turnstile, orders, spec)
}

/// `CommitsAfterTimeOut` is a bug of the simulator because a real coordinator refuses that commit.
#[tokio::test]
async fn transaction_that_took_too_long_is_aborted_and_its_producer_commits_nothing() {
    let brokers = crate::server::brokers();
    let (orders, spec) = topics_at(&brokers, "too_long", Duration::from_secs(1)).await;
    let mut sink = TransactionCaller::open(&spec);
    assert_eq!(sink.recover().await, None);
    sink.send(&orders.name, "aborted").await;
    // Readers get to a record behind the transaction when it has ended.
    let plain: BaseProducer = client_config(&brokers).create().expect("a producer");
    for partition in 0..3 {
        let behind =
            BaseRecord::<str, str>::to(&orders.name).payload("behind").partition(partition);
        plain.send(behind).expect("a record");
    }
    plain.flush(SOON).expect("records");
    orders_have(&orders, &["behind", "behind", "behind"]).await;
    sink.commit(FIRST);
    let reason = sink.broken().await;
    assert!(reason.contains("transactional id"), "{reason}");
    let fenced = sink.sink.transactional().expect("transactions").fenced_total();
    assert_eq!(fenced, Some(1));
    assert_eq!(sink.recover_again().await, None, "the progress was a part of the transaction");
    orders_have(&orders, &["behind", "behind", "behind"]).await;
}

/// However long the coordinator takes: the client has called once, and goes on with the same producer.
#[tokio::test]
async fn commit_that_takes_long_keeps_its_producer() {
    let (_broker, turnstile, orders, mut spec) = coordinator("takes_long").await;
    // On a busy machine the client must not call again either.
    spec.properties.insert("socket.timeout.ms".to_owned(), "60000".to_owned());
    let mut sink = TransactionCaller::open(&spec);
    sink.recover().await;
    sink.send(&orders.name, "1").await;
    let call = sink.commit(FIRST);
    let called = Instant::now();
    await_that("a second without an answer", SOON, || async {
        let waited = turnstile.seen() == 1 && called.elapsed() > Duration::from_secs(1);
        if waited { Ok(()) } else { Err(turnstile.seen()) }
    })
    .await;
    turnstile.open();
    sink.committed(call).await;
    sink.send(&orders.name, "2").await;
    let call = sink.commit(SECOND);
    sink.committed(call).await;
    assert_eq!(turnstile.seen(), 2);
    orders_have(&orders, &["1", "2"]).await;
}

/// The answer to a commit is lost: the client calls again, and the sink gives the producer up after the answer.
#[tokio::test]
async fn commit_whose_answer_is_lost_is_done_once() {
    let (_broker, turnstile, orders, spec) = coordinator("answer_lost").await;
    let mut sink = TransactionCaller::open(&spec);
    sink.recover().await;
    sink.send(&orders.name, "1").await;
    turnstile.keep_answers(1);
    turnstile.open();
    let call = sink.commit(FIRST);
    sink.committed(call).await;
    assert!(turnstile.answered() >= 2, "{}", turnstile.answered());
    let reason = sink.broken().await;
    assert!(reason.contains("sent twice"), "{reason}");
    assert_eq!(sink.recover_again().await, Some(FIRST.parse().unwrap()));
    sink.send(&orders.name, "2").await;
    let call = sink.commit(SECOND);
    sink.committed(call).await;
    orders_have(&orders, &["1", "2"]).await;
}

/// The call of a commit never arrives: nothing is visible until the client has called again.
#[tokio::test]
async fn commit_whose_call_is_lost_is_called_again() {
    let (_broker, turnstile, orders, spec) = coordinator("call_lost").await;
    let mut sink = TransactionCaller::open(&spec);
    sink.recover().await;
    sink.send(&orders.name, "1").await;
    let call = sink.commit(FIRST);
    // The client has given the first connection up, and the request with it.
    await_that("another call", SOON, || async {
        if turnstile.seen() >= 2 { Ok(()) } else { Err(turnstile.seen()) }
    })
    .await;
    assert!(orders.read_all().await.is_empty());
    turnstile.open();
    sink.committed(call).await;
    sink.broken().await;
    assert_eq!(sink.recover_again().await, Some(FIRST.parse().unwrap()));
    orders_have(&orders, &["1"]).await;
}

/// Why the sink replaces a producer whose commit took long: a second call commits what was sent since, without its
/// progress. Behind a recovery it is refused.
#[tokio::test]
async fn repeated_call_commits_what_was_sent_since_unless_a_recovery_came_before() {
    let (broker, turnstile, orders, spec) = coordinator("repeated").await;
    let (_keeps, address) = (&broker, orders.brokers.clone());
    turnstile.open();
    let mut sink = TransactionCaller::open(&spec);
    sink.recover().await;
    sink.send(&orders.name, "1").await;
    let call = sink.commit(FIRST);
    sink.committed(call).await;
    let commit = turnstile.last();
    sink.send(&orders.name, "2").await;
    orders_have(&orders, &["1"]).await;
    end_transaction(&address, &commit);
    orders_have(&orders, &["1", "2"]).await;
    let mut next = TransactionCaller::open(&spec);
    assert_eq!(next.recover().await, Some(FIRST.parse().unwrap()), "without the progress");
    next.send(&orders.name, "3").await;
    end_transaction(&address, &commit);
    orders_have(&orders, &["1", "2"]).await;
    let call = next.commit(SECOND);
    next.committed(call).await;
    orders_have(&orders, &["1", "2", "3"]).await;
    let reported = next.posts().iter().any(|post| matches!(post, Post::Broken { .. }));
    assert!(!reported, "the repeated call has not touched it");
}

/// Sends a request as it was sent before, over a connection of its own, and waits for the answer.
fn end_transaction(broker: &str, request: &[u8]) {
    let mut stream = TcpStream::connect(broker).expect("a connection");
    stream.set_read_timeout(Some(SOON)).expect("a deadline");
    stream.write_all(request).expect("a request");
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; usize::try_from(u32::from_be_bytes(length)).expect("a length")];
    stream.read_exact(&mut answer).expect("an answer");
}
