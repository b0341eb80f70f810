//! Rows that are large in the table, read by polling and by a repair: memory stays bounded, what is too large is
//! parked, and all others are published.

use crate::await_that::await_that;
use crate::pipeline::{Pipeline, show};
use crate::polling::polls;
use crate::relay::{Relay, memory_kib, postrider_ok};
use crate::repair::drop_slot;
use crate::repair::interrupted::Repairing;
use crate::server::Version;
use crate::topic::{Looker, ReadRecord};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A row above the 64 MiB that are read of one, and rows of 8 MB; all compress to a hundredth in the table.
const TOO_LARGE_BYTES: usize = 300_000_000;
const LARGE_BYTES: usize = 8_000_000;

/// What the shipped systemd unit allows, in KiB.
const MEMORY_MAX_KIB: u64 = 512 << 10;

/// Time for the rows of a test.
const ENDS: Duration = Duration::from_mins(5);

/// The same for each row of 8 MB.
const ENDS_FOR_ROW: Duration = Duration::from_secs(1);

/// A small row, the one that is too large, and a small one of aggregate `a`; large ones of `b`, and a small one of
/// `c`.
async fn insert(pipeline: &Pipeline, large: usize) {
    let row = |aggregate: &str, payload: &str| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
             values ('order', '{aggregate}', 'T', {payload})"
        )
    };
    let text = |bytes: usize| format!("to_json(repeat('0123456789', {}))", bytes / 10);
    let rows = [row("a", "'1'"), row("a", &text(TOO_LARGE_BYTES)), row("a", "'3'")];
    for sql in rows {
        pipeline.sql.batch(&sql).await;
    }
    let sql = format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', 'b', 'T', {} from generate_series(1, {large})",
        text(LARGE_BYTES)
    );
    pipeline.sql.batch(&sql).await;
    pipeline.sql.batch(&row("c", "'4'")).await;
}

/// The rows that can be published are, once, and the large one is parked with its payload, the next behind it.
async fn as_it_should_be(pipeline: &Pipeline, large: usize) {
    let parked = "select string_agg(event_id || ' ' || state || ' ' || coalesce(error_code, '-') || ' ' || \
                  octet_length(value), ', ' order by commit_lsn, ordinal) from postrider.parked";
    let wanted = format!("2 dead row_too_large {}, 3 behind - 1", TOO_LARGE_BYTES + 2);
    assert_eq!(pipeline.sql.text(parked).await, Some(wanted));
    let records = read(pipeline, large + 2).await;
    let ids: BTreeSet<u64> = records
        .iter()
        .map(|record| record.header("id").expect("an id").parse().expect("a number"))
        .collect();
    let wanted: BTreeSet<u64> = (1..=4 + large as u64).filter(|id| ![2, 3].contains(id)).collect();
    assert_eq!((records.len(), ids), (large + 2, wanted));
}

/// Waits until the topic has so many records, and reads them without their values: those of a full run are 12 GB.
async fn read(pipeline: &Pipeline, count: usize) -> Vec<ReadRecord> {
    let looker = Looker::default();
    await_that(&format!("{count} records"), ends(), || async {
        let held = pipeline.topic.held(&looker).await?;
        if held >= count { Ok(()) } else { Err(format!("{held} records")) }
    })
    .await;
    pipeline.topic.read_without_values(ends()).await
}

/// Waits, and gives the most memory that the process has had, in MiB.
async fn until(relay: &Relay, pipeline: &Pipeline, sql: &str, wanted: &str) -> u64 {
    await_that(sql, ends(), || async {
        let found = pipeline.sql.text(sql).await.unwrap_or_default();
        if found == wanted { Ok(()) } else { Err(format!("{found}\n{}", relay.stderr())) }
    })
    .await;
    let (_, most) = relay.memory_kib();
    assert!(most > 0 && most < MEMORY_MAX_KIB, "{most} KiB");
    most >> 10
}

/// How long a run may take.
fn ends() -> Duration {
    ENDS + ENDS_FOR_ROW * u32::try_from(large_rows()).expect("a small number")
}

/// How many rows of 8 MB there are: some, or as many as the environment says.
#[expect(clippy::disallowed_methods, reason = "the full figure is run by hand")]
fn large_rows() -> usize {
    std::env::var("POSTRIDER_LARGE_ROWS").map_or(12, |rows| rows.parse().expect("a number"))
}

#[tokio::test]
async fn polling_parks_a_row_that_is_too_large_and_publishes_large_ones_in_bounded_memory() {
    let mut pipeline = Pipeline::shared(Version::Pg17, "largepoll").await;
    polls(&mut pipeline).await;
    let large = large_rows();
    insert(&pipeline, large).await;
    let began = Instant::now();
    let relay = pipeline.run();
    let most = until(&relay, &pipeline, "select count(*)::text from outbox", "0").await;
    show(&format!(
        "poll: a row of {TOO_LARGE_BYTES} and {large} of {LARGE_BYTES} bytes: {:.0} s, VmHWM {most} MiB",
        began.elapsed().as_secs_f64()
    ));
    as_it_should_be(&pipeline, large).await;
    let shown = postrider_ok(&pipeline.config, &["parked", "list"]);
    assert!(shown.contains("row_too_large"), "{shown}");
    postrider_ok(&pipeline.config, &["parked", "skip", "2", "--yes"]);
    let left = "select count(*)::text from postrider.parked where state not in ('done', 'skipped')";
    until(&relay, &pipeline, left, "0").await;
    assert_eq!(read(&pipeline, large + 3).await.len(), large + 3);
    assert_eq!(relay.terminate(ends()).await.code, Some(0));
}

#[tokio::test]
async fn repair_parks_a_row_that_is_too_large_and_publishes_large_ones_in_bounded_memory() {
    let pipeline = Pipeline::shared(Version::Pg17, "largerepair").await;
    let large = large_rows();
    insert(&pipeline, large).await;
    drop_slot(&pipeline).await;
    postrider_ok(&pipeline.config, &["repair", "--from-table", "--dry-run"]);
    let began = Instant::now();
    let repairing = Repairing::start_with(&pipeline.config, &["--from-table"]);
    let most = Cell::new(0);
    await_that("the repair to end", ends(), || async {
        most.set(most.get().max(memory_kib(repairing.pid()).1));
        let state = "select state || ' ' || rows_published from postrider.repair";
        let state = pipeline.sql.text(state).await.unwrap_or_default();
        if state.starts_with("done") { Ok(()) } else { Err(state) }
    })
    .await;
    let most = most.get();
    show(&format!(
        "repair: a row of {TOO_LARGE_BYTES} and {large} of {LARGE_BYTES} bytes: {:.0} s, VmHWM {} MiB",
        began.elapsed().as_secs_f64(),
        most >> 10
    ));
    assert!(most > 0 && most < MEMORY_MAX_KIB, "{most} KiB");
    repairing.ends_well().await;
    as_it_should_be(&pipeline, large).await;
}
