//! Records that are larger than their topic takes before compression, so that only the broker can say whether it takes
//! them: which of them is on its way, and which the broker has refused.
//!
//! The broker judges a batch as it arrives, compressed. Such a record is sent alone in its batch by a producer of its
//! own, which has one record at a time, while the caller sends nothing else that must stay in order with it. So a
//! refusal means this record, and nothing else has to be given up for it. A record that was refused is not sent again
//! while its topic is as it was.

use super::topic::Facts;
use postrider_core::record::{Record, Refusal, Ticket};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The largest record that is sent in the hope that it compresses, in bytes. A broker closes the connection on a
/// request above its `socket.request.max.bytes` (100 MiB by default) without an answer, and the producer would send it
/// again without end.
pub(super) const ATTEMPT_BYTES_MAX: usize = 100_000_000;

/// Refused records that are remembered; the oldest is forgotten first, and sent once more if it comes again.
const REFUSED_MAX: usize = 10_000;

/// How long a refusal counts. After that the broker is asked again: it may take the record for a reason that the
/// topic's configuration does not show.
const REFUSED_FOR: Duration = Duration::from_mins(10);

/// Names a record by its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Print(u64);

impl Print {
    pub(super) fn of(record: &Record<'_>) -> Self {
        let mut hasher = DefaultHasher::new();
        (record.topic, record.partition, record.key, record.value).hash(&mut hasher);
        for header in record.headers {
            (header.name, header.value).hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}

/// One on its way.
#[derive(Clone, Debug)]
struct Sent {
    ticket: Ticket,
    print: Print,
    size: usize,
    limit: usize,
    compression: Option<String>,
}

/// One that was refused, and what its topic was like.
#[derive(Clone, Debug)]
struct Refused {
    print: Print,
    limit: usize,
    compression: Option<String>,
    at: Instant,
}

#[derive(Default, Debug)]
struct State {
    sent: Option<Sent>,
    refused: VecDeque<Refused>,
}

/// The large records of one sink.
#[derive(Default, Debug)]
pub(super) struct Large(Mutex<State>);

impl Large {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record is handed to its producer, which has no other.
    pub(super) fn sent(&self, ticket: Ticket, print: Print, size: usize, facts: &Facts) {
        let (limit, compression) = (facts.limit, facts.compression.clone());
        self.state().sent = Some(Sent { ticket, print, size, limit, compression });
    }

    /// The broker refused a record for its size: why, where it was this one.
    pub(super) fn refuse(&self, ticket: Ticket) -> Option<Refusal> {
        let mut state = self.state();
        let sent = state.sent.take_if(|sent| sent.ticket == ticket)?;
        let Sent { print, size, limit, compression, .. } = sent;
        if state.refused.len() == REFUSED_MAX {
            state.refused.pop_front();
        }
        state.refused.push_back(Refused { print, limit, compression, at: Instant::now() });
        Some(Refusal::TooLargeCompressed { size, limit })
    }

    /// Whether the broker has refused this record, and its topic is as it was then.
    pub(super) fn is_refused(&self, print: Print, facts: &Facts) -> bool {
        let mut state = self.state();
        state.refused.retain(|refused| refused.at.elapsed() < REFUSED_FOR);
        state.refused.iter().any(|refused| {
            refused.print == print
                && facts.limit <= refused.limit
                && facts.compression == refused.compression
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(limit: usize, compression: &str) -> Facts {
        Facts {
            name: c"t".to_owned(),
            partitions: 1,
            leaders: 1,
            in_sync: 1,
            limit,
            min_insync: None,
            compression: Some(compression.to_owned()),
            configured: true,
            asked_at: Instant::now(),
        }
    }

    fn print(value: &[u8]) -> Print {
        let (partition, key, timestamp_ms) = (None, None, None);
        let value = Some(value);
        Print::of(&Record { topic: "t", partition, key, value, timestamp_ms, headers: &[] })
    }

    #[test]
    fn refused_record_is_refused_until_its_topic_changes() {
        let large = Large::default();
        let now = facts(100, "producer");
        assert_eq!(large.refuse(Ticket(1)), None, "not one of these");
        large.sent(Ticket(1), print(b"a"), 300, &now);
        let reason = Refusal::TooLargeCompressed { size: 300, limit: 100 };
        assert_eq!(large.refuse(Ticket(1)), Some(reason));
        assert_eq!(large.refuse(Ticket(1)), None, "once");
        assert!(large.is_refused(print(b"a"), &now));
        assert!(large.is_refused(print(b"a"), &facts(99, "producer")));
        assert!(!large.is_refused(print(b"b"), &now), "another record");
        assert!(!large.is_refused(print(b"a"), &facts(101, "producer")), "takes more now");
        assert!(!large.is_refused(print(b"a"), &facts(100, "zstd")), "compresses otherwise now");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let large = Large::default();
        let now = facts(100, "producer");
        for number in 0..=REFUSED_MAX as u64 {
            large.sent(Ticket(number), print(&number.to_le_bytes()), 300, &now);
            large.refuse(Ticket(number));
        }
        assert!(!large.is_refused(print(&0_u64.to_le_bytes()), &now), "the oldest is forgotten");
        assert!(large.is_refused(print(&1_u64.to_le_bytes()), &now));
        large.sent(Ticket(1), print(b"a"), 300, &now);
        large.sent(Ticket(2), print(b"a"), 300, &now);
        assert_eq!(large.refuse(Ticket(1)), None, "its producer was given up before the second");
        assert!(large.refuse(Ticket(2)).is_some());
    }
}
