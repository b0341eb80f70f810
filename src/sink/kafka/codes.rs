//! What each of librdkafka's error codes means for a record and for the producer: one total function.
//!
//! Which codes condemn one record is a list, and so is which blame the topic or the broker; whatever is not on a list
//! is
//! `Unknown`. A wrong `Unknown` costs a restart from the cursor, a wrong refusal parks the innocent.

use crate::record::{Outcome, Refusal, Scope};
use rdkafka::types::RDKafkaErrorCode as Code;

/// Tells what an error code says of a record.
///
/// Codes that librdkafka retries never arrive here while `message.timeout.ms` is 0. A refusal names the batch the
/// record was in, not the record: the caller starts again and hands over the batch's records
/// one at a time.
pub(super) const fn outcome(code: Code) -> Outcome {
    match scope(code) {
        Some(scope) => Outcome::Rejected { scope, reason: Refusal::Kafka(code as i32) },
        None => Outcome::Unknown,
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
