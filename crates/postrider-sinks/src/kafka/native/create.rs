//! The administrator's request that makes a topic, on a producer's own connection.
#![expect(unsafe_code, reason = "librdkafka's C functions, on handles the crate keeps alive")]

use super::{ask, code_of, event_error, failed, text};
use crate::kafka::Producer;
use crate::spec::CreateTopics;
use rdkafka::types::RDKafkaErrorCode;
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_char, c_int};
use std::time::Duration;

unsafe extern "C" {
    #[link_name = "rd_kafka_topic_result_error"]
    fn topic_error(result: *const sys::rd_kafka_topic_result_t) -> c_int;
}

/// Why a topic was not made: the broker's code, and its words where it has some.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::kafka) struct NotMade {
    pub(in crate::kafka) code: RDKafkaErrorCode,
    pub(in crate::kafka) words: String,
}

impl From<RDKafkaErrorCode> for NotMade {
    fn from(code: RDKafkaErrorCode) -> Self {
        Self { code, words: String::new() }
    }
}

/// Makes a topic, or with `only_validate` asks whether it could be made. Waits at most `timeout`.
pub(in crate::kafka) fn create_topic(
    producer: &Producer,
    topic: &CStr,
    wanted: &CreateTopics,
    only_validate: bool,
    timeout: Duration,
) -> Result<(), NotMade> {
    let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_CREATETOPICS;
    let count = |number: Option<u32>| {
        number.map_or(-1, |number| c_int::try_from(number).unwrap_or(c_int::MAX))
    };
    let c_string =
        |text: &str| CString::new(text).map_err(|_nul| RDKafkaErrorCode::InvalidArgument);
    let config = wanted
        .config
        .iter()
        .map(|(name, value)| Ok((c_string(name)?, c_string(value)?)))
        .collect::<Result<Vec<_>, RDKafkaErrorCode>>()?;
    let mut said: [c_char; 256] = [0; 256];
    // SAFETY: -1 is the broker's default for both numbers; `said` is as long as it is said to be.
    let mut new = unsafe {
        sys::rd_kafka_NewTopic_new(
            topic.as_ptr(),
            count(wanted.partitions),
            count(wanted.replication_factor),
            said.as_mut_ptr(),
            said.len(),
        )
    };
    if new.is_null() {
        return Err(RDKafkaErrorCode::InvalidArgument.into());
    }
    for (name, value) in &config {
        // SAFETY: `new` is live; both strings are copied. Its only error is an empty name, which the broker refuses.
        unsafe { sys::rd_kafka_NewTopic_set_config(new, name.as_ptr(), value.as_ptr()) };
    }
    // SAFETY: one request of that kind; `new` is destroyed after its last use.
    let send = |client, options: *mut sys::rd_kafka_AdminOptions_t, queue| unsafe {
        let mut said: [c_char; 128] = [0; 128];
        sys::rd_kafka_AdminOptions_set_validate_only(
            options,
            c_int::from(only_validate),
            said.as_mut_ptr(),
            said.len(),
        );
        sys::rd_kafka_CreateTopics(client, &raw mut new, 1, options, queue);
        sys::rd_kafka_NewTopic_destroy(new);
    };
    // SAFETY: `made` reads the answer to that request.
    unsafe { ask(producer, op, timeout, send, made) }?
}

/// # Safety
/// `event` is a live event of a `CreateTopics` queue.
unsafe fn made(event: *mut sys::rd_kafka_event_t) -> Result<Result<(), NotMade>, RDKafkaErrorCode> {
    // SAFETY: what the caller promises; the array is as long as its count says.
    unsafe {
        failed(event_error(event))?;
        let result = sys::rd_kafka_event_CreateTopics_result(event);
        if result.is_null() {
            return Err(RDKafkaErrorCode::InvalidType);
        }
        let mut count = 0;
        let topics = sys::rd_kafka_CreateTopics_result_topics(result, &raw mut count);
        if count == 0 {
            return Err(RDKafkaErrorCode::InvalidType);
        }
        let topic = *topics;
        let number = topic_error(topic);
        if number == 0 {
            return Ok(Ok(()));
        }
        let words = text(sys::rd_kafka_topic_result_error_string(topic));
        Ok(Err(NotMade { code: code_of(number), words }))
    }
}
