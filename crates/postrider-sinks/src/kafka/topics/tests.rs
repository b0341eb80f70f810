use super::*;
use postrider_core::record::Header;

fn record<'a>(value: &'a [u8], headers: &'a [Header<'a>]) -> Record<'a> {
    Record {
        topic: "t",
        partition: None,
        key: Some(b"k"),
        value: Some(value),
        timestamp_ms: None,
        headers,
    }
}

fn facts(limit: usize) -> Facts {
    Facts {
        name: c"t".to_owned(),
        leaders: 1,
        in_sync: 1,
        partitions: 3,
        limit,
        min_insync: None,
        compression: None,
        configured: true,
        asked_at: Instant::now(),
    }
}

#[test]
fn a_batch_is_counted_as_kafka_writes_it() {
    // 61 of the batch; length 1; attributes and deltas 3; key 1+1; value 1+5; header count 1.
    assert_eq!(batch_bytes(&record(b"value", &[])), 61 + 1 + 3 + 2 + 6 + 1);
    let headers = [Header { name: "id", value: Some(b"7") }, Header { name: "n", value: None }];
    assert_eq!(batch_bytes(&record(b"value", &headers)), 61 + 1 + 3 + 2 + 6 + 1 + 5 + 3);
    // A null key is one byte; 64 needs a second byte in zigzag.
    assert_eq!(
        batch_bytes(&Record { key: None, ..record(&[0; 63], &[]) }),
        61 + 2 + 3 + 1 + 64 + 1
    );
    assert_eq!(
        batch_bytes(&Record { key: None, ..record(&[0; 64], &[]) }),
        61 + 2 + 3 + 1 + 66 + 1
    );
}

#[test]
fn a_record_fits_up_to_the_limit_and_not_beyond() {
    for len in 0..300 {
        let value = vec![0; len];
        let record = record(&value, &[]);
        let size = batch_bytes(&record);
        assert_eq!(fits(&record, &facts(size), false), Ok(Fit::Surely));
        let refusal = Refusal::too_large(size, size - 1);
        assert_eq!(fits(&record, &facts(size - 1), false), Err(refusal));
        assert!(batch_bytes_at_most(&record) >= size);
    }
}

/// Whether the size before compression decides, by who compresses.
#[test]
fn a_record_above_the_limit_may_fit_where_it_arrives_and_stays_compressed() {
    let value = [0; 1_000];
    let (record, limit) = (record(&value, &[]), 500);
    let size = batch_bytes(&record);
    let (may, never) = (Ok(Fit::Compressed { size }), Err(Refusal::too_large(size, limit)));
    for (topic, compresses, expected) in [
        (None, false, never),
        (None, true, may),
        (Some("producer"), false, never),
        (Some("producer"), true, may),
        (Some("gzip"), false, never),
        (Some("gzip"), true, may),
        (Some("zstd"), true, may),
        (Some("uncompressed"), false, never),
        (Some("uncompressed"), true, never),
    ] {
        let facts = Facts { compression: topic.map(str::to_owned), ..facts(limit) };
        assert_eq!(fits(&record, &facts, compresses), expected, "{topic:?} {compresses}");
        // A limit that was not read is a guess.
        let guessed = Facts { configured: false, compression: None, ..facts };
        assert_eq!(fits(&record, &guessed, compresses), may, "{compresses}");
    }
}

#[test]
fn a_record_is_not_sent_that_no_request_can_hold() {
    let value = vec![0; ATTEMPT_BYTES_MAX];
    let record = record(&value, &[]);
    let (size, limit) = (batch_bytes(&record), ATTEMPT_BYTES_MAX);
    let refusal = Refusal::too_large(size, limit);
    assert_eq!(fits(&record, &facts(1_000), true), Err(refusal));
    assert_eq!(fits(&record, &facts(2 * limit), true), Ok(Fit::Surely), "the topic's own word");
}

#[test]
fn an_operators_limit_counts_key_value_and_headers() {
    assert_eq!(within(&record(&[0; 9], &[]), Some(10)), Ok(()));
    assert_eq!(within(&record(&[0; 10], &[]), None), Ok(()));
    let refusal = Refusal::too_large(11, 10);
    assert_eq!(within(&record(&[0; 10], &[]), Some(10)), Err(refusal));
}

#[test]
fn a_partition_the_topic_does_not_have_is_refused() {
    for (partition, fine) in [(-1, false), (0, true), (2, true), (3, false)] {
        let record = Record { partition: Some(partition), ..record(b"", &[]) };
        let expected = if fine { Ok(Fit::Surely) } else { Err(Refusal::partition(partition)) };
        assert_eq!(fits(&record, &facts(1 << 20), true), expected);
    }
}

#[test]
fn partition_is_the_records_own_else_that_of_its_key_else_the_only_one() {
    let of = |partition, key: Option<&'static [u8]>, partitions| {
        let facts = Facts { partitions, ..facts(1_000) };
        partition_of(&Record { partition, key, ..record(b"v", &[]) }, &facts)
    };
    assert_eq!(of(Some(2), Some(b"21"), 3), Some(2));
    // Kafka's own test has the hash, -973932308; without its sign it is 1173551340.
    assert_eq!(of(None, Some(b"21"), 1_000), Some(340));
    assert_eq!([of(None, None, 3), of(None, None, 1)], [None, Some(0)]);
}
