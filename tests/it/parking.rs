//! One bad event, end to end: it is set aside, only its aggregate waits, and nothing is lost or swapped whenever the
//! relay is killed.

pub(crate) use crate::await_that::SOON;
use crate::await_that::await_that;
use crate::pipeline::Pipeline;
use crate::relay::{Relay, postrider_ok};
use crate::server::Version;
use crate::sink_caller::alter;
use crate::topic::ReadRecord;
use serde_json::Value;
use std::collections::BTreeMap;

/// Stands in every payload that must not be shown.
pub(crate) const SECRET: &str = "planted-8c2e";

/// Bytes the topic takes at first, and after somebody has raised it.
const LIMIT: (&str, &str) = ("3000", "100000");

/// A pipeline whose topic takes 3,000 bytes, and which tries a parked event every 300 ms.
pub(crate) struct Scene {
    pub(crate) pipeline: Pipeline,
    pub(crate) config: String,
    numbers: u32,
}

impl Scene {
    pub(crate) async fn set(version: Version, test: &str) -> Self {
        let lines = "attempts_max = 1000\nbackoff = { step = \"300ms\", steps_max = 1 }";
        Self::set_with(version, test, lines).await
    }

    /// The same with other lines for `[parking]`.
    pub(crate) async fn set_with(version: Version, test: &str, lines: &str) -> Self {
        Self::of(Pipeline::shared(version, test).await, lines).await
    }

    /// The same with a pipeline on other servers.
    pub(crate) async fn of(pipeline: Pipeline, lines: &str) -> Self {
        alter(&pipeline.topic, "max.message.bytes", LIMIT.0).await;
        let config = pipeline.with_parking(&pipeline.config, lines);
        Self { pipeline, config, numbers: 0 }
    }

    /// Inserts events of these aggregates in one transaction, numbered on; `!` before one makes it larger than the
    /// topic takes.
    pub(crate) async fn insert(&mut self, aggregates: &[&str]) {
        let mut rows = Vec::new();
        for aggregate in aggregates {
            self.numbers += 1;
            let number = self.numbers;
            let (id, bytes) = match aggregate.strip_prefix('!') {
                Some(id) => (id, 20_000),
                None => (*aggregate, 10),
            };
            // Digests: a batch is compressed, and the limit is on what is left.
            rows.push(format!(
                "('order', '{id}', 'T', json_build_object('n', {number}, 'c', '{SECRET}', 'x', \
                 (select string_agg(md5(random()::text), '') from generate_series(1, {bytes} / 32))))"
            ));
        }
        let rows = rows.join(", ");
        self.pipeline
            .sql
            .batch(&format!(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values {rows}"
            ))
            .await;
    }

    pub(crate) fn run(&self) -> Relay {
        Relay::spawn(&self.config)
    }

    pub(crate) async fn raise_the_limit(&self) {
        alter(&self.pipeline.topic, "max.message.bytes", LIMIT.1).await;
    }

    /// Waits until `state` of the parked table's rows, in order, is this.
    pub(crate) async fn await_rows(&self, wanted: &str) {
        let sql = "select coalesce(string_agg(aggregate_id || ' ' || state, ', ' order by commit_lsn, ordinal), '') \
                   from postrider.parked where state not in ('done', 'skipped')";
        await_that(&format!("parked: {wanted:?}"), SOON, || async {
            let found = self.pipeline.sql.text(sql).await.unwrap_or_default();
            if found == wanted { Ok(()) } else { Err(found) }
        })
        .await;
    }

    /// Every number of an aggregate as often as it came, in order of offset.
    pub(crate) async fn delivered(&self) -> BTreeMap<String, Vec<u64>> {
        let mut by_aggregate: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for record in self.pipeline.topic.read_all().await {
            let key = record.key_text().expect("a key").to_owned();
            by_aggregate.entry(key).or_default().push(number(&record));
        }
        by_aggregate
    }

    /// Waits until an aggregate has delivered `last`.
    pub(crate) async fn await_last(&self, aggregate: &str, last: u64) {
        await_that(&format!("{last} of {aggregate}"), SOON, || async {
            let delivered = self.delivered().await;
            let numbers = delivered.get(aggregate).cloned().unwrap_or_default();
            if numbers.contains(&last) { Ok(()) } else { Err(format!("{numbers:?}")) }
        })
        .await;
    }
}

pub(crate) fn number(record: &ReadRecord) -> u64 {
    let value: Value =
        serde_json::from_slice(record.value.as_deref().expect("a payload")).expect("JSON");
    value["n"].as_u64().expect("a number")
}

/// Each number comes, for the first time, after all smaller ones; and a repetition goes on without a gap.
pub(crate) fn assert_in_order(delivered: &[u64], wanted: &[u64]) {
    let mut first = Vec::new();
    for number in delivered {
        if !first.contains(number) {
            first.push(*number);
        }
    }
    assert_eq!(first, wanted, "{delivered:?}");
    for pair in delivered.windows(2) {
        let (before, after) = (place(wanted, pair[0]), place(wanted, pair[1]));
        assert!(after <= before + 1, "a gap in {delivered:?}");
    }
}

fn place(numbers: &[u64], number: u64) -> usize {
    numbers.iter().position(|other| *other == number).expect("a known number")
}

#[tokio::test]
async fn large_event_holds_up_its_own_aggregate_alone() {
    for version in Version::ALL {
        let mut scene = Scene::set(version, "aside").await;
        let relay = scene.run();
        scene.insert(&["a", "!a", "b", "a", "b"]).await;
        scene.insert(&["a", "b"]).await;
        scene.await_last("b", 7).await;
        scene.await_rows("a waiting, a behind, a behind").await;
        assert_eq!(scene.delivered().await["a"], [1], "nothing passes it");
        let end = scene.pipeline.wal_end().await;
        await_that("the slot past it", SOON, || scene.pipeline.confirmed(&end)).await;
        let parked = |status: &Value| status["pipelines"][0]["parked"]["behind"] == 2;
        let status = relay.await_status("two behind it", SOON, parked).await;
        let pipeline = &status["pipelines"][0];
        assert_eq!(pipeline["parked"]["aggregates"], 1, "{status}");
        assert_eq!(pipeline["parked"]["heads"][0]["state"], "waiting", "{status}");
        assert_eq!(pipeline["ready"], true, "{status}");
        assert_eq!(relay.get("/ready").await.expect("an answer").0, 200);
        let (_, metrics) = relay.get("/metrics").await.expect("an answer");
        assert!(metrics.contains("state=\"behind\"} 2"), "{metrics}");

        scene.raise_the_limit().await;
        scene.await_last("a", 6).await;
        scene.await_rows("").await;
        scene.insert(&["a", "b"]).await;
        scene.await_last("a", 8).await;
        scene.await_last("b", 9).await;
        let ended = relay.terminate(SOON).await;
        assert_eq!(ended.code, Some(0));
        assert_eq!(scene.delivered().await["a"], [1, 2, 4, 6, 8], "in order, none twice");
        assert_eq!(scene.delivered().await["b"], [3, 5, 7, 9], "in order, none twice");
        assert!(!ended.stderr.contains(SECRET), "{}", ended.stderr);
        assert!(ended.stderr.contains("too_large"), "{}", ended.stderr);
        let left = "select count(*)::text from postrider.parked where value is not null";
        assert_eq!(scene.pipeline.sql.text(left).await.as_deref(), Some("0"), "no payload is left");
    }
}

/// What the relay knows of the topic is seconds old then: it asks again before it judges.
#[tokio::test]
async fn retry_right_after_the_limit_was_raised_succeeds_and_counts_no_attempt() {
    let mut scene = Scene::set_with(Version::Pg17, "raised", "").await;
    let relay = scene.run();
    for round in 1..=5 {
        alter(&scene.pipeline.topic, "max.message.bytes", LIMIT.0).await;
        scene.insert(&["a"]).await;
        scene.await_last("a", round * 3 - 2).await;
        scene.insert(&["!a", "a"]).await;
        scene.await_rows("a waiting, a behind").await;
        scene.raise_the_limit().await;
        let words =
            ["parked", "retry", "--aggregate", "order:a", "--reason", "limit raised", "--yes"];
        drop(postrider_ok(&scene.config, &words));
        scene.await_last("a", round * 3).await;
        scene.await_rows("").await;
        let attempts = "select max(attempts)::text from postrider.parked";
        assert_eq!(scene.pipeline.sql.text(attempts).await.as_deref(), Some("0"));
    }
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Its aggregate goes on without it, and nobody has to start the relay anew.
#[tokio::test]
async fn dead_head_that_is_deleted_by_hand_is_noticed_while_running() {
    let mut scene = Scene::set_with(Version::Pg18, "deleted", "attempts_max = 1").await;
    let relay = scene.run();
    scene.insert(&["!a", "a", "b"]).await;
    scene.await_rows("a dead, a behind").await;
    scene.pipeline.sql.batch("delete from postrider.parked where state = 'dead'").await;
    scene.await_last("a", 2).await;
    scene.insert(&["a"]).await;
    scene.await_last("a", 4).await;
    assert_eq!(scene.delivered().await["a"], [2, 4], "in order, none twice");
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
}

/// Runs into the cut, starts again, and lets the large event through: in order whatever was cut.
async fn survives(version: Version, cut: &str) {
    let mut scene = Scene::set(version, "cut").await;
    scene.insert(&["a", "b", "!a", "a", "b"]).await;
    let relay = Relay::spawn_with(&scene.config, &[], &[("POSTRIDER_FAILPOINT", cut)]);
    if cut.starts_with("retry") || cut.starts_with("mark") {
        scene.await_rows("a waiting, a behind").await;
        scene.raise_the_limit().await;
    }
    let ended = relay.ended(SOON).await;
    assert_eq!(ended.code, None, "killed, by no other way: {}", ended.stderr);
    assert!(ended.stderr.contains("as POSTRIDER_FAILPOINT asks"), "{}", ended.stderr);
    let relay = scene.run();
    scene.insert(&["a", "b"]).await;
    scene.await_last("b", 7).await;
    scene.raise_the_limit().await;
    scene.await_last("a", 6).await;
    scene.await_rows("").await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let delivered = scene.delivered().await;
    assert_in_order(&delivered["a"], &[1, 3, 4, 6]);
    assert_in_order(&delivered["b"], &[2, 5, 7]);
}

#[tokio::test]
async fn killed_before_the_parked_row_is_written() {
    survives(Version::Pg18, "parked_row_due").await;
}

#[tokio::test]
async fn killed_after_the_parked_row_and_before_the_cursor() {
    survives(Version::Pg17, "parked_row_committed").await;
}

#[tokio::test]
async fn killed_after_the_second_parked_write() {
    survives(Version::Pg15, "parked_row_committed:2").await;
}

#[tokio::test]
async fn killed_before_the_cursor_row() {
    survives(Version::Pg18, "cursor_due").await;
}

#[tokio::test]
async fn killed_after_the_cursor_row_and_before_the_slot() {
    survives(Version::Pg17, "cursor_committed").await;
}

#[tokio::test]
async fn killed_after_the_retry_is_acknowledged_and_before_its_mark() {
    survives(Version::Pg18, "retry_acknowledged").await;
}

#[tokio::test]
async fn killed_before_the_second_retrys_mark() {
    survives(Version::Pg15, "mark_due:2").await;
}

#[tokio::test]
async fn killed_after_the_mark_is_committed_and_before_the_lane_is_live() {
    survives(Version::Pg18, "mark_committed").await;
}

#[tokio::test]
async fn killed_after_the_slot_has_passed_the_parked_event() {
    let mut scene = Scene::set(Version::Pg18, "passed").await;
    let relay = scene.run();
    scene.insert(&["a", "b", "!a", "a", "b"]).await;
    scene.await_rows("a waiting, a behind").await;
    let end = scene.pipeline.wal_end().await;
    await_that("the slot past it", SOON, || scene.pipeline.confirmed(&end)).await;
    drop(relay.kill().await);
    scene.raise_the_limit().await;
    let relay = scene.run();
    scene.insert(&["a", "b"]).await;
    scene.await_last("a", 6).await;
    scene.await_last("b", 7).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    let delivered = scene.delivered().await;
    assert_eq!(delivered["a"], [1, 3, 4, 6]);
    assert_eq!(delivered["b"], [2, 5, 7]);
}

/// What a person decided stands, though the log brings the event again.
#[tokio::test]
async fn killed_after_a_skip_and_before_the_cursor_has_passed_it() {
    let mut scene = Scene::set(Version::Pg17, "skip").await;
    scene.insert(&["a", "!a", "a"]).await;
    let relay =
        Relay::spawn_with(&scene.config, &[], &[("POSTRIDER_FAILPOINT", "parked_row_committed")]);
    drop(relay.ended(SOON).await);
    let ask = "update postrider.parked set requested_action = 'skip', requested_at = now(), requested_by = 'test' \
               where aggregate_id = 'a' and state = 'waiting'";
    scene.pipeline.sql.batch(ask).await;
    let relay = Relay::spawn_with(&scene.config, &[], &[("POSTRIDER_FAILPOINT", "mark_committed")]);
    drop(relay.ended(SOON).await);
    scene.raise_the_limit().await;
    let relay = scene.run();
    scene.insert(&["a"]).await;
    scene.await_last("a", 4).await;
    assert_eq!(relay.terminate(SOON).await.code, Some(0));
    assert_in_order(&scene.delivered().await["a"], &[1, 3, 4]);
}
