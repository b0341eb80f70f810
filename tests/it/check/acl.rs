//! Rights on a broker, which the crate has no call for.
#![expect(unsafe_code, reason = "librdkafka's C functions, on handles the crate keeps alive")]

use crate::topic::admin;
use rdkafka::types::RDKafkaRespErr;
use rdkafka_sys as sys;
use std::ffi::CString;
use std::ptr;

/// Lets `principal` do `operation` with a topic, from anywhere.
pub(super) fn allow(
    brokers: &str,
    principal: &str,
    topic: &str,
    operation: sys::rd_kafka_AclOperation_t,
) {
    let admin = admin(brokers);
    let client = admin.inner().native_ptr();
    let text = |text: &str| CString::new(text).expect("no zero byte");
    let (topic, principal, host) = (text(topic), text(principal), text("*"));
    // SAFETY: every object is destroyed after its last use, and the strings outlive the calls.
    unsafe {
        let mut binding = sys::rd_kafka_AclBinding_new(
            sys::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC,
            topic.as_ptr(),
            sys::rd_kafka_ResourcePatternType_t::RD_KAFKA_RESOURCE_PATTERN_LITERAL,
            principal.as_ptr(),
            host.as_ptr(),
            operation,
            sys::rd_kafka_AclPermissionType_t::RD_KAFKA_ACL_PERMISSION_TYPE_ALLOW,
            ptr::null_mut(),
            0,
        );
        assert!(!binding.is_null(), "a right that librdkafka knows");
        let queue = sys::rd_kafka_queue_new(client);
        sys::rd_kafka_CreateAcls(client, &raw mut binding, 1, ptr::null(), queue);
        let event = sys::rd_kafka_queue_poll(queue, 20_000);
        assert!(!event.is_null(), "the broker answers");
        let error = sys::rd_kafka_event_error(event);
        sys::rd_kafka_event_destroy(event);
        sys::rd_kafka_queue_destroy(queue);
        sys::rd_kafka_AclBinding_destroy(binding);
        assert!(error == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR, "{error:?}");
    }
}
