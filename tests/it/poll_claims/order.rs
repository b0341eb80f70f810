//! Which rows, in which order, whatever writers do meanwhile.

use super::*;

const ROWS: &str = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
    select 'order', chr(96 + (n - 1) % 3 + 1), 'x', '{}' from generate_series(1, 9) n";

#[tokio::test]
async fn claims_follow_one_another_in_order() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Postrider, "poll_order").await;
        outbox.client.batch(ROWS).await;
        let mut poller = outbox.poller().await;
        let all = ["a/1", "b/2", "c/3", "a/4", "b/5", "c/6", "a/7", "b/8", "c/9"];
        assert_eq!(outbox.drain(&mut poller, 4).await, all);
    }
}

#[tokio::test]
async fn a_row_committed_late_with_a_low_number_is_not_lost() {
    let outbox = Outbox::create(Version::Pg15, Layout::Postrider, "poll_late").await;
    let one =
        "insert into outbox (aggregate_type, aggregate_id, event_type) values ('order', 'a', 'x')";
    let mut slow = outbox.database.connect().await;
    let slow = slow.get_mut().transaction().await.unwrap();
    slow.batch_execute(one).await.unwrap();
    outbox.client.batch(one).await;
    let mut poller = outbox.poller().await;
    assert_eq!(outbox.drain(&mut poller, 10).await, ["a/2"], "what is committed, and nothing else");
    slow.commit().await.unwrap();
    assert_eq!(outbox.drain(&mut poller, 10).await, ["a/1"]);
}

#[tokio::test]
async fn a_locked_row_holds_back_its_aggregate_alone() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Postrider, "poll_locked").await;
        outbox.client.batch(ROWS).await;
        let mut holder = outbox.database.connect().await;
        let holder = holder.get_mut().transaction().await.unwrap();
        holder.batch_execute("select from outbox where id = 4 for update").await.unwrap();
        let mut poller = outbox.poller().await;
        let claim = poller.claim(100, None).await.unwrap();
        assert_eq!(outbox.ids(&poller, &claim), ["a/1", "b/2", "c/3", "b/5", "c/6", "b/8", "c/9"]);
        assert_eq!(claim.withheld, 2);
        published(&mut poller, claim).await;
        holder.rollback().await.unwrap();
        assert_eq!(outbox.drain(&mut poller, 100).await, ["a/4", "a/7"]);
    }
}

#[tokio::test]
async fn an_aggregate_that_is_held_back_does_not_fill_the_claims() {
    let outbox = Outbox::create(Version::Pg18, Layout::Sqlgarden, "poll_starved").await;
    let rows = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
        select 'order', 'dead', 'x', '{}' from generate_series(1, 50);
        insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) values ('order', 'b', 'x', '{}');
        update outbox_events set status = 'FAILED', attempt_count = 10 where id = 1";
    outbox.client.batch(rows).await;
    let mut poller = outbox.poller().await;
    assert_eq!(outbox.drain(&mut poller, 10).await, ["b/51"]);
}

#[tokio::test]
async fn a_delay_holds_back_the_later_events_of_its_aggregate_and_no_earlier_one() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Commerce, "poll_delay").await;
        let rows = "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload)
            select 1, 'order', (n - 1) % 2, 'x', '{}' from generate_series(1, 6) n;
            update outbox_messages set available_at = now() + interval '1 hour' where id = 3";
        outbox.client.batch(rows).await;
        let mut poller = outbox.poller().await;
        assert_eq!(outbox.drain(&mut poller, 100).await, ["0/1", "1/2", "1/4", "1/6"]);
        outbox.client.batch("update outbox_messages set available_at = now()").await;
        assert_eq!(outbox.drain(&mut poller, 100).await, ["0/3", "0/5"]);
    }
}

#[tokio::test]
async fn rows_of_one_transaction_keep_their_order_where_ids_are_random() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Adr30, "poll_uuid").await;
        let mut ids = Vec::new();
        let mut writer = outbox.database.connect().await;
        let writer = writer.get_mut().transaction().await.unwrap();
        for _ in 0..30 {
            let sql = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
                values ('booking', '00000000-0000-4000-8000-000000000001', 'x', '{}') returning id::text";
            let row = writer.query_one(sql, &[]).await.unwrap();
            ids.push(format!("00000000-0000-4000-8000-000000000001/{}", row.get::<_, String>(0)));
        }
        writer.commit().await.unwrap();
        let mut poller = outbox.poller().await;
        assert_eq!(outbox.drain(&mut poller, 7).await, ids);
    }
}

#[tokio::test]
async fn what_a_dead_relay_was_publishing_is_taken_again() {
    let outbox = Outbox::create(Version::Pg15, Layout::Sqlgarden, "poll_taken").await;
    let rows =
        "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload, status)
        values ('order', 'a', 'x', '{}', 'PUBLISHING'), ('order', 'a', 'x', '{}', 'PENDING')";
    outbox.client.batch(rows).await;
    let mut poller = outbox.poller().await;
    assert_eq!(outbox.drain(&mut poller, 100).await, ["a/1", "a/2"]);
}

#[tokio::test]
async fn a_failed_row_of_sqlgarden_is_tried_again_when_it_has_rested() {
    let outbox = Outbox::create(Version::Pg15, Layout::Sqlgarden, "poll_again").await;
    let rows = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
        select 'order', 'a', 'x', '{}' from generate_series(1, 2)";
    outbox.client.batch(rows).await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(10, None).await.unwrap();
    poller.settle(claim, &[failed(), RowOutcome::Held]).await.unwrap();
    assert!(outbox.drain(&mut poller, 10).await.is_empty());
    outbox
        .client
        .batch("update outbox_events set last_attempt_at = now() - interval '30 seconds'")
        .await;
    assert_eq!(outbox.drain(&mut poller, 10).await, ["a/1", "a/2"]);
}

/// The relay holds its rows for a parked event; they are the oldest, and more than a claim takes.
#[tokio::test]
async fn an_aggregate_that_is_held_as_a_whole_does_not_fill_every_claim() {
    let outbox = Outbox::create(Version::Pg17, Layout::Sqlgarden, "poll_held").await;
    let rows = "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
        select 'order', case when n <= 4 then 'a' else 'b' end, 'x', '{}' from generate_series(1, 6) n";
    outbox.client.batch(rows).await;
    let mut poller = outbox.poller().await;
    let claim = poller.claim(2, None).await.unwrap();
    assert_eq!(outbox.ids(&poller, &claim), ["a/1", "a/2"]);
    poller.settle(claim, &[RowOutcome::Held, RowOutcome::Held]).await.unwrap();
    assert_eq!(outbox.drain(&mut poller, 2).await, ["b/5", "b/6"]);
}

#[tokio::test]
async fn only_what_a_snapshot_sees_is_claimed() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Commerce, "poll_snapshot").await;
        let one = "insert into outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload)
            values (1, 'order', 1, 'x', '{}')";
        let mut open = outbox.database.connect().await;
        let open = open.get_mut().transaction().await.unwrap();
        open.batch_execute(one).await.unwrap();
        outbox.client.batch(one).await;
        outbox.client.batch(one).await;
        let snapshot = outbox.client.text("select pg_current_snapshot()").await.unwrap();
        open.commit().await.unwrap();
        outbox.client.batch(one).await;
        let mut poller = outbox.poller().await;
        let claim = poller.claim(10, Some(&snapshot)).await.unwrap();
        assert_eq!(outbox.ids(&poller, &claim), ["1/2", "1/3"]);
        poller.settle(claim, &[failed(), RowOutcome::Held]).await.unwrap();
        outbox
            .client
            .batch("update outbox_messages set available_at = now() where attempts > 0")
            .await;
        let claim = poller.claim(10, Some(&snapshot)).await.unwrap();
        assert_eq!(
            outbox.ids(&poller, &claim),
            ["1/2", "1/3"],
            "also after it was marked as failed"
        );
        published(&mut poller, claim).await;
        assert_eq!(outbox.drain(&mut poller, 10).await, ["1/1", "1/4"]);
    }
}

/// Only what can be had of the order of insertion tells where the delayed row lies: its transaction number is that of
/// the savepoint.
#[tokio::test]
async fn a_delayed_row_of_a_savepoint_holds_back_what_was_inserted_behind_it() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Commerce, "poll_savepoint").await;
        let random = "alter table outbox_messages alter id drop identity;
            alter table outbox_messages alter id type uuid using gen_random_uuid(),
                alter occurred_at set default date_trunc('milliseconds', now()) + interval '123 microseconds'";
        outbox.client.batch(random).await;
        let id = |n: u8| format!("00000000-0000-4000-8000-00000000000{n}");
        let row = |n: u8, delay: &str| {
            format!(
                "insert into outbox_messages \
                 (id, tenant_id, aggregate_type, aggregate_id, event_type, payload, available_at) \
                 values ('{}', 1, 'order', 1, 'x', '{{}}', now() + interval '{delay}');",
                id(n)
            )
        };
        let (first, delayed, behind) = (row(1, "0"), row(2, "1 hour"), row(3, "0"));
        let sql = format!("begin; {first} savepoint s; {delayed} release s; {behind} commit");
        outbox.client.batch(&sql).await;
        let mut poller = outbox.poller().await;
        assert_eq!(outbox.drain(&mut poller, 10).await, [format!("1/{}", id(1))]);
    }
}

/// A row lock makes the commands of the transaction's rows doubtful. The delayed row holds back the others all the
/// same.
#[tokio::test]
async fn a_delayed_row_holds_back_what_follows_though_a_later_row_was_locked() {
    for version in VERSIONS {
        let outbox = Outbox::create(version, Layout::Commerce, "poll_delay_lock").await;
        let random = "alter table outbox_messages alter id drop identity;
            alter table outbox_messages alter id type uuid using gen_random_uuid(),
                alter occurred_at set default date_trunc('milliseconds', now())";
        outbox.client.batch(random).await;
        let row = |n: u8, delay: &str| {
            format!(
                "insert into outbox_messages \
                 (id, tenant_id, aggregate_type, aggregate_id, event_type, payload, available_at) \
                 values ('00000000-0000-4000-8000-00000000000{n}', 1, 'order', 1, 'x', '{{}}', \
                   now() + interval '{delay}');"
            )
        };
        let (other, delayed) =
            ("update outbox_messages set attempts = 0 where false;", row(3, "1 hour"));
        let sql = format!("begin; {other} {delayed} {} {} commit", row(2, "0"), row(1, "0"));
        outbox.client.batch(&sql).await;
        let lock =
            "begin; select from outbox_messages where id::text like '%1' for update; rollback";
        outbox.client.batch(lock).await;
        let mut poller = outbox.poller().await;
        assert_eq!(outbox.drain(&mut poller, 10).await, [""; 0]);
    }
}
