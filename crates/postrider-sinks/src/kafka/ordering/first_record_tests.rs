//! First records: which partitions know a producer.

use super::*;

/// The first-record gate of a sink with this many producers.
struct Bench {
    gate: FirstRecordGate,
    firsts: Firsts,
    producers: usize,
    hour: u32,
}

impl Bench {
    fn new(producers: usize) -> Self {
        let (gate, firsts) = Default::default();
        Self { gate, firsts, producers, hour: 0 }
    }

    /// Offers a record with this ticket to one of the producers: "open", "first" or "wait".
    fn offer_to(&mut self, producer: usize, ticket: u64, partition: i32) -> &'static str {
        let who = (producer, self.producers);
        match self.gate.enter(("t", partition), who, self.hour) {
            Entry::Open => "open",
            Entry::First(gate) => {
                self.firsts.sends(Ticket(ticket), gate);
                "first"
            }
            Entry::Wait(gate) => {
                assert!(!gate.is_open());
                "wait"
            }
        }
    }

    fn offer(&mut self, ticket: u64, partition: i32) -> &'static str {
        self.offer_to(0, ticket, partition)
    }
}

#[test]
fn partition_gets_its_first_record_alone() {
    let mut bench = Bench::new(1);
    assert_eq!([bench.offer(1, 0), bench.offer(2, 0)], ["first", "wait"]);
    // Another partition has an answer of its own to wait for.
    assert_eq!([bench.offer(3, 1), bench.offer(4, 1)], ["first", "wait"]);
    bench.firsts.answered(Ticket(9));
    assert_eq!(bench.offer(2, 0), "wait");
    bench.firsts.answered(Ticket(1));
    assert_eq!([bench.offer(2, 0), bench.offer(4, 1)], ["open", "wait"]);
    assert_eq!(bench.offer(5, 0), "open");
}

#[test]
fn record_that_was_not_taken_opens_no_gate() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.offer(1, 0), "first");
    bench.firsts.not_sent(Ticket(1));
    assert_eq!(bench.offer(2, 0), "first");
    // Most have nothing to take back.
    bench.firsts.not_sent(Ticket(3));
    assert_eq!(bench.offer(3, 0), "wait");
}

#[test]
fn each_of_several_producers_has_a_first_record() {
    let mut bench = Bench::new(3);
    for producer in 0..3 {
        assert_eq!(bench.offer_to(producer, producer as u64, 1), "first");
    }
    bench.firsts.answered(Ticket(1));
    let answers = [0, 1, 2].map(|producer| bench.offer_to(producer, 9, 1));
    assert_eq!(answers, ["wait", "open", "wait"]);
}

#[test]
fn partition_that_got_nothing_for_long_is_a_stranger_again() {
    let mut bench = Bench::new(1);
    for partition in 0..2 {
        assert_eq!(bench.offer(1, partition), "first");
        bench.firsts.answered(Ticket(1));
    }
    for hour in 0..5 {
        bench.hour = hour;
        assert_eq!(bench.offer(2, 0), "open");
    }
    assert_eq!([bench.offer(3, 1), bench.offer(4, 1)], ["first", "wait"]);
}

#[test]
fn more_partitions_leave_the_others_as_they_are() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.offer_to(1, 1, 0), "first");
    assert_eq!(bench.offer_to(1, 2, 2), "first");
    assert_eq!(bench.offer_to(1, 3, 0), "wait");
    bench.firsts.answered(Ticket(1));
    assert_eq!(bench.offer_to(1, 3, 0), "open");
}
