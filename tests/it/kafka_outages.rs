//! The Kafka sink on bad days: no broker, a frozen one, a killed one, a topic that goes, a batch refused, a reset.

use crate::await_that::await_that;
use crate::private::PrivateKafka;
use crate::proxy::{Mode, Proxy};
use crate::server::{brokers, unique};
use crate::sink_caller::{
    Caller, SOON, TOLD, alter, by_key, noise, numbers, numbers_of_one_key, record, spec,
    uncompressed,
};
use crate::topic::{Topic, Topics, admin, create_topic};
use postrider::record::{Outcome, Refusal, RefusalKind, Scope, Ticket};
use postrider::sink::kafka::KafkaSpec;
use rdkafka::admin::AdminOptions;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Kafka's `MESSAGE_TOO_LARGE`.
const MESSAGE_TOO_LARGE: i32 = 10;
/// By when brokers that were forgotten are found again.
const FOUND: Duration = Duration::from_secs(40);

#[tokio::test]
async fn a_wrong_address_is_told_with_what_mends_it() {
    let mut caller = Caller::open(&spec("127.0.0.1:1"));
    caller.until("Down", TOLD, |caller| caller.was_told("127.0.0.1:1")).await;
    assert!(caller.said[0].starts_with("no connection to the brokers"), "{:?}", caller.said);
    assert!(caller.hints[0].contains("sink.brokers"), "{:?}", caller.hints);
    // It is told again while it lasts.
    let told = caller.said.len();
    caller.until("Down again", TOLD, |caller| caller.said.len() > told).await;
}

#[tokio::test]
async fn a_missing_topic_is_told_and_all_goes_on_when_it_is_created() {
    let name = unique("sink_missing");
    let mut caller = Caller::open(&spec(&brokers()));
    let waiting = caller.try_send(&record(&name, "k", b"0"), Duration::from_secs(3)).await;
    assert_eq!(waiting, None);
    assert!(caller.was_told("does not exist"), "{:?}", caller.said);
    assert!(caller.hints[0].contains(&format!("--create --topic {name}")), "{:?}", caller.hints);
    create_topic(&brokers(), &name, 2, &[]).await;
    caller.send(&record(&name, "k", b"0")).await;
    caller.reported().await;
    assert!(caller.all_acked());
    assert!(caller.was_told("up"), "{:?}", caller.said);
}

#[tokio::test]
async fn a_frozen_broker_is_told_and_everything_arrives_once_when_it_thaws() {
    outage(|broker| broker.freeze(), async |broker| broker.thaw()).await;
}

#[tokio::test]
async fn a_killed_broker_is_told_and_everything_arrives_once_when_it_is_back() {
    let mut broker = PrivateKafka::start("").await;
    let (topic, mut caller) = with_a_thousand(&broker, 3).await;
    broker.kill().await;
    in_the_dark(&topic, &mut caller).await;
    broker.restart().await;
    in_the_light(&topic, &mut caller).await;
}

/// A broker that misses its heartbeats answers on, leads nothing, and names no broker in its metadata. librdkafka
/// forgets all brokers then, and now and then asks none ever again (its issue 5301).
#[tokio::test]
async fn brokers_that_name_none_for_a_moment_are_found_again() {
    // Fenced half of the time: from 1.5 s after a heartbeat until the next.
    let seldom = "broker.session.timeout.ms=1500\nbroker.heartbeat.interval.ms=3000";
    let mut broker = PrivateKafka::start(seldom).await;
    let (topic, mut caller) = with_a_thousand(&broker, 2).await;
    let end = Instant::now() + Duration::from_secs(40);
    let mut count = 1_000;
    while Instant::now() < end {
        numbers(&topic, &mut caller, count..count + 200).await;
        count += 200;
        caller.until("reports", FOUND, |caller| caller.outcomes.len() as u64 == count).await;
    }
    assert!(caller.all_acked());
    // The reader's librdkafka is no better.
    broker.set("broker.heartbeat.interval.ms=300");
    broker.kill().await;
    broker.restart().await;
    assert_each_once(&topic, count).await;
}

/// The same in the first answer that a producer gets, which has no record and so asks for no topic: polling claims
/// nothing before a broker has answered.
#[tokio::test]
async fn brokers_that_name_none_at_first_are_found_by_a_producer_without_a_record() {
    let broker = PrivateKafka::start("broker.session.timeout.ms=1500").await;
    for time in 0..8 {
        broker.freeze();
        // As long as this takes, the broker misses its heartbeats.
        let mut unheard = Caller::open(&uncompressed(&broker.brokers()));
        unheard.until("Down", TOLD, |caller| caller.was_told("the brokers at")).await;
        drop(unheard);
        broker.thaw();
        let caller = Caller::open(&uncompressed(&broker.brokers()));
        await_that(&format!("the cluster, time {time}"), FOUND, || {
            let found = caller.sink.cluster();
            std::future::ready(found.ok_or_else(|| "not known".to_owned()))
        })
        .await;
    }
}

/// A broker that has just started, or a network that is slow: events do not wait for the topic's configuration, and it
/// is known soon after all the same.
#[tokio::test]
async fn limit_of_a_topic_that_could_not_be_read_at_first_is_known_soon() {
    let proxy = OnceLock::new();
    let broker = PrivateKafka::start_on(|port, _| {
        let proxy = proxy.get_or_init(|| Proxy::start(port, None));
        format!("advertised.listeners=PLAINTEXT://127.0.0.1:{}", proxy.port)
    });
    let broker = broker.await;
    let proxy = proxy.get().expect("a proxy");
    let topic = Topics::new(&broker.brokers(), "sink_late").create("t", 1).await;
    alter(&topic, "max.message.bytes", "3000").await;
    proxy.set(Mode::Delay(Duration::from_millis(350)));
    let mut caller = Caller::open(&uncompressed(&broker.brokers()));
    caller.send(&record(&topic.name, "k", b"small")).await;
    let large = [noise(), noise(), noise(), noise()].concat();
    let known_by = Instant::now() + Duration::from_secs(40);
    loop {
        let ticket = caller.send(&record(&topic.name, "k", large.as_bytes())).await;
        caller.reported().await;
        let Outcome::Rejected { scope: Scope::Event, reason } = caller.outcomes[&ticket] else {
            panic!("{:?}", caller.outcomes[&ticket]);
        };
        if reason.excess().is_some_and(|excess| excess.limit == 3_000) {
            break;
        }
        assert_eq!(reason, Refusal::of_broker(RefusalKind::TooLarge(None), MESSAGE_TOO_LARGE));
        assert!(Instant::now() < known_by, "the limit is not known");
        caller.sink.reset();
    }
}

async fn outage(begin: impl FnOnce(&mut PrivateKafka), end: impl AsyncFnOnce(&mut PrivateKafka)) {
    let mut broker = PrivateKafka::start("").await;
    let (topic, mut caller) = with_a_thousand(&broker, 1).await;
    begin(&mut broker);
    in_the_dark(&topic, &mut caller).await;
    end(&mut broker).await;
    in_the_light(&topic, &mut caller).await;
}

async fn with_a_thousand(broker: &PrivateKafka, producers: usize) -> (Topic, Caller) {
    let topic = Topics::new(&broker.brokers(), "sink_outage").create("t", 4).await;
    let mut caller = Caller::open(&KafkaSpec { producers, ..spec(&broker.brokers()) });
    numbers(&topic, &mut caller, 0..1_000).await;
    caller.reported().await;
    (topic, caller)
}

async fn in_the_dark(topic: &Topic, caller: &mut Caller) {
    assert_eq!(caller.said, [""; 0]);
    numbers(topic, caller, 1_000..2_000).await;
    caller.until("Down", TOLD, |caller| caller.was_told("the brokers at")).await;
    assert_eq!(caller.outcomes.len(), 1_000);
}

async fn in_the_light(topic: &Topic, caller: &mut Caller) {
    caller.until("Up", SOON, |caller| caller.was_told("up")).await;
    caller.reported().await;
    assert!(caller.all_acked());
    assert_each_once(topic, 2_000).await;
}

/// The topic has each of the first `count` numbers once, in order by key.
async fn assert_each_once(topic: &Topic, count: u64) {
    for (key, numbers) in by_key(&topic.read_all().await) {
        let first = key.trim_start_matches('k').parse().expect("a number");
        let expected: Vec<u64> = (first..count).step_by(7).collect();
        assert_eq!(numbers, expected, "{key}");
    }
}

#[tokio::test]
async fn after_a_reset_nothing_of_before_is_written_behind_what_comes_after() {
    let topic = Topics::new(&brokers(), "sink_reset").create("t", 1).await;
    let mut caller = Caller::open(&spec(&brokers()));
    let mut resets = Vec::new();
    // Each round starts again from 0, as a restart from the cursor does, and is cut off with records in flight.
    for round in 0..5 {
        numbers_of_one_key(&topic, &mut caller, 2_000).await;
        if round < 4 {
            let start = Instant::now();
            caller.sink.reset();
            resets.push(start.elapsed());
            caller.outcomes.clear();
        }
    }
    // To wait for anything, or to drop a producer, takes longer each time. The machine may be busy for one of them.
    assert!(resets.iter().min() < Some(&Duration::from_millis(100)), "{resets:?}");
    let last = caller.next - 2_000;
    caller
        .until("the last round", SOON, |caller| caller.outcomes.range(last..).count() == 2_000)
        .await;
    assert!(!caller.was_told("broken"), "{:?}", caller.said);
    let numbers = by_key(&topic.read_all().await).remove("k").unwrap();
    assert_steps(&numbers);
}

#[tokio::test]
async fn after_a_reset_of_several_producers_no_key_is_swapped() {
    let topic = Topics::new(&brokers(), "sink_resets").create("t", 8).await;
    let mut caller = Caller::open(&KafkaSpec { producers: 3, ..spec(&brokers()) });
    for round in 0..5 {
        numbers(&topic, &mut caller, 0..7_000).await;
        if round < 4 {
            caller.sink.reset();
            caller.outcomes.clear();
        }
    }
    let last = caller.next - 7_000;
    let done = |caller: &Caller| caller.outcomes.range(last..).count() == 7_000;
    caller.until("the last round", SOON, done).await;
    assert!(!caller.was_told("broken"), "{:?}", caller.said);
    let keys = by_key(&topic.read_all().await);
    assert_eq!(keys.len(), 7);
    for (key, numbers) in keys {
        let first: u64 = key.trim_start_matches('k').parse().expect("a number");
        for pair in numbers.windows(2) {
            let follows = pair[1] == pair[0] + 7 || pair[1] == first;
            assert!(follows, "{key}: {} after {}", pair[1], pair[0]);
        }
        assert_eq!(numbers.last(), Some(&(6_993 + first)), "{key}");
    }
}

/// Every step is the next number or the start of a new round: never a number of an earlier round behind a later one.
fn assert_steps(numbers: &[u64]) {
    for pair in numbers.windows(2) {
        assert!(pair[1] == pair[0] + 1 || pair[1] == 0, "{} after {}", pair[1], pair[0]);
    }
    assert_eq!(numbers.last(), Some(&1_999));
}

#[tokio::test]
async fn after_a_reset_under_a_frozen_broker_nothing_is_swapped() {
    let broker = PrivateKafka::start("").await;
    let topic = Topics::new(&broker.brokers(), "sink_reset").create("t", 1).await;
    let mut caller = Caller::open(&spec(&broker.brokers()));
    numbers_of_one_key(&topic, &mut caller, 2_000).await;
    for _ in 0..3 {
        // Requests stand in the frozen broker's socket when the producer is given up.
        numbers_of_one_key(&topic, &mut caller, 1_000).await;
        broker.freeze();
        numbers_of_one_key(&topic, &mut caller, 1_000).await;
        caller.sink.reset();
        caller.outcomes.clear();
        let offered = record(&topic.name, "k", b"0 again");
        caller.try_send(&offered, Duration::from_secs(4)).await;
        broker.thaw();
        caller.sink.reset();
        caller.outcomes.clear();
    }
    let first = caller.next;
    numbers_of_one_key(&topic, &mut caller, 2_000).await;
    caller
        .until("the last round", SOON, |caller| caller.outcomes.range(first..).count() == 2_000)
        .await;
    assert_steps(&by_key(&topic.read_all().await)["k"]);
}

/// How long a reset waits for requests that have no answer (`DRAIN_MAX` of the sink).
const ANSWERS_MAX: Duration = Duration::from_secs(1);

/// Requests that are on their way can't be taken back, and may be answered: nothing is taken for so long.
#[tokio::test]
async fn after_a_reset_nothing_is_taken_while_requests_of_before_may_be_answered() {
    let broker = PrivateKafka::start("").await;
    let (topic, mut caller) = with_a_thousand(&broker, 2).await;
    broker.freeze();
    // By the time that the outage is reported, requests are in the frozen broker's sockets.
    in_the_dark(&topic, &mut caller).await;
    let start = Instant::now();
    caller.sink.reset();
    let last = caller.send(&record(&topic.name, "k", b"2000")).await;
    let taken_after = start.elapsed();
    assert!(taken_after >= ANSWERS_MAX, "a record was taken after {taken_after:?}");
    broker.thaw();
    caller.until("its report", SOON, |caller| caller.outcomes.contains_key(&last)).await;
    assert_eq!(caller.outcomes[&last], Outcome::Acked);
}

#[tokio::test]
async fn a_refused_batch_breaks_the_producer_and_a_reset_learns_the_new_limit() {
    let topic = Topics::new(&brokers(), "sink_refused").create("t", 1).await;
    let mut caller = Caller::open(&spec(&brokers()));
    numbers_of_one_key(&topic, &mut caller, 10).await;
    caller.reported().await;
    // Nobody told the sink: its batches are larger than the topic takes now.
    alter(&topic, "max.message.bytes", "5000").await;
    for number in 0..500 {
        let value = format!("{number} {}", noise());
        let record = record(&topic.name, "k", value.as_bytes());
        if caller.sink.enqueue(Ticket(caller.next), &record).is_ok() {
            caller.next += 1;
        }
    }
    caller.until("Broken", SOON, |caller| caller.was_told("broken")).await;
    // The cause came before it: a caller that resets at once knows which record to look at.
    let refused = Outcome::Rejected {
        scope: Scope::Event,
        reason: Refusal::of_broker(RefusalKind::TooLarge(None), MESSAGE_TOO_LARGE),
    };
    assert!(caller.outcomes.values().any(|outcome| *outcome == refused), "{:?}", caller.outcomes);
    caller.sink.reset();
    caller.outcomes.clear();
    let first = caller.next;
    for number in 0..500 {
        let value = format!("{number} {}", noise());
        caller.send(&record(&topic.name, "k", value.as_bytes())).await;
    }
    caller.until("all", SOON, |caller| caller.outcomes.range(first..).count() == 500).await;
    assert!(caller.outcomes.range(first..).all(|(_, outcome)| *outcome == Outcome::Acked));
    // Whatever reached the log before the reset is a beginning of the series: nothing overtook what was refused.
    let runs = runs(&by_key(&topic.read_all().await)["k"]);
    assert_eq!(runs.last(), Some(&(0, 499)), "{runs:?}");
    assert!(runs.iter().all(|(first, _)| *first == 0), "{runs:?}");
}

/// Stretches of numbers that rise by one.
fn runs(numbers: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            Some(_) | None => runs.push((*number, *number)),
        }
    }
    runs
}

#[tokio::test]
async fn a_topic_deleted_while_it_is_used_is_told_and_goes_on_when_it_is_created_again() {
    let topic = Topics::new(&brokers(), "sink_deleted").create("t", 1).await;
    let mut caller = Caller::open(&spec(&brokers()));
    numbers_of_one_key(&topic, &mut caller, 10).await;
    caller.reported().await;
    let options = AdminOptions::new();
    admin(&brokers()).delete_topics(&[&topic.name], &options).await.unwrap();
    let told = |caller: &Caller| caller.was_told("does not exist") || caller.was_told("broken");
    let end = Instant::now() + SOON;
    while !told(&caller) && Instant::now() < end {
        // What is refused meanwhile is offered again from the cursor, by a caller that has one.
        caller.try_send(&record(&topic.name, "k", b"1"), Duration::from_millis(500)).await;
        caller.look();
    }
    caller.sink.reset();
    caller.outcomes.clear();
    caller.try_send(&record(&topic.name, "k", b"2"), Duration::from_secs(3)).await;
    assert!(caller.was_told("does not exist"), "{:?}", caller.said);
    create_topic(&brokers(), &topic.name, 1, &[]).await;
    let last = caller.send(&record(&topic.name, "k", b"3")).await;
    caller.until("the last", SOON, |caller| caller.outcomes.contains_key(&last)).await;
    assert_eq!(caller.outcomes[&last], Outcome::Acked);
}
#[tokio::test]
async fn closing_gives_up_at_the_end_of_its_grace() {
    let broker = PrivateKafka::start("").await;
    let (topic, mut caller) = with_a_thousand(&broker, 2).await;
    broker.freeze();
    numbers(&topic, &mut caller, 1_000..1_100).await;
    let start = Instant::now();
    caller.sink.close(Duration::from_millis(300));
    let elapsed = start.elapsed();
    broker.thaw();
    assert!((290..900).contains(&elapsed.as_millis()), "{elapsed:?}");
    caller.look();
    assert_eq!(caller.outcomes.len(), 1_000);
}
