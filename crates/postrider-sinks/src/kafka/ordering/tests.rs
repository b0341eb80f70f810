use super::*;

const LINES: i32 = 64;

/// Turns that are asked for, over more lines than may have theirs at a time.
fn turns() -> Turns<u64> {
    let mut turns = Turns::new(1);
    turns.ask();
    turns.line("orders", LINES - 1);
    turns
}

/// A record comes: handed over at once, or waits.
fn comes(turns: &mut Turns<u64>, partition: i32, record: u64, acked: u64, now: Instant) -> bool {
    let line = turns.line("orders", partition);
    let waits = turns.must_wait(acked);
    if waits {
        turns.wait(line, record, now);
    } else {
        turns.handed(line, acked);
    }
    waits
}

/// What is handed over, by whose turn it is.
fn handed_over(turns: &mut Turns<u64>, acked: u64, now: Instant) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(line) = turns.next(acked, now) {
        while let Some(record) = turns.take(line) {
            turns.handed(line, acked);
            all.push(record);
        }
    }
    all
}

#[test]
fn lines_have_their_turns_in_the_order_in_which_they_came_and_with_all_that_waits() {
    let (mut turns, now) = (turns(), Instant::now());
    for partition in (0..LINES).take(AT_ONCE) {
        assert!(!comes(&mut turns, partition, 0, 0, now), "there is room");
    }
    for (partition, record) in [(40, 1), (20, 2), (40, 3), (0, 4)] {
        assert!(comes(&mut turns, partition, record, 0, now));
    }
    // So many are answered that those who have their turn are as many as may.
    let full = (AT_ONCE - IN_HAND) as u64;
    assert_eq!(handed_over(&mut turns, full, now), [0; 0]);
    assert_eq!(handed_over(&mut turns, full + 1, now), [1, 3]);
    assert!(comes(&mut turns, 50, 5, full + 1, now), "others wait already");
    assert_eq!(handed_over(&mut turns, full + 3, now), [2, 4]);
    assert_eq!(handed_over(&mut turns, full + 5, now), [5]);
    assert!(!comes(&mut turns, 51, 0, full + 5, now), "nobody waits any more");
    assert_eq!(turns.due(), None);
}

#[test]
fn nobody_waits_longer_than_that_whoever_has_the_turn() {
    let (mut turns, now) = (turns(), Instant::now());
    for partition in 0..LINES {
        comes(&mut turns, partition, partition.unsigned_abs().into(), 0, now);
    }
    assert_eq!(turns.due(), Some(now + PATIENCE));
    assert_eq!(handed_over(&mut turns, 0, now + PATIENCE / 2), [0; 0]);
    let waited: Vec<u64> = (AT_ONCE as u64..u64::from(LINES.unsigned_abs())).collect();
    assert_eq!(handed_over(&mut turns, 0, now + PATIENCE), waited);
}

#[test]
fn what_could_not_be_handed_over_is_the_first_of_its_line_and_others_have_their_turn() {
    let (mut turns, now) = (turns(), Instant::now());
    for partition in (0..LINES).take(AT_ONCE) {
        comes(&mut turns, partition, 0, 0, now);
    }
    for (partition, record) in [(40, 1), (40, 2), (50, 3)] {
        assert!(comes(&mut turns, partition, record, 0, now));
    }
    let line = turns.next(6, now).unwrap();
    let record = turns.take(line).unwrap();
    turns.put_back(line, record, now);
    assert_eq!(handed_over(&mut turns, 6, now), [3, 1, 2]);
}

#[test]
fn a_backlog_knows_no_turns() {
    let (mut turns, now) = (turns(), Instant::now());
    let mut waited = Vec::new();
    for (record, partition) in (0..BACKLOG).zip((0..LINES).cycle()) {
        if comes(&mut turns, partition, record, 0, now) {
            waited.push(record);
        }
        assert_eq!(turns.is_backlog(0), record + 1 == BACKLOG, "{record}");
    }
    let mut all = handed_over(&mut turns, 0, now);
    all.sort_unstable();
    assert_eq!(all, waited, "none is kept back");
    assert!(!comes(&mut turns, 63, 0, 0, now), "nor is what comes now");
    assert!(comes(&mut turns, 63, 0, 500, now), "so many are answered that turns count again");
}

#[test]
fn brokers_and_connections_have_turns_of_their_own() {
    let mut turns = Turns::<u64>::new(2);
    turns.ask();
    turns.leads(3);
    turns.leads(1);
    let now = Instant::now();
    let waits = (0..100).filter(|&partition| comes(&mut turns, partition, 0, 0, now)).count();
    assert_eq!(waits, 100 - 2 * 3 * AT_ONCE);
}

#[test]
fn who_never_asks_for_turns_is_not_made_to_wait() {
    let (mut turns, now) = (Turns::<u64>::new(1), Instant::now());
    assert!((0..LINES).all(|partition| !comes(&mut turns, partition, 0, 0, now)));
}

#[test]
fn after_a_reset_nothing_waits_and_nobody_has_a_turn() {
    let (mut turns, now) = (turns(), Instant::now());
    let waits = (0..LINES).filter(|&partition| comes(&mut turns, partition, 1, 0, now)).count();
    assert!(waits > 0);
    turns.clear();
    assert_eq!((handed_over(&mut turns, 0, now + PATIENCE), turns.due()), (Vec::new(), None));
    let waits = (0..LINES).filter(|&partition| comes(&mut turns, partition, 1, 0, now)).count();
    assert_eq!(waits, LINES.unsigned_abs() as usize - AT_ONCE);
}
