//! Partitions of the outbox and of the archive: created ahead, taken out when all of their rows may go, and found
//! again whatever step a process ended at.

use super::beside::{Beside, Waits};
use super::{DAY, Fixture};
use crate::await_that::{SOON, await_that};
use crate::server::{Client, Version};
use postrider::outbox::Layout;
use postrider::postgres::names::TableName;
use postrider::postgres::retention::{
    Guard, Hold, PassReport, RetentionAction, RetentionSettings, Width,
};
use std::num::NonZeroU64;
use std::time::Duration;

/// An outbox by days of `created_at`: a partition for each of the last 5 days, and one of 40 to 30 days ago.
async fn by_days(version: Version, test: &str, action: RetentionAction) -> Fixture {
    let archive = (action == RetentionAction::Archive).then(|| TableName::new("public", "old"));
    let settings = RetentionSettings {
        keep: Some(3 * DAY),
        action,
        archive,
        width: Some(Width::Day),
        ..RetentionSettings::default()
    };
    let fixture = Fixture::with(version, test, Layout::Postrider, settings).await;
    fixture
        .pipeline
        .sql
        .batch(
            "alter table public.outbox rename to plain; \
             create table public.outbox (like public.plain including defaults) partition by range (created_at); \
             alter table public.outbox alter id add generated always as identity; \
             create table public.wide partition of public.outbox for values \
               from (date_trunc('day', now()) - interval '40 days') \
               to (date_trunc('day', now()) - interval '30 days'); \
             create table public.d4 partition of public.outbox for values \
               from (date_trunc('day', now()) - interval '4 days') to (date_trunc('day', now()) - interval '3 days'); \
             create table public.d3 partition of public.outbox for values \
               from (date_trunc('day', now()) - interval '3 days') to (date_trunc('day', now()))",
        )
        .await;
    if action == RetentionAction::Archive {
        fixture
            .pipeline
            .sql
            .batch(
                "create table public.old (like public.outbox including defaults) partition by range (created_at)",
            )
            .await;
    }
    fixture.belongs().await;
    fixture
}

/// The partitions of a table, by name.
async fn partitions(fixture: &Fixture, of: &str) -> String {
    let sql = format!(
        "select coalesce(string_agg(c.relname, ' ' order by c.relname), '') from pg_inherits i \
         join pg_class c on c.oid = i.inhrelid where i.inhparent = '{of}'::regclass and c.relname !~ '^outbox_p'"
    );
    fixture.pipeline.sql.text(&sql).await.unwrap_or_default()
}

fn taken(report: &PassReport) -> (u64, u64, bool) {
    (report.taken, report.held.total(), report.errors.is_empty())
}

/// A session with a transaction that has read a table: a detach waits for it.
async fn reader(fixture: &Fixture, table: &str) -> Client {
    let session = Client::connect(&fixture.pipeline.url).await.expect("a session");
    session
        .batch(&format!("begin isolation level repeatable read; select from public.{table}"))
        .await;
    session
}

#[tokio::test]
async fn partitions_are_created_ahead_and_dropped_when_all_of_their_rows_may_go() {
    for version in Version::ALL {
        let fixture = by_days(version, "retention_drop", RetentionAction::Drop).await;
        fixture.insert(10, 35).await;
        fixture.insert(5, 1).await;
        let report = fixture.pass().await;
        // Today's, and two ahead. Nothing is published yet, and one partition has no rows.
        assert_eq!((report.created, report.taken), (3, 1), "{report:?}");
        assert_eq!(report.held.of(Guard::Unresolved), 10, "{report:?}");
        fixture.insert(1, 0).await;
        fixture.published().await;
        fixture.insert(1, 35).await;
        let report = fixture.pass().await;
        // A row was committed after what is known to be published.
        assert_eq!((report.created, report.taken, report.held.of(Guard::Unresolved)), (0, 0, 1));
        assert_eq!(partitions(&fixture, "public.outbox").await, "d3 wide");
        fixture.published().await;
        let report = fixture.pass().await;
        assert_eq!(taken(&report), (1, 0, true), "{report:?}");
        assert_eq!(partitions(&fixture, "public.outbox").await, "d3");
        assert_eq!(
            fixture.count("public.outbox where created_at > now() - interval '3 days'").await,
            6
        );
        assert_eq!(fixture.count("pg_class where relname in ('wide', 'd4')").await, 0);
        fixture.insert(3, 0).await;
    }
}

#[tokio::test]
async fn partitions_are_attached_to_the_archive_and_dropped_there() {
    for version in Version::ALL {
        let mut fixture = by_days(version, "retention_attach", RetentionAction::Archive).await;
        fixture.insert(1000, 35).await;
        fixture.published().await;
        let report = fixture.pass().await;
        assert_eq!(taken(&report), (2, 0, true), "{report:?}");
        assert_eq!(partitions(&fixture, "public.old").await, "d4 wide");
        assert_eq!(fixture.count("public.old").await, 1000);
        assert_eq!(fixture.count("public.outbox").await, 0);
        assert_eq!(fixture.count("pg_description where description like 'postrider%'").await, 0);
        fixture.rule.settings.archive_keep = Some(36 * DAY);
        assert_eq!(fixture.pass().await.archive_dropped, 0);
        fixture.rule.settings.archive_keep = Some(10 * DAY);
        assert_eq!(fixture.pass().await.archive_dropped, 1);
        assert_eq!(partitions(&fixture, "public.old").await, "d4");
    }
}

/// How far a process had come that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The partition has its comment.
    Marked,
    /// `DETACH CONCURRENTLY` waits for a transaction, and was interrupted.
    Detaching,
    /// It is a table of its own.
    Detached,
}

/// Leaves partition `wide` of a table as a process leaves it that ends at this step.
async fn ended_at(step: Step, fixture: &Fixture, root: &str) {
    let sql = &fixture.pipeline.sql;
    let bound = "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'wide'";
    let bound = sql.text(bound).await.expect("a bound").replace('\'', "''");
    sql.batch(&format!(
        "comment on table public.wide is 'postrider retention of \"public\".\"{root}\" detaches this partition: {bound}'"
    ))
    .await;
    let detach = format!("alter table public.{root} detach partition public.wide concurrently");
    match step {
        Step::Marked => {}
        Step::Detached => sql.batch(&detach).await,
        Step::Detaching => {
            let waiting = reader(fixture, root).await;
            sql.batch("set lock_timeout = '300ms'; set statement_timeout = '1s'").await;
            sql.batch_execute(&detach).await.unwrap_err();
            sql.batch("reset lock_timeout; reset statement_timeout").await;
            assert_eq!(fixture.count("pg_inherits where inhdetachpending").await, 1);
            waiting.batch("commit").await;
        }
    }
}

/// The states that a process leaves which ends between two steps: of the outbox, and of the archive.
#[tokio::test]
async fn whatever_step_a_process_ended_at_the_next_pass_continues() {
    for version in Version::ALL {
        for step in [Step::Marked, Step::Detaching, Step::Detached] {
            for action in [RetentionAction::Drop, RetentionAction::Archive] {
                let what = format!("{version:?} {step:?} {action:?}");
                let mut fixture = by_days(version, "retention_steps", action).await;
                fixture.insert(10, 35).await;
                fixture.published().await;
                ended_at(step, &fixture, "outbox").await;
                let report = fixture.pass().await;
                assert_eq!(taken(&report), (2, 0, true), "{what} {report:?}");
                assert_eq!(partitions(&fixture, "public.outbox").await, "d3");
                if action != RetentionAction::Archive {
                    assert_eq!(fixture.count("pg_class where relname = 'wide'").await, 0, "{what}");
                    continue;
                }
                assert_eq!(fixture.count("public.old").await, 10, "{what}");
                ended_at(step, &fixture, "old").await;
                fixture.rule.settings.archive_keep = Some(10 * DAY);
                let report = fixture.pass().await;
                assert_eq!(
                    (report.archive_dropped, report.errors.len()),
                    (1, 0),
                    "{what} {report:?}"
                );
                assert_eq!(fixture.count("pg_class where relname = 'wide'").await, 0, "{what}");
            }
        }
    }
}

/// A transaction that reads the table blocks a detach: the pass reports it with the query that finds it, writers go on,
/// and the next pass continues.
#[tokio::test]
async fn partition_that_a_reader_holds_is_reported_and_taken_by_a_later_pass() {
    let fixture = by_days(Version::Pg18, "retention_reader", RetentionAction::Drop).await;
    fixture.insert(10, 35).await;
    fixture.published().await;
    let holder = reader(&fixture, "outbox").await;
    let insert = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                  values ('o', '1', 'e', '1', now() - interval '1 day')";
    let writer = Beside::start(&fixture.pipeline.url, insert);
    let report = fixture.try_pass().await;
    let Waits { count, longest } = writer.stop();
    assert!(count > 0 && longest < Duration::from_secs(1), "{count}, {longest:?}");
    assert_eq!(report.taken, 0, "{report:?}");
    let hint = fixture.rule.hint(&report.errors[0], &[]).unwrap_or_default();
    assert!(hint.contains("FROM pg_stat_activity WHERE xact_start IS NOT NULL"), "{hint}");
    holder.batch("commit").await;
    let report = fixture.pass().await;
    assert_eq!((report.taken, report.errors.len()), (2, 0), "{report:?}");
}

/// Detached, and the process ended. A row was added after the first look: the partition is attached again with it.
#[tokio::test]
async fn partition_that_got_a_row_while_it_was_detached_is_attached_again() {
    for version in Version::ALL {
        let fixture = by_days(version, "retention_late", RetentionAction::Drop).await;
        let sql = &fixture.pipeline.sql;
        fixture.insert(10, 35).await;
        fixture.published().await;
        let bound = "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'wide'";
        let bound = sql.text(bound).await.unwrap().replace('\'', "''");
        fixture.insert(1, 35).await;
        sql.batch(&format!(
            "comment on table public.wide is 'postrider retention of \"public\".\"outbox\" detaches this partition: \
             {bound}'"
        ))
        .await;
        sql.batch("alter table public.outbox detach partition public.wide concurrently").await;
        assert_eq!(fixture.count("public.outbox").await, 0);
        let report = fixture.pass().await;
        assert_eq!(report.held.of(Guard::Unresolved), 1, "{report:?}");
        assert_eq!(fixture.count("public.outbox").await, 11);
        assert_eq!(fixture.count("pg_description where description like 'postrider%'").await, 0);
        fixture.published().await;
        assert_eq!(fixture.pass().await.taken, 1);
        assert_eq!(fixture.count("pg_class where relname = 'wide'").await, 0);
    }
}

/// An outbox that is polled, by days. Its rows have marks.
pub(super) async fn polled_by_days(version: Version, test: &str) -> Fixture {
    let settings = RetentionSettings {
        keep: Some(3 * DAY),
        action: RetentionAction::Drop,
        width: Some(Width::Day),
        ..RetentionSettings::default()
    };
    let mut fixture = Fixture::with(version, test, Layout::Adr30, settings).await;
    (fixture.rule.mode, fixture.rule.marked) = ("poll", true);
    let sql = &fixture.pipeline.sql;
    sql.batch(
        "alter table public.outbox rename to plain; \
         create table public.outbox (like public.plain including defaults) partition by range (created_at); \
         create index on public.outbox (created_at) where published_at is null; \
         create table public.wide partition of public.outbox for values \
           from (date_trunc('day', now()) - interval '40 days') to (date_trunc('day', now()) - interval '30 days'); \
         create table public.d3 partition of public.outbox for values \
           from (date_trunc('day', now()) - interval '3 days') to (date_trunc('day', now()))",
    )
    .await;
    sql.batch("update postrider.cursor set slot = '', resolved_snapshot = null").await;
    fixture.belongs().await;
    fixture
}

/// An event of 35 days ago.
const OLD: &str = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at) \
                   values ('o', gen_random_uuid(), 'e', '1', now() - interval '35 days')";

/// Polling reads the table: at no moment may a row without its mark be in a partition that queries of the table do not
/// find. Here the transaction of the row is open while the rows of the partition are read.
#[tokio::test]
async fn polled_table_hides_no_row_that_is_not_published() {
    for version in Version::ALL {
        let fixture = polled_by_days(version, "retention_polled").await;
        let sql = &fixture.pipeline.sql;
        for _ in 0..3 {
            sql.batch(OLD).await;
        }
        sql.batch("update public.outbox set published_at = created_at").await;
        let writer = Client::connect(&fixture.pipeline.url).await.expect("a session");
        writer.batch(&format!("begin; {OLD}")).await;
        let current = OLD.replace("interval '35 days'", "interval '1 day'");
        let beside = Beside::start(&fixture.pipeline.url, &current);
        let report = fixture.try_pass().await;
        let Waits { count, longest } = beside.stop();
        assert!(count > 0 && longest < Duration::from_secs(1), "{count}, {longest:?}");
        assert_eq!((report.taken, report.errors.len()), (0, 1), "{report:?}");
        let hint = fixture.rule.hint(&report.errors[0], &[]).unwrap_or_default();
        assert!(hint.contains("FROM pg_stat_activity WHERE xact_start IS NOT NULL"), "{hint}");
        writer.batch("commit").await;
        let polled =
            "public.outbox where published_at is null and created_at < now() - interval '30 days'";
        assert_eq!(fixture.count(polled).await, 1, "polling finds it");
        let report = fixture.pass().await;
        assert_eq!((report.taken, report.held.of(Guard::Unmarked)), (0, 1), "{report:?}");
        assert_eq!(fixture.count(polled).await, 1, "polling finds it");
        sql.batch(
            "update public.outbox set published_at = created_at \
             where published_at is null and created_at < now() - interval '30 days'",
        )
        .await;
        assert_eq!(taken(&fixture.pass().await), (1, 0, true));
        assert_eq!(partitions(&fixture, "public.outbox").await, "d3");
        assert_eq!(fixture.count("pg_class where relname = 'wide'").await, 0);
    }
}

/// The constraint by which a partition is attached without reading its rows, and the comment, do not stay.
#[tokio::test]
async fn partitions_of_a_polled_table_are_archived_with_nothing_left_behind() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut fixture = polled_by_days(version, "retention_polled_old").await;
        let sql = &fixture.pipeline.sql;
        sql.batch("create table public.old (like public.outbox) partition by range (created_at)")
            .await;
        for _ in 0..3 {
            sql.batch(OLD).await;
        }
        sql.batch("update public.outbox set published_at = created_at").await;
        let settings = &mut fixture.rule.settings;
        settings.action = RetentionAction::Archive;
        settings.archive = Some(TableName::new("public", "old"));
        assert_eq!(taken(&fixture.pass().await), (1, 0, true));
        assert_eq!(partitions(&fixture, "public.outbox").await, "d3");
        assert_eq!(partitions(&fixture, "public.old").await, "wide");
        assert_eq!(fixture.count("public.old").await, 3);
        assert_eq!(fixture.count("pg_constraint where conname = 'postrider_bounds'").await, 0);
        assert_eq!(fixture.count("pg_description where description like 'postrider%'").await, 0);
    }
}

/// Beside a default partition the server refuses to detach concurrently; plain tables have no partitions; pg_partman
/// removes its own. Each is named, and nothing is removed.
#[tokio::test]
async fn tables_whose_partitions_are_not_ours_to_take_are_named() {
    let fixture = by_days(Version::Pg17, "retention_default", RetentionAction::Drop).await;
    let sql = &fixture.pipeline.sql;
    fixture.insert(10, 35).await;
    fixture.published().await;
    sql.batch("create table public.others partition of public.outbox default").await;
    let report = fixture.pass().await;
    let hold = Hold::DefaultPartition("\"public\".\"others\"".to_owned());
    assert_eq!((report.taken, report.holds), (0, vec![hold]));
    sql.batch("alter table public.outbox detach partition public.others").await;
    sql.batch(
        "create schema partman; create table partman.part_config (parent_table text); \
         insert into partman.part_config values ('public.outbox')",
    )
    .await;
    let report = fixture.pass().await;
    assert_eq!((report.taken, report.created, report.holds), (0, 0, vec![Hold::Partman]));
    sql.batch("drop schema partman cascade; create table public.last partition of public.outbox for values \
               from (now() + interval '9 days') to (maxvalue)")
        .await;
    let report = fixture.pass().await;
    assert!(matches!(report.holds.as_slice(), [Hold::NoUpperBound(_)]), "{report:?}");
    assert_eq!(report.taken, 2);

    let mut plain = Fixture::new(Version::Pg17, "retention_plain").await;
    plain.rule.settings.action = RetentionAction::Drop;
    plain.published().await;
    assert_eq!(plain.pass().await.holds, [Hold::NotPartitioned]);
}

/// Partitions by numbers: their rows say how old they are, and the one that the next number belongs to stays.
#[tokio::test]
async fn partitions_by_numbers_are_created_and_dropped_by_their_rows() {
    for version in [Version::Pg15, Version::Pg18] {
        let settings = RetentionSettings {
            keep: Some(DAY),
            action: RetentionAction::Drop,
            width: Some(Width::Numbers(NonZeroU64::new(100).unwrap())),
            ..RetentionSettings::default()
        };
        let fixture =
            Fixture::with(version, "retention_numbers", Layout::Postrider, settings).await;
        fixture
            .pipeline
            .sql
            .batch(
                "drop table public.outbox; create table public.outbox (id bigint generated always as identity, \
                   aggregate_type text not null, aggregate_id text not null, event_type text not null, payload json, \
                   headers json, created_at timestamptz not null default clock_timestamp(), primary key (id)) \
                   partition by range (id)",
            )
            .await;
        fixture.belongs().await;
        let report = fixture.pass().await;
        assert_eq!(report.created, 3, "{report:?}");
        fixture.insert(99, 30).await;
        fixture.insert(100, 0).await;
        fixture.insert(50, 30).await;
        fixture.published().await;
        let report = fixture.pass().await;
        assert_eq!((report.created, report.taken), (2, 1), "{report:?}");
        assert_eq!(fixture.count("public.outbox").await, 150);
        fixture.insert(100, 0).await;
    }
}

/// Creating partitions and detaching them stops nobody: a statement waits no longer than for a lock of some
/// milliseconds.
#[tokio::test]
async fn readers_and_writers_go_on_while_partitions_are_created_detached_and_archived() {
    let fixture = by_days(Version::Pg18, "retention_writers", RetentionAction::Archive).await;
    fixture.insert(1000, 35).await;
    fixture.pass().await;
    fixture.published().await;
    let insert = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                  values ('o', '1', 'e', '1')";
    let writer = Beside::start(&fixture.pipeline.url, insert);
    let reader = Beside::start(&fixture.pipeline.url, "select from public.outbox limit 1");
    await_that("the partitions to be archived", SOON, || async {
        let report = fixture.try_pass().await;
        let left = partitions(&fixture, "public.outbox").await;
        if left == "d3" { Ok(()) } else { Err(format!("{left}: {report:?}")) }
    })
    .await;
    for (who, beside) in [("inserts", writer), ("selects", reader)] {
        let Waits { count, longest } = beside.stop();
        crate::pipeline::show(&format!("{count} {who}, the longest {longest:?}"));
        assert!(count > 0 && longest < Duration::from_secs(1), "{who}: {count}, {longest:?}");
    }
}
