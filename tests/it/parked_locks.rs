//! Rows of `postrider.parked` that another session has locked: only their own aggregates wait.

use crate::await_that::{SOON, await_that};
use crate::parking::{Scene, assert_in_order};
use crate::relay::Relay;
use crate::server::{Client, Version};
use serde_json::Value;

/// A session of somebody who has done this in a transaction and not ended it.
async fn holding(scene: &Scene, statement: &str) -> Client {
    let session = Client::connect(&scene.pipeline.url).await.expect("a session");
    session.batch(&format!("set application_name = 'a person'; begin; {statement}")).await;
    session
}

fn names_the_holder(status: &Value) -> bool {
    let pipeline = &status["pipelines"][0];
    let reason = pipeline["reason"].as_str().unwrap_or_default();
    let named = ["locked by pid ", "application \"a person\""];
    named.iter().all(|words| reason.contains(words))
}

fn lag(status: &Value) -> f64 {
    status["pipelines"][0]["lag_seconds"].as_f64().expect("a lag")
}

/// The rows that are not resolved, as a person's session sees them.
async fn left(scene: &Scene, wanted: &str) {
    scene.await_rows(wanted).await;
}

/// Two aggregates are parked, and a session holds the row of one: the other's retry is published and resolved, its
/// later events flow, others are parked meanwhile, and the stream is confirmed. The first follows when the row is free.
#[tokio::test]
async fn locked_parked_row_holds_up_its_own_aggregate_alone() {
    for version in Version::ALL {
        let mut scene = Scene::set(version, "parklock").await;
        let relay = scene.run();
        scene.insert(&["!a", "!b", "a", "b", "c"]).await;
        left(&scene, "a waiting, b waiting, a behind, b behind").await;
        let lock = "select from postrider.parked where aggregate_id = 'a' and state = 'waiting' for update";
        let holder = holding(&scene, lock).await;
        scene.raise_the_limit().await;
        scene.await_last("b", 4).await;
        // The row of a's first event is published, and can't say so; a's second waits behind it.
        left(&scene, "a waiting, a behind").await;
        let status = relay.await_status("the holder is named", SOON, names_the_holder).await;
        assert_eq!(status["pipelines"][0]["state"], "streaming");
        assert!(lag(&status) < 5.0, "what is parked is no lag: {status}");
        // Events of all of them go on, and what is parked anew is written.
        scene.insert(&["a", "b", "c"]).await;
        scene.await_last("b", 7).await;
        scene.await_last("c", 8).await;
        left(&scene, "a waiting, a behind, a behind").await;
        let wal_end = scene.pipeline.wal_end().await;
        await_that("confirmed past all of it", SOON, || scene.pipeline.confirmed(&wal_end)).await;
        holder.batch("rollback").await;
        left(&scene, "").await;
        relay.await_log("all changes to rows of parked events are written", SOON).await;
        scene.await_last("a", 6).await;
        let log = relay.stderr();
        assert!(!log.contains("connecting to the database again"), "{log}");
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let delivered = scene.delivered().await;
        assert_eq!(delivered["a"], [1, 3, 6], "nothing comes twice");
        assert_eq!(delivered["b"], [2, 4, 7]);
        assert_eq!(delivered["c"], [5, 8]);
    }
}

/// The connection is lost while rows of parked events are being written. The stream brings their events again and the
/// relay passes over them, so only this process has their records: they are written on the next connection.
#[tokio::test]
async fn rows_that_were_being_written_when_the_connection_was_lost_are_written_by_the_next() {
    for version in [Version::Pg15, Version::Pg18] {
        let mut scene = Scene::set(version, "parkconn").await;
        let relay = scene.run();
        relay.await_state("streaming", SOON).await;
        scene.insert(&["a"]).await;
        scene.await_last("a", 1).await;
        // It lets the table be read, and nothing be written to it.
        let holder = holding(&scene, "lock table postrider.parked in share mode").await;
        scene.insert(&["!a", "b", "a"]).await;
        scene.await_last("b", 3).await;
        let waits = format!(
            "select string_agg(pid::text, ',') from pg_stat_activity where wait_event_type = 'Lock' \
             and application_name = 'postrider {}'",
            scene.pipeline.name
        );
        let pid = await_that("a session that waits to write", SOON, || async {
            scene.pipeline.sql.text(&waits).await.ok_or("none")
        })
        .await;
        scene.pipeline.sql.batch(&format!("select pg_terminate_backend({pid})")).await;
        holder.batch("rollback").await;
        left(&scene, "a waiting, a behind").await;
        scene.raise_the_limit().await;
        scene.insert(&["a", "b"]).await;
        scene.await_last("a", 5).await;
        scene.await_last("b", 6).await;
        left(&scene, "").await;
        assert_eq!(relay.terminate(SOON).await.code, Some(0));
        let delivered = scene.delivered().await;
        assert_eq!((&*delivered["a"], &*delivered["b"]), (&[1, 2, 4, 5][..], &[3, 6][..]));
    }
}

/// A refused retry, and requests of people, on rows that are locked: nothing of it is lost, and others go on.
#[tokio::test]
async fn refusals_and_requests_of_locked_rows_are_written_when_they_are_free() {
    let mut scene = Scene::set(Version::Pg17, "parklockreq").await;
    let relay = scene.run();
    scene.insert(&["!a", "!b"]).await;
    left(&scene, "a waiting, b waiting").await;
    let attempts = |aggregate: &'static str| {
        let sql = format!(
            "select attempts::text from postrider.parked where aggregate_id = '{aggregate}'"
        );
        let sql_session = &scene.pipeline.sql;
        async move {
            sql_session.text(&sql).await.and_then(|n| n.parse::<u32>().ok()).expect("attempts")
        }
    };
    // A key share lock, as a foreign key takes it, keeps nothing from being written.
    let reader = holding(&scene, "select from postrider.parked for key share").await;
    let before = attempts("a").await;
    await_that("a refusal is written", SOON, || async {
        let now = attempts("a").await;
        if now > before { Ok(()) } else { Err(format!("{now} attempts")) }
    })
    .await;
    reader.batch("rollback").await;
    let holder =
        holding(&scene, "select from postrider.parked where aggregate_id = 'a' for update").await;
    let (stood, before) = (attempts("a").await, attempts("b").await);
    await_that("the other's refusals are written", SOON, || async {
        let now = attempts("b").await;
        if now > before + 2 { Ok(()) } else { Err(format!("{now} attempts")) }
    })
    .await;
    assert_eq!(attempts("a").await, stood);
    relay.await_status("the holder is named", SOON, names_the_holder).await;
    // The person asks for the event to be given up, in the transaction that holds it.
    holder
        .batch(
            "update postrider.parked set requested_action = 'skip', requested_by = 'a person', \
             requested_at = now() where aggregate_id = 'a'; commit",
        )
        .await;
    left(&scene, "b waiting").await;
    let row = "select state || ' ' || acted_action || ' ' || acted_declined from postrider.parked \
               where aggregate_id = 'a'";
    assert_eq!(scene.pipeline.sql.text(row).await.as_deref(), Some("skipped skip false"));
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Killed while the row of a published event is locked: it is published again, and so is what was published behind it.
#[tokio::test]
async fn aggregate_of_a_locked_parked_row_comes_again_in_order_after_a_kill() {
    let mut scene = Scene::set(Version::Pg18, "parklockkill").await;
    let relay = scene.run();
    scene.insert(&["!a", "!b", "a"]).await;
    left(&scene, "a waiting, b waiting, a behind").await;
    let lock =
        "select from postrider.parked where aggregate_id = 'a' and state = 'waiting' for update";
    let holder = holding(&scene, lock).await;
    scene.raise_the_limit().await;
    scene.await_last("b", 2).await;
    scene.await_last("a", 1).await;
    left(&scene, "a waiting, a behind").await;
    drop(relay.kill().await);
    holder.batch("rollback").await;
    let relay = scene.run();
    left(&scene, "").await;
    scene.insert(&["a"]).await;
    scene.await_last("a", 4).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let delivered = scene.delivered().await;
    assert_in_order(&delivered["a"], &[1, 3, 4]);
    assert_eq!(delivered["b"], [2], "its row says that it is published");
}

/// A session has locked the table: what is to be parked waits with its aggregate and all that is behind it unconfirmed;
/// other events are published, and the session is named.
#[tokio::test]
async fn locked_parked_table_is_waited_for_and_its_holder_is_named() {
    let mut scene = Scene::set(Version::Pg16, "parktable").await;
    let relay = scene.run();
    relay.await_state("streaming", SOON).await;
    let holder = holding(&scene, "lock table postrider.parked in exclusive mode").await;
    scene.insert(&["!a", "a", "b"]).await;
    scene.await_last("b", 3).await;
    let status = relay.await_status("the holder is named", SOON, names_the_holder).await;
    assert!(lag(&status) > 4.0, "what has no row yet counts: {status}");
    left(&scene, "").await;
    scene.insert(&["b"]).await;
    scene.await_last("b", 4).await;
    holder.batch("rollback").await;
    left(&scene, "a waiting, a behind").await;
    relay.await_log("all changes to rows of parked events are written", SOON).await;
    scene.raise_the_limit().await;
    left(&scene, "").await;
    stop(relay).await;
    assert_eq!(scene.delivered().await["a"], [1, 2]);
}

async fn stop(relay: Relay) {
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}
