//! What an archive costs: rows that are attached with their partition, beside rows that are moved.

use super::partitions::polled_by_days;
use super::{DAY, Fixture};
use crate::pipeline::show;
use crate::server::Version;
use postrider::outbox::Layout;
use postrider::postgres::names::TableName;
use postrider::postgres::retention::{Hold, RetentionAction, RetentionSettings, Width};
use std::time::{Duration, Instant};

const ROWS: u32 = 200_000;

/// Bytes of WAL that the session of retention has written.
async fn written(fixture: &Fixture) -> i64 {
    let sql = "select pg_stat_force_next_flush()";
    fixture.control.client().query(sql, &[]).await.expect("a flush");
    let sql = "select wal_bytes::bigint from pg_stat_get_backend_wal(pg_backend_pid())";
    fixture.control.client().query_one(sql, &[]).await.expect("the statistics").get(0)
}

/// The time and the WAL of one pass.
async fn cost(fixture: &Fixture) -> (Duration, i64) {
    let (before, started) = (written(fixture).await, Instant::now());
    fixture.pass().await;
    (started.elapsed(), written(fixture).await - before)
}

#[tokio::test]
async fn attaching_a_partition_costs_a_fraction_of_moving_its_rows() {
    let settings = RetentionSettings {
        keep: Some(3 * DAY),
        action: RetentionAction::Archive,
        archive: Some(TableName::new("public", "old")),
        width: Some(Width::Month),
        rate: 1_000_000,
        ..RetentionSettings::default()
    };
    let archive = "create table public.old (like public.outbox including defaults) partition by range (created_at)";
    let moved =
        Fixture::with(Version::Pg18, "retention_moved", Layout::Postrider, settings.clone()).await;
    moved.pipeline.sql.batch(archive).await;
    moved.insert(ROWS, 60).await;
    moved.published().await;
    let (move_time, move_wal) = cost(&moved).await;
    assert_eq!(moved.count("public.old").await, i64::from(ROWS));

    let attached =
        Fixture::with(Version::Pg18, "retention_attached", Layout::Postrider, settings).await;
    attached
        .pipeline
        .sql
        .batch(
            "drop table public.outbox; create table public.outbox (id bigint generated always as identity, \
               aggregate_type text not null, aggregate_id text not null, event_type text not null, payload json, \
               headers json, created_at timestamptz not null default clock_timestamp()) \
               partition by range (created_at); \
             create table public.past partition of public.outbox for values from (minvalue) \
               to (date_trunc('day', now()) - interval '30 days')",
        )
        .await;
    attached.pipeline.sql.batch(archive).await;
    attached.insert(ROWS, 60).await;
    attached.belongs().await;
    attached.published().await;
    let (attach_time, attach_wal) = cost(&attached).await;
    assert_eq!(attached.count("public.old").await, i64::from(ROWS));
    show(&format!(
        "{ROWS} rows: moved in {move_time:?} with {move_wal} bytes of WAL, attached in {attach_time:?} with \
         {attach_wal} (both with the reading of all rows)"
    ));
    assert!(attach_wal * 20 < move_wal, "{attach_wal} and {move_wal}");
}

/// Whether a partition has rows without a mark is asked while writers are excluded. If that takes long, writers are not
/// excluded at all, and the statements for an index are printed; with the index the partition is dropped.
#[tokio::test]
async fn large_partition_whose_unmarked_rows_no_index_has_waits_for_the_index() {
    let fixture = polled_by_days(Version::Pg18, "retention_unindexed").await;
    let sql = &fixture.pipeline.sql;
    sql.batch("drop index public.outbox_created_at_idx").await;
    sql.batch(
        "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, published_at) \
         select 'o', gen_random_uuid(), 'e', '1', now() - interval '35 days', now() - interval '35 days' \
         from generate_series(1, 6000000)",
    )
    .await;
    let report = fixture.pass().await;
    let [hold @ Hold::UnmarkedWithoutIndex(partition, lines)] = report.holds.as_slice() else {
        panic!("{report:?}")
    };
    assert_eq!((report.taken, partition.as_str()), (0, "\"public\".\"wide\""), "{report:?}");
    show(&format!("{hold}: {}", hold.hint().unwrap_or_default()));
    // A concurrent build can't be in a block of statements.
    for line in lines.split_inclusive(';') {
        sql.batch(line).await;
    }
    assert_eq!(fixture.pass().await.taken, 1);
    assert_eq!(fixture.count("pg_class where relname = 'wide'").await, 0);
}
