//! Rows: which are deleted, which are moved, and which stay, in each layout's own rule.

use super::{DAY, Fixture};
use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::{Client, Version};
use crate::toolkit::install_toolkit;
use postrider::outbox::Layout;
use postrider::postgres::names::TableName;
use postrider::postgres::retention::{
    Guard, Hold, KeepFrom, RetentionAction, RetentionSettings, Width, survey,
};
use std::time::Duration;

const WEEK: Duration = Duration::from_hours(7 * 24);

fn keeping(keep: Duration) -> RetentionSettings {
    RetentionSettings { keep: Some(keep), ..RetentionSettings::default() }
}

/// In mode `poll` a row is known to be published by its mark alone. The rule without that guard removes the others.
#[tokio::test]
async fn only_marked_rows_go_where_the_table_is_polled() {
    for version in Version::ALL {
        let mut fixture =
            Fixture::with(version, "retention_marks", Layout::Adr30, keeping(WEEK)).await;
        (fixture.rule.mode, fixture.rule.marked) = ("poll", true);
        fixture.belongs().await;
        let sql = &fixture.pipeline.sql;
        sql.batch("update postrider.cursor set slot = '', resolved_snapshot = null").await;
        sql.batch(
            "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, published_at) \
             select 'booking', gen_random_uuid(), 'e', '1', now() - interval '30 days', published \
             from (values (now() - interval '8 days'), (now() - interval '1 day'), (null)) v(published), \
               generate_series(1, 100)",
        )
        .await;
        let found = survey(fixture.control.client(), &fixture.table().await).await.unwrap();
        assert_eq!((found.rows, found.removable()), (300, 100), "{found:?}");
        assert_eq!(found.held.of(Guard::Unmarked), 100);
        let report = fixture.pass().await;
        assert_eq!((report.rows, report.held.of(Guard::Unmarked)), (100, 100));
        assert_eq!(fixture.count("public.outbox where published_at is null").await, 100);
        assert_eq!(fixture.count("public.outbox").await, 200);

        assert_eq!(fixture.removes_without(Guard::Unmarked).await, 100);
    }
}

/// A row has to have a time, and `keep` counts from its publication, where the row has that.
#[tokio::test]
async fn keep_counts_from_publication_and_rows_without_a_time_stay() {
    let fixture = Fixture::new(Version::Pg16, "retention_time").await;
    let sql = &fixture.pipeline.sql;
    sql.batch("alter table public.outbox alter created_at drop not null").await;
    fixture.insert(50, 30).await;
    sql.batch("update public.outbox set created_at = null where id % 5 = 0").await;
    fixture.insert(7, 0).await;
    fixture.published().await;
    let found = survey(fixture.control.client(), &fixture.table().await).await.unwrap();
    assert_eq!((found.removable(), found.without_time), (40, 10));
    assert_eq!(fixture.pass().await.rows, 40);
    assert_eq!(fixture.count("public.outbox where created_at is null").await, 10);
    assert_eq!(fixture.count("public.outbox").await, 17);
}

/// Rows whose transactions are not known to be resolved stay, however old they are, and are counted.
#[tokio::test]
async fn old_rows_that_are_not_published_stay_and_are_counted() {
    let fixture = Fixture::new(Version::Pg18, "retention_unpublished").await;
    fixture.insert(20, 30).await;
    fixture.published().await;
    fixture.insert(30, 30).await;
    let report = fixture.pass().await;
    assert_eq!((report.rows, report.held.of(Guard::Unresolved)), (20, 30));
    // An update of a published row makes it one that is not known to be published.
    fixture.pipeline.sql.batch("update public.outbox set event_type = 'x'").await;
    fixture.published().await;
    assert_eq!(fixture.pass().await.rows, 30);
}

/// A row from before the slot that is updated, or rewritten with its table, has the number of a later transaction, and
/// its time may be later than the first start of the relay: no condition on the row shows that no stream has it.
#[tokio::test]
async fn rows_from_before_the_slot_that_look_published_stay() {
    for makes_new in [
        "update public.outbox set event_type = 'x'",
        "alter table public.outbox add column extra timestamptz default clock_timestamp()",
    ] {
        let fixture = Fixture::new(Version::Pg18, "retention_looks").await;
        fixture.insert(3, 30).await;
        let sql = &fixture.pipeline.sql;
        // The pipeline has polled for two months, and then its slot was created.
        sql.batch(
            "update postrider.cursor set before_slot = pg_current_snapshot(), \
               histories = array[floor(extract(epoch from now() - interval '60 days'))::bigint]",
        )
        .await;
        sql.batch(makes_new).await;
        fixture.published().await;
        let seen = "public.outbox o, postrider.cursor c \
                    where pg_visible_in_snapshot(o.xmin::text::xid8, c.before_slot)";
        assert_eq!(fixture.count(seen).await, 0, "{makes_new}: they look as if they were new");
        let found = survey(fixture.control.client(), &fixture.table().await).await.unwrap();
        assert_eq!((found.removable(), found.allowed), (0, 3), "{makes_new}");
        let report = fixture.pass().await;
        let hold = Hold::BeforeSlot(fixture.pipeline.name.clone());
        assert_eq!((report.rows, report.holds), (0, vec![hold]), "{makes_new}");
        sql.batch("update postrider.cursor set before_slot = '3:3:'").await;
        assert_eq!(fixture.pass().await.rows, 3, "{makes_new}");
    }
}

/// `setup` knows that a table without a row has none from before the slot.
#[tokio::test]
async fn table_without_rows_at_setup_has_no_rows_from_before_its_slot() {
    let whole = "select before_slot::text = '3:3:' from postrider.cursor";
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = Pipeline::shared(version, "retention_empty").await;
        let again = async |makes: &str| {
            postrider_ok(&pipeline.config, &["setup", "--undo", "--yes"]);
            pipeline.sql.batch(makes).await;
            postrider_ok(&pipeline.config, &["setup"]);
            pipeline.sql.text(whole).await.unwrap_or_default()
        };
        assert_eq!(again("select").await, "t");
        let insert = "insert into public.outbox (aggregate_type, aggregate_id, event_type) values ('o', '1', 'e')";
        assert_eq!(again(insert).await, "f");
        assert_eq!(again("truncate public.outbox").await, "t");
        let partitioned = "drop table public.outbox; \
            create table public.outbox (id bigint, aggregate_type text, aggregate_id text, event_type text, \
              payload json, headers json, created_at timestamptz not null default now()) \
              partition by range (created_at); \
            create table public.part partition of public.outbox default";
        assert_eq!(again(partitioned).await, "t");
        assert_eq!(again(insert).await, "f");
    }
}

/// That is known of the table that setup has seen. Another one that is configured before the first start has rows which
/// no stream publishes.
#[tokio::test]
async fn table_that_is_configured_after_setup_may_have_rows_from_before_the_slot() {
    let pipeline = Pipeline::shared(Version::Pg17, "retention_other").await;
    pipeline
        .sql
        .batch(
            "create table public.outbox2 (like public.outbox including all); \
             insert into public.outbox2 (aggregate_type, aggregate_id, event_type) values ('o', '1', 'e')",
        )
        .await;
    pipeline.sql("alter publication {publication} add table public.outbox2").await;
    let whole = "select before_slot::text = '3:3:' from postrider.cursor";
    assert_eq!(pipeline.sql.text(whole).await.as_deref(), Some("t"));
    for (config, wanted) in [
        (pipeline.config.clone(), "t"),
        (pipeline.config.replace("public.outbox\"", "public.outbox2\""), "f"),
    ] {
        let relay = Relay::spawn(&config);
        relay.await_state("streaming", SOON).await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        assert_eq!(pipeline.sql.text(whole).await.as_deref(), Some(wanted));
        // As if no relay had run.
        pipeline.sql.batch("update postrider.cursor set of_mode = null").await;
    }
}

/// The snapshot of another cluster, table, mode or layout says nothing about the rows.
#[tokio::test]
async fn position_of_another_cluster_table_or_mode_removes_nothing() {
    let fixture = Fixture::new(Version::Pg17, "retention_elsewhere").await;
    fixture.insert(5, 30).await;
    fixture.published().await;
    let name = fixture.pipeline.name.clone();
    for (change, hold) in [
        ("system_identifier = '1'", Hold::OtherCluster(name.clone())),
        ("of_table_oid = 1", Hold::OtherSettings(name.clone())),
        ("of_mode = 'auto'", Hold::OtherSettings(name.clone())),
        ("of_layout = 'gcx'", Hold::OtherSettings(name.clone())),
        ("of_marks = true", Hold::OtherSettings(name.clone())),
        ("of_mode = null", Hold::NeverRan(name.clone())),
        ("before_slot = null", Hold::BeforeSlot(name.clone())),
        ("before_slot = pg_current_snapshot()", Hold::BeforeSlot(name.clone())),
        ("resolved_snapshot = null", Hold::NothingResolved(name.clone())),
    ] {
        let sql = &fixture.pipeline.sql;
        sql.batch("create temporary table before as select * from postrider.cursor").await;
        sql.batch(&format!("update postrider.cursor set {change}")).await;
        let report = fixture.pass().await;
        assert_eq!((report.rows, report.holds.contains(&hold)), (0, true), "{change}: {report:?}");
        sql.batch(
            "delete from postrider.cursor; insert into postrider.cursor select * from before; drop table before",
        )
        .await;
    }
    assert_eq!(fixture.pass().await.rows, 5);
}

/// A repair or a replay from the table that begins while rows are removed waits for that, or is seen by it.
#[tokio::test]
async fn removal_and_the_begin_of_a_replay_exclude_each_other() {
    let fixture = Fixture::new(Version::Pg17, "retention_locks").await;
    fixture.insert(5, 30).await;
    fixture.published().await;
    let client = fixture.control.client();
    client.batch_execute("begin").await.unwrap();
    fixture.table().await.lock_readers(client).await.unwrap();
    let session = Client::connect(&fixture.pipeline.url).await.unwrap();
    session.batch("set application_name = 'a replay'").await;
    let name = fixture.pipeline.name.clone();
    #[expect(clippy::disallowed_methods, reason = "the handle is kept, and awaited")]
    let begins = tokio::spawn(async move {
        session
            .batch(&format!(
                "begin; select from postrider.cursor where pipeline = '{name}' for update; \
                 insert into postrider.replay (pipeline, name, request, source) \
                   values ('{name}', 'r', '{{}}', 'table'); \
                 commit"
            ))
            .await;
    });
    let waits = "pg_stat_activity where application_name = 'a replay' and wait_event_type = 'Lock'";
    await_that("the replay to wait", SOON, || async {
        if fixture.count(waits).await == 1 { Ok(()) } else { Err("it does not wait") }
    })
    .await;
    client.batch_execute("commit").await.unwrap();
    begins.await.unwrap();
    let report = fixture.pass().await;
    let hold = Hold::Replay(fixture.pipeline.name.clone(), "r".to_owned());
    assert_eq!((report.rows, report.holds), (0, vec![hold]));
}

/// A row that somebody has locked is left to the next pass, and the others go.
#[tokio::test]
async fn rows_that_are_locked_are_left_to_the_next_pass() {
    let fixture = Fixture::new(Version::Pg15, "retention_locked").await;
    fixture.insert(5000, 30).await;
    fixture.published().await;
    let holder = Client::connect(&fixture.pipeline.url).await.unwrap();
    holder.batch("begin; select from public.outbox where ctid = '(0,1)' for update").await;
    let report = fixture.pass().await;
    assert!(report.busy == 1 && report.rows > 4000, "{report:?}");
    let left = fixture.count("public.outbox").await;
    assert!((1..1000).contains(&left), "{left}");
    holder.batch("commit").await;
    assert_eq!(fixture.pass().await.rows, left.unsigned_abs());
}

/// Seed 003: `published_at < now() - 7 days`. Seed 002: `status = 'PUBLISHED' AND created_at < …`.
#[tokio::test]
async fn layouts_with_marks_have_the_rules_of_their_own_relays() {
    let mut fixture =
        Fixture::with(Version::Pg17, "retention_sqlgarden", Layout::Sqlgarden, keeping(WEEK)).await;
    (fixture.rule.mode, fixture.rule.marked) = ("poll", true);
    fixture.rule.settings.keep_from = KeepFrom::Time;
    fixture.belongs().await;
    let sql = &fixture.pipeline.sql;
    sql.batch("update postrider.cursor set slot = ''").await;
    sql.batch(
        "insert into public.outbox_events (aggregate_type, aggregate_id, event_type, payload, status, created_at) \
         select 'o', '1', 'e', '1', s, now() - d * interval '1 day' \
         from unnest(array['PENDING', 'PUBLISHED', 'FAILED', 'PUBLISHING']) s, unnest(array[1, 8]) d",
    )
    .await;
    assert_eq!(fixture.pass().await.rows, 1);
    let theirs = "public.outbox_events where status = 'PUBLISHED' and created_at < now() - interval '7 days'";
    assert_eq!((fixture.count(theirs).await, fixture.count("public.outbox_events").await), (0, 7));
}

/// Seed 001: published rows whose `expires_at` has passed, and processed events whose `expires_at` has passed.
#[tokio::test]
async fn layout_gcx_removes_expired_published_rows_and_processed_events() {
    let settings = RetentionSettings {
        keep: Some(Duration::from_secs(1)),
        keep_from: KeepFrom::Expiry,
        processed_events: Some(TableName::new("public", "processed_events")),
        ..RetentionSettings::default()
    };
    let mut fixture = Fixture::with(Version::Pg18, "retention_gcx", Layout::Gcx, settings).await;
    (fixture.rule.mode, fixture.rule.marked) = ("auto", true);
    fixture.belongs().await;
    let sql = &fixture.pipeline.sql;
    sql.batch(
        "create table public.processed_events (event_id uuid primary key, consumer_group varchar(100) not null, \
           processed_at timestamptz not null default now(), expires_at timestamptz not null); \
         insert into public.processed_events select gen_random_uuid(), 'g', now(), now() + d * interval '1 hour' \
           from unnest(array[-1, 1]) d, generate_series(1, 2500); \
         insert into public.outbox (aggregate_type, aggregate_id, event_type, topic, payload, status, expires_at) \
           select 'o', gen_random_uuid(), 'e', 't', '1', s, now() + d * interval '1 hour' \
           from unnest(array['pending', 'published', 'failed']) s, unnest(array[-1, 1]) d",
    )
    .await;
    fixture.published().await;
    let report = fixture.pass().await;
    assert_eq!((report.rows, report.expired, report.held.of(Guard::Unmarked)), (1, 2500, 2));
    assert_eq!(fixture.count("public.processed_events").await, 2500);
    assert_eq!(fixture.count("public.outbox where status = 'published'").await, 1);
}

/// Seed 000: after 7 days to an archive that is partitioned by month, as its page has it, and 90 days there.
#[tokio::test]
async fn layout_commerce_moves_rows_to_a_monthly_archive() {
    for version in Version::ALL {
        let settings = RetentionSettings {
            action: RetentionAction::Archive,
            archive: Some(TableName::new("public", "outbox_messages_archive")),
            archive_keep: Some(Duration::from_hours(90 * 24)),
            width: Some(Width::Month),
            ..keeping(WEEK)
        };
        let fixture =
            Fixture::with(version, "retention_commerce", Layout::Commerce, settings).await;
        let sql = &fixture.pipeline.sql;
        sql.batch(
            "create table public.outbox_messages_archive \
               (like public.outbox_messages including defaults including constraints) \
               partition by range (occurred_at); \
             insert into public.outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, \
               occurred_at) select 1, 'Order', i, 'e', to_jsonb(i), now() - i * interval '1 day' \
             from generate_series(0, 199) i",
        )
        .await;
        fixture.published().await;
        let report = fixture.pass().await;
        assert_eq!(report.rows, 193, "{report:?}");
        assert_eq!(fixture.count("public.outbox_messages").await, 7);
        // Months that have ended more than 90 days ago are dropped, and no row is missing that is not older.
        assert!(report.archive_dropped >= 2, "{report:?}");
        let kept = fixture.count("public.outbox_messages_archive").await;
        assert!((83..=120).contains(&kept), "{kept}");
        let young = "public.outbox_messages_archive where occurred_at > now() - interval '90 days'";
        assert_eq!(fixture.count(young).await, 83);
        let partial =
            "public.outbox_messages_archive where (payload #>> '{}')::bigint <> aggregate_id";
        assert_eq!(fixture.count(partial).await, 0);
        assert_eq!(fixture.pass().await.rows, 0);
    }
}

/// What does not fit an archive is named with what creates it, and no row leaves the table.
#[tokio::test]
async fn rows_stay_where_the_archive_is_missing_or_lacks_a_column() {
    let mut fixture = Fixture::new(Version::Pg17, "retention_archive").await;
    let archive = TableName::new("public", "outbox_archive");
    fixture.rule.settings.action = RetentionAction::Archive;
    fixture.rule.settings.archive = Some(archive.clone());
    fixture.insert(10, 30).await;
    fixture.published().await;
    let report = fixture.pass().await;
    let sql = fixture.table().await.create_archive_sql(&archive);
    assert_eq!((report.rows, report.holds), (0, vec![Hold::NoArchive(sql.clone())]));
    fixture.pipeline.sql.batch(&sql).await;
    let report = fixture.pass().await;
    let lacks = Hold::ArchiveLacksPartition(archive.to_string());
    assert_eq!((report.rows, report.holds), (0, vec![lacks]));
    fixture.pipeline.sql.batch("alter table public.outbox_archive drop column payload").await;
    let report = fixture.pass().await;
    let lacks = Hold::ArchiveLacks(archive.to_string(), "\"payload\"".to_owned());
    assert_eq!((report.rows, report.holds), (0, vec![lacks]));
    assert_eq!(fixture.count("public.outbox").await, 10);
    fixture.pipeline.sql.batch("alter table public.outbox_archive add column payload json").await;
    fixture.rule.settings.width = Some(Width::Day);
    assert_eq!(fixture.pass().await.rows, 10);
    assert_eq!(fixture.count("public.outbox_archive where payload is not null").await, 10);
}

/// A DELETE that the server refuses is an error with what fixes it.
#[tokio::test]
async fn deletes_that_a_publication_makes_impossible_are_explained() {
    let fixture = Fixture::new(Version::Pg17, "retention_identity").await;
    fixture.insert(3, 30).await;
    fixture.published().await;
    fixture
        .pipeline
        .sql
        .batch(
            "create publication all_of_it for table public.outbox; alter table public.outbox replica identity nothing",
        )
        .await;
    let report = fixture.try_pass().await;
    let hint = fixture.rule.hint(&report.errors[0], &[]).unwrap();
    assert!(hint.contains("ALTER PUBLICATION ... SET (publish = 'insert')"), "{hint}");
    assert_eq!(fixture.count("public.outbox").await, 3);
}

/// A consumer group of a log with references needs the rows of the events that it has not passed.
#[tokio::test]
async fn rows_that_a_group_of_a_log_with_references_has_not_passed_stay() {
    for version in Version::ALL {
        let fixture = Fixture::new(version, "retention_groups").await;
        let sql = &fixture.pipeline.sql;
        install_toolkit(sql, "postgres").await;
        sql.batch("select postrider.create_log('refs', 1, 1000, 'reference')").await;
        sql.batch(&format!("update postrider.event_log set writer = '{}'", fixture.pipeline.name))
            .await;
        fixture.insert(10, 30).await;
        let table =
            sql.text("select table_name from postrider.event_log").await.unwrap_or_default();
        sql.batch(&format!(
            "insert into postrider_log.{table} (seq, part, event_id, event_type, \
               aggregate_type, aggregate_id) \
             select id, 0, id::text, event_type, aggregate_type, aggregate_id from public.outbox; \
             insert into postrider.event_log_head values ('refs', 10, array[10], array[10], now())"
        ))
        .await;
        sql.batch("select postrider.create_consumer_group('readers', 'refs', 'earliest')").await;
        fixture.published().await;
        let report = fixture.pass().await;
        assert_eq!((report.rows, report.held.of(Guard::Group)), (0, 10), "{report:?}");
        assert_eq!(fixture.removes_without(Guard::Group).await, 10);
        let commit = "with polled as (select max(seq) as seq, max(lease) as lease \
                        from postrider.poll_outbox('readers', 'c', 4)) \
                      select postrider.commit_offset('readers', 'c', seq, lease) from polled";
        sql.batch(commit).await;
        assert_eq!(fixture.pass().await.rows, 4);
        assert_eq!(fixture.count("public.outbox where id <= 4").await, 0);
        // A group that begins now needs the rows that are left.
        sql.batch("select postrider.create_consumer_group('later', 'refs', 'earliest')").await;
        let report = fixture.pass().await;
        assert_eq!((report.rows, report.held.of(Guard::Group)), (0, 6), "{report:?}");
        sql.batch("update postrider.consumer_group set evicted_at = now()").await;
        assert_eq!(fixture.pass().await.rows, 6);
    }
}

/// A time without a zone is not guessed.
#[tokio::test]
async fn local_times_need_the_zone() {
    let mut fixture = Fixture::new(Version::Pg17, "retention_zone").await;
    fixture
        .pipeline
        .sql
        .batch("alter table public.outbox alter created_at type timestamp using created_at at time zone 'UTC'")
        .await;
    fixture.insert(4, 30).await;
    fixture.published().await;
    let report = fixture.pass().await;
    assert_eq!((report.rows, report.holds), (0, vec![Hold::NoZone("created_at".to_owned())]));
    fixture.rule.table.zone = postrider::zone::Zone::named("UTC");
    assert_eq!((fixture.rule.settings.keep, fixture.pass().await.rows), (Some(DAY), 4));
}

/// A claim check and its rows stay until each group has read them, however old and published they are; and with the
/// event the rows go.
#[tokio::test]
async fn claim_check_of_a_table_outbox_stays_until_its_rows_are_read() {
    let mut fixture =
        Fixture::with(Version::Pg16, "retention_unread", Layout::Pgtrickle, keeping(WEEK)).await;
    (fixture.rule.mode, fixture.rule.marked) = ("poll", true);
    fixture.belongs().await;
    let sql = &fixture.pipeline.sql;
    sql.batch(
        "update postrider.cursor set slot = ''; \
         create table rows_elsewhere (outbox_id bigint references outbox_changes on delete cascade); \
         insert into outbox_changes (aggregate_type, aggregate_id, event_type, payload, inserted_count, deleted_count, \
           is_claim_check, created_at, published_at, unread_since) \
         select 't', 'public.t', 'INSERT', '{}', 1, 0, c, now() - interval '30 days', p, u from (values \
           (false, now() - interval '8 days', null), (true, now() - interval '8 days', now() - interval '8 days'), \
           (true, now() - interval '8 days', null), (true, null, null)) v(c, p, u); \
         insert into rows_elsewhere select id from outbox_changes where is_claim_check",
    )
    .await;
    let report = fixture.pass().await;
    assert_eq!(
        (report.rows, report.held.of(Guard::Unread), report.held.of(Guard::Unmarked)),
        (2, 1, 1)
    );
    assert_eq!(fixture.count("rows_elsewhere").await, 2);
    sql.batch("update outbox_changes set unread_since = null").await;
    assert_eq!(fixture.pass().await.rows, 1);
    assert_eq!(
        (fixture.count("outbox_changes").await, fixture.count("rows_elsewhere").await),
        (1, 1)
    );
}
