//! `log_feed`: the log of an application without a relay.

use super::{GroupDatabase, OUTBOX, number, refused, rows};
use crate::server::Version;

const INSERT: &str = "insert into public.outbox (aggregate_type, aggregate_id, event_type)
    select 'order', (i % 7)::text, 'Written' from generate_series(1, 1000) i";

/// Children of three events: a call needs more of them than there are ahead, and one that asks for too many moves as
/// many events as 16 children hold.
#[tokio::test]
async fn as_many_children_are_created_as_the_events_need() {
    for (rows_per_child, first) in [(3_i64, 48), (300, 1_000), (999, 1_000), (1_000, 1_000)] {
        let log = format!("select postrider.create_log('orders', 4, {rows_per_child})");
        let world = GroupDatabase::with_log(Version::Pg16, "feed_children", &log).await;
        world.sql.batch(INSERT).await;
        let feed = "select postrider.log_feed('orders', 'public.outbox', 1000)";
        assert_eq!(world.number(feed).await, first, "{rows_per_child}");
        while world.number(feed).await > 0 {}
        assert_eq!(world.number("select count(*) from public.outbox").await, 0);
        let read = "select count(*) from postrider.log_read('orders', 0, 100000)";
        assert_eq!(world.number(read).await, 1_000);
    }
}

#[tokio::test]
async fn one_of_several_calls_at_a_time_moves_rows() {
    let world = GroupDatabase::create(Version::Pg17, "feed_at_a_time").await;
    let other = world.connect().await;
    let feed = "select postrider.log_feed('orders', 'public.outbox', 10)";
    // The very first call makes the writer, and another one waits for that.
    assert_eq!(world.number(feed).await, 0);
    world.sql.batch(INSERT).await;
    world.sql.batch("begin").await;
    assert_eq!(world.number(feed).await, 10);
    assert_eq!(number(&other, feed).await, 0);
    world.sql.batch("rollback").await;
    assert_eq!(number(&other, feed).await, 10);
    let read = "select count(*), min(seq), max(seq) from postrider.log_read('orders', 0)";
    assert_eq!(rows(&world.sql, read).await, [["10", "1", "10"].map(|n| Some(n.to_owned()))]);
}

#[tokio::test]
async fn bad_arguments_of_logs_are_refused_with_a_hint() {
    let world = GroupDatabase::create(Version::Pg18, "feed_args").await;
    world.sql.batch("select postrider.create_log('refs', p_kind => 'reference')").await;
    for (call, code) in [
        ("log_feed('orders', 'public.outbox', 0)", "22023"),
        ("log_feed('orders', 'public.outbox', 100001)", "22023"),
        ("log_feed('orders', 'public.outbox', null)", "22023"),
        ("log_feed('orders', null)", "22023"),
        ("log_feed('refs', 'public.outbox')", "22023"),
        ("log_feed('nothing', 'public.outbox')", "PR110"),
        ("log_feed(null, 'public.outbox')", "PR110"),
        ("log_read('orders', -1)", "22023"),
        ("log_read('orders', null)", "22023"),
        ("log_read('orders', 0, null)", "22023"),
        ("log_read('orders', 0, 0)", "22023"),
        ("log_read('nothing', 0)", "PR110"),
        ("log_extend('orders', -1)", "22023"),
        ("log_extend('orders', null)", "22023"),
        ("log_extend('nothing')", "PR110"),
        ("drop_log('nothing')", "PR110"),
        ("create_log('orders')", "PR111"),
        ("create_log(null)", "22023"),
        ("create_log('')", "22023"),
        ("create_log('l', 0)", "22023"),
        ("create_log('l', 1025)", "22023"),
        ("create_log('l', null)", "22023"),
        ("create_log('l', 4, 0)", "22023"),
        ("create_log('l', 4, null)", "22023"),
        ("create_log('l', 4, 10, null)", "22023"),
        ("create_log('l', 4, 10, 'both')", "22023"),
    ] {
        assert_eq!(
            refused(&world.sql, &format!("select * from postrider.{call}")).await,
            code,
            "{call}"
        );
    }
    // A log has one writer.
    world.sql.batch("select postrider.log_feed('orders', 'public.outbox')").await;
    world.sql.batch(&OUTBOX.replace("public.outbox", "public.second")).await;
    let second = "select postrider.log_feed('orders', 'public.second')";
    assert_eq!(refused(&world.sql, second).await, "PR102");
    assert_eq!(world.number("select count(*) from postrider.event_log").await, 2);
}

/// In an older snapshot a call would give the numbers of events that another call has appended since.
#[tokio::test]
async fn rows_are_moved_in_read_committed_only() {
    let world = GroupDatabase::create(Version::Pg15, "feed_isolation").await;
    for level in ["repeatable read", "serializable"] {
        let feed = format!(
            "begin isolation level {level}; select postrider.log_feed('orders', 'public.outbox')"
        );
        assert_eq!(refused_alone(&world, &feed).await, "25000");
    }
}

async fn refused_alone(world: &GroupDatabase, text: &str) -> String {
    let code = refused(&world.sql, text).await;
    world.sql.batch("rollback").await;
    code
}

/// A reader with an offset of its own passes over nothing: what is missing raises.
#[tokio::test]
async fn log_read_raises_for_events_that_are_missing() {
    let log = "select postrider.create_log('orders', 4, 100)";
    for (version, change) in [
        (Version::Pg15, "truncate postrider_log.log_orders_1"),
        (
            Version::Pg17,
            "alter table postrider_log.log_orders detach partition postrider_log.log_orders_1",
        ),
        (Version::Pg18, "delete from postrider_log.log_orders where seq between 100 and 199"),
    ] {
        let world = GroupDatabase::with_log(version, "feed_gap", log).await;
        world.append(350, 10).await;
        world.sql.batch(change).await;
        for (after, max, code) in [
            (0, 99, None),
            (0, 100, Some("PR103")),
            (0, 1_000, Some("PR103")),
            (99, 10, Some("PR103")),
            (150, 10, Some("PR103")),
            (150, 1_000, Some("PR103")),
            (198, 1, Some("PR103")),
            (199, 10, None),
            (199, 1_000, None),
            (349, 1, None),
            (350, 10, None),
            (1_000, 10, None),
        ] {
            let read = format!("select * from postrider.log_read('orders', {after}, {max})");
            match code {
                Some(code) => assert_eq!(refused(&world.sql, &read).await, code, "{read}"),
                None => drop(rows(&world.sql, &read).await),
            }
        }
    }
}
