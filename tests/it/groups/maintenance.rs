//! Sweeping, reaping, clocks, time-outs.

use super::{GroupDatabase, commit_text, poll, poll_text, refused};
use crate::server::Version;

const STATES: &str = "select count(*) from postrider.consumer_group_state";

#[tokio::test]
async fn a_sweep_leaves_the_newest_states_and_changes_nothing_else() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "group_sweep").await;
        for _ in 0..10 {
            world.append(64, 32).await;
        }
        world.group("g").await;
        world.group("h").await;
        world.drain("g", "a").await;
        let polled = world.poll("h", "a", 100).await;
        let before = world
            .sql
            .text("select array_agg(s order by part)::text from postrider.group_state('g') s")
            .await;
        let all = world.number(STATES).await;
        // Bounded: ten at a time, of each table.
        let first = world.number("select postrider.sweep_states(1, 10)").await;
        assert!((10..=30).contains(&first), "{first}");
        assert_eq!(world.number(STATES).await, all - 10);
        let mut more = first;
        while more > 0 {
            more = world.number("select postrider.sweep_states(1, 50)").await;
        }
        assert_eq!(world.number(STATES).await, 2 * 16);
        assert_eq!(world.number("select count(*) from postrider.event_log_head").await, 1);
        let after = world
            .sql
            .text("select array_agg(s order by part)::text from postrider.group_state('g') s")
            .await;
        assert_eq!(after, before);
        assert_eq!(world.lag("g").await, 0);
        world.commit("h", "a", &polled).await;
        assert_eq!(world.lag("h").await, 540);
        // A few are kept if that is asked for.
        world.append(64, 32).await;
        world.drain("h", "a").await;
        while world.number("select postrider.sweep_states(3)").await > 0 {}
        let kept = "select max(n) from (select count(*) n from postrider.consumer_group_state \
            group by group_name, part) x";
        assert_eq!(world.number(kept).await, 3);
        world.append(10, 5).await;
        assert_eq!(world.drain("h", "a").await.len(), 10);
    }
}

/// With more than one call may delete, every group gets its turn.
#[tokio::test]
async fn a_sweep_starves_no_group() {
    let world = GroupDatabase::create(Version::Pg16, "group_sweeps").await;
    world.append(16, 16).await;
    let groups = ["a", "b"];
    for group in groups {
        world.group(group).await;
        for _ in 0..30 {
            let polled = world.poll(group, "c", 16).await;
            let release =
                format!("select postrider.release_lease('{group}', 'c', {})", polled.lease);
            world.sql.batch(&release).await;
        }
    }
    let states =
        async |group: &str| world.number(&format!("{STATES} where group_name = '{group}'")).await;
    let before = [states("a").await, states("b").await];
    for _ in 0..14 {
        assert!(world.number("select postrider.sweep_states(1, 20)").await >= 20);
    }
    for (group, before) in groups.into_iter().zip(before) {
        let now = states(group).await;
        assert!(now < before && now > 16, "{group}: {before} -> {now}");
    }
}

#[tokio::test]
async fn consumers_are_healthy_for_a_minute_and_forgotten_after_a_day() {
    let world = GroupDatabase::create(Version::Pg15, "group_reap").await;
    world.append(20, 20).await;
    world.group("g").await;
    world.poll("g", "a", 5).await;
    let healthy = "select count(*) from postrider.consumer_lag('g') where healthy";
    let unhealthy = "select count(*) from postrider.consumer_lag('g') where not healthy and heartbeat_age_sec > 60";
    assert!(world.number(healthy).await > 0);
    let shift = |by: &str| {
        format!("update postrider.consumer_seen set seen_at = seen_at - interval '{by}'")
    };
    world.sql.batch(&shift("61 seconds")).await;
    assert_eq!(world.number(healthy).await, 0);
    assert!(world.number(unhealthy).await > 0);
    world.sql.batch("select postrider.consumer_heartbeat('g', 'a')").await;
    assert!(world.number(healthy).await > 0);
    let reaped = "select count(*) from postrider.reap_consumers()";
    assert_eq!(world.number(reaped).await, 0);
    world.sql.batch(&shift("25 hours")).await;
    assert_eq!(world.number(reaped).await, 1);
    assert_eq!(world.number("select count(*) from postrider.consumer").await, 0);
    // A poll that finds nothing writes a heartbeat at most every 10 seconds.
    for _ in 0..5 {
        world.poll("g", "b", 5).await;
    }
    assert_eq!(world.number("select count(*) from postrider.consumer_seen").await, 1);
}

/// The clock is moved by moving what was stored when it was read: a server whose clock jumps needs a library that the
/// servers of the tests do not have.
#[tokio::test]
async fn a_clock_that_jumps_delays_at_most_a_minute_and_no_commit_depends_on_it() {
    let world = GroupDatabase::create(Version::Pg17, "group_clock").await;
    world.append(10, 1).await;
    world.group("g").await;
    let jump = |by: &str| {
        format!(
            "update postrider.consumer_group_state set lease_from = lease_from + interval '{by}', \
             lease_until = lease_until + interval '{by}'; \
             update postrider.consumer_seen set seen_at = seen_at + interval '{by}'"
        )
    };
    // Set back by a day: the lease seems to begin tomorrow. It can be taken, and the first commit is refused.
    let first = world.poll("g", "a", 5).await;
    world.sql.batch(&jump("1 day")).await;
    let second = world.poll("g", "b", 5).await;
    assert_eq!(second.seqs, first.seqs);
    assert_eq!(refused(&world.sql, &commit_text("g", "a", 5, first.lease)).await, "PR114");
    // Back by some seconds only: the lease stays.
    world.sql.batch(&jump("20 seconds")).await;
    assert_eq!(world.poll("g", "c", 5).await.lease, 0);
    // Forward by a day: it seems to have ended yesterday, and its commit counts.
    world.sql.batch(&jump("-2 days")).await;
    world.commit("g", "b", &second).await;
    assert_eq!(world.lag("g").await, 5);
    // A consumer that was seen tomorrow takes no share of the partitions, and is seen again today.
    world.sql.batch("select postrider.consumer_heartbeat('g', 'e')").await;
    world.sql.batch(&jump("1 day")).await;
    let now = "select count(*) from postrider.consumer_seen \
        where consumer = 'e' and seen_at <= clock_timestamp()";
    assert_eq!(world.number(now).await, 0);
    world.sql.batch("select postrider.consumer_heartbeat('g', 'e')").await;
    assert_eq!(world.number(now).await, 1);
}

#[tokio::test]
async fn a_poll_or_commit_that_is_cancelled_in_the_middle_has_done_nothing() {
    let world = GroupDatabase::create(Version::Pg18, "group_cancel").await;
    world.append(100, 10).await;
    world.group("g").await;
    let polled = world.poll("g", "a", 10).await;
    let states = world.number(STATES).await;
    let other = world.connect().await;
    other.batch("set statement_timeout = '200ms'").await;
    // The poll has locked its partitions when it comes to the log.
    world.sql.batch("begin; lock table postrider_log.log_orders in access exclusive mode").await;
    assert_eq!(refused(&other, &poll_text("g", "b", 10, 30)).await, "57014");
    world
        .sql
        .batch("rollback; begin; lock table postrider.consumer_group_state in exclusive mode")
        .await;
    let commit = commit_text("g", "a", polled.end(), polled.lease);
    assert_eq!(refused(&other, &commit).await, "57014");
    world.sql.batch("rollback").await;
    assert_eq!(world.number(STATES).await, states);
    other.batch("reset statement_timeout").await;
    other.batch(&commit).await;
    assert!(poll(&other, "g", "b", 1_000, 30).await.lease > 0);
}

/// A group that never commits harms nobody but itself, and shows.
#[tokio::test]
async fn a_group_that_never_commits_gets_the_same_events_again_and_counts_them() {
    let world = GroupDatabase::create(Version::Pg16, "group_never").await;
    world.append(30, 3).await;
    world.group("g").await;
    world.group("other").await;
    for round in 1..=5 {
        let polled = world.poll("g", "a", 100).await;
        assert_eq!(polled.seqs.len(), 30);
        assert!(polled.deliveries.iter().all(|n| *n == round));
        world.run_out("a").await;
    }
    assert_eq!(world.drain("other", "a").await.len(), 30);
    let view = "select max_deliveries from postrider.consumer_group_lag where group_name = 'g'";
    assert_eq!(world.number(view).await, 5);
    assert_eq!(world.lag("g").await, 30);
    // Progress begins a new count.
    let polled = world.poll("g", "a", 100).await;
    world.sql.batch(&commit_text("g", "a", 28, polled.lease)).await;
    assert_eq!(world.number(view).await, 1);
    world.run_out("a").await;
    let rest = world.poll("g", "a", 100).await;
    assert_eq!(rest.seqs, [29, 30]);
}
