//! The few librdkafka calls that the crate wraps with a pause (flush: 100 ms), with copies (headers), or not at all
//! on a producer (the topic's configuration). With its `create`, `description` and `events` the only place with
//! `unsafe`; it decides nothing.
#![expect(unsafe_code, reason = "librdkafka's C functions, on handles the crate keeps alive")]

mod create;
mod description;
mod events;

pub(super) use create::{NotMade, create_topic};
pub(super) use description::{Description, TopicId, describe};
pub(super) use events::{Events, Gathered, Report};

use super::polled::Producer;
use postrider_core::record::{Header, Record, Ticket};
use rdkafka::producer::{PARTITION_UA, Producer as _};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

// A ticket travels through librdkafka as a pointer-sized opaque.
const _: () = assert!(size_of::<usize>() >= size_of::<u64>(), "tickets need 64-bit pointers");

// Errors by their number: a broker's may be one that librdkafka's enum does not have.
unsafe extern "C" {
    #[link_name = "rd_kafka_event_error"]
    fn event_error(event: *mut sys::rd_kafka_event_t) -> c_int;
    #[link_name = "rd_kafka_error_code"]
    fn error_code(error: *const sys::rd_kafka_error_t) -> c_int;
    #[link_name = "rd_kafka_ConfigResource_error"]
    fn resource_error(resource: *const sys::rd_kafka_ConfigResource_t) -> c_int;
}

/// A code by its number.
fn code_of(number: i32) -> RDKafkaErrorCode {
    RDKafkaRespErr::try_from(number).map_or(RDKafkaErrorCode::Unknown, RDKafkaErrorCode::from)
}

fn failed(number: i32) -> Result<(), RDKafkaErrorCode> {
    if number == 0 { Ok(()) } else { Err(code_of(number)) }
}

/// Hands one record to librdkafka, which copies it, and chooses a partition where none is given. Never blocks.
pub(super) fn produce(
    producer: &Producer,
    (topic, partition): (&CStr, Option<i32>),
    ticket: Ticket,
    record: &Record<'_>,
) -> Result<(), RDKafkaErrorCode> {
    let headers = headers(record.headers);
    let (value, value_len) = raw(record.value);
    let (key, key_len) = raw(record.key);
    // librdkafka reads 0 as "now"; Kafka takes no time before 1970.
    let timestamp = record.timestamp_ms.map_or(0, |time| time.max(1));
    // SAFETY: the handle lives as long as `producer`; every tag is followed by the arguments rdkafka.h names for it,
    // and the bytes are copied before the call returns (RD_KAFKA_MSG_F_COPY). The opaque is a number, read back as a
    // number.
    let result = unsafe {
        sys::rd_kafka_producev(
            producer.client().native_ptr(),
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_TOPIC,
            topic.as_ptr(),
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_PARTITION,
            partition.unwrap_or(PARTITION_UA),
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_MSGFLAGS,
            sys::RD_KAFKA_MSG_F_COPY,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_VALUE,
            value,
            value_len,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_KEY,
            key,
            key_len,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_OPAQUE,
            ticket.0 as *mut c_void,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_TIMESTAMP,
            timestamp,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_HEADERS,
            headers,
            sys::rd_kafka_vtype_t::RD_KAFKA_VTYPE_END,
        )
    };
    if result == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR {
        return Ok(());
    }
    if !headers.is_null() {
        // SAFETY: on an error the headers are still ours.
        unsafe { sys::rd_kafka_headers_destroy(headers) };
    }
    Err(result.into())
}

fn headers(headers: &[Header<'_>]) -> *mut sys::rd_kafka_headers_t {
    if headers.is_empty() {
        return ptr::null_mut();
    }
    // SAFETY: a fresh list, filled with copies of names and values whose lengths are given.
    unsafe {
        let list = sys::rd_kafka_headers_new(headers.len());
        for header in headers {
            let (value, len) = raw(header.value);
            sys::rd_kafka_header_add(
                list,
                header.name.as_ptr().cast::<c_char>(),
                signed(header.name.len()),
                value,
                signed(len),
            );
        }
        list
    }
}

/// Pointer and length as librdkafka wants them: a null pointer is a null value.
const fn raw(bytes: Option<&[u8]>) -> (*mut c_void, usize) {
    match bytes {
        None => (ptr::null_mut(), 0),
        Some(bytes) => (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len()),
    }
}

/// Slices are never longer than `isize::MAX`.
const fn signed(len: usize) -> isize {
    len.cast_signed()
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

/// Sends what lingers and waits until every record has its report, at most `timeout`. True when none is left.
pub(super) fn flush(producer: &Producer, timeout: Duration) -> bool {
    // SAFETY: the handle lives as long as `producer`, and a thread polls its reports.
    let result = unsafe { sys::rd_kafka_flush(producer.client().native_ptr(), millis(timeout)) };
    result == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// Tells a producer of brokers, comma-separated, as at its start. It keeps each such text for as long as it lives, and
/// connects to those that it does not know. Never waits.
pub(super) fn add_brokers(producer: &Producer, brokers: &CStr) {
    // SAFETY: the handle lives as long as `producer`; the text is copied before the call returns.
    unsafe { sys::rd_kafka_brokers_add(producer.client().native_ptr(), brokers.as_ptr()) };
}

/// Gives a producer another SASL name and password (PLAIN, SCRAM). It uses them from its next login on, and tries the
/// brokers at once whose login was refused. Connections that are logged in stay.
pub(super) fn set_login(producer: &Producer, username: &str, password: &str) {
    let texts = (CString::new(username), CString::new(password));
    // A value with a zero byte is no login that librdkafka could send.
    let (Ok(username), Ok(password)) = texts else { return };
    // SAFETY: the handle lives as long as `producer`; both texts are copied before the call returns. The error, which
    // is only made where one of them is null, is given back.
    unsafe {
        let client = producer.client().native_ptr();
        let error =
            sys::rd_kafka_sasl_set_credentials(client, username.as_ptr(), password.as_ptr());
        if !error.is_null() {
            sys::rd_kafka_error_destroy(error);
        }
    }
}

/// Throws away what is queued and not yet in a request; with `in_flight`, what is in a request too. Never waits.
pub(super) fn purge(producer: &Producer, in_flight: bool) {
    let flags = sys::RD_KAFKA_PURGE_F_QUEUE
        | sys::RD_KAFKA_PURGE_F_NON_BLOCKING
        | if in_flight { sys::RD_KAFKA_PURGE_F_INFLIGHT } else { 0 };
    // SAFETY: the handle lives as long as `producer`. The only errors are for other clients and other flags.
    unsafe { sys::rd_kafka_purge(producer.client().native_ptr(), flags) };
}

/// Asks an administrator's question and reads its answer. Waits at most `timeout`.
///
/// # Safety
/// `send` asks one question of the kind `op` with what it is given, and keeps none of it; `read` reads its answer.
unsafe fn ask<T>(
    producer: &Producer,
    op: sys::rd_kafka_admin_op_t,
    timeout: Duration,
    send: impl FnOnce(
        *mut sys::rd_kafka_t,
        *mut sys::rd_kafka_AdminOptions_t,
        *mut sys::rd_kafka_queue_t,
    ),
    read: unsafe fn(*mut sys::rd_kafka_event_t) -> Result<T, RDKafkaErrorCode>,
) -> Result<T, RDKafkaErrorCode> {
    let client = producer.client().native_ptr();
    // SAFETY: every object made here is destroyed here, after its last use; the event owns the result and its strings.
    unsafe {
        let queue = sys::rd_kafka_queue_new(client);
        let options = sys::rd_kafka_AdminOptions_new(client, op);
        let mut text: [c_char; 128] = [0; 128];
        sys::rd_kafka_AdminOptions_set_request_timeout(
            options,
            millis(timeout),
            text.as_mut_ptr(),
            text.len(),
        );
        send(client, options, queue);
        sys::rd_kafka_AdminOptions_destroy(options);
        let event = sys::rd_kafka_queue_poll(queue, millis(timeout));
        let answer = if event.is_null() {
            Err(RDKafkaErrorCode::OperationTimedOut)
        } else {
            let answer = read(event);
            sys::rd_kafka_event_destroy(event);
            answer
        };
        sys::rd_kafka_queue_destroy(queue);
        answer
    }
}

/// The configuration of a topic as its broker has it: name and value of each entry. Waits at most `timeout`.
pub(super) fn topic_config(
    producer: &Producer,
    topic: &CStr,
    timeout: Duration,
) -> Result<Vec<(String, String)>, RDKafkaErrorCode> {
    let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS;
    // SAFETY: one question of that kind; the resource is destroyed after its last use.
    let send = |client, options: *mut sys::rd_kafka_AdminOptions_t, queue| unsafe {
        let mut resource = sys::rd_kafka_ConfigResource_new(
            sys::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC,
            topic.as_ptr(),
        );
        sys::rd_kafka_DescribeConfigs(client, &raw mut resource, 1, options, queue);
        sys::rd_kafka_ConfigResource_destroy(resource);
    };
    // SAFETY: `entries` reads the answer to that question.
    unsafe { ask(producer, op, timeout, send, entries) }
}

/// # Safety
/// `event` is a live event of a `DescribeConfigs` queue.
unsafe fn entries(
    event: *mut sys::rd_kafka_event_t,
) -> Result<Vec<(String, String)>, RDKafkaErrorCode> {
    // SAFETY: what the caller promises; the arrays are as long as their counts say.
    unsafe {
        failed(event_error(event))?;
        let result = sys::rd_kafka_event_DescribeConfigs_result(event);
        if result.is_null() {
            return Err(RDKafkaErrorCode::InvalidType);
        }
        let mut count = 0;
        let resources = sys::rd_kafka_DescribeConfigs_result_resources(result, &raw mut count);
        if count == 0 {
            return Ok(Vec::new());
        }
        let resource = *resources;
        failed(resource_error(resource))?;
        let mut count = 0;
        let configs = sys::rd_kafka_ConfigResource_configs(resource, &raw mut count);
        Ok((0..count)
            .map(|index| *configs.add(index))
            .map(|entry| {
                (
                    text(sys::rd_kafka_ConfigEntry_name(entry)),
                    text(sys::rd_kafka_ConfigEntry_value(entry)),
                )
            })
            .collect())
    }
}

/// # Safety
/// `text` is null or a C string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: what the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
