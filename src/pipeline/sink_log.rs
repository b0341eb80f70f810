//! The log lines about the sink, and the state behind them.

use crate::event::Position;
use crate::health::{Condition, DueReport, duration_text};
use crate::offset::{Offset, Watermark};
use crate::record::Refusal;
use std::collections::BTreeMap;
use std::time::Instant;
use tracing::{info, warn};

/// Topics that are reported at a time. Further ones are reported when one of these recovers.
const REPORTED_MAX: usize = 100;

/// What was logged last about the sink. Each [`Condition`] is set while it lasts.
#[derive(Debug)]
pub(super) struct SinkLog {
    /// Name of the pipeline.
    name: String,
    /// The sink, or the topic that the intake waits for, accepts no records.
    outage: Option<Condition>,
    /// Topics that accept no records, and for which the intake does not wait.
    destinations: BTreeMap<String, Option<Condition>>,
    /// The dead-letter topic accepts no records.
    dead_letters: Option<Condition>,
    /// Resets of the sink since the start.
    resets_total: u64,
    /// It was reported that the sink has no progress of the pipeline.
    is_new: bool,
    /// The transaction of the source that was last reported as divided.
    divided: Option<Offset>,
}

impl SinkLog {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            outage: None,
            destinations: BTreeMap::new(),
            dead_letters: None,
            resets_total: 0,
            is_new: false,
            divided: None,
        }
    }

    /// The sink, or the topic that the intake waits for, accepts no records.
    pub(super) fn outage(&self) -> Option<&Condition> {
        self.outage.as_ref()
    }

    /// The intake does not wait for the reported topic any more: its events are parked.
    pub(super) fn intake_waits_no_longer(&mut self) {
        self.outage = None;
    }

    /// The sink is closed for a pause: what was logged as lasting begins again after the pause.
    pub(super) fn paused(&mut self) {
        (self.outage, self.dead_letters) = (None, None);
        self.destinations.clear();
    }

    /// A topic accepts records.
    pub(super) fn destination_up(&mut self, topic: &str) {
        self.destinations.remove(topic);
    }

    /// Resets of the sink since the start.
    pub(super) fn resets_total(&self) -> u64 {
        self.resets_total
    }

    /// Events wait for a topic, or, with `None`, for the brokers. `kept`: where they are meanwhile.
    pub(super) fn down(
        &mut self,
        kept: &str,
        topic: Option<&str>,
        reason: &str,
        hint: Option<&str>,
    ) {
        let (condition, now) = (&mut self.outage, Instant::now());
        let due = Condition::note(condition, reason.to_owned(), hint.map(str::to_owned), now);
        if let Some(due) = due {
            let DueReport { seconds, tries } = due;
            let words = match topic {
                Some(topic) if tries == 1 => {
                    format!("waiting for topic \"{topic}\", nothing is lost, {kept}: {reason}")
                }
                Some(topic) => {
                    format!("still waiting for topic \"{topic}\", {}, last: {reason}", due.text())
                }
                None if tries == 1 => {
                    format!("broker not available, nothing is lost, {kept}: {reason}")
                }
                None => format!("still waiting for broker, {}, last: {reason}", due.text()),
            };
            let pipeline = &self.name;
            warn!(event = "broker_down", pipeline, topic, seconds, tries, reason, hint, "{words}");
        }
    }

    /// The intake can use the sink again.
    pub(super) fn up(&mut self, topic: Option<&str>) {
        if let Some(condition) = self.outage.take() {
            let seconds = condition.seconds(Instant::now());
            let (pipeline, after) = (&self.name, duration_text(seconds));
            let words = match topic {
                Some(topic) => format!("topic \"{topic}\" accepts records after {after}"),
                None => format!("broker available again after {after}"),
            };
            info!(event = "broker_up", pipeline, topic, seconds, "{words}");
        }
    }

    /// The state of the sink is lost.
    pub(super) fn broken(&self, reason: &str) {
        let pipeline = &self.name;
        warn!(event = "producer_broken", pipeline, reason, "the producer's state can't be trusted");
    }

    /// A sink that publishes in transactions has never committed for this pipeline, as far as the sink knows.
    pub(super) fn without_progress(&mut self) {
        if !std::mem::replace(&mut self.is_new, true) {
            warn!(
                event = "sink_without_progress",
                pipeline = self.name,
                hint = "at the first start with this sink nothing has to be done. If the sink had events of this \
                        pipeline before, its database was emptied, or was restored from an earlier backup: stop, and \
                        see docs/sql/log.md, \"When the server of a log fails over\"",
                "the sink has stored no progress of this pipeline: it gets the events behind the cursor row, and no \
                 earlier ones"
            );
        }
    }

    /// The published part of a transaction of the source is published again, because its changes are counted in another
    /// way than before.
    pub(super) fn published_part_again(&self, commit: Offset) {
        warn!(
            event = "note",
            pipeline = self.name,
            note = "partial_dropped",
            "options of the stream, or captured tables, changed in the middle of the transaction that was committed at \
             {commit}: its published part is published again"
        );
    }

    /// A transaction of the sink ends within one of the source, which was to stay whole. Reported once for each.
    pub(super) fn divided(&mut self, position: Position) {
        if self.divided.replace(position.commit) != Some(position.commit) {
            warn!(
                event = "transaction_divided",
                pipeline = self.name,
                %position,
                hint = "if it has more events than transaction.events_max, or more bytes than transaction.bytes_max, \
                        raise them",
                "a transaction of the database is published in several transactions: consumers see its first events \
                 before the others"
            );
        }
    }

    /// The sink gives up what is in flight, and continues after `cursor`.
    pub(super) fn resetting(&mut self, why: &str, cursor: Watermark) {
        self.resets_total += 1;
        warn!(
            event = "producer_reset",
            pipeline = self.name,
            reason = why,
            from = %cursor,
            "resetting the producer; unacknowledged events are sent again"
        );
    }

    /// A topic accepts no records, and no event of another topic waits for it.
    pub(super) fn destination_down(&mut self, (topic, reason): (&str, &str), hint: Option<&str>) {
        let condition = &mut self.destinations;
        if condition.len() >= REPORTED_MAX && !condition.contains_key(topic) {
            return;
        }
        let condition = condition.entry(topic.to_owned()).or_default();
        let hint_kept = hint.map(str::to_owned);
        if let Some(due) = Condition::note(condition, reason.to_owned(), hint_kept, Instant::now())
        {
            let DueReport { seconds, tries } = due;
            let pipeline = &self.name;
            warn!(
                event = "topic_down",
                pipeline, seconds, tries, reason, hint, "events of the topic are parked: {reason}"
            );
        }
    }

    /// The dead-letter topic did not accept a record.
    pub(super) fn undelivered(
        &mut self,
        position: Position,
        reason: Refusal,
        dead_topic: Option<&str>,
    ) {
        let condition = &mut self.dead_letters;
        if Condition::note(condition, reason.code().to_owned(), None, Instant::now()).is_some() {
            warn!(
                event = "dead_not_sent",
                pipeline = self.name,
                %position,
                topic = dead_topic,
                %reason,
                hint = "check that parking.dead_topic exists and accepts records as large as the other topics",
                "dead event not sent to the dead-letter topic: it stays parked, and sending is retried"
            );
        }
    }

    /// A cluster answers that was not known when this session began.
    pub(super) fn located(&self, cluster: Option<&str>) {
        info!(
            event = "cluster_found",
            pipeline = self.name,
            cluster,
            "a Kafka cluster answers: comparing it with the one that the position belongs to"
        );
    }
}
