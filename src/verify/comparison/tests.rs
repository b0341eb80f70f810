use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A rule set with room for everything.
fn rules() -> ComparisonRules {
    ComparisonRules { examples_max: 10, memory_max: 1 << 30, ..ComparisonRules::default() }
}

fn event(id: &str, aggregate: &'static str, order: u64) -> (String, &'static str, u64) {
    (id.to_owned(), aggregate, order)
}

fn source_event<'a>(id: &'a str, aggregate: &'a str, order: u64) -> SourceEvent<'a> {
    SourceEvent {
        id,
        aggregate: ("order", aggregate),
        topic: "t",
        key: SourceKey::Known(Some(aggregate.as_bytes())),
        origin: Some(b"p"),
        order: Some(order),
        expected: Expectation::Record,
    }
}

/// Events 1 to `count` of aggregate `a`.
fn with_events(rules: ComparisonRules, count: u64) -> TopicComparison {
    let mut comparison = TopicComparison::new(rules);
    for number in 1..=count {
        let id = number.to_string();
        comparison.add_event(&source_event(&id, "a", number)).unwrap();
    }
    comparison.sort();
    comparison
}

fn position(number: u64) -> String {
    format!("00000001-{number:016X}-00000000")
}

/// Adds records with these ids, whose positions are their ids, in this order.
fn read(comparison: &mut TopicComparison, partition: usize, ids: &[u64]) {
    for (offset, id) in ids.iter().enumerate() {
        let (text, position) = (id.to_string(), position(*id));
        let record = TopicRecord {
            partition,
            offset: i64::try_from(offset).unwrap(),
            key: Some(b"a"),
            id: Some(text.as_bytes()),
            position: Some(position.as_bytes()),
            origin: Some(b"p"),
            is_replay: false,
        };
        comparison.add_record(&record).unwrap();
    }
}

/// The findings of records of one partition, without those that are 0.
fn found(count: u64, is_whole: bool, ids: &[u64]) -> BTreeMap<&'static str, u64> {
    let mut comparison = with_events(rules(), count);
    let facts = TopicFacts { is_truncated: !is_whole, ..TopicFacts::default() };
    comparison.add_topic("t", facts);
    let partition = comparison.add_partition("t", 0, is_whole);
    read(&mut comparison, partition, ids);
    named(&comparison.finish())
}

fn named(findings: &VerifyFindings) -> BTreeMap<&'static str, u64> {
    let all = VerifyFinding::OF_EVENTS.iter().chain(&VerifyFinding::OF_RECORDS);
    all.map(|finding| (finding.name(), findings.count(*finding)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn counts(list: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    list.iter().copied().collect()
}

#[test]
fn one_removed_one_swapped_and_one_repeated_are_found_and_nothing_else() {
    assert_eq!(found(5, true, &[1, 2, 3, 4, 5]), counts(&[("published", 5)]));
    assert_eq!(found(5, true, &[1, 2, 4, 5]), counts(&[("published", 4), ("lost", 1)]));
    assert_eq!(found(5, true, &[1, 3, 2, 4, 5]), counts(&[("published", 5), ("swapped", 1)]));
    assert_eq!(found(5, true, &[1, 2, 3, 3, 4, 5]), counts(&[("published", 5), ("repeated", 1)]));
    let all = counts(&[("published", 4), ("lost", 1), ("swapped", 1), ("repeated", 1)]);
    assert_eq!(found(5, true, &[1, 3, 2, 3, 5]), all);
}

#[test]
fn a_repeated_suffix_is_no_swap() {
    let repeated = |n| counts(&[("published", 4), ("repeated", n)]);
    assert_eq!(found(4, true, &[1, 2, 3, 2, 3, 4]), repeated(2));
    assert_eq!(found(4, true, &[1, 2, 3, 1, 4]), repeated(1));
    assert_eq!(found(4, true, &[1, 2, 1, 3, 4, 1, 2, 3, 4]), repeated(5));
}

#[test]
fn behind_a_removed_beginning_an_event_is_swapped_only_if_the_later_one_does_not_come_again() {
    // 1 2 3, 2 3 4 of which the first two were removed.
    let removed =
        counts(&[("published", 3), ("repeated", 1), ("order_unproven", 1), ("unproven", 1)]);
    assert_eq!(found(4, false, &[3, 2, 3, 4]), removed);
    let swapped = counts(&[("published", 3), ("swapped", 1), ("unproven", 1)]);
    assert_eq!(found(4, false, &[3, 2, 4]), swapped);
}

#[test]
fn behind_a_removed_beginning_a_missing_event_is_lost_only_after_an_earlier_one_of_its_aggregate() {
    let both = counts(&[("published", 2), ("unproven", 2), ("lost", 1)]);
    assert_eq!(found(5, false, &[3, 5]), both);
    assert_eq!(found(2, false, &[]), counts(&[("unproven", 2)]));
}

/// Of another partition another part was removed: what is there says nothing about what is missing.
#[test]
fn behind_a_removed_beginning_records_of_another_partition_prove_no_loss() {
    for (of_first, of_second) in [("t", "u"), ("t", "t")] {
        let mut comparison = TopicComparison::new(rules());
        for (number, topic) in [(1, of_first), (2, of_second), (3, of_second)] {
            let id = number.to_string();
            comparison.add_event(&SourceEvent { topic, ..source_event(&id, "a", number) }).unwrap();
        }
        comparison.sort();
        let truncated = TopicFacts { is_truncated: true, ..TopicFacts::default() };
        comparison.add_topic("t", truncated);
        comparison.add_topic("u", truncated);
        let first = comparison.add_partition(of_first, 0, false);
        let second = comparison.add_partition(of_second, 1, false);
        read(&mut comparison, first, &[1]);
        read(&mut comparison, second, &[3]);
        let found = named(&comparison.finish());
        assert_eq!(found, counts(&[("published", 2), ("unproven", 1)]), "{of_second}");
    }
}

/// A ledger has both.
#[test]
fn an_id_that_was_rolled_back_and_then_committed_is_expected() {
    for (expected, finding) in [
        (Expectation::Record, counts(&[("shared_id", 1), ("rolled_back", 1)])),
        (Expectation::NoRecord, counts(&[("shared_id", 1), ("rolled_back", 1), ("unexpected", 1)])),
    ] {
        let mut comparison = TopicComparison::new(rules());
        let rolled_back =
            SourceEvent { expected: Expectation::NoRecord, ..source_event("1", "a", 1) };
        comparison.add_event(&rolled_back).unwrap();
        comparison.add_event(&SourceEvent { expected, ..source_event("1", "a", 2) }).unwrap();
        comparison.sort();
        let partition = comparison.add_partition("t", 0, true);
        read(&mut comparison, partition, &[1]);
        assert_eq!(named(&comparison.finish()), finding, "{expected:?}");
    }
}

#[test]
fn nothing_is_lost_from_a_topic_that_may_be_compacted() {
    let mut comparison = with_events(rules(), 3);
    comparison.add_topic("t", TopicFacts { may_compact: true, ..TopicFacts::default() });
    let partition = comparison.add_partition("t", 0, true);
    read(&mut comparison, partition, &[3]);
    assert_eq!(named(&comparison.finish()), counts(&[("published", 1), ("unproven", 2)]));
}

#[test]
fn a_record_of_another_source_key_or_topic_is_not_the_event() {
    for (topic, key, origin, finding) in [
        ("t", "a", Some("p"), counts(&[("published", 1)])),
        ("t", "a", None, counts(&[("published", 1)])),
        ("t", "a", Some("q"), counts(&[("lost", 1), ("other_source", 1)])),
        ("t", "b", Some("p"), counts(&[("different", 1)])),
        ("u", "a", Some("p"), counts(&[("different", 1)])),
        ("extra", "a", Some("p"), counts(&[("published", 1)])),
    ] {
        let mut comparison = with_events(rules(), 1);
        comparison.add_topic("extra", TopicFacts { is_extra: true, ..TopicFacts::default() });
        let partition = comparison.add_partition(topic, 0, true);
        let position = position(1);
        let record = TopicRecord {
            partition,
            offset: 0,
            key: Some(key.as_bytes()),
            id: Some(b"1"),
            position: Some(position.as_bytes()),
            origin: origin.map(str::as_bytes),
            is_replay: false,
        };
        comparison.add_record(&record).unwrap();
        assert_eq!(named(&comparison.finish()), finding, "{topic} {key} {origin:?}");
    }
}

#[test]
fn records_without_an_id_or_an_event_a_replay_and_a_rollback_are_told_apart() {
    let mut comparison = TopicComparison::new(rules());
    comparison.add_event(&source_event("1", "a", 1)).unwrap();
    let rolled_back =
        |id| SourceEvent { expected: Expectation::NoRecord, ..source_event(id, "a", 2) };
    comparison.add_event(&rolled_back("2")).unwrap();
    comparison.add_event(&rolled_back("3")).unwrap();
    let parked = Expectation::Nothing(VerifyFinding::Parked);
    comparison.add_event(&SourceEvent { expected: parked, ..source_event("4", "a", 4) }).unwrap();
    comparison.sort();
    let partition = comparison.add_partition("t", 0, true);
    let record = TopicRecord {
        partition,
        offset: 7,
        key: Some(b"a"),
        id: None,
        position: None,
        origin: None,
        is_replay: false,
    };
    let ids: [Option<&[u8]>; 4] = [None, Some(b"\xff"), Some(b"9"), Some(b"2")];
    for id in ids {
        comparison.add_record(&TopicRecord { id, ..record }).unwrap();
    }
    comparison.add_record(&TopicRecord { id: Some(b"1"), is_replay: true, ..record }).unwrap();
    let findings = comparison.finish();
    let expected = [
        ("published", 2),
        ("rolled_back", 1),
        ("parked", 1),
        ("unexpected", 1),
        ("replayed", 1),
        ("not_in_source", 1),
        ("without_id", 2),
    ];
    assert_eq!(named(&findings), counts(&expected));
    let example = &findings.examples(VerifyFinding::NotInSource)[0];
    assert_eq!(
        (example.id.as_deref(), &*example.topic, example.place),
        (Some("9"), "t", Some((0, 7)))
    );
}

#[test]
fn an_id_of_two_events_proves_neither_and_is_no_repetition() {
    let mut comparison = TopicComparison::new(rules());
    for aggregate in ["a", "a", "b"] {
        comparison.add_event(&source_event("1", aggregate, 1)).unwrap();
    }
    comparison.sort();
    let partition = comparison.add_partition("t", 0, true);
    read(&mut comparison, partition, &[1, 1]);
    // The one with another key has no record.
    assert_eq!(named(&comparison.finish()), counts(&[("shared_id", 2), ("lost", 1)]));
}

#[test]
fn outside_of_a_range_of_positions_nothing_is_judged_but_what_has_no_record() {
    let (from, to) = (Offset::new(2), Offset::new(4));
    let mut comparison = with_events(ComparisonRules { positions: Some((from, to)), ..rules() }, 5);
    let partition = comparison.add_partition("t", 0, true);
    read(&mut comparison, partition, &[5, 3, 2, 1]);
    let expected = [("published", 2), ("outside_range", 2), ("lost", 1), ("swapped", 1)];
    assert_eq!(named(&comparison.finish()), counts(&expected));
}

#[test]
fn a_part_of_the_topics_proves_no_loss() {
    let mut comparison = with_events(ComparisonRules { is_partial: true, ..rules() }, 3);
    let partition = comparison.add_partition("t", 0, false);
    read(&mut comparison, partition, &[2]);
    assert_eq!(named(&comparison.finish()), counts(&[("published", 1), ("not_judged", 2)]));
}

#[test]
fn an_earlier_part_is_read_only_for_what_is_missing() {
    let mut comparison = with_events(rules(), 3);
    let partition = comparison.add_partition("t", 0, false);
    read(&mut comparison, partition, &[2, 3]);
    assert!(comparison.misses());
    let record = TopicRecord {
        partition,
        offset: 0,
        key: Some(b"a"),
        id: Some(b"1"),
        position: None,
        origin: Some(b"p"),
        is_replay: false,
    };
    comparison.add_earlier_record(&record);
    comparison.add_earlier_record(&record);
    assert!(!comparison.misses());
    assert_eq!(named(&comparison.finish()), counts(&[("published", 3)]));
}

#[test]
fn events_beyond_the_memory_are_refused_with_their_number() {
    let mut comparison = TopicComparison::new(ComparisonRules { memory_max: 1 << 20, ..rules() });
    let refused = (0..100_000u64).find_map(|number| {
        comparison.add_event(&source_event(&number.to_string(), "a", number)).err()
    });
    let refused = refused.expect("a bound");
    assert!(refused.events > 1000 && comparison.size_bytes() <= 1 << 20, "{refused:?}");
    // docs/operations/verify.md has these numbers.
    assert_eq!((EVENT_BYTES, AGGREGATE_BYTES), (48, 65));
}

/// What the naive model finds: sets and a running maximum.
fn naive(
    events: &[(String, &'static str, u64)],
    records: &[(usize, &(String, &'static str, u64))],
) -> (BTreeSet<String>, u64, u64) {
    let mut seen = BTreeSet::new();
    let mut newest: BTreeMap<(&str, usize), u64> = BTreeMap::new();
    let (mut swapped, mut repeated) = (0, 0);
    for (partition, (id, aggregate, order)) in records {
        if !seen.insert(id.clone()) {
            repeated += 1;
            continue;
        }
        let newest = newest.entry((aggregate, *partition)).or_default();
        swapped += u64::from(order < newest);
        *newest = (*newest).max(*order);
    }
    let missing = events.iter().map(|(id, ..)| id.clone()).filter(|id| !seen.contains(id));
    (missing.collect(), swapped, repeated)
}

proptest! {
    #[test]
    fn whole_partitions_are_judged_as_by_a_naive_model(
        lanes in prop::collection::vec(0usize..3, 1..30),
        picks in prop::collection::vec((any::<prop::sample::Index>(), 0usize..2), 0..60),
        by_source in any::<bool>(),
        uuids in any::<bool>(),
    ) {
        const LANES: [&str; 3] = ["a", "b", "c"];
        let events: Vec<_> = lanes.iter().zip(1u64..).map(|(lane, number)| {
            let id = match (uuids, number % 3) {
                (true, 0) => format!("{number:08x}-0000-0000-0000-000000000000"),
                (true, 1) => format!("event {number}"),
                _ => number.to_string(),
            };
            event(&id, LANES[*lane], number)
        }).collect();
        let records: Vec<_> =
            picks.iter().map(|(at, partition)| (*partition, at.get(&events))).collect();
        let order = if by_source { OrderBy::Source } else { OrderBy::Position };
        let mut comparison = TopicComparison::new(ComparisonRules { order, ..rules() });
        for (id, aggregate, order) in &events {
            comparison.add_event(&source_event(id, aggregate, *order)).unwrap();
        }
        comparison.sort();
        let partitions = [0, 1].map(|number| comparison.add_partition("t", number, true));
        for (offset, (partition, (id, aggregate, order))) in records.iter().enumerate() {
            let position = position(*order);
            let record = TopicRecord {
                partition: partitions[*partition],
                offset: i64::try_from(offset).unwrap(),
                key: Some(aggregate.as_bytes()),
                id: Some(id.as_bytes()),
                position: Some(position.as_bytes()).filter(|_| !by_source),
                origin: None,
                is_replay: false,
            };
            comparison.add_record(&record).unwrap();
        }
        let findings = comparison.finish();
        let (missing, swapped, repeated) = naive(&events, &records);
        prop_assert_eq!(findings.count(VerifyFinding::Lost), missing.len() as u64);
        prop_assert_eq!(findings.count(VerifyFinding::Swapped), swapped);
        prop_assert_eq!(findings.count(VerifyFinding::Repeated), repeated);
        let published = (events.len() - missing.len()) as u64;
        prop_assert_eq!(findings.count(VerifyFinding::Published), published);
        for example in findings.examples(VerifyFinding::Lost) {
            prop_assert!(missing.contains(example.id.as_deref().unwrap()));
        }
    }
}
