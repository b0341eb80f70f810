use super::*;
use std::time::Instant;

fn facts(partitions: i32) -> Facts {
    Facts {
        name: c"t".to_owned(),
        partitions,
        limit: 1_000,
        min_insync: None,
        configured: true,
        asked_at: Instant::now(),
    }
}

fn to_partition(partition: i32) -> Record<'static> {
    Record {
        topic: "t",
        partition: Some(partition),
        key: None,
        value: Some(b"v"),
        timestamp_ms: None,
        headers: &[],
    }
}

/// A sink of so many producers, as far as introductions go.
struct Bench {
    introductions: Introductions,
    firsts: Firsts,
    facts: Facts,
    producers: usize,
    hour: u32,
}

impl Bench {
    fn new(partitions: i32, producers: usize) -> Self {
        let (introductions, firsts) = Default::default();
        Self { introductions, firsts, facts: facts(partitions), producers, hour: 0 }
    }

    /// Offers a record with this ticket to one of the producers: "open", "first" or "wait".
    fn offer_to(&mut self, producer: usize, ticket: u64, record: &Record<'_>) -> &'static str {
        let who = (producer, self.producers);
        match self.introductions.enter(record, &self.facts, who, self.hour) {
            Entry::Open => "open",
            Entry::First(door) => {
                self.firsts.hand_in(Ticket(ticket), door);
                "first"
            }
            Entry::Wait(door) => {
                assert!(!door.is_open());
                "wait"
            }
        }
    }

    fn offer(&mut self, ticket: u64, record: &Record<'_>) -> &'static str {
        self.offer_to(0, ticket, record)
    }
}

#[test]
fn partition_gets_its_first_record_alone() {
    let mut bench = Bench::new(2, 1);
    let (zero, one) = (to_partition(0), to_partition(1));
    assert_eq!([bench.offer(1, &zero), bench.offer(2, &zero)], ["first", "wait"]);
    // Another partition has an answer of its own to wait for.
    assert_eq!([bench.offer(3, &one), bench.offer(4, &one)], ["first", "wait"]);
    bench.firsts.answered(Ticket(9));
    assert_eq!(bench.offer(2, &zero), "wait");
    bench.firsts.answered(Ticket(1));
    assert_eq!([bench.offer(2, &zero), bench.offer(4, &one)], ["open", "wait"]);
    assert_eq!(bench.offer(5, &zero), "open");
}

#[test]
fn record_that_was_not_taken_introduces_nobody() {
    let mut bench = Bench::new(1, 1);
    assert_eq!(bench.offer(1, &to_partition(0)), "first");
    bench.firsts.take_back(Ticket(1));
    assert_eq!(bench.offer(2, &to_partition(0)), "first");
    // Most have nothing to take back.
    bench.firsts.take_back(Ticket(3));
    assert_eq!(bench.offer(3, &to_partition(0)), "wait");
}

#[test]
fn each_of_several_producers_introduces_itself() {
    let mut bench = Bench::new(2, 3);
    let record = to_partition(1);
    for producer in 0..3 {
        assert_eq!(bench.offer_to(producer, producer as u64, &record), "first");
    }
    bench.firsts.answered(Ticket(1));
    let answers = [0, 1, 2].map(|producer| bench.offer_to(producer, 9, &record));
    assert_eq!(answers, ["wait", "open", "wait"]);
}

#[test]
fn partition_that_got_nothing_for_long_is_a_stranger_again() {
    let mut bench = Bench::new(2, 1);
    for partition in 0..2 {
        assert_eq!(bench.offer(1, &to_partition(partition)), "first");
        bench.firsts.answered(Ticket(1));
    }
    for hour in 0..5 {
        bench.hour = hour;
        assert_eq!(bench.offer(2, &to_partition(0)), "open");
    }
    assert_eq!(
        [bench.offer(3, &to_partition(1)), bench.offer(4, &to_partition(1))],
        ["first", "wait"]
    );
}

#[test]
fn more_partitions_leave_the_others_as_they_are() {
    let mut bench = Bench::new(1, 2);
    assert_eq!(bench.offer_to(1, 1, &to_partition(0)), "first");
    bench.facts = facts(3);
    assert_eq!(bench.offer_to(1, 2, &to_partition(2)), "first");
    assert_eq!(bench.offer_to(1, 3, &to_partition(0)), "wait");
    bench.firsts.answered(Ticket(1));
    assert_eq!(bench.offer_to(1, 3, &to_partition(0)), "open");
}

#[test]
fn keys_go_by_their_partition_and_records_without_order_are_let_through() {
    let mut bench = Bench::new(1_000, 1);
    let keyed = |key: &'static str| Record {
        partition: None,
        key: Some(key.as_bytes()),
        ..to_partition(0)
    };
    assert_eq!([bench.offer(1, &keyed("a")), bench.offer(2, &keyed("a"))], ["first", "wait"]);
    assert_eq!(bench.offer(3, &keyed("b")), "first");
    let unordered = Record { partition: None, ..to_partition(0) };
    assert_eq!([bench.offer(4, &unordered), bench.offer(5, &unordered)], ["open", "open"]);
}
