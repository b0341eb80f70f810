//! Runs a script on the crate's own sink and a real broker.

use super::{Kind, PARTITIONS, Seen, Step};
use crate::server::brokers;
use crate::sink_caller::{Caller, SOON, alter, noise, record, uncompressed};
use crate::topic::{Topic, Topics};
use postrider::record::{Outcome, Record};
use std::collections::BTreeMap;

/// Bytes that the topic takes at first, and after [`Step::Narrow`].
const WIDE: &str = "20000";
const NARROW: &str = "5000";

/// How long the client fills a batch: what a script sends in one go is in one.
const LINGER_MS: &str = "500";

struct Real {
    topic: Topic,
    caller: Caller,
    /// Which event a ticket stands for.
    tickets: BTreeMap<u64, u32>,
    events: u32,
    seen: Seen,
}

pub(super) async fn run(script: &[Step]) -> Seen {
    let partitions = i32::try_from(PARTITIONS).unwrap();
    let settings = [("max.message.bytes", WIDE)];
    let topic = Topics::new(&brokers(), "model").create_with("t", partitions, &settings).await;
    let mut spec = uncompressed(&brokers());
    if script.iter().any(|step| matches!(step, Step::Narrow)) {
        spec.properties.insert("linger.ms".to_owned(), LINGER_MS.to_owned());
    }
    let (tickets, seen) = Default::default();
    let mut real = Real { topic, caller: Caller::open(&spec), tickets, events: 0, seen };
    for step in script {
        match *step {
            Step::Send(partition, kind) => real.send(partition, kind).await,
            Step::Reported(count) => {
                let enough =
                    |caller: &Caller| caller.outcomes.len() >= count || caller.was_told("broken");
                real.caller.until("reports", SOON, enough).await;
            }
            Step::Broken => {
                let broken = |caller: &Caller| caller.was_told("broken");
                real.caller.until("broken", SOON, broken).await;
            }
            Step::Narrow => alter(&real.topic, "max.message.bytes", NARROW).await,
        }
    }
    real.end().await
}

impl Real {
    async fn send(&mut self, partition: usize, kind: Kind) {
        let padding = match kind {
            Kind::Small => String::new(),
            Kind::TooLarge => noise().repeat(30),
            Kind::Guilty => (0..8).map(|_| noise()).collect(),
        };
        let event = self.events;
        self.events += 1;
        let value = format!("{event} {padding}");
        let ticket = self.publish(partition, &value).await;
        self.tickets.insert(ticket, event);
        self.seen.sent.entry(partition).or_default().push(event);
    }

    async fn publish(&mut self, partition: usize, value: &str) -> u64 {
        let partition = Some(i32::try_from(partition).unwrap());
        let plain = record(&self.topic.name, "k", value.as_bytes());
        self.caller.send(&Record { partition, ..plain }).await
    }

    async fn end(mut self) -> Seen {
        self.caller.look();
        self.seen.broken = self.caller.was_told("broken");
        self.caller.sink.reset();
        self.caller.look();
        let outcomes = std::mem::take(&mut self.caller.outcomes);
        let known = |(ticket, outcome): (u64, Outcome)| (self.tickets[&ticket], outcome);
        self.seen.outcomes = outcomes.into_iter().map(known).collect();
        for partition in 0..PARTITIONS {
            let marker = self.publish(partition, "marker").await;
            let acked = |caller: &Caller| caller.outcomes.contains_key(&marker);
            self.caller.until("the marker", SOON, acked).await;
        }
        let mut marked = [false; PARTITIONS];
        for record in self.topic.read_all().await {
            let partition = usize::try_from(record.partition).unwrap();
            let value = record.value_text().unwrap();
            match value.split(' ').next().unwrap().parse() {
                Err(_) => marked[partition] = true,
                Ok(event) if marked[partition] => self.seen.late.push(event),
                Ok(event) => self.seen.log.entry(partition).or_default().push(event),
            }
        }
        self.seen
    }
}
