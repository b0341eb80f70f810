//! What an archive costs: rows that are attached with their partition, beside rows that are moved.

use super::{DAY, Fixture};
use crate::pipeline::show;
use crate::server::Version;
use postrider::outbox::Layout;
use postrider::postgres::names::TableName;
use postrider::postgres::retention::{RetentionAction, RetentionSettings, Width};
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
