//! What begins or changes while rows are removed: repairs, replays, parked events, and the table itself.

use super::{DAY, Fixture};
use crate::await_that::{SOON, await_that};
use crate::pipeline::{Pipeline, drop_slot};
use crate::relay::{postrider, postrider_ok};
use crate::server::{Client, Version};
use postrider::outbox::Layout;
use postrider::postgres::retention::{Guard, Hold, RetentionAction, RetentionSettings, Width};
use postrider::postgres::{SourceError, SqlState};

/// A repair and a replay from the table wait for a removal that has begun, and the next one sees them.
#[tokio::test]
async fn repair_and_replay_wait_for_a_removal_that_has_begun() {
    for (args, name) in [
        (&["repair", "--from-table"][..], "postrider repair"),
        (&["replay", "--since", "60d", "--source", "table"][..], "postrider replay"),
    ] {
        let pipeline = Pipeline::shared(Version::Pg17, "retention_begins").await;
        pipeline.insert(10).await;
        let relay = pipeline.run();
        pipeline.topic.await_records(10, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        // As the removal of a range of rows begins.
        let removal = Client::connect(&pipeline.url).await.unwrap();
        removal.batch("begin; select from postrider.cursor for key share").await;
        let config = pipeline.config.clone();
        let command = std::thread::spawn(move || postrider(&config, args));
        let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                     and wait_event_type = 'Lock'";
        await_that(&format!("{name} to wait"), SOON, || async {
            let found = pipeline.sql.text(waits).await.unwrap_or_default();
            if found == "1" { Ok(()) } else { Err(found) }
        })
        .await;
        let begun = "select (select count(*) from postrider.repair where state <> 'done') \
                     + (select count(*) from postrider.replay where finished_at is null)";
        assert_eq!(pipeline.sql.text(begun).await.as_deref(), Some("0"), "{name}");
        removal.batch("commit").await;
        await_that(&format!("{name} to end"), SOON, || async {
            if command.is_finished() { Ok(()) } else { Err("it runs") }
        })
        .await;
        let ended = command.join().expect("no panic");
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{name}: {errors}");
    }
}

/// While a partition is detached, the table does not have its rows: a repair waits for the detach, attaches what a
/// process that has ended left detached, and publishes the row that was inserted after the first look.
#[tokio::test]
async fn repair_publishes_the_rows_of_a_partition_that_was_left_detached() {
    for version in Version::ALL {
        let pipeline = Pipeline::shared(version, "retention_detached").await;
        postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
        pipeline.sql.batch(BY_TIME).await;
        postrider_ok(&pipeline.config, &["setup"]);
        let old = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                   values ('order', '1', 'Written', '1', now() - interval '40 days')";
        pipeline.sql.batch(old).await;
        let relay = pipeline.run();
        pipeline.topic.await_records(1, SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        pipeline.sql.batch(old).await;
        leave_detached(&pipeline.sql).await;
        drop_slot(&pipeline).await;

        let detaches = Client::connect(&pipeline.url).await.unwrap();
        let key = "hashtextextended('postrider retention of \"public\".\"outbox\" detaches this partition: ', 0)";
        detaches.batch(&format!("select pg_advisory_lock_shared({key})")).await;
        let config = pipeline.config.clone();
        let command = std::thread::spawn(move || postrider(&config, &["repair"]));
        let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                     and wait_event_type = 'Lock' and wait_event = 'advisory'";
        await_that("the repair to wait", SOON, || async {
            let found = pipeline.sql.text(waits).await.unwrap_or_default();
            if found == "1" { Ok(()) } else { Err(found) }
        })
        .await;
        detaches.batch(&format!("select pg_advisory_unlock_shared({key})")).await;
        pipeline.topic.await_records(2, SOON).await;
        await_that("the repair to end", SOON, || async {
            if command.is_finished() { Ok(()) } else { Err("it runs") }
        })
        .await;
        let ended = command.join().expect("no panic");
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{errors}");
        let rows = pipeline.sql.text("select count(*) from public.outbox").await;
        assert_eq!(rows.as_deref(), Some("2"), "it is a partition again");
    }
}

/// A comment that a process has left which detached nothing is removed: a partition that is detached by hand later is
/// its owner's.
#[tokio::test]
async fn partition_that_is_detached_by_hand_is_not_dropped() {
    let settings = RetentionSettings {
        keep: Some(3 * DAY),
        action: RetentionAction::Drop,
        ..RetentionSettings::default()
    };
    let fixture =
        Fixture::with(Version::Pg17, "retention_by_hand", Layout::Postrider, settings).await;
    let sql = &fixture.pipeline.sql;
    sql.batch(BY_TIME).await;
    fixture.belongs().await;
    fixture.insert(10, 40).await;
    sql.batch(&comment(sql).await).await;
    let report = fixture.pass().await;
    assert_eq!((report.taken, report.held.of(Guard::Unresolved)), (0, 10), "{report:?}");
    fixture.published().await;
    sql.batch("alter table public.outbox detach partition public.past").await;
    assert_eq!(fixture.pass().await.taken, 0);
    assert_eq!(fixture.count("public.past").await, 10);
}

/// An outbox with a partition for old rows.
const BY_TIME: &str = "\
drop table public.outbox; create table public.outbox (id bigint generated always as identity, \
  aggregate_type text not null, aggregate_id text not null, event_type text not null, payload json, headers json, \
  created_at timestamptz not null default clock_timestamp()) partition by range (created_at); \
create table public.past partition of public.outbox for values from (minvalue) \
  to (date_trunc('day', now()) - interval '30 days')";

/// The statement by which retention marks a partition that it is about to detach.
async fn comment(sql: &Client) -> String {
    let bound = "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'past'";
    let bound = sql.text(bound).await.expect("a bound").replace('\'', "''");
    format!(
        "comment on table public.past is 'postrider retention of \"public\".\"outbox\" detaches this partition: {bound}'"
    )
}

/// Leaves the partition as a process does that ends after the detach.
async fn leave_detached(sql: &Client) {
    sql.batch(&comment(sql).await).await;
    sql.batch("alter table public.outbox detach partition public.past concurrently").await;
}

/// A partition with the row of a parked event stays until the event is resolved, also when it was detached already.
#[tokio::test]
async fn partition_with_a_parked_event_stays_until_it_is_resolved() {
    for version in Version::ALL {
        let settings = RetentionSettings {
            keep: Some(3 * DAY),
            action: RetentionAction::Drop,
            width: Some(Width::Day),
            ..RetentionSettings::default()
        };
        let fixture = Fixture::with(version, "retention_parks", Layout::Postrider, settings).await;
        let sql = &fixture.pipeline.sql;
        sql.batch(BY_TIME).await;
        fixture.belongs().await;
        fixture.insert(10, 40).await;
        fixture.published().await;
        let parks = format!(
            "insert into postrider.parked (pipeline, commit_lsn, ordinal, commit_time, blocks, topic, state, event_id) \
             select '{}', '0/1', 0, now(), false, 'events', 'waiting', min(id)::text from public.past",
            fixture.pipeline.name
        );
        sql.batch(&parks).await;
        let report = fixture.pass().await;
        assert_eq!((report.taken, report.held.of(Guard::Parked)), (0, 1), "{report:?}");
        // A process has detached it before the event was parked, and has ended.
        leave_detached(sql).await;
        let report = fixture.pass().await;
        assert_eq!((report.taken, report.held.of(Guard::Parked)), (0, 1), "{report:?}");
        assert_eq!(fixture.count("public.outbox").await, 10, "it is a partition again");
        sql.batch("update postrider.parked set state = 'done', resolved_at = now()").await;
        assert_eq!(fixture.pass().await.taken, 1);
        assert_eq!(fixture.count("public.outbox").await, 0);
    }
}

/// Whatever becomes of the table, no row goes that is not known to be published.
#[tokio::test]
async fn table_that_is_altered_truncated_or_replaced_loses_no_unpublished_row() {
    for version in [Version::Pg15, Version::Pg18] {
        let fixture = Fixture::new(version, "retention_altered").await;
        let sql = &fixture.pipeline.sql;
        fixture.insert(5, 30).await;
        fixture.published().await;
        sql.batch("alter table public.outbox add extra text default 'x', alter event_type type varchar(99)").await;
        // The rewrite gave each row the number of a transaction that is not known to be resolved.
        let report = fixture.pass().await;
        assert_eq!((report.rows, report.held.of(Guard::Unresolved)), (0, 5), "{report:?}");
        fixture.published().await;
        assert_eq!(fixture.pass().await.rows, 5);

        fixture.insert(5, 30).await;
        sql.batch("truncate public.outbox").await;
        fixture.insert(2, 30).await;
        let report = fixture.pass().await;
        assert_eq!((report.rows, report.held.of(Guard::Unresolved)), (0, 2), "{report:?}");

        fixture.published().await;
        sql.batch("alter table public.outbox rename created_at to made_at").await;
        let report = fixture.try_pass().await;
        assert_eq!((report.rows, fixture.count("public.outbox").await), (0, 2), "{report:?}");
        assert!(!report.errors.is_empty() || !report.holds.is_empty(), "{report:?}");
        sql.batch("alter table public.outbox rename made_at to created_at").await;

        // Another table under its name: that of a partitioning by hand, or a new one.
        sql.batch(
            "alter table public.outbox alter id drop identity; \
             alter table public.outbox rename to outbox_old; \
             create table public.outbox (like public.outbox_old including defaults) partition by range (created_at); \
             alter table public.outbox attach partition public.outbox_old for values from (minvalue) to (maxvalue)",
        )
        .await;
        let hold = Hold::OtherSettings(fixture.pipeline.name.clone());
        let report = fixture.pass().await;
        assert_eq!((report.rows, report.holds), (0, vec![hold]));
        assert_eq!(fixture.count("public.outbox").await, 2);
        fixture.belongs().await;
        assert_eq!(fixture.pass().await.rows, 2, "its rows were published under the other name");

        sql.batch("drop table public.outbox").await;
        let report = fixture.try_pass().await;
        let state = report.errors.first().and_then(SourceError::sqlstate);
        assert_eq!(state, Some(SqlState::UNDEFINED_TABLE), "{report:?}");
    }
}
