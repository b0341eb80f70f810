//! A Kafka sink with transactions, called as the pipeline calls it, without a pipeline.

use crate::await_that::SOON;
use crate::server::{brokers, unique};
use crate::sink_caller::{self, record};
use crate::topic::{ReadRecord, Topic, Topics, client_config};
use postrider::record::{Outcome, Ticket};
use postrider::sink::kafka::{self, KafkaSpec, KafkaTransaction};
use postrider::sink::{Mailbox, NotTaken, Post, Sink, SinkCall, SinkProgress};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::time::{Duration, Instant};

/// A sink with transactions, called as the pipeline calls it.
pub(crate) struct TransactionCaller {
    pub(crate) sink: Box<dyn Sink>,
    mailbox: Mailbox,
    calls: u64,
    posts: Vec<Post>,
    /// So many of them were looked at.
    looked: usize,
    /// When the sink needs its next turn.
    due: Option<Instant>,
}

impl TransactionCaller {
    pub(crate) fn open(spec: &KafkaSpec) -> Self {
        let mailbox = Mailbox::default();
        let sink = kafka::open(spec, mailbox.clone()).expect("a sink");
        Self { sink, mailbox, calls: 0, posts: Vec::new(), looked: 0, due: None }
    }

    /// Everything that was posted so far.
    pub(crate) fn posts(&self) -> &[Post] {
        &self.posts
    }

    pub(crate) fn call(&mut self) -> SinkCall {
        self.calls += 1;
        SinkCall(self.calls)
    }

    /// Waits for a post behind the last one that was waited for, and returns what is made of it.
    pub(crate) async fn until<T>(&mut self, what: &str, wanted: impl Fn(&Post) -> Option<T>) -> T {
        let end = tokio::time::Instant::now() + SOON;
        loop {
            while let Some(post) = self.posts.get(self.looked) {
                self.looked += 1;
                if let Some(found) = wanted(post) {
                    return found;
                }
            }
            // As a pipeline does: the sink gets its turn when there are posts, and at the time that it named last.
            let mailbox = self.mailbox.clone();
            let wakes = self.due.map_or(end, |due| end.min(due.into()));
            let arrived = tokio::time::timeout_at(wakes, mailbox.arrived()).await;
            let is_late = arrived.is_err() && tokio::time::Instant::now() >= end;
            assert!(!is_late, "no {what}: {:?}", self.posts);
            let mut posts = Vec::new();
            self.mailbox.take(&mut posts);
            self.due = self.sink.turn();
            self.posts.append(&mut posts);
        }
    }

    pub(crate) async fn recover(&mut self) -> Option<SinkProgress> {
        let number = self.call();
        self.sink.transactional().expect("transactions").recover(number);
        self.until("recovery", |post| {
            if let Post::Recovered { call, progress } = post
                && *call == number
            {
                Some(progress.clone())
            } else {
                None
            }
        })
        .await
    }

    /// The sink was given up: resets it, and recovers, as often as that is given up too.
    pub(crate) async fn recover_again(&mut self) -> Option<SinkProgress> {
        loop {
            self.sink.reset();
            let number = self.call();
            self.sink.transactional().expect("transactions").recover(number);
            let recovered = self.until("recovery", |post| match post {
                Post::Recovered { call, progress } if *call == number => {
                    Some(Some(progress.clone()))
                }
                Post::Broken { .. } => Some(None),
                Post::Recovered { .. }
                | Post::Report { .. }
                | Post::Retry
                | Post::Located
                | Post::Down { .. }
                | Post::Held { .. }
                | Post::Up { .. }
                | Post::Committed { .. }
                | Post::Unfit { .. } => None,
            });
            if let Some(progress) = recovered.await {
                return progress;
            }
        }
    }

    /// Hands a record over, and waits until a broker has it.
    pub(crate) async fn send(&mut self, topic: &str, value: &str) {
        let ticket = Ticket(self.calls << 32 | self.posts.len() as u64);
        let taken = record(topic, "k", value.as_bytes());
        loop {
            match self.sink.enqueue(ticket, &taken) {
                Ok(()) => break,
                Err(NotTaken::Destination | NotTaken::Full) => {
                    self.until("retry", |post| matches!(post, Post::Retry).then_some(())).await;
                }
                Err(why) => panic!("{why:?}"),
            }
        }
        self.until("report", |post| {
            if let Post::Report { ticket: reported, outcome: Outcome::Acked } = post
                && *reported == ticket
            {
                Some(())
            } else {
                None
            }
        })
        .await;
    }

    pub(crate) fn commit(&mut self, progress: &str) -> SinkCall {
        let call = self.call();
        let progress = progress.parse().expect("a progress");
        self.sink.transactional().expect("transactions").commit(call, &progress);
        call
    }

    pub(crate) async fn committed(&mut self, number: SinkCall) {
        self.until("commit", |post| {
            if let Post::Committed { call } = post
                && *call == number
            {
                Some(())
            } else {
                None
            }
        })
        .await;
    }

    pub(crate) async fn broken(&mut self) -> String {
        self.until("end of the producer", |post| {
            if let Post::Broken { reason } = post { Some(reason.clone()) } else { None }
        })
        .await
    }
}

/// Topics of a test's own on the shared brokers, with the first record of a pipeline.
pub(crate) async fn topics(test: &str) -> (Topic, KafkaSpec) {
    topics_at(&brokers(), test, Duration::from_secs(10)).await
}

/// The same on these brokers, which abort a transaction that takes longer than `timeout`.
pub(crate) async fn topics_at(brokers: &str, test: &str, timeout: Duration) -> (Topic, KafkaSpec) {
    let topics = Topics::new(brokers, test);
    let orders = topics.create("orders", 3).await;
    let progress = topics.create_with("progress", 1, &[("cleanup.policy", "compact")]).await;
    let spec = transactional(&orders, &progress, unique(test), timeout).await;
    (orders, spec)
}

/// A sink with transactions, and the first record of its progress.
pub(crate) async fn transactional(
    orders: &Topic,
    progress: &Topic,
    id: String,
    timeout: Duration,
) -> KafkaSpec {
    let progress_topic = progress.name.clone();
    // Not by a producer that blocks: the way to the brokers may be a task of this test.
    let first: FutureProducer = client_config(&orders.brokers).create().expect("a producer");
    let begun = FutureRecord::to(&progress_topic).key(&id).payload("1 -").partition(0);
    first.send(begun, SOON).await.expect("the first record");
    let transaction = Some(Box::new(KafkaTransaction { id, progress_topic, timeout }));
    KafkaSpec { transaction, ..sink_caller::spec(&orders.brokers) }
}

pub(crate) fn values(records: &[ReadRecord]) -> Vec<&str> {
    records.iter().map(|record| record.value_text().expect("a value")).collect()
}

/// Two texts of a progress, one behind the other.
pub(crate) const FIRST: &str = "68F1A2B3 0/100";
pub(crate) const SECOND: &str = "68F1A2B3 0/200 0/250:3 +0/80:1";
