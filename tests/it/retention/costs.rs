//! What retention costs: time and WAL of a partition beside those of its rows, and how long readers and writers wait
//! while partitions are taken, rows are deleted, and a plain table is partitioned.
//!
//! `scripts/bench --retention` runs it on a machine that does nothing else. It asserts only what does not depend on the
//! machine.

use super::beside::{Beside, Waits};
use super::{DAY, Fixture};
use crate::await_that::{SOON, await_that};
use crate::pipeline::{Pipeline, drop_slot, show};
use crate::relay::postrider_ok;
use crate::server::Version;
use postrider::outbox::Layout;
use postrider::postgres::names::TableName;
use postrider::postgres::retention::{RetentionAction, RetentionSettings, Width};
use std::time::{Duration, Instant};

/// Statements of the reader, and of the writer, that are measured before anything is done.
const IDLE: usize = 5_000;

const WRITES: &str = "insert into public.outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload) \
                      values (1, 'Order', 1, 'e', '{}')";
const READS: &str = "select payload from public.outbox_messages where id = 1";

/// Rows of the partition; a fifth of them where rows are deleted, and where a table is partitioned.
#[expect(clippy::disallowed_methods, reason = "scripts/bench sets other sizes")]
fn rows() -> u32 {
    let rows = std::env::var("POSTRIDER_RETENTION_ROWS");
    rows.map_or(5_000_000, |rows| rows.parse().expect("a number of rows"))
}

/// A reader and a writer beside what is measured.
struct Others {
    reader: Beside,
    writer: Beside,
    idle: [Waits; 2],
}

impl Others {
    async fn start(url: &str, select: &str, insert: &str) -> Self {
        let (reader, writer) = (Beside::start(url, select), Beside::start(url, insert));
        for beside in [&reader, &writer] {
            await_that("statements of an idle server", SOON, || async {
                let count = beside.count();
                if count >= IDLE { Ok(()) } else { Err(count) }
            })
            .await;
        }
        let idle = [reader.take(), writer.take()];
        Self { reader, writer, idle }
    }

    /// What they have waited since the last call, as columns.
    fn waited(&self) -> String {
        let [reader, writer] = [self.reader.take(), self.writer.take()];
        let [idle_reader, idle_writer] = self.idle;
        format!(
            "longest of {} selects {:.1?} (idle: {:.1?}), longest of {} inserts {:.1?} (idle: {:.1?})",
            reader.count,
            reader.longest,
            idle_reader.longest,
            writer.count,
            writer.longest,
            idle_writer.longest
        )
    }

    fn stop(self) {
        self.reader.stop();
        self.writer.stop();
    }
}

/// The time of statements, and the WAL that the server writes meanwhile: nothing else may write.
async fn timed(fixture: &Fixture, sql: &str) -> (Duration, i64) {
    let end = "select (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let of = &fixture.pipeline.sql;
    let before: i64 = of.query_one(end, &[]).await.expect("an end").get(0);
    let started = Instant::now();
    of.batch(sql).await;
    let took = started.elapsed();
    let after: i64 = of.query_one(end, &[]).await.expect("an end").get(0);
    (took, after - before)
}

/// An outbox of layout `commerce` with a partition of rows that are two months old, and an archive.
async fn outbox(version: Version, rows: u32) -> Fixture {
    let settings = RetentionSettings {
        keep: Some(7 * DAY),
        action: RetentionAction::Archive,
        archive: Some(TableName::new("public", "archive")),
        width: Some(Width::Month),
        ..RetentionSettings::default()
    };
    let fixture = Fixture::with(version, "retention_costs", Layout::Commerce, settings).await;
    // No relay reads it, and the server would keep all WAL for it.
    drop_slot(&fixture.pipeline).await;
    fixture
        .pipeline
        .sql
        .batch(
            "alter table public.outbox_messages rename to plain; \
             create table public.outbox_messages (like public.plain including defaults) partition by range (occurred_at); \
             alter table public.outbox_messages alter id add generated always as identity; \
             alter table public.outbox_messages add primary key (id, occurred_at); \
             create index on public.outbox_messages (available_at, id) where processed_at is null; \
             create index on public.outbox_messages (id) where processed_at is null; \
             create index on public.outbox_messages (tenant_id, aggregate_type, aggregate_id); \
             drop table public.plain; \
             create table public.past partition of public.outbox_messages for values from (minvalue) \
               to (date_trunc('month', now()) - interval '1 month'); \
             create table public.present partition of public.outbox_messages for values \
               from (date_trunc('month', now()) - interval '1 month') to (date_trunc('month', now()) + interval '1 month'); \
             create table public.archive (like public.outbox_messages including defaults) \
               partition by range (occurred_at); \
             create table public.moved (like public.outbox_messages including defaults) \
               partition by range (occurred_at); \
             create table public.moved_past partition of public.moved default",
        )
        .await;
    fixture
        .pipeline
        .sql
        .batch(&format!(
            "insert into public.outbox_messages (tenant_id, aggregate_type, aggregate_id, event_type, payload, \
               occurred_at) select i % 100, 'Order', i % 10000, 'OrderPlaced', \
               jsonb_build_object('order', i, 'total', i % 1000), now() - interval '63 days' \
             from generate_series(1, {rows}) i"
        ))
        .await;
    fixture.pipeline.sql.batch("vacuum (analyze) public.past").await;
    fixture.pipeline.sql.batch("checkpoint").await;
    fixture.belongs().await;
    fixture.published().await;
    fixture
}

/// A row of a table in the documentation.
fn line(version: Version, what: &str, (took, wal): (Duration, i64), left: &str) {
    let megabytes = wal / 10_000;
    show(&format!(
        "| {} | {what} | {took:.1?} | {}.{:02} MB | {left} |",
        version.major(),
        megabytes / 100,
        megabytes % 100
    ));
}

async fn partitions_beside_rows(version: Version, rows: u32) {
    let fixture = outbox(version, rows).await;
    let sql = &fixture.pipeline.sql;
    let size = "select pg_size_pretty(pg_total_relation_size('public.past'))";
    let whole = sql.text(size).await.unwrap_or_default();
    let bound = "select pg_get_expr(relpartbound, oid) from pg_class where relname = 'past'";
    let bound = sql.text(bound).await.expect("a bound");
    show(&format!("PostgreSQL {}: {rows} rows of layout commerce, {whole}", version.major()));
    show("| server | | time | WAL | left behind |\n|---|---|---|---|---|");
    let detach = "alter table public.outbox_messages detach partition public.past concurrently";
    let detached = timed(&fixture, detach).await;
    line(version, "`DETACH … CONCURRENTLY`", detached, "nothing");
    let attach = format!("alter table public.archive attach partition public.past {bound}");
    let attached = timed(&fixture, &attach).await;
    line(version, "`ATTACH` to the archive", attached, "nothing");
    assert_eq!(fixture.count("public.archive").await, i64::from(rows));

    // The same by a pass, which reads all rows twice, beside a reader and a writer.
    sql.batch("alter table public.archive detach partition public.past").await;
    sql.batch(&attach.replace("public.archive", "public.outbox_messages")).await;
    let others = Others::start(&fixture.pipeline.url, READS, WRITES).await;
    let started = Instant::now();
    let report = fixture.pass().await;
    let (took, waited) = (started.elapsed(), others.waited());
    show(&format!("a pass that archives it, which reads all rows twice: {took:.1?}; {waited}"));
    others.stop();
    assert_eq!((report.taken, fixture.count("public.archive").await), (1, i64::from(rows)));

    sql.batch("alter table public.archive detach partition public.past").await;
    let statement = "with moved as (delete from public.past returning *) \
                 insert into public.moved select * from moved";
    let moved = timed(&fixture, statement).await;
    let left = sql.text(size).await.unwrap_or_default();
    line(version, "`DELETE … RETURNING`, `INSERT`", moved, &format!("{left} for VACUUM"));
    assert_eq!(fixture.count("public.moved").await, i64::from(rows));
    assert!((detached.1 + attached.1) * 20 < moved.1, "{detached:?} {attached:?} {moved:?}");
}

const PLAIN_WRITES: &str = "insert into public.outbox (aggregate_type, aggregate_id, event_type, payload) \
                            values ('order', '1', 'Written', '1')";
const PLAIN_READS: &str = "select payload from public.outbox where id = 1";

async fn waits_beside_deletes(version: Version, rows: u32) {
    let mut fixture = Fixture::new(version, "retention_deletes").await;
    drop_slot(&fixture.pipeline).await;
    fixture.rule.settings.rate = 1_000_000;
    fixture.insert(rows, 30).await;
    fixture.published().await;
    let others = Others::start(&fixture.pipeline.url, PLAIN_READS, PLAIN_WRITES).await;
    let started = Instant::now();
    let report = fixture.pass().await;
    let (took, waited) = (started.elapsed(), others.waited());
    others.stop();
    assert_eq!(report.rows, u64::from(rows));
    show(&format!("a pass that deletes {rows} rows, without a rate: {took:.1?}; {waited}"));
}

async fn waits_beside_the_conversion(version: Version, rows: u32) {
    let pipeline = Pipeline::shared(version, "partition_costs").await;
    drop_slot(&pipeline).await;
    pipeline.insert(usize::try_from(rows).expect("a number")).await;
    let others = Others::start(&pipeline.url, PLAIN_READS, PLAIN_WRITES).await;
    let started = Instant::now();
    postrider_ok(&pipeline.config, &["partition", "--by", "1000000", "--yes"]);
    let (took, waited) = (started.elapsed(), others.waited());
    others.stop();
    let kind = "select relkind::text from pg_class where oid = 'public.outbox'::regclass";
    assert_eq!(pipeline.sql.text(kind).await.as_deref(), Some("p"));
    show(&format!("`postrider partition` of {rows} rows: {took:.1?}; {waited}"));
}

#[tokio::test]
#[ignore = "takes ten minutes: scripts/bench --retention"]
async fn partitions_beside_rows_and_what_readers_and_writers_wait() {
    let rows = rows();
    for version in [Version::Pg15, Version::Pg18] {
        partitions_beside_rows(version, rows).await;
        waits_beside_deletes(version, rows / 5).await;
        waits_beside_the_conversion(version, rows / 5).await;
    }
}
