//! What measures memory and idleness, and so runs with nothing beside it. The figures are printed: run it with
//! `--nocapture` to see them.

use crate::await_that::await_that;
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::server::Version;
use crate::stream::published;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// A transaction of a million rows goes through as it arrives, in bounded memory.
#[tokio::test]
async fn transaction_of_a_million_rows_needs_no_more_memory() {
    const ROWS: usize = 1_000_000;
    let pipeline = Pipeline::shared(Version::Pg15, "million").await;
    pipeline.insert(ROWS).await;
    let relay = pipeline.run();
    relay
        .await_status("a million published", Duration::from_mins(4), |status| {
            published(status) >= ROWS as u64
        })
        .await;
    let (_, peak_kib) = relay.memory_kib();
    show(&format!("one transaction of {ROWS} rows: peak RSS {peak_kib} KiB"));
    assert!(peak_kib < 100 * 1024, "peak RSS was {peak_kib} KiB");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Ten thousand events a second, for as long as it takes to see that memory does not grow.
#[tokio::test]
async fn ten_thousand_events_a_second_need_less_than_fifty_megabytes() {
    const EVENTS: u64 = 100_000;
    let pipeline = Pipeline::shared(Version::Pg15, "steady").await;
    let relay = pipeline.run();
    relay.await_state("streaming", SOON).await;
    let mut plan = pipeline.plan();
    (plan.rate, plan.transaction_events, plan.rollback_every) = (5_000, 50, 0);
    let load = Load::start(&plan, 2);
    let mut half_kib = 0;
    for part in [EVENTS / 2, EVENTS] {
        relay.await_status("published", Duration::from_mins(2), |s| published(s) >= part).await;
        let (now_kib, peak_kib) = relay.memory_kib();
        show(&format!("{part} events at 10,000/s: RSS {now_kib} KiB, peak {peak_kib} KiB"));
        assert!(now_kib < 50 * 1024, "RSS was {now_kib} KiB after {part} events");
        if half_kib > 0 {
            assert!(now_kib < half_kib + half_kib / 4, "{half_kib} KiB became {now_kib} KiB");
        }
        half_kib = now_kib;
    }
    let ledger = load.stop().await;
    let committed = u64::try_from(ledger.committed()).expect("a count");
    relay.await_status("all published", SOON, |status| published(status) >= committed).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    ledger.check(&pipeline.topic.read_all().await).assert_balanced(0);
}

/// A relay with nothing to do does nothing: no thread spins.
#[tokio::test]
async fn idle_relay_leaves_the_processor_alone() {
    let pipeline = Pipeline::shared(Version::Pg15, "lazy").await;
    let relay = pipeline.run();
    pipeline.insert(10).await;
    pipeline.topic.await_records(10, SOON).await;
    let start = std::time::Instant::now();
    let before = relay.cpu_ticks();
    let long_enough = Duration::from_secs(4);
    await_that("four seconds of nothing", SOON, || async {
        if start.elapsed() >= long_enough { Ok(()) } else { Err("not yet") }
    })
    .await;
    let ticks = relay.cpu_ticks() - before;
    show(&format!("idle for {long_enough:?}: {ticks} clock ticks of 10 ms"));
    assert!(ticks < 20, "{ticks} ticks of 10 ms in {long_enough:?}");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
