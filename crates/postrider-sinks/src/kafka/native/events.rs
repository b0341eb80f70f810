//! A producer's events, as librdkafka queues them: delivery reports a request at a time, errors, log lines.
//!
//! The crate's own loop takes a reference and a lock for each report, and can't be told to come back later. Hands plain
//! values to the producer's context, which decides.

use super::{code_of, event_error, millis};
use crate::kafka::polled::Producer;
use postrider_core::record::Ticket;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka_sys as sys;
use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::ptr::{self, NonNull};
use std::time::Duration;

/// What became of one record, as librdkafka says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::kafka) struct Report {
    pub(in crate::kafka) ticket: Ticket,
    /// Its place in the partition, or the offset and no error.
    pub(in crate::kafka) result: Result<i64, Code>,
}

/// A producer and the queue of its events.
pub(in crate::kafka) struct Events {
    queue: NonNull<sys::rd_kafka_queue_t>,
    producer: Producer,
}

// SAFETY: librdkafka's queues may be used by any thread.
unsafe impl Send for Events {}
// SAFETY: the same; to take an event needs no exclusive access.
unsafe impl Sync for Events {}

impl Events {
    pub(in crate::kafka) fn of(producer: Producer) -> Result<Self, KafkaError> {
        // SAFETY: the handle lives as long as `producer`; the reference to its queue is given back on drop.
        let queue = unsafe { sys::rd_kafka_queue_get_main(producer.client().native_ptr()) };
        let none = || KafkaError::ClientCreation("it has no queue of events".to_owned());
        Ok(Self { queue: NonNull::new(queue).ok_or_else(none)?, producer })
    }

    pub(in crate::kafka) const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Hands the next event to the producer's context; false where none came within `timeout`. What was acknowledged is
    /// gathered, to be told.
    pub(in crate::kafka) fn take(&self, timeout: Duration, gathered: &mut Gathered) -> bool {
        // SAFETY: the queue is alive, and the event is given back when it is dropped.
        let event = unsafe { sys::rd_kafka_queue_poll(self.queue.as_ptr(), millis(timeout)) };
        let Some(event) = NonNull::new(event).map(Event) else { return false };
        let context = self.producer.client().context();
        match event.kind() {
            sys::RD_KAFKA_EVENT_DR => {
                context.delivered(event.reports(), &mut gathered.acked);
                gathered.events.push(event);
            }
            sys::RD_KAFKA_EVENT_ERROR => {
                // What came before it is told before it.
                self.tell(gathered);
                let (code, reason) = event.error();
                context.error(KafkaError::Global(code), reason.trim());
            }
            sys::RD_KAFKA_EVENT_LOG => {
                // Whoever takes the log may be slow.
                self.tell(gathered);
                if let Some((level, facility, line)) = event.line() {
                    context.log(level, facility.trim(), line.trim());
                }
            }
            // Statistics and a token's end are asked for by nobody.
            _ => {}
        }
        true
    }

    /// Tells of what [`take`](Self::take) has gathered.
    pub(in crate::kafka) fn tell(&self, gathered: &mut Gathered) {
        let context = self.producer.client().context();
        context.told(&mut gathered.acked);
        gathered.events.clear();
        context.has_room();
    }

    /// Whoever waits in [`take`](Self::take) comes back.
    pub(in crate::kafka) fn wake(&self) {
        // SAFETY: the queue is alive.
        unsafe { sys::rd_kafka_queue_yield(self.queue.as_ptr()) };
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: the reference of `of`; the producer is dropped after it.
        unsafe { sys::rd_kafka_queue_destroy(self.queue.as_ptr()) };
    }
}

/// Acknowledgements that are told together, and their events. Those are given back after that: for librdkafka their
/// records are in flight until then, so that whoever flushes a producer knows that all has been told.
#[derive(Default)]
pub(in crate::kafka) struct Gathered {
    acked: Vec<Ticket>,
    events: Vec<Event>,
}

impl Gathered {
    /// Acknowledgements that are not told yet.
    pub(in crate::kafka) fn count(&self) -> usize {
        self.acked.len()
    }
}

/// One event.
struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    fn kind(&self) -> i32 {
        // SAFETY: the event is alive.
        unsafe { sys::rd_kafka_event_type(self.0.as_ptr()) }
    }

    /// Each record's report, once.
    fn reports(&self) -> impl Iterator<Item = Report> {
        std::iter::from_fn(|| {
            // SAFETY: the event is alive, and owns the message, which is only read here. The opaque is the number that
            // `produce` gave. The error is a broker's number, and may be one that librdkafka's enum does not have: so
            // nothing refers to the message as a whole.
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
        // SAFETY: the event came from a queue and is given back once.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) };
    }
}

/// As syslog numbers them.
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
/// `text` is null, or a C string that lives as long as what it is borrowed for.
unsafe fn borrowed<'a>(text: *const c_char) -> Cow<'a, str> {
    if text.is_null() {
        return Cow::Borrowed("");
    }
    // SAFETY: what the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}
