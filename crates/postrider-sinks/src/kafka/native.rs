//! The calls of librdkafka that are made directly, and not through the crate `rdkafka`: that crate's `flush` polls
//! every 100 ms, its headers are copied once more, it sends no administrator's requests on a producer's own connection,
//! and its producers do not say which requests were sent. This is the only file of the sink with `unsafe`.
#![expect(unsafe_code, reason = "librdkafka's C functions, on handles the crate keeps alive")]

use super::producer::{Context, TRANSACTIONAL_ID};
use super::spec::CreateTopics;
use postrider_core::record::{Header, Record, Ticket};
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::PARTITION_UA;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaErrorCode as Code, RDKafkaRespErr, RDKafkaType};
use rdkafka_sys as sys;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

// A ticket travels through librdkafka as a pointer-sized opaque.
const _: () = assert!(size_of::<usize>() >= size_of::<u64>(), "tickets need 64-bit pointers");

// The functions return numbers here, and not the enum of the bindings: a broker may send an error number that the enum
// does not have.
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

/// A producer of librdkafka.
pub(super) struct Producer {
    /// The first field, so that librdkafka's threads have ended before the number that they raise is freed.
    client: Client<Context>,
    ended: Arc<AtomicU64>,
}

/// The key of a request that ends a transaction (Kafka protocol, "Api Keys").
const END_TXN: i16 = 26;

impl Producer {
    /// Creates a producer, which connects in the background. It is in transactions if the configuration has a
    /// transactional id.
    ///
    /// # Errors
    /// librdkafka's error: a property, a file of a certificate, or a thread that can't be started.
    pub(super) fn make(config: &ClientConfig, context: Context) -> Result<Self, KafkaError> {
        let native = config.create_native_config()?;
        let ended = Arc::<AtomicU64>::default();
        let events = sys::RD_KAFKA_EVENT_DR
            | sys::RD_KAFKA_EVENT_STATS
            | sys::RD_KAFKA_EVENT_ERROR
            | sys::RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH;
        // SAFETY: the configuration is alive. The number lives longer than the client: it is the later field.
        let added = unsafe {
            sys::rd_kafka_conf_set_events(native.ptr(), events);
            if config.get(TRANSACTIONAL_ID).is_some() {
                sys::rd_kafka_conf_interceptor_add_on_new(
                    native.ptr(),
                    INTERCEPTOR.as_ptr(),
                    Some(count_requests),
                    Arc::as_ptr(&ended).cast_mut().cast(),
                )
            } else {
                RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
            }
        };
        failed(added as i32).map_err(|code| KafkaError::ClientCreation(code.to_string()))?;
        let client = Client::new(config, native, RDKafkaType::RD_KAFKA_PRODUCER, context)?;
        Ok(Self { client, ended })
    }

    pub(super) const fn client(&self) -> &Client<Context> {
        &self.client
    }

    /// The number of records without a report.
    pub(super) fn in_flight_count(&self) -> i32 {
        // SAFETY: the handle lives as long as `self`.
        unsafe { sys::rd_kafka_outq_len(self.client.native_ptr()) }
    }

    /// How many requests to end a transaction were sent as a whole, repetitions included. librdkafka counts a request
    /// before it handles the answer.
    pub(super) fn ended_count(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }
}

/// librdkafka's name for the functions that are called for its requests.
const INTERCEPTOR: &CStr = c"postrider";

/// Has librdkafka call [`count_request`] for a new client.
unsafe extern "C" fn count_requests(
    client: *mut sys::rd_kafka_t,
    _conf: *const sys::rd_kafka_conf_t,
    opaque: *mut c_void,
    _text: *mut c_char,
    _text_size: usize,
) -> RDKafkaRespErr {
    let (name, function) = (INTERCEPTOR.as_ptr(), Some(count_request as _));
    // SAFETY: librdkafka calls this for a client that it is creating, with the opaque that was given to it.
    unsafe { sys::rd_kafka_interceptor_add_on_request_sent(client, name, function, opaque) }
}

/// Counts a request that was written to a connection as a whole.
unsafe extern "C" fn count_request(
    _client: *mut sys::rd_kafka_t,
    _socket: c_int,
    _broker: *const c_char,
    _broker_id: i32,
    key: i16,
    _version: i16,
    _correlation: i32,
    _size: usize,
    opaque: *mut c_void,
) -> RDKafkaRespErr {
    if key == END_TXN {
        // SAFETY: the opaque is the number of `Producer::make`, which outlives librdkafka's threads.
        unsafe { &*opaque.cast::<AtomicU64>() }.fetch_add(1, Ordering::Release);
    }
    RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// Adds one record to librdkafka's queue. librdkafka copies the record, and chooses a partition if none is given. Never
/// blocks.
pub(super) fn produce(
    producer: &Producer,
    (topic, partition): (&CStr, Option<i32>),
    ticket: Ticket,
    record: &Record<'_>,
) -> Result<(), RDKafkaErrorCode> {
    let headers = headers(record.headers);
    let (value, value_len) = raw(record.value);
    let (key, key_len) = raw(record.key);
    // librdkafka interprets 0 as the current time, and Kafka accepts no time before 1970.
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

/// Pointer and length for librdkafka; a null pointer is a null value.
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

/// Sends the queued records at once, and waits until every record has its report, at most `timeout`. Returns whether
/// every record has one.
pub(super) fn flush(producer: &Producer, timeout: Duration) -> bool {
    // SAFETY: the handle lives as long as `producer`, and a thread polls its reports.
    let result = unsafe { sys::rd_kafka_flush(producer.client().native_ptr(), millis(timeout)) };
    result == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR
}

/// Adds bootstrap brokers to a producer, as a comma-separated list. The producer connects to those that it does not
/// know yet. librdkafka keeps each list until the producer is destroyed. Never waits.
pub(super) fn add_brokers(producer: &Producer, brokers: &CStr) {
    // SAFETY: the handle lives as long as `producer`; the text is copied before the call returns.
    unsafe { sys::rd_kafka_brokers_add(producer.client().native_ptr(), brokers.as_ptr()) };
}

/// Gives a producer another SASL name and password (PLAIN, SCRAM). The producer uses them from its next login on, and
/// retries brokers that have refused its login immediately. Connections that are logged in stay open.
pub(super) fn set_login(producer: &Producer, username: &str, password: &str) {
    let texts = (CString::new(username), CString::new(password));
    // librdkafka cannot send a value with a zero byte.
    let (Ok(username), Ok(password)) = texts else { return };
    // SAFETY: the handle lives as long as `producer`; both texts are copied before the call returns. The returned error
    // is destroyed; librdkafka creates one only if a text is null.
    unsafe {
        let client = producer.client().native_ptr();
        let error =
            sys::rd_kafka_sasl_set_credentials(client, username.as_ptr(), password.as_ptr());
        if !error.is_null() {
            sys::rd_kafka_error_destroy(error);
        }
    }
}

/// Discards the queued records that are not in a request yet; with `in_flight`, also those that are. Never waits.
pub(super) fn purge(producer: &Producer, in_flight: bool) {
    let flags = sys::RD_KAFKA_PURGE_F_QUEUE
        | sys::RD_KAFKA_PURGE_F_NON_BLOCKING
        | if in_flight { sys::RD_KAFKA_PURGE_F_INFLIGHT } else { 0 };
    // SAFETY: the handle lives as long as `producer`. The only errors are for other clients and other flags.
    unsafe { sys::rd_kafka_purge(producer.client().native_ptr(), flags) };
}

/// Sends an administrator's request and reads its answer. Waits at most `timeout`.
///
/// # Safety
/// `send` sends one request of the kind `op` with the objects that it is given, and keeps none of them. `read` accepts
/// the answer to such a request.
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
    // SAFETY: every object created here is destroyed here, after its last use; the event owns the result and its
    // strings.
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

/// Reads the configuration of a topic from its broker: name and value of each entry. Waits at most `timeout`.
pub(super) fn topic_config(
    producer: &Producer,
    topic: &CStr,
    timeout: Duration,
) -> Result<Vec<(String, String)>, RDKafkaErrorCode> {
    let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS;
    // SAFETY: one request of that kind; the resource is destroyed after its last use.
    let send = |client, options: *mut sys::rd_kafka_AdminOptions_t, queue| unsafe {
        let mut resource = sys::rd_kafka_ConfigResource_new(
            sys::rd_kafka_ResourceType_t::RD_KAFKA_RESOURCE_TOPIC,
            topic.as_ptr(),
        );
        sys::rd_kafka_DescribeConfigs(client, &raw mut resource, 1, options, queue);
        sys::rd_kafka_ConfigResource_destroy(resource);
    };
    // SAFETY: `entries` reads the answer to that request.
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

// The events of a producer, as librdkafka queues them: the delivery reports of one request, errors, and log lines.
//
// The crate `rdkafka` has a loop for them, but that loop takes a reference and a lock for each report, and it cannot
// wait for further reports. The events are passed as plain values to the producer's `Context`.

/// The delivery report of one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Report {
    pub(super) ticket: Ticket,
    /// The record's offset in the partition, or the error.
    pub(super) result: Result<i64, Code>,
}

/// A producer and the queue of its events.
pub(super) struct Events {
    queue: NonNull<sys::rd_kafka_queue_t>,
    producer: Producer,
}

// SAFETY: librdkafka's queues may be used by any thread.
unsafe impl Send for Events {}
// SAFETY: the same; taking an event needs no exclusive access.
unsafe impl Sync for Events {}

impl Events {
    pub(super) fn of(producer: Producer) -> Result<Self, KafkaError> {
        // SAFETY: the handle lives as long as `producer`; the reference to its queue is released on drop.
        let queue = unsafe { sys::rd_kafka_queue_get_main(producer.client().native_ptr()) };
        let none = || KafkaError::ClientCreation("it has no queue of events".to_owned());
        Ok(Self { queue: NonNull::new(queue).ok_or_else(none)?, producer })
    }

    pub(super) const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Passes the next event to the producer's context; returns false if no event came within `timeout`.
    /// Acknowledgements are only collected in `gathered`, for [`report_acked`](Self::report_acked).
    pub(super) fn take(&self, timeout: Duration, gathered: &mut Gathered) -> bool {
        // SAFETY: the queue is alive, and the event is destroyed when it is dropped.
        let event = unsafe { sys::rd_kafka_queue_poll(self.queue.as_ptr(), millis(timeout)) };
        let Some(event) = NonNull::new(event).map(Event) else { return false };
        let context = self.producer.client().context();
        match event.kind() {
            sys::RD_KAFKA_EVENT_DR => {
                context.delivered(event.reports(), &mut gathered.acked);
                gathered.events.push(event);
            }
            sys::RD_KAFKA_EVENT_ERROR => {
                // Acknowledgements that came before the error are reported before it.
                self.report_acked(gathered);
                let (code, reason) = event.error();
                context.error(KafkaError::Global(code), reason.trim());
            }
            sys::RD_KAFKA_EVENT_LOG => {
                // The acknowledgements must not wait for the log, which may be slow.
                self.report_acked(gathered);
                if let Some((level, facility, line)) = event.line() {
                    context.log(level, facility.trim(), line.trim());
                }
            }
            // Statistics and the expiry of tokens are not subscribed to.
            _ => {}
        }
        true
    }

    /// Reports the acknowledgements that [`take`](Self::take) has collected.
    pub(super) fn report_acked(&self, gathered: &mut Gathered) {
        let context = self.producer.client().context();
        context.report_acked(&mut gathered.acked);
        gathered.events.clear();
        context.has_room();
    }

    /// Makes a thread that waits in [`take`](Self::take) return.
    pub(super) fn wake(&self) {
        // SAFETY: the queue is alive.
        unsafe { sys::rd_kafka_queue_yield(self.queue.as_ptr()) };
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: the reference that `of` took; the producer is dropped after it.
        unsafe { sys::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}

/// Acknowledgements that are reported together, and the events that they came in. An event is destroyed after its
/// acknowledgements were reported. Until then librdkafka counts its records as in flight, so a flush of the producer
/// ends only after every acknowledgement was reported.
#[derive(Default)]
pub(super) struct Gathered {
    acked: Vec<Ticket>,
    events: Vec<Event>,
}

impl Gathered {
    /// The number of acknowledgements that are not reported yet.
    pub(super) fn count(&self) -> usize {
        self.acked.len()
    }
}

/// One event of librdkafka. Dropping it destroys it.
struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    fn kind(&self) -> i32 {
        // SAFETY: the event is alive.
        unsafe { sys::rd_kafka_event_type(self.0.as_ptr()) }
    }

    /// The report of each record, once.
    fn reports(&self) -> impl Iterator<Item = Report> {
        std::iter::from_fn(|| {
            // SAFETY: the event is alive and owns the message, which is only read here. The opaque is the number that
            // `produce` gave. The error is a broker's number, which librdkafka's enum may not have, so no reference to
            // the message as a whole is created.
            let (error, offset, private) = unsafe {
                let message =
                    NonNull::new(sys::rd_kafka_event_message_next(self.0.as_ptr()).cast_mut())?;
                let message = message.as_ptr();
                let error = (&raw const (*message).err).cast::<i32>().read();
                (error, (*message).offset, (*message)._private)
            };
            let result = if error == 0 { Ok(offset) } else { Err(code_of(error)) };
            Some(Report { ticket: Ticket(private as u64), result })
        })
    }

    fn error(&self) -> (Code, Cow<'_, str>) {
        // SAFETY: the event is alive, and owns its text.
        unsafe {
            let code = code_of(event_error(self.0.as_ptr()));
            (code, borrowed(sys::rd_kafka_event_error_string(self.0.as_ptr())))
        }
    }

    /// Level, facility and text of a log line.
    fn line(&self) -> Option<(RDKafkaLogLevel, Cow<'_, str>, Cow<'_, str>)> {
        let (mut facility, mut text, mut level) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the event is alive, and owns the texts.
        unsafe {
            let failed = sys::rd_kafka_event_log(
                self.0.as_ptr(),
                &raw mut facility,
                &raw mut text,
                &raw mut level,
            );
            (failed == 0).then(|| (level_of(level), borrowed(facility), borrowed(text)))
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event came from a queue and is destroyed once.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) };
    }
}

/// The level with this number of syslog.
const fn level_of(number: i32) -> RDKafkaLogLevel {
    match number {
        0 => RDKafkaLogLevel::Emerg,
        1 => RDKafkaLogLevel::Alert,
        2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        _ => RDKafkaLogLevel::Debug,
    }
}

/// # Safety
/// `text` is null, or a C string that lives for `'a`.
unsafe fn borrowed<'a>(text: *const c_char) -> Cow<'a, str> {
    if text.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: what the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

// Transactions. The crate's own calls pause for 100 ms each, and do not say which kind of error has come.

/// Why a call about a transaction has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TransactionFailure {
    pub(super) code: Code,
    /// librdkafka's text, which names topics, partitions and brokers at most.
    pub(super) reason: String,
    /// The same call continues what this one has begun.
    pub(super) continues: bool,
}

/// # Safety
/// `error` is null, or an error that nobody else destroys.
unsafe fn transaction_result(error: *mut sys::rd_kafka_error_t) -> Result<(), TransactionFailure> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is alive until it is destroyed here.
    unsafe {
        let failure = TransactionFailure {
            code: code_of(error_code(error)),
            reason: text(sys::rd_kafka_error_string(error)),
            continues: sys::rd_kafka_error_is_retriable(error) != 0,
        };
        sys::rd_kafka_error_destroy(error);
        Err(failure)
    }
}

/// Excludes all former producers with this producer's transactional id, and ends their transaction. Waits at most
/// `timeout`.
pub(super) fn init_transactions(
    producer: &Producer,
    timeout: Duration,
) -> Result<(), TransactionFailure> {
    // SAFETY: the handle lives as long as `producer`.
    unsafe {
        let client = producer.client().native_ptr();
        transaction_result(sys::rd_kafka_init_transactions(client, millis(timeout)))
    }
}

/// Begins a transaction. Asks no broker. If the transaction before has failed, the failure is returned.
pub(super) fn begin_transaction(producer: &Producer) -> Result<(), TransactionFailure> {
    // SAFETY: the handle lives as long as `producer`.
    unsafe { transaction_result(sys::rd_kafka_begin_transaction(producer.client().native_ptr())) }
}

/// Commits the open transaction. Waits at most `timeout`.
pub(super) fn commit_transaction(
    producer: &Producer,
    timeout: Duration,
) -> Result<(), TransactionFailure> {
    // SAFETY: the handle lives as long as `producer`.
    unsafe {
        let client = producer.client().native_ptr();
        transaction_result(sys::rd_kafka_commit_transaction(client, millis(timeout)))
    }
}

/// One end of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PartitionEnd {
    /// The offset of the first record.
    First,
    /// The offset behind the last record, committed or not, that all in-sync replicas have.
    Last,
    /// The offset of the first record whose transaction is open, or `Last` if there is none.
    Stable,
}

/// Requests an end of partition 0 of a topic from its leader. Waits at most `timeout`.
pub(super) fn partition_end(
    producer: &Producer,
    topic: &CStr,
    end: PartitionEnd,
    timeout: Duration,
) -> Result<i64, RDKafkaErrorCode> {
    use sys::{rd_kafka_IsolationLevel_t as Level, rd_kafka_OffsetSpec_t as Spec};
    let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS;
    let which = match end {
        PartitionEnd::First => Spec::RD_KAFKA_OFFSET_SPEC_EARLIEST,
        PartitionEnd::Last | PartitionEnd::Stable => Spec::RD_KAFKA_OFFSET_SPEC_LATEST,
    };
    let level = match end {
        PartitionEnd::First | PartitionEnd::Last => {
            Level::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED
        }
        PartitionEnd::Stable => Level::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED,
    };
    // SAFETY: one request of that kind; the list is destroyed after its last use, and `one` points into it.
    let send = |client, options: *mut sys::rd_kafka_AdminOptions_t, queue| unsafe {
        let error = sys::rd_kafka_AdminOptions_set_isolation_level(options, level);
        if !error.is_null() {
            sys::rd_kafka_error_destroy(error);
        }
        let list = sys::rd_kafka_topic_partition_list_new(1);
        let one = sys::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), 0);
        (*one).offset = i64::from(which as i32);
        sys::rd_kafka_ListOffsets(client, list, options, queue);
        sys::rd_kafka_topic_partition_list_destroy(list);
    };
    // SAFETY: `offset` reads the answer to that request.
    unsafe { ask(producer, op, timeout, send, offset) }
}

/// # Safety
/// `event` is a live event of a `ListOffsets` queue.
unsafe fn offset(event: *mut sys::rd_kafka_event_t) -> Result<i64, RDKafkaErrorCode> {
    // SAFETY: what the caller promises; the array is as long as its count says. The error is a broker's number, which
    // the enum may not have.
    unsafe {
        failed(event_error(event))?;
        let result = sys::rd_kafka_event_ListOffsets_result(event);
        if result.is_null() {
            return Err(RDKafkaErrorCode::InvalidType);
        }
        let mut count = 0;
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &raw mut count);
        if count == 0 {
            return Err(RDKafkaErrorCode::UnknownTopicOrPartition);
        }
        let partition = sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*infos);
        failed((&raw const (*partition).err).cast::<i32>().read())?;
        Ok((*partition).offset)
    }
}

// A broker's description of a topic: the topic's id, and whether this client may write to it.

/// The id of a topic. A topic that is deleted and created again under the same name has another id (Kafka, KIP-516).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TopicId(i64, i64);

#[cfg(test)]
impl TopicId {
    pub(super) const fn number(number: i64) -> Self {
        Self(number, 0)
    }
}

/// A broker's description of a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Description {
    /// The topic's id; `None` before Kafka 2.8.
    pub(super) id: Option<TopicId>,
    /// Whether this client may write to the topic; `None` if the broker does not say, as before Kafka 2.3.
    pub(super) may_write: Option<bool>,
}

/// Requests the description of a topic from the controller (`DescribeTopics` with authorized operations). Waits at most
/// `timeout`.
///
/// # Errors
/// The topic's own error, or why no broker could be asked.
pub(super) fn describe(
    producer: &Producer,
    topic: &CStr,
    timeout: Duration,
) -> Result<Description, RDKafkaErrorCode> {
    let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    // SAFETY: one request of that kind; the collection is destroyed after its last use.
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
    // SAFETY: `description` reads the answer to that request.
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
    // A client that sees the topic may describe it, so a list without DESCRIBE is not the list of allowed operations.
    may(sys::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_DESCRIBE)
        .then(|| may(sys::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE))
}

// The administrator's request that creates a topic, on a producer's own connection.

unsafe extern "C" {
    #[link_name = "rd_kafka_topic_result_error"]
    fn topic_error(result: *const sys::rd_kafka_topic_result_t) -> c_int;
}

/// Why a topic was not created: the broker's code, and its message if it sent one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NotMade {
    pub(super) code: RDKafkaErrorCode,
    pub(super) words: String,
}

impl From<RDKafkaErrorCode> for NotMade {
    fn from(code: RDKafkaErrorCode) -> Self {
        Self { code, words: String::new() }
    }
}

/// Creates a topic, or with `only_validate` asks whether it could be created. Waits at most `timeout`.
pub(super) fn create_topic(
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
    // SAFETY: -1 is the broker's default for both numbers; `said` has the length that is given.
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
