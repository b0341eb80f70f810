//! Callers in REPEATABLE READ and SERIALIZABLE: a fresh snapshot works, an old one gets 40001 and does no harm.

use super::{GroupDatabase, commit_text, number, poll, poll_text, refused};
use crate::server::{Client, Version};

const LEVELS: [&str; 2] = ["repeatable read", "serializable"];

/// A transaction that has its snapshot.
async fn begin(sql: &Client, level: &str) {
    sql.batch(&format!("begin isolation level {level}")).await;
    number(sql, "select count(*) from postrider.consumer_group").await;
}

#[tokio::test]
async fn a_fresh_snapshot_polls_and_commits() {
    for version in Version::ALL {
        for level in LEVELS {
            let world = GroupDatabase::create(version, "group_fresh").await;
            world.append(100, 10).await;
            world.group("g").await;
            let one = world.connect().await;
            begin(&one, level).await;
            let polled = poll(&one, "g", "a", 30, 30).await;
            one.batch("commit").await;
            assert_eq!(polled.seqs.len(), 30);
            begin(&one, level).await;
            one.batch(&commit_text("g", "a", polled.end(), polled.lease)).await;
            let more = poll(&one, "g", "a", 1_000, 30).await;
            one.batch(&commit_text("g", "a", more.end(), more.lease)).await;
            one.batch("commit").await;
            assert_eq!(world.lag("g").await, 0);
        }
    }
}

/// The state that the caller sees has followers: a poll would give out what others have, a commit would be recorded
/// below the newest state. Sweeping must not hide the followers.
#[tokio::test]
async fn an_old_snapshot_gets_40001_also_after_a_sweep() {
    for level in LEVELS {
        for sweep in ["select 1", "select postrider.sweep_states(1)"] {
            let world = GroupDatabase::create(Version::Pg17, "group_stale").await;
            world.append(100, 1).await;
            world.group("g").await;
            let old = world.connect().await;
            begin(&old, level).await;
            for _ in 0..5 {
                let polled = world.poll("g", "a", 10).await;
                world.commit("g", "a", &polled).await;
            }
            world.sql.batch(sweep).await;
            assert_eq!(refused(&old, &poll_text("g", "b", 10, 30)).await, "40001");
            old.batch("rollback").await;
            let polled = world.poll("g", "b", 10).await;
            assert_eq!(polled.seqs.first(), Some(&51));

            world.run_out("b").await;
            begin(&old, level).await;
            let late = commit_text("g", "b", polled.end(), polled.lease);
            let taken = world.poll("g", "c", 10).await;
            world.commit("g", "c", &taken).await;
            world.sql.batch(sweep).await;
            assert_eq!(refused(&old, &late).await, "40001");
            old.batch("rollback").await;
            begin(&old, level).await;
            assert_eq!(
                refused(&old, &late).await,
                "PR114",
                "a fresh snapshot sees that it is lost"
            );
            old.batch("rollback").await;

            for statement in [
                "commit_offset('g', 'b', {end}, {lease})",
                "extend_lease('g', 'b', 30, {lease})",
                "release_lease('g', 'b', {lease})",
            ] {
                let polled = world.poll("g", "b", 10).await;
                begin(&old, level).await;
                world.sql.batch("select postrider.seek_offset('g', null, 0)").await;
                world.sql.batch(sweep).await;
                let call = statement
                    .replace("{end}", &polled.end().to_string())
                    .replace("{lease}", &polled.lease.to_string());
                let call = format!("select postrider.{call}");
                assert_eq!(refused(&old, &call).await, "40001", "{call}");
                old.batch("rollback").await;
            }
            assert_eq!(world.lag("g").await, 100);
        }
    }
}

#[tokio::test]
async fn an_old_snapshot_does_not_pass_over_what_retention_dropped() {
    for level in LEVELS {
        let log = "select postrider.create_log('orders', 16, 100)";
        let world = GroupDatabase::with_log(Version::Pg18, "group_old_evicted", log).await;
        world.append(250, 20).await;
        world.group("g").await;
        let old = world.connect().await;
        begin(&old, level).await;
        world.sql.batch("select postrider.evict_consumer_group('g')").await;
        world.sql.batch("update postrider.event_log set first_seq = 200").await;
        // A snapshot without a look at the log does not keep it from being dropped.
        world.sql.batch("drop table postrider_log.log_orders_0, postrider_log.log_orders_1").await;
        let poll = poll_text("g", "a", 10_000, 30);
        assert_eq!(refused(&old, &poll).await, "40001");
        old.batch("rollback").await;
        begin(&old, level).await;
        assert_eq!(refused(&old, &poll).await, "PR113");
        old.batch("rollback").await;
    }
}

#[tokio::test]
async fn administration_needs_read_committed_and_says_so() {
    let world = GroupDatabase::create(Version::Pg15, "group_admin_rr").await;
    world.group("g").await;
    for level in LEVELS {
        for statement in [
            "select postrider.create_consumer_group('h', 'orders')",
            "select postrider.drop_consumer_group('g')",
            "select postrider.seek_offset('g', null, 0)",
            "select postrider.evict_consumer_group('g')",
            "select * from postrider.groups_hold('orders')",
            "select postrider.sweep_states()",
        ] {
            begin(&world.sql, level).await;
            assert_eq!(refused(&world.sql, statement).await, "25000", "{statement}");
            world.sql.batch("rollback").await;
        }
    }
}

/// Two transactions that have read the same state: one gets 40001, runs again, and succeeds.
#[tokio::test]
async fn serializable_consumers_get_through_by_repeating() {
    let world = GroupDatabase::create(Version::Pg16, "group_retries").await;
    world.append(300, 30).await;
    world.group("g").await;
    let mut consumers = tokio::task::JoinSet::new();
    for name in ["a", "b", "c"] {
        let sql = world.connect().await;
        consumers.spawn(async move {
            let mut done = 0;
            loop {
                sql.batch("begin isolation level serializable").await;
                match sql.simple_query(&poll_text("g", name, 20, 30)).await {
                    Ok(messages) => {
                        let polled = super::read_poll(&super::read_rows(&messages));
                        if polled.lease == 0 {
                            sql.batch("rollback").await;
                            let lag = "select sum(lag) from postrider.consumer_lag('g')";
                            if number(&sql, lag).await == 0 {
                                return done;
                            }
                            continue;
                        }
                        let commit = commit_text("g", name, polled.end(), polled.lease);
                        if sql.simple_query(&format!("{commit}; commit")).await.is_ok() {
                            done += polled.seqs.len();
                        } else {
                            sql.batch("rollback").await;
                        }
                    }
                    Err(error) => {
                        assert_eq!(error.code().expect("an answer").code(), "40001");
                        sql.batch("rollback").await;
                    }
                }
            }
        });
    }
    let done: usize = consumers.join_all().await.into_iter().sum();
    assert_eq!(done, 300);
}

/// In these levels a gap may be retention's, which the snapshot does not show: it raises all the same, and nothing is
/// passed over.
#[tokio::test]
async fn a_truncated_log_is_not_passed_over_in_any_isolation_level() {
    for level in LEVELS {
        let log = "select postrider.create_log('orders', 4, 100)";
        let world = GroupDatabase::with_log(Version::Pg16, "group_old_truncated", log).await;
        world.append(350, 1).await;
        world.group("g").await;
        let first = world.poll("g", "a", 100).await;
        world.commit("g", "a", &first).await;
        world.sql.batch("delete from postrider_log.log_orders where seq between 101 and 199").await;
        let consumer = world.connect().await;
        begin(&consumer, level).await;
        // Fewer than are left of the partition.
        assert_eq!(refused(&consumer, &poll_text("g", "a", 5, 30)).await, "40001");
        consumer.batch("rollback").await;
        assert_eq!(refused(&world.sql, &poll_text("g", "a", 5, 30)).await, "PR103");
        assert_eq!(world.lag("g").await, 250);
    }
}
