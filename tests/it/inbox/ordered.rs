//! Ordered inboxes: of each aggregate only the next message is given out.

use super::{Given, InboxDatabase, done, fail, next, owned, replay, skip};
use crate::groups::{refused, rows};
use crate::server::{Client, Version};
use std::collections::BTreeMap;

const LEASE: Option<&str> = Some("30 seconds");

/// Inserts a message with the id `aggregate` + `number`.
fn insert(messages: &[(&str, i64)]) -> String {
    let values = messages
        .iter()
        .map(|(aggregate, number)| format!("('{aggregate}{number}', '{aggregate}', {number})"));
    let values: Vec<String> = values.collect();
    format!(
        "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num) values {}",
        values.join(", ")
    )
}

async fn add(sql: &Client, messages: &[(&str, i64)]) {
    sql.batch(&insert(messages)).await;
}

/// Processes all messages that are due, one batch after the other: their ids.
async fn drain(world: &InboxDatabase, max: usize) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        world.sql.batch("begin").await;
        let given = world.next("drain", max, None).await;
        if !given.ids.is_empty() {
            world.done(&given).await;
        }
        world.sql.batch("commit").await;
        if given.ids.is_empty() {
            return all;
        }
        all.extend(given.ids);
    }
}

/// The gaps that a function shows: `a 2-3`.
async fn gaps(world: &InboxDatabase, function: &str) -> Vec<String> {
    let text = format!(
        "select format('%s %s-%s', aggregate_id, missing_from, missing_to) from postrider.{function}('jobs')"
    );
    let rows = rows(&world.sql, &text).await;
    rows.into_iter().map(|mut row| row[0].take().expect("a gap")).collect()
}

#[tokio::test]
async fn messages_that_arrive_shuffled_are_given_out_as_1_2_3() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::ordered(version, "inbox_shuffled", "sequence").await;
        let mut messages: Vec<(String, i64)> = ["a", "b", "c", "d"]
            .iter()
            .flat_map(|aggregate| (1..=25).map(|number| ((*aggregate).to_owned(), number)))
            .collect();
        fastrand::shuffle(&mut messages);
        let mut last: BTreeMap<String, i64> = BTreeMap::new();
        let mut waiting = messages.chunks(7);
        while last.values().sum::<i64>() < 100 {
            if let Some(chunk) = waiting.next() {
                let chunk: Vec<(&str, i64)> = chunk.iter().map(|(a, n)| (a.as_str(), *n)).collect();
                add(&world.sql, &chunk).await;
            }
            let lease = if fastrand::bool() { LEASE } else { None };
            world.sql.batch("begin").await;
            let given = world.next("w", fastrand::usize(1..6), lease).await;
            for (aggregate, number) in given.aggregates.iter().zip(&given.numbers) {
                let before = last.insert(aggregate.clone(), *number).unwrap_or(0);
                assert_eq!(*number, before + 1, "{aggregate}");
            }
            if !given.ids.is_empty() {
                world.done(&given).await;
            }
            world.sql.batch("commit").await;
        }
        assert_eq!(world.health(&["pending_count"]).await, "0");
        assert_eq!(world.number("select count(*) from postrider.inbox_wake").await, 0);
    }
}

#[tokio::test]
async fn a_gap_is_shown_and_holds_up_its_aggregate_alone_until_it_is_skipped() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::ordered(version, "inbox_gap", "sequence").await;
        add(&world.sql, &[("a", 1), ("a", 4), ("a", 5), ("a", 9), ("b", 1), ("b", 2)]).await;
        assert_eq!(gaps(&world, "inbox_all_gaps").await, ["a 2-3", "a 6-8"]);
        assert_eq!(drain(&world, 10).await, ["a1", "b1", "b2"]);
        assert_eq!(gaps(&world, "inbox_ordering_gaps").await, ["a 2-3"]);
        assert_eq!(gaps(&world, "inbox_all_gaps").await, ["a 2-3", "a 6-8"]);
        let behind = "select concat_ws(' ', next_event_id, waiting_since = (select received_at \
            from postrider_inbox.jobs where event_id = 'a4')) from postrider.inbox_ordering_gaps('jobs')";
        assert_eq!(world.sql.text(behind).await.as_deref(), Some("a4 t"));
        assert_eq!(world.number("select postrider.skip_inbox_gap('jobs', 'a')").await, 2);
        assert_eq!(world.number("select postrider.skip_inbox_gap('jobs', 'a')").await, 0);
        assert_eq!(world.number("select postrider.skip_inbox_gap('jobs', 'b')").await, 0);
        assert_eq!(world.number("select postrider.skip_inbox_gap('jobs', 'nobody')").await, 0);
        // What is not processed yet when a late message comes, comes after it.
        add(&world.sql, &[("a", 3)]).await;
        assert_eq!(drain(&world, 10).await, ["a3", "a4", "a5"]);
        assert_eq!(gaps(&world, "inbox_ordering_gaps").await, ["a 6-8"]);
        // A later one is processed when it arrives.
        add(&world.sql, &[("a", 2)]).await;
        assert_eq!(drain(&world, 10).await, ["a2"]);
        add(&world.sql, &[("a", 6), ("a", 8)]).await;
        assert_eq!(drain(&world, 10).await, ["a6"]);
        assert_eq!(gaps(&world, "inbox_all_gaps").await, ["a 7-7"]);
        add(&world.sql, &[("a", 7)]).await;
        assert_eq!(drain(&world, 10).await, ["a7", "a8", "a9"]);
        assert_eq!(gaps(&world, "inbox_all_gaps").await, Vec::<String>::new());
    }
}

/// The message behind the gap has failed, and waits to be given out again.
#[tokio::test]
async fn a_late_message_does_not_wait_for_the_retry_of_the_one_behind_it() {
    let world = InboxDatabase::ordered(Version::Pg17, "inbox_late_retry", "sequence").await;
    add(&world.sql, &[("a", 1), ("a", 3)]).await;
    assert_eq!(drain(&world, 10).await, ["a1"]);
    assert_eq!(world.number("select postrider.skip_inbox_gap('jobs', 'a')").await, 1);
    assert!(!world.yes(&fail("a3", None, "'1 hour'")).await);
    add(&world.sql, &[("a", 2)]).await;
    assert_eq!(drain(&world, 10).await, ["a2"]);
    let due = "update postrider_inbox.jobs set due_at = clock_timestamp() where event_id = 'a3'";
    world.sql.batch(due).await;
    let order = "update postrider.inbox_order set due_at = clock_timestamp()";
    world.sql.batch(order).await;
    assert_eq!(drain(&world, 10).await, ["a3"]);
}

/// Also of an aggregate whose first message is behind a gap, and which no worker has looked at.
#[tokio::test]
async fn a_gap_at_the_beginning_is_shown_and_skipped() {
    let world = InboxDatabase::with_inbox(Version::Pg15, "inbox_first_gap").await;
    world.sql.batch("select postrider.enable_inbox_ordering('jobs', 'sequence', 10)").await;
    add(&world.sql, &[("a", 12), ("b", 10), ("c", -5)]).await;
    for function in ["inbox_all_gaps", "inbox_ordering_gaps"] {
        assert_eq!(gaps(&world, function).await, ["a 10-11"]);
    }
    world.sql.batch("begin").await;
    assert_eq!(world.number("select postrider.skip_inbox_gap('jobs', 'a')").await, 2);
    assert_eq!(world.next("w", 10, None).await.ids.len(), 3);
    world.sql.batch("rollback").await;
    assert_eq!(drain(&world, 10).await.len(), 2);
    assert_eq!(gaps(&world, "inbox_ordering_gaps").await, ["a 10-11"]);
    assert_eq!(world.number("select postrider.skip_inbox_gap('jobs', 'a')").await, 2);
    assert_eq!(drain(&world, 10).await, ["a12"]);
}

#[tokio::test]
async fn a_dead_message_blocks_its_aggregate_alone_until_it_is_replayed_or_skipped() {
    for (version, by) in [
        (Version::Pg15, "sequence"),
        (Version::Pg18, "sequence"),
        (Version::Pg15, "arrival"),
        (Version::Pg18, "arrival"),
    ] {
        let world = InboxDatabase::ordered(version, "inbox_dead_head", by).await;
        world.sql.batch("update postrider.inbox set max_retries = 2").await;
        let messages = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1), ("c", 2)];
        add(&world.sql, &messages).await;
        for id in ["a1", "b1"] {
            // A message that is to be given out again blocks its aggregate too.
            assert!(!world.yes(&fail(id, None, "'1 hour'")).await);
            assert!(!world.next("w", 10, None).await.ids.contains(&id.to_owned()));
            assert!(world.yes(&fail(id, None, "'0'")).await);
        }
        assert_eq!(drain(&world, 10).await, ["c1", "c2"]);
        // More messages do not wake it.
        add(&world.sql, &[("a", 4), ("c", 3)]).await;
        assert_eq!(drain(&world, 10).await, ["c3"]);
        if by == "sequence" {
            assert_eq!(gaps(&world, "inbox_all_gaps").await, Vec::<String>::new());
        }
        assert_eq!(world.number(&format!("select postrider.{}", replay(&["a1"]))).await, 1);
        assert_eq!(drain(&world, 10).await, ["a1", "a2", "a3", "a4"]);
        assert_eq!(world.number(&format!("select postrider.{}", skip(&["b1"]))).await, 1);
        assert_eq!(drain(&world, 10).await, ["b2"]);
        // A processed message that is replayed comes first again.
        add(&world.sql, &[("a", 5)]).await;
        world.sql.batch(&format!("select postrider.{}", replay(&["a2", "a1"]))).await;
        assert_eq!(drain(&world, 10).await, ["a1", "a2", "a5"]);
    }
}

/// By whoever may delete rows of the table.
#[tokio::test]
async fn a_deleted_message_is_one_that_never_came() {
    for (version, by) in [(Version::Pg15, "sequence"), (Version::Pg18, "arrival")] {
        let world = InboxDatabase::ordered(version, "inbox_delete", by).await;
        add(&world.sql, &[("a", 1), ("a", 2), ("b", 1), ("b", 2)]).await;
        world.sql.batch("update postrider.inbox set max_retries = 1").await;
        assert!(!world.next("w", 10, None).await.ids.is_empty());
        assert!(world.yes(&fail("a1", None, "null")).await);
        assert!(!world.next("w", 10, None).await.ids.contains(&"a1".to_owned()));
        world.sql.batch("delete from postrider_inbox.jobs where event_id in ('a1', 'b1')").await;
        if by == "sequence" {
            assert_eq!(drain(&world, 10).await, Vec::<String>::new());
            assert_eq!(gaps(&world, "inbox_ordering_gaps").await.len(), 2);
            add(&world.sql, &[("a", 1), ("b", 1)]).await;
        }
        let mut given = drain(&world, 10).await;
        given.sort_unstable();
        let expected: &[&str] =
            if by == "sequence" { &["a1", "a2", "b1", "b2"] } else { &["a2", "b2"] };
        assert_eq!(given, expected);
    }
}

/// The last lease of a message that has killed its workers.
#[tokio::test]
async fn a_message_that_dies_by_its_leases_blocks_its_aggregate() {
    let world = InboxDatabase::ordered(Version::Pg17, "inbox_order_lost", "sequence").await;
    world.sql.batch("update postrider.inbox set max_retries = 2").await;
    add(&world.sql, &[("a", 1), ("a", 2), ("b", 1)]).await;
    for _ in 0..2 {
        let given = world.next("w", 10, LEASE).await;
        assert!(given.ids.contains(&"a1".to_owned()));
        if given.ids.len() == 2 {
            world.done(&Given { ids: owned(&["b1"]), ..given }).await;
        }
        world.run_out().await;
    }
    assert_eq!(world.next("w", 10, LEASE).await, Given::default());
    assert_eq!(world.health(&["pending_count", "dead_letter_count"]).await, "1 1");
    world.run_out().await;
    assert_eq!(world.next("w", 10, None).await, Given::default());
    assert_eq!(world.number(&format!("select postrider.{}", replay(&["a1"]))).await, 1);
    assert_eq!(drain(&world, 10).await, ["a1", "a2"]);
}

#[tokio::test]
async fn skipped_messages_have_to_be_the_next_ones() {
    let world = InboxDatabase::ordered(Version::Pg18, "inbox_skip_order", "sequence").await;
    add(&world.sql, &[("a", 1), ("a", 2), ("a", 3), ("a", 5), ("b", 2)]).await;
    for ids in [&["a2"][..], &["a1", "a3"], &["a1", "a2", "a3", "a5"], &["b2"]] {
        assert_eq!(world.refused(&skip(ids)).await, "PR114", "{ids:?}");
    }
    assert_eq!(world.health(&["pending_count"]).await, "5");
    assert_eq!(world.number(&format!("select postrider.{}", skip(&["a3", "a1", "a2"]))).await, 3);
    assert_eq!(drain(&world, 10).await, Vec::<String>::new());
    add(&world.sql, &[("a", 4), ("b", 1)]).await;
    let mut rest = drain(&world, 10).await;
    rest.sort_unstable();
    assert_eq!(rest, ["a4", "a5", "b1", "b2"]);
}

#[tokio::test]
async fn by_arrival_the_messages_of_an_aggregate_come_as_they_arrived() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::ordered(version, "inbox_arrival", "arrival").await;
        let insert = "insert into postrider_inbox.jobs (event_id, aggregate_id) values \
            ('z', 'x'), ('y', 'x'), ('k', 'k'), ('w', 'x')";
        world.sql.batch(insert).await;
        let first = world.next("w", 10, LEASE).await;
        assert_eq!(first.ids, ["z", "k"]);
        assert_eq!(world.next("v", 10, LEASE).await, Given::default());
        world
            .sql
            .batch("insert into postrider_inbox.jobs (event_id, aggregate_id) values ('a', 'x')")
            .await;
        assert_eq!(world.next("v", 10, LEASE).await, Given::default(), "z is not done");
        world.done(&first).await;
        assert_eq!(drain(&world, 10).await, ["y", "w", "a"]);
        let without = "insert into postrider_inbox.jobs (event_id) values ('none')";
        assert_eq!(refused(&world.sql, without).await, "23514", "no aggregate");
    }
}

#[tokio::test]
async fn done_of_a_message_that_is_not_the_next_is_refused() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::ordered(version, "inbox_not_next", "sequence").await;
        add(&world.sql, &[("a", 1), ("a", 2), ("b", 2)]).await;
        for ids in [&["a2"][..], &["b2"], &["a1", "a2"], &["a1", "b2"]] {
            assert_eq!(world.refused(&done(&owned(ids), None)).await, "PR114", "{ids:?}");
        }
        assert_eq!(world.health(&["pending_count"]).await, "3");
        let without =
            "insert into postrider_inbox.jobs (event_id, aggregate_id) values ('none', 'x')";
        assert_eq!(refused(&world.sql, without).await, "23514", "no number");
        assert_eq!(drain(&world, 10).await, ["a1", "a2"]);
    }
}

#[tokio::test]
async fn a_lease_of_the_next_message_holds_its_aggregate_and_a_zombie_can_not_finish_it() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::ordered(version, "inbox_order_lease", "sequence").await;
        add(&world.sql, &[("a", 1), ("a", 2), ("b", 1)]).await;
        let zombie = world.next("zombie", 1, LEASE).await;
        let other = world.next("other", 10, LEASE).await;
        assert_eq!((zombie.ids.len(), other.ids.len()), (1, 1));
        assert_ne!(zombie.aggregates, other.aggregates);
        world
            .sql
            .batch(&format!("select postrider.{}", fail(&other.ids[0], other.claim, "'1 hour'")))
            .await;
        world.run_out().await;
        let taken = world.next("other", 1, LEASE).await;
        assert_eq!(taken.ids, zombie.ids, "what has failed is not due");
        assert_eq!(world.refused(&done(&zombie.ids, zombie.claim)).await, "PR114");
        world.done(&taken).await;
        assert_eq!(world.refused(&done(&zombie.ids, zombie.claim)).await, "PR114");
        assert_eq!(world.refused(&fail(&zombie.ids[0], zombie.claim, "null")).await, "PR114");
    }
}

/// A worker has the aggregate in hand when more of its messages come: nobody waits, and nothing is forgotten.
#[tokio::test]
async fn an_insert_neither_waits_for_the_worker_of_its_aggregate_nor_is_lost() {
    for (version, by) in [
        (Version::Pg15, "sequence"),
        (Version::Pg18, "sequence"),
        (Version::Pg15, "arrival"),
        (Version::Pg18, "arrival"),
    ] {
        let world = InboxDatabase::ordered(version, "inbox_locked", by).await;
        let (writer, worker) = (world.connect().await, world.connect().await);
        writer.batch("set lock_timeout = '1ms'").await;
        for round in 1..=3 {
            let at = |n: i64| 3 * (round - 1) + n;
            add(&writer, &[("a", at(1))]).await;
            worker.batch("begin").await;
            let given = next(&worker, "w", 1, None).await;
            assert_eq!(given.ids, [format!("a{}", at(1))]);
            add(&writer, &[("a", at(2))]).await;
            // Another worker looks at it meanwhile, and has to leave it for later.
            assert_eq!(world.next("v", 10, LEASE).await, Given::default());
            worker.batch(&format!("select postrider.{}", done(&given.ids, None))).await;
            // After the worker has written when the next message is due.
            add(&writer, &[("a", at(3))]).await;
            assert_eq!(world.next("v", 10, LEASE).await, Given::default());
            worker.batch(if round == 2 { "rollback" } else { "commit" }).await;
            let left = drain(&world, 10).await;
            let from = if round == 2 { 1 } else { 2 };
            let expected: Vec<String> = (from..=3).map(|n| format!("a{}", at(n))).collect();
            assert_eq!(left, expected, "round {round}");
        }
    }
}

/// The row of the aggregate is created by a transaction that nobody else sees.
#[tokio::test]
async fn a_message_of_an_aggregate_whose_row_is_created_meanwhile_is_not_lost() {
    for (version, by, end) in [
        (Version::Pg15, "sequence", "commit"),
        (Version::Pg18, "sequence", "rollback"),
        (Version::Pg18, "arrival", "commit"),
        (Version::Pg15, "arrival", "rollback"),
    ] {
        let world = InboxDatabase::ordered(version, "inbox_created", by).await;
        let (writer, worker) = (world.connect().await, world.connect().await);
        writer.batch("set lock_timeout = '1ms'").await;
        add(&writer, &[("a", 1)]).await;
        worker.batch("begin").await;
        let given = next(&worker, "w", 1, None).await;
        assert_eq!(given.ids, ["a1"]);
        add(&writer, &[("a", 2), ("b", 1)]).await;
        world.sql.batch("set lock_timeout = '1s'").await;
        assert_eq!(drain(&world, 10).await, ["b1"], "others go on, and nobody waits");
        worker.batch(&format!("select postrider.{}; {end}", done(&given.ids, None))).await;
        let rest: &[&str] = if end == "commit" { &["a2"] } else { &["a1", "a2"] };
        assert_eq!(drain(&world, 10).await, rest);
        assert_eq!(world.number("select count(*) from postrider.inbox_order").await, 2);
    }
}

/// An insert is open when the worker looks, and commits afterwards.
#[tokio::test]
async fn messages_of_open_transactions_are_given_out_when_these_commit() {
    for by in ["sequence", "arrival"] {
        let world = InboxDatabase::ordered(Version::Pg17, "inbox_open", by).await;
        add(&world.sql, &[("a", 1), ("b", 1)]).await;
        assert_eq!(drain(&world, 10).await, ["a1", "b1"]);
        let (one, two) = (world.connect().await, world.connect().await);
        one.batch(&format!("begin; {}", insert(&[("a", 2), ("new", 1)]))).await;
        two.batch(&format!("begin; {}", insert(&[("a", 3), ("b", 2), ("new", 2)]))).await;
        assert_eq!(drain(&world, 10).await, Vec::<String>::new());
        two.batch("commit").await;
        if by == "sequence" {
            assert_eq!(drain(&world, 10).await, ["b2"], "the others wait for their number");
            one.batch("commit").await;
            let mut rest = drain(&world, 10).await;
            rest.sort_unstable();
            assert_eq!(rest, ["a2", "a3", "new1", "new2"]);
        } else {
            let mut now = drain(&world, 10).await;
            now.sort_unstable();
            one.batch("commit").await;
            let mut rest = drain(&world, 10).await;
            rest.sort_unstable();
            now.extend(rest);
            assert_eq!(now.len(), 5, "{now:?}");
            assert_eq!(now.last().map(String::as_str), Some("new1"));
        }
        assert_eq!(world.health(&["pending_count"]).await, "0");
    }
}

/// Many messages of an aggregate that a worker has in hand are no reason to leave others.
#[tokio::test]
async fn an_aggregate_that_is_in_hand_does_not_keep_others_from_being_looked_at() {
    let world = InboxDatabase::ordered(Version::Pg17, "inbox_starved", "sequence").await;
    add(&world.sql, &[("a", 1)]).await;
    let worker = world.connect().await;
    worker.batch("begin").await;
    assert_eq!(next(&worker, "w", 1, None).await.ids, ["a1"]);
    for number in 2..=300 {
        add(&world.sql, &[("a", number)]).await;
    }
    add(&world.sql, &[("b", 1)]).await;
    assert_eq!(drain(&world, 10).await, ["b1"]);
    worker.batch("commit").await;
    assert_eq!(drain(&world, 10).await.len(), 300);
    assert_eq!(world.number("select count(*) from postrider.inbox_wake").await, 0);
}

#[tokio::test]
async fn an_inbox_with_messages_is_ordered_from_where_it_is() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_enable").await;
        let late = "insert into postrider_inbox.jobs (event_id, aggregate_id) values ('none', 'x')";
        world.sql.batch(late).await;
        assert_eq!(world.refused("enable_inbox_ordering('jobs')").await, "23514");
        world.sql.batch("delete from postrider_inbox.jobs").await;
        add(&world.sql, &[("a", 3), ("a", 2), ("a", 1), ("b", 2), ("c", 1), ("c", 2)]).await;
        add(&world.sql, &[("d", 7), ("d", 8), ("e", 1), ("e", 2)]).await;
        world
            .sql
            .batch(
                "update postrider_inbox.jobs set processed_at = now() where event_id in ('a1', 'd7', 'c2');
                 update postrider_inbox.jobs set dead_at = now() where event_id = 'e1';
                 select postrider.enable_inbox_ordering('jobs')",
            )
            .await;
        let mut given = drain(&world, 10).await;
        given.sort_unstable();
        assert_eq!(given, ["a2", "a3", "c1", "d8"]);
        assert_eq!(gaps(&world, "inbox_all_gaps").await, ["b 1-1"]);
        assert_eq!(gaps(&world, "inbox_ordering_gaps").await, ["b 1-1"]);
        add(&world.sql, &[("b", 1), ("c", 3), ("d", 9)]).await;
        let mut given = drain(&world, 10).await;
        given.sort_unstable();
        assert_eq!(given, ["b1", "b2", "c3", "d9"]);
        // Without an order whatever is pending is given out.
        add(&world.sql, &[("f", 9)]).await;
        assert_eq!(drain(&world, 10).await, Vec::<String>::new());
        assert!(world.yes("disable_inbox_ordering('jobs')").await);
        assert_eq!(drain(&world, 10).await, ["e2", "f9"]);
        world.sql.batch(late).await;
        assert_eq!(drain(&world, 10).await, ["none"]);
        assert_eq!(world.number("select count(*) from postrider.inbox_order").await, 0);
        // And by arrival.
        world.sql.batch("select postrider.replay_inbox_messages('jobs', array['e1'])").await;
        world.sql.batch("select postrider.enable_inbox_ordering('jobs', 'arrival')").await;
        assert_eq!(drain(&world, 10).await, ["e1"]);
    }
}

/// A writer that is in a transaction when the order comes into force.
#[tokio::test]
async fn enabling_an_order_waits_for_writers_and_takes_their_messages_over() {
    let world = InboxDatabase::with_inbox(Version::Pg18, "inbox_enable_waits").await;
    world.sql.batch(&format!("begin; {}", insert(&[("a", 1), ("a", 2)]))).await;
    let enable = world.waiting("enable_inbox_ordering('jobs')").await;
    world.sql.batch("commit").await;
    assert!(enable.end().await.is_ok());
    assert_eq!(drain(&world, 10).await, ["a1", "a2"]);
}

#[tokio::test]
async fn a_truncated_ordered_inbox_goes_on() {
    for by in ["sequence", "arrival"] {
        let world = InboxDatabase::ordered(Version::Pg15, "inbox_order_truncate", by).await;
        add(&world.sql, &[("a", 1), ("a", 2), ("b", 1)]).await;
        let given = world.next("w", 1, None).await;
        world.done(&given).await;
        world.sql.batch("truncate postrider_inbox.jobs").await;
        assert_eq!(drain(&world, 10).await, Vec::<String>::new());
        add(&world.sql, &[("c", 1), (given.aggregates[0].as_str(), 2)]).await;
        assert_eq!(drain(&world, 10).await.len(), 2);
    }
}

/// An intake stores poison as dead messages, also of aggregates of which nothing else has come.
#[tokio::test]
async fn a_message_that_was_inserted_as_a_dead_one_is_given_out_after_its_replay() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::ordered(version, "inbox_born_dead", "arrival").await;
        world
            .sql
            .batch(
                "insert into postrider_inbox.jobs (event_id, aggregate_id, dead_at, error)
                 values ('m1', 'a', now(), 'no number'), ('m2', 'b', now(), 'no number')",
            )
            .await;
        assert_eq!(world.next("w", 10, None).await, Given::default());
        let replayed = "select postrider.replay_inbox_messages('jobs', array['m1', 'm2'])";
        assert_eq!(world.number(replayed).await, 2);
        assert_eq!(world.next("w", 10, None).await.ids, ["m1", "m2"]);
    }
}
