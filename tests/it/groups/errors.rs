//! What the functions of logs and groups raise, word for word: `docs/bad-input/consumer-groups.md`.

use super::{GroupDatabase, commit_text};
use crate::answers::{Answer, answer_alone};
use crate::server::{Client, Version};

/// The answer to a statement that fails.
async fn raised(sql: &Client, statement: &str) -> Answer {
    let error = sql.simple_query(statement).await.err();
    let error = error.unwrap_or_else(|| panic!("it succeeded: {statement}"));
    let error = error.as_db_error().unwrap_or_else(|| panic!("{statement}: {error:?}")).clone();
    // A transaction that was begun before is over.
    sql.batch("rollback").await;
    let says = format!("SQLSTATE {}: {}", error.code().code(), error.message());
    // PostgreSQL itself raises 40001 too, without one.
    let hint = error.hint().filter(|hint| !hint.is_empty());
    assert!(hint.is_some() || error.code().code() == "40001", "no hint: {statement}: {error:?}");
    let (means, remedy) = (error.detail().unwrap_or_default(), hint.unwrap_or_default());
    Answer::said(&says, means, remedy).then("raises")
}

/// A log of 300 events in children of 100, and three groups that read it.
async fn three_groups(test: &str) -> GroupDatabase {
    let log = "select postrider.create_log('orders', 4, 100)";
    let world = GroupDatabase::with_log(Version::Pg17, test, log).await;
    world.append(300, 20).await;
    for group in ["billing", "slow", "search"] {
        world.group(group).await;
    }
    world
}

async fn raises(world: &GroupDatabase, input: &str, statement: &str) {
    answer_alone(input, raised(&world.sql, statement).await);
}

#[tokio::test]
async fn calls_with_a_wrong_argument_say_what_is_wrong() {
    let world = three_groups("group_errors").await;
    for (input, call) in [
        ("create a group on a log that does not exist", "create_consumer_group('mail', 'order')"),
        ("create a group that exists", "create_consumer_group('billing', 'orders')"),
        ("poll of a group that does not exist", "poll_outbox('biling', 'worker-1')"),
        ("poll for more events than a poll may have", "poll_outbox('billing', 'worker-1', 100000)"),
        ("a consumer without a name", "poll_outbox('billing', '')"),
        ("drop of a log that has groups", "drop_log('orders')"),
        ("create a log that exists", "create_log('orders')"),
        ("log_feed into a log that does not exist", "log_feed('order', 'public.outbox')"),
    ] {
        raises(&world, input, &format!("select * from postrider.{call}")).await;
    }
}

#[tokio::test]
async fn commits_that_are_refused_say_why() {
    let world = three_groups("group_leases").await;
    let batch = world.poll("billing", "worker-1", 50).await;
    let commit = |consumer: &str, end: i64| commit_text("billing", consumer, end, batch.lease);
    let end = batch.end();
    raises(&world, "commit of the lease of another consumer", &commit("worker-2", end)).await;
    raises(&world, "commit of an event behind the lease", &commit("worker-1", end + 1)).await;
    world.run_out("worker-1").await;
    let other = world.poll("billing", "worker-2", 500).await;
    raises(
        &world,
        "commit of a lease that ran out, and that another consumer has taken",
        &commit("worker-1", end),
    )
    .await;
    let extend =
        format!("select postrider.extend_lease('billing', 'worker-1', 30, {})", batch.lease);
    raises(&world, "extend a lease that another consumer has taken", &extend).await;
    let again = commit_text("billing", "worker-2", other.seqs[0], other.lease);
    world.sql.batch(&again).await;
    raises(&world, "commit that is repeated", &again).await;
}

/// The transaction has its snapshot, and then another one moves the group.
#[tokio::test]
async fn older_snapshots_are_refused() {
    let world = three_groups("group_snapshots").await;
    world.sql.batch("begin isolation level repeatable read").await;
    world.sql.batch("select count(*) from postrider.consumer_group_state").await;
    let second = world.connect().await;
    let moved = super::poll(&second, "search", "worker-2", 10, 30).await;
    second.batch(&commit_text("search", "worker-2", moved.end(), moved.lease)).await;
    raises(
        &world,
        "poll in REPEATABLE READ while another consumer polls",
        "select * from postrider.poll_outbox('search', 'worker-1', 10000)",
    )
    .await;
    raises(
        &world,
        "seek in REPEATABLE READ",
        "begin isolation level repeatable read; select postrider.seek_offset('search', null, 0)",
    )
    .await;
}

#[tokio::test]
async fn events_that_are_gone_are_never_passed_over() {
    let world = three_groups("group_gone").await;
    world.sql.batch("select postrider.evict_consumer_group('slow')").await;
    raises(
        &world,
        "poll of a group that was evicted",
        "select * from postrider.poll_outbox('slow', 'worker-1')",
    )
    .await;
    let drop =
        "update postrider.event_log set first_seq = 100; drop table postrider_log.log_orders_0";
    world.sql.batch(drop).await;
    raises(
        &world,
        "log_read of events that retention has dropped",
        "select * from postrider.log_read('orders', 50)",
    )
    .await;
    world.sql.batch("truncate postrider_log.log_orders").await;
    raises(
        &world,
        "poll of a log whose table was truncated",
        "select * from postrider.poll_outbox('search', 'worker-1', 10)",
    )
    .await;
}
