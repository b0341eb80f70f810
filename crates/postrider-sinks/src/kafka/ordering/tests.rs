use super::*;

const LINES: i32 = 64;

/// Turns that are asked for, over more lines than may have theirs at a time.
fn scheduler() -> PartitionScheduler<u64> {
    let mut scheduler = PartitionScheduler::new(1);
    scheduler.ask();
    scheduler.line("orders", LINES - 1);
    scheduler
}

/// A record comes: handed over at once, or waits.
fn comes(
    scheduler: &mut PartitionScheduler<u64>,
    partition: i32,
    record: u64,
    acked: u64,
    now: Instant,
) -> bool {
    let line = scheduler.line("orders", partition);
    let waits = scheduler.must_wait(acked);
    if waits {
        scheduler.wait(line, record, now);
    } else {
        scheduler.sent(line, acked);
    }
    waits
}

/// The records that are handed over, in the order of their partitions.
fn handed_over(scheduler: &mut PartitionScheduler<u64>, acked: u64, now: Instant) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(line) = scheduler.next(acked, now) {
        while let Some(record) = scheduler.take(line) {
            scheduler.sent(line, acked);
            all.push(record);
        }
    }
    all
}

#[test]
fn records_that_are_held_are_handed_over_together_when_their_time_is_over() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let until = now + Duration::from_mins(1);
    scheduler.hold(until);
    for partition in 0..LINES {
        assert!(comes(&mut scheduler, partition, 1, 0, now));
    }
    assert_eq!(scheduler.due(), Some(until));
    assert_eq!(handed_over(&mut scheduler, 0, now), [0; 0]);
    // More partitions than may have records in librdkafka at a time.
    assert_eq!(handed_over(&mut scheduler, 0, until), [1; LINES as usize]);
    assert_eq!(scheduler.due(), None);
    assert!(comes(&mut scheduler, 0, 2, 0, until), "the others are busy now");
}

/// Otherwise the caller would ask again at once, for as long as the partition can't take it.
#[test]
fn record_that_was_held_and_put_back_waits_as_any_other() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let until = now + Duration::from_mins(1);
    scheduler.hold(until);
    assert!(comes(&mut scheduler, 0, 1, 0, now));
    let line = scheduler.next(0, until).expect("its time is over");
    let record = scheduler.take(line).expect("the record");
    scheduler.put_back(line, record, until);
    assert_eq!(scheduler.due(), Some(until + WAIT_MAX));
}

#[test]
fn backlog_is_not_held() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    scheduler.hold(now + Duration::from_mins(1));
    for record in 1..BACKLOG {
        assert!(comes(&mut scheduler, 0, record, 0, now));
    }
    assert_eq!(handed_over(&mut scheduler, 0, now), [0; 0]);
    assert!(comes(&mut scheduler, 0, BACKLOG, 0, now));
    assert_eq!(handed_over(&mut scheduler, 0, now).len() as u64, BACKLOG);
    assert!(!comes(&mut scheduler, 0, 0, 0, now));
}

#[test]
fn lines_have_their_turns_in_the_order_in_which_they_came_and_with_all_that_waits() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    for partition in (0..LINES).take(BUSY_AT_ONCE) {
        assert!(!comes(&mut scheduler, partition, 0, 0, now), "there is room");
    }
    for (partition, record) in [(40, 1), (20, 2), (40, 3), (0, 4)] {
        assert!(comes(&mut scheduler, partition, record, 0, now));
    }
    // So many are answered that the busy partitions are at their bound.
    let full = (BUSY_AT_ONCE - BUSY_MAX) as u64;
    assert_eq!(handed_over(&mut scheduler, full, now), [0; 0]);
    assert_eq!(handed_over(&mut scheduler, full + 1, now), [1, 3]);
    assert!(comes(&mut scheduler, 50, 5, full + 1, now), "others wait already");
    assert_eq!(handed_over(&mut scheduler, full + 3, now), [2, 4]);
    assert_eq!(handed_over(&mut scheduler, full + 5, now), [5]);
    assert!(!comes(&mut scheduler, 51, 0, full + 5, now), "nobody waits any more");
    assert_eq!(scheduler.due(), None);
}

#[test]
fn no_record_waits_longer_than_the_bound() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    for partition in 0..LINES {
        comes(&mut scheduler, partition, partition.unsigned_abs().into(), 0, now);
    }
    assert_eq!(scheduler.due(), Some(now + WAIT_MAX));
    assert_eq!(handed_over(&mut scheduler, 0, now + WAIT_MAX / 2), [0; 0]);
    let waited: Vec<u64> = (BUSY_AT_ONCE as u64..u64::from(LINES.unsigned_abs())).collect();
    assert_eq!(handed_over(&mut scheduler, 0, now + WAIT_MAX), waited);
}

#[test]
fn what_could_not_be_handed_over_is_the_first_of_its_line_and_others_have_their_turn() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    for partition in (0..LINES).take(BUSY_AT_ONCE) {
        comes(&mut scheduler, partition, 0, 0, now);
    }
    for (partition, record) in [(40, 1), (40, 2), (50, 3)] {
        assert!(comes(&mut scheduler, partition, record, 0, now));
    }
    let line = scheduler.next(6, now).unwrap();
    let record = scheduler.take(line).unwrap();
    scheduler.put_back(line, record, now);
    assert_eq!(handed_over(&mut scheduler, 6, now), [3, 1, 2]);
}

#[test]
fn a_backlog_knows_no_turns() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let mut waited = Vec::new();
    for (record, partition) in (0..BACKLOG).zip((0..LINES).cycle()) {
        if comes(&mut scheduler, partition, record, 0, now) {
            waited.push(record);
        }
        assert_eq!(scheduler.is_backlog(0), record + 1 == BACKLOG, "{record}");
    }
    let mut all = handed_over(&mut scheduler, 0, now);
    all.sort_unstable();
    assert_eq!(all, waited, "none is kept back");
    assert!(!comes(&mut scheduler, 63, 0, 0, now), "nor is what comes now");
    assert!(
        comes(&mut scheduler, 63, 0, 500, now),
        "so many are answered that partitions wait again"
    );
}

#[test]
fn brokers_and_connections_have_turns_of_their_own() {
    let mut scheduler = PartitionScheduler::<u64>::new(2);
    scheduler.ask();
    scheduler.leads(3);
    scheduler.leads(1);
    let now = Instant::now();
    let waits = (0..100).filter(|&partition| comes(&mut scheduler, partition, 0, 0, now)).count();
    assert_eq!(waits, 100 - 2 * 3 * BUSY_AT_ONCE);
}

#[test]
fn who_never_asks_for_turns_is_not_made_to_wait() {
    let (mut scheduler, now) = (PartitionScheduler::<u64>::new(1), Instant::now());
    assert!((0..LINES).all(|partition| !comes(&mut scheduler, partition, 0, 0, now)));
}

#[test]
fn after_a_reset_nothing_waits_and_nobody_has_a_turn() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    let waits = (0..LINES).filter(|&partition| comes(&mut scheduler, partition, 1, 0, now)).count();
    assert!(waits > 0);
    scheduler.clear();
    assert_eq!(
        (handed_over(&mut scheduler, 0, now + WAIT_MAX), scheduler.due()),
        (Vec::new(), None)
    );
    let waits = (0..LINES).filter(|&partition| comes(&mut scheduler, partition, 1, 0, now)).count();
    assert_eq!(waits, LINES.unsigned_abs() as usize - BUSY_AT_ONCE);
}
