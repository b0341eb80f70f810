//! What is decided about a record before it is sent.

use super::entry::HEADERS_MAX;
use super::spec::{NAMES, RedisSpec};
use super::worker::RedisWorker;
use crate::queued_sink::{QueuedSink, RecordRules};
use crate::send_queue::SendQueue;
use postrider_core::record::{Record, Refusal};
use postrider_core::sink::{Mailbox, Needs, NotTaken, SinkError};
use std::time::Instant;

/// The rules for records. Of a stream that accepts records nothing else is known.
pub(super) struct RedisRules {
    spec: RedisSpec,
    size_max: usize,
}

/// Opens the sink.
///
/// # Errors
/// A thread that can't be started.
pub(super) fn open(
    spec: RedisSpec,
    needs: &Needs,
    mailbox: Mailbox,
) -> Result<QueuedSink<RedisRules>, SinkError> {
    let rules = RedisRules::new(&spec, needs);
    QueuedSink::open("redis-sink", needs, mailbox, rules, move |queue| {
        RedisWorker::new(queue, spec).run()
    })
}

impl RedisRules {
    pub(super) fn new(spec: &RedisSpec, needs: &Needs) -> Self {
        let size_max = spec.sizes.event.min(needs.size_max.unwrap_or(usize::MAX));
        Self { spec: spec.clone(), size_max }
    }

    /// What is known of the record itself.
    pub(super) fn judge(&self, record: &Record<'_>) -> Result<(), Refusal> {
        self.judge_name(record.topic)?;
        let size = record.size_bytes();
        if size > self.size_max {
            return Err(Refusal::too_large(size, self.size_max));
        }
        if record.headers.len() > HEADERS_MAX {
            return Err(Refusal::content("the event has more than 1,000 headers"));
        }
        let has_header = record.headers.iter().any(|header| header.value.is_some());
        let has_field = record.key.is_some()
            || record.value.is_some()
            || record.timestamp_ms.is_some()
            || record.partition.is_some()
            || has_header;
        if has_field {
            Ok(())
        } else {
            Err(Refusal::content(
                "the event has neither key nor payload nor time nor headers, and an entry of a stream has a field",
            ))
        }
    }

    pub(super) fn judge_name(&self, topic: &str) -> Result<(), Refusal> {
        if self.spec.is_state(topic) {
            let words = "the topic is a key in which pipelines keep their progress";
            return Err(Refusal::destination(words));
        }
        if (NAMES.allows)(topic.as_bytes()) {
            Ok(())
        } else {
            let words = "the topic is no name of a stream: 1 to 1,024 bytes";
            Err(Refusal::destination(words))
        }
    }
}

impl RecordRules for RedisRules {
    type Facts = ();

    fn admit(
        &mut self,
        queue: &SendQueue<()>,
        record: &Record<'_>,
        since: Option<Instant>,
    ) -> Result<(), NotTaken> {
        self.judge(record).map_err(NotTaken::Refused)?;
        queue.destination(record.topic, since)
    }

    fn probe(
        &mut self,
        queue: &SendQueue<()>,
        topic: &str,
        since: Instant,
    ) -> Result<(), NotTaken> {
        self.judge_name(topic).map_err(NotTaken::Refused)?;
        queue.destination(topic, Some(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::config::tests::spec;
    use postrider_core::record::{Header, RefusalKind};

    const RECORD: Record<'_> = Record {
        topic: "orders",
        partition: None,
        key: Some(b"k"),
        value: Some(b"{}"),
        timestamp_ms: None,
        headers: &[],
    };

    fn judged(record: &Record<'_>) -> Option<RefusalKind> {
        let rules = RedisRules { spec: spec(), size_max: 100 };
        rules.judge(record).err().map(|refusal| refusal.kind)
    }

    #[test]
    fn what_redis_can_not_store_is_refused_before_it_is_sent() {
        assert_eq!(judged(&RECORD), None);
        let large = [b'x'; 101];
        let too_large = judged(&Record { value: Some(&large), ..RECORD });
        assert!(matches!(too_large, Some(RefusalKind::TooLarge(Some(_)))));
        let long = "x".repeat(1_025);
        for topic in ["", &long, "postrider:app:orders", "postrider:other"] {
            let refused = judged(&Record { topic, ..RECORD });
            assert!(matches!(refused, Some(RefusalKind::Destination(_))), "{topic:?}");
        }
        let bare = Record { key: None, value: None, ..RECORD };
        assert!(matches!(judged(&bare), Some(RefusalKind::Content(_))));
        let null = [Header { name: "a", value: None }];
        let headed = Record { headers: &null, ..bare };
        assert!(matches!(judged(&headed), Some(RefusalKind::Content(_))));
        assert_eq!(judged(&Record { timestamp_ms: Some(1), ..bare }), None);
        let many = vec![Header { name: "", value: None }; 1_001];
        let headed = Record { headers: &many, ..RECORD };
        assert!(matches!(judged(&headed), Some(RefusalKind::Content(_))));
    }
}
