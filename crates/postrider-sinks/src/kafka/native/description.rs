//! A topic as its broker describes it: which one it is, and whether we may write to it.

use super::{ask, error_code, event_error, failed};
use crate::kafka::polled::Producer;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka_sys as sys;
use std::ffi::CStr;
use std::time::Duration;

/// What a topic keeps for as long as it lives, and one that is made anew under its name does not have (Kafka, KIP-516).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::kafka) struct TopicId(i64, i64);

#[cfg(test)]
impl TopicId {
    pub(in crate::kafka) const fn number(number: i64) -> Self {
        Self(number, 0)
    }
}

/// What a broker says of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::kafka) struct Description {
    /// None before Kafka 2.8.
    pub(in crate::kafka) id: Option<TopicId>,
    /// Whether we may write to it; where the broker says it, as from Kafka 2.3 on.
    pub(in crate::kafka) may_write: Option<bool>,
}

/// Asks the controller for a topic (`DescribeTopics` with authorized operations). Waits at most `timeout`.
///
/// # Errors
/// The topic's own error, or why the broker could not be asked.
pub(in crate::kafka) fn describe(
    producer: &Producer,
    topic: &CStr,
    timeout: Duration,
) -> Result<Description, RDKafkaErrorCode> {
    let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    // SAFETY: one question of that kind; the collection is destroyed after its last use.
    let send = |client, options, queue| unsafe {
        let error = sys::rd_kafka_AdminOptions_set_include_authorized_operations(options, 1);
        if !error.is_null() {
            sys::rd_kafka_error_destroy(error);
        }
        let mut names = [topic.as_ptr()];
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        sys::rd_kafka_DescribeTopics(client, topics, options, queue);
        sys::rd_kafka_TopicCollection_destroy(topics);
    };
    // SAFETY: `description` reads the answer to that question.
    unsafe { ask(producer, op, timeout, send, description) }
}

/// # Safety
/// `event` is a live event of a `DescribeTopics` queue.
unsafe fn description(event: *mut sys::rd_kafka_event_t) -> Result<Description, RDKafkaErrorCode> {
    // SAFETY: what the caller promises; the array is as long as its count says.
    unsafe {
        failed(event_error(event))?;
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return Err(RDKafkaErrorCode::InvalidType);
        }
        let mut count = 0;
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if count == 0 {
            return Err(RDKafkaErrorCode::UnknownTopicOrPartition);
        }
        let topic = *topics;
        failed(error_code(sys::rd_kafka_TopicDescription_error(topic)))?;
        Ok(Description { id: id(topic), may_write: may_write(topic) })
    }
}

/// # Safety
/// `topic` is of a live result.
unsafe fn id(topic: *const sys::rd_kafka_TopicDescription_t) -> Option<TopicId> {
    // SAFETY: what the caller promises.
    let (most, least) = unsafe {
        let id = sys::rd_kafka_TopicDescription_topic_id(topic);
        if id.is_null() {
            return None;
        }
        (
            sys::rd_kafka_Uuid_most_significant_bits(id),
            sys::rd_kafka_Uuid_least_significant_bits(id),
        )
    };
    ((most, least) != (0, 0)).then_some(TopicId(most, least))
}

/// # Safety
/// `topic` is of a live result.
unsafe fn may_write(topic: *const sys::rd_kafka_TopicDescription_t) -> Option<bool> {
    let mut count = 0;
    // SAFETY: what the caller promises.
    let allowed =
        unsafe { sys::rd_kafka_TopicDescription_authorized_operations(topic, &raw mut count) };
    if allowed.is_null() {
        return None;
    }
    // SAFETY: the array is as long as its count says.
    let may = |operation| (0..count).any(|index| unsafe { *allowed.add(index) } == operation);
    // Who sees the topic may describe it: a list without that is no answer.
    may(sys::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_DESCRIBE)
        .then(|| may(sys::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE))
}
