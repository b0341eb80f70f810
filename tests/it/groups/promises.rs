//! What a group promises: nothing lost, no event to two consumers, order of an aggregate, refused zombies.

use super::{GroupDatabase, commit_text, poll, refused};
use crate::server::Version;
use std::collections::BTreeMap;

#[tokio::test]
async fn every_event_comes_once_and_in_order_and_lag_is_exact() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "group_once").await;
        world.append(2_000, 50).await;
        world.group("g").await;
        assert_eq!(world.lag("g").await, 2_000);
        let first = world.poll("g", "a", 300).await;
        assert_eq!(first.seqs.len(), 300);
        assert!(first.seqs.is_sorted());
        assert_eq!(world.lag("g").await, 2_000, "a lease is no commit");
        world.commit("g", "a", &first).await;
        assert_eq!(world.lag("g").await, 1_700);
        let mut seqs = first.seqs.clone();
        seqs.extend(world.drain("g", "a").await);
        seqs.sort_unstable();
        assert!(seqs.into_iter().eq(1..=2_000));
        assert_eq!(world.lag("g").await, 0);
        let view =
            "select format('%s %s %s', lag, done_to, last_seq) from postrider.consumer_group_lag";
        assert_eq!(world.sql.text(view).await.as_deref(), Some("0 2000 2000"));
        // Another group reads everything again; the first one only what is new.
        world.group("h").await;
        assert_eq!(world.drain("h", "a").await.len(), 2_000);
        world.append(10, 50).await;
        assert_eq!(world.drain("g", "a").await.len(), 10);
    }
}

#[tokio::test]
async fn an_aggregate_has_one_consumer_at_a_time_and_its_order() {
    let world = GroupDatabase::create(Version::Pg16, "group_order").await;
    world.append(600, 30).await;
    world.group("g").await;
    let mut out = Vec::new();
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    let mut seen = 0;
    while seen < 600 {
        for consumer in ["a", "b", "c"] {
            let polled = world.poll("g", consumer, 40).await;
            if polled.lease > 0 {
                for (_, held) in &out {
                    let held: &super::Polled = held;
                    assert!(held.partitions().iter().all(|part| !polled.parts.contains(part)));
                }
                out.push((consumer, polled));
            }
        }
        let (consumer, polled) = out.swap_remove(fastrand::usize(..out.len()));
        for (aggregate, seq) in polled.aggregates.iter().zip(&polled.seqs) {
            let before = last.insert(aggregate.clone(), *seq);
            assert!(before < Some(*seq), "{aggregate}: {seq} after {before:?}");
        }
        seen += polled.seqs.len();
        world.commit("g", consumer, &polled).await;
    }
    assert_eq!(seen, 600);
}

#[tokio::test]
async fn latest_begins_behind_the_end_and_earliest_at_the_beginning() {
    let world = GroupDatabase::create(Version::Pg15, "group_begin").await;
    world.append(100, 10).await;
    world.sql.batch("select postrider.create_consumer_group('late', 'orders')").await;
    world.group("early").await;
    world.append(7, 10).await;
    assert_eq!(world.lag("late").await, 7);
    assert_eq!(world.lag("early").await, 107);
    let late = world.drain("late", "a").await;
    assert!(late.iter().all(|seq| *seq > 100) && late.len() == 7, "{late:?}");
    assert_eq!(world.drain("early", "a").await.len(), 107);
}

#[tokio::test]
async fn poll_work_and_commit_in_one_transaction_and_a_rollback_gives_the_events_back() {
    let world = GroupDatabase::create(Version::Pg18, "group_one_tx").await;
    world.append(100, 10).await;
    world.group("g").await;
    let other = world.connect().await;
    world.sql.batch("begin").await;
    let polled = world.poll("g", "a", 1_000).await;
    assert_eq!(polled.seqs.len(), 100);
    // A locked partition is passed over, and nobody waits.
    assert_eq!(poll(&other, "g", "b", 1_000, 30).await.lease, 0);
    world.sql.batch("rollback").await;
    world.sql.batch("begin").await;
    let again = world.poll("g", "b", 1_000).await;
    assert_eq!(again.seqs, polled.seqs);
    assert!(again.deliveries.iter().all(|n| *n == 1), "a rolled-back poll gave nothing out");
    world.commit("g", "b", &again).await;
    world.sql.batch("commit").await;
    assert_eq!(world.lag("g").await, 0);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_and_the_late_commit_takes_its_work_back() {
    for version in Version::ALL {
        let world = GroupDatabase::create(version, "group_late").await;
        world.sql.batch("create table effect (seq bigint)").await;
        world.append(50, 5).await;
        world.group("g").await;
        let frozen = world.poll("g", "frozen", 1_000).await;
        world.run_out("frozen").await;
        let taken = world.poll("g", "next", 1_000).await;
        assert_eq!(taken.seqs, frozen.seqs);
        assert!(taken.deliveries.iter().all(|n| *n == 2));
        world.sql.batch("begin; insert into effect select generate_series(1, 50)").await;
        let commit = commit_text("g", "frozen", frozen.end(), frozen.lease);
        assert_eq!(refused(&world.sql, &commit).await, "PR114");
        world.sql.batch("rollback").await;
        assert_eq!(world.number("select count(*) from effect").await, 0);
        world.commit("g", "next", &taken).await;
        assert_eq!(refused(&world.sql, &commit).await, "PR114");
        assert_eq!(world.lag("g").await, 0);
    }
}

#[tokio::test]
async fn a_late_commit_counts_as_long_as_nobody_took_the_lease() {
    let world = GroupDatabase::create(Version::Pg17, "group_expired").await;
    world.append(20, 4).await;
    world.group("g").await;
    let polled = world.poll("g", "a", 100).await;
    world.run_out("a").await;
    let leased = "select count(*) from postrider.consumer_lag('g') where leased";
    assert_eq!(world.number(leased).await, 0);
    world.commit("g", "a", &polled).await;
    assert_eq!(world.lag("g").await, 0);
}

#[tokio::test]
async fn repeated_early_and_foreign_commits_are_refused() {
    let world = GroupDatabase::create(Version::Pg15, "group_commits").await;
    world.append(90, 1).await;
    world.group("g").await;
    world.group("h").await;
    let polled = world.poll("g", "a", 90).await;
    let at = |offset: i64| commit_text("g", "a", offset, polled.lease);
    // In parts: each part once, and never backwards.
    world.sql.batch(&at(30)).await;
    assert_eq!(refused(&world.sql, &at(30)).await, "PR115");
    assert_eq!(refused(&world.sql, &at(20)).await, "PR115");
    assert_eq!(world.lag("g").await, 60);
    for (statement, code) in [
        (at(91), "22023"),
        (commit_text("g", "b", 90, polled.lease), "PR114"),
        (commit_text("g", "a", 90, polled.lease + 1), "PR114"),
        (commit_text("h", "a", 90, polled.lease), "PR114"),
        (commit_text("nobody", "a", 90, polled.lease), "PR112"),
    ] {
        assert_eq!(refused(&world.sql, &statement).await, code, "{statement}");
    }
    assert_eq!(world.lag("g").await, 60);
    world.sql.batch(&at(90)).await;
    assert_eq!(refused(&world.sql, &at(90)).await, "PR115");
    assert_eq!((world.lag("g").await, world.lag("h").await), (0, 90));
}

/// A commit of a part frees the partitions that are done. The rest of the lease stays whole when another consumer takes
/// them.
#[tokio::test]
async fn what_is_committed_is_free_and_the_rest_of_the_lease_can_still_be_committed() {
    let world = GroupDatabase::create(Version::Pg18, "group_parts").await;
    world.append(64, 64).await;
    world.group("g").await;
    let polled = world.poll("g", "a", 64).await;
    assert!(polled.partitions().len() > 8, "{polled:?}");
    world.sql.batch(&commit_text("g", "a", 63, polled.lease)).await;
    world.append(64, 64).await;
    let other = world.poll("g", "b", 1_000).await;
    assert!(!other.seqs.is_empty());
    world.commit("g", "b", &other).await;
    world.sql.batch(&commit_text("g", "a", 64, polled.lease)).await;
    assert_eq!(refused(&world.sql, &commit_text("g", "a", 64, polled.lease)).await, "PR115");
    world.drain("g", "a").await;
    assert_eq!(world.lag("g").await, 0);
}

/// A part of a lease is committed, and another consumer takes the rest: the events of the rest were not committed.
#[tokio::test]
async fn a_commit_of_a_rest_that_is_lost_does_not_say_that_it_was_done() {
    let world = GroupDatabase::create(Version::Pg16, "group_rest").await;
    world.append(64, 64).await;
    world.group("g").await;
    let polled = world.poll("g", "a", 64).await;
    let at = |offset: i64| commit_text("g", "a", offset, polled.lease);
    world.sql.batch(&at(63)).await;
    world.run_out("a").await;
    let other = world.poll("g", "b", 64).await;
    assert_eq!(other.seqs, [64]);
    assert_eq!(refused(&world.sql, &at(64)).await, "PR114");
    assert_eq!(refused(&world.sql, &at(63)).await, "PR115");
    world.commit("g", "b", &other).await;
    assert_eq!(refused(&world.sql, &at(64)).await, "PR114");
    assert_eq!(world.lag("g").await, 0);
}

#[tokio::test]
async fn a_consumer_that_polls_twice_gets_other_partitions_and_never_the_same_events() {
    let world = GroupDatabase::create(Version::Pg16, "group_twice").await;
    world.append(160, 40).await;
    world.group("g").await;
    let mut seqs = Vec::new();
    loop {
        let polled = world.poll("g", "a", 10).await;
        if polled.lease == 0 {
            break;
        }
        seqs.extend(polled.seqs);
    }
    let all = seqs.len();
    seqs.sort_unstable();
    seqs.dedup();
    assert_eq!(seqs.len(), all);
    // A restart under the old name waits for its own leases, or gives them back.
    assert_eq!(world.poll("g", "a", 10).await.lease, 0);
    assert!(world.number("select postrider.release_lease('g', 'a')").await > 1);
    assert_eq!(world.poll("g", "a", 10).await.seqs.len(), 10);
}

#[tokio::test]
async fn consumers_share_the_partitions_and_a_dead_one_loses_its_share() {
    let world = GroupDatabase::create(Version::Pg17, "group_share").await;
    world.append(400, 100).await;
    world.group("g").await;
    for consumer in ["a", "b", "c", "d"] {
        world.sql.batch(&format!("select postrider.consumer_heartbeat('g', '{consumer}')")).await;
    }
    assert!(world.poll("g", "a", 1_000).await.partitions().len() <= 4);
    world
        .sql
        .batch("update postrider.consumer_seen set seen_at = seen_at - interval '61 seconds' where consumer <> 'a'")
        .await;
    assert!(world.poll("g", "a", 1_000).await.partitions().len() > 8);
}

#[tokio::test]
async fn leases_are_extended_and_never_shortened_and_given_back() {
    let world = GroupDatabase::create(Version::Pg15, "group_lease").await;
    world.append(40, 8).await;
    world.group("g").await;
    let polled = world.poll("g", "a", 40).await;
    let until = "select max(lease_until)::text from postrider.consumer_lag('g')";
    let first = world.sql.text(until).await;
    let extend = |seconds: u32| {
        format!("select postrider.extend_lease('g', 'a', {seconds}, {})", polled.lease)
    };
    world.sql.batch(&extend(1)).await;
    assert_eq!(world.sql.text(until).await, first, "never shortened");
    world.sql.batch(&extend(3_600)).await;
    assert!(world.sql.text(until).await > first);
    assert_eq!(
        refused(&world.sql, "select postrider.extend_lease('g', 'b')").await,
        "PR114",
        "another consumer's"
    );
    let parts = i64::try_from(polled.partitions().len()).expect("few");
    let release = format!("select postrider.release_lease('g', 'a', {})", polled.lease);
    assert_eq!(world.number(&release).await, parts);
    assert_eq!(world.number(&release).await, 0);
    let commit = commit_text("g", "a", polled.end(), polled.lease);
    assert_eq!(refused(&world.sql, &commit).await, "PR114");
    assert_eq!(refused(&world.sql, &extend(30)).await, "PR114");
    let again = world.poll("g", "b", 40).await;
    assert_eq!(again.seqs, polled.seqs);
    assert!(again.deliveries.iter().all(|n| *n == 2), "what was given back was given out");
}

#[tokio::test]
async fn the_form_without_a_lease_warns_and_commits_only_the_batch_that_has_the_event() {
    let world = GroupDatabase::create(Version::Pg18, "group_form").await;
    world.append(100, 20).await;
    world.group("g").await;
    let one = world.poll("g", "a", 10).await;
    let two = world.poll("g", "a", 10).await;
    let commit = |offset: i64| format!("select postrider.commit_offset('g', 'a', {offset})::int");
    // The other batch has events below this offset, which are not done.
    assert_eq!(world.number(&commit(two.end().max(one.end()))).await, 1);
    assert_eq!(world.lag("g").await, 90);
    for offset in [two.end().max(one.end()), 0, 5_000] {
        assert_eq!(world.number(&commit(offset)).await, 0);
    }
    assert_eq!(world.number(&commit(two.end().min(one.end()))).await, 1);
    assert_eq!(world.lag("g").await, 80);
    let late = world.poll("g", "late", 10).await;
    world.run_out("late").await;
    for consumer in ["b", "c", "d"] {
        world.poll("g", consumer, 1_000).await;
    }
    let commit = format!("select postrider.commit_offset('g', 'late', {})::int", late.end());
    assert_eq!(world.number(&commit).await, 0);
}

#[tokio::test]
async fn a_seek_moves_the_whole_group_and_fences_what_is_out() {
    let world = GroupDatabase::create(Version::Pg16, "group_seek").await;
    world.append(300, 30).await;
    world.group("g").await;
    world.drain("g", "a").await;
    let seek = |offset: i64| format!("select postrider.seek_offset('g', null, {offset})");
    for (offset, lag) in [(100, 200), (0, 300), (300, 0), (299, 1), (1_000, 0)] {
        world.sql.batch(&seek(offset)).await;
        assert_eq!(world.lag("g").await, lag, "after {offset}");
    }
    world.sql.batch(&seek(100)).await;
    let out = world.poll("g", "a", 50).await;
    assert!(out.seqs.iter().all(|seq| *seq > 100));
    world.sql.batch(&seek(200)).await;
    assert_eq!(refused(&world.sql, &commit_text("g", "a", out.end(), out.lease)).await, "PR114");
    let mut rest = world.drain("g", "b").await;
    rest.sort_unstable();
    assert!(rest.into_iter().eq(201..=300));
}

#[tokio::test]
async fn a_group_that_is_dropped_or_created_again_gives_an_old_lease_no_right() {
    let world = GroupDatabase::create(Version::Pg17, "group_dropped").await;
    world.append(20, 4).await;
    world.group("g").await;
    let polled = world.poll("g", "a", 20).await;
    let commit = commit_text("g", "a", polled.end(), polled.lease);
    world.sql.batch("select postrider.drop_consumer_group('g')").await;
    for statement in [
        &commit,
        "select postrider.extend_lease('g', 'a')",
        "select postrider.release_lease('g', 'a')",
        "select * from postrider.poll_outbox('g', 'a')",
        "select postrider.commit_offset('g', 'a', 20)",
        "select postrider.consumer_heartbeat('g', 'a')",
        "select postrider.seek_offset('g', 'a', 0)",
        "select * from postrider.consumer_lag('g')",
        "select postrider.drop_consumer_group('g')",
        "select postrider.evict_consumer_group('g')",
    ] {
        assert_eq!(refused(&world.sql, statement).await, "PR112", "{statement}");
    }
    assert_eq!(world.number("select postrider.drop_consumer_group('g', true)::int").await, 0);
    world.group("g").await;
    assert_eq!(refused(&world.sql, &commit).await, "PR114");
    assert_eq!(world.lag("g").await, 20);
    let left = "select count(*) from postrider.consumer_group_state where lease > 0 and consumer is not null";
    assert_eq!(world.number(left).await, 0);
    assert_eq!(world.drain("g", "a").await.len(), 20);
}

/// A drop waits for a poll that is in progress, and the poll is not lost.
#[tokio::test]
async fn a_drop_waits_for_the_transaction_of_a_consumer() {
    let world = GroupDatabase::create(Version::Pg15, "group_drop_waits").await;
    world.append(20, 4).await;
    world.group("g").await;
    let other = world.connect().await;
    world.sql.batch("begin").await;
    let polled = world.poll("g", "a", 20).await;
    other.batch("set lock_timeout = '100ms'").await;
    assert_eq!(refused(&other, "select postrider.drop_consumer_group('g')").await, "55P03");
    world.commit("g", "a", &polled).await;
    world.sql.batch("commit").await;
    other.batch("select postrider.drop_consumer_group('g')").await;
    let left = "select (select count(*) from postrider.consumer_group_state) \
        + (select count(*) from postrider.consumer_group_partition) + (select count(*) from postrider.consumer_seen)";
    assert_eq!(world.number(left).await, 0);
    other.batch("reset lock_timeout; select postrider.drop_log('orders')").await;
}

#[tokio::test]
async fn a_log_may_have_1024_partitions() {
    let log = "select postrider.create_log('orders', 1024, 1000)";
    let world = GroupDatabase::with_log(Version::Pg18, "group_1024", log).await;
    world.append(3_000, 1_000).await;
    world.group("g").await;
    let mut seqs = world.drain("g", "a").await;
    seqs.sort_unstable();
    assert!(seqs.into_iter().eq(1..=3_000));
    assert_eq!(world.lag("g").await, 0);
}
