//! The long list of bad input: what is wrong is told with where it is and what mends it, and nothing is lost.
//!
//! What other modules test already is only recorded there; here is the rest of it.

mod broker;
mod config;
mod data;
mod encoding;
mod leaves;
mod login;
mod marks;
mod poison;
mod pooler;
mod slot;
mod statements;
mod table;

pub(crate) use crate::await_that::SOON;
use crate::pipeline::Pipeline;
use crate::relay::Relay;
pub(crate) use poison::told as told_of_parked;

/// All of `count` events are in the topic, once, after a run from here on.
async fn arrives(pipeline: &Pipeline, count: usize) {
    arrives_with(pipeline, &pipeline.config, count).await;
}

/// The same with another configuration.
async fn arrives_with(pipeline: &Pipeline, config: &str, count: usize) {
    let relay = Relay::spawn(config);
    let records = pipeline.topic.await_records(count, SOON).await;
    assert_eq!(records.len(), count, "nothing is lost and nothing comes twice");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
