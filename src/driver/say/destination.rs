//! What is said of destinations that take no records while the pipeline goes on without them.

use crate::driver::pipeline::Pipeline;
use crate::driver::trouble::{Due, Trouble};
use crate::event::Position;
use crate::record::Refusal;
use std::time::{Duration, Instant};
use tracing::warn;

/// Destinations whose trouble is told: of further ones nothing is, until one of these is well.
const TOLD_MAX: usize = 100;

/// A destination takes no records, and holds up nobody.
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
            pipeline, seconds, tries, reason, hint, "its events wait, parked: {reason}"
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
        hint = "mend the topic: its parked events are tried again by themselves",
        "the topic has taken no records for parking.park_after: its events are parked, all others go on"
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
            "dead event not sent to the dead-letter topic: it stays parked, and is offered again"
        );
    }
}
