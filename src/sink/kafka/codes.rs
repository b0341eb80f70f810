//! What each of librdkafka's error codes means for a record and for the producer: one total function.
//!
//! Which codes condemn one record is a list, and so is which blame the topic or the broker; whatever is not on a list is
//! `Unknown` and the producer is done with. A wrong `Unknown` costs a restart from the cursor, a wrong refusal parks the innocent.

use crate::record::{Outcome, Refusal, Scope};
use rdkafka::types::RDKafkaErrorCode as Code;

/// What a delivery report with an error says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    /// For the record.
    pub(super) outcome: Outcome,
    /// Whether the producer's state can't be trusted any more.
    pub(super) broken: bool,
}

/// Tells what an error code of a delivery report means.
///
/// Codes that librdkafka retries never arrive here while `message.timeout.ms` is 0. A refusal names the batch the record was
/// in, not the record (`servers.md` section 2), and with `enable.gapless.guarantee` it is fatal to the producer as well: the
/// caller starts again and hands over the batch's records one at a time.
pub(super) const fn verdict(code: Code) -> Verdict {
    let Some(scope) = scope(code) else {
        return Verdict { outcome: Outcome::Unknown, broken: true };
    };
    Verdict {
        outcome: Outcome::Rejected { scope, reason: Refusal::Kafka(code as i32) },
        broken: false,
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
