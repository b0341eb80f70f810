use super::*;
use expect_test::expect;
use std::fmt::Write as _;

/// Every code librdkafka has a name for.
fn codes() -> impl Iterator<Item = Code> {
    (-200..=200).filter_map(|number| {
        let native = rdkafka::types::RDKafkaRespErr::try_from(number).ok()?;
        Some(Code::from(native))
    })
}

#[test]
fn every_code_has_an_outcome_and_the_lists_are_these() {
    let mut table = String::new();
    let mut unknown = 0;
    for code in codes().filter(|code| *code != Code::NoError) {
        match outcome(code) {
            Outcome::Rejected { scope, .. } => {
                writeln!(table, "{:>4} {code:?} {scope:?}", code as i32).unwrap();
            }
            Outcome::Unknown => unknown += 1,
            Outcome::Acked => panic!("{code:?} is an acknowledgement"),
        }
    }
    assert!(unknown > 100, "{unknown}");
    expect![[r"
        -190 UnknownPartition Destination
        -188 UnknownTopic Destination
        -169 Authentication Broker
           3 UnknownTopicOrPartition Destination
          10 MessageSizeTooLarge Event
          17 InvalidTopic Destination
          18 MessageBatchTooLarge Event
          19 NotEnoughReplicas Destination
          20 NotEnoughReplicasAfterAppend Destination
          21 InvalidRequiredAcks Destination
          29 TopicAuthorizationFailed Destination
          31 ClusterAuthorizationFailed Broker
          32 InvalidTimestamp Event
          33 UnsupportedSASLMechanism Broker
          35 UnsupportedVersion Broker
          43 UnsupportedForMessageFormat Destination
          44 PolicyViolation Event
          54 SecurityDisabled Broker
          58 SaslAuthenticationFailed Broker
          76 UnsupportedCompressionType Broker
          87 InvalidRecord Event
    "]]
    .assert_eq(&table);
}

#[test]
fn what_was_purged_or_fenced_or_timed_out_is_unknown() {
    for code in [
        Code::PurgeQueue,
        Code::PurgeInflight,
        Code::Fatal,
        Code::GaplessGuarantee,
        Code::Fenced,
        Code::ProducerFenced,
        Code::InvalidProducerEpoch,
        Code::OutOfOrderSequenceNumber,
        Code::UnknownProducerId,
        Code::MessageTimedOut,
        Code::Unknown,
    ] {
        assert_eq!(outcome(code), Outcome::Unknown, "{code:?}");
    }
}

/// -1001 is librdkafka's `RD_KAFKA_OFFSET_INVALID`, -1 what a response has that says nothing.
#[test]
fn record_that_no_broker_says_it_has_is_not_acknowledged() {
    let has = |offset| Answers::default().has(offset);
    assert!(has(0) && has(i64::MAX));
    assert!(!has(-1) && !has(-1001));
}

/// A batch that a broker answers without an offset: librdkafka numbers its records -1, 0, 1.
#[test]
fn offsets_that_are_counted_from_none_are_no_answer() {
    let answers = Answers::default();
    assert!(answers.has(7));
    assert_eq!([-1, 0, 1].map(|offset| answers.has(offset)), [false; 3]);
    assert!(!answers.has(8), "nothing of this producer counts any more");
}
