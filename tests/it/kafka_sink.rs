//! The Kafka sink against a real broker: what it promises of order, refusals, outages, resets and closing.

use crate::private::PrivateKafka;
use crate::server::{brokers, unique};
use crate::topic::{ReadRecord, Topic, Topics, admin, client_config, create_topic};
use postrider::record::{Header, Outcome, Record, Refusal, Scope, Ticket};
use postrider::sink::{self, KafkaSpec, Mailbox, Post, Sink, SinkSpec};
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
/// An outage is told within this time: the sink looks each second and waits two for an answer.
const TOLD: Duration = Duration::from_secs(12);

/// A caller of a sink: offers again what was refused as busy, and keeps what came to the mailbox.
struct Caller {
    sink: Box<dyn Sink>,
    mailbox: Mailbox,
    next: u64,
    outcomes: BTreeMap<u64, Outcome>,
    /// `Down`, `Up` and `Broken`, in order: reason, or "up", or "broken".
    said: Vec<String>,
    hints: Vec<String>,
}

fn spec(brokers: &str) -> KafkaSpec {
    KafkaSpec {
        brokers: brokers.to_owned(),
        properties: BTreeMap::new(),
        client_id: "postrider-test".to_owned(),
        in_flight_events: 50_000,
        in_flight_bytes: 32 << 20,
        size_max: None,
    }
}

fn record<'a>(topic: &'a str, key: &'a str, value: &'a [u8]) -> Record<'a> {
    Record {
        topic,
        partition: None,
        key: Some(key.as_bytes()),
        value: Some(value),
        timestamp_ms: Some(1_700_000_000_123),
        headers: &[],
    }
}

impl Caller {
    fn open(spec: KafkaSpec) -> Self {
        let mailbox = Mailbox::default();
        let sink = sink::open(&SinkSpec::Kafka(spec), mailbox.clone()).expect("a sink");
        let (outcomes, said, hints) = Default::default();
        Self { sink, mailbox, next: 0, outcomes, said, hints }
    }

    /// Takes what is there; true when something said `Retry`.
    fn look(&mut self) -> bool {
        let mut posts = Vec::new();
        self.mailbox.take(&mut posts);
        let mut retry = false;
        for post in posts {
            match post {
                Post::Report { ticket, outcome } => {
                    let before = self.outcomes.insert(ticket.0, outcome);
                    assert_eq!(before, None, "{ticket:?} was reported twice");
                }
                Post::Retry => retry = true,
                Post::Down { reason, hint } => {
                    self.said.push(reason);
                    self.hints.extend(hint);
                }
                Post::Up => self.said.push("up".to_owned()),
                Post::Broken { reason } => self.said.push(format!("broken: {reason}")),
                Post::Unfit { reason, .. } => panic!("unfit: {reason}"),
            }
        }
        retry
    }

    /// Waits until `state` holds; looks at the mailbox whenever something comes.
    async fn until(&mut self, what: &str, deadline: Duration, state: impl Fn(&Self) -> bool) {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            self.look();
            if state(self) {
                return;
            }
            let mailbox = self.mailbox.clone();
            tokio::time::timeout_at(end, mailbox.arrived()).await.unwrap_or_else(|_elapsed| {
                panic!(
                    "waited {deadline:?} for {what}; {} of {} reported, said: {:?}",
                    self.outcomes.len(),
                    self.next,
                    self.said
                )
            });
        }
    }

    /// Hands over a record, as often as it takes; `None` when that is not done by the deadline.
    async fn try_send(&mut self, record: &Record<'_>, deadline: Duration) -> Option<u64> {
        let end = tokio::time::Instant::now() + deadline;
        while self.sink.enqueue(Ticket(self.next), record).is_err() {
            while !self.look() {
                let mailbox = self.mailbox.clone();
                tokio::time::timeout_at(end, mailbox.arrived()).await.ok()?;
            }
        }
        self.next += 1;
        Some(self.next - 1)
    }

    async fn send(&mut self, record: &Record<'_>) -> u64 {
        self.try_send(record, SOON).await.unwrap_or_else(|| panic!("busy: {:?}", self.said))
    }

    async fn reported(&mut self) {
        self.until("all reports", SOON, |caller| caller.outcomes.len() as u64 == caller.next).await;
    }

    fn all_acked(&self) -> bool {
        self.outcomes.values().all(|outcome| *outcome == Outcome::Acked)
    }

    fn was_told(&self, what: &str) -> bool {
        self.said.iter().any(|said| said.contains(what))
    }
}

/// For each key, the numbers that its records carry as values, in the order of their partition.
fn by_key(records: &[ReadRecord]) -> BTreeMap<String, Vec<u64>> {
    let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in records {
        let number = record.value_text().and_then(|text| text.split(' ').next()?.parse().ok());
        let key = record.key_text().expect("a key").to_owned();
        keys.entry(key).or_default().push(number.expect("a number"));
    }
    keys
}

#[tokio::test]
async fn a_hundred_thousand_records_arrive_in_order_of_each_key() {
    const COUNT: u64 = 100_000;
    let topic = Topics::new(&brokers(), "sink_order").create("orders", 8).await;
    let mut caller = Caller::open(spec(&brokers()));
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
    println!("{COUNT} acknowledged in {:?}", start.elapsed());
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
    let mut caller = Caller::open(spec(&brokers()));
    let plain = record(&topic.name, "k", b"v");
    caller.send(&Record { key: None, partition: Some(0), ..plain }).await;
    caller.send(&Record { value: None, partition: Some(1), ..plain }).await;
    caller.send(&Record { value: Some(b""), partition: Some(2), ..plain }).await;
    let missing = caller.send(&Record { partition: Some(3), ..plain }).await;
    let name = caller.send(&Record { topic: "no/topic", ..plain }).await;
    caller.reported().await;
    let rejected = |reason| Outcome::Rejected { scope: Scope::Event, reason };
    assert_eq!(caller.outcomes[&missing], rejected(Refusal::Partition(3)));
    assert_eq!(caller.outcomes[&name], rejected(Refusal::TopicName));
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
    let mut caller = Caller::open(spec(&brokers()));
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
async fn a_missing_topic_is_told_and_all_goes_on_when_it_is_created() {
    let name = unique("sink_missing");
    let mut caller = Caller::open(spec(&brokers()));
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
async fn a_record_over_the_topics_limit_is_refused_and_the_others_go_on() {
    let settings = [("max.message.bytes", "20000")];
    let topic = Topics::new(&brokers(), "sink_large").create_with("t", 1, &settings).await;
    let mut caller = Caller::open(spec(&brokers()));
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
            Outcome::Rejected {
                scope: Scope::Event,
                reason: Refusal::TooLarge { limit: 20_000, .. }
            }
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
    let mut caller = Caller::open(spec(&brokers()));
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
    let mut caller = Caller::open(KafkaSpec { size_max: Some(100), ..spec(&brokers()) });
    let large = caller.send(&record(&topic.name, "k", &[b'x'; 100])).await;
    caller.send(&record(&topic.name, "k", &[b'x'; 99])).await;
    caller.reported().await;
    let reason = Refusal::TooLarge { size: 101, limit: 100 };
    assert_eq!(caller.outcomes[&large], Outcome::Rejected { scope: Scope::Event, reason });
    assert_eq!(topic.read_all().await.len(), 1);
}

#[tokio::test]
async fn a_wrong_address_is_told_with_what_mends_it() {
    let mut caller = Caller::open(spec("127.0.0.1:1"));
    caller.until("Down", TOLD, |caller| caller.was_told("127.0.0.1:1")).await;
    assert!(caller.said[0].starts_with("no connection to the brokers"), "{:?}", caller.said);
    assert!(caller.hints[0].contains("sink.brokers"), "{:?}", caller.hints);
    // It is told again while it lasts.
    let told = caller.said.len();
    caller.until("Down again", TOLD, |caller| caller.said.len() > told).await;
}

#[tokio::test]
async fn a_frozen_broker_is_told_and_everything_arrives_once_when_it_thaws() {
    outage(|broker| broker.freeze(), async |broker| broker.thaw()).await;
}

#[tokio::test]
async fn a_killed_broker_is_told_and_everything_arrives_once_when_it_is_back() {
    let mut broker = PrivateKafka::start("").await;
    let (topic, mut caller) = with_a_thousand(&broker).await;
    broker.kill().await;
    in_the_dark(&topic, &mut caller).await;
    broker.restart().await;
    in_the_light(&topic, &mut caller).await;
}

async fn outage(begin: impl FnOnce(&mut PrivateKafka), end: impl AsyncFnOnce(&mut PrivateKafka)) {
    let mut broker = PrivateKafka::start("").await;
    let (topic, mut caller) = with_a_thousand(&broker).await;
    begin(&mut broker);
    in_the_dark(&topic, &mut caller).await;
    end(&mut broker).await;
    in_the_light(&topic, &mut caller).await;
}

async fn with_a_thousand(broker: &PrivateKafka) -> (Topic, Caller) {
    let topic = Topics::new(&broker.brokers(), "sink_outage").create("t", 4).await;
    let mut caller = Caller::open(spec(&broker.brokers()));
    numbers(&topic, &mut caller, 0..1_000).await;
    caller.reported().await;
    (topic, caller)
}

async fn numbers(topic: &Topic, caller: &mut Caller, range: std::ops::Range<u64>) {
    for number in range {
        let (key, value) = (format!("k{}", number % 7), number.to_string());
        caller.send(&record(&topic.name, &key, value.as_bytes())).await;
    }
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
    for (key, numbers) in by_key(&topic.read_all().await) {
        let first = key.trim_start_matches('k').parse().expect("a number");
        let expected: Vec<u64> = (first..2_000).step_by(7).collect();
        assert_eq!(numbers, expected, "{key}");
    }
}

#[tokio::test]
async fn after_a_reset_nothing_of_before_is_written_behind_what_comes_after() {
    let topic = Topics::new(&brokers(), "sink_reset").create("t", 1).await;
    let mut caller = Caller::open(spec(&brokers()));
    // Each round starts again from 0, as a restart from the cursor does, and is cut off with records in flight.
    for round in 0..5 {
        numbers_of_one_key(&topic, &mut caller, 2_000).await;
        if round < 4 {
            let start = Instant::now();
            caller.sink.reset();
            assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
            caller.outcomes.clear();
        }
    }
    let last = caller.next - 2_000;
    caller
        .until("the last round", SOON, |caller| caller.outcomes.range(last..).count() == 2_000)
        .await;
    assert!(!caller.was_told("broken"), "{:?}", caller.said);
    let numbers = by_key(&topic.read_all().await).remove("k").unwrap();
    // Every step is the next number or the start of a new round: never a number of an earlier round behind a later one.
    for pair in numbers.windows(2) {
        assert!(pair[1] == pair[0] + 1 || pair[1] == 0, "{} after {}", pair[1], pair[0]);
    }
    assert_eq!(numbers.last(), Some(&1_999));
}

async fn numbers_of_one_key(topic: &Topic, caller: &mut Caller, count: u64) {
    for number in 0..count {
        let value = format!("{number} {}", "x".repeat(500));
        caller.send(&record(&topic.name, "k", value.as_bytes())).await;
    }
}

#[tokio::test]
async fn closing_is_quick_when_nothing_is_in_flight_and_sends_what_lingers() {
    let topic = Topics::new(&brokers(), "sink_close").create("t", 4).await;
    let mut linger = spec(&brokers());
    linger.properties.insert("linger.ms".to_owned(), "5000".to_owned());
    let mut caller = Caller::open(linger);
    numbers(&topic, &mut caller, 0..100).await;
    let start = Instant::now();
    caller.sink.close(SOON);
    let lingering = start.elapsed();
    caller.look();
    assert_eq!(caller.outcomes.len(), 100);
    assert!(caller.all_acked());
    assert_eq!(topic.read_all().await.len(), 100);

    let mut caller = Caller::open(spec(&brokers()));
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
async fn closing_gives_up_at_the_end_of_its_grace() {
    let broker = PrivateKafka::start("").await;
    let (topic, mut caller) = with_a_thousand(&broker).await;
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

/// A thousand letters that no compression makes much of.
fn noise() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(1_000).collect()
}

async fn alter(topic: &Topic, setting: &str, value: &str) {
    let resource = ResourceSpecifier::Topic(&topic.name);
    let change = AlterConfig::new(resource).set(setting, value);
    let results = admin(&topic.brokers).alter_configs([&change], &AdminOptions::new()).await;
    for result in results.expect("an answer") {
        result.expect("a change");
    }
}

#[tokio::test]
async fn a_refused_batch_breaks_the_producer_and_a_reset_learns_the_new_limit() {
    let topic = Topics::new(&brokers(), "sink_refused").create("t", 1).await;
    let mut caller = Caller::open(spec(&brokers()));
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
    let refused = |caller: &Caller| {
        caller.outcomes.values().any(|outcome| {
            let code = Refusal::Kafka(10);
            *outcome == Outcome::Rejected { scope: Scope::Event, reason: code }
        })
    };
    caller.until("a refusal", SOON, refused).await;
    let before = topic.read_all().await.len();

    caller.sink.reset();
    caller.outcomes.clear();
    let first = caller.next;
    for number in 0..500 {
        let value = format!("{number} {}", noise());
        caller.send(&record(&topic.name, "k", value.as_bytes())).await;
    }
    caller.until("all", SOON, |caller| caller.outcomes.range(first..).count() == 500).await;
    assert!(caller.outcomes.range(first..).all(|(_, outcome)| *outcome == Outcome::Acked));
    let all = by_key(&topic.read_all().await);
    assert_eq!(all["k"][before..], (0..500).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_record_far_over_the_usual_limit_arrives_where_the_topic_takes_it() {
    let settings = [("max.message.bytes", "5000000")];
    let topic = Topics::new(&brokers(), "sink_huge").create_with("t", 1, &settings).await;
    let mut caller = Caller::open(spec(&brokers()));
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
async fn a_record_is_not_refused_on_old_news_of_its_topic() {
    let settings = [("max.message.bytes", "20000")];
    let topic = Topics::new(&brokers(), "sink_news").create_with("t", 1, &settings).await;
    let mut caller = Caller::open(spec(&brokers()));
    caller.send(&record(&topic.name, "k", b"0")).await;
    caller.reported().await;
    let learnt = Instant::now();
    alter(&topic, "max.message.bytes", "100000").await;
    // News is old after five seconds: until then the record is refused, and after that it is taken.
    let large = noise().repeat(50);
    let mut last;
    loop {
        last = caller.send(&record(&topic.name, "k", large.as_bytes())).await;
        caller.reported().await;
        if caller.outcomes[&last] == Outcome::Acked || learnt.elapsed() > SOON {
            break;
        }
    }
    assert_eq!(caller.outcomes[&last], Outcome::Acked);
}

#[tokio::test]
async fn a_topic_deleted_while_it_is_used_is_told_and_goes_on_when_it_is_created_again() {
    let topic = Topics::new(&brokers(), "sink_deleted").create("t", 1).await;
    let mut caller = Caller::open(spec(&brokers()));
    numbers_of_one_key(&topic, &mut caller, 10).await;
    caller.reported().await;
    let options = AdminOptions::new();
    admin(&brokers()).delete_topics(&[&topic.name], &options).await.unwrap();
    let told = |caller: &Caller| caller.was_told("does not exist") || caller.was_told("broken");
    let end = Instant::now() + 4 * SOON;
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
