//! The calls of librdkafka that the crate `rdkafka` does not have, or not as they are needed: ids of topics, bounds of
//! many partitions in one request, epochs of leaders, partitions of errors, and headers whose names are no UTF-8, at
//! which that crate panics. This is the only file of this crate with `unsafe`.
#![expect(unsafe_code, reason = "librdkafka's C functions, on handles that the crate keeps alive")]

use crate::batch::Partition;
use crate::mapping::KafkaRecord;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka_sys as sys;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::time::Duration;

// The function returns a number here, and not the enum of the bindings: a broker may send an error number that the enum
// does not have.
unsafe extern "C" {
    #[link_name = "rd_kafka_event_error"]
    fn event_error(event: *mut sys::rd_kafka_event_t) -> c_int;
}

/// Name and value of a header.
type RawHeader<'a> = (&'a [u8], Option<&'a [u8]>);

/// What a poll has returned.
#[derive(Debug)]
pub enum Polled {
    /// Nothing within the time.
    Nothing,
    /// A record was passed to the closure, or there was nothing to do for an event.
    Record,
    /// The group gives these partitions to this consumer. They are fetched after [`super::KafkaSource::assign`].
    Assigned(Vec<Partition>),
    /// The group has taken all partitions away. They are not fetched any more.
    Revoked,
    /// All records of a partition before this offset were passed to the closure.
    End {
        /// The partition.
        partition: Partition,
        /// The offset behind the newest record, and behind marks of transactions after that.
        offset: i64,
    },
    /// An error of the client, of a broker or of a partition.
    Error {
        /// Its code.
        code: RDKafkaErrorCode,
        /// The partition, and the offset of the record that could not be read, if the error is of one.
        partition: Option<(Partition, i64)>,
        /// What librdkafka says, without content of records.
        reason: String,
    },
}

/// A consumer, and the queue of its events. The events are taken here and not by the crate, whose loop drops the
/// partition of an error.
pub(super) struct Poller<C: ConsumerContext> {
    queue: NonNull<sys::rd_kafka_queue_t>,
    consumer: BaseConsumer<C>,
}

impl<C: ConsumerContext> Poller<C> {
    /// Takes the events of a consumer.
    ///
    /// # Errors
    /// The consumer has no queue, which a consumer with a group always has.
    pub(super) fn of(consumer: BaseConsumer<C>) -> KafkaResult<Self> {
        // SAFETY: the handle lives as long as `consumer`; the reference to its queue is released on drop.
        let queue = unsafe { sys::rd_kafka_queue_get_consumer(consumer.client().native_ptr()) };
        let none = || KafkaError::ClientCreation("it has no queue".to_owned());
        Ok(Self { queue: NonNull::new(queue).ok_or_else(none)?, consumer })
    }

    pub(super) const fn consumer(&self) -> &BaseConsumer<C> {
        &self.consumer
    }

    /// Takes the next event, and waits for it at most `timeout`. A record is passed to `receive`, without
    /// the id of its topic.
    pub(super) fn poll(
        &self,
        timeout: Duration,
        receive: &mut dyn FnMut(&KafkaRecord<'_>),
    ) -> Polled {
        let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive; the event is destroyed below, after its last use. Everything that is read of it
        // is alive until then.
        unsafe {
            let event = sys::rd_kafka_queue_poll(self.queue.as_ptr(), millis);
            if event.is_null() {
                return Polled::Nothing;
            }
            let polled = match sys::rd_kafka_event_type(event) {
                sys::RD_KAFKA_EVENT_FETCH => {
                    let message = sys::rd_kafka_event_message_next(event);
                    if !message.is_null() {
                        pass(message, receive);
                    }
                    Polled::Record
                }
                sys::RD_KAFKA_EVENT_ERROR => error(event),
                sys::RD_KAFKA_EVENT_REBALANCE => self.rebalance(event),
                // Answers to commits of offsets, which nobody waits for. Statistics and log lines are not subscribed
                // to.
                _ => Polled::Record,
            };
            sys::rd_kafka_event_destroy(event);
            polled
        }
    }

    /// # Safety
    /// `event` is a live event of a rebalance.
    unsafe fn rebalance(&self, event: *mut sys::rd_kafka_event_t) -> Polled {
        // SAFETY: what the caller promises; the event owns the list.
        unsafe {
            let assign = sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS as c_int;
            if event_error(event) != assign {
                // With no list, everything is unassigned. The only error is that of a client that is closed.
                sys::rd_kafka_assign(self.consumer.client().native_ptr(), ptr::null());
                return Polled::Revoked;
            }
            let list = sys::rd_kafka_event_topic_partition_list(event);
            if list.is_null() {
                return Polled::Assigned(Vec::new());
            }
            let count = usize::try_from((*list).cnt).unwrap_or(0);
            let partitions = (0..count).map(|index| {
                let element = (*list).elems.add(index);
                Partition { topic: text((*element).topic), number: (*element).partition }
            });
            Polled::Assigned(partitions.collect())
        }
    }
}

impl<C: ConsumerContext> Drop for Poller<C> {
    fn drop(&mut self) {
        // SAFETY: the reference that `of` took; the consumer is dropped after it.
        unsafe { sys::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}

/// # Safety
/// `message` is a live message of a fetch.
unsafe fn pass(message: *const sys::rd_kafka_message_t, receive: &mut dyn FnMut(&KafkaRecord<'_>)) {
    // SAFETY: what the caller promises; the message owns its topic, key, value and headers.
    unsafe {
        let name = CStr::from_ptr(sys::rd_kafka_topic_name((*message).rkt));
        let mut headers = Vec::new();
        read_headers(message, &mut headers);
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        let timestamp = sys::rd_kafka_message_timestamp(message, &raw mut kind);
        // The epoch of the leader; -1 if the broker does not say it.
        let epoch = sys::rd_kafka_message_leader_epoch(message);
        let record = KafkaRecord {
            // Names of topics are ASCII.
            topic: name.to_str().unwrap_or_default(),
            topic_id: None,
            cluster: "",
            leader_epoch: (epoch >= 0).then_some(epoch),
            partition: (*message).partition,
            offset: (*message).offset,
            timestamp_ms: (timestamp >= 0).then_some(timestamp),
            key: slice((*message).key, (*message).key_len),
            value: slice((*message).payload, (*message).len),
            headers: &headers,
        };
        receive(&record);
    }
}

/// # Safety
/// `bytes` is null, or points to `len` bytes that live as long as `'a`.
unsafe fn slice<'a>(bytes: *const c_void, len: usize) -> Option<&'a [u8]> {
    // SAFETY: what the caller promises.
    (!bytes.is_null()).then(|| unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) })
}

/// # Safety
/// `message` is a live message; the headers live as long as it.
unsafe fn read_headers(message: *const sys::rd_kafka_message_t, into: &mut Vec<RawHeader<'_>>) {
    let mut list = ptr::null_mut();
    // SAFETY: names end with a zero byte, and each value has the length that is returned with it.
    unsafe {
        if sys::rd_kafka_message_headers(message, &raw mut list) != NO_ERROR {
            return;
        }
        for index in 0.. {
            let (mut name, mut value, mut len) = (ptr::null::<c_char>(), ptr::null::<c_void>(), 0);
            let got = sys::rd_kafka_header_get_all(
                list,
                index,
                &raw mut name,
                &raw mut value,
                &raw mut len,
            );
            if got != NO_ERROR {
                return;
            }
            into.push((CStr::from_ptr(name).to_bytes(), slice(value, len)));
        }
    }
}

/// # Safety
/// `event` is a live event of an error.
unsafe fn error(event: *mut sys::rd_kafka_event_t) -> Polled {
    // SAFETY: what the caller promises; the partition is a copy, which is destroyed here.
    unsafe {
        let number = event_error(event);
        let code = RDKafkaRespErr::try_from(number)
            .map_or(RDKafkaErrorCode::Unknown, RDKafkaErrorCode::from);
        let element = sys::rd_kafka_event_topic_partition(event);
        let partition = (!element.is_null()).then(|| {
            let topic = text((*element).topic);
            let partition = Partition { topic, number: (*element).partition };
            let offset = (*element).offset;
            sys::rd_kafka_topic_partition_destroy(element);
            (partition, offset)
        });
        if code == RDKafkaErrorCode::PartitionEOF {
            return partition
                .map_or(Polled::Record, |(partition, offset)| Polled::End { partition, offset });
        }
        Polled::Error { code, partition, reason: text(sys::rd_kafka_event_error_string(event)) }
    }
}

const NO_ERROR: sys::rd_kafka_resp_err_t = sys::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;

/// The offset behind the newest record of a partition, as the last fetch has shown it.
pub(super) fn high(client: *mut sys::rd_kafka_t, partition: &Partition) -> Option<i64> {
    let topic = CString::new(partition.topic.as_str()).ok()?;
    let (mut low, mut high) = (-1, -1);
    // SAFETY: `client` is a live handle; the call reads a cache and does not wait.
    let got = unsafe {
        sys::rd_kafka_get_watermark_offsets(
            client,
            topic.as_ptr(),
            partition.number,
            &raw mut low,
            &raw mut high,
        )
    };
    (got == NO_ERROR && high >= 0).then_some(high)
}

/// What a broker says of a topic.
pub(super) struct TopicFacts {
    /// Its id; `None` if the broker has no ids.
    pub(super) id: Option<String>,
    /// The numbers of its partitions, and whether each has a leader.
    pub(super) partitions: BTreeMap<i32, bool>,
}

/// The facts of topics, or the error that the broker has for one. Waits at most `timeout`.
///
/// # Errors
/// The broker did not answer, or refused the request.
pub(super) fn topics(
    client: *mut sys::rd_kafka_t,
    topics: &BTreeSet<&str>,
    timeout: Duration,
) -> Result<BTreeMap<String, Result<TopicFacts, String>>, String> {
    let names: Vec<CString> = topics.iter().filter_map(|name| CString::new(*name).ok()).collect();
    let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    // SAFETY: `client` is a live handle; the collection is destroyed after its use.
    unsafe {
        let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let question = Question::send(client, op, timeout, |options, queue| {
            let collection =
                sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            sys::rd_kafka_DescribeTopics(client, collection, options, queue);
            sys::rd_kafka_TopicCollection_destroy(collection);
        });
        question.answer(|event| described(event))
    }
}

/// The bounds of partitions, or the error of one.
pub(super) type Bounds = BTreeMap<Partition, Result<(i64, i64), String>>;

/// Which record is the newest of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NewestRecord {
    /// The last one before the first transaction that is open: what a consumer of committed records reaches.
    Committed,
    /// The last one that was written, also in a transaction that is open.
    Written,
}

/// The bounds of partitions: the offset of the oldest record, and the offset behind the newest one; or the error of a
/// partition. Each broker gets one request for all of its partitions. Waits at most `timeout`.
///
/// # Errors
/// No broker answered, or the request was refused.
pub(super) fn bounds(
    client: *mut sys::rd_kafka_t,
    partitions: &[&Partition],
    newest: NewestRecord,
    timeout: Duration,
) -> Result<Bounds, String> {
    use sys::rd_kafka_OffsetSpec_t as Spec;
    if partitions.is_empty() {
        return Ok(Bounds::new());
    }
    // SAFETY: `client` is a live handle.
    let (oldest, latest) = unsafe {
        let ask = |spec: Spec| offsets_question(client, partitions, (spec as i64, newest), timeout);
        // Both are sent before the first answer is waited for.
        let (oldest, latest) =
            (ask(Spec::RD_KAFKA_OFFSET_SPEC_EARLIEST), ask(Spec::RD_KAFKA_OFFSET_SPEC_LATEST));
        (oldest.answer(|event| listed(event))?, latest.answer(|event| listed(event))?)
    };
    let of = |partition: &Partition| {
        let of = |offsets: &BTreeMap<Partition, Result<i64, String>>| {
            let none = || Err("its leader does not answer".to_owned());
            offsets.get(partition).cloned().unwrap_or_else(none)
        };
        Ok((of(&oldest)?, of(&latest)?))
    };
    Ok(partitions.iter().map(|partition| ((*partition).clone(), of(partition))).collect())
}

/// # Safety
/// `client` is a live handle.
unsafe fn offsets_question(
    client: *mut sys::rd_kafka_t,
    partitions: &[&Partition],
    (spec, newest): (i64, NewestRecord),
    timeout: Duration,
) -> Question {
    let op = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS;
    // SAFETY: what the caller promises; the list is destroyed after its use, and its elements belong to it.
    unsafe {
        Question::send(client, op, timeout, |options, queue| {
            use sys::rd_kafka_IsolationLevel_t as Level;
            let level = match newest {
                NewestRecord::Committed => Level::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED,
                NewestRecord::Written => Level::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED,
            };
            let error = sys::rd_kafka_AdminOptions_set_isolation_level(options, level);
            if !error.is_null() {
                sys::rd_kafka_error_destroy(error);
            }
            let count = c_int::try_from(partitions.len()).unwrap_or(c_int::MAX);
            let list = sys::rd_kafka_topic_partition_list_new(count);
            for partition in partitions {
                let Ok(topic) = CString::new(partition.topic.as_str()) else { continue };
                let element =
                    sys::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), partition.number);
                (*element).offset = spec;
            }
            sys::rd_kafka_ListOffsets(client, list, options, queue);
            sys::rd_kafka_topic_partition_list_destroy(list);
        })
    }
}

/// The id of the cluster, once the client has metadata of it; `None` if the brokers have none.
pub(super) fn cluster_id(client: *mut sys::rd_kafka_t) -> Option<String> {
    // SAFETY: `client` is a live handle; the text is a copy, which is freed here.
    unsafe {
        let id = sys::rd_kafka_clusterid(client, 0);
        let copy = (!id.is_null()).then(|| text(id));
        if !id.is_null() {
            sys::rd_kafka_mem_free(client, id.cast());
        }
        copy
    }
}

/// A request of the admin API that was sent, and the queue of its answer.
struct Question {
    queue: *mut sys::rd_kafka_queue_t,
    timeout: Duration,
}

impl Question {
    /// # Safety
    /// `client` is a live handle, and outlives the question; `send` sends one request with these options to this queue.
    unsafe fn send(
        client: *mut sys::rd_kafka_t,
        op: sys::rd_kafka_admin_op_t,
        timeout: Duration,
        send: impl FnOnce(*mut sys::rd_kafka_AdminOptions_t, *mut sys::rd_kafka_queue_t),
    ) -> Self {
        let mut error: [c_char; 128] = [0; 128];
        // SAFETY: what the caller promises; the options are destroyed here, and the queue on drop.
        unsafe {
            let queue = sys::rd_kafka_queue_new(client);
            let options = sys::rd_kafka_AdminOptions_new(client, op);
            sys::rd_kafka_AdminOptions_set_request_timeout(
                options,
                millis(timeout),
                error.as_mut_ptr(),
                error.len(),
            );
            send(options, queue);
            sys::rd_kafka_AdminOptions_destroy(options);
            Self { queue, timeout }
        }
    }

    /// Waits for the answer, and reads it.
    fn answer<T>(
        self,
        read: impl FnOnce(*mut sys::rd_kafka_event_t) -> Result<T, String>,
    ) -> Result<T, String> {
        // A broker that does not answer has its part of the answer at the end of the timeout.
        let wait = self.timeout + Duration::from_secs(1);
        // SAFETY: the queue is alive; the event is destroyed after its last use.
        unsafe {
            let event = sys::rd_kafka_queue_poll(self.queue, millis(wait));
            if event.is_null() {
                return Err("no answer within the time".to_owned());
            }
            let answer = if event_error(event) == 0 {
                read(event)
            } else {
                Err(text(sys::rd_kafka_event_error_string(event)))
            };
            sys::rd_kafka_event_destroy(event);
            answer
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        // SAFETY: the reference that `send` took.
        unsafe { sys::rd_kafka_queue_destroy(self.queue) };
    }
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

/// # Safety
/// `event` is a live event of a `DescribeTopics` queue.
unsafe fn described(
    event: *mut sys::rd_kafka_event_t,
) -> Result<BTreeMap<String, Result<TopicFacts, String>>, String> {
    // SAFETY: what the caller promises; the arrays are as long as their counts say.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return Err(text(sys::rd_kafka_event_error_string(event)));
        }
        let mut count = 0;
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        let mut found = BTreeMap::new();
        for index in 0..count {
            let topic = *topics.add(index);
            let name = text(sys::rd_kafka_TopicDescription_name(topic));
            let error = sys::rd_kafka_TopicDescription_error(topic);
            let facts = if error.is_null() || sys::rd_kafka_error_code(error) == NO_ERROR {
                Ok(TopicFacts { id: topic_id(topic), partitions: led(topic) })
            } else {
                Err(text(sys::rd_kafka_error_string(error)))
            };
            found.insert(name, facts);
        }
        Ok(found)
    }
}

/// # Safety
/// `topic` is a live description.
unsafe fn topic_id(topic: *const sys::rd_kafka_TopicDescription_t) -> Option<String> {
    // SAFETY: what the caller promises; the id belongs to the description.
    unsafe {
        let id = sys::rd_kafka_TopicDescription_topic_id(topic);
        if id.is_null() {
            return None;
        }
        // As Kafka's own tools print it: base64 for URLs.
        let id = text(sys::rd_kafka_Uuid_base64str(id)).replace('+', "-").replace('/', "_");
        // Brokers before 2.8 have no ids: all zeros.
        id.bytes().any(|byte| byte != b'A').then_some(id)
    }
}

/// # Safety
/// `topic` is a live description.
unsafe fn led(topic: *const sys::rd_kafka_TopicDescription_t) -> BTreeMap<i32, bool> {
    let mut count = 0;
    // SAFETY: what the caller promises; the array is as long as its count says, and belongs to the description.
    unsafe {
        let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &raw mut count);
        let of = |index| {
            let partition = *partitions.add(index);
            let has_leader = !sys::rd_kafka_TopicPartitionInfo_leader(partition).is_null();
            (sys::rd_kafka_TopicPartitionInfo_partition(partition), has_leader)
        };
        (0..count).map(of).collect()
    }
}

/// # Safety
/// `event` is a live event of a `ListOffsets` queue.
unsafe fn listed(
    event: *mut sys::rd_kafka_event_t,
) -> Result<BTreeMap<Partition, Result<i64, String>>, String> {
    // SAFETY: what the caller promises; the array is as long as its count says.
    unsafe {
        let result = sys::rd_kafka_event_ListOffsets_result(event);
        if result.is_null() {
            return Err(text(sys::rd_kafka_event_error_string(event)));
        }
        let mut count = 0;
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &raw mut count);
        let mut found = BTreeMap::new();
        for index in 0..count {
            let info = *infos.add(index);
            let element = sys::rd_kafka_ListOffsetsResultInfo_topic_partition(info);
            let partition =
                Partition { topic: text((*element).topic), number: (*element).partition };
            let offset = (*element).offset;
            if (*element).err != NO_ERROR {
                found.insert(partition, Err(text(sys::rd_kafka_err2str((*element).err))));
            } else if offset >= 0 {
                found.insert(partition, Ok(offset));
            }
            // Otherwise its leader has not answered.
        }
        Ok(found)
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
