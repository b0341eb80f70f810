//! More partitions than a broker answers for at a time: their records wait for a turn in the sink.

use crate::await_that::await_that;
use crate::private::PrivateKafka;
use crate::proxy::{Mode, Proxy};
use crate::server::brokers;
use crate::sink_caller::{Caller, SOON, by_key, numbers_of_one_key, record, spec, uncompressed};
use crate::topic::{Topic, Topics};
use postrider::record::Record;
use postrider::sink::NotTaken;
use postrider::sink::kafka::KafkaSpec;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 64;

/// Far more than have their turn at once, far fewer than are a backlog.
const BURST: i32 = 60;

/// A caller whose records wait for turns, and a topic whose partitions know its producer.
async fn known(brokers: &str, test: &str) -> (Topic, Caller) {
    let topic = Topics::new(brokers, test).create("t", PARTITIONS).await;
    let mut caller = Caller::open(&spec(brokers));
    for partition in 0..PARTITIONS {
        caller.send(&to(&topic, partition, b"0")).await;
    }
    caller.reported().await;
    (topic, caller)
}

fn to<'a>(topic: &'a Topic, partition: i32, value: &'a [u8]) -> Record<'a> {
    Record { partition: Some(partition), ..record(&topic.name, "k", value) }
}

/// A record for each of many partitions, at once.
fn burst(topic: &Topic, caller: &mut Caller, value: &[u8]) {
    for partition in 0..BURST {
        caller.offer(&to(topic, partition, value)).expect("it is taken, and may wait");
    }
}

/// The same, as soon as the sink takes them.
async fn burst_later(topic: &Topic, caller: &mut Caller, value: &[u8]) {
    for partition in 0..BURST {
        caller.send(&to(topic, partition, value)).await;
    }
}

#[tokio::test]
async fn records_of_many_partitions_all_arrive_in_order_at_any_rate() {
    let topic = Topics::new(&brokers(), "turns_order").create("t", PARTITIONS).await;
    for producers in [1, 2] {
        let mut caller = Caller::open(&KafkaSpec { producers, ..spec(&brokers()) });
        let first = topic.read_all().await.len();
        let mut number = 0_u32;
        // From a transaction now and then to a backlog.
        for (transactions, records) in [(200, 10), (100, 50), (10, 1_000)] {
            for _ in 0..transactions {
                for _ in 0..records {
                    let key = format!("k{}", number % 331);
                    let value = format!("{number} {}", "x".repeat(200));
                    caller.send(&record(&topic.name, &key, value.as_bytes())).await;
                    number += 1;
                }
                caller.look();
            }
        }
        caller.reported().await;
        assert!(caller.all_acked());
        let records = topic.read_all().await;
        assert_eq!(records.len() - first, number as usize, "{producers} producers");
        for (key, numbers) in by_key(&records) {
            let of_these = numbers.len() / producers;
            assert!(numbers[numbers.len() - of_these..].is_sorted(), "{key} is out of order");
        }
    }
}

/// Who wants it sent waits for its report: what is left at a close was given up, and the slot may be another's.
#[tokio::test]
async fn a_close_does_not_send_what_waits_for_its_turn() {
    let (topic, mut caller) = known(&brokers(), "turns_close").await;
    burst(&topic, &mut caller, b"given up");
    caller.sink.close(SOON);
    assert_few_were_sent(&topic).await;
}

/// Another process may have the slot: what was given up must not come behind what that one has sent.
#[tokio::test]
async fn what_waits_for_its_turn_is_given_up_by_a_reset() {
    let broker = PrivateKafka::start("").await;
    let (topic, mut caller) = known(&broker.brokers(), "turns_reset").await;
    // No answer comes that would give a record its turn.
    broker.freeze();
    burst(&topic, &mut caller, b"given up");
    caller.sink.reset();
    broker.thaw();
    caller.send(&to(&topic, 0, b"after")).await;
    let last = caller.next - 1;
    caller.until("its report", SOON, |caller| caller.outcomes.contains_key(&last)).await;
    assert_eq!(caller.sink.turn(), None, "nothing waits any more");
    assert_few_were_sent(&topic).await;
}

/// The producers are exchanged for such as make smaller batches while records wait.
#[tokio::test]
async fn what_waits_is_handed_over_when_other_producers_have_taken_over_and_asks_for_no_turn_before()
 {
    let broker = PrivateKafka::start("").await;
    let (topic, mut caller) = known(&broker.brokers(), "turns_resize").await;
    let settings = [("max.message.bytes", "20000")];
    let small = Topics::new(&broker.brokers(), "turns_small").create_with("t", 1, &settings).await;
    await_that("news of the topic", SOON, || {
        let answer = caller.sink.probe(&small.name, Instant::now());
        std::future::ready(answer.map_err(|why| format!("{why:?}")))
    })
    .await;
    // What the former producers have is not answered meanwhile.
    broker.freeze();
    burst(&topic, &mut caller, b"1");
    let other = record(&small.name, "k", b"1");
    assert_eq!(caller.offer(&other), Err(NotTaken::Full), "the producers are exchanged");
    assert_eq!(caller.sink.turn(), None, "what ends that is posted");
    broker.thaw();
    burst_later(&topic, &mut caller, b"2").await;
    caller.send(&other).await;
    caller.reported().await;
    assert!(caller.all_acked());
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for record in topic.read_all().await {
        all.entry(record.partition).or_default().push(record.value_text().unwrap().to_owned());
    }
    for partition in 0..BURST {
        assert_eq!(all[&partition], ["0", "1", "2"], "partition {partition}");
    }
}

/// Records that the former producers have when they are exchanged: many more than are in their requests.
const BACKLOG: u64 = 400;

/// How much later each piece passes the network. The former producers need many round trips for what they have, and the
/// new ones some for their first record.
const LATER: Duration = Duration::from_millis(40);

/// The producers are exchanged twice for such as make smaller batches, with a backlog behind a slow network: the new
/// ones send nothing before the former ones have the last answer.
#[tokio::test]
async fn new_producers_send_nothing_while_the_former_ones_have_records_without_an_answer() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let broker = PrivateKafka::start_on(|port, _| {
        let proxy = PROXY.get_or_init(|| Proxy::start(port, None));
        format!("advertised.listeners=PLAINTEXT://127.0.0.1:{}", proxy.port)
    });
    let broker = broker.await;
    let proxy = PROXY.get().expect("a proxy");
    let topics = Topics::new(&broker.brokers(), "turns_leaving");
    let limited = async |name: &str, limit: &str| {
        topics.create_with(name, 1, &[("max.message.bytes", limit)]).await
    };
    let topic = limited("t", "6000").await;
    let (smaller, smallest) = (limited("smaller", "5000").await, limited("smallest", "4000").await);
    let mut caller = Caller::open(&uncompressed(&broker.brokers()));
    for topic in [&topic, &smaller, &smallest] {
        await_that("news of the topic", SOON, || {
            let answer = caller.sink.probe(&topic.name, Instant::now());
            std::future::ready(answer.map_err(|why| format!("{why:?}")))
        })
        .await;
    }
    numbers_of_one_key(&topic, &mut caller, 1).await;
    caller.reported().await;
    let mut number = 1;
    for other in [&smaller, &smallest] {
        proxy.set(Mode::Delay(LATER));
        for _ in 0..BACKLOG {
            let value = format!("{number} {}", "x".repeat(500));
            caller.send(&record(&topic.name, "k", value.as_bytes())).await;
            number += 1;
        }
        // The first that needs other producers.
        let offered = caller.offer(&record(&other.name, "k", b"0"));
        assert_eq!(offered, Err(NotTaken::Full), "the producers are exchanged");
        assert!(!caller.sink.is_idle(), "the former ones have no answer yet");
        for _ in 0..10 {
            caller.send(&record(&topic.name, "k", number.to_string().as_bytes())).await;
            number += 1;
        }
        caller.send(&record(&other.name, "k", b"0")).await;
        proxy.heal();
        caller.reported().await;
    }
    assert!(caller.all_acked());
    let numbers = by_key(&topic.read_all().await).remove("k").expect("the key");
    assert_eq!(numbers, (0..number).collect::<Vec<_>>(), "each once, in order");
}

/// The former producers are emptied while the new ones wait. A reset gives up what they have not sent: another process
/// may have the slot by then. What is in their requests can't be taken back.
#[tokio::test]
async fn what_former_producers_have_not_sent_is_given_up_by_a_reset() {
    static PROXY: OnceLock<Proxy> = OnceLock::new();
    let broker = PrivateKafka::start_on(|port, _| {
        let proxy = PROXY.get_or_init(|| Proxy::start(port, None));
        format!("advertised.listeners=PLAINTEXT://127.0.0.1:{}", proxy.port)
    });
    let broker = broker.await;
    let proxy = PROXY.get().expect("a proxy");
    let topics = Topics::new(&broker.brokers(), "turns_given_up");
    let topic = topics.create_with("t", 1, &[("max.message.bytes", "6000")]).await;
    let smaller = topics.create_with("smaller", 1, &[("max.message.bytes", "5000")]).await;
    let mut caller = Caller::open(&uncompressed(&broker.brokers()));
    await_that("news of the topic", SOON, || {
        let answer = caller.sink.probe(&smaller.name, Instant::now());
        std::future::ready(answer.map_err(|why| format!("{why:?}")))
    })
    .await;
    numbers_of_one_key(&topic, &mut caller, 1).await;
    caller.reported().await;
    proxy.set(Mode::HoleUp);
    numbers_of_one_key(&topic, &mut caller, BACKLOG).await;
    let offered = caller.offer(&record(&smaller.name, "k", b"0"));
    assert_eq!(offered, Err(NotTaken::Full), "the producers are exchanged");
    caller.sink.reset();
    caller.outcomes.clear();
    proxy.heal();
    let last = caller.send(&record(&smaller.name, "k", b"after")).await;
    caller.until("its report", SOON, |caller| caller.outcomes.contains_key(&last)).await;
    let sent = topic.read_all().await.len() as u64;
    assert!(sent < BACKLOG / 2, "{sent} of {BACKLOG} were sent");
}

async fn assert_few_were_sent(topic: &Topic) {
    let records = topic.read_all().await;
    let sent = records.iter().filter(|record| record.value_text() == Some("given up")).count();
    assert!(sent < 20, "{sent} of {BURST} were sent");
}
