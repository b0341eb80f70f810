//! More partitions than a broker answers for at a time: their records wait for a turn in the sink.

use crate::server::brokers;
use crate::sink_caller::{Caller, SOON, by_key, record, spec};
use crate::topic::{Topic, Topics};
use postrider::record::Record;
use postrider::sink::KafkaSpec;
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 64;

/// Far more than have their turn at once, far fewer than are a backlog.
const BURST: i32 = 60;

/// A caller whose records wait for turns, and a topic whose partitions know its producer.
async fn known(test: &str) -> (Topic, Caller) {
    let topic = Topics::new(&brokers(), test).create("t", PARTITIONS).await;
    let mut caller = Caller::open(spec(&brokers()));
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

#[tokio::test]
async fn records_of_many_partitions_all_arrive_in_order_at_any_rate() {
    let topic = Topics::new(&brokers(), "turns_order").create("t", PARTITIONS).await;
    for shards in [1, 2] {
        let mut caller = Caller::open(KafkaSpec { shards, ..spec(&brokers()) });
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
        assert_eq!(records.len() - first, number as usize, "{shards} shards");
        for (key, numbers) in by_key(&records) {
            let of_these = numbers.len() / shards;
            assert!(numbers[numbers.len() - of_these..].is_sorted(), "{key} is out of order");
        }
    }
}

/// Who wants it sent waits for its report: what is left at a close was given up, and the slot may be another's.
#[tokio::test]
async fn a_close_does_not_send_what_waits_for_its_turn() {
    let (topic, mut caller) = known("turns_close").await;
    burst(&topic, &mut caller, b"given up");
    caller.sink.close(SOON);
    assert_few_were_sent(&topic).await;
}

/// Another process may have the slot: what was given up must not come behind what that one has sent.
#[tokio::test]
async fn what_waits_for_its_turn_is_given_up_by_a_reset() {
    let (topic, mut caller) = known("turns_reset").await;
    burst(&topic, &mut caller, b"given up");
    caller.sink.reset();
    let since = Instant::now();
    caller.send(&to(&topic, 0, b"after")).await;
    let last = caller.next - 1;
    caller.until("its report", SOON, |caller| caller.outcomes.contains_key(&last)).await;
    // Longer than anything waits for a turn.
    while since.elapsed() < Duration::from_secs(1) {
        caller.look();
        tokio::task::yield_now().await;
    }
    assert_few_were_sent(&topic).await;
}

async fn assert_few_were_sent(topic: &Topic) {
    let records = topic.read_all().await;
    let sent = records.iter().filter(|record| record.value_text() == Some("given up")).count();
    assert!(sent < 20, "{sent} of {BURST} were sent");
}
