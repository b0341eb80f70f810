//! Bad events first, last, alone, in a crowd.

use super::{OFTEN, SELDOM};
use crate::await_that::await_that;
use crate::parking::{SOON, Scene, assert_in_order, number};
use crate::server::Version;
use std::collections::BTreeMap;

#[tokio::test]
async fn bad_event_alone_first_and_last_in_its_transaction() {
    let mut scene = Scene::set_with(Version::Pg17, "places", OFTEN).await;
    let relay = scene.run();
    scene.insert(&["!a"]).await;
    scene.insert(&["!b", "b", "c"]).await;
    scene.insert(&["d", "e", "!e"]).await;
    scene.insert(&["a", "b", "c", "d", "e"]).await;
    scene.await_last("d", 11).await;
    scene
        .await_rows("a waiting, b waiting, b behind, e waiting, a behind, b behind, e behind")
        .await;
    scene.await_passed().await;
    scene.raise_the_limit().await;
    for (aggregate, last) in [("a", 8), ("b", 9), ("e", 12)] {
        scene.await_last(aggregate, last).await;
    }
    scene.await_rows("").await;
    let ended = scene.end(relay).await;
    let wanted: [(&str, &[u64]); 5] =
        [("a", &[1, 8]), ("b", &[2, 3, 9]), ("c", &[4, 10]), ("d", &[5, 11]), ("e", &[6, 7, 12])];
    let wanted: BTreeMap<String, Vec<u64>> =
        wanted.into_iter().map(|(id, numbers)| (id.to_owned(), numbers.to_vec())).collect();
    assert_eq!(
        scene.delivered().await,
        wanted,
        "in order, none twice, none lost\n{}",
        ended.stderr
    );
}

#[tokio::test]
async fn bad_event_in_the_middle_of_two_hundred_thousand() {
    const ROWS: usize = 200_000;
    const AGGREGATES: usize = 1_000;
    const BAD: usize = 100_000;
    // Of its aggregate, itself and all that come after it.
    const HELD: usize = (ROWS - BAD) / AGGREGATES + 1;
    let scene = Scene::set_with(Version::Pg18, "middle", OFTEN).await;
    let relay = scene.run();
    let sql = format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', (i % {AGGREGATES})::text, 'T', json_build_object('n', i, 'x', case when i = {BAD} \
           then (select string_agg(md5(random()::text), '') from generate_series(1, 600)) end) \
         from generate_series(1, {ROWS}) i"
    );
    scene.pipeline.sql.batch(&sql).await;
    let topic = &scene.pipeline.topic;
    let flowed = topic.await_records(ROWS - HELD, SOON).await;
    assert_eq!(flowed.len(), ROWS - HELD, "all but its own aggregate's");
    scene.await_passed().await;
    scene.raise_the_limit().await;
    let records = topic.await_records(ROWS, SOON).await;
    scene.end(relay).await;
    assert_eq!(records.len(), ROWS, "none lost, none twice");
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for record in &records {
        let before = last.insert(record.key_text().expect("a key"), number(record)).unwrap_or(0);
        assert!(before < number(record), "{} after {before}", number(record));
    }
}

/// All of one aggregate, two of another: each comes to the head in its turn, and is refused for itself.
#[tokio::test]
async fn aggregates_with_several_bad_events_go_on_one_by_one() {
    let mut scene = Scene::set_with(Version::Pg15, "several", OFTEN).await;
    let relay = scene.run();
    scene.insert(&["!a", "!a", "!a", "!b", "b", "!b", "b", "c"]).await;
    scene.await_last("c", 8).await;
    scene
        .await_rows("a waiting, a behind, a behind, b waiting, b behind, b behind, b behind")
        .await;
    scene.await_passed().await;
    scene.parked_ok(&["skip", "--aggregate", "order:b", "--yes"]);
    scene.await_last("b", 5).await;
    scene.await_rows("a waiting, a behind, a behind, b waiting, b behind").await;
    scene.parked_ok(&["skip", "--aggregate", "order:b", "--yes"]);
    scene.await_last("b", 7).await;
    scene.await_rows("a waiting, a behind, a behind").await;
    scene.raise_the_limit().await;
    scene.await_last("a", 3).await;
    scene.await_rows("").await;
    scene.end(relay).await;
    let delivered = scene.delivered().await;
    assert_in_order(&delivered["a"], &[1, 2, 3]);
    assert_in_order(&delivered["b"], &[5, 7]);
}

/// The bound shuts the intake, and opens it as parked events are dealt with.
#[tokio::test]
async fn thousands_of_bad_aggregates_shut_the_intake_and_none_is_dropped() {
    const BAD: usize = 2_500;
    let scene =
        Scene::set_with(Version::Pg18, "crowd", &format!("{SELDOM}\nrows_max = 1000")).await;
    let relay = scene.run();
    let sql = format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) \
         select 'order', 'bad-' || i, 'T', json_build_object('n', i, 'x', \
           i || (select string_agg(md5((random() + j)::text), '') from generate_series(1, 150) j)) \
         from generate_series(1, {BAD}) i"
    );
    scene.pipeline.sql.batch(&sql).await;
    scene.pipeline.insert(10).await;
    let count = "select count(*)::text from postrider.parked where state = 'waiting'";
    for (rows, left) in [("1000", 1_500), ("1000", 500)] {
        await_that("the bound", SOON, || async {
            let found = scene.value(count).await;
            if found == rows { Ok(()) } else { Err(found) }
        })
        .await;
        let full = |status: &serde_json::Value| status["pipelines"][0]["parked"]["full"] == true;
        let status = relay.await_status("the intake shut", SOON, full).await;
        let reason = status["pipelines"][0]["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains("parking table full (1,000 of 1,000 rows)"), "{status}");
        assert!(scene.delivered().await.is_empty(), "{left} are still to come");
        let said = scene.parked_ok(&["skip", "--all", "--yes", "--reason", "test data"]);
        assert!(said.contains("order:bad-"), "{said}");
    }
    scene.pipeline.topic.await_records(10, SOON).await;
    scene.await_passed().await;
    scene.parked_ok(&["skip", "--all", "--yes"]);
    scene.await_rows("").await;
    let known = format!(
        "select (count(*) = {BAD} and bool_and(state = 'skipped'))::text from postrider.parked"
    );
    assert_eq!(scene.value(&known).await, "true", "every one is accounted for");
    scene.end(relay).await;
    assert_eq!(scene.pipeline.topic.read_all().await.len(), 10);
}
