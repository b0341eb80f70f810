//! What each of librdkafka's error codes means for a record and for the producer: one total function.
//!
//! Which codes condemn one record is a list, and so is which blame the topic or the broker; whatever is not on a list
//! is
//! `Unknown`. A wrong `Unknown` costs a restart from the cursor, a wrong refusal parks the innocent.

use postrider_core::record::{Outcome, Refusal, RefusalKind, Scope};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::sync::atomic::{AtomicBool, Ordering};

/// The outcome of a record that librdkafka reports with an error code.
///
/// Codes that librdkafka retries never arrive here while `message.timeout.ms` is 0. A refusal names the batch the
/// record was in, not the record: the caller starts again and hands over the batch's records
/// one at a time.
pub(super) const fn outcome(code: Code) -> Outcome {
    match scope(code) {
        Some(scope) => Outcome::Rejected { scope, reason: refusal(code) },
        None => Outcome::Unknown,
    }
}

/// A name that no topic can have.
pub(super) const TOPIC_NAME: Refusal =
    Refusal::destination("the topic's name is not one Kafka allows");

/// The topic of the progress records, which no event may be published to.
pub(super) const PROGRESS_TOPIC: Refusal = Refusal::destination(
    "the topic has the progress of pipelines (sink.transaction.progress_topic)",
);

/// What a broker means by a code, which is that of a batch.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: the rest has no word of its own"
)]
const fn refusal(code: Code) -> Refusal {
    let kind = match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => RefusalKind::TooLarge(None),
        Code::InvalidTopic => {
            RefusalKind::Destination("the broker does not allow the topic's name")
        }
        Code::PolicyViolation => RefusalKind::Policy,
        Code::InvalidRecord => RefusalKind::Invalid,
        _ => RefusalKind::Other,
    };
    Refusal::of_broker(kind, code as i32)
}

/// Whether a report without an error is a broker's answer, or librdkafka's conclusion.
///
/// librdkafka calls a record that waits to be sent again delivered when a later one of its partition is
/// (`rd_kafka_dr_implicit_ack`): a broker takes a producer's records in order, so the earlier must have come through
/// before. But a partition that does not know the producer takes whatever comes first: where its topic was made anew
/// while the earlier was refused and the later was not, the earlier is nowhere (found by the chaos run). An answer has
/// an offset; a conclusion has `RD_KAFKA_OFFSET_INVALID`.
///
/// Where a broker answers a batch without an offset (-1: it had the sequence numbers already, and does not say where),
/// librdkafka counts on from there (`rd_kafka_msgq_set_metadata`), and the second record seems to have offset 0. So
/// behind one report without an offset none of that producer's counts any more.
#[derive(Default)]
pub(super) struct Answers {
    doubted: AtomicBool,
}

impl Answers {
    pub(super) fn has(&self, offset: i64) -> bool {
        if offset < 0 {
            self.doubted.store(true, Ordering::Relaxed);
        }
        !self.doubted.load(Ordering::Relaxed)
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "librdkafka's list is open: what is not on ours is unknown, which is the safe answer"
)]
const fn scope(code: Code) -> Option<Scope> {
    match code {
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::PolicyViolation => Some(Scope::Event),
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed
        | Code::UnsupportedForMessageFormat
        | Code::InvalidRequiredAcks
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend => Some(Scope::Destination),
        Code::ClusterAuthorizationFailed
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::Authentication
        | Code::SecurityDisabled
        | Code::UnsupportedVersion
        | Code::UnsupportedCompressionType => Some(Scope::Broker),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
