//! What is said of the sink: brokers that go and come, and a producer that is thrown away.

use crate::driver::pipeline::Pipeline;
use crate::driver::trouble::{Due, Trouble, span};
use crate::relay::Restart;
use std::time::Instant;
use tracing::{info, warn};

pub(in crate::driver) fn sink_down(pipeline: &mut Pipeline, reason: &str, hint: Option<&str>) {
    let (told, now) = (&mut pipeline.tell.sink, Instant::now());
    let told = Trouble::note(told, reason.to_owned(), hint.map(str::to_owned), now);
    if let Some(due) = told {
        let Due { seconds, tries } = due;
        let words = if tries == 1 {
            format!("broker not available, nothing is lost, PostgreSQL keeps the WAL: {reason}")
        } else {
            format!("still waiting for broker, {}, last: {reason}", due.words())
        };
        let pipeline = pipeline.spec.name();
        warn!(event = "broker_down", pipeline, seconds, tries, reason, hint, "{words}");
    }
}

pub(in crate::driver) fn sink_up(pipeline: &mut Pipeline) {
    if let Some(trouble) = pipeline.tell.sink.take() {
        let seconds = trouble.seconds(Instant::now());
        let (pipeline, after) = (pipeline.spec.name(), span(seconds));
        info!(event = "broker_up", pipeline, seconds, "broker available again after {after}");
    }
}

pub(in crate::driver) fn sink_broken(pipeline: &Pipeline, reason: &str) {
    let pipeline = pipeline.spec.name();
    warn!(event = "producer_broken", pipeline, reason, "the producer's state can't be trusted");
}

pub(in crate::driver) fn resetting(pipeline: &mut Pipeline, why: Restart) {
    pipeline.tell.resets_total += 1;
    let cursor = pipeline.relay.progress().watermark;
    warn!(
        event = "producer_reset",
        pipeline = pipeline.spec.name(),
        reason = why.name(),
        from = %cursor,
        "throwing away what is in flight and streaming it again"
    );
}
