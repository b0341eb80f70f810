//! The inbox in the consumer's transaction: by position, by id, and both.

use super::{InboxDatabase, quoted, yes};
use crate::groups::{number, refused};
use crate::server::{Client, Version};
use tokio::task::JoinSet;

const AGGREGATES: usize = 20;
const EVENTS: usize = 1_000;

fn position(history: u32, lsn: u64, index: u32) -> String {
    format!("{history:08X}-{lsn:016X}-{index:08X}")
}

/// Of source `s` and aggregate `x`, in one history.
fn advance(lsn: u64) -> String {
    format!("inbox_advance('c', 's', 'x', '{}')", position(0x68F1_A2B3, lsn, 0))
}

/// `at` is an expression.
fn once(id: &str, at: &str) -> String {
    format!("inbox_once('c', 's', {}, {at})", quoted(id))
}

fn is_new(id: &str, position: Option<&str>, history: Option<&str>) -> String {
    let or_null = |value: Option<&str>| value.map_or_else(|| "null".to_owned(), quoted);
    format!(
        "inbox_is_new('c', 's', 'x', {}, {}, {})",
        quoted(id),
        or_null(position),
        or_null(history)
    )
}

/// Calls until there is nothing more to forget.
async fn forget(sql: &Client, keep: &str) {
    let call = format!("inbox_forget('{keep}')");
    for _ in 0..40 {
        if !yes(sql, &call).await {
            return;
        }
    }
    panic!("there is no end to {call}");
}

/// An expression: noon of a day, counted from the first one that is remembered.
async fn noon(world: &InboxDatabase, day: i64) -> String {
    let first = world.number("select last_value from postrider.inbox_first_day").await;
    format!("timestamptz '2000-01-01 12:00:00+00' + {} * interval '24 hours'", first + day)
}

#[tokio::test]
async fn a_position_is_new_once_for_each_consumer_source_and_aggregate() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_position").await;
        assert!(world.yes(&advance(100)).await);
        assert!(!world.yes(&advance(100)).await, "the same one again");
        assert!(!world.yes(&advance(99)).await, "an earlier one");
        assert!(world.yes(&advance(101)).await);
        let at = position(0x68F1_A2B3, 50, 0);
        for other in ["'d', 's', 'x'", "'c', 't', 'x'", "'c', 's', 'y'", "'c', 's', ''"] {
            let call = format!("inbox_advance({other}, '{at}')");
            assert!(world.yes(&call).await, "{call}");
            assert!(!world.yes(&call).await, "{call}");
        }
        // Events of one transaction differ in the last part alone.
        let call = |index| format!("inbox_advance('c', 's', 'z', '{}')", position(1, 0xFF, index));
        assert!(world.yes(&call(9)).await);
        assert!(world.yes(&call(10)).await);
        assert!(!world.yes(&call(9)).await);
        assert_eq!(world.number("select count(*) from postrider.inbox_position").await, 6);
    }
}

#[tokio::test]
async fn a_position_of_a_later_history_is_new_although_its_lsn_is_lower() {
    let world = InboxDatabase::create(Version::Pg17, "inbox_history").await;
    let call =
        |history, lsn| format!("inbox_advance('c', 's', 'x', '{}')", position(history, lsn, 0));
    assert!(world.yes(&call(0x0FFF_FFFF, 0xFFFF_0000_0000)).await);
    assert!(world.yes(&call(0xA000_0000, 1)).await);
    assert!(!world.yes(&call(0x0FFF_FFFF, 0xFFFF_0000_0001)).await, "the former history is over");
}

#[tokio::test]
async fn a_rollback_gives_a_position_and_an_id_back() {
    let world = InboxDatabase::create(Version::Pg15, "inbox_rollback").await;
    let at = noon(&world, 9_500).await;
    for call in [advance(1), advance(2), once("a", "null"), once("a", &at)] {
        world.sql.batch("begin").await;
        assert!(world.yes(&call).await, "{call}");
        assert!(!world.yes(&call).await, "{call}");
        world.sql.batch("rollback").await;
        assert!(world.yes(&call).await, "after a rollback: {call}");
        assert!(!world.yes(&call).await, "{call}");
    }
}

/// Two callers at once: the second one waits, and acts if the first one does not.
#[tokio::test]
async fn a_caller_waits_for_another_one_with_the_same_message() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_two").await;
        let at = noon(&world, 9_500).await;
        let fresh = "inbox_advance('c', 's', 'fresh', '00000001-0000000000000001-00000001')";
        let calls = [fresh.to_owned(), advance(2), once("a", "null"), once("a", &at)];
        for call in &calls {
            for (end, answer) in [("rollback", "t"), ("commit", "f")] {
                world
                    .sql
                    .batch(
                        "delete from postrider.inbox_seen; delete from postrider.inbox_seen_undated;
                         delete from postrider.inbox_position",
                    )
                    .await;
                assert!(world.yes(&advance(1)).await);
                world.sql.batch("begin").await;
                assert!(world.yes(call).await, "{call}");
                let other = world.waiting(call).await;
                world.sql.batch(end).await;
                assert_eq!(other.end().await, Ok(Some(answer.to_owned())), "{end}: {call}");
            }
        }
    }
}

#[tokio::test]
async fn of_racers_with_one_message_one_wins() {
    let world = InboxDatabase::create(Version::Pg18, "inbox_race").await;
    let at = noon(&world, 9_600).await;
    for round in 1..=20 {
        let id = format!("r{round}");
        for call in [advance(round), once(&id, "null"), once(&id, &at)] {
            let mut racers = JoinSet::new();
            for _ in 0..8 {
                let (sql, call) = (world.connect().await, call.clone());
                racers.spawn(async move { yes(&sql, &call).await });
            }
            let won = racers.join_all().await.into_iter().filter(|won| *won).count();
            assert_eq!(won, 1, "{call}");
        }
    }
}

#[tokio::test]
async fn an_old_snapshot_gets_40001_and_repeats() {
    for level in ["repeatable read", "serializable"] {
        let world = InboxDatabase::create(Version::Pg17, "inbox_snapshot").await;
        let at = noon(&world, 9_500).await;
        world.yes(&advance(1)).await;
        let fresh = "inbox_advance('c', 's', 'fresh', '00000001-0000000000000001-00000001')";
        for call in [advance(3), fresh.to_owned(), once("a", "null"), once("a", &at)] {
            let old = world.connect().await;
            old.batch(&format!("begin isolation level {level}")).await;
            number(&old, "select count(*) from postrider.inbox").await;
            assert!(world.yes(&call).await, "{call}");
            assert_eq!(refused(&old, &format!("select postrider.{call}")).await, "40001");
            old.batch(&format!("rollback; begin isolation level {level}")).await;
            assert!(!yes(&old, &call).await, "{call}");
            old.batch("commit").await;
        }
    }
}

/// LONG is a name of 201 bytes, HUGE a text of 1,001 bytes.
const OUT_OF_BOUNDS: &[&str] = &[
    "inbox_advance(null, 's', 'x', 'AT')",
    "inbox_advance('', 's', 'x', 'AT')",
    "inbox_advance('LONG', 's', 'x', 'AT')",
    "inbox_advance('c', null, 'x', 'AT')",
    "inbox_advance('c', '', 'x', 'AT')",
    "inbox_advance('c', 'LONG', 'x', 'AT')",
    "inbox_advance('c', 's', null, 'AT')",
    "inbox_advance('c', 's', 'HUGE', 'AT')",
    "inbox_advance('c', 's', 'x', null)",
    "inbox_advance('c', 's', 'x', '')",
    "inbox_advance('c', 's', 'x', '68F1A2B3')",
    "inbox_advance('c', 's', 'x', '68f1a2b3-0000000001a2b3c8-00000000')",
    "inbox_advance('c', 's', 'x', 'AT0')",
    "inbox_advance('c', 's', 'x', E'AT\\n')",
    "inbox_once(null, 's', 'i')",
    "inbox_once('', 's', 'i')",
    "inbox_once('LONG', 's', 'i')",
    "inbox_once('c', null, 'i')",
    "inbox_once('c', 'LONG', 'i', now())",
    "inbox_once('c', 's', null)",
    "inbox_once('c', 's', 'HUGE')",
    "inbox_once('c', 's', 'i', 'infinity')",
    "inbox_once('c', 's', 'i', '-infinity')",
    "inbox_is_new('c', 's', 'x', 'i', null, null)",
    "inbox_is_new('c', 's', 'x', null, 'AT', null)",
    "inbox_is_new('c', 's', 'x', 'i', 'nonsense', '68F1A2B3')",
    "inbox_is_new('c', 's', 'x', 'i', null, '68f1a2b3')",
    "inbox_is_new('c', 's', 'x', 'i', '68F1A2B3-', null)",
    "inbox_is_new('c', 's', null, 'i', 'AT', null)",
    "inbox_is_new('c', 's', null, 'i', null, '68F1A2B3')",
    "inbox_is_new(null, 's', 'x', 'i', null, '68F1A2B3')",
    "inbox_forget(null)",
    "inbox_forget('23 hours')",
    "inbox_forget('29 days')",
    "inbox_forget('1 day', 0)",
    "inbox_forget('1 day', null)",
];

#[tokio::test]
async fn arguments_out_of_bounds_are_refused_with_a_hint_and_change_nothing() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_args").await;
        let (long, huge, at) = ("x".repeat(201), "y".repeat(1_001), position(1, 1, 1));
        for call in OUT_OF_BOUNDS {
            let text = call.replace("LONG", &long).replace("HUGE", &huge).replace("AT", &at);
            assert_eq!(world.refused(&text).await, "22023", "{call}");
        }
        let kept = "select (select count(*) from postrider.inbox_position) \
            + (select count(*) from postrider.inbox_seen) + (select count(*) from postrider.inbox_seen_undated)";
        assert_eq!(world.number(kept).await, 0);
        // What is at the bound is taken, whatever the text is.
        let name = quoted(&format!("it's \\ %s \"グ{}", "z".repeat(185)));
        let key = quoted(&"k".repeat(1_000));
        assert!(world.yes(&format!("inbox_advance({name}, {name}, {key}, '{at}')")).await);
        assert!(world.yes(&format!("inbox_once({name}, {name}, {key}, now())")).await);
        assert!(world.yes(&format!("inbox_once({name}, {name}, {key})")).await);
    }
}

/// A worker delivers all events in their order, goes back now and then, and rolls back now and then.
async fn deliver(sql: Client) {
    let mut event = 0;
    while event < EVENTS {
        let number = u32::try_from(event).expect("small");
        let call = format!(
            "inbox_advance('c', 's', '{}', '{}')",
            event % AGGREGATES,
            position(7, u64::from(number / 3), number % 3)
        );
        let effect = format!(
            "insert into effect (aggregate, n) select {}, {} from (select postrider.{call} as yes offset 0) x \
             where yes",
            event % AGGREGATES,
            event / AGGREGATES
        );
        let back = match fastrand::u8(..100) {
            0..4 => {
                sql.batch(&format!("begin; {effect}; rollback")).await;
                fastrand::usize(..6)
            }
            4 => {
                sql.batch(&effect).await;
                fastrand::usize(..80)
            }
            _ => {
                sql.batch(&effect).await;
                event += 1;
                0
            }
        };
        event = event.saturating_sub(back);
    }
}

#[tokio::test]
async fn events_that_four_workers_deliver_again_and_again_have_one_effect_in_their_order() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_workers").await;
        let table =
            "create table effect (id bigint generated always as identity, aggregate int, n int)";
        world.sql.batch(table).await;
        let mut workers = JoinSet::new();
        for _ in 0..4 {
            workers.spawn(deliver(world.connect().await));
        }
        workers.join_all().await;
        let effects =
            "select format('%s %s', count(*), count(distinct (aggregate, n))) from effect";
        assert_eq!(world.sql.text(effects).await.as_deref(), Some("1000 1000"));
        let swapped = "select count(*) from (select n, row_number() over (partition by aggregate order by id) - 1 as i \
            from effect) x where n <> i";
        assert_eq!(world.number(swapped).await, 0);
    }
}

#[tokio::test]
async fn an_id_is_new_once_for_each_consumer_and_source_with_and_without_a_time() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_id").await;
        for at in ["null", "timestamptz '2026-03-29 00:59:59.999999+00'"] {
            assert!(world.yes(&once("a", at)).await);
            assert!(!world.yes(&once("a", at)).await);
            assert!(world.yes(&once("b", at)).await);
            for other in ["'d', 's'", "'c', 't'"] {
                let call = format!("inbox_once({other}, 'a', {at})");
                assert!(world.yes(&call).await, "{call}");
                assert!(!world.yes(&call).await, "{call}");
            }
        }
        // The time is that of the message, and the session's time zone does not change its day.
        world.sql.batch("set timezone = 'Pacific/Kiritimati'").await;
        assert!(!world.yes(&once("a", "timestamptz '2026-03-28 19:59:59.999999-05'")).await);
        assert!(world.yes(&once("a", "timestamptz '2026-03-29 01:00:00+00'")).await);
    }
}

#[tokio::test]
async fn a_message_older_than_what_is_remembered_raises_pr120_and_leaves_nothing() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_old").await;
        forget(&world.sql, "7 days").await;
        let (first, before) = (noon(&world, 0).await, noon(&world, -1).await);
        assert_eq!(world.refused(&once("a", &before)).await, "PR120");
        assert_eq!(world.refused(&once("a", "timestamptz '1999-12-31'")).await, "PR120");
        assert_eq!(world.refused(&once("a", "timestamptz '4713-01-01 BC'")).await, "PR120");
        assert!(world.yes(&once("a", &first)).await);
        assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 1);
        // More time brings nothing back, and what is remembered stays.
        forget(&world.sql, "20 days").await;
        assert_eq!(world.refused(&once("a", &before)).await, "PR120");
        assert!(!world.yes(&once("a", &first)).await);
        forget(&world.sql, "6 days").await;
        assert_eq!(world.refused(&once("a", &first)).await, "PR120");
        assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 0);
    }
}

/// A repetition that waits behind the TRUNCATE finds its id forgotten: it must not act again.
#[tokio::test]
async fn a_message_that_waits_for_inbox_forget_raises_pr120() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_forgets").await;
        forget(&world.sql, "2 days").await;
        let at = noon(&world, 0).await;
        assert!(world.yes(&once("a", &at)).await);
        world.sql.batch("begin").await;
        world.yes("inbox_forget('1 day')").await;
        let repetition = world.waiting(&once("a", &at)).await;
        let other = world.waiting(&once("b", &at)).await;
        world.sql.batch("commit").await;
        assert_eq!(repetition.end().await, Err("PR120".to_owned()));
        assert_eq!(other.end().await, Err("PR120".to_owned()));
        assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 0);
    }
}

/// The other way round: a consumer has a message in hand when its day is over.
#[tokio::test]
async fn inbox_forget_waits_for_a_message_in_hand() {
    let world = InboxDatabase::create(Version::Pg17, "inbox_in_hand").await;
    forget(&world.sql, "3 days").await;
    let at = noon(&world, 0).await;
    assert!(world.yes(&once("done", &at)).await);
    world.sql.batch("begin").await;
    assert!(world.yes(&once("a", &at)).await);
    let forgets = world.waiting("inbox_forget('2 days')").await;
    // The first day is raised before the lock is there, and holds for whoever has the lock already.
    assert_eq!(world.refused(&once("b", &at)).await, "PR120");
    world.sql.batch("rollback").await;
    assert!(forgets.end().await.is_ok());
    assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 0);
}

/// The day stays refused, and the next call forgets it.
#[tokio::test]
async fn inbox_forget_that_gives_up_its_wait_forgets_later() {
    let world = InboxDatabase::create(Version::Pg18, "inbox_gives_up").await;
    forget(&world.sql, "2 days").await;
    let at = noon(&world, 0).await;
    assert!(world.yes(&once("done", &at)).await);
    let consumer = world.connect().await;
    consumer.batch("begin").await;
    assert!(yes(&consumer, &once("a", &at)).await);
    world.sql.batch("set lock_timeout = '50ms'").await;
    assert_eq!(world.refused("inbox_forget('1 day')").await, "55P03");
    assert_eq!(world.refused(&once("b", &at)).await, "PR120");
    consumer.batch("commit").await;
    assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 2);
    forget(&world.sql, "1 day").await;
    assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 0);
}

#[tokio::test]
async fn inbox_forget_keeps_the_newer_day_of_a_partition_that_two_days_share() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_share").await;
        forget(&world.sql, "28 days").await;
        let first = world.number("select last_value from postrider.inbox_first_day").await;
        let (old, new) = (noon(&world, 5).await, noon(&world, 37).await);
        let alone = noon(&world, 6).await;
        for at in [&old, &new, &alone] {
            assert!(world.yes(&once("a", at)).await);
        }
        let slots = "select count(distinct slot) from postrider.inbox_seen";
        assert_eq!(world.number(slots).await, 2);
        forget(&world.sql, "20 days").await;
        assert!(
            world.number("select last_value from postrider.inbox_first_day").await >= first + 8
        );
        assert!(!world.yes(&once("a", &new)).await, "day d + 32 is remembered");
        assert_eq!(world.refused(&once("a", &old)).await, "PR120");
        assert_eq!(world.refused(&once("a", &alone)).await, "PR120");
        assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 1);
    }
}

/// After a month in which nobody forgot, each partition is emptied once.
#[tokio::test]
async fn inbox_forget_makes_up_for_a_long_pause() {
    let world = InboxDatabase::create(Version::Pg17, "inbox_pause").await;
    forget(&world.sql, "28 days").await;
    // As if that had been in another year.
    world
        .sql
        .batch(
            "update postrider.inbox_sweep set swept_day = swept_day - 400;
             select setval('postrider.inbox_first_day', last_value - 400) from postrider.inbox_first_day",
        )
        .await;
    for day in 0..60 {
        assert!(world.yes(&once("a", &noon(&world, day).await)).await);
    }
    assert_eq!(world.number("select count(distinct slot) from postrider.inbox_seen").await, 32);
    forget(&world.sql, "1 day").await;
    assert_eq!(world.number("select count(*) from postrider.inbox_seen").await, 0);
    assert!(world.yes(&once("a", &noon(&world, 1).await)).await);
}

#[tokio::test]
async fn ids_without_a_time_are_forgotten_after_it_by_their_arrival() {
    let world = InboxDatabase::create(Version::Pg15, "inbox_undated").await;
    for id in ["a", "b", "c", "d", "e"] {
        assert!(world.yes(&once(id, "null")).await);
    }
    world
        .sql
        .batch(
            "update postrider.inbox_seen_undated set seen_at = now() - interval '49 hours' \
             where message_id in ('a', 'b', 'c')",
        )
        .await;
    forget(&world.sql, "3 days").await;
    assert_eq!(world.number("select count(*) from postrider.inbox_seen_undated").await, 5);
    // Not more than p_max at a time.
    forget(&world.sql, "28 days").await;
    for left in [4, 3, 2, 2] {
        world.yes("inbox_forget('2 days', 1)").await;
        assert_eq!(world.number("select count(*) from postrider.inbox_seen_undated").await, left);
    }
    assert!(!world.yes(&once("d", "null")).await);
    assert!(world.yes(&once("a", "null")).await);
}

#[tokio::test]
async fn a_streamed_record_and_its_repetition_without_a_position_act_once() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::create(version, "inbox_is_new").await;
        let (history, other) = ("68F1A2B3", "68F1A2B4");
        let first = position(0x68F1_A2B3, 10, 0);
        assert!(world.yes(&is_new("1", Some(&first), None)).await);
        assert!(!world.yes(&is_new("1", Some(&first), None)).await);
        assert!(!world.yes(&is_new("1", None, Some(history))).await, "a replay has no position");
        // The other way round.
        assert!(world.yes(&is_new("2", None, Some(history))).await);
        let second = position(0x68F1_A2B3, 20, 0);
        assert!(!world.yes(&is_new("2", Some(&second), Some(history))).await);
        let third = position(0x68F1_A2B3, 30, 0);
        assert!(world.yes(&is_new("3", Some(&third), Some(history))).await);
        // Another history has other events, also with the same ids: those of a restored database.
        assert!(world.yes(&is_new("1", None, Some(other))).await);
        let fourth = position(0x68F1_A2B4, 1, 0);
        assert!(world.yes(&is_new("2", Some(&fourth), None)).await);
        // The id is forgotten some time, the position never.
        world.sql.batch("truncate postrider.inbox_seen_undated").await;
        assert!(!world.yes(&is_new("3", Some(&third), None)).await);
    }
}

/// Operators, functions and tables that a caller finds first by its path change nothing.
#[tokio::test]
async fn a_hostile_path_is_not_followed() {
    for version in [Version::Pg15, Version::Pg18] {
        let world = InboxDatabase::with_inbox(version, "inbox_path").await;
        world
            .sql
            .batch(
                "create schema bad;
                 create function bad.bad(text, text) returns boolean language plpgsql as
                    $$ begin raise exception 'hijacked'; end $$;
                 create operator bad.< (function = bad.bad, leftarg = text, rightarg = text);
                 create operator bad.~ (function = bad.bad, leftarg = text, rightarg = text);
                 create operator bad.|| (function = bad.bad, leftarg = text, rightarg = text);
                 create function bad.clock_timestamp() returns timestamptz language plpgsql as
                    $$ begin raise exception 'hijacked'; end $$;
                 create function bad.octet_length(text) returns int language plpgsql as
                    $$ begin raise exception 'hijacked'; end $$;
                 create temporary table inbox_position (consumer text);
                 create temporary table jobs (event_id text);
                 set search_path = bad, pg_temp, pg_catalog, postrider, postrider_inbox",
            )
            .await;
        assert!(world.sql.simple_query("select 'a'::text < 'b'::text").await.is_err());
        assert!(world.yes(&advance(1)).await);
        assert!(world.yes(&once("a", "now()")).await);
        assert!(world.yes(&once("a", "null")).await);
        assert!(world.yes(&is_new("1", None, Some("68F1A2B3"))).await);
        forget(&world.sql, "1 day").await;
        world.sql.batch("select postrider.enable_inbox_ordering('jobs')").await;
        world
            .sql
            .batch(
                "insert into postrider_inbox.jobs (event_id, aggregate_id, sequence_num)
                    values ('a', 'x', 1), ('b', 'x', 2);
                 select postrider.inbox_next('jobs', 'w');
                 select postrider.inbox_done('jobs', array['a']);
                 select postrider.inbox_fail('jobs', 'b', 'it broke');
                 select postrider.replay_inbox_messages('jobs', array['b']);
                 select postrider.skip_inbox_messages('jobs', array['b'], 'not needed');
                 select postrider.inbox_ordering_gaps('jobs'), postrider.inbox_all_gaps('jobs');
                 select postrider.inbox_health('jobs'), postrider.inbox_drain('jobs');
                 select * from postrider_inbox.stats_jobs;
                 select postrider.disable_inbox_ordering('jobs'), postrider.enable_inbox_priority('jobs');
                 select postrider.drop_inbox('jobs', false, true)",
            )
            .await;
    }
}
