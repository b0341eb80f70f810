//! A caller of the Kafka sink for tests: it offers again what was refused as busy, and keeps what came to the mailbox.

pub(crate) use crate::await_that::SOON;
use crate::await_that::await_that;
use crate::topic::{ReadRecord, Topic, admin};
use postrider::record::{Outcome, Record, Scope, Ticket};
use postrider::sink::kafka::{self, KafkaSpec};
use postrider::sink::{Mailbox, NotTaken, Post, Sink};
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use std::collections::BTreeMap;
use std::time::Duration;

/// An outage is told within this time: the sink looks each second and waits two for an answer.
pub(crate) const TOLD: Duration = Duration::from_secs(12);

/// A caller of a sink: offers again what was refused as busy, and keeps what came to the mailbox.
pub(crate) struct Caller {
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) mailbox: Mailbox,
    pub(crate) next: u64,
    pub(crate) outcomes: BTreeMap<u64, Outcome>,
    /// `Down`, `Up` and `Broken`, in order: reason, or "up", or "broken".
    pub(crate) said: Vec<String>,
    pub(crate) hints: Vec<String>,
}

pub(crate) fn spec(brokers: &str) -> KafkaSpec {
    KafkaSpec {
        brokers: brokers.to_owned(),
        properties: BTreeMap::new(),
        secret_files: BTreeMap::new(),
        producers: 1,
        client_id: "postrider-test".to_owned(),
        in_flight_events: 50_000,
        in_flight_bytes: 32 << 20,
        size_max: None,
        create_topics: None,
        transaction: None,
    }
}

/// The same, where the size that the broker judges is known before a record is sent.
pub(crate) fn uncompressed(brokers: &str) -> KafkaSpec {
    compressing(brokers, "none")
}

/// The same with a codec.
pub(crate) fn compressing(brokers: &str, codec: &str) -> KafkaSpec {
    let properties = BTreeMap::from([("compression.type".to_owned(), codec.to_owned())]);
    KafkaSpec { properties, ..spec(brokers) }
}

pub(crate) fn record<'a>(topic: &'a str, key: &'a str, value: &'a [u8]) -> Record<'a> {
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
    pub(crate) fn open(spec: &KafkaSpec) -> Self {
        let mailbox = Mailbox::default();
        let sink = kafka::open(spec, mailbox.clone()).expect("a sink");
        let (outcomes, said, hints) = Default::default();
        Self { sink, mailbox, next: 0, outcomes, said, hints }
    }

    /// Takes what is there, and has the sink go on; true when something said `Retry`.
    pub(crate) fn look(&mut self) -> bool {
        let mut posts = Vec::new();
        self.mailbox.take(&mut posts);
        self.sink.turn();
        let mut retry = false;
        for post in posts {
            match post {
                Post::Published { ticket, placement } => {
                    assert!(placement.partition >= 0 && placement.offset >= 0, "{placement:?}");
                    let before = self.outcomes.insert(ticket.0, Outcome::Acked);
                    assert_eq!(before, None, "{ticket:?} was reported twice");
                }
                Post::Report { ticket, outcome } => {
                    let before = self.outcomes.insert(ticket.0, outcome);
                    assert_eq!(before, None, "{ticket:?} was reported twice");
                }
                Post::Retry | Post::Located => retry = true,
                Post::Down { reason, hint, .. } | Post::Held { reason, hint, .. } => {
                    self.said.push(reason);
                    self.hints.extend(hint);
                }
                Post::Up { topic: _ } => self.said.push("up".to_owned()),
                Post::Broken { reason } => self.said.push(format!("broken: {reason}")),
                Post::Unfit { reason, .. } => panic!("unfit: {reason}"),
                Post::Recovered { .. } | Post::Committed { .. } => {
                    panic!("this sink has no transactions");
                }
            }
        }
        retry
    }

    /// Waits until `state` holds; looks at the mailbox whenever something comes.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        deadline: Duration,
        state: impl Fn(&Self) -> bool,
    ) {
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

    /// Waits until something says `Retry`.
    pub(crate) async fn until_retry(&mut self) {
        while !self.look() {
            let mailbox = self.mailbox.clone();
            let arrived = tokio::time::timeout(SOON, mailbox.arrived()).await;
            arrived.unwrap_or_else(|_elapsed| panic!("no `Retry`, said: {:?}", self.said));
        }
    }

    /// Hands over a record once.
    pub(crate) fn offer(&mut self, record: &Record<'_>) -> Result<u64, NotTaken> {
        self.sink.enqueue(Ticket(self.next), record)?;
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Hands over a record, as often as it takes; `None` when that is not done by the deadline.
    pub(crate) async fn try_send(
        &mut self,
        record: &Record<'_>,
        deadline: Duration,
    ) -> Option<u64> {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            let mut taken = self.sink.enqueue(Ticket(self.next), record);
            if taken == Err(NotTaken::Alone) && self.outcomes.len() as u64 == self.next {
                taken = self.sink.enqueue_alone(Ticket(self.next), record, None);
            }
            let Err(why) = taken else { break };
            if let NotTaken::Refused(reason) = why {
                let outcome = Outcome::Rejected { scope: Scope::Event, reason };
                self.outcomes.insert(self.next, outcome);
                break;
            }
            // One that goes alone waits for every report.
            while !self.look() && why != NotTaken::Alone {
                let mailbox = self.mailbox.clone();
                tokio::time::timeout_at(end, mailbox.arrived()).await.ok()?;
            }
            if why == NotTaken::Alone && self.outcomes.len() as u64 != self.next {
                let mailbox = self.mailbox.clone();
                tokio::time::timeout_at(end, mailbox.arrived()).await.ok()?;
            }
        }
        self.next += 1;
        Some(self.next - 1)
    }

    pub(crate) async fn send(&mut self, record: &Record<'_>) -> u64 {
        self.try_send(record, SOON).await.unwrap_or_else(|| panic!("busy: {:?}", self.said))
    }

    pub(crate) async fn reported(&mut self) {
        self.until("all reports", SOON, |caller| caller.outcomes.len() as u64 == caller.next).await;
    }

    pub(crate) fn all_acked(&self) -> bool {
        self.outcomes.values().all(|outcome| *outcome == Outcome::Acked)
    }

    pub(crate) fn was_told(&self, what: &str) -> bool {
        self.said.iter().any(|said| said.contains(what))
    }
}

/// For each key, the numbers that its records carry as values, in the order of their partition.
pub(crate) fn by_key(records: &[ReadRecord]) -> BTreeMap<String, Vec<u64>> {
    let mut keys: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for record in records {
        let number = record.value_text().and_then(|text| text.split(' ').next()?.parse().ok());
        let key = record.key_text().expect("a key").to_owned();
        keys.entry(key).or_default().push(number.expect("a number"));
    }
    keys
}

pub(crate) async fn numbers(topic: &Topic, caller: &mut Caller, range: std::ops::Range<u64>) {
    for number in range {
        let (key, value) = (format!("k{}", number % 7), number.to_string());
        caller.send(&record(&topic.name, &key, value.as_bytes())).await;
    }
}

pub(crate) async fn numbers_of_one_key(topic: &Topic, caller: &mut Caller, count: u64) {
    for number in 0..count {
        let value = format!("{number} {}", "x".repeat(500));
        caller.send(&record(&topic.name, "k", value.as_bytes())).await;
    }
}

/// A thousand letters that no compression makes much of.
pub(crate) fn noise() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(1_000).collect()
}

/// A setting of topics that no test looks at.
const MARKER: &str = "file.delete.delay.ms";

/// Changes a setting of the topic, and returns when it is in force. The broker answers before: a record that comes at
/// once can still be judged by the former setting. It puts one change into force after the other, and shows each
/// before it is in force: so a second change that is shown comes behind a first one that is in force.
pub(crate) async fn alter(topic: &Topic, setting: &str, value: &str) {
    let marker = fastrand::u32(60_000..600_000).to_string();
    let both = [(setting, value), (MARKER, marker.as_str())];
    for settings in [&both[..1], &both[..]] {
        let resource = ResourceSpecifier::Topic(&topic.name);
        let change = settings
            .iter()
            .fold(AlterConfig::new(resource), |change, (name, value)| change.set(name, value));
        let results = admin(&topic.brokers).alter_configs([&change], &AdminOptions::new()).await;
        for result in results.expect("an answer") {
            result.expect("a change");
        }
        let (name, value) = settings[settings.len() - 1];
        await_that(&format!("{name} of {}", topic.name), SOON, || async {
            let shown = topic.setting(name).await;
            if shown == value { Ok(()) } else { Err(shown) }
        })
        .await;
    }
}
