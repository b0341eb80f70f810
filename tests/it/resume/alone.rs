//! What counts how much came twice, and so runs with nothing beside it.

use super::{CURSOR_EVENTS, resolved};
use crate::await_that::SOON;
use crate::load::Load;
use crate::pipeline::{Pipeline, show};
use crate::server::Version;
use crate::stream::published;

/// Less than is promised: beside others a row takes long to be written, and as many again may be delivered meanwhile
/// (docs/guarantees.md).
#[tokio::test]
async fn relay_killed_at_any_time_loses_and_swaps_nothing() {
    const KILLS: usize = 5;
    const IN_FLIGHT_EVENTS: usize = 5_000;
    // A backlog drains in less than the interval of the cursor: then a row is due for so many events, and others are in
    // flight.
    const REPEATED_MAX: usize = CURSOR_EVENTS + IN_FLIGHT_EVENTS;
    let mut pipeline = Pipeline::shared(Version::Pg15, "killed").await;
    pipeline.bound_in_flight(IN_FLIGHT_EVENTS);
    let mut plan = pipeline.plan();
    (plan.rate, plan.transaction_events) = (2_500, 25);
    let load = Load::start(&plan, 2);
    for _ in 0..KILLS {
        let relay = pipeline.run();
        relay.await_status("some published", SOON, |status| published(status) > 25_000).await;
        relay.kill().await;
    }
    let relay = pipeline.run();
    let ledger = load.stop().await;
    resolved(&pipeline).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let findings = ledger.check(&pipeline.topic.read_all().await);
    show(&format!("{KILLS} kills at 5,000 events/s: {findings}"));
    findings.assert_balanced(REPEATED_MAX * KILLS);
}
