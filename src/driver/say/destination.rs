//! Log lines about topics that take no records while the pipeline continues with other topics.

use crate::driver::pipeline::Pipeline;
use crate::driver::trouble::{Due, Trouble};
use crate::event::Position;
use crate::record::Refusal;
use std::time::{Duration, Instant};
use tracing::warn;

/// Topics that are reported at most at a time; further ones are reported when one of these recovers.
const TOLD_MAX: usize = 100;

/// A topic takes no records, and no other event waits for it.
pub(in crate::driver) fn destination_down(
    pipeline: &mut Pipeline,
    (topic, reason): (&str, &str),
    hint: Option<&str>,
) {
    let told = &mut pipeline.tell.destinations;
    if told.len() >= TOLD_MAX && !told.contains_key(topic) {
        return;
    }
    let told = told.entry(topic.to_owned()).or_default();
    let hint_kept = hint.map(str::to_owned);
    if let Some(due) = Trouble::note(told, reason.to_owned(), hint_kept, Instant::now()) {
        let Due { seconds, tries } = due;
        let pipeline = pipeline.spec.name();
        warn!(
            event = "topic_down",
            pipeline, seconds, tries, reason, hint, "events of the topic are parked: {reason}"
        );
    }
}

/// Events of a destination are parked from here on.
pub(in crate::driver) fn destination_given_up(
    pipeline: &str,
    topic: &str,
    park_after: Option<Duration>,
) {
    let park_after = park_after.unwrap_or_default();
    warn!(
        event = "topic_given_up",
        pipeline,
        topic,
        ?park_after,
        hint = "fix the topic; its parked events are then retried automatically",
        "the topic has accepted no records for parking.park_after: its events are parked, other topics continue"
    );
}

/// The dead-letter topic did not take a record.
pub(in crate::driver) fn undelivered(pipeline: &mut Pipeline, position: Position, reason: Refusal) {
    let told = &mut pipeline.tell.letters;
    if Trouble::note(told, reason.code().to_owned(), None, Instant::now()).is_some() {
        warn!(
            event = "dead_not_sent",
            pipeline = pipeline.spec.name(),
            %position,
            topic = pipeline.spec.dead_topic,
            %reason,
            hint = "see that parking.dead_topic exists and takes records as large as the other topics",
            "dead event not sent to the dead-letter topic: it stays parked, and sending is retried"
        );
    }
}
