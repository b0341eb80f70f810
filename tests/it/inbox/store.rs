//! Inboxes that store messages first: claims, failures, dead messages, numbers, and tables of others.

use super::{Given, InboxDatabase, array, done, fail, next, or_null, owned, quoted, replay, skip};
use crate::await_that::{SOON, await_that};
use crate::groups::{refused, rows};
use crate::server::Version;
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, NoTls};

/// How many rows the view of the statistics, and a count of all messages, do not have in common.
const WRONG_NUMBERS: &str = "with
    shown as (select event_type, pending, dead, processed from postrider_inbox.stats_jobs
        where (pending, dead, processed) <> (0, 0, 0)),
    counted as (select coalesce(event_type, '') as event_type,
        count(*) filter (where processed_at is null and dead_at is null) as pending,
        count(*) filter (where processed_at is null and dead_at is not null) as dead,
        count(processed_at) as processed from postrider_inbox.jobs group by 1)
    select count(*) from ((table shown except table counted)
        union all (table counted except table shown)) x";

const LEASE: Option<&str> = Some("30 seconds");

fn ids(messages: std::ops::RangeInclusive<usize>) -> Vec<String> {
    messages.map(|i| format!("m{i}")).collect()
}

#[tokio::test]
async fn a_repeated_message_is_stored_once_and_an_inbox_has_one_name() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_create").await;
        let create = "select postrider.create_inbox('jobs')::text";
        assert_eq!(world.sql.text(create).await.as_deref(), Some("postrider_inbox.jobs"));
        let insert = "insert into postrider_inbox.jobs (event_id, payload) values ('a', '{\"n\": 1}') \
            on conflict (event_id) do nothing";
        world.sql.batch(insert).await;
        world.sql.batch(insert).await;
        assert_eq!(world.number("select count(*) from postrider_inbox.jobs").await, 1);
        assert_eq!(world.health(&["pending_count"]).await, "1");
        let plain = insert.replace("on conflict (event_id) do nothing", "");
        assert_eq!(refused(&world.sql, &plain).await, "23505");

        assert_eq!(world.refused("create_inbox('jobs')").await, "PR122");
        let again = "select postrider.create_inbox('jobs', p_if_not_exists => true)::text";
        assert_eq!(world.sql.text(again).await.as_deref(), Some("postrider_inbox.jobs"));
        world.sql.batch("create schema own; select postrider.create_inbox('more', 'own')").await;
        world.sql.batch("insert into own.more (event_id) values ('a')").await;
        assert_eq!(world.number("select count(*) from postrider_inbox.pending_more").await, 1);
        let status = "select string_agg(concat_ws(' ', name, \"table\", is_managed, pending, health_status), '; ') \
            from postrider.inbox_status()";
        assert_eq!(
            world.sql.text(status).await.as_deref(),
            Some("jobs postrider_inbox.jobs t 1 healthy; more own.more t 1 healthy")
        );
    }
}

/// LONG is a name of 48 letters, WORKER one of 201.
const OUT_OF_BOUNDS: &[(&str, &str)] = &[
    ("create_inbox(null)", "22023"),
    ("create_inbox('')", "22023"),
    ("create_inbox('Jobs')", "22023"),
    ("create_inbox('1jobs')", "22023"),
    ("create_inbox('a-b')", "22023"),
    ("create_inbox('LONG')", "22023"),
    ("create_inbox('pending_x')", "22023"),
    ("create_inbox('dlq_x')", "22023"),
    ("create_inbox('stats_x')", "22023"),
    ("create_inbox('tier_x')", "22023"),
    ("create_inbox('x', 'postrider')", "22023"),
    ("create_inbox('x', null)", "22023"),
    ("create_inbox('x', p_max_retries => 0)", "22023"),
    ("create_inbox('x', p_max_retries => null)", "22023"),
    ("create_inbox('x', p_retention_hours => -1)", "22023"),
    ("inbox_next('jobs', null)", "22023"),
    ("inbox_next('jobs', '')", "22023"),
    ("inbox_next('jobs', 'WORKER')", "22023"),
    ("inbox_next('jobs', 'w', 0)", "22023"),
    ("inbox_next('jobs', 'w', 10001)", "22023"),
    ("inbox_next('jobs', 'w', null)", "22023"),
    ("inbox_next('jobs', 'w', 1, '999 milliseconds')", "22023"),
    ("inbox_next('jobs', 'w', 1, '25 hours')", "22023"),
    ("inbox_done('jobs', null)", "22023"),
    ("inbox_done('jobs', '{}')", "22023"),
    ("inbox_done('jobs', array[null])", "PR114"),
    ("inbox_done('jobs', array['nothing'])", "PR114"),
    ("inbox_extend('jobs', array['a'], 1, null)", "22023"),
    ("inbox_extend('jobs', array['a'], 1, '-1 second')", "22023"),
    ("inbox_extend('jobs', array['a'], 1, '25 hours')", "22023"),
    ("inbox_extend('jobs', array['a'], 1, '1 second')", "PR114"),
    ("inbox_extend('jobs', null, 1, '1 second')", "22023"),
    ("inbox_extend('nobody', array['a'], 1, '1 second')", "PR121"),
    ("inbox_fail('jobs', 'nothing', 'it broke')", "PR114"),
    ("inbox_fail('jobs', null, 'it broke')", "PR114"),
    ("inbox_fail('jobs', 'a', 'it broke', null, '-1 second')", "22023"),
    ("inbox_fail('jobs', 'a', 'it broke', null, '31 days')", "22023"),
    ("skip_inbox_messages('jobs', array['a'], null)", "22023"),
    ("skip_inbox_messages('jobs', array['a'], '')", "22023"),
    ("inbox_drain('jobs', 0)", "22023"),
    ("inbox_drain('jobs', p_keep => '-1 second')", "22023"),
    ("inbox_drain('jobs', p_dead_keep => '-1 second')", "22023"),
    ("inbox_fold('jobs', 0)", "22023"),
    ("enable_inbox_ordering('jobs', 'name')", "22023"),
    ("enable_inbox_ordering('jobs', null)", "22023"),
    ("enable_inbox_ordering('jobs', 'sequence', null)", "22023"),
    ("enable_inbox_priority('jobs', '[1]')", "22023"),
    ("enable_inbox_priority('jobs', '{\"a b\": [1, 2]}')", "22023"),
    ("enable_inbox_priority('jobs', '{\"a_b\": [1, 2]}')", "22023"),
    ("enable_inbox_priority('jobs', '{\"a\": [1]}')", "22023"),
    ("enable_inbox_priority('jobs', '{\"a\": [\"1\", 2]}')", "22023"),
    ("enable_inbox_priority('jobs', null)", "22023"),
    ("enable_inbox_priority('jobs', p_default => null)", "22023"),
    ("enable_inbox_priority('jobs', p_default => 32768)", "22023"),
    ("disable_inbox_ordering('jobs')", "PR125"),
    ("disable_inbox_priority('jobs')", "PR125"),
    ("inbox_ordering_gaps('jobs')", "PR125"),
    ("inbox_all_gaps('jobs')", "PR125"),
    ("skip_inbox_gap('jobs', 'a')", "PR125"),
    ("inbox_next('nobody', 'w')", "PR121"),
    ("inbox_done('nobody', array['a'])", "PR121"),
    ("inbox_fail('nobody', 'a', 'it broke')", "PR121"),
    ("replay_inbox_messages('nobody', array['a'])", "PR121"),
    ("skip_inbox_messages('nobody', array['a'], 'because')", "PR121"),
    ("inbox_health('nobody')", "PR121"),
    ("inbox_drain('nobody')", "PR121"),
    ("inbox_recount('nobody')", "PR121"),
    ("drop_inbox('nobody')", "PR121"),
    ("enable_inbox_ordering('nobody')", "PR121"),
    ("enable_inbox_priority('nobody')", "PR121"),
];

#[tokio::test]
async fn arguments_out_of_bounds_are_refused_with_a_hint() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_store_args").await;
        let (long, worker) = ("x".repeat(48), "w".repeat(201));
        for (call, code) in OUT_OF_BOUNDS {
            let text = call.replace("LONG", &long).replace("WORKER", &worker);
            assert_eq!(world.refused(&text).await, *code, "{call}");
        }
        for call in [
            "drop_inbox('nobody', true)",
            "disable_inbox_ordering('jobs', true)",
            "disable_inbox_priority('jobs', true)",
        ] {
            assert!(!world.yes(call).await, "{call}");
        }
        assert_eq!(world.number("select count(*) from postrider.inbox").await, 1);
        assert_eq!(world.number("select count(*) from postrider_inbox.jobs").await, 0);
    }
}

#[tokio::test]
async fn in_lock_mode_the_messages_come_in_order_and_a_rollback_gives_them_back() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_lock_mode").await;
        world.add(1..=30).await;
        let other = world.connect().await;
        world.sql.batch("begin").await;
        let first = world.next("a", 10, None).await;
        assert_eq!((first.ids.clone(), first.claim), (ids(1..=10), None));
        // Another session has other messages, and nobody waits.
        other.batch("begin").await;
        let second = next(&other, "b", 10, None).await;
        assert_eq!(second.ids, ids(11..=20));
        world.done(&first).await;
        world.sql.batch("rollback").await;
        assert_eq!(world.health(&["pending_count"]).await, "30");
        world.sql.batch("begin").await;
        let again = world.next("a", 15, None).await;
        assert_eq!(again.ids, [ids(1..=10), ids(21..=25)].concat());
        world.done(&again).await;
        world.sql.batch("commit").await;
        other.batch(&format!("select postrider.{}", done(&second.ids, None))).await;
        other.batch("commit").await;
        assert_eq!(world.next("c", 100, None).await.ids, ids(26..=30));
        assert_eq!(world.health(&["pending_count"]).await, "5");
        assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    }
}

#[tokio::test]
async fn in_lease_mode_two_sessions_never_have_the_same_message() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_lease_mode").await;
        world.add(1..=400).await;
        let mut workers = JoinSet::new();
        for name in ["a", "b", "c", "d"] {
            let sql = world.connect().await;
            workers.spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let given = next(&sql, name, 7, LEASE).await;
                    if given.ids.is_empty() {
                        return mine;
                    }
                    assert!(given.claim.is_some());
                    // Every second batch is never finished: its lease goes on.
                    if fastrand::bool() {
                        sql.batch(&format!("select postrider.{}", done(&given.ids, given.claim)))
                            .await;
                    }
                    mine.extend(given.ids);
                }
            });
        }
        let mut all: Vec<String> = workers.join_all().await.into_iter().flatten().collect();
        all.sort_unstable();
        let mut expected = ids(1..=400);
        expected.sort_unstable();
        assert_eq!(all, expected, "each message was given out once");
        let open = "select count(*) from postrider_inbox.jobs where processed_at is null";
        let claimed = "select count(*) from postrider_inbox.jobs where claim is not null and claimed_by is not null \
            and due_at > clock_timestamp() + interval '1 second'";
        assert_eq!(world.number(open).await, world.number(claimed).await);
        assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    }
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_and_the_late_done_takes_its_work_back() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_late").await;
        world.sql.batch("create table effect (id text)").await;
        world.add(1..=3).await;
        let zombie = world.next("zombie", 10, LEASE).await;
        assert_eq!(world.next("next", 10, LEASE).await, Given::default());
        // A worker without the claim has no right either as long as the lease goes on.
        assert_eq!(world.refused(&done(&zombie.ids, None)).await, "PR114");
        assert_eq!(world.refused(&fail("m1", None, "null")).await, "PR114");
        world.run_out().await;
        let taken = world.next("next", 10, LEASE).await;
        assert_eq!(taken.ids, zombie.ids);
        assert_ne!(taken.claim, zombie.claim);
        world.sql.batch("begin; insert into effect values ('m1')").await;
        assert_eq!(world.refused(&done(&zombie.ids, zombie.claim)).await, "PR114");
        world.sql.batch("rollback").await;
        assert_eq!(world.refused(&fail("m1", zombie.claim, "null")).await, "PR114");
        assert_eq!(world.number("select count(*) from effect").await, 0);
        // The other one's work stands, and a part of it that is late too does not take the rest with it.
        world.done(&taken).await;
        assert_eq!(world.refused(&done(&taken.ids, taken.claim)).await, "PR114", "twice");
        assert_eq!(world.refused(&done(&zombie.ids, zombie.claim)).await, "PR114");
        assert_eq!(world.health(&["pending_count"]).await, "0");
    }
}

/// A message that kills its workers is dead in the end.
#[tokio::test]
async fn a_lease_that_ends_without_an_answer_counts_as_a_failure() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_lost").await;
        world.sql.batch("select postrider.create_inbox('jobs', p_max_retries => 3)").await;
        world.add(1..=3).await;
        let (listener, heard, _task) = listen(&world.database.url()).await;
        let first = world.next("one", 3, LEASE).await;
        world.done(&Given { ids: ids(3..=3), ..first }).await;
        for round in 1..=2 {
            world.run_out().await;
            let given = world.next("two", 2, LEASE).await;
            assert_eq!(given.ids, ids(1..=2), "round {round}");
            let lost = if round == 1 { "one" } else { "two" };
            let seen = format!(
                "select count(*) from postrider_inbox.jobs where claim = {} \
                and retry_count = {round} and error = 'the lease of {lost} ended'",
                or_null(given.claim)
            );
            assert_eq!(world.number(&seen).await, 2);
        }
        world.run_out().await;
        let call = "update postrider_inbox.jobs set retry_count = 0 where event_id = 'm2'";
        world.sql.batch(call).await;
        // The first two that are due have become dead; the call looks for others, and returns those.
        world.add(4..=4).await;
        assert_eq!(world.next("three", 1, LEASE).await.ids, ["m2"]);
        let given = world.next("three", 1, LEASE).await;
        assert_eq!(given.ids, ids(4..=4));
        world.done(&given).await;
        let health = world.health(&["pending_count", "dead_letter_count"]).await;
        assert_eq!(health, "1 1");
        await_that("the notification", SOON, || async {
            let heard = heard.lock().expect("no panic").clone();
            if heard == ["postrider_inbox_dead jobs"] { Ok(()) } else { Err(format!("{heard:?}")) }
        })
        .await;
        drop(listener);
        assert_eq!(world.number(&format!("select postrider.{}", replay(&["m1"]))).await, 1);
        assert_eq!(world.next("four", 10, LEASE).await.ids, ["m1"]);
        assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    }
}

fn extend(ids: &[String], claim: Option<i64>, lease: &str) -> String {
    format!("inbox_extend('jobs', {}, {}, '{lease}')", array(ids), or_null(claim))
}

#[tokio::test]
async fn a_lease_is_extended_or_released_by_its_worker_alone() {
    for (version, ordered) in [
        (Version::Pg15, false),
        (Version::Pg18, false),
        (Version::Pg15, true),
        (Version::Pg18, true),
    ] {
        let world = InboxDatabase::with_inbox(version, "inbox_extend").await;
        world
            .sql
            .batch(
                "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num)
                    values ('m1', 'a', 1), ('m2', 'b', 1)",
            )
            .await;
        if ordered {
            world.sql.batch("select postrider.enable_inbox_ordering('jobs')").await;
        }
        let given = world.next("a", 10, Some("1 second")).await;
        assert_eq!(given.ids, ids(1..=2));
        let until = format!(
            "select (postrider.{} > clock_timestamp() + interval '59 minutes')::int",
            extend(&given.ids, given.claim, "1 hour")
        );
        assert_eq!(world.number(&until).await, 1);
        let due = "select count(*) from postrider_inbox.jobs where due_at > clock_timestamp() + interval '59 minutes'";
        assert_eq!(world.number(due).await, 2);
        assert_eq!(world.next("b", 10, LEASE).await, Given::default());
        let other = given.claim.map(|claim| claim + 1);
        assert_eq!(world.refused(&extend(&given.ids, other, "1 hour")).await, "PR114");
        assert_eq!(world.refused(&extend(&given.ids, None, "1 hour")).await, "PR114");
        assert_eq!(
            world.refused(&extend(&owned(&["m1", "m3"]), given.claim, "1 hour")).await,
            "PR114"
        );
        // Released, and that is no failure.
        let release = extend(&given.ids[..1], given.claim, "0 seconds");
        world.sql.batch(&format!("select postrider.{release}")).await;
        assert_eq!(world.refused(&release).await, "PR114");
        let taken = world.next("b", 10, LEASE).await;
        assert_eq!(taken.ids, ["m1"]);
        let count = "select sum(retry_count) from postrider_inbox.jobs";
        assert_eq!(world.number(count).await, 0);
        assert_eq!(world.refused(&done(&given.ids, given.claim)).await, "PR114");
        world.done(&Given { ids: ids(2..=2), ..given }).await;
        world.done(&taken).await;
        assert_eq!(world.refused(&extend(&taken.ids, taken.claim, "1 hour")).await, "PR114");
        assert_eq!(world.health(&["pending_count"]).await, "0");
    }
}

#[tokio::test]
async fn a_late_done_counts_as_long_as_nobody_took_the_lease() {
    let world = InboxDatabase::with_inbox(Version::Pg17, "inbox_expired").await;
    world.add(1..=4).await;
    let given = world.next("a", 4, LEASE).await;
    world.run_out().await;
    // In parts.
    let part = |range: std::ops::Range<usize>| done(&given.ids[range], given.claim);
    assert_eq!(world.number(&format!("select postrider.{}", part(0..2))).await, 2);
    assert_eq!(world.refused(&part(1..4)).await, "PR114", "one of them is done");
    assert_eq!(world.health(&["pending_count"]).await, "2", "the others are not");
    // Without the claim: the lease is over, and whoever has locked the messages may finish them.
    assert_eq!(world.number(&format!("select postrider.{}", done(&given.ids[2..], None))).await, 2);
    // An id that is named twice is one message.
    world.add(5..=5).await;
    let twice = [ids(5..=5), ids(5..=5)].concat();
    assert_eq!(world.number(&format!("select postrider.{}", done(&twice, None))).await, 1);
}

#[tokio::test]
async fn a_failed_message_comes_back_later_and_later_and_is_dead_in_the_end() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_fail").await;
        world.sql.batch("select postrider.create_inbox('jobs', p_max_retries => 4)").await;
        world.add(1..=2).await;
        for (failure, seconds) in [(1, 1.0), (2, 2.0), (3, 4.0)] {
            let given = world.next("a", 1, LEASE).await;
            assert_eq!(given.ids, ["m1"]);
            assert!(!world.yes(&fail("m1", given.claim, "null")).await);
            let after = "select extract(epoch from due_at - clock_timestamp())::text from postrider_inbox.jobs \
                where event_id = 'm1' and claim is null and claimed_by is null and error = 'it broke'";
            let after = world.sql.text(after).await.expect("the message");
            let after: f64 = after.parse().expect("a number");
            assert!(after > seconds * 0.8 - 0.7 && after < seconds * 1.2, "{failure}: {after}");
            // The other message does not wait for it.
            assert_eq!(world.next("a", 10, None).await.ids, ["m2"]);
            let due = "update postrider_inbox.jobs set due_at = '2000-01-01' where event_id = 'm1'";
            world.sql.batch(due).await;
        }
        assert!(world.yes(&fail("m1", None, "null")).await);
        assert_eq!(world.next("a", 10, None).await.ids, ["m2"]);
        assert_eq!(world.refused(&done(&owned(&["m1"]), None)).await, "PR114");
        assert_eq!(world.refused(&fail("m1", None, "null")).await, "PR114");
        let dlq =
            "select concat_ws(' ', event_id, retry_count, error) from postrider_inbox.dlq_jobs";
        assert_eq!(world.sql.text(dlq).await.as_deref(), Some("m1 4 it broke"));
        let health = world.health(&["pending_count", "dead_letter_count", "health_status"]).await;
        assert_eq!(health, "1 1 degraded");
        assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    }
}

#[tokio::test]
async fn a_failure_may_name_its_pause_and_none_is_longer_than_an_hour_by_itself() {
    let world = InboxDatabase::create(Version::Pg17, "inbox_pause_of").await;
    world.sql.batch("select postrider.create_inbox('jobs', p_max_retries => 1000000)").await;
    world.add(1..=1).await;
    assert!(!world.yes(&fail("m1", None, "'30 days'")).await);
    let days = "select round(extract(epoch from due_at - clock_timestamp()) / 86400) from postrider_inbox.jobs";
    assert_eq!(world.number(days).await, 30);
    assert!(!world.yes(&fail("m1", None, "'0'")).await);
    assert_eq!(world.next("a", 1, None).await.ids, ["m1"]);
    world.sql.batch("update postrider_inbox.jobs set retry_count = 900000").await;
    assert!(!world.yes(&fail("m1", None, "null")).await);
    let minutes = "select (extract(epoch from due_at - clock_timestamp()) / 60 between 47 and 73)::int \
        from postrider_inbox.jobs";
    assert_eq!(world.number(minutes).await, 1);
}

/// What is notified on the channel, as it comes.
async fn listen(url: &str) -> (tokio_postgres::Client, Arc<Mutex<Vec<String>>>, JoinSet<()>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("a session");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let mut task = JoinSet::new();
    let notices = Arc::clone(&heard);
    task.spawn(async move {
        while let Some(Ok(message)) =
            std::future::poll_fn(|context| connection.poll_message(context)).await
        {
            if let AsyncMessage::Notification(note) = message {
                notices.lock().expect("no panic").push(format!(
                    "{} {}",
                    note.channel(),
                    note.payload()
                ));
            }
        }
    });
    client.batch_execute("listen postrider_inbox_dead").await.expect("it listens");
    (client, heard, task)
}

#[tokio::test]
async fn a_dead_message_is_notified_when_its_transaction_commits() {
    let world = InboxDatabase::create(Version::Pg15, "inbox_notify").await;
    world.sql.batch("select postrider.create_inbox('jobs', p_max_retries => 2)").await;
    world.add(1..=2).await;
    let (listener, heard, _task) = listen(&world.database.url()).await;
    assert!(!world.yes(&fail("m1", None, "'0'")).await);
    world.sql.batch("begin").await;
    assert!(world.yes(&fail("m1", None, "'0'")).await);
    world.sql.batch("rollback; notify postrider_inbox_dead, 'mark'; begin").await;
    assert!(world.yes(&fail("m1", None, "'0'")).await);
    world.sql.batch("commit").await;
    await_that("the notification", SOON, || async {
        let heard = heard.lock().expect("no panic").clone();
        if heard.len() == 2 { Ok(()) } else { Err(format!("{heard:?}")) }
    })
    .await;
    let told = ["postrider_inbox_dead mark", "postrider_inbox_dead jobs"];
    assert_eq!(*heard.lock().expect("no panic"), told);
    drop(listener);
}

#[tokio::test]
async fn replayed_messages_begin_anew_and_skipped_ones_count_as_processed() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_replay").await;
        world.sql.batch("select postrider.create_inbox('jobs', p_max_retries => 1)").await;
        world.add(1..=6).await;
        for id in ["m1", "m2", "m3"] {
            assert!(world.yes(&fail(id, None, "null")).await);
        }
        world.sql.batch(&format!("select postrider.{}", done(&ids(4..=4), None))).await;
        let claimed = world.next("a", 1, LEASE).await;
        assert_eq!(claimed.ids, ["m5"]);
        let call = format!("select postrider.{}", replay(&["m1", "m4", "m5", "nothing"]));
        assert_eq!(world.number(&call).await, 3);
        assert_eq!(world.refused(&done(&claimed.ids, claimed.claim)).await, "PR114");
        let again = "select concat_ws(' ', retry_count, error, dead_at, processed_at, claim, claimed_by) \
            from postrider_inbox.jobs where event_id in ('m1', 'm4', 'm5') group by 1";
        assert_eq!(rows(&world.sql, again).await, [[Some("0".to_owned())]]);
        let pending = world.next("a", 10, None).await.ids;
        assert_eq!(pending.len(), 4);
        assert!(!pending.contains(&"m2".to_owned()) && !pending.contains(&"m3".to_owned()));
        // It dies again with as many failures as before.
        assert!(world.yes(&fail("m1", None, "null")).await);

        let call = format!("select postrider.{}", skip(&["m2", "m6", "nothing"]));
        assert_eq!(world.number(&call).await, 2);
        assert_eq!(world.number(&call).await, 0, "processed ones are left as they are");
        let errors = "select string_agg(error, ', ' order by event_id) from postrider_inbox.jobs \
            where processed_at is not null";
        let errors = world.sql.text(errors).await;
        assert_eq!(errors.as_deref(), Some("skipped: not needed; it broke, skipped: not needed"));
        let health = world.health(&["pending_count", "dead_letter_count"]).await;
        assert_eq!(health, "2 2");
        assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    }
}

#[tokio::test]
async fn ids_and_texts_may_have_sql_in_them() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_texts").await;
        let texts = owned(&[
            "'; drop table postrider_inbox.jobs; --",
            r#"it's "quoted" \ %s %I $1 $$"#,
            "{a,\"b\"}",
            "NULL",
            "",
            "グループ",
            "a b\tc\nd",
        ]);
        for text in &texts {
            let text = quoted(text);
            world
                .sql
                .batch(&format!(
                    "insert into postrider_inbox.jobs (event_id, event_type, aggregate_id) \
                     values ({text}, {text}, {text})"
                ))
                .await;
        }
        let given = world.next("it''s", 100, LEASE).await;
        assert_eq!(given.ids, texts);
        assert_eq!(given.aggregates, texts);
        let id = quoted(&texts[0]);
        let call = format!("inbox_fail('jobs', {id}, {id}, {})", or_null(given.claim));
        assert!(!world.yes(&call).await);
        world.done(&Given { ids: texts[1..].to_vec(), ..given }).await;
        assert_eq!(
            world
                .number(&format!(
                    "select postrider.replay_inbox_messages('jobs', {})",
                    array(&texts)
                ))
                .await,
            7
        );
        let call = format!("skip_inbox_messages('jobs', {}, {id})", array(&texts));
        assert_eq!(world.number(&format!("select postrider.{call}")).await, 7);
        assert_eq!(world.number("select count(*) from postrider_inbox.stats_jobs").await, 7);
        assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    }
}

#[tokio::test]
async fn health_says_how_old_the_oldest_message_is_and_what_that_means() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_health").await;
        let keys =
            ["pending_count", "dead_letter_count", "oldest_pending_age_sec", "health_status"];
        assert_eq!(world.health(&keys).await, "0 0 0 healthy");
        let arrive = async |id: &str, age: &str| {
            let text = format!(
                "insert into postrider_inbox.jobs (event_id, received_at) \
                 values ('{id}', clock_timestamp() - interval '{age}')"
            );
            world.sql.batch(&text).await;
        };
        let status = async || world.health(&["health_status"]).await;
        arrive("a", "4 minutes").await;
        assert_eq!(status().await, "healthy");
        let set = "update postrider.inbox set degraded_after = '239 seconds'";
        world.sql.batch(set).await;
        assert_eq!(status().await, "degraded");
        world.sql.batch("update postrider.inbox set critical_after = '240 seconds'").await;
        assert_eq!(status().await, "critical");
        world.done(&world.next("w", 1, None).await).await;
        assert_eq!(status().await, "healthy");
        world
            .sql
            .batch("update postrider.inbox set degraded_after = default, critical_after = default")
            .await;
        arrive("b", "6 minutes").await;
        assert_eq!(status().await, "degraded");
        world.done(&world.next("w", 1, None).await).await;
        arrive("c", "61 minutes").await;
        assert_eq!(status().await, "critical");
        world.done(&world.next("w", 1, None).await).await;
        // Three messages that were 4, 6 and 61 minutes old, in about five minutes.
        let text = "select format('%s %s', round((h ->> 'avg_processing_time_sec')::numeric / 60, 0), \
            (h ->> 'throughput_per_sec')::float8 between 3 / 361.0 and 3 / 300.0) \
            from postrider.inbox_health('jobs') as health(h)";
        assert_eq!(world.sql.text(text).await.as_deref(), Some("24 t"));
        let average = "select (abs(avg_processing_time_sec - (select avg(extract(epoch from \
            processed_at - received_at)) from postrider_inbox.jobs)) < 0.001)::int from postrider_inbox.stats_jobs";
        assert_eq!(world.number(average).await, 1);
    }
}

/// A statement that changes the numbers; `{i}` is a number that was not used before.
const CHANGES: &[&str] = &[
    "insert into postrider_inbox.jobs (event_id, event_type) \
        select '{i}-' || i, 'T' || i % 3 from generate_series(1, 20) i",
    "insert into postrider_inbox.jobs (event_id, event_type) values ('{i}', null)",
    "insert into postrider_inbox.jobs (event_id, event_type, processed_at) values ('{i}', 'T1', now())",
    "insert into postrider_inbox.jobs (event_id, event_type, dead_at) values ('{i}', 'T2', now())",
    "insert into postrider_inbox.jobs (event_id) select event_id from postrider_inbox.jobs on conflict do nothing",
    "insert into postrider_inbox.jobs (event_id, event_type) select event_id, 'T0' from postrider_inbox.jobs \
        order by random() limit 5 \
        on conflict (event_id) do update set event_type = excluded.event_type, processed_at = null",
    "update postrider_inbox.jobs set event_type = 'T' || retry_count % 4 where seq % 3 = {i} % 3",
    "update postrider_inbox.jobs set dead_at = now() where seq % 7 = {i} % 7",
    "update postrider_inbox.jobs set processed_at = null, dead_at = null where seq % 5 = {i} % 5",
    "update postrider_inbox.jobs set event_id = event_id || 'x', processed_at = now() where seq % 11 = {i} % 11",
    "update postrider_inbox.jobs set error = 'x' where false",
    "delete from postrider_inbox.jobs where seq % 4 = {i} % 4",
    "select postrider.inbox_done('jobs', array_agg(event_id)) \
        from postrider.inbox_next('jobs', 'w', 5) having count(*) > 0",
    "select postrider.inbox_fail('jobs', event_id, 'it broke', claim, '0') \
        from postrider.inbox_next('jobs', 'w', 5, '1 hour')",
    "select postrider.replay_inbox_messages('jobs', \
        array(select event_id from postrider_inbox.jobs where seq % 9 = {i} % 9))",
    "select postrider.skip_inbox_messages('jobs', array(select event_id from postrider_inbox.dlq_jobs limit 3), 'x')",
    "select postrider.inbox_fold('jobs')",
    "select postrider.inbox_fold('jobs', 3)",
    "update postrider.inbox_delta set minute = minute - interval '20 minutes'",
    "begin; insert into postrider_inbox.jobs (event_id) values ('{i}'); rollback",
    "select postrider.inbox_drain('jobs')",
    "truncate postrider_inbox.jobs",
];

#[tokio::test]
async fn the_statistics_are_exact_whatever_changes_the_messages() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_statistics").await;
        world.sql.batch("select postrider.create_inbox('jobs', p_max_retries => 2)").await;
        let mut said = Vec::new();
        for i in 0..250 {
            // TRUNCATE is the last one, and seldom.
            let change = if i % 60 == 59 {
                CHANGES[CHANGES.len() - 1]
            } else {
                CHANGES[fastrand::usize(..CHANGES.len() - 1)]
            };
            world.sql.batch(&change.replace("{i}", &i.to_string())).await;
            said.push(change);
            assert_eq!(world.number(WRONG_NUMBERS).await, 0, "{said:#?}");
            let health = "select count(*) from postrider.inbox_health('jobs') as health(h) \
                where (h ->> 'pending_count')::bigint = (select count(*) from postrider_inbox.pending_jobs) \
                and (h ->> 'dead_letter_count')::bigint = (select count(*) from postrider_inbox.dlq_jobs)";
            assert_eq!(world.number(health).await, 1, "{said:#?}");
        }
    }
}

#[tokio::test]
async fn folding_while_workers_write_keeps_the_statistics_and_leaves_few_rows() {
    let world = InboxDatabase::with_inbox(Version::Pg18, "inbox_folding").await;
    let mut writers = JoinSet::new();
    for writer in 0..3 {
        let sql = world.connect().await;
        writers.spawn(async move {
            for i in 0..60 {
                let insert = format!(
                    "insert into postrider_inbox.jobs (event_id, event_type) \
                     select '{writer} {i} ' || n, 'T' || n from generate_series(1, 3) n"
                );
                sql.batch(&insert).await;
                let done = "select postrider.inbox_done('jobs', array_agg(event_id)) \
                    from postrider.inbox_next('jobs', 'w', 2) having count(*) > 0";
                sql.batch(&format!("begin; {done}; commit")).await;
            }
        });
    }
    let mut folds = JoinSet::new();
    for _ in 0..2 {
        let sql = world.connect().await;
        folds.spawn(async move {
            for _ in 0..60 {
                sql.batch("select postrider.inbox_fold('jobs', 50)").await;
            }
        });
    }
    writers.join_all().await;
    folds.join_all().await;
    assert_eq!(world.health(&["pending_count"]).await, "180");
    assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    world
        .sql
        .batch("update postrider.inbox_delta set minute = minute - interval '11 minutes'")
        .await;
    let deltas = world.number("select count(*) from postrider.inbox_delta").await;
    let less = world.number("select postrider.inbox_fold('jobs')").await;
    assert_eq!(world.number("select count(*) from postrider.inbox_delta").await, 3);
    assert_eq!(deltas - less, 3);
    assert_eq!(world.number(WRONG_NUMBERS).await, 0);
}

#[tokio::test]
async fn a_recount_mends_the_statistics_of_rows_that_no_trigger_saw() {
    let world = InboxDatabase::with_inbox(Version::Pg15, "inbox_recount").await;
    world.add(1..=10).await;
    world
        .sql
        .batch(
            "set session_replication_role = replica;
             delete from postrider_inbox.jobs where event_id = 'm1';
             update postrider_inbox.jobs set processed_at = now() where event_id = 'm2';
             reset session_replication_role",
        )
        .await;
    assert_ne!(world.number(WRONG_NUMBERS).await, 0);
    world.sql.batch("select postrider.inbox_recount('jobs')").await;
    assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    world.sql.batch("select postrider.inbox_fold('jobs'); delete from postrider_inbox.jobs").await;
    assert_eq!(world.number(WRONG_NUMBERS).await, 0);
}

/// A count that deletes the numbers of before while another transaction folds them.
#[tokio::test]
async fn numbers_that_are_folded_while_they_are_counted_again_are_not_doubled() {
    let world = InboxDatabase::with_inbox(Version::Pg15, "inbox_recount_fold").await;
    for call in ["select postrider.inbox_recount('jobs')", "truncate postrider_inbox.jobs"] {
        for i in 1..=10 {
            world.add(i..=i).await;
        }
        let folding = world.database.connect().await;
        folding.batch("begin; select postrider.inbox_fold('jobs')").await;
        let counting = world.database.connect().await;
        let pid = counting.text("select pg_backend_pid()").await.expect("a number");
        let mut counts = tokio::task::JoinSet::new();
        counts.spawn(async move { counting.batch(call).await });
        let waits = format!(
            "select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock'"
        );
        await_that("the count waits", SOON, || async {
            if world.number(&waits).await == 1 { Ok(()) } else { Err("it does not wait") }
        })
        .await;
        // Others do not wait for it, and fold nothing meanwhile.
        assert_eq!(world.number("select postrider.inbox_fold('jobs')").await, 0);
        folding.batch("commit").await;
        counts.join_next().await.expect("a call").expect("no panic");
        assert_eq!(world.number(WRONG_NUMBERS).await, 0, "{call}");
        world.sql.batch("truncate postrider_inbox.jobs").await;
    }
}

/// The oldest pending message is found without reading the dead ones that are older.
#[tokio::test]
async fn health_does_not_read_the_dead_messages() {
    let world = InboxDatabase::with_inbox(Version::Pg15, "inbox_health_dead").await;
    world.add(1..=2000).await;
    world.sql.batch("update postrider_inbox.jobs set dead_at = now() where seq < 2000").await;
    world.sql.batch("vacuum analyze postrider_inbox.jobs").await;
    let plan = "explain (analyze, costs off, timing off, summary off, buffers off)
        select t.received_at from postrider_inbox.jobs t where t.processed_at is null and t.dead_at is null
        order by t.seq limit 1";
    let read = format!(
        "create function explained() returns text language plpgsql as $$
         declare
             r text; v_all text := '';
         begin
             for r in execute $q${plan}$q$ loop v_all := v_all || r || chr(10); end loop;
             return v_all;
         end $$"
    );
    world.sql.batch(&read).await;
    let plan = world.sql.text("select explained()").await.unwrap_or_default();
    assert!(plan.contains("Index") && !plan.contains("Rows Removed"), "{plan}");
}

#[tokio::test]
async fn a_drain_deletes_what_is_processed_for_long_and_never_a_dead_message_by_default() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_drain").await;
        world.add(1..=20).await;
        world
            .sql
            .batch(
                "update postrider_inbox.jobs set processed_at = now() - interval '73 hours' where seq <= 8;
                 update postrider_inbox.jobs set processed_at = now() - interval '71 hours' where seq between 9 and 11;
                 update postrider_inbox.jobs set dead_at = now() - interval '1000 hours' where seq between 12 and 14;
                 update postrider_inbox.jobs set received_at = now() - interval '1000 hours'",
            )
            .await;
        let drain = async |batch: i64| {
            world.number(&format!("select postrider.inbox_drain('jobs', {batch})")).await
        };
        let counts = async || world.health(&["pending_count", "dead_letter_count"]).await;
        assert_eq!((drain(5).await, drain(5).await, drain(5).await), (5, 3, 0));
        assert_eq!(counts().await, "6 3");
        assert_eq!(world.number("select count(*) from postrider_inbox.jobs").await, 12);
        let processed = "select sum(processed) from postrider_inbox.stats_jobs";
        assert_eq!(world.number(processed).await, 3);
        world
            .sql
            .batch("update postrider.inbox set retention_hours = 0, dead_retention_hours = 1001")
            .await;
        assert_eq!(drain(100).await, 0, "0 is for ever");
        // The arguments count in place of what the inbox says, and 0 is for ever.
        let by = async |keep: &str, dead: &str| {
            let call = format!("select postrider.inbox_drain('jobs', 1, {keep}, {dead})");
            world.number(&call).await
        };
        assert_eq!(by("'72 hours'", "'2000 hours'").await, 0);
        world
            .sql
            .batch("update postrider.inbox set retention_hours = 1, dead_retention_hours = 1")
            .await;
        assert_eq!(by("'0'", "'0'").await, 0);
        assert_eq!(by("'70 hours'", "'0'").await, 1);
        world
            .sql
            .batch("update postrider.inbox set retention_hours = 0, dead_retention_hours = 1001")
            .await;
        world.sql.batch("update postrider.inbox set dead_retention_hours = 999").await;
        assert_eq!((drain(2).await, drain(2).await, drain(2).await), (2, 1, 0));
        assert_eq!(counts().await, "6 0");
        assert_eq!(world.number(WRONG_NUMBERS).await, 0);
    }
}

/// A drain every minute must not read all that is processed.
#[tokio::test]
async fn a_drain_reads_no_message_that_it_keeps() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_drain_reads").await;
        let fill = "insert into postrider_inbox.jobs (event_id, processed_at) \
                    select i::text, now() - case when i <= 3 then interval '80 hours' else interval '0' end \
                    from generate_series(1, 5000) i";
        world.sql.batch(fill).await;
        world.sql.batch("analyze postrider_inbox.jobs").await;
        // The statistics of this session are flushed with the end of the next statement.
        let read = async || {
            world.sql.batch("select pg_stat_force_next_flush()").await;
            world.sql.batch("select 1").await;
            let read = "select (select seq_tup_read from pg_stat_user_tables where relid = 'postrider_inbox.jobs'::regclass) \
                        + (select sum(idx_tup_read) from pg_stat_user_indexes where relid = 'postrider_inbox.jobs'::regclass)";
            world.number(read).await
        };
        let before = read().await;
        assert_eq!(world.number("select postrider.inbox_drain('jobs')").await, 3);
        let entries = read().await - before;
        assert!((1..100).contains(&entries), "{entries} on {}", version.major());
    }
}

#[tokio::test]
async fn a_dropped_inbox_leaves_its_table_unless_it_is_to_go_with_it() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_drop").await;
        let left = "select count(*) from pg_class where relnamespace = 'postrider_inbox'::regnamespace \
            and relkind in ('v', 'r')";
        let stored = "select (select count(*) from postrider.inbox) + (select count(*) from postrider.inbox_delta) \
            + (select count(*) from postrider.inbox_order) + (select count(*) from postrider.inbox_wake)";
        for (enable, views) in [
            ("select 1", 3),
            ("select postrider.enable_inbox_ordering('jobs')", 3),
            ("select postrider.enable_inbox_priority('jobs')", 6),
        ] {
            world.sql.batch(enable).await;
            let insert = "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num) values ('a', 'x', 1)";
            world.sql.batch(insert).await;
            assert_eq!(world.number(left).await, 1 + views);
            assert!(world.yes("drop_inbox('jobs')").await);
            assert_eq!(world.number(left).await, 1);
            assert_eq!(world.number(stored).await, 0);
            // The table goes on as a table of its owner, which nothing counts.
            world.sql.batch("delete from postrider_inbox.jobs where event_id = 'a'").await;
            world.sql.batch(&insert.replace("'a'", "'b'")).await;
            assert_eq!(world.number(stored).await, 0);
            world
                .sql
                .batch("drop table postrider_inbox.jobs; select postrider.create_inbox('jobs')")
                .await;
            world.sql.batch(enable).await;
            world.sql.batch(insert).await;
            assert!(world.yes("drop_inbox('jobs', false, true)").await);
            assert_eq!((world.number(left).await, world.number(stored).await), (0, 0));
            assert!(!world.yes("drop_inbox('jobs', true)").await);
            world.sql.batch("select postrider.create_inbox('jobs')").await;
        }
    }
}

/// A table of another program, with names of its own.
const TASKS: &str = "create schema \"Other One\";
    create table \"Other One\".\"Task's\" (\"Key\" uuid primary key default gen_random_uuid(), \"Done At\" timestamptz,
        tries smallint, last_error varchar(200), arrived timestamptz not null default now(),
        kind varchar(20), day date, body text);
    insert into \"Other One\".\"Task's\" (kind) select 'K' || i % 2 from generate_series(1, 10) i";

/// It, by its columns.
const TRACK: &str =
    "enable_inbox_tracking('tasks', '\"Other One\".\"Task''s\"', 'Key', 'Done At', 'tries',
    'last_error', 'arrived', 'kind', p_max_retries => 3, p_retention_hours => 48)";

#[tokio::test]
async fn a_table_of_another_program_is_adopted_and_survives() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_adopt").await;
        world.sql.batch(TASKS).await;
        world.sql.batch(&format!("select postrider.{TRACK}")).await;
        let table = "\"Other One\".\"Task's\"";
        world
            .sql
            .batch(&format!(
                "update {table} set \"Done At\" = now() - interval '49 hours', arrived = now() - interval '50 hours'
                    where ctid in ('(0,1)', '(0,2)');
                 update {table} set \"Done At\" = now(), arrived = now() - interval '10 seconds' where ctid = '(0,3)';
                 update {table} set tries = 3, last_error = 'it broke' where ctid = '(0,4)'"
            ))
            .await;
        let seen = async || {
            let text = "select format('%s %s %s %s', (select count(*) from postrider_inbox.pending_tasks), \
                (select count(*) from postrider_inbox.dlq_tasks), \
                (select concat_ws(' ', sum(pending), sum(dead), sum(processed)) from postrider_inbox.stats_tasks), \
                (select concat_ws(' ', h ->> 'pending_count', h ->> 'dead_letter_count', h ->> 'health_status', \
                    round((h ->> 'avg_processing_time_sec')::numeric)) from postrider.inbox_health('tasks') as x(h)))";
            world.sql.text(text).await.expect("a row")
        };
        assert_eq!(seen().await, "6 1 6 1 3 6 1 degraded 10");
        assert_eq!(world.number("select count(*) from postrider_inbox.stats_tasks").await, 2);
        let dead = "select array_agg(\"Key\"::text)::text from postrider_inbox.dlq_tasks";
        let dead = world.sql.text(dead).await.expect("ids");
        let call = format!("select postrider.replay_inbox_messages('tasks', '{dead}')");
        assert_eq!(world.number(&call).await, 1);
        assert_eq!(seen().await, "7 0 7 0 3 7 0 healthy 10");
        assert_eq!(world.refused("inbox_drain('tasks', p_dead_keep => '1 hour')").await, "PR124");
        assert_eq!(world.number("select postrider.inbox_drain('tasks')").await, 2);
        assert_eq!(world.number(&format!("select count(*) from {table}")).await, 8);
        // Its own workers process it.
        for call in [
            "inbox_next('tasks', 'w')",
            "inbox_done('tasks', array['a'])",
            "inbox_fail('tasks', 'a', 'it broke')",
            "skip_inbox_messages('tasks', array['a'], 'because')",
            "enable_inbox_ordering('tasks')",
            "enable_inbox_priority('tasks')",
            "inbox_recount('tasks')",
        ] {
            assert_eq!(world.refused(call).await, "PR124", "{call}");
        }
        assert_eq!(world.refused(TRACK).await, "PR122");
        assert_eq!(world.refused(&TRACK.replace("'tasks'", "'more'")).await, "PR122", "the table");
        assert_eq!(world.refused("create_inbox('tasks', p_if_not_exists => true)").await, "PR122");
        assert!(world.yes("drop_inbox('tasks', false, true)").await);
        assert_eq!(world.number(&format!("select count(*) from {table}")).await, 8);
        let views = "select count(*) from pg_views where schemaname = 'postrider_inbox'";
        assert_eq!(world.number(views).await, 0);
        world.sql.batch(&format!("select postrider.{TRACK}")).await;
    }
}

#[tokio::test]
async fn a_table_that_does_not_fit_is_not_adopted_and_the_reason_is_told() {
    let world = InboxDatabase::create(Version::Pg17, "inbox_misfit").await;
    world.sql.batch(TASKS).await;
    for (column, other) in [
        ("'Key'", "'key'"),
        ("'Key'", "'body'"),
        ("'Key'", "null"),
        ("'Done At'", "'done_at'"),
        ("'Done At'", "'day'"),
        ("'tries'", "'kind'"),
        ("'last_error'", "'tries'"),
        ("'last_error'", "null"),
        ("'arrived'", "'xmin'"),
        ("'arrived'", "'day'"),
        ("'kind'", "'sort'"),
    ] {
        let call = TRACK.replace(column, other);
        assert_eq!(world.refused(&call).await, "PR123", "{column} {other}");
    }
    world
        .sql
        .batch(
            "create view some_view as select * from \"Other One\".\"Task's\";
             create table others (event_id text, processed_at timestamptz, retry_count int, error text,
                received_at timestamptz, event_type text, day date)",
        )
        .await;
    let track = "enable_inbox_tracking('some', 'others')";
    assert_eq!(world.refused("enable_inbox_tracking('some', 'some_view')").await, "PR123");
    // None of these keeps two messages from having one id.
    for index in [
        "create index one on others (event_id)",
        "create unique index one on others (event_id, day)",
        "create unique index one on others (event_id) where processed_at is null",
        "create unique index one on others (lower(event_id))",
        "alter table others add constraint one unique (event_id) deferrable",
    ] {
        world.sql.batch(index).await;
        assert_eq!(world.refused(track).await, "PR123", "{index}");
        world
            .sql
            .batch("alter table others drop constraint if exists one; drop index if exists one")
            .await;
    }
    world.sql.batch("create unique index one on others (event_id) include (day)").await;
    world.sql.batch(&format!("select postrider.{track}")).await;
    assert!(world.yes("drop_inbox('some')").await);
    // Without types.
    world.sql.batch("alter table others drop column event_type").await;
    assert_eq!(world.refused(track).await, "PR123");
    let track = track.replace(", 'others')", ", 'others', p_event_type_column => null)");
    world
        .sql
        .batch(&format!("select postrider.{track}; insert into others values ('a', null, 0)"))
        .await;
    let stats =
        "select concat_ws(' ', quote_literal(event_type), pending) from postrider_inbox.stats_some";
    assert_eq!(world.sql.text(stats).await.as_deref(), Some("'' 1"));
}

/// A ctid names a row of one table.
#[tokio::test]
async fn a_table_with_partitions_or_children_is_not_adopted_and_later_children_are_left_alone() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_parts").await;
        let columns = "event_id int primary key, processed_at timestamptz, retry_count int not null default 0, \
            error text, received_at timestamptz default now(), event_type text";
        world
            .sql
            .batch(&format!(
                "create table parts ({columns}) partition by range (event_id);
                 create table parts_1 partition of parts for values from (1) to (100);
                 create table parent ({columns});
                 create table child () inherits (parent)"
            ))
            .await;
        for table in ["parts", "parent"] {
            let call = format!("enable_inbox_tracking('jobs', '{table}')");
            assert_eq!(world.refused(&call).await, "PR123", "{table}");
        }
        world
            .sql
            .batch(
                "drop table child;
                 select postrider.enable_inbox_tracking('jobs', 'parent', p_retention_hours => 1);
                 create table child () inherits (parent);
                 insert into parent (event_id, processed_at)
                    select i, now() - interval '3 days' from generate_series(1, 20) i;
                 insert into child (event_id) select i from generate_series(101, 120) i",
            )
            .await;
        assert_eq!(world.number("select postrider.inbox_drain('jobs', 15)").await, 15);
        assert_eq!(world.number("select postrider.inbox_drain('jobs', 15)").await, 5);
        let left = "select format('%s %s', count(*), min(event_id)) from parent";
        assert_eq!(world.sql.text(left).await.as_deref(), Some("20 101"));
    }
}

#[tokio::test]
async fn a_lower_priority_number_comes_first_and_each_tier_has_its_view() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_priority").await;
        world.add(1..=3).await;
        world.sql.batch("select postrider.enable_inbox_priority('jobs')").await;
        world
            .sql
            .batch(
                "insert into postrider_inbox.jobs (event_id, priority)
                    values ('low', 9), ('high', 1), ('early', 5), ('higher', 0), ('late', 5);
                 insert into postrider_inbox.jobs (event_id) values ('default')",
            )
            .await;
        let order = ["higher", "high", "m1", "m2", "m3", "early", "late", "default", "low"];
        assert_eq!(world.next("w", 100, None).await.ids, order);
        let tiers = "select format('%s %s %s', (select count(*) from postrider_inbox.tier_jobs_critical), \
            (select count(*) from postrider_inbox.tier_jobs_normal), \
            (select count(*) from postrider_inbox.tier_jobs_background))";
        assert_eq!(world.sql.text(tiers).await.as_deref(), Some("1 6 1"));
        // In lease mode too, and a message that has to wait does not hold up those behind it.
        let first = world.next("w", 2, LEASE).await;
        assert_eq!(first.ids, ["higher", "high"]);
        world
            .sql
            .batch(&format!("select postrider.{}", fail("high", first.claim, "'1 hour'")))
            .await;
        assert_eq!(world.next("w", 2, LEASE).await.ids, ["m1", "m2"]);

        assert_eq!(world.refused("enable_inbox_priority('jobs')").await, "PR125");
        assert_eq!(world.refused("enable_inbox_ordering('jobs')").await, "PR125");
        assert!(world.yes("disable_inbox_priority('jobs')").await);
        assert_eq!(world.next("w", 2, None).await.ids, ["m3", "low"]);
        let views = "select count(*) from pg_views where schemaname = 'postrider_inbox'";
        assert_eq!(world.number(views).await, 3);
        world.sql.batch("insert into postrider_inbox.jobs (event_id) values ('none')").await;
        let tiers = "'{\"top\": [-5, -1], \"rest\": [0, 9]}', 0::smallint";
        world.sql.batch(&format!("select postrider.enable_inbox_priority('jobs', {tiers})")).await;
        let none = "select priority from postrider_inbox.tier_jobs_rest where event_id = 'none'";
        assert_eq!(world.number(none).await, 0);
        world
            .sql
            .batch("update postrider_inbox.jobs set aggregate_id = 'x', sequence_num = seq")
            .await;
        assert!(world.yes("disable_inbox_priority('jobs')").await);
        world.sql.batch("select postrider.enable_inbox_ordering('jobs')").await;
        assert_eq!(world.refused("enable_inbox_priority('jobs')").await, "PR125");
        assert_eq!(world.refused("enable_inbox_ordering('jobs')").await, "PR125");
    }
}

/// Inbox `a` with tier `critical`, and inbox `a_critical`, in one schema.
#[tokio::test]
async fn an_inbox_does_not_replace_what_another_one_has() {
    let world = InboxDatabase::create(Version::Pg17, "inbox_views").await;
    let longest = "b".repeat(47);
    for (name, other) in [("a", "a_critical"), (longest.as_str(), "c")] {
        let create = format!(
            "select postrider.create_inbox('{name}'), postrider.enable_inbox_priority('{name}');
             select postrider.create_inbox('{other}'), postrider.enable_inbox_priority('{other}');
             insert into postrider_inbox.{name} (event_id, priority) values ('x', 1)"
        );
        world.sql.batch(&create).await;
        let views = format!(
            "select (select count(*) from postrider_inbox.tier_{name}_critical) * 100 \
             + (select count(*) from postrider_inbox.tier_{name}_background) * 10 \
             + (select count(*) from postrider_inbox.pending_{other})"
        );
        assert_eq!(world.number(&views).await, 100);
        assert!(world.yes(&format!("drop_inbox('{other}', false, true)")).await);
        let view = format!("select count(*) from postrider_inbox.tier_{name}_critical");
        assert_eq!(world.number(&view).await, 1);
    }
    world.sql.batch("create table postrider_inbox.d (n int)").await;
    assert_eq!(world.refused("create_inbox('d')").await, "PR122");
    assert_eq!(world.number("select count(*) from postrider.inbox where name = 'd'").await, 0);
}
