//! Groups and retention: what holds events back, evictions, a log whose table was truncated.

use super::{GroupDatabase, commit_text, number, refused, rows};
use crate::await_that::{SOON, await_that};
use crate::server::{Client, Version};

/// A log with children of 100 events.
async fn in_children(version: Version, test: &str) -> GroupDatabase {
    GroupDatabase::with_log(version, test, "select postrider.create_log('orders', 16, 100)").await
}

/// As retention does: what is below is gone from now on.
const DROP_BELOW_200: &str = "select from postrider.event_log where name = 'orders' for update;
    select * from postrider.groups_hold('orders');
    update postrider.event_log set first_seq = 200 where name = 'orders'";

async fn drop_children(sql: &Client) {
    sql.batch("drop table postrider_log.log_orders_0, postrider_log.log_orders_1").await;
}

async fn held(world: &GroupDatabase) -> Vec<Option<String>> {
    rows(&world.sql, "select * from postrider.groups_hold('orders')").await.remove(0)
}

#[tokio::test]
async fn the_slowest_group_holds_the_log_and_idle_partitions_hold_nothing() {
    let world = in_children(Version::Pg15, "group_holds").await;
    assert_eq!(held(&world).await, [None, None]);
    // One aggregate, so one partition: the other fifteen never have an event.
    world.append(350, 1).await;
    world.group("slow").await;
    world.group("fast").await;
    world.drain("fast", "a").await;
    assert_eq!(held(&world).await, [Some("0".to_owned()), Some("slow".to_owned())]);
    let polled = world.poll("slow", "a", 120).await;
    world.commit("slow", "a", &polled).await;
    assert_eq!(held(&world).await, [Some("120".to_owned()), Some("slow".to_owned())]);
    world.drain("slow", "a").await;
    assert_eq!(held(&world).await[0].as_deref(), Some("350"));
    // An event in a partition that was idle for long holds back only itself.
    world.append(400, 1).await;
    world.drain("fast", "a").await;
    world.drain("slow", "a").await;
    world
        .sql
        .batch("insert into outbox (aggregate_type, aggregate_id, event_type) values ('order', 'new', 'x')")
        .await;
    world.number("select postrider.log_feed('orders', 'outbox')").await;
    assert_eq!(held(&world).await[0].as_deref(), Some("750"));
    let lag = "select done_to from postrider.consumer_group_lag where group_name = 'slow'";
    assert_eq!(world.number(lag).await, 750);
}

#[tokio::test]
async fn an_evicted_group_raises_until_a_seek_and_what_is_leased_can_be_committed() {
    for version in Version::ALL {
        let world = in_children(version, "group_evicted").await;
        world.append(350, 30).await;
        world.group("g").await;
        let polled = world.poll("g", "a", 20).await;
        assert_eq!(world.number("select postrider.evict_consumer_group('g')::int").await, 1);
        assert_eq!(world.number("select postrider.evict_consumer_group('g')::int").await, 0);
        world.sql.batch(&format!("begin; {DROP_BELOW_200}; commit")).await;
        drop_children(&world.sql).await;
        let again = "select * from postrider.poll_outbox('g', 'a')";
        assert_eq!(refused(&world.sql, again).await, "PR113");
        assert_eq!(held(&world).await, [None, None]);
        world.commit("g", "a", &polled).await;
        assert_eq!(refused(&world.sql, again).await, "PR113");
        world.sql.batch("select postrider.seek_offset('g', null, 0)").await;
        assert_eq!(world.lag("g").await, 151);
        let mut seqs = world.drain("g", "a").await;
        seqs.sort_unstable();
        assert!(seqs.into_iter().eq(200..=350));
        assert_eq!(world.lag("g").await, 0);
    }
}

#[tokio::test]
async fn earliest_and_a_seek_begin_where_retention_stopped() {
    let world = in_children(Version::Pg18, "group_first").await;
    world.append(350, 30).await;
    world.sql.batch(&format!("begin; {DROP_BELOW_200}; commit")).await;
    drop_children(&world.sql).await;
    world.group("g").await;
    assert_eq!(world.lag("g").await, 151);
    world.sql.batch("select postrider.seek_offset('g', null, 250)").await;
    assert_eq!(world.lag("g").await, 100);
    world.sql.batch("select postrider.seek_offset('g', null, 3)").await;
    assert_eq!(world.drain("g", "a").await.len(), 151);
}

/// Retention and the functions that may move a group back wait for each other, whoever comes first.
#[tokio::test]
async fn a_new_group_and_a_seek_wait_for_retention_and_retention_for_them() {
    for (statement, lag) in [
        ("select postrider.create_consumer_group('g', 'orders', 'earliest')", 151),
        ("select postrider.seek_offset('old', null, 0)", 151),
    ] {
        let world = in_children(Version::Pg16, "group_excluded").await;
        world.append(350, 30).await;
        world.group("old").await;
        world.drain("old", "a").await;
        let retention = world.connect().await;
        retention.batch(&format!("begin; {DROP_BELOW_200}")).await;
        let other = world.connect().await;
        let mut call = Box::pin(other.simple_query(statement));
        let waits = "select count(*) from pg_stat_activity where datname = current_database() \
            and wait_event_type = 'Lock'";
        tokio::select! {
            biased;
            ended = &mut call => panic!("{statement} did not wait: {ended:?}"),
            () = async {
                await_that("the call to wait", SOON, || async {
                    if world.number(waits).await == 1 { Ok(()) } else { Err("it does not wait") }
                }).await;
            } => {}
        }
        retention.batch("commit").await;
        call.await.expect("it goes on");
        drop_children(&world.sql).await;
        let group = if statement.contains("'g'") { "g" } else { "old" };
        assert_eq!(world.lag(group).await, lag);
        assert_eq!(world.drain(group, "a").await.len(), 151);
        // The other way round.
        other.batch("begin").await;
        other.batch(&format!("select postrider.seek_offset('{group}', null, 0)")).await;
        retention.batch("set lock_timeout = '100ms'").await;
        let text = format!("begin; {DROP_BELOW_200}");
        assert_eq!(refused(&retention, &text).await, "55P03");
        retention.batch("rollback").await;
        other.batch("commit").await;
        retention.batch(&text).await;
        let hold = number(&retention, "select done_to from postrider.groups_hold('orders')").await;
        assert_eq!(hold, 199);
    }
}

/// A truncated table, or one of its children, is seen before any event is passed over.
#[tokio::test]
async fn a_truncated_log_raises_instead_of_passing_over_events() {
    for (version, truncated) in [
        (Version::Pg15, "log_orders"),
        (Version::Pg16, "log_orders_0"),
        (Version::Pg17, "log_orders_1"),
        (Version::Pg18, "log_orders_3"),
    ] {
        let world = in_children(version, "group_truncated").await;
        world.append(350, 7).await;
        world.group("g").await;
        world.sql.batch(&format!("truncate postrider_log.{truncated}")).await;
        // The writer does not look again while it runs.
        if truncated == "log_orders" {
            world
                .sql
                .batch(
                    "do $$ declare h postrider.event_log_head; begin
                    select * into h from postrider.log_head('orders');
                    insert into postrider_log.log_orders (seq, part)
                    select h.last_seq + i, 3 from generate_series(1, 40) i;
                    h.heads[4] := h.last_seq + 40; h.counts[4] := h.counts[4] + 40;
                    perform postrider.log_move('orders', h.last_seq, 40, h.heads, h.counts);
                end $$",
                )
                .await;
        }
        let mut read = 0;
        let code = loop {
            // Few at a time: what is missing is not seen by its number alone.
            let poll = super::poll_text("g", "a", 5, 30);
            match world.sql.simple_query(&poll).await {
                Ok(messages) => {
                    let polled = super::read_poll(&super::read_rows(&messages));
                    assert!(polled.lease > 0, "{truncated}: it ends after {read} events");
                    read += polled.seqs.len();
                    world.sql.batch(&commit_text("g", "a", polled.end(), polled.lease)).await;
                }
                Err(error) => break error.code().expect("an answer").code().to_owned(),
            }
        };
        assert_eq!(code, "PR103", "{truncated}");
        assert!(refused(&world.sql, &super::poll_text("g", "a", 10, 30)).await == "PR103");
        let before = match truncated {
            "log_orders_1" => 99,
            "log_orders_3" => 299,
            _ => 0,
        };
        assert!(read <= before, "{truncated}: {read} events were read");
        assert_eq!(read == 0, before == 0, "{truncated}: {read} events were read");
        // What is left can be read after a seek.
        world.sql.batch("select postrider.seek_offset('g', null, 1000)").await;
        assert_eq!(world.lag("g").await, 0);
    }
}

/// An eviction is lifted without a step back: what the group is done with does not come again, and what is gone is
/// counted.
#[tokio::test]
async fn an_evicted_group_is_resumed_without_what_is_gone_and_repeats_nothing() {
    for version in Version::ALL {
        let world = in_children(version, "group_resume").await;
        // Partitions far ahead, and one that has stopped at its first event.
        world.append(350, 30).await;
        world.group("g").await;
        let stuck = world.poll("g", "stuck", 1).await;
        let stuck_part = stuck.parts[0];
        let mut done = world.drain("g", "a").await;
        let of_stuck =
            format!("select count(*) from postrider_log.log_orders where part = {stuck_part}");
        let in_stuck = world.number(&of_stuck).await;
        assert_eq!(world.lag("g").await, in_stuck);
        let gone = world.number(&format!("{of_stuck} and seq < 200")).await;
        assert!(gone > 1 && gone < in_stuck, "{gone} of {in_stuck}");
        world.sql.batch("select postrider.evict_consumer_group('g')").await;
        world.sql.batch(&format!("begin; {DROP_BELOW_200}; commit")).await;
        drop_children(&world.sql).await;
        let resume = "select postrider.resume_consumer_group('g')";
        assert_eq!(world.number(resume).await, gone);
        assert_eq!(world.number(resume).await, 0, "nothing more is lost");
        assert_eq!(world.lag("g").await, in_stuck - gone);
        let commit = commit_text("g", "stuck", stuck.end(), stuck.lease);
        assert_eq!(refused(&world.sql, &commit).await, "PR114");
        let rest = world.drain("g", "a").await;
        assert_eq!(i64::try_from(rest.len()), Ok(in_stuck - gone));
        assert!(rest.iter().all(|seq| *seq >= 200));
        done.extend(rest);
        let before = done.len();
        done.sort_unstable();
        done.dedup();
        assert_eq!(done.len(), before, "an event came twice");
        assert_eq!(world.lag("g").await, 0);
    }
}

/// A log whose table was truncated goes on behind the lost events, which are counted for each group.
#[tokio::test]
async fn groups_go_on_behind_events_that_are_lost() {
    let world = in_children(Version::Pg17, "group_lost").await;
    world.append(350, 30).await;
    world.group("g").await;
    world.sql.batch("truncate postrider_log.log_orders_0, postrider_log.log_orders_1").await;
    assert_eq!(refused(&world.sql, &super::poll_text("g", "a", 10, 30)).await, "PR103");
    // As docs/sql/log.md describes.
    world.sql.batch("update postrider.event_log set first_seq = 200 where name = 'orders'").await;
    assert_eq!(world.number("select postrider.resume_consumer_group('g')").await, 199);
    assert_eq!(world.lag("g").await, 151);
    assert_eq!(world.drain("g", "a").await.len(), 151);
    assert_eq!(world.lag("g").await, 0);
}

/// A consumer that is frozen in its transaction delays the eviction of its group alone: tables that all groups have
/// passed are dropped, and appends do not wait.
#[tokio::test]
async fn a_frozen_consumer_delays_neither_retention_nor_appends() {
    let world = in_children(Version::Pg15, "group_frozen").await;
    world.append(350, 30).await;
    world.sql.batch("select postrider.create_consumer_group('g', 'orders', 'earliest', 100)").await;
    world.sql.batch("select postrider.seek_offset('g', null, 120)").await;
    world
        .sql
        .batch("update postrider_log.log_orders set appended_at = now() - interval '2 days'")
        .await;
    let frozen = world.connect().await;
    frozen.batch("begin").await;
    let held = super::poll(&frozen, "g", "frozen", 10, 30).await;
    assert!(held.lease > 0);
    let relay = world.connect().await;
    relay.batch("set lock_timeout = '300ms'").await;
    let evictable =
        "select count(*) from postrider.log_evictable('orders', '1 day') where group_name = 'g'";
    assert_eq!(number(&relay, evictable).await, 1);
    let evict = "select postrider.log_evict('orders', '1 day', 'g')";
    let (evicted, ()) = tokio::join!(refused(&relay, evict), world.append(1, 1));
    assert_eq!(evicted, "55P03");
    let retain = "select count(*) from postrider.log_retain('orders', '1 day')";
    assert_eq!(number(&relay, retain).await, 1, "the first table is done by every group");
    frozen.batch("rollback").await;
    assert_eq!(number(&relay, evict).await, 120);
    assert_eq!(number(&relay, retain).await, 3);
    assert_eq!(number(&relay, evictable).await, 0);
}

/// A group is evicted only if that lets a table be dropped.
#[tokio::test]
async fn a_group_is_not_evicted_while_another_one_holds_the_same_back() {
    let world = in_children(Version::Pg18, "group_both").await;
    world.append(350, 30).await;
    for (group, retain_max) in [("over", "100"), ("holds", "null")] {
        let create = format!(
            "select postrider.create_consumer_group('{group}', 'orders', 'earliest', {retain_max})"
        );
        world.sql.batch(&create).await;
    }
    world
        .sql
        .batch("update postrider_log.log_orders set appended_at = now() - interval '2 days'")
        .await;
    let evictable = "select count(*) from postrider.log_evictable('orders', '1 day')";
    let evict = "select coalesce(postrider.log_evict('orders', '1 day', 'over'), -1)";
    assert_eq!(world.number(evictable).await, 0);
    assert_eq!(world.number(evict).await, -1);
    world.sql.batch("select postrider.seek_offset('holds', null, 120)").await;
    assert_eq!(world.number(evictable).await, 1, "the first table");
    // Whoever has caught up meanwhile is not evicted.
    world.sql.batch("select postrider.seek_offset('over', null, 340)").await;
    assert_eq!(world.number(evict).await, -1);
}
