//! Records above their topic's limit before compression, against a real broker: the broker judges a batch as it
//! arrives, so whether one fits is known when it was sent. One that does not is refused for itself.

use crate::pipeline::show;
use crate::private::PrivateKafka;
use crate::server::brokers;
use crate::sink_caller::{Caller, SOON, TOLD, alter, compressing, noise, record};
use crate::topic::{Topic, Topics, admin, client_config};
use postrider::record::{Excess, Outcome, Record, Refusal, Scope, Ticket};
use postrider::sink::NotTaken;
use postrider::sink::kafka::KafkaSpec;
use rdkafka::admin::{AdminOptions, NewPartitions};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bytes of a batch that the topics take.
const LIMIT: usize = 400_000;

/// Above the limit: text that compresses to a twentieth, or better.
fn text(number: u32) -> Vec<u8> {
    format!("{number} {}", "an event that says much the same as the one before; ".repeat(60_000))
        .into_bytes()
}

/// Above the limit: bytes that do not compress.
fn bytes(number: u32) -> Vec<u8> {
    let mut bytes = format!("{number} ").into_bytes();
    bytes.extend(std::iter::repeat_with(|| fastrand::u8(..)).take(LIMIT + 50_000));
    bytes
}

async fn topic(compression: &str) -> Topic {
    let limit = LIMIT.to_string();
    let settings = [("max.message.bytes", limit.as_str()), ("compression.type", compression)];
    Topics::new(&brokers(), "sizes").create_with(compression, 1, &settings).await
}

/// What became of a record.
async fn send(caller: &mut Caller, topic: &Topic, value: &[u8]) -> Outcome {
    let plain = record(&topic.name, "k", b"");
    let ticket = caller.send(&Record { value: Some(value), ..plain }).await;
    caller.reported().await;
    caller.outcomes[&ticket]
}

/// The first numbers of what the topic holds.
async fn held(topic: &Topic) -> Vec<u32> {
    let records = topic.read_all().await;
    let number = |value: &[u8]| {
        let digits: String =
            value.iter().map(|b| char::from(*b)).take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    };
    records.iter().map(|record| number(record.value.as_deref().expect("a value"))).collect()
}

/// Every codec of the producer with every way of the topic to keep its batches: what compresses is taken where it
/// arrives and stays compressed, and nothing else is; what is around it arrives, once and in order.
#[tokio::test]
async fn what_compresses_is_taken_above_the_limit_unless_the_topic_keeps_it_uncompressed() {
    let plain = |number: u32| format!("{number} {}", noise()).into_bytes();
    for kept in ["producer", "gzip", "snappy", "lz4", "zstd", "uncompressed"] {
        for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
            let case = format!("{codec} to a topic that keeps {kept}");
            let topic = topic(kept).await;
            let mut caller = Caller::open(&compressing(&brokers(), codec));
            assert_eq!(send(&mut caller, &topic, &plain(1)).await, Outcome::Acked, "{case}");
            let outcome = send(&mut caller, &topic, &text(2)).await;
            if codec == "none" || kept == "uncompressed" {
                let Outcome::Rejected { scope: Scope::Event, reason } = outcome else {
                    panic!("{case}: {outcome:?}");
                };
                // Before it was sent: nobody has to start anew.
                assert!(
                    reason.excess().is_some_and(|excess| excess.limit == LIMIT),
                    "{case}: {reason:?}"
                );
                assert!(!caller.was_told("broken"), "{case}");
            } else {
                assert_eq!(outcome, Outcome::Acked, "{case}");
            }
            assert_eq!(send(&mut caller, &topic, &plain(3)).await, Outcome::Acked, "{case}");
            if kept == "uncompressed" && codec != "none" {
                // The broker's own word: what it stores is above the limit.
                let mut raw = client_config(&brokers());
                raw.set("compression.type", codec).set("message.max.bytes", "10000000");
                let producer: FutureProducer = raw.create().expect("a producer");
                let value = text(2);
                let large = FutureRecord::to(&topic.name).key("k").payload(&value);
                let refused = producer.send(large, SOON).await.expect_err("a refusal").0;
                assert_eq!(
                    refused.rdkafka_error_code(),
                    Some(RDKafkaErrorCode::MessageSizeTooLarge),
                    "{case}"
                );
            }
            let taken = outcome == Outcome::Acked;
            let wanted: &[u32] = if taken { &[1, 2, 3] } else { &[1, 3] };
            assert_eq!(held(&topic).await, wanted, "{case}");
        }
    }
}

/// However many the broker refuses, each is refused for itself: no producer is given up, and nothing is swapped.
#[tokio::test]
async fn many_records_that_the_broker_refuses_cost_no_producer() {
    const REFUSED: u32 = 20;
    let topic = topic("producer").await;
    let mut caller = Caller::open(&compressing(&brokers(), "lz4"));
    let mut wanted = Vec::new();
    let mut slowest = Duration::ZERO;
    for number in 0..REFUSED {
        let small = 3 * number;
        assert_eq!(send(&mut caller, &topic, small.to_string().as_bytes()).await, Outcome::Acked);
        let begun = Instant::now();
        let outcome = send(&mut caller, &topic, &bytes(small + 1)).await;
        slowest = slowest.max(begun.elapsed());
        let Outcome::Rejected { scope: Scope::Event, reason } = outcome else {
            panic!("{number}: {outcome:?}");
        };
        assert!(reason.is_compressed(), "{number}: {reason:?}");
        // Behind a refusal, by the same producer.
        assert_eq!(send(&mut caller, &topic, &text(small + 2)).await, Outcome::Acked);
        wanted.extend([small, small + 2]);
    }
    show(&format!("{REFUSED} refusals of 450 kB: the slowest after {slowest:.1?}"));
    assert!(!caller.was_told("broken"), "{:?}", caller.said);
    assert_eq!(held(&topic).await, wanted, "in order, once");
}

/// Hands over a large record with nothing else in flight, and does not wait for its report.
async fn hand_over(caller: &mut Caller, topic: &Topic, value: &[u8]) -> u64 {
    let record = Record { value: Some(value), ..record(&topic.name, "k", b"") };
    caller.until("all reports", SOON, |c| c.outcomes.len() as u64 == c.next).await;
    let ticket = Ticket(caller.next);
    caller.sink.enqueue_alone(ticket, &record, None).expect("taken");
    caller.next += 1;
    ticket.0
}

/// A broker that answers nobody while a large record is on its way, or is killed: the record is neither refused nor
/// taken, and arrives once when there is an answer.
#[tokio::test]
async fn large_record_waits_for_a_broker_that_is_away_and_arrives_once() {
    for killed in [false, true] {
        let mut broker = PrivateKafka::start("").await;
        let limit = LIMIT.to_string();
        let settings = [("max.message.bytes", limit.as_str())];
        let topic = Topics::new(&broker.brokers(), "sizes").create_with("t", 1, &settings).await;
        let mut caller = Caller::open(&compressing(&broker.brokers(), "lz4"));
        assert_eq!(send(&mut caller, &topic, b"1").await, Outcome::Acked);
        assert_eq!(send(&mut caller, &topic, &text(2)).await, Outcome::Acked);
        if killed {
            broker.kill().await;
        } else {
            broker.freeze();
        }
        let ticket = hand_over(&mut caller, &topic, &text(3)).await;
        caller.until("the outage", TOLD, |caller| !caller.said.is_empty()).await;
        assert_eq!(caller.outcomes.get(&ticket), None, "killed {killed}");
        if killed {
            broker.restart().await;
        } else {
            broker.thaw();
        }
        caller.until("its report", 2 * SOON, |c| c.outcomes.contains_key(&ticket)).await;
        assert_eq!(caller.outcomes[&ticket], Outcome::Acked, "killed {killed}");
        assert_eq!(send(&mut caller, &topic, b"4").await, Outcome::Acked);
        assert!(!caller.was_told("broken"), "killed {killed}: {:?}", caller.said);
        assert_eq!(held(&topic).await, [1, 2, 3, 4], "killed {killed}");
    }
}

/// A reset gives up a large record with everything else: it is not written behind what comes after the reset, and
/// nothing is reported of it.
#[tokio::test]
async fn large_record_that_a_reset_gives_up_is_not_written_behind_what_follows() {
    let broker = PrivateKafka::start("").await;
    let limit = LIMIT.to_string();
    let settings = [("max.message.bytes", limit.as_str())];
    let topic = Topics::new(&broker.brokers(), "sizes").create_with("t", 1, &settings).await;
    let mut caller = Caller::open(&compressing(&broker.brokers(), "lz4"));
    assert_eq!(send(&mut caller, &topic, &text(1)).await, Outcome::Acked);
    broker.freeze();
    let given_up = hand_over(&mut caller, &topic, &text(2)).await;
    assert!(!caller.sink.is_idle(), "it is on its way");
    caller.sink.reset();
    broker.thaw();
    caller.next -= 1;
    for number in 2..6 {
        // The first of them has the ticket of the one that was given up.
        let value = if number == 2 { text(2) } else { number.to_string().into_bytes() };
        assert_eq!(send(&mut caller, &topic, &value).await, Outcome::Acked, "{number}");
    }
    assert_eq!(given_up + 4, caller.next);
    let mut found = held(&topic).await;
    found.dedup();
    assert_eq!(found, [1, 2, 3, 4, 5], "in order");
}

/// The producer for large records learns of partitions as the others do.
#[tokio::test]
async fn partition_that_is_new_is_known_to_the_producer_for_large_records() {
    let topic = topic("producer").await;
    let mut caller = Caller::open(&compressing(&brokers(), "lz4"));
    let value = text(1);
    let plain = record(&topic.name, "k", b"");
    let to = |partition| Record { partition: Some(partition), value: Some(&value), ..plain };
    caller.send(&to(0)).await;
    caller.reported().await;
    assert!(caller.all_acked());
    let more = NewPartitions::new(&topic.name, 2);
    admin(&brokers()).create_partitions(&[more], &AdminOptions::new()).await.unwrap();
    let since = Instant::now();
    loop {
        let ticket = caller.send(&to(1)).await;
        caller.reported().await;
        if caller.outcomes[&ticket] == Outcome::Acked {
            break;
        }
        assert!(since.elapsed() < SOON, "{:?}", caller.outcomes[&ticket]);
    }
    assert!(!caller.was_told("broken"), "{:?}", caller.said);
}

/// A record that the broker has refused is sent to it once, and not with every try.
#[tokio::test]
async fn what_does_not_compress_is_refused_by_the_broker_once_and_taken_when_the_limit_is_raised() {
    let topic = topic("producer").await;
    let mut caller = Caller::open(&compressing(&brokers(), "lz4"));
    let large = bytes(2);
    assert_eq!(send(&mut caller, &topic, b"1 small").await, Outcome::Acked);
    let plain = record(&topic.name, "k", b"");
    let large_record = Record { value: Some(&large), ..plain };
    assert_eq!(caller.offer(&large_record), Err(NotTaken::Alone), "beside nothing else");
    let outcome = send(&mut caller, &topic, &large).await;
    let Outcome::Rejected { scope: Scope::Event, reason } = outcome else { panic!("{outcome:?}") };
    let Some(Excess { size, limit: LIMIT, compressed: true }) = reason.excess() else {
        panic!("{reason:?}")
    };
    assert!(size > large.len() && size < large.len() + 100, "{size}");
    // The caller's second word on it is the sink's own.
    let again = caller.send(&large_record).await;
    assert_eq!(caller.outcomes[&again], Outcome::Rejected { scope: Scope::Event, reason });
    assert!(!caller.was_told("broken"));
    assert_eq!(send(&mut caller, &topic, b"3 small").await, Outcome::Acked);
    // Another one is not it.
    assert_eq!(send(&mut caller, &topic, &text(4)).await, Outcome::Acked);
    alter(&topic, "max.message.bytes", "900000").await;
    let since = std::time::Instant::now();
    let end = std::time::Instant::now() + SOON;
    // A broker describes the new limit a moment before its log applies it: the record may be refused once more.
    loop {
        caller.look();
        let ticket = postrider::record::Ticket(caller.next);
        match caller.sink.enqueue_again(ticket, &large_record, since) {
            Ok(()) => {
                caller.next += 1;
                caller.reported().await;
                if caller.outcomes[&ticket.0] == Outcome::Acked {
                    break;
                }
            }
            Err(NotTaken::Doubted(_) | NotTaken::Full | NotTaken::Destination) => {
                caller.mailbox.arrived().await;
            }
            Err(other) => panic!("{other:?}"),
        }
        assert!(std::time::Instant::now() < end, "the new limit is not known");
    }
    assert_eq!(held(&topic).await, [1, 3, 4, 2]);
}

/// `message.max.bytes` of an operator bounds a record before compression, and the refusal says both sizes.
#[tokio::test]
async fn an_operators_own_limits_decide_before_the_brokers() {
    let topic = topic("producer").await;
    let with = |name: &str, value: &str| {
        let mut spec = compressing(&brokers(), "zstd");
        spec.properties.insert(name.to_owned(), value.to_owned());
        spec
    };
    let value = text(1);
    let mut caller = Caller::open(&with("message.max.bytes", "2000000"));
    let outcome = send(&mut caller, &topic, &value).await;
    let refused = |size, limit| Outcome::Rejected {
        scope: Scope::Event,
        reason: Refusal::too_large(size, limit),
    };
    assert_eq!(outcome, refused(value.len() + 1, 2_000_000));
    let mut caller = Caller::open(&with("message.max.bytes", "4000000"));
    assert_eq!(send(&mut caller, &topic, &value).await, Outcome::Acked);
    let spec = KafkaSpec { size_max: Some(2_000_000), ..compressing(&brokers(), "zstd") };
    let outcome = send(&mut Caller::open(&spec), &topic, &value).await;
    assert_eq!(outcome, refused(value.len() + 1, 2_000_000));
    // Of several sizes, many are in flight before: each large one goes alone, and nothing is swapped.
    let spec = KafkaSpec { size_max: Some(10_000_000), ..compressing(&brokers(), "zstd") };
    let mut caller = Caller::open(&spec);
    for number in 2..20 {
        let value = if number % 6 == 0 { text(number) } else { number.to_string().into_bytes() };
        let plain = record(&topic.name, "k", b"");
        caller.send(&Record { value: Some(&value), ..plain }).await;
    }
    caller.reported().await;
    assert!(caller.all_acked(), "{:?}", caller.outcomes);
    let wanted: BTreeMap<usize, u32> = (1..20).enumerate().collect();
    assert_eq!(held(&topic).await.into_iter().enumerate().collect::<BTreeMap<_, _>>(), wanted);
}
