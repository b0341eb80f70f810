//! The rules of the layouts' own relays, with the settings that `docs/operations/retention.md` prints for each: a relay
//! publishes, `postrider retain` removes.

use crate::await_that::{SOON, await_that};
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider, postrider_ok};
use crate::server::Version;
use std::fs;
use std::path::Path;

/// The settings of a layout, as lines of TOML, out of the table of the page.
fn settings(layout: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations/retention.md");
    let page = fs::read_to_string(page).expect("the page");
    let start = format!("| `{layout}` |");
    let row = page.lines().find(|line| line.starts_with(&start)).expect("a row of the layout");
    let cell = row.trim_end_matches([' ', '|']).rsplit(" | ").next().expect("a cell");
    let lines: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    assert!(lines.first().is_some_and(|line| line.starts_with("keep = ")), "{cell}");
    lines.join("\n")
}

/// A pipeline of a layout with these rows, whose retention has the settings of the page. `mode`: `wal` or `poll`. A
/// relay has published `published` rows, and has ended.
async fn publishes(
    version: Version,
    layout: &str,
    mode: &str,
    rows: &str,
    published: usize,
) -> Pipeline {
    let mut pipeline = Pipeline::in_layout(version, &format!("seed_{layout}"), layout).await;
    let head = format!("[pipelines.{}]\n", pipeline.name);
    let with = format!("{head}mode = \"{mode}\"\npoll = {{ interval = \"50ms\" }}\n");
    pipeline.config = pipeline.config.replacen(&head, &with, 1);
    let section = format!("[pipelines.{}.retention]\n{}\n", pipeline.name, settings(layout));
    pipeline.config.push_str(&section);
    if mode == "poll" {
        pipeline
            .sql("select pg_drop_replication_slot('{slot}'); drop schema postrider cascade")
            .await;
        postrider_ok(&pipeline.config, &["setup"]);
    }
    pipeline.sql.batch(rows).await;
    let relay = Relay::spawn(&pipeline.config);
    pipeline.topic.await_records(published, SOON).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    pipeline
}

async fn count(pipeline: &Pipeline, of: &str) -> String {
    pipeline.sql.text(&format!("select count(*) from {of}")).await.unwrap_or_default()
}

/// `published_at < now() - 7 days`.
#[tokio::test]
async fn adr30_removes_what_was_published_a_week_ago() {
    let rows = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, published_at) \
                select 'booking', gen_random_uuid(), 'e', '1', now() - interval '30 days', published \
                from (values (now() - interval '8 days', 5), (now() - interval '6 days', 3), (null, 2)) \
                  v(published, n), generate_series(1, n)";
    for version in [Version::Pg15, Version::Pg18] {
        let pipeline = publishes(version, "adr30", "poll", rows, 2).await;
        let printed = postrider_ok(&pipeline.config, &["retain"]);
        assert!(printed.contains("removed 5 rows"), "{printed}");
        assert_eq!(count(&pipeline, "public.outbox").await, "5");
    }
}

/// `DeletePublishedEventsOlderThan`: `status = 'PUBLISHED' AND created_at < …`.
#[tokio::test]
async fn sqlgarden_removes_published_rows_by_their_creation() {
    let rows = "insert into public.outbox_events (aggregate_type, aggregate_id, event_type, payload, status, created_at) \
                select 'o', '1', 'e', '1', status, now() - days * interval '1 day' \
                from (values ('PUBLISHED', 8, 5), ('PUBLISHED', 6, 3), ('PENDING', 8, 2)) \
                  v(status, days, n), generate_series(1, n)";
    for version in [Version::Pg16, Version::Pg18] {
        let pipeline = publishes(version, "sqlgarden", "poll", rows, 2).await;
        let theirs = "public.outbox_events where status = 'PUBLISHED' and created_at < now() - interval '7 days'";
        assert_eq!(count(&pipeline, theirs).await, "7");
        let printed = postrider_ok(&pipeline.config, &["retain"]);
        assert!(printed.contains("removed 7 rows"), "{printed}");
        assert_eq!(count(&pipeline, theirs).await, "0");
        assert_eq!(count(&pipeline, "public.outbox_events").await, "3");
    }
}

/// Published rows whose `expires_at` has passed, and processed events whose `expires_at` has passed.
#[tokio::test]
async fn gcx_removes_what_has_expired() {
    let rows = "create table public.processed_events (event_id uuid primary key, \
                  consumer_group varchar(100) not null, processed_at timestamptz not null default now(), \
                  expires_at timestamptz not null); \
                insert into public.processed_events \
                  select gen_random_uuid(), 'g', now(), now() + hours * interval '1 hour' \
                  from (values (-1, 4), (1, 6)) v(hours, n), generate_series(1, n); \
                insert into public.outbox (aggregate_type, aggregate_id, event_type, topic, payload, status, \
                  published_at, expires_at) \
                  select 'o', gen_random_uuid(), 'e', 't', '1', status, \
                    case status when 'published' then now() - interval '2 hours' end, now() + hours * interval '1 hour' \
                  from (values ('published', -1, 5), ('published', 1, 3), ('pending', 1, 2)) \
                    v(status, hours, n), generate_series(1, n)";
    for version in [Version::Pg17, Version::Pg18] {
        let pipeline = publishes(version, "gcx", "poll", rows, 2).await;
        let printed = postrider_ok(&pipeline.config, &["retain"]);
        assert!(printed.contains("removed 5 rows"), "{printed}");
        assert!(printed.contains("deleted 4 expired rows"), "{printed}");
        assert_eq!(count(&pipeline, "public.processed_events").await, "6");
        assert_eq!(count(&pipeline, "public.outbox where status = 'published'").await, "5");
        assert_eq!(count(&pipeline, "public.outbox").await, "5");
    }
}

/// After 7 days to an archive by month, 90 days there.
#[tokio::test]
async fn commerce_moves_rows_to_a_monthly_archive_and_drops_its_months() {
    let rows = "create table public.outbox_messages_archive \
                  (like public.outbox_messages including defaults including constraints) \
                  partition by range (occurred_at); \
                insert into public.outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, \
                  occurred_at) select 1, 'Order', i, 'e', to_jsonb(i), now() - i * interval '1 day' \
                from generate_series(0, 199) i";
    for version in Version::ALL {
        let pipeline = publishes(version, "commerce", "wal", rows, 200).await;
        // The position is written when the relay ends, and the snapshot of the rows with the next one.
        let relay = Relay::spawn(&pipeline.config);
        await_that("the rows to be resolved", SOON, || async {
            let printed = postrider_ok(&pipeline.config, &["retain", "--dry-run"]);
            if printed.contains(": 193 of 200 rows") { Ok(()) } else { Err(printed) }
        })
        .await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let printed = postrider_ok(&pipeline.config, &["retain"]);
        assert!(printed.contains("removed 193 rows"), "{printed}");
        assert_eq!(count(&pipeline, "public.outbox_messages").await, "7");
        let young = "public.outbox_messages_archive where occurred_at > now() - interval '90 days'";
        assert_eq!(count(&pipeline, young).await, "83");
        // A month goes when its last row is older than 90 days.
        let old = "public.outbox_messages_archive where occurred_at < now() - interval '121 days'";
        assert_eq!(count(&pipeline, old).await, "0");
    }
}

/// From 50 million rows on, `check` names partitions.
#[tokio::test]
async fn partitions_are_named_from_fifty_million_rows_on() {
    let mut pipeline = Pipeline::in_layout(Version::Pg17, "seed_partitions", "commerce").await;
    let section = format!("[pipelines.{}.retention]\n{}\n", pipeline.name, settings("commerce"));
    pipeline.config.push_str(&section);
    for (rows, named) in [("49000000", false), ("51000000", true)] {
        // The number of rows that the catalog has: inserting them would take an hour.
        pipeline
            .sql
            .batch(&format!(
                "update pg_class set reltuples = {rows} where oid = 'public.outbox_messages'::regclass"
            ))
            .await;
        let printed = postrider(&pipeline.config, &["check", "--json"]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert_eq!(printed.contains("retention_partitions"), named, "{rows}: {printed}");
        assert!(printed.contains("retention_vacuum"), "{printed}");
    }
}
