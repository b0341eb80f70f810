//! Log lines about the sink: brokers and topics that do not take records, and resets of the producer.

use crate::driver::pipeline::Pipeline;
use crate::driver::spec::Mode;
use crate::driver::trouble::{Due, Trouble, span};
use std::time::Instant;
use tracing::{info, warn};

/// What an event waits for: the topic, or with `None` the brokers.
pub(in crate::driver) fn sink_down(
    pipeline: &mut Pipeline,
    topic: Option<&str>,
    reason: &str,
    hint: Option<&str>,
) {
    // It may be down before the first claim.
    let kept = kept(pipeline.tell.polling || pipeline.spec.mode == Mode::Poll);
    let (told, now) = (&mut pipeline.tell.sink, Instant::now());
    let told = Trouble::note(told, reason.to_owned(), hint.map(str::to_owned), now);
    if let Some(due) = told {
        let Due { seconds, tries } = due;
        let words = match topic {
            Some(topic) if tries == 1 => {
                format!("waiting for topic \"{topic}\", nothing is lost, {kept}: {reason}")
            }
            Some(topic) => {
                format!("still waiting for topic \"{topic}\", {}, last: {reason}", due.words())
            }
            None if tries == 1 => {
                format!("broker not available, nothing is lost, {kept}: {reason}")
            }
            None => format!("still waiting for broker, {}, last: {reason}", due.words()),
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "broker_down", pipeline, topic, seconds, tries, reason, hint, "{words}");
    }
}

/// Where unpublished events are meanwhile.
const fn kept(polling: bool) -> &'static str {
    if polling { "the rows stay in the table" } else { "PostgreSQL keeps the WAL" }
}

pub(in crate::driver) fn sink_up(pipeline: &mut Pipeline, topic: Option<&str>) {
    if let Some(trouble) = pipeline.tell.sink.take() {
        let seconds = trouble.seconds(Instant::now());
        let (pipeline, after) = (pipeline.spec.name(), span(seconds));
        let words = match topic {
            Some(topic) => format!("topic \"{topic}\" accepts records after {after}"),
            None => format!("broker available again after {after}"),
        };
        info!(event = "broker_up", pipeline, topic, seconds, "{words}");
    }
}

pub(in crate::driver) fn sink_broken(pipeline: &Pipeline, reason: &str) {
    let pipeline = pipeline.spec.name();
    warn!(event = "producer_broken", pipeline, reason, "the producer's state can't be trusted");
}

pub(in crate::driver) fn resetting(pipeline: &mut Pipeline, why: &str) {
    pipeline.tell.resets_total += 1;
    let cursor = pipeline.relay.progress().watermark;
    warn!(
        event = "producer_reset",
        pipeline = pipeline.spec.name(),
        reason = why,
        from = %cursor,
        "resetting the Kafka producer; unacknowledged events are sent again"
    );
}
