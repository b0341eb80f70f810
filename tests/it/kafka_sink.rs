//! The Kafka sink against a real broker in good health: what arrives, what is refused, and how it closes.

use crate::await_that::await_that;
use crate::pipeline::show;
use crate::server::brokers;
use crate::sink_caller::{Caller, SOON, alter, by_key, noise, numbers, record, spec, uncompressed};
use crate::topic::{Topic, Topics, admin, client_config, create_topic};
use postrider::record::{Header, Outcome, Record, Refusal, Scope, Ticket};
use postrider::sink::NotTaken;
use postrider::sink::kafka::KafkaSpec;
use rdkafka::admin::{AdminOptions, NewPartitions};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_hundred_thousand_records_arrive_in_order_of_each_key() {
    arrive_in_order(1).await;
}

/// Three do not divide eight partitions: each of these has records of all three.
#[tokio::test]
async fn a_hundred_thousand_records_arrive_in_order_through_three_producers() {
    arrive_in_order(3).await;
}

async fn arrive_in_order(producers: usize) {
    const COUNT: u64 = 100_000;
    let topic = Topics::new(&brokers(), "sink_order").create("orders", 8).await;
    let mut caller = Caller::open(&KafkaSpec { producers, ..spec(&brokers()) });
    let start = Instant::now();
    for number in 0..COUNT {
        let key = format!("k{}", number % 997);
        let value = format!("{number} {}", "x".repeat(300));
        let position = format!("0/1A2B3C8:{number}");
        let headers = [
            Header { name: "id", value: Some(b"7") },
            Header { name: "position", value: Some(position.as_bytes()) },
            Header { name: "null", value: None },
        ];
        let record = Record { headers: &headers, ..record(&topic.name, &key, value.as_bytes()) };
        caller.send(&record).await;
    }
    caller.reported().await;
    show(&format!("{COUNT} acknowledged in {:?}, producers: {producers}", start.elapsed()));
    assert!(caller.all_acked());
    let records = topic.read_all().await;
    assert_eq!(records.len() as u64, COUNT);
    let first = &records[0];
    assert_eq!(first.timestamp, Some(1_700_000_000_123));
    assert_eq!(first.header("id"), Some("7"));
    assert_eq!(first.headers[2], ("null".to_owned(), None));
    for (key, numbers) in by_key(&records) {
        assert!(numbers.is_sorted(), "{key} is out of order");
    }
}

#[tokio::test]
async fn null_keys_null_values_empty_values_and_partitions_arrive_as_they_are() {
    let topic = Topics::new(&brokers(), "sink_nulls").create("t", 3).await;
    let mut caller = Caller::open(&spec(&brokers()));
    let plain = record(&topic.name, "k", b"v");
    caller.send(&Record { key: None, partition: Some(0), ..plain }).await;
    caller.send(&Record { value: None, partition: Some(1), ..plain }).await;
    caller.send(&Record { value: Some(b""), partition: Some(2), ..plain }).await;
    let missing = caller.send(&Record { partition: Some(3), ..plain }).await;
    let name = caller.send(&Record { topic: "no/topic", ..plain }).await;
    caller.reported().await;
    let rejected = |reason| Outcome::Rejected { scope: Scope::Event, reason };
    assert_eq!(caller.outcomes[&missing], rejected(Refusal::partition(3)));
    let no_name = Refusal::destination("the topic's name is not one Kafka allows");
    assert_eq!(caller.outcomes[&name], rejected(no_name));
    let records = topic.read_all().await;
    let seen: Vec<_> = records
        .iter()
        .map(|record| (record.partition, record.key.as_deref(), record.value.as_deref()))
        .collect();
    assert_eq!(
        seen,
        [
            (0, None, Some(b"v".as_slice())),
            (1, Some(b"k".as_slice()), None),
            (2, Some(b"k".as_slice()), Some(b"".as_slice())),
        ]
    );
}

/// Producers learn of partitions one by one, and minutes apart where nobody tells them.
#[tokio::test]
async fn partition_that_is_new_is_known_to_every_producer() {
    let topic = Topics::new(&brokers(), "sink_grown").create("t", 8).await;
    let mut caller = Caller::open(&KafkaSpec { producers: 3, ..spec(&brokers()) });
    let to = |partition| Record {
        key: None,
        partition: Some(partition),
        ..record(&topic.name, "", b"v")
    };
    caller.send(&to(2)).await;
    caller.reported().await;
    let more = NewPartitions::new(&topic.name, 9);
    admin(&brokers()).create_partitions(&[more], &AdminOptions::new()).await.unwrap();
    // By the same producer as partition 2.
    let since = Instant::now();
    loop {
        let ticket = caller.send(&to(8)).await;
        caller.reported().await;
        if caller.outcomes[&ticket] == Outcome::Acked {
            break;
        }
        assert!(since.elapsed() < SOON, "{:?}", caller.outcomes[&ticket]);
    }
}

#[tokio::test]
async fn keys_go_where_the_java_client_sends_them() {
    // Key and `Utils.murmur2(key)`, from Kafka's own UtilsTest; the partition is `toPositive` of it, modulo.
    const JAVA: [(&str, i32); 6] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ];
    let topic = Topics::new(&brokers(), "sink_murmur").create("t", 8).await;
    let mut caller = Caller::open(&spec(&brokers()));
    for (key, _) in JAVA {
        caller.send(&record(&topic.name, key, b"0")).await;
    }
    caller.reported().await;
    let records = topic.read_all().await;
    let seen: BTreeMap<_, _> =
        records.iter().map(|record| (record.key_text().unwrap(), record.partition)).collect();
    assert_eq!(seen, JAVA.map(|(key, hash)| (key, (hash & i32::MAX) % 8)).into());
}

#[tokio::test]
async fn a_record_over_the_topics_limit_is_refused_and_the_others_go_on() {
    let settings = [("max.message.bytes", "20000")];
    let topic = Topics::new(&brokers(), "sink_large").create_with("t", 1, &settings).await;
    let mut caller = Caller::open(&uncompressed(&brokers()));
    let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(40_000).collect();
    let plain = record(&topic.name, "k", b"");
    caller.send(&Record { value: Some(&noise[..10_000]), ..plain }).await;
    let large = caller.send(&Record { value: Some(&noise), ..plain }).await;
    // The edge: 61 bytes of batch, 11 of record, 1 of key. The broker's own word on it is below.
    caller.send(&Record { value: Some(&noise[..19_927]), ..plain }).await;
    let edge = caller.send(&Record { value: Some(&noise[..19_928]), ..plain }).await;
    caller.send(&Record { value: Some(&noise[..10_000]), ..plain }).await;
    caller.reported().await;
    for (ticket, outcome) in &caller.outcomes {
        let refused = matches!(
            outcome,
            Outcome::Rejected { scope: Scope::Event, reason }
                if reason.excess().is_some_and(|excess| excess.limit == 20_000)
        );
        assert_eq!(refused, [large, edge].contains(ticket), "{ticket}: {outcome:?}");
    }
    assert_eq!(topic.read_all().await.len(), 3);
    let producer: FutureProducer = client_config(&brokers()).create().unwrap();
    for (len, taken) in [(19_927, true), (19_928, false)] {
        let record = FutureRecord::to(&topic.name).key("k").payload(&noise[..len]);
        assert_eq!(producer.send(record, SOON).await.is_ok(), taken, "{len}");
    }
}

#[tokio::test]
async fn small_records_pipelined_to_a_topic_with_a_small_limit_all_arrive() {
    let settings = [("max.message.bytes", "20000")];
    let topics = Topics::new(&brokers(), "sink_small");
    let usual = topics.create("usual", 2).await;
    let small = topics.create_with("small", 2, &settings).await;
    let mut caller = Caller::open(&spec(&brokers()));
    for number in 0..2_000_u32 {
        let value = format!("{number} {}", noise());
        // The other topic first: the producer is replaced while it has records in flight.
        let topic = if number < 500 || number % 2 == 0 { &usual } else { &small };
        caller.send(&record(&topic.name, "k", value.as_bytes())).await;
    }
    caller.reported().await;
    assert!(caller.all_acked());
    assert_eq!(small.read_all().await.len(), 750);
    let usual = by_key(&usual.read_all().await);
    assert_eq!(usual["k"].len(), 1_250);
    assert!(usual["k"].is_sorted());
}

#[tokio::test]
async fn an_operators_limit_is_kept() {
    let topic = Topics::new(&brokers(), "sink_size_max").create("t", 1).await;
    let mut caller = Caller::open(&KafkaSpec { size_max: Some(100), ..spec(&brokers()) });
    let large = caller.send(&record(&topic.name, "k", &[b'x'; 100])).await;
    caller.send(&record(&topic.name, "k", &[b'x'; 99])).await;
    caller.reported().await;
    let reason = Refusal::too_large(101, 100);
    assert_eq!(caller.outcomes[&large], Outcome::Rejected { scope: Scope::Event, reason });
    assert_eq!(topic.read_all().await.len(), 1);
}

#[tokio::test]
async fn closing_is_quick_when_nothing_is_in_flight_and_sends_what_lingers() {
    let topic = Topics::new(&brokers(), "sink_close").create("t", 4).await;
    let mut linger = spec(&brokers());
    linger.properties.insert("linger.ms".to_owned(), "5000".to_owned());
    let mut caller = Caller::open(&linger);
    numbers(&topic, &mut caller, 0..100).await;
    let start = Instant::now();
    caller.sink.close(SOON);
    let lingering = start.elapsed();
    caller.look();
    assert_eq!(caller.outcomes.len(), 100);
    assert!(caller.all_acked());
    assert_eq!(topic.read_all().await.len(), 100);

    let mut caller = Caller::open(&spec(&brokers()));
    numbers(&topic, &mut caller, 0..100).await;
    caller.reported().await;
    let start = Instant::now();
    caller.sink.close(SOON);
    let empty = start.elapsed();
    println!("closed in {lingering:?} with 100 lingering, {empty:?} with none");
    assert!(lingering < Duration::from_secs(2), "{lingering:?}");
    assert!(empty < Duration::from_millis(50), "{empty:?}");
}

#[tokio::test]
async fn a_record_far_over_the_usual_limit_arrives_where_the_topic_takes_it() {
    let settings = [("max.message.bytes", "5000000")];
    let topic = Topics::new(&brokers(), "sink_huge").create_with("t", 1, &settings).await;
    let mut caller = Caller::open(&spec(&brokers()));
    let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(4_999_900).collect();
    let plain = record(&topic.name, "k", b"");
    for len in [10, 1_000, 4_999_900, 10, 1_000_000, 1_048_576, 3_000_000] {
        caller.send(&Record { value: Some(&noise[..len]), ..plain }).await;
    }
    caller.reported().await;
    assert!(caller.all_acked(), "{:?}", caller.outcomes);
    let lens: Vec<_> =
        topic.read_all().await.iter().map(|r| r.value.as_ref().unwrap().len()).collect();
    assert_eq!(lens, [10, 1_000, 4_999_900, 10, 1_000_000, 1_048_576, 3_000_000]);
}

#[tokio::test]
async fn a_record_is_not_refused_on_old_news_of_its_topic_and_keeps_no_other_waiting() {
    let settings = [("max.message.bytes", "20000")];
    let topic = Topics::new(&brokers(), "sink_news").create_with("t", 1, &settings).await;
    let mut caller = Caller::open(&uncompressed(&brokers()));
    caller.send(&record(&topic.name, "k", b"0")).await;
    caller.reported().await;
    let large = noise().repeat(50);
    let (large, small) =
        (record(&topic.name, "k", large.as_bytes()), record(&topic.name, "k", b"small"));
    // News is old after five seconds: until then the record is refused.
    await_that("old news", SOON, || {
        let answer = caller.offer(&large);
        async move {
            match answer {
                Err(NotTaken::Doubted(reason))
                    if reason.excess().is_some_and(|excess| excess.limit == 20_000) =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        }
    })
    .await;
    assert_eq!(caller.offer(&small), Ok(1), "others go on meanwhile");
    caller.until_retry().await;
    let refused = caller.offer(&large);
    assert!(matches!(refused, Err(NotTaken::Refused(_))), "on the answer: {refused:?}");
    // Raised a moment after that: whoever knows of it says so, and the record is taken.
    alter(&topic, "max.message.bytes", "100000").await;
    let since = Instant::now();
    let again = |caller: &mut Caller| {
        let ticket = Ticket(caller.next);
        caller.sink.enqueue_again(ticket, &large, since).inspect(|()| caller.next += 1)
    };
    let doubted = again(&mut caller);
    assert!(matches!(doubted, Err(NotTaken::Doubted(_))), "{doubted:?}");
    assert_eq!(caller.offer(&small), Ok(2), "others go on meanwhile");
    await_that("taken on the answer", SOON, || {
        caller.look();
        let answer = again(&mut caller);
        async move { answer.map_err(|why| format!("{why:?}")) }
    })
    .await;
    caller.reported().await;
    assert!(caller.all_acked(), "{:?}", caller.outcomes);
}

/// What was heard before a try says nothing of it; one answer after them decides all tries of a topic.
#[tokio::test]
async fn tries_of_a_missing_topic_are_decided_by_one_answer_that_comes_after_them() {
    let beside = Topics::new(&brokers(), "sink_nowhere").create("beside", 1).await;
    let missing = Topic { name: format!("{}-missing", beside.name), ..beside.clone() };
    let record = record(&missing.name, "k", b"v");
    let mut caller = Caller::open(&spec(&brokers()));
    assert_eq!(caller.offer(&record), Err(NotTaken::Destination), "not heard of");
    caller.until("told", SOON, |caller| caller.was_told("does not exist")).await;
    assert_eq!(caller.offer(&record), Err(NotTaken::Missing), "good enough for the first time");
    let tries = [Instant::now(), Instant::now(), Instant::now()];
    for since in tries {
        let answer = caller.sink.enqueue_again(Ticket(9), &record, since);
        assert_eq!(answer, Err(NotTaken::Destination), "old news");
        assert_eq!(caller.sink.probe(&missing.name, since), Err(NotTaken::Destination));
    }
    await_that("an answer", SOON, || {
        let answer = caller.sink.enqueue_again(Ticket(9), &record, tries[0]);
        async move {
            if answer == Err(NotTaken::Missing) { Ok(()) } else { Err(format!("{answer:?}")) }
        }
    })
    .await;
    for since in tries {
        let answer = caller.sink.enqueue_again(Ticket(9), &record, since);
        assert_eq!(answer, Err(NotTaken::Missing), "the same answer serves all");
    }
    create_topic(&missing.brokers, &missing.name, 1, &[]).await;
    let since = Instant::now();
    await_that("the topic is there", SOON, || {
        let answer = caller.sink.probe(&missing.name, since);
        async move { answer.map_err(|why| format!("{why:?}")) }
    })
    .await;
    caller.send(&record).await;
    caller.reported().await;
    assert!(caller.all_acked() && caller.said.ends_with(&["up".to_owned()]), "{:?}", caller.said);
}

#[tokio::test]
async fn librdkafkas_mock_broker_will_do() {
    let cluster = MockCluster::new(1).expect("a mock cluster");
    cluster.create_topic("t", 4, 1).expect("a topic");
    let mut caller = Caller::open(&spec(&cluster.bootstrap_servers()));
    for number in 0..100_u32 {
        caller.send(&record("t", "k", number.to_string().as_bytes())).await;
    }
    caller.reported().await;
    assert!(caller.all_acked());
    assert_eq!(caller.said, [""; 0]);
}
