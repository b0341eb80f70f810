//! What goes to a producer at once, what waits for its turn, and what a producer says to it.
//!
//! Whatever can be said of a record before it is taken has been said: here it has its partition. Who waits is decided
//! by [`turns`](super::turns) and [`introductions`](super::introductions).

use super::introductions::Entry;
use super::large::Print;
use super::polled::Producer;
use super::topic::{self, Facts};
use super::{Code, KafkaSink, codes, native};
use crate::{NotTaken, Post};
use postrider_core::record::{Outcome, OwnedRecord, Record, Refusal, Scope, Ticket};
use rdkafka::producer::Producer as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A record that waits for the turn of its partition.
pub(super) struct Waiting {
    ticket: Ticket,
    facts: Arc<Facts>,
    partition: i32,
    record: OwnedRecord,
}

impl KafkaSink {
    #[inline]
    pub(super) fn produce_or_wait(
        &mut self,
        facts: &Arc<Facts>,
        ticket: Ticket,
        record: &Record<'_>,
    ) -> Result<(), NotTaken> {
        let Some(partition) = topic::partition_of(record, facts) else {
            return self.produce(facts, None, ticket, record);
        };
        self.turns.leads(facts.leaders);
        let line = self.turns.line(record.topic, partition);
        let acked = self.shared.acked.load(Ordering::Relaxed);
        if self.turns.must_wait(acked) {
            let (facts, record) = (Arc::clone(facts), OwnedRecord::of(record));
            let now = Instant::now();
            self.turns.wait(line, Waiting { ticket, facts, partition, record }, now);
            self.shared.in_turns.store(true, Ordering::Relaxed);
            // Where an answer is waited for it says when to try again.
            if self.turns.is_backlog(acked) && !self.shared.full.load(Ordering::SeqCst) {
                self.hand_over(now);
            }
            return Ok(());
        }
        self.produce(facts, Some(partition), ticket, record)?;
        self.turns.handed(line, acked);
        Ok(())
    }

    /// Hands over what has its turn.
    pub(super) fn hand_over(&mut self, now: Instant) {
        // Each line once: one that is put back waits for an answer.
        for _ in 0..self.turns.queued() {
            let acked = self.shared.acked.load(Ordering::Relaxed);
            let Some(line) = self.turns.next(acked, now) else { break };
            while let Some(waiting) = self.turns.take(line) {
                let Waiting { ticket, facts, partition, record } = &waiting;
                let (ticket, partition) = (*ticket, Some(*partition));
                let taken = if self.is_shut() {
                    Err(NotTaken::Full)
                } else {
                    record.lend(|record| self.produce(facts, partition, ticket, record))
                };
                match taken {
                    Ok(()) => self.turns.handed(line, acked),
                    Err(why) => {
                        self.not_handed_over(ticket, why);
                        self.turns.put_back(line, waiting, now);
                        break;
                    }
                }
            }
        }
        self.shared.in_turns.store(self.turns.queued() > 0, Ordering::Relaxed);
    }

    /// A record that was taken can't be given back. It waits on where that helps; else all starts anew, and what it is
    /// then offered for says why.
    fn not_handed_over(&self, ticket: Ticket, why: NotTaken) {
        let reason = match why {
            NotTaken::Full | NotTaken::Alone => return,
            NotTaken::Refused(reason) | NotTaken::Doubted(reason) => {
                let outcome = Outcome::Rejected { scope: Scope::Event, reason };
                self.shared.mailbox.report(ticket, outcome);
                "the producer refused a record that it was to take"
            }
            NotTaken::Destination | NotTaken::Unavailable | NotTaken::Missing => {
                "the producer does not know a partition that the topic had"
            }
        };
        if let Some(producers) = &self.producers {
            producers.first().client().context().broken(reason.to_owned());
        }
    }

    /// What waits for its turn is not handed over any more.
    pub(super) fn give_up_waiting(&mut self) {
        self.turns.clear();
        self.shared.in_turns.store(false, Ordering::Relaxed);
    }

    fn produce(
        &mut self,
        facts: &Facts,
        partition: Option<i32>,
        ticket: Ticket,
        record: &Record<'_>,
    ) -> Result<(), NotTaken> {
        let Some(producers) = &self.producers else {
            return Err(NotTaken::Full);
        };
        let (number, producer) = producers.of(record);
        let hour = self.shared.hour.load(Ordering::Relaxed);
        let who = (number, producers.count());
        let firsts = producer.client().context().firsts();
        let to = partition.map(|partition| (record.topic, partition));
        match to.map_or(Entry::Open, |to| self.introductions.enter(to, who, hour)) {
            Entry::Open => {}
            Entry::First(door) => firsts.hand_in(ticket, door),
            Entry::Wait(door) => {
                // The answer posts `Retry` from here on, unless it has just come.
                self.shared.full.store(true, Ordering::SeqCst);
                if !door.is_open() {
                    return Err(NotTaken::Full);
                }
            }
        }
        self.used = true;
        let to = (facts.name.as_c_str(), partition);
        let mut result = native::produce(producer, to, ticket, record);
        if result == Err(Code::QueueFull) {
            // From here on the next report posts `Retry`. The second try is for the case that the last one has just
            // come.
            self.shared.full.store(true, Ordering::SeqCst);
            result = native::produce(producer, to, ticket, record);
        }
        result.or_else(|code| {
            firsts.take_back(ticket);
            self.not_produced(producer, ticket, record, code)
        })
    }

    /// Hands a record above its topic's limit before compression to the producer for such records, which has no other
    /// meanwhile. Whoever offers it has nothing in flight that must stay in order with it, so it waits for no turn.
    pub(super) fn produce_large(
        &mut self,
        facts: &Facts,
        (ticket, print, size): (Ticket, Print, usize),
        (record, again): (&Record<'_>, bool),
    ) -> Result<(), NotTaken> {
        let Some(producers) = self.producers.clone() else {
            return Err(NotTaken::Full);
        };
        if producers.large().is_none()
            && let Err(error) = self.make_large(&producers)
        {
            if self.may_fit_later(&error) {
                // The others could not be made now either: they are given up with it, until the files fit.
                let reason = "the files of its certificates or keys have changed since it was made";
                producers.first().client().context().broken(reason.to_owned());
            } else {
                self.not_made(&error);
            }
        }
        let Some(producer) = producers.large() else {
            return Err(NotTaken::Full);
        };
        if self.has_large(producer) {
            self.large.waits |= !again;
            return Err(NotTaken::Full);
        }
        if std::mem::take(&mut self.large.waits) && again {
            // Everything behind that of the stream waits for it: it is offered before this one comes again.
            self.shared.mailbox.post(Post::Retry);
            return Err(NotTaken::Full);
        }
        self.used = true;
        self.shared.large.sent(ticket, print, size, facts);
        let to = (facts.name.as_c_str(), topic::partition_of(record, facts));
        let result = native::produce(producer, to, ticket, record);
        // One of before has its report: the producer had none.
        self.large.out = result.is_ok() && !again;
        result.or_else(|code| self.not_produced(producer, ticket, record, code))
    }

    /// Whether the producer for large records has one. Where it has, the report posts `Retry`.
    fn has_large(&self, producer: &Producer) -> bool {
        if producer.in_flight_count() == 0 {
            return false;
        }
        // From here on, unless it has just come.
        self.shared.full.store(true, Ordering::SeqCst);
        producer.in_flight_count() > 0
    }

    /// Whether a large record of the stream is in flight.
    pub(super) fn large_is_out(&mut self) -> bool {
        let large = self.producers.as_ref().and_then(|producers| producers.large());
        self.large.out = large.is_some_and(|producer| self.has_large(producer));
        self.large.out
    }

    /// What to say of a record that librdkafka did not take.
    fn not_produced(
        &self,
        producer: &Producer,
        ticket: Ticket,
        record: &Record<'_>,
        code: Code,
    ) -> Result<(), NotTaken> {
        if code == Code::QueueFull {
            return Err(NotTaken::Full);
        }
        if code == Code::Fatal {
            producer.client().context().broken("the producer takes no more records".to_owned());
            return Err(NotTaken::Full);
        }
        if code == Code::MessageSizeTooLarge {
            // librdkafka's own limit, `message.max.bytes`, set by an operator: for the record before compression.
            let (size, limit) = (record.size_bytes(), self.sizes.client);
            return Err(NotTaken::Refused(Refusal::TooLarge { size, limit }));
        }
        let outcome = codes::outcome(code);
        if let Outcome::Rejected { scope: Scope::Event, reason } = outcome {
            return Err(NotTaken::Refused(reason));
        }
        if matches!(outcome, Outcome::Rejected { scope: Scope::Destination, .. }) {
            self.shared.forget_topics(code);
            self.shared.want(record.topic);
            return Err(NotTaken::Destination);
        }
        self.shared.mailbox.report(ticket, outcome);
        producer.client().context().broken(format!("the producer took no record: {code}"));
        Ok(())
    }
}
